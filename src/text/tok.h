/* tok.h: inside of a tokenizer. tok_json.c reads tokenizer.json into this struct; tok_encode.c, bpe.c and tok_decode.c only
 * read it, so threads may share it. The order of work is that of Hugging Face's tokenizers, whose ids are the reference:
 *
 *   text -> added tokens cut out -> normalizers -> normalized added tokens cut out -> pre-tokenizers -> BPE -> ids
 *
 * Sequences in the file are flattened into lists of small steps when it is read. */
#ifndef CB_TEXT_TOK_H
#define CB_TEXT_TOK_H
#include "base/err.h"
#include "base/mem.h"
#include "text/regex.h"
#include "text/vocab.h"

enum {
    CB_TOK_MAX_FILE = 256 << 20,   /* bytes of tokenizer.json */
    CB_TOK_MAX_STEPS = 32,         /* of each list */
    CB_TOK_MAX_STOPS = 64,
    CB_TOK_MAX_ADDED_LEN = 1024,   /* bytes of one added token */
    CB_TOK_MAX_SHOWN = 4 << 20,    /* bytes that one token may become in decoding */
    CB_TOK_MAX_TEXT = 1 << 30,     /* bytes of one text to encode, and of what normalizers make of it */
    CB_TOK_MAX_GROWTH = 1024,      /* times a text may grow on the way, plus a megabyte */
    CB_TOK_MAX_AFFIX = 256         /* ids a post-processor adds on one side */
};

/* What a Split or Replace looks for. */
enum { CB_FIND_REGEX, CB_FIND_TEXT, CB_FIND_NUMERIC, CB_FIND_PUNCT, CB_FIND_SPACE };
typedef struct cb_finder {
    int kind;
    cb_regex *re;
    const char *text; /* CB_FIND_TEXT, n bytes */
    size_t n;
} cb_finder;

enum {
    CB_NORM_NFC, CB_NORM_NFD, CB_NORM_NFKC, CB_NORM_NFKD, CB_NORM_LOWER, CB_NORM_STRIP, CB_NORM_STRIP_MARKS,
    CB_NORM_REPLACE, CB_NORM_PREPEND, CB_NORM_BYTES
};
typedef struct cb_norm_step {
    int kind;
    bool left, right;  /* STRIP */
    cb_finder find;    /* REPLACE */
    const char *text;  /* REPLACE: the new text; PREPEND */
    size_t n;
} cb_norm_step;

enum { CB_SPLIT_REMOVED, CB_SPLIT_ISOLATED, CB_SPLIT_PREVIOUS, CB_SPLIT_NEXT, CB_SPLIT_CONTIGUOUS };
enum { CB_WHEN_ALWAYS, CB_WHEN_FIRST, CB_WHEN_NEVER };
enum { CB_PRE_SPLIT, CB_PRE_PREPEND, CB_PRE_REPLACE, CB_PRE_BYTES };
typedef struct cb_pre_step {
    int kind;
    cb_finder find;      /* SPLIT, REPLACE */
    int behavior;        /* SPLIT */
    bool invert;
    int when;            /* PREPEND: unless the piece begins so already */
    const char *text;    /* PREPEND, REPLACE: the new text */
    size_t n;
} cb_pre_step;

enum { CB_DEC_REPLACE, CB_DEC_STRIP, CB_DEC_METASPACE, CB_DEC_BYTE_FALLBACK, CB_DEC_BYTE_LEVEL, CB_DEC_STRIP_ALL };
typedef struct cb_dec_step {
    int kind;
    cb_finder find;    /* REPLACE */
    const char *text;  /* REPLACE: the new text; STRIP, STRIP_ALL: the character; METASPACE: the replacement */
    size_t n;
    int start, stop;   /* STRIP, STRIP_ALL: at most so many; METASPACE start: 1 when the first token loses it */
} cb_dec_step;

/* A trie over the contents of added tokens. Children of a node are neighbours, ascending by byte. */
typedef struct cb_trie_node {
    uint32_t first;
    int32_t id; /* token that ends here, or -1 */
    uint16_t n;
    uint8_t byte;
} cb_trie_node;
typedef struct cb_trie {
    cb_trie_node *nodes; /* [0] is the root; NULL when there are no tokens */
    uint32_t n_nodes;
    uint32_t root[256];  /* child of the root, 0: none */
} cb_trie;
typedef struct cb_trie_entry {
    const char *s;
    size_t n;
    int32_t id;
} cb_trie_entry;
/* Sorts the entries; of equal texts the first in the array wins. Empty texts are left out. */
int cb_trie_build(cb_trie *t, cb_trie_entry *e, size_t n, cb_err *err);
void cb_trie_fini(cb_trie *t);
/* The longest entry that s[0..n) begins with: its id and length, or -1. */
int32_t cb_trie_match(const cb_trie *t, const char *s, size_t n, size_t *len);

