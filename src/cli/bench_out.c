/* bench_out.c: results of `cambium bench` as a table, comma-separated values and JSON. */
#include "base/mem.h"
#include "cli/bench.h"
#include "cli/term.h"
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

bench_stat bench_stats(double *v, int n)
{
    if (n < 1) return (bench_stat){0};
    qsort(v, (size_t)n, sizeof *v, by_value);
    int p95 = (95 * n + 99) / 100 - 1;
    return (bench_stat){(v[(n - 1) / 2] + v[n / 2]) / 2, v[0], v[n - 1], v[p95]};
}

double bench_peak(const bench *b, bool matmul)
{
    double v[2 * BENCH_MAX_OPENS];
    int n = 0;
    for (int i = 0; i < b->n_probes; i++)
        if (!b->probes[i].why_not[0]) v[n++] = matmul ? b->probes[i].p.matmul_flops : b->probes[i].p.read_bytes;
    return bench_stats(v, n).median;
}

/* ---- one case ---- */

/* Tokens per second of all samples. */
static bench_stat rate(const bench *b, const bench_case *c)
{
    double v[BENCH_MAX_SAMPLES], tokens = c->batch ? (double)c->batch * b->gen : c->depth;
    for (int i = 0; i < c->n; i++) v[i] = tokens / c->seconds[i];
    return bench_stats(v, c->n);
}

/* Seconds between tokens of one sequence, over all counted steps. */
static bench_stat step_stats(const bench *b, const bench_case *c)
{
    int per = BENCH_WARMUP + b->gen, n = 0;
    bench_stat s = {0};
    double *v = cb_alloc_array((size_t)c->n * (size_t)per, sizeof *v);
    if (!v) return s;
    for (int i = 0; i < c->n; i++)
        for (int k = BENCH_WARMUP; k < per; k++) v[n++] = c->steps[(size_t)i * (size_t)per + (size_t)k];
    s = bench_stats(v, n);
    cb_free(v);
    return s;
}

static double bytes_per_s(const bench *b, const bench_case *c)
{
    return (c->cost.weight_bytes + c->cost.state_bytes) * rate(b, c).median / c->batch;
}

static double flops_per_s(const bench *b, const bench_case *c)
{
    return c->cost.flops * rate(b, c).median / (c->batch ? c->batch : c->depth);
}

/* "81.5 %", or "-" without a peak. */
static const char *share(char out[16], double v, double peak)
{
    snprintf(out, 16, peak > 0 ? "%.1f %%" : "-", peak > 0 ? 100 * v / peak : 0);
    return out;
}

/* ---- table ---- */

static void print_head(const bench *b)
{
    char a[32], s[32];
    printf("%s: %s, %s, %s of weights\n%s, %s, %d thread%s, %d-token chunks\n", b->o->args[0], b->family, b->arithmetic, cli_bytes(a, b->weight_bytes), b->device,
           cb_version(), b->n_threads, b->n_threads > 1 ? "s" : "", b->used_chunk);
    for (int i = 0; i < b->n_opens; i++) {
        const bench_open *p = &b->opens[i];
        printf("load     %.2f s (%.2f GB/s), room for %d x %d tokens, state %s\n", p->seconds, (double)p->weight_bytes / p->seconds / 1e9, p->max_sessions,
               p->ctx_size, cli_bytes(s, p->state_bytes));
    }
    for (int i = 0; i < b->n_probes; i++) {
        const bench_probe *p = &b->probes[i];
        if (p->why_not[0]) printf("probe    unavailable: %s\n", p->why_not);
        else if (p->p.matmul_flops > 0) printf("probe    read %.1f GB/s, products %.1f GFLOP/s\n", p->p.read_bytes / 1e9, p->p.matmul_flops / 1e9);
        else printf("probe    read %.1f GB/s\n", p->p.read_bytes / 1e9);
    }
}

static void print_prefill(const bench *b, const bench_case *c)
{
    char s[16];
    bench_stat r = rate(b, c);
    printf("%8d %3d %10.1f %10.1f %10.1f %12.1f %9s\n", c->depth, c->n, r.median, r.least, r.most, flops_per_s(b, c) / 1e9,
           share(s, flops_per_s(b, c), bench_peak(b, true)));
}

