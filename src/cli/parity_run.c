#include "cli/parity_run.h"
#include "base/mem.h"

const cb_parity_limits cb_parity_defaults = {1e-5, 0.01, 0.02f};

typedef struct runner {
    cb_engine *e;
    const cb_ref *r;
    const float *full; /* [n_pos][n_vocab] or NULL */
    int chunk;
    cb_row *rows;      /* [chunk] */
    float *logits;     /* [chunk][n_vocab] */
    float *full_row;   /* [n_vocab] */
} runner;

static const float *truth_row(runner *u, uint32_t pos)
{
    const cb_ref *r = u->r;
    if (u->full) return u->full + (size_t)pos * r->n_vocab;
    for (uint32_t i = 0; i < r->n_full && r->full_pos[i] <= pos; i++)
        if (r->full_pos[i] == pos) {
            cb_ref_full_row(r, i, u->full_row);
            return u->full_row;
        }
    return NULL;
}

/* Feeds n tokens; all logits are wanted, or only the last row's. */
static int feed(runner *u, cb_session *s, const int32_t *tokens, int n, bool all, cb_err *err)
{
    for (int i = 0; i < n; i++) u->rows[i] = (cb_row){s, tokens[i], all || i == n - 1};
    return cb_step(u->e, u->rows, n, u->logits, err);
}

static int run_case(runner *u, uint32_t at, cb_session *s, cb_ref_score *score, cb_err *err)
{
    const cb_ref *r = u->r;
    uint32_t first = r->cases[at].first, left = r->cases[at].n;
    cb_session_reset(s);
    while (left) {
        int n = left < (uint32_t)u->chunk ? (int)left : u->chunk;
        int rc = feed(u, s, r->tokens + first, n, true, err);
        if (rc < 0) return cb_fail_in(err, rc, "case %s", cb_ref_case_name(r, at));
        for (int i = 0; i < n; i++)
            cb_ref_score_row(score, r, first + (uint32_t)i, u->logits + (size_t)i * r->n_vocab, truth_row(u, first + (uint32_t)i));
        first += (uint32_t)n;
        left -= (uint32_t)n;
    }
    return 0;
}

static int32_t best_of(const float *z, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (z[i] > z[best]) best = i;
    return (int32_t)best;
}

static int run_greedy(runner *u, uint32_t at, cb_session *s, float margin, cb_parity *out, cb_err *err)
{
    const cb_ref *r = u->r;
    const cb_ref_greedy *g = &r->greedy[at];
    const int32_t *t = r->tokens + r->cases[g->case_at].first;
    int rc = 0, n = (int)r->cases[g->case_at].n;
    cb_session_reset(s);
    for (int i = 0; i < n && rc >= 0; i += u->chunk) rc = feed(u, s, t + i, n - i < u->chunk ? n - i : u->chunk, false, err);
    out->greedy_runs++;
    for (uint32_t i = 0; i < g->n && rc >= 0; i++) {
        int32_t got = best_of(u->logits, r->n_vocab);
        if (got != g->tokens[i]) {
            bool wrong = g->margin[i] > margin;
            if (wrong && !out->greedy_wrong) out->wrong_run = at, out->wrong_at = i;
            out->greedy_wrong += wrong;
            out->greedy_ties += !wrong;
            return 0;
        }
        out->greedy_tokens++;
        if (i + 1 < g->n) rc = feed(u, s, &got, 1, true, err);
    }
    return rc < 0 ? cb_fail_in(err, rc, "greedy run of %s", cb_ref_case_name(r, g->case_at)) : 0;
}

