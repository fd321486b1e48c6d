/* kt.h: what the kernel tests share. Each program runs one family of slots of every table the machine has ("avx2",
 * "avx512", "neon") and compares with scalar C byte by byte; there is no tolerance anywhere (docs/arithmetic.md).
 * Buffers end where an unreadable page begins, so a kernel that reads or writes past its last byte dies at once.
 * KT_SEED=n changes the random inputs, KT_ROUNDS=n the number of random cases (the default keeps a program near a second). */
#ifndef KT_H
#define KT_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* in this order: cmocka wants the four above */
#include "kernels/kernels.h"
#include "kernels/num.h"
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- random numbers ------------------------------------------------------------------------------------------------ */

typedef struct kt_rng {
    uint64_t s;
} kt_rng;

static inline uint64_t kt_u64(kt_rng *r)
{
    uint64_t z = r->s += 0x9e3779b97f4a7c15ULL;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ z >> 27) * 0x94d049bb133111ebULL;
    return z ^ z >> 31;
}
/* 0 <= result < n */
static inline int kt_below(kt_rng *r, int n) { return (int)(kt_u64(r) % (uint64_t)n); }
/* uniform in [-1, 1) */
static inline float kt_unit(kt_rng *r) { return (float)((double)(kt_u64(r) >> 11) * 0x1p-52 - 1.0); }
static inline kt_rng kt_seed(uint64_t salt)
{
    const char *e = getenv("KT_SEED");
    return (kt_rng){(e ? strtoull(e, NULL, 0) : 1) * 0x2545f4914f6cdd1dULL + salt};
}
static inline int kt_rounds(int usual)
{
    const char *e = getenv("KT_ROUNDS");
    return e ? atoi(e) : usual;
}

/* ---- guarded buffers ----------------------------------------------------------------------------------------------- */

typedef struct kt_buf {
    uint8_t *p; /* n usable bytes; the byte at p + n + off cannot be touched, nor the page before the first */
    size_t n;
    void *map;
    size_t map_len;
} kt_buf;

/* n bytes ending `off` bytes before an unreadable page, filled with 0xa5. off 0 catches every overrun; 1..7 vary alignment. */
static inline kt_buf kt_alloc(size_t n, size_t off)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), len = (n + off + page - 1) / page * page + (n + off ? 0 : page);
    kt_buf b = {.n = n, .map_len = len + 2 * page};
    b.map = mmap(NULL, b.map_len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b.map == MAP_FAILED || mprotect((uint8_t *)b.map + page, len, PROT_READ | PROT_WRITE)) {
        perror("kt_alloc");
        exit(99);
    }
    b.p = (uint8_t *)b.map + page + len - n - off;
    memset(b.p, 0xa5, n);
    return b;
}
static inline void kt_free(kt_buf *b)
{
    if (b->map) munmap(b->map, b->map_len);
    *b = (kt_buf){0};
}
static inline float *kt_floats(kt_buf *b) { return (float *)(void *)b->p; }

/* ---- levels -------------------------------------------------------------------------------------------------------- */

enum { KT_MAX_LEVELS = 3 };
typedef struct kt_levels {
    int n;
    cb_kernels k[KT_MAX_LEVELS]; /* ascending */
    cb_kernels c;
} kt_levels;

static inline kt_levels kt_levels_get(void)
{
    static const char *const names[KT_MAX_LEVELS] = {"avx2", "avx512", "neon"};
    kt_levels l = {0};
    cb_kernels_set_c(&l.c);
    for (int i = 0; i < KT_MAX_LEVELS; i++) {
        uint32_t isa = cb_isa_detect();
        if (cb_isa_cap(&isa, names[i]) < 0) continue;
        cb_kernels_init(&l.k[l.n++], isa);
    }
    return l;
}
/* Whether level i has a function of its own in this slot: neither the scalar one nor the one of the level below. */
#define KT_OWN(levels, i, slot) \
    ((levels)->k[i].slot != (levels)->c.slot && ((i) == 0 || (levels)->k[i].slot != (levels)->k[(i) - 1].slot))

/* False when a kernel left the upper halves of the vector registers in use: every SSE instruction after it (scalar code of files
 * without AVX flags) then costs a hundred times its time. Where the processor does not tell, and in instrumented builds, whose
 * kernels are hardly optimised: true. */
static inline bool kt_uppers_clean(void)
{
#if defined __x86_64__ && !defined CB_DEBUG && !defined __SANITIZE_THREAD__
    uint32_t a = 0, b, c, d;
    if (!(cb_isa_detect() & CB_ISA_AVX2)) return true;
    __asm__ volatile("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(13), "c"(1));
    if (!(a & 4)) return true;
    __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(1));
    return !(a & 4);
#else
    return true;
#endif
}

