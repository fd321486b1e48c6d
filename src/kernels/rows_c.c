/* rows_c.c: norms, activations, rotation: everything that works on one row, in scalar C, the truth. */
#include "kernels/kernels_c.h"
#include "kernels/num.h"

float cb_sum_squares_c(const float *x, int n)
{
    float lane[32] = {0};
    for (int i = 0; i < n; i++) lane[i % 32] = cb_fma(x[i], x[i], lane[i % 32]);
    return cb_lane_fold32(lane);
}

void cb_rmsnorm_c(float *y, const float *x, const float *w, int n, float eps)
{
    float inv = 1.0f / sqrtf(cb_sum_squares_c(x, n) / (float)n + eps);
    for (int i = 0; i < n; i++) {
        float v = x[i] * inv;
        y[i] = w ? v * w[i] : v;
    }
}

void cb_silu_mul_c(float *y, const float *gate, const float *up, int n)
{
    for (int i = 0; i < n; i++) y[i] = cb_siluf(gate[i]) * up[i];
}

void cb_gelu_mul_c(float *y, const float *gate, const float *up, int n)
{
    for (int i = 0; i < n; i++) y[i] = cb_gelu_tanhf(gate[i]) * up[i];
}

void cb_add_c(float *y, const float *a, const float *b, int n)
{
    for (int i = 0; i < n; i++) y[i] = a[i] + b[i];
}

void cb_scale_c(float *y, const float *x, float s, int n)
{
    for (int i = 0; i < n; i++) y[i] = x[i] * s;
}

void cb_divide_c(float *y, const float *x, float s, int n)
{
    for (int i = 0; i < n; i++) y[i] = x[i] / s;
}

void cb_split16_c(int16_t *hi, int16_t *lo, const int16_t *xi, int n)
{
    for (int i = 0; i < n; i++) {
        int v = xi[i], h = (v + 128) >> 8;
        lo[i] = (int16_t)(v - 256 * h);
        hi[i] = (int16_t)h;
    }
}

void cb_softcap_c(float *y, const float *x, float cap, int n)
{
    for (int i = 0; i < n; i++) y[i] = cap * cb_tanhf(x[i] / cap);
}

void cb_rope_c(float *x, const float *cs, int n_pairs, int half)
{
    for (int i = 0; i < n_pairs; i++) {
        float a = x[i], b = x[i + half], c = cs[i], s = cs[n_pairs + i];
        x[i] = cb_fma(a, c, -(b * s));
        x[i + half] = cb_fma(b, c, a * s);
    }
}

bool cb_all_finite_c(const float *x, int64_t n)
{
    bool ok = true;
    for (int64_t i = 0; i < n; i++) ok &= (cb_f2u(x[i]) & 0x7f800000u) != 0x7f800000u;
    return ok;
}
