#include "base/json.h"
#include "base/file.h"
#include "base/mem.h"
#include <math.h>
#include <string.h>

/* Copies the text with ".0" behind every integer of more than 18 digits, which jansson would refuse. tokenizer_config.json
 * of many checkpoints says "model_max_length": 1000000000000000019884624838656. */
static void widen_integers(const char *text, size_t n, cb_buf *out)
{
    bool in_string = false;
    for (size_t i = 0, end; i < n; i = end) {
        end = i + 1;
        if (in_string && text[i] == '\\' && end < n) end++;
        else if (text[i] == '"') in_string = !in_string;
        else if (!in_string && (text[i] == '-' || (text[i] >= '0' && text[i] <= '9'))) {
            size_t digits = 0;
            bool real = false;
            for (end = i; end < n && text[end] && strchr("+-.eE0123456789", text[end]); end++) {
                digits++;
                real |= strchr(".eE", text[end]) != NULL;
            }
            cb_buf_put(out, text + i, end - i);
            if (!real && digits > 18) cb_buf_puts(out, ".0");
            continue;
        }
        cb_buf_put(out, text + i, end - i);
    }
}

int cb_json_text(const char *where, const char *text, size_t n, json_t **out, cb_err *err)
{
    json_error_t je = {0};
    json_t *j = json_loadb(text, n, JSON_ALLOW_NUL, &je);
    *out = NULL;
    if (!j && je.text[0] && json_error_code(&je) == json_error_numeric_overflow) {
        cb_buf b;
        cb_buf_init(&b, 0);
        widen_integers(text, n, &b);
        je = (json_error_t){0};
        if (cb_buf_ok(&b)) j = json_loadb(b.data, b.n, JSON_ALLOW_NUL, &je);
        cb_buf_fini(&b);
    }
    if (!j && !je.text[0]) return cb_fail(err, CB_ENOMEM, "%s: no memory for %zu bytes of JSON", where, n);
    if (!j) return cb_fail(err, CB_EFORMAT, "%s: line %d, column %d: %s", where, je.line, je.column, je.text);
    *out = j;
    return 0;
}

int cb_json_file(const char *dir, const char *name, size_t max, json_t **out, cb_err *err)
{
    char *text;
    size_t n;
    *out = NULL;
    int rc = cb_file_read(dir, name, max, &text, &n, err);
    if (rc < 0) return rc;
    rc = cb_json_text(name, text, n, out, err);
    cb_free(text);
    if (rc == 0 && !json_is_object(*out)) {
        json_decref(*out);
        *out = NULL;
        rc = cb_fail(err, CB_EFORMAT, "%s: not a JSON object", name);
    }
    return rc;
}

static const json_t *field(const json_t *obj, const char *key)
{
    const json_t *v = json_object_get(obj, key);
    return v && !json_is_null(v) ? v : NULL;
}

int cb_json_int(const json_t *obj, const char *where, const char *key, int64_t lo, int64_t hi, int64_t *v, cb_err *err)
{
    const json_t *f = field(obj, key);
    if (!f) return 0;
    double d = json_number_value(f);
    if (!json_is_number(f) || (json_is_real(f) && d != floor(d)))
        return cb_fail(err, CB_EFORMAT, "%s: %s is not an integer", where, key);
    int64_t i = json_is_integer(f) ? (int64_t)json_integer_value(f) : fabs(d) < 9e15 ? (int64_t)d : d < 0 ? INT64_MIN : INT64_MAX;
    if (i < lo || i > hi)
        return cb_fail(err, CB_EFORMAT, "%s: %s is %lld, allowed are %lld to %lld", where, key, (long long)i,
                       (long long)lo, (long long)hi);
    *v = i;
    return 1;
}

int cb_json_real(const json_t *obj, const char *where, const char *key, double *v, cb_err *err)
{
    const json_t *f = field(obj, key);
    if (!f) return 0;
    if (!json_is_number(f)) return cb_fail(err, CB_EFORMAT, "%s: %s is not a number", where, key);
    *v = json_number_value(f);
    return 1;
}

int cb_json_bool(const json_t *obj, const char *where, const char *key, bool *v, cb_err *err)
{
    const json_t *f = field(obj, key);
    if (!f) return 0;
    if (!json_is_boolean(f)) return cb_fail(err, CB_EFORMAT, "%s: %s is not true or false", where, key);
    *v = json_is_true(f);
    return 1;
}

int cb_json_str(const json_t *obj, const char *where, const char *key, const char **v, cb_err *err)
{
    const json_t *f = field(obj, key);
    if (!f) return 0;
    if (!json_is_string(f)) return cb_fail(err, CB_EFORMAT, "%s: %s is not a string", where, key);
    *v = json_string_value(f);
    return 1;
}
