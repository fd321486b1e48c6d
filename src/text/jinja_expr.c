#include "text/jinja_ast.h"
#include <string.h>

/* Expressions, from the loosest binding down: condition, or, and, not, comparison, + -, ~, * / // %, **, sign, then what may
 * follow an operand. The order is jinja2's, which is not Python's: ~ binds tighter than +, ** is left-associative, and a
 * filter or test binds tighter than a binary operator. */

static cb_jnode *binary(cb_jparse *p, int kind, int op, cb_jnode *a, cb_jnode *b, uint32_t pos)
{
    cb_jnode *n = a && b ? cb_jp_node(p, kind, pos) : NULL;
    if (!n) return NULL;
    n->op = (uint8_t)op;
    n->a = a;
    n->b = b;
    cb_jp_above(p, n, a);
    cb_jp_above(p, n, b);
    return n;
}

static cb_jnode *unary(cb_jparse *p, int kind, cb_jnode *a, uint32_t pos)
{
    cb_jnode *n = a ? cb_jp_node(p, kind, pos) : NULL;
    if (!n) return NULL;
    n->a = a;
    cb_jp_above(p, n, a);
    return n;
}

/* Appends child to the list that ends at *tail. */
static bool append(cb_jparse *p, cb_jnode *parent, cb_jnode ***tail, cb_jnode *child)
{
    if (!child) return false;
    **tail = child;
    *tail = &child->next;
    cb_jp_above(p, parent, child);
    return !p->rc;
}

static cb_jnode *constant(cb_jparse *p, cb_jv v, uint32_t pos)
{
    cb_jnode *n = cb_jp_node(p, CB_JN_CONST, pos);
    if (n) n->value = v;
    return n;
}

static bool make_str(cb_jparse *p, const char *s, size_t n, cb_jv *v)
{
    cb_jstr *str = cb_arena_get(&p->t->arena, sizeof *str);
    if (!str) return cb_jp_no_memory(p), false;
    *str = (cb_jstr){.s = s, .n = n, .n_chars = cb_j_count_chars(s, n)};
    *v = (cb_jv){.type = CB_J_STR, .s = str};
    return true;
}

/* ---- operands ---- */

/* Strings side by side are one. */
static cb_jnode *strings(cb_jparse *p)
{
    cb_jtoken t = p->cur;
    cb_jp_next(p);
    const char *s = t.s;
    size_t n = t.n;
    if (p->cur.type == CB_JT_STRING) {
        cb_buf b;
        cb_buf_init(&b, CB_JINJA_MAX_TEXT);
        cb_buf_put(&b, s, n);
        for (; p->cur.type == CB_JT_STRING; cb_jp_next(p)) cb_buf_put(&b, p->cur.s, p->cur.n);
        n = b.n;
        s = cb_buf_ok(&b) ? cb_arena_strndup(&p->t->arena, b.data, b.n) : NULL;
        cb_buf_fini(&b);
        if (!s) return cb_jp_no_memory(p);
    }
    cb_jv v;
    return make_str(p, s, n, &v) ? constant(p, v, t.pos) : NULL;
}

static bool word_is(const cb_jtoken *t, const char *w) { return t->n == strlen(w) && !memcmp(t->s, w, t->n); }

static cb_jnode *name(cb_jparse *p, bool with_ns)
{
    cb_jtoken t = p->cur;
    cb_jp_next(p);
    if (word_is(&t, "true") || word_is(&t, "True")) return constant(p, cb_j_bool(true), t.pos);
    if (word_is(&t, "false") || word_is(&t, "False")) return constant(p, cb_j_bool(false), t.pos);
    if (word_is(&t, "none") || word_is(&t, "None")) return constant(p, cb_j_none(), t.pos);
    bool ns = with_ns && p->cur.type == CB_JT_DOT;
    cb_jnode *n = cb_jp_node(p, ns ? CB_JN_NSREF : CB_JN_NAME, t.pos);
    if (!n) return NULL;
    n->name = cb_jp_name_id(p, t.s, t.n);
    if (ns) {
        cb_jp_next(p);
        if (p->cur.type != CB_JT_NAME) return cb_jp_fail(p, p->cur.pos, "expected an attribute name");
        if (!make_str(p, p->cur.s, p->cur.n, &n->value)) return NULL;
        cb_jp_next(p);
    } else if (p->special) {
        if (word_is(&t, "caller")) *p->special |= CB_JF_CALLER;
        if (word_is(&t, "kwargs")) *p->special |= CB_JF_KWARGS;
        if (word_is(&t, "varargs")) *p->special |= CB_JF_VARARGS;
    }
    return p->rc ? NULL : n;
}

