/* score.c: the model's opinion of a given text: log-probability of each token under the raw logits (softmax of the row before
 * it), teacher-forced in chunks. Sums are f64. */
#include "base/clock.h"
#include "base/mem.h"
#include "cli/commands.h"
#include "cli/term.h"
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TEXT = 1 << 30, MAX_TOP = 100, SCORE_ROWS = 32 };

typedef struct scorer {
    const cli_opts *o;
    const cli_model *m;
    const int32_t *ids; /* of the whole text */
    int n_ids;
    int base;           /* index of the window's first id */
    int end;            /* index after its last */
    int top;
    int n_scored;
    int n_hits;         /* the likeliest token was the right one */
    double sum;
} scorer;

static json_t *token_json(const scorer *s, int32_t id, double logprob)
{
    size_t n = 0;
    char text[512];
    cb_err err;
    int64_t len = cb_tokenizer_decode(s->m->tok, &id, 1, 0, text, sizeof text, &err);
    n = len < 0 ? 0 : len > (int64_t)sizeof text ? sizeof text : (size_t)len;
    return json_pack("{s:i, s:o, s:f}", "id", id, "token", cli_json_string(text, n), "logprob", logprob);
}

/* The s->top largest logits, largest first, lower id first on ties. */
static int largest(const scorer *s, const float *z, int32_t *ids)
{
    int n = 0;
    for (int32_t i = 0; i < s->m->n_vocab; i++) {
        if (n == s->top && !(z[i] > z[ids[n - 1]])) continue;
        int at = n < s->top ? n++ : n - 1;
        for (; at > 0 && z[i] > z[ids[at - 1]]; at--) ids[at] = ids[at - 1];
        ids[at] = i;
    }
    return n;
}

static int score_row(scorer *s, const float *z, int at, cb_err *err)
{
    int32_t target = s->ids[at], best = 0, top[MAX_TOP];
    for (int i = 1; i < s->m->n_vocab; i++)
        if (z[i] > z[best]) best = i;
    double total = 0, max = z[best];
    for (int i = 0; i < s->m->n_vocab; i++) total += exp((double)z[i] - max);
    double log_total = log(total), logprob = target < s->m->n_vocab ? (double)z[target] - max - log_total : -9999;
    s->n_scored++;
    s->n_hits += best == target;
    s->sum += logprob;
    if (!s->o->json && !s->top) return 0;
    json_t *j = token_json(s, target, logprob);
    if (j) json_object_set_new(j, "pos", json_integer(at));
    if (j && s->top) {
        json_t *a = json_array();
        int n = largest(s, z, top);
        for (int i = 0; i < n; i++) json_array_append_new(a, token_json(s, top[i], (double)z[top[i]] - max - log_total));
        json_object_set_new(j, "top", a);
    }
    return cli_print_json(j, err);
}

static int score_rows(void *ctx, const float *rows, int first, int n, cb_err *err)
{
    scorer *s = ctx;
    int rc = 0;
    for (int i = 0; i < n && rc == 0; i++) {
        int at = s->base + first + i + 1; /* row i predicts the id after it */
        if (at < s->end) rc = score_row(s, rows + (size_t)i * (size_t)s->m->info.n_vocab, at, err);
    }
    return rc < 0 ? rc : cli_flush(err);
}

static int summary(const scorer *s, double seconds, cb_err *err)
{
    double mean = s->n_scored ? s->sum / s->n_scored : 0;
    cli_note(s->o, "%d tokens in %.2f s (%.1f tok/s)", s->n_ids, seconds, seconds > 0 ? s->n_ids / seconds : 0);
    if (s->o->json || s->top)
        return cli_print_json(json_pack("{s:i, s:i, s:f, s:f, s:f, s:f}", "tokens", s->n_ids, "scored", s->n_scored, "logprob", s->sum,
                                        "mean_logprob", mean, "perplexity", exp(-mean), "top1",
                                        s->n_scored ? (double)s->n_hits / s->n_scored : 0.0), err);
    printf("tokens          %d (%d scored)\nlog-likelihood  %.6f\nper token       %.6f\nperplexity      %.6f\ntop-1 hits      %.2f %%\n", s->n_ids,
           s->n_scored, s->sum, mean, exp(-mean), s->n_scored ? 100.0 * s->n_hits / s->n_scored : 0.0);
    return 0;
}

static int score_all(scorer *s, gen *g, cb_err *err)
{
    int ctx = s->m->info.ctx_size, rc = 0;
    double t0 = cb_now();
    if (s->n_ids > ctx) cli_note(s->o, "%d tokens, the context holds %d: scored in %d windows", s->n_ids, ctx, (s->n_ids + ctx - 1) / ctx);
    for (s->base = 0; s->base < s->n_ids && rc == 0; s->base = s->end) {
        s->end = s->n_ids - s->base < ctx ? s->n_ids : s->base + ctx;
        cb_session_reset(g->session);
        g->n_fed = 0;
        rc = gen_feed(g, s->ids + s->base, s->end - s->base, score_rows, s, NULL, err);
    }
    return rc < 0 ? rc : summary(s, cb_now() - t0, err);
}

int cmd_score(const cli_opts *o, cb_err *err)
{
    cli_model m = {0};
    gen g = {0};
    char *text = NULL;
    int32_t *ids = NULL;
    int n_ids = 0, rc = 0;
    size_t n = 0;
    if (o->top != INT64_MIN && (o->top < 0 || o->top > MAX_TOP)) return cb_fail(err, CB_EUSAGE, "--top: 0 to %d", MAX_TOP);
    if (o->prompt) {
        n = strlen(o->prompt);
        if (!(text = cb_strndup(o->prompt, n))) return cb_fail(err, CB_ENOMEM, "no memory for the text");
    } else
        rc = cli_read_file(o->n_args > 1 ? o->args[1] : o->file ? o->file : "-", MAX_TEXT, &text, &n, err);
    int rows = o->prefill_chunk > 0 && o->prefill_chunk < 1024 ? (int)o->prefill_chunk : SCORE_ROWS;
    if (rc == 0) rc = cli_model_open(&m, o, CLI_NEED_TOKENIZER | CLI_NEED_ENGINE, 0, rows, err);
    if (rc == 0) rc = cli_encode(m.tok, text, n, o->no_bos ? 0 : CB_ENCODE_SPECIAL_BEGIN, &ids, &n_ids, err);
    if (rc == 0 && n_ids < 2) rc = cb_fail(err, CB_EUSAGE, "the text has %d tokens; at least 2 are needed", n_ids);
    if (rc == 0) rc = gen_open(&g, &m, rows, 0, err);
    if (rc == 0) {
        scorer s = { .o = o, .m = &m, .ids = ids, .n_ids = n_ids, .top = o->top > 0 ? (int)o->top : 0 };
        cli_interrupt_begin();
        rc = score_all(&s, &g, err);
    }
    if (g.m) gen_close(&g);
    cli_model_close(&m);
    cb_free(ids);
    cb_free(text);
    return rc;
}
