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

/* Signed Hadamard rotation of linear inputs (Bonsai 2): modules for which `is_packed` says yes read H(s . x), where s is
 * the module's own <path>.signs; the embedding is rotated back after decoding. */
typedef struct pb_rotation {
    int block;           /* 0: no rotation */
    bool (*is_packed)(void *ctx, const char *path);
    void *ctx;
} pb_rotation;

/* Experts of one layer. */
typedef struct cb_moe_spec {
    int n_experts, top_k, width;   /* width: of one expert's inner layer */
    int route, act;                /* CB_ROUTE_..., CB_ACT_... */
    const char *scale;             /* CB_ROUTE_SOFTMAX_TOP: name of the vector of per-expert scales, or NULL */
    const char *gate, *up, *down;  /* module paths of the stacked matrices */
    const char *fused;             /* one stacked matrix [gate rows | up rows] instead of gate and up, or NULL */
} cb_moe_spec;

/* Gated delta net of one layer. */
typedef struct cb_delta_spec {
    int k_heads, v_heads, k_dim, v_dim, taps;
} cb_delta_spec;

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
const cb_weights *pb_weights(const cb_builder *b);
/* True when the checkpoint has this tensor (full name, scope applied). */
bool pb_has(const cb_builder *b, const char *name);

/* Tensors whose names begin so (scope applied; it ends in a dot; after a "*": that end so) belong to parts that are not run, such
 * as a vision tower, and stay unread. Any other tensor that no operation reads makes pb_finish fail. */
void pb_skip(cb_builder *b, const char *start);
/* The family itself has read tensor `name` (scope applied), though no operation does. */
void pb_was_read(cb_builder *b, const char *name);

/* Prefix of all weight names that follow; printf-like. The op names are the weight names. */
void pb_scope(cb_builder *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Input: embeddings [rows][width] of the step's tokens. */
cb_val pb_embed(cb_builder *b, const char *name, int n_vocab, int width, float scale);
/* cos/sin of this step's positions for given frequencies (n_pairs doubles, copied), times scale. */
cb_val pb_rope_table(cb_builder *b, const char *name, const double *freq, int n_pairs, float scale);
/* weight tensor <name>; add_one: used as 1 + w. */
cb_val pb_rmsnorm(cb_builder *b, cb_val x, const char *name, float eps, bool add_one);
/* The same per head of `dim`, in place; name NULL: no weight. */
cb_val pb_head_norm(cb_builder *b, cb_val x, const char *name, int dim, float eps, bool add_one);
/* y = W x (+ bias when <path>.bias exists). `path` without ".weight". */
cb_val pb_linear(cb_builder *b, cb_val x, const char *path, int n_out);
/* y = residual + W x, in the residual's memory. */
cb_val pb_linear_add(cb_builder *b, cb_val x, const char *path, cb_val residual);
/* Linear inputs that follow get a remainder row (plan.h, CB_QUANT) where one number holds more than this share of the row's
 * energy; 0: always. */
#define PB_REMAINDERS 0.7f
void pb_remainders(cb_builder *b, float share);
cb_val pb_rope(cb_builder *b, cb_val x, const cb_attn_spec *a);
/* Stores k and v, then attends with q [rows][n_heads*dim]. */
cb_val pb_attention(cb_builder *b, cb_val q, cb_val k, cb_val v, const cb_attn_spec *a);
/* Index of the KV state that the latest pb_attention made; -1 before any. */
int pb_last_kv(const cb_builder *b);
/* Attends with q on the state of an earlier layer, which has the same KV heads and dims. */
cb_val pb_attention_on(cb_builder *b, cb_val q, int state, const cb_attn_spec *a);
cb_val pb_glu(cb_builder *b, cb_val gate, cb_val up, int act);
cb_val pb_add(cb_builder *b, cb_val x, cb_val y);
/* The rows whose logits are wanted; what follows works on those only. */
cb_val pb_wanted(cb_builder *b, cb_val x);
/* The last operations: logits from matrix <path>, then softcap when cap > 0. */
void pb_logits(cb_builder *b, cb_val x, const char *path, int n_vocab, float cap);
/* Dims from .. from+take of each head of `dim`. */
cb_val pb_split(cb_builder *b, cb_val x, int dim, int from, int take);
/* y = x * factor, in place. */
cb_val pb_scale(cb_builder *b, cb_val x, float factor);
/* y = x * the only element of tensor <name>, in place. */
cb_val pb_scale_by(cb_builder *b, cb_val x, const char *name);
/* From here on linear inputs are rotated as r says; the embedding made by a later pb_embed is rotated back. */
void pb_set_rotation(cb_builder *b, const pb_rotation *r);
/* silu(causal depthwise convolution), taps from tensor <name> [width][taps] (with a 1 somewhere). */
cb_val pb_conv(cb_builder *b, cb_val x, const char *name, int taps);
/* u [q | k | v] after convolution, decay input a and write input bb [v_heads]; makes [v_heads*v_dim]. */
cb_val pb_delta(cb_builder *b, cb_val u, cb_val a, cb_val bb, const char *a_log, const char *dt_bias, const cb_delta_spec *d);
/* Experts applied to x; `logits` [n_experts]. */
cb_val pb_moe(cb_builder *b, cb_val x, cb_val logits, const cb_moe_spec *m);
/* x + sigmoid(gate) * y, gate one number a row; in x's memory. */
cb_val pb_add_gated(cb_builder *b, cb_val x, cb_val gate, cb_val y);
/* The tensor of this name (scope applied), or NULL. */
const cb_tensor *pb_tensor(const cb_builder *b, const char *name);
void pb_limits(cb_builder *b, int ctx_trained);
#endif
