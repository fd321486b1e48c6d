/* bonsai2.c: Bonsai 2 packs: the Qwen 3.5 network whose big matrices are stored in a signed Hadamard basis. Skipping or
 * misreading the transform yields fluent nonsense, so everything the pack says about it is checked and anything unknown is
 * refused by name.
 * Reference: the pack's own config.json and hadamard.json, mlx-vlm models/prism_hadamard_qwen35. */
#include "base/json.h"
#include "model/family.h"
#include "model/qwen35.h"
#include <string.h>

enum { MAX_HADAMARD_JSON = 64 << 20 };

typedef struct pack {
    json_t *file;      /* hadamard.json */
    json_t *listed;    /* set of full module paths in config.json: modules, rotated or not */
    json_t *packed;    /* set of full module paths that are rotated */
    json_t *by_width;  /* width -> offset of its signs in sign_values */
    const json_t *signs;
    int block;
    bool tied;
} pack;

static bool ends(const char *s, const char *with)
{
    size_t n = strlen(s), k = strlen(with);
    return n >= k && !strcmp(s + n - k, with);
}

/* obj[key] must be the string (or integer) given. */
static void want_str(cb_builder *b, const json_t *obj, const char *where, const char *key, const char *value)
{
    const char *s = json_string_value(json_object_get(obj, key));
    if (!s || strcmp(s, value)) pb_fail(b, CB_EFORMAT, "%s: %s is %.60s, only %s can be run", where, key, s ? s : "missing", value);
}

static void want_int(cb_builder *b, const json_t *obj, const char *where, const char *key, json_int_t value)
{
    const json_t *v = json_object_get(obj, key);
    if (!json_is_integer(v) || json_integer_value(v) != value)
        pb_fail(b, CB_EFORMAT, "%s: %s is %lld, only %lld can be run", where, key, (long long)json_integer_value(v), (long long)value);
}

static void want_true(cb_builder *b, const json_t *obj, const char *where, const char *key)
{
    if (!json_is_true(json_object_get(obj, key))) pb_fail(b, CB_EFORMAT, "%s: %s is not true", where, key);
}

/* One format for all modules, which the shapes confirm later: published packs have 2 bits in groups of 128, our own any. */
static void check_quantization(cb_builder *b, const json_t *q)
{
    static const char where[] = "config.json: quantization";
    const char *key;
    json_t *v;
    json_int_t bits = json_integer_value(json_object_get(q, "bits")), group = json_integer_value(json_object_get(q, "group_size"));
    if (bits < 2 || bits > 8 || bits == 7) pb_fail(b, CB_EFORMAT, "%s: bits is %lld; 2, 3, 4, 5, 6 and 8 can be run", where, (long long)bits);
    if (group != 32 && group != 64 && group != 128)
        pb_fail(b, CB_EFORMAT, "%s: group_size is %lld; 32, 64 and 128 can be run", where, (long long)group);
    if (json_object_get(q, "mode")) want_str(b, q, where, "mode", "affine");
    json_object_foreach((json_t *)(uintptr_t)q, key, v)
        if (strcmp(key, "bits") && strcmp(key, "group_size") && strcmp(key, "mode"))
            pb_fail(b, CB_EFORMAT, "%s: %.200s has an entry of its own; a pack has one format", where, key);
}

static void check_config(cb_builder *b)
{
    static const char where[] = "config.json";
    const json_t *c = pb_config(b)->root, *q = json_object_get(c, "quantization");
    want_int(b, c, where, "schema_version", 2);
    want_str(b, c, where, "base_model_type", "qwen3_5");
    want_str(b, c, where, "tensor_namespace", "mlx-vlm-qwen3_5");
    want_str(b, c, where, "gdn_activation_layout", "grouped");
    want_str(b, c, where, "hadamard_config", "hadamard.json");
    check_quantization(b, q);
    const json_t *twice = json_object_get(c, "quantization_config");
    if (twice && !json_equal(twice, q)) pb_fail(b, CB_EFORMAT, "config.json: quantization_config differs from quantization");
    want_true(b, json_object_get(c, "components"), "config.json: components", "text");
    if (json_is_true(json_object_get(json_object_get(c, "components"), "mtp")))
        pb_fail(b, CB_EFORMAT, "config.json: components: mtp is true; a pack's draft head cannot be run");
    const json_t *outer = json_object_get(c, "tie_word_embeddings"), *inner = json_object_get(json_object_get(c, "text_config"), "tie_word_embeddings");
    if (outer && inner && json_is_true(outer) != json_is_true(inner))
        pb_fail(b, CB_EFORMAT, "config.json: tie_word_embeddings differs from text_config.tie_word_embeddings");
    if (!json_is_array(json_object_get(c, "modules"))) pb_fail(b, CB_EFORMAT, "config.json: modules is not a list");
}

