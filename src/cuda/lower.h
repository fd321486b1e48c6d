/* lower.h: which operations and formats have which kernel. */
#ifndef CB_CUDA_LOWER_H
#define CB_CUDA_LOWER_H
#include "cuda/cuda.h"

/* One row decides one row: a step of k_rows. */
bool cu_is_row_op(const cb_op *o);
/* The few-rows kernel of a stored format, its form for up to four rows. */
cu_kernel cu_gemv_kernel(const cu_weight *w);
/* Rows of an expert that one tile takes, when `n` (row, expert) pairs are routed; and the most tiles there can be. */
static inline int cu_expert_tile(int n) { return n <= 512 ? 4 : 8; }
static inline int cu_max_tiles(int n, int n_experts)
{
    int t = n / cu_expert_tile(n) + n_experts;
    return t < n ? t : n;
}
#endif
