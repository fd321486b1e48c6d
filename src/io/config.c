/* config.c: config.json with typed access, and its quantisation table. */
#include "io/config.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "io/confine.h"
#include "io/weights.h"
#include <string.h>

static const char FILE_NAME[] = "config.json";
enum { MAX_CONFIG = 64 << 20, MAX_PATH = 1024 };

static const struct mode_rule {
    const char *name;
    int mode, bits, group;
} modes[] = {
    {"affine", CB_W_AFFINE, 4, 64},
    {"mxfp4", CB_W_MXFP4, 4, 32},
    {"mxfp8", CB_W_MXFP8, 8, 32},
    {"nvfp4", CB_W_NVFP4, 4, 16},
};

/* Reads mode, bits and group_size of one object; `what` names it in messages. */
static int parse_spec(const json_t *o, const char *what, cb_quant_spec *out, cb_err *err)
{
    const char *mode = "affine";
    bool act = false;
    int rc;
    if ((rc = cb_json_str(o, FILE_NAME, "mode", &mode, err)) < 0) return cb_fail_in(err, rc, "%s", what);
    if ((rc = cb_json_bool(o, FILE_NAME, "quantize_activations", &act, err)) < 0) return cb_fail_in(err, rc, "%s", what);
    if (act)
        return cb_fail(err, CB_EFORMAT, "%s: %s: quantize_activations is not supported", FILE_NAME, what);
    const struct mode_rule *r = NULL;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (!strcmp(modes[i].name, mode)) r = &modes[i];
    if (!r) return cb_fail(err, CB_EFORMAT, "%s: %s: unknown mode \"%.32s\"", FILE_NAME, what, mode);
    int64_t bits = r->bits, group = r->group;
    if ((rc = cb_json_int(o, FILE_NAME, "bits", 1, 8, &bits, err)) < 0 ||
        (rc = cb_json_int(o, FILE_NAME, "group_size", 1, 128, &group, err)) < 0)
        return cb_fail_in(err, rc, "%s", what);
    bool good = r->mode == CB_W_AFFINE ? bits != 7 && (group == 32 || group == 64 || group == 128)
                                       : bits == r->bits && group == r->group;
    if (!good)
        return cb_fail(err, CB_EFORMAT, "%s: %s: mode %s does not allow bits %lld with group_size %lld", FILE_NAME, what, mode,
                       (long long)bits, (long long)group);
    *out = (cb_quant_spec){.mode = r->mode, .bits = (int)bits, .group = (int)group};
    return 0;
}

/* The object of MLX form, or NULL; refuses what other tools write. */
static int find_quant(cb_config *c, cb_err *err)
{
    static const char *const keys[] = {"quantization", "quantization_config"};
    const json_t *q = NULL;
    const char *key = NULL;
    for (int i = 0; i < 4 && (!q || json_is_null(q)); i++) /* root first, then hoisted from text_config */
        q = json_object_get(i < 2 ? c->root : c->text, key = keys[i % 2]);
    if (!q || json_is_null(q)) return 0;
    if (!json_is_object(q)) return cb_fail(err, CB_EFORMAT, "%s: %s is not an object", FILE_NAME, key);
    const json_t *method = json_object_get(q, "quant_method");
    if (method && !json_is_null(method))
        return cb_fail(err, CB_EFORMAT, "%s: %s.quant_method \"%.40s\" is not an MLX quantisation; convert the model first",
                       FILE_NAME, key, json_is_string(method) ? json_string_value(method) : "?");
    c->quant = q;
    return parse_spec(q, key, &c->quant_default, err);
}

static int check_root(cb_config *c, cb_err *err)
{
    const json_t *t = json_object_get(c->root, "text_config");
    if (t && !json_is_null(t) && !json_is_object(t)) return cb_fail(err, CB_EFORMAT, "%s: text_config is not an object", FILE_NAME);
    c->text = t && json_is_object(t) ? t : c->root;
    const json_t *f = json_object_get(c->root, "model_file");
    if (f && !json_is_null(f))
        return cb_fail(err, CB_EFORMAT, "%s: model_file asks to run a Python file, which is refused", FILE_NAME);
    int rc = cb_json_str(c->root, FILE_NAME, "model_type", &c->model_type, err);
    if (rc < 0) return rc;
    if (!rc) return cb_fail(err, CB_EFORMAT, "%s: model_type is missing", FILE_NAME);
    return find_quant(c, err);
}

