/* chat.c: the interactive chat. The whole conversation is rendered anew for each turn; the session keeps what is unchanged, so
 * only new tokens are computed. Lines come through libedit: editing, history (kept in the state folder). */
#include "base/env.h"
#include "base/mem.h"
#include "cli/commands.h"
#include "cli/prompt.h"
#include "cli/term.h"
#include "cli/view.h"
#include <errno.h>
#include <histedit.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

enum { MAX_MESSAGE = 16 << 20 };

typedef struct editor {
    EditLine *el;
    History *history;
    char path[4096]; /* history file, "" when there is nowhere to keep one */
    bool more;       /* inside a longer message */
} editor;

static char *first_prompt(EditLine *el)
{
    editor *ed;
    static char first[] = "> ", more[] = ". "; /* libedit wants char *, and only reads it */
    el_get(el, EL_CLIENTDATA, &ed);
    return ed->more ? more : first;
}

/* One character of input. An interrupt ends the line (libedit's own reader would try again). */
static int read_char(EditLine *el, wchar_t *out)
{
    char c, buf[MB_LEN_MAX > 8 ? MB_LEN_MAX : 8];
    size_t n = 0;
    mbstate_t st = {0};
    for (;;) {
        ssize_t r = read(0, &c, 1);
        if (r < 0 && errno == EINTR && !cli_interrupted()) continue; /* a window resize */
        if (r < 1) return r < 0 ? -1 : 0;
        buf[n++] = c;
        wchar_t w;
        memset(&st, 0, sizeof st);
        size_t k = mbrtowc(&w, buf, n, &st);
        if (k == (size_t)-2 && n < sizeof buf) continue;
        *out = k == (size_t)-1 || k == (size_t)-2 ? (wchar_t)(unsigned char)c : k == 0 ? L'\0' : w;
        return 1;
    }
}

static void history_path(char *path, size_t cap)
{
    const char *state = cb_env("XDG_STATE_HOME"), *home = cb_env("HOME");
    char dir[3800];
    *path = 0;
    if (state) snprintf(dir, sizeof dir, "%s", state);
    else if (home) snprintf(dir, sizeof dir, "%s/.local/state", home);
    else return;
    size_t n = strlen(dir);
    snprintf(path, cap, "%s/cambium/history", dir);
    for (char *p = path + 1; *p; p++) /* make the folders that are missing; failing is no harm */
        if (*p == '/' && p >= path + (n < 4 ? n : n - 4)) {
            *p = 0;
            mkdir(path, 0700);
            *p = '/';
        }
}

static int editor_open(editor *ed, cb_err *err)
{
    HistEvent ev;
    memset(ed, 0, sizeof *ed);
    ed->el = el_init("cambium", stdin, stdout, stderr);
    ed->history = history_init();
    if (!ed->el || !ed->history) return cb_fail(err, CB_EIO, "the terminal cannot be used for editing; pipe the prompt in or use -p");
    el_set(ed->el, EL_CLIENTDATA, ed);
    el_set(ed->el, EL_PROMPT, first_prompt);
    el_set(ed->el, EL_EDITOR, "emacs");
    el_set(ed->el, EL_SIGNAL, 0);
    el_set(ed->el, EL_GETCFN, read_char);
    el_set(ed->el, EL_HIST, history, ed->history);
    el_set(ed->el, EL_BIND, "^R", "em-inc-search-prev", NULL);
    history(ed->history, &ev, H_SETSIZE, 1000);
    history(ed->history, &ev, H_SETUNIQUE, 1);
    history_path(ed->path, sizeof ed->path);
    if (*ed->path) history(ed->history, &ev, H_LOAD, ed->path);
    el_source(ed->el, NULL);
    return 0;
}

/* After each line, because a second Ctrl-C leaves at once. */
static void save_history(editor *ed)
{
    HistEvent ev;
    if (!*ed->path) return;
    mode_t old = umask(077);
    history(ed->history, &ev, H_SAVE, ed->path);
    umask(old);
}

static void editor_close(editor *ed)
{
    if (ed->el) el_end(ed->el);
    if (ed->history) history_end(ed->history);
}

enum { LINE_END, LINE_OK, LINE_CANCELLED };

/* One line without its newline into b. */
static int read_line(editor *ed, cb_buf *b)
{
    int n = 0;
    cli_interrupt_clear();
    const char *line = el_gets(ed->el, &n);
    if (cli_interrupted()) {
        fputc('\n', stdout);
        return LINE_CANCELLED;
    }
    if (!line || n <= 0) return LINE_END;
    if (line[n - 1] == '\n') n--;
    cb_buf_put(b, line, (size_t)n);
    if (n) {
        HistEvent ev;
        history(ed->history, &ev, H_ENTER, line);
        save_history(ed);
    }
    return LINE_OK;
}

