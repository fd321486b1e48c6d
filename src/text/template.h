/* template.h: chat templates of a checkpoint; the public part is in cambium.h. */
#ifndef CB_TEXT_TEMPLATE_H
#define CB_TEXT_TEMPLATE_H
#include "text/jinja.h"

/* As cb_template_render with a fixed local time (NULL: the clock's) and limits (NULL: the defaults). For tests. */
int cb_template_render_at(const cb_template *t, const char *json, size_t n, const struct tm *now, const cb_jinja_limits *lim,
                          char **out, size_t *out_n, cb_err *err);
/* A template from its text, without a checkpoint. `specials` (may be NULL, borrowed) holds bos_token and the like. */
int cb_template_from_text(const char *name, const char *text, size_t n, const json_t *specials, cb_template **out, cb_err *err);
#endif
