/* attn_step.cu: what stands between the products of an attention layer, rows of different sessions, in two launches. k_attn_step: a
 * thread block takes one KV head of one row and every gridDim.x-th block of keys; it norms, turns, rotates and quantises the head's
 * queries itself, and the block that holds the newest key puts that into the cache on the way. Keys and values wait in registers:
 * the first are read before the block waits for the products in front, which do not touch them. k_attn_join merges a head's
 * results in ascending order, rotates back and gates. attention.cu has the same steps for tiles of many rows. */
#include "cuda/common.cuh"

enum { WARPS = 8, THREADS = 32 * WARPS, QUERIES = 16, MAX_DIM = 512 };

/* Rows of planes stand 64 bytes from a multiple of 128, so that eight lanes that read 16 bytes of two rows meet in no bank. */
template <int PARTS> struct shared {
    static constexpr int DIM = 64 * PARTS, STRIDE = PARTS == 1 ? 64 : DIM + 64;
    alignas(16) int8_t q[2][QUERIES][STRIDE];
    alignas(16) int8_t k[2][DIM];
    int8_t v[2][DIM];
    alignas(16) uint8_t w[2][QUERIES][CU_BLOCK]; /* high and low bytes of the weights */
    float s[QUERIES][CU_BLOCK + 4];
    float dq[QUERIES][PARTS], dk[PARTS], dv, dw[QUERIES];
    float row[WARPS][DIM];
};

/* ---- a head of one row, by one warp: N values a lane, value lane + 32*j in v[j] ---- */

template <int N> __device__ __forceinline__ void load_head(float (&v)[N], const float *x, int dim)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < N; j++) v[j] = lane + 32 * j < dim ? x[lane + 32 * j] : 0;
}

template <int N> __device__ __forceinline__ void norm(float (&v)[N], const cu_head_norm &n, int dim)
{
    if (!n.on) return;
    int lane = threadIdx.x % 32;
    float sum = 0, w[N];
#pragma unroll
    for (int j = 0; j < N; j++) w[j] = n.w && lane + 32 * j < dim ? n.w[lane + 32 * j] : 1;
#pragma unroll
    for (int j = 0; j < N; j++)
        if (lane + 32 * j < dim) sum = cb_fma(v[j], v[j], sum);
    float inv = 1.0f / sqrtf(lane_fold(sum) / (float)dim + n.eps);
#pragma unroll
    for (int j = 0; j < N; j++) v[j] = n.w ? (v[j] * inv) * w[j] : v[j] * inv;
}

/* Partners may be in any two lanes: they meet in shared memory. */
template <int N> __device__ __forceinline__ void turn(float (&v)[N], const cu_attn_step &a, const float *table, float *row)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < N; j++) row[lane + 32 * j] = v[j];
    __syncwarp();
#pragma unroll
    for (int j = 0; j < N / 2; j++) {
        int d = lane + 32 * j;
        if (d >= a.pairs) continue;
        float x = row[d], y = row[d + a.half], cs = table[d], sn = table[a.pairs + d];
        row[d] = cb_fma(x, cs, -(y * sn));
        row[d + a.half] = cb_fma(y, cs, x * sn);
    }
    __syncwarp();
#pragma unroll
    for (int j = 0; j < N; j++) v[j] = row[lane + 32 * j];
    __syncwarp();
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

/* The values first .. first+COUNT-1 of each lane under one scale: put(i, high byte, low byte) gets value i of the head. Returns the scale. */
template <int COUNT, int N, class F> __device__ __forceinline__ float quantise(const float (&v)[N], int first, int dim, F put)
{
    int lane = threadIdx.x % 32;
    float m = 0;
#pragma unroll
    for (int j = 0; j < COUNT; j++) m = fmaxf(m, fabsf(v[first + j]));
    m = group_max(m, 32);
    bool zero = m < CB_TINY;
    float inv = zero ? 0 : CB_XI_MAX / m;
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
        int i = lane + 32 * (first + j), xi = zero ? 0 : clamp_xi(v[first + j] * inv), hi = (xi + 128) >> 8;
        if (i < dim) put(i, (int8_t)hi, (int8_t)(xi - 256 * hi));
    }
    return zero ? 0 : m * CB_XI_INV;
}

