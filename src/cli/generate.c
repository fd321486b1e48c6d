#include "cli/generate.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/reason.h"
#include "cli/term.h"
#include <string.h>

int gen_open(gen *g, const cli_model *m, int logit_rows, int n_others, cb_err *err)
{
    const cb_engine_info *in = &m->info;
    memset(g, 0, sizeof *g);
    g->m = m;
    g->chunk = in->max_rows - n_others;
    g->logit_rows = logit_rows < g->chunk ? logit_rows : g->chunk;
    CB_ASSERT(g->chunk >= 1 && logit_rows >= 1);
    cb_sha256_init(&g->hash);
    g->rows = cb_alloc_array((size_t)in->max_rows, sizeof *g->rows);
    g->logits = cb_alloc_aligned((size_t)g->logit_rows * (size_t)in->n_vocab * sizeof *g->logits);
    g->ids = cb_alloc_array((size_t)in->ctx_size + 1, sizeof *g->ids);
    g->others = cb_alloc_array((size_t)n_others, sizeof *g->others);
    int rc = 0;
    if (!g->rows || !g->logits || !g->ids || !g->others)
        rc = cb_fail(err, CB_ENOMEM, "no memory for %d rows of %d logits", g->logit_rows, in->n_vocab);
    if (rc == 0) rc = cb_sampler_open(m->n_vocab, &g->sampler, err);
    if (rc == 0) rc = cb_session_open(m->engine, &g->session, err);
    for (; rc == 0 && g->n_others < n_others; g->n_others++)
        if ((rc = cb_session_open(m->engine, &g->others[g->n_others], err)) < 0) break;
    if (rc < 0) gen_close(g);
    return rc;
}

void gen_close(gen *g)
{
    for (int i = 0; i < g->n_others; i++) cb_session_close(g->others[i]);
    cb_session_close(g->session);
    cb_sampler_close(g->sampler);
    cb_free(g->rows);
    cb_free_aligned(g->logits);
    cb_free(g->ids);
    cb_free(g->others);
    memset(g, 0, sizeof *g);
}

/* A row of another sequence, with a token of its own; full sequences start again. */
static void put_other(gen *g, int i, cb_row *row)
{
    if (cb_session_length(g->others[i]) >= g->m->info.ctx_size) cb_session_reset(g->others[i]);
    g->other_state = g->other_state * 6364136223846793005u + 1442695040888963407u;
    *row = (cb_row){ g->others[i], (int32_t)((g->other_state >> 33) % (uint64_t)g->m->n_vocab), 0 };
}

/* The rows of a step, the last of which chooses the next id. */
static int step_sample(gen *g, int n_rows, int n_ids, cb_err *err)
{
    cb_pick pick = { .sampling = g->sampling, .history = g->ids, .n_history = n_ids, .n_prompt = g->n_prompt };
    int rc = cb_step_sample(g->m->engine, g->rows, n_rows, g->sampler, &pick, err);
    g->next = pick.token;
    return rc < 0 ? rc : pick.token < 0 ? pick.token : 0;
}

/* One step: n ids from g->ids[n_fed], in a batch with one row of each other sequence, half of them in front. What follows the last id is
 * wanted: always where ids are chosen from logits, else when it ends what is fed. */
static int step(gen *g, int n, bool all_logits, bool ends, cb_err *err)
{
    int k = 0, i = 0;
    for (; i < g->n_others / 2; i++) put_other(g, i, &g->rows[k++]);
    for (int j = 0; j < n; j++)
        g->rows[k++] = (cb_row){ g->session, g->ids[g->n_fed + j], all_logits || (j == n - 1 && (ends || !g->sampling)) };
    for (; i < g->n_others; i++) put_other(g, i, &g->rows[k++]);
    int rc = g->sampling && ends ? step_sample(g, k, g->n_fed + n, err) : cb_step(g->m->engine, g->rows, k, g->logits, err);
    if (rc < 0) return rc;
    g->n_fed += n;
    g->last = g->logits + (size_t)(all_logits ? n - 1 : 0) * (size_t)g->m->info.n_vocab;
    return 0;
}

static void hash_rows(gen *g, const float *rows, int n)
{
    cb_sha256_put(&g->hash, rows, (size_t)n * (size_t)g->m->info.n_vocab * sizeof *rows); /* little-endian machines only */
}

