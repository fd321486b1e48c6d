/* fake_cuda.h: an NVIDIA driver without a GPU, for tests of the host code of src/cuda: build/FLAVOUR/tests/cuda/libcuda.so.1. Memory
 * is malloc, copies are copies, kernels do nothing but those that choose tokens (fake_kernels.c). It counts what is held, checks
 * that every copy stays inside one allocation and that every launch is a legal one, and fails where it is told to.
 *
 * A test opens it by path before the library does; by its soname it is then what dlopen("libcuda.so.1") finds. The command line gets it
 * through LD_LIBRARY_PATH and is told by CB_FAKE_CUDA, words separated by commas: version=11080, devices=0, cc=75, processors=3, memory=64 (MiB),
 * FUNCTION:N:RESULT (the N-th call of FUNCTION from now on gives RESULT). */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H
#include <stdint.h>

typedef struct fake_counts {
    int contexts, allocations, pinned, streams, events, modules, graphs, execs; /* held now */
    uint64_t bytes, peak_bytes, pinned_bytes;
    uint64_t n_alloc, n_pinned, n_instantiate, n_launch, n_graph_launch, n_sync, n_to_device, n_to_host; /* calls since fake_reset */
    uint64_t to_host_bytes;
    char broken[160]; /* the first illegal use; "": none */
} fake_counts;

/* Back to a machine with one healthy GPU of 4 GiB and compute capability 9.0; nothing may be held. */
void fake_reset(void);
/* One word of CB_FAKE_CUDA. */
void fake_tell(const char *word);
void fake_count(fake_counts *out);
/* How often a function was called since fake_reset. */
uint64_t fake_calls(const char *function);
#endif
