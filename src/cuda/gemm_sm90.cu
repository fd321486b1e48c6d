/* gemm_sm90.cu: linear layers on many rows with Hopper's warpgroup multiply; the same bits as gemm.cu.
 *
 * A block is persistent: two warpgroups of consumers, each 64 outputs times TT tokens, and one of producers that fills stages of
 * shared memory with cp.async (rows may be gathered) and turns scales into pairs of floats. A consumer's registers hold the
 * unpacked weights of a group (operand A), the float accumulators of its outputs, and the integer sums of one group for two halves
 * of the tokens: while a half is folded, the other half is multiplied. The two consumers take turns, so that one folds while the
 * other waits for its first half. Sums of finished segments stand in shared memory. */
#include "cuda/gemm.cuh"
#include "cuda/wgmma.cuh"

namespace gm {

/* TT tokens, STAGES stages; TURNS: 0 consumers run freely, 1 the turn passes once a multiply is issued, 2 after the first fold. */
template <class F_, int TT_, int STAGES_, int TURNS_> struct wshape {
    using F = F_;
    static constexpr int RT = 128, TT = TT_, STAGES = STAGES_, TURNS = TURNS_, THREADS = 384, HALF = TT / 2, REGS = HALF / 2;
    static constexpr int X_BYTES = TT * F::TB, W_BYTES = RT * F::WS, AUX_BYTES = F::SG * (RT + TT) * 8;
    static constexpr int STAGE = (X_BYTES + W_BYTES + AUX_BYTES + 1023) / 1024 * 1024;
    static constexpr int TOT = STAGES * STAGE, BARS = TOT + RT * TT * 4, ROWS = BARS + STAGES * 16, SMEM = ROWS + TT * 4 + 1024;
    static_assert(SMEM <= 232448, "shared memory");
};

/* Tile number i of a launch: bands of 8 token tiles, so that what runs at a time shares both weights and tokens. */
template <class S> __device__ __forceinline__ void nth_tile(const cu_linear &a, int i, int n_slots, int n_tiles, tile &t)
{
    const int band = i / (8 * n_tiles), in_band = i - band * 8 * n_tiles, width = min(8, n_slots - band * 8);
    t.n0 = in_band / width * S::RT;
    find_rows<S::TT>(a, band * 8 + in_band % width, t);
}

/* ---- producers ---- */

template <class S> __device__ __forceinline__ void produce(const cu_linear &a, uint32_t *rows16, uint32_t base, uint32_t bars, int n_slots, int n_tiles)
{
    using F = typename S::F;
    constexpr int THREADS = 128, TQ = F::TB / 16, WQ = F::WS / 16, TP = S::TT * TQ / THREADS, WP = S::RT * WQ / THREADS, LAG = 2;
    static_assert(THREADS / TQ % 8 == 0, "swizzle");
    const int tid = threadIdx.x & 127, G = a.w.n_groups, n_steps = (G + F::SG - 1) / F::SG;
    const int q = tid % TQ, t0 = tid / TQ;
    const int gi = q * 16 / (2 * F::GROUP), rem = q * 16 % (2 * F::GROUP), lo = rem / F::GROUP, qq = rem % F::GROUP / 16;
    const int j = F::XB >= 32 ? (qq >> 1) % F::PACK : qq, m0 = F::XB >= 32 ? (qq >> 1) / F::PACK * 32 + (qq & 1) * 16 : 0;
    const int wq = tid % WQ, w0 = tid / WQ;
    const uint32_t x_dst = (uint32_t)x_at<S::TT>(q * 16, t0);
    int it = 0; /* stages filled so far */
    auto publish = [&](int i) {
        fence_async();
        bar_arrive(bars + (uint32_t)(i % S::STAGES) * 8);
    };
    for (int i = blockIdx.x; i < n_slots * n_tiles; i += gridDim.x) {
        tile t;
        nth_tile<S>(a, i, n_slots, n_tiles, t);
        if (t.rows == 0) continue;
        auto x_row = [&](int tok) { int r = t.r0 + (tok < t.rows ? tok : 0); return a.x_row ? a.x_row[r] : r; };
        const int64_t aux_token = x_row(tid < S::TT ? tid : 0), aux_row = t.row0 + min(t.n0 + tid, a.w.n_out - 1);
        turn_wait(3, THREADS); /* the last tile's rows are no longer needed */
        if (tid < S::TT) rows16[tid] = (uint32_t)(aux_token * a.x.stride >> 4);
        turn_wait(3, THREADS);
        aux ax, aw;
        for (int step = 0; step < n_steps; step++, it++) {
            const int g0 = step * F::SG;
            if (g0 % AUX == 0) {
                if (tid < S::TT) ax.fetch_token(a.x, aux_token, g0);
                aw.template fetch_row<F>(a.w, aux_row, g0);
            }
            const int slot = it % S::STAGES;
            if (it >= S::STAGES) bar_wait(bars + (uint32_t)(S::STAGES + slot) * 8, (it / S::STAGES - 1) & 1);
            const uint32_t at = base + (uint32_t)slot * S::STAGE;
            {
                const int g = g0 + gi, mm = g * F::XB + m0;
                const bool there = g < G;
                const int8_t *src = a.x.planes + (there ? mm / 64 * (128 * F::PACK) + j * 64 + mm % 64 + lo * 64 * F::PACK : 0);
#pragma unroll
                for (int k = 0; k < TP; k++) cp16(at + x_dst + k * (THREADS / TQ) * 128, src + (size_t)rows16[t0 + k * (THREADS / TQ)] * 16, there);
            }
            {
                const int64_t off = (int64_t)step * F::WS + wq * 16;
                const bool there = off < a.w.row_bytes;
                const uint8_t *src = a.w.codes + (there ? off : 0);
#pragma unroll
                for (int k = 0; k < WP; k++) {
                    const int row = w0 + k * (THREADS / WQ);
                    cp16(at + S::X_BYTES + row * F::WS + ((wq ^ w_swizzle<F>(row)) << 4), src + (t.row0 + min(t.n0 + row, a.w.n_out - 1)) * a.w.row_bytes, there);
                }
            }
            cp_commit();
            const uint32_t dx = at + S::X_BYTES + S::W_BYTES, sb = dx + F::SG * S::TT * 8;
            const int type = F::PLANES ? CU_S_F32 : a.w.scale_type;
#pragma unroll
            for (int k = 0; k < AUX; k++) {
                if (g0 % AUX != k - k % F::SG) continue;
                if (tid < S::TT) sts64(dx + (k % F::SG * S::TT + tid) * 8, __uint_as_float(ax.u[k]), __uint_as_float(ax.v[k]));
                sts64(sb + (k % F::SG * S::RT + tid) * 8, aux::widen(aw.u[k], type), aux::widen(aw.v[k], type));
            }
            if (it >= LAG) {
                cp_wait<LAG>();
                publish(it - LAG);
            }
        }
    }
    cp_wait<0>();
    for (int k = LAG; k > 0; k--)
        if (it >= k) publish(it - k);
}

/* ---- consumers ---- */

/* The packed words of a group that this lane unpacks, and the scales of its two rows. */
template <class F> struct raw {
    static constexpr int WORDS = F::WB >= 32 ? F::WB / 32 * 4 : 2;
    uint32_t w[WORDS];
    float2 sb[2];
    __device__ __forceinline__ void load(uint32_t w_at, uint32_t sb_at, int gi, int row, int c)
    {
        const int swz = w_swizzle<F>(row & 7);
        const uint32_t p = w_at + row * F::WS + c * 4;
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            const int byte = gi * F::WB + i / 4 * 32 + (WORDS > 2 ? (i >> 1 & 1) * 16 : 0);
            w[i] = lds32(p + (i & 1) * 8 * F::WS + (((byte >> 4) ^ swz) << 4));
        }
        sb[0] = lds64(sb_at + row * 8);
        sb[1] = lds64(sb_at + row * 8 + 64);
    }
    __device__ __forceinline__ void unpack(uint32_t (&A)[F::WB * F::PACK / 32][4]) const
    {
        if constexpr (WORDS == 2) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                A[0][h] = w[h] & F::MASK;
                A[0][2 + h] = (w[h] >> F::BITS) & F::MASK;
            }
        } else {
#pragma unroll
            for (int i = 0; i < WORDS; i++)
#pragma unroll
                for (int j = 0; j < F::PACK; j++) A[i / 4 * F::PACK + j][i & 3] = (w[i] >> (F::BITS * j)) & F::MASK;
        }
    }
};

