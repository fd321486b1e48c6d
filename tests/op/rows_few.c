/* rows_few.c: chains of rows in registers (cuda/few.cuh) without a GPU, on the driver of tests/cuda/emulate: norms, Hadamard blocks
 * of all sizes, quantisation, and above all the flag of remainder rows, which the kernels decide by a sum in another order where that is
 * certain. The same for rows that the thread blocks of a cluster share (row_clusters.cu). Everything is compared with the definition (docs/arithmetic.md) by bits. */
#include "cuda/abi.h"
#include "kernels/kernels.h"
#include "kernels/num.h"
#include "plan/opkind.h"
#include "../support/emulated.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { MOST = 12288, ROWS = 3 };

/* Kernels, and how many elements a thread of each has. */
typedef struct runner {
    const char *name;
    int per;
    fake_kernel run;
} runner;
static runner quants[] = {{"k_quant4", 4, NULL}, {"k_quant8", 8, NULL}, {"k_rows_few8", 8, NULL}};
static runner clusters[] = {{"k_cluster_quant", 8, NULL}, {"k_cluster_had_quant", 8, NULL}, {"k_cluster_norm_quant", 8, NULL}, {"k_cluster_norm_had_quant", 8, NULL},
                            {"k_cluster_norm_quant_had_quant", 8, NULL}};
enum { C_QUANT, C_HAD, C_NORM, C_NORM_HAD, C_FORK, CLUSTERS };
static runner norms[] = {{"k_norm_quant4", 4, NULL}, {"k_norm_quant8", 8, NULL}, {"k_rows_few8", 8, NULL}};
enum { RUNNERS = sizeof quants / sizeof *quants };

static void open_driver(void)
{
    emulated_open();
    for (int i = 0; i < RUNNERS; i++) {
        quants[i].run = emulated_kernel(quants[i].name, sizeof(cu_rows_few));
        norms[i].run = emulated_kernel(norms[i].name, sizeof(cu_rows_few));
    }
    for (int i = 0; i < CLUSTERS; i++) clusters[i].run = emulated_kernel(clusters[i].name, sizeof(cu_rows_few));
}

/* ---- the definition ---- */

static float tree_of_squares(const float *x, int n)
{
    float lane[32] = {0};
    for (int i = 0; i < n; i++) lane[i % 32] = cb_fma(x[i], x[i], lane[i % 32]);
    return cb_lane_fold32(lane);
}

static void norm(float *y, const float *x, const float *w, int n)
{
    float inv = 1.0f / sqrtf(tree_of_squares(x, n) / (float)n + 1e-6f);
    for (int i = 0; i < n; i++) y[i] = (x[i] * inv) * w[i];
}

static void hadamard(float *x, int n, int block)
{
    for (int s = 1; s < block; s *= 2)
        for (int i = 0; i < n; i++)
            if (!(i & s)) {
                float a = x[i], b = x[i + s];
                x[i] = a + b;
                x[i + s] = a - b;
            }
    for (int i = 0; i < n; i++) x[i] = x[i] * (float)(1.0 / sqrt((double)block));
}

static int numbers(const float *x, int n, int group, int16_t *xi, float *dx, float *xs)
{
    float top = 0;
    for (int g = 0; g < n / group; g++, x += group, xi += group) {
        float m = 0;
        int sum = 0;
        for (int i = 0; i < group; i++) m = fmaxf(m, fabsf(x[i]));
        float inv = m < CB_TINY ? 0 : CB_XI_MAX / m;
        dx[g] = m < CB_TINY ? 0 : m * CB_XI_INV;
        for (int i = 0; i < group; i++) sum += xi[i] = (int16_t)rintf(x[i] * inv);
        xs[g] = dx[g] * (float)sum;
        if (dx[g] > top) top = dx[g];
    }
    top = top * CB_XI_MAX;
    return memcmp(&top, &(float){0}, 4) != 0 ? cb_f2u(top) : 0;
}

static bool wants(const float *x, int n, float top, float share) { return top * top > share * tree_of_squares(x, n); }

/* ---- a chain ---- */

