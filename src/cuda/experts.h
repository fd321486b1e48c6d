/* experts.h: products of lists of experts by k_experts (experts.cu). */
#ifndef CB_CUDA_EXPERTS_H
#define CB_CUDA_EXPERTS_H
#include "cuda/abi.h"
#include <stdbool.h>

/* The kernel for this matrix (CU_EXPERTS_...), or -1. */
enum {
#define CU_EXPERTS_NAME(name, ...) CU_EXPERTS_##name,
    CU_EXPERT_FORMATS(CU_EXPERTS_NAME)
#undef CU_EXPERTS_NAME
    CU_N_EXPERTS
};
int cu_experts_format(const cu_weight *w);

/* Arguments for the n products p[0 .. n-1], of one list, whose entries have at most tile_rows rows each and which has at most `entries` of them, and
 * the shared memory they take. false: k_experts cannot do all of them in one launch. */
bool cu_experts_cut(cu_experts *a, const cu_linear *const *p, int n, int max_shared, int tile_rows, int entries, unsigned *shared);
#endif
