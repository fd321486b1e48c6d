/* gemm_avx512.c: products of many rows (prefill). The codes of 32 outputs are unpacked, a chunk of K at a time, into a
 * panel of bytes, word by word across the outputs; then six rows of activations at a time meet the panel: VPDPBUSD takes a
 * word of sixteen outputs and one broadcast word of a row. The activation planes keep their order (kernels.h); only the
 * panel is arranged. A chunk of the panel fits the first-level cache, and each row's float chain runs in registers through
 * it; between chunks it rests in scratch. Read linear_avx512.h first. */
#include "kernels/linear_avx512.h"

enum {
    OUT = 32,       /* outputs of a panel: two vectors */
    MB = 6,         /* rows at a time: 12 sums and 12 float chains in registers */
    MB_WIDE = 4,    /* the same for float weights, which need two sums an output */
    ROWS_MAX = 384, /* rows whose partial outputs stand in scratch at a time */
    CHUNK_K = 512   /* inputs of a chunk, about; its panel is 32 bytes an input */
};

/* The scratch of one call, and what comes next: the stored bytes of the panel after this one are fetched a few lines a
 * group while this one computes. */
typedef struct panel {
    uint8_t *codes; /* [group of the chunk][run][word][OUT][4]; KIND_WIDE: [group][word][high, low][OUT][4] */
    float *st, *bt; /* [group][OUT] scales, biases */
    float *y, *acc; /* [ROWS_MAX][OUT] sums of closed segments; open chains */
    const uint8_t *next[3], *next_end[3]; /* codes, scales, biases */
    int lines;                            /* a group */
} panel;

static void next_init(panel *pn, const cb_mm *mm, int64_t n, int64_t n1, int mb)
{
    int64_t a = n + OUT < n1 ? n + OUT : n1, b = a + OUT < n1 ? a + OUT : n1;
    int64_t sc = (int64_t)cb_scale_size(mm->scale_type) * mm->n_groups, rb = (int64_t)mm->row_bytes;
    pn->next[0] = mm->codes + a * rb, pn->next_end[0] = mm->codes + b * rb;
    pn->next[1] = mm->scales + a * sc, pn->next_end[1] = mm->scales + b * sc;
    pn->next[2] = pn->next_end[2] = NULL;
    if (mm->biases) pn->next[2] = mm->biases + a * sc, pn->next_end[2] = mm->biases + b * sc;
    int64_t groups = (int64_t)mm->n_groups * ((mm->n_rows + mb - 1) / mb);
    pn->lines = (int)(((b - a) * (rb + 2 * sc) / 64 + groups) / groups);
}

INLINE void next_fetch(panel *pn)
{
    for (int i = 0; i < 3; i++) {
        if (pn->next[i] >= pn->next_end[i]) continue;
        for (int k = 0; k < pn->lines; k++) _mm_prefetch((const char *)pn->next[i] + 64 * k, _MM_HINT_T1);
        pn->next[i] += 64 * pn->lines;
        return;
    }
}

/* Bytes of a group in the panel. */
INLINE size_t group_bytes(cb_geom s) { return (size_t)s.nj * (size_t)s.w * OUT * 4; }

/* Scales and biases of sixteen outputs from n on; outputs past the last repeat it. */
static void scales_half(const cb_mm *mm, const panel *pn, int p, int64_t n, int64_t n1)
{
    const int G = mm->n_groups;
    for (int g = 0; g < G; g += 16) {
        int64_t at[16];
        for (int r = 0; r < 16; r++) at[r] = (n + r < n1 ? n + r : n1 - 1) * G + g;
        scales_block(mm, mm->scales, at, G - g < 16 ? G - g : 16, pn->st + (size_t)g * OUT + 16 * p, OUT);
        if (mm->fmt == CB_FMT_AFFINE)
            scales_block(mm, mm->biases, at, G - g < 16 ? G - g : 16, pn->bt + (size_t)g * OUT + 16 * p, OUT);
    }
}

