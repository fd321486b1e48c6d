/* qwen35.c: Qwen 3.5, dense and with experts (also 3.6 and 3.8 configs of the same architecture). Of every four layers three are
 * gated delta nets and one is full attention with an output gate; RoPE turns the first quarter of a head.
 * Reference: transformers modeling_qwen3_5 and modeling_qwen3_5_moe, mlx-lm models/qwen3_5.py. */
#include "model/qwen35.h"
#include "base/json.h"
#include "model/family.h"
#include "model/names.h"
#include "model/rope.h"
#include <math.h>
#include <string.h>

typedef struct network {
    int hidden, layers, ffn, n_vocab;
    float eps;
    cb_attn_spec a;
    cb_delta_spec d;
    cb_moe_spec moe;     /* n_experts 0: dense */
    int shared;          /* width of the shared expert, 0: none */
    bool add_one;        /* raw Hugging Face norms, centred on 0 */
} network;

/* Mean of layer 0's first norm: near 0 as published, near 1 after a conversion that added the 1. */
static double first_norm_mean(cb_builder *b, const char *prefix)
{
    pb_scope(b, "%slayers.0.", prefix);
    const cb_tensor *t = pb_tensor(b, "input_layernorm.weight");
    double sum = 0;
    if (!t || t->n_dims != 1 || t->dims[0] < 1 || (t->dtype != CB_F32 && t->dtype != CB_F16 && t->dtype != CB_BF16)) return 1;
    for (int64_t i = 0; i < t->dims[0]; i++) sum += (double)cb_load_float(t->data, t->dtype, (size_t)i);
    return sum / (double)t->dims[0];
}

/* Raw files (their norms are centred on 0) have convolutions of [C,1,4] and names under model.language_model.; a conversion to
 * MLX moves the last axis, [C,4,1], and renames. Where a file has raw names and moved axes, its norms decide. */
static bool is_raw(cb_builder *b, const char *prefix, int layers)
{
    bool raw_names = !strcmp(prefix, "model.language_model."), raw = raw_names;
    for (int l = 0; l < layers; l++) {
        pb_scope(b, "%slayers.%d.", prefix, l);
        const cb_tensor *t = pb_tensor(b, "linear_attn.conv1d.weight");
        if (!t) continue;
        raw = t->n_dims == 3 && t->dims[2] != 1;
        break;
    }
    if (raw_names && !raw) raw = first_norm_mean(b, prefix) < 0.5;
    pb_scope(b, "%s", "");
    return raw;
}

/* Returns the factor of cos and sin (YaRN). */
static float read_rope(cb_builder *b, network *n, double *freq)
{
    double theta = pb_real(b, "rope_theta", 1e7), part = pb_real(b, "partial_rotary_factor", 0.25);
    const json_t *r = cb_rope_config(b, &theta);
    cb_err e = {0};
    if (r && cb_json_real(r, "config.json: rope_parameters", "partial_rotary_factor", &part, &e) < 0) pb_fail(b, e.code, "%s", e.text);
    int turned = (int)(part * n->a.dim) / 2 * 2;
    if (turned < 2 || turned > n->a.dim)
        pb_fail(b, CB_EFORMAT, "config.json: partial_rotary_factor %g turns %d of %d dims", part, turned, n->a.dim);
    if (!pb_ok(b)) return 1;
    n->a.n_pairs = n->a.half = turned / 2;
    return cb_rope_freqs(b, theta, turned, r, freq);
}

static void read_experts(cb_builder *b, network *n)
{
    n->moe.n_experts = pb_int(b, "num_experts", 0, CB_MAX_EXPERTS, 0);
    if (!n->moe.n_experts) {
        n->ffn = pb_need_int(b, "intermediate_size", 2, 1 << 20);
        return;
    }
    n->moe.top_k = pb_need_int(b, "num_experts_per_tok", 1, CB_MAX_TOP_K);
    n->moe.width = pb_need_int(b, "moe_intermediate_size", 2, 1 << 20);
    n->shared = pb_int(b, "shared_expert_intermediate_size", 0, 1 << 20, 0);
    n->moe.route = CB_ROUTE_SOFTMAX_ALL;
    n->moe.act = CB_ACT_SILU;
}

/* A key that may be absent and must be one of two words. */
static void want_word(cb_builder *b, const char *key, const char *word, const char *other)
{
    const char *s = word;
    cb_err e = {0};
    if (cb_config_str(pb_config(b), key, &s, &e) < 0) pb_fail(b, e.code, "%s", e.text);
    else if (strcmp(s, word) && strcmp(s, other)) pb_fail(b, CB_EFORMAT, "config.json: %s %.60s is not supported for qwen3_5", key, s);
}

