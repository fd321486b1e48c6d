#include "cli/settings.h"
#include <ctype.h>
#include <string.h>

enum { MAX_SETTINGS = 4096 };

typedef struct reader {
    const char *name, *p, *end;
    int line, n;
    cb_arena *a;
    cb_err *err;
} reader;

static int wrong(reader *r, const char *what) { return cb_fail(r->err, CB_EUSAGE, "%.300s line %d: %s", r->name, r->line, what); }

static bool at(const reader *r, char c) { return r->p < r->end && *r->p == c; }

static void blanks(reader *r)
{
    while (at(r, ' ') || at(r, '\t') || at(r, '\r')) r->p++;
}

/* Blanks, comments and ends of lines. */
static void space(reader *r)
{
    for (;;) {
        blanks(r);
        if (at(r, '#'))
            while (r->p < r->end && *r->p != '\n') r->p++;
        if (!at(r, '\n')) return;
        r->p++;
        r->line++;
    }
}

static bool bare(char c) { return isalnum((unsigned char)c) || c == '_' || c == '-'; }

static const char *keep(reader *r, const char *s, size_t n) { return cb_arena_strndup(r->a, s, n); }

static int put_utf8(cb_buf *b, uint32_t c)
{
    if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000) || c == 0) return -1;
    if (c < 0x80) cb_buf_putc(b, (char)c);
    else if (c < 0x800) cb_buf_putc(b, (char)(0xc0 | c >> 6)), cb_buf_putc(b, (char)(0x80 | (c & 0x3f)));
    else if (c < 0x10000)
        cb_buf_putc(b, (char)(0xe0 | c >> 12)), cb_buf_putc(b, (char)(0x80 | (c >> 6 & 0x3f))), cb_buf_putc(b, (char)(0x80 | (c & 0x3f)));
    else
        cb_buf_putc(b, (char)(0xf0 | c >> 18)), cb_buf_putc(b, (char)(0x80 | (c >> 12 & 0x3f))),
            cb_buf_putc(b, (char)(0x80 | (c >> 6 & 0x3f))), cb_buf_putc(b, (char)(0x80 | (c & 0x3f)));
    return 0;
}

static int escape(reader *r, cb_buf *b)
{
    static const char from[] = "btnfr\"\\e", to[] = "\b\t\n\f\r\"\\\033";
    char c = r->p < r->end ? *r->p++ : 0;
    const char *known = c ? strchr(from, c) : NULL;
    if (known) {
        cb_buf_putc(b, to[known - from]);
        return 0;
    }
    int digits = c == 'u' ? 4 : c == 'U' ? 8 : 0;
    uint32_t v = 0;
    for (int i = 0; i < digits; i++) {
        char h = r->p < r->end ? *r->p++ : 0;
        if (!isxdigit((unsigned char)h)) return wrong(r, "an escape needs hexadecimal digits");
        v = v << 4 | (uint32_t)(isdigit((unsigned char)h) ? h - '0' : (h | 32) - 'a' + 10);
    }
    return digits && put_utf8(b, v) == 0 ? 0 : wrong(r, "unknown escape in a text");
}

/* "..." or '...', on one line. */
static int quoted(reader *r, const char **out)
{
    char q = *r->p++;
    cb_buf b;
    int rc = 0;
    cb_buf_init(&b, 1 << 20);
    while (rc == 0 && !at(r, q)) {
        if (r->p == r->end || *r->p == '\n') rc = wrong(r, "a text does not end");
        else if (*r->p == '\\' && q == '"') r->p++, rc = escape(r, &b);
        else if (*r->p == 0) rc = wrong(r, "a NUL byte");
        else cb_buf_putc(&b, *r->p++);
    }
    if (rc == 0) {
        r->p++;
        *out = keep(r, b.data ? b.data : "", b.n);
        if (!cb_buf_ok(&b) || !*out) rc = cb_fail(r->err, CB_ENOMEM, "%.300s: no memory", r->name);
    }
    cb_buf_fini(&b);
    return rc;
}

/* A text, number or word (true, false, auto...). */
static int scalar(reader *r, const char **out, bool *is_text)
{
    *is_text = at(r, '"') || at(r, '\'');
    if (*is_text) return quoted(r, out);
    const char *from = r->p;
    while (r->p < r->end && (bare(*r->p) || *r->p == '.' || *r->p == '+')) r->p++;
    if (r->p == from) return wrong(r, "a value is missing; texts stand in quotes");
    return (*out = keep(r, from, (size_t)(r->p - from))) ? 0 : cb_fail(r->err, CB_ENOMEM, "%.300s: no memory", r->name);
}

