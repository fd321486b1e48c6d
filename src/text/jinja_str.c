#include "text/jinja_ast.h"
#include "text/jinja_case_tables.h"
#include "text/jinja_filter.h"
#include "text/utf8.h"
#include <string.h>
#include <utf8proc.h>

/* Methods of strings. Positions and lengths are in characters outside and bytes inside. */

/* ---- characters ---- */

size_t cb_j_space(const char *s, size_t n)
{
    unsigned char c = n ? (unsigned char)*s : 'x';
    if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x1f);
    uint32_t cp;
    int k = cb_utf8_decode(s, n, &cp);
    bool sp = cp == 0x85 || cp == 0xa0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 ||
              cp == 0x202f || cp == 0x205f || cp == 0x3000;
    return sp && k > 0 ? (size_t)k : 0;
}

/* Decodes the character at byte i of valid text; *next is the byte after it. */
static uint32_t char_at(const cb_jstr *s, size_t i, size_t *next)
{
    uint32_t cp = (unsigned char)s->s[i];
    int k = cp < 0x80 ? 1 : cb_utf8_decode(s->s + i, s->n - i, &cp);
    *next = i + (k > 0 ? (size_t)k : 1);
    return cp;
}

static size_t char_before(const char *s, size_t n)
{
    size_t k = n - 1;
    while (k > 0 && ((unsigned char)s[k] & 0xc0) == 0x80) k--;
    return k;
}

/* Byte offset of character i (at most n_chars). */
static size_t byte_of(cb_jr *r, const cb_jstr *s, size_t i)
{
    if (s->n == s->n_chars) return i;
    size_t b = 0;
    cb_j_pay(r, s->n / 16);
    for (; i && b < s->n; i--) b += (size_t)cb_utf8_len(s->s[b]);
    return b;
}

static bool is_cat(uint32_t cp, int lo, int hi)
{
    int c = utf8proc_category((utf8proc_int32_t)cp);
    return c >= lo && c <= hi;
}
static bool is_cased(uint32_t cp)
{
    if (cp < 0x80) return (cp | 32) >= 'a' && (cp | 32) <= 'z';
    return is_cat(cp, UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LT) || utf8proc_islower((utf8proc_int32_t)cp) ||
           utf8proc_isupper((utf8proc_int32_t)cp);
}
static bool is_case_ignorable(uint32_t cp)
{
    if (cp == '\'' || cp == '.' || cp == ':' || cp == '^' || cp == '`' || cp == 0xb7 || cp == 0x2019) return true;
    int c = utf8proc_category((utf8proc_int32_t)cp);
    return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_ME || c == UTF8PROC_CATEGORY_CF || c == UTF8PROC_CATEGORY_LM ||
           c == UTF8PROC_CATEGORY_SK;
}

/* A capital sigma ends a word when a letter is before it (from byte `from` on) and none after. */
static bool final_sigma(const cb_jstr *s, size_t from, size_t i, size_t next)
{
    uint32_t cp = 0;
    size_t k = i, skip;
    do {
        if (k <= from) return false;
        k = char_before(s->s, k);
        cp = char_at(s, k, &skip);
    } while (is_case_ignorable(cp));
    if (!is_cased(cp)) return false;
    for (k = next; k < s->n;) {
        cp = char_at(s, k, &k);
        if (!is_case_ignorable(cp)) return !is_cased(cp);
    }
    return true;
}

enum { TO_LOWER, TO_UPPER, TO_TITLE };

static void put_char(cb_jr *r, uint32_t cp)
{
    char b[4];
    cb_j_out(r, b, (size_t)cb_utf8_encode(b, cp));
}

