/* batch.cu: products of 17 to 64 rows: a decode step of so many sequences. Several matrices in one launch; a tile is some outputs times
 * some rows, small enough that there is about one for each multiprocessor. Weights are on their way before the kernel waits for its rows. A column of a
 * tile is a row of activations or, behind those, what the integers leave of one (its remainder); remainders that no column is left for are a pass of
 * their own. Integer products by mma.sync; stages and fragments are those of gemm.cuh. */
#include "cuda/gemm.cuh"

#if __CUDA_ARCH__ >= 900
namespace gm {

/* OG x CG warps, each 32 outputs times NT blocks of 8 columns, CG blocks apart, two of them for rows; SLICES of the segments, each with as many warps:
 * 1, or all 8. */
template <class F_, int OG_, int CG_, int NT_, int SLICES_, int STAGES_> struct bshape {
    using F = F_;
    static constexpr int OG = OG_, CG = CG_, SLICES = SLICES_, STAGES = STAGES_, MT = 2, NT = NT_;
    static constexpr int RT = OG * 32, TT = CG * NT * 8, ROWS = CG * 16, WARPS = OG * CG * SLICES, THREADS = 32 * WARPS;
    static constexpr int X_BYTES = TT * F::TB, W_BYTES = RT * F::WS, STAGE = SLICES * (X_BYTES + W_BYTES);
    static constexpr int SB_ROW = RT * 8 + 16, DX_ROW = TT * 8 + 16; /* (s, b) of the outputs, (dx, X) of the rows: a line for each group */
    static constexpr int SUM_ROW = RT + 4, SUMS = SLICES * TT * SUM_ROW * 4;
    static constexpr int KA = F::KS * (F::PLANES ? 2 : 1);
    static_assert((SLICES == 1 || SLICES == CU_SEGMENTS) && (NT == 2 || NT == 3), "shape");
    static_assert(SUMS <= STAGES * STAGE, "room for sums");
    /* The first group of a slice. */
    static __device__ __forceinline__ int begin(int slice, int G) { return SLICES == 1 ? slice * G : slice * G / CU_SEGMENTS; }
};

/* A thread's 16-byte pieces of each stage: always the same piece of a row, of rows STEP apart; with slices, all of one. */
template <class S> struct pieces {
    using F = typename S::F;
    static constexpr int TQ = F::TB / 16, T_STEP = S::THREADS / TQ / S::SLICES, T_N = (S::TT + T_STEP - 1) / T_STEP;
    static constexpr int WQ = F::WS / 16, W_STEP = S::THREADS / WQ / S::SLICES, W_N = (S::RT + W_STEP - 1) / W_STEP;
    static_assert(S::THREADS % (TQ * S::SLICES) == 0 && (T_STEP % 8 == 0 || T_STEP == 4), "pieces of rows");
    static_assert(S::THREADS % (WQ * S::SLICES) == 0 && W_STEP % 8 == 0, "pieces of weights");
    const int8_t *x;
    uint32_t x_row[T_N], x_to;     /* where the rows begin; where the first piece goes in a stage */
    const uint8_t *w;
    uint32_t w_to;
    int token, x_first, x_end;     /* its first column; groups of the slice, from the one that the piece of the first stage is of */
    int w_first, w_end, w_rows, w_step;

    __device__ __forceinline__ void begin(const cu_linear &a, int n0)
    {
        const int tid = threadIdx.x, q = tid % TQ, k = tid / TQ, slice = S::SLICES > 1 ? k / T_STEP : 0, G = a.w.n_groups;
        const int gi = q * 16 / (2 * F::GROUP), rem = q * 16 % (2 * F::GROUP), lo = rem / F::GROUP, qq = rem % F::GROUP / 16;
        const int j = F::XB >= 32 ? (qq >> 1) % F::PACK : qq, m0 = F::XB >= 32 ? (qq >> 1) / F::PACK * 32 + (qq & 1) * 16 : 0;
        token = S::SLICES > 1 ? k % T_STEP : k;
        x = a.x.planes + j * 64 + m0 + lo * 64 * F::PACK;
        x_to = slice * S::X_BYTES + x_at<S::TT>(q * 16, token);
        x_first = S::begin(slice, G) + gi;
        x_end = S::begin(slice + 1, G);
        const int wq = tid % WQ, wk = tid / WQ, w_slice = S::SLICES > 1 ? wk / W_STEP : 0, r = S::SLICES > 1 ? wk % W_STEP : wk;
        w_first = S::begin(w_slice, G);
        w_end = S::begin(w_slice + 1, G) - wq * 16 / F::WB;
        w = a.w.codes + (int64_t)(n0 + r) * a.w.row_bytes + w_first * F::WB + wq * 16;
        w_to = S::SLICES * S::X_BYTES + w_slice * S::W_BYTES + r * F::WS + ((wq ^ w_swizzle<F>(r)) << 4);
        w_rows = a.w.n_out - n0 - r;
        w_step = W_STEP * (int)a.w.row_bytes;
    }
    /* Columns from .. n-1 are these rows. */
    template <class R> __device__ __forceinline__ void columns(int from, int n, int stride, R row_of)
    {
#pragma unroll
        for (int i = 0; i < T_N; i++) {
            const int tok = token + i * T_STEP;
            if (tok >= from && tok < n) x_row[i] = (uint32_t)row_of(tok) * (uint32_t)stride;
        }
    }
    __device__ __forceinline__ void tokens(uint32_t at, int step, int from, int n) const
    {
        const int g = x_first + step * F::SG, mm = g * F::XB;
        const int8_t *here = x + (mm / 64 * (128 * F::PACK) + mm % 64);
        at += x_to;
        if (g >= x_end) return;
#pragma unroll
        for (int i = 0; i < T_N; i++) {
            const int tok = token + i * T_STEP;
            if (tok >= from && tok < n) copy16((at + i * T_STEP * 128) ^ (T_STEP == 4 && i & 1 ? 64 : 0), here + x_row[i]);
        }
    }
    __device__ __forceinline__ void weights(uint32_t at, int step) const
    {
        const uint8_t *from = w + step * F::WS;
        at += w_to;
        if (w_first + step * F::SG >= w_end) return;
#pragma unroll
        for (int i = 0; i < W_N; i++)
            if ((S::RT % W_STEP == 0 || threadIdx.x / WQ % W_STEP + i * W_STEP < S::RT) && i * W_STEP < w_rows) copy16(at + i * W_STEP * F::WS, from + i * w_step);
    }
};

/* The scales of the tile's outputs as pairs of floats. */
template <class S> __device__ __forceinline__ void load_scales(const cu_weight &w, int n0, uint32_t sb)
{
    using F = typename S::F;
    enum { AT_ONCE = 8 };
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, G = w.n_groups;
    const bool wide = F::PLANES || w.scale_type == CU_S_F32, half = w.scale_type == CU_S_F16;
#pragma unroll 1
    for (int g = lane; g < G; g += 32)
#pragma unroll 1
        for (int r0 = warp; r0 < S::RT; r0 += AT_ONCE * S::WARPS) {
            uint32_t v[AT_ONCE][2] = {};
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) {
                const int r = r0 + k * S::WARPS;
                const int64_t at = (int64_t)min(n0 + r, w.n_out - 1) * G + g;
                if (r >= S::RT) break;
                if (wide) {
                    v[k][0] = load_u32((const uint32_t *)w.scales + at);
                    if (F::AFFINE) v[k][1] = load_u32((const uint32_t *)w.biases + at);
                } else {
                    v[k][0] = load_u16((const uint16_t *)w.scales + at);
                    if (F::AFFINE) v[k][1] = load_u16((const uint16_t *)w.biases + at);
                }
            }
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) {
                const int r = r0 + k * S::WARPS;
                if (r >= S::RT) break;
                float f[2];
#pragma unroll
                for (int i = 0; i < 2; i++)
                    f[i] = wide ? __uint_as_float(v[k][i]) : half ? __half2float(__ushort_as_half((unsigned short)v[k][i])) : __uint_as_float(v[k][i] << 16);
                sts_float2(sb + g * S::SB_ROW + r * 8, f[0], f[1]);
            }
        }
}

