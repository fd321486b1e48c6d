/* engine.c: opening, sessions and steps: limits, errors, memory. Exactness is tests/op/exact.c. */
#include "../support/engine.h"
#include "base/mem.h"
#include "run/engine.h"

static const char llama[] = "tiny-llama-4bit", gemma[] = "tiny-gemma3-4bit";

static void test_info(void **state)
{
    (void)state;
    cb_engine *e = te_open(llama, &(cb_engine_opts){.device = "cpu:c", .n_threads = 2, .ctx_size = 100, .max_sessions = 3});
    cb_engine_info i;
    cb_engine_get_info(e, &i);
    assert_string_equal(i.family, "llama");
    assert_string_equal(i.device, "cpu:c");
    assert_string_equal(i.arithmetic, "arith 1");
    assert_int_equal(i.n_vocab, 288);
    assert_int_equal(i.ctx_size, 100);
    assert_int_equal(i.ctx_trained, 512);
    assert_int_equal(i.n_threads, 2);
    assert_int_equal(i.max_sessions, 3);
    char *text;
    assert_int_equal(cb_engine_plan_text(e, &text, NULL), 0);
    assert_non_null(strstr(text, "layers.1.self_attn.q_proj"));
    assert_non_null(strstr(text, "affine 4 bits g64 [64,64]"));
    free(text);
    cb_engine_close(e);
    cb_engine_close(NULL);
}

static void fails(const char *name, const cb_engine_opts *o, int code, const char *words)
{
    cb_err err = {0};
    cb_engine *e;
    char dir[256];
    snprintf(dir, sizeof dir, "tests/data/%s", name);
    int rc = cb_engine_open(dir, o, &e, &err);
    if (rc != code || !strstr(err.text, words)) fail_msg("%s: %d '%s', expected %d '%s'", name, rc, err.text, code, words);
    assert_null(e);
}

static void test_open_errors(void **state)
{
    (void)state;
    fails("no-such-thing", NULL, CB_ENOTFOUND, "config.json");
    fails(llama, &(cb_engine_opts){.device = "cpu:sse9"}, CB_ENODEV, "sse9");
    fails(llama, &(cb_engine_opts){.device = "tpu"}, CB_EUSAGE, "tpu");
    fails(llama, &(cb_engine_opts){.device = "cuda:99"}, CB_ENODEV, "cuda");
    fails(llama, &(cb_engine_opts){.ctx_size = 513}, CB_EUSAGE, "at most 512");
    fails(llama, &(cb_engine_opts){.ctx_size = 512, .memory_limit = 1 << 20}, CB_ENOMEM, "need");
    fails(llama, &(cb_engine_opts){.n_threads = 100000}, CB_EUSAGE, "100000");
    fails(llama, &(cb_engine_opts){.max_sessions = -1}, CB_EUSAGE, "max_sessions");
}

/* Sizes of tiny-llama-4bit: 2 layers, 2 KV heads and 4 query heads of 16 dims. */
static void test_cost(void **state)
{
    (void)state;
    cb_engine *e = te_open(llama, NULL);
    cb_cost one, two, chunk;
    uint64_t bytes = 0, flops = 0;
    for (int i = 0; i < e->plan->n_ops; i++) bytes += cb_op_bytes(e->plan, &e->plan->ops[i]), flops += cb_op_flops(e->plan, &e->plan->ops[i]);
    cb_engine_cost(e, 1, 1, 9, 1, &one);
    cb_engine_cost(e, 2, 1, 9, 2, &two);
    cb_engine_cost(e, 1, 3, 9, 0, &chunk);
    double row = 0, kv = (double)cb_plan_kv_block_bytes(e->plan, 0) / 64; /* of the embedding; of a token */
    for (int i = 0; i < e->plan->n_ops; i++)
        if (e->plan->ops[i].kind == CB_EMBED) row = (double)e->plan->weights[e->plan->ops[i].w[0]].matrix.bytes / 288;
    double attn = 4.0 * 2 * e->plan->kv[0].dim * 4; /* two layers of four query heads, a token seen */
    assert_true(row > 0);
    assert_true(one.weight_bytes == (double)bytes + row && two.weight_bytes == (double)bytes + 2 * row);
    assert_true(one.state_bytes == 10 * kv && two.state_bytes == 20 * kv && chunk.state_bytes == 12 * kv);
    assert_true(one.flops == (double)flops + 10 * attn && two.flops == 2 * one.flops);
    assert_true(chunk.weight_bytes < one.weight_bytes && chunk.flops < 3 * one.flops); /* no head */
    cb_engine_close(e);

    e = te_open("tiny-qwen35moe-4bit", NULL);
    uint64_t all = 0;
    for (int i = 0; i < e->plan->n_ops; i++) {
        const cb_op *o = &e->plan->ops[i];
        all += o->kind == CB_MOE_LINEAR ? e->plan->weights[o->w[0]].matrix.bytes : cb_op_bytes(e->plan, o);
    }
    cb_engine_cost(e, 1, 1, 0, 1, &one);
    cb_engine_cost(e, 4, 1, 0, 4, &two);
    cb_engine_cost(e, 4000, 1, 0, 1, &chunk);
    assert_true(one.weight_bytes < two.weight_bytes && two.weight_bytes < 4 * one.weight_bytes && two.state_bytes == 4 * one.state_bytes);
    assert_true(chunk.weight_bytes >= (double)all); /* every expert once */
    cb_engine_close(e);
}

