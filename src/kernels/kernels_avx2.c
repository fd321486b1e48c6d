/* kernels_avx2.c: which slots avx2 replaces. */
#include "kernels/kernels_avx2.h"

void cb_kernels_set_avx2(cb_kernels *k)
{
    k->name = "avx2";
    /* linear, quant_row, quant16 and attn_block still compute the 15-bit numbers of before: off until they follow */
    k->rmsnorm = cb_rmsnorm_avx2;
    k->silu_mul = cb_silu_mul_avx2;
    k->gelu_mul = cb_gelu_mul_avx2;
    k->add = cb_add_avx2;
    k->scale = cb_scale_avx2;
    k->softcap = cb_softcap_avx2;
    k->rope = cb_rope_avx2;
    k->all_finite = cb_all_finite_avx2;
    k->attn_merge = cb_attn_merge_avx2;
}
