/* weights.c: all tensors of a checkpoint directory in one table sorted by name. Which files belong to the checkpoint: those
 * the index names, else every model*.safetensors. */
#include "io/weights.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "io/confine.h"
#include "io/safetensors.h"
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char INDEX[] = "model.safetensors.index.json";
enum { MAX_INDEX = 256 << 20, MAX_SHARDS = 10000, MAX_FILE_NAME = 255 };

struct cb_weights {
    cb_st *files;
    int n_files;
    const cb_tensor **sorted;
    int n_tensors;
    uint64_t bytes;
};

/* ---- which files ---- */

typedef struct names {
    char **v;
    int n, cap;
} names;

static void names_free(names *l)
{
    for (int i = 0; i < l->n; i++) cb_free(l->v[i]);
    cb_free(l->v);
    *l = (names){0};
}

static int names_add(names *l, const char *s, const char *dir, cb_err *err)
{
    if (l->n == MAX_SHARDS) return cb_fail(err, CB_EFORMAT, "%s: more than %d weight files", dir, MAX_SHARDS);
    if (l->n == l->cap) {
        int cap = l->cap ? 2 * l->cap : 16;
        char **v = cb_realloc(l->v, (size_t)cap * sizeof *v);
        if (!v) return cb_fail(err, CB_ENOMEM, "%s: no memory", dir);
        l->v = v;
        l->cap = cap;
    }
    if (!(l->v[l->n] = cb_strdup(s))) return cb_fail(err, CB_ENOMEM, "%s: no memory", dir);
    l->n++;
    return 0;
}

static int by_string(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static bool ends_in(const char *s, const char *tail)
{
    size_t n = strlen(s), k = strlen(tail);
    return n >= k && !strcmp(s + n - k, tail);
}

/* "model-00001-of-00003.safetensors" promises three files; *of is 0 for a name without such a promise. */
static void shard_numbers(const char *name, int *i, int *of)
{
    int end = 0;
    if (sscanf(name, "model-%5d-of-%5d%n", i, of, &end) != 2 || strcmp(name + end, ".safetensors")) *i = *of = 0;
}

static int list_dir(const char *dir, names *out, cb_err *err)
{
    DIR *d = opendir(dir);
    if (!d) {
        int e = errno;
        return cb_fail(err, e == ENOENT || e == ENOTDIR ? CB_ENOTFOUND : CB_EIO, "%s: cannot open folder: %s", dir, strerror(e));
    }
    int rc = 0, promised = 0, numbered = 0;
    for (struct dirent *e; !rc && (e = readdir(d));) {
        int i, of;
        if (strncmp(e->d_name, "model", 5) || !ends_in(e->d_name, ".safetensors")) continue;
        rc = names_add(out, e->d_name, dir, err);
        shard_numbers(e->d_name, &i, &of);
        if (of) numbered++;
        if (of > promised) promised = of;
    }
    closedir(d);
    if (rc < 0) return rc;
    if (!out->n) return cb_fail(err, CB_EFORMAT, "%s: no model*.safetensors", dir);
    if (numbered != promised)
        return cb_fail(err, CB_EFORMAT, "%s: %d weight files of %d are there", dir, numbered, promised);
    qsort(out->v, (size_t)out->n, sizeof *out->v, by_string);
    return 0;
}

/* Files of the weight_map, each once. */
static int list_index(const json_t *map, names *out, cb_err *err)
{
    size_t n = json_object_size(map), k = 0;
    const char **files = cb_alloc_array(n, sizeof *files), *key;
    json_t *v;
    int rc = 0;
    if (!files) return cb_fail(err, CB_ENOMEM, "%s: no memory for %zu names", INDEX, n);
    json_object_foreach((json_t *)(uintptr_t)map, key, v)
    {
        const char *f = json_string_value(v);
        if (!f || !ends_in(f, ".safetensors") || strchr(f, '/') || strlen(f) > MAX_FILE_NAME) {
            rc = cb_fail(err, CB_EFORMAT, "%s: weight_map.%.200s is not the name of a .safetensors file", INDEX, key);
            break;
        }
        files[k++] = f;
    }
    if (!rc) qsort(files, k, sizeof *files, by_string);
    for (size_t i = 0; !rc && i < k; i++)
        if (!i || strcmp(files[i], files[i - 1])) rc = names_add(out, files[i], INDEX, err);
    cb_free(files);
    if (!rc && !out->n) rc = cb_fail(err, CB_EFORMAT, "%s: weight_map is empty", INDEX);
    return rc;
}

/* ---- table ---- */

static int by_name(const void *a, const void *b)
{
    const cb_tensor *x = *(const cb_tensor *const *)a, *y = *(const cb_tensor *const *)b;
    return strcmp(x->name, y->name);
}

static int build_table(cb_weights *w, cb_err *err)
{
    size_t n = 0;
    for (int i = 0; i < w->n_files; i++) n += (size_t)w->files[i].n_tensors;
    if (n > INT32_MAX) return cb_fail(err, CB_EFORMAT, "%zu tensors are too many", n);
    if (!(w->sorted = cb_alloc_array(n, sizeof *w->sorted))) return cb_fail(err, CB_ENOMEM, "no memory for %zu tensors", n);
    for (int i = 0; i < w->n_files; i++)
        for (int k = 0; k < w->files[i].n_tensors; k++) w->sorted[w->n_tensors++] = &w->files[i].tensors[k];
    qsort(w->sorted, n, sizeof *w->sorted, by_name);
    for (int i = 1; i < w->n_tensors; i++)
        if (!strcmp(w->sorted[i - 1]->name, w->sorted[i]->name))
            return cb_fail(err, CB_EFORMAT, "%s: tensor %s stands in %s too", w->sorted[i]->file, w->sorted[i]->name,
                           w->sorted[i - 1]->file);
    return 0;
}

static int open_files(cb_weights *w, const char *dir, const names *l, cb_err *err)
{
    if (!(w->files = cb_alloc_array((size_t)l->n, sizeof *w->files))) return cb_fail(err, CB_ENOMEM, "%s: no memory", dir);
    for (int i = 0; i < l->n; i++) {
        int rc = cb_confine_check(dir, l->v[i], err);
        if (rc < 0) return rc;
        rc = cb_st_open(&w->files[i], dir, l->v[i], err);
        if (rc == CB_ENOTFOUND) /* the folder is there: a missing shard is a damaged checkpoint, not a missing model */
            return cb_fail(err, CB_EFORMAT, "%s: missing weight file %s", dir, l->v[i]);
        if (rc < 0) return rc;
        w->n_files++;
        w->bytes += w->files[i].map.n;
    }
    return build_table(w, err);
}

static int check_index(const cb_weights *w, const json_t *map, cb_err *err)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)map, key, v)
    {
        const cb_tensor *t = cb_weights_find(w, key);
        if (!t)
            return cb_fail(err, CB_EFORMAT, "%s: tensor %.200s is not in %s", INDEX, key, json_string_value(v));
        if (strcmp(t->file, json_string_value(v)))
            return cb_fail(err, CB_EFORMAT, "%s: tensor %.200s is said to be in %s, but is in %s", INDEX, key,
                           json_string_value(v), t->file);
    }
    return 0;
}

