#include "model/family.h"
#include <string.h>

extern const cb_family cb_family_llama, cb_family_gemma3, cb_family_qwen3, cb_family_qwen35, cb_family_bonsai2,
    cb_family_gemma4;

static const cb_family *const families[] = {&cb_family_llama, &cb_family_gemma3, &cb_family_qwen3, &cb_family_qwen35, &cb_family_bonsai2,
                                         &cb_family_gemma4};

const cb_family *cb_family_find(const cb_config *c, cb_err *err)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        for (const char *const *t = families[i]->model_types; *t; t++)
            if (!strcmp(*t, c->model_type)) return families[i];
    cb_buf list;
    cb_buf_init(&list, 0);
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        for (const char *const *t = families[i]->model_types; *t; t++) cb_buf_printf(&list, "%s%s", list.n ? ", " : "", *t);
    cb_fail(err, CB_EFORMAT, "config.json: model_type %.100s is not supported; supported are %s", c->model_type,
            list.data ? list.data : "");
    cb_buf_fini(&list);
    return NULL;
}

int cb_model_plan(const cb_config *c, const cb_weights *w, cb_plan **out, cb_err *err)
{
    cb_builder *b;
    *out = NULL;
    const cb_family *f = cb_family_find(c, err);
    if (!f) return CB_EFORMAT;
    int rc = pb_open(c, w, f->name, &b, err);
    if (rc < 0) return rc;
    pb_skip(b, "*.rotary_emb.inv_freq"); /* a constant that old files hold */
    f->build(b);
    return pb_finish(b, out, err);
}
