/* The tokenizer against expected ids of Hugging Face's tokenizers (tests/reference/make_tokenizer_tests.py made the data):
 * combinations of components, four real vocabularies cut small and, where CB_MODELS names a folder with the real ones, those
 * in full. Every case is also decoded, whole and incrementally. */
#include "base/json.h"
#include "base/mem.h"
#include "text/tok.h"
#include "text/utf8.h"
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "support/cputime.h"

#define DATA "tests/data/tokenizer/"

static char *unhex(const char *hex, size_t *n)
{
    *n = strlen(hex) / 2;
    char *out = malloc(*n + 1);
    for (size_t i = 0; i < *n; i++) {
        unsigned v;
        assert_int_equal(sscanf(hex + 2 * i, "%2x", &v), 1);
        out[i] = (char)v;
    }
    return out;
}

/* ids -> text, checked to be the same from decode and from the incremental detokeniser, which gives whole characters. */
static char *decode(const cb_tokenizer *t, const int32_t *ids, size_t n, size_t *out_n)
{
    cb_err err = {0};
    int64_t k = cb_tokenizer_decode(t, ids, n, 0, NULL, 0, &err);
    assert_true(k >= 0);
    char *text = malloc((size_t)k + 1);
    assert_int_equal(cb_tokenizer_decode(t, ids, n, 0, text, (size_t)k, &err), k);
    cb_detok *d;
    size_t have = 0;
    assert_int_equal(cb_detok_open(t, 0, &d, &err), 0);
    for (size_t i = 0; i <= n; i++) {
        const char *s;
        size_t m;
        assert_int_equal(i < n ? cb_detok_put(d, ids[i], &s, &m, &err) : cb_detok_end(d, &s, &m, &err), 0);
        assert_int_equal(cb_utf8_valid(s, m), m);
        assert_true(have + m <= (size_t)k);
        assert_memory_equal(text + have, s, m);
        have += m;
    }
    assert_int_equal(have, k);
    cb_detok_close(d);
    *out_n = (size_t)k;
    return text;
}

static void check_ids(const char *name, const char *hex, const int32_t *got, int64_t n, const json_t *want)
{
    bool same = n == (int64_t)json_array_size(want);
    for (int64_t i = 0; same && i < n; i++) same = got[i] == json_integer_value(json_array_get(want, (size_t)i));
    if (same) return;
    print_error("%s: ids of %s:", name, hex);
    for (int64_t i = 0; i < n; i++) print_error(" %d", got[i]);
    char *w = json_dumps(want, JSON_COMPACT);
    print_error("\nwanted %s\n", w);
    free(w);
    fail();
}

/* [hex, ids with specials, ids without, decoded hex or null] */
static void check_case(const char *name, const cb_tokenizer *t, const json_t *c)
{
    cb_err err = {0};
    size_t n, n_text;
    const char *hex = json_string_value(json_array_get(c, 0));
    char *raw = unhex(hex, &n);
    for (int i = 0; i < 2; i++) {
        int flags = i == 0 ? CB_ENCODE_SPECIAL_BEGIN | CB_ENCODE_PARSE_SPECIAL : 0;
        int64_t k = cb_tokenizer_encode(t, raw, n, flags, NULL, 0, &err);
        if (k < 0) print_error("%s: %s\n", name, err.text);
        assert_true(k >= 0);
        int32_t *ids = malloc(((size_t)k + 1) * sizeof *ids);
        assert_int_equal(cb_tokenizer_encode(t, raw, n, flags, ids, (size_t)k, &err), k);
        check_ids(name, hex, ids, k, json_array_get(c, (size_t)(1 + i)));
        if (i == 0) {
            char *text = decode(t, ids, (size_t)k, &n_text), *want;
            size_t n_want;
            cb_buf fixed;
            cb_buf_init(&fixed, 0);
            cb_utf8_replace(&fixed, raw, n);
            const json_t *d = json_array_get(c, 3);
            want = json_is_string(d) ? unhex(json_string_value(d), &n_want) : NULL;
            if (!want) n_want = fixed.n;
            assert_int_equal(n_text, n_want);
            if (n_want) assert_memory_equal(text, want ? want : fixed.data, n_want);
            free(want);
            free(text);
            cb_buf_fini(&fixed);
        }
        free(ids);
    }
    free(raw);
}

