/* hybrid_avx2.c: rotation, convolution, delta rule and gates on eight lanes; hybrid_c.c is the truth. */
#include "kernels/kernels_avx2.h"
#include "kernels/kernels_c.h"
#include "kernels/num_avx2.h"
#include <stdbool.h>

#define INLINE static inline __attribute__((always_inline)) /* for code whose arguments are constants */

/* ---- elementwise ---------------------------------------------------------------------------------------------------- */

void cb_axpy_avx2(float *y, float a, const float *x, int n)
{
    int i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, _mm256_fmadd_ps(v8_set(a), _mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i)));
    for (; i < n; i++) y[i] = cb_fma(a, x[i], y[i]);
}

void cb_sigmoid_mul_avx2(float *y, const float *gate, const float *up, int n)
{
    for (int i = 0; i < n; i += 8) {
        __m256i in = v8_below(n - i);
        __m256 g = _mm256_maskload_ps(gate + i, in), u = _mm256_maskload_ps(up + i, in);
        _mm256_maskstore_ps(y + i, in, _mm256_mul_ps(v8_sigmoid(g), u));
    }
}

void cb_mul_avx2(float *y, const float *a, const float *b, int n)
{
    int i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i)));
    for (; i < n; i++) y[i] = a[i] * b[i];
}

void cb_unit_avx2(float *y, const float *x, int n, float eps, float factor)
{
    int i;
    float inv = 1.0f / sqrtf(cb_sum_squares_avx2(x, n) + eps);
    for (i = 0; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), v8_set(inv)), v8_set(factor)));
    for (; i < n; i++) y[i] = (x[i] * inv) * factor;
}

float cb_exp_sum_avx2(float *y, const float *x, float m, int n)
{
    __m256 lane[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int i = 0; i < n; i += 8) {
        __m256i in = v8_below(n - i);
        __m256 e = v8_exp(_mm256_sub_ps(_mm256_maskload_ps(x + i, in), v8_set(m)));
        _mm256_maskstore_ps(y + i, in, e);
        __m256 *l = &lane[i / 8 % 4]; /* a lane is never -0: the masked 0 changes no bit */
        *l = _mm256_add_ps(*l, _mm256_and_ps(e, _mm256_castsi256_ps(in)));
    }
    return v8_lane_fold32(lane);
}

void cb_delta_gates_avx2(float *decay, float *beta, const float *a, const float *b, const float *a_log, const float *dt_bias, int n)
{
    for (int i = 0; i < n; i += 8) {
        __m256i in = v8_below(n - i);
        __m256 rate = v8_exp(_mm256_maskload_ps(a_log + i, in));
        __m256 s = v8_softplus(_mm256_add_ps(_mm256_maskload_ps(a + i, in), _mm256_maskload_ps(dt_bias + i, in)));
        __m256 g = v8_sigmoid(_mm256_maskload_ps(b + i, in));
        _mm256_maskstore_ps(decay + i, in, v8_exp(v8_neg(_mm256_mul_ps(rate, s))));
        _mm256_maskstore_ps(beta + i, in, g);
    }
}

/* ---- rotation ------------------------------------------------------------------------------------------------------- */

INLINE __m256 strides_1_to_4(__m256 x)
{
    __m256 to = _mm256_permute_ps(x, 0xb1); /* a + b in the lanes of a, a - b in those of b */
    x = _mm256_blend_ps(_mm256_add_ps(x, to), _mm256_sub_ps(to, x), 0xaa);
    to = _mm256_permute_ps(x, 0x4e);
    x = _mm256_blend_ps(_mm256_add_ps(x, to), _mm256_sub_ps(to, x), 0xcc);
    to = _mm256_permute2f128_ps(x, x, 1);
    return _mm256_blend_ps(_mm256_add_ps(x, to), _mm256_sub_ps(to, x), 0xf0);
}

