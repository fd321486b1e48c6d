/* small_rows.cuh: what small.cu does with a row in shared memory: its planes, whether it has a remainder, and products of tiles of 16 outputs.
 *
 * Of a product of 16x32 and 32x8 bytes lane c of four reads 16 bytes of codes of its own segment's group in each row and multiplies them with column
 * pair c, the high and low bytes of that group's activations; what it gives the other pairs is zero. So a warp works on four segments of a
 * tile at once, and lane c finishes the chain of one. Codes that are the upper bits of a byte are multiplied where they stand. */
#ifndef CB_CUDA_SMALL_ROWS_CUH
#define CB_CUDA_SMALL_ROWS_CUH
#include "cuda/few.cuh"
#include "cuda/stream_chains.cuh"

enum { COMPUTING = 32 * CU_SMALL_WARPS, PAIRS = CU_SMALL_WARPS / 2 };

template <int GROUP_, int SCALE> struct code4 : format<CU_FMT_AFFINE, 4, GROUP_, SCALE> {
    static constexpr int GROUP = GROUP_, PER = GROUP / 32, PIECES = GROUP / 16; /* values of a lane when a warp has a group; 16-byte pieces of a plane of it */
};

/* The warps that compute. */
__device__ __forceinline__ void meet() { barrier_among(1, COMPUTING); }

/* Planes of a row of G groups in shared memory. */
struct planes {
    uint32_t at;
    int G, step; /* bytes from the high to the low bytes */
    __device__ __forceinline__ planes(uint32_t where, int groups) : at(where), G(groups), step(CU_SMALL_PLANE(groups)) {}
    /* Piece `of` of group g; its high bytes. */
    __device__ __forceinline__ uint32_t piece(int g, int of) const { return at + of * 2 * step + 16 * g; }
    /* dx and X. */
    template <class F> __device__ __forceinline__ uint32_t scale(int g) const { return at + F::PIECES * 2 * step + 8 * g; }
};

/* ---- planes ---- */

/* A group's numbers, of which the warp's lane l has values l, l + 32, .. */
template <class F> struct numbers {
    uint32_t t[F::PER], most;
    float dx, X;
};

/* N groups side by side. */
template <class F, int N> __device__ __forceinline__ void encode(const float (&v)[N][F::PER], numbers<F> (&r)[N])
{
    float inv[N];
    int sum[N];
    each<N>([&](int k) {
        uint32_t m = 0;
        each<F::PER>([&](int j) { m = max(m, __float_as_uint(v[k][j]) & 0x7fffffff); });
        r[k].most = __reduce_max_sync(FULL, m);
    });
    each<N>([&](int k) {
        float most = __uint_as_float(r[k].most);
        inv[k] = most < CB_TINY ? 0 : steps_of(most < CB_TINY ? CB_TINY : most);
        r[k].dx = most < CB_TINY ? 0 : most * CB_XI_INV;
    });
    each<N>([&](int k) {
        sum[k] = 0;
        each<F::PER>([&](int j) {
            r[k].t[j] = __float_as_uint(v[k][j] * inv[k] + MAGIC);
            sum[k] += (int)(r[k].t[j] - 0x4b400000u);
        });
    });
    each<N>([&](int k) { r[k].X = r[k].dx * (float)__reduce_add_sync(FULL, sum[k]); });
}

/* Where a lane's value j of a group goes: bytes of a piece stand as `products` below want them. */
__device__ __forceinline__ int piece_of(int lane, int j) { return 2 * j + (lane >> 4); }
__device__ __forceinline__ int byte_of(int lane) { return ((lane & 1) * 2 + (lane >> 3 & 1)) * 4 + (lane >> 1 & 3); }

/* A warp stores a group. */
template <class F> __device__ __forceinline__ void put_group(const planes &x, int g, const numbers<F> &r)
{
    int lane = threadIdx.x & 31;
    each<F::PER>([&](int j) {
        uint32_t at = x.piece(g, piece_of(lane, j)) + byte_of(lane);
        sts_u8(at, r.t[j] + 128 >> 8);
        sts_u8(at + x.step, r.t[j]);
    });
    if (lane == 0) sts_float2(x.scale<F>(g), r.dx, r.X);
}

