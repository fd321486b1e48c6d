/* parity.c: `cambium parity`. check: how far the engine is from truth, beside what other stacks score on the same positions
 * (columns of the reference file), and whether the gates hold. self: one hash, whatever the schedule (parity_self.c).
 * parity_ops.c and parity_layers.c: the rest. */
#include "base/mem.h"
#include "cli/commands.h"
#include "cli/model.h"
#include "cli/parity_cmds.h"
#include "cli/parity_run.h"
#include "cli/parity_self.h"
#include "cli/term.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PARITY_ROWS = 32 };

/* All of truth's rows, when asked for: f32 [n_pos][n_vocab], nothing else in the file. */
static int map_full(const char *path, const cb_ref *r, cb_map *m, cb_err *err)
{
    int rc = cb_map_open(m, NULL, path, err);
    if (rc < 0) return rc;
    uint64_t want = (uint64_t)r->n_pos * r->n_vocab * 4;
    if (m->n == want) return 0;
    return cb_fail(err, CB_EFORMAT, "%s: %zu bytes, %u rows of %u f32 are %llu", path, m->n, r->n_pos, r->n_vocab, (unsigned long long)want);
}

static void print_column(const char *name, double kl, double kl_max, double dmax, int same, int n)
{
    printf("%-30s %10.2e %10.2e %12.4g %7d/%d\n", name, kl, kl_max, dmax, same, n);
}

static double number(const json_t *o, const char *key) { return json_number_value(json_object_get(o, key)); }

static void print_table(const cb_parity *p, const cb_ref *r, const cb_parity_limits *lim, const char *ours)
{
    const cb_ref_score *s = &p->score;
    printf("%-30s %10s %10s %12s %9s\n", "against truth", "mean KL", "max KL", "max |d logit|", "top-1");
    print_column(ours, s->kl_sum / s->n, s->kl_max, s->dmax, s->n - s->n_flips, s->n);
    if (s->n_full) printf("%-30s %10.2e %10.2e   on %d full rows\n", "", s->full_kl_sum / s->n_full, s->full_kl_max, s->n_full);
    const char *key;
    json_t *v;
    json_object_foreach(r->meta, key, v)
        if (json_object_get(v, "kl_mean"))
            print_column(key, number(v, "kl_mean"), number(v, "kl_max"), number(v, "dmax"), (int)number(v, "top1"), (int)number(v, "positions"));
    printf("%-30s %10.2e %10s %12.4g   where truth's margin > %g\n", "limits", lim->kl_mean, "", lim->dmax, (double)lim->margin);
    printf("greedy: %d runs, %d tokens equal, %d left truth's path at a tie, %d wrongly\n", p->greedy_runs, p->greedy_tokens,
           p->greedy_ties, p->greedy_wrong);
    if (s->n_full) printf("full rows: largest |d logit| beside a common shift %.4g\n", s->dmax_c);
    for (int i = 0; i < s->n_flips && i < CB_REF_FLIPS; i++)
        printf("position %d: best token %u, truth's is %u and leads by %.4g: %s\n", s->flips[i].pos, s->flips[i].got, s->flips[i].want,
               (double)s->flips[i].lead, s->flips[i].lead > s->margin ? "WRONG" : "a tie");
    if (s->n_flips > CB_REF_FLIPS) printf("... the best token differs at %d positions in all\n", s->n_flips);
}

static void print_cases(const cb_parity *p, const cb_ref *r)
{
    printf("\n%-30s %10s %10s %12s %9s\n", "case", "mean KL", "max KL", "max |d logit|", "top-1");
    for (uint32_t i = 0; i < r->n_cases; i++) {
        const cb_ref_score *s = &p->cases[i];
        if (s->n) print_column(cb_ref_case_name(r, i), s->kl_sum / s->n, s->kl_max, s->dmax, s->n - s->n_flips, s->n);
    }
}

