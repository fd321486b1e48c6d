/* tok_parts.h: the component trees of tokenizer.json (normalizer, pre_tokenizer, post_processor, decoder) become step lists. */
#ifndef CB_TEXT_TOK_PARTS_H
#define CB_TEXT_TOK_PARTS_H
#include "base/json.h"
#include "text/tok.h"

/* Each takes the field's value (NULL or null: none) and appends to t's list. A component or value we do not know is
 * CB_EFORMAT naming `where`, the field's path and the value. Unknown fields of known components are ignored, as the
 * reference does. */
int cb_tok_read_normalizer(cb_tokenizer *t, const char *where, const json_t *j, cb_err *err);
int cb_tok_read_pre_tokenizer(cb_tokenizer *t, const char *where, const json_t *j, cb_err *err);
int cb_tok_read_post_processor(cb_tokenizer *t, const char *where, const json_t *j, cb_err *err);
int cb_tok_read_decoder(cb_tokenizer *t, const char *where, const json_t *j, cb_err *err);
void cb_tok_free_steps(cb_tokenizer *t);
#endif
