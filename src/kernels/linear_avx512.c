/* linear_avx512.c: products of few rows (decode). Sixteen outputs at a time: each row of weights gives a vector of word
 * sums, sixteen such vectors are added up crosswise into vectors whose lane is the output, and the float chain then runs
 * for sixteen outputs at once in the defined order. Read linear_avx512.h first. Which sixteen decides how fast the weights come
 * from memory: see `streams`. */
#include "kernels/linear_avx512.h"
#include "kernels/kernels_c.h"

enum { GEMM_ROWS = 5 }; /* from here on the panel pays; from 2 on where unpacking is dear */
enum {
    CHUNK = 16,       /* groups whose scales are transposed at a time; a multiple of the groups in a column */
    AHEAD = 384,      /* bytes of codes fetched in advance in each lane: enough to set the hardware's own prefetch going */
    AHEAD_SCALES = 192
};

/* Sixteen outputs at a time are rows far apart: lane l walks through rows of its own, from n0 + l*S up to where the next lane
 * began, and so reads its codes and scales in one line from the first byte to the last. The hardware's prefetcher follows one
 * such line in each page; sixteen neighbouring rows, several to a page, whose reads jump from row to row it does not follow. */
typedef struct streams {
    const uint8_t *row[16]; /* codes; a lane past its end stays on the last row, and its results are dropped */
    int64_t at[16];         /* index of the row's first scale */
    int64_t n[16];          /* the row */
    int64_t n0, n1, S;      /* S steps */
} streams;

static void streams_open(streams *b, const cb_mm *mm, int64_t n0, int64_t n1)
{
    int64_t S = (n1 - n0 + 15) / 16;
    /* An even distance gives many lanes the same sets of the caches; of odd ones a power of two and one is the worst (measured). */
    if (S >= 16) S |= S >= 256 ? 7 : 1;
    *b = (streams){.n0 = n0, .n1 = n1, .S = S};
    for (int l = 0; l < 16; l++) {
        int64_t n = n0 + l * S < n1 ? n0 + l * S : n1 - 1;
        b->n[l] = n;
        b->row[l] = mm->codes + (size_t)n * mm->row_bytes;
        b->at[l] = n * mm->n_groups;
    }
    for (int i = 0; i < AHEAD; i += 64) /* the first bytes of each lane; the rest is fetched on the way */
        for (int l = 0; l < 16; l++) _mm_prefetch((const char *)b->row[l] + i, _MM_HINT_T0);
}

/* The next step. Neither this nor results_add is inlined: they would cost registers in the loops. */
static __attribute__((noinline)) void streams_next(streams *b, const cb_mm *mm)
{
    for (int l = 0; l < 16; l++) {
        int64_t more = b->n[l] + 1 < b->n1;
        b->n[l] += more;
        b->row[l] += (size_t)more * mm->row_bytes;
        b->at[l] += more * mm->n_groups;
    }
}

/* Results wait here for sixteen steps and go out by the line: written one at a time, each of a lane's outputs would miss the
 * first-level cache anew. */
typedef struct results {
    __m512i v[16]; /* [step % 16], lane = lane */
} results;

/* Steps i0..i0+n-1 (n <= 16) of row r of y. */
static void results_store(results *y, const streams *b, const cb_mm *mm, int r, int64_t i0, int n)
{
    __m512i t[16];
    for (int i = n; i < 16; i++) y->v[i] = _mm512_setzero_si512();
    transpose16(y->v, t);
    for (int l = 0; l < 16; l++) {
        int64_t at = b->n0 + l * b->S + i0, left = b->n1 - at;
        if (left <= 0) break;
        store_y(mm, r, at, cb_mask16(left < n ? left : n), _mm512_castsi512_ps(t[l]));
    }
}

static __attribute__((noinline)) void results_add(results *kept, const streams *b, const cb_mm *mm, int r, int64_t i, __m512 y)
{
    kept->v[i % 16] = _mm512_castps_si512(y);
    if (i % 16 == 15 || i + 1 == b->S) results_store(kept, b, mm, r, i / 16 * 16, (int)(i % 16) + 1);
}

/* Fetches the scales that stand a little after those at `at`. */
INLINE void fetch_scales(const uint8_t *p, const int64_t *at, size_t size)
{
    for (int l = 0; l < 16; l++) _mm_prefetch((const char *)p + (size_t)at[l] * size + AHEAD_SCALES, _MM_HINT_T0);
}

