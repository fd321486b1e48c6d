#include "cli/flags.h"
#include "base/env.h"
#include "base/file.h"
#include "cli/settings.h"
#include "cli/term.h"
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AT(f) offsetof(cli_opts, f)

const cli_flag cli_flags_common[] = {
    { "quiet", "q", CLI_SET, AT(log_level), "error", "only results and errors: --log-level error" },
    { "verbose", "v", CLI_SET, AT(log_level), "debug", "settings in force and more timings: --log-level debug" },
    { "log-level", NULL, CLI_TEXT, AT(log_level), "LEVEL", "error, warn, info (default) or debug" },
    { "log-format", NULL, CLI_TEXT, AT(log_format), "text|json", "text (default), or one JSON object a line" },
    { "log-file", NULL, CLI_TEXT, AT(log_file), "FILE", "append messages to FILE instead of stderr (errors go to both)" },
    { "config", NULL, CLI_TEXT, AT(config), "FILE", "settings file; default: cambium/config.toml in $XDG_CONFIG_HOME or ~/.config" },
    { "help", "h", CLI_BOOL, AT(help), NULL, "this text" },
    { 0 },
};
const cli_flag cli_flags_find[] = {
    { "model", "m", CLI_TEXT, AT(model), "MODEL", "the model; the positional form is preferred" },
    { "model-dir", NULL, CLI_LIST, AT(model_dirs), "DIR", "a further folder to look for models in (repeatable)" },
    { "cache-dir", NULL, CLI_TEXT, AT(cache_dir), "DIR", "root of the Hugging Face cache" },
    { "offline", NULL, CLI_BOOL, AT(offline), NULL, "no network (nothing here uses it)" },
    { 0 },
};
const cli_flag cli_flags_model[] = {
    { "ctx-size", "c ctx max-model-len context-length", CLI_SIZE, AT(ctx_size), "N",
      "tokens per sequence; auto: the model's limit, reduced to what fits" },
    { "device", NULL, CLI_TEXT, AT(device), "NAME", "auto, cpu, cpu:c, cpu:avx2, cpu:avx512, cuda, cuda:N" },
    { "threads", "t", CLI_INT, AT(threads), "N", "CPU threads; default: physical cores" },
    { "memory-limit", NULL, CLI_SIZE, AT(memory_limit), "SIZE", "most memory for the KV cache and scratch" },
    { "memory-floor", NULL, CLI_SIZE, AT(memory_floor), "SIZE", "memory to leave free" },
    { "prefill-chunk", "max-batch-tokens max-num-batched-tokens", CLI_INT, AT(prefill_chunk), "N", "prompt tokens in one step" },
    { "kv-dtype", "kv-cache-dtype", CLI_TEXT, AT(kv_dtype), "TYPE", "how keys and values are stored: auto or int16, the arithmetic's own" },
    { "cache-type-k", "-ctk", CLI_TEXT, AT(kv_k), "TYPE", "the same for keys alone" },
    { "cache-type-v", "-ctv", CLI_TEXT, AT(kv_v), "TYPE", "the same for values alone" },
    { "speculative", NULL, CLI_TEXT, AT(speculative), "auto|off", "drafts (this build has none; they would change speed only)" },
    { "draft-model", NULL, CLI_TEXT, AT(draft_model), "MODEL", "not in this build" },
    { "num-draft-tokens", NULL, CLI_INT, AT(num_draft_tokens), "N", "not in this build" },
    { 0 },
};
const cli_flag cli_flags_sampling[] = {
    { "temp", "temperature", CLI_REAL, AT(temp), "X", "temperature; 0: greedy" },
    { "top-k", NULL, CLI_INT, AT(top_k), "N", "keep the N likeliest tokens; 0: off" },
    { "top-p", NULL, CLI_REAL, AT(top_p), "X", "keep the likeliest tokens up to this mass; 1: off" },
    { "min-p", NULL, CLI_REAL, AT(min_p), "X", "keep tokens at least this fraction of the likeliest; 0: off" },
    { "repeat-penalty", "repetition-penalty", CLI_REAL, AT(repeat_penalty), "X", "divide logits of earlier tokens; 1: off" },
    { "repeat-last-n", "repetition-context-size", CLI_INT, AT(repeat_last_n), "N", "window of the penalties; -1: all, 0: off" },
    { "presence-penalty", NULL, CLI_REAL, AT(presence_penalty), "X", "subtracted once from earlier tokens" },
    { "frequency-penalty", NULL, CLI_REAL, AT(frequency_penalty), "X", "subtracted per occurrence" },
    { "seed", "s", CLI_INT, AT(seed), "N", "seed of the draws; -1 or none: from the system" },
    { "max-tokens", "n n-predict", CLI_INT, AT(max_tokens), "N", "most tokens to generate; default: what the context holds" },
    { "stop", NULL, CLI_LIST, AT(stop), "TEXT", "end the answer before this text (repeatable)" },
    { "ignore-eos", NULL, CLI_BOOL, AT(ignore_eos), NULL, "go on after end tokens" },
    { "sampler-profile", NULL, CLI_TEXT, AT(profile), "NAME", "hf, vllm, mlx or llamacpp: order of operations, windows and ties" },
    { "samplers", NULL, CLI_TEXT, AT(samplers), "LIST", "explicit order, as penalties,temperature,top_k,top_p,min_p" },
    { "generation-config", NULL, CLI_TEXT, AT(generation_config), "auto|none", "take sampling values from the checkpoint, or not" },
    { "json-schema", NULL, CLI_TEXT, AT(json_schema), "FILE", "not in this build" },
    { "grammar", NULL, CLI_TEXT, AT(grammar), "FILE", "not in this build" },
    { 0 },
};
const cli_flag cli_flags_prompt[] = {
    { "prompt", "p", CLI_TEXT, AT(prompt), "TEXT", "the prompt" },
    { "file", "f", CLI_TEXT, AT(file), "FILE", "read the prompt from a file; - is stdin" },
    { 0 },
};

