#include "text/jinja_ast.h"
#include "text/jinja_filter.h"
#include "text/utf8.h"
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* White space control follows jinja2 3.1 with trim_blocks and lstrip_blocks: a newline right after a block or comment is
 * dropped, blanks between a line's start and a block or comment are dropped, `-` eats all white space on its side, `+` keeps
 * what would be dropped. */

void cb_jinja_where(const cb_jinja *t, size_t pos, int *line, int *col)
{
    *line = *col = 1;
    if (pos > t->n) pos = t->n;
    for (size_t i = 0; i < pos; i++) {
        if (t->src[i] == '\n') {
            ++*line;
            *col = 1;
        } else if (((unsigned char)t->src[i] & 0xc0) != 0x80) ++*col;
    }
}

static cb_jtoken lex_fail(cb_jlex *l, size_t pos, const char *what)
{
    int line, col;
    cb_jinja_where(l->t, pos, &line, &col);
    if (!l->rc) l->rc = cb_fail(l->err, CB_EFORMAT, "%s: line %d, column %d: %s", l->t->name, line, col, what);
    return (cb_jtoken){.type = CB_JT_EOF, .pos = (uint32_t)pos};
}

void cb_jlex_init(cb_jlex *l, cb_jinja *t, cb_err *err)
{
    *l = (cb_jlex){.t = t, .err = err, .state = CB_JLEX_TEXT, .pending = -1};
}

static size_t skip_space(const cb_jlex *l, size_t pos)
{
    for (size_t k; (k = cb_j_space(l->t->src + pos, l->t->n - pos)); pos += k) {}
    return pos;
}

static size_t back_over_space(const char *s, size_t from, size_t n)
{
    while (n > from) {
        size_t k = n - 1;
        while (k > from && ((unsigned char)s[k] & 0xc0) == 0x80) k--;
        if (!cb_j_space(s + k, n - k)) break;
        n = k;
    }
    return n;
}

/* The end of the data src[from..to) in front of a tag with this sign. */
static size_t trim_data(const cb_jlex *l, size_t from, size_t to, char sign, bool is_var)
{
    const char *s = l->t->src;
    if (sign == '-') return back_over_space(s, from, to);
    if (sign == '+' || is_var) return to;
    size_t line = to;
    while (line > from && s[line - 1] != '\n') line--;
    if (line == from && from > 0 && s[from - 1] != '\n') return to; /* the line starts before this text */
    return back_over_space(s, line, to) == line ? line : to;
}

static char sign_at(const cb_jlex *l, size_t pos)
{
    return pos < l->t->n && (l->t->src[pos] == '-' || l->t->src[pos] == '+') ? l->t->src[pos] : 0;
}

static bool at(const cb_jlex *l, size_t pos, const char *lit)
{
    size_t n = strlen(lit);
    return pos <= l->t->n && l->t->n - pos >= n && !memcmp(l->t->src + pos, lit, n);
}

/* Past a closing "%}" or "#}" at pos (after an optional sign), with what its sign or trim_blocks eats. */
static size_t after_close(const cb_jlex *l, size_t pos, char sign)
{
    pos += 2;
    if (sign == '-') return skip_space(l, pos);
    if (!sign && pos < l->t->n && l->t->src[pos] == '\n') pos++;
    return pos;
}

/* Matches "raw %}" or "raw -%}" after "{%" and its sign; the position behind it, or 0. */
static size_t raw_begin(const cb_jlex *l, size_t pos)
{
    pos = skip_space(l, pos);
    if (!at(l, pos, "raw")) return 0;
    pos = skip_space(l, pos + 3);
    if (at(l, pos, "-%}")) return skip_space(l, pos + 3);
    return at(l, pos, "%}") ? pos + 2 : 0;
}

static cb_jtoken data_token(const cb_jlex *l, size_t from, size_t to)
{
    return (cb_jtoken){.type = CB_JT_DATA, .pos = (uint32_t)from, .s = l->t->src + from, .n = to - from};
}

static bool skip_comment(cb_jlex *l, size_t open, size_t pos)
{
    for (size_t p = pos; p + 1 < l->t->n; p++)
        if (l->t->src[p] == '#' && l->t->src[p + 1] == '}') {
            char sign = p > pos ? sign_at(l, p - 1) : 0;
            l->pos = after_close(l, p, sign);
            return true;
        }
    lex_fail(l, open, "missing end of comment tag");
    return false;
}

