/* io_faults: every allocation of opening, finding and writing a small checkpoint fails once. The library's own must give
 * CB_ENOMEM; jansson's may give another error, but never a crash, a leak (the ASAN run) or a wrong success. */
#include "base/mem.h"
#include "io/safetensors.h"
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include "support/tmpdir.h"

static char dir[64];

static int write_one(const char *name, const char *tensor, cb_err *err)
{
    cb_st_writer *w;
    char path[128];
    const int64_t d[] = {2, 8};
    static const uint8_t data[64];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int rc = cb_st_writer_open(path, &w, err);
    if (rc < 0) return rc;
    if ((rc = cb_st_writer_declare(w, tensor, CB_F32, d, 2, err)) < 0 || (rc = cb_st_writer_begin(w, err)) < 0 ||
        (rc = cb_st_writer_put(w, data, sizeof data, err)) < 0) {
        cb_st_writer_abort(w);
        return rc;
    }
    return cb_st_writer_commit(w, err);
}

static int open_all(cb_err *err)
{
    cb_weights *w = NULL;
    cb_config *c = NULL;
    cb_matrix m;
    int rc = cb_config_open(dir, &c, err);
    if (rc == 0) rc = cb_weights_open(dir, &w, err);
    if (rc == 0) rc = cb_matrix_find(w, c, "a", 1, 2, 8, &m, err);
    if (rc == 1) rc = 0;
    cb_weights_close(w);
    cb_config_close(c);
    return rc;
}

static int find_it(cb_err *err)
{
    char path[4096];
    int rc = cb_model_find("org/none", dir, path, sizeof path, err);
    if (rc == CB_ENOTFOUND) rc = 0; /* expected; the near names may be lost to memory */
    return rc ? rc : cb_model_find("org/name", dir, path, sizeof path, err);
}

static int write_it(cb_err *err) { return write_one("model-3.safetensors", "c", err); }

static void walk(int (*fn)(cb_err *), bool only_enomem)
{
    int files = tmp_count(dir);
    for (uint64_t n = 1;; n++) {
        cb_err err = {0};
        assert_true(n < 5000);
        cb_alloc_fail_at(n);
        uint64_t before = cb_alloc_count();
        int rc = fn(&err);
        bool reached = cb_alloc_count() - before >= n - 1 && rc != 0;
        cb_alloc_fail_at(0);
        if (rc == 0) {
            if (cb_alloc_count() - before < n) break; /* the n-th was never asked for */
            files = tmp_count(dir);
            continue; /* an allocation that can be done without */
        }
        assert_true(reached);
        if (only_enomem && rc != CB_ENOMEM) fail_msg("allocation %llu: %d, %s", (unsigned long long)n, rc, err.text);
        assert_int_equal(err.code, rc);
        assert_true(err.text[0]);
        assert_int_equal(tmp_count(dir), files);
    }
}

static void own(void **state)
{
    walk(open_all, true);
    walk(find_it, true);
}
static void own_writer(void **state) { walk(write_it, true); }

static void with_jansson(void **state)
{
    json_set_alloc_funcs(cb_alloc, cb_free);
    walk(open_all, false);
    walk(find_it, false);
    walk(write_it, false);
    json_set_alloc_funcs(malloc, free);
}

static int setup(void **state)
{
    cb_err err;
    char snap[256];
    tmp_dir(dir);
    tmp_text(dir, "config.json", "{\"model_type\":\"x\",\"quantization\":{\"bits\":4,\"group_size\":64,\"a\":false}}");
    tmp_text(dir, "model.safetensors.index.json", "{\"weight_map\":{\"a.weight\":\"model-1.safetensors\",\"b\":\"model-2.safetensors\"}}");
    assert_int_equal(write_one("model-1.safetensors", "a.weight", &err), 0);
    assert_int_equal(write_one("model-2.safetensors", "b", &err), 0);
    assert_int_equal(mkdir(tmp_path(dir, "models--org--name"), 0777), 0);
    assert_int_equal(mkdir(tmp_path(dir, "models--org--name/refs"), 0777), 0);
    assert_int_equal(mkdir(tmp_path(dir, "models--org--name/snapshots"), 0777), 0);
    snprintf(snap, sizeof snap, "%s/models--org--name/snapshots/0123456789abcdef0123456789abcdef01234567", dir);
    assert_int_equal(mkdir(snap, 0777), 0);
    tmp_text(tmp_path(dir, "models--org--name/refs"), "main", "0123456789abcdef0123456789abcdef01234567");
    tmp_text(snap, "config.json", "{}");
    tmp_text(snap, "tokenizer.json", "{}");
    tmp_st(snap, "model.safetensors", "{}", NULL, 0);
    return 0;
}
static int teardown(void **state)
{
    tmp_remove(dir);
    return 0;
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {CASE(own), CASE(own_writer), CASE(with_jansson)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