static json_t *cases_json(const cb_parity *p, const cb_ref *r)
{
    json_t *a = json_array();
    for (uint32_t i = 0; i < r->n_cases; i++) {
        const cb_ref_score *s = &p->cases[i];
        json_array_append_new(a, json_pack("{s:s, s:i, s:f, s:f, s:f, s:i}", "name", cb_ref_case_name(r, i), "positions", s->n, "kl_mean",
                                           s->n ? s->kl_sum / s->n : 0.0, "kl_max", s->kl_max, "dmax", s->dmax, "top1", s->n - s->n_flips));
    }
    return a;
}

static json_t *flips_json(const cb_ref_score *s)
{
    json_t *a = json_array();
    for (int i = 0; i < s->n_flips && i < CB_REF_FLIPS; i++)
        json_array_append_new(a, json_pack("{s:i, s:I, s:I, s:f, s:b}", "position", s->flips[i].pos, "truth", (json_int_t)s->flips[i].want, "got",
                                           (json_int_t)s->flips[i].got, "lead", (double)s->flips[i].lead, "explained", !(s->flips[i].lead > s->margin)));
    return a;
}

static void print_json(const cb_parity *p, const cb_ref *r, bool passed)
{
    const cb_ref_score *s = &p->score;
    json_t *o = json_pack("{s:i, s:f, s:f, s:f, s:i, s:i, s:f, s:i, s:i, s:i, s:i, s:b}", "positions", s->n, "kl_mean", s->kl_sum / s->n,
                          "kl_max", s->kl_max, "dmax", s->dmax, "top1", s->n - s->n_flips, "full_rows", s->n_full, "full_kl_mean",
                          s->n_full ? s->full_kl_sum / s->n_full : 0.0, "greedy_runs", p->greedy_runs, "greedy_tokens", p->greedy_tokens,
                          "greedy_ties", p->greedy_ties, "greedy_wrong", p->greedy_wrong, "passed", passed);
    json_object_set_new(o, "cases", cases_json(p, r));
    json_object_set_new(o, "flips", flips_json(s));
    if (s->n_full) json_object_set_new(o, "dmax_c", json_real(s->dmax_c));
    json_t *columns = json_object();
    const char *key;
    json_t *v;
    json_object_foreach(r->meta, key, v)
        if (json_object_get(v, "kl_mean")) json_object_set(columns, key, v);
    json_object_set_new(o, "stacks", columns);
    if (cb_parity_stack(r)) json_object_set_new(o, "reference_stack", json_string(cb_parity_stack(r)));
    json_dumpf(o, stdout, JSON_COMPACT);
    putchar('\n');
    json_decref(o);
}

static int check(const cli_opts *o, cb_err *err)
{
    if (o->n_args != 2) return cb_fail(err, CB_EUSAGE, "`cambium parity check` needs MODEL and REF.cbref");
    cb_parity_limits lim = cb_parity_defaults;
    if (!isnan(o->kl_mean)) lim.kl_mean = o->kl_mean;
    if (!isnan(o->dmax)) lim.dmax = o->dmax;
    if (!isnan(o->margin)) lim.margin = (float)o->margin;
    cb_ref *r = NULL;
    cb_map full = {0};
    cli_model m = {0};
    cb_parity p = {0};
    int rc = cb_ref_open(o->args[1], &r, err);
    if (rc >= 0 && !(p.cases = cb_alloc_array(r->n_cases, sizeof *p.cases))) rc = cb_fail(err, CB_ENOMEM, "no memory for %u cases", r->n_cases);
    if (rc >= 0 && o->full) rc = map_full(o->full, r, &full, err);
    if (rc >= 0) rc = cli_model_open(&m, o, CLI_NEED_ENGINE, 0, 0, err);
    if (rc >= 0) {
        int chunk = m.info.max_rows < PARITY_ROWS ? m.info.max_rows : PARITY_ROWS;
        rc = cb_parity_run(m.engine, r, (const float *)(const void *)full.data, chunk, &lim, &p, err);
    }
    if (rc >= 0) {
        rc = cb_parity_gate(&p, r, &lim, err);
        if (rc == 0) rc = cb_parity_gate_stack(&p, r, err);
        if (o->json) print_json(&p, r, rc >= 0);
        else print_table(&p, r, &lim, m.info.device);
        if (!o->json && o->level >= CLI_DEBUG) print_cases(&p, r);
    }
    cb_free(p.cases);
    cli_model_close(&m);
    cb_map_close(&full);
    cb_ref_close(r);
    return rc;
}

