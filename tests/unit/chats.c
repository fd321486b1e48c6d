/* chats.c: from messages to ids. Replays tests/data/chat_cases.jsonl: conversations rendered by each family's chat template and
 * encoded by its tokenizer (cut small), against the ids of Transformers and Hugging Face's tokenizers; every case once more with
 * shielded texts, as the program encodes them. Then renderings that the models' descriptions give word for word. With an
 * argument, only replays that file: tests/reference/make_chat_cases.py makes one for the real vocabularies. */
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "cambium.h"
#include "text/template.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const struct tm CLOCK = {
    .tm_year = 124, .tm_mon = 6, .tm_mday = 26, .tm_hour = 15, .tm_min = 4, .tm_sec = 5, .tm_wday = 5, .tm_yday = 207};

enum { MAX_FAMILIES = 16 };

typedef struct family {
    char name[64];
    cb_template *t;
    cb_tokenizer *tok;
    int n, n_ids;
} family;

typedef struct replay {
    json_t *inputs;
    family families[MAX_FAMILIES];
    int n_families, n_failed;
} replay;

static const char *str_of(const json_t *o, const char *key) { return json_string_value(json_object_get(o, key)); }

/* ---- lines of a file ---- */

static void each_line(const char *path, void (*fn)(void *ctx, const json_t *line), void *ctx)
{
    char *text, *save = NULL;
    size_t n;
    cb_err err;
    json_error_t e;
    if (cb_file_read(NULL, path, 256 << 20, &text, &n, &err)) fail_msg("%s", err.text);
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        json_t *j = json_loads(line, JSON_ALLOW_NUL, &e);
        if (!j) fail_msg("%s: %s", path, e.text);
        fn(ctx, j);
        json_decref(j);
    }
    cb_free(text);
}

typedef struct wanted_template {
    const char *name;
    char *text;
} wanted_template;

static void look_for_template(void *ctx, const json_t *line)
{
    wanted_template *w = ctx;
    const char *name = str_of(line, "template");
    if (name && !strcmp(name, w->name)) w->text = strdup(str_of(line, "text"));
}

/* The text of a template that tests/data/template_cases.jsonl has. The caller frees it. */
static char *template_text(const char *name)
{
    wanted_template w = {name, NULL};
    each_line("tests/data/template_cases.jsonl", look_for_template, &w);
    if (!w.text) fail_msg("template_cases.jsonl has no template %s", name);
    return w.text;
}

static cb_template *open_template(const char *text, const json_t *specials)
{
    cb_template *t;
    cb_err err = {0};
    if (cb_template_from_text("test", text, strlen(text), specials, &t, &err)) fail_msg("%s", err.text);
    return t;
}

static void open_family(replay *r, const json_t *line)
{
    family *f = &r->families[r->n_families++];
    cb_err err = {0};
    assert_true(r->n_families <= MAX_FAMILIES);
    *f = (family){0};
    snprintf(f->name, sizeof f->name, "%s", str_of(line, "family"));
    char *text = str_of(line, "template") ? strdup(str_of(line, "template")) : template_text(str_of(line, "name"));
    f->t = open_template(text, json_object_get(line, "specials"));
    free(text);
    if (cb_tokenizer_open(str_of(line, "tokenizer"), &f->tok, &err)) fail_msg("%s", err.text);
}

/* ---- cases ---- */

static uint64_t fnv(const int32_t *ids, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++)
        for (int k = 0; k < 4; k++) h = (h ^ ((uint32_t)ids[i] >> 8 * k & 255)) * 0x100000001b3u;
    return h;
}

/* Texts of the messages, and of their parts, marked as the program marks what users write. */
static void shield(const cb_tokenizer *tok, json_t *messages)
{
    static const char *const keys[] = {"content", "text", "reasoning_content", "reasoning"};
    size_t i;
    json_t *m;
    json_array_foreach(messages, i, m)
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
            json_t *v = json_object_get(m, keys[k]);
            char *out;
            size_t n;
            if (json_is_array(v)) shield(tok, v);
            if (!json_is_string(v)) continue;
            assert_int_equal(cb_tokenizer_shield(tok, json_string_value(v), json_string_length(v), &out, &n, NULL), 0);
            json_object_set_new(m, keys[k], json_stringn(out, n));
            free(out);
        }
}

