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
    if (*start == '*') know(b, cb_arena_strndup(&b->plan->arena, start + 1, strlen(start + 1)), PB_KNOWN_END);
    else know(b, pb_full_name(b, start), PB_KNOWN_START);
}

void pb_was_read(cb_builder *b, const char *name) { know(b, pb_full_name(b, name), PB_KNOWN_READ); }

static const pb_known *find_known(const cb_builder *b, const char *name)
{
    size_t n = strlen(name);
    for (int i = 0; i < b->n_known; i++) {
        const pb_known *s = &b->known[i];
        size_t k = strlen(s->name);
        if (k > n) continue;
        if (s->kind == PB_KNOWN_END ? !strcmp(name + n - k, s->name) : !strncmp(name, s->name, k) && (s->kind == PB_KNOWN_START || k == n)) return s;
    }
    return NULL;
}

static int by_string(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

/* Vectors are read under their full names, matrices under a path with these parts, stacked ones perhaps under the bare path. */
static bool is_read(const char *const *names, size_t n, const char *name)
{
    static const char *const parts[] = {".weight", ".scales", ".biases", ".global_scale"};
    char path[2 * PB_MAX_NAME];
    const char *p = path;
    size_t len = strlen(name);
    if (bsearch(&name, names, n, sizeof *names, by_string)) return true;
    if (len >= sizeof path) return false;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        size_t k = strlen(parts[i]);
        if (len <= k || strcmp(name + len - k, parts[i])) continue;
        memcpy(path, name, len - k);
        path[len - k] = 0;
        return bsearch(&p, names, n, sizeof *names, by_string) != NULL;
    }
    return false;
}

void pb_check_leftovers(cb_builder *b)
{
    cb_plan *p = b->plan;
    const cb_tensor *first = NULL;
    int n_unread = 0, n = p->n_weights;
    const char **names = cb_alloc_array((size_t)(n ? n : 1), sizeof *names);
    if (!names) {
        pb_fail(b, CB_ENOMEM, "no memory for %d names", n);
        return;
    }
    for (int i = 0; i < n; i++) names[i] = p->weights[i].name;
    qsort(names, (size_t)n, sizeof *names, by_string);
    for (int i = 0; i < cb_weights_count(b->weights); i++) {
        const cb_tensor *t = cb_weights_at(b->weights, i);
        if (is_read(names, (size_t)n, t->name)) continue;
        const pb_known *k = find_known(b, t->name);
        if (!k) {
            if (!n_unread++) first = t;
        } else if (k->kind != PB_KNOWN_READ) {
            p->n_skipped++;
            p->skipped_bytes += t->bytes;
        }
    }
    cb_free(names);
    if (n_unread == 1) pb_fail(b, CB_EFORMAT, "%s: tensor %.300s has no place in the %s network", first->file, first->name, p->family);
    else if (n_unread)
        pb_fail(b, CB_EFORMAT, "%s: tensor %.300s and %d more have no place in the %s network", first->file, first->name, n_unread - 1, p->family);
}
