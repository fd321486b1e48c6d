/* io_decode: cb_matrix_decode_row on the worked rows and test vectors of the MLX format. */
#include "io/weights.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

/* One row of 32 columns: the worked 8 codes four times; scale 1, bias 0 as F32. */
static void packed_rows(void **state)
{
    static const struct {
        int bits;
        uint8_t bytes[8];
        float codes[8];
    } rows[] = {
        {1, {0xb2}, {0, 1, 0, 0, 1, 1, 0, 1}},
        {2, {0xb1, 0xb1}, {1, 0, 3, 2, 1, 0, 3, 2}},
        {3, {0xf1, 0x50, 0x9d}, {1, 6, 3, 0, 5, 2, 7, 4}},
        {4, {0x61, 0x0b, 0xa5, 0x4f}, {1, 6, 11, 0, 5, 10, 15, 4}},
        {5, {0xc1, 0x2c, 0x58, 0xf5, 0x27}, {1, 6, 11, 16, 21, 26, 31, 4}},
        {6, {0x81, 0xb1, 0x40, 0x95, 0xf6, 0x91}, {1, 6, 11, 16, 21, 26, 31, 36}},
        {8, {0x01, 0x26, 0x4b, 0x70, 0x95, 0xba, 0xdf, 0x04}, {1, 38, 75, 112, 149, 186, 223, 4}},
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        const int b = rows[r].bits; /* 8 elements of b bits are b bytes */
        uint8_t *codes = malloc((size_t)b * 4); /* exact: a read past it is caught under ASAN */
        const float scale = 1, bias = 0;
        float out[32];
        for (int i = 0; i < 4; i++) memcpy(codes + i * b, rows[r].bytes, (size_t)b);
        cb_matrix m = {.mode = CB_W_AFFINE, .bits = b, .group = 32, .stack = 1, .rows = 1, .cols = 32, .codes = codes,
                       .row_bytes = (uint64_t)b * 4, .scales = (const uint8_t *)&scale, .biases = (const uint8_t *)&bias,
                       .scale_dtype = CB_F32, .global_scale = 1};
        cb_matrix_decode_row(&m, 0, 0, out);
        for (int i = 0; i < 32; i++) assert_true(out[i] == rows[r].codes[i % 8]);
        free(codes);
    }
}

static void affine_vector(void **state)
{
    static const uint8_t codes[16] = {0xdf, 0x6a, 0x03, 0x8b, 0x25, 0xad, 0x47, 0xcf,
                                      0x69, 0xe2, 0x7a, 0xf4, 0x9c, 0x36, 0xbe, 0x58};
    static const int want[32] = {15, 13, 10, 6, 3,  0,  11, 8, 5, 2,  13, 10, 7, 4, 15, 12,
                                 9,  6,  2,  14, 10, 7, 4, 15, 12, 9, 6,  3,  14, 11, 8, 5};
    const uint16_t scale = 0xbe10, bias = 0x3fb4;
    float out[32];
    cb_matrix m = {.mode = CB_W_AFFINE, .bits = 4, .group = 32, .stack = 1, .rows = 1, .cols = 32, .codes = codes,
                   .row_bytes = 16, .scales = (const uint8_t *)&scale, .biases = (const uint8_t *)&bias, .scale_dtype = CB_BF16};
    cb_matrix_decode_row(&m, 0, 0, out);
    for (int i = 0; i < 32; i++) assert_true(out[i] == fmaf(-0.140625f, (float)want[i], 1.40625f));
    assert_true(out[11] == 0); /* zero is exact: its code is -q0 = 10 */
}

/* Constant and three-valued groups of the quantiser's table: the bias, the extremes and one inside. */
static void affine_table(void **state)
{
    static const struct {
        uint16_t scale, bias;
        int code;
        float want;
    } t[] = {
        {0xb3d7, 0, 0, 0},           {0xb3d7, 0x3f00, 0, 0.5f},   {0x3d09, 0xbf00, 0, -0.5f},
        {0xbd89, 0x40c0, 15, 4.9965820312f}, {0xbd89, 0x40c0, 0, 6}, {0xbd89, 0x40c0, 7, 5.53173828125f},
        {0x3d89, 0xc0c0, 15, -4.9965820312f}, {0x3ecd, 0xc0c0, 3, -4.798828125f}, {0x3ecd, 0xc0c0, 1, -5.599609375f},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        uint8_t codes[16];
        float out[32];
        memset(codes, t[i].code * 17, sizeof codes);
        cb_matrix m = {.mode = CB_W_AFFINE, .bits = 4, .group = 32, .stack = 1, .rows = 1, .cols = 32, .codes = codes, .row_bytes = 16,
                       .scales = (const uint8_t *)&t[i].scale, .biases = (const uint8_t *)&t[i].bias, .scale_dtype = CB_BF16};
        cb_matrix_decode_row(&m, 0, 0, out);
        assert_true(fabsf(out[0] - t[i].want) < 1e-6f && out[31] == out[0]);
    }
}

