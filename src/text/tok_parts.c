#include "text/tok_parts.h"
#include "text/utf8.h"
#include <stdio.h>
#include <string.h>

enum { MAX_DEPTH = 8, PATH = 160 };

/* A component on its way: where it stands, for messages. */
typedef struct part {
    cb_tokenizer *t;
    const char *where;
    char path[PATH];
    const json_t *j;
    const char *type;
    int depth;
    bool *fused; /* decoder: after Fuse the text is one token */
    cb_err *err;
} part;

#define GPT2_PATTERN "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
/* The word class of the reference's own Whitespace rule, which is not Oniguruma's. */
#define RUST_WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}"

static int unsupported(const part *p, const char *field, const char *value)
{
    return cb_fail(p->err, CB_EFORMAT, "%s: %s.%s '%.60s' is not supported", p->where, p->path, field, value);
}

static int no_memory(const part *p) { return cb_fail(p->err, CB_ENOMEM, "%s: no memory for %s", p->where, p->path); }

static int open_part(part *p, const json_t *j)
{
    p->j = j;
    if (!json_is_object(j)) return cb_fail(p->err, CB_EFORMAT, "%s: %s is not an object", p->where, p->path);
    const json_t *type = json_object_get(j, "type");
    if (!json_is_string(type)) return cb_fail(p->err, CB_EFORMAT, "%s: %s.type is missing", p->where, p->path);
    p->type = json_string_value(type);
    return 0;
}

static bool is(const part *p, const char *type) { return !strcmp(p->type, type); }

/* A string field with its length, kept in the tokenizer's arena. 0, or CB_EFORMAT when absent. */
static int get_text(const part *p, const json_t *obj, const char *key, const char **s, size_t *n)
{
    const json_t *v = json_object_get(obj, key);
    if (!json_is_string(v)) return cb_fail(p->err, CB_EFORMAT, "%s: %s.%s is not a string", p->where, p->path, key);
    *n = json_string_length(v);
    *s = cb_arena_strndup(&p->t->arena, json_string_value(v), *n);
    return *s ? 0 : no_memory(p);
}

static int get_bool(const part *p, const char *key, bool *v)
{
    char name[PATH + 40];
    const json_t *f = json_object_get(p->j, key);
    if (!f || json_is_null(f)) return 0;
    snprintf(name, sizeof name, "%s.%s", p->path, key);
    if (!json_is_boolean(f)) return cb_fail(p->err, CB_EFORMAT, "%s: %s is not true or false", p->where, name);
    *v = json_is_true(f);
    return 0;
}

static int regex_finder(const part *p, cb_finder *f, const char *pattern, size_t n)
{
    char name[PATH + 200];
    snprintf(name, sizeof name, "%s: %s", p->where, p->path);
    f->kind = CB_FIND_REGEX;
    return cb_regex_open(name, pattern, n, &f->re, p->err);
}

/* "pattern": {"String": s} or {"Regex": s}. */
static int get_pattern(const part *p, cb_finder *f)
{
    const json_t *v = json_object_get(p->j, "pattern");
    if (json_is_object(v) && json_object_get(v, "String")) {
        f->kind = CB_FIND_TEXT;
        return get_text(p, v, "String", &f->text, &f->n);
    }
    const json_t *r = json_is_object(v) ? json_object_get(v, "Regex") : NULL;
    if (!json_is_string(r)) return cb_fail(p->err, CB_EFORMAT, "%s: %s.pattern is neither String nor Regex", p->where, p->path);
    return regex_finder(p, f, json_string_value(r), json_string_length(r));
}

/* One character, such as Metaspace's replacement. */
static int get_char(const part *p, const char *key, const char **s, size_t *n)
{
    uint32_t cp;
    int rc = get_text(p, p->j, key, s, n);
    if (rc < 0) return rc;
    if (!*n || cb_utf8_decode(*s, *n, &cp) != (int)*n)
        return cb_fail(p->err, CB_EFORMAT, "%s: %s.%s is not one character", p->where, p->path, key);
    return 0;
}

typedef int (*part_fn)(part *p, const json_t *j);

