/* prompt.h: from what the user said to prompt ids, through the chat template. */
#ifndef CB_CLI_PROMPT_H
#define CB_CLI_PROMPT_H
#include "cli/reasoning.h"
#include <jansson.h>

/* An empty conversation; a system message first when text is not NULL. NULL without memory. */
json_t *prompt_messages(const cli_model *m, const char *system);
/* Appends one message. Special tokens spelled in its text will stay text. 0 or CB_ENOMEM. */
int prompt_add(const cli_model *m, json_t *messages, const char *role, const char *text, size_t n, cb_err *err);
/* Gives the last message its reasoning. */
int prompt_add_reasoning(const cli_model *m, json_t *messages, const char *text, size_t n, cb_err *err);
/* Shields the contents (strings, or the text of parts) of messages that came from outside, in place. */
int prompt_shield(const cli_model *m, json_t *messages, cb_err *err);
/* Renders the template for the messages (borrowed) with --chat-template-kwargs; --reasoning on or off sets enable_thinking unless
 * they do. *text: free(). */
int prompt_render(const cli_model *m, const cli_opts *o, const json_t *messages, bool add_generation_prompt, char **text, size_t *n,
                  cb_err *err);
/* Renders and encodes; *ids: cb_free. *opened: the prompt ends inside the reasoning. */
int prompt_encode(const cli_model *m, const cli_opts *o, const cli_reasoning *r, const json_t *messages, int32_t **ids, int *n_ids,
                  bool *opened, cb_err *err);
#endif
