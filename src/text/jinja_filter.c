#include "text/jinja_filter.h"
#include "text/jinja_ast.h"
#include "text/utf8.h"
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* Filters of single values, the tests, and the tables of both. */

/* ---- binding of arguments ---- */

/* Index of the parameter with this name, or -1. */
static int param_index(const char *params, const cb_jstr *name)
{
    int i = 0;
    for (const char *p = params; *p; i++) {
        size_t n = strcspn(p, ",");
        if (n == name->n && !memcmp(p, name->s, n)) return i;
        p += n + (p[n] == ',');
    }
    return -1;
}

static int param_count(const char *params)
{
    int n = *params != 0;
    for (; *params; params++) n += *params == ',';
    return n;
}

cb_jv cb_j_apply(cb_jr *r, const cb_jfunc *fn, cb_jv self, const cb_jcall *call)
{
    if (!cb_j_pay(r, 1)) return cb_j_undef();
    if (fn->raw) return fn->raw(r, self, call);
    cb_jv args[CB_JMAX_PARAMS] = {0};
    int n = param_count(fn->params);
    if (call->n_pos > n) return cb_j_fail(r, "%s takes at most %d arguments, %d are given", fn->name, n, call->n_pos);
    for (int i = 0; i < call->n_pos; i++) args[i] = call->pos[i];
    for (int i = 0; i < call->n_kw; i++) {
        const cb_jstr *k = call->kw[i].k.s;
        int at = param_index(fn->params, k);
        if (at < 0 || args[at].type != CB_J_MISSING)
            return cb_j_fail(r, "%s: %s argument '%.*s'", fn->name, at < 0 ? "unexpected keyword" : "multiple values for",
                             (int)(k->n < 40 ? k->n : 40), k->s);
        args[at] = call->kw[i].v;
    }
    for (int i = 0; i < fn->required; i++)
        if (args[i].type == CB_J_MISSING) return cb_j_fail(r, "%s: argument %d is missing", fn->name, i + 1);
    return fn->fn(r, self, args);
}

/* ---- numbers ---- */

/* Text without white space around it and without the _ between digits; false when it is too long to be a number. */
static bool number_text(const cb_jstr *s, char *out, size_t cap)
{
    const char *p = s->s, *end = s->s + s->n;
    size_t n = 0, k;
    while (p < end && (k = cb_j_space(p, (size_t)(end - p)))) p += k;
    for (; p < end && !cb_j_space(p, (size_t)(end - p)); p++) {
        if (*p == '_' && n && isalnum((unsigned char)out[n - 1]) && p + 1 < end && isalnum((unsigned char)p[1])) continue;
        if (n + 1 == cap || !*p) return false;
        out[n++] = *p;
    }
    while (p < end && (k = cb_j_space(p, (size_t)(end - p)))) p += k;
    out[n] = 0;
    return p == end && n > 0;
}

static bool parse_float(const cb_jstr *s, double *f)
{
    char text[400], *end;
    if (!number_text(s, text, sizeof text) || strpbrk(text, "xXpP(")) return false;
    *f = strtod(text, &end);
    return !*end && end != text;
}

/* 1: *i is set; 0: not an integer in this base; -1: does not fit. */
static int parse_int(const cb_jstr *s, int base, int64_t *i)
{
    char text[400], *end;
    if (!number_text(s, text, sizeof text)) return 0;
    char *p = text;
    bool neg = *p == '-';
    if (*p == '-' || *p == '+') p++;
    if (p[0] == '0' && isalpha((unsigned char)p[1])) {
        char c = p[1] | 32;
        int b = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 0;
        if (b && (base == b || base == 0) && isalnum((unsigned char)p[2])) base = b, p += 2;
        else if (base == 0) return 0;
    }
    if (!isalnum((unsigned char)*p)) return 0;
    if (base == 0) base = 10;
    errno = 0;
    unsigned long long u = strtoull(p, &end, base);
    if (*end) return 0;
    if (errno || u > (unsigned long long)INT64_MAX + neg) return -1;
    *i = neg ? (int64_t)(0 - u) : (int64_t)u;
    return 1;
}

