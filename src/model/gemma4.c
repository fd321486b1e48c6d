/* gemma4.c: Gemma 4 text: 26B-A4B with experts, dense 31B and 12B, E2B/E4B with per-layer embeddings and shared K/V. Sandwich
 * norms used directly, q/k norms, v normed without weight, softmax scale 1, two head sizes, proportional RoPE on full layers,
 * a scalar per layer, capped logits, tied head.
 * Reference: transformers modeling_gemma4, mlx-lm models/gemma4_text.py. */
#include "base/json.h"
#include "io/dtype.h"
#include "model/family.h"
#include "model/names.h"
#include "model/rope.h"
#include <math.h>
#include <string.h>

typedef struct network {
    int hidden, layers, ffn, n_vocab, per_layer, shared, kv_of_full, kv_of_slide;
    float eps;
    bool k_eq_v, wide, has_experts;
    cb_attn_spec full, slide;
    cb_moe_spec moe;
    const json_t *types;
} network;

static int object_real(cb_builder *b, const json_t *o, const char *key, double *v)
{
    cb_err e = {0};
    int rc = cb_json_real(o, "config.json: rope_parameters", key, v, &e);
    if (rc < 0) pb_fail(b, e.code, "%s", e.text);
    return rc;
}

/* Frequencies of one layer type. "proportional": the exponent runs over the whole head, the first part of the pairs turns. */
static void read_rope(cb_builder *b, const char *type, cb_attn_spec *a, double theta, double part, double *freq)
{
    const json_t *r = json_object_get(cb_config_get(pb_config(b), "rope_parameters"), type);
    double factor = 1;
    object_real(b, r, "rope_theta", &theta);
    object_real(b, r, "partial_rotary_factor", &part);
    object_real(b, r, "factor", &factor);
    const char *kind = json_string_value(json_object_get(r, "rope_type"));
    if (kind && strcmp(kind, "default") && strcmp(kind, "proportional"))
        pb_fail(b, CB_EFORMAT, "config.json: rope_parameters.%s.rope_type %.40s is not supported", type, kind);
    a->half = a->dim / 2;
    a->n_pairs = (int)(part * a->dim / 2);
    if (!(part > 0 && part <= 1) || a->n_pairs < 1 || !(factor > 0)) {
        pb_fail(b, CB_EFORMAT, "config.json: rope_parameters.%s: partial_rotary_factor %g, factor %g", type, part, factor);
        return;
    }
    cb_rope_freqs(b, theta, a->dim, NULL, freq);
    for (int i = 0; i < a->n_pairs; i++) freq[i] /= factor;
}

static void read_config(cb_builder *b, network *n)
{
    n->hidden = pb_need_int(b, "hidden_size", 2, 1 << 17);
    n->layers = pb_need_int(b, "num_hidden_layers", 1, 1024);
    n->ffn = pb_need_int(b, "intermediate_size", 2, 1 << 20);
    n->n_vocab = pb_need_int(b, "vocab_size", 1, 1 << 22);
    n->eps = (float)pb_real(b, "rms_norm_eps", 1e-6);
    n->per_layer = pb_int(b, "hidden_size_per_layer_input", 0, 1 << 14, 0);
    n->shared = pb_int(b, "num_kv_shared_layers", 0, n->layers - 1, 0);
    n->wide = pb_bool(b, "use_double_wide_mlp", false);
    n->k_eq_v = pb_bool(b, "attention_k_eq_v", false);
    n->slide.n_heads = n->full.n_heads = pb_need_int(b, "num_attention_heads", 1, 1024);
    n->slide.n_kv_heads = n->full.n_kv_heads = pb_need_int(b, "num_key_value_heads", 1, 1024);
    if (n->k_eq_v) n->full.n_kv_heads = pb_int(b, "num_global_key_value_heads", 1, 1024, n->full.n_kv_heads);
    n->slide.dim = pb_need_int(b, "head_dim", 2, 1024);
    n->full.dim = pb_int(b, "global_head_dim", 2, 1024, n->slide.dim);
    n->slide.window = pb_need_int(b, "sliding_window", 1, 1 << 24);
    n->slide.scale = n->full.scale = 1.0f;
    n->has_experts = pb_bool(b, "enable_moe_block", false);
    if (n->has_experts) {
        n->moe.n_experts = pb_need_int(b, "num_experts", 1, CB_MAX_EXPERTS);
        n->moe.top_k = pb_need_int(b, "top_k_experts", 1, CB_MAX_TOP_K);
        n->moe.width = pb_need_int(b, "moe_intermediate_size", 2, 1 << 20);
        n->moe.route = CB_ROUTE_SOFTMAX_TOP;
        n->moe.act = CB_ACT_GELU_TANH;
    }
    if (!pb_ok(b)) return;
    if (n->full.n_heads % n->full.n_kv_heads || n->slide.n_heads % n->slide.n_kv_heads || n->full.dim % 2 || n->slide.dim % 2)
        pb_fail(b, CB_EFORMAT, "config.json: %d heads with %d and %d KV heads do not fit together", n->full.n_heads,
                n->slide.n_kv_heads, n->full.n_kv_heads);
    n->types = cb_config_get(pb_config(b), "layer_types");
    if (json_array_size(n->types) != (size_t)n->layers)
        pb_fail(b, CB_EFORMAT, "config.json: layer_types has %zu entries for %d layers", json_array_size(n->types), n->layers);
}

