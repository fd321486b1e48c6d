/* base: memory with limits and injected failures, files that appear whole, JSON helpers, error text. Threads: base_pool. */
#include "base/env.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <cmocka.h>
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
    cb_alloc_fail_at(0);
    tmp_remove(dir);
    return 0;
}

/* ---- memory ---- */

static void alloc_basics(void **state)
{
    uint64_t n0 = cb_alloc_count();
    char *p = cb_alloc(100);
    for (int i = 0; i < 100; i++) assert_int_equal(p[i], 0);
    assert_int_equal(cb_alloc_count(), n0 + 1);
    p = cb_realloc(p, 1000);
    assert_int_equal(cb_alloc_count(), n0 + 2);
    cb_free(p);
    cb_free(NULL);
    assert_null(cb_alloc_array(SIZE_MAX / 2, 3));
    assert_null(cb_alloc_aligned(SIZE_MAX));
    assert_null(cb_strndup("x", SIZE_MAX));
    for (size_t n = 0; n < 200; n += 13) {
        uint8_t *a = cb_alloc_aligned(n);
        assert_int_equal((uintptr_t)a % 64, 0);
        for (size_t i = 0; i < n + 64; i++) assert_int_equal(a[i], 0); /* the padding may be read */
        cb_free_aligned(a);
    }
    p = cb_strndup("hello", 3);
    assert_string_equal(p, "hel");
    cb_free(p);
}

static void alloc_faults(void **state)
{
    void *p[5] = {0};
    cb_alloc_fail_at(3);
    for (int i = 0; i < 5; i++) p[i] = cb_alloc(8);
    assert_true(p[0] && p[1] && !p[2] && p[3] && p[4]);
    for (int i = 0; i < 5; i++) cb_free(p[i]);
    char *q = cb_alloc(4);
    cb_alloc_fail_at(1);
    assert_null(cb_realloc(q, 8));
    cb_free(q); /* the old block is still there */
    cb_alloc_fail_at(1);
    assert_null(cb_alloc_aligned(8));
    setenv("CB_FAULT", "io:4,alloc:17,x:", 1);
    assert_int_equal(cb_env_fault("alloc"), 17);
    assert_int_equal(cb_env_fault("io"), 4);
    assert_int_equal(cb_env_fault("x"), 0);
    assert_int_equal(cb_env_fault("all"), 0);
    unsetenv("CB_FAULT");
    assert_int_equal(cb_env_fault("alloc"), 0);
}

static void arena(void **state)
{
    cb_arena a;
    cb_arena_init(&a, 0);
    for (int i = 0; i < 2000; i++) {
        size_t n = (size_t)(i * 37 % 300);
        uint8_t *p = cb_arena_get(&a, n);
        assert_int_equal((uintptr_t)p % 16, 0);
        for (size_t k = 0; k < n; k++) {
            assert_int_equal(p[k], 0);
            p[k] = 0xee;
        }
    }
    uint8_t *big = cb_arena_get(&a, 1 << 20);
    memset(big, 1, 1 << 20);
    assert_string_equal(cb_arena_strndup(&a, "abcdef", 3), "abc");
    assert_true(cb_arena_ok(&a));
    cb_arena_reset(&a);
    assert_int_equal(a.used, 0);
    big = cb_arena_get(&a, 1 << 20);
    for (int i = 0; i < 1 << 20; i++) assert_int_equal(big[i], 0); /* reused, and zeroed again */
    cb_arena_fini(&a);

    cb_arena_init(&a, 100);
    assert_non_null(cb_arena_get(&a, 50)); /* 64 with the alignment */
    assert_null(cb_arena_get(&a, 50));     /* there is room in the chunk, but not under the limit */
    assert_null(cb_arena_get(&a, 1));      /* sticky */
    assert_false(cb_arena_ok(&a));
    cb_arena_reset(&a);
    assert_true(cb_arena_ok(&a));
    assert_non_null(cb_arena_get(&a, 96));
    assert_null(cb_arena_get(&a, SIZE_MAX));
    cb_arena_fini(&a);

    cb_arena_init(&a, 0);
    cb_alloc_fail_at(1);
    assert_null(cb_arena_get(&a, 1));
    assert_null(cb_arena_strndup(&a, "x", 1));
    cb_arena_fini(&a);
}

