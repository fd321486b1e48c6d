/* attn_avx512.c: attention over one KV block. Scores have tokens in the lanes (K is stored in pairs of dims, 16 tokens a
 * vector), results have dims in the lanes (V is stored in pairs of tokens). Both are the same product: VPDPWSSD of stored
 * pairs and a broadcast pair of each query's numbers or weights, high and low part apart. Up to four queries share a load.
 */
#include "kernels/kernels_avx512.h"
#include "kernels/num_avx512.h"

enum { QB = 4, NV = CB_KV_BLOCK / 16 }; /* queries at a time; vectors of tokens */

/* Pairs to multiply: n of them, `step` apart; the first pairs of query q's high and low parts are at h + q*per, l + q*per.
 */
typedef struct pairs {
    const int16_t *v, *h, *l;
    size_t step, per;
    int n;
    const char *fetch; /* as many bytes as v's block to fetch meanwhile, or NULL */
} pairs;

static inline __m512i pair_at(const int16_t *p)
{
    int32_t v;
    memcpy(&v, p, 4);
    return _mm512_set1_epi32(v);
}

/* Sums of Q queries and T vectors; with T = 1 only the lanes of k are read. Q and T (1, 2, 4) are constants; the four
 * vectors are written out, for only then does the compiler keep the arrays in registers. */
INLINE void dots(const pairs *p, const int Q, const int T, __mmask16 k, __m512i h[QB][4], __m512i l[QB][4])
{
    const int16_t *v = p->v;
    const char *f = p->fetch;
    for (int q = 0; q < Q; q++) {
        h[q][0] = h[q][1] = h[q][2] = h[q][3] = _mm512_setzero_si512();
        l[q][0] = l[q][1] = l[q][2] = l[q][3] = _mm512_setzero_si512();
    }
    for (int i = 0; i < p->n; i++, v += p->step) {
        const __m512i zero = _mm512_setzero_si512();
        const __m512i v0 = T > 1 ? _mm512_loadu_si512(v) : _mm512_maskz_loadu_epi32(k, v),
                      v1 = T > 1 ? _mm512_loadu_si512(v + 32) : zero;
        const __m512i v2 = T > 2 ? _mm512_loadu_si512(v + 64) : zero, v3 = T > 2 ? _mm512_loadu_si512(v + 96) : zero;
        if (f) {
            for (int j = 0; j < 4; j++) _mm_prefetch(f + 64 * j, _MM_HINT_T0);
            f += 256;
        }
        for (int q = 0; q < Q; q++) {
            const __m512i bh = pair_at(p->h + (size_t)q * p->per + 2 * i), bl = pair_at(p->l + (size_t)q * p->per + 2 * i);
            h[q][0] = _mm512_dpwssd_epi32(h[q][0], v0, bh), l[q][0] = _mm512_dpwssd_epi32(l[q][0], v0, bl);
            if (T > 1) h[q][1] = _mm512_dpwssd_epi32(h[q][1], v1, bh), l[q][1] = _mm512_dpwssd_epi32(l[q][1], v1, bl);
            if (T > 2) h[q][2] = _mm512_dpwssd_epi32(h[q][2], v2, bh), l[q][2] = _mm512_dpwssd_epi32(l[q][2], v2, bl);
            if (T > 2) h[q][3] = _mm512_dpwssd_epi32(h[q][3], v3, bh), l[q][3] = _mm512_dpwssd_epi32(l[q][3], v3, bl);
        }
    }
}

/* ---- scores ---------------------------------------------------------------------------------------------------------- */

