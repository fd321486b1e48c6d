/* probe_avx512.c: VPDPBUSD from registers, with as many sums as hide its latency. */
#include "cpu/cpu.h"
#include <immintrin.h>

double cpu_products_avx512(int64_t rounds)
{
    __m512i sum[12], u = _mm512_set1_epi32(0x01020301), s = _mm512_set1_epi32(0x0103fe02);
    for (int i = 0; i < 12; i++) sum[i] = _mm512_setzero_si512();
    for (int64_t r = 0; r < rounds; r++) {
        __asm__ volatile("" : "+v"(u), "+v"(s));
        for (int i = 0; i < 12; i++) sum[i] = _mm512_dpbusd_epi32(sum[i], u, s);
    }
    for (int i = 0; i < 12; i++) __asm__ volatile("" : : "v"(sum[i]));
    return (double)rounds * 12 * 64 / 2; /* two passes for the 16 bits of an activation */
}
