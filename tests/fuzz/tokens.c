/* Texts and id sequences through fixed small tokenizers. The first byte chooses the tokenizer and what the rest is: a text
 * to encode and decode, or ids to decode. */
#include "text/tok.h"
#include "text/utf8.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { N_TOKENIZERS = 4 };

static const char *const parts[N_TOKENIZERS] = {
    "\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true},\"decoder\":{\"type\":\"ByteLevel\"}",
    "\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"
    "\"(?i:'s|'t)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?[\\\\p{L}\\\\p{M}]+|\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{M}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"},"
    "\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]},\"decoder\":{\"type\":\"ByteLevel\"}",
    "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xe2\x96\x81\"},\"pre_tokenizer\":null,\"decoder\":{\"type\":\"Sequence\","
    "\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"\xe2\x96\x81\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]}",
    "\"normalizer\":{\"type\":\"NFKC\"},\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\xe2\x96\x81\",\"prepend_scheme\":\"first\"},\"decoder\":{\"type\":"
    "\"Sequence\",\"decoders\":[{\"type\":\"Metaspace\",\"replacement\":\"\xe2\x96\x81\",\"prepend_scheme\":\"first\"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},"
    "{\"type\":\"Strip\",\"content\":\"a\",\"start\":2,\"stop\":2}]}",
};

static cb_tokenizer *tokenizers[N_TOKENIZERS]; /* opened once: reading files is another target's work */

static void put_token(cb_buf *b, const char *s, size_t n, int id)
{
    cb_buf_puts(b, id ? ",\"" : "\"");
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '"' || s[i] == '\\') cb_buf_putc(b, '\\');
        cb_buf_putc(b, s[i]);
    }
    cb_buf_printf(b, "\":%d", id);
}

static cb_tokenizer *make(int which)
{
    cb_buf b;
    cb_tokenizer *t = NULL;
    int id = 0;
    bool bytes = which < 2;
    cb_buf_init(&b, 0);
    cb_buf_printf(&b, "{\"added_tokens\":[{\"id\":600,\"content\":\"<s>\",\"special\":true},{\"id\":601,\"content\":\"<x>\",\"lstrip\":true,\"rstrip\":true},"
                      "{\"id\":602,\"content\":\"word\",\"single_word\":true,\"normalized\":true}],%s,\"model\":{\"type\":\"BPE\",\"unk_token\":%s,"
                      "\"fuse_unk\":true,\"byte_fallback\":%s,\"vocab\":{", parts[which], bytes ? "null" : "\"<0x00>\"", bytes ? "false" : "true");
    for (int i = 0; i < 256; i++) {
        char s[8];
        int n = bytes ? cb_utf8_encode(s, cb_byte_char((uint8_t)i)) : snprintf(s, sizeof s, "<0x%02X>", i);
        put_token(&b, s, (size_t)n, id++);
    }
    for (char c = 'a'; c <= 'z' && !bytes; c++) put_token(&b, &c, 1, id++);
    if (!bytes) put_token(&b, "\xe2\x96\x81", 3, id++);
    const char *more[] = {"aa", "ab", "aaaa", "th", "the", "in", bytes ? "\xc4\xa0" "a" : "\xe2\x96\x81" "a", bytes ? "\xc4\xa0\xc4\xa0" : "\xe2\x96\x81\xe2\x96\x81"};
    for (size_t i = 0; i < 8; i++) put_token(&b, more[i], strlen(more[i]), id++);
    const char *space = bytes ? "\xc4\xa0" : "\xe2\x96\x81";
    cb_buf_printf(&b, "},\"merges\":[\"a a\",\"t h\",\"a b\",\"th e\",\"aa aa\",\"i n\",\"%s a\",\"%s %s\"]}}", space, space, space);
    cb_err err = {0};
    if (cb_tokenizer_open_text(b.data, b.n, &t, &err) < 0) fprintf(stderr, "%s\n", err.text);
    CB_ASSERT(t);
    cb_buf_fini(&b);
    return t;
}

static void close_all(void)
{
    for (int i = 0; i < N_TOKENIZERS; i++) cb_tokenizer_close(tokenizers[i]);
}

/* Decodes both ways; the caller frees *out. */
static size_t decode(const cb_tokenizer *t, const int32_t *ids, size_t n, char **out)
{
    int64_t k = cb_tokenizer_decode(t, ids, n, 0, NULL, 0, NULL);
    CB_ASSERT(k >= 0);
    *out = malloc((size_t)k + 1);
    CB_ASSERT(cb_tokenizer_decode(t, ids, n, 0, *out, (size_t)k, NULL) == k);
    cb_detok *d;
    size_t have = 0, m;
    const char *s;
    CB_ASSERT(cb_detok_open(t, 0, &d, NULL) == 0);
    for (size_t i = 0; i <= n; i++) {
        CB_ASSERT((i < n ? cb_detok_put(d, ids[i], &s, &m, NULL) : cb_detok_end(d, &s, &m, NULL)) == 0);
        CB_ASSERT(cb_utf8_valid(s, m) == m && have + m <= (size_t)k && !memcmp(*out + have, s, m));
        have += m;
    }
    CB_ASSERT(have == (size_t)k);
    cb_detok_close(d);
    return have;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!tokenizers[0]) {
        for (int i = 0; i < N_TOKENIZERS; i++) tokenizers[i] = make(i);
        atexit(close_all);
    }
    if (!size) return 0;
    int which = data[0] % N_TOKENIZERS;
    bool text = data[0] & 4;
    const cb_tokenizer *t = tokenizers[which];
    data++;
    size--;
    int32_t *ids = malloc((size * 4 + 4) * sizeof *ids);
    char *back;
    if (text) {
        int64_t n = cb_tokenizer_encode(t, (const char *)data, size, which == 0 ? 0 : CB_ENCODE_PARSE_SPECIAL, NULL, 0, NULL), n2;
        CB_ASSERT(n >= 0);
        ids = realloc(ids, ((size_t)n + 1) * sizeof *ids);
        n2 = cb_tokenizer_encode(t, (const char *)data, size, which == 0 ? 0 : CB_ENCODE_PARSE_SPECIAL, ids, (size_t)n, NULL);
        CB_ASSERT(n == n2);
        size_t m = decode(t, ids, (size_t)n, &back);
        cb_buf fixed;
        cb_buf_init(&fixed, 0);
        cb_utf8_replace(&fixed, (const char *)data, size);
        bool stripped = memmem(data, size, "<x>", 3) != NULL; /* that token swallows spaces */
        if (which == 0 && !stripped) CB_ASSERT(m == fixed.n && (!m || !memcmp(back, fixed.data, m)));
        cb_buf_fini(&fixed);
    } else {
        for (size_t i = 0; i < size; i++) ids[i] = i + 1 < size && (data[i] & 7) == 7 ? 256 + data[i + 1] : data[i];
        decode(t, ids, size, &back);
    }
    free(back);
    free(ids);
    return 0;
}
