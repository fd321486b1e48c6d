/* builder.h: how a family records its forward pass. Every pb_ call appends operations and returns the value they make.
 * The first failure is remembered and later calls do nothing; pb_finish() reports it. Shapes are checked here, once, with
 * the tensor named. Nothing here allocates after pb_finish(). */
#ifndef CB_PLAN_BUILDER_H
#define CB_PLAN_BUILDER_H
#include "plan/plan.h"

typedef struct cb_builder cb_builder;

/* Attention of one layer. */
typedef struct cb_attn_spec {
    int n_heads, n_kv_heads, dim;
    int window;     /* 0: full */
    float scale;    /* of the scores */
    cb_val rope;    /* table made by pb_rope_table */
    int n_pairs;    /* rotated pairs of a head; pair i is dims (i, i + half) */
    int half;
} cb_attn_spec;

/* Opens a builder over checkpoint parts that outlive the plan. */
int pb_open(const cb_config *c, const cb_weights *w, const char *family, cb_builder **out, cb_err *err);
/* Assigns memory and barriers, and gives the plan away, or reports the first failure. Frees the builder in any case. */
int pb_finish(cb_builder *b, cb_plan **out, cb_err *err);
/* Records a failure of the family's own checks; text as cb_fail. */
void pb_fail(cb_builder *b, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
bool pb_ok(const cb_builder *b);

/* Config keys of the text part. A missing key without default (pb_need_*) is a failure that names it. */
int pb_need_int(cb_builder *b, const char *key, int lo, int hi);
int pb_int(cb_builder *b, const char *key, int lo, int hi, int otherwise);
double pb_real(cb_builder *b, const char *key, double otherwise);
bool pb_bool(cb_builder *b, const char *key, bool otherwise);
const cb_config *pb_config(const cb_builder *b);
/* True when the checkpoint has this tensor (full name, scope applied). */
bool pb_has(const cb_builder *b, const char *name);

/* Prefix of all weight names that follow; printf-like. The op names are the weight names. */
void pb_scope(cb_builder *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Input: embeddings [rows][width] of the step's tokens. */
cb_val pb_embed(cb_builder *b, const char *name, int n_vocab, int width, float scale);
/* cos/sin of this step's positions for given frequencies (n_pairs doubles, copied). */
cb_val pb_rope_table(cb_builder *b, const char *name, const double *freq, int n_pairs);
/* weight tensor <name>; add_one: used as 1 + w. */
cb_val pb_rmsnorm(cb_builder *b, cb_val x, const char *name, float eps, bool add_one);
/* The same per head of `dim`, in place; name NULL: no weight. */
cb_val pb_head_norm(cb_builder *b, cb_val x, const char *name, int dim, float eps, bool add_one);
/* y = W x (+ bias when <path>.bias exists). `path` without ".weight". */
cb_val pb_linear(cb_builder *b, cb_val x, const char *path, int n_out);
/* y = residual + W x, in the residual's memory. */
cb_val pb_linear_add(cb_builder *b, cb_val x, const char *path, cb_val residual);
cb_val pb_rope(cb_builder *b, cb_val x, const cb_attn_spec *a);
/* Stores k and v, then attends with q [rows][n_heads*dim]. */
cb_val pb_attention(cb_builder *b, cb_val q, cb_val k, cb_val v, const cb_attn_spec *a);
cb_val pb_glu(cb_builder *b, cb_val gate, cb_val up, int act);
cb_val pb_add(cb_builder *b, cb_val x, cb_val y);
/* The rows whose logits are wanted; what follows works on those only. */
cb_val pb_wanted(cb_builder *b, cb_val x);
/* The last operations: logits from matrix <path>, then softcap when cap > 0. */
void pb_logits(cb_builder *b, cb_val x, const char *path, int n_vocab, float cap);
void pb_limits(cb_builder *b, int ctx_trained);
#endif