template <class S> struct sums {
    int h[S::REGS], l[S::REGS], m[S::F::PLANES ? S::REGS : 1];
    __device__ __forceinline__ void hold()
    {
        pin(h);
        pin(l);
        if (S::F::PLANES) pin(m);
    }
};

/* Multiplies group gi of a stage for one half of the tokens; desc16: the half's first token over 16. */
template <class S> __device__ __forceinline__ void multiply(sums<S> &d, const uint32_t (&A)[S::F::WB * S::F::PACK / 32][4], uint32_t desc16, int gi)
{
    using F = typename S::F;
    auto desc = [&](int lo, int ks) {
        const int pos = x_pos<F>(gi, lo, ks);
        return wgmma_desc(desc16 + (uint32_t)((pos >> 7) * S::TT * 128 + (pos & 127)) / 16);
    };
#pragma unroll
    for (int ks = 0; ks < F::KS; ks++) {
        if constexpr (F::PLANES) {
            wgmma_s8s8(d.h, A[ks], desc(0, ks), ks > 0);
            wgmma_s8s8(d.m, A[ks], desc(1, ks), ks > 0);
        } else {
            wgmma_u8s8(d.h, A[ks], desc(0, ks), ks > 0);
        }
    }
#pragma unroll
    for (int ks = 0; ks < F::KS; ks++) {
        if constexpr (F::PLANES) {
            wgmma_s8s8(d.m, A[F::KS + ks], desc(0, ks), 1);
            wgmma_s8s8(d.l, A[F::KS + ks], desc(1, ks), ks > 0);
        } else {
            wgmma_u8s8(d.l, A[ks], desc(1, ks), ks > 0);
        }
    }
    wgmma_commit();
}