static void print_decode(const bench *b, const bench_case *c)
{
    char s[16];
    bench_stat r = rate(b, c), t = step_stats(b, c);
    printf("%8d %5d %3d %10.1f %10.1f %10.1f %8.3f %8.3f %8.3f %9.1f %8s\n", c->depth, c->batch, c->n, r.median, r.least, r.most, t.median * 1e3, t.p95 * 1e3,
           t.most * 1e3, bytes_per_s(b, c) / 1e9, share(s, bytes_per_s(b, c), bench_peak(b, false)));
}

void bench_print_table(const bench *b)
{
    print_head(b);
    bool head = false;
    for (int i = 0; i < b->n_cases; i++) {
        if (b->cases[i].batch || !b->cases[i].n) continue;
        if (!head) printf("\n%8s %3s %10s %10s %10s %12s %9s\n", "prefill", "n", "tok/s", "lowest", "highest", "GFLOP/s", "of peak");
        head = true;
        print_prefill(b, &b->cases[i]);
    }
    head = false;
    for (int i = 0; i < b->n_cases; i++) {
        if (!b->cases[i].batch || !b->cases[i].n) continue;
        if (!head)
            printf("\n%8s %5s %3s %10s %10s %10s %8s %8s %8s %9s %8s\n", "decode", "batch", "n", "tok/s", "lowest", "highest", "ITL ms", "p95", "most", "GB/s",
                   "of read");
        head = true;
        print_decode(b, &b->cases[i]);
    }
    for (int i = 0; i < b->n_cases; i++) {
        const bench_case *c = &b->cases[i];
        char name[80];
        if (c->left_out[0] && (c->batch || c->asked)) printf("left out %s: %s\n", bench_name(c, name), c->left_out);
    }
}

void bench_print_csv(const bench *b)
{
    printf("kind,tokens,batch,n,tok_s,tok_s_min,tok_s_max,itl_ms,itl_ms_p95,itl_ms_max,gb_s,share_of_read,gflop_s,share_of_products\n");
    for (int i = 0; i < b->n_cases; i++) {
        const bench_case *c = &b->cases[i];
        if (!c->n) continue;
        bench_stat r = rate(b, c), t = {0};
        double read = bench_peak(b, false), product = bench_peak(b, true), flops = flops_per_s(b, c);
        if (c->batch) t = step_stats(b, c);
        printf("%s,%d,%d,%d,%.3f,%.3f,%.3f,", c->batch ? "decode" : "prefill", c->depth, c->batch, c->n, r.median, r.least, r.most);
        if (c->batch) printf("%.4f,%.4f,%.4f,%.3f,", t.median * 1e3, t.p95 * 1e3, t.most * 1e3, bytes_per_s(b, c) / 1e9);
        else printf(",,,,");
        if (c->batch && read > 0) printf("%.4f", bytes_per_s(b, c) / read);
        printf(",%.3f,", flops / 1e9);
        if (product > 0) printf("%.4f", flops / product);
        putchar('\n');
    }
}

/* ---- JSON ---- */

static json_t *reals(const double *v, int n)
{
    json_t *a = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(a, json_real(v[i]));
    return a;
}

static json_t *stat_json(bench_stat s, double unit)
{
    return json_pack("{s:f, s:f, s:f}", "median", s.median * unit, "min", s.least * unit, "max", s.most * unit);
}

static void put_share(json_t *j, const char *key, double v, double peak)
{
    json_object_set_new(j, key, peak > 0 ? json_real(v / peak) : json_null());
}

static json_t *case_json(const bench *b, const bench_case *c)
{
    double flops = flops_per_s(b, c);
    json_t *j = json_pack("{s:i, s:i, s:o, s:o}", c->batch ? "depth" : "tokens", c->depth, "n", c->n, "tok_s", stat_json(rate(b, c), 1), "seconds",
                          reals(c->seconds, c->n));
    json_object_set_new(j, "flops", json_real(c->cost.flops));
    json_object_set_new(j, "flop_s", json_real(flops));
    put_share(j, "share_of_products", flops, bench_peak(b, true));
    if (!c->batch) return j;
    int per = BENCH_WARMUP + b->gen;
    bench_stat t = step_stats(b, c);
    json_t *steps = json_array(), *itl = stat_json(t, 1e3);
    for (int i = 0; i < c->n; i++) json_array_append_new(steps, reals(c->steps + (size_t)i * (size_t)per, per));
    json_object_set_new(itl, "p95", json_real(t.p95 * 1e3));
    json_object_set_new(j, "batch", json_integer(c->batch));
    json_object_set_new(j, "itl_ms", itl);
    json_object_set_new(j, "warmup_s", json_real(c->warmup_s));
    json_object_set_new(j, "step_s", steps);
    json_object_set_new(j, "step_bytes", json_pack("{s:f, s:f}", "weights", c->cost.weight_bytes, "state", c->cost.state_bytes));
    json_object_set_new(j, "bytes_s", json_real(bytes_per_s(b, c)));
    put_share(j, "share_of_read", bytes_per_s(b, c), bench_peak(b, false));
    json_object_set_new(j, "distinct_tokens", json_integer(c->distinct));
    json_object_set_new(j, "ids_sha256", json_string(c->ids));
    return j;
}

