/* Reading tokenizers: damaged and unsupported files say what is wrong; the small files beside tokenizer.json; GGUF
 * vocabularies; UTF-8; pattern translation. */
#include "base/json.h"
#include "base/mem.h"
#include "text/gguf_vocab.h"
#include "text/regex.h"
#include "text/tok.h"
#include "text/utf8.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "support/tmpdir.h"

/* ---- errors ---- */

#define MODEL(x) "{\"model\":{\"type\":\"BPE\"," x "}}"
#define PLAIN "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}"

static const struct { const char *json, *says; } bad[] = {
    {"", "'{' expected"},
    {"[]", "'{' expected"},
    {"{\"model\":", "a value without its end"},
    {"{\"model\":{\"vocab\":{\"a", "a string without its end"},
    {"{}", "model is not an object"},
    {"{\"model\":[]}", "model is not an object"},
    {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",0]]}}", "model.type 'Unigram' is not supported"},
    {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{}}}", "model.type 'WordPiece'"},
    {MODEL("\"merges\":[]"), "model.vocab is missing"},
    {MODEL("\"vocab\":{}"), "model.merges is missing"},
    {MODEL("\"vocab\":[],\"merges\":[]"), "model.vocab, byte 0: an object of token to id expected"},
    {MODEL("\"vocab\":{\"a\":-1},\"merges\":[]"), "an id expected"},
    {MODEL("\"vocab\":{\"a\":1.5},\"merges\":[]"), "an id expected"},
    {MODEL("\"vocab\":{\"a\":01},\"merges\":[]"), "an id expected"},
    {MODEL("\"vocab\":{\"a\":4194304},\"merges\":[]"), "id 4194304 of token 'a' is not in 0..4194303"},
    {MODEL("\"vocab\":{\"a\":99999999999999999999999},\"merges\":[]"), "an id expected"},
    {MODEL("\"vocab\":{\"a\":\"0\"},\"merges\":[]"), "an id expected"},
    {MODEL("\"vocab\":{\"\\ud800\":0},\"merges\":[]"), "half a surrogate pair"},
    {MODEL("\"vocab\":{\"\\x\":0},\"merges\":[]"), "unknown escape"},
    {MODEL("\"vocab\":{\"a\":0,},\"merges\":[]"), "a string expected"},
    {MODEL("\"vocab\":{\"a\":0},\"merges\":[\"a\"]"), "a merge is not two tokens"},
    {MODEL("\"vocab\":{\"a\":0},\"merges\":[\"a a a\"]"), "a merge is not two tokens"},
    {MODEL("\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]"), "a merge is not a pair"},
    {MODEL("\"vocab\":{\"a\":0},\"merges\":[[\"a\",\"a\",\"a\"]]"), "a merge is not a pair"},
    {MODEL("\"vocab\":{\"a\":0},\"merges\":[7]"), "a string or a pair expected"},
    {MODEL("\"vocab\":{\"a\":0},\"merges\":[\"a x\"]"), "'a' + 'x': the right token is not in the vocabulary"},
    {MODEL("\"vocab\":{\"a\":0},\"merges\":[\"x a\"]"), "the left token is not in"},
    {MODEL("\"vocab\":{\"a\":0},\"merges\":[\"a a\"]"), "the joined token is not in"},
    {MODEL("\"vocab\":{\"a\":0},\"merges\":[],\"dropout\":0.1"), "model.dropout 0.1"},
    {MODEL("\"vocab\":{\"a\":0},\"merges\":[],\"byte_fallback\":1"), "byte_fallback is not true or false"},
    {MODEL("\"vocab\":{\"a\":0},\"merges\":[],\"unk_token\":1"), "unk_token is not a string"},
    {"{" PLAIN ",\"normalizer\":{\"type\":\"Nmt\"}}", "normalizer.type 'Nmt' is not supported"},
    {"{" PLAIN ",\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"\"}}", "'Precompiled'"},
    {"{" PLAIN ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"X\"}]}}", "normalizer.normalizers[1].type 'X'"},
    {"{" PLAIN ",\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"(\"},\"content\":\"\"}}", "normalizer: pattern: missing"},
    {"{" PLAIN ",\"normalizer\":{\"type\":\"Replace\",\"pattern\":\"x\",\"content\":\"\"}}", "normalizer.pattern is neither"},
    {"{" PLAIN ",\"normalizer\":7}", "normalizer is not an object"},
    {"{" PLAIN ",\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"}}", "pre_tokenizer.type 'UnicodeScripts'"},
    {"{" PLAIN ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"x\"},\"behavior\":\"Sideways\",\"invert\":false}}", "pre_tokenizer.behavior 'Sideways'"},
    {"{" PLAIN ",\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"xx\"}}", "pre_tokenizer.replacement is not one character"},
    {"{" PLAIN ",\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"often\"}}", "prepend_scheme 'often'"},
    {"{" PLAIN ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[],\"special_tokens\":{}}}", "around one Sequence"},
    {"{" PLAIN ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"q\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{}}}", "no ids for 'q'"},
    {"{" PLAIN ",\"post_processor\":{\"type\":\"Magic\"}}", "post_processor.type 'Magic'"},
    {"{" PLAIN ",\"decoder\":{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":true}}", "decoder.type 'WordPiece'"},
    {"{" PLAIN ",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"ByteFallback\"}]}}", "'ByteFallback'"},
    {"{" PLAIN ",\"decoder\":{\"type\":\"Strip\",\"content\":\" \",\"start\":-1,\"stop\":0}}", "decoder.start is not in 0..1000"},
    {"{" PLAIN ",\"added_tokens\":{}}", "added_tokens is not an array"},
    {"{" PLAIN ",\"added_tokens\":[{\"id\":7}]}", "an added token has no content"},
    {"{" PLAIN ",\"added_tokens\":[{\"content\":\"x\"}]}", "added token 'x' has no id"},
    {"{" PLAIN ",\"added_tokens\":[{\"content\":\"x\",\"id\":7,\"special\":\"yes\"}]}", "special is not true or false"},
    {"{" PLAIN ",\"added_tokens\":[{\"content\":\"x\",\"id\":-7}]}", "id is -7"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":2},\"merges\":[]},\"added_tokens\":[{\"content\":\"x\",\"id\":2}]}", "'x' gets id 2, which is 'b' already"},
    {"{" PLAIN "} {", "end of file expected"},
    {"{" PLAIN ",\"normalizer\":null,}", "key"},
    {"{\"\xff\":1}", "is not UTF-8"},
};

