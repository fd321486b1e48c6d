/* gguf_blocks.h: the block formats of GGUF tensors, and their exact conversion.
 *
 * Two kinds of conversion keep every value:
 *   affine  32 elements share one scale and one bias: codes become MLX affine, group 32 (Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q4_K
 *           Q5_K IQ4_NL). Scales and biases are F16 where all of a tensor's are exact in it, else F32.
 *   decode  sub-blocks of 16 are smaller than the least MLX group (Q2_K Q3_K Q6_K): the matrix becomes floats, each of
 *           which is the value as f32 arithmetic defines it (one rounding at most, in Q2_K's subtraction).
 * F32, F16 and BF16 are copied. */
#ifndef CB_IO_GGUF_BLOCKS_H
#define CB_IO_GGUF_BLOCKS_H
#include "io/dtype.h"
#include <stdbool.h>

/* ggml_type numbers. */
enum {
    CB_GT_F32 = 0, CB_GT_F16 = 1, CB_GT_Q4_0 = 2, CB_GT_Q4_1 = 3, CB_GT_Q5_0 = 6, CB_GT_Q5_1 = 7, CB_GT_Q8_0 = 8,
    CB_GT_Q2_K = 10, CB_GT_Q3_K = 11, CB_GT_Q4_K = 12, CB_GT_Q5_K = 13, CB_GT_Q6_K = 14, CB_GT_IQ4_NL = 20,
    CB_GT_BF16 = 30
};
enum { CB_GB_GROUP = 32, CB_GB_MAX_BLOCK = 256, CB_GB_MAX_GROUPS = 8 };

typedef struct cb_gblock {
    const char *name;       /* "Q4_K" */
    int block, bytes;       /* elements and bytes of a block; 0: the type is known by name only, and not supported */
    int bits;               /* affine: bits of a code; else 0 */
    void (*scales)(const uint8_t *b, float *scale, float *bias); /* affine: [block/32] each */
    void (*codes)(const uint8_t *b, uint8_t *q);                 /* affine: [block] */
    void (*decode)(const uint8_t *b, float *out);                /* decode kind: [block] */
    bool is_float;          /* copied; dtype says as what */
    cb_dtype dtype;
} cb_gblock;

/* NULL for a number that no version of the format defines. */
const cb_gblock *cb_gblock_find(uint32_t type);

/* What a pass over a tensor's blocks found. */
typedef struct cb_gscan {
    bool f16_exact;     /* every scale and bias (affine) or value (decode) is exact in F16 */
    int64_t bad_block;  /* the first block with a NaN or an infinity among them, or -1 */
} cb_gscan;
/* Scans n blocks (not for float types). */
void cb_gblock_scan(const cb_gblock *t, const uint8_t *src, int64_t n, cb_gscan *out);

/* Affine: n blocks to n*block*bits/8 bytes of MLX codes (one little-endian bit stream). */
void cb_gblock_repack(const cb_gblock *t, const uint8_t *src, int64_t n, uint8_t *codes);
/* Affine: the scales, or (biases) the biases, of n blocks as `to` (F16 or F32): n*block/32 of them. */
void cb_gblock_scales(const cb_gblock *t, const uint8_t *src, int64_t n, cb_dtype to, bool biases, uint8_t *out);
/* Values of n blocks of any supported type. */
void cb_gblock_decode(const cb_gblock *t, const uint8_t *src, int64_t n, float *out);
/* f32 values as `to` (F16 or F32), n of them. */
void cb_gblock_store(const float *v, int64_t n, cb_dtype to, uint8_t *out);
#endif
