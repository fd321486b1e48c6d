/* seq.c: the state of a sequence: tokens, KV blocks, recurrent slot. A block holds 64 tokens at absolute positions; a group of
 * layers with a sliding window gives blocks back once the window has passed them. Blocks are shared between sequences with
 * the same beginning; the only one that is ever written to is the last, and cb_seq_reserve() makes that one's own first. */
#include "run/engine.h"
#include <string.h>

enum { BLOCK = 64 };

static int n_blocks(int64_t length) { return (int)((length + BLOCK - 1) / BLOCK); }

int cb_blocks_per_session(const cb_plan *p, int group, int ctx_size, int max_rows)
{
    int all = n_blocks(ctx_size), window = p->kv_groups[group].window;
    /* The window behind the first row of a step, the rows themselves, and a partial block at either end. */
    int64_t live = window ? (int64_t)n_blocks((int64_t)window + max_rows) + 2 : all;
    return live < all ? (int)live : all;
}

int cb_blocks_per_snapshot(const cb_plan *p, int group, int ctx_size)
{
    int all = n_blocks(ctx_size), window = p->kv_groups[group].window;
    /* Without a window a snapshot shares all blocks but the one in which the session goes on. */
    int64_t live = window ? (int64_t)n_blocks(window) + 1 : 1;
    return live < all ? (int)live : all;
}

/* The first block that the row at position `length` sees. */
static int first_needed(const cb_seq *q, int g, int length)
{
    int window = q->engine->plan->kv_groups[g].window;
    return window && length + 1 > window ? (length - window + 1) / BLOCK : 0;
}

/* ---- pool ---- */

static int32_t take(cb_engine *e, int g)
{
    cb_block_pool *p = &e->pools[g];
    while (!p->n_free)
        if (!cb_prefix_evict(e)) return -1;
    int32_t b = p->free[--p->n_free];
    p->refs[b] = 1;
    return b;
}

static void drop(cb_engine *e, int g, int32_t b)
{
    cb_block_pool *p = &e->pools[g];
    CB_ASSERT(b >= 0 && b < p->n_blocks && p->refs[b] > 0);
    if (--p->refs[b] == 0) p->free[p->n_free++] = b;
}

static void give_back(cb_seq *q, int g, int from, int to)
{
    for (int i = from; i < to; i++) {
        drop(q->engine, g, q->table[g][i]);
        q->table[g][i] = -1;
    }
}

/* ---- life ---- */

int cb_seq_init(cb_seq *q, cb_engine *e, int slot, int length, cb_err *err)
{
    size_t blocks = (size_t)n_blocks(length);
    *q = (cb_seq){.engine = e, .slot = slot};
    bool ok = (q->tokens = cb_alloc_array((size_t)length, sizeof *q->tokens)) != NULL;
    for (int g = 0; g < e->plan->n_kv_groups && ok; g++) {
        ok = (q->table[g] = cb_alloc_array(blocks, sizeof **q->table)) != NULL;
        for (size_t i = 0; ok && i < blocks; i++) q->table[g][i] = -1;
    }
    if (ok) return 0;
    cb_seq_fini(q);
    return cb_fail(err, CB_ENOMEM, "no memory for the block tables of %d tokens", length);
}

void cb_seq_fini(cb_seq *q)
{
    cb_seq_clear(q);
    for (int g = 0; g < CB_MAX_KV_GROUPS; g++) cb_free(q->table[g]);
    cb_free(q->tokens);
    *q = (cb_seq){0};
}

void cb_seq_clear(cb_seq *q)
{
    for (int g = 0; g < CB_MAX_KV_GROUPS; g++) {
        if (q->table[g]) give_back(q, g, q->first_live[g], q->n_held[g]);
        q->n_held[g] = q->first_live[g] = 0;
    }
    q->length = 0;
}

/* ---- growing ---- */

static int pool_is_empty(const cb_engine *e, int g, cb_err *err)
{
    int n = 0;
    for (int i = 0; i < e->max_snapshots; i++) n += e->snapshots[i] != NULL;
    return cb_fail(err, CB_ENOMEM, "KV cache: all %d blocks of %d tokens are in use by sessions and %d snapshots; close or cut some",
                   e->pools[g].n_blocks, BLOCK, n);
}