static void fp_vectors(void **state)
{
    static const float want[8] = {0.1f, -0.25f, 0.5f, 0.75f, 1, -1.5f, 2, 3};
    uint8_t c4[16] = {0x90, 0x32, 0xd4, 0x76}, c8[32] = {0x55, 0xe0, 0x68, 0x6c, 0x70, 0xf4, 0x78, 0x7c};
    static const uint8_t s4[1] = {0x7e}, s8[1] = {0x78}, sn[2] = {0x30, 0x30};
    float out[32];
    cb_matrix m = {.mode = CB_W_MXFP4, .bits = 4, .group = 32, .stack = 1, .rows = 1, .cols = 32, .codes = c4, .row_bytes = 16,
                   .scales = s4, .scale_dtype = CB_U8, .global_scale = 1};
    for (int mode = 0; mode < 3; mode++) {
        if (mode == 1) m.mode = CB_W_NVFP4, m.group = 16, m.scales = sn;
        if (mode == 2) m.mode = CB_W_MXFP8, m.group = 32, m.scales = s8, m.codes = c8, m.row_bytes = 32, m.bits = 8;
        cb_matrix_decode_row(&m, 0, 0, out);
        assert_true(out[0] == (mode == 2 ? 0x1.ap-4f : 0)); /* 0.1 is below half of the smallest E2M1 step */
        for (int i = 1; i < 8; i++) assert_true(out[i] == want[i]);
        for (int i = 8; i < 32; i++) assert_true(out[i] == 0);
    }
    m = (cb_matrix){.mode = CB_W_NVFP4, .bits = 4, .group = 16, .stack = 1, .rows = 1, .cols = 32, .codes = c4, .row_bytes = 16,
                    .scales = sn, .scale_dtype = CB_U8, .global_scale = 0.25f};
    cb_matrix_decode_row(&m, 0, 0, out);
    for (int i = 1; i < 8; i++) assert_true(out[i] == want[i] / 4);
}

/* [2 matrices][3 rows][32], 8 bits: codes, scales and biases of the right row; and the same as plain floats. */
static void stacked(void **state)
{
    uint8_t codes[6 * 32], floats[6 * 32 * 2];
    uint16_t scales[6], biases[6];
    float out[32];
    for (int r = 0; r < 6; r++) {
        scales[r] = cb_f32_to_f16((float)(r + 1));
        biases[r] = cb_f32_to_f16((float)(-100 * r));
        for (int i = 0; i < 32; i++) {
            codes[r * 32 + i] = (uint8_t)(r * 32 + i);
            uint16_t h = cb_f32_to_f16((float)(r * 1000 + i));
            memcpy(floats + 2 * (r * 32 + i), &h, 2);
        }
    }
    cb_matrix m = {.mode = CB_W_AFFINE, .bits = 8, .group = 32, .stack = 2, .rows = 3, .cols = 32, .codes = codes, .row_bytes = 32,
                   .scales = (const uint8_t *)scales, .biases = (const uint8_t *)biases, .scale_dtype = CB_F16};
    cb_matrix f = {.mode = CB_W_FLOAT, .stack = 2, .rows = 3, .cols = 32, .codes = floats, .row_bytes = 64, .float_dtype = CB_F16};
    for (int r = 0; r < 6; r++) {
        cb_matrix_decode_row(&m, r / 3, r % 3, out);
        for (int i = 0; i < 32; i++) assert_true(out[i] == (float)((r + 1) * (r * 32 + i) - 100 * r));
        cb_matrix_decode_row(&f, r / 3, r % 3, out);
        for (int i = 0; i < 32; i++) assert_true(out[i] == cb_f16_to_f32(cb_f32_to_f16((float)(r * 1000 + i))));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_rows), cmocka_unit_test(affine_vector), cmocka_unit_test(affine_table),
        cmocka_unit_test(fp_vectors),  cmocka_unit_test(stacked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
