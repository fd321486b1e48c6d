#include "io/gguf.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Bytes not yet read. Every taking function checks `left` first. */
typedef struct reader {
    const uint8_t *p;
    uint64_t left;
} reader;

static bool take(reader *r, void *out, size_t n)
{
    if (r->left < n) return false;
    memcpy(out, r->p, n);
    r->p += n;
    r->left -= n;
    return true;
}

static bool skip(reader *r, uint64_t n)
{
    if (r->left < n) return false;
    r->p += n;
    r->left -= n;
    return true;
}

static bool take_text(reader *r, const char **s, uint64_t *n)
{
    if (!take(r, n, 8)) return false;
    *s = (const char *)r->p;
    return skip(r, *n);
}

static const uint8_t value_bytes[CB_GV_N] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
static const char *const value_names[CB_GV_N] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                                 "bool", "string", "array", "u64", "i64", "f64"};

/* A name that can be shown and compared as a C string. */
static char *take_name(cb_gguf *g, reader *r, const char *what, uint64_t i, cb_err *err)
{
    const char *s;
    uint64_t n;
    if (!take_text(r, &s, &n)) {
        cb_fail(err, CB_EFORMAT, "%s: the file ends inside the name of %s %" PRIu64, g->file, what, i);
        return NULL;
    }
    if (!n || n > CB_GGUF_MAX_NAME) {
        cb_fail(err, CB_EFORMAT, "%s: the name of %s %" PRIu64 " has %" PRIu64 " bytes, allowed are 1 to %d", g->file, what,
                i, n, CB_GGUF_MAX_NAME);
        return NULL;
    }
    for (size_t k = 0; k < n; k++)
        if (s[k] < 0x20 || s[k] > 0x7e) { /* char may be signed: both ways, bytes above 127 are refused */
            cb_fail(err, CB_EFORMAT, "%s: the name of %s %" PRIu64 " is not printable ASCII", g->file, what, i);
            return NULL;
        }
    char *name = cb_arena_strndup(&g->arena, s, n);
    if (!name) cb_fail(err, CB_ENOMEM, "%s: no memory for names", g->file);
    return name;
}

/* ---- keys ---- */

static int read_value(cb_gguf *g, reader *r, cb_gguf_kv *kv, cb_err *err)
{
    uint32_t type;
    kv->count = 1;
    if (!take(r, &type, 4)) return cb_fail(err, CB_EFORMAT, "%s: the file ends inside key %s", g->file, kv->key);
    kv->is_array = type == CB_GV_ARRAY;
    if (kv->is_array && (!take(r, &type, 4) || !take(r, &kv->count, 8)))
        return cb_fail(err, CB_EFORMAT, "%s: the file ends inside key %s", g->file, kv->key);
    if (type >= CB_GV_N)
        return cb_fail(err, CB_EFORMAT, "%s: key %s has the unknown type %" PRIu32, g->file, kv->key, type);
    if (type == CB_GV_ARRAY) return cb_fail(err, CB_EFORMAT, "%s: key %s is an array of arrays", g->file, kv->key);
    kv->type = type;
    kv->data = r->p;

    uint64_t least = type == CB_GV_STRING ? 8 : value_bytes[type];
    if (kv->count > r->left / least)
        return cb_fail(err, CB_EFORMAT, "%s: key %s holds %" PRIu64 " values of type %s, but only %" PRIu64 " bytes follow",
                       g->file, kv->key, kv->count, value_names[type], r->left);
    if (type != CB_GV_STRING) {
        skip(r, kv->count * least);
        return 0;
    }
    for (uint64_t i = 0; i < kv->count; i++) {
        const char *s;
        uint64_t n;
        if (!take_text(r, &s, &n))
            return cb_fail(err, CB_EFORMAT, "%s: string %" PRIu64 " of key %s ends beyond the file", g->file, i, kv->key);
    }
    return 0;
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const cb_gguf_kv *)a)->key, ((const cb_gguf_kv *)b)->key);
}