static void buf(void **state)
{
    cb_buf b;
    cb_buf_init(&b, 0);
    for (int i = 0; i < 1000; i++) cb_buf_printf(&b, "%d,", i);
    cb_buf_putc(&b, 'x');
    cb_buf_put(&b, NULL, 0);
    assert_true(cb_buf_ok(&b));
    assert_int_equal(b.n, strlen(b.data));
    assert_memory_equal(b.data + b.n - 5, "999,x", 5);
    char *s = cb_buf_take(&b);
    assert_int_equal(b.n, 0);
    cb_free(s);
    s = cb_buf_take(&b); /* of an empty one: an empty string */
    assert_string_equal(s, "");
    cb_free(s);

    cb_buf_init(&b, 10);
    cb_buf_puts(&b, "0123456789");
    assert_true(cb_buf_ok(&b));
    cb_buf_putc(&b, 'x');
    assert_false(cb_buf_ok(&b));
    cb_buf_puts(&b, "");
    assert_int_equal(b.n, 10);
    assert_null(cb_buf_take(&b));
    cb_buf_init(&b, 10);
    cb_buf_printf(&b, "%s", "0123456789x");
    assert_false(cb_buf_ok(&b));
    assert_int_equal(b.n, 0);
    cb_buf_fini(&b);
    cb_buf_init(&b, 0);
    cb_buf_put(&b, "x", SIZE_MAX);
    assert_false(cb_buf_ok(&b));
    cb_buf_fini(&b);
    cb_buf_init(&b, 0);
    cb_alloc_fail_at(1);
    cb_buf_puts(&b, "x");
    assert_false(cb_buf_ok(&b));
    assert_null(cb_buf_take(&b));
}

/* ---- errors ---- */

