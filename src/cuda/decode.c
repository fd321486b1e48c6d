/* decode.c: which operations of a one-row step go into one launch of k_decode, and where their values stand in its shared memory. */
#include "cuda/lower.h"
#include "plan/layout.h"
#include <string.h>

enum { BLOCK_SHARED = 110 * 1024, PASS = 16, WARPS = 16, WINDOW = 96 };

/* ---- what the kernel can do ---- */

/* Bytes of a chunk in the ring (decode.cu, format::SLOT), or 0: the kernel has no code for this format. */
static int slot_bytes(const cu_weight *w)
{
    bool wide = w->scale_type == CU_S_F32, known;
    int sb = wide ? 4 : 2, bytes = w->fmt == CU_FMT_PLANES ? 128 : w->group * w->bits / 8;
    if (w->fmt == CU_FMT_PLANES) known = wide && w->group == 64;
    else
        known = w->fmt == CU_FMT_AFFINE && w->scale_type <= CU_S_BF16 &&
                (w->bits == 4 ? w->group == 32 || (w->group == 64 && !wide) : w->bits == 2 ? w->group == 128 && !wide
                                                                          : w->bits == 8 && w->group == 64 && !wide);
    bool aligned = ((uintptr_t)w->codes | (uintptr_t)w->row_bytes) % 16 == 0 && ((uintptr_t)w->scales | (uintptr_t)w->biases) % 4 == 0;
    return known && aligned && (wide || w->n_groups % 2 == 0) ? 16 * 128 + 32 * (128 / bytes) * sb : 0;
}

/* Values of a row: those of its slots stand one behind the other. */
static int width_of(const cb_plan *p, cb_val v) { return p->values[v].width * (p->values[v].slots > 1 ? p->values[v].slots : 1); }

static bool is_plain(const cb_plan *p, cb_val v)
{
    const cb_value *x = &p->values[v];
    return x->width % 4 == 0 && (x->slots <= 1 || x->width % (x->group ? 4 * x->group > 64 * x->pack ? 4 * x->group : 64 * x->pack : 16) == 0);
}

static bool is_pre(const cb_plan *p, const cb_op *o)
{
    switch (o->kind) {
    case CB_RMSNORM:
        if (o->n[0] != 1) return false;
        break;
    case CB_MOE_SORT: case CB_ROUTE: return true;
    case CB_QUANT:
        if (p->values[o->out].group > 128) return false;
        break;
    case CB_GLU: case CB_ADD: case CB_BIAS: case CB_WANTED: case CB_SCALE: case CB_HADAMARD: case CB_MOE_SUM: case CB_ADD_GATED: break;
    default: return false;
    }
    return is_plain(p, o->out) && (o->kind == CB_MOE_SUM || o->kind == CB_ADD_GATED || is_plain(p, o->in[0]));
}

/* ---- which ones ---- */

static bool among(const int32_t *list, int n, int i)
{
    for (int k = 0; k < n; k++)
        if (list[k] == i) return true;
    return false;
}

/* May op i come behind the n_pre ops in front and beside the products chosen so far? */
static bool fits(const cu_sched *s, int i, const int32_t *group, int n_pre, int n)
{
    const cb_op *o = &s->p->ops[i];
    for (int j = s->open; j < i; j++)
        if (!s->done[j] && cb_plan_ordered(s->p, &s->p->ops[j], o) && !among(group, n_pre, j)) return false;
    for (int k = 0; k < n; k++)
        if (group[k] > i && cb_plan_ordered(s->p, o, &s->p->ops[group[k]])) return false;
    return true;
}

static bool reads(const cb_op *o, cb_val v)
{
    for (int k = 0; k < CB_MAX_IN; k++)
        if (o->in[k] == v) return true;
    return false;
}

