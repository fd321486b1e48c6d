/* few.c: which row-wise launches rows_few.cu can run, and its arguments. A chain is a list of ops of one width, each of which takes what the
 * one before left in registers, values that stand in memory before the launch, and what an earlier op of the chain left at a place in
 * shared memory. Ops that have nothing to do with the chain are done by a thread block of their own. */
#include "cuda/few.h"
#include "cuda/lower.h"
#include "plan/layout.h"
#include <math.h>
#include <string.h>

enum { MOST_TOUCHED = 32 };

/* A value in memory, and the op of the chain that reads it last or writes it first. */
typedef struct touched {
    cb_val v;
    int op;
} touched;

typedef struct maker {
    const cb_dev *d;
    const cb_plan *p;
    const int32_t *ops; /* all of the launch */
    int n;
    bool cluster;        /* for row_clusters.cu */
    cu_rows_few *a;
    int made[CU_FEW_OPS], n_chain; /* plan ops of the chain */
    int side[CU_MAX_ROW_OPS], n_side; /* and those beside it */
    int threads, per;   /* elements a thread */
    int padded;         /* elements of a part with what the planes add */
    int used;           /* shared memory, in units of 32 floats */
    cb_val now;         /* in registers; -1: nothing */
    cb_val wanted, wanted_in; /* a value that is the wanted rows of another; -1: none */
    cb_val kept[CU_FEW_OPS]; /* values at places in shared memory */
    int16_t at[CU_FEW_OPS];
    int n_kept;
    touched read[MOST_TOUCHED], written[MOST_TOUCHED]; /* in memory */
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
    case CB_EMBED: case CB_GLU: case CB_ADD: case CB_ADD_GATED: case CB_SCALE: case CB_MOE_SUM: return true;
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

/* Elements of a part of the only row, for a cluster: two parts or more, of four warps or more (row_clusters.cu has work for two at once), up to four of
 * which may share Hadamard blocks. 0: impossible. */
static int cluster_part(const maker *m, int width)
{
    if (width % 16) return 0;
    int least = width > CU_CLUSTER_WIDTH ? (width + 256 * CU_CLUSTER_MOST - 1) / (256 * CU_CLUSTER_MOST) * 256 : CU_CLUSTER_WIDTH / 4;
    for (int part = least; part <= CU_CLUSTER_PART && part < width; part += 256) { /* a cluster of one is none to compute-sanitizer */
        bool fits = true;
        for (int i = 0; i < m->n_chain; i++) {
            const cb_op *o = &m->p->ops[m->made[i]];
            int block = o->n[0];
            if (o->kind == CB_RMSNORM) fits &= width <= CU_CLUSTER_WIDTH;
            if (o->kind == CB_HADAMARD) fits &= block >= 256 && (block > part ? block % part == 0 && block / part <= 4 : part % block == 0);
        }
        if (fits) return part;
    }
    return 0;
}

/* A route, and behind it the sort of its single row. */
static bool find_route(maker *m, const cb_op *o, int index)
{
    cu_route *r = &m->a->route;
    const cb_dev *d = m->d;
    if (o->kind == CB_MOE_SORT) {
        if (!m->a->has_route || cu_value(d, o->in[0]) != r->y) return false;
        int32_t *slots = cu_value(d, o->out);
        r->slots = slots;
        r->rows = slots + o->n[1]; /* of one row */
        r->tiles = d->sort_tiles;
        return true;
    }
    if (m->a->has_route++) return false;
    *r = (cu_route){.z = cu_value(d, o->in[0]), .z_stride = cu_stride(d, o->in[0]), .y = cu_value(d, o->out), .y_stride = cu_stride(d, o->out),
                    .w = o->w[0] < 0 ? NULL : d->vectors[o->w[0]], .n = o->n[0], .k = o->n[1], .kind = o->n[2], .op = index};
    return true;
}

/* Threads for a part of so many elements, and shared memory in units of 32 floats. */
static void take_block(int elements, int per, int *threads, int *used)
{
    *threads = (elements / per + 31) / 32 * 32;
    *used = CU_FEW_ROOM(*threads * per);
}

static bool find_shape(maker *m)
{
    const cb_plan *p = m->p;
    int width = 0;
    for (int i = 0; i < m->n; i++) {
        const cb_op *o = &p->ops[m->ops[i]];
        if (is_side(o->kind)) {
            m->side[m->n_side++] = m->ops[i];
            if (o->kind == CB_ROPE_TABLE) m->a->side_mask |= 1u << i;
            else if (!find_route(m, o, m->ops[i])) return false;
            continue;
        }
        if (o->kind == CB_WANTED) { /* the norm behind it reads those rows */
            if (m->n_chain || m->wanted >= 0 || !cu_is_local(p, m->ops, m->n, o->out)) return false;
            m->wanted = o->out;
            m->wanted_in = o->in[0];
            continue;
        }
        if (m->n_chain == CU_FEW_OPS) return false;
        m->made[m->n_chain++] = m->ops[i];
        if (!width && o->out >= 0) width = p->values[o->out].width;
        if (!knows(m, o, width)) return false;
    }
    m->a->whole = width;
    if (m->cluster) {
        if (!m->n_chain || !(m->a->width = cluster_part(m, width))) return false;
        m->a->n_parts = (width + m->a->width - 1) / m->a->width;
        m->a->inverse = power_of_two(width) ? 1.0f / (float)width : 0;
        m->per = 8;
        m->threads = m->a->width / 8;
        return m->a->n_parts * m->threads / 32 <= CU_CLUSTER_TELLERS;
    }
    if (!m->n_chain) return m->a->has_route && !m->a->side_mask && m->wanted < 0;
    if (!(m->a->n_parts = parts_of(m, width))) return false;
    m->a->width = m->padded = width / m->a->n_parts;
    m->a->inverse = power_of_two(width) ? 1.0f / (float)width : 0;
    for (int i = 0; i < m->n_chain; i++) {
        const cb_value *v = &p->values[p->ops[m->made[i]].out];
        int whole = v->group ? (int)cb_plan_plane_stride(width / m->a->n_parts, v->pack) / 2 : 0;
        if (whole > m->padded) m->padded = whole;
    }
    m->per = 8;
    take_block(m->padded, m->per, &m->threads, &m->used);
    return m->threads * m->per <= CU_FEW_WIDTH;
}

/* ---- places ---- */

static bool touch(touched *list, int *n, cb_val v, int op, bool last)
{
    for (int i = 0; i < *n; i++)
        if (list[i].v == v) {
            if (last) list[i].op = op;
            return true;
        }
    if (*n == MOST_TOUCHED) return false;
    list[(*n)++] = (touched){v, op};
    return true;
}
static bool reads(maker *m, cb_val v, int op) { return touch(m->read, &m->n_read, v, op, true); }
static bool writes(maker *m, cb_val v, int op) { return touch(m->written, &m->n_written, v, op, false); }

/* Has an op of the chain before number k written v? */
static bool written_before(const maker *m, int k, cb_val v)
{
    for (int i = 0; i < k; i++)
        if (m->p->ops[m->made[i]].out == v) return true;
    return false;
}

/* A value that op number k reads from memory: row 0 of it. */
static bool input(maker *m, int k, cb_val v, const float **from, int32_t *stride)
{
    if (v < 0 || v == m->wanted || written_before(m, k, v) || !reads(m, v, k)) return false;
    *from = cu_value(m->d, v);
    *stride = cu_stride(m->d, v);
    return true;
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

static int16_t place_of(const maker *m, cb_val v)
{
    for (int i = m->n_kept - 1; i >= 0 && v >= 0; i--)
        if (m->kept[i] == v) return m->at[i];
    return -1;
}

/* The input that works in registers: it is there, at a place, or in memory. */
static bool source(maker *m, int k, cu_few_op *r, cb_val v)
{
    if (v == m->now) return true;
    m->now = v;
    if (v == m->wanted && v >= 0) {
        r->m = 1;
        return r->kind == CB_RMSNORM && input(m, k, m->wanted_in, &r->x, &r->x_stride);
    }
    return (r->from = place_of(m, v)) >= 0 || input(m, k, v, &r->x, &r->x_stride);
}

/* A place for what op number k makes, when it is needed. */
static bool keep(maker *m, int k, cu_few_op *r, cb_val v)
{
    for (int i = 0; i < m->n_kept; i++)
        if (m->kept[i] == v) m->kept[i] = -1; /* an older one */
    if (!read_later(m, k, v)) return true;
    if (m->n_kept == CU_FEW_OPS) return false;
    r->keep = m->at[m->n_kept] = (int16_t)m->used;
    m->kept[m->n_kept++] = v;
    m->used += m->threads * m->per / 32;
    return true;
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
    if (!source(m, k, r, o->in[0])) return false;
    if (m->cluster || m->a->n_parts == 1 || !r->u.q.flag) return true;
    if (r->x) { /* the last part looks for the row in memory */
        r->out = (float *)r->x;
        r->out_stride = r->x_stride;
        return true;
    }
    r->out = cu_value(m->d, o->in[0]);
    r->out_stride = cu_stride(m->d, o->in[0]);
    for (int i = 0; i < k; i++)
        if (m->p->ops[m->made[i]].out == o->in[0]) {
            m->a->o[i].out = r->out;
            m->a->o[i].out_stride = r->out_stride;
        }
    return writes(m, o->in[0], k);
}

static bool inputs(maker *m, int k, cu_few_op *r)
{
    const cb_op *o = &m->p->ops[m->made[k]];
    const cb_dev *d = m->d;
    switch (o->kind) {
    case CB_EMBED:
        r->u.embed = d->embed[o->w[0]];
        return k == 0 && (m->cluster || m->a->n_parts == 1);
    case CB_MOE_SUM:
        r->n = o->n[0];
        return input(m, k, o->in[0], &r->u.sum.y, &r->u.sum.y_stride) && input(m, k, o->in[1], &r->u.sum.route, &r->u.sum.route_stride);
    case CB_RMSNORM:
        r->n = same_squares(m, k);
        r->w = o->w[0] < 0 ? NULL : d->vectors[o->w[0]];
        return source(m, k, r, o->in[0]);
    case CB_HADAMARD:
        r->n = o->n[0];
        r->m = o->n[1];
        r->w = o->w[0] < 0 ? NULL : d->vectors[o->w[0]];
        return source(m, k, r, o->in[0]);
    case CB_GLU:
        r->n = o->n[0];
        return source(m, k, r, o->in[0]) && input(m, k, o->in[1], &r->b, &r->b_stride);
    case CB_ADD: {
        bool swap = o->in[1] == m->now && o->in[0] != m->now;
        if (o->in[swap] == m->now && (r->from = place_of(m, o->in[!swap])) >= 0) return true;
        return source(m, k, r, o->in[swap]) && input(m, k, o->in[!swap], &r->b, &r->b_stride);
    }
    case CB_ADD_GATED:
        return source(m, k, r, o->in[0]) && input(m, k, o->in[1], &r->w, &r->w_stride) && input(m, k, o->in[2], &r->b, &r->b_stride);
    case CB_SCALE: r->w = o->w[0] < 0 ? NULL : d->vectors[o->w[0]]; return source(m, k, r, o->in[0]);
    default: return false;
    }
}

static bool one_op(maker *m, int k)
{
    const cb_op *o = &m->p->ops[m->made[k]];
    cu_few_op *r = &m->a->o[k];
    *r = (cu_few_op){.kind = o->kind, .op = m->made[k], .from = -1, .keep = -1};
    r->f = o->kind == CB_HADAMARD ? (float)(1.0 / sqrt((double)o->n[0])) : o->f[0];
    if (o->kind == CB_QUANT) return quant(m, k, r) && writes(m, o->out, k);
    if (!inputs(m, k, r)) return false;
    m->now = o->out;
    if (!keep(m, k, r, o->out)) return false;
    if (cu_is_local(m->p, m->ops, m->n, o->out)) return true;
    r->out = cu_value(m->d, o->out);
    r->out_stride = cu_stride(m->d, o->out);
    return writes(m, o->out, k);
}

/* Do all threads meet after op `from` has its input and before op `to` writes? */
static bool meets(const maker *m, int from, int to)
{
    for (int k = from; k < to && m->a->n_parts == 1; k++)
        if (m->a->o[k].kind == CB_RMSNORM && !m->a->o[k].n) return true;
    return false;
}

/* Otherwise threads do not wait for each other between ops, nor do parts: what is written must not stand where others still read, or write. */
static bool apart(const maker *m)
{
    for (int i = 0; i < m->n_written; i++) {
        const touched *w = &m->written[i];
        for (int j = 0; j < m->n_read; j++)
            if (m->read[j].v != w->v && cb_plan_share_memory(m->p, w->v, m->read[j].v) && !meets(m, m->read[j].op, w->op)) return false;
        for (int j = 0; j < i; j++)
            if (cb_plan_share_memory(m->p, w->v, m->written[j].v)) return false;
    }
    for (int i = 0; i < m->n_side; i++)
        for (int k = 0; k < m->n_chain; k++)
            if (cb_plan_ordered(m->p, &m->p->ops[m->side[i]], &m->p->ops[m->made[k]])) return false;
    return true;
}

/* ---- kernels ---- */

static const struct fixed_chain {
    cu_kernel kernel;
    int per, most, n, links[CU_FEW_OPS];
} fixed_chains[] = {
#define CHAIN(name, per, most, ...) {CU_K_##name, per, most, sizeof(int[]){__VA_ARGS__} / sizeof(int), {__VA_ARGS__}},
    CU_CHAINS(CHAIN)
#undef CHAIN
};

static int link_of(const maker *m, int k)
{
    const cu_few_op *r = &m->a->o[k];
    bool again = (r->kind == CB_RMSNORM || r->kind == CB_QUANT) && r->n;
    int from = r->from >= 0 ? CU_FROM_KEPT : r->x || r->kind == CB_MOE_SUM ? CU_FROM_MEM : CU_FROM_REG;
    if (r->kind == CB_ADD && r->from >= 0 && r->b) return -1;
    return CU_LINK(r->kind, from | (again ? CU_AGAIN : 0));
}

/* The kernel of exactly this chain, or the one that can run any. Fixed chains keep one value only. */
static const struct fixed_chain *find_fixed(const maker *m)
{
    int link[CU_FEW_OPS];
    for (int k = 0; k < m->n_chain; k++) link[k] = link_of(m, k);
    bool unit = m->n_chain == 2 && link[0] == M_(GLU) && link[1] == R_(QUANT) && m->a->route.n <= 256; /* with these a route may be */
    if (m->n_kept > 1 || (m->a->side_mask && m->a->o[0].kind != CB_EMBED) || (m->a->has_route && !unit)) return NULL;
    for (size_t i = 0; i < sizeof fixed_chains / sizeof *fixed_chains; i++) {
        const struct fixed_chain *f = &fixed_chains[i];
        if (f->n == m->n_chain && m->padded <= f->most && memcmp(f->links, link, sizeof(int) * (size_t)f->n) == 0)
            return f;
    }
    return NULL;
}

static const struct cluster_chain {
    cu_kernel kernel;
    int branches, n, links[CU_FEW_OPS];
} cluster_chains[] = {
#define CLUSTER(name, b0, b1, b2, ...) {CU_K_CLUSTER_##name, 1 + ((b1) != 0) + ((b2) != 0), sizeof(int[]){__VA_ARGS__} / sizeof(int), {__VA_ARGS__}},
    CU_CLUSTERS(CLUSTER)
#undef CLUSTER
};

static const struct cluster_chain *find_cluster(const maker *m)
{
    int link[CU_FEW_OPS];
    for (int k = 0; k < m->n_chain; k++) link[k] = link_of(m, k);
    if (m->n_kept > 1 || m->a->has_route || (m->n_side && m->a->o[0].kind != CB_EMBED)) return NULL;
    for (size_t i = 0; i < sizeof cluster_chains / sizeof *cluster_chains; i++) {
        const struct cluster_chain *c = &cluster_chains[i];
        if (c->n == m->n_chain && memcmp(c->links, link, sizeof(int) * (size_t)c->n) == 0) return c;
    }
    return NULL;
}

/* Parts and branches do not wait for each other between ops: what is written must not stand where others may still read. Whoever works on an element
 * reads it before he writes, but another branch reads it too, and a norm of a row in memory reads all of it. */
static bool cluster_apart(const maker *m, int branches)
{
    for (int i = 0; i < m->n_written; i++)
        for (int j = 0; j < m->n_read; j++) {
            bool by_all = branches > 1 || (m->a->o[0].kind == CB_RMSNORM && m->read[j].v == m->p->ops[m->made[0]].in[0]);
            if (m->read[j].v == m->written[i].v && by_all) return false;
        }
    return apart(m);
}

/* The only row of a step, shared by a cluster. */
static bool make_cluster(maker *m, cu_few *f)
{
    m->cluster = true;
    if (!m->d->clusters_on || !find_shape(m)) return false;
    int norms = 0, mixed = 0; /* parts in a Hadamard block */
    for (int k = 0; k < m->n_chain; k++) {
        const cb_op *o = &m->p->ops[m->made[k]];
        if (m->p->values[o->out].slots > 1 || !one_op(m, k)) return false;
        norms += o->kind == CB_RMSNORM;
        if (o->kind != CB_HADAMARD) continue;
        if (o->n[1] != (k > 0 && m->a->o[k - 1].kind == CB_EMBED)) return false; /* signs behind it: that of an embedding's only */
        if (o->n[0] > m->a->width) mixed = o->n[0] / m->a->width;
    }
    m->a->n_ops = m->n_chain;
    const struct cluster_chain *c = find_cluster(m);
    if (!c || !cluster_apart(m, c->branches)) return false;
    if (c->kernel == CU_K_CLUSTER_glu_quant && m->a->whole <= CU_FEW_WIDTH) return false; /* two of them may share a launch */
    f->kernel = c->kernel;
    f->threads = m->threads;
    bool early = m->n_chain > 2 && m->a->o[0].kind == CB_RMSNORM && m->a->o[1].kind == CB_MOE_SUM; /* two rows are summed at a time */
    int rooms = early && m->a->n_parts > 1 ? 3 : norms > 1 ? 2 : norms;
    f->shared = CU_CLUSTER_ROWS + rooms * CU_FEW_ROOM(m->a->n_parts * m->a->width) * 128 + CU_CLUSTER_MINE(m->a->width) + mixed / 2 * 4 * m->a->width;
    f->cluster = m->a->n_parts;
    f->y = c->branches + (m->n_side != 0);
    return f->shared <= m->d->max_shared - 8192 && f->shared <= CU_ROW_SHARED;
}

static bool make(maker *m, cu_few *f)
{
    if (!find_shape(m)) return false;
    for (int k = 0; k < m->n_chain; k++)
        if (!one_op(m, k)) return false;
    m->a->n_ops = m->n_chain;
    if (!m->n_chain) { /* a route, and nothing else */
        f->kernel = CU_K_ROUTE;
        f->threads = 32;
        f->y = 1;
        return true;
    }
    if (!apart(m)) return false;
    const struct fixed_chain *x = find_fixed(m);
    f->kernel = x ? x->kernel : CU_K_ROWS_FEW8;
    if (x) {
        m->per = x->per;
        take_block(m->padded, m->per, &m->threads, &m->used); /* kept values stay in registers */
    }
    if (m->used * 128 > m->d->max_shared - 8192 || m->used * 128 > CU_ROW_SHARED) return false;
    f->threads = m->threads;
    f->shared = m->used * 128;
    f->y = m->a->n_parts + (m->n_side != 0);
    return true;
}

int cu_few_make(const cb_dev *d, const int32_t *ops, int n, bool single, const cu_row_op *table, cu_few **out, cb_err *err)
{
    *out = NULL;
    cu_few *f = cb_alloc_array(1, sizeof *f);
    if (!f) return cb_fail(err, CB_ENOMEM, "no memory for a launch");
    for (int way = !single; way < 2 && !*out; way++) {
        maker m = {.d = d, .p = d->plan, .ops = ops, .n = n, .a = &f->a, .now = -1, .wanted = -1};
        *f = (cu_few){.a = {.step = d->step, .side = table, .join = d->few_join}};
        if (way == 0 ? make_cluster(&m, f) : make(&m, f)) *out = f;
    }
    if (!*out) cb_free(f);
    return 0;
}

static bool is_unit(const cu_few *f)
{
    return (f->kernel == CU_K_glu_quant4 || f->kernel == CU_K_glu_quant8) && !f->a.has_route && f->a.n_parts == 1;
}

bool cu_few_pair(cu_few *f, cu_few *other)
{
    if (!is_unit(f) || !is_unit(other)) return false;
    int per = f->kernel == CU_K_glu_quant4 && other->kernel == CU_K_glu_quant4 ? 4 : 8, width = 0;
    for (int k = 0; k < 2; k++) {
        const cu_few *x = k ? other : f;
        int w = x->threads * (x->kernel == CU_K_glu_quant4 ? 4 : 8);
        if (w > width) width = w;
    }
    take_block(width, per, &f->threads, &f->shared);
    f->shared *= 128;
    f->kernel = per == 4 ? CU_K_UNITS4 : CU_K_UNITS8;
    f->beside = other;
    return true;
}

void cu_few_free(cu_few *f)
{
    if (f) cb_free(f->beside);
    cb_free(f);
}
