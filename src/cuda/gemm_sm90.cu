/* gemm_sm90.cu: linear layers on many rows with Hopper's warpgroup multiply; the same bits as gemm.cu.
 *
 * A block is persistent: WGS warpgroups of consumers, each 64 outputs times TT tokens, and one of producers that fills stages of
 * shared memory (boxes of the copy engine, or cp.async: rows may be gathered) and turns scales into pairs of floats. A consumer's
 * registers hold the unpacked weights of a group (operand A), the float accumulators of its outputs, and the integer sums of one group:
 * first of the high planes, then times 256, then the low planes on top. While one consumer waits for its multiply, others fold. Sums of
 * finished segments stand in shared memory.
 *
 * Producers find out which rows a tile has and where its outputs go, and hand that over in shared memory with the tile's first stage: what
 * depends on several reads one after the other is in nobody's way there. With experts, a table says which token tiles are whose. */
#include "cuda/gemm.cuh"
#include "cuda/gemm.h"
#include "cuda/wgmma.cuh"

namespace gm {

/* WGS consumers, TT tokens, STAGES stages. */
template <class F_, int WGS_, int TT_, int STAGES_> struct wshape {
    using F = F_;
    static constexpr int WGS = WGS_, RT = 64 * WGS, TT = TT_, STAGES = STAGES_, THREADS = 128 * (WGS + 1), REGS = TT / 2;
    static constexpr int X_BYTES = TT * F::TB, W_BYTES = RT * F::WS, AUX_BYTES = F::SG * (RT + TT) * 8;
    static constexpr int STAGE = (X_BYTES + W_BYTES + AUX_BYTES + 1023) / 1024 * 1024;
    /* What consumers are told of a tile: first output, rows, 8 unused bytes, and each row's place in y. While a stage is filled for a tile,
     * consumers may still be busy with STAGES tiles before it. */
    static constexpr int TILE = 16 + TT * 4, TILES = STAGES + 1;
    static constexpr int TOT = STAGES * STAGE, BARS = TOT + RT * TT * 4, TOLD = BARS + STAGES * 16, SLOTS = TOLD + TILES * TILE;
    static constexpr int SMEM = SLOTS + (CU_GEMM_EXPERTS + 1) * 4 + 12 + 1024;
    static constexpr int CONSUMER_REGS = WGS == 2 ? 208 : WGS == 3 ? 144 : F::KS > 2 ? 104 : 96;
    static constexpr int PRODUCER_REGS = WGS == 2 ? 88 : WGS == 3 ? 80 : F::KS > 2 ? 64 : 96;
    static_assert(SMEM <= 232448 && WGS >= 2 && WGS <= 4, "shape");
};

__device__ __forceinline__ void sts_u32(uint32_t at, uint32_t v) { sts<1>(at, &v); }

/* The tiles of a launch. Token tiles first[e] .. first[e+1]-1 are expert e's. */
struct work {
    uint32_t first;         /* in shared memory; only with experts */
    int n_slots, n_tiles;   /* token tiles, output tiles */
    __device__ __forceinline__ int n() const { return n_slots * n_tiles; }
};

/* Fills the table of experts; one warp. */
template <class S> __device__ __forceinline__ void count_tiles(const cu_linear &a, uint32_t first)
{
    const int lane = threadIdx.x & 31, per = (a.n_experts + 31) / 32, e0 = min(lane * per, a.n_experts), e1 = min(e0 + per, a.n_experts);
    auto tiles = [&](int e) { return (a.expert_at[e + 1] - a.expert_at[e] + S::TT - 1) / S::TT; };
    int mine = 0, before;
    for (int e = e0; e < e1; e++) mine += tiles(e);
    before = mine;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const int v = __shfl_up_sync(FULL, before, d);
        if (lane >= d) before += v;
    }
    before -= mine;
    for (int e = e0; e < e1; e++) {
        sts_u32(first + e * 4, before);
        before += tiles(e);
    }
    if (lane == 31) sts_u32(first + a.n_experts * 4, before);
}

/* Tile number i of a launch: bands of 8 token tiles, so that what runs at a time shares both weights and tokens. An expert is found by a
 * search with 32 probes a round; all lanes of a warp call this together. */