/* Makes block i of a group, when it is shared, this sequence's own. */
static int own_block(cb_seq *q, int g, int i, cb_err *err)
{
    cb_engine *e = q->engine;
    const int32_t *refs = e->pools[g].refs;
    int32_t *at = &q->table[g][i];
    if (refs[*at] == 1) return 0;
    int32_t b = take(e, g);
    if (b < 0) return pool_is_empty(e, g, err);
    if (refs[*at] == 1) { /* making room took the other owner away */
        drop(e, g, b);
        return 0;
    }
    int rc = e->backend->state_copy(e->dev, &(cb_copy){.group = g, .from = *at, .to = b}, 1, err);
    if (rc < 0) {
        drop(e, g, b);
        return rc;
    }
    drop(e, g, *at);
    *at = b;
    return 0;
}

/* The block that the next token goes to, when it is begun already. */
static int own_last_block(cb_seq *q, int g, cb_err *err)
{
    return q->length % BLOCK ? own_block(q, g, q->length / BLOCK, err) : 0;
}

int cb_seq_own(cb_seq *q, cb_err *err)
{
    int rc = 0;
    for (int g = 0; g < q->engine->plan->n_kv_groups; g++)
        for (int i = q->first_live[g]; i < q->n_held[g] && rc == 0; i++) rc = own_block(q, g, i, err);
    return rc;
}

void cb_seq_leave(cb_seq *q)
{
    for (int g = 0; g < q->engine->plan->n_kv_groups; g++) {
        int dead = first_needed(q, g, q->length);
        if (dead <= q->first_live[g]) continue;
        give_back(q, g, q->first_live[g], dead);
        q->first_live[g] = dead;
    }
}

int cb_seq_reserve(cb_seq *q, int n, cb_err *err)
{
    cb_engine *e = q->engine;
    cb_seq_leave(q);
    for (int g = 0; g < e->plan->n_kv_groups; g++) {
        int need = n_blocks((int64_t)q->length + n), rc = own_last_block(q, g, err);
        if (rc < 0) return rc;
        while (q->n_held[g] < need) {
            int32_t b = take(e, g);
            if (b < 0) return pool_is_empty(e, g, err);
            q->table[g][q->n_held[g]++] = b;
        }
    }
    return 0;
}

/* ---- shrinking and sharing ---- */

void cb_seq_trim(cb_seq *q)
{
    for (int g = 0; g < q->engine->plan->n_kv_groups; g++) {
        int keep = n_blocks(q->length);
        if (keep < q->first_live[g]) keep = q->first_live[g];
        if (keep >= q->n_held[g]) continue;
        give_back(q, g, keep, q->n_held[g]);
        q->n_held[g] = keep;
    }
}

int cb_seq_can_cut(const cb_seq *q, int n, cb_err *err)
{
    const cb_plan *p = q->engine->plan;
    if (n < 0 || n > q->length) return cb_fail(err, CB_EUSAGE, "a sequence of %d tokens cannot be cut to %d", q->length, n);
    if (n == q->length || n == 0) return 0;
    if (p->n_rec)
        return cb_fail(err, CB_EUSAGE, "%s: recurrent layers cannot go back from %d tokens to %d; restore a snapshot", p->family,
                       q->length, n);
    for (int g = 0; g < p->n_kv_groups; g++)
        if (first_needed(q, g, n) < q->first_live[g])
            return cb_fail(err, CB_EUSAGE,
                           "%s: the window of %d tokens has passed: from %d tokens the way back ends at %d, not %d; restore a snapshot",
                           p->family, p->kv_groups[g].window, q->length,
                           q->first_live[g] * BLOCK + p->kv_groups[g].window - 1, n);
    return 0;
}

void cb_seq_cut(cb_seq *q, int n)
{
    if (n == 0) cb_seq_clear(q);
    q->length = n;
    cb_seq_trim(q);
}

int cb_seq_share(cb_seq *to, const cb_seq *from, int n, cb_err *err)
{
    cb_engine *e = to->engine;
    cb_seq_clear(to);
    if (e->plan->n_rec && n) {
        CB_ASSERT(n == from->length);
        int rc = e->backend->state_copy(e->dev, &(cb_copy){.group = -1, .from = from->slot, .to = to->slot}, 1, err);
        if (rc < 0) return rc;
    }
    for (int g = 0; g < e->plan->n_kv_groups; g++) {
        to->first_live[g] = first_needed(from, g, n);
        to->n_held[g] = n_blocks(n);
        for (int i = to->first_live[g]; i < to->n_held[g]; i++) {
            int32_t b = from->table[g][i];
            CB_ASSERT(b >= 0);
            to->table[g][i] = b;
            e->pools[g].refs[b]++;
        }
    }
    memcpy(to->tokens, from->tokens, (size_t)n * sizeof *to->tokens);
    to->length = n;
    return 0;
}
