#include "text/jinja_ast.h"
#include "text/jinja_filter.h"
#include "text/utf8.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* The tojson filter as Transformers defines it: json.dumps(x, ensure_ascii=False, indent, separators, sort_keys). */

typedef struct dump {
    cb_jr *r;
    bool ascii, sort, pretty;
    cb_jv indent, item_sep, key_sep; /* strings */
    int level;
} dump;

static void out_c(cb_jr *r, const char *s) { cb_j_out(r, s, strlen(s)); }

static void put_escape(cb_jr *r, uint32_t cp)
{
    char esc[8];
    snprintf(esc, sizeof esc, "\\u%04" PRIx32, cp & 0xffff);
    cb_j_out(r, esc, 6);
}

static void put_string(dump *d, const cb_jstr *s)
{
    cb_jr *r = d->r;
    size_t from = 0;
    out_c(r, "\"");
    for (size_t i = 0; i < s->n;) {
        unsigned char c = (unsigned char)s->s[i];
        if (c >= 0x20 && c != '"' && c != '\\' && (c < 0x7f || !d->ascii)) {
            i++;
            continue;
        }
        if (!cb_j_pay(r, 1)) return;
        cb_j_out(r, s->s + from, i - from);
        static const char plain[] = "\"\\\n\r\t\f\b", letters[] = "\"\\nrtfb";
        const char *e = c ? strchr(plain, c) : NULL;
        uint32_t cp = c;
        int k = c < 0x80 ? 1 : cb_utf8_decode(s->s + i, s->n - i, &cp);
        if (e) {
            char esc[2] = {'\\', letters[e - plain]};
            cb_j_out(r, esc, 2);
        } else if (cp > 0xffff) {
            put_escape(r, 0xd800 + ((cp - 0x10000) >> 10));
            put_escape(r, 0xdc00 + ((cp - 0x10000) & 0x3ff));
        } else put_escape(r, cp);
        i += k > 0 ? (size_t)k : 1;
        from = i;
    }
    cb_j_out(r, s->s + from, s->n - from);
    out_c(r, "\"");
}

static void new_line(dump *d)
{
    if (!d->pretty) return;
    out_c(d->r, "\n");
    for (int i = 0; i < d->level; i++) cb_j_out(d->r, d->indent.s->s, d->indent.s->n);
}

static void put_value(dump *d, cb_jv v);

static void put_number(cb_jr *r, cb_jv v)
{
    if (v.type == CB_J_FLOAT && !isfinite(v.f)) out_c(r, isnan(v.f) ? "NaN" : v.f < 0 ? "-Infinity" : "Infinity");
    else if (v.type == CB_J_BOOL) out_c(r, v.i ? "true" : "false");
    else cb_j_put_str(r, v);
}

static void put_key(dump *d, cb_jv k)
{
    if (k.type == CB_J_STR) return put_string(d, k.s);
    if (k.type != CB_J_NONE && !cb_j_is_num(k)) {
        cb_j_fail(d->r, "keys must be str, int, float, bool or None, not %s", cb_j_type_name(k));
        return;
    }
    out_c(d->r, "\"");
    if (k.type == CB_J_NONE) out_c(d->r, "null");
    else put_number(d->r, k);
    out_c(d->r, "\"");
}

static void put_object(dump *d, const cb_jdict *dict)
{
    cb_jr *r = d->r;
    const cb_jpair *p = dict->p;
    if (!dict->n) return out_c(r, "{}");
    if (d->sort) p = cb_j_sorted_pairs(r, dict, true, false, false);
    out_c(r, "{");
    d->level++;
    for (size_t i = 0; i < dict->n && !r->rc; i++) {
        if (i) cb_j_out(r, d->item_sep.s->s, d->item_sep.s->n);
        new_line(d);
        put_key(d, p[i].k);
        cb_j_out(r, d->key_sep.s->s, d->key_sep.s->n);
        put_value(d, p[i].v);
    }
    d->level--;
    new_line(d);
    out_c(r, "}");
}

static void put_array(dump *d, const cb_jlist *l)
{
    cb_jr *r = d->r;
    if (!l->n) return out_c(r, "[]");
    out_c(r, "[");
    d->level++;
    for (size_t i = 0; i < l->n && !r->rc; i++) {
        if (i) cb_j_out(r, d->item_sep.s->s, d->item_sep.s->n);
        new_line(d);
        put_value(d, l->v[i]);
    }
    d->level--;
    new_line(d);
    out_c(r, "]");
}

static void put_value(dump *d, cb_jv v)
{
    cb_jr *r = d->r;
    if (!cb_j_pay(r, 1) || !cb_j_deeper(r)) return;
    switch (v.type) {
    case CB_J_NONE: out_c(r, "null"); break;
    case CB_J_BOOL:
    case CB_J_INT:
    case CB_J_FLOAT: put_number(r, v); break;
    case CB_J_STR: put_string(d, v.s); break;
    case CB_J_LIST:
    case CB_J_TUPLE: put_array(d, v.list); break;
    case CB_J_DICT: put_object(d, v.dict); break;
    default: cb_j_fail(r, "Object of type %s is not JSON serializable", cb_j_type_name(v));
    }
    r->depth--;
}

static cb_jv spaces(cb_jr *r, int64_t n)
{
    size_t mark = cb_j_begin(r);
    for (int64_t i = 0; i < n && !r->rc; i++) cb_j_out(r, " ", 1);
    return cb_j_end(r, mark);
}

cb_jv cb_j_tojson(cb_jr *r, cb_jv v, const cb_jv *a)
{
    dump d = {.r = r, .ascii = cb_j_truth(r, a[0]), .sort = cb_j_truth(r, a[3])};
    d.pretty = a[1].type > CB_J_NONE;
    d.item_sep = cb_j_str_c(r, d.pretty ? "," : ", ");
    d.key_sep = cb_j_str_c(r, ": ");
    int64_t width = 0;
    if (d.pretty && a[1].type != CB_J_STR &&
        (!cb_j_arg_int(r, a[1], "indent", &width) || !cb_j_pay(r, width > 0 ? (uint64_t)width : 0)))
        return cb_j_undef();
    if (d.pretty) d.indent = a[1].type == CB_J_STR ? a[1] : spaces(r, width);
    if (a[2].type > CB_J_NONE) {
        cb_jvec sep = cb_j_items(r, a[2]);
        if (r->rc) return cb_j_undef();
        if (sep.n != 2 || sep.v[0].type != CB_J_STR || sep.v[1].type != CB_J_STR)
            return cb_j_fail(r, "separators must be two strings");
        d.item_sep = sep.v[0];
        d.key_sep = sep.v[1];
    }
    if (r->rc) return cb_j_undef();
    size_t mark = cb_j_begin(r);
    put_value(&d, v);
    return cb_j_end(r, mark);
}
