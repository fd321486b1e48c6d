/* leftovers.c: tensors of the checkpoint that no operation reads. Parts that are known and not run are skipped by name; anything
 * else means that the network recorded is not the one that was trained, and is refused. */
#include "plan/builder_int.h"
#include <stdlib.h>
#include <string.h>

static void know(cb_builder *b, char *name, int kind)
{
    pb_known *k = pb_grow(b, b->known, b->n_known, &b->cap_known, sizeof *k);
    if (!k || !name) return; /* the arena fails stickily */
    b->known = k;
    k[b->n_known].name = name;
    k[b->n_known++].kind = kind;
}

void pb_skip(cb_builder *b, const char *start)
{
    size_t n = strlen(start);
    if (*start == '*') {
        know(b, cb_arena_strndup(&b->plan->arena, start + 1, n - 1), PB_KNOWN_END);
        return;
    }
    CB_ASSERT(n > 0 && start[n - 1] == '.');
    know(b, pb_full_name(b, start), PB_KNOWN_START);
}

void pb_was_read(cb_builder *b, const char *name) { know(b, pb_full_name(b, name), PB_KNOWN_READ); }

/* Names sorted for bsearch; a hostile file has a million of them. */
typedef struct names {
    const char **v;
    size_t n;
} names;

static int by_string(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

static bool has(const names *l, const char *name) { return l->n && bsearch(&name, l->v, l->n, sizeof *l->v, by_string); }

/* Known names of one kind; with those that families read themselves, the weights of the plan. */
static bool gather(const cb_builder *b, int kind, names *out)
{
    const cb_plan *p = b->plan;
    *out = (names){cb_alloc_array((size_t)(p->n_weights + b->n_known + 1), sizeof *out->v), 0};
    if (!out->v) return false;
    for (int i = 0; i < p->n_weights && kind == PB_KNOWN_READ; i++) out->v[out->n++] = p->weights[i].name;
    for (int i = 0; i < b->n_known; i++)
        if ((int)b->known[i].kind == kind) out->v[out->n++] = b->known[i].name;
    qsort(out->v, out->n, sizeof *out->v, by_string);
    return true;
}

/* Vectors are read under their full names, matrices under a path with these parts, stacked ones perhaps under the bare path. */
static bool is_read(const names *l, const char *name)
{
    static const char *const parts[] = {".weight", ".scales", ".biases", ".global_scale"};
    char path[2 * PB_MAX_NAME];
    size_t len = strlen(name);
    if (has(l, name)) return true;
    if (len >= sizeof path) return false;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        size_t k = strlen(parts[i]);
        if (len <= k || strcmp(name + len - k, parts[i])) continue;
        memcpy(path, name, len - k);
        path[len - k] = 0;
        return has(l, path);
    }
    return false;
}

/* Does a start, which ends in a dot, begin the name? Tries every one of the name's own beginnings. Ends are few. */
static bool is_skipped(const names *starts, const names *ends, const char *name)
{
    char path[2 * PB_MAX_NAME];
    size_t len = strlen(name);
    for (size_t i = 0; i < len && i + 1 < sizeof path; i++) {
        path[i] = name[i];
        path[i + 1] = 0;
        if (name[i] == '.' && has(starts, path)) return true;
    }
    for (size_t i = 0; i < ends->n; i++) {
        size_t k = strlen(ends->v[i]);
        if (k <= len && !strcmp(name + len - k, ends->v[i])) return true;
    }
    return false;
}

static void check(cb_builder *b, const names *read, const names *starts, const names *ends)
{
    cb_plan *p = b->plan;
    const cb_tensor *first = NULL;
    int n_unread = 0;
    for (int i = 0; i < cb_weights_count(b->weights); i++) {
        const cb_tensor *t = cb_weights_at(b->weights, i);
        if (is_read(read, t->name)) continue;
        if (is_skipped(starts, ends, t->name)) {
            p->n_skipped++;
            p->skipped_bytes += t->bytes;
        } else if (!n_unread++)
            first = t;
    }
    if (n_unread == 1) pb_fail(b, CB_EFORMAT, "%s: tensor %.300s has no place in the %s network", first->file, first->name, p->family);
    else if (n_unread)
        pb_fail(b, CB_EFORMAT, "%s: tensor %.300s and %d more have no place in the %s network", first->file, first->name, n_unread - 1, p->family);
}

void pb_check_leftovers(cb_builder *b)
{
    names read = {0}, starts = {0}, ends = {0};
    if (gather(b, PB_KNOWN_READ, &read) && gather(b, PB_KNOWN_START, &starts) && gather(b, PB_KNOWN_END, &ends)) check(b, &read, &starts, &ends);
    else pb_fail(b, CB_ENOMEM, "no memory for the names of %d tensors", b->plan->n_weights);
    cb_free(read.v);
    cb_free(starts.v);
    cb_free(ends.v);
}
