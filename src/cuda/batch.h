/* batch.h: products of 17 to 64 rows by k_batch (batch.cu). */
#ifndef CB_CUDA_BATCH_H
#define CB_CUDA_BATCH_H
#include "cuda/abi.h"
#include <stdbool.h>

/* A launch: the kernel of this format and shape (CU_BATCH_...), and its geometry. */
typedef struct cu_batch {
    int format, shape;
    unsigned blocks, threads, shared;
} cu_batch;

/* The format that this product would be done in (CU_BATCH_...), or -1. */
int cu_batch_format(const cu_linear *a);

/* Chooses the shape for a launch whose parts, all of one format, are filled in, and shares out blocks. false: other kernels should do it. */
bool cu_batch_cut(cu_linears *a, int n_sm, int max_shared, cu_batch *out);
#endif
