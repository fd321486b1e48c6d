/* launch.c: the operations of one launch become a kernel's arguments. */
#include "cuda/graph.h"
#include "cuda/lower.h"
#include "cuda/batch.h"
#include "cuda/few.h"
#include "cuda/stream.h"
#include "cuda/fuse.h"
#include "cuda/gemm_maps.h"
#include <math.h>
#include <string.h>

/* cluster: neighbours in x that are one; 0: none. */
static int launch(cb_dev *d, CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned cluster, unsigned threads, unsigned shared, void *args, cb_err *err)
{
    CUlaunchAttribute attrs[2];
    unsigned n = 0;
    memset(attrs, 0, sizeof attrs);
    if (d->pdl) {
        attrs[n].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attrs[n++].value.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster) {
        attrs[n].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        attrs[n].value.clusterDim.x = cluster;
        attrs[n].value.clusterDim.y = attrs[n].value.clusterDim.z = 1;
        n++;
    }
    CUlaunchConfig c = {.gridDimX = gx, .gridDimY = gy, .gridDimZ = gz, .blockDimX = threads, .blockDimY = 1, .blockDimZ = 1,
                        .sharedMemBytes = shared, .hStream = d->stream, .attrs = attrs, .numAttrs = n};
    void *params[] = {args};
    CUresult r = d->building ? cu_graph_add(d, &c, f, params) : d->cu.cuLaunchKernelEx_(&c, f, params, NULL);
    return r == CUDA_SUCCESS ? 0 : cu_fail(&d->cu, r, "launch", err);
}

int cu_function_launch(cb_dev *d, CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned threads, unsigned shared, void *args, cb_err *err)
{
    return launch(d, f, gx, gy, gz, 0, threads, shared, args, err);
}

int cu_kernel_launch(cb_dev *d, cu_kernel k, unsigned gx, unsigned gy, unsigned gz, unsigned threads, unsigned shared, void *args, cb_err *err)
{
    return cu_function_launch(d, d->kernel[k], gx, gy, gz, threads, shared, args, err);
}

int cu_cluster_launch(cb_dev *d, cu_kernel k, unsigned blocks, unsigned gy, unsigned gz, unsigned threads, unsigned shared, void *args, cb_err *err)
{
    return launch(d, d->kernel[k], blocks, gy, gz, blocks, threads, shared, args, err);
}

int cu_clusters_at_once(cb_dev *d, cu_kernel k, unsigned blocks, unsigned threads, unsigned shared)
{
    CUlaunchAttribute cluster = {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, .value.clusterDim = {blocks, 1, 1}};
    CUlaunchConfig c = {.gridDimX = blocks, .gridDimY = 1, .gridDimZ = 1, .blockDimX = threads, .blockDimY = 1, .blockDimZ = 1,
                        .sharedMemBytes = shared, .hStream = d->stream, .attrs = &cluster, .numAttrs = 1};
    int n = 0;
    return d->cu.cuOccupancyMaxActiveClusters_(&n, d->kernel[k], &c) == CUDA_SUCCESS ? n : 0;
}

/* ---- row-wise ops ---- */

cu_planes cu_planes_of(const cb_dev *d, cb_val v)
{
    const cb_value *x = &d->plan->values[v];
    int32_t n_rows = d->lim.max_rows * cu_slots(d, v);
    size_t rows = (size_t)n_rows * (x->pair ? 2 : 1), G = (size_t)((x->width + x->group - 1) / x->group);
    size_t stride = cb_plan_plane_stride(x->width, x->pack);
    cu_planes q = {.planes = cu_value(d, v), .stride = (int32_t)stride, .n_groups = (int32_t)G, .group = x->group, .pack = x->pack,
                   .n_rows = n_rows};
    q.dx = (float *)(q.planes + rows * stride);
    q.xs = q.dx + rows * G;
    q.sum = (int32_t *)(q.xs + rows * G);
    if (x->pair) q.flag = q.sum + rows * G;
    return q;
}