/* A message: one line; lines ending in a backslash go on; three quotes open and close a block. */
static int read_message(editor *ed, cb_buf *b)
{
    static const char q[] = "\"\"\"";
    ed->more = false;
    int rc = read_line(ed, b);
    bool block = rc == LINE_OK && b->n >= 3 && !memcmp(b->data, q, 3);
    if (block) {
        memmove(b->data, b->data + 3, b->n - 3);
        b->n -= 3;
    }
    while (rc == LINE_OK && cb_buf_ok(b)) {
        if (block && b->n >= 3 && !memcmp(b->data + b->n - 3, q, 3)) {
            b->n -= 3;
            break;
        }
        if (!block) {
            if (!b->n || b->data[b->n - 1] != '\\') break;
            b->n--;
        }
        cb_buf_putc(b, '\n');
        ed->more = true;
        rc = read_line(ed, b);
    }
    ed->more = false;
    return rc == LINE_END && b->n ? LINE_OK : rc;
}

static const char chat_help[] = "/help      this text\n"
                                "/reset     forget the conversation\n"
                                "/exit      leave (or Ctrl-D)\n"
                                "A line that ends in \\ goes on in the next; \"\"\" begins and ends a longer text.\n"
                                "Ctrl-C stops an answer or drops the line; twice within a second leaves.\n";

/* The conversation, and what it looked like after the latest answer: rendered text and the ids that stand for it. The ids are
 * those the model produced, which are not always those that encoding its text would give; keeping them keeps the session. */
typedef struct talk {
    json_t *messages;
    cb_buf text, ids; /* ids: int32_t; both empty when there is nothing to go on from */
} talk;

/* Prompt ids of the whole conversation into ids. */
static int encode_talk(const gen *g, const cli_opts *o, talk *t, cb_buf *ids, char **text, size_t *n, cb_err *err)
{
    int32_t *part;
    int n_part, rc = prompt_render(g->m, o, t->messages, true, text, n, err);
    if (rc < 0) return rc;
    bool goes_on = t->text.n > 0 && *n > t->text.n && !memcmp(*text, t->text.data, t->text.n);
    size_t from = goes_on ? t->text.n : 0;
    rc = cli_encode(g->m->tok, *text + from, *n - from, CB_ENCODE_PARSE_SPECIAL | CB_ENCODE_SHIELDED, &part, &n_part, err);
    if (rc == 0 && goes_on && (n_part < 1 || !cb_tokenizer_is_stop(g->m->tok, part[0]))) { /* no token boundary there for sure */
        cb_free(part);
        goes_on = false;
        rc = cli_encode(g->m->tok, *text, *n, CB_ENCODE_PARSE_SPECIAL | CB_ENCODE_SHIELDED, &part, &n_part, err);
    }
    if (rc < 0) return rc;
    if (goes_on) cb_buf_put(ids, t->ids.data, t->ids.n);
    cb_buf_put(ids, part, (size_t)n_part * sizeof *part);
    cb_free(part);
    return cb_buf_ok(ids) ? 0 : cb_fail(err, CB_ENOMEM, "no memory for the conversation");
}

/* How many of the prompt's ids stand before what the template adds to make the model answer. That much the next turn will begin
 * with, even when the template leaves out this turn's reasoning. 0: unknown. */
static int stable_part(const gen *g, const cli_opts *o, const talk *t, const cb_buf *ids, const char *prompt, size_t n)
{
    char *text = NULL;
    size_t m = 0;
    int32_t *part;
    int n_part, same = 0, all = (int)(ids->n / sizeof(int32_t));
    const int32_t *id = (const int32_t *)(const void *)ids->data;
    if (prompt_render(g->m, o, t->messages, false, &text, &m, NULL) < 0) return 0;
    size_t from = t->text.n && m > t->text.n && !memcmp(text, t->text.data, t->text.n) ? t->text.n : 0; /* as encode_talk */
    int known = from ? (int)(t->ids.n / sizeof(int32_t)) : 0;
    if (m < n && !memcmp(prompt, text, m) && cli_encode(g->m->tok, text + from, m - from, CB_ENCODE_PARSE_SPECIAL | CB_ENCODE_SHIELDED, &part, &n_part, NULL) == 0) {
        while (same < n_part && known + same < all && part[same] == id[known + same]) same++;
        cb_free(part);
    }
    free(text);
    return same ? known + same : 0;
}

static void forget(talk *t)
{
    cb_buf_fini(&t->text);
    cb_buf_fini(&t->ids);
    cb_buf_init(&t->text, 0);
    cb_buf_init(&t->ids, 0);
}

/* After an answer: what the next turn can go on from. A text cut by a stop string has no ids of its own, and how a template
 * repeats reasoning is its own affair. */
static void remember(talk *t, const char *prompt, size_t n, const cb_buf *ids, const view *v, const gen_result *r)
{
    const cb_buf *answer = &v->text;
    forget(t);
    if (r->stop_reason || v->thought.n || r->n_thought) return;
    int n_out = r->n_out - !strcmp(r->finish, "stop"); /* the end token is not part of the answer */
    cb_buf_put(&t->text, prompt, n);
    cb_buf_put(&t->text, answer->data, answer->n);
    cb_buf_put(&t->ids, ids->data, ids->n);
    cb_buf_put(&t->ids, r->out, (size_t)n_out * sizeof *r->out);
    if (!cb_buf_ok(&t->text) || !cb_buf_ok(&t->ids)) forget(t);
}