/* Weights that no stage has room for yet come near, and scales. */
template <class S> __device__ __forceinline__ void prefetch_rows(const cu_weight &w, int n0)
{
    const int lines = (int)((w.row_bytes + 127) / 128), rows = min(S::RT, w.n_out - n0), of_scales = w.n_groups * (w.scale_type == CU_S_F32 ? 4 : 2);
    for (int r = threadIdx.x / 32; r < rows; r += S::WARPS)
        for (int i = threadIdx.x % 32; i < lines; i += 32) prefetch(w.codes + (int64_t)(n0 + r) * w.row_bytes + i * 128);
    for (int at = threadIdx.x * 128; at < rows * of_scales; at += S::THREADS * 128) {
        prefetch(w.scales + (int64_t)n0 * of_scales + at);
        if (S::F::AFFINE) prefetch(w.biases + (int64_t)n0 * of_scales + at);
    }
}

/* Where a lane reads in a stage, counted from its slice's first byte: pairs of chunks of its row of weights (the second 16 rows stand behind); its row
 * of the warp's first block of columns, of which k-steps are XORed chunks. */
template <class S> struct lanes {
    using F = typename S::F;
    uint32_t w[F::WS / 32], x;

    /* Lanes 0-15 address the rows of one chunk, the others those of the next; of columns lanes 0-7 and 8-15 the halves of a k-step's hi bytes, 16-31
     * those of its lo bytes. */
    __device__ __forceinline__ void begin(int row0, int tok0)
    {
        const int lane = threadIdx.x & 31, row = row0 + (lane & 15);
#pragma unroll
        for (int i = 0; i < F::WS / 32; i++) w[i] = row * F::WS + ((2 * i + (lane >> 4) ^ w_swizzle<F>(row)) << 4);
        x = tok0 * 128 + x_at<S::TT>((lane >> 4) * F::GROUP + (lane >> 3 & 1) * 16, lane & 7);
    }
    /* x: where the slice's columns begin, a multiple of 128. */
    __device__ __forceinline__ uint32_t columns(uint32_t at, int gi, int ks) const
    {
        const int pos = x_pos<F>(gi, 0, ks);
        return (at + x ^ (pos & 127)) + (pos >> 7) * S::TT * 128;
    }
};