static cb_jnode *sequence(cb_jparse *p)
{
    cb_jnode *n = cb_jp_node(p, CB_JN_LIST, p->cur.pos), **tail = n ? &n->list : NULL;
    cb_jp_next(p);
    for (bool more = false; n && p->cur.type != CB_JT_RBRACKET; more = true) {
        if (more && !cb_jp_expect(p, CB_JT_COMMA, "','")) return NULL;
        if (p->cur.type == CB_JT_RBRACKET) break;
        if (!append(p, n, &tail, cb_jp_expression(p))) return NULL;
    }
    return n && cb_jp_expect(p, CB_JT_RBRACKET, "']'") ? n : NULL;
}

static cb_jnode *mapping(cb_jparse *p)
{
    cb_jnode *n = cb_jp_node(p, CB_JN_DICT, p->cur.pos), **tail = n ? &n->list : NULL;
    cb_jp_next(p);
    for (bool more = false; n && p->cur.type != CB_JT_RBRACE; more = true) {
        if (more && !cb_jp_expect(p, CB_JT_COMMA, "','")) return NULL;
        if (p->cur.type == CB_JT_RBRACE) break;
        if (!append(p, n, &tail, cb_jp_expression(p)) || !cb_jp_expect(p, CB_JT_COLON, "':'") ||
            !append(p, n, &tail, cb_jp_expression(p)))
            return NULL;
    }
    return n && cb_jp_expect(p, CB_JT_RBRACE, "'}'") ? n : NULL;
}

static cb_jnode *primary(cb_jparse *p, bool with_ns)
{
    cb_jtoken t = p->cur;
    cb_jnode *n;
    switch (t.type) {
    case CB_JT_NAME: return name(p, with_ns);
    case CB_JT_STRING: return strings(p);
    case CB_JT_INT: cb_jp_next(p); return constant(p, cb_j_int(t.i), t.pos);
    case CB_JT_FLOAT: cb_jp_next(p); return constant(p, cb_j_float(t.f), t.pos);
    case CB_JT_LPAREN:
        cb_jp_next(p);
        n = cb_jp_tuple(p, true, NULL, true);
        return n && cb_jp_expect(p, CB_JT_RPAREN, "')'") ? n : NULL;
    case CB_JT_LBRACKET: return sequence(p);
    case CB_JT_LBRACE: return mapping(p);
    }
    const char *show = cb_jlex_show(&t);
    if (show) return cb_jp_fail(p, t.pos, "unexpected %s", show);
    return cb_jp_fail(p, t.pos, "unexpected '%.*s'", (int)(t.n < 40 ? t.n : 40), t.s);
}

/* ---- calls, filters, tests, subscripts ---- */

static cb_jnode *keyword(cb_jparse *p)
{
    cb_jnode *kw = cb_jp_node(p, CB_JN_KWARG, p->cur.pos);
    if (!kw || !make_str(p, p->cur.s, p->cur.n, &kw->value)) return NULL;
    cb_jp_next(p);
    cb_jp_next(p);
    kw->a = cb_jp_expression(p);
    if (!kw->a) return NULL;
    cb_jp_above(p, kw, kw->a);
    return kw;
}

static bool name_then_assign(cb_jparse *p)
{
    if (p->cur.type != CB_JT_NAME) return false;
    if (!p->has_ahead) {
        p->ahead = cb_jlex_next(&p->lex);
        p->has_ahead = true;
    }
    return p->ahead.type == CB_JT_ASSIGN;
}

