#include "text/jinja_ast.h"
#include "text/utf8.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* "..." % args, and str.format. */

enum { MAX_WIDTH = 100000, MAX_PRECISION = 300 };

typedef struct spec {
    const char *fill; /* one character */
    size_t fill_n;
    char align; /* < > ^ = or 0 */
    char sign;  /* + space or 0 */
    char group; /* , _ or 0 */
    bool alt, zero; /* zero: 0 in front of the width, no alignment given */
    int64_t width, precision; /* -1: none */
    char type;
} spec;

/* Writes a number's text: sign, prefix, digits, padded. */
static void put_padded(cb_jr *r, const spec *s, const char *sign, const char *text, size_t n, char align)
{
    int64_t chars = (int64_t)(strlen(sign) + cb_j_count_chars(text, n)), more = s->width > chars ? s->width - chars : 0;
    int64_t left = align == '>' || align == '=' ? more : align == '^' ? more / 2 : 0;
    if (align == '=') cb_j_out(r, sign, strlen(sign));
    for (int64_t i = 0; i < left && cb_j_pay(r, 1); i++) cb_j_out(r, s->fill, s->fill_n);
    if (align != '=') cb_j_out(r, sign, strlen(sign));
    cb_j_out(r, text, n);
    for (int64_t i = left; i < more && cb_j_pay(r, 1); i++) cb_j_out(r, s->fill, s->fill_n);
}

/* Inserts separators into the digits at the front of text; returns the new length. */
static size_t group_digits(char *text, size_t n, size_t cap, char sep, int every)
{
    size_t digits = 0;
    while (digits < n &&
           ((text[digits] >= '0' && text[digits] <= '9') || (every == 4 && strchr("abcdefABCDEF", text[digits]))))
        digits++;
    for (size_t i = digits; i > (size_t)every && n + 1 < cap;) {
        i -= (size_t)every;
        memmove(text + i + 1, text + i, n - i);
        text[i] = sep;
        n++;
    }
    return n;
}

static size_t int_digits(char *text, size_t cap, uint64_t u, char type)
{
    if (type != 'b')
        return (size_t)snprintf(text, cap,
                                type == 'x'   ? "%" PRIx64
                                : type == 'X' ? "%" PRIX64
                                : type == 'o' ? "%" PRIo64
                                              : "%" PRIu64,
                                u);
    size_t n = 0;
    for (int bit = 63; bit >= 0; bit--)
        if (u >> bit || (!bit && !n)) text[n++] = (char)('0' + (u >> bit & 1));
    return n;
}

static const char *sign_of(const spec *s, bool neg) { return neg ? "-" : s->sign == '+' ? "+" : s->sign == ' ' ? " " : ""; }

static void put_int(cb_jr *r, const spec *s, int64_t i, bool c_style)
{
    char text[128], sign[8];
    uint64_t u = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    size_t n = int_digits(text, sizeof text, u, s->type);
    while (c_style && s->precision > (int64_t)n && n + 1 < sizeof text) memmove(text + 1, text, n++), text[0] = '0';
    if (s->group) n = group_digits(text, n, sizeof text, s->group, strchr("xXob", s->type) && s->type ? 4 : 3);
    snprintf(sign, sizeof sign, "%s%s", sign_of(s, i < 0),
             s->alt && s->type && strchr("xXob", s->type) ? (char[3]){'0', s->type} : "");
    put_padded(r, s, sign, text, n, s->align ? s->align : '>');
}

void cb_j_put_fixed(cb_jr *r, double f, char conv, int precision, bool alt)
{
    char text[700], fmt[8] = {'%', alt ? '#' : '.', alt ? '.' : '*', alt ? '*' : conv, alt ? conv : 0};
    int n = snprintf(text, sizeof text, fmt, precision, f);
    cb_j_out(r, text, n > 0 ? (size_t)n : 0);
}

static void put_double(cb_jr *r, const spec *s, double f)
{
    char text[1024];
    char conv = s->type == '%' || s->type == 'F' ? 'f' : s->type == 'n' || !s->type ? 'g' : s->type;
    int precision = s->precision >= 0 ? (int)s->precision : 6;
    bool neg = signbit(f) && !isnan(f);
    double a = fabs(f) * (s->type == '%' ? 100 : 1);
    size_t n, mark = cb_j_begin(r);
    if (isinf(a)) cb_j_out(r, conv >= 'a' ? "inf" : "INF", 3);
    else if (isnan(a)) cb_j_out(r, conv >= 'a' ? "nan" : "NAN", 3);
    else if (!s->type && s->precision < 0) cb_j_put_float(r, a);
    else cb_j_put_fixed(r, a, conv, precision, s->alt);
    n = r->out.n - mark;
    if (r->rc) return;
    CB_ASSERT(n + n / 3 + 8 < sizeof text); /* 309 digits, a point and MAX_PRECISION more at most */
    memcpy(text, r->out.data + mark, n);
    r->out.n = mark;
    if (!s->type && s->precision >= 0 && isfinite(a) && !memchr(text, '.', n) && !memchr(text, 'e', n) && (int64_t)n < s->precision)
        text[n++] = '.', text[n++] = '0'; /* "general" keeps a float's point */
    if (s->type == '%') text[n++] = '%';
    if (s->group) n = group_digits(text, n, sizeof text, s->group, 3);
    put_padded(r, s, sign_of(s, neg), text, n, s->align ? s->align : '>');
}

