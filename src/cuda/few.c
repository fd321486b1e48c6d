/* few.c: which row-wise launches rows_few.cu can run, and its arguments. A chain is a list of ops of one width, each of which takes what the
 * one before left in registers, or values that stand in memory before the launch, or what an earlier op of the chain left at a place in
 * shared memory. Ops that have nothing to do with the chain are done by a thread block of their own. */
#include "cuda/few.h"
#include "cuda/lower.h"
#include "plan/layout.h"
#include <math.h>

enum { MOST_PLACES = 1 << 14, MOST_TOUCHED = 32 };

typedef struct maker {
    const cb_dev *d;
    const cb_plan *p;
    const int32_t *ops; /* all of the launch */
    int n;
    cu_rows_few *a;
    int made[CU_FEW_OPS], n_chain; /* plan ops of the chain */
    int threads, per;   /* elements a thread */
    int used;           /* shared memory, in units of 32 floats */
    cb_val now;         /* in registers; -1: nothing */
    cb_val at_value[CU_FEW_IN]; /* values and vectors that have a place */
    const float *at_vector[CU_FEW_IN];
    int16_t at[CU_FEW_IN];
    int n_at;
    cb_val read[MOST_TOUCHED], written[MOST_TOUCHED]; /* in memory */
    int n_read, n_written;
} maker;

static bool is_side(cb_op_kind k) { return k == CB_ROUTE || k == CB_ROPE_TABLE || k == CB_MOE_SORT; }

static bool power_of_two(int n) { return n > 0 && !(n & (n - 1)); }

/* ---- shapes ---- */

/* Is this op one of a chain whose rows have `width` elements? */
static bool knows(const maker *m, const cb_op *o, int width)
{
    if (o->out < 0) return false;
    const cb_value *v = &m->p->values[o->out];
    if (v->width != width || v->is_logits) return false;
    switch (o->kind) {
    case CB_RMSNORM: return o->n[0] == 1 && o->n[1] == width;
    case CB_HADAMARD: return power_of_two(o->n[0]) && o->n[0] >= 2 && o->n[0] <= 4096 && width % o->n[0] == 0;
    case CB_EMBED: case CB_GLU: case CB_ADD: case CB_ADD_GATED: case CB_SCALE: case CB_MOE_SUM: case CB_WANTED: return true;
    case CB_QUANT: return power_of_two(v->group) && v->group >= 16 && v->group <= 128 && (v->pack == 1 || v->pack == 2 || v->pack == 4);
    default: return false;
    }
}

/* Parts of a row: as few as have no more elements than a thread block takes, each with whole groups and blocks. 0: impossible. */
static int parts_of(const maker *m, int width)
{
    bool whole = false; /* an op needs the whole row at once */
    int unit = 16, n = 1;
    for (int i = 0; i < m->n_chain; i++) {
        const cb_op *o = &m->p->ops[m->made[i]];
        const cb_value *v = &m->p->values[o->out];
        whole |= o->kind == CB_RMSNORM;
        int u = o->kind == CB_HADAMARD ? o->n[0] : o->kind == CB_QUANT ? 64 * v->pack : 16;
        if (u > unit) unit = u; /* powers of two */
    }
    if (width <= CU_FEW_WIDTH) return width % 16 ? 0 : 1;
    while (n <= CU_FEW_PARTS && (width % n || width / n > CU_FEW_WIDTH || width / n % unit)) n++;
    return whole || n > CU_FEW_PARTS ? 0 : n;
}