/* ( a, b, *c, k=d, **e ) into n. */
static bool call_args(cb_jparse *p, cb_jnode *n)
{
    uint32_t open = p->cur.pos;
    cb_jnode **args = &n->args, **kwargs = &n->kwargs;
    cb_jp_next(p);
    for (bool more = false; p->cur.type != CB_JT_RPAREN; more = true) {
        if (more && !cb_jp_expect(p, CB_JT_COMMA, "','")) return false;
        if (p->cur.type == CB_JT_RPAREN) break;
        bool bad = n->dyn_kwargs != NULL;
        if (p->cur.type == CB_JT_MUL || p->cur.type == CB_JT_POW) {
            bool twice = p->cur.type == CB_JT_POW;
            bad |= !twice && n->dyn_args;
            cb_jp_next(p);
            cb_jnode *e = cb_jp_expression(p);
            if (!e) return false;
            *(twice ? &n->dyn_kwargs : &n->dyn_args) = e;
            cb_jp_above(p, n, e);
        } else if (name_then_assign(p)) {
            if (!append(p, n, &kwargs, keyword(p))) return false;
        } else {
            bad |= n->dyn_args || n->kwargs;
            if (!append(p, n, &args, cb_jp_expression(p))) return false;
        }
        if (bad) return cb_jp_fail(p, open, "invalid syntax for function call expression"), false;
    }
    return cb_jp_expect(p, CB_JT_RPAREN, "')'");
}

static cb_jnode *call(cb_jparse *p, cb_jnode *callee)
{
    cb_jnode *n = unary(p, CB_JN_CALL, callee, p->cur.pos);
    return n && call_args(p, n) ? n : NULL;
}

/* One bound of a slice, when there is one. */
static bool bound(cb_jparse *p, cb_jnode *n, cb_jnode **to)
{
    if (p->cur.type == CB_JT_COLON || p->cur.type == CB_JT_RBRACKET || p->cur.type == CB_JT_COMMA) return true;
    *to = cb_jp_expression(p);
    if (!*to) return false;
    cb_jp_above(p, n, *to);
    return true;
}

static cb_jnode *brackets(cb_jparse *p, cb_jnode *obj, uint32_t pos)
{
    cb_jnode *n = unary(p, CB_JN_ITEM, obj, pos);
    if (!n || !bound(p, n, &n->b)) return NULL;
    if (p->cur.type == CB_JT_COLON) {
        n->kind = CB_JN_SLICE;
        cb_jp_next(p);
        if (!bound(p, n, &n->c)) return NULL;
        if (cb_jp_skip(p, CB_JT_COLON) && !bound(p, n, &n->d)) return NULL;
    } else if (!n->b) return cb_jp_fail(p, p->cur.pos, "expected an index");
    if (p->cur.type == CB_JT_COMMA) return cb_jp_fail(p, p->cur.pos, "several indexes are not supported");
    return cb_jp_expect(p, CB_JT_RBRACKET, "']'") ? n : NULL;
}

static cb_jnode *subscript(cb_jparse *p, cb_jnode *obj)
{
    cb_jtoken t = p->cur;
    cb_jp_next(p);
    if (t.type == CB_JT_LBRACKET) return brackets(p, obj, t.pos);
    cb_jtoken attr = p->cur;
    if (attr.type == CB_JT_NAME) {
        cb_jnode *n = unary(p, CB_JN_ATTR, obj, attr.pos);
        if (!n || !make_str(p, attr.s, attr.n, &n->value)) return NULL;
        cb_jp_next(p);
        return n;
    }
    if (attr.type != CB_JT_INT) return cb_jp_fail(p, attr.pos, "expected name or number");
    cb_jp_next(p);
    return binary(p, CB_JN_ITEM, 0, obj, constant(p, cb_j_int(attr.i), attr.pos), t.pos);
}

static cb_jnode *postfix(cb_jparse *p, cb_jnode *n)
{
    while (n && !p->rc) {
        if (p->cur.type == CB_JT_DOT || p->cur.type == CB_JT_LBRACKET) n = subscript(p, n);
        else if (p->cur.type == CB_JT_LPAREN) n = call(p, n);
        else break;
    }
    return n;
}