template <class S> __device__ __forceinline__ void nth_tile(const cu_linear &a, const work &all, int i, tile &t)
{
    const int band = i / (8 * all.n_tiles), in_band = i - band * 8 * all.n_tiles, width = min(8, all.n_slots - band * 8);
    const int slot = band * 8 + in_band % width;
    t.n0 = in_band / width * S::RT;
    t.row0 = 0;
    t.r0 = slot * S::TT;
    t.rows = a.n_rows - t.r0;
    if (a.expert_at) {
        int lo = 0, hi = a.n_experts; /* the answer is in [lo, hi): the last e whose first tile is <= slot */
        while (hi - lo > 1) {
            const int step = (hi - lo + 31) / 32, e = lo + (int)(threadIdx.x & 31) * step;
            const bool ok = e < hi && (int)lds_u32(all.first + e * 4) <= slot;
            lo += (31 - __clz(__ballot_sync(FULL, ok) | 1)) * step;
            hi = min(hi, lo + step);
        }
        t.row0 = (int64_t)lo * a.w.expert_rows;
        t.r0 = a.expert_at[lo] + (slot - (int)lds_u32(all.first + lo * 4)) * S::TT;
        t.rows = a.expert_at[lo + 1] - t.r0;
    }
    t.rows = min(t.rows, S::TT);
}

/* ---- producers ---- */

/* A stage whose copies have landed belongs to the consumers once all 4 warps said so. The copies were ordinary writes and the multiply
 * reads by another path: the fence here, once a warp, spares the consumers theirs. */
__device__ __forceinline__ void publish(uint32_t full)
{
    fence_async();
    __syncwarp();
    barrier_arrive(full, 1);
}

/* Every thread copies 16-byte chunks of some tokens and weight rows, and the scales of up to two rows and a token. When TILED, one thread asks
 * the copy engine for the weights, and for tokens that are not gathered, and the stage's barrier waits for these bytes too. A stage is published
 * when the next one's copies are on their way, or must wait. The loop takes AUX groups at a time: inside, all offsets are constants. */
