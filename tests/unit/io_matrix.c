/* io_matrix: cb_matrix_find on small files: every stored form, every spelling of a config entry, every mismatch. */
#include "base/mem.h"
#include "io/safetensors.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include "support/tmpdir.h"

static char dir[64];
static cb_weights *w;
static cb_config *c;
static cb_err err;

static int setup(void **state)
{
    tmp_dir(dir);
    w = NULL, c = NULL, err = (cb_err){0};
    return 0;
}
static void close_all(void)
{
    cb_weights_close(w);
    cb_config_close(c);
    w = NULL, c = NULL;
}
static int teardown(void **state)
{
    close_all();
    tmp_remove(dir);
    return 0;
}

typedef struct spec {
    const char *name;
    cb_dtype t;
    int64_t dims[4]; /* ends with 0 */
} spec;

/* Writes the tensors (bytes count up) and a config with this quantization value, and opens both. */
static void make(const char *quant, const spec *s, int n)
{
    cb_st_writer *o;
    char text[2048];
    close_all();
    assert_int_equal(cb_st_writer_open(tmp_path(dir, "model.safetensors"), &o, &err), 0);
    for (int i = 0; i < n; i++) {
        int nd = 0;
        while (nd < 4 && s[i].dims[nd]) nd++;
        assert_int_equal(cb_st_writer_declare(o, s[i].name, s[i].t, s[i].dims, nd, &err), 0);
    }
    assert_int_equal(cb_st_writer_begin(o, &err), 0);
    for (int i = 0; i < n; i++) {
        size_t k = cb_dtype_size(s[i].t);
        for (int d = 0; d < 4 && s[i].dims[d]; d++) k *= (size_t)s[i].dims[d];
        for (; k; k--) {
            uint8_t b = (uint8_t)k;
            assert_int_equal(cb_st_writer_put(o, &b, 1, &err), 0);
        }
    }
    assert_int_equal(cb_st_writer_commit(o, &err), 0);
    snprintf(text, sizeof text, "{\"model_type\":\"x\"%s%s}", quant ? ",\"quantization\":" : "", quant ? quant : "");
    tmp_text(dir, "config.json", text);
    assert_int_equal(cb_weights_open(dir, &w, &err), 0);
    if (cb_config_open(dir, &c, &err) != 0) fail_msg("%s", err.text);
}

/* Finding `m` fails with CB_EFORMAT and a line with these words. */
static void expect_bad(int64_t stack, int64_t rows, int64_t cols, const char *words[4])
{
    cb_matrix m;
    err = (cb_err){0};
    assert_int_equal(cb_matrix_find(w, c, "m", stack, rows, cols, &m, &err), CB_EFORMAT);
    for (int i = 0; i < 4 && words[i]; i++)
        if (!strstr(err.text, words[i])) fail_msg("\"%s\" does not say \"%s\"", err.text, words[i]);
}
#define WORDS(...) ((const char *[4]){__VA_ARGS__})
#define MAKE(quant, ...) make(quant, (const spec[]){__VA_ARGS__}, sizeof((const spec[]){__VA_ARGS__}) / sizeof(spec))

