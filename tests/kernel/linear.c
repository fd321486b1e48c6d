/* linear.c: the product slot of every level against scalar C: all formats, widths, groups, scale types, row counts, ranges,
 * gathers and alignments. A systematic part walks formats x sizes; a random part mixes everything. */
#include "kt.h"

static kt_levels L;

typedef struct lin {
    cb_fmt fmt;
    int bits, group, k, n, rows;
    cb_scale_type st;
    bool add, gather;
    int off; /* misalignment of codes; scales and biases take others derived from it */
} lin;

static const char *const fmt_name[] = {"affine", "fp4", "planes"}, *const st_name[] = {"f32", "f16", "bf16", "e8m0", "e4m3"};

typedef struct lin_data {
    cb_mm mm;
    kt_buf codes, scales, biases, planes, dx, xs, sum, x_row, y_row, want, got, scratch;
} lin_data;

static int pack_of(const lin *c) { return c->fmt == CB_FMT_FP4 ? 2 : c->fmt == CB_FMT_PLANES ? 1 : cb_pack_of_bits(c->bits); }

static void make_weights(kt_rng *r, const lin *c, lin_data *d, int G)
{
    size_t row = c->fmt == CB_FMT_PLANES ? (size_t)G * 128 : (size_t)c->k * (size_t)c->bits / 8;
    size_t sc = kt_scale_size(c->st) * (size_t)G * (size_t)c->n;
    bool al = c->st == CB_S_F32 && c->fmt == CB_FMT_PLANES;
    d->codes = kt_alloc(row * (size_t)c->n, (size_t)c->off);
    d->scales = kt_alloc(sc, al ? 0 : (size_t)(c->off * 3 & 7));
    d->biases = kt_alloc(c->fmt == CB_FMT_AFFINE ? sc : 0, (size_t)(c->off * 5 & 7));
    for (int64_t i = 0; i < (int64_t)G * c->n; i++) {
        kt_scale(r, d->scales.p, c->st, i);
        if (c->fmt == CB_FMT_AFFINE) kt_scale(r, d->biases.p, c->st, i);
    }
    if (c->fmt != CB_FMT_PLANES) {
        for (size_t i = 0; i < d->codes.n; i++) d->codes.p[i] = (uint8_t)(kt_u64(r) >> 24);
        if (kt_below(r, 5) == 0) memset(d->codes.p, 0xff, d->codes.n); /* the largest sums */
    } else {
        float *w = malloc((size_t)c->k * 4), *s = malloc((size_t)G * 4);
        for (int n = 0; n < c->n; n++) {
            kt_activations(r, w, c->k);
            if (kt_below(r, 6) == 0)
                for (int i = 0; i < c->k; i++) w[i] = 1.5f; /* |D| beyond 2^31 with equal activations */
            cb_encode_planes(w, c->k, d->codes.p + row * (size_t)n, s);
            memcpy(d->scales.p + (size_t)n * (size_t)G * 4, s, (size_t)G * 4);
        }
        free(w), free(s);
    }
    d->mm.codes = d->codes.p, d->mm.row_bytes = row;
    d->mm.scales = d->scales.p, d->mm.biases = d->biases.n ? d->biases.p : NULL;
}

