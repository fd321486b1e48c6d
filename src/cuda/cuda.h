/* cuda.h: the CUDA backend's device. cuda.c opens and sizes it, load.c brings the weights, lower.c turns the plan into launches,
 * fuse.c and few.c know shorter ones, launch.c makes one launch, run.c runs a step, sample.c does its share of sampling. Kernels are in *.cu;
 * abi.h is what they are given. */
#ifndef CB_CUDA_CUDA_H
#define CB_CUDA_CUDA_H
#include "base/pool.h"
#include "cuda/abi.h"
#include "cuda/driver.h"
#include "cuda/experts.h"
#include "cuda/gemm.h"
#include "plan/backend.h"

/* Kernels by name; the order is that of the table in cuda.c. */
typedef enum cu_kernel {
    CU_K_ROWS, CU_K_ROWS_FEW8, CU_K_ROUTE, CU_K_UNITS4, CU_K_UNITS8,
#define CHAIN(name, ...) CU_K_##name,
    CU_CHAINS(CHAIN)
#undef CHAIN
#define CLUSTER(name, ...) CU_K_CLUSTER_##name,
    CU_CLUSTERS(CLUSTER)
#undef CLUSTER
    CU_K_ROWS_MANY, CU_K_ROWS_MANY_WIDE, CU_K_KV_PUT_MANY, CU_K_ROUTE_MANY, CU_K_SOFTCAP,
    CU_K_STREAM, CU_K_STREAM_1 = CU_K_STREAM + CU_N_STREAM,
    CU_K_EXPERTS = CU_K_STREAM_1 + CU_N_STREAM, CU_K_EXPERTS_LAST = CU_K_EXPERTS + CU_N_EXPERTS - 1, CU_K_GEMV4, CU_K_GEMV8, /* up to 4 and up to 8 rows a tile */
    CU_K_BATCH, CU_K_BATCH_LAST = CU_K_BATCH + CU_N_BATCH * CU_BATCH_SHAPES - 1, /* formats, of each the shapes */
    CU_K_ATTN, CU_K_ATTN_SPLIT, CU_K_ATTN_MERGE, CU_K_ATTN_MANY64, CU_K_ATTN_MANY128, CU_K_ATTN_MANY256,
    CU_K_ATTN_STEP64, CU_K_ATTN_STEP128, CU_K_ATTN_STEP256, CU_K_ATTN_STEP512, CU_K_ATTN_JOIN, CU_K_ATTN_JOIN_CLUSTER,
    CU_K_ATTN_CLUSTER64, CU_K_ATTN_CLUSTER128, CU_K_ATTN_CLUSTER256, CU_K_ATTN_CLUSTER512, CU_K_DELTA_STEP, /* fuse.h */
    CU_K_CONV, CU_K_CONV_KEEP, CU_K_DELTA, CU_K_DELTA_PREPARE, CU_K_DELTA_SCAN, CU_K_MOE_COUNT, CU_K_MOE_SORT,
    CU_K_SMALL, CU_K_SMALL_PACK = CU_K_SMALL + CU_N_SMALL, CU_K_SMALL_LAST = CU_K_SMALL_PACK + CU_N_SMALL - 1,
    CU_K_TAPE, CU_K_TAPE_LAST = CU_K_TAPE + CU_N_TAPE - 1, CU_K_TAPE_NORMED,
    CU_K_ENCODE, CU_K_REMAINDERS, CU_K_BEST, CU_K_CHANGE, CU_K_TOP_COUNT, CU_K_TOP_TAKE, CU_K_PROBE_READ, CU_K_PROBE_MMA,
    CU_N_KERNELS
} cu_kernel;

/* A launch: some operations of the plan, in order. */
typedef struct cu_launch {
    int first, n;            /* schedule->order[first .. first+n) are plan op indexes */
    const cu_row_op *table;  /* row-wise ops: their list on the device */
    int32_t shared;          /* the shared memory it takes, bytes */
    struct cu_few *few;      /* or for few rows the chain that does the same (few.h); NULL: none */
    int32_t anchor;          /* of a fused pattern (fuse.h); -1: none */
    bool wanted;             /* works on wanted rows */
} cu_launch;

/* The plan as launches. */
typedef struct cu_schedule {
    int32_t *order;          /* [plan->n_ops] */
    cu_launch *launches;
    int n_launches, first_wanted; /* launches from first_wanted on work on wanted rows */
} cu_schedule;

/* Steps of one row (the sort of routed rows is a row-wise op there), of up to CU_STREAM_ROWS sessions' single rows, of up to CU_GRAPH_ROWS,
 * any other steps, and steps of which a tap sees each op alone. The first three know fused patterns, the first two put products of the
 * step's rows beside those of experts. */