static void test_errors(void **state)
{
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cb_tokenizer *t;
        cb_err err = {0};
        int rc = cb_tokenizer_open_text(bad[i].json, strlen(bad[i].json), &t, &err);
        if (rc != CB_EFORMAT || !strstr(err.text, bad[i].says) || strncmp(err.text, "tokenizer.json: ", 16))
            print_error("%s\n  gives %d '%s'\n  not '%s'\n", bad[i].json, rc, err.text, bad[i].says);
        assert_int_equal(rc, CB_EFORMAT);
        assert_null(t);
        assert_non_null(strstr(err.text, bad[i].says));
        assert_memory_equal(err.text, "tokenizer.json: ", 16);
    }
}

/* Every prefix of a good file is refused, and no byte of it can be lost without notice or harm. */
static void test_truncated(void **state)
{
    static const char good[] = "{\"version\":\"1.0\",\"added_tokens\":[{\"id\":3,\"content\":\"<x>\",\"special\":true}],\"normalizer\":{\"type\":\"NFC\"},"
                               "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true},\"decoder\":{\"type\":\"ByteLevel\"}," PLAIN "}";
    cb_tokenizer *t;
    for (size_t n = 0; n < sizeof good - 1; n++) {
        assert_int_equal(cb_tokenizer_open_text(good, n, &t, NULL), CB_EFORMAT);
        char *copy = cb_strndup(good, sizeof good - 1);
        memmove(copy + n, copy + n + 1, sizeof good - 1 - n);
        if (cb_tokenizer_open_text(copy, sizeof good - 2, &t, NULL) == 0) cb_tokenizer_close(t);
        cb_free(copy);
    }
    assert_int_equal(cb_tokenizer_open_text(good, sizeof good - 1, &t, NULL), 0);
    cb_tokenizer_close(t);
}

