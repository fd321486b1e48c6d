/* gemv.cu: linear layers with few rows: a step's decode, and the experts of a token. A thread block takes 16 outputs at a time;
 * its 8 warps are the 8 segments of the definition (docs/arithmetic.md, section 4), so no order has to be restored. A warp
 * multiplies 16 rows of W with up to 8 tokens on the int8 tensor cores; a token's high and low planes are neighbouring columns,
 * so one lane ends up with both sums. Weights stream straight from the checkpoint's layout into registers, the first chunk
 * before the kernel waits for its input; many warps hide each other's loads. */
#include "cuda/common.cuh"

enum { WARPS = 8, THREADS = 32 * WARPS };

/* A scale as loaded, not yet a float, so that the loop does not wait for it. */
__device__ __forceinline__ uint32_t raw_scale(const uint8_t *p, int type, int64_t i)
{
    return type == CU_S_F32 ? load_u32(p + 4 * i) : type == CU_S_F16 || type == CU_S_BF16 ? load_u16(p + 2 * i) : p[i];
}
__device__ __forceinline__ float scale_of(uint32_t raw, int type) /* affine and planes: selected, not branched to */
{
    float half = __half2float(__ushort_as_half((unsigned short)raw));
    uint32_t bits = type == CU_S_BF16 ? raw << 16 : raw;
    return type == CU_S_F16 ? half : __uint_as_float(bits);
}
__device__ __forceinline__ float any_scale_of(uint32_t raw, int type)
{
    return type == CU_S_E8M0 ? 0.5f * e8m0((uint8_t)raw) : type == CU_S_E4M3 ? 0.5f * e4m3((uint8_t)raw) : scale_of(raw, type);
}

/* Where a block works. */
struct place {
    const uint8_t *codes, *scales, *biases; /* of row 0 of this matrix (of this expert) */
    int row0, rows;                         /* rows of the step, or of the sorted list */
    int x_shift;                            /* > 0: the pass over remainders, which stand so far behind the rows themselves */
};

__device__ __forceinline__ const int8_t *x_planes(const cu_linear &a, int row) { return a.x.planes + (size_t)row * a.x.stride; }

/* ---- the chain of one segment for two outputs and NT*4 tokens ---- */

struct token {
    const int8_t *planes; /* this lane's column: high or low plane */
    const float *dx, *xs; /* this lane's token as an accumulator's owner */
};

template <bool AFFINE> __device__ __forceinline__ void fold(float (&acc)[2], float d0, float d1, float dx, float xs, float s0, float b0, float s1, float b1)
{
    float p0 = dx * d0, p1 = dx * d1;
    if (AFFINE) {
        acc[0] = cb_fma(b0, xs, acc[0]);
        acc[1] = cb_fma(b1, xs, acc[1]);
    }
    acc[0] = cb_fma(s0, p0, acc[0]);
    acc[1] = cb_fma(s1, p1, acc[1]);
}

