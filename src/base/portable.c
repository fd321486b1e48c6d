#include "base/portable.h"
#include "base/sincos.h"
#include <math.h>
#include <stdint.h>
#include <string.h>

/* x = m*2^e with m in [sqrt(1/2), sqrt(2)), atanh series in (m-1)/(m+1). */
double cb_ln(double x)
{
    uint64_t u;
    memcpy(&u, &x, 8);
    int e = (int)(u >> 52) - 1023;
    u = (u & 0xfffffffffffffULL) | 0x3ff0000000000000ULL;
    double m;
    memcpy(&m, &u, 8);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        e++;
    }
    double z = (m - 1) / (m + 1), z2 = z * z, s = 0;
    for (int k = 25; k >= 1; k -= 2) s = s * z2 + 1.0 / k; /* z <= 0.172: the next term is below 1e-21 */
    return 2 * z * s + e * 0.69314718055994530942;
}

/* e^x for |x| < 700. */
static double exp_portable(double x)
{
    double n = rint(x * 1.4426950408889634074);
    double r = (x - n * 0x1.62e42feep-1) - n * 0x1.a39ef35793c76p-33;
    double s = 1;
    for (int k = 18; k >= 1; k--) s = 1 + s * r / k;
    return ldexp(s, (int)n); /* exact: a power of two */
}

double cb_rope_freq(double base, int i, int dim) { return exp_portable(-2.0 * i / dim * cb_ln(base)); }

void cb_rope_row(float *out, double pos, const double *freq, int n)
{
    for (int i = 0; i < n; i++) {
        double c, s;
        cb_sincos(pos * freq[i], &c, &s);
        out[i] = (float)c;
        out[n + i] = (float)s;
    }
}
