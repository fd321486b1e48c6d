/* experts_emulated.c: k_experts (cuda/experts.cu) without a GPU, on the driver of tests/cuda/emulate: lists of experts with 1 to 8 rows each, all numbers
 * of groups that it takes, one and two matrices, fewer and more thread blocks than tiles, rings of all depths. Compared with the definition
 * (docs/arithmetic.md, section 4) by bits. */
#include "cuda/experts.c" /* also where the build has no GPU kernels */
#include "kernels/kernels.h"
#include "kernels/num.h"
#include "../support/emulated.h"
#include "../support/random.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { EXPERTS = 6, ROWS = 40, SHARED = 232448, MATRICES = 2 };

static fake_kernel kernel;
typedef struct bench {
    int n_out, groups, rows; /* rows: of the activations */
    cu_linear p[MATRICES];
    int16_t *xi;             /* [rows][k] */
    uint8_t *codes[MATRICES];
    uint16_t *scales[MATRICES], *biases[MATRICES];
    float *y[MATRICES];
    _Alignas(16) int32_t list[4 * (ROWS + 1)];
    int32_t x_row[ROWS], y_row[ROWS], expert[ROWS];
    int n, entries;          /* sorted rows */
} bench;

static void make_activations(bench *b)
{
    int k = 64 * b->groups, stride = (int)cb_plane_stride(k, 2);
    cu_planes *x = &b->p[0].x;
    *x = (cu_planes){.planes = room((size_t)b->rows * (size_t)stride), .dx = room((size_t)(b->rows * b->groups) * 4), .xs = room((size_t)(b->rows * b->groups) * 4),
                     .stride = stride, .n_groups = b->groups, .group = 64, .pack = 2, .n_rows = b->rows};
    b->xi = room((size_t)(b->rows * k) * 2);
    for (int r = 0; r < b->rows; r++)
        for (int e = 0; e < k; e++) {
            int v = (int)(rnd() % 65535) - 32767 > CB_XI_MAX ? CB_XI_MAX : (int)(rnd() % (2 * CB_XI_MAX + 1)) - CB_XI_MAX, hi = (v + 128) >> 8;
            int8_t *at = x->planes + (size_t)r * (size_t)stride + e / 128 * 256 + e % 2 * 64 + e % 128 / 2;
            b->xi[r * k + e] = (int16_t)v;
            at[0] = (int8_t)hi;
            at[128] = (int8_t)(v - 256 * hi);
        }
    for (int i = 0; i < b->rows * b->groups; i++) {
        x->dx[i] = uniform() * 0.001f;
        x->xs[i] = uniform();
    }
    for (int m = 1; m < MATRICES; m++) b->p[m].x = *x;
}

static void make_matrices(bench *b)
{
    int padded = (b->n_out + 15) / 16 * 16;
    size_t rows = (size_t)(EXPERTS * padded), groups = rows * (size_t)b->groups;
    for (int m = 0; m < MATRICES; m++) {
        b->codes[m] = room(groups * 32);
        b->scales[m] = room(groups * 2);
        b->biases[m] = room(groups * 2);
        b->y[m] = room((size_t)(ROWS * padded) * 4);
        for (size_t i = 0; i < groups * 32; i++) b->codes[m][i] = (uint8_t)rnd();
        for (size_t i = 0; i < groups; i++) {
            b->scales[m][i] = cb_f32_to_bf16(uniform());
            b->biases[m][i] = cb_f32_to_bf16(uniform());
        }
        b->p[m].w = (cu_weight){.codes = b->codes[m], .scales = (uint8_t *)b->scales[m], .biases = (uint8_t *)b->biases[m], .row_bytes = 32 * b->groups,
                                .expert_rows = padded, .n_out = b->n_out, .k = 64 * b->groups, .fmt = CU_FMT_AFFINE, .bits = 4, .group = 64,
                                .n_groups = b->groups, .scale_type = CU_S_BF16, .pack = 2};
        b->p[m].y = b->y[m];
        b->p[m].y_stride = padded;
        b->p[m].x_row = b->x_row;
        b->p[m].y_row = b->y_row;
        b->p[m].tiles = b->list;
        b->p[m].n_experts = EXPERTS;
    }
}

static void free_bench(bench *b)
{
    free(b->p[0].x.planes);
    free(b->p[0].x.dx);
    free(b->p[0].x.xs);
    free(b->xi);
    for (int m = 0; m < MATRICES; m++) {
        free(b->codes[m]);
        free(b->scales[m]);
        free(b->biases[m]);
        free(b->y[m]);
    }
}

/* Some experts have no row, and none more than `most` in an entry; an expert with more has several. */
static void make_list(bench *b, int most)
{
    b->n = b->entries = 0;
    for (int e = 0; e < EXPERTS && b->n < ROWS; e++) {
        int rows = (int)(rnd() % (unsigned)(2 * most)) - 1;
        if (rows > ROWS - b->n || e == EXPERTS - 1) rows = ROWS - b->n;
        for (int i = 0; i < rows; i++) {
            if (i % most == 0) {
                int32_t *t = b->list + 4 * b->entries++;
                t[0] = e;
                t[1] = b->n;
                t[2] = rows - i < most ? rows - i : most;
            }
            b->expert[b->n] = e;
            b->x_row[b->n] = (int)(rnd() % (unsigned)b->rows);
            b->y_row[b->n] = b->n * 7 % ROWS; /* 7 and ROWS have no factor in common */
            b->n++;
        }
    }
    for (int i = 0; i < b->entries; i++) b->list[4 * i + 3] = b->entries;
}

