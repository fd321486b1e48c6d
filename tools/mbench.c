/* mbench.c: how fast a model runs, and what share of the machine's read bandwidth its decoding reaches.
 *   build/release/mbench MODEL_DIR [--decode N] [--prefill N] [--ctx N] [--reps N] [--threads N] [--device NAME] [--cpu] [--ops]
 * Each repetition takes turns: a plain read of 400 MB by as many threads (the probe), N tokens one at a time, one prompt of N
 * tokens. --ctx N: decode after N tokens. share = tokens/s * weight bytes a token / probe. --cpu: processor time of all threads
 * divided by their number, for machines that others share (threads that wait for each other spin, so with several it is an upper
 * bound of the time on a quiet machine). --ops: where a step's time goes, by kind of operation. Token ids are arbitrary: speed
 * does not depend on them, except through the experts they choose. */
#include "cambium.h"
#include "measure.h"
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static struct {
    int decode, prefill, ctx, reps;
    cb_engine_opts engine;
    bool cpu, ops;
} opt = {.decode = 32, .prefill = 512, .reps = 5, .engine = {.n_threads = 1}};

static double now(void)
{
    return opt.cpu ? clock_s(CLOCK_PROCESS_CPUTIME_ID) / opt.engine.n_threads : clock_s(CLOCK_MONOTONIC);
}
static void check(int rc, const cb_err *err)
{
    if (rc >= 0) return;
    fprintf(stderr, "mbench: %s\n", err->text);
    exit(1);
}

/* ---- the probe on threads ------------------------------------------------------------------------------------------- */

typedef struct part {
    probe *p;
    int id;
} part;
static void *probe_main(void *arg)
{
    part *q = arg;
    probe_part(q->p, q->id, opt.engine.n_threads);
    return NULL;
}
static double probe_gb_s(probe *p)
{
    part q[MAX_THREADS];
    pthread_t t[MAX_THREADS];
    double t0 = now();
    for (int i = 0; i < opt.engine.n_threads; i++) {
        q[i] = (part){p, i};
        if (i) pthread_create(&t[i], NULL, probe_main, &q[i]);
    }
    probe_main(&q[0]);
    for (int i = 1; i < opt.engine.n_threads; i++) pthread_join(t[i], NULL);
    return (double)p->n / (now() - t0) / 1e9;
}

/* ---- steps ---------------------------------------------------------------------------------------------------------- */

typedef struct model {
    cb_engine *e;
    cb_session *s;
    cb_engine_info info;
    cb_row *rows;
    float *logits;
    uint32_t rng;
} model;

/* n tokens in one step, the last one's logits wanted. */
static void step(model *m, int n)
{
    cb_err err = {0};
    for (int i = 0; i < n; i++) {
        m->rng = m->rng * 1664525u + 1013904223u;
        m->rows[i] = (cb_row){m->s, (int32_t)((m->rng >> 8) % (uint32_t)m->info.n_vocab), i == n - 1};
    }
    check(cb_step(m->e, m->rows, n, m->logits, &err), &err);
}
static void fill(model *m, int n)
{
    cb_session_reset(m->s);
    for (int at = 0, k; at < n; at += k) k = n - at < m->info.max_rows ? n - at : m->info.max_rows, step(m, k);
}

/* ---- by kind -------------------------------------------------------------------------------------------------------- */

enum { MAX_KINDS = 64 };
typedef struct kinds {
    double last; /* when the previous op ended: its own clock, since the tap's is that of the wall */
    int n;
    struct kind {
        const char *name;
        double us;
        uint64_t bytes, flops, count;
    } k[MAX_KINDS];
} kinds;
static void on_op(void *ctx, const cb_tap *t)
{
    kinds *s = ctx;
    double us = (now() - s->last) * 1e6;
    int i = 0;
    while (i < s->n && strcmp(s->k[i].name, t->kind)) i++;
    if (i == MAX_KINDS) return;
    if (i == s->n) s->k[s->n++] = (struct kind){.name = t->kind};
    s->k[i].us += us, s->k[i].bytes += t->bytes, s->k[i].flops += t->flops, s->k[i].count++;
    s->last = now();
}
static int by_us(const void *a, const void *b)
{
    double x = ((const struct kind *)a)->us, y = ((const struct kind *)b)->us;
    return (x < y) - (x > y);
}
static void print_kinds(kinds *s, const char *what, int steps)
{
    double all = 0;
    for (int i = 0; i < s->n; i++) all += s->k[i].us;
    qsort(s->k, (size_t)s->n, sizeof *s->k, by_us);
    printf("%s: %.0f us a step\n  %-12s %5s %10s %6s %8s %9s\n", what, all / steps, "kind", "ops", "us", "%", "GB/s", "GMAC/s");
    for (int i = 0; i < s->n; i++) {
        struct kind *k = &s->k[i];
        printf("  %-12s %5d %10.0f %5.1f%% %8.2f %9.1f\n", k->name, (int)(k->count / (uint64_t)steps), k->us / steps, 100 * k->us / all,
               (double)k->bytes / k->us / 1e3, (double)k->flops / 2 / k->us / 1e3);
    }
}

