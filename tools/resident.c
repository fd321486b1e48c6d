/* resident.c: does it cost anything that other models are resident, or in which order they came?
 *   build/release/resident MODEL_DIR... [--device NAME] [--threads N] [--depth N] [--steps N] [--repeats N] [--limit PERCENT] [--json FILE]
 * Up to 8 models in one process. Cohorts: each alone (opened, measured, closed); all opened in the order given and measured in it
 * (forward); all opened in the opposite order and measured in it (reverse); one step of each in turn (in turn); each alone again, which says
 * how far the machine itself drifts. A measurement is the median time of N greedy steps after a prompt; the best of the repeats counts.
 * Ratios are to the mean of alone and alone again. Status 1: forward, reverse or in turn gave other ids than alone, or forward or reverse is
 * further from alone than the limit (default 5 %; in turn has no limit: models push each other's weights out of the caches). */
#include "cambium.h"
#include "measure.h"
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { MAX_MODELS = 8, MAX_STEPS = 4096, WARMUP = 8, CHUNK = 512 };
enum { ALONE, FORWARD, REVERSE, IN_TURN, ALONE_AGAIN, N_COHORTS };
static const char *const cohort_names[N_COHORTS] = {"alone", "forward", "reverse", "in turn", "alone again"};

static struct {
    const char *dir[MAX_MODELS], *json;
    int n, depth, steps, repeats;
    double limit;
    cb_engine_opts engine;
} opt = {.depth = 512, .steps = 128, .repeats = 3, .limit = 5};

typedef struct model {
    cb_engine *e;
    cb_session *s;
    int n_vocab;
    int32_t next;
    uint64_t ids; /* FNV-1a of those chosen since the prompt */
    double t[MAX_STEPS];
} model;

typedef struct result {
    double step[N_COHORTS]; /* seconds; 0: not yet */
    uint64_t ids[N_COHORTS];
} result;

static model models[MAX_MODELS];
static result results[MAX_MODELS];
static char device[64];

static void check(int rc, const char *what, const cb_err *err)
{
    if (rc >= 0) return;
    fprintf(stderr, "resident: %s: %s\n", what, err->text);
    exit(1);
}

static void model_open(int i)
{
    model *m = &models[i];
    cb_err err;
    cb_engine_info in;
    check(cb_engine_open(opt.dir[i], &opt.engine, &m->e, &err), opt.dir[i], &err);
    check(cb_session_open(m->e, &m->s, &err), opt.dir[i], &err);
    cb_engine_get_info(m->e, &in);
    m->n_vocab = in.n_vocab;
    snprintf(device, sizeof device, "%s", in.device);
}

static void model_close(int i)
{
    cb_session_close(models[i].s);
    cb_engine_close(models[i].e);
    models[i].s = NULL;
    models[i].e = NULL;
}

static void prompt(model *m)
{
    cb_row rows[CHUNK];
    cb_err err;
    cb_session_reset(m->s);
    m->ids = 14695981039346656037u;
    for (int at = 0; at < opt.depth;) {
        int n = opt.depth - at < CHUNK ? opt.depth - at : CHUNK;
        for (int i = 0; i < n; i++) rows[i] = (cb_row){m->s, (int32_t)((uint32_t)(at + i) * 2654435761u % (uint32_t)m->n_vocab), at + i == opt.depth - 1};
        check(cb_step_best(m->e, rows, n, &m->next, &err), "prompt", &err);
        at += n;
    }
}

static double step(model *m)
{
    cb_err err;
    double t0 = clock_s(CLOCK_MONOTONIC);
    check(cb_step_best(m->e, &(cb_row){m->s, m->next, 1}, 1, &m->next, &err), "a step", &err);
    double t = clock_s(CLOCK_MONOTONIC) - t0;
    m->ids = (m->ids ^ (uint32_t)m->next) * 1099511628211u;
    return t;
}

static double middle(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, cmp_double);
    return v[n / 2];
}

static void keep(int i, int cohort)
{
    result *r = &results[i];
    double t = middle(models[i].t, opt.steps);
    if (r->step[cohort] == 0 || t < r->step[cohort]) r->step[cohort] = t;
    if (r->ids[cohort] && r->ids[cohort] != models[i].ids) {
        fprintf(stderr, "resident: %s: two runs chose different tokens\n", opt.dir[i]);
        exit(1);
    }
    r->ids[cohort] = models[i].ids;
}

static void measure(int i, int cohort)
{
    for (int rep = 0; rep < opt.repeats; rep++) {
        prompt(&models[i]);
        for (int k = 0; k < WARMUP; k++) step(&models[i]);
        for (int k = 0; k < opt.steps; k++) models[i].t[k] = step(&models[i]);
        keep(i, cohort);
    }
}

static void measure_in_turn(void)
{
    for (int rep = 0; rep < opt.repeats; rep++) {
        for (int i = 0; i < opt.n; i++) prompt(&models[i]);
        for (int k = -WARMUP; k < opt.steps; k++)
            for (int i = 0; i < opt.n; i++) models[i].t[k < 0 ? 0 : k] = step(&models[i]);
        for (int i = 0; i < opt.n; i++) keep(i, IN_TURN);
    }
}