_Static_assert(offsetof(cli_opts, from) <= sizeof ((cli_opts *)0)->from, "every value's offset is an index of `from`");

void cli_opts_init(cli_opts *o)
{
    memset(o, 0, sizeof *o);
    int64_t *ints[] = { &o->ctx_size, &o->threads, &o->memory_limit, &o->prefill_chunk, &o->top_k, &o->repeat_last_n,
                        &o->seed, &o->max_tokens, &o->batch_with, &o->steps, &o->top, &o->memory_floor,
                        &o->num_draft_tokens, &o->reasoning_budget, &o->positions, &o->bits, &o->group, &o->hadamard,
                        &o->gen, &o->repeats, &o->depth };
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++) *ints[i] = INT64_MIN;
    o->temp = o->top_p = o->min_p = o->repeat_penalty = o->presence_penalty = o->frequency_penalty = NAN;
    o->kl_mean = o->dmax = o->margin = NAN;
    o->level = CLI_INFO;
    cb_arena_init(&o->owned, 64 << 20);
}

void cli_opts_fini(cli_opts *o)
{
    if (o->log) fclose(o->log);
    cb_arena_fini(&o->owned);
    memset(o, 0, sizeof *o);
}

/* ---- values ---- */

int64_t cli_size(const char *text)
{
    char *end;
    errno = 0;
    double v = strtod(text, &end);
    if (end == text || errno || !(v >= 0) || isinf(v)) return -1;
    static const char units[] = "kMGT";
    double unit = 1;
    if (*end) {
        const char *u = strchr(units, *end == 'K' ? 'k' : *end);
        if (u) {
            end++;
            double base = 1000;
            if (*end == 'i') base = 1024, end++;
            for (const char *p = units; p <= u; p++) unit *= base;
        }
        if (*end == 'B') end++;
    }
    v *= unit;
    if (*end || v > 9e18 || v != floor(v)) return -1;
    return (int64_t)v;
}

int64_t cli_duration_us(const char *text)
{
    char *end;
    errno = 0;
    double v = strtod(text, &end);
    if (end == text || errno || !(v >= 0)) return -1;
    static const struct {
        const char *name;
        double us;
    } units[] = { { "", 1e6 }, { "ms", 1e3 }, { "s", 1e6 }, { "m", 60e6 }, { "h", 3600e6 } };
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (!strcmp(end, units[i].name)) return v * units[i].us < 9e18 ? (int64_t)(v * units[i].us) : -1;
    return -1;
}

