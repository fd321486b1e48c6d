/* jinja_ast.h: tokens and the tree of a parsed template. Inside src/text/jinja*.c only. */
#ifndef CB_TEXT_JINJA_AST_H
#define CB_TEXT_JINJA_AST_H
#include "text/jinja_value.h"

/* ---- tokens ---- */
enum {
    CB_JT_EOF,
    CB_JT_DATA,
    CB_JT_VAR_BEGIN,
    CB_JT_VAR_END,
    CB_JT_BLOCK_BEGIN,
    CB_JT_BLOCK_END,
    CB_JT_NAME,
    CB_JT_STRING,
    CB_JT_INT,
    CB_JT_FLOAT,
    CB_JT_ADD, /* the operators; those of expressions are also node operators */
    CB_JT_SUB,
    CB_JT_MUL,
    CB_JT_DIV,
    CB_JT_FLOORDIV,
    CB_JT_MOD,
    CB_JT_POW,
    CB_JT_TILDE,
    CB_JT_EQ,
    CB_JT_NE,
    CB_JT_GT,
    CB_JT_GE,
    CB_JT_LT,
    CB_JT_LE,
    CB_JT_IN, /* only as node operators: the tokens are names */
    CB_JT_NOT_IN,
    CB_JT_ASSIGN,
    CB_JT_DOT,
    CB_JT_COLON,
    CB_JT_PIPE,
    CB_JT_COMMA,
    CB_JT_SEMICOLON,
    CB_JT_LPAREN,
    CB_JT_RPAREN,
    CB_JT_LBRACKET,
    CB_JT_RBRACKET,
    CB_JT_LBRACE,
    CB_JT_RBRACE
};

typedef struct cb_jtoken {
    int type;
    uint32_t pos;  /* where it starts in the source */
    const char *s; /* data, name, or the unescaped text of a string (in the arena) */
    size_t n;
    int64_t i;
    double f;
} cb_jtoken;

enum { CB_JLEX_TEXT, CB_JLEX_RAW, CB_JLEX_BLOCK, CB_JLEX_VAR };
enum { CB_JMAX_BRACKETS = 256 };
typedef struct cb_jlex {
    cb_jinja *t;
    cb_err *err;
    int rc; /* sticky */
    size_t pos;
    int state, pending; /* pending: the tag token that follows a data token, or -1 */
    uint32_t pending_pos;
    char brackets[CB_JMAX_BRACKETS];
    int n_brackets;
} cb_jlex;

/* ---- nodes ---- */
enum {
    CB_JN_CONST, /* value */
    CB_JN_NAME,  /* name */
    CB_JN_LIST,  /* list */
    CB_JN_TUPLE,
    CB_JN_DICT,    /* list: key, value, key, value ... */
    CB_JN_ATTR,    /* a . value */
    CB_JN_ITEM,    /* a [ b ] */
    CB_JN_SLICE,   /* a [ b : c : d ], each may be NULL */
    CB_JN_CALL,    /* a ( args ) */
    CB_JN_FILTER,  /* a | fn ( args ); a is NULL in filter blocks */
    CB_JN_TEST,    /* a is fn args */
    CB_JN_NOT,     /* a */
    CB_JN_AND,     /* a, b */
    CB_JN_OR,
    CB_JN_COND,    /* a if b else c (c may be NULL) */
    CB_JN_COMPARE, /* a, list of CB_JN_OPERAND */
    CB_JN_OPERAND, /* op, a */
    CB_JN_BINARY,  /* a op b */
    CB_JN_NEG,     /* a */
    CB_JN_POS,
    CB_JN_CONCAT,  /* list */
    CB_JN_NSREF,   /* name . value, a target only */
    CB_JN_KWARG,   /* value = a */

    CB_JN_DATA,        /* value */
    CB_JN_OUTPUT,      /* a */
    CB_JN_FOR,         /* for a in b if c: list, else: other */
    CB_JN_IF,          /* a: list, else: other (an elif is an if there) */
    CB_JN_SET,         /* a = b */
    CB_JN_SET_BLOCK,   /* a = list, through filter b */
    CB_JN_MACRO,       /* name, params, list */
    CB_JN_CALL_BLOCK,  /* params, a: the call, list */
    CB_JN_FILTER_BLOCK, /* b: filters, list */
    CB_JN_GENERATION,  /* list */
    CB_JN_WITH,        /* other: targets and values alternating, list */
    CB_JN_BREAK,
    CB_JN_CONTINUE
};

