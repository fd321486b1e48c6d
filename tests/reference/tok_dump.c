/* tok_dump.c: the tokenizer as a filter, for the reference checks (tok_check.py).
 *   tok_dump encode DIR FLAGS       reads records (u32 length, bytes) from stdin; writes for each u32 count, ids, then u32
 *                                   length, bytes of the decoded text, and the same again from the incremental detokeniser
 *   tok_dump decode DIR SKIP        reads records (u32 count, ids); writes u32 length, bytes, twice as above
 *   tok_dump bench DIR FILE         opens, encodes and decodes the file; prints CPU times
 * Numbers are little-endian. Build, from the root, after make:
 *   cc -O2 -D_GNU_SOURCE -Iinclude -Isrc tests/reference/tok_dump.c build/release/libcambium.a -ljansson -lpcre2-8 -lutf8proc
 *      -lm -pthread -o build/release/tok_dump */
#include "cambium.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void die(const char *what, const cb_err *err)
{
    fprintf(stderr, "tok_dump: %s: %s\n", what, err->text);
    exit(1);
}

static void put(const void *p, size_t n, size_t size)
{
    uint32_t u = (uint32_t)n;
    fwrite(&u, 4, 1, stdout);
    fwrite(p, size, n, stdout);
}

static void *record(size_t *n, size_t size)
{
    uint32_t u;
    if (fread(&u, 4, 1, stdin) != 1) return NULL;
    void *p = malloc((size_t)u * size + 1);
    if (!p || fread(p, size, u, stdin) != u) exit(1);
    *n = u;
    return p;
}

static void put_decoded(const cb_tokenizer *t, const int32_t *ids, size_t n, int skip, cb_err *err)
{
    int64_t k = cb_tokenizer_decode(t, ids, n, skip, NULL, 0, err);
    if (k < 0) die("decode", err);
    char *text = malloc((size_t)k + 1), *inc = malloc((size_t)k + 1);
    cb_tokenizer_decode(t, ids, n, skip, text, (size_t)k, err);
    put(text, (size_t)k, 1);
    cb_detok *d;
    if (cb_detok_open(t, skip, &d, err) < 0) die("detok", err);
    size_t have = 0;
    for (size_t i = 0; i <= n; i++) {
        const char *s;
        size_t m;
        int rc = i < n ? cb_detok_put(d, ids[i], &s, &m, err) : cb_detok_end(d, &s, &m, err);
        if (rc < 0) die("detok", err);
        if (have + m > (size_t)k) die("detok gives more than decode", err);
        memcpy(inc + have, s, m);
        have += m;
    }
    cb_detok_close(d);
    put(inc, have, 1);
    free(text);
    free(inc);
}

static void encode(const cb_tokenizer *t, int flags)
{
    cb_err err = {0};
    size_t n;
    for (char *s; (s = record(&n, 1)); free(s)) {
        int64_t k = cb_tokenizer_encode(t, s, n, flags, NULL, 0, &err);
        if (k < 0) die("encode", &err);
        int32_t *ids = malloc(((size_t)k + 1) * sizeof *ids);
        cb_tokenizer_encode(t, s, n, flags, ids, (size_t)k, &err);
        put(ids, (size_t)k, sizeof *ids);
        put_decoded(t, ids, (size_t)k, 0, &err);
        free(ids);
    }
}

static void decode(const cb_tokenizer *t, int skip)
{
    cb_err err = {0};
    size_t n;
    for (int32_t *ids; (ids = record(&n, sizeof *ids)); free(ids)) put_decoded(t, ids, n, skip, &err);
}

/* CPU seconds of this process: other load on the machine counts little. */
static double cpu(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void bench(const char *dir, const char *path)
{
    cb_err err = {0};
    cb_tokenizer *t;
    double t0 = cpu();
    if (cb_tokenizer_open(dir, &t, &err) < 0) die(dir, &err);
    printf("open %.3f s, %d ids\n", cpu() - t0, cb_tokenizer_n_vocab(t));
    FILE *f = fopen(path, "rb");
    if (!f) exit(1);
    size_t cap = 64 << 20, n;
    char *text = malloc(cap);
    n = fread(text, 1, cap, f);
    fclose(f);
    int32_t *ids = malloc((n + 16) * sizeof *ids);
    double best = 1e9;
    int64_t k = 0;
    for (int i = 0; i < 5; i++) {
        t0 = cpu();
        k = cb_tokenizer_encode(t, text, n, 0, ids, n + 16, &err);
        if (k < 0) die("encode", &err);
        if (cpu() - t0 < best) best = cpu() - t0;
    }
    printf("encode %.2f MB in %.3f s: %.1f MB/s, %lld ids\n", (double)n / 1e6, best, (double)n / 1e6 / best, (long long)k);
    t0 = cpu();
    size_t small = 0;
    for (size_t i = 0; i + 400 <= n; i += 400, small += 400) cb_tokenizer_encode(t, text + i, 400, 0, ids, n + 16, &err);
    printf("encode in pieces of 400 bytes: %.1f MB/s\n", (double)small / 1e6 / (cpu() - t0));
    k = cb_tokenizer_encode(t, text, n, 0, ids, n + 16, &err);
    t0 = cpu();
    int64_t m = cb_tokenizer_decode(t, ids, (size_t)k, 0, text, cap, &err);
    printf("decode %.1f MB/s\n", (double)m / 1e6 / (cpu() - t0));
    cb_tokenizer_close(t);
    free(ids);
    free(text);
}

int main(int argc, char **argv)
{
    cb_err err = {0};
    cb_tokenizer *t;
    if (argc != 4) return 2;
    if (!strcmp(argv[1], "bench")) return bench(argv[2], argv[3]), 0;
    if (cb_tokenizer_open(argv[2], &t, &err) < 0) die(argv[2], &err);
    if (!strcmp(argv[1], "encode")) encode(t, atoi(argv[3]));
    else decode(t, atoi(argv[3]));
    cb_tokenizer_close(t);
    return 0;
}
