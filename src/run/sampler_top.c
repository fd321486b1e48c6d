/* sampler_top.c: sampling when the row is on a device: what to ask of it (plan/top.h), and the token from its answer. The token is that of
 * cb_sampler_pick on the row, or the row is asked for: every filter keeps a beginning of the candidates in the order of sampling, so that the
 * largest of them decide as soon as a filter cuts inside what is known, and sums of weights are integers, which no order of addition
 * can change. Read sampler.c first. */
#include "run/sampler_ops.h"
#include "base/err.h"
#include <math.h>
#include <string.h>

/* Below this a weight is 0: 2^-31 is e^-21.49. */
#define NO_WEIGHT 21.7f

/* ---- the question ---- */

static int is_active(const cb_sampler *s, const cb_sampling *p, int op)
{
    switch (op) {
    case CB_OP_TEMPERATURE: return p->temperature != 1;
    case CB_OP_TOP_K: return p->top_k > 0 && p->top_k < s->n_vocab;
    case CB_OP_TOP_P: return p->top_p < 1;
    case CB_OP_MIN_P: return p->min_p > 0;
    default: return (p->repetition_penalty != 0 && p->repetition_penalty != 1) || p->presence_penalty != 0 || p->frequency_penalty != 0;
    }
}

/* While changes are listed s->count says what an id has: */
#define IN_ALL 1u        /* it is in the window of the repetition penalty, */
#define IN_OWN 2u        /* so often in that of the others, */
#define HAS_BIAS (1u << 31)

typedef struct changes {
    cb_sampler *s;
    cb_change *room;
    int n, n_room;
} changes;

/* Adds to what an id has; 0: no room. Long histories are why this touches one word an id. */
static inline int add(changes *c, int32_t id, uint32_t what)
{
    uint32_t had = c->s->count[id];
    if (!had) {
        if (c->n == c->n_room) return 0;
        c->room[c->n++].id = id;
    }
    c->s->count[id] = what == IN_OWN ? had + what : had | what;
    return 1;
}

static int add_window(changes *c, cb_smp_window w, uint32_t what)
{
    for (int i = 0; i < w.n; i++)
        if (w.ids[i] >= 0 && w.ids[i] < c->s->n_vocab && !add(c, w.ids[i], what)) return 0;
    return 1;
}

/* 0: the device cannot make them: too many, or several biases of one id, whose order counts. */
static int list_changes(cb_sampler *s, const cb_sampling *p, int penalties, const int32_t *history, int n_history, int n_prompt, cb_change *room,
                        int n_room, cb_ask *out)
{
    changes c = {s, room, 0, n_room};
    int ok = 1;
    for (int i = 0; i < p->n_bias && ok; i++) ok = !s->count[p->bias_ids[i]] && add(&c, p->bias_ids[i], HAS_BIAS);
    if (ok && penalties && out->repetition != 1) ok = add_window(&c, cb_smp_window_all(p, history, n_history, n_prompt), IN_ALL);
    if (ok && penalties && (out->presence != 0 || out->frequency != 0)) ok = add_window(&c, cb_smp_window_own(p, history, n_history, n_prompt), IN_OWN);
    for (int i = 0; i < c.n; i++) {
        uint32_t has = s->count[room[i].id];
        s->count[room[i].id] = 0;
        room[i].bias = has & HAS_BIAS ? p->bias[i] : 0; /* those with a bias are first, in its order */
        room[i].in_all = has & IN_ALL;
        room[i].n_own = (has & ~HAS_BIAS) / IN_OWN;
    }
    out->changes = room;
    out->n_changes = ok ? c.n : 0;
    return ok;
}

/* What ends the list. A filter behind another one, other than top-p, may as well be the one that cuts first; top-p needs the sum of what the
 * filters before it have kept, and so does what follows it then. */
