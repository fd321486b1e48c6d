/* rows.c: activation planes, norms, activations, rotation: every level against scalar C. */
#include "kt.h"

static kt_levels L;
static const int sizes[] = {1,  2,  3,   7,   8,   15,  16,  17,  31,  32,  33,  48,   63,   64,   65,   96,  100,
                            127, 128, 129, 191, 256, 320, 513, 576, 640, 704, 1536, 2048, 2112, 4304};

static void test_quant_row(void **state)
{
    (void)state;
    static const int groups[] = {16, 32, 64, 128}, packs[] = {1, 2, 4, 8};
    kt_rng r = kt_seed(1);
    for (int i = 0; i < L.n; i++) {
        if (!KT_OWN(&L, i, quant_row)) continue;
        for (int s = 0; s < KT_COUNT(sizes) * 16; s++) {
            int n = sizes[s / 16], group = groups[s / 4 % 4], pack = packs[s % 4], G = (n + group - 1) / group;
            size_t stride = cb_plane_stride(n, pack), off = (size_t)kt_below(&r, 2) * 4;
            kt_buf x = kt_alloc((size_t)n * 4, off), p0 = kt_alloc(stride, 0), p1 = kt_alloc(stride, 0);
            kt_buf f0 = kt_alloc((size_t)G * 12, 0), f1 = kt_alloc((size_t)G * 4, off), f2 = kt_alloc((size_t)G * 4, 0),
                   f3 = kt_alloc((size_t)G * 4, off);
            for (int rep = 0; rep < 3; rep++) {
                kt_activations(&r, kt_floats(&x), n);
                float *w = kt_floats(&f0);
                L.c.quant_row(kt_floats(&x), n, group, pack, (int8_t *)p0.p, w, w + G, (int32_t *)(void *)(w + 2 * G));
                L.k[i].quant_row(kt_floats(&x), n, group, pack, (int8_t *)p1.p, kt_floats(&f1), kt_floats(&f2),
                                 (int32_t *)(void *)f3.p);
                assert_true(kt_uppers_clean());
                kt_same_bytes(p0.p, p1.p, stride, "%s quant_row planes n %d group %d pack %d", L.k[i].name, n, group, pack);
                kt_same_bytes(w, f1.p, f1.n, "%s quant_row dx n %d group %d pack %d", L.k[i].name, n, group, pack);
                kt_same_bytes(w + G, f2.p, f2.n, "%s quant_row xs n %d group %d pack %d", L.k[i].name, n, group, pack);
                kt_same_bytes(w + 2 * G, f3.p, f3.n, "%s quant_row sum n %d group %d pack %d", L.k[i].name, n, group, pack);
            }
            kt_free(&x), kt_free(&p0), kt_free(&p1), kt_free(&f0), kt_free(&f1), kt_free(&f2), kt_free(&f3);
        }
    }
}

static void test_quant16(void **state)
{
    (void)state;
    kt_rng r = kt_seed(2);
    for (int i = 0; i < L.n; i++) {
        if (!KT_OWN(&L, i, quant16)) continue;
        for (int s = 0; s < KT_COUNT(sizes) * 4; s++) {
            int n = sizes[s / 4];
            kt_buf x = kt_alloc((size_t)n * 4, (size_t)kt_below(&r, 2) * 4), a = kt_alloc((size_t)n * 2, 0),
                   b = kt_alloc((size_t)n * 2, (size_t)kt_below(&r, 4) * 2);
            kt_activations(&r, kt_floats(&x), n);
            float d0 = L.c.quant16(kt_floats(&x), n, (int16_t *)(void *)a.p);
            float d1 = L.k[i].quant16(kt_floats(&x), n, (int16_t *)(void *)b.p);
            kt_same(&d0, &d1, 1, "%s quant16 dx n %d", L.k[i].name, n);
            kt_same_bytes(a.p, b.p, a.n, "%s quant16 n %d", L.k[i].name, n);
            kt_free(&x), kt_free(&a), kt_free(&b);
        }
    }
}