static void put_text(cb_jr *r, const spec *s, cb_jv str)
{
    if (r->rc) return;
    size_t n = str.s->n;
    if (s->precision >= 0 && s->precision < (int64_t)str.s->n_chars) {
        n = 0;
        for (int64_t i = 0; i < s->precision && cb_j_pay(r, 1); i++) n += (size_t)cb_utf8_len(str.s->s[n]);
    }
    put_padded(r, s, "", str.s->s, n, s->align ? s->align : '<');
}

/* ---- % ---- */

typedef struct percent {
    cb_jr *r;
    const char *p, *end;
    const cb_jv *args;
    size_t n_args, used;
    cb_jv mapping; /* MISSING unless the argument is a dict */
} percent;

static cb_jv next_arg(percent *f)
{
    if (f->used < f->n_args) return f->args[f->used++];
    return cb_j_fail(f->r, "not enough arguments for format string");
}

static bool number_at(percent *f, int64_t *out, int64_t max)
{
    if (f->p < f->end && *f->p == '*') {
        cb_jv v = next_arg(f);
        f->p++;
        if (f->r->rc || !cb_j_arg_int(f->r, v, "* in a format", out)) return false;
    } else {
        *out = 0;
        for (; f->p < f->end && *f->p >= '0' && *f->p <= '9'; f->p++)
            if (*out <= max) *out = *out * 10 + (*f->p - '0');
    }
    if (*out > max) return cb_j_fail(f->r, "width or precision is too large"), false;
    return true;
}

static void percent_number(percent *f, spec *s, cb_jv v)
{
    cb_jr *r = f->r;
    if (cb_j_refuse_undef(r, v)) return;
    if (!cb_j_is_num(v)) {
        cb_j_fail(r, "%%%c format: a number is required, not %s", s->type, cb_j_type_name(v));
        return;
    }
    if (strchr("eEfFgG", s->type)) return put_double(r, s, cb_j_num(v));
    if (v.type == CB_J_FLOAT && (s->type != 'd' || !isfinite(v.f) || fabs(v.f) >= 0x1p63)) {
        cb_j_fail(r, "%%%c format: an integer is required, not float", s->type);
        return;
    }
    put_int(r, s, v.type == CB_J_FLOAT ? (int64_t)v.f : v.i, true);
}

/* One conversion, after its '%'. */
static void conversion(percent *f)
{
    cb_jr *r = f->r;
    spec s = {.fill = " ", .fill_n = 1, .width = 0, .precision = -1};
    cb_jv v = CB_J(CB_J_MISSING);
    if (f->p < f->end && *f->p == '(') {
        const char *close = memchr(f->p, ')', (size_t)(f->end - f->p));
        if (!close || f->mapping.type == CB_J_MISSING) {
            cb_j_fail(r, close ? "format requires a mapping" : "incomplete format key");
            return;
        }
        cb_jv *item = cb_j_dict_find_s(r, f->mapping.dict, f->p + 1, (size_t)(close - f->p - 1));
        if (!item) {
            cb_j_fail(r, "format: no such key");
            return;
        }
        v = *item;
        f->p = close + 1;
    }
    for (; f->p < f->end && strchr("#0- +", *f->p) && *f->p; f->p++) {
        if (*f->p == '#') s.alt = true;
        else if (*f->p == '-') s.align = '<';
        else if (*f->p == '0') s.fill = "0", s.align = s.align == '<' ? '<' : '=';
        else if (s.sign != '+') s.sign = *f->p;
    }
    if (!number_at(f, &s.width, MAX_WIDTH)) return;
    if (s.width < 0) s.align = '<', s.width = -s.width;
    if (f->p < f->end && *f->p == '.') {
        f->p++;
        if (!number_at(f, &s.precision, MAX_PRECISION)) return;
        if (s.precision < 0) s.precision = 0;
    }
    while (f->p < f->end && strchr("hlL", *f->p) && *f->p) f->p++;
    if (f->p == f->end) {
        cb_j_fail(r, "incomplete format");
        return;
    }
    s.type = *f->p++;
    if (s.type == '%') return cb_j_out(r, "%", 1);
    if (!s.type || !strchr("sradiuoxXeEfFgGc", s.type)) {
        cb_j_fail(r, "unsupported format character '%c'", s.type);
        return;
    }
    if (v.type == CB_J_MISSING) v = next_arg(f);
    if (r->rc) return;
    if (s.align == '<') s.fill = " ";
    if (strchr("iu", s.type)) s.type = 'd';
    if (!strchr("srac", s.type)) return percent_number(f, &s, v);
    if (strchr("ra", s.type)) {
        size_t mark = cb_j_begin(r);
        cb_j_put_repr(r, v);
        v = cb_j_end(r, mark);
    } else if (s.type == 'c') {
        char b[4];
        bool is_code = cb_j_is_intlike(v) && v.i >= 0 && v.i < 0x110000 && !(v.i >= 0xd800 && v.i < 0xe000);
        if (!is_code && !(v.type == CB_J_STR && v.s->n_chars == 1)) {
            cb_j_fail(r, "%%c requires an int in range(0x110000) or a unicode character");
            return;
        }
        if (is_code) v = cb_j_str_copy(r, b, (size_t)cb_utf8_encode(b, (uint32_t)v.i));
    } else v = cb_j_to_str(r, v);
    if (s.align != '<') s.align = '>', s.fill = " ";
    put_text(r, &s, v);
}

