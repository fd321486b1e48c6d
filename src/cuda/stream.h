/* stream.h: products of few rows by k_stream (stream.cu). */
#ifndef CB_CUDA_STREAM_H
#define CB_CUDA_STREAM_H
#include "cuda/abi.h"
#include <stdbool.h>

/* The kernel for this matrix (CU_STREAM_...), or -1. */
int cu_stream_format(const cu_weight *w);

/* Bytes of a scale of an affine matrix or of one of planes. */
static inline int cu_scale_bytes(const cu_weight *w) { return w->scale_type == CU_S_F32 ? 4 : 2; }

/* Cuts the work of a launch whose parts, all of one format, are filled in, and gives its grid and shared memory. false: k_stream cannot do it. Of experts
 * an entry of the list has at most tile_rows rows, and the list most_entries entries. tight: with no more memory than is used. */
bool cu_stream_cut(cu_stream *a, int n_sm, int max_shared, int tile_rows, int most_entries, bool tight, unsigned *blocks, unsigned *shared);
#endif
