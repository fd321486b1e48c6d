/* gemm_avx2.c: products with many rows. A panel is one segment of groups of 16 outputs, unpacked once to 16-bit numbers and
 * used for a block of rows; VPMADDWD with 16-bit activations gives D itself (or, for CB_FMT_PLANES, its two halves), so the
 * fold is a conversion, a multiplication and two fma. Read linear_avx2.h first.
 *
 * Panel: [pair][2][8][2] int16: pair of codes, half of the outputs, output, element. Pairs stand in the quad order of
 * cb_words_avx2: a quad has 2*pack pairs. */
#include "kernels/linear_avx2.h"

enum { OUT = 16, BLOCK = 32, QUAD_ROWS = 4 }; /* outputs of a panel, activation vectors of a block, of one inner loop */

typedef struct gemm {
    const cb_mm *mm;
    int pack, group_bytes;   /* codes in a byte; bytes of a group of a weight row, one plane */
    size_t rb;               /* bytes of a weight row, one plane */
    int16_t *words;          /* [BLOCK][word_stride] */
    size_t word_stride;
    int16_t *panel;
    float *s, *b;            /* [groups of the segment][OUT] */
    float *y;                /* [BLOCK][OUT] */
    uint8_t *bytes;          /* [OUT][k64]: expanded codes of 3, 5, 6 bits */
} gemm;

/* ---- panel --------------------------------------------------------------------------------------------------------- */

/* The quad t of eight rows goes to its 2*pack pairs at out. */
CB_INLINE void unpack_quad(__m256i t, int bits, bool fp4, int16_t *out)
{
    const int pack = 8 / bits;
    const __m256i mask = _mm256_set1_epi16((short)((1 << bits) - 1));
    if (fp4) {
        const __m128i twice = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
        for (int j = 0; j < 2; j++) {
            __m256i v = _mm256_and_si256(_mm256_srli_epi16(t, 4 * j), _mm256_set1_epi8(15));
            v = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(twice), v);
            _mm256_store_si256((void *)(out + 64 * j), _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8));
            _mm256_store_si256((void *)(out + 64 * j + 32), _mm256_srai_epi16(v, 8));
        }
        return;
    }
#pragma GCC unroll 8
    for (int j = 0; j < pack; j++) {
        _mm256_store_si256((void *)(out + 64 * j), _mm256_and_si256(_mm256_srli_epi16(t, bits * j), mask));
        _mm256_store_si256((void *)(out + 64 * j + 32), _mm256_and_si256(_mm256_srli_epi16(t, 8 + bits * j), mask));
    }
}

/* Bytes from..to of sixteen rows, from a multiple of 16. */
CB_INLINE void unpack(const gemm *g, const uint8_t *w, size_t from, size_t to, int bits, bool fp4)
{
    const int pack = 8 / bits;
    int16_t *out = g->panel;
    for (size_t off = from; off < to; off += 16)
        for (int half = 0; half < 2; half++) {
            __m256i t[4];
            cb_load_unit_at(w + (size_t)half * 8 * g->rb, g->rb, off, t);
            for (int q = 0; q < 4; q++)
                unpack_quad(t[q], bits, fp4, out + (off - from + 4 * (size_t)q) / 4 * (64 * (size_t)pack) + 16 * half);
        }
}

/* Groups of CB_FMT_PLANES: w = 256*high + low - 32768 */
static void unpack_planes(const gemm *g, const uint8_t *w, int g0, int g1)
{
    size_t row = g->mm->row_bytes;
    int16_t *out = g->panel;
    for (int i = g0; i < g1; i++)
        for (int u = 0; u < 4; u++, out += 4 * 64)
            for (int half = 0; half < 2; half++) {
                __m256i h[4], l[4];
                const uint8_t *p = w + (size_t)half * 8 * row + (size_t)i * 128 + 16 * u;
                cb_load_unit(p, row, h);
                cb_load_unit(p + 64, row, l);
                for (int q = 0; q < 4; q++) {
                    _mm256_store_si256((void *)(out + 64 * q + 16 * half), cb_planes_even(h[q], l[q]));
                    _mm256_store_si256((void *)(out + 64 * q + 32 + 16 * half), cb_planes_odd(h[q], l[q]));
                }
            }
}

/* Unpacks groups g0..g1; returns where group g0 begins in the panel, in bytes of a weight row after the panel's first. */
static size_t unpack_segment(const gemm *g, const uint8_t *w, int g0, int g1)
{
    const cb_mm *mm = g->mm;
    if (mm->fmt == CB_FMT_PLANES) {
        unpack_planes(g, w, g0, g1);
        return 0;
    }
    size_t at = (size_t)g0 * (size_t)g->group_bytes, to = (size_t)g1 * (size_t)g->group_bytes, from = at / 16 * 16;
    if (to > g->rb) to = g->rb;
    if (mm->fmt == CB_FMT_FP4) unpack(g, w, from, to, 4, true);
    else if (mm->bits == 1) unpack(g, w, from, to, 1, false);
    else if (mm->bits == 2) unpack(g, w, from, to, 2, false);
    else if (mm->bits == 4) unpack(g, w, from, to, 4, false);
    else unpack(g, w, from, to, 8, false);
    return at - from;
}