static cb_jv int_of_float(cb_jr *r, double f)
{
    if (fabs(f) >= 0x1p63) return cb_j_fail(r, "integer does not fit in 64 bits");
    return cb_j_int((int64_t)f);
}

static CB_JFN(int) /* default, base */
{
    cb_jv dflt = a[0].type == CB_J_MISSING ? cb_j_int(0) : a[0];
    int64_t base = 10, i = 0;
    double f;
    if (cb_j_refuse_undef(r, v) || !cb_j_arg_int(r, a[1], "base", &base)) return cb_j_undef();
    if (base < 0 || base > 36 || base == 1) return dflt;
    if (v.type == CB_J_STR) {
        int rc = parse_int(v.s, (int)base, &i);
        if (rc) return rc > 0 ? cb_j_int(i) : cb_j_fail(r, "integer does not fit in 64 bits");
        if (!parse_float(v.s, &f) || !isfinite(f)) return dflt;
        return int_of_float(r, f);
    }
    if (cb_j_is_intlike(v)) return cb_j_int(v.i);
    if (v.type != CB_J_FLOAT || isnan(v.f)) return dflt;
    if (isinf(v.f)) return cb_j_fail(r, "cannot convert float infinity to integer");
    return int_of_float(r, v.f);
}

static CB_JFN(float) /* default */
{
    double f;
    if (cb_j_refuse_undef(r, v)) return cb_j_undef();
    if (cb_j_is_num(v)) return cb_j_float(cb_j_num(v));
    if (v.type == CB_J_STR && parse_float(v.s, &f)) return cb_j_float(f);
    return a[0].type == CB_J_MISSING ? cb_j_float(0) : a[0];
}

static CB_JFN(abs)
{
    if (v.type == CB_J_FLOAT) return cb_j_float(fabs(v.f));
    if (cb_j_is_intlike(v)) return v.i < 0 ? cb_j_negate(r, v) : cb_j_int(v.i);
    if (cb_j_refuse_undef(r, v)) return cb_j_undef();
    return cb_j_fail(r, "bad operand type for abs(): '%s'", cb_j_type_name(v));
}

/* Half to even, as round() of an integer to tens, hundreds ... */
static cb_jv round_int(cb_jr *r, int64_t i, int64_t digits)
{
    if (digits >= 0) return cb_j_int(i);
    if (digits < -18) return cb_j_int(0);
    int64_t unit = 1;
    while (digits++) unit *= 10;
    __int128 down = i / unit * (__int128)unit, rest = i - down;
    if (rest < 0) rest += unit, down -= unit;
    bool up = rest * 2 > unit || (rest * 2 == unit && (down / unit) % 2 != 0);
    down += up ? unit : 0;
    if (down > INT64_MAX || down < INT64_MIN) return cb_j_fail(r, "integer result does not fit in 64 bits");
    return cb_j_int((int64_t)down);
}

static double round_float(double f, int64_t digits)
{
    if (!isfinite(f) || digits > 322) return f;
    if (digits < -308) return copysign(0, f);
    char text[700];
    if (digits >= 0) { /* printf rounds the exact binary value, half to even, as Python does */
        snprintf(text, sizeof text, "%.*f", (int)digits, f);
        return strtod(text, NULL);
    }
    snprintf(text, sizeof text, "%.0f", nearbyint(f / pow(10, (double)-digits)));
    size_t n = strlen(text);
    snprintf(text + n, sizeof text - n, "e%d", (int)-digits);
    return strtod(text, NULL);
}

static CB_JFN(round) /* precision, method */
{
    int64_t digits = 0;
    bool ceiling = cb_j_str_is(a[1], "ceil"), flooring = cb_j_str_is(a[1], "floor");
    if (a[0].type == CB_J_NONE && v.type == CB_J_FLOAT && isfinite(v.f) && !ceiling && !flooring)
        return int_of_float(r, nearbyint(v.f));
    if (a[0].type != CB_J_NONE && !cb_j_arg_int(r, a[0], "precision", &digits)) return cb_j_undef();
    if (cb_j_refuse_undef(r, v)) return cb_j_undef();
    if (a[1].type != CB_J_MISSING && !ceiling && !flooring && !cb_j_str_is(a[1], "common"))
        return cb_j_fail(r, "method must be common, ceil or floor");
    if (!cb_j_is_num(v)) return cb_j_fail(r, "type %s doesn't define __round__ method", cb_j_type_name(v));
    if (!ceiling && !flooring)
        return v.type == CB_J_FLOAT ? cb_j_float(round_float(v.f, digits)) : round_int(r, v.i, digits);
    double scale = pow(10, (double)digits), f = cb_j_num(v) * scale;
    return cb_j_float((ceiling ? ceil(f) : floor(f)) / scale);
}

