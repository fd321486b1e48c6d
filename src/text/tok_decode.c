/* tok_decode.c: from ids to text, one id at a time; whole decoding is the same machine run over all ids. A token passes
 * through the decoder steps like a packet through a pipeline; a step may hold bytes back until they make whole characters. */
#include "text/tok.h"
#include "text/utf8.h"
#include <string.h>

typedef struct stage {
    cb_buf buf;  /* REPLACE, METASPACE: the rewritten token */
    cb_buf held; /* BYTE_FALLBACK: bytes of the run; BYTE_LEVEL: an incomplete character, then the chunk at work */
    bool begun;  /* METASPACE: a token has passed; STRIP_ALL: a character has passed */
    int removed; /* STRIP_ALL: characters taken off the start */
    int kept;    /* STRIP_ALL: characters held at the end */
} stage;

struct cb_detok {
    const cb_tokenizer *t;
    int skip_special;
    bool begun; /* a token was put (dec_join_space) */
    cb_buf out; /* text of the current call */
    cb_regex_run run;
    stage st[CB_TOK_MAX_STEPS];
    cb_err *err; /* of the current call */
    int rc;      /* sticky within a call */
};

static void put(cb_detok *d, int step, const char *s, size_t n);

static void fail_memory(cb_detok *d)
{
    if (d->rc == 0) d->rc = cb_fail(d->err, CB_ENOMEM, "no memory to decode");
}

/* Takes up to `start` times the character off the beginning and up to `stop` times off the end. */
static void strip(const cb_dec_step *p, const char **s, size_t *n)
{
    const char *c = p->text;
    for (int i = 0; i < p->start && *n >= p->n && !memcmp(*s, c, p->n); i++) *s += p->n, *n -= p->n;
    for (int i = 0; i < p->stop && *n >= p->n && !memcmp(*s + *n - p->n, c, p->n); i++) *n -= p->n;
}

static void metaspace(cb_detok *d, int step, const char *s, size_t n)
{
    const cb_dec_step *p = d->t->dec + step;
    stage *st = d->st + step;
    bool drop = !st->begun && p->start;
    st->begun = true;
    st->buf.n = 0;
    while (n) {
        const char *hit = memmem(s, n, p->text, p->n);
        size_t k = hit ? (size_t)(hit - s) : n;
        cb_buf_put(&st->buf, s, k);
        if (hit && !drop) cb_buf_putc(&st->buf, ' ');
        k += hit ? p->n : 0;
        s += k;
        n -= k;
    }
    if (!cb_buf_ok(&st->buf)) fail_memory(d);
    else put(d, step + 1, st->buf.data ? st->buf.data : "", st->buf.n);
}

/* "<0xHH>", with the reference's reading of the two digits (a plus sign counts as a digit's place). */
static int byte_token(const char *s, size_t n)
{
    if (n != 6 || memcmp(s, "<0x", 3) || s[5] != '>') return -1;
    int v = 0;
    for (int i = 3; i < 5; i++) {
        char c = s[i];
        if (i == 3 && c == '+') continue;
        int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
        if (digit < 0) return -1;
        v = v * 16 + digit;
    }
    return v;
}

/* A run of byte tokens is text when all of it is valid, and one U+FFFD for each byte otherwise: it can only be judged whole. */
static void flush_run(cb_detok *d, int step)
{
    cb_buf *h = &d->st[step].held;
    if (!h->n) return;
    if (cb_utf8_valid(h->data, h->n) == h->n) put(d, step + 1, h->data, h->n);
    else
        for (size_t i = 0; i < h->n; i++) put(d, step + 1, "\xef\xbf\xbd", 3);
    h->n = 0;
}

static void byte_fallback(cb_detok *d, int step, const char *s, size_t n)
{
    int b = byte_token(s, n);
    if (b >= 0) {
        cb_buf_putc(&d->st[step].held, (char)b);
        if (!cb_buf_ok(&d->st[step].held)) fail_memory(d);
        return;
    }
    flush_run(d, step);
    put(d, step + 1, s, n);
}

