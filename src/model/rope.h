/* rope.h: rotary frequencies of the families, from config.json's rope_scaling / rope_parameters. */
#ifndef CB_MODEL_ROPE_H
#define CB_MODEL_ROPE_H
#include "plan/builder.h"

/* The object that describes the rotation: rope_parameters (transformers 5; its rope_theta wins), else rope_scaling, else NULL. */
const json_t *cb_rope_config(cb_builder *b, double *theta);
/* freq[i] = theta^(-2i/dim), i < dim/2 (radians per position), then the `scaling` object (NULL: none): type or rope_type
 * "default", "linear" (factor), "llama3" or "yarn". Anything else fails the builder, naming it. Returns what cos and sin are to
 * be multiplied with: 1, or YaRN's attention factor. */
float cb_rope_freqs(cb_builder *b, double theta, int dim, const json_t *scaling, double *freq);
#endif