/* Thread blocks run at different times: what one of them stores, no other may still want to read from device memory. */
static bool conflicts(const cb_plan *p, const int32_t *group, int n_pre, int n)
{
    for (int r = 0; r < n; r++)
        for (int k = 0; k < CB_MAX_IN; k++) {
            cb_val v = p->ops[group[r]].in[k];
            bool inside = v < 0;
            for (int w = 0; w < r && w < n_pre && !inside; w++) inside = p->ops[group[w]].out == v;
            for (int w = 0; w < n && !inside; w++) {
                cb_val out = p->ops[group[w]].out;
                if (w != r && cb_plan_share_memory(p, v, out) && !(w < n_pre && cu_is_local(p, group, n, out))) return true;
            }
        }
    for (int q = 0; q < n_pre; q++) /* a remainder is made of the quantised values once more */
        for (int w = q + 1; w < n_pre; w++)
            if (p->ops[group[q]].kind == CB_QUANT && p->ops[group[w]].out == p->ops[group[q]].in[0]) return true;
    return false;
}

static bool same_rows(const cb_plan *p, const cb_op *a, const cb_op *b) { return p->values[a->out].wanted == p->values[b->out].wanted; }

/* Fills group with ops in front, then products; returns how many of the first, and of all in *n. 0 products: *n = 0. */
static int choose(const cu_sched *s, const cu_weight *weights, int32_t *group, int *n)
{
    const cb_plan *p = s->p;
    int n_pre = 0, end = s->open + WINDOW < p->n_ops ? s->open + WINDOW : p->n_ops;
    for (int i = s->open; i < end && n_pre < CU_MAX_ROW_OPS - 4; i++)
        if (!s->done[i] && s->anchor[i] < 0 && is_pre(p, &p->ops[i]) && fits(s, i, group, n_pre, n_pre)) group[n_pre++] = i;
    int all = n_pre;
    for (int i = s->open; i < end && all - n_pre < CU_MAX_PARTS; i++) {
        const cb_op *o = &p->ops[i];
        if (s->done[i] || (o->kind != CB_LINEAR && o->kind != CB_MOE_LINEAR) || !slot_bytes(&weights[o->w[0]])) continue;
        if (all > n_pre && !same_rows(p, o, &p->ops[group[n_pre]])) continue;
        if (is_plain(p, o->in[0]) && fits(s, i, group, n_pre, all)) group[all++] = i;
    }
    *n = all > n_pre ? all : 0;
    return n_pre;
}

/* ---- where their values stand ---- */

typedef struct room {
    const cb_dev *d;
    int32_t used;                       /* floats */
    cb_val value[4 * CU_MAX_ROW_OPS];   /* values with a place */
    int32_t at[4 * CU_MAX_ROW_OPS];
    int n;
} room;

static int32_t take(room *m, int floats)
{
    int32_t at = m->used;
    m->used += (floats + 31) / 32 * 32;
    return at;
}

static int32_t find(const room *m, cb_val v)
{
    for (int i = 0; i < m->n && v >= 0; i++)
        if (m->value[i] == v) return m->at[i];
    return -1;
}

static int32_t give(room *m, cb_val v, int floats)
{
    int32_t at = find(m, v);
    if (at >= 0) return at;
    CB_ASSERT(m->n < 4 * CU_MAX_ROW_OPS);
    m->value[m->n] = v;
    return m->at[m->n++] = take(m, floats);
}

/* Planes of the row, or of all its slots as one long row. */
static cu_planes planes(const cb_dev *d, cb_val v)
{
    cu_planes q = cu_planes_of(d, v);
    q.stride *= cu_slots(d, v);
    q.n_groups *= cu_slots(d, v);
    return q;
}
static int padded(int n_groups) { return (n_groups + 3) / 4 * 4; }
static int plane_floats(const cu_planes *q) { return q->stride / 4 + 2 * padded(q->n_groups) + 1; }