template <int N> __device__ __forceinline__ void check(const float (&v)[N], cu_step *step, int op)
{
    bool bad = false;
#pragma unroll
    for (int j = 0; j < N; j++) bad |= is_bad(v[j]);
    if (bad) report_bad(step, op);
}

/* Query head i of the KV head. */
template <int PARTS> __device__ __forceinline__ void prepare_q(const cu_attn_step &a, int r, int i, const float *table, shared<PARTS> &sm)
{
    float v[2 * PARTS];
    int dim = a.kv.dim, lane = threadIdx.x % 32, head = blockIdx.y * (a.n_heads / a.kv.n_heads) + i;
    load_head(v, a.q + (size_t)r * a.q_stride + (size_t)head * a.q_head, dim);
    norm(v, a.q_norm, dim);
    if (a.q_rope) turn(v, a, table, sm.row[threadIdx.x / 32]);
    rotate(v, a.q_block, a.q_scale);
    check(v, a.step, a.op);
#pragma unroll
    for (int g = 0; g < PARTS; g++) {
        float dq = quantise<2>(v, 2 * g, dim, [&](int at, int8_t hi, int8_t lo) {
            sm.q[0][i][at] = hi;
            sm.q[1][i][at] = lo;
        });
        if (lane == 0) sm.dq[i][g] = dq * a.scale;
    }
}

/* The row's own key, or value: into the cache, and beside it, for the registers that were filled before. t: its place in the block. */
template <int PARTS> __device__ __forceinline__ void put_k(const cu_attn_step &a, int r, uint8_t *to, int t, const float *table, shared<PARTS> &sm)
{
    float v[2 * PARTS];
    int dim = a.kv.dim, lane = threadIdx.x % 32;
    size_t half = (size_t)CU_BLOCK * dim;
    load_head(v, a.k + (size_t)r * a.k_stride + blockIdx.y * dim, dim);
    norm(v, a.k_norm, dim);
    if (a.k_rope) turn(v, a, table, sm.row[threadIdx.x / 32]);
    rotate(v, a.k_block, a.k_scale);
    check(v, a.step, a.put_op);
#pragma unroll
    for (int g = 0; g < PARTS; g++) {
        if (64 * g >= dim) break;
        float dk = quantise<2>(v, 2 * g, dim, [&](int at, int8_t hi, int8_t lo) {
            sm.k[0][at] = hi;
            sm.k[1][at] = lo;
            to[(size_t)t * dim + at] = (uint8_t)hi;
            to[half + (size_t)t * dim + at] = (uint8_t)lo;
        });
        if (lane == 0) ((float *)(to + 4 * half))[g * CU_BLOCK + t] = sm.dk[g] = dk;
    }
}

template <int PARTS> __device__ __forceinline__ void put_v(const cu_attn_step &a, int r, uint8_t *to, int t, shared<PARTS> &sm)
{
    float v[2 * PARTS];
    int dim = a.kv.dim, lane = threadIdx.x % 32;
    size_t half = (size_t)CU_BLOCK * dim;
    load_head(v, a.v + (size_t)r * a.v_stride + blockIdx.y * dim, dim);
    norm(v, a.v_norm, dim);
    rotate(v, a.v_block, a.v_scale);
    check(v, a.step, a.put_op);
    float dv = quantise<2 * PARTS>(v, 0, dim, [&](int at, int8_t hi, int8_t lo) {
        sm.v[0][at] = hi;
        sm.v[1][at] = lo;
        to[2 * half + (size_t)at * CU_BLOCK + t] = (uint8_t)hi;
        to[3 * half + (size_t)at * CU_BLOCK + t] = (uint8_t)lo;
    });
    if (lane == 0) ((float *)(to + 4 * half))[(dim + 63) / 64 * CU_BLOCK + t] = sm.dv = dv;
}

