/* The GGUF reader against damaged files, and the repacking of blocks. Whole conversions: tests/unit/import.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* in this order: cmocka wants the four above */
#include "io/gguf.h"
#include "support/ggufmake.h"
#include <cmocka.h>

/* Parses f's file and expects it to be refused with a text that holds `want`. */
static void refuse(gm_file *f, const char *want)
{
    cb_gguf g;
    cb_err err = {0};
    size_t n;
    uint8_t *data = gm_finish(f, &n);
    int rc = cb_gguf_parse(&g, data, n, "dir/t.gguf", &err);
    if (rc != CB_EFORMAT || !strstr(err.text, want) || strncmp(err.text, "t.gguf: ", 8))
        fail_msg("wanted \"%s\", got %d: %s", want, rc, err.text);
    cb_free(data);
}

static void small(gm_file *f)
{
    static const float v[32];
    gm_begin(f);
    gm_kv_text(f, "general.architecture", "llama");
    gm_tensor(f, "a.weight", 0, 8, 4, v, sizeof v);
}

static void test_reads(void **state)
{
    gm_file f;
    cb_gguf g;
    cb_err err = {0};
    size_t n, len;
    const char *s;
    int64_t i = 7;
    double d = 0;
    bool b = false;
    float row[8];
    const cb_gguf_kv *kv;
    gm_begin(&f);
    f.version = 2;
    gm_kv_text(&f, "name", "caf\xc3\xa9");
    gm_key(&f, "i8", 1);
    cb_buf_putc(&f.kv, (char)-3);
    gm_key(&f, "u16", 2);
    cb_buf_put(&f.kv, "\xff\xff", 2);
    gm_key(&f, "u64", 10);
    gm_u64v(&f.kv, UINT64_MAX);
    gm_key(&f, "i64", 11);
    gm_u64v(&f.kv, (uint64_t)-5);
    gm_kv_f32(&f, "f32", 0.5f);
    gm_key(&f, "f64", 12);
    d = 0.1;
    cb_buf_put(&f.kv, &d, 8);
    gm_kv_bool(&f, "yes", 1);
    gm_kv_bool(&f, "two", 2);
    gm_kv_f32(&f, "inf", INFINITY);
    gm_kv_array(&f, "list", 8, 2);
    gm_text(&f.kv, "one");
    gm_text(&f.kv, "");
    f.alignment = 64;
    gm_kv_u32(&f, "general.alignment", 64);
    float v[24];
    for (int k = 0; k < 24; k++) v[k] = (float)k;
    gm_tensor(&f, "z", 0, 8, 0, v, 32);
    gm_tensor(&f, "a", 0, 8, 2, v + 8, 64);
    uint8_t *data = gm_finish(&f, &n);
    assert_int_equal(cb_gguf_parse(&g, data, n, "x.gguf", &err), 0);
    assert_int_equal(g.version, 2);
    assert_int_equal(cb_gguf_text(&g, "name", &s, &len, &err), 1);
    assert_int_equal(len, 5);
    assert_memory_equal(s, "caf\xc3\xa9", 5);
    assert_int_equal(cb_gguf_int(&g, "absent", 0, 1, &i, &err), 0);
    assert_int_equal(i, 7);
    assert_int_equal(cb_gguf_int(&g, "i8", -10, 10, &i, &err), 1);
    assert_int_equal(i, -3);
    assert_int_equal(cb_gguf_int(&g, "u16", 0, 1 << 20, &i, &err), 1);
    assert_int_equal(i, 65535);
    assert_int_equal(cb_gguf_int(&g, "i64", INT64_MIN, 0, &i, &err), 1);
    assert_int_equal(i, -5);
    assert_int_equal(cb_gguf_int(&g, "u64", 0, 100, &i, &err), CB_EFORMAT);
    assert_non_null(strstr(err.text, "key u64 is 9223372036854775807, allowed are 0 to 100"));
    assert_int_equal(cb_gguf_int(&g, "f32", 0, 100, &i, &err), CB_EFORMAT);
    assert_string_equal(err.text, "x.gguf: key f32 is f32, not an integer");
    assert_int_equal(cb_gguf_int(&g, "list", 0, 100, &i, &err), CB_EFORMAT);
    assert_string_equal(err.text, "x.gguf: key list is an array of string, not an integer");
    assert_int_equal(cb_gguf_real(&g, "f32", &d, &err), 1);
    assert_true(d == 0.5);
    assert_int_equal(cb_gguf_real(&g, "f64", &d, &err), 1);
    assert_true(d == 0.1);
    assert_int_equal(cb_gguf_real(&g, "inf", &d, &err), CB_EFORMAT);
    assert_int_equal(cb_gguf_bool(&g, "yes", &b, &err), 1);
    assert_true(b);
    assert_int_equal(cb_gguf_bool(&g, "two", &b, &err), CB_EFORMAT);
    assert_int_equal(cb_gguf_bool(&g, "name", &b, &err), CB_EFORMAT);
    assert_int_equal(cb_gguf_text(&g, "yes", &s, &len, &err), CB_EFORMAT);
    assert_int_equal(cb_gguf_array(&g, "list", CB_GV_F32, &kv, &err), CB_EFORMAT);
    assert_int_equal(cb_gguf_array(&g, "list", CB_GV_STRING, &kv, &err), 1);
    assert_int_equal(kv->count, 2);
    const uint8_t *p = cb_gguf_next_text(kv->data, &s, &len);
    assert_int_equal(len, 3);
    cb_gguf_next_text(p, &s, &len);
    assert_int_equal(len, 0);
    assert_int_equal(g.n_tensors, 2);
    assert_null(cb_gguf_tensor_find(&g, "b"));
    const cb_gguf_tensor *t = cb_gguf_tensor_find(&g, "a");
    assert_non_null(t);
    assert_int_equal(t->rows, 2);
    assert_int_equal(t->cols, 8);
    cb_gblock_decode(t->type, t->data, 8, row);
    assert_memory_equal(row, v + 8, 32);
    cb_gguf_close(&g);

    /* every shorter file is refused and none is read past its end (each copy has its own exact size) */
    for (size_t k = 0; k < n; k++) {
        uint8_t *cut = malloc(k ? k : 1);
        memcpy(cut, data, k);
        assert_int_equal(cb_gguf_parse(&g, cut, k, "x.gguf", &err), CB_EFORMAT);
        free(cut);
    }
    /* out of memory at each allocation */
    for (uint64_t k = 1; k < 64; k++) {
        cb_alloc_fail_at(k);
        int rc = cb_gguf_parse(&g, data, n, "x.gguf", &err);
        cb_alloc_fail_at(0);
        if (rc == 0) break;
        assert_int_equal(rc, CB_ENOMEM);
    }
    cb_gguf_close(&g);
    cb_free(data);
}

