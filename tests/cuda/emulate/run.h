/* run.h: kernels of src/cuda without a GPU (emulate.h). */
#ifndef EMULATE_RUN_H
#define EMULATE_RUN_H
#ifdef __cplusplus
extern "C" {
#endif
typedef void (*emu_kernel)(const void *args);
/* All blocks of a grid of grid[0] x grid[1] x grid[2], of which `cluster` neighbours are a cluster (1: none); not from two threads at once. */
void emu_run(emu_kernel f, const void *args, const unsigned *grid, unsigned cluster, unsigned threads, unsigned shared);
#ifdef __cplusplus
}
#endif
#endif
