/* Chat templates: replays tests/data/template_cases.jsonl (what Transformers renders; see its make script), then limits,
 * files and failing allocations. With an argument, only replays that file. */
#include "text/template.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* Friday, 2024-07-26 15:04:05, as the script has it. */
static const struct tm CLOCK = {
    .tm_year = 124, .tm_mon = 6, .tm_mday = 26, .tm_hour = 15, .tm_min = 4, .tm_sec = 5, .tm_wday = 5, .tm_yday = 207};

/* ---- replay ---- */

typedef struct replay {
    json_t *templates, *inputs, *specials;
    int n, failed;
} replay;

static uint64_t fnv(const char *s, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * 0x100000001b3u;
    return h;
}

static const char *str_of(const json_t *o, const char *key) { return json_string_value(json_object_get(o, key)); }

/* The message of raise_exception as cb_fail stores it. */
static bool raised_text_is(const char *raised, const char *got)
{
    char clean[CB_ERR_TEXT];
    snprintf(clean, sizeof clean, "%s", *raised ? raised : got);
    for (char *p = clean; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f) *p = '?';
    return !strcmp(got, clean);
}

/* What is wrong with a result, or NULL. */
static const char *verdict(const json_t *c, int rc, const char *out, size_t n, const cb_err *err)
{
    const json_t *want = json_object_get(c, "out"), *hash = json_object_get(c, "fnv");
    const char *raised = str_of(c, "raise"), *fail = str_of(c, "fail");
    if (want || hash) {
        if (rc) return err->text;
        if (want) return n == json_string_length(want) && !memcmp(out, json_string_value(want), n) ? NULL : "different text";
        if ((json_int_t)n != json_integer_value(json_object_get(c, "n"))) return "different length";
        return fnv(out, n) == strtoull(json_string_value(hash), NULL, 16) ? NULL : "different hash";
    }
    if (raised) return rc == CB_EUSAGE && raised_text_is(raised, err->text) ? NULL : rc ? err->text : "should have raised";
    if (rc != CB_EFORMAT) return rc ? err->text : "should have failed";
    if (!strncmp(fail, "undefined: ", 11) && !strstr(err->text, fail + 11) && !strstr(fail, "inline if-expression"))
        return err->text;
    return strstr(err->text, ": line ") ? NULL : "no line in the message";
}

static int render_case(const cb_template *t, const json_t *vars, char **out, size_t *n, cb_err *err)
{
    char *json = json_dumps(vars, JSON_ENCODE_ANY | JSON_COMPACT);
    int rc = cb_template_render_at(t, json, strlen(json), &CLOCK, NULL, out, n, err);
    free(json);
    return rc;
}

static void run_case(replay *r, const json_t *c)
{
    const char *name = str_of(c, "t"), *text = name ? str_of(json_object_get(r->templates, name), "text") : str_of(c, "f");
    const char *input = name ? str_of(c, "i") : "features";
    json_t *vars = json_copy(json_object_get(r->inputs, input));
    const char *key;
    json_t *v;
    json_object_foreach(json_object_get(c, "with"), key, v) json_object_set(vars, key, v);
    cb_template *t = NULL;
    cb_err err = {0};
    char *out = NULL;
    size_t n = 0;
    int rc = cb_template_from_text("test", text, strlen(text), r->specials, &t, &err);
    if (!rc) rc = render_case(t, vars, &out, &n, &err);
    const char *why = verdict(c, rc, out, n, &err);
    r->n++;
    if (why) {
        r->failed++;
        char *shown = json_dumps(c, JSON_ENCODE_ANY);
        print_error("%s\n  %.700s\n", why, shown);
        if (out) print_error("  got: %.400s\n", out);
        free(shown);
    }
    free(out);
    cb_template_close(t);
    json_decref(vars);
}

static void run_line(replay *r, char *line)
{
    json_error_t e;
    json_t *j = json_loads(line, JSON_ALLOW_NUL, &e);
    if (!j) fail_msg("bad line: %s", e.text);
    if (json_object_get(j, "template")) json_object_set(r->templates, str_of(j, "template"), j);
    else if (json_object_get(j, "input")) json_object_set(r->inputs, str_of(j, "input"), json_object_get(j, "vars"));
    else run_case(r, j);
    json_decref(j);
}

