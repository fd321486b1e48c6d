/* commands.h: the commands, one function each; main.c holds the table. Each returns a CB_E code and has reported nothing,
 * or a positive exit code when it has said all there is to say. */
#ifndef CB_CLI_COMMANDS_H
#define CB_CLI_COMMANDS_H
#include "cli/describe.h"
#include "cli/flags.h"
#include "cli/generate.h"

int cmd_run(const cli_opts *o, cb_err *err);
int cmd_config(const cli_opts *o, cb_err *err);
int cmd_import(const cli_opts *o, cb_err *err);
int cmd_quantize(const cli_opts *o, cb_err *err);
int cmd_list(const cli_opts *o, cb_err *err);
int cmd_show(const cli_opts *o, cb_err *err);
int cmd_plan(const cli_opts *o, cb_err *err);
int cmd_diff(const cli_opts *o, cb_err *err);
int cmd_tokenize(const cli_opts *o, cb_err *err);
int cmd_detokenize(const cli_opts *o, cb_err *err);
int cmd_template(const cli_opts *o, cb_err *err);
int cmd_parity(const cli_opts *o, cb_err *err);
int cmd_bench(const cli_opts *o, cb_err *err);
int cmd_score(const cli_opts *o, cb_err *err);
int cmd_doctor(const cli_opts *o, cb_err *err);
int cmd_devices(const cli_opts *o, cb_err *err);
int cmd_version(const cli_opts *o, cb_err *err);

/* chat.c: the interactive part of run. */
int chat_loop(gen *g, const cli_opts *o, gen_params *p, cb_err *err);
/* "prompt 23 tokens, ..." on stderr. */
void run_note_speed(const cli_opts *o, const gen_result *r);
#endif
