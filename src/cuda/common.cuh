/* common.cuh: what every kernel needs: the arithmetic of kernels/num.h on the device, lane trees on a warp, and programmatic
 * dependent launch. Compiled with -fmad=false: an fma stands only where it is written. */
#ifndef CB_CUDA_COMMON_CUH
#define CB_CUDA_COMMON_CUH
#include "kernels/num.h"
#include "cuda/abi.h"
#include "cuda/ptx.cuh"
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define FULL 0xffffffffu

/* Do kernels of a step of so many rows run through their code before their wait (heads.cuh)? */
__device__ __forceinline__ bool rehearses(int rows)
{
#if __CUDA_ARCH__ >= 900
    return rows <= CU_REHEARSE_ROWS;
#else
    return false;
#endif
}

/* The lane tree: a warp's lane j holds lane j; all lanes return the sum, because a + b is b + a. */
__device__ __forceinline__ float lane_fold(float v)
{
#pragma unroll
    for (int w = 16; w; w /= 2) v = v + __shfl_xor_sync(FULL, v, w);
    return v;
}
/* The lane tree of 8 values at once: lane l ends with the sum of value l/4 (bits of l: 16, 8, 4 choose it). An exchange halves
 * how many values a lane holds, so that 8 trees take 9 shuffles. */
__device__ __forceinline__ float fold8(float (&v)[8], int lane)
{
#pragma unroll
    for (int w = 16, n = 4; n; w /= 2, n /= 2) {
        bool up = lane & w;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i >= n) break;
            float mine = up ? v[i + n] : v[i], other = up ? v[i] : v[i + n];
            v[i] = mine + __shfl_xor_sync(FULL, other, w);
        }
    }
    float s = v[0] + __shfl_xor_sync(FULL, v[0], 2);
    return s + __shfl_xor_sync(FULL, s, 1);
}
/* Maximum over aligned groups of `lanes` lanes. */
__device__ __forceinline__ float group_max(float v, int lanes)
{
    for (int w = lanes / 2; w; w /= 2) v = fmaxf(v, __shfl_xor_sync(FULL, v, w));
    return v;
}
__device__ __forceinline__ int group_sum(int v, int lanes)
{
    for (int w = lanes / 2; w; w /= 2) v += __shfl_xor_sync(FULL, v, w);
    return v;
}
__device__ __forceinline__ int clamp_xi(float v)
{
    float r = rintf(v);
    return r > CB_XI_MAX ? CB_XI_MAX : r < -CB_XI_MAX ? -CB_XI_MAX : (int)r;
}
__device__ __forceinline__ bool is_bad(float v) { return (__float_as_uint(v) & 0x7f800000u) == 0x7f800000u; }
/* Remembers that op `op` met a value that is not finite; the earliest op stays. */
__device__ __forceinline__ void report_bad(cu_step *s, int op) { atomicMin(&s->bad_op, op); }

/* Scale i of a row of scales. E8M0 and E4M3 as stored for fp4, halved because the codes are twice the values. */
__device__ __forceinline__ float e4m3(uint8_t v)
{
    int e = v >> 3 & 15, m = v & 7;
    float a = e ? __uint_as_float((uint32_t)(e + 120) << 23 | (uint32_t)m << 20) : (float)m * 0x1p-9f;
    return v & 128 ? -a : a;
}
__device__ __forceinline__ float e8m0(uint8_t v) { return v ? __uint_as_float((uint32_t)v << 23) : 0x1p-127f; }
__device__ __forceinline__ float load_scale(const uint8_t *p, int type, int64_t i)
{
    switch (type) {
    case CU_S_F32: return ((const float *)p)[i];
    case CU_S_F16: return __half2float(((const __half *)p)[i]);
    case CU_S_BF16: return __uint_as_float((uint32_t)((const uint16_t *)p)[i] << 16);
    case CU_S_E8M0: return 0.5f * e8m0(p[i]);
    default: return 0.5f * e4m3(p[i]);
    }
}

/* 65536*hh + 256*mid + ll, exact, rounded once. */
__device__ __forceinline__ float planes_to_f32(int hh, int mid, int ll)
{
    return __ll2float_rn((long long)hh * 65536 + (long long)mid * 256 + ll);
}
#endif
