/* bench.c: `cambium bench`: which cases there are, and how often the model has to be opened for them. All cases share one opening
 * when memory allows; else there is one for the prompts and one for each batch size, without the depths that do not fit. */
#include "cli/bench.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "cli/term.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BATCH = 4000, MAX_DEPTH = 1 << 28 };

/* ---- settings ---- */

/* "512,4k": ascending, each once. */
static int parse_list(const char *flag, const char *text, int most, int *out, int *n, cb_err *err)
{
    *n = 0;
    for (const char *p = text;; p++) {
        char word[32];
        size_t len = strcspn(p, ",");
        snprintf(word, sizeof word, "%.*s", (int)(len < 31 ? len : 31), p);
        int64_t v = *word ? cli_size(word) : -1;
        if (v < 1 || v > most) return cb_fail(err, CB_EUSAGE, "--%s: %s is not a number from 1 to %d", flag, *word ? word : "an empty place", most);
        int at = 0;
        while (at < *n && out[at] < v) at++;
        if (at == *n || out[at] != v) {
            if (*n == BENCH_MAX_LIST) return cb_fail(err, CB_EUSAGE, "--%s: at most %d values", flag, BENCH_MAX_LIST);
            memmove(out + at + 1, out + at, (size_t)(*n - at) * sizeof *out);
            out[at] = (int)v;
            ++*n;
        }
        p += len;
        if (!*p) return 0;
    }
}

static bench_case *add_case(bench *b, int depth, int batch)
{
    for (int i = 0; i < b->n_cases; i++)
        if (b->cases[i].depth == depth && b->cases[i].batch == batch) return &b->cases[i];
    CB_ASSERT(b->n_cases < BENCH_MAX_CASES);
    b->cases[b->n_cases] = (bench_case){.depth = depth, .batch = batch};
    return &b->cases[b->n_cases++];
}

static int by_depth(const void *x, const void *y)
{
    const bench_case *a = x, *b = y;
    return a->depth != b->depth ? a->depth - b->depth : a->batch - b->batch;
}

static int make_cases(bench *b, cb_err *err)
{
    const cli_opts *o = b->o;
    bool gpu = !strncmp(b->device, "cuda", 4);
    int sizes[BENCH_MAX_LIST + 1], depths[BENCH_MAX_LIST + 1], batches[BENCH_MAX_LIST + 1], n_sizes, n_depths, n_batches;
    int rc = parse_list("prompt-sizes", o->prompt_sizes ? o->prompt_sizes : gpu ? "512,8192" : "512", MAX_DEPTH, sizes, &n_sizes, err);
    if (rc == 0) rc = parse_list("depths", o->depths ? o->depths : gpu ? "512,4096,32768" : "512", MAX_DEPTH, depths, &n_depths, err);
    if (rc == 0) rc = parse_list("batch", o->batches ? o->batches : gpu ? "1,8,64" : "1,8", MAX_BATCH, batches, &n_batches, err);
    if (rc < 0) return rc;
    for (int i = 0; i < n_sizes; i++) add_case(b, sizes[i], 0)->asked = true;
    for (int i = 0; i < n_depths; i++) {
        add_case(b, depths[i], 0);
        for (int k = 0; k < n_batches; k++) add_case(b, depths[i], batches[k]);
    }
    qsort(b->cases, (size_t)b->n_cases, sizeof *b->cases, by_depth);
    size_t steps = (size_t)b->repeats * (size_t)(BENCH_WARMUP + b->gen);
    for (int i = 0; i < b->n_cases; i++) {
        bench_case *c = &b->cases[i];
        c->seconds = cb_alloc_array(BENCH_MAX_SAMPLES, sizeof *c->seconds);
        c->steps = cb_alloc_array(c->batch ? steps : 0, sizeof *c->steps);
        if (!c->seconds || !c->steps) return cb_fail(err, CB_ENOMEM, "no memory for %zu samples", steps);
    }
    return 0;
}

