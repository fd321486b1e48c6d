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
template <class F_, int TT_, int STAGES_, int TURNS_, bool FENCE_ = true, bool PIPE_ = false> struct wshape {
    using F = F_;
    static constexpr bool FENCE = FENCE_, PIPE = PIPE_;
    static constexpr int RT = 128, TT = TT_, STAGES = STAGES_, TURNS = TURNS_, THREADS = 384, HALF = TT / 2, REGS = HALF / 2;
    static constexpr int X_BYTES = TT * F::TB, W_BYTES = RT * F::WS, AUX_BYTES = F::SG * (RT + TT) * 8;
    static constexpr int STAGE = (X_BYTES + W_BYTES + AUX_BYTES + 1023) / 1024 * 1024;
    static constexpr int TOT = STAGES * STAGE, BARS = TOT + RT * TT * 4, SMEM = BARS + STAGES * 16 + 1024;
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

/* Every thread copies 16-byte chunks of some tokens and weight rows, and the scales of one token and one row. A stage is full when
 * the copies of all 128 threads have landed and each of their 4 warps has stored its scales. */
template <class S> __device__ __forceinline__ void produce(const cu_linear &a, uint32_t base, uint32_t bars, int n_slots, int n_tiles)
{
    using F = typename S::F;
    constexpr int THREADS = 128, TQ = F::TB / 16, WQ = F::WS / 16, TP = S::TT * TQ / THREADS, WP = S::RT * WQ / THREADS;
    static_assert(THREADS / TQ % 8 == 0, "swizzle");
    const int tid = threadIdx.x & 127, G = a.w.n_groups;
    const int q = tid % TQ, t0 = tid / TQ, wq = tid % WQ, w0 = tid / WQ;
    const int gi = q * 16 / (2 * F::GROUP), rem = q * 16 % (2 * F::GROUP), lo = rem / F::GROUP, qq = rem % F::GROUP / 16;
    const int j = F::XB >= 32 ? (qq >> 1) % F::PACK : qq, m0 = F::XB >= 32 ? (qq >> 1) / F::PACK * 32 + (qq & 1) * 16 : 0;
    const int8_t *x_src = a.x.planes + j * 64 + lo * 64 * F::PACK;
    const uint32_t x_dst = (uint32_t)x_at<S::TT>(q * 16, t0);
    const int type = F::PLANES ? CU_S_F32 : a.w.scale_type;
    int slot = 0;
    uint32_t parity = 1;
    for (int i = blockIdx.x; i < n_slots * n_tiles; i += gridDim.x) {
        tile t;
        nth_tile<S>(a, i, n_slots, n_tiles, t);
        if (t.rows == 0) continue;
        auto x_row = [&](int tok) { int r = t.r0 + (tok < t.rows ? tok : 0); return a.x_row ? a.x_row[r] : r; };
        auto w_row = [&](int row) { return t.row0 + min(t.n0 + row, a.w.n_out - 1); };
        uint32_t xo[TP], wo[WP]; /* offsets of rows in units of 16 bytes */
#pragma unroll
        for (int k = 0; k < TP; k++) xo[k] = (uint32_t)((int64_t)x_row(t0 + k * (THREADS / TQ)) * a.x.stride >> 4);
#pragma unroll
        for (int k = 0; k < WP; k++) wo[k] = (uint32_t)(w_row(w0 + k * (THREADS / WQ)) * a.w.row_bytes >> 4);
        const int64_t aux_token = x_row(tid < S::TT ? tid : 0), aux_row = w_row(tid);
        aux ax, aw;
        for (int g0 = 0; g0 < G; g0 += AUX) {
            if (tid < S::TT) ax.fetch_token(a.x, aux_token, g0);
            aw.template fetch_row<F>(a.w, aux_row, g0);
#pragma unroll
            for (int k = 0; k < AUX; k += F::SG) {
                if (g0 + k >= G) break;
                bar_wait(bars + (uint32_t)(S::STAGES + slot) * 8, parity);
                const uint32_t at = base + (uint32_t)slot * S::STAGE, full = bars + (uint32_t)slot * 8;
                {
                    const int g = g0 + k + gi, mm = g * F::XB + m0;
                    const bool there = F::SG == 1 || g < G;
                    const int8_t *src = x_src + (there ? mm / 64 * (128 * F::PACK) + mm % 64 : 0);
#pragma unroll
                    for (int n = 0; n < TP; n++) cp16(at + x_dst + n * (THREADS / TQ) * 128, src + (size_t)xo[n] * 16, there);
                }
                {
                    const int64_t off = (int64_t)(g0 + k) * F::WB + wq * 16;
                    const bool there = F::SG == 1 || off < a.w.row_bytes;
                    const uint8_t *src = a.w.codes + (there ? off : 0);
#pragma unroll
                    for (int n = 0; n < WP; n++) {
                        const int row = w0 + n * (THREADS / WQ);
                        cp16(at + S::X_BYTES + row * F::WS + ((wq ^ w_swizzle<F>(row)) << 4), src + (size_t)wo[n] * 16, there);
                    }
                }
                bar_arrive_copies(full);
                const uint32_t dx = at + S::X_BYTES + S::W_BYTES + tid * 8, sb = dx + F::SG * S::TT * 8;
#pragma unroll
                for (int n = 0; n < F::SG; n++) {
                    if (tid < S::TT) sts64(dx + n * S::TT * 8, __uint_as_float(ax.u[k + n]), __uint_as_float(ax.v[k + n]));
                    sts64(sb + n * S::RT * 8, aux::widen(aw.u[k + n], type), aux::widen(aw.v[k + n], type));
                }
                __syncwarp();
                if ((tid & 31) == 0) bar_arrive(full);
                if (++slot == S::STAGES) slot = 0, parity ^= 1;
            }
        }
    }
}

/* ---- consumers ---- */

/* The packed words of a group that this lane unpacks. */
template <class F> struct raw {
    static constexpr int WORDS = F::WB >= 32 ? F::WB / 32 * 4 : 2;
    uint32_t w[WORDS];
    __device__ __forceinline__ void load(uint32_t w_at, int gi, int row, int c)
    {
        const int swz = w_swizzle<F>(row & 7);
        const uint32_t p = w_at + row * F::WS + c * 4;
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            const int byte = gi * F::WB + i / 4 * 32 + (WORDS > 2 ? (i >> 1 & 1) * 16 : 0);
            w[i] = lds32(p + (i & 1) * 8 * F::WS + (((byte >> 4) ^ swz) << 4));
        }
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

        if constexpr (S::PIPE) {
            /* A half is folded while the next one is multiplied: at any time one multiply is in flight, and it is the only one, so that
             * each wait is for all. The first half of group g+1 is issued before the second of g is folded; behind the last group that is
             * a multiply of whatever stands there, never looked at. No branch may stand between issue and wait. */
            const int steps = (G + F::SG - 1) / F::SG;
            const uint32_t desc_base = __shfl_sync(FULL, base >> 4, 0);
            uint32_t A[F::WB * F::PACK / 32][4];
            raw<F> w;
            auto pin_all = [&]() {
                d0.hold();
                d1.hold();
#pragma unroll
                for (int i = 0; i < F::WB * F::PACK / 32; i++) pin(A[i]);
                wgmma_fence();
            };
            bar_wait(bars + (uint32_t)slot * 8, phase);
            if (S::FENCE) fence_async();
            w.load(base + (uint32_t)slot * S::STAGE + S::X_BYTES, 0, row, c);
            w.unpack(A);
            pin_all();
            multiply<S>(d0, A, desc_base + (uint32_t)slot * (S::STAGE / 16), 0);
            for (int step = 0; step < steps; step++) {
                const bool last = step == steps - 1;
                const int next = slot + 1 == S::STAGES ? 0 : slot + 1;
                const uint32_t next_phase = phase ^ (next == 0);
#pragma unroll
                for (int gi = 0; gi < F::SG; gi++) {
                    const uint32_t at = base + (uint32_t)slot * S::STAGE, desc16 = desc_base + (uint32_t)slot * (S::STAGE / 16);
                    const bool ahead = gi == F::SG - 1; /* the next group is in the next stage */
                    const int gn = ahead ? 0 : gi + 1;
                    const uint32_t at_n = ahead ? base + (uint32_t)next * S::STAGE : at;
                    const uint32_t desc_n = ahead ? desc_base + (uint32_t)next * (S::STAGE / 16) : desc16;
                    const uint32_t aux_at = at + S::X_BYTES + S::W_BYTES, dx = aux_at + (gi * S::TT + 2 * c) * 8;
                    wgmma_wait<0>();
                    d0.hold();
                    flush(step * F::SG + gi);
                    if (ahead) {
                        bar_wait(bars + (uint32_t)(last ? slot : next) * 8, last ? phase : next_phase);
                        if (S::FENCE) fence_async();
                    }
                    pin_all();
                    multiply<S>(d1, A, desc16 + S::HALF * 8, gi);
                    if (F::BITS != 8) w.load(at_n + S::X_BYTES, gn, row, c); /* 8 bits: the words are A itself, still in use */
                    float2 sb[2] = {lds64(aux_at + (F::SG * S::TT + gi * S::RT + row) * 8), lds64(aux_at + (F::SG * S::TT + gi * S::RT + row) * 8 + 64)};
                    fold_half<S>(acc0, d0, dx, sb);
                    wgmma_wait<0>();
                    d1.hold();
                    if (F::BITS == 8) w.load(at_n + S::X_BYTES, gn, row, c);
                    w.unpack(A);
                    pin_all();
                    multiply<S>(d0, A, desc_n, gn);
                    fold_half<S>(acc1, d1, dx + S::HALF * 8, sb);
                    if (ahead) {
                        __syncwarp();
                        if (lane == 0) bar_arrive(bars + (uint32_t)(S::STAGES + slot) * 8);
                    }
                }
                slot = next;
                phase = next_phase;
            }
            wgmma_wait<0>();
            d0.hold();
            flush(G);
        } else {
            for (int g = 0; g < G; g += F::SG) {
                const uint32_t at = base + (uint32_t)slot * S::STAGE, desc16 = __shfl_sync(FULL, at >> 4, 0);
                bar_wait(bars + (uint32_t)slot * 8, phase);
                if (S::FENCE) fence_async(); /* the copies were ordinary writes, the multiply reads by another path */
#pragma unroll
                for (int gi = 0; gi < F::SG; gi++) {
                    if (F::SG > 1 && gi > 0 && g + gi >= G) break;
                    const uint32_t dx = at + S::X_BYTES + S::W_BYTES + (gi * S::TT + 2 * c) * 8;
                    raw<F> w;
                    w.load(at + S::X_BYTES, gi, row, c);
                    const uint32_t sb_at = at + S::X_BYTES + S::W_BYTES + (F::SG * S::TT + gi * S::RT + row) * 8;
                    const float2 sb[2] = {lds64(sb_at), lds64(sb_at + 64)};
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
                    fold_half<S>(acc0, d0, dx, sb);
                    if (S::TURNS == 2) turn_give(2 - wg, 256);
                    wgmma_wait<0>();
                    d1.hold();
                    fold_half<S>(acc1, d1, dx + S::HALF * 8, sb);
                    if (gi == F::SG - 1 || g + gi == G - 1) {
                        __syncwarp();
                        if (lane == 0) bar_arrive(bars + (uint32_t)(S::STAGES + slot) * 8);
                    }
                    flush(g + gi + 1);
                }
                if (++slot == S::STAGES) slot = 0, phase ^= 1;
            }
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
            bar_init(bars + i * 8, 128 + 4);           /* full: every producer thread's copies, every warp's stores */
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
        asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
        produce<S>(a, base, bars, n_slots, n_tiles);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
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
WGEMM(k_gemm_q4g64_sm90_n, gm::fmt<4, 64, 1>, 128, 6, 2, false)
WGEMM(k_gemm_q4g64_sm90_p, gm::fmt<4, 64, 1>, 128, 6, 0, true, true)
WGEMM(k_gemm_q4g64_sm90_q, gm::fmt<4, 64, 1>, 128, 6, 0, false, true)
WGEMM(k_gemm_q2g128_sm90_p, gm::fmt<2, 128, 1>, 128, 4, 0, true, true)
WGEMM(k_gemm_q8g64_sm90_p, gm::fmt<8, 64, 1>, 128, 5, 0, true, true)
WGEMM(k_gemm_q4g32_sm90_p, gm::fmt<4, 32, 2>, 128, 6, 0, true, true)
#endif
