/* probe_avx2.c: VPMADDWD and VPADDD from registers, with as many sums as hide their latency. */
#include "cpu/cpu.h"
#include <immintrin.h>

double cpu_products_avx2(int64_t rounds)
{
    __m256i sum[10], x = _mm256_set1_epi32(0x01020301), w = _mm256_set1_epi32(0x0003fffe);
    for (int i = 0; i < 10; i++) sum[i] = _mm256_setzero_si256();
    for (int64_t r = 0; r < rounds; r++)
        for (int i = 0; i < 10; i++) {
            __asm__ volatile("" : "+x"(x), "+x"(w)); /* every product is made anew */
            sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(x, w));
        }
    for (int i = 0; i < 10; i++) __asm__ volatile("" : : "x"(sum[i]));
    return (double)rounds * 10 * 16;
}
