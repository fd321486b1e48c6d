/* run.c: `cambium run`: one answer. The interactive chat is chat.c. */
#include "base/clock.h"
#include "base/mem.h"
#include "cli/commands.h"
#include "cli/prompt.h"
#include "cli/term.h"
#include "cli/view.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_PROMPT_BYTES = 64 << 20 };

void run_note_speed(const cli_opts *o, const gen_result *r)
{
    int n_new = r->n_prompt - r->n_cached;
    cli_note(o, "prompt %d tokens%s (%.1f tok/s), answer %d tokens (%.1f tok/s), first after %.2f s", n_new,
             r->n_cached ? " more" : "", r->prefill_s > 0 ? n_new / r->prefill_s : 0, r->n_out,
             r->decode_s > 0 ? (r->n_out - 1) / r->decode_s : 0, r->first_s);
}

static void note_settings(const cli_opts *o, const cli_model *m, const cb_sampling *p, double load_s)
{
    static const char *const profiles[] = { "hf", "vllm", "mlx", "llamacpp" };
    char a[32], b[32], c[32];
    if (o->level < CLI_DEBUG) return;
    cli_note(o, "model %s: %s, %.1f M parameters, weights %s; loaded in %.2f s", m->dir, m->info.family, (double)m->info.n_params / 1e6,
             cli_bytes(a, m->info.weight_bytes), load_s);
    cli_note(o, "device %s, %d threads, %s; context %d of %d tokens, state %s, scratch %s", m->info.device, m->info.n_threads,
             m->info.arithmetic, m->info.ctx_size, m->info.ctx_trained, cli_bytes(b, m->info.state_bytes), cli_bytes(c, m->info.scratch_bytes));
    cli_note(o, "sampling: profile %s, temperature %g, top-k %d, top-p %g, min-p %g, repeat %g, presence %g, frequency %g, seed %llu",
             profiles[p->profile], (double)p->temperature, p->top_k, (double)p->top_p, (double)p->min_p, (double)p->repetition_penalty,
             (double)p->presence_penalty, (double)p->frequency_penalty, (unsigned long long)p->seed);
}

/* The text from PROMPT, -p, -f or stdin; *text stays NULL for an interactive chat. Free with cb_free. */
static int find_prompt(const cli_opts *o, char **text, size_t *n, cb_err *err)
{
    const char *arg = o->n_args > 1 ? o->args[1] : NULL;
    *text = NULL;
    if ((arg != NULL) + (o->prompt != NULL) + (o->file != NULL) > 1)
        return cb_fail(err, CB_EUSAGE, "the prompt is given twice; use one of PROMPT, -p and -f");
    if (o->prompt || (arg && strcmp(arg, "-") != 0)) {
        const char *p = o->prompt ? o->prompt : arg;
        *n = strlen(p);
        return (*text = cb_strndup(p, *n)) ? 0 : cb_fail(err, CB_ENOMEM, "no memory for the prompt");
    }
    if (!o->file && !arg && isatty(0)) return 0;
    int rc = cli_read_file(o->file ? o->file : "-", MAX_PROMPT_BYTES, text, n, err);
    if (rc == 0 && !o->raw && *n && (*text)[*n - 1] == '\n') (*text)[--*n] = 0; /* the newline of `echo` is no part of it */
    return rc;
}

static int encode_prompt(const cli_model *m, const cli_opts *o, gen_params *p, const char *text, size_t n, int32_t **ids, int *n_ids, cb_err *err)
{
    if (o->raw) {
        if (o->system) return cb_fail(err, CB_EUSAGE, "--system needs the chat template; leave out --raw");
        return cli_encode_raw(m->tok, text, n, ids, n_ids, err);
    }
    if (!m->tmpl) return cli_no_template(m, err);
    json_t *messages = prompt_messages(m, o->system);
    int rc = messages ? prompt_add(m, messages, "user", text, n, err) : cb_fail(err, CB_ENOMEM, "no memory for the prompt");
    if (rc == 0) rc = prompt_encode(m, o, p->reasoning, messages, ids, n_ids, &p->opened, err);
    json_decref(messages);
    return rc;
}

static json_t *result_json(const gen *g, const cb_sampling *p, const gen_result *r, const view *v)
{
    int n_new = r->n_prompt - r->n_cached;
    json_t *ids = json_array();
    for (int i = 0; i < r->n_out; i++) json_array_append_new(ids, json_integer(r->out[i]));
    json_t *timings = json_pack("{s:i, s:i, s:f, s:f, s:i, s:f, s:f, s:f, s:I}", "cache_n", r->n_cached, "prompt_n", n_new, "prompt_ms",
                                1e3 * r->prefill_s, "prompt_per_second", r->prefill_s > 0 ? n_new / r->prefill_s : 0.0, "predicted_n",
                                r->n_out, "predicted_ms", 1e3 * r->decode_s, "predicted_per_second",
                                r->decode_s > 0 ? (r->n_out - 1) / r->decode_s : 0.0, "first_token_ms", 1e3 * r->first_s, "seed",
                                (json_int_t)p->seed);
    json_t *usage = json_pack("{s:i, s:i, s:i}", "prompt_tokens", r->n_prompt, "completion_tokens", r->n_out, "total_tokens",
                              r->n_prompt + r->n_out);
    if (r->n_thought) json_object_set_new(usage, "completion_tokens_details", json_pack("{s:i}", "reasoning_tokens", r->n_thought));
    json_t *j = json_pack("{s:s, s:o, s:s, s:s?, s:o, s:o, s:o, s:s, s:s, s:i}", "model", g->m->name, "text",
                          cli_json_string(v->text.data ? v->text.data : "", v->text.n), "finish_reason", r->finish, "stop_reason", r->stop_reason,
                          "ids", ids, "usage", usage, "timings", timings, "device", g->m->info.device, "arithmetic", g->m->info.arithmetic,
                          "ctx_size", g->m->info.ctx_size);
    if (j && v->thought.n && !v->hide) json_object_set_new(j, "reasoning_content", cli_json_string(v->thought.data, v->thought.n));
    return j;
}

