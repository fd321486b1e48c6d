/* io_quantize: stored bytes of quantised rows. tests/data/quantize.safetensors holds what mx.quantize says
 * (tests/reference/make_quantize_vectors.py); the GPU rule is held against the worked groups of the format. */
#include "io/quantize.h"
#include "io/safetensors.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

static const struct { const char *name; cb_dtype t; } dtypes[] = {{"bf16", CB_BF16}, {"f16", CB_F16}, {"f32", CB_F32}};

static const cb_tensor *find(const cb_st *s, const char *name)
{
    for (int i = 0; i < s->n_tensors; i++)
        if (!strcmp(s->tensors[i].name, name)) return &s->tensors[i];
    fail_msg("%s: missing", name);
    return NULL;
}

/* One row must have the stored bytes; names what differs. */
static void same_part(const cb_st *s, const char *key, const char *part, const uint8_t *got, size_t n, int64_t row)
{
    char name[96];
    snprintf(name, sizeof name, "%s.%s", key, part);
    const cb_tensor *t = find(s, name);
    assert_int_equal(t->bytes, (uint64_t)t->dims[0] * n);
    const uint8_t *want = t->data + (size_t)row * n;
    for (size_t i = 0; i < n; i++)
        if (got[i] != want[i])
            fail_msg("%s: row %lld, byte %zu is %02x, mlx has %02x", name, (long long)row, i, got[i], want[i]);
}

static void check_format(const cb_st *s, cb_quantizer q, const char *mode, const char *dtype)
{
    char key[64];
    float x[128];
    uint8_t codes[256], scales[64], biases[64];
    cb_err err = {0};
    assert_int_equal(cb_quantizer_check(&q, &err), 0);
    snprintf(key, sizeof key, "in.%s", dtype);
    const cb_tensor *in = find(s, key);
    assert_int_equal(in->dims[1], 128);
    snprintf(key, sizeof key, "%s.%d.%d.%s", mode, q.bits, q.group, dtype);
    for (int64_t r = 0; r < in->dims[0]; r++) {
        for (int i = 0; i < 128; i++) x[i] = cb_load_float(in->data, q.values, (size_t)(r * 128 + i));
        cb_quantize_row(&q, x, 128, codes, scales, biases);
        same_part(s, key, "scales", scales, cb_quantizer_scale_bytes(&q, 128), r);
        if (q.mode == CB_W_AFFINE) same_part(s, key, "biases", biases, cb_quantizer_scale_bytes(&q, 128), r);
        same_part(s, key, "weight", codes, cb_quantizer_row_bytes(&q, 128), r);
    }
}

static void affine_as_mlx(void **state)
{
    static const int all_bits[] = {1, 2, 3, 4, 5, 6, 8};
    cb_st s;
    cb_err err = {0};
    if (cb_st_open(&s, "tests/data", "quantize.safetensors", &err) < 0) fail_msg("%s", err.text);
    for (size_t d = 0; d < 3; d++)
        for (size_t b = 0; b < sizeof all_bits / sizeof *all_bits; b++)
            for (int group = 32; group <= 128; group *= 2)
                check_format(&s, (cb_quantizer){.mode = CB_W_AFFINE, .bits = all_bits[b], .group = group, .values = dtypes[d].t,
                                                .scales = dtypes[d].t}, "affine", dtypes[d].name);
    cb_st_close(&s);
}

static void fp_as_mlx(void **state)
{
    static const struct { const char *name; cb_wmode mode; } modes[] = {{"mxfp4", CB_W_MXFP4}, {"mxfp8", CB_W_MXFP8}, {"nvfp4", CB_W_NVFP4}};
    cb_st s;
    cb_err err = {0};
    if (cb_st_open(&s, "tests/data", "quantize.safetensors", &err) < 0) fail_msg("%s", err.text);
    for (size_t d = 0; d < 3; d++)
        for (size_t m = 0; m < 3; m++)
            check_format(&s, (cb_quantizer){.mode = modes[m].mode, .values = dtypes[d].t, .scales = CB_U8}, modes[m].name, dtypes[d].name);
    cb_st_close(&s);
}

/* Repeats a few values over 32 columns and quantises them. */
static void one_group(cb_quantizer q, const float *v, int n, uint8_t *codes, uint8_t *scales, uint8_t *biases)
{
    float x[32];
    for (int i = 0; i < 32; i++) x[i] = v[i % n];
    assert_int_equal(cb_quantizer_check(&q, NULL), 0);
    cb_quantize_row(&q, x, 32, codes, scales, biases);
}