template <class S> __device__ __forceinline__ void fold_half(float (&acc)[S::REGS], const sums<S> &d, uint32_t dx, const float2 (&sb)[2])
{
#pragma unroll
    for (int j = 0; j < S::REGS / 4; j++) {
        const float4 t = lds128(dx + j * 64);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int i = 4 * j + e;
            const float D = S::F::PLANES ? hl_to_f32(d.h[i] * 256 + d.m[S::F::PLANES ? i : 0], d.l[i]) : (float)(d.h[i] * 256 + d.l[i]);
            fold(acc[i], D, e & 1 ? t.z : t.x, e & 1 ? t.w : t.y, sb[e >> 1].x, sb[e >> 1].y, S::F::AFFINE);
        }
    }
}

template <class S> __device__ __forceinline__ void consume(const cu_linear &a, uint8_t *smem, uint32_t base, uint32_t bars, int n_slots, int n_tiles)
{
    using F = typename S::F;
    constexpr int REGS = S::REGS;
    const int tid = threadIdx.x & 127, wg = threadIdx.x >> 7, lane = tid & 31, r = lane >> 2, c = lane & 3, G = a.w.n_groups;
    const int row = wg * 64 + (tid >> 5) * 16 + r;
    float4 *tot = (float4 *)(smem + S::TOT) + wg * (16 * S::TT) + tid;
    int slot = 0;
    uint32_t phase = 0;
    if (S::TURNS && wg == 1) turn_give(1, 256); /* the first turn is consumer 0's */
    sums<S> d0, d1;
#pragma unroll
    for (int i = 0; i < REGS; i++) d0.h[i] = d0.l[i] = d1.h[i] = d1.l[i] = 0;
    if (F::PLANES)
#pragma unroll
        for (int i = 0; i < REGS; i++) d0.m[F::PLANES ? i : 0] = d1.m[F::PLANES ? i : 0] = 0;

    for (int id = blockIdx.x; id < n_slots * n_tiles; id += gridDim.x) {
        tile t;
        nth_tile<S>(a, id, n_slots, n_tiles, t);
        if (t.rows == 0) continue;
        float acc0[REGS], acc1[REGS];
#pragma unroll
        for (int i = 0; i < REGS; i++) acc0[i] = acc1[i] = 0.0f;
#pragma unroll
        for (int i = 0; i < REGS / 2; i++) tot[i * 128] = make_float4(-0.0f, -0.0f, -0.0f, -0.0f); /* -0 + x is x */
        int seg = 0, end = seg_end(0, G);
        auto flush = [&](int done) {
            for (; end == done && seg < CU_SEGMENTS; end = seg_end(++seg, G)) {
#pragma unroll
                for (int i = 0; i < REGS / 2; i++) {
                    float *v = i < REGS / 4 ? acc0 + 4 * i : acc1 + 4 * (i - REGS / 4);
                    float4 y = tot[i * 128];
                    y.x = __fadd_rn(y.x, v[0]), y.y = __fadd_rn(y.y, v[1]), y.z = __fadd_rn(y.z, v[2]), y.w = __fadd_rn(y.w, v[3]);
                    v[0] = v[1] = v[2] = v[3] = 0.0f;
                    tot[i * 128] = y;
                }
            }
        };
        flush(0);

        for (int g = 0; g < G; g += F::SG) {
            const uint32_t at = base + (uint32_t)slot * S::STAGE, desc16 = __shfl_sync(FULL, at >> 4, 0);
            bar_wait(bars + (uint32_t)slot * 8, phase);
#pragma unroll
            for (int gi = 0; gi < F::SG; gi++) {
                if (F::SG > 1 && gi > 0 && g + gi >= G) break;
                const uint32_t dx = at + S::X_BYTES + S::W_BYTES + (gi * S::TT + 2 * c) * 8;
                raw<F> w;
                w.load(at + S::X_BYTES, at + S::X_BYTES + S::W_BYTES + (F::SG * S::TT + gi * S::RT) * 8, gi, row, c);
                uint32_t A[F::WB * F::PACK / 32][4];
                w.unpack(A);
#pragma unroll
                for (int i = 0; i < F::WB * F::PACK / 32; i++) pin(A[i]);
                if (S::TURNS) turn_wait(1 + wg, 256);
                d0.hold();
                d1.hold();
                wgmma_fence();
                multiply<S>(d0, A, desc16, gi);
                multiply<S>(d1, A, desc16 + S::HALF * 8, gi);
                if (S::TURNS == 1) turn_give(2 - wg, 256);
                wgmma_wait<1>();
                d0.hold();
                fold_half<S>(acc0, d0, dx, w.sb);
                if (S::TURNS == 2) turn_give(2 - wg, 256);
                wgmma_wait<0>();
                d1.hold();
                fold_half<S>(acc1, d1, dx + S::HALF * 8, w.sb);
                if (gi == F::SG - 1 || g + gi == G - 1) {
                    __syncwarp();
                    if (lane == 0) bar_arrive(bars + (uint32_t)(S::STAGES + slot) * 8);
                }
                flush(g + gi + 1);
            }
            if (++slot == S::STAGES) slot = 0, phase ^= 1;
        }

#pragma unroll
        for (int j = 0; j < REGS / 2; j++) {
            const float4 v = tot[j * 128];
#pragma unroll
            for (int odd = 0; odd < 2; odd++) {
                const int tok = j * 8 + 2 * c + odd, n = t.n0 + row;
                if (tok >= t.rows) continue;
                float *y = a.y + (int64_t)(a.y_row ? a.y_row[t.r0 + tok] : t.r0 + tok) * a.y_stride;
                if (n < a.w.n_out) put(y + n, odd ? v.y : v.x, a.add);
                if (n + 8 < a.w.n_out) put(y + n + 8, odd ? v.w : v.z, a.add);
            }
        }
    }
    if (S::TURNS && wg == 0) turn_wait(1, 256); /* the turn that consumer 1 gave last */
}

