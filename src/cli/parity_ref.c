#include "cli/parity_ref.h"
#include "base/json.h"
#include "base/mem.h"
#include <math.h>
#include <string.h>

enum { MAX_COUNT = 1 << 24, HEAD = 48 };
static const char magic[8] = {'C', 'B', 'R', 'E', 'F', 1, 0, 0};

/* The file as a stream of arrays: each is taken off the front, within the bytes that are there. */
typedef struct cursor {
    const char *p;
    size_t left;
    bool short_of; /* sticky */
} cursor;

static const void *take(cursor *c, uint64_t count, size_t size)
{
    if (c->short_of || count > c->left / size) {
        c->short_of = true;
        return NULL;
    }
    const void *p = c->p;
    c->p += count * size;
    c->left -= count * size;
    return p;
}

static bool below(const uint32_t *v, uint64_t n, uint32_t limit)
{
    for (uint64_t i = 0; i < n; i++)
        if (v[i] >= limit) return false;
    return true;
}

static int check(const cb_ref *r, const char *path, cb_err *err)
{
    for (uint32_t i = 0; i < r->n_cases; i++)
        if (r->cases[i].n > r->n_pos || r->cases[i].first > r->n_pos - r->cases[i].n)
            return cb_fail(err, CB_EFORMAT, "%s: case %u: positions %u + %u of %u", path, i, r->cases[i].first, r->cases[i].n, r->n_pos);
    if (!below((const uint32_t *)r->tokens, r->n_pos, r->n_vocab) || !below(r->top_id, (uint64_t)r->n_pos * r->top_k, r->n_vocab) ||
        !below(r->sample_id, r->n_sample, r->n_vocab))
        return cb_fail(err, CB_EFORMAT, "%s: a token id is not below %u", path, r->n_vocab);
    if (!below(r->full_pos, r->n_full, r->n_pos)) return cb_fail(err, CB_EFORMAT, "%s: a full row's position is not below %u", path, r->n_pos);
    for (uint32_t i = 1; i < r->n_full; i++)
        if (r->full_pos[i] <= r->full_pos[i - 1]) return cb_fail(err, CB_EFORMAT, "%s: full rows are not in order", path);
    return 0;
}

static int read_greedy(cb_ref *r, cursor *c, const char *path, cb_err *err)
{
    if (!(r->greedy = cb_alloc_array(r->n_greedy, sizeof *r->greedy))) return cb_fail(err, CB_ENOMEM, "%s: %u greedy runs", path, r->n_greedy);
    for (uint32_t i = 0; i < r->n_greedy; i++) {
        cb_ref_greedy *g = &r->greedy[i];
        const uint32_t *h = take(c, 2, 4);
        if (!h) break;
        g->case_at = h[0];
        g->n = h[1];
        g->tokens = take(c, g->n, 4);
        g->margin = take(c, g->n, 4);
        if (c->short_of) break;
        if (g->case_at >= r->n_cases || !below((const uint32_t *)g->tokens, g->n, r->n_vocab))
            return cb_fail(err, CB_EFORMAT, "%s: greedy run %u names case %u, or an id not below %u", path, i, g->case_at, r->n_vocab);
    }
    return 0;
}

static int parse(cb_ref *r, const char *path, cb_err *err)
{
    cursor c = {r->copy, r->map.n, false};
    const char *m = take(&c, 8, 1);
    const uint32_t *h = take(&c, 10, 4);
    if (!h || memcmp(m, magic, sizeof magic)) return cb_fail(err, CB_EFORMAT, "%s: not a reference file of version 1", path);
    r->n_vocab = h[1], r->n_cases = h[2], r->n_pos = h[3], r->top_k = h[4], r->n_sample = h[5];
    r->n_full = h[6], r->full_kind = h[7], r->n_greedy = h[8];
    for (int i = 1; i < 9; i++)
        if (h[i] > MAX_COUNT) return cb_fail(err, CB_EFORMAT, "%s: count %d is %u", path, i, h[i]);
    if (r->top_k < 2 || r->n_vocab < 2 || r->full_kind < CB_REF_STEPS || r->full_kind > CB_REF_F32)
        return cb_fail(err, CB_EFORMAT, "%s: top_k %u, vocabulary %u, kind of full rows %u", path, r->top_k, r->n_vocab, r->full_kind);
    const char *json = take(&c, h[0], 1);
    if (!json || h[0] % 8) return cb_fail(err, CB_EFORMAT, "%s: %u bytes of metadata in %zu", path, h[0], r->map.n);
    int rc = cb_json_text(path, json, h[0], &r->meta, err);
    if (rc < 0) return rc;
    r->cases = take(&c, r->n_cases, sizeof *r->cases);
    r->tokens = take(&c, r->n_pos, 4);
    take(&c, c.short_of ? 0 : (8 - (size_t)(c.p - r->copy) % 8) % 8, 1);
    r->lse = take(&c, r->n_pos, 8);
    r->top_id = take(&c, (uint64_t)r->n_pos * r->top_k, 4);
    r->top = take(&c, (uint64_t)r->n_pos * r->top_k, 4);
    r->sample_id = take(&c, r->n_sample, 4);
    r->sample = take(&c, (uint64_t)r->n_pos * r->n_sample, 4);
    r->full_pos = take(&c, r->n_full, 4);
    r->full_row_bytes = r->full_kind == CB_REF_F32 ? (size_t)r->n_vocab * 4 : 8 + (size_t)r->n_vocab * 2;
    r->full = take(&c, r->n_full, r->full_row_bytes);
    if (r->full_row_bytes % 4 && r->n_greedy) return cb_fail(err, CB_EFORMAT, "%s: an odd vocabulary needs full rows in f32", path);
    if (c.short_of) return cb_fail(err, CB_EFORMAT, "%s: ends early, at %zu bytes", path, r->map.n);
    if ((rc = read_greedy(r, &c, path, err)) < 0) return rc;
    if (c.short_of || c.left) return cb_fail(err, CB_EFORMAT, "%s: %s, at %zu bytes", path, c.left ? "bytes left over" : "ends early", r->map.n);
    return check(r, path, err);
}