int gen_feed(gen *g, const int32_t *ids, int n, gen_rows_fn each, void *ctx, int *n_cached, cb_err *err)
{
    int ctx_size = g->m->info.ctx_size, same = 0, keep[2] = { g->keep_at, 0 };
    if (n < 1) return cb_fail(err, CB_EUSAGE, "the prompt is empty; give at least one token");
    if (n > ctx_size)
        return cb_fail(err, CB_ECONTEXT, "the prompt has %d tokens and the context holds %d (the model's limit is %d); try a shorter prompt%s", n,
                       ctx_size, g->m->info.ctx_trained, ctx_size < g->m->info.ctx_trained ? " or a larger --ctx-size" : "");
    int rc = cb_session_reuse(g->session, ids, n, &same, &keep[1], err);
    g->n_fed = same;
    if (rc < 0) return rc;
    if (n_cached) *n_cached = same;
    memcpy(g->ids, ids, (size_t)n * sizeof *ids);
    bool all = each || g->hash_mode == GEN_HASH_ALL;
    int most = all ? g->logit_rows : g->chunk;
    while (g->n_fed < n) {
        if (cli_interrupted()) return cb_fail(err, CB_EINTR, "interrupted");
        int first = g->n_fed, to = n - first < most ? n : first + most;
        for (int i = 0; i < 2; i++)
            if (keep[i] > first && keep[i] < to) to = keep[i];
        if ((rc = step(g, to - first, all, to == n, err)) < 0) return rc;
        if (g->hash_mode == GEN_HASH_ALL) hash_rows(g, g->logits, to - first);
        if (each && (rc = each(ctx, g->logits, first, to - first, err)) < 0) return rc;
        if (to == keep[0] || to == keep[1]) cb_session_keep(g->session, NULL); /* without room for it we go on all the same */
    }
    return 0;
}

/* ---- answering ---- */

typedef struct outlet {
    const gen_params *p;
    cb_reason split;
    cb_stops stops; /* see the answer only */
    cb_detok *detok;
    bool closed; /* the receiver wants no more */
    bool no_memory;
    int n_forced; /* ids of the closing delimiter still to be put in; < 0: not begun */
} outlet;

static void on_piece(void *ctx, int kind, const char *text, size_t n)
{
    outlet *o = ctx;
    const gen_params *p = o->p;
    if (kind == CB_REASON_RECLASSIFY) {
        if (p->reclassify) p->reclassify(p->text_ctx);
        return;
    }
    if (kind == CB_REASON_THOUGHT) {
        if (p->thought && p->thought(p->text_ctx, text, n)) o->closed = true;
        return;
    }
    char small[512 + CB_STOP_BYTES_MAX], *out = n <= 512 ? small : cb_alloc(n + CB_STOP_BYTES_MAX);
    if (!out) {
        o->no_memory = true;
        return;
    }
    size_t m = cb_stops_put(&o->stops, text, n, out);
    if (m && p->text && p->text(p->text_ctx, out, m)) o->closed = true;
    if (out != small) cb_free(out);
}

static int emit(outlet *o, const char *text, size_t n, cb_err *err)
{
    cb_reason_put(&o->split, text, n, on_piece, o);
    return o->no_memory ? cb_fail(err, CB_ENOMEM, "no memory for %zu bytes of text", n) : 0;
}

/* The text of a token. A special one is no text, unless it is the delimiter that is due. */
static int emit_token(const gen *g, outlet *o, int32_t id, cb_err *err)
{
    const cli_reasoning *r = o->p->reasoning;
    const char *text;
    size_t n;
    int rc = cb_detok_put(o->detok, id, &text, &n, err);
    if (rc == 0 && n) rc = emit(o, text, n, err);
    if (rc < 0 || !r || (id != r->open_id && id != r->close_id)) return rc;
    bool due = id == r->open_id ? o->split.state == CB_REASON_START : o->split.state == CB_REASON_INSIDE || o->split.watch;
    if (!due || !(text = cb_tokenizer_token(g->m->tok, id, &n))) return 0;
    return emit(o, text, n, err);
}

