/* sampling.h: cb_step_sample against cb_step and cb_sampler_pick on one device, for many settings: the same tokens and logprobs. */
#ifndef CB_TESTS_SUPPORT_SAMPLING_H
#define CB_TESTS_SUPPORT_SAMPLING_H
#include "engine.h"

enum { TS_SETTINGS = 20, TS_ROWS = 3, TS_PROMPT = 10, TS_SPARE = 7 };

static const int32_t ts_bias_ids[] = {3, 5, 9, 11, 5};
static const float ts_bias[] = {-100, 4, -2.5f, 100, 1};

static inline cb_sampling ts_setting(int k, int row)
{
    static const struct {
        float t;
        int k;
        float p, min_p, rep, pres, freq;
        int profile, n_bias;
    } s[TS_SETTINGS] = {
        {0, 0, 1, 0, 1, 0, 0, 0, 0}, {1, 0, 1, 0, 1, 0, 0, 0, 0}, {0.6f, 20, 0.95f, 0, 1, 0, 0, 0, 0}, {0, 0, 1, 0, 1.3f, 0, 0, 0, 0},
        {1.4f, 0, 1, 0, 1.1f, 0, 0, 0, 0}, {0.7f, 0, 0.9f, 0, 1, 0, 0, 0, 0}, {1, 0, 1, 0.05f, 1, 0, 0, 0, 0}, {0.8f, 40, 0.95f, 0.05f, 1.1f, 0, 0, CB_PROFILE_LLAMACPP, 0},
        {0.7f, 0, 0.8f, 0.01f, 1.05f, 0.5f, 0.25f, CB_PROFILE_MLX, 0}, {1, 64, 0.95f, 0, 1, 1.5f, 0, 0, 0}, {0.9f, 0, 1, 0.1f, 1, 0, 0.7f, CB_PROFILE_VLLM, 0}, {0, 0, 1, 0, 1, 0, 0, 0, 3},
        {1, 0, 1, 0, 1, 0, 0, 0, 4}, {1, 5, 1, 0, 1, 0, 0, 0, 5}, {0.1f, 1, 1, 0, 1, 0, 0, 0, 0}, {1, 0, 0.5f, 0, 5, 0, 0, 0, 2},
        {5, 0, 0.99f, 0, 1, 0, 0, 0, 0}, {1, 0, 0, 0, 1, 0, 0, 0, 0}, {3, 300, 1, 0, 0.9f, 0, 0, 0, 0}, {1e-3f, 0, 0.9f, 0, 1, 0, 0, 0, 0},
    };
    cb_sampling p;
    cb_sampling_init(&p);
    k %= TS_SETTINGS;
    p.temperature = s[k].t, p.top_k = s[k].k, p.top_p = s[k].p, p.min_p = s[k].min_p, p.profile = s[k].profile;
    p.repetition_penalty = s[k].rep, p.presence_penalty = s[k].pres, p.frequency_penalty = s[k].freq;
    p.bias_ids = ts_bias_ids, p.bias = ts_bias, p.n_bias = s[k].n_bias;
    p.seed = (uint64_t)(1000 * k + row);
    return p;
}

/* Sequences by pairs: the first of each gives logits, the second tokens. n rows a step; rows of one step have different settings. */
static inline void ts_run(cb_engine *e, cb_sampler *s, int n, int n_steps, const char *what)
{
    cb_engine_info info;
    cb_engine_get_info(e, &info);
    cb_session *a[TS_ROWS], *b[TS_ROWS];
    cb_row rows[TS_ROWS * TS_PROMPT];
    cb_pick picks[TS_ROWS];
    cb_sampling how[TS_ROWS];
    cb_err err = {0};
    int32_t history[TS_ROWS][TS_PROMPT + 128];
    float *logits = malloc((size_t)info.n_vocab * 4 * TS_ROWS);
    assert_true(n_steps <= 128);
    for (int r = 0; r < n; r++) {
        assert_int_equal(cb_session_open(e, &a[r], NULL), 0);
        assert_int_equal(cb_session_open(e, &b[r], NULL), 0);
        for (int i = 0; i < TS_PROMPT; i++) history[r][i] = te_token(r, i, info.n_vocab);
    }
    for (int step = 0; step < n_steps; step++) {
        int m = step ? 1 : TS_PROMPT, length = TS_PROMPT + step, k = 0;
        for (int r = 0; r < n; r++)
            for (int i = length - m; i < length; i++) rows[k++] = (cb_row){a[r], history[r][i], i == length - 1};
        if (cb_step(e, rows, k, logits, &err) < 0) fail_msg("%s: %s", what, err.text);
        for (int r = 0; r < k; r++) rows[r].session = b[r / m];
        for (int r = 0; r < n; r++) {
            how[r] = ts_setting(step + 7 * r, r);
            picks[r] = (cb_pick){&how[r], history[r], length, TS_PROMPT, -1, -1};
        }
        if (cb_step_sample(e, rows, k, s, picks, &err) < 0) fail_msg("%s: %s", what, err.text);
        for (int r = 0; r < n; r++) {
            float lp = -1;
            int32_t id = cb_sampler_pick(s, &how[r], logits + (size_t)r * (size_t)info.n_vocab, history[r], length, TS_PROMPT, &lp, &err);
            if (id < 0) fail_msg("%s: %s", what, err.text);
            if (id != picks[r].token || memcmp(&lp, &picks[r].logprob, 4))
                fail_msg("%s, setting %d, step %d, row %d of %d: %d (%.9g), expected %d (%.9g)", what, (step + 7 * r) % TS_SETTINGS, step, r, n, picks[r].token,
                         (double)picks[r].logprob, id, (double)lp);
            history[r][length] = id;
        }
    }
    for (int r = 0; r < n; r++) {
        cb_session_close(a[r]);
        cb_session_close(b[r]);
    }
    free(logits);
}

