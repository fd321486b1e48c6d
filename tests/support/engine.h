/* engine.h: what tests of the engine share: opening the tiny checkpoints of tests/data, seeded tokens, hashing logits. */
#ifndef CB_TESTS_SUPPORT_ENGINE_H
#define CB_TESTS_SUPPORT_ENGINE_H
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka wants the headers above first */
#include "cambium.h"
#include <cmocka.h>

static inline cb_engine *te_try_open(const char *name, const cb_engine_opts *o)
{
    char dir[512];
    cb_engine *e;
    snprintf(dir, sizeof dir, "tests/data/%.255s", name);
    return cb_engine_open(dir, o, &e, NULL) < 0 ? NULL : e;
}

static inline cb_engine *te_open(const char *name, const cb_engine_opts *o)
{
    char dir[512];
    cb_engine *e;
    cb_err err = {0};
    snprintf(dir, sizeof dir, "tests/data/%.255s", name);
    if (cb_engine_open(dir, o, &e, &err) < 0) fail_msg("%s: %s", name, err.text);
    return e;
}

/* The tiny checkpoints of tests/data/exact-hashes.txt and (unless NULL) their hashes; those whose name contains `only`, if that is not
 * NULL. Returns how many, at least 1. */
enum { TE_CHECKPOINTS = 96 };
static inline int te_find_checkpoints(char (*names)[64], uint64_t *hashes, const char *only)
{
    FILE *f = fopen("tests/data/exact-hashes.txt", "r");
    assert_non_null(f);
    char line[256], name[64];
    unsigned long long h;
    int n = 0;
    while (fgets(line, sizeof line, f) && n < TE_CHECKPOINTS) {
        if (line[0] == '#' || sscanf(line, "%63s %llx", name, &h) != 2 || (only && !strstr(name, only))) continue;
        strcpy(names[n], name);
        if (hashes) hashes[n] = h;
        n++;
    }
    fclose(f);
    assert_true(n > 0);
    return n;
}

/* Token `i` of the seeded sequence `seq`. */
static inline int32_t te_token(int seq, int i, int n_vocab)
{
    uint64_t z = (uint64_t)seq * 0x9e3779b97f4a7c15u + (uint64_t)i * 0xbf58476d1ce4e5b9u + 12345;
    z ^= z >> 31;
    z *= 0x94d049bb133111ebu;
    z ^= z >> 29;
    return (int32_t)(z % (uint64_t)n_vocab);
}

/* FNV-1a over the little-endian bits of logits rows. */
typedef struct te_hasher {
    uint64_t h;
} te_hasher;
static inline te_hasher te_hash_start(void) { return (te_hasher){14695981039346656037u}; }
static inline void te_hash_row(te_hasher *h, const float *row, int n)
{
    for (int i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &row[i], 4);
        for (int k = 0; k < 4; k++) h->h = (h->h ^ (u >> 8 * k & 255)) * 1099511628211u;
    }
}

/* Hash of the logits of all n tokens of sequence 0, run in chunks. */
static inline uint64_t te_hash(cb_engine *e, int n, int chunk)
{
    cb_engine_info info;
    cb_engine_get_info(e, &info);
    cb_session *s;
    assert_int_equal(cb_session_open(e, &s, NULL), 0);
    cb_row *rows = calloc((size_t)chunk, sizeof *rows);
    float *logits = malloc((size_t)chunk * (size_t)info.n_vocab * 4);
    te_hasher h = te_hash_start();
    for (int pos = 0; pos < n;) {
        int m = n - pos < chunk ? n - pos : chunk;
        cb_err err = {0};
        for (int k = 0; k < m; k++) rows[k] = (cb_row){s, te_token(0, pos + k, info.n_vocab), 1};
        if (cb_step(e, rows, m, logits, &err) < 0) fail_msg("step at %d: %s", pos, err.text);
        for (int k = 0; k < m; k++) te_hash_row(&h, logits + (size_t)k * (size_t)info.n_vocab, info.n_vocab);
        pos += m;
    }
    free(rows);
    free(logits);
    cb_session_close(s);
    return h.h;
}

/* Under the thread checker scalar C is some fifty times slower, and only what threads share is of interest. */
static inline bool te_tsan(void)
{
#ifdef __SANITIZE_THREAD__
    return true;
#else
    return false;
#endif
}

/* Emulated or instrumented: do less. */
static inline bool te_quick(void)
{
    const char *f = getenv("CB_FLAVOUR");
    return f && strcmp(f, "release") != 0;
}
#endif
