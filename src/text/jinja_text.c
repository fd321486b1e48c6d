#include "text/jinja_ast.h"
#include "text/utf8.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* str() and repr() as Python prints them. */

static void out_c(cb_jr *r, const char *s) { cb_j_out(r, s, strlen(s)); }

/* Shortest digits that read back as f, laid out by the rule of Python's repr: plain between 1e-4 and 1e16. */
void cb_j_put_float(cb_jr *r, double f)
{
    if (isnan(f)) return out_c(r, "nan");
    if (isinf(f)) return out_c(r, f < 0 ? "-inf" : "inf");
    char e[40];
    for (int prec = 0; prec <= 16; prec++) {
        snprintf(e, sizeof e, "%.*e", prec, f);
        if (strtod(e, NULL) == f) break;
    }
    char digits[20];
    size_t n = 0;
    const char *p = e;
    bool neg = *p == '-';
    for (; *p != 'e'; p++)
        if (*p >= '0' && *p <= '9') digits[n++] = *p;
    int exp = (int)strtol(p + 1, NULL, 10);
    while (n > 1 && digits[n - 1] == '0') n--;
    if (neg) out_c(r, "-");
    char text[64];
    if (exp >= 16 || exp < -4) {
        snprintf(text, sizeof text, "%c%s%.*se%+03d", digits[0], n > 1 ? "." : "", (int)n - 1, digits + 1, exp);
        return out_c(r, text);
    }
    if (exp < 0) {
        out_c(r, "0.");
        for (int i = -1; i > exp; i--) out_c(r, "0");
        return cb_j_out(r, digits, n);
    }
    for (size_t i = 0; i < n || i <= (size_t)exp; i++) {
        if (i == (size_t)exp + 1) out_c(r, ".");
        cb_j_out(r, i < n ? digits + i : "0", 1);
    }
    if (n <= (size_t)exp + 1) out_c(r, ".0");
}

/* Characters that Python's repr leaves as they are. */
static bool printable(uint32_t cp)
{
    if (cp < 0x7f) return cp >= 0x20;
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return false;
    default: return true;
    }
}

static void put_quoted(cb_jr *r, const cb_jstr *s)
{
    char q = memchr(s->s, '\'', s->n) && !memchr(s->s, '"', s->n) ? '"' : '\'';
    cb_j_out(r, &q, 1);
    for (size_t i = 0, k; i < s->n && cb_j_pay(r, 1); i += k) {
        uint32_t cp;
        int len = cb_utf8_decode(s->s + i, s->n - i, &cp);
        k = len > 0 ? (size_t)len : 1;
        char esc[16] = {'\\', (char)cp};
        if (cp == '\n') out_c(r, "\\n");
        else if (cp == '\r') out_c(r, "\\r");
        else if (cp == '\t') out_c(r, "\\t");
        else if (cp == '\\' || cp == (uint32_t)q) cb_j_out(r, esc, 2);
        else if (printable(cp)) cb_j_out(r, s->s + i, k);
        else {
            snprintf(esc, sizeof esc, cp < 0x100 ? "\\x%02" PRIx32 : cp < 0x10000 ? "\\u%04" PRIx32 : "\\U%08" PRIx32, cp);
            out_c(r, esc);
        }
    }
    cb_j_out(r, &q, 1);
}

static void put_seq(cb_jr *r, cb_jv v)
{
    bool list = v.type == CB_J_LIST;
    out_c(r, list ? "[" : "(");
    for (size_t i = 0; i < v.list->n && !r->rc; i++) {
        if (i) out_c(r, ", ");
        cb_j_put_repr(r, v.list->v[i]);
    }
    out_c(r, list ? "]" : v.list->n == 1 ? ",)" : ")");
}

static void put_dict(cb_jr *r, const cb_jdict *d)
{
    out_c(r, "{");
    for (size_t i = 0; i < d->n && !r->rc; i++) {
        if (i) out_c(r, ", ");
        cb_j_put_repr(r, d->p[i].k);
        out_c(r, ": ");
        cb_j_put_repr(r, d->p[i].v);
    }
    out_c(r, "}");
}

static void put_view(cb_jr *r, cb_jv v)
{
    out_c(r, cb_j_type_name(v));
    out_c(r, "([");
    cb_jvec items = cb_j_items(r, v);
    for (size_t i = 0; i < items.n && !r->rc; i++) {
        if (i) out_c(r, ", ");
        cb_j_put_repr(r, items.v[i]);
    }
    out_c(r, "])");
}

static void put_other(cb_jr *r, cb_jv v)
{
    char text[96];
    if (v.type == CB_J_RANGE) {
        snprintf(text, sizeof text,
                 v.range->step == 1 ? "range(%" PRId64 ", %" PRId64 ")" : "range(%" PRId64 ", %" PRId64 ", %" PRId64 ")",
                 v.range->start, v.range->stop, v.range->step);
        out_c(r, text);
    } else if (v.type == CB_J_NS) {
        out_c(r, "<Namespace ");
        put_dict(r, v.ns);
        out_c(r, ">");
    } else if (v.type == CB_J_MACRO) {
        const cb_jnode *def = v.macro->def;
        out_c(r, "<Macro ");
        if (def->kind == CB_JN_MACRO) put_quoted(r, r->t->names[def->name]);
        else out_c(r, "anonymous");
        out_c(r, ">");
    } else if (v.type == CB_J_LOOP) {
        int64_t i = cb_j_loop_attr(r, v, "index", 5).i, n = cb_j_len(r, v);
        snprintf(text, sizeof text, "<LoopContext %" PRId64 "/%" PRId64 ">", i, n);
        out_c(r, text);
    } else {
        snprintf(text, sizeof text, "<%s object>", cb_j_type_name(v));
        out_c(r, text);
    }
}

