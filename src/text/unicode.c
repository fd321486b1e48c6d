#include "text/unicode.h"
#include "text/utf8.h"
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

static const cb_unicode_range *find_range(const cb_unicode_range *r, int n, uint32_t cp)
{
    int lo = 0, hi = n;
    if (cp < r[0].first) return NULL;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (cp > r[mid].last) lo = mid + 1;
        else hi = mid;
    }
    return lo < n && cp >= r[lo].first ? r + lo : NULL;
}

uint32_t cb_unicode_stand_in(uint32_t cp)
{
    const cb_unicode_range *r = find_range(cb_unicode_standins, cb_unicode_n_standins, cp);
    return r ? r->stand_in : cp;
}

static bool is_inert(uint32_t cp) { return find_range(cb_unicode_inert, cb_unicode_n_inert, cp) != NULL; }

bool cb_unicode_has_young(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        /* No young character is shorter than three bytes. */
        if ((unsigned char)s[i] < 0xe0) {
            i += (size_t)cb_utf8_len(s[i]);
            continue;
        }
        uint32_t cp;
        i += (size_t)cb_utf8_decode(s + i, n - i, &cp);
        if (cb_unicode_stand_in(cp) != cp) return true;
    }
    return false;
}

void cb_unicode_put_old(cb_buf *b, const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        i += (size_t)cb_utf8_decode(s + i, n - i, &cp);
        cb_utf8_put(b, cb_unicode_stand_in(cp));
    }
}

bool cb_unicode_is_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || cp == 0x20 || cp == 0x85 || cp == 0xa0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) ||
           cp == 0x2028 || cp == 0x2029 || cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

static utf8proc_category_t category(uint32_t cp) { return utf8proc_category((int32_t)cb_unicode_stand_in(cp)); }

bool cb_unicode_is_numeric(uint32_t cp)
{
    if (cp < 0x80) return cp >= '0' && cp <= '9';
    if ((cp >= 0x11de0 && cp <= 0x11de9) || (cp >= 0x16ff4 && cp <= 0x16ff6)) return true; /* of Unicode 17, as the reference */
    utf8proc_category_t c = category(cp);
    return c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO;
}

bool cb_unicode_is_punct(uint32_t cp)
{
    if (cp < 0x80) return cp > 32 && cp < 127 && !((cp | 32) >= 'a' && (cp | 32) <= 'z') && !(cp >= '0' && cp <= '9');
    utf8proc_category_t c = category(cp);
    bool flip = find_range(cb_unicode_punct_flip, cb_unicode_n_punct_flip, cp) != NULL;
    return (c >= UTF8PROC_CATEGORY_PC && c <= UTF8PROC_CATEGORY_PO) != flip;
}

bool cb_unicode_is_mark(uint32_t cp)
{
    utf8proc_category_t c = cp < 0x300 || is_inert(cp) ? UTF8PROC_CATEGORY_CN : category(cp);
    if (cp == 0x1cf2 || cp == 0x1cf3) return true; /* were marks in Unicode 9 */
    return c >= UTF8PROC_CATEGORY_MN && c <= UTF8PROC_CATEGORY_ME;
}

bool cb_unicode_is_word(uint32_t cp)
{
    if (cp < 0x80) return cp == '_' || (cp >= '0' && cp <= '9') || ((cp | 32) >= 'a' && (cp | 32) <= 'z');
    utf8proc_category_t c = category(cp);
    return (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_ME) || c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL ||
           c == UTF8PROC_CATEGORY_PC || cp == 0x200c || cp == 0x200d || (cp >= 0x24b6 && cp <= 0x24e9) ||
           (cp >= 0x1f130 && cp <= 0x1f149) || (cp >= 0x1f150 && cp <= 0x1f169) || (cp >= 0x1f170 && cp <= 0x1f189);
}

/* ---- normal forms ---- */

static unsigned ccc(int32_t cp) { return is_inert((uint32_t)cp) ? 0 : (unsigned)utf8proc_get_property(cp)->combining_class; }

/* The composition of a pair, or -1. */
static int32_t compose_pair(int32_t a, int32_t b)
{
    int32_t p[2] = {a, b};
    if (b == 0x11a7) return -1; /* not a tail; some versions of the library take it for one */
    if (utf8proc_normalize_utf32(p, 2, UTF8PROC_COMPOSE | UTF8PROC_STABLE) != 1) return -1;
    return is_inert((uint32_t)p[0]) ? -1 : p[0];
}

