/* engine.c: opens a checkpoint on a device and runs steps. Read plan/backend.h first. */
#include "run/engine.h"
#include "plan/backends.h"
#include "base/env.h"
#include "model/family.h"
#include "run/sampler.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_MAX_ROWS = 1 << 16, MAX_SESSIONS = 4096, MAX_SNAPSHOTS = 4096, MIN_CTX = 64, ROWS_SHARE = 16 };

const char *cb_version(void) { return "0.1.0"; }

void cb_engine_close(cb_engine *e)
{
    if (!e) return;
    if (e->sessions)
        for (int i = 0; i < e->lim.max_sessions; i++) CB_ASSERT(!e->sessions[i]);
    if (e->snapshots) {
        cb_engine_cache_clear(e);
        for (int i = 0; i < e->max_snapshots; i++) CB_ASSERT(!e->snapshots[i]);
    }
    if (e->backend) e->backend->close(e->dev);
    cb_plan_close(e->plan);
    cb_weights_close(e->weights);
    cb_config_close(e->config);
    for (int g = 0; g < CB_MAX_KV_GROUPS; g++) {
        cb_free(e->pools[g].free);
        cb_free(e->pools[g].refs);
        cb_free(e->tables[g]);
    }
    cb_free(e->sessions);
    cb_free(e->snapshots);
    cb_free(e->token);
    cb_free(e->pos);
    cb_free(e->slot);
    cb_free(e->place);
    cb_free(e->wanted);
    cb_free(e->best_logits);
    cb_free(e->asks);
    cb_free(e->changes);
    cb_free(e);
}

/* "cuda" or "cuda:N". */
static int open_cuda(cb_engine *e, const cb_engine_opts *o, const char *device, cb_err *err)
{
    const cb_backend *b = cb_backend_find("cuda");
    cb_backend_opts bo = {.n_threads = o->n_threads};
    char *end = NULL;
    if (device[4] == ':') bo.index = (int)strtol(device + 5, &end, 10);
    if (device[4] && (device[4] != ':' || !device[5] || *end))
        return cb_fail(err, CB_EUSAGE, "device %.40s: unknown; use cuda or cuda:N", device);
    if (!b) return cb_fail(err, CB_ENODEV, "device %.40s: this build has no CUDA backend; use --device cpu", device);
    int rc = b->open(&bo, &e->dev, err);
    if (rc == 0) e->backend = b;
    return rc;
}

static int choose_backend(cb_engine *e, const cb_engine_opts *o, const char *device, cb_err *err)
{
    cb_backend_opts bo = {.n_threads = o->n_threads};
    if (!strncmp(device, "cuda", 4)) return open_cuda(e, o, device, err);
    if (!strncmp(device, "cpu:", 4)) bo.level = device + 4;
    else if (strcmp(device, "cpu"))
        return cb_fail(err, CB_EUSAGE, "device %.40s: unknown; use auto, cpu, cpu:c, cpu:avx2, cpu:avx512, cpu:neon or cuda", device);
    const cb_backend *b = cb_backend_find("cpu");
    int rc = b->open(&bo, &e->dev, err);
    if (rc == 0) e->backend = b;
    return rc;
}

/* ---- sizes ---- */

static uint64_t need_at(const cb_engine *e, cb_limits *lim, int ctx, cb_mem *mem)
{
    for (int g = 0; g < e->plan->n_kv_groups; g++) {
        int64_t n = (int64_t)cb_blocks_per_session(e->plan, g, ctx, lim->max_rows) * lim->max_sessions +
                    (int64_t)cb_blocks_per_snapshot(e->plan, g, ctx) * e->max_snapshots;
        if (n > INT32_MAX) return UINT64_MAX; /* block numbers are int32 */
        lim->kv_blocks[g] = (int)n;
    }
    e->backend->need(e->plan, lim, e->backend->n_threads(e->dev), mem);
    return mem->weights + mem->state + mem->scratch;
}

