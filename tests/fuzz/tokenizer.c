/* A tokenizer.json, then a fixed text through it and back: nothing may crash, hang or leak, and what was decoded in one go
 * must be what the incremental detokeniser gives. */
#include "text/tok.h"
#include "text/utf8.h"
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char text[] = "Hello  World's <s>caf\xc3\xa9 e\xcc\x81\xcc\xa7\n\n 123,456 \xe4\xb8\xad\xe6\x96\x87\t<x> \xe2\x96\x81 \xf0\x9f\x98\x80 aaaaaaaaaaaaaaaab \xff\xe2\x82";

static void back(const cb_tokenizer *t, const int32_t *ids, size_t n)
{
    char whole[4096];
    const char *s;
    size_t m, have = 0;
    int64_t k = cb_tokenizer_decode(t, ids, n, 0, whole, sizeof whole, NULL);
    cb_detok *d;
    if (k < 0 || k > (int64_t)sizeof whole || cb_detok_open(t, 0, &d, NULL) < 0) return;
    for (size_t i = 0; i <= n; i++) {
        if ((i < n ? cb_detok_put(d, ids[i], &s, &m, NULL) : cb_detok_end(d, &s, &m, NULL)) < 0) break;
        CB_ASSERT(cb_utf8_valid(s, m) == m && have + m <= (size_t)k && !memcmp(whole + have, s, m));
        have += m;
        CB_ASSERT(i < n || have == (size_t)k);
    }
    cb_detok_close(d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    cb_tokenizer *t;
    cb_err err = {0};
    int32_t ids[512];
    if (cb_tokenizer_open_text((const char *)data, size, &t, &err) < 0) {
        CB_ASSERT(err.code < 0 && err.text[0]);
        return 0;
    }
    for (int flags = 0; flags < 4; flags++) {
        int64_t n = cb_tokenizer_encode(t, text, sizeof text - 1, flags, ids, 512, &err);
        if (n < 0) continue;
        if (n > 512) n = 512;
        for (int64_t i = 0; i < n; i++) CB_ASSERT(ids[i] >= 0);
        back(t, ids, (size_t)n);
    }
    for (int i = 0; i < 40; i++) ids[i] = i;
    back(t, ids, 40);
    cb_tokenizer_close(t);
    return 0;
}
