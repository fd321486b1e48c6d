/* hybrid.c: layers with recurrent state, and experts. Rows of a session are taken in order; what is independent (channels,
 * value columns, outputs) is split among threads, so neither chunks nor threads change a bit. */
#include "cpu/cpu.h"
#include "kernels/num.h"
#include <string.h>

static float *rec_state(const cb_dev *d, int state, int row)
{
    return (float *)(d->rec[state].base + (size_t)d->batch->slot[row] * d->rec[state].bytes);
}

/* ---- convolution: the state holds the taps-1 rows before the next one, oldest first ---- */

enum { MAX_TAPS = 16 };

static void conv_run(const cpu_ctx *c, int r0, int r1, int c0, int c1)
{
    const cb_dev *d = c->d;
    const cb_op *o = c->op;
    int taps = o->n[1], width = d->plan->values[o->out].width, back = taps - 1;
    float *state = rec_state(d, o->n[0], r0);
    const float *x[MAX_TAPS];
    if (d->batch->pos[r0] == 0)
        for (int j = 0; j < back; j++) memset(state + (size_t)j * (size_t)width + c0, 0, (size_t)(c1 - c0) * 4);
    for (int r = r0; r < r1; r++) {
        for (int j = 0; j < taps; j++) {
            int at = r - back + j;
            x[j] = at >= r0 ? cpu_row(d, o->in[0], at) : state + (size_t)(at - r0 + back) * (size_t)width;
        }
        d->k.conv_silu(cpu_row(d, o->out, r), x, d->weights[o->w[0]].vector, taps, c0, c1);
    }
    for (int j = 0; j < back; j++) { /* ascending: a kept row moves towards the front */
        int at = r1 - back + j;
        const float *from = at >= r0 ? cpu_row(d, o->in[0], at) : state + (size_t)(at - r0 + back) * (size_t)width;
        memmove(state + (size_t)j * (size_t)width + c0, from + c0, (size_t)(c1 - c0) * 4);
    }
}

void cpu_conv(const cpu_ctx *c)
{
    int64_t c0, c1;
    cpu_share_outputs(c, c->d->plan->values[c->op->out].width, &c0, &c1);
    for (int run = 0; run < c->d->n_runs && c0 < c1; run++)
        conv_run(c, c->d->runs[run], c->d->runs[run + 1], (int)c0, (int)c1);
}

/* ---- gated delta rule ---- */

/* x / sqrt(sum x^2 + 1e-6), times factor. */
static void unit_vector(float *y, const float *x, int n, float factor)
{
    float lane[32] = {0};
    for (int i = 0; i < n; i++) lane[i % 32] = cb_fma(x[i], x[i], lane[i % 32]);
    float inv = 1.0f / sqrtf(cb_lane_fold32(lane) + 1e-6f);
    for (int i = 0; i < n; i++) y[i] = (x[i] * inv) * factor;
}

enum { V_UNIT = 32, MAX_HEAD = 512 };

/* Rows v0..v1 of value head `head` for the rows of one run. */
static void delta_run(const cpu_ctx *c, int r0, int r1, int head, int v0, int v1)
{
    const cb_dev *d = c->d;
    const cb_op *o = c->op;
    int hk = o->n[1], hv = o->n[2], dk = o->n[3], dv = o->n[4], kh = head / (hv / hk);
    float *S = rec_state(d, o->n[0], r0) + ((size_t)head * (size_t)dv + (size_t)v0) * (size_t)dk;
    float q[MAX_HEAD], k[MAX_HEAD];
    float rate = cb_expf(d->weights[o->w[0]].vector[head]), bias = d->weights[o->w[1]].vector[head];
    float root = 1.0f / sqrtf((float)dk);
    if (d->batch->pos[r0] == 0) memset(S, 0, (size_t)(v1 - v0) * (size_t)dk * 4);
    for (int r = r0; r < r1; r++) {
        const float *u = cpu_row(d, o->in[0], r);
        unit_vector(q, u + kh * dk, dk, root);
        unit_vector(k, u + (hk + kh) * dk, dk, 1.0f);
        float decay = cb_expf(-(rate * cb_softplusf(cpu_row(d, o->in[1], r)[head] + bias)));
        float beta = cb_sigmoidf(cpu_row(d, o->in[2], r)[head]);
        d->k.delta_step(S, q, k, u + 2 * hk * dk + head * dv + v0, decay, beta, dk, v1 - v0,
                        cpu_row(d, o->out, r) + head * dv + v0);
    }
}

void cpu_delta(const cpu_ctx *c)
{
    const cb_op *o = c->op;
    int dv = o->n[4], per = (dv + V_UNIT - 1) / V_UNIT;
    int64_t u0, u1;
    cpu_share(c, (int64_t)o->n[2] * per, &u0, &u1);
    for (int run = 0; run < c->d->n_runs; run++)
        for (int u = (int)u0; u < u1; u++) {
            int v0 = u % per * V_UNIT, v1 = v0 + V_UNIT < dv ? v0 + V_UNIT : dv;
            delta_run(c, c->d->runs[run], c->d->runs[run + 1], u / per, v0, v1);
        }
}