typedef struct work {
    cu_rows_few a;
    cu_step step;
    cu_few_join join[ROWS];
    _Alignas(64) float x[ROWS][MOST];
    float y[ROWS][MOST], w[MOST];
    int8_t planes[2 * ROWS][2 * MOST];
    float dx[2 * ROWS * MOST / 16], xs[2 * ROWS * MOST / 16];
    int32_t sum[2 * ROWS * MOST / 16], flag[ROWS];
    int per, threads, shared;
    int branches; /* of a cluster's kernel, else 0 */
} work;

static work *begin(int n, int parts, int per)
{
    work *k = aligned_alloc(64, (sizeof *k + 63) / 64 * 64);
    memset(k, 0, sizeof *k);
    k->step.bad_op = CU_NO_OP;
    k->a = (cu_rows_few){.step = &k->step, .join = k->join, .width = n / parts, .n_parts = parts, .inverse = n & (n - 1) ? 0 : 1.0f / (float)n};
    k->per = per;
    k->threads = ((n / parts + 255) / 256 * 256 / per + 31) / 32 * 32;
    k->shared = (CU_FEW_ROOM(k->threads * per) + k->threads * per / 32) * 32; /* and a place */
    return k;
}

/* For a kernel of row_clusters.cu: parts of so many elements. */
static work *begin_cluster(int n, int part, int branches)
{
    work *k = begin(n, 1, 8);
    k->a.whole = n;
    k->a.width = part;
    k->a.n_parts = (n + part - 1) / part;
    k->threads = part / 8;
    k->shared = (CU_CLUSTER_ROWS + 3 * CU_FEW_ROOM(k->a.n_parts * part) * 128 + CU_CLUSTER_MINE(part) + 2 * 4 * part) / 4;
    k->branches = branches;
    return k;
}

/* x: row 0 of its input, or NULL: what the op before left. */
static cu_few_op *add(work *k, int kind, const float *x)
{
    cu_few_op *o = &k->a.o[k->a.n_ops++];
    *o = (cu_few_op){.kind = kind, .op = k->a.n_ops, .from = -1, .keep = -1, .x = x, .x_stride = MOST};
    return o;
}

static void quantise(work *k, const float *x, int n, int group, int pack, float share)
{
    cu_few_op *o = add(k, CB_QUANT, x);
    o->f = share;
    o->u.q = (cu_planes){.planes = k->planes[0], .dx = k->dx, .xs = k->xs, .sum = k->sum, .flag = k->flag, .group = group, .pack = pack,
                         .n_rows = ROWS, .stride = (int32_t)cb_plane_stride(n, pack), .n_groups = n / group};
    if (k->a.n_parts > 1 && !k->branches) o->out = k->x[0], o->out_stride = MOST;
}

/* A row after the other. */
static void run_cluster(work *k, const runner *r)
{
    for (int row = 0; row < ROWS; row++) {
        cu_rows_few a = k->a;
        for (int i = 0; i < a.n_ops; i++) {
            cu_few_op *o = &a.o[i];
            if (o->x) o->x += (size_t)row * (size_t)o->x_stride;
            if (o->out) o->out += (size_t)row * (size_t)o->out_stride;
            if (o->kind != CB_QUANT) continue;
            o->u.q.planes += (size_t)row * (size_t)o->u.q.stride;
            o->u.q.dx += row * o->u.q.n_groups;
            o->u.q.xs += row * o->u.q.n_groups;
            o->u.q.flag += row;
        }
        fake_grid g = {.blocks = {(unsigned)a.n_parts, (unsigned)k->branches, 1}, .threads = (unsigned)k->threads, .shared = (unsigned)k->shared * 4, .cluster = (unsigned)a.n_parts};
        r->run(&a, &g);
    }
}

static void run(work *k, const runner *r)
{
    if (k->branches) {
        run_cluster(k, r);
        return;
    }
    fake_grid g = {.blocks = {ROWS, (unsigned)k->a.n_parts, 1}, .threads = (unsigned)k->threads, .shared = (unsigned)k->shared * 4};
    r->run(&k->a, &g);
}

/* ---- tests ---- */

static uint64_t random_state = 1;
static float uniform(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(random_state >> 32) * 0x1p-31f;
}