int cb_config_parse(const char *dir, const char *text, size_t n, cb_config **out, cb_err *err)
{
    *out = NULL;
    cb_config *c = cb_alloc(sizeof *c);
    int rc = 0;
    if (!c || !(c->dir = cb_strdup(dir))) rc = cb_fail(err, CB_ENOMEM, "%s: no memory", FILE_NAME);
    if (!rc) rc = cb_json_text(FILE_NAME, text, n, &c->root, err);
    if (!rc && !json_is_object(c->root)) rc = cb_fail(err, CB_EFORMAT, "%s: not a JSON object", FILE_NAME);
    if (!rc) rc = check_root(c, err);
    if (rc < 0) {
        cb_config_close(c);
        return rc;
    }
    *out = c;
    return 0;
}

int cb_config_open(const char *dir, cb_config **out, cb_err *err)
{
    char *text;
    size_t n;
    *out = NULL;
    int rc = cb_confine_check(dir, FILE_NAME, err);
    if (rc < 0 || (rc = cb_file_read(dir, FILE_NAME, MAX_CONFIG, &text, &n, err)) < 0) return rc;
    rc = cb_config_parse(dir, text, n, out, err);
    cb_free(text);
    return rc < 0 ? cb_fail_in(err, rc, "%s", dir) : 0;
}

void cb_config_close(cb_config *c)
{
    if (!c) return;
    json_decref(c->root);
    cb_free(c->dir);
    cb_free(c);
}

/* ---- quantisation of one module ---- */

/* The entry of `path`, as spelled or with any of the prefixes under which converters put the text part of a model; NULL when
 * there is none. The spelling found is left in key. */
static const json_t *find_entry(const json_t *q, const char *path, char *key, size_t cap)
{
    static const char *const prefixes[] = {"language_model.model.", "model.language_model.", "language_model.", "model.", ""};
    const char *bare = path;
    for (int i = 0; i < 5; i++) /* the long ones first */
        if (!strncmp(path, prefixes[i], strlen(prefixes[i]))) {
            bare += strlen(prefixes[i]);
            break;
        }
    for (int i = -1; i < 5; i++) {
        int n = snprintf(key, cap, "%s%s", i < 0 ? "" : prefixes[i], i < 0 ? path : bare);
        if (n < 0 || (size_t)n >= cap) continue;
        const json_t *v = json_object_get(q, key);
        if (v && !json_is_null(v)) return v;
    }
    return NULL;
}

int cb_config_quant(const cb_config *c, const char *path, cb_quant_spec *out, cb_err *err)
{
    char key[MAX_PATH], what[MAX_PATH + 16];
    *out = (cb_quant_spec){0};
    if (!c->quant) return 0;
    *out = c->quant_default;
    const json_t *v = find_entry(c->quant, path, key, sizeof key);
    if (!v || json_is_true(v)) return 1;
    if (json_is_false(v)) {
        *out = (cb_quant_spec){.keep_float = true};
        return 1;
    }
    if (!json_is_object(v)) return cb_fail(err, CB_EFORMAT, "%s: quantization.%.200s is neither object nor bool", FILE_NAME, key);
    snprintf(what, sizeof what, "quantization.%.200s", key);
    int rc = parse_spec(v, what, out, err);
    return rc < 0 ? rc : 1;
}

/* ---- typed access ---- */

#define FROM_TEXT_THEN_ROOT(call_)                                                                                              \
    const json_t *o = c->text;                                                                                                  \
    int rc = call_;                                                                                                             \
    if (rc || c->text == c->root) return rc;                                                                                    \
    o = c->root;                                                                                                                \
    return call_

int cb_config_int(const cb_config *c, const char *key, int64_t lo, int64_t hi, int64_t *v, cb_err *err)
{
    FROM_TEXT_THEN_ROOT(cb_json_int(o, FILE_NAME, key, lo, hi, v, err));
}
int cb_config_real(const cb_config *c, const char *key, double *v, cb_err *err)
{
    FROM_TEXT_THEN_ROOT(cb_json_real(o, FILE_NAME, key, v, err));
}
int cb_config_bool(const cb_config *c, const char *key, bool *v, cb_err *err)
{
    FROM_TEXT_THEN_ROOT(cb_json_bool(o, FILE_NAME, key, v, err));
}
int cb_config_str(const cb_config *c, const char *key, const char **v, cb_err *err)
{
    FROM_TEXT_THEN_ROOT(cb_json_str(o, FILE_NAME, key, v, err));
}

const json_t *cb_config_get(const cb_config *c, const char *key)
{
    const json_t *v = json_object_get(c->text, key);
    if (!v || json_is_null(v)) v = json_object_get(c->root, key);
    return v && !json_is_null(v) ? v : NULL;
}