/* ---- a block of keys in the registers of the thread block ---- */

/* Warp w scores keys 8w .. 8w+7; lane (r, c) holds 16 bytes of each 64 of key 8w + r, and the scales of keys 8w + 2c, + 1. */
template <int PARTS> struct keys {
    uint4 h[PARTS], l[PARTS];
    float2 dk[PARTS];
    float dv[2];             /* of tokens lane and lane + 32, for the weights */

    __device__ __forceinline__ void load(const uint8_t *kv, int dim)
    {
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane >> 2, c = lane & 3;
        size_t half = (size_t)CU_BLOCK * dim;
        const uint8_t *key = kv + (size_t)(8 * warp + r) * dim + 16 * c;
        const float *d = (const float *)(kv + 4 * half);
#pragma unroll
        for (int g = 0; g < PARTS; g++) {
            h[g] = l[g] = make_uint4(0, 0, 0, 0);
            dk[g] = make_float2(0, 0);
            if (64 * g + 16 * c < dim) {
                h[g] = *(const uint4 *)(key + 64 * g);
                l[g] = *(const uint4 *)(key + half + 64 * g);
            }
            if (64 * g < dim) dk[g] = *(const float2 *)(d + g * CU_BLOCK + 8 * warp + 2 * c);
        }
        d += (dim + 63) / 64 * CU_BLOCK;
        dv[0] = d[lane];
        dv[1] = d[lane + 32];
    }

    /* Token t is the row's own. */
    __device__ __forceinline__ void patch(const shared<PARTS> &sm, int t, int dim)
    {
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32, c = lane & 3;
        if (lane == t) dv[0] = sm.dv;
        if (lane + 32 == t) dv[1] = sm.dv;
        if (warp != t / 8) return;
#pragma unroll
        for (int g = 0; g < PARTS; g++) {
            if (lane >> 2 == t % 8 && 64 * g + 16 * c < dim) {
                h[g] = *(const uint4 *)&sm.k[0][64 * g + 16 * c];
                l[g] = *(const uint4 *)&sm.k[1][64 * g + 16 * c];
            }
            if (8 * warp + 2 * c == t) dk[g].x = sm.dk[g];
            if (8 * warp + 2 * c + 1 == t) dk[g].y = sm.dk[g];
        }
    }
};

/* Warp w takes the dims 8n .. 8n+7 for n = w, w + 8, ..; lane (r, c) holds tokens 16c .. 16c+15 of dim 8n + r. */
template <int PARTS> struct vals {
    uint4 h[PARTS], l[PARTS];

    __device__ __forceinline__ void load(const uint8_t *kv, int dim)
    {
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane >> 2, c = lane & 3;
        size_t half = (size_t)CU_BLOCK * dim;
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            int d = 8 * (warp + WARPS * i) + r;
            h[i] = l[i] = make_uint4(0, 0, 0, 0);
            if (d >= dim) continue;
            const uint8_t *v = kv + 2 * half + (size_t)d * CU_BLOCK + 16 * c;
            h[i] = *(const uint4 *)v;
            l[i] = *(const uint4 *)(v + half);
        }
    }

    static __device__ __forceinline__ void set(uint4 &v, int at, int8_t byte)
    {
        uint32_t shift = at % 4 * 8, mask = ~(255u << shift), b = (uint32_t)(uint8_t)byte << shift;
        if (at / 4 == 0) v.x = (v.x & mask) | b;
        if (at / 4 == 1) v.y = (v.y & mask) | b;
        if (at / 4 == 2) v.z = (v.z & mask) | b;
        if (at / 4 == 3) v.w = (v.w & mask) | b;
    }
    __device__ __forceinline__ void patch(const shared<PARTS> &sm, int t, int dim)
    {
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane >> 2;
        if ((lane & 3) != t / 16) return;
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            int d = 8 * (warp + WARPS * i) + r;
            if (d >= dim) break;
            set(h[i], t % 16, sm.v[0][d]);
            set(l[i], t % 16, sm.v[1][d]);
        }
    }
};

