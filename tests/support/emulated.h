/* emulated.h: the NVIDIA driver whose kernels are run by fibers on the CPU (tests/cuda/emulate), for a program of tests/op. */
#ifndef CB_TESTS_SUPPORT_EMULATED_H
#define CB_TESTS_SUPPORT_EMULATED_H
#include "../cuda/fake_cuda.h"
#include "engine.h"
#include <dlfcn.h>
#include <unistd.h>

static struct {
    void *lib; /* NULL: this build has none */
} emulated;

/* Beside this program: ../cuda/emulated/libcuda.so.1. Opened by its path, it is what the soname finds from then on. A GPU of compute
 * capability 8.0, whose kernels for many rows are those of gemm.cu. */
static inline void emulated_open(void)
{
    char path[4200];
    ssize_t n = readlink("/proc/self/exe", path, 4000);
    for (int up = 0; up < 2 && n > 0; up++)
        while (n > 0 && path[--n] != '/') {}
    snprintf(path + n, sizeof path - (size_t)n, "/cuda/emulated/libcuda.so.1");
    if (access(path, F_OK) != 0) return;
    if (!(emulated.lib = dlopen(path, RTLD_NOW))) fail_msg("%s", dlerror());
    __typeof__(&fake_tell) tell;
    *(void **)&tell = dlsym(emulated.lib, "fake_tell");
    tell("cc=80");
}
#endif