int cb_parity_run(cb_engine *e, const cb_ref *r, const float *full, int chunk, const cb_parity_limits *lim, cb_parity *out,
                  cb_err *err)
{
    cb_engine_info info;
    cb_engine_get_info(e, &info);
    if ((uint32_t)info.n_vocab != r->n_vocab)
        return cb_fail(err, CB_EFORMAT, "the reference has %u logits a row, the model %d", r->n_vocab, info.n_vocab);
    if (chunk < 1 || chunk > info.max_rows) return cb_fail(err, CB_EUSAGE, "chunks of %d rows, the engine takes 1 to %d", chunk, info.max_rows);

    runner u = {.e = e, .r = r, .full = full, .chunk = chunk};
    cb_session *s = NULL;
    int rc = 0;
    *out = (cb_parity){.cases = out->cases};
    cb_ref_score_init(&out->score, lim->margin);
    u.rows = cb_alloc_array((size_t)chunk, sizeof *u.rows);
    u.logits = cb_alloc_array((size_t)chunk * r->n_vocab, sizeof(float));
    u.full_row = cb_alloc_array(r->n_vocab, sizeof(float));
    if (!u.rows || !u.logits || !u.full_row) rc = cb_fail(err, CB_ENOMEM, "%d rows of %u logits", chunk, r->n_vocab);
    if (rc >= 0) rc = cb_session_open(e, &s, err);
    for (uint32_t i = 0; i < r->n_cases && rc >= 0; i++) {
        cb_ref_score one;
        cb_ref_score_init(&one, lim->margin);
        rc = run_case(&u, i, s, &one, err);
        cb_ref_score_add(&out->score, &one);
        if (out->cases) out->cases[i] = one;
    }
    for (uint32_t i = 0; i < r->n_greedy && rc >= 0; i++) rc = run_greedy(&u, i, s, lim->margin, out, err);
    cb_session_close(s);
    cb_free(u.full_row);
    cb_free(u.logits);
    cb_free(u.rows);
    return rc;
}

int cb_parity_gate(const cb_parity *p, const cb_ref *r, const cb_parity_limits *lim, cb_err *err)
{
    const cb_ref_score *s = &p->score;
    double kl = s->n ? s->kl_sum / s->n : 0, full = s->n_full ? s->full_kl_sum / s->n_full : 0;
    if (s->n_breach) return cb_fail(err, CB_EIO, "%d rows: KL exceeds what their differences allow; the comparison itself is wrong", s->n_breach);
    if (!(kl <= lim->kl_mean)) return cb_fail(err, CB_EIO, "mean KL %.3g exceeds %.3g", kl, lim->kl_mean);
    if (!(full <= lim->kl_mean)) return cb_fail(err, CB_EIO, "mean KL %.3g over %d full rows exceeds %.3g", full, s->n_full, lim->kl_mean);
    if (!(s->dmax <= lim->dmax))
        return cb_fail(err, CB_EIO, "position %d: a logit is off by %.4g, more than %.4g", s->dmax_at, s->dmax, lim->dmax);
    if (s->n_bad_flips)
        return cb_fail(err, CB_EIO, "position %d: the best token differs where truth leads by %.4g, more than %.4g", s->flip_at,
                       (double)s->flip_margin, (double)lim->margin);
    if (p->greedy_wrong) {
        const cb_ref_greedy *g = &r->greedy[p->wrong_run];
        return cb_fail(err, CB_EIO, "greedy run of %s: token %u differs where truth's margin is %.4g, more than %.4g",
                       cb_ref_case_name(r, g->case_at), p->wrong_at, (double)g->margin[p->wrong_at], (double)lim->margin);
    }
    return 0;
}

const char *cb_parity_stack(const cb_ref *r)
{
    static const char *const names[] = {"transformers_bf16", "mlx_lm_bf16", "bf16_exact_weights"};
    for (int i = 0; i < 3; i++)
        if (json_object_get(json_object_get(r->meta, names[i]), "kl_mean")) return names[i];
    return NULL;
}

int cb_parity_gate_stack(const cb_parity *p, const cb_ref *r, cb_err *err)
{
    const char *name = cb_parity_stack(r);
    const json_t *v = name ? json_object_get(r->meta, name) : NULL;
    const cb_ref_score *s = &p->score;
    const struct {
        const char *what, *key;
        double ours;
    } rows[] = {{"mean KL", "kl_mean", s->n ? s->kl_sum / s->n : 0}, {"largest KL", "kl_max", s->kl_max}, {"largest logit difference", "dmax", s->dmax},
                {"truth's lead where the best token differs", "dmax", s->flip_at >= 0 ? (double)s->flip_margin : 0}};
    for (int i = 0; v && i < 4; i++) {
        double theirs = json_number_value(json_object_get(v, rows[i].key));
        if (!(rows[i].ours <= theirs)) return cb_fail(err, CB_EIO, "%s %.3g exceeds %.3g of %s", rows[i].what, rows[i].ours, theirs, name);
    }
    return 0;
}