/* ---- text ---- */

static CB_JFN(string) { return cb_j_to_str(r, v); }
static CB_JFN(trim) { return cb_jf_strip(r, v, a); }
static CB_JFN(escape) { return cb_j_escape(r, v); }
static CB_JFN(forceescape)
{
    v = cb_j_to_str(r, v);
    v.flag = 0;
    return cb_j_escape(r, v);
}
static CB_JFN(safe)
{
    v = cb_j_to_str(r, v);
    if (v.type == CB_J_STR) v.flag = 1;
    return v;
}

static CB_JFN(replace_all) /* old, new, count: all made strings first */
{
    cb_jv args[3] = {cb_j_to_str(r, a[0]), cb_j_to_str(r, a[1]), a[2]};
    if (a[2].type == CB_J_NONE) args[2] = CB_J(CB_J_MISSING);
    v = cb_j_to_str(r, v);
    return r->rc ? v : cb_jf_replace(r, v, args);
}

static CB_JFN(indent) /* width, first, blank */
{
    int64_t width = 4;
    if (cb_j_refuse_undef(r, v)) return cb_j_undef();
    if (v.type != CB_J_STR) return cb_j_fail(r, "unsupported operand type(s) for +=: '%s' and 'str'", cb_j_type_name(v));
    if (a[0].type != CB_J_STR && !cb_j_arg_int(r, a[0], "width", &width)) return cb_j_undef();
    cb_jv pad = a[0].type == CB_J_STR ? a[0] : cb_j_binary(r, CB_JT_MUL, cb_j_char(r, " ", 1), cb_j_int(width));
    bool first = a[1].type != CB_J_MISSING && cb_j_truth(r, a[1]), blank = a[2].type != CB_J_MISSING && cb_j_truth(r, a[2]);
    if (r->rc) return cb_j_undef();
    size_t mark = cb_j_begin(r), i = 0, skip = 0;
    if (first) cb_j_out(r, pad.s->s, pad.s->n);
    for (bool more = false; cb_j_pay(r, 1); more = true, i += skip) { /* lines of v plus a newline */
        size_t n = cb_j_line(v.s->s + i, v.s->n - i, &skip);
        if (more) cb_j_out(r, "\n", 1);
        if (more && (n || blank)) cb_j_out(r, pad.s->s, pad.s->n);
        cb_j_out(r, v.s->s + i, n);
        if (n == skip) break; /* no break here: the end */
    }
    return cb_j_end(r, mark);
}

static CB_JFN(wordcount)
{
    int64_t words = 0;
    bool in = false;
    v = cb_j_to_str(r, v);
    if (r->rc || !cb_j_pay(r, v.s->n / 8)) return cb_j_undef();
    for (size_t i = 0; i < v.s->n; i += (size_t)cb_utf8_len(v.s->s[i])) {
        uint32_t cp;
        cb_utf8_decode(v.s->s + i, v.s->n - i, &cp);
        int cat = utf8proc_category((utf8proc_int32_t)cp);
        bool word = cp == '_' || (cat >= UTF8PROC_CATEGORY_LU && cat <= UTF8PROC_CATEGORY_LO) ||
                    (cat >= UTF8PROC_CATEGORY_ND && cat <= UTF8PROC_CATEGORY_NO);
        words += word && !in;
        in = word;
    }
    return cb_j_int(words);
}

static CB_JFN(center_filter)
{
    cb_jv args[2] = {a[0].type == CB_J_MISSING ? cb_j_int(80) : a[0]};
    v = cb_j_to_str(r, v);
    return r->rc ? v : cb_j_find_str_method("center", 6)->fn(r, v, args);
}