/* The largest context, a multiple of 64, that fits; 0: none. */
static int largest_ctx(const cb_engine *e, cb_limits lim, int most, uint64_t have)
{
    cb_mem mem;
    int lo = 0, hi = (most + MIN_CTX - 1) / MIN_CTX;
    while (lo < hi) {
        int mid = lo + (hi - lo + 1) / 2;
        if (need_at(e, &lim, mid * MIN_CTX, &mem) <= have) lo = mid;
        else hi = mid - 1;
    }
    int ctx = lo * MIN_CTX;
    return ctx < most ? ctx : most;
}

/* As many rows a step as the backend likes, while what they take beyond the default stays a small part of the memory, does not cost an
 * asked-for context, and the sessions can fill them. */
static int choose_rows(const cb_engine *e, cb_limits lim, int ctx, bool asked, uint64_t have)
{
    cb_mem mem;
    int rows = e->backend->rows;
    lim.max_rows = CB_DEFAULT_ROWS;
    uint64_t least = need_at(e, &lim, ctx, &mem);
    for (; rows > CB_DEFAULT_ROWS; rows /= 2) {
        lim.max_rows = rows;
        uint64_t need = need_at(e, &lim, ctx, &mem);
        if (rows / 2 < (int64_t)ctx * lim.max_sessions && need != UINT64_MAX && need - least <= have / ROWS_SHARE && !(asked && need > have)) return rows;
    }
    return CB_DEFAULT_ROWS;
}

static int choose_sizes(cb_engine *e, const cb_engine_opts *o, cb_err *err)
{
    uint64_t have = o->memory_limit ? o->memory_limit : e->backend->available(e->dev);
    e->lim.max_rows = o->max_rows ? o->max_rows : CB_DEFAULT_ROWS;
    e->lim.max_sessions = o->max_sessions ? o->max_sessions : 1;
    if (e->lim.max_rows < 1 || e->lim.max_rows > MAX_MAX_ROWS)
        return cb_fail(err, CB_EUSAGE, "max_rows is %d, allowed are 1 to %d", e->lim.max_rows, MAX_MAX_ROWS);
    if (e->lim.max_sessions < 1 || e->lim.max_sessions > MAX_SESSIONS)
        return cb_fail(err, CB_EUSAGE, "max_sessions is %d, allowed are 1 to %d", e->lim.max_sessions, MAX_SESSIONS);
    if (o->max_snapshots < 0 || o->max_snapshots > MAX_SNAPSHOTS)
        return cb_fail(err, CB_EUSAGE, "max_snapshots is %d, allowed are 0 to %d", o->max_snapshots, MAX_SNAPSHOTS);
    e->max_snapshots = o->max_snapshots;
    if (o->ctx_size < 0 || o->ctx_size > e->plan->ctx_trained)
        return cb_fail(err, CB_EUSAGE, "context of %d tokens: the checkpoint was made for at most %d", o->ctx_size,
                       e->plan->ctx_trained);
    e->lim.n_slots = e->lim.max_sessions + e->max_snapshots;
    int want = o->ctx_size ? o->ctx_size : e->plan->ctx_trained;
    if (!o->max_rows) e->lim.max_rows = choose_rows(e, e->lim, want, o->ctx_size, have);
    int fits = largest_ctx(e, e->lim, want, have);
    e->available = have;
    if (o->plan_only && fits < MIN_CTX) fits = want;
    if (fits < want && !o->plan_only && (o->ctx_size || fits < MIN_CTX)) {
        uint64_t need = need_at(e, &e->lim, o->ctx_size ? want : want < MIN_CTX ? want : MIN_CTX, &e->mem);
        return cb_fail(err, CB_ENOMEM,
                       "not enough memory: need %.1f MiB for a context of %d tokens (weights %.1f, KV cache %.1f, scratch %.1f), "
                       "have %.1f MiB; largest --ctx-size that fits is %d",
                       (double)need / 1048576, o->ctx_size ? want : MIN_CTX, (double)e->mem.weights / 1048576,
                       (double)e->mem.state / 1048576, (double)e->mem.scratch / 1048576, (double)have / 1048576, fits);
    }
    e->ctx_size = o->plan_only && o->ctx_size ? o->ctx_size : fits;
    need_at(e, &e->lim, e->ctx_size, &e->mem);
    return 0;
}