static int read_keys(cb_gguf *g, reader *r, uint64_t n, cb_err *err)
{
    if (n > r->left / 13 || n > CB_GGUF_MAX_KEYS) /* name length, type, one byte */
        return cb_fail(err, CB_EFORMAT, "%s: %" PRIu64 " keys in %" PRIu64 " bytes (at most %d are allowed)", g->file, n,
                       r->left, CB_GGUF_MAX_KEYS);
    g->keys = cb_arena_get(&g->arena, n * sizeof *g->keys);
    if (!g->keys) return cb_fail(err, CB_ENOMEM, "%s: no memory for %" PRIu64 " keys", g->file, n);
    for (uint64_t i = 0; i < n; i++) {
        cb_gguf_kv *kv = &g->keys[i];
        if (!(kv->key = take_name(g, r, "key", i, err))) return cb_arena_ok(&g->arena) ? CB_EFORMAT : CB_ENOMEM;
        int rc = read_value(g, r, kv, err);
        if (rc < 0) return rc;
    }
    g->n_keys = (int)n;
    if (n) qsort(g->keys, n, sizeof *g->keys, by_key);
    for (uint64_t i = 1; i < n; i++)
        if (!strcmp(g->keys[i - 1].key, g->keys[i].key))
            return cb_fail(err, CB_EFORMAT, "%s: key %s occurs twice", g->file, g->keys[i].key);
    return 0;
}

/* ---- tensors ---- */

static int check_shape(const cb_gguf *g, cb_gguf_tensor *t, cb_err *err)
{
    t->rows = 1;
    for (int i = 0; i < t->n_dims; i++) {
        if (t->dims[i] <= 0)
            return cb_fail(err, CB_EFORMAT, "%s: tensor %s: dimension %d is %" PRId64, g->file, t->name, i, t->dims[i]);
        if (i && __builtin_mul_overflow(t->rows, t->dims[i], &t->rows))
            return cb_fail(err, CB_EFORMAT, "%s: tensor %s: its dimensions overflow", g->file, t->name);
    }
    t->cols = t->dims[0];
    if (t->cols % t->type->block)
        return cb_fail(err, CB_EFORMAT, "%s: tensor %s: rows of %" PRId64 " are not a multiple of the %s block of %d",
                       g->file, t->name, t->cols, t->type->name, t->type->block);
    if (__builtin_mul_overflow((uint64_t)(t->cols / t->type->block), (uint64_t)t->type->bytes, &t->row_bytes) ||
        __builtin_mul_overflow(t->row_bytes, (uint64_t)t->rows, &t->bytes))
        return cb_fail(err, CB_EFORMAT, "%s: tensor %s: its size overflows", g->file, t->name);
    return 0;
}

static int read_tensor(cb_gguf *g, reader *r, cb_gguf_tensor *t, uint64_t i, uint64_t alignment, cb_err *err)
{
    uint32_t n_dims, type;
    if (!(t->name = take_name(g, r, "tensor", i, err))) return cb_arena_ok(&g->arena) ? CB_EFORMAT : CB_ENOMEM;
    if (!take(r, &n_dims, 4)) return cb_fail(err, CB_EFORMAT, "%s: the file ends inside tensor %s", g->file, t->name);
    if (n_dims < 1 || n_dims > CB_GGUF_MAX_DIMS)
        return cb_fail(err, CB_EFORMAT, "%s: tensor %s has %" PRIu32 " dimensions, allowed are 1 to %d", g->file, t->name,
                       n_dims, CB_GGUF_MAX_DIMS);
    t->n_dims = (int)n_dims;
    for (int k = 0; k < CB_GGUF_MAX_DIMS; k++) t->dims[k] = 1;
    if (!take(r, t->dims, 8 * n_dims) || !take(r, &type, 4) || !take(r, &t->offset, 8))
        return cb_fail(err, CB_EFORMAT, "%s: the file ends inside tensor %s", g->file, t->name);
    if (!(t->type = cb_gblock_find(type)))
        return cb_fail(err, CB_EFORMAT, "%s: tensor %s has the unknown type %" PRIu32, g->file, t->name, type);
    if (!t->type->block)
        return cb_fail(err, CB_EFORMAT, "%s: tensor %s has type %s, which is not supported", g->file, t->name,
                       t->type->name);
    if (t->offset % alignment)
        return cb_fail(err, CB_EFORMAT, "%s: tensor %s: offset %" PRIu64 " is not a multiple of the alignment %" PRIu64,
                       g->file, t->name, t->offset, alignment);
    return check_shape(g, t, err);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const cb_gguf_tensor *)a)->name, ((const cb_gguf_tensor *)b)->name);
}

