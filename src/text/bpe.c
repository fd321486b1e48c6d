/* bpe.c: byte-pair encoding of one piece. Symbols start as single characters (or bytes); the adjacent pair of lowest merge
 * rank, the leftmost of equals, is joined until none is left. Short pieces scan for the minimum, long ones keep a heap, so
 * that a megabyte of one letter costs n log n. A small cache, private to the call, remembers words. */
#include "text/tok.h"
#include "text/utf8.h"
#include <string.h>

enum { SMALL = 48, KEY = 24, CACHED_IDS = 8, CACHE_MAX = 16384, CACHE_FROM = 512 };

typedef struct cached {
    uint32_t hash;
    uint8_t n, n_ids; /* n 0: empty */
    char key[KEY];
    int32_t id[CACHED_IDS];
} cached;

struct cb_bpe {
    const cb_tokenizer *t;
    cached *cache;
    uint32_t cache_mask;
    /* Symbols of the piece at work; all arrays [cap]. */
    int32_t *id;
    uint32_t *rank, *prev, *next;
    size_t n, cap;
    uint64_t *heap; /* rank << 32 | position */
    size_t n_heap, cap_heap;
    cb_buf text; /* assembled or mapped strings */
    bool failed;
};

int cb_bpe_open(const cb_tokenizer *t, size_t text_bytes, cb_bpe **out, cb_err *err)
{
    cb_bpe *b = cb_alloc(sizeof *b);
    if ((*out = b)) {
        b->t = t;
        cb_buf_init(&b->text, 0);
        uint32_t n = 64;
        while (n < CACHE_MAX && n < text_bytes / 8) n *= 2;
        /* Short texts repeat too few words to pay for a cache. No memory for it is no failure. */
        if (text_bytes >= CACHE_FROM && (b->cache = cb_alloc_array(n, sizeof *b->cache))) b->cache_mask = n - 1;
        return 0;
    }
    return cb_fail(err, CB_ENOMEM, "no memory to encode %zu bytes", text_bytes);
}

void cb_bpe_close(cb_bpe *b)
{
    if (!b) return;
    cb_free(b->cache);
    cb_free(b->id);
    cb_free(b->rank);
    cb_free(b->prev);
    cb_free(b->next);
    cb_free(b->heap);
    cb_buf_fini(&b->text);
    cb_free(b);
}

/* ---- first symbols ---- */

static bool grow(cb_bpe *b, size_t need)
{
    size_t cap = b->cap ? b->cap : 64;
    while (cap < need) cap *= 2;
    int32_t *id = cb_realloc(b->id, cap * sizeof *id);
    if (id) b->id = id;
    uint32_t *r = cb_realloc(b->rank, cap * sizeof *r);
    if (r) b->rank = r;
    uint32_t *p = cb_realloc(b->prev, cap * sizeof *p);
    if (p) b->prev = p;
    uint32_t *x = cb_realloc(b->next, cap * sizeof *x);
    if (x) b->next = x;
    if (!id || !r || !p || !x) return b->failed = true, false;
    b->cap = cap;
    return true;
}

static inline void push(cb_bpe *b, int32_t id)
{
    if (b->n == b->cap && !grow(b, b->n + 1)) return;
    b->id[b->n++] = id;
}

/* Unknown characters in a row: one unk for all (fuse_unk) or one each. It goes out before the next known symbol; the bytes
 * of a byte fallback do not count as known here, as in the reference. */
static void unknown(cb_bpe *b, const char *s, size_t n, bool *pending)
{
    const cb_tokenizer *t = b->t;
    if (t->byte_fallback) {
        size_t i = 0;
        while (i < n && t->fallback_id[(uint8_t)s[i]] >= 0) i++;
        if (i == n) {
            for (i = 0; i < n; i++) push(b, t->fallback_id[(uint8_t)s[i]]);
            return;
        }
    }
    if (t->unk < 0) return;
    if (*pending && !t->fuse_unk) push(b, t->unk);
    *pending = true;
}

static inline int32_t char_id(const cb_tokenizer *t, const char *s, size_t n, uint32_t cp)
{
    return cp < 0x10000 ? t->bmp_id[cp] : cb_vocab_find_model(&t->vocab, s, n);
}

