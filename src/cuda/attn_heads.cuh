/* attn_heads.cuh: attention of up to 8 queries of one KV head of one row on one block of keys in shared memory: queries, key and value are normed,
 * turned, rotated and quantised by a warp each; then sums, weights and values of the block by WORKERS warps (attn_step.cu, small.cu). */
#ifndef CB_CUDA_ATTN_HEADS_CUH
#define CB_CUDA_ATTN_HEADS_CUH
#include "cuda/common.cuh"

namespace attn { /* where other rows are prepared beside these (tape.cu), names are not short of meanings */

enum { QUERIES = 8 };

/* PARTS of 64 dims hold a head. Warps beyond WORKERS only prepare and copy. */
template <int PARTS> struct shape {
    static constexpr int DIM = 64 * PARTS, WORKERS = PARTS == 1 ? 8 : 16, WARPS = CU_STEP_WARPS(PARTS), THREADS = 32 * WARPS;
    static constexpr int SPLIT = PARTS == 1 ? 1 : 2; /* warps that share the preparation of a query or key */
    static constexpr int HALF = CU_STEP_HALF(PARTS);
};

/* Queries and weights stand as a lane wants them: of each 8 values of a part 4 high bytes, 4 low, 4 high, 4 low, and a row ends 16 bytes
 * behind a multiple of 128, so that eight lanes that read 16 bytes each of two rows meet in no bank. */
__device__ __forceinline__ int place(int i, int plane) { return (i >> 2) * 8 + 4 * plane + (i & 3); }

template <int PARTS> struct shared {
    static constexpr int DIM = 64 * PARTS;
    alignas(16) int8_t q[QUERIES][2 * DIM + 16];
    alignas(16) uint8_t w[QUERIES][2 * CU_BLOCK + 16];
    alignas(16) int8_t k[2][DIM], v[2][DIM];     /* the row's own */
    float d[PARTS][QUERIES][CU_BLOCK + 8];       /* sums of q*k */
    float dq[QUERIES][PARTS], dk[PARTS], dv, dw[QUERIES];
};

/* ---- a head of one row, by one warp: N values a lane, value lane + 32*j in v[j] ---- */

/* 1/rms, by the lane tree. */
template <int N> __device__ __forceinline__ float rms_inverse(const float (&v)[N], float eps, int dim)
{
    int lane = threadIdx.x % 32;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < N; j++)
        if (lane + 32 * j < dim) sum = cb_fma(v[j], v[j], sum);
    return 1.0f / sqrtf(lane_fold(sum) / (float)dim + eps);
}

/* Of a rotation the strides that are within a lane, 32 and more, and the scale. */
template <int N> __device__ __forceinline__ void rotate_within(float (&v)[N], int block, float scale)
{
#pragma unroll
    for (int w = 1; w < N; w *= 2) {
        if (32 * w >= block) break;
#pragma unroll
        for (int j = 0; j < N; j++)
            if (!(j & w)) {
                float x = v[j], y = v[j | w];
                v[j] = x + y;
                v[j | w] = x - y;
            }
    }
#pragma unroll
    for (int j = 0; j < N; j++) v[j] = v[j] * scale;
}

template <int N> __device__ __forceinline__ void rotate(float (&v)[N], int block, float scale)
{
    int lane = threadIdx.x % 32;
    if (block == 1) return;
#pragma unroll
    for (int w = 1; w < 32; w *= 2) {
        if (w >= block) break;
#pragma unroll
        for (int j = 0; j < N; j++) {
            float other = __shfl_xor_sync(FULL, v[j], w);
            v[j] = lane & w ? other - v[j] : v[j] + other;
        }
    }
    rotate_within(v, block, scale);
}

struct vector {
    const float *x;
    const cu_head_norm *norm;
    const float *table;      /* cosines and sines, or NULL: not turned */
    int block, op;
    float scale;             /* of the rotation */
};

