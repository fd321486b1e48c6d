/* rope.h: rotary frequencies of the families, from config.json's rope_scaling / rope_parameters. */
#ifndef CB_MODEL_ROPE_H
#define CB_MODEL_ROPE_H
#include "plan/builder.h"

/* freq[i] = theta^(-2i/dim), i < dim/2 (radians per position), then the `scaling` object (NULL: none): type or rope_type
 * "default", "linear" (factor) or "llama3". Anything else fails the builder, naming it. */
void cb_rope_freqs(cb_builder *b, double theta, int dim, const json_t *scaling, double *freq);
#endif