/* A warp sends a group to all thread blocks, whose barrier expects 2 * GROUP + 8 bytes. stage: as many bytes, the warp's own. */
template <class F> __device__ __forceinline__ void send_group(const planes &x, int g, const numbers<F> &r, uint32_t stage, uint32_t barrier)
{
    int lane = threadIdx.x & 31, rank = lane >> 1;
    __syncwarp();
    each<F::PER>([&](int j) {
        uint32_t at = stage + piece_of(lane, j) * 32 + byte_of(lane);
        sts_u8(at, r.t[j] + 128 >> 8);
        sts_u8(at + 16, r.t[j]);
    });
    __syncwarp();
    uint32_t to = of_rank(x.piece(g, 0) + (lane & 1) * x.step, rank), bell = of_rank(barrier, rank);
    each<F::PIECES>([&](int of) {
        float4 v = lds_float4(stage + of * 32 + (lane & 1) * 16);
        send16(to + of * 2 * x.step, v.x, v.y, v.z, v.w, bell);
    });
    if (lane & 1) send8(of_rank(x.scale<F>(g), rank), __float_as_uint(r.dx), __float_as_uint(r.X), bell);
}

/* ---- norms ---- */

/* What a row of n values is multiplied by; each warp for itself. */
__device__ __forceinline__ float norm_of_row(uint32_t row, int n, float eps)
{
    enum { AT_ONCE = 20 };
    int lane = threadIdx.x & 31;
    float sum = 0, u[AT_ONCE];
#pragma unroll 1
    for (int i = 0; i < n; i += 32 * AT_ONCE) {
        each<AT_ONCE>([&](int j) { u[j] = i + 32 * j < n ? lds_float(row + 4 * (i + 32 * j + lane)) : 0; });
        each<AT_ONCE>([&](int j) { sum = cb_fma(u[j], u[j], sum); }); /* 0*0 changes nothing */
    }
    return 1.0f / sqrtf(lane_fold(sum) / (float)n + eps);
}

/* The row's norm as planes; all warps, two groups each at most. Returns what the row was multiplied by. */
template <class F> __device__ __forceinline__ float norm_planes(uint32_t row, uint32_t weights, const planes &x, float eps, cu_step *step, int op)
{
    int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    float v[2][F::PER], w[2][F::PER];
    each<2>([&](int k) {
        each<F::PER>([&](int j) {
            int g = warp + CU_SMALL_WARPS * k, e = 4 * (F::GROUP * g + 32 * j + lane);
            v[k][j] = g < x.G ? lds_float(row + e) : 0;
            w[k][j] = g < x.G ? lds_float(weights + e) : 0;
        });
    });
    float inv = norm_of_row(row, F::GROUP * x.G, eps);
    each<2>([&](int k) { each<F::PER>([&](int j) { v[k][j] = (v[k][j] * inv) * w[k][j]; }); });
    numbers<F> r[2];
    encode<F, 2>(v, r);
    each<2>([&](int k) {
        int g = warp + CU_SMALL_WARPS * k;
        if (g >= x.G) return;
        put_group(x, g, r[k]);
        if (__builtin_expect(r[k].most >= 0x7f800000u, 0)) report_bad(step, op);
    });
    return inv;
}

/* ---- does a row have a remainder? ---- */

/* Surely not: so many groups reach half of the largest number that this has no more than the share of their energy (few enough roundings are
 * between the two for the rest of `enough` to cover). Each warp for itself. */
template <class F> __device__ __forceinline__ bool surely_none(const planes &x, int enough)
{
    int lane = threadIdx.x & 31;
    float a = lane < x.G ? lds_float(x.scale<F>(lane)) : 0, b = lane + 32 < x.G ? lds_float(x.scale<F>(lane + 32)) : 0;
    float top = __uint_as_float(__reduce_max_sync(FULL, __float_as_uint(fmaxf(a, b))));
    int n = __popc(__ballot_sync(FULL, 2 * a >= top)) + __popc(__ballot_sync(FULL, 2 * b >= top));
    return top == 0 || n >= enough;
}

/* docs/arithmetic.md, section 4, of a row of values whose planes are x; and its remainder's planes. All warps; rarely, so short. */
template <class F> __device__ __noinline__ bool find_remainder(uint32_t row, planes x, planes rests, float share)
{
    int lane = threadIdx.x & 31, n = F::GROUP * x.G;
    float ss = 0, top = 0;
    meet();
#pragma unroll 1
    for (int i = lane; i < n; i += 32) ss = cb_fma(lds_float(row + 4 * i), lds_float(row + 4 * i), ss);
#pragma unroll 1
    for (int g = lane; g < x.G; g += 32) top = fmaxf(top, lds_float(x.scale<F>(g)));
    top = group_max(top, 32) * CB_XI_MAX;
    bool more = top * top > share * lane_fold(ss);
#pragma unroll 1
    for (int g = threadIdx.x / 32; g < x.G && more; g += CU_SMALL_WARPS) {
        float v[1][F::PER];
        numbers<F> r[1];
        each<F::PER>([&](int j) { v[0][j] = lds_float(row + 4 * (F::GROUP * g + 32 * j + lane)); });
        encode<F, 1>(v, r);
        each<F::PER>([&](int j) { v[0][j] = r[0].dx != 0 ? rest(v[0][j], r[0].t[j], r[0].dx) : v[0][j]; });
        encode<F, 1>(v, r);
        put_group(rests, g, r[0]);
    }
    meet();
    return more;
}