static int one_answer(gen *g, const cli_opts *o, gen_params *p, const char *text, size_t n, cb_err *err)
{
    int32_t *ids = NULL;
    int n_ids = 0;
    gen_result r;
    view v;
    view_begin(&v, o, p);
    int rc = encode_prompt(g->m, o, p, text, n, &ids, &n_ids, err);
    if (rc == 0) rc = gen_answer(g, ids, n_ids, p, &r, err);
    cb_free(ids);
    if (rc == 0) {
        char hex[65];
        cb_sha256_hex(&g->hash, hex);
        if (o->json) {
            json_t *j = result_json(g, p->sampling, &r, &v);
            if (j && o->hash) json_object_set_new(j, "sha256", json_string(hex));
            rc = cli_print_json(j, err);
        } else {
            view_end(&v, true);
            if (o->hash) printf("sha256 %s\n", hex);
        }
        if (rc == 0) rc = cli_flush(err);
        run_note_speed(o, &r);
        if (rc == 0 && !strcmp(r.finish, "interrupted")) rc = cb_fail(err, CB_EINTR, "interrupted");
    }
    view_fini(&v);
    return rc;
}

static int check_flags(const cli_opts *o, cb_err *err)
{
    if (o->hash && *o->hash && strcmp(o->hash, "all") != 0) return cb_fail(err, CB_EUSAGE, "--hash=%.40s: only --hash and --hash=all are known", o->hash);
    if (o->batch_with != INT64_MIN && (o->batch_with < 0 || o->batch_with > 64)) return cb_fail(err, CB_EUSAGE, "--batch-with: 0 to 64 sequences");
    if (o->max_tokens != INT64_MIN && (o->max_tokens < 1 || o->max_tokens > INT32_MAX)) return cb_fail(err, CB_EUSAGE, "--max-tokens: %lld is not 1 or more", (long long)o->max_tokens);
    for (int i = 0; i < o->stop.n; i++)
        if (!*o->stop.v[i] || strlen(o->stop.v[i]) > CB_STOP_BYTES_MAX) return cb_fail(err, CB_EUSAGE, "--stop: a stop text has 1 to %d bytes", CB_STOP_BYTES_MAX);
    if (o->json_schema || o->grammar)
        return cb_fail(err, CB_EUSAGE, "--%s: this build cannot constrain what a model says; leave it out", o->json_schema ? "json-schema" : "grammar");
    if (o->image.n) return cb_fail(err, CB_EUSAGE, "--image %.200s: no model family of this build takes images; leave it out", o->image.v[0]);
    return 0;
}

int cmd_run(const cli_opts *o, cb_err *err)
{
    cli_model m = {0};
    gen g = {0};
    cb_sampling sampling;
    cli_reasoning reasoning;
    char *text = NULL;
    size_t n = 0;
    double t0 = cb_now();
    int n_others = o->batch_with > 0 ? (int)o->batch_with : 0, chunk = o->prefill_chunk > 0 && o->prefill_chunk <= 65536 ? (int)o->prefill_chunk : n_others ? 512 : 0;
    bool hash_all = o->hash && !strcmp(o->hash, "all");
    int rc = check_flags(o, err);
    if (rc == 0) rc = find_prompt(o, &text, &n, err);
    if (rc == 0) rc = cli_model_open(&m, o, CLI_NEED_TOKENIZER | CLI_NEED_ENGINE | (o->raw ? 0 : CLI_WANT_TEMPLATE) | (text ? 0 : CLI_KEEP_STATES), n_others, chunk + n_others, err);
    if (rc == 0) rc = cli_sampling(o, m.dir, &sampling, err);
    if (rc == 0) rc = cli_reasoning_init(&reasoning, &m, o, err);
    if (rc == 0) rc = gen_open(&g, &m, hash_all ? 32 : 1, n_others, err);
    if (rc == 0) {
        gen_params p = { .sampling = &sampling, .max_tokens = o->max_tokens > 0 ? (int)o->max_tokens : 0, .ignore_eos = o->ignore_eos,
                         .stop = &o->stop, .reasoning = &reasoning };
        g.hash_mode = hash_all ? GEN_HASH_ALL : o->hash ? GEN_HASH_CHOSEN : GEN_HASH_NONE;
        note_settings(o, &m, &sampling, cb_now() - t0);
        cli_interrupt_begin();
        rc = text ? one_answer(&g, o, &p, text, n, err) : chat_loop(&g, o, &p, err);
    }
    if (g.m) gen_close(&g);
    cli_model_close(&m);
    cb_free(text);
    return rc;
}