/* Scores of Q queries from q0 on against the T vectors of tokens from t0 on: s[query][64]. */
INLINE void scores(const cb_attn *a, int q0, const int Q, int t0, const int T, const char *fetch, float *s)
{
    const int dim = a->dim, parts = cb_head_parts(dim);
    for (int g = 0; g < parts; g++) {
        const int d0 = 64 * g, n = dim - d0 < 64 ? (dim - d0) / 2 : 32;
        const size_t at = (size_t)q0 * (size_t)dim + (size_t)d0;
        const pairs p = {
            a->kv.k + (size_t)d0 * CB_KV_BLOCK + 32 * t0,       a->qh + at, a->ql + at, 2 * CB_KV_BLOCK, (size_t)dim, n,
            fetch ? fetch + (size_t)d0 * CB_KV_BLOCK * 2 : NULL};
        __m512i h[QB][4], l[QB][4];
        dots(&p, Q, T, 0xffff, h, l);
        for (int q = 0; q < Q; q++) {
            const __m512 dq = _mm512_set1_ps(a->dqs[(size_t)(q0 + q) * (size_t)parts + (size_t)g]);
            const float *dk = a->kv.dk + g * CB_KV_BLOCK + 16 * t0;
            float *o = s + q * CB_KV_BLOCK + 16 * t0;
#define FOLD(t)                                                                                                            \
    _mm512_store_ps(o + 16 * t,                                                                                            \
                    _mm512_fmadd_ps(cb_hl_to_f32_x16(h[q][t], l[q][t]), _mm512_mul_ps(dq, _mm512_loadu_ps(dk + 16 * t)),   \
                                    g ? _mm512_load_ps(o + 16 * t) : _mm512_setzero_ps()));
            FOLD(0)
            if (T > 1) FOLD(1)
            if (T > 2) {
                FOLD(2) FOLD(3)
            }
        }
    }
}

/* ---- softmax: three steps, each for all queries, so that their latencies overlap --------------------------------------
 */

static inline uint64_t seen_by(const cb_attn *a, int q)
{
    return (a->hi[q] < 64 ? (1ULL << a->hi[q]) - 1 : ~0ULL) & ~0ULL << a->lo[q];
}

/* The maximum m; the first of equal ones, since +0 and -0 are equal. */
static inline void largest(const cb_attn *a, int q, const float *s)
{
    const uint64_t seen = seen_by(a, q);
    __m512 top = _mm512_set1_ps(-INFINITY);
    for (int t = 0; t < NV; t++)
        top = _mm512_mask_max_ps(top, (__mmask16)(seen >> 16 * t), top, _mm512_load_ps(s + 16 * t));
    __m512 m = _mm512_set1_ps(_mm512_reduce_max_ps(top));
    uint64_t at = 0;
    for (int t = 0; t < NV; t++) at |= (uint64_t)_mm512_cmp_ps_mask(_mm512_load_ps(s + 16 * t), m, _CMP_EQ_OQ) << 16 * t;
    at &= seen;
    a->m[q] = at ? s[__builtin_ctzll(at)] : s[a->lo[q]];
}

/* Scores to weights p*dv in place, and their sum l of p; returns the largest weight. */
static inline float weights(const cb_attn *a, int q, float *s)
{
    const uint64_t seen = seen_by(a, q);
    const __m512 m = _mm512_set1_ps(a->m[q]);
    __m512 big = _mm512_setzero_ps(), p[NV];
    for (int t = 0; t < NV; t++) {
        const __mmask16 k = (__mmask16)(seen >> 16 * t);
        p[t] = _mm512_maskz_mov_ps(k, cb_expf_x16(_mm512_sub_ps(_mm512_load_ps(s + 16 * t), m)));
        __m512 w = _mm512_maskz_mul_ps(k, p[t], _mm512_loadu_ps(a->kv.dv + 16 * t));
        _mm512_store_ps(s + 16 * t, w);
        big = _mm512_max_ps(big, w);
    }
    a->l[q] = cb_lane_fold32_x16(_mm512_add_ps(p[0], p[2]), _mm512_add_ps(p[1], p[3]));
    return _mm512_reduce_max_ps(big);
}

/* Weights to high and low parts; returns their scale. The largest weight is wm; w*inv cannot round past CB_PW_MAX. */
static inline float parts_of(const float *w, float wm, int16_t *wh, int16_t *wl)
{
    const bool zero = wm < CB_TINY;
    const __m512 inv = _mm512_set1_ps(zero ? 0 : CB_PW_MAX / wm);
    for (int t = 0; t < NV; t++) {
        __m512i wi = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_load_ps(w + 16 * t), inv));
        _mm256_storeu_si256((__m256i *)(void *)(wh + 16 * t), _mm512_cvtepi32_epi16(_mm512_srli_epi32(wi, 8)));
        _mm256_storeu_si256((__m256i *)(void *)(wl + 16 * t),
                            _mm512_cvtepi32_epi16(_mm512_and_si512(wi, _mm512_set1_epi32(255))));
    }
    return zero ? 0 : wm * CB_PW_INV;
}

/* ---- results --------------------------------------------------------------------------------------------------------- */

