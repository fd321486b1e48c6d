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

/* A thread's share: value columns v0..v1 of heads h0..h1-1 laid end to end, so the first and the last head may be partial. Rows go
 * by in chunks: what all heads need of them is computed once, then 32 rows of S (16 kB at 128 dims) stay in L1 for the chunk. */
enum { V_UNIT = 32, DELTA_ROWS = 16 };

typedef struct delta_part {
    const cpu_ctx *c;
    int hk, hv, dk, dv;
    int64_t v0, v1;
    float *state;        /* of the session */
    float *q, *k;        /* [DELTA_ROWS][dk]: of one key head */
    float *decay, *beta; /* [DELTA_ROWS][hv] */
} delta_part;

size_t cpu_delta_scratch(const cb_op *o) { return (size_t)DELTA_ROWS * 2 * (size_t)(o->n[2] + o->n[3]) * 4; }

/* One value head, rows r0 .. r0+n-1. */
static void delta_head(const delta_part *p, int head, int r0, int n)
{
    const cb_dev *d = p->c->d;
    const cb_op *o = p->c->op;
    int64_t first = (int64_t)head * p->dv;
    int from = p->v0 > first ? (int)(p->v0 - first) : 0, to = p->v1 < first + p->dv ? (int)(p->v1 - first) : p->dv;
    for (int v = from; v < to; v += V_UNIT) {
        int n_v = to - v < V_UNIT ? to - v : V_UNIT;
        float *S = p->state + (size_t)(first + v) * (size_t)p->dk;
        if (d->batch->pos[r0] == 0) memset(S, 0, (size_t)n_v * (size_t)p->dk * 4);
        for (int i = 0; i < n; i++)
            d->k.delta_step(S, p->q + i * p->dk, p->k + i * p->dk, cpu_row(d, o->in[0], r0 + i) + 2 * p->hk * p->dk + first + v,
                            p->decay[i * p->hv + head], p->beta[i * p->hv + head], p->dk, n_v, cpu_row(d, o->out, r0 + i) + first + v);
    }
}

static void delta_rows(const delta_part *p, int r0, int n)
{
    const cb_dev *d = p->c->d;
    const cb_op *o = p->c->op;
    int h0 = (int)(p->v0 / p->dv), h1 = (int)((p->v1 + p->dv - 1) / p->dv), per = p->hv / p->hk;
    float root = 1.0f / sqrtf((float)p->dk);
    for (int i = 0; i < n; i++)
        d->k.delta_gates(p->decay + i * p->hv + h0, p->beta + i * p->hv + h0, cpu_row(d, o->in[1], r0 + i) + h0,
                         cpu_row(d, o->in[2], r0 + i) + h0, d->weights[o->w[0]].vector + h0, d->weights[o->w[1]].vector + h0, h1 - h0);
    for (int h = h0; h < h1; h++) {
        if (h == h0 || h % per == 0)
            for (int i = 0; i < n; i++) {
                const float *u = cpu_row(d, o->in[0], r0 + i) + h / per * p->dk;
                d->k.unit(p->q + i * p->dk, u, p->dk, 1e-6f, root);
                d->k.unit(p->k + i * p->dk, u + p->hk * p->dk, p->dk, 1e-6f, 1.0f);
            }
        delta_head(p, h, r0, n);
    }
}

void cpu_delta(const cpu_ctx *c)
{
    const cb_op *o = c->op;
    const cb_dev *d = c->d;
    delta_part p = {.c = c, .hk = o->n[1], .hv = o->n[2], .dk = o->n[3], .dv = o->n[4], .q = (float *)c->scratch};
    p.k = p.q + DELTA_ROWS * p.dk;
    p.decay = p.k + DELTA_ROWS * p.dk;
    p.beta = p.decay + DELTA_ROWS * p.hv;
    cpu_share_outputs(c, (int64_t)p.hv * p.dv, &p.v0, &p.v1);
    for (int run = 0; run < d->n_runs && p.v0 < p.v1; run++) {
        int end = d->runs[run + 1];
        p.state = rec_state(d, o->n[0], d->runs[run]);
        for (int r = d->runs[run]; r < end; r += DELTA_ROWS) delta_rows(&p, r, end - r < DELTA_ROWS ? end - r : DELTA_ROWS);
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
    float *w = cpu_row(d, o->out, row) + k, sum = 0, *all = (float *)c->scratch;
    if (!d->k.all_finite(z, n)) {
        cpu_report_bad(c);
        for (int i = 0; i < k; i++) ids[i] = i, w[i] = 0; /* a NaN must not become an index */
        return;
    }
    top_k(z, n, k, ids);
    float m = z[ids[0]];
    if (o->n[2] == CB_ROUTE_SOFTMAX_ALL) {
        float total = d->k.exp_sum(all, z, m, n);
        for (int i = 0; i < k; i++) w[i] = all[ids[i]] / total;
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
        if (mm.codes) mm.codes += (size_t)first * mm.row_bytes;
        if (mm.scales) mm.scales += (size_t)first * (size_t)mm.n_groups * cb_scale_size(mm.scale_type);
        if (mm.biases) mm.biases += (size_t)first * (size_t)mm.n_groups * cb_scale_size(mm.scale_type);
        mm.n_rows = to - from;
        mm.x_row = (o->n[0] ? slots : row_of) + from;
        mm.y_row = slots + from;
        cpu_product(c, &mm, e, n0, n1);
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
