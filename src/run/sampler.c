/* sampler.c: from one row of logits to one token id. docs/sampling.md is the definition; this file is one way to get it
 * quickly from 262,144 logits.
 *
 * State: a list of candidates in ascending id: z[i] with id[i]. While nothing has been cut, id is implied (dense). Filters
 * never sort: each finds its exact cut by a threshold and keeps what is above, so a list stays in id order, and ties fall
 * to the lower id by construction. Probabilities are integers in units of 2^-30 of the largest one: sums are exact, so no
 * vector width and no order of addition can change a result. The loops use four-wide GNU vectors, which every target has. */
#include "run/sampler.h"
#include "run/sampler_ops.h"
#include "base/err.h"
#include "base/mem.h"
#include <math.h>
#include <string.h>

typedef float f4 __attribute__((vector_size(16)));
typedef int32_t i4 __attribute__((vector_size(16)));
typedef uint32_t u4 __attribute__((vector_size(16)));

enum { BLOCK = 1024, SMALL = 2048 };

int cb_sampler_open(int n_vocab, cb_sampler **out, cb_err *err)
{
    *out = NULL;
    if (n_vocab < 1 || n_vocab > 1 << 24)
        return cb_fail(err, CB_EUSAGE, "sampler: a vocabulary of %d, allowed are 1 to %d", n_vocab, 1 << 24);
    cb_sampler *s = cb_alloc(sizeof *s);
    if (!s) return cb_fail(err, CB_ENOMEM, "sampler");
    size_t n = (size_t)n_vocab;
    s->n_vocab = n_vocab;
    s->z = cb_alloc_aligned(n * 4);
    s->id = cb_alloc_aligned(n * 4);
    s->w = cb_alloc_aligned(n * 4);
    s->count = cb_alloc_aligned(n * 4);
    s->keys = cb_alloc_aligned(n * 4);
    s->block = cb_alloc_array(n / BLOCK + 1, sizeof *s->block);
    if (!s->z || !s->id || !s->w || !s->count || !s->keys || !s->block) {
        cb_sampler_close(s);
        return cb_fail(err, CB_ENOMEM, "sampler for %d tokens: need %zu bytes", n_vocab, n * 20);
    }
    *out = s;
    return 0;
}

void cb_sampler_close(cb_sampler *s)
{
    if (!s) return;
    cb_free_aligned(s->z);
    cb_free_aligned(s->id);
    cb_free_aligned(s->w);
    cb_free_aligned(s->count);
    cb_free_aligned(s->keys);
    cb_free(s->block);
    cb_free(s);
}

/* ---- numbers ---- */