/* ---- the small files ---- */

static int64_t encode(const cb_tokenizer *t, const char *s, int flags, int32_t *ids)
{
    return cb_tokenizer_encode(t, s, strlen(s), flags, ids, 64, NULL);
}

static cb_tokenizer *open_with(const char *config, const char *generation, const char *model)
{
    char buf[64];
    const char *dir = tmp_dir(buf);
    cb_tokenizer *t;
    cb_err err = {0};
    tmp_text(dir, "tokenizer.json", "{" PLAIN ",\"added_tokens\":[{\"id\":3,\"content\":\"<s>\",\"special\":true},{\"id\":4,\"content\":\"</s>\",\"special\":true}]}");
    if (config) tmp_text(dir, "tokenizer_config.json", config);
    if (generation) tmp_text(dir, "generation_config.json", generation);
    if (model) tmp_text(dir, "config.json", model);
    int rc = cb_tokenizer_open(dir, &t, &err);
    tmp_remove(buf);
    if (rc < 0) {
        print_message("%s\n", err.text);
        assert_null(t);
        assert_int_equal(rc, CB_EFORMAT);
    }
    return t;
}

static void check_stops(cb_tokenizer *t, const char *want) /* a letter for each id from 0: 's' or '.' */
{
    assert_non_null(t);
    for (int i = 0; want[i]; i++) assert_int_equal(cb_tokenizer_is_stop(t, i), want[i] == 's');
    cb_tokenizer_close(t);
}

static void test_stops(void **state)
{
    check_stops(open_with(NULL, NULL, NULL), ".....");
    check_stops(open_with("{\"eos_token\":\"</s>\"}", NULL, NULL), "....s");
    check_stops(open_with("{\"eos_token\":{\"content\":\"</s>\",\"lstrip\":false}}", NULL, NULL), "....s");
    check_stops(open_with("{\"eos_token\":\"</s>\"}", NULL, "{\"eos_token_id\":1}"), ".s..s");
    check_stops(open_with("{\"eos_token\":\"</s>\"}", NULL, "{\"text_config\":{\"eos_token_id\":[0,1]}}"), "ss..s");
    check_stops(open_with("{\"eos_token\":\"</s>\"}", "{\"eos_token_id\":[2,3,2]}", "{\"eos_token_id\":1}"), "..ss.");
    check_stops(open_with(NULL, "{\"eos_token_id\":2}", "{\"eos_token_id\":1}"), "..s..");
    check_stops(open_with(NULL, "{\"temperature\":1}", "{\"eos_token_id\":1}"), ".s...");
    check_stops(open_with(NULL, "{\"eos_token_id\":null}", "{\"eos_token_id\":null}"), ".....");
    check_stops(open_with("{\"eos_token\":null,\"bos_token\":null}", NULL, NULL), ".....");
    assert_null(open_with(NULL, "{\"eos_token_id\":\"x\"}", NULL));
    assert_null(open_with(NULL, "{\"eos_token_id\":[1,\"x\"]}", NULL));
    assert_null(open_with(NULL, "{\"eos_token_id\":-5}", NULL));
    assert_null(open_with(NULL, "{", NULL));
    assert_null(open_with("[]", NULL, NULL));
    assert_null(open_with("{\"added_tokens_decoder\":{\"x\":{\"content\":\"y\"}}}", NULL, NULL));
}

