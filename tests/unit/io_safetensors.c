/* io_safetensors: every way a .safetensors file, or a folder of them, can be wrong, each with the message it must give. */
#include "base/mem.h"
#include "io/safetensors.h"
#include "../support/cputime.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include "support/tmpdir.h"

static const uint8_t zeros[4096];
static char dir[64];

static int setup(void **state)
{
    tmp_dir(dir);
    return 0;
}
static int teardown(void **state)
{
    tmp_remove(dir);
    return 0;
}

/* Opening fails with CB_EFORMAT and a line that holds every one of the words. */
static void expect_bad(const char *words[4])
{
    cb_weights *w;
    cb_err err = {0};
    int rc = cb_weights_open(dir, &w, &err);
    if (rc == 0) cb_weights_close(w);
    assert_int_equal(rc, CB_EFORMAT);
    assert_int_equal(err.code, CB_EFORMAT);
    assert_null(w);
    for (int i = 0; i < 4 && words[i]; i++)
        if (!strstr(err.text, words[i])) fail_msg("\"%s\" does not say \"%s\"", err.text, words[i]);
    assert_null(strchr(err.text, '\n'));
}

static void headers(void **state)
{
#define T(dt, shape, a, b) "{\"dtype\":\"" dt "\",\"shape\":[" shape "],\"data_offsets\":[" #a "," #b "]}"
    static const struct {
        const char *header, *words[4];
    } t[] = {
        {"", {"model.safetensors", "header"}},
        {"{", {"model.safetensors", "header"}},
        {"[]", {"not a JSON object"}},
        {"7", {"model.safetensors"}},
        {"{\"a\":" T("F32", "1", 0, 4) "} trailing", {"header"}},
        {"{\"a\":7}", {" a "}},
        {"{\"a\":{}}", {" a ", "dtype"}},
        {"{\"a\":{\"dtype\":1,\"shape\":[],\"data_offsets\":[0,4]}}", {" a "}},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":{},\"data_offsets\":[0,4]}}", {" a "}},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", {"a:", "data_offsets"}},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", {"a:", "data_offsets"}},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4.0]}}", {"a:", "data_offsets"}},
        {"{\"a\":" T("F31", "1", 0, 4) "}", {"model.safetensors", " a ", "\"F31\""}},
        {"{\"a\":" T("C64", "1", 0, 8) "}", {"\"C64\""}},
        {"{\"a\":" T("F32", "2", 0, 4) "}", {" a:", "span 4", "need 8"}},
        {"{\"a\":" T("F32", "1", 0, 8) "}", {" a:", "span 8", "need 4"}},
        {"{\"a\":" T("F32", "", 0, 8) "}", {"span 8", "need 4"}},
        {"{\"a\":" T("F32", "1", 8, 4) "}", {"[8,4]", "reversed"}},
        {"{\"a\":" T("F32", "1", -4, 0) "}", {"data_offsets"}},
        {"{\"a\":" T("F32", "-1", 0, 4) "}", {"dimension 0"}},
        {"{\"a\":" T("F32", "2,1.5", 0, 4) "}", {"dimension 1"}},
        {"{\"a\":" T("F32", "\"1\"", 0, 4) "}", {"dimension 0"}},
        {"{\"a\":" T("U8", "1000000", 0, 1000000) "}", {" a:", "[0,1000000]", "leave the file", "4096 data bytes"}},
        {"{\"a\":" T("F32", "1", 4096, 4100) "}", {"[4096,4100]", "leave the file"}},
        {"{\"a\":" T("U8", "9223372036854775807", 0, 9223372036854775807) "}", {"leave the file"}},
        {"{\"a\":" T("U8", "9223372036854775807,2,2", 0, 4) "}", {" a:", "overflows"}},
        {"{\"a\":" T("F64", "2305843009213693952", 0, 0) "}", {"overflows"}},
        {"{\"a\":" T("F32", "4294967296,4294967296", 0, 0) "}", {"overflows"}},
        {"{\"a\":" T("U8", "18446744073709551617", 0, 1) "}", {"header"}},
        {"{\"a\":" T("U8", "1,1,1,1,1,1,1,1,1", 0, 1) "}", {" a ", "9 dimensions", "8"}},
        {"{\"a\":" T("F32", "1", 0, 4) ",\"b\":" T("F32", "1", 2, 6) "}", {" a [0,4]", "b [2,6]", "overlap"}},
        {"{\"a\":" T("F32", "1", 0, 4) ",\"b\":" T("F32", "1", 0, 4) "}", {"overlap"}},
        {"{\"a\":" T("U8", "100", 0, 100) ",\"e\":" T("F32", "0", 50, 50) ",\"b\":" T("U8", "1", 60, 61) "}", {"a [0,100]", "b [60,61]"}},
        {"{\"a\":" T("F32", "1", 0, 4) ",\"a\":" T("F32", "1", 4, 8) "}", {"duplicate", "\"a\""}},
        {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", {"duplicate"}},
        {"{\"a\\u0000b\":" T("F32", "1", 0, 4) "}", {"header"}},
        {"{\"a\xff\":" T("F32", "1", 0, 4) "}", {"header"}},
        {"{\"a\\u001b[2J\":" T("F31", "1", 0, 4) "}", {"a?[2J"}}, /* no control characters reach a terminal */
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        tmp_st(dir, "model.safetensors", t[i].header, zeros, sizeof zeros);
        expect_bad((const char **)t[i].words);
    }
}