static int replay_file(const char *path)
{
    char *text, *save = NULL;
    size_t n;
    cb_err err;
    if (cb_file_read(NULL, path, 64 << 20, &text, &n, &err)) fail_msg("%s", err.text);
    json_t *specials = json_pack("{ssssssss}", "bos_token", "<s>", "eos_token", "</s>", "unk_token", "<unk>", "pad_token", "<pad>");
    replay r = {json_object(), json_object(), specials, 0, 0};
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) run_line(&r, line);
    print_message("%s: %d cases, %d failed\n", path, r.n, r.failed);
    json_decref(r.templates);
    json_decref(r.inputs);
    json_decref(r.specials);
    cb_free(text);
    assert_true(r.n > 0);
    return r.failed;
}

static void test_cases(void **state) { assert_int_equal(replay_file("tests/data/template_cases.jsonl"), 0); }

/* ---- limits ---- */

static int render_text(const char *text, const char *json, const cb_jinja_limits *lim, char **out, cb_err *err)
{
    cb_template *t;
    size_t n;
    *out = NULL;
    int rc = cb_template_from_text("chat_template.jinja", text, strlen(text), NULL, &t, err);
    if (rc) return rc;
    rc = cb_template_render_at(t, json, strlen(json), &CLOCK, lim, out, &n, err);
    cb_template_close(t);
    return rc;
}

static void expect_fail(const char *text, const cb_jinja_limits *lim, const char *part)
{
    cb_err err = {0};
    char *out;
    int rc = render_text(text, "{}", lim, &out, &err);
    free(out);
    if (rc != CB_EFORMAT || !strstr(err.text, part)) fail_msg("%.60s: %d %s", text, rc, err.text);
}

#define GROW(init, step) "{% set ns = namespace(x=" init ") %}{% for i in range(5000) %}{% set ns.x = " step " %}{% endfor %}"

static void test_limits(void **state)
{
    const cb_jinja_limits small = {.memory_bytes = 1 << 20, .output_bytes = 1 << 16, .steps = 100000};
    expect_fail("{% for i in range(1000) %}{% for j in range(1000) %}{% endfor %}{% endfor %}", &small, "steps");
    expect_fail("{{ 'a' * 1000000000000 }}", &small, "");
    expect_fail("{{ ['a'] * 1000000000000 }}", &small, "");
    expect_fail("{% for i in range(100000) %}xxxxxxxxxxxxxxxx{% endfor %}", &small, "output");
    expect_fail(GROW("'abcdefgh'", "ns.x ~ ns.x"), &small, "memory");
    expect_fail(GROW("'abcdefgh'", "ns.x ~ ns.x"), NULL, "memory");
    expect_fail(GROW("[1]", "ns.x + ns.x"), NULL, "");
    expect_fail("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", NULL, "recursion");
    expect_fail(GROW("[]", "[ns.x]") "{{ ns.x }}", NULL, "recursion");
    expect_fail(GROW("[]", "[ns.x]") "{{ ns.x|tojson }}", NULL, "recursion");
    expect_fail(GROW("[]", "[ns.x]") "{% set a = ns.x %}" GROW("[]", "[ns.x]") "{{ ns.x == a }}", NULL, "recursion");
    expect_fail("{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}", NULL, "recursion");
    expect_fail(GROW("[1]", "ns.x|map('string')") "{{ ns.x|list }}", NULL, "stacked");
    expect_fail("{{ '%1000000d' % 1 }}", NULL, "too large");
    expect_fail("{{ '{:1000000}'.format(1) }}", NULL, "format");
    expect_fail("{{ 'x'.ljust(1000000000000) }}", &small, "");
    expect_fail("{{ [1]|batch(1000000000000, 0)|list }}", &small, "");
    expect_fail("{{ 10 ** 30 }}", NULL, "64 bits");
}

/* Repeats `unit` n times between two texts. */
static char *repeated(const char *before, const char *unit, int n, const char *after)
{
    cb_buf b;
    cb_buf_init(&b, 0);
    cb_buf_puts(&b, before);
    for (int i = 0; i < n; i++) cb_buf_puts(&b, unit);
    cb_buf_puts(&b, after);
    return cb_buf_take(&b);
}

