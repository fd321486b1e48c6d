/* hybrid.c: rotation, convolution, delta rule and gates: every level against scalar C. */
#include "kt.h"

static kt_levels L;
static const int sizes[] = {1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 96, 100, 127, 128, 129, 256, 513, 576, 2048, 2112};
static const uint32_t odd[] = {0,          0x80000000, 1,          0x807fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0x7f7fffff,
                               0xff7fffff, 0x42b00000, 0xc2ae0000, 0x42b00001, 0xc2ae0001, 0x3f800000, 0xbf800000};

static size_t some_off(kt_rng *r) { return (size_t)kt_below(r, 2) * 4; }
static kt_buf floats(kt_rng *r, int n)
{
    kt_buf b = kt_alloc((size_t)n * 4, some_off(r));
    kt_activations(r, kt_floats(&b), n);
    return b;
}
/* With special values among them. */
static kt_buf any_floats(kt_rng *r, int n)
{
    kt_buf b = floats(r, n);
    for (int e = 0; e < n; e++)
        if (!kt_below(r, 8)) kt_floats(&b)[e] = cb_u2f(odd[kt_below(r, KT_COUNT(odd))]);
        else if (!kt_below(r, 2)) kt_floats(&b)[e] = kt_unit(r) * 100;
    return b;
}
static kt_buf copy(const kt_buf *b, size_t off)
{
    kt_buf c = kt_alloc(b->n, off);
    memcpy(c.p, b->p, b->n);
    return c;
}

static void test_axpy(void **state)
{
    (void)state;
    kt_rng r = kt_seed(21);
    for (int i = 0; i < L.n; i++) {
        if (!KT_OWN(&L, i, axpy)) continue;
        for (int s = 0; s < KT_COUNT(sizes) * 6; s++) {
            int n = sizes[s / 6];
            kt_buf x = floats(&r, n), y = floats(&r, n), z = copy(&y, some_off(&r));
            float a = s % 6 ? kt_unit(&r) : -0.0f;
            L.c.axpy(kt_floats(&y), a, kt_floats(&x), n);
            L.k[i].axpy(kt_floats(&z), a, kt_floats(&x), n);
            assert_true(kt_uppers_clean());
            kt_same(kt_floats(&y), kt_floats(&z), (size_t)n, "%s axpy n %d", L.k[i].name, n);
            kt_free(&x), kt_free(&y), kt_free(&z);
        }
    }
}

typedef void map2_fn(float *y, const float *a, const float *b, int n);
static void check_map2(const char *what, const char *level, map2_fn *want, map2_fn *got)
{
    kt_rng r = kt_seed(22);
    for (int s = 0; s < KT_COUNT(sizes) * 6; s++) {
        int n = sizes[s / 6];
        kt_buf x = any_floats(&r, n), u = any_floats(&r, n), y0 = kt_alloc((size_t)n * 4, 0), y1 = kt_alloc((size_t)n * 4, some_off(&r));
        want(kt_floats(&y0), kt_floats(&x), kt_floats(&u), n);
        float *y = s % 3 == 0 ? kt_floats(&y1) : s % 3 == 1 ? kt_floats(&x) : kt_floats(&u);
        got(y, kt_floats(&x), kt_floats(&u), n);
        assert_true(kt_uppers_clean());
        kt_same(kt_floats(&y0), y, (size_t)n, "%s %s n %d", level, what, n);
        kt_free(&x), kt_free(&u), kt_free(&y0), kt_free(&y1);
    }
}
static void test_map2(void **state)
{
    (void)state;
    for (int i = 0; i < L.n; i++) {
        if (KT_OWN(&L, i, sigmoid_mul)) check_map2("sigmoid_mul", L.k[i].name, L.c.sigmoid_mul, L.k[i].sigmoid_mul);
        if (KT_OWN(&L, i, mul)) check_map2("mul", L.k[i].name, L.c.mul, L.k[i].mul);
    }
}

static void test_unit(void **state)
{
    (void)state;
    kt_rng r = kt_seed(23);
    for (int i = 0; i < L.n; i++) {
        if (!KT_OWN(&L, i, unit)) continue;
        for (int s = 0; s < KT_COUNT(sizes) * 8; s++) {
            int n = sizes[s / 8];
            kt_buf x = floats(&r, n), y0 = kt_alloc((size_t)n * 4, 0), y1 = kt_alloc((size_t)n * 4, some_off(&r));
            float factor = s & 1 ? 1.0f : 0.088388346f, *y = s & 2 ? kt_floats(&x) : kt_floats(&y1);
            if (s & 4)
                for (int e = 0; e < n; e++) kt_floats(&x)[e] = kt_unit(&r);
            L.c.unit(kt_floats(&y0), kt_floats(&x), n, 1e-6f, factor);
            L.k[i].unit(y, kt_floats(&x), n, 1e-6f, factor);
            assert_true(kt_uppers_clean());
            kt_same(kt_floats(&y0), y, (size_t)n, "%s unit n %d", L.k[i].name, n);
            kt_free(&x), kt_free(&y0), kt_free(&y1);
        }
    }
}

