/* moe.c: grouped expert products against one row at a time. A plan of embeddings, router logits (a table of their own, so that a
 * token decides its experts), experts and their sum runs over batches that hit every boundary of grouping: empty experts at
 * either end and in the middle, one-row and giant ones, a ragged last tile, all tiles of one expert, a small batch after a
 * big one, more than 32768 rows and 65536 slots. Every row of every operation must have the bits it has when its token runs
 * alone on the scalar kernels; that lone row is checked against doubles over the decoded matrices of its experts. */
#include "../support/engine.h"
#include "../support/tmpdir.h"
#include "cpu/backend.h"
#include "io/safetensors.h"
#include "plan/builder.h"
#include <math.h>

enum { N_GROUP = 16, MAX_OPS = 32, BIG = 40003, N_FULL = 600 };

typedef struct form {
    const char *name, *quant; /* quant: "" for bf16 */
    int bits, group;
    int hidden, width, experts, top_k;
    bool fused, top_route;
} form;

static const form forms[] = {
    {"affine 4 g64, K ends in a half block", "\"bits\":4,\"group_size\":64", 4, 64, 320, 192, 9, 3, false, false},
    {"affine 4 g32, fused gate and up", "\"bits\":4,\"group_size\":32", 4, 32, 96, 160, 32, 4, true, false},
    {"affine 2 g128, every expert", "\"bits\":2,\"group_size\":128", 2, 128, 384, 128, 5, 5, false, false},
    {"affine 1 g128", "\"bits\":1,\"group_size\":128", 1, 128, 128, 256, 6, 2, false, false},
    {"affine 3 g64", "\"bits\":3,\"group_size\":64", 3, 64, 64, 192, 8, 2, false, true},
    {"affine 5 g32", "\"bits\":5,\"group_size\":32", 5, 32, 96, 96, 8, 1, false, false},
    {"affine 6 g64", "\"bits\":6,\"group_size\":64", 6, 64, 192, 64, 7, 2, true, true},
    {"affine 8 g32", "\"bits\":8,\"group_size\":32", 8, 32, 96, 32, 8, 2, false, true},
    {"bf16, neither K nor N fit a tile", "", 16, 0, 72, 40, 7, 2, false, false},
    {"bf16 fused, one expert of many", "", 16, 0, 24, 88, 33, 1, true, true},
    {"mxfp4", "\"bits\":4,\"group_size\":32,\"mode\":\"mxfp4\"", 4, 32, 96, 32, 8, 2, false, false},
    {"mxfp8", "\"bits\":8,\"group_size\":32,\"mode\":\"mxfp8\"", 8, 32, 32, 96, 8, 2, false, false},
    {"nvfp4", "\"bits\":4,\"group_size\":16,\"mode\":\"nvfp4\"", 4, 16, 80, 48, 8, 3, true, false},
    {"512 experts, 10 a token", "\"bits\":4,\"group_size\":64", 4, 64, 64, 64, 512, 10, false, false},
};

/* A form's files, config and plan; the lone-row truth of every token for every op. */
typedef struct bench {
    const form *f;
    int n_tokens, n_ops, route_op, sort_op, sum_op;
    cb_config *c;
    cb_weights *w;
    cb_plan *p;
    uint8_t *truth[MAX_OPS]; /* [token][slots][row_bytes]; NULL: not compared */
    size_t row_bytes[MAX_OPS];
    int slots[MAX_OPS];
    /* the batch being compared */
    const int32_t *token;
    int n_rows;
} bench;

static char dir[64];
static uint64_t seed = 1;

static uint32_t rnd(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33);
}
static float uniform(void) { return (float)(rnd() % 20001) / 10000 - 1; }

/* ---- files ---- */

static void put_floats(cb_st_writer *o, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t v = cb_f32_to_bf16(uniform() * scale);
        assert_int_equal(cb_st_writer_put(o, &v, 2, NULL), 0);
    }
}

static void put_bytes(cb_st_writer *o, size_t n, int lo, int hi)
{
    for (size_t i = 0; i < n; i++) {
        uint8_t v = (uint8_t)(lo + (int)(rnd() % (uint32_t)(hi - lo)));
        assert_int_equal(cb_st_writer_put(o, &v, 1, NULL), 0);
    }
}

static bool is_fp(const form *f) { return strstr(f->quant, "fp") != NULL; }