static void affine_all(void **state)
{
    static const int bits[] = {1, 2, 3, 4, 5, 6, 8}, groups[] = {32, 64, 128};
    static const cb_dtype types[] = {CB_BF16, CB_F16, CB_F32};
    for (int b = 0; b < 7; b++)
        for (int g = 0; g < 3; g++) {
            char q[64];
            const int64_t k = 256;
            cb_matrix m;
            snprintf(q, sizeof q, "{\"bits\":%d,\"group_size\":%d}", bits[b], groups[g]);
            cb_dtype t = types[(b + g) % 3];
            MAKE(q, {"m.weight", CB_U32, {3, k * bits[b] / 32}}, {"m.scales", t, {3, k / groups[g]}}, {"m.biases", t, {3, k / groups[g]}});
            for (int known = 0; known < 2; known++) {
                assert_int_equal(cb_matrix_find(w, c, "m", 1, known ? 3 : -1, known ? k : -1, &m, &err), 1);
                assert_int_equal(m.mode, CB_W_AFFINE);
                assert_int_equal(m.bits, bits[b]);
                assert_int_equal(m.group, groups[g]);
                assert_int_equal(m.stack, 1);
                assert_int_equal(m.rows, 3);
                assert_int_equal(m.cols, k);
                assert_int_equal(m.row_bytes, k * bits[b] / 8);
                assert_int_equal(m.scale_dtype, t);
                assert_ptr_equal(m.codes, cb_weights_find(w, "m.weight")->data);
                assert_ptr_equal(m.biases, cb_weights_find(w, "m.biases")->data);
                assert_int_equal(m.bytes, 3 * (k * bits[b] / 8 + 2 * (k / groups[g]) * (int64_t)cb_dtype_size(t)));
            }
            float row[256];
            cb_matrix_decode_row(&m, 0, 2, row); /* the last row: reads to the end of its tensors */
            cb_config_close(c);
            c = NULL;
            /* without a config the shapes alone decide */
            assert_int_equal(cb_matrix_find(w, NULL, "m", 1, 3, k, &m, &err), 1);
            assert_int_equal(m.bits, bits[b]);
            assert_int_equal(m.group, groups[g]);
            assert_int_equal(cb_matrix_find(w, NULL, "m", 1, 3, -1, &m, &err), CB_EFORMAT);
        }
    cb_matrix m;
    assert_int_equal(cb_matrix_find(w, NULL, "n", 1, 3, 256, &m, &err), 0); /* absent is no error */
    char longname[2000];
    memset(longname, 'x', sizeof longname - 1);
    longname[sizeof longname - 1] = 0;
    assert_int_equal(cb_matrix_find(w, NULL, longname, 1, 3, 256, &m, &err), 0);
}

static void float_matrices(void **state)
{
    static const cb_dtype types[] = {CB_BF16, CB_F16, CB_F32};
    for (int i = 0; i < 3; i++) {
        cb_matrix m;
        MAKE(NULL, {"m.weight", types[i], {3, 5}}, {"e.weight", types[i], {2, 3, 5}});
        assert_int_equal(cb_matrix_find(w, c, "m", 1, 3, 5, &m, &err), 1);
        assert_true(m.mode == CB_W_FLOAT && m.float_dtype == types[i] && m.cols == 5 && m.group == 0 && !m.scales);
        assert_int_equal(m.row_bytes, 5 * cb_dtype_size(types[i]));
        assert_int_equal(cb_matrix_find(w, c, "e", 2, 3, 5, &m, &err), 1);
        assert_true(m.stack == 2 && m.rows == 3);
        assert_int_equal(cb_matrix_find(w, c, "e", -1, -1, -1, &m, &err), 1);
        expect_bad(1, 4, 5, WORDS("m.weight is [3,5]", "implies 4 rows of 5"));
        expect_bad(1, 3, 6, WORDS("m.weight is [3,5]", "implies rows of 6"));
        expect_bad(2, 3, 5, WORDS("m.weight is [3,5]", "2 matrices of 3 rows of 5"));
    }
    MAKE(NULL, {"m.weight", CB_U32, {3, 5}});
    expect_bad(1, 3, 5, WORDS("m.weight is U32 without scales"));
    MAKE(NULL, {"m.weight", CB_F32, {15}});
    expect_bad(1, 3, 5, WORDS("m.weight is [15]"));
    MAKE(NULL, {"m.weight", CB_F32, {1, 1, 3, 5}});
    expect_bad(1, 3, 5, WORDS("m.weight is [1,1,3,5]"));
    MAKE(NULL, {"m.weight", CB_F32, {2, 3, 5}});
    expect_bad(1, 3, 5, WORDS("m.weight is [2,3,5]"));
    /* an entry `false`, and float weights in a quantised file */
    cb_matrix m;
    MAKE("{\"bits\":4,\"group_size\":64,\"m\":false}", {"m.weight", CB_BF16, {3, 5}});
    assert_int_equal(cb_matrix_find(w, c, "m", 1, 3, 5, &m, &err), 1);
    assert_int_equal(m.mode, CB_W_FLOAT);
}

