/* diff.c: `cambium diff`: the first operation whose bytes differ between two devices (compare.c). */
#include "base/mem.h"
#include "cli/commands.h"
#include "cli/compare.h"
#include "cli/term.h"
#include <string.h>

enum { DIFF_ROWS = 8 };
static const char default_prompt[] = "The quick brown fox jumps over the lazy dog, and 3.14159 is close to pi.";

static int diff_all(differ *d, side *a, side *b, const int32_t *ids, int n_ids, int steps, cb_err *err)
{
    int at = 0, rc = 0;
    int32_t next = 0;
    while (at < n_ids && rc == 0 && !d->found) { /* the prompt, several rows a step */
        int n = n_ids - at < DIFF_ROWS ? n_ids - at : DIFF_ROWS;
        rc = compare_step(d, a, b, ids + at, n, err);
        const float *z = a->logits + (size_t)(n - 1) * (size_t)a->m.info.n_vocab;
        next = 0;
        for (int32_t i = 1; i < a->m.n_vocab; i++)
            if (z[i] > z[next]) next = i;
        at += n;
    }
    for (int i = 0; i < steps && rc == 0 && !d->found && cb_session_length(a->s) < a->m.info.ctx_size; i++) { /* single rows */
        rc = compare_step(d, a, b, &next, 1, err);
        int32_t best = 0;
        for (int32_t k = 1; k < a->m.n_vocab; k++)
            if (a->logits[k] > a->logits[best]) best = k;
        next = best;
    }
    return rc;
}

int cmd_diff(const cli_opts *o, cb_err *err)
{
    side a = {0}, b = {0};
    differ d;
    char *text = NULL;
    int32_t *ids = NULL;
    int n_ids = 0, rc = 0, steps = o->steps == INT64_MIN ? 2 : (int)o->steps;
    size_t n = sizeof default_prompt - 1;
    if (o->steps != INT64_MIN && (o->steps < 0 || o->steps > 1000)) return cb_fail(err, CB_EUSAGE, "--steps: 0 to 1000");
    if (o->device) return cb_fail(err, CB_EUSAGE, "diff has two devices; use --a and --b");
    if (o->file) rc = cli_read_file(o->file, 1 << 20, &text, &n, err);
    else if (o->prompt) n = strlen(o->prompt);
    differ_init(&d);
    if (rc == 0) rc = side_open(&a, o, o->a ? o->a : "cpu:c", err);
    if (rc == 0) rc = side_open(&b, o, o->b ? o->b : "auto", err);
    if (rc == 0) rc = cli_encode_raw(a.m.tok, text ? text : o->prompt ? o->prompt : default_prompt, n, &ids, &n_ids, err);
    if (rc == 0 && n_ids > a.m.info.ctx_size)
        rc = cb_fail(err, CB_ECONTEXT, "the prompt has %d tokens and the context holds %d", n_ids, a.m.info.ctx_size);
    if (rc == 0) {
        if (!strcmp(a.m.info.device, b.m.info.device)) cli_note(o, "both sides are %s", a.m.info.device);
        rc = diff_all(&d, &a, &b, ids, n_ids, steps, err);
    }
    if (rc == 0 && d.found) {
        printf("different: %s | %s: %s\n", a.m.info.device, b.m.info.device, d.what);
        rc = 1;
    } else if (rc == 0) {
        char size[32];
        printf("equal: %s | %s: %d positions, %llu operations, %s\n", a.m.info.device, b.m.info.device, cb_session_length(a.s),
               (unsigned long long)d.n_compared, cli_bytes(size, d.n_bytes));
    }
    differ_fini(&d);
    side_close(&a);
    side_close(&b);
    cb_free(ids);
    cb_free(text);
    return rc;
}