static void test_header(void **state)
{
    gm_file f;
    cb_gguf g;
    cb_err err = {0};
    small(&f), f.version = 1, refuse(&f, "GGUF version 1; versions 2 and 3");
    small(&f), f.version = 4, refuse(&f, "GGUF version 4;");
    small(&f), f.version = 0x03000000, refuse(&f, "big-endian");
    small(&f), f.n_kv = UINT64_MAX, refuse(&f, "18446744073709551615 keys in");
    small(&f), f.n_kv = 2, refuse(&f, "inside the name of tensor 0");
    small(&f), f.n_tensors = UINT64_MAX, refuse(&f, "18446744073709551615 tensors in");
    small(&f), f.n_tensors = UINT64_MAX / sizeof(cb_gguf_tensor) + 2, refuse(&f, "tensors in");
    small(&f), f.n_tensors = 2, refuse(&f, "tensor 1");
    assert_int_equal(cb_gguf_parse(&g, (const uint8_t *)"GGML....", 8, "t", &err), CB_EFORMAT);
    assert_string_equal(err.text, "t: not a GGUF file");
    assert_int_equal(cb_gguf_parse(&g, NULL, 0, "t", &err), CB_EFORMAT);
    assert_int_equal(cb_gguf_open(&g, "tests/no-such.gguf", &err), CB_ENOTFOUND);
    assert_int_equal(cb_gguf_open(&g, "tests", &err), CB_EIO);
}