static void check_planes(const work *k, int row, int to, const int16_t *xi, int n, int pack)
{
    const int8_t *p = k->planes[0] + (size_t)to * cb_plane_stride(n, pack);
    for (int e = 0; e < n; e++) {
        const int8_t *at = p + e / (64 * pack) * (128 * pack) + e % pack * 64 + e % (64 * pack) / pack;
        int hi = at[0], lo = at[64 * pack];
        if (256 * hi + lo != xi[e]) fail_msg("%d elements, row %d element %d: %d, not %d", n, row, e, 256 * hi + lo, xi[e]);
    }
}

/* The flag and, where it is up, the remainder of each row of values v. */
static void check_quant(const work *k, float (*v)[MOST], int n, int group, int pack, float share)
{
    static int16_t xi[MOST];
    static float dx[MOST], xs[MOST];
    for (int r = 0; r < ROWS; r++) {
        float top = cb_u2f((uint32_t)numbers(v[r], n, group, xi, dx, xs));
        check_planes(k, r, r, xi, n, pack);
        assert_memory_equal(k->dx + r * (n / group), dx, (size_t)(n / group) * 4);
        assert_memory_equal(k->xs + r * (n / group), xs, (size_t)(n / group) * 4);
        assert_int_equal(k->flag[r], wants(v[r], n, top, share));
        assert_int_equal(k->join[r].arrived, 0);
        if (!k->flag[r]) continue;
        for (int i = 0; i < n; i++) v[r][i] = v[r][i] - dx[i / group] * (float)xi[i];
        numbers(v[r], n, group, xi, dx, xs);
        check_planes(k, r, ROWS + r, xi, n, pack);
        assert_memory_equal(k->dx + (ROWS + r) * (n / group), dx, (size_t)(n / group) * 4);
        assert_memory_equal(k->xs + (ROWS + r) * (n / group), xs, (size_t)(n / group) * 4);
    }
}

static void test_hadamard(void **state)
{
    (void)state;
    static const int shapes[][3] = {{64, 2, 1}, {64, 16, 1}, {576, 64, 1}, {768, 256, 1}, {512, 512, 1}, {2560, 512, 1}, {3072, 1024, 1}, {2048, 2048, 1},
                                    {4096, 4096, 1}, {12288, 4096, 3}, {6144, 2048, 3}};
    if (!emulated.lib) skip();
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        int n = shapes[s][0], block = shapes[s][1];
        const runner *by = &quants[RUNNERS - 1];
        work *k = begin(n, shapes[s][2], by->per);
        static float v[ROWS][MOST];
        for (int i = 0; i < n; i++) k->w[i] = uniform() < 0 ? -1 : 1;
        for (int r = 0; r < ROWS; r++)
            for (int i = 0; i < n; i++) v[r][i] = (k->x[r][i] = uniform()) * k->w[i];
        cu_few_op *o = add(k, CB_HADAMARD, k->x[0]);
        o->n = block;
        o->f = (float)(1.0 / sqrt((double)block));
        o->w = k->w;
        o->out = k->y[0];
        o->out_stride = MOST;
        run(k, by);
        for (int r = 0; r < ROWS; r++) {
            hadamard(v[r], n, block);
            for (int i = 0; i < n; i++)
                if (memcmp(&v[r][i], &k->y[r][i], 4) != 0)
                    fail_msg("%d in blocks of %d: row %d element %d: %a, not %a", n, block, r, i, (double)k->y[r][i], (double)v[r][i]);
        }
        free(k);
    }
}

/* Rows, how they are quantised, and parts for a cluster. */
static const struct {
    int n, group, pack, part;
} norm_cases[] = {{64, 32, 2, 256}, {576, 32, 2, 256}, {704, 64, 2, 256}, {2048, 64, 1, 512}, {2816, 64, 4, 768}, {4096, 128, 4, 1024}};
enum { N_NORMS = sizeof norm_cases / sizeof *norm_cases };