/* Codes of the same outputs, groups g0..g1-1 (g0 starts a column), into half p of the panel. */
INLINE void unpack_half(const cb_mm *mm, const cb_geom s, const panel *pn, int p, int64_t n, int64_t n1, int g0, int g1,
                        const cb_odd *odd)
{
    const int gpc = geom_groups(s), c0 = g0 / gpc, c1 = (g1 + gpc - 1) / gpc;
    const int64_t bytes = column_bytes(s, mm->bits);
    const uint8_t *row[16];
    for (int r = 0; r < 16; r++) row[r] = mm->codes + (size_t)(n + r < n1 ? n + r : n1 - 1) * mm->row_bytes;
    const bool bytewise = s.kind == KIND_B8 || s.kind == KIND_ODD;
    int64_t left = (int64_t)mm->row_bytes - c0 * bytes;
    for (int c = c0; c < c1; c++, left -= bytes) {
        __m512i v[2][16], t[16];
        for (int r = 0; r < 16; r++) {
            __m512i u[8];
            const uint8_t *q = row[r] + (size_t)c * (size_t)bytes;
            if (s.kind == KIND_WIDE) {
                v[0][r] = _mm512_loadu_si512(q), v[1][r] = _mm512_loadu_si512(q + 64);
                continue;
            }
            if (!bytewise) { /* planes are taken out of the words after the transpose */
                v[0][r] = left >= bytes ? _mm512_loadu_si512(q) : _mm512_maskz_loadu_epi8(~0ULL >> (64 - left), q);
                continue;
            }
            if (left >= bytes) unpack(s, q, left, true, mm->bits, odd, u);
            else unpack(s, q, left, false, mm->bits, odd, u);
            for (int j = 0; j < s.nj; j++) v[j][r] = u[j];
        }
        if (s.kind == KIND_WIDE) {
            for (int h = 0; h < 2; h++) {
                transpose16(v[h], t);
                for (int w = 0; w < 16; w++)
                    _mm512_store_si512(pn->codes + (size_t)((c - c0) * 16 + w) * 8 * OUT + (size_t)(h * OUT + 16 * p) * 4,
                                       t[w]);
            }
            continue;
        }
        for (int j = 0; j < (bytewise ? s.nj : 1); j++) {
            transpose16(v[j], t);
            for (int w = 0; w < 16; w++) {
                uint8_t *out = pn->codes + (size_t)((c - c0) * gpc + w / s.w) * group_bytes(s) +
                               (size_t)((j * s.w + w % s.w) * OUT + 16 * p) * 4;
                if (bytewise) {
                    _mm512_store_si512(out, t[w]);
                    continue;
                }
                for (int k = 0; k < s.nj; k++) _mm512_store_si512(out + k * s.w * OUT * 4, plane_of(s, t[w], k));
            }
        }
    }
}

/* The shape of a group as the inner loops see it: numbers, so that one instance serves all formats. */
typedef struct shape {
    int w, nj, gpc, run, lo, step; /* linear_avx512.h */
    int lines;                     /* 64-byte lines of planes a group */
    int n_groups, nj_last;         /* runs of the last group */
    int minus;                     /* the codes carry this much too much (FP4); no bias then */
} shape;

static inline __m512i word_at(const int8_t *p)
{
    int32_t v;
    memcpy(&v, p, 4);
    return _mm512_set1_epi32(v);
}

/* A part of a chunk that lies in one segment. */
typedef struct piece {
    int g0, g1;
    bool opens, closes, first; /* starts the segment; ends it; the segment is number 0 */
} piece;

/* Adds one plane's words of a group to the sums. */
INLINE void run_sums(const cb_xrow *x, __m512i d[MB][2], const int M, const int P, const int w_run, const uint8_t *q,
                     int64_t at, int runs, int run)
{
    for (int j = 0; j < runs; j++, at += run) {
        int64_t o = at;
#pragma GCC unroll 16
        for (int w = 0; w < w_run; w++, q += OUT * 4, o += 4) {
            __m512i c0 = _mm512_load_si512(q), c1 = P > 1 ? _mm512_load_si512(q + 64) : c0;
            for (int m = 0; m < M; m++) {
                __m512i b = word_at(x[m].planes + o);
                d[m][0] = _mm512_dpbusd_epi32(d[m][0], c0, b);
                if (P > 1) d[m][1] = _mm512_dpbusd_epi32(d[m][1], c1, b);
            }
        }
    }
}

/* The pieces of a chunk for M rows (r0 their place in scratch) and P vectors of outputs. M, P and W are constants; W is the
 * words of a run, 0 for s->w. */
