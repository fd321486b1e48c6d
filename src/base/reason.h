/* reason.h: splits a streamed answer into reasoning and answer at the delimiters of the model's template. Bytes go in as they are
 * generated; what may be part of a delimiter is held back. Neither delimiters nor the newlines around them come out. Only
 * white space may stand before the opening one; later delimiters are plain text. */
#ifndef CB_BASE_REASON_H
#define CB_BASE_REASON_H
#include <stdbool.h>
#include <stddef.h>

/* RECLASSIFY (no text): the closing delimiter came without an opening one; all answer text so far was reasoning. */
enum { CB_REASON_ANSWER, CB_REASON_THOUGHT, CB_REASON_RECLASSIFY };
typedef void (*cb_reason_fn)(void *ctx, int kind, const char *text, size_t n);

enum { CB_REASON_START, CB_REASON_INSIDE, CB_REASON_GAP, CB_REASON_AFTER }; /* cb_reason.state */

typedef struct cb_reason {
    const char *open, *close; /* borrowed, without white space at their ends; NULL: everything is answer */
    int state;
    bool watch;      /* a closing delimiter without an opening one counts */
    bool fresh;      /* INSIDE, nothing but newlines yet */
    char held[192];
    size_t n_held;
} cb_reason;

/* inside: the prompt has opened the reasoning. thinking: the model was asked to think, so that what stands before a lone closing
 * delimiter is reasoning. Delimiters have 1 to 64 bytes. */
void cb_reason_init(cb_reason *r, const char *open, const char *close, bool inside, bool thinking);
void cb_reason_put(cb_reason *r, const char *text, size_t n, cb_reason_fn fn, void *ctx);
/* End of text: what was held back. Newlines at the end of reasoning are dropped. */
void cb_reason_end(cb_reason *r, cb_reason_fn fn, void *ctx);
#endif
