/* plan.c: `cambium plan`: the recorded forward pass, and with --trace-ops what each operation costs on this machine. */
#include "base/clock.h"
#include "base/mem.h"
#include "cli/commands.h"
#include "cli/memory.h"
#include "cli/term.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_OPS = 1 << 16, N_KINDS = 40 };

typedef struct op_cost {
    char name[64], kind[16];
    double us;       /* sum over steps */
    uint64_t bytes, flops;
    int n;
} op_cost;

typedef struct trace {
    op_cost *ops;    /* [MAX_OPS], grown on demand by the highest index seen */
    int n_ops;
} trace;

static void on_op(void *ctx, const cb_tap *t)
{
    trace *tr = ctx;
    if (t->op < 0 || t->op >= MAX_OPS) return;
    op_cost *c = &tr->ops[t->op];
    if (t->op >= tr->n_ops) tr->n_ops = t->op + 1;
    if (!c->n) {
        snprintf(c->name, sizeof c->name, "%s", t->name);
        snprintf(c->kind, sizeof c->kind, "%s", t->kind);
    }
    c->us += t->us;
    c->bytes += t->bytes;
    c->flops += t->flops;
    c->n++;
}

/* ---- tables ---- */

static void print_cost(const char *label, const char *kind, double us, double bytes, double flops, double total_us, double peak)
{
    double gbs = us > 0 ? bytes / us / 1e3 : 0;
    printf("%-44.44s %-10.10s %9.1f %5.1f %%", label, kind, us, total_us > 0 ? 100 * us / total_us : 0);
    if (bytes > 0) printf(" %8.2f GB/s %5.1f %%", gbs, peak > 0 ? 100 * gbs / peak : 0);
    if (flops > 0 && bytes > 0) printf(" %9.2f GFLOP/s", us > 0 ? flops / us / 1e3 : 0);
    putchar('\n');
}

static void print_trace(const trace *t, int steps, double peak)
{
    struct {
        const char *kind;
        double us, bytes, flops;
        int n;
    } kinds[N_KINDS];
    int n_kinds = 0;
    double total = 0, bytes = 0;
    for (int i = 0; i < t->n_ops; i++) total += t->ops[i].us / steps, bytes += (double)t->ops[i].bytes / steps;
    printf("%-44s %-10s %9s %7s %13s %7s\n", "operation", "kind", "us", "time", "moved", "of read");
    for (int i = 0; i < t->n_ops; i++) {
        const op_cost *c = &t->ops[i];
        if (!c->n) continue;
        print_cost(c->name, c->kind, c->us / steps, (double)c->bytes / steps, (double)c->flops / steps, total, peak);
        int k = 0;
        while (k < n_kinds && strcmp(kinds[k].kind, c->kind) != 0) k++;
        if (k == n_kinds) {
            if (k == N_KINDS) continue;
            memset(&kinds[n_kinds++], 0, sizeof kinds[k]);
            kinds[k].kind = c->kind;
        }
        kinds[k].us += c->us / steps, kinds[k].bytes += (double)c->bytes / steps, kinds[k].flops += (double)c->flops / steps, kinds[k].n++;
    }
    printf("\nby kind\n");
    for (int k = 0; k < n_kinds; k++) {
        char label[48];
        snprintf(label, sizeof label, "%d x %s", kinds[k].n, kinds[k].kind);
        print_cost(label, "", kinds[k].us, kinds[k].bytes, kinds[k].flops, total, peak);
    }
    print_cost("all", "", total, bytes, 0, total, peak);
    printf("one token a step, mean of %d steps; each op is timed alone, which costs a barrier (on a GPU: by events); read bandwidth %.2f GB/s\n", steps, peak);
}

static int32_t some_token(const cb_engine_info *in, int i) { return (int32_t)(1 + i * 37LL % (in->n_vocab - 1)); }

