/* unpack_avx2.c: scales, activations and odd widths brought to the form in which the AVX2 products take them. */
#include "kernels/linear_avx2.h"

/* ---- scales -------------------------------------------------------------------------------------------------------- */

/* Eight scales of type t at p; E8M0 and E4M3 halved, as cb_scale_at gives them. */
CB_INLINE __m256 scales_of(const uint8_t *p, cb_scale_type t)
{
    switch (t) {
    case CB_S_F32: return _mm256_loadu_ps((const void *)p);
    case CB_S_F16: return _mm256_cvtph_ps(_mm_loadu_si128((const void *)p));
    case CB_S_BF16:
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p)), 16));
    case CB_S_E8M0: { /* 2^(b-128): exponent field b-1, below that the subnormals 2^-127 and 2^-128 */
        __m256i b = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)p)), one = _mm256_set1_epi32(1);
        __m256i v = _mm256_slli_epi32(_mm256_sub_epi32(b, one), 23);
        __m256i sub = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), b);
        return _mm256_castsi256_ps(_mm256_blendv_epi8(sub, v, _mm256_cmpgt_epi32(b, one)));
    }
    case CB_S_E4M3: { /* the seven bits stand in a binary16, whose bias is 8 larger; halved: times 128 */
        __m128i b = _mm_cvtepu8_epi16(_mm_loadl_epi64((const void *)p));
        __m128i h = _mm_or_si128(_mm_slli_epi16(_mm_and_si128(b, _mm_set1_epi16(0x7f)), 7),
                                 _mm_slli_epi16(_mm_and_si128(b, _mm_set1_epi16(0x80)), 8));
        return _mm256_mul_ps(_mm256_cvtph_ps(h), v8_set(128.0f));
    }
    }
    return _mm256_setzero_ps();
}

/* v[i] holds eight groups of row i: store group by group. */
CB_INLINE void store_transposed(const __m256 v[8], float *out, int stride)
{
    __m256 a[8], b[8];
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
        a[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            b[i + 2 * j] = _mm256_shuffle_ps(a[i + j], a[i + 2 + j], 0x44);
            b[i + 2 * j + 1] = _mm256_shuffle_ps(a[i + j], a[i + 2 + j], 0xee);
        }
    for (int j = 0; j < 4; j++) {
        _mm256_storeu_ps(out + j * stride, _mm256_permute2f128_ps(b[j], b[4 + j], 0x20));
        _mm256_storeu_ps(out + (4 + j) * stride, _mm256_permute2f128_ps(b[j], b[4 + j], 0x31));
    }
}

CB_INLINE void scales8(const uint8_t *p, cb_scale_type t, size_t size, float factor, int64_t n0, int G, int g0, int g1,
                       float *out, int stride)
{
    if (g1 - g0 < 8) {
        for (int i = 0; i < 8; i++)
            for (int g = g0; g < g1; g++) out[(g - g0) * stride + i] = cb_scale_at(p, t, (n0 + i) * G + g) * factor;
        return;
    }
    for (int at = g0; at < g1; at += 8) {
        int g = at + 8 <= g1 ? at : g1 - 8; /* the last eight overlap the ones before: nothing past the end is read */
        __m256 v[8];
        for (int i = 0; i < 8; i++)
            v[i] = _mm256_mul_ps(scales_of(p + (size_t)((n0 + i) * G + g) * size, t), v8_set(factor));
        store_transposed(v, out + (g - g0) * stride, stride);
    }
}

void cb_scales8_avx2(const uint8_t *p, cb_scale_type t, float factor, int64_t n0, int G, int g0, int g1, float *out,
                     int stride)
{
    switch (t) {
    case CB_S_F32: scales8(p, CB_S_F32, 4, factor, n0, G, g0, g1, out, stride); break;
    case CB_S_F16: scales8(p, CB_S_F16, 2, factor, n0, G, g0, g1, out, stride); break;
    case CB_S_BF16: scales8(p, CB_S_BF16, 2, factor, n0, G, g0, g1, out, stride); break;
    case CB_S_E8M0: scales8(p, CB_S_E8M0, 1, factor, n0, G, g0, g1, out, stride); break;
    case CB_S_E4M3: scales8(p, CB_S_E4M3, 1, factor, n0, G, g0, g1, out, stride); break;
    }
}

/* ---- activations --------------------------------------------------------------------------------------------------- */

/* Four quads of 16-bit numbers, each reordered to 0, 2, 1, 3 and stored `stride` numbers apart. */
CB_INLINE void store_quads(__m256i v, int16_t *out, int stride)
{
    v = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(v, 0xd8), 0xd8);
    if (stride == 4) {
        _mm256_storeu_si256((void *)out, v);
        return;
    }
    __m128i a = _mm256_castsi256_si128(v), b = _mm256_extracti128_si256(v, 1);
    _mm_storel_epi64((void *)out, a);
    _mm_storel_epi64((void *)(out + stride), _mm_unpackhi_epi64(a, a));
    _mm_storel_epi64((void *)(out + 2 * stride), b);
    _mm_storel_epi64((void *)(out + 3 * stride), _mm_unpackhi_epi64(b, b));
}

