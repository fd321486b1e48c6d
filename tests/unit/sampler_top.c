/* sampler_top.c: the sampler on a device's answer gives the same token and the same logprob as on the whole row, or asks for it; and on rows as
 * models make them it hardly ever asks. */
#include "run/sampler.h"
#include "../support/top.h"
#include "base/clock.h"
#include "base/mem.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

static double rnd(uint64_t *s)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (double)(*s >> 11) * 0x1p-53;
}
static double gauss(uint64_t *s)
{
    double v = 0;
    for (int i = 0; i < 12; i++) v += rnd(s);
    return v - 6;
}

/* Kinds of rows: 0 as a model's: wide with a few leaders, 1 many ties, 2 flat, 3 one leader, 4 with bans and zeros of both signs. */
static void make_row(float *z, int n, int kind, uint64_t *r)
{
    for (int i = 0; i < n; i++) {
        double g = gauss(r);
        z[i] = (float)(kind == 0 ? 2.5 * g : kind == 1 ? floor(2 * g) / 2 : kind == 2 ? 0.01 * g : kind == 3 ? g : floor(g));
        if (kind == 4 && rnd(r) < 0.2) z[i] = rnd(r) < 0.5 ? -0.0f : -INFINITY;
    }
    for (int i = 0; i < 12 && kind == 0; i++) z[(int)(rnd(r) * n)] = (float)(10 + 2 * gauss(r));
    if (kind == 3) z[(int)(rnd(r) * n)] = 40;
}

static void shuffle(uint64_t *list, int n, uint64_t *r)
{
    for (int i = n - 1; i > 0; i--) {
        int k = (int)(rnd(r) * (i + 1));
        uint64_t v = list[i];
        list[i] = list[k];
        list[k] = v;
    }
}

static float one_of(uint64_t *r, const float *v, int n) { return v[(int)(rnd(r) * n)]; }
#define ONE_OF(...) one_of(r, (const float[]){__VA_ARGS__}, sizeof((const float[]){__VA_ARGS__}) / 4)

static void make_settings(cb_sampling *p, int n, int32_t *bias_ids, float *bias, uint64_t *r)
{
    cb_sampling_init(p);
    p->profile = (int)(rnd(r) * 4);
    p->temperature = ONE_OF(0, 0.1f, 0.6f, 0.7f, 1, 1, 1.5f, 3);
    p->top_k = (int)ONE_OF(0, 0, 1, 20, 40, 64, 300, 700);
    p->top_p = ONE_OF(1, 1, 0.95f, 0.9f, 0.5f, 0);
    p->min_p = ONE_OF(0, 0, 0.05f, 0.5f, 1e-6f, 1);
    p->repeat_last_n = (int)ONE_OF(-2, -2, -1, 0, 10);
    if (rnd(r) < 0.4) p->repetition_penalty = ONE_OF(1.1f, 1.3f, 0.9f, 5);
    if (rnd(r) < 0.3) p->presence_penalty = ONE_OF(0.5f, 2, -0.5f);
    if (rnd(r) < 0.3) p->frequency_penalty = ONE_OF(0.2f, -0.2f);
    p->seed = (uint64_t)(rnd(r) * 1e9);
    p->choice = (uint32_t)(rnd(r) * 3);
    if (rnd(r) < 0.2) { /* an order of its own */
        static const uint8_t orders[][8] = {{CB_OP_TOP_P, CB_OP_TEMPERATURE}, {CB_OP_MIN_P, CB_OP_TEMPERATURE, CB_OP_TOP_K}, {CB_OP_TEMPERATURE, CB_OP_TOP_P, CB_OP_PENALTIES},
                                            {CB_OP_TOP_K}, {CB_OP_PENALTIES}, {CB_OP_TEMPERATURE, CB_OP_TOP_P, CB_OP_TOP_K, CB_OP_MIN_P}};
        memcpy(p->order, orders[(int)(rnd(r) * 6)], 8);
    }
    if (rnd(r) < 0.25) {
        p->n_bias = 3;
        for (int i = 0; i < 3; i++) {
            bias_ids[i] = (int32_t)(rnd(r) * n);
            bias[i] = ONE_OF(-100, -3, 0, 2);
        }
        p->bias_ids = bias_ids;
        p->bias = bias;
    }
}

