/* jinja_value.h: values of the template language and the operations Python defines on them. Inside src/text/jinja*.c only.
 *
 * A cb_jv is 16 bytes and copied freely; what it points to is in the rendering's arena, in the template (constants) or in the
 * JSON input (text of strings), and does not change, except namespaces, loops, generators, cyclers and joiners.
 * Operations report failure in cb_jr.rc (sticky) and then return an undefined value: check r->rc after a call whose result
 * steers what happens next. */
#ifndef CB_TEXT_JINJA_VALUE_H
#define CB_TEXT_JINJA_VALUE_H
#include "base/mem.h"
#include "text/jinja.h"

enum {
    CB_J_MISSING = 0, /* no value at all: an unset variable or argument */
    CB_J_UNDEF,
    CB_J_NONE,
    CB_J_BOOL,
    CB_J_INT,
    CB_J_FLOAT,
    CB_J_STR,
    CB_J_LIST,
    CB_J_TUPLE,
    CB_J_DICT,
    CB_J_RANGE,
    CB_J_VIEW, /* dict.keys(), .values(), .items(): flag is CB_JVIEW_... */
    CB_J_GEN,  /* what map, select, ... give: can be walked once */
    CB_J_NS,
    CB_J_LOOP,
    CB_J_MACRO,
    CB_J_FUNC,   /* a global function, by pointer into its table */
    CB_J_METHOD, /* a method bound to its object */
    CB_J_CYCLER,
    CB_J_JOINER
};
enum { CB_JVIEW_KEYS, CB_JVIEW_VALUES, CB_JVIEW_ITEMS };
/* Kinds of undefined (flag): they differ in the message only. */
enum { CB_JU_NAME, CB_JU_ATTR, CB_JU_ELEMENT, CB_JU_HINT, CB_JU_UNSAFE };

typedef struct cb_jr cb_jr;
typedef struct cb_jnode cb_jnode;
typedef struct cb_jscope cb_jscope;

/* Bytes that a string may grow into without a copy: `a ~ b` appends in place when a is the newest user. */
typedef struct cb_jgrow {
    char *data;
    size_t used, cap;
} cb_jgrow;

typedef struct cb_jstr {
    const char *s;  /* valid UTF-8, no NUL after it */
    size_t n;       /* bytes */
    size_t n_chars; /* code points; equal to n for ASCII */
    cb_jgrow *grow; /* or NULL */
} cb_jstr;

typedef struct cb_jv {
    uint8_t type;
    uint8_t flag; /* strings: 1 when marked safe; undefined, views: see above */
    uint16_t of;  /* undefined attribute: the type that lacks it, and its flag << 8 */
    union {
        int64_t i; /* also booleans */
        double f;
        const cb_jstr *s;
        const struct cb_jlist *list;
        const struct cb_jdict *dict;
        const struct cb_jrange *range;
        const struct cb_jfunc *func;
        const struct cb_jbound *bound;
        const struct cb_jmacro *macro;
        struct cb_jdict *ns;
        struct cb_jgen *gen;
        struct cb_jloop *loop;
        struct cb_jcycler *cycler;
    };
} cb_jv;

typedef struct cb_jlist {
    const cb_jv *v;
    size_t n;
} cb_jlist;
typedef struct cb_jpair {
    cb_jv k, v;
} cb_jpair;
typedef struct cb_jdict { /* insertion order */
    cb_jpair *p;
    size_t n, cap;
    uint32_t *slots; /* hash of string keys to index + 1, once there are more than a few; NULL before */
    size_t n_slots;
} cb_jdict;
typedef struct cb_jrange {
    int64_t start, step, n;
    int64_t stop; /* for repr only */
} cb_jrange;
typedef struct cb_jcycler { /* also joiners: items[0] is the separator */
    const cb_jv *items;
    size_t n, pos;
} cb_jcycler;

/* Arguments of one call. kw names are strings. */
typedef struct cb_jcall {
    const cb_jv *pos;
    int n_pos;
    const cb_jpair *kw;
    int n_kw;
} cb_jcall;

/* A filter, test, method or function. `params` names the parameters after the first value, comma-separated ("/name": by
 * position only); the call is bound to them and absent ones are CB_J_MISSING. NULL params: `raw` gets the call as it is. */
enum { CB_JMAX_PARAMS = 6 };
typedef struct cb_jfunc {
    const char *name;
    cb_jv (*fn)(cb_jr *r, cb_jv self, const cb_jv *args);
    cb_jv (*raw)(cb_jr *r, cb_jv self, const cb_jcall *call);
    const char *params;
    int required;
} cb_jfunc;
typedef struct cb_jbound {
    cb_jv self;
    const cb_jfunc *fn;
} cb_jbound;
typedef struct cb_jmacro {
    const cb_jnode *def;
    cb_jscope *scope;
} cb_jmacro;

