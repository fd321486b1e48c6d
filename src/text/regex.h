/* regex.h: the regular expressions of tokenizer.json. They are written for Oniguruma; cb_regex_open() translates what the
 * two engines read differently and refuses what it cannot translate, then PCRE2 matches.
 *
 * Patterns come from outside. A search that backtracks too long is an error, not a hang: searches run with a step limit that
 * grows while the run has time left, an amount proportional to the text and hundreds of times what real patterns take. */
#ifndef CB_TEXT_REGEX_H
#define CB_TEXT_REGEX_H
#include "base/err.h"
#include <stddef.h>
#include <stdint.h>

typedef struct cb_regex cb_regex;

/* Compiles n bytes of pattern (at most 64 KiB). `where` names the field in messages. CB_EFORMAT, CB_ENOMEM. Immutable once
 * open, so threads may share it. */
int cb_regex_open(const char *where, const char *pattern, size_t n, cb_regex **out, cb_err *err);
void cb_regex_close(cb_regex *re);

/* Scratch of one caller, reusable for any number of patterns. Zero-initialise; fini in the end. */
typedef struct cb_regex_run {
    void *match, *context, *jit_stack;
    double spent, limit; /* seconds in searches */
    uint64_t n_searches;
    bool young; /* the text may hold characters with stand-ins (unicode.h); for the caller's use */
} cb_regex_run;
int cb_regex_run_init(cb_regex_run *run, size_t text_bytes, cb_err *err);
/* Gives the run new time, for another text of that size. */
void cb_regex_run_again(cb_regex_run *run, size_t text_bytes);
void cb_regex_run_fini(cb_regex_run *run);

/* The first match in valid UTF-8 s[0..n) that begins at `from` or later. 1 and [*start, *end) when found, 0 when not, or a
 * negative error. */
int cb_regex_next(const cb_regex *re, cb_regex_run *run, const char *s, size_t n, size_t from, size_t *start, size_t *end,
                  cb_err *err);
#endif
