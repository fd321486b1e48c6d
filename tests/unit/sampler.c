/* The sampler against an independent script (tests/reference/sampler_ref.py), published generator vectors, chi-square of
 * draws, and itself at vocabulary sizes that take the fast paths. */
#include "run/sampler.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/sha256.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static int op_of(const char *name)
{
    static const char *const names[] = { "", "penalties", "temperature", "top_k", "top_p", "min_p" };
    for (int i = 1; i < 6; i++)
        if (!strcmp(name, names[i])) return i;
    fail();
    return 0;
}

static int profile_of(const char *name)
{
    static const char *const names[] = { "hf", "vllm", "mlx", "llamacpp" };
    for (int i = 0; i < 4; i++)
        if (!strcmp(name, names[i])) return i;
    fail();
    return 0;
}

static void get_float(const json_t *j, const char *key, float *v)
{
    const json_t *x = json_object_get(j, key);
    if (x) *v = (float)json_number_value(x);
}

enum { MAX = 256 };

typedef struct tcase {
    cb_sampling p;
    float z[MAX], bias[MAX];
    int32_t history[MAX], bias_ids[MAX];
    int n, n_history, n_prompt;
} tcase;

static void read_case(const json_t *j, tcase *c)
{
    memset(c, 0, sizeof *c);
    cb_sampling_init(&c->p);
    get_float(j, "temp", &c->p.temperature);
    get_float(j, "top_p", &c->p.top_p);
    get_float(j, "min_p", &c->p.min_p);
    get_float(j, "rep", &c->p.repetition_penalty);
    get_float(j, "pres", &c->p.presence_penalty);
    get_float(j, "freq", &c->p.frequency_penalty);
    c->p.top_k = (int)json_integer_value(json_object_get(j, "top_k"));
    if (json_object_get(j, "last_n")) c->p.repeat_last_n = (int)json_integer_value(json_object_get(j, "last_n"));
    if (json_object_get(j, "profile")) c->p.profile = profile_of(json_string_value(json_object_get(j, "profile")));
    c->p.seed = (uint64_t)json_integer_value(json_object_get(j, "seed"));
    c->p.choice = (uint32_t)json_integer_value(json_object_get(j, "choice"));
    const json_t *a = json_object_get(j, "order");
    for (size_t i = 0; i < json_array_size(a); i++) c->p.order[i] = (uint8_t)op_of(json_string_value(json_array_get(a, i)));
    a = json_object_get(j, "bias");
    c->p.n_bias = (int)json_array_size(a);
    for (int i = 0; i < c->p.n_bias; i++) {
        c->bias_ids[i] = (int32_t)json_integer_value(json_array_get(json_array_get(a, (size_t)i), 0));
        c->bias[i] = (float)json_number_value(json_array_get(json_array_get(a, (size_t)i), 1));
    }
    c->p.bias_ids = c->bias_ids;
    c->p.bias = c->bias;
    a = json_object_get(j, "z");
    c->n = (int)json_array_size(a);
    for (int i = 0; i < c->n; i++) c->z[i] = (float)json_integer_value(json_array_get(a, (size_t)i)) / 8;
    a = json_object_get(j, "h");
    c->n_history = (int)json_array_size(a);
    for (int i = 0; i < c->n_history; i++) c->history[i] = (int32_t)json_integer_value(json_array_get(a, (size_t)i));
    c->n_prompt = (int)json_integer_value(json_object_get(j, "np"));
}

