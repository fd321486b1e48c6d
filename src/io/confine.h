/* confine.h: files of a checkpoint that lies in a Hugging Face cache are links into the repository's blobs folder. A link
 * that leads out of the repository's folder is not part of the checkpoint and is refused. */
#ifndef CB_IO_CONFINE_H
#define CB_IO_CONFINE_H
#include "base/err.h"

/* 0 when dir (links followed) is not inside a models--* folder, when dir/name is missing, or when it resolves inside that
 * folder; else CB_EFORMAT naming the link and where it leads. */
int cb_confine_check(const char *dir, const char *name, cb_err *err);
/* The same for every entry of dir. */
int cb_confine_check_all(const char *dir, cb_err *err);
#endif
