/* builder_int.h: the builder from inside. builder.c keeps names, config and weights; record.c and record_hybrid.c append
 * operations; leftovers.c looks at what stays unread. */
#ifndef CB_PLAN_BUILDER_INT_H
#define CB_PLAN_BUILDER_INT_H
#include "plan/builder.h"

enum { PB_MAX_OPS = 65536, PB_MAX_NAME = 512, PB_QUANTS = 4 };

typedef struct pb_known {
    const char *name;
    enum { PB_KNOWN_START, PB_KNOWN_END, PB_KNOWN_READ } kind; /* name begins so, ends so; is it, and was read by the family */
} pb_known;

struct cb_builder {
    const cb_config *config;
    const cb_weights *weights;
    cb_plan *plan;
    cb_err err;
    char scope[PB_MAX_NAME];
    int cap_ops, cap_values, cap_weights, cap_kv, cap_ropes, cap_rec, cap_known;
    pb_known *known;            /* tensors that no operation needs to read */
    int n_known;
    struct {
        cb_val of, out;
    } quants[PB_QUANTS];        /* the latest quantisations, reused while their inputs are unchanged; of < 0: none */
    int next_quant;             /* the one to forget next */
    float remainder;            /* threshold of the next quantisations */
    cb_val rot_of, rot_out;     /* the latest rotation, likewise */
    pb_rotation rotation;
};

/* Room for entry n of an array in the plan's arena (the old copy stays behind; doubling bounds the waste). NULL: failed. */
void *pb_grow(cb_builder *b, void *old, int n, int *cap, size_t size);
cb_val pb_add_value(cb_builder *b, int width, bool wanted);
cb_op *pb_add_op(cb_builder *b, cb_op_kind kind, const char *name, cb_val in0, cb_val in1, cb_val out);
/* Scope and name joined, in the arena. */
char *pb_full_name(cb_builder *b, const char *name);
/* What an op is called: the weight's name without the parts that every name has. */
const char *pb_op_name(const char *full);
/* A vector of n floats; CB_EFORMAT names it when absent or of another size. Index, or -1. */
int pb_vector_weight(cb_builder *b, const char *name, int n, bool add_one);
/* A matrix; a tied one is one weight used twice. part/parts: rows part*rows.. of a stored matrix of parts*rows. */
int pb_matrix_weight(cb_builder *b, const char *path, int64_t stack, int64_t rows, int64_t cols, int part, int parts);
/* x rotated with the signs of module `path`; back: the inverse. Forward rotations are shared by neighbours. */
cb_val pb_hadamard(cb_builder *b, cb_val x, const char *path, bool back);
/* Counts the tensors that are skipped; a failure names the first one that no operation reads and nobody skips. */
void pb_check_leftovers(cb_builder *b);
/* The planes of x that a matrix of this format wants; shared by neighbours that want the same. */
cb_val pb_quant(cb_builder *b, cb_val x, const cb_matrix *m);

static inline const cb_value *pb_value(const cb_builder *b, cb_val v) { return &b->plan->values[v]; }
static inline bool pb_bad(const cb_builder *b, cb_val v) { return !pb_ok(b) || v < 0; }
/* Name of the latest op: small ops are named after the one that made their input. */
/* The name of the op that made a value. */
static inline const char *pb_maker_name(const cb_builder *b, cb_val v)
{
    for (int i = b->plan->n_ops - 1; i >= 0; i--)
        if (b->plan->ops[i].out == v) return b->plan->ops[i].name;
    return "";
}
static inline const char *pb_last_name(const cb_builder *b) { return b->plan->ops[b->plan->n_ops - 1].name; }
#endif
