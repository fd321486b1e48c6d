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

/* cos and sin of a >= 0, a < 2^30: reduce by pi/2 in three parts (each product exact for n < 2^24 and close beyond), then
 * Taylor series on |r| <= pi/4. */
CB_HOST_DEVICE static inline void cb_sincos(double a, double *c, double *s)
{
    double n = rint(a * 0.63661977236758134308);
    double r = a - n * 0x1.921fb54p+0;
    r -= n * 0x1.10b46p-30;
    r -= n * 0x1.1a62633145c07p-54;
    double r2 = r * r, cc = 1, ss = 1;
    for (int k = 20; k >= 2; k -= 2) cc = 1 - cc * r2 / (k * (k - 1));
    for (int k = 21; k >= 3; k -= 2) ss = 1 - ss * r2 / (k * (k - 1));
    ss *= r;
    switch ((int64_t)n & 3) {
    case 0: *c = cc, *s = ss; break;
    case 1: *c = -ss, *s = cc; break;
    case 2: *c = -cc, *s = -ss; break;
    default: *c = ss, *s = -cc;
    }
}
#endif