/* Calls fn for each component of a Sequence's list. */
static int each(const part *p, const char *key, part_fn fn)
{
    const json_t *list = json_object_get(p->j, key), *v;
    size_t i;
    if (!json_is_array(list)) return cb_fail(p->err, CB_EFORMAT, "%s: %s.%s is not an array", p->where, p->path, key);
    if (p->depth >= MAX_DEPTH) return cb_fail(p->err, CB_EFORMAT, "%s: %s is nested deeper than %d", p->where, p->path, MAX_DEPTH);
    json_array_foreach(list, i, v) {
        part sub = *p;
        snprintf(sub.path, sizeof sub.path, "%.100s.%s[%zu]", p->path, key, i);
        sub.depth++;
        int rc = fn(&sub, v);
        if (rc < 0) return rc;
    }
    return 0;
}

static int too_many(const part *p)
{
    return cb_fail(p->err, CB_EFORMAT, "%s: %s: more than %d steps", p->where, p->path, CB_TOK_MAX_STEPS);
}

/* ---- normalizer ---- */

static int normalizer(part *p, const json_t *j)
{
    static const struct { const char *type; int kind; } plain[] = {
        {"NFC", CB_NORM_NFC}, {"NFD", CB_NORM_NFD}, {"NFKC", CB_NORM_NFKC}, {"NFKD", CB_NORM_NFKD},
        {"Lowercase", CB_NORM_LOWER}, {"StripAccents", CB_NORM_STRIP_MARKS}, {"ByteLevel", CB_NORM_BYTES},
    };
    int rc = open_part(p, j);
    if (rc < 0) return rc;
    if (is(p, "Sequence")) return each(p, "normalizers", normalizer);
    if (p->t->n_norm == CB_TOK_MAX_STEPS) return too_many(p);
    cb_norm_step *s = p->t->norm + p->t->n_norm++;
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (is(p, plain[i].type)) return s->kind = plain[i].kind, 0;
    if (is(p, "Strip")) {
        s->kind = CB_NORM_STRIP;
        s->left = s->right = true;
        return (rc = get_bool(p, "strip_left", &s->left)) < 0 ? rc : get_bool(p, "strip_right", &s->right);
    }
    if (is(p, "Replace")) {
        s->kind = CB_NORM_REPLACE;
        return (rc = get_pattern(p, &s->find)) < 0 ? rc : get_text(p, j, "content", &s->text, &s->n);
    }
    if (is(p, "Prepend")) {
        s->kind = CB_NORM_PREPEND;
        return get_text(p, j, "prepend", &s->text, &s->n);
    }
    return unsupported(p, "type", p->type);
}

int cb_tok_read_normalizer(cb_tokenizer *t, const char *where, const json_t *j, cb_err *err)
{
    part p = {.t = t, .where = where, .path = "normalizer", .err = err};
    return !j || json_is_null(j) ? 0 : normalizer(&p, j);
}

/* ---- pre-tokenizer ---- */

static cb_pre_step *new_pre(const part *p, int kind)
{
    if (p->t->n_pre == CB_TOK_MAX_STEPS) return too_many(p), NULL;
    cb_pre_step *s = p->t->pre + p->t->n_pre++;
    s->kind = kind;
    return s;
}

static int get_behavior(const part *p, int otherwise, int *behavior)
{
    static const struct { const char *name; int value; } known[] = {
        {"Removed", CB_SPLIT_REMOVED}, {"Isolated", CB_SPLIT_ISOLATED}, {"MergedWithPrevious", CB_SPLIT_PREVIOUS},
        {"MergedWithNext", CB_SPLIT_NEXT}, {"Contiguous", CB_SPLIT_CONTIGUOUS},
    };
    const json_t *v = json_object_get(p->j, "behavior");
    *behavior = otherwise;
    if (!v && otherwise >= 0) return 0;
    for (size_t i = 0; json_is_string(v) && i < sizeof known / sizeof *known; i++)
        if (!strcmp(json_string_value(v), known[i].name)) return *behavior = known[i].value, 0;
    return unsupported(p, "behavior", json_is_string(v) ? json_string_value(v) : "");
}

static int add_split(const part *p, int kind, const char *text, size_t n, int behavior, bool invert)
{
    cb_pre_step *s = new_pre(p, CB_PRE_SPLIT);
    if (!s) return CB_EFORMAT;
    s->behavior = behavior;
    s->invert = invert;
    if (kind == CB_FIND_REGEX) return regex_finder(p, &s->find, text, n);
    s->find = (cb_finder){kind, NULL, text, n};
    return 0;
}