static void put_case(cb_jr *r, const cb_jstr *s, size_t from, size_t i, size_t next, uint32_t cp, int to)
{
    if (cp < 0x80) {
        char c = (char)cp;
        if (to == TO_LOWER ? cp >= 'A' && cp <= 'Z' : cp >= 'a' && cp <= 'z') c ^= 32;
        return cb_j_out(r, &c, 1);
    }
    if (to == TO_LOWER) {
        if (cp == 0x130) return put_char(r, 'i'), put_char(r, 0x307);
        if (cp == 0x3a3) return put_char(r, cb_j_pay(r, 1) && final_sigma(s, from, i, next) ? 0x3c2 : 0x3c3);
        return put_char(r, (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp));
    }
    for (int lo = 0, hi = cb_jcase_count; lo < hi;) {
        int mid = (lo + hi) / 2;
        const cb_jcase *c = &cb_jcase_table[mid];
        if (c->from == cp) {
            const uint16_t *m = to == TO_UPPER ? c->upper : c->title;
            for (int k = 0; k < 3 && m[k]; k++) put_char(r, m[k]);
            return;
        }
        if (c->from < cp) lo = mid + 1;
        else hi = mid;
    }
    put_char(r, (uint32_t)(to == TO_UPPER ? utf8proc_toupper((utf8proc_int32_t)cp) : utf8proc_totitle((utf8proc_int32_t)cp)));
}

/* ---- case ---- */

/* Which case the next character gets. */
typedef int (*case_rule)(uint32_t prev, uint32_t cp, bool first);
static int rule_lower(uint32_t prev, uint32_t cp, bool first) { return TO_LOWER; }
static int rule_upper(uint32_t prev, uint32_t cp, bool first) { return TO_UPPER; }
static int rule_capital(uint32_t prev, uint32_t cp, bool first) { return first ? TO_TITLE : TO_LOWER; }
static int rule_title(uint32_t prev, uint32_t cp, bool first) { return !first && is_cased(prev) ? TO_LOWER : TO_TITLE; }
static bool ends_word(uint32_t cp)
{
    char b[4];
    return (cp && cp < 0x80 && strchr("-({[<", (int)cp)) || cb_j_space(b, (size_t)cb_utf8_encode(b, cp));
}
static int rule_words(uint32_t prev, uint32_t cp, bool first) { return first || ends_word(prev) ? TO_UPPER : TO_LOWER; }
static int rule_swap(uint32_t prev, uint32_t cp, bool first)
{
    return utf8proc_isupper((utf8proc_int32_t)cp) ? TO_LOWER : TO_UPPER;
}

static cb_jv recase(cb_jr *r, cb_jv v, case_rule rule)
{
    v = cb_j_to_str(r, v);
    if (r->rc || !cb_j_pay(r, v.s->n / 4)) return cb_j_undef();
    size_t mark = cb_j_begin(r);
    uint32_t prev = 0;
    for (size_t i = 0, next, from = 0; i < v.s->n && !r->rc; i = next) {
        uint32_t cp = char_at(v.s, i, &next);
        int to = rule(prev, cp, i == 0);
        if (rule == rule_words && to == TO_UPPER) from = next; /* jinja2 lowers the rest of the word on its own */
        put_case(r, v.s, from, i, next, cp, to);
        prev = cp;
    }
    return cb_j_end(r, mark);
}

CB_JFN(upper) { return recase(r, v, rule_upper); }
CB_JFN(lower) { return recase(r, v, rule_lower); }
CB_JFN(capitalize) { return recase(r, v, rule_capital); }
CB_JFN(title_words) { return recase(r, v, rule_words); }
static CB_JFN(title) { return recase(r, v, rule_title); }
static CB_JFN(casefold)
{
    if (!cb_j_pay(r, v.s->n / 4)) return cb_j_undef();
    size_t mark = cb_j_begin(r);
    for (size_t i = 0; i < v.s->n && !r->rc;) {
        utf8proc_int32_t fold[8];
        int boundary = 0;
        uint32_t cp = char_at(v.s, i, &i);
        utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)cp, fold, 8, UTF8PROC_CASEFOLD, &boundary);
        for (utf8proc_ssize_t k = 0; k < n; k++) put_char(r, (uint32_t)fold[k]);
    }
    return cb_j_end(r, mark);
}
static CB_JFN(swapcase) { return recase(r, v, rule_swap); }
cb_jv cb_j_lower(cb_jr *r, cb_jv v) { return v.type == CB_J_STR ? recase(r, v, rule_lower) : v; }

