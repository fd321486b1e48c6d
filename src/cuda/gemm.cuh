/* gemm.cuh: what the many-rows kernels share: how a tile finds its rows, and where the pieces of a stage lie in shared memory.
 *
 * A tile is RT weight rows (outputs) times TT activation rows (tokens) of one expert. K is walked in stages of SG groups. A
 * stage holds, per token, the planes of its groups in the order of the k-steps: for each group the hi bytes of all k-steps
 * (32 bytes each), then the lo bytes. These stand in 128-byte rows, 16-byte chunks XORed with the token's low three bits, which
 * is what ldmatrix and wgmma read without conflicts. Weights stand as stored, chunks XORed so that a quad row reads 32 banks.
 *
 * Because the planes were made for it, unpacking is mask and shift: word w of packed codes holds, in (w >> BITS*j) & mask, four
 * elements of plane j, which stand side by side in plane j of the activations. */
#ifndef CB_CUDA_GEMM_CUH
#define CB_CUDA_GEMM_CUH
#include "cuda/common.cuh"

namespace gm {

/* TILED: a stage's tokens stand as stored, a whole block of 64 bytes of each plane, so that the copy engine can fetch them. */
template <int BITS_, int GROUP_, int SG_, bool PLANES_ = false, bool TILED_ = false> struct fmt {
    static constexpr int BITS = BITS_, GROUP = GROUP_, SG = SG_;
    static constexpr bool PLANES = PLANES_, AFFINE = !PLANES_, TILED = TILED_;
    static constexpr int PACK = BITS == 4 ? 2 : BITS == 2 ? 4 : 1;
    static constexpr int XB = GROUP / PACK;                 /* bytes of a group in one activation plane */
    static constexpr int WB = PLANES ? 128 : XB;            /* bytes of a group in a weight row */
    static constexpr int KS = GROUP / 32;                   /* k-steps of 32 in a group */
    static constexpr int TB = 2 * GROUP * SG;               /* activation bytes of a token in a stage */
    static constexpr int WS = WB * SG;                      /* weight bytes of a row in a stage */
    static constexpr uint32_t MASK = BITS == 8 ? 0xffffffffu : BITS == 4 ? 0x0f0f0f0fu : 0x03030303u;
    static_assert(XB >= 16 && TB % 128 == 0 && WS >= 32 && WS <= 128 && (4 % SG) == 0, "layout");
    static_assert(!TILED || (GROUP * SG == 64 * PACK && XB >= 32), "block");
};

enum { AUX = 4 }; /* groups of scales fetched at a time */

/* ---- tiles ---- */

struct tile {
    int64_t row0;   /* the expert's first row in the stored stack */
    int r0, rows;   /* first activation row (an index of x_row and y_row) and how many, 0: nothing to do */
    int n0;         /* first output */
};

/* Token tile t. With experts, expert e owns the slots at[e]/TT + e up to at[e+1]/TT + e + 1: enough for its rows, disjoint,
 * and n_rows/TT + n_experts in all; e is found by a search with 32 probes a round. All lanes of a warp call this together. */
template <int TT> __device__ __forceinline__ void find_rows(const cu_linear &a, int t, tile &o)
{
    o.row0 = 0;
    o.r0 = t * TT;
    o.rows = a.n_rows - o.r0;
    if (a.expert_at) {
        int lo = 0, hi = a.n_experts; /* the answer is in [lo, hi): the last e whose first slot is <= t */
        while (hi - lo > 1) {
            int step = (hi - lo + 31) / 32, e = lo + (int)(threadIdx.x & 31) * step;
            bool ok = e < hi && a.expert_at[e] / TT + e <= t;
            int last = 31 - __clz(__ballot_sync(FULL, ok) | 1);
            lo += last * step;
            hi = min(hi, lo + step);
        }
        int at = a.expert_at[lo], slot = t - (at / TT + lo);
        o.row0 = (int64_t)lo * a.w.expert_rows;
        o.r0 = at + slot * TT;
        o.rows = a.expert_at[lo + 1] - o.r0;
    }
    o.rows = min(max(o.rows, 0), TT);
}

/* ---- where things lie ---- */

/* Byte of a token's stage, before the XOR, where k-step ks of group gi starts. */
template <class F> __device__ __forceinline__ constexpr int x_pos(int gi, int lo, int ks)
{
    return F::TILED ? lo * 64 * F::PACK + ks % F::PACK * 64 + gi * F::XB + ks / F::PACK * 32 : gi * 2 * F::GROUP + lo * F::GROUP + ks * 32;
}
/* The same as an offset in shared memory, chunk being 0 or 1 of the 32 bytes. */
template <int TT> __device__ __forceinline__ int x_at(int pos, int token)
{
    return (pos >> 7) * TT * 128 + token * 128 + ((((pos >> 4) & 7) ^ (token & 7)) << 4);
}
/* Chunk q of a weight row, WS bytes a row. */
template <class F> __device__ __forceinline__ int w_swizzle(int row) { return (row / (128 / F::WS)) & (F::WS / 16 - 1); }

/* Copies of one thread in a stage: chunk q of tokens t0, t0+step, ... and chunk wq of weight rows. */
template <class F, int RT, int TT, int THREADS> struct loader {
    static constexpr int TQ = F::TB / 16, WQ = F::WS / 16;
    static constexpr int TP = TT * TQ / THREADS, WP = (RT * WQ + THREADS - 1) / THREADS;
    static_assert(THREADS % TQ == 0 && THREADS % WQ == 0 && TP * THREADS == TT * TQ && THREADS >= 8 * TQ, "loader");
    int tid;

    /* rows16: the tokens' offsets in x.planes, in units of 16 bytes. */
    __device__ __forceinline__ void tokens(const cu_linear &a, const uint32_t *rows16, uint32_t dst, int stage) const
    {
        const int q = tid % TQ, t0 = tid / TQ;
        const int gi = q * 16 / (2 * F::GROUP), rem = q * 16 % (2 * F::GROUP), lo = rem / F::GROUP, qq = rem % F::GROUP / 16;
        const int j = F::XB >= 32 ? (qq >> 1) % F::PACK : qq, m0 = F::XB >= 32 ? (qq >> 1) / F::PACK * 32 + (qq & 1) * 16 : 0;
        const int g = stage * F::SG + gi, mm = g * F::XB + m0;
        const bool there = g < a.w.n_groups;
        const int off = there ? mm / 64 * (128 * F::PACK) + j * 64 + mm % 64 + lo * 64 * F::PACK : 0;
        const int8_t *src = a.x.planes + off;
        dst += (uint32_t)x_at<TT>(q * 16, t0);
#pragma unroll
        for (int i = 0; i < TP; i++) { /* THREADS/TQ is a multiple of 8, so the XOR stays */
            static_assert(THREADS / TQ % 8 == 0, "swizzle");
            copy_or_zero16(dst + i * (THREADS / TQ) * 128, src + (size_t)rows16[t0 + i * (THREADS / TQ)] * 16, there);
        }
    }
    __device__ __forceinline__ void weights(const cu_linear &a, const tile &t, uint32_t dst, int stage) const
    {
        const int q = tid % WQ, r0 = tid / WQ;
        const int64_t at = (int64_t)stage * F::WS + q * 16;
        const bool there = at < a.w.row_bytes;
        const uint8_t *src = a.w.codes + (there ? at : 0);
#pragma unroll
        for (int i = 0; i < WP; i++) {
            int row = r0 + i * (THREADS / WQ);
            if (RT * WQ % THREADS && row >= RT) break;
            copy_or_zero16(dst + row * F::WS + ((q ^ w_swizzle<F>(row)) << 4), src + (t.row0 + min(t.n0 + row, a.w.n_out - 1)) * a.w.row_bytes, there);
        }
    }
};

/* AUX groups of one token's (dx, X), or of one row's (s, b), on the way to shared memory as [group][index] pairs. */
struct aux {
    uint32_t u[AUX], v[AUX];
    __device__ __forceinline__ void fetch32(const uint32_t *p, const uint32_t *q, int g, int n_groups)
    {
        if (n_groups % 4 == 0) {
            uint4 a = g < n_groups ? *(const uint4 *)(p + g) : make_uint4(0, 0, 0, 0), b = g < n_groups ? *(const uint4 *)(q + g) : a;
            u[0] = a.x, u[1] = a.y, u[2] = a.z, u[3] = a.w, v[0] = b.x, v[1] = b.y, v[2] = b.z, v[3] = b.w;
            return;
        }
#pragma unroll
        for (int i = 0; i < AUX; i++) {
            u[i] = g + i < n_groups ? p[g + i] : 0;
            v[i] = g + i < n_groups ? q[g + i] : 0;
        }
    }
    __device__ __forceinline__ void fetch16(const uint16_t *p, const uint16_t *q, int g, int n_groups)
    {
        if (n_groups % 4 == 0) {
            uint2 a = g < n_groups ? *(const uint2 *)(p + g) : make_uint2(0, 0), b = g < n_groups ? *(const uint2 *)(q + g) : a;
            u[0] = a.x & 0xffff, u[1] = a.x >> 16, u[2] = a.y & 0xffff, u[3] = a.y >> 16;
            v[0] = b.x & 0xffff, v[1] = b.x >> 16, v[2] = b.y & 0xffff, v[3] = b.y >> 16;
            return;
        }
#pragma unroll
        for (int i = 0; i < AUX; i++) {
            u[i] = g + i < n_groups ? p[g + i] : 0;
            v[i] = g + i < n_groups ? q[g + i] : 0;
        }
    }
    /* The scales of stored row `row` (biases too when affine); see widen(). */
    template <class F> __device__ __forceinline__ void fetch_row(const cu_weight &w, int64_t row, int g)
    {
        const int64_t at = row * w.n_groups;
        if (F::PLANES) {
            const uint32_t *p = (const uint32_t *)w.scales + at;
            fetch32(p, p, g, w.n_groups);
        } else if (w.scale_type == CU_S_F32) {
            fetch32((const uint32_t *)w.scales + at, (const uint32_t *)w.biases + at, g, w.n_groups);
        } else {
            fetch16((const uint16_t *)w.scales + at, (const uint16_t *)w.biases + at, g, w.n_groups);
        }
    }
    __device__ __forceinline__ void fetch_token(const cu_planes &x, int64_t row, int g)
    {
        const int64_t at = row * x.n_groups;
        fetch32((const uint32_t *)x.dx + at, (const uint32_t *)x.xs + at, g, x.n_groups);
    }
    /* Makes floats of what fetch_row() loaded. */
    __device__ __forceinline__ void widen(int type)
    {
        if (type == CU_S_F32) return;
#pragma unroll
        for (int i = 0; i < AUX; i++)
            if (type == CU_S_F16) {
                u[i] = __float_as_uint(__half2float(__ushort_as_half((unsigned short)u[i])));
                v[i] = __float_as_uint(__half2float(__ushort_as_half((unsigned short)v[i])));
            } else {
                u[i] <<= 16;
                v[i] <<= 16;
            }
    }
    __device__ __forceinline__ float first(int i) const { return __uint_as_float(u[i]); }
    __device__ __forceinline__ float second(int i) const { return __uint_as_float(v[i]); }
    __device__ __forceinline__ void store(uint32_t dst, int pitch) const
    {
#pragma unroll
        for (int i = 0; i < AUX; i++) sts_float2(dst + i * pitch, first(i), second(i));
    }
};

/* ---- the fold ---- */

/* One output, one group: D exact, then the two roundings of the chain. */
__device__ __forceinline__ void fold(float &acc, float d, float dx, float xs, float s, float b, bool affine)
{
    if (affine) acc = __fmaf_rn(b, xs, acc);
    acc = __fmaf_rn(s, __fmul_rn(dx, d), acc);
}
/* D = 256*h + l, exact, rounded once (cb_hl_to_f32). */
__device__ __forceinline__ float hl_to_f32(int h, int l)
{
    int a = h + (l >> 8);
    return __fmaf_rn((float)(a >> 14), 0x1p22f, (float)(((a & 16383) << 8) | (l & 255)));
}
__device__ __forceinline__ int seg_end(int seg, int n_groups) { return (seg + 1) * n_groups / CU_SEGMENTS; }

__device__ __forceinline__ void put(float *p, float v, int add) { *p = add ? __fadd_rn(*p, v) : v; }

} // namespace gm
#endif
