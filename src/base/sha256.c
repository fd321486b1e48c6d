#include "base/sha256.h"
#include <string.h>

/* Fractional bits of the cube roots of the first 64 primes. */
static const uint32_t k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
    0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
    0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
    0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
    0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
    0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static inline uint32_t ror(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void compress(uint32_t h[8], const uint8_t *p)
{
    uint32_t w[64], a = h[0], b = h[1], c = h[2], d = h[3], e = h[4], f = h[5], g = h[6], i = h[7];
    for (int t = 0; t < 16; t++, p += 4) w[t] = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
    for (int t = 16; t < 64; t++) {
        uint32_t x = w[t - 15], y = w[t - 2];
        w[t] = w[t - 16] + (ror(x, 7) ^ ror(x, 18) ^ x >> 3) + w[t - 7] + (ror(y, 17) ^ ror(y, 19) ^ y >> 10);
    }
    for (int t = 0; t < 64; t++) {
        uint32_t t1 = i + (ror(e, 6) ^ ror(e, 11) ^ ror(e, 25)) + ((e & f) ^ (~e & g)) + k[t] + w[t];
        uint32_t t2 = (ror(a, 2) ^ ror(a, 13) ^ ror(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        i = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    h[0] += a, h[1] += b, h[2] += c, h[3] += d, h[4] += e, h[5] += f, h[6] += g, h[7] += i;
}

void cb_sha256_init(cb_sha256 *s)
{
    *s = (cb_sha256){ .h = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19 } };
}

void cb_sha256_put(cb_sha256 *s, const void *data, size_t n)
{
    const uint8_t *p = data;
    size_t have = s->n % 64;
    s->n += n;
    if (have) {
        size_t m = 64 - have < n ? 64 - have : n;
        memcpy(s->block + have, p, m);
        p += m, n -= m;
        if (have + m < 64) return;
        compress(s->h, s->block);
    }
    for (; n >= 64; p += 64, n -= 64) compress(s->h, p);
    if (n) memcpy(s->block, p, n);
}

void cb_sha256_get(const cb_sha256 *s, uint8_t out[32])
{
    static const uint8_t pad[64] = { 0x80 };
    cb_sha256 t = *s;
    uint8_t len[8];
    for (int i = 0; i < 8; i++) len[i] = (uint8_t)(s->n * 8 >> (56 - 8 * i));
    cb_sha256_put(&t, pad, 64 - (t.n + 8) % 64);
    cb_sha256_put(&t, len, 8);
    for (int i = 0; i < 32; i++) out[i] = (uint8_t)(t.h[i / 4] >> (24 - 8 * (i % 4)));
}

void cb_sha256_hex(const cb_sha256 *s, char out[65])
{
    static const char digit[] = "0123456789abcdef";
    uint8_t d[32];
    cb_sha256_get(s, d);
    for (int i = 0; i < 32; i++) {
        out[2 * i] = digit[d[i] >> 4];
        out[2 * i + 1] = digit[d[i] & 15];
    }
    out[64] = 0;
}
