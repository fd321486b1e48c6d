/* pool.h: a fixed team of threads that runs one function at a time; the caller is member 0. Members meet at barriers.
 * Waiting spins for about 50 microseconds, then sleeps in the kernel, so an idle engine costs nothing. */
#ifndef CB_BASE_POOL_H
#define CB_BASE_POOL_H
#include "base/err.h"

typedef struct cb_pool cb_pool;
typedef void (*cb_pool_fn)(void *ctx, int member, int n_members);

/* n_threads >= 1 (at most 256), the caller's included. */
int cb_pool_open(int n_threads, cb_pool **out, cb_err *err);
void cb_pool_close(cb_pool *p);
int cb_pool_size(const cb_pool *p);
/* Runs fn on every member and returns when all have finished. One caller at a time. */
void cb_pool_run(cb_pool *p, cb_pool_fn fn, void *ctx);
/* Inside fn: returns when every member has called it. Orders memory. */
void cb_pool_barrier(cb_pool *p, int member);
/* Physical cores this process may run on. */
int cb_physical_cores(void);
#endif
