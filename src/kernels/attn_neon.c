/* attn_neon.c: attention over one KV block; attn_c.c is the truth. Lanes are tokens for the scores and dims for the output;
 * SMLAL takes the 16-bit K and V as they are, and the other side in two parts of 8 bits, so that sums fit an int32. */
#include "kernels/kernels_neon.h"
#include "kernels/num_neon.h"

enum { TOKENS = CB_KV_BLOCK };

/* Eight lanes of pairs at b times the pair ah[0..1], al[0..1] */
static inline void add_pair(const int16_t *b, const int16_t *ah, const int16_t *al, int32x4_t h[2], int32x4_t l[2])
{
    int16x8x2_t v = vld2q_s16(b);
    for (int e = 0; e < 2; e++) {
        h[0] = vmlal_n_s16(h[0], vget_low_s16(v.val[e]), ah[e]);
        h[1] = vmlal_high_n_s16(h[1], v.val[e], ah[e]);
        l[0] = vmlal_n_s16(l[0], vget_low_s16(v.val[e]), al[e]);
        l[1] = vmlal_high_n_s16(l[1], v.val[e], al[e]);
    }
}

/* out = (float)(sum over n pairs of a * b) on 8 lanes: a, in parts 256*ah + al, is the same for all lanes, b holds a pair
 * for each lane, and the next pairs stand `stride` numbers on. */
static inline void dot8(const int16_t *ah, const int16_t *al, const int16_t *b, size_t stride, int n, float32x4_t out[2])
{
    int32x4_t h[2] = {vdupq_n_s32(0), vdupq_n_s32(0)}, l[2] = {h[0], h[0]};
    for (int i = 0; i < n; i++, b += stride) add_pair(b, ah + 2 * i, al + 2 * i, h, l);
    out[0] = v4_hl_to_f32(h[0], l[0]);
    out[1] = v4_hl_to_f32(h[1], l[1]);
}

/* Scores of the tokens lo..hi, elsewhere -inf; returns the maximum, of equal ones (zeros of both signs) the first. */
static float scores(const cb_attn *a, int q, int lo, int hi, float s[TOKENS])
{
    int dim = a->dim, parts = cb_head_parts(dim);
    const int16_t *qh = a->qh + (size_t)q * dim, *ql = a->ql + (size_t)q * dim;
    const float *dqs = a->dqs + (size_t)q * parts;
    for (int t = lo / 8 * 8; t < hi; t += 8) {
        float32x4_t x[2] = {v4_set(0), v4_set(0)}, d[2];
        for (int g = 0; g < parts; g++) {
            int n = dim - 64 * g < 64 ? (dim - 64 * g) / 2 : 32;
            const float *dk = a->kv.dk + g * TOKENS + t;
            dot8(qh + 64 * g, ql + 64 * g, a->kv.k + (size_t)g * 32 * 2 * TOKENS + 2 * t, 2 * TOKENS, n, d);
            for (int v = 0; v < 2; v++) x[v] = vfmaq_f32(x[v], d[v], vmulq_f32(v4_set(dqs[g]), vld1q_f32(dk + 4 * v)));
        }
        vst1q_f32(s + t, x[0]);
        vst1q_f32(s + t + 4, x[1]);
    }
    float m = s[lo];
    for (int t = lo; t < hi; t++) m = s[t] > m ? s[t] : m;
    for (int t = 0; t < lo; t++) s[t] = -INFINITY;
    for (int t = hi; t < TOKENS; t++) s[t] = -INFINITY;
    return m;
}

/* p = exp(s - m) of the tokens lo..hi; w = p*dv in 16 bits without a sign, as 256*wh + wl, elsewhere 0. Returns the scale
 * of w, and in *l the lane tree of p. */
static float weights(const float s[TOKENS], float m, const float *dv, int lo, int hi, int16_t wh[TOKENS],
                     int16_t wl[TOKENS], float *l)
{
    static const int32_t lane_no[4] = {0, 1, 2, 3};
    float32x4_t lane[8], w[TOKENS / 4], top = v4_set(0);
    for (int j = 0; j < 8; j++) lane[j] = v4_set(0);
    for (int v = 0; v < TOKENS / 4; v++) {
        int32x4_t t = vaddq_s32(vld1q_s32(lane_no), vdupq_n_s32(4 * v));
        uint32x4_t in = vandq_u32(vcgeq_s32(t, vdupq_n_s32(lo)), vcltq_s32(t, vdupq_n_s32(hi)));
        float32x4_t p = v4_exp(vsubq_f32(vld1q_f32(s + 4 * v), v4_set(m)));
        p = vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(p), in));
        lane[v % 8] = vaddq_f32(lane[v % 8], p); /* p is never negative: adding the masked 0 changes no bit */
        w[v] = vmulq_f32(p, vld1q_f32(dv + 4 * v));
        w[v] = vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(w[v]), in));
        top = v4_max(w[v], top);
    }
    *l = v4_lane_fold32(lane);
    float wm = v4_hmax(top), inv = wm < CB_TINY ? 0 : CB_PW_MAX / wm;
    for (int v = 0; v < TOKENS / 4; v++) {
        int32x4_t i = vminq_s32(vcvtnq_s32_f32(vmulq_f32(w[v], v4_set(inv))), vdupq_n_s32(CB_PW_MAX));
        vst1_s16(wh + 4 * v, vmovn_s32(vshrq_n_s32(i, 8)));
        vst1_s16(wl + 4 * v, vmovn_s32(vandq_s32(i, vdupq_n_s32(255))));
    }
    return wm < CB_TINY ? 0 : wm * CB_PW_INV;
}

static void one_query(const cb_attn *a, int q)
{
    int dim = a->dim, lo = a->lo[q], hi = a->hi[q], d = 0;
    float s[TOKENS];
    int16_t wh[TOKENS], wl[TOKENS];
    a->m[q] = scores(a, q, lo, hi, s);
    float dw = weights(s, a->m[q], a->kv.dv, lo, hi, wh, wl, &a->l[q]);

    int t0 = lo / 2, n = (hi + 1) / 2 - t0; /* the other tokens' weights are zero */
    float *o = a->o + (size_t)q * dim;
    const int16_t *ph = wh + 2 * t0, *pl = wl + 2 * t0, *v = a->kv.v + (size_t)t0 * dim * 2;
    for (; d + 8 <= dim; d += 8) {
        float32x4_t x[2];
        dot8(ph, pl, v + 2 * d, 2 * (size_t)dim, n, x);
        vst1q_f32(o + d, vmulq_f32(v4_set(dw), x[0]));
        vst1q_f32(o + d + 4, vmulq_f32(v4_set(dw), x[1]));
    }
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

void cb_attn_block_neon(const cb_attn *a)
{
    for (int q = 0; q < a->n_q; q++) one_query(a, q);
}

void cb_attn_merge_neon(float *mm, float *ll, float *oo, float m, float l, const float *o, int dim)
{
    float M = *mm > m ? *mm : m;
    float a = cb_expf(*mm - M), c = cb_expf(m - M);
    *ll = cb_fma(*ll, a, l * c);
    int d = 0;
    for (; d + 4 <= dim; d += 4)
        vst1q_f32(oo + d, vfmaq_f32(vmulq_f32(vld1q_f32(o + d), v4_set(c)), vld1q_f32(oo + d), v4_set(a)));
    for (; d < dim; d++) oo[d] = cb_fma(oo[d], a, o[d] * c);
    *mm = M;
}
