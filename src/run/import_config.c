/* config.json and generation_config.json of an imported checkpoint: the keys that mlx-lm, transformers and our own
 * families read, from GGUF keys that go by other names or are implied by the architecture. */
#include "run/import.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

/* GGUF reals are f32 and were written from decimals such as 1e-5: takes the shortest decimal with the same f32. */
static double as_written(double v)
{
    char text[32];
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtof(text, NULL) == (float)v) break;
    }
    return (double)(float)v == v ? strtod(text, NULL) : v;
}

/* ---- RoPE ---- */

/* Llama 3 files state their scaling only as a table of divisors, one per pair. Published models use one rule with two
 * factors; a table that fits neither is refused rather than guessed at. */
static bool fits_llama3(const cb_import_plan *p, const cb_gguf_tensor *t, double factor)
{
    const double low = 1, high = 4, original = 8192;
    for (int64_t i = 0; i < t->cols; i++) {
        double f = pow(p->hp.rope_theta, -2.0 * (double)i / (double)p->hp.head_dim), wave = 2 * M_PI / f, want = 1;
        if (wave > original / low) want = factor;
        else if (wave > original / high) {
            double s = (original / wave - low) / (high - low);
            want = 1 / ((1 - s) / factor + s);
        }
        double got = (double)cb_load_float(t->data, t->type->dtype, (size_t)i);
        if (!(fabs(got - want) <= 1e-4 * want)) return false;
    }
    return true;
}

static json_t *llama3_scaling(const cb_import_plan *p, cb_err *err)
{
    const cb_gguf_tensor *t = cb_gguf_tensor_find(p->g, "rope_freqs.weight");
    static const double factors[] = {8, 32};
    if (!strcmp(p->arch ? cb_import_model_type(p->arch) : "", "llama") && t->type->is_float && t->rows == 1 &&
        t->cols == p->hp.head_dim / 2)
        for (int i = 0; i < 2; i++)
            if (fits_llama3(p, t, factors[i]))
                return json_pack("{s:s, s:f, s:f, s:f, s:i}", "rope_type", "llama3", "factor", factors[i], "low_freq_factor",
                                 1.0, "high_freq_factor", 4.0, "original_max_position_embeddings", 8192);
    cb_fail(err, CB_EFORMAT, "%s: tensor rope_freqs.weight is not the Llama 3 scaling by 8 or by 32", p->g->file);
    return NULL;
}

/* *out: the rope_scaling object (new reference), or NULL for none. */
static int rope_scaling(const cb_import_plan *p, json_t **out, cb_err *err)
{
    char key[128];
    const char *s = "none";
    size_t n = 4;
    double factor = 1;
    *out = NULL;
    if (cb_gguf_tensor_find(p->g, "rope_freqs.weight")) return (*out = llama3_scaling(p, err)) ? 0 : CB_EFORMAT;
    int rc = cb_gguf_real(p->g, cb_import_key(p, "rope.scaling.factor", key), &factor, err);
    if (rc < 0 || (rc = cb_gguf_text(p->g, cb_import_key(p, "rope.scaling.type", key), &s, &n, err)) < 0) return rc;
    if (n == 4 && !memcmp(s, "none", 4)) return 0;
    if (n != 6 || memcmp(s, "linear", 6) || !(factor > 0))
        return cb_fail(err, CB_EFORMAT, "%s: key %s: RoPE scaling %.*s by %g is not supported", p->g->file, key,
                       n < 32 ? (int)n : 32, s, factor);
    if (factor != 1) *out = json_pack("{s:s, s:f}", "rope_type", "linear", "factor", as_written(factor));
    return factor == 1 || *out ? 0 : cb_fail(err, CB_ENOMEM, "%s: no memory for config.json", p->g->file);
}

/* ---- parts of config.json ---- */

/* Sets and takes the new reference v; jansson reports no memory as NULL or -1. */
static void set(json_t *o, const char *key, json_t *v, bool *bad)
{
    if (json_object_set_new(o, key, v) != 0) *bad = true;
}

