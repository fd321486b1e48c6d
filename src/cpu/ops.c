/* ops.c: walks the plan. Every thread walks the same list; ops marked `barrier` wait for all. Row-wise ops give row r of
 * every value to the same thread, so neighbours need no barrier between them. */
#include "cpu/cpu.h"
#include "base/clock.h"
#include "kernels/num.h"
#include <math.h>
#include <string.h>

cb_qrows cpu_planes(const cb_dev *d, cb_val v)
{
    const cb_value *x = &d->plan->values[v];
    size_t rows = (size_t)d->lim.max_rows * (size_t)cpu_slots(d, v) * (x->pair ? 2 : 1);
    cb_qrows q;
    q.n_groups = (x->width + x->group - 1) / x->group;
    q.plane_stride = cb_plane_stride(x->width, x->pack);
    q.planes = cpu_value(d, v);
    q.dx = (float *)(q.planes + rows * q.plane_stride);
    q.xs = q.dx + rows * (size_t)q.n_groups;
    q.sum = (int32_t *)(q.xs + rows * (size_t)q.n_groups);
    return q;
}

static void embed(const cpu_ctx *c, int row)
{
    const cb_dev *d = c->d;
    const cb_matrix *m = &d->plan->weights[c->op->w[0]].matrix;
    float *x = cpu_row(d, c->op->out, row);
    cb_matrix_decode_row(m, 0, d->batch->token[row], x);
    if (c->op->f[0] != 1.0f) d->k.scale(x, x, c->op->f[0], (int)m->cols);
}

static void rmsnorm(const cpu_ctx *c, int row)
{
    const cb_dev *d = c->d;
    const cb_op *o = c->op;
    const float *w = o->w[0] >= 0 ? d->weights[o->w[0]].vector : NULL;
    const float *x = cpu_row(d, o->in[0], row);
    float *y = cpu_row(d, o->out, row);
    for (int h = 0; h < o->n[0]; h++) d->k.rmsnorm(y + h * o->n[1], x + h * o->n[1], w, o->n[1], o->f[0]);
}

/* Which rows of a value with pairs have a remainder: [max_rows]. Its row is max_rows + row. */
static int32_t *remainder_flags(const cb_dev *d, const cb_qrows *q)
{
    return q->sum + 2 * (size_t)d->lim.max_rows * (size_t)q->n_groups;
}

static void quant_into(const cpu_ctx *c, const cb_qrows *q, size_t row, const float *x)
{
    const cb_value *v = &c->d->plan->values[c->op->out];
    size_t g = row * (size_t)q->n_groups;
    c->d->k.quant_row(x, v->width, v->group, v->pack, q->planes + row * q->plane_stride, q->dx + g, q->xs + g, q->sum + g);
}

/* Does one number hold more than the share f[0] of the row's energy? */
static bool wants_remainder(const cpu_ctx *c, const float *dx, int n_groups, const float *x, int n)
{
    float top = 0;
    for (int g = 0; g < n_groups; g++) top = dx[g] > top ? dx[g] : top;
    top *= CB_XI_MAX;
    return top * top > c->op->f[0] * c->d->k.sum_squares(x, n);
}

/* What the integers leave of x, quantised as x is. */
static void quant_remainder(const cpu_ctx *c, const cb_qrows *q, int row, const float *x)
{
    const cb_dev *d = c->d;
    const cb_value *v = &d->plan->values[c->op->out];
    float *r = (float *)c->scratch;
    for (int at = 0; at < v->width; at += v->group) {
        int16_t xi[128];
        int n = v->width - at < v->group ? v->width - at : v->group;
        float dx = d->k.quant16(x + at, n, xi);
        for (int i = 0; i < n; i++) r[at + i] = x[at + i] - dx * (float)xi[i];
    }
    quant_into(c, q, (size_t)d->lim.max_rows + (size_t)row, r);
}

