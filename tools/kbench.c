/* kbench.c: how fast the kernels are. Products run over more weights than any cache holds, alternating with a plain read of
 * the same bytes, so that each line can say what share of the machine's read bandwidth it reaches.
 *   build/release/kbench [gemv|gemm|rows|hybrid|attn|all] [--gb G] [--reps N] [--threads a,b] [--isa LEVEL] [--k K] [--fmt TEXT] [--cpu]
 * --cpu takes the processor time of the slowest thread instead of the time on the wall: for a machine that others share.
 * Prints medians and (max - min)/median over the repetitions. docs/performance.md explains the columns. */
#include "kernels/kernels.h"
#include "measure.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static void *big_alloc(size_t n)
{
    void *p = mmap(NULL, (n + 63) / 64 * 64 + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        perror("kbench: memory");
        exit(1);
    }
    return p;
}

/* ---- measuring ------------------------------------------------------------------------------------------------------ */

typedef void part_fn(void *arg, int id, int n); /* share id of n */

static struct {
    const char *what, *isa;
    double gb;
    int reps, threads[8], n_threads;
    int64_t k;
    bool cpu;
} opt = {.what = "all", .gb = 1.2, .reps = 7, .threads = {1, 2}, .n_threads = 2};

typedef struct job {
    part_fn *fn;
    void *arg;
    int id, n;
    double cpu_s;
} job;
static void *job_main(void *p)
{
    job *j = p;
    double t0 = clock_s(CLOCK_THREAD_CPUTIME_ID);
    j->fn(j->arg, j->id, j->n);
    j->cpu_s = clock_s(CLOCK_THREAD_CPUTIME_ID) - t0;
    return NULL;
}
/* Seconds for fn on n threads. */
static double timed(part_fn *fn, void *arg, int n)
{
    job j[MAX_THREADS];
    pthread_t t[MAX_THREADS];
    double t0 = clock_s(CLOCK_MONOTONIC), cpu = 0;
    for (int i = 0; i < n; i++) {
        j[i] = (job){fn, arg, i, n, 0};
        if (i) pthread_create(&t[i], NULL, job_main, &j[i]);
    }
    job_main(&j[0]);
    for (int i = 1; i < n; i++) pthread_join(t[i], NULL);
    for (int i = 0; i < n; i++) cpu = j[i].cpu_s > cpu ? j[i].cpu_s : cpu;
    return opt.cpu ? cpu : clock_s(CLOCK_MONOTONIC) - t0;
}

/* ---- products ------------------------------------------------------------------------------------------------------- */

typedef struct fmt_case {
    const char *name;
    cb_fmt fmt;
    int bits, group;
    cb_scale_type st;
} fmt_case;
static const fmt_case fmts[] = {
    {"4-bit g64 bf16", CB_FMT_AFFINE, 4, 64, CB_S_BF16},   {"4-bit g32 f16", CB_FMT_AFFINE, 4, 32, CB_S_F16},
    {"4-bit g128 bf16", CB_FMT_AFFINE, 4, 128, CB_S_BF16}, {"2-bit g128 f16", CB_FMT_AFFINE, 2, 128, CB_S_F16},
    {"2-bit g128 bf16", CB_FMT_AFFINE, 2, 128, CB_S_BF16}, {"2-bit g64 bf16", CB_FMT_AFFINE, 2, 64, CB_S_BF16},
    {"8-bit g64 bf16", CB_FMT_AFFINE, 8, 64, CB_S_BF16},   {"8-bit g32 f16", CB_FMT_AFFINE, 8, 32, CB_S_F16},
    {"1-bit g128 bf16", CB_FMT_AFFINE, 1, 128, CB_S_BF16}, {"3-bit g64 bf16", CB_FMT_AFFINE, 3, 64, CB_S_BF16},
    {"5-bit g64 bf16", CB_FMT_AFFINE, 5, 64, CB_S_BF16},   {"6-bit g64 bf16", CB_FMT_AFFINE, 6, 64, CB_S_BF16},
    {"mxfp4 g32", CB_FMT_FP4, 4, 32, CB_S_E8M0},           {"nvfp4 g16", CB_FMT_FP4, 4, 16, CB_S_E4M3},
    {"planes g64", CB_FMT_PLANES, 8, 64, CB_S_F32}};
static size_t scale_bytes(cb_scale_type t) { return t == CB_S_F32 ? 4 : t == CB_S_F16 || t == CB_S_BF16 ? 2 : 1; }

