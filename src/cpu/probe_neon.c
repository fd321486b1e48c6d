/* probe_neon.c: SDOT from registers, with as many sums as hide its latency. */
#include "cpu/cpu.h"
#include <arm_neon.h>

double cpu_products_neon(int64_t rounds)
{
    int32x4_t sum[16];
    int8x16_t x = vdupq_n_s8(3), w = vdupq_n_s8(-2);
    for (int i = 0; i < 16; i++) sum[i] = vdupq_n_s32(0);
    for (int64_t r = 0; r < rounds; r++) {
        __asm__ volatile("" : "+w"(x), "+w"(w));
        for (int i = 0; i < 16; i++) sum[i] = vdotq_s32(sum[i], x, w);
    }
    for (int i = 0; i < 16; i++) __asm__ volatile("" : : "w"(sum[i]));
    return (double)rounds * 16 * 16 / 2; /* two passes for the 16 bits of an activation */
}