static void test_exp_sum(void **state)
{
    (void)state;
    kt_rng r = kt_seed(24);
    for (int i = 0; i < L.n; i++) {
        if (!KT_OWN(&L, i, exp_sum)) continue;
        for (int s = 0; s < KT_COUNT(sizes) * 6; s++) {
            int n = sizes[s / 6];
            kt_buf x = kt_alloc((size_t)n * 4, some_off(&r)), y0 = kt_alloc((size_t)n * 4, 0), y1 = kt_alloc((size_t)n * 4, some_off(&r));
            float m = -1e30f, *y = s & 1 ? kt_floats(&x) : kt_floats(&y1);
            for (int e = 0; e < n; e++) {
                kt_floats(&x)[e] = kt_unit(&r) * (s % 3 ? 10 : 120);
                m = kt_floats(&x)[e] > m ? kt_floats(&x)[e] : m;
            }
            float want = L.c.exp_sum(kt_floats(&y0), kt_floats(&x), m, n), got = L.k[i].exp_sum(y, kt_floats(&x), m, n);
            kt_same(kt_floats(&y0), y, (size_t)n, "%s exp_sum n %d", L.k[i].name, n);
            kt_same(&want, &got, 1, "%s exp_sum, the sum, n %d", L.k[i].name, n);
            kt_free(&x), kt_free(&y0), kt_free(&y1);
        }
    }
}

static void test_delta_gates(void **state)
{
    (void)state;
    kt_rng r = kt_seed(25);
    for (int i = 0; i < L.n; i++) {
        if (!KT_OWN(&L, i, delta_gates)) continue;
        for (int s = 0; s < KT_COUNT(sizes) * 8; s++) {
            int n = sizes[s / 8];
            size_t b = (size_t)n * 4;
            kt_buf a = any_floats(&r, n), g = any_floats(&r, n), l = any_floats(&r, n), t = any_floats(&r, n);
            kt_buf d0 = kt_alloc(b, 0), d1 = kt_alloc(b, some_off(&r)), b0 = kt_alloc(b, 0), b1 = kt_alloc(b, some_off(&r));
            for (int e = 0; e < n && s & 1; e++) { /* ordinary ones */
                kt_floats(&a)[e] = kt_unit(&r) * 8;
                kt_floats(&l)[e] = kt_unit(&r) * 3;
                kt_floats(&t)[e] = kt_unit(&r) * 3;
            }
            L.c.delta_gates(kt_floats(&d0), kt_floats(&b0), kt_floats(&a), kt_floats(&g), kt_floats(&l), kt_floats(&t), n);
            L.k[i].delta_gates(kt_floats(&d1), kt_floats(&b1), kt_floats(&a), kt_floats(&g), kt_floats(&l), kt_floats(&t), n);
            assert_true(kt_uppers_clean());
            kt_same(kt_floats(&d0), kt_floats(&d1), (size_t)n, "%s delta_gates decay n %d", L.k[i].name, n);
            kt_same(kt_floats(&b0), kt_floats(&b1), (size_t)n, "%s delta_gates beta n %d", L.k[i].name, n);
            kt_free(&a), kt_free(&g), kt_free(&l), kt_free(&t), kt_free(&d0), kt_free(&d1), kt_free(&b0), kt_free(&b1);
        }
    }
}

static void test_hadamard(void **state)
{
    (void)state;
    kt_rng r = kt_seed(26);
    for (int i = 0; i < L.n; i++) {
        if (!KT_OWN(&L, i, hadamard)) continue;
        for (int block = 1; block <= 8192; block *= 2)
            for (int s = 0; s < 6; s++) {
                int n = block * (1 + s % 3);
                kt_buf x = floats(&r, n), y = copy(&x, some_off(&r));
                float scale = s & 1 ? 1.0f / sqrtf((float)block) : kt_unit(&r);
                L.c.hadamard(kt_floats(&x), n, block, scale);
                L.k[i].hadamard(kt_floats(&y), n, block, scale);
                assert_true(kt_uppers_clean());
                kt_same(kt_floats(&x), kt_floats(&y), (size_t)n, "%s hadamard n %d block %d", L.k[i].name, n, block);
                kt_free(&x), kt_free(&y);
            }
    }
}

