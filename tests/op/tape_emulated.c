/* tape_emulated.c: steps of one row whose launch stays from product to product (cuda/tape.cu) give the CPU's bits, without a GPU
 * (tests/cuda/emulate): some thread blocks that wait for each other's words; rows that have remainders; two sessions in turn, and steps of several rows
 * between, so that words of other steps are cleared; contexts that end about where a block of keys does. And that steps are run so: they have few launches. */
#include "../support/emulated.h"
#include "../support/outliers.h"
#include "cuda/abi.h"

enum { CTX = 256, STEPS = 5, SESSIONS = 2, CHUNK = 16, MOST_LAUNCHES = 8 };

static const char *const checkpoints[] = {"tiny-bonsai2", "tiny-bonsai2-tied"};

/* Of the logits of single rows, and a chunk among them, of two sessions, of which the first has so many tokens before, the other none; *most: launches that a step
 * of a single row has. */
static uint64_t hash_of(const char *dir, const char *device, int tokens, uint64_t *most)
{
    bool gpu = !strcmp(device, "cuda");
    cb_engine *e;
    cb_err err = {0};
    cb_engine_info info;
    if (cb_engine_open(dir, &(cb_engine_opts){.device = device, .ctx_size = CTX, .max_rows = CHUNK, .max_sessions = SESSIONS, .n_threads = 1}, &e, &err) < 0) fail_msg("%s: %s", dir, err.text);
    cb_engine_get_info(e, &info);
    cb_session *s[SESSIONS];
    cb_row rows[CHUNK];
    float *logits = malloc((size_t)info.n_vocab * sizeof *logits);
    te_hasher h = te_hash_start();
    int at[SESSIONS] = {0};
    *most = 0;
    for (int k = 0; k < SESSIONS; k++) assert_int_equal(cb_session_open(e, &s[k], NULL), 0);
    for (int i = -CTX; i < STEPS; i++)
        for (int k = 0; k < SESSIONS; k++) {
            int left = k ? 0 : tokens - at[k], n = i < 0 ? left < CHUNK ? left : CHUNK : i == 2 ? 3 : 1;
            uint64_t before = gpu ? emulated_launches() : 0;
            for (int j = 0; j < n; j++) rows[j] = (cb_row){s[k], te_token(k, at[k] + j, info.n_vocab), j == n - 1};
            if (n <= 0) continue;
            if (cb_step(e, rows, n, logits, &err) < 0) fail_msg("%s: %s", dir, err.text);
            uint64_t now = gpu ? emulated_launches() - before : 0;
            if (n == 1 && now > *most) *most = now;
            at[k] += n;
            te_hash_row(&h, logits, info.n_vocab);
        }
    free(logits);
    for (int k = 0; k < SESSIONS; k++) cb_session_close(s[k]);
    cb_engine_close(e);
    return h.h;
}

static void compare(const char *dir, const char *name, const char *processors, int tokens)
{
    uint64_t cpu, gpu, most;
    emulated_tell(processors);
    cpu = hash_of(dir, "cpu", tokens, &most);
    gpu = hash_of(dir, "cuda", tokens, &most);
    if (gpu != cpu) fail_msg("%s, %s: %016llx, the CPU has %016llx", name, processors, (unsigned long long)gpu, (unsigned long long)cpu);
    if (most > MOST_LAUNCHES) fail_msg("%s: a step of %llu launches", name, (unsigned long long)most);
}

/* In a folder of its own, with twice as many dims of a head turned: pairs of a lane. */
static void put_turns_of(const char *from, const char *dir)
{
    static const char was[] = "\"partial_rotary_factor\": 0.25";
    size_t n;
    link_file(from, dir, "tokenizer.json", true);
    link_file(from, dir, "tokenizer_config.json", true);
    link_file(from, dir, "hadamard.json", true);
    link_file(from, dir, "model.safetensors", true);
    char *text = read_file(from, "config.json", &n);
    int found = 0;
    for (char *p = text; (p = strstr(p, was)); found++) memcpy(p + sizeof was - 5, "0.50", 4);
    assert_true(found > 0);
    tmp_put(dir, "config.json", text, n);
    free(text);
}

static void put_turns(const char *name, const char *dir)
{
    char from[300];
    snprintf(from, sizeof from, "tests/data/%.255s", name);
    put_turns_of(from, dir);
}

/* Contexts that begin, and in which a block of keys ends. */
static void test_checkpoints(void **state)
{
    (void)state;
    if (!emulated.lib) skip();
    for (size_t i = 0; i < sizeof checkpoints / sizeof *checkpoints; i++) {
        char dir[64];
        put_turns(checkpoints[i], tmp_dir(dir));
        compare(dir, checkpoints[i], "processors=13", 0);
        compare(dir, checkpoints[i], "processors=6", (int)(i + 1) * CU_BLOCK - 1);
        tmp_remove(dir);
    }
}

static void test_remainders(void **state)
{
    (void)state;
    if (!emulated.lib) skip();
    for (size_t i = 0; i < sizeof checkpoints / sizeof *checkpoints; i++) {
        char from[64], dir[64];
        put_outliers(checkpoints[i], tmp_dir(from));
        put_turns_of(from, tmp_dir(dir));
        compare(dir, checkpoints[i], "processors=6", 0);
        tmp_remove(dir);
        tmp_remove(from);
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