/* k: a chain that has nothing yet. Freed. */
static void norm_and_quant(work *k, int n, const runner *by, int group, int pack)
{
    static float v[ROWS][MOST];
    for (int i = 0; i < n; i++) k->w[i] = 1 + 0.1f * uniform();
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < n; i++) k->x[r][i] = i == 7 && r == 1 ? 1000.0f : uniform();
        norm(v[r], k->x[r], k->w, n);
    }
    cu_few_op *o = add(k, CB_RMSNORM, k->x[0]);
    o->f = 1e-6f;
    o->w = k->w;
    quantise(k, NULL, n, group, pack, 0.7f);
    run(k, by);
    assert_int_equal(k->flag[1], 1);
    check_quant(k, v, n, group, pack, 0.7f);
    free(k);
}

static void test_norm(void **state)
{
    (void)state;
    if (!emulated.lib) skip();
    for (int i = 0; i < RUNNERS; i++) {
        const runner *by = &norms[i];
        for (int k = 0; k < N_NORMS; k++)
            if (norm_cases[k].n / by->per <= 512) norm_and_quant(begin(norm_cases[k].n, 1, by->per), norm_cases[k].n, by, norm_cases[k].group, norm_cases[k].pack);
    }
}

/* One number of such size that its square is just about `share` of the row's energy: from too small to say yes to large enough, by steps
 * of one unit in its last place. */
static void around(int n, int parts, const runner *by, float scale, float share)
{
    if (n / parts / by->per > 512) return;
    static float v[ROWS][MOST], base[MOST];
    int seen[2] = {0};
    double others = 0;
    for (int i = 0; i < n; i++) base[i] = uniform() * scale;
    for (int i = 0; i < n; i++) others += i == 5 ? 0 : (double)base[i] * base[i];
    float x = (float)sqrt(others * share / (1 - share));
    for (int step = -60; step < 60; step += ROWS) {
        work *k = begin(n, parts, by->per);
        for (int r = 0; r < ROWS; r++) {
            memcpy(v[r], base, sizeof base);
            v[r][5] = cb_u2f(cb_f2u(x) + (uint32_t)((step + r) * (step + r) * (step + r) / 8)); /* close ones, and some far ones */
            memcpy(k->x[r], v[r], sizeof base);
        }
        quantise(k, k->x[0], n, 64, 2, share);
        run(k, by);
        for (int r = 0; r < ROWS; r++) seen[k->flag[r]]++;
        check_quant(k, v, n, 64, 2, share);
        free(k);
    }
    if (scale > 1e-20f && (!seen[0] || !seen[1])) fail_msg("%d of %d elements: %d without, %d with remainders", parts, n, seen[0], seen[1]);
}

static void test_flags(void **state)
{
    (void)state;
    if (!emulated.lib) skip();
    for (int i = 0; i < RUNNERS; i++) {
        const runner *by = &quants[i];
        around(64, 1, by, 1, 0.7f);
        around(576, 1, by, 1, 0.7f);
        around(4096, 1, by, 0.01f, 0.7f);
        around(1024, 1, by, 1e-13f, 0.7f); /* squares near the end of the range */
        around(1024, 1, by, 1e-20f, 0.7f);
        around(1024, 1, by, 1e-25f, 0.7f);
        around(1024, 1, by, 1e17f, 0.7f);
        around(12288, 3, by, 1, 0.7f);
        around(8192, 2, by, 1e-20f, 0.7f);
    }
    static float v[ROWS][MOST]; /* a share of 0: all rows but those whose energy is 0 */
    work *k = begin(640, 1, quants[1].per);
    for (int i = 0; i < 640; i++) v[1][i] = uniform(), v[2][i] = uniform() * 1e-30f;
    for (int r = 0; r < ROWS; r++) memcpy(k->x[r], v[r], sizeof *v);
    quantise(k, k->x[0], 640, 64, 2, 0);
    run(k, &quants[1]);
    assert_true(!k->flag[0] && k->flag[1] && !k->flag[2]);
    check_quant(k, v, 640, 64, 2, 0);
    free(k);
}

/* ---- the same by clusters ---- */

static void hadamard_op(work *k, const float *x, int block, int back)
{
    cu_few_op *o = add(k, CB_HADAMARD, x);
    o->n = block;
    o->m = back;
    o->f = (float)(1.0 / sqrt((double)block));
    o->w = k->w;
}

