/* encode_c.c: stored floats to f32, exactly, in plain loops over 64 elements that the compiler turns into vectors. */
#include "kernels/encode.h"
#include "kernels/kernels_c.h"
#include <string.h>

static bool widen_bf16(const uint8_t *p, float *x)
{
    int16_t u[64], top = 0;
    uint32_t v[64];
    memcpy(u, p, sizeof u);
    for (int i = 0; i < 64; i++) {
        int16_t a = u[i] & 0x7fff;
        top = a > top ? a : top;
        v[i] = (uint32_t)(uint16_t)u[i] << 16;
    }
    memcpy(x, v, sizeof v);
    return top < 0x7f80;
}

/* The bits of a half, moved to a float's places, are 2^112 too small; the multiplication is exact, for subnormals too. */
static bool widen_f16(const uint8_t *p, float *x)
{
    int16_t u[64], top = 0;
    uint32_t v[64];
    memcpy(u, p, sizeof u);
    for (int i = 0; i < 64; i++) {
        int16_t a = u[i] & 0x7fff;
        top = a > top ? a : top;
        v[i] = (uint32_t)a << 13 | (uint32_t)(u[i] & 0x8000) << 16;
    }
    memcpy(x, v, sizeof v);
    for (int i = 0; i < 64; i++) x[i] *= 0x1p112f;
    return top < 0x7c00;
}

static bool widen_f32(const uint8_t *p, float *x)
{
    int32_t v[64], top = 0;
    memcpy(v, p, sizeof v);
    for (int i = 0; i < 64; i++) {
        int32_t a = v[i] & 0x7fffffff;
        top = a > top ? a : top;
    }
    memcpy(x, v, sizeof v);
    return top < 0x7f800000;
}

bool cb_widen(const uint8_t *p, cb_dtype t, int64_t n, float *x)
{
    bool ok = true;
    int64_t i = 0;
    size_t size = cb_dtype_size(t);
    for (; i + 64 <= n; i += 64, p += 64 * size)
        ok &= t == CB_BF16 ? widen_bf16(p, x + i) : t == CB_F16 ? widen_f16(p, x + i) : widen_f32(p, x + i);
    if (i == n) return ok;
    uint8_t last[256] = {0};
    float y[64];
    memcpy(last, p, (size_t)(n - i) * size);
    ok &= t == CB_BF16 ? widen_bf16(last, y) : t == CB_F16 ? widen_f16(last, y) : widen_f32(last, y);
    memcpy(x + i, y, (size_t)(n - i) * 4);
    return ok;
}

bool cb_encode_row_c(const uint8_t *p, cb_dtype t, int64_t n, uint8_t *out, float *scales)
{
    return cb_encode_row_by(cb_quant_row_c, p, t, n, out, scales);
}
