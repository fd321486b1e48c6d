/* parity_layers.c: `cambium parity layers`: the way up through a forward pass beside float64 truth: prompt ids, embedding, each layer's
 * attention, the stream after it and after the layer, final norm, logits, best tokens. The first rung that is further from truth
 * than bf16 between operations would be is where to look. A ladder file comes from tests/reference/make_ladder.py. */
#include "base/json.h"
#include "base/mem.h"
#include "cli/parity_cmds.h"
#include "cli/term.h"
#include <math.h>
#include <string.h>

enum { MAX_LADDER = 64 << 20, MAX_RUNGS = 4096, MAX_TOKENS = 64, MAX_VALUES = 64 };

/* Rounding of stored numbers: no rung needs to be nearer than this. */
static const double least = 1e-6;

typedef struct rung {
    const char *kind, *name; /* borrowed from the file's JSON */
    double limit;            /* what bf16 scores */
    const json_t *rms, *first;
    double error;            /* -1: the plan has no such operation */
} rung;

typedef struct ladder {
    json_t *root;
    int32_t tokens[MAX_TOKENS];
    int n_tokens, n_values, n;
    rung *rungs;
} ladder;

static int bad(const char *path, int at, const char *what, cb_err *err)
{
    return at < 0 ? cb_fail(err, CB_EFORMAT, "%.300s: %s", path, what) : cb_fail(err, CB_EFORMAT, "%.300s: stage %d: %s", path, at, what);
}

static int read_rung(ladder *l, rung *r, const json_t *s, const char *path, int at, cb_err *err)
{
    r->kind = json_string_value(json_object_get(s, "kind"));
    r->name = json_string_value(json_object_get(s, "name"));
    r->rms = json_object_get(s, "rms");
    r->first = json_object_get(s, "first");
    r->limit = json_number_value(json_object_get(s, "bf16"));
    r->error = -1;
    if (!r->kind || !r->name) return bad(path, at, "no kind or no name", err);
    if ((int)json_array_size(r->rms) != l->n_tokens || (int)json_array_size(r->first) != l->n_tokens)
        return bad(path, at, "not one rms and one row of values for each token", err);
    for (int i = 0; i < l->n_tokens; i++)
        if ((int)json_array_size(json_array_get(r->first, (size_t)i)) != l->n_values || !(json_number_value(json_array_get(r->rms, (size_t)i)) > 0))
            return bad(path, at, "a row of values is too short, or an rms is not positive", err);
    return 0;
}

static int ladder_open(ladder *l, const char *path, cb_err *err)
{
    memset(l, 0, sizeof *l);
    int rc = cb_json_file(NULL, path, MAX_LADDER, &l->root, err);
    if (rc < 0) return rc;
    const json_t *tokens = json_object_get(l->root, "tokens"), *stages = json_object_get(l->root, "stages");
    size_t n = json_array_size(tokens), n_stages = json_array_size(stages);
    json_int_t values = json_integer_value(json_object_get(l->root, "values"));
    if (n < 1 || n > MAX_TOKENS || n_stages < 1 || n_stages > MAX_RUNGS || values < 1 || values > MAX_VALUES || json_array_size(json_object_get(l->root, "best")) != n)
        return bad(path, -1, "not a ladder: it needs tokens, as many best, values and stages", err);
    l->n_tokens = (int)n;
    l->n_values = (int)values;
    for (size_t i = 0; i < n; i++) {
        json_int_t id = json_integer_value(json_array_get(tokens, i));
        if (id < 0 || id > INT32_MAX) return bad(path, -1, "a token is out of range", err);
        l->tokens[i] = (int32_t)id;
    }
    if (!(l->rungs = cb_alloc_array(n_stages, sizeof *l->rungs))) return cb_fail(err, CB_ENOMEM, "%.300s: %zu stages", path, n_stages);
    for (; l->n < (int)n_stages && rc == 0; l->n++) rc = read_rung(l, &l->rungs[l->n], json_array_get(stages, (size_t)l->n), path, l->n, err);
    return rc;
}

static void ladder_close(ladder *l)
{
    cb_free(l->rungs);
    json_decref(l->root);
}

/* The largest of |rms ratio - 1| and |value difference| / rms over positions and stored values. */
static double distance(const ladder *l, const rung *r, const cb_tap *t)
{
    double worst = 0;
    for (int row = 0; row < l->n_tokens; row++) {
        const float *x = (const float *)(const void *)((const char *)t->data + (size_t)row * t->row_stride);
        size_t n = t->row_bytes / sizeof *x;
        double ss = 0, rms = json_number_value(json_array_get(r->rms, (size_t)row));
        const json_t *first = json_array_get(r->first, (size_t)row);
        for (size_t i = 0; i < n; i++) ss += (double)x[i] * (double)x[i];
        worst = fmax(worst, fabs(sqrt(ss / (double)n) / rms - 1));
        for (int i = 0; i < l->n_values; i++) worst = fmax(worst, fabs((double)x[i] - json_number_value(json_array_get(first, (size_t)i))) / rms);
    }
    return isfinite(worst) ? worst : INFINITY;
}

static void on_op(void *ctx, const cb_tap *t)
{
    ladder *l = ctx;
    if (strcmp(t->dtype, "f32") != 0 || t->rows != l->n_tokens || t->row_bytes < (size_t)l->n_values * sizeof(float)) return;
    for (int i = 0; i < l->n; i++) {
        rung *r = &l->rungs[i];
        if (strcmp(r->name, t->name) != 0) continue;
        /* Attention's result is rotated; what turns it back stands behind it under the same name. */
        bool back = !strcmp(r->kind, "attention") && !strcmp(t->kind, "hadamard");
        if (back || (r->error < 0 && !strcmp(r->kind, t->kind))) {
            r->error = distance(l, r, t);
            return;
        }
    }
}