/* The names of a list of hadamard.json, each checked to end in .weight, into set (without it). */
static void names_into(cb_builder *b, const json_t *file, const char *key, json_t *set)
{
    const json_t *list = json_object_get(file, key), *v;
    size_t i;
    if (!json_is_array(list)) {
        pb_fail(b, CB_EFORMAT, "hadamard.json: %s is not a list", key);
        return;
    }
    json_array_foreach(list, i, v)
    {
        const char *s = json_string_value(v);
        size_t n = s ? strlen(s) : 0;
        if (n < 8 || n > 300 || strcmp(s + n - 7, ".weight")) {
            pb_fail(b, CB_EFORMAT, "hadamard.json: %s[%zu] is not the name of a weight", key, i);
            return;
        }
        if (json_object_getn(set, s, n - 7)) pb_fail(b, CB_EFORMAT, "hadamard.json: %s lists %s twice", key, s);
        json_object_setn_new_nocheck(set, s, n - 7, json_true());
    }
}

static void check_contract(cb_builder *b, pack *p)
{
    static const char where[] = "hadamard.json", prefix[] = "prism.hadamard.";
    static const char *const known[] = {"version", "transform", "axis", "sign_mode", "gdn_v_grouped", "block_size", "weight_names",
                                        "inverse_weight_names", "sign_widths", "sign_values"};
    const json_t *f = p->file;
    const char *key;
    json_t *v;
    json_object_foreach(p->file, key, v)
    {
        bool found = false;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            found |= !strncmp(key, prefix, strlen(prefix)) && !strcmp(key + strlen(prefix), known[i]);
        if (!found) pb_fail(b, CB_EFORMAT, "hadamard.json: %.100s is unknown", key);
    }
    want_int(b, f, where, "prism.hadamard.version", 1);
    want_str(b, f, where, "prism.hadamard.transform", "normalized-sylvester-walsh-hadamard");
    want_str(b, f, where, "prism.hadamard.axis", "input-last-dimension");
    want_str(b, f, where, "prism.hadamard.sign_mode", "explicit");
    want_true(b, f, where, "prism.hadamard.gdn_v_grouped");
    json_int_t block = json_integer_value(json_object_get(f, "prism.hadamard.block_size"));
    if (block != 512 && block != 1024 && block != 2048 && block != 4096)
        pb_fail(b, CB_EFORMAT, "hadamard.json: block_size is %lld; 512, 1024, 2048 and 4096 can be run", (long long)block);
    p->block = (int)block;
}

/* Widths and the signs laid end to end; every sign is 1 or -1. */
static void read_signs(cb_builder *b, pack *p)
{
    const json_t *w = json_object_get(p->file, "prism.hadamard.sign_widths"), *v;
    p->signs = json_object_get(p->file, "prism.hadamard.sign_values");
    if (!json_is_array(w) || !json_is_array(p->signs)) {
        pb_fail(b, CB_EFORMAT, "hadamard.json: sign_widths or sign_values is not a list");
        return;
    }
    json_int_t at = 0;
    size_t i;
    json_array_foreach(w, i, v)
    {
        char key[32];
        json_int_t n = json_integer_value(v);
        if (n < 1 || n > 1 << 20 || n % p->block) {
            pb_fail(b, CB_EFORMAT, "hadamard.json: sign_widths[%zu] is %lld, not a multiple of block_size %d", i, (long long)n, p->block);
            return;
        }
        snprintf(key, sizeof key, "%lld", (long long)n);
        if (json_object_get(p->by_width, key)) pb_fail(b, CB_EFORMAT, "hadamard.json: sign_widths has %s twice", key);
        json_object_set_new(p->by_width, key, json_integer(at));
        at += n;
    }
    if ((size_t)at != json_array_size(p->signs))
        pb_fail(b, CB_EFORMAT, "hadamard.json: sign_values has %zu numbers, sign_widths ask for %lld", json_array_size(p->signs),
                (long long)at);
    json_array_foreach(p->signs, i, v)
        if (json_number_value(v) != 1 && json_number_value(v) != -1) {
            pb_fail(b, CB_EFORMAT, "hadamard.json: sign_values[%zu] is %g, not 1 or -1", i, json_number_value(v));
            return;
        }
}

