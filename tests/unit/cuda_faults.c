/* cuda_faults.c: the host code of src/cuda on a driver without a GPU (tests/cuda/fake_cuda.h), where every call can be made to fail: each
 * failure is one clear error, gives everything back and leaves other models of the process alone. Skipped where there are no GPU
 * kernels in the build. */
#include "../support/emulated.h"
#include "base/mem.h"

static struct {
    void *lib;
    __typeof__(&fake_reset) reset;
    __typeof__(&fake_tell) tell;
    __typeof__(&fake_count) count;
    __typeof__(&fake_calls) calls;
} fake;

static cb_engine *other;      /* a model on the CPU that is resident all the time */
static uint64_t other_golden;

static void open_fake(void)
{
    if (!(fake.lib = driver_beside("/cuda/libcuda.so.1"))) return;
    *(void **)&fake.reset = dlsym(fake.lib, "fake_reset");
    *(void **)&fake.tell = dlsym(fake.lib, "fake_tell");
    *(void **)&fake.count = dlsym(fake.lib, "fake_count");
    *(void **)&fake.calls = dlsym(fake.lib, "fake_calls");
}

#define NEED_FAKE() if (!fake.lib) skip()

static const cb_engine_opts gpu = {.device = "cuda", .ctx_size = 256, .max_rows = 32, .max_sessions = 4, .max_snapshots = 1};

static int try_open(const char *name, const cb_engine_opts *o, cb_engine **e, cb_err *err)
{
    char dir[128];
    snprintf(dir, sizeof dir, "tests/data/%s", name);
    *err = (cb_err){0};
    return cb_engine_open(dir, o, e, err);
}

static void assert_one_line(const cb_err *err)
{
    assert_true(err->text[0] != 0 && !strchr(err->text, '\n'));
}

static void assert_has(const cb_err *err, const char *part)
{
    if (!strstr(err->text, part)) fail_msg("\"%s\" is not in: %s", part, err->text);
    assert_one_line(err);
}

/* Nothing is held on the device, nothing was done that a real driver would refuse, and the other model still answers. */
static void assert_clean(void)
{
    fake_counts c;
    fake.count(&c);
    assert_string_equal(c.broken, "");
    if (c.contexts | c.allocations | c.pinned | c.streams | c.events | c.modules | c.graphs | c.execs)
        fail_msg("held: %d contexts, %d allocations, %d pinned, %d streams, %d events, %d modules, %d graphs, %d executable graphs", c.contexts,
                 c.allocations, c.pinned, c.streams, c.events, c.modules, c.graphs, c.execs);
    assert_int_equal(c.bytes + c.pinned_bytes, 0);
}

static void assert_other_lives(void) { assert_int_equal(te_hash(other, 8, 8), other_golden); }

/* Two sampled rows: penalties and a list, and a row that is fetched whole (two biases of one id). */
static int sampled(cb_engine *e, cb_session *s, cb_session *f, cb_err *err)
{
    static const int32_t history[] = {1, 2, 3}, twice[] = {3, 3};
    cb_engine_info info;
    cb_engine_get_info(e, &info);
    cb_sampling a, b;
    cb_sampling_init(&a);
    a.top_k = 5, a.repetition_penalty = 1.5f;
    b = a;
    b.bias_ids = twice, b.bias = (const float[]){1, 1}, b.n_bias = 2;
    cb_pick picks[] = {{&a, history, 3, 1, -1, 0}, {&b, history, 3, 1, -1, 0}};
    cb_sampler *sampler = NULL;
    int rc = cb_sampler_open(info.n_vocab, &sampler, err);
    cb_row two[] = {{s, 3, 1}, {f, 3, 1}};
    if (rc == 0) rc = cb_step_sample(e, two, 2, sampler, picks, err);
    cb_sampler_close(sampler);
    if (rc == 0 && (picks[0].token < 0 || picks[1].token < 0)) fail_msg("sampled %d and %d", picks[0].token, picks[1].token);
    return rc;
}

/* A bit of everything: a prompt, single rows (captured), several sequences, a fork and its own block, a snapshot and the way back, logits,
 * best ids, sampled ones, a tap. Stops at the first error. */
static void tap(void *ctx, const cb_tap *t) { (void)t, ++*(int *)ctx; }