void cb_philox(uint64_t key, const uint32_t counter[4], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

double cb_sampler_ln(double x)
{
    uint64_t u;
    memcpy(&u, &x, 8);
    int e = (int)(u >> 52) - 1023;
    u = (u & 0xfffffffffffffu) | (uint64_t)1023 << 52;
    double m;
    memcpy(&m, &u, 8);
    if (m > 1.4142135623730951) m *= 0.5, e++; /* m in sqrt(1/2) .. sqrt(2) */
    double t = (m - 1) / (m + 1), t2 = t * t, p = 0;
    for (int k = 21; k >= 1; k -= 2) p = p * t2 + 1.0 / k; /* 2 atanh(t), |t| < 0.172: the next term is 1e-19 */
    return (double)e * 0.6931471805599453 + 2 * t * p;
}

static inline f4 load4(const float *p)
{
    f4 v;
    memcpy(&v, p, 16);
    return v;
}
static inline void store4(void *p, f4 v) { memcpy(p, &v, 16); }
static inline f4 pick4(i4 mask, f4 a, f4 b) { return (f4)((mask & (i4)a) | (~mask & (i4)b)); }
static inline int any4(i4 mask)
{
    uint64_t h[2];
    memcpy(h, &mask, 16);
    return (h[0] | h[1]) != 0;
}

/* e^d for d <= 0, without fma so that plain SSE2 does it; below -40 as at -40 (whose weight is 0 all the same). */
static inline f4 exp4(f4 d)
{
    f4 low = {-40, -40, -40, -40};
    d = pick4(d > low, d, low);
    f4 t = d * 0x1.715476p+0f + 12582912.0f; /* the low bits of t hold n = rint(d / ln 2) */
    f4 n = t - 12582912.0f;
    f4 r = d - n * 0x1.62e4p-1f;             /* exact product: n and the constant have few bits */
    r = r - n * 0x1.7f7d1cp-20f;
    f4 p = r * (1.0f / 5040.0f) + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return p * (f4)(((u4)t + 127u) << 23);
}
static inline float exp1(float d)
{
    f4 v = {d, d, d, d};
    return exp4(v)[0];
}

/* Larger value, larger key. Negative zero was made positive when z was copied. */
static inline uint32_t key_of(float z)
{
    uint32_t u;
    memcpy(&u, &z, 4);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}
static inline float value_of(uint32_t key)
{
    uint32_t u = key & 0x80000000u ? key & 0x7fffffffu : ~key;
    float z;
    memcpy(&z, &u, 4);
    return z;
}

/* Largest of n floats; *bad is set for a NaN. */
float cb_smp_max(const float *z, int n, int *bad)
{
    f4 a[4];
    i4 nan = {0};
    for (int j = 0; j < 4; j++) a[j] = (f4){-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    int i = 0;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 4; j++) { /* four chains hide the latency of the compare */
            f4 x = load4(z + i + 4 * j);
            nan |= x != x;
            a[j] = pick4(x > a[j], x, a[j]);
        }
    float m = -INFINITY;
    for (int j = 0; j < 16; j++)
        if (a[j / 4][j % 4] > m) m = a[j / 4][j % 4];
    int scalar_nan = 0;
    for (; i < n; i++) {
        if (z[i] > m) m = z[i];
        scalar_nan |= z[i] != z[i];
    }
    if (bad) *bad = any4(nan) || scalar_nan;
    return m;
}

static inline int id_at(const cb_sampler *s, int i) { return s->dense ? i : s->id[i]; }

/* Keeps the candidates with z - base >= low, in order. `with_w` moves the weights along. */
static void keep_above(cb_sampler *s, float base, float low, int with_w)
{
    int n = 0, i = 0;
    for (; i < s->n; i += 4) {
        f4 d = load4(s->z + i) - base; /* the arrays are padded for this load */
        if (!any4(d >= low)) continue;
        int end = i + 4 < s->n ? i + 4 : s->n;
        for (int j = i; j < end; j++) {
            if (!(s->z[j] - base >= low)) continue;
            int id = id_at(s, j);
            s->z[n] = s->z[j];
            if (with_w) s->w[n] = s->w[j];
            s->id[n++] = id; /* n <= j: nothing unread is overwritten */
        }
    }
    s->n = n;
    s->dense = 0;
}

/* ---- logit bias and penalties ---- */

int cb_smp_check_bias(const cb_sampler *s, const cb_sampling *p, int i, cb_err *err)
{
    int32_t id = p->bias_ids[i];
    float b = p->bias[i];
    if (id < 0 || id >= s->n_vocab)
        return cb_fail(err, CB_EUSAGE, "logit bias: token %d is outside the vocabulary of %d", id, s->n_vocab);
    if (!(b >= -100 && b <= 100)) return cb_fail(err, CB_EUSAGE, "logit bias: %g of token %d is outside -100..100", (double)b, id);
    return 0;
}

static int add_bias(cb_sampler *s, const cb_sampling *p, cb_err *err)
{
    for (int i = 0; i < p->n_bias; i++) {
        int rc = cb_smp_check_bias(s, p, i, err);
        if (rc < 0) return rc;
        int32_t id = p->bias_ids[i];
        float b = p->bias[i];
        s->z[id] = b == -100 ? -INFINITY : s->z[id] + b;
    }
    return 0;
}

static cb_smp_window window_of(const cb_sampling *p, const int32_t *history, int n_history, int n_prompt, int output_only)
{
    int last_n = p->repeat_last_n;
    if (last_n == -2) last_n = p->profile == CB_PROFILE_MLX ? 20 : p->profile == CB_PROFILE_LLAMACPP ? 64 : -1;
    int from = output_only ? n_prompt : 0;
    if (last_n >= 0 && n_history - from > last_n) from = n_history - last_n;
    return (cb_smp_window){ history + from, n_history - from };
}

cb_smp_window cb_smp_window_all(const cb_sampling *p, const int32_t *history, int n_history, int n_prompt)
{
    return window_of(p, history, n_history, n_prompt, 0);
}

cb_smp_window cb_smp_window_own(const cb_sampling *p, const int32_t *history, int n_history, int n_prompt)
{
    int output_only = p->profile == CB_PROFILE_HF || p->profile == CB_PROFILE_VLLM;
    return window_of(p, history, n_history, n_prompt, output_only);
}

/* One id's penalties: repetition first, then presence, then frequency, each rounded to f32. */
static float penalise(float z, uint32_t count, float rep, float pres, float freq)
{
    if (rep != 1) z = z > 0 ? z / rep : z * rep;
    if (pres != 0) z = z - pres;
    if (freq != 0) z = z - freq * (float)count;
    return z + 0.0f;
}

static void penalise_window(cb_sampler *s, cb_smp_window w, float rep, float pres, float freq)
{
    for (int i = 0; i < w.n; i++)
        if (w.ids[i] >= 0 && w.ids[i] < s->n_vocab) s->count[w.ids[i]]++;
    if (!s->dense)
        for (int i = 0; i < s->n; i++)
            if (s->count[s->id[i]]) s->z[i] = penalise(s->z[i], s->count[s->id[i]], rep, pres, freq);
    for (int i = 0; i < w.n; i++) { /* the first visit of an id sees its count and clears it */
        int32_t id = w.ids[i];
        if (id < 0 || id >= s->n_vocab || !s->count[id]) continue;
        if (s->dense) s->z[id] = penalise(s->z[id], s->count[id], rep, pres, freq);
        s->count[id] = 0;
    }
}

static void penalties(cb_sampler *s, const cb_sampling *p, const int32_t *history, int n_history, int n_prompt)
{
    float rep = p->repetition_penalty == 0 ? 1 : p->repetition_penalty;
    float pres = p->presence_penalty, freq = p->frequency_penalty;
    if (rep != 1) penalise_window(s, cb_smp_window_all(p, history, n_history, n_prompt), rep, 0, 0);
    if (pres != 0 || freq != 0) penalise_window(s, cb_smp_window_own(p, history, n_history, n_prompt), 1, pres, freq);
}

void cb_smp_temperature(cb_sampler *s, float t)
{
    if (t == 1) return;
    int i = 0;
    for (; i + 4 <= s->n; i += 4) store4(s->z + i, load4(s->z + i) / t + 0.0f);
    for (; i < s->n; i++) s->z[i] = s->z[i] / t + 0.0f;
}

/* ---- filters ---- */

/* The k-th largest of n keys (1 <= k <= n), by digits: no worst case. *n_above: how many are larger. */
static uint32_t select_kth(const uint32_t *keys, int n, int k, int *n_above)
{
    uint32_t prefix = 0, mask = 0;
    int above = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        int hist[256] = {0};
        for (int i = 0; i < n; i++)
            if ((keys[i] & mask) == prefix) hist[keys[i] >> shift & 255]++;
        int b = 255;
        for (; b > 0 && above + hist[b] < k; b--) above += hist[b];
        prefix |= (uint32_t)b << shift;
        mask |= 255u << shift;
    }
    *n_above = above;
    return prefix;
}