/* Formats with code of their own. WORDS: 32-bit words of a group that one lane of four takes (of one plane). */
template <int FMT, int BITS, int GROUP> struct format {
    static constexpr int PACK = FMT == CU_FMT_PLANES ? 1 : 8 / BITS, WORDS = GROUP * (FMT == CU_FMT_PLANES ? 8 : BITS) / 128;
    static constexpr int N_PLANES = FMT == CU_FMT_PLANES ? 2 : 1, CHUNK = WORDS * N_PLANES > 2 ? 2 : 4;
    static constexpr bool AFFINE = FMT == CU_FMT_AFFINE;
    uint32_t w[CHUNK][2][N_PLANES][WORDS];
    uint32_t s[2], b[2]; /* scales of group g0 + lane%4, rows r and r+8 */

    __device__ __forceinline__ void load(const cu_weight &m, const place &at, int n0, int n1, int g0, int g1)
    {
        int c = threadIdx.x & 3;
#pragma unroll
        for (int u = 0; u < CHUNK; u++) {
            int g = g0 + u < g1 ? g0 + u : g1 - 1;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint8_t *p = at.codes + (h ? n1 : n0) * m.row_bytes + (size_t)g * (N_PLANES * WORDS * 16) + c * WORDS * 4;
#pragma unroll
                for (int q = 0; q < N_PLANES; q++) load_words(w[u][h][q], p + q * WORDS * 16);
            }
        }
        int g = g0 + c < g1 ? g0 + c : g1 - 1;
        int64_t i0 = (int64_t)n0 * m.n_groups + g, i1 = (int64_t)n1 * m.n_groups + g;
        s[0] = raw_scale(at.scales, m.scale_type, i0);
        s[1] = raw_scale(at.scales, m.scale_type, i1);
        if (AFFINE) {
            b[0] = raw_scale(at.biases, m.scale_type, i0);
            b[1] = raw_scale(at.biases, m.scale_type, i1);
        }
    }

    template <int NT> __device__ __forceinline__ void multiply(const cu_weight &m, const token (&t)[NT], float (&acc)[NT][2], int g0, int g1) const
    {
        int lane = threadIdx.x & 31, c = lane & 3, quad = lane & ~3;
        float fs[2] = {scale_of(s[0], m.scale_type), scale_of(s[1], m.scale_type)}, fb[2] = {0, 0};
        if (AFFINE) fb[0] = scale_of(b[0], m.scale_type), fb[1] = scale_of(b[1], m.scale_type);
#pragma unroll
        for (int u = 0; u < CHUNK; u++) {
            if (g0 + u >= g1) break;
            int g = g0 + u, mb = g * (GROUP / PACK) + c * WORDS * 4;
            float s0 = __shfl_sync(FULL, fs[0], quad + u), s1 = __shfl_sync(FULL, fs[1], quad + u), b0 = 0, b1 = 0;
            if (AFFINE) b0 = __shfl_sync(FULL, fb[0], quad + u), b1 = __shfl_sync(FULL, fb[1], quad + u);
#pragma unroll
            for (int k = 0; k < NT; k++) {
                const int8_t *x = t[k].planes + (mb >> 6) * (128 * PACK) + (mb & 63);
                uint32_t xw[PACK][WORDS];
#pragma unroll
                for (int j = 0; j < PACK; j++)
                    if constexpr (WORDS == 4) *(uint4 *)xw[j] = *(const uint4 *)(x + 64 * j);
                    else if constexpr (WORDS == 2) *(uint2 *)xw[j] = *(const uint2 *)(x + 64 * j);
                    else xw[j][0] = *(const uint32_t *)(x + 64 * j);
                int d[N_PLANES][4] = {};
#pragma unroll
                for (int i = 0; i < WORDS * PACK; i += 2) {
                    const int w0 = i / PACK, j0 = i % PACK, w1 = (i + 1) / PACK, j1 = (i + 1) % PACK;
#pragma unroll
                    for (int q = 0; q < N_PLANES; q++) {
                        uint32_t a[4];
#pragma unroll
                        for (int h = 0; h < 2; h++) {
                            constexpr uint32_t mask = BITS == 8 ? ~0u : ((1u << BITS % 8) - 1) * 0x01010101u;
                            a[h] = w[u][h][q][w0] >> BITS % 8 * j0 & mask;
                            a[2 + h] = w[u][h][q][w1] >> BITS % 8 * j1 & mask;
                        }
                        if (FMT == CU_FMT_PLANES) mma_s8s8(d[q], a[0], a[1], a[2], a[3], xw[j0][w0], xw[j1][w1]);
                        else mma_u8s8(d[q], a[0], a[1], a[2], a[3], xw[j0][w0], xw[j1][w1]);
                    }
                }
                float d0, d1;
                if constexpr (N_PLANES == 2) {
                    d0 = planes_to_f32(d[0][0], d[0][1] + d[1][0], d[1][1]);
                    d1 = planes_to_f32(d[0][2], d[0][3] + d[1][2], d[1][3]);
                } else {
                    d0 = (float)(256 * d[0][0] + d[0][1]);
                    d1 = (float)(256 * d[0][2] + d[0][3]);
                }
                fold<AFFINE>(acc[k], d0, d1, t[k].dx[g], AFFINE ? t[k].xs[g] : 0, s0, b0, s1, b1);
            }
        }
    }
};

/* ---- any other format: the same steps with everything looked up at run time ---- */

__device__ __forceinline__ uint32_t fp4_bytes(uint32_t codes) /* four nibbles, one a byte, to twice their values */
{
    uint32_t v = codes & 0x07070707, sel = (v | v >> 4) & 0x00ff00ff;
    sel = (sel | sel >> 8) & 0xffff;
    uint32_t pos = __byte_perm(0x03020100, 0x0c080604, sel), neg = __byte_perm(0xfdfeff00, 0xf4f8fafc, sel);
    uint32_t mask = (codes >> 3 & 0x01010101) * 255;
    return (pos & ~mask) | (neg & mask);
}