static void declare_experts(cb_st_writer *o, const form *f, const char *path, int rows, int cols)
{
    char name[96];
    int64_t d[3] = {f->experts, rows, *f->quant ? cols * f->bits / 32 : cols}, g[3] = {f->experts, rows, f->group ? cols / f->group : 0};
    snprintf(name, sizeof name, "%s.weight", path);
    assert_int_equal(cb_st_writer_declare(o, name, *f->quant ? CB_U32 : CB_BF16, d, 3, NULL), 0);
    if (!*f->quant) return;
    snprintf(name, sizeof name, "%s.scales", path);
    assert_int_equal(cb_st_writer_declare(o, name, is_fp(f) ? CB_U8 : CB_BF16, g, 3, NULL), 0);
    snprintf(name, sizeof name, "%s.biases", path);
    if (!is_fp(f)) assert_int_equal(cb_st_writer_declare(o, name, CB_BF16, g, 3, NULL), 0);
}

static void put_experts(cb_st_writer *o, const form *f, int rows, int cols)
{
    size_t n = (size_t)f->experts * (size_t)rows, groups = f->group ? n * (size_t)(cols / f->group) : 0;
    if (!*f->quant) {
        put_floats(o, n * (size_t)cols, 0.3f);
        return;
    }
    if (strstr(f->quant, "mxfp8")) /* any byte but the two that stand for 480 */
        for (size_t i = 0; i < n * (size_t)cols; i++) put_bytes(o, 1, i % 2 ? 0 : 128, i % 2 ? 127 : 255);
    else put_bytes(o, n * (size_t)(cols * f->bits / 8), 0, 256);
    if (is_fp(f)) { /* E8M0 around 2^-4 (2^-10 beside elements up to 448), E4M3 around 2^-3 */
        int low = f->group == 16 ? 24 : f->bits == 8 ? 115 : 122;
        put_bytes(o, groups, low, low + 4);
        return;
    }
    put_floats(o, groups, 1.0f / (float)(1 << f->bits));
    put_floats(o, groups, 0.2f);
}

/* The experts of a token: the first E tokens lean to runs of k neighbours, then three groups of N_GROUP to the first, middle
 * and last k experts. */
static int first_expert(const form *f, int token)
{
    if (token < f->experts) return token;
    int last = f->experts - f->top_k;
    return (token - f->experts) / N_GROUP * last / 2;
}

static void put_logits(cb_st_writer *o, const form *f, int n_tokens)
{
    for (int t = 0; t < n_tokens; t++)
        for (int e = 0; e < f->experts; e++) {
            int from = (e - first_expert(f, t) + f->experts) % f->experts;
            uint16_t v = cb_f32_to_bf16(uniform() + (from < f->top_k ? 6 : 0));
            assert_int_equal(cb_st_writer_put(o, &v, 2, NULL), 0);
        }
}

static void write_files(const form *f, int n_tokens)
{
    cb_st_writer *o;
    cb_err err = {0};
    int64_t embed[2] = {n_tokens, f->hidden}, logits[2] = {n_tokens, f->experts}, head[2] = {16, f->hidden}, scale[1] = {f->experts};
    assert_int_equal(cb_st_writer_open(tmp_path(dir, "model.safetensors"), &o, &err), 0);
    assert_int_equal(cb_st_writer_declare(o, "embed.weight", CB_BF16, embed, 2, &err), 0);
    assert_int_equal(cb_st_writer_declare(o, "logits.weight", CB_BF16, logits, 2, &err), 0);
    assert_int_equal(cb_st_writer_declare(o, "head.weight", CB_BF16, head, 2, &err), 0);
    if (f->top_route) assert_int_equal(cb_st_writer_declare(o, "scale", CB_BF16, scale, 1, &err), 0);
    declare_experts(o, f, f->fused ? "gate_up" : "gate", f->fused ? 2 * f->width : f->width, f->hidden);
    if (!f->fused) declare_experts(o, f, "up", f->width, f->hidden);
    declare_experts(o, f, "down", f->hidden, f->width);
    assert_int_equal(cb_st_writer_begin(o, &err), 0);
    put_floats(o, (size_t)n_tokens * (size_t)f->hidden, 1);
    put_logits(o, f, n_tokens);
    put_floats(o, 16 * (size_t)f->hidden, 1);
    if (f->top_route) put_floats(o, (size_t)f->experts, 1);
    put_experts(o, f, f->fused ? 2 * f->width : f->width, f->hidden);
    if (!f->fused) put_experts(o, f, f->width, f->hidden);
    put_experts(o, f, f->hidden, f->width);
    if (cb_st_writer_commit(o, &err) < 0) fail_msg("%s", err.text);
}