/* Operands of the weights of a group, and their scales. */
template <class S> struct left_side {
    using F = typename S::F;
    uint32_t A[S::KA][S::MT][4];
    float2 s[S::MT][2];

    /* Group gi of the stage, whose slice's weights begin at `at`. */
    __device__ __forceinline__ void unpack(const lanes<S> &me, uint32_t at, int gi)
    {
#pragma unroll
        for (int mt = 0; mt < S::MT; mt++) {
            uint32_t v[4];
            if constexpr (F::XB == 16) { /* two groups at once */
                matrices(v, at + me.w[gi / 2] + mt * 16 * F::WS);
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    A[0][mt][h] = v[2 * (gi & 1) + h] & F::MASK;
                    A[0][mt][2 + h] = (v[2 * (gi & 1) + h] >> F::BITS) & F::MASK;
                }
            } else {
#pragma unroll
                for (int m = 0; m < F::WB; m += 32) {
                    matrices(v, at + me.w[(gi * F::WB + m) / 32] + mt * 16 * F::WS);
#pragma unroll
                    for (int h = 0; h < 4; h++)
#pragma unroll
                        for (int j = 0; j < F::PACK; j++) A[m / 32 * F::PACK + j][mt][h] = (v[h] >> (F::BITS * j)) & F::MASK;
                }
            }
        }
    }
};

/* What a warp holds: of the segment in work, and of those before. The third block of columns has nothing but remainders. */
template <class S> struct outputs {
    float acc[S::NT][S::MT][4], tot[S::NT][S::MT][4];
    int seg, next;           /* the segment in work ends with group next - 1 */

    __device__ __forceinline__ void clear(int G)
    {
#pragma unroll
        for (int i = 0; i < S::NT * S::MT * 4; i++) (&acc[0][0][0])[i] = 0.0f, (&tot[0][0][0])[i] = -0.0f; /* -0 + x is x */
        seg = 0;
        next = seg_end(0, G);
    }
    template <int FROM, int TO> __device__ __forceinline__ void add()
    {
#pragma unroll
        for (int i = FROM * S::MT * 4; i < TO * S::MT * 4; i++) {
            float &y = (&tot[0][0][0])[i], &v = (&acc[0][0][0])[i];
            y = __fadd_rn(y, v);
            v = 0.0f;
        }
    }
    /* Segments that end with group done - 1; an empty one adds +0. third: is there something in that block? */
    __device__ __forceinline__ void flush(int done, int G, bool third)
    {
        while (next == done) {
            add<0, 2>();
            if (third) add<2, S::NT>();
            next = ++seg < CU_SEGMENTS ? seg_end(seg, G) : -1;
        }
    }
};