template <class S> __device__ __forceinline__ void produce(const cu_gemm_args &args, uint32_t base, const work &all)
{
    using F = typename S::F;
    constexpr int THREADS = 128, TQ = F::TB / 16, WQ = F::WS / 16, TP = S::TT * TQ / THREADS, WP = S::RT * WQ / THREADS;
    constexpr int AR = (S::RT + THREADS - 1) / THREADS;
    static_assert(THREADS / TQ % 8 == 0 && TP * THREADS == S::TT * TQ && WP * THREADS == S::RT * WQ, "chunks");
    const cu_linear &a = args.a;
    const bool token_boxes = F::TILED && !a.x_row;
    const int tid = threadIdx.x & 127, G = a.w.n_groups;
    const int q = tid % TQ, t0 = tid / TQ, wq = tid % WQ, w0 = tid / WQ;
    const int gi = q * 16 / (2 * F::GROUP), rem = q * 16 % (2 * F::GROUP), lo = rem / F::GROUP, qq = rem % F::GROUP / 16;
    const int j = F::XB >= 32 ? (qq >> 1) % F::PACK : qq, m0 = F::XB >= 32 ? (qq >> 1) / F::PACK * 32 + (qq & 1) * 16 : 0;
    const int wgi = wq * 16 / F::WB; /* the group in the stage of this thread's weight chunk */
    const int x_off = F::TILED ? q * 16 : (gi * F::XB + m0) / 64 * (128 * F::PACK) + (gi * F::XB + m0) % 64 + j * 64 + lo * 64 * F::PACK;
    const uint32_t x_dst = (uint32_t)x_at<S::TT>(q * 16, t0), w_dst = S::X_BYTES + w0 * F::WS + ((wq ^ w_swizzle<F>(w0)) << 4);
    static_assert(THREADS / WQ % 8 == 0, "swizzle");
    const bool has_token = tid >= THREADS - S::TT, second = AR > 1 && tid < S::RT - THREADS;
    const int token = has_token ? tid - (THREADS - S::TT) : 0;
    const uint32_t dx_dst = S::X_BYTES + S::W_BYTES + token * 8, sb_dst = S::X_BYTES + S::W_BYTES + (F::SG * S::TT + tid) * 8;
    const int type = F::PLANES ? CU_S_F32 : a.w.scale_type;
    const uint32_t bars = base + S::BARS;
    int slot = 0;
    uint32_t parity = 1, filled = 0; /* filled: the barrier of the stage before; 0: none */
    uint32_t told = 0;               /* where the tile stands among those that consumers are told of */
    for (int i = blockIdx.x; i < all.n(); i += gridDim.x, told = told + S::TILE == S::TILES * S::TILE ? 0 : told + S::TILE) {
        tile t;
        nth_tile<S>(a, all, i, t);
        auto x_row = [&](int tok) { int r = t.r0 + (tok < t.rows ? tok : 0); return a.x_row ? a.x_row[r] : r; };
        const int w_rows = a.w.n_out - t.n0; /* whole warpgroups behind these have nothing to do */
        auto w_row = [&](int row) { return t.row0 + t.n0 + min(row, w_rows - 1); };
        const int8_t *x[TP];
        const uint8_t *w = a.w.codes + w_row(0) * a.w.row_bytes;
        uint32_t w_at[WP];
#pragma unroll
        for (int k = 0; k < TP; k++) x[k] = a.x.planes + (int64_t)x_row(t0 + k * (THREADS / TQ)) * a.x.stride + x_off;
#pragma unroll
        for (int k = 0; k < WP; k++) w_at[k] = (uint32_t)(min(w0 + k * (THREADS / WQ), w_rows - 1) * (int)a.w.row_bytes + wq * 16);
        const int64_t aux_token = x_row(token), aux_row = w_row(tid), aux_row2 = w_row(second ? tid + THREADS : tid);
        const int r = t.r0 + min(token, t.rows - 1), y_row = a.y_row ? a.y_row[r] : r;
        aux ax, aw, aw2;
        for (int g0 = 0; g0 < G; g0 += AUX) {
#pragma unroll
            for (int k = 0; k < WP; k++) asm volatile("" : "+r"(w_at[k])); /* no pointer for each: registers are few */
            if (has_token) ax.fetch_token(a.x, aux_token, g0);
            aw.template fetch_row<F>(a.w, aux_row, g0);
            if (AR > 1) aw2.template fetch_row<F>(a.w, aux_row2, g0);
#pragma unroll
            for (int k = 0; k < AUX; k += F::SG) {
                if (g0 + k >= G) break;
                const uint32_t empty = bars + (uint32_t)(S::STAGES + slot) * 8;
                if (filled && !__all_sync(FULL, bar_ready(empty, parity))) { /* there is time, and the consumers may be waiting */
                    copies_wait<0>();
                    publish(filled);
                    filled = 0;
                }
                barrier_wait(empty, parity);
                if (g0 + k == 0 && has_token) {
                    sts_u32(base + S::TOLD + told + 16 + token * 4, y_row);
                    if (token == 0) sts_u32(base + S::TOLD + told, t.n0), sts_u32(base + S::TOLD + told + 4, t.rows);
                }
                const uint32_t at = base + (uint32_t)slot * S::STAGE, full = bars + (uint32_t)slot * 8;
                const bool x_there = F::TILED || F::SG == 1 || g0 + k + gi < G, w_there = F::SG == 1 || g0 + k + wgi < G;
                if (F::TILED && tid == 0) {
                    barrier_expect(full, S::W_BYTES + (token_boxes ? S::X_BYTES : 0));
                    fetch_box(at + S::X_BYTES, args.w_map, (g0 + k) * F::WB, (int)t.row0 + t.n0, full);
#pragma unroll
                    for (int n = 0; n < F::TB / 128; n++)
                        if (token_boxes) fetch_box(at + n * S::TT * 128, args.x_map, (g0 + k) / F::SG * F::TB + n * 128, t.r0, full);
                }
                if (!token_boxes)
#pragma unroll
                    for (int n = 0; n < TP; n++)
                        copy_or_zero16(at + x_dst + n * (THREADS / TQ) * 128, x[n] + k * F::XB / 64 * (128 * F::PACK) + k * F::XB % 64, x_there);
#pragma unroll
                for (int n = 0; n < WP; n++)
                    if (!F::TILED && n * (THREADS / WQ) / 64 * 64 < w_rows)
                        copy_or_zero16(at + w_dst + n * (THREADS / WQ) * F::WS, w + w_at[n] + k * F::WB, w_there);
                copies_end();
                if (k == 0) { /* the loads have had time to arrive */
                    aw.widen(type);
                    if (AR > 1) aw2.widen(type);
                }
#pragma unroll
                for (int n = 0; n < F::SG; n++) {
                    if (has_token) sts_float2(at + dx_dst + n * S::TT * 8, ax.first(k + n), ax.second(k + n));
                    sts_float2(at + sb_dst + n * S::RT * 8, aw.first(k + n), aw.second(k + n));
                    if (second) sts_float2(at + sb_dst + n * S::RT * 8 + THREADS * 8, aw2.first(k + n), aw2.second(k + n));
                }
                if (filled) {
                    copies_wait<1>();
                    publish(filled);
                }
                filled = full;
                if (++slot == S::STAGES) slot = 0, parity ^= 1;
            }
#pragma unroll
            for (int n = 0; n < TP; n++) x[n] += AUX * F::XB / 64 * (128 * F::PACK);
            w += AUX * F::WB;
        }
    }
    copies_wait<0>();
    if (filled) publish(filled);
}

