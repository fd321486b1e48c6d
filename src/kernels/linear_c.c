/* linear_c.c: activation planes and linear layers in scalar C, the truth (docs/arithmetic.md, "linear"). */
#include "kernels/kernels_c.h"
#include "kernels/num.h"

static inline int clamp_xi(float v)
{
    float r = rintf(v); /* round to nearest even is the only mode in use */
    return r > CB_XI_MAX ? CB_XI_MAX : r >= -CB_XI_MAX ? (int)r : -CB_XI_MAX; /* NaN, which ends the step elsewhere, is some number */
}

static float max_abs(const float *x, int n)
{
    float m = 0;
    for (int i = 0; i < n; i++) {
        float a = fabsf(x[i]);
        m = a > m ? a : m;
    }
    return m;
}

void cb_quant_row_c(const float *x, int n, int group, int pack, int8_t *planes, float *dx, float *xs, int32_t *sum)
{
    memset(planes, 0, cb_plane_stride(n, pack));
    for (int g = 0; g * group < n; g++) {
        int e0 = g * group, e1 = e0 + group < n ? e0 + group : n;
        float m = max_abs(x + e0, e1 - e0);
        bool zero = m < CB_TINY;
        float inv = zero ? 0 : CB_XI_MAX / m;
        int32_t s = 0;
        for (int e = e0; e < e1 && !zero; e++) {
            int xi = clamp_xi(x[e] * inv), hi = (xi + 128) >> 8, r = e % (64 * pack);
            int8_t *p = planes + (size_t)(e / (64 * pack)) * 128 * (size_t)pack + r % pack * 64 + r / pack;
            p[0] = (int8_t)hi;
            p[64 * pack] = (int8_t)(xi - 256 * hi);
            s += xi;
        }
        dx[g] = zero ? 0 : m * CB_XI_INV;
        sum[g] = s;
        xs[g] = dx[g] * (float)s;
    }
}

float cb_quant16_c(const float *x, int n, int16_t *xi)
{
    float m = max_abs(x, n);
    bool zero = m < CB_TINY;
    float inv = zero ? 0 : CB_XI_MAX / m;
    for (int i = 0; i < n; i++) xi[i] = zero ? 0 : (int16_t)clamp_xi(x[i] * inv);
    return zero ? 0 : m * CB_XI_INV;
}

void cb_encode_planes(const float *w, int64_t k, uint8_t *out, float *scales)
{
    for (int64_t g = 0; g * 64 < k; g++, out += 128) {
        int n = k - g * 64 < 64 ? (int)(k - g * 64) : 64;
        int16_t wi[64] = {0};
        scales[g] = cb_quant16_c(w + g * 64, n, wi);
        for (int i = 0; i < 64; i++) {
            int v = wi[i] + 32768;
            out[i] = (uint8_t)(v >> 8);
            out[64 + i] = (uint8_t)(v & 255);
        }
    }
}

float cb_scale_at(const uint8_t *p, cb_scale_type t, int64_t i)
{
    switch (t) {
    case CB_S_F32: return cb_load_float(p, CB_F32, (size_t)i);
    case CB_S_F16: return cb_load_float(p, CB_F16, (size_t)i);
    case CB_S_BF16: return cb_load_float(p, CB_BF16, (size_t)i);
    case CB_S_E8M0: return 0.5f * cb_f8_e8m0_to_f32(p[i]);
    case CB_S_E4M3: return 0.5f * cb_f8_e4m3_to_f32(p[i]);
    }
    return 0;
}

/* ---- the product ---- */

static const int8_t fp4_twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* One row of W as integers, [n_groups*group]; what lies beyond k is 0. Code i is bits i*b .. i*b+b-1 of the row. */
static void unpack_row(const cb_mm *mm, const uint8_t *row, int16_t *w)
{
    int64_t padded = (int64_t)mm->n_groups * mm->group;
    if (mm->fmt == CB_FMT_PLANES) {
        for (int64_t e = 0; e < padded; e++) {
            const uint8_t *p = row + e / 64 * 128 + e % 64;
            w[e] = (int16_t)(p[0] * 256 + p[64] - 32768);
        }
        return;
    }
    int bits = mm->fmt == CB_FMT_FP4 ? 4 : mm->bits;
    for (int64_t e = 0; e < mm->k; e++) {
        size_t bit = (size_t)e * (size_t)bits, at = bit >> 3;
        unsigned v = row[at];
        if (at + 1 < mm->row_bytes) v |= (unsigned)row[at + 1] << 8;
        int code = (int)(v >> (bit & 7)) & ((1 << bits) - 1);
        w[e] = (int16_t)(mm->fmt == CB_FMT_FP4 ? fp4_twice[code] : code);
    }
    for (int64_t e = mm->k; e < padded; e++) w[e] = 0;
}