/* Group gi's products for blocks FROM .. TO-1 of columns; dx: this lane's scales of the first block. */
template <class S, int FROM, int TO>
__device__ __forceinline__ void blocks(outputs<S> &o, const left_side<S> &w, const lanes<S> &me, uint32_t x, int gi, uint32_t dx)
{
    using F = typename S::F;
    constexpr int MT = S::MT, KS = F::KS, N = TO - FROM;
    int h[N][MT][4] = {}, l[N][MT][4] = {}, m[N][MT][4] = {};
#pragma unroll
    for (int ks = 0; ks < KS; ks++)
#pragma unroll
        for (int nt = 0; nt < N; nt++) {
            uint32_t B[4];
            matrices(B, me.columns(x, gi, ks) + (FROM + nt) * S::CG * 1024);
#pragma unroll
            for (int mt = 0; mt < MT; mt++) {
                const uint32_t *A0 = w.A[ks][mt];
                if (F::PLANES) {
                    const uint32_t *A1 = w.A[S::KA - KS + ks][mt];
                    mma_s8s8(h[nt][mt], A0[0], A0[1], A0[2], A0[3], B[0], B[1]);
                    mma_s8s8(m[nt][mt], A0[0], A0[1], A0[2], A0[3], B[2], B[3]);
                    mma_s8s8(m[nt][mt], A1[0], A1[1], A1[2], A1[3], B[0], B[1]);
                    mma_s8s8(l[nt][mt], A1[0], A1[1], A1[2], A1[3], B[2], B[3]);
                } else {
                    mma_u8s8(h[nt][mt], A0[0], A0[1], A0[2], A0[3], B[0], B[1]);
                    mma_u8s8(l[nt][mt], A0[0], A0[1], A0[2], A0[3], B[2], B[3]);
                }
            }
        }
#pragma unroll
    for (int nt = 0; nt < N; nt++) {
        const float4 d = lds_float4(dx + (FROM + nt) * S::CG * 64);
#pragma unroll
        for (int mt = 0; mt < MT; mt++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int hi = h[nt][mt][e] * 256, lo = l[nt][mt][e];
                float D = F::PLANES ? hl_to_f32(hi + m[nt][mt][e], lo) : (float)(hi + lo);
                fold(o.acc[FROM + nt][mt][e], D, e & 1 ? d.z : d.x, e & 1 ? d.w : d.y, w.s[mt][e >> 1].x, w.s[mt][e >> 1].y, F::AFFINE);
            }
    }
}

/* Group gi of a stage for blocks FROM .. TO-1. x, w: the slice's columns and weights; dx, sb: this lane's in the lines of the stage's first group. */
template <class S, int FROM, int TO>
__device__ __forceinline__ void multiply(outputs<S> &o, const lanes<S> &me, uint32_t x, uint32_t w, uint32_t dx, uint32_t sb, int gi)
{
    left_side<S> side;
    side.unpack(me, w, gi);
#pragma unroll
    for (int i = 0; i < S::MT * 2; i++) side.s[i / 2][i % 2] = lds_float2(sb + gi * S::SB_ROW + i * 64);
    blocks<S, FROM, TO>(o, side, me, x, gi, dx + gi * S::DX_ROW);
}

/* A stage, of which n_groups are there, the first of them group g; n: columns that there are, from the warp's first on. (Two groups without a branch
 * between them took as long.) */
