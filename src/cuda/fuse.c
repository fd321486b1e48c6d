/* fuse.c: recognises the patterns of fuse.h and launches them. A pattern is found by walking back from its anchor along the ops that
 * made each input in place, and forward along those that use its output. What an op leaves between two ops of a pattern is never
 * stored, so nothing else may read it. */
#include "cuda/fuse.h"
#include "plan/layout.h"
#include <math.h>
#include <string.h>

/* ---- walking the plan ---- */

/* The op before `at` that wrote v last, when it is of this kind; else -1. */
static int made_by(const cb_plan *p, int at, cb_val v, cb_op_kind kind)
{
    for (int i = at - 1; i >= 0 && v >= 0; i--)
        if (p->ops[i].out == v) return p->ops[i].kind == kind ? i : -1;
    return -1;
}

static bool touches(const cb_op *o, cb_val v)
{
    bool t = o->out == v;
    for (int i = 0; i < CB_MAX_IN; i++) t |= o->in[i] == v;
    return t;
}

/* The first op behind `at` that touches v, when it is of this kind. */
static int used_by(const cb_plan *p, int at, cb_val v, cb_op_kind kind)
{
    for (int i = at + 1; i < p->n_ops; i++)
        if (touches(&p->ops[i], v)) return p->ops[i].kind == kind ? i : -1;
    return -1;
}

static bool is_member(const int32_t *group, int n, int op)
{
    for (int k = 0; k < n; k++)
        if (group[k] == op) return true;
    return false;
}

/* Does an op outside read or write what a member writes, before the pattern's result is there? `result`: the op that writes it. */
static bool is_seen(const cb_plan *p, const int32_t *group, int n, int result)
{
    for (int k = 0; k < n; k++) {
        cb_val v = p->ops[group[k]].out;
        if (v < 0) continue;
        bool is_result = v == p->ops[result].out;
        for (int j = group[k] + 1; j < (is_result ? result : p->n_ops); j++)
            if (touches(&p->ops[j], v) && !is_member(group, n, j)) return true;
    }
    return false;
}

/* Must an op outside stand between two members? */
static bool is_split(const cb_plan *p, const int32_t *group, int n)
{
    int32_t behind[128]; /* ops outside that need a member, or one of these, to be done */
    int n_behind = 0;
    for (int i = group[0]; i <= group[n - 1]; i++) {
        bool member = is_member(group, n, i), waits = false;
        for (int k = 0; k < n_behind && !waits; k++) waits = cb_plan_ordered(p, &p->ops[behind[k]], &p->ops[i]);
        if (member && waits) return true;
        for (int k = 0; k < n && !waits && !member; k++) waits = group[k] < i && cb_plan_ordered(p, &p->ops[group[k]], &p->ops[i]);
        if (member || !waits) continue;
        if (n_behind == 128) return true;
        behind[n_behind++] = i;
    }
    return false;
}

/* The members that are there, ascending. */
static int collect(const int *ops, int n_ops, int32_t *group)
{
    int n = 0;
    for (int k = 0; k < n_ops; k++) {
        if (ops[k] < 0) continue;
        int at = n++;
        for (; at > 0 && group[at - 1] > ops[k]; at--) group[at] = group[at - 1];
        group[at] = ops[k];
    }
    return n;
}

/* Do the rows of two values lie apart? */
static bool apart(const cb_plan *p, cb_val a, cb_val b)
{
    const cb_value *x = &p->values[a], *y = &p->values[b];
    return x->is_logits || y->is_logits ? a != b : x->offset + x->row_bytes <= y->offset || y->offset + y->row_bytes <= x->offset;
}

/* The quantisation of v behind `at`, when thread blocks of one head each can do it (heads.cuh): groups within heads, no row that has
 * a remainder whatever it is. */
