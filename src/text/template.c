#include "text/template.h"
#include "base/file.h"
#include "base/mem.h"
#include <string.h>

/* Finds a checkpoint's templates and special tokens, and gives a request's variables the shape that templates expect: what
 * Transformers' apply_chat_template does around the rendering. */

enum { MAX_JSON_FILE = 64 << 20 }; /* tokenizer_config.json lists every added token */

struct cb_template {
    cb_jinja *main, *tools; /* tools: for requests with tools, or NULL */
    json_t *base;           /* variables a request may override */
    char *text;             /* what main (or else tools) was parsed from */
};

void cb_template_close(cb_template *t)
{
    if (!t) return;
    cb_jinja_close(t->main);
    cb_jinja_close(t->tools);
    json_decref(t->base);
    cb_free(t->text);
    cb_free(t);
}

static int no_memory(cb_err *err) { return cb_fail(err, CB_ENOMEM, "chat template: out of memory"); }

/* ---- special tokens ---- */

/* A token as a string, or {"content": "..."}. */
static const json_t *token_text(const json_t *v)
{
    if (json_is_object(v)) v = json_object_get(v, "content");
    return json_is_string(v) && json_string_length(v) ? v : NULL;
}

static int put(json_t *base, const char *key, json_t *v, cb_err *err)
{
    return v && !json_object_set_new(base, key, v) ? 0 : no_memory(err);
}

static int put_token(json_t *base, const char *key, const json_t *v, cb_err *err)
{
    const json_t *text = token_text(v);
    return text ? put(base, key, json_copy((json_t *)(uintptr_t)text), err) : 0;
}

static int put_token_list(json_t *base, const char *key, const json_t *list, cb_err *err)
{
    size_t n = json_array_size(list);
    if (!n) return 0;
    json_t *out = json_array();
    for (size_t i = 0; out && i < n; i++) {
        const json_t *text = token_text(json_array_get(list, i));
        if (text) json_array_append_new(out, json_copy((json_t *)(uintptr_t)text));
    }
    return put(base, key, out, err);
}