/* The name of a filter or test, with dots as jinja2 has it; no known one has any. */
static bool func_name(cb_jparse *p, cb_jnode *n, bool is_test)
{
    if (p->cur.type != CB_JT_NAME) return cb_jp_fail(p, p->cur.pos, "expected the name of a %s", is_test ? "test" : "filter");
    cb_jtoken t = p->cur;
    n->fn = is_test ? cb_j_find_test(t.s, t.n) : cb_j_find_filter(t.s, t.n);
    if (!n->fn && !p->soft && !p->unknown) p->unknown = n;
    n->pos = t.pos;
    cb_jp_next(p);
    return make_str(p, t.s, t.n, &n->value);
}

cb_jnode *cb_jp_filters(cb_jparse *p, cb_jnode *input, bool start_inline)
{
    while (!p->rc && (p->cur.type == CB_JT_PIPE || start_inline)) {
        if (!start_inline) cb_jp_next(p);
        start_inline = false;
        cb_jnode *n = cb_jp_node(p, CB_JN_FILTER, p->cur.pos);
        if (!n || !func_name(p, n, false)) return NULL;
        n->a = input;
        if (input) cb_jp_above(p, n, input);
        if (p->cur.type == CB_JT_LPAREN && !call_args(p, n)) return NULL;
        input = n;
    }
    return input;
}

static cb_jnode *test(cb_jparse *p, cb_jnode *input)
{
    uint32_t pos = p->cur.pos;
    cb_jp_next(p);
    bool negated = cb_jp_skip_name(p, "not");
    cb_jnode *n = unary(p, CB_JN_TEST, input, pos);
    if (!n || !func_name(p, n, true)) return NULL;
    int t = p->cur.type;
    if (t == CB_JT_LPAREN) {
        if (!call_args(p, n)) return NULL;
    } else if ((t == CB_JT_NAME || t == CB_JT_STRING || t == CB_JT_INT || t == CB_JT_FLOAT || t == CB_JT_LBRACKET ||
                t == CB_JT_LBRACE) &&
               !cb_jp_is_name(p, "else") && !cb_jp_is_name(p, "or") && !cb_jp_is_name(p, "and")) {
        if (cb_jp_is_name(p, "is")) return cb_jp_fail(p, p->cur.pos, "you cannot chain multiple tests with is");
        cb_jnode **tail = &n->args;
        if (!append(p, n, &tail, postfix(p, primary(p, false)))) return NULL;
    }
    return negated ? unary(p, CB_JN_NOT, n, pos) : n;
}

static cb_jnode *filter_expr(cb_jparse *p, cb_jnode *n)
{
    while (n && !p->rc) {
        if (p->cur.type == CB_JT_PIPE) n = cb_jp_filters(p, n, false);
        else if (cb_jp_is_name(p, "is")) n = test(p, n);
        else if (p->cur.type == CB_JT_LPAREN) n = call(p, n);
        else break;
    }
    return n;
}

/* ---- operators ---- */

static cb_jnode *signed_operand(cb_jparse *p, bool with_filter)
{
    if (!cb_jp_deeper(p)) return NULL;
    cb_jnode *n;
    uint32_t pos = p->cur.pos;
    int t = p->cur.type;
    if (t == CB_JT_SUB || t == CB_JT_ADD) {
        cb_jp_next(p);
        n = unary(p, t == CB_JT_SUB ? CB_JN_NEG : CB_JN_POS, signed_operand(p, false), pos);
    } else n = primary(p, false);
    n = postfix(p, n);
    if (with_filter) n = filter_expr(p, n);
    p->depth--;
    return n;
}

static cb_jnode *power(cb_jparse *p)
{
    cb_jnode *n = signed_operand(p, true);
    for (uint32_t pos; n && p->cur.type == CB_JT_POW;) {
        pos = p->cur.pos;
        cb_jp_next(p);
        n = binary(p, CB_JN_BINARY, CB_JT_POW, n, signed_operand(p, true), pos);
    }
    return n;
}