static void fp_modes(void **state)
{
    static const struct {
        const char *mode;
        int wmode, bits, group;
    } t[] = {{"mxfp4", CB_W_MXFP4, 4, 32}, {"mxfp8", CB_W_MXFP8, 8, 32}, {"nvfp4", CB_W_NVFP4, 4, 16}};
    for (int i = 0; i < 3; i++) {
        char q[128];
        cb_matrix m;
        for (int explicit = 0; explicit < 2; explicit++) {
            if (explicit) snprintf(q, sizeof q, "{\"mode\":\"%s\",\"bits\":%d,\"group_size\":%d}", t[i].mode, t[i].bits, t[i].group);
            else snprintf(q, sizeof q, "{\"mode\":\"%s\"}", t[i].mode);
            MAKE(q, {"m.weight", CB_U32, {2, 3, 64 * t[i].bits / 32}}, {"m.scales", CB_U8, {2, 3, 64 / t[i].group}});
            assert_int_equal(cb_matrix_find(w, c, "m", 2, 3, 64, &m, &err), 1);
            assert_true((int)m.mode == t[i].wmode && m.bits == t[i].bits && m.group == t[i].group && m.stack == 2 && !m.biases);
            assert_true(m.scale_dtype == CB_U8 && m.global_scale == 1.0f);
            assert_int_equal(cb_matrix_find(w, NULL, "m", 2, 3, 64, &m, &err), 1);
            assert_true((int)m.mode == t[i].wmode);
        }
        /* an entry without a mode is affine, even in such a file */
        snprintf(q, sizeof q, "{\"mode\":\"%s\",\"m\":{\"bits\":8,\"group_size\":64}}", t[i].mode);
        MAKE(q, {"m.weight", CB_U32, {3, 16}}, {"m.scales", CB_BF16, {3, 1}}, {"m.biases", CB_BF16, {3, 1}});
        assert_int_equal(cb_matrix_find(w, c, "m", 1, 3, 64, &m, &err), 1);
        assert_true(m.mode == CB_W_AFFINE && m.bits == 8);
        MAKE(q, {"m.weight", CB_U32, {3, 16}}, {"m.scales", CB_U8, {3, 2}});
        expect_bad(1, 3, 64, WORDS("m.scales is U8", "mode affine"));
        /* biases beside byte scales */
        snprintf(q, sizeof q, "{\"mode\":\"%s\"}", t[i].mode);
        MAKE(q, {"m.weight", CB_U32, {3, 2 * t[i].bits}}, {"m.scales", CB_U8, {3, 64 / t[i].group}}, {"m.biases", CB_U8, {3, 64 / t[i].group}});
        expect_bad(1, 3, 64, WORDS("m.biases", "no biases"));
        MAKE(q, {"m.weight", CB_U32, {3, 8}}, {"m.scales", CB_BF16, {3, 1}}, {"m.biases", CB_BF16, {3, 1}});
        expect_bad(1, 3, 64, WORDS("m.scales is BF16", t[i].mode));
    }
    /* nvfp4 with a global scale G: elements times G/2688 */
    cb_matrix m;
    MAKE("{\"mode\":\"nvfp4\"}", {"m.weight", CB_U32, {3, 8}}, {"m.scales", CB_U8, {3, 4}}, {"m.global_scale", CB_F32, {1}});
    assert_int_equal(cb_matrix_find(w, c, "m", 1, 3, 64, &m, &err), 1);
    assert_true(m.global_scale == cb_load_float((const uint8_t[]){4, 3, 2, 1}, CB_F32, 0) / 2688.0f);
    MAKE("{\"mode\":\"nvfp4\"}", {"m.weight", CB_U32, {3, 8}}, {"m.scales", CB_U8, {3, 4}}, {"m.global_scale", CB_F32, {2}});
    expect_bad(1, 3, 64, WORDS("m.global_scale is [2]"));
}

