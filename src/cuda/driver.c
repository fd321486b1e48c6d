#include "cuda/driver.h"
#include "base/env.h"
#include <dlfcn.h>
#include <string.h>

#define NAME(f) #f
#define VERSIONED(f) NAME(f) /* cuMemAlloc is a macro for cuMemAlloc_v2 */

/* What the driver calls an error; works before cuInit has. */
static void describe(const cu_driver *d, CUresult r, const char **name, const char **text)
{
    *name = *text = NULL;
    d->cuGetErrorName_(r, name);
    d->cuGetErrorString_(r, text);
    if (!*name) *name = "?";
    if (!*text) *text = "unknown error";
}

int cu_driver_open(cu_driver *d, cb_err *err)
{
    memset(d, 0, sizeof *d);
    d->lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!d->lib) return cb_fail(err, CB_ENODEV, "cuda: no NVIDIA driver on this machine (libcuda.so.1 cannot be opened)");
    const char *missing = NULL, *name, *text;
#define X(f)                                                                                                                   \
    *(void **)&d->f##_ = dlsym(d->lib, VERSIONED(f));                                                                          \
    if (!d->f##_ && !missing) missing = VERSIONED(f);
    CU_FUNCTIONS(X)
#undef X
    *(void **)&d->add_plain_edges = dlsym(d->lib, "cuGraphAddDependencies"); /* newer headers have one name for both */
    *(void **)&d->add_edges = dlsym(d->lib, "cuGraphAddDependencies_v2");
    if (!d->add_plain_edges && !missing) missing = "cuGraphAddDependencies";
    int rc = 0, version = 0, n = 0;
    if (missing) rc = cb_fail(err, CB_ENODEV, "cuda: the NVIDIA driver is too old: it lacks %s", missing);
    CUresult r = rc ? CUDA_SUCCESS : d->cuInit_(0);
    if (rc == 0 && r != CUDA_SUCCESS) {
        describe(d, r, &name, &text);
        rc = cb_fail(err, CB_ENODEV, "cuda: the NVIDIA driver does not start: %s (%s, error %d)", text, name, (int)r);
    }
    if (rc == 0 && (d->cuDriverGetVersion_(&version) != CUDA_SUCCESS || version < 12000))
        rc = cb_fail(err, CB_ENODEV, "cuda: the NVIDIA driver is too old: it serves CUDA %d.%d, needed is 12.0", version / 1000, version % 1000 / 10);
    if (rc == 0 && (d->cuDeviceGetCount_(&n) != CUDA_SUCCESS || n < 1)) rc = cb_fail(err, CB_ENODEV, "cuda: the driver sees no GPU");
    if (rc < 0) cu_driver_close(d);
    return rc;
}

void cu_driver_close(cu_driver *d)
{
    if (d->lib) dlclose(d->lib);
    d->lib = NULL;
}

bool cu_is_fatal(CUresult r)
{
    switch (r) {
    case CUDA_ERROR_ILLEGAL_ADDRESS: case CUDA_ERROR_LAUNCH_FAILED: case CUDA_ERROR_LAUNCH_TIMEOUT: case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_HARDWARE_STACK_ERROR: case CUDA_ERROR_ILLEGAL_INSTRUCTION: case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE: case CUDA_ERROR_INVALID_PC: case CUDA_ERROR_ASSERT: case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED: return true;
    default: return false;
    }
}

int cu_fail(const cu_driver *d, CUresult r, const char *what, cb_err *err)
{
    const char *name, *text;
    describe(d, r, &name, &text);
    return cb_fail(err, r == CUDA_ERROR_OUT_OF_MEMORY ? CB_ENOMEM : CB_EIO, "cuda: %s: %s (%s)%s", what, text, name,
                   cu_is_fatal(r) ? "; the GPU is lost to this process until every model on it has been closed" : "");
}
