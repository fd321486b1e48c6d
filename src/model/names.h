/* names.h: how checkpoints spell the same tensor. */
#ifndef CB_MODEL_NAMES_H
#define CB_MODEL_NAMES_H
#include "plan/builder.h"

/* The prefix under which this checkpoint keeps the text model ("language_model.model.", "model.language_model." or "model."),
 * found by its embed_tokens.weight; fails the builder when none has it. */
const char *cb_text_prefix(cb_builder *b);
/* Full path of the output head: "language_model.lm_head" or "lm_head", whichever exists; NULL when neither does. */
const char *cb_head_path(const cb_builder *b);
/* True when layer l of layer_types (NULL: every `interval`-th layer) is full_attention; `other` is the second name allowed. */
bool cb_layer_is_full(cb_builder *b, const json_t *layer_types, int l, int interval, const char *other);
/* A tied checkpoint may hold its head all the same, as a copy of the embedding: it is skipped. */
void cb_skip_head(cb_builder *b);
/* Skips the tensors of the named parts ("vision_tower", ...; NULL-terminated) with any of the prefixes in use. */
void cb_skip_parts(cb_builder *b, const char *const *parts);
#endif
