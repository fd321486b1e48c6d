#include "text/jinja_value.h"
#include "text/jinja_ast.h"
#include "text/utf8.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- failure and memory ---- */

cb_jv cb_j_fail(cb_jr *r, const char *fmt, ...)
{
    if (r->rc) return cb_j_undef();
    char text[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    int line = 1, col = 1;
    if (r->at) cb_jinja_where(r->t, r->at->pos, &line, &col);
    r->rc = cb_fail(r->err, CB_EFORMAT, "%s: line %d, column %d: %s", r->t->name, line, col, text);
    return cb_j_undef();
}

cb_jv cb_j_fail_code(cb_jr *r, int code, const char *text, size_t n)
{
    if (!r->rc) r->rc = cb_fail(r->err, code, "%.*s", (int)(n < CB_ERR_TEXT ? n : CB_ERR_TEXT), text);
    return cb_j_undef();
}

bool cb_j_pay(cb_jr *r, uint64_t n)
{
    if (r->rc) return false;
    if (r->steps < n) {
        r->steps = 0;
        cb_j_fail(r, "rendering takes more than %llu steps", (unsigned long long)r->lim.steps);
        return false;
    }
    r->steps -= n;
    return true;
}

bool cb_j_deeper(cb_jr *r)
{
    if (r->rc) return false;
    if (r->depth >= CB_JMAX_DEPTH) {
        cb_j_fail(r, "recursion is more than %d deep", CB_JMAX_DEPTH);
        return false;
    }
    r->depth++;
    return true;
}

static void out_of_memory(cb_jr *r, size_t used, size_t limit, const char *what)
{
    if (limit && used <= limit && used + 4096 < limit) {
        if (!r->rc) r->rc = cb_fail(r->err, CB_ENOMEM, "%s: out of memory", r->t->name);
    } else cb_j_fail(r, "rendering takes more than %zu bytes of %s", limit, what);
}

void *cb_j_get(cb_jr *r, size_t count, size_t size)
{
    size_t n;
    if (r->rc) return NULL;
    if (__builtin_mul_overflow(count, size, &n)) n = SIZE_MAX;
    void *p = cb_arena_get(&r->arena, n);
    if (!p) out_of_memory(r, n < r->lim.memory_bytes ? r->arena.used + n : n, r->lim.memory_bytes, "memory");
    return p;
}

void cb_j_out(cb_jr *r, const char *s, size_t n)
{
    if (!cb_j_pay(r, n / 64)) return;
    size_t want = r->out.n + n;
    cb_buf_put(&r->out, s, n);
    if (!cb_buf_ok(&r->out)) out_of_memory(r, want, r->lim.output_bytes, "output");
}

cb_jv cb_j_end(cb_jr *r, size_t mark)
{
    if (r->rc || r->out.n < mark) return cb_j_undef();
    cb_jv v = cb_j_str_copy(r, r->out.data ? r->out.data + mark : "", r->out.n - mark);
    r->out.n = mark;
    return v;
}

/* ---- strings ---- */

size_t cb_j_count_chars(const char *s, size_t n)
{
    size_t i = 0, more = 0; /* continuation bytes: bit 7 set, bit 6 clear */
    for (uint64_t w; i + 8 <= n; i += 8) {
        memcpy(&w, s + i, 8);
        more += (size_t)__builtin_popcountll(w >> 7 & ~(w >> 6) & 0x0101010101010101u);
    }
    for (; i < n; i++) more += ((unsigned char)s[i] & 0xc0) == 0x80;
    return n - more;
}

cb_jv cb_j_str_chars(cb_jr *r, const char *s, size_t n, size_t n_chars)
{
    cb_jstr *str = cb_j_get(r, 1, sizeof *str);
    if (!str) return cb_j_undef();
    *str = (cb_jstr){.s = s, .n = n, .n_chars = n_chars};
    return (cb_jv){.type = CB_J_STR, .s = str};
}

cb_jv cb_j_str(cb_jr *r, const char *s, size_t n)
{
    cb_j_pay(r, n / 64);
    return cb_j_str_chars(r, s, n, cb_j_count_chars(s, n));
}

cb_jv cb_j_str_copy(cb_jr *r, const char *s, size_t n)
{
    if (n == 1 && (unsigned char)*s < 0x80) return cb_j_char(r, s, 1);
    char *d = cb_j_get(r, n, 1);
    if (!d) return cb_j_undef();
    if (n) memcpy(d, s, n);
    return cb_j_str(r, d, n);
}

cb_jv cb_j_str_c(cb_jr *r, const char *literal) { return cb_j_str_copy(r, literal, strlen(literal)); }

/* Walking a string makes many one-character strings; the ASCII ones are made once. */
cb_jv cb_j_char(cb_jr *r, const char *s, size_t n)
{
    unsigned char c = (unsigned char)*s;
    if (n != 1 || c >= 0x80) return cb_j_str_chars(r, s, n, 1);
    if (!r->ascii) {
        cb_jstr *a = cb_j_get(r, 128, sizeof *a);
        char *text = cb_j_get(r, 128, 1);
        if (!a || !text) return cb_j_undef();
        for (int i = 0; i < 128; i++) {
            text[i] = (char)i;
            a[i] = (cb_jstr){.s = text + i, .n = 1, .n_chars = 1};
        }
        r->ascii = a;
    }
    return (cb_jv){.type = CB_J_STR, .s = &r->ascii[c]};
}

cb_jv cb_j_hint(cb_jr *r, const char *literal)
{
    cb_jv s = cb_j_str_c(r, literal);
    return (cb_jv){.type = CB_J_UNDEF, .flag = CB_JU_HINT, .s = s.s};
}

bool cb_j_str_is(cb_jv v, const char *literal)
{
    return v.type == CB_J_STR && v.s->n == strlen(literal) && !memcmp(v.s->s, literal, v.s->n);
}

/* ---- lists and ranges ---- */

cb_jv cb_j_list(cb_jr *r, int type, const cb_jv *v, size_t n)
{
    cb_jlist *l = cb_j_get(r, 1, sizeof *l);
    if (!l) return cb_j_undef();
    *l = (cb_jlist){v, n};
    return (cb_jv){.type = (uint8_t)type, .list = l};
}

cb_jv cb_j_pair(cb_jr *r, cb_jv a, cb_jv b)
{
    cb_jv *v = cb_j_get(r, 2, sizeof *v);
    if (!v) return cb_j_undef();
    v[0] = a;
    v[1] = b;
    return cb_j_list(r, CB_J_TUPLE, v, 2);
}

void cb_j_push(cb_jr *r, cb_jvec *vec, cb_jv v)
{
    if (vec->n == vec->cap) {
        size_t cap = vec->cap ? vec->cap * 2 : 8;
        cb_jv *d = cb_j_get(r, cap, sizeof *d);
        if (!d) return;
        if (vec->n) memcpy(d, vec->v, vec->n * sizeof *d);
        vec->v = d;
        vec->cap = cap;
    }
    vec->v[vec->n++] = v;
}

cb_jv cb_j_range(cb_jr *r, int64_t start, int64_t stop, int64_t step)
{
    if (!step) return cb_j_fail(r, "range() arg 3 must not be zero");
    __int128 span = step > 0 ? (__int128)stop - start : (__int128)start - stop, by = step > 0 ? step : -(__int128)step;
    __int128 n = span > 0 ? (span + by - 1) / by : 0;
    if (n > CB_JMAX_RANGE) return cb_j_fail(r, "range too big: more than %d items", CB_JMAX_RANGE);
    cb_jrange *g = cb_j_get(r, 1, sizeof *g);
    if (!g) return cb_j_undef();
    *g = (cb_jrange){.start = start, .step = step, .n = (int64_t)n, .stop = stop};
    return (cb_jv){.type = CB_J_RANGE, .range = g};
}

/* ---- dicts ---- */

enum { DICT_LINEAR = 8 };

static uint32_t hash_bytes(const char *s, size_t n)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * 16777619u;
    return h ^ h >> 15;
}

