/* tokens.c: tokenize, detokenize and template: every stage between text and ids, shown. */
#include "base/json.h"
#include "base/mem.h"
#include "cli/commands.h"
#include "cli/prompt.h"
#include "cli/term.h"
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TEXT = 256 << 20 };

/* JSON spelling of a token's text, for one line of a table. Free with free(). */
static char *quoted(const char *s, size_t n)
{
    json_t *j = cli_json_string(s, n);
    char *text = j ? json_dumps(j, JSON_ENCODE_ANY) : NULL;
    json_decref(j);
    return text;
}

static int print_ids(const cli_opts *o, const cli_model *m, const int32_t *ids, int n, cb_err *err)
{
    if (o->json) {
        json_t *a = json_array();
        for (int i = 0; i < n; i++) json_array_append_new(a, json_integer(ids[i]));
        return cli_print_json(a, err);
    }
    for (int i = 0; o->ids && i < n; i++) printf("%s%d", i ? " " : "", ids[i]);
    if (o->ids) putchar('\n');
    for (int i = 0; !o->ids && i < n; i++) {
        size_t len = 0;
        const char *t = cb_tokenizer_token(m->tok, ids[i], &len);
        char *q = quoted(t ? t : "", t ? len : 0);
        printf("%7d  %s\n", ids[i], q ? q : "");
        free(q);
    }
    cli_note(o, "%d tokens", n);
    return 0;
}

/* The text from the second argument, -p, -f, or stdin. */
static int find_text(const cli_opts *o, char **text, size_t *n, cb_err *err)
{
    const char *given = o->prompt ? o->prompt : o->n_args > 1 ? o->args[1] : NULL;
    if (!given || (!o->prompt && !strcmp(given, "-"))) return cli_read_file(o->file ? o->file : "-", MAX_TEXT, text, n, err);
    *n = strlen(given);
    return (*text = cb_strndup(given, *n)) ? 0 : cb_fail(err, CB_ENOMEM, "no memory for the text");
}

int cmd_tokenize(const cli_opts *o, cb_err *err)
{
    cli_model m = {0};
    char *text = NULL;
    int32_t *ids = NULL;
    size_t n;
    int n_ids;
    int flags = (o->no_bos ? 0 : CB_ENCODE_SPECIAL_BEGIN) | (o->special ? CB_ENCODE_PARSE_SPECIAL : 0);
    int rc = cli_model_open(&m, o, CLI_NEED_TOKENIZER, 0, 0, err);
    if (rc == 0) rc = find_text(o, &text, &n, err);
    if (rc == 0) rc = cli_encode(m.tok, text, n, flags, &ids, &n_ids, err);
    if (rc == 0) rc = print_ids(o, &m, ids, n_ids, err);
    cb_free(text);
    cb_free(ids);
    cli_model_close(&m);
    return rc;
}

/* Appends the numbers of a text, separated by blanks, commas or brackets. */
static int parse_ids(const char *s, cb_buf *ids, cb_err *err)
{
    for (;;) {
        s += strspn(s, " \t\r\n,[]");
        if (!*s) return cb_buf_ok(ids) ? 0 : cb_fail(err, CB_ENOMEM, "no memory for the ids");
        char *end;
        errno = 0;
        long v = strtol(s, &end, 10);
        if (end == s || errno || v < 0 || v > INT_MAX) return cb_fail(err, CB_EUSAGE, "%.30s is not a token id", s);
        int32_t id = (int32_t)v;
        cb_buf_put(ids, &id, sizeof id);
        s = end;
    }
}