static void test_cases(void **state)
{
    FILE *f = fopen("tests/data/sampler_cases.jsonl", "r");
    assert_non_null(f);
    char *line = NULL;
    size_t cap = 0;
    int n_cases = 0;
    tcase *c = malloc(sizeof *c);
    while (getline(&line, &cap, f) > 0) {
        json_t *j;
        cb_err err;
        assert_int_equal(cb_json_text("case", line, strlen(line), &j, &err), 0);
        read_case(j, c);
        cb_sampler *s;
        assert_int_equal(cb_sampler_open(c->n, &s, &err), 0);
        float lp = -1;
        uint64_t before = cb_alloc_count();
        int id = cb_sampler_pick(s, &c->p, c->z, c->history, c->n_history, c->n_prompt, &lp, &err);
        assert_int_equal(cb_alloc_count(), before);
        const json_t *ids = json_object_get(j, "ids"), *q = json_object_get(j, "q");
        const int32_t *got;
        const uint32_t *w;
        uint64_t sum;
        int n = cb_sampler_last(s, &got, &w, &sum);
        int kept = 0;
        for (int i = 0; i < n; i++) { /* entries without weight cannot be drawn and need not be in the reference */
            int gid = got ? got[i] : i;
            size_t k = (size_t)kept;
            int want = (int)json_integer_value(json_array_get(ids, k));
            if (k < json_array_size(ids) && gid == want) {
                double p = (double)w[i] / (double)sum;
                if (fabs(p - json_number_value(json_array_get(q, k))) > 3e-6)
                    fail_msg("case %d: id %d has %g, wanted %g", n_cases + 1, gid, p, json_number_value(json_array_get(q, k)));
                kept++;
            } else if (w[i] != 0)
                fail_msg("case %d: id %d should be cut", n_cases + 1, gid);
        }
        if ((size_t)kept != json_array_size(ids)) fail_msg("case %d: kept %d, wanted %zu", n_cases + 1, kept, json_array_size(ids));
        if (id != json_integer_value(json_object_get(j, "pick"))) fail_msg("case %d: picked %d: %s", n_cases + 1, id, line);
        if (fabs(lp - json_number_value(json_object_get(j, "lp"))) > 2e-5) fail_msg("case %d: logprob %g", n_cases + 1, (double)lp);
        cb_sampler_close(s);
        json_decref(j);
        n_cases++;
    }
    assert_true(n_cases >= 200);
    free(c);
    free(line);
    fclose(f);
}