static void test_keys(void **state)
{
    gm_file f;
    small(&f), gm_kv_u32(&f, "general.architecture", 1), refuse(&f, "key general.architecture occurs twice");
    small(&f), gm_key(&f, "odd", 13), cb_buf_puts(&f.kv, "12345678"), refuse(&f, "key odd has the unknown type 13");
    small(&f), gm_kv_array(&f, "nested", 9, 1), gm_u32(&f.kv, 4), gm_u64v(&f.kv, 0), refuse(&f, "key nested is an array of arrays");
    small(&f), gm_kv_array(&f, "big", 4, UINT64_MAX / 4 + 2), refuse(&f, "key big holds 4611686018427387905 values of type u32, but only");
    small(&f), gm_kv_array(&f, "big", 8, 1ull << 60), refuse(&f, "key big holds 1152921504606846976 values of type string");
    small(&f), gm_kv_array(&f, "s", 8, 2), gm_text(&f.kv, "x"), gm_u64v(&f.kv, UINT64_MAX), refuse(&f, "string 1 of key s ends beyond");
    small(&f), gm_key(&f, "text", 8), gm_u64v(&f.kv, 1ull << 63), refuse(&f, "string 0 of key text ends beyond");
    small(&f), gm_kv_u32(&f, "", 1), refuse(&f, "the name of key 1 has 0 bytes");
    small(&f), gm_kv_u32(&f, "a\nb", 1), refuse(&f, "the name of key 1 is not printable ASCII");
    small(&f), gm_kv_u32(&f, "caf\xc3\xa9", 1), refuse(&f, "the name of key 1 is not printable ASCII");
    small(&f), gm_u64v(&f.kv, UINT64_MAX), f.n_kv++, refuse(&f, "inside the name of key 1");
    char name[1100];
    memset(name, 'x', sizeof name);
    name[1099] = 0;
    small(&f), gm_kv_u32(&f, name, 1), refuse(&f, "has 1099 bytes, allowed are 1 to 1024");
    small(&f), gm_kv_u32(&f, "general.alignment", 24), refuse(&f, "key general.alignment is 24, not a power of two");
    small(&f), gm_kv_u32(&f, "general.alignment", 0), refuse(&f, "key general.alignment is 0");
    small(&f), gm_kv_text(&f, "general.alignment", "32"), refuse(&f, "key general.alignment is string");
    small(&f), gm_kv_u32(&f, "general.alignment", 1u << 31), refuse(&f, "the file ends before the tensor data");
    small(&f), gm_kv_u32(&f, "split.count", 3), refuse(&f, "one of 3 parts");
}

static void info(gm_file *f, const char *name, uint32_t n_dims, const uint64_t *dims, uint32_t type, uint64_t offset)
{
    gm_text(&f->infos, name);
    gm_u32(&f->infos, n_dims);
    for (uint32_t i = 0; i < n_dims; i++) gm_u64v(&f->infos, dims[i]);
    gm_u32(&f->infos, type);
    gm_u64v(&f->infos, offset);
    f->n_tensors++;
}
#define DIMS(...) sizeof((uint64_t[]){__VA_ARGS__}) / 8, (uint64_t[]){__VA_ARGS__}

static void test_tensors(void **state)
{
    gm_file f;
    small(&f), info(&f, "a.weight", DIMS(8), 0, 128), cb_buf_put(&f.data, (char[32]){0}, 32), refuse(&f, "tensor a.weight occurs twice");
    small(&f), info(&f, "b", DIMS(8), 0, 96), refuse(&f, "tensors a.weight and b overlap");
    small(&f), info(&f, "b", DIMS(8), 0, 0), refuse(&f, "overlap");
    small(&f), info(&f, "b", DIMS(8), 0, 128), refuse(&f, "tensor b: 32 bytes at offset 128, but the file holds 128 bytes");
    small(&f), info(&f, "b", DIMS(8), 0, UINT64_MAX - 31), refuse(&f, "tensor b: 32 bytes at offset 18446744073709551584");
    small(&f), info(&f, "b", DIMS(8), 0, 100), refuse(&f, "tensor b: offset 100 is not a multiple of the alignment 32");
    small(&f), info(&f, "b", DIMS(0), 0, 128), refuse(&f, "tensor b: dimension 0 is 0");
    small(&f), info(&f, "b", DIMS(8, 0), 0, 128), refuse(&f, "tensor b: dimension 1 is 0");
    small(&f), info(&f, "b", DIMS(8, (uint64_t)-1), 0, 128), refuse(&f, "tensor b: dimension 1 is -1");
    small(&f), info(&f, "b", DIMS(32, 1ull << 40, 1ull << 40), 0, 128), refuse(&f, "tensor b: its dimensions overflow");
    small(&f), info(&f, "b", DIMS(1ull << 62), 0, 128), refuse(&f, "tensor b: its size overflows");
    small(&f), info(&f, "b", DIMS(1ull << 31, 1ull << 31), 0, 128), refuse(&f, "tensor b: its size overflows");
    small(&f), info(&f, "b", DIMS(33), 2, 128), refuse(&f, "tensor b: rows of 33 are not a multiple of the Q4_0 block of 32");
    small(&f), info(&f, "b", DIMS(128, 2), 14, 128), refuse(&f, "rows of 128 are not a multiple of the Q6_K block of 256");
    small(&f), info(&f, "b", DIMS(1, 1, 1, 1, 1), 0, 128), refuse(&f, "tensor b has 5 dimensions");
    small(&f), info(&f, "b", 0, NULL, 0, 128), refuse(&f, "tensor b has 0 dimensions");
    small(&f), info(&f, "b", DIMS(8), 4, 128), refuse(&f, "tensor b has the unknown type 4");
    small(&f), info(&f, "b", DIMS(8), 0xffffffff, 128), refuse(&f, "unknown type 4294967295");
    small(&f), info(&f, "b", DIMS(256), 23, 128), refuse(&f, "tensor b has type IQ4_XS, which is not supported");
    small(&f), info(&f, "b", DIMS(256), 15, 128), refuse(&f, "tensor b has type Q8_K, which is not supported");
    small(&f), info(&f, "", DIMS(8), 0, 128), refuse(&f, "the name of tensor 1 has 0 bytes");
    small(&f), info(&f, "b\x1b[2J", DIMS(8), 0, 128), refuse(&f, "the name of tensor 1 is not printable ASCII");
}

