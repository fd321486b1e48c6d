/* sample.c: sampling's share of a step (plan/top.h): what is asked of the wanted rows goes up, a few launches follow those of the step, and a
 * short record of each row comes back. A row that this does not decide is fetched whole. Kernels: sample.cu. */
#include "cuda/cuda.h"
#include <math.h>
#include <string.h>

#define TRY(call, what)                                                                                                        \
    do {                                                                                                                       \
        CUresult r_ = (call);                                                                                                  \
        if (r_ != CUDA_SUCCESS) return cu_fail(&d->cu, r_, what, err);                                                         \
    } while (0)

_Static_assert((int)CU_ASK_DRAW == (int)CB_ASK_DRAW && (int)CU_ASK_TOP == (int)CB_ASK_TOP && (int)CU_TOP == (int)CB_TOP, "plan/top.h");
_Static_assert(sizeof(cu_change) == sizeof(cb_change), "plan/top.h");

/* ---- memory ---- */

static int n_blocks(const cb_plan *p) { return (p->n_vocab + CU_BEST_BLOCK - 1) / CU_BEST_BLOCK; }

/* Where each part begins, and the size. */
typedef struct parts {
    uint64_t asks, changes, best, bins, sums, top, end;
} parts;

static parts lay_out(const cb_plan *p, int rows)
{
    parts o;
    uint64_t at = 0, n = (uint64_t)rows;
#define PART(name, bytes) o.name = at, at += ((uint64_t)(bytes) + 255) / 256 * 256
    PART(asks, n * sizeof(cu_ask));
    PART(changes, CB_TOP_CHANGES * sizeof(cu_change));
    PART(best, n * 8);
    PART(bins, n * sizeof(cu_bins));
    PART(sums, n * (uint64_t)n_blocks(p) * 8);
    PART(top, n * sizeof(cu_top));
#undef PART
    o.end = at;
    return o;
}

uint64_t cu_sample_bytes(const cb_plan *p, int rows) { return lay_out(p, rows).end; }

/* Asks, changes, and what comes back. */
static uint64_t changes_at(int rows) { return (uint64_t)rows * sizeof(cu_ask); }
static uint64_t top_at(int rows) { return changes_at(rows) + CB_TOP_CHANGES * sizeof(cu_change); }
uint64_t cu_sample_pinned(int rows) { return top_at(rows) + (uint64_t)rows * sizeof(cu_top); }

int cu_sample_place(cb_dev *d, uint8_t *at, int rows, cb_err *err)
{
    parts o = lay_out(d->plan, rows);
    d->sample_rows = rows;
    d->sample = (cu_sample){.step = d->step, .logits = d->logits, .asks = (cu_ask *)(at + o.asks), .changes = (cu_change *)(at + o.changes),
                            .max = d->best, .best = (unsigned long long *)(at + o.best), .bins = (cu_bins *)(at + o.bins),
                            .sums = (unsigned long long *)(at + o.sums), .top = (cu_top *)(at + o.top), .n = d->plan->n_vocab};
    TRY(d->cu.cuMemsetD8Async_((CUdeviceptr)(uintptr_t)(at + o.top), 0, o.end - o.top, d->stream), "sampling"); /* lists are copied with what lies behind */
    return 0;
}

/* ---- a step ---- */

static CUdeviceptr address(const void *p) { return (CUdeviceptr)(uintptr_t)p; }

/* Of the rows being run: the most changes that one has, plus 1; 0: none has any, and the largest logit is all that is wanted of each. */
static int most_changes(const cb_dev *d)
{
    int most = 0;
    bool more = false;
    for (int i = 0; i < d->n_wanted; i++) {
        const cb_ask *q = &d->batch->asks[d->wanted0 + i];
        if (q->n_changes > most) most = q->n_changes;
        more |= q->n_changes || q->kind >= CB_ASK_DRAW;
    }
    return more ? most + 1 : 0;
}