/* Scalar against cb_encode_planes of the decoded floats, then each level against scalar. */
static void test_encode_row(void **state)
{
    (void)state;
    static const cb_dtype types[] = {CB_BF16, CB_F16, CB_F32};
    kt_rng r = kt_seed(12);
    for (int s = 0; s < KT_COUNT(sizes) * 3 * 3; s++) {
        cb_dtype t = types[s % 3];
        int n = sizes[s / 9], how = s / 3 % 3, G = (n + 63) / 64;
        size_t size = cb_dtype_size(t);
        kt_buf p = kt_alloc((size_t)n * size, (size_t)kt_below(&r, 8)), x = kt_alloc((size_t)n * 4, 0);
        kt_buf a = kt_alloc((size_t)G * 128, 0), b = kt_alloc((size_t)G * 128, 0), fa = kt_alloc((size_t)G * 4, 0), fb = kt_alloc((size_t)G * 4, 4);
        bool finite = true;
        for (size_t i = 0; i < p.n; i++) { /* any bits; or finite ones; or finite ones and whole groups of zeros */
            p.p[i] = (uint8_t)kt_u64(&r);
            if (how && i % size == size - 1) p.p[i] &= 0xbf;
            if (how == 2 && i / size / 64 % 3 == 1) p.p[i] = 0;
        }
        for (int i = 0; i < n; i++) {
            kt_floats(&x)[i] = cb_load_float(p.p, t, (size_t)i);
            finite &= isfinite(kt_floats(&x)[i]) != 0;
        }
        assert_int_equal(L.c.encode_row(p.p, t, n, b.p, kt_floats(&fb)), finite);
        cb_encode_planes(kt_floats(&x), n, a.p, kt_floats(&fa));
        if (finite) kt_same_bytes(a.p, b.p, a.n, "c encode_row n %d dtype %d", n, t);
        if (finite) kt_same_bytes(fa.p, fb.p, fa.n, "c encode_row scales n %d dtype %d", n, t);
        for (int i = 0; i < L.n; i++) {
            if (!KT_OWN(&L, i, encode_row)) continue;
            assert_int_equal(L.k[i].encode_row(p.p, t, n, b.p, kt_floats(&fb)), finite);
            if (finite) kt_same_bytes(a.p, b.p, a.n, "%s encode_row n %d dtype %d", L.k[i].name, n, t);
            if (finite) kt_same_bytes(fa.p, fb.p, fa.n, "%s encode_row scales n %d dtype %d", L.k[i].name, n, t);
        }
        kt_free(&p), kt_free(&x), kt_free(&a), kt_free(&b), kt_free(&fa), kt_free(&fb);
    }
}

/* Every number there is, in pieces of every size, in place and not. */
static void test_split16(void **state)
{
    (void)state;
    kt_rng r = kt_seed(8);
    for (int i = 0; i < L.n; i++) {
        if (!KT_OWN(&L, i, split16)) continue;
        for (int at = -32512, s = 0; at <= 32512; s++) {
            int n = sizes[s % KT_COUNT(sizes)];
            size_t b = (size_t)n * 2, o = (size_t)kt_below(&r, 2) * 2;
            kt_buf x = kt_alloc(b, o), h0 = kt_alloc(b, 0), l0 = kt_alloc(b, 0), h1 = kt_alloc(b, o), l1 = kt_alloc(b, 2 - o);
            for (int e = 0; e < n; e++) ((int16_t *)(void *)x.p)[e] = (int16_t)(at <= 32512 ? at++ : 32512);
            L.c.split16((int16_t *)(void *)h0.p, (int16_t *)(void *)l0.p, (int16_t *)(void *)x.p, n);
            kt_buf *h = s & 1 ? &x : &h1;
            L.k[i].split16((int16_t *)(void *)h->p, (int16_t *)(void *)l1.p, (int16_t *)(void *)x.p, n);
            assert_true(kt_uppers_clean());
            kt_same_bytes(h0.p, h->p, b, "%s split16 hi n %d", L.k[i].name, n);
            kt_same_bytes(l0.p, l1.p, b, "%s split16 lo n %d", L.k[i].name, n);
            kt_free(&x), kt_free(&h0), kt_free(&l0), kt_free(&h1), kt_free(&l1);
        }
    }
}

