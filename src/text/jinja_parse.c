#include "text/jinja_ast.h"
#include "text/utf8.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    MAX_NESTING = 100, /* of the parser's recursion: brackets, signs, blocks */
    MAX_NAMES = 4096   /* variables and macros; few enough that colliding hashes do not matter */
};

/* ---- parser state ---- */

void *cb_jp_fail(cb_jparse *p, uint32_t pos, const char *fmt, ...)
{
    if (p->lex.rc && !p->rc) p->rc = p->lex.rc; /* the lexer's message is there already */
    if (p->rc) return NULL;
    char text[200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    int line, col;
    cb_jinja_where(p->t, pos, &line, &col);
    p->rc = cb_fail(p->err, CB_EFORMAT, "%s: line %d, column %d: %s", p->t->name, line, col, text);
    return NULL;
}

void *cb_jp_no_memory(cb_jparse *p)
{
    if (!p->rc) p->rc = cb_fail(p->err, CB_ENOMEM, "%s: out of memory", p->t->name);
    return NULL;
}

cb_jnode *cb_jp_node(cb_jparse *p, int kind, uint32_t pos)
{
    if (p->rc) return NULL;
    cb_jnode *n = cb_arena_get(&p->t->arena, sizeof *n);
    if (!n) return cb_jp_no_memory(p);
    n->kind = (uint8_t)kind;
    n->pos = pos;
    n->height = 1;
    return n;
}

void cb_jp_above(cb_jparse *p, cb_jnode *n, const cb_jnode *child)
{
    if (child->height < n->height) return;
    n->height = (uint16_t)(child->height + 1);
    if (n->height > CB_JMAX_HEIGHT) cb_jp_fail(p, n->pos, "expression or block is nested more than %d deep", CB_JMAX_HEIGHT);
}

void cb_jp_next(cb_jparse *p)
{
    p->cur = p->has_ahead ? p->ahead : cb_jlex_next(&p->lex);
    p->has_ahead = false;
    if (p->lex.rc && !p->rc) p->rc = p->lex.rc;
}

bool cb_jp_is_name(const cb_jparse *p, const char *word)
{
    return p->cur.type == CB_JT_NAME && p->cur.n == strlen(word) && !memcmp(p->cur.s, word, p->cur.n);
}

bool cb_jp_skip_name(cb_jparse *p, const char *word)
{
    if (!cb_jp_is_name(p, word)) return false;
    cb_jp_next(p);
    return true;
}

bool cb_jp_skip(cb_jparse *p, int type)
{
    if (p->cur.type != type) return false;
    cb_jp_next(p);
    return true;
}

bool cb_jp_expect(cb_jparse *p, int type, const char *what)
{
    if (cb_jp_skip(p, type)) return !p->rc;
    const char *show = cb_jlex_show(&p->cur);
    if (show) cb_jp_fail(p, p->cur.pos, "expected %s, got %s", what, show);
    else cb_jp_fail(p, p->cur.pos, "expected %s, got '%.*s'", what, (int)(p->cur.n < 40 ? p->cur.n : 40), p->cur.s);
    return false;
}

bool cb_jp_deeper(cb_jparse *p)
{
    if (p->rc) return false;
    if (++p->depth > MAX_NESTING) return cb_jp_fail(p, p->cur.pos, "nested more than %d deep", MAX_NESTING), false;
    return true;
}

/* ---- names ---- */

static uint32_t hash_name(const char *s, size_t n)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * 16777619u;
    return h;
}

uint32_t cb_jinja_find_name(const cb_jinja *t, const char *s, size_t n)
{
    if (!t->n_slots) return UINT32_MAX;
    for (uint32_t i = hash_name(s, n) & (t->n_slots - 1);; i = (i + 1) & (t->n_slots - 1)) {
        if (!t->slots[i]) return UINT32_MAX;
        const cb_jstr *k = t->names[t->slots[i] - 1];
        if (k->n == n && !memcmp(k->s, s, n)) return t->slots[i] - 1;
    }
}