/* Flags of macros and call blocks: which special names the body reads. */
enum { CB_JF_CALLER = 1, CB_JF_KWARGS = 2, CB_JF_VARARGS = 4 };

struct cb_jnode {
    uint8_t kind, op, flags;
    uint16_t height; /* of the tree below, at least 1; bounds the recursion of the evaluator */
    uint32_t pos;    /* in the source */
    uint32_t name;   /* id in cb_jinja.names */
    cb_jnode *next;  /* in whatever list it stands */
    cb_jnode *a, *b, *c, *d;
    cb_jnode *list, *other; /* heads */
    cb_jnode *args, *kwargs, *dyn_args, *dyn_kwargs;
    cb_jnode *params; /* CB_JN_NAME nodes; a: default value */
    uint32_t n_params;
    const cb_jfunc *fn; /* NULL: unknown, fails when reached */
    cb_jv value;
};

struct cb_jinja {
    cb_arena arena;
    char *name;      /* for messages */
    const char *src; /* newlines are \n, last one cut */
    size_t n;
    cb_jnode *body;
    const cb_jstr **names; /* by id; globals come first, in the order of cb_j_global() */
    uint32_t n_names, cap_names;
    uint32_t *slots; /* hash of names to id + 1; n_slots is a power of two */
    uint32_t n_slots;
};

/* Limits of a parsed template: heights of expressions and nesting of blocks. */
enum { CB_JMAX_HEIGHT = 350 };

/* Line and column (in characters), both from 1. */
void cb_jinja_where(const cb_jinja *t, size_t pos, int *line, int *col);
uint32_t cb_jinja_find_name(const cb_jinja *t, const char *s, size_t n); /* id, or UINT32_MAX */

void cb_jlex_init(cb_jlex *l, cb_jinja *t, cb_err *err);
/* The next token; after an error CB_JT_EOF with l->rc set. */
cb_jtoken cb_jlex_next(cb_jlex *l);
const char *cb_jlex_show(const cb_jtoken *t); /* "end of template", "'}'", ... */

/* The parser's state, shared by jinja_parse.c (statements) and jinja_expr.c. */
typedef struct cb_jparse {
    cb_jlex lex;
    cb_jinja *t;
    cb_err *err;
    int rc;
    cb_jtoken cur, ahead;
    bool has_ahead;
    int depth;
    int in_loop;      /* nesting of for loops inside the innermost macro */
    bool soft;        /* inside an if: an unknown filter or test fails only when it is reached */
    const cb_jnode *unknown; /* an unknown one outside of an if: fails unless a conditional expression turns out to hold it */
    uint8_t *special; /* flags of the innermost macro or call block, or NULL */
} cb_jparse;

void *cb_jp_fail(cb_jparse *p, uint32_t pos, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void *cb_jp_no_memory(cb_jparse *p);
cb_jnode *cb_jp_node(cb_jparse *p, int kind, uint32_t pos);
/* Makes n at least one higher than child; fails when too high. */
void cb_jp_above(cb_jparse *p, cb_jnode *n, const cb_jnode *child);
void cb_jp_next(cb_jparse *p);
bool cb_jp_is_name(const cb_jparse *p, const char *word);
bool cb_jp_skip_name(cb_jparse *p, const char *word);
bool cb_jp_skip(cb_jparse *p, int type);
bool cb_jp_expect(cb_jparse *p, int type, const char *what);
uint32_t cb_jp_name_id(cb_jparse *p, const char *s, size_t n);
bool cb_jp_deeper(cb_jparse *p);

cb_jnode *cb_jp_expression(cb_jparse *p);
/* A tuple without parentheses, or one expression. end_word: a name that may follow ("recursive"), or NULL. */
cb_jnode *cb_jp_tuple(cb_jparse *p, bool with_cond, const char *end_word, bool parens);
cb_jnode *cb_jp_filters(cb_jparse *p, cb_jnode *input, bool start_inline);
/* A name, or (with_tuple) names, nested; with_ns also ns.attr. */
cb_jnode *cb_jp_target(cb_jparse *p, const char *end_word, bool with_ns);
#endif
