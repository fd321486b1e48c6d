/* encode.h: stored floats to CB_FMT_PLANES by way of a level's quant_row, in batches that stay in the first-level cache. */
#ifndef CB_KERNELS_ENCODE_H
#define CB_KERNELS_ENCODE_H
#include "kernels/kernels.h"

/* x = n stored floats; false when one is not finite. */
bool cb_widen(const uint8_t *p, cb_dtype t, int64_t n, float *x);

/* xi = 256*hi + lo with lo in -128..127; wi + 32768 = 256*high + low with both in 0..255. */
static inline void cb_unsign_planes(int8_t *planes, int n_groups)
{
    for (int g = 0; g < n_groups; g++, planes += 128)
        for (int i = 0; i < 64; i++) planes[i] = (int8_t)((planes[i] ^ -128) + (planes[64 + i] < 0 ? -1 : 0));
}

typedef void (*cb_quant_row_fn)(const float *x, int n, int group, int pack, int8_t *planes, float *dx, float *xs, int32_t *sum);

static inline bool cb_encode_row_by(cb_quant_row_fn quant_row, const uint8_t *p, cb_dtype t, int64_t n, uint8_t *out, float *scales)
{
    enum { BATCH = 16 };
    float x[BATCH * 64] __attribute__((aligned(64))), xs[BATCH];
    int32_t sum[BATCH];
    size_t size = cb_dtype_size(t);
    bool ok = true;
    for (int64_t i = 0; i < n; i += BATCH * 64, out += BATCH * 128, scales += BATCH) {
        int have = n - i < BATCH * 64 ? (int)(n - i) : BATCH * 64;
        ok &= cb_widen(p + (size_t)i * size, t, have, x);
        quant_row(x, have, 64, 1, (int8_t *)out, scales, xs, sum);
        cb_unsign_planes((int8_t *)out, (have + 63) / 64);
    }
    return ok;
}
#endif
