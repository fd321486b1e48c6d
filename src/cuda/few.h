/* few.h: row-wise launches as chains in registers (rows_few.cu). */
#ifndef CB_CUDA_FEW_H
#define CB_CUDA_FEW_H
#include "cuda/cuda.h"

typedef struct cu_few {
    cu_rows_few a;
    cu_kernel kernel;
    int threads, shared; /* of a thread block, a part of a row; bytes */
    int y;               /* thread blocks a row */
    int cluster;         /* thread blocks that share a part of it, the step's only row, in place of n_rows; 0: none */
    struct cu_few *beside; /* another chain in the same launch, of other rows (cu_few_pair); owned */
} cu_few;

/* The launch of n row-wise ops (plan op indexes; `table` their entries on the device) for steps of fewer than CU_FEW_ROWS rows, or of one
 * (single), or NULL: k_rows must do it. The caller frees it. Error: CB_ENOMEM. */
int cu_few_make(const cb_dev *d, const int32_t *ops, int n, bool single, const cu_row_op *table, cu_few **out, cb_err *err);
/* Takes `other` into the launch of f, if both are gated units that are quantised, for which there is a kernel: false if not. No op of one may
 * have to wait for one of the other. */
bool cu_few_pair(cu_few *f, cu_few *other);
void cu_few_free(cu_few *f);
#endif
