/* sample.c: sampling on the device gives the tokens and logprobs of cb_sampler_pick on the row: the kernels of sample.cu on rows of many sizes and
 * kinds, and whole steps of tiny checkpoints, on the CPU and on the driver whose kernels are run by fibers (tests/op/cuda.c does the same on
 * a GPU). */
#include "../cuda/fake_kernels.h"
#include "../support/emulated.h"
#include "../support/sampling.h"
#include "cuda/abi.h"
#include "run/sampler.h"
#include <math.h>

static double rnd(uint64_t *s)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (double)(*s >> 11) * 0x1p-53;
}

/* Kinds of rows: 0 as a model's, 1 many ties, 2 flat, 3 all alike but one, 4 zeros of both signs. */
static void make_row(float *z, int n, int kind, uint64_t *r)
{
    for (int i = 0; i < n; i++) {
        double g = -6;
        for (int k = 0; k < 12; k++) g += rnd(r);
        z[i] = (float)(kind == 0 ? 2.5 * g : kind == 1 ? floor(2 * g) / 2 : kind == 2 ? 0.01 * g : kind == 3 ? 3 : floor(g));
        if (z[i] == 0 && rnd(r) < 0.5) z[i] = -0.0f;
    }
    for (int i = 0; i < 12 && kind == 0; i++) z[(int)(rnd(r) * n)] = (float)(8 + 6 * rnd(r));
    if (kind == 3) z[(int)(rnd(r) * n)] = 4;
}

/* The device's part, as sample.c launches it. */
typedef struct device {
    fake_kernel best, change, count, take;
    cu_step step;
    cu_sample a;
    int blocks;
} device;

static void run(const device *d, fake_kernel k, const void *args, int blocks)
{
    fake_grid g = {.blocks = {(unsigned)blocks, 1, 1}, .threads = 256};
    k(args, &g);
}

static float value_of(unsigned long long v)
{
    uint32_t key = (uint32_t)(v >> 32), bits = key & 0x80000000u ? key & 0x7fffffffu : ~key;
    float z;
    memcpy(&z, &bits, 4);
    return z;
}

static void device_answer(device *d, const float *z, int n_ids, const cb_ask *q, cb_top *out)
{
    cu_sample *a = &d->a;
    cu_ask ask = {q->kind, q->n_changes, 0, q->count, q->repetition, q->presence, q->frequency, q->t, q->p, q->reach, q->random};
    d->step.n_ids = n_ids;
    d->step.bad_op = CU_NO_OP;
    memcpy(a->logits, z, (size_t)a->n * 4);
    memset(a->bins, 0x55, sizeof *a->bins);
    memset(a->top, 0x55, sizeof *a->top);
    *a->max = 0;
    d->step.n_asks = 1;
    a->asks = &ask;
    a->changes = (const cu_change *)q->changes;
    cu_best b = {.step = &d->step, .logits = a->logits, .best = a->max, .later = a->best, .bins = a->bins, .n = a->n, .n_rows = 1, .op = 5};
    run(d, d->best, &b, d->blocks);
    run(d, d->change, a, (q->n_changes + 255) / 256);
    b.best = a->best, b.op = -1;
    run(d, d->best, &b, d->blocks);
    run(d, d->count, a, d->blocks);
    run(d, d->take, a, d->blocks);
    const cu_top *o = a->top;
    assert_int_equal(d->step.bad_op, CU_NO_OP);
    assert_true(o->n <= CB_TOP);
    *out = (cb_top){.max = value_of(o->max), .best_z = value_of(o->best), .best = (int32_t)~(uint32_t)o->best, .drawn = o->drawn, .drawn_z = o->drawn_z, .sum = o->sum,
                    .n = (int)o->n, .low = o->low ? value_of((unsigned long long)o->low << 32) : -INFINITY, .list = (const uint64_t *)o->list};
}