/* The context in front of the steps. */
static int fill(cb_engine *e, const cb_engine_info *in, cb_session *s, int depth, cb_err *err)
{
    cb_row *rows = cb_alloc_array((size_t)in->max_rows, sizeof *rows);
    int rc = rows ? 0 : cb_fail(err, CB_ENOMEM, "no memory for %d rows", in->max_rows);
    for (int at = 0; at < depth && rc == 0;) {
        int n = depth - at < in->max_rows ? depth - at : in->max_rows;
        for (int i = 0; i < n; i++) rows[i] = (cb_row){ s, some_token(in, at + i), 0 };
        rc = cb_step(e, rows, n, NULL, err);
        at += n;
    }
    cb_free(rows);
    return rc;
}

static int run_steps(cb_engine *e, const cb_engine_info *in, int steps, int depth, trace *t, double *plain_us, cb_err *err)
{
    cb_session *s;
    float *logits = cb_alloc_aligned((size_t)in->n_vocab * sizeof *logits);
    int rc = logits ? cb_session_open(e, &s, err) : cb_fail(err, CB_ENOMEM, "no memory for a row of logits");
    if (rc < 0) {
        cb_free_aligned(logits);
        return rc;
    }
    rc = fill(e, in, s, depth, err);
    for (int i = 0; i < 2 * steps + 2 && rc == 0; i++) { /* two to warm up, then without and with the tap */
        if (cb_session_length(s) >= in->ctx_size) cb_session_reset(s);
        cb_row row = { s, some_token(in, i), 1 };
        if (i == steps + 2) cb_engine_set_tap(e, on_op, t);
        double t0 = cb_now();
        rc = cb_step(e, &row, 1, logits, err);
        if (i >= 2 && i < steps + 2) *plain_us += (cb_now() - t0) * 1e6 / steps;
    }
    cb_engine_set_tap(e, NULL, NULL);
    cb_session_close(s);
    cb_free_aligned(logits);
    return rc;
}

int cmd_plan(const cli_opts *o, cb_err *err)
{
    cli_model m = {0};
    char *text = NULL;
    int steps = o->steps == INT64_MIN ? 8 : (int)o->steps;
    if (o->steps != INT64_MIN && (o->steps < 1 || o->steps > 10000)) return cb_fail(err, CB_EUSAGE, "--steps: 1 to 10000");
    cb_memory mem;
    if (o->depth != INT64_MIN && (o->depth < 0 || o->depth > INT_MAX / 2)) return cb_fail(err, CB_EUSAGE, "--depth: 0 to %d", INT_MAX / 2);
    int depth = o->depth == INT64_MIN ? 0 : (int)o->depth;
    int rc = cli_model_open(&m, o, CLI_NEED_ENGINE | (o->trace_ops ? 0 : CLI_PLAN_ONLY), 0, 0, err);
    if (rc == 0) rc = cb_engine_plan_text(m.engine, &text, err);
    if (rc == 0) rc = cb_engine_get_memory(m.engine, 0, &mem, err);
    if (rc == 0) {
        fputs(text, stdout);
        memory_print(&mem, &m.info);
    }
    if (rc == 0 && o->trace_ops && depth + 2 * steps + 2 > m.info.ctx_size)
        rc = cb_fail(err, CB_EUSAGE, "--depth: %d tokens and %d steps; the context holds %d", depth, 2 * steps + 2, m.info.ctx_size);
    if (rc == 0 && o->trace_ops) {
        trace t = { .ops = cb_alloc_array(MAX_OPS, sizeof *t.ops) };
        double plain_us = 0;
        if (!t.ops) rc = cb_fail(err, CB_ENOMEM, "no memory for the trace");
        if (rc == 0) rc = run_steps(m.engine, &m.info, steps, depth, &t, &plain_us, err);
        if (rc == 0) {
            cb_probe probe = {0};
            cb_err why;
            if (cb_engine_probe(m.engine, &probe, &why) < 0) cli_log(o, CLI_WARN, "read bandwidth: unavailable: %s", why.text);
            printf("\ndevice %s, %d threads\n", m.info.device, m.info.n_threads);
            print_trace(&t, steps, probe.read_bytes / 1e9);
            printf("without timing each op: %.1f us a token, %.1f tok/s\n", plain_us, 1e6 / plain_us);
        }
        cb_free(t.ops);
    }
    free(text);
    cli_model_close(&m);
    return rc;
}