int cmd_detokenize(const cli_opts *o, cb_err *err)
{
    cli_model m = {0};
    cb_buf ids;
    char *text = NULL, *out = NULL;
    size_t n;
    cb_buf_init(&ids, 0);
    int rc = cli_model_open(&m, o, CLI_NEED_TOKENIZER, 0, 0, err);
    for (int i = 1; rc == 0 && i < o->n_args; i++) rc = parse_ids(o->args[i], &ids, err);
    if (rc == 0 && o->n_args < 2) {
        rc = cli_read_file("-", MAX_TEXT, &text, &n, err);
        if (rc == 0) rc = parse_ids(text, &ids, err);
    }
    const int32_t *v = (const int32_t *)(const void *)ids.data;
    size_t n_ids = ids.n / sizeof *v;
    int n_vocab = m.tok ? cb_tokenizer_n_vocab(m.tok) : 0;
    for (size_t i = 0; rc == 0 && i < n_ids; i++)
        if (v[i] >= n_vocab) rc = cb_fail(err, CB_EUSAGE, "token id %d is outside the vocabulary of %d", v[i], n_vocab);
    int64_t len = 0;
    if (rc == 0 && (len = cb_tokenizer_decode(m.tok, v, n_ids, !o->special, NULL, 0, err)) < 0) rc = (int)len;
    if (rc == 0 && !(out = cb_alloc((size_t)len))) rc = cb_fail(err, CB_ENOMEM, "no memory for %lld bytes", (long long)len);
    if (rc == 0 && (len = cb_tokenizer_decode(m.tok, v, n_ids, !o->special, out, (size_t)len, err)) < 0) rc = (int)len;
    if (rc == 0) {
        fwrite(out, 1, (size_t)len, stdout);
        putchar('\n');
    }
    cb_free(out);
    cb_free(text);
    cb_buf_fini(&ids);
    cli_model_close(&m);
    return rc;
}

/* Renders the file's variables: an array is the messages; an object is taken as it is, with add_generation_prompt true unless set. */
static int render_file(const cli_model *m, const cli_opts *o, json_t *root, char **out, size_t *n, cb_err *err)
{
    if (json_is_array(root)) return prompt_render(m, o, root, true, out, n, err);
    if (!json_object_get(root, "add_generation_prompt")) json_object_set_new(root, "add_generation_prompt", json_true());
    char *json = json_dumps(root, JSON_COMPACT);
    if (!json) return cb_fail(err, CB_ENOMEM, "no memory for the messages");
    int rc = cb_template_render(m->tmpl, json, strlen(json), out, n, err);
    free(json);
    return rc;
}

int cmd_template(const cli_opts *o, cb_err *err)
{
    cli_model m = {0};
    char *text = NULL, *out = NULL;
    size_t n, n_out;
    json_t *root = NULL;
    int32_t *ids = NULL;
    int n_ids;
    const char *path = o->n_args > 1 ? o->args[1] : "-", *shown = strcmp(path, "-") ? path : "standard input";
    int rc = cli_model_open(&m, o, CLI_NEED_TEMPLATE | (o->ids ? CLI_NEED_TOKENIZER : 0), 0, 0, err);
    if (rc == 0) rc = cli_read_file(path, MAX_TEXT, &text, &n, err);
    if (rc == 0 && (rc = cb_json_text(shown, text, n, &root, err)) < 0) rc = err->code = CB_EUSAGE;
    if (rc == 0 && !json_is_array(root) && !json_is_object(root))
        rc = cb_fail(err, CB_EUSAGE, "%.200s: neither an array of messages nor an object with them", shown);
    if (rc == 0 && o->ids) rc = prompt_shield(&m, json_is_array(root) ? root : json_object_get(root, "messages"), err);
    if (rc == 0) rc = render_file(&m, o, root, &out, &n_out, err);
    if (rc == 0 && o->ids) {
        rc = cli_encode(m.tok, out, n_out, CB_ENCODE_PARSE_SPECIAL | CB_ENCODE_SHIELDED, &ids, &n_ids, err);
        if (rc == 0) rc = print_ids(o, &m, ids, n_ids, err);
    } else if (rc == 0)
        fwrite(out, 1, n_out, stdout);
    json_decref(root);
    cb_free(text);
    cb_free(ids);
    free(out);
    cli_model_close(&m);
    return rc;
}