/* ---- consumers ---- */

/* Unpacks this lane's words of group gi: rows r and r + 8, bytes 4c.. of each 16. at: where row r of the stage's weights stands,
 * plus 4c, its chunk 0. */
template <class F> __device__ __forceinline__ void unpack(uint32_t (&A)[F::WB * F::PACK / 32][4], uint32_t at, int gi)
{
    auto word = [&](int byte, int h) { return lds_u32((at ^ (uint32_t)(byte & ~15)) + h * 8 * F::WS); };
    if constexpr (F::WB < 32) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t v = word(gi * F::WB, h);
            A[0][h] = v & F::MASK;
            A[0][2 + h] = (v >> F::BITS) & F::MASK;
        }
    } else {
#pragma unroll
        for (int m = 0; m < F::WB; m += 32)
#pragma unroll
            for (int h = 0; h < 4; h++) {
                const uint32_t v = word(gi * F::WB + m + (h >> 1) * 16, h & 1);
#pragma unroll
                for (int j = 0; j < F::PACK; j++) A[m / 32 * F::PACK + j][h] = (v >> (F::BITS * j)) & F::MASK;
            }
    }
}

/* The integer sums of one group for 2*N tokens: D, or for float weights D = 256*v + l. */
template <class F, int N> struct sums {
    int v[N] = {}, l[F::PLANES ? N : 1] = {};
    __device__ __forceinline__ void hold()
    {
        pin(v);
        if (F::PLANES) pin(l);
    }
    __device__ __forceinline__ float at(int i) const
    {
        if constexpr (F::PLANES) return hl_to_f32(v[i], l[i]);
        else return (float)v[i];
    }
};

/* Multiplies group gi of a stage; desc: that of the stage. Part 0: what is then to be shifted by 8 bits, high planes by (high planes of)
 * weights. Part 1: the rest, on top of it. */
template <class S, class F, int N>
__device__ __forceinline__ void multiply(sums<F, N> &d, const uint32_t (&A)[F::WB * F::PACK / 32][4], uint32_t desc, int gi, int part)
{
    auto B = [&](int lo, int ks) {
        const int pos = x_pos<F>(gi, lo, ks);
        return wgmma_desc(desc + (uint32_t)((pos >> 7) * S::TT * 128 + (pos & 127)) / 16);
    };
#pragma unroll
    for (int ks = 0; ks < F::KS; ks++)
        if constexpr (!F::PLANES) {
            wgmma_u8s8(d.v, A[ks], B(part, ks), part || ks > 0);
        } else if (part == 0) {
            wgmma_s8s8(d.v, A[ks], B(0, ks), ks > 0);
        } else {
            wgmma_s8s8(d.v, A[ks], B(1, ks), 1);
            wgmma_s8s8(d.v, A[F::KS + ks], B(0, ks), 1);
            wgmma_s8s8(d.l, A[F::KS + ks], B(1, ks), ks > 0);
        }
    wgmma_commit();
}

/* SHORT: a group is a segment, and acc the running total. */
template <bool SHORT, class F, int N>
__device__ __forceinline__ void fold_all(float *acc, const sums<F, N> &d, uint32_t dx, const float2 (&sb)[2])
{
#pragma unroll
    for (int j = 0; j < N / 4; j++) {
        const float4 t = lds_float4(dx + j * 64);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float s = SHORT ? 0.0f : acc[4 * j + e];
            fold(s, d.at(4 * j + e), e & 1 ? t.z : t.x, e & 1 ? t.w : t.y, sb[e >> 1].x, sb[e >> 1].y, F::AFFINE);
            acc[4 * j + e] = SHORT ? __fadd_rn(acc[4 * j + e], s) : s;
        }
    }
}

