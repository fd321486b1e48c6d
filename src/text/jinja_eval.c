#include "text/jinja_eval.h"
#include "text/jinja_filter.h"
#include <string.h>

/* Walks the tree. Every level of recursion goes through cb_j_eval or exec, which count it; every node costs a step. r->at is
 * set to a node again before its operation, so that errors name the operator and not its last operand. */

enum { JUMP_NONE, JUMP_BREAK, JUMP_CONTINUE };

/* ---- variables ---- */

cb_jscope *cb_j_scope(cb_jr *r, cb_jscope *up)
{
    cb_jscope *s = cb_j_get(r, 1, sizeof *s);
    if (s) s->up = up;
    return s;
}

void cb_j_set(cb_jr *r, uint32_t name, cb_jv v)
{
    cb_jscope *s = r->scope;
    if (r->rc) return;
    if (!s) {
        r->globals[name] = v;
        return;
    }
    for (uint32_t i = 0; i < s->n; i++)
        if (s->vars[i].name == name) {
            s->vars[i].v = v;
            return;
        }
    if (s->n == s->cap) {
        uint32_t cap = s->cap ? s->cap * 2 : 4;
        cb_jvar *vars = cb_j_get(r, cap, sizeof *vars);
        if (!vars) return;
        if (s->n) memcpy(vars, s->vars, s->n * sizeof *vars);
        s->vars = vars;
        s->cap = cap;
    }
    s->vars[s->n++] = (cb_jvar){name, v};
}

static cb_jv lookup(cb_jr *r, uint32_t name)
{
    for (const cb_jscope *s = r->scope; s; s = s->up)
        for (uint32_t i = 0; i < s->n; i++)
            if (s->vars[i].name == name) return s->vars[i].v;
    cb_jv v = r->globals[name];
    if (v.type != CB_J_MISSING) return v;
    return (cb_jv){.type = CB_J_UNDEF, .flag = CB_JU_NAME, .s = r->t->names[name]};
}

static void assign_attr(cb_jr *r, const cb_jnode *target, cb_jv v)
{
    cb_jv ns = lookup(r, target->name);
    r->at = target;
    if (ns.type != CB_J_NS) cb_j_fail(r, "cannot assign attribute on non-namespace object");
    else if (*target->value.s->s == '_') cb_j_fail(r, "names of a namespace cannot start with an underscore");
    else cb_j_dict_put(r, ns.ns, target->value, v);
}

void cb_j_assign(cb_jr *r, const cb_jnode *target, cb_jv v)
{
    if (r->rc) return;
    if (target->kind == CB_JN_NAME) return cb_j_set(r, target->name, v);
    if (target->kind == CB_JN_NSREF) return assign_attr(r, target, v);
    cb_jiter it;
    cb_jv item;
    size_t n = 0;
    r->at = target;
    if (cb_j_refuse_undef(r, v) || !cb_j_iter(r, &it, v) || !cb_j_deeper(r)) return;
    for (const cb_jnode *t = target->list; t; t = t->next, n++) {
        if (!cb_j_next(r, &it, &item)) {
            cb_j_fail(r, "not enough values to unpack (got %zu)", n);
            break;
        }
        cb_j_assign(r, t, item);
    }
    if (!r->rc && cb_j_next(r, &it, &item)) cb_j_fail(r, "too many values to unpack (expected %zu)", n);
    r->depth--;
}

/* ---- calls ---- */

enum { ARGS_INLINE = 6 };
typedef struct args {
    cb_jcall call;
    cb_jv pos[ARGS_INLINE];
    cb_jpair kw[ARGS_INLINE];
    cb_jvec more_pos, more_kw; /* when there are more: keys and values alternate in more_kw */
} args;

