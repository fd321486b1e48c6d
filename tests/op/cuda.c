/* cuda.c: the GPU gives the CPU's bits: the golden hash of every tiny checkpoint for any chunking, among neighbours, from one row to
 * many, and op by op. Skipped by name where there is no GPU (or this build has no kernels). */
#include "../support/engine.h"
#include "../support/sampling.h"

enum { N_TOKENS = 150, SHORT_ROWS = 16 };

/* CB_TEST_QUICK: under a sanitizer one chunking and one neighbourhood will do. */
static bool quick(void) { return getenv("CB_TEST_QUICK") != NULL; }

/* CB_TEST_SHORT: only test_short, for tools that make a kernel hundreds of times slower. */
static bool only_short(void) { return getenv("CB_TEST_SHORT") != NULL; }

static char names[TE_CHECKPOINTS][64];
static uint64_t golden[TE_CHECKPOINTS];
static int n_names;
static char why[CB_ERR_TEXT]; /* there is no GPU */

static void find_checkpoints(void)
{
    n_names = te_find_checkpoints(names, golden, getenv("CB_TEST_ONLY"));
    char dir[128];
    cb_engine *e;
    cb_err err = {0};
    snprintf(dir, sizeof dir, "tests/data/%s", names[0]);
    if (cb_engine_open(dir, &(cb_engine_opts){.device = "cuda"}, &e, &err) == 0) cb_engine_close(e);
    else if (err.code == CB_ENODEV) snprintf(why, sizeof why, "%s", err.text);
    else fail_msg("%s", err.text);
}

static void need_any_gpu(void)
{
    if (!why[0]) return;
    print_message("no GPU: %s\n", why);
    skip();
}

static void need_gpu(void)
{
    if (only_short()) skip();
    need_any_gpu();
}

/* A prompt in two steps, single rows of one sequence and of three (each twice: captured, then replayed), on the GPU and on the CPU: equal
 * logits and equal best ids. */
static void short_run(cb_engine *e, float *logits, int32_t *best)
{
    cb_engine_info info;
    cb_engine_get_info(e, &info);
    size_t n_vocab = (size_t)info.n_vocab, at = 0;
    cb_session *s[3];
    cb_row rows[24];
    cb_err err = {0};
    for (int k = 0; k < 3; k++) assert_int_equal(cb_session_open(e, &s[k], NULL), 0);
    for (int step = 0; step < 2; step++) { /* 24 rows of three sequences, 5 more of the first */
        int n = step ? 5 : 24, wanted = 0;
        for (int i = 0; i < n; i++) rows[i] = (cb_row){s[step ? 0 : i / 8], te_token(1, 24 * step + i, info.n_vocab), i % 4 == 0};
        for (int i = 0; i < n; i++) wanted += rows[i].want_logits;
        if (cb_step(e, rows, n, logits + at * n_vocab, &err) < 0) fail_msg("%s", err.text);
        at += (size_t)wanted;
    }
    for (int step = 0; step < 4; step++) {
        int n = step < 2 ? 1 : 3;
        for (int k = 0; k < n; k++) rows[k] = (cb_row){s[k], te_token(2, step + k, info.n_vocab), 1};
        if (cb_step(e, rows, n, logits + at * n_vocab, &err) < 0) fail_msg("%s", err.text);
        at += (size_t)n;
    }
    if (cb_step_best(e, &(cb_row){s[1], 3, 1}, 1, best, &err) < 0) fail_msg("%s", err.text);
    assert_int_equal(at, SHORT_ROWS);
    for (int k = 0; k < 3; k++) cb_session_close(s[k]);
}

static void test_short(void **state)
{
    (void)state;
    need_any_gpu();
    for (int i = 0; i < n_names; i++) {
        cb_engine_opts o = {.device = "cuda", .ctx_size = 64, .max_rows = 24, .max_sessions = 3};
        float *logits[2];
        int32_t best[2];
        size_t bytes = 0;
        for (int k = 0; k < 2; k++) {
            o.device = k ? "cpu" : "cuda";
            cb_engine *e = te_open(names[i], &o);
            cb_engine_info info;
            cb_engine_get_info(e, &info);
            bytes = (size_t)info.n_vocab * 4 * SHORT_ROWS;
            logits[k] = malloc(bytes);
            short_run(e, logits[k], &best[k]);
            cb_engine_close(e);
        }
        if (memcmp(logits[0], logits[1], bytes) || best[0] != best[1]) fail_msg("%s: the GPU's logits are not the CPU's", names[i]);
        free(logits[0]);
        free(logits[1]);
    }
}

static void test_chunks(void **state)
{
    (void)state;
    need_gpu();
    static const int chunks[] = {1, 7, 64, N_TOKENS};
    int bad = 0;
    for (int i = 0; i < n_names; i++) {
        cb_engine *e = te_open(names[i], &(cb_engine_opts){.device = "cuda", .ctx_size = 256, .max_rows = 160});
        for (int c = quick() ? 1 : 0; c < (quick() ? 2 : 4); c++) {
            uint64_t h = te_hash(e, N_TOKENS, chunks[c]);
            if (h == golden[i]) continue;
            print_message("%s in chunks of %d: %016llx, expected %016llx\n", names[i], chunks[c], (unsigned long long)h, (unsigned long long)golden[i]);
            bad++;
        }
        cb_engine_close(e);
    }
    assert_int_equal(bad, 0);
}