static CB_JRAW(format)
{
    v = cb_j_to_str(r, v);
    if (r->rc) return v;
    if (call->n_pos && call->n_kw) return cb_j_fail(r, "can't handle positional and keyword arguments at the same time");
    if (!call->n_kw) return cb_j_percent(r, v, cb_j_list(r, CB_J_TUPLE, call->pos, (size_t)call->n_pos));
    cb_jdict *d = cb_j_dict_new(r, (size_t)call->n_kw);
    for (int i = 0; i < call->n_kw; i++) cb_j_dict_put(r, d, call->kw[i].k, call->kw[i].v);
    return cb_j_percent(r, v, cb_j_dict(d));
}

/* ---- the rest ---- */

static CB_JFN(default) /* default_value, boolean */
{
    bool falsy = a[1].type != CB_J_MISSING && cb_j_truth(r, a[1]) && !cb_j_truth(r, v);
    if (v.type > CB_J_UNDEF && !falsy) return v;
    return a[0].type == CB_J_MISSING ? cb_j_str(r, "", 0) : a[0];
}

static CB_JFN(attr) /* name: attributes only, no items */
{
    const cb_jstr *name = NULL;
    if (cb_j_refuse_undef(r, v) || !cb_j_arg_str(r, a[0], "attribute name", &name)) return cb_j_undef();
    if (v.type == CB_J_DICT && !cb_j_find_method(v, name->s, name->n))
        return (cb_jv){.type = CB_J_UNDEF, .flag = CB_JU_ATTR, .of = CB_J_DICT, .s = name};
    return cb_j_getattr(r, v, a[0]);
}

/* ---- tests ---- */

static CB_JFN(t_defined) { return cb_j_bool(v.type > CB_J_UNDEF); }
static CB_JFN(t_undefined) { return cb_j_bool(v.type <= CB_J_UNDEF); }
static CB_JFN(t_none) { return cb_j_bool(v.type == CB_J_NONE); }
static CB_JFN(t_boolean) { return cb_j_bool(v.type == CB_J_BOOL); }
static CB_JFN(t_true) { return cb_j_bool(v.type == CB_J_BOOL && v.i); }
static CB_JFN(t_false) { return cb_j_bool(v.type == CB_J_BOOL && !v.i); }
static CB_JFN(t_integer) { return cb_j_bool(v.type == CB_J_INT); }
static CB_JFN(t_float) { return cb_j_bool(v.type == CB_J_FLOAT); }
static CB_JFN(t_number) { return cb_j_bool(cb_j_is_num(v)); }
static CB_JFN(t_string) { return cb_j_bool(v.type == CB_J_STR); }
static CB_JFN(t_mapping) { return cb_j_bool(v.type == CB_J_DICT); }
static CB_JFN(t_sequence) { return cb_j_bool(v.type <= CB_J_UNDEF || (v.type >= CB_J_STR && v.type <= CB_J_RANGE)); }
static CB_JFN(t_iterable) { return cb_j_bool(cb_j_iterable(v) || v.type == CB_J_LOOP); }
static CB_JFN(t_escaped) { return cb_j_bool(v.type == CB_J_STR && v.flag); }
static CB_JFN(t_callable)
{
    return cb_j_bool(v.type <= CB_J_UNDEF || (v.type >= CB_J_LOOP && v.type <= CB_J_METHOD) || v.type == CB_J_JOINER);
}
static CB_JFN(t_lower)
{
    v = cb_j_to_str(r, v);
    return r->rc || !cb_j_pay(r, v.s->n / 8) ? v : cb_j_bool(cb_j_all_case(v, false));
}
static CB_JFN(t_upper)
{
    v = cb_j_to_str(r, v);
    return r->rc || !cb_j_pay(r, v.s->n / 8) ? v : cb_j_bool(cb_j_all_case(v, true));
}
static cb_jv remainder_is(cb_jr *r, cb_jv v, cb_jv by, int64_t want)
{
    return cb_j_bool(cb_j_eq(r, cb_j_binary(r, CB_JT_MOD, v, by), cb_j_int(want)));
}
static CB_JFN(t_odd) { return remainder_is(r, v, cb_j_int(2), 1); }
static CB_JFN(t_even) { return remainder_is(r, v, cb_j_int(2), 0); }
static CB_JFN(t_divisibleby) { return remainder_is(r, v, a[0], 0); }
static CB_JFN(t_eq) { return cb_j_bool(cb_j_eq(r, v, a[0])); }
static CB_JFN(t_ne) { return cb_j_bool(!cb_j_eq(r, v, a[0])); }
static CB_JFN(t_gt) { return cb_j_bool(cb_j_cmp(r, v, a[0], ">") == 1); }
static CB_JFN(t_lt) { return cb_j_bool(cb_j_cmp(r, v, a[0], "<") == -1); }
static CB_JFN(t_in) { return cb_j_bool(cb_j_contains(r, v, a[0])); }
static CB_JFN(t_ge)
{
    int c = cb_j_cmp(r, v, a[0], ">=");
    return cb_j_bool(c == 0 || c == 1);
}
static CB_JFN(t_le)
{
    int c = cb_j_cmp(r, v, a[0], "<=");
    return cb_j_bool(c == 0 || c == -1);
}
static CB_JFN(t_sameas) /* identity; equal scalars of one type count as the same object */
{
    if (v.type != a[0].type || v.type <= CB_J_UNDEF) return cb_j_bool(false);
    return cb_j_bool(v.type < CB_J_LIST ? cb_j_eq(r, v, a[0]) : v.list == a[0].list);
}
static CB_JFN(t_filter) { return cb_j_bool(v.type == CB_J_STR && cb_j_find_filter(v.s->s, v.s->n)); }
static CB_JFN(t_test) { return cb_j_bool(v.type == CB_J_STR && cb_j_find_test(v.s->s, v.s->n)); }

