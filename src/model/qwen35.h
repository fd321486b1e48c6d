/* qwen35.h: the Qwen 3.5 network, for its own family and for packs built on it (bonsai2.c). */
#ifndef CB_MODEL_QWEN35_H
#define CB_MODEL_QWEN35_H
#include "plan/builder.h"

/* Records the whole text network from the text part of config.json; a rotation set on the builder applies. */
void cb_qwen35_build(cb_builder *b);
#endif