static int put_value(const cli_flag *f, const char *shown, const char *value, cli_opts *o, cb_err *err)
{
    char *end, *at = (char *)o + f->offset;
    errno = 0;
    o->from[f->offset] = o->now;
    switch (f->type) {
    case CLI_BOOL: *(bool *)at = true; return 0;
    case CLI_SET: *(const char **)at = f->arg; return 0;
    case CLI_TEXT:
    case CLI_OPTIONAL: *(const char **)at = value; return 0;
    case CLI_LIST: {
        cli_list *l = (cli_list *)at;
        if (l->n == CLI_MAX_LIST) return cb_fail(err, CB_EUSAGE, "%s: given more than %d times", shown, CLI_MAX_LIST);
        l->v[l->n++] = value;
        return 0;
    }
    case CLI_INT: {
        long long v = strtoll(value, &end, 10);
        if (end == value || *end || errno || v == INT64_MIN) return cb_fail(err, CB_EUSAGE, "%s: %.80s is not an integer", shown, value);
        *(int64_t *)at = v;
        return 0;
    }
    case CLI_SIZE: {
        int64_t v = !strcmp(value, "auto") ? 0 : cli_size(value);
        if (v < 0) return cb_fail(err, CB_EUSAGE, "%s: %.80s is not a size; try a number with k, M, G, Ki, Mi or Gi", shown, value);
        *(int64_t *)at = v;
        return 0;
    }
    case CLI_REAL: {
        double v = strtod(value, &end);
        if (end == value || *end || !isfinite(v)) return cb_fail(err, CB_EUSAGE, "%s: %.80s is not a number", shown, value);
        *(double *)at = v;
        return 0;
    }
    }
    return 0;
}

/* ---- tables ---- */

/* Is `word` (n bytes) the flag's name or one of its aliases? Dashes inside may be written as underscores. */
static bool same_word(const char *a, const char *word, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (a[i] != (word[i] == '_' ? '-' : word[i])) return false;
    return a[n] == 0 || a[n] == ' ';
}

static bool flag_is(const cli_flag *f, const char *word, size_t n, bool is_short)
{
    if (!is_short && same_word(f->name, word, n)) return true;
    for (const char *a = f->aliases; a && *a; a += strcspn(a, " "), a += *a == ' ') {
        bool dash = *a == '-', letter = dash || strcspn(a, " ") == 1;
        if (letter == is_short && same_word(a + dash, word, n)) return true;
    }
    return false;
}

static const cli_flag *find_flag(const cli_cmd *c, const char *word, size_t n, bool is_short)
{
    if (n == 0) return NULL;
    for (int g = 0; c->groups[g]; g++)
        for (const cli_flag *f = c->groups[g]; f->name; f++)
            if (flag_is(f, word, n, is_short)) return f;
    return NULL;
}

static const char *flag_name_at(const void *ctx, int i)
{
    const cli_cmd *c = ctx;
    for (int g = 0; c->groups[g]; g++)
        for (const cli_flag *f = c->groups[g]; f->name; f++)
            if (i-- == 0) return f->name;
    return NULL;
}

/* Edits (insert, delete, replace, swap) between two short words. */
static int distance(const char *a, const char *b)
{
    enum { N = 40 };
    int d[N + 1][N + 1], la = (int)strnlen(a, N), lb = (int)strnlen(b, N);
    for (int i = 0; i <= la; i++) d[i][0] = i;
    for (int j = 0; j <= lb; j++) d[0][j] = j;
    for (int i = 1; i <= la; i++)
        for (int j = 1; j <= lb; j++) {
            int same = tolower((unsigned char)a[i - 1]) == tolower((unsigned char)b[j - 1]);
            int best = d[i - 1][j - 1] + !same;
            if (d[i - 1][j] + 1 < best) best = d[i - 1][j] + 1;
            if (d[i][j - 1] + 1 < best) best = d[i][j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && d[i - 2][j - 2] + 1 < best) best = d[i - 2][j - 2] + 1;
            d[i][j] = best;
        }
    return d[la][lb];
}