typedef struct prod {
    const cb_kernels *k;
    cb_mm mm;
    int64_t n, n_mats, first_mat; /* outputs of a matrix; matrices one after another in the pool */
    size_t codes_per, scales_per;
    void *scratch[MAX_THREADS];
} prod;

static void prod_part(void *arg, int id, int n)
{
    prod *p = arg;
    int64_t units = (p->n + 15) / 16, n0 = units * id / n * 16, n1 = units * (id + 1) / n * 16;
    if (n1 > p->n) n1 = p->n;
    for (int64_t i = p->first_mat; i < p->first_mat + p->n_mats; i++) {
        cb_mm mm = p->mm;
        mm.codes += (size_t)i * p->codes_per;
        mm.scales += (size_t)i * p->scales_per;
        if (mm.biases) mm.biases += (size_t)i * p->scales_per;
        p->k->linear(&mm, n0, n1, p->scratch[id]);
    }
}

/* A product of m rows; codes, scales and biases lie in pool. Returns bytes of one matrix. */
static size_t prod_init(prod *p, const cb_kernels *k, const fmt_case *f, uint8_t *pool, size_t pool_bytes, int64_t n, int64_t kk, int m)
{
    int G = (int)((kk + f->group - 1) / f->group), pack = f->fmt == CB_FMT_FP4 ? 2 : f->fmt == CB_FMT_PLANES ? 1 : cb_pack_of_bits(f->bits);
    size_t row = f->fmt == CB_FMT_PLANES ? (size_t)G * 128 : (size_t)kk * (size_t)f->bits / 8, sc = (size_t)G * scale_bytes(f->st);
    int n_sc = f->fmt == CB_FMT_AFFINE ? 2 : 1;
    *p = (prod){.k = k, .n = n, .codes_per = row * (size_t)n, .scales_per = sc * (size_t)n};
    size_t per = p->codes_per + p->scales_per * (size_t)n_sc;
    p->n_mats = (int64_t)(pool_bytes / per);
    if (p->n_mats < 1) p->n_mats = 1;
    for (size_t i = p->codes_per * (size_t)p->n_mats, e = i + p->scales_per * (size_t)(n_sc * p->n_mats); i < e; i++)
        pool[i] = (uint8_t)(i & 1 ? 0x3c : 0x38 + (i >> 1 & 7)); /* ordinary numbers in every scale type */
    size_t stride = cb_plane_stride(kk, pack);
    p->mm = (cb_mm){.fmt = f->fmt, .bits = f->bits, .group = f->group, .n_groups = G, .k = kk, .codes = pool, .row_bytes = row,
                    .scales = pool + p->codes_per * (size_t)p->n_mats, .scale_type = f->st, .global_scale = 1, .n_rows = m,
                    .y = big_alloc((size_t)m * (size_t)n * 4), .y_stride = (size_t)n};
    if (n_sc == 2) p->mm.biases = p->mm.scales + p->scales_per * (size_t)p->n_mats;
    p->mm.x = (cb_qrows){big_alloc((size_t)m * stride), big_alloc((size_t)(m * G) * 4), big_alloc((size_t)(m * G) * 4),
                         big_alloc((size_t)(m * G) * 4), stride, G};
    float *x = big_alloc((size_t)kk * 4);
    for (int r = 0; r < m; r++) {
        for (int64_t i = 0; i < kk; i++) x[i] = (float)((i * 7 + r * 13) % 31) - 15;
        k->quant_row(x, (int)kk, f->group, pack, p->mm.x.planes + (size_t)r * stride, p->mm.x.dx + r * G, p->mm.x.xs + r * G, p->mm.x.sum + r * G);
    }
    munmap(x, ((size_t)kk * 4 + 63) / 64 * 64 + 4096);
    for (int i = 0; i < MAX_THREADS && i < 8; i++) p->scratch[i] = big_alloc(cb_linear_scratch(kk));
    return per;
}
static void unmap(void *p, size_t n) { munmap(p, (n + 63) / 64 * 64 + 4096); }
static void prod_fini(prod *p)
{
    size_t m = (size_t)p->mm.n_rows, g = m * (size_t)p->mm.n_groups * 4;
    unmap(p->mm.y, m * (size_t)p->n * 4), unmap(p->mm.x.planes, m * p->mm.x.plane_stride);
    unmap(p->mm.x.dx, g), unmap(p->mm.x.xs, g), unmap(p->mm.x.sum, g);
    for (int i = 0; i < MAX_THREADS && i < 8; i++) unmap(p->scratch[i], cb_linear_scratch(p->mm.k));
}