template <class S>
__device__ __forceinline__ void multiply_stage(outputs<S> &o, const lanes<S> &me, uint32_t x, uint32_t w, uint32_t dx, uint32_t sb, int g, int n_groups, int G, int n)
{
    const bool third = S::NT > 2 && n > 2 * S::CG * 8;
#pragma unroll
    for (int gi = 0; gi < S::F::SG; gi++) {
        if (gi >= n_groups) break;
        if (S::CG == 4 && n <= S::CG * 8) multiply<S, 0, 1>(o, me, x, w, dx, sb, gi); /* a step of up to 32 rows */
        else multiply<S, 0, 2>(o, me, x, w, dx, sb, gi);
        if (third) multiply<S, 2, S::NT>(o, me, x, w, dx, sb, gi);
        if (S::SLICES == 1) o.flush(g + gi + 1, G, third);
    }
}

/* What the columns of a tile are: the first n_rows have outputs, those behind are remainders of some of them. */
struct columns {
    int n, n_rows;
    int x_row[96], y_row[96]; /* x_row: of those behind */
    int left[96];            /* the column of a row's remainder, or -1 */
};

__device__ __forceinline__ int nth_bit(const unsigned (&bits)[2], int n)
{
    const int low = __popc(bits[0]);
    unsigned m = n < low ? bits[0] : bits[1];
    for (int k = n < low ? n : n - low; k; k--) m &= m - 1;
    return __ffs(m) - 1 + (n < low ? 0 : 32);
}

/* Fills them, of rows r0 .. r0+n_rows-1: in the first pass the rows and `take` remainders of those whose bits are set, then remainders done ..
 * done+take-1 alone. */
__device__ __forceinline__ void fill(columns &c, const cu_planes &x, int r0, int n_rows, const unsigned (&bits)[2], int pass, int done, int take)
{
    const int rows = pass ? 0 : n_rows, i = threadIdx.x;
    if (i == 0) c.n = rows + take, c.n_rows = pass ? take : rows;
    if (i < rows) {
        const unsigned mine = i < 32 ? bits[0] : bits[1], below = mine & ((1u << (i & 31)) - 1);
        const int rank = __popc(below) + (i < 32 ? 0 : __popc(bits[0]));
        c.y_row[i] = r0 + i;
        c.left[i] = (mine >> (i & 31) & 1) && rank < take ? rows + rank : -1;
    } else if (i < rows + take) {
        c.y_row[i] = r0 + nth_bit(bits, done + i - rows);
        c.x_row[i] = x.n_rows + c.y_row[i];
        c.left[i] = -1;
    }
}

/* dx and X of columns from .. n-1. */
template <class S, class R> __device__ __forceinline__ void bring_scales(const cu_planes &x, uint32_t dx, int from, int n, int G, R row_of)
{
    const int lane = threadIdx.x & 31;
    for (int tok = from + threadIdx.x / 32; tok < n; tok += S::WARPS) {
        const int64_t at = (int64_t)row_of(tok) * G;
        for (int g = lane; g < G; g += 32) {
            copy4(dx + g * S::DX_ROW + tok * 8, x.dx + at + g);
            if (S::F::AFFINE) copy4(dx + g * S::DX_ROW + tok * 8 + 4, x.xs + at + g);
        }
    }
}

