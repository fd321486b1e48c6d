#include "text/jinja_ast.h"
#include "text/utf8.h"
#include <math.h>
#include <string.h>

/* Operators, attributes, items and slices with Python's rules, except that integers have 64 bits and overflow is an error. */

/* ---- arithmetic ---- */

static const char *op_text(int op)
{
    static const char *const text[] = {"+", "-", "*", "/", "//", "%", "**"};
    return op >= CB_JT_ADD && op <= CB_JT_POW ? text[op - CB_JT_ADD] : "?";
}

static cb_jv overflow(cb_jr *r) { return cb_j_fail(r, "integer result does not fit in 64 bits"); }

static cb_jv int_power(cb_jr *r, int64_t base, int64_t exp)
{
    int64_t v = 1;
    if (base == 0 || base == 1) return cb_j_int(exp == 0 ? 1 : base);
    if (base == -1) return cb_j_int(exp & 1 ? -1 : 1);
    for (; exp > 0; exp--)
        if (__builtin_mul_overflow(v, base, &v)) return overflow(r); /* at most 64 rounds */
    return cb_j_int(v);
}

static cb_jv int_op(cb_jr *r, int op, int64_t x, int64_t y)
{
    int64_t v;
    switch (op) {
    case CB_JT_ADD: return __builtin_add_overflow(x, y, &v) ? overflow(r) : cb_j_int(v);
    case CB_JT_SUB: return __builtin_sub_overflow(x, y, &v) ? overflow(r) : cb_j_int(v);
    case CB_JT_MUL: return __builtin_mul_overflow(x, y, &v) ? overflow(r) : cb_j_int(v);
    case CB_JT_POW: return int_power(r, x, y);
    }
    if (!y) return cb_j_fail(r, op == CB_JT_DIV ? "division by zero" : "integer division or modulo by zero");
    if (op == CB_JT_DIV) return cb_j_float((double)x / (double)y);
    if (y == -1) return op == CB_JT_MOD ? cb_j_int(0) : x == INT64_MIN ? overflow(r) : cb_j_int(-x);
    int64_t q = x / y, m = x % y;
    bool adjust = m && (m < 0) != (y < 0); /* Python rounds down, C toward zero */
    return cb_j_int(op == CB_JT_MOD ? m + (adjust ? y : 0) : q - adjust);
}

static cb_jv float_op(cb_jr *r, int op, double x, double y)
{
    double m, q;
    switch (op) {
    case CB_JT_ADD: return cb_j_float(x + y);
    case CB_JT_SUB: return cb_j_float(x - y);
    case CB_JT_MUL: return cb_j_float(x * y);
    case CB_JT_POW:
        if (x == 0 && y < 0) return cb_j_fail(r, "0.0 cannot be raised to a negative power");
        if (x < 0 && y != floor(y)) return cb_j_fail(r, "complex numbers are not supported");
        q = pow(x, y);
        if (isinf(q) && isfinite(x) && isfinite(y)) return cb_j_fail(r, "numerical result out of range");
        return cb_j_float(q);
    }
    if (y == 0)
        return cb_j_fail(r, op == CB_JT_DIV   ? "float division by zero"
                            : op == CB_JT_MOD ? "float modulo"
                                              : "float floor division by zero");
    if (op == CB_JT_DIV) return cb_j_float(x / y);
    m = fmod(x, y);
    q = (x - m) / y;
    if (m != 0) {
        if ((y < 0) != (m < 0)) m += y, q -= 1;
    } else m = copysign(0, y);
    if (op == CB_JT_MOD) return cb_j_float(m);
    double f = q != 0 ? floor(q) : copysign(0, x / y);
    return cb_j_float(q - f > 0.5 ? f + 1 : f);
}

static cb_jv repeat(cb_jr *r, cb_jv seq, int64_t times)
{
    if (times < 0) times = 0;
    if (seq.type == CB_J_STR) {
        if (seq.s->n <= 1 && !cb_j_pay(r, seq.s->n ? (uint64_t)times / 4 : 0)) return cb_j_undef();
        size_t mark = cb_j_begin(r);
        for (int64_t i = 0; seq.s->n && i < times && cb_j_pay(r, 1); i++) cb_j_out(r, seq.s->s, seq.s->n);
        cb_jv v = cb_j_end(r, mark);
        v.flag = v.type == CB_J_STR ? seq.flag : v.flag;
        return v;
    }
    cb_jvec out = {0};
    for (int64_t i = 0; seq.list->n && i < times && cb_j_pay(r, 1); i++)
        for (size_t k = 0; k < seq.list->n && cb_j_pay(r, 1); k++) cb_j_push(r, &out, seq.list->v[k]);
    return cb_j_list(r, seq.type, out.v, out.n);
}