/* Renders and encodes; -1 when the template fails. The caller frees *ids. */
static int64_t ids_of(const family *f, const json_t *vars, int flags, int32_t **ids)
{
    char *json = json_dumps(vars, JSON_COMPACT), *text = NULL;
    cb_err err = {0};
    size_t n;
    *ids = NULL;
    int rc = cb_template_render_at(f->t, json, strlen(json), &CLOCK, NULL, &text, &n, &err);
    free(json);
    if (rc < 0) return -1;
    int64_t k = cb_tokenizer_encode(f->tok, text, n, flags, NULL, 0, &err);
    if (k < 0) fail_msg("%s: %s", f->name, err.text);
    *ids = malloc(((size_t)k + 1) * sizeof **ids);
    assert_int_equal(cb_tokenizer_encode(f->tok, text, n, flags, *ids, (size_t)k, &err), k);
    free(text);
    return k;
}

static const char *verdict(const json_t *c, const int32_t *ids, int64_t n)
{
    const json_t *want = json_object_get(c, "ids"), *count = json_object_get(c, "n");
    if (json_is_true(json_object_get(c, "fail"))) return n < 0 ? NULL : "should have failed";
    if (n < 0) return "failed";
    if (n != (count ? json_integer_value(count) : (json_int_t)json_array_size(want))) return "another number of ids";
    for (size_t i = 0; i < json_array_size(want); i++)
        if (ids[i] != json_integer_value(json_array_get(want, i))) return "another id near the start";
    return !count || fnv(ids, (size_t)n) == strtoull(str_of(c, "fnv"), NULL, 16) ? NULL : "other ids";
}

static void run_case(replay *r, const json_t *line)
{
    const json_t *c = json_object_get(line, "c");
    const char *name = json_string_value(json_array_get(c, 0)), *input = json_string_value(json_array_get(c, 1));
    family *f = r->families;
    while (f < r->families + r->n_families && strcmp(f->name, name)) f++;
    assert_true(f < r->families + r->n_families);
    json_t *vars = json_deep_copy(json_object_get(r->inputs, input));
    assert_non_null(vars);
    json_object_update(vars, json_array_get(c, 2));
    int32_t *ids;
    int64_t n = ids_of(f, vars, CB_ENCODE_PARSE_SPECIAL, &ids);
    const char *why = verdict(line, ids, n);
    /* shielded, texts that only look like special tokens stay text; all others give the same ids */
    if (!why && n >= 0 && strcmp(input, "look_alike") && strcmp(input, "think")) {
        int32_t *again;
        shield(f->tok, json_object_get(vars, "messages"));
        int64_t m = ids_of(f, vars, CB_ENCODE_PARSE_SPECIAL | CB_ENCODE_SHIELDED, &again);
        if (m != n || memcmp(ids, again, (size_t)n * sizeof *ids)) why = "other ids when shielded";
        free(again);
    }
    f->n++;
    f->n_ids += n >= 0;
    if (why) {
        char *more = json_dumps(json_array_get(c, 2), JSON_COMPACT);
        print_error("%s, %s %.200s: %s (%lld ids)\n", name, input, more, why, (long long)n);
        free(more);
        r->n_failed++;
    }
    free(ids);
    json_decref(vars);
}

static void run_line(void *ctx, const json_t *line)
{
    replay *r = ctx;
    if (json_object_get(line, "input")) json_object_set(r->inputs, str_of(line, "input"), json_object_get(line, "vars"));
    else if (json_object_get(line, "family")) open_family(r, line);
    else run_case(r, line);
}

static int replay_file(const char *path)
{
    replay r = {.inputs = json_object()};
    each_line(path, run_line, &r);
    for (int i = 0; i < r.n_families; i++) {
        family *f = &r.families[i];
        print_message("%s: %d cases, %d with ids\n", f->name, f->n, f->n_ids);
        assert_true(f->n_ids >= 100);
        cb_template_close(f->t);
        cb_tokenizer_close(f->tok);
    }
    assert_true(r.n_families >= 1);
    json_decref(r.inputs);
    if (r.n_failed) print_error("%s: %d cases failed\n", path, r.n_failed);
    return r.n_failed;
}