static void test_conv_silu(void **state)
{
    (void)state;
    kt_rng r = kt_seed(27);
    for (int i = 0; i < L.n; i++) {
        if (!KT_OWN(&L, i, conv_silu)) continue;
        for (int s = 0; s < 300; s++) {
            int taps = s % 4 ? 4 : 2 + kt_below(&r, 6), c1 = 1 + kt_below(&r, s < 150 ? 60 : 600), c0 = s & 1 ? 0 : kt_below(&r, c1);
            kt_buf w = floats(&r, c1 * taps), x[16], y0 = kt_alloc((size_t)c1 * 4, 0), y1 = kt_alloc((size_t)c1 * 4, some_off(&r));
            const float *rows[16];
            for (int j = 0; j < taps; j++) x[j] = floats(&r, c1), rows[j] = kt_floats(&x[j]);
            L.c.conv_silu(kt_floats(&y0), rows, kt_floats(&w), taps, c0, c1);
            L.k[i].conv_silu(kt_floats(&y1), rows, kt_floats(&w), taps, c0, c1);
            assert_true(kt_uppers_clean());
            kt_same(kt_floats(&y0), kt_floats(&y1), (size_t)c1, "%s conv_silu taps %d c0 %d c1 %d", L.k[i].name, taps, c0, c1);
            for (int j = 0; j < taps; j++) kt_free(&x[j]);
            kt_free(&w), kt_free(&y0), kt_free(&y1);
        }
    }
}

/* Several steps on one state, so that a difference of one bit has time to grow. */
static void test_delta_step(void **state)
{
    (void)state;
    static const int dims[] = {32, 64, 96, 128, 160, 256, 2, 16, 24, 36, 100};
    kt_rng r = kt_seed(28);
    for (int i = 0; i < L.n; i++) {
        if (!KT_OWN(&L, i, delta_step)) continue;
        for (int s = 0; s < KT_COUNT(dims) * 12; s++) {
            int dk = dims[s / 12], n_v = s % 12 == 0 ? 32 : 1 + kt_below(&r, 70);
            bool tame = s & 1;
            kt_buf S0 = floats(&r, dk * n_v), o0 = kt_alloc((size_t)n_v * 4, 0), o1 = kt_alloc((size_t)n_v * 4, some_off(&r));
            if (tame)
                for (int e = 0; e < dk * n_v; e++) kt_floats(&S0)[e] = kt_unit(&r);
            kt_buf S1 = copy(&S0, some_off(&r));
            for (int step = 0; step < 4; step++) {
                kt_buf q = floats(&r, dk), k = floats(&r, dk), v = floats(&r, n_v);
                for (int e = 0; e < dk && tame; e++) kt_floats(&q)[e] = kt_unit(&r) * 0.1f, kt_floats(&k)[e] = kt_unit(&r) * 0.1f;
                float decay = 1 - kt_unit(&r) * kt_unit(&r), beta = kt_unit(&r);
                L.c.delta_step(kt_floats(&S0), kt_floats(&q), kt_floats(&k), kt_floats(&v), decay, beta, dk, n_v, kt_floats(&o0));
                L.k[i].delta_step(kt_floats(&S1), kt_floats(&q), kt_floats(&k), kt_floats(&v), decay, beta, dk, n_v, kt_floats(&o1));
                assert_true(kt_uppers_clean());
                kt_same(kt_floats(&o0), kt_floats(&o1), (size_t)n_v, "%s delta_step o, dk %d n_v %d step %d", L.k[i].name, dk, n_v, step);
                kt_same(kt_floats(&S0), kt_floats(&S1), (size_t)(dk * n_v), "%s delta_step S, dk %d n_v %d step %d", L.k[i].name, dk, n_v,
                        step);
                kt_free(&q), kt_free(&k), kt_free(&v);
            }
            kt_free(&S0), kt_free(&S1), kt_free(&o0), kt_free(&o1);
        }
    }
}

int main(void)
{
    L = kt_levels_get();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_axpy),        cmocka_unit_test(test_map2),
                                       cmocka_unit_test(test_unit),        cmocka_unit_test(test_exp_sum),
                                       cmocka_unit_test(test_delta_gates), cmocka_unit_test(test_hadamard),
                                       cmocka_unit_test(test_conv_silu),   cmocka_unit_test(test_delta_step)};
    return cmocka_run_group_tests_name("kernel/hybrid", tests, NULL, NULL);
}