static void ask_for_list(const cb_sampler *s, const cb_sampling *p, const uint8_t *order, cb_ask *out)
{
    float t = 1, t_sum = 1, reach = INFINITY;
    int n_filters = 0, open = 1;
    for (; *order != CB_OP_END; order++) {
        int active = is_active(s, p, *order);
        if (*order == CB_OP_TEMPERATURE) t = p->temperature;
        if (*order == CB_OP_TEMPERATURE || *order == CB_OP_PENALTIES || !active) continue;
        if (*order == CB_OP_TOP_P && n_filters++) open = 0;
        if (!open) continue;
        if (*order == CB_OP_TOP_P) out->p = p->top_p, t_sum = t;
        if (*order == CB_OP_TOP_K) out->count = p->top_k, n_filters++;
        if (*order == CB_OP_MIN_P) {
            float m = p->min_p < 1 ? p->min_p : 1, r = (2e-3f - (float)cb_sampler_ln((double)m)) * t;
            if (r < reach) reach = r;
            n_filters++;
        }
    }
    if (!n_filters) out->kind = CB_ASK_DRAW, t_sum = t;
    out->t = t_sum;
    out->reach = reach < (NO_WEIGHT + 0.1f) * t ? reach : (NO_WEIGHT + 0.1f) * t;
}

int cb_sampler_ask(cb_sampler *s, const cb_sampling *p, const int32_t *history, int n_history, int n_prompt, cb_change *room, int n_room,
                   cb_ask *out, cb_err *err)
{
    const uint8_t *order = NULL;
    *out = (cb_ask){.kind = CB_ASK_TOP, .repetition = p->repetition_penalty == 0 ? 1 : p->repetition_penalty, .presence = p->presence_penalty,
                    .frequency = p->frequency_penalty, .t = 1, .p = 1, .random = cb_smp_random(p, n_history)};
    int rc = cb_smp_check(p, n_history, n_prompt, &order, err);
    for (int i = 0; i < p->n_bias && rc == 0; i++) rc = cb_smp_check_bias(s, p, i, err);
    if (rc < 0) return rc;
    int greedy = cb_smp_is_greedy(p, order), penalties = cb_smp_has(order, CB_OP_PENALTIES) && is_active(s, p, CB_OP_PENALTIES);
    for (int i = 0; penalties && !greedy && order[i] != CB_OP_PENALTIES; i++)
        if (is_active(s, p, order[i])) out->kind = CB_ASK_ROW; /* penalties of what a filter has left */
    if (out->kind == CB_ASK_ROW) return 0;
    if (!list_changes(s, p, penalties, history, n_history, n_prompt, room, n_room, out)) out->kind = CB_ASK_ROW;
    else if (greedy) out->kind = CB_ASK_BEST;
    else ask_for_list(s, p, order, out);
    return 0;
}

/* ---- the answer ---- */

/* The list holds the largest candidates; while it is open there are more, whose z is at most `low`, which moves along with the operators. A
 * candidate of the list above `low` is certain: it stands before all that are not in the list, and every operator so far has kept it. */
typedef struct top_list {
    float low, t;
    int open;
    uint64_t sum; /* weights of all candidates at temperature t; 0: not known */
} top_list;

enum { FEW = 64 };

static void insert_by_id(cb_sampler *s, const uint64_t *list, int n)
{
    for (int i = 0; i < n; i++) {
        int32_t id = (int32_t)(list[i] >> 32);
        uint32_t bits = (uint32_t)list[i];
        int k = i;
        for (; k > 0 && s->id[k - 1] > id; k--) s->id[k] = s->id[k - 1], s->z[k] = s->z[k - 1];
        s->id[k] = id;
        memcpy(&s->z[k], &bits, 4);
    }
}

/* Three passes by 8 bits (ids are below 2^24). */
static void sort_by_id(cb_sampler *s, const uint64_t *list, int n)
{
    int32_t *ids[2] = {s->id, (int32_t *)s->keys}, count[3][257] = {{0}};
    uint32_t *z[2] = {(uint32_t *)s->z, s->w};
    for (int i = 0; i < n; i++)
        for (int k = 0; k < 3; k++) count[k][(list[i] >> (32 + 8 * k) & 255) + 1]++;
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < 256; i++) count[k][i + 1] += count[k][i];
    for (int i = 0; i < n; i++) {
        int to = count[0][list[i] >> 32 & 255]++;
        ids[0][to] = (int32_t)(list[i] >> 32);
        z[0][to] = (uint32_t)list[i];
    }
    for (int k = 1; k < 3; k++)
        for (int i = 0, a = 1 - k % 2, b = k % 2; i < n; i++) {
            int to = count[k][ids[a][i] >> 8 * k & 255]++;
            ids[b][to] = ids[a][i];
            z[b][to] = z[a][i];
        }
}

static void take_list(cb_sampler *s, const cb_top *top)
{
    if (top->n <= FEW) insert_by_id(s, top->list, top->n);
    else sort_by_id(s, top->list, top->n);
    s->n = top->n;
    s->dense = 0;
}

