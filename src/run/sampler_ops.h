/* sampler_ops.h: the sampler's state and its operators, for sampler.c and sampler_top.c. */
#ifndef CB_RUN_SAMPLER_OPS_H
#define CB_RUN_SAMPLER_OPS_H
#include "run/sampler.h"

/* The largest logit lies within this, so that the largest z stays finite through penalties (1e3) and temperature (1e5). */
#define CB_SMP_LIMIT 1e30f

struct cb_sampler {
    int n_vocab;
    int n;          /* candidates */
    int dense;      /* id[i] == i, not written */
    int drew;       /* w, blocks and sum describe the list */
    float *z;       /* [n_vocab], padded */
    int32_t *id;    /* [n_vocab] */
    uint32_t *w;    /* [n_vocab], padded */
    uint32_t *count; /* [n_vocab] occurrences in a window; all zero between uses */
    uint32_t *keys; /* [n_vocab] scratch of the selections */
    uint64_t *block; /* sum of w over each 1024 candidates */
    uint64_t sum;
};

typedef struct cb_smp_window {
    const int32_t *ids;
    int n;
} cb_smp_window;

/* Errors of the settings; *order: what is done, in order. */
int cb_smp_check(const cb_sampling *p, int n_history, int n_prompt, const uint8_t **order, cb_err *err);
int cb_smp_check_bias(const cb_sampler *s, const cb_sampling *p, int i, cb_err *err);
int cb_smp_has(const uint8_t *order, int op);
int cb_smp_is_greedy(const cb_sampling *p, const uint8_t *order);
/* The ids that the repetition penalty sees, and those of the other two. */
cb_smp_window cb_smp_window_all(const cb_sampling *p, const int32_t *history, int n_history, int n_prompt);
cb_smp_window cb_smp_window_own(const cb_sampling *p, const int32_t *history, int n_history, int n_prompt);
/* The largest of n; *bad (may be NULL) is set for a NaN. */
float cb_smp_max(const float *z, int n, int *bad);
void cb_smp_temperature(cb_sampler *s, float t);
void cb_smp_top_k(cb_sampler *s, const cb_sampling *p);
void cb_smp_top_p(cb_sampler *s, float p);
void cb_smp_min_p(cb_sampler *s, float m);
/* What top-p keeps of a sum of weights. */
uint64_t cb_smp_mass(float p, uint64_t sum);
/* Keeps the shortest prefix, in descending z and ascending id, whose weights reach `need` (1 <= need <= sum). */
void cb_smp_keep_mass(cb_sampler *s, uint64_t need);
/* Weights of the list relative to its largest value, and their sums. */
void cb_smp_weigh(cb_sampler *s, float zmax);
/* The random bits of a position. */
uint64_t cb_smp_random(const cb_sampling *p, int position);
/* ln of the probability of z in a distribution whose weights have this sum. */
float cb_smp_logprob(float z, float zmax, uint64_t sum);
/* The token, from the list as the filters have left it. */
int32_t cb_smp_draw(cb_sampler *s, const cb_sampling *p, int position, float *logprob);
int cb_smp_banned(cb_err *err);
int cb_smp_not_finite(int position, cb_err *err);
#endif
