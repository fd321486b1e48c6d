/* diff.c: `cambium diff`: the same steps on two devices, every operation's output compared by bytes. The first step keeps what
 * device A computed, op by op; then B's tap compares. Whatever differs first is the culprit, because its inputs were equal. */
#include "base/mem.h"
#include "cli/commands.h"
#include "cli/term.h"
#include <stdlib.h>
#include <string.h>

enum { DIFF_ROWS = 8 };
static const char default_prompt[] = "The quick brown fox jumps over the lazy dog, and 3.14159 is close to pi.";

typedef struct kept {
    int op, rows;
    size_t row_bytes;
    size_t at; /* offset of the bytes in `bytes` */
    char name[64];
} kept;

typedef struct differ {
    cb_buf bytes, ops; /* of A's step: data; kept[] */
    size_t next;       /* index of the op B reaches next */
    int first_pos;
    bool found;
    uint64_t n_compared, n_bytes;
    char what[400];
} differ;

static void keep(void *ctx, const cb_tap *t)
{
    differ *d = ctx;
    kept k = { .op = t->op, .rows = t->rows, .row_bytes = t->row_bytes, .at = d->bytes.n };
    snprintf(k.name, sizeof k.name, "%s", t->name);
    cb_buf_put(&d->bytes, t->data, (size_t)t->rows * t->row_bytes);
    cb_buf_put(&d->ops, &k, sizeof k);
}

/* Row, column and both values of the first difference. */
static void describe_difference(differ *d, const kept *k, const cb_tap *t, const char *a, const char *b)
{
    size_t n = (size_t)k->rows * k->row_bytes, i = 0;
    while (i < n && a[i] == b[i]) i++;
    size_t row = i / k->row_bytes;
    if (!strcmp(t->dtype, "f32")) {
        float x, y;
        uint32_t ux, uy;
        i -= i % 4;
        memcpy(&x, a + i, 4), memcpy(&y, b + i, 4);
        memcpy(&ux, a + i, 4), memcpy(&uy, b + i, 4);
        snprintf(d->what, sizeof d->what, "op %d %s (%s): row %zu (position %zu), column %zu: %.9g (%08x) and %.9g (%08x)", t->op, t->name, t->kind,
                 row, (size_t)d->first_pos + row, i % k->row_bytes / 4, (double)x, ux, (double)y, uy);
    } else
        snprintf(d->what, sizeof d->what, "op %d %s (%s, %s): row %zu (position %zu), byte %zu: %d and %d", t->op, t->name, t->kind, t->dtype, row,
                 (size_t)d->first_pos + row, i % k->row_bytes, (int)(signed char)a[i], (int)(signed char)b[i]);
}

static void compare(void *ctx, const cb_tap *t)
{
    differ *d = ctx;
    if (d->found) return;
    const kept *all = (const kept *)(const void *)d->ops.data, *k = &all[d->next++];
    size_t n = (size_t)t->rows * t->row_bytes;
    if (d->next > d->ops.n / sizeof *k || k->op != t->op || k->rows != t->rows || k->row_bytes != t->row_bytes) {
        d->found = true;
        snprintf(d->what, sizeof d->what, "op %d %s: the two devices ran different operations or shapes", t->op, t->name);
        return;
    }
    d->n_compared++;
    d->n_bytes += n;
    if (!memcmp(d->bytes.data + k->at, t->data, n)) return;
    d->found = true;
    describe_difference(d, k, t, d->bytes.data + k->at, t->data);
}

typedef struct side {
    cli_model m;
    cb_session *s;
    float *logits;
} side;

static int side_open(side *x, const cli_opts *o, const char *device, cb_err *err)
{
    cli_opts mine = *o;
    mine.device = device;
    int rc = cli_model_open(&x->m, &mine, CLI_NEED_TOKENIZER | CLI_NEED_ENGINE, 0, DIFF_ROWS, err);
    if (rc == 0 && !(x->logits = cb_alloc_aligned((size_t)x->m.info.n_vocab * DIFF_ROWS * 4))) rc = cb_fail(err, CB_ENOMEM, "no memory for logits");
    return rc < 0 ? rc : cb_session_open(x->m.engine, &x->s, err);
}