/* Device's way against the row's, of one case. Counts what the row was needed for. */
typedef struct counts {
    int n, rows, more;
} counts;

typedef struct bench {
    cb_sampler *a, *b;
    float *z, *changed;
    uint64_t *list;
    cb_change *room;
} bench;

static void compare(bench *t, int n, const cb_sampling *p, const int32_t *history, int n_history, int n_prompt, int most, int fine, counts *c, uint64_t *r)
{
    cb_err ea = {0}, eb = {0};
    float la = -1, lb = -1;
    cb_ask ask;
    cb_top top;
    uint64_t allocs = cb_alloc_count();
    c->n++;
    int32_t want = cb_sampler_pick(t->a, p, t->z, history, n_history, n_prompt, &la, &ea);
    assert_int_equal(cb_sampler_ask(t->b, p, history, n_history, n_prompt, t->room, CB_TOP_CHANGES, &ask, &eb), 0);
    memcpy(t->changed, t->z, (size_t)n * 4);
    top_answer(t->changed, n, &ask, most, fine, t->list, &top);
    shuffle(t->list, top.n, r);
    int32_t got = cb_sampler_answer(t->b, p, &ask, &top, n_history, &lb, &eb);
    c->rows += ask.kind == CB_ASK_ROW;
    if (got == CB_SAMPLER_MORE) {
        c->more++;
        if (ask.kind == CB_ASK_ROW) got = cb_sampler_pick(t->b, p, t->z, history, n_history, n_prompt, &lb, &eb);
        else got = cb_sampler_pick_changed(t->b, p, t->changed, n_history, &lb, &eb);
    }
    assert_int_equal(cb_alloc_count(), allocs);
    if (got != want || (want >= 0 && memcmp(&la, &lb, 4)) || strcmp(ea.text, eb.text))
        fail_msg("%d ids, case %d: %d (%.9g), from %d: %d (%.9g); T %g k %d p %g min %g profile %d kind %d", n, c->n, want, (double)la, top.n, got, (double)lb,
                 (double)p->temperature, p->top_k, (double)p->top_p, (double)p->min_p, p->profile, ask.kind);
}

static void bench_open(bench *t, int n)
{
    assert_int_equal(cb_sampler_open(n, &t->a, NULL), 0);
    assert_int_equal(cb_sampler_open(n, &t->b, NULL), 0);
    assert_int_equal(cb_sampler_n_vocab(t->b), n);
    t->z = malloc((size_t)n * 4);
    t->changed = malloc((size_t)n * 4);
    t->list = malloc(CB_TOP * sizeof *t->list);
    t->room = malloc(CB_TOP_CHANGES * sizeof *t->room);
}

static void bench_close(bench *t)
{
    cb_sampler_close(t->a);
    cb_sampler_close(t->b);
    free(t->z);
    free(t->changed);
    free(t->list);
    free(t->room);
}

