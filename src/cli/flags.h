/* flags.h: command lines from tables. One table entry holds a flag's spellings, type, place and help text; parsing, the
 * CAMBIUM_* variables, the settings file, suggestions for misspellings and `--help` are all derived from it. */
#ifndef CB_CLI_FLAGS_H
#define CB_CLI_FLAGS_H
#include "base/err.h"
#include "base/mem.h"
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { CLI_MAX_ARGS = 64, CLI_MAX_LIST = 16 };

typedef struct cli_list {
    const char *v[CLI_MAX_LIST]; /* borrowed from argv, or owned by cli_opts.owned */
    int n;
} cli_list;

/* Where a value came from; each beats those before. */
enum { CLI_BUILT_IN, CLI_FROM_FILE, CLI_FROM_MODEL, CLI_FROM_VARIABLE, CLI_FROM_FLAG };

/* Every flag of every command. "unset" is NULL for texts, INT64_MIN for integers, NAN for reals. */
typedef struct cli_opts {
    const char *args[CLI_MAX_ARGS]; /* positional */
    int n_args;
    const char *verb; /* the command's own word before them (cli_cmd.verbs), or NULL */
    bool help;
    bool json, offline;
    /* what is said on stderr or in the log file (term.h) */
    const char *log_level, *log_format, *log_file;
    int level;     /* CLI_ERROR .. CLI_DEBUG, from log_level */
    bool log_json;
    FILE *log;     /* the open log file, or NULL */
    /* model and device */
    const char *model, *device, *cache_dir, *config, *kv_dtype, *kv_k, *kv_v;
    cli_list model_dirs;
    int64_t ctx_size, threads, memory_limit, memory_floor, prefill_chunk;
    const char *speculative, *draft_model;
    int64_t num_draft_tokens;
    /* sampling */
    double temp, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty;
    int64_t top_k, repeat_last_n, seed, max_tokens;
    cli_list stop;
    const char *profile, *samplers, *generation_config;
    bool ignore_eos;
    const char *json_schema, *grammar;
    /* prompts */
    const char *prompt, *file, *system, *chat_template, *chat_template_kwargs, *reasoning;
    int64_t reasoning_budget;
    bool hide_reasoning;
    cli_list image;
    bool raw, special, no_bos;
    /* looking inside */
    const char *hash; /* "" for a bare --hash */
    int64_t batch_with, steps, positions;
    bool trace_ops, ids;
    const char *a, *b, *tokens;
    int64_t top;
    const char *full;
    double kl_mean, dmax, margin;
    /* bench */
    const char *prompt_sizes, *depths, *batches, *json_file;
    int64_t gen, repeats, depth;
    bool csv;
    /* quantize */
    int64_t bits, group, hadamard;
    const char *mode, *dtype, *rounding;
    cli_list keep;
    const struct cli_cmd *cmd; /* the command, set by cli_parse */
    uint8_t now;               /* source of the values read now, CLI_FROM_... */
    uint8_t from[2048];        /* source of each value, by its offset in this struct; 0: built in */
    cb_arena owned; /* texts that came from the settings file or were cut out of a variable */
} cli_opts;

/* CLI_SET: a flag without a value that stands for another one with a certain value (-q for --log-level error). */
typedef enum cli_type { CLI_BOOL, CLI_INT, CLI_SIZE, CLI_REAL, CLI_TEXT, CLI_LIST, CLI_OPTIONAL, CLI_SET } cli_type;

typedef struct cli_flag {
    const char *name;    /* "ctx-size"; NULL ends a table */
    const char *aliases; /* "c max-model-len": a single letter is a short flag, as is a word written with its dash; NULL: none */
    cli_type type;
    size_t offset;       /* in cli_opts */
    const char *arg;     /* placeholder in the help; NULL for booleans; CLI_SET: the value the flag stands for */
    const char *help;
} cli_flag;

typedef struct cli_cmd {
    const char *name, *alias;
    const char *args;    /* "MODEL [PROMPT]" */
    const char *summary; /* one line */
    const char *notes;   /* further paragraphs of the help; may be NULL */
    const char *verbs;   /* "check ops": words that may stand before the arguments; NULL: none */
    const cli_flag *groups[8]; /* tables; NULL ends */
    int min_args, max_args;    /* of positional arguments, where the first may be given by --model */
    bool takes_model;          /* -m MODEL stands for the first positional argument */
    int (*run)(const cli_opts *o, cb_err *err);
} cli_cmd;

extern const cli_flag cli_flags_common[], cli_flags_model[], cli_flags_find[], cli_flags_sampling[], cli_flags_prompt[];

void cli_opts_init(cli_opts *o);
/* Frees what o owns and closes the log file. */
void cli_opts_fini(cli_opts *o);
/* argv[0] is the first word after the command; `all` is the table of commands. Read in this order, so that the later wins: the
 * settings file, the part of it that is about this model, CAMBIUM_* variables, flags. o must be fresh. CB_EUSAGE with a
 * suggestion for an unknown flag or setting. */
int cli_parse(const cli_cmd *cmd, const cli_cmd *all, int n_all, int argc, char **argv, cli_opts *o, cb_err *err);
/* The help text of one command, to stdout. */
void cli_help(const cli_cmd *cmd);
/* Path of the settings file: --config, or the usual place if a file is there; "" when there is none. */
void cli_settings_path(const cli_opts *o, char *path, size_t cap);
/* "4k", "2Gi", "512": k M G T are powers of 1000, Ki Mi Gi Ti of 1024; a B may follow. -1 when it is neither. */
int64_t cli_size(const char *text);
/* "250ms", "2s", "5m", "1h", "1.5" (seconds): microseconds, or -1. */
int64_t cli_duration_us(const char *text);
/* Of n names (fetched by name_at), the nearest to `word` within a few letters; NULL when none is near. */
const char *cli_nearest(const char *word, const char *(*name_at)(const void *ctx, int i), const void *ctx, int n);
#endif
