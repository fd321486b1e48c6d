#include "cli/parity_self.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/sha256.h"
#include <stdio.h>
#include <string.h>

enum { MAX_CHUNK = 512, N_OTHERS = 7, BATCH_ROWS = 64, OTHERS_LENGTH = 40 };

static const char *const levels[] = { "cpu:c", "cpu:avx2", "cpu:avx512", "cpu:neon", "cuda" };

typedef struct matrix {
    const cb_self_opts *o;
    cb_self_result *r;
    cb_err *err;
    uint8_t all[32], some[32];  /* what the hash of n and of n_slow positions has to be */
    uint8_t other[32];          /* n_slow positions of the other checkpoint */
    bool has_other;
} matrix;

typedef struct digests {
    uint8_t some[32], all[32];
} digests;

/* ---- one run ---- */

typedef struct run {
    cb_engine *e;
    cb_engine_info info;
    cb_session *s;
    cb_row *rows;
    float *logits; /* [max_rows][n_vocab] */
} run;

static void run_close(run *u)
{
    cb_session_close(u->s);
    cb_engine_close(u->e);
    cb_free(u->rows);
    cb_free_aligned(u->logits);
    memset(u, 0, sizeof *u);
}

static int run_open(run *u, const char *dir, const char *device, int threads, int max_rows, int sessions, int n, cb_err *err)
{
    memset(u, 0, sizeof *u);
    cb_engine_opts eo = { .device = device, .n_threads = threads, .max_rows = max_rows, .max_sessions = sessions, .ctx_size = n };
    int rc = cb_engine_open(dir, &eo, &u->e, err);
    if (rc < 0) return rc;
    cb_engine_get_info(u->e, &u->info);
    u->rows = cb_alloc_array((size_t)max_rows, sizeof *u->rows);
    u->logits = cb_alloc_aligned((size_t)max_rows * (size_t)u->info.n_vocab * sizeof *u->logits);
    if (!u->rows || !u->logits) rc = cb_fail(err, CB_ENOMEM, "no memory for %d rows of %d logits", max_rows, u->info.n_vocab);
    if (rc == 0) rc = cb_session_open(u->e, &u->s, err);
    if (rc < 0) run_close(u);
    return rc;
}

static void hash_row(const matrix *m, const run *u, cb_sha256 *h, int pos, const float *row, digests *d)
{
    cb_sha256_put(h, row, (size_t)u->info.n_vocab * sizeof *row); /* little-endian machines only */
    if (pos + 1 == m->o->n_slow) cb_sha256_get(h, d->some);
    if (pos + 1 == m->o->n) cb_sha256_get(h, d->all);
}

/* n positions in chunks, from the beginning. */
static int hash_chunks(const matrix *m, run *u, int n, int chunk, digests *d)
{
    cb_sha256 h;
    cb_sha256_init(&h);
    cb_session_reset(u->s);
    for (int pos = 0; pos < n;) {
        int k = n - pos < chunk ? n - pos : chunk;
        for (int i = 0; i < k; i++) u->rows[i] = (cb_row){ u->s, m->o->ids[pos + i] % u->info.n_vocab, 1 };
        int rc = cb_step(u->e, u->rows, k, u->logits, m->err);
        if (rc < 0) return rc;
        for (int i = 0; i < k; i++) hash_row(m, u, &h, pos + i, u->logits + (size_t)i * (size_t)u->info.n_vocab, d);
        pos += k;
    }
    return 0;
}

static int report(matrix *m, const char *what, int n, bool equal, double t0)
{
    cb_self_cell c = { .what = what, .n = n, .equal = equal, .seconds = cb_now() - t0 };
    if (!equal && !m->r->n_different) snprintf(m->r->first, sizeof m->r->first, "%s", what);
    m->r->n_cells++;
    m->r->n_different += !equal;
    if (m->o->cell) m->o->cell(m->o->ctx, &c);
    return 0;
}

static int cell(matrix *m, run *u, int n, int chunk)
{
    char what[160], chunks[32] = "all at once";
    digests d;
    double t0 = cb_now();
    bool all = n == m->o->n;
    if (chunk < n) snprintf(chunks, sizeof chunks, "chunks of %d", chunk);
    snprintf(what, sizeof what, "%s, %d thread%s, %s", u->info.device, u->info.n_threads, u->info.n_threads > 1 ? "s" : "", chunks);
    int rc = hash_chunks(m, u, n, chunk, &d);
    if (rc < 0) return cb_fail_in(m->err, rc, "%s", what);
    return report(m, what, n, !memcmp(all ? d.all : d.some, all ? m->all : m->some, 32), t0);
}

