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

bool cb_env_cuda_stream(void)
{
    const char *v = cb_env("CB_CUDA_STREAM");
    return !v || strcmp(v, "off") != 0;
}
const char *cb_env_cpu(void) { return cb_env("CB_CPU"); }
bool cb_env_cuda_rows16(void)
{
    const char *v = cb_env("CB_CUDA_ROWS");
    return v && !strcmp(v, "16");
}
const char *cb_env_cpu_copies(void) { return cb_env("CB_CPU_COPIES"); }
bool cb_env_cuda_heads(void)
{
    const char *v = cb_env("CB_CUDA_HEADS");
    return !v || strcmp(v, "off");
}
int cb_env_cuda_ring(void)
{
    const char *v = cb_env("CB_CUDA_RING");
    return v ? (int)strtol(v, NULL, 10) : 0;
}