/* Bytes of all tokens make one stream; what is not the start of a character goes on, repaired. */
static void byte_level(cb_detok *d, int step, const char *s, size_t n)
{
    cb_buf *h = &d->st[step].held, *o = &d->st[step].buf;
    size_t before = h->n;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int k = cb_utf8_decode(s + i, n - i, &cp), byte = cb_byte_of_char(cp);
        if (byte < 0) { /* a character outside the alphabet: the token stands for itself */
            h->n = before;
            cb_buf_put(h, s, n);
            break;
        }
        cb_buf_putc(h, (char)byte);
        i += (size_t)k;
    }
    size_t tail = cb_utf8_tail(h->data ? h->data : "", h->n), whole = h->n - tail;
    o->n = 0;
    cb_utf8_replace(o, h->data ? h->data : "", whole);
    if (!cb_buf_ok(h) || !cb_buf_ok(o)) {
        fail_memory(d);
        return;
    }
    if (whole) {
        memmove(h->data, h->data + whole, tail);
        h->n = tail;
        put(d, step + 1, o->data, o->n);
    }
}

/* Strip after Fuse sees the whole text as one token: the start is known early, the end only when the stream ends. */
static void strip_all(cb_detok *d, int step, const char *s, size_t n)
{
    const cb_dec_step *p = d->t->dec + step;
    stage *st = d->st + step;
    while (!st->begun && st->removed < p->start && n >= p->n && !memcmp(s, p->text, p->n)) s += p->n, n -= p->n, st->removed++;
    if (!n) return;
    st->begun = true;
    size_t end = n;
    int run = 0;
    while (run < p->stop && end >= p->n && !memcmp(s + end - p->n, p->text, p->n)) end -= p->n, run++;
    /* What was held goes out, all of it if other text follows, else as much as no longer fits. */
    int keep = end == 0 && st->kept + run < p->stop ? st->kept + run : end == 0 ? p->stop : run;
    for (int i = st->kept + (end == 0 ? run : 0) - (end == 0 ? keep : 0); i > 0; i--) put(d, step + 1, p->text, p->n);
    put(d, step + 1, s, end);
    st->kept = keep;
}

static void put(cb_detok *d, int step, const char *s, size_t n)
{
    if (d->rc < 0) return;
    if (step == d->t->n_dec) {
        cb_buf_put(&d->out, s, n);
        if (!cb_buf_ok(&d->out)) fail_memory(d);
        return;
    }
    const cb_dec_step *p = d->t->dec + step;
    switch (p->kind) {
    case CB_DEC_REPLACE: {
        cb_buf *b = &d->st[step].buf;
        b->n = 0;
        int rc = cb_replace_all(&p->find, &d->run, b, s, n, p->text, p->n, d->err);
        if (rc < 0) d->rc = rc;
        else put(d, step + 1, b->data ? b->data : "", b->n);
        break;
    }
    case CB_DEC_STRIP:
        strip(p, &s, &n);
        put(d, step + 1, s, n);
        break;
    case CB_DEC_METASPACE: metaspace(d, step, s, n); break;
    case CB_DEC_BYTE_FALLBACK: byte_fallback(d, step, s, n); break;
    case CB_DEC_BYTE_LEVEL: byte_level(d, step, s, n); break;
    case CB_DEC_STRIP_ALL: strip_all(d, step, s, n); break;
    }
}

/* ---- API ---- */

int cb_detok_open(const cb_tokenizer *t, int skip_special, cb_detok **out, cb_err *err)
{
    cb_detok *d = cb_alloc(sizeof *d);
    *out = NULL;
    if (!d) return cb_fail(err, CB_ENOMEM, "no memory for a detokeniser");
    d->t = t;
    d->skip_special = skip_special;
    for (int i = 0; i < CB_TOK_MAX_STEPS; i++) cb_buf_init(&d->st[i].buf, CB_TOK_MAX_SHOWN);
    for (int i = 0; i < t->n_dec && !d->run.match; i++) {
        if (t->dec[i].kind != CB_DEC_REPLACE || t->dec[i].find.kind != CB_FIND_REGEX) continue;
        int rc = cb_regex_run_init(&d->run, 0, err);
        if (rc < 0) {
            cb_detok_close(d);
            return rc;
        }
        d->run.young = true;
    }
    *out = d;
    return 0;
}