/* ---- tables ---- */

static const cb_jfunc filters[] = {
    {"abs", cb_jf_abs, NULL, "", 0},
    {"attr", cb_jf_attr, NULL, "name", 1},
    {"batch", cb_jf_batch, NULL, "linecount,fill_with", 1},
    {"capitalize", cb_jf_capitalize, NULL, "", 0},
    {"center", cb_jf_center_filter, NULL, "width", 0},
    {"count", cb_jf_length, NULL, "", 0},
    {"d", cb_jf_default, NULL, "default_value,boolean", 0},
    {"default", cb_jf_default, NULL, "default_value,boolean", 0},
    {"dictsort", cb_jf_dictsort, NULL, "case_sensitive,by,reverse", 0},
    {"e", cb_jf_escape, NULL, "", 0},
    {"escape", cb_jf_escape, NULL, "", 0},
    {"first", cb_jf_first, NULL, "", 0},
    {"float", cb_jf_float, NULL, "default", 0},
    {"forceescape", cb_jf_forceescape, NULL, "", 0},
    {"format", NULL, cb_jf_format, NULL, 0},
    {"groupby", cb_jf_groupby, NULL, "attribute,default,case_sensitive", 1},
    {"indent", cb_jf_indent, NULL, "width,first,blank", 0},
    {"int", cb_jf_int, NULL, "default,base", 0},
    {"items", cb_jf_items, NULL, "", 0},
    {"join", cb_jf_join, NULL, "d,attribute", 0},
    {"last", cb_jf_last, NULL, "", 0},
    {"length", cb_jf_length, NULL, "", 0},
    {"list", cb_jf_list, NULL, "", 0},
    {"lower", cb_jf_lower, NULL, "", 0},
    {"map", NULL, cb_jf_map, NULL, 0},
    {"max", cb_jf_max, NULL, "case_sensitive,attribute", 0},
    {"min", cb_jf_min, NULL, "case_sensitive,attribute", 0},
    {"reject", NULL, cb_jf_reject, NULL, 0},
    {"rejectattr", NULL, cb_jf_rejectattr, NULL, 0},
    {"replace", cb_jf_replace_all, NULL, "old,new,count", 2},
    {"reverse", cb_jf_reverse, NULL, "", 0},
    {"round", cb_jf_round, NULL, "precision,method", 0},
    {"safe", cb_jf_safe, NULL, "", 0},
    {"select", NULL, cb_jf_select, NULL, 0},
    {"selectattr", NULL, cb_jf_selectattr, NULL, 0},
    {"slice", cb_jf_slice, NULL, "slices,fill_with", 1},
    {"sort", cb_jf_sort, NULL, "reverse,case_sensitive,attribute", 0},
    {"string", cb_jf_string, NULL, "", 0},
    {"sum", cb_jf_sum, NULL, "attribute,start", 0},
    {"title", cb_jf_title_words, NULL, "", 0},
    {"tojson", cb_j_tojson, NULL, "ensure_ascii,indent,separators,sort_keys", 0},
    {"trim", cb_jf_trim, NULL, "chars", 0},
    {"unique", cb_jf_unique, NULL, "case_sensitive,attribute", 0},
    {"upper", cb_jf_upper, NULL, "", 0},
    {"wordcount", cb_jf_wordcount, NULL, "", 0},
};