/* Normed, turned, rotated: values lane + 32*(own*COUNT + i) of the head into v[i]. */
template <int PARTS, int COUNT>
__device__ __forceinline__ void prepare(const cu_attn_step &a, const vector &h, int own, float (&v)[COUNT], bool now)
{
    enum { N = 2 * PARTS };
    int lane = threadIdx.x % 32, dim = a.kv.dim, d0 = lane + 32 * own * COUNT;
    float all[N], w[COUNT], pair[COUNT], pair_w[COUNT], cs[COUNT], sn[COUNT]; /* pair: who it is turned with */
    bool turns[COUNT];
    const float *weight = h.norm->on ? h.norm->w : NULL;
#pragma unroll
    for (int j = 0; j < N; j++) all[j] = now && lane + 32 * j < dim ? h.x[lane + 32 * j] : 0;
#pragma unroll
    for (int i = 0; i < COUNT; i++) w[i] = weight && d0 + 32 * i < dim ? weight[d0 + 32 * i] : 1;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        int d = d0 + 32 * i, e = d - a.half, at = d < a.pairs ? d : e;
        turns[i] = h.table && at >= 0 && at < a.pairs;
        if (!turns[i]) continue;
        int other = d < a.pairs ? d + a.half : e;
        pair[i] = now ? h.x[other] : 0;
        pair_w[i] = weight ? weight[other] : 1;
        cs[i] = now ? h.table[at] : 0;
        sn[i] = now ? h.table[a.pairs + at] : 0;
        if (d < a.pairs) sn[i] = -sn[i];
    }
    float inv = h.norm->on ? rms_inverse(all, h.norm->eps, dim) : 1; /* times 1 changes nothing */
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        v[i] = ((COUNT == N || own == 0 ? all[i] : all[i + N - COUNT]) * inv) * w[i];
        if (turns[i]) v[i] = cb_fma(v[i], cs[i], ((pair[i] * inv) * pair_w[i]) * sn[i]);
    }
    rotate(v, h.block, h.scale);
    bool bad = false;
#pragma unroll
    for (int i = 0; i < COUNT; i++) bad |= is_bad(v[i]);
    if (bad && now) report_bad(a.step, h.op);
}

/* The values first .. first+COUNT-1 of each lane under one scale: put(j, high byte, low byte) gets value lane + 32*j. Returns the scale. */
template <int COUNT, int N, class F> __device__ __forceinline__ float quantise(const float (&v)[N], int first, F put)
{
    float m = 0;
#pragma unroll
    for (int j = 0; j < COUNT; j++) m = fmaxf(m, fabsf(v[first + j]));
    m = __uint_as_float(__reduce_max_sync(FULL, __float_as_uint(m)));
    bool zero = m < CB_TINY;
    float inv = zero ? 0 : CB_XI_MAX / m;
#pragma unroll
    for (int j = 0; j < COUNT; j++) { /* rounding by an addition, which leaves the integer in the low bits; no clamp: |v*inv| <= 32512*(1 + 2^-23) */
        int xi = (int16_t)__float_as_uint(v[first + j] * inv + 12582912.0f), hi = (xi + 128) >> 8;
        put(first + j, (int8_t)hi, (int8_t)(xi - 256 * hi));
    }
    return zero ? 0 : m * CB_XI_INV;
}

/* Query i of the thread block, share `own`. */
template <int PARTS>
__device__ __forceinline__ void prepare_q(const cu_attn_step &a, const float *x, int i, int own, const float *table, shared<PARTS> &sm, bool now)
{
    enum { COUNT = 2 * PARTS / shape<PARTS>::SPLIT };
    float v[COUNT];
    vector h = {x, &a.q_norm, a.q_rope ? table : NULL, a.q_block, a.op, a.q_scale};
    prepare<PARTS, COUNT>(a, h, own, v, now);
    int8_t *to = &sm.q[i][place(threadIdx.x % 32 + 32 * COUNT * own, 0)]; /* 32 values on is 64 bytes on */
#pragma unroll
    for (int g = 0; g < COUNT / 2; g++) {
        float dq = quantise<2>(v, 2 * g, [&](int j, int8_t hi, int8_t lo) {
            to[64 * j] = hi;
            to[64 * j + 4] = lo;
        });
        if (threadIdx.x % 32 == 0) sm.dq[i][own * COUNT / 2 + g] = dq * a.scale;
    }
}

/* The row's own key, or value: into the cache, and beside it for the block's own use. t: its place in the block of keys. */
template <int PARTS>
__device__ __forceinline__ void put_k(const cu_attn_step &a, const float *x, int own, uint8_t *to, int t, const float *table, shared<PARTS> &sm, bool now)
{
    enum { COUNT = 2 * PARTS / shape<PARTS>::SPLIT };
    float v[COUNT];
    int dim = a.kv.dim;
    size_t half = (size_t)CU_BLOCK * dim;
    vector h = {x, &a.k_norm, a.k_rope ? table : NULL, a.k_block, a.put_op, a.k_scale};
    prepare<PARTS, COUNT>(a, h, own, v, now);
#pragma unroll
    for (int g = 0; g < COUNT / 2; g++) {
        int part = own * COUNT / 2 + g;
        float dk = quantise<2>(v, 2 * g, [&](int j, int8_t hi, int8_t lo) {
            int d = threadIdx.x % 32 + 32 * (COUNT * own + j);
            sm.k[0][d] = hi;
            sm.k[1][d] = lo;
            if (d < dim && now) {
                to[(size_t)t * dim + d] = (uint8_t)hi;
                to[half + (size_t)t * dim + d] = (uint8_t)lo;
            }
        });
        if (threadIdx.x % 32 || 64 * part >= dim) continue;
        sm.dk[part] = dk;
        if (now) ((float *)(to + 4 * half))[part * CU_BLOCK + t] = dk;
    }
}

