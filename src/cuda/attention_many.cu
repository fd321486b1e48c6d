/* attention_many.cu: attention for steps with many rows of a sequence (docs/arithmetic.md, section 6), and how their keys and values get
 * into the state; attention.cu has the other forms and the heads that do not fit here. A thread block takes up to 96 queries of one KV head and walks the KV
 * blocks, the next one on its way to shared memory. Two warps share 16 queries, so that the results, which stay in registers until the end, leave room for three
 * warps a scheduler: each multiplies half of a block's keys, makes weights of the scores of half of the rows, and multiplies half of the dims. In
 * between they exchange what the other needs, lane by lane. The scores, and later weights, of a row
 * are in the four lanes that hold the row, and keys are taken in an order in which a lane's weights are what the next product
 * wants of it (permuted()). */
#include "cuda/common.cuh"

enum { PAIRS = 6, WARPS = 2 * PAIRS, THREADS = 32 * WARPS, QUERIES = 16 * PAIRS };
static_assert(QUERIES == CU_WIDE_QUERIES && THREADS == CU_WIDE_THREADS, "abi.h");

/* Where things stand in shared memory, in bytes. */
template <int DIM> struct room {
    static constexpr int PARTS = DIM / 64, HALF = CU_BLOCK * DIM, SCALES = (PARTS + 1) * CU_BLOCK * 4;
    static constexpr int KV = 4 * HALF + SCALES;             /* a KV block as it is in memory but for the order of 16-byte chunks */
    static constexpr int Q = 2 * KV, DQ = Q + 2 * QUERIES * DIM; /* queries: high planes [QUERIES][DIM], low planes */
    /* What a pair of warps exchanges: scores of 2 x 2 x 16 tokens, then weights for 2 multiplies, high and low bytes, then
     * their factors (struct merged), 16 bytes a lane each. */
    static constexpr int PAIR = DQ + QUERIES * PARTS * 4, SCORES = 0, WEIGHTS = 4 * 512, FACTORS = 8 * 512, PAIR_BYTES = 10 * 512;
    static constexpr int SIZE = PAIR + PAIRS * PAIR_BYTES;
};

/* Which of the pairs of warps, and which warp of it. */
__device__ __forceinline__ int my_pair() { return threadIdx.x / 64; }
__device__ __forceinline__ int my_half() { return threadIdx.x / 32 % 2; }

