/* stream_chains.cuh: what a warp of stream.cu does with one tile of 16 outputs in shared memory and some columns of activations: the chains of
 * some of its segments (docs/arithmetic.md, section 4), on the int8 tensor cores.
 *
 * Of a product of 16x32 and 32x8 bytes column pair c is a column's high and low plane, and lane c of four finishes it. When there are fewer
 * columns than lanes, the lanes finish different segments. */
#ifndef CB_CUDA_STREAM_CHAINS_CUH
#define CB_CUDA_STREAM_CHAINS_CUH
#include "cuda/common.cuh"

/* ---- formats ---- */

/* WORDS: 32-bit words that one lane of four has of a group of a row (of one plane); BYTES: of the group in a row, X_BYTES: of both planes
 * of the activations. There a lane has LANE bytes in a row, in the order of its multiplications: [part][plane][lane of four][LANE]. */
template <int FMT, int BITS, int GROUP, int SCALE> struct format {
    static constexpr bool PLANES = FMT == CU_FMT_PLANES, AFFINE = FMT == CU_FMT_AFFINE;
    static constexpr int PACK = PLANES ? 1 : 8 / BITS, N_PLANES = PLANES ? 2 : 1, BYTES = PLANES ? 128 : GROUP * BITS / 8;
    static constexpr int WORDS = BYTES / 16 / N_PLANES, STEPS = PACK * WORDS, X_BYTES = 2 * GROUP, LANE = STEPS < 4 ? 4 * STEPS : 16;
    static constexpr int VALUES = GROUP, SB = SCALE == CU_S_F32 ? 4 : 2, BLOCK = 8 * PACK, PER = GROUP / PACK; /* pieces of a block of planes; bytes of a group in each of its parts */

    __device__ static __forceinline__ float scale(uint32_t at)
    {
        if (SCALE == CU_S_F32) return lds_float(at);
        uint32_t raw = lds_u16(at);
        return SCALE == CU_S_BF16 ? __uint_as_float(raw << 16) : __half2float(__ushort_as_half((unsigned short)raw));
    }
    /* Where 16-byte piece number i of a row of planes goes, counted from the column's first byte. Returns its group. */
    static __device__ __forceinline__ int place(int i, uint32_t &to)
    {
        int plane = i % BLOCK / (4 * PACK), j = i % (4 * PACK) / 4, at = i / BLOCK * 64 + i % 4 * 16, g = at / PER, c = at % PER / (4 * WORDS);
        to = g * X_BYTES + j * WORDS * 4 / LANE * (8 * LANE) + plane * 4 * LANE + j * WORDS * 4 % LANE + c * LANE;
        return g;
    }
    static __device__ __forceinline__ void put(uint32_t to, const uint4 &v)
    {
        const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int k = 0; k < 4 / WORDS; k++) sts<WORDS>(to + k * LANE, words + k * WORDS);
    }
};

/* ---- the chains of some segments ---- */

/* Columns of a tile: addresses of the first one's planes, of zeros, and of its dx with X behind; how many there are, and bytes from one to the next. */
struct columns_view {
    uint32_t x, zeros, dx;
    int n, x_stride;
};

/* Integer sums of one group of rows r and r + 8 with the columns of NB products, as a lane holds them. Codes that are the upper bits of a byte
 * are multiplied where they stand, in a chain of their own, whose sums are 2^SHIFT, 2^(2*SHIFT) .. times as large. */
template <class F, int NB> struct sums {
    static constexpr bool IN_PLACE = F::PACK > 1 && F::WORDS > 1;
    static constexpr int CHAINS = F::PLANES ? 1 : IN_PLACE ? F::PACK : F::PACK == 1 ? 2 : 1, SHIFT = IN_PLACE ? 8 / F::PACK : 0;
    int d[NB][F::N_PLANES][CHAINS][4];

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int b = 0; b < NB; b++)
#pragma unroll
            for (int p = 0; p < F::N_PLANES; p++)
#pragma unroll
                for (int c = 0; c < CHAINS; c++)
#pragma unroll
                    for (int i = 0; i < 4; i++) d[b][p][c][i] = 0;
    }
    __device__ __forceinline__ float value(int b, int h) const
    {
        if constexpr (F::PLANES) return planes_to_f32(d[b][0][0][2 * h], d[b][0][0][2 * h + 1] + d[b][1][0][2 * h], d[b][1][0][2 * h + 1]);
        int t = 256 * d[b][0][0][2 * h] + d[b][0][0][2 * h + 1];
#pragma unroll
        for (int c = 1; c < CHAINS; c++) t += 256 * d[b][0][c][2 * h] + d[b][0][c][2 * h + 1] >> c * SHIFT;
        return (float)t;
    }
};

