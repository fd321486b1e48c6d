/* dtype.c: sizes and spellings of element types, and the narrowing conversions. */
#include "io/dtype.h"

static const struct {
    const char *name;
    size_t size;
} types[CB_N_DTYPES] = {
    [CB_F32] = {"F32", 4},         [CB_F16] = {"F16", 2},         [CB_BF16] = {"BF16", 2}, [CB_F64] = {"F64", 8},
    [CB_I64] = {"I64", 8},         [CB_I32] = {"I32", 4},         [CB_I16] = {"I16", 2},   [CB_I8] = {"I8", 1},
    [CB_U64] = {"U64", 8},         [CB_U32] = {"U32", 4},         [CB_U16] = {"U16", 2},   [CB_U8] = {"U8", 1},
    [CB_BOOL] = {"BOOL", 1},       [CB_F8_E4M3] = {"F8_E4M3", 1}, [CB_F8_E8M0] = {"F8_E8M0", 1},
};

size_t cb_dtype_size(cb_dtype t) { return types[t].size; }
const char *cb_dtype_name(cb_dtype t) { return types[t].name; }

int cb_dtype_parse(const char *s, size_t n, cb_dtype *t)
{
    for (int i = 0; i < CB_N_DTYPES; i++)
        if (strlen(types[i].name) == n && !memcmp(types[i].name, s, n)) {
            *t = (cb_dtype)i;
            return 0;
        }
    return -1;
}

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

uint16_t cb_f32_to_bf16(float f)
{
    uint32_t u = bits_of(f);
    /* A NaN keeps its sign and upper payload; the quiet bit keeps it a NaN when the payload is all in the lost half. */
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

uint16_t cb_f32_to_f16(float f)
{
    uint32_t u = bits_of(f), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    if (a > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (a >> 13 & 0x3ff));
    if (a >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* 65520 and up round to infinity */
    if (a >= 0x38800000) { /* normal: rebase the exponent, round the 13 lost bits */
        a -= 112u << 23;
        return (uint16_t)(sign | (a + 0xfff + (a >> 13 & 1)) >> 13);
    }
    if (a < 0x33000000) return (uint16_t)sign; /* below 2^-25; a tie at 2^-25 goes to even, below */
    /* subnormal: the result counts units of 2^-24 */
    uint32_t m = (a & 0x7fffff) | 0x800000;
    int shift = 126 - (int)(a >> 23); /* 14 .. 24 */
    uint32_t half = 1u << (shift - 1), rest = m & ((1u << shift) - 1), q = m >> shift;
    if (rest > half || (rest == half && (q & 1))) q++;
    return (uint16_t)(sign | q);
}

float cb_f8_e4m3_to_f32(uint8_t b)
{
    /* The seven bits stand in a binary16 (exponent and mantissa adjoin), whose bias is 8 larger. */
    float f = cb_f16_to_f32((uint16_t)((b & 0x7f) << 7)) * 256.0f;
    return b & 0x80 ? -f : f;
}

float cb_f8_e8m0_to_f32(uint8_t b)
{
    uint32_t u = b ? (uint32_t)b << 23 : 0x00400000;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

float cb_load_float(const void *p, cb_dtype t, size_t i)
{
    const uint8_t *b = p;
    if (t == CB_F32) {
        float f;
        memcpy(&f, b + 4 * i, 4);
        return f;
    }
    uint16_t h;
    memcpy(&h, b + 2 * i, 2);
    return t == CB_BF16 ? cb_bf16_to_f32(h) : cb_f16_to_f32(h);
}