typedef void (*line_fn)(void *ctx, json_t *j, int line);

static void each_line(const char *path, line_fn fn, void *ctx)
{
    FILE *f = fopen(path, "r");
    char *line = NULL;
    size_t cap = 0;
    int no = 0;
    assert_non_null(f);
    while (getline(&line, &cap, f) > 0) {
        json_t *j = json_loads(line, JSON_ALLOW_NUL, NULL);
        assert_non_null(j);
        fn(ctx, j, ++no);
        json_decref(j);
    }
    free(line);
    fclose(f);
    assert_true(no > 10);
}

/* ---- combinations of components ---- */

typedef struct bases {
    json_t *bytes, *chars;
} bases;

static void part_line(void *ctx, json_t *j, int line)
{
    bases *b = ctx;
    const char *name = json_string_value(json_object_get(j, "base"));
    if (name) {
        *(strcmp(name, "bytes") ? &b->chars : &b->bytes) = json_incref(json_object_get(j, "tokenizer"));
        return;
    }
    json_t *doc = json_deep_copy(strcmp(json_string_value(json_object_get(j, "use")), "bytes") ? b->chars : b->bytes), *v;
    json_t *model = json_object_get(doc, "model"), *set = json_object_get(j, "set");
    const char *key;
    json_object_foreach(set, key, v) {
        if (!strcmp(key, "model")) json_object_update(model, v);
        else json_object_set(strcmp(key, "merges") ? doc : model, key, v);
    }
    char *text = json_dumps(doc, JSON_COMPACT), label[64];
    cb_tokenizer *t;
    cb_err err = {0};
    int rc = cb_tokenizer_open_text(text, strlen(text), &t, &err);
    if (rc < 0) print_error("line %d: %s\n", line, err.text);
    assert_int_equal(rc, 0);
    snprintf(label, sizeof label, "parts.jsonl, line %d", line);
    size_t i;
    json_array_foreach(json_object_get(j, "cases"), i, v) check_case(label, t, v);
    cb_tokenizer_close(t);
    free(text);
    json_decref(doc);
}

static void test_parts(void **state)
{
    bases b = {0};
    each_line(DATA "parts.jsonl", part_line, &b);
    json_decref(b.bytes);
    json_decref(b.chars);
}

/* ---- real vocabularies ---- */

typedef struct real {
    const char *name;
    const cb_tokenizer *t;
} real;

static void real_line(void *ctx, json_t *j, int line)
{
    real *r = ctx;
    check_case(r->name, r->t, j);
}

static void check_real(const char *dir, const char *cases)
{
    cb_tokenizer *t;
    cb_err err = {0};
    int rc = cb_tokenizer_open(dir, &t, &err);
    if (rc < 0) print_error("%s: %s\n", dir, err.text);
    assert_int_equal(rc, 0);
    real r = {dir, t};
    each_line(cases, real_line, &r);
    cb_tokenizer_close(t);
}

static void test_smollm2_small(void **state) { check_real(DATA "smollm2-small", DATA "smollm2-small/cases.jsonl"); }
static void test_gemma3_small(void **state) { check_real(DATA "gemma3-small", DATA "gemma3-small/cases.jsonl"); }
static void test_qwen35_small(void **state) { check_real(DATA "qwen35-small", DATA "qwen35-small/cases.jsonl"); }
static void test_gemma4_small(void **state) { check_real(DATA "gemma4-small", DATA "gemma4-small/cases.jsonl"); }

