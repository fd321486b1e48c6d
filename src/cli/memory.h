/* memory.h: what a model would take, before anything is loaded; for show and plan. */
#ifndef CB_CLI_MEMORY_H
#define CB_CLI_MEMORY_H
#include "cambium.h"
#include <jansson.h>

/* Some lines, labels in the first 12 columns as in `show`. */
void memory_print(const cb_memory *m, const cb_engine_info *in);
json_t *memory_json(const cb_memory *m, const cb_engine_info *in);
#endif