/* Canonical composition in place; returns the new length. */
static size_t compose(int32_t *cp, size_t n)
{
    size_t o = 0, starter = SIZE_MAX;
    unsigned last = 0; /* class of the last character kept after the starter */
    for (size_t i = 0; i < n; i++) {
        unsigned k = ccc(cp[i]);
        bool blocked = starter == SIZE_MAX || (o > starter + 1 && last >= k);
        int32_t c = blocked ? -1 : compose_pair(cp[starter], cp[i]);
        if (c >= 0) {
            cp[starter] = c;
            continue;
        }
        if (k == 0) starter = o;
        last = k;
        cp[o++] = cp[i];
    }
    return o;
}

/* Whether a character that decomposes comes back from composition: not so for singletons (Angstrom sign, Greek oxia, CJK
 * compatibility ideographs) and composition exclusions. */
static bool recomposes(uint32_t cp, int form)
{
    if ((cp >= 0x400 && cp <= 0x52f) || (cp >= 0x1ea0 && cp <= 0x1ef9)) return true; /* Cyrillic, Vietnamese: the common ones */
    int32_t d[64];
    int last = 0;
    utf8proc_option_t o = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (form == CB_NFKC ? UTF8PROC_COMPAT : 0);
    utf8proc_ssize_t n = utf8proc_decompose_char((int32_t)cp, d, 64, o, &last);
    return n >= 1 && n <= 64 && compose(d, (size_t)n) == 1 && d[0] == (int32_t)cp;
}

/* A character that begins a segment and is itself in normal form: nothing before it can change it or be changed by it.
 * Between two such characters the text can be normalised on its own. */
static bool is_stable(uint32_t cp, int form)
{
    if (cp < (form == CB_NFC ? 0x300u : form == CB_NFD ? 0xc0u : 0xa0u)) return true;
    const utf8proc_property_t *p = utf8proc_get_property((int32_t)cp);
    bool hangul = cp >= 0xac00 && cp <= 0xd7a3, decomposes = p->decomp_seqindex != UINT16_MAX;
    bool second = p->comb_index != UINT16_MAX && (p->comb_index & 0x8000); /* may be second in a composition */
    if ((cp >= 0x1161 && cp <= 0x1175) || (cp >= 0x11a8 && cp <= 0x11c2)) second = true; /* vowel and tail jamo */
    if (!p->combining_class && !decomposes && !second && !hangul) return true;
    if (is_inert(cp)) return true;
    if (p->combining_class) return false;
    if (form == CB_NFD || form == CB_NFKD) return !hangul && (!decomposes || (form == CB_NFD && p->decomp_type));
    if (second || !decomposes) return !second;
    return p->decomp_type ? form == CB_NFC : recomposes(cp, form);
}

bool cb_unicode_is_normal(const char *s, size_t n, int form)
{
    for (size_t i = 0; i < n;) {
        if ((unsigned char)s[i] < 0x80) {
            i++;
            continue;
        }
        uint32_t cp;
        i += (size_t)cb_utf8_decode(s + i, n - i, &cp);
        if (!is_stable(cp, form)) return false;
    }
    return true;
}

/* A segment being rebuilt. */
typedef struct segment {
    int32_t *cp;
    size_t n, cap;
    bool failed;
} segment;

static void add_decomposed(segment *g, uint32_t cp, int form)
{
    int32_t d[64];
    int last = 0;
    utf8proc_option_t o = UTF8PROC_STABLE | (form == CB_NFKC || form == CB_NFKD ? UTF8PROC_COMPAT : 0) | UTF8PROC_DECOMPOSE;
    utf8proc_ssize_t k = is_inert(cp) ? -1 : utf8proc_decompose_char((int32_t)cp, d, 64, o, &last);
    if (k < 0 || k > 64) d[0] = (int32_t)cp, k = 1;
    if (g->n + (size_t)k + 1 > g->cap) {
        size_t cap = g->cap ? g->cap * 2 : 64;
        while (cap < g->n + (size_t)k + 1) cap *= 2;
        int32_t *p = cb_realloc(g->cp, cap * sizeof *p);
        if (!p) {
            g->failed = true;
            return;
        }
        g->cp = p;
        g->cap = cap;
    }
    memcpy(g->cp + g->n, d, (size_t)k * sizeof *d);
    g->n += (size_t)k;
}

