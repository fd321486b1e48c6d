/* parity_cmds.h: the parts of `cambium parity`, and what they share. Each returns as a command does. */
#ifndef CB_CLI_PARITY_CMDS_H
#define CB_CLI_PARITY_CMDS_H
#include "cli/model.h"

int parity_ops(const cli_opts *o, cb_err *err);
int parity_layers(const cli_opts *o, cb_err *err);

/* Ids of -f, -p or a text of its own, as a raw prompt; *ids: cb_free. */
int parity_ids(const cli_opts *o, const cli_model *m, int32_t **ids, int *n, cb_err *err);
/* --positions, 1 to most. */
int parity_positions(const cli_opts *o, int usual, int most, int *n, cb_err *err);
#endif