static void error_text(void **state)
{
    assert_int_equal(cb_fail(NULL, CB_EIO, "x"), CB_EIO);
    assert_int_equal(cb_fail_in(NULL, CB_EIO, "x"), CB_EIO);
    assert_int_equal(cb_fail(&err, CB_EFORMAT, "a\nb\033[1mc\177d\xc2\x9b" "e\xc3\xa9"), CB_EFORMAT);
    assert_string_equal(err.text, "a?b?[1mc?d??e\xc3\xa9");
    assert_int_equal(cb_fail_in(&err, CB_EIO, "file %d", 3), CB_EFORMAT); /* the code born first stays */
    assert_string_equal(err.text, "file 3: a?b?[1mc?d??e\xc3\xa9");
    /* too long: cut, terminated, and not in the middle of a character */
    char longer[1000];
    for (int cut = 0; cut < 4; cut++)
        for (int size = 1; size <= 4; size++) {
            static const char *const ch[] = {"x", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x99\x82"};
            memset(longer, 'a', sizeof longer);
            for (int i = cut; i + size < 999; i += size) memcpy(longer + i, ch[size - 1], (size_t)size);
            longer[996] = 0;
            cb_fail(&err, CB_EIO, "%s", longer);
            size_t n = strlen(err.text);
            assert_true(n < CB_ERR_TEXT && n + 4 >= CB_ERR_TEXT - 1);
            assert_int_equal((n - (size_t)cut) % (size_t)size, 0);
        }
    memset(longer, 'p', 999);
    longer[999] = 0;
    cb_fail(&err, CB_EIO, "tail");
    assert_int_equal(cb_fail_in(&err, CB_EIO, "%s", longer), CB_EIO);
    assert_int_equal(strlen(err.text), CB_ERR_TEXT - 1);
    memset(longer, 0x80, 999); /* no lead byte at all */
    cb_fail(&err, CB_EIO, "%s", longer);
    assert_true(strlen(err.text) >= CB_ERR_TEXT - 5);
}

/* ---- files ---- */

static void maps_and_reads(void **state)
{
    cb_map m;
    char *data;
    size_t n;
    assert_int_equal(cb_map_open(&m, dir, "none", &err), CB_ENOTFOUND);
    assert_int_equal(cb_file_read(dir, "none", 10, &data, &n, &err), CB_ENOTFOUND);
    assert_null(data);
    assert_int_equal(cb_map_open(&m, NULL, dir, &err), CB_EIO);
    assert_non_null(strstr(err.text, "not a regular file"));
    tmp_text(dir, "empty", "");
    assert_int_equal(cb_map_open(&m, dir, "empty", &err), 0);
    assert_true(!m.data && m.n == 0);
    cb_map_close(&m);
    assert_int_equal(cb_file_read(dir, "empty", 0, &data, &n, &err), 0);
    assert_true(n == 0 && data[0] == 0);
    cb_free(data);
    tmp_text(dir, "ten", "0123456789");
    assert_int_equal(cb_file_read(dir, "ten", 9, &data, &n, &err), CB_EFORMAT);
    assert_non_null(strstr(err.text, "10 bytes, the limit is 9"));
    assert_int_equal(cb_file_read(dir, "ten", 10, &data, &n, &err), 0);
    assert_string_equal(data, "0123456789");
    cb_free(data);
    assert_int_equal(cb_file_read(dir, "ten/x", 10, &data, &n, &err), CB_ENOTFOUND);
    cb_alloc_fail_at(1);
    assert_int_equal(cb_file_read(dir, "ten", 10, &data, &n, &err), CB_ENOMEM);
    assert_int_equal(cb_map_open(&m, dir, "ten", &err), 0);
    assert_memory_equal(m.data, "0123456789", 10);
    cb_map_close(&m);
    assert_true(cb_file_exists(dir, "ten") && !cb_file_exists(dir, "none") && !cb_file_exists(NULL, dir));
    char name[5000];
    memset(name, 'x', 4999);
    name[4999] = 0;
    assert_int_equal(cb_map_open(&m, dir, name, &err), CB_EUSAGE);
    assert_false(cb_file_exists(dir, name));
    assert_int_equal(mkfifo(tmp_path(dir, "pipe"), 0666), 0);
    assert_int_equal(cb_file_read(dir, "pipe", 10, &data, &n, &err), CB_EIO);
}

static void outfile(void **state)
{
    cb_outfile o;
    char path[128], *text;
    size_t n;
    snprintf(path, sizeof path, "%s/f", dir);
    tmp_text(dir, "f", "old");
    assert_int_equal(cb_outfile_open(&o, path, &err), 0);
    fputs("new", o.f);
    fflush(o.f);
    assert_int_equal(cb_file_read(dir, "f", 10, &text, &n, &err), 0);
    assert_string_equal(text, "old");
    cb_free(text);
    assert_int_equal(cb_outfile_commit(&o, &err), 0);
    assert_int_equal(cb_file_read(dir, "f", 10, &text, &n, &err), 0);
    assert_string_equal(text, "new");
    cb_free(text);
    assert_int_equal(tmp_count(dir), 1);

    assert_int_equal(cb_outfile_open(&o, path, &err), 0);
    cb_outfile_abort(&o);
    cb_outfile_abort(&o);
    assert_int_equal(tmp_count(dir), 1);
    assert_int_equal(cb_outfile_open(&o, tmp_path(dir, "no/f"), &err), CB_EIO);
    /* over a folder: cannot be renamed; nothing is left */
    assert_int_equal(mkdir(tmp_path(dir, "d"), 0777), 0);
    assert_int_equal(cb_outfile_open(&o, tmp_path(dir, "d"), &err), 0);
    assert_int_equal(cb_outfile_commit(&o, &err), CB_EIO);
    assert_int_equal(tmp_count(dir), 2);
    for (int i = 1; i < 4; i++) {
        cb_alloc_fail_at((uint64_t)i);
        int rc = cb_outfile_open(&o, path, &err);
        assert_true(rc == CB_ENOMEM || (i == 3 && rc == 0)); /* the sweep does without */
        if (!rc) cb_outfile_abort(&o);
        cb_alloc_fail_at(0);
        assert_int_equal(tmp_count(dir), 2);
    }
}

static void outdir(void **state)
{
    cb_outdir o;
    char path[128];
    snprintf(path, sizeof path, "%s/out", dir);
    assert_int_equal(cb_outdir_open(&o, tmp_path(dir, "out///"), &err), 0);
    tmp_text(o.tmp, "a", "1");
    tmp_text(o.tmp, "b", "2");
    assert_int_equal(access(path, F_OK), -1);
    cb_outdir_abort(&o);
    assert_int_equal(tmp_count(dir), 0);
    assert_int_equal(mkdir(path, 0777), 0); /* an empty folder may stand there */
    assert_int_equal(cb_outdir_open(&o, path, &err), 0);
    tmp_text(o.tmp, "a", "1");
    assert_int_equal(cb_outdir_commit(&o, &err), 0);
    assert_int_equal(tmp_count(dir), 1);
    assert_true(cb_file_exists(path, "a"));
    assert_int_equal(cb_outdir_open(&o, path, &err), CB_EUSAGE);
    assert_non_null(strstr(err.text, "exists already"));
    assert_int_equal(cb_outdir_open(&o, tmp_path(dir, "out/a"), &err), CB_EUSAGE);
    assert_int_equal(cb_outdir_open(&o, "", &err), CB_EUSAGE);
    assert_int_equal(cb_outdir_open(&o, tmp_path(dir, "no/out"), &err), CB_EIO);
    assert_int_equal(symlink("nowhere", tmp_path(dir, "link")), 0);
    assert_int_equal(cb_outdir_open(&o, tmp_path(dir, "link"), &err), CB_EUSAGE);
    /* someone fills the target meanwhile */
    assert_int_equal(cb_outdir_open(&o, tmp_path(dir, "late"), &err), 0);
    assert_int_equal(mkdir(tmp_path(dir, "late"), 0777), 0);
    tmp_text(tmp_path(dir, "late"), "x", "theirs");
    assert_int_equal(cb_outdir_commit(&o, &err), CB_EIO);
    assert_int_equal(tmp_count(dir), 3);
}

/* Leftovers of killed runs go away at the next open; those of a run that is alive stay. */
static void leftovers(void **state)
{
    cb_outdir o;
    cb_outfile f;
    int up[2], status;
    char path[128], fpath[128];
    snprintf(path, sizeof path, "%s/out", dir);
    snprintf(fpath, sizeof fpath, "%s/file", dir);
    assert_int_equal(pipe(up), 0);
    pid_t pid = fork();
    if (pid == 0) {
        if (cb_outdir_open(&o, path, &err) == 0 && cb_outfile_open(&f, fpath, &err) == 0) {
            tmp_text(o.tmp, "a", "1");
            if (write(up[1], "x", 1) == 1) pause();
        }
        _exit(1);
    }
    char c;
    assert_int_equal(read(up[0], &c, 1), 1);
    assert_int_equal(tmp_count(dir), 2);
    assert_int_equal(cb_outdir_open(&o, path, &err), 0);
    assert_int_equal(cb_outfile_open(&f, fpath, &err), 0);
    assert_int_equal(tmp_count(dir), 4); /* two writers side by side; the child's are alive */
    cb_outdir_abort(&o);
    cb_outfile_abort(&f);
    assert_int_equal(tmp_count(dir), 2);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(tmp_count(dir), 2);
    tmp_text(dir, "out.partial.x", "a name of someone else");
    assert_int_equal(cb_outdir_open(&o, path, &err), 0);
    assert_int_equal(cb_outfile_open(&f, fpath, &err), 0);
    assert_int_equal(tmp_count(dir), 3);
    cb_outdir_abort(&o);
    cb_outfile_abort(&f);
    assert_int_equal(tmp_count(dir), 1);
    close(up[0]), close(up[1]);
}

/* ---- JSON ---- */

static json_t *parse(const char *text)
{
    json_t *j;
    if (cb_json_text("t.json", text, strlen(text), &j, &err) != 0) fail_msg("%s", err.text);
    return j;
}

static void json_values(void **state)
{
    json_t *j = parse("{\"i\":5,\"r\":5.0,\"h\":5.5,\"s\":\"x\",\"b\":true,\"n\":null,\"big\":9223372036854775807,\"neg\":-3,\"e\":1e30,\"m\":-1e30,"
                      "\"i\":6}");
    int64_t i = 0;
    double d = 0;
    bool b = false;
    const char *s = NULL;
    assert_int_equal(cb_json_int(j, "t", "i", 0, 9, &i, &err), 1);
    assert_int_equal(i, 6); /* the last one wins */
    assert_int_equal(cb_json_int(j, "t", "r", 0, 9, &i, &err), 1);
    assert_int_equal(i, 5);
    assert_int_equal(cb_json_int(j, "t", "h", 0, 9, &i, &err), CB_EFORMAT);
    assert_string_equal(err.text, "t: h is not an integer");
    assert_int_equal(cb_json_int(j, "t", "s", 0, 9, &i, &err), CB_EFORMAT);
    assert_int_equal(cb_json_int(j, "t", "b", 0, 9, &i, &err), CB_EFORMAT);
    assert_int_equal(cb_json_int(j, "t", "n", 0, 9, &i, &err), 0);
    assert_int_equal(cb_json_int(j, "t", "none", 0, 9, &i, &err), 0);
    assert_int_equal(i, 5); /* untouched */
    assert_int_equal(cb_json_int(j, "t", "big", 0, INT64_MAX, &i, &err), 1);
    assert_true(i == INT64_MAX);
    assert_int_equal(cb_json_int(j, "t", "neg", -3, 9, &i, &err), 1);
    assert_int_equal(cb_json_int(j, "t", "neg", 0, 9, &i, &err), CB_EFORMAT);
    assert_string_equal(err.text, "t: neg is -3, allowed are 0 to 9");
    assert_int_equal(cb_json_int(j, "t", "e", 0, 9, &i, &err), CB_EFORMAT);
    assert_int_equal(cb_json_int(j, "t", "m", 0, INT64_MAX, &i, &err), CB_EFORMAT);
    assert_int_equal(cb_json_real(j, "t", "i", &d, &err), 1);
    assert_true(d == 6);
    assert_int_equal(cb_json_real(j, "t", "s", &d, &err), CB_EFORMAT);
    assert_int_equal(cb_json_bool(j, "t", "b", &b, &err), 1);
    assert_true(b);
    assert_int_equal(cb_json_bool(j, "t", "i", &b, &err), CB_EFORMAT);
    assert_int_equal(cb_json_str(j, "t", "s", &s, &err), 1);
    assert_string_equal(s, "x");
    assert_int_equal(cb_json_str(j, "t", "i", &s, &err), CB_EFORMAT);
    assert_int_equal(cb_json_str(NULL, "t", "i", &s, &err), 0);
    json_decref(j);
}

static void json_texts(void **state)
{
    json_t *j;
    static const char *const bad[] = {"", "{", "{\"a\":}", "{\"a\":1}x", "{'a':1}", "{\"a\":NaN}", "[1,]", "{\"a\":1e999}", "\xef\xbb\xbf{}", "{\"\xff\":1}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(cb_json_text("t.json", bad[i], strlen(bad[i]), &j, &err), CB_EFORMAT);
        assert_null(j);
        assert_memory_equal(err.text, "t.json: line 1", 14);
    }
    char deep[10000];
    memset(deep, '[', sizeof deep);
    assert_int_equal(cb_json_text("t.json", deep, sizeof deep, &j, &err), CB_EFORMAT);
    /* integers beyond 64 bits become reals, digits in strings stay, escapes are understood */
    j = parse("{\"a\":1000000000000000019884624838656,\"b\":-123456789012345678901,\"c\":\"1000000000000000019884624838656\\\"\","
              "\"d\":12,\"e\\\\\":[1.5e3,99999999999999999999,1E2],\"f\":0.12345678901234567890123}");
    assert_true(json_real_value(json_object_get(j, "a")) == 1e30);
    assert_true(json_real_value(json_object_get(j, "b")) == -123456789012345678901.0);
    assert_string_equal(json_string_value(json_object_get(j, "c")), "1000000000000000019884624838656\"");
    assert_true(json_is_integer(json_object_get(j, "d")));
    assert_true(json_real_value(json_array_get(json_object_get(j, "e\\"), 1)) == 1e20);
    json_decref(j);

    tmp_text(dir, "a.json", "[1]");
    assert_int_equal(cb_json_file(dir, "a.json", 100, &j, &err), CB_EFORMAT);
    assert_string_equal(err.text, "a.json: not a JSON object");
    tmp_text(dir, "a.json", "{\"k\":1}");
    assert_int_equal(cb_json_file(dir, "a.json", 3, &j, &err), CB_EFORMAT);
    assert_int_equal(cb_json_file(dir, "b.json", 100, &j, &err), CB_ENOTFOUND);
    assert_int_equal(cb_json_file(dir, "a.json", 100, &j, &err), 0);
    json_decref(j);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(alloc_basics),   CASE(alloc_faults), CASE(arena),  CASE(buf),       CASE(error_text),  CASE(maps_and_reads),
        CASE(outfile),        CASE(outdir),       CASE(leftovers), CASE(json_values), CASE(json_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
