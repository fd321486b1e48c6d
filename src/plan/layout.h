/* layout.h: the last pass over a recorded plan. */
#ifndef CB_PLAN_LAYOUT_H
#define CB_PLAN_LAYOUT_H
#include "plan/plan.h"

/* Finds where each value lives and dies, gives memory to it (values whose lives do not meet share it), and marks the ops
 * before which all threads must meet. Sums parameters and bytes. */
int cb_plan_layout(cb_plan *p, cb_err *err);
#endif
