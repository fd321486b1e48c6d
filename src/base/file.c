#include "base/file.h"
#include "base/mem.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int join(char *out, size_t cap, const char *dir, const char *name, cb_err *err)
{
    int n = dir ? snprintf(out, cap, "%s/%s", dir, name) : snprintf(out, cap, "%s", name);
    if (n < 0 || (size_t)n >= cap) return cb_fail(err, CB_EUSAGE, "path too long: %.100s...", name);
    return 0;
}

static int os_fail(cb_err *err, const char *path, const char *verb)
{
    int e = errno;
    return cb_fail(err, e == ENOENT || e == ENOTDIR ? CB_ENOTFOUND : e == ENOMEM ? CB_ENOMEM : CB_EIO, "%s: cannot %s: %s",
                   path, verb, strerror(e));
}

static int open_regular(const char *path, int *fd, size_t *n, cb_err *err)
{
    struct stat st;
    if ((*fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)) < 0) return os_fail(err, path, "open");
    int rc = 0;
    if (fstat(*fd, &st) < 0) rc = os_fail(err, path, "stat");
    else if (!S_ISREG(st.st_mode)) rc = cb_fail(err, CB_EIO, "%s: not a regular file", path);
    if (rc < 0) {
        close(*fd);
        *fd = -1;
        return rc;
    }
    *n = (size_t)st.st_size;
    return 0;
}

int cb_map_open(cb_map *m, const char *dir, const char *name, cb_err *err)
{
    char path[4096];
    int fd, rc;
    *m = (cb_map){0};
    if ((rc = join(path, sizeof path, dir, name, err)) < 0 || (rc = open_regular(path, &fd, &m->n, err)) < 0) return rc;
    if (m->n) {
        void *p = mmap(NULL, m->n, PROT_READ, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED) {
            rc = os_fail(err, path, "map");
            *m = (cb_map){0};
        } else
            m->data = p;
    }
    close(fd);
    return rc;
}

void cb_map_close(cb_map *m)
{
    if (m->data) munmap((void *)(uintptr_t)m->data, m->n);
    *m = (cb_map){0};
}

int cb_file_read(const char *dir, const char *name, size_t max, char **data, size_t *n, cb_err *err)
{
    char path[4096];
    int fd, rc;
    size_t size, got = 0;
    *data = NULL;
    *n = 0;
    if ((rc = join(path, sizeof path, dir, name, err)) < 0 || (rc = open_regular(path, &fd, &size, err)) < 0) return rc;
    char *d = NULL;
    if (size > max) rc = cb_fail(err, CB_EFORMAT, "%s: %zu bytes, the limit is %zu", path, size, max);
    else if (!(d = cb_alloc(size + 1))) rc = cb_fail(err, CB_ENOMEM, "%s: no memory for %zu bytes", path, size);
    while (!rc && got < size) {
        ssize_t k = read(fd, d + got, size - got);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) rc = os_fail(err, path, "read");
        else if (!k) break;
        else got += (size_t)k;
    }
    close(fd);
    if (rc < 0) {
        cb_free(d);
        return rc;
    }
    *data = d;
    *n = got;
    return 0;
}

bool cb_file_exists(const char *dir, const char *name)
{
    char path[4096];
    struct stat st;
    return join(path, sizeof path, dir, name, NULL) == 0 && stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

/* ---- whole or not at all ---- */

/* PATH.partial.PID beside PATH. While it is being filled its maker holds a lock on it. One whose process is gone and that can
 * be locked (it is not held on another machine) was left by a run that was killed. */
static const char PARTIAL[] = ".partial.";

static char *tmp_name(const char *path)
{
    cb_buf b;
    cb_buf_init(&b, 0);
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    cb_buf_put(&b, path, n);
    cb_buf_printf(&b, "%s%ld", PARTIAL, (long)getpid());
    return cb_buf_take(&b);
}

/* Removes a file, or a flat folder of files, the only kinds we make. */
static void remove_made(int dir, const char *name)
{
    if (unlinkat(dir, name, 0) == 0) return;
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d) {
        if (fd >= 0) close(fd);
        return;
    }
    for (struct dirent *e; (e = readdir(d));)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..")) unlinkat(fd, e->d_name, 0);
    closedir(d);
    unlinkat(dir, name, AT_REMOVEDIR);
}