int cu_sample_send(cb_dev *d, cb_err *err)
{
    cu_ask *asks = (cu_ask *)d->asks_host;
    cb_change *changes = (cb_change *)(d->asks_host + changes_at(d->sample_rows));
    int n = 0;
    CB_ASSERT(d->n_wanted <= d->sample_rows);
    if (!most_changes(d)) return 0;
    for (int i = 0; i < d->n_wanted; i++) {
        const cb_ask *q = &d->batch->asks[d->wanted0 + i];
        CB_ASSERT(q->n_changes <= CB_TOP_CHANGES - n);
        asks[i] = (cu_ask){q->kind, q->n_changes, n, q->count, q->repetition, q->presence, q->frequency, q->t, q->p, q->reach, q->random};
        if (q->n_changes) memcpy(changes + n, q->changes, (size_t)q->n_changes * sizeof *changes);
        n += q->n_changes;
    }
    TRY(d->cu.cuMemcpyHtoDAsync_(address(d->sample.asks), asks, (size_t)d->n_wanted * sizeof *asks, d->stream), "what is asked for sampling");
    if (n) TRY(d->cu.cuMemcpyHtoDAsync_(address(d->sample.changes), changes, (size_t)n * sizeof *changes, d->stream), "logit changes");
    size_t cleared = (size_t)(address(d->sample.bins) - address(d->sample.best)) + (size_t)d->n_wanted * sizeof(cu_bins);
    TRY(d->cu.cuMemsetD8Async_(address(d->sample.best), 0, cleared, d->stream), "sampling");
    return 0;
}

int cu_sample_launch(cb_dev *d, cb_err *err)
{
    int most = most_changes(d), rc = 0;
    unsigned rows = (unsigned)d->n_wanted, blocks = (unsigned)n_blocks(d->plan);
    cu_sample a = d->sample;
    if (!most) return 0;
    a.n_rows = d->n_wanted;
    if (most > 1) rc = cu_kernel_launch(d, CU_K_CHANGE, ((unsigned)most + 254) / 256, rows, 1, 256, 0, &a, err);
    if (most > 1 && rc == 0) rc = cu_launch_best(d, d->sample.best, -1, err);
    if (most == 1) a.best = a.max;
    if (rc == 0) rc = cu_kernel_launch(d, CU_K_TOP_COUNT, blocks, rows, 1, 256, 0, &a, err);
    if (rc == 0) rc = cu_kernel_launch(d, CU_K_TOP_TAKE, blocks, rows, 1, 256, 0, &a, err);
    return rc;
}

int cu_sample_copy(cb_dev *d, cb_err *err)
{
    cu_top *top = (cu_top *)(d->asks_host + top_at(d->sample_rows));
    size_t n = (size_t)d->n_wanted;
    if (most_changes(d)) TRY(d->cu.cuMemcpyDtoHAsync_(top, address(d->sample.top), n * sizeof *top, d->stream), "what sampling needs");
    else TRY(d->cu.cuMemcpyDtoHAsync_(top, address(d->best), n * 8, d->stream), "best ids");
    return 0;
}

/* From what orders logits and ids. */
static float value_of(unsigned long long v)
{
    uint32_t key = (uint32_t)(v >> 32), bits = key & 0x80000000u ? key & 0x7fffffffu : ~key;
    float z;
    memcpy(&z, &bits, 4);
    return z;
}

int cu_sample_give(cb_dev *d, cb_err *err)
{
    const cb_batch *b = d->batch;
    const cu_top *tops = (cu_top *)(d->asks_host + top_at(d->sample_rows));
    const unsigned long long *best = (const unsigned long long *)tops;
    int best_only = !most_changes(d);
    for (int i = 0; i < d->n_wanted; i++) {
        cb_top t = {.low = -INFINITY};
        if (best_only) {
            t.max = t.best_z = value_of(best[i]);
            t.best = (int32_t)~(uint32_t)best[i];
        } else {
            const cu_top *o = &tops[i];
            float low = o->low ? value_of((unsigned long long)o->low << 32) : -INFINITY;
            CB_ASSERT(o->n <= CB_TOP);
            t = (cb_top){.max = value_of(o->max), .best_z = value_of(o->best), .best = (int32_t)~(uint32_t)o->best, .drawn = o->drawn, .drawn_z = o->drawn_z,
                         .sum = o->sum, .n = (int)o->n, .low = low, .list = (const uint64_t *)o->list};
        }
        if (!b->answer(b->answer_ctx, d->wanted0 + i, &t, NULL)) continue;
        int rc = cu_fetch_logits(d, i, 1, err);
        if (rc < 0) return rc;
        b->answer(b->answer_ctx, d->wanted0 + i, NULL, d->out_host);
    }
    return 0;
}
