#include "cli/model.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/sys.h"
#include "cli/term.h"
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

int cli_model_locate(const cli_opts *o, const char *name, char *dir, size_t cap, cb_err *err)
{
    if (!*name) return cb_fail(err, CB_EUSAGE, "the model's name is empty");
    for (int i = 0; i < o->model_dirs.n; i++) {
        int n = snprintf(dir, cap, "%s/%s", o->model_dirs.v[i], name);
        if (n > 0 && (size_t)n < cap && cb_file_exists(dir, "config.json")) return 0;
    }
    return cb_model_find(name, o->cache_dir, dir, cap, err);
}

static int in_range(int64_t v, int64_t lo, int64_t hi, const char *flag, cb_err *err)
{
    if (v == INT64_MIN || (v >= lo && v <= hi)) return 0;
    return cb_fail(err, CB_EUSAGE, "%s: %lld is outside %lld to %lld", flag, (long long)v, (long long)lo, (long long)hi);
}

/* What this build cannot do is refused, even where it would change nothing but speed. */
static int check_engine_flags(const cli_opts *o, cb_err *err)
{
    const char *const kv[][2] = { { "--kv-dtype", o->kv_dtype }, { "-ctk", o->kv_k }, { "-ctv", o->kv_v } };
    for (int i = 0; i < 3; i++)
        if (kv[i][1] && strcmp(kv[i][1], "auto") != 0 && strcmp(kv[i][1], "int16") != 0)
            return cb_fail(err, CB_EUSAGE, "%s %.40s: keys and values are stored as 16-bit integers with scales (int16), which is part of the "
                           "arithmetic; leave it out", kv[i][0], kv[i][1]);
    if (o->speculative && strcmp(o->speculative, "auto") != 0 && strcmp(o->speculative, "off") != 0)
        return cb_fail(err, CB_EUSAGE, "--speculative %.40s: this build drafts nothing (it would change speed only); try off", o->speculative);
    if (o->draft_model || o->num_draft_tokens != INT64_MIN)
        return cb_fail(err, CB_EUSAGE, "%s: this build drafts nothing (it would change speed only); leave it out", o->draft_model ? "--draft-model" : "--num-draft-tokens");
    return 0;
}

/* --memory-limit, and what --memory-floor leaves: 0 when neither is given. */
static int memory_limit(const cli_opts *o, uint64_t *limit, cb_err *err)
{
    *limit = o->memory_limit > 0 ? (uint64_t)o->memory_limit : 0;
    if (o->memory_floor <= 0) return 0;
    uint64_t have = cb_memory_available(), floor = (uint64_t)o->memory_floor;
    char a[32], b[32];
    if (floor >= have) return cb_fail(err, CB_ENOMEM, "--memory-floor: %s are to stay free and %s are", cli_bytes(a, floor), cli_bytes(b, have));
    if (!*limit || *limit > have - floor) *limit = have - floor;
    return 0;
}

static void warn_of_gpus(const cli_opts *o, const cli_model *m)
{
    if (cli_gpus() && (!o->device || !strcmp(o->device, "auto")) && !strncmp(m->info.device, "cpu", 3))
        cli_log(o, CLI_WARN, "there is an NVIDIA GPU, but this runs on %s: %s", m->info.device, m->info.note ? m->info.note : "it cannot be used");
}

static int open_engine(cli_model *m, const cli_opts *o, int needs, int extra_sessions, int max_rows, cb_err *err)
{
    cli_progress progress = { .opts = o };
    int64_t chunk = o->prefill_chunk;
    if (in_range(o->ctx_size, 0, INT_MAX, "--ctx-size", err) < 0 || in_range(o->threads, 0, 256, "--threads", err) < 0 ||
        in_range(chunk, 1, 65536, "--prefill-chunk", err) < 0)
        return CB_EUSAGE;
    uint64_t limit = 0;
    int rc = check_engine_flags(o, err);
    if (rc == 0) rc = memory_limit(o, &limit, err);
    if (rc < 0) return rc;
    cb_engine_opts eo = {
        .device = o->device,
        .n_threads = o->threads > 0 ? (int)o->threads : 0,
        .ctx_size = o->ctx_size > 0 ? (int)o->ctx_size : 0,
        .max_sessions = 1 + extra_sessions,
        .max_snapshots = needs & CLI_KEEP_STATES ? 2 : 0,
        .plan_only = (needs & CLI_PLAN_ONLY) != 0,
        .max_rows = max_rows ? max_rows : chunk > 0 ? (int)chunk : 0,
        .memory_limit = limit,
        .progress = cli_progress_show,
        .progress_ctx = &progress,
    };
    rc = cb_engine_open(m->dir, &eo, &m->engine, err);
    cli_progress_end(&progress);
    if (rc < 0) return rc;
    cb_engine_get_info(m->engine, &m->info);
    if (!m->n_vocab || m->n_vocab > m->info.n_vocab) m->n_vocab = m->info.n_vocab;
    if (o->ctx_size <= 0 && m->info.ctx_size < m->info.ctx_trained)
        cli_note(o, "context: %d tokens (the model's limit is %d; more does not fit)", m->info.ctx_size, m->info.ctx_trained);
    warn_of_gpus(o, m);
    return 0;
}