/* ---- inner loop ---------------------------------------------------------------------------------------------------- */

/* One activation vector with both halves of a pair; the sums are named, as gcc would keep an array in memory. */
#define MAC(X, S0, S1)                                                                                                    \
    do {                                                                                                                  \
        __m256i v = cb_bcast4(X + 2 * i);                                                                                 \
        S0 = _mm256_add_epi32(S0, _mm256_madd_epi16(v, w0));                                                              \
        S1 = _mm256_add_epi32(S1, _mm256_madd_epi16(v, w1));                                                              \
    } while (0)

/* a[row][half] = sum over n pairs of four activation vectors with the panel. Not inlined, so that the eight sums have the
 * registers for themselves. */
static __attribute__((noinline)) void mac(const int16_t *const x[4], const int16_t *w, int n, __m256i a[4][2])
{
    const int16_t *x0 = x[0], *x1 = x[1], *x2 = x[2], *x3 = x[3];
    __m256i a00 = _mm256_setzero_si256(), a01 = a00, a10 = a00, a11 = a00, a20 = a00, a21 = a00, a30 = a00, a31 = a00;
#pragma GCC unroll 4
    for (int i = 0; i < n; i++, w += 32) {
        __m256i w0 = _mm256_load_si256((const void *)w), w1 = _mm256_load_si256((const void *)(w + 16));
        MAC(x0, a00, a01);
        MAC(x1, a10, a11);
        MAC(x2, a20, a21);
        MAC(x3, a30, a31);
    }
    a[0][0] = a00, a[0][1] = a01, a[1][0] = a10, a[1][1] = a11;
    a[2][0] = a20, a[2][1] = a21, a[3][0] = a30, a[3][1] = a31;
}

typedef struct seg {
    int g0, g1, first; /* groups; whether this is the first segment */
    size_t skip;       /* pairs of the panel before group g0 */
} seg;

/* One segment of four activation vectors: four rows, or two rows in two parts each. dx, xs: of these rows. */
CB_INLINE void segment_rows(const gemm *g, const seg *sg, const int16_t *const x0[4], const float *const dx[4],
                            const float *const xs[4], float *y, bool planes, bool affine)
{
    const int n_rows = planes ? 2 : 4;
    __m256 acc[4][2];
    for (int i = 0; i < 8; i++) acc[i / 2][i % 2] = _mm256_setzero_ps();
    for (int i = sg->g0; i < sg->g1; i++) {
        int64_t e = (int64_t)i * g->mm->group, left = (int64_t)g->word_stride - e;
        int n = (int)(left < g->mm->group ? left : g->mm->group) / 2;
        const int16_t *x[4] = {x0[0] + e, x0[1] + e, x0[2] + e, x0[3] + e};
        __m256i a[4][2];
        mac(x, g->panel + 32 * (sg->skip + (size_t)(i - sg->g0) * (size_t)g->mm->group / 2), n, a);
        const float *s = g->s + (i - sg->g0) * OUT, *b = g->b + (i - sg->g0) * OUT;
        for (int r = 0; r < n_rows; r++)
            for (int h = 0; h < 2; h++) {
                __m256 d = planes ? v8_hl_to_f32(a[2 * r][h], a[2 * r + 1][h]) : _mm256_cvtepi32_ps(a[r][h]);
                __m256 p = _mm256_mul_ps(v8_set(dx[r][i]), d);
                if (affine) acc[r][h] = _mm256_fmadd_ps(_mm256_load_ps(b + 8 * h), v8_set(xs[r][i]), acc[r][h]);
                acc[r][h] = _mm256_fmadd_ps(_mm256_load_ps(s + 8 * h), p, acc[r][h]);
            }
    }
    for (int r = 0; r < n_rows; r++)
        for (int h = 0; h < 2; h++) {
            float *out = y + r * OUT + 8 * h;
            _mm256_store_ps(out, sg->first ? acc[r][h] : _mm256_add_ps(_mm256_load_ps(out), acc[r][h]));
        }
}

static void segment_block(const gemm *g, const seg *sg, int r0, int n)
{
    const cb_mm *mm = g->mm;
    bool planes = mm->fmt == CB_FMT_PLANES;
    int step = planes ? 2 : 4;
    for (int r = 0; r < n; r += step) {
        const int16_t *x[4];
        const float *dx[4], *xs[4];
        for (int i = 0; i < step; i++) { /* past the block the last row again: y has room, nobody reads it */
            int row = r + i < n ? r + i : n - 1;
            int64_t xr = mm->x_row ? mm->x_row[r0 + row] : r0 + row;
            dx[i] = mm->x.dx + xr * mm->n_groups, xs[i] = mm->x.xs + xr * mm->n_groups;
            if (planes) {
                x[2 * i] = g->words + (size_t)(2 * row) * g->word_stride;
                x[2 * i + 1] = x[2 * i] + g->word_stride;
            } else {
                x[i] = g->words + (size_t)row * g->word_stride;
            }
        }
        float *y = g->y + r * OUT;
        if (planes) segment_rows(g, sg, x, dx, xs, y, true, false);
        else if (mm->fmt == CB_FMT_FP4) segment_rows(g, sg, x, dx, xs, y, false, false);
        else segment_rows(g, sg, x, dx, xs, y, false, true);
    }
}