/* Text up to the next tag. The data comes out now, the tag's token by `pending`. */
static cb_jtoken lex_text(cb_jlex *l)
{
    const char *s = l->t->src;
    size_t n = l->t->n, from = l->pos, p = from;
    while (p + 1 < n && !(s[p] == '{' && (s[p + 1] == '%' || s[p + 1] == '{' || s[p + 1] == '#'))) p++;
    if (p + 1 >= n) {
        l->pos = n;
        return data_token(l, from, n);
    }
    char kind = s[p + 1], sign = sign_at(l, p + 2);
    size_t end = trim_data(l, from, p, sign, kind == '{'), inner = p + 2 + (sign != 0), raw;
    if (kind == '#') {
        if (!skip_comment(l, p, inner)) return (cb_jtoken){.type = CB_JT_EOF};
    } else if (kind == '%' && (raw = raw_begin(l, inner))) {
        l->state = CB_JLEX_RAW;
        l->pos = raw;
    } else {
        l->state = kind == '%' ? CB_JLEX_BLOCK : CB_JLEX_VAR;
        l->pending = kind == '%' ? CB_JT_BLOCK_BEGIN : CB_JT_VAR_BEGIN;
        l->pending_pos = (uint32_t)p;
        l->pos = inner;
    }
    return data_token(l, from, end);
}

static cb_jtoken lex_raw(cb_jlex *l)
{
    size_t from = l->pos;
    for (size_t p = from; p + 1 < l->t->n; p++) {
        if (!at(l, p, "{%")) continue;
        char sign = sign_at(l, p + 2);
        size_t q = skip_space(l, p + 2 + (sign != 0));
        if (!at(l, q, "endraw")) continue;
        q = skip_space(l, q + 6);
        char close = sign_at(l, q);
        if (!at(l, q + (close != 0), "%}")) continue;
        l->pos = after_close(l, q + (close != 0), close);
        l->state = CB_JLEX_TEXT;
        return data_token(l, from, trim_data(l, from, p, sign, false));
    }
    return lex_fail(l, from, "missing end of raw directive");
}

/* ---- inside a tag ---- */

static bool digit(char c) { return c >= '0' && c <= '9'; }

/* (\d+_)*\d+ */
static size_t digits(const cb_jlex *l, size_t p)
{
    const char *s = l->t->src;
    size_t n = l->t->n;
    if (p >= n || !digit(s[p])) return p;
    while (p < n && (digit(s[p]) || (s[p] == '_' && p + 1 < n && digit(s[p + 1])))) p++;
    return p;
}

static size_t copy_digits(char *to, size_t cap, const char *s, size_t n)
{
    size_t k = 0;
    for (size_t i = 0; i < n && k + 1 < cap; i++)
        if (s[i] != '_') to[k++] = s[i];
    to[k] = 0;
    return k;
}

static int digit_value(char c) { return digit(c) ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'z' ? (c | 32) - 'a' + 10 : 99; }

static cb_jtoken lex_int(cb_jlex *l)
{
    const char *s = l->t->src;
    size_t from = l->pos, p = from, n = l->t->n;
    int base = 10;
    if (s[p] == '0' && p + 1 < n) {
        char c = s[p + 1] | 32;
        int b = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 0;
        size_t q = p + 2 + (p + 2 < n && s[p + 2] == '_');
        if (b && q < n && digit_value(s[q]) < b) {
            base = b;
            p = q;
        }
    }
    int64_t v = 0;
    bool zero = base == 10 && s[p] == '0'; /* a decimal that starts with 0 has only zeros */
    for (; p < n; p++) {
        if (s[p] == '_' && p + 1 < n && digit_value(s[p + 1]) < (zero ? 1 : base)) continue;
        int d = digit_value(s[p]);
        if (d >= (zero ? 1 : base)) break;
        if (__builtin_mul_overflow(v, base, &v) || __builtin_add_overflow(v, d, &v))
            return lex_fail(l, from, "integer does not fit in 64 bits");
    }
    l->pos = p;
    return (cb_jtoken){.type = CB_JT_INT, .pos = (uint32_t)from, .i = v, .s = s + from, .n = p - from};
}

