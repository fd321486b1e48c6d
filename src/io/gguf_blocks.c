#include "io/gguf_blocks.h"
#include "base/err.h"
#include <math.h>

/* Blocks stand at any address: halves are read by bytes. */
static float half_at(const uint8_t *p) { return cb_f16_to_f32((uint16_t)(p[0] | p[1] << 8)); }

/* ---- scales and biases: value = scale*code + bias ---- */

/* The factor -2^k only moves the exponent, so these biases are exact in f32, and in F16 unless they overflow. */
static void scales_q4_0(const uint8_t *b, float *s, float *m) { m[0] = -8.0f * (s[0] = half_at(b)); }
static void scales_q5_0(const uint8_t *b, float *s, float *m) { m[0] = -16.0f * (s[0] = half_at(b)); }
static void scales_q8_0(const uint8_t *b, float *s, float *m) { m[0] = -128.0f * (s[0] = half_at(b)); }
static void scales_qx_1(const uint8_t *b, float *s, float *m)
{
    s[0] = half_at(b);
    m[0] = half_at(b + 2);
}

/* Products of an 11-bit and a 6-bit number: exact in f32, seldom in F16. */
static void scales_k(const uint8_t *b, float *s, float *m)
{
    float d = half_at(b), dmin = half_at(b + 2);
    const uint8_t *p = b + 4;
    for (int j = 0; j < 8; j++) {
        int sc = j < 4 ? p[j] & 63 : (p[j + 4] & 15) | (p[j - 4] >> 6) << 4;
        int mn = j < 4 ? p[j + 4] & 63 : p[j + 4] >> 4 | (p[j] >> 6) << 4;
        s[j] = d * (float)sc;
        m[j] = 0.0f - dmin * (float)mn; /* no -0 for a minimum of 0 */
    }
}

/* ---- codes, one a byte ---- */

/* Byte j holds element j in its low nibble and element j+16 in its high nibble. */
static void nibbles(const uint8_t *qs, uint8_t *q)
{
    for (int j = 0; j < 16; j++) {
        q[j] = qs[j] & 15;
        q[j + 16] = qs[j] >> 4;
    }
}

static void fifth_bits(const uint8_t *qh, uint8_t *q)
{
    for (int i = 0; i < 32; i++) q[i] |= (uint8_t)((qh[i / 8] >> (i % 8) & 1) << 4);
}

