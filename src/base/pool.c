#include "base/pool.h"
#include "base/mem.h"
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

/* 1200 pauses are about 50 microseconds where a pause takes 140 cycles; longer spins hurt when cores are shared. */
enum { MAX_THREADS = 256, SPIN = 1200 };

/* A word that others wait on, alone in its cache line. */
typedef struct cell {
    _Alignas(64) atomic_uint v;
    atomic_uint sleepers;
} cell;

struct cb_pool {
    int n;
    pthread_t threads[MAX_THREADS];
    struct member {
        cb_pool *pool;
        int id;
    } members[MAX_THREADS];
    cb_pool_fn fn;
    void *ctx;
    cell job;     /* number of the current job */
    cell arrived; /* barrier: members that came in this phase */
    cell phase;   /* barrier: phases passed */
    atomic_bool quit;
};

static inline void relax(void)
{
#if defined __x86_64__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("yield");
#endif
}

static void cell_wait(cell *c, unsigned old)
{
    for (int i = 0; i < SPIN; i++) {
        if (atomic_load_explicit(&c->v, memory_order_acquire) != old) return;
        relax();
    }
    atomic_fetch_add(&c->sleepers, 1);
    while (atomic_load(&c->v) == old) syscall(SYS_futex, &c->v, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
    atomic_fetch_sub(&c->sleepers, 1);
}

static void cell_bump(cell *c)
{
    atomic_fetch_add(&c->v, 1);
    if (atomic_load(&c->sleepers)) syscall(SYS_futex, &c->v, FUTEX_WAKE_PRIVATE, MAX_THREADS, NULL, NULL, 0);
}

void cb_pool_barrier(cb_pool *p, int member)
{
    (void)member;
    if (p->n == 1) return;
    unsigned phase = atomic_load_explicit(&p->phase.v, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&p->arrived.v, 1, memory_order_acq_rel) + 1 == (unsigned)p->n) {
        atomic_store_explicit(&p->arrived.v, 0, memory_order_relaxed);
        cell_bump(&p->phase);
    } else
        cell_wait(&p->phase, phase);
}

static void *work(void *arg)
{
    struct member *m = arg;
    cb_pool *p = m->pool;
    for (unsigned job = 0;; job++) {
        cell_wait(&p->job, job);
        if (atomic_load(&p->quit)) return NULL;
        p->fn(p->ctx, m->id, p->n);
        cb_pool_barrier(p, m->id);
    }
}

int cb_pool_open(int n, cb_pool **out, cb_err *err)
{
    *out = NULL;
    if (n < 1 || n > MAX_THREADS) return cb_fail(err, CB_EUSAGE, "threads: %d, allowed are 1 to %d", n, MAX_THREADS);
    cb_pool *p = cb_alloc_aligned(sizeof *p);
    if (!p) return cb_fail(err, CB_ENOMEM, "no memory for a thread pool");
    p->n = 1;
    for (int i = 1; i < n; i++) {
        p->members[i] = (struct member){p, i};
        /* Members read p->n only after the first job, which is after the last of them was made. */
        if (pthread_create(&p->threads[i], NULL, work, &p->members[i]) != 0) {
            cb_pool_close(p);
            return cb_fail(err, CB_ENOMEM, "cannot start thread %d of %d", i + 1, n);
        }
        p->n = i + 1;
    }
    *out = p;
    return 0;
}

void cb_pool_close(cb_pool *p)
{
    if (!p) return;
    atomic_store(&p->quit, true);
    cell_bump(&p->job);
    for (int i = 1; i < p->n; i++) pthread_join(p->threads[i], NULL);
    cb_free_aligned(p);
}

int cb_pool_size(const cb_pool *p) { return p->n; }

void cb_pool_run(cb_pool *p, cb_pool_fn fn, void *ctx)
{
    if (p->n == 1) {
        fn(ctx, 0, 1);
        return;
    }
    p->fn = fn;
    p->ctx = ctx;
    cell_bump(&p->job);
    fn(ctx, 0, p->n);
    cb_pool_barrier(p, 0);
}

int cb_physical_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    int n = 0;
    for (int c = 0; c < CPU_SETSIZE; c++) {
        if (!CPU_ISSET(c, &set)) continue;
        char path[96];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", c);
        FILE *f = fopen(path, "re");
        int first = c;
        if (f) {
            if (fscanf(f, "%d", &first) != 1) first = c;
            fclose(f);
        }
        if (first == c || !CPU_ISSET(first, &set)) n++; /* count each core by its first allowed sibling */
    }
    return n > 0 ? n : 1;
}