/* ---- blocks ---- */

static void test_golden(void **state)
{
    /* GGUF byte j = element j | element j+16 << 4; MLX byte b = element 2b | element 2b+1 << 4 */
    uint8_t q4[18] = {0, 0x3c}, out[32];
    for (int j = 0; j < 16; j++) q4[2 + j] = (uint8_t)(j | (15 - j) << 4); /* elements 0..15, then 15..0 */
    static const uint8_t want4[16] = {0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe, 0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01};
    cb_gblock_repack(cb_gblock_find(2), q4, 1, out);
    assert_memory_equal(out, want4, 16);

    uint8_t q8[34] = {0, 0x3c, 0, 1, 127, 128, 255};
    cb_gblock_repack(cb_gblock_find(8), q8, 1, out);
    assert_memory_equal(out, ((uint8_t[]){0x80, 0x81, 0xff, 0x00, 0x7f, 0x80}), 6);

    /* the 5-bit row of the format's description: codes 1 6 11 16 21 26 31 4 are c1 2c 58 f5 27 */
    uint8_t q5[22] = {0, 0x3c, 0x78, 0, 0, 0, 1, 6, 11, 0, 5, 10, 15, 4};
    cb_gblock_repack(cb_gblock_find(6), q5, 1, out);
    assert_memory_equal(out, ((uint8_t[]){0xc1, 0x2c, 0x58, 0xf5, 0x27}), 5);
}

static void test_scan(void **state)
{
    cb_gscan s;
    for (int i = 0; i < GM_N_TYPES; i++) {
        const gm_type *t = &gm_types[i];
        const cb_gblock *b = cb_gblock_find(t->id);
        assert_non_null(b);
        assert_string_equal(b->name, t->name);
        assert_int_equal(b->block, t->block);
        assert_int_equal(b->bytes, t->bytes);
        assert_int_equal(b->bits, t->bits);
        if (b->is_float) continue;
        gm_rng r = {(uint64_t)i};
        uint8_t data[3 * 210];
        for (int k = 0; k < 3; k++) gm_random_block(t, &r, data + k * t->bytes);
        for (int h = 0; h < 2; h++)
            for (int bad = 0; bad < 2 && t->half[h] >= 0; bad++) {
                uint8_t copy[sizeof data];
                memcpy(copy, data, sizeof data);
                /* a sub-block's factor 0 times infinity is NaN, so every element is looked at */
                gm_set_half(t, copy + t->bytes, h, bad ? 0x7e01 : 0xfc00);
                cb_gblock_scan(b, copy, 3, &s);
                assert_int_equal(s.bad_block, 1);
            }
        cb_gblock_scan(b, data, 3, &s);
        assert_int_equal(s.bad_block, -1);
    }
    /* the bias of a large scale leaves F16: 8 d > 65504 */
    uint8_t q4[18] = {0xff, 0x6f}; /* 8188: 8 times it is 65504 */
    cb_gblock_scan(cb_gblock_find(2), q4, 1, &s);
    assert_true(s.f16_exact);
    q4[1] = 0x70; /* 8192 + ... */
    cb_gblock_scan(cb_gblock_find(2), q4, 1, &s);
    assert_false(s.f16_exact);
}

/* Random blocks of every type: what the conversion decodes to is what the plain decoder says, to the bit (-0 is 0). */
static void test_values(void **state)
{
    for (int i = 0; i < GM_N_TYPES; i++) {
        const gm_type *t = &gm_types[i];
        gm_rng r = {(uint64_t)i + 100};
        for (int k = 0; k < 2000; k++) {
            uint8_t b[256];
            float got[256];
            gm_random_block(t, &r, b);
            cb_gblock_decode(cb_gblock_find(t->id), b, 1, got);
            for (int e = 0; e < t->block; e++) {
                float want = gm_value(t, b, e) + 0.0f, have = got[e] + 0.0f;
                if (memcmp(&want, &have, 4)) fail_msg("%s, block %d, element %d: %.9g, wanted %.9g", t->name, k, e, have, want);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_reads),   cmocka_unit_test(test_header),
                                       cmocka_unit_test(test_keys),    cmocka_unit_test(test_tensors),
                                       cmocka_unit_test(test_golden),  cmocka_unit_test(test_scan),
                                       cmocka_unit_test(test_values)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