/* ---- experts ---- */

/* The k largest logits by insertion, ties to the lower id. */
static void top_k(const float *z, int n, int k, int32_t *ids)
{
    int have = 0;
    for (int e = 0; e < n; e++) {
        int at = have < k ? have++ : k;
        while (at > 0 && z[e] > z[ids[at - 1]]) at--;
        if (at == k) continue;
        memmove(ids + at + 1, ids + at, (size_t)(have - 1 - at) * 4);
        ids[at] = e;
    }
}

void cpu_route(const cpu_ctx *c, int row)
{
    const cb_dev *d = c->d;
    const cb_op *o = c->op;
    int n = o->n[0], k = o->n[1];
    const float *z = cpu_row(d, o->in[0], row);
    int32_t *ids = (int32_t *)cpu_row(d, o->out, row);
    float *w = cpu_row(d, o->out, row) + k, lane[32] = {0}, sum = 0;
    if (!d->k.all_finite(z, n)) {
        cpu_report_bad(c);
        for (int i = 0; i < k; i++) ids[i] = i, w[i] = 0; /* a NaN must not become an index */
        return;
    }
    top_k(z, n, k, ids);
    float m = z[ids[0]];
    if (o->n[2] == CB_ROUTE_SOFTMAX_ALL) {
        for (int e = 0; e < n; e++) lane[e % 32] += cb_expf(z[e] - m);
        float all = cb_lane_fold32(lane);
        for (int i = 0; i < k; i++) w[i] = cb_expf(z[ids[i]] - m) / all;
    } else
        for (int i = 0; i < k; i++) w[i] = cb_expf(z[ids[i]] - m);
    for (int i = 0; i < k; i++) sum += w[i];
    const float *scale = o->w[0] >= 0 ? d->weights[o->w[0]].vector : NULL;
    for (int i = 0; i < k; i++) {
        w[i] = w[i] / sum;
        if (scale) w[i] *= scale[ids[i]];
    }
}

/* Counting sort by expert, slots ascending within one: out is [n] slots, then [n] their rows. */
void cpu_moe_sort(const cpu_ctx *c)
{
    if (c->member != 0) return;
    cb_dev *d = c->d;
    const cb_op *o = c->op;
    int E = o->n[0], k = o->n[1], rows = cpu_rows(d, o->in[0]), n = rows * k;
    int32_t *at = d->expert_at, *slots = cpu_value(d, o->out), *row_of = slots + n;
    memset(at, 0, (size_t)(E + 1) * 4);
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < k; i++) at[((const int32_t *)cpu_row(d, o->in[0], r))[i] + 1]++;
    for (int e = 0; e < E; e++) at[e + 1] += at[e];
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < k; i++) {
            int to = at[((const int32_t *)cpu_row(d, o->in[0], r))[i]]++;
            slots[to] = r * k + i;
            row_of[to] = r;
        }
    for (int e = E; e > 0; e--) at[e] = at[e - 1];
    at[0] = 0;
}

void cpu_moe_linear(const cpu_ctx *c)
{
    const cb_dev *d = c->d;
    const cb_op *o = c->op;
    const cb_matrix *m = &d->plan->weights[o->w[0]].matrix;
    int n = cpu_rows(d, o->out);
    const int32_t *slots = cpu_value(d, o->in[1]), *row_of = slots + n;
    cb_mm base = d->weights[o->w[0]].mm;
    base.x = cpu_planes(d, o->in[0]);
    base.y = cpu_value(d, o->out);
    base.y_stride = cpu_stride(d, o->out);
    int64_t n0, n1;
    cpu_share_outputs(c, m->rows, &n0, &n1);
    for (int64_t e = 0; e < m->stack && n0 < n1; e++) {
        int from = d->expert_at[e], to = d->expert_at[e + 1];
        if (from == to) continue;
        cb_mm mm = base;
        int64_t first = mm.fmt == CB_FMT_PLANES ? e * m->rows : cb_matrix_row(m, e, 0);
        mm.codes += (size_t)first * mm.row_bytes;
        mm.scales += (size_t)first * (size_t)mm.n_groups * cb_scale_size(mm.scale_type);
        if (mm.biases) mm.biases += (size_t)first * (size_t)mm.n_groups * cb_scale_size(mm.scale_type);
        mm.n_rows = to - from;
        mm.x_row = (o->n[0] ? slots : row_of) + from;
        mm.y_row = slots + from;
        d->k.linear(&mm, n0, n1, c->scratch);
    }
}

void cpu_moe_sum(const cpu_ctx *c, int row)
{
    const cb_dev *d = c->d;
    const cb_op *o = c->op;
    int k = o->n[0], n = d->plan->values[o->out].width;
    const float *w = cpu_row(d, o->in[1], row) + k;
    float *acc = cpu_row(d, o->out, row);
    memset(acc, 0, (size_t)n * 4);
    for (int i = 0; i < k; i++) d->k.axpy(acc, w[i], cpu_row(d, o->in[0], row * k + i), n);
}