__device__ __forceinline__ void more_s8s8(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { mma_s8s8(c, a[0], a[1], a[2], a[3], b0, b1); }
__device__ __forceinline__ void more_u8s8(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { mma_u8s8(c, a[0], a[1], a[2], a[3], b0, b1); }

/* 65536*hh + 256*(mid0 + mid1) + ll rounded once; |256*mid + ll| < 2^31, and both parts of the fma are exact. The middle bytes come in
 * two parts, for a product waits 24 cycles for the one that it adds to. b256 is 256, but the compiler does not know it: shifts share
 * their pipe with logic and conversions, the busiest here, multiplications do not. */
__device__ __forceinline__ float exact_sum(int hh, int mid0, int mid1, int ll, int b256)
{
    int w = mid0 * b256 + (mid1 * b256 + ll);
    return cb_fma((float)(hh + (w >> 16)), 65536.0f, (float)(w & 0xffff));
}

/* Chunk q of row r, rows being DIM bytes, so that the 8 rows of a matrix lie in different banks. */
template <int DIM> __device__ __forceinline__ int chunk_at(int q, int r) { return (DIM >= 128 ? q ^ (r & 7) : q ^ (r >> 1 & 3)) * 16; }
/* Keys are multiplied by tiles of 8: of 16 tokens, the first tile has 0 1 4 5 8 9 12 13, the second the others. Then lane c of a
 * row gets the scores of tokens 4c .. 4c+3. The rank of a token in its tile: */
__device__ __forceinline__ int rank_of(int t) { return (t >> 2) * 2 + (t & 1); }
__device__ __forceinline__ int permuted(int tile, int rank) { return 4 * (rank >> 1) + 2 * tile + (rank & 1); }

struct tile {
    int row0, n_rows, n_heads, n_q; /* query i: row row0 + i / n_heads, head head0 + i % n_heads */
    int kv_head, head0;
};

/* A power of two of the threads copies: then a thread's copies are constants apart. */
template <int DIM> __device__ __forceinline__ void fetch(const uint8_t *kv, uint32_t to)
{
    using R = room<DIM>;
    constexpr int COPIERS = 256, N = R::HALF / 16 / COPIERS; /* copies of a thread and plane */
    static_assert(COPIERS <= THREADS, "copiers");
    if (threadIdx.x < COPIERS) {
#pragma unroll
        for (int i = 0; i < 2 * N; i++) {
            int n = i % N * COPIERS + threadIdx.x, t = n / (DIM / 16), q = n % (DIM / 16), plane = i / N * R::HALF;
            copy16(to + plane + t * DIM + chunk_at<DIM>(q, rank_of(t)), kv + plane + n * 16);
        }
#pragma unroll
        for (int i = 0; i < 2 * N; i++) {
            int n = i % N * COPIERS + threadIdx.x, d = n / 4, q = n % 4, plane = (2 + i / N) * R::HALF;
            copy16(to + plane + d * 64 + chunk_at<64>(q, d), kv + plane + n * 16);
        }
        if (threadIdx.x < R::SCALES / 16) copy16(to + 4 * R::HALF + threadIdx.x * 16, kv + 4 * R::HALF + threadIdx.x * 16);
    }
    copies_end();
}

/* Quantises this warp's half of its pair's queries. */
template <int DIM> __device__ __forceinline__ void load_queries(const cu_attention &a, const tile &t, uint8_t *shared)
{
    using R = room<DIM>;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float *dq = (float *)(shared + R::DQ);
    for (int w = 0; w < 8 * R::PARTS; w++) {
        int i = 8 * warp + w / R::PARTS, g = w % R::PARTS;
        const float *x = a.q + (size_t)(t.row0 + i / t.n_heads) * a.q_stride + (t.head0 + i % t.n_heads) * DIM + 64 * g + 2 * lane;
        float2 v = i < t.n_q ? *(const float2 *)x : make_float2(0, 0);
        if (is_bad(v.x) || is_bad(v.y)) report_bad(a.step, a.op);
        float m = group_max(fmaxf(fabsf(v.x), fabsf(v.y)), 32);
        bool zero = m < CB_TINY;
        float inv = zero ? 0 : CB_XI_MAX / m;
        int x0 = zero ? 0 : clamp_xi(v.x * inv), x1 = zero ? 0 : clamp_xi(v.y * inv), h0 = (x0 + 128) >> 8, h1 = (x1 + 128) >> 8;
        uint8_t *to = shared + R::Q + i * DIM + chunk_at<DIM>(4 * g + lane / 8, i) + lane % 8 * 2;
        *(uint16_t *)to = (uint16_t)((h0 & 255) | h1 << 8);
        *(uint16_t *)(to + QUERIES * DIM) = (uint16_t)(((x0 - 256 * h0) & 255) | (x1 - 256 * h1) << 8);
        if (lane == 0) dq[i * R::PARTS + g] = (zero ? 0 : m * CB_XI_INV) * a.scale;
    }
}

/* What a warp knows of its half of the rows: of row r + 8*half, r = lane/4. */
struct softmax {
    float m, l; /* so far */
    float a, c, dw; /* how the block's results are merged; their scale */
    int pos;
};

/* s[i][e]: row r + 8*(e/2), token 32*half + 16*(i/2) + 4c + 2*(i%2) + e%2. */
template <int DIM> __device__ __forceinline__ void scores(const uint8_t *shared, uint32_t kv, int b256, float (&s)[4][4])
{
    using R = room<DIM>;
    int lane = threadIdx.x % 32, r = lane >> 2, c = lane & 3;
    int query = 16 * my_pair() + (lane & 15), key = 32 * my_half() + permuted(lane >> 4, lane & 7);
    uint32_t q_row = address(shared + R::Q) + query * DIM, k_row = kv + key * DIM;
    const float *dq = (const float *)(shared + R::DQ) + (16 * my_pair() + r) * R::PARTS;
    uint32_t dk = kv + 4 * R::HALF + 16 * c + 128 * my_half();
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) s[i][e] = 0;
#pragma unroll 1
    for (int g = 0; g < R::PARTS; g++) {
        uint32_t qh[2][4], ql[2][4];
        float dq0 = dq[g], dq1 = dq[8 * R::PARTS + g];
#pragma unroll
        for (int ks = 0; ks < 2; ks++) {
            uint32_t at = q_row + chunk_at<DIM>(4 * g + 2 * ks + (lane >> 4), query);
            matrices(qh[ks], at);
            matrices(ql[ks], at + QUERIES * DIM);
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
            int hh[2][4], mid0[2][4], mid1[2][4], ll[2][4];
#pragma unroll
            for (int ks = 0; ks < 2; ks++) {
                uint32_t kh[4], kl[4], at = k_row + j * 16 * DIM + chunk_at<DIM>(4 * g + 2 * ks + (lane >> 3 & 1), lane & 7); /* 16 tokens on, the same rank mod 8 */
                matrices(kh, at);
                matrices(kl, at + R::HALF);
                if (ks == 0) {
#pragma unroll
                    for (int t = 0; t < 2; t++) mma_first_s8s8(mid0[t], qh[0], kl[2 * t], kl[2 * t + 1]);
#pragma unroll
                    for (int t = 0; t < 2; t++) mma_first_s8s8(hh[t], qh[0], kh[2 * t], kh[2 * t + 1]);
#pragma unroll
                    for (int t = 0; t < 2; t++) mma_first_s8s8(ll[t], ql[0], kl[2 * t], kl[2 * t + 1]);
                } else {
#pragma unroll
                    for (int t = 0; t < 2; t++) more_s8s8(mid1[t], qh[1], kl[2 * t], kl[2 * t + 1]);
#pragma unroll
                    for (int t = 0; t < 2; t++) more_s8s8(hh[t], qh[1], kh[2 * t], kh[2 * t + 1]);
#pragma unroll
                    for (int t = 0; t < 2; t++) more_s8s8(ll[t], ql[1], kl[2 * t], kl[2 * t + 1]);
                }
#pragma unroll
                for (int t = 0; t < 2; t++)
                    if (ks == 0) mma_first_s8s8(mid1[t], ql[0], kh[2 * t], kh[2 * t + 1]);
                    else more_s8s8(mid0[t], ql[1], kh[2 * t], kh[2 * t + 1]);
            }
            float4 d4 = lds_float4(dk + (g * CU_BLOCK + 16 * j) * 4);
            const float d[4] = {d4.x, d4.y, d4.z, d4.w};
#pragma unroll
            for (int t = 0; t < 2; t++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    s[2 * j + t][e] = cb_fma(exact_sum(hh[t][e], mid0[t][e], mid1[t][e], ll[t][e], b256), (e < 2 ? dq0 : dq1) * d[2 * t + e % 2], s[2 * j + t][e]);
        }
    }
}

__device__ __forceinline__ float quad_max(float v)
{
    v = fmaxf(v, __shfl_xor_sync(FULL, v, 1));
    return fmaxf(v, __shfl_xor_sync(FULL, v, 2));
}

/* The scores of this warp's half of the rows, of all tokens: s[k][u] is that of token 16*group_of(k) + 4c + u. to: of this pair. */
__device__ __forceinline__ int group_of(int k) { return k < 2 ? 2 * my_half() + k : 2 - 2 * my_half() + k - 2; }
__device__ __forceinline__ void exchange(uint32_t to, const float (&mine)[4][4], float (&s)[4][4])
{
    int half = my_half(), lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        float other[4];
#pragma unroll
        for (int u = 0; u < 4; u++) {
            float a = mine[2 * k + u / 2][u % 2], b = mine[2 * k + u / 2][2 + u % 2];
            s[k][u] = half ? b : a;
            other[u] = half ? a : b;
        }
        sts_float4(to + (2 * half + k) * 512 + lane * 16, other[0], other[1], other[2], other[3]);
    }
    barrier_among(1 + my_pair(), 64);
#pragma unroll
    for (int k = 0; k < 2; k++) {
        float4 v = lds_float4(to + (2 - 2 * half + k) * 512 + lane * 16);
        s[2 + k][0] = v.x, s[2 + k][1] = v.y, s[2 + k][2] = v.z, s[2 + k][3] = v.w;
    }
}

/* Scores to weights as 16-bit numbers, their high and low bytes as the next product wants them: word k of a row are tokens
 * 16*group_of(k) + 4c .. + 3. first, end: the tokens of the block that the row sees, unless it sees ALL. */
template <bool ALL> __device__ __forceinline__ void weights(softmax &x, float (&s)[4][4], int first, int end, uint32_t dv, uint32_t (&hi)[4], uint32_t (&lo)[4])
{
    int c = threadIdx.x & 3;
    auto there = [&](int k, int u) { int t = 16 * group_of(k) + 4 * c + u; return t >= first && t < end; };
    float m = -INFINITY;
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int u = 0; u < 4; u++) {
            if (!ALL && !there(k, u)) s[k][u] = -INFINITY;
            m = fmaxf(m, s[k][u]);
        }
    m = quad_max(m);
    bool seen = ALL || m != -INFINITY;
    float from = seen ? m : 0;
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int u = 0; u < 4; u++) s[k][u] = cb_expf(s[k][u] - from);
    float v[4]; /* the lane tree: token t in lane t mod 32; which of two halves comes first makes no difference */