static void test_config(void **state)
{
    int32_t ids[64];
    cb_tokenizer *t = open_with("{\"add_bos_token\":true,\"add_eos_token\":true,\"bos_token\":{\"content\":\"<s>\"},\"eos_token\":\"</s>\"}", NULL, NULL);
    assert_int_equal(encode(t, "ab", CB_ENCODE_SPECIAL_BEGIN, ids), 3);
    assert_true(ids[0] == 3 && ids[1] == 2 && ids[2] == 4);
    assert_int_equal(encode(t, "ab", 0, ids), 1);
    assert_int_equal(encode(t, "<s>b", CB_ENCODE_PARSE_SPECIAL, ids), 2);
    assert_true(ids[0] == 3 && ids[1] == 1);
    assert_int_equal(encode(t, "<s>b", 0, ids), 1); /* no token for < s > : they vanish */
    cb_tokenizer_close(t);
    /* tokens that only tokenizer_config.json lists */
    t = open_with("{\"added_tokens_decoder\":{\"3\":{\"content\":\"<other>\",\"special\":true},\"5\":{\"content\":\"<new>\",\"special\":true,"
                  "\"normalized\":false}}}", NULL, NULL);
    assert_int_equal(cb_tokenizer_find(t, "<new>", 5), 5);
    assert_int_equal(cb_tokenizer_find(t, "<s>", 3), 3);
    assert_int_equal(cb_tokenizer_find(t, "<other>", 7), -1);
    assert_int_equal(encode(t, "a<new>b", CB_ENCODE_PARSE_SPECIAL, ids), 3);
    assert_int_equal(ids[1], 5);
    cb_tokenizer_close(t);
    char buf[64];
    cb_err err = {0};
    assert_int_equal(cb_tokenizer_open(tmp_dir(buf), &t, &err), CB_ENOTFOUND);
    tmp_remove(buf);
}

/* ---- GGUF ---- */

#define S(x) {x, sizeof x - 1}

static void open_vocab(const cb_gguf_vocab *v, cb_tokenizer **t)
{
    cb_buf out;
    cb_err err = {0};
    cb_buf_init(&out, 0);
    int rc = cb_gguf_vocab_json(v, &out, &err);
    if (rc == 0) rc = cb_tokenizer_open_text(out.data, out.n, t, &err);
    if (rc < 0) print_error("%s\n", err.text);
    assert_int_equal(rc, 0);
    cb_buf_fini(&out);
}

static void check_encode(const cb_tokenizer *t, const char *text, int flags, const char *want)
{
    int32_t ids[64];
    char got[512] = "";
    int64_t n = encode(t, text, flags, ids);
    assert_true(n >= 0 && n < 64);
    for (int64_t i = 0; i < n; i++) snprintf(got + strlen(got), sizeof got - strlen(got), "%s%d", i ? " " : "", ids[i]);
    assert_string_equal(got, want);
}

static void test_gguf_llama(void **state)
{
    static const cb_gguf_str tokens[] = {S("<unk>"), S("<s>"), S("</s>"), S("<0x0A>"), S("a"), S("b"), S("c"), S("\xe2\x96\x81"),
                                         S("ab"), S("bc"), S("abc"), S("\xe2\x96\x81" "a"), S("  "), S("<x>"), S("\"\\\n")};
    static const float scores[] = {-1000, -1000, -1000, 0, -9, -9, -9, -9, -2, -1, -3, -4, -1000, -1000, -9};
    static const int32_t types[] = {2, 3, 3, 6, 1, 1, 1, 1, 1, 1, 1, 1, 4, 4, 1};
    cb_gguf_vocab v = {.model = "llama", .pre = "default", .tokens = tokens, .n_tokens = 15, .scores = scores, .types = types,
                       .bos = 1, .eos = 2, .unk = 0, .pad = -1, .add_bos = -1, .add_eos = -1, .add_space_prefix = 0};
    cb_tokenizer *t;
    open_vocab(&v, &t);
    check_encode(t, "abc", 0, "10");                     /* bc first (-1), then a + bc is a way to abc as well */
    check_encode(t, "ab", 0, "8");
    check_encode(t, "abc", CB_ENCODE_SPECIAL_BEGIN, "1 10"); /* SentencePiece adds BOS where the file does not say */
    check_encode(t, "  a", 0, "7 11");                   /* ▁a is better than the run, which has the lowest score */
    check_encode(t, "   b", 0, "12 7 5");
    check_encode(t, "<x>\n</s>", CB_ENCODE_PARSE_SPECIAL, "13 3 2");
    check_encode(t, "q", 0, "0");                        /* no bytes for it: unk */
    assert_int_equal(cb_tokenizer_find(t, "\"\\\n", 3), 14);
    cb_tokenizer_close(t);
    v.add_space_prefix = 1;
    v.add_bos = 0;
    open_vocab(&v, &t);
    check_encode(t, "abc", CB_ENCODE_SPECIAL_BEGIN, "7 10");
    int32_t ids[] = {7, 10};
    char out[16];
    assert_int_equal(cb_tokenizer_decode(t, ids, 2, 0, out, 16, NULL), 3);
    cb_tokenizer_close(t);
}