const char *cli_nearest(const char *word, const char *(*name_at)(const void *ctx, int i), const void *ctx, int n)
{
    const char *best = NULL;
    size_t len = strlen(word);
    int best_d = len < 4 ? 2 : len < 8 ? 3 : 4;
    for (int i = 0; i < n; i++) {
        const char *name = name_at(ctx, i);
        int d = distance(word, name);
        if (len >= 3 && !strncmp(word, name, len)) d = 1; /* an abbreviation */
        if (d < best_d) best_d = d, best = name;
    }
    return best;
}

static int unknown_flag(const cli_cmd *c, const char *word, cb_err *err)
{
    int n = 0;
    while (flag_name_at(c, n)) n++;
    const char *bare = word + strspn(word, "-");
    char name[48];
    size_t len = strcspn(bare, "=");
    if (len > sizeof name - 1) len = sizeof name - 1;
    memcpy(name, bare, len);
    name[len] = 0;
    const char *near = cli_nearest(name, flag_name_at, c, n);
    if (near) return cb_fail(err, CB_EUSAGE, "unknown flag %.60s of `cambium %s`; did you mean --%s?", word, c->name, near);
    return cb_fail(err, CB_EUSAGE, "unknown flag %.60s of `cambium %s`; try `cambium help %s`", word, c->name, c->name);
}

/* ---- where values come from ---- */

static bool takes_value(const cli_flag *f) { return f->type != CLI_BOOL && f->type != CLI_SET && f->type != CLI_OPTIONAL; }

/* --no-quiet, `verbose = false`, CAMBIUM_JSON=0. */
static void put_no(const cli_flag *f, cli_opts *o)
{
    char *at = (char *)o + f->offset;
    o->from[f->offset] = o->now;
    if (f->type == CLI_BOOL) *(bool *)at = false;
    else if (f->type == CLI_SET && *(const char **)at && !strcmp(*(const char **)at, f->arg)) *(const char **)at = NULL;
}

/* A list that came from elsewhere is replaced, not extended. */
static void forget_list(const cli_flag *f, cli_opts *o, uint64_t *seen)
{
    uint64_t bit = (uint64_t)1 << (f->offset / 8 % 64);
    if (f->type == CLI_LIST && !(*seen & bit)) ((cli_list *)((char *)o + f->offset))->n = 0;
    if (f->type == CLI_LIST) *seen |= bit;
}

/* The values of a variable that stands for a repeatable flag are separated by commas. */
static int put_variable(const cli_flag *f, const char *name, const char *v, cli_opts *o, cb_err *err)
{
    if (f->type == CLI_BOOL || f->type == CLI_SET) {
        bool yes = !strcmp(v, "1") || !strcmp(v, "true") || !strcmp(v, "yes") || !strcmp(v, "on");
        if (!yes && strcmp(v, "0") != 0 && strcmp(v, "false") != 0 && strcmp(v, "no") != 0 && strcmp(v, "off") != 0)
            return cb_fail(err, CB_EUSAGE, "%s: %.40s is not 1 or 0", name, v);
        if (!yes) put_no(f, o);
        return yes ? put_value(f, name, NULL, o, err) : 0;
    }
    if (f->type != CLI_LIST) return put_value(f, name, v, o, err);
    ((cli_list *)((char *)o + f->offset))->n = 0;
    for (;;) {
        size_t n = strcspn(v, ",");
        const char *part = cb_arena_strndup(&o->owned, v, n);
        if (!part) return cb_fail(err, CB_ENOMEM, "%s: no memory", name);
        int rc = put_value(f, name, part, o, err);
        if (rc < 0 || !v[n]) return rc;
        v += n + 1;
    }
}

static int read_variables(const cli_cmd *c, cli_opts *o, cb_err *err)
{
    for (int g = 0; c->groups[g]; g++)
        for (const cli_flag *f = c->groups[g]; f->name; f++) {
            char name[64] = "CAMBIUM_";
            size_t n = strlen(name);
            for (const char *p = f->name; *p && n < sizeof name - 1; p++) name[n++] = *p == '-' ? '_' : (char)toupper((unsigned char)*p);
            name[n] = 0;
            const char *v = cb_env(name);
            if (!v || !strcmp(f->name, "help")) continue;
            int rc = put_variable(f, name, v, o, err);
            if (rc < 0) return rc;
        }
    return 0;
}