/* $CB_MODELS/NAME/tokenizer.json, or a skip that says what is missing. */
static void check_full(const char *name)
{
    const char *models = getenv("CB_MODELS");
    char dir[4096], file[4200], cases[128];
    snprintf(dir, sizeof dir, "%s/%s", models ? models : "", name);
    snprintf(file, sizeof file, "%s/tokenizer.json", dir);
    snprintf(cases, sizeof cases, DATA "%s-full.jsonl", name);
    FILE *f = models && *models ? fopen(file, "r") : NULL;
    if (!f) {
        print_message("skipped: %s/tokenizer.json in CB_MODELS\n", name);
        skip();
    }
    fclose(f);
    check_real(dir, cases);
}

static void test_smollm2_full(void **state) { check_full("smollm2"); }
static void test_gemma3_full(void **state) { check_full("gemma3"); }
static void test_qwen35_full(void **state) { check_full("qwen35"); }

/* ---- threads, failing allocations, long pieces ---- */

typedef struct worker {
    const cb_tokenizer *t;
    const char *text;
    size_t n;
    int32_t *ids;
    int64_t n_ids;
} worker;

static void *encode_often(void *arg)
{
    worker *w = arg;
    for (int i = 0; i < 20; i++) w->n_ids = cb_tokenizer_encode(w->t, w->text, w->n, 3, w->ids, w->n, NULL);
    return NULL;
}