INLINE void segment(const shape *s, panel *pn, const cb_xrow *x, const int M, const int P, const int W, const piece *pc,
                    int n_pc, int r0)
{
    const int w_run = W ? W : s->w, nj = s->nj;
    const size_t group = (size_t)(nj * w_run) * OUT * 4;
    const int64_t ahead =
        x[M].planes - x[0].planes; /* to the same place in the rows after these; a guess if rows are gathered */
    const uint8_t *base = pn->codes;
    int64_t col = (int64_t)(pc->g0 / s->gpc) * s->step; /* chunks start columns */
    int sub = 0;
    for (const piece *end = pc + n_pc; pc < end; pc++) {
        __m512 acc[MB][2];
        for (int m = 0; m < M; m++)
            for (int p = 0; p < P; p++)
                acc[m][p] = pc->opens ? _mm512_setzero_ps() : _mm512_load_ps(pn->acc + (size_t)(r0 + m) * OUT + 16 * p);
        for (int g = pc->g0; g < pc->g1; g++, base += group) {
            const int64_t x_at = col + sub * w_run * 4, next_line = col + ahead + sub * s->lines * 64;
            const int runs = g == s->n_groups - 1 ? s->nj_last : nj;
            if (++sub == s->gpc) sub = 0, col += s->step;
            __m512i d[MB][2];
            for (int m = 0; m < M; m++)
                for (int p = 0; p < P; p++) d[m][p] = _mm512_setzero_si512();
            run_sums(x, d, M, P, w_run, base, x_at, runs, s->run);
            for (int m = 0; m < M; m++)
                for (int p = 0; p < P; p++) d[m][p] = _mm512_slli_epi32(d[m][p], 8);
            run_sums(x, d, M, P, w_run, base, x_at + s->lo, runs, s->run);
            next_fetch(pn);
            for (int m = 0; m < M; m++)
                for (int i = 0; i < s->lines; i++)
                    _mm_prefetch((const char *)x[m].planes + next_line + i * 64, _MM_HINT_T0);
            if (s->minus)
                for (int m = 0; m < M; m++)
                    for (int p = 0; p < P; p++)
                        d[m][p] = _mm512_sub_epi32(d[m][p], _mm512_set1_epi32(s->minus * x[m].sum[g]));
            for (int p = 0; p < P; p++) {
                __m512 sv = _mm512_load_ps(pn->st + (size_t)g * OUT + 16 * p),
                       bv = _mm512_load_ps(pn->bt + (size_t)g * OUT + 16 * p);
                for (int m = 0; m < M; m++) {
                    __m512 f = _mm512_mul_ps(_mm512_set1_ps(x[m].dx[g]), _mm512_cvtepi32_ps(d[m][p]));
                    if (!s->minus) acc[m][p] = _mm512_fmadd_ps(bv, _mm512_set1_ps(x[m].xs[g]), acc[m][p]);
                    acc[m][p] = _mm512_fmadd_ps(sv, f, acc[m][p]);
                }
            }
        }
        for (int m = 0; m < M; m++)
            for (int p = 0; p < P; p++) {
                float *y = pn->y + (size_t)(r0 + m) * OUT + 16 * p;
                if (!pc->closes) _mm512_store_ps(pn->acc + (size_t)(r0 + m) * OUT + 16 * p, acc[m][p]);
                else _mm512_store_ps(y, pc->first ? acc[m][p] : _mm512_add_ps(_mm512_load_ps(y), acc[m][p]));
            }
    }
}

/* The same for float weights: D = 256*(256*HH + HL + LH - 128*sum xi) + LL, two sums an output. */
INLINE void segment_wide(const shape *s, panel *pn, const cb_xrow *x, const int M, const int P, const piece *pc, int n_pc,
                         int r0)
{
    const uint8_t *q = pn->codes;
    for (const piece *end = pc + n_pc; pc < end; pc++) {
        __m512 acc[MB_WIDE][2];
        for (int m = 0; m < M; m++)
            for (int p = 0; p < P; p++)
                acc[m][p] = pc->opens ? _mm512_setzero_ps() : _mm512_load_ps(pn->acc + (size_t)(r0 + m) * OUT + 16 * p);
        for (int g = pc->g0; g < pc->g1; g++, q += 16 * 8 * OUT) {
            const int64_t at = (int64_t)g * s->step;
            __m512i h[MB_WIDE][2], l[MB_WIDE][2];
            for (int m = 0; m < M; m++)
                for (int p = 0; p < P; p++) h[m][p] = l[m][p] = _mm512_setzero_si512();
            for (int w = 0; w < 16; w++)
                for (int m = 0; m < M; m++) {
                    __m512i b = word_at(x[m].planes + at + 4 * w);
                    for (int p = 0; p < P; p++)
                        h[m][p] = _mm512_dpbusd_epi32(h[m][p], _mm512_load_si512(q + w * 8 * OUT + 64 * p), b);
                }
            for (int m = 0; m < M; m++)
                for (int p = 0; p < P; p++) h[m][p] = _mm512_slli_epi32(h[m][p], 8);
            for (int w = 0; w < 16; w++) {
                const uint8_t *c = q + w * 8 * OUT;
                for (int m = 0; m < M; m++) {
                    __m512i bh = word_at(x[m].planes + at + 4 * w), bl = word_at(x[m].planes + at + 64 + 4 * w);
                    for (int p = 0; p < P; p++) {
                        __m512i ch = _mm512_load_si512(c + 64 * p), cl = _mm512_load_si512(c + 4 * OUT + 64 * p);
                        h[m][p] = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(h[m][p], ch, bl), cl, bh);
                        l[m][p] = _mm512_dpbusd_epi32(l[m][p], cl, bl);
                    }
                }
            }
            next_fetch(pn);
            for (int p = 0; p < P; p++)
                for (int m = 0; m < M; m++) {
                    __m512i hh = _mm512_sub_epi32(h[m][p], _mm512_set1_epi32(128 * x[m].sum[g]));
                    __m512 f = _mm512_mul_ps(_mm512_set1_ps(x[m].dx[g]), cb_hl_to_f32_x16(hh, l[m][p]));
                    acc[m][p] = _mm512_fmadd_ps(_mm512_load_ps(pn->st + (size_t)g * OUT + 16 * p), f, acc[m][p]);
                }
        }
        for (int m = 0; m < M; m++)
            for (int p = 0; p < P; p++) {
                float *y = pn->y + (size_t)(r0 + m) * OUT + 16 * p;
                if (!pc->closes) _mm512_store_ps(pn->acc + (size_t)(r0 + m) * OUT + 16 * p, acc[m][p]);
                else _mm512_store_ps(y, pc->first ? acc[m][p] : _mm512_add_ps(_mm512_load_ps(y), acc[m][p]));
            }
    }
}