/* ---- self ---- */

enum { SELF_POSITIONS = 72, SELF_SLOW = 8, SELF_MAX = 512 };

static const char self_text[] =
    "The old lighthouse keeper climbed the stairs each evening at dusk, counting 217 steps. \"One more winter,\" he said, and lit the lamp; "
    "ships 30 miles out would see it. In 1887 a storm broke the windows, and for (int i = 0; i < n; i++) the wind put out the flame. Danach "
    "war es still. Nobody on the island remembers what happened next, but the log book lists every vessel that came in safely that night, "
    "with its cargo of salt, oranges, rope and letters from the mainland.";

static void print_cell(void *ctx, const cb_self_cell *c)
{
    const cli_opts *o = ctx;
    if (!o->json) printf("%-9s  %-52s %4d positions  %6.2f s\n", c->equal ? "equal" : "DIFFERENT", c->what, c->n, c->seconds);
    fflush(stdout);
}

int parity_ids(const cli_opts *o, const cli_model *m, int32_t **ids, int *n, cb_err *err)
{
    char *text = NULL;
    size_t len = sizeof self_text - 1;
    int rc = 0;
    if (o->file) rc = cli_read_file(o->file, 1 << 20, &text, &len, err);
    else if (o->prompt) len = strlen(o->prompt);
    if (rc == 0) rc = cli_encode_raw(m->tok, text ? text : o->prompt ? o->prompt : self_text, len, ids, n, err);
    cb_free(text);
    if (rc == 0 && *n < 1) rc = cb_fail(err, CB_EUSAGE, "the text is empty");
    return rc;
}

int parity_positions(const cli_opts *o, int usual, int most, int *n, cb_err *err)
{
    *n = o->positions == INT64_MIN ? usual : (int)o->positions;
    if (o->positions != INT64_MIN && (o->positions < 1 || o->positions > most)) return cb_fail(err, CB_EUSAGE, "--positions: 1 to %d", most);
    return 0;
}

static int self(const cli_opts *o, cb_err *err)
{
    cli_model m = {0};
    char other[4096];
    int32_t *ids = NULL;
    cb_self_result r;
    int n = 0, want = 0, rc = parity_positions(o, SELF_POSITIONS, SELF_MAX, &want, err);
    if (rc == 0) rc = cli_model_open(&m, o, CLI_NEED_TOKENIZER, 0, 0, err);
    if (rc == 0 && o->n_args > 1) rc = cli_model_locate(o, o->args[1], other, sizeof other, err);
    if (rc == 0) rc = parity_ids(o, &m, &ids, &n, err);
    if (rc == 0) {
        if (n > want) n = want;
        cb_self_opts so = { .dir = m.dir, .other = o->n_args > 1 ? other : NULL, .ids = ids, .n = n, .n_slow = n < SELF_SLOW ? n : SELF_SLOW,
                            .cell = print_cell, .ctx = (void *)(uintptr_t)o };
        rc = cb_self_run(&so, &r, err);
    }
    if (rc == 0 && o->json)
        rc = cli_print_json(json_pack("{s:s, s:i, s:i, s:i, s:i, s:s, s:b}", "sha256", r.hash, "positions", n, "levels", r.n_levels, "cells", r.n_cells,
                                      "different", r.n_different, "first_different", r.first, "passed", r.n_different == 0), err);
    else if (rc == 0 && r.n_different) printf("%d of %d cells differ, the first: %s\n", r.n_different, r.n_cells, r.first);
    else if (rc == 0) printf("%d cells on %d instruction levels are equal: sha256 %s of %d positions\n", r.n_cells, r.n_levels, r.hash, n);
    cb_free(ids);
    cli_model_close(&m);
    return rc < 0 ? rc : r.n_different ? 1 : 0;
}

int cmd_parity(const cli_opts *o, cb_err *err)
{
    if (!o->verb || !strcmp(o->verb, "check")) return check(o, err);
    if (!strcmp(o->verb, "ops")) return parity_ops(o, err);
    if (!strcmp(o->verb, "layers")) return parity_layers(o, err);
    return self(o, err);
}