static void test_rmsnorm(void **state)
{
    (void)state;
    kt_rng r = kt_seed(3);
    for (int i = 0; i < L.n; i++) {
        if (!KT_OWN(&L, i, rmsnorm)) continue;
        for (int s = 0; s < KT_COUNT(sizes) * 8; s++) {
            int n = sizes[s / 8];
            size_t b = (size_t)n * 4, o = (size_t)kt_below(&r, 2) * 4;
            kt_buf x = kt_alloc(b, o), w = kt_alloc(b, 4 - o), y0 = kt_alloc(b, 0), y1 = kt_alloc(b, o);
            bool weighted = s & 1, in_place = s & 2;
            if (s & 4) kt_activations(&r, kt_floats(&x), n);
            for (int e = 0; e < n; e++) {
                if (!(s & 4)) kt_floats(&x)[e] = kt_unit(&r) * 4;
                kt_floats(&w)[e] = kt_unit(&r);
            }
            float s0 = L.c.sum_squares(kt_floats(&x), n), s1 = L.k[i].sum_squares(kt_floats(&x), n);
            kt_same(&s0, &s1, 1, "%s sum_squares n %d", L.k[i].name, n);
            const float *wp = weighted ? kt_floats(&w) : NULL, *src = kt_floats(&x);
            L.c.rmsnorm(kt_floats(&y0), src, wp, n, 1e-6f);
            if (in_place) memcpy(y1.p, x.p, b), src = kt_floats(&y1);
            L.k[i].rmsnorm(kt_floats(&y1), src, wp, n, 1e-6f);
            assert_true(kt_uppers_clean());
            kt_same(kt_floats(&y0), kt_floats(&y1), (size_t)n, "%s rmsnorm n %d", L.k[i].name, n);
            kt_free(&x), kt_free(&w), kt_free(&y0), kt_free(&y1);
        }
    }
}

/* The slots of two inputs and one output, at every size and with every special value; y may be either input. */
typedef void map2_fn(float *y, const float *a, const float *b, int n);

static void check_map2(const char *what, const char *level, map2_fn *want, map2_fn *got)
{
    static const uint32_t odd[] = {0,          0x80000000, 1,          0x807fffff, 0x7f800000, 0xff800000, 0x7fc00000,
                                   0xffc12345, 0x7f7fffff, 0xff7fffff, 0x42b00000, 0xc2ae0000, 0x42b00001, 0xc2ae0001};
    kt_rng r = kt_seed(4);
    for (int s = 0; s < KT_COUNT(sizes) * 3; s++) {
        int n = sizes[s / 3];
        size_t b = (size_t)n * 4, o = (size_t)kt_below(&r, 2) * 4;
        kt_buf x = kt_alloc(b, o), u = kt_alloc(b, 4 - o), y0 = kt_alloc(b, 0), y1 = kt_alloc(b, o);
        kt_activations(&r, kt_floats(&x), n);
        for (int e = 0; e < n; e++) {
            kt_floats(&u)[e] = kt_unit(&r) * 3;
            if (!kt_below(&r, 8)) kt_floats(&x)[e] = cb_u2f(odd[kt_below(&r, KT_COUNT(odd))]);
            else if (!kt_below(&r, 2)) kt_floats(&x)[e] = kt_unit(&r) * 100;
        }
        want(kt_floats(&y0), kt_floats(&x), kt_floats(&u), n);
        float *a = kt_floats(&x), *c = kt_floats(&u), *y = s % 3 == 0 ? kt_floats(&y1) : s % 3 == 1 ? a : c;
        got(y, a, c, n);
        assert_true(kt_uppers_clean());
        kt_same(kt_floats(&y0), y, (size_t)n, "%s %s n %d", level, what, n);
        kt_free(&x), kt_free(&u), kt_free(&y0), kt_free(&y1);
    }
    /* a dense sample of all floats */
    enum { N = 1 << 14 };
    static float x[N], u[N], y0[N], y1[N];
    uint32_t step = 4099;
    for (uint64_t at = 0; at < 1ULL << 32;) {
        for (int e = 0; e < N; e++, at += step) x[e] = cb_u2f((uint32_t)at), u[e] = 1;
        want(y0, x, u, N);
        got(y1, x, u, N);
        assert_true(kt_uppers_clean());
        kt_same(y0, y1, N, "%s %s, all floats, from %08x", level, what, (unsigned)(at - (uint64_t)N * step));
    }
}
static void test_map2(void **state)
{
    (void)state;
    for (int i = 0; i < L.n; i++) {
        if (KT_OWN(&L, i, silu_mul)) check_map2("silu_mul", L.k[i].name, L.c.silu_mul, L.k[i].silu_mul);
        if (KT_OWN(&L, i, gelu_mul)) check_map2("gelu_mul", L.k[i].name, L.c.gelu_mul, L.k[i].gelu_mul);
        if (KT_OWN(&L, i, add)) check_map2("add", L.k[i].name, L.c.add, L.k[i].add);
    }
}

