/* cpu.h: the CPU backend's device. cpu.c opens and sizes it, ops.c runs the plan, attention.c its one long operation. */
#ifndef CB_CPU_CPU_H
#define CB_CPU_CPU_H
#include "base/pool.h"
#include "kernels/kernels.h"
#include "plan/backend.h"
#include <stdatomic.h>

/* A weight made ready: what the kernels want to see. */
typedef struct cpu_weight {
    cb_mm mm;          /* matrix: everything but the activations and the output */
    float *vector;     /* vector: f32, 1 added where the plan says so */
    uint8_t *planes;   /* float matrices: private encoded copy */
    float *plane_scales;
} cpu_weight;

/* KV pool of one attention layer: block b, head h starts at base + (b*n_heads + h)*bytes. */
typedef struct cpu_kv {
    uint8_t *base;
    size_t head_bytes; /* K, V, dk, dv of one head in one block */
    size_t pool_bytes;
} cpu_kv;

/* Recurrent state of one layer: slot s starts at base + s*bytes. */
typedef struct cpu_rec {
    uint8_t *base;
    size_t bytes, pool_bytes;
} cpu_rec;

struct cb_dev {
    cb_pool *pool;
    cb_kernels k;
    char label[32];
    const cb_plan *plan;
    cb_limits lim;
    cpu_weight *weights; /* [plan->n_weights] */
    cpu_kv *kv;          /* [plan->n_kv] */
    cpu_rec *rec;        /* [plan->n_rec] */
    int32_t *expert_at;  /* [max_experts+1]: where each expert's slots begin in the sorted list of the current layer */
    uint8_t *scratch;    /* values: offset*max_rows + row*row_bytes */
    size_t scratch_bytes;
    uint8_t *thread_scratch; /* [n_threads][thread_bytes] */
    size_t thread_bytes;
    int32_t *runs;       /* attention: starts of runs of rows of one session, [max_rows+1] */
    float *split;        /* attention: block results when one row's context is shared among threads */
    size_t split_floats;
    /* the step being run */
    const cb_batch *batch;
    int n_runs;
    int split_units;     /* > 0: attention shares each row's context among threads (few rows, long context) */
    int split_blocks;    /* most blocks a row sees */
    atomic_int bad_op;   /* 1 + the first op with a non-finite input; 0: none */
};

/* A step as one thread sees it. */
typedef struct cpu_ctx {
    cb_dev *d;
    const cb_op *op;
    int member, n_members;
    uint8_t *scratch; /* this thread's, 64-byte aligned */
} cpu_ctx;

enum { CPU_ATTN_ROWS = 8, CPU_ATTN_QUERIES = 64 }; /* rows and query heads that share the loads of a KV block */

int cpu_run(cb_dev *d, const cb_batch *b, cb_err *err);
int cpu_probe(cb_dev *d, cb_probe *out, cb_err *err); /* probe.c */
/* Multiply-adds of 16-bit activations and 8-bit codes as this instruction set makes them, from registers. Return how many. */
double cpu_products_avx2(int64_t rounds);
double cpu_products_avx512(int64_t rounds);
double cpu_products_neon(int64_t rounds);
void cpu_kv_put(const cpu_ctx *c);
void cpu_attention(const cpu_ctx *c);
/* Second half of a shared attention: merges the stored block results in ascending order. */
void cpu_attention_merge(const cpu_ctx *c);
/* Bytes a thread needs for attention over heads of `dim`. */
size_t cpu_attention_scratch(const cb_plan *p);
/* product.c: k.linear for outputs n0..n1 of the op's weight (matrix `mat` of its stack); mm->codes NULL when it stays in the
 * checkpoint as it is. Weights with values that are not finite are reported. */
void cpu_product(const cpu_ctx *c, const cb_mm *mm, int64_t mat, int64_t n0, int64_t n1);
size_t cpu_product_scratch(const cb_matrix *m);
/* hybrid.c */
void cpu_conv(const cpu_ctx *c);
void cpu_delta(const cpu_ctx *c);
/* Bytes a thread needs for a CB_DELTA. */
size_t cpu_delta_scratch(const cb_op *o);
void cpu_route(const cpu_ctx *c, int row);
void cpu_moe_sort(const cpu_ctx *c);
void cpu_moe_linear(const cpu_ctx *c);
void cpu_moe_sum(const cpu_ctx *c, int row);
/* Finds the runs of the batch: rows of one session at consecutive positions. */
void cpu_find_runs(cb_dev *d, const cb_batch *b);

static inline void *cpu_value(const cb_dev *d, cb_val v)
{
    const cb_value *x = &d->plan->values[v];
    return x->is_logits ? (void *)d->batch->logits : d->scratch + x->offset * (size_t)d->lim.max_rows;
}
static inline int cpu_slots(const cb_dev *d, cb_val v)
{
    return d->plan->values[v].slots > 1 ? d->plan->values[v].slots : 1;
}
static inline int cpu_rows(const cb_dev *d, cb_val v)
{
    return (d->plan->values[v].wanted ? d->batch->n_wanted : d->batch->n_rows) * cpu_slots(d, v);
}
/* Floats between rows of a value. */
static inline size_t cpu_stride(const cb_dev *d, cb_val v) { return d->plan->values[v].row_bytes / 4; }
static inline float *cpu_row(const cb_dev *d, cb_val v, int row)
{
    return (float *)cpu_value(d, v) + (size_t)row * cpu_stride(d, v);
}
/* Half-open share of n things for this thread; the same n gives the same thread the same things. */
static inline void cpu_share(const cpu_ctx *c, int64_t n, int64_t *from, int64_t *to)
{
    *from = n * c->member / c->n_members;
    *to = n * (c->member + 1) / c->n_members;
}
/* Outputs of a product with n_out rows that are this thread's: whole units of CB_ROW_UNIT, *n0 >= *n1 when there are none. */
static inline void cpu_share_outputs(const cpu_ctx *c, int64_t n_out, int64_t *n0, int64_t *n1)
{
    cpu_share(c, (n_out + CB_ROW_UNIT - 1) / CB_ROW_UNIT, n0, n1);
    *n0 *= CB_ROW_UNIT;
    *n1 = *n1 * CB_ROW_UNIT < n_out ? *n1 * CB_ROW_UNIT : n_out;
}
/* Remembers that the current op met a value that is not finite; the first report stays. */
static inline void cpu_report_bad(const cpu_ctx *c)
{
    int none = 0;
    atomic_compare_exchange_strong(&c->d->bad_op, &none, (int)(c->op - c->d->plan->ops) + 1);
}
/* The planes of a quantised value: planes of all rows, then dx, xs, sum; with `pair` each of twice the rows, and behind them
 * flags. */
cb_qrows cpu_planes(const cb_dev *d, cb_val v);
#endif
