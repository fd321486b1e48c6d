/* engine.h: a loaded model on a device, and its sessions. One thread at a time. */
#ifndef CB_RUN_ENGINE_H
#define CB_RUN_ENGINE_H
#include "plan/backend.h"

/* Blocks of one KV group. Sessions and snapshots share a block by reference count; who writes to one has it alone. */
typedef struct cb_block_pool {
    int32_t *free;       /* stack of block numbers */
    int32_t *refs;       /* [n_blocks] */
    int n_free, n_blocks;
} cb_block_pool;

/* What a sequence is after `length` tokens. A session holds one that grows, a snapshot one that stays. */
typedef struct cb_seq {
    cb_engine *engine;
    int slot;                            /* recurrent slot; for a session also its row in the batch's block tables */
    int length;                          /* tokens processed */
    int32_t *tokens;                     /* [length], with room for ctx_size in a session */
    int32_t *table[CB_MAX_KV_GROUPS];    /* [blocks]: block number of absolute positions 64*i.., -1 none */
    int n_held[CB_MAX_KV_GROUPS];        /* blocks at table[..first_live .. n_held) */
    int first_live[CB_MAX_KV_GROUPS];    /* earlier blocks have left the window and were given back */
} cb_seq;

struct cb_session {
    cb_seq q;
    int pending, first_row;              /* rows of the step being made, and where they begin in the batch */
    bool spoiled;                        /* a step failed half way: the recurrent state belongs to no length */
};

struct cb_snapshot {
    cb_seq q;
    bool cached;                         /* the prefix cache's: taken away when room is needed */
    uint64_t used;                       /* cached: the latest use, in counts of uses */
};

struct cb_engine {
    cb_config *config;
    cb_weights *weights;
    cb_plan *plan;
    const cb_backend *backend;
    cb_dev *dev;
    char note[CB_ERR_TEXT];              /* why device auto took no GPU; empty: it did, or was not asked */
    cb_limits lim;
    int ctx_size;
    cb_mem mem;
    uint64_t available;
    cb_block_pool pools[CB_MAX_KV_GROUPS];
    cb_session **sessions;               /* [max_sessions], NULL when free */
    cb_snapshot **snapshots;             /* [max_snapshots], NULL when free; number i owns slot max_sessions + i */
    int max_snapshots;
    uint64_t n_uses;                     /* of cached snapshots */
    cb_cache_info cache;
    const int32_t **tables[CB_MAX_KV_GROUPS]; /* [max_sessions]: the sessions' tables, for the batch */
    int32_t *token, *pos, *slot, *wanted;     /* [max_rows]: the batch */
    int32_t *place;                           /* [max_rows]: number of a row among its session's */
    float *best_logits;                  /* [max_sessions][n_vocab], when the backend does not sample; */
    cb_ask *asks;                        /* [max_sessions], and */
    cb_change *changes;                  /* [CB_TOP_CHANGES], when it does */
    cb_tap_fn tap;
    void *tap_ctx;
};

/* Blocks a session, or a snapshot beyond what it shares, holds at most in a group. */
int cb_blocks_per_session(const cb_plan *p, int group, int ctx_size, int max_rows);
int cb_blocks_per_snapshot(const cb_plan *p, int group, int ctx_size);

/* ---- seq.c ---- */

/* Room for `length` tokens. */
int cb_seq_init(cb_seq *q, cb_engine *e, int slot, int length, cb_err *err);
void cb_seq_fini(cb_seq *q);
/* Gives all blocks back; length becomes 0. */
void cb_seq_clear(cb_seq *q);
/* Gives back the blocks that the window has passed. */
void cb_seq_leave(cb_seq *q);
/* Makes sure that the blocks of the next n tokens are there and that nobody else has them. */
int cb_seq_reserve(cb_seq *q, int n, cb_err *err);
/* Copies the blocks that others have too. */
int cb_seq_own(cb_seq *q, cb_err *err);
/* Gives back what lies behind `length`. */
void cb_seq_trim(cb_seq *q);
/* Can the first n tokens be had from q? 0, or why not. */
int cb_seq_can_cut(const cb_seq *q, int n, cb_err *err);
void cb_seq_cut(cb_seq *q, int n);
/* Makes `to`, which is cleared first, the first n tokens of `from`: shares blocks, copies the recurrent slot. */
int cb_seq_share(cb_seq *to, const cb_seq *from, int n, cb_err *err);

/* ---- session.c, snapshot.c, prefix.c ---- */

/* CB_EUSAGE for a spoiled session. */
int cb_session_usable(const cb_session *s, cb_err *err);
int cb_snapshot_make(cb_session *s, bool cached, cb_snapshot **out, cb_err *err);
/* Drops the cached snapshot that was not used for longest. False: there is none. */
bool cb_prefix_evict(cb_engine *e);
#endif
