/* num_avx512.h: num.h sixteen lanes at a time, step for step. Included by *_avx512.c only. */
#ifndef CB_KERNELS_NUM_AVX512_H
#define CB_KERNELS_NUM_AVX512_H
#include "kernels/num.h"
#include <immintrin.h>
#include <stdbool.h>

#define INLINE static inline __attribute__((always_inline)) /* for code whose arguments are constants */

/* Lanes i < n, n >= 0; all sixteen for n >= 16. */
static inline __mmask16 cb_mask16(int64_t n) { return n >= 16 ? 0xffff : (__mmask16)((1u << n) - 1); }

static inline __m512 cb_expf_x16(__m512 x)
{
    __m512 c = _mm512_min_ps(_mm512_set1_ps(CB_EXP_MAX), x); /* the second operand when x is NaN */
    __m512 magic = _mm512_set1_ps(CB_EXP_MAGIC);
    __m512 t = _mm512_fmadd_ps(c, _mm512_set1_ps(CB_EXP_LOG2E), magic);
    __m512 n = _mm512_sub_ps(t, magic);
    __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-CB_EXP_LN2_HI), c);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(-CB_EXP_LN2_LO), r);
    __m512 p = _mm512_set1_ps(1.0f / 5040.0f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 720.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 120.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 24.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 6.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    __m512i two_n = _mm512_slli_epi32(_mm512_add_epi32(_mm512_castps_si512(t), _mm512_set1_epi32(127)), 23);
    __mmask16 tiny = _mm512_cmp_ps_mask(c, _mm512_set1_ps(CB_EXP_MIN), _CMP_LT_OQ);
    return _mm512_maskz_mul_ps(_knot_mask16(tiny), p, _mm512_castsi512_ps(two_n));
}

static inline __m512 cb_neg_x16(__m512 x) { return _mm512_xor_ps(x, _mm512_set1_ps(-0.0f)); }
static inline __m512 cb_siluf_x16(__m512 z)
{
    __m512 one = _mm512_set1_ps(1.0f);
    return _mm512_div_ps(z, _mm512_add_ps(one, cb_expf_x16(cb_neg_x16(z))));
}
static inline __m512 cb_sigmoidf_x16(__m512 z)
{
    __m512 one = _mm512_set1_ps(1.0f);
    return _mm512_div_ps(one, _mm512_add_ps(one, cb_expf_x16(cb_neg_x16(z))));
}
static inline __m512 cb_softplusf_x16(__m512 x)
{
    __m512 e = cb_expf_x16(_mm512_or_ps(x, _mm512_set1_ps(-0.0f)));
    __m512 z = _mm512_div_ps(e, _mm512_add_ps(_mm512_set1_ps(2.0f), e)), z2 = _mm512_mul_ps(z, z);
    __m512 p = _mm512_set1_ps(1.0f / 15.0f);
    p = _mm512_fmadd_ps(p, z2, _mm512_set1_ps(1.0f / 13.0f));
    p = _mm512_fmadd_ps(p, z2, _mm512_set1_ps(1.0f / 11.0f));
    p = _mm512_fmadd_ps(p, z2, _mm512_set1_ps(1.0f / 9.0f));
    p = _mm512_fmadd_ps(p, z2, _mm512_set1_ps(1.0f / 7.0f));
    p = _mm512_fmadd_ps(p, z2, _mm512_set1_ps(1.0f / 5.0f));
    p = _mm512_fmadd_ps(p, z2, _mm512_set1_ps(1.0f / 3.0f));
    p = _mm512_fmadd_ps(p, z2, _mm512_set1_ps(1.0f));
    /* max_ps gives its second operand for NaN and for zeros, as x > 0 ? x : 0 does */
    return _mm512_fmadd_ps(_mm512_mul_ps(_mm512_set1_ps(2.0f), z), p, _mm512_max_ps(x, _mm512_setzero_ps()));
}
static inline __m512 cb_gelu_tanhf_x16(__m512 z)
{
    __m512 one = _mm512_set1_ps(1.0f);
    __m512 a = _mm512_fmadd_ps(_mm512_mul_ps(z, z), _mm512_set1_ps(0.044715f), one);
    __m512 u2 = _mm512_mul_ps(_mm512_mul_ps(z, _mm512_set1_ps(-1.5957691216057308f)), a);
    return _mm512_div_ps(z, _mm512_add_ps(one, cb_expf_x16(u2)));
}
static inline __m512 cb_tanhf_x16(__m512 z)
{
    __m512 one = _mm512_set1_ps(1.0f), sign = _mm512_set1_ps(-0.0f);
    __m512 e = cb_expf_x16(_mm512_mul_ps(_mm512_set1_ps(-2.0f), _mm512_andnot_ps(sign, z)));
    __m512 q = _mm512_div_ps(_mm512_sub_ps(one, e), _mm512_add_ps(one, e));
    return _mm512_or_ps(_mm512_andnot_ps(sign, q), _mm512_and_ps(sign, z));
}

/* cb_lane_fold32 with lanes 0..15 in a, 16..31 in b. */
static inline float cb_lane_fold32_x16(__m512 a, __m512 b)
{
    __m512 s = _mm512_add_ps(a, b);
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(s), _mm512_extractf32x8_ps(s, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    q = _mm_add_ss(q, _mm_shuffle_ps(q, q, 1));
    return _mm_cvtss_f32(q);
}

/* Sixteen vectors to one, lane i the sum (or maximum) of vector i's lanes as integers. MAX is a constant. */
INLINE __m512i cb_join_x16(__m512i a, __m512i b, const bool MAX)
{
    return MAX ? _mm512_max_epi32(a, b) : _mm512_add_epi32(a, b);
}
INLINE __m512i cb_fold16_x16(const __m512i *v, const bool MAX)
{
    __m512i q[4];
    for (int i = 0; i < 4; i++, v += 4) {
        __m512i a = cb_join_x16(_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]), MAX);
        __m512i b = cb_join_x16(_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]), MAX);
        q[i] = cb_join_x16(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b), MAX);
    }
    __m512i a = cb_join_x16(_mm512_shuffle_i32x4(q[0], q[1], 0x88), _mm512_shuffle_i32x4(q[0], q[1], 0xdd), MAX);
    __m512i b = cb_join_x16(_mm512_shuffle_i32x4(q[2], q[3], 0x88), _mm512_shuffle_i32x4(q[2], q[3], 0xdd), MAX);
    return cb_join_x16(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd), MAX);
}

/* cb_hl_to_f32 */
static inline __m512 cb_hl_to_f32_x16(__m512i h, __m512i l)
{
    __m512i a = _mm512_add_epi32(h, _mm512_srai_epi32(l, 8));
    __m512i top = _mm512_srai_epi32(a, 14);
    __m512i low = _mm512_or_si512(_mm512_slli_epi32(_mm512_and_si512(a, _mm512_set1_epi32(16383)), 8),
                                  _mm512_and_si512(l, _mm512_set1_epi32(255)));
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(top), _mm512_set1_ps(0x1p22f), _mm512_cvtepi32_ps(low));
}
#endif
