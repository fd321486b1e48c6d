/* attn_avx2.c: attention over one KV block; attn_c.c is the truth. Lanes are tokens for the scores and dims for the output.
 * VPMADDWD takes the 16-bit K and V as they are, and the other side in two parts of 8 bits, so that sums fit an int32. */
#include "kernels/kernels_avx2.h"
#include "kernels/kernels_c.h"
#include "kernels/num_avx2.h"

enum { TOKENS = CB_KV_BLOCK };

static inline __m256i load8(const void *p) { return _mm256_loadu_si256(p); }
static inline __m256i pair(const int16_t *p)
{
    int32_t v;
    memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
}

#define ADD_PAIR(V, H, L)                                                                                                 \
    do {                                                                                                                  \
        __m256i w = load8(b + 16 * V);                                                                                    \
        H = _mm256_add_epi32(H, _mm256_madd_epi16(ph, w));                                                                \
        L = _mm256_add_epi32(L, _mm256_madd_epi16(pl, w));                                                                \
    } while (0)

/* out[v] = (float)(sum over n pairs of a * b) on 32 lanes: a, in parts 256*ah + al, is the same for all lanes, b holds a
 * pair for each lane, and the next pairs stand `stride` numbers on. */
static inline void dot32(const int16_t *ah, const int16_t *al, const int16_t *b, size_t stride, int n, __m256 out[4])
{
    __m256i h0 = _mm256_setzero_si256(), h1 = h0, h2 = h0, h3 = h0, l0 = h0, l1 = h0, l2 = h0, l3 = h0;
    for (int i = 0; i < n; i++, b += stride) {
        __m256i ph = pair(ah + 2 * i), pl = pair(al + 2 * i);
        ADD_PAIR(0, h0, l0);
        ADD_PAIR(1, h1, l1);
        ADD_PAIR(2, h2, l2);
        ADD_PAIR(3, h3, l3);
    }
    out[0] = v8_hl_to_f32(h0, l0);
    out[1] = v8_hl_to_f32(h1, l1);
    out[2] = v8_hl_to_f32(h2, l2);
    out[3] = v8_hl_to_f32(h3, l3);
}
static inline __m256 dot8(const int16_t *ah, const int16_t *al, const int16_t *b, size_t stride, int n)
{
    __m256i h = _mm256_setzero_si256(), l = h;
    for (int i = 0; i < n; i++, b += stride) {
        __m256i ph = pair(ah + 2 * i), pl = pair(al + 2 * i);
        ADD_PAIR(0, h, l);
    }
    return v8_hl_to_f32(h, l);
}

static inline __m256 between(int lo, int hi, int at)
{
    return _mm256_castsi256_ps(_mm256_andnot_si256(v8_below(lo - at), v8_below(hi - at)));
}

