/* parity_run.h: runs the sequences of a reference file through an engine, teacher-forced and greedily, and holds the result
 * against limits. Uses cambium.h only. */
#ifndef CB_CLI_PARITY_RUN_H
#define CB_CLI_PARITY_RUN_H
#include "cli/parity_ref.h"

typedef struct cb_parity_limits {
    double kl_mean, dmax; /* gates */
    float margin;         /* the best id must be equal where truth's margin exceeds it */
} cb_parity_limits;
/* The gates for real models: mean KL 1e-5 nats, max |d logit| 0.01, and a margin of twice that, below which two logits
 * that are each off by 0.01 may change places. docs/testing.md says what they rest on. */
extern const cb_parity_limits cb_parity_defaults;

typedef struct cb_parity {
    cb_ref_score score;
    cb_ref_score *cases;             /* [n_cases] of the reference, or NULL: the caller's, filled by cb_parity_run */
    int greedy_runs, greedy_tokens;  /* compared */
    int greedy_ties;                 /* runs that left truth's path at a margin within the limit */
    int greedy_wrong;                /* runs that left it at a larger one */
    uint32_t wrong_run, wrong_at;    /* the first of these */
} cb_parity;

/* Every case in chunks of `chunk` rows (1 .. the engine's max_rows), then every greedy run. full (may be NULL) is truth
 * for all positions, f32 [n_pos][n_vocab]. CB_EFORMAT when the vocabularies differ; errors of cb_step. */
int cb_parity_run(cb_engine *e, const cb_ref *r, const float *full, int chunk, const cb_parity_limits *lim, cb_parity *out,
                  cb_err *err);
/* 0, or CB_EIO with the first gate that is not met (or CB_EIO when the distances contradict each other). */
int cb_parity_gate(const cb_parity *p, const cb_ref *r, const cb_parity_limits *lim, cb_err *err);
/* The column that stands for the reference stack: unmodified transformers or mlx-lm in bf16, else bf16 between operations with
 * exact weights. NULL when the file has none. */
const char *cb_parity_stack(const cb_ref *r);
/* 0, or CB_EIO when we are further from truth than that stack: mean or largest KL, largest difference; or when the best token
 * differs where truth's margin exceeds that stack's largest difference. */
int cb_parity_gate_stack(const cb_parity *p, const cb_ref *r, cb_err *err);
#endif