static float expected(const bench *b, int m, int i, int n)
{
    int G = b->groups, row = b->expert[i] * (int)b->p[m].w.expert_rows + n;
    const int16_t *x = b->xi + (size_t)b->x_row[i] * 64 * (size_t)G;
    float y = 0;
    for (int l = 0; l < CU_SEGMENTS; l++) {
        float sum = 0;
        for (int g = l * G / CU_SEGMENTS; g < (l + 1) * G / CU_SEGMENTS; g++) {
            const uint8_t *c = b->codes[m] + ((size_t)row * (size_t)G + (size_t)g) * 32;
            int64_t t = 0;
            for (int k = 0; k < 64; k++) t += (int64_t)(c[k / 2] >> 4 * (k % 2) & 15) * x[64 * g + k];
            float p = b->p[m].x.dx[b->x_row[i] * G + g] * (float)t;
            sum = cb_fma(cb_bf16_to_f32(b->biases[m][row * G + g]), b->p[m].x.xs[b->x_row[i] * G + g], sum);
            sum = cb_fma(cb_bf16_to_f32(b->scales[m][row * G + g]), p, sum);
        }
        y = l ? y + sum : sum;
    }
    return y;
}

static void run(bench *b, int n_matrices, int most, int blocks, int slots)
{
    cu_experts a;
    const cu_linear *p[MATRICES] = {&b->p[0], &b->p[1]};
    unsigned shared;
    assert_true(cu_experts_cut(&a, p, n_matrices, SHARED, most, ROWS, &shared));
    assert_true(shared <= CU_STREAM_SHARED && a.slots >= 2 && a.slots <= CU_EXPERT_SLOTS);
    if (slots < a.slots) a.slots = slots;
    for (int m = 0; m < MATRICES; m++)
        for (size_t i = 0; i < ROWS * (size_t)b->p[m].y_stride; i++) b->y[m][i] = 77;
    kernel(&a, &(fake_grid){.blocks = {(unsigned)blocks, 1, 1}, .threads = 32 * CU_EXPERT_WARPS, .shared = shared});
    for (int m = 0; m < MATRICES; m++)
        for (int i = 0; i < b->n; i++)
            for (int n = 0; n < b->p[m].y_stride; n++) {
                float got = b->y[m][b->y_row[i] * b->p[m].y_stride + n], want = m < n_matrices && n < b->n_out ? expected(b, m, i, n) : 77;
                if (memcmp(&got, &want, 4)) fail_msg("%d groups, %d outputs, matrix %d, row %d, output %d: %a, not %a", b->groups, b->n_out, m, i, n, got, want);
            }
}

static void test_shapes(void **state)
{
    (void)state;
    static const int shapes[][2] = {{64, 1}, {48, 3}, {200, 7}, {128, 8}, {40, 11}, {64, 16}, {96, 24}, {64, 32}, {32, 64}}; /* outputs, groups */
    kernel = emulated_kernel("k_experts_4g64", sizeof(cu_experts));
    if (!kernel) skip();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        bench b = {.n_out = shapes[i][0], .groups = shapes[i][1], .rows = 9};
        make_activations(&b);
        make_matrices(&b);
        for (int most = 4; most <= CU_EXPERT_ROWS; most *= 2) {
            make_list(&b, most);
            run(&b, 1, most, 3, 8);
            run(&b, 2, most, 1, 2);
            run(&b, 2, most, 200, 3);
        }
        free_bench(&b);
    }
}

static void test_refused(void **state)
{
    (void)state;
    bench b = {.n_out = 64, .groups = 32, .rows = 2};
    make_activations(&b);
    make_matrices(&b);
    const cu_linear *p[MATRICES] = {&b.p[0], &b.p[1]};
    cu_experts a;
    unsigned shared;
    assert_true(cu_experts_cut(&a, p, 2, SHARED, 8, ROWS, &shared));
    assert_false(cu_experts_cut(&a, p, 2, SHARED, 16, ROWS, &shared)); /* more rows than two results a lane */
    assert_false(cu_experts_cut(&a, p, 2, 49152, 8, ROWS, &shared));   /* shared memory */
    b.p[1].w.n_out = 32;
    assert_false(cu_experts_cut(&a, p, 2, SHARED, 8, ROWS, &shared)); /* another shape, */
    assert_true(cu_experts_cut(&a, p, 1, SHARED, 8, ROWS, &shared));
    b.p[0].w.bits = 2; /* another format, */
    assert_false(cu_experts_cut(&a, p, 1, SHARED, 8, ROWS, &shared));
    b.p[0].w.bits = 4;
    b.p[0].w.n_groups = 44; /* rows of scales that begin anywhere */
    b.p[0].w.k = 44 * 64;
    assert_false(cu_experts_cut(&a, p, 1, SHARED, 8, ROWS, &shared));
    free_bench(&b);
}

int main(void)
{
    emulated_open();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shapes), cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
