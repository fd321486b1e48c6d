/* rows_neon.c: norms, activations, rotation on four lanes; rows_c.c is the truth. Tails go through the scalar lines. */
#include "kernels/kernels_c.h"
#include "kernels/kernels_neon.h"
#include "kernels/num_neon.h"

float cb_sum_squares_neon(const float *x, int n)
{
    float32x4_t v[8];
    for (int j = 0; j < 8; j++) v[j] = v4_set(0);
    int i = 0;
    for (; i + 32 <= n; i += 32)
        for (int j = 0; j < 8; j++) {
            float32x4_t a = vld1q_f32(x + i + 4 * j);
            v[j] = vfmaq_f32(v[j], a, a);
        }
    float lane[32];
    for (int j = 0; j < 8; j++) vst1q_f32(lane + 4 * j, v[j]);
    for (; i < n; i++) lane[i % 32] = cb_fma(x[i], x[i], lane[i % 32]);
    return cb_lane_fold32(lane);
}

void cb_rmsnorm_neon(float *y, const float *x, const float *w, int n, float eps)
{
    int i;
    float inv = 1.0f / sqrtf(cb_sum_squares_neon(x, n) / (float)n + eps);
    for (i = 0; i + 4 <= n; i += 4) {
        float32x4_t a = vmulq_f32(vld1q_f32(x + i), v4_set(inv));
        vst1q_f32(y + i, w ? vmulq_f32(a, vld1q_f32(w + i)) : a);
    }
    for (; i < n; i++) {
        float a = x[i] * inv;
        y[i] = w ? a * w[i] : a;
    }
}

#define MAP2(NAME, A, B, VECTOR, SCALAR)                                                                                  \
    void NAME(float *y, const float *A, const float *B, int n)                                                            \
    {                                                                                                                     \
        int i = 0;                                                                                                        \
        for (; i + 4 <= n; i += 4) {                                                                                      \
            float32x4_t va = vld1q_f32(A + i), vb = vld1q_f32(B + i);                                                     \
            vst1q_f32(y + i, VECTOR);                                                                                     \
        }                                                                                                                 \
        for (; i < n; i++) y[i] = SCALAR;                                                                                 \
    }
MAP2(cb_silu_mul_neon, gate, up, vmulq_f32(v4_silu(va), vb), cb_siluf(gate[i]) * up[i])
MAP2(cb_gelu_mul_neon, gate, up, vmulq_f32(v4_gelu_tanh(va), vb), cb_gelu_tanhf(gate[i]) * up[i])
MAP2(cb_add_neon, a, b, vaddq_f32(va, vb), a[i] + b[i])

void cb_scale_neon(float *y, const float *x, float s, int n)
{
    int i = 0;
    for (; i + 4 <= n; i += 4) vst1q_f32(y + i, vmulq_f32(vld1q_f32(x + i), v4_set(s)));
    for (; i < n; i++) y[i] = x[i] * s;
}

void cb_divide_neon(float *y, const float *x, float s, int n)
{
    int i = 0;
    for (; i + 4 <= n; i += 4) vst1q_f32(y + i, vdivq_f32(vld1q_f32(x + i), v4_set(s)));
    for (; i < n; i++) y[i] = x[i] / s;
}

void cb_split16_neon(int16_t *hi, int16_t *lo, const int16_t *xi, int n)
{
    int i = 0;
    for (; i + 8 <= n; i += 8) { /* |xi| <= 32512: the sum with 128 fits 16 bits */
        int16x8_t v = vld1q_s16(xi + i), h = vshrq_n_s16(vaddq_s16(v, vdupq_n_s16(128)), 8);
        vst1q_s16(hi + i, h);
        vst1q_s16(lo + i, vsubq_s16(v, vshlq_n_s16(h, 8)));
    }
    if (i < n) cb_split16_c(hi + i, lo + i, xi + i, n - i);
}

void cb_softcap_neon(float *y, const float *x, float cap, int n)
{
    int i = 0;
    float32x4_t c = v4_set(cap);
    for (; i + 4 <= n; i += 4) vst1q_f32(y + i, vmulq_f32(c, v4_tanh(vdivq_f32(vld1q_f32(x + i), c))));
    for (; i < n; i++) y[i] = cap * cb_tanhf(x[i] / cap);
}

void cb_rope_neon(float *x, const float *cs, int n_pairs, int half)
{
    float *hi = x + half;
    const float *sn = cs + n_pairs;
    int i = 0;
    for (; i + 4 <= n_pairs; i += 4) {
        float32x4_t a = vld1q_f32(x + i), b = vld1q_f32(hi + i), c = vld1q_f32(cs + i), s = vld1q_f32(sn + i);
        vst1q_f32(x + i, vfmaq_f32(vnegq_f32(vmulq_f32(b, s)), a, c));
        vst1q_f32(hi + i, vfmaq_f32(vmulq_f32(a, s), b, c));
    }
    for (; i < n_pairs; i++) {
        float a = x[i], b = hi[i], c = cs[i], s = sn[i];
        x[i] = cb_fma(a, c, -(b * s));
        hi[i] = cb_fma(b, c, a * s);
    }
}

bool cb_all_finite_neon(const float *x, int64_t n)
{
    const uint32x4_t e = vdupq_n_u32(0x7f800000);
    uint32x4_t bad = vdupq_n_u32(0);
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        bad = vorrq_u32(bad, vceqq_u32(vandq_u32(vreinterpretq_u32_f32(vld1q_f32(x + i)), e), e));
    bool ok = vmaxvq_u32(bad) == 0;
    for (; i < n; i++) ok &= (cb_f2u(x[i]) & 0x7f800000u) != 0x7f800000u;
    return ok;
}