template <class S> struct consumer {
    using F = typename S::F;
    static constexpr int REGS = S::REGS, AREGS = F::WB * F::PACK / 32;
    const cu_linear &a;
    uint32_t base, bars, desc0; /* desc0: descriptor of the first stage */
    uint32_t tot;               /* this thread's sums of finished segments: 16 bytes every 2048 */
    uint32_t w_off, sb_off, dx_off; /* this lane's words, its rows' scales and its tokens' in a stage */
    int G, wg;
    int slot;
    uint32_t phase;
    int seg, end;               /* of the groups: the segment in work and where it ends */
    float acc[REGS];
    uint32_t A[AREGS][4];

    template <int N> __device__ __forceinline__ void hold(sums<F, N> &d)
    {
        d.hold();
#pragma unroll
        for (int i = 0; i < AREGS; i++) pin(A[i]);
        wgmma_fence();
    }
    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int i = 0; i < REGS; i++) acc[i] = 0.0f;
#pragma unroll
        for (int i = 0; i < REGS / 4; i++) sts_float4(tot + i * 2048, -0.0f, -0.0f, -0.0f, -0.0f); /* -0 + x is x */
        seg = 0;
        end = seg_end(0, G);
        flush(0);
    }
    /* Ends the segments that end at group `done`; an empty one adds +0. */
    __device__ __forceinline__ void flush(int done)
    {
        for (; end == done && seg < CU_SEGMENTS; end = seg_end(++seg, G)) {
#pragma unroll
            for (int i = 0; i < REGS / 4; i++) {
                float *v = acc + 4 * i;
                const float4 y = lds_float4(tot + i * 2048);
                sts_float4(tot + i * 2048, __fadd_rn(y.x, v[0]), __fadd_rn(y.y, v[1]), __fadd_rn(y.z, v[2]), __fadd_rn(y.w, v[3]));
                v[0] = v[1] = v[2] = v[3] = 0.0f;
            }
        }
    }
    template <bool SHORT, int N> __device__ __forceinline__ void run()
    {
        sums<F, N> d;
        for (int g = 0; g < G; g += F::SG) {
            const uint32_t at = base + (uint32_t)slot * S::STAGE, full = bars + (uint32_t)slot * 8;
            barrier_wait(full, phase);
#pragma unroll
            for (int gi = 0; gi < F::SG; gi++) {
                if (F::SG > 1 && gi > 0 && g + gi >= G) break;
                const uint32_t desc = desc0 + (uint32_t)slot * (S::STAGE / 16);
                unpack<F>(A, at + w_off, gi);
                hold(d);
                multiply<S>(d, A, desc, gi, 0);
                wgmma_wait<0>();
                d.hold();
#pragma unroll
                for (int i = 0; i < N; i++) d.v[i] *= 256;
                hold(d);
                multiply<S>(d, A, desc, gi, 1);
                const float2 sb[2] = {lds_float2(at + sb_off + gi * S::RT * 8), lds_float2(at + sb_off + gi * S::RT * 8 + 64)};
                wgmma_wait<0>();
                d.hold();
                fold_all<SHORT>(acc, d, at + dx_off + gi * S::TT * 8, sb);
                if (!SHORT && F::SG > 1 && g + gi + 1 == end) flush(g + gi + 1);
            }
            __syncwarp();
            barrier_arrive(full + S::STAGES * 8, 1);
            if (++slot == S::STAGES) slot = 0, phase ^= 1;
            if (!SHORT && F::SG == 1) flush(g + 1);
        }
    }
    /* A tile whose outputs end before this warpgroup's. */
    __device__ __forceinline__ void pass()
    {
        for (int g = 0; g < G; g += F::SG) {
            barrier_wait(bars + (uint32_t)slot * 8, phase);
            __syncwarp();
            barrier_arrive(bars + (uint32_t)(S::STAGES + slot) * 8, 1);
            if (++slot == S::STAGES) slot = 0, phase ^= 1;
        }
    }
    /* Half of the last tiles of experts have at most half of the tokens: the others are not computed. */
    template <bool SHORT> __device__ __forceinline__ void run_some(int rows)
    {
        if (REGS == 32 && rows <= S::TT / 2) run<SHORT, 16>();
        else run<SHORT, REGS>();
    }
    /* The sums of a tile into acc. When every group is a segment, none stand in shared memory meanwhile. */
    __device__ __forceinline__ void run_tile(int rows)
    {
        if (!F::PLANES && G == CU_SEGMENTS) {
#pragma unroll
            for (int i = 0; i < REGS; i++) acc[i] = -0.0f; /* -0 + x is x */
            run_some<true>(rows);
        } else {
            clear();
            run_some<false>(rows);
#pragma unroll
            for (int i = 0; i < REGS / 4; i++) {
                const float4 v = lds_float4(tot + i * 2048);
                acc[4 * i] = v.x, acc[4 * i + 1] = v.y, acc[4 * i + 2] = v.z, acc[4 * i + 3] = v.w;
            }
            barrier_among(4 + wg, 128);
        }
    }

    /* Writes this warpgroup's 64 outputs of each token: through shared memory, so that a warp writes 256 bytes of one row of y. Output n of
     * token k stands at word 64*k + (n ^ 8*(k/2 % 4)), free of bank conflicts both ways. told: the tile. */
    __device__ __forceinline__ void write(uint32_t told, uint32_t area)
    {
        int me = threadIdx.x;
        asm volatile("" : "+r"(me)); /* what follows from it is not worth a register before */
        const int lane = me & 31, c = lane & 3, row = (me >> 5 & 3) * 16 + (lane >> 2);
        constexpr int BATCH = 4; /* rows of a warp at a time: what is there already is read before anything is written */
        const int n = (int)lds_u32(told) + wg * 64 + 2 * lane, left = a.w.n_out - n, rows = (int)lds_u32(told + 4), warp = me >> 5 & 3;
        const bool pairs = ((a.w.n_out | a.y_stride) & 1) == 0 && ((uintptr_t)a.y & 7) == 0;
#pragma unroll
        for (int j = 0; j < REGS / 4; j++) {
            const uint32_t p = area + (j * 8 + 2 * c) * 256 + ((row ^ (c * 8)) * 4), q = area + (j * 8 + 2 * c) * 256 + (((row + 8) ^ (c * 8)) * 4);
            sts_float(p, acc[4 * j]);
            sts_float(p + 256, acc[4 * j + 1]);
            sts_float(q, acc[4 * j + 2]);
            sts_float(q + 256, acc[4 * j + 3]);
        }
        barrier_among(4 + wg, 128);
        for (int k0 = warp; k0 < rows && left > 0; k0 += 4 * BATCH) {
            float *y[BATCH];
            float2 u[BATCH];
            const int some = min(BATCH, (rows - k0 + 3) / 4);
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                const int k = k0 + 4 * i;
                u[i] = lds_float2(area + k * 256 + (((2 * lane) ^ ((k >> 1 & 3) * 8)) * 4));
                y[i] = a.y + (int64_t)lds_u32(told + 16 + k * 4) * a.y_stride + n;
            }
            if (a.add) {
                float2 old[BATCH];
#pragma unroll
                for (int i = 0; i < BATCH; i++)
                    if (i < some) old[i] = pairs ? *(const float2 *)y[i] : make_float2(y[i][0], left > 1 ? y[i][1] : 0);
#pragma unroll
                for (int i = 0; i < BATCH; i++) u[i] = make_float2(__fadd_rn(old[i].x, u[i].x), __fadd_rn(old[i].y, u[i].y));
            }
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                if (i >= some) break;
                if (pairs) {
                    *(float2 *)y[i] = u[i];
                } else {
                    y[i][0] = u[i].x;
                    if (left > 1) y[i][1] = u[i].y;
                }
            }
        }
        barrier_among(4 + wg, 128);
    }
};