#pragma unroll
    for (int u = 0; u < 4; u++) v[u] = (s[0][u] + s[2][u]) + (s[1][u] + s[3][u]);
#pragma unroll
    for (int w = 2; w; w /= 2)
#pragma unroll
        for (int u = 0; u < 4; u++) v[u] = v[u] + __shfl_xor_sync(FULL, v[u], w);
    float l = (v[0] + v[2]) + (v[1] + v[3]), wm = 0;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        float4 d4 = lds_float4(dv + 16 * c + 64 * group_of(k));
        const float d[4] = {d4.x, d4.y, d4.z, d4.w};
#pragma unroll
        for (int u = 0; u < 4; u++) {
            float w = s[k][u] * d[u];
            if (!ALL && !there(k, u)) w = 0; /* d may be anything there */
            s[k][u] = w;
            wm = fmaxf(wm, w);
        }
    }
    wm = quad_max(wm);
    bool zero = wm < CB_TINY;
    float inv = zero ? 0 : CB_PW_MAX / wm;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint32_t b[4]; /* 2^23 + the rounded number: its low bytes are the number's */
#pragma unroll
        for (int u = 0; u < 4; u++) b[u] = __float_as_uint(fminf(s[k][u] * inv, (float)CB_PW_MAX) + 8388608.0f);
        uint32_t b01 = __byte_perm(b[0], b[1], 0x5140), b23 = __byte_perm(b[2], b[3], 0x5140);
        lo[k] = __byte_perm(b01, b23, 0x5410);
        hi[k] = __byte_perm(b01, b23, 0x7632);
    }
    x.dw = zero ? 0 : wm * CB_PW_INV;
    if (seen) { /* the first block is taken as it is: a is exp(-inf) = 0, c is 1 */
        float M = x.m > m ? x.m : m;
        x.a = cb_expf(x.m - M);
        x.c = cb_expf(m - M);
        x.l = cb_fma(x.l, x.a, l * x.c);
        x.m = M;
    } else { /* nothing of it: o is +0, and +0 * -0 changes no value, not even -0 */
        x.a = 1;
        x.c = -0.0f;
    }
}

