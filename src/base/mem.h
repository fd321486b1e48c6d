/* mem.h: allocation with a lifetime. Every allocation of the library goes through cb_alloc/cb_free so that tests can count
 * them and make the n-th one fail (CB_FAULT=alloc:N). An arena fails stickily: check cb_arena_ok() once at the end. */
#ifndef CB_BASE_MEM_H
#define CB_BASE_MEM_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zeroed memory of n bytes (n may be 0), aligned for any type; NULL when there is none. */
void *cb_alloc(size_t n);
/* As calloc: NULL on overflow of count*size. */
void *cb_alloc_array(size_t count, size_t size);
/* Grows or shrinks; new bytes are not zeroed. */
void *cb_realloc(void *p, size_t n);
void cb_free(void *p);
/* Zeroed, aligned to 64 bytes, padded at the end so that a 64-byte vector load at the last element stays inside. */
void *cb_alloc_aligned(size_t n);
void cb_free_aligned(void *p);
/* Copy of n bytes with a NUL after them. */
char *cb_strndup(const char *s, size_t n);
char *cb_strdup(const char *s);
/* Number of successful cb_alloc* and cb_realloc calls so far, all threads. A step must not change it. */
uint64_t cb_alloc_count(void);
/* Makes the n-th allocation from now fail (0: never). Tests only. */
void cb_alloc_fail_at(uint64_t n);

typedef struct cb_arena_chunk cb_arena_chunk;
typedef struct cb_arena {
    cb_arena_chunk *chunks;
    bool failed;
    size_t used; /* bytes handed out */
    size_t limit; /* refuses to grow past this many bytes; 0: none */
} cb_arena;
void cb_arena_init(cb_arena *a, size_t limit);
void cb_arena_fini(cb_arena *a);
/* Forgets everything, a failure too; keeps the newest chunk for reuse. */
void cb_arena_reset(cb_arena *a);
/* Zeroed, 16-byte aligned. NULL after a failure, and from then on always. */
void *cb_arena_get(cb_arena *a, size_t n);
char *cb_arena_strndup(cb_arena *a, const char *s, size_t n);
static inline bool cb_arena_ok(const cb_arena *a) { return !a->failed; }

/* Growable bytes. Sticky failure, as the arena. data is NUL-terminated when not NULL. */
typedef struct cb_buf {
    char *data;
    size_t n, cap;
    bool failed;
    size_t limit; /* refuses to grow past this; 0: none */
} cb_buf;
void cb_buf_init(cb_buf *b, size_t limit);
void cb_buf_fini(cb_buf *b);
void cb_buf_put(cb_buf *b, const void *p, size_t n);
void cb_buf_puts(cb_buf *b, const char *s);
void cb_buf_putc(cb_buf *b, char c);
void cb_buf_printf(cb_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Moves the data to the caller (free with cb_free, which is free()); NULL after a failure. Never NULL otherwise. */
char *cb_buf_take(cb_buf *b);
static inline bool cb_buf_ok(const cb_buf *b) { return !b->failed; }
#endif
