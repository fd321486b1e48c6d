/* rows_emulated.c: kernels that only large steps use, run by fibers (tests/cuda/emulate), beside those of small steps: k_rows_many gives the
 * bits of k_rows, for the same chains of operations on rows of many widths, among them rows with a remainder and rows at its border; many
 * thread blocks sort routed rows as one does. */
#include "../support/emulated.h"
#include "cuda/abi.h"
#include "plan/opkind.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { ROWS = 5, WIDE = 16384, K = 8, VALUES = 8 };

static fake_kernel rows, many, many_wide, put, count, sort;
static uint64_t state = 1;

static float number(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(state >> 32) * 0x1p-31f;
}

static void open_kernels(void)
{
    emulated_open();
    rows = emulated_kernel("k_rows", sizeof(cu_rows));
    many = emulated_kernel("k_rows_many", sizeof(cu_rows_many));
    many_wide = emulated_kernel("k_rows_many_wide", sizeof(cu_rows_many));
    put = emulated_kernel("k_kv_put_many", sizeof(cu_rows_many));
    count = emulated_kernel("k_moe_count", sizeof(cu_sort));
    sort = emulated_kernel("k_moe_sort", sizeof(cu_sort));
}

/* A chain under construction, its values and planes in plain memory. */
typedef struct chain {
    cu_row_op ops[CU_MANY_OPS];
    int n, width, n_values, n_planes;
    float *value[VALUES], *x[3], *mixed, *w, *routes;
    cu_planes planes[2];
    size_t planes_bytes[2];
    cu_step step;
} chain;

static void *zeros(size_t n)
{
    void *p = aligned_alloc(64, (n + 63) / 64 * 64);
    assert_non_null(p);
    memset(p, 0, (n + 63) / 64 * 64);
    return p;
}

static void begin(chain *c, int width)
{
    memset(c, 0, sizeof *c);
    c->width = width;
    c->step.bad_op = CU_NO_OP;
    for (int i = 0; i < 3; i++) c->x[i] = zeros((size_t)ROWS * (size_t)width * 4);
    c->mixed = zeros((size_t)ROWS * K * (size_t)width * 4);
    c->w = zeros((size_t)width * 4);
    c->routes = zeros((size_t)ROWS * 2 * K * 4);
    for (int i = 0; i < 3 * ROWS * width; i++) c->x[i / (ROWS * width)][i % (ROWS * width)] = number() * (i % 97 ? 1 : 4);
    for (int i = 0; i < ROWS * K * width; i++) c->mixed[i] = number();
    for (int i = 0; i < width; i++) c->w[i] = i % 3 ? 1.0f : -1.0f;
    for (int i = 0; i < ROWS * 2 * K; i++) c->routes[i] = number();
    c->x[0][width + 7] = 3000; /* row 1: one number has all */
    for (int i = 0; i < width; i++) c->x[0][2 * width + i] = 0; /* row 2: zeros; row 3: at the border, two equal numbers and T = 0.5 */
    for (int i = 0; i < width; i++) c->x[0][3 * width + i] = i == 40 || i == width - 3 ? 8 : 0;
    for (int i = 0; i < width; i++) c->x[0][4 * width + i] *= 0x1p-70f; /* row 4: squares below the smallest number */
}

/* Appends an operation. a, b, d: inputs. Returns its output, which is in memory only when it is to be seen. */
static const float *add(chain *c, int kind, const float *a, const float *b, const float *d, int n0, int n1, float f0, bool seen)
{
    cu_row_op *o = &c->ops[c->n++];
    *o = (cu_row_op){.kind = kind, .op = c->n, .n = {n0, n1}, .f = {f0}, .in = {a, b, d}, .width = c->width, .stage = -1, .out_stride = c->width};
    for (int i = 0; i < 3; i++) {
        o->in_stride[i] = o->in[i] == c->routes ? 2 * K : c->width;
        o->in_local[i] = -1;
    }
    c->value[c->n_values] = zeros((size_t)ROWS * (size_t)c->width * 4);
    o->out = c->value[c->n_values++];
    o->out_local = seen ? -1 : 0;
    return o->out;
}

