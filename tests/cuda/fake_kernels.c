/* fake_kernels.c: the kernels of sample.cu. */
#include "fake_kernels.h"
#include "cuda/abi.h"
#include "../support/top.h"
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
    for (int r = 0; r < a->n_rows; r++) {
        if (a->op >= 0 && a->step->n_asks) a->later[r] = 0;
        for (int32_t i = 0; i < a->step->n_ids; i++) {
            unsigned long long k = key_of(a->logits[(size_t)r * (size_t)a->n + (size_t)i], i);
            if (k > a->best[r]) a->best[r] = k;
        }
    }
}

static void change(const void *args, const fake_grid *g)
{
    (void)g;
    const cu_sample *a = args;
    for (int r = 0; r < a->n_rows; r++) {
        const cu_ask *q = &a->asks[r];
        cb_ask ask = {.n_changes = q->n_changes, .changes = (const cb_change *)(a->changes + q->change0), .repetition = q->repetition,
                      .presence = q->presence, .frequency = q->frequency};
        top_change(a->logits + (size_t)r * (size_t)a->n, &ask);
    }
}

static void take(const void *args, const fake_grid *g)
{
    (void)g;
    const cu_sample *a = args;
    for (int r = 0; r < a->n_rows; r++) {
        const cu_ask *q = &a->asks[r];
        cu_top *o = &a->top[r];
        cb_ask ask = {.kind = q->kind, .repetition = 1, .t = q->t, .count = q->count, .p = q->p, .reach = q->reach, .random = q->random};
        cb_top top;
        top_answer(a->logits + (size_t)r * (size_t)a->n, a->step->n_ids, &ask, CU_TOP, 6, (uint64_t *)o->list, &top);
        o->bad_op = a->step->bad_op;
        o->max = a->max[r];
        o->best = a->best[r];
        o->sum = top.sum;
        o->n = (uint32_t)top.n;
        o->low = (uint32_t)(key_of(top.low, 0) >> 32);
        o->drawn = top.drawn;
        o->drawn_z = top.drawn_z;
    }
}

fake_kernel fake_kernel_find(const char *name, size_t *n)
{
    static const struct {
        const char *name;
        fake_kernel run;
        size_t n;
    } kernels[] = {{"k_best", best, sizeof(cu_best)}, {"k_change", change, sizeof(cu_sample)}, {"k_top_take", take, sizeof(cu_sample)}};
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (!strcmp(name, kernels[i].name)) {
            *n = kernels[i].n;
            return kernels[i].run;
        }
    return NULL;
}
