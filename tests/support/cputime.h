/* cputime.h: limits on time that hold on a busy machine: processor time of this process, and only where nothing slows every
 * instruction down (emulation, sanitizers). */
#ifndef CB_TESTS_SUPPORT_CPUTIME_H
#define CB_TESTS_SUPPORT_CPUTIME_H
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Seconds of processor time this process has used. */
static inline double tt_cpu(void) { return (double)clock() / CLOCKS_PER_SEC; }

/* Under valgrind (make check-valgrind) everything is some thirty times slower, and addresses are few. */
static inline bool tt_valgrind(void)
{
    const char *f = getenv("CB_FLAVOUR");
    return f && !strcmp(f, "valgrind");
}

/* Where one mapping of 64 GiB may not be had: under valgrind, emulation and sanitizers. */
static inline bool tt_small_maps(void)
{
    const char *f = getenv("CB_FLAVOUR");
    return f && strcmp(f, "release") != 0;
}

/* Is a cost (seconds of processor time, KiB) within its limit? Always yes under emulation and sanitizers. */
static inline bool tt_within(double cost, double limit)
{
    const char *f = getenv("CB_FLAVOUR");
    return (f && strcmp(f, "release") != 0) || cost < limit;
}
#endif
