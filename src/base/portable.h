/* portable.h: rotary frequencies and angles from one double routine written with +, -, *, / and integer moves only, so that
 * every machine computes the same table. Accuracy about 1e-15 before the single rounding to f32. */
#ifndef CB_BASE_PORTABLE_H
#define CB_BASE_PORTABLE_H

/* base^(-2i/dim), radians per position of pair i in a head of dim. base > 0. */
double cb_rope_freq(double base, int i, int dim);
/* ln x for a normal positive x. */
double cb_ln(double x);
/* cos and sin of pos*freq[i] for i < n, each rounded to f32 once: out[0..n) cosines, out[n..2n) sines. pos*freq < 2^30. */
void cb_rope_row(float *out, double pos, const double *freq, int n);
#endif
