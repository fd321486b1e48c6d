/* hybrid_avx512.c: rotation, convolution, delta rule and gates sixteen lanes at a time; hybrid_c.c is the truth. Tails are
 * masked, so nothing is read or written past the last element. */
#include "kernels/kernels_avx512.h"
#include "kernels/kernels_c.h"
#include "kernels/num_avx512.h"

/* ---- elementwise ---------------------------------------------------------------------------------------------------- */

void cb_axpy_avx512(float *y, float a, const float *x, int n)
{
    __m512 v = _mm512_set1_ps(a);
    for (int i = 0; i < n; i += 16) {
        __mmask16 k = cb_mask16(n - i);
        _mm512_mask_storeu_ps(y + i, k, _mm512_fmadd_ps(v, _mm512_maskz_loadu_ps(k, x + i), _mm512_maskz_loadu_ps(k, y + i)));
    }
}

void cb_sigmoid_mul_avx512(float *y, const float *gate, const float *up, int n)
{
    for (int i = 0; i < n; i += 16) {
        __mmask16 k = cb_mask16(n - i);
        __m512 u = _mm512_maskz_loadu_ps(k, up + i);
        _mm512_mask_storeu_ps(y + i, k, _mm512_mul_ps(cb_sigmoidf_x16(_mm512_maskz_loadu_ps(k, gate + i)), u));
    }
}

void cb_mul_avx512(float *y, const float *a, const float *b, int n)
{
    for (int i = 0; i < n; i += 16) {
        __mmask16 k = cb_mask16(n - i);
        _mm512_mask_storeu_ps(y + i, k, _mm512_mul_ps(_mm512_maskz_loadu_ps(k, a + i), _mm512_maskz_loadu_ps(k, b + i)));
    }
}

void cb_unit_avx512(float *y, const float *x, int n, float eps, float factor)
{
    __m512 inv = _mm512_set1_ps(1.0f / sqrtf(cb_sum_squares_avx512(x, n) + eps)), f = _mm512_set1_ps(factor);
    for (int i = 0; i < n; i += 16) {
        __mmask16 k = cb_mask16(n - i);
        _mm512_mask_storeu_ps(y + i, k, _mm512_mul_ps(_mm512_mul_ps(_mm512_maskz_loadu_ps(k, x + i), inv), f));
    }
}

float cb_exp_sum_avx512(float *y, const float *x, float m, int n)
{
    __m512 lane[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()}, top = _mm512_set1_ps(m);
    for (int i = 0; i < n; i += 16) {
        __mmask16 k = cb_mask16(n - i);
        __m512 e = cb_expf_x16(_mm512_sub_ps(_mm512_maskz_loadu_ps(k, x + i), top));
        _mm512_mask_storeu_ps(y + i, k, e);
        lane[i / 16 % 2] = _mm512_mask_add_ps(lane[i / 16 % 2], k, lane[i / 16 % 2], e);
    }
    return cb_lane_fold32_x16(lane[0], lane[1]);
}

void cb_delta_gates_avx512(float *decay, float *beta, const float *a, const float *b, const float *a_log, const float *dt_bias, int n)
{
    for (int i = 0; i < n; i += 16) {
        __mmask16 k = cb_mask16(n - i);
        __m512 rate = cb_expf_x16(_mm512_maskz_loadu_ps(k, a_log + i));
        __m512 s = cb_softplusf_x16(_mm512_add_ps(_mm512_maskz_loadu_ps(k, a + i), _mm512_maskz_loadu_ps(k, dt_bias + i)));
        __m512 g = cb_sigmoidf_x16(_mm512_maskz_loadu_ps(k, b + i));
        _mm512_mask_storeu_ps(decay + i, k, cb_expf_x16(cb_neg_x16(_mm512_mul_ps(rate, s))));
        _mm512_mask_storeu_ps(beta + i, k, g);
    }
}

/* ---- rotation ------------------------------------------------------------------------------------------------------- */

/* (a, b) to (a + b, a - b) where b lies S lanes after a; `to` is x with those lanes swapped, `b` the mask of the lanes of b. */
INLINE __m512 in_lane(__m512 x, __m512 to, __mmask16 b) { return _mm512_mask_sub_ps(_mm512_add_ps(x, to), b, to, x); }

INLINE __m512 strides_1_to_8(__m512 x)
{
    x = in_lane(x, _mm512_permute_ps(x, 0xb1), 0xaaaa);
    x = in_lane(x, _mm512_permute_ps(x, 0x4e), 0xcccc);
    x = in_lane(x, _mm512_shuffle_f32x4(x, x, 0xb1), 0xf0f0);
    return in_lane(x, _mm512_shuffle_f32x4(x, x, 0x4e), 0xff00);
}