static cu_sort sort_of(const cb_dev *d, const cb_op *o, int n_rows)
{
    int32_t *slots = cu_value(d, o->out);
    return (cu_sort){.route = cu_value(d, o->in[0]), .slots = slots, .rows = slots + n_rows * o->n[1], .expert_at = d->sort_at,
                     .tiles = d->sort_tiles, .counts = d->sort_at + o->n[0] + 1, .stride = cu_stride(d, o->in[0]), .n_rows = n_rows, .k = o->n[1],
                     .n_experts = o->n[0],
                     .tile = cu_expert_tile(n_rows * o->n[1])};
}

void cu_row_op_of(const cb_dev *d, int index, cu_row_op *r)
{
    const cb_op *o = &d->plan->ops[index];
    memset(r, 0, sizeof *r);
    r->kind = o->kind;
    r->op = index;
    memcpy(r->n, o->n, sizeof r->n);
    memcpy(r->f, o->f, sizeof r->f);
    for (int i = 0; i < CB_MAX_IN; i++) {
        if (o->in[i] < 0) continue;
        r->in[i] = cu_value(d, o->in[i]);
        r->in_stride[i] = cu_stride(d, o->in[i]);
    }
    if (o->out >= 0) {
        r->out = cu_value(d, o->out);
        r->out_stride = cu_stride(d, o->out);
        r->width = d->plan->values[o->out].width;
    }
    if (o->w[0] >= 0 && d->plan->weights[o->w[0]].is_vector) r->w = d->vectors[o->w[0]];
    switch (o->kind) {
    case CB_EMBED: r->u.embed = d->embed[o->w[0]]; break;
    case CB_ROPE_TABLE: r->freq = d->freq[o->n[0]]; break;
    case CB_QUANT: r->u.q = cu_planes_of(d, o->out); break;
    case CB_KV_PUT: r->u.kv = d->kv[o->n[0]]; break;
    case CB_HADAMARD: r->f[0] = (float)(1.0 / sqrt((double)o->n[0])); break;
    case CB_MOE_SORT: r->u.sort = sort_of(d, o, 1); break;
    default: break;
    }
}

/* Can k_rows_many do this op on rows of `width`? */
static bool many_knows(const cb_dev *d, const cb_op *o, int width)
{
    const cb_value *out = &d->plan->values[o->out];
    if (o->kind == CB_ROUTE) return true;
    if (out->width != width) return false;
    switch (o->kind) {
    case CB_RMSNORM: return o->n[0] == 1 ? o->n[1] == width : o->n[1] == 64 || o->n[1] == 128 || o->n[1] == 256;
    case CB_HADAMARD: return width % o->n[0] == 0 && o->n[0] <= 4096;
    case CB_SPLIT: return (o->n[3] & (o->n[3] - 1)) == 0 && (o->n[1] | o->n[2] | o->n[3]) % 4 == 0;
    case CB_ROPE: /* a head in one warp */
        return (o->n[1] & (o->n[1] - 1)) == 0 && o->n[1] <= 32 * CU_MANY_ELEMENTS && (o->n[1] | o->n[2] | o->n[3]) % CU_MANY_ELEMENTS == 0;
    case CB_GLU: case CB_ADD: case CB_ADD_GATED: case CB_SCALE: case CB_MOE_SUM: return true;
    case CB_QUANT:
        return out->group == 32 ? out->pack <= 2 : out->group == 64 ? out->pack <= 4 : out->group == 128 && (out->pack == 2 || out->pack == 4);
    default: return false;
    }
}

/* The width of the rows that the chain of ops works on when k_rows_many can run it, or 0. Each op reads what the one before made, or memory
 * (handed_on() in lower.c). */
static int many_width(const cb_dev *d, const int32_t *ops, int n)
{
    const cb_plan *p = d->plan;
    int width = 0;
    for (int i = 0; i < n && !width; i++)
        if (p->ops[ops[i]].kind != CB_ROUTE && p->ops[ops[i]].out >= 0) width = p->values[p->ops[ops[i]].out].width;
    if (!width || width % 256 || width > CU_MANY_WIDTH || width * 17 / 4 + 2048 > d->max_shared - 8192 || n > CU_MANY_OPS) return 0;
    for (int i = 0; i < n; i++)
        if (p->ops[ops[i]].out < 0 || !many_knows(d, &p->ops[ops[i]], width)) return 0;
    return width;
}