static int parse_flag(const cli_cmd *c, int argc, char **argv, int *i, cli_opts *o, uint64_t *lists, cb_err *err)
{
    const char *word = argv[*i];
    bool is_short = word[1] != '-';
    const char *name = word + (is_short ? 1 : 2), *eq = strchr(name, '=');
    size_t n = eq ? (size_t)(eq - name) : strlen(name);
    const cli_flag *f = find_flag(c, name, n, is_short);
    if (!f && !is_short && !eq && !strncmp(name, "no-", 3)) {
        f = find_flag(c, name + 3, n - 3, false);
        if (f && takes_value(f)) return cb_fail(err, CB_EUSAGE, "%.60s: --%s takes a value and cannot be negated", word, f->name);
        if (f) {
            put_no(f, o);
            return 0;
        }
    }
    if (!f) return unknown_flag(c, word, err);
    char shown[64];
    snprintf(shown, sizeof shown, "%s%.*s", is_short ? "-" : "--", (int)(n < 50 ? n : 50), name);
    const char *value = eq ? eq + 1 : NULL;
    if (f->type == CLI_BOOL || f->type == CLI_SET) {
        if (value) return cb_fail(err, CB_EUSAGE, "%s takes no value; try --%s or --no-%s", shown, f->name, f->name);
    } else if (f->type == CLI_OPTIONAL) {
        if (!value) value = "";
    } else if (!value) {
        if (*i + 1 >= argc) return cb_fail(err, CB_EUSAGE, "%s needs a value (%s)", shown, f->arg);
        value = argv[++*i];
    }
    forget_list(f, o, lists);
    return put_value(f, shown, value, o, err);
}

/* One of the words of `list`? Then as it stands in there. */
static const char *find_word(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = list; p && *p; p += strcspn(p, " "), p += *p == ' ')
        if (n && strcspn(p, " ") == n && !strncmp(p, word, n)) return p;
    return NULL;
}

/* Variables and flags; the model given by name becomes the first argument. */
static int parse_line(const cli_cmd *cmd, int argc, char **argv, cli_opts *o, cb_err *err)
{
    uint64_t lists = 0;
    bool flags = true;
    o->now = CLI_FROM_VARIABLE;
    int rc = read_variables(cmd, o, err);
    o->now = CLI_FROM_FLAG;
    for (int i = 0; i < argc && rc == 0; i++) {
        if (flags && !strcmp(argv[i], "--")) flags = false;
        else if (flags && argv[i][0] == '-' && argv[i][1]) rc = parse_flag(cmd, argc, argv, &i, o, &lists, err);
        else if (!o->verb && !o->n_args && find_word(cmd->verbs, argv[i])) o->verb = argv[i];
        else if (o->n_args == CLI_MAX_ARGS) rc = cb_fail(err, CB_EUSAGE, "more than %d arguments", CLI_MAX_ARGS);
        else o->args[o->n_args++] = argv[i];
    }
    if (rc < 0) return rc;
    if (cmd->takes_model && o->model && o->n_args < CLI_MAX_ARGS) { /* -m MODEL: becomes the first argument */
        memmove(o->args + 1, o->args, (size_t)o->n_args * sizeof *o->args);
        o->args[0] = o->model;
        o->n_args++;
    }
    if (o->n_args < cmd->min_args)
        return cb_fail(err, CB_EUSAGE, "`cambium %s` needs %s; try `cambium help %s`", cmd->name, cmd->args, cmd->name);
    if (o->n_args > cmd->max_args)
        return cb_fail(err, CB_EUSAGE, "`cambium %s` takes %s: %.60s is too much; quote a text with spaces", cmd->name,
                       *cmd->args ? cmd->args : "no arguments", o->args[cmd->max_args]);
    return 0;
}

/* ---- the settings file ---- */

enum { MAX_SETTINGS_FILE = 1 << 20 };

void cli_settings_path(const cli_opts *o, char *path, size_t cap)
{
    const char *config = cb_env("XDG_CONFIG_HOME"), *home = cb_env("HOME");
    int n = 0;
    *path = 0;
    if (o->config) n = snprintf(path, cap, "%s", o->config);
    else if (config) n = snprintf(path, cap, "%s/cambium/config.toml", config);
    else if (home) n = snprintf(path, cap, "%s/.config/cambium/config.toml", home);
    if (n < 0 || (size_t)n >= cap || (!o->config && !cb_file_exists(NULL, path))) *path = 0;
}

