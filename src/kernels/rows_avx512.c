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

/* One group of n <= group elements (group a multiple of 16) to hi and lo bytes in natural order; missing ones are zero. */
static inline int32_t quant_group(const float *x, int n, int group, int8_t *hi, int8_t *lo, float *dx)
{
    __m512 m = _mm512_setzero_ps();
    for (int i = 0; i < n; i += 16) m = load_abs_max(x + i, n - i, m);
    float top = _mm512_reduce_max_ps(m);
    bool zero = top < CB_TINY;
    __m512 inv = _mm512_set1_ps(zero ? 0 : CB_XI_MAX / top);
    __m512i s = _mm512_setzero_si512(), half = _mm512_set1_epi32(128);
    for (int i = 0; i < group; i += 16) {
        __m512i xi = _mm512_setzero_si512();
        if (i < n) xi = to_xi(_mm512_maskz_loadu_ps(cb_mask16(n - i), x + i), inv);
        __m512i h = _mm512_srai_epi32(_mm512_add_epi32(xi, half), 8);
        s = _mm512_add_epi32(s, xi); /* lo is the low byte of xi, read as signed */
        _mm_storeu_si128((__m128i *)(void *)(hi + i), _mm512_cvtepi32_epi8(h));
        _mm_storeu_si128((__m128i *)(void *)(lo + i), _mm512_cvtepi32_epi8(xi));
    }
    *dx = zero ? 0 : top * CB_XI_INV;
    return _mm512_reduce_add_epi32(s);
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
    enum { WINDOW = 512 }; /* a multiple of every group and block below */
    if (group != 16 && group != 32 && group != 64 && group != 128 && group != 256) {
        cb_quant_row_c(x, n, group, pack, planes, dx, xs, sum);
        return;
    }
    int8_t hi[WINDOW] __attribute__((aligned(64))), lo[WINDOW] __attribute__((aligned(64)));
    int block = 64 * pack, window = group > block ? group : block, g = 0;
    for (int e = 0; e < n; e += window) {
        int have = n - e < window ? n - e : window;
        for (int i = 0; i < window; i += group) {
            if (i < have) {
                sum[g] = quant_group(x + e + i, have - i < group ? have - i : group, group, hi + i, lo + i, dx + g);
                xs[g] = dx[g] * (float)sum[g];
                g++;
            } else {
                memset(hi + i, 0, (size_t)group);
                memset(lo + i, 0, (size_t)group);
            }
        }
        for (int i = 0; i < have; i += block, planes += 2 * block) {
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

void cb_rmsnorm_avx512(float *y, const float *x, const float *w, int n, float eps)
{
    __m512 a = _mm512_setzero_ps(), b = a; /* lanes 0..15 and 16..31 of the lane tree */
    for (int i = 0; i < n; i += 32) {
        __m512 v = _mm512_maskz_loadu_ps(cb_mask16(n - i), x + i);
        a = _mm512_fmadd_ps(v, v, a); /* a missing term adds +0 to a sum that is not negative: no change */
        if (i + 16 >= n) break;
        v = _mm512_maskz_loadu_ps(cb_mask16(n - i - 16), x + i + 16);
        b = _mm512_fmadd_ps(v, v, b);
    }
    __m512 inv = _mm512_set1_ps(1.0f / sqrtf(cb_lane_fold32_x16(a, b) / (float)n + eps));
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