/* 16 rows of a (planes ah, al: row r and, when there are more than 8, r + 8) by 8 columns in registers, over 64 values: 256*(256*hh + mid) + ll. */
template <bool SIGNED>
__device__ __forceinline__ void multiply(const uint8_t *ah, const uint8_t *al, size_t stride, bool wide, const uint4 &bh, const uint4 &bl, int (&hh)[4],
                                         int (&mid)[4], int (&ll)[4])
{
    uint4 zero = make_uint4(0, 0, 0, 0), a0h = *(const uint4 *)ah, a0l = *(const uint4 *)al;
    uint4 a1h = wide ? *(const uint4 *)(ah + 8 * stride) : zero, a1l = wide ? *(const uint4 *)(al + 8 * stride) : zero;
    const uint32_t *h = (const uint32_t *)&bh, *l = (const uint32_t *)&bl;
    const uint32_t *p0 = (const uint32_t *)&a0h, *p1 = (const uint32_t *)&a1h, *q0 = (const uint32_t *)&a0l, *q1 = (const uint32_t *)&a1l;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        if (SIGNED) {
            mma_s8s8(hh, p0[i], p1[i], p0[i + 1], p1[i + 1], h[i], h[i + 1]);
            mma_s8s8(mid, p0[i], p1[i], p0[i + 1], p1[i + 1], l[i], l[i + 1]);
            mma_s8s8(mid, q0[i], q1[i], q0[i + 1], q1[i + 1], h[i], h[i + 1]);
            mma_s8s8(ll, q0[i], q1[i], q0[i + 1], q1[i + 1], l[i], l[i + 1]);
        } else {
            mma_u8s8(hh, p0[i], p1[i], p0[i + 1], p1[i + 1], h[i], h[i + 1]);
            mma_u8s8(mid, p0[i], p1[i], p0[i + 1], p1[i + 1], l[i], l[i + 1]);
            mma_u8s8(mid, q0[i], q1[i], q0[i + 1], q1[i + 1], h[i], h[i + 1]);
            mma_u8s8(ll, q0[i], q1[i], q0[i + 1], q1[i + 1], l[i], l[i + 1]);
        }
    }
}

template <int PARTS> __device__ __forceinline__ void scores(const keys<PARTS> &k, int dim, int n_q, shared<PARTS> &sm)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane >> 2, c = lane & 3;
    float s[4] = {0, 0, 0, 0};
#pragma unroll
    for (int g = 0; g < PARTS; g++) {
        if (64 * g >= dim) break;
        int hh[4] = {}, mid[4] = {}, ll[4] = {};
        multiply<true>((const uint8_t *)&sm.q[0][r][64 * g + 16 * c], (const uint8_t *)&sm.q[1][r][64 * g + 16 * c], sm.STRIDE, n_q > 8, k.h[g], k.l[g], hh,
                       mid, ll);
#pragma unroll
        for (int j = 0; j < 4; j++)
            s[j] = cb_fma(planes_to_f32(hh[j], mid[j], ll[j]), sm.dq[r + 8 * (j / 2)][g] * (j % 2 ? k.dk[g].y : k.dk[g].x), s[j]);
    }
#pragma unroll
    for (int j = 0; j < 4; j++) sm.s[r + 8 * (j / 2)][8 * warp + 2 * c + j % 2] = s[j];
}

