/* delta.c: the worked examples of the Qwen 3.5 description, number by number: the gated delta rule with a start state, the
 * gated norm behind it, the carried rows of the convolution, the output gate of attention, routing of experts. Each runs as a
 * plan of its own on the CPU at every instruction level. */
#include "../support/engine.h"
#include "../support/tmpdir.h"
#include "cpu/cpu.h"
#include "cpu/backend.h"
#include "io/safetensors.h"
#include "plan/builder.h"
#include <math.h>

enum { MAX_OUT = 64 };

static const char *const levels[] = {"c", "avx2", "avx512", "neon"};
static char dir[64];

typedef struct tensor {
    const char *name;
    int rows, cols; /* cols 0: a vector; negative: [rows][-cols][-cols] */
    const float *v;
} tensor;

/* A plan over a few F32 tensors, and the outputs of the last step's ops. */
typedef struct rig {
    cb_config *c;
    cb_weights *w;
    cb_builder *b;
    cb_plan *p;
    cb_dev *d;
    float out[MAX_OUT][MAX_OUT];
} rig;

static void rig_open(rig *r, const tensor *t, int n)
{
    cb_st_writer *o;
    cb_err err = {0};
    *r = (rig){0};
    tmp_dir(dir);
    assert_int_equal(cb_st_writer_open(tmp_path(dir, "model.safetensors"), &o, &err), 0);
    for (int i = 0; i < n; i++) {
        int side = t[i].cols < 0 ? -t[i].cols : t[i].cols;
        int64_t dims[3] = {t[i].rows, side, side};
        assert_int_equal(cb_st_writer_declare(o, t[i].name, CB_F32, dims, t[i].cols < 0 ? 3 : t[i].cols ? 2 : 1, &err), 0);
    }
    assert_int_equal(cb_st_writer_begin(o, &err), 0);
    for (int i = 0; i < n; i++)
        assert_int_equal(cb_st_writer_put(o, t[i].v, 4 * (size_t)(t[i].rows * (t[i].cols < 0 ? t[i].cols * t[i].cols : t[i].cols ? t[i].cols : 1)), &err), 0);
    assert_int_equal(cb_st_writer_commit(o, &err), 0);
    static const char config[] = "{\"model_type\":\"test\"}";
    assert_int_equal(cb_config_parse(dir, config, sizeof config - 1, &r->c, &err), 0);
    assert_int_equal(cb_weights_open(dir, &r->w, &err), 0);
    assert_int_equal(pb_open(r->c, r->w, "test", &r->b, &err), 0);
}

/* Ends the plan with a head nobody reads, and opens a device at a level; false when the machine lacks it. */
static bool rig_ready(rig *r, cb_val last, int n_vocab, const char *level)
{
    cb_err err = {0};
    if (!r->p) {
        pb_logits(r->b, pb_wanted(r->b, last), "head", n_vocab, 0);
        if (pb_finish(r->b, &r->p, &err) < 0) fail_msg("%s", err.text);
    }
    cb_limits lim = {.max_rows = 4, .max_sessions = 1};
    if (cb_backend_cpu.open(&(cb_backend_opts){.level = level, .n_threads = 1}, &r->d, &err) < 0) return false;
    if (cb_backend_cpu.load(r->d, r->p, NULL, NULL, &err) < 0 || cb_backend_cpu.prepare(r->d, &lim, &err) < 0) fail_msg("%s", err.text);
    return true;
}

static void rig_close(rig *r)
{
    cb_plan_close(r->p);
    cb_weights_close(r->w);
    cb_config_close(r->c);
    tmp_remove(dir);
}

static void keep(void *ctx, const cb_tap *t)
{
    rig *r = ctx;
    if (t->row_bytes > sizeof r->out[0] || t->op >= MAX_OUT) return;
    memcpy(r->out[t->op], (const uint8_t *)t->data + (size_t)(t->rows - 1) * t->row_stride, t->row_bytes); /* the last row */
}

/* Tokens first .. first+n-1 at positions pos ... */
static void run(rig *r, int first, int n, int pos)
{
    int32_t token[4], at[4], slot[4] = {0}, wanted = n - 1;
    float logits[16];
    cb_err err = {0};
    for (int i = 0; i < n; i++) token[i] = first + i, at[i] = pos + i;
    cb_batch b = {.n_rows = n, .token = token, .pos = at, .slot = slot, .wanted = &wanted, .n_wanted = 1, .logits = logits, .tap = keep,
                  .tap_ctx = r};
    if (cb_backend_cpu.run(r->d, &b, &err) < 0) fail_msg("%s", err.text);
}

static const float *out_of(const rig *r, cb_op_kind kind, int nth)
{
    for (int i = 0; i < r->p->n_ops; i++)
        if (r->p->ops[i].kind == kind && nth-- == 0) return r->out[i];
    fail_msg("no such op");
    return NULL;
}