static void add_pos(cb_jr *r, args *a, cb_jv v)
{
    if (a->call.n_pos < ARGS_INLINE) {
        a->pos[a->call.n_pos++] = v;
        a->call.pos = a->pos;
        return;
    }
    if (!a->more_pos.n)
        for (int i = 0; i < ARGS_INLINE; i++) cb_j_push(r, &a->more_pos, a->pos[i]);
    cb_j_push(r, &a->more_pos, v);
    a->call.pos = a->more_pos.v;
    a->call.n_pos = (int)a->more_pos.n;
}

static void add_kw(cb_jr *r, args *a, cb_jv k, cb_jv v)
{
    if (k.type != CB_J_STR) {
        cb_j_fail(r, "keywords must be strings");
        return;
    }
    for (int i = 0; i < a->call.n_kw; i++)
        if (cb_j_eq(r, a->call.kw[i].k, k))
            cb_j_fail(r, "got multiple values for keyword argument '%.*s'", (int)(k.s->n < 40 ? k.s->n : 40), k.s->s);
    if (r->rc) return;
    if (a->call.n_kw < ARGS_INLINE) {
        a->kw[a->call.n_kw++] = (cb_jpair){k, v};
        a->call.kw = a->kw;
        return;
    }
    if (!a->more_kw.n)
        for (int i = 0; i < ARGS_INLINE; i++) cb_j_push(r, &a->more_kw, a->kw[i].k), cb_j_push(r, &a->more_kw, a->kw[i].v);
    cb_j_push(r, &a->more_kw, k);
    cb_j_push(r, &a->more_kw, v);
    _Static_assert(sizeof(cb_jpair) == 2 * sizeof(cb_jv), "a pair is two values");
    a->call.kw = (const cb_jpair *)a->more_kw.v;
    a->call.n_kw = (int)(a->more_kw.n / 2);
}

static bool eval_args(cb_jr *r, const cb_jnode *n, args *a)
{
    a->call = (cb_jcall){0};
    a->more_pos = a->more_kw = (cb_jvec){0};
    for (const cb_jnode *e = n->args; e && !r->rc; e = e->next) add_pos(r, a, cb_j_eval(r, e));
    if (n->dyn_args) {
        cb_jvec v = cb_j_items(r, cb_j_eval(r, n->dyn_args));
        for (size_t i = 0; i < v.n && !r->rc; i++) add_pos(r, a, v.v[i]);
    }
    for (const cb_jnode *e = n->kwargs; e && !r->rc; e = e->next) add_kw(r, a, e->value, cb_j_eval(r, e->a));
    if (n->dyn_kwargs && !r->rc) {
        cb_jv d = cb_j_eval(r, n->dyn_kwargs);
        if (d.type != CB_J_DICT) cb_j_fail(r, "argument after ** must be a mapping, not %s", cb_j_type_name(d));
        for (size_t i = 0; !r->rc && i < d.dict->n; i++) add_kw(r, a, d.dict->p[i].k, d.dict->p[i].v);
    }
    r->at = n;
    return !r->rc;
}

/* `caller`: the macro of a call block, or MISSING. */
static cb_jv eval_call(cb_jr *r, const cb_jnode *n, cb_jv caller)
{
    const cb_jfunc *m = NULL;
    cb_jv self = cb_j_undef(), fn = self;
    args a;
    if (n->a->kind == CB_JN_ATTR) { /* a method: called without making the bound value */
        const cb_jstr *name = n->a->value.s;
        self = cb_j_eval(r, n->a->a);
        r->at = n->a;
        m = self.type > CB_J_UNDEF ? cb_j_find_method(self, name->s, name->n) : NULL;
        if (!m || (!m->fn && !m->raw)) {
            m = NULL;
            fn = cb_j_getattr(r, self, n->a->value);
        }
    } else fn = cb_j_eval(r, n->a);
    if (r->rc || !eval_args(r, n, &a)) return cb_j_undef();
    if (caller.type != CB_J_MISSING) add_kw(r, &a, cb_j_str_c(r, "caller"), caller);
    return m ? cb_j_apply(r, m, self, &a.call) : cb_j_call(r, fn, &a.call);
}

