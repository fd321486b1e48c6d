/* top.h: what a device answers about a row of logits (plan/top.h, cuda/sample.cu), spelled plainly: for the fake GPU and for tests of the
 * sampler. */
#ifndef CB_TESTS_SUPPORT_TOP_H
#define CB_TESTS_SUPPORT_TOP_H
#include "plan/top.h"
#include <math.h>
#include <string.h>

/* docs/sampling.md, section 3: the weight of a candidate that is d <= 0 from the largest. */
static inline uint32_t top_weight(float d)
{
    if (!(d > -40)) d = -40;
    float t = d * 0x1.715476p+0f + 12582912.0f, n = t - 12582912.0f, r = d - n * 0x1.62e4p-1f;
    r = r - n * 0x1.7f7d1cp-20f;
    static const float c[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1, 1};
    float p = 1.0f / 5040;
    for (int i = 0; i < 7; i++) p = p * r + c[i];
    uint32_t u;
    memcpy(&u, &t, 4);
    u = (u + 127) << 23;
    float s;
    memcpy(&s, &u, 4);
    return (uint32_t)(p * s * 0x1p30f + 0.5f);
}

static inline void top_change(float *z, const cb_ask *q)
{
    for (int i = 0; i < q->n_changes; i++) {
        const cb_change *c = &q->changes[i];
        float x = z[c->id] + 0.0f;
        x = c->bias == -100 ? -INFINITY : x + c->bias;
        if (c->in_all && q->repetition != 1) x = (x > 0 ? x / q->repetition : x * q->repetition) + 0.0f;
        if (c->n_own && q->presence != 0) x = x - q->presence;
        if (c->n_own && q->frequency != 0) x = x - q->frequency * (float)c->n_own;
        z[c->id] = x + 0.0f;
    }
}

/* Distances from the largest logit in 1,024 steps that grow with it, 1 << fine to an octave; any steps will do. */
static inline int top_bin(float d, int fine)
{
    int32_t bits;
    memcpy(&bits, &d, 4);
    int b = (bits >> (23 - fine)) - (117 << fine) + 1;
    return b < 0 ? 0 : b > 1023 ? 1023 : b;
}

/* z: [n], changed. list: [CB_TOP], of which at most `most` are used. */
static inline void top_answer(float *z, int n, const cb_ask *q, int most, int fine, uint64_t *list, cb_top *out)
{
    uint32_t count[1024] = {0}, cum = 0;
    uint64_t mass[1024] = {0}, need, above = 0;
    *out = (cb_top){.max = -INFINITY, .best_z = -INFINITY, .low = -INFINITY, .list = list};
    for (int i = 0; i < n; i++) out->max = z[i] + 0.0f > out->max ? z[i] + 0.0f : out->max;
    top_change(z, q);
    for (int i = 0; i < n; i++)
        if (z[i] + 0.0f > out->best_z) out->best_z = z[i] + 0.0f, out->best = i;
    if (q->kind < CB_ASK_DRAW) return;
    float zmax = out->best_z, wmax = zmax / q->t + 0.0f;
    for (int i = 0; i < n; i++) {
        int b = top_bin(zmax - z[i], fine);
        uint32_t w = top_weight((z[i] / q->t + 0.0f) - wmax);
        count[b]++;
        mass[b] += w;
        out->sum += w;
    }
    if (q->kind == CB_ASK_DRAW) {
        uint64_t at = (uint64_t)((unsigned __int128)q->random * out->sum >> 64);
        int i = 0;
        for (; i < n; i++) {
            uint32_t w = top_weight((z[i] / q->t + 0.0f) - wmax);
            if (at < w) break;
            at -= w;
        }
        out->drawn = i;
        out->drawn_z = i < n ? z[i] : 0;
        return;
    }
    double x = q->p > 0 ? ceil((double)q->p * (double)out->sum) : 1;
    need = x < 1 ? 1 : (uint64_t)x;
    if (need > out->sum) need = out->sum;
    int last = 0;
    for (;; last++) {
        cum += count[last];
        above += mass[last];
        if (last == 1023 || (q->count && cum >= (uint32_t)q->count) || (q->p < 1 && above >= need) || last >= top_bin(q->reach, fine)) break;
    }
    if (n <= most) last = 1023;
    else if (last == 1023 || cum > (uint32_t)most) return;
    for (int i = 0; i < n; i++) {
        float v = z[i] + 0.0f;
        uint32_t bits;
        memcpy(&bits, &v, 4);
        if (top_bin(zmax - v, fine) <= last) list[out->n++] = (uint64_t)i << 32 | bits;
        else out->low = v > out->low ? v : out->low;
    }
}
#endif
