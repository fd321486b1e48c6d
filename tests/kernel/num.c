/* num.c: how accurate the defined functions are, against libm in double (long double for the rotary table). The bounds are
 * part of docs/arithmetic.md; a change of num.h that passes here may still change bits, which the golden values below and
 * the parity tests catch. */
#include "kt.h"

#define KT_GOLDEN 0x4e472843b239c87cULL

/* Distance from the exact value in units of the last place of f32 at that value. */
static double ulps(float got, double exact)
{
    int e;
    frexp(exact, &e);
    if (e < -125) e = -125; /* subnormal: fixed spacing */
    return fabs((double)got - exact) / ldexp(1.0, e - 24);
}

static void test_exp(void **state)
{
    (void)state;
    double worst = 0;
    for (double x = -87; x <= 88; x += 1.0 / 4096 + 1e-7) worst = fmax(worst, ulps(cb_expf((float)x), exp((double)(float)x)));
    for (float x = 1e-30f; x < 0.5f; x *= 1.003f) {
        worst = fmax(worst, ulps(cb_expf(x), exp((double)x)));
        worst = fmax(worst, ulps(cb_expf(-x), exp(-(double)x)));
    }
    print_message("expf: worst error %.3f ulp\n", worst);
    assert_true(worst < 1);
    assert_true(cb_expf(0) == 1.0f && cb_expf(-0.0f) == 1.0f);
    assert_true(cb_expf(-87.0f) > 0 && cb_expf(nextafterf(-87.0f, -100)) == 0 && cb_expf(-INFINITY) == 0);
    assert_true(cb_expf(88.0f) == cb_expf(INFINITY) && cb_expf(1e30f) == cb_expf(88.0f) && isfinite(cb_expf(88.0f)));
    assert_true(isnan(cb_expf(NAN)));
}

static void test_silu_gelu_tanh(void **state)
{
    (void)state;
    double silu = 0, gelu_rel = 0, gelu_abs = 0, tanh_abs = 0, tanh_rel = 0;
    const double c = 0.7978845608028654;
    for (double v = -30; v <= 30; v += 1.0 / 1024 + 1e-6) {
        float z = (float)v;
        double d = z, u = c * (d + 0.044715 * d * d * d);
        silu = fmax(silu, ulps(cb_siluf(z), d / (1 + exp(-d))));
        double g = d / (1 + exp(-2 * u));
        gelu_abs = fmax(gelu_abs, fabs((double)cb_gelu_tanhf(z) - g));
        if (z > -4) gelu_rel = fmax(gelu_rel, ulps(cb_gelu_tanhf(z), g));
        tanh_abs = fmax(tanh_abs, fabs((double)cb_tanhf(z) - tanh(d)));
        if (fabs(d) > 0.5) tanh_rel = fmax(tanh_rel, ulps(cb_tanhf(z), tanh(d)));
    }
    print_message("silu %.2f ulp, gelu %.2f ulp above -4 and %.2g absolute, tanh %.2g absolute, %.2f ulp beyond 0.5\n", silu,
                  gelu_rel, gelu_abs, tanh_abs, tanh_rel);
    assert_true(silu < 4);
    assert_true(gelu_rel < 32 && gelu_abs < 2e-6);
    assert_true(tanh_abs < 1.5e-7);
    assert_true(cb_siluf(0) == 0 && cb_gelu_tanhf(0) == 0 && cb_tanhf(0) == 0 && signbit(cb_tanhf(-0.0f)));
    assert_true(cb_tanhf(40) == 1 && cb_tanhf(-INFINITY) == -1 && cb_siluf(200) == 200 && cb_gelu_tanhf(50) == 50);
}

static void test_hl(void **state)
{
    (void)state;
    kt_rng r = kt_seed(300);
    for (int i = 0; i < 2000000; i++) {
        int32_t h = (int32_t)(kt_u64(&r) >> (32 + kt_below(&r, 30))), l = (int32_t)(kt_u64(&r) >> (34 + kt_below(&r, 28)));
        h = kt_below(&r, 2) ? h >> 1 : -(h >> 1);
        l = kt_below(&r, 2) ? l : -l;
        int64_t d = (int64_t)h * 256 + l;
        float want = (float)d, got = cb_hl_to_f32(h, l);
        if (cb_f2u(want) != cb_f2u(got)) fail_msg("h %d l %d: want %a got %a", h, l, (double)want, (double)got);
    }
}

static void test_rope_table(void **state)
{
    (void)state;
    static const double bases[] = {10000, 1e6, 1e7, 500000};
    static const double pos[] = {0, 1, 2, 3, 17, 100, 1023, 4096, 32767, 131071, 262143, 1048575};
    int off = 0, n = 0;
    for (int b = 0; b < KT_COUNT(bases); b++) {
        double freq[64];
        for (int i = 0; i < 64; i++) {
            freq[i] = cb_rope_freq(bases[b], i, 128);
            long double f = powl((long double)bases[b], -2.0L * i / 128);
            assert_true(fabsl((long double)freq[i] - f) <= f * 4e-15L);
        }
        for (int p = 0; p < KT_COUNT(pos); p++) {
            float out[128];
            cb_rope_row(out, pos[p], freq, 64);
            for (int i = 0; i < 64; i++) {
                long double a = (long double)(pos[p] * freq[i]); /* the product is rounded to double by definition */
                long double c = cosl(a), s = sinl(a);
                off += out[i] != (float)c, off += out[64 + i] != (float)s, n += 2;
                assert_true(fabsl((long double)out[i] - c) <= 6e-8L && fabsl((long double)out[64 + i] - s) <= 6e-8L);
            }
        }
    }
    print_message("rope: %d of %d values differ from the correctly rounded one\n", off, n);
    assert_true(off <= n / 1000);
}

/* A few exact bits, so that a change of the recipe cannot pass unseen. */
static void test_golden(void **state)
{
    (void)state;
    static const float in[] = {-80, -10, -1, -0.1f, 0.3f, 1, 2.5f, 20, 80};
    uint64_t h = 1469598103934665603ULL;
    for (int i = 0; i < KT_COUNT(in); i++) {
        float v[] = {cb_expf(in[i]), cb_siluf(in[i]), cb_gelu_tanhf(in[i]), cb_tanhf(in[i]), cb_sigmoidf(in[i])};
        for (int j = 0; j < KT_COUNT(v); j++) h = (h ^ cb_f2u(v[j])) * 1099511628211ULL;
    }
    if (h != KT_GOLDEN) fail_msg("golden hash is %016llx", (unsigned long long)h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_exp), cmocka_unit_test(test_silu_gelu_tanh), cmocka_unit_test(test_hl),
                                       cmocka_unit_test(test_rope_table), cmocka_unit_test(test_golden)};
    return cmocka_run_group_tests_name("kernel/num", tests, NULL, NULL);
}
