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
    uint64_t changes, best, bins, sums, top, end;
} parts;

static parts lay_out(const cb_plan *p, int rows)
{
    parts o;
    uint64_t at = 0, n = (uint64_t)rows;
#define PART(name, bytes) o.name = at, at += ((uint64_t)(bytes) + 255) / 256 * 256
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

/* Changes, and what comes back. */
static cb_change *changes_of(const cb_dev *d) { return (cb_change *)d->asks_host; }
static cu_top *tops_of(const cb_dev *d) { return (cu_top *)(d->asks_host + CB_TOP_CHANGES * sizeof(cb_change)); }
uint64_t cu_sample_pinned(int rows) { return CB_TOP_CHANGES * sizeof(cb_change) + (uint64_t)rows * sizeof(cu_top); }

int cu_sample_place(cb_dev *d, uint8_t *at, int rows, cb_err *err)
{
    parts o = lay_out(d->plan, rows);
    d->sample_rows = rows;
    d->sample = (cu_sample){.step = d->step, .logits = d->logits, .changes = (cu_change *)(at + o.changes),
                            .max = d->step->best, .best = (unsigned long long *)(at + o.best), .bins = (cu_bins *)(at + o.bins),
                            .sums = (unsigned long long *)(at + o.sums), .top = (cu_top *)(at + o.top), .n = d->plan->n_vocab};
    TRY(d->cu.cuMemsetD8Async_((CUdeviceptr)(uintptr_t)(at + o.top), 0, o.end - o.top, d->stream), "sampling"); /* lists are copied with what lies behind */
    return 0;
}

/* ---- a step ---- */

static CUdeviceptr address(const void *p) { return (CUdeviceptr)(uintptr_t)p; }

size_t cu_sample_put(cb_dev *d, uint8_t *host, CUdeviceptr device)
{
    const cb_batch *b = d->batch;
    cu_ask *asks = (cu_ask *)host;
    bool more = false;
    int n = 0;
    d->most_changes = 0;
    d->sample.asks = (const cu_ask *)device;
    for (int i = 0; i < b->n_wanted; i++) {
        const cb_ask *q = &b->asks[i];
        CB_ASSERT(q->n_changes <= CB_TOP_CHANGES - n);
        asks[i] = (cu_ask){q->kind, q->n_changes, n, q->count, q->repetition, q->presence, q->frequency, q->t, q->p, q->reach, q->random};
        if (q->n_changes) memcpy(changes_of(d) + n, q->changes, (size_t)q->n_changes * sizeof *q->changes);
        n += q->n_changes;
        if (q->n_changes > d->most_changes) d->most_changes = q->n_changes;
        more |= q->n_changes || q->kind >= CB_ASK_DRAW;
    }
    d->n_changes = n;
    d->most_changes = more ? d->most_changes + 1 : 0;
    return (size_t)b->n_wanted * sizeof *asks;
}

int cu_sample_send(cb_dev *d, cb_err *err)
{
    if (d->n_changes)
        TRY(d->cu.cuMemcpyHtoDAsync_(address(d->sample.changes), changes_of(d), (size_t)d->n_changes * sizeof(cb_change), d->stream), "logit changes");
    return 0;
}

int cu_sample_launch(cb_dev *d, cb_err *err)
{
    int rc = 0, most = d->most_changes;
    unsigned rows = (unsigned)d->n_wanted, blocks = (unsigned)n_blocks(d->plan);
    cu_sample a = d->sample;
    if (!most || !rows) return 0;
    CB_ASSERT(d->n_wanted <= d->sample_rows);
    a.n_rows = d->n_wanted;
    a.asks += d->wanted0;
    if (most > 1) rc = cu_kernel_launch(d, CU_K_CHANGE, ((unsigned)most + 254) / 256, rows, 1, 256, 0, &a, err);
    if (most > 1 && rc == 0) rc = cu_launch_best(d, d->sample.best, -1, err);
    if (most == 1) a.best = a.max;
    if (rc == 0) rc = cu_kernel_launch(d, CU_K_TOP_COUNT, blocks, rows, 1, 256, 0, &a, err);
    if (rc == 0) rc = cu_kernel_launch(d, CU_K_TOP_TAKE, blocks, rows, 1, 256, 0, &a, err);
    return rc;
}

int cu_sample_copy(cb_dev *d, cb_err *err)
{
    cu_top *top = tops_of(d);
    TRY(d->cu.cuMemcpyDtoHAsync_(top, address(d->sample.top), (size_t)d->n_wanted * sizeof *top, d->stream), "what sampling needs");
    int rc = cu_wait(d, err);
    return rc < 0 ? rc : cu_check(d, top->bad_op, err);
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
    const unsigned long long *best = ((const cu_step *)d->step_host)->best;
    for (int i = 0; i < d->n_wanted; i++) {
        cb_top t = {.low = -INFINITY};
        if (!d->most_changes) {
            t.max = t.best_z = value_of(best[i]);
            t.best = (int32_t)~(uint32_t)best[i];
        } else {
            const cu_top *o = &tops_of(d)[i];
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
