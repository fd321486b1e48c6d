/* tiny.c: every tiny checkpoint against the float64 truth beside it, at every instruction set of this machine. The limits
 * are a tenth of what a bf16 stack with exact weights scores on the same positions (truth.cbref holds that column).
 *
 * Of models with experts routes.json holds truth's choice at every position. Ours must be the same, except where truth's margin
 * between the last expert taken and the first one left is within a tenth of the error of the bf16 stack's router logits: such a
 * tie is listed. What a swapped expert can reach (the position, and later ones of the sequence) is held to what the bf16 stack
 * scores, the rest to the tenth. */
#include "../support/engine.h"
#include "cli/parity_run.h"
#include <glob.h>

static const char *const levels[] = {"cpu:c", "cpu:avx2", "cpu:avx512", "cpu:neon"};

static double column(const cb_ref *r, const char *stack, const char *value)
{
    const json_t *v = json_object_get(json_object_get(r->meta, stack), value);
    if (!json_is_number(v)) fail_msg("no %s.%s", stack, value);
    return json_number_value(v);
}

static void score_limits(const cb_ref *r, double part, cb_parity_limits *lim)
{
    double d = column(r, "bf16_exact_weights", "dmax");
    *lim = (cb_parity_limits){part * column(r, "bf16_exact_weights", "kl_mean"), part * d, (float)(2 * part * d)};
}

/* ---- routers ---- */

enum { MAX_LAYERS = 16, MAX_ROWS = 64, MAX_PICKED = 8 };

typedef struct routes {
    json_t *json;
    int n_layers, top_k;
    int op[MAX_LAYERS];                       /* ops of the routers, as they are met */
    int n_ops;
    int32_t ids[MAX_LAYERS][MAX_ROWS][MAX_PICKED]; /* of the latest step, ascending */
} routes;

static routes *routes_open(const char *dir)
{
    char path[600];
    snprintf(path, sizeof path, "%.500s/routes.json", dir);
    json_error_t e;
    json_t *j = json_load_file(path, 0, &e);
    if (!j) return NULL;
    routes *t = calloc(1, sizeof *t);
    t->json = j;
    t->n_layers = (int)json_integer_value(json_object_get(j, "layers"));
    t->top_k = (int)json_integer_value(json_object_get(j, "top_k"));
    assert_true(t->n_layers >= 1 && t->n_layers <= MAX_LAYERS && t->top_k >= 1 && t->top_k <= MAX_PICKED);
    return t;
}

static void on_op(void *ctx, const cb_tap *tap)
{
    routes *t = ctx;
    int l = 0, k = t->top_k;
    if (strcmp(tap->kind, "route") != 0) return;
    while (l < t->n_ops && t->op[l] != tap->op) l++;
    if (l == t->n_ops) {
        assert_true(l < t->n_layers);
        t->op[t->n_ops++] = tap->op;
    }
    for (int r = 0; r < tap->rows; r++) {
        int32_t *out = t->ids[l][r];
        memcpy(out, (const char *)tap->data + (size_t)r * tap->row_stride, (size_t)k * 4);
        for (int a = 1; a < k; a++)
            for (int b = a; b > 0 && out[b] < out[b - 1]; b--) {
                int32_t swap = out[b];
                out[b] = out[b - 1];
                out[b - 1] = swap;
            }
    }
}

static const json_t *of_layer(const routes *t, const char *key, int l) { return json_array_get(json_object_get(t->json, key), (size_t)l); }

static bool same_choice(const routes *t, int l, int row, uint32_t pos)
{
    const char *want = json_string_value(of_layer(t, "ids", l)) + (size_t)pos * (size_t)t->top_k;
    for (int i = 0; i < t->top_k; i++) {
        int d = want[i] <= '9' ? want[i] - '0' : want[i] - 'a' + 10;
        if (t->ids[l][row][i] != d) return false;
    }
    return true;
}

/* Looks at the choices of one row; *touched: an expert was swapped here or earlier in the sequence. Returns swaps listed. */
static int check_choices(const routes *t, const char *dir, int row, uint32_t pos, bool *touched)
{
    int n = 0;
    for (int l = 0; l < t->n_layers; l++) {
        if (same_choice(t, l, row, pos)) continue;
        double margin = json_number_value(json_array_get(of_layer(t, "margin", l), pos)), limit = 0.1 * json_number_value(of_layer(t, "error", l));
        if (!*touched && margin >= limit)
            fail_msg("%s: position %u, router %d: another expert where truth's margin is %.3g, not below %.3g", dir, pos, l, margin, limit);
        if (*touched) continue; /* what a swap changed may choose otherwise */
        print_message("    tie: %s, position %u, router %d: truth's margin %.3g, bf16's own error %.3g\n", dir, pos, l, margin, 10 * limit);
        *touched = true;
        n++;
    }
    return n;
}