/* A tile's outputs from registers: each warp has whole sums. Those of remainders go to shared memory for their rows' lanes. */
template <class S> __device__ __forceinline__ void put_all(const cu_linear &a, const outputs<S> &o, uint32_t at, const columns &cols, int n0, int row0, int tok0, int add)
{
    const int r = threadIdx.x % 32 >> 2, c = threadIdx.x & 3;
    if (cols.n > cols.n_rows) { /* of the block */
        __syncthreads(); /* nobody reads the ring any more */
#pragma unroll
        for (int i = 0; i < S::MT * S::NT * 4; i++) {
            const int mt = i / (S::NT * 4), nt = i / 4 % S::NT, e = i % 4, tok = tok0 + nt * S::CG * 8 + 2 * c + (e & 1);
            if (tok >= cols.n_rows) sts_float(at + (tok * S::SUM_ROW + row0 + mt * 16 + (e >> 1) * 8 + r) * 4, o.tot[nt][mt][e]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
        for (int odd = 0; odd < 2; odd++) {
            const int tok = tok0 + nt * S::CG * 8 + 2 * c + odd;
            if (tok >= cols.n_rows) continue;
            const int left = cols.left[tok];
            float *y = a.y + (int64_t)cols.y_row[tok] * a.y_stride;
#pragma unroll
            for (int i = 0; i < S::MT * 2; i++) {
                const int n = row0 + i * 8 + r;
                if (n0 + n >= a.w.n_out) continue;
                float v = o.tot[nt][i / 2][2 * (i & 1) + odd];
                if (add) v = __fadd_rn(y[n0 + n], v);
                if (left >= 0) v = __fadd_rn(v, lds_float(at + (left * S::SUM_ROW + n) * 4));
                y[n0 + n] = v;
            }
        }
}

/* Each slice has the sums of a segment: all meet in shared memory. */
template <class S>
__device__ __forceinline__ void put_segments(const cu_linear &a, const outputs<S> &o, uint32_t at, const columns &cols, int n0, int row0, int tok0, int slice, int add)
{
    const int r = threadIdx.x % 32 >> 2, c = threadIdx.x & 3;
    __syncthreads(); /* nobody reads the ring any more */
#pragma unroll
    for (int i = 0; i < S::MT * S::NT * 4; i++) {
        const int mt = i / (S::NT * 4), nt = i / 4 % S::NT, e = i % 4;
        sts_float(at + ((slice * S::TT + tok0 + nt * S::CG * 8 + 2 * c + (e & 1)) * S::SUM_ROW + row0 + mt * 16 + (e >> 1) * 8 + r) * 4, o.acc[nt][mt][e]);
    }
    __syncthreads();
    auto sum = [&](int tok, int n) {
        const uint32_t from = at + (tok * S::SUM_ROW + n) * 4;
        float y = lds_float(from);
#pragma unroll
        for (int s = 1; s < S::SLICES; s++) y = __fadd_rn(y, lds_float(from + s * S::TT * S::SUM_ROW * 4));
        return y;
    };
#pragma unroll
    for (int k = threadIdx.x; k < S::TT * S::RT; k += S::THREADS) {
        const int tok = k / S::RT, n = k % S::RT;
        if (tok >= cols.n_rows || n0 + n >= a.w.n_out) continue;
        float *y = a.y + (int64_t)cols.y_row[tok] * a.y_stride + n0 + n, v = sum(tok, n);
        if (add) v = __fadd_rn(*y, v);
        if (cols.left[tok] >= 0) v = __fadd_rn(v, sum(cols.left[tok], n));
        *y = v;
    }
}

template <class S> __device__ __forceinline__ void batch(const cu_linears &all)
{
    using F = typename S::F;
    extern __shared__ __align__(1024) uint8_t smem[];
    __shared__ columns cols;
    __shared__ unsigned flagged[2];
    const int tid = threadIdx.x, lane = tid & 31, warp = tid / 32;
    pdl_trigger();
    int part = 0;
    while ((int)blockIdx.x >= all.block0[part + 1]) part++;
    const cu_linear &a = all.part[part];
    const int block = (int)blockIdx.x - all.block0[part], n_tiles = (a.w.n_out + S::RT - 1) / S::RT, G = a.w.n_groups;
    const int n0 = block % n_tiles * S::RT, r0 = block / n_tiles * S::ROWS, n_rows = min(a.n_rows - r0, S::ROWS);
    const int n_steps = ((S::SLICES == 1 ? G : (G + CU_SEGMENTS - 1) / CU_SEGMENTS) + F::SG - 1) / F::SG;
    const uint32_t sb = address(smem), dx = sb + G * S::SB_ROW, ring = (dx + G * S::DX_ROW + 127) & ~127u;
    const int slice = S::SLICES > 1 ? warp / (S::OG * S::CG) : 0, row0 = warp % (S::OG * S::CG) / S::CG * 32, tok0 = warp % S::CG * 8;
    const int first = S::begin(slice, G), end = S::begin(slice + 1, G);
    auto place = [&](int step) { return ring + step % S::STAGES * S::STAGE; };

    const uint32_t dx_lane = dx + (tok0 + 2 * (lane & 3)) * 8, sb_lane = sb + (row0 + (lane >> 2)) * 8;
    lanes<S> me;
    pieces<S> mine;
    me.begin(row0, tok0);
    mine.begin(a, n0);
    for (int i = 0; i < S::STAGES - 1 && i < n_steps; i++) mine.weights(place(i), i);
    prefetch_rows<S>(a.w, n0);
    auto nth_row = [&](int tok) { return r0 + tok; };
    auto listed_row = [&](int tok) { return cols.x_row[tok]; };
    mine.columns(0, n_rows, a.x.stride, nth_row);
    pdl_wait();
    const int flag = a.x.flag && tid < n_rows ? a.x.flag[r0 + tid] : 0;
    bring_scales<S>(a.x, dx, 0, n_rows, G, nth_row);
    for (int i = 0; i < S::STAGES - 1; i++) {
        if (i < n_steps) mine.tokens(place(i), i, 0, n_rows);
        copies_end();
    }
    load_scales<S>(a.w, n0, sb); /* here, because a block that began late waits for rows anyway */
    if (warp < (S::ROWS + 31) / 32) {
        const unsigned some = __ballot_sync(FULL, flag);
        if (lane == 0) flagged[warp] = some;
    }
    __syncthreads();
    const unsigned bits[2] = {flagged[0], S::ROWS > 32 ? flagged[1] : 0};
    const int n_left = __popc(bits[0]) + __popc(bits[1]);
    int done = 0;
#pragma unroll 1
    for (int pass = 0;; pass++) {
        const int rows = pass ? 0 : n_rows, take = min(n_left - done, S::TT - rows), n = rows + take;
        fill(cols, a.x, r0, n_rows, bits, pass, done, take);
        if (take) {
            __syncthreads();
            mine.columns(rows, n, a.x.stride, listed_row);
            bring_scales<S>(a.x, dx, rows, n, G, listed_row);
            for (int i = 0; i < S::STAGES - 1 && i < n_steps; i++) {
                if (pass) mine.weights(place(i), i);
                mine.tokens(place(i), i, rows, n);
            }
            copies_end();
            copies_wait<0>();
        }
        done += take;
        outputs<S> o;
        o.clear(G);
        if (S::SLICES == 1) o.flush(0, G, true);
#pragma unroll 1
        for (int step = 0; step < n_steps; step++) {
            copies_wait<S::STAGES - 2>();
            __syncthreads();
            const int ahead = step + S::STAGES - 1;
            if (ahead < n_steps) {
                mine.weights(place(ahead), ahead);
                mine.tokens(place(ahead), ahead, 0, n);
            }
            copies_end();
            const uint32_t x = place(step) + slice * S::X_BYTES, w = place(step) + S::SLICES * S::X_BYTES + slice * S::W_BYTES;
            const int g = first + step * F::SG;
            if (g < end && tok0 < n) multiply_stage<S>(o, me, x, w, dx_lane + g * S::DX_ROW, sb_lane + g * S::SB_ROW, g, end - g, G, n - tok0);
        }
        copies_wait<0>();
        if constexpr (S::SLICES == 1) put_all<S>(a, o, ring, cols, n0, row0, tok0, pass || a.add);
        else put_segments<S>(a, o, ring, cols, n0, row0, tok0, slice, pass || a.add);
        if (done == n_left) return;
        __syncthreads();
    }
}

} // namespace gm
#define BODY(...) gm::batch<gm::bshape<__VA_ARGS__>>(a);
#else
#define BODY(...)
#endif

#define BATCH(name, threads, ...)                                                                                        \
    extern "C" __global__ void __launch_bounds__(threads, 1) k_batch_##name(const __grid_constant__ cu_linears a) { BODY(__VA_ARGS__) }
#define FORMAT(bits, group, groups, planes) gm::fmt<bits, group, groups, planes>
#define BATCHES(name, type, bits, group, groups, og, deep)                                                    \
    BATCH(name##_wide, 384, FORMAT(bits, group, groups, type == CU_FMT_PLANES), 3, 4, 3, 1, CU_BATCH_STAGES)   \
    BATCH(name##_tall, 384, FORMAT(bits, group, groups, type == CU_FMT_PLANES), 6, 2, 3, 1, CU_BATCH_STAGES)   \
    BATCH(name##_split, 512, FORMAT(bits, group, (group < 64 ? 2 : 1), type == CU_FMT_PLANES), og, 3 - og, 3, CU_SEGMENTS, deep)
CU_BATCH_FORMATS(BATCHES)
