/* attention.c: KV cache writes, and attention over KV blocks of 64 tokens aligned to absolute positions. Each block's
 * result depends on the row and the block alone, and blocks merge in ascending order, so how rows are grouped and how a
 * context is shared among threads changes nothing (docs/arithmetic.md, "attention"). */
#include "cpu/cpu.h"
#include <string.h>

static cb_kv_view view(const cb_dev *d, int state, int32_t block, int head)
{
    const cb_kv_state *s = &d->plan->kv[state];
    uint8_t *p = d->kv[state].base + ((size_t)block * (size_t)s->n_heads + (size_t)head) * d->kv[state].head_bytes;
    size_t half = (size_t)CB_KV_BLOCK * (size_t)s->dim;
    cb_kv_view v = {.k = (int16_t *)p, .v = (int16_t *)p + half, .dk = (float *)((int16_t *)p + 2 * half)};
    v.dv = v.dk + cb_head_parts(s->dim) * CB_KV_BLOCK;
    return v;
}

static int32_t block_of(const cb_dev *d, int state, int slot, int pos)
{
    return d->batch->kv[d->plan->kv[state].group][slot][pos / CB_KV_BLOCK];
}

/* ---- writing ---- */

static void put_row(const cpu_ctx *c, int row)
{
    const cb_dev *d = c->d;
    int state = c->op->n[0], pos = d->batch->pos[row], t = pos % CB_KV_BLOCK;
    const cb_kv_state *s = &d->plan->kv[state];
    const float *k = cpu_row(d, c->op->in[0], row), *v = cpu_row(d, c->op->in[1], row);
    int32_t block = block_of(d, state, d->batch->slot[row], pos);
    int16_t *xi = (int16_t *)c->scratch;
    for (int h = 0; h < s->n_heads; h++) {
        cb_kv_view to = view(d, state, block, h);
        /* The pool is ours to write; the view is const for the kernels. */
        int16_t *kk = (int16_t *)(uintptr_t)to.k, *vv = (int16_t *)(uintptr_t)to.v;
        for (int g = 0; g < cb_head_parts(s->dim); g++) {
            int n = s->dim - 64 * g < 64 ? s->dim - 64 * g : 64;
            ((float *)(uintptr_t)to.dk)[g * CB_KV_BLOCK + t] = d->k.quant16(k + h * s->dim + 64 * g, n, xi + 64 * g);
        }
        for (int i = 0; i < s->dim; i += 2) memcpy(kk + ((size_t)(i / 2) * CB_KV_BLOCK + (size_t)t) * 2, xi + i, 4);
        ((float *)(uintptr_t)to.dv)[t] = d->k.quant16(v + h * s->dim, s->dim, xi);
        int16_t *col = vv + (size_t)(t / 2) * (size_t)s->dim * 2 + t % 2;
        for (int i = 0; i < s->dim; i++) col[2 * i] = xi[i];
    }
}

void cpu_kv_put(const cpu_ctx *c)
{
    int64_t r0, r1;
    cpu_share(c, c->d->batch->n_rows, &r0, &r1);
    for (int r = (int)r0; r < r1; r++) {
        const cb_kv_state *s = &c->d->plan->kv[c->op->n[0]];
        /* quant16 hides NaN: look before */
        if (!c->d->k.all_finite(cpu_row(c->d, c->op->in[0], r), s->n_heads * s->dim) ||
            !c->d->k.all_finite(cpu_row(c->d, c->op->in[1], r), s->n_heads * s->dim))
            cpu_report_bad(c);
        put_row(c, r);
    }
}

/* ---- reading ---- */

/* Up to CPU_ATTN_ROWS consecutive rows of one session times the query heads of one KV head. */
typedef struct unit {
    int row0, n_rows, head, n_q, per_head;
    int16_t *qh, *ql;          /* [n_q][dim] */
    float *dqs;                /* [n_q][parts] */
    float *m, *l, *o;          /* running results */
    int16_t *bh, *bl;          /* queries that see the current block, packed */
    float *bdq, *bm, *bl_sum, *bo;
    int32_t *lo, *hi, *who;
} unit;

