#include "text/vocab.h"
#include "base/mem.h"
#include <string.h>

uint64_t cb_text_hash(const char *s, size_t n)
{
    uint64_t h = n * 0x9e3779b97f4a7c15u, w;
    for (; n >= 8; n -= 8, s += 8) {
        memcpy(&w, s, 8);
        h = (h ^ w) * 0xd6e8feb86659fd93u;
        h ^= h >> 32;
    }
    if (n) {
        w = 0;
        memcpy(&w, s, n);
        h = (h ^ w) * 0xd6e8feb86659fd93u;
        h ^= h >> 32;
    }
    h *= 0xd6e8feb86659fd93u;
    return h ^ h >> 29;
}

static uint32_t power_of_two(size_t n)
{
    uint32_t p = 64;
    while (p < n) p *= 2;
    return p;
}

static bool grow_ids(cb_vocab *v, int32_t n)
{
    int32_t cap = v->cap_ids ? v->cap_ids : 256;
    while (cap < n) cap *= 2;
    if (cap == v->cap_ids) return true;
    uint32_t *off = cb_realloc(v->off, (size_t)cap * sizeof *off);
    if (off) v->off = off;
    uint32_t *len = cb_realloc(v->len, (size_t)cap * sizeof *len);
    if (len) v->len = len;
    uint8_t *flags = cb_realloc(v->flags, (size_t)cap);
    if (flags) v->flags = flags;
    if (!off || !len || !flags) return false;
    size_t more = (size_t)(cap - v->cap_ids);
    memset(off + v->cap_ids, 0xff, more * sizeof *off);
    memset(len + v->cap_ids, 0, more * sizeof *len);
    memset(flags + v->cap_ids, 0, more);
    v->cap_ids = cap;
    return true;
}

static bool grow_slots(cb_vocab *v, size_t n)
{
    uint32_t size = power_of_two(n);
    cb_vocab_slot *slots = cb_alloc_array(size, sizeof *slots);
    if (!slots) return false;
    memset(slots, 0xff, size * sizeof *slots);
    for (size_t i = 0; v->slots && i <= v->mask; i++) {
        if (v->slots[i].id < 0) continue;
        uint32_t j = v->slots[i].hash & (size - 1);
        while (slots[j].id >= 0) j = (j + 1) & (size - 1);
        slots[j] = v->slots[i];
    }
    cb_free(v->slots);
    v->slots = slots;
    v->mask = size - 1;
    return true;
}

static bool grow_bytes(cb_vocab *v, size_t need)
{
    if (need <= v->cap_bytes) return true;
    size_t cap = v->cap_bytes * 2 > need ? v->cap_bytes * 2 : need + 64;
    char *p = cb_realloc(v->bytes, cap);
    if (!p) return false;
    v->bytes = p;
    v->cap_bytes = cap;
    return true;
}

int cb_vocab_init(cb_vocab *v, size_t n_tokens, size_t n_bytes, cb_err *err)
{
    *v = (cb_vocab){0};
    if (n_tokens > CB_VOCAB_MAX_ID) n_tokens = CB_VOCAB_MAX_ID;
    if (grow_ids(v, (int32_t)n_tokens) && grow_slots(v, n_tokens + n_tokens / 3) && grow_bytes(v, n_bytes + 1)) return 0;
    cb_vocab_fini(v);
    return cb_fail(err, CB_ENOMEM, "no memory for a vocabulary of %zu tokens", n_tokens);
}

void cb_vocab_fini(cb_vocab *v)
{
    cb_free(v->bytes);
    cb_free(v->off);
    cb_free(v->len);
    cb_free(v->flags);
    cb_free(v->slots);
    *v = (cb_vocab){0};
}

/* The slot of the text, or the empty slot where it would go. */
static cb_vocab_slot *probe(const cb_vocab *v, const char *s, size_t n, uint32_t hash)
{
    for (uint32_t i = hash & v->mask;; i = (i + 1) & v->mask) {
        cb_vocab_slot *e = v->slots + i;
        if (e->id < 0) return e;
        if (e->hash == hash && e->len == n && !memcmp(v->bytes + e->off, s, n)) return e;
    }
}

int32_t cb_vocab_find(const cb_vocab *v, const char *s, size_t n)
{
    cb_vocab_slot *e = probe(v, s, n, (uint32_t)cb_text_hash(s, n));
    return e->id;
}

