#include "run/outfiles.h"
#include <stdlib.h>
#include <string.h>

int cb_out_text(const char *dir, const char *name, const void *text, size_t n, cb_err *err)
{
    char path[4096];
    cb_outfile f;
    int k = snprintf(path, sizeof path, "%s/%s", dir, name);
    if (k < 0 || (size_t)k >= sizeof path) return cb_fail(err, CB_EUSAGE, "%s: path too long", dir);
    int rc = cb_outfile_open(&f, path, err);
    if (rc < 0) return rc;
    if (n) fwrite(text, 1, n, f.f); /* commit reports what went wrong */
    return cb_outfile_commit(&f, err);
}

/* 15 digits print 1e-06 as people write it; where a number needs 17, all get them. */
static char *dump(const json_t *j, size_t flags)
{
    char *text = json_dumps(j, flags | JSON_REAL_PRECISION(15));
    json_t *back = text ? json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL) : NULL;
    if (back && !json_equal(j, back)) {
        free(text);
        text = json_dumps(j, flags);
    }
    json_decref(back);
    return text;
}

int cb_out_json(const char *dir, const char *name, const json_t *j, int indent, cb_err *err)
{
    char *text = dump(j, JSON_INDENT((size_t)indent) | JSON_SORT_KEYS);
    if (!text) return cb_fail(err, CB_ENOMEM, "%s: no memory", name);
    size_t n = strlen(text);
    text[n] = '\n'; /* in place of the NUL, which nobody needs now */
    int rc = cb_out_text(dir, name, text, n + 1, err);
    free(text);
    return rc;
}