/* E8M0 byte 255 is NaN: found by the check that a backend makes before it uses a matrix, not when it is opened. */
static void scale_255(void **state)
{
    cb_matrix m;
    MAKE("{\"mode\":\"mxfp4\"}", {"m.weight", CB_U32, {3, 8}}, {"m.scales", CB_U8, {3, 2}});
    assert_int_equal(cb_matrix_find(w, c, "m", 1, 3, 64, &m, &err), 1);
    assert_int_equal(cb_matrix_check_scales(&m, &err), 0);
    uint8_t s[6] = {127, 127, 127, 127, 127, 255};
    m.scales = s;
    assert_int_equal(cb_matrix_check_scales(&m, &err), CB_EFORMAT);
    assert_non_null(strstr(err.text, "m.scales: row 2, group 1"));
    m.mode = CB_W_NVFP4; /* E4M3 knows no such byte */
    m.group = 16, m.cols = 32;
    assert_int_equal(cb_matrix_check_scales(&m, &err), 0);
    uint16_t h[4] = {0x3c00, 0x3c00, 0x3c00, 0x7c00}, ok[4] = {0};
    cb_matrix a = {.path = "a", .mode = CB_W_AFFINE, .bits = 4, .group = 32, .stack = 2, .rows = 1, .cols = 64,
                   .scales = (uint8_t *)h, .biases = (uint8_t *)ok, .scale_dtype = CB_F16};
    assert_int_equal(cb_matrix_check_scales(&a, &err), CB_EFORMAT);
    assert_non_null(strstr(err.text, "a.scales: matrix 1, row 0, group 1"));
    a.scales = (uint8_t *)ok, a.biases = (uint8_t *)h;
    assert_int_equal(cb_matrix_check_scales(&a, &err), CB_EFORMAT);
    assert_non_null(strstr(err.text, "a.biases: matrix 1, row 0, group 1"));
}