/* What one lane has of a group: its words of rows r and r + 8, and of its plane of NB columns. */
template <class F, int NB> struct operands {
    static constexpr int PART = F::LANE / 4; /* words */
    uint32_t w[2][F::N_PLANES][F::WORDS], x[NB][F::STEPS / PART][PART];

    __device__ __forceinline__ void load(uint32_t codes, uint32_t codes8, const uint32_t (&at)[NB])
    {
#pragma unroll
        for (int q = 0; q < F::N_PLANES; q++) {
            lds<F::WORDS>(w[0][q], codes + 64 * q);
            lds<F::WORDS>(w[1][q], codes8 + 64 * q);
        }
#pragma unroll
        for (int b = 0; b < NB; b++)
#pragma unroll
            for (int k = 0; k < F::STEPS / PART; k++) lds<PART>(x[b][k], at[b] + k * 8 * F::LANE);
    }
    __device__ __forceinline__ void add_to(sums<F, NB> &s) const
    {
        constexpr bool in_place = sums<F, NB>::IN_PLACE;
        constexpr int BITS = F::PLANES ? 8 : 8 / F::PACK;
        constexpr uint32_t mask = BITS == 8 ? ~0u : ((1u << BITS % 8) - 1) * 0x01010101u;
#pragma unroll
        for (int i = 0; i < F::STEPS; i += 2) {
            const int w0 = i % F::WORDS, j0 = i / F::WORDS, w1 = (i + 1) % F::WORDS, j1 = (i + 1) / F::WORDS;
            const int chain = in_place ? j0 : i / 2 % sums<F, NB>::CHAINS;
#pragma unroll
            for (int q = 0; q < F::N_PLANES; q++) {
                uint32_t a[4];
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    a[h] = in_place ? w[h][q][w0] & mask << BITS % 8 * j0 : w[h][q][w0] >> BITS % 8 * j0 & mask;
                    a[2 + h] = in_place ? w[h][q][w1] & mask << BITS % 8 * j1 : w[h][q][w1] >> BITS % 8 * j1 & mask;
                }
#pragma unroll
                for (int b = 0; b < NB; b++) {
                    uint32_t x0 = x[b][i / PART][i % PART], x1 = x[b][(i + 1) / PART][(i + 1) % PART];
                    if (F::PLANES) mma_s8s8(s.d[b][q][chain], a[0], a[1], a[2], a[3], x0, x1);
                    else mma_u8s8(s.d[b][q][chain], a[0], a[1], a[2], a[3], x0, x1);
                }
            }
        }
    }
};

/* Of a tile that came as a box (BOX: [128 bytes of a row][16 rows], 16-byte chunks XORed with the row's low three bits; the scales of all rows behind each
 * other, then the biases): the row that row r of eight of a product is, so that four neighbours, 32 bytes each, or two, 64 bytes each, meet different banks. */
template <class F> __device__ __forceinline__ int box_row(int r) { return F::WORDS == 2 ? (r & 3) * 2 + (r >> 2) : (r & 1) * 4 + (r >> 1); }

/* What a lane does of segments l0 .. l0+SEGS of up to COLS columns; places in a stage are counted from its beginning. Of several segments the
 * products are added up in the same place: where a column pair does not belong to the segment at hand there are zeros. */