static cb_jv append(cb_jr *r, cb_jv a, cb_jv b)
{
    size_t n = a.list->n + b.list->n;
    cb_jv *v = cb_j_get(r, n, sizeof *v);
    if (!v || !cb_j_pay(r, n / 4)) return cb_j_undef();
    if (a.list->n) memcpy(v, a.list->v, a.list->n * sizeof *v);
    if (b.list->n) memcpy(v + a.list->n, b.list->v, b.list->n * sizeof *v);
    return cb_j_list(r, a.type, v, n);
}

static cb_jv no_operator(cb_jr *r, int op, cb_jv a, cb_jv b)
{
    if (op == CB_JT_ADD && a.type == CB_J_STR)
        return cb_j_fail(r, "can only concatenate str (not \"%s\") to str", cb_j_type_name(b));
    if (op == CB_JT_ADD && cb_j_is_seq(a))
        return cb_j_fail(r, "can only concatenate %s (not \"%s\") to %s", cb_j_type_name(a), cb_j_type_name(b), cb_j_type_name(a));
    return cb_j_fail(r, "unsupported operand type(s) for %s: '%s' and '%s'", op_text(op), cb_j_type_name(a), cb_j_type_name(b));
}

cb_jv cb_j_binary(cb_jr *r, int op, cb_jv a, cb_jv b)
{
    if (r->rc) return cb_j_undef();
    if (op == CB_JT_MOD && a.type == CB_J_STR) return cb_j_percent(r, a, b);
    if (cb_j_refuse_undef(r, a) || cb_j_refuse_undef(r, b)) return cb_j_undef();
    if (cb_j_is_intlike(a) && cb_j_is_intlike(b) && !(op == CB_JT_POW && b.i < 0)) return int_op(r, op, a.i, b.i);
    if (cb_j_is_num(a) && cb_j_is_num(b)) return float_op(r, op, cb_j_num(a), cb_j_num(b));
    if (op == CB_JT_ADD && a.type == CB_J_STR && b.type == CB_J_STR) return cb_j_concat(r, a, b);
    if (op == CB_JT_ADD && cb_j_is_seq(a) && a.type == b.type) return append(r, a, b);
    if (op == CB_JT_MUL && (a.type == CB_J_STR || cb_j_is_seq(a)) && cb_j_is_intlike(b)) return repeat(r, a, b.i);
    if (op == CB_JT_MUL && (b.type == CB_J_STR || cb_j_is_seq(b)) && cb_j_is_intlike(a)) return repeat(r, b, a.i);
    return no_operator(r, op, a, b);
}

cb_jv cb_j_negate(cb_jr *r, cb_jv v)
{
    if (v.type == CB_J_FLOAT) return cb_j_float(-v.f);
    if (cb_j_is_intlike(v)) return v.i == INT64_MIN ? overflow(r) : cb_j_int(-v.i);
    if (cb_j_refuse_undef(r, v)) return cb_j_undef();
    return cb_j_fail(r, "bad operand type for unary -: '%s'", cb_j_type_name(v));
}

/* ---- attributes and items ---- */

static cb_jv undefined_attr(cb_jv obj, cb_jv name, int flag)
{
    return (cb_jv){.type = CB_J_UNDEF, .flag = (uint8_t)flag, .of = (uint16_t)(obj.type | obj.flag << 8), .s = name.s};
}