static void mismatches(void **state)
{
    static const char q[] = "{\"bits\":4,\"group_size\":64}";
    MAKE(q, {"m.weight", CB_U32, {3, 16}}, {"m.scales", CB_BF16, {3, 2}}, {"m.biases", CB_BF16, {3, 2}});
    cb_matrix m;
    assert_int_equal(cb_matrix_find(w, c, "m", 1, 3, 128, &m, &err), 1);
    expect_bad(1, 3, 256, WORDS("m.weight is [3,16] with scales [3,2]", "256 columns at 4 bits in groups of 64 need 32 words and 4 scales"));
    expect_bad(1, 5, 128, WORDS("m.weight is [3,16]", "5 rows of 128"));
    expect_bad(2, 3, 128, WORDS("m.weight is [3,16]", "2 matrices"));
    MAKE("{\"bits\":8,\"group_size\":64}", {"m.weight", CB_U32, {3, 16}}, {"m.scales", CB_BF16, {3, 2}}, {"m.biases", CB_BF16, {3, 2}});
    expect_bad(1, 3, 128, WORDS("m.weight is [3,16]", "at 8 bits"));
    expect_bad(1, 3, -1, WORDS("m.weight is [3,16]", "at 8 bits"));
    MAKE("{\"bits\":4,\"group_size\":32}", {"m.weight", CB_U32, {3, 16}}, {"m.scales", CB_BF16, {3, 2}}, {"m.biases", CB_BF16, {3, 2}});
    expect_bad(1, 3, 128, WORDS("groups of 32 need 16 words and 4 scales"));
    MAKE(q, {"m.weight", CB_U32, {3, 16}}, {"m.scales", CB_BF16, {3, 2}});
    expect_bad(1, 3, 128, WORDS("m.scales has no biases"));
    MAKE(q, {"m.weight", CB_U32, {3, 16}}, {"m.scales", CB_BF16, {3, 2}}, {"m.biases", CB_F16, {3, 2}});
    expect_bad(1, 3, 128, WORDS("m.biases is F16", "scales are BF16"));
    MAKE(q, {"m.weight", CB_U32, {3, 16}}, {"m.scales", CB_BF16, {3, 2}}, {"m.biases", CB_BF16, {3, 1}});
    expect_bad(1, 3, 128, WORDS("m.biases is [3,1]", "scales are [3,2]"));
    MAKE(q, {"m.weight", CB_U32, {3, 16}}, {"m.scales", CB_BF16, {4, 2}}, {"m.biases", CB_BF16, {4, 2}});
    expect_bad(1, 3, 128, WORDS("m.scales is [4,2]", "weight is [3,16]"));
    MAKE(q, {"m.weight", CB_U32, {3, 16}}, {"m.scales", CB_BF16, {6}}, {"m.biases", CB_BF16, {6}});
    expect_bad(1, 3, 128, WORDS("m.scales is [6]", "weight is [3,16]"));
    MAKE(q, {"m.weight", CB_BF16, {3, 16}}, {"m.scales", CB_BF16, {3, 2}}, {"m.biases", CB_BF16, {3, 2}});
    expect_bad(1, 3, 128, WORDS("m.weight is BF16", "codes are U32"));
    MAKE(q, {"m.weight", CB_U32, {3, 16}}, {"m.scales", CB_I16, {3, 2}}, {"m.biases", CB_I16, {3, 2}});
    expect_bad(1, 3, 128, WORDS("m.scales is I16"));
    MAKE("{\"bits\":4,\"group_size\":64,\"m\":false}", {"m.weight", CB_U32, {3, 16}}, {"m.scales", CB_BF16, {3, 2}}, {"m.biases", CB_BF16, {3, 2}});
    expect_bad(1, 3, 128, WORDS("m.weight has scales", "not quantised"));
    MAKE("{\"bits\":4,\"group_size\":64,\"m\":7}", {"m.weight", CB_U32, {3, 16}}, {"m.scales", CB_BF16, {3, 2}}, {"m.biases", CB_BF16, {3, 2}});
    expect_bad(1, 3, 128, WORDS("model.safetensors", "quantization.m"));
    MAKE(NULL, {"m.weight", CB_U32, {3, 16}}, {"m.scales", CB_BF16, {3, 3}}, {"m.biases", CB_BF16, {3, 3}});
    expect_bad(1, 3, 128, WORDS("no quantization"));
    MAKE(NULL, {"m.weight", CB_U32, {3, 28}}, {"m.scales", CB_BF16, {3, 2}}, {"m.biases", CB_BF16, {3, 2}});
    expect_bad(1, 3, 128, WORDS("28 words and 2 scales for 128 columns"));
}

static void spellings(void **state)
{
    static const struct {
        const char *key, *path;
        int bits;
    } t[] = {
        {"model.layers.0.mlp.gate", "model.layers.0.mlp.gate", 8},
        {"language_model.model.layers.0.mlp.gate", "model.layers.0.mlp.gate", 8},
        {"model.layers.0.mlp.gate", "language_model.model.layers.0.mlp.gate", 8},
        {"model.language_model.layers.0.mlp.gate", "layers.0.mlp.gate", 8},
        {"model.language_model.layers.0.mlp.gate", "language_model.layers.0.mlp.gate", 8},
        {"layers.0.mlp.gate", "model.language_model.layers.0.mlp.gate", 8},
        {"model.language_model.layers.0.mlp.gate", "language_model.model.layers.0.mlp.gate", 8},
        {"language_model.model.layers.0.mlp.gate", "model.language_model.layers.0.mlp.gate", 8},
        {"model.layers.0.mlp.gate_proj", "model.layers.0.mlp.gate", 4},
        {"mlp.gate", "model.layers.0.mlp.gate", 4},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        char text[512];
        cb_quant_spec q;
        snprintf(text, sizeof text, "{\"model_type\":\"x\",\"quantization\":{\"bits\":4,\"group_size\":64,\"%s\":{\"bits\":8,\"group_size\":64}}}", t[i].key);
        assert_int_equal(cb_config_parse(dir, text, strlen(text), &c, &err), 0);
        assert_int_equal(cb_config_quant(c, t[i].path, &q, &err), 1);
        if (q.bits != t[i].bits) fail_msg("%s by %s: %d bits", t[i].path, t[i].key, q.bits);
        cb_config_close(c);
        c = NULL;
    }
}