static void place_op(room *m, const int32_t *group, int n, int k, cu_row_op *r)
{
    const cb_dev *d = m->d;
    const cb_op *o = &d->plan->ops[group[k]];
    cu_row_op_of(d, group[k], r);
    r->width = o->out >= 0 ? width_of(d->plan, o->out) : 0;
    for (int i = 0; i < CB_MAX_IN; i++) r->in_local[i] = find(m, o->in[i]);
    r->stage = -1;
    if (r->in_local[0] < 0 && (o->kind == CB_RMSNORM || o->kind == CB_QUANT || o->kind == CB_ROUTE)) r->stage = take(m, width_of(d->plan, o->in[0]));
    if (o->kind == CB_MOE_SORT) return;
    if (o->kind == CB_QUANT) {
        r->u.q = planes(d, o->out);
        r->out_local = give(m, o->out, plane_floats(&r->u.q));
        r->n[0] = d->plan->values[o->out].pair;
        bool outside = false;
        for (int i = 0; i < d->plan->n_ops; i++) outside |= reads(&d->plan->ops[i], o->out) && !among(group, n, i);
        if (!outside) r->u.q.planes = NULL;
        return;
    }
    r->out_local = give(m, o->out, r->width);
    if (cu_is_local(d->plan, group, n, o->out)) r->out = NULL;
}

/* Planes that an earlier launch made. */
static void place_planes(room *m, cb_val v, cu_row_op *r)
{
    memset(r, 0, sizeof *r);
    r->kind = CU_COPY_PLANES;
    r->u.q = planes(m->d, v);
    r->n[0] = m->d->plan->values[v].pair;
    r->out_local = give(m, v, plane_floats(&r->u.q));
}

static void place_part(const room *m, int op, cu_part *t)
{
    const cb_dev *d = m->d;
    const cb_op *o = &d->plan->ops[op];
    cb_val x = o->in[0];
    cu_planes q = planes(d, x);
    int slots = cu_slots(d, x);
    *t = (cu_part){.w = d->weights[o->w[0]], .y = cu_value(d, o->out), .experts_local = -1, .x = find(m, x), .flag = -1,
                   .y_stride = cu_stride(d, o->out), .n_slots = cu_slots(d, o->out)};
    t->dx = t->x + q.stride / 4;
    t->xs = t->dx + padded(q.n_groups);
    if (o->kind == CB_LINEAR) {
        t->add = o->n[0];
        if (d->plan->values[x].pair) t->flag = t->xs + padded(q.n_groups);
        return;
    }
    if (o->n[0]) t->x_stride = q.stride / slots, t->dx_stride = q.n_groups / slots;
    t->experts_local = find(m, o->in[2]);
    if (t->experts_local < 0) t->experts = cu_value(d, o->in[2]);
}

/* ---- blocks and the ring ---- */

/* Thread blocks in proportion to the bytes of each part, one for each multiprocessor in all. */
static void share_blocks(const cb_dev *d, cu_decode *a)
{
    int64_t work = 0;
    for (int i = 0; i < a->n_parts; i++) {
        cu_part *t = &a->part[i];
        t->slot_tiles = (t->w.n_out + 15) / 16;
        t->n_tiles = t->slot_tiles * t->n_slots;
        t->slot_inverse = (uint32_t)((((uint64_t)1 << 32) + (uint64_t)t->slot_tiles - 1) / (uint64_t)t->slot_tiles);
        work += t->n_tiles * (t->w.row_bytes + 64);
    }
    for (int i = 0; i < a->n_parts; i++) {
        cu_part *t = &a->part[i];
        int64_t mine = d->n_sm * (t->n_tiles * (t->w.row_bytes + 64)) / work;
        t->block_tiles = mine > 0 ? (int32_t)((t->n_tiles + mine - 1) / mine) : t->n_tiles;
        a->block0[i + 1] = a->block0[i] + (t->n_tiles + t->block_tiles - 1) / t->block_tiles;
    }
}