/* Teacher-forced over all cases, with the router's choices; rows that a tie reached are scored apart. */
static void check_routed(cb_engine *e, const cb_ref *r, routes *t, const char *dir, int chunk, const cb_parity_limits *lim, cb_parity *p)
{
    float *logits = malloc((size_t)chunk * r->n_vocab * sizeof *logits), *full = malloc(r->n_vocab * sizeof *full);
    cb_ref_score apart;
    cb_session *s;
    cb_err err = {0};
    cb_row rows[MAX_ROWS];
    int n_ties = 0;
    uint32_t next_full = 0;
    cb_ref_score_init(&p->score, lim->margin);
    cb_ref_score_init(&apart, 10 * lim->margin);
    cb_engine_set_tap(e, on_op, t);
    assert_int_equal(cb_session_open(e, &s, &err), 0);
    for (uint32_t c = 0; c < r->n_cases; c++) {
        bool touched = false;
        cb_session_reset(s);
        for (uint32_t at = 0; at < r->cases[c].n;) {
            int n = r->cases[c].n - at < (uint32_t)chunk ? (int)(r->cases[c].n - at) : chunk;
            uint32_t first = r->cases[c].first + at;
            for (int i = 0; i < n; i++) rows[i] = (cb_row){s, r->tokens[first + (uint32_t)i], 1};
            if (cb_step(e, rows, n, logits, &err) < 0) fail_msg("%s: %s", dir, err.text);
            assert_int_equal(t->n_ops, t->n_layers);
            for (int i = 0; i < n; i++) {
                uint32_t pos = first + (uint32_t)i;
                n_ties += check_choices(t, dir, i, pos, &touched);
                bool has_full = next_full < r->n_full && r->full_pos[next_full] == pos;
                if (has_full) cb_ref_full_row(r, next_full++, full);
                cb_ref_score_row(touched ? &apart : &p->score, r, pos, logits + (size_t)i * r->n_vocab, has_full ? full : NULL);
            }
            at += (uint32_t)n;
        }
    }
    cb_session_close(s);
    cb_engine_set_tap(e, NULL, NULL);
    free(logits);
    free(full);
    cb_parity_limits loose;
    score_limits(r, 1, &loose);
    if (apart.n) {
        print_message("    %d ties; %d of %u positions behind them: mean KL %.1e  max|d| %.1e\n", n_ties, apart.n, r->n_pos, apart.kl_sum / apart.n, apart.dmax);
        assert_true(apart.kl_sum + p->score.kl_sum <= loose.kl_mean * r->n_pos && apart.dmax <= loose.dmax && !apart.n_bad_flips);
    }
    /* most positions must be free of ties, or the gate says little */
    assert_true(p->score.n >= (int)r->n_pos / 2);
}

/* ---- */

static void check_reference(cb_engine *e, const char *dir, const char *file, const char *level, int chunk)
{
    char path[600];
    cb_err err = {0};
    cb_ref *r;
    cb_parity p = {0};
    cb_parity_limits lim;
    snprintf(path, sizeof path, "%.500s/%s", dir, file);
    if (cb_ref_open(path, &r, &err) < 0) fail_msg("%s", err.text);
    score_limits(r, 0.1, &lim);
    routes *t = strcmp(file, "truth.cbref") ? NULL : routes_open(dir);
    int rc = cb_parity_run(e, r, NULL, chunk, &lim, &p, &err);
    if (rc >= 0 && t) check_routed(e, r, t, dir, chunk, &lim, &p);
    if (rc >= 0) rc = cb_parity_gate(&p, r, &lim, &err);
    print_message("%-36s %-10s %4d positions  mean KL %.1e (bf16 %.1e)  max|d| %.1e (%.1e)\n", dir, level, p.score.n, p.score.kl_sum / p.score.n,
                  10 * lim.kl_mean, p.score.dmax, 10 * lim.dmax);
    if (rc < 0) fail_msg("%s on %s: %s", path, level, err.text);
    assert_true(p.score.n >= 64 && p.score.n_full > 0 && p.greedy_runs > 0);
    if (t) json_decref(t->json);
    free(t);
    cb_ref_close(r);
}

static void check_model(const char *dir, const char *level, int chunk)
{
    cb_err err = {0};
    cb_engine *e;
    char path[600];
    int rc = cb_engine_open(dir, &(cb_engine_opts){.device = level, .n_threads = 1, .max_rows = MAX_ROWS}, &e, &err);
    if (rc == CB_ENODEV) return;
    if (rc < 0) fail_msg("%s: %s", dir, err.text);
    check_reference(e, dir, "truth.cbref", level, chunk);
    snprintf(path, sizeof path, "%.500s/long.cbref", dir); /* thousands of steps of recurrent state */
    FILE *f = fopen(path, "rb");
    if (f) {
        fclose(f);
        check_reference(e, dir, "long.cbref", level, chunk);
    }
    cb_engine_close(e);
}

static void check_level(int level)
{
    glob_t g;
    assert_int_equal(glob("tests/data/tiny-*", 0, NULL, &g), 0);
    assert_true(g.gl_pathc >= 20);
    for (size_t i = 0; i < g.gl_pathc; i++) check_model(g.gl_pathv[i], levels[level], (int)(1 + i * 7 % 60));
    globfree(&g);
}

static void test_c(void **state)
{
    (void)state;
    check_level(0);
}

static void test_vector(void **state)
{
    (void)state;
    if (te_quick()) skip(); /* bits are equal at every level: tests/op/exact.c */
    for (int i = 1; i < 4; i++) check_level(i);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_c), cmocka_unit_test(test_vector)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