static void read_config(cb_builder *b, network *n)
{
    n->hidden = pb_need_int(b, "hidden_size", 2, 1 << 17);
    n->layers = pb_need_int(b, "num_hidden_layers", 1, 1024);
    n->n_vocab = pb_need_int(b, "vocab_size", 1, 1 << 22);
    n->eps = (float)pb_real(b, "rms_norm_eps", 1e-6);
    n->a.n_heads = pb_need_int(b, "num_attention_heads", 1, 1024);
    n->a.n_kv_heads = pb_need_int(b, "num_key_value_heads", 1, 1024);
    n->a.dim = pb_need_int(b, "head_dim", 2, 1024);
    n->d.k_heads = pb_need_int(b, "linear_num_key_heads", 1, 1024);
    n->d.v_heads = pb_need_int(b, "linear_num_value_heads", 1, 1024);
    n->d.k_dim = pb_need_int(b, "linear_key_head_dim", 2, 512);
    n->d.v_dim = pb_need_int(b, "linear_value_head_dim", 2, 512);
    n->d.taps = pb_int(b, "linear_conv_kernel_dim", 2, 16, 4);
    read_experts(b, n);
    if (pb_ok(b) && (n->a.n_heads % n->a.n_kv_heads || n->d.v_heads % n->d.k_heads || n->a.dim % 2))
        pb_fail(b, CB_EFORMAT, "config.json: %d heads with %d KV heads, %d value heads with %d key heads do not fit together",
                n->a.n_heads, n->a.n_kv_heads, n->d.v_heads, n->d.k_heads);
    want_word(b, "hidden_act", "silu", "silu");
    want_word(b, "output_gate_type", "swish", "silu"); /* 3.8 names the delta net's gate; attention's stays a sigmoid */
    if (json_array_size(cb_config_get(pb_config(b), "mlp_only_layers")))
        pb_fail(b, CB_EFORMAT, "config.json: mlp_only_layers is not supported for qwen3_5");
    if (pb_bool(b, "attention_bias", false)) pb_fail(b, CB_EFORMAT, "config.json: attention_bias is not supported for qwen3_5");
    if (!pb_bool(b, "attn_output_gate", true)) pb_fail(b, CB_EFORMAT, "config.json: attn_output_gate false is not supported");
    n->a.scale = (float)(1.0 / sqrt((double)n->a.dim));
}

static cb_val attention(cb_builder *b, const network *n, cb_val h)
{
    const cb_attn_spec *a = &n->a;
    cb_val qg = pb_linear(b, h, "self_attn.q_proj", 2 * a->n_heads * a->dim); /* per head: query, then gate */
    cb_val k = pb_linear(b, h, "self_attn.k_proj", a->n_kv_heads * a->dim);
    cb_val v = pb_linear(b, h, "self_attn.v_proj", a->n_kv_heads * a->dim);
    cb_val q = pb_split(b, qg, 2 * a->dim, 0, a->dim), gate = pb_split(b, qg, 2 * a->dim, a->dim, a->dim);
    q = pb_rope(b, pb_head_norm(b, q, "self_attn.q_norm.weight", a->dim, n->eps, n->add_one), a);
    k = pb_rope(b, pb_head_norm(b, k, "self_attn.k_norm.weight", a->dim, n->eps, n->add_one), a);
    return pb_glu(b, gate, pb_attention(b, q, k, v, a), CB_ACT_SIGMOID);
}

static cb_val delta_net(cb_builder *b, const network *n, cb_val h)
{
    const cb_delta_spec *d = &n->d;
    int kd = d->k_heads * d->k_dim, vd = d->v_heads * d->v_dim;
    cb_val u = pb_linear(b, h, "linear_attn.in_proj_qkv", 2 * kd + vd);
    cb_val z = pb_linear(b, h, "linear_attn.in_proj_z", vd);
    cb_val wr = pb_linear(b, h, "linear_attn.in_proj_b", d->v_heads), a = pb_linear(b, h, "linear_attn.in_proj_a", d->v_heads);
    u = pb_conv(b, u, "linear_attn.conv1d.weight", d->taps);
    cb_val o = pb_delta(b, u, a, wr, "linear_attn.A_log", "linear_attn.dt_bias", d);
    /* norm first, gate second; this norm's weights were never centred on 0 */
    return pb_glu(b, z, pb_head_norm(b, o, "linear_attn.norm.weight", d->v_dim, n->eps, false), CB_ACT_SILU);
}