bool cb_j_all_case(cb_jv s, bool upper)
{
    bool any = false;
    for (size_t i = 0, next; i < s.s->n; i = next) {
        utf8proc_int32_t cp = (utf8proc_int32_t)char_at(s.s, i, &next);
        if (upper ? utf8proc_islower(cp) : utf8proc_isupper(cp)) return false;
        any |= upper ? utf8proc_isupper(cp) : utf8proc_islower(cp);
    }
    return any;
}
static CB_JFN(isupper) { return cb_j_bool(cb_j_pay(r, v.s->n / 8) && cb_j_all_case(v, true)); }
static CB_JFN(islower) { return cb_j_bool(cb_j_pay(r, v.s->n / 8) && cb_j_all_case(v, false)); }

/* ---- kinds of characters ---- */

static bool c_alpha(uint32_t cp) { return is_cat(cp, UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LO); }
static bool c_decimal(uint32_t cp) { return is_cat(cp, UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_ND); }
static bool c_digit(uint32_t cp) /* superscripts and circled digits count, other No and Nl do not */
{
    return c_decimal(cp) || cp == 0xb2 || cp == 0xb3 || cp == 0xb9 || cp == 0x2070 || (cp >= 0x2074 && cp <= 0x2079) ||
           (cp >= 0x2080 && cp <= 0x2089) || (cp >= 0x2460 && cp <= 0x2468);
}
static bool c_numeric(uint32_t cp) { return is_cat(cp, UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NO); }
static bool c_alnum(uint32_t cp) { return c_alpha(cp) || c_numeric(cp); }
static bool c_space(uint32_t cp)
{
    char b[4];
    return cb_j_space(b, (size_t)cb_utf8_encode(b, cp));
}
static bool c_ascii(uint32_t cp) { return cp < 0x80; }

static cb_jv all_are(cb_jr *r, cb_jv v, bool (*is)(uint32_t), bool when_empty)
{
    if (!v.s->n) return cb_j_bool(when_empty);
    if (!cb_j_pay(r, v.s->n / 8)) return cb_j_undef();
    for (size_t i = 0; i < v.s->n;)
        if (!is(char_at(v.s, i, &i))) return cb_j_bool(false);
    return cb_j_bool(true);
}
static CB_JFN(isalpha) { return all_are(r, v, c_alpha, false); }
static CB_JFN(isdecimal) { return all_are(r, v, c_decimal, false); }
static CB_JFN(isdigit) { return all_are(r, v, c_digit, false); }
static CB_JFN(isnumeric) { return all_are(r, v, c_numeric, false); }
static CB_JFN(isalnum) { return all_are(r, v, c_alnum, false); }
static CB_JFN(isspace) { return all_are(r, v, c_space, false); }
static CB_JFN(isascii) { return all_are(r, v, c_ascii, true); }

/* ---- arguments ---- */

bool cb_j_arg_int(cb_jr *r, cb_jv v, const char *what, int64_t *out)
{
    if (v.type == CB_J_MISSING) return true;
    if (cb_j_is_intlike(v)) return *out = v.i, true;
    if (!cb_j_refuse_undef(r, v)) cb_j_fail(r, "%s: '%s' object cannot be interpreted as an integer", what, cb_j_type_name(v));
    return false;
}

bool cb_j_arg_str(cb_jr *r, cb_jv v, const char *what, const cb_jstr **out)
{
    if (v.type == CB_J_MISSING) return true;
    if (v.type == CB_J_STR) return *out = v.s, true;
    cb_j_fail(r, "%s must be str, not %s", what, cb_j_type_name(v));
    return false;
}

static cb_jv given(cb_jv v) { return v.type == CB_J_NONE ? CB_J(CB_J_MISSING) : v; }

static cb_jv part(cb_jr *r, const cb_jstr *s, size_t from, size_t to)
{
    if (from == 0 && to == s->n) return (cb_jv){.type = CB_J_STR, .s = s};
    size_t n = to - from;
    return s->n == s->n_chars ? cb_j_str_chars(r, s->s + from, n, n) : cb_j_str(r, s->s + from, n);
}

