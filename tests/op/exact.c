/* exact.c: one hash of all logits for the same tokens, whatever the instruction set, threads, chunks, neighbours and load
 * order; and the same hash on every architecture (tests/data/exact-hashes.txt, which changes only with the arithmetic's
 * name or history in docs/arithmetic.md). */
#include "../support/engine.h"

enum { N_TOKENS = 150 };

static char names[TE_CHECKPOINTS][64];
static uint64_t golden[TE_CHECKPOINTS];
static int n_names;

static const char *levels[8];
static int n_levels;

static void find_levels(void)
{
    static const char *const all[] = {"cpu:c", "cpu:avx2", "cpu:avx512", "cpu:neon"};
    for (int i = 0; i < 4; i++) {
        cb_engine *e = te_try_open(names[0], &(cb_engine_opts){.device = all[i], .n_threads = 1});
        if (!e) continue;
        levels[n_levels++] = all[i];
        cb_engine_close(e);
    }
    assert_true(n_levels >= 1);
}

static void test_golden(void **state)
{
    (void)state;
    bool ok = true;
    for (int i = 0; i < n_names; i += te_tsan() ? 3 : 1) {
        cb_engine *e = te_open(names[i], &(cb_engine_opts){.n_threads = 2});
        uint64_t h = te_hash(e, N_TOKENS, 64);
        if (h != golden[i]) {
            print_message("%s %016llx, expected %016llx\n", names[i], (unsigned long long)h, (unsigned long long)golden[i]);
            ok = false;
        }
        cb_engine_close(e);
    }
    assert_true(ok);
}

/* Emulation and sanitizers: every checkpoint in test_golden, every third elsewhere. */
static int stride(void) { return te_tsan() ? 16 : te_quick() ? 8 : 1; }

/* The whole matrix for the first checkpoints; for the others each level meets each thread count with one chunk size. Under
 * emulation and sanitizers every fourth checkpoint, fewer threads; the thread checker sees scalar C alone with several threads. */
static void test_levels_threads_chunks(void **state)
{
    (void)state;
    static const int chunks[] = {1, 7, 64, N_TOKENS};
    for (int i = 0; i < n_names; i += te_tsan() ? 8 : te_quick() ? 4 : 1)
        for (int l = 0; l < (te_tsan() ? 1 : n_levels); l++)
            for (int t = te_tsan() ? 2 : 1; t <= (te_quick() ? 2 : 3); t++) {
                cb_engine *e = te_open(names[i], &(cb_engine_opts){.device = levels[l], .n_threads = t});
                for (int c = 0; c < 4; c++) {
                    if ((te_quick() || i >= 3) && (t + l + c) % 4 != 1) continue;
                    uint64_t h = te_hash(e, N_TOKENS, chunks[c]);
                    if (h != golden[i])
                        fail_msg("%s on %s, %d threads, chunks of %d: %016llx", names[i], levels[l], t, chunks[c], (unsigned long long)h);
                }
                cb_engine_close(e);
            }
}

/* The sequence among seven others of other lengths, all in one batch, rows interleaved. */
static void test_neighbours(void **state)
{
    (void)state;
    for (int i = 0; i < n_names; i += stride()) {
        cb_engine *e = te_open(names[i], &(cb_engine_opts){.n_threads = 2, .max_sessions = 8, .max_rows = 64});
        cb_engine_info info;
        cb_engine_get_info(e, &info);
        cb_session *s[8];
        for (int k = 0; k < 8; k++) assert_int_equal(cb_session_open(e, &s[k], NULL), 0);
        float *logits = malloc((size_t)info.n_vocab * 4 * 64);
        cb_row rows[64];
        te_hasher h = te_hash_start();
        for (int pos = 0; pos < N_TOKENS;) {
            int n = 0;
            /* a varying number of our rows, each followed by up to seven strangers' */
            for (int mine = 1 + pos % 5; mine > 0 && pos < N_TOKENS; mine--, pos++) {
                rows[n++] = (cb_row){s[3], te_token(0, pos, info.n_vocab), 1};
                for (int k = 0; k < 8; k++)
                    if (k != 3 && (pos + k) % 3 && cb_session_length(s[k]) < 400)
                        rows[n++] = (cb_row){s[k], te_token(k, pos, info.n_vocab), k == 5};
            }
            assert_int_equal(cb_step(e, rows, n, logits, NULL), 0);
            for (int r = 0, w = 0; r < n; r++) {
                if (rows[r].session == s[3]) te_hash_row(&h, logits + (size_t)w * (size_t)info.n_vocab, info.n_vocab);
                w += rows[r].want_logits;
            }
        }
        if (h.h != golden[i]) fail_msg("%s among seven others: %016llx", names[i], (unsigned long long)h.h);
        free(logits);
        for (int k = 0; k < 8; k++) cb_session_close(s[k]);
        cb_engine_close(e);
    }
}

static void test_load_order(void **state)
{
    (void)state;
    for (int i = 0; i + 1 < n_names; i += stride()) {
        cb_engine *a = te_open(names[i], NULL), *b = te_open(names[i + 1], NULL);
        assert_int_equal(te_hash(b, N_TOKENS, 64), golden[i + 1]);
        assert_int_equal(te_hash(a, N_TOKENS, 64), golden[i]);
        cb_engine_close(a);
        a = te_open(names[i], NULL);
        assert_int_equal(te_hash(a, N_TOKENS, 64), golden[i]);
        cb_engine_close(a);
        cb_engine_close(b);
    }
}

/* Prefill of all, then a second session decodes the same tokens one by one with only the last rows' logits asked for. */
static void test_wanted_rows(void **state)
{
    (void)state;
    for (int i = 0; i < n_names; i += stride()) {
        cb_engine *e = te_open(names[i], &(cb_engine_opts){.max_sessions = 2});
        cb_engine_info info;
        cb_engine_get_info(e, &info);
        size_t row = (size_t)info.n_vocab * 4;
        float *all = malloc(row * N_TOKENS), *one = malloc(row);
        cb_row rows[N_TOKENS];
        cb_session *s, *t;
        assert_int_equal(cb_session_open(e, &s, NULL) | cb_session_open(e, &t, NULL), 0);
        for (int k = 0; k < N_TOKENS; k++) rows[k] = (cb_row){s, te_token(0, k, info.n_vocab), 1};
        assert_int_equal(cb_step(e, rows, N_TOKENS, all, NULL), 0);
        for (int k = 0; k < N_TOKENS; k++) {
            rows[k].session = t;
            rows[k].want_logits = k % 3 == 0;
            assert_int_equal(cb_step(e, &rows[k], 1, one, NULL), 0);
            if (k % 3 == 0) assert_memory_equal(one, all + (size_t)k * (size_t)info.n_vocab, row);
        }
        free(all);
        free(one);
        cb_session_close(s);
        cb_session_close(t);
        cb_engine_close(e);
    }
}

int main(void)
{
    n_names = te_find_checkpoints(names, golden, NULL);
    find_levels();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),      cmocka_unit_test(test_levels_threads_chunks),
        cmocka_unit_test(test_neighbours),  cmocka_unit_test(test_load_order),
        cmocka_unit_test(test_wanted_rows),
    };
    return cmocka_run_group_tests_name("op/exact", tests, NULL, NULL);
}
