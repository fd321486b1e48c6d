/* tok_scan.h: the two large parts of tokenizer.json, model.vocab and model.merges, are read by a small scanner of our own
 * (a quarter of a million entries in milliseconds); the rest goes to jansson. */
#ifndef CB_TEXT_TOK_SCAN_H
#define CB_TEXT_TOK_SCAN_H
#include "text/tok.h"

typedef struct cb_tok_spans {
    const char *vocab, *vocab_end;   /* the value of model.vocab; NULL when absent */
    const char *merges, *merges_end; /* of model.merges */
} cb_tok_spans;

/* Finds the spans in valid UTF-8 text and appends to rest the document with both replaced by null. Checks only as much
 * grammar as it needs: what it passes over is checked by whoever parses it. CB_EFORMAT, CB_ENOMEM. */
int cb_tok_scan(const char *where, const char *text, size_t n, cb_tok_spans *spans, cb_buf *rest, cb_err *err);
/* Fills t->vocab from the object of token to id. */
int cb_tok_read_vocab(cb_tokenizer *t, const char *where, const cb_tok_spans *spans, cb_err *err);
/* Fills t->merges from the array of "a b" or ["a", "b"]. Every token must be in the vocabulary. */
int cb_tok_read_merges(cb_tokenizer *t, const char *where, const cb_tok_spans *spans, cb_err *err);
#endif