cb_jv cb_j_percent(cb_jr *r, cb_jv fmt, cb_jv args)
{
    percent f = {.r = r, .p = fmt.s->s, .end = fmt.s->s + fmt.s->n, .args = &args, .n_args = 1};
    if (args.type == CB_J_TUPLE) f.args = args.list->v, f.n_args = args.list->n;
    if (args.type == CB_J_DICT) f.mapping = args;
    size_t mark = cb_j_begin(r);
    while (f.p < f.end && cb_j_pay(r, 1)) {
        const char *pc = memchr(f.p, '%', (size_t)(f.end - f.p));
        cb_j_out(r, f.p, (size_t)((pc ? pc : f.end) - f.p));
        if (!pc) break;
        f.p = pc + 1;
        conversion(&f);
    }
    bool loose = args.type <= CB_J_UNDEF || args.type == CB_J_DICT || args.type == CB_J_LIST || args.type == CB_J_RANGE;
    if (!r->rc && f.used < f.n_args && !loose) return cb_j_fail(r, "not all arguments converted during string formatting");
    return cb_j_end(r, mark);
}

/* ---- str.format ---- */

static bool is_align(char c) { return c == '<' || c == '>' || c == '^' || c == '='; }

static int64_t digits_at(const char **p, const char *end)
{
    int64_t n = 0;
    for (; *p < end && **p >= '0' && **p <= '9'; ++*p)
        if (n <= MAX_WIDTH) n = n * 10 + (**p - '0');
    return n;
}

/* [[fill]align][sign][#][0][width][,][.precision][type] */
static bool parse_spec(cb_jr *r, const char *p, const char *end, spec *s)
{
    *s = (spec){.fill = " ", .fill_n = 1, .precision = -1};
    size_t k = p < end ? (size_t)cb_utf8_len(*p) : 0;
    if (k && p + k < end && is_align(p[k])) s->fill = p, s->fill_n = k, s->align = p[k], p += k + 1;
    else if (k && is_align(*p)) s->align = *p++;
    if (p < end && strchr("+- ", *p) && *p) s->sign = *p++;
    if (p < end && *p == '#') s->alt = true, p++;
    if (p < end && *p == '0') {
        if (!s->align) s->fill = "0", s->fill_n = 1, s->align = '=', s->zero = true;
        p++;
    }
    s->width = digits_at(&p, end);
    if (p < end && (*p == ',' || *p == '_')) s->group = *p++;
    if (p < end && *p == '.') p++, s->precision = digits_at(&p, end);
    if (p < end) s->type = *p++;
    if (p == end && s->width <= MAX_WIDTH && s->precision <= MAX_PRECISION) return true;
    cb_j_fail(r, "invalid format specifier");
    return false;
}

static void put_value(cb_jr *r, cb_jv v, const char *p, const char *end)
{
    spec s;
    if (p == end) return cb_j_put_str(r, v);
    if (!parse_spec(r, p, end, &s)) return;
    if (v.type == CB_J_STR && (!s.type || s.type == 's') && (s.align != '=' || s.zero) && !s.sign && !s.group && !s.alt) {
        if (s.zero) s.align = '<';
        return put_text(r, &s, v);
    }
    if (cb_j_is_num(v)) {
        if (s.type && strchr("eEfFgG%", s.type)) return put_double(r, &s, cb_j_num(v));
        if (v.type == CB_J_FLOAT && (!s.type || s.type == 'n')) return put_double(r, &s, v.f);
        if (v.type != CB_J_FLOAT && (!s.type || strchr("dnxXob", s.type)) && s.precision < 0) return put_int(r, &s, v.i, false);
    }
    if (!cb_j_refuse_undef(r, v)) cb_j_fail(r, "unsupported format specifier for '%s'", cb_j_type_name(v));
}