/* ---- comparing ----------------------------------------------------------------------------------------------------- */

/* Same bits, or both NaN. */
static inline bool kt_same1(float a, float b) { return cb_f2u(a) == cb_f2u(b) || (a != a && b != b); }

/* Fails with the first difference unless all n floats are the same; the text describes the case. */
__attribute__((format(printf, 4, 5))) static inline void kt_same(const float *want, const float *got, size_t n,
                                                                  const char *fmt, ...)
{
    if (!memcmp(want, got, n * sizeof *want)) return;
    for (size_t i = 0; i < n; i++) {
        if (kt_same1(want[i], got[i])) continue;
        char text[400];
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        fail_msg("%s: [%zu of %zu] want %a (%08x) got %a (%08x)", text, i, n, (double)want[i], cb_f2u(want[i]),
                 (double)got[i], cb_f2u(got[i]));
    }
}
__attribute__((format(printf, 4, 5))) static inline void kt_same_bytes(const void *want, const void *got, size_t n,
                                                                        const char *fmt, ...)
{
    if (!memcmp(want, got, n)) return;
    size_t i = 0;
    while (((const uint8_t *)want)[i] == ((const uint8_t *)got)[i]) i++;
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fail_msg("%s: byte %zu of %zu: want %02x got %02x", text, i, n, ((const uint8_t *)want)[i], ((const uint8_t *)got)[i]);
}

/* ---- inputs -------------------------------------------------------------------------------------------------------- */

/* n finite activations: ordinary ones, and by turns zeros, -0, subnormals, huge values, spikes, ties of the rounding. */
static inline void kt_activations(kt_rng *r, float *x, int n)
{
    for (int i = 0; i < n;) {
        int run = 1 + kt_below(r, 200), kind = kt_below(r, 12);
        float size = ldexpf(1.0f, kt_below(r, 12) - 6);
        for (; run && i < n; run--, i++) {
            float u = kt_unit(r);
            switch (kind) {
            case 0: x[i] = 0; break;
            case 1: x[i] = u < 0 ? -0.0f : 0.0f; break;
            case 2: x[i] = u * 0x1p-130f; break;
            case 3: x[i] = u * 3e38f; break;
            case 4: x[i] = kt_below(r, 40) ? u * 0.01f : u * 100; break;
            case 5: x[i] = (float)(kt_below(r, 65) - 32) * 0.5f; break;
            case 6: x[i] = u * 0x1p-100f * 1.5f; break;
            default: x[i] = u * size;
            }
        }
    }
}

/* A stored scale of each type, any sign, mostly ordinary, sometimes zero, subnormal or large. */
static inline uint32_t kt_f32_scale(kt_rng *r)
{
    int k = kt_below(r, 40);
    float f = ldexpf(kt_unit(r), kt_below(r, 10) - 8);
    if (k == 0) f = 0;
    if (k == 1) f = -0.0f;
    if (k == 2) f = 0x1p-140f;
    return cb_f2u(f);
}
static inline void kt_scale(kt_rng *r, uint8_t *p, cb_scale_type t, int64_t i)
{
    uint32_t f = kt_f32_scale(r);
    uint16_t h;
    switch (t) {
    case CB_S_F32: memcpy(p + 4 * i, &f, 4); break;
    case CB_S_BF16: h = (uint16_t)(f >> 16), memcpy(p + 2 * i, &h, 2); break;
    case CB_S_F16: /* exponents 0 (subnormal) to 30, never 31 */
        h = (uint16_t)kt_u64(r);
        if (kt_below(r, 8)) h = (uint16_t)((h & 0x83ff) | (uint16_t)(6 + kt_below(r, 9)) << 10);
        if ((h & 0x7c00) == 0x7c00) h &= 0xbfff;
        memcpy(p + 2 * i, &h, 2);
        break;
    case CB_S_E8M0: p[i] = (uint8_t)(kt_below(r, 30) ? 110 + kt_below(r, 30) : kt_below(r, 255)); break;
    case CB_S_E4M3: p[i] = (uint8_t)kt_u64(r); break;
    }
}
static inline size_t kt_scale_size(cb_scale_type t) { return t == CB_S_F32 ? 4 : t == CB_S_F16 || t == CB_S_BF16 ? 2 : 1; }

#define KT_COUNT(a) ((int)(sizeof(a) / sizeof *(a)))
#endif
