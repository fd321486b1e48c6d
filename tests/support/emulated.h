/* emulated.h: the NVIDIA drivers of tests/cuda, above all the one whose kernels are run by fibers on the CPU (tests/cuda/emulate). */
#ifndef CB_TESTS_SUPPORT_EMULATED_H
#define CB_TESTS_SUPPORT_EMULATED_H
#include "../cuda/fake_cuda.h"
#include "../cuda/fake_kernels.h"
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
/* A driver of tests/cuda, beside the folder of this program: "/cuda/..". Opened by its path, it is what the soname finds from then on. NULL:
 * this build has none. */
static inline void *driver_beside(const char *file)
{
    char path[4200];
    ssize_t n = readlink("/proc/self/exe", path, 4000);
    for (int up = 0; up < 2 && n > 0; up++)
        while (n > 0 && path[--n] != '/') {}
    snprintf(path + n, sizeof path - (size_t)n, "%s", file);
    if (access(path, F_OK) != 0) return NULL;
    void *lib = dlopen(path, RTLD_NOW);
    if (!lib) fail_msg("%s", dlerror());
    return lib;
}

/* A GPU of compute capability 9.1, which there is not: it has what stream.cu needs, and its kernels for many rows are those of gemm.cu. */
static inline void emulated_open(void)
{
    emulated.lib = driver_beside("/cuda/emulated/libcuda.so.1");
    emulated_tell("cc=91");
}
/* One of its kernels, whose parameter is of so many bytes; NULL: there is no driver. */
static inline fake_kernel emulated_kernel(const char *name, size_t bytes)
{
    size_t size = 0;
    __typeof__(&fake_kernel_find) find;
    *(void **)&find = emulated.lib ? dlsym(emulated.lib, "fake_kernel_find") : NULL;
    if (!find) return NULL;
    fake_kernel k = find(name, &size);
    if (!k || size != bytes) fail_msg("%s: %zu bytes, not %zu", name, size, bytes);
    return k;
}
/* Launches so far. */
static inline uint64_t emulated_launches(void)
{
    fake_counts c;
    __typeof__(&fake_count) count;
    *(void **)&count = dlsym(emulated.lib, "fake_count");
    count(&c);
    return c.n_launch;
}
/* A test once more, with thread blocks, warps and lanes in the opposite order. */
static inline void emulated_backwards(void (*test)(void **), void **state)
{
    setenv("CB_EMULATE_BACKWARDS", "1", 1);
    test(state);
    unsetenv("CB_EMULATE_BACKWARDS");
}
#endif
