/* route.cuh: the experts of a row (docs/arithmetic.md, section 8), chosen by one warp. */
#ifndef CB_CUDA_ROUTE_CUH
#define CB_CUDA_ROUTE_CUH
#include "cuda/common.cuh"
#include "plan/opkind.h"

/* Finite floats as integers in the same order, above 0; -0 equals +0. */
__device__ __forceinline__ unsigned ordered(float v)
{
    unsigned u = __float_as_uint(v);
    if ((u & 0x7fffffff) == 0) u = 0;
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}
__device__ __forceinline__ float from_ordered(unsigned u) { return __uint_as_float(u & 0x80000000u ? u & 0x7fffffff : ~u); }

/* A lane holds the logits of the PER experts lane, lane + 32, .. and what is chosen at ranks lane and lane + 32. One warp. */
template <int PER> __device__ __forceinline__ void route_in_registers(const cu_route &r, cu_step *step, int row)
{
    int lane = threadIdx.x % 32, n = r.n, k = r.k, id[2] = {lane, lane + 32};
    const float *z = r.z + (size_t)row * r.z_stride;
    float *y = r.y + (size_t)row * r.y_stride;
    float u[PER], p[2] = {0, 0}, m = 0, all = 1, sum = 0;
    unsigned key[PER];
    bool bad = false;
#pragma unroll
    for (int j = 0; j < PER; j++) u[j] = lane + 32 * j < n ? z[lane + 32 * j] : 0;
#pragma unroll
    for (int j = 0; j < PER; j++) {
        bad |= is_bad(u[j]);
        key[j] = lane + 32 * j < n ? ordered(u[j]) : 0;
    }
    bad = __any_sync(FULL, bad);
    if (bad) report_bad(step, r.op);
    for (int i = 0; i < k && !bad; i++) {
        unsigned best = 0, at = ~0u;
#pragma unroll
        for (int j = 0; j < PER; j++) best = max(best, key[j]);
        best = __reduce_max_sync(FULL, best);
#pragma unroll
        for (int j = 0; j < PER; j++) at = min(at, key[j] == best ? (unsigned)(lane + 32 * j) : ~0u);
        at = __reduce_min_sync(FULL, at);
#pragma unroll
        for (int j = 0; j < PER; j++)
            if (lane + 32 * j == (int)at) key[j] = 0;
        float logit = from_ordered(best);
        if (i == 0) m = logit;
        if (lane == i) id[0] = (int)at, p[0] = logit;
        if (lane + 32 == i) id[1] = (int)at, p[1] = logit;
    }
    if (r.kind == CB_ROUTE_SOFTMAX_ALL) {
        float s = 0;
#pragma unroll
        for (int j = 0; j < PER; j++)
            if (lane + 32 * j < n) s += cb_expf(u[j] - m);
        all = lane_fold(s);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        p[h] = cb_expf(p[h] - m);
        if (r.kind == CB_ROUTE_SOFTMAX_ALL) p[h] = p[h] / all;
    }
    for (int i = 0; i < k; i++) sum += __shfl_sync(FULL, i < 32 ? p[0] : p[1], i % 32);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int i = lane + 32 * h;
        if (i >= k) break;
        float v = p[h] / sum;
        ((int32_t *)y)[i] = id[h];
        y[k + i] = r.w ? v * r.w[id[h]] : v;
        if (!r.slots) continue;
        r.slots[i] = i;
        r.rows[i] = 0;
        ((int4 *)r.tiles)[i] = make_int4(id[h], i, 1, k);
    }
    if (r.slots && lane == 0) ((int4 *)r.tiles)[k] = make_int4(-1, 0, 0, 0);
}

__device__ __forceinline__ void route(const cu_route &r, cu_step *step, int row)
{
    if (r.n <= 256) route_in_registers<8>(r, step, row);
    else route_in_registers<32>(r, step, row);
}

/* The op CB_ROUTE of one row. */
__device__ __forceinline__ void route_row(const cu_row_op &o, cu_step *step, const float *z, float *y)
{
    cu_route r = {z, o.w, y, NULL, NULL, NULL, 0, 0, o.n[0], o.n[1], o.n[2], o.op};
    route(r, step, 0);
}

/* CB_MOE_SORT of a step of one row: each slot is a tile of its own, in any order. A warp or more. */
__device__ __forceinline__ void sort_one(const cu_sort &s)
{
    for (int i = threadIdx.x; i <= s.k; i += blockDim.x) {
        if (i < s.k) s.slots[i] = i;
        if (i < s.k) s.rows[i] = 0;
        ((int4 *)s.tiles)[i] = i < s.k ? make_int4(s.route[i], i, 1, s.k) : make_int4(-1, 0, 0, 0);
    }
}
#endif
