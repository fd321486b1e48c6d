/* kernels_avx2.c: which slots avx2 replaces. */
#include "kernels/kernels_avx2.h"

void cb_kernels_set_avx2(cb_kernels *k)
{
    k->name = "avx2";
    k->quant_row = cb_quant_row_avx2;
    k->encode_row = cb_encode_row_avx2;
    k->linear = cb_linear_avx2;
    k->quant16 = cb_quant16_avx2;
    k->rmsnorm = cb_rmsnorm_avx2;
    k->sum_squares = cb_sum_squares_avx2;
    k->silu_mul = cb_silu_mul_avx2;
    k->gelu_mul = cb_gelu_mul_avx2;
    k->add = cb_add_avx2;
    k->scale = cb_scale_avx2;
    k->divide = cb_divide_avx2;
    k->split16 = cb_split16_avx2;
    k->softcap = cb_softcap_avx2;
    k->rope = cb_rope_avx2;
    k->all_finite = cb_all_finite_avx2;
    k->attn_block = cb_attn_block_avx2;
    k->attn_merge = cb_attn_merge_avx2;
    k->axpy = cb_axpy_avx2;
    k->sigmoid_mul = cb_sigmoid_mul_avx2;
    k->mul = cb_mul_avx2;
    k->unit = cb_unit_avx2;
    k->exp_sum = cb_exp_sum_avx2;
    k->delta_gates = cb_delta_gates_avx2;
    k->hadamard = cb_hadamard_avx2;
    k->conv_silu = cb_conv_silu_avx2;
    k->delta_step = cb_delta_step_avx2;
}