/* Known answers of Philox4x32-10, from the paper's distribution. */
static void test_philox(void **state)
{
    static const struct {
        uint32_t c[4], k[2], out[4];
    } v[] = {
        { { 0, 0, 0, 0 }, { 0, 0 }, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
        { { ~0u, ~0u, ~0u, ~0u }, { ~0u, ~0u }, { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
        { { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 },
          { 0xa4093822, 0x299f31d0 },
          { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
    };
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        cb_philox((uint64_t)v[i].k[1] << 32 | v[i].k[0], v[i].c, out);
        assert_memory_equal(out, v[i].out, 16);
    }
}

static void test_ln(void **state)
{
    for (double x = 1e-9; x < 1e9; x *= 1.37) assert_true(fabs(cb_sampler_ln(x) - log(x)) <= 1e-14 * fmax(1, fabs(log(x))));
}

/* 100,000 draws against the distribution; 30 degrees of freedom, the 1e-6 quantile is 82. Fixed seeds, so no flicker. */
static void chi_square(cb_sampling *p, int by_position)
{
    enum { N = 64, MAX_DRAWS = 100000 };
    const char *flavour = getenv("CB_FLAVOUR");
    int DRAWS = flavour && !strcmp(flavour, "aarch64") ? MAX_DRAWS / 10 : MAX_DRAWS; /* emulation is slow */
    float z[N];
    for (int i = 0; i < N; i++) z[i] = (float)((i * 37) % 64) / 16;
    cb_sampler *s;
    assert_int_equal(cb_sampler_open(N, &s, NULL), 0);
    int32_t *history = calloc(MAX_DRAWS, sizeof *history);
    int seen[N] = {0};
    for (int d = 0; d < DRAWS; d++) {
        if (!by_position) p->seed = (uint64_t)d;
        int id = cb_sampler_pick(s, p, z, history, by_position ? d : 5, 0, NULL, NULL);
        assert_in_range(id, 0, N - 1);
        seen[id]++;
    }
    const int32_t *ids;
    const uint32_t *w;
    uint64_t sum;
    int n = cb_sampler_last(s, &ids, &w, &sum), total = 0;
    double chi = 0;
    for (int i = 0; i < n; i++) {
        double e = (double)DRAWS * w[i] / (double)sum, o = seen[ids ? ids[i] : i];
        total += (int)o;
        chi += (o - e) * (o - e) / e;
    }
    assert_int_equal(total, DRAWS); /* nothing that was cut is ever drawn */
    assert_true(chi < (n - 1) + 6.0 * sqrt(2.0 * (n - 1)));
    free(history);
    cb_sampler_close(s);
}

static void test_draws(void **state)
{
    cb_sampling p;
    cb_sampling_init(&p);
    chi_square(&p, 0);
    p.seed = 11;
    chi_square(&p, 1);
    p.top_k = 31;
    p.temperature = 0.8f;
    chi_square(&p, 1);
    p.top_k = 0;
    p.top_p = 0.9f;
    p.profile = CB_PROFILE_MLX;
    chi_square(&p, 1);
    p.choice = 1;
    chi_square(&p, 1);
}

/* Uniform in 0..1 from a tiny generator of the test's own. */
static double rnd(uint64_t *s)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (double)(*s >> 11) / 9007199254740992.0;
}

/* A large row like a model's: a broad bulk and a few peaks. */
static float *big_row(int n, uint64_t seed)
{
    float *z = malloc((size_t)n * sizeof *z);
    for (int i = 0; i < n; i++) {
        double u = rnd(&seed) + rnd(&seed) + rnd(&seed) + rnd(&seed) - 2;
        z[i] = (float)(u * 5 - 4);
        if (rnd(&seed) < 0.0005) z[i] += (float)(12 * rnd(&seed));
    }
    return z;
}

/* The same picks, log-probabilities and weights on every machine: one hash, made on x86-64 by the code under test after the
 * cases above had passed. It changes only when docs/sampling.md does. */
static void test_bits(void **state)
{
    enum { N = 5003 };
    static const char want[] = "b84eb14147177cd19f652833a769c5e3ecc385c508f442180d5614d8cf7101fa";
    float *z = malloc(N * sizeof *z);
    cb_sampler *s;
    cb_sha256 h;
    uint64_t r = 77;
    int32_t history[64];
    assert_int_equal(cb_sampler_open(N, &s, NULL), 0);
    cb_sha256_init(&h);
    for (int t = 0; t < 300; t++) {
        for (int i = 0; i < N; i++) z[i] = (float)((rnd(&r) + rnd(&r) + rnd(&r) - 1.5) * 12);
        for (int i = 0; i < 64; i++) history[i] = (int32_t)(rnd(&r) * N);
        cb_sampling p;
        cb_sampling_init(&p);
        p.profile = t & 3;
        p.temperature = (float)(0.3 + rnd(&r));
        p.top_k = t % 3 ? (int)(rnd(&r) * 200) : 0;
        p.top_p = t % 5 ? (float)rnd(&r) : 1;
        p.min_p = t % 7 ? 0 : 0.02f;
        p.repetition_penalty = 1.1f;
        p.frequency_penalty = 0.3f;
        p.seed = (uint64_t)t;
        float lp;
        int32_t id = cb_sampler_pick(s, &p, z, history, 64, 20, &lp, NULL);
        const int32_t *ids;
        const uint32_t *w;
        uint64_t sum;
        int n = cb_sampler_last(s, &ids, &w, &sum);
        cb_sha256_put(&h, &id, sizeof id);
        cb_sha256_put(&h, &lp, sizeof lp);
        cb_sha256_put(&h, w, (size_t)n * sizeof *w);
    }
    char hex[65];
    cb_sha256_hex(&h, hex);
    assert_string_equal(hex, want);
    cb_sampler_close(s);
    free(z);
}

static int by_value(const void *a, const void *b)
{
    const float *x = *(const float *const *)a, *y = *(const float *const *)b;
    return *x > *y ? -1 : *x < *y ? 1 : x < y ? -1 : x > y;
}

/* The fast selections on a large vocabulary keep what a full sort keeps. */
static void test_large(void **state)
{
    enum { N = 262144 + 3 };
    float *z = big_row(N, 5);
    for (int i = 0; i < N; i += 977) z[i] = 3.25f; /* ties around the cut */
    const float **order = malloc(N * sizeof *order);
    for (int i = 0; i < N; i++) order[i] = z + i;
    qsort(order, N, sizeof *order, by_value);
    cb_sampler *s;
    assert_int_equal(cb_sampler_open(N, &s, NULL), 0);
    const int32_t *ids;
    const uint32_t *w;
    uint64_t sum;
    cb_sampling p;
    static const int ks[] = { 1, 2, 40, 1000, 1024, 1025, 3000, 131071, 200000, N - 1, N, N + 5 };
    for (size_t t = 0; t < sizeof ks / sizeof *ks; t++) {
        cb_sampling_init(&p);
        p.top_k = ks[t];
        p.profile = CB_PROFILE_LLAMACPP;
        assert_true(cb_sampler_pick(s, &p, z, NULL, 0, 0, NULL, NULL) >= 0);
        int n = cb_sampler_last(s, &ids, &w, &sum), k = ks[t] < N ? ks[t] : N;
        assert_int_equal(n, k);
        char *want = calloc(N, 1);
        for (int i = 0; i < k; i++) want[order[i] - z] = 1;
        for (int i = 0; i < n; i++) assert_true(want[ids ? ids[i] : i]);
        p.profile = CB_PROFILE_HF; /* keeps the ties of the k-th as well */
        assert_true(cb_sampler_pick(s, &p, z, NULL, 0, 0, NULL, NULL) >= 0);
        int ties = k;
        while (ties < N && *order[ties] == *order[k - 1]) ties++;
        assert_int_equal(cb_sampler_last(s, &ids, &w, &sum), ties);
        free(want);
    }
    static const float ps[] = { 0.01f, 0.3f, 0.6f, 0.9f, 0.95f, 0.999f };
    for (size_t t = 0; t < sizeof ps / sizeof *ps; t++) {
        cb_sampling_init(&p);
        assert_true(cb_sampler_pick(s, &p, z, NULL, 0, 0, NULL, NULL) >= 0);
        assert_int_equal(cb_sampler_last(s, &ids, &w, &sum), N);
        uint64_t need = (uint64_t)ceil((double)ps[t] * (double)sum), mass = 0;
        int k = 0;
        while (mass < need) mass += w[order[k++] - z];
        p.top_p = ps[t];
        assert_true(cb_sampler_pick(s, &p, z, NULL, 0, 0, NULL, NULL) >= 0);
        int n = cb_sampler_last(s, &ids, &w, &sum);
        assert_int_equal(n, k);
        assert_true(sum == mass);
        char *want = calloc(N, 1);
        for (int i = 0; i < k; i++) want[order[i] - z] = 1;
        for (int i = 0; i < n; i++) assert_true(want[ids[i]]);
        free(want);
    }
    for (float m = 1e-8f; m <= 1; m *= 10) { /* weights have 30 bits: compare in the logits, away from the cut */
        cb_sampling_init(&p);
        p.min_p = m;
        assert_true(cb_sampler_pick(s, &p, z, NULL, 0, 0, NULL, NULL) >= 0);
        int n = cb_sampler_last(s, &ids, &w, &sum), sure = 0, maybe = 0;
        double cut = *order[0] + log((double)m);
        for (int i = 0; i < N; i++) sure += z[i] > cut + 1e-5, maybe += z[i] > cut - 1e-5;
        assert_in_range(n, sure, maybe);
    }
    /* rising logits are the worst order for the threshold of top-k */
    for (int i = 0; i < N; i++) z[i] = (float)i / 8192;
    cb_sampling_init(&p);
    p.top_k = 50;
    assert_true(cb_sampler_pick(s, &p, z, NULL, 0, 0, NULL, NULL) >= N - 50);
    cb_sampler_close(s);
    free(order);
    free(z);
}

static void test_errors(void **state)
{
    float z[6] = { 1, 2, 3, 4, 5, 6 };
    int32_t h[3] = { 1, -5, 99 }; /* ids outside the vocabulary (image rows) are passed over */
    cb_sampler *s;
    cb_err err = {0};
    assert_int_equal(cb_sampler_open(0, &s, &err), CB_EUSAGE);
    assert_int_equal(cb_sampler_open(6, &s, &err), 0);
    cb_sampling p;
    cb_sampling_init(&p);
    p.repetition_penalty = 1.5f;
    assert_in_range(cb_sampler_pick(s, &p, z, h, 3, 1, NULL, &err), 0, 5);
    assert_int_equal(cb_sampler_pick(s, &p, z, h, 1, 2, NULL, &err), CB_EUSAGE);
    cb_sampling_init(&p);
    p.order[0] = p.order[1] = CB_OP_TOP_K;
    assert_int_equal(cb_sampler_pick(s, &p, z, h, 0, 0, NULL, &err), CB_EUSAGE);
    cb_sampling_init(&p);
    p.order[0] = 17;
    assert_int_equal(cb_sampler_pick(s, &p, z, h, 0, 0, NULL, &err), CB_EUSAGE);
    static const float bad[] = { NAN, -1 };
    for (int i = 0; i < 2; i++) {
        cb_sampling_init(&p);
        p.temperature = bad[i];
        assert_int_equal(cb_sampler_pick(s, &p, z, h, 0, 0, NULL, &err), CB_EUSAGE);
        cb_sampling_init(&p);
        p.top_p = bad[i];
        assert_int_equal(cb_sampler_pick(s, &p, z, h, 0, 0, NULL, &err), CB_EUSAGE);
        cb_sampling_init(&p);
        p.min_p = bad[i];
        assert_int_equal(cb_sampler_pick(s, &p, z, h, 0, 0, NULL, &err), CB_EUSAGE);
        cb_sampling_init(&p);
        p.repetition_penalty = bad[i];
        assert_int_equal(cb_sampler_pick(s, &p, z, h, 0, 0, NULL, &err), CB_EUSAGE);
    }
    int32_t ids[6] = { 0, 1, 2, 3, 4, 5 };
    float ban[6] = { -100, -100, -100, -100, -100, -100 };
    for (int greedy = 0; greedy < 2; greedy++) { /* -100 never, +100 always, all banned is an error */
        cb_sampling_init(&p);
        p.temperature = greedy ? 0 : 5;
        p.bias_ids = ids, p.bias = ban, p.n_bias = 5;
        for (p.seed = 0; p.seed < 50; p.seed++) assert_int_equal(cb_sampler_pick(s, &p, z, h, 0, 0, NULL, &err), 5);
        p.n_bias = 6;
        assert_int_equal(cb_sampler_pick(s, &p, z, h, 0, 0, NULL, &err), CB_EUSAGE);
        float force = 100;
        p.bias_ids = ids + 2, p.bias = &force, p.n_bias = 1;
        for (p.seed = 0; p.seed < 50; p.seed++) assert_int_equal(cb_sampler_pick(s, &p, z, h, 0, 0, NULL, &err), 2);
        ids[0] = 6;
        p.bias_ids = ids;
        assert_int_equal(cb_sampler_pick(s, &p, z, h, 0, 0, NULL, &err), CB_EUSAGE);
        ids[0] = 0;
        z[3] = greedy ? NAN : INFINITY;
        p.n_bias = 0;
        assert_int_equal(cb_sampler_pick(s, &p, z, h, 0, 0, NULL, &err), CB_ENUM);
        z[3] = 4;
    }
    cb_sampler_close(s);
    for (uint64_t n = 1; n <= 7; n++) {
        cb_alloc_fail_at(n);
        assert_int_equal(cb_sampler_open(100, &s, &err), CB_ENOMEM);
        cb_alloc_fail_at(0);
    }
}

/* Extreme but finite logits and settings: always some token of the vocabulary. */
static void test_extremes(void **state)
{
    enum { N = 4099 };
    static const float big[] = { 1e30f, -1e30f, 3e38f, -3e38f, 0, -0.0f, 1e-40f, -INFINITY, 88, -88 };
    float *z = malloc(N * sizeof *z);
    cb_sampler *s;
    assert_int_equal(cb_sampler_open(N, &s, NULL), 0);
    uint64_t r = 9;
    int32_t history[40];
    for (int t = 0; t < 2000; t++) {
        int n_kinds = 1 + (int)(rnd(&r) * 10);
        for (int i = 0; i < N; i++) z[i] = big[(int)(rnd(&r) * n_kinds)];
        for (int i = 0; i < 40; i++) history[i] = (int32_t)(rnd(&r) * N);
        cb_sampling p;
        cb_sampling_init(&p);
        p.profile = t & 3;
        p.temperature = (float)(rnd(&r) < 0.3 ? 1e-5 : rnd(&r) * 4);
        p.top_p = (float)rnd(&r);
        p.min_p = (float)(rnd(&r) * 0.3);
        p.top_k = (int)(rnd(&r) * 5000);
        p.repetition_penalty = (float)(rnd(&r) < 0.5 ? 1e3 : 1e-3);
        p.presence_penalty = -1e4f;
        p.seed = (uint64_t)t;
        float lp = 1;
        cb_err err = {0};
        int id = cb_sampler_pick(s, &p, z, history, 40, 20, &lp, &err);
        if (id < 0) assert_true(id == CB_ENUM || id == CB_EUSAGE);
        else {
            assert_true(id < N && lp <= 1e-6f && z[id] > -INFINITY);
        }
    }
    cb_sampler_close(s);
    free(z);
}

/* Not a test: microseconds for one row of 262,144 logits, printed when CB_BENCH is set. */
static void bench(void **state)
{
    if (!getenv("CB_BENCH")) skip();
    enum { N = 262144 };
    float *z = big_row(N, 5);
    cb_sampler *s;
    cb_sampler_open(N, &s, NULL);
    static const struct {
        const char *name;
        float t, top_p, min_p, rep;
        int k;
    } runs[] = { { "greedy", 0, 1, 0, 1, 0 },        { "greedy, repetition", 0, 1, 0, 1.1f, 0 },
                 { "plain", 1, 1, 0, 1, 0 },         { "temperature", 0.7f, 1, 0, 1, 0 },
                 { "top-k 40", 0.7f, 1, 0, 1, 40 },  { "top-k 40, top-p 0.95", 0.7f, 0.95f, 0, 1, 40 },
                 { "top-p 0.9", 0.7f, 0.9f, 0, 1, 0 }, { "top-p 0.9, T 1", 1, 0.9f, 0, 1, 0 }, { "min-p 0.05", 0.7f, 1, 0.05f, 1, 0 },
                 { "top-k 1000", 1, 1, 0, 1, 1000 } };
    int32_t history[512];
    for (int i = 0; i < 512; i++) history[i] = i * 31;
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        cb_sampling p;
        cb_sampling_init(&p);
        p.temperature = runs[i].t, p.top_p = runs[i].top_p, p.min_p = runs[i].min_p, p.top_k = runs[i].k;
        p.repetition_penalty = runs[i].rep;
        double best = 1e9;
        for (int r = 0; r < 60; r++) {
            double t0 = cb_now();
            cb_sampler_pick(s, &p, z, history, 512, 100, NULL, NULL);
            double t = cb_now() - t0;
            if (t < best) best = t;
        }
        print_message("%-24s %7.1f us\n", runs[i].name, best * 1e6);
    }
    cb_sampler_close(s);
    free(z);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_philox), cmocka_unit_test(test_ln),     cmocka_unit_test(test_cases),    cmocka_unit_test(test_draws),
        cmocka_unit_test(test_large),  cmocka_unit_test(test_bits), cmocka_unit_test(test_errors), cmocka_unit_test(test_extremes), cmocka_unit_test(bench),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
