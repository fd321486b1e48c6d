/* session.c: sequences that steps work on. Their state is seq.c. */
#include "run/engine.h"
#include <string.h>

int cb_session_open(cb_engine *e, cb_session **out, cb_err *err)
{
    *out = NULL;
    if (!e->sessions) return cb_fail(err, CB_EUSAGE, "the engine was opened to plan only");
    int slot = 0;
    while (slot < e->lim.max_sessions && e->sessions[slot]) slot++;
    if (slot == e->lim.max_sessions)
        return cb_fail(err, CB_EUSAGE, "sessions: all %d are open (max_sessions)", e->lim.max_sessions);
    cb_session *s = cb_alloc(sizeof *s);
    if (!s) return cb_fail(err, CB_ENOMEM, "no memory for a session");
    int rc = cb_seq_init(&s->q, e, slot, e->ctx_size, err);
    if (rc < 0) {
        cb_free(s);
        return rc;
    }
    for (int g = 0; g < e->plan->n_kv_groups; g++) e->tables[g][slot] = s->q.table[g];
    e->sessions[slot] = s;
    *out = s;
    return 0;
}

void cb_session_close(cb_session *s)
{
    if (!s) return;
    cb_engine *e = s->q.engine;
    for (int g = 0; g < e->plan->n_kv_groups; g++) e->tables[g][s->q.slot] = NULL;
    e->sessions[s->q.slot] = NULL;
    cb_seq_fini(&s->q);
    cb_free(s);
}

/* The first token of a sequence finds its recurrent state zeroed, whatever was there. */
void cb_session_reset(cb_session *s)
{
    cb_seq_clear(&s->q);
    s->spoiled = false;
}

int cb_session_length(const cb_session *s) { return s->q.length; }

const int32_t *cb_session_tokens(const cb_session *s) { return s->q.tokens; }

int cb_session_usable(const cb_session *s, cb_err *err)
{
    if (!s->spoiled) return 0;
    return cb_fail(err, CB_EUSAGE, "the session's recurrent state was lost at %d tokens when a step failed; reset or restore it",
                   s->q.length);
}

int cb_session_truncate(cb_session *s, int length, cb_err *err)
{
    if (length == 0) {
        cb_session_reset(s);
        return 0;
    }
    int rc = cb_session_usable(s, err);
    if (rc == 0) rc = cb_seq_can_cut(&s->q, length, err);
    if (rc == 0) cb_seq_cut(&s->q, length);
    return rc;
}

int cb_session_fork(const cb_session *s, cb_session **out, cb_err *err)
{
    *out = NULL;
    cb_session *f = NULL;
    int rc = cb_session_usable(s, err);
    if (rc == 0) rc = cb_session_open(s->q.engine, &f, err);
    if (rc == 0) rc = cb_seq_share(&f->q, &s->q, s->q.length, err);
    if (rc < 0) cb_session_close(f);
    else *out = f;
    return rc;
}

int cb_session_own(cb_session *s, cb_err *err)
{
    int rc = cb_session_usable(s, err);
    return rc == 0 ? cb_seq_own(&s->q, err) : rc;
}
