/* io_writer: files of the safetensors writer are whole, aligned and readable, or absent: after an abort, a kill at any moment
 * and a full disk nothing is left under the final name. */
#include "base/mem.h"
#include "io/safetensors.h"
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <cmocka.h>
#include "support/cputime.h"
#include "support/tmpdir.h"

static char dir[64];
static cb_err err;

static int setup(void **state)
{
    tmp_dir(dir);
    err = (cb_err){0};
    return 0;
}
static int teardown(void **state)
{
    tmp_remove(dir);
    return 0;
}

static void round_trip(void **state)
{
    cb_st_writer *w;
    const char *path = tmp_path(dir, "model.safetensors");
    assert_int_equal(cb_st_writer_open(path, &w, &err), 0);
    const int64_t d1[] = {3, 5}, d2[] = {0, 7}, d3[] = {2, 2, 2};
    assert_int_equal(cb_st_writer_declare(w, "a.weight", CB_U8, d1, 2, &err), 0);
    assert_int_equal(cb_st_writer_declare(w, "empty", CB_F32, d2, 2, &err), 0);
    assert_int_equal(cb_st_writer_declare(w, "b", CB_U16, d3, 3, &err), 0);
    assert_int_equal(cb_st_writer_declare(w, "scalar", CB_F32, NULL, 0, &err), 0);
    assert_int_equal(cb_st_writer_declare(w, "last", CB_F32, d2, 2, &err), 0);
    assert_int_equal(cb_st_writer_declare(w, "b", CB_U16, d3, 3, &err), CB_EFORMAT);
    assert_int_equal(cb_st_writer_begin(w, &err), 0);
    uint8_t data[15 + 16 + 4];
    for (int i = 0; i < 35; i++) data[i] = (uint8_t)(i + 1);
    for (int i = 0; i < 35; i += 7) assert_int_equal(cb_st_writer_put(w, data + i, 7, &err), 0); /* pieces cross tensors */
    assert_int_equal(cb_st_writer_put(w, data, 1, &err), CB_EUSAGE);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(cb_st_writer_commit(w, &err), 0);
    assert_int_equal(tmp_count(dir), 1);

    cb_st s;
    assert_int_equal(cb_st_open(&s, dir, "model.safetensors", &err), 0);
    assert_int_equal(s.n_tensors, 5);
    int seen = 0;
    for (int i = 0; i < 5; i++) {
        const cb_tensor *t = &s.tensors[i];
        assert_int_equal((t->data - s.map.data) % 64, 0);
        assert_string_equal(t->file, "model.safetensors");
        if (!strcmp(t->name, "a.weight")) seen |= 1, assert_memory_equal(t->data, data, 15), assert_int_equal(t->dims[1], 5);
        if (!strcmp(t->name, "empty")) seen |= 2, assert_int_equal(t->bytes, 0);
        if (!strcmp(t->name, "b")) seen |= 4, assert_memory_equal(t->data, data + 15, 16), assert_int_equal(t->n_dims, 3);
        if (!strcmp(t->name, "scalar")) seen |= 8, assert_memory_equal(t->data, data + 31, 4), assert_int_equal(t->n_dims, 0);
        if (!strcmp(t->name, "last")) seen |= 16, assert_int_equal(t->bytes, 0);
    }
    assert_int_equal(seen, 31);
    cb_st_close(&s);
}

static void nothing_in_it(void **state)
{
    cb_st_writer *w;
    cb_st s;
    assert_int_equal(cb_st_writer_open(tmp_path(dir, "x.safetensors"), &w, &err), 0);
    assert_int_equal(cb_st_writer_begin(w, &err), 0);
    assert_int_equal(cb_st_writer_commit(w, &err), 0);
    assert_int_equal(cb_st_open(&s, dir, "x.safetensors", &err), 0);
    assert_int_equal(s.n_tensors, 0);
    cb_st_close(&s);
    assert_int_equal(cb_st_writer_open(tmp_path(dir, "none/x.safetensors"), &w, &err), CB_EIO);
    assert_null(w);
    assert_non_null(strstr(err.text, "none/x.safetensors"));
}

static const int64_t kb[] = {1000};

/* A writer with two tensors of 1000 bytes that has put n bytes. */
static cb_st_writer *half_done(const char *path, size_t n)
{
    static const uint8_t data[2000];
    cb_st_writer *w;
    assert_int_equal(cb_st_writer_open(path, &w, &err), 0);
    assert_int_equal(cb_st_writer_declare(w, "a", CB_U8, kb, 1, &err), 0);
    assert_int_equal(cb_st_writer_declare(w, "b", CB_U8, kb, 1, &err), 0);
    assert_int_equal(cb_st_writer_begin(w, &err), 0);
    assert_int_equal(cb_st_writer_put(w, data, n, &err), 0);
    return w;
}