static void first_symbols(cb_bpe *b, const char *s, size_t n)
{
    const cb_tokenizer *t = b->t;
    bool pending = false, affixes = t->n_prefix || t->n_suffix;
    b->n = 0;
    for (size_t i = 0; i < n && !b->failed;) {
        uint32_t cp;
        size_t k;
        const char *c = s + i, *text = c;
        int32_t id;
        char mapped[4];
        if (t->byte_level) {
            id = t->byte_id[(uint8_t)*c];
            k = 1;
        } else {
            k = (size_t)cb_utf8_decode(c, n - i, &cp);
            id = affixes ? -1 : char_id(t, c, k, cp);
        }
        size_t n_text = k;
        if (affixes) {
            b->text.n = 0;
            if (i > 0) cb_buf_put(&b->text, t->prefix, t->n_prefix);
            cb_buf_put(&b->text, c, k);
            if (i + k == n) cb_buf_put(&b->text, t->suffix, t->n_suffix);
            if (!cb_buf_ok(&b->text)) b->failed = true;
            text = b->text.data;
            n_text = b->text.n;
            id = b->failed ? -1 : cb_vocab_find_model(&t->vocab, text, n_text);
        }
        i += k;
        if (id >= 0) {
            if (pending) push(b, t->unk), pending = false;
            push(b, id);
            continue;
        }
        if (t->byte_level) n_text = (size_t)cb_utf8_encode(mapped, cb_byte_char((uint8_t)*c)), text = mapped;
        if (!b->failed) unknown(b, text, n_text, &pending);
    }
    if (pending) push(b, t->unk);
}

/* ---- merging ---- */

static void merge_small(cb_bpe *b)
{
    const cb_merges *m = &b->t->merges;
    int32_t *id = b->id;
    uint32_t *rank = b->rank;
    size_t n = b->n;
    for (size_t i = 0; i + 1 < n; i++) rank[i] = cb_merges_rank(m, id[i], id[i + 1]);
    while (n > 1) {
        size_t at = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[at]) at = i;
        if (rank[at] == UINT32_MAX) break;
        id[at] = m->id_of_rank[rank[at]];
        n--;
        for (size_t i = at + 1; i < n; i++) id[i] = id[i + 1], rank[i - 1] = rank[i];
        if (at + 1 < n) rank[at] = cb_merges_rank(m, id[at], id[at + 1]);
        if (at > 0) rank[at - 1] = cb_merges_rank(m, id[at - 1], id[at]);
    }
    b->n = n;
}

static void heap_push(cb_bpe *b, uint64_t v)
{
    if (b->n_heap == b->cap_heap) {
        size_t cap = b->cap_heap ? b->cap_heap * 2 : 256;
        uint64_t *p = cb_realloc(b->heap, cap * sizeof *p);
        if (!p) {
            b->failed = true;
            return;
        }
        b->heap = p;
        b->cap_heap = cap;
    }
    size_t i = b->n_heap++;
    for (; i > 0 && b->heap[(i - 1) / 2] > v; i = (i - 1) / 2) b->heap[i] = b->heap[(i - 1) / 2];
    b->heap[i] = v;
}

static uint64_t heap_pop(cb_bpe *b)
{
    uint64_t top = b->heap[0], v = b->heap[--b->n_heap];
    size_t i = 0, n = b->n_heap;
    for (size_t c; (c = 2 * i + 1) < n; i = c) {
        if (c + 1 < n && b->heap[c + 1] < b->heap[c]) c++;
        if (b->heap[c] >= v) break;
        b->heap[i] = b->heap[c];
    }
    b->heap[i] = v;
    return top;
}

/* Looks the pair at i up again. An entry of the heap holds while rank[] still has its rank. */
static void pair_changed(cb_bpe *b, uint32_t i)
{
    uint32_t r = b->next[i] < b->n ? cb_merges_rank(&b->t->merges, b->id[i], b->id[b->next[i]]) : UINT32_MAX;
    b->rank[i] = r;
    if (r != UINT32_MAX) heap_push(b, (uint64_t)r << 32 | i);
}