INLINE void across_one(__m256 *v, const int N, const int S)
{
    for (int i = 0; i < N; i++)
        if (!(i & S)) {
            __m256 a = v[i], b = v[i + S];
            v[i] = _mm256_add_ps(a, b);
            v[i + S] = _mm256_sub_ps(a, b);
        }
}
/* Butterflies across N vectors that lie `step` floats apart; FIRST does the strides inside the vectors before. */
INLINE void across(float *p, int step, const int N, const bool FIRST, float scale)
{
    __m256 v[8];
    for (int i = 0; i < N; i++) {
        v[i] = _mm256_loadu_ps(p + i * step);
        if (FIRST) v[i] = strides_1_to_4(v[i]);
    }
    if (N > 1) across_one(v, N, 1);
    if (N > 2) across_one(v, N, 2);
    if (N > 4) across_one(v, N, 4);
    for (int i = 0; i < N; i++) _mm256_storeu_ps(p + i * step, _mm256_mul_ps(v[i], v8_set(scale)));
}
static void first_strides(float *p, int n, int block, float scale)
{
    switch (block) {
    case 8: for (int i = 0; i < n; i += 8) across(p + i, 8, 1, true, scale); break;
    case 16: for (int i = 0; i < n; i += 16) across(p + i, 8, 2, true, scale); break;
    case 32: for (int i = 0; i < n; i += 32) across(p + i, 8, 4, true, scale); break;
    default: for (int i = 0; i < n; i += 64) across(p + i, 8, 8, true, scale);
    }
}
/* Strides s .. s*N/2 of one block. */
static void far_strides(float *p, int block, int s, int N, float scale)
{
    for (int i = 0; i < block; i += s * N)
        for (int j = i; j < i + s; j += 8) switch (N) {
            case 2: across(p + j, s, 2, false, scale); break;
            case 4: across(p + j, s, 4, false, scale); break;
            default: across(p + j, s, 8, false, scale);
            }
}

void cb_hadamard_avx2(float *x, int n, int block, float scale)
{
    if (block < 8) {
        cb_hadamard_c(x, n, block, scale);
        return;
    }
    for (float *p = x; p < x + n; p += block) {
        first_strides(p, block, block, block <= 64 ? scale : 1.0f); /* times 1 changes no bit */
        for (int s = 64, N; s < block; s *= N) {
            N = block / s < 8 ? block / s : 8;
            far_strides(p, block, s, N, s * N == block ? scale : 1.0f);
        }
    }
}

/* ---- convolution ---------------------------------------------------------------------------------------------------- */

/* Channels 0 and 4 of eight with four taps each, from p = [8 channels][4 taps]; p + 4 gives 1 and 5 and so on. */
INLINE __m256 two_channels(const float *p) { return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), _mm_loadu_ps(p + 16), 1); }

void cb_conv_silu_avx2(float *y, const float *const *x, const float *w, int taps, int c0, int c1)
{
    int c = c0;
    if (taps == 4)
        for (; c + 8 <= c1; c += 8) {
            const float *p = w + 4 * (size_t)c;
            __m256 v0 = two_channels(p), v1 = two_channels(p + 4), v2 = two_channels(p + 8), v3 = two_channels(p + 12);
            __m256 l0 = _mm256_unpacklo_ps(v0, v1), h0 = _mm256_unpackhi_ps(v0, v1);
            __m256 l1 = _mm256_unpacklo_ps(v2, v3), h1 = _mm256_unpackhi_ps(v2, v3);
            __m256 acc = _mm256_setzero_ps();
            acc = _mm256_fmadd_ps(_mm256_shuffle_ps(l0, l1, 0x44), _mm256_loadu_ps(x[0] + c), acc);
            acc = _mm256_fmadd_ps(_mm256_shuffle_ps(l0, l1, 0xee), _mm256_loadu_ps(x[1] + c), acc);
            acc = _mm256_fmadd_ps(_mm256_shuffle_ps(h0, h1, 0x44), _mm256_loadu_ps(x[2] + c), acc);
            acc = _mm256_fmadd_ps(_mm256_shuffle_ps(h0, h1, 0xee), _mm256_loadu_ps(x[3] + c), acc);
            _mm256_storeu_ps(y + c, v8_silu(acc));
        }
    if (c < c1) cb_conv_silu_c(y, x, w, taps, c, c1);
}