static void test_kernels(void **state)
{
    (void)state;
    if (!emulated.lib) skip();
    fake_kernel (*find)(const char *, size_t *);
    *(void **)&find = dlsym(emulated.lib, "fake_kernel_find");
    size_t bytes;
    static const int sizes[] = {5, 1900, 2049, 5000, 33000};
    uint64_t rs = 5, *r = &rs;
    int n_more = 0, n_cases = 0;
    for (int s = 0; s < 5; s++) {
        int n = sizes[s], blocks = (n + CU_BEST_BLOCK - 1) / CU_BEST_BLOCK;
        unsigned long long best[2];
        device d = {find("k_best", &bytes), find("k_change", &bytes), find("k_top_count", &bytes), find("k_top_take", &bytes), .blocks = blocks};
        d.a = (cu_sample){&d.step, malloc((size_t)n * 4), NULL, NULL, &best[0], &best[1], malloc(sizeof(cu_bins)), calloc((size_t)blocks, 8), malloc(sizeof(cu_top)), n, 1};
        float *z = malloc((size_t)n * 4);
        cb_change *room = malloc(CB_TOP_CHANGES * sizeof *room);
        cb_sampler *all, *few;
        int n_ids = n > 2500 ? n - 2100 : n; /* less than the last block, for one */
        assert_int_equal(cb_sampler_open(n_ids, &all, NULL), 0);
        assert_int_equal(cb_sampler_open(n_ids, &few, NULL), 0);
        for (int c = 0; c < (te_quick() ? 20 : 100); c++) {
            int32_t history[600];
            float la = -1, lb = -1;
            cb_err err = {0};
            cb_ask q;
            cb_top top;
            if (c % TS_SETTINGS == 0) make_row(z, n, c / TS_SETTINGS % 5, r);
            if (n_ids < n) z[n - 1] = 50; /* a leader that does not count */
            cb_sampling p = ts_setting(c, c);
            if (n_ids < 12) p.n_bias = 0;
            for (int i = 0; i < 600; i++) history[i] = (int32_t)(rnd(r) * n_ids);
            if ((c / TS_SETTINGS + c) % 2) setenv("CB_EMULATE_BACKWARDS", "1", 1); /* blocks have no order */
            else unsetenv("CB_EMULATE_BACKWARDS");
            int32_t want = cb_sampler_pick(all, &p, z, history, 600, 100, &la, &err);
            assert_int_equal(cb_sampler_ask(few, &p, history, 600, 100, room, CB_TOP_CHANGES, &q, &err), 0);
            device_answer(&d, z, n_ids, &q, &top);
            int32_t got = cb_sampler_answer(few, &p, &q, &top, 600, &lb, &err);
            n_cases++;
            if (got == CB_SAMPLER_MORE) {
                n_more++;
                got = q.kind == CB_ASK_ROW ? cb_sampler_pick(few, &p, d.a.logits, history, 600, 100, &lb, &err)
                                           : cb_sampler_pick_changed(few, &p, d.a.logits, 600, &lb, &err);
            }
            if (got != want || memcmp(&la, &lb, 4))
                fail_msg("%d ids, case %d, kind %d: %d (%.9g) from %d, expected %d (%.9g)", n, c, q.kind, got, (double)lb, top.n, want, (double)la);
        }
        unsetenv("CB_EMULATE_BACKWARDS");
        z[n - 1] = NAN; /* beyond n_ids too */
        d.step.bad_op = CU_NO_OP;
        d.step.n_asks = 0;
        memcpy(d.a.logits, z, (size_t)n * 4);
        run(&d, d.best, &(cu_best){.step = &d.step, .logits = d.a.logits, .best = best, .n = n, .n_rows = 1, .op = 5}, blocks);
        assert_int_equal(d.step.bad_op, 5);
        cb_sampler_close(all);
        cb_sampler_close(few);
        free(d.a.logits), free(d.a.bins), free(d.a.sums), free(d.a.top), free(z), free(room);
    }
    print_message("%d cases, %d asked for the row\n", n_cases, n_more);
    assert_true(n_more < n_cases / 3);
}

static const char *const dirs[] = {"tests/data/tiny-llama-4bit", "tests/data/tiny-qwen35-4bit"};

static void test_cpu(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) ts_compare(dirs[i], "cpu", te_tsan() ? 4 : 24);
    ts_errors(dirs[0], "cpu");
}

static void test_emulated(void **state)
{
    (void)state;
    if (!emulated.lib) skip();
    for (int i = 0; i < 2; i++) ts_compare(dirs[i], "cuda", 24);
    ts_errors(dirs[0], "cuda");
}

int main(void)
{
    emulated_open();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kernels), cmocka_unit_test(test_cpu), cmocka_unit_test(test_emulated)};
    return cmocka_run_group_tests_name("op/sample", tests, NULL, NULL);
}
