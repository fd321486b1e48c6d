/* probe.c: what this GPU reaches at most, measured with events: reads of memory larger than its caches, and tensor-core products
 * that touch no memory. */
#include "cuda/cuda.h"

#define TRY(call, what)                                                                                                        \
    do {                                                                                                                       \
        CUresult r_ = (call);                                                                                                  \
        if (r_ != CUDA_SUCCESS) return cu_fail(&d->cu, r_, what, err);                                                         \
    } while (0)

/* Shortest of 7 launches, seconds. */
static int best_time(cb_dev *d, cu_kernel k, unsigned grid, unsigned threads, cu_probe *a, const CUevent *e, double *out, cb_err *err)
{
    *out = 1e9;
    for (int i = 0; i < 7; i++) {
        float ms;
        TRY(d->cu.cuEventRecord_(e[0], d->stream), "a probe");
        int rc = cu_kernel_launch(d, k, grid, 1, 1, threads, 0, a, err);
        if (rc < 0) return rc;
        TRY(d->cu.cuEventRecord_(e[1], d->stream), "a probe");
        TRY(d->cu.cuEventSynchronize_(e[1]), "a probe");
        TRY(d->cu.cuEventElapsedTime_(&ms, e[0], e[1]), "a probe");
        if (i && ms * 1e-3 < *out) *out = ms * 1e-3;
    }
    return 0;
}

static int measure(cb_dev *d, CUdeviceptr memory, size_t bytes, const CUevent *e, cb_probe *out, cb_err *err)
{
    cu_probe a = {.in = (const uint8_t *)memory, .out = (uint32_t *)memory, .n = (int64_t)(bytes / 16)};
    double t, best = 1e9;
    for (unsigned per = 1; per <= 4; per++) {
        int rc = best_time(d, CU_K_PROBE_READ, (unsigned)d->n_sm * per, 512, &a, e, &t, err);
        if (rc < 0) return rc;
        best = t < best ? t : best;
    }
    out->read_bytes = (double)bytes / best;
    a.n = 1 << 14;
    int rc = best_time(d, CU_K_PROBE_MMA, (unsigned)d->n_sm * 4, 256, &a, e, &t, err);
    out->matmul_flops = 2.0 * 16 * 8 * 16 * (double)a.n * 8 * d->n_sm * 4 / t;
    return rc;
}

int cu_run_probe(cb_dev *d, cb_probe *out, cb_err *err)
{
    size_t bytes = (size_t)1 << 30, least = (size_t)1 << 28; /* when the model has taken nearly all */
    CUdeviceptr memory;
    CUevent e[2] = {0};
    TRY(d->cu.cuCtxSetCurrent_(d->context), "the device");
    CUresult r = d->cu.cuMemAlloc_(&memory, bytes);
    while (r == CUDA_ERROR_OUT_OF_MEMORY && bytes > least) r = d->cu.cuMemAlloc_(&memory, bytes /= 2);
    if (r != CUDA_SUCCESS) return cu_fail(&d->cu, r, "memory for a probe", err);
    r = d->cu.cuMemsetD8Async_(memory, 0x5a, bytes, d->stream);
    if (r == CUDA_SUCCESS) r = d->cu.cuEventCreate_(&e[0], CU_EVENT_DEFAULT);
    if (r == CUDA_SUCCESS) r = d->cu.cuEventCreate_(&e[1], CU_EVENT_DEFAULT);
    int rc = r == CUDA_SUCCESS ? measure(d, memory, bytes, e, out, err) : cu_fail(&d->cu, r, "a probe", err);
    d->cu.cuMemFree_(memory);
    for (int i = 0; i < 2; i++)
        if (e[i]) d->cu.cuEventDestroy_(e[i]);
    return rc;
}