static cb_val attention(cb_builder *b, network *n, cb_val h, bool full, bool shares)
{
    const cb_attn_spec *a = full ? &n->full : &n->slide;
    int *kv = full ? &n->kv_of_full : &n->kv_of_slide;
    cb_val q = pb_linear(b, h, "self_attn.q_proj", a->n_heads * a->dim);
    q = pb_rope(b, pb_head_norm(b, q, "self_attn.q_norm.weight", a->dim, n->eps, false), a);
    if (shares) { /* some conversions keep the projections that nobody uses */
        pb_skip(b, "self_attn.k_proj.");
        pb_skip(b, "self_attn.v_proj.");
        pb_skip(b, "self_attn.k_norm.");
        return pb_attention_on(b, q, *kv, a);
    }
    cb_val k = pb_linear(b, h, "self_attn.k_proj", a->n_kv_heads * a->dim), v;
    if (full && n->k_eq_v) v = pb_split(b, k, a->dim, 0, a->dim); /* k before its norm and rotation */
    else v = pb_linear(b, h, "self_attn.v_proj", a->n_kv_heads * a->dim);
    k = pb_rope(b, pb_head_norm(b, k, "self_attn.k_norm.weight", a->dim, n->eps, false), a);
    cb_val o = pb_attention(b, q, k, pb_head_norm(b, v, NULL, a->dim, n->eps, false), a);
    *kv = pb_last_kv(b);
    return o;
}

static cb_val mlp(cb_builder *b, cb_val h, int width, int hidden)
{
    cb_val gate = pb_linear(b, h, "mlp.gate_proj", width);
    return pb_linear(b, pb_glu(b, gate, pb_linear(b, h, "mlp.up_proj", width), CB_ACT_GELU_TANH), "mlp.down_proj", hidden);
}

/* The router sees the residual stream under a norm of its own; the experts theirs. */
static cb_val experts(cb_builder *b, const network *n, cb_val x)
{
    cb_moe_spec m = n->moe;
    cb_val z = pb_scale(b, pb_rmsnorm(b, x, "router.scale", n->eps, false), (float)(1.0 / sqrt((double)n->hidden)));
    cb_val logits = pb_linear(b, z, "router.proj", m.n_experts);
    m.scale = "router.per_expert_scale";
    m.gate = "experts.switch_glu.gate_proj";
    m.up = "experts.switch_glu.up_proj";
    m.down = "experts.switch_glu.down_proj";
    if (!pb_has(b, "experts.switch_glu.gate_proj.weight")) {
        m.fused = "experts.gate_up_proj";
        m.down = "experts.down_proj";
    }
    return pb_moe(b, pb_rmsnorm(b, x, "pre_feedforward_layernorm_2.weight", n->eps, false), logits, &m);
}

static cb_val feed_forward(cb_builder *b, const network *n, cb_val x, int width)
{
    cb_val f = mlp(b, pb_rmsnorm(b, x, "pre_feedforward_layernorm.weight", n->eps, false), width, n->hidden);
    if (!n->has_experts) return f;
    f = pb_rmsnorm(b, f, "post_feedforward_layernorm_1.weight", n->eps, false);
    return pb_add(b, f, pb_rmsnorm(b, experts(b, n, x), "post_feedforward_layernorm_2.weight", n->eps, false));
}