static cb_jtoken lex_number(cb_jlex *l)
{
    const char *s = l->t->src;
    size_t from = l->pos, n = l->t->n, p = digits(l, from), q;
    bool is_float = false;
    if (!(from && s[from - 1] == '.')) {
        if (p + 1 < n && s[p] == '.' && (q = digits(l, p + 1)) > p + 1) {
            p = q;
            is_float = true;
        }
        if (p < n && (s[p] | 32) == 'e') {
            size_t e = p + 1 + (p + 1 < n && (s[p + 1] == '-' || s[p + 1] == '+'));
            if ((q = digits(l, e)) > e) {
                p = q;
                is_float = true;
            }
        }
    }
    if (!is_float) return lex_int(l);
    char text[400];
    if (p - from >= sizeof text) return lex_fail(l, from, "number is too long");
    copy_digits(text, sizeof text, s + from, p - from);
    l->pos = p;
    return (cb_jtoken){.type = CB_JT_FLOAT, .pos = (uint32_t)from, .f = strtod(text, NULL), .s = s + from, .n = p - from};
}

/* Length of the identifier character at s, or 0. */
static size_t word_char(const char *s, size_t n)
{
    unsigned char c = n ? (unsigned char)*s : 0;
    if (c < 0x80) return c == '_' || digit((char)c) || ((c | 32) >= 'a' && (c | 32) <= 'z');
    uint32_t cp;
    int k = cb_utf8_decode(s, n, &cp);
    utf8proc_category_t cat = utf8proc_category((utf8proc_int32_t)cp);
    return k > 0 && cat >= UTF8PROC_CATEGORY_LU && cat <= UTF8PROC_CATEGORY_NL ? (size_t)k : 0;
}

/* \x41, é, \101 ...: reads at most max digits of this base. */
static bool escape_number(const char **p, const char *end, int base, int min, int max, uint32_t *cp)
{
    int k = 0;
    *cp = 0;
    for (; k < max && *p < end && digit_value(**p) < base; k++, ++*p) *cp = *cp * (uint32_t)base + (uint32_t)digit_value(**p);
    return k >= min && *cp <= 0x10ffff && !(*cp >= 0xd800 && *cp < 0xe000);
}

/* Undoes the escapes of Python's string literals. */
static bool unescape(cb_jlex *l, const char *s, size_t n, char *out, size_t *out_n, size_t pos)
{
    const char *end = s + n;
    char *o = out;
    while (s < end) {
        if (*s != '\\') {
            *o++ = *s++;
            continue;
        }
        char c = *++s; /* there is one: the pattern of strings asks for it */
        static const char from[] = "abfnrtv\\'\"", to[] = "\a\b\f\n\r\t\v\\'\"";
        const char *f = c ? strchr(from, c) : NULL;
        uint32_t cp;
        bool good = true;
        s++;
        if (f) *o++ = to[f - from];
        else if (c == '\n') {}
        else if (c == 'x' || c == 'u' || c == 'U' || (c >= '0' && c <= '7')) {
            if (c == 'x') good = escape_number(&s, end, 16, 2, 2, &cp);
            else if (c == 'u') good = escape_number(&s, end, 16, 4, 4, &cp);
            else if (c == 'U') good = escape_number(&s, end, 16, 8, 8, &cp);
            else s--, good = escape_number(&s, end, 8, 1, 3, &cp);
            if (good) o += cb_utf8_encode(o, cp);
        } else if (c == 'N') good = false;
        else {
            *o++ = '\\';
            *o++ = c;
        }
        if (!good) {
            lex_fail(l, pos, "bad escape in string");
            return false;
        }
    }
    *out_n = (size_t)(o - out);
    return true;
}

static cb_jtoken lex_string(cb_jlex *l)
{
    const char *s = l->t->src;
    size_t from = l->pos, p = from + 1, n = l->t->n;
    bool escapes = false;
    for (; p < n && s[p] != s[from]; p++)
        if (s[p] == '\\') {
            escapes = true;
            p++;
        }
    if (p >= n) return lex_fail(l, from, "string is not closed");
    l->pos = p + 1;
    cb_jtoken t = {.type = CB_JT_STRING, .pos = (uint32_t)from, .s = s + from + 1, .n = p - from - 1};
    if (!escapes) return t;
    char *text = cb_arena_get(&l->t->arena, t.n + 1); /* every escape is at least as long as its character */
    if (!text) {
        l->rc = cb_fail(l->err, CB_ENOMEM, "%s: out of memory", l->t->name);
        return (cb_jtoken){.type = CB_JT_EOF, .pos = (uint32_t)from};
    }
    if (!unescape(l, t.s, t.n, text, &t.n, from)) return (cb_jtoken){.type = CB_JT_EOF, .pos = (uint32_t)from};
    t.s = text;
    return t;
}

