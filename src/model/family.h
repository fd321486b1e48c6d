/* family.h: a model family is one file that records its forward pass, and a line in registry.c. */
#ifndef CB_MODEL_FAMILY_H
#define CB_MODEL_FAMILY_H
#include "plan/builder.h"

typedef struct cb_family {
    const char *name;
    const char *const *model_types; /* values of config.json's model_type, NULL-terminated */
    void (*build)(cb_builder *b);   /* records; failures stick in the builder */
} cb_family;

/* The family of a config, or NULL with err (CB_EFORMAT, lists what is supported). */
const cb_family *cb_family_find(const cb_config *c, cb_err *err);
/* Family + weights -> plan. */
int cb_model_plan(const cb_config *c, const cb_weights *w, cb_plan **out, cb_err *err);
#endif