cb_jdict *cb_j_dict_new(cb_jr *r, size_t cap)
{
    cb_jdict *d = cb_j_get(r, 1, sizeof *d);
    if (!d || !cap) return d;
    d->p = cb_j_get(r, cap, sizeof *d->p);
    d->cap = cap;
    return d->p ? d : NULL;
}

cb_jv cb_j_dict(const cb_jdict *d) { return d ? (cb_jv){.type = CB_J_DICT, .dict = d} : cb_j_undef(); }

static bool key_is(const cb_jpair *p, const char *s, size_t n)
{
    return p->k.type == CB_J_STR && p->k.s->n == n && !memcmp(p->k.s->s, s, n);
}

cb_jv *cb_j_dict_find_s(cb_jr *r, const cb_jdict *d, const char *s, size_t n)
{
    if (!d->slots) {
        for (size_t i = 0; i < d->n; i++)
            if (key_is(&d->p[i], s, n)) return &d->p[i].v;
        return NULL;
    }
    /* Keys may be chosen to collide: every probe is paid for. */
    for (size_t i = hash_bytes(s, n) & (d->n_slots - 1); d->slots[i] && cb_j_pay(r, 1); i = (i + 1) & (d->n_slots - 1))
        if (key_is(&d->p[d->slots[i] - 1], s, n)) return &d->p[d->slots[i] - 1].v;
    return NULL;
}

