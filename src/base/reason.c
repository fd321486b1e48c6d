#include "base/reason.h"
#include "base/err.h"
#include <string.h>

enum { MAX_DELIMITER = 64, MAX_SPACE = 64 };

void cb_reason_init(cb_reason *r, const char *open, const char *close, bool inside, bool thinking)
{
    memset(r, 0, sizeof *r);
    r->state = CB_REASON_AFTER;
    if (!open || !close) return;
    CB_ASSERT(*open && *close && strlen(open) <= MAX_DELIMITER && strlen(close) <= MAX_DELIMITER);
    r->open = open;
    r->close = close;
    r->state = inside ? CB_REASON_INSIDE : CB_REASON_START;
    r->fresh = inside;
    r->watch = thinking;
}

/* What goes out is gathered, so that fn is called for stretches. */
typedef struct gather {
    cb_reason_fn fn;
    void *ctx;
    int kind;
    char text[256];
    size_t n;
} gather;

static void flush(gather *g)
{
    if (g->n) g->fn(g->ctx, g->kind, g->text, g->n);
    g->n = 0;
}

static void out(gather *g, int kind, const char *text, size_t n)
{
    if (g->n && (g->kind != kind || g->n + n > sizeof g->text)) flush(g);
    g->kind = kind;
    memcpy(g->text + g->n, text, n);
    g->n += n;
}

static bool blank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

/* Is the held text white space (newlines only, or any) and then a beginning of `mark`? 2: all of it. */
static int matches(const cb_reason *r, const char *mark, bool any_space)
{
    size_t k = 0, len = strlen(mark);
    while (k < r->n_held && k < MAX_SPACE && (any_space ? blank(r->held[k]) : r->held[k] == '\n')) k++;
    size_t rest = r->n_held - k;
    if (rest > len || memcmp(r->held + k, mark, rest) != 0) return 0;
    return rest == len ? 2 : 1;
}

static void release(cb_reason *r, gather *g, int kind, size_t n)
{
    if (kind == CB_REASON_THOUGHT)
        for (; n && r->fresh; n--) { /* newlines right behind the opening delimiter */
            if (r->held[0] != '\n') r->fresh = false;
            else memmove(r->held, r->held + 1, --r->n_held);
            if (!r->fresh) break;
        }
    out(g, kind, r->held, n);
    memmove(r->held, r->held + n, r->n_held - n);
    r->n_held -= n;
}

/* One byte more, searching for the closing delimiter. */
static void search_close(cb_reason *r, char c, gather *g)
{
    bool thought = r->state == CB_REASON_INSIDE;
    int how;
    r->held[r->n_held++] = c;
    while (!(how = matches(r, r->close, false))) release(r, g, thought ? CB_REASON_THOUGHT : CB_REASON_ANSWER, 1);
    if (how != 2) return;
    flush(g);
    if (!thought) g->fn(g->ctx, CB_REASON_RECLASSIFY, NULL, 0);
    r->n_held = 0;
    r->watch = false;
    r->state = CB_REASON_GAP;
}

static void search_open(cb_reason *r, char c, gather *g)
{
    r->held[r->n_held++] = c;
    int how = matches(r, r->open, true);
    if (how == 1) return;
    if (how == 2) {
        r->n_held = 0;
        r->state = CB_REASON_INSIDE;
        r->fresh = true;
        return;
    }
    r->state = CB_REASON_AFTER;
    if (!r->watch) {
        release(r, g, CB_REASON_ANSWER, r->n_held);
        return;
    }
    char again[sizeof r->held]; /* what is held may hold the beginning of the closing one */
    size_t n = r->n_held;
    memcpy(again, r->held, n);
    r->n_held = 0;
    for (size_t i = 0; i < n; i++) {
        if (r->state == CB_REASON_AFTER && r->watch) search_close(r, again[i], g);
        else if (r->state == CB_REASON_AFTER || again[i] != '\n') r->state = CB_REASON_AFTER, out(g, CB_REASON_ANSWER, &again[i], 1);
    }
}

void cb_reason_put(cb_reason *r, const char *text, size_t n, cb_reason_fn fn, void *ctx)
{
    gather g = { .fn = fn, .ctx = ctx };
    for (size_t i = 0; i < n; i++) {
        if (r->state == CB_REASON_START) search_open(r, text[i], &g);
        else if (r->state == CB_REASON_INSIDE || (r->state == CB_REASON_AFTER && r->watch)) search_close(r, text[i], &g);
        else if (r->state == CB_REASON_GAP && text[i] == '\n') continue;
        else {
            r->state = CB_REASON_AFTER;
            out(&g, CB_REASON_ANSWER, text + i, 1);
        }
    }
    flush(&g);
}

void cb_reason_end(cb_reason *r, cb_reason_fn fn, void *ctx)
{
    gather g = { .fn = fn, .ctx = ctx };
    bool thought = r->state == CB_REASON_INSIDE;
    size_t n = r->n_held;
    while (thought && n && r->held[n - 1] == '\n') n--;
    release(r, &g, thought ? CB_REASON_THOUGHT : CB_REASON_ANSWER, n);
    r->n_held = 0;
    flush(&g);
}