static size_t carve(size_t *at, size_t bytes)
{
    size_t p = *at;
    *at += (bytes + 63) & ~(size_t)63;
    return p;
}

static size_t lay_out(unit *u, uint8_t *base, int n_q, int dim)
{
    size_t at = 0, q = (size_t)n_q, qd = q * (size_t)dim;
    u->qh = (int16_t *)(base + carve(&at, qd * 2));
    u->ql = (int16_t *)(base + carve(&at, qd * 2));
    u->bh = (int16_t *)(base + carve(&at, qd * 2));
    u->bl = (int16_t *)(base + carve(&at, qd * 2));
    u->o = (float *)(base + carve(&at, qd * 4));
    u->bo = (float *)(base + carve(&at, qd * 4));
    u->dqs = (float *)(base + carve(&at, q * (size_t)cb_head_parts(dim) * 4));
    u->bdq = (float *)(base + carve(&at, q * (size_t)cb_head_parts(dim) * 4));
    float **f[] = {&u->m, &u->l, &u->bm, &u->bl_sum};
    for (size_t i = 0; i < sizeof f / sizeof *f; i++) *f[i] = (float *)(base + carve(&at, q * 4));
    int32_t **n[] = {&u->lo, &u->hi, &u->who};
    for (size_t i = 0; i < sizeof n / sizeof *n; i++) *n[i] = (int32_t *)(base + carve(&at, q * 4));
    return at;
}

static int rows_per_unit(int per_head)
{
    int r = CPU_ATTN_QUERIES / per_head;
    return r < 1 ? 1 : r > CPU_ATTN_ROWS ? CPU_ATTN_ROWS : r;
}

size_t cpu_attention_scratch(const cb_plan *p)
{
    size_t most = 0;
    for (int i = 0; i < p->n_ops; i++) {
        if (p->ops[i].kind != CB_ATTENTION) continue;
        const cb_kv_state *s = &p->kv[p->ops[i].n[0]];
        int per = p->ops[i].n[1] / s->n_heads;
        unit u;
        size_t n = lay_out(&u, NULL, per * rows_per_unit(per), s->dim);
        if (n > most) most = n;
    }
    return most;
}

static void load_queries(const cpu_ctx *c, unit *u)
{
    const cb_dev *d = c->d;
    int dim = d->plan->kv[c->op->n[0]].dim, parts = cb_head_parts(dim);
    for (int i = 0; i < u->n_q; i++) {
        const float *q = cpu_row(d, c->op->in[0], u->row0 + i / u->per_head) + (u->head * u->per_head + i % u->per_head) * dim;
        int16_t *h = u->qh + (size_t)i * (size_t)dim, *l = u->ql + (size_t)i * (size_t)dim;
        if (!d->k.all_finite(q, dim)) cpu_report_bad(c);
        for (int g = 0; g < parts; g++) {
            int n = dim - 64 * g < 64 ? dim - 64 * g : 64;
            u->dqs[i * parts + g] = d->k.quant16(q + 64 * g, n, h + 64 * g) * c->op->f[0];
        }
        d->k.split16(h, l, h, dim);
    }
}

