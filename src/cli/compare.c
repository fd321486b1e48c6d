#include "cli/compare.h"
#include "base/mem.h"
#include <stdlib.h>
#include <string.h>

typedef struct kept {
    int op, rows;
    size_t row_bytes;
    size_t at; /* offset of the bytes in `bytes` */
    char name[64];
} kept;

/* Rows stand apart; what lies between them means nothing. */
static const char *row_of(const cb_tap *t, int row) { return (const char *)t->data + (size_t)row * t->row_stride; }

static void keep(void *ctx, const cb_tap *t)
{
    differ *d = ctx;
    kept k = { .op = t->op, .rows = t->rows, .row_bytes = t->row_bytes, .at = d->bytes.n };
    snprintf(k.name, sizeof k.name, "%s", t->name);
    for (int r = 0; r < t->rows; r++) cb_buf_put(&d->bytes, row_of(t, r), t->row_bytes);
    cb_buf_put(&d->ops, &k, sizeof k);
}

/* Column and both values of the first difference in a row. */
static void describe_difference(differ *d, const cb_tap *t, int row, const char *a, const char *b)
{
    size_t i = 0;
    while (i < t->row_bytes && a[i] == b[i]) i++;
    int at = snprintf(d->what, sizeof d->what, "op %d %s (%s): row %d (position %d), ", t->op, t->name, t->kind, row, d->first_pos + row);
    char *to = d->what + at;
    size_t room = sizeof d->what - (size_t)at;
    if (!strcmp(t->dtype, "f32")) {
        float x, y;
        uint32_t ux, uy;
        i -= i % 4;
        memcpy(&x, a + i, 4), memcpy(&y, b + i, 4);
        memcpy(&ux, a + i, 4), memcpy(&uy, b + i, 4);
        snprintf(to, room, "column %zu: %.9g (%08x) and %.9g (%08x)", i / 4, (double)x, ux, (double)y, uy);
    } else snprintf(to, room, "byte %zu: %d and %d", i, (int)(signed char)a[i], (int)(signed char)b[i]);
}

static void count(differ *d, const char *kind, size_t n)
{
    int k = 0;
    d->n_compared++;
    d->n_bytes += n;
    while (k < d->n_kinds && strcmp(d->kinds[k].name, kind) != 0) k++;
    if (k == COMPARE_KINDS) return;
    if (k == d->n_kinds) {
        memset(&d->kinds[k], 0, sizeof d->kinds[k]);
        snprintf(d->kinds[d->n_kinds++].name, sizeof d->kinds[k].name, "%s", kind);
    }
    d->kinds[k].n++;
    d->kinds[k].bytes += n;
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
    count(d, t->kind, n);
    for (int r = 0; r < t->rows && !d->found; r++) {
        const char *want = d->bytes.data + k->at + (size_t)r * k->row_bytes;
        if (!memcmp(want, row_of(t, r), k->row_bytes)) continue;
        d->found = true;
        describe_difference(d, t, r, want, row_of(t, r));
    }
}

void differ_init(differ *d)
{
    memset(d, 0, sizeof *d);
    cb_buf_init(&d->bytes, 0);
    cb_buf_init(&d->ops, 0);
}

void differ_fini(differ *d)
{
    cb_buf_fini(&d->bytes);
    cb_buf_fini(&d->ops);
}

int side_open(side *x, const cli_opts *o, const char *device, cb_err *err)
{
    cli_opts mine = *o;
    mine.device = device;
    int rc = cli_model_open(&x->m, &mine, CLI_NEED_TOKENIZER | CLI_NEED_ENGINE, 0, COMPARE_ROWS, err);
    if (rc == 0 && !(x->logits = cb_alloc_aligned((size_t)x->m.info.n_vocab * COMPARE_ROWS * 4))) rc = cb_fail(err, CB_ENOMEM, "no memory for logits");
    return rc < 0 ? rc : cb_session_open(x->m.engine, &x->s, err);
}

void side_close(side *x)
{
    cb_session_close(x->s);
    cli_model_close(&x->m);
    cb_free_aligned(x->logits);
}

int compare_step(differ *d, side *a, side *b, const int32_t *ids, int n, cb_err *err)
{
    cb_row ra[COMPARE_ROWS], rb[COMPARE_ROWS];
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