/* Python's getattr on our objects: methods and properties, not items. MISSING when there is none. */
static cb_jv attribute(cb_jr *r, cb_jv obj, cb_jv name)
{
    const char *s = name.s->s;
    size_t n = name.s->n;
    cb_jv *v;
    if (n > 4 && s[0] == '_' && s[1] == '_' && s[n - 1] == '_' && s[n - 2] == '_')
        return undefined_attr(obj, name, CB_JU_UNSAFE);
    if (obj.type == CB_J_NS) return (v = cb_j_dict_find_s(r, obj.ns, s, n)) ? *v : CB_J(CB_J_MISSING);
    if (obj.type == CB_J_LOOP) {
        cb_jv got = cb_j_loop_attr(r, obj, s, n);
        if (got.type != CB_J_MISSING || r->rc) return got;
    }
    if (obj.type == CB_J_MACRO && n == 4 && !memcmp(s, "name", 4)) {
        const cb_jnode *def = obj.macro->def;
        return def->kind == CB_JN_MACRO ? (cb_jv){.type = CB_J_STR, .s = r->t->names[def->name]} : cb_j_none();
    }
    if (obj.type == CB_J_CYCLER && n == 7 && !memcmp(s, "current", 7)) return obj.cycler->items[obj.cycler->pos];
    const cb_jfunc *m = cb_j_find_method(obj, s, n);
    if (!m) return CB_J(CB_J_MISSING);
    if (!m->fn && !m->raw) return undefined_attr(obj, name, CB_JU_UNSAFE); /* it would change the object */
    cb_jbound *b = cb_j_get(r, 1, sizeof *b);
    if (!b) return cb_j_undef();
    *b = (cb_jbound){obj, m};
    return (cb_jv){.type = CB_J_METHOD, .bound = b};
}

cb_jv cb_j_getattr(cb_jr *r, cb_jv obj, cb_jv name)
{
    if (r->rc || cb_j_refuse_undef(r, obj)) return cb_j_undef();
    cb_jv v = attribute(r, obj, name);
    if (v.type != CB_J_MISSING) return v;
    if (obj.type == CB_J_DICT) {
        cb_jv *item = cb_j_dict_find_s(r, obj.dict, name.s->s, name.s->n);
        if (item) return *item;
    }
    return undefined_attr(obj, name, CB_JU_ATTR);
}

static cb_jv str_item(cb_jr *r, const cb_jstr *s, int64_t i)
{
    if (s->n == s->n_chars) return cb_j_char(r, s->s + i, 1);
    size_t b = 0;
    cb_j_pay(r, (uint64_t)i / 16);
    while (i--) b += (size_t)cb_utf8_len(s->s[b]);
    return cb_j_char(r, s->s + b, (size_t)cb_utf8_len(s->s[b]));
}

static cb_jv seq_item(cb_jr *r, cb_jv obj, int64_t i)
{
    int64_t n = cb_j_len(r, obj);
    if (i < 0) i += n;
    if (i < 0 || i >= n) return CB_J(CB_J_MISSING);
    if (obj.type == CB_J_STR) return str_item(r, obj.s, i);
    if (obj.type == CB_J_RANGE) return cb_j_int(obj.range->start + i * obj.range->step);
    return obj.list->v[i];
}

cb_jv cb_j_getitem(cb_jr *r, cb_jv obj, cb_jv key)
{
    if (r->rc || cb_j_refuse_undef(r, obj)) return cb_j_undef();
    cb_jv v = CB_J(CB_J_MISSING);
    if (obj.type == CB_J_DICT) {
        cb_jv *item = cb_j_hashable(key) ? cb_j_dict_find(r, obj.dict, key) : NULL;
        if (item) return *item;
    } else if ((obj.type == CB_J_STR || cb_j_is_seq(obj) || obj.type == CB_J_RANGE) && cb_j_is_intlike(key)) {
        v = seq_item(r, obj, key.i);
    }
    if (v.type != CB_J_MISSING || r->rc) return v;
    if (key.type == CB_J_STR) {
        v = attribute(r, obj, key);
        return v.type != CB_J_MISSING ? v : undefined_attr(obj, key, CB_JU_ATTR);
    }
    char show[64];
    cb_jv text = cb_j_str_c(r, cb_j_show(r, key, show));
    return undefined_attr(obj, text, CB_JU_ELEMENT);
}

/* ---- slices ---- */

static int64_t clamp(int64_t i, int64_t n, bool down)
{
    if (i < 0) {
        i += n;
        return i < 0 ? (down ? -1 : 0) : i;
    }
    return i >= n ? (down ? n - 1 : n) : i;
}