static int work(cb_engine *e, cb_err *err)
{
    cb_engine_info info;
    cb_engine_get_info(e, &info);
    cb_session *s = NULL, *f = NULL;
    cb_snapshot *n = NULL;
    float *logits = malloc((size_t)info.n_vocab * 4 * 32);
    cb_row rows[32];
    int32_t best[4];
    int taps = 0;
    int rc = cb_session_open(e, &s, err);
    for (int i = 0; i < 20 && rc == 0; i++) rows[i] = (cb_row){s, te_token(0, i, info.n_vocab), i > 17};
    if (rc == 0) rc = cb_step(e, rows, 20, logits, err);
    if (rc == 0) rc = cb_session_snapshot(s, &n, err);
    for (int i = 0; i < 3 && rc == 0; i++) rc = cb_step_best(e, &(cb_row){s, 3, 1}, 1, best, err);
    if (rc == 0 && (best[0] < 0 || best[0] >= info.n_vocab)) fail_msg("best id %d", best[0]);
    if (rc == 0) rc = cb_session_fork(s, &f, err);
    if (rc == 0) rc = cb_session_own(f, err);
    for (int i = 0; i < 2 && rc == 0; i++) {
        cb_row two[] = {{s, 1, 1}, {f, 2, 1}};
        rc = cb_step_best(e, two, 2, best, err);
    }
    if (rc == 0) rc = sampled(e, s, f, err);
    if (rc == 0) rc = cb_session_restore(f, n, err);
    cb_engine_set_tap(e, tap, &taps);
    if (rc == 0) rc = cb_step(e, &(cb_row){f, 5, 1}, 1, logits, err);
    cb_engine_set_tap(e, NULL, NULL);
    if (rc == 0) assert_true(taps > 10);
    cb_probe p;
    if (rc == 0) rc = cb_engine_probe(e, &p, err);
    cb_snapshot_close(n);
    cb_session_close(f);
    cb_session_close(s);
    free(logits);
    return rc;
}

static int open_and_work(const char *name, const cb_engine_opts *o, cb_err *err)
{
    cb_engine *e;
    int rc = try_open(name, o, &e, err);
    if (rc < 0) return rc;
    rc = work(e, err);
    cb_engine_close(e);
    return rc;
}

/* ---- what cannot be used ---- */

