/* tok_encode.c: from text to pieces. See tok.h for the order of work. */
#include "text/tok.h"
#include "text/unicode.h"
#include "text/utf8.h"
#include <string.h>

typedef struct encoder {
    const cb_tokenizer *t;
    int flags;
    cb_regex_run run;
    cb_buf norm[2];
    cb_buf step[CB_TOK_MAX_STEPS]; /* a step's rewritten text, in use while the steps below it run */
    cb_buf plain;  /* a segment without its shield marks */
    bool shielded; /* the segment had some: no special token in it counts */
    cb_bpe *bpe;
    cb_ids ids;
    cb_err *err;
} encoder;

static int no_memory(encoder *e, size_t n)
{
    return cb_fail(e->err, CB_ENOMEM, "no memory to encode %zu bytes, or the tokenizer makes too much of them", n);
}

/* Replacements multiply; the buffers' limit keeps a hostile tokenizer from filling the memory. */
static void init_buffers(encoder *e, size_t n)
{
    size_t limit = n < CB_TOK_MAX_TEXT / CB_TOK_MAX_GROWTH ? n * CB_TOK_MAX_GROWTH + (1 << 20) : CB_TOK_MAX_TEXT;
    for (int i = 0; i < 2; i++) cb_buf_init(e->norm + i, limit);
    for (int i = 0; i < CB_TOK_MAX_STEPS; i++) cb_buf_init(e->step + i, limit);
}

/* ---- pre-tokenizers ---- */

static int piece(encoder *e, int step, const char *s, size_t n, bool first);

/* Ranges of a Split on their way out, in the order of the text. How matches join their neighbours is decided one range late. */
typedef struct splitter {
    encoder *e;
    const cb_pre_step *p;
    int step;
    const char *s;
    bool first;
    size_t a, b; /* the range that waits */
    bool waits, wait_match;
    bool prev_match;
} splitter;

static int out_range(splitter *x, size_t a, size_t b)
{
    return a < b ? piece(x->e, x->step + 1, x->s + a, b - a, x->first && a == 0) : 0;
}

static int put_range(splitter *x, size_t a, size_t b, bool match)
{
    match ^= x->p->invert;
    int rc = 0;
    bool join = false;
    switch (x->p->behavior) {
    case CB_SPLIT_REMOVED: return match ? 0 : out_range(x, a, b);
    case CB_SPLIT_ISOLATED: return out_range(x, a, b);
    case CB_SPLIT_CONTIGUOUS: join = match == x->prev_match; break;
    case CB_SPLIT_PREVIOUS: join = match && !x->prev_match; break;
    case CB_SPLIT_NEXT: join = x->wait_match && !match; break;
    }
    x->prev_match = match;
    if (x->waits && join) {
        x->b = b;
    } else {
        if (x->waits) rc = out_range(x, x->a, x->b);
        x->a = a, x->b = b;
        x->waits = true;
    }
    /* A match that already took in its successor takes no second one. */
    x->wait_match = match;
    return rc;
}

static int split(encoder *e, int step, const char *s, size_t n, bool first)
{
    const cb_pre_step *p = e->t->pre + step;
    const char *view = cb_find_view(&p->find, &e->run, &e->step[step], s, n);
    if (!view) return no_memory(e, n);
    /* The copy must outlive the steps below, which may come here again only through other step numbers. */
    splitter x = {.e = e, .p = p, .step = step, .s = s, .first = first};
    size_t from = 0, a, b;
    int rc;
    for (bool after = false; (rc = cb_find(&p->find, &e->run, view, n, from, after, &a, &b, e->err)) > 0; after = true) {
        if (a > from && (rc = put_range(&x, from, a, false)) < 0) return rc;
        if ((rc = put_range(&x, a, b, true)) < 0) return rc;
        from = b;
    }
    if (rc == 0 && from < n) rc = put_range(&x, from, n, false);
    if (rc == 0 && x.waits) rc = out_range(&x, x.a, x.b);
    return rc;
}

static int piece(encoder *e, int step, const char *s, size_t n, bool first)
{
    if (n == 0) return 0;
    if (step == e->t->n_pre) return cb_bpe_piece(e->bpe, s, n, &e->ids, e->err);
    const cb_pre_step *p = e->t->pre + step;
    cb_buf *b = e->step + step;
    if (p->kind == CB_PRE_SPLIT) return split(e, step, s, n, first);
    b->n = 0;
    if (p->kind == CB_PRE_PREPEND) {
        bool has = n >= p->n && !memcmp(s, p->text, p->n);
        if (has || p->when == CB_WHEN_NEVER || (p->when == CB_WHEN_FIRST && !first)) return piece(e, step + 1, s, n, first);
        cb_buf_put(b, p->text, p->n);
        cb_buf_put(b, s, n);
    } else if (p->kind == CB_PRE_REPLACE) {
        int rc = cb_replace_all(&p->find, &e->run, b, s, n, p->text, p->n, e->err);
        if (rc < 0) return rc;
    } else {
        for (size_t i = 0; i < n; i++) cb_utf8_put(b, cb_byte_char((uint8_t)s[i]));
    }
    if (!cb_buf_ok(b)) return no_memory(e, n);
    return piece(e, step + 1, b->data ? b->data : "", b->n, first);
}

/* ---- added tokens ---- */

static bool word_before(const char *s, size_t at)
{
    if (at == 0) return false;
    size_t i = at - 1;
    while (i > 0 && (s[i] & 0xc0) == 0x80) i--;
    uint32_t cp;
    cb_utf8_decode(s + i, at - i, &cp);
    return cb_unicode_is_word(cp);
}