int cb_engine_get_memory(const cb_engine *e, int ctx_size, cb_memory *out, cb_err *err)
{
    const cb_plan *p = e->plan;
    cb_limits lim = e->lim;
    cb_mem mem;
    *out = (cb_memory){.ctx_size = ctx_size ? ctx_size : e->ctx_size, .weights = p->weight_bytes, .n_groups = p->n_kv_groups,
                       .available = e->available};
    if (ctx_size < 0 || ctx_size > p->ctx_trained)
        return cb_fail(err, CB_EUSAGE, "context of %d tokens: the checkpoint was made for at most %d", ctx_size, p->ctx_trained);
    if (need_at(e, &lim, out->ctx_size, &mem) == UINT64_MAX)
        return cb_fail(err, CB_EUSAGE, "context of %d tokens: too many blocks for %d sessions", out->ctx_size, lim.max_sessions);
    out->weight_copies = mem.weights;
    for (int g = 0; g < p->n_kv_groups; g++) {
        out->kv[g].window = p->kv_groups[g].window;
        out->kv[g].n_blocks = lim.kv_blocks[g];
        out->kv[g].bytes = mem.kv[g];
    }
    for (int i = 0; i < p->n_kv; i++) out->kv[p->kv[i].group].n_layers++;
    for (int i = 0; i < p->n_ops; i++) out->n_recurrent += p->ops[i].kind == CB_DELTA;
    out->recurrent = mem.recurrent;
    out->scratch = mem.scratch;
    out->pinned = mem.pinned;
    out->total = mem.weights + mem.state + mem.scratch;
    return 0;
}

static int allocate(cb_engine *e, cb_err *err)
{
    size_t rows = (size_t)e->lim.max_rows, n = (size_t)e->lim.max_sessions;
    bool ok = (e->token = cb_alloc_array(rows, 4)) && (e->pos = cb_alloc_array(rows, 4)) &&
              (e->slot = cb_alloc_array(rows, 4)) && (e->place = cb_alloc_array(rows, 4)) && (e->wanted = cb_alloc_array(rows, 4)) &&
              (e->sessions = cb_alloc_array(n, sizeof *e->sessions)) &&
              (e->snapshots = cb_alloc_array((size_t)e->max_snapshots, sizeof *e->snapshots)) &&
              (e->backend->samples ? (e->asks = cb_alloc_array(n, sizeof *e->asks)) && (e->changes = cb_alloc_array(CB_TOP_CHANGES, sizeof *e->changes))
                                   : (e->best_logits = cb_alloc_array(n * (size_t)e->plan->n_vocab, sizeof(float))) != NULL);
    for (int g = 0; g < e->plan->n_kv_groups && ok; g++) {
        cb_block_pool *p = &e->pools[g];
        p->n_blocks = p->n_free = e->lim.kv_blocks[g];
        ok = (p->free = cb_alloc_array((size_t)p->n_blocks, 4)) && (p->refs = cb_alloc_array((size_t)p->n_blocks, 4)) &&
             (e->tables[g] = cb_alloc_array(n, sizeof *e->tables[g]));
        for (int i = 0; ok && i < p->n_blocks; i++) p->free[i] = p->n_blocks - 1 - i; /* low numbers first */
    }
    return ok ? 0 : cb_fail(err, CB_ENOMEM, "no memory for %d rows and %d sessions", e->lim.max_rows, e->lim.max_sessions);
}

/* Opens the device, and unless only the plan is wanted gives it the model. */
static int start(cb_engine *e, const cb_engine_opts *o, const char *device, cb_err *err)
{
    int rc = choose_backend(e, o, device, err);
    if (rc == 0) rc = choose_sizes(e, o, err);
    if (rc == 0 && !o->plan_only) rc = e->backend->load(e->dev, e->plan, o->progress, o->progress_ctx, err);
    if (rc == 0 && !o->plan_only) rc = e->backend->prepare(e->dev, &e->lim, err);
    return rc;
}