template <class S> __device__ __forceinline__ void consume(const cu_linear &a, uint32_t base, const work &all)
{
    using F = typename S::F;
    const int tid = threadIdx.x & 127, wg = __shfl_sync(FULL, threadIdx.x >> 7, 0), r = tid >> 2 & 7;
    const uint32_t area = base + S::TOT + wg * (64 * S::TT * 4);
    consumer<S> me = {a, base, base + S::BARS, __shfl_sync(FULL, base >> 4 | 1u << 16, 0), area + tid * 16};
    me.G = a.w.n_groups;
    me.wg = wg;
    const int row = wg * 64 + (tid >> 5) * 16 + r, c = tid & 3; /* of the stage's weights; the lane's other one is row + 8 */
    me.w_off = S::X_BYTES + row * F::WS + c * 4 + (w_swizzle<F>(r) << 4);
    me.sb_off = S::X_BYTES + S::W_BYTES + (F::SG * S::TT + row) * 8;
    me.dx_off = S::X_BYTES + S::W_BYTES + 2 * c * 8;
    asm volatile("" : "+r"(me.w_off), "+r"(me.sb_off), "+r"(me.dx_off)); /* keep them */
    me.slot = 0;
    me.phase = 0;
    uint32_t told = base + S::TOLD;
    for (int id = blockIdx.x; id < all.n(); id += gridDim.x, told = told + S::TILE == base + S::SLOTS ? base + S::TOLD : told + S::TILE) {
        barrier_wait(me.bars + (uint32_t)me.slot * 8, me.phase);
        if (__shfl_sync(FULL, (int)lds_u32(told), 0) + wg * 64 >= a.w.n_out) {
            me.pass();
            continue;
        }
        me.run_tile(__shfl_sync(FULL, (int)lds_u32(told + 4), 0));
        me.write(told, area);
    }
}

