#include "text/jinja_ast.h"
#include "text/jinja_filter.h"
#include "text/utf8.h"
#include <string.h>

/* Filters over sequences. map, select and their kin are lazy, as in jinja2: they give a generator, which has no length, is
 * always true and can be walked once. */

/* ---- attribute paths ---- */

static bool all_digits(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (s[i] < '0' || s[i] > '9') return false;
    return n > 0 && n < 18;
}

static cb_jv path_part(cb_jr *r, cb_jv v, const char *s, size_t n)
{
    if (!all_digits(s, n)) return cb_j_getitem(r, v, cb_j_str(r, s, n));
    int64_t i = 0;
    for (size_t k = 0; k < n; k++) i = i * 10 + (s[k] - '0');
    return cb_j_getitem(r, v, cb_j_int(i));
}

cb_jv cb_j_path(cb_jr *r, cb_jv v, cb_jv path)
{
    if (path.type == CB_J_MISSING || path.type == CB_J_NONE) return v;
    if (path.type != CB_J_STR) return cb_j_getitem(r, v, path);
    const char *s = path.s->s, *end = s + path.s->n;
    for (const char *dot; !r->rc; s = dot + 1) {
        dot = memchr(s, '.', (size_t)(end - s));
        /* Most paths are one name: no new string is made for it. */
        if (!dot && s == path.s->s && !all_digits(s, path.s->n)) return cb_j_getitem(r, v, path);
        v = path_part(r, v, s, (size_t)((dot ? dot : end) - s));
        if (!dot) break;
    }
    return v;
}

/* ---- generators ---- */

enum { MAX_GEN_DEPTH = 64 };

static cb_jv generator(cb_jr *r, int kind, cb_jv src, const cb_jcall *call)
{
    cb_jgen *g = cb_j_get(r, 1, sizeof *g);
    if (!g) return cb_j_undef();
    *g = (cb_jgen){.kind = kind, .src = src, .depth = src.type == CB_J_GEN ? src.gen->depth + 1 : 0};
    if (g->depth > MAX_GEN_DEPTH) return cb_j_fail(r, "more than %d filters are stacked", MAX_GEN_DEPTH);
    if (call && call->n_pos) { /* the caller's array is on its stack */
        cb_jv *pos = cb_j_get(r, (size_t)call->n_pos, sizeof *pos);
        if (!pos) return cb_j_undef();
        memcpy(pos, call->pos, (size_t)call->n_pos * sizeof *pos);
        g->call.pos = pos;
        g->call.n_pos = call->n_pos;
    }
    if (call && call->n_kw) {
        cb_jpair *kw = cb_j_get(r, (size_t)call->n_kw, sizeof *kw);
        if (!kw) return cb_j_undef();
        memcpy(kw, call->kw, (size_t)call->n_kw * sizeof *kw);
        g->call.kw = kw;
        g->call.n_kw = call->n_kw;
    }
    return (cb_jv){.type = CB_J_GEN, .gen = g};
}

/* A generator over a list that is there already. */
static cb_jv listed(cb_jr *r, cb_jvec vec)
{
    return generator(r, CB_JGEN_ITEMS, cb_j_list(r, CB_J_LIST, vec.v, vec.n), NULL);
}

static cb_jv keyword(const cb_jcall *c, const char *name)
{
    for (int i = 0; i < c->n_kw; i++)
        if (cb_j_str_is(c->kw[i].k, name)) return c->kw[i].v;
    return CB_J(CB_J_MISSING);
}

/* The call without its first n arguments. */
static cb_jcall rest(const cb_jcall *c, int n)
{
    cb_jcall out = *c;
    out.pos += n;
    out.n_pos -= n;
    return out;
}