static int find_planes(const cb_dev *d, int at, cb_val v, int head)
{
    const cb_plan *p = d->plan;
    int i = used_by(p, at, v, CB_QUANT);
    if (i < 0 || p->ops[i].in[0] != v) return -1;
    const cb_value *x = &p->values[p->ops[i].out];
    bool fits = x->group >= 4 && x->group <= 128 && head % x->group == 0 && x->width % head == 0 && x->width / head * ((head + 127) / 128) <= CU_MOST_PIECES;
    fits = fits && x->slots <= 1 && !x->wanted && !p->values[v].wanted;
    return fits && (!x->pair || p->ops[i].f[0] > 0) ? i : -1;
}

static void planes_args(const cb_dev *d, int op, cu_heads_out *o)
{
    *o = (cu_heads_out){.arrived = d->arrived, .found = (float (*)[2])(d->arrived + CU_GRAPH_ROWS), .op = op};
    if (op < 0) return;
    o->x = cu_planes_of(d, d->plan->ops[op].out);
    o->share = d->plan->ops[op].f[0];
}

/* ---- a gated delta net's middle: convolution, delta rule, norm of each head, gate, planes ---- */

enum { D_CONV, D_DELTA, D_NORM, D_GATE, D_QUANT, D_N };

static bool find_delta(const cb_dev *d, int anchor, int *m)
{
    const cb_plan *p = d->plan;
    const cb_op *o = &p->ops[anchor];
    int dk = o->n[3], dv = o->n[4];
    if (dk % 32 || dv % 32 || dk > 128 || dk == 96 || dv > 128) return false;
    m[D_DELTA] = anchor;
    m[D_CONV] = made_by(p, anchor, o->in[0], CB_CONV);
    m[D_NORM] = used_by(p, anchor, o->out, CB_RMSNORM);
    if (m[D_CONV] < 0 || m[D_NORM] < 0) return false;
    const cb_op *c = &p->ops[m[D_CONV]], *r = &p->ops[m[D_NORM]];
    if (c->n[1] != 4 || r->out != o->out || r->n[1] != dv || r->n[0] != o->n[2] || r->w[0] < 0) return false;
    m[D_GATE] = used_by(p, m[D_NORM], o->out, CB_GLU);
    if (m[D_GATE] < 0) return false;
    const cb_op *g = &p->ops[m[D_GATE]];
    if (g->in[1] != o->out || g->in[0] == o->out || g->out != g->in[0] || g->n[0] != CB_ACT_SILU || !apart(p, c->in[0], g->out) ||
        !apart(p, o->in[1], g->out) || !apart(p, o->in[2], g->out))
        return false;
    int q = find_planes(d, m[D_GATE], g->out, dv);
    cb_val x = q < 0 ? -1 : p->ops[q].out;
    if (q >= 0 && apart(p, c->in[0], x) && apart(p, o->in[1], x) && apart(p, o->in[2], x) && apart(p, g->out, x)) m[D_QUANT] = q;
    return true;
}

static void delta_args(const cb_dev *d, const int *m, cu_delta_step *a)
{
    const cb_op *c = &d->plan->ops[m[D_CONV]], *o = &d->plan->ops[m[D_DELTA]], *r = &d->plan->ops[m[D_NORM]], *g = &d->plan->ops[m[D_GATE]];
    const cu_step *now = (const cu_step *)d->step_host;
    *a = (cu_delta_step){.step = d->step, .pos = now->pos, .slot = now->slot, .x = cu_value(d, c->in[0]), .conv_w = d->vectors[c->w[0]], .a = cu_value(d, o->in[1]),
                         .b = cu_value(d, o->in[2]), .z = cu_value(d, g->in[0]), .y = cu_value(d, g->out), .a_log = d->vectors[o->w[0]],
                         .dt_bias = d->vectors[o->w[1]], .norm_w = d->vectors[r->w[0]], .ring = d->rec[c->n[0]], .state = d->rec[o->n[0]],
                         .ring_floats = (int64_t)d->rec_floats[c->n[0]], .state_floats = (int64_t)d->rec_floats[o->n[0]],
                         .x_stride = cu_stride(d, c->in[0]), .a_stride = cu_stride(d, o->in[1]), .b_stride = cu_stride(d, o->in[2]),
                         .z_stride = cu_stride(d, g->in[0]), .y_stride = cu_stride(d, g->out), .k_heads = o->n[1], .v_heads = o->n[2],
                         .dk = o->n[3], .dv = o->n[4], .eps = r->f[0]};
    planes_args(d, m[D_QUANT], &a->out);
}

