/* backend.h: what a device must offer to run a plan. run/ knows a backend only through this. */
#ifndef CB_PLAN_BACKEND_H
#define CB_PLAN_BACKEND_H
#include "plan/plan.h"
#include "plan/top.h"

typedef struct cb_dev cb_dev;

typedef struct cb_backend_opts {
    const char *level;   /* after "cpu:", or NULL */
    int n_threads;       /* 0: physical cores */
    int index;           /* which of several devices of this kind */
} cb_backend_opts;

enum { CB_DEFAULT_ROWS = 512 };

/* Sizes fixed at prepare. */
typedef struct cb_limits {
    int max_rows, max_sessions;
    int n_slots;                      /* recurrent slots: max_sessions that steps use, then those of snapshots */
    int kv_blocks[CB_MAX_KV_GROUPS];  /* blocks of 64 tokens in each group's pool */
} cb_limits;

/* One step. All arrays are the caller's. */
typedef struct cb_batch {
    int n_rows;
    const int32_t *token;      /* [n_rows] */
    const int32_t *pos;        /* [n_rows], absolute */
    const int32_t *slot;       /* [n_rows], which session; a session's rows stand together, positions ascending by 1 */
    /* Block table of a session in a KV group: block number of absolute block pos/64, at kv[group][slot][pos/64]. */
    const int32_t *const *kv[CB_MAX_KV_GROUPS];
    const int32_t *wanted;     /* [n_wanted] row indexes */
    int n_wanted;
    float *logits;             /* [n_wanted][n_vocab]; may be NULL when best or asks are not */
    int32_t *best;             /* NULL, or [n_wanted]: the id with the largest logit, ties to the lower */
    const cb_ask *asks;        /* NULL, or [n_wanted], of a backend that samples: what of each row is given to `answer` instead */
    int n_ids;                 /* asks: ids that count are 0 .. n_ids-1 */
    /* Wanted row i, in order, with top and no logits; when it returns 1 it is called again with the row's logits, [n_vocab] with the changes of
     * its ask in them. */
    int (*answer)(void *ctx, int i, const cb_top *top, const float *logits);
    void *answer_ctx;
    cb_tap_fn tap;             /* NULL: none */
    void *tap_ctx;
} cb_batch;

/* Bytes and flops of an op in this step, for a tap: weights, of a sequence's state what its last row sees, recurrent state read and
 * written. Experts count as if no two rows shared any, up to all of them. */
void cb_tap_costs(const cb_plan *p, const cb_op *op, const cb_batch *b, cb_tap *t);

/* One copy of state: of all layers that share it. */
typedef struct cb_copy {
    int group;         /* a KV group: block `from` of each of its layers to block `to`; -1: recurrent slot `from` to slot `to` */
    int32_t from, to;
} cb_copy;

typedef struct cb_mem {
    uint64_t weights, state, scratch; /* private bytes */
    uint64_t kv[CB_MAX_KV_GROUPS], recurrent; /* what `state` consists of, up to its alignment */
    uint64_t pinned;                  /* page-locked memory of the host, when those are a device's */
} cb_mem;

typedef struct cb_backend {
    const char *name;
    /* CB_ENODEV when the device is absent or lacks the level asked for. */
    int (*open)(const cb_backend_opts *opts, cb_dev **out, cb_err *err);
    void (*close)(cb_dev *d);
    /* Packs or uploads the weights of the plan; checkpoint and plan outlive the device. */
    int (*load)(cb_dev *d, const cb_plan *p, cb_progress_fn progress, void *ctx, cb_err *err);
    /* Private bytes that load + prepare will take. Pure. */
    void (*need)(const cb_plan *p, const cb_limits *lim, int n_threads, cb_mem *out);
    /* The last allocation: KV pools and scratch. */
    int (*prepare)(cb_dev *d, const cb_limits *lim, cb_err *err);
    /* Runs one step. Allocates nothing. CB_ENUM names the op whose input was not finite. */
    int (*run)(cb_dev *d, const cb_batch *b, cb_err *err);
    /* Copies state on the device, in order, after the steps before and ahead of the steps behind. Allocates nothing. */
    int (*state_copy)(cb_dev *d, const cb_copy *ops, int n, cb_err *err);
    /* "cpu:avx512"; borrowed. */
    const char *(*label)(const cb_dev *d);
    int (*n_threads)(const cb_dev *d);
    /* Bytes that load + prepare could take now. */
    uint64_t (*available)(const cb_dev *d);
    /* Measures the device's rooflines. Allocates, and frees again. */
    int (*probe)(cb_dev *d, cb_probe *out, cb_err *err);
    bool samples;    /* fills cb_batch.best and answers cb_batch.asks; else only logits */
    int rows;        /* of a step that it works best with; 0: CB_DEFAULT_ROWS */
} cb_backend;
#endif
