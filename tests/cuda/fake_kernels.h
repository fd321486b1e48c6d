/* fake_kernels.h: what some kernels do, on the host: those whose result the host code reads. */
#ifndef FAKE_KERNELS_H
#define FAKE_KERNELS_H
#include <stddef.h>

/* args: the kernel's only parameter. */
typedef void (*fake_kernel)(const void *args);
/* NULL: it does nothing. *n: bytes of its parameter. */
fake_kernel fake_kernel_find(const char *name, size_t *n);
#endif