/* One step of all tokens with the tap; best[i] is the likeliest token after token i. */
static int climb(ladder *l, const cli_model *m, int32_t best[MAX_TOKENS], cb_err *err)
{
    cb_session *s = NULL;
    cb_row rows[MAX_TOKENS];
    size_t v = (size_t)m->info.n_vocab;
    float *logits = cb_alloc_aligned(v * (size_t)l->n_tokens * sizeof *logits);
    int rc = logits ? cb_session_open(m->engine, &s, err) : cb_fail(err, CB_ENOMEM, "no memory for %d rows of logits", l->n_tokens);
    for (int i = 0; i < l->n_tokens; i++) rows[i] = (cb_row){ s, l->tokens[i], 1 };
    cb_engine_set_tap(m->engine, on_op, l);
    if (rc == 0) rc = cb_step(m->engine, rows, l->n_tokens, logits, err);
    cb_engine_set_tap(m->engine, NULL, NULL);
    for (int i = 0; i < l->n_tokens && rc == 0; i++) {
        const float *z = logits + (size_t)i * v;
        best[i] = 0;
        for (int32_t k = 1; k < m->info.n_vocab; k++)
            if (z[k] > z[best[i]]) best[i] = k;
    }
    cb_session_close(s);
    cb_free_aligned(logits);
    return rc;
}

/* The ladder's text must give its ids. -1 when it does, else the first position that differs. */
static int prompt_departs(const ladder *l, const cli_model *m, cb_err *err)
{
    const json_t *text = json_object_get(l->root, "text");
    int32_t *ids;
    int n, at = -1;
    if (!json_is_string(text)) return -1;
    int rc = cli_encode(m->tok, json_string_value(text), json_string_length(text), CB_ENCODE_SPECIAL_BEGIN, &ids, &n, err);
    if (rc < 0) return 0;
    for (int i = 0; i < l->n_tokens && at < 0; i++)
        if (i >= n || ids[i] != l->tokens[i]) at = i;
    cb_free(ids);
    return at;
}

static int report(const cli_opts *o, const ladder *l, const cli_model *m, int prompt_at, const int32_t *best, cb_err *err)
{
    char first[256] = "";
    int best_at = -1, n_missing = 0;
    json_t *list = o->json ? json_array() : NULL;
    if (prompt_at >= 0) snprintf(first, sizeof first, "prompt ids, position %d", prompt_at);
    if (!o->json) printf("%-8s  prompt ids, %d\n", prompt_at < 0 ? "ok" : "DEPARTS", l->n_tokens);
    for (int i = 0; i < l->n; i++) {
        const rung *r = &l->rungs[i];
        bool missing = r->error < 0, departs = !missing && !(r->error <= fmax(r->limit, least));
        n_missing += missing;
        if (departs && !*first) snprintf(first, sizeof first, "%.20s %.90s: %.3g from truth, bf16 would be %.3g", r->kind, r->name, r->error, r->limit);
        if (list)
            json_array_append_new(list, json_pack("{s:s, s:s, s:f, s:f, s:b}", "kind", r->kind, "name", r->name, "error", missing ? -1.0 : r->error == INFINITY ? 1e300 : r->error, "bf16", r->limit, "ok", !departs && !missing));
        else printf("%-8s  %-10s %-48s %10.2e  bf16 %10.2e\n", missing ? "absent" : departs ? "DEPARTS" : "ok", r->kind, r->name, missing ? 0.0 : r->error, r->limit);
    }
    for (int i = 0; i < l->n_tokens && best_at < 0; i++)
        if (best[i] != json_integer_value(json_array_get(json_object_get(l->root, "best"), (size_t)i))) best_at = i;
    if (best_at >= 0 && !*first) snprintf(first, sizeof first, "the best token after position %d: %d", best_at, best[best_at]);
    if (n_missing && !*first) snprintf(first, sizeof first, "%d rungs that the plan does not have", n_missing);
    if (list)
        return cli_print_json(json_pack("{s:s, s:i, s:o, s:s, s:b}", "device", m->info.device, "positions", l->n_tokens, "stages", list, "first_departure", first, "passed", !*first), err);
    printf("%-8s  best tokens\n", best_at < 0 ? "ok" : "DEPARTS");
    if (*first) printf("%s departs first at: %s\n", m->info.device, first);
    else printf("%s: %d rungs, all nearer to truth than bf16\n", m->info.device, l->n);
    return *first ? 1 : 0;
}

int parity_layers(const cli_opts *o, cb_err *err)
{
    ladder l = {0};
    cli_model m = {0};
    int32_t best[MAX_TOKENS];
    int at = -1;
    if (o->n_args != 2) return cb_fail(err, CB_EUSAGE, "`cambium parity layers` needs MODEL and FILE.ladder");
    int rc = ladder_open(&l, o->args[1], err);
    if (rc == 0) rc = cli_model_open(&m, o, CLI_NEED_TOKENIZER | CLI_NEED_ENGINE, 0, MAX_TOKENS, err);
    if (rc == 0) at = prompt_departs(&l, &m, err);
    if (rc == 0) rc = climb(&l, &m, best, err);
    if (rc == 0) rc = report(o, &l, &m, at, best, err);
    cli_model_close(&m);
    ladder_close(&l);
    return rc;
}
