/* gguf.h: reader of one GGUF file (versions 2 and 3, little-endian), mapped and never copied. Open checks everything that
 * the accessors rely on: every length against the bytes that are left before anything is multiplied, key and value types,
 * no duplicate key or tensor, shapes, alignment, every tensor inside the file and none over another. Limits are named
 * below. Messages name the file and the key or tensor. */
#ifndef CB_IO_GGUF_H
#define CB_IO_GGUF_H
#include "base/file.h"
#include "base/mem.h"
#include "io/gguf_blocks.h"

enum { CB_GGUF_MAX_DIMS = 4, CB_GGUF_MAX_KEYS = 65536, CB_GGUF_MAX_TENSORS = 1000000, CB_GGUF_MAX_NAME = 1024 };

/* Value types. */
enum {
    CB_GV_U8, CB_GV_I8, CB_GV_U16, CB_GV_I16, CB_GV_U32, CB_GV_I32, CB_GV_F32, CB_GV_BOOL, CB_GV_STRING, CB_GV_ARRAY,
    CB_GV_U64, CB_GV_I64, CB_GV_F64, CB_GV_N
};

typedef struct cb_gguf_kv {
    char *key;           /* NUL-terminated */
    uint32_t type;       /* CB_GV_...; of the elements when it is an array */
    bool is_array;
    uint64_t count;      /* elements; 1 when it is no array */
    const uint8_t *data; /* the value or elements; strings with their lengths */
} cb_gguf_kv;

typedef struct cb_gguf_tensor {
    char *name;                     /* NUL-terminated, printable */
    const cb_gblock *type;          /* a supported one */
    int n_dims;
    int64_t dims[CB_GGUF_MAX_DIMS]; /* fastest first; ones above n_dims */
    int64_t cols, rows;             /* dims[0], and the product of the others */
    uint64_t row_bytes, bytes;
    uint64_t offset;                /* from the start of the data */
    const uint8_t *data;
} cb_gguf_tensor;

typedef struct cb_gguf {
    cb_map map;
    char *file;                     /* base name, for messages */
    uint32_t version;
    cb_gguf_kv *keys;               /* sorted by key */
    cb_gguf_tensor *tensors;        /* sorted by name */
    int n_keys, n_tensors;
    cb_arena arena;
} cb_gguf;

/* Errors: CB_ENOTFOUND, CB_EIO, CB_EFORMAT, CB_ENOMEM. */
int cb_gguf_open(cb_gguf *g, const char *path, cb_err *err);
/* The same on n bytes in memory that outlive g; `name` is shown in messages. */
int cb_gguf_parse(cb_gguf *g, const uint8_t *data, size_t n, const char *name, cb_err *err);
void cb_gguf_close(cb_gguf *g);

const cb_gguf_kv *cb_gguf_find(const cb_gguf *g, const char *key);            /* NULL when absent */
const cb_gguf_tensor *cb_gguf_tensor_find(const cb_gguf *g, const char *name); /* NULL when absent */

/* Each reads one key: 1 when present, 0 when absent (the value is untouched), CB_EFORMAT on a wrong type or range. */
int cb_gguf_int(const cb_gguf *g, const char *key, int64_t lo, int64_t hi, int64_t *v, cb_err *err); /* any integer type */
int cb_gguf_real(const cb_gguf *g, const char *key, double *v, cb_err *err); /* F32 or F64, finite */
int cb_gguf_bool(const cb_gguf *g, const char *key, bool *v, cb_err *err);
/* *s is borrowed from the map, n bytes of any kind, no NUL after them. */
int cb_gguf_text(const cb_gguf *g, const char *key, const char **s, size_t *n, cb_err *err);
/* An array of `type`: *kv is set. */
int cb_gguf_array(const cb_gguf *g, const char *key, uint32_t type, const cb_gguf_kv **kv, cb_err *err);
/* Walks the strings of an array: start with p = kv->data; returns where the next one starts. */
const uint8_t *cb_gguf_next_text(const uint8_t *p, const char **s, size_t *n);
#endif