/* Codes word i (four codes) of group g: elements of one plane for packed formats, four neighbours for the others. */
__device__ __forceinline__ uint32_t code_word(const cu_weight &m, const uint8_t *row, int g, int i)
{
    if (m.pack > 1) {
        size_t word = (size_t)g * (m.group * m.bits / 32) + i / m.pack;
        uint32_t v = load_u32(row + 4 * word) >> m.bits * (i % m.pack) & ((1u << m.bits) - 1) * 0x01010101u;
        return m.fmt == CU_FMT_FP4 ? fp4_bytes(v) : v;
    }
    uint32_t out = 0;
    size_t bit = ((size_t)g * m.group + 4 * i) * m.bits;
    for (int j = 0; j < 4; j++, bit += m.bits) {
        size_t at = bit >> 3;
        unsigned v = row[at];
        if (at + 1 < (size_t)m.row_bytes) v |= (unsigned)row[at + 1] << 8;
        out |= (v >> (bit & 7) & ((1u << m.bits) - 1)) << 8 * j;
    }
    return out;
}

template <int NT>
__device__ __forceinline__ void multiply_any(const cu_weight &m, const place &at, int n0, int n1, const token (&t)[NT], float (&acc)[NT][2], int g)
{
    int c = threadIdx.x & 3, words = m.group / 4;
    const uint8_t *r0 = at.codes + n0 * m.row_bytes, *r1 = at.codes + n1 * m.row_bytes;
    bool planes = m.fmt == CU_FMT_PLANES;
    int d[NT][2][4] = {};
    for (int i = c; i < words; i += 8) {
        uint32_t a[2][4] = {}, x[NT][2] = {};
#pragma unroll
        for (int h = 0; h < 2; h++) { /* words i and i + 4 are the two halves of a multiplication */
            int q = i + 4 * h;
            if (q >= words) continue;
            if (planes) {
                a[0][2 * h] = load_u32(r0 + g * 128 + 4 * q);
                a[1][2 * h] = load_u32(r0 + g * 128 + 64 + 4 * q);
                a[0][2 * h + 1] = load_u32(r1 + g * 128 + 4 * q);
                a[1][2 * h + 1] = load_u32(r1 + g * 128 + 64 + 4 * q);
            } else {
                a[0][2 * h] = code_word(m, r0, g, q);
                a[0][2 * h + 1] = code_word(m, r1, g, q);
            }
            int mb = g * (m.group / m.pack) + q / m.pack * 4;
#pragma unroll
            for (int k = 0; k < NT; k++)
                x[k][h] = *(const uint32_t *)(t[k].planes + (mb >> 6) * (128 * m.pack) + (q % m.pack) * 64 + (mb & 63));
        }
#pragma unroll
        for (int k = 0; k < NT; k++) {
            if (planes) {
                mma_s8s8(d[k][0], a[0][0], a[0][1], a[0][2], a[0][3], x[k][0], x[k][1]);
                mma_s8s8(d[k][1], a[1][0], a[1][1], a[1][2], a[1][3], x[k][0], x[k][1]);
            } else if (m.fmt == CU_FMT_FP4) mma_s8s8(d[k][0], a[0][0], a[0][1], a[0][2], a[0][3], x[k][0], x[k][1]);
            else mma_u8s8(d[k][0], a[0][0], a[0][1], a[0][2], a[0][3], x[k][0], x[k][1]);
        }
    }
    int64_t i0 = (int64_t)n0 * m.n_groups + g, i1 = (int64_t)n1 * m.n_groups + g;
    float s0 = any_scale_of(raw_scale(at.scales, m.scale_type, i0), m.scale_type), s1 = any_scale_of(raw_scale(at.scales, m.scale_type, i1), m.scale_type);
    float b0 = 0, b1 = 0;
    if (m.fmt == CU_FMT_AFFINE) {
        b0 = any_scale_of(raw_scale(at.biases, m.scale_type, i0), m.scale_type);
        b1 = any_scale_of(raw_scale(at.biases, m.scale_type, i1), m.scale_type);
    } else if (m.fmt == CU_FMT_FP4) {
        s0 = s0 * m.global_scale;
        s1 = s1 * m.global_scale;
    }
#pragma unroll
    for (int k = 0; k < NT; k++) {
        float d0 = planes ? planes_to_f32(d[k][0][0], d[k][0][1] + d[k][1][0], d[k][1][1]) : (float)(256 * d[k][0][0] + d[k][0][1]);
        float d1 = planes ? planes_to_f32(d[k][0][2], d[k][0][3] + d[k][1][2], d[k][1][3]) : (float)(256 * d[k][0][2] + d[k][0][3]);
        float dx = t[k].dx[g];
        if (m.fmt == CU_FMT_AFFINE) fold<true>(acc[k], d0, d1, dx, t[k].xs[g], s0, b0, s1, b1);
        else fold<false>(acc[k], d0, d1, dx, 0, s0, b0, s1, b1);
    }
}

