#include "base/sys.h"
#include <stdio.h>

static uint64_t number_in(const char *path)
{
    unsigned long long v = UINT64_MAX;
    FILE *f = fopen(path, "re");
    if (!f) return UINT64_MAX;
    if (fscanf(f, "%llu", &v) != 1) v = UINT64_MAX; /* "max" */
    fclose(f);
    return v;
}

uint64_t cb_memory_available(void)
{
    unsigned long long kib = 1024 * 1024, v;
    char line[128];
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu kB", &v) == 1) kib = v;
    if (f) fclose(f);
    uint64_t n = kib * 1024, max = number_in("/sys/fs/cgroup/memory.max"), used = number_in("/sys/fs/cgroup/memory.current");
    if (max != UINT64_MAX && used != UINT64_MAX && max > used && max - used < n) n = max - used;
    return n;
}