static int read_settings(bench *b, cb_err *err)
{
    const cli_opts *o = b->o;
    b->gen = o->gen == INT64_MIN ? 64 : (int)o->gen;
    b->repeats = o->repeats == INT64_MIN ? 3 : (int)o->repeats;
    if (o->gen != INT64_MIN && (o->gen < 1 || o->gen > 100000)) return cb_fail(err, CB_EUSAGE, "--gen: 1 to 100000");
    if (o->repeats != INT64_MIN && (o->repeats < 1 || o->repeats > BENCH_MAX_REPEATS))
        return cb_fail(err, CB_EUSAGE, "--repeats: 1 to %d", BENCH_MAX_REPEATS);
    b->chunk = o->prefill_chunk > 0 && o->prefill_chunk <= 65536 ? (int)o->prefill_chunk : 0;
    return make_cases(b, err);
}

/* ---- openings ---- */

static bool open_case(const bench_case *c) { return !c->n && !c->deferred && !c->left_out[0]; }

/* A prompt that is only there to decode after it belongs to those cases. */
static bool counts(const bench_case *c) { return open_case(c) && (c->batch || c->asked); }

static void leave_out(bench *b, bench_case *c, const char *why)
{
    char name[80];
    snprintf(c->left_out, sizeof c->left_out, "%s", why);
    if (c->batch || c->asked) cli_log(b->o, CLI_WARN, "left out: %s: %s", bench_name(c, name), why);
}

/* Of the cases that count: most context, most sequences, whether more than one batch size is among them. */
static int needs(const bench *b, int *ctx, int *batch, bool *mixed)
{
    int n = 0;
    *ctx = *batch = 0;
    *mixed = false;
    for (int i = 0; i < b->n_cases; i++) {
        const bench_case *c = &b->cases[i];
        if (!counts(c)) continue;
        if (n++ && c->batch != *batch) *mixed = true;
        if (c->batch > *batch) *batch = c->batch;
        if (bench_context(b, c) > *ctx) *ctx = bench_context(b, c);
    }
    return n;
}

/* Keeps the smallest batch size for this opening. */
static void defer_all_but_one_batch(bench *b)
{
    int least = INT_MAX;
    for (int i = 0; i < b->n_cases; i++)
        if (counts(&b->cases[i]) && b->cases[i].batch < least) least = b->cases[i].batch;
    for (int i = 0; i < b->n_cases; i++)
        if (counts(&b->cases[i]) && b->cases[i].batch != least) b->cases[i].deferred = true;
}

static void leave_out_deeper(bench *b, int ctx, const char *why)
{
    for (int i = 0; i < b->n_cases; i++)
        if (counts(&b->cases[i]) && bench_context(b, &b->cases[i]) > ctx) leave_out(b, &b->cases[i], why);
}

static int try_open(bench *b, int ctx, int batch, cb_err *err)
{
    cli_opts o = *b->o;
    int rows = b->chunk > batch ? b->chunk : batch;
    if (rows < BENCH_TAIL) rows = BENCH_TAIL;
    if (!b->chunk && rows <= 512) rows = 0; /* the engine's choice */
    o.ctx_size = ctx;
    double start = cb_now();
    int rc = cli_model_open(&b->m, &o, CLI_NEED_ENGINE, batch, rows, err);
    if (rc < 0) return rc;
    const cb_engine_info *in = &b->m.info;
    b->opens[b->n_opens++] = (bench_open){.seconds = cb_now() - start, .ctx_size = in->ctx_size, .max_sessions = in->max_sessions, .max_rows = in->max_rows,
                                          .weight_bytes = in->weight_bytes, .state_bytes = in->state_bytes, .scratch_bytes = in->scratch_bytes};
    return 0;
}

/* Opens the model for as many of the waiting cases as fit. 1: open; 0: none is left. */
static int open_some(bench *b, cb_err *err)
{
    int ctx, batch;
    bool mixed;
    while (needs(b, &ctx, &batch, &mixed)) {
        int rc = try_open(b, ctx, batch, err);
        if (rc == 0) return 1;
        if (rc != CB_ENOMEM) return rc;
        if (mixed) {
            cli_note(b->o, "all cases at once do not fit, so the model is opened for each batch size: %s", err->text);
            defer_all_but_one_batch(b);
        } else {
            int deepest = 0; /* what is left without the deepest */
            for (int i = 0; i < b->n_cases; i++) {
                int n = bench_context(b, &b->cases[i]);
                if (counts(&b->cases[i]) && n < ctx && n > deepest) deepest = n;
            }
            leave_out_deeper(b, deepest, err->text);
        }
    }
    return 0;
}