/* dir: a checkpoint; a few ids at the end of its vocabulary are never picked. */
static inline void ts_compare(const char *dir, const char *device, int n_steps)
{
    cb_engine_opts o = {.device = device, .ctx_size = 256, .max_rows = TS_ROWS * TS_PROMPT, .max_sessions = 2 * TS_ROWS, .n_threads = 1};
    cb_engine *e;
    cb_engine_info info;
    cb_sampler *s;
    cb_err err = {0};
    if (cb_engine_open(dir, &o, &e, &err) < 0) fail_msg("%s: %s", dir, err.text);
    cb_engine_get_info(e, &info);
    assert_int_equal(cb_sampler_open(info.n_vocab - TS_SPARE, &s, NULL), 0);
    ts_run(e, s, 1, n_steps, dir);
    ts_run(e, s, TS_ROWS, n_steps, dir);
    cb_sampler_close(s);
    cb_engine_close(e);
}

/* What goes wrong: settings before the step, picks behind it. */
static inline void ts_errors(const char *dir, const char *device)
{
    cb_engine_opts o = {.device = device, .ctx_size = 64, .max_rows = 8, .max_sessions = 2, .n_threads = 1};
    cb_engine *e;
    cb_engine_info info;
    cb_session *a, *b;
    cb_sampler *s, *wide;
    cb_err err = {0};
    if (cb_engine_open(dir, &o, &e, &err) < 0) fail_msg("%s: %s", dir, err.text);
    cb_engine_get_info(e, &info);
    assert_int_equal(cb_sampler_open(info.n_vocab, &s, NULL), 0);
    assert_int_equal(cb_sampler_open(info.n_vocab + 1, &wide, NULL), 0);
    assert_int_equal(cb_session_open(e, &a, NULL), 0);
    assert_int_equal(cb_session_open(e, &b, NULL), 0);
    cb_sampling good = ts_setting(2, 0), bad = good, none = good;
    int32_t h[] = {1, 2};
    cb_row rows[] = {{a, 1, 1}, {b, 2, 1}, {b, 3, 1}};
    cb_pick picks[] = {{&good, h, 1, 1, -1, -1}, {&bad, h + 1, 1, 1, -1, -1}, {&good, h, 1, 1, -1, -1}};
    bad.top_p = -1;
    assert_int_equal(cb_step_sample(e, rows, 2, s, picks, &err), CB_EUSAGE);
    assert_non_null(strstr(err.text, "top_p"));
    bad = ts_setting(2, 0);
    assert_int_equal(cb_step_sample(e, rows, 3, s, picks, &err), CB_EUSAGE);
    assert_non_null(strstr(err.text, "max_sessions"));
    assert_int_equal(cb_step_sample(e, rows, 2, wide, picks, &err), CB_EUSAGE);
    assert_int_equal(cb_session_length(a), 0);
    int32_t *ids = malloc((size_t)info.n_vocab * 4);
    float *bans = malloc((size_t)info.n_vocab * 4);
    for (int i = 0; i < info.n_vocab; i++) ids[i] = i, bans[i] = -100;
    none.bias_ids = ids, none.bias = bans, none.n_bias = info.n_vocab;
    picks[1].sampling = &none;
    err = (cb_err){0};
    assert_int_equal(cb_step_sample(e, rows, 2, s, picks, &err), 0);
    assert_true(picks[0].token >= 0);
    assert_int_equal(picks[1].token, CB_EUSAGE);
    assert_non_null(strstr(err.text, "banned"));
    assert_int_equal(cb_session_length(a), 1);
    rows[0].want_logits = rows[1].want_logits = 0; /* nothing is wanted */
    assert_int_equal(cb_step_sample(e, rows, 2, s, NULL, &err), 0);
    free(ids);
    free(bans);
    cb_session_close(a);
    cb_session_close(b);
    cb_sampler_close(s);
    cb_sampler_close(wide);
    cb_engine_close(e);
}
#endif
