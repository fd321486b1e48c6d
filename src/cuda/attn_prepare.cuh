/* attn_prepare.cuh: queries, and the row's own key and value, of heads of exactly 64*PARTS dims, each by a warp, through the same instructions
 * (attn_cluster.cu, tape_attn.cuh); and how results of blocks of keys weigh. */
#ifndef CB_CUDA_ATTN_PREPARE_CUH
#define CB_CUDA_ATTN_PREPARE_CUH
#include "cuda/attn_heads.cuh"

namespace attn {

enum { QUERY, KEY, VALUE };

/* Of a kind of heads: rotation's block, what its result is multiplied by, norm's eps, or -1, the scales' factor; and the norm. */
__device__ __forceinline__ float4 kind_of(const cu_attn_step &a, int kind)
{
    if (kind == QUERY) return make_float4((float)a.q_block, a.q_scale, a.q_norm.on ? a.q_norm.eps : -1, a.scale);
    if (kind == KEY) return make_float4((float)a.k_block, a.k_scale, a.k_norm.on ? a.k_norm.eps : -1, 1);
    return make_float4((float)a.v_block, a.v_scale, a.v_norm.on ? a.v_norm.eps : -1, 1);
}
__device__ __forceinline__ const float *norm_of(const cu_attn_step &a, int kind)
{
    const cu_head_norm &n = kind == QUERY ? a.q_norm : kind == KEY ? a.k_norm : a.v_norm;
    return n.on ? n.w : NULL;
}

/* Pairs of 32*J dims apart, which a lane has both. */
template <int J, int N> __device__ __forceinline__ void turn(float (&v)[N], const float (&cs)[N / 2], const float (&sn)[N / 2], int pairs)
{
    if constexpr (2 * J <= N) {
#pragma unroll
        for (int j = 0; j < J; j++) {
            if (32 * j >= pairs) break;
            float x = v[j], y = v[j + J];
            v[j] = cb_fma(x, cs[j], y * -sn[j]);
            v[j + J] = cb_fma(y, cs[j], x * sn[j]);
        }
    }
}

/* Cosines and sines for a lane's pairs; table: the first one's cosine, or NULL. */
template <int N> __device__ __forceinline__ void load_turns(const cu_attn_step &a, const float *table, float (&cs)[N], float (&sn)[N], bool now)
{
#pragma unroll
    for (int j = 0; j < N; j++) {
        cs[j] = sn[j] = 0;
        if (now && table && 32 * j < a.pairs) {
            cs[j] = table[32 * j];
            sn[j] = table[a.pairs + 32 * j];
        }
    }
}

/* A head: value lane + 32*j in v[j]. */
template <int PARTS> struct head_in {
    float v[2 * PARTS], cs[PARTS], sn[PARTS];
    int kind;
    bool turns;
};

/* Its integers to shared memory (shared<>, of as many parts or more), of key and value to their place t in the cache's block `cached`, too. of: kind_of(); weight(j): the norm's, 1 where it has
 * none, for v[j]; i: which query. NEAR: pairs are 32 dims apart. */
template <int PARTS, bool NEAR, class W, class S>
__device__ __forceinline__ void prepare_head(const cu_attn_step &a, head_in<PARTS> &h, const float4 &of, W weight, int i, int t, S &sm, uint8_t *cached, bool now)
{
    enum { N = 2 * PARTS, DIM = 64 * PARTS };
    int lane = threadIdx.x % 32, kind = h.kind;
    float(&v)[N] = h.v;
    uint32_t m[PARTS], most = 0, xi[N];
    float inv = 1;
    if (of.z >= 0) {
        float sum = 0;
#pragma unroll
        for (int j = 0; j < N; j++) sum = cb_fma(v[j], v[j], sum);
        inv = 1.0f / sqrtf(lane_fold(sum) * (1.0f / DIM) + of.z); /* a power of two */
    }
#pragma unroll
    for (int j = 0; j < N; j++) v[j] = (v[j] * inv) * weight(j);
    if (NEAR && h.turns) turn<1>(v, h.cs, h.sn, 32);
    else if (h.turns) switch (a.half) {
        case 32: turn<1>(v, h.cs, h.sn, a.pairs); break;
        case 64: turn<2>(v, h.cs, h.sn, a.pairs); break;
        case 128: turn<4>(v, h.cs, h.sn, a.pairs); break;
        default: turn<8>(v, h.cs, h.sn, a.pairs); break;
        }
    int block = (int)of.x;
#pragma unroll 1
    for (int w = 1; w < 32 && w < block; w *= 2) {
        float sign = lane & w ? -1.0f : 1.0f;
#pragma unroll
        for (int j = 0; j < N; j++) v[j] = cb_fma(v[j], sign, __shfl_xor_sync(FULL, v[j], w));
    }
    rotate_within(v, block, of.y);
#pragma unroll
    for (int g = 0; g < PARTS; g++) {
        m[g] = __reduce_max_sync(FULL, max(__float_as_uint(fabsf(v[2 * g])), __float_as_uint(fabsf(v[2 * g + 1]))));
        most = max(most, m[g]);
    }
#pragma unroll
    for (int w = 1; w < PARTS; w *= 2) /* a lane divides for one part */
#pragma unroll
        for (int g = 0; g < PARTS; g += 2 * w) m[g] = lane & w ? m[g + w] : m[g];
    float top = __uint_as_float(kind == VALUE ? most : m[0]);
    bool zero = top < CB_TINY;
    float by = zero ? 0 : CB_XI_MAX / top, dx = zero ? 0 : top * CB_XI_INV;
    uint8_t *to = kind == QUERY ? (uint8_t *)&sm.q[i][place(lane, 0)] : (uint8_t *)(kind == KEY ? sm.k[0] : sm.v[0]) + lane;
    int step = kind == QUERY ? 64 : 32, low = kind == QUERY ? 4 : S::DIM;
#pragma unroll
    for (int j = 0; j < N; j++) { /* as in quantise() */
        xi[j] = __float_as_uint(v[j] * __shfl_sync(FULL, by, j / 2) + 12582912.0f);
        to[j * step] = (uint8_t)((xi[j] + 128) >> 8);
        to[j * step + low] = (uint8_t)xi[j];
    }
    float *scale = kind == QUERY ? sm.dq[i] : kind == KEY ? sm.dk : &sm.dv;
    if (lane < (kind == VALUE ? 1 : PARTS)) scale[lane] = dx * of.w;
    if (__builtin_expect(most >= 0x7f800000 && now, 0)) report_bad(a.step, kind == QUERY ? a.op : a.put_op);
    if (kind == QUERY || !now) return;
    bool key = kind == KEY;
    uint8_t *cache = cached + (key ? t * DIM + lane : (2 * DIM + lane) * CU_BLOCK + t);
#pragma unroll
    for (int j = 0; j < N; j++) {
        uint8_t *p = cache + j * (key ? 32 : 32 * CU_BLOCK);
        p[0] = (uint8_t)((xi[j] + 128) >> 8);
        p[DIM * CU_BLOCK] = (uint8_t)xi[j];
    }
    if (lane < (key ? PARTS : 1)) ((float *)(cached + 4 * CU_BLOCK * DIM))[(key ? lane : PARTS) * CU_BLOCK + t] = dx;
}

/* One warp: how the results of blocks of keys weigh (attn_join.cu). x: a lane's m and l; -infinity and 0 where there is none. */
__device__ __forceinline__ void weigh_blocks(float2 x, float4 *factor)
{
    int lane = threadIdx.x % 32;
    float top = x.x;
#pragma unroll 1
    for (int w = 1; w < 32; w *= 2) {
        float y = __shfl_up_sync(FULL, top, w);
        if (lane >= w) top = fmaxf(top, y);
    }
    float before = __shfl_up_sync(FULL, top, 1), c = cb_expf(x.x - top);
    if (lane == 0) before = -INFINITY;
    factor[lane] = make_float4(cb_expf(before - top), c, x.y * c, 0);
}

}
#endif
