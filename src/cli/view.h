/* view.h: what becomes of an answer's text: it is kept, and unless --json printed at once. On a terminal the reasoning is dim;
 * elsewhere it stands between the model's delimiters, so that a reader can tell it apart. */
#ifndef CB_CLI_VIEW_H
#define CB_CLI_VIEW_H
#include "cli/generate.h"

typedef struct view {
    const cli_reasoning *r;
    bool print, hide, dim;
    int part;              /* of what was printed last: 0 nothing, 1 reasoning, 2 answer */
    cb_buf text, thought;
} view;

/* Points p's receivers at v. */
void view_begin(view *v, const cli_opts *o, gen_params *p);
/* Closes what is open on the screen; a newline at the end, if `always` or none was printed last. */
void view_end(view *v, bool always);
void view_fini(view *v);
#endif