static void test_cases(void **state)
{
    (void)state;
    assert_int_equal(replay_file("tests/data/chat_cases.jsonl"), 0);
}

/* ---- renderings given word for word ---- */

static void expect(const char *template, const char *specials, const char *vars, const char *want)
{
    char *text = template_text(template), *out = NULL;
    size_t n = 0;
    cb_err err = {0};
    json_t *s = json_loads(specials, 0, NULL);
    cb_template *t = open_template(text, s);
    if (cb_template_render_at(t, vars, strlen(vars), &CLOCK, NULL, &out, &n, &err)) fail_msg("%s: %s", template, err.text);
    assert_string_equal(out, want);
    assert_int_equal(n, strlen(want));
    cb_template_close(t);
    json_decref(s);
    free(text);
    free(out);
}

#define USER(text) "{\"role\":\"user\",\"content\":\"" text "\"}"
#define START "<|im_start|>"
#define END "<|im_end|>\n"

static void test_qwen35_words(void **state)
{
    (void)state;
    static const char t[] = "Qwen3.5-4B", none[] = "{}";
    expect(t, none, "{\"messages\":[" USER(" hi ") "],\"add_generation_prompt\":true}", START "user\nhi" END START "assistant\n<think>\n");
    expect(t, none,
           "{\"messages\":[{\"role\":\"system\",\"content\":\"\"}," USER("hi") "],\"add_generation_prompt\":true,\"enable_thinking\":false}",
           START "system\n" END START "user\nhi" END START "assistant\n<think>\n\n</think>\n\n");
    expect(t, none,
           "{\"messages\":[" USER("a") ",{\"role\":\"assistant\",\"content\":\"<think>\\nr1\\n</think>\\n\\nb\"}," USER("c") "],"
           "\"add_generation_prompt\":true}",
           START "user\na" END START "assistant\nb" END START "user\nc" END START "assistant\n<think>\n");
    expect(t, none,
           "{\"messages\":[" USER("u") ",{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":\"r\",\"tool_calls\":["
           "{\"function\":{\"name\":\"f\",\"arguments\":{\"x\":\"s\",\"b\":true}}},{\"function\":{\"name\":\"g\",\"arguments\":{}}}]},"
           "{\"role\":\"tool\",\"content\":\"R1\"},{\"role\":\"tool\",\"content\":\"R2\"}],\"add_generation_prompt\":true}",
           START "user\nu" END START "assistant\n<think>\nr\n</think>\n\n<tool_call>\n<function=f>\n<parameter=x>\ns\n</parameter>\n"
           "<parameter=b>\nTrue\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>" END
           START "user\n<tool_response>\nR1\n</tool_response>\n<tool_response>\nR2\n</tool_response>" END START "assistant\n<think>\n");
}

static void test_gemma4_words(void **state)
{
    (void)state;
    static const char vars[] =
        "{\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"}," USER("Hi") "],\"add_generation_prompt\":true,\"tools\":[{\"type\":"
        "\"function\",\"function\":{\"name\":\"get_w\",\"description\":\"W\",\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{"
        "\"type\":\"string\",\"description\":\"C\"}},\"required\":[\"city\"]}}}]}";
    expect("google-gemma-4-31B-it", "{\"bos_token\":\"<bos>\"}", vars,
           "<bos><|turn>system\nBe brief.<|tool>declaration:get_w{description:<|\"|>W<|\"|>,parameters:{properties:{city:{description:<|\"|>C<|\"|>,"
           "type:<|\"|>STRING<|\"|>}},required:[<|\"|>city<|\"|>],type:<|\"|>OBJECT<|\"|>}}<tool|><turn|>\n<|turn>user\nHi<turn|>\n"
           "<|turn>model\n<|channel>thought\n<channel|>");
}

int main(int argc, char **argv)
{
    if (argc > 1) return replay_file(argv[1]) != 0;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cases), cmocka_unit_test(test_qwen35_words), cmocka_unit_test(test_gemma4_words)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