static cb_jv eval_filter(cb_jr *r, const cb_jnode *n, cb_jv input)
{
    args a;
    cb_jv v = !n->a ? input : n->a->kind == CB_JN_FILTER ? CB_J(CB_J_MISSING) : cb_j_eval(r, n->a);
    if (n->a && n->a->kind == CB_JN_FILTER) {
        if (!cb_j_deeper(r)) return cb_j_undef();
        v = eval_filter(r, n->a, input);
        r->depth--;
    }
    if (r->rc || !eval_args(r, n, &a)) return cb_j_undef();
    if (!n->fn) return cb_j_fail(r, "No filter named '%.*s' found.", (int)(n->value.s->n < 40 ? n->value.s->n : 40), n->value.s->s);
    return cb_j_apply(r, n->fn, v, &a.call);
}

static cb_jv eval_test(cb_jr *r, const cb_jnode *n)
{
    args a;
    cb_jv v = cb_j_eval(r, n->a);
    if (r->rc || !eval_args(r, n, &a)) return cb_j_undef();
    if (!n->fn) return cb_j_fail(r, "No test named '%.*s' found.", (int)(n->value.s->n < 40 ? n->value.s->n : 40), n->value.s->s);
    return cb_j_apply(r, n->fn, v, &a.call);
}

static void exec(cb_jr *r, const cb_jnode *n);

static bool name_is(const cb_jr *r, uint32_t name, const char *s)
{
    return r->t->names[name]->n == strlen(s) && !memcmp(r->t->names[name]->s, s, strlen(s));
}

/* What the keyword arguments leave after the parameters took theirs: kwargs and caller. */
static void bind_special(cb_jr *r, const cb_jnode *def, const cb_jcall *call, const bool *used, bool has_caller)
{
    cb_jdict *kwargs = cb_j_dict_new(r, 0);
    cb_jv caller = CB_J(CB_J_MISSING);
    for (int i = 0; i < call->n_kw && kwargs; i++) {
        cb_jv k = call->kw[i].k;
        if (used[i]) continue;
        if ((def->flags & CB_JF_CALLER) && !has_caller && cb_j_str_is(k, "caller")) caller = call->kw[i].v;
        else if (def->flags & CB_JF_KWARGS) cb_j_dict_put(r, kwargs, k, call->kw[i].v);
        else cb_j_fail(r, "macro takes no keyword argument '%.*s'", (int)(k.s->n < 40 ? k.s->n : 40), k.s->s);
    }
    uint32_t id;
    if ((def->flags & CB_JF_CALLER) && !has_caller && (id = cb_jinja_find_name(r->t, "caller", 6)) != UINT32_MAX)
        cb_j_set(r, id, caller.type > CB_J_NONE ? caller : cb_j_hint(r, "No caller defined"));
    if ((def->flags & CB_JF_KWARGS) && (id = cb_jinja_find_name(r->t, "kwargs", 6)) != UINT32_MAX)
        cb_j_set(r, id, cb_j_dict(kwargs));
    if ((def->flags & CB_JF_VARARGS) && (id = cb_jinja_find_name(r->t, "varargs", 7)) != UINT32_MAX) {
        int extra = call->n_pos - (int)def->n_params;
        cb_jvec v = {0};
        for (int i = 0; i < extra; i++) cb_j_push(r, &v, call->pos[def->n_params + (uint32_t)i]);
        cb_j_set(r, id, cb_j_list(r, CB_J_TUPLE, v.v, v.n));
    }
}

static cb_jv default_of(cb_jr *r, const cb_jnode *param)
{
    if (param->a) return cb_j_eval(r, param->a);
    const cb_jstr *name = r->t->names[param->name];
    size_t mark = cb_j_begin(r);
    cb_buf_printf(&r->out, "parameter '%.*s' was not provided", (int)name->n, name->s);
    cb_jv text = cb_j_end(r, mark);
    return (cb_jv){.type = CB_J_UNDEF, .flag = CB_JU_HINT, .s = text.type == CB_J_STR ? text.s : NULL};
}