cb_jv *cb_j_dict_find(cb_jr *r, const cb_jdict *d, cb_jv key)
{
    if (key.type == CB_J_STR) {
        cb_j_pay(r, key.s->n / 64);
        return cb_j_dict_find_s(r, d, key.s->s, key.s->n);
    }
    if (!cb_j_hashable(key)) {
        cb_j_fail(r, "unhashable type: '%s'", cb_j_type_name(key));
        return NULL;
    }
    if (!cb_j_pay(r, d->n / 4)) return NULL;
    for (size_t i = 0; i < d->n; i++)
        if (d->p[i].k.type != CB_J_STR && cb_j_eq(r, d->p[i].k, key)) return &d->p[i].v;
    return NULL;
}

static void dict_index(cb_jr *r, cb_jdict *d)
{
    if (d->n <= DICT_LINEAR) return;
    if (!d->slots || d->n * 2 > d->n_slots) {
        size_t n_slots = d->n_slots ? d->n_slots * 2 : 64;
        uint32_t *slots = cb_j_get(r, n_slots, sizeof *slots);
        if (!slots) return;
        d->slots = slots;
        d->n_slots = n_slots;
        for (size_t i = 0; i + 1 < d->n; i++) {
            if (d->p[i].k.type != CB_J_STR) continue;
            size_t k = hash_bytes(d->p[i].k.s->s, d->p[i].k.s->n) & (n_slots - 1);
            while (slots[k] && cb_j_pay(r, 1)) k = (k + 1) & (n_slots - 1);
            slots[k] = (uint32_t)i + 1;
        }
    }
    cb_jv key = d->p[d->n - 1].k;
    if (key.type != CB_J_STR) return;
    size_t k = hash_bytes(key.s->s, key.s->n) & (d->n_slots - 1);
    while (d->slots[k] && cb_j_pay(r, 1)) k = (k + 1) & (d->n_slots - 1);
    d->slots[k] = (uint32_t)d->n;
}

void cb_j_dict_put(cb_jr *r, cb_jdict *d, cb_jv key, cb_jv v)
{
    if (!d || r->rc) return;
    cb_jv *old = cb_j_dict_find(r, d, key);
    if (r->rc) return;
    if (old) {
        *old = v;
        return;
    }
    if (d->n == d->cap) {
        size_t cap = d->cap ? d->cap * 2 : 4;
        cb_jpair *p = cap < UINT32_MAX ? cb_j_get(r, cap, sizeof *p) : NULL;
        if (!p) return;
        if (d->n) memcpy(p, d->p, d->n * sizeof *p);
        d->p = p;
        d->cap = cap;
    }
    d->p[d->n++] = (cb_jpair){key, v};
    dict_index(r, d);
}

/* ---- JSON ---- */

cb_jv cb_j_from_json(cb_jr *r, const json_t *j)
{
    cb_j_pay(r, 1);
    switch (json_typeof(j)) {
    case JSON_TRUE: return cb_j_bool(true);
    case JSON_FALSE: return cb_j_bool(false);
    case JSON_NULL: return cb_j_none();
    case JSON_INTEGER: return cb_j_int(json_integer_value(j));
    case JSON_REAL: return cb_j_float(json_real_value(j));
    case JSON_STRING: return cb_j_str(r, json_string_value(j), json_string_length(j));
    case JSON_ARRAY: {
        size_t n = json_array_size(j);
        cb_jv *v = cb_j_get(r, n, sizeof *v);
        for (size_t i = 0; v && !r->rc && i < n; i++) v[i] = cb_j_from_json(r, json_array_get(j, i));
        return v ? cb_j_list(r, CB_J_LIST, v, n) : cb_j_undef();
    }
    default: break;
    }
    cb_jdict *d = cb_j_dict_new(r, json_object_size(j));
    json_t *obj = (json_t *)(uintptr_t)j; /* jansson's iterators take no const; nothing is changed */
    for (void *it = json_object_iter(obj); d && it && !r->rc; it = json_object_iter_next(obj, it)) {
        cb_jv k = cb_j_str(r, json_object_iter_key(it), json_object_iter_key_len(it));
        cb_j_dict_put(r, d, k, cb_j_from_json(r, json_object_iter_value(it)));
    }
    return cb_j_dict(d);
}

