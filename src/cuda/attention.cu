/* attention.cu: attention over KV blocks of 64 tokens aligned to absolute positions (docs/arithmetic.md, section 6). A thread block
 * takes up to 16 queries of one KV head, which fill the 16 rows of an int8 tensor-core product, and either one KV block whose
 * result it stores (few rows: the context is spread over the GPU and k_attn_merge merges in ascending order), or all blocks
 * in turn, merging as it goes. */
#include "cuda/common.cuh"

enum { WARPS = 8, THREADS = 32 * WARPS, QUERIES = 16, MAX_DIM = 512 };

/* Shared memory, behind it floats O[16][dim] in the looping form. */
struct shared {
    float s[QUERIES][CU_BLOCK + 4];
    uint8_t w[2][QUERIES][CU_BLOCK + 16]; /* high and low bytes of the weights */
    float m[QUERIES], l[QUERIES], dw[QUERIES], a[QUERIES], c[QUERIES]; /* block's maximum, sum, scale; merge factors */
    float run_m[QUERIES], run_l[QUERIES];
    float dq[QUERIES][MAX_DIM / 64];
    int pos[QUERIES], seen[QUERIES];
    alignas(16) int8_t q[2][QUERIES][MAX_DIM + 16];
};

struct tile {
    int row0, n_rows, head0, n_heads, n_q; /* query i: row row0 + i / n_heads, head head0 + i % n_heads */
    int kv_head, slot;
};

/* Quantises the queries, one warp a query and part. */
__device__ void load_queries(const cu_attention &a, const tile &t, shared &sm)
{
    int dim = a.kv.dim, parts = (dim + 63) / 64, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int i = threadIdx.x; i < QUERIES; i += THREADS) sm.pos[i] = i < t.n_q ? a.step->pos[t.row0 + i / t.n_heads] : -1;
    for (int w = warp; w < QUERIES * parts; w += WARPS) {
        int i = w / parts, g = w % parts, n = dim - 64 * g < 64 ? dim - 64 * g : 64;
        const float *x = a.q + (size_t)(t.row0 + i / t.n_heads) * a.q_stride + (t.head0 + i % t.n_heads) * dim + 64 * g;
        float v[2], m = 0;
        bool bad = false;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            v[j] = i < t.n_q && lane + 32 * j < n ? x[lane + 32 * j] : 0;
            bad |= is_bad(v[j]);
            m = fmaxf(m, fabsf(v[j]));
        }
        if (bad) report_bad(a.step, a.op);
        m = group_max(m, 32);
        bool zero = m < CB_TINY;
        float inv = zero ? 0 : CB_XI_MAX / m;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            int xi = zero ? 0 : clamp_xi(v[j] * inv), hi = (xi + 128) >> 8;
            sm.q[0][i][64 * g + lane + 32 * j] = (int8_t)hi;
            sm.q[1][i][64 * g + lane + 32 * j] = (int8_t)(xi - 256 * hi);
        }
        if (lane == 0) sm.dq[i][g] = (zero ? 0 : m * CB_XI_INV) * a.scale;
    }
}

/* 16 bytes of a row of planes, of which only the first n are there. n is a multiple of 2. */
__device__ __forceinline__ uint4 load16(const uint8_t *p, int n, bool aligned)
{
    uint4 v = {0, 0, 0, 0};
    if (n >= 16 && aligned) return *(const uint4 *)p;
    uint8_t *b = (uint8_t *)&v;
#pragma unroll
    for (int i = 0; i < 16; i++)
        if (i < n) b[i] = p[i];
    return v;
}

