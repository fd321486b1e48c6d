/* cuda_emulated.c: the GPU's kernels give the CPU's bits, without a GPU: on a driver whose kernels are run by fibers on the CPU
 * (tests/cuda/emulate). Races, and what the hardware does otherwise than its manual, are left to tests/op/cuda.c on a GPU. Each tiny
 * checkpoint in single rows, in chunks, in one step, and among few and more others. CB_TEST_ONLY: some of them. */
#include "../support/emulated.h"
#include "../support/outliers.h"

static char names[TE_CHECKPOINTS][64];
static uint64_t golden[TE_CHECKPOINTS];
static int n_names;

enum { OTHERS = 6, N_WAYS = 6, MANY = 50 };

/* n tokens of sequence 0 by single rows, in steps of so many sessions; all but one of the others' rows come behind. */
static uint64_t among(cb_engine *e, int n, int sessions)
{
    cb_engine_info info;
    cb_engine_get_info(e, &info);
    cb_session *s[OTHERS];
    for (int k = 0; k < sessions; k++) assert_int_equal(cb_session_open(e, &s[k], NULL), 0);
    float *logits = malloc((size_t)info.n_vocab * 4 * OTHERS);
    te_hasher h = te_hash_start();
    for (int pos = 0; pos < n; pos++) {
        cb_row rows[OTHERS];
        for (int k = 0; k < sessions; k++) {
            int of = (k + sessions - 1) % sessions;
            rows[k] = (cb_row){s[of], te_token(of, pos, info.n_vocab), 1};
        }
        cb_err err = {0};
        if (cb_step(e, rows, sessions, logits, &err) < 0) fail_msg("%s", err.text);
        te_hash_row(&h, logits + info.n_vocab, info.n_vocab);
    }
    free(logits);
    for (int k = 0; k < sessions; k++) cb_session_close(s[k]);
    return h.h;
}

/* One after the other: single rows, chunks of 5 (with 2 at the end), one step of 20 and one of 50 (k_batch's tiles of 32 and 64 rows), among others: two, whose launches are those of few rows, and five. */
static void hashes(const char *dir, const char *device, uint64_t out[N_WAYS])
{
    cb_engine *e;
    cb_err err = {0};
    if (cb_engine_open(dir, &(cb_engine_opts){.device = device, .ctx_size = 128, .max_rows = MANY, .max_sessions = OTHERS, .n_threads = 1}, &e, &err) < 0)
        fail_msg("%s: %s", dir, err.text);
    out[0] = te_hash(e, 4, 1);
    out[1] = te_hash(e, 7, 5);
    out[2] = te_hash(e, 20, 20);
    out[5] = te_hash(e, MANY, MANY);
    out[3] = among(e, 2, 3);
    out[4] = among(e, 2, OTHERS);
    cb_engine_close(e);
}

static int compare_one(const char *dir)
{
    static const char *const what[N_WAYS] = {"by single rows", "in chunks of 5", "in one step of 20", "among two others", "among five others", "in one step of 50"};
    uint64_t cpu[N_WAYS], gpu[N_WAYS];
    int bad = 0;
    hashes(dir, "cpu", cpu);
    hashes(dir, "cuda", gpu);
    for (int k = 0; k < N_WAYS; k++) {
        if (cpu[k] == gpu[k]) continue;
        print_message("%s %s: %016llx, the CPU has %016llx\n", dir, what[k], (unsigned long long)gpu[k], (unsigned long long)cpu[k]);
        bad++;
    }
    return bad;
}

static void compare(const char *only)
{
    if (!emulated.lib) skip();
    int bad = 0;
    for (int i = 0; i < n_names; i++)
        if (!only || strstr(names[i], only)) bad += compare_one(tmp_path("tests/data", names[i]));
    assert_int_equal(bad, 0);
}

static void compare_outliers(void)
{
    static const char *const some[] = {"tiny-qwen35moe-4bit", "tiny-gemma4moe-4bit", "tiny-qwen35-4bit", "tiny-bonsai2", "tiny-llama-4bit-g32-f32"};
    int bad = 0;
    for (int i = 0; i < n_names; i++) {
        char dir[64];
        bool one = false;
        for (size_t k = 0; k < sizeof some / sizeof *some; k++) one |= !strcmp(names[i], some[k]);
        if (!one) continue;
        put_outliers(names[i], tmp_dir(dir));
        bad += compare_one(dir);
        tmp_remove(dir);
    }
    assert_int_equal(bad, 0);
}

static void test_kernels(void **state)
{
    (void)state;
    compare(NULL);
    compare_outliers();
}

/* One multiprocessor: a thread block has more to do than its ring has room for. */
static void test_one_processor(void **state)
{
    (void)state;
    emulated_tell("processors=1");
    compare(NULL);
    compare_outliers();
}

/* Without what stream.cu needs. */
static void test_older(void **state)
{
    (void)state;
    emulated_tell("cc=80");
    compare("-4bit");
}

/* Kernels that only 9.0 has (gemm_sm90.cu): one step of more rows than others take. */
static void test_many_rows(void **state)
{
    (void)state;
    enum { ROWS = 70 };
    if (!emulated.lib) skip();
    emulated_tell("cc=90");
    for (int i = 0, bad = 0; i < n_names; i++) {
        uint64_t h[2];
        if (!strstr(names[i], "-4bit") && !strstr(names[i], "bonsai2") && !strstr(names[i], "-8bit")) continue;
        for (int gpu = 0; gpu < 2; gpu++) {
            cb_engine *e = te_open(names[i], &(cb_engine_opts){.device = gpu ? "cuda" : "cpu", .ctx_size = 128, .max_rows = ROWS, .max_sessions = 1, .n_threads = 1});
            h[gpu] = te_hash(e, ROWS, ROWS);
            cb_engine_close(e);
        }
        if (h[0] != h[1]) print_message("%s: %016llx, the CPU has %016llx\n", names[i], (unsigned long long)h[1], (unsigned long long)h[0]), bad++;
        assert_int_equal(bad, 0);
    }
    emulated_tell("cc=91");
}

/* Rows of single rows' steps by one thread block each, as steps of a few rows have them. */
static void test_no_clusters(void **state)
{
    (void)state;
    setenv("CB_CUDA_CLUSTERS", "off", 1);
    compare("bonsai2");
    compare("moe-4bit");
    compare_outliers();
    unsetenv("CB_CUDA_CLUSTERS");
}

/* Thread blocks have no order, nor have kernels of a graph that do not wait for each other. */
static void compare_unordered(void **state)
{
    (void)state;
    compare("moe-");
    compare("bonsai2");
}
static void test_backwards(void **state) { emulated_backwards(compare_unordered, state); }

int main(void)
{
    n_names = te_find_checkpoints(names, golden, getenv("CB_TEST_ONLY"));
    emulated_open();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kernels), cmocka_unit_test(test_backwards), cmocka_unit_test(test_no_clusters), cmocka_unit_test(test_one_processor),
                                       cmocka_unit_test(test_many_rows), cmocka_unit_test(test_older)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