static int launch_delta(cb_dev *d, const int *m, cb_err *err)
{
    cu_delta_step a;
    delta_args(d, m, &a);
    return cu_kernel_launch(d, CU_K_DELTA_STEP, (unsigned)(a.v_heads / a.k_heads), (unsigned)a.k_heads, (unsigned)d->batch->n_rows,
                            (unsigned)CU_DELTA_THREADS(a.dk, a.dv), 0, &a, err);
}

/* ---- attention: from q, k and v as their products left them to the gated output ---- */

enum {
    A_Q_SPLIT, A_Q_NORM, A_Q_ROPE, A_Q_TURN, A_K_NORM, A_K_ROPE, A_K_TURN, A_V_SPLIT, A_V_NORM, A_V_TURN, A_PUT, A_ATTN, A_O_TURN, A_G_SPLIT,
    A_GATE, A_QUANT, A_N
};

static bool is_turn(const cb_op *o, int dim, int most)
{
    return o->w[0] < 0 && !o->n[1] && o->n[0] >= 2 && o->n[0] <= most && dim % o->n[0] == 0 && o->in[0] == o->out;
}

/* The ops that made v in place, backwards from `at`: rotation, rotary embedding, norm; returns where it went to. */
static int back(const cb_plan *p, int at, cb_val v, int dim, int most, int *turn, int *rope, int *norm)
{
    int i = made_by(p, at, v, CB_HADAMARD);
    if (i >= 0 && is_turn(&p->ops[i], dim, most)) at = *turn = i;
    if (rope && (i = made_by(p, at, v, CB_ROPE)) >= 0 && p->ops[i].in[0] == v && p->ops[i].n[1] == dim) at = *rope = i;
    if ((i = made_by(p, at, v, CB_RMSNORM)) >= 0 && p->ops[i].in[0] == v && p->ops[i].n[1] == dim) at = *norm = i;
    return at;
}

/* K and V of this layer, unless it uses those of an earlier one. */
static bool find_put(const cb_plan *p, int anchor, int dim, int *m)
{
    int i = anchor - 1;
    while (i >= 0 && p->ops[i].kind != CB_KV_PUT && p->ops[i].kind != CB_ATTENTION) i--;
    if (i < 0 || p->ops[i].kind == CB_ATTENTION || p->ops[i].n[0] != p->ops[anchor].n[0]) return true;
    cb_val k = p->ops[i].in[0], v = p->ops[i].in[1];
    m[A_PUT] = i;
    if (k == v) return false;
    int k_at = back(p, i, k, dim, 64, &m[A_K_TURN], &m[A_K_ROPE], &m[A_K_NORM]);
    int v_at = back(p, i, v, dim, 512, &m[A_V_TURN], NULL, &m[A_V_NORM]);
    int s = made_by(p, v_at, v, CB_SPLIT); /* V is K before its norm */
    if (s >= 0 && p->ops[s].in[0] == k && p->ops[s].n[1] == dim && p->ops[s].n[3] == dim && s < k_at) m[A_V_SPLIT] = s;
    return true;
}

static bool same_rope(const cb_op *a, const cb_op *b) { return a->in[1] == b->in[1] && a->n[2] == b->n[2] && a->n[3] == b->n[3]; }

static int parts_of(int dim) { return dim <= 64 ? 1 : dim <= 128 ? 2 : dim <= 256 ? 4 : 8; }

