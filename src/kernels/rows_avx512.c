/* rows_avx512.c: everything that works on one row, sixteen elements at a time. Tails are masked, so nothing is read or
 * written past the last element. */
#include "kernels/kernels_avx512.h"
#include "kernels/kernels_c.h"
#include "kernels/num_avx512.h"

/* ---- fixed point --------------------------------------------------------------------------------------------------- */

static inline __m512 load_abs_max(const float *x, int n, __m512 m)
{
    return _mm512_max_ps(m, _mm512_abs_ps(_mm512_maskz_loadu_ps(cb_mask16(n), x)));
}

/* rint(x*inv). |x*inv| cannot round past 32512, so the clamp of the definition never acts. */
static inline __m512i to_xi(__m512 x, __m512 inv) { return _mm512_cvtps_epi32(_mm512_mul_ps(x, inv)); }

enum { BATCH = 16 }; /* groups at a time: their maxima and sums are joined across */

/* The largest |x| of n elements, over the lanes. Magnitudes compare as integers. */
static inline __m512i group_max(const float *x, int n)
{
    const __m512i abs = _mm512_set1_epi32(0x7fffffff);
    __m512i m = _mm512_setzero_si512();
    for (int i = 0; i < n; i += 16) {
        __m512i v = n - i >= 16 ? _mm512_loadu_si512(x + i) : _mm512_maskz_loadu_epi32(cb_mask16(n - i), x + i);
        m = _mm512_max_epi32(m, _mm512_and_si512(v, abs));
    }
    return m;
}

/* One group of n <= group elements (group a multiple of 16) to hi and lo bytes in natural order; missing ones are zero.
 * Returns the sum over the lanes. */
static inline __m512i quant_group(const float *x, int n, int group, float inv_of, int8_t *hi, int8_t *lo)
{
    const __m512 inv = _mm512_set1_ps(inv_of);
    const __m512i half = _mm512_set1_epi32(128);
    __m512i s = _mm512_setzero_si512();
    for (int i = 0; i < group; i += 16) {
        __m512i xi;
        if (n - i >= 16) xi = to_xi(_mm512_loadu_ps(x + i), inv);
        else xi = n > i ? to_xi(_mm512_maskz_loadu_ps(cb_mask16(n - i), x + i), inv) : _mm512_setzero_si512();
        s = _mm512_add_epi32(s, xi); /* lo is the low byte of xi, read as signed */
        _mm_store_si128((__m128i *)(void *)(hi + i),
                        _mm512_cvtepi32_epi8(_mm512_srai_epi32(_mm512_add_epi32(xi, half), 8)));
        _mm_store_si128((__m128i *)(void *)(lo + i), _mm512_cvtepi32_epi8(xi));
    }
    return s;
}

/* 64*pack bytes in natural order to `pack` planes of 64: plane j takes every pack-th byte from j on. */
static inline void deal(const int8_t *src, int pack, int8_t *out)
{
    if (pack == 1) {
        _mm512_store_si512(out, _mm512_loadu_si512(src));
        return;
    }
    for (int i = 0; i < pack; i++) {
        __m512i v = _mm512_loadu_si512(src + 64 * i);
        for (int j = 0; j < pack; j++) {
            int8_t *p = out + 64 * j + i * (64 / pack);
            if (pack == 2) _mm256_store_si256((__m256i *)(void *)p, _mm512_cvtepi16_epi8(v)), v = _mm512_srli_epi16(v, 8);
            else if (pack == 4) _mm_store_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8(v)), v = _mm512_srli_epi32(v, 8);
            else _mm_storel_epi64((__m128i *)(void *)p, _mm512_cvtepi64_epi8(v)), v = _mm512_srli_epi64(v, 8);
        }
    }
}