enum { MAX_TEMPLATE = 4 << 20 };

/* --chat-template: a file, or else a name. */
static int open_template(cli_model *m, const cli_opts *o, cb_err *err)
{
    char *text;
    size_t n;
    if (!o->chat_template) return cb_template_open(m->dir, &m->tmpl, err);
    if (!cb_file_exists(NULL, o->chat_template)) {
        int rc = cb_template_open_named(m->dir, o->chat_template, &m->tmpl, err);
        return rc == CB_ENOTFOUND ? cb_fail(err, CB_EUSAGE, "--chat-template %.200s: neither a file nor a template of %.200s", o->chat_template, m->name) : rc;
    }
    int rc = cli_read_file(o->chat_template, MAX_TEMPLATE, &text, &n, err);
    if (rc < 0) return rc;
    rc = cb_template_open_text(m->dir, o->chat_template, text, n, &m->tmpl, err);
    cb_free(text);
    return rc == CB_EFORMAT ? err->code = CB_EUSAGE : rc; /* the user's file, not the checkpoint's */
}

int cli_model_open(cli_model *m, const cli_opts *o, int needs, int extra_sessions, int max_rows, cb_err *err)
{
    memset(m, 0, sizeof *m);
    m->name = o->args[0];
    int rc = cli_model_locate(o, m->name, m->dir, sizeof m->dir, err);
    if (rc == 0 && (needs & CLI_NEED_TOKENIZER)) {
        rc = cb_tokenizer_open(m->dir, &m->tok, err);
        if (rc == 0) m->n_vocab = cb_tokenizer_n_vocab(m->tok);
    }
    if (rc == 0 && (needs & (CLI_NEED_TEMPLATE | CLI_WANT_TEMPLATE))) {
        int trc = open_template(m, o, &m->no_template);
        if (trc < 0 && ((needs & CLI_NEED_TEMPLATE) || o->chat_template)) {
            *err = m->no_template;
            rc = trc;
        }
    }
    if (rc == 0 && (needs & CLI_NEED_ENGINE)) rc = open_engine(m, o, needs, extra_sessions, max_rows, err);
    if (rc < 0) cli_model_close(m);
    return rc;
}

void cli_model_close(cli_model *m)
{
    cb_engine_close(m->engine);
    cb_template_close(m->tmpl);
    cb_tokenizer_close(m->tok);
    m->engine = NULL;
    m->tmpl = NULL;
    m->tok = NULL;
}

int cli_no_template(const cli_model *m, cb_err *err)
{
    const cb_err *why = &m->no_template;
    if (why->code == CB_ENOTFOUND) return cb_fail(err, CB_EFORMAT, "%.200s cannot chat: it has no chat template; try --raw", m->name);
    return cb_fail(err, why->code ? why->code : CB_EFORMAT, "%.400s; try --raw", why->text);
}

/* ---- sampling ---- */

static int parse_order(const char *list, uint8_t order[8], cb_err *err)
{
    static const char *const names[] = { "", "penalties", "temperature", "top_k", "top_p", "min_p" };
    int n = 0;
    for (const char *p = list; *p;) {
        size_t len = strcspn(p, ",;");
        int op = 0;
        for (int i = 1; i < 6; i++)
            if (strlen(names[i]) == len && !strncmp(names[i], p, len)) op = i;
        if (!op) return cb_fail(err, CB_EUSAGE, "--samplers: %.*s is unknown; known are penalties, temperature, top_k, top_p, min_p", (int)(len < 40 ? len : 40), p);
        for (int i = 0; i < n; i++)
            if (order[i] == op) return cb_fail(err, CB_EUSAGE, "--samplers: %s is given twice", names[op]);
        order[n++] = (uint8_t)op;
        p += len;
        if (*p) p++;
    }
    if (n == 0) return cb_fail(err, CB_EUSAGE, "--samplers: the list is empty");
    order[n] = CB_OP_END;
    return 0;
}

static int real_flag(double v, double lo, double hi, const char *flag, float *out, cb_err *err)
{
    if (isnan(v)) return 0;
    if (v < lo || v > hi) return cb_fail(err, CB_EUSAGE, "%s: %g is outside %g to %g", flag, v, lo, hi);
    *out = (float)v;
    return 0;
}

