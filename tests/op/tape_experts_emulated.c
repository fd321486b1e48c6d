/* tape_experts_emulated.c: layers of experts in a step whose launch stays (cuda/tape_experts.cuh, cuda/tape_normed.cuh) give the CPU's bits, without a GPU (tests/cuda/emulate).
 * With rows that have remainders; in two sessions whose rows take turns. And that they are run so: a step has few launches. */
#include "../support/emulated.h"
#include "../support/normed_checkpoint.h"

enum { STEPS = 3, SESSIONS = 2, CTX = 128, CHUNK = 5 };

static const struct {
    const char *name;
    moe_shape s;
    int processors, most_launches;
    int dense; /* of one whose outputs are normed */
} shapes[] = {
    {"4 of 16 experts", {256, 16, 4, 256, 3, 2, 256, false}, 8, 5, 0},
    {"4 of 16 experts, remainders", {256, 16, 4, 256, 2, 2, 256, true}, 7, 5, 0},
    {"8 of 40 experts", {512, 40, 8, 512, 2, 2, 256, true}, 16, 5, 0},
    {"normed, 4 of 16 experts", {256, 16, 4, 192, 3, 2, 0, false}, 8, 6, 320},
    {"normed, 8 of 40 experts, remainders", {768, 40, 8, 320, 2, 2, 0, true}, 16, 6, 576},
};

/* Logits of single rows of two sessions, between them of a chunk; *most: launches that a new graph of a single row has. */
static uint64_t hash_of(const char *dir, const char *device, uint64_t *most)
{
    cb_engine *e;
    cb_err err = {0};
    if (cb_engine_open(dir, &(cb_engine_opts){.device = device, .ctx_size = CTX, .max_rows = CHUNK, .max_sessions = SESSIONS, .n_threads = 1}, &e, &err) < 0) fail_msg("%s", err.text);
    cb_session *s[SESSIONS];
    float *logits = malloc(MOE_VOCAB * 4);
    te_hasher h = te_hash_start();
    *most = 0;
    for (int k = 0; k < SESSIONS; k++) assert_int_equal(cb_session_open(e, &s[k], NULL), 0);
    for (int i = 0; i < STEPS; i++)
        for (int k = 0; k < SESSIONS; k++) {
            int n = i == 1 ? CHUNK : 1;
            cb_row rows[CHUNK];
            uint64_t before = !strcmp(device, "cuda") ? emulated_launches() : 0;
            for (int j = 0; j < n; j++) rows[j] = (cb_row){s[k], te_token(k, i + 31 * j, MOE_VOCAB), j == n - 1};
            if (cb_step(e, rows, n, logits, &err) < 0) fail_msg("%s", err.text);
            uint64_t now = !strcmp(device, "cuda") ? emulated_launches() - before : 0;
            if (n == 1 && now > *most) *most = now;
            te_hash_row(&h, logits, MOE_VOCAB);
        }
    free(logits);
    for (int k = 0; k < SESSIONS; k++) cb_session_close(s[k]);
    cb_engine_close(e);
    return h.h;
}

static void test_shapes(void **state)
{
    (void)state;
    if (!emulated.lib) skip();
    const char *only = getenv("CB_TEST_ONLY");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        char dir[64], processors[32];
        uint64_t most;
        if (only && !strstr(shapes[i].name, only)) continue;
        if (shapes[i].dense) normed_write(&shapes[i].s, shapes[i].dense, tmp_dir(dir));
        else moe_write(&shapes[i].s, tmp_dir(dir));
        snprintf(processors, sizeof processors, "processors=%d", shapes[i].processors);
        emulated_tell(processors);
        uint64_t cpu = hash_of(dir, "cpu", &most), gpu = hash_of(dir, "cuda", &most);
        tmp_remove(dir);
        if (cpu != gpu) fail_msg("%s: %016llx, the CPU has %016llx", shapes[i].name, (unsigned long long)gpu, (unsigned long long)cpu);
        if (most > (uint64_t)shapes[i].most_launches) fail_msg("%s: a step of %llu launches", shapes[i].name, (unsigned long long)most);
    }
}

static void test_backwards(void **state) { emulated_backwards(test_shapes, state); }

int main(void)
{
    emulated_open();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shapes), cmocka_unit_test(test_backwards)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