/* A walk over anything iterable. */
typedef struct cb_jiter {
    cb_jv src;
    size_t pos;
} cb_jiter;
enum { CB_JGEN_MAP, CB_JGEN_SELECT, CB_JGEN_REVERSED, CB_JGEN_ITEMS };
typedef struct cb_jgen {
    int kind;
    int depth; /* generators stacked below */
    bool started, done, negate, by_attr;
    cb_jiter in;
    cb_jv src;
    cb_jcall call; /* arguments of the filter that made it */
} cb_jgen;

/* One rendering. */
struct cb_jr {
    const cb_jinja *t;
    cb_arena arena;
    cb_buf out; /* the text so far; nested captures (macros, set blocks) stand at its end for a while */
    cb_jinja_limits lim;
    uint64_t steps;
    int depth;
    int rc;
    cb_err *err;
    const cb_jnode *at; /* being evaluated: where errors are */
    cb_jscope *scope;   /* NULL: top level */
    cb_jv *globals;     /* by name id */
    int jump;           /* {% break %} or {% continue %} under way */
    const struct tm *now;
    const cb_jstr *ascii; /* 128 one-character strings, made on first use */
};

/* ---- failure and memory ---- */
enum { CB_JMAX_DEPTH = 1000, CB_JMAX_RANGE = 100000 };
/* Sets rc once; the text gets template, line and column in front. Returns undefined. */
cb_jv cb_j_fail(cb_jr *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
cb_jv cb_j_fail_code(cb_jr *r, int code, const char *text, size_t n); /* no position: raise_exception */
/* Pays n steps; false (rc set) when they are used up or rc was set already. */
bool cb_j_pay(cb_jr *r, uint64_t n);
/* Enters one level of recursion; pair with r->depth-- when true. */
bool cb_j_deeper(cb_jr *r);
void *cb_j_get(cb_jr *r, size_t count, size_t size); /* zeroed arena memory; NULL sets rc */
/* Captures what is put into r->out between the two calls as a string. */
static inline size_t cb_j_begin(cb_jr *r) { return r->out.n; }
cb_jv cb_j_end(cb_jr *r, size_t mark);
void cb_j_out(cb_jr *r, const char *s, size_t n);

/* ---- making ---- */
#define CB_J(t) ((cb_jv){.type = (t)})
static inline cb_jv cb_j_none(void) { return CB_J(CB_J_NONE); }
static inline cb_jv cb_j_undef(void) { return CB_J(CB_J_UNDEF); }
static inline cb_jv cb_j_bool(bool b) { return (cb_jv){.type = CB_J_BOOL, .i = b}; }
static inline cb_jv cb_j_int(int64_t i) { return (cb_jv){.type = CB_J_INT, .i = i}; }
static inline cb_jv cb_j_float(double f) { return (cb_jv){.type = CB_J_FLOAT, .f = f}; }
cb_jv cb_j_str(cb_jr *r, const char *s, size_t n);                   /* borrows s */
cb_jv cb_j_str_chars(cb_jr *r, const char *s, size_t n, size_t n_chars); /* the same, count known */
cb_jv cb_j_str_copy(cb_jr *r, const char *s, size_t n);
cb_jv cb_j_str_c(cb_jr *r, const char *literal);
cb_jv cb_j_char(cb_jr *r, const char *s, size_t n); /* one character */
cb_jv cb_j_hint(cb_jr *r, const char *literal);     /* undefined with this message */
cb_jv cb_j_list(cb_jr *r, int type, const cb_jv *v, size_t n); /* keeps v */
cb_jv cb_j_pair(cb_jr *r, cb_jv a, cb_jv b);                   /* a tuple */
cb_jv cb_j_range(cb_jr *r, int64_t start, int64_t stop, int64_t step);
cb_jv cb_j_from_json(cb_jr *r, const json_t *j);
size_t cb_j_count_chars(const char *s, size_t n);

/* A list that grows. */
typedef struct cb_jvec {
    cb_jv *v;
    size_t n, cap;
} cb_jvec;
void cb_j_push(cb_jr *r, cb_jvec *vec, cb_jv v);

cb_jdict *cb_j_dict_new(cb_jr *r, size_t cap);
/* NULL when absent, or (rc set) when the key cannot be hashed. */
cb_jv *cb_j_dict_find(cb_jr *r, const cb_jdict *d, cb_jv key);
cb_jv *cb_j_dict_find_s(cb_jr *r, const cb_jdict *d, const char *s, size_t n);
void cb_j_dict_put(cb_jr *r, cb_jdict *d, cb_jv key, cb_jv v);
cb_jv cb_j_dict(const cb_jdict *d);

/* ---- asking ---- */
static inline bool cb_j_is_str(cb_jv v) { return v.type == CB_J_STR; }
static inline bool cb_j_is_intlike(cb_jv v) { return v.type == CB_J_INT || v.type == CB_J_BOOL; }
static inline bool cb_j_is_num(cb_jv v) { return cb_j_is_intlike(v) || v.type == CB_J_FLOAT; }
static inline bool cb_j_is_seq(cb_jv v) { return v.type == CB_J_LIST || v.type == CB_J_TUPLE; }
static inline double cb_j_num(cb_jv v) { return v.type == CB_J_FLOAT ? v.f : (double)v.i; }
bool cb_j_str_is(cb_jv v, const char *literal);
const char *cb_j_type_name(cb_jv v);     /* as Python: "str", "NoneType", ... */
bool cb_j_truth(cb_jr *r, cb_jv v);
bool cb_j_has_len(cb_jv v);
int64_t cb_j_len(cb_jr *r, cb_jv v); /* fails when there is none */
bool cb_j_hashable(cb_jv v);
bool cb_j_eq(cb_jr *r, cb_jv a, cb_jv b);
/* -1, 0, 1 (2: not ordered, NaN); `op` ("<") stands in the message when the types have no order. */
int cb_j_cmp(cb_jr *r, cb_jv a, cb_jv b, const char *op);
bool cb_j_contains(cb_jr *r, cb_jv item, cb_jv in);
/* Fails with the message of an undefined value; for others does nothing. True when v was undefined. */
bool cb_j_refuse_undef(cb_jr *r, cb_jv v);

/* ---- walking ---- */
/* False, rc set: v cannot be walked. */
bool cb_j_iter(cb_jr *r, cb_jiter *it, cb_jv v);
/* True and *v: the next item. False: the end, or rc is set. */
bool cb_j_next(cb_jr *r, cb_jiter *it, cb_jv *v);
bool cb_j_iterable(cb_jv v);
/* All items. */
cb_jvec cb_j_items(cb_jr *r, cb_jv v);

/* ---- text (jinja_text.c) ---- */
void cb_j_put_str(cb_jr *r, cb_jv v);  /* str(v) to r->out */
void cb_j_put_repr(cb_jr *r, cb_jv v); /* repr(v) to r->out */
void cb_j_put_float(cb_jr *r, double f);
cb_jv cb_j_to_str(cb_jr *r, cb_jv v); /* v itself when it is a string */
/* C text of repr(v) for messages, cut to a few dozen bytes. */
const char *cb_j_show(cb_jr *r, cb_jv v, char buf[64]);
cb_jv cb_j_escape(cb_jr *r, cb_jv v);
cb_jv cb_j_concat(cb_jr *r, cb_jv a, cb_jv b); /* two strings, safe marks obeyed */

/* ---- operators (jinja_ops.c) ---- */
cb_jv cb_j_binary(cb_jr *r, int op, cb_jv a, cb_jv b); /* op: CB_JT_ADD ... */
cb_jv cb_j_negate(cb_jr *r, cb_jv v);
cb_jv cb_j_getattr(cb_jr *r, cb_jv obj, cb_jv name);
cb_jv cb_j_getitem(cb_jr *r, cb_jv obj, cb_jv key);
cb_jv cb_j_slice(cb_jr *r, cb_jv obj, cb_jv start, cb_jv stop, cb_jv step);
/* A bound for a slice or index argument: clamps start and stop to n items, as Python's slice.indices. */
void cb_j_slice_bounds(int64_t n, int64_t step, const int64_t *start, const int64_t *stop, int64_t *lo, int64_t *hi);

/* ---- formats (jinja_format.c) ---- */
cb_jv cb_j_percent(cb_jr *r, cb_jv fmt, cb_jv args);
cb_jv cb_j_format(cb_jr *r, cb_jv self, const cb_jcall *call); /* str.format */
void cb_j_put_fixed(cb_jr *r, double f, char conv, int precision, bool alt); /* e f g, as C but with Python's inf and nan */

/* ---- tables ---- */
const cb_jfunc *cb_j_find_filter(const char *s, size_t n);
const cb_jfunc *cb_j_find_test(const char *s, size_t n);
const cb_jfunc *cb_j_find_method(cb_jv obj, const char *s, size_t n); /* also properties of no kind: NULL */
const cb_jfunc *cb_j_find_str_method(const char *s, size_t n);
const cb_jfunc *cb_j_global(size_t i); /* NULL past the end */
/* Binds the call to fn's parameters and runs it. */
cb_jv cb_j_apply(cb_jr *r, const cb_jfunc *fn, cb_jv self, const cb_jcall *call);
/* Calls any callable value. */
cb_jv cb_j_call(cb_jr *r, cb_jv fn, const cb_jcall *call);
cb_jv cb_j_call_macro(cb_jr *r, const cb_jmacro *m, const cb_jcall *call); /* jinja_eval.c */
cb_jv cb_j_loop_attr(cb_jr *r, cb_jv loop, const char *s, size_t n);       /* jinja_loop.c; MISSING when there is none */
cb_jv cb_j_gen_next(cb_jr *r, cb_jgen *g);                                 /* jinja_filter_seq.c; MISSING at the end */

/* Argument readers: *out stays when v is missing. False (rc set) on a wrong type. */
bool cb_j_arg_int(cb_jr *r, cb_jv v, const char *what, int64_t *out);
bool cb_j_arg_str(cb_jr *r, cb_jv v, const char *what, const cb_jstr **out);
#endif
