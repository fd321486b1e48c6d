/* run.c: a step. Its rows, runs and tiles go to the device in one copy; then the launches, from a graph (graph.c) when the step only
 * decodes; then logits, best ids or what sampling needs (sample.c) come back. */
#include "cuda/graph.h"
#include "cuda/lower.h"
#include "cuda/small.h"
#include "cuda/tape.h"
#include <stddef.h>
#include <string.h>

#define TRY(call, what)                                                                                                        \
    do {                                                                                                                       \
        CUresult r_ = (call);                                                                                                  \
        if (r_ != CUDA_SUCCESS) return cu_fail(&d->cu, r_, what, err);                                                         \
    } while (0)

/* ---- what the device must know of the step ---- */

typedef struct packer {
    uint8_t *host;
    CUdeviceptr dev;
    size_t at;
} packer;

static int32_t *pack(packer *p, const int32_t **dev, const int32_t *from, int n)
{
    int32_t *to = (int32_t *)(p->host + p->at);
    *dev = (const int32_t *)(p->dev + p->at);
    if (from) memcpy(to, from, (size_t)n * 4);
    p->at += (size_t)n * 4;
    return to;
}

/* Tiles of `per` rows at most; returns how many. */
static int cut_runs(const int32_t *run_row, const int32_t *run1, int n_runs, int per, int32_t *row, int32_t *count)
{
    int n = 0;
    for (int run = 0; run < n_runs; run++)
        for (int r = run_row[run], e = run1[run_row[run]]; r < e; r += per) {
            row[n] = r;
            count[n++] = e - r < per ? e - r : per;
        }
    return n;
}

/* Runs: rows of one session at consecutive positions. Tiles: rows whose queries share a thread block. */
static void find_runs(cb_dev *d, packer *p, cu_step *s)
{
    const cb_batch *b = d->batch;
    int n = b->n_rows;
    int32_t *run0 = pack(p, &s->run0, NULL, n), *run1 = pack(p, &s->run1, NULL, n), *run_row = pack(p, &s->run_row, NULL, n);
    d->n_runs = 0;
    for (int r = 0; r < n;) {
        int e = r + 1;
        while (e < n && b->slot[e] == b->slot[r] && b->pos[e] == b->pos[e - 1] + 1) e++;
        for (int i = r; i < e; i++) run0[i] = r, run1[i] = e;
        run_row[d->n_runs++] = r;
        r = e;
    }
    int32_t *tile_row = pack(p, &s->tile_row, NULL, n), *tile_n = pack(p, &s->tile_n, NULL, n);
    int32_t *wide_row = pack(p, &s->wide_row, NULL, n), *wide_n = pack(p, &s->wide_n, NULL, n);
    d->n_tiles = cut_runs(run_row, run1, d->n_runs, d->n_runs == n ? 1 : d->tile_rows, tile_row, tile_n);
    d->n_wide = cut_runs(run_row, run1, d->n_runs, d->wide_rows, wide_row, wide_n);
    int most = 0;
    for (int r = 0; r < n; r++) most = b->pos[r] / CU_BLOCK + 1 > most ? b->pos[r] / CU_BLOCK + 1 : most;
    d->n_splits = 0;
    if (d->n_runs == n && n <= CU_GRAPH_ROWS)
        for (d->n_splits = 4; d->n_splits < most; d->n_splits += d->n_splits / 2) {}
    if (d->n_splits > CU_CLUSTER_BLOCKS && most <= CU_CLUSTER_BLOCKS) d->n_splits = CU_CLUSTER_BLOCKS;
}