/* ---- plan ---- */

static void build(bench *b)
{
    const form *f = b->f;
    char config[256];
    cb_err err = {0};
    cb_builder *pb;
    snprintf(config, sizeof config, "{\"model_type\":\"test\"%s%s%s}", *f->quant ? ",\"quantization\":{" : "", f->quant, *f->quant ? "}" : "");
    if (cb_config_parse(dir, config, strlen(config), &b->c, &err) < 0) fail_msg("%s: %s", f->name, err.text);
    if (cb_weights_open(dir, &b->w, &err) < 0) fail_msg("%s: %s", f->name, err.text);
    assert_int_equal(pb_open(b->c, b->w, "test", &pb, &err), 0);
    cb_moe_spec m = {.n_experts = f->experts, .top_k = f->top_k, .width = f->width, .act = CB_ACT_SILU,
                     .route = f->top_route ? CB_ROUTE_SOFTMAX_TOP : CB_ROUTE_SOFTMAX_ALL, .scale = f->top_route ? "scale" : NULL,
                     .gate = "gate", .up = "up", .down = "down", .fused = f->fused ? "gate_up" : NULL};
    cb_val x = pb_embed(pb, "embed", b->n_tokens, f->hidden, 1), z = pb_embed(pb, "logits", b->n_tokens, f->experts, 1);
    pb_logits(pb, pb_wanted(pb, pb_moe(pb, x, z, &m)), "head", 16, 0);
    if (pb_finish(pb, &b->p, &err) < 0) fail_msg("%s: %s", f->name, err.text);
    b->n_ops = b->p->n_ops;
    assert_true(b->n_ops <= MAX_OPS);
    b->route_op = b->sort_op = b->sum_op = -1;
    for (int i = 0; i < b->n_ops; i++) {
        const cb_op *o = &b->p->ops[i];
        const cb_value *v = &b->p->values[o->out];
        if (o->kind == CB_ROUTE) b->route_op = i;
        if (o->kind == CB_MOE_SORT) b->sort_op = i;
        if (o->kind == CB_MOE_SUM) b->sum_op = i;
        if (v->group || v->wanted || o->kind == CB_MOE_SORT) continue;
        b->slots[i] = v->slots > 1 ? v->slots : 1;
        b->row_bytes[i] = (size_t)v->width * 4;
        assert_non_null(b->truth[i] = malloc((size_t)b->n_tokens * (size_t)b->slots[i] * b->row_bytes[i]));
    }
    assert_true(b->route_op >= 0 && b->sort_op >= 0 && b->sum_op >= 0);
}

static void bench_open(bench *b, const form *f)
{
    *b = (bench){.f = f, .n_tokens = f->experts + 3 * N_GROUP};
    seed = (uint64_t)(f - forms) + 77;
    tmp_dir(dir);
    write_files(f, b->n_tokens);
    build(b);
}

static void bench_close(bench *b)
{
    for (int i = 0; i < MAX_OPS; i++) free(b->truth[i]);
    cb_plan_close(b->p);
    cb_weights_close(b->w);
    cb_config_close(b->c);
    tmp_remove(dir);
}

static cb_dev *dev_open(const bench *b, const char *level, int n_threads, int max_rows)
{
    cb_dev *d;
    cb_err err = {0};
    cb_limits lim = {.max_rows = max_rows, .max_sessions = 1};
    if (cb_backend_cpu.open(&(cb_backend_opts){.level = level, .n_threads = n_threads}, &d, &err) < 0) return NULL;
    if (cb_backend_cpu.load(d, b->p, NULL, NULL, &err) < 0 || cb_backend_cpu.prepare(d, &lim, &err) < 0) fail_msg("%s: %s", b->f->name, err.text);
    return d;
}

static void run_batch(bench *b, cb_dev *d, const int32_t *token, int n, cb_tap_fn tap)
{
    int32_t *pos = calloc((size_t)n, sizeof *pos), *slot = calloc((size_t)n, sizeof *slot), wanted = n - 1;
    float logits[16];
    cb_err err = {0};
    for (int i = 0; i < n; i++) pos[i] = i;
    cb_batch batch = {.n_rows = n, .token = token, .pos = pos, .slot = slot, .wanted = &wanted, .n_wanted = 1, .logits = logits,
                      .tap = tap, .tap_ctx = b};
    b->token = token;
    b->n_rows = n;
    if (cb_backend_cpu.run(d, &batch, &err) < 0) fail_msg("%s: %s", b->f->name, err.text);
    free(pos);
    free(slot);
}