/* Device auto: a GPU, unless there is none that can be used, or it has no room for the model. */
static int start_anywhere(cb_engine *e, const cb_engine_opts *o, cb_err *err)
{
    cb_err why = {0};
    int rc = start(e, o, "cuda", &why);
    if (rc == 0) return 0;
    bool can_go_on = !e->backend || rc == CB_ENOMEM;
    if (!can_go_on) return cb_fail(err, rc, "%s", why.text);
    snprintf(e->note, sizeof e->note, "%s", why.text);
    if (e->backend) e->backend->close(e->dev);
    e->backend = NULL;
    e->dev = NULL;
    return start(e, o, "cpu", err);
}

int cb_engine_open(const char *dir, const cb_engine_opts *opts, cb_engine **out, cb_err *err)
{
    static const cb_engine_opts defaults;
    const cb_engine_opts *o = opts ? opts : &defaults;
    *out = NULL;
    cb_engine *e = cb_alloc(sizeof *e);
    if (!e) return cb_fail(err, CB_ENOMEM, "no memory for an engine");
    int rc = cb_config_open(dir, &e->config, err);
    if (rc == 0 && !cb_family_find(e->config, err)) rc = CB_EFORMAT; /* said before gigabytes are mapped */
    if (rc == 0) rc = cb_weights_open(dir, &e->weights, err);
    if (rc == 0) rc = cb_model_plan(e->config, e->weights, &e->plan, err);
    if (rc == 0) rc = !o->device || !strcmp(o->device, "auto") ? start_anywhere(e, o, err) : start(e, o, o->device, err);
    if (rc == 0 && !o->plan_only) rc = allocate(e, err);
    if (rc < 0) cb_engine_close(e);
    else *out = e;
    return rc;
}

static int can_rewind(const cb_plan *p)
{
    for (int g = 0; g < p->n_kv_groups; g++)
        if (p->kv_groups[g].window) return 0;
    return !p->n_rec;
}

void cb_engine_get_info(const cb_engine *e, cb_engine_info *out)
{
    *out = (cb_engine_info){
        .family = e->plan->family,
        .device = e->backend->label(e->dev),
        .note = e->note[0] ? e->note : NULL,
        .arithmetic = "arith 1",
        .n_vocab = e->plan->n_vocab,
        .ctx_size = e->ctx_size,
        .ctx_trained = e->plan->ctx_trained,
        .n_threads = e->backend->n_threads(e->dev),
        .max_sessions = e->lim.max_sessions,
        .max_rows = e->lim.max_rows,
        .max_snapshots = e->max_snapshots,
        .can_rewind = can_rewind(e->plan),
        .n_params = e->plan->n_params,
        .weight_bytes = e->plan->weight_bytes,
        .n_skipped = e->plan->n_skipped,
        .skipped_bytes = e->plan->skipped_bytes,
        .state_bytes = e->mem.state,
        .scratch_bytes = e->mem.scratch + e->mem.weights,
    };
}

void cb_engine_set_tap(cb_engine *e, cb_tap_fn fn, void *ctx)
{
    e->tap = fn;
    e->tap_ctx = ctx;
}

int cb_engine_plan_text(const cb_engine *e, char **text, cb_err *err)
{
    cb_buf b;
    cb_buf_init(&b, 0);
    cb_plan_print(e->plan, &b);
    *text = cb_buf_take(&b);
    return *text ? 0 : cb_fail(err, CB_ENOMEM, "no memory for the plan's text");
}

/* ---- a step ---- */