static int rows_many(cb_dev *d, const int32_t *ops, const cu_launch *l, int n_rows, int width, cb_err *err)
{
    cu_rows_many a = {.step = d->step, .ops = l->table, .n_ops = l->n, .n_rows = n_rows, .width = width};
    a.warps = (width + 32 * CU_MANY_ELEMENTS - 1) / (32 * CU_MANY_ELEMENTS);
    int per_block = a.warps == 1 ? CU_MANY_SINGLE : 1, threads = 32 * a.warps * per_block, shared = threads * (CU_MANY_ELEMENTS + 1) * 4;
    int fit = (d->max_shared - 4096) / (shared + 4096), most = 768 / threads, want = (n_rows + per_block - 1) / per_block;
    int blocks = d->n_sm * (fit < 1 ? 1 : fit < most ? fit : most);
    const cb_op *first = &d->plan->ops[ops[0]];
    for (int k = 0; k < 2; k++)
        if (first->in[k] >= 0 && d->plan->values[first->in[k]].width == width && cu_slots(d, first->in[k]) == cu_slots(d, first->out)) a.ahead |= 1 << k;
    int rc = cu_kernel_launch(d, width <= CU_MANY_NARROW ? CU_K_ROWS_MANY : CU_K_ROWS_MANY_WIDE, (unsigned)(blocks < want ? blocks : want), 1, 1, (unsigned)threads, (unsigned)shared, &a, err);
    for (int i = 0; i < l->n && rc == 0; i++) {
        if (d->plan->ops[ops[i]].kind != CB_ROUTE) continue;
        a.ops = l->table + i;
        rc = cu_kernel_launch(d, CU_K_ROUTE_MANY, (unsigned)(n_rows + 3) / 4, 1, 1, 128, 0, &a, err);
    }
    return rc;
}

/* A thread block a row is sooner done than k_rows_many: up to CU_FEW_ROWS rows, and as many narrow ones as are all there at once. */
static bool few_enough(const cb_dev *d, const cu_few *f, int n_rows)
{
    return f && (n_rows < CU_FEW_ROWS || (f->threads <= 128 && f->a.n_parts == 1 && n_rows * f->threads <= 512 * d->n_sm));
}

static int rows(cb_dev *d, const cu_schedule *s, const cu_launch *l, cb_err *err)
{
    const cb_op *first = &d->plan->ops[s->order[l->first]];
    int n_rows = cu_n_rows(d, first->out >= 0 ? first->out : first->in[0]);
    cu_rows a = {.step = d->step, .ops = l->table, .n_ops = l->n};
    if (!n_rows) return 0;
    bool few = few_enough(d, l->few, n_rows);
    int width = n_rows >= CU_FEW_ROWS && !few ? many_width(d, s->order + l->first, l->n) : 0;
    if (width) return rows_many(d, s->order + l->first, l, n_rows, width, err);
    if (first->kind == CB_ROUTE && l->n == 1 && n_rows >= CU_FEW_ROWS) {
        cu_rows_many route = {.step = d->step, .ops = l->table, .n_ops = 1, .n_rows = n_rows};
        return cu_kernel_launch(d, CU_K_ROUTE_MANY, (unsigned)(n_rows + 3) / 4, 1, 1, 128, 0, &route, err);
    }
    if (first->kind == CB_KV_PUT && l->n == 1 && n_rows >= CU_FEW_ROWS && d->kv[first->n[0]].dim % 64 == 0 && d->kv[first->n[0]].dim <= CU_PUT_DIM) {
        cu_rows_many put = {.step = d->step, .ops = l->table, .n_ops = 1, .n_rows = n_rows};
        return cu_kernel_launch(d, CU_K_KV_PUT_MANY, (unsigned)(n_rows + CU_PUT_ROWS - 1) / CU_PUT_ROWS, (unsigned)d->kv[first->n[0]].n_heads, 1, 256, 0, &put, err);
    }
    if (few) {
        cu_few *f = l->few;
        if (f->cluster) return launch(d, d->kernel[f->kernel], (unsigned)f->cluster, (unsigned)f->y, 1, (unsigned)f->cluster, (unsigned)f->threads, (unsigned)f->shared, &f->a, err);
        if (f->beside) {
            cu_rows_two two = {.part = {f->a, f->beside->a}, .n_rows = n_rows};
            int others = cu_n_rows(d, d->plan->ops[s->order[l->first + l->n - 1]].out);
            return cu_kernel_launch(d, f->kernel, (unsigned)(n_rows + others), 1, 1, (unsigned)f->threads, (unsigned)f->shared, &two, err);
        }
        return cu_kernel_launch(d, f->kernel, (unsigned)n_rows, (unsigned)f->y, 1, (unsigned)f->threads, (unsigned)f->shared, &f->a, err);
    }
    if (first->kind == CB_SOFTCAP) return cu_kernel_launch(d, CU_K_SOFTCAP, 64, (unsigned)n_rows, 1, 256, 0, &a, err);
    return cu_kernel_launch(d, CU_K_ROWS, (unsigned)n_rows, 1, 1, n_rows <= d->n_sm ? 1024 : 512, (unsigned)l->shared, &a, err);
}

