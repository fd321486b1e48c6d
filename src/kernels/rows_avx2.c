/* rows_avx2.c: norms, activations, rotation on eight lanes; rows_c.c is the truth. A tail is a masked load and store. */
#include "kernels/kernels_avx2.h"
#include "kernels/kernels_c.h"
#include "kernels/num_avx2.h"

float cb_sum_squares_avx2(const float *x, int n)
{
    __m256 lane[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
    int i = 0;
    for (; i + 32 <= n; i += 32)
        for (int j = 0; j < 4; j++) {
            __m256 v = _mm256_loadu_ps(x + i + 8 * j);
            lane[j] = _mm256_fmadd_ps(v, v, lane[j]);
        }
    for (int j = 0; i < n; i += 8, j++) { /* lanes are never negative, so adding the masked 0 changes no bit */
        __m256 v = _mm256_maskload_ps(x + i, v8_below(n - i));
        lane[j] = _mm256_fmadd_ps(v, v, lane[j]);
    }
    return v8_lane_fold32(lane);
}

void cb_rmsnorm_avx2(float *y, const float *x, const float *w, int n, float eps)
{
    int i;
    float inv = 1.0f / sqrtf(cb_sum_squares_avx2(x, n) / (float)n + eps);
    __m256 k = v8_set(inv);
    for (i = 0; i + 8 <= n; i += 8) {
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + i), k);
        _mm256_storeu_ps(y + i, w ? _mm256_mul_ps(v, _mm256_loadu_ps(w + i)) : v);
    }
    for (; i < n; i++) {
        float v = x[i] * inv;
        y[i] = w ? v * w[i] : v;
    }
}

/* y[i] = f(a[i], b[i]) in vectors; the tail goes through the same vector code under a mask. */
#define MAP2(NAME, A, B, EXPR)                                                                                          \
    void NAME(float *y, const float *A, const float *B, int n)                                                          \
    {                                                                                                                   \
        int i = 0;                                                                                                      \
        for (; i + 8 <= n; i += 8) {                                                                                    \
            __m256 va = _mm256_loadu_ps(A + i), vb = _mm256_loadu_ps(B + i);                                            \
            _mm256_storeu_ps(y + i, EXPR);                                                                              \
        }                                                                                                               \
        if (i < n) {                                                                                                    \
            __m256i in = v8_below(n - i);                                                                               \
            __m256 va = _mm256_maskload_ps(A + i, in), vb = _mm256_maskload_ps(B + i, in);                              \
            _mm256_maskstore_ps(y + i, in, EXPR);                                                                       \
        }                                                                                                               \
    }
MAP2(cb_silu_mul_avx2, gate, up, _mm256_mul_ps(v8_silu(va), vb))
MAP2(cb_gelu_mul_avx2, gate, up, _mm256_mul_ps(v8_gelu_tanh(va), vb))
MAP2(cb_add_avx2, a, b, _mm256_add_ps(va, vb))

void cb_scale_avx2(float *y, const float *x, float s, int n)
{
    int i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_loadu_ps(x + i), v8_set(s)));
    for (; i < n; i++) y[i] = x[i] * s;
}

void cb_divide_avx2(float *y, const float *x, float s, int n)
{
    int i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, _mm256_div_ps(_mm256_loadu_ps(x + i), v8_set(s)));
    for (; i < n; i++) y[i] = x[i] / s;
}

void cb_split16_avx2(int16_t *hi, int16_t *lo, const int16_t *xi, int n)
{
    int i = 0;
    for (; i + 16 <= n; i += 16) { /* |xi| <= 32512: the sum with 128 fits 16 bits */
        __m256i v = _mm256_loadu_si256((const void *)(xi + i));
        __m256i h = _mm256_srai_epi16(_mm256_add_epi16(v, _mm256_set1_epi16(128)), 8);
        _mm256_storeu_si256((void *)(hi + i), h);
        _mm256_storeu_si256((void *)(lo + i), _mm256_sub_epi16(v, _mm256_slli_epi16(h, 8)));
    }
    if (i < n) cb_split16_c(hi + i, lo + i, xi + i, n - i);
}

static inline __m256 softcap8(__m256 x, __m256 cap) { return _mm256_mul_ps(cap, v8_tanh(_mm256_div_ps(x, cap))); }

void cb_softcap_avx2(float *y, const float *x, float cap, int n)
{
    int i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, softcap8(_mm256_loadu_ps(x + i), v8_set(cap)));
    __m256i in = v8_below(n - i);
    if (i < n) _mm256_maskstore_ps(y + i, in, softcap8(_mm256_maskload_ps(x + i, in), v8_set(cap)));
}

void cb_rope_avx2(float *x, const float *cs, int n_pairs, int half)
{
    float *hi = x + half;
    const float *sn = cs + n_pairs;
    int i = 0;
    for (; i + 8 <= n_pairs; i += 8) {
        __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(hi + i);
        __m256 c = _mm256_loadu_ps(cs + i), s = _mm256_loadu_ps(sn + i);
        _mm256_storeu_ps(x + i, _mm256_fmsub_ps(a, c, _mm256_mul_ps(b, s)));
        _mm256_storeu_ps(hi + i, _mm256_fmadd_ps(b, c, _mm256_mul_ps(a, s)));
    }
    for (; i < n_pairs; i++) {
        float a = x[i], b = hi[i], c = cs[i], s = sn[i];
        x[i] = cb_fma(a, c, -(b * s));
        hi[i] = cb_fma(b, c, a * s);
    }
}

bool cb_all_finite_avx2(const float *x, int64_t n)
{
    const __m256i e = _mm256_set1_epi32(0x7f800000);
    __m256i bad = _mm256_setzero_si256();
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256i v = _mm256_loadu_si256((const void *)(x + i));
        bad = _mm256_or_si256(bad, _mm256_cmpeq_epi32(_mm256_and_si256(v, e), e));
    }
    bool ok = _mm256_testz_si256(bad, bad);
    for (; i < n; i++) ok &= (cb_f2u(x[i]) & 0x7f800000u) != 0x7f800000u;
    return ok;
}