/* Sessions count their rows in `pending`; place[r] is the number of row r among its session's. */
static int check_rows(cb_engine *e, const cb_row *rows, int n, cb_err *err)
{
    for (int r = 0; r < n; r++) {
        cb_session *s = rows[r].session;
        if (!s || s->q.engine != e) return cb_fail(err, CB_EUSAGE, "row %d: its session belongs to another engine", r);
        if (rows[r].token < 0 || rows[r].token >= e->plan->n_vocab)
            return cb_fail(err, CB_EUSAGE, "row %d: token %d is outside 0 to %d", r, rows[r].token, e->plan->n_vocab - 1);
        int rc = cb_session_usable(s, err);
        if (rc < 0) return rc;
        if (s->q.length + s->pending >= e->ctx_size)
            return cb_fail(err, CB_ECONTEXT, "context is full: a session holds %d tokens and %d are there already", e->ctx_size,
                           s->q.length + s->pending);
        e->place[r] = s->pending++;
    }
    return 0;
}

/* Fills the batch's row arrays. Each session's rows come together, so that it is one run of consecutive positions however the
 * caller has mixed them; wanted rows keep the caller's order. */
static int group_rows(cb_engine *e, const cb_row *rows, int n)
{
    int next = 0, n_wanted = 0;
    for (int r = 0; r < n; r++) {
        cb_session *s = rows[r].session;
        if (e->place[r] == 0) {
            s->first_row = next;
            next += s->pending;
        }
        int at = s->first_row + e->place[r];
        e->token[at] = rows[r].token;
        e->pos[at] = s->q.length + e->place[r];
        e->slot[at] = s->q.slot;
        if (rows[r].want_logits) e->wanted[n_wanted++] = at;
    }
    return n_wanted;
}

/* KV blocks for all rows of the step, or none. */
static int reserve(const cb_engine *e, const cb_row *rows, int n, cb_err *err)
{
    int rc = 0;
    for (int r = 0; r < n && rc == 0; r++)
        if (e->place[r] == 0) rc = cb_seq_reserve(&rows[r].session->q, rows[r].session->pending, err);
    for (int r = 0; r < n && rc < 0; r++) cb_seq_trim(&rows[r].session->q);
    return rc;
}

/* After the device has run. KV blocks of a failed step are written again by the next one, but a recurrent state has moved on
 * and cannot go back: keeping a copy of it for each step would cost more than failing steps are worth. */
static void settle(const cb_engine *e, const cb_row *rows, int n, bool ok)
{
    for (int r = 0; r < n; r++) {
        cb_session *s = rows[r].session;
        if (ok) s->q.tokens[s->q.length++] = rows[r].token;
        else {
            s->spoiled = e->plan->n_rec && s->q.length > 0; /* the first token starts from zero anyway */
            cb_seq_trim(&s->q);
        }
    }
}

static int32_t largest(const float *z, int n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (z[i] > z[best]) best = i;
    return best;
}

/* What is wanted of the rows: one of these. */
typedef struct wish {
    float *logits;
    int32_t *best;
    cb_sampler *sampler; /* with picks */
    cb_pick *picks;
} wish;

typedef struct sampling {
    const cb_engine *e;
    const wish *w;
    cb_err *err;
} sampling;

static int ask(cb_engine *e, const wish *w, int n_wanted, cb_err *err)
{
    int n = 0;
    if (cb_sampler_n_vocab(w->sampler) > e->plan->n_vocab)
        return cb_fail(err, CB_EUSAGE, "a sampler for %d tokens: the model has %d", cb_sampler_n_vocab(w->sampler), e->plan->n_vocab);
    for (int i = 0; i < n_wanted; i++) {
        const cb_pick *p = &w->picks[i];
        cb_ask spare, *q = e->backend->samples ? &e->asks[i] : &spare;
        int rc = cb_sampler_ask(w->sampler, p->sampling, p->history, p->n_history, p->n_prompt, e->changes + n, e->changes ? CB_TOP_CHANGES - n : 0, q, err);
        if (rc < 0) return rc;
        n += q->n_changes;
    }
    return 0;
}

static int answer(void *ctx, int i, const cb_top *top, const float *logits)
{
    const sampling *a = ctx;
    cb_pick *p = &a->w->picks[i];
    cb_sampler *s = a->w->sampler;
    const cb_ask *q = a->e->asks ? &a->e->asks[i] : NULL;
    if (top) p->token = cb_sampler_answer(s, p->sampling, q, top, p->n_history, &p->logprob, a->err);
    else if (q && q->kind != CB_ASK_ROW) p->token = cb_sampler_pick_changed(s, p->sampling, logits, p->n_history, &p->logprob, a->err);
    else p->token = cb_sampler_pick(s, p->sampling, logits, p->history, p->n_history, p->n_prompt, &p->logprob, a->err);
    return p->token == CB_SAMPLER_MORE;
}

