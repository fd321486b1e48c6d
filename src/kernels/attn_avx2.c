/* attn_avx2.c: attention over one KV block; attn_c.c is the truth. Products are 15 by 15 bits: a pair sum of VPMADDWD is at
 * most 2*16256^2, four of them still fit an int32, and then the sum is split into h*128 + l (any exact split gives the
 * same number, see cb_hl_to_f32). That costs a third less than two passes over 8-bit planes. */
#include "kernels/kernels_avx2.h"
#include "kernels/kernels_c.h"
#include "kernels/num_avx2.h"

enum { PAIRS_PER_SPLIT = 4, TOKENS = CB_KV_BLOCK };

static inline __m256i load8(const void *p) { return _mm256_loadu_si256(p); }

static inline void split(__m256i s, __m256i *h, __m256i *l)
{
    *h = _mm256_add_epi32(*h, _mm256_srai_epi32(s, 7));
    *l = _mm256_add_epi32(*l, _mm256_and_si256(s, _mm256_set1_epi32(127)));
}

/* Sums over n pairs of a[i] (one dword for all lanes) and 32 lanes at b + i*stride (int16 pairs), in float, exactly
 * rounded. out gets 8*V values. */
#define DOT_LANES(NAME, V)                                                                                              \
    static inline void NAME(const int16_t *a, const int16_t *b, size_t stride, int n, __m256 *out)                      \
    {                                                                                                                   \
        __m256i h[V], l[V];                                                                                             \
        for (int v = 0; v < V; v++) h[v] = l[v] = _mm256_setzero_si256();                                               \
        int i = 0;                                                                                                      \
        for (; i + PAIRS_PER_SPLIT <= n; i += PAIRS_PER_SPLIT, a += 2 * PAIRS_PER_SPLIT, b += PAIRS_PER_SPLIT * stride) \
            for (int v = 0; v < V; v++) {                                                                               \
                __m256i s = _mm256_madd_epi16(pair(a), load8(b + 16 * v));                                              \
                s = _mm256_add_epi32(s, _mm256_madd_epi16(pair(a + 2), load8(b + stride + 16 * v)));                    \
                s = _mm256_add_epi32(s, _mm256_madd_epi16(pair(a + 4), load8(b + 2 * stride + 16 * v)));                \
                s = _mm256_add_epi32(s, _mm256_madd_epi16(pair(a + 6), load8(b + 3 * stride + 16 * v)));                \
                split(s, &h[v], &l[v]);                                                                                 \
            }                                                                                                           \
        for (; i < n; i++, a += 2, b += stride)                                                                         \
            for (int v = 0; v < V; v++) split(_mm256_madd_epi16(pair(a), load8(b + 16 * v)), &h[v], &l[v]);             \
        for (int v = 0; v < V; v++) out[v] = v8_hl_to_f32(h[v], l[v]);                                                  \
    }

static inline __m256i pair(const int16_t *p)
{
    int32_t v;
    memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
}
DOT_LANES(dot32, 4)
DOT_LANES(dot8, 1)

/* Scores of the tokens lo..hi, elsewhere -inf; returns the maximum, of equal ones (zeros of both signs) the first. */
static float scores(const cb_attn *a, const int16_t *q, float dqs, int lo, int hi, float s[TOKENS])
{
    __m256 best = v8_set(-INFINITY);
    for (int t = 0; t < TOKENS; t += 32) {
        __m256 d[4];
        dot32(q, a->kv.k + 2 * t, 2 * TOKENS, a->dim / 2, d);
        for (int v = 0; v < 4; v++) {
            int at = t + 8 * v;
            __m256i in = _mm256_andnot_si256(v8_below(lo - at), v8_below(hi - at));
            __m256 x = _mm256_mul_ps(d[v], _mm256_mul_ps(v8_set(dqs), _mm256_loadu_ps(a->kv.dk + at)));
            x = _mm256_blendv_ps(v8_set(-INFINITY), x, _mm256_castsi256_ps(in));
            best = _mm256_max_ps(x, best);
            _mm256_storeu_ps(s + at, x);
        }
    }
    float m = v8_hmax(best);
    for (int t = lo; t < hi; t++)
        if (s[t] == m) return s[t];
    return m;
}

/* p = exp(s - m) and w = p*dv for the tokens lo..hi, zero elsewhere; returns the lane tree of p. */
static float weights(const float s[TOKENS], float m, const float *dv, int lo, int hi, float w[TOKENS])
{
    __m256 lane[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int v = 0; v < TOKENS / 8; v++) {
        __m256 in = _mm256_castsi256_ps(_mm256_andnot_si256(v8_below(lo - 8 * v), v8_below(hi - 8 * v)));
        __m256 p = _mm256_and_ps(in, v8_exp(_mm256_sub_ps(_mm256_loadu_ps(s + 8 * v), v8_set(m))));
        lane[v % 4] = _mm256_add_ps(lane[v % 4], p);
        _mm256_storeu_ps(w + 8 * v, _mm256_and_ps(in, _mm256_mul_ps(p, _mm256_loadu_ps(dv + 8 * v))));
    }
    return v8_lane_fold32(lane);
}

static void one_query(const cb_attn *a, int q)
{
    int dim = a->dim, lo = a->lo[q], hi = a->hi[q], d = 0;
    const int16_t *qh = a->qh + (size_t)q * dim, *ql = a->ql + (size_t)q * dim;
    int16_t xi[1024], wi[TOKENS];
    for (; d + 16 <= dim; d += 16)
        _mm256_storeu_si256((void *)(xi + d), _mm256_add_epi16(_mm256_slli_epi16(load8(qh + d), 7), load8(ql + d)));
    for (; d < dim; d++) xi[d] = (int16_t)(qh[d] * 128 + ql[d]);

    float s[TOKENS], w[TOKENS];
    a->m[q] = scores(a, xi, a->dqs[q], lo, hi, s);
    a->l[q] = weights(s, a->m[q], a->kv.dv, lo, hi, w);
    __m256 dw = v8_set(cb_quant16_avx2(w, TOKENS, wi));

    int t0 = lo / 2, n = (hi + 1) / 2 - t0; /* the other tokens' weights are zero */
    float *o = a->o + (size_t)q * dim;
    const int16_t *wp = wi + 2 * t0, *vp = a->kv.v + (size_t)t0 * dim * 2;
    for (d = 0; d + 32 <= dim; d += 32) {
        __m256 x[4];
        dot32(wp, vp + 2 * d, 2 * (size_t)dim, n, x);
        for (int v = 0; v < 4; v++) _mm256_storeu_ps(o + d + 8 * v, _mm256_mul_ps(dw, x[v]));
    }
    for (; d + 8 <= dim; d += 8) {
        __m256 x;
        dot8(wp, vp + 2 * d, 2 * (size_t)dim, n, &x);
        _mm256_storeu_ps(o + d, _mm256_mul_ps(dw, x));
    }
    for (; d < dim; d++) {
        int32_t h = 0, l = 0;
        for (int t = 0; t < 2 * n; t++) {
            int v = vp[((size_t)(t / 2) * dim + d) * 2 + t % 2];
            h += (wp[t] >> 7) * v;
            l += (wp[t] & 127) * v;
        }
        o[d] = _mm256_cvtss_f32(dw) * cb_hl_to_f32(h, l);
    }
}

void cb_attn_block_avx2(const cb_attn *a)
{
    if (a->dim > 1024) { /* larger than the row kept on the stack, and than any model's head */
        cb_attn_block_c(a);
        return;
    }
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
