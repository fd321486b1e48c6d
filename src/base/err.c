#include "base/err.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Control characters from files must not reach a terminal: names in messages come from hostile headers. U+0080..U+009F are
 * C2 80..9F. A character that the end of the buffer cut in two is dropped. */
static void clean_text(char *s)
{
    size_t n = strlen(s);
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c == 0xc2 && (unsigned char)s[i + 1] >= 0x80 && (unsigned char)s[i + 1] < 0xa0) s[i] = s[i + 1] = '?';
        else if (c < 0x20 || c == 0x7f) s[i] = '?';
    }
    if (n < CB_ERR_TEXT - 1) return;
    size_t lead = n;
    while (lead > 0 && n - lead < 3 && ((unsigned char)s[lead - 1] & 0xc0) == 0x80) lead--;
    if (!lead) return;
    unsigned char c = (unsigned char)s[lead - 1];
    size_t want = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : c >= 0xc0 ? 2 : 1;
    if (n - (lead - 1) < want) s[lead - 1] = 0;
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
