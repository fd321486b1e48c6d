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

/* One word of CB_FAKE_CUDA (fake_cuda.h). */
static inline void emulated_tell(const char *word)
{
    __typeof__(&fake_tell) tell;
    *(void **)&tell = emulated.lib ? dlsym(emulated.lib, "fake_tell") : NULL;
    if (tell) tell(word);
}
/* Beside this program: ../cuda/emulated/libcuda.so.1. Opened by its path, it is what the soname finds from then on. A GPU of compute
 * capability 9.1, which there is not: it has what stream.cu needs, and its kernels for many rows are those of gemm.cu. */
static inline void emulated_open(void)
{
    char path[4200];
    ssize_t n = readlink("/proc/self/exe", path, 4000);
    for (int up = 0; up < 2 && n > 0; up++)
        while (n > 0 && path[--n] != '/') {}
    snprintf(path + n, sizeof path - (size_t)n, "/cuda/emulated/libcuda.so.1");
    if (access(path, F_OK) != 0) return;
    if (!(emulated.lib = dlopen(path, RTLD_NOW))) fail_msg("%s", dlerror());
    emulated_tell("cc=91");
}
#endif