/* ---- asking ---- */

const char *cb_j_type_name(cb_jv v)
{
    static const char *const views[] = {"dict_keys", "dict_values", "dict_items"};
    static const char *const names[] = {
        [CB_J_MISSING] = "Undefined", [CB_J_UNDEF] = "Undefined", [CB_J_NONE] = "NoneType",     [CB_J_BOOL] = "bool",
        [CB_J_INT] = "int",           [CB_J_FLOAT] = "float",     [CB_J_STR] = "str",           [CB_J_LIST] = "list",
        [CB_J_TUPLE] = "tuple",       [CB_J_DICT] = "dict",       [CB_J_RANGE] = "range",       [CB_J_VIEW] = NULL,
        [CB_J_GEN] = "generator",     [CB_J_NS] = "namespace",    [CB_J_LOOP] = "LoopContext",  [CB_J_MACRO] = "Macro",
        [CB_J_FUNC] = "function",     [CB_J_METHOD] = "method",   [CB_J_CYCLER] = "Cycler",     [CB_J_JOINER] = "Joiner",
    };
    return v.type == CB_J_VIEW ? views[v.flag] : names[v.type];
}

bool cb_j_refuse_undef(cb_jr *r, cb_jv v)
{
    if (v.type > CB_J_UNDEF) return false;
    cb_jv of = {.type = (uint8_t)v.of, .flag = (uint8_t)(v.of >> 8)};
    const char *type = of.type == CB_J_NONE ? "None" : cb_j_type_name(of), *object = of.type == CB_J_NONE ? "" : " object";
    char name[64] = "?";
    if (v.s && v.flag != CB_JU_HINT && v.flag != CB_JU_ELEMENT) cb_j_show(r, (cb_jv){.type = CB_J_STR, .s = v.s}, name);
    int n = v.s ? (int)(v.s->n < 100 ? v.s->n : 100) : 0;
    switch (v.flag) {
    case CB_JU_NAME: cb_j_fail(r, "%s is undefined", name); break;
    case CB_JU_ATTR: cb_j_fail(r, "'%s%s' has no attribute %s", type, object, name); break;
    case CB_JU_ELEMENT: cb_j_fail(r, "%s%s has no element %.*s", type, object, n, n ? v.s->s : ""); break;
    case CB_JU_UNSAFE: cb_j_fail(r, "access to attribute %s of '%s' object is unsafe.", name, cb_j_type_name(of)); break;
    default: cb_j_fail(r, "%.*s", n, n ? v.s->s : "undefined value");
    }
    return true;
}

int64_t cb_j_len(cb_jr *r, cb_jv v)
{
    switch (v.type) {
    case CB_J_MISSING:
    case CB_J_UNDEF: return 0;
    case CB_J_STR: return (int64_t)v.s->n_chars;
    case CB_J_LIST:
    case CB_J_TUPLE: return (int64_t)v.list->n;
    case CB_J_DICT:
    case CB_J_VIEW: return (int64_t)v.dict->n;
    case CB_J_RANGE: return v.range->n;
    case CB_J_LOOP: return cb_j_loop_attr(r, v, "length", 6).i;
    }
    cb_j_fail(r, "object of type '%s' has no len()", cb_j_type_name(v));
    return 0;
}

bool cb_j_has_len(cb_jv v)
{
    return v.type <= CB_J_UNDEF || (v.type >= CB_J_STR && v.type <= CB_J_VIEW) || v.type == CB_J_LOOP;
}