static bool grow_names(cb_jinja *t)
{
    uint32_t cap = t->cap_names ? t->cap_names * 2 : 64, n_slots = cap * 2;
    const cb_jstr **names = cb_arena_get(&t->arena, cap * sizeof *names);
    uint32_t *slots = cb_arena_get(&t->arena, n_slots * sizeof *slots);
    if (!names || !slots) return false;
    for (uint32_t id = 0; id < t->n_names; id++) {
        names[id] = t->names[id];
        uint32_t i = hash_name(names[id]->s, names[id]->n) & (n_slots - 1);
        while (slots[i]) i = (i + 1) & (n_slots - 1);
        slots[i] = id + 1;
    }
    t->names = names;
    t->cap_names = cap;
    t->slots = slots;
    t->n_slots = n_slots;
    return true;
}

uint32_t cb_jp_name_id(cb_jparse *p, const char *s, size_t n)
{
    cb_jinja *t = p->t;
    uint32_t id = cb_jinja_find_name(t, s, n);
    if (id != UINT32_MAX) return id;
    if (t->n_names >= MAX_NAMES) {
        cb_jp_fail(p, p->cur.pos, "more than %d different names", MAX_NAMES);
        return 0;
    }
    cb_jstr *str = cb_arena_get(&t->arena, sizeof *str);
    if (!str || (t->n_names == t->cap_names && !grow_names(t))) {
        cb_jp_no_memory(p);
        return 0;
    }
    *str = (cb_jstr){.s = s, .n = n, .n_chars = cb_j_count_chars(s, n)};
    t->names[t->n_names] = str;
    uint32_t i = hash_name(s, n) & (t->n_slots - 1);
    while (t->slots[i]) i = (i + 1) & (t->n_slots - 1);
    t->slots[i] = ++t->n_names;
    return t->n_names - 1;
}

/* ---- statements ---- */

static bool statements(cb_jparse *p, cb_jnode *parent, cb_jnode **head, const char *const *ends);

/* The rest of a tag, then statements up to (not including) one of the names in `ends`. */
static bool body(cb_jparse *p, cb_jnode *parent, cb_jnode **head, const char *const *ends)
{
    cb_jp_skip(p, CB_JT_COLON);
    if (!cb_jp_expect(p, CB_JT_BLOCK_END, "end of statement block")) return false;
    return statements(p, parent, head, ends);
}

#define ENDS(...) ((const char *const[]){__VA_ARGS__, NULL})

static cb_jnode *parse_for(cb_jparse *p, cb_jnode *n)
{
    bool soft = p->soft;
    p->in_loop++;
    n->a = cb_jp_target(p, "in", false);
    p->in_loop--;
    if (!n->a) return NULL;
    if (!cb_jp_skip_name(p, "in")) return cb_jp_fail(p, p->cur.pos, "expected 'in'");
    n->b = cb_jp_tuple(p, false, "recursive", false);
    if (!n->b) return NULL;
    p->soft = false;
    if (cb_jp_skip_name(p, "if") && !(n->c = cb_jp_expression(p))) return NULL;
    if (cb_jp_is_name(p, "recursive")) return cb_jp_fail(p, p->cur.pos, "recursive loops are not supported");
    p->in_loop++;
    if (!body(p, n, &n->list, ENDS("else", "endfor"))) return NULL;
    p->in_loop--;
    if (cb_jp_skip_name(p, "else") && !body(p, n, &n->other, ENDS("endfor"))) return NULL;
    cb_jp_next(p);
    p->soft = soft;
    return n;
}

