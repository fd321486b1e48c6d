/* utf8.h: decoding, checking and repairing UTF-8. Text inside src/text is always valid UTF-8 with an explicit length (NUL
 * is a character like any other); what comes from outside goes through cb_utf8_replace() first.
 *
 * Invalid input is cut into "maximal subparts" (Unicode 15, section 3.9): the longest start of a valid sequence, or else one
 * byte, becomes one U+FFFD. That is what Python's errors="replace" and Rust's from_utf8_lossy do. */
#ifndef CB_TEXT_UTF8_H
#define CB_TEXT_UTF8_H
#include "base/mem.h"

/* Reads the character at s (n bytes are readable). Valid: its length 1..4, and *cp is the code point (no surrogates, at
 * most U+10FFFF). Invalid: -k, where k >= 1 bytes make one maximal subpart; *cp is U+FFFD. n == 0: returns 0. */
int cb_utf8_decode(const char *s, size_t n, uint32_t *cp);
/* As cb_utf8_decode for text known to be valid and not at its end: only the length, from the first byte. */
static inline int cb_utf8_len(char c)
{
    unsigned char b = (unsigned char)c;
    return b < 0x80 ? 1 : b < 0xe0 ? 2 : b < 0xf0 ? 3 : 4;
}
/* Writes cp (a scalar value) to out, returns its length 1..4. */
int cb_utf8_encode(char out[4], uint32_t cp);
/* Appends cp. */
void cb_utf8_put(cb_buf *b, uint32_t cp);

/* Bytes at the start of s that are valid UTF-8 (n when all are). */
size_t cb_utf8_valid(const char *s, size_t n);
/* Appends s with every maximal invalid subpart replaced by U+FFFD. */
void cb_utf8_replace(cb_buf *b, const char *s, size_t n);
/* Bytes at the end of s (0..3) that are the start of a character which more bytes could complete. */
size_t cb_utf8_tail(const char *s, size_t n);
#endif