/* ---- products ---- */

/* Blocks of 16 outputs are shared out in proportion to the work of each part. */
static void share_blocks(const cb_dev *d, cu_linears *a, int n_y)
{
    int64_t work = 0, most = 4 * d->n_sm / (n_y < 1 ? 1 : n_y);
    for (int i = 0; i < a->n_parts; i++) work += (int64_t)((a->part[i].w.n_out + 15) / 16) * a->part[i].w.row_bytes;
    for (int i = 0; i < a->n_parts; i++) {
        int64_t tiles = (a->part[i].w.n_out + 15) / 16, mine = work ? most * (tiles * a->part[i].w.row_bytes) / work : 1;
        int64_t rounds = mine > 0 ? (tiles + mine - 1) / mine : tiles;
        mine = (tiles + rounds - 1) / rounds;
        a->block0[i + 1] = a->block0[i] + (int32_t)mine;
    }
}

enum { GEMM_ROWS = 17, GEMM_EXPERT_ROWS = 5 }; /* the many-rows kernel from here on; of experts, rows for each on average */

static int gemm_launch(cb_dev *d, const cu_gemm *g, cu_linear *a, cb_err *err)
{
    cu_gemm_args args;
    void *p = a;
    if (g->cc == 90) {
        CUresult r = cu_gemm_prepare(d->cu.cuTensorMapEncodeTiled_, g, a, &args);
        if (r != CUDA_SUCCESS) return cu_fail(&d->cu, r, g->kernel, err);
        p = &args;
    }
    return cu_function_launch(d, d->gemm[g - cu_gemms], (unsigned)cu_gemm_grid(g, a, d->n_sm), 1, 1, (unsigned)g->block, (unsigned)g->shared, p, err);
}

/* One part with the many-rows kernel, remainders too: 1, or 0 when there is none for it. *listed: whose remainders are listed. */
static int gemm(cb_dev *d, cu_linear *a, const int32_t **listed, cb_err *err)
{
    const cu_gemm *g = cu_gemm_find(a, d->cc, d->n_sm, d->max_shared);
    if (!g) return 0;
    int rc = gemm_launch(d, g, a, err);
    if (rc < 0 || !a->x.flag) return rc < 0 ? rc : 1;
    if (*listed != a->x.flag) {
        cu_remainders list = {.flag = a->x.flag, .list = d->remainders, .n_rows = a->n_rows, .shift = a->x.n_rows};
        if ((rc = cu_kernel_launch(d, CU_K_REMAINDERS, 1, 1, 1, 1024, 0, &list, err)) < 0) return rc;
        *listed = a->x.flag;
    }
    a->expert_at = d->remainders;
    a->x_row = d->remainders + 4;
    a->y_row = a->x_row + a->n_rows;
    a->n_experts = a->add = 1;
    rc = gemm_launch(d, g, a, err);
    return rc < 0 ? rc : 1;
}

/* The first part that works on a list of experts, or NULL. All of a launch have the same list. */
static const cu_linear *experts_of(const cu_linears *a)
{
    for (int i = 0; i < a->n_parts; i++)
        if (a->part[i].tiles) return &a->part[i];
    return NULL;
}

