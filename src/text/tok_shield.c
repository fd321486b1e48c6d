/* tok_shield.c: special tokens spelled by people stay text. Content is marked before a template renders it; the mark breaks the
 * spelling, survives trimming (it is never at an end), and is taken out when the rendered prompt is encoded. */
#include "text/tok.h"
#include "text/utf8.h"
#include <string.h>

static const char mark[3] = {'\xef', '\xb7', '\x90'}; /* U+FDD0, a noncharacter: for a program's own use, in no text */

/* Length of the special token, of either set, that s begins with; 0: none. */
static size_t special_at(const cb_tokenizer *t, const char *s, size_t n)
{
    size_t best = 0;
    for (int set = 0; set < 2; set++) {
        size_t len = 0;
        if (!t->added[set].nodes) continue;
        int32_t id = cb_trie_match(&t->added[set], s, n, &len);
        if (id >= 0 && (t->vocab.flags[id] & CB_TOKEN_SPECIAL) && len > best) best = len;
    }
    return best;
}

int cb_tokenizer_shield(const cb_tokenizer *t, const char *text, size_t n, char **out, size_t *out_n, cb_err *err)
{
    cb_buf b, clean;
    cb_buf_init(&b, 0);
    cb_buf_init(&clean, 0);
    *out = NULL;
    cb_utf8_replace(&clean, text, n);
    for (size_t i = 0; i < clean.n;) {
        const char *s = clean.data + i;
        size_t len = (size_t)cb_utf8_len(*s);
        bool is_mark = clean.n - i >= 3 && !memcmp(s, mark, 3);
        if (is_mark) cb_buf_puts(&b, "\xef\xbf\xbd");
        else cb_buf_put(&b, s, len);
        /* Every beginning is marked, also inside another token: what follows must not join up when that one is broken. A
         * token of one character cannot be broken and stays what it is. */
        if (!is_mark && special_at(t, s, clean.n - i) > len) cb_buf_put(&b, mark, 3);
        i += len;
    }
    bool ok = cb_buf_ok(&clean) && cb_buf_ok(&b);
    cb_buf_fini(&clean);
    *out_n = b.n;
    *out = cb_buf_take(&b);
    if (ok && *out) return 0;
    cb_free(*out);
    *out = NULL;
    return cb_fail(err, CB_ENOMEM, "no memory to mark %zu bytes", n);
}

bool cb_shield_remove(cb_buf *b, const char *s, size_t n)
{
    const char *at = memmem(s, n, mark, 3);
    if (!at) return false;
    b->n = 0;
    for (const char *end = s + n; at; at = memmem(s, (size_t)(end - s), mark, 3)) {
        cb_buf_put(b, s, (size_t)(at - s));
        s = at + 3;
        n = (size_t)(end - s);
    }
    cb_buf_put(b, s, n);
    return true;
}