/* Scores of all queries against one block: warp w takes keys 8w .. 8w+7. */
__device__ void scores(const cu_attention &a, const uint8_t *kv, shared &sm)
{
    int dim = a.kv.dim, parts = (dim + 63) / 64, warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane >> 2, c = lane & 3;
    size_t half = (size_t)CU_BLOCK * dim;
    const uint8_t *key = kv + (size_t)(8 * warp + r) * dim;
    const float *dk = (const float *)(kv + 4 * half) + 8 * warp + 2 * c;
    bool aligned = dim % 16 == 0;
    float s[4] = {0, 0, 0, 0};
    for (int g = 0; g < parts; g++) {
        int at = 64 * g + 16 * c;
        uint4 kh = load16(key + at, dim - at, aligned), kl = load16(key + half + at, dim - at, aligned);
        int hh[4] = {}, mid[4] = {}, ll[4] = {};
        const uint32_t *h = (const uint32_t *)&kh, *l = (const uint32_t *)&kl;
        const uint32_t *q0h = (const uint32_t *)&sm.q[0][r][at], *q1h = (const uint32_t *)&sm.q[0][r + 8][at];
        const uint32_t *q0l = (const uint32_t *)&sm.q[1][r][at], *q1l = (const uint32_t *)&sm.q[1][r + 8][at];
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
            mma_s8s8(hh, q0h[i], q1h[i], q0h[i + 1], q1h[i + 1], h[i], h[i + 1]);
            mma_s8s8(mid, q0h[i], q1h[i], q0h[i + 1], q1h[i + 1], l[i], l[i + 1]);
            mma_s8s8(mid, q0l[i], q1l[i], q0l[i + 1], q1l[i + 1], h[i], h[i + 1]);
            mma_s8s8(ll, q0l[i], q1l[i], q0l[i + 1], q1l[i + 1], l[i], l[i + 1]);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float d = planes_to_f32(hh[j], mid[j], ll[j]);
            s[j] = cb_fma(d, sm.dq[r + 8 * (j / 2)][g] * dk[g * CU_BLOCK + j % 2], s[j]);
        }
    }
    for (int j = 0; j < 4; j++) sm.s[r + 8 * (j / 2)][8 * warp + 2 * c + j % 2] = s[j];
}

/* Softmax within the block and the weights as 16-bit numbers: a warp takes queries warp and warp + 8. */
__device__ void weights(const cu_attention &a, const uint8_t *kv, int block, int n_q, shared &sm)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, dim = a.kv.dim;
    const float *dv = (const float *)(kv + 4 * (size_t)CU_BLOCK * dim) + (dim + 63) / 64 * CU_BLOCK;
    for (int q = warp; q < QUERIES; q += WARPS) {
        int pos = sm.pos[q], first = a.kv.window && pos - a.kv.window + 1 > 0 ? pos - a.kv.window + 1 : 0;
        int lo = first - block * CU_BLOCK, hi = pos + 1 - block * CU_BLOCK;
        bool in0 = q < n_q && lane >= lo && lane < hi, in1 = q < n_q && lane + 32 >= lo && lane + 32 < hi;
        float s0 = sm.s[q][lane], s1 = sm.s[q][lane + 32];
        float m = fmaxf(in0 ? s0 : -INFINITY, in1 ? s1 : -INFINITY);
        m = group_max(m, 32);
        float p0 = in0 ? cb_expf(s0 - m) : 0, p1 = in1 ? cb_expf(s1 - m) : 0;
        float l = lane_fold(p0 + p1);
        float w0 = p0 * dv[lane], w1 = p1 * dv[lane + 32];
        if (!in0) w0 = 0;
        if (!in1) w1 = 0;
        float wm = group_max(fmaxf(w0, w1), 32);
        bool zero = wm < CB_TINY;
        float inv = zero ? 0 : CB_PW_MAX / wm, r0 = rintf(w0 * inv), r1 = rintf(w1 * inv);
        int i0 = r0 > CB_PW_MAX ? CB_PW_MAX : (int)r0, i1 = r1 > CB_PW_MAX ? CB_PW_MAX : (int)r1;
        sm.w[0][q][lane] = (uint8_t)(i0 >> 8);
        sm.w[1][q][lane] = (uint8_t)i0;
        sm.w[0][q][lane + 32] = (uint8_t)(i1 >> 8);
        sm.w[1][q][lane + 32] = (uint8_t)i1;
        if (lane == 0) {
            sm.m[q] = m;
            sm.l[q] = l;
            sm.dw[q] = zero ? 0 : wm * CB_PW_INV;
            sm.seen[q] = q < n_q && hi > 0 && lo < CU_BLOCK;
        }
    }
}

