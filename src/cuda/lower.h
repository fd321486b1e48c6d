/* lower.h: sizes that the schedule and the launches agree on. */
#ifndef CB_CUDA_LOWER_H
#define CB_CUDA_LOWER_H
#include "cuda/cuda.h"

/* Rows of an expert that one tile takes, when `n` (row, expert) pairs are routed; and the most tiles there can be. */
static inline int cu_expert_tile(int n) { return n <= 512 ? 4 : 8; }
static inline int cu_max_tiles(int n, int n_experts)
{
    int t = n / cu_expert_tile(n) + n_experts;
    return t < n ? t : n;
}
#endif