static int by_offset(const void *a, const void *b)
{
    uint64_t x = ((const cb_gguf_tensor *)a)->offset, y = ((const cb_gguf_tensor *)b)->offset;
    return x < y ? -1 : x > y;
}

/* Every tensor lies inside the n bytes of data, and none over another. Leaves them sorted by name. */
static int place_tensors(cb_gguf *g, const uint8_t *data, uint64_t n, cb_err *err)
{
    if (!g->n_tensors) return 0;
    for (int i = 0; i < g->n_tensors; i++) {
        cb_gguf_tensor *t = &g->tensors[i];
        if (t->offset > n || t->bytes > n - t->offset)
            return cb_fail(err, CB_EFORMAT,
                           "%s: tensor %s: %" PRIu64 " bytes at offset %" PRIu64 ", but the file holds %" PRIu64
                           " bytes of data (is it cut short?)",
                           g->file, t->name, t->bytes, t->offset, n);
        t->data = data + t->offset;
    }
    qsort(g->tensors, (size_t)g->n_tensors, sizeof *g->tensors, by_offset);
    for (int i = 1; i < g->n_tensors; i++)
        if (g->tensors[i].offset - g->tensors[i - 1].offset < g->tensors[i - 1].bytes)
            return cb_fail(err, CB_EFORMAT, "%s: tensors %s and %s overlap", g->file, g->tensors[i - 1].name,
                           g->tensors[i].name);
    qsort(g->tensors, (size_t)g->n_tensors, sizeof *g->tensors, by_name);
    for (int i = 1; i < g->n_tensors; i++)
        if (!strcmp(g->tensors[i - 1].name, g->tensors[i].name))
            return cb_fail(err, CB_EFORMAT, "%s: tensor %s occurs twice", g->file, g->tensors[i].name);
    return 0;
}

static int read_tensors(cb_gguf *g, reader *r, uint64_t n, cb_err *err)
{
    int64_t alignment = 32, parts = 1;
    int rc = cb_gguf_int(g, "general.alignment", 1, UINT32_MAX, &alignment, err);
    if (rc < 0 || (rc = cb_gguf_int(g, "split.count", 0, INT64_MAX, &parts, err)) < 0) return rc;
    if (alignment & (alignment - 1))
        return cb_fail(err, CB_EFORMAT, "%s: key general.alignment is %" PRId64 ", not a power of two", g->file, alignment);
    if (parts > 1)
        return cb_fail(err, CB_EFORMAT, "%s: key split.count: this is one of %" PRId64 " parts; merge them first", g->file,
                       parts);
    if (n > r->left / 32 || n > CB_GGUF_MAX_TENSORS) /* name length, count, one dimension, type, offset */
        return cb_fail(err, CB_EFORMAT, "%s: %" PRIu64 " tensors in %" PRIu64 " bytes (at most %d are allowed)", g->file, n,
                       r->left, CB_GGUF_MAX_TENSORS);
    g->tensors = cb_arena_get(&g->arena, n * sizeof *g->tensors);
    if (!g->tensors) return cb_fail(err, CB_ENOMEM, "%s: no memory for %" PRIu64 " tensors", g->file, n);
    for (uint64_t i = 0; i < n; i++)
        if ((rc = read_tensor(g, r, &g->tensors[i], i, (uint64_t)alignment, err)) < 0) return rc;
    g->n_tensors = (int)n;

    uint64_t pos = (uint64_t)(r->p - g->map.data), pad = (0 - pos) & ((uint64_t)alignment - 1);
    if (n && !skip(r, pad)) return cb_fail(err, CB_EFORMAT, "%s: the file ends before the tensor data", g->file);
    return place_tensors(g, r->p, r->left, err);
}