/* Some command's flag of that name: NULL when there is none. */
static const cli_flag *known_flag(const cli_cmd *all, int n_all, const char *key)
{
    const cli_flag *f = NULL;
    for (int i = 0; i < n_all && !f; i++) f = find_flag(&all[i], key, strlen(key), false);
    return f;
}

static const char *setting_name_at(const void *ctx, int i) { return ((const char *const *)ctx)[i]; }

static int unknown_setting(const cli_cmd *all, int n_all, const char *path, const cli_setting *s, cb_err *err)
{
    const char *names[256], *near;
    int n = 0;
    for (int c = 0; c < n_all; c++)
        for (int g = 0; all[c].groups[g]; g++)
            for (const cli_flag *f = all[c].groups[g]; f->name && n < 256; f++) names[n++] = f->name;
    near = cli_nearest(s->key, setting_name_at, names, n);
    return cb_fail(err, CB_EUSAGE, "%.300s line %d: unknown setting %.60s%s%s%s", path, s->line, s->key, near ? "; did you mean " : "", near ? near : "",
                   near ? "?" : "; each is the name of a long flag");
}

static int put_setting(const cli_flag *f, const char *path, const cli_setting *s, cli_opts *o, cb_err *err)
{
    char shown[400];
    snprintf(shown, sizeof shown, "%.300s line %d: %.60s", path, s->line, s->key);
    bool wants_bool = f->type == CLI_BOOL || f->type == CLI_SET;
    if (wants_bool != s->is_bool) return cb_fail(err, CB_EUSAGE, "%s %s", shown, wants_bool ? "is true or false" : "takes a value, not true or false");
    if (s->is_list && f->type != CLI_LIST) return cb_fail(err, CB_EUSAGE, "%s takes one value, not a list", shown);
    if (wants_bool && !strcmp(s->values.v[0], "false")) {
        put_no(f, o);
        return 0;
    }
    if (f->type == CLI_LIST) ((cli_list *)((char *)o + f->offset))->n = 0;
    int rc = 0;
    for (int i = 0; i < s->values.n && rc == 0; i++) rc = put_value(f, shown, s->values.v[i], o, err);
    return rc;
}

/* Puts the settings of one table (`sub`: the model's name, NULL for the top) that this command knows into o, and checks all. */
static int put_settings(const cli_cmd *cmd, const cli_cmd *all, int n_all, const char *path, const cli_setting *first, const char *sub,
                        cli_opts *o, const char **model, cb_err *err)
{
    int rc = 0;
    for (const cli_setting *s = first; s && rc == 0; s = s->next) {
        bool of_model = *s->table != 0;
        if (of_model && (strcmp(s->table, "models") != 0 || !*s->sub))
            return cb_fail(err, CB_EUSAGE, "%.300s line %d: [%.60s] is not known; there is [models.NAME]", path, s->line, s->table);
        bool is_model = !strcmp(s->key, "model"), mine = sub ? of_model && !strcmp(s->sub, sub) : !of_model;
        if (is_model && !of_model)
            return cb_fail(err, CB_EUSAGE, "%.300s line %d: model belongs below [models.NAME], which gives it that name", path, s->line);
        if (is_model && (s->is_list || s->is_bool)) return cb_fail(err, CB_EUSAGE, "%.300s line %d: model takes one text", path, s->line);
        if (is_model) {
            if (mine) *model = s->values.v[0];
            continue;
        }
        const cli_flag *f = find_flag(cmd, s->key, strlen(s->key), false);
        if (!strcmp(s->key, "config") || !strcmp(s->key, "help") || (!f && !known_flag(all, n_all, s->key)))
            return unknown_setting(all, n_all, path, s, err);
        if (f && mine) rc = put_setting(f, path, s, o, err);
    }
    return rc;
}

