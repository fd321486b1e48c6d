/* io_writer: files of the safetensors writer are whole, aligned and readable, or absent. */
#include "base/mem.h"
#include "io/safetensors.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include "support/tmpdir.h"

static void round_trip(void **state)
{
    char dir[64];
    cb_err err = {0};
    cb_st_writer *w;
    const char *path = tmp_path(tmp_dir(dir), "model.safetensors");
    assert_int_equal(cb_st_writer_open(path, &w, &err), 0);
    const int64_t d1[] = {3, 5}, d2[] = {0, 7}, d3[] = {2, 2, 2};
    assert_int_equal(cb_st_writer_declare(w, "a.weight", CB_U8, d1, 2, &err), 0);
    assert_int_equal(cb_st_writer_declare(w, "empty", CB_F32, d2, 2, &err), 0);
    assert_int_equal(cb_st_writer_declare(w, "b", CB_U16, d3, 3, &err), 0);
    assert_int_equal(cb_st_writer_declare(w, "scalar", CB_F32, NULL, 0, &err), 0);
    assert_int_equal(cb_st_writer_declare(w, "b", CB_U16, d3, 3, &err), CB_EFORMAT);
    assert_int_equal(cb_st_writer_begin(w, &err), 0);
    uint8_t data[15 + 16 + 4];
    for (int i = 0; i < 35; i++) data[i] = (uint8_t)(i + 1);
    for (int i = 0; i < 35; i += 7) assert_int_equal(cb_st_writer_put(w, data + i, 7, &err), 0); /* pieces cross tensors */
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(cb_st_writer_commit(w, &err), 0);
    assert_int_equal(tmp_count(dir), 1);

    cb_st s;
    assert_int_equal(cb_st_open(&s, dir, "model.safetensors", &err), 0);
    assert_int_equal(s.n_tensors, 4);
    int seen = 0;
    for (int i = 0; i < 4; i++) {
        const cb_tensor *t = &s.tensors[i];
        assert_int_equal((t->data - s.map.data) % 64, 0);
        assert_string_equal(t->file, "model.safetensors");
        if (!strcmp(t->name, "a.weight")) seen |= 1, assert_memory_equal(t->data, data, 15), assert_int_equal(t->dims[1], 5);
        if (!strcmp(t->name, "empty")) seen |= 2, assert_int_equal(t->bytes, 0);
        if (!strcmp(t->name, "b")) seen |= 4, assert_memory_equal(t->data, data + 15, 16), assert_int_equal(t->n_dims, 3);
        if (!strcmp(t->name, "scalar")) seen |= 8, assert_memory_equal(t->data, data + 31, 4), assert_int_equal(t->n_dims, 0);
    }
    assert_int_equal(seen, 15);
    cb_st_close(&s);
    cb_weights *ws;
    assert_int_equal(cb_weights_open(dir, &ws, &err), 0);
    assert_int_equal(cb_weights_count(ws), 4);
    assert_non_null(cb_weights_find(ws, "scalar"));
    assert_null(cb_weights_find(ws, "scala"));
    cb_weights_close(ws);
    tmp_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(round_trip)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