/* The backend gave logits of each row, of which something else is wanted. */
static void choose(const cb_engine *e, const wish *w, sampling *a, int n_wanted)
{
    for (int r = 0; r < n_wanted; r++) {
        const float *z = e->best_logits + (size_t)r * (size_t)e->plan->n_vocab;
        if (w->best) w->best[r] = largest(z, e->plan->n_vocab);
        if (w->picks) answer(a, r, NULL, z);
    }
}

static int check_wish(const cb_engine *e, const wish *w, int n_wanted, cb_err *err)
{
    if (n_wanted && !w->logits && !w->best && !w->picks) return cb_fail(err, CB_EUSAGE, "%d rows want logits, but there is no room for them", n_wanted);
    if ((w->best || w->picks) && n_wanted > e->lim.max_sessions)
        return cb_fail(err, CB_EUSAGE, "%d rows want their %s: at most max_sessions, %d, may", n_wanted, w->best ? "best id" : "next token", e->lim.max_sessions);
    return 0;
}

static int step(cb_engine *e, const cb_row *rows, int n_rows, const wish *w, cb_err *err)
{
    int n_wanted = 0, rc;
    if (n_rows < 1 || n_rows > e->lim.max_rows)
        return cb_fail(err, CB_EUSAGE, "a step of %d rows: allowed are 1 to %d", n_rows, e->lim.max_rows);
    rc = check_rows(e, rows, n_rows, err);
    if (rc == 0) n_wanted = group_rows(e, rows, n_rows);
    if (rc == 0) rc = check_wish(e, w, n_wanted, err);
    if (rc == 0 && w->picks) rc = ask(e, w, n_wanted, err);
    if (rc == 0) rc = reserve(e, rows, n_rows, err);
    if (rc == 0) {
        bool on_device = e->backend->samples;
        sampling a = {e, w, err};
        cb_batch b = {.n_rows = n_rows, .token = e->token, .pos = e->pos, .slot = e->slot, .wanted = e->wanted, .n_wanted = n_wanted,
                      .logits = w->logits ? w->logits : e->best_logits, .best = on_device ? w->best : NULL,
                      .asks = on_device && w->picks ? e->asks : NULL, .n_ids = w->picks ? cb_sampler_n_vocab(w->sampler) : 0, .answer = answer,
                      .answer_ctx = &a, .tap = e->tap, .tap_ctx = e->tap_ctx};
        for (int g = 0; g < e->plan->n_kv_groups; g++) b.kv[g] = e->tables[g];
        rc = e->backend->run(e->dev, &b, err);
        settle(e, rows, n_rows, rc == 0);
        if (rc == 0 && !w->logits && !on_device) choose(e, w, &a, n_wanted);
    }
    for (int r = 0; r < n_rows; r++)
        if (rows[r].session && rows[r].session->q.engine == e) rows[r].session->pending = 0;
    return rc;
}

int cb_step(cb_engine *e, const cb_row *rows, int n_rows, float *logits, cb_err *err)
{
    return step(e, rows, n_rows, &(wish){.logits = logits}, err);
}

int cb_step_best(cb_engine *e, const cb_row *rows, int n_rows, int32_t *best, cb_err *err)
{
    return step(e, rows, n_rows, &(wish){.best = best}, err);
}

int cb_step_sample(cb_engine *e, const cb_row *rows, int n_rows, cb_sampler *s, cb_pick *picks, cb_err *err)
{
    return step(e, rows, n_rows, &(wish){.sampler = s, .picks = picks}, err);
}

int cb_engine_probe(cb_engine *e, cb_probe *out, cb_err *err) { return e->backend->probe(e->dev, out, err); }