/* ---- strip ---- */

static size_t matches(const char *s, size_t n, const cb_jstr *chars)
{
    if (!chars) return cb_j_space(s, n);
    size_t k = (size_t)cb_utf8_len(*s);
    for (size_t i = 0; i < chars->n; i += (size_t)cb_utf8_len(chars->s[i]))
        if (chars->n - i >= k && k <= n && !memcmp(chars->s + i, s, k)) return k;
    return 0;
}

static cb_jv strip(cb_jr *r, cb_jv v, cb_jv arg, int sides)
{
    const cb_jstr *chars = NULL;
    v = cb_j_to_str(r, v);
    if (r->rc || !cb_j_arg_str(r, given(arg), "strip arg", &chars)) return cb_j_undef();
    size_t from = 0, to = v.s->n, k;
    cb_j_pay(r, chars ? chars->n / 8 : 0);
    if (sides & 1)
        while (from < to && cb_j_pay(r, 1) && (k = matches(v.s->s + from, to - from, chars))) from += k;
    if (sides & 2)
        while (to > from && cb_j_pay(r, 1)) {
            k = char_before(v.s->s + from, to - from) + from;
            if (!matches(v.s->s + k, to - k, chars)) break;
            to = k;
        }
    return r->rc ? cb_j_undef() : part(r, v.s, from, to);
}
CB_JFN(strip) { return strip(r, v, a[0], 3); }
static CB_JFN(lstrip) { return strip(r, v, a[0], 1); }
static CB_JFN(rstrip) { return strip(r, v, a[0], 2); }

static cb_jv remove_end(cb_jr *r, cb_jv v, cb_jv arg, bool suffix)
{
    const cb_jstr *x = NULL;
    if (!cb_j_arg_str(r, arg, "argument", &x)) return cb_j_undef();
    size_t n = v.s->n;
    if (x->n > n || memcmp(suffix ? v.s->s + n - x->n : v.s->s, x->s, x->n)) return v;
    return suffix ? part(r, v.s, 0, n - x->n) : part(r, v.s, x->n, n);
}
static CB_JFN(removeprefix) { return remove_end(r, v, a[0], false); }
static CB_JFN(removesuffix) { return remove_end(r, v, a[0], true); }

/* ---- search ---- */

static const char *find_last(cb_jr *r, const char *s, size_t n, const char *x, size_t xn)
{
    if (xn > n || !cb_j_pay(r, (n - xn + 1) * xn / 64)) return NULL; /* n, xn < 2^32: both fit in the arena */
    for (size_t i = n - xn + 1; xn <= n && i-- > 0;)
        if (!memcmp(s + i, x, xn)) return s + i;
    return NULL;
}

/* The bytes [*lo, *hi) that start and end arguments select; false when they select nothing, not even the empty string. */
static bool window(cb_jr *r, const cb_jstr *s, cb_jv start, cb_jv end, size_t *lo, size_t *hi)
{
    int64_t from = 0, to = (int64_t)s->n_chars, n = to;
    if (!cb_j_arg_int(r, given(start), "start", &from) || !cb_j_arg_int(r, given(end), "end", &to)) return false;
    if (from < 0) from = from + n < 0 ? 0 : from + n;
    if (to < 0) to = to + n < 0 ? 0 : to + n;
    if (to > n) to = n;
    if (from > n || from > to) return false;
    *lo = byte_of(r, s, (size_t)from);
    *hi = byte_of(r, s, (size_t)to);
    return true;
}

