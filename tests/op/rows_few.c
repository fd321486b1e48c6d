/* rows_few.c: chains of rows in registers (cuda/few.cuh) without a GPU, on the driver of tests/cuda/emulate: norms, Hadamard blocks
 * of all sizes, quantisation, and above all the flag of remainder rows, which the kernels decide by a sum in another order where that is
 * certain. Everything is compared with the definition (docs/arithmetic.md) by bits. */
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
static runner norms[] = {{"k_norm_quant4", 4, NULL}, {"k_norm_quant8", 8, NULL}, {"k_rows_few8", 8, NULL}};
enum { RUNNERS = sizeof quants / sizeof *quants };

static void open_driver(void)
{
    emulated_open();
    for (int i = 0; i < RUNNERS; i++) {
        quants[i].run = emulated_kernel(quants[i].name, sizeof(cu_rows_few));
        norms[i].run = emulated_kernel(norms[i].name, sizeof(cu_rows_few));
    }
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
} work;

static work *begin(int n, int parts, int per)
{
    work *k = aligned_alloc(64, (sizeof *k + 63) / 64 * 64);
    memset(k, 0, sizeof *k);
    k->step.bad_op = CU_NO_OP;
    k->a = (cu_rows_few){.step = &k->step, .join = k->join, .width = n / parts, .n_parts = parts, .inverse = n & (n - 1) ? 0 : 1.0f / (float)n};
    k->per = per;
    k->threads = ((n / parts + 255) / 256 * 256 / per + 31) / 32 * 32;
    k->shared = CU_FEW_ROOM(k->threads * per) * 32;
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
    if (k->a.n_parts > 1) o->out = k->x[0], o->out_stride = MOST;
}

static void run(work *k, const runner *r)
{
    fake_grid g = {{ROWS, (unsigned)k->a.n_parts, 1}, (unsigned)k->threads, (unsigned)k->shared * 4};
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
        if (256 * hi + lo != xi[e]) fail_msg("row %d element %d: %d, not %d", row, e, 256 * hi + lo, xi[e]);
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

static void norm_and_quant(int n, const runner *by, int group, int pack)
{
    if (n / by->per > 512) return;
    static float v[ROWS][MOST];
    work *k = begin(n, 1, by->per);
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
        norm_and_quant(64, by, 32, 2);
        norm_and_quant(576, by, 32, 2);
        norm_and_quant(704, by, 64, 2);
        norm_and_quant(2048, by, 64, 1);
        norm_and_quant(2816, by, 64, 4);
        norm_and_quant(4096, by, 128, 4);
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

int main(void)
{
    open_driver();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_hadamard), cmocka_unit_test(test_norm), cmocka_unit_test(test_flags)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
