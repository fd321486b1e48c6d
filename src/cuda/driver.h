/* driver.h: the NVIDIA driver, opened at run time. Nothing of CUDA is linked: a machine without a driver runs the same program. */
#ifndef CB_CUDA_DRIVER_H
#define CB_CUDA_DRIVER_H
#include "base/err.h"
#include <cuda.h>
#include <stdbool.h>

/* Every function of the driver that is used; cuda.h maps a name to its current version. */
#define CU_FUNCTIONS(X)                                                                                                        \
    X(cuInit) X(cuDriverGetVersion) X(cuDeviceGet) X(cuDeviceGetCount) X(cuDeviceGetName) X(cuDeviceGetAttribute)             \
    X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease) X(cuCtxSetCurrent) X(cuMemGetInfo) X(cuMemAlloc) X(cuMemFree)    \
    X(cuMemHostAlloc) X(cuMemFreeHost) X(cuMemcpyHtoDAsync) X(cuMemcpyDtoHAsync) X(cuMemcpyDtoDAsync) X(cuMemsetD8Async)      \
    X(cuStreamCreate) X(cuStreamDestroy) X(cuStreamSynchronize) X(cuEventCreate) X(cuEventDestroy) X(cuEventRecord)           \
    X(cuEventSynchronize) X(cuEventElapsedTime) X(cuModuleLoadData) X(cuModuleUnload) X(cuModuleGetFunction)                  \
    X(cuFuncSetAttribute) X(cuOccupancyMaxActiveClusters) X(cuLaunchKernelEx) X(cuGraphCreate) X(cuGraphAddKernelNode) X(cuGraphKernelNodeSetAttribute) X(cuGraphInstantiate) \
    X(cuGraphExecDestroy) X(cuGraphDestroy) X(cuGraphLaunch) X(cuTensorMapEncodeTiled) X(cuGetErrorString) X(cuGetErrorName)

typedef struct cu_driver {
#define X(f) __typeof__(&f) f##_;
    CU_FUNCTIONS(X)
#undef X
    CUresult (*add_plain_edges)(CUgraph g, const CUgraphNode *from, const CUgraphNode *to, size_t n);
    CUresult (*add_edges)(CUgraph g, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *data, size_t n); /* NULL before 12.3 */
    void *lib;
} cu_driver;

/* Opens libcuda.so.1 and initialises it. CB_ENODEV with the reason: no driver, too old, no GPU. */
int cu_driver_open(cu_driver *d, cb_err *err);
void cu_driver_close(cu_driver *d);
/* Has the context failed for good? Every later call on it, by any model of the process, gives the same error until all have closed. */
bool cu_is_fatal(CUresult r);
/* CB_ENOMEM for memory, else CB_EIO; `what` says what was tried. */
int cu_fail(const cu_driver *d, CUresult r, const char *what, cb_err *err);
#endif