/* The worked groups of the format description: 4 bits, bf16, under both rules. */
static void worked_affine(void **state)
{
    static const struct {
        float v[3];
        bool cpu, gpu;
        uint16_t scale, bias;
        int codes[3];
    } t[] = {
        {{0, 0, 0}, true, true, 0xb3d7, 0, {0, 0, 0}},
        {{0.5f, 0.5f, 0.5f}, true, true, 0xb3d7, 0x3f00, {0, 0, 0}},
        {{-0.5f, -0.5f, -0.5f}, true, false, 0xb3d7, 0xbf00, {0, 0, 0}},
        {{-0.5f, -0.5f, -0.5f}, false, true, 0x3d09, 0xbf00, {0, 0, 0}},
        {{5, 6, 5.5f}, true, true, 0xbd89, 0x40c0, {15, 0, 7}},
        {{-6, -5, -5.5f}, true, false, 0x3d89, 0xc0c0, {0, 15, 7}},
        {{-6, -5, -5.5f}, false, true, 0x3ecd, 0xc0c0, {0, 3, 1}},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++)
        for (int gpu = 0; gpu < 2; gpu++) {
            uint8_t codes[16];
            uint16_t s, b;
            if (!(gpu ? t[i].gpu : t[i].cpu)) continue;
            one_group((cb_quantizer){.mode = CB_W_AFFINE, .bits = 4, .group = 32, .values = CB_BF16, .scales = CB_BF16, .gpu = gpu},
                      t[i].v, 3, codes, (uint8_t *)&s, (uint8_t *)&b);
            assert_int_equal(s, t[i].scale);
            assert_int_equal(b, t[i].bias);
            for (int k = 0; k < 32; k++) assert_int_equal(codes[k / 2] >> 4 * (k % 2) & 15, t[i].codes[k % 3]);
        }
}

/* w_i = ((7i mod 32) - 13)/16, but w_5 = 1.40625: scale, bias and the sixteen bytes; the first code is a clip. */
static void worked_full_group(void **state)
{
    static const uint8_t want[16] = {0xdf, 0x6a, 0x03, 0x8b, 0x25, 0xad, 0x47, 0xcf, 0x69, 0xe2, 0x7a, 0xf4, 0x9c, 0x36, 0xbe, 0x58};
    float x[32];
    uint8_t codes[16];
    uint16_t s, b;
    for (int i = 0; i < 32; i++) x[i] = (float)(7 * i % 32 - 13) / 16;
    x[5] = 1.40625f;
    one_group((cb_quantizer){.mode = CB_W_AFFINE, .bits = 4, .group = 32, .values = CB_BF16, .scales = CB_BF16}, x, 32, codes, (uint8_t *)&s, (uint8_t *)&b);
    assert_int_equal(s, 0xbe10);
    assert_int_equal(b, 0x3fb4);
    assert_memory_equal(codes, want, 16);
}

/* Under the GPU rule ties go away from zero. (w - bias)/scale is 0.5, 1.5, ... here: scale -1, bias 15. */
static void gpu_ties(void **state)
{
    float x[32];
    uint8_t even[16], away[16];
    uint16_t s, b;
    for (int i = 0; i < 32; i++) x[i] = i == 31 ? 0 : i == 30 ? 15 : 14.5f - (float)(i % 14);
    cb_quantizer q = {.mode = CB_W_AFFINE, .bits = 4, .group = 32, .values = CB_F32, .scales = CB_BF16};
    one_group(q, x, 32, even, (uint8_t *)&s, (uint8_t *)&b);
    q.gpu = true;
    one_group(q, x, 32, away, (uint8_t *)&s, (uint8_t *)&b);
    assert_int_equal(s, 0xbf80);
    for (int i = 0; i < 30; i++) {
        int down = i % 14;
        assert_int_equal(even[i / 2] >> 4 * (i % 2) & 15, down % 2 ? down + 1 : down);
        assert_int_equal(away[i / 2] >> 4 * (i % 2) & 15, down + 1);
    }
}

/* First eight values of a group, the rest zeros. mx scales are the power of two above max/6 and max/448. */
static void worked_fp(void **state)
{
    float x[32] = {0.1f, -0.25f, 0.5f, 0.75f, 1, -1.5f, 2, 3};
    static const struct { cb_wmode mode; uint8_t scale, bytes[8]; int n; } t[] = {
        {CB_W_MXFP4, 0x7e, {0x90, 0x32, 0xd4, 0x76}, 4},
        {CB_W_NVFP4, 0x30, {0x90, 0x32, 0xd4, 0x76}, 4},
        {CB_W_MXFP8, 0x78, {0x55, 0xe0, 0x68, 0x6c, 0x70, 0xf4, 0x78, 0x7c}, 8},
    };
    for (size_t i = 0; i < 3; i++)
        for (int gpu = 0; gpu < 2; gpu++) {
            uint8_t codes[32], scales[2];
            one_group((cb_quantizer){.mode = t[i].mode, .values = CB_BF16, .scales = CB_U8, .gpu = gpu}, x, 32, codes, scales, NULL);
            assert_int_equal(scales[0], t[i].scale);
            assert_memory_equal(codes, t[i].bytes, (size_t)t[i].n);
        }
    /* where the rules part: a tie, and a negative that becomes 0 */
    float y[4] = {6, 0.75f, -0.2f, 1};
    uint8_t codes[32], scales[2];
    one_group((cb_quantizer){.mode = CB_W_NVFP4, .values = CB_BF16, .scales = CB_U8}, y, 4, codes, scales, NULL);
    assert_int_equal(codes[0], 0x17);
    assert_int_equal(codes[1], 0x20);
    one_group((cb_quantizer){.mode = CB_W_NVFP4, .values = CB_BF16, .scales = CB_U8, .gpu = true}, y, 4, codes, scales, NULL);
    assert_int_equal(codes[0], 0x27);
    assert_int_equal(codes[1], 0x28);
    float z[1] = {1e-40f}; /* the smallest scale there is */
    one_group((cb_quantizer){.mode = CB_W_MXFP8, .values = CB_F32, .scales = CB_U8}, z, 1, codes, scales, NULL);
    assert_int_equal(scales[0], 0);
}