static void configs(void **state)
{
#define Q(q) "{\"model_type\":\"x\",\"quantization\":" q "}"
    static const struct {
        const char *text, *words[3];
    } bad[] = {
        {"", {"config.json", "line 1"}},
        {"[]", {"not a JSON object"}},
        {"{}", {"model_type is missing"}},
        {"{\"model_type\":7}", {"model_type is not a string"}},
        {"{\"model_type\":\"x\",\"text_config\":[]}", {"text_config"}},
        {"{\"model_type\":\"x\",\"model_file\":\"m.py\"}", {"model_file", "refused"}},
        {Q("7"), {"quantization is not an object"}},
        {Q("{\"bits\":7}"), {"quantization", "bits 7"}},
        {Q("{\"bits\":0}"), {"bits is 0"}},
        {Q("{\"bits\":9}"), {"bits is 9"}},
        {Q("{\"bits\":\"4\"}"), {"bits is not an integer"}},
        {Q("{\"bits\":4.5}"), {"bits is not an integer"}},
        {Q("{\"group_size\":48}"), {"group_size 48"}},
        {Q("{\"group_size\":256}"), {"group_size is 256"}},
        {Q("{\"mode\":\"mxfp4\",\"group_size\":64}"), {"mode mxfp4", "group_size 64"}},
        {Q("{\"mode\":\"mxfp8\",\"bits\":4}"), {"mode mxfp8", "bits 4"}},
        {Q("{\"mode\":\"nvfp4\",\"group_size\":32}"), {"mode nvfp4"}},
        {Q("{\"mode\":\"fp3\"}"), {"unknown mode \"fp3\""}},
        {Q("{\"mode\":4}"), {"mode is not a string"}},
        {Q("{\"quantize_activations\":true}"), {"quantize_activations"}},
        {"{\"model_type\":\"x\",\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4}}", {"quantization_config.quant_method \"awq\""}},
        {"{\"model_type\":\"x\",\"text_config\":{\"quantization_config\":{\"quant_method\":\"gptq\"}}}", {"\"gptq\""}},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err = (cb_err){0};
        int rc = cb_config_parse(dir, bad[i].text, strlen(bad[i].text), &c, &err);
        if (rc != CB_EFORMAT) fail_msg("%s: %d", bad[i].text, rc);
        assert_null(c);
        for (int k = 0; k < 3 && bad[i].words[k]; k++)
            if (!strstr(err.text, bad[i].words[k])) fail_msg("\"%s\" does not say \"%s\"", err.text, bad[i].words[k]);
    }
    static const struct {
        const char *text;
        int rc, mode, bits, group;
    } good[] = {
        {"{\"model_type\":\"x\"}", 0, 0, 0, 0},
        {"{\"model_type\":\"x\",\"quantization\":null,\"model_file\":null}", 0, 0, 0, 0},
        {Q("{}"), 1, CB_W_AFFINE, 4, 64},
        {Q("{\"bits\":1,\"group_size\":128}"), 1, CB_W_AFFINE, 1, 128},
        {Q("{\"bits\":4.0,\"group_size\":32,\"quantize_activations\":false}"), 1, CB_W_AFFINE, 4, 32},
        {Q("{\"mode\":\"mxfp8\",\"p\":true}"), 1, CB_W_MXFP8, 8, 32},
        {Q("{\"bits\":8,\"p\":{}}"), 1, CB_W_AFFINE, 4, 64},
        {Q("{\"bits\":8,\"p\":{\"mode\":\"nvfp4\"}}"), 1, CB_W_NVFP4, 4, 16},
        {"{\"model_type\":\"x\",\"quantization_config\":{\"bits\":3}}", 1, CB_W_AFFINE, 3, 64},
        {"{\"model_type\":\"x\",\"quantization\":{\"bits\":2},\"quantization_config\":{\"quant_method\":\"y\"}}", 1, CB_W_AFFINE, 2, 64},
        {"{\"model_type\":\"x\",\"text_config\":{\"quantization\":{\"bits\":6}}}", 1, CB_W_AFFINE, 6, 64},
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        cb_quant_spec q;
        if (cb_config_parse(dir, good[i].text, strlen(good[i].text), &c, &err) != 0) fail_msg("%s: %s", good[i].text, err.text);
        assert_int_equal(cb_config_quant(c, "p", &q, &err), good[i].rc);
        assert_true(q.mode == good[i].mode && q.bits == good[i].bits && q.group == good[i].group);
        cb_config_close(c);
        c = NULL;
    }
}