/* Each leaves the list open where it would keep all that is certain and perhaps more. 0: it does not decide what it keeps. */

static int list_top_k(cb_sampler *s, const cb_sampling *p, top_list *l)
{
    if (!is_active(s, p, CB_OP_TOP_K)) return 1;
    int certain = 0;
    for (int i = 0; i < s->n; i++) certain += s->z[i] > l->low;
    l->sum = 0;
    if (l->open && certain < p->top_k) return 1;
    cb_smp_top_k(s, p);
    l->open = 0;
    return 1;
}

static int list_top_p(cb_sampler *s, const cb_sampling *p, top_list *l)
{
    if (p->top_p >= 1) return 1;
    float zmax = cb_smp_max(s->z, s->n, NULL);
    if (!l->open || l->low - zmax < -NO_WEIGHT) cb_smp_top_p(s, p->top_p);
    else {
        if (!l->sum || !(zmax > l->low)) return 0;
        uint64_t need = cb_smp_mass(p->top_p, l->sum), certain = 0;
        cb_smp_weigh(s, zmax);
        for (int i = 0; i < s->n; i++) certain += s->z[i] > l->low ? s->w[i] : 0;
        l->sum = 0;
        if (certain < need) return 1;
        cb_smp_keep_mass(s, need);
    }
    l->open = 0;
    return 1;
}

static int list_min_p(cb_sampler *s, const cb_sampling *p, top_list *l)
{
    if (p->min_p <= 0) return 1;
    float m = p->min_p < 1 ? p->min_p : 1;
    l->sum = 0;
    if (l->open && !(l->low - cb_smp_max(s->z, s->n, NULL) < (float)cb_sampler_ln((double)m) - 1e-3f)) return 1;
    cb_smp_min_p(s, p->min_p);
    l->open = 0;
    return 1;
}

static int list_op(cb_sampler *s, int op, const cb_sampling *p, top_list *l)
{
    switch (op) {
    case CB_OP_TOP_K: return list_top_k(s, p, l);
    case CB_OP_TOP_P: return list_top_p(s, p, l);
    case CB_OP_MIN_P: return list_min_p(s, p, l);
    case CB_OP_TEMPERATURE: /* keeps the order */
        cb_smp_temperature(s, p->temperature);
        if (p->temperature != 1) l->low = l->low / p->temperature + 0.0f;
        if (p->temperature != l->t) l->sum = 0;
        return 1;
    default: return 1; /* penalties have been made */
    }
}

static int32_t from_list(cb_sampler *s, const cb_sampling *p, const uint8_t *order, const cb_ask *ask, const cb_top *top, int n_history, float *logprob)
{
    if (top->n < 1 || top->n > CB_TOP || top->n > s->n_vocab) return CB_SAMPLER_MORE;
    take_list(s, top);
    top_list l = {.low = top->low, .t = ask->t, .open = top->low > -INFINITY, .sum = ask->p < 1 ? top->sum : 0};
    for (; *order != CB_OP_END; order++)
        if (!list_op(s, *order, p, &l)) return CB_SAMPLER_MORE;
    if (l.open && !(l.low - cb_smp_max(s->z, s->n, NULL) < -NO_WEIGHT)) return CB_SAMPLER_MORE;
    return cb_smp_draw(s, p, n_history, logprob);
}

int32_t cb_sampler_answer(cb_sampler *s, const cb_sampling *p, const cb_ask *ask, const cb_top *top, int n_history, float *logprob, cb_err *err)
{
    const uint8_t *order = NULL;
    s->drew = 0;
    int rc = cb_smp_check(p, n_history, 0, &order, err);
    if (rc < 0) return rc;
    if (!(top->max <= CB_SMP_LIMIT)) return cb_smp_not_finite(n_history, err);
    if (ask->kind == CB_ASK_ROW) return CB_SAMPLER_MORE;
    if (!(top->best_z >= -CB_SMP_LIMIT)) return cb_smp_banned(err);
    if (ask->kind == CB_ASK_TOP) return from_list(s, p, order, ask, top, n_history, logprob);
    float zmax = top->best_z / ask->t + 0.0f;
    if (logprob) *logprob = ask->kind == CB_ASK_BEST ? 0 : cb_smp_logprob(top->drawn_z / ask->t + 0.0f, zmax, top->sum);
    return ask->kind == CB_ASK_BEST ? top->best : top->drawn;
}