static int put_specials(json_t *base, const json_t *config, cb_err *err)
{
    static const char *const names[] = {"bos_token", "eos_token",  "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof names / sizeof *names; i++)
        rc = put_token(base, names[i], json_object_get(config, names[i]), err);
    if (rc == 0) rc = put_token_list(base, "additional_special_tokens", json_object_get(config, "additional_special_tokens"), err);
    json_t *extra = json_object_get(config, "extra_special_tokens");
    if (!json_is_object(extra)) return rc;
    for (void *it = json_object_iter(extra); it && rc == 0; it = json_object_iter_next(extra, it))
        rc = put_token(base, json_object_iter_key(it), json_object_iter_value(it), err);
    return rc;
}

/* ---- opening ---- */

/* Variables that are always defined, as templates ask `tools is not none`. */
static int new_template(cb_template **out, cb_err *err)
{
    cb_template *t = cb_alloc(sizeof *t);
    if (t) t->base = json_object();
    if (!t || !t->base || json_object_set_new(t->base, "tools", json_null()) ||
        json_object_set_new(t->base, "documents", json_null()) ||
        json_object_set_new(t->base, "add_generation_prompt", json_false())) {
        cb_template_close(t);
        return no_memory(err);
    }
    *out = t;
    return 0;
}

/* Parses into t->main or t->tools, and keeps the text of the first. */
static int parse(cb_template *t, cb_jinja **to, const char *name, const char *text, size_t n, cb_err *err)
{
    int rc = cb_jinja_parse(name, text, n, to, err);
    if (rc < 0 || (t->text && to != &t->main)) return rc;
    cb_free(t->text);
    return (t->text = cb_strndup(text, n)) ? 0 : no_memory(err);
}

int cb_template_from_text(const char *name, const char *text, size_t n, const json_t *specials, cb_template **out, cb_err *err)
{
    cb_template *t = NULL;
    *out = NULL;
    int rc = new_template(&t, err);
    if (rc == 0 && specials) rc = put_specials(t->base, specials, err);
    if (rc == 0) rc = parse(t, &t->main, name, text, n, err);
    if (rc == 0) *out = t;
    else cb_template_close(t);
    return rc;
}

static int parse_file(cb_template *t, cb_jinja **to, const char *dir, const char *name, cb_err *err)
{
    char *text;
    size_t n;
    int rc = cb_file_read(dir, name, CB_JINJA_MAX_TEXT, &text, &n, err);
    if (rc < 0) return rc;
    rc = parse(t, to, name, text, n, err);
    cb_free(text);
    return rc;
}

static int parse_string(cb_template *t, cb_jinja **to, const char *where, const json_t *s, cb_err *err)
{
    return parse(t, to, where, json_string_value(s), json_string_length(s), err);
}

/* chat_template: a string, or [{"name": "default", "template": "..."}, {"name": "tool_use", ...}]. 0 with t->main NULL: none.
 * With `wanted`, only the entry of that name counts, for all requests. */
static int parse_field(cb_template *t, const json_t *v, const char *file, const char *wanted, cb_err *err)
{
    char where[96];
    if (!v || json_is_null(v)) return 0;
    snprintf(where, sizeof where, "chat_template of %s", file);
    if (json_is_string(v)) return wanted && strcmp(wanted, "default") != 0 ? 0 : parse_string(t, &t->main, where, v, err);
    if (!json_is_array(v)) return cb_fail(err, CB_EFORMAT, "%s: chat_template is neither a string nor a list", file);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < json_array_size(v); i++) {
        const json_t *e = json_array_get(v, i), *name = json_object_get(e, "name"), *text = json_object_get(e, "template");
        if (!json_is_string(name) || !json_is_string(text))
            return cb_fail(err, CB_EFORMAT, "%s: chat_template[%zu] has no name or no template", file, i);
        bool tools = !strcmp(json_string_value(name), "tool_use"), usual = !strcmp(json_string_value(name), "default");
        cb_jinja **to = tools ? &t->tools : usual ? &t->main : NULL;
        if (wanted) to = !strcmp(json_string_value(name), wanted) ? &t->main : NULL;
        snprintf(where, sizeof where, "chat_template '%.40s' of %s", json_string_value(name), file);
        if (to && !*to) rc = parse_string(t, to, where, text, err);
    }
    if (rc == 0 && !wanted && !t->main && !t->tools)
        rc = cb_fail(err, CB_EFORMAT, "%s: chat_template has neither \"default\" nor \"tool_use\"", file);
    return rc;
}

/* The special tokens of one file (absent: fine) and, when none is known yet, its chat_template. */
static int read_config(cb_template *t, const char *dir, const char *file, bool want_template, const char *name, cb_err *err)
{
    json_t *config;
    if (!cb_file_exists(dir, file)) return 0;
    int rc = cb_json_file(dir, file, MAX_JSON_FILE, &config, err);
    if (rc < 0) return rc;
    rc = put_specials(t->base, config, err);
    if (rc == 0 && want_template && !t->main && !t->tools) rc = parse_field(t, json_object_get(config, "chat_template"), file, name, err);
    json_decref(config);
    return rc;
}

/* additional_chat_templates/NAME.jinja, where NAME is no path; chat_template.jinja for the name "default". */
static int read_named_file(cb_template *t, const char *dir, const char *name, cb_err *err)
{
    char file[160];
    if (!strcmp(name, "default") && cb_file_exists(dir, "chat_template.jinja")) return parse_file(t, &t->main, dir, "chat_template.jinja", err);
    if (strchr(name, '/') || strlen(name) > 100) return 0;
    snprintf(file, sizeof file, "additional_chat_templates/%s.jinja", name);
    return cb_file_exists(dir, file) ? parse_file(t, &t->main, dir, file, err) : 0;
}