/* A row whose Hadamard blocks are wider than a part, or not; behind a norm, or not; and beside a quantisation of the row as it was. */
static void cluster_hadamard(int n, int part, int block, int kernel)
{
    static float v[ROWS][MOST], plain[ROWS][MOST];
    static work *other;
    work *k = begin_cluster(n, part, 1 + (kernel == C_FORK));
    other = begin(n, 1, 8);
    for (int i = 0; i < n; i++) k->w[i] = uniform() < 0 ? -1 : 1;
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < n; i++) v[r][i] = k->x[r][i] = r == 2 ? (i == 11 ? 1 : 0.001f * uniform()) * (float)n : uniform();
    const float *x = k->x[0];
    if (kernel != C_HAD) {
        cu_few_op *o = add(k, CB_RMSNORM, x);
        o->f = 1e-6f;
        o->w = k->w;
        o->out = kernel == C_FORK ? k->y[0] : NULL;
        o->out_stride = MOST;
        x = NULL;
        for (int r = 0; r < ROWS; r++) norm(v[r], k->x[r], k->w, n);
    }
    memcpy(plain, v, sizeof v);
    if (kernel == C_FORK) {
        quantise(k, NULL, n, 64, 1, 0.7f);
        cu_planes *q = &k->a.o[1].u.q;
        q->planes = other->planes[0], q->dx = other->dx, q->xs = other->xs, q->flag = other->flag;
    }
    hadamard_op(k, x, block, 0);
    quantise(k, NULL, n, 128, 4, 0.01f);
    run(k, &clusters[kernel]);
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < n; i++) v[r][i] = v[r][i] * k->w[i];
        hadamard(v[r], n, block);
    }
    if (kernel == C_FORK) {
        for (int r = 0; r < ROWS; r++) assert_memory_equal(k->y[r], plain[r], (size_t)n * 4);
        assert_int_equal(other->flag[2], 1);
        check_quant(other, plain, n, 64, 1, 0.7f);
    }
    check_quant(k, v, n, 128, 4, 0.01f);
    free(other);
    free(k);
}

static void cluster_flags(int n, int part, float scale, float share)
{
    static float v[ROWS][MOST], base[MOST];
    int seen[2] = {0};
    double others = 0;
    int at = n - 3; /* in the last part */
    for (int i = 0; i < n; i++) base[i] = uniform() * scale;
    for (int i = 0; i < n; i++) others += i == at ? 0 : (double)base[i] * base[i];
    float x = (float)sqrt(others * share / (1 - share));
    for (int step = -30; step < 30; step += ROWS) {
        work *k = begin_cluster(n, part, 1);
        for (int r = 0; r < ROWS; r++) {
            memcpy(v[r], base, sizeof base);
            v[r][at] = cb_u2f(cb_f2u(x) + (uint32_t)((step + r) * (step + r) * (step + r) / 2));
            memcpy(k->x[r], v[r], sizeof base);
        }
        quantise(k, k->x[0], n, 64, 2, share);
        run(k, &clusters[C_QUANT]);
        for (int r = 0; r < ROWS; r++) seen[k->flag[r]]++;
        check_quant(k, v, n, 64, 2, share);
        free(k);
    }
    if (scale > 1e-20f && (!seen[0] || !seen[1])) fail_msg("%d elements: %d without, %d with remainders", n, seen[0], seen[1]);
}

/* ---- chains of several inputs: as by one thread block ---- */

enum { EXPERTS = 8 };
static float y[EXPERTS][MOST], residual[MOST], gated[MOST], route[2 * EXPERTS], gate[1];

static void check_same(const work *a, const work *b, int n)
{
    assert_memory_equal(a->planes, b->planes, sizeof a->planes);
    assert_memory_equal(a->dx, b->dx, sizeof a->dx);
    assert_memory_equal(a->xs, b->xs, sizeof a->xs);
    assert_memory_equal(a->flag, b->flag, sizeof a->flag);
    for (int r = 0; r < ROWS; r++) assert_memory_equal(a->y[r], b->y[r], (size_t)n * 4);
}

