/* linear_avx512.h: what the one-row and the many-row product share on AVX-512: how packed codes become bytes, the shapes a
 * group can have, transposes, and decoding of scales. Included by linear_avx512.c and gemm_avx512.c only.
 *
 * A vector of 64 code bytes holds 16 words of four codes; VPDPBUSD gives one int32 a word. A group is NJ runs of W
 * consecutive words (a run per plane, or per block for 8-bit codes in groups of 128), and a column of GPC groups is what
 * one step over a row's bytes yields. The activation planes stand in the same order (kernels.h, cb_qrows). */
#ifndef CB_KERNELS_LINEAR_AVX512_H
#define CB_KERNELS_LINEAR_AVX512_H
#include "kernels/kernels_avx512.h"
#include "kernels/num_avx512.h"

/* How stored bytes become code bytes. KIND_ODD: 3, 5 or 6 bits. KIND_WIDE: CB_FMT_PLANES. */
enum { KIND_B1, KIND_B2, KIND_B4, KIND_FP4, KIND_B8, KIND_ODD, KIND_WIDE };

/* The shape of one column step. Constant in each kernel instance. */
typedef struct cb_geom {
    int kind, w, nj; /* words a run, runs a group */
} cb_geom;

INLINE int geom_pack(cb_geom s)
{
    return s.kind == KIND_B1 ? 8 : s.kind == KIND_B2 ? 4 : s.kind == KIND_B4 || s.kind == KIND_FP4 ? 2 : 1;
}
INLINE int geom_groups(cb_geom s) { return 16 / s.w; }                                           /* groups a column */
INLINE int geom_x_step(cb_geom s) { return geom_pack(s) > 1 ? 128 * geom_pack(s) : 128 * s.nj; } /* plane bytes a column */
INLINE int geom_x_run(cb_geom s) { return geom_pack(s) > 1 ? 64 : 128; } /* plane bytes from run to run */
INLINE int geom_x_lo(cb_geom s) { return 64 * geom_pack(s); }            /* from hi to lo */

/* Shuffles for 3, 5 and 6 bits: 16 codes are `bits` 16-bit words; see unpack_odd. */
typedef struct cb_odd {
    __m512i words, even, odd, right, left, mask_even, mask_odd;
} cb_odd;

static inline cb_odd odd_make(int bits)
{
    int16_t words[32], right[32], left[32];
    int8_t even[64], odd[64];
    for (int i = 0; i < 32; i++) {
        int j = i % 8, e = 2 * j * bits, o = e + bits; /* codes 2j and 2j+1 of a lane of 16 start at these bits */
        words[i] = (int16_t)(i / 8 * bits + j);
        right[i] = (int16_t)(e & 7), left[i] = (int16_t)(8 - (o & 7));
        even[2 * i] = (int8_t)(e >> 3), even[2 * i + 1] = (int8_t)((e >> 3) + 1);
        odd[2 * i] = (int8_t)(o >> 3), odd[2 * i + 1] = (int8_t)((o >> 3) + 1);
    }
    int mask = (1 << bits) - 1;
    return (cb_odd){_mm512_loadu_si512(words),
                    _mm512_loadu_si512(even),
                    _mm512_loadu_si512(odd),
                    _mm512_loadu_si512(right),
                    _mm512_loadu_si512(left),
                    _mm512_set1_epi16((int16_t)mask),
                    _mm512_set1_epi16((int16_t)(mask << 8))};
}

/* 64 codes of 3, 5 or 6 bits from the first 8*bits bytes of v. Each code lies in some two neighbouring bytes. */
INLINE __m512i unpack_odd(__m512i v, const cb_odd *t)
{
    v = _mm512_permutexvar_epi16(t->words, v);
    __m512i e = _mm512_srlv_epi16(_mm512_shuffle_epi8(v, t->even), t->right);
    __m512i o = _mm512_sllv_epi16(_mm512_shuffle_epi8(v, t->odd), t->left);
    return _mm512_or_si512(_mm512_and_si512(e, t->mask_even), _mm512_and_si512(o, t->mask_odd));
}

INLINE __m512i fp4_table(void) /* twice the value, plus 12 */
{
    return _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
}

INLINE __m512i shift_right(__m512i v, int n) { return n ? _mm512_srli_epi16(v, (unsigned)n) : v; }

/* Plane j of packed bytes, for 1, 2 and 4 bits. */
INLINE __m512i plane_of(cb_geom s, __m512i b, int j)
{
    int width = 8 / geom_pack(s);
    __m512i v = _mm512_and_si512(shift_right(b, j * width), _mm512_set1_epi8((char)((1 << width) - 1)));
    return s.kind == KIND_FP4 ? _mm512_shuffle_epi8(fp4_table(), v) : v;
}

