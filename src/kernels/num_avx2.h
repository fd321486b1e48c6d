/* num_avx2.h: num.h on eight lanes, step by step the same operations, so the same bits. Read num.h first. */
#ifndef CB_KERNELS_NUM_AVX2_H
#define CB_KERNELS_NUM_AVX2_H
#include "kernels/num.h"
#include <immintrin.h>

static inline __m256 v8_set(float f) { return _mm256_set1_ps(f); }
static inline __m256 v8_neg(__m256 x) { return _mm256_xor_ps(x, v8_set(-0.0f)); }
static inline __m256 v8_abs(__m256 x) { return _mm256_andnot_ps(v8_set(-0.0f), x); }

/* cb_expf. min_ps(MAX, x) is "MAX < x ? MAX : x", which keeps a NaN as the scalar line does. */
static inline __m256 v8_exp(__m256 x)
{
    __m256 c = _mm256_min_ps(v8_set(CB_EXP_MAX), x);
    __m256 t = _mm256_fmadd_ps(c, v8_set(CB_EXP_LOG2E), v8_set(CB_EXP_MAGIC));
    __m256 n = _mm256_sub_ps(t, v8_set(CB_EXP_MAGIC));
    __m256 r = _mm256_fmadd_ps(n, v8_set(-CB_EXP_LN2_HI), c);
    r = _mm256_fmadd_ps(n, v8_set(-CB_EXP_LN2_LO), r);
    __m256 p = v8_set(1.0f / 5040.0f);
    p = _mm256_fmadd_ps(p, r, v8_set(1.0f / 720.0f));
    p = _mm256_fmadd_ps(p, r, v8_set(1.0f / 120.0f));
    p = _mm256_fmadd_ps(p, r, v8_set(1.0f / 24.0f));
    p = _mm256_fmadd_ps(p, r, v8_set(1.0f / 6.0f));
    p = _mm256_fmadd_ps(p, r, v8_set(0.5f));
    p = _mm256_fmadd_ps(p, r, v8_set(1.0f));
    p = _mm256_fmadd_ps(p, r, v8_set(1.0f));
    __m256i two_n = _mm256_slli_epi32(_mm256_add_epi32(_mm256_castps_si256(t), _mm256_set1_epi32(127)), 23);
    __m256 y = _mm256_mul_ps(p, _mm256_castsi256_ps(two_n));
    return _mm256_andnot_ps(_mm256_cmp_ps(c, v8_set(CB_EXP_MIN), _CMP_LT_OQ), y);
}

/* cb_siluf, cb_gelu_tanhf, cb_tanhf */
static inline __m256 v8_silu(__m256 z)
{
    return _mm256_div_ps(z, _mm256_add_ps(v8_set(1.0f), v8_exp(v8_neg(z))));
}
static inline __m256 v8_sigmoid(__m256 z)
{
    return _mm256_div_ps(v8_set(1.0f), _mm256_add_ps(v8_set(1.0f), v8_exp(v8_neg(z))));
}
static inline __m256 v8_softplus(__m256 x)
{
    __m256 e = v8_exp(_mm256_or_ps(x, v8_set(-0.0f)));
    __m256 z = _mm256_div_ps(e, _mm256_add_ps(v8_set(2.0f), e)), z2 = _mm256_mul_ps(z, z), p = v8_set(1.0f / 15.0f);
    p = _mm256_fmadd_ps(p, z2, v8_set(1.0f / 13.0f));
    p = _mm256_fmadd_ps(p, z2, v8_set(1.0f / 11.0f));
    p = _mm256_fmadd_ps(p, z2, v8_set(1.0f / 9.0f));
    p = _mm256_fmadd_ps(p, z2, v8_set(1.0f / 7.0f));
    p = _mm256_fmadd_ps(p, z2, v8_set(1.0f / 5.0f));
    p = _mm256_fmadd_ps(p, z2, v8_set(1.0f / 3.0f));
    p = _mm256_fmadd_ps(p, z2, v8_set(1.0f));
    /* max_ps gives its second operand for NaN and for zeros, as x > 0 ? x : 0 does */
    return _mm256_fmadd_ps(_mm256_mul_ps(v8_set(2.0f), z), p, _mm256_max_ps(x, _mm256_setzero_ps()));
}
static inline __m256 v8_gelu_tanh(__m256 z)
{
    __m256 z2 = _mm256_mul_ps(z, z);
    __m256 a = _mm256_fmadd_ps(z2, v8_set(0.044715f), v8_set(1.0f));
    __m256 u2 = _mm256_mul_ps(_mm256_mul_ps(z, v8_set(-1.5957691216057308f)), a);
    return _mm256_div_ps(z, _mm256_add_ps(v8_set(1.0f), v8_exp(u2)));
}
static inline __m256 v8_tanh(__m256 z)
{
    __m256 e = v8_exp(_mm256_mul_ps(v8_set(-2.0f), v8_abs(z))), one = v8_set(1.0f);
    __m256 q = _mm256_div_ps(_mm256_sub_ps(one, e), _mm256_add_ps(one, e));
    return _mm256_or_ps(v8_abs(q), _mm256_and_ps(z, v8_set(-0.0f)));
}

