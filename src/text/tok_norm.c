/* tok_norm.c: finding, replacing and normalising. */
#include "text/tok.h"
#include "text/unicode.h"
#include "text/utf8.h"
#include <string.h>

uint32_t cb_byte_char(uint8_t b)
{
    /* Printable Latin-1 stands for itself; the 68 others follow from U+0100 in byte order. */
    if ((b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174) return b;
    return b <= 32 ? 256u + b : b <= 160 ? 256u + 33 + (b - 127u) : 256u + 67;
}

int cb_byte_of_char(uint32_t cp)
{
    if (cp < 256) return cb_byte_char((uint8_t)cp) == cp ? (int)cp : -1;
    if (cp < 256 + 33) return (int)(cp - 256);
    if (cp < 256 + 67) return (int)(cp - 256 - 33 + 127);
    return cp == 256 + 67 ? 173 : -1;
}

static bool is_kind(int kind, uint32_t cp)
{
    switch (kind) {
    case CB_FIND_NUMERIC: return cb_unicode_is_numeric(cp);
    case CB_FIND_PUNCT: return cb_unicode_is_punct(cp);
    default: return cb_unicode_is_space(cp);
    }
}

int cb_find(const cb_finder *f, cb_regex_run *run, const char *s, size_t n, size_t from, bool after_match, size_t *start,
            size_t *end, cb_err *err)
{
    if (f->kind == CB_FIND_TEXT) {
        const char *p = f->n && from < n ? memmem(s + from, n - from, f->text, f->n) : NULL;
        if (!p) return 0;
        *start = (size_t)(p - s);
        *end = *start + f->n;
        return 1;
    }
    if (f->kind != CB_FIND_REGEX) {
        for (size_t i = from; i < n;) {
            uint32_t cp;
            size_t k = (size_t)cb_utf8_decode(s + i, n - i, &cp);
            if (is_kind(f->kind, cp)) return *start = i, *end = i + k, 1;
            i += k;
        }
        return 0;
    }
    for (size_t at = from; at <= n;) {
        int rc = cb_regex_next(f->re, run, s, n, at, start, end, err);
        if (rc <= 0 || *start != *end || !after_match || *end != from) return rc;
        at = from + (from < n ? (size_t)cb_utf8_len(s[from]) : 1);
    }
    return 0;
}

const char *cb_find_view(const cb_finder *f, const cb_regex_run *run, cb_buf *tmp, const char *s, size_t n)
{
    if (f->kind != CB_FIND_REGEX || !run->young || !cb_unicode_has_young(s, n)) return s;
    tmp->n = 0;
    cb_unicode_put_old(tmp, s, n);
    return cb_buf_ok(tmp) ? tmp->data : NULL;
}

int cb_replace_all(const cb_finder *f, cb_regex_run *run, cb_buf *out, const char *s, size_t n, const char *with, size_t n_with,
                   cb_err *err)
{
    cb_buf tmp;
    cb_buf_init(&tmp, 0);
    const char *view = cb_find_view(f, run, &tmp, s, n);
    size_t from = 0, a, b;
    int rc = view ? 1 : CB_ENOMEM;
    for (bool after = false; rc > 0 && (rc = cb_find(f, run, view, n, from, after, &a, &b, err)) > 0; after = true) {
        cb_buf_put(out, s + from, a - from);
        cb_buf_put(out, with, n_with);
        if (!cb_buf_ok(out)) rc = CB_ENOMEM;
        from = b;
    }
    if (rc == 0) cb_buf_put(out, s + from, n - from);
    cb_buf_fini(&tmp);
    if (rc == CB_ENOMEM || !cb_buf_ok(out)) return cb_fail(err, CB_ENOMEM, "no memory to replace in %zu bytes, or too much comes of them", n);
    return rc;
}

static void strip(const cb_norm_step *p, const char **s, size_t *n, bool *at_start)
{
    uint32_t cp;
    size_t a = 0, b = *n;
    for (int k; p->left && a < b && (k = cb_utf8_decode(*s + a, b - a, &cp)) > 0 && cb_unicode_is_space(cp); a += (size_t)k)
        *at_start = false;
    while (p->right && b > a) {
        size_t i = b - 1;
        while (i > a && ((*s)[i] & 0xc0) == 0x80) i--;
        cb_utf8_decode(*s + i, b - i, &cp);
        if (!cb_unicode_is_space(cp)) break;
        b = i;
    }
    *s += a;
    *n = b - a;
}

/* Steps that write a new text. */
static int rewrite(const cb_norm_step *p, cb_regex_run *run, cb_buf *out, const char *s, size_t n, cb_err *err)
{
    switch (p->kind) {
    case CB_NORM_LOWER: cb_unicode_lower(out, s, n); break;
    case CB_NORM_REPLACE: return cb_replace_all(&p->find, run, out, s, n, p->text, p->n, err);
    case CB_NORM_PREPEND:
        cb_buf_put(out, p->text, p->n);
        cb_buf_put(out, s, n);
        break;
    case CB_NORM_BYTES:
        for (size_t i = 0; i < n; i++) cb_utf8_put(out, cb_byte_char((uint8_t)s[i]));
        break;
    case CB_NORM_STRIP_MARKS:
        for (size_t i = 0; i < n;) {
            uint32_t cp;
            size_t k = (size_t)cb_utf8_decode(s + i, n - i, &cp);
            if (!cb_unicode_is_mark(cp)) cb_buf_put(out, s + i, k);
            i += k;
        }
        break;
    default:
        cb_unicode_normalize(out, s, n, p->kind == CB_NORM_NFC ? CB_NFC : p->kind == CB_NORM_NFD ? CB_NFD
                                        : p->kind == CB_NORM_NFKC ? CB_NFKC : CB_NFKD);
    }
    return 0;
}

static bool unchanged(const cb_norm_step *p, const char *s, size_t n)
{
    switch (p->kind) {
    case CB_NORM_NFC: return cb_unicode_is_normal(s, n, CB_NFC);
    case CB_NORM_NFD: return cb_unicode_is_normal(s, n, CB_NFD);
    case CB_NORM_NFKC: return cb_unicode_is_normal(s, n, CB_NFKC);
    case CB_NORM_NFKD: return cb_unicode_is_normal(s, n, CB_NFKD);
    case CB_NORM_REPLACE: return p->find.kind == CB_FIND_TEXT && (!p->find.n || !memmem(s, n, p->find.text, p->find.n));
    default: return n == 0;
    }
}

int cb_norm_run(const cb_tokenizer *t, cb_regex_run *run, cb_buf buf[2], const char *s, size_t n, const char **out,
                size_t *out_n, bool *at_start, cb_err *err)
{
    int use = 0;
    for (int i = 0; i < t->n_norm; i++) {
        const cb_norm_step *p = t->norm + i;
        if (p->kind == CB_NORM_STRIP) {
            strip(p, &s, &n, at_start);
            continue;
        }
        if (unchanged(p, s, n)) continue;
        cb_buf *b = buf + use;
        b->n = 0;
        int rc = rewrite(p, run, b, s, n, err);
        if (rc < 0) return rc;
        if (!cb_buf_ok(b)) return cb_fail(err, CB_ENOMEM, "no memory to normalise %zu bytes, or too much comes of them", n);
        s = b->data ? b->data : "";
        n = b->n;
        use ^= 1;
    }
    *out = s;
    *out_n = n;
    return 0;
}
