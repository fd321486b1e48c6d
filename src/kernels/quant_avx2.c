/* quant_avx2.c: floats to 16-bit fixed point, sixteen at a time; linear_c.c is the truth. */
#include "kernels/kernels_avx2.h"
#include "kernels/encode.h"
#include "kernels/kernels_c.h"
#include "kernels/num_avx2.h"

/* 1/scale of a group with maximum m, 0 for a group that counts as zero. */
static inline float inv_of(float m) { return m < CB_TINY ? 0 : CB_XI_MAX / m; }
static inline float dx_of(float m) { return m < CB_TINY ? 0 : m * CB_XI_INV; }

float cb_quant16_avx2(const float *x, int n, int16_t *xi)
{
    float m = v8_max_abs(x, n);
    __m256 inv = v8_set(inv_of(m));
    int i = 0;
    for (; i + 16 <= n; i += 16)
        _mm256_storeu_si256((void *)(xi + i), v8_xi16(_mm256_loadu_ps(x + i), _mm256_loadu_ps(x + i + 8), inv));
    if (i < n) {
        int16_t tail[16];
        __m256 a = _mm256_maskload_ps(x + i, v8_below(n - i)), b = _mm256_setzero_ps();
        if (n - i > 8) b = _mm256_maskload_ps(x + i + 8, v8_below(n - i - 8));
        _mm256_storeu_si256((void *)tail, v8_xi16(a, b, inv));
        memcpy(xi + i, tail, (size_t)(n - i) * 2);
    }
    return dx_of(m);
}

/* 32 plane bytes of consecutive elements go to their places: element e to plane e % pack, byte e / pack. */
static inline void scatter32(int8_t *p, __m256i v, int pack)
{
    if (pack == 1) {
        _mm256_storeu_si256((void *)p, v);
    } else if (pack == 2) {
        v = _mm256_shuffle_epi8(v, _mm256_broadcastsi128_si256(
                                       _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15)));
        v = _mm256_permute4x64_epi64(v, 0xd8);
        _mm_storeu_si128((void *)p, _mm256_castsi256_si128(v));
        _mm_storeu_si128((void *)(p + 64), _mm256_extracti128_si256(v, 1));
    } else {
        /* pack 4: dword j of a half holds its elements of plane j; pack 8: word j does */
        __m256i by4 = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
        __m256i by8 = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15));
        v = _mm256_shuffle_epi8(v, pack == 4 ? by4 : by8);
        __m128i a = _mm256_castsi256_si128(v), b = _mm256_extracti128_si256(v, 1);
        uint8_t t[32];
        _mm_storeu_si128((void *)t, pack == 4 ? _mm_unpacklo_epi32(a, b) : _mm_unpacklo_epi16(a, b));
        _mm_storeu_si128((void *)(t + 16), pack == 4 ? _mm_unpackhi_epi32(a, b) : _mm_unpackhi_epi16(a, b));
        for (int j = 0; j < pack; j++) memcpy(p + 64 * j, t + j * (32 / pack), pack == 4 ? 8 : 4);
    }
}

/* 32 elements with two scales (a group is 16 or a multiple of 32); adds their numbers to s[0] and s[1]. */
static inline void quant32(const float *x, __m256 inv0, __m256 inv1, int8_t *p, int pack, __m256i s[2])
{
    __m256i a = v8_xi16(_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8), inv0);
    __m256i b = v8_xi16(_mm256_loadu_ps(x + 16), _mm256_loadu_ps(x + 24), inv1);
    __m256i one = _mm256_set1_epi16(1), half = _mm256_set1_epi16(128);
    s[0] = _mm256_add_epi32(s[0], _mm256_madd_epi16(a, one));
    s[1] = _mm256_add_epi32(s[1], _mm256_madd_epi16(b, one));
    __m256i ha = _mm256_srai_epi16(_mm256_add_epi16(a, half), 8), hb = _mm256_srai_epi16(_mm256_add_epi16(b, half), 8);
    __m256i la = _mm256_sub_epi16(a, _mm256_slli_epi16(ha, 8)), lb = _mm256_sub_epi16(b, _mm256_slli_epi16(hb, 8));
    scatter32(p, _mm256_permute4x64_epi64(_mm256_packs_epi16(ha, hb), 0xd8), pack);
    scatter32(p + 64 * pack, _mm256_permute4x64_epi64(_mm256_packs_epi16(la, lb), 0xd8), pack);
}

static inline int32_t hsum(__m256i v)
{
    __m128i w = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    w = _mm_add_epi32(w, _mm_shuffle_epi32(w, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(w, _mm_shuffle_epi32(w, 0xb1)));
}

static inline void row(const float *x, int n, int group, int pack, int8_t *planes, float *dx, float *xs, int32_t *sum)
{
    int span = group < 32 ? 32 : group;
    for (int e0 = 0; e0 < n; e0 += span) {
        float m[2], tail[128];
        const float *src = x + e0;
        int left = n - e0 < span ? n - e0 : span, n32 = (left + 31) / 32 * 32;
        if (left != n32) { /* zeros change neither the maximum nor the sum, and pad the planes */
            memset(tail, 0, sizeof tail);
            src = memcpy(tail, src, (size_t)left * sizeof *src);
        }
        m[0] = v8_max_abs(src, group < 32 ? 16 : n32);
        m[1] = group < 32 ? v8_max_abs(src + 16, 16) : m[0];
        __m256 inv0 = v8_set(inv_of(m[0])), inv1 = v8_set(inv_of(m[1]));
        __m256i s[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
        for (int i = 0; i < n32; i += 32) {
            int e = e0 + i, r = e % (64 * pack);
            quant32(src + i, inv0, inv1, planes + (size_t)(e / (64 * pack)) * 128 * (size_t)pack + r / pack, pack, s);
        }
        int32_t total[2] = {hsum(s[0]), hsum(s[1])};
        if (group >= 32) total[0] += total[1];
        for (int h = 0, g = e0 / group; h < (group < 32 ? 2 : 1) && g * group < n; h++, g++) {
            dx[g] = dx_of(m[h]);
            sum[g] = total[h];
            xs[g] = dx[g] * (float)total[h];
        }
    }
    /* the rest of the last block, plane by plane: whole 32-element pieces are already there */
    int done = (n + 31) / 32 * 32 % (64 * pack), at = done / pack;
    if (!done) return;
    int8_t *p = planes + (size_t)(n / (64 * pack)) * 128 * (size_t)pack;
    for (int j = 0; j < 2 * pack; j++) memset(p + 64 * j + at, 0, (size_t)(64 - at));
}

void cb_quant_row_avx2(const float *x, int n, int group, int pack, int8_t *planes, float *dx, float *xs, int32_t *sum)
{
    if (group != 16 && group != 32 && group != 64 && group != 128) cb_quant_row_c(x, n, group, pack, planes, dx, xs, sum);
    else if (pack == 1) row(x, n, group, 1, planes, dx, xs, sum);
    else if (pack == 2) row(x, n, group, 2, planes, dx, xs, sum);
    else if (pack == 4) row(x, n, group, 4, planes, dx, xs, sum);
    else row(x, n, group, 8, planes, dx, xs, sum);
}

bool cb_encode_row_avx2(const uint8_t *p, cb_dtype t, int64_t n, uint8_t *out, float *scales)
{
    return cb_encode_row_by(cb_quant_row_avx2, p, t, n, out, scales);
}
