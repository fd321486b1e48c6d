/* linear_avx2.c: products with few rows, which memory bandwidth limits. Eight outputs at a time: first the exact group sums
 * D of all groups (a pass over the weights), then the float chain of those outputs, eight segments side by side.
 *
 * Codes of 1, 2 and 4 bits stay bytes: VPMADDUBSW adds pairs of code*plane in 16 bits. A pair is at most 2*15*128 = 3840 at
 * 4 bits (8 pairs fit), 768 at 2 bits (42 fit), 2*24*128 = 6144 for fp4 codes moved up by 12 (5 fit). The wider formats
 * become 16-bit numbers and take VPMADDWD with 16-bit activations. */
#include "kernels/linear_avx2.h"

enum {
    AHEAD = 1024, /* prefetch distance within a row, bytes */
    FEW = 8       /* rows of a block */
};

/* The next lines of eight rows, two a unit; the distance runs on from the end of these rows into the next eight. */
CB_INLINE void prefetch_unit(const uint8_t *w, size_t rb, size_t off)
{
    size_t at = off + AHEAD;
    if (at >= rb) at = at - rb + 8 * rb;
    const uint8_t *p = w + at + (off / 16 % 4) * 2 * rb;
    _mm_prefetch((const char *)p, _MM_HINT_T0);
    _mm_prefetch((const char *)(p + rb), _MM_HINT_T0);
}

/* ---- byte codes ---------------------------------------------------------------------------------------------------- */

typedef struct rows {
    const int8_t *planes[2];
    const int32_t *sum[2];
    const int16_t *w[2], *w2[2]; /* 16-bit form, see cb_words_avx2 */
} rows;

/* Codes j of the bytes t: numbers 0..15; E2M1 nibbles become twice their value plus 12. */
CB_INLINE __m256i codes_of(__m256i t, int j, int bits, bool fp4)
{
    __m256i v = _mm256_and_si256(j ? _mm256_srli_epi16(t, bits * j) : t, _mm256_set1_epi8((char)((1 << bits) - 1)));
    const __m128i value = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    return fp4 ? _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(value), v) : v;
}

/* Adds quads q0..q1 of a unit to the 16-bit sums acc[row][hi, lo][j % 2]. x: plane bytes of this unit. */
CB_INLINE void add_quads(const __m256i t[4], int q0, int q1, int bits, bool fp4, int R, const int8_t *const x[2],
                         __m256i acc[2][2][2])
{
    const int pack = 8 / bits, two = bits == 4;
#pragma GCC unroll 4
    for (int q = q0; q < q1; q++)
#pragma GCC unroll 8
        for (int j = 0; j < pack; j++) {
            __m256i c = codes_of(t[q], j, bits, fp4);
#pragma GCC unroll 2
            for (int r = 0; r < R; r++) {
                const int8_t *p = x[r] + j * 64 + 4 * q;
                __m256i *h = &acc[r][0][two ? j : 0], *l = &acc[r][1][two ? j : 0];
                *h = _mm256_add_epi16(*h, _mm256_maddubs_epi16(c, cb_bcast4(p)));
                *l = _mm256_add_epi16(*l, _mm256_maddubs_epi16(c, cb_bcast4(p + 64 * pack)));
                CB_KEEP(*h);
                CB_KEEP(*l);
            }
        }
}

/* sum[row] += 256*hi + lo of the 16-bit sums, which restart at zero */
CB_INLINE void fold_bytes(int bits, int R, __m256i acc[2][2][2], __m256i sum[2])
{
    const __m256i one = _mm256_set1_epi16(1), up = _mm256_set1_epi16(256);
    const int n = bits == 4 ? 2 : 1;
    for (int r = 0; r < R; r++)
        for (int a = 0; a < n; a++) {
            __m256i h = _mm256_madd_epi16(acc[r][0][a], up), l = _mm256_madd_epi16(acc[r][1][a], one);
            sum[r] = _mm256_add_epi32(sum[r], _mm256_add_epi32(h, l));
            acc[r][0][a] = acc[r][1][a] = _mm256_setzero_si256();
        }
}