static int send_tables(cb_dev *d, cb_err *err)
{
    const cb_batch *b = d->batch;
    for (int g = 0; g < d->plan->n_kv_groups; g++)
        for (int r = 0; r < b->n_rows; r++) {
            if (r + 1 < b->n_rows && b->slot[r + 1] == b->slot[r]) continue; /* the run's last row knows most */
            size_t at = ((size_t)g * (size_t)d->lim.max_sessions + (size_t)b->slot[r]) * (size_t)d->table_stride;
            const int32_t *now = b->kv[g][b->slot[r]];
            int32_t *was = d->tables_host + at;
            int n = b->pos[r] / CU_BLOCK + 1, first = 0, last = n;
            while (first < last && was[first] == now[first]) first++;
            while (last > first && was[last - 1] == now[last - 1]) last--;
            if (first == last) continue;
            memcpy(was + first, now + first, (size_t)(last - first) * 4);
            TRY(d->cu.cuMemcpyHtoDAsync_(d->tables + (at + (size_t)first) * 4, was + first, (size_t)(last - first) * 4, d->stream), "block tables");
        }
    return 0;
}

static int send_step(cb_dev *d, cb_err *err)
{
    const cb_batch *b = d->batch;
    cu_step *s = (cu_step *)d->step_host;
    packer p = {d->step_host, (CUdeviceptr)(uintptr_t)d->step, sizeof *s + (size_t)b->n_wanted * sizeof *s->best};
    memset(s, 0, p.at);
    const int32_t **tables = (const int32_t **)(p.host + p.at);
    s->tables = (const int32_t *const *)(p.dev + p.at);
    for (int g = 0; g < CB_MAX_KV_GROUPS; g++)
        tables[g] = (const int32_t *)(d->tables + (size_t)g * (size_t)d->lim.max_sessions * (size_t)d->table_stride * 4);
    p.at += CB_MAX_KV_GROUPS * sizeof *tables;
    pack(&p, &s->token, b->token, b->n_rows);
    pack(&p, &s->pos, b->pos, b->n_rows);
    pack(&p, &s->slot, b->slot, b->n_rows);
    pack(&p, &s->wanted, b->wanted, b->n_wanted);
    find_runs(d, &p, s);
    s->table_stride = d->table_stride;
    s->n_ids = b->n_ids ? b->n_ids : d->plan->n_vocab;
    s->bad_op = CU_NO_OP;
    int rc = cu_tape_runs(d) ? cu_tape_begin(d, &s->turn, err) : 0;
    if (rc < 0) return rc;
    if (b->asks) {
        p.at = (p.at + 7) / 8 * 8;
        p.at += cu_sample_put(d, p.host + p.at, p.dev + p.at);
        s->n_asks = b->n_wanted;
    }
    CB_ASSERT(p.at <= d->step_bytes);
    TRY(d->cu.cuMemcpyHtoDAsync_((CUdeviceptr)(uintptr_t)d->step, s, p.at, d->stream), "the step's rows");
    return b->asks ? cu_sample_send(d, err) : 0;
}

/* ---- launches ---- */

static int launch(cb_dev *d, int from, int to, cb_err *err)
{
    for (int i = from; i < to; i++) {
        int rc = cu_launch_ops(d, d->schedule, &d->schedule->launches[i], err);
        if (rc < 0) return rc;
    }
    return 0;
}

int cu_launch_best(cb_dev *d, unsigned long long *to, int op, cb_err *err)
{
    cu_best a = {.step = d->step, .logits = d->logits, .best = to, .later = d->sample.best, .bins = d->sample.bins, .n = d->plan->n_vocab, .n_rows = d->n_wanted, .op = op};
    unsigned blocks = ((unsigned)a.n + CU_BEST_BLOCK - 1) / CU_BEST_BLOCK;
    return cu_kernel_launch(d, CU_K_BEST, blocks, (unsigned)d->n_wanted, 1, 256, 0, &a, err);
}

/* Looks for values that are not finite, and finds the best id of each row. */
static int best(cb_dev *d, cb_err *err)
{
    return d->n_wanted ? cu_launch_best(d, d->step->best, d->plan->n_ops - 1, err) : 0;
}