/* name (may be NULL): the one template for all requests. text (may be NULL): not the checkpoint's template, but this one. */
static int open_any(const char *dir, const char *name, const char *text, size_t n, cb_template **out, cb_err *err)
{
    static const char tools_file[] = "additional_chat_templates/tool_use.jinja";
    cb_template *t = NULL;
    *out = NULL;
    int rc = new_template(&t, err);
    if (rc < 0) return rc;
    if (text) rc = parse(t, &t->main, name, text, n, err);
    else if (name) rc = read_named_file(t, dir, name, err);
    else if (cb_file_exists(dir, "chat_template.jinja")) {
        rc = parse_file(t, &t->main, dir, "chat_template.jinja", err);
        if (rc == 0 && cb_file_exists(dir, tools_file)) rc = parse_file(t, &t->tools, dir, tools_file, err);
    }
    if (rc == 0) rc = read_config(t, dir, "special_tokens_map.json", false, NULL, err);
    if (rc == 0) rc = read_config(t, dir, "tokenizer_config.json", !text, name, err);
    if (rc == 0) rc = read_config(t, dir, "chat_template.json", !text, name, err);
    if (rc == 0 && !t->main && !t->tools)
        rc = name ? cb_fail(err, CB_ENOTFOUND, "%.300s: the checkpoint has no chat template called %.60s", dir, name)
                  : cb_fail(err, CB_ENOTFOUND, "%s: the checkpoint has no chat template", dir);
    if (rc == 0) *out = t;
    else cb_template_close(t);
    return rc;
}

int cb_template_open(const char *dir, cb_template **out, cb_err *err) { return open_any(dir, NULL, NULL, 0, out, err); }

int cb_template_open_named(const char *dir, const char *name, cb_template **out, cb_err *err)
{
    return open_any(dir, name, NULL, 0, out, err);
}

int cb_template_open_text(const char *dir, const char *name, const char *text, size_t n, cb_template **out, cb_err *err)
{
    return open_any(dir, name, text, n, out, err);
}

const char *cb_template_source(const cb_template *t) { return t->text; }

/* ---- rendering ---- */

/* A message's null fields vanish: templates handle an absent `content` or `tool_calls`, and print a null one as "None".
 * Reasoning is known by three names; it becomes `reasoning_content`, and `thinking` if that is unset. */
static int normalize_message(json_t *m)
{
    static const char *const reasoning[] = {"reasoning_content", "thinking", "reasoning"};
    const char *key;
    json_t *v, *text = NULL;
    void *tmp;
    if (!json_is_object(m)) return 0;
    json_object_foreach_safe(m, tmp, key, v)
        if (json_is_null(v)) json_object_del(m, key);
    for (int i = 0; i < 3 && !text; i++) text = json_object_get(m, reasoning[i]);
    if (!text) return 0;
    json_incref(text); /* setting a key to its own value must not free it */
    int bad = json_object_set(m, "reasoning_content", text);
    if (!json_object_get(m, "thinking")) bad |= json_object_set(m, "thinking", text);
    json_decref(text);
    return bad;
}

static int normalize(json_t *request, cb_err *err)
{
    json_t *messages = json_object_get(request, "messages");
    for (size_t i = 0; i < json_array_size(messages); i++)
        if (normalize_message(json_array_get(messages, i))) return no_memory(err);
    return 0;
}

int cb_template_render_at(const cb_template *t, const char *json, size_t n, const struct tm *now, const cb_jinja_limits *lim,
                          char **out, size_t *out_n, cb_err *err)
{
    json_t *request;
    *out = NULL;
    *out_n = 0;
    int rc = cb_json_text("chat template variables", json, n, &request, err);
    if (rc == 0 && !json_is_object(request)) {
        rc = cb_fail(err, CB_EFORMAT, "chat template variables: not a JSON object");
        json_decref(request);
    }
    if (rc < 0) { /* the request is at fault, not the checkpoint */
        if (err) err->code = CB_EUSAGE;
        return CB_EUSAGE;
    }
    rc = normalize(request, err);
    const json_t *tools = json_object_get(request, "tools");
    const cb_jinja *tpl = (tools && !json_is_null(tools) && t->tools) || !t->main ? t->tools : t->main;
    if (rc == 0) rc = cb_jinja_render(tpl, (json_t *const[]){t->base, request}, 2, now, lim, out, out_n, err);
    json_decref(request);
    return rc;
}

int cb_template_render(const cb_template *t, const char *json, size_t n, char **out, size_t *out_n, cb_err *err)
{
    return cb_template_render_at(t, json, n, NULL, NULL, out, out_n, err);
}