static void test_probe(void **state)
{
    (void)state;
    cb_engine *e = te_open(llama, &(cb_engine_opts){.device = "cpu"});
    cb_probe p;
    assert_int_equal(cb_engine_probe(e, &p, NULL), 0);
    assert_true(p.read_bytes > 1e8 && p.read_bytes < 1e13 && p.matmul_flops >= 0);
    cb_engine_close(e);
}

static void test_step_errors(void **state)
{
    (void)state;
    cb_engine *e = te_open(llama, &(cb_engine_opts){.ctx_size = 64, .max_rows = 80});
    cb_session *s, *more;
    cb_err err = {0};
    assert_int_equal(cb_session_open(e, &s, &err), 0);
    assert_int_equal(cb_session_open(e, &more, &err), CB_EUSAGE);
    float *logits = malloc(288 * 4 * 80);
    cb_row rows[80];
    for (int i = 0; i < 80; i++) rows[i] = (cb_row){s, 5, 0};
    assert_int_equal(cb_step(e, rows, 0, logits, &err), CB_EUSAGE);
    assert_int_equal(cb_step(e, rows, 81, logits, &err), CB_EUSAGE);
    assert_int_equal(cb_step(e, rows, 65, logits, &err), CB_ECONTEXT);
    assert_non_null(strstr(err.text, "64"));
    assert_int_equal(cb_session_length(s), 0);
    rows[1].token = 288;
    assert_int_equal(cb_step(e, rows, 2, logits, &err), CB_EUSAGE);
    assert_non_null(strstr(err.text, "288"));
    rows[1].token = -1;
    assert_int_equal(cb_step(e, rows, 2, logits, &err), CB_EUSAGE);
    rows[1] = (cb_row){NULL, 1, 0};
    assert_int_equal(cb_step(e, rows, 2, logits, &err), CB_EUSAGE);
    rows[1] = (cb_row){s, 1, 1};
    assert_int_equal(cb_step(e, rows, 2, NULL, &err), CB_EUSAGE);
    assert_int_equal(cb_session_length(s), 0);
    assert_int_equal(cb_step(e, rows, 64, logits, &err), 0);
    assert_int_equal(cb_session_length(s), 64);
    assert_int_equal(cb_step(e, rows, 1, logits, &err), CB_ECONTEXT);
    cb_session_reset(s);
    assert_int_equal(cb_session_length(s), 0);
    assert_int_equal(cb_step(e, rows, 64, logits, &err), 0);
    free(logits);
    cb_session_close(s);
    cb_engine_close(e);
}

