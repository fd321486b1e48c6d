/* few.h: row-wise launches as chains in registers (rows_few.cu). */
#ifndef CB_CUDA_FEW_H
#define CB_CUDA_FEW_H
#include "cuda/cuda.h"

typedef struct cu_few {
    cu_rows_few a;
    cu_kernel kernel;
    int threads, shared; /* of a thread block, a part of a row; bytes */
    int y;               /* thread blocks a row */
} cu_few;

/* The launch of n row-wise ops (plan op indexes; `table` their entries on the device) for steps of fewer than CU_FEW_ROWS rows, or NULL: k_rows
 * must do it. The caller frees it. Error: CB_ENOMEM. */
int cu_few_make(const cb_dev *d, const int32_t *ops, int n, const cu_row_op *table, cu_few **out, cb_err *err);
#endif