static cb_val swiglu(cb_builder *b, cb_val h, const char *gate, const char *up, int width)
{
    cb_val g = pb_linear(b, h, gate, width);
    return pb_glu(b, g, pb_linear(b, h, up, width), CB_ACT_SILU);
}

static cb_val experts(cb_builder *b, const network *n, cb_val x, cb_val h)
{
    cb_moe_spec m = n->moe;
    m.gate = "mlp.switch_mlp.gate_proj";
    m.up = "mlp.switch_mlp.up_proj";
    m.down = "mlp.switch_mlp.down_proj";
    if (pb_has(b, "mlp.experts.gate_up_proj") || pb_has(b, "mlp.experts.gate_up_proj.weight")) {
        m.fused = "mlp.experts.gate_up_proj";
        m.down = "mlp.experts.down_proj";
    }
    /* products of h stand together: threads meet less often */
    cb_val logits = pb_linear(b, h, "mlp.gate", m.n_experts), gate = -1, y = -1;
    if (n->shared) {
        gate = pb_linear(b, h, "mlp.shared_expert_gate", 1);
        y = swiglu(b, h, "mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj", n->shared);
    }
    cb_val routed = pb_moe(b, h, logits, &m);
    if (!n->shared) return pb_add(b, x, routed);
    y = pb_linear(b, y, "mlp.shared_expert.down_proj", n->hidden);
    return pb_add_gated(b, pb_add(b, x, routed), gate, y);
}

void cb_qwen35_build(cb_builder *b)
{
    static const char *const unused[] = {"visual", "vision_tower", "mtp", NULL}; /* raw and MLX names of the vision tower, draft head */
    network n = {0};
    double freq[512];
    read_config(b, &n);
    if (!pb_ok(b)) return;
    float turn_scale = read_rope(b, &n, freq);
    const json_t *types = cb_config_get(pb_config(b), "layer_types");
    if (types && json_array_size(types) != (size_t)n.layers)
        pb_fail(b, CB_EFORMAT, "config.json: layer_types has %zu entries for %d layers", json_array_size(types), n.layers);
    int interval = pb_int(b, "full_attention_interval", 1, 1024, 4);
    pb_limits(b, pb_int(b, "max_position_embeddings", 1, 1 << 24, 262144));
    const char *prefix = cb_text_prefix(b);
    if (!pb_ok(b)) return;
    n.add_one = is_raw(b, prefix, n.layers);

    cb_skip_parts(b, unused);
    pb_scope(b, "%s", prefix);
    cb_val x = pb_embed(b, "embed_tokens", n.n_vocab, n.hidden, 1.0f);
    n.a.rope = pb_rope_table(b, "rope", freq, n.a.n_pairs, turn_scale);
    for (int l = 0; l < n.layers && pb_ok(b); l++) {
        pb_scope(b, "%slayers.%d.", prefix, l);
        cb_val h = pb_rmsnorm(b, x, "input_layernorm.weight", n.eps, n.add_one);
        if (cb_layer_is_full(b, types, l, interval, "linear_attention"))
            x = pb_linear_add(b, attention(b, &n, h), "self_attn.o_proj", x);
        else
            x = pb_linear_add(b, delta_net(b, &n, h), "linear_attn.out_proj", x);
        h = pb_rmsnorm(b, x, "post_attention_layernorm.weight", n.eps, n.add_one);
        if (n.moe.n_experts) x = experts(b, &n, x, h);
        else x = pb_linear_add(b, swiglu(b, h, "mlp.gate_proj", "mlp.up_proj", n.ffn), "mlp.down_proj", x);
    }
    pb_scope(b, "%s", prefix);
    x = pb_rmsnorm(b, pb_wanted(b, x), "norm.weight", n.eps, n.add_one);
    bool tied = pb_bool(b, "tie_word_embeddings", false);
    if (tied) {
        pb_logits(b, x, "embed_tokens", n.n_vocab, 0);
        cb_skip_head(b);
        return;
    }
    pb_scope(b, "%s", "");
    const char *head = cb_head_path(b);
    if (!head) pb_fail(b, CB_EFORMAT, "lm_head.weight: missing from the checkpoint, and tie_word_embeddings is false");
    pb_logits(b, x, head ? head : "lm_head", n.n_vocab, 0);
}

static const char *const types_[] = {"qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", NULL};
const cb_family cb_family_qwen35 = {"qwen3_5", types_, cb_qwen35_build};