/* Scores of the tokens lo..hi, elsewhere -inf; returns the maximum, of equal ones (zeros of both signs) the first. */
static float scores(const cb_attn *a, int q, int lo, int hi, float s[TOKENS])
{
    int dim = a->dim, parts = cb_head_parts(dim);
    const int16_t *qh = a->qh + (size_t)q * dim, *ql = a->ql + (size_t)q * dim;
    const float *dqs = a->dqs + (size_t)q * parts;
    __m256 best = v8_set(-INFINITY);
    for (int t = lo / 32 * 32; t < hi; t += 32) {
        __m256 x[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
        for (int g = 0; g < parts; g++) {
            int n = dim - 64 * g < 64 ? (dim - 64 * g) / 2 : 32;
            const float *dk = a->kv.dk + g * TOKENS + t;
            __m256 d[4];
            dot32(qh + 64 * g, ql + 64 * g, a->kv.k + (size_t)g * 32 * 2 * TOKENS + 2 * t, 2 * TOKENS, n, d);
            for (int v = 0; v < 4; v++)
                x[v] = _mm256_fmadd_ps(d[v], _mm256_mul_ps(v8_set(dqs[g]), _mm256_loadu_ps(dk + 8 * v)), x[v]);
        }
        for (int v = 0; v < 4; v++) {
            x[v] = _mm256_blendv_ps(v8_set(-INFINITY), x[v], between(lo, hi, t + 8 * v));
            best = _mm256_max_ps(x[v], best);
            _mm256_storeu_ps(s + t + 8 * v, x[v]);
        }
    }
    float m = v8_hmax(best);
    for (int t = lo; t < hi; t++)
        if (s[t] == m) return s[t];
    return m;
}

/* p = exp(s - m) of the tokens lo..hi; w = p*dv in 16 bits without a sign, as 256*wh + wl, elsewhere 0. Returns the scale
 * of w, and in *l the lane tree of p. */
static float weights(const float s[TOKENS], float m, const float *dv, int lo, int hi, int16_t wh[TOKENS],
                     int16_t wl[TOKENS], float *l)
{
    __m256 lane[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
    __m256 w[TOKENS / 8], top = _mm256_setzero_ps();
    for (int v = 0; v < TOKENS / 8; v++) {
        __m256 in = between(lo, hi, 8 * v);
        __m256 p = _mm256_and_ps(in, v8_exp(_mm256_sub_ps(_mm256_loadu_ps(s + 8 * v), v8_set(m))));
        lane[v % 4] = _mm256_add_ps(lane[v % 4], p); /* p is never negative: adding the masked 0 changes no bit */
        w[v] = _mm256_and_ps(in, _mm256_mul_ps(p, _mm256_loadu_ps(dv + 8 * v)));
        top = _mm256_max_ps(w[v], top);
    }
    *l = v8_lane_fold32(lane);
    float wm = v8_hmax(top);
    __m256 inv = v8_set(wm < CB_TINY ? 0 : CB_PW_MAX / wm);
    for (int v = 0; v < TOKENS / 8; v += 2) {
        __m256i i[2], low = _mm256_set1_epi32(255), max = _mm256_set1_epi32(CB_PW_MAX);
        for (int j = 0; j < 2; j++) i[j] = _mm256_min_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(w[v + j], inv)), max);
        __m256i h = _mm256_packs_epi32(_mm256_srai_epi32(i[0], 8), _mm256_srai_epi32(i[1], 8));
        __m256i r = _mm256_packs_epi32(_mm256_and_si256(i[0], low), _mm256_and_si256(i[1], low));
        _mm256_storeu_si256((void *)(wh + 8 * v), _mm256_permute4x64_epi64(h, 0xd8));
        _mm256_storeu_si256((void *)(wl + 8 * v), _mm256_permute4x64_epi64(r, 0xd8));
    }
    return wm < CB_TINY ? 0 : wm * CB_PW_INV;
}

static void one_query(const cb_attn *a, int q)
{
    int dim = a->dim, lo = a->lo[q], hi = a->hi[q], d = 0;
    float s[TOKENS] = {0};
    int16_t wh[TOKENS], wl[TOKENS];
    a->m[q] = scores(a, q, lo, hi, s);
    float dw = weights(s, a->m[q], a->kv.dv, lo, hi, wh, wl, &a->l[q]);

    int t0 = lo / 2, n = (hi + 1) / 2 - t0; /* the other tokens' weights are zero */
    float *o = a->o + (size_t)q * dim;
    const int16_t *ph = wh + 2 * t0, *pl = wl + 2 * t0, *v = a->kv.v + (size_t)t0 * dim * 2;
    size_t stride = 2 * (size_t)dim;
    for (; d + 32 <= dim; d += 32) {
        __m256 x[4];
        dot32(ph, pl, v + 2 * d, stride, n, x);
        for (int i = 0; i < 4; i++) _mm256_storeu_ps(o + d + 8 * i, _mm256_mul_ps(v8_set(dw), x[i]));
    }
    for (; d + 8 <= dim; d += 8) _mm256_storeu_ps(o + d, _mm256_mul_ps(v8_set(dw), dot8(ph, pl, v + 2 * d, stride, n)));
    for (; d < dim; d++) {
        int32_t h = 0, l = 0;
        for (int t = 0; t < 2 * n; t++) {
            int x = v[((size_t)(t / 2) * dim + d) * 2 + t % 2];
            h += ph[t] * x;
            l += pl[t] * x;
        }
        o[d] = dw * cb_hl_to_f32(h, l);
    }
}

void cb_attn_block_avx2(const cb_attn *a)
{
    for (int q = 0; q < a->n_q; q++) one_query(a, q);
}

void cb_attn_merge_avx2(float *mm, float *ll, float *oo, float m, float l, const float *o, int dim)
{
    float M = *mm > m ? *mm : m;
    float a = cb_expf(*mm - M), c = cb_expf(m - M);
    *ll = cb_fma(*ll, a, l * c);
    int d = 0;
    for (; d + 8 <= dim; d += 8) {
        __m256 oc = _mm256_mul_ps(_mm256_loadu_ps(o + d), v8_set(c));
        _mm256_storeu_ps(oo + d, _mm256_fmadd_ps(_mm256_loadu_ps(oo + d), v8_set(a), oc));
    }
    for (; d < dim; d++) oo[d] = cb_fma(oo[d], a, o[d] * c);
    *mm = M;
}
