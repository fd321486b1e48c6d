/* cost.c: what a step moves and computes at least: the numerators of a benchmark's shares. */
#include "run/engine.h"
#include <math.h>

typedef struct shape {
    double n_sequences, n_rows, depth, n_wanted; /* rows of one sequence */
} shape;

/* Rows that an op works on. */
static double rows_of(const cb_plan *p, const cb_op *o, const shape *s)
{
    bool wanted = p->values[o->out >= 0 ? o->out : o->in[0]].wanted;
    return wanted ? s->n_wanted : s->n_sequences * s->n_rows;
}

/* Sum over a sequence's rows of the tokens that each sees. */
static double pairs(const shape *s, int window)
{
    double first = s->depth + 1, last = s->depth + s->n_rows;
    if (!window || last <= window) return s->n_rows * (first + last) / 2;
    if (first >= window) return s->n_rows * window;
    double growing = window - first;
    return growing * (first + window - 1) / 2 + (s->n_rows - growing) * window;
}

static double op_bytes(const cb_plan *p, const cb_op *o, const shape *s)
{
    double rows = rows_of(p, o, s), all = (double)cb_op_bytes(p, o);
    if (o->w[0] < 0 || rows == 0) return 0;
    const cb_matrix *m = &p->weights[o->w[0]].matrix;
    if (o->kind == CB_EMBED) return rows * (double)m->bytes / (double)m->rows;
    if (o->kind != CB_MOE_LINEAR) return all;
    double stack = (double)m->stack;
    return (double)m->bytes * (1 - pow(1 - o->n[1] / stack, rows));
}

static double op_flops(const cb_plan *p, const cb_op *o, const shape *s)
{
    double rows = rows_of(p, o, s);
    switch (o->kind) {
    case CB_ATTENTION: {
        const cb_kv_state *kv = &p->kv[o->n[0]];
        return s->n_sequences * pairs(s, kv->window) * 4 * o->n[1] * kv->dim; /* scores, then the sum of values */
    }
    case CB_DELTA: return rows * 6.0 * o->n[2] * o->n[3] * o->n[4]; /* state times key, its update, state times query */
    case CB_CONV: return rows * 2.0 * o->n[1] * p->values[o->out].width;
    default: return rows * (double)cb_op_flops(p, o);
    }
}

/* Two layers that share a cache read it twice. */
static double kv_bytes(const cb_kv_state *kv, const shape *s)
{
    double seen = s->depth + s->n_rows;
    if (kv->window && seen > kv->window + s->n_rows - 1) seen = kv->window + s->n_rows - 1;
    return s->n_sequences * seen * (double)cb_kv_block_bytes(kv) / 64;
}

void cb_engine_cost(const cb_engine *e, int n_sequences, int n_rows, int depth, int n_wanted, cb_cost *out)
{
    const cb_plan *p = e->plan;
    shape s = {n_sequences, n_rows, depth, n_wanted};
    *out = (cb_cost){0};
    for (int i = 0; i < p->n_ops; i++) {
        out->weight_bytes += op_bytes(p, &p->ops[i], &s);
        out->flops += op_flops(p, &p->ops[i], &s);
        if (p->ops[i].kind == CB_ATTENTION) out->state_bytes += kv_bytes(&p->kv[p->ops[i].n[0]], &s);
    }
    for (int i = 0; i < p->n_rec; i++) out->state_bytes += s.n_sequences * 2 * 4 * (double)p->rec[i].floats;
}
