/* normed_checkpoint.h: checkpoints of random weights as Gemma 4's with experts: outputs that are normed before they are added, a dense MLP of 8 bits beside the
 * experts, layers with a window and without. Rows have the width of whole warps, as cuda/tape.cu wants them; no tokenizer. */
#ifndef CB_TESTS_SUPPORT_NORMED_CHECKPOINT_H
#define CB_TESTS_SUPPORT_NORMED_CHECKPOINT_H
#include "moe_checkpoint.h"

enum { NORMED_HEADS = 4, NORMED_KV_HEADS = 2, NORMED_FULL_KV_HEADS = 1, NORMED_DIM = 256, NORMED_FULL_DIM = 512, NORMED_WINDOW = 70 };

static void normed_attention(moe_writer *w, bool full)
{
    int hidden = w->s->hidden, dim = full ? NORMED_FULL_DIM : NORMED_DIM, kv = full ? NORMED_FULL_KV_HEADS : NORMED_KV_HEADS;
    moe_matrix(w, "self_attn.q_proj", 0, NORMED_HEADS * dim, hidden, 4);
    moe_matrix(w, "self_attn.k_proj", 0, kv * dim, hidden, 4);
    if (!full) moe_matrix(w, "self_attn.v_proj", 0, kv * dim, hidden, 4);
    moe_norm(w, "self_attn.q_norm", dim);
    moe_norm(w, "self_attn.k_norm", dim);
    moe_matrix(w, "self_attn.o_proj", 0, hidden, NORMED_HEADS * dim, 4);
}

static void normed_tensors(moe_writer *w)
{
    static const char *const norms[] = {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "pre_feedforward_layernorm_2",
                                        "post_feedforward_layernorm", "post_feedforward_layernorm_1", "post_feedforward_layernorm_2"};
    const moe_shape *s = w->s;
    snprintf(w->layer, sizeof w->layer, "model.");
    moe_matrix(w, "embed_tokens", 0, MOE_VOCAB, s->hidden, 4);
    for (int l = 0; l < s->layers; l++) {
        snprintf(w->layer, sizeof w->layer, "model.layers.%d.", l);
        for (size_t i = 0; i < sizeof norms / sizeof *norms; i++) moe_norm(w, norms[i], s->hidden);
        moe_tensor(w, "layer_scalar", CB_BF16, 1, 0, 0, 0.7f, 0.1f);
        normed_attention(w, moe_is_full(s, l));
        moe_matrix(w, "mlp.gate_proj", 0, w->dense, s->hidden, 8);
        moe_matrix(w, "mlp.up_proj", 0, w->dense, s->hidden, 8);
        moe_matrix(w, "mlp.down_proj", 0, s->hidden, w->dense, 8);
        moe_matrix(w, "router.proj", 0, s->experts, s->hidden, 8);
        moe_tensor(w, "router.scale", CB_BF16, s->hidden, 0, 0, 16, 4);
        moe_tensor(w, "router.per_expert_scale", CB_BF16, s->experts, 0, 0, 1, 0.5f);
        moe_matrix(w, "experts.switch_glu.gate_proj", s->experts, s->width, s->hidden, 4);
        moe_matrix(w, "experts.switch_glu.up_proj", s->experts, s->width, s->hidden, 4);
        moe_matrix(w, "experts.switch_glu.down_proj", s->experts, s->hidden, s->width, 4);
    }
    snprintf(w->layer, sizeof w->layer, "model.");
    moe_norm(w, "norm", s->hidden);
}

/* s->interval: every so many layers one without a window, whose values are its keys; dense: units of the MLP. */
static void normed_write(const moe_shape *s, int dense, const char *dir)
{
    static const char *const bytes[] = {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "router.proj"};
    char config[4096];
    int n = snprintf(config, sizeof config, "{\"model_type\": \"gemma4\", \"tie_word_embeddings\": true, \"quantization\": {\"bits\": 4, \"group_size\": 64, \"mode\": \"affine\"");
    for (int l = 0; l < s->layers; l++)
        for (int k = 0; k < 4; k++)
            n += snprintf(config + n, sizeof config - (size_t)n, ", \"language_model.model.layers.%d.%s\": {\"group_size\": 64, \"bits\": 8}", l, bytes[k]);
    n += snprintf(config + n, sizeof config - (size_t)n, "}, \"text_config\": {\"model_type\": \"gemma4_text\", \"layer_types\": [");
    for (int l = 0; l < s->layers; l++) n += snprintf(config + n, sizeof config - (size_t)n, "%s\"%s_attention\"", l ? ", " : "", moe_is_full(s, l) ? "full" : "sliding");
    n += snprintf(config + n, sizeof config - (size_t)n,
                  "], \"hidden_size\": %d, \"num_hidden_layers\": %d, \"num_attention_heads\": %d, \"num_key_value_heads\": %d, \"head_dim\": %d, \"global_head_dim\": %d,"
                  "\"num_global_key_value_heads\": %d, \"attention_k_eq_v\": true, \"vocab_size\": %d, \"max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-6,"
                  "\"intermediate_size\": %d, \"sliding_window\": %d, \"enable_moe_block\": true, \"num_experts\": %d, \"top_k_experts\": %d, \"moe_intermediate_size\": %d,"
                  "\"final_logit_softcapping\": 30.0, \"hidden_size_per_layer_input\": 0, \"num_kv_shared_layers\": 0, \"tie_word_embeddings\": true}}",
                  s->hidden, s->layers, NORMED_HEADS, NORMED_KV_HEADS, NORMED_DIM, NORMED_FULL_DIM, NORMED_FULL_KV_HEADS, MOE_VOCAB, dense, NORMED_WINDOW, s->experts, s->chosen,
                  s->width);
    assert_true(n < (int)sizeof config);
    moe_store(&(moe_writer){.s = s, .dense = dense}, config, normed_tensors, dir);
}
#endif
