/* backends.h: which backends are built in. Defined in backends/registry.c, so that run/ needs none of their
 * headers. */
#ifndef CB_PLAN_BACKENDS_H
#define CB_PLAN_BACKENDS_H
#include "plan/backend.h"

/* "cpu", ...; NULL when this build lacks it. */
const cb_backend *cb_backend_find(const char *name);
#endif
