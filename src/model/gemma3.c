/* gemma3.c: Gemma 3 text (270M, 1B). Sandwich norms whose weights are 1 + w, q/k norms, GELU-tanh gate, sliding layers
 * with their own RoPE base, embeddings scaled by sqrt(hidden) rounded to bf16, tied head.
 * Reference: transformers modeling_gemma3, mlx-lm models/gemma3_text.py. */
#include "model/family.h"
#include "model/names.h"
#include "model/rope.h"
#include "io/dtype.h"
#include <math.h>

enum { NARROW = 1024 };

/* transformers 5 writes rope_parameters per layer type; older files rope_theta and rope_local_base_freq. */
static const json_t *rope_of(cb_builder *b, const char *type, double *theta)
{
    const json_t *p = json_object_get(cb_config_get(pb_config(b), "rope_parameters"), type);
    const json_t *t = json_object_get(p, "rope_theta");
    if (json_is_number(t)) *theta = json_number_value(t);
    return p;
}

static void build(cb_builder *b)
{
    const cb_config *c = pb_config(b);
    int hidden = pb_need_int(b, "hidden_size", 2, 1 << 17), layers = pb_need_int(b, "num_hidden_layers", 1, 1024);
    int ffn = pb_need_int(b, "intermediate_size", 2, 1 << 20), n_vocab = pb_need_int(b, "vocab_size", 1, 1 << 22);
    float eps = (float)pb_real(b, "rms_norm_eps", 1e-6);
    cb_attn_spec full = {0};
    full.n_heads = pb_need_int(b, "num_attention_heads", 1, 1024);
    full.n_kv_heads = pb_need_int(b, "num_key_value_heads", 1, 1024);
    full.dim = pb_need_int(b, "head_dim", 2, 1024);
    int window = pb_need_int(b, "sliding_window", 1, 1 << 24);
    int pattern = pb_int(b, "sliding_window_pattern", 1, 1024, pb_int(b, "_sliding_window_pattern", 1, 1024, 6));
    double scalar = pb_real(b, "query_pre_attn_scalar", 256);
    if (pb_ok(b) && (full.n_heads % full.n_kv_heads || full.dim % 2 || !(scalar > 0)))
        pb_fail(b, CB_EFORMAT, "config.json: %d heads, %d KV heads of %d dims, query_pre_attn_scalar %g do not fit together",
                full.n_heads, full.n_kv_heads, full.dim, scalar);
    const json_t *types = cb_config_get(c, "layer_types");
    if (types && json_array_size(types) != (size_t)layers)
        pb_fail(b, CB_EFORMAT, "config.json: layer_types has %zu entries for %d layers", json_array_size(types), layers);
    if (pb_real(b, "attn_logit_softcapping", 0) != 0)
        pb_fail(b, CB_EFORMAT, "config.json: attn_logit_softcapping is not supported for gemma3_text");
    if (!pb_ok(b)) return;
    full.scale = (float)(1.0 / sqrt(scalar));
    full.half = full.n_pairs = full.dim / 2;
    cb_attn_spec slide = full;
    slide.window = window;

    double freq[512], theta = pb_real(b, "rope_theta", 1e6), local = pb_real(b, "rope_local_base_freq", 1e4);
    const json_t *fp = rope_of(b, "full_attention", &theta), *sp = rope_of(b, "sliding_attention", &local);
    float turn_scale = cb_rope_freqs(b, theta, full.dim, fp ? fp : cb_config_get(c, "rope_scaling"), freq);
    pb_limits(b, pb_int(b, "max_position_embeddings", 1, 1 << 24, 32768));

    float scale = cb_bf16_to_f32(cb_f32_to_bf16((float)sqrt((double)hidden)));
    cb_val x = pb_embed(b, "model.embed_tokens", n_vocab, hidden, scale);
    full.rope = pb_rope_table(b, "rope.full", freq, full.n_pairs, turn_scale);
    turn_scale = cb_rope_freqs(b, local, slide.dim, sp, freq);
    slide.rope = pb_rope_table(b, "rope.sliding", freq, slide.n_pairs, turn_scale);

    /* Weights of the norms reach 50 and more, so a few channels of every row tower above the others. The narrow model has too few
     * of these to average out what one scale a group costs them: all its rows get a remainder (docs/arithmetic.md, section 4). */
    const float share = hidden < NARROW ? 0 : PB_REMAINDERS;
    for (int l = 0; l < layers && pb_ok(b); l++) {
        const cb_attn_spec *a = cb_layer_is_full(b, types, l, pattern, "sliding_attention") ? &full : &slide;
        pb_scope(b, "model.layers.%d.", l);
        pb_remainders(b, share);
        cb_val h = pb_rmsnorm(b, x, "input_layernorm.weight", eps, true);
        cb_val q = pb_linear(b, h, "self_attn.q_proj", a->n_heads * a->dim);
        cb_val k = pb_linear(b, h, "self_attn.k_proj", a->n_kv_heads * a->dim);
        cb_val v = pb_linear(b, h, "self_attn.v_proj", a->n_kv_heads * a->dim);
        q = pb_rope(b, pb_head_norm(b, q, "self_attn.q_norm.weight", a->dim, eps, true), a);
        k = pb_rope(b, pb_head_norm(b, k, "self_attn.k_norm.weight", a->dim, eps, true), a);
        h = pb_linear(b, pb_attention(b, q, k, v, a), "self_attn.o_proj", hidden);
        x = pb_add(b, x, pb_rmsnorm(b, h, "post_attention_layernorm.weight", eps, true));
        h = pb_rmsnorm(b, x, "pre_feedforward_layernorm.weight", eps, true);
        cb_val gate = pb_linear(b, h, "mlp.gate_proj", ffn), up = pb_linear(b, h, "mlp.up_proj", ffn);
        h = pb_linear(b, pb_glu(b, gate, up, CB_ACT_GELU_TANH), "mlp.down_proj", hidden);
        x = pb_add(b, x, pb_rmsnorm(b, h, "post_feedforward_layernorm.weight", eps, true));
    }
    pb_scope(b, "%s", "");
    pb_remainders(b, PB_REMAINDERS);
    x = pb_rmsnorm(b, pb_wanted(b, x), "model.norm.weight", eps, true);
    bool tied = pb_bool(b, "tie_word_embeddings", true) || !pb_has(b, "lm_head.weight");
    if (tied) cb_skip_head(b);
    pb_logits(b, x, tied ? "model.embed_tokens" : "lm_head", n_vocab, (float)pb_real(b, "final_logit_softcapping", 0));
}

static const char *const types_[] = {"gemma3_text", NULL};
const cb_family cb_family_gemma3 = {"gemma3", types_, build};
