/* bench_run.c: the measuring of `cambium bench`. One session holds the prompt. For each batch it is forked, each sequence gets KV
 * blocks of its own and a few tokens of its own, and then all go on greedily, one token a step. */
#include "base/clock.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "cli/bench.h"
#include "cli/term.h"
#include <stdlib.h>
#include <string.h>

typedef struct runner {
    bench *b;
    cb_engine *e;
    cb_session *base;
    cb_session **seqs; /* [max_sessions - 1] */
    int n_seqs;
    cb_row *rows;      /* [max_rows] */
    int32_t *best;     /* [max_sessions] */
    int chunk;         /* tokens of a prompt in one step */
} runner;

int bench_context(const bench *b, const bench_case *c)
{
    return c->batch ? c->depth + BENCH_TAIL + BENCH_WARMUP + b->gen : c->depth;
}

const char *bench_name(const bench_case *c, char out[80])
{
    if (c->batch) snprintf(out, 80, "decode, %d sequence%s at %d tokens", c->batch, c->batch > 1 ? "s" : "", c->depth);
    else snprintf(out, 80, "prefill, %d tokens", c->depth);
    return out;
}

/* Token i of a stream: the same for every run, machine and device. */
static int32_t token_of(const runner *r, int stream, int i)
{
    uint64_t x = ((uint64_t)stream << 32 | (uint32_t)i) + 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return (int32_t)((x ^ x >> 31) % (uint64_t)r->b->m.info.n_vocab);
}

static int interrupted(cb_err *err) { return cli_interrupted() ? cb_fail(err, CB_EINTR, "interrupted") : 0; }

static bool waits(const bench_case *c) { return !c->deferred && !c->left_out[0]; }

/* Runs a prompt of n tokens through the base session. Only the last row's id is wanted. */
static int fill(runner *r, int n, double *seconds, cb_err *err)
{
    cb_session_reset(r->base);
    double start = cb_now();
    int rc = 0;
    for (int at = 0; at < n && rc == 0;) {
        int k = n - at < r->chunk ? n - at : r->chunk;
        for (int i = 0; i < k; i++) r->rows[i] = (cb_row){r->base, token_of(r, 0, at + i), at + i == n - 1};
        if ((rc = interrupted(err)) == 0) rc = cb_step_best(r->e, r->rows, k, r->best, err);
        at += k;
    }
    *seconds = cb_now() - start;
    return rc;
}

/* The chunks' costs are summed: each reads the weights again. */
static void prompt_cost(const runner *r, int n, cb_cost *out)
{
    *out = (cb_cost){0};
    for (int at = 0; at < n; at += r->chunk) {
        cb_cost c;
        int k = n - at < r->chunk ? n - at : r->chunk;
        cb_engine_cost(r->e, 1, k, at, at + k == n, &c);
        out->weight_bytes += c.weight_bytes;
        out->state_bytes += c.state_bytes;
        out->flops += c.flops;
    }
}

/* At least once, which leaves the prompt in the base session. */
static int prefill(runner *r, bench_case *c, cb_err *err)
{
    int times = c->asked ? r->b->repeats : 1;
    char name[80];
    prompt_cost(r, c->depth, &c->cost);
    do {
        int rc = fill(r, c->depth, &c->seconds[c->n], err);
        if (rc < 0) return rc;
    } while (++c->n < times);
    double v[BENCH_MAX_SAMPLES];
    memcpy(v, c->seconds, (size_t)c->n * sizeof *v);
    cli_note(r->b->o, "%s: %.1f tok/s", bench_name(c, name), c->depth / bench_stats(v, c->n).median);
    return 0;
}

/* ---- decoding ---- */

static void close_seqs(runner *r)
{
    while (r->n_seqs) cb_session_close(r->seqs[--r->n_seqs]);
}

static int fork_all(runner *r, int n, cb_err *err)
{
    int rc = 0;
    while (r->n_seqs < n && rc == 0) {
        if ((rc = cb_session_fork(r->base, &r->seqs[r->n_seqs], err)) < 0) break;
        rc = cb_session_own(r->seqs[r->n_seqs++], err);
    }
    return rc;
}

/* Each sequence's own tokens; the first chosen ids come out. */
static int run_tails(runner *r, int32_t *ids, cb_err *err)
{
    int per = r->b->m.info.max_rows / BENCH_TAIL, rc = 0;
    for (int at = 0; at < r->n_seqs && rc == 0; at += per) {
        int n = r->n_seqs - at < per ? r->n_seqs - at : per, k = 0;
        for (int s = at; s < at + n; s++)
            for (int i = 0; i < BENCH_TAIL; i++) r->rows[k++] = (cb_row){r->seqs[s], token_of(r, 1 + s, i), i == BENCH_TAIL - 1};
        rc = cb_step_best(r->e, r->rows, k, ids + at, err);
    }
    return rc;
}

