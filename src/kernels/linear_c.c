/* linear_c.c: activation planes and linear layers in scalar C, the truth (docs/arithmetic.md, "linear"). */
#include "kernels/kernels_c.h"
#include "kernels/num.h"

static inline int clamp_xi(float v)
{
    float r = rintf(v); /* round to nearest even is the only mode in use */
    return r > CB_XI_MAX ? CB_XI_MAX : r < -CB_XI_MAX ? -CB_XI_MAX : (int)r;
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
            int xi = clamp_xi(x[e] * inv), hi = (xi + 64) >> 7, r = e % (64 * pack);
            int8_t *p = planes + (size_t)(e / (64 * pack)) * 128 * (size_t)pack + r % pack * 64 + r / pack;
            p[0] = (int8_t)hi;
            p[64 * pack] = (int8_t)(xi - 128 * hi);
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
            int v = wi[i] + 16384;
            out[i] = (uint8_t)(v >> 7);
            out[64 + i] = (uint8_t)(v & 127);
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

/* Code i of a row: bits i*b .. i*b+b-1 of the little-endian stream. */
static inline int code_at(const uint8_t *row, size_t row_bytes, int bits, int64_t i)
{
    int64_t bit = i * bits;
    size_t at = (size_t)(bit >> 3);
    unsigned v = row[at];
    if (at + 1 < row_bytes) v |= (unsigned)row[at + 1] << 8;
    return (int)(v >> (bit & 7)) & ((1 << bits) - 1);
}

static const int8_t fp4_twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* Element e of row r: hi*128 + lo from the planes. */
static inline int xi_at(const int8_t *planes, int pack, int64_t e)
{
    int64_t r = e % (64 * pack);
    const int8_t *p = planes + e / (64 * pack) * 128 * pack + r % pack * 64 + r / pack;
    return p[0] * 128 + p[64 * pack];
}

/* (float)D of group g: exact integer sum, rounded once. */
static float group_dot(const cb_mm *mm, const uint8_t *row, const int8_t *planes, int g)
{
    int64_t e0 = (int64_t)g * mm->group, e1 = e0 + mm->group < mm->k ? e0 + mm->group : mm->k, d = 0;
    int pack = mm->fmt == CB_FMT_FP4 ? 2 : mm->fmt == CB_FMT_PLANES ? 1 : cb_pack_of_bits(mm->bits);
    for (int64_t e = e0; e < e1; e++) {
        int w;
        if (mm->fmt == CB_FMT_PLANES) {
            const uint8_t *p = row + g * 128 + (e - e0);
            w = p[0] * 128 + p[64] - 16384;
        } else {
            w = code_at(row, mm->row_bytes, mm->fmt == CB_FMT_FP4 ? 4 : mm->bits, e);
            if (mm->fmt == CB_FMT_FP4) w = fp4_twice[w];
        }
        d += (int64_t)w * xi_at(planes, pack, e);
    }
    return (float)d;
}

void cb_linear_c(const cb_mm *mm, int64_t n0, int64_t n1, void *scratch)
{
    (void)scratch;
    int G = mm->n_groups;
    for (int r = 0; r < mm->n_rows; r++) {
        int64_t xr = mm->x_row ? mm->x_row[r] : r, yr = mm->y_row ? mm->y_row[r] : r;
        const int8_t *planes = mm->x.planes + (size_t)xr * mm->x.plane_stride;
        const float *dx = mm->x.dx + xr * mm->x.n_groups, *xs = mm->x.xs + xr * mm->x.n_groups;
        for (int64_t n = n0; n < n1; n++) {
            const uint8_t *row = mm->codes + (size_t)n * mm->row_bytes;
            float y = 0;
            for (int l = 0; l < 8; l++) {
                float acc = 0;
                for (int g = l * G / 8; g < (l + 1) * G / 8; g++) {
                    float p = dx[g] * group_dot(mm, row, planes, g);
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
