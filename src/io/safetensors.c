/* safetensors.c: reads one .safetensors file. The header is parsed and every tensor checked against the file's size before
 * anything points into the data; after cb_st_open every pointer and byte count of every tensor is good.
 *
 * The data is mapped without MADV_WILLNEED: that would queue the whole file for reading, which for a checkpoint near the
 * size of memory evicts the pages the first steps need. The first prefill touches all weights in order anyway, which is what
 * the kernel's own read-ahead is good at. A file that is cut short by someone while it is mapped kills the process
 * (SIGBUS): a mapped file must not be changed in place; every writer of ours renames. */
#include "io/safetensors.h"
#include "base/mem.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* MAX_COMMAS bounds what the parsed header can cost in memory: an honest tensor has 3 + dimensions + 1 of them. */
enum { MAX_HEADER = 100000000, MAX_TENSORS = 1000000, MAX_COMMAS = 12 * MAX_TENSORS, MAX_NAME = 512 };

static uint64_t load_u64le(const uint8_t *p)
{
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--) v = v << 8 | p[i];
    return v;
}

static size_t count_byte(const uint8_t *p, size_t n, uint8_t byte)
{
    size_t c = 0;
    for (size_t i = 0; i < n; i++) c += p[i] == byte;
    return c;
}

static bool get_u64(const json_t *v, uint64_t *out)
{
    if (!json_is_integer(v) || json_integer_value(v) < 0) return false;
    *out = (uint64_t)json_integer_value(v);
    return true;
}

/* One header entry: {"dtype": "BF16", "shape": [..], "data_offsets": [begin, end]}. */
static int parse_tensor(cb_tensor *t, const json_t *v, const uint8_t *data, uint64_t n_data, cb_err *err)
{
    const json_t *dtype = json_object_get(v, "dtype"), *shape = json_object_get(v, "shape"),
                 *offs = json_object_get(v, "data_offsets");
    if (!json_is_string(dtype) || !json_is_array(shape) || !json_is_array(offs))
        return cb_fail(err, CB_EFORMAT, "%s: %s needs dtype, shape and data_offsets", t->file, t->name);
    const char *dt = json_string_value(dtype);
    if (cb_dtype_parse(dt, strlen(dt), &t->dtype) < 0)
        return cb_fail(err, CB_EFORMAT, "%s: %s has unknown dtype \"%.32s\"", t->file, t->name, dt);
    size_t nd = json_array_size(shape);
    if (nd > CB_MAX_DIMS)
        return cb_fail(err, CB_EFORMAT, "%s: %s has %zu dimensions, the limit is %d", t->file, t->name, nd, CB_MAX_DIMS);
    t->n_dims = (int)nd;
    uint64_t need = cb_dtype_size(t->dtype);
    bool overflow = false;
    for (size_t i = 0; i < nd; i++) {
        uint64_t d;
        if (!get_u64(json_array_get(shape, i), &d))
            return cb_fail(err, CB_EFORMAT, "%s: %s: dimension %zu is not a whole number", t->file, t->name, i);
        t->dims[i] = (int64_t)d;
        overflow |= __builtin_mul_overflow(need, d, &need);
    }
    for (size_t i = 0; i < nd; i++)
        if (!t->dims[i]) need = 0, overflow = false;
    if (overflow) return cb_fail(err, CB_EFORMAT, "%s: %s: the product of its shape overflows", t->file, t->name);
    uint64_t begin, end;
    if (json_array_size(offs) != 2 || !get_u64(json_array_get(offs, 0), &begin) || !get_u64(json_array_get(offs, 1), &end))
        return cb_fail(err, CB_EFORMAT, "%s: %s: data_offsets are not two whole numbers", t->file, t->name);
    if (begin > end)
        return cb_fail(err, CB_EFORMAT, "%s: %s: data_offsets [%llu,%llu] are reversed", t->file, t->name,
                       (unsigned long long)begin, (unsigned long long)end);
    if (end > n_data)
        return cb_fail(err, CB_EFORMAT, "%s: %s: data_offsets [%llu,%llu] leave the file, which has %llu data bytes", t->file,
                       t->name, (unsigned long long)begin, (unsigned long long)end, (unsigned long long)n_data);
    if (end - begin != need)
        return cb_fail(err, CB_EFORMAT, "%s: %s: data_offsets span %llu bytes, its shape and %s need %llu", t->file, t->name,
                       (unsigned long long)(end - begin), dt, (unsigned long long)need);
    t->data = data + begin;
    t->bytes = need;
    return 0;
}