static void quant(const cpu_ctx *c, int row)
{
    const cb_dev *d = c->d;
    const cb_value *v = &d->plan->values[c->op->out];
    const float *x = cpu_row(d, c->op->in[0], row);
    if (!d->k.all_finite(x, v->width)) cpu_report_bad(c);
    cb_qrows q = cpu_planes(d, c->op->out);
    quant_into(c, &q, (size_t)row, x);
    if (!v->pair) return;
    bool more = wants_remainder(c, q.dx + (size_t)row * (size_t)q.n_groups, q.n_groups, x, v->width);
    remainder_flags(d, &q)[row] = more;
    if (more) quant_remainder(c, &q, row, x);
}

static void rope(const cpu_ctx *c, int row)
{
    const cb_op *o = c->op;
    float *x = cpu_row(c->d, o->out, row);
    const float *cs = cpu_row(c->d, o->in[1], row);
    for (int h = 0; h < o->n[0]; h++) c->d->k.rope(x + h * o->n[1], cs, o->n[2], o->n[3]);
}

static void glu(const cpu_ctx *c, int row)
{
    const cb_dev *d = c->d;
    const cb_op *o = c->op;
    int n = d->plan->values[o->out].width;
    float *y = cpu_row(d, o->out, row);
    const float *gate = cpu_row(d, o->in[0], row), *up = cpu_row(d, o->in[1], row);
    switch (o->n[0]) {
    case CB_ACT_SILU: d->k.silu_mul(y, gate, up, n); break;
    case CB_ACT_GELU_TANH: d->k.gelu_mul(y, gate, up, n); break;
    default: d->k.sigmoid_mul(y, gate, up, n);
    }
}

static void split(const cpu_ctx *c, int row)
{
    const cb_op *o = c->op;
    const float *x = cpu_row(c->d, o->in[0], row);
    float *y = cpu_row(c->d, o->out, row);
    for (int h = 0; h < o->n[0]; h++) memcpy(y + h * o->n[3], x + h * o->n[1] + o->n[2], (size_t)o->n[3] * 4);
}

/* Signs are +1 and -1, so multiplying by them is exact. */
static void hadamard(const cpu_ctx *c, int row)
{
    const cb_dev *d = c->d;
    const cb_op *o = c->op;
    int n = d->plan->values[o->out].width;
    float *y = cpu_row(d, o->out, row), scale = (float)(1.0 / sqrt((double)o->n[0]));
    if (o->w[0] < 0) {
        d->k.hadamard(y, n, o->n[0], scale);
        return;
    }
    const float *s = d->weights[o->w[0]].vector, *x = cpu_row(d, o->in[0], row);
    if (!o->n[1]) d->k.mul(y, x, s, n);
    d->k.hadamard(y, n, o->n[0], scale);
    if (o->n[1]) d->k.mul(y, y, s, n);
}

static void add_gated(const cpu_ctx *c, int row)
{
    const cb_op *o = c->op;
    float g = cb_sigmoidf(cpu_row(c->d, o->in[1], row)[0]);
    c->d->k.axpy(cpu_row(c->d, o->out, row), g, cpu_row(c->d, o->in[2], row), c->d->plan->values[o->out].width);
}

static void one_row(const cpu_ctx *c, int row)
{
    const cb_dev *d = c->d;
    const cb_op *o = c->op;
    switch (o->kind) {
    case CB_EMBED: embed(c, row); break;
    case CB_ROPE_TABLE: {
        const cb_rope_table *t = &d->plan->ropes[o->n[0]];
        float *cs = cpu_row(d, o->out, row);
        cb_rope_row(cs, d->batch->pos[row], t->freq, t->n_pairs);
        if (o->f[0] != 1) d->k.scale(cs, cs, o->f[0], 2 * t->n_pairs);
        break;
    }
    case CB_RMSNORM: rmsnorm(c, row); break;
    case CB_QUANT: quant(c, row); break;
    case CB_ROPE: rope(c, row); break;
    case CB_GLU: glu(c, row); break;
    case CB_ADD:
        d->k.add(cpu_row(d, o->out, row), cpu_row(d, o->in[0], row), cpu_row(d, o->in[1], row), d->plan->values[o->out].width);
        break;
    case CB_BIAS:
        d->k.add(cpu_row(d, o->out, row), cpu_row(d, o->in[0], row), d->weights[o->w[0]].vector, d->plan->values[o->out].width);
        break;
    case CB_SOFTCAP: {
        float *x = cpu_row(d, o->out, row);
        d->k.softcap(x, x, o->f[0], d->plan->values[o->out].width);
        break;
    }
    case CB_WANTED:
        memcpy(cpu_row(d, o->out, row), cpu_row(d, o->in[0], d->batch->wanted[row]), (size_t)d->plan->values[o->out].width * 4);
        break;
    case CB_SPLIT: split(c, row); break;
    case CB_SCALE: {
        float *x = cpu_row(d, o->out, row);
        d->k.scale(x, x, o->w[0] >= 0 ? d->weights[o->w[0]].vector[0] : o->f[0], d->plan->values[o->out].width);
        break;
    }
    case CB_HADAMARD: hadamard(c, row); break;
    case CB_ROUTE: cpu_route(c, row); break;
    case CB_MOE_SUM: cpu_moe_sum(c, row); break;
    case CB_ADD_GATED: add_gated(c, row); break;
    default: CB_ASSERT(!"op kind");
    }
}

