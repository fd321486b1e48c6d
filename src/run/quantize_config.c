/* quantize_config.c: the JSON files of a quantised checkpoint: config.json as mlx-lm writes it, or the two files of a Bonsai 2
 * pack; and the index of the weight files. */
#include "run/quantize.h"
#include "run/outfiles.h"
#include "base/json.h"
#include <string.h>

enum { MAX_JSON = 16 << 20 };

static int no_memory(cb_err *err) { return cb_fail(err, CB_ENOMEM, "no memory for config.json"); }

const char *cb_q_shard_name(const cb_q_plan *p, int shard, char buf[64])
{
    if (p->n_shards == 1) snprintf(buf, 64, "model.safetensors");
    else snprintf(buf, 64, "model-%05d-of-%05d.safetensors", shard + 1, p->n_shards);
    return buf;
}

static const char *mode_name(cb_wmode m)
{
    return m == CB_W_MXFP4 ? "mxfp4" : m == CB_W_MXFP8 ? "mxfp8" : m == CB_W_NVFP4 ? "nvfp4" : "affine";
}

/* ---- config.json ---- */

/* {"group_size", "bits", "mode"} and an entry for each module with numbers of its own; those are affine, which goes unsaid. */
static json_t *quantization(const cb_q_plan *p)
{
    json_t *q = json_pack("{s:i, s:i, s:s}", "group_size", p->q.group, "bits", p->q.bits, "mode", mode_name(p->q.mode));
    for (int i = 0; q && i < p->n_items; i++) {
        const cb_q_item *it = &p->items[i];
        char path[512];
        if (!it->quantised || !it->own_spec) continue;
        if (json_object_set_new(q, cb_q_path(it, path), json_pack("{s:i, s:i}", "group_size", it->q.group, "bits", it->q.bits)) != 0) {
            json_decref(q);
            return NULL;
        }
    }
    return q;
}

/* generation_config.json's end tokens replace those of config.json, as in mlx-lm. */
static int set_eos(const cb_q_plan *p, json_t *root, cb_err *err)
{
    json_t *gen;
    if (!cb_file_exists(p->config->dir, "generation_config.json")) return 0;
    int rc = cb_json_file(p->config->dir, "generation_config.json", MAX_JSON, &gen, err);
    if (rc < 0) return rc;
    json_t *eos = json_object_get(gen, "eos_token_id");
    if (eos && !json_is_null(eos) && json_object_set(root, "eos_token_id", eos) != 0) rc = no_memory(err);
    json_decref(gen);
    return rc;
}

static int plain_config(const cb_q_plan *p, json_t *root, cb_err *err)
{
    json_t *q = quantization(p);
    json_object_del(root, "_name_or_path");
    json_object_del(root, "vision_config"); /* its tower is left out */
    bool bad = !q || json_object_set(root, "quantization", q) != 0 || json_object_set(root, "quantization_config", q) != 0;
    json_decref(q);
    return bad ? no_memory(err) : set_eos(p, root, err);
}

/* ---- Bonsai 2 ---- */

static uint64_t mix(uint64_t x) /* splitmix64's last step */
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

float cb_q_sign(uint64_t seed, int64_t width, int64_t i)
{
    const uint64_t step = 0x9e3779b97f4a7c15u;
    uint64_t word = mix(mix(seed + step * (uint64_t)width) + step * (uint64_t)(i / 64 + 1));
    return word >> (i % 64) & 1 ? -1.0f : 1.0f;
}

static bool is_embedding(const cb_q_item *it) { return strstr(it->name, "embed_tokens") != NULL; }

static int pack_config(const cb_q_plan *p, json_t *root, cb_err *err)
{
    static const char prefix[] = "language_model.";
    json_t *modules = json_array(), *text = json_deep_copy(p->config->text);
    bool bad = !modules || !text;
    for (int i = 0; i < p->n_items && !bad; i++) {
        char path[512];
        if (!p->items[i].quantised) continue;
        json_t *m = json_pack("{s:s, s:i, s:b, s:s}", "path", cb_q_path(&p->items[i], path) + strlen(prefix), "block", p->items[i].block,
                              "embedding", is_embedding(&p->items[i]), "dtype", "float16");
        bad = json_array_append_new(modules, m) != 0;
    }
    bad = bad || json_object_set_new(text, "tie_word_embeddings", json_boolean(p->tied)) != 0;
    json_t *c = bad ? NULL
                    : json_pack("{s:i, s:s, s:s, s:s, s:s, s:s, s:{s:b, s:b, s:b}, s:o, s:b, s:O, s:O}", "schema_version", 2, "model_type",
                                "prism_hadamard_qwen35", "base_model_type", "qwen3_5", "tensor_namespace", "mlx-vlm-qwen3_5",
                                "gdn_activation_layout", "grouped", "hadamard_config", "hadamard.json", "components", "text", 1, "vision", 0,
                                "mtp", 0, "quantization", quantization(p), "tie_word_embeddings", p->tied, "modules", modules, "text_config",
                                text);
    json_t *eos = json_object_get(root, "eos_token_id");
    if (c && eos && json_object_set(c, "eos_token_id", eos) != 0) bad = true;
    bad = bad || !c || json_object_clear(root) != 0 || json_object_update(root, c) != 0;
    json_decref(c);
    json_decref(modules);
    json_decref(text);
    return bad ? no_memory(err) : set_eos(p, root, err);
}