static cb_jnode *product(cb_jparse *p)
{
    cb_jnode *n = power(p);
    while (n && (p->cur.type == CB_JT_MUL || p->cur.type == CB_JT_DIV || p->cur.type == CB_JT_FLOORDIV ||
                 p->cur.type == CB_JT_MOD)) {
        uint32_t pos = p->cur.pos;
        int op = p->cur.type;
        cb_jp_next(p);
        n = binary(p, CB_JN_BINARY, op, n, power(p), pos);
    }
    return n;
}

static cb_jnode *concat(cb_jparse *p)
{
    cb_jnode *first = product(p);
    if (!first || p->cur.type != CB_JT_TILDE) return first;
    cb_jnode *n = cb_jp_node(p, CB_JN_CONCAT, p->cur.pos), **tail = n ? &n->list : NULL;
    if (!n || !append(p, n, &tail, first)) return NULL;
    while (cb_jp_skip(p, CB_JT_TILDE))
        if (!append(p, n, &tail, product(p))) return NULL;
    return n;
}

static cb_jnode *sum(cb_jparse *p)
{
    cb_jnode *n = concat(p);
    while (n && (p->cur.type == CB_JT_ADD || p->cur.type == CB_JT_SUB)) {
        uint32_t pos = p->cur.pos;
        int op = p->cur.type;
        cb_jp_next(p);
        n = binary(p, CB_JN_BINARY, op, n, concat(p), pos);
    }
    return n;
}

/* The comparison operator at hand, consumed; 0 when there is none. */
static int comparison_op(cb_jparse *p)
{
    int t = p->cur.type;
    if (t >= CB_JT_EQ && t <= CB_JT_LE) return cb_jp_next(p), t;
    if (cb_jp_skip_name(p, "in")) return CB_JT_IN;
    if (!cb_jp_is_name(p, "not")) return 0;
    if (!p->has_ahead) {
        p->ahead = cb_jlex_next(&p->lex);
        p->has_ahead = true;
    }
    if (p->ahead.type != CB_JT_NAME || !word_is(&p->ahead, "in")) return 0;
    cb_jp_next(p);
    cb_jp_next(p);
    return CB_JT_NOT_IN;
}

static cb_jnode *comparison(cb_jparse *p)
{
    cb_jnode *first = sum(p), *n = NULL, **tail = NULL;
    uint32_t pos = p->cur.pos;
    for (int op; first && (op = comparison_op(p)); pos = p->cur.pos) {
        if (!n) {
            if (!(n = unary(p, CB_JN_COMPARE, first, pos))) return NULL;
            tail = &n->list;
        }
        cb_jnode *operand = unary(p, CB_JN_OPERAND, sum(p), pos);
        if (!append(p, n, &tail, operand)) return NULL;
        operand->op = (uint8_t)op;
    }
    return n ? n : first;
}

static cb_jnode *negation(cb_jparse *p)
{
    if (!cb_jp_is_name(p, "not")) return comparison(p);
    if (!cb_jp_deeper(p)) return NULL;
    uint32_t pos = p->cur.pos;
    cb_jp_next(p);
    cb_jnode *n = unary(p, CB_JN_NOT, negation(p), pos);
    p->depth--;
    return n;
}

static cb_jnode *conjunction(cb_jparse *p)
{
    cb_jnode *n = negation(p);
    for (uint32_t pos; n && (pos = p->cur.pos, cb_jp_skip_name(p, "and"));)
        n = binary(p, CB_JN_AND, 0, n, negation(p), pos);
    return n;
}

static cb_jnode *disjunction(cb_jparse *p)
{
    cb_jnode *n = conjunction(p);
    for (uint32_t pos; n && (pos = p->cur.pos, cb_jp_skip_name(p, "or"));)
        n = binary(p, CB_JN_OR, 0, n, conjunction(p), pos);
    return n;
}