/* After loading, prefill and decode take no memory, and a window's blocks come back. */
static void test_no_allocation_and_no_leak(void **state)
{
    (void)state;
    cb_engine *e = te_open(gemma, &(cb_engine_opts){.max_rows = 32, .n_threads = 2});
    cb_session *s;
    assert_int_equal(cb_session_open(e, &s, NULL), 0);
    float logits[288];
    cb_row rows[32];
    uint64_t before = cb_alloc_count();
    for (int i = 0; i < 500; i += i < 320 ? 32 : 1) {
        int n = i < 320 ? 32 : 1;
        for (int k = 0; k < n; k++) rows[k] = (cb_row){s, te_token(0, i + k, 288), k == n - 1};
        assert_int_equal(cb_step(e, rows, n, logits, NULL), 0);
        for (int g = 0; g < e->plan->n_kv_groups; g++) {
            int held = s->q.n_held[g] - s->q.first_live[g];
            assert_int_equal(held + e->pools[g].n_free, e->pools[g].n_blocks);
            if (e->plan->kv_groups[g].window) assert_true(held <= cb_blocks_per_session(e->plan, g, 512, 32));
        }
    }
    assert_int_equal(cb_alloc_count(), before);
    cb_session_close(s);
    for (int g = 0; g < e->plan->n_kv_groups; g++) assert_int_equal(e->pools[g].n_free, e->pools[g].n_blocks);
    cb_engine_close(e);
}

/* Every allocation of opening fails once; each time the answer is CB_ENOMEM and nothing leaks (the sanitizer looks). */
static void test_allocation_failures(void **state)
{
    (void)state;
    for (uint64_t n = 1;; n++) {
        cb_engine *e = NULL;
        cb_session *s = NULL;
        cb_err err = {0};
        cb_alloc_fail_at(n);
        int rc = cb_engine_open("tests/data/tiny-llama-4bit", &(cb_engine_opts){.device = "cpu"}, &e, &err);
        if (rc == 0) rc = cb_session_open(e, &s, &err);
        cb_alloc_fail_at(0);
        cb_session_close(s);
        cb_engine_close(e);
        if (rc == 0) {
            assert_true(n > 20);
            break;
        }
        if (rc != CB_ENOMEM || !err.text[0]) fail_msg("allocation %llu: %d '%s'", (unsigned long long)n, rc, err.text);
    }
}

struct seen {
    int ops, linears;
    char last[64];
    uint64_t bytes, flops;
};
static void see(void *ctx, const cb_tap *t)
{
    struct seen *s = ctx;
    assert_int_equal(t->op, s->ops);
    assert_true(t->rows > 0 && t->row_bytes > 0 && t->row_stride >= t->row_bytes && t->us >= 0);
    s->ops++;
    s->linears += !strcmp(t->kind, "linear");
    s->bytes += t->bytes;
    s->flops += t->flops;
    snprintf(s->last, sizeof s->last, "%s", t->name);
}

static void test_tap(void **state)
{
    (void)state;
    cb_engine *e = te_open(llama, NULL);
    uint64_t plain = te_hash(e, 40, 13);
    cb_session *s;
    struct seen seen = {0};
    float logits[288];
    assert_int_equal(cb_session_open(e, &s, NULL), 0);
    cb_engine_set_tap(e, see, &seen);
    assert_int_equal(cb_step(e, &(cb_row){s, 7, 1}, 1, logits, NULL), 0);
    assert_int_equal(seen.ops, e->plan->n_ops);
    assert_int_equal(seen.linears, 2 * 7 + 1);
    assert_string_equal(seen.last, "embed_tokens");
    assert_true(seen.bytes > 30000);
    cb_session_close(s);
    cb_engine_set_tap(e, NULL, NULL);
    assert_int_equal(te_hash(e, 40, 40), plain);
    cb_engine_close(e);
}