/* Bytes that the parts of each format read, and all of them. */
static int64_t stream_work(const cu_linears *all, int entries, int64_t work[CU_N_STREAM])
{
    int64_t sum = 0;
    for (int f = 0; f < CU_N_STREAM; f++) work[f] = 0;
    for (int i = 0; i < all->n_parts; i++) {
        int f = cu_stream_format(&all->part[i].w);
        if (f < 0) continue;
        int64_t n = (int64_t)all->part[i].w.n_out * all->part[i].w.row_bytes * (all->part[i].tiles ? entries : 1);
        work[f] += n;
        sum += n;
    }
    return sum;
}

/* The format that has the least work, of those whose bit is not set; -1: none. */
static int least_work(const int64_t work[CU_N_STREAM], unsigned tried)
{
    int best = -1;
    for (int f = 0; f < CU_N_STREAM; f++)
        if (work[f] && !(tried >> f & 1) && (best < 0 || work[f] < work[best])) best = f;
    return best;
}

/* Products of few rows, a launch for each format, side by side: those that are not for a k_stream are left in `all`. Each gets multiprocessors in
 * proportion to its work, so that all are there, with their weights, before their input is. */
static int stream(cb_dev *d, cu_linears *all, cb_err *err)
{
    const cu_linear *e = experts_of(all);
    bool single = d->schedule == &d->schedules[CU_FOR_ONE], list_read = false;
    int tile_rows = e ? cu_expert_tile(e->n_rows) : 0, entries = !e ? 0 : single ? e->n_rows : cu_max_tiles(e->n_rows, e->n_experts);
    int n_sm = d->n_sm - d->taken, left = 0, rc = 0, format;
    unsigned tried = 0, done = 0, blocks, shared; /* formats, by bits */
    int64_t work[CU_N_STREAM], all_work = stream_work(all, entries, work);
    while (d->stream_on && rc == 0 && (format = least_work(work, tried)) >= 0) {
        cu_stream a = {.entries = single ? entries : 0};
        bool one = true, experts = false;
        int share = (int)((n_sm * work[format] + all_work - 1) / all_work);
        tried |= 1u << format;
        for (int i = 0; i < all->n_parts; i++) {
            const cu_linear *p = &all->part[i];
            if (cu_stream_format(&p->w) != format) continue;
            a.part[a.n_parts++] = *p;
            experts |= p->tiles != NULL;
            one &= p->tiles ? single : p->n_rows == 1;
        }
        a.wait_first = experts && !d->list_made;
        if (!cu_stream_cut(&a, share, d->max_shared, tile_rows, entries, d->tight, &blocks, &shared)) continue;
        if (done) cu_graph_beside(d);
        rc = cu_kernel_launch(d, (cu_kernel)((one ? CU_K_STREAM_1 : CU_K_STREAM) + format), blocks, 1, 1, 32 * (CU_STREAM_WARPS + CU_STREAM_COPIERS), shared, &a, err);
        done |= 1u << format;
        list_read |= experts;
        all_work -= work[format];
        n_sm = n_sm > (int)blocks ? n_sm - (int)blocks : 1;
    }
    d->list_made |= list_read;
    for (int i = 0; i < all->n_parts; i++) {
        int f = cu_stream_format(&all->part[i].w);
        if (f < 0 || !(done >> f & 1)) all->part[left++] = all->part[i];
    }
    all->n_parts = left;
    if (done && left) cu_graph_beside(d);
    return rc;
}

/* Products of 17 to 64 rows, a launch for each format, side by side; those that k_batch leaves stay in `all`. The smaller launch goes first: the other
 * one begins on the multiprocessors it leaves. */