/* The sequence among n-1 others of other lengths; single rows of all, so that a captured graph runs, and sometimes several. */
static uint64_t among(cb_engine *e, int n, int most)
{
    cb_engine_info info;
    cb_engine_get_info(e, &info);
    cb_session *s[64];
    for (int k = 0; k < n; k++) assert_int_equal(cb_session_open(e, &s[k], NULL), 0);
    float *logits = malloc((size_t)info.n_vocab * 4 * 160);
    cb_row rows[160];
    te_hasher h = te_hash_start();
    for (int pos = 0; pos < N_TOKENS;) {
        int m = 0;
        for (int mine = 1 + pos % most; mine > 0 && pos < N_TOKENS; mine--, pos++) {
            rows[m++] = (cb_row){s[n / 2], te_token(0, pos, info.n_vocab), 1};
            for (int k = 0; k < n && mine == 1; k++)
                if (k != n / 2 && (pos + k) % 7) rows[m++] = (cb_row){s[k], te_token(k + 1, pos, info.n_vocab), k % 5 == 0};
        }
        cb_err err = {0};
        if (cb_step(e, rows, m, logits, &err) < 0) fail_msg("%s", err.text);
        for (int r = 0, w = 0; r < m; r++) {
            if (rows[r].session == s[n / 2]) te_hash_row(&h, logits + (size_t)w * (size_t)info.n_vocab, info.n_vocab);
            w += rows[r].want_logits;
        }
    }
    free(logits);
    for (int k = 0; k < n; k++) cb_session_close(s[k]);
    return h.h;
}

static void test_neighbours(void **state)
{
    (void)state;
    need_gpu();
    static const int sizes[][2] = {{2, 1}, {8, 1}, {8, 5}, {64, 1}, {33, 3}};
    int bad = 0;
    for (int i = 0; i < n_names; i++) {
        cb_engine *e = te_open(names[i], &(cb_engine_opts){.device = "cuda", .max_sessions = 64, .max_rows = 160, .ctx_size = 256});
        for (int k = quick() ? 2 : 0; k < (quick() ? 3 : 5); k++) {
            uint64_t h = among(e, sizes[k][0], sizes[k][1]);
            if (h == golden[i]) continue;
            print_message("%s among %d: %016llx, expected %016llx\n", names[i], sizes[k][0], (unsigned long long)h, (unsigned long long)golden[i]);
            bad++;
        }
        cb_engine_close(e);
    }
    assert_int_equal(bad, 0);
}

/* Two models resident at once, in either order, each decoding in turn: graphs of one never touch the other. */
static void test_two_models(void **state)
{
    (void)state;
    need_gpu();
    for (int i = 0; i + 1 < n_names; i += 3) {
        cb_engine_opts o = {.device = "cuda", .ctx_size = 256, .max_rows = 160};
        cb_engine *a = te_open(names[i], &o), *b = te_open(names[i + 1], &o);
        assert_int_equal(te_hash(b, N_TOKENS, 1), golden[i + 1]);
        assert_int_equal(te_hash(a, N_TOKENS, 1), golden[i]);
        assert_int_equal(te_hash(b, N_TOKENS, 1), golden[i + 1]);
        cb_engine_close(a);
        assert_int_equal(te_hash(b, N_TOKENS, 1), golden[i + 1]);
        cb_engine_close(b);
    }
}

/* Sampling on the GPU: of some tiny checkpoints, and of the one at CB_TEST_MODEL, whose vocabulary may be large. */
static void test_sampling(void **state)
{
    (void)state;
    need_any_gpu();
    char dir[128];
    for (int i = 0; i < n_names; i += quick() || only_short() ? 8 : 3) {
        snprintf(dir, sizeof dir, "tests/data/%s", names[i]);
        ts_compare(dir, "cuda", only_short() ? 2 : 40); /* two: greedy, a draw, lists, changes */
    }
    if (!only_short()) ts_errors(dir, "cuda");
    if (getenv("CB_TEST_MODEL")) ts_compare(getenv("CB_TEST_MODEL"), "cuda", 80);
}

/* Without a GPU an explicit request fails with the reason, and auto runs on the CPU and says why. */
static void test_no_gpu(void **state)
{
    (void)state;
    if (!why[0]) skip();
    cb_engine *e = te_open(names[0], &(cb_engine_opts){.device = "auto"});
    cb_engine_info info;
    cb_engine_get_info(e, &info);
    assert_true(!strncmp(info.device, "cpu:", 4));
    assert_non_null(info.note);
    assert_non_null(strstr(info.note, "cuda"));
    cb_engine_close(e);
    char dir[128];
    cb_err err = {0};
    snprintf(dir, sizeof dir, "tests/data/%s", names[0]);
    assert_int_equal(cb_engine_open(dir, &(cb_engine_opts){.device = "cuda:x"}, &e, &err), CB_EUSAGE);
}

int main(void)
{
    find_checkpoints();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_short), cmocka_unit_test(test_chunks), cmocka_unit_test(test_neighbours), cmocka_unit_test(test_two_models), cmocka_unit_test(test_sampling), cmocka_unit_test(test_no_gpu),
    };
    return cmocka_run_group_tests_name("op/cuda", tests, NULL, NULL);
}