void cb_detok_close(cb_detok *d)
{
    if (!d) return;
    for (int i = 0; i < CB_TOK_MAX_STEPS; i++) {
        cb_buf_fini(&d->st[i].buf);
        cb_buf_fini(&d->st[i].held);
    }
    if (d->run.match) cb_regex_run_fini(&d->run);
    cb_buf_fini(&d->out);
    cb_free(d);
}

/* The text of a token that the decoder starts from. */
static const char *shown(const cb_tokenizer *t, int32_t id, size_t *n)
{
    size_t lo = 0, hi = t->vocab.flags[id] & CB_TOKEN_NORMALIZED ? t->n_shown : 0;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (t->shown[mid].id == id) return *n = t->shown[mid].n, t->shown[mid].s;
        if (t->shown[mid].id < id) lo = mid + 1;
        else hi = mid;
    }
    return cb_vocab_text(&t->vocab, id, n);
}

static int feed(cb_detok *d, int32_t id)
{
    const cb_vocab *v = &d->t->vocab;
    if (id < 0) return cb_fail(d->err, CB_EUSAGE, "token id %d is negative", id);
    if (!cb_vocab_has(v, id)) return 0; /* a column of the logits without a token says nothing */
    if (d->skip_special && (v->flags[id] & CB_TOKEN_SPECIAL)) return 0;
    size_t n;
    const char *s = shown(d->t, id, &n);
    if (d->t->dec_join_space && d->begun) put(d, 0, " ", 1);
    d->begun = true;
    put(d, 0, s, n);
    return d->rc;
}

static int finish(cb_detok *d)
{
    for (int i = 0; i < d->t->n_dec; i++) {
        stage *st = d->st + i;
        if (d->t->dec[i].kind == CB_DEC_BYTE_FALLBACK) flush_run(d, i);
        if (d->t->dec[i].kind == CB_DEC_BYTE_LEVEL && st->held.n) {
            st->held.n = 0;
            put(d, i + 1, "\xef\xbf\xbd", 3); /* one incomplete character is one maximal subpart */
        }
        st->begun = false;
        st->removed = st->kept = 0;
    }
    d->begun = false;
    return d->rc;
}

static int begin_call(cb_detok *d, const char **text, size_t *n, cb_err *err)
{
    *text = "";
    *n = 0;
    d->out.n = 0;
    d->err = err;
    if (d->run.match) cb_regex_run_again(&d->run, 0);
    return d->rc; /* after a failure the stream is lost */
}

static int end_call(cb_detok *d, const char **text, size_t *n, int rc)
{
    d->err = NULL;
    if (rc < 0) return rc;
    *text = d->out.data ? d->out.data : "";
    *n = d->out.n;
    return 0;
}

int cb_detok_put(cb_detok *d, int32_t id, const char **text, size_t *n, cb_err *err)
{
    int rc = begin_call(d, text, n, err);
    if (rc < 0) return cb_fail(err, rc, "the detokeniser failed before");
    return end_call(d, text, n, feed(d, id));
}

int cb_detok_end(cb_detok *d, const char **text, size_t *n, cb_err *err)
{
    int rc = begin_call(d, text, n, err);
    if (rc < 0) return cb_fail(err, rc, "the detokeniser failed before");
    return end_call(d, text, n, finish(d));
}

int64_t cb_tokenizer_decode(const cb_tokenizer *t, const int32_t *ids, size_t n, int skip_special, char *out, size_t cap,
                            cb_err *err)
{
    cb_detok *d;
    int64_t rc = cb_detok_open(t, skip_special, &d, err);
    if (rc < 0) return rc;
    d->err = err;
    size_t total = 0;
    for (size_t i = 0; i <= n && rc == 0; i++) {
        rc = i < n ? feed(d, ids[i]) : finish(d);
        if (total < cap && d->out.n) memcpy(out + total, d->out.data, d->out.n < cap - total ? d->out.n : cap - total);
        total += d->out.n;
        d->out.n = 0;
    }
    cb_detok_close(d);
    return rc < 0 ? rc : (int64_t)total;
}
