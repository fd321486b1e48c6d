/* hybrid_c.c: rotation, convolution and delta rule in scalar C, the truth (docs/arithmetic.md, "hybrid layers"). */
#include "kernels/kernels_c.h"
#include "kernels/num.h"

void cb_axpy_c(float *y, float a, const float *x, int n)
{
    for (int i = 0; i < n; i++) y[i] = cb_fma(a, x[i], y[i]);
}

void cb_sigmoid_mul_c(float *y, const float *gate, const float *up, int n)
{
    for (int i = 0; i < n; i++) y[i] = cb_sigmoidf(gate[i]) * up[i];
}

void cb_mul_c(float *y, const float *a, const float *b, int n)
{
    for (int i = 0; i < n; i++) y[i] = a[i] * b[i];
}

void cb_unit_c(float *y, const float *x, int n, float eps, float factor)
{
    float inv = 1.0f / sqrtf(cb_sum_squares_c(x, n) + eps);
    for (int i = 0; i < n; i++) y[i] = (x[i] * inv) * factor;
}

float cb_exp_sum_c(float *y, const float *x, float m, int n)
{
    float lane[32] = {0};
    for (int i = 0; i < n; i++) {
        y[i] = cb_expf(x[i] - m);
        lane[i % 32] += y[i];
    }
    return cb_lane_fold32(lane);
}

void cb_delta_gates_c(float *decay, float *beta, const float *a, const float *b, const float *a_log, const float *dt_bias, int n)
{
    for (int i = 0; i < n; i++) {
        decay[i] = cb_expf(-(cb_expf(a_log[i]) * cb_softplusf(a[i] + dt_bias[i])));
        beta[i] = cb_sigmoidf(b[i]);
    }
}

void cb_hadamard_c(float *x, int n, int block, float scale)
{
    for (float *p = x; p < x + n; p += block)
        for (int s = 1; s < block; s *= 2)
            for (int i = 0; i < block; i += 2 * s)
                for (int j = i; j < i + s; j++) {
                    float a = p[j], b = p[j + s];
                    p[j] = a + b;
                    p[j + s] = a - b;
                }
    for (int i = 0; i < n; i++) x[i] *= scale;
}

void cb_conv_silu_c(float *y, const float *const *x, const float *w, int taps, int c0, int c1)
{
    for (int c = c0; c < c1; c++) {
        float acc = 0;
        for (int j = 0; j < taps; j++) acc = cb_fma(w[(size_t)c * (size_t)taps + (size_t)j], x[j][c], acc);
        y[c] = cb_siluf(acc);
    }
}

void cb_delta_step_c(float *S, const float *q, const float *k, const float *v, float decay, float beta, int dk, int n_v, float *o)
{
    for (int i = 0; i < n_v; i++, S += dk) {
        float lane[32] = {0};
        for (int j = 0; j < dk; j++) {
            S[j] = S[j] * decay;
            lane[j % 32] = cb_fma(S[j], k[j], lane[j % 32]);
        }
        float delta = beta * (v[i] - cb_lane_fold32(lane));
        memset(lane, 0, sizeof lane);
        for (int j = 0; j < dk; j++) {
            S[j] = cb_fma(delta, k[j], S[j]);
            lane[j % 32] = cb_fma(S[j], q[j], lane[j % 32]);
        }
        o[i] = cb_lane_fold32(lane);
    }
}