/* What both warps of a pair need of all 16 rows: weights as the product wants them, and of rows r and r + 8 how results are merged. */
struct merged {
    uint32_t wh[2][4], wl[2][4];
    float a[2], c[2], dw[2], l[2];
    __device__ __forceinline__ void exchange(uint32_t weights, uint32_t factors, const softmax &x, const uint32_t (&hi)[4], const uint32_t (&lo)[4])
    {
        int half = my_half(), lane = threadIdx.x % 32;
#pragma unroll
        for (int k = 0; k < 4; k++) { /* of group 2*ks + i of row h: word h + 2*i of what multiply ks takes */
            uint32_t to = weights + group_of(k) / 2 * 1024 + lane * 16 + (half + k % 2 * 2) * 4;
            sts<1>(to, hi + k);
            sts<1>(to + 512, lo + k);
        }
        sts_float4(factors + half * 512 + lane * 16, x.a, x.c, x.dw, x.l);
        barrier_among(1 + my_pair(), 64);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            lds<4>(wh[h], weights + h * 1024 + lane * 16);
            lds<4>(wl[h], weights + h * 1024 + 512 + lane * 16);
            float4 f = lds_float4(factors + h * 512 + lane * 16);
            a[h] = f.x, c[h] = f.y, dw[h] = f.z, l[h] = f.w;
        }
    }
};