static const cb_kernels *one_table; /* map1 slots seen as map2: the parameter is fixed */
static void softcap_30(float *y, const float *a, const float *b, int n)
{
    (void)b;
    one_table->softcap(y, a, 30.0f, n);
}
static void softcap_30_c(float *y, const float *a, const float *b, int n)
{
    (void)b;
    L.c.softcap(y, a, 30.0f, n);
}
static void scale_third(float *y, const float *a, const float *b, int n)
{
    (void)b;
    one_table->scale(y, a, 1.0f / 3, n);
}
static void scale_third_c(float *y, const float *a, const float *b, int n)
{
    (void)b;
    L.c.scale(y, a, 1.0f / 3, n);
}
static void third_part(float *y, const float *a, const float *b, int n)
{
    (void)b;
    one_table->divide(y, a, 3.0f, n);
}
static void third_part_c(float *y, const float *a, const float *b, int n)
{
    (void)b;
    L.c.divide(y, a, 3.0f, n);
}
static void test_map1(void **state)
{
    (void)state;
    for (int i = 0; i < L.n; i++) {
        one_table = &L.k[i];
        if (KT_OWN(&L, i, softcap)) check_map2("softcap", L.k[i].name, softcap_30_c, softcap_30);
        if (KT_OWN(&L, i, divide)) check_map2("divide", L.k[i].name, third_part_c, third_part);
        if (KT_OWN(&L, i, scale)) check_map2("scale", L.k[i].name, scale_third_c, scale_third);
    }
}

static void test_rope(void **state)
{
    (void)state;
    kt_rng r = kt_seed(5);
    for (int i = 0; i < L.n; i++) {
        if (!KT_OWN(&L, i, rope)) continue;
        for (int s = 0; s < 400; s++) {
            int pairs = 1 + kt_below(&r, s < 200 ? 40 : 256), half = pairs + (s & 1 ? kt_below(&r, 30) : 0);
            size_t o = (size_t)kt_below(&r, 2) * 4, b = (size_t)(half + pairs) * 4;
            kt_buf x = kt_alloc(b, o), y = kt_alloc(b, 4 - o), cs = kt_alloc((size_t)pairs * 8, o);
            kt_activations(&r, kt_floats(&x), half + pairs);
            memcpy(y.p, x.p, b);
            for (int e = 0; e < 2 * pairs; e++) kt_floats(&cs)[e] = kt_unit(&r);
            L.c.rope(kt_floats(&x), kt_floats(&cs), pairs, half);
            L.k[i].rope(kt_floats(&y), kt_floats(&cs), pairs, half);
            assert_true(kt_uppers_clean());
            kt_same(kt_floats(&x), kt_floats(&y), b / 4, "%s rope pairs %d half %d", L.k[i].name, pairs, half);
            kt_free(&x), kt_free(&y), kt_free(&cs);
        }
    }
}

static void test_all_finite(void **state)
{
    (void)state;
    static const uint32_t bad[] = {0x7f800000, 0xff800000, 0x7fc00000, 0xffffffff, 0x7f800001};
    kt_rng r = kt_seed(6);
    for (int i = 0; i < L.n; i++) {
        if (!KT_OWN(&L, i, all_finite)) continue;
        assert_true(L.k[i].all_finite(NULL, 0));
        for (int s = 0; s < KT_COUNT(sizes) * 8; s++) {
            int n = sizes[s / 8];
            kt_buf x = kt_alloc((size_t)n * 4, (size_t)kt_below(&r, 2) * 4);
            kt_activations(&r, kt_floats(&x), n);
            kt_floats(&x)[kt_below(&r, n)] = 3.4028235e38f;
            assert_true(L.k[i].all_finite(kt_floats(&x), n));
            kt_floats(&x)[s & 1 ? n - 1 : kt_below(&r, n)] = cb_u2f(bad[kt_below(&r, KT_COUNT(bad))]);
            assert_false(L.k[i].all_finite(kt_floats(&x), n));
            kt_free(&x);
        }
    }
}

int main(void)
{
    L = kt_levels_get();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_quant_row), cmocka_unit_test(test_quant16), cmocka_unit_test(test_encode_row),
                                       cmocka_unit_test(test_split16), cmocka_unit_test(test_rmsnorm),   cmocka_unit_test(test_map2),
                                       cmocka_unit_test(test_map1),      cmocka_unit_test(test_rope),
                                       cmocka_unit_test(test_all_finite)};
    return cmocka_run_group_tests_name("kernel/rows", tests, NULL, NULL);
}