static void test_threads(void **state)
{
    cb_tokenizer *t;
    assert_int_equal(cb_tokenizer_open(DATA "qwen35-small", &t, NULL), 0);
    cb_buf text;
    cb_buf_init(&text, 0);
    for (int i = 0; i < 200; i++) cb_buf_printf(&text, "<|im_start|>line %d, it's caf\xc3\xa9 e\xcc\x81 \xe4\xb8\xad\xe6\x96\x87\n\n", i);
    worker w[4];
    pthread_t th[4];
    for (int i = 0; i < 4; i++) {
        w[i] = (worker){t, text.data, text.n, malloc(text.n * sizeof(int32_t)), 0};
        assert_int_equal(pthread_create(th + i, NULL, encode_often, w + i), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(th[i], NULL);
        assert_true(w[i].n_ids > 0);
        assert_int_equal(w[i].n_ids, w[0].n_ids);
        assert_memory_equal(w[i].ids, w[0].ids, (size_t)w[0].n_ids * sizeof(int32_t));
    }
    for (int i = 0; i < 4; i++) free(w[i].ids);
    cb_buf_fini(&text);
    cb_tokenizer_close(t);
}

/* Opens, encodes and decodes with the n-th allocation failing, for n = 1, 2, ... until nothing fails any more. */
static void test_no_memory(void **state)
{
    static const char text[] = "Hi <|im_end|> \xff e\xcc\x81\xcc\xa7 supercalifragilistic 12";
    bool done = false;
    for (uint64_t n = 1; !done && n < 4000; n += n < 60 ? 1 : 23) {
        cb_tokenizer *t = NULL;
        cb_err err = {0};
        int32_t ids[200];
        char back[800];
        cb_alloc_fail_at(n);
        int64_t rc = cb_tokenizer_open(DATA "qwen35-small", &t, &err);
        if (rc == 0) rc = cb_tokenizer_encode(t, text, sizeof text - 1, 3, ids, 200, &err);
        if (rc >= 0) rc = cb_tokenizer_decode(t, ids, (size_t)rc, 0, back, sizeof back, &err);
        cb_alloc_fail_at(0);
        cb_tokenizer_close(t);
        done = rc >= 0;
        if (rc < 0) assert_true(err.text[0]);
    }
    assert_true(done);
}

/* A third of a megabyte in one piece: time n log n, or the test runs into its limit. */
static void test_long_pieces(void **state)
{
    static const char *const dirs[] = {DATA "smollm2-small", DATA "gemma3-small", DATA "qwen35-small"};
    static const char *const unit[] = {"a", " ", "7", "\n", "ab", "\xe4\xb8\xad", "\xcc\x81\xcc\xa7", "=", "\xf0\x9f\x98\x80"};
    size_t n = tt_valgrind() ? 20000 : 300000; /* a pattern may search for two seconds */
    char *text = malloc(n);
    int32_t *ids = malloc(2 * n * sizeof *ids);
    for (int d = 0; d < 3; d++) {
        cb_tokenizer *t;
        assert_int_equal(cb_tokenizer_open(dirs[d], &t, NULL), 0);
        for (size_t u = 0; u < sizeof unit / sizeof *unit; u++) {
            size_t k = strlen(unit[u]);
            for (size_t i = 0; i < n; i++) text[i] = unit[u][i % k];
            int64_t got = cb_tokenizer_encode(t, text, n / k * k, 0, ids, 2 * n, NULL);
            assert_true(got > 0);
            size_t m;
            char *back = decode(t, ids, (size_t)got, &m);
            if (unit[u][0] != '\xcc') {
                assert_int_equal(m, n / k * k);
                assert_memory_equal(back, text, m);
            }
            free(back);
        }
        cb_tokenizer_close(t);
    }
    free(ids);
    free(text);
}

static void test_api_edges(void **state)
{
    cb_tokenizer *t;
    cb_err err = {0};
    int32_t ids[8] = {-7, -7, -7, -7, -7, -7, -7, -7};
    char out[4] = "....";
    size_t n;
    assert_int_equal(cb_tokenizer_open(DATA "smollm2-small", &t, &err), 0);
    assert_int_equal(cb_tokenizer_encode(t, NULL, 0, 3, NULL, 0, &err), 0);
    assert_true(cb_tokenizer_encode(t, "x y z 1 2 3", 11, 0, ids, 3, &err) > 3); /* the whole count, three written */
    assert_true(ids[2] >= 0 && ids[3] == -7);
    int64_t whole = cb_tokenizer_decode(t, ids, 3, 0, out, 2, &err);
    assert_true(whole > 2 && out[1] != '.' && out[2] == '.');
    assert_int_equal(cb_tokenizer_encode(t, "x", 1, 64, ids, 8, &err), CB_EUSAGE);
    ids[0] = -1;
    assert_int_equal(cb_tokenizer_decode(t, ids, 1, 0, out, 4, &err), CB_EUSAGE);
    ids[0] = 2000000000;
    assert_int_equal(cb_tokenizer_decode(t, ids, 1, 0, out, 4, &err), 0);
    int32_t end = cb_tokenizer_find(t, "<|im_end|>", 10);
    assert_true(end >= 0 && end < cb_tokenizer_n_vocab(t));
    assert_string_equal(cb_tokenizer_token(t, end, &n), "<|im_end|>");
    assert_int_equal(n, 10);
    assert_null(cb_tokenizer_token(t, -1, &n));
    assert_null(cb_tokenizer_token(t, cb_tokenizer_n_vocab(t), NULL));
    assert_int_equal(cb_tokenizer_find(t, "no such token", 13), -1);
    assert_int_equal(cb_tokenizer_decode(t, &end, 1, 1, out, 4, &err), 0); /* specials are skipped on wish */
    assert_int_equal(cb_tokenizer_is_stop(t, end), 1);
    assert_int_equal(cb_tokenizer_is_stop(t, end + 1), 0);
    cb_tokenizer_close(t);
    cb_tokenizer_close(NULL);
    cb_detok_close(NULL);
}

int main(void)
{
#ifdef __SANITIZE_THREAD__ /* the rest has one thread, and takes minutes */
    const struct CMUnitTest threads[] = { cmocka_unit_test(test_threads) };
    return cmocka_run_group_tests(threads, NULL, NULL);
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts), cmocka_unit_test(test_smollm2_small), cmocka_unit_test(test_gemma3_small),
        cmocka_unit_test(test_qwen35_small), cmocka_unit_test(test_gemma4_small), cmocka_unit_test(test_smollm2_full), cmocka_unit_test(test_gemma3_full),
        cmocka_unit_test(test_qwen35_full), cmocka_unit_test(test_threads), cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_long_pieces), cmocka_unit_test(test_api_edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