static void make_rows(kt_rng *r, const lin *c, lin_data *d, int G)
{
    int n_x = c->gather ? 1 + kt_below(r, c->rows + 2) : c->rows, n_y = c->gather ? c->rows + 3 : c->rows;
    size_t ps = cb_plane_stride(c->k, pack_of(c)), off = (size_t)(c->off & 1) * 4;
    d->planes = kt_alloc((size_t)n_x * ps, 0);
    d->dx = kt_alloc((size_t)(n_x * G) * 4, off), d->xs = kt_alloc((size_t)(n_x * G) * 4, 4 - off);
    d->sum = kt_alloc((size_t)(n_x * G) * 4, off);
    float *x = malloc((size_t)c->k * 4);
    for (int i = 0; i < n_x; i++) {
        kt_activations(r, x, c->k);
        if (kt_below(r, 6) == 0)
            for (int e = 0; e < c->k; e++) x[e] = i & 1 ? -2.0f : 2.0f;
        L.c.quant_row(x, c->k, c->group, pack_of(c), (int8_t *)d->planes.p + (size_t)i * ps, kt_floats(&d->dx) + i * G,
                      kt_floats(&d->xs) + i * G, (int32_t *)(void *)d->sum.p + i * G);
    }
    free(x);
    d->mm.x = (cb_qrows){(int8_t *)d->planes.p, kt_floats(&d->dx), kt_floats(&d->xs), (int32_t *)(void *)d->sum.p, ps, G};
    d->x_row = kt_alloc((size_t)c->rows * 4, off), d->y_row = kt_alloc((size_t)c->rows * 4, off);
    int32_t *xr = (int32_t *)(void *)d->x_row.p, *yr = (int32_t *)(void *)d->y_row.p;
    for (int i = 0; i < c->rows; i++) {
        xr[i] = kt_below(r, n_x);
        yr[i] = n_y - 1 - i; /* distinct rows */
    }
    for (int i = c->rows - 1; i > 0; i--) {
        int j = kt_below(r, i + 1), t = yr[i];
        yr[i] = yr[j], yr[j] = t;
    }
    if (c->gather) d->mm.x_row = xr, d->mm.y_row = yr;
    d->mm.y_stride = (size_t)c->n + (size_t)kt_below(r, 3);
    size_t y = (size_t)(n_y - 1) * d->mm.y_stride + (size_t)c->n;
    d->want = kt_alloc(y * 4, 0), d->got = kt_alloc(y * 4, off);
}

static void free_data(lin_data *d)
{
    kt_buf *b[] = {&d->codes, &d->scales, &d->biases, &d->planes, &d->dx, &d->xs,
                   &d->sum,   &d->x_row,  &d->y_row,  &d->want,   &d->got, &d->scratch};
    for (int i = 0; i < KT_COUNT(b); i++) kt_free(b[i]);
}

static void check(kt_rng *r, const lin *c)
{
    int G = (c->k + c->group - 1) / c->group;
    lin_data d = {.mm = {.fmt = c->fmt, .bits = c->bits, .group = c->group, .n_groups = G, .k = c->k, .scale_type = c->st,
                         .global_scale = kt_below(r, 2) ? 1.0f : 0.37f, .n_rows = c->rows, .add = c->add}};
    make_weights(r, c, &d, G);
    make_rows(r, c, &d, G);
    size_t ny = d.want.n / 4, scratch = (cb_linear_scratch(c->k) + 63) / 64 * 64;
    d.scratch = kt_alloc(scratch, 0);
    int64_t n0 = 0, n1 = c->n;
    if (kt_below(r, 2)) {
        n0 = (int64_t)kt_below(r, (c->n + 15) / 16) * CB_ROW_UNIT;
        n1 = n0 + 1 + kt_below(r, (int)(c->n - n0));
    }
    for (size_t i = 0; i < ny; i++) kt_floats(&d.want)[i] = kt_unit(r);
    kt_buf start = kt_alloc(ny * 4, 0);
    memcpy(start.p, d.want.p, ny * 4);
    d.mm.y = kt_floats(&d.want);
    L.c.linear(&d.mm, n0, n1, d.scratch.p);
    d.mm.y = kt_floats(&d.got);
    for (int i = 0; i < L.n; i++) {
        if (!KT_OWN(&L, i, linear)) continue;
        memcpy(d.got.p, start.p, ny * 4);
        memset(d.scratch.p, i & 1 ? 0xff : 0xa5, scratch);
        L.k[i].linear(&d.mm, n0, n1, d.scratch.p);
        assert_true(kt_uppers_clean());
        kt_same(kt_floats(&d.want), kt_floats(&d.got), ny,
                "%s linear %s bits %d group %d scales %s k %d n %d..%d of %d (stride %zu) rows %d add %d gather %d off %d",
                L.k[i].name, fmt_name[c->fmt], c->bits, c->group, st_name[c->st], c->k, (int)n0, (int)n1, c->n,
                d.mm.y_stride, c->rows, c->add, c->gather, c->off);
    }
    kt_free(&start);
    free_data(&d);
}

