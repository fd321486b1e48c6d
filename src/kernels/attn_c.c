/* attn_c.c: attention over one KV block in scalar C, the truth (docs/arithmetic.md, "attention"). */
#include "kernels/kernels_c.h"
#include "kernels/num.h"

/* Attention weights have no sign, so they get the sign's bit too. Returns the scale. */
static float quant_weights(const float w[CB_KV_BLOCK], int32_t wi[CB_KV_BLOCK])
{
    float m = 0;
    for (int t = 0; t < CB_KV_BLOCK; t++) m = w[t] > m ? w[t] : m;
    bool zero = m < CB_TINY;
    float inv = zero ? 0 : CB_PW_MAX / m;
    for (int t = 0; t < CB_KV_BLOCK; t++) {
        float r = rintf(w[t] * inv);
        wi[t] = r > CB_PW_MAX ? CB_PW_MAX : (int32_t)r;
    }
    return zero ? 0 : m * CB_PW_INV;
}

static void one_query(const cb_attn *a, int q)
{
    const int16_t *qh = a->qh + (size_t)q * a->dim, *ql = a->ql + (size_t)q * a->dim;
    int dim = a->dim, lo = a->lo[q], hi = a->hi[q];
    float s[CB_KV_BLOCK], m = 0;
    const float *dqs = a->dqs + (size_t)q * cb_head_parts(dim);
    for (int t = lo; t < hi; t++) {
        s[t] = 0;
        for (int g = 0; g < cb_head_parts(dim); g++) {
            int32_t h = 0, l = 0;
            for (int d = 64 * g; d < 64 * g + 64 && d < dim; d++) {
                int k = a->kv.k[((size_t)(d / 2) * CB_KV_BLOCK + t) * 2 + d % 2];
                h += qh[d] * k;
                l += ql[d] * k;
            }
            s[t] = cb_fma(cb_hl_to_f32(h, l), dqs[g] * a->kv.dk[g * CB_KV_BLOCK + t], s[t]);
        }
        m = t == lo || s[t] > m ? s[t] : m;
    }
    float lane[32] = {0}, w[CB_KV_BLOCK] = {0};
    for (int t = lo; t < hi; t++) {
        float p = cb_expf(s[t] - m);
        lane[t % 32] += p;
        w[t] = p * a->kv.dv[t];
    }
    int32_t wi[CB_KV_BLOCK];
    float dw = quant_weights(w, wi);
    a->m[q] = m;
    a->l[q] = cb_lane_fold32(lane);
    for (int d = 0; d < dim; d++) {
        int32_t h = 0, l = 0;
        for (int t = 0; t < CB_KV_BLOCK; t++) {
            int v = a->kv.v[((size_t)(t / 2) * dim + d) * 2 + t % 2];
            h += (wi[t] >> 8) * v; /* any exact split of wi will do */
            l += (wi[t] & 255) * v;
        }
        a->o[(size_t)q * dim + d] = dw * cb_hl_to_f32(h, l);
    }
}

void cb_attn_block_c(const cb_attn *a)
{
    for (int q = 0; q < a->n_q; q++) one_query(a, q);
}

void cb_attn_merge_c(float *mm, float *ll, float *oo, float m, float l, const float *o, int dim)
{
    float M = *mm > m ? *mm : m;
    float a = cb_expf(*mm - M), c = cb_expf(m - M);
    *ll = cb_fma(*ll, a, l * c);
    for (int d = 0; d < dim; d++) oo[d] = cb_fma(oo[d], a, o[d] * c);
    *mm = M;
}