static cb_jv map_item(cb_jr *r, const cb_jgen *g, cb_jv item)
{
    const cb_jcall *c = &g->call;
    cb_jv attr = keyword(c, "attribute");
    if (!c->n_pos && attr.type != CB_J_MISSING) {
        cb_jv dflt = keyword(c, "default");
        cb_jv v = cb_j_path(r, item, attr);
        return v.type <= CB_J_UNDEF && dflt.type > CB_J_NONE ? dflt : v;
    }
    if (!c->n_pos) return cb_j_fail(r, "map requires a filter argument");
    char show[64];
    const cb_jfunc *f = c->pos[0].type == CB_J_STR ? cb_j_find_filter(c->pos[0].s->s, c->pos[0].s->n) : NULL;
    if (!f) return cb_j_fail(r, "No filter named %s found", cb_j_show(r, c->pos[0], show));
    cb_jcall args = rest(c, 1);
    return cb_j_apply(r, f, item, &args);
}

static bool selected(cb_jr *r, const cb_jgen *g, cb_jv item)
{
    const cb_jcall *c = &g->call;
    int at = g->by_attr;
    if (g->by_attr) {
        if (!c->n_pos) return cb_j_fail(r, "missing parameter for attribute name"), false;
        item = cb_j_path(r, item, c->pos[0]);
    }
    if (c->n_pos <= at) return cb_j_truth(r, item) != g->negate;
    char show[64];
    cb_jv name = c->pos[at];
    const cb_jfunc *f = name.type == CB_J_STR ? cb_j_find_test(name.s->s, name.s->n) : NULL;
    if (!f) return cb_j_fail(r, "No test named %s found", cb_j_show(r, name, show)), false;
    cb_jcall args = rest(c, at + 1);
    return cb_j_truth(r, cb_j_apply(r, f, item, &args)) != g->negate;
}

cb_jv cb_j_gen_next(cb_jr *r, cb_jgen *g)
{
    cb_jv item, end = CB_J(CB_J_MISSING);
    if (g->done || !cb_j_deeper(r)) return end;
    if (!g->started) {
        g->started = true;
        bool lazy = g->kind == CB_JGEN_MAP || g->kind == CB_JGEN_SELECT;
        if (lazy && !cb_j_truth(r, g->src)) g->in.src = cb_j_undef();
        else cb_j_iter(r, &g->in, g->src);
    }
    g->done = true; /* until an item is found */
    while (cb_j_next(r, &g->in, &item)) {
        if (g->kind == CB_JGEN_SELECT && !selected(r, g, item)) continue;
        if (g->kind == CB_JGEN_MAP) item = map_item(r, g, item);
        g->done = r->rc != 0;
        break;
    }
    r->depth--;
    return g->done ? end : item;
}

CB_JRAW(map) { return generator(r, CB_JGEN_MAP, v, call); }

static cb_jv selector(cb_jr *r, cb_jv v, const cb_jcall *call, bool by_attr, bool negate)
{
    cb_jv g = generator(r, CB_JGEN_SELECT, v, call);
    if (r->rc) return g;
    g.gen->by_attr = by_attr;
    g.gen->negate = negate;
    return g;
}
CB_JRAW(select) { return selector(r, v, call, false, false); }
CB_JRAW(reject) { return selector(r, v, call, false, true); }
CB_JRAW(selectattr) { return selector(r, v, call, true, false); }
CB_JRAW(rejectattr) { return selector(r, v, call, true, true); }

CB_JFN(items)
{
    cb_jvec none = {0};
    if (v.type <= CB_J_UNDEF) return listed(r, none);
    if (v.type != CB_J_DICT) return cb_j_fail(r, "Can only get item pairs from a mapping.");
    return generator(r, CB_JGEN_ITEMS, (cb_jv){.type = CB_J_VIEW, .flag = CB_JVIEW_ITEMS, .dict = v.dict}, NULL);
}

/* ---- one item, or all ---- */

CB_JFN(first)
{
    cb_jiter it;
    cb_jv item;
    if (cb_j_iter(r, &it, v) && cb_j_next(r, &it, &item)) return item;
    return r->rc ? cb_j_undef() : cb_j_hint(r, "No first item, sequence was empty.");
}

static bool reversible(cb_jv v) { return v.type != CB_J_GEN && cb_j_iterable(v); }