/* M rows of x against 16 outputs; M and s are constants. */
INLINE void gemv16(const cb_mm *mm, const streams *b, const cb_xrow *x, __m512 *y, cb_geom s, int M, const cb_odd *odd)
{
    float st[CHUNK * 16] __attribute__((aligned(64))), bt[CHUNK * 16] __attribute__((aligned(64)));
    const int gpc = geom_groups(s), step = geom_x_step(s), run = geom_x_run(s), lo = geom_x_lo(s);
    const int64_t bytes = column_bytes(s, mm->bits);
    const int G = mm->n_groups;
    const size_t size = cb_scale_size(mm->scale_type);
    int seg = 0;
    int64_t left = (int64_t)mm->row_bytes, at = 0;
    __m512 acc[4];
    for (int m = 0; m < M; m++) acc[m] = y[m] = _mm512_setzero_ps();
    close_segments(0, G, &seg, acc, y, M);
    for (int g0 = 0; g0 < G; g0 += CHUNK) {
        int n_chunk = G - g0 < CHUNK ? G - g0 : CHUNK;
        int64_t sc_at[16];
        for (int r = 0; r < 16; r++) sc_at[r] = b->at[r] + g0;
        scales_block(mm, mm->scales, sc_at, n_chunk, st, 16);
        fetch_scales(mm->scales, sc_at, size);
        if (s.kind != KIND_FP4) {
            scales_block(mm, mm->biases, sc_at, n_chunk, bt, 16);
            fetch_scales(mm->biases, sc_at, size);
        }
        for (int c = 0; c * gpc < n_chunk; c++, at += bytes, left -= bytes) {
            const bool full = left >= bytes;
            const int64_t x_at = (int64_t)(g0 / gpc + c) * step;
            __m512i f[4][4][4], D[4][16]; /* [m][quad][..], [m][group] */
            for (int q = 0; q < 4; q++) {
                __m512i d[4][4]; /* [m][row of the quad] */
                for (int i = 0; i < 4; i++) {
                    __m512i v[8];
                    if (full) unpack(s, b->row[4 * q + i] + at, left, true, mm->bits, odd, v);
                    else unpack(s, b->row[4 * q + i] + at, left, false, mm->bits, odd, v);
                    for (int m = 0; m < M; m++) {
                        const int8_t *p = x[m].planes + x_at;
                        __m512i a = _mm512_setzero_si512();
                        const int nj = full ? s.nj : runs_left(s, left, mm->bits);
                        for (int j = 0; j < nj; j++) a = _mm512_dpbusd_epi32(a, v[j], _mm512_load_si512(p + j * run));
                        a = _mm512_slli_epi32(a, 8);
                        for (int j = 0; j < nj; j++) a = _mm512_dpbusd_epi32(a, v[j], _mm512_load_si512(p + j * run + lo));
                        d[m][i] = a;
                    }
                }
                for (int i = 0; i < 4; i++) _mm_prefetch((const char *)b->row[4 * q + i] + at + AHEAD, _MM_HINT_T0);
                for (int m = 0; m < M; m++) quad_sum(d[m], s.w, f[m][q]);
            }
            for (int m = 0; m < M; m++) finish_sum(f[m], s.w, D[m]);
            for (int i = 0; i < gpc; i++) {
                int g = g0 + c * gpc + i;
                if (g >= G) break;
                __m512 sv = _mm512_load_ps(st + (c * gpc + i) * 16), bv = _mm512_load_ps(bt + (c * gpc + i) * 16);
                for (int m = 0; m < M; m++) {
                    __m512i di = D[m][i];
                    if (s.kind == KIND_FP4) di = _mm512_sub_epi32(di, _mm512_set1_epi32(12 * x[m].sum[g]));
                    __m512 p = _mm512_mul_ps(_mm512_set1_ps(x[m].dx[g]), _mm512_cvtepi32_ps(di));
                    if (s.kind != KIND_FP4) acc[m] = _mm512_fmadd_ps(bv, _mm512_set1_ps(x[m].xs[g]), acc[m]);
                    acc[m] = _mm512_fmadd_ps(sv, p, acc[m]);
                }
                close_segments(g + 1, G, &seg, acc, y, M);
            }
        }
    }
}

/* Rows r..r+M-1 against outputs n0..n1-1. */
INLINE void gemv_rows(const cb_mm *mm, int r, int64_t n0, int64_t n1, cb_geom s, int M)
{
    cb_xrow x[4];
    __m512 y[4];
    results kept[4];
    cb_odd odd;
    if (s.kind == KIND_ODD) odd = odd_make(mm->bits);
    for (int m = 0; m < M; m++) x[m] = x_row_at(mm, r + m);
    streams b;
    streams_open(&b, mm, n0, n1);
    for (int64_t i = 0; i < b.S; i++, streams_next(&b, mm)) {
        gemv16(mm, &b, x, y, s, M, &odd);
        for (int m = 0; m < M; m++) results_add(&kept[m], &b, mm, r + m, i, y[m]);
    }
}