/* The code bytes of one column of a row: nj vectors. `have` bytes of the row are left at p; FULL says that is a column. */
INLINE void unpack(cb_geom s, const uint8_t *p, int64_t have, bool full, int bits, const cb_odd *t, __m512i *v)
{
    if (s.kind == KIND_B8 || s.kind == KIND_ODD) {
        int step = s.kind == KIND_B8 ? 64 : 8 * bits;
        for (int j = 0; j < s.nj; j++) {
            int64_t n = have - (int64_t)j * step;
            if (n > step) n = step;
            if (s.kind == KIND_B8 && full) v[j] = _mm512_loadu_si512(p + j * 64);
            else v[j] = n <= 0 ? _mm512_setzero_si512() : _mm512_maskz_loadu_epi8(~0ULL >> (64 - n), p + j * step);
            if (s.kind == KIND_ODD) v[j] = unpack_odd(v[j], t);
        }
        return;
    }
    __m512i b = full ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi8(~0ULL >> (64 - have), p);
    for (int j = 0; j < geom_pack(s); j++) v[j] = plane_of(s, b, j);
}

/* Stored bytes of a full column. */
INLINE int column_bytes(cb_geom s, int bits)
{
    return s.kind == KIND_WIDE ? 128 : s.kind == KIND_ODD ? 8 * bits * s.nj : s.kind == KIND_B8 ? 64 * s.nj : 64;
}

/* Runs that a last, partial column has: with a run per block, the planes end with the last block that holds a code. */
INLINE int runs_left(cb_geom s, int64_t have, int bits)
{
    return geom_pack(s) == 1 && s.nj == 2 && have <= column_bytes(s, bits) / 2 ? 1 : s.nj;
}

/* ---- transposes ----------------------------------------------------------------------------------------------------- */

/* A macro: clang wants the control to be a constant before it inlines. */
#define shuf32(a, b, imm) _mm512_castps_si512(_mm512_shuffle_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), imm))

/* Four rows of 16 words, summed in runs of w words, still apart by 128-bit lane: out has 4/w vectors (one for w >= 4),
 * whose lane L holds rows 0..3 of words 4L.. */
INLINE void quad_sum(const __m512i *d, int w, __m512i *out)
{
    if (w >= 4) {
        __m512i a = _mm512_add_epi32(_mm512_unpacklo_epi32(d[0], d[1]), _mm512_unpackhi_epi32(d[0], d[1]));
        __m512i b = _mm512_add_epi32(_mm512_unpacklo_epi32(d[2], d[3]), _mm512_unpackhi_epi32(d[2], d[3]));
        out[0] = _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    } else if (w == 2) {
        __m512i a = _mm512_add_epi32(shuf32(d[0], d[1], 0x88), shuf32(d[0], d[1], 0xdd));
        __m512i b = _mm512_add_epi32(shuf32(d[2], d[3], 0x88), shuf32(d[2], d[3], 0xdd));
        out[0] = shuf32(a, b, 0x88), out[1] = shuf32(a, b, 0xdd);
    } else {
        __m512i a = _mm512_unpacklo_epi32(d[0], d[1]), b = _mm512_unpackhi_epi32(d[0], d[1]);
        __m512i c = _mm512_unpacklo_epi32(d[2], d[3]), e = _mm512_unpackhi_epi32(d[2], d[3]);
        out[0] = _mm512_unpacklo_epi64(a, c), out[1] = _mm512_unpackhi_epi64(a, c);
        out[2] = _mm512_unpacklo_epi64(b, e), out[3] = _mm512_unpackhi_epi64(b, e);
    }
}

INLINE void transpose_lanes(__m512i a, __m512i b, __m512i c, __m512i d, __m512i *out, int step)
{
    __m512i p = _mm512_shuffle_i32x4(a, b, 0x44), q = _mm512_shuffle_i32x4(c, d, 0x44);
    __m512i r = _mm512_shuffle_i32x4(a, b, 0xee), s = _mm512_shuffle_i32x4(c, d, 0xee);
    out[0] = _mm512_shuffle_i32x4(p, q, 0x88), out[step] = _mm512_shuffle_i32x4(p, q, 0xdd);
    out[2 * step] = _mm512_shuffle_i32x4(r, s, 0x88), out[3 * step] = _mm512_shuffle_i32x4(r, s, 0xdd);
}