static void merge_large(cb_bpe *b)
{
    uint32_t n = (uint32_t)b->n;
    b->n_heap = 0;
    for (uint32_t i = 0; i < n; i++) {
        b->prev[i] = i - 1; /* of the first: UINT32_MAX */
        b->next[i] = i + 1;
    }
    for (uint32_t i = 0; i < n && !b->failed; i++) pair_changed(b, i);
    while (b->n_heap && !b->failed) {
        uint64_t top = heap_pop(b);
        uint32_t i = (uint32_t)top, r = (uint32_t)(top >> 32);
        if (b->id[i] < 0 || b->rank[i] != r) continue;
        uint32_t gone = b->next[i];
        b->id[i] = b->t->merges.id_of_rank[r];
        b->id[gone] = -1;
        b->next[i] = b->next[gone];
        if (b->next[i] < n) b->prev[b->next[i]] = i;
        pair_changed(b, i);
        if (b->prev[i] != UINT32_MAX) pair_changed(b, b->prev[i]);
    }
    size_t kept = 0;
    for (uint32_t i = 0; i < n; i = b->next[i]) b->id[kept++] = b->id[i];
    b->n = kept;
}

/* ---- words and pieces ---- */

/* The id of the whole piece, or -1. */
static int32_t whole(cb_bpe *b, const char *s, size_t n)
{
    if (n > b->t->longest) return -1;
    if (!b->t->byte_level) return cb_vocab_find_model(&b->t->vocab, s, n);
    b->text.n = 0;
    for (size_t i = 0; i < n; i++) cb_utf8_put(&b->text, cb_byte_char((uint8_t)s[i]));
    if (!cb_buf_ok(&b->text)) return b->failed = true, -1;
    return cb_vocab_find_model(&b->t->vocab, b->text.data, b->text.n);
}

static void encode(cb_bpe *b, const char *s, size_t n)
{
    int32_t id = b->t->ignore_merges && !b->t->no_cut ? whole(b, s, n) : -1;
    if (id >= 0) {
        b->n = 0;
        push(b, id);
        return;
    }
    first_symbols(b, s, n);
    if (b->failed) return;
    if (b->n <= SMALL) merge_small(b);
    else merge_large(b);
}

static void put_word(cb_bpe *b, const char *s, size_t n, cb_ids *out)
{
    cached *c = NULL;
    uint32_t hash = 0;
    if (b->cache && n <= KEY) {
        hash = (uint32_t)(cb_text_hash(s, n) >> 16);
        c = b->cache + (hash & b->cache_mask);
        if (c->n == n && c->hash == hash && !memcmp(c->key, s, n)) {
            for (int i = 0; i < c->n_ids; i++) cb_ids_put(out, c->id[i]);
            return;
        }
    }
    encode(b, s, n);
    if (b->failed) return;
    for (size_t i = 0; i < b->n; i++) cb_ids_put(out, b->id[i]);
    if (c && b->n <= CACHED_IDS) {
        c->hash = hash;
        c->n = (uint8_t)n;
        c->n_ids = (uint8_t)b->n;
        memcpy(c->key, s, n);
        memcpy(c->id, b->id, b->n * sizeof *c->id);
    }
}

static bool may_cut(const cb_tokenizer *t, const char *s, size_t at)
{
    size_t i = at - 1;
    while ((s[i] & 0xc0) == 0x80) i--;
    uint32_t cp;
    cb_utf8_decode(s + i, at - i, &cp);
    uint32_t bit = cb_cut_bit(cp);
    return !(t->no_cut[bit / 64] >> bit % 64 & 1) && char_id(t, s + i, at - i, cp) >= 0;
}

int cb_bpe_piece(cb_bpe *b, const char *s, size_t n, cb_ids *out, cb_err *err)
{
    const cb_tokenizer *t = b->t;
    size_t from = 0;
    if (t->no_cut) {
        int32_t id = t->ignore_merges ? whole(b, s, n) : -1;
        if (id >= 0) return cb_ids_put(out, id), 0;
        for (size_t i = 1; i + 3 <= n;) {
            const char *p = memmem(s + i, n - i, "\xe2\x96\x81", 3);
            if (!p) break;
            i = (size_t)(p - s);
            if (may_cut(t, s, i)) {
                put_word(b, s + from, i - from, out);
                from = i;
            }
            i += 3;
        }
    }
    put_word(b, s + from, n - from, out);
    return b->failed ? cb_fail(err, CB_ENOMEM, "no memory to encode a piece of %zu bytes", n) : 0;
}
