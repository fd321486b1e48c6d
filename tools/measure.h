/* measure.h: what the benches share: clocks, medians, and the probe of the machine's read bandwidth. */
#ifndef CB_TOOLS_MEASURE_H
#define CB_TOOLS_MEASURE_H
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

enum { MAX_THREADS = 64, MAX_REPS = 101 };

static inline double clock_s(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct sample {
    double v[MAX_REPS];
    int n;
} sample;
static inline int cmp_double(const void *a, const void *b) { return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b); }
static inline double median(sample *s)
{
    qsort(s->v, (size_t)s->n, sizeof *s->v, cmp_double);
    return s->v[s->n / 2];
}
static inline double spread_pct(sample *s) { return 100 * (s->v[s->n - 1] - s->v[0]) / s->v[s->n / 2]; } /* after median */

/* ---- the probe ------------------------------------------------------------------------------------------------------ */

typedef uint64_t vec __attribute__((vector_size(64)));
typedef struct probe {
    const uint8_t *p;
    size_t n;
    uint64_t sink[MAX_THREADS * 8];
} probe;
/* With 16-byte loads one core reads a quarter less than it can, so the probe takes the widest the machine has. */
#if defined __x86_64__
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
static inline void probe_part(void *arg, int id, int n)
{
    probe *b = arg;
    size_t lines = b->n / 256, at = lines * (size_t)id / (size_t)n * 256, end = lines * (size_t)(id + 1) / (size_t)n * 256;
    vec s = {0}, t = {0}, u = {0}, v = {0};
    for (; at < end; at += 256) {
        const vec *p = (const vec *)(const void *)(b->p + at);
        for (int i = 0; i < 4; i++) __builtin_prefetch(b->p + at + 8192 + 64 * i, 0, 2);
        s += p[0], t += p[1], u += p[2], v += p[3];
    }
    s += t + u + v;
    b->sink[id * 8] = s[0] ^ s[1] ^ s[2] ^ s[3] ^ s[4] ^ s[5] ^ s[6] ^ s[7];
}
#endif
