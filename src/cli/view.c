#include "cli/view.h"
#include "base/env.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Control characters do not reach a terminal. */
static int write_text(const char *text, size_t n)
{
    bool tty = isatty(1);
    for (size_t i = 0; i < n;) {
        size_t m = i;
        while (m < n && !(tty && (((unsigned char)text[m] < 32 && text[m] != '\n' && text[m] != '\t') || text[m] == 127))) m++;
        fwrite(text + i, 1, m - i, stdout);
        if (m < n) fputc('?', stdout), m++;
        i = m;
    }
    return fflush(stdout) != 0;
}

static void open_thought(view *v)
{
    if (v->dim) fputs("\033[2m", stdout);
    else printf("%s\n", v->r->open);
    v->part = 1;
}

static void close_thought(view *v)
{
    if (v->dim) fputs("\033[0m\n", stdout);
    else printf("\n%s\n", v->r->close);
    v->part = 0;
}

static int on_text(void *ctx, const char *text, size_t n)
{
    view *v = ctx;
    cb_buf_put(&v->text, text, n);
    if (!v->print) return 0;
    if (v->part == 1) {
        close_thought(v);
        putchar('\n');
    }
    v->part = 2;
    return write_text(text, n);
}

static int on_thought(void *ctx, const char *text, size_t n)
{
    view *v = ctx;
    cb_buf_put(&v->thought, text, n);
    if (!v->print || v->hide) return 0;
    if (v->part != 1) open_thought(v);
    return write_text(text, n);
}

static void on_reclassify(void *ctx)
{
    view *v = ctx;
    cb_buf_put(&v->thought, v->text.data ? v->text.data : "", v->text.n);
    cb_buf_fini(&v->text);
    cb_buf_init(&v->text, 0);
    if (v->print && v->part == 2) puts("\n"); /* it has been shown already */
}

void view_begin(view *v, const cli_opts *o, gen_params *p)
{
    const char *term = cb_env("TERM");
    *v = (view){ .r = p->reasoning, .print = !o->json, .hide = o->hide_reasoning,
                 .dim = isatty(1) && !cb_env("NO_COLOR") && term && strcmp(term, "dumb") != 0 };
    cb_buf_init(&v->text, 0);
    cb_buf_init(&v->thought, 0);
    p->text = on_text;
    p->thought = on_thought;
    p->reclassify = on_reclassify;
    p->text_ctx = v;
}

void view_end(view *v, bool always)
{
    if (!v->print) return;
    if (v->part == 1) close_thought(v);
    else if (always || !v->text.n || v->text.data[v->text.n - 1] != '\n') putchar('\n');
}

void view_fini(view *v)
{
    cb_buf_fini(&v->text);
    cb_buf_fini(&v->thought);
}
