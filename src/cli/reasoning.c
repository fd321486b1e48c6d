#include "cli/reasoning.h"
#include "base/mem.h"
#include <string.h>

/* The marks of the templates in use. A template that spells neither has no reasoning. */
static const char *const marks[][2] = { { "<think>", "</think>" }, { "<|channel>thought", "<channel|>" } };
enum { N_MARKS = sizeof marks / sizeof *marks };

static int marks_of(const cli_model *m)
{
    const char *source = m->tmpl ? cb_template_source(m->tmpl) : NULL;
    for (int i = 0; source && i < N_MARKS; i++)
        if (strstr(source, marks[i][0]) || strstr(source, marks[i][1])) return i;
    return -1;
}

/* The first id of a mark, if that is a special token (one that decodes to nothing). */
static int32_t special_first(const cli_model *m, const int32_t *ids, int n)
{
    char text[8];
    return n && cb_tokenizer_decode(m->tok, ids, 1, 1, text, sizeof text, NULL) == 0 ? ids[0] : -1;
}

static int encode_mark(const cli_model *m, const char *mark, int32_t ids[REASONING_CLOSE_IDS], int *n, cb_err *err)
{
    int64_t need = cb_tokenizer_encode(m->tok, mark, strlen(mark), CB_ENCODE_PARSE_SPECIAL, ids, REASONING_CLOSE_IDS, err);
    if (need < 0) return (int)need;
    if (need > REASONING_CLOSE_IDS) return cb_fail(err, CB_EFORMAT, "%s: %s has %lld tokens", m->name, mark, (long long)need);
    *n = (int)need;
    return 0;
}

int cli_reasoning_init(cli_reasoning *r, const cli_model *m, const cli_opts *o, cb_err *err)
{
    bool off = o->reasoning && !strcmp(o->reasoning, "off"), on = o->reasoning && !strcmp(o->reasoning, "on");
    bool has_budget = o->reasoning_budget != INT64_MIN;
    *r = (cli_reasoning){ .open_id = -1, .close_id = -1, .asked = on, .budget = has_budget ? o->reasoning_budget : -1 };
    if (o->reasoning && !off && !on && strcmp(o->reasoning, "auto") != 0)
        return cb_fail(err, CB_EUSAGE, "--reasoning: %.40s is none of auto, on and off", o->reasoning);
    if (has_budget && (r->budget < -1 || r->budget > INT32_MAX))
        return cb_fail(err, CB_EUSAGE, "--reasoning-budget: %lld is neither -1 nor a number of tokens", (long long)r->budget);
    if ((on || r->budget >= 0) && o->raw) return cb_fail(err, CB_EUSAGE, "%s needs the chat template; leave out --raw", on ? "--reasoning on" : "--reasoning-budget");
    int at = off || o->raw ? -1 : marks_of(m);
    if (at < 0 && (on || r->budget >= 0) && m->tmpl)
        return cb_fail(err, CB_EUSAGE, "%s: %s; leave it out", on ? "--reasoning on" : "--reasoning-budget",
                       off ? "reasoning is off" : "the model's chat template knows no reasoning");
    if (at < 0) return 0;
    int32_t ids[REASONING_CLOSE_IDS];
    int n, rc = encode_mark(m, marks[at][0], ids, &n, err);
    if (rc < 0) return rc;
    r->open = marks[at][0];
    r->close = marks[at][1];
    r->open_id = special_first(m, ids, n);
    if ((rc = encode_mark(m, r->close, r->close_ids, &r->n_close, err)) < 0) return rc;
    r->close_id = special_first(m, r->close_ids, r->n_close);
    return 0;
}

static bool ends_open(const char *open, const char *prompt, size_t n)
{
    size_t len = strlen(open);
    while (n && strchr(" \n\t\r", prompt[n - 1])) n--;
    return n >= len && !memcmp(prompt + n - len, open, len);
}

bool cli_reasoning_opened(const cli_reasoning *r, const char *prompt, size_t n) { return r->open && ends_open(r->open, prompt, n); }

int cli_reasoning_check_off(const cli_model *m, const cli_opts *o, const char *prompt, size_t n, cb_err *err)
{
    int at = marks_of(m);
    if (!o->reasoning || strcmp(o->reasoning, "off") != 0 || at < 0 || !ends_open(marks[at][0], prompt, n)) return 0;
    return cb_fail(err, CB_EUSAGE, "--reasoning off: the model's chat template opens the reasoning all the same; try --reasoning-budget 0");
}