static const struct {
    char text[3];
    uint8_t type;
} operators[] = {
    {"//", CB_JT_FLOORDIV}, {"**", CB_JT_POW},    {"==", CB_JT_EQ},      {"!=", CB_JT_NE},       {">=", CB_JT_GE},
    {"<=", CB_JT_LE},       {"+", CB_JT_ADD},     {"-", CB_JT_SUB},      {"/", CB_JT_DIV},       {"*", CB_JT_MUL},
    {"%", CB_JT_MOD},       {"~", CB_JT_TILDE},   {"[", CB_JT_LBRACKET}, {"]", CB_JT_RBRACKET},  {"(", CB_JT_LPAREN},
    {")", CB_JT_RPAREN},    {"{", CB_JT_LBRACE},  {"}", CB_JT_RBRACE},   {">", CB_JT_GT},        {"<", CB_JT_LT},
    {"=", CB_JT_ASSIGN},    {".", CB_JT_DOT},     {":", CB_JT_COLON},    {"|", CB_JT_PIPE},      {",", CB_JT_COMMA},
    {";", CB_JT_SEMICOLON},
};

static cb_jtoken lex_operator(cb_jlex *l)
{
    size_t from = l->pos;
    char c = l->t->src[from];
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++) {
        if (!at(l, from, operators[i].text)) continue;
        l->pos += strlen(operators[i].text);
        if (strchr("([{", c)) {
            if (l->n_brackets == CB_JMAX_BRACKETS) return lex_fail(l, from, "too many open brackets");
            l->brackets[l->n_brackets++] = c == '(' ? ')' : c == '[' ? ']' : '}';
        } else if (strchr(")]}", c) && (!l->n_brackets || l->brackets[--l->n_brackets] != c)) {
            char text[24] = "unexpected ' '";
            text[12] = c;
            return lex_fail(l, from, text);
        }
        return (cb_jtoken){.type = operators[i].type, .pos = (uint32_t)from, .s = l->t->src + from, .n = l->pos - from};
    }
    return lex_fail(l, from, "unexpected character");
}

static cb_jtoken lex_tag(cb_jlex *l)
{
    const char *close = l->state == CB_JLEX_BLOCK ? "%}" : "}}";
    size_t from = l->pos = skip_space(l, l->pos);
    if (from >= l->t->n) return (cb_jtoken){.type = CB_JT_EOF, .pos = (uint32_t)from};
    char sign = sign_at(l, from);
    if (sign == '+' && l->state == CB_JLEX_VAR) sign = 0;
    if (!l->n_brackets && at(l, from + (sign != 0), close)) {
        int type = l->state == CB_JLEX_BLOCK ? CB_JT_BLOCK_END : CB_JT_VAR_END;
        if (l->state == CB_JLEX_BLOCK) l->pos = after_close(l, from + (sign != 0), sign);
        else l->pos = sign ? skip_space(l, from + 3) : from + 2;
        l->state = CB_JLEX_TEXT;
        return (cb_jtoken){.type = type, .pos = (uint32_t)from};
    }
    const char *s = l->t->src + from;
    if (digit(*s)) return lex_number(l);
    if (*s == '\'' || *s == '"') return lex_string(l);
    size_t n = 0;
    for (size_t k; (k = word_char(s + n, l->t->n - from - n)); n += k) {}
    if (!n) return lex_operator(l);
    l->pos += n;
    return (cb_jtoken){.type = CB_JT_NAME, .pos = (uint32_t)from, .s = s, .n = n};
}

cb_jtoken cb_jlex_next(cb_jlex *l)
{
    cb_jtoken t;
    do {
        if (l->rc) return (cb_jtoken){.type = CB_JT_EOF, .pos = (uint32_t)l->pos};
        if (l->pending >= 0) {
            t = (cb_jtoken){.type = l->pending, .pos = l->pending_pos};
            l->pending = -1;
            return t;
        }
        if (l->state == CB_JLEX_RAW) t = lex_raw(l);
        else if (l->state != CB_JLEX_TEXT) return lex_tag(l);
        else if (l->pos >= l->t->n) return (cb_jtoken){.type = CB_JT_EOF, .pos = (uint32_t)l->t->n};
        else t = lex_text(l);
    } while (t.type == CB_JT_DATA && !t.n);
    return t;
}

const char *cb_jlex_show(const cb_jtoken *t)
{
    switch (t->type) {
    case CB_JT_EOF: return "end of template";
    case CB_JT_DATA: return "template text";
    case CB_JT_VAR_BEGIN: return "'{{'";
    case CB_JT_VAR_END: return "'}}'";
    case CB_JT_BLOCK_BEGIN: return "'{%'";
    case CB_JT_BLOCK_END: return "end of statement block";
    default: return NULL; /* its own text says it */
    }
}
