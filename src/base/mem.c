#include "base/mem.h"
#include "base/env.h"
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static atomic_uint_fast64_t count;
static atomic_int_fast64_t fail_in; /* > 0: counts down to the allocation that fails */
static atomic_bool armed_from_env;

uint64_t cb_alloc_count(void) { return atomic_load(&count); }
void cb_alloc_fail_at(uint64_t n) { atomic_store(&fail_in, (int_fast64_t)n); }

static bool allowed(void)
{
    if (!atomic_exchange(&armed_from_env, true)) {
        uint64_t n = cb_env_fault("alloc");
        if (n) cb_alloc_fail_at(n);
    }
    if (atomic_load(&fail_in) > 0 && atomic_fetch_sub(&fail_in, 1) == 1) return false;
    atomic_fetch_add(&count, 1);
    return true;
}

void *cb_alloc(size_t n) { return allowed() ? calloc(1, n ? n : 1) : NULL; }

void *cb_alloc_array(size_t n, size_t size)
{
    size_t all;
    return __builtin_mul_overflow(n, size, &all) ? NULL : cb_alloc(all);
}

void *cb_realloc(void *p, size_t n) { return allowed() ? realloc(p, n ? n : 1) : NULL; }
void cb_free(void *p) { free(p); }

/* Through calloc, because a large block of it is fresh pages that are zero already and cost nothing until they are used. What
 * calloc gave stands in front of the aligned address. */
void *cb_alloc_aligned(size_t n)
{
    if (n > SIZE_MAX - 192 || !allowed()) return NULL;
    uint8_t *base = calloc(1, n + 192);
    if (!base) return NULL;
    uint8_t *p = base + (64 - (uintptr_t)base % 64);
    if (p - base < (ptrdiff_t)sizeof base) p += 64;
    memcpy(p - sizeof base, &base, sizeof base);
    return p;
}

void cb_free_aligned(void *p)
{
    void *base = NULL;
    if (p) memcpy(&base, (uint8_t *)p - sizeof base, sizeof base);
    free(base);
}

char *cb_strndup(const char *s, size_t n)
{
    char *d = n < SIZE_MAX ? cb_alloc(n + 1) : NULL;
    if (d) memcpy(d, s, n);
    return d;
}

char *cb_strdup(const char *s) { return cb_strndup(s, strlen(s)); }

/* ---- arena ---- */

enum { ARENA_CHUNK = 64 * 1024 };
struct cb_arena_chunk {
    cb_arena_chunk *next;
    size_t n, cap;
    _Alignas(16) char data[];
};

void cb_arena_init(cb_arena *a, size_t limit) { *a = (cb_arena){.limit = limit}; }

void cb_arena_fini(cb_arena *a)
{
    for (cb_arena_chunk *c = a->chunks, *next; c; c = next) {
        next = c->next;
        cb_free(c);
    }
    *a = (cb_arena){0};
}

void cb_arena_reset(cb_arena *a)
{
    size_t limit = a->limit;
    cb_arena_chunk *keep = a->chunks;
    if (keep) {
        a->chunks = keep->next;
        cb_arena_fini(a);
        memset(keep->data, 0, keep->n);
        keep->n = 0;
        keep->next = NULL;
    }
    *a = (cb_arena){.chunks = keep, .limit = limit};
}

void *cb_arena_get(cb_arena *a, size_t n)
{
    if (a->failed || n > SIZE_MAX - 64) return a->failed = true, NULL;
    n = (n + 15) & ~(size_t)15;
    if (a->limit && (n > a->limit || a->used > a->limit - n)) return a->failed = true, NULL;
    cb_arena_chunk *c = a->chunks;
    if (!c || c->cap - c->n < n) {
        size_t cap = n > ARENA_CHUNK ? n : ARENA_CHUNK;
        if (cap > SIZE_MAX - sizeof *c || !(c = cb_alloc(sizeof *c + cap))) return a->failed = true, NULL;
        c->cap = cap;
        c->next = a->chunks;
        a->chunks = c;
    }
    void *p = c->data + c->n;
    c->n += n;
    a->used += n;
    return p;
}

char *cb_arena_strndup(cb_arena *a, const char *s, size_t n)
{
    char *d = n < SIZE_MAX ? cb_arena_get(a, n + 1) : NULL;
    if (d && n) memcpy(d, s, n);
    return d;
}

/* ---- growable bytes ---- */

void cb_buf_init(cb_buf *b, size_t limit) { *b = (cb_buf){.limit = limit}; }

void cb_buf_fini(cb_buf *b)
{
    cb_free(b->data);
    *b = (cb_buf){0};
}

static bool reserve(cb_buf *b, size_t more)
{
    size_t need;
    if (b->failed || __builtin_add_overflow(b->n, more, &need) || need > SIZE_MAX / 2 || (b->limit && need > b->limit))
        return b->failed = true, false;
    if (need + 1 > b->cap) {
        size_t cap = b->cap * 2 > need + 1 ? b->cap * 2 : need + 1 + 32;
        char *d = cb_realloc(b->data, cap);
        if (!d) return b->failed = true, false;
        b->data = d;
        b->cap = cap;
    }
    return true;
}

void cb_buf_put(cb_buf *b, const void *p, size_t n)
{
    if (!reserve(b, n)) return;
    if (n) memcpy(b->data + b->n, p, n);
    b->n += n;
    b->data[b->n] = 0;
}

void cb_buf_puts(cb_buf *b, const char *s) { cb_buf_put(b, s, strlen(s)); }
void cb_buf_putc(cb_buf *b, char c) { cb_buf_put(b, &c, 1); }

void cb_buf_printf(cb_buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0 || !reserve(b, (size_t)n)) {
        b->failed = true;
        return;
    }
    va_start(ap, fmt);
    vsnprintf(b->data + b->n, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->n += (size_t)n;
}

char *cb_buf_take(cb_buf *b)
{
    if (!reserve(b, 0)) {
        cb_buf_fini(b);
        return NULL;
    }
    char *d = b->data;
    d[b->n] = 0;
    *b = (cb_buf){0};
    return d;
}