static int emit_end(outlet *o, cb_err *err)
{
    const char *text;
    size_t n;
    char out[CB_STOP_BYTES_MAX];
    int rc = cb_detok_end(o->detok, &text, &n, err);
    if (rc == 0 && n) rc = emit(o, text, n, err);
    if (rc == 0) cb_reason_end(&o->split, on_piece, o);
    size_t m = cb_stops_end(&o->stops, out);
    if (rc == 0 && m && !o->closed && o->p->text) o->p->text(o->p->text_ctx, out, m);
    return rc;
}

/* The id that has to follow because the reasoning has used up its budget, or -1. */
static int32_t forced_id(outlet *o, const gen_result *r)
{
    const cli_reasoning *g = o->p->reasoning;
    if (!g || g->budget < 0) return -1;
    if (o->n_forced < 0 && o->split.state == CB_REASON_INSIDE && r->n_thought >= g->budget) o->n_forced = g->n_close;
    return o->n_forced > 0 ? g->close_ids[g->n_close - o->n_forced--] : -1;
}

static int answer_loop(gen *g, outlet *o, int n_prompt, gen_result *r, cb_err *err)
{
    const gen_params *p = o->p;
    int room = g->m->info.ctx_size - n_prompt + 1; /* the last token need not be fed */
    int limit = p->max_tokens > 0 && p->max_tokens < room ? p->max_tokens : room, rc = 0;
    double first = 0, start = cb_now();
    r->finish = "length";
    while (r->n_out < limit) {
        if (g->hash_mode == GEN_HASH_CHOSEN || (g->hash_mode == GEN_HASH_ALL && r->n_out > 0)) hash_rows(g, g->last, 1);
        int n_all = n_prompt + r->n_out;
        int32_t id = forced_id(o, r);
        bool inside = id < 0 && o->split.state == CB_REASON_INSIDE;
        if (id < 0 && g->sampling) id = g->next;
        else if (id < 0) id = cb_sampler_pick(g->sampler, p->sampling, g->last, g->ids, n_all, n_prompt, NULL, err);
        if (id < 0) return id;
        g->ids[n_all] = id;
        r->n_out++;
        r->decode_s = cb_now() - start - first;
        if (r->n_out == 1) first = r->decode_s, r->decode_s = 0;
        if (!p->ignore_eos && cb_tokenizer_is_stop(g->m->tok, id)) {
            r->finish = "stop";
            break;
        }
        if ((rc = emit_token(g, o, id, err)) < 0) return rc;
        r->n_thought += inside && o->split.state == CB_REASON_INSIDE;
        if (o->stops.matched >= 0) {
            r->finish = "stop";
            r->stop_reason = o->stops.stop[o->stops.matched];
            break;
        }
        if (o->closed || cli_interrupted()) {
            r->finish = "interrupted";
            break;
        }
        if (r->n_out < limit && (rc = step(g, 1, false, true, err)) < 0) return rc;
    }
    r->first_s += first;
    return 0;
}

int gen_answer(gen *g, const int32_t *prompt, int n_prompt, const gen_params *p, gen_result *r, cb_err *err)
{
    outlet o = { .p = p, .n_forced = -1 };
    const cli_reasoning *think = p->reasoning;
    memset(r, 0, sizeof *r);
    r->n_prompt = n_prompt;
    cb_reason_init(&o.split, think ? think->open : NULL, think ? think->close : NULL, p->opened, think && think->asked);
    cb_stops_init(&o.stops);
    for (int i = 0; p->stop && i < p->stop->n; i++)
        if (cb_stops_add(&o.stops, p->stop->v[i], strlen(p->stop->v[i])) < 0)
            return cb_fail(err, CB_EUSAGE, "--stop: a stop text has 1 to %d bytes", CB_STOP_BYTES_MAX);
    double start = cb_now();
    g->sampling = g->hash_mode == GEN_HASH_NONE ? p->sampling : NULL;
    g->n_prompt = n_prompt;
    int rc = gen_feed(g, prompt, n_prompt, NULL, NULL, &r->n_cached, err);
    r->prefill_s = r->first_s = cb_now() - start;
    if (rc == 0) rc = cb_detok_open(g->m->tok, 1, &o.detok, err);
    if (rc == 0) rc = answer_loop(g, &o, n_prompt, r, err);
    if (rc == 0) rc = emit_end(&o, err);
    cb_detok_close(o.detok);
    g->sampling = NULL;
    r->out = g->ids + n_prompt;
    return rc;
}