static void lengths(void **state)
{
    static const struct {
        uint8_t h[8];
        const char *words[4];
    } t[] = {
        {{0, 0, 0, 0, 0, 0, 0, 0x80}, {"9223372036854775808", "100000000"}},
        {{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, {"18446744073709551615"}},
        {{1, 0xe1, 0xf5, 5}, {"100000001"}},
        {{0, 0xe1, 0xf5, 5}, {"100000000 bytes", "truncated"}},
        {{25}, {"25 bytes", "32", "truncated"}},
        {{24}, {"header"}}, /* all of the file, but NUL bytes are no JSON */
        {{0}, {"header"}},
    };
    uint8_t file[32];
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        memset(file, 0, sizeof file);
        memcpy(file, t[i].h, 8);
        tmp_put(dir, "model.safetensors", file, sizeof file);
        expect_bad((const char **)t[i].words);
    }
    for (size_t n = 0; n < 8; n++) {
        tmp_put(dir, "model.safetensors", file, n);
        expect_bad((const char *[4]){"model.safetensors", "too few"});
    }
}

/* A good file cut anywhere is an error, never a crash. */
static void truncated(void **state)
{
    static const char header[] = "{\"a\":" T("F32", "4", 0, 16) ",\"b\":" T("U8", "3", 16, 19) "}";
    const size_t all = 8 + sizeof header - 1 + 19;
    char *file = calloc(1, all);
    file[0] = sizeof header - 1;
    memcpy(file + 8, header, sizeof header - 1);
    for (size_t n = 0; n < all; n++) {
        tmp_put(dir, "model.safetensors", file, n);
        expect_bad((const char *[4]){"model.safetensors"});
    }
    cb_weights *w;
    cb_err err;
    tmp_put(dir, "model.safetensors", file, all);
    assert_int_equal(cb_weights_open(dir, &w, &err), 0);
    assert_int_equal(cb_weights_bytes(w), all);
    assert_int_equal(err.code, 0);
    cb_weights_close(w);
    free(file);
}

static void names_too_long(void **state)
{
    cb_buf b;
    cb_buf_init(&b, 0);
    cb_buf_puts(&b, "{\"");
    for (int i = 0; i < 513; i++) cb_buf_putc(&b, 'x');
    cb_buf_puts(&b, "\":" T("F32", "1", 0, 4) "}");
    tmp_st(dir, "model.safetensors", b.data, zeros, 4);
    cb_buf_fini(&b);
    expect_bad((const char *[4]){"513 bytes", "512"});
    cb_buf_init(&b, 0);
    for (int i = 0; i < 5000; i++) cb_buf_puts(&b, "{\"a\":");
    tmp_st(dir, "model.safetensors", b.data, zeros, 4);
    cb_buf_fini(&b);
    expect_bad((const char *[4]){"header"});
}