INLINE void across_one(__m512 *v, const int N, const int S)
{
    for (int i = 0; i < N; i++)
        if (!(i & S)) {
            __m512 a = v[i], b = v[i + S];
            v[i] = _mm512_add_ps(a, b);
            v[i + S] = _mm512_sub_ps(a, b);
        }
}
/* Butterflies across N vectors that lie `step` floats apart; FIRST does the strides inside the vectors before. */
INLINE void across(float *p, int step, const int N, const bool FIRST, float scale)
{
    __m512 v[16];
    for (int i = 0; i < N; i++) {
        v[i] = _mm512_loadu_ps(p + i * step);
        if (FIRST) v[i] = strides_1_to_8(v[i]);
    }
    if (N > 1) across_one(v, N, 1);
    if (N > 2) across_one(v, N, 2);
    if (N > 4) across_one(v, N, 4);
    if (N > 8) across_one(v, N, 8);
    for (int i = 0; i < N; i++) _mm512_storeu_ps(p + i * step, _mm512_mul_ps(v[i], _mm512_set1_ps(scale)));
}
static void first_strides(float *p, int n, int block, float scale)
{
    switch (block) {
    case 16: for (int i = 0; i < n; i += 16) across(p + i, 16, 1, true, scale); break;
    case 32: for (int i = 0; i < n; i += 32) across(p + i, 16, 2, true, scale); break;
    case 64: for (int i = 0; i < n; i += 64) across(p + i, 16, 4, true, scale); break;
    case 128: for (int i = 0; i < n; i += 128) across(p + i, 16, 8, true, scale); break;
    default: for (int i = 0; i < n; i += 256) across(p + i, 16, 16, true, scale);
    }
}
/* Strides s .. s*N/2 of one block. */
static void far_strides(float *p, int block, int s, int N, float scale)
{
    for (int i = 0; i < block; i += s * N)
        for (int j = i; j < i + s; j += 16) switch (N) {
            case 2: across(p + j, s, 2, false, scale); break;
            case 4: across(p + j, s, 4, false, scale); break;
            case 8: across(p + j, s, 8, false, scale); break;
            default: across(p + j, s, 16, false, scale);
            }
}

void cb_hadamard_avx512(float *x, int n, int block, float scale)
{
    if (block < 16) {
        cb_hadamard_c(x, n, block, scale);
        return;
    }
    for (float *p = x; p < x + n; p += block) {
        first_strides(p, block, block, block <= 256 ? scale : 1.0f); /* times 1 changes no bit */
        for (int s = 256, N; s < block; s *= N) {
            N = block / s < 16 ? block / s : 16;
            far_strides(p, block, s, N, s * N == block ? scale : 1.0f);
        }
    }
}

/* ---- convolution ---------------------------------------------------------------------------------------------------- */

void cb_conv_silu_avx512(float *y, const float *const *x, const float *w, int taps, int c0, int c1)
{
    if (taps != 4) {
        cb_conv_silu_c(y, x, w, taps, c0, c1);
        return;
    }
    /* four vectors of [4 channels][4 taps] to one a tap: two vectors to taps 0 and 1, taps 2 and 3 of 8 channels, then 16 */
    const __m512i t01 = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
    const __m512i t23 = _mm512_add_epi32(t01, _mm512_set1_epi32(2));
    for (int c = c0; c < c1; c += 16) {
        const float *p = w + 4 * (size_t)c;
        const int left = 4 * (c1 - c < 16 ? c1 - c : 16);
        __m512 v[4];
        for (int i = 0; i < 4; i++) {
            __mmask16 in = left > 16 * i ? cb_mask16(left - 16 * i) : 0;
            v[i] = _mm512_maskz_loadu_ps(in, in ? p + 16 * i : p);
        }
        __m512 a = _mm512_permutex2var_ps(v[0], t01, v[1]), b = _mm512_permutex2var_ps(v[2], t01, v[3]);
        __m512 d = _mm512_permutex2var_ps(v[0], t23, v[1]), e = _mm512_permutex2var_ps(v[2], t23, v[3]);
        const __mmask16 k = cb_mask16(c1 - c);
        __m512 acc = _mm512_setzero_ps();
        acc = _mm512_fmadd_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_maskz_loadu_ps(k, x[0] + c), acc);
        acc = _mm512_fmadd_ps(_mm512_shuffle_f32x4(a, b, 0xee), _mm512_maskz_loadu_ps(k, x[1] + c), acc);
        acc = _mm512_fmadd_ps(_mm512_shuffle_f32x4(d, e, 0x44), _mm512_maskz_loadu_ps(k, x[2] + c), acc);
        acc = _mm512_fmadd_ps(_mm512_shuffle_f32x4(d, e, 0xee), _mm512_maskz_loadu_ps(k, x[3] + c), acc);
        _mm512_mask_storeu_ps(y + c, k, cb_siluf_x16(acc));
    }
}

/* ---- delta rule ----------------------------------------------------------------------------------------------------- */

/* Sixteen vectors to one: lane i is the end of the lane tree of v[i], whose lanes 0..15 and 16..31 were added already. Additions
 * pair the same lanes as cb_lane_fold32 (j with j + 8, 4, 2, 1); which vector comes first in them does not matter. */