/* What one decoded token reads. */
static uint64_t bytes_a_token(model *m)
{
    kinds s = {0};
    uint64_t n = 0;
    cb_engine_set_tap(m->e, on_op, &s);
    step(m, 1);
    cb_engine_set_tap(m->e, NULL, NULL);
    for (int i = 0; i < s.n; i++) n += s.k[i].bytes;
    return n;
}

static void by_kind(model *m)
{
    kinds d = {0}, p = {0};
    fill(m, opt.ctx);
    cb_engine_set_tap(m->e, on_op, &d);
    for (int i = 0; i < opt.decode; i++) d.last = now(), step(m, 1);
    print_kinds(&d, "decode", opt.decode);
    if (opt.prefill) {
        cb_session_reset(m->s);
        cb_engine_set_tap(m->e, on_op, &p);
        p.last = now(), step(m, opt.prefill);
        print_kinds(&p, "prefill", 1);
    }
    cb_engine_set_tap(m->e, NULL, NULL);
}

static void print_memory(void)
{
    char line[256];
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, "RssAnon", 7) || !strncmp(line, "RssFile", 7)) printf("%.7s %.0f MB; ", line, atof(strpbrk(line, "0123456789")) / 1024);
    if (f) fclose(f);
}

static void print_sample(const char *what, sample *s)
{
    double m = median(s);
    printf("%-14s %9.2f  (%.2f .. %.2f)\n", what, m, s->v[0], s->v[s->n - 1]);
}

int main(int argc, char **argv)
{
    const char *dir = NULL;
    for (int i = 1; i < argc; i++) {
        const char *v = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(argv[i], "--decode")) opt.decode = atoi(v), i++;
        else if (!strcmp(argv[i], "--prefill")) opt.prefill = atoi(v), i++;
        else if (!strcmp(argv[i], "--ctx")) opt.ctx = atoi(v), i++;
        else if (!strcmp(argv[i], "--reps")) opt.reps = atoi(v), i++;
        else if (!strcmp(argv[i], "--threads")) opt.engine.n_threads = atoi(v), i++;
        else if (!strcmp(argv[i], "--device")) opt.engine.device = v, i++;
        else if (!strcmp(argv[i], "--cpu")) opt.cpu = true;
        else if (!strcmp(argv[i], "--ops")) opt.ops = true;
        else dir = argv[i];
    }
    if (!dir || opt.reps < 1 || opt.reps > MAX_REPS || opt.decode < 1 || opt.engine.n_threads < 1 || opt.engine.n_threads > MAX_THREADS) {
        fprintf(stderr, "usage: mbench MODEL_DIR [--decode N] [--prefill N] [--ctx N] [--reps N] [--threads N] [--device NAME] [--cpu] [--ops]\n");
        return 2;
    }
    cb_err err = {0};
    model m = {.rng = 1};
    opt.engine.max_rows = opt.prefill > 64 ? opt.prefill : 64;
    opt.engine.ctx_size = (opt.ctx > opt.prefill ? opt.ctx : opt.prefill) + opt.decode + 64;
    double t0 = clock_s(CLOCK_MONOTONIC), c0 = clock_s(CLOCK_PROCESS_CPUTIME_ID);
    check(cb_engine_open(dir, &opt.engine, &m.e, &err), &err);
    printf("%s: open %.2f s (processor %.2f s); ", dir, clock_s(CLOCK_MONOTONIC) - t0, clock_s(CLOCK_PROCESS_CPUTIME_ID) - c0);
    print_memory();
    check(cb_session_open(m.e, &m.s, &err), &err);
    cb_engine_get_info(m.e, &m.info);
    m.rows = calloc((size_t)opt.engine.max_rows, sizeof *m.rows);
    m.logits = malloc((size_t)m.info.n_vocab * 4);
    if (!m.rows || !m.logits) abort();
    uint64_t bytes = bytes_a_token(&m);
    if (opt.prefill) fill(&m, opt.prefill); /* pages and caches are warm after this */
    printf("after a prompt: ");
    print_memory();
    printf("%s, %d threads, %.1f MB a token\n", m.info.device, m.info.n_threads, (double)bytes / 1e6);
    static probe pr = {.n = 400 << 20};
    uint8_t *pool = aligned_alloc(4096, pr.n);
    if (!pool) abort();
    memset(pool, 1, pr.n);
    pr.p = pool;
    sample d = {.n = opt.reps}, p = d, b = d, share = d;
    for (int r = 0; r < opt.reps; r++) {
        b.v[r] = probe_gb_s(&pr);
        fill(&m, opt.ctx);
        double t = now();
        for (int i = 0; i < opt.decode; i++) step(&m, 1);
        d.v[r] = opt.decode / (now() - t);
        share.v[r] = 100 * d.v[r] * (double)bytes / 1e9 / b.v[r];
        cb_session_reset(m.s);
        t = now();
        if (opt.prefill) step(&m, opt.prefill);
        p.v[r] = opt.prefill / (now() - t);
    }
    print_sample("probe GB/s", &b);
    print_sample("decode tok/s", &d);
    print_sample("share %", &share);
    if (opt.prefill) print_sample("prefill tok/s", &p);
    if (opt.ops) by_kind(&m);
    cb_session_close(m.s);
    cb_engine_close(m.e);
    free(m.rows), free(m.logits), free(pool);
    return 0;
}
