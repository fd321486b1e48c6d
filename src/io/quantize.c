/* quantize.c: affine and ternary groups, and packing. The affine steps are MLX's (spec: mlx/backend/cpu/quantized.cpp and the
 * Metal kernels), f32 with one rounding each. */
#include "io/quantize.h"
#include <math.h>
#include <string.h>

enum { MAX_GROUP = 128 };

int cb_quantizer_check(cb_quantizer *q, cb_err *err)
{
    static const struct { int bits, group; } fp[] = {[CB_W_MXFP4] = {4, 32}, [CB_W_MXFP8] = {8, 32}, [CB_W_NVFP4] = {4, 16}};
    static const char *const names[] = {[CB_W_MXFP4] = "mxfp4", [CB_W_MXFP8] = "mxfp8", [CB_W_NVFP4] = "nvfp4"};
    if (q->mode == CB_W_AFFINE) {
        if (!q->bits) q->bits = q->ternary ? 2 : 4;
        if (!q->group) q->group = q->ternary ? 128 : 64;
        if (q->ternary && q->bits != 2) return cb_fail(err, CB_EUSAGE, "ternary weights have 2 bits, not %d", q->bits);
        if (q->bits < 1 || q->bits > 8 || q->bits == 7)
            return cb_fail(err, CB_EUSAGE, "bits %d: affine weights have 1, 2, 3, 4, 5, 6 or 8", q->bits);
        if (q->group != 32 && q->group != 64 && q->group != 128)
            return cb_fail(err, CB_EUSAGE, "group %d: affine weights have groups of 32, 64 or 128", q->group);
        return 0;
    }
    CB_ASSERT(q->mode >= CB_W_MXFP4 && q->mode <= CB_W_NVFP4);
    if (!q->bits) q->bits = fp[q->mode].bits;
    if (!q->group) q->group = fp[q->mode].group;
    if (q->bits != fp[q->mode].bits || q->group != fp[q->mode].group)
        return cb_fail(err, CB_EUSAGE, "%d bits in groups of %d: %s has %d bits in groups of %d", q->bits, q->group, names[q->mode],
                       fp[q->mode].bits, fp[q->mode].group);
    return 0;
}

float cb_round_to(float x, cb_dtype t)
{
    return t == CB_BF16 ? cb_bf16_to_f32(cb_f32_to_bf16(x)) : t == CB_F16 ? cb_f16_to_f32(cb_f32_to_f16(x)) : x;
}

void cb_store_float(void *p, cb_dtype t, float x)
{
    uint16_t h = t == CB_BF16 ? cb_f32_to_bf16(x) : t == CB_F16 ? cb_f32_to_f16(x) : 0;
    if (t == CB_F32) memcpy(p, &x, 4);
    else memcpy(p, &h, 2);
}

/* ---- one group ---- */

/* Rounds x, 0 <= x < 2^22, to an integer. To even: adding 2^23 leaves no bits for the fraction. */
static inline float round_even(float x) { return (x + 0x1p23f) - 0x1p23f; }
static inline float round_away(float x)
{
    float whole = (float)(int32_t)x;
    return whole + (x - whole >= 0.5f ? 1.0f : 0.0f);
}

/* code = clamp(round((x - b) / s), 0, n). Clamping before rounding gives the same and keeps the numbers small. */
static void affine_codes(const float *x, int group, float s, float b, float n, bool away, uint8_t *codes)
{
    for (int i = 0; i < group; i++) {
        float v = (x[i] - b) / s;
        v = v < 0 ? 0 : v > n ? n : v;
        codes[i] = (uint8_t)(int32_t)(away ? round_away(v) : round_even(v));
    }
}