/* Removes what killed runs left of `tmp`, a name that tmp_name made, under any process number. */
static void sweep(const char *tmp)
{
    const char *slash = strrchr(tmp, '/'), *base = slash ? slash + 1 : tmp;
    size_t n_prefix = (size_t)(strrchr(base, '.') + 1 - base);
    char *parent = slash ? cb_strndup(tmp, (size_t)(slash - tmp) + 1) : NULL;
    DIR *d = slash && !parent ? NULL : opendir(parent ? parent : ".");
    cb_free(parent);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d));) {
        char *end;
        if (strncmp(e->d_name, base, n_prefix)) continue;
        long pid = strtol(e->d_name + n_prefix, &end, 10);
        if (*end || pid <= 0 || (pid != getpid() && (kill((pid_t)pid, 0) == 0 || errno != ESRCH))) continue;
        int fd = openat(dirfd(d), e->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (fd < 0) continue;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) remove_made(dirfd(d), e->d_name);
        close(fd);
    }
    closedir(d);
}

int cb_outfile_open(cb_outfile *o, const char *path, cb_err *err)
{
    *o = (cb_outfile){.path = cb_strdup(path), .tmp = tmp_name(path)};
    int rc = 0;
    if (!o->path || !o->tmp) rc = cb_fail(err, CB_ENOMEM, "%s: no memory", path);
    else {
        sweep(o->tmp);
        if (!(o->f = fopen(o->tmp, "wbe"))) rc = os_fail(err, o->tmp, "create");
        else flock(fileno(o->f), LOCK_EX | LOCK_NB); /* where locks do not work, nothing is swept either */
    }
    if (rc == CB_ENOTFOUND) rc = err ? (err->code = CB_EIO) : CB_EIO; /* the folder to write into is missing */
    if (rc < 0) cb_outfile_abort(o);
    return rc;
}

int cb_outfile_commit(cb_outfile *o, cb_err *err)
{
    int rc = 0;
    bool bad = ferror(o->f) != 0;
    if (fflush(o->f) != 0 || fsync(fileno(o->f)) != 0) rc = os_fail(err, o->path, "write");
    else if (bad) rc = cb_fail(err, CB_EIO, "%s: an earlier write failed", o->path);
    if (fclose(o->f) != 0 && !rc) rc = os_fail(err, o->path, "write");
    o->f = NULL;
    if (!rc && rename(o->tmp, o->path) != 0) rc = os_fail(err, o->path, "rename into place");
    if (!rc) {
        cb_free(o->tmp);
        o->tmp = NULL;
    }
    cb_outfile_abort(o);
    return rc;
}

void cb_outfile_abort(cb_outfile *o)
{
    if (o->f) fclose(o->f);
    if (o->tmp) unlink(o->tmp);
    cb_free(o->tmp);
    cb_free(o->path);
    *o = (cb_outfile){0};
}

static bool is_empty_dir(const char *path)
{
    DIR *d = opendir(path);
    if (!d) return false;
    bool empty = true;
    for (struct dirent *e; (e = readdir(d));)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..")) empty = false;
    closedir(d);
    return empty;
}

int cb_outdir_open(cb_outdir *o, const char *path, cb_err *err)
{
    struct stat st;
    *o = (cb_outdir){0};
    if (!*path) return cb_fail(err, CB_EUSAGE, "the folder to write has no name");
    if (lstat(path, &st) == 0 && !is_empty_dir(path))
        return cb_fail(err, CB_EUSAGE, "%s: exists already; name a new folder or remove it first", path);
    *o = (cb_outdir){.path = cb_strdup(path), .tmp = tmp_name(path), .fd = -1};
    int rc = 0;
    if (!o->path || !o->tmp) rc = cb_fail(err, CB_ENOMEM, "%s: no memory", path);
    else {
        size_t n = strlen(o->path);
        while (n > 1 && o->path[n - 1] == '/') o->path[--n] = 0;
        sweep(o->tmp);
        if (mkdir(o->tmp, 0777) != 0) rc = os_fail(err, o->tmp, "create folder");
        else if ((o->fd = open(o->tmp, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) >= 0) flock(o->fd, LOCK_EX | LOCK_NB);
        if (rc == CB_ENOTFOUND) rc = err ? (err->code = CB_EIO) : CB_EIO;
    }
    if (rc < 0) {
        cb_free(o->tmp); /* not ours: never remove what stood there */
        o->tmp = NULL;
        cb_outdir_abort(o);
    }
    return rc;
}

int cb_outdir_commit(cb_outdir *o, cb_err *err)
{
    int rc = 0;
    if (o->fd >= 0) fsync(o->fd);
    /* rename() replaces an empty folder, and fails if someone filled it meanwhile */
    if (rename(o->tmp, o->path) != 0) rc = os_fail(err, o->path, "rename into place");
    else {
        if (o->fd >= 0) close(o->fd);
        cb_free(o->tmp);
        o->tmp = NULL;
    }
    cb_outdir_abort(o);
    return rc;
}

void cb_outdir_abort(cb_outdir *o)
{
    if (o->tmp) {
        remove_made(AT_FDCWD, o->tmp);
        if (o->fd >= 0) close(o->fd);
    }
    cb_free(o->tmp);
    cb_free(o->path);
    *o = (cb_outdir){0};
}