/* ---- the parts ---- */

static int reference(matrix *m)
{
    run u;
    digests d;
    int n = m->o->n, rc = run_open(&u, m->o->dir, "auto", 1, n < MAX_CHUNK ? n : MAX_CHUNK, 1, n, m->err);
    if (rc < 0) return rc;
    rc = hash_chunks(m, &u, n, MAX_CHUNK, &d);
    memcpy(m->all, d.all, 32);
    memcpy(m->some, d.some, 32);
    for (int i = 0; i < 32; i++) snprintf(m->r->hash + 2 * i, 3, "%02x", d.all[i]);
    snprintf(m->r->device, sizeof m->r->device, "%s", u.info.device);
    run_close(&u);
    return rc;
}

static int level(matrix *m, const char *device, int threads)
{
    static const int chunks[] = { 1, 7, 64, MAX_CHUNK };
    run u;
    bool slow = !strcmp(device, "cpu:c");
    int n = slow ? m->o->n_slow : m->o->n, most = m->o->n < MAX_CHUNK ? m->o->n : MAX_CHUNK;
    int rc = run_open(&u, m->o->dir, device, threads, most, 1, m->o->n, m->err);
    if (rc < 0) return rc;
    for (int i = 0; i < 4 && rc == 0; i++) {
        if (i && chunks[i] >= n && chunks[i - 1] >= n) continue; /* all at once, again */
        rc = cell(m, &u, n, chunks[i] < most ? chunks[i] : most);
    }
    if (slow && n < m->o->n && threads == 2 && rc == 0) rc = cell(m, &u, m->o->n, most < 64 ? most : 64);
    run_close(&u);
    return rc;
}

/* Our sequence among seven others that come and go, rows mixed. */
static int neighbours(matrix *m, const char *device)
{
    run u;
    cb_session *s[N_OTHERS + 1] = {0};
    digests d;
    cb_sha256 h;
    char what[160];
    double t0 = cb_now();
    int n = m->o->n, rc = run_open(&u, m->o->dir, device, 2, BATCH_ROWS, N_OTHERS + 1, n > OTHERS_LENGTH ? n : OTHERS_LENGTH, m->err);
    if (rc < 0) return rc;
    s[3] = u.s;
    for (int k = 0; k <= N_OTHERS && rc == 0; k++)
        if (k != 3) rc = cb_session_open(u.e, &s[k], m->err);
    cb_sha256_init(&h);
    for (int pos = 0; pos < n && rc == 0;) {
        int rows = 0, first = pos, wanted = 0;
        for (int mine = 1 + pos % 5; mine > 0 && pos < n; mine--, pos++) {
            u.rows[rows++] = (cb_row){ u.s, m->o->ids[pos], 1 };
            for (int k = 0; k <= N_OTHERS; k++) {
                if (k == 3 || (pos + k) % 3 == 0) continue;
                int mine_now = 0; /* rows of this session in the step already */
                for (int i = 0; i < rows; i++) mine_now += u.rows[i].session == s[k];
                if (cb_session_length(s[k]) + mine_now >= OTHERS_LENGTH) continue;
                u.rows[rows++] = (cb_row){ s[k], (m->o->ids[pos] + 17 * k) % u.info.n_vocab, k == 5 };
            }
        }
        rc = cb_step(u.e, u.rows, rows, u.logits, m->err);
        for (int i = 0, at = first; i < rows && rc == 0; i++) {
            if (u.rows[i].session == u.s) hash_row(m, &u, &h, at++, u.logits + (size_t)wanted * (size_t)u.info.n_vocab, &d);
            wanted += u.rows[i].want_logits;
        }
        for (int k = 0; k <= N_OTHERS; k++)
            if (k != 3 && cb_session_length(s[k]) >= OTHERS_LENGTH) cb_session_reset(s[k]);
    }
    snprintf(what, sizeof what, "%s, among %d other sequences", u.info.device, N_OTHERS);
    if (rc == 0) rc = report(m, what, n, !memcmp(d.all, m->all, 32), t0);
    else rc = cb_fail_in(m->err, rc, "%s", what);
    for (int k = 0; k <= N_OTHERS; k++)
        if (k != 3) cb_session_close(s[k]);
    run_close(&u);
    return rc;
}