/* Softmax within the block and the weights as 16-bit numbers. lo, hi: the tokens of the block that are seen; out: m, l of each query. */
template <int PARTS> __device__ __forceinline__ void weights(const keys<PARTS> &k, int lo, int hi, int n_q, float2 *out, size_t out_stride, shared<PARTS> &sm)
{
    int lane = threadIdx.x % 32;
    bool in0 = lane >= lo && lane < hi, in1 = lane + 32 >= lo && lane + 32 < hi;
    for (int q = threadIdx.x / 32; q < n_q; q += WARPS) {
        float s0 = sm.s[q][lane], s1 = sm.s[q][lane + 32];
        float m = group_max(fmaxf(in0 ? s0 : -INFINITY, in1 ? s1 : -INFINITY), 32);
        float p0 = in0 ? cb_expf(s0 - m) : 0, p1 = in1 ? cb_expf(s1 - m) : 0;
        float l = lane_fold(p0 + p1);
        float w0 = in0 ? p0 * k.dv[0] : 0, w1 = in1 ? p1 * k.dv[1] : 0;
        float wm = group_max(fmaxf(w0, w1), 32);
        bool zero = wm < CB_TINY;
        float inv = zero ? 0 : CB_PW_MAX / wm, r0 = rintf(w0 * inv), r1 = rintf(w1 * inv);
        int i0 = r0 > CB_PW_MAX ? CB_PW_MAX : (int)r0, i1 = r1 > CB_PW_MAX ? CB_PW_MAX : (int)r1;
        sm.w[0][q][lane] = (uint8_t)(i0 >> 8);
        sm.w[1][q][lane] = (uint8_t)i0;
        sm.w[0][q][lane + 32] = (uint8_t)(i1 >> 8);
        sm.w[1][q][lane + 32] = (uint8_t)i1;
        if (lane == 0) {
            out[q * out_stride] = make_float2(m, l);
            sm.dw[q] = zero ? 0 : wm * CB_PW_INV;
        }
    }
}

template <int PARTS> __device__ __forceinline__ void values(const vals<PARTS> &v, int dim, int n_q, float *out, size_t out_stride, const shared<PARTS> &sm)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane >> 2, c = lane & 3;
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        int n = warp + WARPS * i;
        if (8 * n >= dim) break;
        int hh[4] = {}, mid[4] = {}, ll[4] = {};
        multiply<false>(&sm.w[0][r][16 * c], &sm.w[1][r][16 * c], CU_BLOCK, n_q > 8, v.h[i], v.l[i], hh, mid, ll);
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
            int q = r + 4 * j;
            if (q >= n_q) continue;
            float d = sm.dw[q];
            *(float2 *)(out + q * out_stride + 8 * n + 2 * c) =
                make_float2(d * planes_to_f32(hh[j], mid[j], ll[j]), d * planes_to_f32(hh[j + 1], mid[j + 1], ll[j + 1]));
        }
    }
}

