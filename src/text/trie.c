#include "text/tok.h"
#include <stdlib.h>
#include <string.h>

typedef struct build {
    const cb_trie_entry *e;
    cb_trie *t;
    uint32_t cap;
    bool failed;
} build;

/* Where entries are equal the earlier one must stand first; their id order carries that (see cb_trie_build). */
static int by_text(const void *a, const void *b)
{
    const cb_trie_entry *x = a, *y = b;
    size_t n = x->n < y->n ? x->n : y->n;
    int c = n ? memcmp(x->s, y->s, n) : 0;
    return c ? c : x->n < y->n ? -1 : x->n > y->n;
}

static uint32_t new_nodes(build *b, uint32_t n)
{
    if (b->t->n_nodes + n > b->cap) {
        uint32_t cap = (b->t->n_nodes + n) * 2;
        cb_trie_node *p = cap < (1u << 28) ? cb_realloc(b->t->nodes, cap * sizeof *p) : NULL;
        if (!p) return b->failed = true, 0;
        b->t->nodes = p;
        b->cap = cap;
    }
    uint32_t at = b->t->n_nodes;
    memset(b->t->nodes + at, 0, n * sizeof(cb_trie_node));
    b->t->n_nodes += n;
    return at;
}

/* A group of sorted entries that share their first `depth` bytes and belong under `node`. */
typedef struct task {
    size_t lo, hi;
    uint32_t node, depth;
} task;

static void expand(build *b, task k, task *stack, size_t *n_stack)
{
    const cb_trie_entry *e = b->e;
    b->t->nodes[k.node].id = -1;
    while (k.lo < k.hi && e[k.lo].n == k.depth) {
        if (b->t->nodes[k.node].id < 0) b->t->nodes[k.node].id = e[k.lo].id;
        k.lo++;
    }
    uint16_t n = 0;
    for (size_t i = k.lo; i < k.hi; i++)
        if (i == k.lo || e[i].s[k.depth] != e[i - 1].s[k.depth]) n++;
    if (!n) return;
    uint32_t first = new_nodes(b, n);
    if (b->failed) return;
    b->t->nodes[k.node].first = first;
    b->t->nodes[k.node].n = n;
    for (size_t i = k.lo, j; i < k.hi; i = j) {
        for (j = i + 1; j < k.hi && e[j].s[k.depth] == e[i].s[k.depth];) j++;
        b->t->nodes[first].byte = (uint8_t)e[i].s[k.depth];
        stack[(*n_stack)++] = (task){i, j, first++, k.depth + 1};
    }
}

int cb_trie_build(cb_trie *t, cb_trie_entry *e, size_t n, cb_err *err)
{
    *t = (cb_trie){0};
    size_t kept = 0, longest = 0;
    for (size_t i = 0; i < n; i++) {
        if (!e[i].n) continue;
        if (e[i].n > longest) longest = e[i].n;
        e[kept++] = e[i];
    }
    if (!kept) return 0;
    /* A merge sort keeps equal texts in order; qsort would not. */
    cb_trie_entry *tmp = cb_alloc_array(kept, sizeof *tmp);
    task *stack = cb_alloc_array(kept + 256 + longest, sizeof *stack);
    build b = {e, t, 0, false};
    if (!tmp || !stack) b.failed = true;
    for (size_t w = 1; !b.failed && w < kept; w *= 2) {
        for (size_t lo = 0; lo < kept; lo += 2 * w) {
            size_t mid = lo + w < kept ? lo + w : kept, hi = lo + 2 * w < kept ? lo + 2 * w : kept, i = lo, j = mid, o = lo;
            while (i < mid || j < hi) tmp[o++] = j >= hi || (i < mid && by_text(e + i, e + j) <= 0) ? e[i++] : e[j++];
        }
        memcpy(e, tmp, kept * sizeof *e);
    }
    size_t n_stack = 0;
    if (!b.failed) new_nodes(&b, 1);
    if (!b.failed) stack[n_stack++] = (task){0, kept, 0, 0};
    while (n_stack && !b.failed) {
        task k = stack[--n_stack];
        expand(&b, k, stack, &n_stack);
    }
    cb_free(tmp);
    cb_free(stack);
    if (b.failed) {
        cb_trie_fini(t);
        return cb_fail(err, CB_ENOMEM, "no memory for %zu added tokens", n);
    }
    const cb_trie_node *root = t->nodes;
    for (uint32_t i = 0; i < root->n; i++) t->root[t->nodes[root->first + i].byte] = root->first + i;
    return 0;
}

void cb_trie_fini(cb_trie *t)
{
    cb_free(t->nodes);
    *t = (cb_trie){0};
}

int32_t cb_trie_match(const cb_trie *t, const char *s, size_t n, size_t *len)
{
    int32_t best = -1;
    uint32_t at = n ? t->root[(uint8_t)s[0]] : 0;
    for (size_t i = 1; at; i++) {
        const cb_trie_node *k = t->nodes + at;
        if (k->id >= 0) best = k->id, *len = i;
        if (i >= n) break;
        uint8_t c = (uint8_t)s[i];
        uint32_t lo = k->first, hi = k->first + k->n;
        while (lo < hi) {
            uint32_t mid = (lo + hi) / 2;
            if (t->nodes[mid].byte < c) lo = mid + 1;
            else hi = mid;
        }
        at = lo < k->first + k->n && t->nodes[lo].byte == c ? lo : 0;
    }
    return best;
}