/* Prefill keeps every row; then tokens one by one, of which only some want logits. */
static int decode(matrix *m)
{
    run u;
    cb_session *t = NULL;
    double t0 = cb_now();
    int n = m->o->n < MAX_CHUNK ? m->o->n : MAX_CHUNK, rc = run_open(&u, m->o->dir, "auto", 2, n, 2, n, m->err);
    if (rc < 0) return rc;
    size_t v = (size_t)u.info.n_vocab;
    float *one = cb_alloc_aligned(v * sizeof *one);
    bool equal = true;
    char what[160];
    snprintf(what, sizeof what, "%s, prefill against token by token", u.info.device);
    if (!one) rc = cb_fail(m->err, CB_ENOMEM, "no memory for a row of %zu logits", v);
    if (rc == 0) rc = cb_session_open(u.e, &t, m->err);
    for (int i = 0; i < n; i++) u.rows[i] = (cb_row){ u.s, m->o->ids[i], 1 };
    if (rc == 0) rc = cb_step(u.e, u.rows, n, u.logits, m->err);
    for (int i = 0; i < n && rc == 0; i++) {
        bool wanted = i % 3 == 0 || i == n - 1;
        cb_row row = { t, m->o->ids[i], wanted };
        rc = cb_step(u.e, &row, 1, wanted ? one : NULL, m->err);
        if (rc == 0 && wanted && memcmp(one, u.logits + (size_t)i * v, v * sizeof *one) != 0) equal = false;
    }
    rc = rc == 0 ? report(m, what, n, equal, t0) : cb_fail_in(m->err, rc, "%s", what);
    cb_session_close(t);
    cb_free_aligned(one);
    run_close(&u);
    return rc;
}

/* n_slow positions on an open engine; the first time for the other checkpoint they say what has to come. */
static int check_open(matrix *m, run *u, bool other, const char *what)
{
    digests d;
    double t0 = cb_now();
    int rc = hash_chunks(m, u, m->o->n_slow, 64, &d);
    if (rc < 0) return cb_fail_in(m->err, rc, "%s", what);
    if (other && !m->has_other) memcpy(m->other, d.some, 32);
    bool first = other && !m->has_other;
    m->has_other |= other;
    return first ? 0 : report(m, what, m->o->n_slow, !memcmp(d.some, other ? m->other : m->some, 32), t0);
}

static int load_order(matrix *m)
{
    run a = {0}, b = {0};
    const char *mine = m->o->dir, *other = m->o->other;
    int n = m->o->n_slow, rows = n < 64 ? n : 64, rc = run_open(&b, other, "auto", 2, rows, 1, n, m->err);
    if (rc == 0) rc = check_open(m, &b, true, "the other model alone");
    if (rc == 0) rc = run_open(&a, mine, "auto", 2, rows, 1, n, m->err);
    if (rc == 0) rc = check_open(m, &a, false, "loaded second");
    if (rc == 0) rc = check_open(m, &b, true, "the other model, loaded first");
    run_close(&b);
    if (rc == 0) rc = run_open(&b, other, "auto", 2, rows, 1, n, m->err);
    if (rc == 0) rc = check_open(m, &b, true, "the other model, loaded second");
    if (rc == 0) rc = check_open(m, &a, false, "loaded first");
    run_close(&a);
    run_close(&b);
    return rc;
}

int cb_self_run(const cb_self_opts *o, cb_self_result *r, cb_err *err)
{
    matrix m = { .o = o, .r = r, .err = err };
    memset(r, 0, sizeof *r);
    CB_ASSERT(o->n >= 1 && o->n_slow >= 1 && o->n_slow <= o->n);
    int rc = reference(&m);
    for (size_t l = 0; l < sizeof levels / sizeof *levels && rc == 0; l++) {
        for (int t = 1; t <= (levels[l][1] == 'u' ? 1 : 3) && rc == 0; t++) rc = level(&m, levels[l], t);
        if (rc == CB_ENODEV) rc = 0; /* not this machine's */
        else r->n_levels++;
    }
    if (rc == 0) rc = neighbours(&m, "auto");
    if (rc == 0) rc = decode(&m);
    if (rc == 0 && o->other) rc = load_order(&m);
    return rc;
}
