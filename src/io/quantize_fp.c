/* quantize_fp.c: groups in mxfp4, mxfp8 and nvfp4. MLX has two recipes: on a GPU a kernel in f32; on a CPU a graph of array
 * operations, each rounded to the dtype of the weights. */
#include "io/quantize.h"
#include <math.h>
#include <string.h>

uint8_t cb_f32_to_f8_e4m3(float x)
{
    uint32_t u, m;
    memcpy(&u, &x, 4);
    uint8_t sign = (uint8_t)(u >> 24 & 0x80);
    u &= 0x7fffffff;
    if (u >= 0x43e00000) return sign | 0x7e; /* 448 and more */
    if (u < 0x3c800000) { /* below 2^-6: units of 2^-9 */
        float a;
        memcpy(&a, &u, 4);
        a = (a * 512 + 0x1p23f) - 0x1p23f;
        return (uint8_t)(sign | (uint8_t)a);
    }
    m = u + 0x7ffff + (u >> 20 & 1) - (120u << 23); /* exponents 127-6 .. become 1 .. */
    return (uint8_t)(sign | (uint8_t)(m >> 20));
}

/* The E8M0 byte of the smallest power of two that is not below a > 0, so that no element saturates. (MLX rounded to the nearest
 * one until August 2026.) */
static uint8_t e8m0_above(float a)
{
    int e;
    if (frexpf(a, &e) == 0.5f) e--;
    return (uint8_t)(e < -127 ? 0 : e > 127 ? 254 : e + 127);
}

static const float fp4[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};

/* Nearest magnitude, ties to the lower one; a negative number that becomes 0 loses its sign. Differences are rounded to t, which
 * decides nothing up to 16 (they are exact where they matter) and makes far larger numbers land where MLX's land. */
static uint8_t fp4_cpu(float x, cb_dtype t)
{
    float a = fabsf(x);
    int k = 0;
    if (a <= 16) k = (a > 0.25f) + (a > 0.75f) + (a > 1.25f) + (a > 1.75f) + (a > 2.5f) + (a > 3.5f) + (a > 5);
    else {
        float best = a;
        for (int i = 1; i < 8; i++) {
            float d = cb_round_to(a - fp4[i], t);
            if (d < best) {
                best = d;
                k = i;
            }
        }
    }
    return (uint8_t)(k && x < 0 ? k | 8 : k);
}

/* Ties to the even code; the sign is kept. */
static uint8_t fp4_gpu(float x)
{
    float a = fabsf(x);
    int k = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5);
    return (uint8_t)(signbit(x) ? k | 8 : k);
}

/* cb_round_to of a number that is no NaN, inline for the dtype that weights mostly have. */
static inline float round_finite(float x, cb_dtype t)
{
    if (t != CB_BF16) return cb_round_to(x, t);
    uint32_t u;
    memcpy(&u, &x, 4);
    u = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000;
    memcpy(&x, &u, 4);
    return x;
}

static float largest(const float *x, int n)
{
    float m = 0;
    for (int i = 0; i < n; i++) m = fabsf(x[i]) > m ? fabsf(x[i]) : m;
    return m;
}

static uint8_t group_cpu(const cb_quantizer *q, const float *x, uint8_t *codes)
{
    const cb_dtype t = q->values;
    float a = cb_round_to(largest(x, q->group) / (q->bits == 4 ? 6.0f : 448.0f), t), d = 1;
    uint8_t scale = 127;
    if (q->mode == CB_W_NVFP4) {
        scale = cb_f32_to_f8_e4m3(a);
        d = cb_f8_e4m3_to_f32(scale);
    } else if (a > 0) {
        scale = e8m0_above(a); /* below 2^-127 MLX lets the byte wrap round to a huge scale; we do not */
        d = cb_f8_e8m0_to_f32(scale);
    }
    for (int i = 0; i < q->group; i++) {
        float v = x[i] / d; /* by 0 in nvfp4: infinite, or NaN for 0; a NaN is code 0 all the same */
        v = v == v ? round_finite(v, t) : v;
        codes[i] = q->bits == 4 ? fp4_cpu(v, t) : cb_f32_to_f8_e4m3(v);
    }
    return scale;
}

static uint8_t group_gpu(const cb_quantizer *q, const float *x, uint8_t *codes)
{
    float a = largest(x, q->group) / (q->bits == 4 ? 6.0f : 448.0f), d;
    uint8_t scale;
    if (q->mode == CB_W_NVFP4) {
        scale = cb_f32_to_f8_e4m3(a);
        d = cb_f8_e4m3_to_f32(scale);
    } else {
        scale = a > 0 ? e8m0_above(a) : 0;
        d = cb_f8_e8m0_to_f32(scale);
    }
    float r = d > 0 ? 1 / d : 0;
    for (int i = 0; i < q->group; i++) codes[i] = q->bits == 4 ? fp4_gpu(x[i] * r) : cb_f32_to_f8_e4m3(x[i] * r);
    return scale;
}

uint8_t cb_quantize_fp_group(const cb_quantizer *q, const float *x, uint8_t *codes)
{
    return q->gpu ? group_gpu(q, x, codes) : group_cpu(q, x, codes);
}