/* One pass with a rising threshold: a buffer of at least 2k keys is cut back to its k best whenever it is full. A value
 * equal to the threshold need not enter, because it cannot change the k-th largest value. */
static uint32_t kth_key(cb_sampler *s, int k, int *n_above)
{
    int cap = k > s->n / 2 ? s->n : 2 * k < SMALL ? (SMALL < s->n ? SMALL : s->n) : 2 * k;
    int nb = 0;
    float low = -INFINITY;
    for (int i = 0; i < s->n; i += 4) {
        if (!any4(load4(s->z + i) > low)) continue;
        int end = i + 4 < s->n ? i + 4 : s->n;
        for (int j = i; j < end; j++) {
            if (!(s->z[j] > low)) continue;
            s->keys[nb++] = key_of(s->z[j]);
            if (nb < cap || cap == s->n) continue;
            uint32_t kth = select_kth(s->keys, nb, k, n_above);
            int m = 0;
            for (int b = 0; b < nb; b++)
                if (s->keys[b] > kth) s->keys[m++] = s->keys[b];
            while (m < k) s->keys[m++] = kth;
            nb = k;
            low = value_of(kth);
        }
    }
    if (nb < k) { /* the rest is banned anyway */
        *n_above = nb;
        return key_of(-INFINITY);
    }
    return select_kth(s->keys, nb, k, n_above);
}

