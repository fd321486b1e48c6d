/* fake_kernels.c: k_best. */
#include "fake_kernels.h"
#include "cuda/abi.h"
#include <string.h>

static unsigned long long key_of(float z, int32_t i)
{
    uint32_t u;
    z = z == 0 ? 0.0f : z;
    memcpy(&u, &z, 4);
    u = u & 0x80000000u ? ~u : u | 0x80000000u;
    return (unsigned long long)u << 32 | (uint32_t)~i;
}

static void best(const void *args, const fake_grid *g)
{
    (void)g;
    const cu_best *a = args;
    for (int r = 0; r < a->n_rows; r++)
        for (int32_t i = 0; i < a->n; i++) {
            unsigned long long k = key_of(a->logits[(size_t)r * (size_t)a->n + (size_t)i], i);
            if (k > a->best[r]) a->best[r] = k;
        }
}

fake_kernel fake_kernel_find(const char *name, size_t *n)
{
    if (strcmp(name, "k_best")) return NULL;
    *n = sizeof(cu_best);
    return best;
}