bool cb_j_truth(cb_jr *r, cb_jv v)
{
    switch (v.type) {
    case CB_J_NONE: return false;
    case CB_J_BOOL:
    case CB_J_INT: return v.i != 0;
    case CB_J_FLOAT: return v.f != 0;
    }
    return cb_j_has_len(v) ? cb_j_len(r, v) != 0 : true;
}

bool cb_j_hashable(cb_jv v)
{
    if (v.type == CB_J_LIST || v.type == CB_J_DICT || (v.type == CB_J_VIEW && v.flag != CB_JVIEW_VALUES)) return false;
    if (v.type == CB_J_TUPLE)
        for (size_t i = 0; i < v.list->n; i++)
            if (v.list->v[i].type == CB_J_LIST || v.list->v[i].type == CB_J_DICT) return false;
    return true;
}

/* Compares integers and floats exactly. -1, 0, 1, or 2 for NaN. */
static int cmp_num(cb_jv a, cb_jv b)
{
    if (a.type != CB_J_FLOAT && b.type != CB_J_FLOAT) return (a.i > b.i) - (a.i < b.i);
    double x = cb_j_num(a), y = cb_j_num(b);
    if (isnan(x) || isnan(y)) return 2;
    if (x != y || (a.type == CB_J_FLOAT && b.type == CB_J_FLOAT) || fabs(x) >= 0x1p63) return (x > y) - (x < y);
    int64_t i = (int64_t)(a.type == CB_J_FLOAT ? a.f : b.f), k = a.type == CB_J_FLOAT ? b.i : a.i;
    int c = (i > k) - (i < k);
    return a.type == CB_J_FLOAT ? c : -c;
}

static bool eq_dict(cb_jr *r, const cb_jdict *a, const cb_jdict *b)
{
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n && !r->rc; i++) {
        const cb_jv *v = cb_j_dict_find(r, b, a->p[i].k);
        if (!v || !cb_j_eq(r, a->p[i].v, *v)) return false;
    }
    return true;
}

static bool eq_seq(cb_jr *r, const cb_jlist *a, const cb_jlist *b)
{
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n && !r->rc; i++)
        if (!cb_j_eq(r, a->v[i], b->v[i])) return false;
    return true;
}

static bool eq_deep(cb_jr *r, cb_jv a, cb_jv b)
{
    if (a.type != b.type) return false;
    if (a.type == CB_J_RANGE) {
        const cb_jrange *x = a.range, *y = b.range;
        return x->n == y->n && (!x->n || (x->start == y->start && (x->n == 1 || x->step == y->step)));
    }
    if (a.type < CB_J_LIST || a.type > CB_J_DICT) return a.ns == b.ns && a.flag == b.flag;
    if (a.list == b.list) return true;
    if (!cb_j_deeper(r)) return false;
    bool eq = a.type == CB_J_DICT ? eq_dict(r, a.dict, b.dict) : eq_seq(r, a.list, b.list);
    r->depth--;
    return eq;
}

bool cb_j_eq(cb_jr *r, cb_jv a, cb_jv b)
{
    if (!cb_j_pay(r, 1)) return false;
    if (cb_j_is_num(a) && cb_j_is_num(b)) return cmp_num(a, b) == 0;
    if (a.type == CB_J_STR && b.type == CB_J_STR) {
        if (a.s->n != b.s->n) return false;
        cb_j_pay(r, a.s->n / 64);
        return !memcmp(a.s->s, b.s->s, a.s->n);
    }
    if (a.type <= CB_J_UNDEF || b.type <= CB_J_UNDEF) return a.type <= CB_J_UNDEF && b.type <= CB_J_UNDEF;
    if (a.type == CB_J_NONE || b.type == CB_J_NONE) return a.type == b.type;
    return eq_deep(r, a, b);
}

static int cmp_seq(cb_jr *r, cb_jv a, cb_jv b, const char *op)
{
    if (!cb_j_deeper(r)) return 0;
    size_t n = a.list->n < b.list->n ? a.list->n : b.list->n, i = 0;
    while (i < n && !r->rc && cb_j_eq(r, a.list->v[i], b.list->v[i])) i++;
    int c = i < n ? cb_j_cmp(r, a.list->v[i], b.list->v[i], op) : (a.list->n > b.list->n) - (a.list->n < b.list->n);
    r->depth--;
    return c;
}

