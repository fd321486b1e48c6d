/* kernels_avx2.h: the AVX2 kernels by name, for the inventory in kernels_avx2.c. */
#ifndef CB_KERNELS_AVX2_H
#define CB_KERNELS_AVX2_H
#include "kernels/kernels.h"

void cb_quant_row_avx2(const float *x, int n, int group, int pack, int8_t *planes, float *dx, float *xs, int32_t *sum);
bool cb_encode_row_avx2(const uint8_t *p, cb_dtype t, int64_t n, uint8_t *out, float *scales);
float cb_quant16_avx2(const float *x, int n, int16_t *xi);
void cb_linear_avx2(const cb_mm *mm, int64_t n0, int64_t n1, void *scratch);
void cb_rmsnorm_avx2(float *y, const float *x, const float *w, int n, float eps);
float cb_sum_squares_avx2(const float *x, int n);
void cb_silu_mul_avx2(float *y, const float *gate, const float *up, int n);
void cb_gelu_mul_avx2(float *y, const float *gate, const float *up, int n);
void cb_add_avx2(float *y, const float *a, const float *b, int n);
void cb_scale_avx2(float *y, const float *x, float s, int n);
void cb_divide_avx2(float *y, const float *x, float s, int n);
void cb_split16_avx2(int16_t *hi, int16_t *lo, const int16_t *xi, int n);
void cb_softcap_avx2(float *y, const float *x, float cap, int n);
void cb_rope_avx2(float *x, const float *cs, int n_pairs, int half);
bool cb_all_finite_avx2(const float *x, int64_t n);
void cb_attn_block_avx2(const cb_attn *a);
void cb_attn_merge_avx2(float *mm, float *ll, float *oo, float m, float l, const float *o, int dim);
void cb_axpy_avx2(float *y, float a, const float *x, int n);
void cb_sigmoid_mul_avx2(float *y, const float *gate, const float *up, int n);
void cb_hadamard_avx2(float *x, int n, int block, float scale);
void cb_conv_silu_avx2(float *y, const float *const *x, const float *w, int taps, int c0, int c1);
void cb_delta_step_avx2(float *S, const float *q, const float *k, const float *v, float decay, float beta, int dk, int n_v, float *o);
void cb_mul_avx2(float *y, const float *a, const float *b, int n);
void cb_unit_avx2(float *y, const float *x, int n, float eps, float factor);
float cb_exp_sum_avx2(float *y, const float *x, float m, int n);
void cb_delta_gates_avx2(float *decay, float *beta, const float *a, const float *b, const float *a_log, const float *dt_bias, int n);
#endif