static bool is_number(const char *s)
{
    s += *s == '-' || *s == '+';
    return isdigit((unsigned char)*s) && s[strspn(s, "0123456789_.eE+-")] == 0;
}

static int list(reader *r, cli_setting *s)
{
    bool text;
    int rc = 0;
    s->is_list = true;
    r->p++;
    for (space(r); rc == 0 && !at(r, ']'); space(r)) {
        if (s->values.n == CLI_MAX_LIST) return wrong(r, "a list has at most 16 values");
        if ((rc = scalar(r, &s->values.v[s->values.n], &text)) < 0) return rc;
        if (!text && !is_number(s->values.v[s->values.n])) return wrong(r, "texts stand in quotes");
        s->values.n++;
        space(r);
        if (at(r, ',')) r->p++;
        else if (!at(r, ']')) return wrong(r, "a list goes on with , or ends with ]");
    }
    r->p++;
    return rc;
}

static int value(reader *r, cli_setting *s)
{
    bool text;
    if (at(r, '[')) return list(r, s);
    int rc = scalar(r, &s->values.v[0], &text);
    if (rc < 0) return rc;
    char *v = (char *)(uintptr_t)s->values.v[0]; /* our own copy */
    s->values.n = 1;
    s->is_bool = !text && (!strcmp(v, "true") || !strcmp(v, "false"));
    if (text || s->is_bool) return 0;
    if (!is_number(v)) return wrong(r, "neither a number, true nor false; texts stand in quotes");
    size_t n = 0;
    for (size_t i = 0; v[i]; i++) /* 1_000 is 1000 */
        if (v[i] != '_') v[n++] = v[i];
    v[n] = 0;
    return 0;
}

static int name(reader *r, const char **out)
{
    if (at(r, '"') || at(r, '\'')) return quoted(r, out);
    const char *from = r->p;
    while (r->p < r->end && bare(*r->p)) r->p++;
    if (r->p == from) return wrong(r, "a name is missing");
    return (*out = keep(r, from, (size_t)(r->p - from))) ? 0 : cb_fail(r->err, CB_ENOMEM, "%.300s: no memory", r->name);
}

static int table(reader *r, const char **one, const char **two)
{
    r->p++;
    blanks(r);
    if (at(r, '[')) return wrong(r, "[[...]] is not used here");
    int rc = name(r, one);
    *two = "";
    blanks(r);
    if (rc == 0 && at(r, '.')) {
        r->p++;
        blanks(r);
        rc = name(r, two);
        blanks(r);
    }
    if (rc == 0 && !at(r, ']')) rc = wrong(r, "a table's name ends with ]");
    r->p++;
    return rc;
}

static int end_of_line(reader *r)
{
    blanks(r);
    return r->p == r->end || *r->p == '\n' || *r->p == '#' ? 0 : wrong(r, "something follows the value");
}

static int entry(reader *r, const char *one, const char *two, cli_setting **out)
{
    cli_setting *s = cb_arena_get(r->a, sizeof *s);
    const char *key;
    if (!s) return cb_fail(r->err, CB_ENOMEM, "%.300s: no memory", r->name);
    if (++r->n > MAX_SETTINGS) return wrong(r, "too many settings");
    *s = (cli_setting){ .table = one, .sub = two, .line = r->line };
    int rc = name(r, &key);
    if (rc < 0) return rc;
    s->key = key;
    for (char *c = (char *)(uintptr_t)key; *c; c++) *c = *c == '_' ? '-' : *c;
    blanks(r);
    if (!at(r, '=')) return wrong(r, "= is missing after the name");
    r->p++;
    blanks(r);
    if ((rc = value(r, s)) < 0) return rc;
    *out = s;
    return 0;
}

int cli_settings_parse(const char *name, const char *text, size_t n, cb_arena *a, cli_setting **out, cb_err *err)
{
    reader r = { .name = name, .p = text, .end = text + n, .line = 1, .a = a, .err = err };
    const char *one = "", *two = "";
    cli_setting **tail = out;
    *out = NULL;
    for (space(&r); r.p < r.end; space(&r)) {
        int rc = 0;
        if (at(&r, '[')) rc = table(&r, &one, &two);
        else if ((rc = entry(&r, one, two, tail)) == 0) tail = &(*tail)->next;
        if (rc == 0) rc = end_of_line(&r);
        if (rc < 0) return rc;
    }
    return 0;
}