/* What can be known of the model without loading it. */
static int look(bench *b, cb_err *err)
{
    cli_opts o = *b->o;
    if (o.ctx_size <= 0) o.ctx_size = 1; /* how much of it would fit is not the question */
    int rc = cli_model_open(&b->m, &o, CLI_NEED_ENGINE | CLI_PLAN_ONLY, 0, 0, err);
    if (rc < 0) return rc;
    const cb_engine_info *in = &b->m.info;
    snprintf(b->family, sizeof b->family, "%s", in->family);
    snprintf(b->device, sizeof b->device, "%s", in->device);
    snprintf(b->arithmetic, sizeof b->arithmetic, "%s", in->arithmetic);
    b->n_threads = in->n_threads;
    b->ctx_trained = in->ctx_trained;
    b->n_params = in->n_params;
    b->weight_bytes = in->weight_bytes;
    cli_model_close(&b->m);
    return 0;
}

/* The limits of the model and of --ctx-size. */
static int check_contexts(bench *b, cb_err *err)
{
    char why[160];
    int most = b->ctx_trained, ctx, batch;
    bool by_flag = b->o->ctx_size > 0 && b->o->ctx_size < most, mixed;
    if (by_flag) most = (int)b->o->ctx_size;
    snprintf(why, sizeof why, "%s %d tokens of context", by_flag ? "--ctx-size allows" : "the checkpoint was made for", most);
    leave_out_deeper(b, most, why);
    return needs(b, &ctx, &batch, &mixed) ? 0 : cb_fail(err, CB_EUSAGE, "nothing to measure: %s", why);
}

static int run_openings(bench *b, cb_err *err)
{
    bool any = false;
    for (;;) {
        int rc = open_some(b, err), n = 0;
        if (rc < 0) return rc;
        if (rc) {
            any = true;
            cli_interrupt_begin();
            rc = bench_measure(b, err);
            cli_model_close(&b->m);
            if (rc < 0) return rc;
        }
        for (int i = 0; i < b->n_cases; i++) n += b->cases[i].deferred, b->cases[i].deferred = false;
        if (!n) return any ? 0 : err->code;
    }
}

/* ---- results ---- */

/* Said before hours of measuring. Nothing is kept open meanwhile, which a killed run would leave behind. */
static int check_writable(const char *file, cb_err *err)
{
    cb_outfile f;
    int rc = cb_outfile_open(&f, file, err);
    if (rc == 0) cb_outfile_abort(&f);
    return rc;
}

static int write_json(const bench *b, const char *file, cb_err *err)
{
    json_t *j = bench_json(b);
    cb_outfile f;
    if (!file) return cli_print_json(j, err);
    int rc = cb_outfile_open(&f, file, err);
    if (rc == 0 && (!j || json_dumpf(j, f.f, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) < 0 || fputc('\n', f.f) == EOF)) {
        cb_outfile_abort(&f);
        rc = cb_fail(err, CB_EIO, "%.300s: cannot be written", file);
    }
    json_decref(j);
    return rc < 0 ? rc : cb_outfile_commit(&f, err);
}

int cmd_bench(const cli_opts *o, cb_err *err)
{
    bench *b = cb_alloc(sizeof *b);
    if (!b) return cb_fail(err, CB_ENOMEM, "no memory for a benchmark");
    b->o = o;
    const char *file = o->json_file;
    bool to_stdout = file && (!strcmp(file, "-") || !strcmp(file, "1") || !strcmp(file, "true")); /* CAMBIUM_JSON=1 */
    int rc = look(b, err);
    if (rc == 0) rc = read_settings(b, err);
    if (rc == 0) rc = check_contexts(b, err);
    if (rc == 0 && file && !to_stdout) rc = check_writable(file, err);
    if (rc == 0) rc = run_openings(b, err);
    if (b->n_opens && !to_stdout && rc != CB_EUSAGE) { /* of a run that ended early: what there is */
        if (o->csv) bench_print_csv(b);
        else bench_print_table(b);
    }
    if (rc == 0 && file) rc = write_json(b, to_stdout ? NULL : file, err);
    for (int i = 0; i < b->n_cases; i++) {
        cb_free(b->cases[i].seconds);
        cb_free(b->cases[i].steps);
    }
    cli_model_close(&b->m);
    cb_free(b);
    return rc;
}
