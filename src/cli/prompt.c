#include "cli/prompt.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/term.h"
#include <stdlib.h>
#include <string.h>

int prompt_add(const cli_model *m, json_t *messages, const char *role, const char *text, size_t n, cb_err *err)
{
    char *shielded;
    size_t n_shielded;
    int rc = cb_tokenizer_shield(m->tok, text, n, &shielded, &n_shielded, err);
    if (rc < 0) return rc;
    json_t *j = json_object();
    bool ok = j && json_object_set_new(j, "role", json_string(role)) == 0 &&
              json_object_set_new(j, "content", cli_json_string(shielded, n_shielded)) == 0 && json_array_append(messages, j) == 0;
    json_decref(j);
    free(shielded);
    return ok ? 0 : cb_fail(err, CB_ENOMEM, "no memory for a message of %zu bytes", n);
}

int prompt_add_reasoning(const cli_model *m, json_t *messages, const char *text, size_t n, cb_err *err)
{
    char *shielded;
    size_t n_shielded;
    int rc = cb_tokenizer_shield(m->tok, text, n, &shielded, &n_shielded, err);
    if (rc < 0) return rc;
    json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    rc = json_object_set_new(last, "reasoning_content", cli_json_string(shielded, n_shielded));
    free(shielded);
    return rc == 0 ? 0 : cb_fail(err, CB_ENOMEM, "no memory for reasoning of %zu bytes", n);
}

/* Replaces the string obj[key], if it is one. */
static int shield_field(const cli_model *m, json_t *obj, const char *key, cb_err *err)
{
    json_t *v = json_object_get(obj, key);
    char *out;
    size_t n;
    if (!json_is_string(v)) return 0;
    int rc = cb_tokenizer_shield(m->tok, json_string_value(v), json_string_length(v), &out, &n, err);
    if (rc < 0) return rc;
    rc = json_object_set_new(obj, key, cli_json_string(out, n));
    free(out);
    return rc == 0 ? 0 : cb_fail(err, CB_ENOMEM, "no memory for the messages");
}

int prompt_shield(const cli_model *m, json_t *messages, cb_err *err)
{
    size_t i, k;
    json_t *msg, *part;
    int rc = 0;
    json_array_foreach(messages, i, msg)
    {
        if (rc == 0) rc = shield_field(m, msg, "content", err);
        if (rc == 0) rc = shield_field(m, msg, "reasoning_content", err);
        json_array_foreach(json_object_get(msg, "content"), k, part) if (rc == 0) rc = shield_field(m, part, "text", err);
    }
    return rc;
}

json_t *prompt_messages(const cli_model *m, const char *system)
{
    json_t *a = json_array();
    if (a && system && prompt_add(m, a, "system", system, strlen(system), NULL) < 0) {
        json_decref(a);
        a = NULL;
    }
    return a;
}

int prompt_render(const cli_model *m, const cli_opts *o, const json_t *messages, bool add_generation_prompt, char **text, size_t *n,
                  cb_err *err)
{
    json_t *vars = NULL;
    int rc = 0;
    *text = NULL;
    if (o->chat_template_kwargs) {
        rc = cb_json_text("--chat-template-kwargs", o->chat_template_kwargs, strlen(o->chat_template_kwargs), &vars, err);
        if (rc < 0) return err->code = CB_EUSAGE;
        if (!json_is_object(vars)) rc = cb_fail(err, CB_EUSAGE, "--chat-template-kwargs: not a JSON object");
        static const char *const reserved[] = { "messages", "tools", "add_generation_prompt" };
        for (int i = 0; rc == 0 && i < 3; i++)
            if (json_object_get(vars, reserved[i])) rc = cb_fail(err, CB_EUSAGE, "--chat-template-kwargs: %s is reserved", reserved[i]);
    } else
        vars = json_object();
    char *json = NULL;
    bool on = o->reasoning && !strcmp(o->reasoning, "on"), off = o->reasoning && !strcmp(o->reasoning, "off");
    if (rc == 0 && (on || off) && !json_object_get(vars, "enable_thinking")) json_object_set_new(vars, "enable_thinking", json_boolean(on));
    if (rc == 0 && json_object_set(vars, "messages", (json_t *)messages) == 0 &&
        json_object_set_new(vars, "add_generation_prompt", json_boolean(add_generation_prompt)) == 0)
        json = json_dumps(vars, JSON_COMPACT);
    json_decref(vars);
    if (rc < 0) return rc;
    if (!json) return cb_fail(err, CB_ENOMEM, "no memory for the conversation");
    rc = cb_template_render(m->tmpl, json, strlen(json), text, n, err);
    free(json);
    if (rc == 0 && add_generation_prompt && (rc = cli_reasoning_check_off(m, o, *text, *n, err)) < 0) {
        free(*text);
        *text = NULL;
    }
    return rc;
}

int prompt_encode(const cli_model *m, const cli_opts *o, const cli_reasoning *r, const json_t *messages, int32_t **ids, int *n_ids,
                  bool *opened, cb_err *err)
{
    char *text;
    size_t n;
    int rc = prompt_render(m, o, messages, true, &text, &n, err);
    *opened = rc == 0 && cli_reasoning_opened(r, text, n);
    /* The template writes its own BOS, so the tokenizer adds nothing. */
    if (rc == 0) rc = cli_encode(m->tok, text, n, CB_ENCODE_PARSE_SPECIAL | CB_ENCODE_SHIELDED, ids, n_ids, err);
    free(text);
    return rc;
}