static void unfinished(void **state)
{
    const char *path = tmp_path(dir, "m.safetensors");
    cb_st_writer_abort(half_done(path, 500));
    cb_st_writer_abort(NULL);
    assert_int_equal(tmp_count(dir), 0);
    assert_int_equal(cb_st_writer_commit(half_done(path, 1999), &err), CB_EUSAGE);
    assert_non_null(strstr(err.text, "tensor 2 of 2 got 999 bytes of 1000"));
    assert_int_equal(tmp_count(dir), 0);
    cb_st_writer *w;
    assert_int_equal(cb_st_writer_open(path, &w, &err), 0);
    assert_int_equal(cb_st_writer_commit(w, &err), CB_EUSAGE); /* never begun */
    assert_int_equal(tmp_count(dir), 0);
    /* an older file of that name outlives a failed one, and is replaced by a good one */
    tmp_text(dir, "m.safetensors", "old");
    cb_st_writer_abort(half_done(path, 2000));
    struct stat st;
    assert_true(stat(path, &st) == 0 && st.st_size == 3);
    assert_int_equal(cb_st_writer_commit(half_done(path, 2000), &err), 0);
    assert_true(stat(path, &st) == 0 && st.st_size > 2000);
    assert_int_equal(tmp_count(dir), 1);
}