static cb_jv search(cb_jr *r, cb_jv v, const cb_jv *a, bool last, bool must)
{
    const cb_jstr *x = NULL;
    size_t lo = 0, hi = 0;
    const char *at = NULL;
    if (!cb_j_arg_str(r, a[0], "argument", &x)) return cb_j_undef();
    if (window(r, v.s, a[1], a[2], &lo, &hi) && cb_j_pay(r, (hi - lo) / 4)) {
        const char *s = v.s->s + lo;
        at = last ? find_last(r, s, hi - lo, x->s, x->n) : x->n ? memmem(s, hi - lo, x->s, x->n) : s;
    }
    if (r->rc) return cb_j_undef();
    if (!at && must) return cb_j_fail(r, "substring not found");
    if (!at) return cb_j_int(-1);
    size_t byte = (size_t)(at - v.s->s);
    return cb_j_int((int64_t)(v.s->n == v.s->n_chars ? byte : cb_j_count_chars(v.s->s, byte)));
}
static CB_JFN(find) { return search(r, v, a, false, false); }
static CB_JFN(rfind) { return search(r, v, a, true, false); }
static CB_JFN(index) { return search(r, v, a, false, true); }
static CB_JFN(rindex) { return search(r, v, a, true, true); }

static CB_JFN(count)
{
    const cb_jstr *x = NULL;
    size_t lo, hi;
    if (!cb_j_arg_str(r, a[0], "argument", &x) || !window(r, v.s, a[1], a[2], &lo, &hi) || !cb_j_pay(r, (hi - lo) / 4))
        return cb_j_int(0);
    if (!x->n) return cb_j_int((int64_t)cb_j_count_chars(v.s->s + lo, hi - lo) + 1);
    int64_t n = 0;
    for (const char *p; (p = memmem(v.s->s + lo, hi - lo, x->s, x->n)); n++) lo = (size_t)(p - v.s->s) + x->n;
    return cb_j_int(n);
}

static cb_jv has_end(cb_jr *r, cb_jv v, const cb_jv *a, bool suffix)
{
    size_t lo, hi;
    cb_jv one[1] = {a[0]};
    cb_jlist tries = {one, 1};
    if (a[0].type == CB_J_TUPLE) tries = *a[0].list;
    else if (a[0].type != CB_J_STR)
        return cb_j_fail(r, "%s first arg must be str or a tuple of str, not %s", suffix ? "endswith" : "startswith",
                         cb_j_type_name(a[0]));
    bool some = window(r, v.s, a[1], a[2], &lo, &hi);
    for (size_t i = 0; i < tries.n && cb_j_pay(r, 1); i++) {
        const cb_jstr *x = NULL;
        if (!cb_j_arg_str(r, tries.v[i], "tuple item", &x)) return cb_j_undef();
        if (some && x->n <= hi - lo && !memcmp(v.s->s + (suffix ? hi - x->n : lo), x->s, x->n)) return cb_j_bool(true);
    }
    return cb_j_bool(false);
}
static CB_JFN(startswith) { return has_end(r, v, a, false); }
static CB_JFN(endswith) { return has_end(r, v, a, true); }

/* ---- split and join ---- */

static cb_jv as_list(cb_jr *r, cb_jvec vec) { return cb_j_list(r, CB_J_LIST, vec.v, vec.n); }

static void reverse(cb_jvec *vec)
{
    for (size_t i = 0, k = vec->n; i + 1 < k; i++) {
        cb_jv t = vec->v[i];
        vec->v[i] = vec->v[--k];
        vec->v[k] = t;
    }
}

static cb_jv split_space(cb_jr *r, const cb_jstr *s, int64_t max)
{
    cb_jvec out = {0};
    size_t i = 0, k;
    while (cb_j_pay(r, 1)) {
        while (i < s->n && (k = cb_j_space(s->s + i, s->n - i))) i += k;
        if (i == s->n) break;
        size_t from = i;
        if (max >= 0 && (int64_t)out.n == max) i = s->n;
        while (i < s->n && !cb_j_space(s->s + i, s->n - i)) i += (size_t)cb_utf8_len(s->s[i]);
        cb_j_push(r, &out, part(r, s, from, i));
    }
    return as_list(r, out);
}

