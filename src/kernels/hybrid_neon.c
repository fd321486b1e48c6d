/* hybrid_neon.c: rotation, convolution, delta rule and gates on four lanes; hybrid_c.c is the truth. Tails go through the scalar
 * lines. */
#include "kernels/kernels_c.h"
#include "kernels/kernels_neon.h"
#include "kernels/num_neon.h"

#define INLINE static inline __attribute__((always_inline)) /* for code whose arguments are constants */

/* ---- elementwise ---------------------------------------------------------------------------------------------------- */

void cb_axpy_neon(float *y, float a, const float *x, int n)
{
    int i = 0;
    for (; i + 4 <= n; i += 4) vst1q_f32(y + i, vfmaq_f32(vld1q_f32(y + i), v4_set(a), vld1q_f32(x + i)));
    for (; i < n; i++) y[i] = cb_fma(a, x[i], y[i]);
}

void cb_sigmoid_mul_neon(float *y, const float *gate, const float *up, int n)
{
    int i = 0;
    for (; i + 4 <= n; i += 4) vst1q_f32(y + i, vmulq_f32(v4_sigmoid(vld1q_f32(gate + i)), vld1q_f32(up + i)));
    for (; i < n; i++) y[i] = cb_sigmoidf(gate[i]) * up[i];
}

void cb_mul_neon(float *y, const float *a, const float *b, int n)
{
    int i = 0;
    for (; i + 4 <= n; i += 4) vst1q_f32(y + i, vmulq_f32(vld1q_f32(a + i), vld1q_f32(b + i)));
    for (; i < n; i++) y[i] = a[i] * b[i];
}

void cb_unit_neon(float *y, const float *x, int n, float eps, float factor)
{
    int i;
    float inv = 1.0f / sqrtf(cb_sum_squares_neon(x, n) + eps);
    for (i = 0; i + 4 <= n; i += 4) vst1q_f32(y + i, vmulq_f32(vmulq_f32(vld1q_f32(x + i), v4_set(inv)), v4_set(factor)));
    for (; i < n; i++) y[i] = (x[i] * inv) * factor;
}

float cb_exp_sum_neon(float *y, const float *x, float m, int n)
{
    float lane[32] = {0};
    int i = 0;
    for (; i + 4 <= n; i += 4) {
        float32x4_t e = v4_exp(vsubq_f32(vld1q_f32(x + i), v4_set(m)));
        vst1q_f32(y + i, e);
        vst1q_f32(lane + i % 32, vaddq_f32(vld1q_f32(lane + i % 32), e));
    }
    for (; i < n; i++) {
        y[i] = cb_expf(x[i] - m);
        lane[i % 32] += y[i];
    }
    return cb_lane_fold32(lane);
}

void cb_delta_gates_neon(float *decay, float *beta, const float *a, const float *b, const float *a_log, const float *dt_bias, int n)
{
    int i = 0;
    for (; i + 4 <= n; i += 4) {
        float32x4_t s = v4_softplus(vaddq_f32(vld1q_f32(a + i), vld1q_f32(dt_bias + i)));
        float32x4_t g = v4_sigmoid(vld1q_f32(b + i));
        vst1q_f32(decay + i, v4_exp(vnegq_f32(vmulq_f32(v4_exp(vld1q_f32(a_log + i)), s))));
        vst1q_f32(beta + i, g);
    }
    if (i < n) cb_delta_gates_c(decay + i, beta + i, a + i, b + i, a_log + i, dt_bias + i, n - i);
}

/* ---- rotation ------------------------------------------------------------------------------------------------------- */

/* (a, b) to (a + b, a - b) of neighbours, then of pairs. */
INLINE float32x4_t strides_1_and_2(float32x4_t x)
{
    float32x4_t even = vtrn1q_f32(x, x), odd = vtrn2q_f32(x, x);
    x = vtrn1q_f32(vaddq_f32(even, odd), vsubq_f32(even, odd));
    float32x4_t low = vcombine_f32(vget_low_f32(x), vget_low_f32(x)), high = vcombine_f32(vget_high_f32(x), vget_high_f32(x));
    return vcombine_f32(vget_low_f32(vaddq_f32(low, high)), vget_low_f32(vsubq_f32(low, high)));
}

