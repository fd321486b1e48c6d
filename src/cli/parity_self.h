/* parity_self.h: the engine against itself: one hash of all logits of a token sequence over instruction levels, threads, chunks,
 * neighbours in the batch, load order, decode against prefill. Uses cambium.h and base/ only. */
#ifndef CB_CLI_PARITY_SELF_H
#define CB_CLI_PARITY_SELF_H
#include "base/err.h"

/* One cell of the matrix, when it has been computed. */
typedef struct cb_self_cell {
    const char *what;   /* "cpu:avx2, 3 threads, chunks of 7" */
    int n;              /* positions compared */
    bool equal;
    double seconds;
} cb_self_cell;
typedef void (*cb_self_fn)(void *ctx, const cb_self_cell *cell);

typedef struct cb_self_opts {
    const char *dir;
    const char *other;    /* a second checkpoint, for the load order; NULL: that part is left out */
    const int32_t *ids;   /* [n] below both vocabularies */
    int n;                /* positions */
    int n_slow;           /* positions in scalar C, where only one cell has all n; at most n */
    cb_self_fn cell;      /* may be NULL */
    void *ctx;
} cb_self_opts;

typedef struct cb_self_result {
    char hash[65];        /* SHA-256 of the rows f32 [n][vocabulary], as `run --hash=all -n 1` prints */
    char device[24];      /* that computed it first */
    int n_cells, n_different;
    int n_levels;
    char first[160];      /* the first cell that differs */
} cb_self_result;

/* 0 also when cells differ. Errors of the engine, naming the cell. */
int cb_self_run(const cb_self_opts *o, cb_self_result *r, cb_err *err);
#endif