template <class S> __device__ __forceinline__ void wgemm(const cu_gemm_args &args)
{
    const cu_linear &a = args.a;
    extern __shared__ uint8_t raw[];
    uint8_t *smem = (uint8_t *)(((uintptr_t)raw + 1023) & ~(uintptr_t)1023);
    const uint32_t base = address(smem), bars = base + S::BARS;
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::STAGES; i++) {
            barrier_init(bars + i * 8, 128 + S::F::TILED);        /* full: every producer, and who expects bytes */
            barrier_init(bars + (S::STAGES + i) * 8, 128 * S::WGS); /* empty: every consumer */
        }
        fence_async();
    }
    __syncthreads();
    pdl_trigger();
    pdl_wait();
    work all = {base + S::SLOTS, (a.n_rows + S::TT - 1) / S::TT, (a.w.n_out + S::RT - 1) / S::RT};
    if (a.expert_at) {
        if (threadIdx.x < 32) count_tiles<S>(a, all.first);
        __syncthreads();
        all.n_slots = (int)lds_u32(all.first + a.n_experts * 4);
    }
    if (threadIdx.x >= 128 * S::WGS) {
        fewer_registers<S::PRODUCER_REGS>();
        produce<S>(args, base, all);
    } else {
        more_registers<S::CONSUMER_REGS>();
        consume<S>(a, base, all);
    }
}

} // namespace gm

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define ON_SM90A(...) __VA_ARGS__
#else
#define ON_SM90A(...) /* other machine code of the same fatbin: never launched */
#endif
#define WGEMM(name, ...)                                                                                     \
    extern "C" __global__ void __launch_bounds__(gm::wshape<__VA_ARGS__>::THREADS, 1) name(const __grid_constant__ cu_gemm_args a) \
    {                                                                                                        \
        ON_SM90A(gm::wgemm<gm::wshape<__VA_ARGS__>>(a);)                                                       \
    }

WGEMM(k_gemm_q4g64_sm90, gm::fmt<4, 64, 2, false, true>, 4, 64, 4)
WGEMM(k_gemm_q2g128_sm90, gm::fmt<2, 128, 1>, 4, 64, 5)
WGEMM(k_gemm_q4g32_sm90, gm::fmt<4, 32, 2>, 4, 64, 7)
WGEMM(k_gemm_q8g64_sm90, gm::fmt<8, 64, 1>, 4, 64, 5)
WGEMM(k_gemm_planes_sm90, gm::fmt<8, 64, 1, true>, 3, 64, 5)
/* For few rows, and for experts that get few. */
WGEMM(k_gemm_q4g64_sm90_s, gm::fmt<4, 64, 1>, 3, 32, 8)
WGEMM(k_gemm_q2g128_sm90_s, gm::fmt<2, 128, 1>, 3, 32, 8)
WGEMM(k_gemm_q4g32_sm90_s, gm::fmt<4, 32, 2>, 3, 32, 8)
WGEMM(k_gemm_q8g64_sm90_s, gm::fmt<8, 64, 1>, 3, 32, 8)
WGEMM(k_gemm_planes_sm90_s, gm::fmt<8, 64, 1, true>, 3, 32, 6)