template <int PARTS> __device__ __forceinline__ void put_v(const cu_attn_step &a, const float *x, uint8_t *to, int t, shared<PARTS> &sm, bool now)
{
    float v[2 * PARTS];
    int dim = a.kv.dim;
    size_t half = (size_t)CU_BLOCK * dim;
    vector h = {x, &a.v_norm, NULL, a.v_block, a.put_op, a.v_scale};
    prepare<PARTS, 2 * PARTS>(a, h, 0, v, now);
    float dv = quantise<2 * PARTS>(v, 0, [&](int j, int8_t hi, int8_t lo) {
        int d = threadIdx.x % 32 + 32 * j;
        sm.v[0][d] = hi;
        sm.v[1][d] = lo;
        if (d >= dim || !now) return;
        to[2 * half + (size_t)d * CU_BLOCK + t] = (uint8_t)hi;
        to[3 * half + (size_t)d * CU_BLOCK + t] = (uint8_t)lo;
    });
    if (threadIdx.x % 32) return;
    sm.dv = dv;
    if (now) ((float *)(to + 4 * half))[(dim + 63) / 64 * CU_BLOCK + t] = dv;
}

/* ---- one block of keys ---- */

/* 256*(256*hh + mid) + ll, rounded once: both parts are exact floats for |256*hh + mid| < 2^29 and |ll| < 2^23. */
__device__ __forceinline__ float sums_to_f32(int hh, int mid, int ll)
{
    int h = 256 * hh + mid;
    return cb_fma((float)(h >> 5), 0x1p13f, (float)(256 * (h & 31) + ll));
}

/* A (a[0], a[1]: place()): 8 rows of high bytes above the same 8 of low bytes; B: 8 columns, planes; 64 values. Lane (r, c) gets the sums of
 * row r and columns 2c, 2c + 1. */
template <bool SIGNED> __device__ __forceinline__ float2 multiply(const uint4 *a, const uint4 &bh, const uint4 &bl)
{
    int x[4] = {0, 0, 0, 0}, y[4] = {0, 0, 0, 0};
    uint4 a0 = a[0], a1 = a[1];
    if (SIGNED) {
        mma_s8s8(x, a0.x, a0.y, a0.z, a0.w, bh.x, bh.y);
        mma_s8s8(y, a0.x, a0.y, a0.z, a0.w, bl.x, bl.y);
        mma_s8s8(x, a1.x, a1.y, a1.z, a1.w, bh.z, bh.w);
        mma_s8s8(y, a1.x, a1.y, a1.z, a1.w, bl.z, bl.w);
    } else {
        mma_u8s8(x, a0.x, a0.y, a0.z, a0.w, bh.x, bh.y);
        mma_u8s8(y, a0.x, a0.y, a0.z, a0.w, bl.x, bl.y);
        mma_u8s8(x, a1.x, a1.y, a1.z, a1.w, bh.z, bh.w);
        mma_u8s8(y, a1.x, a1.y, a1.z, a1.w, bl.z, bl.w);
    }
    return make_float2(sums_to_f32(x[0], x[2] + y[0], y[2]), sums_to_f32(x[1], x[3] + y[1], y[3]));
}

/* Sums of a block: warp w takes keys 8(w % 8) .. and a share of the parts. own: the row's own key, or -1. SHORT, here and below: code for heads of any
 * multiple of 128 dims up to 64*PARTS, in loops. */
template <int PARTS, bool SHORT = false> __device__ __forceinline__ void scores(int warp, const uint8_t *keys, int own, int dim, shared<PARTS> &sm)
{
    enum { DIM = 64 * PARTS, SHARE = PARTS * 8 / shape<PARTS>::WORKERS, UNROLL = SHORT ? 1 : SHARE };
    int share = SHORT ? dim / (8 * shape<PARTS>::WORKERS) : SHARE;
    int lane = threadIdx.x % 32, r = lane >> 2, c = lane & 3, key = warp % 8 * 8 + r;
    const uint8_t *row = (key == own ? (const uint8_t *)sm.k[0] : keys + key * dim) + 16 * c;
    int plane = key == own ? DIM : CU_BLOCK * dim;
#pragma unroll UNROLL
    for (int i = 0; i < share; i++) {
        int g = warp / 8 * share + i;
        if (64 * g >= dim) break;
        uint4 h = make_uint4(0, 0, 0, 0), l = h;
        if (64 * g + 16 * c < dim) {
            h = *(const uint4 *)(row + 64 * g);
            l = *(const uint4 *)(row + plane + 64 * g);
        }
        float2 d = multiply<true>((const uint4 *)&sm.q[r][128 * g + 32 * c], h, l);
        *(float2 *)&sm.d[g][r][warp % 8 * 8 + 2 * c] = d;
    }
}