static void near(const char *what, const float *got, const double *want, int n, double tolerance)
{
    for (int i = 0; i < n; i++)
        if (!(fabs((double)got[i] - want[i]) <= tolerance)) fail_msg("%s[%d] is %.8g, expected %.8g", what, i, (double)got[i], want[i]);
}

/* ---- the delta rule: dk = dv = 2, one head, start state [[1, 0.5], [-0.25, 2]] ---- */

static const float U[2][6] = {{3, 4, 1, 0, 1, 2}, {1, 0, 0.6f, 0.8f, -1, 0.5f}}; /* q, k, v after the convolution */
static const float A[2][1] = {{-0.5f}, {0.25f}}, B[2][1] = {{0}, {1}}, Z[2][2] = {{1, -1}, {0.5f, 2}};
static const float START[4] = {1, 0.5f, -0.25f, 2};
static const double O[2][2] = {{0.3358757, 0.6938483}, {-0.2798380, 0.1942610}};
static const double AFTER[2][4] = {{0.6249999, 0.125, 0.9687495, 0.5}, {-0.3957508, -0.6005739, 0.2747267, 0.2848191}};
static const double GATED[2][2] = {{0.4504689, -0.1711695}, {-0.3615618, 0.7103241}};

static void test_delta(void **state)
{
    (void)state;
    static const float a_log[] = {0.69314718f}, dt_bias[] = {0.5f}, norm[] = {1, 0.5f}, head[2][2] = {{1, 0}, {0, 1}};
    const tensor t[] = {{"u.weight", 2, 6, U[0]}, {"a.weight", 2, 1, A[0]}, {"b.weight", 2, 1, B[0]}, {"z.weight", 2, 2, Z[0]},
                        {"A_log", 1, 0, a_log}, {"dt_bias", 1, 0, dt_bias}, {"norm", 2, 0, norm}, {"head.weight", 2, 2, head[0]}};
    rig r;
    rig_open(&r, t, 8);
    cb_val u = pb_embed(r.b, "u", 2, 6, 1), a = pb_embed(r.b, "a", 2, 1, 1), b = pb_embed(r.b, "b", 2, 1, 1), z = pb_embed(r.b, "z", 2, 2, 1);
    cb_val o = pb_delta(r.b, u, a, b, "A_log", "dt_bias", &(cb_delta_spec){.k_heads = 1, .v_heads = 1, .k_dim = 2, .v_dim = 2});
    cb_val out = pb_glu(r.b, z, pb_head_norm(r.b, o, "norm", 2, 1e-6f, false), CB_ACT_SILU);
    int seen = 0;
    for (int l = 0; l < 4; l++) {
        if (!rig_ready(&r, out, 2, levels[l])) continue;
        float *S = (float *)r.d->rec[0].base;
        memcpy(S, START, sizeof START);
        for (int i = 0; i < 2; i++) {
            run(&r, i, 1, 5 + i); /* not position 0, which would clear the state */
            near("o", out_of(&r, CB_DELTA, 0), O[i], 2, 2e-7);
            near("state", S, AFTER[i], 4, 2e-7);
            near("gated norm", out_of(&r, CB_GLU, 0), GATED[i], 2, 3e-7);
        }
        memcpy(S, START, sizeof START);
        run(&r, 0, 2, 5); /* both tokens in one step */
        near("o of two", out_of(&r, CB_DELTA, 0), O[1], 2, 2e-7);
        near("state of two", S, AFTER[1], 4, 2e-7);
        run(&r, 0, 1, 0); /* a new sequence starts from zero: S = 0.5 v k^T, o = 0.5 v (k.q) */
        near("fresh state", S, (double[]){0.5, 0, 1, 0}, 4, 1e-6);
        near("fresh o", out_of(&r, CB_DELTA, 0), (double[]){0.5 * 0.424264, 0.424264}, 2, 1e-6);
        cb_backend_cpu.close(r.d);
        seen++;
    }
    assert_true(seen >= 1);
    rig_close(&r);
}

/* ---- the convolution: tap 3 takes the current row, the state the three raw rows before it ---- */

static double silu(double x) { return x / (1 + exp(-x)); }

static void test_conv(void **state)
{
    (void)state;
    static const float x[4][2] = {{1, -1}, {2, 0.5f}, {-3, 4}, {0.25f, -2}}, w[2][4] = {{0.5f, -1, 2, 3}, {1, 0, -0.5f, 0.25f}};
    static const float head[2][2] = {{1, 0}, {0, 1}};
    const tensor t[] = {{"x.weight", 4, 2, x[0]}, {"conv", 2, 4, w[0]}, {"head.weight", 2, 2, head[0]}};
    rig r;
    rig_open(&r, t, 3);
    cb_val out = pb_conv(r.b, pb_embed(r.b, "x", 4, 2, 1), "conv", 4);
    for (int l = 0; l < 4; l++) {
        if (!rig_ready(&r, out, 2, levels[l])) continue;
        for (int split = 0; split < 8; split++) { /* every way to cut four rows into steps */
            for (int from = 0, to; from < 4; from = to) {
                for (to = from + 1; to < 4 && !(split >> (to - 1) & 1); to++) {}
                run(&r, from, to - from, from);
                double want[2];
                for (int c = 0; c < 2; c++) {
                    double s = 0;
                    for (int j = 0; j < 4; j++)
                        if (to - 4 + j >= 0) s += (double)w[c][j] * x[to - 4 + j][c];
                    want[c] = silu(s);
                }
                near("conv", out_of(&r, CB_CONV, 0), want, 2, 1e-6);
            }
            near("carried rows", (const float *)r.d->rec[0].base, (double[]){2, 0.5, -3, 4, 0.25, -2}, 6, 0);
        }
        cb_backend_cpu.close(r.d);
    }
    rig_close(&r);
}

