#include "text/tok_scan.h"
#include "text/utf8.h"
#include <string.h>

enum { DEPTH = 100 };

typedef struct scan {
    const char *where, *what;
    const char *begin, *p, *end;
    cb_buf tmp[2]; /* unescaped strings */
    cb_err *err;
} scan;

static int bad(scan *c, const char *why)
{
    return cb_fail(c->err, CB_EFORMAT, "%s: %s, byte %zu: %s", c->where, c->what, (size_t)(c->p - c->begin), why);
}

static void space(scan *c)
{
    while (c->p < c->end && (*c->p == ' ' || *c->p == '\n' || *c->p == '\r' || *c->p == '\t')) c->p++;
}

static bool take(scan *c, char want)
{
    space(c);
    return c->p < c->end && *c->p == want ? c->p++, true : false;
}

/* ---- passing over ---- */

static int skip_string(scan *c)
{
    for (c->p++; c->p < c->end; c->p++) {
        if (*c->p == '"') return c->p++, 0;
        if (*c->p == '\\') c->p++;
    }
    c->p = c->end;
    return bad(c, "a string without its end");
}

/* One value of any kind. Brackets are counted, not matched by kind: the parser behind does that. */
static int skip_value(scan *c)
{
    int depth = 0, rc;
    space(c);
    const char *start = c->p;
    while (c->p < c->end) {
        char k = *c->p;
        if (k == '"') {
            if ((rc = skip_string(c)) < 0) return rc;
        } else if (k == '{' || k == '[') {
            if (++depth > DEPTH) return bad(c, "nested too deep");
            c->p++;
            continue;
        } else if (k == '}' || k == ']') {
            if (depth == 0) break; /* belongs to the surrounding value */
            c->p++;
            depth--;
        } else if (depth == 0 && (k == ',' || k == ':')) {
            break;
        } else {
            c->p++;
            if (depth == 0 && c->p < c->end && strchr(",}] \n\r\t", *c->p)) return 0;
            if (depth == 0) continue;
        }
        if (depth == 0) return 0;
    }
    return c->p > start && depth == 0 ? 0 : bad(c, "a value without its end");
}

typedef int (*member_fn)(scan *c, const char *key, size_t n_key, void *ctx);

/* Calls fn with the reader before each member's value. */
static int each_member(scan *c, member_fn fn, void *ctx)
{
    if (!take(c, '{')) return bad(c, "'{' expected");
    if (take(c, '}')) return 0;
    do {
        space(c);
        if (c->p >= c->end || *c->p != '"') return bad(c, "a key expected");
        const char *key = c->p + 1;
        int rc = skip_string(c);
        if (rc < 0) return rc;
        size_t n = (size_t)(c->p - 1 - key);
        if (!take(c, ':')) return bad(c, "':' expected");
        space(c);
        if ((rc = fn(c, key, n, ctx)) < 0) return rc;
    } while (take(c, ','));
    return take(c, '}') ? 0 : bad(c, "',' or '}' expected");
}

typedef struct finding {
    cb_tok_spans *spans;
    cb_buf *rest;
    const char *copied; /* text up to here is in rest */
} finding;

static int model_member(scan *c, const char *key, size_t n, void *ctx)
{
    finding *f = ctx;
    const char *start = c->p;
    int rc = skip_value(c);
    if (rc < 0) return rc;
    bool vocab = n == 5 && !memcmp(key, "vocab", 5);
    if (!vocab && !(n == 6 && !memcmp(key, "merges", 6))) return 0;
    if (vocab) f->spans->vocab = start, f->spans->vocab_end = c->p;
    else f->spans->merges = start, f->spans->merges_end = c->p;
    cb_buf_put(f->rest, f->copied, (size_t)(start - f->copied));
    cb_buf_puts(f->rest, "null");
    f->copied = c->p;
    return 0;
}

static int root_member(scan *c, const char *key, size_t n, void *ctx)
{
    finding *f = ctx;
    if (n != 5 || memcmp(key, "model", 5) || c->p >= c->end || *c->p != '{') return skip_value(c);
    *f->spans = (cb_tok_spans){0}; /* of two models the later counts */
    return each_member(c, model_member, f);
}

int cb_tok_scan(const char *where, const char *text, size_t n, cb_tok_spans *spans, cb_buf *rest, cb_err *err)
{
    scan c = {.where = where, .what = "document", .begin = text, .p = text, .end = text + n, .err = err};
    finding f = {spans, rest, text};
    *spans = (cb_tok_spans){0};
    int rc = each_member(&c, root_member, &f);
    if (rc < 0) return rc;
    cb_buf_put(rest, f.copied, (size_t)(c.end - f.copied));
    return cb_buf_ok(rest) ? 0 : cb_fail(err, CB_ENOMEM, "%s: no memory to read it", where);
}