void cb_j_slice_bounds(int64_t n, int64_t step, const int64_t *start, const int64_t *stop, int64_t *lo, int64_t *hi)
{
    bool down = step < 0;
    *lo = start ? clamp(*start, n, down) : down ? n - 1 : 0;
    *hi = stop ? clamp(*stop, n, down) : down ? -1 : n;
}

/* Every step-th character from lo on; count of them. */
static cb_jv slice_str(cb_jr *r, const cb_jstr *s, int64_t lo, int64_t step, int64_t count)
{
    if (!count) return cb_j_str(r, "", 0);
    if (step == 1) {
        size_t from = 0, to;
        if (s->n == s->n_chars) return cb_j_str_chars(r, s->s + lo, (size_t)count, (size_t)count);
        cb_j_pay(r, s->n / 16);
        for (int64_t i = 0; i < lo; i++) from += (size_t)cb_utf8_len(s->s[from]);
        to = from;
        for (int64_t i = 0; i < count; i++) to += (size_t)cb_utf8_len(s->s[to]);
        return cb_j_str_chars(r, s->s + from, to - from, (size_t)count);
    }
    uint32_t *at = cb_j_get(r, s->n_chars, sizeof *at); /* byte offset of every character */
    if (!at || !cb_j_pay(r, s->n / 8)) return cb_j_undef();
    for (size_t i = 0, b = 0; i < s->n_chars; b += (size_t)cb_utf8_len(s->s[b])) at[i++] = (uint32_t)b;
    size_t mark = cb_j_begin(r);
    for (int64_t i = 0; i < count && cb_j_pay(r, 1); i++) {
        const char *c = s->s + at[lo + i * step];
        cb_j_out(r, c, (size_t)cb_utf8_len(*c));
    }
    return cb_j_end(r, mark);
}

static cb_jv slice_list(cb_jr *r, cb_jv obj, int64_t lo, int64_t step, int64_t count)
{
    if (step == 1 || !count) return cb_j_list(r, obj.type, obj.list->v + (count ? lo : 0), (size_t)count); /* shares the items */
    cb_jv *v = cb_j_get(r, (size_t)count, sizeof *v);
    if (!v || !cb_j_pay(r, (uint64_t)count / 4)) return cb_j_undef();
    for (int64_t i = 0; i < count; i++) v[i] = obj.list->v[lo + i * step];
    return cb_j_list(r, obj.type, v, (size_t)count);
}

static bool slice_arg(cb_jv v, int64_t *i, const int64_t **p)
{
    *p = NULL;
    if (v.type == CB_J_NONE) return true;
    if (!cb_j_is_intlike(v)) return false;
    /* Far outside is as good as very far outside, and cannot overflow. */
    *i = v.i > INT32_MAX ? INT32_MAX : v.i < -INT32_MAX ? -INT32_MAX : v.i;
    *p = i;
    return true;
}

cb_jv cb_j_slice(cb_jr *r, cb_jv obj, cb_jv start, cb_jv stop, cb_jv step)
{
    if (r->rc || cb_j_refuse_undef(r, obj)) return cb_j_undef();
    bool sliceable = obj.type == CB_J_STR || cb_j_is_seq(obj) || obj.type == CB_J_RANGE;
    int64_t a, b, by = 1, lo, hi;
    const int64_t *pa, *pb, *pc;
    if (!sliceable) return cb_j_fail(r, "'%s' object cannot be sliced", cb_j_type_name(obj));
    if (!slice_arg(start, &a, &pa) || !slice_arg(stop, &b, &pb) || !slice_arg(step, &by, &pc))
        return cb_j_fail(r, "slice indices must be integers or None");
    if (!by) return cb_j_fail(r, "slice step cannot be zero");
    cb_j_slice_bounds(cb_j_len(r, obj), by, pa, pb, &lo, &hi);
    int64_t count = by > 0 ? (hi > lo ? (hi - lo - 1) / by + 1 : 0) : (lo > hi ? (lo - hi - 1) / -by + 1 : 0);
    if (obj.type == CB_J_STR) return slice_str(r, obj.s, lo, by, count);
    if (obj.type != CB_J_RANGE) return slice_list(r, obj, lo, by, count);
    int64_t s0 = obj.range->start, d = obj.range->step;
    return cb_j_range(r, s0 + lo * d, s0 + hi * d, d * by);
}