static void alone(int cohort)
{
    for (int i = 0; i < opt.n; i++) {
        model_open(i);
        measure(i, cohort);
        model_close(i);
    }
}

static void together(int cohort)
{
    for (int i = 0; i < opt.n; i++) model_open(cohort == FORWARD ? i : opt.n - 1 - i);
    for (int i = 0; i < opt.n; i++) measure(cohort == FORWARD ? i : opt.n - 1 - i, cohort);
    if (cohort == FORWARD) measure_in_turn();
    for (int i = 0; i < opt.n; i++) model_close(i);
}

/* ---- results ---- */

static double ratio(const result *r, int cohort) { return r->step[cohort] / (0.5 * (r->step[ALONE] + r->step[ALONE_AGAIN])); }

/* Status: 0, or 1 when a limit or the ids do not hold. */
static int report(FILE *json)
{
    int rc = 0;
    printf("%s, %d steps after %d tokens, median step of the best of %d\n%-32s", device, opt.steps, opt.depth, opt.repeats, "microseconds a step (ratio)");
    for (int c = 0; c < N_COHORTS; c++) printf(" %16s", cohort_names[c]);
    putchar('\n');
    if (json) fprintf(json, "{\"device\": \"%s\", \"steps\": %d, \"depth\": %d, \"repeats\": %d, \"limit_percent\": %g, \"models\": [", device, opt.steps, opt.depth, opt.repeats, opt.limit);
    for (int i = 0; i < opt.n; i++) {
        const result *r = &results[i];
        const char *name = strrchr(opt.dir[i], '/');
        name = name && name[1] ? name + 1 : opt.dir[i];
        printf("%-32.32s", name);
        if (json) fprintf(json, "%s\n {\"model\": \"%s\", \"ids\": \"%016llx\"", i ? "," : "", name, (unsigned long long)r->ids[ALONE]);
        for (int c = 0; c < N_COHORTS; c++) {
            bool same = r->ids[c] == r->ids[ALONE], near = fabs(ratio(r, c) - 1) * 100 <= opt.limit;
            printf(" %8.1f (%5.3f)%s", r->step[c] * 1e6, ratio(r, c), same ? "" : "*");
            if (json) fprintf(json, ", \"%s\": {\"step_us\": %.3f, \"ratio\": %.5f, \"same_ids\": %s}", cohort_names[c], r->step[c] * 1e6, ratio(r, c), same ? "true" : "false");
            if (!same || (!near && (c == FORWARD || c == REVERSE))) rc = 1;
        }
        putchar('\n');
        if (json) fputs("}", json);
    }
    if (json) fprintf(json, "\n], \"ok\": %s}\n", rc ? "false" : "true");
    puts(rc ? "NOT within the limit, or other ids (*)" : "the same ids everywhere; forward and reverse within the limit of alone");
    return rc;
}

static int read_args(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i], *v = i + 1 < argc ? argv[i + 1] : NULL;
        if (a[0] != '-') {
            if (opt.n == MAX_MODELS) return -1;
            opt.dir[opt.n++] = a;
            continue;
        }
        if (!v) return -1;
        i++;
        if (!strcmp(a, "--device")) opt.engine.device = v;
        else if (!strcmp(a, "--threads")) opt.engine.n_threads = (int)strtol(v, NULL, 10);
        else if (!strcmp(a, "--depth")) opt.depth = (int)strtol(v, NULL, 10);
        else if (!strcmp(a, "--steps")) opt.steps = (int)strtol(v, NULL, 10);
        else if (!strcmp(a, "--repeats")) opt.repeats = (int)strtol(v, NULL, 10);
        else if (!strcmp(a, "--limit")) opt.limit = strtod(v, NULL);
        else if (!strcmp(a, "--json")) opt.json = v;
        else return -1;
    }
    return opt.n && opt.depth >= 1 && opt.steps >= 1 && opt.steps <= MAX_STEPS && opt.repeats >= 1 ? 0 : -1;
}

int main(int argc, char **argv)
{
    if (read_args(argc, argv) < 0) {
        fprintf(stderr, "usage: resident MODEL_DIR... [--device NAME] [--threads N] [--depth N] [--steps N] [--repeats N] [--limit PERCENT] [--json FILE]\n");
        return 2;
    }
    opt.engine.ctx_size = opt.depth + WARMUP + opt.steps + 1;
    opt.engine.max_rows = CHUNK;
    alone(ALONE);
    together(FORWARD);
    together(REVERSE);
    alone(ALONE_AGAIN);
    FILE *json = opt.json ? fopen(opt.json, "w") : NULL;
    if (opt.json && !json) {
        fprintf(stderr, "resident: %s cannot be written\n", opt.json);
        return 1;
    }
    int rc = report(json);
    if (json && fclose(json) != 0) rc = 1;
    return rc;
}