/* As many halves of blocks of keys as the ring of k_attn_step has room for. */
static int ring_slots(const cb_dev *d, int dim)
{
    int parts = parts_of(dim), n = (d->max_shared - CU_STEP_FIXED(parts)) / CU_STEP_HALF(parts);
    return n < CU_STEP_SLOTS ? n : CU_STEP_SLOTS;
}

static bool find_attention(const cb_dev *d, int anchor, int *m)
{
    const cb_plan *p = d->plan;
    const cb_op *o = &p->ops[anchor];
    const cb_kv_state *s = &p->kv[o->n[0]];
    if (s->dim % 16 || s->dim > 512 || o->n[1] / s->n_heads > 16 || p->values[o->out].wanted || ring_slots(d, s->dim) < 2 ||
        d->max_shared < CU_JOIN_STAGES * CU_JOIN_FLOATS * 4)
        return false;
    m[A_ATTN] = anchor;
    int at = back(p, anchor, o->in[0], s->dim, 64, &m[A_Q_TURN], &m[A_Q_ROPE], &m[A_Q_NORM]), i = made_by(p, at, o->in[0], CB_SPLIT);
    if (i >= 0 && p->ops[i].n[0] == o->n[1] && p->ops[i].n[3] == s->dim) m[A_Q_SPLIT] = i;
    if (!find_put(p, anchor, s->dim, m)) return false;
    if (m[A_Q_ROPE] >= 0 && m[A_K_ROPE] >= 0 && !same_rope(&p->ops[m[A_Q_ROPE]], &p->ops[m[A_K_ROPE]])) return false;
    at = anchor;
    if ((i = used_by(p, at, o->out, CB_HADAMARD)) >= 0 && is_turn(&p->ops[i], s->dim, 512)) at = m[A_O_TURN] = i;
    cb_val out = o->out, gate = -1, from = -1; /* where the gate is, and where it is read */
    if ((i = used_by(p, at, out, CB_GLU)) >= 0 && p->ops[i].in[1] == out && p->ops[i].in[0] != out && p->ops[i].n[0] == CB_ACT_SIGMOID &&
        p->ops[i].out == p->ops[i].in[0]) {
        at = m[A_GATE] = i;
        out = from = gate = p->ops[i].in[0];
        int g = made_by(p, i, gate, CB_SPLIT);
        if (g >= 0 && p->ops[g].n[0] == o->n[1] && p->ops[g].n[3] == s->dim && apart(p, p->ops[g].in[0], gate)) {
            m[A_G_SPLIT] = g;
            from = p->ops[g].in[0];
        }
    }
    i = find_planes(d, at, out, s->dim);
    if (i >= 0 && apart(p, out, p->ops[i].out) && (from < 0 || apart(p, from, p->ops[i].out))) m[A_QUANT] = i;
    return true;
}

static float turn_scale(const cb_plan *p, int op, int32_t *block)
{
    *block = op < 0 ? 1 : p->ops[op].n[0];
    return (float)(1.0 / sqrt((double)*block));
}

/* Where the heads of a value begin: that value, or the one it is a part of. */
static const float *heads_of(const cb_dev *d, cb_val v, int split, int dim, int32_t *stride, int32_t *head)
{
    const cb_op *o = split < 0 ? NULL : &d->plan->ops[split];
    *head = o ? o->n[1] : dim;
    *stride = cu_stride(d, o ? o->in[0] : v);
    return (const float *)cu_value(d, o ? o->in[0] : v) + (o ? o->n[2] : 0);
}

static void norm_of(const cb_dev *d, int op, cu_head_norm *out)
{
    const cb_op *o = &d->plan->ops[op < 0 ? 0 : op];
    *out = op < 0 ? (cu_head_norm){0} : (cu_head_norm){o->w[0] < 0 ? NULL : d->vectors[o->w[0]], o->f[0], 1};
}