/* y += W * remainder for the rows that have one, a few hundred at a time. */
static void linear_remainders(const cpu_ctx *c, const cb_mm *main, int64_t n0, int64_t n1)
{
    enum { BATCH = 256 };
    const cb_dev *d = c->d;
    const int32_t *flag = remainder_flags(d, &main->x);
    int32_t x_row[BATCH], y_row[BATCH];
    cb_mm mm = *main;
    mm.x_row = x_row;
    mm.y_row = y_row;
    mm.add = true;
    mm.n_rows = 0;
    for (int r = 0; r < main->n_rows; r++) {
        if (flag[r]) {
            x_row[mm.n_rows] = d->lim.max_rows + r;
            y_row[mm.n_rows++] = r;
        }
        if (mm.n_rows == BATCH || (mm.n_rows && r == main->n_rows - 1)) {
            cpu_product(c, &mm, 0, n0, n1);
            mm.n_rows = 0;
        }
    }
}

/* One or two rows of which one has a remainder, and weights whose unpacking is dear: row and remainder meet them in one pass.
 * Returns false when it does not apply; where unpacking is cheap a second pass over what the caches hold is faster. */
static bool linear_pairs(const cpu_ctx *c, const cb_mm *main, int64_t n0, int64_t n1)
{
    enum { ROWS = 2, PIECE = 1024 };
    const cb_dev *d = c->d;
    const int32_t *flag = remainder_flags(d, &main->x);
    int32_t x_row[2 * ROWS], n = 0;
    bool dear = main->fmt == CB_FMT_PLANES || (main->bits & (main->bits - 1));
    if (!dear || main->n_rows > ROWS || !main->codes) return false;
    for (int r = 0; r < main->n_rows; r++) {
        x_row[n++] = r;
        if (flag[r]) x_row[n++] = d->lim.max_rows + r;
    }
    if (n == main->n_rows) return false;
    float t[2 * ROWS * PIECE];
    cb_mm mm = *main;
    const size_t per_row = (size_t)mm.n_groups * cb_scale_size(mm.scale_type);
    mm.x_row = x_row;
    mm.n_rows = n;
    mm.y = t;
    mm.y_stride = PIECE;
    mm.add = false;
    for (int64_t at = n0; at < n1; at += PIECE) {
        int many = n1 - at < PIECE ? (int)(n1 - at) : PIECE;
        mm.codes = main->codes + (size_t)at * mm.row_bytes;
        mm.scales = main->scales + (size_t)at * per_row;
        if (main->biases) mm.biases = main->biases + (size_t)at * per_row;
        d->k.linear(&mm, 0, many, c->scratch);
        const float *from = t;
        for (int r = 0; r < main->n_rows; r++, from += PIECE) {
            float *y = main->y + (size_t)r * main->y_stride + at;
            if (main->add) d->k.add(y, y, from, many);
            else memcpy(y, from, (size_t)many * 4);
            if (flag[r]) d->k.add(y, y, from += PIECE, many);
        }
    }
    return true;
}