CB_INLINE void store_sums(const rows *x, bool fp4, int R, int g, size_t d_stride, __m256i *sum, float *d)
{
    for (int r = 0; r < R; r++) {
        if (fp4) sum[r] = _mm256_sub_epi32(sum[r], _mm256_set1_epi32(12 * x->sum[r][g]));
        _mm256_storeu_ps(d + (size_t)r * d_stride + (size_t)g * 8, _mm256_cvtepi32_ps(sum[r]));
        sum[r] = _mm256_setzero_si256();
    }
}

/* d[r][g][8] = (float)D of all groups. gb: bytes of a group. */
CB_INLINE void byte_pass(const cb_mm *mm, const uint8_t *w, const rows *x, int bits, bool fp4, int gb, int R, float *d)
{
    const int pack = 8 / bits, per_group = gb < 16 ? 1 : gb / 16, fold_every = fp4 ? 1 : 2; /* units that 16 bits hold */
    size_t rb = mm->row_bytes, off = 0, d_stride = (size_t)mm->n_groups * 8;
    __m256i acc[2][2][2], sum[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (int i = 0; i < 8; i++) acc[i / 4][i / 2 % 2][i % 2] = _mm256_setzero_si256();
    for (int g = 0; g < mm->n_groups;) {
        int u = 0;
        for (; u < per_group && off < rb; u++, off += 16) {
            __m256i t[4];
            cb_load_unit_at(w, rb, off, t);
            prefetch_unit(w, rb, off);
            size_t at = off / 64 * 128 * (size_t)pack + off % 64;
            const int8_t *const p[2] = {x->planes[0] + at, x->planes[R - 1] + at};
            if (gb < 16) { /* several groups in a unit */
#pragma GCC unroll 4
                for (int q = 0; q < 4; q += gb / 4) {
                    add_quads(t, q, q + gb / 4, bits, fp4, R, p, acc);
                    fold_bytes(bits, R, acc, sum);
                    if (g < mm->n_groups) store_sums(x, fp4, R, g++, d_stride, sum, d);
                }
            } else {
                add_quads(t, 0, 4, bits, fp4, R, p, acc);
                if (u % fold_every == fold_every - 1) fold_bytes(bits, R, acc, sum);
            }
        }
        if (gb >= 16) {
            if (u % fold_every) fold_bytes(bits, R, acc, sum);
            store_sums(x, fp4, R, g++, d_stride, sum, d);
        }
    }
}

/* ---- byte codes, one row -------------------------------------------------------------------------------------------- */

/* Sums of neighbours: dwords of a and b, then quadwords, so that four rows end in the four dwords of each half. */
CB_INLINE __m256i merge32(__m256i a, __m256i b)
{
    return _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
}
CB_INLINE __m256i merge64(__m256i a, __m256i b)
{
    return _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
}

/* 32 bytes of one weight row times the activations x (hi planes, then lo planes): eight partial sums 256*hi + lo. At most
 * 2 * 7680 at 4 bits and 2 * 12288 with fp4 codes gather in 16 bits. */
CB_INLINE __m256i row_sums(const uint8_t *w, const __m256i *x, int bits, bool fp4)
{
    const int pack = 8 / bits;
    __m256i v = _mm256_loadu_si256((const void *)w), h, l;
#pragma GCC unroll 8
    for (int j = 0; j < pack; j++) {
        __m256i c = codes_of(v, j, bits, fp4);
        __m256i ph = _mm256_maddubs_epi16(c, x[j]), pl = _mm256_maddubs_epi16(c, x[pack + j]);
        h = j ? _mm256_add_epi16(h, ph) : ph;
        l = j ? _mm256_add_epi16(l, pl) : pl;
    }
    __m256i s = _mm256_add_epi32(_mm256_madd_epi16(h, _mm256_set1_epi16(256)), _mm256_madd_epi16(l, _mm256_set1_epi16(1)));
    CB_KEEP(s);
    return s;
}

/* As byte_pass for one row and groups of 16 bytes or more: here a vector is 32 bytes of one weight row, the activations
 * stay in registers for all eight, and the sums are merged at the end. It takes as many vector operations, and a quarter
 * of the loads. */
CB_INLINE void row_pass(const cb_mm *mm, const uint8_t *w, const rows *x, int bits, bool fp4, int gb, float *d)
{
    const int pack = 8 / bits, per_group = gb < 32 ? 1 : gb / 32;
    size_t rb = mm->row_bytes, off = 0;
    for (int g = 0; g < mm->n_groups; g++) {
        __m256i lo = _mm256_setzero_si256(), hi = lo; /* rows 0..3 and 4..7; the halves are bytes 0..15 and 16..31 */
        for (int u = 0; u < per_group && off < rb; u++, off += 32) {
            const int8_t *p = x->planes[0] + off / 64 * 128 * (size_t)pack + off % 64;
            __m256i xv[16], s[8];
#pragma GCC unroll 16
            for (int j = 0; j < 2 * pack; j++) xv[j] = _mm256_loadu_si256((const void *)(p + 64 * j));
            uint8_t tail[8][32];
            const uint8_t *src = w + off;
            size_t stride = rb;
            if (__builtin_expect(off + 32 > rb, 0)) {
                memset(tail, 0, sizeof tail);
                for (size_t i = 0; i < 8; i++) memcpy(tail[i], w + i * rb + off, rb - off);
                src = tail[0], stride = 32;
            }
            prefetch_unit(w, rb, off);
            prefetch_unit(w, rb, off + 16);
#pragma GCC unroll 8
            for (size_t i = 0; i < 8; i++) {
                s[i] = row_sums(src + i * stride, xv, bits, fp4);
                if (i % 2) s[i] = merge32(s[i - 1], s[i]);
            }
            lo = _mm256_add_epi32(lo, merge64(s[1], s[3]));
            hi = _mm256_add_epi32(hi, merge64(s[5], s[7]));
        }
        __m256i sum[2] = {_mm256_permute2x128_si256(lo, hi, 0x20), _mm256_permute2x128_si256(lo, hi, 0x31)};
        if (gb >= 32) sum[0] = _mm256_add_epi32(sum[0], sum[1]);
        store_sums(x, fp4, 1, g, 0, sum, d);
        if (gb < 32 && g + 1 < mm->n_groups) store_sums(x, fp4, 1, ++g, 0, sum + 1, d);
    }
}

/* ---- 16-bit codes -------------------------------------------------------------------------------------------------- */

/* Codes of 8 bits, or of 3, 5, 6 bits expanded to bytes: w has rows of rb bytes, in memory or (far false) just made. */
CB_INLINE void word_pass(const cb_mm *mm, const uint8_t *w, size_t rb, const rows *x, int R, bool far, float *d)
{
    const __m256i low = _mm256_set1_epi16(255);
    size_t off = 0, end, d_stride = (size_t)mm->n_groups * 8;
    for (int g = 0; g < mm->n_groups; g++) {
        __m256i sum[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
        for (end = off + (size_t)mm->group; off < end && off < rb; off += 16) {
            __m256i t[4];
            cb_load_unit_at(w, rb, off, t);
            if (far) prefetch_unit(w, rb, off);
#pragma GCC unroll 4
            for (int q = 0; q < 4; q++) {
                __m256i c0 = _mm256_and_si256(t[q], low), c1 = _mm256_srli_epi16(t[q], 8);
#pragma GCC unroll 2
                for (int r = 0; r < R; r++) {
                    const int16_t *p = x->w[r] + off + 4 * q;
                    sum[r] = _mm256_add_epi32(sum[r], _mm256_madd_epi16(c0, cb_bcast4(p)));
                    sum[r] = _mm256_add_epi32(sum[r], _mm256_madd_epi16(c1, cb_bcast4(p + 2)));
                    CB_KEEP(sum[r]);
                }
            }
        }
        store_sums(x, false, R, g, d_stride, sum, d);
    }
}

/* CB_FMT_PLANES: D = 256*h + l, a sum for each of the two parts of xi. */
CB_INLINE void planes_pass(const cb_mm *mm, const uint8_t *w, const rows *x, int R, float *d)
{
    size_t rb = mm->row_bytes, d_stride = (size_t)mm->n_groups * 8;
    for (int g = 0; g < mm->n_groups; g++) {
        __m256i h[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()}, l[2] = {h[0], h[0]};
        for (int u = 0; u < 4; u++) {
            __m256i th[4], tl[4];
            size_t off = (size_t)g * 128 + 16 * (size_t)u;
            cb_load_unit(w + off, rb, th);
            cb_load_unit(w + off + 64, rb, tl);
            prefetch_unit(w, rb, off);
            prefetch_unit(w, rb, off + 64);
#pragma GCC unroll 4
            for (int q = 0; q < 4; q++) {
                __m256i c0 = cb_planes_even(th[q], tl[q]), c1 = cb_planes_odd(th[q], tl[q]);
#pragma GCC unroll 2
                for (int r = 0; r < R; r++) {
                    size_t at = (size_t)g * 64 + 16 * (size_t)u + 4 * (size_t)q;
                    const int16_t *ph = x->w[r] + at, *pl = x->w2[r] + at;
                    h[r] = _mm256_add_epi32(h[r], _mm256_madd_epi16(c0, cb_bcast4(ph)));
                    h[r] = _mm256_add_epi32(h[r], _mm256_madd_epi16(c1, cb_bcast4(ph + 2)));
                    l[r] = _mm256_add_epi32(l[r], _mm256_madd_epi16(c0, cb_bcast4(pl)));
                    l[r] = _mm256_add_epi32(l[r], _mm256_madd_epi16(c1, cb_bcast4(pl + 2)));
                    CB_KEEP(h[r]);
                    CB_KEEP(l[r]);
                }
            }
        }
        for (int r = 0; r < R; r++)
            _mm256_storeu_ps(d + (size_t)r * d_stride + (size_t)g * 8, v8_hl_to_f32(h[r], l[r]));
    }
}

/* ---- the pass of each format --------------------------------------------------------------------------------------- */

typedef void pass_fn(const cb_mm *mm, const uint8_t *w, size_t rb, const rows *x, float *d);

#define BYTE_PASS(NAME, BITS, FP4, GB)                                                                                  \
    static void NAME##_1(const cb_mm *mm, const uint8_t *w, size_t rb, const rows *x, float *d)                         \
    {                                                                                                                   \
        if (GB >= 16) row_pass(mm, w, x, BITS, FP4, GB, d);                                                             \
        else byte_pass(mm, w, x, BITS, FP4, GB, 1, d);                                                                  \
    }                                                                                                                   \
    static void NAME##_2(const cb_mm *mm, const uint8_t *w, size_t rb, const rows *x, float *d)                         \
    {                                                                                                                   \
        byte_pass(mm, w, x, BITS, FP4, GB, 2, d);                                                                       \
    }
BYTE_PASS(q1_g32, 1, false, 4)
BYTE_PASS(q1_g64, 1, false, 8)
BYTE_PASS(q1_g128, 1, false, 16)
BYTE_PASS(q2_g32, 2, false, 8)
BYTE_PASS(q2_g64, 2, false, 16)
BYTE_PASS(q2_g128, 2, false, 32)
BYTE_PASS(q4_g32, 4, false, 16)
BYTE_PASS(q4_g64, 4, false, 32)
BYTE_PASS(q4_g128, 4, false, 64)
BYTE_PASS(fp4_g16, 4, true, 8)
BYTE_PASS(fp4_g32, 4, true, 16)
BYTE_PASS(fp4_g64, 4, true, 32)

#define WIDE_PASS(NAME, CALL)                                                                                           \
    static void NAME(const cb_mm *mm, const uint8_t *w, size_t rb, const rows *x, float *d) { CALL; }
WIDE_PASS(q8_1, word_pass(mm, w, rb, x, 1, true, d))
WIDE_PASS(q8_2, word_pass(mm, w, rb, x, 2, true, d))
WIDE_PASS(expanded_1, word_pass(mm, w, rb, x, 1, false, d))
WIDE_PASS(expanded_2, word_pass(mm, w, rb, x, 2, false, d))
WIDE_PASS(planes_1, planes_pass(mm, w, x, 1, d))
WIDE_PASS(planes_2, planes_pass(mm, w, x, 2, d))

/* Fills f with the passes for one and two rows; false for a format that only scalar C has. */
static bool choose(const cb_mm *mm, pass_fn *f[2])
{
    static pass_fn *const byte_passes[4][3][2] = {{{q1_g32_1, q1_g32_2}, {q1_g64_1, q1_g64_2}, {q1_g128_1, q1_g128_2}},
                                                  {{q2_g32_1, q2_g32_2}, {q2_g64_1, q2_g64_2}, {q2_g128_1, q2_g128_2}},
                                                  {{q4_g32_1, q4_g32_2}, {q4_g64_1, q4_g64_2}, {q4_g128_1, q4_g128_2}},
                                                  {{fp4_g16_1, fp4_g16_2}, {fp4_g32_1, fp4_g32_2}, {fp4_g64_1, fp4_g64_2}}};
    bool fp4 = mm->fmt == CB_FMT_FP4;
    int bits = mm->bits, first = fp4 ? 16 : 32, g = mm->group == first ? 0 : mm->group == 2 * first ? 1 : 2;
    if (mm->group != first << g || mm->n_groups != (mm->k + mm->group - 1) / mm->group) return false;
    if (mm->fmt == CB_FMT_PLANES) {
        f[0] = planes_1, f[1] = planes_2;
        return mm->group == 64 && mm->row_bytes == (size_t)mm->n_groups * 128;
    }
    if (mm->k % 8 || mm->row_bytes != (size_t)(mm->k / 8 * (fp4 ? 4 : bits))) return false;
    if (fp4 || bits == 1 || bits == 2 || bits == 4) {
        memcpy(f, byte_passes[fp4 ? 3 : bits / 2][g], 2 * sizeof *f);
    } else {
        f[0] = bits == 8 ? q8_1 : expanded_1, f[1] = bits == 8 ? q8_2 : expanded_2;
    }
    return true;
}

/* ---- float chain --------------------------------------------------------------------------------------------------- */

/* y of eight outputs from their group sums: the segments are independent and advance side by side. */
CB_INLINE __m256 chain(const cb_mm *mm, const float *d, const float *s, const float *b, const float *dx, const float *xs)
{
    int G = mm->n_groups, at[9];
    __m256 acc[8];
    for (int l = 0; l <= 8; l++) at[l] = (int)((int64_t)l * G / 8);
    for (int l = 0; l < 8; l++) acc[l] = _mm256_setzero_ps();
    for (int i = 0; i <= G / 8; i++) /* a segment is G/8 long, some one more */
#pragma GCC unroll 8
        for (int l = 0; l < 8; l++) {
            int g = at[l] + i;
            if (i == G / 8 && g >= at[l + 1]) continue;
            __m256 p = _mm256_mul_ps(v8_set(dx[g]), _mm256_loadu_ps(d + 8 * g));
            if (b) acc[l] = _mm256_fmadd_ps(_mm256_loadu_ps(b + 8 * g), v8_set(xs[g]), acc[l]);
            acc[l] = _mm256_fmadd_ps(_mm256_loadu_ps(s + 8 * g), p, acc[l]);
        }
    __m256 y = acc[0];
    for (int l = 1; l < 8; l++) y = _mm256_add_ps(y, acc[l]);
    return y;
}

/* ---- driver -------------------------------------------------------------------------------------------------------- */

static inline void *take(char **scratch, size_t n)
{
    void *p = *scratch;
    *scratch += (n + 63) / 64 * 64;
    return p;
}

typedef struct few {
    const cb_mm *mm;
    float *s, *b, *d;
    uint8_t *bytes; /* [8][k64]: expanded codes of 3, 5, 6 bits */
    int r0;
    int16_t *words; /* from row r0 on [..][2][k64] */
    size_t k64;
} few;

/* Outputs n..n+8 for rows r..r+R; stores those from n0 on. */
static void panel_rows(const few *f, pass_fn *pass, const uint8_t *w, size_t rb, int64_t n, int64_t n0, int r, int R)
{
    const cb_mm *mm = f->mm;
    rows x;
    int64_t xr[2];
    for (int i = 0; i < 2; i++) {
        int row = r + (i < R ? i : 0);
        xr[i] = mm->x_row ? mm->x_row[row] : row;
        x.planes[i] = mm->x.planes + (size_t)xr[i] * mm->x.plane_stride;
        x.sum[i] = mm->x.sum + xr[i] * mm->n_groups;
        x.w[i] = f->words + (size_t)(row - f->r0) * 2 * f->k64;
        x.w2[i] = x.w[i] + f->k64;
    }
    pass(mm, w, rb, &x, f->d);
    for (int i = 0; i < R; i++) {
        int64_t yr = mm->y_row ? mm->y_row[r + i] : r + i, off = xr[i] * mm->n_groups;
        float *out = mm->y + (size_t)yr * mm->y_stride + n, t[8];
        __m256 y = chain(mm, f->d + (size_t)i * (size_t)mm->n_groups * 8, f->s, f->b, mm->x.dx + off, mm->x.xs + off);
        if (n0 == n) {
            _mm256_storeu_ps(out, mm->add ? _mm256_add_ps(_mm256_loadu_ps(out), y) : y);
            continue;
        }
        _mm256_storeu_ps(t, y);
        for (int64_t j = n0 - n; j < 8; j++) out[j] = mm->add ? out[j] + t[j] : t[j];
    }
}

/* Scales of the outputs n..n+8, for the next panel: the hardware sees too few lines at a time to run ahead. */
static void prefetch_scales(const cb_mm *mm, const uint8_t *p, int64_t n)
{
    size_t one = mm->scale_type == CB_S_F32 ? 4 : mm->scale_type == CB_S_F16 || mm->scale_type == CB_S_BF16 ? 2 : 1;
    size_t row = (size_t)mm->n_groups * one;
    for (size_t at = 0; at < 8 * row; at += 64) _mm_prefetch((const char *)(p + (size_t)n * row + at), _MM_HINT_T0);
}

/* Rows r0..r1, at most FEW. */
static void few_rows(const cb_mm *mm, int r0, int r1, int64_t n0, int64_t n1, char *scratch, pass_fn *const pass[2])
{
    size_t panel = (size_t)mm->n_groups * 8 * sizeof(float);
    float factor = mm->fmt == CB_FMT_FP4 ? mm->global_scale : 1;
    bool planes = mm->fmt == CB_FMT_PLANES, affine = mm->fmt == CB_FMT_AFFINE;
    bool expand = affine && (mm->bits == 3 || mm->bits == 5 || mm->bits == 6), wide = planes || expand || mm->bits == 8;
    few f = {.mm = mm, .r0 = r0, .k64 = (size_t)(mm->k + 63) / 64 * 64};
    f.s = take(&scratch, panel);
    f.b = affine ? take(&scratch, panel) : NULL;
    f.d = take(&scratch, 2 * panel);
    f.bytes = take(&scratch, expand ? 8 * f.k64 : 0);
    f.words = take(&scratch, 0);
    for (int r = r0; r < r1 && wide; r++) {
        const int8_t *x = mm->x.planes + (size_t)(mm->x_row ? mm->x_row[r] : r) * mm->x.plane_stride;
        int16_t *out = f.words + (size_t)(r - r0) * 2 * f.k64;
        cb_words_avx2(x, 2 * f.k64, 1, out, planes ? out + f.k64 : NULL);
    }
    for (int64_t at = n0; at < n1; at += 8) {
        int64_t n = at + 8 <= n1 ? at : n1 - 8; /* the last panel reaches back over outputs already done */
        const uint8_t *w = mm->codes + (size_t)n * mm->row_bytes;
        size_t rb = mm->row_bytes;
        cb_scales8_avx2(mm->scales, mm->scale_type, factor, n, mm->n_groups, 0, mm->n_groups, f.s, 8);
        prefetch_scales(mm, mm->scales, n + 8);
        if (affine) {
            cb_scales8_avx2(mm->biases, mm->scale_type, 1, n, mm->n_groups, 0, mm->n_groups, f.b, 8);
            prefetch_scales(mm, mm->biases, n + 8);
        }
        if (expand) {
            for (size_t i = 0; i < 8; i++) cb_unpack_row_avx2(w + i * rb, mm->k, mm->bits, f.bytes + i * f.k64);
            w = f.bytes, rb = f.k64;
        }
        for (int r = r0; r < r1; r += 2) {
            int R = r1 - r < 2 ? 1 : 2;
            panel_rows(&f, pass[R - 1], w, rb, n, at, r, R);
        }
    }
}

void cb_linear_avx2(const cb_mm *mm, int64_t n0, int64_t n1, void *scratch)
{
    pass_fn *pass[2];
    int many = mm->fmt == CB_FMT_AFFINE && mm->bits <= 2 ? 16 : 8; /* measured: from here on the panels pay */
    if (n1 < 8 || !choose(mm, pass)) {
        cb_linear_c(mm, n0, n1, scratch);
    } else if (mm->n_rows >= many && n1 >= 16) {
        cb_gemm_avx2(mm, n0, n1, scratch);
    } else {
        for (int r = 0; r < mm->n_rows; r += FEW)
            few_rows(mm, r, r + FEW < mm->n_rows ? r + FEW : mm->n_rows, n0, n1, scratch, pass);
    }
}
