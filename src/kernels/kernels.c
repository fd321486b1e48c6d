#include "kernels/kernels.h"
#include "kernels/kernels_c.h"
#include <string.h>
#if defined __x86_64__
#include <cpuid.h>
#elif defined __aarch64__
#include <sys/auxv.h>
#endif

void cb_kernels_set_c(cb_kernels *k)
{
    *k = (cb_kernels){
        .name = "c",
        .quant_row = cb_quant_row_c,
        .encode_row = cb_encode_row_c,
        .linear = cb_linear_c,
        .rmsnorm = cb_rmsnorm_c,
        .sum_squares = cb_sum_squares_c,
        .silu_mul = cb_silu_mul_c,
        .gelu_mul = cb_gelu_mul_c,
        .add = cb_add_c,
        .scale = cb_scale_c,
        .divide = cb_divide_c,
        .softcap = cb_softcap_c,
        .rope = cb_rope_c,
        .quant16 = cb_quant16_c,
        .split16 = cb_split16_c,
        .attn_block = cb_attn_block_c,
        .attn_merge = cb_attn_merge_c,
        .axpy = cb_axpy_c,
        .sigmoid_mul = cb_sigmoid_mul_c,
        .mul = cb_mul_c,
        .unit = cb_unit_c,
        .exp_sum = cb_exp_sum_c,
        .delta_gates = cb_delta_gates_c,
        .hadamard = cb_hadamard_c,
        .conv_silu = cb_conv_silu_c,
        .delta_step = cb_delta_step_c,
        .all_finite = cb_all_finite_c,
    };
}

#if defined __x86_64__
static uint64_t xcr0(void)
{
    uint32_t a, d;
    __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return (uint64_t)d << 32 | a;
}

uint32_t cb_isa_detect(void)
{
    uint32_t a, b, c, d, isa = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
    bool osxsave = c & bit_OSXSAVE, fma = c & bit_FMA, f16c = c & bit_F16C;
    if (!osxsave || !fma || !f16c || (xcr0() & 6) != 6) return 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    if (b & bit_AVX2) isa |= CB_ISA_AVX2;
    const uint32_t need = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    if (isa && (b & need) == need && (c & bit_AVX512VNNI) && (xcr0() & 0xe6) == 0xe6) isa |= CB_ISA_AVX512;
    return isa;
}
#elif defined __aarch64__
uint32_t cb_isa_detect(void)
{
    enum { HWCAP_DOTPROD_BIT = 20, HWCAP_ASIMDHP_BIT = 10 };
    unsigned long h = getauxval(AT_HWCAP);
    return (h >> HWCAP_DOTPROD_BIT & 1) && (h >> HWCAP_ASIMDHP_BIT & 1) ? CB_ISA_NEON : 0;
}
#else
uint32_t cb_isa_detect(void) { return 0; }
#endif

int cb_isa_cap(uint32_t *isa, const char *name)
{
    static const struct {
        const char *name;
        uint32_t keep;
    } levels[] = {{"c", 0}, {"avx2", CB_ISA_AVX2}, {"avx512", CB_ISA_AVX2 | CB_ISA_AVX512}, {"neon", CB_ISA_NEON}};
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        if (strcmp(name, levels[i].name)) continue;
        if ((*isa & levels[i].keep) != levels[i].keep) return -1;
        *isa &= levels[i].keep;
        return 0;
    }
    return -1;
}

void cb_kernels_init(cb_kernels *k, uint32_t isa)
{
    cb_kernels_set_c(k);
#if defined __x86_64__
    if (isa & CB_ISA_AVX2) cb_kernels_set_avx2(k);
    if (isa & CB_ISA_AVX512) cb_kernels_set_avx512(k);
#elif defined __aarch64__
    if (isa & CB_ISA_NEON) cb_kernels_set_neon(k);
#else
    (void)isa;
#endif
}