CB_JFN(last)
{
    if (!reversible(v)) return cb_j_fail(r, "'%s' object is not reversible", cb_j_type_name(v));
    int64_t n = cb_j_len(r, v);
    if (!n) return cb_j_hint(r, "No last item, sequence was empty.");
    if (v.type != CB_J_DICT && v.type != CB_J_VIEW) return cb_j_getitem(r, v, cb_j_int(n - 1));
    cb_jvec all = cb_j_items(r, v);
    return r->rc ? cb_j_undef() : all.v[all.n - 1];
}

CB_JFN(length) { return cb_j_int(cb_j_len(r, v)); }

CB_JFN(list)
{
    cb_jvec all = cb_j_items(r, v);
    return cb_j_list(r, CB_J_LIST, all.v, all.n);
}

CB_JFN(reverse)
{
    if (v.type == CB_J_STR) return cb_j_slice(r, v, cb_j_none(), cb_j_none(), cb_j_int(-1));
    cb_jvec all = cb_j_items(r, v);
    for (size_t i = 0, k = all.n; i + 1 < k; i++) {
        cb_jv t = all.v[i];
        all.v[i] = all.v[--k];
        all.v[k] = t;
    }
    if (r->rc) return cb_j_undef();
    return reversible(v) ? listed(r, all) : cb_j_list(r, CB_J_LIST, all.v, all.n);
}

CB_JFN(join)
{
    cb_jiter it;
    cb_jv item;
    cb_jv sep = a[0].type == CB_J_MISSING ? cb_j_str(r, "", 0) : cb_j_to_str(r, a[0]);
    if (!cb_j_iter(r, &it, v)) return cb_j_undef();
    size_t mark = cb_j_begin(r);
    for (int i = 0; cb_j_next(r, &it, &item); i = 1) {
        if (i) cb_j_out(r, sep.s->s, sep.s->n);
        cb_j_put_str(r, cb_j_path(r, item, a[1]));
    }
    return cb_j_end(r, mark);
}

/* ---- order ---- */

static bool out_of_order(cb_jr *r, cb_jv a, cb_jv b, bool reverse)
{
    return (reverse ? cb_j_cmp(r, a, b, "<") : cb_j_cmp(r, b, a, "<")) == -1;
}

static void merge(cb_jr *r, cb_jpair *p, cb_jpair *tmp, size_t n, bool reverse)
{
    if (n < 2 || r->rc) return;
    size_t half = n / 2, i = 0, k = half, o = 0;
    merge(r, p, tmp, half, reverse);
    merge(r, p + half, tmp, n - half, reverse);
    while (i < half && k < n && !r->rc) tmp[o++] = out_of_order(r, p[i].k, p[k].k, reverse) ? p[k++] : p[i++];
    while (i < half) tmp[o++] = p[i++];
    memcpy(p, tmp, o * sizeof *p); /* what is left of the second half stands where it belongs */
}

void cb_j_sort(cb_jr *r, cb_jv *keys, cb_jv *items, size_t n, bool reverse)
{
    cb_jpair *p = cb_j_get(r, n, sizeof *p), *tmp = cb_j_get(r, n, sizeof *p);
    if (!p || !tmp) return;
    for (size_t i = 0; i < n; i++) p[i] = (cb_jpair){keys[i], items[i]};
    merge(r, p, tmp, n, reverse);
    for (size_t i = 0; i < n; i++) keys[i] = p[i].k, items[i] = p[i].v;
}

const cb_jpair *cb_j_sorted_pairs(cb_jr *r, const cb_jdict *d, bool case_sensitive, bool by_value, bool reverse)
{
    cb_jpair *out = cb_j_get(r, d->n, sizeof *out);
    cb_jv *keys = cb_j_get(r, d->n, sizeof *keys), *at = cb_j_get(r, d->n, sizeof *at);
    if (!out || !keys || !at) return NULL;
    for (size_t i = 0; i < d->n; i++) {
        cb_jv k = by_value ? d->p[i].v : d->p[i].k;
        keys[i] = case_sensitive ? k : cb_j_lower(r, k);
        at[i] = cb_j_int((int64_t)i);
    }
    cb_j_sort(r, keys, at, d->n, reverse);
    for (size_t i = 0; i < d->n && !r->rc; i++) out[i] = d->p[at[i].i];
    return r->rc ? NULL : out;
}

