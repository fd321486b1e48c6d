/* snapshot.c: states kept beside the sessions. A snapshot shares its sequence's KV blocks and owns a copy of the recurrent
 * state, in a slot of its own. Their number is fixed when the engine opens. */
#include "run/engine.h"

int cb_snapshot_make(cb_session *s, bool cached, cb_snapshot **out, cb_err *err)
{
    cb_engine *e = s->q.engine;
    int i, rc;
    *out = NULL;
    if ((rc = cb_session_usable(s, err)) < 0) return rc;
    for (;;) {
        for (i = 0; i < e->max_snapshots && e->snapshots[i];) i++;
        if (i < e->max_snapshots) break;
        if (!cb_prefix_evict(e))
            return cb_fail(err, CB_ENOMEM, "snapshots: all %d are in use (max_snapshots)", e->max_snapshots);
    }
    cb_snapshot *n = cb_alloc(sizeof *n);
    if (!n) return cb_fail(err, CB_ENOMEM, "no memory for a snapshot");
    rc = cb_seq_init(&n->q, e, e->lim.max_sessions + i, s->q.length, err);
    if (rc == 0 && (rc = cb_seq_share(&n->q, &s->q, s->q.length, err)) < 0) cb_seq_fini(&n->q);
    if (rc < 0) {
        cb_free(n);
        return rc;
    }
    n->cached = cached;
    e->snapshots[i] = *out = n;
    return 0;
}

int cb_session_snapshot(cb_session *s, cb_snapshot **out, cb_err *err) { return cb_snapshot_make(s, false, out, err); }

void cb_snapshot_close(cb_snapshot *n)
{
    if (!n) return;
    cb_engine *e = n->q.engine;
    e->snapshots[n->q.slot - e->lim.max_sessions] = NULL;
    cb_seq_fini(&n->q);
    cb_free(n);
}

int cb_snapshot_length(const cb_snapshot *n) { return n->q.length; }

int cb_session_restore(cb_session *s, const cb_snapshot *n, cb_err *err)
{
    if (s->q.engine != n->q.engine) return cb_fail(err, CB_EUSAGE, "the snapshot belongs to another engine");
    s->spoiled = false; /* after a failed copy the session is empty */
    return cb_seq_share(&s->q, &n->q, n->q.length, err);
}