/* ---- truth ---- */

static uint8_t *truth_of(const bench *b, int op, int token, int slot)
{
    return b->truth[op] + ((size_t)token * (size_t)b->slots[op] + (size_t)slot) * b->row_bytes[op];
}

static void keep(void *ctx, const cb_tap *t)
{
    bench *b = ctx;
    if (!b->truth[t->op]) return;
    assert_int_equal(t->rows, b->slots[t->op]);
    for (int s = 0; s < t->rows; s++)
        memcpy(truth_of(b, t->op, b->token[0], s), (const uint8_t *)t->data + (size_t)s * t->row_stride, b->row_bytes[t->op]);
}

static double dot(const cb_matrix *m, int expert, int row, const double *x)
{
    float w[512];
    double s = 0;
    assert_true(m->cols <= 512);
    cb_matrix_decode_row(m, expert, row, w);
    for (int i = 0; i < m->cols; i++) s += (double)w[i] * x[i];
    return s;
}

static const cb_matrix *matrix_of(const bench *b, int nth)
{
    for (int i = 0; i < b->n_ops; i++)
        if (b->p->ops[i].kind == CB_MOE_LINEAR && nth-- == 0) return &b->p->weights[b->p->ops[i].w[0]].matrix;
    fail_msg("no such expert matrix");
    return NULL;
}

/* The sum of a token's experts in doubles; expert ids and weights are those of the route. */
static void check_against_doubles(const bench *b, int token)
{
    const form *f = b->f;
    const int32_t *ids = (const int32_t *)truth_of(b, b->route_op, token, 0);
    const float *w = (const float *)ids + f->top_k, *x32 = (const float *)truth_of(b, 0, token, 0);
    const float *got = (const float *)truth_of(b, b->sum_op, token, 0);
    double x[512], h[512], y[512] = {0}, size = 0;
    for (int i = 0; i < f->hidden; i++) x[i] = x32[i];
    for (int j = 0; j < f->top_k; j++) {
        int from = (ids[j] - first_expert(f, token) + f->experts) % f->experts;
        assert_true(ids[j] >= 0 && ids[j] < f->experts && from < f->top_k);
        for (int i = 0; i < f->width; i++) {
            double g = dot(matrix_of(b, 0), ids[j], i, x);
            h[i] = g / (1 + exp(-g)) * dot(matrix_of(b, 1), ids[j], i, x);
        }
        for (int i = 0; i < f->hidden; i++) y[i] += (double)w[j] * dot(matrix_of(b, 2), ids[j], i, h);
    }
    for (int i = 0; i < f->hidden; i++) size += y[i] * y[i];
    size = sqrt(size / f->hidden);
    assert_true(size > 1e-3);
    for (int i = 0; i < f->hidden; i++)
        if (!(fabs(y[i] - got[i]) < 2e-3 * (size + fabs(y[i])))) fail_msg("%s: token %d, %d: %g, expected %g", f->name, token, i, got[i], y[i]);
}

static void make_truth(bench *b)
{
    cb_dev *d = dev_open(b, "c", 1, 1);
    for (int32_t t = 0; t < b->n_tokens; t++) run_batch(b, d, &t, 1, keep);
    for (int t = 0; t < b->n_tokens; t += t < 8 ? 1 : 13) check_against_doubles(b, t);
    cb_backend_cpu.close(d);
}

/* ---- comparison ---- */

/* Every slot once, experts ascending, slots ascending inside one; each with its row. */
static void check_sorted(const bench *b, const cb_tap *t)
{
    int k = b->f->top_k, n = b->n_rows * k, last_expert = -1, last_slot = -1;
    const int32_t *slots = t->data, *rows = slots + n;
    for (int i = 0; i < n; i++) {
        int row = slots[i] / k, expert = ((const int32_t *)truth_of(b, b->route_op, b->token[row], 0))[slots[i] % k];
        if (slots[i] < 0 || slots[i] >= n || rows[i] != row || expert < last_expert || (expert == last_expert && slots[i] <= last_slot))
            fail_msg("%s: place %d of %d holds slot %d of row %d", b->f->name, i, n, slots[i], rows[i]);
        last_expert = expert;
        last_slot = slots[i];
    }
}