static int batch(cb_dev *d, cu_linears *all, cb_err *err)
{
    cu_linears part[CU_N_BATCH];
    cu_batch cut[CU_N_BATCH];
    int left = 0, rc = 0, done = 0;
    for (int f = 0; f < CU_N_BATCH; f++) part[f].n_parts = cut[f].blocks = 0;
    for (int i = 0; i < all->n_parts; i++) {
        int f = cu_batch_format(&all->part[i]);
        if (f < 0) all->part[left++] = all->part[i];
        else part[f].part[part[f].n_parts++] = all->part[i];
    }
    all->n_parts = left;
    for (int f = 0; f < CU_N_BATCH; f++) {
        if (!part[f].n_parts || cu_batch_cut(&part[f], d->n_sm, d->max_shared, &cut[f])) continue;
        for (int i = 0; i < part[f].n_parts; i++) all->part[all->n_parts++] = part[f].part[i];
        cut[f].blocks = 0;
    }
    for (;;) {
        int next = -1;
        for (int f = 0; f < CU_N_BATCH; f++)
            if (cut[f].blocks && (next < 0 || cut[f].blocks < cut[next].blocks)) next = f;
        if (done && (next >= 0 || all->n_parts)) cu_graph_beside(d);
        if (next < 0 || rc < 0) return rc;
        const cu_batch *b = &cut[next];
        done = 1;
        rc = cu_kernel_launch(d, (cu_kernel)(CU_K_BATCH + next * CU_BATCH_SHAPES + b->shape), b->blocks, 1, 1, b->threads, b->shared, &part[next], err);
        cut[next].blocks = 0;
    }
}

/* Products of a list of experts in steps of several rows, a launch for those of one shape: what is not for a k_experts is left in `all`. */
static int experts(cb_dev *d, cu_linears *all, cb_err *err)
{
    const cu_linear *e = experts_of(all);
    bool beside = d->schedule == &d->schedules[CU_FOR_ONE] || d->schedule == &d->schedules[CU_FOR_FEW]; /* other products stand in the same launch */
    if (!e || !d->stream_on || beside) return 0;
    int entries = cu_max_tiles(e->n_rows, e->n_experts), left = 0, rc = 0;
    for (int i = 0; i < all->n_parts; i++) {
        const cu_linear *p[CU_EXPERT_PARTS] = {&all->part[i], &all->part[i + 1]};
        cu_experts a;
        unsigned shared;
        int n = i + 1 < all->n_parts ? 2 : 1;
        if (rc < 0) break;
        while (n && (!p[0]->tiles || !cu_experts_cut(&a, p, n, d->max_shared, cu_expert_tile(e->n_rows), entries, &shared))) n--;
        if (!n) {
            all->part[left++] = all->part[i];
            continue;
        }
        a.wait_first = !d->list_made;
        rc = cu_kernel_launch(d, (cu_kernel)(CU_K_EXPERTS + cu_experts_format(&p[0]->w)), (unsigned)d->n_sm, 1, 1, 32 * CU_EXPERT_WARPS, shared, &a, err);
        d->list_made = true;
        i += n - 1;
    }
    all->n_parts = left;
    return rc;
}

static int gemv(cb_dev *d, cu_linears *a, cb_err *err)
{
    const cu_linear *e = experts_of(a);
    int n_y = e ? cu_max_tiles(e->n_rows, e->n_experts) : 1;
    bool wide = e && cu_expert_tile(e->n_rows) > 4;
    for (int i = 0; i < a->n_parts; i++) wide |= !a->part[i].tiles && a->part[i].n_rows > 4;
    for (int i = 0; i < a->n_parts; i++) {
        int chunks = (a->part[i].n_rows + (wide ? 7 : 3)) / (wide ? 8 : 4);
        if (!a->part[i].tiles && chunks > n_y) n_y = chunks;
    }
    share_blocks(d, a, e ? 1 : n_y);
    return cu_kernel_launch(d, wide ? CU_K_GEMV8 : CU_K_GEMV4, (unsigned)a->block0[a->n_parts], (unsigned)n_y, 1, 256, 0, a, err);
}

static void part_of(const cb_dev *d, const cb_op *o, cu_linear *a)
{
    bool experts = o->kind == CB_MOE_LINEAR;
    *a = (cu_linear){.w = d->weights[o->w[0]], .x = cu_planes_of(d, o->in[0]), .y = cu_value(d, o->out), .y_stride = cu_stride(d, o->out),
                     .n_rows = cu_n_rows(d, o->out), .add = experts ? 0 : o->n[0]};
    if (!experts) return;
    a->x.flag = NULL; /* experts do without remainders */
    const int32_t *slots = cu_value(d, o->in[1]);
    a->x_row = o->n[0] ? slots : slots + a->n_rows;
    a->x_step = o->n[0] != 0;
    a->y_row = slots;
    a->expert_at = d->sort_at;
    a->tiles = d->sort_tiles;
    a->n_experts = (int32_t)d->plan->weights[o->w[0]].matrix.stack;
}