static const cb_jfunc tests[] = {
    {"!=", cb_jf_t_ne, NULL, "other", 1},
    {"<", cb_jf_t_lt, NULL, "other", 1},
    {"<=", cb_jf_t_le, NULL, "other", 1},
    {"==", cb_jf_t_eq, NULL, "other", 1},
    {">", cb_jf_t_gt, NULL, "other", 1},
    {">=", cb_jf_t_ge, NULL, "other", 1},
    {"boolean", cb_jf_t_boolean, NULL, "", 0},
    {"callable", cb_jf_t_callable, NULL, "", 0},
    {"defined", cb_jf_t_defined, NULL, "", 0},
    {"divisibleby", cb_jf_t_divisibleby, NULL, "num", 1},
    {"eq", cb_jf_t_eq, NULL, "other", 1},
    {"equalto", cb_jf_t_eq, NULL, "other", 1},
    {"escaped", cb_jf_t_escaped, NULL, "", 0},
    {"even", cb_jf_t_even, NULL, "", 0},
    {"false", cb_jf_t_false, NULL, "", 0},
    {"filter", cb_jf_t_filter, NULL, "", 0},
    {"float", cb_jf_t_float, NULL, "", 0},
    {"ge", cb_jf_t_ge, NULL, "other", 1},
    {"greaterthan", cb_jf_t_gt, NULL, "other", 1},
    {"gt", cb_jf_t_gt, NULL, "other", 1},
    {"in", cb_jf_t_in, NULL, "seq", 1},
    {"integer", cb_jf_t_integer, NULL, "", 0},
    {"iterable", cb_jf_t_iterable, NULL, "", 0},
    {"le", cb_jf_t_le, NULL, "other", 1},
    {"lessthan", cb_jf_t_lt, NULL, "other", 1},
    {"lower", cb_jf_t_lower, NULL, "", 0},
    {"lt", cb_jf_t_lt, NULL, "other", 1},
    {"mapping", cb_jf_t_mapping, NULL, "", 0},
    {"ne", cb_jf_t_ne, NULL, "other", 1},
    {"none", cb_jf_t_none, NULL, "", 0},
    {"number", cb_jf_t_number, NULL, "", 0},
    {"odd", cb_jf_t_odd, NULL, "", 0},
    {"sameas", cb_jf_t_sameas, NULL, "other", 1},
    {"sequence", cb_jf_t_sequence, NULL, "", 0},
    {"string", cb_jf_t_string, NULL, "", 0},
    {"test", cb_jf_t_test, NULL, "", 0},
    {"true", cb_jf_t_true, NULL, "", 0},
    {"undefined", cb_jf_t_undefined, NULL, "", 0},
    {"upper", cb_jf_t_upper, NULL, "", 0},
};

static const cb_jfunc *look_up(const cb_jfunc *table, size_t count, const char *s, size_t n)
{
    for (size_t i = 0; i < count; i++)
        if (strlen(table[i].name) == n && !memcmp(table[i].name, s, n)) return &table[i];
    return NULL;
}
const cb_jfunc *cb_j_find_filter(const char *s, size_t n) { return look_up(filters, sizeof filters / sizeof *filters, s, n); }
const cb_jfunc *cb_j_find_test(const char *s, size_t n) { return look_up(tests, sizeof tests / sizeof *tests, s, n); }