/* The same tokens with merges of their own, by rank. */
static void test_gguf_gemma4(void **state)
{
    static const cb_gguf_str tokens[] = {S("<pad>"), S("<bos>"), S("a"), S("b"), S("c"), S("\xe2\x96\x81"), S("bc"), S("abc"), S("\xe2\x96\x81" "a"), S("\n"), S("\n\n")};
    static const cb_gguf_str merges[] = {S("\xe2\x96\x81 a"), S("b c"), S("a bc"), S("\n \n")};
    static const int32_t types[] = {3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    cb_gguf_vocab v = {.model = "gemma4", .tokens = tokens, .n_tokens = 11, .types = types, .merges = merges, .n_merges = 4, .bos = 1,
                       .eos = 0, .unk = -1, .pad = 0, .add_bos = 0, .add_eos = 0, .add_space_prefix = -1};
    cb_tokenizer *t;
    open_vocab(&v, &t);
    check_encode(t, "abc abc", CB_ENCODE_SPECIAL_BEGIN, "7 8 6");
    check_encode(t, "<bos>\n\n\n", CB_ENCODE_PARSE_SPECIAL, "1 10 9");
    cb_tokenizer_close(t);
}

/* A pattern that would take longer than the universe has, and one where every step costs a scan of the text. */
static void test_hostile_regex(void **state)
{
    static const char *const patterns[] = {"(a+)+b", "(?:a*a*)*[^a]", "a*a*a*a*[^a]|x"};
    size_t n = 20000;
    char *text = malloc(n);
    memset(text, 'a', n);
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        cb_regex *re;
        cb_regex_run run;
        cb_err err = {0};
        size_t a, b;
        assert_int_equal(cb_regex_open("p", patterns[i], strlen(patterns[i]), &re, &err), 0);
        assert_int_equal(cb_regex_run_init(&run, n, &err), 0);
        run.limit = 0.05; /* the real one is five seconds */
        int rc = 1;
        for (size_t from = 0; from < n && rc > 0; from++) rc = cb_regex_next(re, &run, text, n, from, &a, &b, &err);
        assert_true(rc == 0 || (rc == CB_EFORMAT && strstr(err.text, "gave up")));
        cb_regex_run_fini(&run);
        cb_regex_close(re);
    }
    free(text);
}

static void test_gguf_gpt2(void **state)
{
    static const cb_gguf_str tokens[] = {S("<|e|>"), S("a"), S("\xc4\xa0"), S("\xc4\xa0" "a"), S("1"), S("11"), S("\xc4\x8a"), S("<t>")};
    static const cb_gguf_str merges[] = {S("\xc4\xa0 a"), S("1 1")};
    static const int32_t types[] = {3, 1, 1, 1, 1, 1, 1, 4};
    cb_gguf_vocab v = {.model = "gpt2", .pre = "smollm", .tokens = tokens, .n_tokens = 8, .types = types, .merges = merges,
                       .n_merges = 2, .bos = 0, .eos = 0, .unk = -1, .pad = -1, .add_bos = -1, .add_eos = -1, .add_space_prefix = -1};
    cb_tokenizer *t;
    open_vocab(&v, &t);
    check_encode(t, "a a11\n<|e|><t>", CB_ENCODE_PARSE_SPECIAL | CB_ENCODE_SPECIAL_BEGIN, "1 3 4 4 6 0 7");
    cb_tokenizer_close(t);
    static const char *const pres[] = {NULL, "", "default", "gpt-2", "llama-bpe", "qwen2", "qwen35", "gpt-4o", "starcoder"};
    for (size_t i = 0; i < sizeof pres / sizeof *pres; i++) {
        v.pre = pres[i];
        open_vocab(&v, &t);
        check_encode(t, "a a", 0, "1 3");
        cb_tokenizer_close(t);
    }
    cb_buf out;
    cb_err err;
    cb_buf_init(&out, 0);
    static const char *const wrong[] = {"nonsense", "gpt", "default smollm", " ", "llama"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        v.pre = wrong[i];
        assert_int_equal(cb_gguf_vocab_json(&v, &out, &err), CB_EFORMAT);
        assert_non_null(strstr(err.text, "tokenizer.ggml.pre"));
    }
    v.pre = "smollm";
    v.bos = 8;
    assert_int_equal(cb_gguf_vocab_json(&v, &out, &err), CB_EFORMAT);
    assert_non_null(strstr(err.text, "tokenizer.ggml.bos_token_id is 8"));
    v.bos = -1;
    static const cb_gguf_str odd[] = {S("1a"), S("1 9")};
    v.merges = odd;
    assert_int_equal(cb_gguf_vocab_json(&v, &out, &err), CB_EFORMAT);
    assert_non_null(strstr(err.text, "tokenizer.ggml.merges[0] '1a'"));
    v.model = "bert";
    assert_int_equal(cb_gguf_vocab_json(&v, &out, &err), CB_EFORMAT);
    v.model = "llama";
    assert_int_equal(cb_gguf_vocab_json(&v, &out, &err), CB_EFORMAT);
    assert_non_null(strstr(err.text, "scores"));
    cb_buf_fini(&out);
}