static int byte_level(const part *p)
{
    bool space = true, regex = true;
    int rc;
    if ((rc = get_bool(p, "add_prefix_space", &space)) < 0 || (rc = get_bool(p, "use_regex", &regex)) < 0) return rc;
    if (space) {
        cb_pre_step *s = new_pre(p, CB_PRE_PREPEND);
        if (!s) return CB_EFORMAT;
        s->text = " ";
        s->n = 1;
    }
    if (regex && (rc = add_split(p, CB_FIND_REGEX, GPT2_PATTERN, strlen(GPT2_PATTERN), CB_SPLIT_ISOLATED, false)) < 0) return rc;
    return new_pre(p, CB_PRE_BYTES) ? 0 : CB_EFORMAT;
}

static int get_when(const part *p, int *when)
{
    const json_t *scheme = json_object_get(p->j, "prepend_scheme"), *legacy = json_object_get(p->j, "add_prefix_space");
    const char *s = json_is_string(scheme) ? json_string_value(scheme) : "always";
    *when = !strcmp(s, "always") ? CB_WHEN_ALWAYS : !strcmp(s, "first") ? CB_WHEN_FIRST : CB_WHEN_NEVER;
    if (*when == CB_WHEN_NEVER && strcmp(s, "never")) return unsupported(p, "prepend_scheme", s);
    if (json_is_false(legacy)) *when = CB_WHEN_NEVER;
    return 0;
}

static int metaspace(const part *p)
{
    const char *rep;
    size_t n;
    bool do_split = true;
    int when, rc;
    if ((rc = get_char(p, "replacement", &rep, &n)) < 0 || (rc = get_when(p, &when)) < 0 || (rc = get_bool(p, "split", &do_split)) < 0)
        return rc;
    cb_pre_step *s = new_pre(p, CB_PRE_REPLACE);
    if (!s) return CB_EFORMAT;
    *s = (cb_pre_step){.kind = CB_PRE_REPLACE, .find = {CB_FIND_TEXT, NULL, " ", 1}, .text = rep, .n = n};
    if (!(s = new_pre(p, CB_PRE_PREPEND))) return CB_EFORMAT;
    *s = (cb_pre_step){.kind = CB_PRE_PREPEND, .when = when, .text = rep, .n = n};
    return do_split ? add_split(p, CB_FIND_TEXT, rep, n, CB_SPLIT_NEXT, false) : 0;
}

static int split(const part *p)
{
    cb_pre_step *s = new_pre(p, CB_PRE_SPLIT);
    int rc;
    if (!s) return CB_EFORMAT;
    if ((rc = get_behavior(p, -1, &s->behavior)) < 0 || (rc = get_bool(p, "invert", &s->invert)) < 0) return rc;
    return get_pattern(p, &s->find);
}

static int pre_tokenizer(part *p, const json_t *j)
{
    int rc = open_part(p, j), behavior;
    if (rc < 0) return rc;
    if (is(p, "Sequence")) return each(p, "pretokenizers", pre_tokenizer);
    if (is(p, "ByteLevel")) return byte_level(p);
    if (is(p, "Split")) return split(p);
    if (is(p, "Metaspace")) return metaspace(p);
    if (is(p, "Digits")) {
        bool single = false;
        if ((rc = get_bool(p, "individual_digits", &single)) < 0) return rc;
        return add_split(p, CB_FIND_NUMERIC, NULL, 0, single ? CB_SPLIT_ISOLATED : CB_SPLIT_CONTIGUOUS, false);
    }
    if (is(p, "Punctuation")) {
        if ((rc = get_behavior(p, CB_SPLIT_ISOLATED, &behavior)) < 0) return rc;
        return add_split(p, CB_FIND_PUNCT, NULL, 0, behavior, false);
    }
    if (is(p, "Whitespace")) {
        static const char words[] = "[" RUST_WORD "]+|[^" RUST_WORD "\\s]+";
        return add_split(p, CB_FIND_REGEX, words, sizeof words - 1, CB_SPLIT_REMOVED, true);
    }
    if (is(p, "WhitespaceSplit")) return add_split(p, CB_FIND_SPACE, NULL, 0, CB_SPLIT_REMOVED, false);
    if (is(p, "BertPreTokenizer")) {
        if ((rc = add_split(p, CB_FIND_SPACE, NULL, 0, CB_SPLIT_REMOVED, false)) < 0) return rc;
        return add_split(p, CB_FIND_PUNCT, NULL, 0, CB_SPLIT_ISOLATED, false);
    }
    if (is(p, "CharDelimiterSplit")) {
        const char *s;
        size_t n;
        if ((rc = get_char(p, "delimiter", &s, &n)) < 0) return rc;
        return add_split(p, CB_FIND_TEXT, s, n, CB_SPLIT_REMOVED, false);
    }
    return unsupported(p, "type", p->type);
}

