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

template <int GROUP_, int SCALE, int DIM_> struct code4 : format<CU_FMT_AFFINE, 4, GROUP_, SCALE> {
    static_assert(DIM_ % GROUP_ == 0, "groups of a head");
    static constexpr int GROUP = GROUP_, TYPE = SCALE, DIM = DIM_, PER = GROUP / 32, PIECES = GROUP / 16; /* values of a lane when a warp has a group; 16-byte pieces of a plane of it */
};

/* report_bad() out of the way: what is jumped over has to be fetched. */
__device__ __noinline__ void tell_bad(cu_step *step, int op) { report_bad(step, op); }

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

/* A warp sends N groups to all thread blocks, whose barriers expect 2 * GROUP + 8 bytes of each. stage: N * 2 * GROUP bytes, the warp's own. */
template <class F, int N> __device__ __forceinline__ void send_groups(const planes &x, int g, const numbers<F> (&r)[N], uint32_t stage, uint32_t barrier)
{
    int lane = threadIdx.x & 31, rank = lane >> 1;
    __syncwarp();
    each<N>([&](int k) {
        each<F::PER>([&](int j) {
            uint32_t at = stage + k * 2 * F::GROUP + piece_of(lane, j) * 32 + byte_of(lane);
            sts_u8(at, r[k].t[j] + 128 >> 8);
            sts_u8(at + 16, r[k].t[j]);
        });
    });
    __syncwarp();
    uint32_t to = of_rank(x.piece(g, 0) + (lane & 1) * x.step, rank), bell = of_rank(barrier, rank), scale = of_rank(x.scale<F>(g), rank);
    float4 v[N][F::PIECES];
    each<N>([&](int k) { each<F::PIECES>([&](int of) { v[k][of] = lds_float4(stage + k * 2 * F::GROUP + of * 32 + (lane & 1) * 16); }); });
    each<N>([&](int k) {
        each<F::PIECES>([&](int of) { send16(to + of * 2 * x.step + 16 * k, v[k][of].x, v[k][of].y, v[k][of].z, v[k][of].w, bell); });
        if (lane & 1) send8(scale + 8 * k, __float_as_uint(r[k].dx), __float_as_uint(r[k].X), bell);
    });
}

/* ---- norms ---- */

__device__ __noinline__ float quotient(float a, float b) { return a / b; }
/* divide() of few.cuh for few numbers, which stay in registers. */
template <int N> __device__ __forceinline__ void divide_all(float (&q)[N], const float (&a)[N], const float (&b)[N])
{
    bool usual = true;
    auto fits = [](float x) { return (__float_as_uint(x) & 0x7fffffff) - 0x20000000u < 0x3f000000u; };
    each<N>([&](int i) { usual &= (fits(a[i]) || __float_as_uint(a[i]) == 0) && fits(b[i]); });
    each<N>([&](int i) {
        float r = reciprocal_about(b[i]);
        r = cb_fma(cb_fma(-b[i], r, 1.0f), r, r);
        float t = a[i] * r;
        q[i] = cb_fma(cb_fma(-b[i], t, a[i]), r, t);
    });
    if (__builtin_expect(!usual, 0)) each<N>([&](int i) { q[i] = quotient(a[i], b[i]); });
}

/* What a row of n values is multiplied by; a warp. Behind the row there are zeros up to a multiple of CU_SMALL_PAD values. */
__device__ __forceinline__ float norm_of_row(uint32_t row, int n, float eps)
{
    enum { AT_ONCE = CU_SMALL_PAD / 32 };
    float sum = 0, u[AT_ONCE];
    row += 4 * (threadIdx.x & 31);
#pragma unroll 1
    for (int i = 0; i < n; i += 32 * AT_ONCE, row += 128 * AT_ONCE) {
        each<AT_ONCE>([&](int j) { u[j] = lds_float(row + 128 * j); });
        each<AT_ONCE>([&](int j) { sum = cb_fma(u[j], u[j], sum); }); /* 0*0 changes nothing */
    }
    return 1.0f / sqrtf(lane_fold(sum) / (float)n + eps);
}