static void quant(chain *c, const float *a, int group, int pack, float share, bool flag)
{
    size_t stride = (size_t)(c->width + 64 * pack - 1) / (size_t)(64 * pack) * (size_t)(128 * pack), G = (size_t)(c->width / group), n = 2 * ROWS;
    size_t bytes = n * (stride + 12 * G) + 4 * ROWS;
    cu_planes q = {.planes = zeros(bytes), .stride = (int32_t)stride, .n_groups = (int32_t)G, .group = group, .pack = pack, .n_rows = ROWS};
    q.dx = (float *)(q.planes + n * stride);
    q.xs = q.dx + n * G;
    q.sum = (int32_t *)(q.xs + n * G);
    if (flag) q.flag = q.sum + n * G;
    cu_row_op *o = &c->ops[c->n++];
    *o = (cu_row_op){.kind = CB_QUANT, .op = c->n, .f = {share}, .in = {a}, .in_stride = {c->width}, .in_local = {-1, -1, -1}, .out_local = -1, .width = c->width, .u.q = q};
    c->planes_bytes[c->n_planes] = bytes;
    c->planes[c->n_planes++] = q;
}

/* Runs it by both kernels and compares all outputs. k_rows has no values in shared memory but what it must. */
static void compare(chain *c, const char *what)
{
    uint8_t *want[2];
    float *seen[VALUES];
    cu_row_op plain[CU_MANY_OPS];
    memcpy(plain, c->ops, sizeof plain);
    for (int i = 0; i < c->n; i++) {
        plain[i].out_local = -1;
        plain[i].stage = 0;
    }
    cu_rows a = {.step = &c->step, .ops = plain, .n_ops = c->n};
    rows(&a, &(fake_grid){.blocks = {ROWS, 1, 1}, .threads = 256, .shared = (unsigned)c->width * 4});
    for (int i = 0; i < c->n_values; i++) {
        seen[i] = c->value[i];
        c->value[i] = zeros((size_t)ROWS * (size_t)c->width * 4);
    }
    for (int i = 0; i < c->n; i++) /* the second run writes elsewhere, and reads what it made itself */
        for (int v = 0; v < c->n_values; v++) {
            for (int k = 0; k < 3; k++)
                if (c->ops[i].in[k] == seen[v]) c->ops[i].in[k] = c->value[v];
            if (c->ops[i].out == seen[v]) c->ops[i].out = c->value[v];
        }
    for (int i = 0; i < c->n_planes; i++) {
        want[i] = zeros(c->planes_bytes[i]);
        memcpy(want[i], c->planes[i].planes, c->planes_bytes[i]);
        memset(c->planes[i].planes, 0, c->planes_bytes[i]);
    }
    int per_warp = 32 * CU_MANY_ELEMENTS, warps = (c->width + per_warp - 1) / per_warp, threads = 32 * (warps == 1 ? 2 : warps);
    cu_rows_many m = {.step = &c->step, .ops = c->ops, .n_ops = c->n, .n_rows = ROWS, .width = c->width, .warps = warps};
    (c->width <= CU_MANY_NARROW ? many : many_wide)(&m, &(fake_grid){.blocks = {2, 1, 1}, .threads = (unsigned)threads, .shared = (unsigned)(threads * (CU_MANY_ELEMENTS + 1) * 4)});
    for (int i = 0; i < c->n_values; i++) {
        bool visible = false;
        for (int k = 0; k < c->n; k++) visible |= c->ops[k].out == c->value[i] && c->ops[k].out_local < 0;
        if (visible && memcmp(seen[i], c->value[i], (size_t)ROWS * (size_t)c->width * 4) != 0) fail_msg("%s, width %d: value %d", what, c->width, i);
        free(seen[i]);
        free(c->value[i]);
    }
    for (int i = 0; i < c->n_planes; i++) {
        if (memcmp(want[i], c->planes[i].planes, c->planes_bytes[i]) != 0) fail_msg("%s, width %d: planes %d", what, c->width, i);
        if (c->planes[i].flag && strcmp(what, "glu") != 0) assert_int_equal(c->planes[i].flag[2], 0); /* the zeros */
        free(want[i]);
        free(c->planes[i].planes);
    }
    for (int i = 0; i < 3; i++) free(c->x[i]);
    free(c->mixed);
    free(c->w);
    free(c->routes);
}