int cb_tok_read_pre_tokenizer(cb_tokenizer *t, const char *where, const json_t *j, cb_err *err)
{
    part p = {.t = t, .where = where, .path = "pre_tokenizer", .err = err};
    int rc = !j || json_is_null(j) ? 0 : pre_tokenizer(&p, j);
    if (rc < 0) return rc;
    /* The usual last step, bytes to ByteLevel's alphabet, is not carried out: BPE starts from the bytes themselves. */
    if (t->n_pre && t->pre[t->n_pre - 1].kind == CB_PRE_BYTES && !t->n_prefix && !t->n_suffix) {
        t->n_pre--;
        t->byte_level = true;
    }
    return 0;
}

/* ---- post-processor ---- */

/* Puts ids outside of what is there: in front of `before`, behind `after`. */
static int add_around(const part *p, bool in_front, const int32_t *ids, int n)
{
    int32_t **list = in_front ? &p->t->before : &p->t->after;
    int *count = in_front ? &p->t->n_before : &p->t->n_after;
    if (n > CB_TOK_MAX_AFFIX - *count)
        return cb_fail(p->err, CB_EFORMAT, "%s: %s adds more than %d tokens", p->where, p->path, CB_TOK_MAX_AFFIX);
    if (!n) return 0;
    int32_t *grown = cb_realloc(*list, (size_t)(*count + n) * sizeof *grown);
    if (!grown) return no_memory(p);
    *list = grown;
    if (in_front) memmove(grown + n, grown, (size_t)*count * sizeof *grown);
    memcpy(in_front ? grown : grown + *count, ids, (size_t)n * sizeof *ids);
    *count += n;
    return 0;
}

static int get_id(const part *p, const json_t *v, int32_t *id)
{
    json_int_t i = json_is_integer(v) ? json_integer_value(v) : -1;
    if (i < 0 || i > CB_VOCAB_MAX_ID) return cb_fail(p->err, CB_EFORMAT, "%s: %s: a token id is not in 0..%d", p->where, p->path, CB_VOCAB_MAX_ID);
    *id = (int32_t)i;
    return 0;
}

static int template_token(const part *p, const json_t *piece, int32_t *ids, int *n)
{
    const json_t *name = json_object_get(piece, "id"), *all = json_object_get(p->j, "special_tokens");
    const json_t *def = json_is_string(name) && json_is_object(all) ? json_object_get(all, json_string_value(name)) : NULL;
    const json_t *list = def ? json_object_get(def, "ids") : NULL, *v;
    size_t i;
    if (!json_is_array(list))
        return cb_fail(p->err, CB_EFORMAT, "%s: %s.special_tokens has no ids for '%.60s'", p->where, p->path,
                       json_is_string(name) ? json_string_value(name) : "");
    json_array_foreach(list, i, v) {
        if (*n == CB_TOK_MAX_AFFIX) return cb_fail(p->err, CB_EFORMAT, "%s: %s adds more than %d tokens", p->where, p->path, CB_TOK_MAX_AFFIX);
        int rc = get_id(p, v, ids + *n);
        if (rc < 0) return rc;
        ++*n;
    }
    return 0;
}

static int template(const part *p)
{
    const json_t *list = json_object_get(p->j, "single"), *v;
    int32_t ids[2][CB_TOK_MAX_AFFIX];
    int n[2] = {0, 0}, seen = 0, rc;
    size_t i;
    if (!json_is_array(list)) return cb_fail(p->err, CB_EFORMAT, "%s: %s.single is not an array", p->where, p->path);
    json_array_foreach(list, i, v) {
        const json_t *token = json_object_get(v, "SpecialToken");
        if (token) {
            if ((rc = template_token(p, token, ids[seen], &n[seen])) < 0) return rc;
        } else if (!json_object_get(v, "Sequence") || seen++) {
            return cb_fail(p->err, CB_EFORMAT, "%s: %s.single is not special tokens around one Sequence", p->where, p->path);
        }
    }
    if (seen != 1) return cb_fail(p->err, CB_EFORMAT, "%s: %s.single is not special tokens around one Sequence", p->where, p->path);
    return (rc = add_around(p, true, ids[0], n[0])) < 0 ? rc : add_around(p, false, ids[1], n[1]);
}