static void text_part(void **state)
{
    static const char text[] = "{\"model_type\":\"x\",\"a\":1,\"b\":true,\"s\":\"root\",\"r\":2,\"n\":5,\"text_config\":{\"model_type\":\"y\",\"a\":2,"
                               "\"n\":null,\"w\":\"word\",\"big\":1e6,\"huge\":1000000000000000019884624838656}}";
    int64_t v = -7;
    double d = 0;
    bool b = false;
    const char *s = NULL;
    assert_int_equal(cb_config_parse("some/dir", text, strlen(text), &c, &err), 0);
    assert_string_equal(c->model_type, "x");
    assert_string_equal(c->dir, "some/dir");
    assert_int_equal(cb_config_int(c, "a", 0, 9, &v, &err), 1);
    assert_int_equal(v, 2);
    assert_int_equal(cb_config_int(c, "n", 0, 9, &v, &err), 1); /* null is absence */
    assert_int_equal(v, 5);
    assert_int_equal(cb_config_int(c, "big", 0, 1 << 20, &v, &err), 1);
    assert_int_equal(v, 1000000);
    assert_int_equal(cb_config_int(c, "huge", 0, 9, &v, &err), CB_EFORMAT);
    assert_int_equal(cb_config_int(c, "none", 0, 9, &v, &err), 0);
    assert_int_equal(cb_config_int(c, "a", 3, 9, &v, &err), CB_EFORMAT);
    assert_non_null(strstr(err.text, "config.json: a is 2, allowed are 3 to 9"));
    assert_int_equal(cb_config_int(c, "w", 3, 9, &v, &err), CB_EFORMAT);
    assert_int_equal(cb_config_bool(c, "b", &b, &err), 1);
    assert_true(b);
    assert_int_equal(cb_config_str(c, "s", &s, &err), 1);
    assert_string_equal(s, "root");
    assert_int_equal(cb_config_str(c, "model_type", &s, &err), 1);
    assert_string_equal(s, "y");
    assert_int_equal(cb_config_real(c, "r", &d, &err), 1);
    assert_true(d == 2);
    assert_non_null(cb_config_get(c, "n"));
    assert_null(cb_config_get(c, "none"));
    cb_config *other;
    assert_int_equal(cb_config_open(dir, &other, &err), CB_ENOTFOUND);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(affine_all), CASE(float_matrices), CASE(fp_modes), CASE(scale_255), CASE(mismatches),
        CASE(spellings),  CASE(configs),        CASE(text_part),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
