/* probe.c: what this machine's memory gives to the team of threads: reads with the widest loads there are. */
#include "cpu/cpu.h"
#include "base/clock.h"

enum { FLOATS = 48 << 20 }; /* 192 MiB, more than the caches hold */

struct read_job {
    const cb_dev *d;
    const float *x;
    atomic_int bad;
};

static void read_share(void *ctx, int member, int n)
{
    struct read_job *j = ctx;
    int64_t a = (int64_t)FLOATS * member / n, b = (int64_t)FLOATS * (member + 1) / n;
    if (!j->d->k.all_finite(j->x + a, b - a)) atomic_store(&j->bad, 1);
}

int cpu_probe(cb_dev *d, cb_probe *out, cb_err *err)
{
    float *x = cb_alloc_aligned((size_t)FLOATS * 4);
    if (!x) return cb_fail(err, CB_ENOMEM, "no memory for a probe of %d MiB", FLOATS >> 18);
    for (int64_t i = 0; i < FLOATS; i++) x[i] = 1;
    struct read_job j = {.d = d, .x = x};
    double best = 1e9;
    for (int i = 0; i < 5; i++) {
        double t = cb_now();
        cb_pool_run(d->pool, read_share, &j);
        t = cb_now() - t;
        best = t < best ? t : best;
    }
    cb_free_aligned(x);
    *out = (cb_probe){.read_bytes = (double)FLOATS * 4 / best};
    return 0;
}