/* The planes of one row in natural order, hi and lo apart, [n_groups*group] each. */
static void unpack_planes(const int8_t *planes, int pack, int64_t k, int64_t padded, int16_t *hi, int16_t *lo)
{
    for (int64_t e = 0; e < padded; e++) {
        int64_t r = e % (64 * pack);
        const int8_t *p = planes + e / (64 * pack) * 128 * pack + r % pack * 64 + r / pack;
        hi[e] = e < k ? p[0] : 0;
        lo[e] = e < k ? p[64 * pack] : 0;
    }
}

/* (float)D of one group: the exact integer, rounded once. */
static inline float group_dot(bool wide, const int16_t *w, const int16_t *hi, const int16_t *lo, int n)
{
    int32_t h = 0, l = 0;
    for (int i = 0; i < n; i++) h += w[i] * hi[i];
    for (int i = 0; i < n; i++) l += w[i] * lo[i];
    return wide ? cb_hl_to_f32(h, l) : (float)(256 * h + l);
}

enum { ROWS = 16 }; /* rows whose planes are unpacked at a time; fits cb_linear_scratch */

void cb_linear_c(const cb_mm *mm, int64_t n0, int64_t n1, void *scratch)
{
    int G = mm->n_groups, pack = mm->fmt == CB_FMT_FP4 ? 2 : mm->fmt == CB_FMT_PLANES ? 1 : cb_pack_of_bits(mm->bits);
    int64_t padded = (int64_t)G * mm->group;
    int16_t *w = scratch, *x = w + padded;
    for (int r0 = 0; r0 < mm->n_rows; r0 += ROWS) {
        int rows = mm->n_rows - r0 < ROWS ? mm->n_rows - r0 : ROWS;
        for (int i = 0; i < rows; i++) {
            int64_t xr = mm->x_row ? mm->x_row[r0 + i] : r0 + i;
            int16_t *hi = x + 2 * i * padded;
            unpack_planes(mm->x.planes + (size_t)xr * mm->x.plane_stride, pack, mm->k, padded, hi, hi + padded);
        }
        for (int64_t n = n0; n < n1; n++) {
            unpack_row(mm, mm->codes + (size_t)n * mm->row_bytes, w);
            for (int i = 0; i < rows; i++) {
                int r = r0 + i;
                int64_t xr = mm->x_row ? mm->x_row[r] : r, yr = mm->y_row ? mm->y_row[r] : r;
                const float *dx = mm->x.dx + xr * mm->x.n_groups, *xs = mm->x.xs + xr * mm->x.n_groups;
                const int16_t *hi = x + 2 * i * padded, *lo = hi + padded;
                float y = 0;
                for (int l = 0; l < 8; l++) {
                    float acc = 0;
                    for (int g = l * G / 8; g < (l + 1) * G / 8; g++) {
                        size_t at = (size_t)g * (size_t)mm->group;
                        float p = dx[g] * group_dot(mm->fmt == CB_FMT_PLANES, w + at, hi + at, lo + at, mm->group);
                        float s = cb_scale_at(mm->scales, mm->scale_type, n * G + g);
                        if (mm->fmt == CB_FMT_FP4) s = s * mm->global_scale;
                        if (mm->fmt == CB_FMT_AFFINE)
                            acc = cb_fma(cb_scale_at(mm->biases, mm->scale_type, n * G + g), xs[g], acc);
                        acc = cb_fma(s, p, acc);
                    }
                    y = l ? y + acc : acc;
                }
                float *out = mm->y + (size_t)yr * mm->y_stride + n;
                *out = mm->add ? *out + y : y;
            }
        }
    }
}
