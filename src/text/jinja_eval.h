/* jinja_eval.h: what the evaluator and loops share. Inside src/text/jinja*.c only. */
#ifndef CB_TEXT_JINJA_EVAL_H
#define CB_TEXT_JINJA_EVAL_H
#include "text/jinja_ast.h"

/* The variables of a loop body, macro call or block; the top level's are cb_jr.globals. Lookups go outward. Macros keep the
 * scope they were made in and see its variables as they are when called. */
typedef struct cb_jvar {
    uint32_t name;
    cb_jv v;
} cb_jvar;
struct cb_jscope {
    cb_jscope *up;
    cb_jvar *vars;
    uint32_t n, cap;
};

/* A {% for %} under way: also the value of its variable `loop`. */
typedef struct cb_jloop {
    const cb_jnode *node;
    cb_jiter it;
    cb_jscope *test_scope; /* for the loop's `if`, or NULL */
    cb_jvec ahead;         /* items read early, for loop.last and its like */
    size_t ahead_pos;
    int64_t index0; /* -1 before the first item */
    int64_t length; /* -1: not known yet */
    cb_jv before, current, last_changed;
} cb_jloop;

cb_jscope *cb_j_scope(cb_jr *r, cb_jscope *up);
void cb_j_assign(cb_jr *r, const cb_jnode *target, cb_jv v); /* in r->scope */
void cb_j_set(cb_jr *r, uint32_t name, cb_jv v);
cb_jv cb_j_eval(cb_jr *r, const cb_jnode *n);

/* False, rc set: not iterable. */
bool cb_j_loop_init(cb_jr *r, cb_jloop *l, const cb_jnode *node, cb_jv seq);
/* False: the end, or rc is set. */
bool cb_j_loop_next(cb_jr *r, cb_jloop *l, cb_jv *item);
#endif