INLINE void across_one(float32x4_t *v, const int N, const int S)
{
    for (int i = 0; i < N; i++)
        if (!(i & S)) {
            float32x4_t a = v[i], b = v[i + S];
            v[i] = vaddq_f32(a, b);
            v[i + S] = vsubq_f32(a, b);
        }
}
/* Butterflies across N vectors that lie `step` floats apart; FIRST does the strides inside the vectors before. */
INLINE void across(float *p, int step, const int N, const int FIRST, float scale)
{
    float32x4_t v[16];
    for (int i = 0; i < N; i++) {
        v[i] = vld1q_f32(p + i * step);
        if (FIRST) v[i] = strides_1_and_2(v[i]);
    }
    if (N > 1) across_one(v, N, 1);
    if (N > 2) across_one(v, N, 2);
    if (N > 4) across_one(v, N, 4);
    if (N > 8) across_one(v, N, 8);
    for (int i = 0; i < N; i++) vst1q_f32(p + i * step, vmulq_f32(v[i], v4_set(scale)));
}
static void first_strides(float *p, int n, int block, float scale)
{
    switch (block) {
    case 4: for (int i = 0; i < n; i += 4) across(p + i, 4, 1, 1, scale); break;
    case 8: for (int i = 0; i < n; i += 8) across(p + i, 4, 2, 1, scale); break;
    case 16: for (int i = 0; i < n; i += 16) across(p + i, 4, 4, 1, scale); break;
    case 32: for (int i = 0; i < n; i += 32) across(p + i, 4, 8, 1, scale); break;
    default: for (int i = 0; i < n; i += 64) across(p + i, 4, 16, 1, scale);
    }
}
/* Strides s .. s*N/2 of one block. */
static void far_strides(float *p, int block, int s, int N, float scale)
{
    for (int i = 0; i < block; i += s * N)
        for (int j = i; j < i + s; j += 4) switch (N) {
            case 2: across(p + j, s, 2, 0, scale); break;
            case 4: across(p + j, s, 4, 0, scale); break;
            case 8: across(p + j, s, 8, 0, scale); break;
            default: across(p + j, s, 16, 0, scale);
            }
}

void cb_hadamard_neon(float *x, int n, int block, float scale)
{
    if (block < 4) {
        cb_hadamard_c(x, n, block, scale);
        return;
    }
    for (float *p = x; p < x + n; p += block) {
        first_strides(p, block, block, block <= 64 ? scale : 1.0f); /* times 1 changes no bit */
        for (int s = 64, N; s < block; s *= N) {
            N = block / s < 16 ? block / s : 16;
            far_strides(p, block, s, N, s * N == block ? scale : 1.0f);
        }
    }
}

/* ---- convolution ---------------------------------------------------------------------------------------------------- */

void cb_conv_silu_neon(float *y, const float *const *x, const float *w, int taps, int c0, int c1)
{
    int c = c0;
    if (taps == 4)
        for (; c + 4 <= c1; c += 4) {
            float32x4x4_t t = vld4q_f32(w + 4 * (size_t)c); /* one vector a tap */
            float32x4_t acc = v4_set(0);
            for (int j = 0; j < 4; j++) acc = vfmaq_f32(acc, t.val[j], vld1q_f32(x[j] + c));
            vst1q_f32(y + c, v4_silu(acc));
        }
    if (c < c1) cb_conv_silu_c(y, x, w, taps, c, c1);
}

/* ---- delta rule ----------------------------------------------------------------------------------------------------- */

/* Lane tree of (S*decay)*k of one row. */
INLINE float row_times_k(const float *S, const float *k, float32x4_t decay, int dk)
{
    float32x4_t a[8];
    for (int l = 0; l < 8; l++) a[l] = v4_set(0);
    for (int j = 0; j < dk; j += 32)
        for (int l = 0; l < 8; l++)
            a[l] = vfmaq_f32(a[l], vmulq_f32(vld1q_f32(S + j + 4 * l), decay), vld1q_f32(k + j + 4 * l));
    return v4_lane_fold32(a);
}

/* S = fma(delta, k, S*decay); the lane tree of S*q. */
INLINE float row_update(float *S, const float *q, const float *k, float32x4_t decay, float delta, int dk)
{
    float32x4_t a[8], d = v4_set(delta);
    for (int l = 0; l < 8; l++) a[l] = v4_set(0);
    for (int j = 0; j < dk; j += 32)
        for (int l = 0; l < 8; l++) {
            float *at = S + j + 4 * l;
            float32x4_t s = vfmaq_f32(vmulq_f32(vld1q_f32(at), decay), d, vld1q_f32(k + j + 4 * l));
            vst1q_f32(at, s);
            a[l] = vfmaq_f32(a[l], s, vld1q_f32(q + j + 4 * l));
        }
    return v4_lane_fold32(a);
}

void cb_delta_step_neon(float *S, const float *q, const float *k, const float *v, float decay, float beta, int dk, int n_v, float *o)
{
    if (dk % 32) {
        cb_delta_step_c(S, q, k, v, decay, beta, dk, n_v, o);
        return;
    }
    enum { ROWS = 16 }; /* still in L1 for the second pass, and the fold of one row hides behind the next */
    const float32x4_t dc = v4_set(decay);
    float d[ROWS];
    for (int i = 0; i < n_v; i += ROWS, S += ROWS * (size_t)dk) {
        int n = n_v - i < ROWS ? n_v - i : ROWS;
        for (int r = 0; r < n; r++) d[r] = beta * (v[i + r] - row_times_k(S + (size_t)r * (size_t)dk, k, dc, dk));
        for (int r = 0; r < n; r++) o[i + r] = row_update(S + (size_t)r * (size_t)dk, q, k, dc, d[r], dk);
    }
}