/* x: which blocks of keys; y: KV head; z: row. */
template <int PARTS> __device__ __forceinline__ void attn_step(const cu_attn_step &a)
{
    __shared__ shared<PARTS> sm;
    pdl_trigger();
    int r = a.row0 + blockIdx.z, dim = a.kv.dim, n_q = a.n_heads / a.kv.n_heads, step = gridDim.x, warp = threadIdx.x / 32;
    int pos = a.step->pos[r], window = a.kv.window, first = window && pos - window + 1 > 0 ? pos - window + 1 : 0;
    int b0 = first / CU_BLOCK, last = pos / CU_BLOCK, block = b0 + blockIdx.x, t = pos % CU_BLOCK;
    const int32_t *table = a.step->tables[a.kv.group] + (size_t)a.step->slot[r] * a.step->table_stride;
    auto kv_at = [&](int b) { return a.kv.base + ((size_t)b * a.kv.n_heads + blockIdx.y) * a.kv.head_bytes; };
    bool some = block <= last, puts = a.k && (last - b0) % step == (int)blockIdx.x;
    int now = some ? table[block] : 0, next = block + step <= last ? table[block + step] : 0;
    keys<PARTS> k;
    vals<PARTS> v;
    bool early = some && (a.k || block < last); /* of shared states the newest block was written just now */
    if (early) {
        k.load(kv_at(now), dim);
        v.load(kv_at(now), dim);
    }
    for (int i = threadIdx.x; i < 2 * QUERIES * sm.STRIDE / 4; i += THREADS) ((uint32_t *)sm.q)[i] = 0; /* also what stands behind the last dim */
    for (int i = threadIdx.x; i < 2 * QUERIES * CU_BLOCK / 4; i += THREADS) ((uint32_t *)sm.w)[i] = 0;
    for (int i = threadIdx.x; i < QUERIES * PARTS; i += THREADS) ((float *)sm.dq)[i] = 0;
    uint8_t *mine = puts ? kv_at(table[last]) : NULL;
    pdl_wait();
    if (!some) return;
    if (!early) {
        k.load(kv_at(now), dim);
        v.load(kv_at(now), dim);
    }
    __syncthreads();
    const float *turns = a.turn + (size_t)r * a.turn_stride;
    for (int i = warp; i < n_q + (puts ? 2 : 0); i += WARPS) {
        if (i < n_q) prepare_q<PARTS>(a, r, i, turns, sm);
        else if (i == n_q) put_k<PARTS>(a, r, mine, t, turns, sm);
        else put_v<PARTS>(a, r, mine, t, sm);
    }
    __syncthreads();
    size_t heads = (size_t)blockIdx.z * a.n_heads + (size_t)blockIdx.y * n_q, all = (size_t)a.n_rows * a.n_heads * a.n_splits;
    for (;;) {
        size_t at = heads * a.n_splits + (block - b0);
        bool newest = a.k && block == last, more = block + step <= last;
        if (newest) k.patch(sm, t, dim);
        scores<PARTS>(k, dim, n_q, sm);
        __syncthreads();
        weights<PARTS>(k, first - block * CU_BLOCK, pos + 1 - block * CU_BLOCK, n_q, (float2 *)(a.part + all * dim) + at, a.n_splits, sm);
        if (more) k.load(kv_at(next), dim);
        __syncthreads();
        if (newest) v.patch(sm, t, dim);
        values<PARTS>(v, dim, n_q, a.part + at * dim, (size_t)a.n_splits * dim, sm);
        if (!more) break;
        v.load(kv_at(next), dim);
        block += step;
        next = block + step <= last ? table[block + step] : 0;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) k_attn_step64(const __grid_constant__ cu_attn_step a) { attn_step<1>(a); }
extern "C" __global__ void __launch_bounds__(THREADS, 2) k_attn_step128(const __grid_constant__ cu_attn_step a) { attn_step<2>(a); }
extern "C" __global__ void __launch_bounds__(THREADS, 2) k_attn_step256(const __grid_constant__ cu_attn_step a) { attn_step<4>(a); }
extern "C" __global__ void __launch_bounds__(THREADS, 1) k_attn_step512(const __grid_constant__ cu_attn_step a) { attn_step<8>(a); }

/* ---- joining the blocks ---- */

/* y rotated back in blocks: strides below 32 by shuffles, the others in shared memory, where a thread adds up what its own value needs. */
__device__ __forceinline__ float rotate_back(float y, int block, float scale, float *row)
{
    int d = threadIdx.x, lane = d % 32;
    if (block == 1) return y;
#pragma unroll
    for (int w = 1; w < 32; w *= 2) {
        if (w >= block) break;
        float other = __shfl_xor_sync(FULL, y, w);
        y = lane & w ? other - y : y + other;
    }
    if (block > 32) {
        int n = block / 32, mine = d % block / 32;
        float x[16];
        row[d] = y;
        __syncthreads();
        const float *from = row + d / block * block + lane;
#pragma unroll
        for (int i = 0; i < 16; i++) x[i] = i < n ? from[32 * i] : 0;
#pragma unroll
        for (int s = 0; s < 4; s++) {
            if (2 << s > n) break;
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (i < 8 >> s) x[i] = mine >> s & 1 ? x[2 * i] - x[2 * i + 1] : x[2 * i] + x[2 * i + 1];
        }
        y = x[0];
    }
    return y * scale;
}

/* x: query head; y: row. A thread takes one dim. How the blocks' results weigh is found for as many blocks as there are threads at once;
 * then each dim adds up in order, 16 results on their way. From -0, because that plus x is x for every x. */
extern "C" __global__ void __launch_bounds__(MAX_DIM) k_attn_join(const __grid_constant__ cu_attn_step a)
{
    enum { AHEAD = 16 };
    __shared__ float4 factor[MAX_DIM];
    __shared__ float row[MAX_DIM], tops[MAX_DIM / 32];
    pdl_trigger();
    int r = a.row0 + blockIdx.y, head = blockIdx.x, d = threadIdx.x, T = blockDim.x, lane = d % 32, warp = d / 32, dim = a.kv.dim;
    int pos = a.step->pos[r], window = a.kv.window, b0 = window && pos - window + 1 > 0 ? (pos - window + 1) / CU_BLOCK : 0, n = pos / CU_BLOCK + 1 - b0;
    size_t at = ((size_t)blockIdx.y * a.n_heads + head) * a.n_splits;
    const float *o = a.part + at * dim + (d < dim ? d : 0);
    const float2 *ml = (const float2 *)(a.part + (size_t)a.n_rows * a.n_heads * a.n_splits * dim) + at;
    pdl_wait();
    float v[AHEAD], gate = a.gate && d < dim ? a.gate[(size_t)r * a.gate_stride + (size_t)head * a.gate_head + d] : 0;
#pragma unroll
    for (int i = 0; i < AHEAD; i++) v[i] = i < n ? o[(size_t)i * dim] : 0;
    float M = -INFINITY, L = -0.0f, O = -0.0f;
    for (int c0 = 0; c0 < n; c0 += T) {
        float2 x = c0 + d < n ? ml[c0 + d] : make_float2(-INFINITY, 0);
        float top = x.x, before;
#pragma unroll
        for (int w = 1; w < 32; w *= 2) {
            float y = __shfl_up_sync(FULL, top, w);
            if (lane >= w) top = fmaxf(top, y);
        }
        before = __shfl_up_sync(FULL, top, 1);
        if (lane == 31) tops[warp] = top;
        __syncthreads();
        float all = M;
        for (int w = 0; w < T / 32; w++) {
            if (w == warp) M = all;
            all = fmaxf(all, tops[w]);
        }
        before = lane ? fmaxf(M, before) : M;
        top = fmaxf(M, top);
        M = all;
        float c = cb_expf(x.x - top);
        factor[d] = make_float4(cb_expf(before - top), c, x.y * c, 0);
        __syncthreads();
        int end = n - c0 < T ? n - c0 : T;
        for (int b = 0; b < end; b += AHEAD) {
            float next[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; i++) next[i] = c0 + b + AHEAD + i < n ? o[(size_t)(c0 + b + AHEAD + i) * dim] : 0;
#pragma unroll
            for (int i = 0; i < AHEAD; i++)
                if (b + i < end) {
                    float4 f = factor[b + i];
                    L = cb_fma(L, f.x, f.z);
                    O = cb_fma(O, f.x, v[i] * f.y);
                }
#pragma unroll
            for (int i = 0; i < AHEAD; i++) v[i] = next[i];
        }
        __syncthreads();
    }
    float y = rotate_back(O / L, a.o_block, a.o_scale, row);
    if (d < dim) a.out[(size_t)r * a.out_stride + (size_t)head * dim + d] = a.gate ? cb_sigmoidf(gate) * y : y;
}