static void test_nesting(void **state)
{
    static const char *const shapes[][3] = {
        {"{{ ", "(", ""}, {"{{ ", "[", ""}, {"{{ ", "{1:", ""}, {"{{ ", "not ", "1 }}"}, {"{{ ", "-", "1 }}"},
        {"", "{% if 1 %}", ""}, {"{{ 1", "+1", " }}"}, {"{{ a", ".a", " }}"}, {"{{ a", "|upper", " }}"}, {"{{ a", "()", " }}"},
        {"{{ 1", " if 1 else 1", " }}"}, {"{{ 1", " and 1", " }}"}, {"{{ f(", "f(", ""}, {"", "{% for a in b %}", ""},
        {"", "{% macro a() %}", ""}, {"{{ a[", "a[", ""}, {"{{ 1", " is odd", " }}"}, {"{{ 1", "~1", " }}"},
        {"{{ 1", " < 1", " }}"}, {"{% if 1 %}", "{% elif 1 %}", "{% endif %}"},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        char *text = repeated(shapes[i][0], shapes[i][1], 20000, shapes[i][2]), *out;
        cb_err err = {0};
        int rc = render_text(text, "{}", NULL, &out, &err);
        assert_true(rc == 0 || rc == CB_EFORMAT);
        free(out);
        free(text);
    }
    char *deep = repeated("{\"x\":", "[", 3000, ""), *out;
    cb_err err = {0};
    assert_int_equal(render_text("{{ x }}", deep, NULL, &out, &err), CB_EUSAGE);
    free(deep);
}

/* ---- messages ---- */

static void expect_text(const char *text, const char *json, const char *want)
{
    cb_err err = {0};
    char *out;
    if (render_text(text, json, NULL, &out, &err)) fail_msg("%s", err.text);
    assert_string_equal(out, want);
    free(out);
}

static void expect_error(const char *text, const char *json, int code, const char *want)
{
    cb_err err = {0};
    char *out;
    assert_int_equal(render_text(text, json, NULL, &out, &err), code);
    assert_int_equal(err.code, code);
    assert_string_equal(err.text, want);
}

static void test_messages(void **state)
{
    expect_error("a\n\n  {{ x|foo }}", "{}", CB_EFORMAT, "chat_template.jinja: line 3, column 8: unknown filter 'foo'");
    expect_error("é {{ x.y.z }}", "{\"x\":{}}", CB_EFORMAT,
                 "chat_template.jinja: line 1, column 10: 'dict object' has no attribute 'y'");
    expect_error("{% include 'x' %}", "{}", CB_EFORMAT, "chat_template.jinja: line 1, column 4: unknown tag 'include'");
    expect_error("\n{% if x %}", "{}", CB_EFORMAT,
                 "chat_template.jinja: line 2, column 4: this block is not closed: 'endif' is missing");
    expect_error("{{ raise_exception('no ' ~ x) }}", "{\"x\":1}", CB_EUSAGE, "no 1");
    expect_error("x", "[1]", CB_EUSAGE, "chat template variables: not a JSON object");
    cb_err err = {0};
    char *out;
    assert_int_equal(render_text("x", "{", NULL, &out, &err), CB_EUSAGE);
    assert_int_equal(err.code, CB_EUSAGE);
    assert_int_equal(render_text("x", "{", NULL, &out, NULL), CB_EUSAGE);
    assert_int_equal(render_text("\xff", "{}", NULL, &out, &err), CB_EFORMAT);
}

static void test_request_shape(void **state)
{
    expect_text("{{ messages[0] }}{{ tools is none }}{{ add_generation_prompt }}",
                "{\"messages\":[{\"content\":null,\"role\":\"a\",\"reasoning\":\"r\"}]}",
                "{'role': 'a', 'reasoning': 'r', 'reasoning_content': 'r', 'thinking': 'r'}TrueFalse");
    expect_text("{{ messages }}", "{\"messages\":[1,null]}", "[1, None]");
    expect_text("{{ messages }}", "{\"messages\":5}", "5");
}

/* ---- files ---- */

static void write_file(const char *dir, const char *name, const char *text)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void remove_file(const char *dir, const char *name)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    unlink(path);
}

static void expect_dir(const char *dir, const char *json, const char *want)
{
    cb_template *t;
    cb_err err = {0};
    char *out;
    size_t n;
    if (cb_template_open(dir, &t, &err)) fail_msg("%s", err.text);
    if (cb_template_render(t, json, strlen(json), &out, &n, &err)) fail_msg("%s", err.text);
    assert_string_equal(out, want);
    assert_int_equal(n, strlen(want));
    free(out);
    cb_template_close(t);
}