void cb_smp_top_k(cb_sampler *s, const cb_sampling *p)
{
    int k = p->top_k, keep_ties = p->profile == CB_PROFILE_HF || p->profile == CB_PROFILE_VLLM;
    if (k <= 0 || k >= s->n) return;
    int n_above;
    uint32_t kth = kth_key(s, k, &n_above);
    keep_above(s, 0, value_of(kth), 0);
    if (keep_ties) return;
    int ties = k - n_above, n = 0;
    for (int i = 0; i < s->n; i++) {
        if (key_of(s->z[i]) == kth && ties-- <= 0) continue;
        s->z[n] = s->z[i];
        s->id[n++] = s->id[i];
    }
    s->n = n;
}

/* Weights of the list relative to its largest value, their block sums and their sum. */
void cb_smp_weigh(cb_sampler *s, float zmax)
{
    s->sum = 0;
    for (int b = 0; b * BLOCK < s->n; b++) {
        int end = (b + 1) * BLOCK < s->n ? (b + 1) * BLOCK : s->n, i = b * BLOCK;
        u4 lo = {0}, hi = {0}; /* weights split at bit 15, so 256 steps cannot overflow a lane */
        uint64_t sum = 0;
        for (; i + 4 <= end; i += 4) {
            i4 w = __builtin_convertvector(exp4(load4(s->z + i) - zmax) * 0x1p30f + 0.5f, i4);
            memcpy(s->w + i, &w, 16);
            lo += (u4)w & 0x7fffu;
            hi += (u4)w >> 15;
        }
        for (; i < end; i++) {
            s->w[i] = (uint32_t)(exp1(s->z[i] - zmax) * 0x1p30f + 0.5f);
            sum += s->w[i];
        }
        for (int j = 0; j < 4; j++) sum += lo[j] + ((uint64_t)hi[j] << 15);
        s->block[b] = sum;
        s->sum += sum;
    }
}

/* Sum of the weights of candidates with z - zmax >= low. */
static uint64_t mass_above(const cb_sampler *s, float zmax, float low)
{
    uint64_t sum = 0;
    for (int from = 0; from < s->n; from += BLOCK) {
        int end = from + BLOCK < s->n ? from + BLOCK : s->n, i = from;
        u4 lo = {0}, hi = {0};
        for (; i + 4 <= end; i += 4) {
            u4 w;
            memcpy(&w, s->w + i, 16);
            w &= (u4)(load4(s->z + i) - zmax >= low);
            lo += w & 0x7fffu;
            hi += w >> 15;
        }
        for (; i < end; i++)
            if (s->z[i] - zmax >= low) sum += s->w[i];
        for (int j = 0; j < 4; j++) sum += lo[j] + ((uint64_t)hi[j] << 15);
    }
    return sum;
}