enum { CU_FOR_ONE, CU_FOR_FEW, CU_FOR_SINGLES, CU_FOR_MANY, CU_FOR_TAP, CU_N_SCHEDULES };

/* A decode step as a graph (graph.c). */
typedef struct cu_graph {
    int n_rows, n_wanted, n_splits;
    CUgraphExec exec;
} cu_graph;

enum { CU_MAX_GRAPHS = 128, CU_GRAPH_ROWS = 64 };

struct cb_dev {
    cu_driver cu;
    CUdevice device;
    CUcontext context;
    CUstream stream;
    CUmodule modules[32];
    const unsigned char *images[32]; /* what they were loaded from */
    int n_modules;
    CUfunction kernel[CU_N_KERNELS], gemm[CU_GEMMS]; /* gemm: NULL where the device cannot run it */
    char label[128];
    int n_sm, cc, max_shared; /* multiprocessors, compute capability times 10, shared memory of a block */
    bool pdl;                /* programmatic dependent launch: sm_90 and later */
    bool stream_on;          /* products of few rows by stream.cu */
    bool clusters_on;        /* the row of a step of one row by row_clusters.cu */
    int attn_clusters[CU_CLUSTER_RANKS + 1]; /* how many clusters of so many thread blocks attn_cluster.cu may have; 0: none */
    bool small_on;           /* steps of one row of a small model by small.cu */
    bool tape_on;            /* all layers of a step of one row by tape.cu */
    cb_pool *pool;           /* copies weights out of the page cache */

    const cb_plan *plan;
    cb_limits lim;
    cu_weight *weights;      /* [plan->n_weights]; of matrices */
    cu_weight *embed;        /* the same for embeddings: floats as stored */
    const float **vectors;   /* device addresses */
    const double **freq;     /* [plan->n_ropes] */
    CUdeviceptr weight_mem, state_mem, scratch_mem;
    uint64_t weight_bytes;

    cu_kv *kv;               /* [plan->n_kv] */
    float **rec;             /* [plan->n_rec] */
    size_t *rec_floats;      /* [plan->n_rec], of one slot; a convolution keeps one row more than the plan asks for (hybrid.cu) */
    uint8_t *scratch;        /* values: offset*max_rows + row*row_bytes */
    float *logits, *part;
    size_t part_floats;
    int logits_rows;         /* rows of logits there is room for; more are run in turn */
    int32_t *sort_at, *sort_tiles, *remainders;
    cu_sample sample;        /* its memory, for sample_rows rows */
    int sample_rows;
    cu_few_join *few_join;   /* [CU_FEW_ROWS] */
    int n_changes, most_changes; /* of a step: of all its rows; of one row at most, plus 1, or 0: sampling needs no launches */
    int32_t *arrived;        /* cu_heads_out */
    cu_step *step;           /* on the device */
    uint8_t *step_host;      /* pinned mirror of the step and its arrays */
    size_t step_bytes;
    CUdeviceptr tables;      /* [groups][max_sessions][table_stride] */
    int32_t *tables_host;    /* pinned mirror */
    int table_stride;
    uint8_t *asks_host;      /* pinned: changes of logits for sampling, and the answers */
    void *out_host;          /* pinned: logits or best ids on their way to the caller */
    size_t out_bytes;

    int tile_rows, wide_rows; /* rows of an attention tile when a run has several; of one of k_attn_many */
    cu_schedule schedules[CU_N_SCHEDULES];
    CUdeviceptr row_tables;  /* the cu_row_op of all launches of all schedules */
    struct cu_small_model *small; /* small.h; NULL: none */
    struct cu_tape_model *tape; /* tape.h; NULL: none */
    cu_graph graphs[CU_MAX_GRAPHS];
    int n_graphs, next_graph;
    struct cu_building *building; /* the graph that launches become part of; NULL: they go to the stream */

    /* the step being run */
    const cb_batch *batch;
    int taken;               /* multiprocessors that the launch in front leaves at its end only */
    bool tight;              /* the launch behind needs memory beside this one: k_attn_cluster */
    bool list_made;          /* the list of experts (sort_tiles) is there before the next launch begins */
    int n_runs, n_tiles, n_wide, n_splits; /* n_splits > 0: attention spreads each row's context */
    const cu_schedule *schedule;
    int wanted0, n_wanted;   /* the wanted rows being run */
    bool lost;               /* the device failed: every later step fails at once */
};

/* Values on the device. */
static inline void *cu_value(const cb_dev *d, cb_val v)
{
    const cb_value *x = &d->plan->values[v];
    return x->is_logits ? (void *)d->logits : d->scratch + x->offset * (size_t)d->lim.max_rows;
}
static inline int cu_slots(const cb_dev *d, cb_val v) { return d->plan->values[v].slots > 1 ? d->plan->values[v].slots : 1; }
static inline int cu_n_rows(const cb_dev *d, cb_val v)
{
    return (d->plan->values[v].wanted ? d->n_wanted : d->batch->n_rows) * cu_slots(d, v);
}
static inline int cu_stride(const cb_dev *d, cb_val v) { return (int)(d->plan->values[v].row_bytes / 4); }