/* Ternary: codes 0, 1, 2, bias = -scale, and no scale gives a smaller squared error. */
static void ternary(void **state)
{
    cb_quantizer q = {.mode = CB_W_AFFINE, .ternary = true, .values = CB_F32, .scales = CB_F16};
    float x[128], y[128];
    uint8_t codes[32];
    uint16_t s, b;
    uint32_t r = 1;
    assert_int_equal(cb_quantizer_check(&q, NULL), 0);
    assert_int_equal(q.group, 128);
    for (int i = 0; i < 128; i++) {
        x[i] = 0;
        for (int k = 0; k < 4; k++) x[i] += (float)((r = r * 1664525 + 1013904223) >> 8) / 0x1p24f - 0.5f;
    }
    cb_quantize_row(&q, x, 128, codes, (uint8_t *)&s, (uint8_t *)&b);
    assert_int_equal(s ^ b, 0x8000);
    cb_matrix m = {.mode = CB_W_AFFINE, .bits = 2, .group = 128, .stack = 1, .rows = 1, .cols = 128, .codes = codes, .row_bytes = 32,
                   .scales = (uint8_t *)&s, .biases = (uint8_t *)&b, .scale_dtype = CB_F16};
    cb_matrix_decode_row(&m, 0, 0, y);
    double best = 0, scale = (double)cb_f16_to_f32(s);
    for (int i = 0; i < 128; i++) best += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
    for (int k = -40; k <= 40; k++) {
        double e = 0, t = scale * (1 + k / 100.0);
        for (int i = 0; i < 128; i++) {
            double a = fabs((double)x[i]), d = a > t / 2 ? a - t : a;
            e += d * d;
        }
        assert_true(e >= best * (1 - 1e-4)); /* the scale is rounded to f16 */
    }
    memset(x, 0, sizeof x);
    cb_quantize_row(&q, x, 128, codes, (uint8_t *)&s, (uint8_t *)&b);
    for (int i = 0; i < 32; i++) assert_int_equal(codes[i], 0x55);
}

static void refusals(void **state)
{
    static const struct { cb_quantizer q; const char *want; } t[] = {
        {{.mode = CB_W_AFFINE, .bits = 7}, "bits 7"},
        {{.mode = CB_W_AFFINE, .bits = 9}, "bits 9"},
        {{.mode = CB_W_AFFINE, .bits = -1}, "bits -1"},
        {{.mode = CB_W_AFFINE, .group = 16}, "group 16"},
        {{.mode = CB_W_AFFINE, .ternary = true, .bits = 4}, "ternary"},
        {{.mode = CB_W_MXFP4, .bits = 8}, "mxfp4"},
        {{.mode = CB_W_NVFP4, .group = 32}, "nvfp4"},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        cb_quantizer q = t[i].q;
        cb_err err = {0};
        assert_int_equal(cb_quantizer_check(&q, &err), CB_EUSAGE);
        if (!strstr(err.text, t[i].want)) fail_msg("'%s' lacks '%s'", err.text, t[i].want);
    }
}

/* Every E4M3 code encodes to itself; halves go to the even neighbour. */
static void e4m3(void **state)
{
    for (int b = 0; b < 0x7f; b++) {
        float x = cb_f8_e4m3_to_f32((uint8_t)b), next = cb_f8_e4m3_to_f32((uint8_t)(b + 1));
        assert_int_equal(cb_f32_to_f8_e4m3(x), b);
        assert_int_equal(cb_f32_to_f8_e4m3(-x), b | 0x80);
        if (b < 0x7e) assert_int_equal(cb_f32_to_f8_e4m3((x + next) / 2), b + (b & 1));
    }
    assert_int_equal(cb_f32_to_f8_e4m3(1e9f), 0x7e);
    assert_int_equal(cb_f32_to_f8_e4m3(-INFINITY), 0xfe);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(affine_as_mlx), cmocka_unit_test(fp_as_mlx),   cmocka_unit_test(worked_affine),
        cmocka_unit_test(worked_full_group), cmocka_unit_test(gpu_ties), cmocka_unit_test(worked_fp),
        cmocka_unit_test(ternary),       cmocka_unit_test(refusals),    cmocka_unit_test(e4m3),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