/* One turn. The conversation grows by the user's message and the answer, or stays as it was. */
static int turn(gen *g, const cli_opts *o, gen_params *p, talk *t, const cb_buf *text, cb_err *err)
{
    gen_result r;
    char *prompt = NULL;
    size_t n = 0, before = json_array_size(t->messages);
    cb_buf ids;
    view v;
    cb_buf_init(&ids, 0);
    view_begin(&v, o, p);
    int rc = prompt_add(g->m, t->messages, "user", text->data, text->n, err);
    if (rc == 0) rc = encode_talk(g, o, t, &ids, &prompt, &n, err);
    if (rc == 0 && !g->m->info.can_rewind) g->keep_at = stable_part(g, o, t, &ids, prompt, n);
    if (rc == 0) p->opened = cli_reasoning_opened(p->reasoning, prompt, n);
    if (rc == 0) rc = gen_answer(g, (const int32_t *)(const void *)ids.data, (int)(ids.n / sizeof(int32_t)), p, &r, err);
    if (rc == 0) {
        view_end(&v, false);
        rc = cli_flush(err);
        if (!strcmp(r.finish, "interrupted")) cli_note(o, "(stopped)");
        if (!strcmp(r.finish, "length")) cli_note(o, "(cut off: the limit of tokens is reached)");
        run_note_speed(o, &r);
        if (rc == 0) rc = prompt_add(g->m, t->messages, "assistant", v.text.data ? v.text.data : "", v.text.n, err);
        if (rc == 0 && v.thought.n) rc = prompt_add_reasoning(g->m, t->messages, v.thought.data, v.thought.n, err);
        if (rc == 0) remember(t, prompt, n, &ids, &v, &r);
    }
    if (rc < 0)
        while (json_array_size(t->messages) > before) json_array_remove(t->messages, json_array_size(t->messages) - 1);
    free(prompt);
    cb_buf_fini(&ids);
    view_fini(&v);
    return rc;
}

int chat_loop(gen *g, const cli_opts *o, gen_params *p, cb_err *err)
{
    editor ed;
    cb_buf text;
    if (o->json || o->hash) return cb_fail(err, CB_EUSAGE, "%s needs a prompt", o->json ? "--json" : "--hash");
    if (o->raw) return cb_fail(err, CB_EUSAGE, "--raw needs a prompt");
    if (!g->m->tmpl) return cli_no_template(g->m, err);
    talk t = { .messages = prompt_messages(g->m, o->system) };
    forget(&t);
    if (!t.messages) return cb_fail(err, CB_ENOMEM, "no memory for the conversation");
    int rc = editor_open(&ed, err);
    if (rc == 0) cli_note(o, "%s on %s, context of %d tokens. /help for help.", g->m->name, g->m->info.device, g->m->info.ctx_size);
    while (rc == 0) {
        cb_buf_init(&text, MAX_MESSAGE);
        int got = read_message(&ed, &text);
        bool is_end = got == LINE_END || (text.n && (!strcmp(text.data, "/exit") || !strcmp(text.data, "/quit") || !strcmp(text.data, "/bye")));
        if (is_end) {
            if (got == LINE_END) putchar('\n');
            cb_buf_fini(&text);
            break;
        }
        if (got == LINE_CANCELLED) cli_note(o, "(again within a second to leave)");
        else if (!cb_buf_ok(&text)) cli_log(o, CLI_ERROR, "the message is longer than %d bytes", MAX_MESSAGE);
        else if (text.n && !strcmp(text.data, "/help")) fputs(chat_help, stderr);
        else if (text.n && !strcmp(text.data, "/reset")) {
            json_decref(t.messages);
            forget(&t);
            if (!(t.messages = prompt_messages(g->m, o->system))) rc = cb_fail(err, CB_ENOMEM, "no memory for the conversation");
            cli_note(o, "(a new conversation)");
        } else if (text.n && text.data[0] == '/' && strcspn(text.data + 1, " /\n") == text.n - 1)
            cli_note(o, "unknown command %.40s; /help lists them", text.data);
        else if (text.n) {
            rc = turn(g, o, p, &t, &text, err);
            if (rc == CB_EINTR || rc == CB_ECONTEXT || rc == CB_EUSAGE) { /* the conversation goes on without that turn */
                if (rc == CB_EINTR) cli_note(o, "(stopped)");
                else cli_log(o, CLI_ERROR, "%s%s", err->text, rc == CB_ECONTEXT ? "; or /reset" : "");
                rc = 0;
            }
        }
        cb_buf_fini(&text);
    }
    editor_close(&ed);
    forget(&t);
    json_decref(t.messages);
    return rc;
}