/* ---- the whole file ---- */

static int parse(cb_gguf *g, cb_err *err)
{
    reader r = {g->map.data, g->map.n};
    uint8_t magic[4];
    uint64_t n_tensors, n_keys;
    if (!take(&r, magic, 4) || memcmp(magic, "GGUF", 4)) return cb_fail(err, CB_EFORMAT, "%s: not a GGUF file", g->file);
    if (!take(&r, &g->version, 4)) return cb_fail(err, CB_EFORMAT, "%s: the file ends inside its header", g->file);
    if (g->version && !(g->version & 0xffff))
        return cb_fail(err, CB_EFORMAT, "%s: a big-endian GGUF file; only little-endian ones are supported", g->file);
    if (g->version != 2 && g->version != 3)
        return cb_fail(err, CB_EFORMAT, "%s: GGUF version %" PRIu32 "; versions 2 and 3 are supported", g->file, g->version);
    if (!take(&r, &n_tensors, 8) || !take(&r, &n_keys, 8))
        return cb_fail(err, CB_EFORMAT, "%s: the file ends inside its header", g->file);
    int rc = read_keys(g, &r, n_keys, err);
    return rc < 0 ? rc : read_tensors(g, &r, n_tensors, err);
}

static int begin(cb_gguf *g, const char *path, cb_err *err)
{
    const char *slash = strrchr(path, '/');
    *g = (cb_gguf){0};
    cb_arena_init(&g->arena, 0);
    g->file = cb_arena_strndup(&g->arena, slash ? slash + 1 : path, strlen(slash ? slash + 1 : path));
    return g->file ? 0 : cb_fail(err, CB_ENOMEM, "%s: no memory", path);
}

int cb_gguf_open(cb_gguf *g, const char *path, cb_err *err)
{
    int rc = begin(g, path, err);
    if (rc == 0 && (rc = cb_map_open(&g->map, NULL, path, err)) == 0) rc = parse(g, err);
    if (rc < 0) cb_gguf_close(g);
    return rc;
}

int cb_gguf_parse(cb_gguf *g, const uint8_t *data, size_t n, const char *name, cb_err *err)
{
    int rc = begin(g, name, err);
    if (rc == 0) {
        cb_map whole = {data, n};
        g->map = whole;
        rc = parse(g, err);
        g->map = (cb_map){0}; /* not ours to unmap */
    }
    if (rc < 0) cb_gguf_close(g);
    return rc;
}

void cb_gguf_close(cb_gguf *g)
{
    cb_map_close(&g->map);
    cb_arena_fini(&g->arena);
    *g = (cb_gguf){0};
}

/* ---- access ---- */

const cb_gguf_kv *cb_gguf_find(const cb_gguf *g, const char *key)
{
    cb_gguf_kv want = {.key = (char *)(uintptr_t)key};
    return g->n_keys ? bsearch(&want, g->keys, (size_t)g->n_keys, sizeof want, by_key) : NULL;
}

const cb_gguf_tensor *cb_gguf_tensor_find(const cb_gguf *g, const char *name)
{
    cb_gguf_tensor want = {.name = (char *)(uintptr_t)name};
    return g->n_tensors ? bsearch(&want, g->tensors, (size_t)g->n_tensors, sizeof want, by_name) : NULL;
}

