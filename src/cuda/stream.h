/* stream.h: products of few rows by k_stream (stream.cu). */
#ifndef CB_CUDA_STREAM_H
#define CB_CUDA_STREAM_H
#include "cuda/abi.h"
#include <stdbool.h>

/* The kernel for this matrix (CU_STREAM_...), or -1. */
int cu_stream_format(const cu_weight *w);

/* Is a part of this format better off with k_stream than with kernels of many rows? Of more rows than two passes take, each fetching the weights,
 * only matrices that have a tile a thread block at most, together. *tiles: of those taken before, and with this one. */
bool cu_stream_takes(const cu_linear *p, int n_sm, int *tiles);

/* Cuts the work of a launch whose parts, all of one format, are filled in, and gives its grid and shared memory. false: k_stream cannot do it. Of experts
 * an entry of the list has at most tile_rows rows, and the list most_entries entries. */
bool cu_stream_cut(cu_stream *a, int n_sm, int max_shared, int tile_rows, int most_entries, unsigned *blocks, unsigned *shared);
#endif
