/* vocab.h: the tokens of a tokenizer by id and by text, and the table of BPE merges. Filled while a tokenizer opens, never
 * changed after. */
#ifndef CB_TEXT_VOCAB_H
#define CB_TEXT_VOCAB_H
#include "base/err.h"
#include <stddef.h>
#include <stdint.h>

enum {
    CB_VOCAB_MAX_ID = (1 << 22) - 1, /* the largest vocabularies have 262145 entries */
    CB_VOCAB_MAX_BYTES = 1 << 29,    /* of all token strings */
    /* flags of a token */
    CB_TOKEN_MODEL = 1,   /* in model.vocab */
    CB_TOKEN_ADDED = 2,   /* in added_tokens: cut out of the text before anything else */
    CB_TOKEN_SPECIAL = 4, /* left out when decoding with skip_special */
    CB_TOKEN_LSTRIP = 8,
    CB_TOKEN_RSTRIP = 16,
    CB_TOKEN_SINGLE_WORD = 32,
    CB_TOKEN_NORMALIZED = 64
};

/* Offset and length stand here as well as by id: a look-up then misses the caches twice, not four times. */
typedef struct cb_vocab_slot {
    uint32_t hash;
    int32_t id; /* -1: empty */
    uint32_t off, len;
} cb_vocab_slot;

typedef struct cb_vocab {
    char *bytes; /* all strings, each followed by a NUL */
    size_t n_bytes, cap_bytes;
    uint32_t *off, *len; /* [cap_ids]; off is UINT32_MAX where the id has no token */
    uint8_t *flags;
    int32_t n_ids, cap_ids; /* n_ids: largest id + 1 */
    cb_vocab_slot *slots;   /* open addressing, power of two */
    uint32_t mask;
    size_t n_used;
} cb_vocab;

/* The hints save growing. CB_ENOMEM. */
int cb_vocab_init(cb_vocab *v, size_t n_tokens_hint, size_t n_bytes_hint, cb_err *err);
void cb_vocab_fini(cb_vocab *v);
/* Binds text and id; of two bindings of one text or one id the later wins. The text is copied. CB_EFORMAT for an id out of
 * range, CB_ENOMEM. */
int cb_vocab_add(cb_vocab *v, const char *s, size_t n, int64_t id, unsigned flags, cb_err *err);
/* The id of a text, or -1. */
int32_t cb_vocab_find(const cb_vocab *v, const char *s, size_t n);
/* As cb_vocab_find, for tokens of model.vocab only. */
static inline int32_t cb_vocab_find_model(const cb_vocab *v, const char *s, size_t n)
{
    int32_t id = cb_vocab_find(v, s, n);
    return id >= 0 && (v->flags[id] & CB_TOKEN_MODEL) ? id : -1;
}
static inline bool cb_vocab_has(const cb_vocab *v, int32_t id)
{
    return id >= 0 && id < v->n_ids && v->off[id] != UINT32_MAX;
}
/* The text of an id that cb_vocab_has(). */
static inline const char *cb_vocab_text(const cb_vocab *v, int32_t id, size_t *n)
{
    *n = v->len[id];
    return v->bytes + v->off[id];
}

/* Hash of bytes; also used by the caches. */
uint64_t cb_text_hash(const char *s, size_t n);

/* A merge joins tokens left and right into id; lower ranks go first. */
typedef struct cb_merge {
    int32_t left, right; /* left -1: empty slot */
    uint32_t rank;
    int32_t id;
} cb_merge;

typedef struct cb_merges {
    cb_merge *slots;
    uint32_t mask;
    size_t n;
    int32_t *id_of_rank; /* [n_ranks] */
    uint32_t n_ranks;
} cb_merges;

int cb_merges_init(cb_merges *m, size_t n_merges, cb_err *err);
void cb_merges_fini(cb_merges *m);
/* Adds the pair with the next rank; a pair added again takes the later rank. At most n_merges of init. */
void cb_merges_add(cb_merges *m, int32_t left, int32_t right, int32_t id);

static inline uint32_t cb_merge_hash(int32_t left, int32_t right)
{
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(h >> 32) ^ (uint32_t)(h >> 15);
}
/* The merge's rank, or UINT32_MAX. */
static inline uint32_t cb_merges_rank(const cb_merges *m, int32_t left, int32_t right)
{
    for (uint32_t i = cb_merge_hash(left, right) & m->mask;; i = (i + 1) & m->mask) {
        const cb_merge *e = m->slots + i;
        if (e->left == left && e->right == right) return e->rank;
        if (e->left < 0) return UINT32_MAX;
    }
}
#endif