typedef struct format {
    cb_jr *r;
    const cb_jcall *call;
    int next; /* automatic number; -1 after a manual one */
} format;

static cb_jv field_base(format *f, const char *s, size_t n)
{
    cb_jr *r = f->r;
    int64_t i = 0;
    bool number = n > 0 && n < 9;
    for (size_t k = 0; k < n && number; k++) number = s[k] >= '0' && s[k] <= '9', i = i * 10 + (s[k] - '0');
    if (!n || number) {
        if (n ? f->next > 0 : f->next < 0) return cb_j_fail(r, "cannot mix manual and automatic field numbering");
        if (n) f->next = -1;
        else i = f->next++;
        if (i < f->call->n_pos) return f->call->pos[i];
        return cb_j_fail(r, "Replacement index %lld out of range for positional args tuple", (long long)i);
    }
    for (int k = 0; k < f->call->n_kw; k++) {
        const cb_jstr *key = f->call->kw[k].k.s;
        if (key->n == n && !memcmp(key->s, s, n)) return f->call->kw[k].v;
    }
    return cb_j_fail(r, "format: no argument named '%.*s'", (int)(n < 40 ? n : 40), s);
}

/* name.attr[key] */
static cb_jv field_value(format *f, const char *s, const char *end)
{
    size_t n = 0;
    while (s + n < end && s[n] != '.' && s[n] != '[') n++;
    cb_jv v = field_base(f, s, n);
    for (s += n; s < end && !f->r->rc;) {
        bool attr = *s++ == '.';
        for (n = 0; s + n < end && (attr ? s[n] != '.' && s[n] != '[' : s[n] != ']');) n++;
        int64_t i = 0;
        bool number = n > 0 && n < 9;
        for (size_t k = 0; k < n && number; k++) number = s[k] >= '0' && s[k] <= '9', i = i * 10 + (s[k] - '0');
        cb_jv key = !attr && number ? cb_j_int(i) : cb_j_str_copy(f->r, s, n);
        if (f->r->rc) break;
        v = attr ? cb_j_getattr(f->r, v, key) : cb_j_getitem(f->r, v, key);
        s += n + (!attr && s + n < end);
    }
    return v;
}

static void put_field(format *f, const char *s, const char *end)
{
    cb_jr *r = f->r;
    const char *name_end = s, *colon;
    while (name_end < end && *name_end != ':' && *name_end != '!') name_end++;
    cb_jv v = field_value(f, s, name_end);
    colon = name_end;
    if (colon < end && *colon == '!') {
        char c = colon + 1 < end ? colon[1] : 0;
        if (c != 's' && c != 'r' && c != 'a') {
            cb_j_fail(r, "unknown conversion in a format field");
            return;
        }
        colon += 2;
        size_t mark = cb_j_begin(r);
        if (c == 's') cb_j_put_str(r, v);
        else cb_j_put_repr(r, v);
        v = cb_j_end(r, mark);
    }
    if (colon < end && *colon != ':') cb_j_fail(r, "expected ':' after conversion specifier");
    if (!r->rc) put_value(r, v, colon < end ? colon + 1 : end, end);
}

cb_jv cb_j_format(cb_jr *r, cb_jv self, const cb_jcall *call)
{
    format f = {.r = r, .call = call};
    const char *p = self.s->s, *end = p + self.s->n;
    size_t mark = cb_j_begin(r);
    while (p < end && cb_j_pay(r, 1)) {
        const char *q = p;
        while (q < end && *q != '{' && *q != '}') q++;
        cb_j_out(r, p, (size_t)(q - p));
        if (q == end) break;
        if (q + 1 < end && q[1] == *q) { /* {{ or }} */
            cb_j_out(r, q, 1);
            p = q + 2;
            continue;
        }
        if (*q == '}') return cb_j_fail(r, "Single '}' encountered in format string");
        const char *close = q + 1;
        while (close < end && *close != '}' && *close != '{') close++;
        if (close == end) return cb_j_fail(r, "expected '}' before end of string");
        if (*close == '{') return cb_j_fail(r, "nested format fields are not supported");
        put_field(&f, q + 1, close);
        p = close + 1;
    }
    return cb_j_end(r, mark);
}
