/* tape_emulated.c: parts of steps of one row whose launch stays from product to product (cuda/tape.cu) give the CPU's bits, without a GPU
 * (tests/cuda/emulate): some thread blocks that wait for each other's words; rows that have remainders; two sessions in turn, and steps of several rows
 * between, so that words of other steps are cleared. And that steps are run so: they have few launches. */
#include "../support/emulated.h"
#include "../support/outliers.h"

enum { CTX = 128, STEPS = 5, SESSIONS = 2, CHUNK = 7, MOST_LAUNCHES = 12 };

static const char *const checkpoints[] = {"tiny-bonsai2", "tiny-bonsai2-tied"};

static uint64_t launches(void)
{
    fake_counts c;
    __typeof__(&fake_count) count;
    *(void **)&count = dlsym(emulated.lib, "fake_count");
    count(&c);
    return c.n_launch;
}

/* Of the logits of single rows and chunks of two sessions; *most: launches that a new graph of a single row has. */
static uint64_t hash_of(const char *dir, const char *device, uint64_t *most)
{
    cb_engine *e;
    cb_err err = {0};
    cb_engine_info info;
    if (cb_engine_open(dir, &(cb_engine_opts){.device = device, .ctx_size = CTX, .max_rows = CHUNK, .max_sessions = SESSIONS, .n_threads = 1}, &e, &err) < 0) fail_msg("%s: %s", dir, err.text);
    cb_engine_get_info(e, &info);
    cb_session *s[SESSIONS];
    cb_row rows[CHUNK];
    float *logits = malloc((size_t)info.n_vocab * sizeof *logits);
    te_hasher h = te_hash_start();
    *most = 0;
    for (int k = 0; k < SESSIONS; k++) assert_int_equal(cb_session_open(e, &s[k], NULL), 0);
    for (int i = 0, at = 0; i < STEPS; i++)
        for (int k = 0; k < SESSIONS; k++, at++) {
            bool many = i == 2;
            uint64_t before = !strcmp(device, "cuda") ? launches() : 0;
            for (int j = 0; j < (many ? CHUNK : 1); j++) rows[j] = (cb_row){s[k], te_token(k, at + 31 * j, info.n_vocab), j == (many ? CHUNK : 1) - 1};
            if (cb_step(e, rows, many ? CHUNK : 1, logits, &err) < 0) fail_msg("%s: %s", dir, err.text);
            uint64_t now = !strcmp(device, "cuda") ? launches() - before : 0;
            if (!many && now > *most) *most = now;
            te_hash_row(&h, logits, info.n_vocab);
        }
    free(logits);
    for (int k = 0; k < SESSIONS; k++) cb_session_close(s[k]);
    cb_engine_close(e);
    return h.h;
}

static void compare(const char *dir, const char *name)
{
    static const char *const processors[] = {"processors=6", "processors=13"};
    uint64_t cpu, gpu, most;
    cpu = hash_of(dir, "cpu", &most);
    for (size_t i = 0; i < sizeof processors / sizeof *processors; i++) {
        emulated_tell(processors[i]);
        gpu = hash_of(dir, "cuda", &most);
        if (gpu != cpu) fail_msg("%s, %s: %016llx, the CPU has %016llx", name, processors[i], (unsigned long long)gpu, (unsigned long long)cpu);
        if (most > MOST_LAUNCHES) fail_msg("%s: a step of %llu launches", name, (unsigned long long)most);
    }
}

static void test_checkpoints(void **state)
{
    (void)state;
    if (!emulated.lib) skip();
    for (size_t i = 0; i < sizeof checkpoints / sizeof *checkpoints; i++) compare(tmp_path("tests/data", checkpoints[i]), checkpoints[i]);
}

static void test_remainders(void **state)
{
    (void)state;
    if (!emulated.lib) skip();
    for (size_t i = 0; i < sizeof checkpoints / sizeof *checkpoints; i++) {
        char dir[64];
        put_outliers(checkpoints[i], tmp_dir(dir));
        compare(dir, checkpoints[i]);
        tmp_remove(dir);
    }
}

static void test_backwards(void **state)
{
    emulated_backwards(test_checkpoints, state);
    emulated_backwards(test_remainders, state);
}

int main(void)
{
    emulated_open();
    setenv("CB_CUDA_TAPE", "on", 1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_checkpoints), cmocka_unit_test(test_remainders), cmocka_unit_test(test_backwards)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