static bool flag_arg(cb_jr *r, cb_jv v) { return v.type != CB_J_MISSING && cb_j_truth(r, v); }

CB_JFN(dictsort) /* case_sensitive, by, reverse */
{
    bool by_value = cb_j_str_is(a[1], "value");
    if (v.type != CB_J_DICT) {
        if (cb_j_refuse_undef(r, v)) return cb_j_undef();
        return cb_j_fail(r, "'%s' object has no attribute 'items'", cb_j_type_name(v));
    }
    if (a[1].type != CB_J_MISSING && !by_value && !cb_j_str_is(a[1], "key"))
        return cb_j_fail(r, "You can only sort by either \"key\" or \"value\"");
    const cb_jpair *p = cb_j_sorted_pairs(r, v.dict, flag_arg(r, a[0]), by_value, flag_arg(r, a[2]));
    cb_jvec out = {0};
    for (size_t i = 0; p && i < v.dict->n; i++) cb_j_push(r, &out, cb_j_pair(r, p[i].k, p[i].v));
    return cb_j_list(r, CB_J_LIST, out.v, out.n);
}

static cb_jv key_of(cb_jr *r, cb_jv item, cb_jv attr, bool case_sensitive)
{
    cb_jv k = cb_j_path(r, item, attr);
    return case_sensitive ? k : cb_j_lower(r, k);
}

/* sort's attribute may name several, separated by commas. The key is a list even of one, as in jinja2: equal keys need no
 * order then, so none and none may be sorted. */
static cb_jv sort_key(cb_jr *r, cb_jv item, cb_jv attr, bool case_sensitive)
{
    cb_jvec key = {0};
    if (attr.type != CB_J_STR || !memchr(attr.s->s, ',', attr.s->n)) {
        cb_j_push(r, &key, key_of(r, item, attr, case_sensitive));
        return cb_j_list(r, CB_J_LIST, key.v, key.n);
    }
    const char *s = attr.s->s, *end = s + attr.s->n;
    for (const char *comma; !r->rc; s = comma + 1) {
        comma = memchr(s, ',', (size_t)(end - s));
        cb_jv part = cb_j_str(r, s, (size_t)((comma ? comma : end) - s));
        cb_j_push(r, &key, key_of(r, item, part, case_sensitive));
        if (!comma) break;
    }
    return cb_j_list(r, CB_J_LIST, key.v, key.n);
}

CB_JFN(sort) /* reverse, case_sensitive, attribute */
{
    cb_jvec all = cb_j_items(r, v);
    cb_jv *keys = cb_j_get(r, all.n, sizeof *keys);
    if (!keys) return cb_j_undef();
    for (size_t i = 0; i < all.n && !r->rc; i++) keys[i] = sort_key(r, all.v[i], a[2], flag_arg(r, a[1]));
    cb_j_sort(r, keys, all.v, all.n, flag_arg(r, a[0]));
    return cb_j_list(r, CB_J_LIST, all.v, all.n);
}

CB_JFN(groupby) /* attribute, default, case_sensitive */
{
    cb_jvec all = cb_j_items(r, v), out = {0};
    bool cs = flag_arg(r, a[2]);
    cb_jv *keys = cb_j_get(r, all.n, sizeof *keys);
    if (!keys) return cb_j_undef();
    for (size_t i = 0; i < all.n && !r->rc; i++) {
        keys[i] = cb_j_path(r, all.v[i], a[0]);
        if (keys[i].type <= CB_J_UNDEF && a[1].type > CB_J_NONE) keys[i] = a[1];
        if (!cs) keys[i] = cb_j_lower(r, keys[i]);
    }
    cb_j_sort(r, keys, all.v, all.n, false);
    for (size_t i = 0, k; i < all.n && !r->rc; i = k) {
        for (k = i + 1; k < all.n && cb_j_eq(r, keys[i], keys[k]); k++) {}
        cb_jv group = cs ? keys[i] : cb_j_path(r, all.v[i], a[0]);
        if (group.type <= CB_J_UNDEF && a[1].type > CB_J_NONE) group = a[1];
        cb_j_push(r, &out, cb_j_pair(r, group, cb_j_list(r, CB_J_LIST, all.v + i, k - i)));
    }
    return cb_j_list(r, CB_J_LIST, out.v, out.n);
}