int cb_j_cmp(cb_jr *r, cb_jv a, cb_jv b, const char *op)
{
    if (!cb_j_pay(r, 1)) return 0;
    if (cb_j_is_num(a) && cb_j_is_num(b)) return cmp_num(a, b);
    if (a.type == CB_J_STR && b.type == CB_J_STR) {
        size_t n = a.s->n < b.s->n ? a.s->n : b.s->n;
        cb_j_pay(r, n / 64);
        int c = n ? memcmp(a.s->s, b.s->s, n) : 0; /* byte order of UTF-8 is code point order */
        return c ? (c > 0) - (c < 0) : (a.s->n > b.s->n) - (a.s->n < b.s->n);
    }
    if (cb_j_is_seq(a) && a.type == b.type) return cmp_seq(r, a, b, op);
    if (!cb_j_refuse_undef(r, a) && !cb_j_refuse_undef(r, b))
        cb_j_fail(r, "'%s' not supported between instances of '%s' and '%s'", op, cb_j_type_name(a), cb_j_type_name(b));
    return 0;
}

bool cb_j_contains(cb_jr *r, cb_jv item, cb_jv in)
{
    if (in.type == CB_J_STR) {
        if (item.type != CB_J_STR) {
            cb_j_fail(r, "'in <string>' requires string as left operand, not %s", cb_j_type_name(item));
            return false;
        }
        return cb_j_pay(r, in.s->n / 4) && (!item.s->n || memmem(in.s->s, in.s->n, item.s->s, item.s->n));
    }
    if (in.type == CB_J_DICT || (in.type == CB_J_VIEW && in.flag == CB_JVIEW_KEYS)) return cb_j_dict_find(r, in.dict, item);
    if (!cb_j_iterable(in)) {
        cb_j_fail(r, "argument of type '%s' is not iterable", cb_j_type_name(in));
        return false;
    }
    cb_jiter it;
    cb_jv v;
    cb_j_iter(r, &it, in);
    while (cb_j_next(r, &it, &v))
        if (cb_j_eq(r, v, item)) return true;
    return false;
}

/* ---- walking ---- */

bool cb_j_iterable(cb_jv v) { return v.type <= CB_J_UNDEF || (v.type >= CB_J_STR && v.type <= CB_J_GEN); }

bool cb_j_iter(cb_jr *r, cb_jiter *it, cb_jv v)
{
    *it = (cb_jiter){.src = v};
    if (cb_j_iterable(v)) return !r->rc;
    cb_j_fail(r, "'%s' object is not iterable", cb_j_type_name(v));
    return false;
}

static cb_jv view_item(cb_jr *r, cb_jv view, size_t i)
{
    const cb_jpair *p = &view.dict->p[i];
    return view.flag == CB_JVIEW_KEYS ? p->k : view.flag == CB_JVIEW_VALUES ? p->v : cb_j_pair(r, p->k, p->v);
}

bool cb_j_next(cb_jr *r, cb_jiter *it, cb_jv *v)
{
    if (!cb_j_pay(r, 1)) return false;
    cb_jv src = it->src;
    size_t i = it->pos;
    switch (src.type) {
    case CB_J_STR: {
        if (i >= src.s->n) return false;
        size_t n = (size_t)cb_utf8_len(src.s->s[i]);
        it->pos += n;
        *v = cb_j_char(r, src.s->s + i, n);
        return !r->rc;
    }
    case CB_J_GEN: *v = cb_j_gen_next(r, src.gen); return !r->rc && v->type != CB_J_MISSING;
    case CB_J_LIST:
    case CB_J_TUPLE:
        if (i >= src.list->n) return false;
        *v = src.list->v[i];
        break;
    case CB_J_DICT:
        if (i >= src.dict->n) return false;
        *v = src.dict->p[i].k;
        break;
    case CB_J_VIEW:
        if (i >= src.dict->n) return false;
        *v = view_item(r, src, i);
        break;
    case CB_J_RANGE:
        if ((int64_t)i >= src.range->n) return false;
        *v = cb_j_int(src.range->start + (int64_t)i * src.range->step);
        break;
    default: return false;
    }
    it->pos++;
    return !r->rc;
}

cb_jvec cb_j_items(cb_jr *r, cb_jv v)
{
    cb_jvec out = {0};
    cb_jiter it;
    cb_jv item;
    if (cb_j_iter(r, &it, v))
        while (cb_j_next(r, &it, &item)) cb_j_push(r, &out, item);
    return out;
}