/* The row's norm as planes; of each thread 8 neighbours. Whole warps, as many as the row has 256 values. */
template <class F> __device__ __forceinline__ void norm_planes(uint32_t row, uint32_t weights, const planes &x, float eps, cu_step *step, int op)
{
    enum { LANES = F::GROUP / 8 };
    int e = 8 * threadIdx.x, n = F::GROUP * x.G, g = e / F::GROUP, of = e % F::GROUP / 16, half = threadIdx.x & 1;
    bool in = e < n;
    float v[8], w[8];
    each<8>([&](int i) { v[i] = w[i] = 0; });
    if (in) {
        float4 a = lds_float4(row + 4 * e), b = lds_float4(row + 4 * e + 16), c = lds_float4(weights + 4 * e), d = lds_float4(weights + 4 * e + 16);
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
        w[0] = c.x, w[1] = c.y, w[2] = c.z, w[3] = c.w, w[4] = d.x, w[5] = d.y, w[6] = d.z, w[7] = d.w;
    }
    float inv = norm_of_row(row, n, eps);
    each<8>([&](int i) { v[i] = (v[i] * inv) * w[i]; });
    uint32_t m = most_of(v);
#pragma unroll
    for (int l = 1; l < LANES; l *= 2) m = max(m, __shfl_xor_sync(FULL, m, l));
    ints<8> r;
    fix(v, m, LANES, r);
    if (!in) return;
    if (__builtin_expect(m >= 0x7f800000u, 0)) tell_bad(step, op);
    /* a piece has the even values of two eights, then the odd ones */
    uint32_t to = x.piece(g, of) + 4 * half;
    each<2>([&](int odd) {
        uint32_t *t = r.t + odd, low = __byte_perm(__byte_perm(t[0], t[2], 0x0040), __byte_perm(t[4], t[6], 0x0040), 0x5410),
                 high = __byte_perm(__byte_perm(t[0] + 128, t[2] + 128, 0x0051), __byte_perm(t[4] + 128, t[6] + 128, 0x0051), 0x5410);
        sts<1>(to + 8 * odd, &high);
        sts<1>(to + x.step + 8 * odd, &low);
    });
    if (e % F::GROUP == 0) sts_float2(x.scale<F>(g), r.dx, r.dx * (float)r.sum);
}

/* ---- does a row have a remainder? ---- */

/* Surely not: so many groups reach half of the largest number that this has no more than the share of their energy (few enough roundings are
 * between the two for the rest of `enough` to cover). Each warp for itself. */