static int by_id(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static int count_distinct(int32_t *ids, int n)
{
    int d = n > 0;
    qsort(ids, (size_t)n, sizeof *ids, by_id);
    for (int i = 1; i < n; i++) d += ids[i] != ids[i - 1];
    return d;
}

/* One sample. */
static int decode_once(runner *r, bench_case *c, double *steps, cb_sha256 *hash, cb_err *err)
{
    double start = cb_now();
    int rc = fork_all(r, c->batch, err), n = BENCH_WARMUP + r->b->gen;
    if (rc == 0) rc = run_tails(r, r->best, err);
    if (!c->n) c->warmup_s = cb_now() - start;
    for (int i = 0; i < n && rc == 0; i++) {
        if ((rc = interrupted(err)) < 0) break;
        double t = cb_now();
        for (int s = 0; s < c->batch; s++) r->rows[s] = (cb_row){r->seqs[s], r->best[s], 1};
        rc = cb_step_best(r->e, r->rows, c->batch, r->best, err);
        steps[i] = cb_now() - t;
        if (i >= BENCH_WARMUP) c->seconds[c->n] += steps[i];
        cb_sha256_put(hash, r->best, (size_t)c->batch * sizeof *r->best);
    }
    close_seqs(r);
    return rc;
}

static int check_ids(bench_case *c, cb_sha256 *hash, cb_err *err)
{
    char hex[65];
    cb_sha256_hex(hash, hex);
    if (!c->n) memcpy(c->ids, hex, sizeof hex);
    return memcmp(c->ids, hex, sizeof hex) ? cb_fail(err, CB_EIO, "the same tokens led to other ids in run %d than in the first: please report this", c->n + 1) : 0;
}

static int decode(runner *r, bench_case *c, cb_err *err)
{
    int rc = 0, per = BENCH_WARMUP + r->b->gen;
    char name[80];
    cb_engine_cost(r->e, c->batch, 1, c->depth + BENCH_TAIL + BENCH_WARMUP + r->b->gen / 2, c->batch, &c->cost);
    while (c->n < r->b->repeats && rc == 0) {
        cb_sha256 hash;
        cb_sha256_init(&hash);
        rc = decode_once(r, c, c->steps + (size_t)c->n * (size_t)per, &hash, err);
        if (rc == 0) rc = check_ids(c, &hash, err);
        if (rc == 0) c->n++;
    }
    if (rc < 0) return rc;
    c->distinct = count_distinct(r->best, c->batch);
    double v[BENCH_MAX_SAMPLES];
    memcpy(v, c->seconds, (size_t)c->n * sizeof *v);
    cli_note(r->b->o, "%s: %.1f tok/s", bench_name(c, name), c->batch * r->b->gen / bench_stats(v, c->n).median);
    return 0;
}

/* ---- all cases ---- */

static void probe(bench *b, cb_engine *e)
{
    bench_probe *p = &b->probes[b->n_probes++];
    cb_err why = {0};
    if (cb_engine_probe(e, &p->p, &why) < 0) {
        snprintf(p->why_not, sizeof p->why_not, "%s", why.text);
        cli_log(b->o, CLI_WARN, "probe: unavailable: %s", why.text);
    }
}

/* A prompt, then everything that decodes after so many tokens. */
static int run_depth(runner *r, bench_case *c, cb_err *err)
{
    int rc = prefill(r, c, err);
    for (int i = 0; i < r->b->n_cases && rc == 0; i++) {
        bench_case *d = &r->b->cases[i];
        if (d->batch && d->depth == c->depth && !d->n && waits(d)) rc = decode(r, d, err);
    }
    return rc;
}

/* A depth that an earlier opening has filled already is filled, and counted, again. */
static int run_all(runner *r, cb_err *err)
{
    bench *b = r->b;
    double first = 0;
    int rc = 0;
    probe(b, r->e);
    int warm = r->b->m.info.ctx_size < r->chunk ? r->b->m.info.ctx_size : r->chunk;
    rc = fill(r, warm, &first, err);
    b->opens[b->n_opens - 1].warmup_s = first;
    for (int i = 0; i < b->n_cases && rc == 0; i++) {
        bench_case *c = &b->cases[i];
        bool needed = c->asked && !c->n && waits(c);
        for (int k = 0; k < b->n_cases && !c->batch; k++)
            needed |= b->cases[k].batch && b->cases[k].depth == c->depth && !b->cases[k].n && waits(&b->cases[k]);
        if (c->batch || !needed) continue;
        rc = run_depth(r, c, err);
    }
    if (rc == 0) probe(b, r->e);
    return rc;
}

int bench_measure(bench *b, cb_err *err)
{
    const cb_engine_info *in = &b->m.info;
    runner r = {.b = b, .e = b->m.engine, .chunk = b->chunk ? b->chunk : in->max_rows};
    int rc = 0;
    b->used_chunk = r.chunk;
    r.rows = cb_alloc_array((size_t)in->max_rows, sizeof *r.rows);
    r.best = cb_alloc_array((size_t)in->max_sessions, sizeof *r.best);
    r.seqs = cb_alloc_array((size_t)in->max_sessions, sizeof *r.seqs);
    if (!r.rows || !r.best || !r.seqs) rc = cb_fail(err, CB_ENOMEM, "no memory for %d rows and %d sequences", in->max_rows, in->max_sessions);
    if (rc == 0) rc = cb_session_open(r.e, &r.base, err);
    if (rc == 0) rc = run_all(&r, err);
    close_seqs(&r);
    cb_session_close(r.base);
    cb_free(r.seqs);
    cb_free(r.best);
    cb_free(r.rows);
    return rc;
}