/* Token ids of the file: config.json, generation_config.json. */
static int set_token_ids(const cb_import_plan *p, json_t *o, bool *bad, cb_err *err)
{
    static const struct { const char *gguf, *mlx; } ids[] = {{"tokenizer.ggml.bos_token_id", "bos_token_id"},
                                                             {"tokenizer.ggml.padding_token_id", "pad_token_id"}};
    int64_t stop[16], id;
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        int rc = cb_gguf_int(p->g, ids[i].gguf, 0, p->hp.vocab - 1, &id, err);
        if (rc < 0) return rc;
        if (rc) set(o, ids[i].mlx, json_integer(id), bad);
    }
    int n = cb_import_stop_ids(p->g, stop, 16, err);
    if (n < 0) return n;
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        if (json_array_append_new(list, json_integer(stop[i])) != 0) *bad = true;
    if (n == 1) set(o, "eos_token_id", json_integer(stop[0]), bad);
    else if (n > 1) set(o, "eos_token_id", json_incref(list), bad);
    json_decref(list);
    return 0;
}

/* {"group_size": 32, "bits": the most frequent, "mode": "affine", other modules by path}; NULL when nothing is. */
static json_t *quantization(const cb_import_plan *p, bool *bad)
{
    int count[9] = {0}, bits = 0;
    for (int i = 0; i < p->n_items; i++)
        if (p->items[i].quantised) count[p->items[i].src->type->bits]++;
    for (int b = 1; b <= 8; b++)
        if (count[b] > (bits ? count[bits] : 0)) bits = b;
    if (!bits) return NULL;
    json_t *q = json_pack("{s:i, s:i, s:s}", "group_size", CB_GB_GROUP, "bits", bits, "mode", "affine");
    if (!q) *bad = true;
    for (int i = 0; i < p->n_items; i++) {
        const cb_import_item *it = &p->items[i];
        if (!it->quantised || it->src->type->bits == bits) continue;
        char path[128];
        snprintf(path, sizeof path, "%.*s", (int)(strlen(it->name) - strlen(".weight")), it->name);
        set(q, path, json_pack("{s:i, s:i, s:s}", "group_size", CB_GB_GROUP, "bits", it->src->type->bits, "mode", "affine"),
            bad);
    }
    return q;
}

/* Which layers of Gemma 3 slide: every sixth sees everything, unless the file says otherwise. */
static int set_gemma3_layers(const cb_import_plan *p, json_t *o, bool *bad, cb_err *err)
{
    char key[128];
    int64_t pattern = 6;
    int rc = cb_gguf_int(p->g, cb_import_key(p, "attention.sliding_window_pattern", key), 1, 4096, &pattern, err);
    if (rc < 0) return rc;
    set(o, "sliding_window_pattern", json_integer(pattern), bad);
    json_t *types = json_array();
    for (int64_t l = 0; l < p->hp.layers; l++)
        if (json_array_append_new(types, json_string((l + 1) % pattern ? "sliding_attention" : "full_attention")) != 0)
            *bad = true;
    set(o, "layer_types", types, bad);
    return 0;
}

static int set_gemma3(const cb_import_plan *p, json_t *o, bool *bad, cb_err *err)
{
    char key[128];
    int64_t window;
    double local = 10000, cap = 0;
    int rc = cb_gguf_int(p->g, cb_import_key(p, "attention.sliding_window", key), 1, 1 << 30, &window, err);
    if (rc <= 0) return rc < 0 ? rc : cb_fail(err, CB_EFORMAT, "%s: key %s is missing", p->g->file, key);
    if ((rc = cb_gguf_real(p->g, cb_import_key(p, "rope.freq_base_swa", key), &local, err)) < 0 ||
        (rc = cb_gguf_real(p->g, cb_import_key(p, "final_logit_softcapping", key), &cap, err)) < 0)
        return rc;
    set(o, "sliding_window", json_integer(window), bad);
    set(o, "rope_local_base_freq", json_real(as_written(local)), bad);
    /* The 27B model alone (62 layers) scales by hidden/heads and not by the head size. */
    set(o, "query_pre_attn_scalar", json_integer(p->hp.layers == 62 ? p->hp.hidden / p->hp.heads : p->hp.head_dim), bad);
    set(o, "attn_logit_softcapping", json_null(), bad);
    set(o, "final_logit_softcapping", cap > 0 ? json_real(as_written(cap)) : json_null(), bad);
    set(o, "hidden_activation", json_string("gelu_pytorch_tanh"), bad);
    return set_gemma3_layers(p, o, bad, err);
}

