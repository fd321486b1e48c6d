/* random.h: numbers of a fixed sequence, and memory for what is made of them. */
#ifndef CB_TEST_RANDOM_H
#define CB_TEST_RANDOM_H
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static uint64_t random_state = 1;
static uint32_t rnd(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33);
}
static float uniform(void) { return (float)(rnd() % 20001) / 10000 - 1; }

/* Zeros, at a multiple of 64; the caller frees them. */
static void *room(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    memset(p, 0, (bytes + 63) / 64 * 64);
    return p;
}
#endif