/* elif branches: each is an if in the one before's else. They do not deepen the evaluator, which walks them in a loop. */
static cb_jnode *parse_if(cb_jparse *p, cb_jnode *top)
{
    bool soft = p->soft;
    p->soft = true;
    for (cb_jnode *n = top;;) {
        if (!(n->a = cb_jp_tuple(p, false, NULL, false))) return NULL;
        cb_jp_above(p, top, n->a);
        if (!body(p, top, &n->list, ENDS("elif", "else", "endif"))) return NULL;
        uint32_t pos = p->cur.pos;
        if (cb_jp_skip_name(p, "elif")) {
            if (!(n->other = cb_jp_node(p, CB_JN_IF, pos))) return NULL;
            n->flags = 1; /* other is an elif */
            n = n->other;
            continue;
        }
        if (cb_jp_skip_name(p, "else") && !body(p, top, &n->other, ENDS("endif"))) return NULL;
        cb_jp_next(p);
        p->soft = soft;
        return top;
    }
}

static cb_jnode *parse_set(cb_jparse *p, cb_jnode *n)
{
    if (!(n->a = cb_jp_target(p, NULL, true))) return NULL;
    if (cb_jp_skip(p, CB_JT_ASSIGN)) {
        n->b = cb_jp_tuple(p, true, NULL, false);
        if (n->b) cb_jp_above(p, n, n->b);
        return n->b ? n : NULL;
    }
    n->kind = CB_JN_SET_BLOCK;
    bool soft = p->soft;
    n->b = cb_jp_filters(p, NULL, false);
    if (n->b) cb_jp_above(p, n, n->b);
    p->soft = false;
    if (!body(p, n, &n->list, ENDS("endset"))) return NULL;
    cb_jp_next(p);
    p->soft = soft;
    return n;
}

/* ( a, b=1 ) */
static bool signature(cb_jparse *p, cb_jnode *n)
{
    cb_jnode **tail = &n->params;
    bool defaults = false;
    if (!cb_jp_expect(p, CB_JT_LPAREN, "'('")) return false;
    for (; p->cur.type != CB_JT_RPAREN; n->n_params++) {
        if (n->params && !cb_jp_expect(p, CB_JT_COMMA, "','")) return false;
        if (p->cur.type != CB_JT_NAME) return cb_jp_expect(p, CB_JT_NAME, "a parameter name");
        cb_jnode *param = cb_jp_node(p, CB_JN_NAME, p->cur.pos);
        if (!param) return false;
        param->name = cb_jp_name_id(p, p->cur.s, p->cur.n);
        cb_jp_next(p);
        if (cb_jp_skip(p, CB_JT_ASSIGN)) {
            defaults = true;
            if (!(param->a = cb_jp_expression(p))) return false;
            cb_jp_above(p, n, param->a);
        } else if (defaults) return cb_jp_fail(p, param->pos, "non-default argument follows default argument"), false;
        *tail = param;
        tail = &param->next;
    }
    cb_jp_next(p);
    return !p->rc;
}

/* The body of a macro or call block: loops outside do not count, and special names are watched for. */
static bool macro_body(cb_jparse *p, cb_jnode *n, const char *end)
{
    uint8_t seen = 0, *outer = p->special;
    int in_loop = p->in_loop;
    bool soft = p->soft;
    p->special = &seen;
    p->in_loop = 0;
    p->soft = false;
    bool good = body(p, n, &n->list, ENDS(end));
    p->special = outer;
    p->in_loop = in_loop;
    p->soft = soft;
    n->flags = seen;
    if (outer) *outer |= seen;
    if (good) cb_jp_next(p);
    return good;
}

static cb_jnode *parse_macro(cb_jparse *p, cb_jnode *n)
{
    if (p->cur.type != CB_JT_NAME) return cb_jp_fail(p, p->cur.pos, "expected the macro's name");
    n->name = cb_jp_name_id(p, p->cur.s, p->cur.n);
    cb_jp_next(p);
    return signature(p, n) && macro_body(p, n, "endmacro") ? n : NULL;
}

static cb_jnode *parse_call_block(cb_jparse *p, cb_jnode *n)
{
    if (p->cur.type == CB_JT_LPAREN && !signature(p, n)) return NULL;
    n->a = cb_jp_expression(p);
    if (!n->a) return NULL;
    if (n->a->kind != CB_JN_CALL) return cb_jp_fail(p, n->a->pos, "expected call");
    cb_jp_above(p, n, n->a);
    return macro_body(p, n, "endcall") ? n : NULL;
}

