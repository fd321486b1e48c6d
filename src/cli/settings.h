/* settings.h: reads the settings file, a small part of TOML: comments, [tables] with bare or quoted names, and `key = value` with
 * a text ("..." or '...'), a number, true or false, or a list of texts and numbers on one or more lines. */
#ifndef CB_CLI_SETTINGS_H
#define CB_CLI_SETTINGS_H
#include "cli/flags.h"

typedef struct cli_setting {
    const char *table; /* "" before the first table */
    const char *sub;   /* NAME of [table.NAME], else "" */
    const char *key;   /* dashes for underscores */
    int line;
    bool is_bool, is_list; /* a bool's value is "true" or "false" */
    cli_list values;   /* texts; one unless is_list */
    struct cli_setting *next;
} cli_setting;

/* Entries in the file's order, all memory from `a`. CB_EUSAGE names the line. */
int cli_settings_parse(const char *name, const char *text, size_t n, cb_arena *a, cli_setting **out, cb_err *err);
#endif