/* One row by the kernel `one`, and by a cluster's. */
static void same_as(const char *one, const char *cluster, void (*chain)(work *k, int n), int n, int whole_parts, int part, int branches)
{
    runner r[] = {{one, 8, emulated_kernel(one, sizeof(cu_rows_few))}, {cluster, 8, emulated_kernel(cluster, sizeof(cu_rows_few))}};
    work *k[] = {begin(n, whole_parts, 8), begin_cluster(n, part, branches)};
    for (int i = 0; i < n; i++) {
        for (int e = 0; e < EXPERTS; e++) y[e][i] = uniform();
        residual[i] = 3 * uniform();
        gated[i] = uniform();
        for (int j = 0; j < 2; j++) k[j]->x[0][i] = y[0][i], k[j]->w[i] = y[1][i] < 0 ? -1 : 1;
    }
    for (int e = 0; e < EXPERTS; e++) route[EXPERTS + e] = 0.1f + 0.02f * (float)e;
    gate[0] = 0.3f;
    for (int j = 0; j < 2; j++) {
        chain(k[j], n);
        fake_grid g = {.blocks = {j ? (unsigned)k[j]->a.n_parts : 1, j ? (unsigned)branches : (unsigned)whole_parts, 1}, .threads = (unsigned)k[j]->threads,
                       .shared = (unsigned)k[j]->shared * 4, .cluster = j ? (unsigned)k[j]->a.n_parts : 1};
        r[j].run(&k[j]->a, &g);
    }
    for (int i = 0; i < n; i++) k[0]->x[0][i] = k[1]->x[0][i] = 0; /* the parts of a row leave it there */
    check_same(k[0], k[1], n);
    free(k[0]);
    free(k[1]);
}

static cu_few_op *norm_op(work *k, const float *x)
{
    cu_few_op *o = add(k, CB_RMSNORM, x);
    o->f = 1e-6f;
    o->w = k->w;
    return o;
}

static void moe_chain(work *k, int n)
{
    cu_few_op *o = add(k, CB_MOE_SUM, NULL);
    o->n = EXPERTS;
    o->u.sum.y = y[0], o->u.sum.y_stride = MOST, o->u.sum.route = route, o->u.sum.route_stride = 2 * EXPERTS;
    o = add(k, CB_ADD, NULL);
    o->b = residual, o->b_stride = MOST;
    o = add(k, CB_ADD_GATED, NULL);
    o->b = gated, o->b_stride = MOST, o->w = gate, o->w_stride = 1;
    o->out = k->y[0], o->out_stride = MOST;
    norm_op(k, NULL);
    quantise(k, NULL, n, 64, 2, 0.01f);
}

/* Without what follows. */
static void moe_only_chain(work *k, int n)
{
    moe_chain(k, n);
    k->a.n_ops -= 2;
}

static void add_norm_chain(work *k, int n)
{
    norm_op(k, k->x[0]);
    cu_few_op *o = add(k, CB_ADD, NULL);
    o->b = residual, o->b_stride = MOST;
    o->out = k->y[0], o->out_stride = MOST;
    norm_op(k, NULL);
    quantise(k, NULL, n, 64, 2, 0.7f);
}

static void gemma_chain(work *k, int n)
{
    add_norm_chain(k, n);
    k->a.o[1].keep = 0;
    for (int i = 0; i < 2; i++) {
        cu_few_op *o = norm_op(k, NULL);
        o->from = 0, o->n = 1;
        if (i == 0) o = add(k, CB_SCALE, NULL), o->f = 0.7f;
        quantise(k, NULL, n, 64, i ? 1 : 2, 0.01f);
        cu_planes *q = &k->a.o[k->a.n_ops - 1].u.q;
        q->planes += (i + 1) * 2 * q->stride, q->dx += (i + 1) * 2 * q->n_groups, q->xs += (i + 1) * 2 * q->n_groups, q->flag += i + 1;
        q->n_rows = 1;
    }
    k->a.o[3].u.q.n_rows = 1;
}

