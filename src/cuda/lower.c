/* lower.c: the plan as a list of launches. Row-wise operations that are ready together become one launch, and so do linear
 * layers; an operation is ready when everything that must be ordered before it is in the list. */
#include "cuda/lower.h"
#include "cuda/few.h"
#include "cuda/fuse.h"
#include "cuda/tape.h"
#include "plan/layout.h"
#include <string.h>

/* Rows of an op: its own count for each of these. */
static int row_class(const cb_plan *p, const cb_op *o)
{
    const cb_value *v = &p->values[o->out >= 0 ? o->out : o->in[0]];
    return (v->wanted ? 1 : 0) + 2 * (v->slots > 1 ? v->slots : 0);
}

static bool is_row_op(const cb_op *o, bool single)
{
    switch (o->kind) {
    case CB_LINEAR: case CB_ATTENTION: case CB_CONV: case CB_DELTA: case CB_MOE_LINEAR: return false;
    case CB_MOE_SORT: return single;
    default: return true;
    }
}

static bool is_product(const cb_op *o) { return o->kind == CB_LINEAR || o->kind == CB_MOE_LINEAR; }

/* What is put beside each other in one launch must agree in this; negative: alone. */
static int key(const cu_sched *s, const cb_op *o)
{
    if (is_row_op(o, s->single)) {
        int width = s->p->values[o->out >= 0 ? o->out : o->in[0]].width, wide = s->many && width % 256 == 0;
        if (o->kind == CB_SOFTCAP || (o->kind == CB_KV_PUT && wide)) return -1;
        return row_class(s->p, o) + (wide ? 4096 + 256 * width : 0);
    }
    if (is_product(o) && s->ahead) return 1000 + s->p->values[o->out].wanted;
    return is_product(o) ? 1000 + (o->kind == CB_MOE_LINEAR) + 2 * row_class(s->p, o) : -1;
}

static bool same_format(const cb_plan *p, const cb_op *a, const cb_op *b)
{
    const cb_matrix *m = &p->weights[a->w[0]].matrix, *n = &p->weights[b->w[0]].matrix;
    return m->mode == n->mode && m->bits == n->bits && m->group == n->group && m->scale_dtype == n->scale_dtype;
}

static int ahead(const cu_sched *s, int i) { return s->ahead ? s->ahead[i] : 0; }

/* Does product i belong beside product `from`? One that is needed later only waits for the launch that is as urgent, unless this one's
 * kernel is made for its format: so a launch has one format, and the products of a shared expert stand beside those of its kind. */
static bool in_time(const cu_sched *s, int from, int i) { return ahead(s, i) >= ahead(s, from) || same_format(s->p, &s->p->ops[i], &s->p->ops[from]); }

/* On steps of one row any two row-wise ops may follow each other in one launch: there is but one thread block. */
static bool must_wait(const cu_sched *s, const cb_op *a, const cb_op *b)
{
    bool one_block = s->single && is_row_op(a, true) && is_row_op(b, true) && row_class(s->p, a) < 2 && row_class(s->p, b) < 2;
    return !one_block && cb_plan_must_wait(s->p, a, b);
}

/* Is everything that must come before op i done, or in the group of n ops and allowed beside it? */
static bool fits(const cu_sched *s, int i, const int32_t *group, int n, bool rows)
{
    const cb_op *o = &s->p->ops[i];
    for (int j = s->open; j < i; j++) {
        if (s->done[j] || !cb_plan_ordered(s->p, &s->p->ops[j], o)) continue;
        bool in_group = false;
        for (int k = 0; k < n; k++) in_group |= group[k] == j;
        if (!in_group || !rows || must_wait(s, &s->p->ops[j], o)) return false;
    }
    for (int k = 0; k < n && rows; k++) /* memory shared with a group member that comes later in the plan */
        if (group[k] > i && cb_plan_ordered(s->p, o, &s->p->ops[group[k]])) return false;
    return true;
}

/* Does op i belong to all layers that may be one launch? Then its launch has no op that does not. */
static bool is_apart(const cu_sched *s, int i) { return i >= s->apart && i < s->apart + s->n_apart; }

enum { WINDOW = 96 };