static uint8_t *pool_make(size_t n)
{
    uint8_t *p = big_alloc(n);
    uint64_t s = 88172645463325252ULL;
    for (size_t i = 0; i + 8 <= n; i += 8) {
        s ^= s << 13, s ^= s >> 7, s ^= s << 17;
        memcpy(p + i, &s, 8);
    }
    return p;
}

static void bench_gemv(const cb_kernels *k, const char *filter)
{
    static const int64_t shapes[][2] = {{49152, 576}, {576, 1536}, {512, 2048}, {2048, 512}, {2048, 640}, {2048, 2048}, {4096, 4096}, {12288, 4096}, {17408, 5120}, {5120, 17408}};
    static const int ms[] = {1, 2, 3, 4};
    size_t pool_bytes = (size_t)(opt.gb * 1e9);
    uint8_t *pool = pool_make(pool_bytes + (256 << 20));
    printf("%-7s %-16s %6s %6s %2s %3s %8s %7s %7s %7s %9s\n", "isa", "weights", "N", "K", "M", "thr", "GB/s", "spread", "probe",
           "share", "GMAC/s");
    for (size_t f = 0; f < sizeof fmts / sizeof *fmts; f++) {
        if (filter && !strstr(fmts[f].name, filter)) continue;
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            for (size_t mi = 0; mi < sizeof ms / sizeof *ms; mi++) {
                if (opt.k && shapes[s][1] != opt.k) continue;
                if ((f > 4 && shapes[s][0] != 12288) || (mi && shapes[s][0] != 12288)) continue; /* one shape tells enough */
                prod p;
                size_t per = prod_init(&p, k, &fmts[f], pool, pool_bytes, shapes[s][0], shapes[s][1], ms[mi]);
                static probe pr;
                pr.p = pool, pr.n = per * (size_t)p.n_mats;
                for (int t = 0; t < opt.n_threads; t++) {
                    sample a = {.n = opt.reps}, b = {.n = opt.reps};
                    for (int r = 0; r < opt.reps; r++) {
                        b.v[r] = (double)pr.n / timed(probe_part, &pr, opt.threads[t]) / 1e9;
                        a.v[r] = (double)pr.n / timed(prod_part, &p, opt.threads[t]) / 1e9;
                    }
                    double g = median(&a), bw = median(&b);
                    double macs = (double)p.n * (double)p.mm.k * ms[mi] / (double)per * g;
                    printf("%-7s %-16s %6d %6d %2d %3d %8.2f %6.1f%% %7.2f %6.1f%% %9.1f\n", k->name, fmts[f].name, (int)p.n, (int)p.mm.k,
                           ms[mi], opt.threads[t], g, spread_pct(&a), bw, 100 * g / bw, macs);
                    fflush(stdout);
                }
                prod_fini(&p);
            }
    }
    unmap(pool, pool_bytes + (256 << 20));
}

static void bench_gemm(const cb_kernels *k, const char *filter)
{
    static const int64_t shapes[][2] = {{576, 576}, {1536, 576}, {576, 1536}, {4096, 4096}, {12288, 4096}, {5120, 17408}};
    static const int ms[] = {4, 5, 6, 8, 12, 16, 32, 64, 128, 512};
    size_t pool_bytes = 400 << 20;
    uint8_t *pool = pool_make(pool_bytes);
    printf("%-7s %-16s %6s %6s %4s %3s %9s %7s\n", "isa", "weights", "N", "K", "M", "thr", "GMAC/s", "spread");
    for (size_t f = 0; f < sizeof fmts / sizeof *fmts; f++) {
        if (filter && !strstr(fmts[f].name, filter)) continue;
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            for (size_t mi = 0; mi < sizeof ms / sizeof *ms; mi++) {
                if (opt.k && shapes[s][1] != opt.k) continue;
                bool main_shape = shapes[s][0] == 4096;
                if (f > 3 && !main_shape) continue;
                if ((!main_shape || f > 3) && ms[mi] != 512 && ms[mi] != 64) continue;
                prod p;
                prod_init(&p, k, &fmts[f], pool, pool_bytes, shapes[s][0], shapes[s][1], ms[mi]);
                double macs = (double)p.n * (double)p.mm.k * ms[mi];
                int64_t mats = p.n_mats;
                p.n_mats = (int64_t)(2e9 / macs) + 1;
                if (p.n_mats > mats) p.n_mats = mats;
                for (int t = 0; t < opt.n_threads; t++) {
                    sample a = {.n = opt.reps};
                    for (int r = 0; r < opt.reps; r++) {
                        a.v[r] = macs * (double)p.n_mats / timed(prod_part, &p, opt.threads[t]) / 1e9;
                        p.first_mat = (p.first_mat + p.n_mats) % (mats - p.n_mats + 1);
                    }
                    double g = median(&a);
                    printf("%-7s %-16s %6d %6d %4d %3d %9.1f %6.1f%%\n", k->name, fmts[f].name, (int)p.n, (int)p.mm.k, ms[mi],
                           opt.threads[t], g, spread_pct(&a));
                    fflush(stdout);
                }
                prod_fini(&p);
            }
    }
    unmap(pool, pool_bytes);
}