static void affine_group(const cb_quantizer *q, const float *x, uint8_t *codes, float *scale, float *bias)
{
    float lo = x[0], hi = x[0], n = (float)((1 << q->bits) - 1);
    for (int i = 1; i < q->group; i++) {
        lo = x[i] < lo ? x[i] : lo;
        hi = x[i] > hi ? x[i] : hi;
    }
    if (q->gpu && hi < 0) hi = 0;
    float s = (hi - lo) / n, edge;
    if (!(s > 1e-7f)) s = 1e-7f;
    if (q->bits == 1) { /* the two extremes */
        affine_codes(x, q->group, s, lo, 1, q->gpu, codes);
        *scale = s;
        *bias = lo;
        return;
    }
    bool low = fabsf(lo) > fabsf(hi);
    edge = low ? lo : hi;
    if (!low) s = -s;
    float q0 = q->gpu ? roundf(edge / s) : rintf(edge / s), b = 0;
    if (q0 != 0) {
        s = edge / q0;
        b = edge;
    }
    affine_codes(x, q->group, s, b, n, q->gpu, codes);
    *scale = s;
    *bias = b;
}

/* Magnitudes in ascending order: as positive floats sort like their bits, four passes over their bytes. */
static void sort_magnitudes(uint32_t *v, int n)
{
    uint32_t other[MAX_GROUP], *from = v, *to = other;
    for (int shift = 0; shift < 32; shift += 8) {
        uint8_t at[257] = {0}; /* n <= 128 */
        for (int i = 0; i < n; i++) at[(from[i] >> shift & 255) + 1]++;
        for (int i = 1; i < 256; i++) at[i] = (uint8_t)(at[i] + at[i - 1]);
        for (int i = 0; i < n; i++) to[at[from[i] >> shift & 255]++] = from[i];
        uint32_t *t = from;
        from = to;
        to = t;
    }
}

/* Values -s, 0, s. When the k largest magnitudes become s, the squared error falls by 2s*sum - k*s^2, at best (s = sum/k) by
 * sum^2/k: all k are tried. A magnitude above s/2 is nearer to s than to 0. */
static void ternary_group(const cb_quantizer *q, const float *x, uint8_t *codes, float *scale, float *bias)
{
    uint32_t a[MAX_GROUP];
    double sum = 0, best = 0, s = 0;
    memcpy(a, x, (size_t)q->group * 4);
    for (int i = 0; i < q->group; i++) a[i] &= 0x7fffffff;
    sort_magnitudes(a, q->group);
    for (int k = 1; k <= q->group; k++) {
        float largest;
        memcpy(&largest, &a[q->group - k], 4);
        sum += (double)largest;
        if (sum * sum / k > best) {
            best = sum * sum / k;
            s = sum / k;
        }
    }
    float t = cb_round_to((float)s, q->scales);
    for (int i = 0; i < q->group; i++) codes[i] = (uint8_t)(2 * fabsf(x[i]) <= t ? 1 : x[i] < 0 ? 0 : 2);
    *scale = t;
    *bias = -t;
}

/* Element i is bits i*b .. i*b+b-1 of the row, least significant first; a group fills whole bytes. */
static void pack(uint8_t *out, const uint8_t *codes, int n, int bits)
{
    uint64_t held = 0;
    int n_held = 0;
    for (int i = 0; i < n; i++) {
        held |= (uint64_t)codes[i] << n_held;
        n_held += bits;
        for (; n_held >= 8; n_held -= 8) {
            *out++ = (uint8_t)held;
            held >>= 8;
        }
    }
}

void cb_quantize_row(const cb_quantizer *q, const float *x, int64_t cols, uint8_t *codes, uint8_t *scales, uint8_t *biases)
{
    uint8_t c[MAX_GROUP];
    size_t packed = (size_t)(q->group * q->bits / 8), one = cb_dtype_size(q->scales);
    for (int64_t g = 0; g < cols / q->group; g++, x += q->group, codes += packed, scales += one) {
        if (q->mode != CB_W_AFFINE) *scales = cb_quantize_fp_group(q, x, c);
        else {
            float s, b;
            (q->ternary ? ternary_group : affine_group)(q, x, c, &s, &b);
            cb_store_float(scales, q->scales, s);
            cb_store_float(biases, q->scales, b);
            biases += one;
        }
        pack(codes, c, q->group, q->bits);
    }
}