/* Four quads (rows 0..3, 4..7, 8..11, 12..15; f[q][..] from quad_sum) to 16/w vectors, one a group, lane = row. */
INLINE void finish_sum(__m512i f[4][4], int w, __m512i *out)
{
    if (w >= 8) {
        __m512i a =
            _mm512_add_epi32(_mm512_shuffle_i32x4(f[0][0], f[1][0], 0x88), _mm512_shuffle_i32x4(f[0][0], f[1][0], 0xdd));
        __m512i b =
            _mm512_add_epi32(_mm512_shuffle_i32x4(f[2][0], f[3][0], 0x88), _mm512_shuffle_i32x4(f[2][0], f[3][0], 0xdd));
        __m512i g0 = _mm512_shuffle_i32x4(a, b, 0x88), g1 = _mm512_shuffle_i32x4(a, b, 0xdd);
        if (w == 16) out[0] = _mm512_add_epi32(g0, g1);
        else out[0] = g0, out[1] = g1;
    } else {
        int per = 4 / w;
        for (int i = 0; i < per; i++) transpose_lanes(f[0][i], f[1][i], f[2][i], f[3][i], out + i, per);
    }
}

/* 16x16 words: out[i] lane r = in[r] lane i. */
INLINE void transpose16(const __m512i *in, __m512i *out)
{
    __m512i f[4][4];
    for (int q = 0; q < 4; q++) quad_sum(in + 4 * q, 1, f[q]);
    finish_sum(f, 1, out);
}

/* ---- scales --------------------------------------------------------------------------------------------------------- */

/* Scales at..at+n-1 of an array (n <= 16), decoded as cb_scale_at does; missing lanes are zero. */
INLINE __m512 scales_row(const uint8_t *p, cb_scale_type t, int64_t at, int n)
{
    __mmask16 k = cb_mask16(n);
    if (t == CB_S_F32) return _mm512_maskz_loadu_ps(k, p + 4 * at);
    if (t == CB_S_BF16)
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(k, p + 2 * at)), 16));
    if (t == CB_S_F16) return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(k, p + 2 * at));
    __m512i b = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(k, p + at));
    if (t == CB_S_E8M0) {
        __m512i u = _mm512_slli_epi32(b, 23);
        u = _mm512_mask_mov_epi32(u, _mm512_testn_epi32_mask(b, b), _mm512_set1_epi32(0x00400000));
        return _mm512_mul_ps(_mm512_set1_ps(0.5f), _mm512_castsi512_ps(u));
    }
    /* E4M3 as a binary16 of a bias 8 larger: times 256, and half of that */
    __m512i h = _mm512_or_si512(_mm512_slli_epi32(_mm512_and_si512(b, _mm512_set1_epi32(0x7f)), 7),
                                _mm512_slli_epi32(_mm512_and_si512(b, _mm512_set1_epi32(0x80)), 8));
    return _mm512_mul_ps(_mm512_cvtph_ps(_mm512_cvtepi32_epi16(h)), _mm512_set1_ps(128.0f));
}

/* scales_16 for at most four groups of a 16-bit type, where a transpose would be mostly empty: a gather takes two. */
INLINE void scales_few(const uint8_t *p, const cb_scale_type T, const int64_t *at, int n, float *out, int step)
{
    const __m512i first = _mm512_set1_epi64(at[0]);
    const __m256i lo = _mm512_cvtepi64_epi32(_mm512_sub_epi64(_mm512_loadu_si512(at), first));
    const __m256i hi = _mm512_cvtepi64_epi32(_mm512_sub_epi64(_mm512_loadu_si512(at + 8), first));
    const __m512i idx = _mm512_slli_epi32(_mm512_inserti64x4(_mm512_castsi256_si512(lo), hi, 1), 1);
    for (int g = 0; g < n; g += 2) {
        /* a last odd one is the upper half of the pair before it: nothing past the end is read */
        const bool odd = g + 1 == n;
        __m512i v = _mm512_i32gather_epi32(idx, p + 2 * (at[0] + g - odd), 1);
        for (int i = odd; i < 2; i++) {
            __m512i h = i ? _mm512_srli_epi32(v, 16) : v;
            __m512 f =
                T == CB_S_F16 ? _mm512_cvtph_ps(_mm512_cvtepi32_epi16(h)) : _mm512_castsi512_ps(_mm512_slli_epi32(h, 16));
            _mm512_store_ps(out + (g + i - odd) * step, f);
        }
    }
}

/* Scales of 16 rows (row i: array index at[i]), n <= 16 groups, transposed: out[g*step ..+15] lane = row. T is a constant.
 */
INLINE void scales_16(const cb_mm *mm, const uint8_t *p, const cb_scale_type T, const int64_t *at, int n, float *out,
                      int step)
{
    const bool fp4 = mm->fmt == CB_FMT_FP4;
    if ((T == CB_S_F16 || T == CB_S_BF16) && n <= 4 && !fp4 && at[0] + n > 1 && at[15] - at[0] < 1 << 29) {
        scales_few(p, T, at, n, out, step);
        return;
    }
    const __m512 global = _mm512_set1_ps(mm->global_scale);
    __m512i in[16], tr[16];
    for (int r = 0; r < 16; r++) {
        __m512 s = scales_row(p, T, at[r], n);
        in[r] = _mm512_castps_si512(fp4 ? _mm512_mul_ps(s, global) : s);
    }
    transpose16(in, tr);
    for (int g = 0; g < 16; g++) _mm512_store_si512(out + g * step, tr[g]);
}