static cb_jnode *parse_filter_block(cb_jparse *p, cb_jnode *n)
{
    bool soft = p->soft;
    if (!(n->b = cb_jp_filters(p, NULL, true))) return NULL;
    cb_jp_above(p, n, n->b);
    p->soft = false;
    if (!body(p, n, &n->list, ENDS("endfilter"))) return NULL;
    cb_jp_next(p);
    p->soft = soft;
    return n;
}

static cb_jnode *parse_generation(cb_jparse *p, cb_jnode *n) { return macro_body(p, n, "endgeneration") ? n : NULL; }

static cb_jnode *parse_with(cb_jparse *p, cb_jnode *n)
{
    cb_jnode **tail = &n->other;
    while (p->cur.type != CB_JT_BLOCK_END) {
        if (n->other && !cb_jp_expect(p, CB_JT_COMMA, "','")) return NULL;
        cb_jnode *target = cb_jp_target(p, NULL, false), *value;
        if (!target || !cb_jp_expect(p, CB_JT_ASSIGN, "'='") || !(value = cb_jp_expression(p))) return NULL;
        cb_jp_above(p, n, value);
        *tail = target;
        target->next = value;
        tail = &value->next;
    }
    if (!body(p, n, &n->list, ENDS("endwith"))) return NULL;
    cb_jp_next(p);
    return n;
}

static cb_jnode *parse_jump(cb_jparse *p, cb_jnode *n)
{
    return p->in_loop ? n : cb_jp_fail(p, n->pos, "break or continue outside of a loop");
}

/* A list of outputs. */
static cb_jnode *parse_print(cb_jparse *p, cb_jnode *n)
{
    n->a = cb_jp_tuple(p, true, NULL, false);
    if (n->a) cb_jp_above(p, n, n->a);
    return n->a ? n : NULL;
}

static const struct {
    const char *word;
    int kind;
    cb_jnode *(*parse)(cb_jparse *p, cb_jnode *n);
} tags[] = {
    {"for", CB_JN_FOR, parse_for},
    {"if", CB_JN_IF, parse_if},
    {"set", CB_JN_SET, parse_set},
    {"macro", CB_JN_MACRO, parse_macro},
    {"call", CB_JN_CALL_BLOCK, parse_call_block},
    {"filter", CB_JN_FILTER_BLOCK, parse_filter_block},
    {"generation", CB_JN_GENERATION, parse_generation},
    {"with", CB_JN_WITH, parse_with},
    {"print", CB_JN_OUTPUT, parse_print},
    {"break", CB_JN_BREAK, parse_jump},
    {"continue", CB_JN_CONTINUE, parse_jump},
};

static cb_jnode *statement(cb_jparse *p)
{
    if (p->cur.type != CB_JT_NAME) return cb_jp_fail(p, p->cur.pos, "tag name expected");
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
        if (!cb_jp_is_name(p, tags[i].word)) continue;
        cb_jnode *n = cb_jp_node(p, tags[i].kind, p->cur.pos);
        if (!n || !cb_jp_deeper(p)) return NULL;
        cb_jp_next(p);
        n = tags[i].parse(p, n);
        p->depth--;
        return n && cb_jp_expect(p, CB_JT_BLOCK_END, "end of statement block") ? n : NULL;
    }
    return cb_jp_fail(p, p->cur.pos, "unknown tag '%.*s'", (int)(p->cur.n < 40 ? p->cur.n : 40), p->cur.s);
}

static cb_jnode *data(cb_jparse *p)
{
    cb_jnode *n = cb_jp_node(p, CB_JN_DATA, p->cur.pos);
    cb_jstr *s = n ? cb_arena_get(&p->t->arena, sizeof *s) : NULL;
    if (!s) return cb_jp_no_memory(p);
    *s = (cb_jstr){.s = p->cur.s, .n = p->cur.n};
    n->value = (cb_jv){.type = CB_J_STR, .s = s};
    cb_jp_next(p);
    return n;
}