static int products(cb_dev *d, const int32_t *ops, int n, cb_err *err)
{
    cu_linears a = {.n_parts = 0};
    const int32_t *listed = NULL;
    int left = 0, rc;
    for (int i = 0; i < n; i++) {
        part_of(d, &d->plan->ops[ops[i]], &a.part[a.n_parts]);
        a.n_parts += a.part[a.n_parts].n_rows != 0;
    }
    if (d->cc / 10 == 9 && (rc = batch(d, &a, err)) < 0) return rc;
    for (int i = 0; i < a.n_parts; i++) {
        cu_linear *p = &a.part[i];
        rc = p->n_rows >= (p->tiles ? GEMM_EXPERT_ROWS * p->n_experts : GEMM_ROWS) ? gemm(d, p, &listed, err) : 0;
        if (rc < 0) return rc;
        if (!rc) a.part[left++] = *p;
    }
    a.n_parts = left;
    rc = experts(d, &a, err);
    if (rc == 0) rc = stream(d, &a, err);
    return rc < 0 || !a.n_parts ? rc : gemv(d, &a, err);
}

/* ---- the rest ---- */

static int attention(cb_dev *d, int index, cb_err *err)
{
    const cb_op *o = &d->plan->ops[index];
    cu_attention a = {.step = d->step, .kv = d->kv[o->n[0]], .q = cu_value(d, o->in[0]), .out = cu_value(d, o->out), .part = d->part,
                      .q_stride = cu_stride(d, o->in[0]), .out_stride = cu_stride(d, o->out), .n_heads = o->n[1], .scale = o->f[0], .op = index};
    int per = a.n_heads / a.kv.n_heads, sets = (per + 15) / 16;
    unsigned gy = (unsigned)(a.kv.n_heads * sets);
    a.n_splits = cu_attn_splits(d, o->n[0]);
    size_t floats = (size_t)d->batch->n_rows * (size_t)a.n_heads * (size_t)a.n_splits * (size_t)(a.kv.dim + 2);
    if (d->n_splits && floats <= d->part_floats) {
        int rc = cu_kernel_launch(d, CU_K_ATTN_SPLIT, (unsigned)d->n_tiles, gy, (unsigned)a.n_splits, 256, 0, &a, err);
        return rc < 0 ? rc : cu_kernel_launch(d, CU_K_ATTN_MERGE, (unsigned)d->batch->n_rows, (unsigned)a.n_heads, 1, 128, 0, &a, err);
    }
    a.part = NULL;
    cu_kernel many = cu_attn_many(d, a.kv.dim, per);
    if (d->n_runs < d->batch->n_rows && many != CU_N_KERNELS)
        return cu_kernel_launch(d, many, (unsigned)d->n_wide, (unsigned)a.kv.n_heads, 1, CU_WIDE_THREADS, (unsigned)CU_ATTN_SHARED(a.kv.dim), &a, err);
    return cu_kernel_launch(d, CU_K_ATTN, (unsigned)d->n_tiles, gy, 1, 256, (unsigned)(16 * a.kv.dim * 4), &a, err);
}

static int conv(cb_dev *d, int index, cb_err *err)
{
    const cb_op *o = &d->plan->ops[index];
    cu_conv a = {.step = d->step, .x = cu_value(d, o->in[0]), .w = d->vectors[o->w[0]], .y = cu_value(d, o->out), .ring = d->rec[o->n[0]],
                 .ring_floats = (int64_t)d->rec_floats[o->n[0]], .x_stride = cu_stride(d, o->in[0]), .y_stride = cu_stride(d, o->out),
                 .width = d->plan->values[o->out].width, .taps = o->n[1], .n_rows = d->batch->n_rows, .n_runs = d->n_runs};
    unsigned gx = (unsigned)(a.width + 255) / 256;
    int rc = cu_kernel_launch(d, CU_K_CONV, gx, (unsigned)(a.n_rows + CU_CONV_ROWS - 1) / CU_CONV_ROWS, 1, 256, 0, &a, err);
    return rc < 0 ? rc : cu_kernel_launch(d, CU_K_CONV_KEEP, gx, (unsigned)a.n_runs, 1, 256, 0, &a, err);
}