static void test_gguf_config(void **state)
{
    static const cb_gguf_str tokens[] = {S("a\"b"), S("<s>")};
    static const cb_gguf_str merges[] = {S("x y")};
    cb_gguf_vocab v = {.model = "gpt2", .pre = "qwen2", .tokens = tokens, .n_tokens = 2, .merges = merges, .bos = 1, .eos = 0,
                       .unk = -1, .pad = -1, .add_bos = 1, .add_eos = -1, .add_space_prefix = -1};
    cb_buf out;
    json_t *j;
    cb_buf_init(&out, 0);
    assert_int_equal(cb_gguf_vocab_config_json(&v, "{{ 'x\n' }}", 10, &out, NULL), 0);
    assert_int_equal(cb_json_text("c", out.data, out.n, &j, NULL), 0);
    assert_string_equal(json_string_value(json_object_get(j, "eos_token")), "a\"b");
    assert_string_equal(json_string_value(json_object_get(j, "bos_token")), "<s>");
    assert_string_equal(json_string_value(json_object_get(j, "chat_template")), "{{ 'x\n' }}");
    assert_true(json_is_true(json_object_get(j, "add_bos_token")));
    assert_null(json_object_get(j, "unk_token"));
    json_decref(j);
    assert_int_equal(cb_gguf_vocab_config_json(&v, "\xff", 1, &out, NULL), CB_EFORMAT);
    cb_buf_fini(&out);
}

/* ---- UTF-8 ---- */

static void test_utf8(void **state)
{
    static const struct { const char *in, *out; } repair[] = {
        {"ok \xc3\xa9", "ok \xc3\xa9"}, {"\xff", "?"}, {"\xc3", "?"}, {"\xc3(", "?("}, {"\xe2\x82", "?"}, {"\xe2\x82z", "?z"},
        {"\xf0\x9f\x98", "?"}, {"\xed\xa0\x80", "???"}, {"\xc0\x80", "??"}, {"\xe0\x80\x80", "???"}, {"\xf4\x90\x80\x80", "????"},
        {"\xf5\x80", "??"}, {"a\xe2\x28\xa1" "b", "a?(?b"}, {"\xf0\x9f\x92 \xf0\x9f\x92\xa9", "? \xf0\x9f\x92\xa9"}, {"", ""},
    };
    for (size_t i = 0; i < sizeof repair / sizeof *repair; i++) {
        cb_buf want, got;
        cb_buf_init(&want, 0);
        cb_buf_init(&got, 0);
        for (const char *p = repair[i].out; *p; p++) cb_buf_puts(&want, *p == '?' ? "\xef\xbf\xbd" : (char[]){*p, 0});
        cb_utf8_replace(&got, repair[i].in, strlen(repair[i].in));
        assert_int_equal(got.n, want.n);
        if (got.n) assert_memory_equal(got.data, want.data, got.n);
        cb_buf_fini(&want);
        cb_buf_fini(&got);
    }
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        char s[4];
        uint32_t back;
        if (cp >= 0xd800 && cp < 0xe000) continue;
        int n = cb_utf8_encode(s, cp);
        assert_int_equal(cb_utf8_decode(s, (size_t)n, &back), n);
        assert_int_equal(back, cp);
        assert_int_equal(cb_utf8_tail(s, (size_t)n), 0);
        for (int k = 1; k < n; k++) {
            assert_int_equal(cb_utf8_tail(s, (size_t)k), k);
            assert_int_equal(cb_utf8_decode(s, (size_t)k, &back), -k);
        }
    }
    assert_int_equal(cb_utf8_tail("a\xed\xa0", 3), 0); /* no byte completes half a surrogate */
    assert_int_equal(cb_utf8_tail("\x80\x80", 2), 0);
    for (int b = 0; b < 256; b++) assert_int_equal(cb_byte_of_char(cb_byte_char((uint8_t)b)), b);
}

