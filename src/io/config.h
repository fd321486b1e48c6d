/* config.h: config.json of a checkpoint, kept as JSON with typed access, and its quantisation table. */
#ifndef CB_IO_CONFIG_H
#define CB_IO_CONFIG_H
#include "base/err.h"
#include <jansson.h>

typedef struct cb_quant_spec {
    int mode;  /* cb_wmode of weights.h: affine, mxfp4, mxfp8, nvfp4 */
    int bits, group;
    bool keep_float; /* the entry is `false` */
} cb_quant_spec;

typedef struct cb_config {
    char *dir;
    json_t *root;           /* the whole file */
    const json_t *text;     /* text_config when there is one, else root. Borrowed from root */
    const char *model_type; /* of the root */
    const json_t *quant;    /* "quantization" or "quantization_config" of MLX form; NULL: none */
    cb_quant_spec quant_default;
} cb_config;

/* Reads dir/config.json. Refuses model_file, foreign quantisation methods, quantize_activations and unknown modes with the
 * field named (spec mlx-format 2 and 4). CB_ENOTFOUND when absent. */
int cb_config_open(const char *dir, cb_config **out, cb_err *err);
/* The same from n bytes of text; `dir` is kept for later messages. */
int cb_config_parse(const char *dir, const char *text, size_t n, cb_config **out, cb_err *err);
void cb_config_close(cb_config *c);
/* The quantisation of module `path`: its own entry (tried with and without "language_model." and "model.language_model.")
 * or the default. 1: an entry or default exists, 0: the config has no quantisation at all; CB_EFORMAT on a bad entry. */
int cb_config_quant(const cb_config *c, const char *path, cb_quant_spec *out, cb_err *err);

/* Keys of the text part (falling back to the root), as cb_json_*: 1, 0 or CB_EFORMAT; messages name config.json. */
int cb_config_int(const cb_config *c, const char *key, int64_t lo, int64_t hi, int64_t *v, cb_err *err);
int cb_config_real(const cb_config *c, const char *key, double *v, cb_err *err);
int cb_config_bool(const cb_config *c, const char *key, bool *v, cb_err *err);
int cb_config_str(const cb_config *c, const char *key, const char **v, cb_err *err);
/* The JSON value, or NULL when absent or null. */
const json_t *cb_config_get(const cb_config *c, const char *key);
#endif
