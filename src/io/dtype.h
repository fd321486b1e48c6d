/* dtype.h: element types of stored tensors, and the conversions between 16-bit floats and f32. */
#ifndef CB_IO_DTYPE_H
#define CB_IO_DTYPE_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef enum cb_dtype {
    CB_F32, CB_F16, CB_BF16, CB_F64, CB_I64, CB_I32, CB_I16, CB_I8, CB_U64, CB_U32, CB_U16, CB_U8, CB_BOOL, CB_F8_E4M3,
    CB_F8_E8M0, CB_N_DTYPES
} cb_dtype;

/* Bytes of one element. */
size_t cb_dtype_size(cb_dtype t);
/* The safetensors spelling, "BF16". */
const char *cb_dtype_name(cb_dtype t);
/* 0 and *t set, or -1 for an unknown spelling (not NUL-terminated, n bytes). */
int cb_dtype_parse(const char *s, size_t n, cb_dtype *t);

static inline float cb_bf16_to_f32(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
/* IEEE binary16 to binary32, exact, subnormals and infinities included. */
static inline float cb_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = (h >> 10) & 31, m = h & 1023, u;
    if (e == 31) u = sign | 0x7f800000 | m << 13;
    else if (e) u = sign | (e + 112) << 23 | m << 13;
    else { /* m * 2^-24 is exact in f32 */
        float f = (float)m * 0x1p-24f;
        memcpy(&u, &f, 4);
        u |= sign;
    }
    float f;
    memcpy(&f, &u, 4);
    return f;
}
/* Round to nearest even; NaN stays NaN, overflow becomes infinity. */
uint16_t cb_f32_to_bf16(float f);
uint16_t cb_f32_to_f16(float f);
/* FP8 E4M3 as MLX reads it (0x7f gives 480, no NaN): spec mlx-format 7.1. */
float cb_f8_e4m3_to_f32(uint8_t b);
/* 2^(b-127); 255 is the caller's to reject. */
float cb_f8_e8m0_to_f32(uint8_t b);
/* Element i of an array of a float type (F32, F16, BF16), any alignment. */
float cb_load_float(const void *p, cb_dtype t, size_t i);
#endif