static const int ks[] = {32, 64, 96, 128, 160, 256, 320, 576, 640, 704, 1536, 2048, 2112, 4304};
static const int row_counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 33, 64}, n_counts[] = {1, 15, 16, 17, 31, 32, 48, 192};

static int small_n(int k) { return k > 1000 ? 17 : 49; } /* scalar C is slow */

static void walk(uint64_t salt, cb_fmt fmt, int bits, const int *groups, int n_groups, const cb_scale_type *types, int n_types)
{
    kt_rng r = kt_seed(salt);
    int at = 0;
    for (int g = 0; g < n_groups; g++)
        for (int t = 0; t < n_types; t++)
            for (int i = 0; i < KT_COUNT(ks); i++, at++) {
                lin c = {fmt, bits, groups[g], ks[i], 1 + kt_below(&r, small_n(ks[i])), 1 + kt_below(&r, 4), types[t],
                         at & 1, at & 2, at & 7};
                if (fmt != CB_FMT_PLANES && c.k % c.group && kt_below(&r, 4)) continue; /* ragged last groups: fewer */
                if (at % 5 == 0) c.rows = row_counts[kt_below(&r, KT_COUNT(row_counts))];
                check(&r, &c);
            }
}

static const cb_scale_type affine_types[] = {CB_S_F16, CB_S_BF16, CB_S_F32};
static const int affine_groups[] = {64, 32, 128};

static void test_affine(void **state)
{
    int bits = *(int *)*state;
    walk(100 + (uint64_t)bits, CB_FMT_AFFINE, bits, affine_groups, 3, affine_types, 3);
}
static void test_fp4(void **state)
{
    (void)state;
    static const int g16 = 16, g32 = 32;
    static const cb_scale_type e4 = CB_S_E4M3, e8 = CB_S_E8M0;
    walk(120, CB_FMT_FP4, 4, &g16, 1, &e4, 1);
    walk(121, CB_FMT_FP4, 4, &g32, 1, &e8, 1);
    walk(122, CB_FMT_FP4, 4, &g32, 1, &e4, 1);
}
static void test_planes(void **state)
{
    (void)state;
    static const int g64 = 64;
    static const cb_scale_type f32 = CB_S_F32;
    for (uint64_t s = 130; s < 134; s++) walk(s, CB_FMT_PLANES, 8, &g64, 1, &f32, 1);
}

/* Every row count with the formats that have kernels of their own for many rows. */
static void test_row_counts(void **state)
{
    (void)state;
    static const lin base[] = {{CB_FMT_AFFINE, 4, 64, 320, 0, 0, CB_S_BF16, 0, 0, 0},
                               {CB_FMT_AFFINE, 4, 32, 576, 0, 0, CB_S_F16, 0, 0, 0},
                               {CB_FMT_AFFINE, 2, 128, 640, 0, 0, CB_S_F16, 0, 0, 0},
                               {CB_FMT_AFFINE, 8, 32, 96, 0, 0, CB_S_F16, 0, 0, 0},
                               {CB_FMT_AFFINE, 6, 64, 128, 0, 0, CB_S_F32, 0, 0, 0},
                               {CB_FMT_FP4, 4, 32, 128, 0, 0, CB_S_E8M0, 0, 0, 0},
                               {CB_FMT_PLANES, 8, 64, 160, 0, 0, CB_S_F32, 0, 0, 0}};
    kt_rng r = kt_seed(140);
    for (int b = 0; b < KT_COUNT(base); b++)
        for (int i = 0; i < KT_COUNT(row_counts); i++) {
            lin c = base[b];
            c.rows = row_counts[i], c.n = n_counts[(i + b) % KT_COUNT(n_counts)], c.off = i & 7, c.add = i & 1, c.gather = i & 2;
            if (c.n > 48 && c.rows > 17) c.n = 47;
            check(&r, &c);
        }
}