/* ---- rows and attention: data in the cache -------------------------------------------------------------------------- */

typedef struct rows_arg {
    const cb_kernels *k;
    int which, n, count;
    float *x, *y, *w;
    int8_t *planes;
    float *dx, *xs;
    int32_t *sum;
} rows_arg;
static const char *const row_names[] = {"quant_row g64 pack 2", "quant_row g128 pack 4", "quant16", "rmsnorm", "silu_mul", "gelu_mul",
                                        "softcap", "add", "scale", "rope (n/2 pairs)", "all_finite"};
static void rows_part(void *arg, int id, int nt)
{
    (void)id, (void)nt;
    rows_arg *a = arg;
    const cb_kernels *k = a->k;
    for (int i = 0; i < a->count; i++) switch (a->which) {
        case 0: k->quant_row(a->x, a->n, 64, 2, a->planes, a->dx, a->xs, a->sum); break;
        case 1: k->quant_row(a->x, a->n, 128, 4, a->planes, a->dx, a->xs, a->sum); break;
        case 2: a->dx[0] = k->quant16(a->x, a->n, (int16_t *)(void *)a->planes); break;
        case 3: k->rmsnorm(a->y, a->x, a->w, a->n, 1e-6f); break;
        case 4: k->silu_mul(a->y, a->x, a->w, a->n); break;
        case 5: k->gelu_mul(a->y, a->x, a->w, a->n); break;
        case 6: k->softcap(a->y, a->x, 30, a->n); break;
        case 7: k->add(a->y, a->x, a->w, a->n); break;
        case 8: k->scale(a->y, a->x, 0.5f, a->n); break;
        case 9: k->rope(a->y, a->w, a->n / 2, a->n / 2); break;
        case 10: a->sum[0] = k->all_finite(a->x, a->n); break;
        }
}
static void bench_rows(const cb_kernels *k)
{
    enum { N = 4096 };
    cb_kernels c;
    cb_kernels_set_c(&c);
    rows_arg a = {.n = N, .x = big_alloc(N * 4), .y = big_alloc(N * 4), .w = big_alloc(N * 4), .planes = big_alloc(N * 4),
                  .dx = big_alloc(N), .xs = big_alloc(N), .sum = big_alloc(N)};
    for (int i = 0; i < N; i++) a.x[i] = (float)(i % 97) * 0.1f - 5, a.w[i] = (float)(i % 13) * 0.1f - 0.5f;
    printf("%-7s %-22s %10s %7s %9s\n", "isa", "row of 4096", "ns/row", "spread", "x scalar");
    for (size_t i = 0; i < sizeof row_names / sizeof *row_names; i++) {
        double t[2];
        sample s = {.n = opt.reps};
        for (int v = 0; v < 2; v++) {
            a.which = (int)i, a.k = v ? k : &c, a.count = v ? 4000 : 200;
            for (int r = 0; r < opt.reps; r++) {
                memset(a.y, 0, N * 4);
                s.v[r] = timed(rows_part, &a, 1) / a.count * 1e9;
            }
            t[v] = median(&s);
        }
        printf("%-7s %-22s %10.0f %6.1f%% %9.1f\n", k->name, row_names[i], t[1], spread_pct(&s), t[0] / t[1]);
    }
}

/* Rotation, convolution, gates and the delta rule. */
typedef struct hybrid_arg {
    const cb_kernels *k;
    int which, count, n_states;
    float *x, *y, *w, *S;
} hybrid_arg;
enum { HYB_N = 4096, HYB_STATES = 64, HYB_DK = 128, HYB_DV = 128 };
static const char *const hybrid_names[] = {"axpy", "sigmoid_mul", "mul", "unit, 128", "exp_sum, 256", "delta_gates, 32", "hadamard, block 512",
                                           "hadamard, block 4096", "conv_silu, 4 taps", "delta_step 128 x 128, L1", "delta_step 128 x 128, 4 MB",
                                           "delta_step 128 x 128, 64 MB"};
