/* route.cuh: the experts of a row (docs/arithmetic.md, section 8), chosen by one warp. */
#ifndef CB_CUDA_ROUTE_CUH
#define CB_CUDA_ROUTE_CUH
#include "cuda/common.cuh"
#include "plan/opkind.h"

/* k times the largest of what is left, ties to the lower expert: a lane holds the PER experts lane, lane + 32, .. as ordered keys. */
template <int PER> __device__ __forceinline__ void choose(const float *z, int n, int k, int32_t *ids)
{
    int lane = threadIdx.x % 32;
    unsigned key[PER];
#pragma unroll
    for (int j = 0; j < PER; j++) {
        int e = lane + 32 * j;
        unsigned u = e < n ? __float_as_uint(z[e]) : 0;
        if ((u & 0x7fffffff) == 0) u = 0; /* -0 equals +0 */
        u = u & 0x80000000u ? ~u : u | 0x80000000u;
        key[j] = e < n ? u : 0; /* 0: none; logits are finite here */
    }
    for (int i = 0; i < k; i++) {
        unsigned best = 0, at = ~0u;
#pragma unroll
        for (int j = 0; j < PER; j++) best = key[j] > best ? key[j] : best;
        best = __reduce_max_sync(FULL, best);
#pragma unroll
        for (int j = PER - 1; j >= 0; j--) at = key[j] == best ? lane + 32 * j : at;
        at = __reduce_min_sync(FULL, at);
#pragma unroll
        for (int j = 0; j < PER; j++)
            if (lane + 32 * j == (int)at) key[j] = 0;
        if (lane == 0) ids[i] = (int)at;
    }
}

/* The op CB_ROUTE: the k experts of n logits z. One warp. */
__device__ __forceinline__ void choose_row(const cu_row_op &o, const float *z, int32_t *ids, cu_step *step)
{
    int lane = threadIdx.x % 32, n = o.n[0], k = o.n[1];
    bool bad = false;
    for (int e = lane; e < n; e += 32) bad |= is_bad(z[e]);
    if (__any_sync(FULL, bad)) {
        report_bad(step, o.op);
        for (int i = lane; i < k; i += 32) ids[i] = i;
    } else if (n <= 256) choose<8>(z, n, k, ids);
    else choose<32>(z, n, k, ids);
    __syncwarp();
}

/* And their weights w. One warp. */
__device__ __forceinline__ void weigh_row(const cu_row_op &o, const float *z, const int32_t *ids, float *w)
{
    int lane = threadIdx.x % 32, n = o.n[0], k = o.n[1];
    float m = z[ids[0]], all = 1;
    bool soft_all = o.n[2] == CB_ROUTE_SOFTMAX_ALL;
    if (soft_all) {
        float sum = 0;
        for (int e = lane; e < n; e += 32) sum += cb_expf(z[e] - m);
        all = lane_fold(sum);
    }
    for (int i = lane; i < k; i += 32) {
        float p = cb_expf(z[ids[i]] - m);
        w[i] = soft_all ? p / all : p;
    }
    __syncwarp();
    float sum = 0;
    for (int i = 0; i < k; i++) sum += w[i];
    __syncwarp();
    for (int i = lane; i < k; i += 32) {
        float v = w[i] / sum;
        w[i] = o.w ? v * o.w[ids[i]] : v;
    }
}

/* Both. y: where ids and weights go. */
__device__ __forceinline__ void route_row(const cu_row_op &o, cu_step *step, const float *z, float *y)
{
    choose_row(o, z, (int32_t *)y, step);
    weigh_row(o, z, (const int32_t *)y, y + o.n[1]);
}
#endif
