#include "cli/commands.h"
#include "cli/term.h"

int cmd_import(const cli_opts *o, cb_err *err)
{
    cli_progress progress = { .opts = o };
    int rc = cb_import_gguf(o->args[0], o->args[1], cli_progress_show, &progress, err);
    cli_progress_end(&progress);
    if (rc < 0) return rc;
    describe d;
    char size[32];
    if (describe_dir(o->args[1], &d, NULL) == 0)
        cli_note(o, "%s: %s, %s, %s; try `cambium run %s`", o->args[1], d.model_type, d.quant, cli_bytes(size, d.bytes), o->args[1]);
    return 0;
}