/* Adds a width's signs unless they stand there already. */
static bool add_width(const cb_q_plan *p, int64_t width, json_t *widths, json_t *values)
{
    json_t *v;
    size_t i;
    json_array_foreach(widths, i, v)
        if (json_integer_value(v) == width) return true;
    if (json_array_append_new(widths, json_integer(width)) != 0) return false;
    for (int64_t k = 0; k < width; k++)
        if (json_array_append_new(values, json_real((double)cb_q_sign(p->opts->seed, width, k))) != 0) return false;
    return true;
}

static json_t *hadamard_json(const cb_q_plan *p)
{
    json_t *forward = json_array(), *inverse = json_array(), *widths = json_array(), *values = json_array();
    bool good = forward && inverse && widths && values;
    for (int i = 0; i < p->n_items && good; i++) {
        const cb_q_item *it = &p->items[i];
        if (!it->quantised) continue;
        good = json_array_append_new(is_embedding(it) ? inverse : forward, json_string(it->name)) == 0 && add_width(p, it->cols, widths, values);
    }
    json_t *h = !good ? NULL
                      : json_pack("{s:i, s:i, s:s, s:s, s:s, s:O, s:O, s:O, s:O, s:b}", "prism.hadamard.version", 1, "prism.hadamard.block_size",
                                  p->opts->hadamard_block, "prism.hadamard.transform", "normalized-sylvester-walsh-hadamard",
                                  "prism.hadamard.axis", "input-last-dimension", "prism.hadamard.sign_mode", "explicit",
                                  "prism.hadamard.weight_names", forward, "prism.hadamard.inverse_weight_names", inverse,
                                  "prism.hadamard.sign_widths", widths, "prism.hadamard.sign_values", values, "prism.hadamard.gdn_v_grouped", 1);
    json_decref(forward);
    json_decref(inverse);
    json_decref(widths);
    json_decref(values);
    return h;
}

/* ---- index ---- */

static json_t *index_json(const cb_q_plan *p)
{
    static const char *const suffix[] = {"weight", "scales", "biases", "signs"};
    json_t *map = json_object();
    bool good = map != NULL;
    for (int i = 0; i < p->n_items && good; i++) {
        const cb_q_item *it = &p->items[i];
        char file[64], path[512], name[540];
        cb_q_shard_name(p, it->shard, file);
        good = json_object_set_new(map, it->name, json_string(file)) == 0;
        for (int k = 1; k < 4 && good && it->quantised; k++) {
            if ((k == 2 && it->q.mode != CB_W_AFFINE) || (k == 3 && !it->block)) continue;
            snprintf(name, sizeof name, "%s.%s", cb_q_path(it, path), suffix[k]);
            good = json_object_set_new(map, name, json_string(file)) == 0;
        }
    }
    json_t *all = good ? json_pack("{s:{s:I, s:I}, s:O}", "metadata", "total_size", (json_int_t)p->out_bytes, "total_parameters",
                                   (json_int_t)p->n_params, "weight_map", map)
                       : NULL;
    json_decref(map);
    return all;
}

static int write_made(const char *dir, const char *name, json_t *j, cb_err *err)
{
    if (!j) return cb_fail(err, CB_ENOMEM, "no memory for %s", name);
    int rc = cb_out_json(dir, name, j, 4, err);
    json_decref(j);
    return rc;
}

int cb_q_write_config(const cb_q_plan *p, const char *dir, cb_err *err)
{
    const bool pack = p->opts->hadamard_block != 0;
    json_t *root = json_deep_copy(p->config->root);
    if (!root) return no_memory(err);
    int rc = pack ? pack_config(p, root, err) : plain_config(p, root, err);
    if (rc < 0) json_decref(root);
    else rc = write_made(dir, "config.json", root, err);
    if (rc == 0 && pack) rc = write_made(dir, "hadamard.json", hadamard_json(p), err);
    if (rc == 0 && !(pack && p->n_shards == 1)) rc = write_made(dir, "model.safetensors.index.json", index_json(p), err);
    return rc;
}
