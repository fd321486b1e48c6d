/* probe.c: what this machine's memory and its vector units give to the team of threads. */
#include "cpu/cpu.h"
#include "base/clock.h"
#include <string.h>

/* More than the caches hold, read window by window: one takes a millisecond or less, so that some are read undisturbed on a machine
 * that others use too. */
enum { WINDOW = 1 << 20, N_WINDOWS = 32 }; /* numbers of 8 bytes */

struct read_job {
    const uint64_t *x;
    atomic_uint_fast64_t sum; /* so that nothing is optimised away */
};

/* Two loads a cycle, of 8 bytes, are more than memory can feed to a core. */
static void read_share(void *ctx, int member, int n)
{
    struct read_job *j = ctx;
    const uint64_t *p = j->x + (int64_t)WINDOW * member / n, *end = j->x + (int64_t)WINDOW * (member + 1) / n;
    uint64_t a = 0, b = 0, c = 0, d = 0;
    for (; end - p >= 4; p += 4) a += p[0], b += p[1], c += p[2], d += p[3];
    for (; p < end; p++) a += *p;
    atomic_fetch_add(&j->sum, a + b + c + d);
}

static int read_rate(cb_dev *d, double *out, cb_err *err)
{
    uint64_t *x = cb_alloc_aligned((size_t)WINDOW * N_WINDOWS * sizeof *x);
    if (!x) return cb_fail(err, CB_ENOMEM, "no memory for a probe of %d MiB", WINDOW / (1 << 17) * N_WINDOWS);
    for (int64_t i = 0; i < (int64_t)WINDOW * N_WINDOWS; i++) x[i] = 1;
    struct read_job j = {.x = x};
    double best = 1e9, until = cb_now() + 0.4;
    for (int i = 0; i < 2 * N_WINDOWS || cb_now() < until; i++) {
        j.x = x + (int64_t)(i % N_WINDOWS) * WINDOW;
        double t = cb_now();
        cb_pool_run(d->pool, read_share, &j);
        t = cb_now() - t;
        best = t < best ? t : best;
    }
    cb_free_aligned(x);
    *out = (double)WINDOW * sizeof *x / best;
    return 0;
}

/* ---- products ---- */

enum { ROUNDS = 1 << 16 }; /* about half a millisecond */

struct product_job {
    double (*fn)(int64_t rounds);
};

static void product_share(void *ctx, int member, int n) { ((const struct product_job *)ctx)->fn(ROUNDS); }

static double product_rate(cb_dev *d)
{
    struct product_job j = {NULL};
#if defined __x86_64__
    if (!strcmp(d->k.name, "avx2")) j.fn = cpu_products_avx2;
    if (!strcmp(d->k.name, "avx512")) j.fn = cpu_products_avx512;
#elif defined __aarch64__
    if (!strcmp(d->k.name, "neon")) j.fn = cpu_products_neon;
#endif
    if (!j.fn) return 0;
    double best = 1e9, until = cb_now() + 0.1;
    for (int i = 0; i < 5 || cb_now() < until; i++) {
        double t = cb_now();
        cb_pool_run(d->pool, product_share, &j);
        t = cb_now() - t;
        best = t < best ? t : best;
    }
    return 2 * j.fn(1) * ROUNDS * cb_pool_size(d->pool) / best;
}

int cpu_probe(cb_dev *d, cb_probe *out, cb_err *err)
{
    *out = (cb_probe){0};
    int rc = read_rate(d, &out->read_bytes, err);
    if (rc == 0) out->matmul_flops = product_rate(d);
    return rc;
}
