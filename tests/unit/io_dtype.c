/* io_dtype: names, and the conversions of 16- and 8-bit floats against their definitions. */
#include "io/dtype.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static void f16_all(void **state)
{
    for (uint32_t h = 0; h < 65536; h++) {
        float f = cb_f16_to_f32((uint16_t)h), want;
        int e = h >> 10 & 31, m = h & 1023;
        want = e == 31 ? (m ? NAN : INFINITY) : e ? ldexpf((float)(1024 + m), e - 25) : ldexpf((float)m, -24);
        if (h & 0x8000) want = -want;
        if (isnan(want)) assert_true(isnan(f) && isnan(cb_f16_to_f32(cb_f32_to_f16(f))));
        else {
            assert_memory_equal(&f, &want, 4);
            assert_int_equal(cb_f32_to_f16(f), h);
        }
    }
}

/* The narrowing is the nearest of three neighbours, computed in double; a tie is even. */
static void f16_round(void **state)
{
    uint32_t x = 12345;
    for (uint32_t i = 0; i < 300000; i++) {
        x = x * 1664525u + 1013904223u;
        uint32_t u = i < 65536 ? 0x32800000u + (i << 12) : x; /* all ties from 2^-26 to 2^7, then anything */
        float f;
        memcpy(&f, &u, 4);
        if (isnan(f)) continue;
        uint16_t h = cb_f32_to_f16(f), a = h & 0x7fff;
        double d = fabs((double)f);
        assert_int_equal(h >> 15, u >> 31);
        if (d >= 65520) {
            assert_int_equal(a, 0x7c00);
            continue;
        }
        double got = (double)cb_f16_to_f32(a), e = fabs(d - got);
        double up = a == 0x7bff ? 65536 : (double)cb_f16_to_f32((uint16_t)(a + 1));
        double down = a ? (double)cb_f16_to_f32((uint16_t)(a - 1)) : -1;
        assert_true(e <= fabs(up - d) && e <= fabs(d - down));
        if (e == fabs(up - d) || e == fabs(d - down)) assert_int_equal(a & 1, 0);
    }
}

static void bf16(void **state)
{
    assert_int_equal(cb_f32_to_bf16(1.0f), 0x3f80);
    assert_int_equal(cb_f32_to_bf16(1.0f + 0x1p-8f), 0x3f80);            /* tie to even */
    assert_int_equal(cb_f32_to_bf16(1.0f + 3 * 0x1p-8f), 0x3f82);        /* tie to even, up */
    assert_int_equal(cb_f32_to_bf16(1.0f + 0x1p-8f + 0x1p-20f), 0x3f81); /* above the tie */
    assert_int_equal(cb_f32_to_bf16(3.4028235e38f), 0x7f80);
    assert_int_equal(cb_f32_to_bf16(-INFINITY), 0xff80);
    assert_int_equal(cb_f32_to_bf16(-0.0f), 0x8000);
    assert_int_equal(cb_f32_to_bf16(0x1p-149f), 0);
    uint32_t nan = 0x7f800001;
    float f;
    memcpy(&f, &nan, 4);
    assert_true(isnan(cb_bf16_to_f32(cb_f32_to_bf16(f))));
    for (uint32_t h = 0; h < 65536; h++)
        if (!isnan(cb_bf16_to_f32((uint16_t)h))) assert_int_equal(cb_f32_to_bf16(cb_bf16_to_f32((uint16_t)h)), h);
}

static void f8(void **state)
{
    for (int b = 0; b < 128; b++) {
        int e = b >> 3, m = b & 7;
        float want = e ? ldexpf((float)(8 + m), e - 10) : ldexpf((float)m, -9);
        assert_true(cb_f8_e4m3_to_f32((uint8_t)b) == want);
        assert_true(cb_f8_e4m3_to_f32((uint8_t)(b | 128)) == -want);
    }
    assert_true(cb_f8_e4m3_to_f32(0x7e) == 448 && cb_f8_e4m3_to_f32(0x7f) == 480 && cb_f8_e4m3_to_f32(0x30) == 0.5f);
    for (int b = 0; b < 255; b++) assert_true(cb_f8_e8m0_to_f32((uint8_t)b) == ldexpf(1, b - 127));
}

static void names(void **state)
{
    cb_dtype t;
    for (int i = 0; i < CB_N_DTYPES; i++) {
        const char *s = cb_dtype_name((cb_dtype)i);
        assert_int_equal(cb_dtype_parse(s, strlen(s), &t), 0);
        assert_int_equal(t, i);
        assert_true(cb_dtype_size(t) >= 1 && cb_dtype_size(t) <= 8);
    }
    assert_int_equal(cb_dtype_parse("F3", 2, &t), -1);
    assert_int_equal(cb_dtype_parse("", 0, &t), -1);
    assert_int_equal(cb_dtype_parse("bf16", 4, &t), -1);
}

static void load_unaligned(void **state)
{
    uint8_t b[16] = {0, 0x80, 0x3f, 0, 0, 0xc0, 0x3f, 0};
    assert_true(cb_load_float(b + 1, CB_BF16, 0) == 1.0f);
    assert_true(cb_load_float(b + 1, CB_BF16, 1) == 0.0f);
    uint8_t f[9] = {0, 0, 0, 0, 0, 0, 0, 0xc0, 0x3f};
    assert_true(cb_load_float(f + 1, CB_F32, 1) == 1.5f);
    uint8_t h[5] = {0, 0, 0, 0x00, 0x3e};
    assert_true(cb_load_float(h + 1, CB_F16, 1) == 1.5f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f16_all), cmocka_unit_test(f16_round), cmocka_unit_test(bf16),
        cmocka_unit_test(f8),      cmocka_unit_test(names),     cmocka_unit_test(load_unaligned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