/* [layers * per_layer]: (norm of a projection of the embeddings + the token's own row * 16) / sqrt(2). */
static cb_val per_layer_inputs(cb_builder *b, const network *n, cb_val x)
{
    int all = n->layers * n->per_layer;
    cb_val t = pb_embed(b, "embed_tokens_per_layer", n->n_vocab, all, (float)sqrt((double)n->per_layer));
    cb_val c = pb_scale(b, pb_linear(b, x, "per_layer_model_projection", all), (float)(1.0 / sqrt((double)n->hidden)));
    c = pb_head_norm(b, c, "per_layer_projection_norm.weight", n->per_layer, n->eps, false);
    return pb_scale(b, pb_add(b, c, t), (float)(1.0 / sqrt(2.0)));
}

static void layer(cb_builder *b, network *n, int l, cb_val *x, cb_val ple)
{
    bool full = cb_layer_is_full(b, n->types, l, 6, "sliding_attention"), shares = l >= n->layers - n->shared;
    cb_val a = attention(b, n, pb_rmsnorm(b, *x, "input_layernorm.weight", n->eps, false), full, shares);
    a = pb_linear(b, a, "self_attn.o_proj", n->hidden);
    *x = pb_add(b, *x, pb_rmsnorm(b, a, "post_attention_layernorm.weight", n->eps, false));
    cb_val f = feed_forward(b, n, *x, shares && n->wide ? 2 * n->ffn : n->ffn);
    *x = pb_add(b, *x, pb_rmsnorm(b, f, "post_feedforward_layernorm.weight", n->eps, false));
    if (n->per_layer) {
        cb_val g = pb_linear(b, *x, "per_layer_input_gate", n->per_layer);
        g = pb_glu(b, g, pb_split(b, ple, n->layers * n->per_layer, l * n->per_layer, n->per_layer), CB_ACT_GELU_TANH);
        g = pb_linear(b, g, "per_layer_projection", n->hidden);
        *x = pb_add(b, *x, pb_rmsnorm(b, g, "post_per_layer_input_norm.weight", n->eps, false));
    }
    *x = pb_scale_by(b, *x, "layer_scalar");
}

static void build(cb_builder *b)
{
    static const char *const unused[] = {"vision_tower", "embed_vision", "vision_embedder", "audio_tower", "embed_audio", "multi_modal_projector", NULL};
    network n = {.kv_of_full = -1, .kv_of_slide = -1};
    double full[512], slide[512];
    read_config(b, &n);
    if (!pb_ok(b)) return;
    read_rope(b, "full_attention", &n.full, 1e6, 0.25, full);
    read_rope(b, "sliding_attention", &n.slide, 1e4, 1, slide);
    pb_limits(b, pb_int(b, "max_position_embeddings", 1, 1 << 24, 131072));
    const char *prefix = cb_text_prefix(b);
    if (!pb_ok(b)) return;

    cb_skip_parts(b, unused);
    pb_scope(b, "%s", prefix);
    float scale = cb_bf16_to_f32(cb_f32_to_bf16((float)sqrt((double)n.hidden)));
    cb_val x = pb_embed(b, "embed_tokens", n.n_vocab, n.hidden, scale), ple = -1;
    n.full.rope = pb_rope_table(b, "rope.full", full, n.full.n_pairs, 1);
    n.slide.rope = pb_rope_table(b, "rope.sliding", slide, n.slide.n_pairs, 1);
    if (n.per_layer) ple = per_layer_inputs(b, &n, x);
    for (int l = 0; l < n.layers && pb_ok(b); l++) {
        pb_scope(b, "%slayers.%d.", prefix, l);
        layer(b, &n, l, &x, ple);
    }
    pb_scope(b, "%s", prefix);
    x = pb_rmsnorm(b, pb_wanted(b, x), "norm.weight", n.eps, false);
    pb_logits(b, x, "embed_tokens", n.n_vocab, (float)pb_real(b, "final_logit_softcapping", 0));
}

static const char *const types_[] = {"gemma4", "gemma4_text", "gemma4_unified", NULL};
const cb_family cb_family_gemma4 = {"gemma4", types_, build};
