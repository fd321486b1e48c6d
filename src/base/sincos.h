/* sincos.h: sine and cosine of a rotary angle in double, with +, -, *, / only: the same bits on every CPU and GPU. */
#ifndef CB_BASE_SINCOS_H
#define CB_BASE_SINCOS_H
#include <math.h>
#include <stdint.h>

#ifdef __CUDACC__
#define CB_HOST_DEVICE __host__ __device__
#else
#define CB_HOST_DEVICE
#endif

/* x / c, c a small integer and r the double nearest to 1/c: what a GPU does faster than divide, which takes it some thirty instructions one after
 * the other. q is within 2 units in the last place, so that x - q*c is exact, and correcting q by it errs by less than 2^-51 units before
 * the rounding, while a quotient by c < 2^10 is no nearer than 2^-11 to where rounding changes. (x is 0 or above 2^-900.) */
CB_HOST_DEVICE static inline double cb_quotient(double x, double c, double r)
{
    double q = x * r;
    return __builtin_fma(__builtin_fma(-q, c, x), r, q);
}

#ifdef __CUDACC__
#define CB_DIVIDED(x, c) cb_quotient(x, c, 1.0 / (c))
#else
#define CB_DIVIDED(x, c) ((x) / (c))
#endif

/* cos and sin of a >= 0, a < 2^30: reduce by pi/2 in three parts (each product exact for n < 2^24 and close beyond), then
 * Taylor series on |r| <= pi/4. */
CB_HOST_DEVICE static inline void cb_sincos(double a, double *c, double *s)
{
    double n = rint(a * 0.63661977236758134308);
    double r = a - n * 0x1.921fb54p+0;
    r -= n * 0x1.10b46p-30;
    r -= n * 0x1.1a62633145c07p-54;
    double r2 = r * r, cc = 1, ss = 1;
#ifdef __CUDACC__
#pragma unroll
#endif
    for (int k = 20; k >= 2; k -= 2) { /* of r2 below 2^-900 nothing is left */
        cc = 1 - CB_DIVIDED(cc * r2, k * (k - 1));
        ss = 1 - CB_DIVIDED(ss * r2, k * (k + 1));
    }
    ss *= r;
    switch ((int64_t)n & 3) {
    case 0: *c = cc, *s = ss; break;
    case 1: *c = -ss, *s = cc; break;
    case 2: *c = -cc, *s = -ss; break;
    default: *c = ss, *s = -cc;
    }
}
#endif
