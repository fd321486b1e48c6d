/* fuse.h: what stands between two products of a layer, as one or two launches, on steps whose rows are all of different sessions.
 * A pattern is recognised in the recorded plan by one of its ops, its anchor; what matches none is launched op by op. */
#ifndef CB_CUDA_FUSE_H
#define CB_CUDA_FUSE_H
#include "cuda/cuda.h"

enum { CU_MAX_FUSED = 20 };

/* The ops of the pattern around `anchor`, ascending, into group[CU_MAX_FUSED]; how many, or 0 when there is none. All of them become
 * one launch, ready when all that must come before any of them is done; no op outside may need to stand between them. */
int cu_fuse(const cb_dev *d, int anchor, int32_t *group);
/* The arguments of the attention around `anchor`, of the step at hand, but for its rows; false when there is none. */
bool cu_attention_args(const cb_dev *d, int anchor, cu_attn_step *a);
/* The same of the delta rule `anchor`. */
bool cu_delta_args(const cb_dev *d, int anchor, cu_delta_step *a);
int cu_launch_fused(cb_dev *d, int anchor, cb_err *err);
/* Most blocks of keys that a row of this step sees in a KV state, as the arrays of partial results are laid out. */
int cu_attn_splits(const cb_dev *d, int state);
#endif