/* Results of the dims 8n .. 8n+7 for all queries: lane (r, c) gets queries r, r+8 and dims 8n + 2c, 8n + 2c + 1. */
__device__ __forceinline__ void values(const uint8_t *kv, int dim, int n, const shared &sm, float (&o)[4])
{
    int lane = threadIdx.x % 32, r = lane >> 2, c = lane & 3;
    size_t half = (size_t)CU_BLOCK * dim;
    int d = 8 * n + r < dim ? 8 * n + r : dim - 1;
    const uint8_t *v = kv + 2 * half + (size_t)d * CU_BLOCK + 16 * c;
    uint4 vh = *(const uint4 *)v, vl = *(const uint4 *)(v + half);
    const uint32_t *h = (const uint32_t *)&vh, *l = (const uint32_t *)&vl;
    const uint32_t *w0h = (const uint32_t *)&sm.w[0][r][16 * c], *w1h = (const uint32_t *)&sm.w[0][r + 8][16 * c];
    const uint32_t *w0l = (const uint32_t *)&sm.w[1][r][16 * c], *w1l = (const uint32_t *)&sm.w[1][r + 8][16 * c];
    int hh[4] = {}, mid[4] = {}, ll[4] = {};
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        mma_u8s8(hh, w0h[i], w1h[i], w0h[i + 1], w1h[i + 1], h[i], h[i + 1]);
        mma_u8s8(mid, w0h[i], w1h[i], w0h[i + 1], w1h[i + 1], l[i], l[i + 1]);
        mma_u8s8(mid, w0l[i], w1l[i], w0l[i + 1], w1l[i + 1], h[i], h[i + 1]);
        mma_u8s8(ll, w0l[i], w1l[i], w0l[i + 1], w1l[i + 1], l[i], l[i + 1]);
    }
#pragma unroll
    for (int j = 0; j < 4; j++) o[j] = sm.dw[r + 8 * (j / 2)] * planes_to_f32(hh[j], mid[j], ll[j]);
}

__device__ __forceinline__ const uint8_t *kv_at(const cu_attention &a, const tile &t, int block)
{
    int b = a.step->tables[a.kv.group][(size_t)t.slot * a.step->table_stride + block];
    return a.kv.base + ((size_t)b * a.kv.n_heads + t.kv_head) * a.kv.head_bytes;
}

/* First block that any row of the tile sees, and one past the last. */
__device__ __forceinline__ void block_range(const cu_attention &a, const tile &t, int *b0, int *b1)
{
    int p0 = a.step->pos[t.row0], p1 = a.step->pos[t.row0 + t.n_rows - 1], w = a.kv.window;
    *b0 = w && p0 - w + 1 > 0 ? (p0 - w + 1) / CU_BLOCK : 0;
    *b1 = p1 / CU_BLOCK + 1;
}

/* y: KV head and, when a KV head has more than 16 query heads, which of them. x: tile of rows. */
__device__ __forceinline__ tile find_tile(const cu_attention &a)
{
    tile t;
    int per = a.n_heads / a.kv.n_heads, n_sets = (per + QUERIES - 1) / QUERIES, set = blockIdx.y % n_sets;
    t.kv_head = blockIdx.y / n_sets;
    t.head0 = t.kv_head * per + set * QUERIES;
    t.n_heads = per - set * QUERIES < QUERIES ? per - set * QUERIES : QUERIES;
    t.row0 = a.step->tile_row[blockIdx.x];
    t.n_rows = a.step->tile_n[blockIdx.x];
    t.n_q = t.n_rows * t.n_heads;
    t.slot = a.step->slot[t.row0];
    return t;
}

/* One KV block, blockIdx.z-th of those that the row sees. Tiles hold one row. */
extern "C" __global__ void __launch_bounds__(THREADS) k_attn_split(const __grid_constant__ cu_attention a)
{
    __shared__ shared sm;
    pdl_trigger();
    pdl_wait();
    tile t = find_tile(a);
    int b0, b1;
    block_range(a, t, &b0, &b1);
    int block = b0 + blockIdx.z, dim = a.kv.dim, lane = threadIdx.x % 32, r = lane >> 2, c = lane & 3;
    if (block >= b1) return;
    const uint8_t *kv = kv_at(a, t, block);
    load_queries(a, t, sm);
    __syncthreads();
    scores(a, kv, sm);
    __syncthreads();
    weights(a, kv, block, t.n_q, sm);
    __syncthreads();
    for (int n = threadIdx.x / 32; n < (dim + 7) / 8; n += WARPS) {
        float o[4];
        values(kv, dim, n, sm, o);
        for (int j = 0; j < 4; j++) {
            int q = r + 8 * (j / 2), d = 8 * n + 2 * c + j % 2;
            if (q >= t.n_q || d >= dim) continue;
            float *p = a.part + (((size_t)t.row0 * a.n_heads + t.head0 + q) * a.n_splits + blockIdx.z) * (dim + 2);
            p[2 + d] = o[j];
            if (d == 0) {
                p[0] = sm.m[q];
                p[1] = sm.l[q];
            }
        }
    }
}