static void gemma_end_chain(work *k, int n)
{
    cu_few_op *o = norm_op(k, k->x[0]);
    int16_t place = (int16_t)CU_FEW_ROOM(k->threads * 8);
    o->keep = place;
    o = add(k, CB_MOE_SUM, NULL);
    o->n = EXPERTS;
    o->u.sum.y = y[0], o->u.sum.y_stride = MOST, o->u.sum.route = route, o->u.sum.route_stride = 2 * EXPERTS;
    norm_op(k, NULL);
    add(k, CB_ADD, NULL)->from = place;
    norm_op(k, NULL);
    o = add(k, CB_ADD, NULL);
    o->b = residual, o->b_stride = MOST;
    o = add(k, CB_SCALE, NULL);
    o->f = 0.7f;
    o->out = k->y[0], o->out_stride = MOST;
    (void)n;
}

static void gemma_out_chain(work *k, int n)
{
    gemma_end_chain(k, n);
    norm_op(k, NULL);
    quantise(k, NULL, n, 64, 2, 0.01f);
}

static void glu_chain(work *k, int n)
{
    cu_few_op *o = add(k, CB_GLU, y[2]);
    o->n = CB_ACT_SILU;
    o->b = y[3], o->b_stride = MOST;
    hadamard_op(k, NULL, n == 12288 ? 4096 : 2048, 0);
    k->a.o[1].out = k->branches ? NULL : k->x[0], k->a.o[1].out_stride = MOST;
    quantise(k, NULL, n, 128, 4, 0.001f);
}

static void test_cluster_chains(void **state)
{
    (void)state;
    if (!emulated.lib) skip();
    same_as("k_moe_norm_quant8", "k_cluster_moe_norm_quant", moe_chain, 2048, 1, 1024, 1);
    same_as("k_moe_norm_quant8", "k_cluster_moe_norm_quant", moe_chain, 2048, 1, 512, 1);
    same_as("k_norm_add_norm_quant8", "k_cluster_norm_add_norm_quant", add_norm_chain, 2816, 1, 1024, 1);
    same_as("k_gemma_moe_in8", "k_cluster_gemma_moe_in", gemma_chain, 2816, 1, 1024, 3);
    same_as("k_rows_few8", "k_cluster_moe", moe_only_chain, 2048, 1, 1024, 1);
    for (int part = 1024; part <= 2048; part += part / 2) same_as("k_gemma_moe_out8", "k_cluster_gemma_moe_out", gemma_out_chain, 2816, 1, part / 256 * 256, 1);
    same_as("k_rows_few8", "k_cluster_gemma_moe_end", gemma_end_chain, 2816, 1, 1024, 1);
    same_as("k_glu_had_quant8", "k_cluster_glu_had_quant", glu_chain, 12288, 3, 2048, 1);
    same_as("k_glu_had_quant8", "k_cluster_glu_had_quant", glu_chain, 6144, 3, 1024, 1);
}

static void test_clusters(void **state)
{
    (void)state;
    if (!emulated.lib) skip();
    static const int shapes[][3] = {{1024, 512, 1024}, {512, 512, 256}, {512, 512, 512}, {2560, 1024, 512}, {3072, 1024, 1024}, {2048, 512, 2048}, {4096, 1024, 4096}, {4096, 2048, 4096}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int kernel = C_HAD; kernel < CLUSTERS; kernel++)
            if (kernel != C_NORM) cluster_hadamard(shapes[s][0], shapes[s][1], shapes[s][2], kernel);
    cluster_hadamard(12288, 2048, 4096, C_HAD);
    cluster_hadamard(6144, 1024, 2048, C_HAD);
    cluster_hadamard(9216, 1536, 512, C_HAD);
    for (int i = 0; i < N_NORMS; i++)
        norm_and_quant(begin_cluster(norm_cases[i].n, norm_cases[i].part, 1), norm_cases[i].n, &clusters[C_NORM], norm_cases[i].group, norm_cases[i].pack);
    cluster_flags(576, 256, 1, 0.7f);
    cluster_flags(4096, 1024, 0.01f, 0.7f);
    cluster_flags(1024, 256, 1e-20f, 0.7f);
    cluster_flags(12288, 1536, 1, 0.7f);
}

int main(void)
{
    open_driver();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_hadamard), cmocka_unit_test(test_norm), cmocka_unit_test(test_flags), cmocka_unit_test(test_clusters), cmocka_unit_test(test_cluster_chains)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