static void test_same(void **state)
{
    (void)state;
    static const int sizes[] = {5, 600, 3000, 20000};
    counts c = {0};
    int n_cases = getenv("CB_FLAVOUR") && strcmp(getenv("CB_FLAVOUR"), "release") ? 400 : 4000;
    uint64_t rs = 7, *r = &rs;
    for (int s = 0; s < 4; s++) {
        bench t;
        int n = sizes[s];
        bench_open(&t, n);
        for (int k = 0; k < n_cases; k++) {
            if (k % 16 == 0) make_row(t.z, n, k / 16 % 5, r);
            int32_t history[60], bias_ids[3], leader = 0;
            float bias[3];
            cb_sampling p;
            make_settings(&p, n, bias_ids, bias, r);
            for (int i = 0; i < n; i++) leader = t.z[i] > t.z[leader] ? i : leader;
            for (int i = 0; i < 60; i++) /* some of them leaders, so that penalties change who leads; some outside */
                history[i] = rnd(r) < 0.2 ? leader : (int32_t)(rnd(r) * (n + 2)) - 1;
            compare(&t, n, &p, history, 60, 25, (int)ONE_OF(CB_TOP, 100, 20), (int)ONE_OF(6, 3), &c, r);
        }
        bench_close(&t);
    }
    print_message("%d cases, %d asked for the row, %d of them at once\n", c.n, c.more, c.rows);
    assert_true(c.more < c.n / 3 && c.rows > 0);
}

/* Errors: bad settings before anything is asked; all banned, too large, NaN. */
static void test_errors(void **state)
{
    (void)state;
    bench t;
    cb_sampling p;
    counts c = {0};
    cb_ask ask;
    cb_err err;
    uint64_t r = 3;
    bench_open(&t, 4);
    static const int32_t ids[] = {0, 1, 2, 3, 1};
    static const float bans[] = {-100, -100, -100, -100, 3};
    for (int i = 0; i < 4; i++) t.z[i] = (float)i;
    cb_sampling_init(&p);
    p.bias_ids = ids;
    p.bias = bans;
    for (p.n_bias = 3; p.n_bias <= 5; p.n_bias++) /* one left; none; one twice: the row is asked for */
        for (int k = 0; k < 3; k++) {
            p.temperature = k ? 1 : 0;
            p.top_k = k == 2 ? 2 : 0;
            compare(&t, 4, &p, ids, 4, 1, CB_TOP, 6, &c, &r);
        }
    p.n_bias = 0;
    t.z[2] = 2e30f;
    for (int k = 0; k < 3; k++) {
        p.temperature = k ? 1 : 0;
        p.top_k = k == 2 ? 2 : 0;
        compare(&t, 4, &p, ids, 4, 1, CB_TOP, 6, &c, &r);
    }
    for (int i = 0; i < 4; i++) t.z[i] = -2e30f;
    compare(&t, 4, &p, ids, 4, 1, CB_TOP, 6, &c, &r);
    p.n_bias = 1;
    p.bias_ids = (const int32_t[]){4};
    assert_int_equal(cb_sampler_ask(t.b, &p, ids, 4, 1, t.room, 9, &ask, &err), CB_EUSAGE);
    assert_non_null(strstr(err.text, "token 4"));
    p.n_bias = 0;
    p.temperature = -1;
    assert_int_equal(cb_sampler_ask(t.b, &p, ids, 4, 1, t.room, 9, &ask, &err), CB_EUSAGE);
    cb_sampling_init(&p);
    p.repetition_penalty = 2;
    assert_int_equal(cb_sampler_ask(t.b, &p, ids, 4, 1, t.room, 4, &ask, &err), 0);
    assert_int_equal(ask.kind, CB_ASK_DRAW);
    assert_int_equal(ask.n_changes, 4);
    assert_int_equal(cb_sampler_ask(t.b, &p, ids, 4, 1, t.room, 3, &ask, &err), 0); /* no room */
    assert_int_equal(ask.kind, CB_ASK_ROW);
    assert_int_equal(ask.n_changes, 0);
    bench_close(&t);
}