/* Begins with op `from` and adds what fits; returns the size of the group. */
static int gather(const cu_sched *s, int from, int32_t *group)
{
    const cb_plan *p = s->p;
    int n = 0, k = key(s, &p->ops[from]);
    bool rows = is_row_op(&p->ops[from], s->single);
    int most = k < 0 ? 1 : rows ? CU_MAX_ROW_OPS : CU_MAX_PARTS;
    group[n++] = from;
    for (int i = s->open; i < p->n_ops && i < from + WINDOW && n < most; i++)
        if (!s->done[i] && i != from && s->anchor[i] < 0 && key(s, &p->ops[i]) == k && (rows || in_time(s, from, i)) && is_apart(s, i) == is_apart(s, from) && fits(s, i, group, n, rows))
            group[n++] = i;
    return n;
}

/* How many products at most follow each other from an op to the end, itself not counted. */
static void look_ahead(const cb_plan *p, int32_t *ahead)
{
    for (int i = p->n_ops - 1; i >= 0; i--) {
        ahead[i] = 0;
        for (int j = i + 1; j < p->n_ops && j < i + WINDOW; j++) {
            int n = ahead[j] + is_product(&p->ops[j]);
            if (n > ahead[i] && cb_plan_ordered(p, &p->ops[i], &p->ops[j])) ahead[i] = n;
        }
    }
}

/* ---- fused patterns: one launch, placed by its first op ---- */

/* Patterns that interleave could wait for each other: of two the first is taken. */
static void find_patterns(const cb_dev *d, bool wanted, cu_sched *s)
{
    int32_t group[CU_MAX_FUSED], end = -1;
    for (int i = 0; i < s->p->n_ops; i++) s->anchor[i] = -1;
    for (int i = 0; i < s->p->n_ops && wanted; i++) {
        int n = cu_fuse(d, i, group);
        if (n == 0 || group[0] <= end) continue;
        end = group[n - 1];
        while (n) s->anchor[group[--n]] = i;
    }
}

/* Is all that must come before any op of the pattern done? */
static bool pattern_fits(const cu_sched *s, int anchor)
{
    for (int i = s->open; i < s->p->n_ops && i < anchor + WINDOW; i++)
        for (int j = s->open; j < i && s->anchor[i] == anchor; j++)
            if (!s->done[j] && s->anchor[j] != anchor && cb_plan_ordered(s->p, &s->p->ops[j], &s->p->ops[i])) return false;
    return true;
}

/* Does the launch of row-wise ops that begins with op i make something that a product waits for? */
static bool feeds_product(const cu_sched *s, int i)
{
    int32_t group[CU_MAX_ROW_OPS];
    for (int n = gather(s, i, group); n; n--)
        if (s->p->ops[group[n - 1]].kind == CB_QUANT) return true;
    return false;
}

/* The next op to begin a launch with: what most products wait for; then products first, what stands alone, and row-wise ops last, so that
 * as many as possible are ready by then; of those, what no product waits for can become part of a later launch. */
static int pick(const cu_sched *s)
{
    int best = -1, best_rank = 9, other = -1;
    for (int i = s->open; i < s->p->n_ops && i < s->open + WINDOW; i++) {
        if (s->done[i]) continue;
        if (s->anchor[i] >= 0 ? !pattern_fits(s, s->anchor[i]) : !fits(s, i, NULL, 0, false)) continue;
        int rank = is_product(&s->p->ops[i]) ? 0 : s->anchor[i] < 0 && is_row_op(&s->p->ops[i], s->single) ? 2 : 1;
        int later = best < 0 ? -1 : ahead(s, best) - ahead(s, i);
        if (later > 0) continue;
        if (later < 0 || rank < best_rank) {
            if (later < 0) other = -1;
            best = i;
            best_rank = rank;
        } else if (rank == 2 && best_rank == 2 && other < 0 && key(s, &s->p->ops[i]) != key(s, &s->p->ops[best])) other = i;
    }
    return best_rank == 2 && other >= 0 && !feeds_product(s, best) && feeds_product(s, other) ? other : best;
}

/* ---- shared memory of row-wise ops ---- */

bool cu_is_local(const cb_plan *p, const int32_t *group, int n, cb_val v)
{
    if (v < 0 || p->values[v].group || p->values[v].is_logits) return false;
    int first = p->n_ops;
    for (int k = 0; k < n; k++)
        if (p->ops[group[k]].out == v && group[k] < first) first = group[k];
    for (int i = first + 1; i < p->n_ops; i++) {
        bool inside = false;
        for (int j = 0; j < n; j++) inside |= group[j] == i;
        for (int j = 0; j < CB_MAX_IN && !inside; j++)
            if (p->ops[i].in[j] == v) return false;
    }
    return true;
}

