/* kernels_neon.c: which slots neon replaces. */
#include "kernels/kernels_neon.h"

void cb_kernels_set_neon(cb_kernels *k)
{
    k->name = "neon";
    k->linear = cb_linear_neon;
    k->quant_row = cb_quant_row_neon;
    k->encode_row = cb_encode_row_neon;
    k->quant16 = cb_quant16_neon;
    k->rmsnorm = cb_rmsnorm_neon;
    k->sum_squares = cb_sum_squares_neon;
    k->silu_mul = cb_silu_mul_neon;
    k->gelu_mul = cb_gelu_mul_neon;
    k->add = cb_add_neon;
    k->scale = cb_scale_neon;
    k->divide = cb_divide_neon;
    k->split16 = cb_split16_neon;
    k->softcap = cb_softcap_neon;
    k->rope = cb_rope_neon;
    k->all_finite = cb_all_finite_neon;
    k->attn_block = cb_attn_block_neon;
    k->attn_merge = cb_attn_merge_neon;
    k->axpy = cb_axpy_neon;
    k->sigmoid_mul = cb_sigmoid_mul_neon;
    k->mul = cb_mul_neon;
    k->unit = cb_unit_neon;
    k->exp_sum = cb_exp_sum_neon;
    k->delta_gates = cb_delta_gates_neon;
    k->hadamard = cb_hadamard_neon;
    k->conv_silu = cb_conv_silu_neon;
    k->delta_step = cb_delta_step_neon;
}