static cb_jnode *output(cb_jparse *p)
{
    cb_jnode *n = cb_jp_node(p, CB_JN_OUTPUT, p->cur.pos);
    cb_jp_next(p);
    if (!n || !(n->a = cb_jp_tuple(p, true, NULL, false))) return NULL;
    cb_jp_above(p, n, n->a);
    return cb_jp_expect(p, CB_JT_VAR_END, "'}}'") ? n : NULL;
}

static bool unknown(cb_jparse *p)
{
    const cb_jstr *s = p->unknown->value.s;
    cb_jp_fail(p, p->unknown->pos, "unknown %s '%.*s'", p->unknown->kind == CB_JN_TEST ? "test" : "filter",
               (int)(s->n < 40 ? s->n : 40), s->s);
    return false;
}

static bool statements(cb_jparse *p, cb_jnode *parent, cb_jnode **head, const char *const *ends)
{
    for (cb_jnode **tail = head; !p->rc; ) {
        cb_jnode *n;
        if (p->cur.type == CB_JT_DATA) n = data(p);
        else if (p->cur.type == CB_JT_VAR_BEGIN) n = output(p);
        else if (p->cur.type == CB_JT_BLOCK_BEGIN) {
            cb_jp_next(p);
            for (const char *const *e = ends; e && *e; e++)
                if (cb_jp_is_name(p, *e)) return true;
            n = statement(p);
        } else {
            if (!ends) return true;
            while (ends[1]) ends++; /* the last one always ends the block */
            return cb_jp_fail(p, parent->pos, "this block is not closed: '%s' is missing", *ends), false;
        }
        if (!n) break;
        if (p->unknown) return unknown(p);
        cb_jp_above(p, parent, n);
        *tail = n;
        tail = &n->next;
    }
    return false;
}

/* ---- the whole ---- */

/* Newlines become \n; one at the very end goes. */
static bool take_source(cb_jinja *t, const char *text, size_t n)
{
    char *s = cb_arena_get(&t->arena, n + 1);
    if (!s) return false;
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\r' && i + 1 < n && text[i + 1] == '\n') continue;
        s[k++] = text[i] == '\r' ? '\n' : text[i];
    }
    if (k && s[k - 1] == '\n') k--;
    t->src = s;
    t->n = k;
    return true;
}

int cb_jinja_parse(const char *name, const char *text, size_t n, cb_jinja **out, cb_err *err)
{
    *out = NULL;
    if (n > CB_JINJA_MAX_TEXT)
        return cb_fail(err, CB_EFORMAT, "%s: template has %zu bytes, allowed are %d", name, n, CB_JINJA_MAX_TEXT);
    size_t valid = cb_utf8_valid(text, n);
    if (valid < n) return cb_fail(err, CB_EFORMAT, "%s: not UTF-8 at byte %zu", name, valid);
    cb_jinja *t = cb_alloc(sizeof *t);
    if (!t) return cb_fail(err, CB_ENOMEM, "%s: out of memory", name);
    cb_arena_init(&t->arena, (size_t)256 << 20);
    t->name = cb_arena_strndup(&t->arena, name, strlen(name));
    cb_jparse p = {.t = t, .err = err};
    if (!t->name || !take_source(t, text, n)) p.rc = cb_fail(err, CB_ENOMEM, "%s: out of memory", name);
    cb_jlex_init(&p.lex, t, err);
    const cb_jfunc *f;
    for (size_t i = 0; !p.rc && (f = cb_j_global(i)); i++) cb_jp_name_id(&p, f->name, strlen(f->name));
    if (!p.rc) {
        cb_jp_next(&p);
        cb_jnode top = {0};
        statements(&p, &top, &t->body, NULL);
    }
    if (p.lex.rc && !p.rc) p.rc = p.lex.rc;
    if (p.rc) {
        cb_jinja_close(t);
        return p.rc;
    }
    *out = t;
    return 0;
}

void cb_jinja_close(cb_jinja *t)
{
    if (!t) return;
    cb_arena_fini(&t->arena);
    cb_free(t);
}