static json_t *opens_json(const bench *b)
{
    json_t *a = json_array();
    for (int i = 0; i < b->n_opens; i++) {
        const bench_open *p = &b->opens[i];
        json_array_append_new(a, json_pack("{s:f, s:f, s:i, s:i, s:i, s:I, s:I, s:f}", "seconds", p->seconds, "bytes_s", (double)p->weight_bytes / p->seconds, "ctx_size",
                                           p->ctx_size, "sequences", p->max_sessions, "rows", p->max_rows, "state_bytes", (json_int_t)p->state_bytes, "scratch_bytes",
                                           (json_int_t)p->scratch_bytes, "warmup_s", p->warmup_s));
    }
    return a;
}

static json_t *probes_json(const bench *b)
{
    json_t *a = json_array();
    for (int i = 0; i < b->n_probes; i++) {
        const bench_probe *p = &b->probes[i];
        const char *when = i % 2 ? "after" : "before";
        json_t *products = p->p.matmul_flops > 0 ? json_real(p->p.matmul_flops) : json_null();
        if (p->why_not[0]) {
            json_decref(products);
            json_array_append_new(a, json_pack("{s:s, s:o}", "when", when, "unavailable", cli_json_string(p->why_not, strlen(p->why_not))));
        } else json_array_append_new(a, json_pack("{s:s, s:f, s:o}", "when", when, "read_bytes_s", p->p.read_bytes, "product_flop_s", products));
    }
    return a;
}

/* What the figures do not show. */
static json_t *limits_json(void)
{
    static const char *const limits[] = {
        "token ids are pseudo-random; text may route to fewer experts",
        "one process; runs inside it share its luck",
        "no tokenizer, template, sampler or server is included",
        "bytes are the least that the stored formats allow; of experts the expected number for independent rows",
    };
    json_t *a = json_array();
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) json_array_append_new(a, json_string(limits[i]));
    return a;
}

json_t *bench_json(const bench *b)
{
    struct rusage u = {0};
    json_t *prefill = json_array(), *decode = json_array(), *left = json_array(), *j = json_object();
    for (int i = 0; i < b->n_cases; i++) {
        const bench_case *c = &b->cases[i];
        if (c->n) json_array_append_new(c->batch ? decode : prefill, case_json(b, c));
        else if (c->left_out[0] && (c->batch || c->asked))
            json_array_append_new(left, json_pack("{s:i, s:i, s:o}", c->batch ? "depth" : "tokens", c->depth, "batch", c->batch, "why",
                                                  cli_json_string(c->left_out, strlen(c->left_out))));
    }
    getrusage(RUSAGE_SELF, &u);
    json_object_set_new(j, "cambium", json_pack("{s:s, s:s, s:s}", "version", cb_version(), "commit", cli_commit(), "arithmetic", b->arithmetic));
    json_object_set_new(j, "machine", cli_machine_json());
    json_object_set_new(j, "model", json_pack("{s:o, s:s, s:I, s:I, s:i}", "name", cli_json_string(b->o->args[0], strlen(b->o->args[0])), "family", b->family,
                                              "parameters", (json_int_t)b->n_params, "weight_bytes", (json_int_t)b->weight_bytes, "ctx_trained", b->ctx_trained));
    json_object_set_new(j, "settings", json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i}", "device", b->device, "threads", b->n_threads, "prefill_chunk", b->used_chunk, "gen",
                                                 b->gen, "repeats", b->repeats, "tail", BENCH_TAIL, "warmup_steps", BENCH_WARMUP));
    json_object_set_new(j, "load", opens_json(b));
    json_object_set_new(j, "probe", probes_json(b));
    json_object_set_new(j, "prefill", prefill);
    json_object_set_new(j, "decode", decode);
    json_object_set_new(j, "left_out", left);
    json_object_set_new(j, "rss_peak_bytes", json_integer((json_int_t)u.ru_maxrss * 1024));
    json_object_set_new(j, "limits", limits_json());
    return j;
}