static void check_width(int width)
{
    int block = width & -width, group = width % 512 ? 128 : 32;
    if (block > 4096) block = 4096;
    chain c;
    begin(&c, width);
    const float *v = add(&c, CB_GLU, c.x[0], c.x[1], NULL, CB_ACT_SILU, 0, 0, false);
    v = add(&c, CB_HADAMARD, v, NULL, NULL, block, 0, (float)(1 / sqrt(block)), false);
    c.ops[c.n - 1].w = c.w;
    quant(&c, v, 128, 4, 0.05f, true);
    compare(&c, "glu");

    begin(&c, width);
    quant(&c, c.x[0], 64, 2, 0.5f, true);
    v = add(&c, CB_ADD, c.x[0], c.x[2], NULL, 0, 0, 0, true);
    v = add(&c, CB_RMSNORM, v, NULL, NULL, 1, width, 1e-6f, true);
    c.ops[c.n - 1].w = c.w;
    quant(&c, v, group, group == 32 ? 1 : 2, 0.7f, false);
    compare(&c, "quant, add, norm");

    for (int dim = 64; dim <= 256; dim *= 2) {
        begin(&c, width);
        v = add(&c, CB_RMSNORM, c.x[0], NULL, NULL, width / dim, dim, 1e-6f, dim == 128);
        c.ops[c.n - 1].w = c.w;
        v = add(&c, CB_GLU, c.x[1], v, NULL, dim == 64 ? CB_ACT_GELU_TANH : CB_ACT_SIGMOID, 0, 0, true);
        v = add(&c, CB_HADAMARD, v, NULL, NULL, dim, 1, (float)(1 / sqrt(dim)), true);
        c.ops[c.n - 1].w = c.w;
        quant(&c, v, 64, dim == 64 ? 1 : dim == 128 ? 2 : 4, 0.1f, true);
        compare(&c, "heads");
    }

    for (int dim = 64; dim <= 256 && width * 2 <= WIDE; dim *= 4) { /* queries: half of each head of 2*dim, then all that stands before attention */
        begin(&c, width);
        const float *gate = add(&c, CB_SPLIT, c.mixed, NULL, NULL, width / dim, 2 * dim, 0, true);
        c.ops[0].n[2] = dim;
        c.ops[0].n[3] = dim;
        c.ops[0].in_stride[0] = 2 * width;
        v = add(&c, CB_SPLIT, c.mixed, NULL, NULL, width / dim, 2 * dim, 0, false);
        c.ops[1].n[3] = dim;
        c.ops[1].in_stride[0] = 2 * width;
        v = add(&c, CB_RMSNORM, v, NULL, NULL, width / dim, dim, 1e-6f, false);
        v = add(&c, CB_ROPE, v, c.x[1], NULL, width / dim, dim, 0, true);
        c.ops[3].n[2] = 16;
        c.ops[3].n[3] = dim / 4;
        v = add(&c, CB_HADAMARD, v, NULL, NULL, 64, 0, 0.125f, true);
        v = add(&c, CB_GLU, gate, v, NULL, CB_ACT_SIGMOID, 0, 0, true);
        compare(&c, "queries");
    }

    begin(&c, width);
    v = add(&c, CB_MOE_SUM, c.mixed, c.routes, NULL, K, 0, 0, false);
    v = add(&c, CB_ADD_GATED, v, c.routes, c.x[2], 0, 0, 0, false);
    v = add(&c, CB_SCALE, v, NULL, NULL, 0, 0, 0.37f, false);
    v = add(&c, CB_HADAMARD, v, NULL, NULL, 16, 0, 0.25f, true);
    v = add(&c, CB_RMSNORM, v, NULL, NULL, 1, width, 1e-6f, false);
    quant(&c, v, 64, 2, 0.0f, false);
    compare(&c, "experts");
}

static void test_widths(void **s)
{
    (void)s;
    if (!many) skip();
    static const int widths[] = {256, 512, 768, 1024, 2560, 4096, 12288, WIDE};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) check_width(widths[i]);
}

