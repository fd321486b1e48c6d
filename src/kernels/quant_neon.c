/* quant_neon.c: floats to 16-bit fixed point; linear_c.c is the truth. */
#include "kernels/kernels_c.h"
#include "kernels/encode.h"
#include "kernels/kernels_neon.h"
#include "kernels/num_neon.h"

static inline float inv_of(float m) { return m < CB_TINY ? 0 : CB_XI_MAX / m; }
static inline float dx_of(float m) { return m < CB_TINY ? 0 : m * CB_XI_INV; }

float cb_quant16_neon(const float *x, int n, int16_t *xi)
{
    float m = v4_max_abs(x, n);
    float32x4_t inv = v4_set(inv_of(m));
    int i = 0;
    for (; i + 8 <= n; i += 8) vst1q_s16(xi + i, v4_xi16(vld1q_f32(x + i), vld1q_f32(x + i + 4), inv));
    if (i < n) {
        float in[8] = {0};
        int16_t out[8];
        memcpy(in, x + i, (size_t)(n - i) * sizeof *x);
        vst1q_s16(out, v4_xi16(vld1q_f32(in), vld1q_f32(in + 4), inv));
        memcpy(xi + i, out, (size_t)(n - i) * sizeof *xi);
    }
    return dx_of(m);
}

/* 32 plane bytes of consecutive elements go to their places: element e to plane e % pack, byte e / pack. */
static inline void scatter32(int8_t *p, int8x16_t a, int8x16_t b, int pack)
{
    if (pack == 1) {
        vst1q_s8(p, a);
        vst1q_s8(p + 16, b);
        return;
    }
    int8x16_t even = vuzp1q_s8(a, b), odd = vuzp2q_s8(a, b);
    if (pack == 2) {
        vst1q_s8(p, even);
        vst1q_s8(p + 64, odd);
        return;
    }
    int8x16_t e[2] = {vuzp1q_s8(even, odd), vuzp2q_s8(even, odd)}; /* elements 0, 1 and 2, 3 of each four */
    for (int h = 0; h < 2; h++) {
        if (pack == 4) {
            vst1_s8(p + 64 * (2 * h), vget_low_s8(e[h]));
            vst1_s8(p + 64 * (2 * h + 1), vget_high_s8(e[h]));
            continue;
        }
        int8_t t[2][16]; /* elements 0, 1 (2, 3) and 4, 5 (6, 7) of each eight */
        vst1q_s8(t[0], vuzp1q_s8(e[h], e[h]));
        vst1q_s8(t[1], vuzp2q_s8(e[h], e[h]));
        for (int j = 0; j < 2; j++)
            for (int k = 0; k < 2; k++) memcpy(p + 64 * (4 * j + 2 * h + k), t[j] + 4 * k, 4);
    }
}

/* 32 elements with two scales (a group is 16 or a multiple of 32); adds their numbers to s[0] and s[1]. */
static inline void quant32(const float *x, float inv0, float inv1, int8_t *p, int pack, int32x4_t s[2])
{
    int8x8_t hi[4], lo[4];
    for (int i = 0; i < 4; i++) {
        int16x8_t v = v4_xi16(vld1q_f32(x + 8 * i), vld1q_f32(x + 8 * i + 4), v4_set(i < 2 ? inv0 : inv1));
        int16x8_t h = vshrq_n_s16(vaddq_s16(v, vdupq_n_s16(128)), 8);
        s[i / 2] = vpadalq_s16(s[i / 2], v);
        hi[i] = vmovn_s16(h);
        lo[i] = vmovn_s16(v); /* v - 256*h is the low byte with its sign */
    }
    scatter32(p, vcombine_s8(hi[0], hi[1]), vcombine_s8(hi[2], hi[3]), pack);
    scatter32(p + 64 * pack, vcombine_s8(lo[0], lo[1]), vcombine_s8(lo[2], lo[3]), pack);
}

static inline void row(const float *x, int n, int group, int pack, int8_t *planes, float *dx, float *xs, int32_t *sum)
{
    int span = group < 32 ? 32 : group;
    for (int e0 = 0; e0 < n; e0 += span) {
        float tail[128];
        const float *src = x + e0;
        int left = n - e0 < span ? n - e0 : span, n32 = (left + 31) / 32 * 32;
        if (left != n32) { /* zeros change neither the maximum nor the sum, and pad the planes */
            memset(tail, 0, sizeof tail);
            src = memcpy(tail, src, (size_t)left * sizeof *src);
        }
        float m[2] = {v4_max_abs(src, group < 32 ? 16 : n32)};
        m[1] = group < 32 ? v4_max_abs(src + 16, 16) : m[0];
        int32x4_t s[2] = {vdupq_n_s32(0), vdupq_n_s32(0)};
        for (int i = 0; i < n32; i += 32) {
            int e = e0 + i, r = e % (64 * pack);
            int8_t *p = planes + (size_t)(e / (64 * pack)) * 128 * (size_t)pack + r / pack;
            quant32(src + i, inv_of(m[0]), inv_of(m[1]), p, pack, s);
        }
        int32_t total[2] = {vaddvq_s32(s[0]), vaddvq_s32(s[1])};
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

void cb_quant_row_neon(const float *x, int n, int group, int pack, int8_t *planes, float *dx, float *xs, int32_t *sum)
{
    if (group != 16 && group != 32 && group != 64 && group != 128) cb_quant_row_c(x, n, group, pack, planes, dx, xs, sum);
    else if (pack == 1) row(x, n, group, 1, planes, dx, xs, sum);
    else if (pack == 2) row(x, n, group, 2, planes, dx, xs, sum);
    else if (pack == 4) row(x, n, group, 4, planes, dx, xs, sum);
    else row(x, n, group, 8, planes, dx, xs, sum);
}

bool cb_encode_row_neon(const uint8_t *p, cb_dtype t, int64_t n, uint8_t *out, float *scales)
{
    return cb_encode_row_by(cb_quant_row_neon, p, t, n, out, scales);
}
