/* num.h: the scalar truth of every transcendental function on a result path (docs/arithmetic.md, "functions"). Written
 * with +, -, *, /, sqrt, fma and integer moves only, so that each SIMD file and the GPU repeat the same steps and get the
 * same bits. Compile with -ffp-contract=off. No libm result reaches a logit. */
#ifndef CB_KERNELS_NUM_H
#define CB_KERNELS_NUM_H
#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__ /* the GPU's kernels are made of the same functions (cuda/common.cuh) */
#define CB_NUM static __host__ __device__ inline
#else
#define CB_NUM static inline
#endif

#define CB_XI_MAX 32512                 /* 127*256: the largest fixed-point activation; |xi| fits an int16 */
#define CB_XI_INV (1.0f / 32512.0f)     /* rounded once; dx = m * CB_XI_INV */
#define CB_PW_MAX 65024                 /* 2*CB_XI_MAX: the largest fixed-point attention weight, which has no sign */
#define CB_PW_INV (1.0f / 65024.0f)
/* A number splits into planes hi = (xi + 128) >> 8, lo = xi - 256*hi: -127 <= hi <= 127, -128 <= lo <= 127. */
#define CB_TINY 0x1p-100f               /* a group whose maximum is below this is all zero */

/* exp(x) constants: n = rint(x*log2e) by the magic-number addition, r = x - n*ln2 in two fma steps. */
#define CB_EXP_LOG2E 0x1.715476p+0f
#define CB_EXP_MAGIC 12582912.0f        /* 1.5 * 2^23 */
#define CB_EXP_LN2_HI 0x1.62e4p-1f      /* few bits, so n*LN2_HI is exact */
#define CB_EXP_LN2_LO 0x1.7f7d1cp-20f   /* ln2 - LN2_HI */
#define CB_EXP_MAX 88.0f
#define CB_EXP_MIN (-87.0f)

CB_NUM float cb_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
CB_NUM uint32_t cb_f2u(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}
CB_NUM float cb_u2f(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* e^x. Above 88 as at 88; below -87 it is +0; NaN stays NaN. Error below 1 ulp. */
CB_NUM float cb_expf(float x)
{
    float c = x > CB_EXP_MAX ? CB_EXP_MAX : x;
    float t = cb_fma(c, CB_EXP_LOG2E, CB_EXP_MAGIC);
    float n = t - CB_EXP_MAGIC;
    float r = cb_fma(n, -CB_EXP_LN2_HI, c);
    r = cb_fma(n, -CB_EXP_LN2_LO, r);
    float p = 1.0f / 5040.0f; /* Taylor to degree 7: the next term is 5e-9 at |r| = ln2/2 */
    p = cb_fma(p, r, 1.0f / 720.0f);
    p = cb_fma(p, r, 1.0f / 120.0f);
    p = cb_fma(p, r, 1.0f / 24.0f);
    p = cb_fma(p, r, 1.0f / 6.0f);
    p = cb_fma(p, r, 0.5f);
    p = cb_fma(p, r, 1.0f);
    p = cb_fma(p, r, 1.0f);
    float two_n = cb_u2f((cb_f2u(t) + 127u) << 23); /* low bits of t hold n: 2^n, -126 <= n <= 127 */
    float y = p * two_n;
    return c < CB_EXP_MIN ? 0.0f : y;
}

/* 1 / (1 + e^-z) */
CB_NUM float cb_sigmoidf(float z) { return 1.0f / (1.0f + cb_expf(-z)); }
/* z * sigmoid(z), one division */
CB_NUM float cb_siluf(float z) { return z / (1.0f + cb_expf(-z)); }
/* 0.5 z (1 + tanh(u)), u = sqrt(2/pi) (z + 0.044715 z^3), written as z / (1 + e^-2u): no cancellation */
CB_NUM float cb_gelu_tanhf(float z)
{
    float z2 = z * z;
    float a = cb_fma(z2, 0.044715f, 1.0f);       /* 1 + 0.044715 z^2 */
    float u2 = (z * -1.5957691216057308f) * a;   /* -2u; the constant is -2 sqrt(2/pi) */
    return z / (1.0f + cb_expf(u2));
}
/* tanh(z) = sign(z) (1 - e) / (1 + e), e = exp(-2|z|). Absolute error below 1e-7. */
CB_NUM float cb_tanhf(float z)
{
    float a = fabsf(z);
    float e = cb_expf(-2.0f * a);
    return copysignf((1.0f - e) / (1.0f + e), z);
}

/* ln(1 + e^x), max(x, 0) + log1p(e^-|x|); log1p(e) = 2 atanh(z), z = e/(2 + e) <= 1/3, by its series to z^15. */
CB_NUM float cb_softplusf(float x)
{
    float e = cb_expf(-fabsf(x)), z = e / (2.0f + e), z2 = z * z;
    float p = 1.0f / 15.0f;
    p = cb_fma(p, z2, 1.0f / 13.0f);
    p = cb_fma(p, z2, 1.0f / 11.0f);
    p = cb_fma(p, z2, 1.0f / 9.0f);
    p = cb_fma(p, z2, 1.0f / 7.0f);
    p = cb_fma(p, z2, 1.0f / 5.0f);
    p = cb_fma(p, z2, 1.0f / 3.0f);
    p = cb_fma(p, z2, 1.0f);
    return cb_fma(2.0f * z, p, x > 0.0f ? x : 0.0f);
}

/* The lane tree over 32 lanes: term i was added to lane[i % 32] in ascending i; halve down to lane 0. */
CB_NUM float cb_lane_fold32(float *lane)
{
    for (int w = 16; w; w /= 2)
        for (int j = 0; j < w; j++) lane[j] += lane[j + w];
    return lane[0];
}

/* An exact integer D = h*256 + l (h and l exact, h + (l >> 8) an int32) rounded once to f32. Both parts below are exact
 * floats, so the fma rounds the true value. Integer steps use arithmetic shifts. */
CB_NUM float cb_hl_to_f32(int32_t h, int32_t l)
{
    int32_t a = h + (l >> 8);                           /* D >> 8 */
    int32_t top = a >> 14;
    int32_t low = ((a & 16383) << 8) | (l & 255);       /* 0 .. 2^22-1 */
    return cb_fma((float)top, 0x1p22f, (float)low);
}
#endif