static int wrong_type(const cb_gguf *g, const cb_gguf_kv *kv, const char *want, cb_err *err)
{
    return cb_fail(err, CB_EFORMAT, "%s: key %s is %s%s, not %s", g->file, kv->key, kv->is_array ? "an array of " : "",
                   value_names[kv->type], want);
}

int cb_gguf_int(const cb_gguf *g, const char *key, int64_t lo, int64_t hi, int64_t *v, cb_err *err)
{
    const cb_gguf_kv *kv = cb_gguf_find(g, key);
    if (!kv) return 0;
    if (kv->is_array || kv->type == CB_GV_F32 || kv->type == CB_GV_F64 || kv->type == CB_GV_BOOL || kv->type == CB_GV_STRING)
        return wrong_type(g, kv, "an integer", err);
    uint64_t u = 0;
    int n = value_bytes[kv->type];
    memcpy(&u, kv->data, (size_t)n);
    bool is_signed = kv->type == CB_GV_I8 || kv->type == CB_GV_I16 || kv->type == CB_GV_I32 || kv->type == CB_GV_I64;
    int64_t i = is_signed ? (int64_t)(u << (64 - 8 * n)) >> (64 - 8 * n) : u > INT64_MAX ? INT64_MAX : (int64_t)u;
    if (i < lo || i > hi)
        return cb_fail(err, CB_EFORMAT, "%s: key %s is %" PRId64 ", allowed are %" PRId64 " to %" PRId64, g->file, key, i,
                       lo, hi);
    *v = i;
    return 1;
}

int cb_gguf_real(const cb_gguf *g, const char *key, double *v, cb_err *err)
{
    const cb_gguf_kv *kv = cb_gguf_find(g, key);
    if (!kv) return 0;
    if (kv->is_array || (kv->type != CB_GV_F32 && kv->type != CB_GV_F64)) return wrong_type(g, kv, "a real number", err);
    float f;
    double d;
    memcpy(&f, kv->data, 4);
    if (kv->type == CB_GV_F64) memcpy(&d, kv->data, 8);
    else d = (double)f;
    if (!isfinite(d)) return cb_fail(err, CB_EFORMAT, "%s: key %s is not a finite number", g->file, key);
    *v = d;
    return 1;
}

int cb_gguf_bool(const cb_gguf *g, const char *key, bool *v, cb_err *err)
{
    const cb_gguf_kv *kv = cb_gguf_find(g, key);
    if (!kv) return 0;
    if (kv->is_array || kv->type != CB_GV_BOOL) return wrong_type(g, kv, "true or false", err);
    if (kv->data[0] > 1) return cb_fail(err, CB_EFORMAT, "%s: key %s: %d is no truth value", g->file, key, kv->data[0]);
    *v = kv->data[0];
    return 1;
}

int cb_gguf_text(const cb_gguf *g, const char *key, const char **s, size_t *n, cb_err *err)
{
    const cb_gguf_kv *kv = cb_gguf_find(g, key);
    if (!kv) return 0;
    if (kv->is_array || kv->type != CB_GV_STRING) return wrong_type(g, kv, "a string", err);
    cb_gguf_next_text(kv->data, s, n);
    return 1;
}

int cb_gguf_array(const cb_gguf *g, const char *key, uint32_t type, const cb_gguf_kv **out, cb_err *err)
{
    const cb_gguf_kv *kv = cb_gguf_find(g, key);
    if (!kv) return 0;
    if (!kv->is_array || kv->type != type) {
        char want[32];
        snprintf(want, sizeof want, "an array of %s", value_names[type]);
        return wrong_type(g, kv, want, err);
    }
    *out = kv;
    return 1;
}

const uint8_t *cb_gguf_next_text(const uint8_t *p, const char **s, size_t *n)
{
    uint64_t len;
    memcpy(&len, p, 8);
    *s = (const char *)p + 8;
    *n = (size_t)len;
    return p + 8 + len;
}