static int post_processor(part *p, const json_t *j)
{
    int rc = open_part(p, j);
    if (rc < 0) return rc;
    if (is(p, "Sequence")) return each(p, "processors", post_processor);
    if (is(p, "ByteLevel")) return 0; /* offsets only */
    if (is(p, "TemplateProcessing")) return template(p);
    if (is(p, "RobertaProcessing") || is(p, "BertProcessing")) {
        int32_t cls, sep;
        if ((rc = get_id(p, json_array_get(json_object_get(j, "cls"), 1), &cls)) < 0) return rc;
        if ((rc = get_id(p, json_array_get(json_object_get(j, "sep"), 1), &sep)) < 0) return rc;
        return (rc = add_around(p, true, &cls, 1)) < 0 ? rc : add_around(p, false, &sep, 1);
    }
    return unsupported(p, "type", p->type);
}

int cb_tok_read_post_processor(cb_tokenizer *t, const char *where, const json_t *j, cb_err *err)
{
    part p = {.t = t, .where = where, .path = "post_processor", .err = err};
    return !j || json_is_null(j) ? 0 : post_processor(&p, j);
}

/* ---- decoder ---- */

static int get_count(const part *p, const char *key, int *v)
{
    const json_t *f = json_object_get(p->j, key);
    json_int_t i = json_is_integer(f) ? json_integer_value(f) : -1;
    if (i < 0 || i > 1000) return cb_fail(p->err, CB_EFORMAT, "%s: %s.%s is not in 0..1000", p->where, p->path, key);
    *v = (int)i;
    return 0;
}

static int decoder(part *p, const json_t *j)
{
    int rc = open_part(p, j);
    if (rc < 0) return rc;
    if (is(p, "Sequence")) return each(p, "decoders", decoder);
    if (is(p, "Fuse")) return *p->fused = true, 0;
    if (p->t->n_dec == CB_TOK_MAX_STEPS) return too_many(p);
    cb_dec_step *s = p->t->dec + p->t->n_dec++;
    if (is(p, "Strip")) {
        s->kind = *p->fused ? CB_DEC_STRIP_ALL : CB_DEC_STRIP;
        if ((rc = get_char(p, "content", &s->text, &s->n)) < 0 || (rc = get_count(p, "start", &s->start)) < 0) return rc;
        return get_count(p, "stop", &s->stop);
    }
    if (*p->fused && (is(p, "Replace") || is(p, "ByteFallback") || is(p, "Metaspace") || is(p, "ByteLevel")))
        return unsupported(p, "type after Fuse or ByteLevel", p->type);
    if (is(p, "Replace")) {
        s->kind = CB_DEC_REPLACE;
        return (rc = get_pattern(p, &s->find)) < 0 ? rc : get_text(p, j, "content", &s->text, &s->n);
    }
    if (is(p, "ByteFallback")) return s->kind = CB_DEC_BYTE_FALLBACK, 0;
    if (is(p, "ByteLevel")) return s->kind = CB_DEC_BYTE_LEVEL, *p->fused = true, 0;
    if (is(p, "Metaspace")) {
        int when;
        s->kind = CB_DEC_METASPACE;
        if ((rc = get_char(p, "replacement", &s->text, &s->n)) < 0 || (rc = get_when(p, &when)) < 0) return rc;
        s->start = when != CB_WHEN_NEVER;
        return 0;
    }
    return unsupported(p, "type", p->type);
}

int cb_tok_read_decoder(cb_tokenizer *t, const char *where, const json_t *j, cb_err *err)
{
    bool fused = false;
    part p = {.t = t, .where = where, .path = "decoder", .fused = &fused, .err = err};
    t->dec_join_space = !j || json_is_null(j);
    return t->dec_join_space ? 0 : decoder(&p, j);
}

void cb_tok_free_steps(cb_tokenizer *t)
{
    for (int i = 0; i < CB_TOK_MAX_STEPS; i++) {
        cb_regex_close(t->norm[i].find.re);
        cb_regex_close(t->pre[i].find.re);
        cb_regex_close(t->dec[i].find.re);
    }
}