/* ---- a block's work ---- */

template <int NT> __device__ __forceinline__ void find_tokens(const cu_linear &a, const place &at, token (&t)[NT])
{
    int lane = threadIdx.x & 31, col = lane >> 2, c = lane & 3;
#pragma unroll
    for (int k = 0; k < NT; k++) {
        int as_column = 4 * k + (col >> 1), as_owner = 4 * k + c, last = at.rows - 1;
        int r = at.row0 + (as_column < last ? as_column : last), o = at.row0 + (as_owner < last ? as_owner : last);
        if (a.x_row) {
            r = a.x_row[r];
            o = a.x_row[o];
        }
        r += at.x_shift;
        o += at.x_shift;
        t[k].planes = x_planes(a, r) + (col & 1) * 64 * a.x.pack;
        t[k].dx = a.x.dx + (size_t)o * a.x.n_groups;
        t[k].xs = a.x.xs + (size_t)o * a.x.n_groups;
    }
}

/* acc of all segments meet in shared memory; the first threads add them in order and store. */
template <int NT> __device__ __forceinline__ void finish(const cu_linear &a, const place &at, int n_tile, const float (&acc)[NT][2], float *red)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x & 31, r = lane >> 2, c = lane & 3;
#pragma unroll
    for (int k = 0; k < NT; k++) {
        red[(warp * NT * 4 + 4 * k + c) * 16 + r] = acc[k][0];
        red[(warp * NT * 4 + 4 * k + c) * 16 + r + 8] = acc[k][1];
    }
    __syncthreads();
    int t = threadIdx.x / 16, n = n_tile * 16 + threadIdx.x % 16;
    if (t >= at.rows || t >= 4 * NT || n >= a.w.n_out) return;
    float y = red[threadIdx.x];
#pragma unroll
    for (int s = 1; s < WARPS; s++) y = y + red[s * NT * 64 + threadIdx.x];
    int yr = at.row0 + t;
    if (at.x_shift && !a.x.flag[yr]) return;
    float *out = a.y + (size_t)(a.y_row ? a.y_row[yr] : yr) * a.y_stride + n;
    *out = a.add || at.x_shift ? *out + y : y;
}

template <typename F, int NT> __device__ __forceinline__ void run(const cu_linear &a, const place &at, int block, int n_blocks, float (*red)[WARPS * NT * 64])
{
    const cu_weight &m = a.w;
    int warp = threadIdx.x / 32, r = (threadIdx.x & 31) >> 2, G = m.n_groups, n_tiles = (m.n_out + 15) / 16;
    int g_first = warp * G / CU_SEGMENTS, g_last = (warp + 1) * G / CU_SEGMENTS;
    auto row_of = [&](int tile, int h) {
        int n = tile * 16 + r + 8 * h;
        return n < m.n_out ? n : m.n_out - 1;
    };
    F f;
    bool some = g_first < g_last;
    if (some && block < n_tiles) f.load(m, at, row_of(block, 0), row_of(block, 1), g_first, g_last);
    pdl_wait();
    token t[NT];
    find_tokens<NT>(a, at, t);
    for (int tile = block, parity = 0; tile < n_tiles; tile += n_blocks, parity ^= 1) {
        float acc[NT][2] = {};
        for (int g = g_first; g < g_last; g += F::CHUNK) {
            if (tile != block || g != g_first) f.load(m, at, row_of(tile, 0), row_of(tile, 1), g, g_last);
            f.template multiply<NT>(m, t, acc, g, g_last);
        }
        finish<NT>(a, at, tile, acc, red[parity]);
    }
}