/* What is counted for a context, and an engine that only counts. */
static void test_memory(void **state)
{
    (void)state;
    static const char *const kinds[] = {"tiny-gemma3-4bit", "tiny-qwen35-raw"};
    for (int i = 0; i < 2; i++) {
        cb_memory small, large, m;
        cb_engine_info info;
        cb_session *s;
        cb_err err = {0};
        cb_engine_opts o = {.device = "cpu", .ctx_size = 128, .max_sessions = 2, .max_snapshots = 3, .max_rows = 64};
        cb_engine *e = te_open(kinds[i], &o);
        cb_engine_get_info(e, &info);
        assert_int_equal(cb_engine_get_memory(e, 0, &small, NULL), 0);
        assert_int_equal(small.ctx_size, 128);
        assert_true(small.weights == info.weight_bytes && small.recurrent + small.kv[0].bytes + (small.n_groups > 1 ? small.kv[1].bytes : 0) == info.state_bytes);
        assert_true(small.total == info.state_bytes + info.scratch_bytes && small.weight_copies > 0 && small.available > 0);
        assert_int_equal(cb_engine_get_memory(e, 512, &large, NULL), 0);
        assert_true(large.recurrent == small.recurrent && (large.recurrent > 0) == (i == 1) && (large.n_recurrent > 0) == (i == 1));
        for (int g = 0; g < large.n_groups; g++) { /* a window's pool does not grow past it */
            if (large.kv[g].window) assert_true(large.kv[g].n_blocks < 8 * 5);
            else assert_int_equal(large.kv[g].n_blocks, 2 * 8 + 3);
        }
        assert_int_equal(cb_engine_get_memory(e, 1 << 24, &m, &err), CB_EUSAGE);
        assert_int_equal(cb_engine_get_memory(e, -1, &m, &err), CB_EUSAGE);
        cb_engine_close(e);
        o.plan_only = 1;
        o.ctx_size = 512;
        e = te_open(kinds[i], &o);
        assert_int_equal(cb_engine_get_memory(e, 0, &m, NULL), 0);
        assert_true(m.total == large.total && m.recurrent == large.recurrent && m.scratch == large.scratch && m.kv[0].bytes == large.kv[0].bytes);
        assert_int_equal(cb_session_open(e, &s, &err), CB_EUSAGE);
        cb_engine_close(e);
        o.memory_limit = 1000; /* counting needs no memory */
        e = te_open(kinds[i], &o);
        assert_int_equal(cb_engine_get_memory(e, 0, &m, NULL), 0);
        assert_true(m.total > m.available && m.available == 1000);
        cb_engine_close(e);
    }
}

/* What a tap says of the ops of a step adds up to the step's cost. */
static void test_tap_costs(void **state)
{
    (void)state;
    static const char *const names[] = {"tiny-llama-4bit", "tiny-gemma3-4bit", "tiny-qwen35moe-4bit", "tiny-gemma4moe-4bit"};
    for (int m = 0; m < 4; m++) {
        cb_engine *e = te_open(names[m], &(cb_engine_opts){.max_rows = 64, .ctx_size = 128});
        cb_row rows[40];
        struct seen seen = {0};
        cb_session *s;
        cb_cost c;
        int32_t best;
        double embed = 0;
        assert_int_equal(cb_session_open(e, &s, NULL), 0);
        for (int i = 0; i < 40; i++) rows[i] = (cb_row){s, 3 + i, 0};
        assert_int_equal(cb_step(e, rows, 40, NULL, NULL), 0);
        cb_engine_set_tap(e, see, &seen);
        assert_int_equal(cb_step_best(e, &(cb_row){s, 7, 1}, 1, &best, NULL), 0);
        cb_engine_cost(e, 1, 1, 40, 1, &c);
        for (int i = 0; i < e->plan->n_ops; i++) {
            const cb_matrix *w = &e->plan->weights[e->plan->ops[i].w[0] < 0 ? 0 : e->plan->ops[i].w[0]].matrix;
            if (e->plan->ops[i].kind == CB_EMBED) embed += (double)w->bytes / (double)w->rows; /* not an op's: it reads one row */
        }
        double want = c.weight_bytes + c.state_bytes, got = (double)seen.bytes + embed;
        if (got < want * 0.999 || got > want * 1.001 || (double)seen.flops != c.flops)
            fail_msg("%s: %.0f of %.0f bytes, %.0f of %.0f flops", names[m], got, want, (double)seen.flops, c.flops);
        cb_session_close(s);
        cb_engine_close(e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_info),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_open_errors),
        cmocka_unit_test(test_cost),
        cmocka_unit_test(test_probe),
        cmocka_unit_test(test_step_errors),
        cmocka_unit_test(test_no_allocation_and_no_leak),
        cmocka_unit_test(test_allocation_failures),
        cmocka_unit_test(test_tap),
        cmocka_unit_test(test_tap_costs),
    };
    return cmocka_run_group_tests_name("unit/engine", tests, NULL, NULL);
}
