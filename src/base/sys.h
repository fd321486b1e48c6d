/* sys.h: what the machine has. */
#ifndef CB_BASE_SYS_H
#define CB_BASE_SYS_H
#include <stdint.h>

/* Bytes this process could still take: MemAvailable, lowered by a cgroup's limit. A guess of 1 GiB when unknown. */
uint64_t cb_memory_available(void);
#endif