/* The signs beside a module are those of its width. */
static void check_module_signs(cb_builder *b, const pack *p, const char *path)
{
    char name[512], key[32];
    snprintf(name, sizeof name, "%s.signs", path);
    const cb_tensor *t = pb_tensor(b, name);
    if (!t || t->dtype != CB_F32 || t->n_dims != 1) {
        pb_fail(b, CB_EFORMAT, "%s: missing, or not a vector of F32", name);
        return;
    }
    pb_was_read(b, name); /* neighbours share a rotation, so no operation may ask for these */
    snprintf(key, sizeof key, "%lld", (long long)t->dims[0]);
    const json_t *at = json_object_get(p->by_width, key);
    if (!at) {
        pb_fail(b, CB_EFORMAT, "%s: %s has %s signs, a width that hadamard.json does not list", t->file, name, key);
        return;
    }
    for (int64_t i = 0; i < t->dims[0]; i++)
        if ((double)cb_load_float(t->data, CB_F32, (size_t)i) !=
            json_number_value(json_array_get(p->signs, (size_t)(json_integer_value(at) + i)))) {
            pb_fail(b, CB_EFORMAT, "%s: %s[%lld] differs from hadamard.json", t->file, name, (long long)i);
            return;
        }
}

/* One record of modules[]: what it says of a matrix agrees with hadamard.json and the tensors. */
static void check_module(cb_builder *b, const pack *p, const json_t *m, size_t i, const json_t *forward, const json_t *inverse)
{
    const char *path = json_string_value(json_object_get(m, "path")), *dtype = json_string_value(json_object_get(m, "dtype"));
    char full[400], signs[420];
    if (!path || strlen(path) > 300) {
        pb_fail(b, CB_EFORMAT, "config.json: modules[%zu].path is missing", i);
        return;
    }
    snprintf(full, sizeof full, "language_model.%s", path);
    snprintf(signs, sizeof signs, "%s.signs", full);
    const json_t *size = json_object_get(m, "block");
    json_int_t block = json_integer_value(size);
    bool embedding = json_is_true(json_object_get(m, "embedding"));
    if (json_object_get(p->listed, full)) pb_fail(b, CB_EFORMAT, "config.json: modules: %s stands twice", path);
    json_object_set_new(p->listed, full, json_true());
    if (!json_is_integer(size)) pb_fail(b, CB_EFORMAT, "config.json: modules: %s: block is missing", path);
    if (!dtype || strcmp(dtype, "float16")) pb_fail(b, CB_EFORMAT, "config.json: modules: %s: dtype is %.40s, not float16", path, dtype ? dtype : "missing");
    if (!block) {
        if (pb_has(b, signs)) pb_fail(b, CB_EFORMAT, "config.json: modules: %s has block 0, but %s exists", path, signs);
        return;
    }
    if (block != p->block)
        pb_fail(b, CB_EFORMAT, "config.json: modules: %s has block %lld, hadamard.json says %d", path, (long long)block, p->block);
    if (embedding != !strcmp(path, "model.embed_tokens"))
        pb_fail(b, CB_EFORMAT, "config.json: modules: %s: embedding is %s", path, embedding ? "true" : "false");
    /* a tied embedding is read both ways, and may be listed in either place */
    if (!json_object_get(embedding ? inverse : forward, full) && !(embedding && p->tied && json_object_get(forward, full)))
        pb_fail(b, CB_EFORMAT, "hadamard.json: %s.weight is not listed, config.json: modules has it", full);
    if (strstr(path, "in_proj_a") || strstr(path, "in_proj_b"))
        pb_fail(b, CB_EFORMAT, "config.json: modules: %s must not be rotated", path);
    if (pb_ok(b)) check_module_signs(b, p, full);
    json_object_set_new(p->packed, full, json_true());
}