/* Parameters into r->scope. */
static void bind_macro(cb_jr *r, const cb_jnode *def, const cb_jcall *call)
{
    bool *used = cb_j_get(r, (size_t)call->n_kw, sizeof *used), has_caller = false;
    int i = 0;
    if (call->n_pos > (int)def->n_params && !(def->flags & CB_JF_VARARGS))
        cb_j_fail(r, "macro takes not more than %u argument(s)", def->n_params);
    for (const cb_jnode *p = def->params; p && !r->rc; p = p->next, i++) {
        cb_jv v = CB_J(CB_J_MISSING);
        const cb_jstr *name = r->t->names[p->name];
        has_caller |= name_is(r, p->name, "caller");
        if (i < call->n_pos) v = call->pos[i];
        for (int k = 0; i >= call->n_pos && k < call->n_kw; k++) {
            const cb_jstr *key = call->kw[k].k.s;
            if (used[k] || key->n != name->n || memcmp(key->s, name->s, key->n)) continue;
            used[k] = true;
            v = call->kw[k].v;
        }
        cb_j_set(r, p->name, v.type != CB_J_MISSING ? v : default_of(r, p));
    }
    if (!r->rc && (call->n_kw || def->flags)) bind_special(r, def, call, used, has_caller);
}

cb_jv cb_j_call_macro(cb_jr *r, const cb_jmacro *m, const cb_jcall *call)
{
    if (!cb_j_deeper(r)) return cb_j_undef();
    cb_jscope *outer = r->scope, *scope = cb_j_scope(r, m->scope);
    const cb_jnode *at = r->at;
    size_t mark = cb_j_begin(r);
    if (scope) {
        r->scope = scope;
        bind_macro(r, m->def, call);
        if (!r->rc) exec(r, m->def->list);
        r->scope = outer;
    }
    r->depth--;
    if (r->rc) return cb_j_undef();
    r->at = at;
    return cb_j_end(r, mark);
}

/* ---- expressions ---- */

static cb_jv eval_list(cb_jr *r, const cb_jnode *n)
{
    cb_jvec v = {0};
    for (const cb_jnode *e = n->list; e && !r->rc; e = e->next) cb_j_push(r, &v, cb_j_eval(r, e));
    return cb_j_list(r, n->kind == CB_JN_LIST ? CB_J_LIST : CB_J_TUPLE, v.v, v.n);
}

static cb_jv eval_dict(cb_jr *r, const cb_jnode *n)
{
    cb_jdict *d = cb_j_dict_new(r, 0);
    for (const cb_jnode *e = n->list; d && e && !r->rc; e = e->next->next) {
        cb_jv k = cb_j_eval(r, e), v = cb_j_eval(r, e->next);
        r->at = n;
        cb_j_dict_put(r, d, k, v);
    }
    return r->rc ? cb_j_undef() : cb_j_dict(d);
}

static bool compare(cb_jr *r, int op, cb_jv a, cb_jv b)
{
    int c;
    switch (op) {
    case CB_JT_EQ: return cb_j_eq(r, a, b);
    case CB_JT_NE: return !cb_j_eq(r, a, b);
    case CB_JT_IN: return cb_j_contains(r, a, b);
    case CB_JT_NOT_IN: return !cb_j_contains(r, a, b);
    case CB_JT_GT: return cb_j_cmp(r, a, b, ">") == 1;
    case CB_JT_LT: return cb_j_cmp(r, a, b, "<") == -1;
    case CB_JT_GE: return c = cb_j_cmp(r, a, b, ">="), c == 0 || c == 1;
    default: return c = cb_j_cmp(r, a, b, "<="), c == 0 || c == -1;
    }
}