static cb_jv rsplit_space(cb_jr *r, const cb_jstr *s, int64_t max)
{
    cb_jvec out = {0};
    size_t to = s->n, k;
    while (cb_j_pay(r, 1)) {
        while (to && (k = char_before(s->s, to), cb_j_space(s->s + k, to - k))) to = k;
        if (!to) break;
        size_t from = to;
        if (max >= 0 && (int64_t)out.n == max) from = 0;
        while (from && (k = char_before(s->s, from), !cb_j_space(s->s + k, from - k))) from = k;
        cb_j_push(r, &out, part(r, s, from, to));
        to = from;
    }
    reverse(&out);
    return as_list(r, out);
}

static cb_jv split(cb_jr *r, cb_jv v, const cb_jv *a, bool last)
{
    const cb_jstr *sep = NULL, *s = v.s;
    int64_t max = -1;
    if (!cb_j_arg_str(r, given(a[0]), "separator", &sep) || !cb_j_arg_int(r, a[1], "maxsplit", &max) || !cb_j_pay(r, s->n / 4))
        return cb_j_undef();
    if (!sep) return last ? rsplit_space(r, s, max) : split_space(r, s, max);
    if (!sep->n) return cb_j_fail(r, "empty separator");
    cb_jvec out = {0};
    size_t from = 0, to = s->n;
    while ((max < 0 || (int64_t)out.n < max) && cb_j_pay(r, 1)) {
        const char *p = last ? find_last(r, s->s, to, sep->s, sep->n) : memmem(s->s + from, to - from, sep->s, sep->n);
        if (!p) break;
        size_t at = (size_t)(p - s->s);
        cb_j_push(r, &out, last ? part(r, s, at + sep->n, to) : part(r, s, from, at));
        if (last) to = at;
        else from = at + sep->n;
    }
    cb_j_push(r, &out, part(r, s, from, to));
    if (last) reverse(&out);
    return as_list(r, out);
}
static CB_JFN(split) { return split(r, v, a, false); }
static CB_JFN(rsplit) { return split(r, v, a, true); }

static cb_jv partition(cb_jr *r, cb_jv v, cb_jv arg, bool last)
{
    const cb_jstr *sep = NULL, *s = v.s;
    if (!cb_j_arg_str(r, arg, "separator", &sep) || !cb_j_pay(r, s->n / 4)) return cb_j_undef();
    if (!sep->n) return cb_j_fail(r, "empty separator");
    const char *p = last ? find_last(r, s->s, s->n, sep->s, sep->n) : memmem(s->s, s->n, sep->s, sep->n);
    cb_jv *out = cb_j_get(r, 3, sizeof *out);
    if (!out) return cb_j_undef();
    size_t at = p ? (size_t)(p - s->s) : 0;
    cb_jv empty = cb_j_str(r, "", 0);
    if (p) out[0] = part(r, s, 0, at), out[1] = arg, out[2] = part(r, s, at + sep->n, s->n);
    else out[0] = out[1] = out[2] = empty, out[last ? 2 : 0] = v;
    return cb_j_list(r, CB_J_TUPLE, out, 3);
}
static CB_JFN(partition) { return partition(r, v, a[0], false); }
static CB_JFN(rpartition) { return partition(r, v, a[0], true); }

size_t cb_j_line(const char *s, size_t n, size_t *skip)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c == '\r' && i + 1 < n && s[i + 1] == '\n') return *skip = i + 2, i;
        if ((c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e)) return *skip = i + 1, i;
        if (c == 0xc2 && i + 1 < n && (unsigned char)s[i + 1] == 0x85) return *skip = i + 2, i;
        if (c == 0xe2 && i + 2 < n && (unsigned char)s[i + 1] == 0x80 && ((unsigned char)s[i + 2] & 0xfe) == 0xa8)
            return *skip = i + 3, i;
    }
    return *skip = n, n;
}

CB_JFN(splitlines)
{
    cb_jvec out = {0};
    bool keep = a[0].type != CB_J_MISSING && cb_j_truth(r, a[0]);
    for (size_t i = 0, skip; i < v.s->n && cb_j_pay(r, 1); i += skip) {
        size_t n = cb_j_line(v.s->s + i, v.s->n - i, &skip);
        cb_j_pay(r, skip / 16);
        cb_j_push(r, &out, part(r, v.s, i, i + (keep ? skip : n)));
    }
    return as_list(r, out);
}

