/* chat.c: the interactive chat. The whole conversation is rendered anew for each turn; the session keeps what is unchanged, so
 * only new tokens are computed. Lines come through libedit: editing, history (kept in the state folder). */
#include "base/env.h"
#include "base/mem.h"
#include "cli/commands.h"
#include "cli/prompt.h"
#include "cli/term.h"
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

typedef struct answer_text {
    cb_buf all;
} answer_text;

static int write_and_keep(void *ctx, const char *text, size_t n)
{
    cb_buf_put(&((answer_text *)ctx)->all, text, n);
    return run_write_text(NULL, text, n);
}

/* One turn. The conversation grows by the user's message and the answer, or stays as it was. */
static int turn(gen *g, const cli_opts *o, gen_params *p, json_t *messages, const cb_buf *text, cb_err *err)
{
    int32_t *ids = NULL;
    int n_ids = 0;
    gen_result r;
    answer_text answer;
    cb_buf_init(&answer.all, 0);
    p->text = write_and_keep;
    p->text_ctx = &answer;
    size_t before = json_array_size(messages);
    int rc = prompt_add(messages, "user", text->data, text->n, err);
    if (rc == 0) rc = prompt_encode(g->m, o, messages, &ids, &n_ids, err);
    if (rc == 0) rc = gen_answer(g, ids, n_ids, p, &r, err);
    if (rc == 0) {
        if (!answer.all.n || answer.all.data[answer.all.n - 1] != '\n') putchar('\n');
        rc = cli_flush(err);
        if (!strcmp(r.finish, "interrupted")) cli_note(o, "(stopped)");
        if (!strcmp(r.finish, "length")) cli_note(o, "(cut off: the limit of tokens is reached)");
        run_note_speed(o, &r);
        if (rc == 0) rc = prompt_add(messages, "assistant", answer.all.data ? answer.all.data : "", answer.all.n, err);
    }
    if (rc < 0)
        while (json_array_size(messages) > before) json_array_remove(messages, json_array_size(messages) - 1);
    cb_free(ids);
    cb_buf_fini(&answer.all);
    return rc;
}

int chat_loop(gen *g, const cli_opts *o, gen_params *p, cb_err *err)
{
    editor ed;
    cb_buf text;
    if (o->json || o->hash) return cb_fail(err, CB_EUSAGE, "%s needs a prompt", o->json ? "--json" : "--hash");
    if (o->raw) return cb_fail(err, CB_EUSAGE, "--raw needs a prompt");
    if (!g->m->tmpl) {
        *err = g->m->no_template;
        return cb_fail_in(err, CB_EFORMAT, "%.100s cannot chat; try --raw with a prompt", g->m->name);
    }
    json_t *messages = prompt_messages(o->system);
    if (!messages) return cb_fail(err, CB_ENOMEM, "no memory for the conversation");
    int rc = editor_open(&ed, err);
    if (rc == 0) cli_note(o, "%s on %s. /help for help.", g->m->name, g->m->info.device);
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
        else if (!cb_buf_ok(&text)) cli_note(o, "error: the message is longer than %d bytes", MAX_MESSAGE);
        else if (text.n && !strcmp(text.data, "/help")) fputs(chat_help, stderr);
        else if (text.n && !strcmp(text.data, "/reset")) {
            json_decref(messages);
            if (!(messages = prompt_messages(o->system))) rc = cb_fail(err, CB_ENOMEM, "no memory for the conversation");
            cli_note(o, "(a new conversation)");
        } else if (text.n && text.data[0] == '/' && strcspn(text.data + 1, " /\n") == text.n - 1)
            cli_note(o, "unknown command %.40s; /help lists them", text.data);
        else if (text.n) {
            rc = turn(g, o, p, messages, &text, err);
            if (rc == CB_EINTR || rc == CB_ECONTEXT || rc == CB_EUSAGE) { /* the conversation goes on without that turn */
                if (rc == CB_EINTR) cli_note(o, "(stopped)");
                else fprintf(stderr, "error: %s%s\n", err->text, rc == CB_ECONTEXT ? "; or /reset" : "");
                rc = 0;
            }
        }
        cb_buf_fini(&text);
    }
    editor_close(&ed);
    json_decref(messages);
    return rc;
}