static void hybrid_part(void *arg, int id, int nt)
{
    (void)id, (void)nt;
    hybrid_arg *a = arg;
    const cb_kernels *k = a->k;
    const float *rows[4] = {a->x, a->x + 16, a->x + 32, a->x + 48};
    const size_t state = HYB_DK * HYB_DV;
    for (int i = 0; i < a->count; i++) switch (a->which) {
        case 0: k->axpy(a->y, 0.3f, a->x, HYB_N); break;
        case 1: k->sigmoid_mul(a->y, a->x, a->w, HYB_N); break;
        case 2: k->mul(a->y, a->x, a->w, HYB_N); break;
        case 3: k->unit(a->y, a->x, 128, 1e-6f, 0.1f); break;
        case 4: a->y[256] = k->exp_sum(a->y, a->x, 5, 256); break;
        case 5: k->delta_gates(a->y, a->y + 32, a->x, a->x + 32, a->w, a->w + 32, 32); break;
        case 6: k->hadamard(a->y, HYB_N, 512, 0.04419417f); break;
        case 7: k->hadamard(a->y, HYB_N, 4096, 0.015625f); break;
        case 8: k->conv_silu(a->y, rows, a->w, 4, 0, HYB_N); break;
        case 9: /* 32 rows at a time, as a chunk of a prompt works */
            for (int r = 0; r < HYB_DV; r += 32) k->delta_step(a->S, a->w, a->w + 128, a->x + r, 0.9f, 0.5f, HYB_DK, 32, a->y + r);
            break;
        default:
            k->delta_step(a->S + (size_t)(i % (a->which == 10 ? HYB_STATES : 16 * HYB_STATES)) * state, a->w, a->w + 128, a->x, 0.9f, 0.5f, HYB_DK,
                          HYB_DV, a->y);
        }
}
static void bench_hybrid(const cb_kernels *k)
{
    cb_kernels c;
    cb_kernels_set_c(&c);
    const size_t s_bytes = (size_t)16 * HYB_STATES * HYB_DK * HYB_DV * 4;
    hybrid_arg a = {.x = big_alloc(HYB_N * 4 + 256), .y = big_alloc(HYB_N * 4), .w = big_alloc(HYB_N * 16), .S = big_alloc(s_bytes)};
    for (int i = 0; i < HYB_N + 64; i++) a.x[i] = (float)(i % 97) * 0.1f - 5;
    for (int i = 0; i < 4 * HYB_N; i++) a.w[i] = (float)(i % 13) * 0.02f - 0.1f;
    for (size_t i = 0; i < s_bytes / 4; i++) a.S[i] = (float)(i % 31) * 0.01f - 0.15f;
    printf("%-7s %-28s %10s %7s %9s\n", "isa", "row of 4096 unless told", "ns", "spread", "x scalar");
    for (size_t i = 0; i < sizeof hybrid_names / sizeof *hybrid_names; i++) {
        double t[2];
        sample s = {.n = opt.reps};
        for (int v = 0; v < 2; v++) {
            a.which = (int)i, a.k = v ? k : &c, a.count = v ? 4096 : 128;
            for (int r = 0; r < opt.reps; r++) {
                memset(a.y, 0, HYB_N * 4);
                s.v[r] = timed(hybrid_part, &a, 1) / a.count * 1e9;
            }
            t[v] = median(&s);
        }
        printf("%-7s %-28s %10.0f %6.1f%% %9.1f\n", k->name, hybrid_names[i], t[1], spread_pct(&s), t[0] / t[1]);
    }
    unmap(a.S, s_bytes);
}