/* Defaults for sampling that newer files carry. */
static int set_sampling(const cb_import_plan *p, json_t *o, bool *bad, cb_err *err)
{
    static const struct { const char *gguf, *mlx; } reals[] = {{"general.sampling.temp", "temperature"},
                                                               {"general.sampling.top_p", "top_p"},
                                                               {"general.sampling.min_p", "min_p"}};
    int64_t k;
    double v;
    int rc = cb_gguf_int(p->g, "general.sampling.top_k", 0, INT32_MAX, &k, err);
    if (rc < 0) return rc;
    if (rc) set(o, "top_k", json_integer(k), bad);
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++) {
        if ((rc = cb_gguf_real(p->g, reals[i].gguf, &v, err)) < 0) return rc;
        if (rc) set(o, reals[i].mlx, json_real(as_written(v)), bad);
    }
    return 0;
}

int cb_import_config(cb_import_plan *p, cb_err *err)
{
    const cb_import_hparams *h = &p->hp;
    const char *type = cb_import_model_type(p->arch);
    bool gemma = !strcmp(type, "gemma3_text"), bad = false;
    json_t *scaling, *q, *o = p->config = json_object(), *gen = p->generation = json_object();
    int rc = rope_scaling(p, &scaling, err);
    if (rc < 0) return rc;

    set(o, "architectures", json_pack("[s]", cb_import_class(p->arch)), &bad);
    set(o, "model_type", json_string(type), &bad);
    set(o, "hidden_size", json_integer(h->hidden), &bad);
    set(o, "num_hidden_layers", json_integer(h->layers), &bad);
    set(o, "intermediate_size", json_integer(h->ff), &bad);
    set(o, "num_attention_heads", json_integer(h->heads), &bad);
    set(o, "num_key_value_heads", json_integer(h->kv_heads), &bad);
    set(o, "head_dim", json_integer(h->head_dim), &bad);
    set(o, "vocab_size", json_integer(h->vocab), &bad);
    set(o, "max_position_embeddings", json_integer(h->context), &bad);
    set(o, "rms_norm_eps", json_real(as_written(h->eps)), &bad);
    set(o, "rope_theta", json_real(as_written(h->rope_theta)), &bad);
    set(o, "rope_scaling", scaling ? scaling : json_null(), &bad);
    set(o, "tie_word_embeddings", json_boolean(p->tied), &bad);
    set(o, "attention_bias", json_boolean(!strcmp(type, "qwen2")), &bad);
    if (!strcmp(type, "llama")) set(o, "mlp_bias", json_false(), &bad);
    set(o, "hidden_act", json_string(gemma ? "gelu_pytorch_tanh" : "silu"), &bad);
    set(o, "torch_dtype", json_string("float32"), &bad);
    if ((q = quantization(p, &bad))) set(o, "quantization", q, &bad);
    if ((gemma && (rc = set_gemma3(p, o, &bad, err)) < 0) || (rc = set_token_ids(p, o, &bad, err)) < 0 ||
        (rc = set_token_ids(p, gen, &bad, err)) < 0 || (rc = set_sampling(p, gen, &bad, err)) < 0)
        return rc;
    return bad ? cb_fail(err, CB_ENOMEM, "%s: no memory for config.json", p->g->file) : 0;
}