static cb_jv eval_compare(cb_jr *r, const cb_jnode *n)
{
    cb_jv a = cb_j_eval(r, n->a);
    for (const cb_jnode *o = n->list; o && !r->rc; o = o->next) {
        cb_jv b = cb_j_eval(r, o->a);
        r->at = o;
        if (r->rc || !compare(r, o->op, a, b)) return cb_j_bool(false);
        a = b;
    }
    return cb_j_bool(true);
}

static cb_jv eval_concat(cb_jr *r, const cb_jnode *n)
{
    cb_jv all = CB_J(CB_J_MISSING);
    for (const cb_jnode *e = n->list; e && !r->rc; e = e->next) {
        cb_jv s = cb_j_to_str(r, cb_j_eval(r, e));
        s.flag = 0;
        if (r->rc) break;
        all = all.type == CB_J_MISSING ? s : cb_j_concat(r, all, s);
    }
    return all;
}

static cb_jv eval_slice(cb_jr *r, const cb_jnode *n)
{
    cb_jv obj = cb_j_eval(r, n->a), bound[3];
    const cb_jnode *e[3] = {n->b, n->c, n->d};
    for (int i = 0; i < 3; i++) bound[i] = e[i] ? cb_j_eval(r, e[i]) : cb_j_none();
    r->at = n;
    return cb_j_slice(r, obj, bound[0], bound[1], bound[2]);
}

static cb_jv eval_sign(cb_jr *r, const cb_jnode *n)
{
    cb_jv v = cb_j_eval(r, n->a);
    r->at = n;
    if (r->rc) return v;
    if (n->kind == CB_JN_NEG) return cb_j_negate(r, v);
    if (cb_j_is_intlike(v)) return cb_j_int(v.i);
    if (v.type == CB_J_FLOAT || cb_j_refuse_undef(r, v)) return v;
    return cb_j_fail(r, "bad operand type for unary +: '%s'", cb_j_type_name(v));
}

static cb_jv eval_deep(cb_jr *r, const cb_jnode *n)
{
    cb_jv a, b;
    switch (n->kind) {
    case CB_JN_LIST:
    case CB_JN_TUPLE: return eval_list(r, n);
    case CB_JN_DICT: return eval_dict(r, n);
    case CB_JN_ATTR:
        a = cb_j_eval(r, n->a);
        r->at = n;
        return cb_j_getattr(r, a, n->value);
    case CB_JN_ITEM:
        a = cb_j_eval(r, n->a);
        b = cb_j_eval(r, n->b);
        r->at = n;
        return cb_j_getitem(r, a, b);
    case CB_JN_SLICE: return eval_slice(r, n);
    case CB_JN_CALL: return eval_call(r, n, CB_J(CB_J_MISSING));
    case CB_JN_FILTER: return eval_filter(r, n, cb_j_undef());
    case CB_JN_TEST: return eval_test(r, n);
    case CB_JN_NOT: return cb_j_bool(!cb_j_truth(r, cb_j_eval(r, n->a)));
    case CB_JN_AND:
        a = cb_j_eval(r, n->a);
        return !r->rc && cb_j_truth(r, a) ? cb_j_eval(r, n->b) : a;
    case CB_JN_OR:
        a = cb_j_eval(r, n->a);
        return r->rc || cb_j_truth(r, a) ? a : cb_j_eval(r, n->b);
    case CB_JN_COND: /* a if b else c */
        if (cb_j_truth(r, cb_j_eval(r, n->b))) return cb_j_eval(r, n->a);
        if (n->c) return cb_j_eval(r, n->c);
        return cb_j_hint(r, "the inline if-expression evaluated to false and no else section was defined.");
    case CB_JN_COMPARE: return eval_compare(r, n);
    case CB_JN_BINARY:
        a = cb_j_eval(r, n->a);
        b = cb_j_eval(r, n->b);
        r->at = n;
        return cb_j_binary(r, n->op, a, b);
    case CB_JN_NEG:
    case CB_JN_POS: return eval_sign(r, n);
    default: CB_ASSERT(n->kind == CB_JN_CONCAT); return eval_concat(r, n);
    }
}

