/* cuda.c: opens a GPU, gives memory to a plan, and takes it back. */
#include "cuda/cuda.h"
#include "cuda/backend.h"
#include "base/env.h"
#include "cuda/lower.h"
#include "cuda/small.h"
#include "cuda/tape.h"
#include "base/sys.h"
#include <stdio.h>
#include <string.h>

/* The embedded kernels (Makefile: one fatbin a .cu file). */
extern const unsigned char cb_fatbin_rows[], cb_fatbin_rows_few[], cb_fatbin_row_chains[], cb_fatbin_row_clusters[], cb_fatbin_rows_many[], cb_fatbin_gemv[], cb_fatbin_attention[], cb_fatbin_attention_many[];
extern const unsigned char cb_fatbin_stream[], cb_fatbin_batch[], cb_fatbin_experts[], cb_fatbin_small[], cb_fatbin_tape[], cb_fatbin_hybrid[], cb_fatbin_scan[], cb_fatbin_tools[], cb_fatbin_sample[], cb_fatbin_attn_step[], cb_fatbin_attn_join[], cb_fatbin_attn_cluster[], cb_fatbin_delta_step[];
extern const unsigned char cb_fatbin_gemm[], cb_fatbin_gemm_sm90[];

/* In the order of cu_kernel; `shared`: most dynamic shared memory. */
static const struct kernel_entry {
    const unsigned char *image;
    const char *name;
    int shared;
} kernels[CU_N_KERNELS] = {
    [CU_K_ROWS] = {cb_fatbin_rows, "k_rows", CU_ROW_SHARED},
    [CU_K_ROWS_FEW8] = {cb_fatbin_rows_few, "k_rows_few8", CU_ROW_SHARED},
    [CU_K_ROUTE] = {cb_fatbin_rows_few, "k_route", 0},
    [CU_K_UNITS4] = {cb_fatbin_row_chains, "k_units4", CU_ROW_SHARED},
    [CU_K_UNITS8] = {cb_fatbin_row_chains, "k_units8", CU_ROW_SHARED},
#define CHAIN(name, ...) [CU_K_##name] = {cb_fatbin_row_chains, "k_" #name, CU_ROW_SHARED},
    CU_CHAINS(CHAIN)
#undef CHAIN
#define CLUSTER(name, ...) [CU_K_CLUSTER_##name] = {cb_fatbin_row_clusters, "k_cluster_" #name, CU_ROW_SHARED},
    CU_CLUSTERS(CLUSTER)
#undef CLUSTER
    [CU_K_ROWS_MANY] = {cb_fatbin_rows_many, "k_rows_many", CU_MANY_NARROW * 17 / 16 * 4},
    [CU_K_ROWS_MANY_WIDE] = {cb_fatbin_rows_many, "k_rows_many_wide", CU_MANY_WIDTH * 17 / 16 * 4},
    [CU_K_KV_PUT_MANY] = {cb_fatbin_attention_many, "k_kv_put_many", 0},
    [CU_K_ROUTE_MANY] = {cb_fatbin_rows_many, "k_route_many", 0},
    [CU_K_SOFTCAP] = {cb_fatbin_rows, "k_softcap", 0},
#define STREAM(name, ...) [CU_K_STREAM + CU_STREAM_##name] = {cb_fatbin_stream, "k_stream_" #name, CU_STREAM_SHARED}, \
                          [CU_K_STREAM_1 + CU_STREAM_##name] = {cb_fatbin_stream, "k_stream_" #name "_1", CU_STREAM_SHARED},
    CU_STREAM_FORMATS(STREAM)
#undef STREAM
#define BATCH(name, ...) [CU_K_BATCH + CU_BATCH_##name * CU_BATCH_SHAPES + CU_BATCH_WIDE] = {cb_fatbin_batch, "k_batch_" #name "_wide", CU_BATCH_SHARED}, \
                         [CU_K_BATCH + CU_BATCH_##name * CU_BATCH_SHAPES + CU_BATCH_TALL] = {cb_fatbin_batch, "k_batch_" #name "_tall", CU_BATCH_SHARED}, \
                         [CU_K_BATCH + CU_BATCH_##name * CU_BATCH_SHAPES + CU_BATCH_SPLIT] = {cb_fatbin_batch, "k_batch_" #name "_split", CU_BATCH_SHARED},
    CU_BATCH_FORMATS(BATCH)
#undef BATCH
#define EXPERTS(name, ...) [CU_K_EXPERTS + CU_EXPERTS_##name] = {cb_fatbin_experts, "k_experts_" #name, CU_STREAM_SHARED},
    CU_EXPERT_FORMATS(EXPERTS)
#undef EXPERTS
    [CU_K_GEMV4] = {cb_fatbin_gemv, "k_gemv4", 0},
    [CU_K_GEMV8] = {cb_fatbin_gemv, "k_gemv8", 0},
    [CU_K_ATTN] = {cb_fatbin_attention, "k_attn", 16 * 512 * 4},
    [CU_K_ATTN_SPLIT] = {cb_fatbin_attention, "k_attn_split", 0},
    [CU_K_ATTN_MERGE] = {cb_fatbin_attention, "k_attn_merge", 0},
    [CU_K_ATTN_MANY64] = {cb_fatbin_attention_many, "k_attn_many64", CU_ATTN_SHARED(64)},
    [CU_K_ATTN_MANY128] = {cb_fatbin_attention_many, "k_attn_many128", CU_ATTN_SHARED(128)},
    [CU_K_ATTN_MANY256] = {cb_fatbin_attention_many, "k_attn_many256", CU_ATTN_SHARED(256)},
    [CU_K_ATTN_STEP64] = {cb_fatbin_attn_step, "k_attn_step64", CU_STEP_FIXED(1) + CU_STEP_SLOTS * CU_STEP_HALF(1)},
    [CU_K_ATTN_STEP128] = {cb_fatbin_attn_step, "k_attn_step128", CU_STEP_FIXED(2) + CU_STEP_SLOTS * CU_STEP_HALF(2)},
    [CU_K_ATTN_STEP256] = {cb_fatbin_attn_step, "k_attn_step256", CU_STEP_FIXED(4) + CU_STEP_SLOTS * CU_STEP_HALF(4)},
    [CU_K_ATTN_STEP512] = {cb_fatbin_attn_step, "k_attn_step512", CU_STEP_FIXED(8) + CU_STEP_SLOTS * CU_STEP_HALF(8)},
    [CU_K_ATTN_JOIN] = {cb_fatbin_attn_join, "k_attn_join", CU_JOIN_STAGES * CU_JOIN_FLOATS * 4},
    [CU_K_ATTN_JOIN_CLUSTER] = {cb_fatbin_attn_join, "k_attn_join_cluster", CU_JOIN_FIXED(512) + CU_JOIN_STAGES * CU_JOIN_FLOATS * 4},
    [CU_K_ATTN_CLUSTER64] = {cb_fatbin_attn_cluster, "k_attn_cluster64", CU_ATTN_CLUSTER_FIXED(1) + CU_CLUSTER_BLOCKS * 64 * 4 + CU_STEP_SLOTS * CU_STEP_HALF(1)},
    [CU_K_ATTN_CLUSTER128] = {cb_fatbin_attn_cluster, "k_attn_cluster128", CU_ATTN_CLUSTER_FIXED(2) + CU_CLUSTER_BLOCKS * 128 * 4 + CU_STEP_SLOTS * CU_STEP_HALF(2)},
    [CU_K_ATTN_CLUSTER256] = {cb_fatbin_attn_cluster, "k_attn_cluster256", CU_ATTN_CLUSTER_FIXED(4) + CU_CLUSTER_BLOCKS * 256 * 4 + CU_STEP_SLOTS * CU_STEP_HALF(4)},
    [CU_K_ATTN_CLUSTER512] = {cb_fatbin_attn_cluster, "k_attn_cluster512", CU_ATTN_CLUSTER_FIXED(8) + CU_CLUSTER_BLOCKS * 512 * 4 + CU_STEP_SLOTS * CU_STEP_HALF(8)},
    [CU_K_DELTA_STEP] = {cb_fatbin_delta_step, "k_delta_step", 0},
    [CU_K_CONV] = {cb_fatbin_hybrid, "k_conv", 0},
    [CU_K_CONV_KEEP] = {cb_fatbin_hybrid, "k_conv_keep", 0},
    [CU_K_DELTA] = {cb_fatbin_hybrid, "k_delta", 0},
    [CU_K_DELTA_PREPARE] = {cb_fatbin_scan, "k_delta_prepare", 0},
    [CU_K_DELTA_SCAN] = {cb_fatbin_scan, "k_delta_scan", 0},
    [CU_K_MOE_COUNT] = {cb_fatbin_hybrid, "k_moe_count", 0},
    [CU_K_MOE_SORT] = {cb_fatbin_hybrid, "k_moe_sort", CU_SORT_SHARED(CB_MAX_EXPERTS)},
#define SMALL(name, ...) [CU_K_SMALL + CU_SMALL_##name] = {cb_fatbin_small, "k_small_" #name, 0}, [CU_K_SMALL_PACK + CU_SMALL_##name] = {cb_fatbin_small, "k_small_pack_" #name, 0},
    CU_SMALL_FORMATS(SMALL)
#undef SMALL
#define TAPE(name, ...) [CU_K_TAPE + CU_TAPE_##name] = {cb_fatbin_tape, "k_tape_" #name, 0},
    CU_TAPE_FORMATS(TAPE)
#undef TAPE
    [CU_K_TAPE_NORMED] = {cb_fatbin_tape, "k_tape_normed", 0},
    [CU_K_ENCODE] = {cb_fatbin_tools, "k_encode", 0},
    [CU_K_REMAINDERS] = {cb_fatbin_tools, "k_remainders", 0},
    [CU_K_BEST] = {cb_fatbin_sample, "k_best", 0},
    [CU_K_CHANGE] = {cb_fatbin_sample, "k_change", 0},
    [CU_K_TOP_COUNT] = {cb_fatbin_sample, "k_top_count", 0},
    [CU_K_TOP_TAKE] = {cb_fatbin_sample, "k_top_take", 0},
    [CU_K_PROBE_READ] = {cb_fatbin_tools, "k_probe_read", 0},
    [CU_K_PROBE_MMA] = {cb_fatbin_tools, "k_probe_mma", 0},
};

/* ---- opening ---- */

/* Loads an image once. */
static int module_of(cb_dev *d, const unsigned char *image, CUmodule *out, cb_err *err)
{
    int m = 0;
    while (m < d->n_modules && d->images[m] != image) m++;
    if (m == d->n_modules) {
        CB_ASSERT((size_t)m < sizeof d->modules / sizeof *d->modules);
        CUresult r = d->cu.cuModuleLoadData_(&d->modules[m], image);
        if (r == CUDA_ERROR_NO_BINARY_FOR_GPU || r == CUDA_ERROR_UNSUPPORTED_PTX_VERSION || r == CUDA_ERROR_INVALID_PTX ||
            r == CUDA_ERROR_JIT_COMPILER_NOT_FOUND || r == CUDA_ERROR_INVALID_SOURCE)
            return cb_fail(err, CB_ENODEV, "cuda: this build has no kernels for a GPU of compute capability %d.%d", d->cc / 10, d->cc % 10);
        if (r != CUDA_SUCCESS) return cu_fail(&d->cu, r, "loading kernels", err);
        d->images[d->n_modules++] = image;
    }
    *out = d->modules[m];
    return 0;
}

static int load_kernel(cb_dev *d, const unsigned char *image, const char *name, int shared, CUfunction *out, cb_err *err)
{
    CUmodule m = NULL;
    int rc = module_of(d, image, &m, err);
    if (rc < 0) return rc;
    CUresult r = d->cu.cuModuleGetFunction_(out, m, name);
    if (r == CUDA_SUCCESS && shared) r = d->cu.cuFuncSetAttribute_(*out, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared);
    return r == CUDA_SUCCESS ? 0 : cu_fail(&d->cu, r, name, err);
}

static int load_kernels(cb_dev *d, cb_err *err)
{
    int rc = 0;
    for (int k = 0; k < CU_N_KERNELS && rc == 0; k++) {
        int most = d->max_shared - 8192; /* beside what a kernel declares itself */
        rc = load_kernel(d, kernels[k].image, kernels[k].name, kernels[k].shared < most ? kernels[k].shared : most, &d->kernel[k], err);
    }
    for (int i = 0; i < CU_GEMMS && rc == 0; i++) {
        const cu_gemm *g = &cu_gemms[i];
        if ((g->cc == 90 ? d->cc != 90 : d->cc < g->cc) || g->shared > d->max_shared) continue;
        rc = load_kernel(d, g->cc == 90 ? cb_fatbin_gemm_sm90 : cb_fatbin_gemm, g->kernel, g->shared, &d->gemm[i], err);
    }
    return rc;
}

static int attribute(cb_dev *d, CUdevice_attribute a)
{
    int v = 0;
    return d->cu.cuDeviceGetAttribute_(&v, a, d->device) == CUDA_SUCCESS ? v : 0;
}

static int open_device(cb_dev *d, int index, cb_err *err)
{
    int n = 0;
    char name[96] = "";
    snprintf(d->label, sizeof d->label, "cuda:%d", index);
    d->cu.cuDeviceGetCount_(&n);
    if (index < 0 || index >= n) return cb_fail(err, CB_ENODEV, "cuda:%d: there %s %d GPU%s", index, n == 1 ? "is" : "are", n, n == 1 ? "" : "s");
    CUresult r = d->cu.cuDeviceGet_(&d->device, index);
    if (r == CUDA_SUCCESS) r = d->cu.cuDevicePrimaryCtxRetain_(&d->context, d->device);
    if (r == CUDA_SUCCESS) r = d->cu.cuCtxSetCurrent_(d->context);
    if (r == CUDA_SUCCESS) r = d->cu.cuStreamCreate_(&d->stream, CU_STREAM_NON_BLOCKING);
    if (r != CUDA_SUCCESS) {
        cb_err why;
        cu_fail(&d->cu, r, "opening the GPU", &why);
        return cb_fail(err, CB_ENODEV, "%s", why.text);
    }
    int major = attribute(d, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR), minor = attribute(d, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    d->n_sm = attribute(d, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    d->max_shared = attribute(d, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    if (!major || d->n_sm < 1 || d->max_shared < 48 << 10)
        return cb_fail(err, CB_ENODEV, "cuda:%d: the driver says nothing of the GPU's properties", index);
    if (major < 8) return cb_fail(err, CB_ENODEV, "cuda:%d: compute capability %d.%d; needed is 8.0 or later", index, major, minor);
    d->cc = 10 * major + minor;
    d->pdl = major >= 9 && d->cu.add_edges;
    d->cu.cuDeviceGetName_(name, sizeof name, d->device);
    snprintf(d->label, sizeof d->label, "cuda:%d %s", index, name);
    return load_kernels(d, err);
}

static void cuda_close(cb_dev *d)
{
    if (!d) return;
    if (d->context) {
        d->cu.cuCtxSetCurrent_(d->context);
        if (d->stream) d->cu.cuStreamSynchronize_(d->stream);
        for (int i = 0; i < d->n_graphs; i++) d->cu.cuGraphExecDestroy_(d->graphs[i].exec);
        cu_free_weights(d);
        cu_free_schedules(d);
        cu_small_free(d->small);
        cu_tape_free(d->tape);
        if (d->state_mem) d->cu.cuMemFree_(d->state_mem);
        if (d->scratch_mem) d->cu.cuMemFree_(d->scratch_mem);
        if (d->step_host) d->cu.cuMemFreeHost_(d->step_host);
        if (d->tables_host) d->cu.cuMemFreeHost_(d->tables_host);
        if (d->asks_host) d->cu.cuMemFreeHost_(d->asks_host);
        if (d->out_host) d->cu.cuMemFreeHost_(d->out_host);
        for (int i = 0; i < d->n_modules; i++) d->cu.cuModuleUnload_(d->modules[i]);
        if (d->stream) d->cu.cuStreamDestroy_(d->stream);
        d->cu.cuDevicePrimaryCtxRelease_(d->device);
    }
    cu_driver_close(&d->cu);
    cb_free(d->kv);
    cb_free(d->rec);
    cb_free(d->rec_floats);
    cb_pool_close(d->pool);
    cb_free(d);
}

static int cuda_open(const cb_backend_opts *opts, cb_dev **out, cb_err *err)
{
    *out = NULL;
    cb_dev *d = cb_alloc(sizeof *d);
    if (!d) return cb_fail(err, CB_ENOMEM, "no memory for a CUDA device");
    int rc = cu_driver_open(&d->cu, err), cores = cb_physical_cores();
    if (rc == 0) rc = open_device(d, opts->index, err);
    if (rc == 0) rc = cb_pool_open(cores < 8 ? cores : 8, &d->pool, err);
    if (rc < 0) cuda_close(d);
    else *out = d;
    return rc;
}

static int cuda_load(cb_dev *d, const cb_plan *p, cb_progress_fn progress, void *ctx, cb_err *err)
{
    CUresult r = d->cu.cuCtxSetCurrent_(d->context);
    return r == CUDA_SUCCESS ? cu_load(d, p, progress, ctx, err) : cu_fail(&d->cu, r, "the GPU", err);
}

/* ---- memory ---- */

static double mib(uint64_t bytes) { return (double)bytes / 1048576; }

int cu_alloc(cb_dev *d, CUdeviceptr *out, uint64_t bytes, const char *what, cb_err *err)
{
    size_t have = 0, all = 0;
    CUresult r = d->cu.cuMemAlloc_(out, bytes ? bytes : 1);
    if (r != CUDA_ERROR_OUT_OF_MEMORY) return r == CUDA_SUCCESS ? 0 : cu_fail(&d->cu, r, what, err);
    d->cu.cuMemGetInfo_(&have, &all);
    return cb_fail(err, CB_ENOMEM, "%.40s: not enough memory for %s: need %.1f MiB, have %.1f of %.1f MiB", d->label, what, mib(bytes), mib(have), mib(all));
}

int cu_alloc_pinned(cb_dev *d, void **out, uint64_t bytes, const char *what, cb_err *err)
{
    CUresult r = d->cu.cuMemHostAlloc_(out, bytes, 0);
    if (r != CUDA_ERROR_OUT_OF_MEMORY) return r == CUDA_SUCCESS ? 0 : cu_fail(&d->cu, r, what, err);
    return cb_fail(err, CB_ENOMEM, "%.40s: not enough page-locked host memory for %s: need %.1f MiB, have %.1f MiB of host memory", d->label, what,
                   mib(bytes), mib(cb_memory_available()));
}

/* ---- sizes ---- */

enum { LOGITS_BYTES = 512 << 20, PART_FLOATS = 32 << 20, OUT_BYTES = 32 << 20 };

static int logits_rows(const cb_plan *p, const cb_limits *lim)
{
    int64_t n = (int64_t)LOGITS_BYTES / ((int64_t)p->n_vocab * 4);
    n = n < 64 ? 64 : n;
    return n < lim->max_rows ? (int)n : lim->max_rows;
}

static int sample_rows(const cb_plan *p, const cb_limits *lim)
{
    int n = logits_rows(p, lim);
    return n < lim->max_sessions ? n : lim->max_sessions;
}

static int table_stride(const cb_plan *p) { return (p->ctx_trained + CU_BLOCK - 1) / CU_BLOCK + 1; }

static size_t tables_bytes(const cb_plan *p, const cb_limits *lim)
{
    return (size_t)CB_MAX_KV_GROUPS * (size_t)lim->max_sessions * (size_t)table_stride(p) * 4;
}

static size_t out_bytes(const cb_plan *p) { return (size_t)p->n_vocab * 4 > OUT_BYTES ? (size_t)p->n_vocab * 4 : OUT_BYTES; }

static size_t step_bytes(const cb_limits *lim)
{
    return sizeof(cu_step) + CB_MAX_KV_GROUPS * 8 + (size_t)lim->max_rows * (8 + 4 * 11) + (size_t)lim->max_sessions * sizeof(cu_ask) + 8;
}

/* Room for the partial results of attention: of one row of the longest context at least. */
static uint64_t part_floats(const cb_plan *p, const cb_limits *lim)
{
    uint64_t most = p->n_kv ? PART_FLOATS : 0;
    for (int i = 0; i < p->n_ops; i++) {
        if (p->ops[i].kind != CB_ATTENTION) continue;
        const cb_kv_state *s = &p->kv[p->ops[i].n[0]];
        uint64_t blocks = (uint64_t)lim->kv_blocks[s->group], longest = (uint64_t)table_stride(p);
        if (blocks > longest) blocks = longest;
        if (s->window && blocks > (uint64_t)s->window / CU_BLOCK + 2) blocks = (uint64_t)s->window / CU_BLOCK + 2;
        uint64_t n = blocks * (uint64_t)p->ops[i].n[1] * (uint64_t)(s->dim + 2);
        if (n > most) most = n;
    }
    return most;
}

/* Where each part of the scratch begins; returns the size. */
typedef struct parts {
    uint64_t small, tape, values, logits, part, sort_at, sort_tiles, remainders, sample, few_join, arrived, step, tables, launches;
} parts;

static uint64_t lay_out(const cb_plan *p, const cb_limits *lim, parts *o)
{
    uint64_t at = 0;
    int64_t routed = (int64_t)lim->max_rows * p->max_top_k;
#define PART(name, bytes) o->name = at, at += ((uint64_t)(bytes) + 255) / 256 * 256
    PART(values, p->scratch_row_bytes * (uint64_t)lim->max_rows);
    PART(logits, (uint64_t)logits_rows(p, lim) * (uint64_t)p->n_vocab * 4);
    PART(part, part_floats(p, lim) * 4);
    PART(sort_at, (p->max_experts * (1 + CU_SORT_BLOCKS) + 1) * 4);
    PART(sort_tiles, (routed + 2) * 16);
    PART(remainders, (uint64_t)lim->max_rows * 8 + 16);
    PART(sample, cu_sample_bytes(p, sample_rows(p, lim)));
    PART(few_join, CU_FEW_ROWS * sizeof(cu_few_join));
    PART(arrived, CU_GRAPH_ROWS * (4 + CU_MOST_PIECES * 8));
    PART(step, step_bytes(lim));
    PART(tables, tables_bytes(p, lim));
    PART(small, cu_small_bytes(p));
    PART(tape, cu_tape_bytes(p));
    PART(launches, (uint64_t)p->n_ops * CU_N_SCHEDULES * sizeof(cu_row_op));
#undef PART
    return at;
}

static uint64_t kv_bytes(const cb_plan *p, const cb_limits *lim, int i)
{
    return (uint64_t)lim->kv_blocks[p->kv[i].group] * (uint64_t)p->kv[i].n_heads * cu_kv_head_bytes(p->kv[i].dim);
}
/* Of one slot: a convolution keeps as many rows as it has taps (hybrid.cu). */
static size_t rec_floats(const cb_plan *p, int i)
{
    for (int k = 0; k < p->n_ops; k++)
        if (p->ops[k].kind == CB_CONV && p->ops[k].n[0] == i) return p->rec[i].floats / (size_t)(p->ops[k].n[1] - 1) * (size_t)p->ops[k].n[1];
    return p->rec[i].floats;
}
static uint64_t rec_bytes(const cb_plan *p, const cb_limits *lim, int i)
{
    return ((uint64_t)lim->n_slots * rec_floats(p, i) * 4 + 255) / 256 * 256;
}

static void cuda_need(const cb_plan *p, const cb_limits *lim, int n_threads, cb_mem *out)
{
    (void)n_threads;
    parts o;
    *out = (cb_mem){.weights = cu_weight_need(p), .scratch = lay_out(p, lim, &o)};
    out->pinned = step_bytes(lim) + tables_bytes(p, lim) + cu_sample_pinned(sample_rows(p, lim)) + out_bytes(p);
    for (int i = 0; i < p->n_kv; i++) out->kv[p->kv[i].group] += kv_bytes(p, lim, i);
    for (int g = 0; g < CB_MAX_KV_GROUPS; g++) out->state += out->kv[g];
    for (int i = 0; i < p->n_rec; i++) out->recurrent += rec_bytes(p, lim, i);
    out->state += out->recurrent + 256; /* the recurrent part begins at a multiple of 256 */
}

/* ---- how steps of few rows are made ---- */

/* Kernels of steps of single rows get the same division of the L1 cache as k_stream: a multiprocessor must be idle to change it, and
 * launches could not overlap. (k_rows_many: as many rows at a time as fit.) */
static bool is_of_single_rows(cu_kernel k)
{
    return k < CU_K_ROWS_MANY || k == CU_K_SOFTCAP || (k >= CU_K_STREAM && k <= CU_K_EXPERTS_LAST) || (k >= CU_K_BATCH && k <= CU_K_BATCH_LAST) || (k >= CU_K_ATTN_STEP64 && k <= CU_K_DELTA_STEP) || (k >= CU_K_BEST && k <= CU_K_TOP_TAKE);
}

/* What is written for 9.x, unless it is not wanted. */
static bool chosen(const cb_dev *d, const char *asked) { return d->cc / 10 == 9 && (!asked || strcmp(asked, "off") != 0); }

/* How many clusters of n thread blocks of k_attn_cluster find a place at once, one block a multiprocessor, for each n. */
static void count_clusters(cb_dev *d)
{
    for (int k = CU_K_ATTN_CLUSTER64; k <= CU_K_ATTN_CLUSTER512; k++) d->cu.cuFuncSetAttribute_(d->kernel[k], CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1);
    for (int n = 1; n <= CU_CLUSTER_RANKS; n++)
        d->attn_clusters[n] = cu_clusters_at_once(d, CU_K_ATTN_CLUSTER512, (unsigned)n, 32 * CU_CLUSTER_WARPS, (unsigned)(d->max_shared / 2 + 4096));
}

static void choose_kernels(cb_dev *d)
{
    d->stream_on = chosen(d, cb_env_cuda_stream());
    d->clusters_on = chosen(d, cb_env_cuda_clusters());
    if (d->clusters_on) count_clusters(d);
    d->small_on = chosen(d, cb_env_cuda_small());
    d->tape_on = chosen(d, cb_env_cuda_tape()) && !attribute(d, CU_DEVICE_ATTRIBUTE_MPS_ENABLED); /* another process' launches could keep some of its blocks out */
    for (int k = 0; k < CU_N_KERNELS; k++)
        if (k == CU_K_ROWS_MANY || (d->stream_on && is_of_single_rows((cu_kernel)k)))
            d->cu.cuFuncSetAttribute_(d->kernel[k], CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, CU_SHAREDMEM_CARVEOUT_MAX_SHARED);
}

static int cuda_prepare(cb_dev *d, const cb_limits *lim, cb_err *err)
{
    const cb_plan *p = d->plan;
    cb_mem need;
    parts o;
    d->lim = *lim;
    cuda_need(p, lim, 0, &need);
    uint64_t scratch = lay_out(p, lim, &o);
    d->kv = cb_alloc_array((size_t)p->n_kv, sizeof *d->kv);
    d->rec = cb_alloc_array((size_t)p->n_rec, sizeof *d->rec);
    d->rec_floats = cb_alloc_array((size_t)p->n_rec, sizeof *d->rec_floats);
    if (!d->kv || !d->rec || !d->rec_floats) return cb_fail(err, CB_ENOMEM, "no memory");
    d->table_stride = table_stride(p);
    d->step_bytes = step_bytes(lim);
    d->out_bytes = out_bytes(p);
    CUresult r = d->cu.cuCtxSetCurrent_(d->context);
    int rc = r == CUDA_SUCCESS ? 0 : cu_fail(&d->cu, r, "the GPU", err);
    if (rc == 0) choose_kernels(d);
    if (rc == 0) rc = cu_alloc(d, &d->state_mem, need.state, "the state of sequences", err);
    if (rc == 0) rc = cu_alloc(d, &d->scratch_mem, scratch, "activations and logits", err);
    if (rc == 0) rc = cu_alloc_pinned(d, (void **)&d->step_host, d->step_bytes, "the rows of a step", err);
    if (rc == 0) rc = cu_alloc_pinned(d, (void **)&d->tables_host, tables_bytes(p, lim), "block tables", err);
    if (rc == 0) rc = cu_alloc_pinned(d, (void **)&d->asks_host, cu_sample_pinned(sample_rows(p, lim)), "sampling", err);
    if (rc == 0) rc = cu_alloc_pinned(d, &d->out_host, d->out_bytes, "logits", err);
    if (rc < 0) return rc;
    memset(d->tables_host, 0xff, tables_bytes(p, lim));
    uint8_t *at = (uint8_t *)d->state_mem, *base = (uint8_t *)d->scratch_mem;
    for (int i = 0; i < p->n_kv; i++) {
        const cb_kv_state *s = &p->kv[i];
        d->kv[i] = (cu_kv){at, (int64_t)cu_kv_head_bytes(s->dim), s->n_heads, s->dim, s->window, s->group};
        at += kv_bytes(p, lim, i);
    }
    at = (uint8_t *)(((uintptr_t)at + 255) & ~(uintptr_t)255);
    for (int i = 0; i < p->n_rec; i++) {
        d->rec[i] = (float *)at;
        d->rec_floats[i] = rec_floats(p, i);
        at += rec_bytes(p, lim, i);
    }
    d->scratch = base + o.values;
    d->logits = (float *)(base + o.logits);
    d->logits_rows = logits_rows(p, lim);
    d->part = (float *)(base + o.part);
    d->part_floats = part_floats(p, lim);
    d->sort_at = (int32_t *)(base + o.sort_at);
    d->sort_tiles = (int32_t *)(base + o.sort_tiles);
    d->remainders = (int32_t *)(base + o.remainders);
    d->few_join = (cu_few_join *)(base + o.few_join);
    d->arrived = (int32_t *)(base + o.arrived);
    d->step = (cu_step *)(base + o.step);
    if ((rc = cu_sample_place(d, base + o.sample, sample_rows(p, lim), err)) < 0) return rc;
    d->tables = (CUdeviceptr)(uintptr_t)(base + o.tables);
    d->row_tables = (CUdeviceptr)(uintptr_t)(base + o.launches);
    d->tile_rows = 16;
    d->wide_rows = CU_WIDE_QUERIES;
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == CB_ATTENTION) {
            int per = p->ops[i].n[1] / p->kv[p->ops[i].n[0]].n_heads, rows = per < 16 ? 16 / per : 1;
            if (rows < d->tile_rows) d->tile_rows = rows;
            if (cu_attn_many(d, p->kv[p->ops[i].n[0]].dim, per) != CU_N_KERNELS && CU_WIDE_QUERIES / per < d->wide_rows)
                d->wide_rows = CU_WIDE_QUERIES / per;
        }
    r = d->cu.cuMemsetD8Async_((CUdeviceptr)(uintptr_t)d->few_join, 0, CU_FEW_ROWS * sizeof *d->few_join, d->stream);
    if (r == CUDA_SUCCESS) r = d->cu.cuMemsetD8Async_((CUdeviceptr)(uintptr_t)d->arrived, 0, CU_GRAPH_ROWS * 4, d->stream);
    /* attention of many rows multiplies the whole of a block of keys, also what no token has been put into yet, by weights of 0 */
    if (r == CUDA_SUCCESS) r = d->cu.cuMemsetD8Async_(d->state_mem, 0, need.state, d->stream);
    rc = r == CUDA_SUCCESS ? cu_tape_make(d, (CUdeviceptr)(uintptr_t)(base + o.tape), err) : cu_fail(&d->cu, r, "activations", err);
    if (rc == 0) rc = cu_lower(d, err);
    if (rc == 0) cu_tape_place(d);
    return rc < 0 ? rc : cu_small_make(d, (CUdeviceptr)(uintptr_t)(base + o.small), err);
}

static const char *cuda_label(const cb_dev *d) { return d->label; }
static int cuda_n_threads(const cb_dev *d) { return cb_pool_size(d->pool); }

static uint64_t cuda_available(const cb_dev *d)
{
    size_t have = 0, all = 0;
    d->cu.cuCtxSetCurrent_(d->context);
    if (d->cu.cuMemGetInfo_(&have, &all) != CUDA_SUCCESS) return 0;
    uint64_t kept = (uint64_t)512 << 20; /* loading buffers, graphs, the driver */
    return have > kept ? have - kept : 0;
}

const cb_backend cb_backend_cuda = {.name = "cuda", .open = cuda_open, .close = cuda_close, .load = cuda_load, .need = cuda_need,
                                    .prepare = cuda_prepare, .run = cu_run, .state_copy = cu_state_copy, .label = cuda_label,
                                    .n_threads = cuda_n_threads, .available = cuda_available, .probe = cu_run_probe, .samples = true, .rows = 8192};