/* O[n][e] (row r + 8*(e/2), dim DIM/2*half + 8n + 2c + e%2) merged with the block's results. */
template <int DIM> __device__ __forceinline__ void values(const merged &x, uint32_t v, int b256, float (&O)[DIM / 16][4])
{
    using R = room<DIM>;
    const auto &wh = x.wh, &wl = x.wl;
    int lane = threadIdx.x % 32;
    v += DIM / 2 * my_half() * 64 + (lane & 7) * 64 + chunk_at<64>(lane >> 3, lane & 7);
    uint32_t vh[2][2][4], vl[2][2][4]; /* of this pair of tiles and the next */
    auto load = [&](int n) {
#pragma unroll
        for (int t = 0; t < 2; t++) {
            matrices(vh[n / 2 & 1][t], v + (n + t) * 512);
            matrices(vl[n / 2 & 1][t], v + (n + t) * 512 + R::HALF);
        }
    };
    load(0);
#pragma unroll
    for (int n = 0; n < DIM / 16; n += 2) {
        const uint32_t (&h)[2][4] = vh[n / 2 & 1], (&l)[2][4] = vl[n / 2 & 1];
        int hh[2][4], mid0[2][4], ll[2][4], mid1[2][4];
#pragma unroll
        for (int t = 0; t < 2; t++) mma_first_u8s8(mid0[t], wh[0], l[t][0], l[t][1]);
#pragma unroll
        for (int t = 0; t < 2; t++) mma_first_u8s8(mid1[t], wh[1], l[t][2], l[t][3]);
#pragma unroll
        for (int t = 0; t < 2; t++) mma_first_u8s8(hh[t], wh[0], h[t][0], h[t][1]);
        if (n + 2 < DIM / 16) load(n + 2);
#pragma unroll
        for (int t = 0; t < 2; t++) more_u8s8(mid0[t], wl[0], h[t][0], h[t][1]);
#pragma unroll
        for (int t = 0; t < 2; t++) mma_first_u8s8(ll[t], wl[0], l[t][0], l[t][1]);
#pragma unroll
        for (int t = 0; t < 2; t++) more_u8s8(hh[t], wh[1], h[t][2], h[t][3]);
#pragma unroll
        for (int t = 0; t < 2; t++) more_u8s8(mid1[t], wl[1], h[t][2], h[t][3]);
#pragma unroll
        for (int t = 0; t < 2; t++) more_u8s8(ll[t], wl[1], l[t][2], l[t][3]);
#pragma unroll
        for (int t = 0; t < 2; t++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                O[n + t][e] = cb_fma(O[n + t][e], x.a[e / 2], (x.dw[e / 2] * exact_sum(hh[t][e], mid0[t][e], mid1[t][e], ll[t][e], b256)) * x.c[e / 2]);
    }
}

/* y: KV head; x: tile of rows, the longest contexts first. */
template <int DIM> __device__ __forceinline__ void attend(const cu_attention &a, uint8_t *shared)
{
    using R = room<DIM>;
    int lane = threadIdx.x % 32, r = lane >> 2, c = lane & 3, window = a.kv.window;
    tile t;
    t.n_heads = a.n_heads / a.kv.n_heads;
    t.kv_head = blockIdx.y;
    t.head0 = t.kv_head * t.n_heads;
    t.row0 = a.step->wide_row[gridDim.x - 1 - blockIdx.x];
    t.n_rows = a.step->wide_n[gridDim.x - 1 - blockIdx.x];
    t.n_q = t.n_rows * t.n_heads;
    const int32_t *pos = a.step->pos + t.row0, *table = a.step->tables[a.kv.group] + (size_t)a.step->slot[t.row0] * a.step->table_stride;
    int p0 = pos[0], p1 = pos[t.n_rows - 1], b0 = window && p0 - window + 1 > 0 ? (p0 - window + 1) / CU_BLOCK : 0, b1 = p1 / CU_BLOCK + 1;
    auto block_at = [&](int b) { return a.kv.base + ((size_t)b * a.kv.n_heads + t.kv_head) * a.kv.head_bytes; };
    uint32_t kv[2] = {address(shared), address(shared) + R::KV};
    fetch<DIM>(block_at(table[b0]), kv[0]);
    int ahead = table[b0 + 1 < b1 ? b0 + 1 : b0];
    load_queries<DIM>(a, t, shared);

    int q0 = 16 * my_pair(), q1 = q0 + 15 < t.n_q ? q0 + 15 : t.n_q - 1; /* this pair's first and last query, and what they see */
    bool idle = q0 >= t.n_q;
    int low = idle ? 0 : pos[q0 / t.n_heads], high = idle ? -1 : pos[q1 / t.n_heads], mine = q0 + r + 8 * my_half();
    softmax x;
    x.m = -INFINITY;
    x.l = 0;
    x.pos = mine < t.n_q ? pos[mine / t.n_heads] : -1;
    merged both;
    both.l[0] = both.l[1] = 0;
    float O[DIM / 16][4];
#pragma unroll
    for (int n = 0; n < DIM / 16; n++) O[n][0] = O[n][1] = O[n][2] = O[n][3] = 0;

    const uint32_t pair = address(shared) + R::PAIR + my_pair() * R::PAIR_BYTES;
    static_assert(THREADS - 128 == 256, "see exact_sum()");
    const int b256 = (int)blockDim.x - 128;
    for (int block = b0, turn = 0; block < b1; block++, turn ^= 1) {
        copies_wait<0>();
        __syncthreads();
        if (block + 1 < b1) fetch<DIM>(block_at(ahead), kv[turn ^ 1]);
        if (block + 2 < b1) ahead = table[block + 2];
        int begin = block * CU_BLOCK;
        if (begin > high || (window && begin + CU_BLOCK - 1 < low - window + 1)) continue;
        bool all = q1 - q0 == 15 && begin + CU_BLOCK - 1 <= low && !(window && begin < high - window + 1);
        uint32_t dv = kv[turn] + 4 * R::HALF + R::PARTS * CU_BLOCK * 4, hi[4], lo[4];
        float half[4][4], s[4][4];
        scores<DIM>(shared, kv[turn], b256, half);
        exchange(pair + R::SCORES, half, s);
        if (all) weights<true>(x, s, 0, CU_BLOCK, dv, hi, lo);
        else weights<false>(x, s, window ? x.pos - window + 1 - begin : 0, x.pos + 1 - begin, dv, hi, lo);
        both.exchange(pair + R::WEIGHTS, pair + R::FACTORS, x, hi, lo);
        values<DIM>(both, kv[turn] + 2 * R::HALF, b256, O);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int q = q0 + r + 8 * h;
        if (q >= t.n_q) continue;
        float *out = a.out + (size_t)(t.row0 + q / t.n_heads) * a.out_stride + (t.head0 + q % t.n_heads) * DIM + DIM / 2 * my_half() + 2 * c;
#pragma unroll
        for (int n = 0; n < DIM / 16; n++) *(float2 *)(out + 8 * n) = make_float2(O[n][2 * h] / both.l[h], O[n][2 * h + 1] / both.l[h]);
    }
}

#define ATTEND(DIM)                                                                                                           \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) k_attn_many##DIM(const __grid_constant__ cu_attention a)         \
    {                                                                                                                         \
        extern __shared__ __align__(128) uint8_t shared[];                                                                    \
        static_assert(room<DIM>::SIZE == CU_ATTN_SHARED(DIM), "shared memory");                                               \
        pdl_trigger();                                                                                                        \
        pdl_wait();                                                                                                           \
        attend<DIM>(a, shared);                                                                                               \
    }
ATTEND(64)
ATTEND(128)
ATTEND(256)

/* ---- keys and values into the state ---- */

/* The scale of numbers of which `top` is the largest of this lane, as bits; |x*inv| needs no clamp (rowops.cuh). */
struct scale {
    float dx, inv;
    __device__ __forceinline__ scale(uint32_t top, cu_step *step, int op)
    {
        top = __reduce_max_sync(FULL, top);
        if (top >= 0x7f800000u) report_bad(step, op);
        float m = __uint_as_float(top);
        bool zero = m < CB_TINY;
        inv = zero ? 0 : CB_XI_MAX / m;
        dx = zero ? 0 : m * CB_XI_INV;
    }
    /* The 16-bit number in the low half of a word. */
    __device__ __forceinline__ uint32_t bits(float x) const { return __float_as_uint(x * inv + 12582912.0f); }
};
__device__ __forceinline__ uint32_t size_bits(float x) { return __float_as_uint(x) & 0x7fffffff; }

/* CB_KV_PUT: x: CU_PUT_ROWS rows, y: KV head of 64*parts dims. Keys are written row by row; values stand by dims, so that they go through
 * shared memory, where rows are side by side. */
extern "C" __global__ void __launch_bounds__(256) k_kv_put_many(const __grid_constant__ cu_rows_many a)
{
    enum { PITCH = CU_PUT_ROWS + 4 };
    __shared__ __align__(16) uint8_t bytes[2][CU_PUT_DIM * PITCH];
    __shared__ int at[CU_PUT_ROWS]; /* position in the block */
    __shared__ uint8_t *block[CU_PUT_ROWS];
    pdl_trigger();
    pdl_wait();
    const cu_row_op &o = *a.ops;
    const cu_kv &s = o.u.kv;
    int row0 = blockIdx.x * CU_PUT_ROWS, n = min((int)CU_PUT_ROWS, a.n_rows - row0), warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.y;
    int parts = s.dim / 64;
    size_t half = (size_t)CU_BLOCK * s.dim;
    for (int r = threadIdx.x; r < n; r += 256) {
        int pos = a.step->pos[row0 + r];
        int b = a.step->tables[s.group][(size_t)a.step->slot[row0 + r] * a.step->table_stride + pos / CU_BLOCK];
        at[r] = pos % CU_BLOCK;
        block[r] = s.base + ((size_t)b * s.n_heads + head) * s.head_bytes;
    }
    __syncthreads();
    for (int w = warp; w < n * parts; w += 8) {
        int r = w / parts, g = w - r * parts;
        float2 x = *(const float2 *)(o.in[0] + (size_t)(row0 + r) * o.in_stride[0] + head * s.dim + 64 * g + 2 * lane);
        scale k(max(size_bits(x.x), size_bits(x.y)), a.step, o.op);
        uint32_t t0 = k.bits(x.x), t1 = k.bits(x.y);
        uint8_t *to = block[r] + (size_t)at[r] * s.dim + 64 * g + 2 * lane;
        *(uint16_t *)to = (uint16_t)__byte_perm(t0 + 128, t1 + 128, 0x0051);
        *(uint16_t *)(to + half) = (uint16_t)__byte_perm(t0, t1, 0x0040);
        if (lane == 0) ((float *)(block[r] + 4 * half))[g * CU_BLOCK + at[r]] = k.dx;
    }
    for (int r = warp; r < n; r += 8) {
        const float *x = o.in[1] + (size_t)(row0 + r) * o.in_stride[1] + head * s.dim;
        uint32_t top = 0;
        for (int d = lane; d < s.dim; d += 32) top = max(top, size_bits(x[d]));
        scale v(top, a.step, o.op);
        for (int d = lane; d < s.dim; d += 32) {
            uint32_t t = v.bits(x[d]);
            bytes[0][d * PITCH + r] = (uint8_t)((t + 128) >> 8);
            bytes[1][d * PITCH + r] = (uint8_t)t;
        }
        if (lane == 0) ((float *)(block[r] + 4 * half))[parts * CU_BLOCK + at[r]] = v.dx;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * s.dim * (CU_PUT_ROWS / 4); i += 256) { /* 4 rows of a dim */
        int r = i % (CU_PUT_ROWS / 4) * 4, d = i / (CU_PUT_ROWS / 4) % s.dim, plane = i / (CU_PUT_ROWS / 4) / s.dim;
        const uint8_t *from = bytes[plane] + d * PITCH + r;
        bool beside = r + 3 < n && block[r] == block[r + 3] && at[r] % 4 == 0 && at[r + 3] == at[r] + 3;
        if (beside) *(uint32_t *)(block[r] + (2 + plane) * half + (size_t)d * CU_BLOCK + at[r]) = *(const uint32_t *)from;
        else
            for (int k = 0; k < 4 && r + k < n; k++) block[r + k][(2 + plane) * half + (size_t)d * CU_BLOCK + at[r + k]] = from[k];
    }
}