/* modules[] of config.json and the two lists of hadamard.json name the same matrices, and only the embedding is inverse. */
static void check_modules(cb_builder *b, const pack *p, const json_t *forward, const json_t *inverse)
{
    const json_t *m;
    const char *name;
    json_t *v;
    size_t i;
    json_array_foreach(json_object_get(pb_config(b)->root, "modules"), i, m)
        if (pb_ok(b)) check_module(b, p, m, i, forward, inverse);
    json_object_foreach((json_t *)(uintptr_t)forward, name, v)
    {
        if (!json_object_get(p->packed, name))
            pb_fail(b, CB_EFORMAT, "hadamard.json: %s.weight is listed, config.json: modules lacks it", name);
        if (!p->tied && json_object_get(inverse, name))
            pb_fail(b, CB_EFORMAT, "hadamard.json: %s.weight is in weight_names and in inverse_weight_names", name);
    }
    json_object_foreach((json_t *)(uintptr_t)inverse, name, v)
        if (strcmp(name, "language_model.model.embed_tokens") || !json_object_get(p->packed, name))
            pb_fail(b, CB_EFORMAT, "hadamard.json: inverse_weight_names has %s.weight; only a rotated embedding can be there", name);
    if (!json_object_size(p->packed)) pb_fail(b, CB_EFORMAT, "config.json: modules names no rotated matrix");
}

/* No tensor says otherwise: each packed matrix is listed, each vector of signs belongs to a rotated one, a tied model has no head, the
 * convolutions are in the layout whose norms are final. */
static void check_tensors(cb_builder *b, const pack *p)
{
    const cb_weights *w = pb_weights(b);
    for (int i = 0; i < cb_weights_count(w) && pb_ok(b); i++) {
        const cb_tensor *t = cb_weights_at(w, i);
        const char *last = strrchr(t->name, '.');
        char path[512];
        if (strstr(t->name, "mtp.")) pb_fail(b, CB_EFORMAT, "%s: %s: a pack's draft head cannot be run", t->file, t->name);
        if (ends(t->name, "conv1d.weight") && t->n_dims == 3 && t->dims[2] != 1)
            pb_fail(b, CB_EFORMAT, "%s: %s is not [channels,taps,1]", t->file, t->name);
        if (p->tied && !strcmp(t->name, "language_model.lm_head.weight"))
            pb_fail(b, CB_EFORMAT, "%s: %s exists, but config.json: tie_word_embeddings is true", t->file, t->name);
        if (!last || (strcmp(last, ".scales") && strcmp(last, ".signs"))) continue;
        snprintf(path, sizeof path, "%.*s", (int)(last - t->name < 500 ? last - t->name : 500), t->name);
        if (!json_object_get(!strcmp(last, ".signs") ? p->packed : p->listed, path))
            pb_fail(b, CB_EFORMAT, "%s: %s exists, but config.json: modules lacks %s", t->file, t->name, path);
    }
}

static bool is_packed(void *ctx, const char *path) { return json_object_get(((const pack *)ctx)->packed, path) != NULL; }

static void build(cb_builder *b)
{
    pack p = {.packed = json_object(), .by_width = json_object(), .listed = json_object(), .tied = pb_bool(b, "tie_word_embeddings", false)};
    json_t *forward = json_object(), *inverse = json_object();
    cb_err e = {0};
    if (!p.packed || !p.by_width || !p.listed || !forward || !inverse) pb_fail(b, CB_ENOMEM, "no memory for hadamard.json");
    check_config(b);
    if (pb_ok(b) && cb_json_file(pb_config(b)->dir, "hadamard.json", MAX_HADAMARD_JSON, &p.file, &e) < 0)
        pb_fail(b, e.code == CB_ENOTFOUND ? CB_EFORMAT : e.code, "%s", e.text);
    if (pb_ok(b)) check_contract(b, &p);
    if (pb_ok(b)) read_signs(b, &p);
    if (pb_ok(b)) names_into(b, p.file, "prism.hadamard.weight_names", forward);
    if (pb_ok(b)) names_into(b, p.file, "prism.hadamard.inverse_weight_names", inverse);
    if (pb_ok(b)) check_modules(b, &p, forward, inverse);
    if (pb_ok(b)) check_tensors(b, &p);
    if (pb_ok(b)) {
        pb_rotation r = {.block = p.block, .is_packed = is_packed, .ctx = &p};
        pb_set_rotation(b, &r);
        cb_qwen35_build(b);
        pb_set_rotation(b, &(pb_rotation){0});
    }
    json_decref(forward);
    json_decref(inverse);
    json_decref(p.packed);
    json_decref(p.listed);
    json_decref(p.by_width);
    json_decref(p.file);
}

static const char *const types_[] = {"prism_hadamard_qwen35", NULL};
const cb_family cb_family_bonsai2 = {"bonsai2", types_, build};