void cb_j_put_repr(cb_jr *r, cb_jv v)
{
    if (!cb_j_pay(r, 1) || !cb_j_deeper(r)) return;
    switch (v.type) {
    case CB_J_MISSING:
    case CB_J_UNDEF: out_c(r, "Undefined"); break;
    case CB_J_STR:
        if (v.flag) out_c(r, "Markup(");
        put_quoted(r, v.s);
        if (v.flag) out_c(r, ")");
        break;
    case CB_J_LIST:
    case CB_J_TUPLE: put_seq(r, v); break;
    case CB_J_DICT: put_dict(r, v.dict); break;
    case CB_J_VIEW: put_view(r, v); break;
    default:
        if (v.type < CB_J_STR) cb_j_put_str(r, v);
        else put_other(r, v);
    }
    r->depth--;
}

void cb_j_put_str(cb_jr *r, cb_jv v)
{
    char text[24];
    switch (v.type) {
    case CB_J_MISSING:
    case CB_J_UNDEF: break;
    case CB_J_NONE: out_c(r, "None"); break;
    case CB_J_BOOL: out_c(r, v.i ? "True" : "False"); break;
    case CB_J_INT:
        snprintf(text, sizeof text, "%" PRId64, v.i);
        out_c(r, text);
        break;
    case CB_J_FLOAT: cb_j_put_float(r, v.f); break;
    case CB_J_STR: cb_j_out(r, v.s->s, v.s->n); break;
    default: cb_j_put_repr(r, v);
    }
}

cb_jv cb_j_to_str(cb_jr *r, cb_jv v)
{
    if (v.type == CB_J_STR) return v;
    size_t mark = cb_j_begin(r);
    cb_j_put_str(r, v);
    return cb_j_end(r, mark);
}

const char *cb_j_show(cb_jr *r, cb_jv v, char buf[64])
{
    size_t mark = cb_j_begin(r);
    int cut = 36; /* a whole number of characters */
    while (v.type == CB_J_STR && v.s->n > 40 && ((unsigned char)v.s->s[cut] & 0xc0) == 0x80) cut--;
    if (v.type == CB_J_STR && v.s->n > 40) snprintf(buf, 64, "'%.*s...'", cut, v.s->s);
    else if (v.type >= CB_J_LIST) snprintf(buf, 64, "%s", cb_j_type_name(v));
    else {
        cb_j_put_repr(r, v);
        size_t n = r->out.n - mark < 60 ? r->out.n - mark : 60;
        snprintf(buf, 64, "%.*s", (int)n, r->out.data ? r->out.data + mark : "");
        r->out.n = mark;
    }
    return buf;
}

cb_jv cb_j_escape(cb_jr *r, cb_jv v)
{
    if (v.type == CB_J_STR && v.flag) return v;
    cb_jv s = cb_j_to_str(r, v);
    if (r->rc) return s;
    size_t mark = cb_j_begin(r);
    for (size_t i = 0, from = 0; i <= s.s->n; i++) {
        char c = i < s.s->n ? s.s->s[i] : 0;
        const char *e = c == '&'    ? "&amp;"
                        : c == '<'  ? "&lt;"
                        : c == '>'  ? "&gt;"
                        : c == '\'' ? "&#39;"
                        : c == '"'  ? "&#34;"
                                    : NULL;
        if (!e && i < s.s->n) continue;
        cb_j_out(r, s.s->s + from, i - from);
        if (e) out_c(r, e);
        from = i + 1;
    }
    s = cb_j_end(r, mark);
    s.flag = 1;
    return s;
}

/* Appends in place when a's text ends where its buffer's used part ends: `x = x ~ y` in a loop costs what y costs. */
static cb_jv join_text(cb_jr *r, const cb_jstr *a, const cb_jstr *b)
{
    enum { GROW_FROM = 256 };
    size_t n;
    if (__builtin_add_overflow(a->n, b->n, &n)) n = SIZE_MAX;
    cb_jgrow *g = a->grow;
    cb_jstr *s = cb_j_get(r, 1, sizeof *s);
    if (!s || !cb_j_pay(r, b->n / 64)) return cb_j_undef();
    if (!g || a->s + a->n != g->data + g->used || g->cap - g->used < b->n) {
        if (!cb_j_pay(r, a->n / 64)) return cb_j_undef();
        g = NULL;
        char *d;
        if (n >= GROW_FROM) {
            if (!(g = cb_j_get(r, 1, sizeof *g)) || !(d = cb_j_get(r, n, 2))) return cb_j_undef();
            *g = (cb_jgrow){.data = d, .used = a->n, .cap = 2 * n};
        } else if (!(d = cb_j_get(r, n, 1))) return cb_j_undef();
        if (a->n) memcpy(d, a->s, a->n);
        *s = (cb_jstr){.s = d};
    } else *s = (cb_jstr){.s = a->s};
    if (b->n) memcpy((char *)(uintptr_t)s->s + a->n, b->s, b->n); /* our own bytes, past what any string shows */
    if (g) g->used = (size_t)(s->s - g->data) + n;
    s->n = n;
    s->n_chars = a->n_chars + b->n_chars;
    s->grow = g;
    return (cb_jv){.type = CB_J_STR, .s = s};
}

cb_jv cb_j_concat(cb_jr *r, cb_jv a, cb_jv b)
{
    if (a.flag != b.flag) {
        if (a.flag) b = cb_j_escape(r, b);
        else a = cb_j_escape(r, a);
    }
    if (r->rc) return cb_j_undef();
    if (!a.s->n) return b;
    if (!b.s->n) return a;
    cb_jv v = join_text(r, a.s, b.s);
    v.flag = a.flag;
    return v;
}
