#include "plan/layout.h"
#include <string.h>

/* Quantisations are recorded with the product that wants them. Where a row-wise op made their input they move up to it: on its way
 * back to the rows a team meets once, not once more in the middle of products. */
static void hoist_quants(cb_plan *p)
{
    for (int i = 1; i < p->n_ops; i++) {
        cb_op o = p->ops[i];
        if (o.kind != CB_QUANT) continue;
        int from = i - 1;
        while (from >= 0 && p->ops[from].out != o.in[0]) from--;
        if (from < 0 || !p->ops[from].row_wise) continue;
        memmove(p->ops + from + 2, p->ops + from + 1, (size_t)(i - from - 1) * sizeof o);
        p->ops[from + 1] = o;
    }
}

/* Values an op reads: its inputs, and its output when it works in place (that is among the inputs already). */
static void find_lives(cb_plan *p)
{
    for (int i = 0; i < p->n_ops; i++) {
        const cb_op *o = &p->ops[i];
        for (int k = 0; k < CB_MAX_IN; k++)
            if (o->in[k] >= 0) p->values[o->in[k]].last = i;
        if (o->out < 0) continue;
        cb_value *v = &p->values[o->out];
        if (v->first < 0) v->first = i;
        v->last = i;
    }
}

/* Memory is given to the next value only some ops after the last use: neighbours then need not wait for each other, and the GPU
 * can put more of them into one launch. Planes stand farther from the row that their op's launch begins with. */
enum { SLACK = 12, PLANES_SLACK = 15 };

static int slack(const cb_value *v) { return v->group ? PLANES_SLACK : SLACK; }

static bool lives_meet(const cb_value *a, const cb_value *b)
{
    return a->first <= b->last + slack(a) && b->first <= a->last + slack(b);
}

/* Memory per row of a step. */
static size_t span(const cb_value *v) { return v->row_bytes * (size_t)(v->slots > 1 ? v->slots : 1); }

/* First fit in order of birth: the lowest offset that no living neighbour occupies. Plans are short; n^2 is fine. */
static void give_memory(cb_plan *p)
{
    size_t top = 0;
    for (int i = 0; i < p->n_values; i++) {
        cb_value *v = &p->values[i];
        if (v->is_logits || v->first < 0) continue;
        v->row_bytes = (v->row_bytes + 63) & ~(size_t)63;
        size_t at = 0;
        for (bool moved = true; moved;) {
            moved = false;
            for (int j = 0; j < i; j++) {
                const cb_value *u = &p->values[j];
                if (u->is_logits || u->first < 0 || !lives_meet(u, v)) continue;
                if (at < u->offset + span(u) && u->offset < at + span(v)) {
                    at = u->offset + span(u);
                    moved = true;
                }
            }
        }
        v->offset = at;
        if (at + span(v) > top) top = at + span(v);
    }
    p->scratch_row_bytes = top;
}

static bool share_memory(const cb_value *a, const cb_value *b)
{
    if (a->is_logits || b->is_logits) return a == b;
    return a->offset < b->offset + span(b) && b->offset < a->offset + span(a);
}

/* Does the order of a and b matter: does one write what the other touches? `rows` lets two ops pass that touch the same value. */
static bool clash(const cb_plan *p, const cb_op *a, const cb_op *b, bool rows)
{
    if (a->kind == CB_KV_PUT && b->kind == CB_ATTENTION) return true;
    for (int i = -1; i < CB_MAX_IN; i++) {
        cb_val va = i < 0 ? a->out : a->in[i];
        if (va < 0) continue;
        for (int j = -1; j < CB_MAX_IN; j++) {
            cb_val vb = j < 0 ? b->out : b->in[j];
            bool writes = i < 0 || j < 0;
            if (vb < 0 || !writes || !share_memory(&p->values[va], &p->values[vb])) continue;
            if (!(rows && va == vb)) return true;
        }
    }
    return false;
}

bool cb_plan_share_memory(const cb_plan *p, cb_val a, cb_val b) { return share_memory(&p->values[a], &p->values[b]); }

bool cb_plan_ordered(const cb_plan *p, const cb_op *a, const cb_op *b) { return clash(p, a, b, false); }

/* Two row-wise ops keep each row on one thread, so they may follow each other on the same value; through shared memory of
 * different values rows do not coincide. */
bool cb_plan_must_wait(const cb_plan *p, const cb_op *a, const cb_op *b) { return clash(p, a, b, a->row_wise && b->row_wise); }

/* A convolution reads the channels that the same thread's share of a product has written. */
static bool same_channels(const cb_plan *p, const cb_op *a, const cb_op *b)
{
    return a->kind == CB_LINEAR && b->kind == CB_CONV && a->out == b->in[0] &&
           !share_memory(&p->values[a->in[0]], &p->values[b->out]) && !share_memory(&p->values[a->out], &p->values[b->out]);
}

static void mark_barriers(cb_plan *p)
{
    int since = 0;
    for (int i = 0; i < p->n_ops; i++) {
        bool wait = false;
        for (int j = since; j < i && !wait; j++) wait = cb_plan_must_wait(p, &p->ops[j], &p->ops[i]) && !same_channels(p, &p->ops[j], &p->ops[i]);
        p->ops[i].barrier = wait;
        if (wait) since = i;
    }
}

int cb_plan_layout(cb_plan *p, cb_err *err)
{
    if (!p->n_ops) return cb_fail(err, CB_EFORMAT, "plan: %s recorded nothing", p->family);
    hoist_quants(p);
    find_lives(p);
    give_memory(p);
    mark_barriers(p);
    for (int i = 0; i < p->n_weights; i++) {
        const cb_weight *w = &p->weights[i];
        p->n_params += w->is_vector ? (uint64_t)w->n : (uint64_t)(w->matrix.stack * w->matrix.rows * w->matrix.cols);
        p->weight_bytes += w->is_vector ? w->tensor->bytes : w->matrix.bytes;
    }
    return 0;
}