void cb_quant_row_avx512(const float *x, int n, int group, int pack, int8_t *planes, float *dx, float *xs, int32_t *sum)
{
    enum { GROUP_MAX = 128 };
    const int block = 64 * pack, span = BATCH * group;
    if (group % 16 || group > GROUP_MAX || span % block) {
        cb_quant_row_c(x, n, group, pack, planes, dx, xs, sum);
        return;
    }
    int8_t hi[BATCH * GROUP_MAX] __attribute__((aligned(64))), lo[BATCH * GROUP_MAX] __attribute__((aligned(64)));
    float inv[BATCH] __attribute__((aligned(64)));
    for (int e = 0; e < n; e += span, dx += BATCH, xs += BATCH, sum += BATCH) {
        const int have = n - e < span ? n - e : span, groups = (have + group - 1) / group;
        const __mmask16 k = cb_mask16(groups);
        __m512i v[BATCH];
        for (int g = 0; g < BATCH; g++)
            v[g] = g < groups ? group_max(x + e + g * group, have - g * group < group ? have - g * group : group)
                              : _mm512_setzero_si512();
        const __m512 m = _mm512_castsi512_ps(cb_fold16_x16(v, true));
        const __mmask16 some = _mm512_cmp_ps_mask(m, _mm512_set1_ps(CB_TINY), _CMP_GE_OQ);
        const __m512 d = _mm512_maskz_mul_ps(some, m, _mm512_set1_ps(CB_XI_INV));
        _mm512_store_ps(inv, _mm512_maskz_div_ps(some, _mm512_set1_ps(CB_XI_MAX), m));
        /* blocks are whole: groups that are missing from the last one are zero */
        const int whole = (have + block - 1) / block * block;
        for (int g = 0; g < BATCH; g++) {
            v[g] = _mm512_setzero_si512();
            if (g * group >= whole) continue;
            int left = have - g * group < 0 ? 0 : have - g * group;
            v[g] = quant_group(x + e + (left ? g * group : 0), left < group ? left : group, group, inv[g], hi + g * group,
                               lo + g * group);
        }
        const __m512i s = cb_fold16_x16(v, false);
        _mm512_mask_storeu_ps(dx, k, d);
        _mm512_mask_storeu_epi32(sum, k, s);
        _mm512_mask_storeu_ps(xs, k, _mm512_mul_ps(d, _mm512_cvtepi32_ps(s)));
        for (int i = 0; i < whole; i += block, planes += 2 * block) {
            deal(hi + i, pack, planes);
            deal(lo + i, pack, planes + block);
        }
    }
}

float cb_quant16_avx512(const float *x, int n, int16_t *xi)
{
    __m512 m = _mm512_setzero_ps();
    for (int i = 0; i < n; i += 16) m = load_abs_max(x + i, n - i, m);
    float top = _mm512_reduce_max_ps(m);
    bool zero = top < CB_TINY;
    __m512 inv = _mm512_set1_ps(zero ? 0 : CB_XI_MAX / top);
    for (int i = 0; i < n; i += 16) {
        __mmask16 k = cb_mask16(n - i);
        _mm256_mask_storeu_epi16(xi + i, k, _mm512_cvtepi32_epi16(to_xi(_mm512_maskz_loadu_ps(k, x + i), inv)));
    }
    return zero ? 0 : top * CB_XI_INV;
}

/* ---- norm ---------------------------------------------------------------------------------------------------------- */

float cb_sum_squares_avx512(const float *x, int n)
{
    __m512 a = _mm512_setzero_ps(), b = a; /* lanes 0..15 and 16..31 of the lane tree */
    for (int i = 0; i < n; i += 32) {
        __m512 v = _mm512_maskz_loadu_ps(cb_mask16(n - i), x + i);
        a = _mm512_fmadd_ps(v, v, a); /* a missing term adds +0 to a sum that is not negative: no change */
        if (i + 16 >= n) break;
        v = _mm512_maskz_loadu_ps(cb_mask16(n - i - 16), x + i + 16);
        b = _mm512_fmadd_ps(v, v, b);
    }
    return cb_lane_fold32_x16(a, b);
}

void cb_rmsnorm_avx512(float *y, const float *x, const float *w, int n, float eps)
{
    __m512 inv = _mm512_set1_ps(1.0f / sqrtf(cb_sum_squares_avx512(x, n) / (float)n + eps));
    for (int i = 0; i < n; i += 16) {
        __mmask16 k = cb_mask16(n - i);
        __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(k, x + i), inv);
        if (w) v = _mm512_mul_ps(v, _mm512_maskz_loadu_ps(k, w + i));
        _mm512_mask_storeu_ps(y + i, k, v);
    }
}

/* ---- elementwise ---------------------------------------------------------------------------------------------------- */

void cb_silu_mul_avx512(float *y, const float *gate, const float *up, int n)
{
    for (int i = 0; i < n; i += 16) {
        __mmask16 k = cb_mask16(n - i);
        __m512 u = _mm512_maskz_loadu_ps(k, up + i);
        _mm512_mask_storeu_ps(y + i, k, _mm512_mul_ps(cb_siluf_x16(_mm512_maskz_loadu_ps(k, gate + i)), u));
    }
}

