/* kernels_c.h: the scalar kernels by name, for the SIMD files that fall back to them at odd sizes. */
#ifndef CB_KERNELS_C_H
#define CB_KERNELS_C_H
#include "kernels/kernels.h"

void cb_quant_row_c(const float *x, int n, int group, int pack, int8_t *planes, float *dx, float *xs, int32_t *sum);
bool cb_encode_row_c(const uint8_t *p, cb_dtype t, int64_t n, uint8_t *out, float *scales);
float cb_quant16_c(const float *x, int n, int16_t *xi);
void cb_linear_c(const cb_mm *mm, int64_t n0, int64_t n1, void *scratch);
void cb_rmsnorm_c(float *y, const float *x, const float *w, int n, float eps);
float cb_sum_squares_c(const float *x, int n);
void cb_silu_mul_c(float *y, const float *gate, const float *up, int n);
void cb_gelu_mul_c(float *y, const float *gate, const float *up, int n);
void cb_add_c(float *y, const float *a, const float *b, int n);
void cb_scale_c(float *y, const float *x, float s, int n);
void cb_divide_c(float *y, const float *x, float s, int n);
void cb_split16_c(int16_t *hi, int16_t *lo, const int16_t *xi, int n);
void cb_softcap_c(float *y, const float *x, float cap, int n);
void cb_rope_c(float *x, const float *cs, int n_pairs, int half);
void cb_attn_block_c(const cb_attn *a);
void cb_attn_merge_c(float *mm, float *ll, float *oo, float m, float l, const float *o, int dim);
void cb_axpy_c(float *y, float a, const float *x, int n);
void cb_sigmoid_mul_c(float *y, const float *gate, const float *up, int n);
void cb_mul_c(float *y, const float *a, const float *b, int n);
void cb_unit_c(float *y, const float *x, int n, float eps, float factor);
float cb_exp_sum_c(float *y, const float *x, float m, int n);
void cb_delta_gates_c(float *decay, float *beta, const float *a, const float *b, const float *a_log, const float *dt_bias, int n);
void cb_hadamard_c(float *x, int n, int block, float scale);
void cb_conv_silu_c(float *y, const float *const *x, const float *w, int taps, int c0, int c1);
void cb_delta_step_c(float *S, const float *q, const float *k, const float *v, float decay, float beta, int dk, int n_v, float *o);
bool cb_all_finite_c(const float *x, int64_t n);

/* Scale i of an array, decoded to f32 (E8M0 and E4M3: half the stored value, see CB_FMT_FP4). */
float cb_scale_at(const uint8_t *p, cb_scale_type t, int64_t i);
#endif