/* What is unusual but right: gaps, empty tensors anywhere, no tensors, padding, odd offsets, names in any order. */
static void good(void **state)
{
    static const struct {
        const char *header;
        int n;
    } t[] = {
        {"{}", 0},
        {"{\"__metadata__\":{\"format\":\"mlx\"}}", 0},
        {"{\"__metadata__\":7,\"a\":" T("F32", "", 0, 4) "}    ", 1},
        {"{\"b\":" T("U16", "3", 101, 107) ",\"a\":" T("F32", "1", 7, 11) "}", 2},
        {"{\"a\":" T("U8", "100", 0, 100) ",\"e\":" T("F32", "3,0", 50, 50) ",\"f\":" T("F32", "0", 4096, 4096) "}", 3},
        {"{\"a\":" T("U8", "0,9223372036854775807,9223372036854775807", 0, 0) "}", 1},
        {"{\"a\":" T("U8", "1,1,1,1,1,1,1,1", 0, 1) "}", 1},
        {"{\"a\":{\"dtype\":\"F8_E4M3\",\"shape\":[4],\"data_offsets\":[0,4],\"more\":[{}]}}", 1},
        {"{\"\":" T("BOOL", "1", 0, 1) "}", 1},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        cb_weights *w;
        cb_err err = {0};
        tmp_st(dir, "model.safetensors", t[i].header, zeros, sizeof zeros);
        if (cb_weights_open(dir, &w, &err) != 0) fail_msg("%s: %s", t[i].header, err.text);
        assert_int_equal(cb_weights_count(w), t[i].n);
        for (int k = 1; k < t[i].n; k++) assert_true(strcmp(cb_weights_at(w, k - 1)->name, cb_weights_at(w, k)->name) < 0);
        cb_weights_close(w);
    }
}

/* ---- several files ---- */

static void index_text(const char *map)
{
    char text[1024];
    snprintf(text, sizeof text, "{\"metadata\":{\"total_size\":1},\"weight_map\":%s}", map);
    tmp_text(dir, "model.safetensors.index.json", text);
}