static inline void scales_block(const cb_mm *mm, const uint8_t *p, const int64_t *at, int n, float *out, int step)
{
    switch (mm->scale_type) {
    case CB_S_F32: scales_16(mm, p, CB_S_F32, at, n, out, step); break;
    case CB_S_F16: scales_16(mm, p, CB_S_F16, at, n, out, step); break;
    case CB_S_BF16: scales_16(mm, p, CB_S_BF16, at, n, out, step); break;
    case CB_S_E8M0: scales_16(mm, p, CB_S_E8M0, at, n, out, step); break;
    case CB_S_E4M3: scales_16(mm, p, CB_S_E4M3, at, n, out, step); break;
    }
}

/* ---- rows ----------------------------------------------------------------------------------------------------------- */

/* One row of activations. */
typedef struct cb_xrow {
    const int8_t *planes;
    const float *dx, *xs;
    const int32_t *sum;
} cb_xrow;

INLINE cb_xrow x_row_at(const cb_mm *mm, int r)
{
    int64_t i = mm->x_row ? mm->x_row[r] : r;
    int64_t g = i * mm->x.n_groups;
    return (cb_xrow){mm->x.planes + (size_t)i * mm->x.plane_stride, mm->x.dx + g, mm->x.xs + g, mm->x.sum + g};
}

INLINE void store_y(const cb_mm *mm, int r, int64_t n, __mmask16 k, __m512 y)
{
    float *out = mm->y + (size_t)(mm->y_row ? mm->y_row[r] : r) * mm->y_stride + n;
    if (mm->add) y = _mm512_add_ps(_mm512_maskz_loadu_ps(k, out), y);
    _mm512_mask_storeu_ps(out, k, y);
}

/* y = ((S0 + S1) + S2) + ...: closes the segments that end before group g. */
INLINE void close_segments(int g, int n_groups, int *seg, __m512 *acc, __m512 *y, int m)
{
    while (*seg < 8 && g == (*seg + 1) * n_groups / 8) {
        for (int i = 0; i < m; i++) {
            y[i] = *seg ? _mm512_add_ps(y[i], acc[i]) : acc[i];
            acc[i] = _mm512_setzero_ps();
        }
        ++*seg;
    }
}

/* The shape for a product, or kind < 0 when there is none and scalar C does it. */
static inline cb_geom geom_of(const cb_mm *mm)
{
    cb_geom none = {-1, 0, 0};
    int g = mm->group;
    if (mm->fmt == CB_FMT_PLANES) return g == 64 ? (cb_geom){KIND_WIDE, 16, 1} : none;
    if (mm->fmt == CB_FMT_FP4) return g == 16 || g == 32 ? (cb_geom){KIND_FP4, g / 8, 2} : none;
    if (mm->fmt != CB_FMT_AFFINE || (g != 32 && g != 64 && g != 128)) return none;
    switch (mm->bits) {
    case 1: return (cb_geom){KIND_B1, g / 32, 8};
    case 2: return (cb_geom){KIND_B2, g / 16, 4};
    case 4: return (cb_geom){KIND_B4, g / 8, 2};
    case 8: return (cb_geom){KIND_B8, g == 32 ? 8 : 16, g == 128 ? 2 : 1};
    case 3:
    case 5:
    case 6: return (cb_geom){KIND_ODD, g == 32 ? 8 : 16, g == 128 ? 2 : 1};
    default: return none;
    }
}

/* Calls X(kind, w, nj) for every shape. */
#define CB_GEOMS(X)                                                                                                        \
    X(KIND_B4, 8, 2)                                                                                                       \
    X(KIND_B4, 4, 2)                                                                                                       \
    X(KIND_B4, 16, 2) X(KIND_B2, 8, 4) X(KIND_B2, 4, 4) X(KIND_B2, 2, 4) X(KIND_B8, 8, 1) X(KIND_B8, 16, 1)                \
        X(KIND_B8, 16, 2) X(KIND_FP4, 2, 2) X(KIND_FP4, 4, 2) X(KIND_B1, 1, 8) X(KIND_B1, 2, 8) X(KIND_B1, 4, 8)           \
            X(KIND_ODD, 8, 1) X(KIND_ODD, 16, 1) X(KIND_ODD, 16, 2)

/* gemm_avx512.c: many rows. scratch as for `linear`. */
void cb_gemm_avx512(const cb_mm *mm, cb_geom s, int64_t n0, int64_t n1, void *scratch);
#endif