/* Two runs of rows that begin anywhere in a block of keys. */
static void test_put(void **s)
{
    (void)s;
    if (!put) skip();
    enum { N = 150, SPLIT = 67, HEADS = 2, BLOCKS = 8 };
    for (int dim = 64; dim <= CU_PUT_DIM; dim *= 2) {
        int width = HEADS * dim, head_bytes = 4 * CU_BLOCK * dim + (dim / 64 + 1) * CU_BLOCK * 4;
        size_t bytes = (size_t)(BLOCKS * HEADS * head_bytes);
        float *k = zeros((size_t)(N * width) * 4), *v = zeros((size_t)(N * width) * 4);
        int32_t pos[N], slot[N], table[2][BLOCKS / 2] = {{3, 0, 5, 1}, {7, 2, 6, 4}};
        const int32_t *tables[1] = {table[0]};
        uint8_t *memory[2] = {zeros(bytes), zeros(bytes)};
        for (int i = 0; i < N * width; i++) k[i] = number(), v[i] = i / width == 9 ? 0 : number();
        for (int i = 0; i < N; i++) pos[i] = i < SPLIT ? 40 + i : 5 + i - SPLIT, slot[i] = i >= SPLIT;
        cu_step step = {.pos = pos, .slot = slot, .tables = tables, .table_stride = BLOCKS / 2, .bad_op = CU_NO_OP};
        for (int many_rows = 0; many_rows < 2; many_rows++) {
            cu_row_op o = {.kind = CB_KV_PUT, .in = {k, v}, .in_stride = {width, width}, .in_local = {-1, -1, -1}, .width = width,
                           .u.kv = {.base = memory[many_rows], .head_bytes = head_bytes, .n_heads = HEADS, .dim = dim}};
            cu_rows a = {.step = &step, .ops = &o, .n_ops = 1};
            cu_rows_many m = {.step = &step, .ops = &o, .n_ops = 1, .n_rows = N};
            if (many_rows) put(&m, &(fake_grid){.blocks = {(N + CU_PUT_ROWS - 1) / CU_PUT_ROWS, HEADS, 1}, .threads = 256, .shared = 0});
            else rows(&a, &(fake_grid){.blocks = {N, 1, 1}, .threads = 256, .shared = 0});
        }
        assert_memory_equal(memory[0], memory[1], bytes);
        free(k);
        free(v);
        free(memory[0]);
        free(memory[1]);
    }
}

static void test_sort(void **s)
{
    (void)s;
    if (!sort) skip();
    enum { N = 700, TOP = 3, EXPERTS = 37, LISTS = 2 * N * TOP + EXPERTS + 1 + 4 * (N * TOP + 1) };
    int32_t *route = zeros(N * TOP * 4), *lists[2], *counts = zeros(8 * EXPERTS * 4);
    for (int i = 0; i < N * TOP; i++) route[i] = (int)((number() + 1) * (number() + 1) * (EXPERTS / 4.0f)) % EXPERTS;
    for (unsigned b = 0; b < 2; b++) {
        int32_t *p = lists[b] = zeros(LISTS * 4);
        cu_sort a = {.route = route, .tiles = p, .slots = p + 4 * (N * TOP + 1), .counts = counts, .stride = TOP, .n_rows = N, .k = TOP, .n_experts = EXPERTS, .tile = 8};
        a.rows = a.slots + N * TOP;
        a.expert_at = a.rows + N * TOP;
        if (b) count(&a, &(fake_grid){.blocks = {7, 1, 1}, .threads = 1024, .shared = EXPERTS * 4});
        sort(&a, &(fake_grid){.blocks = {b ? 7 : 1, 1, 1}, .threads = 1024, .shared = CU_SORT_SHARED(EXPERTS)});
    }
    assert_memory_equal(lists[0], lists[1], LISTS * 4);
    const int32_t *slots = lists[0] + 4 * (N * TOP + 1);
    for (int i = 1; i < N * TOP; i++) {
        int a = route[slots[i - 1]], b = route[slots[i]];
        assert_true(a < b || (a == b && slots[i - 1] < slots[i]));
    }
    for (int b = 0; b < 2; b++) free(lists[b]);
    free(route);
    free(counts);
}

int main(void)
{
    open_kernels();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_widths), cmocka_unit_test(test_put), cmocka_unit_test(test_sort)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
