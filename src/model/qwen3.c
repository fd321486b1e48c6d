/* qwen3.c: dense Qwen 3 (and Bonsai 1 on it). Pre-norm; q and k are normed per head before RoPE over the whole head; SwiGLU.
 * Reference: transformers modeling_qwen3, mlx-lm models/qwen3.py. */
#include "model/family.h"
#include "model/names.h"
#include "model/rope.h"
#include <math.h>

static void build(cb_builder *b)
{
    int hidden = pb_need_int(b, "hidden_size", 2, 1 << 17), layers = pb_need_int(b, "num_hidden_layers", 1, 1024);
    int ffn = pb_need_int(b, "intermediate_size", 2, 1 << 20), n_vocab = pb_need_int(b, "vocab_size", 1, 1 << 22);
    float eps = (float)pb_real(b, "rms_norm_eps", 1e-6);
    cb_attn_spec a = {.n_heads = pb_need_int(b, "num_attention_heads", 1, 1024)};
    a.n_kv_heads = pb_int(b, "num_key_value_heads", 1, 1024, a.n_heads);
    a.dim = pb_int(b, "head_dim", 2, 1024, hidden / a.n_heads);
    if (pb_ok(b) && (a.n_heads % a.n_kv_heads || a.dim % 2))
        pb_fail(b, CB_EFORMAT, "config.json: %d heads, %d KV heads of %d dims do not fit together", a.n_heads, a.n_kv_heads, a.dim);
    if (pb_bool(b, "use_sliding_window", false)) pb_fail(b, CB_EFORMAT, "config.json: use_sliding_window is not supported for qwen3");
    if (!pb_ok(b)) return;
    a.scale = (float)(1.0 / sqrt((double)a.dim));
    a.half = a.n_pairs = a.dim / 2;
    double freq[512];
    double theta = pb_real(b, "rope_theta", 1e6);
    const json_t *scaling = cb_rope_config(b, &theta);
    float turn_scale = cb_rope_freqs(b, theta, a.dim, scaling, freq); /* long contexts: YaRN */
    pb_limits(b, pb_int(b, "max_position_embeddings", 1, 1 << 24, 32768));

    cb_val x = pb_embed(b, "model.embed_tokens", n_vocab, hidden, 1.0f);
    a.rope = pb_rope_table(b, "rope", freq, a.n_pairs, turn_scale);
    for (int l = 0; l < layers && pb_ok(b); l++) {
        pb_scope(b, "model.layers.%d.", l);
        cb_val h = pb_rmsnorm(b, x, "input_layernorm.weight", eps, false);
        cb_val q = pb_linear(b, h, "self_attn.q_proj", a.n_heads * a.dim);
        cb_val k = pb_linear(b, h, "self_attn.k_proj", a.n_kv_heads * a.dim);
        cb_val v = pb_linear(b, h, "self_attn.v_proj", a.n_kv_heads * a.dim);
        q = pb_rope(b, pb_head_norm(b, q, "self_attn.q_norm.weight", a.dim, eps, false), &a);
        k = pb_rope(b, pb_head_norm(b, k, "self_attn.k_norm.weight", a.dim, eps, false), &a);
        x = pb_linear_add(b, pb_attention(b, q, k, v, &a), "self_attn.o_proj", x);
        h = pb_rmsnorm(b, x, "post_attention_layernorm.weight", eps, false);
        cb_val gate = pb_linear(b, h, "mlp.gate_proj", ffn);
        x = pb_linear_add(b, pb_glu(b, gate, pb_linear(b, h, "mlp.up_proj", ffn), CB_ACT_SILU), "mlp.down_proj", x);
    }
    pb_scope(b, "%s", "");
    x = pb_rmsnorm(b, pb_wanted(b, x), "model.norm.weight", eps, false);
    bool tied = pb_bool(b, "tie_word_embeddings", false);
    if (tied) cb_skip_head(b);
    pb_logits(b, x, tied ? "model.embed_tokens" : "lm_head", n_vocab, 0);
}

static const char *const types[] = {"qwen3", NULL};
const cb_family cb_family_qwen3 = {"qwen3", types, build};
