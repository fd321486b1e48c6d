/* gemm_emulated.c: the kernels for many rows of 9.0 (cuda/gemm_sm90.cu) without a GPU, on the driver of tests/cuda/emulate: whole and partial tiles,
 * few and many groups, rows as they stand and gathered, experts with no, few and many rows, sums on top of what is there. Compared with the
 * definition (docs/arithmetic.md, section 4) by bits. */
#include "cuda/gemm.h"
#include "../cuda/fake_map.h"
#include "../support/emulated.h"
#include "../support/random.h"
#include "kernels/kernels.h"
#include "kernels/num.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

typedef struct shape {
    int n_out, groups, rows, experts, gathered, add;
} shape;
static const shape shapes[] = {{64, 8, 20, 0, 0, 0},  {300, 3, 70, 0, 0, 1}, {257, 11, 64, 0, 1, 0}, {128, 16, 130, 0, 0, 0},
                               {200, 9, 150, 5, 1, 0}, {96, 8, 120, 7, 1, 1}, {64, 17, 33, 3, 0, 0}};

typedef struct bench {
    cu_linear a;
    int16_t *xi, *wi;        /* [rows of x][k], [stored rows][k] */
    uint8_t *codes;
    float *s, *b, *y, *want;
    int32_t *x_row, *y_row, *at;
    int stored, x_rows, y_rows;
} bench;

static void make_activations(bench *t, int k, int pack)
{
    int G = t->a.w.n_groups, stride = (int)cb_plane_stride(k, pack);
    t->xi = room((size_t)t->x_rows * (size_t)k * 2);
    t->a.x = (cu_planes){.planes = room((size_t)t->x_rows * (size_t)stride), .dx = room((size_t)(t->x_rows * G) * 4), .xs = room((size_t)(t->x_rows * G) * 4),
                         .stride = stride, .n_groups = G, .group = t->a.w.group, .pack = pack, .n_rows = t->x_rows};
    for (int r = 0; r < t->x_rows; r++)
        for (int e = 0; e < k; e++) {
            int v = (int)(rnd() % (2 * CB_XI_MAX + 1)) - CB_XI_MAX, hi = (v + 128) >> 8, m = e % (64 * pack);
            if (r % 3 == 1) v = e % 128 < 64 ? CB_XI_MAX : -CB_XI_MAX, hi = (v + 128) >> 8; /* sums that float does not hold */
            int8_t *at = t->a.x.planes + (size_t)r * (size_t)stride + e / (64 * pack) * 128 * pack + m % pack * 64 + m / pack;
            t->xi[r * k + e] = (int16_t)v;
            at[0] = (int8_t)hi;
            at[64 * pack] = (int8_t)(v - 256 * hi);
        }
    for (int i = 0; i < t->x_rows * G; i++) {
        t->a.x.dx[i] = uniform() * 0.001f;
        t->a.x.xs[i] = uniform();
    }
}

static void make_weights(bench *t, const cu_gemm *g, const shape *s)
{
    bool planes = g->fmt == CU_FMT_PLANES;
    int k = g->group * s->groups, expert_rows = s->experts ? s->n_out + 3 : s->n_out;
    t->stored = s->experts ? (s->experts - 1) * expert_rows + s->n_out : s->n_out;
    t->a.w = (cu_weight){.row_bytes = planes ? 128 * s->groups : k * g->bits / 8, .expert_rows = expert_rows, .n_out = s->n_out, .k = k, .fmt = g->fmt, .bits = g->bits,
                         .group = g->group, .n_groups = s->groups, .scale_type = CU_S_F32, .pack = planes ? 1 : cb_pack_of_bits(g->bits)};
    size_t n = (size_t)t->stored * (size_t)k, scales = (size_t)(t->stored * s->groups);
    t->wi = room(n * 2);
    t->codes = room((size_t)t->stored * (size_t)t->a.w.row_bytes);
    t->s = room(scales * 4);
    t->b = room(scales * 4);
    for (size_t i = 0; i < n; i++) {
        if (planes) {
            int v = (int)(rnd() % (2 * CB_XI_MAX + 1)) - CB_XI_MAX, hi = (v + 128) >> 8;
            t->wi[i] = (int16_t)v;
            t->codes[i / 64 * 128 + i % 64] = (uint8_t)hi;
            t->codes[i / 64 * 128 + 64 + i % 64] = (uint8_t)(v - 256 * hi);
        } else {
            int v = (int)(rnd() >> 8 & ((1u << g->bits) - 1));
            if (i / (size_t)k % 5 == 2) v = (1 << g->bits) - 1;
            t->wi[i] = (int16_t)v;
            t->codes[i * (size_t)g->bits / 8] |= (uint8_t)(v << i * (size_t)g->bits % 8);
        }
    }
    for (size_t i = 0; i < scales; i++) {
        t->s[i] = uniform();
        t->b[i] = uniform();
    }
    t->a.w.codes = t->codes;
    t->a.w.scales = (uint8_t *)t->s;
    t->a.w.biases = planes ? NULL : (uint8_t *)t->b;
}

