#include "text/jinja_ast.h"
#include "text/jinja_filter.h"
#include <string.h>

/* Global functions, methods of everything but strings, and calls. */

/* ---- globals ---- */

static CB_JFN(range) /* start, stop, step: one argument is the stop */
{
    int64_t start = 0, stop = 0, step = 1;
    if (a[1].type == CB_J_MISSING) {
        if (!cb_j_arg_int(r, a[0], "range", &stop)) return cb_j_undef();
    } else if (!cb_j_arg_int(r, a[0], "range", &start) || !cb_j_arg_int(r, a[1], "range", &stop) ||
               !cb_j_arg_int(r, a[2], "range", &step))
        return cb_j_undef();
    return cb_j_range(r, start, stop, step);
}

static void put_pairs(cb_jr *r, cb_jdict *d, cb_jv v)
{
    cb_jiter it;
    cb_jv pair;
    if (v.type == CB_J_DICT) {
        for (size_t i = 0; i < v.dict->n && cb_j_pay(r, 1); i++) cb_j_dict_put(r, d, v.dict->p[i].k, v.dict->p[i].v);
        return;
    }
    if (cb_j_refuse_undef(r, v) || !cb_j_iter(r, &it, v)) return;
    while (cb_j_next(r, &it, &pair)) {
        cb_jvec kv = cb_j_items(r, pair);
        if (r->rc) return;
        if (kv.n != 2) {
            cb_j_fail(r, "dictionary update sequence element has length %zu; 2 is required", kv.n);
            return;
        }
        cb_j_dict_put(r, d, kv.v[0], kv.v[1]);
    }
}

static cb_jdict *dict_from_call(cb_jr *r, const cb_jcall *call)
{
    cb_jdict *d = cb_j_dict_new(r, 0);
    if (!d) return NULL;
    if (call->n_pos > 1) cb_j_fail(r, "dict expected at most 1 argument, got %d", call->n_pos);
    if (call->n_pos) put_pairs(r, d, call->pos[0]);
    for (int i = 0; i < call->n_kw && !r->rc; i++) cb_j_dict_put(r, d, call->kw[i].k, call->kw[i].v);
    return r->rc ? NULL : d;
}

static CB_JRAW(dict) { return cb_j_dict(dict_from_call(r, call)); }

static CB_JRAW(namespace)
{
    cb_jdict *d = dict_from_call(r, call);
    if (!d) return cb_j_undef();
    for (size_t i = 0; i < d->n; i++)
        if (d->p[i].k.type == CB_J_STR && d->p[i].k.s->n && *d->p[i].k.s->s == '_')
            return cb_j_fail(r, "names of a namespace cannot start with an underscore");
    return (cb_jv){.type = CB_J_NS, .ns = d};
}

static CB_JFN(raise_exception)
{
    cb_jv text = cb_j_to_str(r, a[0]);
    if (r->rc) return text;
    if (!text.s->n) text = cb_j_str_c(r, "the chat template refuses this conversation");
    return r->rc ? text : cb_j_fail_code(r, CB_EUSAGE, text.s->s, text.s->n);
}

static CB_JFN(strftime_now)
{
    const cb_jstr *f = NULL;
    if (!cb_j_arg_str(r, a[0], "strftime_now", &f)) return cb_j_undef();
    if (f->n > 200 || memchr(f->s, 0, f->n)) return cb_j_fail(r, "strftime_now: the format is too long");
    struct tm tm;
    if (r->now) tm = *r->now;
    else {
        time_t t = time(NULL);
        localtime_r(&t, &tm);
    }
    /* Python's clock here has no zone: %z and %Z are empty. Microseconds are not kept. */
    char fmt[3 * 200 + 2], text[2048];
    size_t k = 0;
    for (size_t i = 0; i < f->n; i++) {
        if (f->s[i] != '%' || i + 1 == f->n) fmt[k++] = f->s[i];
        else if (f->s[++i] == 'f') memcpy(fmt + k, "000000", 6), k += 6;
        else if (f->s[i] != 'z' && f->s[i] != 'Z') fmt[k++] = '%', fmt[k++] = f->s[i];
    }
    fmt[k++] = '.'; /* so that an empty result differs from none */
    fmt[k] = 0;
    size_t n = strftime(text, sizeof text, fmt, &tm);
    if (!n) return cb_j_fail(r, "strftime_now: bad format");
    return cb_j_str_copy(r, text, n - 1);
}

static cb_jv cycler_of(cb_jr *r, int type, const cb_jv *items, size_t n)
{
    cb_jcycler *c = cb_j_get(r, 1, sizeof *c);
    cb_jv *copy = cb_j_get(r, n, sizeof *copy);
    if (!c || !copy) return cb_j_undef();
    if (n) memcpy(copy, items, n * sizeof *copy);
    *c = (cb_jcycler){.items = copy, .n = n};
    return (cb_jv){.type = (uint8_t)type, .cycler = c};
}

static CB_JRAW(cycler)
{
    if (!call->n_pos || call->n_kw) return cb_j_fail(r, "at least one item has to be provided");
    return cycler_of(r, CB_J_CYCLER, call->pos, (size_t)call->n_pos);
}

static CB_JFN(joiner)
{
    cb_jv sep = a[0].type == CB_J_MISSING ? cb_j_str_c(r, ", ") : a[0];
    return cycler_of(r, CB_J_JOINER, &sep, 1);
}