/* Keeps the shortest prefix, in descending z and ascending id, whose weights reach `need` (1 <= need <= sum). */
void cb_smp_keep_mass(cb_sampler *s, uint64_t need)
{
    uint32_t prefix = 0, mask = 0;
    uint64_t above = 0;
    for (int i = 0; i < s->n; i++) s->keys[i] = key_of(s->z[i]);
    for (int shift = 24; shift >= 0; shift -= 8) {
        uint64_t hist[256] = {0};
        for (int i = 0; i < s->n; i++)
            if ((s->keys[i] & mask) == prefix) hist[s->keys[i] >> shift & 255] += s->w[i];
        int b = 255;
        for (; b > 0 && above + hist[b] < need; b--) above += hist[b];
        prefix |= (uint32_t)b << shift;
        mask |= 255u << shift;
    }
    int n = 0;
    for (int i = 0; i < s->n; i++) {
        if (s->keys[i] < prefix || (s->keys[i] == prefix && above >= need)) continue;
        if (s->keys[i] == prefix) above += s->w[i];
        int id = id_at(s, i);
        s->z[n] = s->z[i];
        s->id[n++] = id;
    }
    s->n = n;
    s->dense = 0;
}

uint64_t cb_smp_mass(float p, uint64_t sum)
{
    double x = p > 0 ? ceil((double)p * (double)sum) : 1;
    uint64_t need = x < 1 ? 1 : (uint64_t)x;
    return need < sum ? need : sum;
}

void cb_smp_top_p(cb_sampler *s, float p)
{
    if (p >= 1) return;
    float zmax = cb_smp_max(s->z, s->n, NULL);
    cb_smp_weigh(s, zmax);
    uint64_t need = cb_smp_mass(p, s->sum);
    /* The cut of a large list nearly always lies within a few units of the maximum: look there first. */
    for (float low = -3; s->n > SMALL && low > -25; low *= 2) {
        if (mass_above(s, zmax, low) < need) continue;
        keep_above(s, zmax, low, 1);
        break;
    }
    cb_smp_keep_mass(s, need);
}

void cb_smp_min_p(cb_sampler *s, float m)
{
    if (m <= 0) return;
    if (m > 1) m = 1;
    float zmax = cb_smp_max(s->z, s->n, NULL);
    if (s->n > SMALL) keep_above(s, zmax, (float)cb_sampler_ln((double)m) - 1e-3f, 0); /* a little more than needed */
    int n = 0;
    for (int i = 0; i < s->n; i++) {
        if (!(exp1(s->z[i] - zmax) >= m)) continue;
        int id = id_at(s, i);
        s->z[n] = s->z[i];
        s->id[n++] = id;
    }
    s->n = n;
    s->dense = 0;
}

/* ---- pick ---- */

static const uint8_t profile_order[4][6] = {
    [CB_PROFILE_HF] = { CB_OP_PENALTIES, CB_OP_TEMPERATURE, CB_OP_TOP_K, CB_OP_TOP_P, CB_OP_MIN_P },
    [CB_PROFILE_VLLM] = { CB_OP_PENALTIES, CB_OP_TEMPERATURE, CB_OP_MIN_P, CB_OP_TOP_K, CB_OP_TOP_P },
    [CB_PROFILE_MLX] = { CB_OP_PENALTIES, CB_OP_TOP_P, CB_OP_MIN_P, CB_OP_TOP_K, CB_OP_TEMPERATURE },
    [CB_PROFILE_LLAMACPP] = { CB_OP_PENALTIES, CB_OP_TOP_K, CB_OP_TOP_P, CB_OP_MIN_P, CB_OP_TEMPERATURE },
};

