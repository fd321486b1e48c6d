/* tmpdir.h: a folder for one test, and whole files in it. Include after cmocka.h. Everything asserts. */
#ifndef TESTS_TMPDIR_H
#define TESTS_TMPDIR_H
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A new empty folder; its path is put into buf (at least 64 bytes). */
static inline const char *tmp_dir(char *buf)
{
    const char *base = getenv("TMPDIR");
    snprintf(buf, 64, "%.40s/cb-test-XXXXXX", base && *base ? base : "/tmp");
    assert_non_null(mkdtemp(buf));
    return buf;
}

/* Removes a folder with all that is in it; links are not followed. */
static inline void tmp_remove(const char *path)
{
    struct stat st;
    if (lstat(path, &st) != 0) return;
    if (S_ISDIR(st.st_mode)) {
        DIR *d = opendir(path);
        assert_non_null(d);
        for (struct dirent *e; (e = readdir(d));) {
            char sub[4096];
            if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
            assert_true((size_t)snprintf(sub, sizeof sub, "%s/%s", path, e->d_name) < sizeof sub);
            tmp_remove(sub);
        }
        closedir(d);
        assert_int_equal(rmdir(path), 0);
    } else
        assert_int_equal(unlink(path), 0);
}

/* dir/name, in one of four rotating buffers; dir may be one of them. Not inlined, else gcc sees an overlap that is none. */
__attribute__((noinline, unused)) static const char *tmp_path(const char *dir, const char *name)
{
    static char buf[4][4096];
    static int i;
    i = (i + 1) % 4;
    assert_true((size_t)snprintf(buf[i], sizeof buf[i], "%s/%s", dir, name) < sizeof buf[i]);
    return buf[i];
}

static inline void tmp_put(const char *dir, const char *name, const void *data, size_t n)
{
    FILE *f = fopen(tmp_path(dir, name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static inline void tmp_text(const char *dir, const char *name, const char *text) { tmp_put(dir, name, text, strlen(text)); }

/* A .safetensors file: header text (length written before it) and data. */
static inline void tmp_st(const char *dir, const char *name, const char *header, const void *data, size_t n)
{
    size_t h = strlen(header);
    char *all = calloc(1, 8 + h + n + 1);
    assert_non_null(all);
    for (int i = 0; i < 8; i++) all[i] = (char)(h >> 8 * i);
    memcpy(all + 8, header, h);
    if (n) memcpy(all + 8 + h, data, n);
    tmp_put(dir, name, all, 8 + h + n);
    free(all);
}

/* Entries of a folder, without . and .. */
static inline int tmp_count(const char *dir)
{
    DIR *d = opendir(dir);
    assert_non_null(d);
    int n = 0;
    while (readdir(d)) n++;
    closedir(d);
    return n - 2;
}
#endif