static int delta(cb_dev *d, int index, cb_err *err)
{
    const cb_op *o = &d->plan->ops[index];
    cu_delta a = {.step = d->step, .u = cu_value(d, o->in[0]), .a = cu_value(d, o->in[1]), .b = cu_value(d, o->in[2]),
                  .a_log = d->vectors[o->w[0]], .dt_bias = d->vectors[o->w[1]], .y = cu_value(d, o->out), .state = d->rec[o->n[0]],
                  .state_floats = (int64_t)d->rec_floats[o->n[0]], .u_stride = cu_stride(d, o->in[0]), .a_stride = cu_stride(d, o->in[1]),
                  .b_stride = cu_stride(d, o->in[2]), .y_stride = cu_stride(d, o->out), .k_heads = o->n[1], .v_heads = o->n[2], .dk = o->n[3],
                  .dv = o->n[4], .n_runs = d->n_runs};
    bool power = a.dk == 32 || a.dk == 64 || a.dk == 128 || a.dk == 256;
    bool prepare = d->batch->n_rows > 4 * d->n_runs && power && a.dv % 4 == 0; /* long runs: scan.cu */
    int rc = prepare ? cu_kernel_launch(d, CU_K_DELTA_PREPARE, (unsigned)d->batch->n_rows, 1, 1, 256, 0, &a, err) : 0;
    return rc < 0 ? rc
                  : cu_kernel_launch(d, prepare ? CU_K_DELTA_SCAN : CU_K_DELTA, (unsigned)(a.dv + 31) / 32, (unsigned)a.v_heads,
                                     (unsigned)a.n_runs, 128, 0, &a, err);
}

static int sort(cb_dev *d, int index, cb_err *err)
{
    const cb_op *o = &d->plan->ops[index];
    cu_sort a = sort_of(d, o, cu_n_rows(d, o->in[0]));
    int64_t want = ((int64_t)a.n_rows * a.k + CU_SORT_ROWS - 1) / CU_SORT_ROWS;
    unsigned blocks = want < 1 ? 1 : want < CU_SORT_BLOCKS ? (unsigned)want : CU_SORT_BLOCKS;
    int rc = blocks == 1 ? 0 : cu_kernel_launch(d, CU_K_MOE_COUNT, blocks, 1, 1, 1024, (unsigned)(a.n_experts * 4), &a, err);
    return rc < 0 ? rc : cu_kernel_launch(d, CU_K_MOE_SORT, blocks, 1, 1, 1024, (unsigned)CU_SORT_SHARED(a.n_experts), &a, err);
}

int cu_launch_ops(cb_dev *d, const cu_schedule *s, const cu_launch *l, cb_err *err)
{
    const int32_t *ops = s->order + l->first;
    for (int i = 0; i < l->n; i++)
        if (d->plan->ops[ops[i]].kind == CB_MOE_SORT) d->list_made = false;
    const cu_launch *next = l + 1 < s->launches + s->n_launches ? l + 1 : NULL;
    d->tight = d->clusters_on && d->schedule == &d->schedules[CU_FOR_ONE] && next && next->anchor >= 0 && d->plan->ops[next->anchor].kind == CB_ATTENTION;
    if (l->anchor >= 0) return cu_launch_fused(d, l->anchor, err);
    switch (l->table ? CB_N_OP_KINDS : d->plan->ops[ops[0]].kind) {
    case CB_LINEAR: case CB_MOE_LINEAR: return products(d, ops, l->n, err);
    case CB_ATTENTION: return attention(d, ops[0], err);
    case CB_CONV: return conv(d, ops[0], err);
    case CB_DELTA: return delta(d, ops[0], err);
    case CB_MOE_SORT: return sort(d, ops[0], err);
    default: return rows(d, s, l, err);
    }
}
