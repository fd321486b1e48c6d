#include "base/err.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Control characters from files must not reach a terminal: names in messages come from hostile headers. */
static void clean_text(char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f) *s = '?';
}

int cb_fail(cb_err *err, int code, const char *fmt, ...)
{
    if (err) {
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(err->text, sizeof err->text, fmt, ap);
        va_end(ap);
        clean_text(err->text);
        err->code = code;
    }
    return code;
}

int cb_fail_in(cb_err *err, int code, const char *fmt, ...)
{
    if (!err) return code;
    char prefix[CB_ERR_TEXT], old[CB_ERR_TEXT];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(prefix, sizeof prefix, fmt, ap);
    va_end(ap);
    memcpy(old, err->text, sizeof old);
    int n = snprintf(err->text, sizeof err->text, "%s: ", prefix);
    if (n >= 0 && (size_t)n < sizeof err->text) {
        size_t left = sizeof err->text - (size_t)n, len = strnlen(old, left - 1);
        memcpy(err->text + n, old, len);
        err->text[(size_t)n + len] = 0;
    }
    clean_text(err->text);
    return err->code ? err->code : code;
}

void cb_assert_failed(const char *expr, const char *file, int line)
{
    fprintf(stderr, "cambium: internal error: %s (%s:%d)\n", expr, file, line);
    abort();
}
