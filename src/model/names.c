#include "model/names.h"
#include <stdio.h>
#include <string.h>

const char *cb_text_prefix(cb_builder *b)
{
    static const char *const prefixes[] = {"language_model.model.", "model.language_model.", "model."};
    char name[96];
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        snprintf(name, sizeof name, "%sembed_tokens.weight", prefixes[i]);
        if (pb_has(b, name)) return prefixes[i];
    }
    pb_fail(b, CB_EFORMAT, "embed_tokens.weight: missing from the checkpoint under language_model.model., model.language_model. and model.");
    return "model.";
}

const char *cb_head_path(const cb_builder *b)
{
    return pb_has(b, "language_model.lm_head.weight") ? "language_model.lm_head" : pb_has(b, "lm_head.weight") ? "lm_head" : NULL;
}

bool cb_layer_is_full(cb_builder *b, const json_t *layer_types, int l, int interval, const char *other)
{
    if (!layer_types) return (l + 1) % interval == 0;
    const char *t = json_string_value(json_array_get(layer_types, (size_t)l));
    if (!t || (strcmp(t, "full_attention") && strcmp(t, other)))
        pb_fail(b, CB_EFORMAT, "config.json: layer_types[%d] is not full_attention or %s", l, other);
    return t && !strcmp(t, "full_attention");
}

void cb_skip_parts(cb_builder *b, const char *const *parts)
{
    static const char *const prefixes[] = {"", "model.", "language_model.", "language_model.model.", "model.language_model."};
    char start[128];
    pb_scope(b, "%s", "");
    for (; *parts; parts++)
        for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
            snprintf(start, sizeof start, "%s%s.", prefixes[i], *parts);
            pb_skip(b, start);
        }
}

void cb_skip_head(cb_builder *b) { cb_skip_parts(b, (const char *const[]){"lm_head", NULL}); }