static CB_JFN(str_join)
{
    cb_jiter it;
    cb_jv item;
    if (!cb_j_iter(r, &it, a[0])) return cb_j_undef();
    size_t mark = cb_j_begin(r);
    for (int i = 0; cb_j_next(r, &it, &item); i = 1) {
        if (item.type != CB_J_STR) return cb_j_fail(r, "sequence item: expected str instance, %s found", cb_j_type_name(item));
        if (i) cb_j_out(r, v.s->s, v.s->n);
        cb_j_out(r, item.s->s, item.s->n);
    }
    return cb_j_end(r, mark);
}

/* ---- replace and padding ---- */

CB_JFN(replace)
{
    const cb_jstr *old = NULL, *new = NULL, *s = v.s;
    int64_t max = -1;
    if (!cb_j_arg_str(r, a[0], "replace() argument 1", &old) || !cb_j_arg_str(r, a[1], "replace() argument 2", &new) ||
        !cb_j_arg_int(r, a[2], "count", &max) || !cb_j_pay(r, s->n / 4))
        return cb_j_undef();
    size_t mark = cb_j_begin(r), i = 0;
    for (int64_t done = 0; (max < 0 || done < max) && cb_j_pay(r, 1); done++) {
        if (old->n) {
            const char *p = memmem(s->s + i, s->n - i, old->s, old->n);
            if (!p) break;
            cb_j_out(r, s->s + i, (size_t)(p - s->s) - i);
            i = (size_t)(p - s->s) + old->n;
            cb_j_out(r, new->s, new->n);
            continue;
        }
        cb_j_out(r, new->s, new->n); /* an empty `old` stands before every character and at the end */
        if (i == s->n) break;
        size_t k = (size_t)cb_utf8_len(s->s[i]);
        cb_j_out(r, s->s + i, k);
        i += k;
    }
    cb_j_out(r, s->s + i, s->n - i);
    return cb_j_end(r, mark);
}

static void fill(cb_jr *r, int64_t n, const cb_jstr *c)
{
    for (; n > 0 && cb_j_pay(r, 1); n--) cb_j_out(r, c->s, c->n);
}

/* left: how many of each 2 fill characters go in front: 0, 1 or 2. */
static cb_jv pad(cb_jr *r, cb_jv v, const cb_jv *a, int left)
{
    cb_jv space = cb_j_char(r, " ", 1);
    const cb_jstr *c = space.s;
    int64_t width = 0;
    if (!cb_j_arg_int(r, a[0], "width", &width) || !cb_j_arg_str(r, a[1], "fill character", &c)) return cb_j_undef();
    if (c->n_chars != 1) return cb_j_fail(r, "the fill character must be exactly one character long");
    int64_t more = width - (int64_t)v.s->n_chars, before = left == 2 ? more : left ? more / 2 + (more & width & 1) : 0;
    if (more <= 0) return v;
    size_t mark = cb_j_begin(r);
    fill(r, before, c);
    cb_j_out(r, v.s->s, v.s->n);
    fill(r, more - before, c);
    return cb_j_end(r, mark);
}
static CB_JFN(ljust) { return pad(r, v, a, 0); }
static CB_JFN(center) { return pad(r, v, a, 1); }
static CB_JFN(rjust) { return pad(r, v, a, 2); }

static CB_JFN(zfill)
{
    int64_t width = 0;
    if (!cb_j_arg_int(r, a[0], "width", &width)) return cb_j_undef();
    size_t sign = v.s->n && (*v.s->s == '-' || *v.s->s == '+'), mark = cb_j_begin(r);
    cb_j_out(r, v.s->s, sign);
    for (int64_t more = width - (int64_t)v.s->n_chars; more > 0 && cb_j_pay(r, 1); more--) cb_j_out(r, "0", 1);
    cb_j_out(r, v.s->s + sign, v.s->n - sign);
    return cb_j_end(r, mark);
}