static void side_close(side *x)
{
    cb_session_close(x->s);
    cli_model_close(&x->m);
    cb_free_aligned(x->logits);
}

static int diff_step(differ *d, side *a, side *b, const int32_t *ids, int n, cb_err *err)
{
    cb_row ra[DIFF_ROWS], rb[DIFF_ROWS];
    for (int i = 0; i < n; i++) {
        ra[i] = (cb_row){ a->s, ids[i], 1 };
        rb[i] = (cb_row){ b->s, ids[i], 1 };
    }
    d->first_pos = cb_session_length(a->s);
    d->bytes.n = d->ops.n = d->next = 0;
    cb_engine_set_tap(a->m.engine, keep, d);
    cb_engine_set_tap(b->m.engine, compare, d);
    int rc = cb_step(a->m.engine, ra, n, a->logits, err);
    if (rc < 0) return cb_fail_in(err, rc, "%s", a->m.info.device);
    if (!cb_buf_ok(&d->bytes) || !cb_buf_ok(&d->ops)) return cb_fail(err, CB_ENOMEM, "no memory to keep a step's outputs");
    if ((rc = cb_step(b->m.engine, rb, n, b->logits, err)) < 0) return cb_fail_in(err, rc, "%s", b->m.info.device);
    if (!d->found && d->next != d->ops.n / sizeof(kept)) {
        d->found = true;
        snprintf(d->what, sizeof d->what, "device B ran %zu operations, device A %zu", d->next, d->ops.n / sizeof(kept));
    }
    size_t row = (size_t)a->m.info.n_vocab * 4;
    if (!d->found && memcmp(a->logits, b->logits, row * (size_t)n) != 0) {
        d->found = true;
        snprintf(d->what, sizeof d->what, "the logits of the step at position %d differ, but no operation does", d->first_pos);
    }
    return 0;
}

static int diff_all(differ *d, side *a, side *b, const int32_t *ids, int n_ids, int steps, cb_err *err)
{
    int at = 0, rc = 0;
    int32_t next = 0;
    while (at < n_ids && rc == 0 && !d->found) { /* the prompt, several rows a step */
        int n = n_ids - at < DIFF_ROWS ? n_ids - at : DIFF_ROWS;
        rc = diff_step(d, a, b, ids + at, n, err);
        const float *z = a->logits + (size_t)(n - 1) * (size_t)a->m.info.n_vocab;
        next = 0;
        for (int32_t i = 1; i < a->m.n_vocab; i++)
            if (z[i] > z[next]) next = i;
        at += n;
    }
    for (int i = 0; i < steps && rc == 0 && !d->found && cb_session_length(a->s) < a->m.info.ctx_size; i++) { /* single rows */
        rc = diff_step(d, a, b, &next, 1, err);
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
    differ d = {0};
    char *text = NULL;
    int32_t *ids = NULL;
    int n_ids = 0, rc = 0, steps = o->steps == INT64_MIN ? 2 : (int)o->steps;
    size_t n = sizeof default_prompt - 1;
    if (o->steps != INT64_MIN && (o->steps < 0 || o->steps > 1000)) return cb_fail(err, CB_EUSAGE, "--steps: 0 to 1000");
    if (o->device) return cb_fail(err, CB_EUSAGE, "diff has two devices; use --a and --b");
    if (o->file) rc = cli_read_file(o->file, 1 << 20, &text, &n, err);
    else if (o->prompt) n = strlen(o->prompt);
    cb_buf_init(&d.bytes, 0);
    cb_buf_init(&d.ops, 0);
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
    cb_buf_fini(&d.bytes);
    cb_buf_fini(&d.ops);
    side_close(&a);
    side_close(&b);
    cb_free(ids);
    cb_free(text);
    return rc;
}