cb_jv cb_j_eval(cb_jr *r, const cb_jnode *n)
{
    if (!cb_j_pay(r, 1)) return cb_j_undef();
    if (n->kind == CB_JN_CONST) return n->value;
    if (n->kind == CB_JN_NAME) return lookup(r, n->name);
    r->at = n;
    if (!cb_j_deeper(r)) return cb_j_undef();
    cb_jv v = eval_deep(r, n);
    r->depth--;
    return r->rc ? cb_j_undef() : v;
}

/* ---- statements ---- */

static void exec_for(cb_jr *r, const cb_jnode *n)
{
    cb_jv seq = cb_j_eval(r, n->b), item;
    cb_jscope *outer = r->scope, *scope = cb_j_scope(r, outer);
    cb_jloop *loop = cb_j_get(r, 1, sizeof *loop);
    uint32_t loop_name = cb_jinja_find_name(r->t, "loop", 4);
    bool finished = false; /* an iteration ran to its end: jinja2 asks no more for its else */
    r->at = n->b;
    if (!scope || !loop || !cb_j_loop_init(r, loop, n, seq)) return;
    while (cb_j_loop_next(r, loop, &item)) {
        scope->n = 0;
        r->scope = scope;
        if (loop_name != UINT32_MAX) cb_j_set(r, loop_name, (cb_jv){.type = CB_J_LOOP, .loop = loop});
        cb_j_assign(r, n->a, item);
        exec(r, n->list);
        r->scope = outer;
        int jump = r->jump;
        r->jump = JUMP_NONE;
        if (jump == JUMP_BREAK) break;
        if (jump == JUMP_NONE) finished = true;
        r->at = n;
    }
    if (finished || !n->other || r->rc) return;
    if (!(scope = cb_j_scope(r, outer))) return;
    r->scope = scope;
    exec(r, n->other);
    r->scope = outer;
}

static void exec_if(cb_jr *r, const cb_jnode *n)
{
    for (;; n = n->other) {
        bool yes = cb_j_truth(r, cb_j_eval(r, n->a));
        if (r->rc) return;
        if (yes) return exec(r, n->list);
        if (!n->flags) return exec(r, n->other); /* an else, or nothing */
    }
}

/* Runs the body in a scope of its own and returns what it wrote. */
static cb_jv capture(cb_jr *r, const cb_jnode *body)
{
    cb_jscope *outer = r->scope, *scope = cb_j_scope(r, outer);
    if (!scope) return cb_j_undef();
    size_t mark = cb_j_begin(r);
    r->scope = scope;
    exec(r, body);
    r->scope = outer;
    return cb_j_end(r, mark);
}

static void exec_captured(cb_jr *r, const cb_jnode *n)
{
    cb_jv v = capture(r, n->list);
    if (r->rc || r->jump) return;
    if (n->b) v = eval_filter(r, n->b, v);
    if (n->kind == CB_JN_SET_BLOCK) cb_j_assign(r, n->a, v);
    else cb_j_put_str(r, v);
}

static cb_jv make_macro(cb_jr *r, const cb_jnode *def)
{
    cb_jmacro *m = cb_j_get(r, 1, sizeof *m);
    if (!m) return cb_j_undef();
    *m = (cb_jmacro){def, r->scope};
    return (cb_jv){.type = CB_J_MACRO, .macro = m};
}

static void exec_scoped(cb_jr *r, const cb_jnode *n)
{
    cb_jscope *outer = r->scope, *scope = cb_j_scope(r, outer);
    if (!scope) return;
    for (const cb_jnode *t = n->kind == CB_JN_WITH ? n->other : NULL; t && !r->rc; t = t->next->next) {
        cb_jv v = cb_j_eval(r, t->next); /* outside of the new scope */
        r->scope = scope;
        cb_j_assign(r, t, v);
        r->scope = outer;
    }
    r->scope = scope;
    if (n->flags & CB_JF_CALLER) { /* {% generation %} is a call block: it hides an outer caller */
        uint32_t id = cb_jinja_find_name(r->t, "caller", 6);
        if (id != UINT32_MAX) cb_j_set(r, id, cb_j_hint(r, "No caller defined"));
    }
    exec(r, n->list);
    r->scope = outer;
}