/* ---- attention's query and gate: split per head, not in halves of the row ---- */

static void test_output_gate(void **state)
{
    (void)state;
    static const float qg[1][8] = {{1, 2, 10, 20, 3, 4, 30, 40}}, o[1][4] = {{1, 1, 2, 2}}, head[2][4] = {{1}};
    const tensor t[] = {{"qg.weight", 1, 8, qg[0]}, {"o.weight", 1, 4, o[0]}, {"head.weight", 2, 4, head[0]}};
    rig r;
    rig_open(&r, t, 3);
    cb_val x = pb_embed(r.b, "qg", 1, 8, 1), y = pb_embed(r.b, "o", 1, 4, 1);
    cb_val q = pb_split(r.b, x, 4, 0, 2), gate = pb_split(r.b, x, 4, 2, 2);
    cb_val out = pb_add(r.b, q, pb_glu(r.b, gate, y, CB_ACT_SIGMOID));
    for (int l = 0; l < 4; l++) {
        if (!rig_ready(&r, out, 2, levels[l])) continue;
        run(&r, 0, 1, 0);
        near("query", out_of(&r, CB_SPLIT, 0), (double[]){1, 2, 3, 4}, 4, 0);
        near("gate", out_of(&r, CB_SPLIT, 1), (double[]){10, 20, 30, 40}, 4, 0);
        near("gated", out_of(&r, CB_GLU, 0), (double[]){1 / (1 + exp(-10)), 1 / (1 + exp(-20)), 2, 2}, 4, 1e-6);
        cb_backend_cpu.close(r.d);
    }
    rig_close(&r);
}

/* ---- routing: softmax over all, the k largest renormalised; the lower id on ties; Gemma's scale after that ---- */

static void test_route(void **state)
{
    (void)state;
    static const float z[3][5] = {{0, 1, 3, -1, 2}, {1, 2, 2, 2, 0}, {-5, -5, -5, -5, -5}}, x[3][2] = {{1, 1}, {1, 1}, {1, 1}};
    static const float scale[5] = {1, 2, 3, 4, 5}, experts[5][4] = {{0}}, head[2][2] = {{1}};
    static const int ids[3][2] = {{2, 4}, {1, 2}, {0, 1}};
    const double first[3] = {1 / (1 + exp(-1)), 0.5, 0.5};
    for (int scaled = 0; scaled < 2; scaled++) {
        const tensor t[] = {{"z.weight", 3, 5, z[0]}, {"x.weight", 3, 2, x[0]}, {"head.weight", 2, 2, head[0]}, {"gate.weight", 5, -2, experts[0]},
                            {"up.weight", 5, -2, experts[0]}, {"down.weight", 5, -2, experts[0]}, {"scale", 5, 0, scale}};
        rig r;
        rig_open(&r, t, 6 + scaled);
        cb_moe_spec m = {.n_experts = 5, .top_k = 2, .width = 2, .act = CB_ACT_SILU, .gate = "gate", .up = "up", .down = "down",
                         .route = scaled ? CB_ROUTE_SOFTMAX_TOP : CB_ROUTE_SOFTMAX_ALL, .scale = scaled ? "scale" : NULL};
        cb_val logits = pb_embed(r.b, "z", 3, 5, 1), out = pb_moe(r.b, pb_embed(r.b, "x", 3, 2, 1), logits, &m);
        for (int l = 0; l < 4; l++) {
            if (!rig_ready(&r, out, 2, levels[l])) continue;
            for (int i = 0; i < 3; i++) {
                run(&r, i, 1, 0);
                const float *got = out_of(&r, CB_ROUTE, 0);
                int32_t id[2];
                memcpy(id, got, sizeof id);
                assert_int_equal(id[0], ids[i][0]);
                assert_int_equal(id[1], ids[i][1]);
                double w[2] = {first[i], 1 - first[i]};
                for (int k = 0; k < 2; k++) w[k] *= scaled ? (double)scale[id[k]] : 1;
                near("weights", got + 2, w, 2, 1e-6);
            }
            cb_backend_cpu.close(r.d);
        }
        rig_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_delta), cmocka_unit_test(test_conv), cmocka_unit_test(test_output_gate),
                                       cmocka_unit_test(test_route)};
    return cmocka_run_group_tests_name("op/delta", tests, NULL, NULL);
}
