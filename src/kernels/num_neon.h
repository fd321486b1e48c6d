/* num_neon.h: num.h on four lanes, step by step the same operations, so the same bits. Read num.h first. */
#ifndef CB_KERNELS_NUM_NEON_H
#define CB_KERNELS_NUM_NEON_H
#include "kernels/num.h"
#include <arm_neon.h>

static inline float32x4_t v4_set(float f) { return vdupq_n_f32(f); }
/* a > b ? a : b, which is b when one is a NaN (FMAX would give the NaN) */
static inline float32x4_t v4_max(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
static inline float v4_hmax(float32x4_t m)
{
    float lane[4], r;
    vst1q_f32(lane, m);
    r = lane[0];
    for (int i = 1; i < 4; i++) r = lane[i] > r ? lane[i] : r;
    return r;
}

/* cb_expf */
static inline float32x4_t v4_exp(float32x4_t x)
{
    float32x4_t max = v4_set(CB_EXP_MAX), c = vbslq_f32(vcgtq_f32(x, max), max, x);
    float32x4_t t = vfmaq_f32(v4_set(CB_EXP_MAGIC), c, v4_set(CB_EXP_LOG2E));
    float32x4_t n = vsubq_f32(t, v4_set(CB_EXP_MAGIC));
    float32x4_t r = vfmaq_f32(c, n, v4_set(-CB_EXP_LN2_HI));
    r = vfmaq_f32(r, n, v4_set(-CB_EXP_LN2_LO));
    float32x4_t p = v4_set(1.0f / 5040.0f);
    p = vfmaq_f32(v4_set(1.0f / 720.0f), p, r);
    p = vfmaq_f32(v4_set(1.0f / 120.0f), p, r);
    p = vfmaq_f32(v4_set(1.0f / 24.0f), p, r);
    p = vfmaq_f32(v4_set(1.0f / 6.0f), p, r);
    p = vfmaq_f32(v4_set(0.5f), p, r);
    p = vfmaq_f32(v4_set(1.0f), p, r);
    p = vfmaq_f32(v4_set(1.0f), p, r);
    uint32x4_t two_n = vshlq_n_u32(vaddq_u32(vreinterpretq_u32_f32(t), vdupq_n_u32(127)), 23);
    float32x4_t y = vmulq_f32(p, vreinterpretq_f32_u32(two_n));
    uint32x4_t tiny = vcltq_f32(c, v4_set(CB_EXP_MIN));
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(y), tiny));
}

/* cb_siluf, cb_gelu_tanhf, cb_tanhf */
static inline float32x4_t v4_silu(float32x4_t z)
{
    return vdivq_f32(z, vaddq_f32(v4_set(1.0f), v4_exp(vnegq_f32(z))));
}
static inline float32x4_t v4_sigmoid(float32x4_t z)
{
    return vdivq_f32(v4_set(1.0f), vaddq_f32(v4_set(1.0f), v4_exp(vnegq_f32(z))));
}
static inline float32x4_t v4_softplus(float32x4_t x)
{
    float32x4_t e = v4_exp(vnegq_f32(vabsq_f32(x)));
    float32x4_t z = vdivq_f32(e, vaddq_f32(v4_set(2.0f), e)), z2 = vmulq_f32(z, z), p = v4_set(1.0f / 15.0f);
    p = vfmaq_f32(v4_set(1.0f / 13.0f), p, z2);
    p = vfmaq_f32(v4_set(1.0f / 11.0f), p, z2);
    p = vfmaq_f32(v4_set(1.0f / 9.0f), p, z2);
    p = vfmaq_f32(v4_set(1.0f / 7.0f), p, z2);
    p = vfmaq_f32(v4_set(1.0f / 5.0f), p, z2);
    p = vfmaq_f32(v4_set(1.0f / 3.0f), p, z2);
    p = vfmaq_f32(v4_set(1.0f), p, z2);
    return vfmaq_f32(v4_max(x, v4_set(0)), vmulq_f32(v4_set(2.0f), z), p);
}
static inline float32x4_t v4_gelu_tanh(float32x4_t z)
{
    float32x4_t z2 = vmulq_f32(z, z);
    float32x4_t a = vfmaq_f32(v4_set(1.0f), z2, v4_set(0.044715f));
    float32x4_t u2 = vmulq_f32(vmulq_f32(z, v4_set(-1.5957691216057308f)), a);
    return vdivq_f32(z, vaddq_f32(v4_set(1.0f), v4_exp(u2)));
}
static inline float32x4_t v4_tanh(float32x4_t z)
{
    float32x4_t e = v4_exp(vmulq_f32(v4_set(-2.0f), vabsq_f32(z))), one = v4_set(1.0f);
    float32x4_t q = vdivq_f32(vsubq_f32(one, e), vaddq_f32(one, e));
    return vbslq_f32(vdupq_n_u32(0x80000000), z, q); /* the sign of z */
}

/* The lane tree of 32: lanes 4j .. 4j+3 in a[j]. */
static inline float v4_lane_fold32(const float32x4_t a[8])
{
    float lane[32];
    for (int j = 0; j < 8; j++) vst1q_f32(lane + 4 * j, a[j]);
    return cb_lane_fold32(lane);
}

/* cb_hl_to_f32 */
static inline float32x4_t v4_hl_to_f32(int32x4_t h, int32x4_t l)
{
    int32x4_t a = vaddq_s32(h, vshrq_n_s32(l, 8)), top = vshrq_n_s32(a, 14);
    int32x4_t low = vorrq_s32(vshlq_n_s32(vandq_s32(a, vdupq_n_s32(16383)), 8), vandq_s32(l, vdupq_n_s32(255)));
    return vfmaq_f32(vcvtq_f32_s32(low), vcvtq_f32_s32(top), v4_set(0x1p22f));
}

/* max(|x|) over n floats as cb_quant_row_c finds it: a NaN never wins. Any order gives the same maximum. */
static inline float v4_max_abs(const float *x, int n)
{
    float32x4_t m0 = v4_set(0), m1 = m0;
    int i = 0;
    for (; i + 8 <= n; i += 8) {
        m0 = v4_max(vabsq_f32(vld1q_f32(x + i)), m0);
        m1 = v4_max(vabsq_f32(vld1q_f32(x + i + 4)), m1);
    }
    float m = v4_hmax(v4_max(m0, m1));
    for (; i < n; i++) {
        float a = fabsf(x[i]);
        m = a > m ? a : m;
    }
    return m;
}

/* Eight floats times inv, rounded and limited: clamp(rint(x*inv)). */
static inline int16x8_t v4_xi16(float32x4_t a, float32x4_t b, float32x4_t inv)
{
    int32x4_t ia = vcvtnq_s32_f32(vmulq_f32(a, inv)), ib = vcvtnq_s32_f32(vmulq_f32(b, inv));
    int16x8_t v = vcombine_s16(vqmovn_s32(ia), vqmovn_s32(ib));
    return vmaxq_s16(vminq_s16(v, vdupq_n_s16(CB_XI_MAX)), vdupq_n_s16(-CB_XI_MAX));
}
#endif
