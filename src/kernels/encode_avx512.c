/* encode_avx512.c: stored floats to CB_FMT_PLANES in one go: 16 groups of 64 at a time, whose maxima are joined across, then each
 * group converted again (it is in the first-level cache) and split into bytes. */
#include "kernels/encode.h"
#include "kernels/kernels_avx512.h"
#include "kernels/num_avx512.h"

enum { BATCH = 16 };

INLINE __m512 load16(const uint8_t *p, int i, const cb_dtype t)
{
    if (t == CB_F32) return _mm512_loadu_ps(p + 4 * i);
    __m256i u = _mm256_loadu_si256((const __m256i *)(const void *)(p + 2 * i));
    if (t == CB_F16) return _mm512_cvtph_ps(u);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(u), 16));
}

INLINE __m512i group_max(const uint8_t *p, const cb_dtype t)
{
    const __m512i abs = _mm512_set1_epi32(0x7fffffff);
    __m512i m = _mm512_setzero_si512();
    for (int i = 0; i < 64; i += 16) m = _mm512_max_epi32(m, _mm512_and_si512(_mm512_castps_si512(load16(p, i, t)), abs));
    return m;
}

/* rint(x*inv) + 32768 as high and low bytes; it cannot leave 256..65280, so the clamp of the definition never acts. */
INLINE void split_group(const uint8_t *p, const cb_dtype t, float inv_of, uint8_t *out)
{
    const __m512 inv = _mm512_set1_ps(inv_of);
    const __m512i up = _mm512_set1_epi32(32768);
    for (int i = 0; i < 64; i += 16) {
        __m512i v = _mm512_add_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(load16(p, i, t), inv)), up);
        _mm_storeu_si128((__m128i *)(void *)(out + i), _mm512_cvtepi32_epi8(_mm512_srli_epi32(v, 8)));
        _mm_storeu_si128((__m128i *)(void *)(out + 64 + i), _mm512_cvtepi32_epi8(v));
    }
}

INLINE bool encode(const uint8_t *p, const cb_dtype t, int64_t n, uint8_t *out, float *scales)
{
    const size_t group = t == CB_F32 ? 256 : 128;
    float inv[BATCH] __attribute__((aligned(64)));
    __m512i top = _mm512_setzero_si512();
    int64_t G = n / 64, g = 0;
    for (; g < G; g += BATCH) {
        int have = G - g < BATCH ? (int)(G - g) : BATCH;
        __m512i v[BATCH];
        for (int i = 0; i < BATCH; i++) v[i] = i < have ? group_max(p + (size_t)(g + i) * group, t) : _mm512_setzero_si512();
        const __m512i mi = cb_fold16_x16(v, true);
        const __m512 m = _mm512_castsi512_ps(mi);
        const __mmask16 some = _mm512_cmp_ps_mask(m, _mm512_set1_ps(CB_TINY), _CMP_GE_OQ);
        top = _mm512_max_epi32(top, mi);
        _mm512_store_ps(inv, _mm512_maskz_div_ps(some, _mm512_set1_ps(CB_XI_MAX), m));
        _mm512_mask_storeu_ps(scales + g, cb_mask16(have), _mm512_maskz_mul_ps(some, m, _mm512_set1_ps(CB_XI_INV)));
        for (int i = 0; i < have; i++) split_group(p + (size_t)(g + i) * group, t, inv[i], out + (size_t)(g + i) * 128);
    }
    bool ok = _mm512_reduce_max_epi32(top) < 0x7f800000;
    if (n % 64) ok &= cb_encode_row_by(cb_quant_row_avx512, p + (size_t)G * group, t, n % 64, out + (size_t)G * 128, scales + G);
    return ok;
}

bool cb_encode_row_avx512(const uint8_t *p, cb_dtype t, int64_t n, uint8_t *out, float *scales)
{
    if (t == CB_BF16) return encode(p, CB_BF16, n, out, scales);
    if (t == CB_F16) return encode(p, CB_F16, n, out, scales);
    return encode(p, CB_F32, n, out, scales);
}