int cb_smp_check(const cb_sampling *p, int n_history, int n_prompt, const uint8_t **order, cb_err *err)
{
    if (p->profile < 0 || p->profile > CB_PROFILE_LLAMACPP) return cb_fail(err, CB_EUSAGE, "sampling: profile %d is unknown", p->profile);
    if (!(p->temperature >= 0) || isinf(p->temperature)) return cb_fail(err, CB_EUSAGE, "sampling: temperature %g is not 0 or more", (double)p->temperature);
    if (!(p->top_p >= 0)) return cb_fail(err, CB_EUSAGE, "sampling: top_p %g is not in 0..1", (double)p->top_p);
    if (!(p->min_p >= 0)) return cb_fail(err, CB_EUSAGE, "sampling: min_p %g is not in 0..1", (double)p->min_p);
    float r = p->repetition_penalty, a = p->presence_penalty, f = p->frequency_penalty;
    if (!(r == 0 || (r >= 1e-3f && r <= 1e3f))) return cb_fail(err, CB_EUSAGE, "sampling: repetition penalty %g is not in 0.001..1000", (double)r);
    if (!(fabsf(a) <= 1e4f)) return cb_fail(err, CB_EUSAGE, "sampling: presence penalty %g is not in -10000..10000", (double)a);
    if (!(fabsf(f) <= 1e4f)) return cb_fail(err, CB_EUSAGE, "sampling: frequency penalty %g is not in -10000..10000", (double)f);
    if (p->repeat_last_n < -2) return cb_fail(err, CB_EUSAGE, "sampling: repeat_last_n %d is not -1 or more", p->repeat_last_n);
    if (n_prompt < 0 || n_history < n_prompt) return cb_fail(err, CB_EUSAGE, "sampling: %d history ids, %d of them prompt", n_history, n_prompt);
    *order = p->order[0] ? p->order : profile_order[p->profile];
    for (int i = 0, seen = 0; (*order)[i] != CB_OP_END; i++) {
        int op = (*order)[i];
        if (op > CB_OP_MIN_P || seen >> op & 1 || i == 7) return cb_fail(err, CB_EUSAGE, "sampling: the order has an unknown or repeated operator");
        seen |= 1 << op;
    }
    return 0;
}

int cb_smp_has(const uint8_t *order, int op)
{
    for (; *order != CB_OP_END; order++)
        if (*order == op) return 1;
    return 0;
}

/* Lowest id of the largest value. */
static int argmax(const float *z, int n, float max)
{
    for (int i = 0; i + 4 <= n; i += 4)
        if (any4(load4(z + i) == max))
            for (int j = i;; j++)
                if (z[j] == max) return j;
    for (int j = n & ~3; j < n; j++)
        if (z[j] == max) return j;
    return 0;
}

uint64_t cb_smp_random(const cb_sampling *p, int position)
{
    const uint32_t counter[4] = { (uint32_t)position, p->choice, 0, 0 };
    uint32_t r[4];
    cb_philox(p->seed, counter, r);
    return (uint64_t)r[1] << 32 | r[0];
}

float cb_smp_logprob(float z, float zmax, uint64_t sum) { return (float)((double)(z - zmax) - cb_sampler_ln((double)sum * 0x1p-30)); }

int32_t cb_smp_draw(cb_sampler *s, const cb_sampling *p, int position, float *logprob)
{
    float zmax = cb_smp_max(s->z, s->n, NULL);
    cb_smp_weigh(s, zmax);
    s->drew = 1;
    uint64_t at = (uint64_t)((unsigned __int128)cb_smp_random(p, position) * s->sum >> 64); /* 0 .. sum-1 */
    int b = 0;
    for (; at >= s->block[b]; b++) at -= s->block[b];
    int i = b * BLOCK;
    for (; at >= s->w[i]; i++) at -= s->w[i];
    if (logprob) *logprob = cb_smp_logprob(s->z[i], zmax, s->sum);
    return id_at(s, i);
}

