/* stream.h: products of few rows by k_stream (stream.cu). */
#ifndef CB_CUDA_STREAM_H
#define CB_CUDA_STREAM_H
#include "cuda/abi.h"
#include <stdbool.h>

/* Cuts the work of a launch whose parts are filled in, and gives its grid and shared memory. false: k_stream cannot do it. Of experts
 * an entry of the list has at most tile_rows rows, and the list most_entries entries. */
bool cu_stream_cut(cu_stream *a, int n_sm, int max_shared, int tile_rows, int most_entries, unsigned *blocks, unsigned *shared);
#endif
