/* json.h: small helpers over jansson that name the field in every error. `where` is the file shown in messages.
 * Of duplicate keys the last one wins, as in every other reader of these files. Documents nested too deep (jansson's limit,
 * 2048) are rejected. An integer beyond 64 bits becomes a real. */
#ifndef CB_BASE_JSON_H
#define CB_BASE_JSON_H
#include "base/err.h"
#include <jansson.h>

/* Reads and parses dir/name (at most max bytes); the root must be an object. The caller owns *out (json_decref). */
int cb_json_file(const char *dir, const char *name, size_t max, json_t **out, cb_err *err);
/* Parses n bytes. */
int cb_json_text(const char *where, const char *text, size_t n, json_t **out, cb_err *err);

/* Each reads obj[key]: 1 when present (value stored), 0 when absent or null (value untouched), CB_EFORMAT on a wrong type
 * or a value outside lo..hi. */
int cb_json_int(const json_t *obj, const char *where, const char *key, int64_t lo, int64_t hi, int64_t *v, cb_err *err);
int cb_json_real(const json_t *obj, const char *where, const char *key, double *v, cb_err *err);
int cb_json_bool(const json_t *obj, const char *where, const char *key, bool *v, cb_err *err);
/* Borrowed from obj. */
int cb_json_str(const json_t *obj, const char *where, const char *key, const char **v, cb_err *err);
#endif
