/* parity_ops.c: `cambium parity ops`: every operation of a model against scalar C, bit for bit, on each device of this machine, in
 * steps of many row counts. */
#include "base/mem.h"
#include "cli/compare.h"
#include "cli/parity_cmds.h"
#include "cli/term.h"
#include <string.h>

static const char *const devices[] = { "cpu:avx2", "cpu:avx512", "cpu:neon", "cuda" };
enum { N_DEVICES = sizeof devices / sizeof *devices };

/* 1, 2, 3, 5, 8, 17 and 32 rows, over and over: single rows, ragged tiles, whole ones. */
static int compare_all(differ *d, side *a, side *b, const int32_t *ids, int n, cb_err *err)
{
    static const int counts[] = { 1, 2, 3, 5, 8, 17, COMPARE_ROWS };
    int rc = 0;
    cb_session_reset(a->s);
    for (int at = 0, i = 0; at < n && rc == 0 && !d->found; i++) {
        int rows = counts[i % 7] < n - at ? counts[i % 7] : n - at;
        rc = compare_step(d, a, b, ids + at, rows, err);
        at += rows;
    }
    return rc;
}

static json_t *kinds_json(const differ *d)
{
    json_t *o = json_object();
    for (int k = 0; k < d->n_kinds; k++)
        json_object_set_new(o, d->kinds[k].name, json_pack("{s:I, s:I}", "operations", (json_int_t)d->kinds[k].n, "bytes", (json_int_t)d->kinds[k].bytes));
    return o;
}

static void show(const cli_opts *o, const differ *d, const char *device, json_t *all)
{
    char size[32];
    if (all) {
        json_array_append_new(all, json_pack("{s:s, s:b, s:o, s:s}", "device", device, "equal", !d->found, "kinds", kinds_json(d), "difference", d->what));
        return;
    }
    printf("cpu:c | %s: %s, %llu operations, %s\n", device, d->found ? "DIFFERENT" : "equal", (unsigned long long)d->n_compared, cli_bytes(size, d->n_bytes));
    for (int k = 0; k < d->n_kinds; k++)
        printf("  %-12s %9llu %12s\n", d->kinds[k].name, (unsigned long long)d->kinds[k].n, cli_bytes(size, d->kinds[k].bytes));
    if (d->found) printf("  first difference: %s\n", d->what);
    fflush(stdout);
}

int parity_ops(const cli_opts *o, cb_err *err)
{
    side a = {0}, b;
    int32_t *ids = NULL;
    json_t *all = o->json ? json_array() : NULL;
    int n = 0, n_compared = 0, n_different = 0, want = 0;
    int rc = parity_positions(o, 68, 4096, &want, err);
    if (rc == 0) rc = side_open(&a, o, "cpu:c", err);
    if (rc == 0) rc = parity_ids(o, &a.m, &ids, &n, err);
    if (n > want) n = want;
    for (int i = 0; i < N_DEVICES && rc == 0; i++) {
        differ d;
        memset(&b, 0, sizeof b);
        if ((rc = side_open(&b, o, devices[i], err)) == CB_ENODEV) {
            rc = 0;
            continue;
        }
        differ_init(&d);
        if (rc == 0) rc = compare_all(&d, &a, &b, ids, n, err);
        if (rc == 0) show(o, &d, b.m.info.device, all);
        n_compared++;
        n_different += d.found;
        differ_fini(&d);
        side_close(&b);
    }
    side_close(&a);
    cb_free(ids);
    if (rc == 0 && !n_compared) cli_note(o, "this machine has scalar C only: nothing to compare");
    if (rc == 0 && all) rc = cli_print_json(all, err);
    else json_decref(all);
    return rc < 0 ? rc : n_different ? 1 : 0;
}
