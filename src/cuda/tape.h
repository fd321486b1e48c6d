/* tape.h: parts of a step of one row that one launch runs, whose thread blocks stay from product to product (tape.cu), in place of a list of launches:
 * what stands between an attention and the next one; or all layers, while contexts are not too long. Recognised in the recorded plan: rows, rotated or not, as planes; products of one format that are
 * told, added to the residual stream, or made gated units of; gated delta nets. */
#ifndef CB_CUDA_TAPE_H
#define CB_CUDA_TAPE_H
#include "cuda/cuda.h"

/* Bytes on the device for such a plan; 0: it has no such parts. */
uint64_t cu_tape_bytes(const cb_plan *p);
/* Before the schedules: finds the parts and prepares their launches; `at`: cu_tape_bytes() on the device. Where that is not possible, or not wanted
 * (d->tape_on), there are none. The caller frees d->tape. Errors: CB_ENOMEM, CB_EIO. */
int cu_tape_make(cb_dev *d, CUdeviceptr at, cb_err *err);
/* How many ops follow each other in the part that begins with op `first`; 0: none does. */
int cu_tape_ops(const cb_dev *d, int first);
/* Behind the schedules: which launches the part that has all layers stands for. */
void cu_tape_place(cb_dev *d);
/* Is the step at hand run by that part? Then in place of launches *from .. *to - 1. */
bool cu_tape_whole(const cb_dev *d, int *from, int *to);
int cu_tape_launch_whole(cb_dev *d, cb_err *err);
/* Before a step of one row is sent, which gets *turn, and when it has succeeded: no word is told before it is. */
int cu_tape_begin(cb_dev *d, int32_t *turn, cb_err *err);
void cu_tape_end(cb_dev *d);
/* The launch of the part that begins with op `first`. */
int cu_tape_launch(cb_dev *d, int first, cb_err *err);
void cu_tape_free(struct cu_tape_model *m);
#endif
