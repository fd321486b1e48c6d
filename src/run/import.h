/* import.h: the parts of cb_import_gguf. A plan says, for each tensor of the MLX checkpoint, which GGUF tensor it comes
 * from and how; making it reads the metadata and scans the blocks, and writes nothing. */
#ifndef CB_RUN_IMPORT_H
#define CB_RUN_IMPORT_H
#include "io/gguf.h"
#include <jansson.h>

typedef struct cb_import_arch cb_import_arch;

/* Numbers of the network, from the GGUF keys. */
typedef struct cb_import_hparams {
    int64_t hidden, layers, ff, heads, kv_heads, head_dim, vocab, context;
    double eps, rope_theta;
} cb_import_hparams;

/* One GGUF tensor and the module it becomes. */
typedef struct cb_import_item {
    const cb_gguf_tensor *src;
    char *name;          /* output, with ".weight" or ".bias" */
    cb_dtype dtype;      /* of the float matrix, or of scales and biases */
    bool quantised;      /* .weight U32, .scales, .biases; group 32 */
    bool vector;         /* [n] instead of [rows][cols] */
    bool minus_one;      /* a Gemma norm: the file holds w+1, the checkpoint w */
    int64_t unpermute;   /* heads whose rows are put back from llama's interleaved order; 0: rows stay */
} cb_import_item;

typedef struct cb_import_plan {
    const cb_gguf *g;
    const cb_import_arch *arch;
    cb_import_hparams hp;
    cb_import_item *items; /* in output order */
    int n_items;
    bool tied;
    uint64_t out_bytes;    /* of all tensors written */
    json_t *config;        /* config.json */
    json_t *generation;    /* generation_config.json */
    cb_arena arena;
} cb_import_plan;

/* Errors: CB_EFORMAT (unsupported architecture, missing or unknown tensor, wrong shape, NaN in a block, ...), CB_ENOMEM. */
int cb_import_plan_make(cb_import_plan *p, const cb_gguf *g, cb_err *err);
void cb_import_plan_fini(cb_import_plan *p);

/* config.json and generation_config.json of a plan whose items are set (import_config.c). */
int cb_import_config(cb_import_plan *p, cb_err *err);
/* Model type, class and tables of the architecture, for import_config.c. */
const char *cb_import_model_type(const cb_import_arch *a);
const char *cb_import_class(const cb_import_arch *a);
/* GGUF key PREFIX.NAME of the architecture, in buf. */
const char *cb_import_key(const cb_import_plan *p, const char *name, char buf[128]);

/* The parts of an item, in the order they are written. */
enum { CB_PART_WEIGHT, CB_PART_SCALES, CB_PART_BIASES };
/* Where converted bytes go. Returns 0 or a negative error with err filled. */
typedef int (*cb_import_put)(void *ctx, const void *p, size_t n, cb_err *err);
/* Converts one part of an item and hands it on in pieces of at most 64 KiB. */
int cb_import_convert(const cb_import_item *it, int part, cb_import_put put, void *ctx, cb_err *err);

/* tokenizer.json and tokenizer_config.json of the file's vocabulary, appended to the buffers (import_text.c). */
int cb_import_tokenizer(const cb_gguf *g, cb_buf *tokenizer, cb_buf *config, cb_err *err);
/* Ids that end a turn or a text, in ids (at most cap); returns how many. */
int cb_import_stop_ids(const cb_gguf *g, int64_t *ids, int cap, cb_err *err);
#endif