template <class F> __device__ __forceinline__ bool surely_none(const planes &x, int enough)
{
    int lane = threadIdx.x & 31;
    float a = lane < x.G ? lds_float(x.scale<F>(lane)) : 0, b = 0;
    if (x.G > 32) b = lane + 32 < x.G ? lds_float(x.scale<F>(lane + 32)) : 0;
    float top = __uint_as_float(__reduce_max_sync(FULL, __float_as_uint(fmaxf(a, b))));
    int n = __popc(__ballot_sync(FULL, 2 * a >= top));
    if (x.G > 32) n += __popc(__ballot_sync(FULL, 2 * b >= top));
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

/* How weights of a tile of 16 outputs and G groups stand, in memory as in shared memory: those of four segments, then those of the other four; of each
 * four step after step a group of each segment, as long as they have one (the last step may have some of them only): first 16 bytes of its codes in
 * rows 0 to 7, [row][segment], then in rows 8 to 15, then the next 16 bytes. Scales and biases likewise, [row][segment] of row, row + 8: scale, bias. */
template <class F> struct packed {
    static constexpr int RECORD = 4 * F::SB;
    int G, full, part;       /* groups; steps with all segments; segments in the last step */
    __device__ __forceinline__ int codes_of_tile() const { return 16 * G * F::BYTES; }
    __device__ __forceinline__ int scales_of_tile() const { return 8 * G * RECORD; }
    __device__ __forceinline__ int codes_of_half() const { return G / 2 * 16 * F::BYTES; }
    __device__ __forceinline__ int scales_of_half() const { return G / 2 * 8 * RECORD; }
    __device__ __forceinline__ static int first(int segment, int groups) { return (unsigned)(segment * groups) / CU_SEGMENTS; }
};

/* Tiles in shared memory; and what lanes have found out for their products, [half of the segments][lane]. */
struct tiles {
    uint32_t codes, scales, notes;
    int n;
};

/* A lane's notes for rows of G groups: from the planes to what it reads of them and of scales; groups of its segment, its place in the last step, which
 * may not have all four segments, and how many segments that has; where its sum goes to. */
template <class F> __device__ __forceinline__ void put_notes(uint32_t notes, int G, int half, int lane)
{
    int r = lane >> 2, c = lane & 3, segment = half * 4 + c, g0 = packed<F>::first(segment, G), n = packed<F>::first(segment + 1, G) - g0, full = G / CU_SEGMENTS, part = 0, before = 0;
    for (int k = 0; k < 4; k++) {
        int s = half * 4 + k, has = packed<F>::first(s + 1, G) - packed<F>::first(s, G) > full;
        part += has;
        before += k < c && has;
    }
    planes x(0, G);
    uint32_t v[4] = {x.piece(g0, 0) + (lane >> 2 & 1) * x.step, x.scale<F>(g0), (uint32_t)(n | (r * part + before) << 8 | part << 16), (uint32_t)(segment * 64 + 4 * r)};
    sts<4>(notes + 512 * half + 16 * lane, v);
}

__device__ __forceinline__ float scale_of(uint32_t raw, int type) { return type == CU_S_BF16 ? __uint_as_float(raw << 16) : __half2float(__ushort_as_half((unsigned short)raw)); }

/* Scale and bias of a lane's two rows. */
template <class F> __device__ __forceinline__ void scales_at(uint32_t at, bool there, float (&s)[2], float (&b)[2])
{
    if constexpr (F::SB == 4) {
        uint32_t u[4] = {0, 0, 0, 0};
        if (there) lds<4>(u, at);
        s[0] = __uint_as_float(u[0]), b[0] = __uint_as_float(u[1]), s[1] = __uint_as_float(u[2]), b[1] = __uint_as_float(u[3]);
    } else {
        uint32_t u[2] = {0, 0};
        if (there) lds<2>(u, at);
        each<2>([&](int h) { s[h] = scale_of(u[h] & 0xffff, F::TYPE), b[h] = scale_of(u[h] >> 16, F::TYPE); });
    }
}

/* Their products with a row: pair p of warps takes tiles p, p + PAIRS, .., each warp of it four segments. Sums: [tile][segment][16]. */
template <class F> __device__ __forceinline__ void products(const tiles &w, const planes &x, uint32_t sums)
{
    enum { AT_ONCE = 1, WORDS = 4 * F::PER };
    int lane = threadIdx.x & 31, warp = threadIdx.x / 32, half = warp % 2, G = x.G, full = G / CU_SEGMENTS, n = (unsigned)(G + CU_SEGMENTS - 1) / CU_SEGMENTS;
    uint32_t note[4];
    lds<4>(note, w.notes + 512 * half + 16 * lane);
    packed<F> p = {G, full, (int)(note[2] >> 16)};
    bool gives = lane >> 3 == (lane & 3); /* what this lane gives to column lane / 4 */
    int n_mine = note[2] & 255, place = lane, place_last = note[2] >> 8 & 255, last_rows = 128 * p.part;
    uint32_t xs = x.at + note[0], ds = x.at + note[1];
    uint32_t codes = w.codes + warp / 2 * p.codes_of_tile() + half * p.codes_of_half(), scales = w.scales + warp / 2 * p.scales_of_tile() + half * p.scales_of_half();
    uint32_t to = sums + note[3] + warp / 2 * CU_SEGMENTS * 64;
#pragma unroll 1
    for (int tile = warp / 2; tile < w.n; tile += PAIRS) {
        float acc[2] = {0, 0};
#pragma unroll 1
        for (int i = 0; i < n; i += AT_ONCE) {
            uint32_t q[AT_ONCE][2][WORDS], a[AT_ONCE][2 * WORDS];
            float s[AT_ONCE][2], b[AT_ONCE][2];
            float2 d[AT_ONCE];
            uint32_t at = codes + i * 64 * F::BYTES, sc = scales + i * 32 * packed<F>::RECORD, xa = xs + 16 * i, da = ds + 8 * i;
            each<AT_ONCE>([&](int u) {
                bool there = i + u < n_mine, all = i + u < full;
                uint32_t from = at + u * 64 * F::BYTES + 16 * (all ? place : place_last);
                int rows = all ? 512 : last_rows;
                each<F::PER>([&](int k) {
                    uint32_t v[4] = {0, 0, 0, 0}, v8[4] = {0, 0, 0, 0};
                    if (there) {
                        lds<4>(v, from + 2 * k * rows);
                        lds<4>(v8, from + (2 * k + 1) * rows);
                    }
                    each<4>([&](int m) { q[u][0][4 * k + m] = v[m], q[u][1][4 * k + m] = v8[m]; });
                });
                each<F::PIECES>([&](int k) {
                    uint32_t v[4] = {0, 0, 0, 0};
                    if (gives) lds<4>(v, xa + 2 * k * x.step + 16 * u); /* behind the last group: something, not used */
                    each<4>([&](int m) { a[u][4 * k + m] = v[m]; });
                });
                scales_at<F>(sc + u * 32 * packed<F>::RECORD + (all ? place : place_last) * packed<F>::RECORD, there, s[u], b[u]);
                d[u] = lds_float2(da + 8 * u);
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
        sts_float(to, acc[0]);
        sts_float(to + 32, acc[1]);
        codes += PAIRS * p.codes_of_tile();
        scales += PAIRS * p.scales_of_tile();
        to += PAIRS * CU_SEGMENTS * 64;
    }
}

/* A matrix in that order; a thread has a group of a row. */
template <class F> __device__ __forceinline__ void pack(const cu_small_pack &a)
{
    int64_t id = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int G = a.w.n_groups, g = (int)(id % G), row = (int)(id / G), segment = 0;
    if (row >= a.w.n_out) return;
    while (packed<F>::first(segment + 1, G) <= g) segment++;
    int full = G / CU_SEGMENTS, half = segment / 4, i = g - packed<F>::first(segment, G), part = 0, before = segment % 4, r = row % 8, upper = row / 8 % 2;
    for (int c = 0; c < 4; c++) {
        int s = half * 4 + c, has = packed<F>::first(s + 1, G) - packed<F>::first(s, G) > full;
        if (i == full && s == segment) before = part;
        part += has;
    }
    if (i < full) part = 4;
    packed<F> p = {G, full, part};
    uint8_t *codes = a.codes + (size_t)(row / 16) * p.codes_of_tile() + half * p.codes_of_half() + i * 64 * F::BYTES + 16 * (r * part + before);
    uint8_t *scales = a.scales + (size_t)(row / 16) * p.scales_of_tile() + half * p.scales_of_half() + i * 32 * packed<F>::RECORD + (r * part + before) * packed<F>::RECORD + upper * 2 * F::SB;
    for (int k = 0; k < F::PER; k++) *(uint4 *)(codes + (2 * k + upper) * 128 * part) = *(const uint4 *)(a.w.codes + row * a.w.row_bytes + g * F::BYTES + 16 * k);
    for (int k = 0; k < F::SB; k++) {
        scales[k] = a.w.scales[(size_t)id * F::SB + k];
        scales[F::SB + k] = a.w.biases[(size_t)id * F::SB + k];
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