/* ---- patterns ---- */

static void test_regex(void **state)
{
    static const char *const refused[] = {"\\bx", "[[:alpha:]]", "[a&&b]", "x{1,2}+", "(?<n>x)", "(?P<n>x)", "\\1", "\\K", "\\R", "[\\W]", "(*ACCEPT)",
                                          "(?R)", "(?1)", "\\pL", "\\p{NoSuchScript}", "[a", "x\\", "(?s)x", "\\Q", "\\u12"};
    cb_regex *re;
    cb_err err;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        int rc = cb_regex_open("p", refused[i], strlen(refused[i]), &re, &err);
        if (rc != CB_EFORMAT) print_error("%s\n", refused[i]);
        assert_int_equal(rc, CB_EFORMAT);
    }
    static const struct { const char *pattern, *text; int at, end; } found[] = {
        {"\\s+", "a \xe1\xa0\x8e", 1, 2},         /* U+180E is no space any more */
        {"\\S+", "\xc2\x85 x", 3, 4},             /* U+0085 is one */
        {"\\w+", "-\xc2\xb2_", 1, 4}, {"\\h+", "xyzcafe", 3, 7}, {"^b", "a\nb", 2, 3}, {"(?m:a.b)", "a\nb", 0, 3}, {"a.b", "a\nb", -1, 0},
        {"\\p{Han}", "\xe3\x80\x82\xe4\xb8\xad", 3, 6}, {"[^\\P{L}]", "1a", 1, 2}, {"\\u0041", "xA", 1, 2}, {"(?i:'s)", "'\xc5\xbf", 0, 3}, {"[]a]", "]", 0, 1},
        {"\\v", "\n\v", 1, 2}, {"\\p{^L}", "a1", 1, 2}, {"\\p{Letter}", "1a", 1, 2},
    };
    for (size_t i = 0; i < sizeof found / sizeof *found; i++) {
        cb_regex_run run;
        size_t a = 0, b = 0;
        assert_int_equal(cb_regex_open("p", found[i].pattern, strlen(found[i].pattern), &re, &err), 0);
        assert_int_equal(cb_regex_run_init(&run, 10, &err), 0);
        int rc = cb_regex_next(re, &run, found[i].text, strlen(found[i].text), 0, &a, &b, &err);
        if (rc != (found[i].at >= 0) || (rc && ((int)a != found[i].at || (int)b != found[i].end))) print_error("%s: %d %zu %zu\n", found[i].pattern, rc, a, b);
        assert_int_equal(rc, found[i].at >= 0);
        if (rc) assert_true((int)a == found[i].at && (int)b == found[i].end);
        cb_regex_run_fini(&run);
        cb_regex_close(re);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_errors), cmocka_unit_test(test_truncated), cmocka_unit_test(test_stops), cmocka_unit_test(test_config),
        cmocka_unit_test(test_gguf_llama), cmocka_unit_test(test_gguf_gemma4), cmocka_unit_test(test_gguf_gpt2), cmocka_unit_test(test_gguf_config),
        cmocka_unit_test(test_utf8), cmocka_unit_test(test_regex), cmocka_unit_test(test_hostile_regex),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