/* T vectors of dims from d0 on, with T = 1 only those of mask k, for Q queries; tokens 2*i0 .. 2*i1-1. */
INLINE void weighted(const cb_attn *a, int q0, const int Q, int d0, const int T, __mmask16 k, int i0, int i1,
                     const int16_t *wh, const int16_t *wl, const float *dw)
{
    const pairs p = {a->kv.v + ((size_t)i0 * (size_t)a->dim + (size_t)d0) * 2,
                     wh + 2 * i0,
                     wl + 2 * i0,
                     2 * (size_t)a->dim,
                     CB_KV_BLOCK,
                     i1 - i0,
                     NULL};
    __m512i h[QB][4], l[QB][4];
    dots(&p, Q, T, k, h, l);
    for (int q = 0; q < Q; q++) {
        const __m512 scale = _mm512_set1_ps(dw[q]);
        float *o = a->o + (size_t)(q0 + q) * (size_t)a->dim + d0;
#define RESULT(t) _mm512_mul_ps(scale, cb_hl_to_f32_x16(h[q][t], l[q][t]))
        if (T == 1) _mm512_mask_storeu_ps(o, k, RESULT(0));
        if (T > 1) _mm512_storeu_ps(o, RESULT(0)), _mm512_storeu_ps(o + 16, RESULT(1));
        if (T > 2) _mm512_storeu_ps(o + 32, RESULT(2)), _mm512_storeu_ps(o + 48, RESULT(3));
    }
}

/* T: vectors at a time, so that the sums of Q queries fit the registers. */
INLINE void queries(const cb_attn *a, int q0, const int Q, const int T, const char *fetch)
{
    float s[QB * CB_KV_BLOCK] __attribute__((aligned(64))), dw[QB];
    int16_t wh[QB * CB_KV_BLOCK] __attribute__((aligned(64))), wl[QB * CB_KV_BLOCK] __attribute__((aligned(64)));
    int lo = CB_KV_BLOCK, hi = 0, d = 0;
    for (int t = 0; t < NV; t += T) scores(a, q0, Q, t, T, t ? NULL : fetch, s);
    for (int q = 0; q < Q; q++) largest(a, q0 + q, s + q * CB_KV_BLOCK);
    for (int q = 0; q < Q; q++) dw[q] = weights(a, q0 + q, s + q * CB_KV_BLOCK);
    for (int q = 0; q < Q; q++) {
        dw[q] = parts_of(s + q * CB_KV_BLOCK, dw[q], wh + q * CB_KV_BLOCK, wl + q * CB_KV_BLOCK);
        lo = a->lo[q0 + q] < lo ? a->lo[q0 + q] : lo;
        hi = a->hi[q0 + q] > hi ? a->hi[q0 + q] : hi;
    }
    for (; d + 16 * T <= a->dim; d += 16 * T) weighted(a, q0, Q, d, T, 0xffff, lo / 2, (hi + 1) / 2, wh, wl, dw);
    for (; d < a->dim; d += 16) weighted(a, q0, Q, d, 1, cb_mask16(a->dim - d), lo / 2, (hi + 1) / 2, wh, wl, dw);
}

void cb_attn_block_avx512(const cb_attn *a)
{
    for (int q = 0; q < a->n_q;) {
        int left = a->n_q - q, blocks = (left + QB - 1) / QB, n = (left + blocks - 1) / blocks;
        const char *fetch = q ? NULL : (const char *)a->kv.v; /* V arrives while K is read */
        switch (n) {
        case 1: queries(a, q, 1, 4, fetch); break;
        case 2: queries(a, q, 2, 4, fetch); break;
        case 3: queries(a, q, 3, 2, fetch); break;
        default: queries(a, q, 4, 2, fetch); break;
        }
        q += n;
    }
}

/* ---- merge ------------------------------------------------------------------------------------------------------------
 */

void cb_attn_merge_avx512(float *mm, float *ll, float *oo, float m, float l, const float *o, int dim)
{
    float M = *mm > m ? *mm : m;
    float a = cb_expf(*mm - M), c = cb_expf(m - M);
    *ll = cb_fma(*ll, a, l * c);
    __m512 va = _mm512_set1_ps(a), vc = _mm512_set1_ps(c);
    for (int d = 0; d < dim; d += 16) {
        __mmask16 k = cb_mask16(dim - d);
        __m512 t = _mm512_mul_ps(_mm512_maskz_loadu_ps(k, o + d), vc);
        _mm512_mask_storeu_ps(oo + d, k, _mm512_fmadd_ps(_mm512_maskz_loadu_ps(k, oo + d), va, t));
    }
    *mm = M;
}
