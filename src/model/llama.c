/* llama.c: Llama 2/3 and SmolLM2. Pre-norm, no q/k norm, RoPE over the whole head (half-split pairs), SwiGLU.
 * Reference: transformers modeling_llama, mlx-lm models/llama.py. */
#include "model/family.h"
#include "model/names.h"
#include "model/rope.h"
#include <math.h>

static cb_attn_spec attention_of_config(cb_builder *b, int hidden)
{
    cb_attn_spec a = {0};
    a.n_heads = pb_need_int(b, "num_attention_heads", 1, 1024);
    a.n_kv_heads = pb_int(b, "num_key_value_heads", 1, 1024, a.n_heads);
    a.dim = pb_int(b, "head_dim", 2, 1024, hidden / a.n_heads);
    if (a.n_heads % a.n_kv_heads || a.dim % 2 || a.dim < 2)
        pb_fail(b, CB_EFORMAT, "config.json: %d heads, %d KV heads of %d dims do not fit together", a.n_heads, a.n_kv_heads,
                a.dim);
    a.scale = (float)(1.0 / sqrt((double)a.dim));
    a.half = a.n_pairs = a.dim / 2;
    return a;
}

static void build(cb_builder *b)
{
    int hidden = pb_need_int(b, "hidden_size", 2, 1 << 17), layers = pb_need_int(b, "num_hidden_layers", 1, 1024);
    int ffn = pb_need_int(b, "intermediate_size", 2, 1 << 20), n_vocab = pb_need_int(b, "vocab_size", 1, 1 << 22);
    float eps = (float)pb_real(b, "rms_norm_eps", 1e-5);
    cb_attn_spec a = attention_of_config(b, hidden);
    if (!pb_ok(b)) return;
    if (pb_int(b, "sliding_window", 0, 1 << 30, 0) && cb_config_get(pb_config(b), "layer_types"))
        pb_fail(b, CB_EFORMAT, "config.json: layer_types with sliding_window is not supported for llama");

    double freq[512];
    double theta = pb_real(b, "rope_theta", 10000);
    const json_t *scaling = cb_rope_config(b, &theta);
    float turn_scale = cb_rope_freqs(b, theta, a.dim, scaling, freq);
    pb_limits(b, pb_int(b, "max_position_embeddings", 1, 1 << 24, 2048));

    cb_val x = pb_embed(b, "model.embed_tokens", n_vocab, hidden, 1.0f);
    a.rope = pb_rope_table(b, "rope", freq, a.n_pairs, turn_scale);
    for (int l = 0; l < layers && pb_ok(b); l++) {
        pb_scope(b, "model.layers.%d.", l);
        cb_val h = pb_rmsnorm(b, x, "input_layernorm.weight", eps, false);
        cb_val q = pb_linear(b, h, "self_attn.q_proj", a.n_heads * a.dim);
        cb_val k = pb_linear(b, h, "self_attn.k_proj", a.n_kv_heads * a.dim);
        cb_val v = pb_linear(b, h, "self_attn.v_proj", a.n_kv_heads * a.dim);
        h = pb_attention(b, pb_rope(b, q, &a), pb_rope(b, k, &a), v, &a);
        x = pb_linear_add(b, h, "self_attn.o_proj", x);
        h = pb_rmsnorm(b, x, "post_attention_layernorm.weight", eps, false);
        cb_val gate = pb_linear(b, h, "mlp.gate_proj", ffn), up = pb_linear(b, h, "mlp.up_proj", ffn);
        x = pb_linear_add(b, pb_glu(b, gate, up, CB_ACT_SILU), "mlp.down_proj", x);
    }
    pb_scope(b, "%s", "");
    x = pb_rmsnorm(b, pb_wanted(b, x), "model.norm.weight", eps, false);
    bool tied = pb_bool(b, "tie_word_embeddings", true);
    if (tied) cb_skip_head(b);
    pb_logits(b, x, tied ? "model.embed_tokens" : "lm_head", n_vocab, 0);
}

static const char *const types[] = {"llama", NULL};
const cb_family cb_family_llama = {"llama", types, build};