static void make_rows(bench *t, const shape *s)
{
    t->x_rows = s->gathered ? 37 : s->rows;
    t->y_rows = s->rows + 3;
    t->x_row = room((size_t)s->rows * 4);
    t->y_row = room((size_t)s->rows * 4);
    t->at = room((size_t)(s->experts + 1) * 4);
    for (int r = 0; r < s->rows; r++) {
        t->x_row[r] = (int)(rnd() % (unsigned)t->x_rows);
        t->y_row[r] = t->y_rows - 1 - r;
    }
    for (int e = 1; e <= s->experts; e++) { /* none, few, many */
        int rows = e % 3 == 1 ? 0 : e % 3 == 2 ? 5 : 70;
        t->at[e] = e == s->experts || t->at[e - 1] + rows > s->rows ? s->rows : t->at[e - 1] + rows;
    }
    t->a.x_row = s->gathered ? t->x_row : NULL;
    t->a.y_row = s->gathered ? t->y_row : NULL;
    t->a.expert_at = s->experts ? t->at : NULL;
    t->a.n_experts = s->experts;
    t->a.n_rows = s->rows;
    t->a.add = s->add;
    t->a.y_stride = s->gathered ? s->n_out + 1 : s->n_out;
}

static float expected(const bench *t, int expert, int row, int n)
{
    const cu_weight *w = &t->a.w;
    int64_t G = w->n_groups, at = expert * w->expert_rows + n;
    float y = 0;
    for (int l = 0; l < CU_SEGMENTS; l++) {
        float sum = 0;
        for (int64_t g = l * G / CU_SEGMENTS; g < (l + 1) * G / CU_SEGMENTS; g++) {
            int64_t d = 0;
            for (int k = 0; k < w->group; k++) d += (int64_t)t->wi[at * w->k + g * w->group + k] * t->xi[(int64_t)row * w->k + g * w->group + k];
            float p = t->a.x.dx[row * G + g] * (float)d;
            if (w->biases) sum = cb_fma(t->b[at * G + g], t->a.x.xs[row * G + g], sum);
            sum = cb_fma(t->s[at * G + g], p, sum);
        }
        y = l ? y + sum : sum;
    }
    return y;
}

static void launch(const cu_gemm *g, bench *t)
{
    cu_gemm_args *args = room(sizeof *args);
    args->a = t->a;
    fake_map w = {t->codes, (uint64_t)t->a.w.row_bytes, (uint64_t)t->stored, (uint64_t)t->a.w.row_bytes, (uint32_t)g->w_box, (uint32_t)g->rt, (uint32_t)g->w_box, 1};
    fake_map x = {(const unsigned char *)t->a.x.planes, (uint64_t)t->a.x.stride, (uint64_t)t->a.n_rows, (uint64_t)t->a.x.stride, 128, (uint32_t)g->tt, 128, 1};
    if (g->w_box) memcpy(args->w_map, &w, sizeof w);
    if (g->w_box && !t->a.x_row) memcpy(args->x_map, &x, sizeof x);
    fake_kernel kernel = emulated_kernel(g->kernel, sizeof *args);
    kernel(args, &(fake_grid){.blocks = {(unsigned)cu_gemm_grid(g, &t->a, 3), 1, 1}, .threads = (unsigned)g->block, .shared = (unsigned)g->shared});
    free(args);
}

static void check(const cu_gemm *g, const shape *s)
{
    bench t = {.stored = 0};
    make_rows(&t, s);
    make_weights(&t, g, s);
    make_activations(&t, t.a.w.k, t.a.w.pack);
    size_t n = (size_t)t.y_rows * (size_t)t.a.y_stride;
    t.a.y = t.y = room(n * 4);
    t.want = room(n * 4);
    for (size_t i = 0; i < n; i++) t.y[i] = t.want[i] = (float)(i % 100);
    for (int r = 0, e = 0; r < s->rows; r++) {
        while (s->experts && t.at[e + 1] <= r) e++;
        float *want = t.want + (s->gathered ? t.y_row[r] : r) * t.a.y_stride;
        for (int i = 0; i < s->n_out; i++) {
            float y = expected(&t, e, s->gathered ? t.x_row[r] : r, i);
            want[i] = s->add ? want[i] + y : y;
        }
    }
    launch(g, &t);
    for (size_t i = 0; i < n; i++)
        if (memcmp(&t.y[i], &t.want[i], 4))
            fail_msg("%s, %d outputs, %d groups, %d rows, %d experts: row %zu, column %zu: %a, not %a", g->kernel, s->n_out, s->groups, s->rows, s->experts,
                     i / (size_t)t.a.y_stride, i % (size_t)t.a.y_stride, t.y[i], t.want[i]);
    void *all[] = {t.a.x.planes, t.a.x.dx, t.a.x.xs, t.xi, t.wi, t.codes, t.s, t.b, t.y, t.want, t.x_row, t.y_row, t.at};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static void test_kernels(void **state)
{
    (void)state;
    if (!emulated.lib) skip();
    const char *only = getenv("CB_TEST_ONLY");
    for (int i = 0; i < CU_GEMMS; i++)
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes && cu_gemms[i].cc == 90; k++)
            if (!only || strstr(cu_gemms[i].kernel, only)) check(&cu_gemms[i], &shapes[k]);
}

/* Warps and lanes have no order. */
static void test_backwards(void **state) { emulated_backwards(test_kernels, state); }

int main(void)
{
    emulated_open();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kernels), cmocka_unit_test(test_backwards)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