static void linear(const cpu_ctx *c)
{
    const cb_dev *d = c->d;
    const cb_op *o = c->op;
    cb_mm mm = d->weights[o->w[0]].mm;
    mm.n_rows = cpu_rows(d, o->out);
    if (!mm.n_rows) return;
    mm.x = cpu_planes(d, o->in[0]);
    mm.y = cpu_value(d, o->out);
    mm.y_stride = cpu_stride(d, o->out);
    mm.add = o->n[0];
    int64_t n0, n1;
    cpu_share_outputs(c, d->plan->weights[o->w[0]].matrix.rows, &n0, &n1);
    if (n0 >= n1 || linear_pairs(c, &mm, n0, n1)) return;
    cpu_product(c, &mm, 0, n0, n1);
    linear_remainders(c, &mm, n0, n1);
}

static void one_op(const cpu_ctx *c)
{
    switch (c->op->kind) {
    case CB_LINEAR: linear(c); return;
    case CB_KV_PUT: cpu_kv_put(c); return;
    case CB_CONV: cpu_conv(c); return;
    case CB_DELTA: cpu_delta(c); return;
    case CB_MOE_SORT: cpu_moe_sort(c); return;
    case CB_MOE_LINEAR: cpu_moe_linear(c); return;
    case CB_ATTENTION:
        cpu_attention(c);
        if (c->d->split_units) { /* the context of few rows was shared: everyone has stored its blocks now */
            cb_pool_barrier(c->d->pool, c->member);
            cpu_attention_merge(c);
        }
        return;
    default: break;
    }
    int64_t r0, r1;
    cpu_share(c, cpu_rows(c->d, c->op->out), &r0, &r1);
    for (int64_t r = r0; r < r1; r++) one_row(c, (int)r);
}

/* What a tap sees of an op: its output, or for kv_put its key input. */
static void call_tap(const cpu_ctx *c, double us)
{
    const cb_dev *d = c->d;
    const cb_op *o = c->op;
    cb_val v = o->out >= 0 ? o->out : o->in[0];
    const cb_value *x = &d->plan->values[v];
    cb_tap t = {.op = (int)(o - d->plan->ops), .name = o->name, .kind = cb_op_kind_name(o->kind), .dtype = "f32",
                .data = cpu_value(d, v), .rows = cpu_rows(d, v), .row_bytes = (size_t)x->width * 4,
                .row_stride = x->row_bytes, .us = us};
    cb_tap_costs(d->plan, o, d->batch, &t);
    if (o->kind == CB_MOE_SORT) t.row_stride = t.row_bytes; /* lists of the whole step, one behind the other */
    if (x->group) {
        t.dtype = "i8";
        t.row_bytes = t.row_stride = cb_plane_stride(x->width, x->pack);
    }
    d->batch->tap(d->batch->tap_ctx, &t);
}

static void walk(void *ctx, int member, int n_members)
{
    cb_dev *d = ctx;
    const cb_plan *p = d->plan;
    bool tap = d->batch->tap != NULL;
    cpu_ctx c = {.d = d, .member = member, .n_members = n_members,
                 .scratch = d->thread_scratch + (size_t)member * d->thread_bytes};
    for (int i = 0; i < p->n_ops; i++) {
        c.op = &p->ops[i];
        if (c.op->barrier && !tap) cb_pool_barrier(d->pool, member);
        double t0 = tap ? cb_now() : 0;
        one_op(&c);
        if (!tap) continue;
        cb_pool_barrier(d->pool, member);
        if (member == 0) call_tap(&c, (cb_now() - t0) * 1e6);
        cb_pool_barrier(d->pool, member);
    }
}

int cpu_run(cb_dev *d, const cb_batch *b, cb_err *err)
{
    d->batch = b;
    atomic_store(&d->bad_op, 0);
    cpu_find_runs(d, b);
    cb_pool_run(d->pool, walk, d);
    int bad = atomic_load(&d->bad_op);
    if (!bad)
        for (int r = 0; r < b->n_wanted && !bad; r++)
            if (!d->k.all_finite(b->logits + (size_t)r * (size_t)d->plan->n_vocab, d->plan->n_vocab)) bad = d->plan->n_ops;
    if (bad)
        return cb_fail(err, CB_ENUM, "%s: a value is not finite (NaN or infinity) after op %d", d->plan->ops[bad - 1].name, bad - 1);
    return 0;
}
