/* jinja.h: chat templates in the Jinja language, as Transformers runs them: jinja2's ImmutableSandboxedEnvironment with
 * trim_blocks, lstrip_blocks, loop controls, {% generation %}, a plain tojson, raise_exception and strftime_now.
 *
 * A template is parsed once into a tree that never changes and may be rendered by any number of threads. A rendering owns one
 * arena and one output buffer; both, the steps and the nesting are bounded, because templates and requests are hostile.
 * Read next: jinja_value.h (values), jinja_ast.h (the tree), jinja_eval.c. */
#ifndef CB_TEXT_JINJA_H
#define CB_TEXT_JINJA_H
#include "base/err.h"
#include "base/json.h"
#include <time.h>

typedef struct cb_jinja cb_jinja;

/* Longest template text in bytes; published ones have less than 20 KB. */
enum { CB_JINJA_MAX_TEXT = 512 * 1024 };

/* Parses n bytes; `name` (copied) stands in front of every error: "chat_template.jinja: line 3, column 14: ...". *out is owned
 * by the caller. Errors: CB_EFORMAT, CB_ENOMEM. */
int cb_jinja_parse(const char *name, const char *text, size_t n, cb_jinja **out, cb_err *err);
void cb_jinja_close(cb_jinja *t); /* NULL is fine */

/* What a rendering may use; zero means the default. A step is one evaluated node or about 64 bytes of text moved. */
typedef struct cb_jinja_limits {
    size_t memory_bytes; /* 64 MiB */
    size_t output_bytes; /* 64 MiB */
    uint64_t steps;      /* 50 million: a second or two */
} cb_jinja_limits;

/* Renders with the variables of the objects in `vars` (n_vars of them, later ones win; they must outlive the call only).
 * `now` is the local time for strftime_now, NULL: the clock's. *out is freed with cb_free.
 * Errors: CB_EUSAGE from raise_exception, CB_EFORMAT for every other failure of the template, CB_ENOMEM. */
int cb_jinja_render(const cb_jinja *t, json_t *const *vars, int n_vars, const struct tm *now, const cb_jinja_limits *limits,
                    char **out, size_t *out_n, cb_err *err);
#endif
