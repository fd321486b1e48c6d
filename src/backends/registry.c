/* registry.c: the backends this build has. The only file that knows more than one. */
#include "plan/backends.h"
#include "cpu/backend.h"
#ifdef CB_HAVE_CUDA
#include "cuda/backend.h"
#endif
#include <string.h>

const cb_backend *cb_backend_find(const char *name)
{
    if (!strcmp(name, "cpu")) return &cb_backend_cpu;
#ifdef CB_HAVE_CUDA
    if (!strcmp(name, "cuda")) return &cb_backend_cuda;
#endif
    return NULL;
}
