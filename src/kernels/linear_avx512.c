/* linear_avx512.c: products of few rows (decode). Sixteen outputs at a time: each row of weights gives a vector of word
 * sums, sixteen such vectors are added up crosswise into vectors whose lane is the output, and the float chain then runs
 * for sixteen outputs at once in the defined order. Read linear_avx512.h first. */
#include "kernels/linear_avx512.h"
#include "kernels/kernels_c.h"

enum { GEMM_ROWS = 5 }; /* from here on the panel pays; from 2 on where unpacking is dear */
enum {
    CHUNK = 16,  /* groups whose scales are transposed at a time; a multiple of the groups in a column */
    AHEAD = 384, /* (half a row where that is less) bytes of a row fetched in advance: enough to set the hardware's own prefetch going in each of 16 rows */
    SHORT = 640  /* rows with fewer bytes that do not fill whole lines are fetched a block ahead instead, as they lie */
};

/* One block of 16 outputs. */
typedef struct block {
    const uint8_t *row[16];                                /* codes; rows past the last repeat it */
    int64_t at[16];                                        /* index of their first scale */
    const uint8_t *next_codes, *next_scales, *next_biases; /* the block after this one, to fetch; of the last: this one */
    const uint8_t *end_codes;
    int64_t ahead, row_bytes, skip; /* from the last bytes of a row to its successor in the next block: skip bytes */
} block;

static void block_init(block *b, const cb_mm *mm, int64_t n, int64_t n1)
{
    size_t per = (size_t)mm->n_groups * cb_scale_size(mm->scale_type);
    for (int r = 0; r < 16; r++) {
        int64_t i = n + r < n1 ? n + r : n1 - 1;
        b->row[r] = mm->codes + (size_t)i * mm->row_bytes;
        b->at[r] = i * mm->n_groups;
    }
    int64_t next = n + 16 < n1 ? n + 16 : n;
    b->next_codes = mm->codes + (size_t)next * mm->row_bytes;
    b->end_codes = mm->codes + (size_t)n1 * mm->row_bytes;
    b->next_scales = mm->scales + (size_t)next * per;
    b->next_biases = mm->biases ? mm->biases + (size_t)next * per : NULL;
    b->row_bytes = (int64_t)mm->row_bytes;
    b->ahead = b->row_bytes < 2 * AHEAD ? b->row_bytes / 128 * 64 : AHEAD;
    b->skip = next > n ? 15 * b->row_bytes : -b->ahead;
}

/* Where to fetch when byte `at` of a row is read, as an offset from the row. */
static inline int64_t fetch_at(const block *b, int64_t at)
{
    return at + b->ahead + (at + b->ahead < b->row_bytes ? 0 : b->skip);
}

INLINE void prefetch(const uint8_t *p, int lines)
{
    for (int i = 0; i < lines; i++) _mm_prefetch((const char *)p + 64 * i, _MM_HINT_T1);
}

/* M rows of x against 16 outputs; M and s are constants. */
INLINE void gemv16(const cb_mm *mm, block *b, const cb_xrow *x, __m512 *y, cb_geom s, int M, const cb_odd *odd)
{
    float st[CHUNK * 16] __attribute__((aligned(64))), bt[CHUNK * 16] __attribute__((aligned(64)));
    const int gpc = geom_groups(s), step = geom_x_step(s), run = geom_x_run(s), lo = geom_x_lo(s);
    const int64_t bytes = column_bytes(s, mm->bits);
    const int G = mm->n_groups;
    const bool in_row = b->row_bytes >= SHORT || (b->row_bytes % 64 == 0 && b->row_bytes >= 256);
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
        prefetch(b->next_scales, 8), b->next_scales += 512;
        if (s.kind != KIND_FP4) {
            scales_block(mm, mm->biases, sc_at, n_chunk, bt, 16);
            prefetch(b->next_biases, 8), b->next_biases += 512;
        }
        for (int c = 0; c * gpc < n_chunk; c++, at += bytes, left -= bytes) {
            const bool full = left >= bytes;
            const int64_t fetch = fetch_at(b, at);
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
                if (in_row) {
                    for (int i = 0; i < 4; i++) _mm_prefetch((const char *)b->row[4 * q + i] + fetch, _MM_HINT_T0);
                } else {
                    if (b->next_codes < b->end_codes) prefetch(b->next_codes, 4);
                    b->next_codes += 256;
                }
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
    cb_odd odd;
    if (s.kind == KIND_ODD) odd = odd_make(mm->bits);
    for (int m = 0; m < M; m++) x[m] = x_row_at(mm, r + m);
    for (int64_t n = n0; n < n1; n += 16) {
        block b;
        block_init(&b, mm, n, n1);
        gemv16(mm, &b, x, y, s, M, &odd);
        for (int m = 0; m < M; m++) store_y(mm, r + m, n, cb_mask16(n1 - n), y[m]);
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
        for (int64_t n = n0; n < n1; n += 16) {
            float st[CHUNK * 16] __attribute__((aligned(64)));
            block b;
            block_init(&b, mm, n, n1);
            int seg = 0;
            __m512 acc = _mm512_setzero_ps(), y = acc;
            close_segments(0, G, &seg, &acc, &y, 1);
            for (int g = 0; g < G; g++) {
                if (g % CHUNK == 0) {
                    int64_t sc_at[16];
                    for (int i = 0; i < 16; i++) sc_at[i] = b.at[i] + g;
                    scales_16(mm, mm->scales, CB_S_F32, sc_at, G - g < CHUNK ? G - g : CHUNK, st, 16);
                    prefetch(b.next_scales, 16), b.next_scales += 1024;
                }
                __m512i xh = _mm512_load_si512(x.planes + g * 128), xl = _mm512_load_si512(x.planes + g * 128 + 64);
                __m512i fh[4][4], fl[4][4], h, l;
                const int64_t fetch = fetch_at(&b, (int64_t)g * 128);
                for (int q = 0; q < 4; q++) {
                    __m512i dh[4], dl[4], zero = _mm512_setzero_si512();
                    for (int i = 0; i < 4; i++) {
                        const uint8_t *p = b.row[4 * q + i] + (size_t)g * 128;
                        _mm_prefetch((const char *)b.row[4 * q + i] + fetch, _MM_HINT_T0);
                        _mm_prefetch((const char *)b.row[4 * q + i] + fetch + 64, _MM_HINT_T0);
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
            store_y(mm, r, n, cb_mask16(n1 - n), y);
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
