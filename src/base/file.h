/* file.h: read-only maps, whole-file reads with a bound, and files and folders that appear whole or not at all. */
#ifndef CB_BASE_FILE_H
#define CB_BASE_FILE_H
#include "base/err.h"
#include <stdio.h>

typedef struct cb_map {
    const uint8_t *data; /* NULL for an empty file */
    size_t n;
} cb_map;
/* Maps dir/name (dir may be NULL) read-only. CB_ENOTFOUND, CB_EIO; a folder or device is CB_EIO. */
int cb_map_open(cb_map *m, const char *dir, const char *name, cb_err *err);
void cb_map_close(cb_map *m);

/* Reads a regular file of at most max bytes; *data is NUL-terminated and freed with cb_free. CB_ENOTFOUND when absent. */
int cb_file_read(const char *dir, const char *name, size_t max, char **data, size_t *n, cb_err *err);
bool cb_file_exists(const char *dir, const char *name);

/* A file written beside its final name and renamed over it by commit; abort (or a crash) leaves the old one. What a killed
 * run left behind is removed by the next open of the same path. */
typedef struct cb_outfile {
    FILE *f;
    char *path, *tmp;
} cb_outfile;
int cb_outfile_open(cb_outfile *o, const char *path, cb_err *err);
/* Flushes, fsyncs and renames; on any write error (disk full) reports it and removes the temporary. */
int cb_outfile_commit(cb_outfile *o, cb_err *err);
void cb_outfile_abort(cb_outfile *o);

/* A folder that appears whole: make `tmp` beside `path`, fill it with files, then commit renames it. */
typedef struct cb_outdir {
    char *path, *tmp;
    int fd; /* of tmp, locked while we live; valid while tmp is set */
} cb_outdir;
/* `path` must not exist or must be an empty folder: CB_EUSAGE otherwise. Leftovers of killed runs for the same path are
 * removed: folders of our naming that nobody holds locked and whose process is gone. */
int cb_outdir_open(cb_outdir *o, const char *path, cb_err *err);
int cb_outdir_commit(cb_outdir *o, cb_err *err);
void cb_outdir_abort(cb_outdir *o);
#endif