CB_INLINE void words(const int8_t *p, size_t n_bytes, int pack, int16_t *out, int16_t *out2)
{
    for (size_t b = 0; b < n_bytes / (128 * (size_t)pack); b++, p += 128 * pack, out += 64 * pack)
        for (int j = 0; j < pack; j++)
            for (int m = 0; m < 64; m += 16) {
                __m256i h = _mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)(p + 64 * j + m)));
                __m256i l = _mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)(p + 64 * pack + 64 * j + m)));
                int16_t *to = out + m * pack + 4 * j;
                if (out2) {
                    store_quads(h, to, 4 * pack);
                    store_quads(l, out2 + (to - out) + (size_t)b * 64 * (size_t)pack, 4 * pack);
                } else {
                    store_quads(_mm256_add_epi16(_mm256_slli_epi16(h, 8), l), to, 4 * pack);
                }
            }
}

void cb_words_avx2(const int8_t *planes, size_t n_bytes, int pack, int16_t *out, int16_t *out2)
{
    switch (pack) {
    case 1: words(planes, n_bytes, 1, out, out2); break;
    case 2: words(planes, n_bytes, 2, out, out2); break;
    case 4: words(planes, n_bytes, 4, out, out2); break;
    default: words(planes, n_bytes, 8, out, out2);
    }
}

/* ---- 3, 5 and 6 bits ----------------------------------------------------------------------------------------------- */

/* 32 codes from 4*bits bytes; 16 bytes are read at p and at p + 2*bits. */
CB_INLINE __m256i codes32(const uint8_t *p, int bits)
{
    __m256i v = _mm256_castsi128_si256(_mm_loadu_si128((const void *)p));
    v = _mm256_inserti128_si256(v, _mm_loadu_si128((const void *)(p + 2 * bits)), 1);
    /* dword i of a half starts with the byte in which code 4i begins: bit 4*bits*i */
    int s1 = bits / 2, s2 = bits, s3 = 3 * bits / 2, odd = bits % 2 * 4;
    __m128i pick = _mm_setr_epi8(0, 1, 2, 3, (char)s1, (char)(s1 + 1), (char)(s1 + 2), (char)(s1 + 3), (char)s2,
                                 (char)(s2 + 1), (char)(s2 + 2), (char)(s2 + 3), (char)s3, (char)(s3 + 1), (char)(s3 + 2),
                                 (char)(s3 + 3));
    v = _mm256_shuffle_epi8(v, _mm256_broadcastsi128_si256(pick));
    v = _mm256_srlv_epi32(v, _mm256_setr_epi32(0, odd, 0, odd, 0, odd, 0, odd));
    /* four codes, bits apart, to four bytes */
    const int mask = (1 << bits) - 1, up = 8 - bits;
    __m256i r = _mm256_and_si256(v, _mm256_set1_epi32(mask));
    r = _mm256_or_si256(r, _mm256_and_si256(_mm256_slli_epi32(v, up), _mm256_set1_epi32(mask << 8)));
    r = _mm256_or_si256(r, _mm256_and_si256(_mm256_slli_epi32(v, 2 * up), _mm256_set1_epi32(mask << 16)));
    return _mm256_or_si256(r, _mm256_and_si256(_mm256_slli_epi32(v, 3 * up), _mm256_set1_epi32(mask << 24)));
}

CB_INLINE void unpack_row(const uint8_t *row, int64_t k, int bits, uint8_t *out)
{
    size_t rb = (size_t)(k / 8 * bits), at = 0, step = 4 * (size_t)bits;
    uint8_t *end = out + (k + 63) / 64 * 64;
    for (; at + step / 2 + 16 <= rb; at += step, out += 32) {
        _mm_prefetch((const char *)(row + at + 8 * rb), _MM_HINT_T0); /* the same place of the next eight rows */
        _mm256_storeu_si256((void *)out, codes32(row + at, bits));
    }
    uint8_t tail[128] = {0}; /* less than step/2 + 16 bytes are left, and two steps may start in them */
    memcpy(tail, row + at, rb - at);
    for (const uint8_t *p = tail; out < end; out += 32, p += p - tail < 64 ? step : 0)
        _mm256_storeu_si256((void *)out, codes32(p, bits));
}

void cb_unpack_row_avx2(const uint8_t *row, int64_t k, int bits, uint8_t *out)
{
    if (bits == 3) unpack_row(row, k, 3, out);
    else if (bits == 5) unpack_row(row, k, 5, out);
    else unpack_row(row, k, 6, out);
}