typedef void segment_fn(const shape *s, panel *pn, const cb_xrow *x, const piece *pc, int n_pc, int r0);
#define SEGMENT(M, P, W)                                                                                                   \
    static void segment_##M##_##P##_##W(const shape *s, panel *pn, const cb_xrow *x, const piece *pc, int n_pc, int r0)    \
    {                                                                                                                      \
        segment(s, pn, x, M, P, W, pc, n_pc, r0);                                                                          \
    }
#define SEGMENTS(P, W)                                                                                                     \
    SEGMENT(1, P, W)                                                                                                       \
    SEGMENT(2, P, W) SEGMENT(3, P, W) SEGMENT(4, P, W) SEGMENT(5, P, W)                                                    \
        SEGMENT(6, P, W) static segment_fn *const segments_##P##_##W[MB + 1] = {NULL,                                      \
                                                                                segment_1_##P##_##W,                       \
                                                                                segment_2_##P##_##W,                       \
                                                                                segment_3_##P##_##W,                       \
                                                                                segment_4_##P##_##W,                       \
                                                                                segment_5_##P##_##W,                       \
                                                                                segment_6_##P##_##W};
#define SEGMENT_WIDE(M, P)                                                                                                 \
    static void segment_wide_##M##_##P(const shape *s, panel *pn, const cb_xrow *x, const piece *pc, int n_pc, int r0)     \
    {                                                                                                                      \
        segment_wide(s, pn, x, M, P, pc, n_pc, r0);                                                                        \
    }
#define SEGMENTS_WIDE(P)                                                                                                   \
    SEGMENT_WIDE(1, P)                                                                                                     \
    SEGMENT_WIDE(2, P) SEGMENT_WIDE(3, P) SEGMENT_WIDE(4, P) static segment_fn *const segments_wide_##P[MB_WIDE + 1] = {   \
        NULL, segment_wide_1_##P, segment_wide_2_##P, segment_wide_3_##P, segment_wide_4_##P};
SEGMENTS_WIDE(1)
SEGMENTS_WIDE(2) SEGMENTS(1, 0) SEGMENTS(2, 0) SEGMENTS(2, 4) SEGMENTS(2, 8) SEGMENTS(2, 16)

    /* The pieces of chunk g0..g1-1. Empty segments (fewer than eight groups, so one chunk) are pieces without groups. */
    static int cut(piece out[8], int G, int g0, int g1)
{
    int n = 0;
    for (int l = 0; l < 8; l++) {
        int a = l * G / 8, b = (l + 1) * G / 8, lo = a > g0 ? a : g0, hi = b < g1 ? b : g1;
        if (lo < hi || a == b) out[n++] = (piece){lo, hi < lo ? lo : hi, lo == a, hi == b || a == b, l == 0};
    }
    return n;
}

