/* kernels_avx512.c: which slots AVX-512 with VNNI replaces. */
#include "kernels/kernels_avx512.h"

void cb_kernels_set_avx512(cb_kernels *k)
{
    k->name = "avx512";
    k->quant_row = cb_quant_row_avx512;
    k->encode_row = cb_encode_row_avx512;
    k->linear = cb_linear_avx512;
    k->quant16 = cb_quant16_avx512;
    k->rmsnorm = cb_rmsnorm_avx512;
    k->sum_squares = cb_sum_squares_avx512;
    k->silu_mul = cb_silu_mul_avx512;
    k->gelu_mul = cb_gelu_mul_avx512;
    k->add = cb_add_avx512;
    k->scale = cb_scale_avx512;
    k->divide = cb_divide_avx512;
    k->split16 = cb_split16_avx512;
    k->softcap = cb_softcap_avx512;
    k->rope = cb_rope_avx512;
    k->attn_block = cb_attn_block_avx512;
    k->attn_merge = cb_attn_merge_avx512;
    k->all_finite = cb_all_finite_avx512;
    k->axpy = cb_axpy_avx512;
    k->sigmoid_mul = cb_sigmoid_mul_avx512;
    k->mul = cb_mul_avx512;
    k->unit = cb_unit_avx512;
    k->exp_sum = cb_exp_sum_avx512;
    k->delta_gates = cb_delta_gates_avx512;
    k->hadamard = cb_hadamard_avx512;
    k->conv_silu = cb_conv_silu_avx512;
    k->delta_step = cb_delta_step_avx512;
}
