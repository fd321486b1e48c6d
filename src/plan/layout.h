/* layout.h: the last pass over a recorded plan. */
#ifndef CB_PLAN_LAYOUT_H
#define CB_PLAN_LAYOUT_H
#include "plan/plan.h"

/* Finds where each value lives and dies, gives memory to it (values whose lives do not meet share it), and marks the ops
 * before which all threads must meet. Sums parameters and bytes. */
int cb_plan_layout(cb_plan *p, cb_err *err);

/* After layout, for ops a before b of the plan. Ordered: b must not be run before a. Must wait: b may only start when every row of a
 * is done; not so for two row-wise ops on the same value. */
bool cb_plan_ordered(const cb_plan *p, const cb_op *a, const cb_op *b);
bool cb_plan_must_wait(const cb_plan *p, const cb_op *a, const cb_op *b);
/* Do two values stand in the same memory, or partly? */
bool cb_plan_share_memory(const cb_plan *p, cb_val a, cb_val b);
#endif
