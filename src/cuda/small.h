/* small.h: steps of one row of a small model in one launch by one cluster (small.cu), in place of the launches from the embedding to the planes that the
 * head reads. */
#ifndef CB_CUDA_SMALL_H
#define CB_CUDA_SMALL_H
#include "cuda/cuda.h"

/* Bytes on the device for such a plan; 0: it is none. */
uint64_t cu_small_bytes(const cb_plan *p);
/* After the schedules: finds out whether steps of one row can be run so, and prepares it; `at`: cu_small_bytes() on the device. What is not possible, or
 * not wanted (d->small_on), stays as it was. The caller frees d->small. Errors: CB_ENOMEM, CB_EIO. */
int cu_small_make(cb_dev *d, CUdeviceptr at, cb_err *err);
/* The launch, for the step at hand, if it is one for it: *next is the launch of the schedule that comes behind, or 0 when nothing was launched. */
int cu_small_launch(cb_dev *d, int *next, cb_err *err);
void cu_small_free(struct cu_small_model *m);
#endif