#define GEMV(kind, w, nj)                                                                                                  \
    static void gemv_##kind##_##w##_##nj(const cb_mm *mm, int64_t n0, int64_t n1)                                          \
    {                                                                                                                      \
        const cb_geom s = {kind, w, nj};                                                                                   \
        int r = 0, n = mm->n_rows;                                                                                         \
        if (kind == KIND_B1 || kind == KIND_ODD) { /* rare: one row at a time is enough */                                 \
            for (; r < n; r++) gemv_rows(mm, r, n0, n1, s, 1);                                                             \
            return;                                                                                                        \
        }                                                                                                                  \
        for (; r + 4 <= n; r += 4) gemv_rows(mm, r, n0, n1, s, 4);                                                         \
        if (n - r == 3) gemv_rows(mm, r, n0, n1, s, 3);                                                                    \
        else if (n - r == 2) gemv_rows(mm, r, n0, n1, s, 2);                                                               \
        else if (n - r == 1) gemv_rows(mm, r, n0, n1, s, 1);                                                               \
    }
CB_GEOMS(GEMV)

/* Float weights in two planes: four sums a group, joined before the crosswise addition. */
static void gemv_planes(const cb_mm *mm, int64_t n0, int64_t n1)
{
    const int G = mm->n_groups;
    for (int r = 0; r < mm->n_rows; r++) {
        cb_xrow x = x_row_at(mm, r);
        results kept;
        streams b;
        streams_open(&b, mm, n0, n1);
        for (int64_t step = 0; step < b.S; step++, streams_next(&b, mm)) {
            float st[CHUNK * 16] __attribute__((aligned(64)));
            int seg = 0;
            __m512 acc = _mm512_setzero_ps(), y = acc;
            close_segments(0, G, &seg, &acc, &y, 1);
            for (int g = 0; g < G; g++) {
                if (g % CHUNK == 0) {
                    int64_t sc_at[16];
                    for (int i = 0; i < 16; i++) sc_at[i] = b.at[i] + g;
                    scales_16(mm, mm->scales, CB_S_F32, sc_at, G - g < CHUNK ? G - g : CHUNK, st, 16);
                    fetch_scales(mm->scales, sc_at, 4);
                }
                __m512i xh = _mm512_load_si512(x.planes + g * 128), xl = _mm512_load_si512(x.planes + g * 128 + 64);
                __m512i fh[4][4], fl[4][4], h, l;
                for (int q = 0; q < 4; q++) {
                    __m512i dh[4], dl[4], zero = _mm512_setzero_si512();
                    for (int i = 0; i < 4; i++) {
                        const uint8_t *p = b.row[4 * q + i] + (size_t)g * 128;
                        _mm_prefetch((const char *)p + AHEAD, _MM_HINT_T0);
                        _mm_prefetch((const char *)p + AHEAD + 64, _MM_HINT_T0);
                        __m512i wh = _mm512_loadu_si512(p), wl = _mm512_loadu_si512(p + 64);
                        __m512i a = _mm512_slli_epi32(_mm512_dpbusd_epi32(zero, wh, xh), 8);
                        dh[i] = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(a, wh, xl), wl, xh);
                        dl[i] = _mm512_dpbusd_epi32(zero, wl, xl);
                    }
                    quad_sum(dh, 16, fh[q]), quad_sum(dl, 16, fl[q]);
                }
                finish_sum(fh, 16, &h), finish_sum(fl, 16, &l);
                h = _mm512_sub_epi32(h, _mm512_set1_epi32(128 * x.sum[g])); /* w' - 32768 */
                __m512 p = _mm512_mul_ps(_mm512_set1_ps(x.dx[g]), cb_hl_to_f32_x16(h, l));
                acc = _mm512_fmadd_ps(_mm512_load_ps(st + g % CHUNK * 16), p, acc);
                close_segments(g + 1, G, &seg, &acc, &y, 1);
            }
            results_add(&kept, &b, mm, r, step, y);
        }
    }
}

void cb_linear_avx512(const cb_mm *mm, int64_t n0, int64_t n1, void *scratch)
{
    if (n0 >= n1) return;
    cb_geom s = geom_of(mm);
    if (s.kind >= 0 && mm->n_rows >= (s.kind == KIND_B1 || s.kind == KIND_ODD || s.kind == KIND_WIDE ? 2 : GEMM_ROWS)) {
        cb_gemm_avx512(mm, s, n0, n1, scratch);
        return;
    }
    if (s.kind == KIND_WIDE) {
        gemv_planes(mm, n0, n1);
        return;
    }
#define DISPATCH(k, ww, j)                                                                                                 \
    if (s.kind == k && s.w == ww && s.nj == j) {                                                                           \
        gemv_##k##_##ww##_##j(mm, n0, n1);                                                                                 \
        return;                                                                                                            \
    }
    CB_GEOMS(DISPATCH)
    cb_linear_c(mm, n0, n1, scratch);
}