/* ---- driver -------------------------------------------------------------------------------------------------------- */

static void store(const gemm *g, int64_t n, int64_t from, int r0, int rows)
{
    const cb_mm *mm = g->mm;
    for (int r = 0; r < rows; r++) {
        float *out = mm->y + (size_t)(mm->y_row ? mm->y_row[r0 + r] : r0 + r) * mm->y_stride + n;
        const float *y = g->y + r * OUT;
        for (int j = (int)(from - n); j < OUT; j++) out[j] = mm->add ? out[j] + y[j] : y[j];
    }
}

/* Outputs n..n+16 of the block's rows, stored from output `from` on. */
static void panel_block(const gemm *g, int64_t n, int64_t from, int r0, int rows)
{
    const cb_mm *mm = g->mm;
    const uint8_t *w = mm->codes + (size_t)n * mm->row_bytes;
    int G = mm->n_groups;
    if (g->bytes) {
        for (size_t i = 0; i < OUT; i++) cb_unpack_row_avx2(w + i * mm->row_bytes, mm->k, mm->bits, g->bytes + i * g->rb);
        w = g->bytes;
    }
    for (int l = 0; l < 8; l++) {
        seg sg = {.g0 = (int)((int64_t)l * G / 8), .g1 = (int)((int64_t)(l + 1) * G / 8), .first = l == 0};
        sg.skip = unpack_segment(g, w, sg.g0, sg.g1) / 4 * 2 * (size_t)g->pack;
        for (int h = 0; h < OUT; h += 8) {
            float factor = mm->fmt == CB_FMT_FP4 ? mm->global_scale : 1;
            cb_scales8_avx2(mm->scales, mm->scale_type, factor, n + h, G, sg.g0, sg.g1, g->s + h, OUT);
            if (mm->fmt != CB_FMT_AFFINE) continue;
            cb_scales8_avx2(mm->biases, mm->scale_type, 1, n + h, G, sg.g0, sg.g1, g->b + h, OUT);
        }
        segment_block(g, &sg, r0, rows);
    }
    store(g, n, from, r0, rows);
}

static inline void *take(char **scratch, size_t n)
{
    void *p = *scratch;
    *scratch += (n + 63) / 64 * 64;
    return p;
}

void cb_gemm_avx2(const cb_mm *mm, int64_t n0, int64_t n1, void *scratch)
{
    bool planes = mm->fmt == CB_FMT_PLANES, affine = mm->fmt == CB_FMT_AFFINE;
    bool expand = affine && (mm->bits == 3 || mm->bits == 5 || mm->bits == 6);
    char *at = scratch;
    gemm g = {.mm = mm, .pack = mm->fmt == CB_FMT_FP4 ? 2 : planes ? 1 : cb_pack_of_bits(mm->bits)};
    g.group_bytes = mm->group / g.pack;
    g.word_stride = cb_plane_stride(mm->k, g.pack) / 2;
    g.rb = expand ? g.word_stride : mm->row_bytes;
    size_t seg_groups = (size_t)(mm->n_groups + 7) / 8;
    g.words = take(&at, BLOCK * g.word_stride * 2);
    g.panel = take(&at, ((size_t)mm->group * seg_groups + 32 * (size_t)g.pack) * OUT * 2);
    g.s = take(&at, seg_groups * OUT * sizeof(float));
    g.b = take(&at, seg_groups * OUT * sizeof(float));
    g.y = take(&at, (BLOCK + QUAD_ROWS) * OUT * sizeof(float));
    g.bytes = expand ? take(&at, OUT * g.rb) : NULL;

    int block = planes ? BLOCK / 2 : BLOCK;
    for (int r0 = 0; r0 < mm->n_rows; r0 += block) {
        int rows = mm->n_rows - r0 < block ? mm->n_rows - r0 : block;
        for (int r = 0; r < rows; r++) {
            const int8_t *x = mm->x.planes + (size_t)(mm->x_row ? mm->x_row[r0 + r] : r0 + r) * mm->x.plane_stride;
            int16_t *out = g.words + (size_t)(planes ? 2 * r : r) * g.word_stride;
            cb_words_avx2(x, cb_plane_stride(mm->k, g.pack), g.pack, out, planes ? out + g.word_stride : NULL);
        }
        for (int64_t from = n0; from < n1; from += OUT) /* the last panel reaches back over outputs already done */
            panel_block(&g, from + OUT <= n1 ? from : n1 - OUT, from, r0, rows);
    }
}
