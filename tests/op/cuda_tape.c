/* cuda_tape.c: on a GPU, all layers of a step in one launch that stays (cuda/tape.cu): models with experts as Qwen 3.5 and as Gemma 4 have them give the CPU's
 * bits, in two sessions, over the end of a block of keys; and two of them step at the same time, which must not keep each other's thread blocks out. Skipped by name where there is no GPU. */
#include "../support/engine.h"
#include "../support/normed_checkpoint.h"
#include <pthread.h>

enum { CTX = 128, PROMPT = 61, STEPS = 8, SESSIONS = 2, AT_ONCE = 200 };

static const moe_shape shape = {512, 40, 8, 512, 4, 2, 256, true}, normed = {1536, 40, 8, 320, 4, 2, 0, true};
enum { DENSE = 576, MODELS = 2 };
static char dirs[MODELS][64];

static cb_engine *open_on(const char *dir, const char *device)
{
    cb_engine *e;
    cb_err err = {0};
    if (cb_engine_open(dir, &(cb_engine_opts){.device = device, .ctx_size = CTX, .max_rows = PROMPT, .max_sessions = SESSIONS}, &e, &err) == 0) return e;
    if (err.code != CB_ENODEV) fail_msg("%s", err.text);
    print_message("no GPU: %s\n", err.text);
    return NULL;
}

static uint64_t hash_of(cb_engine *e)
{
    cb_session *s[SESSIONS];
    cb_row rows[PROMPT];
    cb_err err = {0};
    float *logits = malloc(MOE_VOCAB * 4);
    te_hasher h = te_hash_start();
    for (int k = 0; k < SESSIONS; k++) assert_int_equal(cb_session_open(e, &s[k], NULL), 0);
    for (int i = 0; i <= STEPS; i++)
        for (int k = 0; k < SESSIONS; k++) {
            int n = i ? 1 : PROMPT;
            for (int j = 0; j < n; j++) rows[j] = (cb_row){s[k], te_token(k, 97 * i + j, MOE_VOCAB), j == n - 1};
            if (cb_step(e, rows, n, logits, &err) < 0) fail_msg("%s", err.text);
            te_hash_row(&h, logits, MOE_VOCAB);
        }
    for (int k = 0; k < SESSIONS; k++) cb_session_close(s[k]);
    free(logits);
    return h.h;
}

static void test_bits(void **state)
{
    (void)state;
    for (int i = 0; i < MODELS; i++) {
        cb_engine *gpu = open_on(dirs[i], "cuda");
        if (!gpu) skip();
        cb_engine *cpu = open_on(dirs[i], "cpu");
        uint64_t first = hash_of(gpu);
        assert_int_equal(first, hash_of(cpu));
        assert_int_equal(first, hash_of(gpu)); /* from the graph now */
        cb_engine_close(cpu);
        cb_engine_close(gpu);
    }
}

/* Greedy steps; what they chose. */
static void *many_steps(void *engine)
{
    cb_session *s;
    cb_err err = {0};
    uint64_t h = 14695981039346656037u;
    int32_t id = 1;
    if (cb_session_open(engine, &s, NULL) < 0) return NULL;
    for (int i = 0; i < AT_ONCE; i++) {
        if (i % (CTX - 1) == 0) cb_session_reset(s);
        if (cb_step_best(engine, &(cb_row){s, id, 1}, 1, &id, &err) < 0) return NULL;
        h = (h ^ (uint32_t)id) * 1099511628211u;
    }
    cb_session_close(s);
    return (void *)(uintptr_t)h;
}

static void test_two_at_once(void **state)
{
    (void)state;
    cb_engine *e[MODELS];
    pthread_t thread[MODELS];
    void *alone[MODELS], *together[MODELS];
    for (int i = 0; i < MODELS; i++) {
        if (!(e[i] = open_on(dirs[i], "cuda"))) skip();
        alone[i] = many_steps(e[i]);
        assert_non_null(alone[i]);
    }
    for (int i = 0; i < MODELS; i++) assert_int_equal(pthread_create(&thread[i], NULL, many_steps, e[i]), 0);
    for (int i = 0; i < MODELS; i++) assert_int_equal(pthread_join(thread[i], &together[i]), 0);
    for (int i = 0; i < MODELS; i++) {
        assert_ptr_equal(together[i], alone[i]);
        cb_engine_close(e[i]);
    }
}

int main(void)
{
    moe_write(&shape, tmp_dir(dirs[0]));
    normed_write(&normed, DENSE, tmp_dir(dirs[1]));
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bits), cmocka_unit_test(test_two_at_once)};
    int rc = cmocka_run_group_tests_name("op/cuda_tape", tests, NULL, NULL);
    for (int i = 0; i < MODELS; i++) tmp_remove(dirs[i]);
    return rc;
}
