/* cuda_emulated.c: the GPU's kernels give the CPU's bits, without a GPU: on a driver whose kernels are run by fibers on the CPU
 * (tests/cuda/emulate). All but those of gemm_sm90.cu; races, and what the hardware does otherwise than its manual, are left to tests/op/cuda.c
 * on a GPU. Each tiny checkpoint in single rows, in chunks, in one step, and among others. CB_TEST_ONLY: some of them. */
#include "../support/emulated.h"

static char names[TE_CHECKPOINTS][64];
static uint64_t golden[TE_CHECKPOINTS];
static int n_names;

/* n tokens of sequence 0 by single rows, among two others, whose rows come before and after. */
static uint64_t among(cb_engine *e, int n)
{
    cb_engine_info info;
    cb_engine_get_info(e, &info);
    cb_session *s[3];
    for (int k = 0; k < 3; k++) assert_int_equal(cb_session_open(e, &s[k], NULL), 0);
    float *logits = malloc((size_t)info.n_vocab * 4 * 3);
    te_hasher h = te_hash_start();
    for (int pos = 0; pos < n; pos++) {
        cb_row rows[3];
        for (int k = 0; k < 3; k++) rows[k] = (cb_row){s[(k + 2) % 3], te_token((k + 2) % 3, pos, info.n_vocab), 1};
        cb_err err = {0};
        if (cb_step(e, rows, 3, logits, &err) < 0) fail_msg("%s", err.text);
        te_hash_row(&h, logits + info.n_vocab, info.n_vocab);
    }
    free(logits);
    for (int k = 0; k < 3; k++) cb_session_close(s[k]);
    return h.h;
}

/* One after the other: single rows, chunks of 5 (with 2 at the end), one step, among others. */
static void hashes(const char *name, const char *device, uint64_t out[4])
{
    cb_engine *e = te_open(name, &(cb_engine_opts){.device = device, .ctx_size = 128, .max_rows = 32, .max_sessions = 4, .n_threads = 1});
    out[0] = te_hash(e, 4, 1);
    out[1] = te_hash(e, 7, 5);
    out[2] = te_hash(e, 20, 20);
    out[3] = among(e, 2);
    cb_engine_close(e);
}

static void compare(const char *only)
{
    static const char *const what[] = {"by single rows", "in chunks of 5", "in one step of 20", "among two others"};
    if (!emulated.lib) skip();
    int bad = 0;
    for (int i = 0; i < n_names; i++) {
        if (only && !strstr(names[i], only)) continue;
        uint64_t cpu[4], gpu[4];
        hashes(names[i], "cpu", cpu);
        hashes(names[i], "cuda", gpu);
        for (int k = 0; k < 4; k++) {
            if (cpu[k] == gpu[k]) continue;
            print_message("%s %s: %016llx, the CPU has %016llx\n", names[i], what[k], (unsigned long long)gpu[k], (unsigned long long)cpu[k]);
            bad++;
        }
    }
    assert_int_equal(bad, 0);
}

static void test_kernels(void **state)
{
    (void)state;
    compare(NULL);
}

/* One multiprocessor: a thread block has more to do than its ring has room for. */
static void test_one_processor(void **state)
{
    (void)state;
    emulated_tell("processors=1");
    compare(NULL);
}

/* Without what stream.cu needs. */
static void test_older(void **state)
{
    (void)state;
    emulated_tell("cc=80");
    compare("-4bit");
}

/* Thread blocks have no order. */
static void test_backwards(void **state)
{
    (void)state;
    setenv("CB_EMULATE_BACKWARDS", "1", 1);
    compare("moe-");
    unsetenv("CB_EMULATE_BACKWARDS");
}

int main(void)
{
    setenv("CB_CUDA_STREAM", "on", 0); /* small as these checkpoints are */
    n_names = te_find_checkpoints(names, golden, getenv("CB_TEST_ONLY"));
    emulated_open();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kernels), cmocka_unit_test(test_backwards), cmocka_unit_test(test_one_processor),
                                       cmocka_unit_test(test_older)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