/* The kernel for these parts: one of its own for formats that models are made of. */
static cu_kernel kernel_of(const cu_decode *a)
{
    static const struct {
        int bits, group, scale_type;
        cu_kernel k;
    } own[] = {{4, 64, CU_S_BF16, CU_K_DECODE_4G64}, {4, 32, CU_S_F16, CU_K_DECODE_4G32}, {2, 128, CU_S_F16, CU_K_DECODE_2G128}};
    for (size_t k = 0; k < sizeof own / sizeof *own; k++) {
        bool all = true;
        for (int i = 0; i < a->n_parts; i++) {
            const cu_weight *w = &a->part[i].w;
            all &= w->fmt == CU_FMT_AFFINE && w->bits == own[k].bits && w->group == own[k].group && w->scale_type == own[k].scale_type;
        }
        if (all) return own[k].k;
    }
    return CU_K_DECODE;
}

/* Room for the partial sums and the ring; false: they do not fit. Where a block has more tiles than warps for them, a warp takes
 * several segments, as many as a chunk holds. */
static bool place_ring(room *m, cu_decode *a)
{
    int slot = 0, chunks = 0, most_tiles = 0, warps = 0;
    for (int i = 0; i < a->n_parts; i++) {
        cu_part *t = &a->part[i];
        int bytes = slot_bytes(&t->w), per = (bytes - 16 * 128) / (32 * (t->w.scale_type == CU_S_F32 ? 4 : 2)), G = t->w.n_groups;
        while (t->seg_shift < 3 && (2 << t->seg_shift) * G <= CU_SEGMENTS * per && (4 << t->seg_shift) <= t->block_tiles) t->seg_shift++;
        int groups = ((G << t->seg_shift) + CU_SEGMENTS - 1) / CU_SEGMENTS, step = 2 << t->seg_shift;
        int c = (t->block_tiles + step - 1) / step * ((groups + per - 1) / per), w = t->block_tiles < step ? t->block_tiles * WARPS / step : WARPS;
        if (bytes > slot) slot = bytes;
        if (c > chunks) chunks = c;
        if (w > warps) warps = w;
        if (t->block_tiles > most_tiles) most_tiles = t->block_tiles;
    }
    a->red = take(m, most_tiles > PASS ? 2 * PASS * 128 : most_tiles * 128);
    a->stages = chunks < 2 ? 2 : chunks > 3 ? 4 : chunks + 1;
    int most = m->d->max_shared - 8192;
    while (a->stages > 2 && m->used * 4 + warps * a->stages * slot > (most < BLOCK_SHARED ? most : BLOCK_SHARED)) a->stages--;
    a->ring = take(m, warps * a->stages * slot / 4);
    return m->used * 4 <= most && m->used * 4 <= CU_ROW_SHARED;
}

int cu_decode_group(const cb_dev *d, const cu_sched *s, int32_t *group, cu_row_op *table, CUdeviceptr at, cu_launch *l, cu_decode *a)
{
    const cb_plan *p = d->plan;
    int n, n_pre = choose(s, d->weights, group, &n);
    if (!n || conflicts(p, group, n_pre, n)) return 0;
    room m = {.d = d};
    memset(a, 0, sizeof *a);
    for (int k = 0; k < n_pre; k++) place_op(&m, group, n, k, &table[a->n_ops++]);
    for (int k = n_pre; k < n; k++) {
        cb_val x = p->ops[group[k]].in[0];
        if (find(&m, x) < 0) {
            if (a->n_ops == n || a->n_ops == CU_MAX_ROW_OPS) return 0;
            place_planes(&m, x, &table[a->n_ops++]);
        }
        place_part(&m, group[k], &a->part[a->n_parts++]);
    }
    share_blocks(d, a);
    if (!place_ring(&m, a)) return 0;
    a->step = d->step;
    a->ops = (const cu_row_op *)at;
    l->decode = a;
    l->kernel = kernel_of(a);
    l->shared = m.used * 4;
    l->wanted = p->values[p->ops[group[n_pre]].out].wanted;
    return n;
}