int cb_weights_open(const char *dir, cb_weights **out, cb_err *err)
{
    json_t *index = NULL;
    const json_t *map = NULL;
    names l = {0};
    *out = NULL;
    cb_weights *w = cb_alloc(sizeof *w);
    if (!w) return cb_fail(err, CB_ENOMEM, "%s: no memory", dir);
    int rc = cb_json_file(dir, INDEX, MAX_INDEX, &index, err);
    if (!rc) {
        map = json_object_get(index, "weight_map");
        rc = json_is_object(map) ? list_index(map, &l, err) : cb_fail(err, CB_EFORMAT, "%s: weight_map is not an object", INDEX);
    } else if (rc == CB_ENOTFOUND)
        rc = list_dir(dir, &l, err);
    if (!rc) rc = open_files(w, dir, &l, err);
    if (!rc && map) rc = check_index(w, map, err);
    json_decref(index);
    names_free(&l);
    if (rc < 0) {
        cb_weights_close(w);
        return rc;
    }
    if (err) *err = (cb_err){0}; /* a missing index left its text behind */
    *out = w;
    return 0;
}

void cb_weights_close(cb_weights *w)
{
    if (!w) return;
    for (int i = 0; i < w->n_files; i++) cb_st_close(&w->files[i]);
    cb_free(w->files);
    cb_free(w->sorted);
    cb_free(w);
}

int cb_weights_count(const cb_weights *w) { return w->n_tensors; }
const cb_tensor *cb_weights_at(const cb_weights *w, int i) { return w->sorted[i]; }
uint64_t cb_weights_bytes(const cb_weights *w) { return w->bytes; }
int cb_weights_n_files(const cb_weights *w) { return w->n_files; }

const cb_tensor *cb_weights_find(const cb_weights *w, const char *name)
{
    const cb_tensor key = {.name = name}, *k = &key;
    if (!w->n_tensors) return NULL; /* bsearch wants an array */
    const cb_tensor **p = bsearch(&k, w->sorted, (size_t)w->n_tensors, sizeof *w->sorted, by_name);
    return p ? *p : NULL;
}
