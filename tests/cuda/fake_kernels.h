/* fake_kernels.h: what some kernels do, on the host: those whose result the host code reads. */
#ifndef FAKE_KERNELS_H
#define FAKE_KERNELS_H
#include <stddef.h>

typedef struct fake_grid {
    unsigned blocks[3], threads, shared; /* shared: bytes of dynamic shared memory */
    unsigned cluster;                    /* neighbours in x that are a cluster; 0 or 1: none */
} fake_grid;
/* args: the kernel's only parameter. */
typedef void (*fake_kernel)(const void *args, const fake_grid *g);
/* NULL: it does nothing. *n: bytes of its parameter. */
fake_kernel fake_kernel_find(const char *name, size_t *n);
#endif
