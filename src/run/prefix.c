/* prefix.c: the prefix cache: snapshots that the engine may drop when it needs the room. A sequence that begins as a kept one
 * did goes on from there: at any token of it when all layers see all KV, else where a snapshot stands, because a window's
 * blocks are gone and a recurrent state cannot be rewound. Snapshots are few (max_snapshots), so they are simply compared. */
#include "run/engine.h"
#include <string.h>

static int common(const int32_t *a, int n_a, const int32_t *b, int n_b)
{
    int n = n_a < n_b ? n_a : n_b, i = 0;
    while (i < n && a[i] == b[i]) i++;
    return i;
}

static void use(cb_snapshot *n)
{
    if (n->cached) n->used = ++n->q.engine->n_uses;
}

bool cb_prefix_evict(cb_engine *e)
{
    cb_snapshot *oldest = NULL;
    for (int i = 0; i < e->max_snapshots; i++) {
        cb_snapshot *n = e->snapshots[i];
        if (n && n->cached && (!oldest || n->used < oldest->used)) oldest = n;
    }
    if (!oldest) return false;
    cb_snapshot_close(oldest);
    e->cache.n_evicted++;
    return true;
}

int cb_session_keep(cb_session *s, cb_err *err)
{
    cb_engine *e = s->q.engine;
    cb_seq *q = &s->q;
    cb_snapshot *n;
    int rc = cb_session_usable(s, err);
    if (rc < 0 || !q->length) return rc;
    cb_seq_leave(q); /* what the new snapshot will not have either */
    for (int i = 0; i < e->max_snapshots; i++) {
        n = e->snapshots[i];
        if (!n || !n->cached) continue;
        int same = common(n->q.tokens, n->q.length, q->tokens, q->length);
        if (same == q->length && cb_seq_can_cut(&n->q, same, NULL) == 0) { /* kept already, or within a longer one */
            use(n);
            return 0;
        }
        if (same == n->q.length && cb_seq_can_cut(q, same, NULL) == 0) cb_snapshot_close(n); /* the new one holds it */
    }
    rc = cb_snapshot_make(s, true, &n, err);
    if (rc == 0) use(n);
    return rc;
}

int cb_session_reuse(cb_session *s, const int32_t *tokens, int n, int *n_reused, int *keep_at, cb_err *err)
{
    cb_engine *e = s->q.engine;
    cb_snapshot *from = NULL;
    int best = 0, seen, rc = 0;
    *n_reused = 0;
    if (keep_at) *keep_at = 0;
    if (n < 1) return cb_fail(err, CB_EUSAGE, "a prompt of %d tokens: there must be one or more", n);
    seen = common(s->q.tokens, s->q.length, tokens, n - 1); /* one is left to run, for its logits */
    if (!s->spoiled && cb_seq_can_cut(&s->q, seen, NULL) == 0) best = seen;
    for (int i = 0; i < e->max_snapshots; i++) {
        cb_snapshot *k = e->snapshots[i];
        if (!k) continue;
        int same = common(k->q.tokens, k->q.length, tokens, n - 1);
        if (same > seen) seen = same;
        if (same > best && cb_seq_can_cut(&k->q, same, NULL) == 0) best = same, from = k;
    }
    if (from) {
        s->spoiled = false;
        rc = cb_seq_share(&s->q, &from->q, best, err);
        use(from);
    } else if (best) cb_seq_cut(&s->q, best);
    else cb_session_reset(s);
    if (rc < 0) return rc;
    *n_reused = best;
    if (keep_at && seen > best) *keep_at = seen;
    e->cache.n_hits += best > 0;
    e->cache.n_reused += (uint64_t)best;
    return 0;
}

void cb_engine_get_cache(const cb_engine *e, cb_cache_info *out)
{
    *out = e->cache;
    for (int i = 0; i < e->max_snapshots; i++)
        if (e->snapshots[i] && e->snapshots[i]->cached) {
            out->n_kept++;
            out->n_tokens += (uint64_t)e->snapshots[i]->q.length;
        }
}

void cb_engine_cache_clear(cb_engine *e)
{
    for (int i = 0; i < e->max_snapshots; i++)
        if (e->snapshots[i] && e->snapshots[i]->cached) cb_snapshot_close(e->snapshots[i]);
}
