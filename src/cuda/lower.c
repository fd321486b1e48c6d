/* lower.c: the plan as a list of launches. Row-wise operations that are ready together become one launch, and so do linear layers
 * of one format; an operation is ready when everything that must be ordered before it is in the list. */
#include "cuda/lower.h"
#include "plan/layout.h"
#include <string.h>

/* Rows of an op: its own count for each of these. */
static int row_class(const cb_plan *p, const cb_op *o)
{
    const cb_value *v = &p->values[o->out >= 0 ? o->out : o->in[0]];
    return (v->wanted ? 1 : 0) + 2 * (v->slots > 1 ? v->slots : 0);
}

bool cu_is_row_op(const cb_op *o)
{
    switch (o->kind) {
    case CB_LINEAR: case CB_ATTENTION: case CB_CONV: case CB_DELTA: case CB_MOE_SORT: case CB_MOE_LINEAR: return false;
    default: return true;
    }
}

static bool is_product(const cb_op *o) { return o->kind == CB_LINEAR || o->kind == CB_MOE_LINEAR; }

/* What is put beside each other in one launch must agree in this. */
static int key(const cb_dev *d, const cb_op *o)
{
    if (cu_is_row_op(o)) return o->kind == CB_SOFTCAP ? -1 : 1 + row_class(d->plan, o);
    if (!is_product(o)) return -1; /* alone */
    return 1000 + 100 * (o->kind == CB_MOE_LINEAR) + 200 * row_class(d->plan, o) + (int)cu_gemv_kernel(&d->weights[o->w[0]]);
}

typedef struct sched {
    const cb_plan *p;
    uint8_t *done;   /* [n_ops] */
    int open;        /* every op before it is done */
} sched;

/* Is everything that must come before op i done, or in the group of n ops and allowed beside it? */
static bool fits(const sched *s, int i, const int32_t *group, int n, bool rows)
{
    const cb_op *o = &s->p->ops[i];
    for (int j = s->open; j < i; j++) {
        if (s->done[j] == 1 || !cb_plan_ordered(s->p, &s->p->ops[j], o)) continue;
        bool in_group = false;
        for (int k = 0; k < n; k++) in_group |= group[k] == j;
        if (!in_group || !rows || cb_plan_must_wait(s->p, &s->p->ops[j], o)) return false;
    }
    for (int k = 0; k < n && rows; k++) /* memory shared with a group member that comes later in the plan */
        if (group[k] > i && cb_plan_ordered(s->p, o, &s->p->ops[group[k]])) return false;
    return true;
}

enum { WINDOW = 96 };

/* Begins with op `from` and adds what fits; returns the size of the group. */
static int gather(const cb_dev *d, const sched *s, int from, int32_t *group)
{
    const cb_plan *p = s->p;
    int n = 0, k = key(d, &p->ops[from]);
    bool rows = cu_is_row_op(&p->ops[from]);
    int most = k < 0 ? 1 : rows ? CU_MAX_ROW_OPS : CU_MAX_PARTS;
    group[n++] = from;
    for (int i = from + 1; i < p->n_ops && i < from + WINDOW && n < most; i++)
        if (!s->done[i] && key(d, &p->ops[i]) == k && fits(s, i, group, n, rows)) group[n++] = i;
    return n;
}

/* The next op to begin a launch with: products first, then what stands alone, and row-wise ops last, so that as many as possible
 * are ready by then. */
static int pick(const cb_dev *d, const sched *s)
{
    int best = -1, best_rank = 9;
    for (int i = s->open; i < s->p->n_ops && i < s->open + WINDOW; i++) {
        if (s->done[i] || !fits(s, i, NULL, 0, false)) continue;
        int rank = is_product(&s->p->ops[i]) ? 0 : cu_is_row_op(&s->p->ops[i]) ? 2 : 1;
        if (rank < best_rank) best = i, best_rank = rank;
    }
    (void)d;
    return best;
}

int cu_lower(cb_dev *d, cb_err *err)
{
    const cb_plan *p = d->plan;
    size_t n_ops = (size_t)p->n_ops;
    sched s = {.p = p, .done = cb_alloc_array(n_ops, 1)};
    d->order = cb_alloc_array(n_ops, sizeof *d->order);
    d->launches = cb_alloc_array(n_ops, sizeof *d->launches);
    if (!s.done || !d->order || !d->launches) {
        cb_free(s.done);
        return cb_fail(err, CB_ENOMEM, "no memory for %zu launches", n_ops);
    }
    int at = 0;
    d->first_wanted = -1;
    while (at < p->n_ops) {
        int from = pick(d, &s), n = gather(d, &s, from, d->order + at);
        for (int k = 0; k < n; k++) s.done[d->order[at + k]] = 1;
        const cb_op *o = &p->ops[from];
        if (d->first_wanted < 0 && o->out >= 0 && p->values[o->out].wanted) d->first_wanted = d->n_launches;
        d->launches[d->n_launches++] = (cu_launch){at, n};
        at += n;
        while (s.open < p->n_ops && s.done[s.open]) s.open++;
    }
    if (d->first_wanted < 0) d->first_wanted = d->n_launches;
    cb_free(s.done);
    return 0;
}
