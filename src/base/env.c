#include "base/env.h"
#include <stdlib.h>
#include <string.h>

const char *cb_env(const char *name)
{
    const char *v = getenv(name);
    return v && *v ? v : NULL;
}

uint64_t cb_env_fault(const char *kind)
{
    const char *v = cb_env("CB_FAULT");
    size_t n = strlen(kind);
    while (v) {
        if (!strncmp(v, kind, n) && v[n] == ':') return strtoull(v + n + 1, NULL, 10);
        if ((v = strchr(v, ','))) v++;
    }
    return 0;
}

const char *cb_env_cpu(void) { return cb_env("CB_CPU"); }
const char *cb_env_cpu_copies(void) { return cb_env("CB_CPU_COPIES"); }
const char *cb_env_cuda_stream(void) { return cb_env("CB_CUDA_STREAM"); }
const char *cb_env_cuda_clusters(void) { return cb_env("CB_CUDA_CLUSTERS"); }
const char *cb_env_cuda_small(void) { return cb_env("CB_CUDA_SMALL"); }
const char *cb_env_cuda_tape(void) { return cb_env("CB_CUDA_TAPE"); }