static int by_data(const void *a, const void *b)
{
    const cb_tensor *x = a, *y = b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int check_overlap(const cb_st *s, const uint8_t *data, cb_err *err)
{
    const cb_tensor *last = NULL; /* of those that have bytes */
    for (int i = 0; i < s->n_tensors; i++) {
        const cb_tensor *t = &s->tensors[i];
        if (!t->bytes) continue;
        if (last && t->data < last->data + last->bytes)
            return cb_fail(err, CB_EFORMAT, "%s: %s [%llu,%llu] and %s [%llu,%llu] overlap", t->file, last->name,
                           (unsigned long long)(last->data - data), (unsigned long long)(last->data - data + last->bytes),
                           t->name, (unsigned long long)(t->data - data),
                           (unsigned long long)(t->data - data + t->bytes));
        last = t;
    }
    return 0;
}

/* Fills s from the header's JSON object. */
static int parse_header(cb_st *s, json_t *root, const uint8_t *data, uint64_t n_data, const char *name, cb_err *err)
{
    size_t n = json_object_size(root), n_names = strlen(name) + 1;
    const char *key;
    json_t *v;
    if (n > MAX_TENSORS) return cb_fail(err, CB_EFORMAT, "%s: %zu tensors, the limit is %d", name, n, MAX_TENSORS);
    json_object_foreach(root, key, v)
    {
        size_t len = strlen(key);
        if (len > MAX_NAME)
            return cb_fail(err, CB_EFORMAT, "%s: tensor name %.60s... has %zu bytes, the limit is %d", name, key, len, MAX_NAME);
        n_names += len + 1;
    }
    if (!(s->tensors = cb_alloc_array(n, sizeof *s->tensors)) || !(s->strings = cb_alloc(n_names)))
        return cb_fail(err, CB_ENOMEM, "%s: no memory for %zu tensors", name, n);
    char *file = s->strings, *put = file + strlen(name) + 1;
    memcpy(file, name, strlen(name) + 1);
    json_object_foreach(root, key, v)
    {
        if (!strcmp(key, "__metadata__")) continue;
        cb_tensor *t = &s->tensors[s->n_tensors];
        size_t len = strlen(key) + 1;
        t->file = file;
        t->name = memcpy(put, key, len);
        put += len;
        int rc = parse_tensor(t, v, data, n_data, err);
        if (rc < 0) return rc;
        s->n_tensors++;
    }
    qsort(s->tensors, (size_t)s->n_tensors, sizeof *s->tensors, by_data);
    return check_overlap(s, data, err);
}

int cb_st_parse(cb_st *s, const uint8_t *data, size_t n, const char *name, cb_err *err)
{
    s->strings = NULL;
    s->tensors = NULL;
    s->n_tensors = 0;
    if (n < 8) return cb_fail(err, CB_EFORMAT, "%s: %zu bytes are too few for a safetensors file", name, n);
    uint64_t h = load_u64le(data);
    if (h > MAX_HEADER)
        return cb_fail(err, CB_EFORMAT, "%s: header of %llu bytes, the limit is %d", name, (unsigned long long)h, MAX_HEADER);
    if (h > n - 8)
        return cb_fail(err, CB_EFORMAT, "%s: header of %llu bytes in a file of %zu: truncated", name, (unsigned long long)h, n);
    json_error_t je = {0};
    if (count_byte(data + 8, (size_t)h, ',') > MAX_COMMAS)
        return cb_fail(err, CB_EFORMAT, "%s: a header of more than %d values", name, MAX_COMMAS);
    /* A name that stands twice would hide a tensor, so here, unlike in other JSON, duplicates are an error. */
    json_t *root = json_loadb((const char *)data + 8, (size_t)h, JSON_REJECT_DUPLICATES, &je);
    int rc;
    if (!root && !je.text[0]) rc = cb_fail(err, CB_ENOMEM, "%s: no memory for a header of %llu bytes", name, (unsigned long long)h);
    else if (!root)
        rc = cb_fail(err, CB_EFORMAT, "%s: header: line %d, column %d: %s", name, je.line, je.column, je.text);
    else if (!json_is_object(root))
        rc = cb_fail(err, CB_EFORMAT, "%s: the header is not a JSON object", name);
    else
        rc = parse_header(s, root, data + 8 + h, n - 8 - h, name, err);
    json_decref(root);
    if (rc < 0) {
        cb_free(s->strings);
        cb_free(s->tensors);
        s->strings = NULL;
        s->tensors = NULL;
        s->n_tensors = 0;
    }
    return rc;
}

int cb_st_open(cb_st *s, const char *dir, const char *name, cb_err *err)
{
    *s = (cb_st){0};
    int rc = cb_map_open(&s->map, dir, name, err);
    if (rc < 0) return rc;
    if ((rc = cb_st_parse(s, s->map.data, s->map.n, name, err)) < 0) cb_st_close(s);
    return rc;
}

void cb_st_close(cb_st *s)
{
    cb_map_close(&s->map);
    cb_free(s->strings);
    cb_free(s->tensors);
    *s = (cb_st){0};
}
