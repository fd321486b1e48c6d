/* plan.h: a forward pass recorded once as a flat array of operations. A family (src/model/) records it through builder.h;
 * a backend walks it each step. The number of rows of a step is the only unknown. Everything here is plain data and never
 * changes after pb_finish(). Read builder.h next. */
#ifndef CB_PLAN_H
#define CB_PLAN_H
#include "base/mem.h"
#include "io/weights.h"
#include "plan/opkind.h"

/* Index of a value in plan->values; negative: none. */
typedef int cb_val;

typedef struct cb_value {
    int width;          /* f32 per row; for planes: inputs k */
    int group, pack;    /* planes (group > 0): see kernels.h cb_qrows */
    bool pair;          /* planes: twice the rows, the second half for remainders, and an int32 flag a row: who has one */
    bool wanted;        /* one row per wanted row, not per row of the step */
    int slots;          /* > 1: that many rows per row of the step (one per expert of a token) */
    bool is_logits;     /* lives in the caller's logits array */
    size_t row_bytes;   /* memory per row */
    size_t offset;      /* bytes from the start of scratch, times max_rows (values whose lives do not meet share memory) */
    int first, last;    /* op indexes between which it lives */
} cb_value;

/* Bytes of the planes of one row of `width` activations: whole blocks of 64*pack, high and low (kernels.h, cb_plane_stride). */
static inline size_t cb_plan_plane_stride(int width, int pack)
{
    return (size_t)((width + 64 * pack - 1) / (64 * pack)) * 128 * (size_t)pack;
}

/* A weight of the plan, as stored. */
typedef struct cb_weight {
    const char *name;    /* full tensor or module name */
    bool is_vector;
    cb_matrix matrix;    /* when a matrix */
    const cb_tensor *tensor; /* when a vector: F32, F16 or BF16, n elements */
    int n;
    bool add_one;        /* the vector is used as 1 + w (Gemma 3 norms) */
} cb_weight;

/* KV state of one attention layer. */
typedef struct cb_kv_state {
    int n_heads, dim;
    int window;          /* 0: all earlier tokens; else the last `window` tokens, the query's own included */
    int group;           /* states of one group share block tables: 0 .. n_kv_groups-1 */
} cb_kv_state;

/* State that a layer carries from token to token, per session: the rows before this one for a convolution ([taps-1][width]
 * f32), the matrices of a delta rule ([value heads][value dims][key dims] f32). Zero before the first token. */
typedef struct cb_rec_state {
    size_t floats;
} cb_rec_state;

/* Keys seen by layers of one group. */
typedef struct cb_kv_group {
    int window;
} cb_kv_group;

typedef struct cb_rope_table {
    int n_pairs;
    double *freq;        /* [n_pairs], radians per position */
} cb_rope_table;

enum { CB_MAX_IN = 3, CB_MAX_KV_GROUPS = 4, CB_MAX_EXPERTS = 1024, CB_MAX_TOP_K = 64 };

typedef struct cb_op {
    cb_op_kind kind;
    const char *name;    /* "layers.3.self_attn.q_proj" */
    cb_val in[CB_MAX_IN], out;
    int w[2];
    int n[6];
    float f[2];
    bool row_wise;       /* row r of every input decides row r of the output: rows split among threads */
    bool barrier;        /* all threads must meet before it */
} cb_op;

typedef struct cb_plan {
    cb_arena arena;      /* owns everything below */
    const char *family;
    cb_op *ops;
    int n_ops;
    cb_value *values;
    int n_values;
    cb_weight *weights;
    int n_weights;
    cb_kv_state *kv;
    int n_kv;
    cb_rec_state *rec;
    int n_rec;
    int max_experts, max_top_k; /* 0: no experts */
    cb_kv_group kv_groups[CB_MAX_KV_GROUPS];
    int n_kv_groups;
    cb_rope_table *ropes;
    int n_ropes;
    int n_vocab, ctx_trained;
    size_t scratch_row_bytes; /* all values of one row */
    uint64_t n_params, weight_bytes;
    int n_skipped;            /* tensors of parts that are not run (a vision tower, a draft head), left unread by name */
    uint64_t skipped_bytes;
} cb_plan;

void cb_plan_close(cb_plan *p);
const char *cb_op_kind_name(cb_op_kind k);
/* Weight bytes an op reads in a step, and multiply-adds times two per row. */
uint64_t cb_op_bytes(const cb_plan *p, const cb_op *op);
uint64_t cb_op_flops(const cb_plan *p, const cb_op *op);
/* One op a line. */
void cb_plan_print(const cb_plan *p, cb_buf *out);
/* Bytes of KV cache one block of 64 tokens takes in one layer; in all layers of a group. */
uint64_t cb_kv_block_bytes(const cb_kv_state *s);
uint64_t cb_plan_kv_block_bytes(const cb_plan *p, int group);
#endif
