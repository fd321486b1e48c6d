/* sha256.h: SHA-256 (FIPS 180-4), for hashes of logits and files. */
#ifndef CB_BASE_SHA256_H
#define CB_BASE_SHA256_H
#include <stddef.h>
#include <stdint.h>

typedef struct cb_sha256 {
    uint32_t h[8];
    uint64_t n;       /* bytes so far */
    uint8_t block[64]; /* the last n % 64 of them */
} cb_sha256;

void cb_sha256_init(cb_sha256 *s);
void cb_sha256_put(cb_sha256 *s, const void *p, size_t n);
/* 32 bytes. s may go on taking bytes afterwards: the digest is of what was put so far. */
void cb_sha256_get(const cb_sha256 *s, uint8_t out[32]);
/* 64 lower-case digits and a NUL. */
void cb_sha256_hex(const cb_sha256 *s, char out[65]);
#endif
