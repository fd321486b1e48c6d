/* engine.h: a loaded model on a device, and its sessions. One thread at a time. */
#ifndef CB_RUN_ENGINE_H
#define CB_RUN_ENGINE_H
#include "plan/backend.h"

/* Free blocks of one KV group. */
typedef struct cb_block_pool {
    int32_t *free;       /* stack of block numbers */
    int n_free, n_blocks;
} cb_block_pool;

struct cb_session {
    cb_engine *engine;
    int slot;
    int length;                          /* tokens processed */
    int pending;                         /* rows of the step being checked */
    int32_t *table[CB_MAX_KV_GROUPS];    /* [ctx blocks]: block number, -1 none */
    int n_held[CB_MAX_KV_GROUPS];        /* blocks at table[..first_live .. n_held) */
    int first_live[CB_MAX_KV_GROUPS];    /* earlier blocks have left the window and were given back */
};

struct cb_engine {
    cb_config *config;
    cb_weights *weights;
    cb_plan *plan;
    const cb_backend *backend;
    cb_dev *dev;
    cb_limits lim;
    int ctx_size;
    cb_mem mem;
    cb_block_pool pools[CB_MAX_KV_GROUPS];
    cb_session **sessions;               /* [max_sessions], NULL when free */
    const int32_t **tables[CB_MAX_KV_GROUPS]; /* [max_sessions]: the sessions' tables, for the batch */
    int32_t *token, *pos, *slot, *wanted;     /* [max_rows] */
    cb_tap_fn tap;
    void *tap_ctx;
};

/* Blocks a session holds at most in a group. */
int cb_blocks_per_session(const cb_plan *p, int group, int ctx_size, int max_rows);
/* Makes sure the session has blocks for `n` more tokens; gives back those that left the window. */
int cb_session_reserve(cb_session *s, int n, cb_err *err);
#endif