static int whole_step(cb_dev *d, cb_err *err)
{
    int next, rc = cu_small_launch(d, &next, err);
    d->taken = next ? CU_SMALL_BLOCKS : 0;
    if (rc == 0 && !next && cu_tape_runs(d)) {
        int from;
        cu_tape_span(d, &from, &next);
        rc = launch(d, 0, from, err);
        if (rc == 0) rc = cu_tape_launch(d, err);
    }
    if (rc == 0) rc = launch(d, next, d->schedule->n_launches, err);
    d->taken = 0;
    return rc < 0 ? rc : best(d, err);
}

/* ---- results ---- */

int cu_wait(cb_dev *d, cb_err *err)
{
    TRY(d->cu.cuStreamSynchronize_(d->stream), "a step");
    return 0;
}

int cu_check(cb_dev *d, int32_t bad_op, cb_err *err)
{
    if (bad_op == CU_NO_OP) return 0;
    return cb_fail(err, CB_ENUM, "%s: a value is not finite (NaN or infinity) after op %d", d->plan->ops[bad_op].name, bad_op);
}

/* Waits for what has been found: bad_op, and the best ids of the rows being run. */
static int results(cb_dev *d, cb_err *err)
{
    cu_step *s = (cu_step *)d->step_host;
    size_t from = offsetof(cu_step, bad_op), n = offsetof(cu_step, best) - from + (size_t)d->n_wanted * sizeof *s->best;
    TRY(d->cu.cuMemcpyDtoHAsync_(&s->bad_op, (CUdeviceptr)(uintptr_t)&d->step->bad_op, n, d->stream), "a step");
    int rc = cu_wait(d, err);
    return rc < 0 ? rc : cu_check(d, s->bad_op, err);
}

int cu_fetch_logits(cb_dev *d, int row, int n, cb_err *err)
{
    size_t width = (size_t)d->plan->n_vocab;
    TRY(d->cu.cuMemcpyDtoHAsync_(d->out_host, (CUdeviceptr)(uintptr_t)(d->logits + (size_t)row * width), (size_t)n * width * 4, d->stream), "logits");
    return cu_wait(d, err);
}

/* What is wanted of the rows wanted0 .. wanted0+n_wanted, through pinned memory. */
static int fetch(cb_dev *d, cb_err *err)
{
    const cb_batch *b = d->batch;
    size_t row = (size_t)d->plan->n_vocab * 4, per = d->out_bytes / row;
    const unsigned long long *ids = ((cu_step *)d->step_host)->best;
    if ((b->best || b->asks) && d->n_wanted) {
        int rc = b->asks && d->most_changes ? cu_sample_copy(d, err) : results(d, err);
        for (int i = 0; b->best && rc == 0 && i < d->n_wanted; i++) b->best[d->wanted0 + i] = (int32_t)~(uint32_t)ids[i];
        if (b->asks && rc == 0) rc = cu_sample_give(d, err);
        if (rc < 0) return rc;
    }
    for (int r = 0; b->logits && r < d->n_wanted;) {
        int n = d->n_wanted - r < (int)per ? d->n_wanted - r : (int)per;
        int rc = cu_fetch_logits(d, r, n, err);
        if (rc < 0) return rc;
        memcpy(b->logits + (size_t)(d->wanted0 + r) * (size_t)d->plan->n_vocab, d->out_host, (size_t)n * row);
        r += n;
    }
    return 0;
}

/* ---- one op at a time, for a tap ---- */