static void test_unusable(void **state)
{
    (void)state;
    NEED_FAKE();
    static const struct {
        const char *word;
        int code;
        const char *text;
    } cases[] = {
        {"version=11080", CB_ENODEV, "the NVIDIA driver is too old: it serves CUDA 11.8, needed is 12.0"},
        {"cuDriverGetVersion:1:999", CB_ENODEV, "too old"},
        {"devices=0", CB_ENODEV, "the driver sees no GPU"},
        {"cuDeviceGetCount:1:999", CB_ENODEV, "the driver sees no GPU"},
        {"cuInit:1:100", CB_ENODEV, "does not start: no CUDA-capable device is detected (CUDA_ERROR_NO_DEVICE, error 100)"},
        {"cuInit:1:803", CB_ENODEV, "error 803"}, /* the driver and its library differ in version */
        {"cc=75", CB_ENODEV, "compute capability 7.5; needed is 8.0 or later"},
        {"cuModuleLoadData:1:209", CB_ENODEV, "this build has no kernels for a GPU of compute capability 9.0"},
        {"cuModuleLoadData:3:222", CB_ENODEV, "this build has no kernels"}, /* PTX of a later version */
        {"cuModuleLoadData:2:2", CB_ENOMEM, "loading kernels: out of memory"},
        {"cuDevicePrimaryCtxRetain:1:46", CB_ENODEV, "opening the GPU"}, /* another process has it alone */
        {"cuDevicePrimaryCtxRetain:1:2", CB_ENODEV, "opening the GPU: out of memory"},
        {"cuStreamCreate:1:2", CB_ENODEV, "opening the GPU"},
        {"cuModuleGetFunction:5:500", CB_EIO, "k_"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cb_engine *e;
        cb_err err;
        fake.reset();
        fake.tell(cases[i].word);
        assert_int_equal(try_open("tiny-llama-4bit", &gpu, &e, &err), cases[i].code);
        assert_null(e);
        assert_has(&err, "cuda");
        assert_has(&err, cases[i].text);
        assert_clean();
        /* auto: on the CPU, with the reason */
        fake.reset();
        fake.tell(cases[i].word);
        e = te_open("tiny-llama-4bit", &(cb_engine_opts){.ctx_size = 256});
        cb_engine_info info;
        cb_engine_get_info(e, &info);
        assert_true(!strncmp(info.device, "cpu:", 4));
        if (!info.note || !strstr(info.note, cases[i].text)) fail_msg("note: %s", info.note ? info.note : "none");
        cb_engine_close(e);
        assert_clean();
    }
    cb_engine *e;
    cb_err err;
    fake.reset();
    assert_int_equal(try_open("tiny-llama-4bit", &(cb_engine_opts){.device = "cuda:1"}, &e, &err), CB_ENODEV);
    assert_has(&err, "cuda:1: there is 1 GPU");
    assert_clean();
    assert_other_lives();
}

/* ---- memory ---- */

static void test_no_room(void **state)
{
    (void)state;
    NEED_FAKE();
    cb_engine *e;
    cb_err err;
    /* seen before anything is allocated */
    fake.reset();
    fake.tell("memory=600");
    assert_int_equal(try_open("tiny-llama-4bit", &gpu, &e, &err), CB_ENOMEM);
    assert_has(&err, "need");
    assert_has(&err, "have");
    assert_int_equal(fake.calls("cuMemAlloc"), 0);
    assert_clean();
    /* other programs were quicker: at each allocation of an opening */
    fake.reset();
    assert_int_equal(try_open("tiny-llama-4bit", &gpu, &e, &err), 0);
    int n = (int)fake.calls("cuMemAlloc"), n_pinned = (int)fake.calls("cuMemHostAlloc");
    cb_engine_close(e);
    assert_true(n >= 4 && n_pinned >= 5);
    for (int i = 1; i <= n + n_pinned; i++) {
        char word[64];
        snprintf(word, sizeof word, i <= n ? "cuMemAlloc:%d:2" : "cuMemHostAlloc:%d:2", i <= n ? i : i - n);
        fake.reset();
        fake.tell(word);
        assert_int_equal(try_open("tiny-llama-4bit", &gpu, &e, &err), CB_ENOMEM);
        assert_has(&err, "not enough");
        assert_has(&err, "need ");
        assert_has(&err, ", have ");
        assert_clean();
    }
    /* auto takes the CPU and says why */
    fake.reset();
    fake.tell("memory=600");
    e = te_open("tiny-llama-4bit", &(cb_engine_opts){.ctx_size = 256});
    cb_engine_info info;
    cb_engine_get_info(e, &info);
    assert_true(!strncmp(info.device, "cpu:", 4) && strstr(info.note, "not enough memory"));
    cb_engine_close(e);
    /* no room for graphs: steps are launched one by one */
    fake.reset();
    for (int i = 1; i <= 8; i++) {
        char word[64];
        snprintf(word, sizeof word, "cuGraphInstantiate:%d:2", i);
        fake.tell(word);
    }
    assert_int_equal(open_and_work("tiny-llama-4bit", &gpu, &err), 0);
    fake_counts c;
    fake.count(&c);
    assert_int_equal(c.n_graph_launch, 0);
    assert_clean();
    assert_other_lives();
}

/* What cb_engine_get_memory says is what is held, and steps take no more. */
static void test_accounting(void **state)
{
    (void)state;
    NEED_FAKE();
    static const char *const names[] = {"tiny-llama-4bit", "tiny-llama-bf16", "tiny-gemma3-4bit", "tiny-qwen35-4bit", "tiny-qwen35moe-4bit",
                                        "tiny-gemma4moe-4bit", "tiny-gemma4e-8bit", "tiny-bonsai2", "tiny-llama-mxfp8"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        fake.reset();
        cb_engine *e = te_open(names[i], &gpu);
        cb_memory m;
        fake_counts opened, first, later;
        fake.count(&opened);
        assert_int_equal(cb_engine_get_memory(e, 0, &m, NULL), 0);
        if (opened.bytes > m.total || m.total - opened.bytes > 4096)
            fail_msg("%s: %llu bytes were planned and %llu are held", names[i], (unsigned long long)m.total, (unsigned long long)opened.bytes);
        assert_int_equal(opened.pinned_bytes, m.pinned);
        assert_true(opened.peak_bytes - opened.bytes < (512u << 20));
        cb_err err = {0};
        cb_session *s[4];
        for (int k = 0; k < 4; k++) assert_int_equal(cb_session_open(e, &s[k], NULL), 0);
        int32_t best[4];
        cb_row rows[32];
        for (int round = 0; round < 3; round++) {
            for (int n = 1; n <= 4; n++) {
                for (int k = 0; k < n; k++) rows[k] = (cb_row){s[k], 7, 1};
                if (cb_step_best(e, rows, n, best, &err) < 0) fail_msg("%s: %s", names[i], err.text);
            }
            for (int k = 0; k < 32; k++) rows[k] = (cb_row){s[k % 4], 9, 0};
            if (cb_step_best(e, rows, 32, best, &err) < 0) fail_msg("%s: %s", names[i], err.text);
            if (sampled(e, s[0], s[1], &err) < 0) fail_msg("%s: %s", names[i], err.text);
            fake.count(round ? &later : &first);
            if (!round) continue;
            assert_int_equal(later.n_alloc, opened.n_alloc);
            assert_int_equal(later.n_pinned, opened.n_pinned);
            assert_int_equal(later.events, 0);
            assert_int_equal(later.execs, first.execs); /* one graph for each number of rows, from the first round */
        }
        assert_int_equal(first.execs, 4);
        for (int k = 0; k < 4; k++) cb_session_close(s[k]);
        cb_engine_close(e);
        assert_clean();
    }
}

/* ---- every call fails once ---- */

static void test_every_call(void **state)
{
    (void)state;
    NEED_FAKE();
    /* what is called with a result that somebody looks at; 700: an illegal address, found by whichever call comes next */
    static const char *const functions[] = {"cuDeviceGet", "cuDeviceGetAttribute", "cuMemAlloc", "cuMemHostAlloc", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemcpyDtoDAsync",
                                            "cuMemsetD8Async", "cuStreamSynchronize", "cuEventCreate", "cuEventRecord", "cuEventSynchronize",
                                            "cuEventElapsedTime", "cuModuleLoadData", "cuModuleGetFunction", "cuFuncSetAttribute",
                                            "cuLaunchKernelEx", "cuGraphCreate", "cuGraphAddKernelNode", "cuGraphAddDependencies_v2", "cuGraphInstantiate",
                                            "cuGraphLaunch", "cuCtxSetCurrent"};
    static const char *const models[] = {"tiny-llama-4bit", "tiny-qwen35moe-4bit"};
    cb_err err;
    for (size_t m = 0; m < 2; m++)
        for (size_t f = 0; f < sizeof functions / sizeof *functions; f++) {
            const char *name = functions[f];
            fake.reset();
            assert_int_equal(open_and_work(models[m], &gpu, &err), 0);
            int n = (int)fake.calls(name), failed = 0, stride = 1 + n / (te_quick() ? 12 : 40);
            for (int i = 1; i <= n; i += i < 12 ? 1 : stride)
                for (int fatal = 0; fatal < 2; fatal++) {
                    char word[80];
                    fake.reset();
                    snprintf(word, sizeof word, "%s:%d:%d", name, i, fatal ? 700 : 1);
                    fake.tell(word);
                    int rc = open_and_work(models[m], &gpu, &err);
                    if (rc < 0) assert_one_line(&err), failed++;
                    assert_clean();
                }
            if (n) assert_true(failed > 0);
        }
    assert_other_lives();
}

/* Every allocation of the host while a model is opened for the GPU. */
static void test_host_memory(void **state)
{
    (void)state;
    NEED_FAKE();
    int failed = 0;
    for (int n = 1;; n++) {
        cb_engine *e;
        cb_err err;
        fake.reset();
        cb_alloc_fail_at((uint64_t)n);
        int rc = try_open("tiny-llama-4bit", &gpu, &e, &err);
        cb_alloc_fail_at(0);
        if (rc == 0) {
            cb_engine_close(e);
            assert_clean();
            break;
        }
        failed++;
        assert_one_line(&err);
        assert_clean();
    }
    assert_true(failed > 20);
}

/* ---- a device that is lost ---- */

static void test_lost(void **state)
{
    (void)state;
    NEED_FAKE();
    static const int results[] = {700, 719, 214, 702};
    for (int i = 0; i < 4; i++) {
        cb_err err = {0};
        fake.reset();
        cb_engine *a = te_open("tiny-llama-4bit", &gpu), *b = te_open("tiny-qwen35-4bit", &gpu), *c = NULL;
        cb_session *s, *t, *u = NULL;
        assert_int_equal(cb_session_open(a, &s, NULL), 0);
        assert_int_equal(cb_session_open(b, &t, NULL), 0);
        int32_t best;
        for (int k = 0; k < 2; k++) {
            assert_int_equal(cb_step_best(a, &(cb_row){s, 1, 1}, 1, &best, NULL), 0);
            assert_int_equal(cb_step_best(b, &(cb_row){t, 1, 1}, 1, &best, NULL), 0);
        }
        char word[64];
        snprintf(word, sizeof word, "cuStreamSynchronize:1:%d", results[i]);
        fake.tell(word);
        assert_int_equal(cb_step_best(a, &(cb_row){s, 1, 1}, 1, &best, &err), CB_EIO);
        assert_has(&err, "lost to this process until every model on it has been closed");
        assert_int_equal(cb_session_length(s), 2);
        /* again: said at once. The other model on this GPU finds out, and a new one cannot be opened. */
        assert_int_equal(cb_step_best(a, &(cb_row){s, 1, 1}, 1, &best, &err), CB_EIO);
        assert_has(&err, "failed in an earlier step");
        assert_int_equal(cb_session_fork(t, &u, &err), CB_EIO);
        assert_int_equal(cb_step_best(b, &(cb_row){t, 1, 1}, 1, &best, &err), CB_EIO);
        assert_has(&err, "lost to this process");
        assert_int_equal(try_open("tiny-llama-4bit", &gpu, &c, &err), CB_ENODEV);
        assert_has(&err, "every model on it has been closed");
        assert_other_lives();
        cb_session_close(s);
        cb_session_close(t);
        cb_engine_close(a);
        cb_engine_close(b);
        assert_clean();
        /* and now it can */
        assert_int_equal(open_and_work("tiny-llama-4bit", &gpu, &err), 0);
        assert_clean();
    }
}

/* Times that the host waits for the GPU, launches a graph or sends and fetches something, in 8 single steps. */
static uint64_t traffic(cb_engine *e)
{
    fake_counts a, b;
    cb_session *s;
    int32_t best = 1;
    assert_int_equal(cb_session_open(e, &s, NULL), 0);
    for (int i = 0; i < 10; i++) {
        if (i == 2) fake.count(&a);
        assert_int_equal(cb_step_best(e, &(cb_row){s, best, 1}, 1, &best, NULL), 0);
    }
    fake.count(&b);
    cb_session_close(s);
    return (b.n_sync - a.n_sync) * 1000000 + (b.n_graph_launch - a.n_graph_launch) * 10000 + (b.n_to_device - a.n_to_device) * 100 + b.n_to_host - a.n_to_host;
}

/* Loading and unloading again and again takes nothing away; models share no graph, stream or memory. */
static void test_again(void **state)
{
    (void)state;
    NEED_FAKE();
    cb_err err;
    fake.reset();
    cb_engine *alone = te_open("tiny-gemma3-4bit", &gpu);
    uint64_t steps_alone = traffic(alone);
    assert_true(steps_alone / 1000000 == 8);
    cb_engine_close(alone);
    for (int i = 0; i < 5; i++) {
        cb_engine *a = te_open("tiny-llama-4bit", &gpu), *b = te_open("tiny-gemma3-4bit", &gpu), *c = te_open("tiny-qwen35moe-4bit", &gpu);
        fake_counts n;
        fake.count(&n);
        assert_int_equal(n.contexts, 3);
        assert_int_equal(n.streams, 3);
        assert_int_equal(traffic(b), steps_alone);
        if (work(a, &err) < 0 || work(c, &err) < 0 || work(b, &err) < 0) fail_msg("%s", err.text);
        cb_engine_close(i % 2 ? a : c);
        if (work(b, &err) < 0 || work(i % 2 ? c : a, &err) < 0) fail_msg("%s", err.text);
        cb_engine_close(b);
        cb_engine_close(i % 2 ? c : a);
        assert_clean();
    }
}

int main(void)
{
    open_fake();
    if (fake.lib) {
        other = te_open("tiny-gemma3-4bit", &(cb_engine_opts){.device = "cpu", .n_threads = 1, .ctx_size = 64});
        other_golden = te_hash(other, 8, 8);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unusable), cmocka_unit_test(test_no_room), cmocka_unit_test(test_accounting), cmocka_unit_test(test_every_call),
        cmocka_unit_test(test_host_memory), cmocka_unit_test(test_lost), cmocka_unit_test(test_again),
    };
    int rc = cmocka_run_group_tests_name("unit/cuda_faults", tests, NULL, NULL);
    if (other) cb_engine_close(other);
    return rc;
}