template <class S> __device__ __forceinline__ void wgemm(const cu_linear &a)
{
    extern __shared__ uint8_t raw_smem[];
    uint8_t *smem = (uint8_t *)(((uintptr_t)raw_smem + 1023) & ~(uintptr_t)1023);
    const uint32_t base = smem_at(smem), bars = base + S::BARS;
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::STAGES; i++) {
            bar_init(bars + i * 8, 128);               /* full: every producer thread */
            bar_init(bars + (S::STAGES + i) * 8, 8);   /* empty: every consumer warp */
        }
        fence_async();
    }
    __syncthreads();
    pdl_trigger();
    pdl_wait();
    const int n_tiles = (a.w.n_out + S::RT - 1) / S::RT;
    const int n_slots = a.expert_at ? a.n_rows / S::TT + a.n_experts : (a.n_rows + S::TT - 1) / S::TT;
    if (threadIdx.x >= 256) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        produce<S>(a, (uint32_t *)(smem + S::ROWS), base, bars, n_slots, n_tiles);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        consume<S>(a, smem, base, bars, n_slots, n_tiles);
    }
}

} // namespace gm

#define WGEMM(name, ...)                                                                                     \
    extern "C" __global__ void __launch_bounds__(384, 1) name(const __grid_constant__ cu_linear a)            \
    {                                                                                                        \
        gm::wgemm<gm::wshape<__VA_ARGS__>>(a);                                                               \
    }

WGEMM(k_gemm_q4g64_sm90, gm::fmt<4, 64, 1>, 128, 6, 2)
WGEMM(k_gemm_q2g128_sm90, gm::fmt<2, 128, 1>, 128, 4, 2)
WGEMM(k_gemm_q4g32_sm90, gm::fmt<4, 32, 2>, 128, 6, 2)
WGEMM(k_gemm_q8g64_sm90, gm::fmt<8, 64, 1>, 128, 5, 2)
WGEMM(k_gemm_planes_sm90, gm::fmt<8, 64, 1, true>, 64, 6, 2)
#ifdef CB_GEMM_VARIANTS
WGEMM(k_gemm_q4g64_sm90_0, gm::fmt<4, 64, 1>, 128, 6, 0)
WGEMM(k_gemm_q4g64_sm90_1, gm::fmt<4, 64, 1>, 128, 6, 1)
#endif