/* All of K for the rows r0..r0+rows-1 and the outputs of one panel. */
INLINE void panel_rows(const cb_mm *mm, const cb_geom s, const shape *sh, panel *pn, segment_fn *const *fn, int r0,
                       int rows, int64_t n, int64_t n1, const cb_odd *odd)
{
    const int G = mm->n_groups, gpc = geom_groups(s), mb = s.kind == KIND_WIDE ? MB_WIDE : MB;
    const int blocks = (rows + mb - 1) / mb; /* of nearly equal size: few rows use the panel badly */
    int chunk = CHUNK_K / mm->group < 8 ? 8 : CHUNK_K / mm->group;
    chunk = (chunk + gpc - 1) / gpc * gpc;
    cb_xrow x[ROWS_MAX + 1];
    for (int r = 0; r < rows; r++) x[r] = x_row_at(mm, r0 + r);
    x[rows] = x[0];
    for (int g0 = 0; g0 < G; g0 += chunk) {
        int g1 = g0 + chunk < G ? g0 + chunk : G;
        piece pc[8];
        int n_pc = cut(pc, G, g0, g1);
        for (int p = 0; p < 2 && n + 16 * p < n1; p++) unpack_half(mm, s, pn, p, n + 16 * p, n1, g0, g1, odd);
        for (int i = 0; i < blocks; i++) {
            int r = i * rows / blocks;
            fn[(i + 1) * rows / blocks - r](sh, pn, x + r, pc, n_pc, r);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < 2 && n + 16 * p < n1; p++)
            store_y(mm, r0 + r, n + 16 * p, cb_mask16(n1 - n - 16 * p), _mm512_load_ps(pn->y + r * OUT + 16 * p));
}

INLINE void gemm(const cb_mm *mm, const cb_geom s, int64_t n0, int64_t n1, void *scratch)
{
    cb_odd odd;
    if (s.kind == KIND_ODD) odd = odd_make(mm->bits);
    size_t groups = ((size_t)mm->n_groups + 15) / 16 * 16;
    panel pn = {.y = scratch};
    pn.acc = pn.y + ROWS_MAX * OUT, pn.st = pn.acc + ROWS_MAX * OUT, pn.bt = pn.st + groups * OUT;
    pn.codes = (uint8_t *)(pn.bt + groups * OUT);
    const int64_t before = (int64_t)((mm->n_groups - 1) / geom_groups(s)) * column_bytes(s, mm->bits);
    const shape sh = {s.w,
                      s.nj,
                      geom_groups(s),
                      geom_x_run(s),
                      geom_x_lo(s),
                      geom_x_step(s),
                      geom_x_step(s) / 64 / geom_groups(s),
                      mm->n_groups,
                      runs_left(s, (int64_t)mm->row_bytes - before, mm->bits),
                      s.kind == KIND_FP4 ? 12 : 0};
    segment_fn *const *two = s.w == 4 ? segments_2_4 : s.w == 8 ? segments_2_8 : s.w == 16 ? segments_2_16 : segments_2_0;
    segment_fn *const *one = s.kind == KIND_WIDE ? segments_wide_1 : segments_1_0;
    if (s.kind == KIND_WIDE) two = segments_wide_2;
    for (int64_t n = n0; n < n1; n += OUT) {
        next_init(&pn, mm, n, n1, s.kind == KIND_WIDE ? MB_WIDE : MB);
        for (int p = 0; p < 2 && n + 16 * p < n1; p++) scales_half(mm, &pn, p, n + 16 * p, n1);
        for (int r = 0; r < mm->n_rows; r += ROWS_MAX)
            panel_rows(mm, s, &sh, &pn, n + 16 < n1 ? two : one, r, mm->n_rows - r < ROWS_MAX ? mm->n_rows - r : ROWS_MAX,
                       n, n1, &odd);
    }
}

#define GEMM(kind, w, nj)                                                                                                  \
    static void gemm_##kind##_##w##_##nj(const cb_mm *mm, int64_t n0, int64_t n1, void *scratch)                           \
    {                                                                                                                      \
        const cb_geom s = {kind, w, nj};                                                                                   \
        gemm(mm, s, n0, n1, scratch);                                                                                      \
    }
CB_GEOMS(GEMM)
GEMM(KIND_WIDE, 16, 1)

void cb_gemm_avx512(const cb_mm *mm, cb_geom s, int64_t n0, int64_t n1, void *scratch)
{
#define DISPATCH(k, ww, j)                                                                                                 \
    if (s.kind == k && s.w == ww && s.nj == j) gemm_##k##_##ww##_##j(mm, n0, n1, scratch);
    CB_GEOMS(DISPATCH)
    DISPATCH(KIND_WIDE, 16, 1)
}