static CB_JRAW(unsupported) { return cb_j_fail(r, "this string method is not supported"); }

static const cb_jfunc str_methods[] = {
    {"capitalize", cb_jf_capitalize, NULL, "", 0},
    {"casefold", cb_jf_casefold, NULL, "", 0},
    {"center", cb_jf_center, NULL, "/width,/fillchar", 1},
    {"count", cb_jf_count, NULL, "/sub,/start,/end", 1},
    {"encode", NULL, cb_jf_unsupported, NULL, 0},
    {"endswith", cb_jf_endswith, NULL, "/suffix,/start,/end", 1},
    {"expandtabs", NULL, cb_jf_unsupported, NULL, 0},
    {"find", cb_jf_find, NULL, "/sub,/start,/end", 1},
    {"format", NULL, cb_j_format, NULL, 0},
    {"format_map", NULL, cb_jf_unsupported, NULL, 0},
    {"index", cb_jf_index, NULL, "/sub,/start,/end", 1},
    {"isalnum", cb_jf_isalnum, NULL, "", 0},
    {"isalpha", cb_jf_isalpha, NULL, "", 0},
    {"isascii", cb_jf_isascii, NULL, "", 0},
    {"isdecimal", cb_jf_isdecimal, NULL, "", 0},
    {"isdigit", cb_jf_isdigit, NULL, "", 0},
    {"isidentifier", NULL, cb_jf_unsupported, NULL, 0},
    {"islower", cb_jf_islower, NULL, "", 0},
    {"isnumeric", cb_jf_isnumeric, NULL, "", 0},
    {"isprintable", NULL, cb_jf_unsupported, NULL, 0},
    {"isspace", cb_jf_isspace, NULL, "", 0},
    {"istitle", NULL, cb_jf_unsupported, NULL, 0},
    {"isupper", cb_jf_isupper, NULL, "", 0},
    {"join", cb_jf_str_join, NULL, "/iterable", 1},
    {"ljust", cb_jf_ljust, NULL, "/width,/fillchar", 1},
    {"lower", cb_jf_lower, NULL, "", 0},
    {"lstrip", cb_jf_lstrip, NULL, "/chars", 0},
    {"maketrans", NULL, cb_jf_unsupported, NULL, 0},
    {"partition", cb_jf_partition, NULL, "/sep", 1},
    {"removeprefix", cb_jf_removeprefix, NULL, "/prefix", 1},
    {"removesuffix", cb_jf_removesuffix, NULL, "/suffix", 1},
    {"replace", cb_jf_replace, NULL, "/old,/new,/count", 2},
    {"rfind", cb_jf_rfind, NULL, "/sub,/start,/end", 1},
    {"rindex", cb_jf_rindex, NULL, "/sub,/start,/end", 1},
    {"rjust", cb_jf_rjust, NULL, "/width,/fillchar", 1},
    {"rpartition", cb_jf_rpartition, NULL, "/sep", 1},
    {"rsplit", cb_jf_rsplit, NULL, "sep,maxsplit", 0},
    {"rstrip", cb_jf_rstrip, NULL, "/chars", 0},
    {"split", cb_jf_split, NULL, "sep,maxsplit", 0},
    {"splitlines", cb_jf_splitlines, NULL, "keepends", 0},
    {"startswith", cb_jf_startswith, NULL, "/prefix,/start,/end", 1},
    {"strip", cb_jf_strip, NULL, "/chars", 0},
    {"swapcase", cb_jf_swapcase, NULL, "", 0},
    {"title", cb_jf_title, NULL, "", 0},
    {"translate", NULL, cb_jf_unsupported, NULL, 0},
    {"upper", cb_jf_upper, NULL, "", 0},
    {"zfill", cb_jf_zfill, NULL, "/width", 1},
};

const cb_jfunc *cb_j_find_str_method(const char *s, size_t n)
{
    for (size_t i = 0; i < sizeof str_methods / sizeof *str_methods; i++)
        if (strlen(str_methods[i].name) == n && !memcmp(str_methods[i].name, s, n)) return &str_methods[i];
    return NULL;
}