int cli_sampling(const cli_opts *o, const char *dir, cb_sampling *p, cb_err *err)
{
    static const char *const profiles[] = { "hf", "vllm", "mlx", "llamacpp" };
    cb_sampling_init(p);
    bool none = o->generation_config && !strcmp(o->generation_config, "none");
    if (o->generation_config && !none && strcmp(o->generation_config, "auto") != 0)
        return cb_fail(err, CB_EUSAGE, "--generation-config: %.40s is neither auto nor none", o->generation_config);
    int rc = none ? 0 : cb_sampling_from_checkpoint(p, dir, err);
    if (rc < 0) return rc;
    if ((rc = real_flag(o->temp, 0, 100, "--temp", &p->temperature, err)) < 0) return rc;
    if ((rc = real_flag(o->top_p, 0, 1, "--top-p", &p->top_p, err)) < 0) return rc;
    if ((rc = real_flag(o->min_p, 0, 1, "--min-p", &p->min_p, err)) < 0) return rc;
    if ((rc = real_flag(o->repeat_penalty, 0, 10, "--repeat-penalty", &p->repetition_penalty, err)) < 0) return rc;
    if ((rc = real_flag(o->presence_penalty, -2, 2, "--presence-penalty", &p->presence_penalty, err)) < 0) return rc;
    if ((rc = real_flag(o->frequency_penalty, -2, 2, "--frequency-penalty", &p->frequency_penalty, err)) < 0) return rc;
    if (in_range(o->top_k, -1, INT_MAX, "--top-k", err) < 0 || in_range(o->repeat_last_n, -1, INT_MAX, "--repeat-last-n", err) < 0 ||
        in_range(o->seed, -1, INT64_MAX, "--seed", err) < 0)
        return CB_EUSAGE;
    if (o->top_k != INT64_MIN) p->top_k = (int)o->top_k;
    if (o->repeat_last_n != INT64_MIN) p->repeat_last_n = (int)o->repeat_last_n;
    if (o->profile) {
        p->profile = -1;
        for (int i = 0; i < 4; i++)
            if (!strcmp(o->profile, profiles[i])) p->profile = i;
        if (p->profile < 0) return cb_fail(err, CB_EUSAGE, "--sampler-profile: %.40s is unknown; known are hf, vllm, mlx, llamacpp", o->profile);
    }
    if (o->samplers && (rc = parse_order(o->samplers, p->order, err)) < 0) return rc;
    p->seed = o->seed >= 0 ? (uint64_t)o->seed : cli_random_seed();
    return 0;
}

uint64_t cli_random_seed(void)
{
    uint64_t s = 0;
    if (getrandom(&s, sizeof s, 0) != sizeof s) s = (uint64_t)time(NULL) * 0x9E3779B97F4A7C15u;
    return s >> 1;
}

/* ---- text to ids ---- */

int cli_encode(const cb_tokenizer *t, const char *text, size_t n, int flags, int32_t **ids, int *n_ids, cb_err *err)
{
    *ids = NULL;
    int64_t need = cb_tokenizer_encode(t, text, n, flags, NULL, 0, err);
    if (need < 0) return (int)need;
    if (need > INT_MAX / 2) return cb_fail(err, CB_EUSAGE, "the text has %lld tokens", (long long)need);
    if (!(*ids = cb_alloc_array((size_t)need + 1, sizeof **ids))) return cb_fail(err, CB_ENOMEM, "no memory for %lld tokens", (long long)need);
    need = cb_tokenizer_encode(t, text, n, flags, *ids, (size_t)need, err);
    if (need < 0) {
        cb_free(*ids);
        *ids = NULL;
        return (int)need;
    }
    *n_ids = (int)need;
    return 0;
}

int cli_encode_raw(const cb_tokenizer *t, const char *text, size_t n, int32_t **ids, int *n_ids, cb_err *err)
{
    int32_t *bare;
    int n_bare, rc = cli_encode(t, text, n, CB_ENCODE_PARSE_SPECIAL | CB_ENCODE_SPECIAL_BEGIN, ids, n_ids, err);
    if (rc < 0) return rc;
    if (*n_ids < 2 || (*ids)[0] != (*ids)[1]) return 0;
    if ((rc = cli_encode(t, text, n, CB_ENCODE_PARSE_SPECIAL, &bare, &n_bare, err)) < 0) return rc;
    if (n_bare == *n_ids - 1 && bare[0] == (*ids)[0]) { /* the text spells the BOS itself */
        cb_free(*ids);
        *ids = bare;
        *n_ids = n_bare;
    } else
        cb_free(bare);
    return 0;
}