typedef struct room {
    int32_t used, most;                /* floats */
    int32_t value[CU_MAX_ROW_OPS], at[CU_MAX_ROW_OPS]; /* values that live there now */
    int n;
} room;

static int32_t find_local(const room *m, cb_val v)
{
    for (int i = 0; i < m->n && v >= 0; i++)
        if (m->value[i] == v) return m->at[i];
    return -1;
}

/* Room for `floats`, or -1. */
static int32_t take(room *m, int floats)
{
    int32_t at = m->used, n = (floats + 31) / 32 * 32;
    if (at + n > m->most) return -1;
    m->used += n;
    return at;
}

/* Is what op k of the group makes read only before another value is made? k_rows_many has but one at a time in registers. */
static bool handed_on(const cb_plan *p, const int32_t *group, int n, int k)
{
    bool lost = false;
    for (int j = k + 1; j < n; j++) {
        const cb_op *o = &p->ops[group[j]];
        for (int i = 0; i < CB_MAX_IN && lost; i++)
            if (o->in[i] == p->ops[group[k]].out) return false;
        if (o->out == p->ops[group[k]].out) return true; /* in place: what follows reads that */
        lost |= o->kind != CB_QUANT && o->kind != CB_ROUTE;
    }
    return true;
}

/* Finds a place for the inputs and the output of an op of the group; when not fused, for a tap, all outputs stay in device memory. */
static int place_values(const cb_plan *p, const int32_t *group, int n, int k, bool fused, bool many, cu_row_op *r, room *m, cb_err *err)
{
    const cb_op *o = &p->ops[group[k]];
    for (int i = 0; i < CB_MAX_IN; i++) r->in_local[i] = find_local(m, o->in[i]);
    r->stage = -1;
    r->out_local = find_local(m, o->out);
    if (r->out_local < 0 && fused && o->kind != CB_QUANT && o->kind != CB_MOE_SORT && cu_is_local(p, group, n, o->out) &&
        (!many || handed_on(p, group, n, k))) {
        r->out_local = take(m, r->width);
        if (r->out_local >= 0) {
            m->value[m->n] = o->out;
            m->at[m->n++] = r->out_local;
        }
    }
    if (o->kind == CB_HADAMARD) r->stage = r->out_local >= 0 ? r->out_local : take(m, r->width);
    else if (o->kind == CB_RMSNORM && o->n[0] == 1) r->stage = r->in_local[0] >= 0 ? r->in_local[0] : take(m, r->width);
    else return 0;
    return r->stage < 0 ? cb_fail(err, CB_EFORMAT, "%s: a row of %d values does not fit the GPU's shared memory", o->name, r->width) : 0;
}

static int make_table(const cb_dev *d, const int32_t *group, int n, bool fused, bool many, cu_row_op *table, int32_t *shared, cb_err *err)
{
    room m = {.most = (d->max_shared - 8192 < CU_ROW_SHARED ? d->max_shared - 8192 : CU_ROW_SHARED) / 4};
    for (int k = 0; k < n; k++) {
        cu_row_op_of(d, group[k], &table[k]);
        int rc = place_values(d->plan, group, n, k, fused, many, &table[k], &m, err);
        if (rc < 0) return rc;
    }
    *shared = m.used * 4;
    return 0;
}

/* ---- schedules ---- */

/* The last launch becomes a part of the one before, if both are gated units of few rows and neither waits for the other. */
static void join_units(const cu_sched *s, cu_schedule *c)
{
    cu_launch *b = &c->launches[c->n_launches - 1], *a = b - 1;
    if (!s->ahead || c->n_launches < 2 || !a->few || !b->few || a->wanted || b->wanted) return;
    for (int k = 0; k < a->n + b->n; k++) {
        const cb_op *o = &s->p->ops[c->order[a->first + k]];
        if (o->out >= 0 && s->p->values[o->out].slots * (s->single ? 1 : CU_STREAM_ROWS) >= CU_FEW_ROWS) return;
        for (int i = 0; i < a->n && k >= a->n; i++)
            if (cb_plan_ordered(s->p, &s->p->ops[c->order[a->first + i]], o)) return;
    }
    if (!cu_few_pair(a->few, b->few)) return;
    a->n += b->n;
    c->n_launches--;
}