/* Runs the queries that see block `b`; results stand packed in bm, bl_sum, bo, and who[] says whose they are. */
static int run_block(const cpu_ctx *c, unit *u, int b)
{
    const cb_dev *d = c->d;
    int state = c->op->n[0], dim = d->plan->kv[state].dim, window = d->plan->kv[state].window, parts = cb_head_parts(dim), n = 0;
    for (int i = 0; i < u->n_q; i++) {
        int pos = d->batch->pos[u->row0 + i / u->per_head];
        int first = window && pos - window + 1 > 0 ? pos - window + 1 : 0;
        int lo = first - b * CB_KV_BLOCK, hi = pos + 1 - b * CB_KV_BLOCK;
        lo = lo < 0 ? 0 : lo;
        hi = hi > CB_KV_BLOCK ? CB_KV_BLOCK : hi;
        if (lo >= hi) continue;
        u->lo[n] = lo;
        u->hi[n] = hi;
        memcpy(u->bdq + n * parts, u->dqs + i * parts, (size_t)parts * 4);
        u->who[n++] = i;
    }
    if (!n) return 0;
    bool all = n == u->n_q;
    for (int i = 0; i < n && !all; i++) {
        memcpy(u->bh + (size_t)i * (size_t)dim, u->qh + (size_t)u->who[i] * (size_t)dim, (size_t)dim * 2);
        memcpy(u->bl + (size_t)i * (size_t)dim, u->ql + (size_t)u->who[i] * (size_t)dim, (size_t)dim * 2);
    }
    int32_t block = block_of(d, state, d->batch->slot[u->row0], b * CB_KV_BLOCK);
    cb_attn a = {.dim = dim, .n_q = n, .qh = all ? u->qh : u->bh, .ql = all ? u->ql : u->bl, .dqs = u->bdq, .lo = u->lo, .hi = u->hi,
                 .kv = view(d, state, block, u->head), .m = u->bm, .l = u->bl_sum, .o = u->bo};
    d->k.attn_block(&a);
    return n;
}

/* The first block of a row's row0 that any of its rows sees, and one past the last. */
static void block_range(const cpu_ctx *c, const unit *u, int *b0, int *b1)
{
    const cb_dev *d = c->d;
    int window = d->plan->kv[c->op->n[0]].window, p0 = d->batch->pos[u->row0], p1 = d->batch->pos[u->row0 + u->n_rows - 1];
    *b0 = window && p0 - window + 1 > 0 ? (p0 - window + 1) / CB_KV_BLOCK : 0;
    *b1 = p1 / CB_KV_BLOCK + 1;
}

static void store_outputs(const cpu_ctx *c, const unit *u, const float *o, const float *l)
{
    const cb_dev *d = c->d;
    int dim = d->plan->kv[c->op->n[0]].dim;
    for (int i = 0; i < u->n_q; i++) {
        float *y = cpu_row(d, c->op->out, u->row0 + i / u->per_head) + (u->head * u->per_head + i % u->per_head) * dim;
        d->k.divide(y, o + (size_t)i * (size_t)dim, l[i], dim);
    }
}

static void whole_unit(const cpu_ctx *c, unit *u)
{
    const cb_dev *d = c->d;
    int dim = d->plan->kv[c->op->n[0]].dim, b0, b1;
    load_queries(c, u);
    block_range(c, u, &b0, &b1);
    for (int i = 0; i < u->n_q; i++) u->l[i] = -1; /* nothing merged yet */
    for (int b = b0; b < b1; b++) {
        int n = run_block(c, u, b);
        for (int i = 0; i < n; i++) {
            int q = u->who[i];
            float *o = u->o + (size_t)q * (size_t)dim;
            const float *bo = u->bo + (size_t)i * (size_t)dim;
            if (u->l[q] < 0) {
                u->m[q] = u->bm[i];
                u->l[q] = u->bl_sum[i];
                memcpy(o, bo, (size_t)dim * 4);
            } else
                d->k.attn_merge(&u->m[q], &u->l[q], o, u->bm[i], u->bl_sum[i], bo, dim);
        }
    }
    store_outputs(c, u, u->o, u->l);
}

/* ---- units ---- */

void cpu_find_runs(cb_dev *d, const cb_batch *b)
{
    int n = 0, most = 0;
    for (int r = 0; r < b->n_rows; r++) {
        if (r == 0 || b->slot[r] != b->slot[r - 1] || b->pos[r] != b->pos[r - 1] + 1) d->runs[n++] = r;
        if (b->pos[r] / CB_KV_BLOCK + 1 > most) most = b->pos[r] / CB_KV_BLOCK + 1;
    }
    d->runs[n] = b->n_rows;
    d->n_runs = n;
    d->split_units = d->split_blocks = 0;
    if (b->n_rows <= 2 && most >= 8 && cb_pool_size(d->pool) > 1) {
        d->split_units = b->n_rows;
        d->split_blocks = most;
    }
}