#define CONFIG "tokenizer_config.json"
#define TOKENS "\"bos_token\": \"<B>\", \"extra_special_tokens\": {\"image_token\": \"<i>\"}"

static void test_files(void **state)
{
    char dir[] = "/tmp/cb_template_XXXXXX", sub[64];
    cb_template *t;
    cb_err err = {0};
    assert_non_null(mkdtemp(dir));
    assert_int_equal(cb_template_open(dir, &t, &err), CB_ENOTFOUND);
    write_file(dir, "chat_template.json", "{\"chat_template\": \"J{{ eos_token }}\"}");
    expect_dir(dir, "{}", "J");
    write_file(dir, "special_tokens_map.json",
               "{\"eos_token\": \"<e>\", \"bos_token\": {\"content\": \"<b>\"}, \"unk_token\": null}");
    write_file(dir, CONFIG, "{" TOKENS "}");
    expect_dir(dir, "{}", "J<e>");
    write_file(dir, CONFIG, "{\"chat_template\": \"C{{ bos_token }}{{ unk_token is defined }}{{ image_token }}\", " TOKENS "}");
    expect_dir(dir, "{}", "C<B>False<i>");
    expect_dir(dir, "{\"bos_token\":\"x\"}", "CxFalse<i>");
    write_file(
        dir, CONFIG,
        "{\"chat_template\": [{\"name\": \"default\", \"template\": \"D\"}, {\"name\": \"tool_use\", \"template\": \"T\"},"
        " {\"name\": \"rag\", \"template\": \"{{ broken\"}]}");
    expect_dir(dir, "{}", "D");
    expect_dir(dir, "{\"tools\": null}", "D");
    expect_dir(dir, "{\"tools\": []}", "T");
    write_file(dir, "chat_template.jinja", "F{{ messages }}");
    expect_dir(dir, "{\"messages\": [1], \"tools\": []}", "F[1]");
    snprintf(sub, sizeof sub, "%s/additional_chat_templates", dir);
    mkdir(sub, 0700);
    write_file(sub, "tool_use.jinja", "U");
    expect_dir(dir, "{\"tools\": []}", "U");
    write_file(dir, "chat_template.jinja", "\n{{ x | nope }}");
    assert_int_equal(cb_template_open(dir, &t, &err), CB_EFORMAT);
    assert_string_equal(err.text, "chat_template.jinja: line 2, column 8: unknown filter 'nope'");
    remove_file(dir, "chat_template.jinja");
    static const char *const bad[] = {"{\"chat_template\": 5}", "{\"chat_template\": [5]}", "{\"chat_template\": []}", "[]", "{"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_file(dir, CONFIG, bad[i]);
        assert_int_equal(cb_template_open(dir, &t, &err), CB_EFORMAT);
    }
    static const char *const names[] = {"chat_template.json", "special_tokens_map.json", CONFIG};
    for (size_t i = 0; i < 3; i++) remove_file(dir, names[i]);
    remove_file(sub, "tool_use.jinja");
    rmdir(sub);
    rmdir(dir);
}

/* ---- allocations ---- */

static void test_allocation_failures(void **state)
{
    static const char text[] =
        "{% macro m(a) %}{{ a|upper }}{% endmacro %}{% set ns = namespace(t='') %}{% for x in messages %}"
        "{% set ns.t = ns.t ~ m(x.content) ~ x|tojson(indent=1) %}{% endfor %}{{ ns.t }}{{ strftime_now('%Y') }}";
    static const char json[] = "{\"messages\": [{\"content\": \"a\", \"reasoning\": \"r\"}, {\"content\": \"b\"}]}";
    for (uint64_t n = 1; n < 200; n++) {
        cb_err err = {0};
        char *out = NULL;
        cb_alloc_fail_at(n);
        int rc = render_text(text, json, NULL, &out, &err);
        cb_alloc_fail_at(0);
        free(out);
        if (rc == 0) {
            assert_true(n > 3);
            return;
        }
        assert_int_equal(rc, CB_ENOMEM);
    }
    fail_msg("never succeeded");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),         cmocka_unit_test(test_limits), cmocka_unit_test(test_nesting),
        cmocka_unit_test(test_messages),      cmocka_unit_test(test_request_shape), cmocka_unit_test(test_files),
        cmocka_unit_test(test_allocation_failures),
    };
    if (argc > 1) return replay_file(argv[1]) != 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