/* ---- reading ---- */

static int hex4(const char *p)
{
    int v = 0;
    for (int i = 0; i < 4; i++) {
        char c = p[i];
        int d = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
        if (d < 0) return -1;
        v = v * 16 + d;
    }
    return v;
}

static int read_escape(scan *c, cb_buf *out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (c->p >= c->end) return bad(c, "a backslash at the end");
    const char *hit = *c->p && *c->p != 'u' ? strchr(from, *c->p) : NULL;
    if (hit) {
        cb_buf_putc(out, to[hit - from]);
        c->p++;
        return 0;
    }
    int u = *c->p == 'u' && c->end - c->p >= 5 ? hex4(c->p + 1) : -1;
    if (u < 0) return bad(c, "unknown escape");
    c->p += 5;
    if (u >= 0xdc00 && u <= 0xdfff) return bad(c, "half a surrogate pair");
    if (u >= 0xd800 && u <= 0xdbff) {
        int lo = c->end - c->p >= 6 && c->p[0] == '\\' && c->p[1] == 'u' ? hex4(c->p + 2) : -1;
        if (lo < 0xdc00 || lo > 0xdfff) return bad(c, "half a surrogate pair");
        u = 0x10000 + ((u - 0xd800) << 10) + (lo - 0xdc00);
        c->p += 6;
    }
    cb_utf8_put(out, (uint32_t)u);
    return 0;
}

/* A string; *s lies in the document when it has no escapes, else in tmp. */
static int read_string(scan *c, cb_buf *tmp, const char **s, size_t *n)
{
    if (!take(c, '"')) return bad(c, "a string expected");
    const char *start = c->p;
    tmp->n = 0;
    for (bool plain = true; c->p < c->end;) {
        unsigned char k = (unsigned char)*c->p;
        if (k == '"') {
            *s = start;
            *n = (size_t)(c->p - start);
            if (!plain) {
                cb_buf_put(tmp, start, *n);
                if (!cb_buf_ok(tmp)) return cb_fail(c->err, CB_ENOMEM, "%s: no memory to read it", c->where);
                *s = tmp->data;
                *n = tmp->n;
            }
            c->p++;
            return 0;
        }
        if (k < 0x20) return bad(c, "a control character in a string");
        if (k != '\\') {
            c->p++;
            continue;
        }
        cb_buf_put(tmp, start, (size_t)(c->p - start));
        plain = false;
        c->p++;
        int rc = read_escape(c, tmp);
        if (rc < 0) return rc;
        start = c->p;
    }
    return bad(c, "a string without its end");
}

static int read_id(scan *c, int64_t *id)
{
    space(c);
    const char *start = c->p;
    int64_t v = 0;
    while (c->p < c->end && *c->p >= '0' && *c->p <= '9' && v < 1ll << 40) v = v * 10 + (*c->p++ - '0');
    if (c->p == start || (*start == '0' && c->p - start > 1)) return bad(c, "an id expected");
    if (c->p < c->end && strchr(".eE0123456789", *c->p)) return bad(c, "an id expected");
    *id = v;
    return 0;
}

static void scan_fini(scan *c)
{
    cb_buf_fini(c->tmp);
    cb_buf_fini(c->tmp + 1);
}

static int read_vocab_members(scan *c, cb_vocab *v)
{
    if (!take(c, '{')) return bad(c, "an object of token to id expected");
    if (take(c, '}')) return 0;
    do {
        const char *s;
        size_t n;
        int64_t id = 0;
        int rc = read_string(c, c->tmp, &s, &n);
        if (rc < 0) return rc;
        if (!take(c, ':')) return bad(c, "':' expected");
        if ((rc = read_id(c, &id)) < 0) return rc;
        if ((rc = cb_vocab_add(v, s, n, id, CB_TOKEN_MODEL, c->err)) < 0) return cb_fail_in(c->err, rc, "%s: %s", c->where, c->what);
    } while (take(c, ','));
    return take(c, '}') ? 0 : bad(c, "',' or '}' expected");
}

int cb_tok_read_vocab(cb_tokenizer *t, const char *where, const cb_tok_spans *x, cb_err *err)
{
    if (!x->vocab) return cb_fail(err, CB_EFORMAT, "%s: model.vocab is missing", where);
    scan c = {.where = where, .what = "model.vocab", .begin = x->vocab, .p = x->vocab, .end = x->vocab_end, .err = err};
    size_t bytes = (size_t)(x->vocab_end - x->vocab);
    /* An entry takes about 20 bytes of JSON; growing corrects a bad guess. */
    int rc = cb_vocab_init(&t->vocab, bytes / 20, bytes / 2, err);
    if (rc == 0) rc = read_vocab_members(&c, &t->vocab);
    if (rc == 0 && (space(&c), c.p != c.end)) rc = bad(&c, "text after the object");
    scan_fini(&c);
    return rc;
}