static void compare(void *ctx, const cb_tap *t)
{
    const bench *b = ctx;
    if (t->op == b->sort_op) check_sorted(b, t);
    if (!b->truth[t->op]) return;
    assert_int_equal(t->rows, b->n_rows * b->slots[t->op]);
    for (int r = 0; r < t->rows; r++) {
        int row = r / b->slots[t->op], slot = r % b->slots[t->op];
        const uint8_t *got = (const uint8_t *)t->data + (size_t)r * t->row_stride;
        if (memcmp(got, truth_of(b, t->op, b->token[row], slot), b->row_bytes[t->op]))
            fail_msg("%s: op %d %s: row %d of %d, slot %d differs from its lone row", b->f->name, t->op, t->name, row, b->n_rows, slot);
    }
}

static int32_t group_token(const form *f, int group, int i) { return f->experts + group * N_GROUP + i % N_GROUP; }

/* Batches in an order that lets a stale count show: big ones stand before small ones. */
static void run_batches(bench *b, cb_dev *d, int n_full)
{
    const form *f = b->f;
    int32_t *t = malloc((size_t)n_full * sizeof *t);
    for (int n = 1; n <= 40; n++) { /* all rows to the same experts: every ragged tile; first, middle and last ones */
        for (int i = 0; i < n; i++) t[i] = group_token(f, n % 3, i);
        run_batch(b, d, t, n, compare);
    }
    for (int i = 0; i < n_full; i++) t[i] = (int32_t)(rnd() % (uint32_t)b->n_tokens);
    run_batch(b, d, t, n_full, compare);
    run_batch(b, d, t + 5, 3, compare);
    run_batch(b, d, t + 9, 1, compare);
    for (int e = 0; e < f->experts; e++) t[e] = f->experts - 1 - e; /* each expert in exactly k rows */
    run_batch(b, d, t, f->experts, compare);
    for (int e = 0; e < f->experts; e += f->top_k) t[e / f->top_k] = e; /* in one (the wrap in two), in no order of rows */
    run_batch(b, d, t, (f->experts + f->top_k - 1) / f->top_k, compare);
    for (int i = 0; i < n_full; i++) t[i] = i % 200 == 77 ? i % f->experts : group_token(f, i % 400 < 200 ? 0 : 2, i);
    run_batch(b, d, t, n_full, compare); /* two giants, a few single rows, nothing else */
    run_batch(b, d, t + 76, 2, compare);
    for (int i = 0; i < n_full; i++) t[i] = group_token(f, 2, i); /* the last experts have everything */
    run_batch(b, d, t, n_full, compare);
    for (int i = 0; i < n_full; i++) t[i] = group_token(f, 0, i); /* the first ones */
    run_batch(b, d, t, n_full, compare);
    run_batch(b, d, t, 1, compare);
    free(t);
}

static const char *const levels[] = {"c", "avx2", "avx512", "neon"};

static void test_boundaries(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i += te_tsan() ? 6 : te_quick() ? 4 : 1) {
        bench b;
        bench_open(&b, &forms[i]);
        make_truth(&b);
        for (int l = 0; l < (te_tsan() ? 1 : 4); l++) {
            int n_threads = te_tsan() ? 3 : 1 + (int)(i + (size_t)l) % 3;
            cb_dev *d = dev_open(&b, levels[l], n_threads, N_FULL);
            if (!d) continue;
            run_batches(&b, d, te_tsan() ? 100 : N_FULL);
            cb_backend_cpu.close(d);
        }
        bench_close(&b);
    }
}

/* More rows than 16 bits count, more slots than 65536; the rows after the 32768th are not like those before. */
static void test_many_rows(void **state)
{
    (void)state;
    if (te_quick()) skip();
    static const size_t which[] = {5, 7, 8};
    for (size_t i = 0; i < sizeof which / sizeof *which; i++) {
        bench b;
        bench_open(&b, &forms[which[i]]);
        make_truth(&b);
        cb_dev *d = dev_open(&b, NULL, 2, BIG);
        int32_t *t = malloc(BIG * sizeof *t);
        for (int k = 0; k < BIG; k++) t[k] = k < 32768 ? group_token(b.f, k % 3, k / 3) : (int32_t)(rnd() % (uint32_t)b.n_tokens);
        run_batch(&b, d, t, BIG, compare);
        run_batch(&b, d, t + 32760, 16, compare);
        free(t);
        cb_backend_cpu.close(d);
        bench_close(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_boundaries), cmocka_unit_test(test_many_rows)};
    return cmocka_run_group_tests_name("op/moe", tests, NULL, NULL);
}