CB_JFN(unique) /* case_sensitive, attribute */
{
    cb_jdict *seen = cb_j_dict_new(r, 0);
    cb_jvec out = {0};
    cb_jiter it;
    cb_jv item;
    bool cs = flag_arg(r, a[0]);
    if (!seen || !cb_j_iter(r, &it, v)) return cb_j_undef();
    while (cb_j_next(r, &it, &item)) {
        cb_jv key = key_of(r, item, a[1], cs);
        size_t n = seen->n;
        cb_j_dict_put(r, seen, key, cb_j_none());
        if (seen->n > n) cb_j_push(r, &out, item);
    }
    return listed(r, out);
}

static cb_jv extreme(cb_jr *r, cb_jv v, const cb_jv *a, int sign)
{
    cb_jiter it;
    cb_jv item, best = cb_j_undef(), best_key = CB_J(CB_J_MISSING);
    if (!cb_j_iter(r, &it, v)) return best;
    while (cb_j_next(r, &it, &item)) {
        cb_jv key = key_of(r, item, a[1], flag_arg(r, a[0]));
        if (best_key.type == CB_J_MISSING || cb_j_cmp(r, key, best_key, sign < 0 ? "<" : ">") == sign) best = item, best_key = key;
    }
    if (best_key.type == CB_J_MISSING && !r->rc) return cb_j_hint(r, "No aggregated item, sequence was empty.");
    return best;
}
CB_JFN(min) { return extreme(r, v, a, -1); }
CB_JFN(max) { return extreme(r, v, a, 1); }

CB_JFN(sum) /* attribute, start */
{
    cb_jiter it;
    cb_jv item, total = a[1].type == CB_J_MISSING ? cb_j_int(0) : a[1];
    if (total.type == CB_J_STR) return cb_j_fail(r, "sum() can't sum strings [use ''.join(seq) instead]");
    if (cb_j_iter(r, &it, v))
        while (cb_j_next(r, &it, &item)) total = cb_j_binary(r, CB_JT_ADD, total, cb_j_path(r, item, a[0]));
    return total;
}

/* ---- pieces ---- */

CB_JFN(batch) /* linecount, fill_with */
{
    cb_jvec out = {0}, row = {0};
    cb_jiter it;
    cb_jv item;
    if (!cb_j_iter(r, &it, v)) return cb_j_undef();
    while (cb_j_next(r, &it, &item)) {
        if (cb_j_eq(r, cb_j_int((int64_t)row.n), a[0])) {
            cb_j_push(r, &out, cb_j_list(r, CB_J_LIST, row.v, row.n));
            row = (cb_jvec){0};
        }
        cb_j_push(r, &row, item);
    }
    if (row.n && a[1].type > CB_J_NONE)
        while (cb_j_cmp(r, cb_j_int((int64_t)row.n), a[0], "<") == -1 && cb_j_pay(r, 1)) cb_j_push(r, &row, a[1]);
    if (row.n) cb_j_push(r, &out, cb_j_list(r, CB_J_LIST, row.v, row.n));
    return listed(r, out);
}

CB_JFN(slice) /* slices, fill_with */
{
    cb_jvec all = cb_j_items(r, v), out = {0};
    int64_t n = 0;
    if (r->rc || !cb_j_arg_int(r, a[0], "slices", &n)) return cb_j_undef();
    if (!n) return cb_j_fail(r, "integer division or modulo by zero");
    for (int64_t i = 0, from = 0; i < n && cb_j_pay(r, 1); i++) {
        bool extra = i < (int64_t)all.n % n;
        int64_t len = (int64_t)all.n / n + extra;
        cb_jvec row = {0};
        for (int64_t k = 0; k < len; k++) cb_j_push(r, &row, all.v[from + k]);
        if (a[1].type > CB_J_NONE && !extra) cb_j_push(r, &row, a[1]);
        cb_j_push(r, &out, cb_j_list(r, CB_J_LIST, row.v, row.n));
        from += len;
    }
    return listed(r, out);
}
