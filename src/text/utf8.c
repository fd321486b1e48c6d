#include "text/utf8.h"
#include <string.h>

int cb_utf8_decode(const char *s, size_t n, uint32_t *cp)
{
    const unsigned char *p = (const unsigned char *)s;
    if (n == 0) return 0;
    uint32_t c = p[0];
    if (c < 0x80) return *cp = c, 1;
    *cp = 0xfffd;
    if (c < 0xc2 || c > 0xf4) return -1;
    int len = c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    /* The second byte's range excludes overlong forms, surrogates and what lies beyond U+10FFFF (Unicode table 3-7). */
    unsigned lo = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80, hi = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
    uint32_t v = c & (0xffu >> (len + 1));
    for (int i = 1; i < len; i++) {
        if ((size_t)i >= n || p[i] < lo || p[i] > hi) return -i;
        v = v << 6 | (p[i] & 0x3f);
        lo = 0x80, hi = 0xbf;
    }
    *cp = v;
    return len;
}

int cb_utf8_encode(char out[4], uint32_t cp)
{
    if (cp < 0x80) return out[0] = (char)cp, 1;
    if (cp < 0x800) {
        out[0] = (char)(0xc0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xe0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        out[2] = (char)(0x80 | (cp & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3f));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3f));
    out[3] = (char)(0x80 | (cp & 0x3f));
    return 4;
}

void cb_utf8_put(cb_buf *b, uint32_t cp)
{
    char c[4];
    cb_buf_put(b, c, (size_t)cb_utf8_encode(c, cp));
}

size_t cb_utf8_valid(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n) {
        uint64_t w;
        if (n - i >= 8 && (memcpy(&w, s + i, 8), !(w & 0x8080808080808080u))) {
            i += 8;
            continue;
        }
        uint32_t cp;
        int k = cb_utf8_decode(s + i, n - i, &cp);
        if (k < 0) return i;
        i += (size_t)k;
    }
    return n;
}

void cb_utf8_replace(cb_buf *b, const char *s, size_t n)
{
    while (n) {
        size_t good = cb_utf8_valid(s, n);
        cb_buf_put(b, s, good);
        s += good;
        n -= good;
        if (!n) break;
        uint32_t cp;
        size_t bad = (size_t)-cb_utf8_decode(s, n, &cp);
        cb_buf_put(b, "\xef\xbf\xbd", 3);
        s += bad;
        n -= bad;
    }
}

size_t cb_utf8_tail(const char *s, size_t n)
{
    for (size_t k = 1; k <= 3 && k <= n; k++) {
        unsigned char c = (unsigned char)s[n - k];
        if (c < 0x80) return 0;
        if (c < 0xc0) continue;
        uint32_t cp;
        int r = cb_utf8_decode(s + n - k, k, &cp);
        size_t len = (size_t)cb_utf8_len((char)c);
        return c >= 0xc2 && c <= 0xf4 && r == -(int)k && k < len ? k : 0;
    }
    return 0;
}
