/* Fuzz target: the text of config.json, then every typed access and the quantisation of a few paths. */
#include "io/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const paths[] = {"lm_head", "model.layers.0.mlp.gate", "language_model.model.layers.0.mlp.gate",
                                        "model.language_model.layers.0.mlp.gate", ""};
    cb_config *c;
    cb_err err = {0};
    int rc = cb_config_parse("dir", (const char *)data, size, &c, &err);
    if (rc < 0) {
        CB_ASSERT(rc == CB_EFORMAT && err.code == rc && err.text[0] && !c);
        return 0;
    }
    CB_ASSERT(c->model_type && c->text && c->root);
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        cb_quant_spec q;
        rc = cb_config_quant(c, paths[i], &q, &err);
        CB_ASSERT(rc == 0 || rc == 1 || rc == CB_EFORMAT);
        if (rc == 1 && !q.keep_float) CB_ASSERT(q.bits >= 1 && q.bits <= 8 && q.group >= 16 && q.group <= 128);
    }
    int64_t v;
    double d;
    bool b;
    const char *s;
    if (cb_config_int(c, "hidden_size", 1, 1 << 20, &v, &err) == 1) CB_ASSERT(v >= 1 && v <= 1 << 20);
    cb_config_real(c, "rope_theta", &d, &err);
    cb_config_bool(c, "tie_word_embeddings", &b, &err);
    cb_config_str(c, "model_type", &s, &err);
    cb_config_get(c, "rope_scaling");
    cb_config_close(c);
    return 0;
}