static void shards(void **state)
{
    cb_weights *w;
    cb_err err = {0};
    assert_int_equal(cb_weights_open("/nonexistent/folder", &w, &err), CB_ENOTFOUND);
    assert_non_null(strstr(err.text, "/nonexistent/folder"));
    expect_bad((const char *[4]){"no model*.safetensors"});

    tmp_st(dir, "model-00001-of-00002.safetensors", "{\"a\":" T("F32", "1", 0, 4) ",\"c\":" T("F32", "1", 4, 8) "}", zeros, 8);
    expect_bad((const char *[4]){"1 weight files of 2"});
    index_text("{\"a\":\"model-00001-of-00002.safetensors\",\"b\":\"model-00002-of-00002.safetensors\"}");
    expect_bad((const char *[4]){"missing weight file", "model-00002-of-00002.safetensors"});

    tmp_st(dir, "model-00002-of-00002.safetensors", "{\"b\":" T("BF16", "2", 0, 4) "}", zeros, 4);
    assert_int_equal(cb_weights_open(dir, &w, &err), 0);
    assert_int_equal(cb_weights_count(w), 3);
    assert_int_equal(cb_weights_n_files(w), 2);
    assert_string_equal(cb_weights_find(w, "b")->file, "model-00002-of-00002.safetensors");
    cb_weights_close(w);

    index_text("{\"a\":\"model-00002-of-00002.safetensors\",\"b\":\"model-00002-of-00002.safetensors\",\"c\":\"model-00001-of-00002.safetensors\"}");
    expect_bad((const char *[4]){"tensor a", "said to be in model-00002-of-00002", "is in model-00001-of-00002"});
    index_text("{\"x\":\"model-00001-of-00002.safetensors\"}");
    expect_bad((const char *[4]){"tensor x", "not in model-00001-of-00002.safetensors"});
    static const char *const names[] = {"7", "\"../b.safetensors\"", "\"/a.safetensors\"", "\"model.bin\"", "\"\"", "null", "[]"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char map[256];
        snprintf(map, sizeof map, "{\"a\":%s}", names[i]);
        index_text(map);
        expect_bad((const char *[4]){"weight_map.a"});
    }
    index_text("{}");
    expect_bad((const char *[4]){"weight_map is empty"});
    index_text("[]");
    expect_bad((const char *[4]){"weight_map is not an object"});
    tmp_text(dir, "model.safetensors.index.json", "{\"weight_map\":");
    expect_bad((const char *[4]){"model.safetensors.index.json", "line 1"});

    unlink(tmp_path(dir, "model.safetensors.index.json"));
    tmp_st(dir, "model-00002-of-00002.safetensors", "{\"a\":" T("F32", "1", 0, 4) "}", zeros, 4);
    expect_bad((const char *[4]){"tensor a", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"});
    /* A stale shard that the index does not name is no part of the checkpoint. */
    tmp_st(dir, "model-00003-of-00009.safetensors", "garbage", zeros, 4);
    tmp_st(dir, "other.safetensors", "garbage", zeros, 4);
    index_text("{\"a\":\"model-00001-of-00002.safetensors\"}");
    assert_int_equal(cb_weights_open(dir, &w, &err), 0);
    assert_int_equal(cb_weights_n_files(w), 1);
    cb_weights_close(w);
}

static void not_files(void **state)
{
    cb_weights *w;
    cb_err err;
    assert_int_equal(mkdir(tmp_path(dir, "model.safetensors"), 0777), 0);
    assert_int_equal(cb_weights_open(dir, &w, &err), CB_EIO);
    rmdir(tmp_path(dir, "model.safetensors"));
    assert_int_equal(mkfifo(tmp_path(dir, "model.safetensors"), 0666), 0); /* must not wait for a writer */
    assert_int_equal(cb_weights_open(dir, &w, &err), CB_EIO);
    assert_non_null(strstr(err.text, "not a regular file"));
    unlink(tmp_path(dir, "model.safetensors"));
    assert_int_equal(symlink("model.safetensors", tmp_path(dir, "model.safetensors")), 0);
    assert_true(cb_weights_open(dir, &w, &err) < 0);
}

/* ---- links of a Hugging Face cache ---- */

static void links(void **state)
{
    cb_weights *w;
    cb_config *c;
    cb_err err = {0};
    char snap[256], blobs[256];
    snprintf(snap, sizeof snap, "%s/models--o--n/snapshots/0123456789", dir);
    snprintf(blobs, sizeof blobs, "%s/models--o--n/blobs", dir);
    assert_int_equal(mkdir(tmp_path(dir, "models--o--n"), 0777), 0);
    assert_int_equal(mkdir(tmp_path(dir, "models--o--n/snapshots"), 0777), 0);
    assert_int_equal(mkdir(snap, 0777), 0);
    assert_int_equal(mkdir(blobs, 0777), 0);
    tmp_st(blobs, "x", "{\"a\":" T("F32", "1", 0, 4) "}", zeros, 4);
    tmp_st(dir, "outside", "{\"a\":" T("F32", "1", 0, 4) "}", zeros, 4);
    tmp_text(dir, "outside.json", "{\"model_type\":\"llama\"}");
    assert_int_equal(symlink("../../blobs/x", tmp_path(snap, "model.safetensors")), 0);
    assert_int_equal(cb_weights_open(snap, &w, &err), 0);
    cb_weights_close(w);

    unlink(tmp_path(snap, "model.safetensors"));
    assert_int_equal(symlink("../../../outside", tmp_path(snap, "model.safetensors")), 0);
    assert_int_equal(cb_weights_open(snap, &w, &err), CB_EFORMAT);
    assert_non_null(strstr(err.text, "model.safetensors: its link leaves"));
    assert_int_equal(symlink("../../../outside.json", tmp_path(snap, "config.json")), 0);
    assert_int_equal(cb_config_open(snap, &c, &err), CB_EFORMAT);
    assert_non_null(strstr(err.text, "config.json: its link leaves"));
    /* the same through a link to the snapshot from elsewhere */
    assert_int_equal(symlink(snap, tmp_path(dir, "alias")), 0);
    assert_int_equal(cb_weights_open(tmp_path(dir, "alias"), &w, &err), CB_EFORMAT);
    /* a sibling folder whose name starts alike is outside too */
    assert_int_equal(mkdir(tmp_path(dir, "models--o--nn"), 0777), 0);
    tmp_st(tmp_path(dir, "models--o--nn"), "x", "{\"a\":" T("F32", "1", 0, 4) "}", zeros, 4);
    unlink(tmp_path(snap, "model.safetensors"));
    assert_int_equal(symlink("../../../models--o--nn/x", tmp_path(snap, "model.safetensors")), 0);
    assert_int_equal(cb_weights_open(snap, &w, &err), CB_EFORMAT);
    /* outside a cache a link may lead anywhere */
    assert_int_equal(symlink("outside", tmp_path(dir, "model.safetensors")), 0);
    assert_int_equal(cb_weights_open(dir, &w, &err), 0);
    cb_weights_close(w);
}

/* ---- size ---- */

static void many_tensors(void **state)
{
    const int n = 20000;
    cb_buf b;
    cb_buf_init(&b, 0);
    cb_buf_putc(&b, '{');
    for (int i = 0; i < n; i++)
        cb_buf_printf(&b, "%s\"language_model.model.layers.%d.mlp.experts.gate_proj.weight\":{\"dtype\":\"BF16\",\"shape\":[1,2],\"data_offsets\":[%d,%d]}",
                      i ? "," : "", (int)((int64_t)i * 7919 % n), 4 * i, 4 * i + 4);
    cb_buf_putc(&b, '}');
    uint8_t *data = calloc((size_t)n, 4);
    tmp_st(dir, "model.safetensors", b.data, data, (size_t)n * 4);
    free(data);
    cb_buf_fini(&b);
    cb_weights *w;
    cb_err err;
    double t0 = tt_cpu();
    assert_int_equal(cb_weights_open(dir, &w, &err), 0);
    double ms = 1e3 * (tt_cpu() - t0);
    assert_int_equal(cb_weights_count(w), n);
    char name[128];
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "language_model.model.layers.%d.mlp.experts.gate_proj.weight", i);
        assert_non_null(cb_weights_find(w, name));
    }
    cb_weights_close(w);
    print_message("%d tensors opened in %.1f ms\n", n, ms);
    assert_true(tt_within(ms / 1e3, 1)); /* 100 ms for 2,000 */
}

/* A file of 20 GiB of which only the header is on the disk: opening it must not read or copy the data. */
static void huge_file(void **state)
{
    const int64_t n = (int64_t)20 << 30;
    char header[256];
    int h = snprintf(header, sizeof header, "{\"a\":{\"dtype\":\"U8\",\"shape\":[%lld],\"data_offsets\":[0,%lld]}}", (long long)n, (long long)n);
    tmp_st(dir, "model.safetensors", header, NULL, 0);
    if (truncate(tmp_path(dir, "model.safetensors"), 8 + h + n) != 0) skip();
    cb_weights *w;
    cb_err err;
    double t0 = tt_cpu();
    assert_int_equal(cb_weights_open(dir, &w, &err), 0);
    double s = tt_cpu() - t0;
    const cb_tensor *t = cb_weights_find(w, "a");
    assert_true(t->bytes == (uint64_t)n && t->data[n - 1] == 0);
    cb_weights_close(w);
    assert_true(tt_within(s, 0.5));
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(headers), CASE(lengths),   CASE(truncated), CASE(names_too_long), CASE(good),
        CASE(shards),  CASE(not_files), CASE(links),     CASE(many_tensors),   CASE(huge_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
