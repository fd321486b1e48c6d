/* linear_avx2.h: what the two AVX2 products share. Vectors run over eight neighbouring outputs, so the float chain needs no
 * horizontal sum: dwords of eight weight rows are transposed in registers, and an activation is broadcast to all lanes.
 *
 * A unit is 16 bytes of each of the eight rows, a quad four bytes of it: vector t[q] holds quad q, lane i from row i. */
#ifndef CB_KERNELS_LINEAR_AVX2_H
#define CB_KERNELS_LINEAR_AVX2_H
#include "kernels/kernels_avx2.h"
#include "kernels/kernels_c.h"
#include "kernels/num_avx2.h"

#define CB_INLINE static inline __attribute__((always_inline))

/* A product for n0 <= n < n1 by panels of 16 outputs unpacked to 16-bit numbers, for many rows; n1 >= 16. */
void cb_gemm_avx2(const cb_mm *mm, int64_t n0, int64_t n1, void *scratch);

/* Expands codes of 3, 5 or 6 bits, one row of k, to bytes; out has (k+63)/64*64 bytes, zeros after the last. */
void cb_unpack_row_avx2(const uint8_t *row, int64_t k, int bits, uint8_t *out);

/* scales [n0 .. n0+8) x [g0 .. g1), decoded: out[(g-g0)*stride + i] is row n0+i. factor multiplies each (pass 1 for none:
 * exact). G is the groups of a row. */
void cb_scales8_avx2(const uint8_t *p, cb_scale_type t, float factor, int64_t n0, int G, int g0, int g1, float *out,
                     int stride);

/* One row's planes to 16-bit numbers in quad order: for each quad of plane bytes m..m+3 and each plane j the elements of
 * bytes m, m+2, m+1, m+3: that is how the even and the odd bytes of a quad come out of a 16-bit lane. split writes the hi
 * parts to out and the lo parts to out2, otherwise out gets hi*256 + lo. n_bytes: plane_stride. */
void cb_words_avx2(const int8_t *planes, size_t n_bytes, int pack, int16_t *out, int16_t *out2);

/* The value is needed here, in this order: otherwise gcc makes all products of an unrolled loop first, spills them, and
 * then adds. */
#define CB_KEEP(v) __asm__ volatile("" : "+x"(v))

CB_INLINE __m256i cb_bcast4(const void *p)
{
    int32_t v;
    memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
}

CB_INLINE __m256i cb_rows_04(const uint8_t *p, size_t four)
{
    __m256i a = _mm256_castsi128_si256(_mm_loadu_si128((const void *)p));
    return _mm256_inserti128_si256(a, _mm_loadu_si128((const void *)(p + four)), 1);
}

/* 16 bytes at p of eight rows `stride` apart */
CB_INLINE void cb_load_unit(const uint8_t *p, size_t stride, __m256i t[4])
{
    __m256i a = cb_rows_04(p, 4 * stride), b = cb_rows_04(p + stride, 4 * stride);
    __m256i c = cb_rows_04(p + 2 * stride, 4 * stride), d = cb_rows_04(p + 3 * stride, 4 * stride);
    __m256i ab0 = _mm256_unpacklo_epi32(a, b), ab1 = _mm256_unpackhi_epi32(a, b);
    __m256i cd0 = _mm256_unpacklo_epi32(c, d), cd1 = _mm256_unpackhi_epi32(c, d);
    t[0] = _mm256_unpacklo_epi64(ab0, cd0);
    t[1] = _mm256_unpackhi_epi64(ab0, cd0);
    t[2] = _mm256_unpacklo_epi64(ab1, cd1);
    t[3] = _mm256_unpackhi_epi64(ab1, cd1);
}

/* The unit at byte `off` of eight rows of row_bytes; past the end of a row it holds zeros, and nothing is read there. */
CB_INLINE void cb_load_unit_at(const uint8_t *w, size_t row_bytes, size_t off, __m256i t[4])
{
    if (__builtin_expect(off + 16 <= row_bytes, 1)) {
        cb_load_unit(w + off, row_bytes, t);
    } else {
        uint8_t tail[8][16] = {{0}};
        for (int i = 0; i < 8; i++) memcpy(tail[i], w + (size_t)i * row_bytes + off, row_bytes - off);
        cb_load_unit(tail[0], 16, t);
    }
}

/* 256*high + low - 32768 of the even and of the odd bytes of quads */
CB_INLINE __m256i cb_planes_even(__m256i high, __m256i low)
{
    const __m256i byte = _mm256_set1_epi16(255), top = _mm256_set1_epi16(-32768);
    return _mm256_xor_si256(_mm256_or_si256(_mm256_slli_epi16(high, 8), _mm256_and_si256(low, byte)), top);
}
CB_INLINE __m256i cb_planes_odd(__m256i high, __m256i low)
{
    const __m256i byte = _mm256_set1_epi16(255), top = _mm256_set1_epi16(-32768);
    return _mm256_xor_si256(_mm256_or_si256(_mm256_andnot_si256(byte, high), _mm256_srli_epi16(low, 8)), top);
}
#endif