static void exec_one(cb_jr *r, const cb_jnode *n)
{
    switch (n->kind) {
    case CB_JN_DATA: return cb_j_out(r, n->value.s->s, n->value.s->n);
    case CB_JN_OUTPUT: return cb_j_put_str(r, cb_j_eval(r, n->a));
    case CB_JN_FOR: return exec_for(r, n);
    case CB_JN_IF: return exec_if(r, n);
    case CB_JN_SET: return cb_j_assign(r, n->a, cb_j_eval(r, n->b));
    case CB_JN_SET_BLOCK:
    case CB_JN_FILTER_BLOCK: return exec_captured(r, n);
    case CB_JN_MACRO: return cb_j_set(r, n->name, make_macro(r, n));
    case CB_JN_CALL_BLOCK: return cb_j_put_str(r, eval_call(r, n->a, make_macro(r, n)));
    case CB_JN_GENERATION:
    case CB_JN_WITH: return exec_scoped(r, n);
    case CB_JN_BREAK: r->jump = JUMP_BREAK; return;
    default: CB_ASSERT(n->kind == CB_JN_CONTINUE); r->jump = JUMP_CONTINUE;
    }
}

/* A list of statements; stops at an error and at a jump. */
static void exec(cb_jr *r, const cb_jnode *n)
{
    if (!cb_j_deeper(r)) return;
    for (; n && !r->jump && cb_j_pay(r, 1); n = n->next) {
        r->at = n;
        exec_one(r, n);
    }
    r->depth--;
}

/* ---- the whole ---- */

static void set_globals(cb_jr *r, json_t *const *vars, int n_vars)
{
    const cb_jfunc *f;
    for (uint32_t i = 0; (f = cb_j_global(i)); i++) r->globals[i] = (cb_jv){.type = CB_J_FUNC, .func = f};
    for (int i = 0; i < n_vars && !r->rc; i++)
        for (void *it = json_object_iter(vars[i]); it && !r->rc; it = json_object_iter_next(vars[i], it)) {
            uint32_t id = cb_jinja_find_name(r->t, json_object_iter_key(it), json_object_iter_key_len(it));
            if (id != UINT32_MAX) r->globals[id] = cb_j_from_json(r, json_object_iter_value(it)); /* others are never read */
        }
}

int cb_jinja_render(const cb_jinja *t, json_t *const *vars, int n_vars, const struct tm *now, const cb_jinja_limits *limits,
                    char **out, size_t *out_n, cb_err *err)
{
    cb_jr r = {.t = t, .err = err, .now = now};
    if (limits) r.lim = *limits;
    if (!r.lim.memory_bytes) r.lim.memory_bytes = (size_t)64 << 20;
    if (!r.lim.output_bytes) r.lim.output_bytes = (size_t)64 << 20;
    if (!r.lim.steps) r.lim.steps = 50 * 1000 * 1000;
    r.steps = r.lim.steps;
    cb_arena_init(&r.arena, r.lim.memory_bytes);
    cb_buf_init(&r.out, r.lim.output_bytes);
    *out = NULL;
    *out_n = 0;
    r.globals = cb_j_get(&r, t->n_names, sizeof *r.globals);
    if (r.globals) set_globals(&r, vars, n_vars);
    if (!r.rc) exec(&r, t->body);
    if (!r.rc) {
        *out_n = r.out.n;
        *out = cb_buf_take(&r.out);
        if (!*out) r.rc = cb_fail(err, CB_ENOMEM, "%s: out of memory", t->name);
    }
    cb_buf_fini(&r.out);
    cb_arena_fini(&r.arena);
    return r.rc;
}