void cb_gelu_mul_avx512(float *y, const float *gate, const float *up, int n)
{
    for (int i = 0; i < n; i += 16) {
        __mmask16 k = cb_mask16(n - i);
        __m512 u = _mm512_maskz_loadu_ps(k, up + i);
        _mm512_mask_storeu_ps(y + i, k, _mm512_mul_ps(cb_gelu_tanhf_x16(_mm512_maskz_loadu_ps(k, gate + i)), u));
    }
}

void cb_add_avx512(float *y, const float *a, const float *b, int n)
{
    for (int i = 0; i < n; i += 16) {
        __mmask16 k = cb_mask16(n - i);
        _mm512_mask_storeu_ps(y + i, k, _mm512_add_ps(_mm512_maskz_loadu_ps(k, a + i), _mm512_maskz_loadu_ps(k, b + i)));
    }
}

void cb_scale_avx512(float *y, const float *x, float s, int n)
{
    __m512 v = _mm512_set1_ps(s);
    for (int i = 0; i < n; i += 16) {
        __mmask16 k = cb_mask16(n - i);
        _mm512_mask_storeu_ps(y + i, k, _mm512_mul_ps(_mm512_maskz_loadu_ps(k, x + i), v));
    }
}

void cb_divide_avx512(float *y, const float *x, float s, int n)
{
    __m512 v = _mm512_set1_ps(s);
    for (int i = 0; i < n; i += 16) {
        __mmask16 k = cb_mask16(n - i);
        _mm512_mask_storeu_ps(y + i, k, _mm512_div_ps(_mm512_maskz_loadu_ps(k, x + i), v));
    }
}

void cb_split16_avx512(int16_t *hi, int16_t *lo, const int16_t *xi, int n)
{
    for (int i = 0; i < n; i += 32) { /* |xi| <= 32512: the sum with 128 fits 16 bits */
        __mmask32 k = n - i >= 32 ? ~0u : (1u << (n - i)) - 1;
        __m512i v = _mm512_maskz_loadu_epi16(k, xi + i);
        __m512i h = _mm512_srai_epi16(_mm512_add_epi16(v, _mm512_set1_epi16(128)), 8);
        _mm512_mask_storeu_epi16(hi + i, k, h);
        _mm512_mask_storeu_epi16(lo + i, k, _mm512_sub_epi16(v, _mm512_slli_epi16(h, 8)));
    }
}

void cb_softcap_avx512(float *y, const float *x, float cap, int n)
{
    __m512 c = _mm512_set1_ps(cap);
    for (int i = 0; i < n; i += 16) {
        __mmask16 k = cb_mask16(n - i);
        __m512 t = cb_tanhf_x16(_mm512_div_ps(_mm512_maskz_loadu_ps(k, x + i), c));
        _mm512_mask_storeu_ps(y + i, k, _mm512_mul_ps(c, t));
    }
}

void cb_rope_avx512(float *x, const float *cs, int n_pairs, int half)
{
    if (half < n_pairs) { /* overlapping halves: the order matters */
        cb_rope_c(x, cs, n_pairs, half);
        return;
    }
    for (int i = 0; i < n_pairs; i += 16) {
        __mmask16 k = cb_mask16(n_pairs - i);
        __m512 a = _mm512_maskz_loadu_ps(k, x + i), b = _mm512_maskz_loadu_ps(k, x + half + i);
        __m512 c = _mm512_maskz_loadu_ps(k, cs + i), s = _mm512_maskz_loadu_ps(k, cs + n_pairs + i);
        _mm512_mask_storeu_ps(x + i, k, _mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s)));
        _mm512_mask_storeu_ps(x + half + i, k, _mm512_fmadd_ps(b, c, _mm512_mul_ps(a, s)));
    }
}

bool cb_all_finite_avx512(const float *x, int64_t n)
{
    __m512i e = _mm512_set1_epi32(0x7f800000);
    for (int64_t i = 0; i < n; i += 64) {
        __mmask16 bad = 0;
        for (int64_t j = i; j < i + 64 && j < n; j += 16) {
            __m512i v = _mm512_maskz_loadu_epi32(cb_mask16(n - j), x + j);
            bad |= _mm512_cmpeq_epi32_mask(_mm512_and_si512(v, e), e);
        }
        if (bad) return false;
    }
    return true;
}
