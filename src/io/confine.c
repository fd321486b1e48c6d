/* confine.c: see confine.h. The check looks at the names before the file is opened; it guards against a prepared cache, not
 * against someone who changes the cache at the same moment. */
#include "io/confine.h"
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Length of the part of path (absolute, resolved) that ends with its models--* component; 0: there is none. The last
 * such component with "snapshots" after it counts. */
static size_t repo_length(const char *path)
{
    size_t best = 0;
    for (const char *p = path; (p = strstr(p, "/models--")); p++) {
        const char *end = strchr(p + 1, '/');
        if (end && (!strncmp(end, "/snapshots/", 11) || !strcmp(end, "/snapshots"))) best = (size_t)(end - path);
    }
    return best;
}

static int check_at(const char *repo, size_t n_repo, const char *dir, const char *name, cb_err *err)
{
    char path[PATH_MAX], real[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s/%s", dir, name);
    if (n < 0 || (size_t)n >= sizeof path) return cb_fail(err, CB_EUSAGE, "path too long: %.100s...", dir);
    if (!realpath(path, real)) {
        if (errno == ENOENT || errno == ENOTDIR) return 0; /* missing: whoever needs it says so */
        return cb_fail(err, CB_EIO, "%s: cannot resolve: %s", path, strerror(errno));
    }
    if (!strncmp(real, repo, n_repo) && real[n_repo] == '/') return 0;
    return cb_fail(err, CB_EFORMAT, "%.200s: its link leaves the repository's folder: %.200s", path, real);
}

int cb_confine_check(const char *dir, const char *name, cb_err *err)
{
    char repo[PATH_MAX];
    if (!realpath(dir, repo)) return 0;
    size_t n = repo_length(repo);
    return n ? check_at(repo, n, dir, name, err) : 0;
}

int cb_confine_check_all(const char *dir, cb_err *err)
{
    char repo[PATH_MAX];
    if (!realpath(dir, repo)) return 0;
    size_t n = repo_length(repo);
    DIR *d = n ? opendir(dir) : NULL;
    int rc = 0;
    if (!d) return 0;
    for (struct dirent *e; !rc && (e = readdir(d));)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..")) rc = check_at(repo, n, dir, e->d_name, err);
    closedir(d);
    return rc;
}