static bool word_after(const char *s, size_t n, size_t at)
{
    uint32_t cp;
    return at < n && cb_utf8_decode(s + at, n - at, &cp) > 0 && cb_unicode_is_word(cp);
}

static size_t spaces_before(const char *s, size_t at, size_t stop)
{
    while (at > stop) {
        size_t i = at - 1;
        while (i > stop && (s[i] & 0xc0) == 0x80) i--;
        uint32_t cp;
        cb_utf8_decode(s + i, at - i, &cp);
        if (!cb_unicode_is_space(cp)) break;
        at = i;
    }
    return at;
}

static size_t spaces_after(const char *s, size_t n, size_t at)
{
    uint32_t cp;
    for (int k; at < n && (k = cb_utf8_decode(s + at, n - at, &cp)) > 0 && cb_unicode_is_space(cp);) at += (size_t)k;
    return at;
}

static int cut_added(encoder *e, int set, const char *s, size_t n, bool first);

static int between(encoder *e, int set, const char *s, size_t n, bool first)
{
    if (n == 0) return 0;
    if (set == 1) return piece(e, 0, s, n, first);
    e->shielded = (e->flags & CB_ENCODE_SHIELDED) && cb_shield_remove(&e->plain, s, n);
    if (e->shielded) {
        if (!cb_buf_ok(&e->plain)) return no_memory(e, n);
        s = e->plain.data, n = e->plain.n;
    }
    int rc = cb_norm_run(e->t, &e->run, e->norm, s, n, &s, &n, &first, e->err);
    return rc < 0 ? rc : cut_added(e, 1, s, n, first);
}

/* set 0: the text as given; set 1: after normalisation. Matches are looked for left to right, the longest at a place, and
 * go on behind a match even when its flags made it count for nothing. */
static int cut_added(encoder *e, int set, const char *s, size_t n, bool first)
{
    const cb_trie *trie = e->t->added + set;
    size_t done = 0, spaces_end = 0; /* of the run that the last rstrip found */
    int rc;
    for (size_t i = 0; trie->nodes && i < n;) {
        if (!trie->root[(uint8_t)s[i]]) {
            i++;
            continue;
        }
        size_t len = 0;
        int32_t id = cb_trie_match(trie, s + i, n - i, &len);
        if (id < 0) {
            i++;
            continue;
        }
        size_t a = i, b = i + len;
        i = b;
        unsigned f = e->t->vocab.flags[id];
        if ((f & CB_TOKEN_SPECIAL) && (!(e->flags & CB_ENCODE_PARSE_SPECIAL) || (set == 1 && e->shielded))) continue;
        if ((f & CB_TOKEN_SINGLE_WORD) && (word_before(s, a) || word_after(s, n, b))) continue;
        if (f & CB_TOKEN_LSTRIP) a = a > done ? spaces_before(s, a, done) : done;
        if (f & CB_TOKEN_RSTRIP) b = spaces_end = b < spaces_end ? spaces_end : spaces_after(s, n, b);
        if (a > done && (rc = between(e, set, s + done, a - done, first && done == 0)) < 0) return rc;
        /* A token among the spaces that the last one took (rstrip) still counts, unless lstrip leaves nothing of it. */
        if (b > a) cb_ids_put(&e->ids, id);
        done = b;
    }
    return between(e, set, s + done, n - done, first && done == 0);
}

/* ---- a call ---- */

int64_t cb_tokenizer_encode(const cb_tokenizer *t, const char *text, size_t n, int flags, int32_t *ids, size_t cap, cb_err *err)
{
    if (n > CB_TOK_MAX_TEXT) return cb_fail(err, CB_EUSAGE, "text of %zu bytes, at most %d can be encoded", n, CB_TOK_MAX_TEXT);
    if (flags & ~(CB_ENCODE_SPECIAL_BEGIN | CB_ENCODE_PARSE_SPECIAL | CB_ENCODE_SHIELDED)) return cb_fail(err, CB_EUSAGE, "unknown encode flags %d", flags);
    encoder e = {.t = t, .flags = flags, .err = err, .ids = {ids, ids ? cap : 0, 0}};
    cb_buf clean;
    cb_buf_init(&clean, 0);
    init_buffers(&e, n);
    int64_t rc;
    if ((rc = cb_regex_run_init(&e.run, n, err)) < 0 || (rc = cb_bpe_open(t, n, &e.bpe, err)) < 0) goto done;
    if (cb_utf8_valid(text, n) < n) {
        cb_utf8_replace(&clean, text, n);
        if (!cb_buf_ok(&clean)) {
            rc = no_memory(&e, n);
            goto done;
        }
        text = clean.data;
        n = clean.n;
    }
    e.run.young = cb_unicode_has_young(text, n);
    bool around = flags & CB_ENCODE_SPECIAL_BEGIN;
    for (int i = 0; around && i < t->n_before; i++) cb_ids_put(&e.ids, t->before[i]);
    if (n && (rc = cut_added(&e, 0, text, n, true)) < 0) goto done;
    for (int i = 0; around && i < t->n_after; i++) cb_ids_put(&e.ids, t->after[i]);
    rc = (int64_t)e.ids.n;
done:
    cb_bpe_close(e.bpe);
    cb_regex_run_fini(&e.run);
    cb_buf_fini(&clean);
    cb_buf_fini(&e.plain);
    for (int i = 0; i < 2; i++) cb_buf_fini(e.norm + i);
    for (int i = 0; i < CB_TOK_MAX_STEPS; i++) cb_buf_fini(e.step + i);
    return rc;
}