/* ---- merges ---- */

static int read_merge(scan *c, const char **l, size_t *nl, const char **r, size_t *nr)
{
    int rc;
    space(c);
    if (c->p < c->end && *c->p == '"') {
        if ((rc = read_string(c, c->tmp, l, nl)) < 0) return rc;
        if (*nl >= 8 && !memcmp(*l, "#version", 8)) return 1;
        const char *gap = memchr(*l, ' ', *nl);
        size_t k = gap ? (size_t)(gap - *l) : 0;
        if (!gap || memchr(gap + 1, ' ', *nl - k - 1)) return bad(c, "a merge is not two tokens with a space between");
        *r = gap + 1;
        *nr = *nl - k - 1;
        *nl = k;
        return 0;
    }
    if (!take(c, '[')) return bad(c, "a string or a pair expected");
    if ((rc = read_string(c, c->tmp, l, nl)) < 0) return rc;
    if (!take(c, ',')) return bad(c, "a merge is not a pair");
    if ((rc = read_string(c, c->tmp + 1, r, nr)) < 0) return rc;
    return take(c, ']') ? 0 : bad(c, "a merge is not a pair");
}

static int add_merge(cb_tokenizer *t, scan *c, const char *l, size_t nl, const char *r, size_t nr)
{
    int32_t left = cb_vocab_find(&t->vocab, l, nl), right = cb_vocab_find(&t->vocab, r, nr), both = -1;
    char small[256], *joined = small;
    /* The prefix of continued pieces stands inside a word only once. */
    size_t cut = t->n_prefix, n = nl + nr - cut;
    if (cut > nr || nl > (1u << 30)) return bad(c, "a merge is shorter than continuing_subword_prefix");
    if (n > sizeof small && !(joined = cb_alloc(n))) return cb_fail(c->err, CB_ENOMEM, "%s: no memory to read it", c->where);
    memcpy(joined, l, nl);
    memcpy(joined + nl, r + cut, nr - cut);
    if (left >= 0 && right >= 0) both = cb_vocab_find(&t->vocab, joined, n);
    if (joined != small) cb_free(joined);
    if (both < 0)
        return cb_fail(c->err, CB_EFORMAT, "%s: %s: '%.*s' + '%.*s': %s is not in the vocabulary", c->where, c->what,
                       (int)(nl < 60 ? nl : 60), l, (int)(nr < 60 ? nr : 60), r,
                       left < 0 ? "the left token" : right < 0 ? "the right token" : "the joined token");
    cb_merges_add(&t->merges, left, right, both);
    return 0;
}

/* An upper bound of the number of merges: the commas outside strings at the array's own level, and one. */
static size_t count_merges(scan c)
{
    size_t n = 1;
    int depth = 0;
    while (c.p < c.end) {
        if (*c.p == '"') {
            if (skip_string(&c) < 0) break;
            continue;
        }
        depth += (*c.p == '[') - (*c.p == ']');
        n += *c.p == ',' && depth == 1;
        c.p++;
    }
    return n;
}

static int read_merge_list(cb_tokenizer *t, scan *c)
{
    scan ahead = *c;
    ahead.err = NULL;
    int rc = cb_merges_init(&t->merges, count_merges(ahead), c->err);
    if (rc < 0) return rc;
    if (!take(c, '[')) return bad(c, "an array expected");
    if (take(c, ']')) return 0;
    do {
        const char *l, *r;
        size_t nl, nr;
        if ((rc = read_merge(c, &l, &nl, &r, &nr)) < 0) return rc;
        if (rc == 0 && (rc = add_merge(t, c, l, nl, r, nr)) < 0) return rc;
    } while (take(c, ','));
    return take(c, ']') ? 0 : bad(c, "',' or ']' expected");
}

int cb_tok_read_merges(cb_tokenizer *t, const char *where, const cb_tok_spans *x, cb_err *err)
{
    if (!x->merges) return cb_fail(err, CB_EFORMAT, "%s: model.merges is missing", where);
    scan c = {.where = where, .what = "model.merges", .begin = x->merges, .p = x->merges, .end = x->merges_end, .err = err};
    int rc = read_merge_list(t, &c);
    if (rc == 0 && (space(&c), c.p != c.end)) rc = bad(&c, "text after the array");
    scan_fini(&c);
    return rc;
}
