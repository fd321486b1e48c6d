/* quantize.h: the parts of cb_quantize. A plan says which tensors the output has, from which input rows each comes and how it is
 * stored; making it reads names and shapes only. */
#ifndef CB_RUN_QUANTIZE_H
#define CB_RUN_QUANTIZE_H
#include "base/file.h"
#include "base/mem.h"
#include "io/quantize.h"
#include <jansson.h>

/* One output tensor, or the weight, scales, biases (and signs) of one module. */
typedef struct cb_q_item {
    char *name;                 /* with its ".weight" */
    const cb_tensor *src;
    int64_t dims[CB_MAX_DIMS];  /* of the output, before packing */
    int n_dims;
    int64_t stack, rows, cols;  /* it is read as stack * rows rows of cols */
    int64_t src_rows, row0;     /* of each matrix of the source, rows row0 .. row0+rows of src_rows */
    cb_dtype dtype;             /* what its numbers are rounded to */
    bool plus_one;              /* a norm centred on 0 becomes one centred on 1 */
    bool quantised;
    cb_quantizer q;
    bool own_spec;              /* config.json has an entry for it */
    int block;                  /* Hadamard block; 0: not rotated */
    int shard;
} cb_q_item;

typedef struct cb_q_plan {
    const cb_quantize_opts *opts;
    const cb_config *config;
    const cb_weights *weights;
    const char *family;
    cb_quantizer q;             /* of every module without an entry of its own */
    cb_dtype dtype;             /* CB_N_DTYPES: as stored */
    bool tied, plus_one;
    int64_t layers, shared;     /* Gemma 4: the last `shared` layers have no K and V of their own */
    cb_q_item *items;
    int n_items, cap_items, n_shards;
    uint64_t in_bytes, out_bytes, n_params;
    cb_arena arena;
} cb_q_plan;

/* The plan refers to config, weights and opts, which must outlive it. Errors: CB_EFORMAT, CB_EUSAGE, CB_ENOMEM. */
int cb_q_plan_make(cb_q_plan *p, const cb_config *c, const cb_weights *w, const cb_quantize_opts *o, cb_err *err);
void cb_q_plan_fini(cb_q_plan *p);
/* A quantised item's module path, without ".weight", in buf. */
const char *cb_q_path(const cb_q_item *it, char buf[512]);

/* config.json, model.safetensors.index.json and, for a pack, hadamard.json in the folder (quantize_config.c). */
int cb_q_write_config(const cb_q_plan *p, const char *dir, cb_err *err);
/* "model.safetensors" or the name of one of several shards, in buf. */
const char *cb_q_shard_name(const cb_q_plan *p, int shard, char buf[64]);
/* The signs of an input width: +1 or -1 for column i, a function of seed and width only. */
float cb_q_sign(uint64_t seed, int64_t width, int64_t i);

/* x <- H(s . x) in blocks of a row of n, in double (y is scratch for n), rounded once: what a stored row must be so that
 * H(s . input) meets it. */
void cb_q_rotate(float *x, const float *s, double *y, int64_t n, int block);
/* The weight files in the folder (quantize_write.c). */
int cb_q_write_weights(const cb_q_plan *p, const char *dir, cb_err *err);
#endif
