/* quantize.h: numbers into the stored formats of weights.h, the inverse of cb_matrix_decode_row. Bytes equal those of mx.quantize:
 * docs/quantize.md says which of its two rules. A group never depends on another. */
#ifndef CB_IO_QUANTIZE_H
#define CB_IO_QUANTIZE_H
#include "io/weights.h"

typedef struct cb_quantizer {
    cb_wmode mode;    /* not CB_W_FLOAT */
    int bits, group;
    cb_dtype values;  /* what the numbers were rounded to before: BF16, F16 or F32; the fp modes compute in it */
    cb_dtype scales;  /* of scales and biases: BF16, F16 or F32; U8 in an fp mode */
    bool ternary;     /* affine, 2 bits: codes 0, 1, 2 and bias = -scale, the scale of least squared error */
    bool gpu;         /* MLX's rule on a GPU: ties away from zero, zero inside every range */
} cb_quantizer;

/* Fills in what is 0 (bits, group: the mode's defaults; 2 and 128 for ternary) and checks the rest: CB_EUSAGE with the
 * possible values. */
int cb_quantizer_check(cb_quantizer *q, cb_err *err);
/* Bytes of a row of `cols` (a multiple of the group). */
static inline size_t cb_quantizer_row_bytes(const cb_quantizer *q, int64_t cols) { return (size_t)cols * (size_t)q->bits / 8; }
static inline size_t cb_quantizer_scale_bytes(const cb_quantizer *q, int64_t cols)
{
    return (size_t)(cols / q->group) * cb_dtype_size(q->scales);
}
/* Quantises one row of finite numbers. `biases` is written in affine mode only. */
void cb_quantize_row(const cb_quantizer *q, const float *x, int64_t cols, uint8_t *codes, uint8_t *scales, uint8_t *biases);

/* x rounded to t (BF16, F16 or F32), as f32. */
float cb_round_to(float x, cb_dtype t);
/* x stored as t at any address. */
void cb_store_float(void *p, cb_dtype t, float x);
/* The nearest E4M3 code, ties to even, saturating at 448. */
uint8_t cb_f32_to_f8_e4m3(float x);

/* One group in an fp mode (quantize_fp.c): codes one a byte; returns the scale byte. */
uint8_t cb_quantize_fp_group(const cb_quantizer *q, const float *x, uint8_t *codes);
#endif
