/* sampler.h: what tests and the scheduler may see of the sampler beyond cambium.h. The definition is docs/sampling.md. */
#ifndef CB_RUN_SAMPLER_H
#define CB_RUN_SAMPLER_H
#include "cambium.h"
#include "plan/top.h"

/* Weights are integers in units of 2^-30 of the likeliest token's probability, so sums are exact in any order. */
#define CB_SAMPLER_ONE (1u << 30)

/* The distribution of the latest cb_sampler_pick that drew (not greedy): n entries in ascending id, entry i has weight
 * w[i] and id ids[i] (ids NULL: the id is i). *sum is the total. Borrowed until the next call. */
int cb_sampler_last(const cb_sampler *s, const int32_t **ids, const uint32_t **w, uint64_t *sum);

/* ---- with a device that keeps the row: sampler_top.c. First the question, then the answer that it allows. ---- */

/* What has to be known of a row's logits, with the settings checked: 0 or CB_EUSAGE. Its changes are written to room[0..n_room); when they
 * do not fit, the row is asked for. */
int cb_sampler_ask(cb_sampler *s, const cb_sampling *p, const int32_t *history, int n_history, int n_prompt, cb_change *room, int n_room,
                   cb_ask *out, cb_err *err);
/* cb_sampler_pick's id, logprob and errors from what a device has found, or CB_SAMPLER_MORE: the row is needed after all. */
#define CB_SAMPLER_MORE INT32_MAX
int32_t cb_sampler_answer(cb_sampler *s, const cb_sampling *p, const cb_ask *ask, const cb_top *top, int n_history, float *logprob, cb_err *err);
/* cb_sampler_pick, from logits in which the ask's changes have been made. */
int32_t cb_sampler_pick_changed(cb_sampler *s, const cb_sampling *p, const float *logits, int n_history, float *logprob, cb_err *err);
int cb_sampler_n_vocab(const cb_sampler *s);

/* Philox4x32-10: 128 random bits for a key and a counter. */
void cb_philox(uint64_t key, const uint32_t counter[4], uint32_t out[4]);

/* ln(x) for finite x > 0, in double, written with + - * / only: error below 1e-14. */
double cb_sampler_ln(double x);
#endif