template <int NT> __device__ __forceinline__ void run_any(const cu_linear &a, const place &at, int block, int n_blocks, float (*red)[WARPS * NT * 64])
{
    const cu_weight &m = a.w;
    int warp = threadIdx.x / 32, r = (threadIdx.x & 31) >> 2, G = m.n_groups, n_tiles = (m.n_out + 15) / 16;
    pdl_wait();
    token t[NT];
    find_tokens<NT>(a, at, t);
    for (int tile = block, parity = 0; tile < n_tiles; tile += n_blocks, parity ^= 1) {
        int n0 = tile * 16 + r, n1 = n0 + 8;
        n0 = n0 < m.n_out ? n0 : m.n_out - 1;
        n1 = n1 < m.n_out ? n1 : m.n_out - 1;
        float acc[NT][2] = {};
        for (int g = warp * G / CU_SEGMENTS; g < (warp + 1) * G / CU_SEGMENTS; g++) multiply_any<NT>(m, at, n0, n1, t, acc, g);
        finish<NT>(a, at, tile, acc, red[parity]);
    }
}

enum { Q4G64, Q4G32, Q2G128, Q8G64, PLANES, OTHER };
__device__ __forceinline__ int format_of(const cu_weight &w)
{
    if (w.fmt == CU_FMT_PLANES) return PLANES;
    if (w.fmt != CU_FMT_AFFINE) return OTHER;
    return w.bits == 4 ? (w.group == 64 ? Q4G64 : w.group == 32 ? Q4G32 : OTHER)
           : w.bits == 2 && w.group == 128 ? Q2G128
           : w.bits == 8 && w.group == 64  ? Q8G64
                                           : OTHER;
}

/* blockIdx.y is a chunk of 4*NT rows, or with experts one of the tiles that k_moe_sort listed. */
template <int NT> __device__ __forceinline__ void kernel(const cu_linears &all)
{
    __shared__ float red[2][WARPS * NT * 64];
    pdl_trigger();
    int part = 0;
    while (part + 1 < all.n_parts && (int)blockIdx.x >= all.block0[part + 1]) part++;
    const cu_linear &a = all.part[part];
    place at = {a.w.codes, a.w.scales, a.w.biases, 0, 0, 0};
    if (a.tiles) {
        pdl_wait();
        int4 tile = ((const int4 *)a.tiles)[blockIdx.y];
        int e = tile.x;
        if (e < 0) return;
        at.row0 = tile.y;
        at.rows = tile.z;
        int64_t first = e * a.w.expert_rows, s = first * a.w.n_groups * (a.w.scale_type == CU_S_F32 ? 4 : a.w.scale_type <= CU_S_BF16 ? 2 : 1);
        at.codes += first * a.w.row_bytes;
        at.scales += s;
        at.biases += a.w.biases ? s : 0;
    } else {
        at.row0 = (int)blockIdx.y * 4 * NT;
        at.rows = a.n_rows - at.row0;
        if (at.rows <= 0) return; /* beside experts, whose tiles are more */
    }
    at.rows = at.rows < 4 * NT ? at.rows : 4 * NT;
    int block = (int)blockIdx.x - all.block0[part], n_blocks = all.block0[part + 1] - all.block0[part];
#pragma unroll 1
    for (;;) {
        switch (format_of(a.w)) {
        case Q4G64: run<format<CU_FMT_AFFINE, 4, 64>, NT>(a, at, block, n_blocks, red); break;
        case Q4G32: run<format<CU_FMT_AFFINE, 4, 32>, NT>(a, at, block, n_blocks, red); break;
        case Q2G128: run<format<CU_FMT_AFFINE, 2, 128>, NT>(a, at, block, n_blocks, red); break;
        case Q8G64: run<format<CU_FMT_AFFINE, 8, 64>, NT>(a, at, block, n_blocks, red); break;
        case PLANES: run<format<CU_FMT_PLANES, 8, 64>, NT>(a, at, block, n_blocks, red); break;
        default: run_any<NT>(a, at, block, n_blocks, red);
        }
        if (!a.x.flag || at.x_shift) return;
        bool more = false; /* a remainder? Then the same outputs again: what this block adds to, it wrote itself */
        for (int r = 0; r < at.rows; r++) more |= a.x.flag[at.row0 + r] != 0;
        if (!more) return;
        at.x_shift = a.x.n_rows;
        __syncthreads(); /* red */
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 4) k_gemv4(const __grid_constant__ cu_linears a) { kernel<1>(a); }
extern "C" __global__ void __launch_bounds__(THREADS, 3) k_gemv8(const __grid_constant__ cu_linears a) { kernel<2>(a); }
