/* random.h: numbers of a fixed sequence, and memory for what is made of them. Include emulated.h, or cmocka with what it wants, before. */
#ifndef CB_TESTS_SUPPORT_RANDOM_H
#define CB_TESTS_SUPPORT_RANDOM_H
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static uint64_t random_state = 1; /* a test that wants a sequence of its own sets it */
static inline uint32_t rnd(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33);
}
static inline float uniform(void) { return (float)(rnd() % 20001) / 10000 - 1; }

/* Zeros, at a multiple of `to`, a power of two, and as many as fill multiples of it; the caller frees them. */
static inline void *room_at(size_t to, size_t bytes)
{
    void *p = aligned_alloc(to, (bytes + to - 1) / to * to);
    assert_non_null(p);
    memset(p, 0, (bytes + to - 1) / to * to);
    return p;
}
static inline void *room(size_t bytes) { return room_at(64, bytes); }
#endif
