#include "text/jinja_eval.h"
#include "text/jinja_filter.h"
#include <string.h>

/* Loops read one item at a time, as jinja2 does: a loop's `if` may look at what the body of the item before has changed. Only
 * loop.last, loop.nextitem and (with an `if`, or over a generator) loop.length read ahead. */

bool cb_j_loop_init(cb_jr *r, cb_jloop *l, const cb_jnode *node, cb_jv seq)
{
    *l = (cb_jloop){.node = node, .index0 = -1, .length = -1};
    if (!cb_j_iter(r, &l->it, seq)) return false;
    if (node->c) {
        l->test_scope = cb_j_scope(r, r->scope);
        return l->test_scope != NULL;
    }
    if (cb_j_has_len(seq)) l->length = cb_j_len(r, seq);
    return true;
}

/* The next item that passes the loop's `if`. */
static bool pull(cb_jr *r, cb_jloop *l, cb_jv *item)
{
    while (cb_j_next(r, &l->it, item)) {
        if (!l->test_scope) return true;
        cb_jscope *scope = r->scope;
        const cb_jnode *at = r->at;
        l->test_scope->n = 0;
        r->scope = l->test_scope;
        cb_j_assign(r, l->node->a, *item);
        bool pass = cb_j_truth(r, cb_j_eval(r, l->node->c));
        r->scope = scope;
        if (r->rc) return false;
        r->at = at;
        if (pass) return true;
    }
    return false;
}

bool cb_j_loop_next(cb_jr *r, cb_jloop *l, cb_jv *item)
{
    if (l->ahead_pos < l->ahead.n) *item = l->ahead.v[l->ahead_pos++];
    else if (!pull(r, l, item)) return false;
    if (l->ahead_pos == l->ahead.n) l->ahead.n = l->ahead_pos = 0;
    l->index0++;
    l->before = l->current;
    l->current = *item;
    return !r->rc;
}

static bool peek(cb_jr *r, cb_jloop *l, cb_jv *item)
{
    if (l->ahead_pos == l->ahead.n) {
        if (!pull(r, l, item)) return false;
        cb_j_push(r, &l->ahead, *item);
        if (r->rc) return false;
    }
    *item = l->ahead.v[l->ahead_pos];
    return true;
}

static int64_t length(cb_jr *r, cb_jloop *l)
{
    cb_jv item;
    if (l->length < 0) {
        while (pull(r, l, &item)) cb_j_push(r, &l->ahead, item);
        l->length = l->index0 + 1 + (int64_t)(l->ahead.n - l->ahead_pos);
    }
    return l->length;
}

static cb_jloop *loop_of(cb_jv v) { return v.loop; }

static CB_JRAW(cycle)
{
    if (!call->n_pos) return cb_j_fail(r, "no items for cycling given");
    return call->pos[loop_of(v)->index0 % call->n_pos];
}

static CB_JRAW(changed)
{
    cb_jloop *l = loop_of(v);
    cb_jv *copy = cb_j_get(r, (size_t)call->n_pos, sizeof *copy);
    if (!copy) return cb_j_undef();
    if (call->n_pos) memcpy(copy, call->pos, (size_t)call->n_pos * sizeof *copy);
    cb_jv now = cb_j_list(r, CB_J_TUPLE, copy, (size_t)call->n_pos);
    if (l->last_changed.type != CB_J_MISSING && cb_j_eq(r, l->last_changed, now)) return cb_j_bool(false);
    l->last_changed = now;
    return cb_j_bool(true);
}

static const cb_jfunc loop_methods[] = {{"cycle", NULL, cb_jf_cycle, NULL, 0}, {"changed", NULL, cb_jf_changed, NULL, 0}};

enum {
    L_INDEX,
    L_INDEX0,
    L_FIRST,
    L_LAST,
    L_LENGTH,
    L_REVINDEX,
    L_REVINDEX0,
    L_PREVITEM,
    L_NEXTITEM,
    L_DEPTH,
    L_DEPTH0,
    L_CYCLE,
    L_CHANGED
};
static const char *const attrs[] = {"index",     "index0",   "first",    "last",  "length", "revindex", "revindex0",
                                    "previtem", "nextitem", "depth", "depth0", "cycle",    "changed"};

cb_jv cb_j_loop_attr(cb_jr *r, cb_jv loop, const char *s, size_t n)
{
    cb_jloop *l = loop.loop;
    cb_jv item;
    int i = 0, count = sizeof attrs / sizeof *attrs;
    while (i < count && (strlen(attrs[i]) != n || memcmp(attrs[i], s, n))) i++;
    switch (i) {
    case L_INDEX: return cb_j_int(l->index0 + 1);
    case L_INDEX0: return cb_j_int(l->index0);
    case L_FIRST: return cb_j_bool(l->index0 == 0);
    case L_LAST: return cb_j_bool(!peek(r, l, &item));
    case L_LENGTH: return cb_j_int(length(r, l));
    case L_REVINDEX: return cb_j_int(length(r, l) - l->index0);
    case L_REVINDEX0: return cb_j_int(length(r, l) - l->index0 - 1);
    case L_PREVITEM: return l->index0 > 0 ? l->before : cb_j_hint(r, "there is no previous item");
    case L_NEXTITEM: return peek(r, l, &item) ? item : cb_j_hint(r, "there is no next item");
    case L_DEPTH: return cb_j_int(1);
    case L_DEPTH0: return cb_j_int(0);
    case L_CYCLE:
    case L_CHANGED: {
        cb_jbound *b = cb_j_get(r, 1, sizeof *b);
        if (!b) return cb_j_undef();
        *b = (cb_jbound){loop, &loop_methods[i - L_CYCLE]};
        return (cb_jv){.type = CB_J_METHOD, .bound = b};
    }
    }
    return CB_J(CB_J_MISSING);
}