/* table: room for n_ops entries, whose place on the device is `at`. */
static int make(cb_dev *d, int which, cu_row_op *table, CUdeviceptr at, cb_err *err)
{
    const cb_plan *p = d->plan;
    cu_schedule *c = &d->schedules[which];
    bool few = which == CU_FOR_ONE || which == CU_FOR_FEW;
    cu_sched s = {.p = p, .single = which == CU_FOR_ONE, .many = which == CU_FOR_MANY, .done = cb_alloc_array((size_t)p->n_ops, 1),
                  .anchor = cb_alloc_array((size_t)p->n_ops, sizeof *s.anchor), .ahead = few ? cb_alloc_array((size_t)p->n_ops, sizeof *s.ahead) : NULL};
    c->order = cb_alloc_array((size_t)p->n_ops, sizeof *c->order);
    c->launches = cb_alloc_array((size_t)p->n_ops, sizeof *c->launches);
    int rc = s.done && s.anchor && (s.ahead || !few) && c->order && c->launches ? 0 : cb_fail(err, CB_ENOMEM, "no memory for %d launches", p->n_ops);
    c->first_wanted = -1;
    if (s.single) cu_tape_ops(d, &s.apart, &s.n_apart);
    if (rc == 0) find_patterns(d, few || which == CU_FOR_SINGLES, &s);
    if (rc == 0 && few) look_ahead(p, s.ahead);
    for (int n, i = 0; i < p->n_ops && rc == 0; i += n) {
        int32_t *group = c->order + i;
        cu_launch *l = &c->launches[c->n_launches++];
        CUdeviceptr here = at + (size_t)i * sizeof *table;
        *l = (cu_launch){.first = i, .anchor = -1};
        int from = which == CU_FOR_TAP ? i : pick(&s);
        n = 1;
        group[0] = from;
        l->anchor = s.anchor[from];
        if (l->anchor >= 0) n = cu_fuse(d, l->anchor, group);
        else if (which != CU_FOR_TAP) n = gather(&s, from, group);
        const cb_op *o = &p->ops[group[0]];
        l->wanted = o->out >= 0 && p->values[o->out].wanted;
        if (l->anchor < 0 && is_row_op(o, s.single)) {
            l->table = (const cu_row_op *)here;
            rc = make_table(d, group, n, which != CU_FOR_TAP, s.many, table + i, &l->shared, err);
            if (rc == 0 && which != CU_FOR_TAP) rc = cu_few_make(d, group, n, s.single, l->table, &l->few, err);
        }
        l->n = n;
        for (int k = 0; k < n; k++) s.done[group[k]] = 1;
        if (c->first_wanted < 0 && l->wanted) c->first_wanted = c->n_launches - 1;
        while (s.open < p->n_ops && s.done[s.open]) s.open++;
        join_units(&s, c);
    }
    if (c->first_wanted < 0) c->first_wanted = c->n_launches;
    cb_free(s.ahead);
    cb_free(s.done);
    cb_free(s.anchor);
    return rc;
}

int cu_lower(cb_dev *d, cb_err *err)
{
    size_t n = (size_t)d->plan->n_ops, bytes = n * CU_N_SCHEDULES * sizeof(cu_row_op);
    cu_row_op *table = cb_alloc_array(n * CU_N_SCHEDULES, sizeof *table);
    if (!table) return cb_fail(err, CB_ENOMEM, "no memory for %zu launches", n);
    CUresult r;
    int rc = 0;
    for (int i = 0; i < CU_N_SCHEDULES && rc == 0; i++)
        rc = make(d, i, table + (size_t)i * n, d->row_tables + (size_t)i * n * sizeof *table, err);
    if (rc == 0 && (r = d->cu.cuMemcpyHtoDAsync_(d->row_tables, table, bytes, d->stream)) != CUDA_SUCCESS) rc = cu_fail(&d->cu, r, "the launches", err);
    if (rc == 0 && (r = d->cu.cuStreamSynchronize_(d->stream)) != CUDA_SUCCESS) rc = cu_fail(&d->cu, r, "the launches", err);
    cb_free(table);
    return rc;
}

void cu_free_schedules(cb_dev *d)
{
    for (int i = 0; i < CU_N_SCHEDULES; i++) {
        for (int k = 0; k < d->schedules[i].n_launches; k++) cu_few_free(d->schedules[i].launches[k].few);
        cb_free(d->schedules[i].order);
        cb_free(d->schedules[i].launches);
    }
}