/* Merges what k_attn_split stored: one thread block a row and query head. */
extern "C" __global__ void __launch_bounds__(128) k_attn_merge(const __grid_constant__ cu_attention a)
{
    pdl_trigger();
    pdl_wait();
    int row = blockIdx.x, head = blockIdx.y, dim = a.kv.dim, pos = a.step->pos[row], w = a.kv.window;
    int b0 = w && pos - w + 1 > 0 ? (pos - w + 1) / CU_BLOCK : 0, n = pos / CU_BLOCK + 1 - b0;
    const float *p = a.part + ((size_t)row * a.n_heads + head) * a.n_splits * (dim + 2);
    for (int d = threadIdx.x; d < dim; d += 128) {
        float m = p[0], l = p[1], o = p[2 + d];
        const float *in = p + dim + 2;
        for (int b = 1; b < n; b++, in += dim + 2) {
            float bm = in[0], M = m > bm ? m : bm, x = cb_expf(m - M), y = cb_expf(bm - M);
            l = cb_fma(l, x, in[1] * y);
            o = cb_fma(o, x, in[2 + d] * y);
            m = M;
        }
        a.out[(size_t)row * a.out_stride + head * dim + d] = o / l;
    }
}

/* All blocks in turn. */
extern "C" __global__ void __launch_bounds__(THREADS) k_attn(const __grid_constant__ cu_attention a)
{
    extern __shared__ float O[]; /* [16][dim] */
    __shared__ shared sm;
    pdl_trigger();
    pdl_wait();
    tile t = find_tile(a);
    int b0, b1, dim = a.kv.dim, lane = threadIdx.x % 32, r = lane >> 2, c = lane & 3;
    block_range(a, t, &b0, &b1);
    load_queries(a, t, sm);
    if (threadIdx.x < QUERIES) sm.run_l[threadIdx.x] = -1; /* nothing yet */
    __syncthreads();
    for (int block = b0; block < b1; block++) {
        const uint8_t *kv = kv_at(a, t, block);
        scores(a, kv, sm);
        __syncthreads();
        weights(a, kv, block, t.n_q, sm);
        __syncthreads();
        if (threadIdx.x < QUERIES) {
            int q = threadIdx.x;
            float m = sm.m[q], rm = sm.run_m[q], M = rm > m ? rm : m;
            if (!sm.seen[q]) sm.a[q] = -1;      /* keep */
            else if (sm.run_l[q] < 0) {
                sm.a[q] = -2;                   /* take */
                sm.run_m[q] = m;
                sm.run_l[q] = sm.l[q];
            } else {
                float x = cb_expf(rm - M), y = cb_expf(m - M);
                sm.a[q] = x;
                sm.c[q] = y;
                sm.run_l[q] = cb_fma(sm.run_l[q], x, sm.l[q] * y);
                sm.run_m[q] = M;
            }
        }
        __syncthreads();
        for (int n = threadIdx.x / 32; n < (dim + 7) / 8; n += WARPS) {
            float o[4];
            values(kv, dim, n, sm, o);
            for (int j = 0; j < 4; j++) {
                int q = r + 8 * (j / 2), d = 8 * n + 2 * c + j % 2;
                if (d >= dim) continue;
                float x = sm.a[q], *to = &O[q * dim + d];
                if (x == -2) *to = o[j];
                else if (x >= 0) *to = cb_fma(*to, x, o[j] * sm.c[q]);
            }
        }
        __syncthreads();
    }
    for (int i = threadIdx.x; i < t.n_q * dim; i += THREADS) {
        int q = i / dim, d = i % dim;
        a.out[(size_t)(t.row0 + q / t.n_heads) * a.out_stride + (t.head0 + q % t.n_heads) * dim + d] = O[i] / sm.run_l[q];
    }
}