static void killed(void **state)
{
    const char *path = tmp_path(dir, "m.safetensors");
    pid_t pid = fork();
    if (pid == 0) {
        half_done(path, 1999);
        kill(getpid(), SIGKILL);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_int_equal(access(path, F_OK), -1); /* the partial file has another name, and no one opens that */
    assert_int_equal(tmp_count(dir), 1);
}

static void declarations(void **state)
{
    cb_st_writer *w;
    const int64_t neg[] = {-1}, big[] = {INT64_MAX, 4}, nine[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1}, max[] = {INT64_MAX};
    assert_int_equal(cb_st_writer_open(tmp_path(dir, "x"), &w, &err), 0);
    assert_int_equal(cb_st_writer_declare(w, "a", CB_U8, neg, 1, &err), CB_EFORMAT);
    assert_int_equal(cb_st_writer_declare(w, "a", CB_F32, big, 2, &err), CB_EFORMAT);
    assert_int_equal(cb_st_writer_declare(w, "a", CB_U8, nine, 9, &err), CB_EUSAGE);
    assert_int_equal(cb_st_writer_declare(w, "a\xff", CB_U8, nine, 1, &err), CB_EFORMAT);
    assert_int_equal(cb_st_writer_declare(w, "__metadata__", CB_U8, nine, 1, &err), CB_EFORMAT);
    assert_int_equal(cb_st_writer_declare(w, "a", CB_U8, nine, 1, &err), 0);
    assert_int_equal(cb_st_writer_declare(w, "b", CB_U8, max, 1, &err), CB_EFORMAT); /* 2^63 in all */
    cb_st_writer_abort(w);
    /* more than any disk has free: refused before the first byte, with both numbers */
    const int64_t eib[] = {(int64_t)1 << 60};
    assert_int_equal(cb_st_writer_open(tmp_path(dir, "x"), &w, &err), 0);
    assert_int_equal(cb_st_writer_declare(w, "a", CB_U8, eib, 1, &err), 0);
    assert_int_equal(cb_st_writer_begin(w, &err), CB_EIO);
    assert_non_null(strstr(err.text, "needs 11529215046068"));
    assert_non_null(strstr(err.text, "free"));
    cb_st_writer_abort(w);
    assert_int_equal(tmp_count(dir), 0);
}

/* Writes 64 MiB, expecting the disk to be full on the way. */
static void write_until_full(const char *path, bool said_before)
{
    const int64_t n[] = {64 << 20};
    static uint8_t mib[1 << 20];
    cb_st_writer *w;
    assert_int_equal(cb_st_writer_open(path, &w, &err), 0);
    assert_int_equal(cb_st_writer_declare(w, "a", CB_U8, n, 1, &err), 0);
    int rc = cb_st_writer_begin(w, &err);
    if (said_before) assert_int_equal(rc, CB_EIO);
    else assert_int_equal(rc, 0);
    for (int i = 0; !rc && i < 64; i++) rc = cb_st_writer_put(w, mib, sizeof mib, &err);
    if (rc == 0) rc = cb_st_writer_commit(w, &err);
    else cb_st_writer_abort(w);
    assert_int_equal(rc, CB_EIO);
    assert_non_null(strstr(err.text, path));
}

/* A file size limit stands for a disk that fills up while writing: the child reports through its exit status. */
static void full_disk(void **state)
{
    const char *path = tmp_path(dir, "m.safetensors");
    for (int i = 0; i < 3; i++) {
        /* in the middle of the data, in stdio's last buffer, and in the header already */
        const rlim_t limits[] = {10 << 20, 512, 0};
        pid_t pid = fork();
        if (pid == 0) {
            struct rlimit r = {limits[i], limits[i]};
            signal(SIGXFSZ, SIG_IGN);
            if (setrlimit(RLIMIT_FSIZE, &r) != 0) _exit(2);
            cb_st_writer *w;
            const int64_t n[] = {i ? 1000 : 64 << 20};
            static uint8_t mib[1 << 20];
            int rc = cb_st_writer_open(path, &w, &err);
            if (rc == 0) rc = cb_st_writer_declare(w, "a", CB_U8, n, 1, &err);
            if (rc == 0) rc = cb_st_writer_begin(w, &err);
            for (int64_t k = n[0]; rc == 0 && k > 0; k -= (int64_t)sizeof mib)
                rc = cb_st_writer_put(w, mib, k < (int64_t)sizeof mib ? (size_t)k : sizeof mib, &err);
            if (rc == 0) rc = cb_st_writer_commit(w, &err);
            else cb_st_writer_abort(w);
            _exit(rc == CB_EIO && strstr(err.text, "m.safetensors") && strstr(err.text, "too large") ? 0 : 1);
        }
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        assert_int_equal(tmp_count(dir), 0);
    }
}

/* A real full disk of 8 MiB, where mounting is allowed. */
static void small_disk(void **state)
{
    const char *at = tmp_path(dir, "disk");
    char path[256];
    assert_int_equal(mkdir(at, 0777), 0);
    if (mount("none", at, "tmpfs", 0, "size=8m") != 0) skip();
    snprintf(path, sizeof path, "%s/m.safetensors", at);
    write_until_full(path, true);
    int left = tmp_count(at);
    umount(at);
    assert_int_equal(left, 0);
}

/* Pieces at their places, in any order, make the same file as the single pass; a missing byte is noticed. */
static void placed(void **state)
{
    const int64_t d1[] = {3, 5}, d2[] = {0, 7}, d3[] = {70};
    uint8_t data[15 + 70];
    for (int i = 0; i < 85; i++) data[i] = (uint8_t)(i + 1);
    for (int at = 0; at < 3; at++) {
        cb_st_writer *w;
        assert_int_equal(cb_st_writer_open(tmp_path(dir, at == 2 ? "2" : at ? "1" : "0"), &w, &err), 0);
        assert_int_equal(cb_st_writer_declare(w, "a", CB_U8, d1, 2, &err), 0);
        assert_int_equal(cb_st_writer_declare(w, "empty", CB_F32, d2, 2, &err), 0);
        assert_int_equal(cb_st_writer_declare(w, "b", CB_U8, d3, 1, &err), 0);
        assert_int_equal(cb_st_writer_begin(w, &err), 0);
        if (!at) assert_int_equal(cb_st_writer_put(w, data, 85, &err), 0);
        else {
            uint64_t b = cb_st_writer_offset(w, 2);
            assert_int_equal(b, 64);
            assert_int_equal(cb_st_writer_put_at(w, b + 30, data + 45, 40, &err), 0);
            assert_int_equal(cb_st_writer_put_at(w, 0, data, 15, &err), 0);
            if (at == 1) assert_int_equal(cb_st_writer_put_at(w, b, data + 15, 30, &err), 0);
        }
        assert_int_equal(cb_st_writer_commit(w, &err), at == 2 ? CB_EUSAGE : 0);
    }
    assert_int_equal(tmp_count(dir), 2);
    cb_map a, b;
    assert_int_equal(cb_map_open(&a, dir, "0", &err), 0);
    assert_int_equal(cb_map_open(&b, dir, "1", &err), 0);
    assert_int_equal(a.n, b.n);
    assert_memory_equal(a.data, b.data, a.n);
    cb_map_close(&a);
    cb_map_close(&b);
}

/* 64 GiB of zeros, as a hole (2 GiB under valgrind, which cannot map more). */
static void sparse(void **state)
{
    cb_st_writer *w;
    struct stat st;
    const int bits = tt_small_maps() ? 31 : 36;
    const int64_t n[] = {(int64_t)1 << (bits - 19), 1 << 18};
    assert_int_equal(cb_st_writer_open(tmp_path(dir, "m.safetensors"), &w, &err), 0);
    assert_int_equal(cb_st_writer_declare(w, "big", CB_F16, n, 2, &err), 0);
    cb_st_writer_leave_holes(w);
    assert_int_equal(cb_st_writer_begin(w, &err), 0);
    assert_int_equal(cb_st_writer_commit(w, &err), 0);
    assert_int_equal(stat(tmp_path(dir, "m.safetensors"), &st), 0);
    assert_true(st.st_size > (off_t)1 << bits && st.st_blocks < 100);
    cb_st s;
    assert_int_equal(cb_st_open(&s, dir, "m.safetensors", &err), 0);
    assert_int_equal(s.tensors[0].bytes, (uint64_t)1 << bits);
    assert_int_equal(s.tensors[0].data[12345], 0);
    cb_st_close(&s);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(round_trip), CASE(nothing_in_it), CASE(unfinished), CASE(killed), CASE(declarations), CASE(full_disk), CASE(small_disk), CASE(placed), CASE(sparse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