static int call_tap(cb_dev *d, const cb_op *o, double us, cb_err *err)
{
    cb_val v = o->out >= 0 ? o->out : o->in[0];
    const cb_value *x = &d->plan->values[v];
    int n = cu_n_rows(d, v);
    void *host = cb_alloc_array((size_t)n + 1, x->row_bytes);
    if (!host) return cb_fail(err, CB_ENOMEM, "no memory for a tap");
    cb_tap t = {.op = (int)(o - d->plan->ops), .name = o->name, .kind = cb_op_kind_name(o->kind), .dtype = "f32", .data = host, .rows = n,
                .row_bytes = (size_t)x->width * 4, .row_stride = x->row_bytes, .us = us};
    cb_tap_costs(d->plan, o, d->batch, &t);
    if (o->kind == CB_MOE_SORT) t.row_stride = t.row_bytes; /* lists of the whole step, one behind the other */
    if (x->group) {
        t.dtype = "i8";
        t.row_bytes = t.row_stride = cb_plan_plane_stride(x->width, x->pack);
    }
    CUresult r = d->cu.cuMemcpyDtoHAsync_(host, (CUdeviceptr)(uintptr_t)cu_value(d, v), (size_t)n * t.row_stride, d->stream);
    int rc = r == CUDA_SUCCESS ? cu_wait(d, err) : cu_fail(&d->cu, r, "a tap", err);
    if (rc == 0) d->batch->tap(d->batch->tap_ctx, &t);
    cb_free(host);
    return rc;
}

/* Events around each op. Memory is filled ahead of the first: while that runs the op gets in line, so that the time between the
 * events is the GPU's and not that of the launch. */
enum { TAP_FILL = 8 << 20 };

typedef struct tap_clock {
    CUevent e[2];
    CUdeviceptr fill;
} tap_clock;

static void clock_close(cb_dev *d, tap_clock *c)
{
    for (int i = 0; i < 2; i++)
        if (c->e[i]) d->cu.cuEventDestroy_(c->e[i]);
    if (c->fill) d->cu.cuMemFree_(c->fill);
}

static int clock_open(cb_dev *d, tap_clock *c, cb_err *err)
{
    TRY(d->cu.cuMemAlloc_(&c->fill, TAP_FILL), "memory for timing");
    for (int i = 0; i < 2; i++) TRY(d->cu.cuEventCreate_(&c->e[i], CU_EVENT_DEFAULT), "timing");
    return 0;
}

static int timed_op(cb_dev *d, tap_clock *c, int32_t i, double *us, cb_err *err)
{
    float ms;
    for (int k = 0; k < 2; k++) TRY(d->cu.cuMemsetD8Async_(c->fill, 0, TAP_FILL, d->stream), "timing");
    TRY(d->cu.cuEventRecord_(c->e[0], d->stream), "timing");
    int rc = cu_launch_ops(d, d->schedule, &d->schedule->launches[i], err);
    if (rc < 0) return rc;
    TRY(d->cu.cuEventRecord_(c->e[1], d->stream), "timing");
    TRY(d->cu.cuEventSynchronize_(c->e[1]), d->plan->ops[i].name);
    TRY(d->cu.cuEventElapsedTime_(&ms, c->e[0], c->e[1]), "timing");
    *us = ms * 1e3;
    return 0;
}

static int tapped_step(cb_dev *d, cb_err *err)
{
    tap_clock c = {0};
    int rc = clock_open(d, &c, err);
    for (int32_t i = 0; i < d->plan->n_ops && rc == 0; i++) {
        double us = 0;
        rc = timed_op(d, &c, i, &us, err);
        if (rc == 0) rc = call_tap(d, &d->plan->ops[i], us, err);
    }
    clock_close(d, &c);
    return rc < 0 ? rc : best(d, err);
}

/* ---- a step ---- */

