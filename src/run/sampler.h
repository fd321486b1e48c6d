/* sampler.h: what tests and the scheduler may see of the sampler beyond cambium.h. The definition is docs/sampling.md. */
#ifndef CB_RUN_SAMPLER_H
#define CB_RUN_SAMPLER_H
#include "cambium.h"

/* Weights are integers in units of 2^-30 of the likeliest token's probability, so sums are exact in any order. */
#define CB_SAMPLER_ONE (1u << 30)

/* The distribution of the latest cb_sampler_pick that drew (not greedy): n entries in ascending id, entry i has weight
 * w[i] and id ids[i] (ids NULL: the id is i). *sum is the total. Borrowed until the next call. */
int cb_sampler_last(const cb_sampler *s, const int32_t **ids, const uint32_t **w, uint64_t *sum);

/* Philox4x32-10: 128 random bits for a key and a counter. */
void cb_philox(uint64_t key, const uint32_t counter[4], uint32_t out[4]);

/* ln(x) for finite x > 0, in double, written with + - * / only: error below 1e-14. */
double cb_sampler_ln(double x);
#endif
