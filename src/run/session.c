/* session.c: a sequence's KV blocks. A block holds 64 tokens at absolute positions; a group of layers with a sliding
 * window gives blocks back once the window has passed them. */
#include "run/engine.h"
#include <string.h>

int cb_blocks_per_session(const cb_plan *p, int group, int ctx_size, int max_rows)
{
    int all = (ctx_size + 63) / 64, window = p->kv_groups[group].window;
    /* The window behind the first row of a step, the rows themselves, and a partial block at either end. */
    int64_t live = window ? ((int64_t)window + max_rows + 63) / 64 + 2 : all;
    return live < all ? (int)live : all;
}

int cb_session_open(cb_engine *e, cb_session **out, cb_err *err)
{
    *out = NULL;
    int slot = 0;
    while (slot < e->lim.max_sessions && e->sessions[slot]) slot++;
    if (slot == e->lim.max_sessions)
        return cb_fail(err, CB_EUSAGE, "sessions: all %d are open (max_sessions)", e->lim.max_sessions);
    cb_session *s = cb_alloc(sizeof *s);
    if (!s) return cb_fail(err, CB_ENOMEM, "no memory for a session");
    s->engine = e;
    s->slot = slot;
    size_t blocks = (size_t)(e->ctx_size + 63) / 64;
    for (int g = 0; g < e->plan->n_kv_groups; g++) {
        if (!(s->table[g] = cb_alloc_array(blocks, sizeof **s->table))) {
            cb_session_close(s);
            return cb_fail(err, CB_ENOMEM, "no memory for a session's block table");
        }
        for (size_t i = 0; i < blocks; i++) s->table[g][i] = -1;
        e->tables[g][slot] = s->table[g];
    }
    e->sessions[slot] = s;
    *out = s;
    return 0;
}

static void give_back(cb_session *s, int g, int from, int to)
{
    cb_block_pool *pool = &s->engine->pools[g];
    for (int i = from; i < to; i++) {
        CB_ASSERT(s->table[g][i] >= 0 && pool->n_free < pool->n_blocks);
        pool->free[pool->n_free++] = s->table[g][i];
        s->table[g][i] = -1;
    }
}

void cb_session_reset(cb_session *s)
{
    for (int g = 0; g < s->engine->plan->n_kv_groups; g++) {
        if (s->table[g]) give_back(s, g, s->first_live[g], s->n_held[g]);
        s->n_held[g] = s->first_live[g] = 0;
    }
    s->length = 0;
}

void cb_session_close(cb_session *s)
{
    if (!s) return;
    cb_session_reset(s);
    for (int g = 0; g < s->engine->plan->n_kv_groups; g++) {
        s->engine->tables[g][s->slot] = NULL;
        cb_free(s->table[g]);
    }
    if (s->engine->sessions[s->slot] == s) s->engine->sessions[s->slot] = NULL;
    cb_free(s);
}

int cb_session_length(const cb_session *s) { return s->length; }

int cb_session_reserve(cb_session *s, int n, cb_err *err)
{
    const cb_engine *e = s->engine;
    for (int g = 0; g < e->plan->n_kv_groups; g++) {
        cb_block_pool *pool = &s->engine->pools[g];
        int window = e->plan->kv_groups[g].window;
        /* The first row of the step, at `length`, sees back to length - window + 1. */
        int dead = window && s->length + 1 > window ? (s->length - window + 1) / 64 : 0;
        if (dead > s->n_held[g]) dead = s->n_held[g];
        if (dead > s->first_live[g]) {
            give_back(s, g, s->first_live[g], dead);
            s->first_live[g] = dead;
        }
        for (int need = (s->length + n + 63) / 64; s->n_held[g] < need;) {
            if (!pool->n_free) return cb_fail(err, CB_ENOMEM, "KV cache: all %d blocks are in use", pool->n_blocks);
            s->table[g][s->n_held[g]++] = pool->free[--pool->n_free];
        }
    }
    return 0;
}