static void codes_q4_0(const uint8_t *b, uint8_t *q) { nibbles(b + 2, q); }
static void codes_q4_1(const uint8_t *b, uint8_t *q) { nibbles(b + 4, q); }
static void codes_q5_0(const uint8_t *b, uint8_t *q)
{
    nibbles(b + 6, q);
    fifth_bits(b + 2, q);
}
static void codes_q5_1(const uint8_t *b, uint8_t *q)
{
    nibbles(b + 8, q);
    fifth_bits(b + 4, q);
}
/* Signed to unsigned: q + 128 flips the top bit. */
static void codes_q8_0(const uint8_t *b, uint8_t *q)
{
    for (int i = 0; i < 32; i++) q[i] = b[2 + i] ^ 0x80;
}
/* A table of 16 levels of one signed byte each: with 8 bits the level itself is the code. */
static void codes_iq4_nl(const uint8_t *b, uint8_t *q)
{
    static const int8_t level[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    nibbles(b + 2, q);
    for (int i = 0; i < 32; i++) q[i] = (uint8_t)(level[q[i]] + 128);
}
/* 64 elements share 32 bytes: the first 32 in the low nibbles. */
static void codes_q4_k(const uint8_t *b, uint8_t *q)
{
    const uint8_t *qs = b + 16;
    for (int i = 0; i < 256; i++) {
        uint8_t v = qs[i / 64 * 32 + i % 32];
        q[i] = i / 32 % 2 ? v >> 4 : v & 15;
    }
}
static void codes_q5_k(const uint8_t *b, uint8_t *q)
{
    const uint8_t *qh = b + 16, *qs = b + 48;
    for (int i = 0; i < 256; i++) {
        uint8_t v = qs[i / 64 * 32 + i % 32];
        q[i] = (uint8_t)((i / 32 % 2 ? v >> 4 : v & 15) | (qh[i % 32] >> (i / 32) & 1) << 4);
    }
}

/* ---- blocks that become floats ---- */

/* scales[16] (low nibble: scale, high: minimum), qs[64], d, dmin. */
static void decode_q2_k(const uint8_t *b, float *out)
{
    const uint8_t *sc = b, *qs = b + 16;
    float d = half_at(b + 80), dmin = half_at(b + 82);
    for (int i = 0; i < 256; i++) {
        int h = i / 128, r = i % 128, q = qs[32 * h + r % 32] >> (r / 32 * 2) & 3, s = sc[i / 16];
        out[i] = d * (float)(s & 15) * (float)q - dmin * (float)(s >> 4);
    }
}

/* hmask[32], qs[64], scales[12] (16 six-bit numbers less 32), d. A clear mask bit subtracts 4. */
static void decode_q3_k(const uint8_t *b, float *out)
{
    const uint8_t *hm = b, *qs = b + 32, *sc = b + 96;
    float d = half_at(b + 108);
    for (int i = 0; i < 256; i++) {
        int j = i / 16, h = i / 128, r = i % 128;
        int low = j < 8 ? sc[j] & 15 : sc[j - 8] >> 4, high = sc[8 + j % 4] >> (j / 4 * 2) & 3;
        int q = (qs[32 * h + r % 32] >> (r / 32 * 2) & 3) - (hm[i % 32] >> (i / 32) & 1 ? 0 : 4);
        out[i] = d * (float)((low | high << 4) - 32) * (float)q;
    }
}

/* ql[128], qh[64], scales[16] (signed), d. */
static void decode_q6_k(const uint8_t *b, float *out)
{
    const uint8_t *ql = b, *qh = b + 128, *sc = b + 192;
    float d = half_at(b + 208);
    for (int i = 0; i < 256; i++) {
        int h = i / 128, r = i % 128, g = r / 32, l = r % 32;
        uint8_t v = ql[64 * h + 32 * (g % 2) + l];
        int q = (g < 2 ? v & 15 : v >> 4) | (qh[32 * h + l] >> (2 * g) & 3) << 4;
        out[i] = d * (float)(int8_t)sc[i / 16] * (float)(q - 32);
    }
}

/* ---- the table ---- */

#define AFFINE(n, bl, by, bi, s, c) {.name = n, .block = bl, .bytes = by, .bits = bi, .scales = s, .codes = c}
#define DECODE(n, bl, by, d) {.name = n, .block = bl, .bytes = by, .decode = d}
#define FLOAT(n, by, t) {.name = n, .block = 1, .bytes = by, .is_float = true, .dtype = t}
static const cb_gblock types[] = {
    [0] = FLOAT("F32", 4, CB_F32),
    [1] = FLOAT("F16", 2, CB_F16),
    [2] = AFFINE("Q4_0", 32, 18, 4, scales_q4_0, codes_q4_0),
    [3] = AFFINE("Q4_1", 32, 20, 4, scales_qx_1, codes_q4_1),
    [6] = AFFINE("Q5_0", 32, 22, 5, scales_q5_0, codes_q5_0),
    [7] = AFFINE("Q5_1", 32, 24, 5, scales_qx_1, codes_q5_1),
    [8] = AFFINE("Q8_0", 32, 34, 8, scales_q8_0, codes_q8_0),
    [9] = {.name = "Q8_1"},
    [10] = DECODE("Q2_K", 256, 84, decode_q2_k),
    [11] = DECODE("Q3_K", 256, 110, decode_q3_k),
    [12] = AFFINE("Q4_K", 256, 144, 4, scales_k, codes_q4_k),
    [13] = AFFINE("Q5_K", 256, 176, 5, scales_k, codes_q5_k),
    [14] = DECODE("Q6_K", 256, 210, decode_q6_k),
    [15] = {.name = "Q8_K"},
    [16] = {.name = "IQ2_XXS"},
    [17] = {.name = "IQ2_XS"},
    [18] = {.name = "IQ3_XXS"},
    [19] = {.name = "IQ1_S"},
    [20] = AFFINE("IQ4_NL", 32, 18, 8, scales_q8_0, codes_iq4_nl),
    [21] = {.name = "IQ3_S"},
    [22] = {.name = "IQ2_S"},
    [23] = {.name = "IQ4_XS"},
    [24] = {.name = "I8"},
    [25] = {.name = "I16"},
    [26] = {.name = "I32"},
    [27] = {.name = "I64"},
    [28] = {.name = "F64"},
    [29] = {.name = "IQ1_M"},
    [30] = FLOAT("BF16", 2, CB_BF16),
    [34] = {.name = "TQ1_0"},
    [35] = {.name = "TQ2_0"},
    [39] = {.name = "MXFP4"},
};

const cb_gblock *cb_gblock_find(uint32_t type)
{
    return type < sizeof types / sizeof *types && types[type].name ? &types[type] : NULL;
}

/* ---- over many blocks ---- */

static bool f16_exact(float f) { return cb_f16_to_f32(cb_f32_to_f16(f)) == f; }

void cb_gblock_scan(const cb_gblock *t, const uint8_t *src, int64_t n, cb_gscan *out)
{
    float v[CB_GB_MAX_BLOCK];
    *out = (cb_gscan){.f16_exact = true, .bad_block = -1};
    for (int64_t i = 0; i < n; i++, src += t->bytes) {
        int k = t->block;
        if (t->bits) {
            k = t->block / CB_GB_GROUP * 2;
            t->scales(src, v, v + k / 2);
        } else
            t->decode(src, v);
        for (int j = 0; j < k; j++) {
            if (!isfinite(v[j])) {
                out->bad_block = i;
                return;
            }
            out->f16_exact = out->f16_exact && f16_exact(v[j]);
        }
    }
}

/* 8 codes of `bits` bits to `bits` bytes, the first in the low bits. */
static void pack8(const uint8_t *q, int bits, uint8_t *out)
{
    uint64_t w = 0;
    for (int i = 0; i < 8; i++) w |= (uint64_t)q[i] << (i * bits);
    for (int i = 0; i < bits; i++) out[i] = (uint8_t)(w >> (8 * i));
}

void cb_gblock_repack(const cb_gblock *t, const uint8_t *src, int64_t n, uint8_t *codes)
{
    uint8_t q[CB_GB_MAX_BLOCK];
    for (int64_t i = 0; i < n; i++, src += t->bytes) {
        t->codes(src, q);
        for (int j = 0; j < t->block; j += 8, codes += t->bits) pack8(q + j, t->bits, codes);
    }
}

void cb_gblock_scales(const cb_gblock *t, const uint8_t *src, int64_t n, cb_dtype to, bool biases, uint8_t *out)
{
    float s[CB_GB_MAX_GROUPS], b[CB_GB_MAX_GROUPS];
    int k = t->block / CB_GB_GROUP;
    for (int64_t i = 0; i < n; i++, src += t->bytes, out += (size_t)k * cb_dtype_size(to)) {
        t->scales(src, s, b);
        cb_gblock_store(biases ? b : s, k, to, out);
    }
}

void cb_gblock_decode(const cb_gblock *t, const uint8_t *src, int64_t n, float *out)
{
    uint8_t q[CB_GB_MAX_BLOCK];
    float s[CB_GB_MAX_GROUPS], b[CB_GB_MAX_GROUPS];
    for (int64_t i = 0; i < n; i++, src += t->bytes, out += t->block) {
        if (t->is_float) out[0] = cb_load_float(src, t->dtype, 0);
        else if (t->decode) t->decode(src, out);
        else {
            t->scales(src, s, b);
            t->codes(src, q);
            for (int j = 0; j < t->block; j++) out[j] = fmaf(s[j / CB_GB_GROUP], (float)q[j], b[j / CB_GB_GROUP]);
        }
    }
}

void cb_gblock_store(const float *v, int64_t n, cb_dtype to, uint8_t *out)
{
    CB_ASSERT(to == CB_F16 || to == CB_F32);
    for (int64_t i = 0; i < n; i++) {
        uint16_t h = cb_f32_to_f16(v[i]);
        if (to == CB_F32) memcpy(out + 4 * i, v + i, 4);
        else memcpy(out + 2 * i, &h, 2);
    }
}