static cb_jnode *condition(cb_jparse *p)
{
    bool soft = p->soft; /* jinja2 looks up filters of a conditional expression late */
    const cb_jnode *unknown = p->unknown;
    cb_jnode *n = disjunction(p);
    for (uint32_t pos; n && (pos = p->cur.pos, cb_jp_skip_name(p, "if"));) {
        p->soft = true;
        p->unknown = unknown;
        n = binary(p, CB_JN_COND, 0, n, disjunction(p), pos);
        if (n && cb_jp_skip_name(p, "else")) {
            if (!cb_jp_deeper(p)) return NULL;
            n->c = condition(p);
            p->depth--;
            if (!n->c) return NULL;
            cb_jp_above(p, n, n->c);
        }
    }
    p->soft = soft;
    return n;
}

cb_jnode *cb_jp_expression(cb_jparse *p)
{
    if (!cb_jp_deeper(p)) return NULL;
    cb_jnode *n = condition(p);
    p->depth--;
    return p->rc ? NULL : n;
}

static cb_jnode *either(cb_jparse *p, bool with_cond)
{
    if (with_cond) return cb_jp_expression(p);
    if (!cb_jp_deeper(p)) return NULL;
    cb_jnode *n = disjunction(p);
    p->depth--;
    return p->rc ? NULL : n;
}

static bool tuple_ends(const cb_jparse *p, const char *end_word)
{
    int t = p->cur.type;
    return t == CB_JT_VAR_END || t == CB_JT_BLOCK_END || t == CB_JT_RPAREN || (end_word && cb_jp_is_name(p, end_word));
}

cb_jnode *cb_jp_tuple(cb_jparse *p, bool with_cond, const char *end_word, bool parens)
{
    cb_jnode *first = NULL, *tuple = NULL, **tail = NULL;
    uint32_t pos = p->cur.pos;
    while (!tuple_ends(p, end_word)) {
        cb_jnode *e = either(p, with_cond);
        if (!e) return NULL;
        if (!first) first = e;
        else if (!append(p, tuple, &tail, e)) return NULL;
        if (p->cur.type != CB_JT_COMMA) break;
        if (!tuple) {
            if (!(tuple = cb_jp_node(p, CB_JN_TUPLE, pos))) return NULL;
            tail = &tuple->list;
            if (!append(p, tuple, &tail, first)) return NULL;
        }
        cb_jp_next(p);
    }
    if (tuple) return tuple;
    if (first) return first;
    if (!parens) return cb_jp_fail(p, p->cur.pos, "expected an expression");
    return cb_jp_node(p, CB_JN_TUPLE, pos);
}

/* Only names, and tuples of targets, can be assigned to. */
static bool assignable(cb_jparse *p, const cb_jnode *n)
{
    const cb_jstr *name = n->kind == CB_JN_NAME ? p->t->names[n->name] : NULL;
    if (name && p->in_loop && name->n == 4 && !memcmp(name->s, "loop", 4))
        return cb_jp_fail(p, n->pos, "can't assign to the special variable loop in a for loop"), false;
    if (n->kind == CB_JN_NAME || n->kind == CB_JN_NSREF) return true;
    if (n->kind != CB_JN_TUPLE && n->kind != CB_JN_LIST) return cb_jp_fail(p, n->pos, "can't assign to this"), false;
    for (const cb_jnode *e = n->list; e; e = e->next)
        if (!assignable(p, e)) return false;
    return true;
}

cb_jnode *cb_jp_target(cb_jparse *p, const char *end_word, bool with_ns)
{
    cb_jnode *first = NULL, *tuple = NULL, **tail = NULL;
    uint32_t pos = p->cur.pos;
    uint8_t *special = p->special; /* storing is not reading */
    p->special = NULL;
    while (!p->rc && !tuple_ends(p, end_word)) {
        cb_jnode *e = primary(p, with_ns);
        if (!e) break;
        if (!first) first = e;
        else append(p, tuple, &tail, e);
        if (p->cur.type != CB_JT_COMMA) break;
        if (!tuple) {
            if (!(tuple = cb_jp_node(p, CB_JN_TUPLE, pos))) break;
            tail = &tuple->list;
            append(p, tuple, &tail, first);
        }
        cb_jp_next(p);
    }
    p->special = special;
    if (p->rc) return NULL;
    if (!first) return cb_jp_fail(p, pos, "expected a name to assign to");
    cb_jnode *n = tuple ? tuple : first;
    return assignable(p, n) ? n : NULL;
}
