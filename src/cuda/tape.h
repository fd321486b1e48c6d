/* tape.h: all layers of a step of one row as one launch whose thread blocks, one on each multiprocessor, stay from product to product (tape.cu), while the
 * context is not too long. Recognised in the recorded plan: rows, rotated or not, as planes; products of one format that are told, added to the residual
 * stream, or made gated units of; gated delta nets; attention; experts beside a shared one. Or layers of Gemma 4 with experts (tape_normed.c). */
#ifndef CB_CUDA_TAPE_H
#define CB_CUDA_TAPE_H
#include "cuda/cuda.h"

/* Bytes on the device for such a plan; 0: it has no such layers. */
uint64_t cu_tape_bytes(const cb_plan *p);
/* Before the schedules: finds the layers and prepares their launch, if d->tape_on says so; `at`: cu_tape_bytes() on the device. d->tape stays NULL where that
 * is not possible; else the caller frees it. Errors: CB_ENOMEM, CB_EIO. */
int cu_tape_make(cb_dev *d, CUdeviceptr at, cb_err *err);
/* The ops that it runs; none: *n is 0. */
void cu_tape_ops(const cb_dev *d, int *first, int *n);
/* Behind the schedules: in place of which launches; d->tape becomes NULL when they are not all in a row. */
void cu_tape_place(cb_dev *d);
void cu_tape_free(struct cu_tape_model *m);

/* Is the step at hand run so? */
bool cu_tape_runs(const cb_dev *d);
/* Before such a step is sent, which gets *turn. Errors: CB_EIO. */
int cu_tape_begin(cb_dev *d, int32_t *turn, cb_err *err);
/* Around its launches, up to their end: there is one such step at a time in the process. done: it has succeeded. */
void cu_tape_lock(void);
void cu_tape_unlock(cb_dev *d, bool done);
/* The launch (errors: CB_EIO), and in place of which it stands: launches *from .. *to - 1 of the schedule. */
int cu_tape_launch(cb_dev *d, cb_err *err);
void cu_tape_span(const cb_dev *d, int *from, int *to);
#endif
