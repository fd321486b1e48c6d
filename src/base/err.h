/* err.h: errors are born here. A failing function fills a cb_err (which may be NULL) and returns the negative code. */
#ifndef CB_BASE_ERR_H
#define CB_BASE_ERR_H
#include "cambium.h"
#include <stdbool.h>

/* Writes one line of text and the code into err (if not NULL); returns code, so that `return cb_fail(...)` reads well. */
int cb_fail(cb_err *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Puts "prefix: " before the text that is already in err; returns err's code (or code when err is NULL). */
int cb_fail_in(cb_err *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* A broken invariant of our own, never bad input. Kept in release builds. */
_Noreturn void cb_assert_failed(const char *expr, const char *file, int line);
#define CB_ASSERT(e) ((e) ? (void)0 : cb_assert_failed(#e, __FILE__, __LINE__))
#ifdef CB_DEBUG
#define CB_DCHECK(e) CB_ASSERT(e)
#else
#define CB_DCHECK(e) ((void)0)
#endif
#endif
