/* lower.h: sizes that the schedule and the launches agree on. */
#ifndef CB_CUDA_LOWER_H
#define CB_CUDA_LOWER_H
#include "cuda/cuda.h"

/* A schedule being made. */
typedef struct cu_sched {
    const cb_plan *p;
    bool single;     /* for steps of one row */
    uint8_t *done;   /* [n_ops] */
    int32_t *anchor; /* [n_ops]: of the fused pattern that an op belongs to (fuse.h), or -1 */
    int open;        /* every op before it is done */
    int32_t *ahead;  /* steps of so few rows that products of the step's rows stand beside those of experts: [n_ops], of an op how many
                        products follow each other behind it; else NULL */
    int apart, n_apart; /* ops of all layers, when they may be one launch (tape.h); they share none with others */
    bool many;       /* steps of any number of rows: k_rows_many takes chains of one width */
} cu_sched;

/* Does nothing outside the group of n ops read value v once the group has written it? */
bool cu_is_local(const cb_plan *p, const int32_t *group, int n, cb_val v);

/* Rows of an expert that one tile takes, when `n` (row, expert) pairs are routed; and the most tiles there can be. */
static inline int cu_expert_tile(int n) { return n <= 512 ? 4 : 8; }
static inline int cu_max_tiles(int n, int n_experts)
{
    int t = n / cu_expert_tile(n) + n_experts;
    return t < n ? t : n;
}
#endif