/* Rows as models make them, settings as models recommend them. */
static void test_common(void **state)
{
    (void)state;
    enum { N = 151936 };
    static const struct {
        const char *name;
        float t, top_p, min_p, rep;
        int k, profile;
    } runs[] = {{"plain", 1, 1, 0, 1, 0, CB_PROFILE_HF}, {"Qwen 3", 0.6f, 0.95f, 0, 1, 20, CB_PROFILE_HF}, {"Gemma", 1, 0.95f, 0, 1, 64, CB_PROFILE_HF},
                {"Llama 3", 0.6f, 0.9f, 0, 1, 0, CB_PROFILE_HF}, {"llama.cpp", 0.8f, 0.95f, 0.05f, 1.1f, 40, CB_PROFILE_LLAMACPP},
                {"min-p", 1, 1, 0.05f, 1, 0, CB_PROFILE_HF}, {"mlx", 0.7f, 0.9f, 0, 1, 0, CB_PROFILE_MLX}, {"vllm", 0.7f, 0.8f, 0.02f, 1.05f, 20, CB_PROFILE_VLLM},
                {"greedy, repetition", 0, 1, 0, 1.2f, 0, CB_PROFILE_HF}, {"hot", 1.5f, 1, 0, 1, 0, CB_PROFILE_HF}};
    enum { RUNS = sizeof runs / sizeof *runs };
    bench t;
    bench_open(&t, N);
    uint64_t r = 3;
    counts c[RUNS] = {{0}};
    for (int row = 0; row < 10; row++) {
        make_row(t.z, N, 0, &r);
        int32_t history[100];
        for (int i = 0; i < 100; i++) history[i] = (int32_t)(rnd(&r) * N);
        for (int k = 0; k < RUNS; k++) {
            cb_sampling p;
            cb_sampling_init(&p);
            p.temperature = runs[k].t, p.top_p = runs[k].top_p, p.min_p = runs[k].min_p, p.top_k = runs[k].k, p.profile = runs[k].profile;
            p.repetition_penalty = runs[k].rep;
            p.seed = (uint64_t)row;
            compare(&t, N, &p, history, 100, 50, CB_TOP, 6, &c[k], &r);
        }
    }
    for (int k = 0; k < RUNS; k++) {
        print_message("%-20s asked for %d of %d rows\n", runs[k].name, c[k].more, c[k].n);
        if (runs[k].profile != CB_PROFILE_MLX) assert_int_equal(c[k].more, 0); /* its top-p at temperature 1 keeps thousands of these rows */
    }
    bench_close(&t);
}

/* CB_BENCH=1: what is left to do on the host. */
static void test_bench(void **state)
{
    (void)state;
    enum { N = 151936, TIMES = 2000 };
    if (!getenv("CB_BENCH")) skip();
    static const struct {
        const char *name;
        float t, top_p;
        int k;
    } runs[] = {{"top-k 20, top-p 0.95", 0.6f, 0.95f, 20}, {"top-p 0.9", 0.6f, 0.9f, 0}, {"top-k 1000", 1, 1, 1000}, {"plain", 1, 1, 0}};
    bench t;
    bench_open(&t, N);
    uint64_t r = 3;
    make_row(t.z, N, 0, &r);
    for (int k = 0; k < 4; k++) {
        cb_sampling p;
        cb_ask ask;
        cb_top top;
        float lp;
        cb_sampling_init(&p);
        p.temperature = runs[k].t, p.top_p = runs[k].top_p, p.top_k = runs[k].k;
        cb_sampler_ask(t.b, &p, NULL, 0, 0, t.room, CB_TOP_CHANGES, &ask, NULL);
        top_answer(t.z, N, &ask, CB_TOP, 6, t.list, &top);
        double t0 = cb_now();
        for (int i = 0; i < TIMES; i++) {
            cb_sampler_ask(t.b, &p, NULL, 0, 0, t.room, CB_TOP_CHANGES, &ask, NULL);
            cb_sampler_answer(t.b, &p, &ask, &top, 0, &lp, NULL);
        }
        print_message("%-20s %d logits, %.2f us\n", runs[k].name, top.n, (cb_now() - t0) * 1e6 / TIMES);
    }
    bench_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same), cmocka_unit_test(test_errors), cmocka_unit_test(test_common), cmocka_unit_test(test_bench)};
    return cmocka_run_group_tests_name("unit/sampler_top", tests, NULL, NULL);
}