static bool find_shape(maker *m)
{
    const cb_plan *p = m->p;
    int width = 0, padded;
    bool hadamard = false, quant = false;
    for (int i = 0; i < m->n; i++) {
        const cb_op *o = &p->ops[m->ops[i]];
        if (is_side(o->kind)) {
            m->a->side_mask |= 1u << i;
            continue;
        }
        if (m->n_chain == CU_FEW_OPS) return false;
        m->made[m->n_chain++] = m->ops[i];
        if (!width && o->out >= 0) width = p->values[o->out].width;
        if (!knows(m, o, width)) return false;
        hadamard |= o->kind == CB_HADAMARD;
        quant |= o->kind == CB_QUANT;
    }
    if (!m->n_chain || !(m->a->n_parts = parts_of(m, width))) return false;
    m->a->width = padded = width / m->a->n_parts;
    m->a->inverse = power_of_two(width) ? 1.0f / (float)width : 0;
    for (int i = 0; i < m->n_chain; i++) {
        const cb_value *v = &p->values[p->ops[m->made[i]].out];
        int whole = v->group ? (int)cb_plan_plane_stride(width / m->a->n_parts, v->pack) / 2 : 0;
        if (whole > padded) padded = whole;
    }
    m->per = hadamard ? 16 : 8;
    m->threads = (padded / m->per + 31) / 32 * 32;
    m->used = (m->threads * m->per + 511) / 512 * 16;
    return m->threads * m->per <= CU_FEW_WIDTH;
}

/* ---- places ---- */

/* Room for a vector, or for one number. */
static int16_t room(maker *m, bool one)
{
    int at = m->used;
    m->used += one ? 1 : m->threads * m->per / 32;
    return (int16_t)(m->used <= MOST_PLACES ? at : -1);
}

static bool remember(maker *m, cb_val v, const float *vector, int16_t at)
{
    if (at < 0 || m->n_at == CU_FEW_IN) return false;
    m->at_value[m->n_at] = v;
    m->at_vector[m->n_at] = vector;
    m->at[m->n_at++] = at;
    return true;
}

static bool bring(maker *m, const float *from, int stride, int kind, cb_val v, int16_t *at)
{
    if (m->a->n_in == CU_FEW_IN) return false;
    *at = room(m, kind == CU_IN_CONST_ONE || kind == CU_IN_ROW_ONE);
    m->a->in[m->a->n_in++] = (cu_few_in){.from = from, .stride = stride, .at = *at, .kind = (int16_t)kind};
    return remember(m, v, kind < CU_IN_ROW ? from : NULL, *at);
}

static bool has(const cb_val *list, int n, cb_val v)
{
    for (int i = 0; i < n; i++)
        if (list[i] == v) return true;
    return false;
}
static bool touch(cb_val *list, int *n, cb_val v)
{
    if (has(list, *n, v)) return true;
    if (*n == MOST_TOUCHED) return false;
    list[(*n)++] = v;
    return true;
}

/* Has an op of the chain before number k written v? */
static bool written_before(const maker *m, int k, cb_val v)
{
    for (int i = 0; i < k; i++)
        if (m->p->ops[m->made[i]].out == v) return true;
    return false;
}

/* A value that op number k reads, in shared memory. */
static bool input(maker *m, int k, cb_val v, bool one, bool wanted, int16_t *at)
{
    for (int i = m->n_at - 1; i >= 0 && v >= 0; i--)
        if (m->at_value[i] == v && !wanted) {
            *at = m->at[i];
            return true;
        }
    if (v < 0 || written_before(m, k, v)) return false;
    if (!touch(m->read, &m->n_read, v)) return false;
    return bring(m, cu_value(m->d, v), cu_stride(m->d, v), one ? CU_IN_ROW_ONE : wanted ? CU_IN_WANTED : CU_IN_ROW, v, at);
}

static bool constant(maker *m, int w, bool one, int16_t *at)
{
    *at = -1;
    if (w < 0) return true;
    for (int i = 0; i < m->n_at; i++)
        if (m->at_vector[i] == m->d->vectors[w]) {
            *at = m->at[i];
            return true;
        }
    return bring(m, m->d->vectors[w], 0, one ? CU_IN_CONST_ONE : CU_IN_CONST, -1, at);
}

/* ---- ops ---- */

