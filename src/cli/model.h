/* model.h: opens what a command needs of a model: folder, tokenizer, template, engine; and the sampling values in force. */
#ifndef CB_CLI_MODEL_H
#define CB_CLI_MODEL_H
#include "cambium.h"
#include "cli/flags.h"

enum { CLI_NEED_TOKENIZER = 1, CLI_NEED_ENGINE = 2, CLI_NEED_TEMPLATE = 4, CLI_WANT_TEMPLATE = 8, CLI_KEEP_STATES = 16 /* engine with room for kept states */,
       CLI_PLAN_ONLY = 32 /* engine that loads nothing */ };

typedef struct cli_model {
    const char *name; /* as the user wrote it */
    char dir[4096];
    cb_tokenizer *tok;
    cb_template *tmpl;     /* NULL without one; then no_template says why */
    cb_err no_template;
    cb_engine *engine;
    cb_engine_info info;
    int n_vocab;           /* ids that may be sampled: the tokenizer's, at most the engine's */
} cli_model;

/* Finds the folder of `name`. Errors: CB_ENOTFOUND with near names, CB_EFORMAT for an incomplete one. */
int cli_model_locate(const cli_opts *o, const char *name, char *dir, size_t cap, cb_err *err);
/* Opens the first positional argument. extra_sessions and max_rows (0: --prefill-chunk or the default) are for the engine. */
int cli_model_open(cli_model *m, const cli_opts *o, int needs, int extra_sessions, int max_rows, cb_err *err);
void cli_model_close(cli_model *m);
/* The error of a model that cannot chat: what is wrong with its template, and the remedy. */
int cli_no_template(const cli_model *m, cb_err *err);

/* Neutral values, then the checkpoint's, then the flags. The seed is -1 when none was asked for. */
int cli_sampling(const cli_opts *o, const char *dir, cb_sampling *p, cb_err *err);
/* NVIDIA GPUs that the kernel driver lists. */
int cli_gpus(void);
/* From the system's generator, 63 bits. */
uint64_t cli_random_seed(void);

/* Encodes into *ids (cb_free); flags as cb_tokenizer_encode. */
int cli_encode(const cb_tokenizer *t, const char *text, size_t n, int flags, int32_t **ids, int *n_ids, cb_err *err);
/* As a raw prompt: what the post-processor adds, but no second BOS when the text already begins with one. */
int cli_encode_raw(const cb_tokenizer *t, const char *text, size_t n, int32_t **ids, int *n_ids, cb_err *err);
#endif