/* The lane tree of 32: lanes 0..7 in a[0], 8..15 in a[1] and so on. */
static inline float v8_lane_fold32(const __m256 a[4])
{
    __m256 v = _mm256_add_ps(_mm256_add_ps(a[0], a[2]), _mm256_add_ps(a[1], a[3]));
    __m128 w = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    w = _mm_add_ps(w, _mm_movehl_ps(w, w));
    return _mm_cvtss_f32(_mm_add_ss(w, _mm_movehdup_ps(w)));
}

/* cb_hl_to_f32 */
static inline __m256 v8_hl_to_f32(__m256i h, __m256i l)
{
    __m256i a = _mm256_add_epi32(h, _mm256_srai_epi32(l, 8));
    __m256i top = _mm256_srai_epi32(a, 14);
    __m256i low = _mm256_or_si256(_mm256_slli_epi32(_mm256_and_si256(a, _mm256_set1_epi32(16383)), 8),
                                  _mm256_and_si256(l, _mm256_set1_epi32(255)));
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(top), v8_set(0x1p22f), _mm256_cvtepi32_ps(low));
}

/* All ones in lanes below n (any n): the mask of a tail for maskload and maskstore, which touch no other byte. */
static inline __m256i v8_below(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* max(|x|) over n floats as cb_quant_row_c finds it: a NaN never wins. Any order gives the same maximum. */
static inline float v8_hmax(__m256 m)
{
    __m128 w = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
    w = _mm_max_ps(w, _mm_movehl_ps(w, w));
    return _mm_cvtss_f32(_mm_max_ss(w, _mm_movehdup_ps(w)));
}
static inline float v8_max_abs(const float *x, int n)
{
    __m256 m0 = _mm256_setzero_ps(), m1 = m0;
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        m0 = _mm256_max_ps(v8_abs(_mm256_loadu_ps(x + i)), m0);
        m1 = _mm256_max_ps(v8_abs(_mm256_loadu_ps(x + i + 8)), m1);
    }
    for (; i < n; i += 8) m0 = _mm256_max_ps(v8_abs(_mm256_maskload_ps(x + i, v8_below(n - i))), m0);
    return v8_hmax(_mm256_max_ps(m0, m1));
}

/* 16 floats times inv, rounded and limited: clamp(rint(x*inv)) as 16-bit numbers in order. |x*inv| stays near 32512. */
static inline __m256i v8_xi16(__m256 a, __m256 b, __m256 inv)
{
    __m256i v = _mm256_packs_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(a, inv)), _mm256_cvtps_epi32(_mm256_mul_ps(b, inv)));
    v = _mm256_permute4x64_epi64(v, 0xd8);
    return _mm256_max_epi16(_mm256_min_epi16(v, _mm256_set1_epi16(CB_XI_MAX)), _mm256_set1_epi16(-CB_XI_MAX));
}
#endif