/* cuda.c: memory of the device, and page-locked memory of the host. Errors: CB_ENOMEM with need and have. */
int cu_alloc(cb_dev *d, CUdeviceptr *out, uint64_t bytes, const char *what, cb_err *err);
int cu_alloc_pinned(cb_dev *d, void **out, uint64_t bytes, const char *what, cb_err *err);
/* load.c */
int cu_load(cb_dev *d, const cb_plan *p, cb_progress_fn progress, void *ctx, cb_err *err);
uint64_t cu_weight_need(const cb_plan *p);
void cu_free_weights(cb_dev *d);
/* The kernel for many rows of heads of `dim` dims, `per` query heads a KV head; CU_N_KERNELS: there is none. */
static inline cu_kernel cu_attn_many(const cb_dev *d, int dim, int per)
{
    cu_kernel k = dim == 64 ? CU_K_ATTN_MANY64 : dim == 128 ? CU_K_ATTN_MANY128 : dim == 256 ? CU_K_ATTN_MANY256 : CU_N_KERNELS;
    return per <= CU_WIDE_QUERIES && CU_ATTN_SHARED(dim) <= d->max_shared - 8192 ? k : CU_N_KERNELS;
}
/* lower.c: makes the schedules and their tables. */
int cu_lower(cb_dev *d, cb_err *err);
void cu_free_schedules(cb_dev *d);
/* launch.c: one launch (attention and convolution may take two). */
int cu_launch_ops(cb_dev *d, const cu_schedule *s, const cu_launch *l, cb_err *err);
/* Planes of all rows of value v. */
cu_planes cu_planes_of(const cb_dev *d, cb_val v);
/* Fills a row-wise op but for its places in shared memory. */
void cu_row_op_of(const cb_dev *d, int index, cu_row_op *out);
int cu_function_launch(cb_dev *d, CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned threads, unsigned shared, void *args, cb_err *err);
int cu_kernel_launch(cb_dev *d, cu_kernel k, unsigned gx, unsigned gy, unsigned gz, unsigned threads, unsigned shared, void *args, cb_err *err);
/* gy*gz clusters of so many thread blocks; and for how many the device has room at once. */
int cu_cluster_launch(cb_dev *d, cu_kernel k, unsigned blocks, unsigned gy, unsigned gz, unsigned threads, unsigned shared, void *args, cb_err *err);
int cu_clusters_at_once(cb_dev *d, cu_kernel k, unsigned blocks, unsigned threads, unsigned shared);
/* run.c */
int cu_run(cb_dev *d, const cb_batch *b, cb_err *err);
int cu_state_copy(cb_dev *d, const cb_copy *ops, int n, cb_err *err);
/* Finds the best id of each row, into `best`, which is zero; op: see cu_best. */
int cu_launch_best(cb_dev *d, unsigned long long *best, int op, cb_err *err);
int cu_wait(cb_dev *d, cb_err *err);
/* CB_ENUM when an op met a value that is not finite. */
int cu_check(cb_dev *d, int32_t bad_op, cb_err *err);
/* Logits of n of the rows being run, to d->out_host, which has room for one at least; waits for them. */
int cu_fetch_logits(cb_dev *d, int row, int n, cb_err *err);
/* sample.c: bytes for sampling of so many rows at a time, on the device and page-locked; their places. */
uint64_t cu_sample_bytes(const cb_plan *p, int rows);
uint64_t cu_sample_pinned(int rows);
int cu_sample_place(cb_dev *d, uint8_t *at, int rows, cb_err *err);
/* Puts what is asked of all wanted rows into the step, at host and device address; returns its bytes. */
size_t cu_sample_put(cb_dev *d, uint8_t *host, CUdeviceptr device);
int cu_sample_send(cb_dev *d, cb_err *err);
/* Of the rows being run: launches behind those of the step; gets the answers and waits for them; gives them to the caller. Where there are no
 * launches the answers are d->step_host's best. */
int cu_sample_launch(cb_dev *d, cb_err *err);
int cu_sample_copy(cb_dev *d, cb_err *err);
int cu_sample_give(cb_dev *d, cb_err *err);
/* probe.c */
int cu_run_probe(cb_dev *d, cb_probe *out, cb_err *err);

static inline size_t cu_kv_head_bytes(int dim)
{
    return ((size_t)(4 * CU_BLOCK * dim + ((dim + 63) / 64 + 1) * CU_BLOCK * 4) + 63) / 64 * 64;
}
#endif