/* Takes an id's text out of the table: what follows in the probe chain moves up. */
static void unbind(cb_vocab *v, int32_t id)
{
    size_t n;
    const char *s = cb_vocab_text(v, id, &n);
    cb_vocab_slot *e = probe(v, s, n, (uint32_t)cb_text_hash(s, n));
    v->off[id] = UINT32_MAX;
    v->flags[id] = 0;
    if (e->id != id) return;
    uint32_t hole = (uint32_t)(e - v->slots);
    for (uint32_t j = (hole + 1) & v->mask; v->slots[j].id >= 0; j = (j + 1) & v->mask) {
        uint32_t home = v->slots[j].hash & v->mask;
        if (((j - home) & v->mask) < ((j - hole) & v->mask)) continue;
        v->slots[hole] = v->slots[j];
        hole = j;
    }
    v->slots[hole].id = -1;
    v->n_used--;
}

int cb_vocab_add(cb_vocab *v, const char *s, size_t n, int64_t id, unsigned flags, cb_err *err)
{
    if (id < 0 || id > CB_VOCAB_MAX_ID)
        return cb_fail(err, CB_EFORMAT, "id %lld of token '%.*s' is not in 0..%d", (long long)id, (int)(n < 40 ? n : 40), s,
                       CB_VOCAB_MAX_ID);
    if (n > CB_VOCAB_MAX_BYTES - v->n_bytes - 1)
        return cb_fail(err, CB_EFORMAT, "the vocabulary holds more than %d bytes", CB_VOCAB_MAX_BYTES);
    int32_t i = (int32_t)id;
    if ((i >= v->cap_ids && !grow_ids(v, i + 1)) || !grow_bytes(v, v->n_bytes + n + 1) ||
        (v->n_used * 4 >= (size_t)v->mask * 3 && !grow_slots(v, (size_t)v->mask * 2 + 2)))
        return cb_fail(err, CB_ENOMEM, "no memory for a vocabulary of %lld tokens", (long long)id);
    if (v->off[i] != UINT32_MAX) unbind(v, i);
    uint32_t hash = (uint32_t)cb_text_hash(s, n);
    cb_vocab_slot *e = probe(v, s, n, hash);
    if (e->id >= 0) { /* the text moves to the new id */
        v->off[e->id] = UINT32_MAX;
        v->flags[e->id] = 0;
    } else {
        v->n_used++;
    }
    *e = (cb_vocab_slot){hash, i, (uint32_t)v->n_bytes, (uint32_t)n};
    if (n) memcpy(v->bytes + v->n_bytes, s, n);
    v->bytes[v->n_bytes + n] = 0;
    v->off[i] = (uint32_t)v->n_bytes;
    v->len[i] = (uint32_t)n;
    v->flags[i] = (uint8_t)flags;
    v->n_bytes += n + 1;
    if (i >= v->n_ids) v->n_ids = i + 1;
    return 0;
}

/* ---- merges ---- */

int cb_merges_init(cb_merges *m, size_t n, cb_err *err)
{
    *m = (cb_merges){0};
    uint32_t size = n < (1u << 28) ? power_of_two(n + n / 2 + 1) : 0;
    if (size && (m->slots = cb_alloc_array(size, sizeof *m->slots)) && (m->id_of_rank = cb_alloc_array(n, sizeof(int32_t)))) {
        m->mask = size - 1;
        for (uint32_t i = 0; i < size; i++) m->slots[i].left = -1;
        return 0;
    }
    cb_merges_fini(m);
    return cb_fail(err, CB_ENOMEM, "no memory for %zu merges", n);
}

void cb_merges_fini(cb_merges *m)
{
    cb_free(m->slots);
    cb_free(m->id_of_rank);
    *m = (cb_merges){0};
}

void cb_merges_add(cb_merges *m, int32_t left, int32_t right, int32_t id)
{
    uint32_t i = cb_merge_hash(left, right) & m->mask;
    while (m->slots[i].left >= 0 && (m->slots[i].left != left || m->slots[i].right != right)) i = (i + 1) & m->mask;
    if (m->slots[i].left < 0) m->n++;
    m->slots[i] = (cb_merge){left, right, m->n_ranks, id};
    m->id_of_rank[m->n_ranks++] = id;
}