static unit unit_at(const cpu_ctx *c, int row0, int n_rows, int head)
{
    const cb_kv_state *s = &c->d->plan->kv[c->op->n[0]];
    unit u = {.row0 = row0, .n_rows = n_rows, .head = head, .per_head = c->op->n[1] / s->n_heads};
    u.n_q = u.per_head * n_rows;
    lay_out(&u, c->scratch, u.n_q, s->dim);
    return u;
}

/* Where block result (row, head, block) stands in split[]: per query m, l, o[dim]. NULL when it does not fit. */
static float *split_at(const cpu_ctx *c, int row, int head, int block)
{
    const cb_dev *d = c->d;
    const cb_kv_state *s = &d->plan->kv[c->op->n[0]];
    size_t per = (size_t)(c->op->n[1] / s->n_heads) * (size_t)(s->dim + 2);
    size_t i = ((size_t)row * (size_t)s->n_heads + (size_t)head) * (size_t)d->split_blocks + (size_t)block;
    size_t all = (size_t)d->batch->n_rows * (size_t)s->n_heads * (size_t)d->split_blocks;
    return all * per <= d->split_floats ? d->split + i * per : NULL;
}

static void split_blocks(const cpu_ctx *c)
{
    const cb_dev *d = c->d;
    const cb_kv_state *s = &d->plan->kv[c->op->n[0]];
    for (int row = 0; row < d->batch->n_rows; row++)
        for (int head = 0; head < s->n_heads; head++) {
            unit u = unit_at(c, row, 1, head);
            int b0, b1;
            block_range(c, &u, &b0, &b1);
            int64_t from, to;
            cpu_share(c, b1 - b0, &from, &to);
            if (from < to) load_queries(c, &u);
            for (int b = b0 + (int)from; b < b0 + to; b++) {
                run_block(c, &u, b);
                float *out = split_at(c, row, head, b);
                for (int i = 0; i < u.n_q; i++, out += s->dim + 2) {
                    out[0] = u.bm[i];
                    out[1] = u.bl_sum[i];
                    memcpy(out + 2, u.bo + (size_t)i * (size_t)s->dim, (size_t)s->dim * 4);
                }
            }
        }
}

void cpu_attention_merge(const cpu_ctx *c)
{
    const cb_dev *d = c->d;
    const cb_kv_state *s = &d->plan->kv[c->op->n[0]];
    if (!split_at(c, 0, 0, 0)) return;
    for (int w = c->member; w < d->batch->n_rows * s->n_heads; w += c->n_members) {
        unit u = unit_at(c, w / s->n_heads, 1, w % s->n_heads);
        int b0, b1;
        block_range(c, &u, &b0, &b1);
        for (int b = b0; b < b1; b++) {
            const float *in = split_at(c, u.row0, u.head, b);
            for (int i = 0; i < u.n_q; i++, in += s->dim + 2) {
                float *o = u.o + (size_t)i * (size_t)s->dim;
                if (b == b0) {
                    u.m[i] = in[0];
                    u.l[i] = in[1];
                    memcpy(o, in + 2, (size_t)s->dim * 4);
                } else
                    d->k.attn_merge(&u.m[i], &u.l[i], o, in[0], in[1], in + 2, s->dim);
            }
        }
        store_outputs(c, &u, u.o, u.l);
    }
}

void cpu_attention(const cpu_ctx *c)
{
    const cb_dev *d = c->d;
    const cb_kv_state *s = &d->plan->kv[c->op->n[0]];
    int per = rows_per_unit(c->op->n[1] / s->n_heads), at = 0;
    if (d->split_units && split_at(c, 0, 0, 0)) {
        split_blocks(c);
        return;
    }
    /* Units are dealt in turn: later rows see more keys, so neighbours cost about the same. */
    for (int run = 0; run < d->n_runs; run++)
        for (int r = d->runs[run]; r < d->runs[run + 1]; r += per)
            for (int head = 0; head < s->n_heads; head++, at++) {
                if (at % c->n_members != c->member) continue;
                int n = d->runs[run + 1] - r < per ? d->runs[run + 1] - r : per;
                unit u = unit_at(c, r, n, head);
                whole_unit(c, &u);
            }
}