static const cb_jfunc globals[] = {
    {"range", cb_jf_range, NULL, "start,stop,step", 1},
    {"dict", NULL, cb_jf_dict, NULL, 0},
    {"namespace", NULL, cb_jf_namespace, NULL, 0},
    {"raise_exception", cb_jf_raise_exception, NULL, "message", 1},
    {"strftime_now", cb_jf_strftime_now, NULL, "format", 1},
    {"cycler", NULL, cb_jf_cycler, NULL, 0},
    {"joiner", cb_jf_joiner, NULL, "sep", 0},
};

const cb_jfunc *cb_j_global(size_t i) { return i < sizeof globals / sizeof *globals ? &globals[i] : NULL; }

/* ---- methods ---- */

static CB_JFN(get) /* key, default */
{
    cb_jv *item = cb_j_dict_find(r, v.dict, a[0]);
    return item ? *item : a[1].type == CB_J_MISSING ? cb_j_none() : a[1];
}
static cb_jv view(cb_jv v, int kind) { return (cb_jv){.type = CB_J_VIEW, .flag = (uint8_t)kind, .dict = v.dict}; }
static CB_JFN(keys) { return view(v, CB_JVIEW_KEYS); }
static CB_JFN(values) { return view(v, CB_JVIEW_VALUES); }
static CB_JFN(dict_items) { return view(v, CB_JVIEW_ITEMS); }
static CB_JFN(copy) { return v; } /* nothing can change it */

static CB_JFN(seq_index)
{
    cb_jiter it;
    cb_jv item;
    cb_j_iter(r, &it, v);
    for (int64_t i = 0; cb_j_next(r, &it, &item); i++)
        if (cb_j_eq(r, item, a[0])) return cb_j_int(i);
    char show[64];
    return cb_j_fail(r, "%s is not in %s", cb_j_show(r, a[0], show), cb_j_type_name(v));
}

static CB_JFN(seq_count)
{
    int64_t n = 0;
    cb_jiter it;
    cb_jv item;
    cb_j_iter(r, &it, v);
    while (cb_j_next(r, &it, &item)) n += cb_j_eq(r, item, a[0]);
    return cb_j_int(n);
}

static CB_JFN(cycler_next)
{
    cb_jv item = v.cycler->items[v.cycler->pos];
    v.cycler->pos = (v.cycler->pos + 1) % v.cycler->n;
    return item;
}
static CB_JFN(cycler_reset)
{
    v.cycler->pos = 0;
    return cb_j_none();
}

/* No function: the sandbox hides methods that change their object. */
#define HIDDEN(name) {name, NULL, NULL, NULL, 0}

static const cb_jfunc dict_methods[] = {
    {"get", cb_jf_get, NULL, "/key,/default", 1},
    {"items", cb_jf_dict_items, NULL, "", 0},
    {"keys", cb_jf_keys, NULL, "", 0},
    {"values", cb_jf_values, NULL, "", 0},
    {"copy", cb_jf_copy, NULL, "", 0},
    HIDDEN("clear"), HIDDEN("fromkeys"), HIDDEN("pop"), HIDDEN("popitem"), HIDDEN("setdefault"), HIDDEN("update"),
    {NULL, NULL, NULL, NULL, 0},
};
static const cb_jfunc list_methods[] = {
    {"index", cb_jf_seq_index, NULL, "value", 1},
    {"count", cb_jf_seq_count, NULL, "value", 1},
    {"copy", cb_jf_copy, NULL, "", 0},
    HIDDEN("append"), HIDDEN("clear"), HIDDEN("extend"), HIDDEN("insert"), HIDDEN("pop"), HIDDEN("remove"),
    HIDDEN("reverse"), HIDDEN("sort"),
    {NULL, NULL, NULL, NULL, 0},
};
static const cb_jfunc tuple_methods[] = { /* also of ranges */
    {"index", cb_jf_seq_index, NULL, "value", 1},
    {"count", cb_jf_seq_count, NULL, "value", 1},
    {NULL, NULL, NULL, NULL, 0},
};
static const cb_jfunc cycler_methods[] = {
    {"next", cb_jf_cycler_next, NULL, "", 0},
    {"reset", cb_jf_cycler_reset, NULL, "", 0},
    {NULL, NULL, NULL, NULL, 0},
};

const cb_jfunc *cb_j_find_method(cb_jv obj, const char *s, size_t n)
{
    const cb_jfunc *m;
    switch (obj.type) {
    case CB_J_STR: return cb_j_find_str_method(s, n);
    case CB_J_DICT: m = dict_methods; break;
    case CB_J_LIST: m = list_methods; break;
    case CB_J_TUPLE:
    case CB_J_RANGE: m = tuple_methods; break;
    case CB_J_CYCLER: m = cycler_methods; break;
    default: return NULL;
    }
    for (; m->name; m++)
        if (strlen(m->name) == n && !memcmp(m->name, s, n)) return m;
    return NULL;
}

/* ---- calls ---- */

cb_jv cb_j_call(cb_jr *r, cb_jv fn, const cb_jcall *call)
{
    if (r->rc || cb_j_refuse_undef(r, fn)) return cb_j_undef();
    switch (fn.type) {
    case CB_J_FUNC: return cb_j_apply(r, fn.func, cb_j_none(), call);
    case CB_J_METHOD: return cb_j_apply(r, fn.bound->fn, fn.bound->self, call);
    case CB_J_MACRO: return cb_j_call_macro(r, fn.macro, call);
    case CB_J_JOINER:
        if (fn.cycler->pos++) return fn.cycler->items[0];
        return cb_j_str(r, "", 0);
    }
    return cb_j_fail(r, "'%s' object is not callable", cb_j_type_name(fn));
}