INLINE __m512 fold_x16(const __m512 *v)
{
    __m512 a[8], b[4], c[2];
    for (int i = 0; i < 8; i++) /* 8 lanes of v[i], 8 of v[i + 8] */
        a[i] = _mm512_add_ps(_mm512_shuffle_f32x4(v[i], v[i + 8], 0x44), _mm512_shuffle_f32x4(v[i], v[i + 8], 0xee));
    for (int i = 0; i < 4; i++) /* 4 lanes of vectors i, i + 8, i + 4, i + 12 */
        b[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a[i], a[i + 4], 0x88), _mm512_shuffle_f32x4(a[i], a[i + 4], 0xdd));
    for (int i = 0; i < 2; i++) { /* in each 128 bits 2 lanes of vectors i and i + 2 */
        __m512d l = _mm512_castps_pd(b[i]), h = _mm512_castps_pd(b[i + 2]);
        c[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(l, h)), _mm512_castpd_ps(_mm512_unpackhi_pd(l, h)));
    }
    __m512 s = _mm512_add_ps(_mm512_shuffle_ps(c[0], c[1], 0x88), _mm512_shuffle_ps(c[0], c[1], 0xdd));
    /* the 128-bit parts begin with vectors 0, 8, 4, 12 and hold +0, +2, +1, +3 */
    const __m512i order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
    return _mm512_permutexvar_ps(order, s);
}

/* v[r] = the two halves of the lane tree of (S[r]*decay)*k, N rows. */
INLINE void rows_times_k(const float *S, const float *k, __m512 decay, int dk, const int N, __m512 *v)
{
    __m512 a[8], b[8];
    for (int r = 0; r < N; r++) a[r] = b[r] = _mm512_setzero_ps();
    for (int j = 0; j < dk; j += 32) {
        __m512 k0 = _mm512_loadu_ps(k + j), k1 = _mm512_loadu_ps(k + j + 16);
        for (int r = 0; r < N; r++) {
            const float *s = S + (size_t)r * (size_t)dk + j;
            a[r] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_loadu_ps(s), decay), k0, a[r]);
            b[r] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_loadu_ps(s + 16), decay), k1, b[r]);
        }
    }
    for (int r = 0; r < N; r++) v[r] = _mm512_add_ps(a[r], b[r]);
}

/* S = fma(delta, k, S*decay); v[r] as above of S*q. */
INLINE void rows_update(float *S, const float *q, const float *k, __m512 decay, const float *delta, int dk, const int N, __m512 *v)
{
    __m512 a[4], b[4], d[4];
    for (int r = 0; r < N; r++) a[r] = b[r] = _mm512_setzero_ps(), d[r] = _mm512_set1_ps(delta[r]);
    for (int j = 0; j < dk; j += 32) {
        __m512 k0 = _mm512_loadu_ps(k + j), k1 = _mm512_loadu_ps(k + j + 16);
        __m512 q0 = _mm512_loadu_ps(q + j), q1 = _mm512_loadu_ps(q + j + 16);
        for (int r = 0; r < N; r++) {
            float *s = S + (size_t)r * (size_t)dk + j;
            __m512 s0 = _mm512_fmadd_ps(d[r], k0, _mm512_mul_ps(_mm512_loadu_ps(s), decay));
            __m512 s1 = _mm512_fmadd_ps(d[r], k1, _mm512_mul_ps(_mm512_loadu_ps(s + 16), decay));
            _mm512_storeu_ps(s, s0);
            _mm512_storeu_ps(s + 16, s1);
            a[r] = _mm512_fmadd_ps(s0, q0, a[r]);
            b[r] = _mm512_fmadd_ps(s1, q1, b[r]);
        }
    }
    for (int r = 0; r < N; r++) v[r] = _mm512_add_ps(a[r], b[r]);
}

void cb_delta_step_avx512(float *S, const float *q, const float *k, const float *v, float decay, float beta, int dk, int n_v, float *o)
{
    if (dk % 32) {
        cb_delta_step_c(S, q, k, v, decay, beta, dk, n_v, o);
        return;
    }
    const __m512 dc = _mm512_set1_ps(decay), zero = _mm512_setzero_ps();
    float delta[16] __attribute__((aligned(64)));
    __m512 t[16];
    const size_t row = (size_t)dk;
    int i = 0;
    for (; i + 16 <= n_v; i += 16, S += 16 * row) { /* sixteen rows: 8 kB at 128 dims, still in L1 for the second pass */
        rows_times_k(S, k, dc, dk, 8, t);
        rows_times_k(S + 8 * row, k, dc, dk, 8, t + 8);
        _mm512_store_ps(delta, _mm512_mul_ps(_mm512_set1_ps(beta), _mm512_sub_ps(_mm512_loadu_ps(v + i), fold_x16(t))));
        for (int r = 0; r < 16; r += 4) rows_update(S + (size_t)r * row, q, k, dc, delta + r, dk, 4, t + r);
        _mm512_storeu_ps(o + i, fold_x16(t));
    }
    for (; i < n_v; i++, S += row) {
        rows_times_k(S, k, dc, dk, 1, t);
        delta[0] = beta * (v[i] - cb_lane_fold32_x16(t[0], zero));
        rows_update(S, q, k, dc, delta, dk, 1, t);
        o[i] = cb_lane_fold32_x16(t[0], zero);
    }
}