/* ---- delta rule ----------------------------------------------------------------------------------------------------- */

/* Lane trees of (S[r]*decay)*k for two rows. */
INLINE void rows_times_k(const float *S, const float *k, __m256 decay, int dk, const int N, float *m)
{
    __m256 a[2][4];
    for (int r = 0; r < N; r++)
        for (int l = 0; l < 4; l++) a[r][l] = _mm256_setzero_ps();
    for (int j = 0; j < dk; j += 32)
        for (int l = 0; l < 4; l++) {
            __m256 kl = _mm256_loadu_ps(k + j + 8 * l);
            for (int r = 0; r < N; r++) {
                __m256 s = _mm256_mul_ps(_mm256_loadu_ps(S + (size_t)r * (size_t)dk + j + 8 * l), decay);
                a[r][l] = _mm256_fmadd_ps(s, kl, a[r][l]);
            }
        }
    for (int r = 0; r < N; r++) m[r] = v8_lane_fold32(a[r]);
}

/* S = fma(delta, k, S*decay), and the lane trees of S*q. */
INLINE void rows_update(float *S, const float *q, const float *k, __m256 decay, const float *delta, int dk, const int N, float *o)
{
    __m256 a[2][4], d[2];
    for (int r = 0; r < N; r++) {
        d[r] = v8_set(delta[r]);
        for (int l = 0; l < 4; l++) a[r][l] = _mm256_setzero_ps();
    }
    for (int j = 0; j < dk; j += 32)
        for (int l = 0; l < 4; l++) {
            __m256 kl = _mm256_loadu_ps(k + j + 8 * l), ql = _mm256_loadu_ps(q + j + 8 * l);
            for (int r = 0; r < N; r++) {
                float *at = S + (size_t)r * (size_t)dk + j + 8 * l;
                __m256 s = _mm256_fmadd_ps(d[r], kl, _mm256_mul_ps(_mm256_loadu_ps(at), decay));
                _mm256_storeu_ps(at, s);
                a[r][l] = _mm256_fmadd_ps(s, ql, a[r][l]);
            }
        }
    for (int r = 0; r < N; r++) o[r] = v8_lane_fold32(a[r]);
}

void cb_delta_step_avx2(float *S, const float *q, const float *k, const float *v, float decay, float beta, int dk, int n_v, float *o)
{
    if (dk % 32) {
        cb_delta_step_c(S, q, k, v, decay, beta, dk, n_v, o);
        return;
    }
    enum { ROWS = 16 }; /* 8 kB at 128 dims: still in L1 for the second pass, and the folds of one row hide behind the next */
    const __m256 dc = v8_set(decay);
    const size_t row = (size_t)dk;
    float d[ROWS];
    for (int i = 0; i < n_v; i += ROWS, S += ROWS * row) {
        int n = n_v - i < ROWS ? n_v - i : ROWS, r = 0;
        for (; r + 2 <= n; r += 2) rows_times_k(S + (size_t)r * row, k, dc, dk, 2, d + r);
        if (r < n) rows_times_k(S + (size_t)r * row, k, dc, dk, 1, d + r);
        for (r = 0; r < n; r++) d[r] = beta * (v[i + r] - d[r]);
        for (r = 0; r + 2 <= n; r += 2) rows_update(S + (size_t)r * row, q, k, dc, d + r, dk, 2, o + i + r);
        if (r < n) rows_update(S + (size_t)r * row, q, k, dc, d + r, dk, 1, o + i + r);
    }
}