/* Will an op behind number k of the chain read v from elsewhere than registers? */
static bool read_later(const maker *m, int k, cb_val v)
{
    cb_val now = v;
    for (int i = k + 1; i < m->n_chain; i++) {
        const cb_op *o = &m->p->ops[m->made[i]];
        bool first = true; /* one input may be in registers */
        for (int j = 0; j < CB_MAX_IN; j++) {
            if (o->in[j] != v) continue;
            if (now != v || !first) return true;
            first = false;
        }
        if (o->kind == CB_QUANT) continue;
        if (o->out == v) return false;
        now = o->out;
    }
    return false;
}

/* The input that should be in registers; what is not there is taken from its place first. */
static bool in_registers(maker *m, int k, cu_few_op *r, cb_val v, bool wanted)
{
    r->x = -1;
    if (v == m->now && !wanted) return true;
    m->now = v;
    return input(m, k, v, false, wanted, &r->x);
}

static bool same_squares(const maker *m, int k)
{
    const cb_op *o = &m->p->ops[m->made[k]];
    for (int i = k - 1; i >= 0; i--) {
        const cb_op *b = &m->p->ops[m->made[i]];
        if (b->out == o->in[0]) return false;
        if (b->kind == CB_RMSNORM) return b->in[0] == o->in[0] && b->f[0] == o->f[0];
    }
    return false;
}

static bool same_numbers(const maker *m, int k)
{
    const cb_op *o = &m->p->ops[m->made[k]], *b = k ? &m->p->ops[m->made[k - 1]] : NULL;
    if (!b || b->kind != CB_QUANT || b->in[0] != o->in[0] || b->f[0] != o->f[0]) return false;
    const cb_value *x = &m->p->values[o->out], *y = &m->p->values[b->out];
    return x->group == y->group && x->pair == y->pair && x->slots == y->slots;
}

static bool quant(maker *m, int k, cu_few_op *r)
{
    const cb_op *o = &m->p->ops[m->made[k]];
    r->n = same_numbers(m, k);
    r->f = o->f[0];
    if (r->f != 0 && r->f < 0x1p-20f) return false;
    r->u.q = cu_planes_of(m->d, o->out);
    if (!in_registers(m, k, r, o->in[0], false)) return false;
    if (m->a->n_parts == 1 || !r->u.q.flag) return true;
    if (!written_before(m, k, o->in[0])) return false; /* the last part looks for the row in memory */
    r->out = cu_value(m->d, o->in[0]);
    r->out_stride = cu_stride(m->d, o->in[0]);
    for (int i = 0; i < k; i++)
        if (m->p->ops[m->made[i]].out == o->in[0]) {
            m->a->o[i].out = r->out;
            m->a->o[i].out_stride = r->out_stride;
        }
    return touch(m->written, &m->n_written, o->in[0]);
}

static bool inputs(maker *m, int k, cu_few_op *r)
{
    const cb_op *o = &m->p->ops[m->made[k]];
    const cb_dev *d = m->d;
    switch (o->kind) {
    case CB_EMBED:
        r->u.embed = d->embed[o->w[0]];
        return k == 0 && m->a->n_parts == 1;
    case CB_WANTED: return k == 0 && in_registers(m, k, r, o->in[0], true);
    case CB_MOE_SUM:
        r->n = o->n[0];
        r->u.sum.y = cu_value(d, o->in[0]);
        r->u.sum.y_stride = cu_stride(d, o->in[0]);
        r->u.sum.route = cu_value(d, o->in[1]);
        r->u.sum.route_stride = cu_stride(d, o->in[1]);
        return !written_before(m, k, o->in[0]) && !written_before(m, k, o->in[1]) && touch(m->read, &m->n_read, o->in[0]) &&
               touch(m->read, &m->n_read, o->in[1]);
    case CB_RMSNORM:
        r->n = same_squares(m, k);
        return in_registers(m, k, r, o->in[0], false) && constant(m, o->w[0], false, &r->w);
    case CB_HADAMARD:
        r->n = o->n[0];
        r->m = o->n[1];
        return in_registers(m, k, r, o->in[0], false) && constant(m, o->w[0], false, &r->w);
    case CB_GLU:
        r->n = o->n[0];
        return in_registers(m, k, r, o->in[0], false) && input(m, k, o->in[1], false, false, &r->b);
    case CB_ADD: {
        bool swap = o->in[1] == m->now && o->in[0] != m->now;
        return in_registers(m, k, r, o->in[swap], false) && input(m, k, o->in[!swap], false, false, &r->b);
    }
    case CB_ADD_GATED:
        return in_registers(m, k, r, o->in[0], false) && input(m, k, o->in[1], true, false, &r->w) && input(m, k, o->in[2], false, false, &r->b);
    case CB_SCALE: return in_registers(m, k, r, o->in[0], false) && constant(m, o->w[0], true, &r->w);
    default: return false;
    }
}