/* The largest of a warp's values; those of lanes that are not `in` do not count. */
__device__ __forceinline__ float warp_max(float v, bool in)
{
    uint32_t b = __float_as_uint(v), u = in ? b ^ ((uint32_t)((int32_t)b >> 31) | 0x80000000u) : 0;
    u = __reduce_max_sync(FULL, u);
    return __uint_as_float(u ^ ((uint32_t)((int32_t)~u >> 31) | 0x80000000u));
}

/* Softmax within the block and the weights as 16-bit numbers, one warp a query. scales: of the block; lo, hi: the tokens that are seen. Returns m
 * and l. */
template <int PARTS, bool SHORT = false> __device__ __forceinline__ float2 weights(const float *scales, int own, int lo, int hi, int q, int dim, shared<PARTS> &sm)
{
    enum { UNROLL = SHORT ? 1 : PARTS };
    int lane = threadIdx.x % 32;
    bool in0 = lane >= lo && lane < hi, in1 = lane + 32 >= lo && lane + 32 < hi, own0 = lane == own, own1 = lane + 32 == own;
    float s0 = 0, s1 = 0;
#pragma unroll UNROLL
    for (int g = 0; g < PARTS; g++) {
        if (64 * g >= dim) break;
        float k0 = own0 ? sm.dk[g] : scales[CU_BLOCK * g + lane], k1 = own1 ? sm.dk[g] : scales[CU_BLOCK * g + lane + 32], dq = sm.dq[q][g];
        s0 = cb_fma(sm.d[g][q][lane], dq * k0, s0);
        s1 = cb_fma(sm.d[g][q][lane + 32], dq * k1, s1);
    }
    const float *dv = scales + (dim + 63) / 64 * CU_BLOCK;
    float v0 = own0 ? sm.dv : dv[lane], v1 = own1 ? sm.dv : dv[lane + 32];
    float m = warp_max(in0 && in1 ? fmaxf(s0, s1) : in0 ? s0 : s1, in0 || in1);
    float p0 = in0 ? cb_expf(s0 - m) : 0, p1 = in1 ? cb_expf(s1 - m) : 0;
    float w0 = in0 ? p0 * v0 : 0, w1 = in1 ? p1 * v1 : 0;
    float wm = __uint_as_float(__reduce_max_sync(FULL, __float_as_uint(fmaxf(w0, w1))));
    bool zero = wm < CB_TINY;
    float inv = zero ? 0 : CB_PW_MAX / wm;
    uint32_t i0 = __float_as_uint(w0 * inv + 12582912.0f), i1 = __float_as_uint(w1 * inv + 12582912.0f); /* as in quantise() */
    sm.w[q][place(lane, 0)] = (uint8_t)(i0 >> 8);
    sm.w[q][place(lane, 1)] = (uint8_t)i0;
    sm.w[q][place(lane + 32, 0)] = (uint8_t)(i1 >> 8);
    sm.w[q][place(lane + 32, 1)] = (uint8_t)i1;
    if (lane == 0) sm.dw[q] = zero ? 0 : wm * CB_PW_INV;
    return make_float2(m, lane_fold(p0 + p1));
}

/* put(q, d, o) gets dims d and d + 1 of query q's result, of eight queries, whether they are there or not. */
template <int PARTS, bool SHORT = false, class F> __device__ __forceinline__ void values(int warp, const uint8_t *values, int dim, const shared<PARTS> &sm, F put)
{
    enum { DIM = 64 * PARTS, WORKERS = shape<PARTS>::WORKERS, UNROLL = SHORT ? 1 : DIM / 8 / WORKERS };
    int lane = threadIdx.x % 32, r = lane >> 2, c = lane & 3;
    float dw = sm.dw[r];
#pragma unroll UNROLL
    for (int i = 0; i < DIM / 8 / WORKERS; i++) {
        int n = warp + WORKERS * i;
        if (8 * n >= dim) break;
        const uint8_t *v = values + (8 * n + r) * CU_BLOCK + 16 * c;
        float2 o = multiply<false>((const uint4 *)&sm.w[r][32 * c], *(const uint4 *)v, *(const uint4 *)(v + CU_BLOCK * dim));
        put(r, 8 * n + 2 * c, make_float2(dw * o.x, dw * o.y));
    }
}
}
#endif