template <class F, int COLS, int SEGS, bool BOX = false> struct chains {
    static constexpr int FOUR = COLS < 4 ? COLS : 4, NB = COLS > 4 ? 2 : 1, AT_ONCE = SEGS == 1 && NB == 1 ? 2 : 1; /* groups */
    uint32_t codes[SEGS], x[NB], zeros, dx[NB], scales; /* codes and scales: in the stage at hand, which begins at `stage`; of a box codes count from the row's first one */
    uint32_t row, turned;    /* of a box: the row's first bytes, and what its chunks are XORed with, and the lane's place */
    uint32_t stage, to8, scales8, biases; /* from a row to the one 8 further, from a scale to its bias */
    int own, loads, n, n_mine;     /* which segment this lane finishes, and whose activations it loads; groups of one at most, and of that one */

    __device__ __forceinline__ void begin(const columns_view &k, const cu_cut &cut, int G, int l0)
    {
        int lane = threadIdx.x & 31;
        if (BOX) forget(lane);
        int r = lane >> 2, c = lane & 3, col = c % FOUR;
        uint32_t mine_at = (lane >> 2 & 1) * 4 * F::LANE + c * F::LANE;
        static_assert(!BOX || F::WORDS == 2 || F::WORDS == 4, "box_row()");
        if (BOX) r = box_row<F>(r), row = 128 * r, turned = c * F::WORDS * 4 ^ (r & 7) << 4;
        own = c / FOUR % SEGS;
        loads = lane / 8 / FOUR % SEGS;
        stage = 0;
#pragma unroll
        for (int q = 0; q < SEGS; q++) {
            int g = (unsigned)((l0 + q) * G) / CU_SEGMENTS;
            codes[q] = (BOX ? 0 : r * cut.stride + c * F::WORDS * 4) + g * F::BYTES;
        }
        zeros = k.zeros + mine_at;
#pragma unroll
        for (int b = 0; b < NB; b++)
            x[b] = mine_at + k.x + min(4 * b + lane / 8 % FOUR, k.n - 1) * k.x_stride + (unsigned)((l0 + loads) * G) / CU_SEGMENTS * F::X_BYTES;
        int mine = (unsigned)((l0 + own) * G) / CU_SEGMENTS;
        n_mine = (unsigned)((l0 + own + 1) * G) / CU_SEGMENTS - mine;
        n = (unsigned)(G + CU_SEGMENTS - 1) / CU_SEGMENTS;
        scales = 16 * cut.stride + r * cut.scale_stride + mine * F::SB;
        to8 = 8 * (BOX ? 128 : cut.stride);
        scales8 = 8 * cut.scale_stride;
        biases = 16 * cut.scale_stride;
#pragma unroll
        for (int b = 0; b < NB; b++) dx[b] = k.dx + min(4 * b + col, k.n - 1) * (8 * G) + 4 * mine;
    }

    /* The sums of group i into acc. */
    __device__ __forceinline__ void fold(const sums<F, NB> &d, int G, int i, float (&acc)[NB][2]) const
    {
        float w[2], v[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t at = scales + i * F::SB + h * scales8;
            w[h] = F::scale(at);
            v[h] = F::AFFINE ? F::scale(at + biases) : 0;
        }
#pragma unroll
        for (int b = 0; b < NB; b++) {
            float f = lds_float(dx[b] + 4 * i), X = F::AFFINE ? lds_float(dx[b] + 4 * (G + i)) : 0;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float p = f * d.value(b, h), y = acc[b][h];
                if (F::AFFINE) y = cb_fma(v[h], X, y);
                y = cb_fma(w[h], p, y);
                acc[b][h] = i < n_mine ? y : acc[b][h];
            }
        }
    }

    __device__ __forceinline__ void load(operands<F, NB> &o, int q) const
    {
        uint32_t at[NB];
#pragma unroll
        for (int b = 0; b < NB; b++) at[b] = SEGS == 1 || loads == q ? x[b] : zeros;
        uint32_t from = BOX ? row + ((codes[q] & ~127u) << 4) + (codes[q] & 128 - 16 * F::WORDS ^ turned) : codes[q];
        o.load(from, from + to8, at);
    }

    __device__ __forceinline__ void advance(int groups)
    {
#pragma unroll
        for (int q = 0; q < SEGS; q++) codes[q] += groups * F::BYTES;
#pragma unroll
        for (int b = 0; b < NB; b++) x[b] += groups * F::X_BYTES;
    }

    __device__ __forceinline__ void go(uint32_t next_stage, int G, float (&acc)[NB][2])
    {
        uint32_t to = next_stage - stage;
        stage = next_stage;
        scales += to;
#pragma unroll
        for (int b = 0; b < NB; b++) acc[b][0] = acc[b][1] = 0;
#pragma unroll
        for (int q = 0; q < SEGS && !BOX; q++) codes[q] += to;
        if (BOX) row += to;
        operands<F, NB> at_hand, ahead; /* loads are a segment ahead of products, also from one group to the next */
        load(at_hand, 0);
#pragma unroll 1
        for (int i = 0; i < n; i += AT_ONCE) {
            sums<F, NB> d[AT_ONCE];
#pragma unroll
            for (int u = 0; u < AT_ONCE; u++) {
                d[u].clear();
#pragma unroll
                for (int q = 0; q < SEGS; q++) {
                    if (q == SEGS - 1) advance(1);
                    load(ahead, (q + 1) % SEGS); /* behind the last group: something, not used */
                    at_hand.add_to(d[u]);
                    at_hand = ahead;
                }
            }
#pragma unroll
            for (int u = 0; u < AT_ONCE; u++) fold(d[u], G, i + u, acc);
        }
        advance(-((n + AT_ONCE - 1) / AT_ONCE * AT_ONCE));
    }

    /* To the column so many further, of one row; x_stride, dx_stride: bytes from one to the next. */
    __device__ __forceinline__ void other_column(int further, int x_stride, int dx_stride)
    {
        x[0] += further * x_stride;
        dx[0] += further * dx_stride;
    }

    /* On to the segments behind these, or back, n times: all segments have as many groups. */
    __device__ __forceinline__ void move_on(int times)
    {
        int groups = times * SEGS * n;
        advance(groups);
        scales += groups * F::SB;
#pragma unroll
        for (int b = 0; b < NB; b++) dx[b] += groups * 4;
    }

    /* Sums of a stage: [segment][column][16]; of columns from `first` on. */
    __device__ __forceinline__ void store(uint32_t sums, int n_cols, int first, int l0, const float (&acc)[NB][2]) const
    {
        int lane = threadIdx.x & 31, r = BOX ? box_row<F>(lane >> 2) : lane >> 2, c = lane & 3;
#pragma unroll
        for (int b = 0; b < NB; b++) {
            int col = first + 4 * b + c % FOUR;
            uint32_t to = sums + (((l0 + own) * n_cols + col) * 16 + r) * 4;
            if (c >= FOUR * SEGS || col >= n_cols) continue;
            sts_float(to, acc[b][0]);
            sts_float(to + 32, acc[b][1]);
        }
    }
};
#endif