int cb_smp_banned(cb_err *err) { return cb_fail(err, CB_EUSAGE, "sampling: every token is banned"); }
int cb_smp_not_finite(int position, cb_err *err)
{
    return cb_fail(err, CB_ENUM, "sampling: the logits hold NaN or infinity (position %d)", position);
}

static void copy_logits(cb_sampler *s, const float *logits)
{
    int n = s->n_vocab, i = 0;
    for (; i + 4 <= n; i += 4) store4(s->z + i, load4(logits + i) + 0.0f);
    for (; i < n; i++) s->z[i] = logits[i] + 0.0f;
    s->n = n;
    s->dense = 1;
}

int cb_smp_is_greedy(const cb_sampling *p, const uint8_t *order) { return p->temperature < 1e-5f && cb_smp_has(order, CB_OP_TEMPERATURE); }

/* Logits as they are, or `changed`: with bias and penalties in them. */
static int32_t pick(cb_sampler *s, const cb_sampling *p, const float *logits, int changed, const int32_t *history, int n_history, int n_prompt,
                    float *logprob, cb_err *err)
{
    const uint8_t *order = NULL;
    int bad;
    s->drew = 0;
    int rc = cb_smp_check(p, n_history, n_prompt, &order, err);
    if (rc < 0) return rc;
    float max = cb_smp_max(logits, s->n_vocab, &bad);
    if (bad || (max > CB_SMP_LIMIT && !changed)) return cb_smp_not_finite(n_history, err);

    int greedy = cb_smp_is_greedy(p, order), has_penalties = !changed && cb_smp_has(order, CB_OP_PENALTIES);
    if (greedy && logprob) *logprob = 0;
    if (greedy && !(p->n_bias > 0 && !changed) && !has_penalties && max >= -CB_SMP_LIMIT) return argmax(logits, s->n_vocab, max);

    copy_logits(s, logits);
    if (!changed && (rc = add_bias(s, p, err)) < 0) return rc;
    if (p->n_bias > 0) max = cb_smp_max(s->z, s->n, NULL);
    if (max < -CB_SMP_LIMIT) return cb_smp_banned(err);
    if (greedy) {
        if (has_penalties) penalties(s, p, history, n_history, n_prompt);
        return argmax(s->z, s->n, cb_smp_max(s->z, s->n, NULL));
    }
    for (; *order != CB_OP_END; order++) {
        switch (*order) {
        case CB_OP_PENALTIES:
            if (has_penalties) penalties(s, p, history, n_history, n_prompt);
            break;
        case CB_OP_TEMPERATURE: cb_smp_temperature(s, p->temperature); break;
        case CB_OP_TOP_K: cb_smp_top_k(s, p); break;
        case CB_OP_TOP_P: cb_smp_top_p(s, p->top_p); break;
        case CB_OP_MIN_P: cb_smp_min_p(s, p->min_p); break;
        }
    }
    return cb_smp_draw(s, p, n_history, logprob);
}

int32_t cb_sampler_pick(cb_sampler *s, const cb_sampling *p, const float *logits, const int32_t *history, int n_history,
                        int n_prompt, float *logprob, cb_err *err)
{
    return pick(s, p, logits, 0, history, n_history, n_prompt, logprob, err);
}

int32_t cb_sampler_pick_changed(cb_sampler *s, const cb_sampling *p, const float *logits, int n_history, float *logprob, cb_err *err)
{
    return pick(s, p, logits, 1, NULL, n_history, 0, logprob, err);
}

int cb_sampler_n_vocab(const cb_sampler *s) { return s->n_vocab; }

int cb_sampler_last(const cb_sampler *s, const int32_t **ids, const uint32_t **w, uint64_t *sum)
{
    *ids = s->dense ? NULL : s->id;
    *w = s->w;
    *sum = s->sum;
    return s->drew ? s->n : 0;
}