/* Blocks of keys of a stage of joining, when a thread block has dim / ranks of the dims: no more than there are threads, dim, which make their factors. */
static int join_stage(int dim, int ranks, int n_splits)
{
    int n = 1;
    while (2 * n * dim <= ranks * CU_JOIN_FLOATS && 2 * n <= dim && n < n_splits) n *= 2;
    return n;
}

static void attention_args(const cb_dev *d, const int *m, cu_attn_step *a)
{
    const cb_plan *p = d->plan;
    const cb_op *o = &p->ops[m[A_ATTN]];
    int dim = d->kv[o->n[0]].dim;
    memset(a, 0, sizeof *a);
    const cu_step *now = (const cu_step *)d->step_host;
    a->step = d->step;
    a->pos = now->pos;
    a->slot = now->slot;
    a->kv = d->kv[o->n[0]];
    a->part = d->part;
    a->n_heads = o->n[1];
    a->per = a->n_heads / a->kv.n_heads;
    a->sets = (a->per + 7) / 8;
    a->n_splits = cu_attn_splits(d, o->n[0]);
    a->scale = o->f[0];
    a->op = m[A_ATTN];
    a->put_op = m[A_PUT];
    a->q = heads_of(d, o->in[0], m[A_Q_SPLIT], dim, &a->q_stride, &a->q_head);
    norm_of(d, m[A_Q_NORM], &a->q_norm);
    a->q_scale = turn_scale(p, m[A_Q_TURN], &a->q_block);
    a->q_rope = m[A_Q_ROPE] >= 0;
    if (m[A_PUT] >= 0) {
        int32_t head;
        a->k = heads_of(d, p->ops[m[A_PUT]].in[0], -1, dim, &a->k_stride, &head);
        a->v = heads_of(d, p->ops[m[A_PUT]].in[1], m[A_V_SPLIT], dim, &a->v_stride, &head);
        norm_of(d, m[A_K_NORM], &a->k_norm);
        norm_of(d, m[A_V_NORM], &a->v_norm);
        a->k_scale = turn_scale(p, m[A_K_TURN], &a->k_block);
        a->v_scale = turn_scale(p, m[A_V_TURN], &a->v_block);
        a->k_rope = m[A_K_ROPE] >= 0;
    }
    int rope = m[A_Q_ROPE] >= 0 ? m[A_Q_ROPE] : m[A_K_ROPE];
    if (rope >= 0) {
        a->turn = cu_value(d, p->ops[rope].in[1]);
        a->turn_stride = cu_stride(d, p->ops[rope].in[1]);
        a->pairs = p->ops[rope].n[2];
        a->half = p->ops[rope].n[3];
    }
    a->o_scale = turn_scale(p, m[A_O_TURN], &a->o_block);
    cb_val out = m[A_GATE] >= 0 ? p->ops[m[A_GATE]].out : o->out;
    a->out = cu_value(d, out);
    a->out_stride = cu_stride(d, out);
    if (m[A_GATE] >= 0) a->gate = heads_of(d, out, m[A_G_SPLIT], dim, &a->gate_stride, &a->gate_head);
    planes_args(d, m[A_QUANT], &a->planes);
}

int cu_attn_splits(const cb_dev *d, int state)
{
    const cu_kv *kv = &d->kv[state];
    int n = d->n_splits, most = d->lim.kv_blocks[kv->group]; /* no session holds more than all, or than a table has room for */
    if (most > d->table_stride) most = d->table_stride;
    if (kv->window && most > kv->window / CU_BLOCK + 2) most = kv->window / CU_BLOCK + 2;
    return n < most ? n : most;
}

/* All rows by clusters of k_attn_cluster that find a place at once, with a thread block for each block of keys and each query; of few queries two blocks of
 * keys will do. 0: there are too many blocks of keys, or of these clusters, or heads of another kind. */
