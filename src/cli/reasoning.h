/* reasoning.h: how a model marks its reasoning, from its chat template, and what the flags ask for. base/reason.h does the splitting. */
#ifndef CB_CLI_REASONING_H
#define CB_CLI_REASONING_H
#include "cli/model.h"

enum { REASONING_CLOSE_IDS = 16 };

typedef struct cli_reasoning {
    const char *open, *close;   /* NULL: the template has none, or --reasoning off */
    int32_t open_id, close_id;  /* special tokens that begin them and that the detokeniser leaves out, or -1 */
    int32_t close_ids[REASONING_CLOSE_IDS]; /* what ends the reasoning when the budget is used up */
    int n_close;
    bool asked;                 /* the model was asked to think */
    int64_t budget;             /* tokens; -1: no limit */
} cli_reasoning;

/* For an open model with its tokenizer. CB_EUSAGE for values out of range and for a model that cannot do what is asked for. */
int cli_reasoning_init(cli_reasoning *r, const cli_model *m, const cli_opts *o, cb_err *err);
/* Does a rendered prompt end inside the reasoning? */
bool cli_reasoning_opened(const cli_reasoning *r, const char *prompt, size_t n);
/* After rendering, with --reasoning off: CB_EUSAGE when the template opened it all the same. */
int cli_reasoning_check_off(const cli_model *m, const cli_opts *o, const char *prompt, size_t n, cb_err *err);
#endif