/* The launches of the step that has been sent, and what is wanted of it. */
static int finish(cb_dev *d, cb_err *err)
{
    const cb_batch *b = d->batch;
    int rc;
    if (b->tap) rc = tapped_step(d, err);
    else if (d->n_splits && b->n_wanted <= d->logits_rows) rc = cu_graph_run(d, whole_step, err);
    else rc = whole_step(d, err);
    if (rc == 0 && b->asks) rc = cu_sample_launch(d, err);
    if (rc == 0) rc = fetch(d, err);
    while (rc == 0 && d->wanted0 + d->n_wanted < b->n_wanted) { /* more logits than there is room for: the head again */
        d->wanted0 += d->n_wanted;
        if (b->n_wanted - d->wanted0 < d->n_wanted) d->n_wanted = b->n_wanted - d->wanted0;
        CUdeviceptr wanted = (CUdeviceptr)(uintptr_t)(((cu_step *)d->step_host)->wanted + d->wanted0);
        TRY(d->cu.cuMemcpyHtoDAsync_((CUdeviceptr)(uintptr_t)&d->step->wanted, &wanted, sizeof wanted, d->stream), "the step's rows");
        TRY(d->cu.cuMemsetD8Async_((CUdeviceptr)(uintptr_t)d->step->best, 0, (size_t)d->n_wanted * sizeof *d->step->best, d->stream), "best ids");
        rc = launch(d, d->schedule->first_wanted, d->schedule->n_launches, err);
        if (rc == 0) rc = best(d, err);
        if (rc == 0 && b->asks) rc = cu_sample_launch(d, err);
        if (rc == 0) rc = fetch(d, err);
    }
    return rc < 0 || ((b->best || b->asks) && b->n_wanted) ? rc : results(d, err);
}

static int run(cb_dev *d, cb_err *err)
{
    const cb_batch *b = d->batch;
    int rc;
    if (b->n_wanted > d->logits_rows && b->tap)
        return cb_fail(err, CB_EUSAGE, "a tap on a step with logits of %d rows: the GPU has room for %d", b->n_wanted, d->logits_rows);
    d->wanted0 = 0;
    d->n_wanted = b->n_wanted < d->logits_rows ? b->n_wanted : d->logits_rows;
    if ((rc = send_tables(d, err)) < 0 || (rc = send_step(d, err)) < 0) return rc;
    d->schedule = &d->schedules[b->tap                         ? CU_FOR_TAP
                                : b->n_rows == 1               ? CU_FOR_ONE
                                : !d->n_splits                 ? CU_FOR_MANY
                                : b->n_rows <= CU_STREAM_ROWS  ? CU_FOR_FEW
                                                               : CU_FOR_SINGLES];
    if (!cu_tape_runs(d)) return finish(d, err);
    cu_tape_lock();
    rc = finish(d, err);
    cu_tape_unlock(d, rc == 0);
    return rc;
}

static int is_lost(cb_err *err) { return cb_fail(err, CB_EIO, "cuda: the device failed in an earlier step; close the model and open it again"); }

int cu_run(cb_dev *d, const cb_batch *b, cb_err *err)
{
    if (d->lost) return is_lost(err);
    CUresult r = d->cu.cuCtxSetCurrent_(d->context);
    if (r != CUDA_SUCCESS) return cu_fail(&d->cu, r, "the device", err);
    d->batch = b;
    int rc = run(d, err);
    if (rc == CB_EIO) d->lost = true; /* after a failed kernel the context answers nothing more */
    return rc;
}

int cu_state_copy(cb_dev *d, const cb_copy *ops, int n, cb_err *err)
{
    const cb_plan *p = d->plan;
    if (d->lost) return is_lost(err);
    TRY(d->cu.cuCtxSetCurrent_(d->context), "the device");
    for (int i = 0; i < n; i++) {
        size_t from = (size_t)ops[i].from, to = (size_t)ops[i].to;
        for (int r = 0; r < p->n_rec && ops[i].group < 0; r++) {
            CUdeviceptr base = (CUdeviceptr)(uintptr_t)d->rec[r];
            size_t bytes = d->rec_floats[r] * 4;
            TRY(d->cu.cuMemcpyDtoDAsync_(base + to * bytes, base + from * bytes, bytes, d->stream), "copying state");
        }
        for (int k = 0; k < p->n_kv; k++) {
            if (p->kv[k].group != ops[i].group) continue;
            CUdeviceptr base = (CUdeviceptr)(uintptr_t)d->kv[k].base;
            size_t bytes = (size_t)p->kv[k].n_heads * (size_t)d->kv[k].head_bytes;
            TRY(d->cu.cuMemcpyDtoDAsync_(base + to * bytes, base + from * bytes, bytes, d->stream), "copying state");
        }
    }
    return 0;
}
