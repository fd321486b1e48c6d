/* outfiles.h: small text files of a checkpoint being written. */
#ifndef CB_RUN_OUTFILES_H
#define CB_RUN_OUTFILES_H
#include "base/file.h"
#include <jansson.h>

/* dir/name with n bytes; whole or not at all. CB_EIO, CB_EUSAGE (path too long). */
int cb_out_text(const char *dir, const char *name, const void *text, size_t n, cb_err *err);
/* dir/name as JSON with sorted keys, `indent` spaces deep; numbers keep their value. */
int cb_out_json(const char *dir, const char *name, const json_t *j, int indent, cb_err *err);
#endif