int cb_ref_open(const char *path, cb_ref **out, cb_err *err)
{
    cb_ref *r = cb_alloc(sizeof *r);
    if (!r) return cb_fail(err, CB_ENOMEM, "%s", path);
    int rc = cb_map_open(&r->map, NULL, path, err);
    if (rc < 0) goto done;
    if (!(r->copy = cb_alloc_aligned(r->map.n + HEAD))) {
        rc = cb_fail(err, CB_ENOMEM, "%s: %zu bytes", path, r->map.n);
        goto done;
    }
    if (r->map.n) memcpy(r->copy, r->map.data, r->map.n);
    rc = parse(r, path, err);
    if (rc < 0) goto done;
    *out = r;
    r = NULL;
done:
    cb_ref_close(r);
    return rc;
}

void cb_ref_close(cb_ref *r)
{
    if (!r) return;
    json_decref(r->meta);
    cb_free(r->greedy);
    cb_free_aligned(r->copy);
    cb_map_close(&r->map);
    cb_free(r);
}

const char *cb_ref_case_name(const cb_ref *r, uint32_t i)
{
    const char *s = json_string_value(json_array_get(json_object_get(r->meta, "cases"), i));
    return s ? s : "?";
}

void cb_ref_full_row(const cb_ref *r, uint32_t i, float *out)
{
    const char *p = r->full + (size_t)i * r->full_row_bytes;
    if (r->full_kind == CB_REF_F32) {
        memcpy(out, p, (size_t)r->n_vocab * 4);
        return;
    }
    float base, step;
    memcpy(&base, p, 4);
    memcpy(&step, p + 4, 4);
    for (uint32_t k = 0; k < r->n_vocab; k++) {
        uint16_t u;
        memcpy(&u, p + 8 + 2 * (size_t)k, 2);
        out[k] = (float)((double)base + (double)step * u);
    }
}

float cb_ref_margin(const cb_ref *r, uint32_t pos)
{
    const float *t = r->top + (size_t)pos * r->top_k;
    return t[0] - t[1];
}

/* ---- distance ----------------------------------------------------------------------------------------------------- */

void cb_ref_score_init(cb_ref_score *s, float margin)
{
    *s = (cb_ref_score){.margin = margin, .kl_at = -1, .dmax_at = -1, .flip_at = -1};
}

static double log_sum_exp(const float *z, uint32_t n)
{
    float m = z[0];
    for (uint32_t i = 1; i < n; i++) m = z[i] > m ? z[i] : m;
    double s = 0;
    for (uint32_t i = 0; i < n; i++) s += exp((double)z[i] - (double)m);
    return (double)m + log(s);
}

/* Truth's mass outside the top_k is one bin; merging bins can only lower the KL. */
static double kl_binned(const cb_ref *r, uint32_t pos, const float *row, double lse)
{
    const uint32_t *id = r->top_id + (size_t)pos * r->top_k;
    const float *logp = r->top + (size_t)pos * r->top_k;
    double kl = 0, p_rest = 1, q_rest = 1;
    for (uint32_t i = 0; i < r->top_k; i++) {
        double lp = (double)logp[i], lq = (double)row[id[i]] - lse, p = exp(lp);
        kl += p * (lp - lq);
        p_rest -= p;
        q_rest -= exp(lq);
    }
    /* Differences of numbers near 1 carry an error near 1e-8 (ln p is stored as f32): a rest that small is no bin. */
    if (p_rest > 1e-6 && q_rest > 1e-6) return kl + p_rest * log(p_rest / q_rest);
    return kl + p_rest - q_rest; /* the least that the rest can add: x ln(x/y) >= x - y */
}

static double kl_full(const float *truth, const float *row, uint32_t n, double lse)
{
    double t = log_sum_exp(truth, n), kl = 0;
    for (uint32_t i = 0; i < n; i++) {
        double lp = (double)truth[i] - t;
        kl += exp(lp) * (lp - ((double)row[i] - lse));
    }
    return kl;
}