/* Many outputs: a kernel may walk the rows in another order than they stand in, with rests of its own at the end. */
static void test_many_outputs(void **state)
{
    (void)state;
    static const lin base[] = {{CB_FMT_AFFINE, 4, 64, 128, 0, 0, CB_S_BF16, 0, 0, 0},
                               {CB_FMT_AFFINE, 2, 128, 384, 0, 0, CB_S_F16, 0, 0, 0},
                               {CB_FMT_FP4, 4, 32, 64, 0, 0, CB_S_E8M0, 0, 0, 0},
                               {CB_FMT_PLANES, 8, 64, 64, 0, 0, CB_S_F32, 0, 0, 0}};
    static const int outputs[] = {240, 241, 257, 256, 271, 512, 4080, 4081, 4096, 4097, 4111, 5000};
    kt_rng r = kt_seed(145);
    for (int b = 0; b < KT_COUNT(base); b++)
        for (int i = 0; i < KT_COUNT(outputs); i++) {
            lin c = base[b];
            c.n = outputs[i], c.rows = 1 + i % 2 * kt_below(&r, 4), c.off = i & 7, c.add = i & 1, c.gather = i & 2;
            check(&r, &c);
        }
}

static void test_random(void **state)
{
    (void)state;
    static const int widths[] = {1, 2, 3, 4, 4, 5, 6, 8};
    kt_rng r = kt_seed(150);
    for (int i = kt_rounds(250); i > 0; i--) {
        int kind = kt_below(&r, 8);
        lin c = {.fmt = kind < 6 ? CB_FMT_AFFINE : kind < 7 ? CB_FMT_FP4 : CB_FMT_PLANES, .add = kt_below(&r, 2),
                 .gather = kt_below(&r, 2), .off = kt_below(&r, 8)};
        c.bits = c.fmt == CB_FMT_AFFINE ? widths[kt_below(&r, 8)] : c.fmt == CB_FMT_FP4 ? 4 : 8;
        c.group = c.fmt == CB_FMT_AFFINE ? 32 << kt_below(&r, 3) : c.fmt == CB_FMT_FP4 ? 16 << kt_below(&r, 2) : 64;
        c.k = kt_below(&r, 2) ? c.group * (1 + kt_below(&r, 20)) : 8 * (1 + kt_below(&r, 90));
        c.n = kt_below(&r, 2) ? n_counts[kt_below(&r, 7)] : 1 + kt_below(&r, 70);
        c.rows = kt_below(&r, 2) ? row_counts[kt_below(&r, 14)] : 1 + kt_below(&r, 20);
        c.st = c.fmt == CB_FMT_AFFINE ? affine_types[kt_below(&r, 3)]
               : c.fmt == CB_FMT_FP4  ? (kt_below(&r, 2) ? CB_S_E8M0 : CB_S_E4M3)
                                      : CB_S_F32;
        check(&r, &c);
    }
}

int main(void)
{
    L = kt_levels_get();
    static int w[] = {1, 2, 3, 4, 5, 6, 8};
    int *p[] = {&w[0], &w[1], &w[2], &w[3], &w[4], &w[5], &w[6]};
    const struct CMUnitTest tests[] = {
        {"affine 1", test_affine, NULL, NULL, p[0]}, {"affine 2", test_affine, NULL, NULL, p[1]},
        {"affine 3", test_affine, NULL, NULL, p[2]}, {"affine 4", test_affine, NULL, NULL, p[3]},
        {"affine 5", test_affine, NULL, NULL, p[4]}, {"affine 6", test_affine, NULL, NULL, p[5]},
        {"affine 8", test_affine, NULL, NULL, p[6]}, cmocka_unit_test(test_fp4),
        cmocka_unit_test(test_planes),               cmocka_unit_test(test_row_counts),
        cmocka_unit_test(test_many_outputs),         cmocka_unit_test(test_random)};
    return cmocka_run_group_tests_name("kernel/linear", tests, NULL, NULL);
}