static unsigned cluster_ranks(const cb_dev *d, int parts, cu_attn_step *a, unsigned *shared)
{
    int queries = a->per < 8 ? a->per : 8, clusters = a->n_rows * a->kv.n_heads * a->sets, dim = a->kv.dim, fixed = CU_ATTN_CLUSTER_FIXED(parts) + a->n_splits * dim * 4;
    bool turns = a->q_rope || a->k_rope, in_lanes = a->pairs % 32 == 0 && a->half % 32 == 0 && !(a->half & (a->half - 1)) && a->pairs <= a->half && 2 * a->half <= dim;
    if (dim != 64 * parts || (turns && !in_lanes)) return 0;
    for (int per = 1; per <= (queries <= 2 ? 2 : 1); per++) {
        int ranks = (a->n_splits + per - 1) / per;
        if (ranks < queries) ranks = queries;
        if (ranks < 2) ranks = 2;
        if (ranks > CU_CLUSTER_RANKS || clusters > d->attn_clusters[ranks] || clusters * ranks > d->n_sm) continue;
        a->slots = 2; /* launches overlap where memory is left */
        *shared = (unsigned)(fixed + a->slots * CU_STEP_HALF(parts));
        return (int)*shared <= d->max_shared - 8192 ? (unsigned)ranks : 0;
    }
    return 0;
}

/* The join of what k_attn_step left, with one thread block a head; of few rows and a deep context with a cluster, if all of them find a place at once. */
static int launch_join(cb_dev *d, cu_attn_step *a, cb_err *err)
{
    int dim = a->kv.dim, heads = a->n_heads * a->n_rows, ranks = dim == 128 || dim == 256 || dim == 512 ? CU_JOIN_RANKS : 1;
    if (a->n_splits < CU_JOIN_DEEP || heads > d->attn_clusters[CU_JOIN_RANKS] || heads * CU_JOIN_RANKS > d->n_sm) ranks = 1;
    a->stage = join_stage(dim, ranks, a->n_splits);
    int n_stages = (a->n_splits + a->stage - 1) / a->stage;
    if (n_stages > CU_JOIN_STAGES) n_stages = CU_JOIN_STAGES;
    unsigned shared = (unsigned)(n_stages * a->stage * dim / ranks * 4), threads = (unsigned)(dim + 31) / 32 * 32;
    if (ranks == 1) return cu_kernel_launch(d, CU_K_ATTN_JOIN, (unsigned)a->n_heads, (unsigned)a->n_rows, 1, threads, shared, a, err);
    return cu_cluster_launch(d, CU_K_ATTN_JOIN_CLUSTER, CU_JOIN_RANKS, (unsigned)a->n_heads, (unsigned)a->n_rows, threads, shared + CU_JOIN_FIXED((unsigned)dim), a, err);
}