/* ---- products ---- */

/* A region's tiles with a row: pair p of warps takes tiles p, p + PAIRS, .., each warp of it four segments. Sums: [tile][segment][16]. */
template <class F> __device__ __forceinline__ void products(uint32_t sm, const cu_small_region &w, int tiles, const planes &x, uint32_t sums)
{
    enum { AT_ONCE = F::GROUP == 32 ? 3 : 2, WORDS = 4 * F::PER };
    int lane = threadIdx.x & 31, warp = threadIdx.x / 32, r = lane >> 2, c = lane & 3, G = x.G, row_bytes = G * F::BYTES;
    int segment = warp % 2 * 4 + c, g0 = segment * G / CU_SEGMENTS, n_mine = (segment + 1) * G / CU_SEGMENTS - g0, n = (G + CU_SEGMENTS - 1) / CU_SEGMENTS;
    bool gives = lane >> 3 == c; /* what this lane gives to column lane / 4 */
    uint32_t xs = x.piece(g0, 0) + (lane >> 2 & 1) * x.step, ds = x.scale<F>(g0);
#pragma unroll 1
    for (int tile = warp / 2; tile < tiles; tile += PAIRS) {
        int row = 16 * tile + r;
        uint32_t codes = sm + w.at + row * row_bytes + g0 * F::BYTES, scales = sm + w.scales + (row * G + g0) * F::SB, biases = scales + w.biases - w.scales;
        float acc[2] = {0, 0};
#pragma unroll 1
        for (int i = 0; i < n; i += AT_ONCE) {
            uint32_t q[AT_ONCE][2][WORDS], a[AT_ONCE][2 * WORDS];
            float s[AT_ONCE][2], b[AT_ONCE][2];
            float2 d[AT_ONCE];
            each<AT_ONCE>([&](int u) { /* behind the last group: something, not used */
                each<2>([&](int h) {
                    each<F::PER>([&](int k) {
                        uint32_t v[4];
                        lds<4>(v, codes + 8 * h * row_bytes + (i + u) * F::BYTES + 16 * k);
                        each<4>([&](int m) { q[u][h][4 * k + m] = v[m]; });
                    });
                });
                each<F::PIECES>([&](int k) {
                    uint32_t v[4] = {0, 0, 0, 0};
                    if (gives) lds<4>(v, xs + 2 * k * x.step + (i + u) * 16);
                    each<4>([&](int m) { a[u][4 * k + m] = v[m]; });
                });
                each<2>([&](int h) {
                    s[u][h] = F::scale(scales + (8 * h * G + i + u) * F::SB);
                    b[u][h] = F::scale(biases + (8 * h * G + i + u) * F::SB);
                });
                d[u] = lds_float2(ds + 8 * (i + u));
            });
            each<AT_ONCE>([&](int u) {
                int low[4] = {0, 0, 0, 0}, high[4] = {0, 0, 0, 0}; /* of the lower and, 16 times, of the upper four bits of bytes */
                each<F::PIECES>([&](int k) {
                    const uint32_t m = 0x0f0f0f0f, *v = q[u][0] + 2 * k, *v8 = q[u][1] + 2 * k;
                    mma_u8s8(low, v[0] & m, v8[0] & m, v[1] & m, v8[1] & m, a[u][4 * k], a[u][4 * k + 1]);
                    mma_u8s8(high, v[0] & ~m, v8[0] & ~m, v[1] & ~m, v8[1] & ~m, a[u][4 * k + 2], a[u][4 * k + 3]);
                });
                each<2>([&](int h) {
                    int D = 256 * low[2 * h] + low[2 * h + 1] + (256 * high[2 * h] + high[2 * h + 1] >> 4);
                    float p = d[u].x * (float)D, y = cb_fma(b[u][h], d[u].y, acc[h]);
                    y = cb_fma(s[u][h], p, y);
                    acc[h] = i + u < n_mine ? y : acc[h];
                });
            });
        }
        uint32_t to = sums + ((tile * CU_SEGMENTS + segment) * 16 + r) * 4;
        sts_float(to, acc[0]);
        sts_float(to + 32, acc[1]);
    }
}

/* Output number `row` of a tile, of all segments in order. */
__device__ __forceinline__ float sum_of_tile(uint32_t sums, int tile, int row)
{
    uint32_t at = sums + (tile * CU_SEGMENTS * 16 + row) * 4;
    float y = lds_float(at);
#pragma unroll
    for (int s = 1; s < CU_SEGMENTS; s++) y = y + lds_float(at + 64 * s);
    return y;
}
#endif