static double largest_difference(const cb_ref *r, uint32_t pos, const float *row, const float *full)
{
    double d = 0;
    for (uint32_t i = 0; i < r->top_k; i++) {
        size_t k = (size_t)pos * r->top_k + i;
        d = fmax(d, fabs((double)r->top[k] + r->lse[pos] - (double)row[r->top_id[k]]));
    }
    for (uint32_t i = 0; i < r->n_sample; i++)
        d = fmax(d, fabs((double)r->sample[(size_t)pos * r->n_sample + i] + r->lse[pos] - (double)row[r->sample_id[i]]));
    for (uint32_t i = 0; full && i < r->n_vocab; i++) d = fmax(d, fabs((double)full[i] - (double)row[i]));
    return d;
}

/* Truth's lead over id: exact where its logit is stored, else the least it can be. */
static float lead_over(const cb_ref *r, uint32_t pos, uint32_t id, const float *full)
{
    const uint32_t *ids = r->top_id + (size_t)pos * r->top_k;
    const float *logp = r->top + (size_t)pos * r->top_k;
    for (uint32_t i = 0; i < r->top_k; i++)
        if (ids[i] == id) return logp[0] - logp[i];
    if (full) return full[ids[0]] - full[id];
    for (uint32_t i = 0; i < r->n_sample; i++)
        if (r->sample_id[i] == id) return logp[0] - r->sample[(size_t)pos * r->n_sample + i];
    return logp[0] - logp[r->top_k - 1];
}

static void score_full(cb_ref_score *s, const cb_ref *r, const float *row, const float *full, double lse)
{
    double kl = kl_full(full, row, r->n_vocab, lse), lo = INFINITY, hi = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < r->n_vocab; i++) {
        double d = (double)row[i] - (double)full[i];
        lo = fmin(lo, d), hi = fmax(hi, d), sum += d;
    }
    double mean = sum / r->n_vocab;
    s->n_full++;
    s->full_kl_sum += kl;
    s->full_kl_max = fmax(s->full_kl_max, kl);
    s->dmax_c = fmax(s->dmax_c, fmax(hi - mean, mean - lo));
    s->n_breach += kl > (hi - lo) * (hi - lo) / 8 + 1e-9; /* Hoeffding's lemma, and rounding */
}

static void score_flip(cb_ref_score *s, cb_ref_flip f, bool finite)
{
    if (s->n_flips < CB_REF_FLIPS) s->flips[s->n_flips] = f;
    s->n_flips++;
    if (f.lead > s->margin || !finite) s->n_bad_flips++;
    if (s->flip_at < 0 || f.lead > s->flip_margin) s->flip_margin = f.lead, s->flip_at = f.pos;
}

void cb_ref_score_row(cb_ref_score *s, const cb_ref *r, uint32_t pos, const float *row, const float *full)
{
    uint32_t best = 0, want = r->top_id[(size_t)pos * r->top_k];
    bool finite = true;
    for (uint32_t i = 0; i < r->n_vocab; i++) {
        finite &= isfinite(row[i]) != 0;
        if (row[i] > row[best]) best = i;
    }
    double lse = finite ? log_sum_exp(row, r->n_vocab) : 0;
    double kl = finite ? kl_binned(r, pos, row, lse) : INFINITY;
    double d = finite ? largest_difference(r, pos, row, full) : INFINITY;
    s->n++;
    s->kl_sum += kl;
    if (s->kl_at < 0 || kl > s->kl_max) s->kl_max = kl, s->kl_at = (int)pos;
    if (s->dmax_at < 0 || d > s->dmax) s->dmax = d, s->dmax_at = (int)pos;
    if (full && finite) score_full(s, r, row, full, lse);
    else if (full) s->n_full++, s->full_kl_sum = s->full_kl_max = s->dmax_c = INFINITY;
    if (best != want) score_flip(s, (cb_ref_flip){(int)pos, want, best, lead_over(r, pos, best, full)}, finite);
}

void cb_ref_score_add(cb_ref_score *s, const cb_ref_score *p)
{
    s->n += p->n;
    s->kl_sum += p->kl_sum;
    if (p->kl_at >= 0 && (s->kl_at < 0 || p->kl_max > s->kl_max)) s->kl_max = p->kl_max, s->kl_at = p->kl_at;
    if (p->dmax_at >= 0 && (s->dmax_at < 0 || p->dmax > s->dmax)) s->dmax = p->dmax, s->dmax_at = p->dmax_at;
    s->n_full += p->n_full;
    s->full_kl_sum += p->full_kl_sum;
    s->full_kl_max = fmax(s->full_kl_max, p->full_kl_max);
    s->dmax_c = fmax(s->dmax_c, p->dmax_c);
    s->n_breach += p->n_breach;
    for (int i = 0; i < p->n_flips && i < CB_REF_FLIPS && s->n_flips + i < CB_REF_FLIPS; i++) s->flips[s->n_flips + i] = p->flips[i];
    s->n_flips += p->n_flips;
    s->n_bad_flips += p->n_bad_flips;
    if (p->flip_at >= 0 && (s->flip_at < 0 || p->flip_margin > s->flip_margin)) s->flip_margin = p->flip_margin, s->flip_at = p->flip_at;
}