/* Blocks are spread over as many thread blocks as the GPU holds at a time; rows are taken in as many turns as the partial results need. */
static int launch_attention(cb_dev *d, const int *m, cb_err *err)
{
    static const cu_kernel kernels[9] = {[1] = CU_K_ATTN_STEP64, [2] = CU_K_ATTN_STEP128, [4] = CU_K_ATTN_STEP256, [8] = CU_K_ATTN_STEP512};
    static const cu_kernel clusters[9] = {[1] = CU_K_ATTN_CLUSTER64, [2] = CU_K_ATTN_CLUSTER128, [4] = CU_K_ATTN_CLUSTER256, [8] = CU_K_ATTN_CLUSTER512};
    cu_attn_step a;
    unsigned shared, ranks;
    attention_args(d, m, &a);
    a.n_rows = d->batch->n_rows;
    if ((ranks = cluster_ranks(d, parts_of(a.kv.dim), &a, &shared)))
        return cu_cluster_launch(d, clusters[parts_of(a.kv.dim)], ranks, (unsigned)(a.kv.n_heads * a.sets), (unsigned)a.n_rows, 32 * CU_CLUSTER_WARPS, shared, &a, err);
    int dim = a.kv.dim, n_rows = d->batch->n_rows, parts = parts_of(dim);
    size_t row_floats = (size_t)a.n_heads * (size_t)a.n_splits * (size_t)(dim + 2);
    int most = (int)(d->part_floats / row_floats), rc = 0;
    CB_ASSERT(most > 0);
    for (a.row0 = 0; a.row0 < n_rows && rc == 0; a.row0 += a.n_rows) {
        a.n_rows = n_rows - a.row0 < most ? n_rows - a.row0 : most;
        int lanes = a.n_rows * a.kv.n_heads * a.sets, room = (parts == 1 ? 3 : parts == 2 ? 2 : 1) * d->n_sm, per = room / lanes > 0 ? room / lanes : 1;
        int gx = per < a.n_splits ? per : a.n_splits, halves = 2 * ((a.n_splits + gx - 1) / gx);
        a.slots = ring_slots(d, dim) < halves ? ring_slots(d, dim) : halves; /* no more than is used: launches overlap where memory is left */
        rc = cu_kernel_launch(d, kernels[parts], (unsigned)gx, (unsigned)(a.kv.n_heads * a.sets), (unsigned)a.n_rows, (unsigned)(32 * CU_STEP_WARPS(parts)),
                              (unsigned)(CU_STEP_FIXED(parts) + a.slots * CU_STEP_HALF(parts)), &a, err);
        if (rc == 0) rc = launch_join(d, &a, err);
    }
    return rc;
}

/* ---- all of them ---- */

enum { MOST = 16 };
_Static_assert((int)A_N <= (int)MOST && (int)D_N <= (int)MOST && (int)MOST <= (int)CU_MAX_FUSED, "ops of a pattern");

/* The pattern around the anchor: its ops by role in m, ascending in group; returns how many, or 0. */
static int find(const cb_dev *d, int anchor, int *m, int32_t *group)
{
    const cb_plan *p = d->plan;
    bool is_delta = p->ops[anchor].kind == CB_DELTA;
    int *quant = &m[is_delta ? (int)D_QUANT : (int)A_QUANT];
    for (int k = 0; k < MOST; k++) m[k] = -1;
    if (is_delta ? !find_delta(d, anchor, m) : p->ops[anchor].kind != CB_ATTENTION || !find_attention(d, anchor, m)) return 0;
    for (;;) {
        int n = collect(m, MOST, group);
        int made = is_delta ? m[D_GATE] : m[A_GATE] >= 0 ? m[A_GATE] : m[A_O_TURN] >= 0 ? m[A_O_TURN] : anchor;
        if (!is_seen(p, group, n, *quant >= 0 ? *quant : made) && !is_split(p, group, n)) return n;
        if (*quant < 0) return 0;
        *quant = -1;
    }
}

int cu_fuse(const cb_dev *d, int anchor, int32_t *group)
{
    int m[MOST];
    return find(d, anchor, m, group);
}

bool cu_attention_args(const cb_dev *d, int anchor, cu_attn_step *a)
{
    int m[MOST];
    int32_t group[CU_MAX_FUSED];
    if (d->plan->ops[anchor].kind != CB_ATTENTION || !find(d, anchor, m, group)) return false;
    attention_args(d, m, a);
    return true;
}

bool cu_delta_args(const cb_dev *d, int anchor, cu_delta_step *a)
{
    int m[MOST];
    int32_t group[CU_MAX_FUSED];
    if (d->plan->ops[anchor].kind != CB_DELTA || !find(d, anchor, m, group)) return false;
    delta_args(d, m, a);
    return true;
}

int cu_launch_fused(cb_dev *d, int anchor, cb_err *err)
{
    int m[MOST];
    int32_t group[CU_MAX_FUSED];
    CB_ASSERT(find(d, anchor, m, group));
    return d->plan->ops[anchor].kind == CB_DELTA ? launch_delta(d, m, err) : launch_attention(d, m, err);
}