struct cb_tokenizer {
    cb_arena arena; /* strings of the steps */
    cb_vocab vocab;
    cb_merges merges;
    /* BPE */
    bool byte_level;   /* pieces are raw bytes; byte_id[] stands for the alphabet of ByteLevel */
    bool byte_fallback, fuse_unk, ignore_merges;
    int32_t unk;       /* -1: none, unknown characters vanish */
    uint32_t longest;  /* bytes of the longest token */
    const char *prefix, *suffix; /* continuing_subword_prefix, end_of_word_suffix; "" */
    size_t n_prefix, n_suffix;
    int32_t byte_id[256];     /* of ByteLevel's character for a byte, or -1 */
    int32_t fallback_id[256]; /* of "<0xHH>", or -1 */
    int32_t *bmp_id;          /* [65536] one-character tokens, or -1 */
    /* Before U+2581 a piece may be cut, since no merge crosses the boundary, except after these characters (a hash set of
     * one bit each; false positives only cost speed). NULL: never cut. */
    uint64_t *no_cut;

    cb_norm_step norm[CB_TOK_MAX_STEPS];
    int n_norm;
    cb_pre_step pre[CB_TOK_MAX_STEPS];
    int n_pre;
    cb_dec_step dec[CB_TOK_MAX_STEPS];
    int n_dec;
    bool dec_join_space; /* no decoder: tokens are joined with spaces */
    cb_trie added[2];    /* [0]: not normalized, cut out first; [1]: normalized */
    size_t n_model_tokens; /* entries of model.vocab */
    int32_t max_added;     /* largest id of an added token, or -1 */
    cb_trie_entry *shown;  /* [n_shown], by id: added tokens whose normalized form differs, which is what decoding shows */
    size_t n_shown;
    int32_t *before, *after; /* ids the post-processor puts around a text */
    int n_before, n_after;
    int32_t stops[CB_TOK_MAX_STOPS];
    int n_stops;
};

enum { CB_CUT_BITS = 1 << 16 };
static inline uint32_t cb_cut_bit(uint32_t cp) { return (cp * 0x9e3779b1u) >> 16; }

/* The alphabet of ByteLevel: the character that stands for a byte, and back (-1: none). */
uint32_t cb_byte_char(uint8_t byte);
int cb_byte_of_char(uint32_t cp);

/* Scratch of one encode call. */
typedef struct cb_ids {
    int32_t *out; /* the caller's */
    size_t cap, n;
} cb_ids;
static inline void cb_ids_put(cb_ids *o, int32_t id)
{
    if (o->n < o->cap) o->out[o->n] = id;
    o->n++;
}

/* bpe.c */
typedef struct cb_bpe cb_bpe;
/* Scratch for one call; text_bytes sizes the cache. */
int cb_bpe_open(const cb_tokenizer *t, size_t text_bytes, cb_bpe **out, cb_err *err);
void cb_bpe_close(cb_bpe *b);
/* Appends the ids of one piece (not empty). CB_ENOMEM. */
int cb_bpe_piece(cb_bpe *b, const char *s, size_t n, cb_ids *out, cb_err *err);

/* tok_shield.c: copies s without its marks into b (which is emptied first); false when there are none. b is sticky. */
bool cb_shield_remove(cb_buf *b, const char *s, size_t n);

/* tok_norm.c: what a pattern should see: s, or a copy in tmp with young characters replaced by older ones of the same class
 * (unicode.h). NULL when out of memory. */
const char *cb_find_view(const cb_finder *f, const cb_regex_run *run, cb_buf *tmp, const char *s, size_t n);
/* Applies every normalizer. *out is s itself or lies in one of the two buffers. *at_start becomes false when
 * the first character went. */
int cb_norm_run(const cb_tokenizer *t, cb_regex_run *run, cb_buf buf[2], const char *s, size_t n, const char **out,
                size_t *out_n, bool *at_start, cb_err *err);
/* The next match at `from` or later: 1, 0 or a negative error. Empty matches right after the previous match (which ended at
 * `from` when *after_match) are skipped. */
int cb_find(const cb_finder *f, cb_regex_run *run, const char *s, size_t n, size_t from, bool after_match, size_t *start,
            size_t *end, cb_err *err);
/* Appends s with every match replaced. */
int cb_replace_all(const cb_finder *f, cb_regex_run *run, cb_buf *out, const char *s, size_t n, const char *with, size_t n_with,
                   cb_err *err);

/* tok_json.c, tok_parts.c */
int cb_tok_read(cb_tokenizer *t, const char *where, const char *text, size_t n, cb_err *err);
/* Opens the text of a tokenizer.json alone (tests, fuzzing). */
int cb_tokenizer_open_text(const char *text, size_t n, cb_tokenizer **out, cb_err *err);
#endif