typedef struct attn_arg {
    const cb_kernels *k;
    cb_attn a;
    int count, n_blocks;
    int16_t *kv;
} attn_arg;
static void attn_part(void *arg, int id, int nt)
{
    (void)id, (void)nt;
    attn_arg *p = arg;
    cb_attn a = p->a;
    size_t one = (size_t)a.dim * CB_KV_BLOCK;
    for (int i = 0; i < p->count; i++) {
        a.kv.k = p->kv + (size_t)(i % p->n_blocks) * 2 * one, a.kv.v = a.kv.k + one;
        p->k->attn_block(&a);
    }
}
static void bench_attn(const cb_kernels *k)
{
    static const int dims[] = {64, 128, 256, 512}, nqs[] = {1, 2, 3, 4, 6, 16};
    cb_kernels c;
    cb_kernels_set_c(&c);
    enum { BLOCKS = 64 };
    printf("%-7s %4s %4s %10s %7s %9s %9s\n", "isa", "dim", "n_q", "ns/block", "spread", "GMAC/s", "x scalar");
    for (int d = 0; d < 4; d++)
        for (int q = 0; q < 6; q++) {
            int dim = dims[d], n_q = nqs[q];
            size_t one = (size_t)dim * CB_KV_BLOCK;
            attn_arg a = {.n_blocks = BLOCKS, .kv = big_alloc(one * 4 * BLOCKS)};
            for (size_t i = 0; i < one * 2 * BLOCKS; i++) a.kv[i] = (int16_t)((i * 2654435761u >> 9) % 32512 - 16256);
            float *f = big_alloc((size_t)(n_q * dim) * 4 + 8192);
            int16_t *qq = big_alloc((size_t)(n_q * dim) * 4 + 128);
            int32_t *lh = big_alloc(4096);
            float *o = f + 2048;
            for (int i = 0; i < n_q * dim; i++) qq[i] = (int16_t)(i % 255 - 127), qq[n_q * dim + i] = (int16_t)(i % 127 - 63);
            for (int i = 0; i < 64; i++) f[i] = 1e-4f, f[64 + i] = 1e-4f, f[128 + i] = 1e-6f, lh[i] = 0, lh[64 + i] = 64;
            a.a = (cb_attn){.dim = dim, .n_q = n_q, .qh = qq, .ql = qq + n_q * dim, .dqs = f + 128, .lo = lh, .hi = lh + 64,
                            .kv = {NULL, NULL, f, f + 64}, .m = f + 256, .l = f + 512, .o = o};
            double t[2];
            sample s = {.n = opt.reps};
            for (int v = 0; v < 2; v++) {
                a.k = v ? k : &c, a.count = v ? 40000 / n_q * 64 / dim + 64 : 8;
                for (int r = 0; r < opt.reps; r++) s.v[r] = timed(attn_part, &a, 1) / a.count * 1e9;
                t[v] = median(&s);
            }
            printf("%-7s %4d %4d %10.0f %6.1f%% %9.1f %9.1f\n", k->name, dim, n_q, t[1], spread_pct(&s),
                   2.0 * (double)one * n_q / t[1], t[0] / t[1]);
            unmap(a.kv, one * 4 * BLOCKS), unmap(f, (size_t)(n_q * dim) * 4 + 8192), unmap(qq, (size_t)(n_q * dim) * 4 + 128), unmap(lh, 4096);
        }
}

int main(int argc, char **argv)
{
    const char *filter = NULL;
    for (int i = 1; i < argc; i++) {
        const char *v = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(argv[i], "--gb")) opt.gb = atof(v), i++;
        else if (!strcmp(argv[i], "--reps")) opt.reps = atoi(v) < MAX_REPS ? atoi(v) : MAX_REPS, i++;
        else if (!strcmp(argv[i], "--isa")) opt.isa = v, i++;
        else if (!strcmp(argv[i], "--k")) opt.k = atoll(v), i++;
        else if (!strcmp(argv[i], "--cpu")) opt.cpu = true;
        else if (!strcmp(argv[i], "--fmt")) filter = v, i++;
        else if (!strcmp(argv[i], "--threads")) {
            opt.n_threads = 0;
            for (const char *p = v; *p && opt.n_threads < 8; p += *p == ',') opt.threads[opt.n_threads++] = (int)strtol(p, (char **)&p, 10);
            i++;
        } else opt.what = argv[i];
    }
    uint32_t isa = cb_isa_detect();
    if (opt.isa && cb_isa_cap(&isa, opt.isa) < 0) {
        fprintf(stderr, "kbench: this machine has no %s\n", opt.isa);
        return 1;
    }
    cb_kernels k;
    cb_kernels_init(&k, isa);
    bool all = !strcmp(opt.what, "all");
    if (all || !strcmp(opt.what, "rows")) bench_rows(&k);
    if (all || !strcmp(opt.what, "hybrid")) bench_hybrid(&k);
    if (all || !strcmp(opt.what, "attn")) bench_attn(&k);
    if (all || !strcmp(opt.what, "gemm")) bench_gemm(&k, filter);
    if (all || !strcmp(opt.what, "gemv")) bench_gemv(&k, filter);
    return 0;
}