static int by_key(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Canonical ordering of one run of marks. Short runs by insertion; a hostile run of a million marks must not go quadratic. */
static bool sort_marks(int32_t *cp, size_t n)
{
    if (n <= 32) {
        for (size_t i = 1; i < n; i++) {
            int32_t v = cp[i];
            unsigned k = ccc(v);
            size_t j = i;
            for (; j > 0 && ccc(cp[j - 1]) > k; j--) cp[j] = cp[j - 1];
            cp[j] = v;
        }
        return true;
    }
    uint64_t *key = cb_alloc_array(n, sizeof *key);
    int32_t *copy = cb_alloc_array(n, sizeof *copy);
    bool ok = key && copy;
    if (ok) {
        memcpy(copy, cp, n * sizeof *cp);
        for (size_t i = 0; i < n; i++) key[i] = (uint64_t)ccc(cp[i]) << 48 | i;
        qsort(key, n, sizeof *key, by_key);
        for (size_t i = 0; i < n; i++) cp[i] = copy[key[i] & 0xffffffffffffu];
    }
    cb_free(key);
    cb_free(copy);
    return ok;
}

static void flush(cb_buf *out, segment *g, int form)
{
    for (size_t i = 0; i < g->n && !g->failed;) {
        size_t j = i;
        while (j < g->n && ccc(g->cp[j])) j++;
        if (j > i + 1 && !sort_marks(g->cp + i, j - i)) g->failed = true;
        i = j + (j == i);
    }
    if (g->failed) {
        out->failed = true;
        return;
    }
    size_t n = g->n;
    if (form == CB_NFC || form == CB_NFKC) n = compose(g->cp, n);
    for (size_t i = 0; i < n; i++) cb_utf8_put(out, (uint32_t)g->cp[i]);
    g->n = 0;
}

void cb_unicode_normalize(cb_buf *out, const char *s, size_t n, int form)
{
    segment g = {0};
    size_t copied = 0, stable = 0; /* s[..copied) is out; the last stable character begins at `stable` */
    for (size_t i = 0; i < n && !out->failed;) {
        uint32_t cp;
        size_t k = (size_t)cb_utf8_decode(s + i, n - i, &cp);
        if (is_stable(cp, form)) {
            stable = i;
            i += k;
            continue;
        }
        /* Rebuild from the last stable character to the next one. */
        if (stable < copied) stable = copied;
        cb_buf_put(out, s + copied, stable - copied);
        size_t j = stable;
        while (j < n) {
            size_t m = (size_t)cb_utf8_decode(s + j, n - j, &cp);
            if (j >= i && is_stable(cp, form)) break;
            add_decomposed(&g, cp, form);
            j += m;
        }
        flush(out, &g, form);
        copied = stable = i = j;
    }
    cb_buf_put(out, s + copied, n - copied);
    cb_free(g.cp);
}

/* Lower case of the capitals that Unicode 16 and 17 brought; 0 for all others. */
static uint32_t young_lower(uint32_t cp)
{
    if (cp < 0x1c89) return 0;
    if (cp >= 0x10d50 && cp <= 0x10d65) return cp + 0x20;
    if (cp >= 0x16ea0 && cp <= 0x16eb8) return cp + 0x1b;
    if (cp == 0x1c89 || cp == 0xa7cc || cp == 0xa7ce || cp == 0xa7d2 || cp == 0xa7d4 || cp == 0xa7da) return cp + 1;
    return cp == 0xa7cb ? 0x264 : cp == 0xa7dc ? 0x19b : 0;
}

void cb_unicode_lower(cb_buf *out, const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp, young;
        i += (size_t)cb_utf8_decode(s + i, n - i, &cp);
        if (cp < 0x80) cb_buf_putc(out, (char)(cp >= 'A' && cp <= 'Z' ? cp + 32 : cp));
        else if ((young = young_lower(cp))) cb_utf8_put(out, young);
        else if (cp == 0x130) cb_buf_put(out, "i\xcc\x87", 3); /* the one character whose lower case is two */
        else cb_utf8_put(out, (uint32_t)utf8proc_tolower((int32_t)cp));
    }
}