/* Reads everything again, the file first. The first reading, o, told which file and which model. */
static int parse_with_file(const cli_cmd *cmd, const cli_cmd *all, int n_all, int argc, char **argv, const char *path, cli_opts *o, cb_err *err)
{
    const char *model = NULL, *name = cmd->takes_model && o->n_args ? o->args[0] : NULL;
    cli_setting *settings;
    char *text;
    size_t n;
    int rc = cb_file_read(NULL, path, MAX_SETTINGS_FILE, &text, &n, err);
    if (rc < 0) return err->code = CB_EUSAGE;
    cli_opts_fini(o);
    cli_opts_init(o);
    rc = cli_settings_parse(path, text, n, &o->owned, &settings, err);
    cb_free(text);
    o->now = CLI_FROM_FILE;
    if (rc == 0) rc = put_settings(cmd, all, n_all, path, settings, NULL, o, &model, err);
    o->now = CLI_FROM_MODEL;
    if (rc == 0 && name) rc = put_settings(cmd, all, n_all, path, settings, name, o, &model, err);
    if (rc == 0) rc = parse_line(cmd, argc, argv, o, err);
    if (rc == 0 && model) o->args[0] = model;
    return rc;
}

/* ---- all of it ---- */

static int check_log_flags(cli_opts *o, cb_err *err)
{
    static const char *const levels[] = { "error", "warn", "info", "debug" };
    o->level = o->log_level ? -1 : CLI_INFO;
    for (int i = 0; o->log_level && i < 4; i++)
        if (!strcmp(o->log_level, levels[i])) o->level = i;
    if (o->level < 0) {
        o->level = CLI_INFO;
        return cb_fail(err, CB_EUSAGE, "--log-level: %.40s is unknown; known are error, warn, info and debug", o->log_level);
    }
    o->log_json = o->log_format && !strcmp(o->log_format, "json");
    if (o->log_format && !o->log_json && strcmp(o->log_format, "text") != 0)
        return cb_fail(err, CB_EUSAGE, "--log-format: %.40s is neither text nor json", o->log_format);
    return 0;
}

int cli_parse(const cli_cmd *cmd, const cli_cmd *all, int n_all, int argc, char **argv, cli_opts *o, cb_err *err)
{
    char path[4096];
    for (int i = 0; i < argc; i++) /* help works whatever else is wrong */
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            o->help = true;
            return 0;
        } else if (!strcmp(argv[i], "--"))
            break;
    int rc = parse_line(cmd, argc, argv, o, err);
    if (rc < 0) return rc;
    cli_settings_path(o, path, sizeof path);
    if (*path && (rc = parse_with_file(cmd, all, n_all, argc, argv, path, o, err)) < 0) return rc;
    o->cmd = cmd;
    return check_log_flags(o, err);
}

/* ---- help ---- */

static void print_flag(const cli_flag *f)
{
    char left[96];
    int n = snprintf(left, sizeof left, "  ");
    for (const char *a = f->aliases; a && *a; a += strcspn(a, " "), a += *a == ' ')
        if (*a == '-') n += snprintf(left + n, sizeof left - (size_t)n, "%.*s, ", (int)strcspn(a, " "), a);
        else if (strcspn(a, " ") == 1) n += snprintf(left + n, sizeof left - (size_t)n, "-%c, ", *a);
    n += snprintf(left + n, sizeof left - (size_t)n, "--%s", f->name);
    if (f->type == CLI_OPTIONAL) n += snprintf(left + n, sizeof left - (size_t)n, "[=%s]", f->arg);
    else if (f->arg && f->type != CLI_SET) n += snprintf(left + n, sizeof left - (size_t)n, " %s", f->arg);
    printf("%-32s%s%s", left, n > 31 ? "\n                                " : "", f->help);
    const char *sep = " (also ";
    for (const char *a = f->aliases; a && *a; a += strcspn(a, " "), a += *a == ' ') {
        int len = (int)strcspn(a, " ");
        if (len == 1 || *a == '-') continue;
        printf("%s--%.*s", sep, len, a);
        sep = ", ";
    }
    puts(*sep == ',' ? ")" : "");
}

void cli_help(const cli_cmd *cmd)
{
    printf("usage: cambium %s%s%s [flags]\n\n%s.\n", cmd->name, *cmd->args ? " " : "", cmd->args, cmd->summary);
    if (cmd->notes) printf("\n%s", cmd->notes);
    printf("\nflags:\n");
    for (int g = 0; cmd->groups[g]; g++)
        for (const cli_flag *f = cmd->groups[g]; f->name; f++) print_flag(f);
    printf("\nEach long flag may be set by a variable: --ctx-size by CAMBIUM_CTX_SIZE, or in the settings file.\nFlags win, then variables.\n");
}