static bool one_op(maker *m, int k)
{
    const cb_op *o = &m->p->ops[m->made[k]];
    cu_few_op *r = &m->a->o[k];
    *r = (cu_few_op){.kind = o->kind, .op = m->made[k], .x = -1, .b = -1, .w = -1, .keep = -1};
    r->f = o->kind == CB_HADAMARD ? (float)(1.0 / sqrt((double)o->n[0])) : o->f[0];
    if (o->kind == CB_QUANT) return quant(m, k, r) && touch(m->written, &m->n_written, o->out);
    if (!inputs(m, k, r)) return false;
    m->now = o->out;
    for (int i = 0; i < m->n_at; i++)
        if (m->at_value[i] == o->out) m->at_value[i] = -1; /* an older one */
    if (read_later(m, k, o->out) && !remember(m, o->out, NULL, r->keep = room(m, false))) return false;
    if (cu_is_local(m->p, m->ops, m->n, o->out)) return true;
    r->out = cu_value(m->d, o->out);
    r->out_stride = cu_stride(m->d, o->out);
    return touch(m->written, &m->n_written, o->out);
}

/* Threads do not wait for each other between ops, nor do parts: what is written must not stand where others read or write. */
static bool apart(const maker *m)
{
    for (int i = 0; i < m->n_written; i++) {
        cb_val v = m->written[i];
        for (int j = 0; j < m->n_read; j++)
            if (m->read[j] != v && cb_plan_share_memory(m->p, v, m->read[j])) return false;
        for (int j = 0; j < i; j++)
            if (cb_plan_share_memory(m->p, v, m->written[j])) return false;
    }
    for (int i = 0; i < m->n; i++)
        for (int k = 0; k < m->n_chain && m->a->side_mask >> i & 1; k++)
            if (cb_plan_ordered(m->p, &m->p->ops[m->ops[i]], &m->p->ops[m->made[k]])) return false;
    return true;
}

static bool make(maker *m, cu_few *f)
{
    if (!find_shape(m)) return false;
    for (int k = 0; k < m->n_chain; k++)
        if (!one_op(m, k)) return false;
    m->a->n_ops = m->n_chain;
    if (!apart(m) || m->used * 128 > m->d->max_shared - 8192 || m->used * 128 > CU_ROW_SHARED) return false;
    f->kernel = m->per == 8 ? CU_K_ROWS_FEW8 : CU_K_ROWS_FEW16;
    f->threads = m->threads;
    f->shared = m->used * 128;
    f->y = m->a->n_parts + (m->a->side_mask != 0);
    return true;
}

int cu_few_make(const cb_dev *d, const int32_t *ops, int n, const cu_row_op *table, cu_few **out, cb_err *err)
{
    *out = NULL;
    cu_few *f = cb_alloc_array(1, sizeof *f);
    if (!f) return cb_fail(err, CB_ENOMEM, "no memory for a launch");
    maker m = {.d = d, .p = d->plan, .ops = ops, .n = n, .a = &f->a, .now = -1};
    f->a.step = d->step;
    f->a.side = table;
    f->a.join = d->few_join;
    if (make(&m, f)) *out = f;
    else cb_free(f);
    return 0;
}
