/* synth.c: writes true-shape checkpoints with random weights, for measuring speed and loading where the published files cannot
 * be had. Reproducible from the seed; disk speed.
 *
 *   synth MODEL OUT [--seed N] [--layers N] [--sparse] [--float]
 *   synth MODEL --count
 *
 * --count says how many tensors and bytes it would write; --layers cuts the depth; --sparse leaves all data but signs as holes, so that
 * a checkpoint of any size costs no disk (it loads; its weights are 0); --float keeps every matrix in BF16, to be quantised. Weights are sized so that activations
 * neither die nor explode (standard deviation 1/sqrt(inputs), residual branches smaller), and router inputs spread over the
 * experts. */
#include "base/json.h"
#include "base/mem.h"
#include "io/safetensors.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef enum kind { K_CODES, K_TERNARY, K_SCALES, K_BIASES, K_VALUE, K_SIGNS, K_NORMAL, K_ALOG } kind;

/* One tensor to write. */
typedef struct item {
    char name[160];
    cb_dtype dtype;
    int64_t dims[3];
    int n_dims;
    kind kind;
    float a; /* K_SCALES and K_BIASES: the scale; K_VALUE: the value; K_NORMAL: the deviation */
    int bits;
} item;

typedef struct model {
    const char *name, *type;
    int hidden, layers, heads, kv_heads, head_dim, ffn, vocab, ctx;
    int hv;                     /* value heads of gated delta nets; 0: none */
    int experts, top_k, expert_width, shared_width;
    int bits, group;            /* of the big matrices */
    int block;                  /* Hadamard block, 0: none */
    bool tied;
    bool qk_norm, f16;          /* norms of q and k (Qwen 3); scales in F16 */
    int gemma;                  /* 3, 4 or 0 */
    int full_kv, full_dim, window;
} model;

static const model models[] = {
    {.name = "bonsai2-2b", .type = "prism_hadamard_qwen35", .hidden = 2048, .layers = 24, .heads = 8, .kv_heads = 2, .head_dim = 256,
     .ffn = 6144, .vocab = 248320, .ctx = 262144, .hv = 16, .bits = 2, .group = 128, .block = 2048, .tied = true},
    {.name = "bonsai2-4b", .type = "prism_hadamard_qwen35", .hidden = 2560, .layers = 32, .heads = 16, .kv_heads = 4, .head_dim = 256,
     .ffn = 9216, .vocab = 248320, .ctx = 262144, .hv = 32, .bits = 2, .group = 128, .block = 512, .tied = true},
    {.name = "bonsai2-9b", .type = "prism_hadamard_qwen35", .hidden = 4096, .layers = 32, .heads = 16, .kv_heads = 4, .head_dim = 256,
     .ffn = 12288, .vocab = 248320, .ctx = 262144, .hv = 32, .bits = 2, .group = 128, .block = 4096},
    {.name = "bonsai2-27b", .type = "prism_hadamard_qwen35", .hidden = 5120, .layers = 64, .heads = 24, .kv_heads = 4, .head_dim = 256,
     .ffn = 17408, .vocab = 248320, .ctx = 262144, .hv = 48, .bits = 2, .group = 128, .block = 1024},
    {.name = "qwen3.5-2b", .type = "qwen3_5", .hidden = 2048, .layers = 24, .heads = 8, .kv_heads = 2, .head_dim = 256, .ffn = 6144,
     .vocab = 248320, .ctx = 262144, .hv = 16, .bits = 4, .group = 64, .tied = true},
    {.name = "qwen3.5-4b", .type = "qwen3_5", .hidden = 2560, .layers = 32, .heads = 16, .kv_heads = 4, .head_dim = 256, .ffn = 9216,
     .vocab = 248320, .ctx = 262144, .hv = 32, .bits = 4, .group = 64, .tied = true},
    {.name = "qwen3.5-9b", .type = "qwen3_5", .hidden = 4096, .layers = 32, .heads = 16, .kv_heads = 4, .head_dim = 256, .ffn = 12288,
     .vocab = 248320, .ctx = 262144, .hv = 32, .bits = 4, .group = 64},
    {.name = "qwen3.5-35b-a3b", .type = "qwen3_5_moe", .hidden = 2048, .layers = 40, .heads = 16, .kv_heads = 2, .head_dim = 256,
     .vocab = 248320, .ctx = 262144, .hv = 32, .experts = 256, .top_k = 8, .expert_width = 512, .shared_width = 512, .bits = 4,
     .group = 64},
    {.name = "gemma4-26b-a4b", .type = "gemma4", .hidden = 2816, .layers = 30, .heads = 16, .kv_heads = 8, .head_dim = 256, .ffn = 2112,
     .vocab = 262144, .ctx = 262144, .experts = 128, .top_k = 8, .expert_width = 704, .bits = 4, .group = 64, .tied = true,
     .gemma = 4, .full_kv = 2, .full_dim = 512, .window = 1024},
    {.name = "bonsai1-4b", .type = "qwen3", .hidden = 2560, .layers = 36, .heads = 32, .kv_heads = 8, .head_dim = 128, .ffn = 9728,
     .vocab = 151936, .ctx = 32768, .bits = 1, .group = 128, .tied = true, .qk_norm = true, .f16 = true},
    {.name = "bonsai1-8b", .type = "qwen3", .hidden = 4096, .layers = 36, .heads = 32, .kv_heads = 8, .head_dim = 128, .ffn = 12288,
     .vocab = 151936, .ctx = 16384, .bits = 1, .group = 128, .qk_norm = true, .f16 = true},
    {.name = "smollm2-135m", .type = "llama", .hidden = 576, .layers = 30, .heads = 9, .kv_heads = 3, .head_dim = 64, .ffn = 1536,
     .vocab = 49152, .ctx = 8192, .bits = 4, .group = 32, .tied = true},
    {.name = "gemma3-270m", .type = "gemma3_text", .hidden = 640, .layers = 18, .heads = 4, .kv_heads = 1, .head_dim = 256, .ffn = 2048,
     .vocab = 262144, .ctx = 32768, .bits = 4, .group = 64, .tied = true, .gemma = 3, .window = 512},
};

typedef struct plan {
    const model *m;
    item *items;
    int n, cap;
    json_t *quant;   /* per-module overrides */
    json_t *modules; /* Bonsai: records */
    json_t *names;   /* Bonsai: rotated weights */
    bool failed, plain; /* plain: --float */
} plan;

static item *add(plan *p, const char *name, cb_dtype t, kind k, float a, int n_dims, int64_t d0, int64_t d1, int64_t d2)
{
    if (p->n == p->cap) {
        p->cap = p->cap ? 2 * p->cap : 1024;
        item *grown = realloc(p->items, (size_t)p->cap * sizeof *grown);
        if (!grown) abort();
        p->items = grown;
    }
    item *it = &p->items[p->n++];
    *it = (item){.dtype = t, .dims = {d0, d1, d2}, .n_dims = n_dims, .kind = k, .a = a};
    snprintf(it->name, sizeof it->name, "%s", name);
    return it;
}

static void vector(plan *p, const char *name, cb_dtype t, int64_t n, float value) { add(p, name, t, K_VALUE, value, 1, n, 0, 0); }

static bool rotated(const model *m, const char *path)
{
    return m->block && !strstr(path, "in_proj_a") && !strstr(path, "in_proj_b");
}

/* A matrix [stack][rows][cols] as the model stores it; bits 0: the model's. */
static void matrix(plan *p, const char *path, int64_t stack, int64_t rows, int64_t cols, int bits, float gain)
{
    const model *m = p->m;
    char name[192];
    bool ternary = m->block && rotated(m, path);
    int b = bits ? bits : m->bits, g = m->group;
    float dev = gain / sqrtf((float)cols), scale = ternary ? dev * 1.2247f : b == 1 ? 2 * dev : dev / (0.2887f * (float)(1 << b));
    cb_dtype st = m->block || m->f16 ? CB_F16 : CB_BF16;
    int nd = stack > 1 ? 3 : 2;
    if (p->plain || (m->block && !ternary)) { /* the packs keep these as dense F32 */
        snprintf(name, sizeof name, "%s.weight", path);
        add(p, name, p->plain ? CB_BF16 : CB_F32, K_NORMAL, dev, nd, nd == 3 ? stack : rows, nd == 3 ? rows : cols, cols);
        return;
    }
    for (int part = 0; part < 3; part++) {
        static const char *const suffix[] = {"weight", "scales", "biases"};
        int64_t last = part ? cols / g : cols * b / 32;
        snprintf(name, sizeof name, "%s.%s", path, suffix[part]);
        item *it = add(p, name, part ? st : CB_U32, part == 0 ? (ternary ? K_TERNARY : K_CODES) : part == 1 ? K_SCALES : K_BIASES, scale,
                       nd, nd == 3 ? stack : rows, nd == 3 ? rows : last, last);
        it->bits = ternary ? 0 : b;
    }
    if (bits) json_object_set_new(p->quant, path, json_pack("{s:i,s:i}", "group_size", g, "bits", bits));
    if (!ternary) return;
    snprintf(name, sizeof name, "%s.signs", path);
    add(p, name, CB_F32, K_SIGNS, 0, 1, cols, 0, 0);
    const char *rel = path + strlen("language_model.");
    bool embed = strstr(path, "embed_tokens") != NULL;
    json_array_append_new(p->modules, json_pack("{s:s,s:i,s:b,s:s}", "path", rel, "block", m->block, "embedding", embed, "dtype", "float16"));
    snprintf(name, sizeof name, "%s.weight", path);
    json_array_append_new(p->names, json_string(name));
}

#define AT(buf, ...) (snprintf(buf, sizeof buf, __VA_ARGS__), buf)

static void attention(plan *p, const char *pre, bool full)
{
    const model *m = p->m;
    char n[160];
    int dim = full && m->full_dim ? m->full_dim : m->head_dim, kv = full && m->full_kv ? m->full_kv : m->kv_heads;
    int gate = m->hv ? 2 : 1;
    matrix(p, AT(n, "%sself_attn.q_proj", pre), 1, (int64_t)gate * m->heads * dim, m->hidden, 0, 1);
    matrix(p, AT(n, "%sself_attn.k_proj", pre), 1, (int64_t)kv * dim, m->hidden, 0, 1);
    if (!(m->gemma == 4 && full)) matrix(p, AT(n, "%sself_attn.v_proj", pre), 1, (int64_t)kv * dim, m->hidden, 0, 1);
    matrix(p, AT(n, "%sself_attn.o_proj", pre), 1, m->hidden, (int64_t)m->heads * dim, 0, 0.5f);
    if (m->gemma || m->hv || m->qk_norm) {
        cb_dtype t = m->block ? CB_F32 : CB_BF16;
        vector(p, AT(n, "%sself_attn.q_norm.weight", pre), t, dim, m->gemma == 3 ? 0 : m->gemma == 4 ? 0.2f : 1);
        vector(p, AT(n, "%sself_attn.k_norm.weight", pre), t, dim, m->gemma == 3 ? 0 : m->gemma == 4 ? 0.2f : 1);
    }
}

static void delta_net(plan *p, const char *pre)
{
    const model *m = p->m;
    char n[160];
    int64_t kd = 16 * 128, vd = (int64_t)m->hv * 128;
    cb_dtype t = m->block ? CB_F32 : CB_BF16;
    matrix(p, AT(n, "%slinear_attn.in_proj_qkv", pre), 1, 2 * kd + vd, m->hidden, 0, 1);
    matrix(p, AT(n, "%slinear_attn.in_proj_z", pre), 1, vd, m->hidden, 0, 1);
    matrix(p, AT(n, "%slinear_attn.in_proj_b", pre), 1, m->hv, m->hidden, 0, 1);
    matrix(p, AT(n, "%slinear_attn.in_proj_a", pre), 1, m->hv, m->hidden, 0, 1);
    add(p, AT(n, "%slinear_attn.conv1d.weight", pre), t, K_NORMAL, 0.5f, 3, 2 * kd + vd, 4, 1);
    add(p, AT(n, "%slinear_attn.A_log", pre), CB_F32, K_ALOG, 0, 1, m->hv, 0, 0);
    vector(p, AT(n, "%slinear_attn.dt_bias", pre), t, m->hv, 1);
    vector(p, AT(n, "%slinear_attn.norm.weight", pre), t, 128, 1);
    matrix(p, AT(n, "%slinear_attn.out_proj", pre), 1, m->hidden, vd, 0, 0.5f);
}

static void feed_forward(plan *p, const char *pre)
{
    const model *m = p->m;
    char n[160];
    int dense_bits = m->gemma == 4 ? 8 : 0;
    if (m->ffn) {
        matrix(p, AT(n, "%smlp.gate_proj", pre), 1, m->ffn, m->hidden, dense_bits, 1);
        matrix(p, AT(n, "%smlp.up_proj", pre), 1, m->ffn, m->hidden, dense_bits, 1);
        matrix(p, AT(n, "%smlp.down_proj", pre), 1, m->hidden, m->ffn, dense_bits, 0.5f);
    }
    if (!m->experts) return;
    const char *at = m->gemma ? "experts.switch_glu" : "mlp.switch_mlp";
    matrix(p, AT(n, "%s%s.gate_proj", pre, at), m->experts, m->expert_width, m->hidden, 0, 1);
    matrix(p, AT(n, "%s%s.up_proj", pre, at), m->experts, m->expert_width, m->hidden, 0, 1);
    matrix(p, AT(n, "%s%s.down_proj", pre, at), m->experts, m->hidden, m->expert_width, 0, 0.5f);
    matrix(p, AT(n, "%s%s", pre, m->gemma ? "router.proj" : "mlp.gate"), 1, m->experts, m->hidden, 8, 2);
    if (m->gemma) {
        vector(p, AT(n, "%srouter.scale", pre), CB_BF16, m->hidden, sqrtf((float)m->hidden));
        vector(p, AT(n, "%srouter.per_expert_scale", pre), CB_BF16, m->experts, 1);
        return;
    }
    matrix(p, AT(n, "%smlp.shared_expert.gate_proj", pre), 1, m->shared_width, m->hidden, 0, 1);
    matrix(p, AT(n, "%smlp.shared_expert.up_proj", pre), 1, m->shared_width, m->hidden, 0, 1);
    matrix(p, AT(n, "%smlp.shared_expert.down_proj", pre), 1, m->hidden, m->shared_width, 0, 0.5f);
    matrix(p, AT(n, "%smlp.shared_expert_gate", pre), 1, 1, m->hidden, 8, 1);
}

static void norms(plan *p, const char *pre)
{
    static const char *const plain[] = {"input_layernorm", "post_attention_layernorm", NULL};
    static const char *const gemma3[] = {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                                         "post_feedforward_layernorm", NULL};
    static const char *const gemma4[] = {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                                         "pre_feedforward_layernorm_2", "post_feedforward_layernorm", "post_feedforward_layernorm_1",
                                         "post_feedforward_layernorm_2", NULL};
    const model *m = p->m;
    char n[160];
    for (const char *const *s = m->gemma == 4 ? gemma4 : m->gemma ? gemma3 : plain; *s; s++)
        vector(p, AT(n, "%s%s.weight", pre, *s), m->block ? CB_F32 : CB_BF16, m->hidden, m->gemma == 3 ? 0 : 1);
    if (m->gemma == 4) vector(p, AT(n, "%slayer_scalar", pre), CB_BF16, 1, 0.7f);
}

/* The tower of 26B-A4B, so that the inventory is whole: loaders skip it by name. */
static void gemma4_vision(plan *p)
{
    char n[160], pre[96];
    const int64_t h = 1152, f = 4304;
    add(p, "vision_tower.patch_embedder.input_proj.weight", CB_BF16, K_NORMAL, 0.03f, 2, h, 768, 0);
    add(p, "vision_tower.patch_embedder.position_embedding_table", CB_BF16, K_NORMAL, 0.03f, 3, 2, 10240, h);
    vector(p, "vision_tower.std_bias", CB_BF16, h, 0);
    vector(p, "vision_tower.std_scale", CB_BF16, h, 1);
    for (int l = 0; l < 27; l++) {
        static const char *const ln[] = {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                                         "post_feedforward_layernorm"};
        static const char *const at[] = {"q", "k", "v", "o"};
        AT(pre, "vision_tower.encoder.layers.%d.", l);
        for (int i = 0; i < 4; i++) vector(p, AT(n, "%s%s.weight", pre, ln[i]), CB_BF16, h, 1);
        for (int i = 0; i < 4; i++) add(p, AT(n, "%sself_attn.%s_proj.linear.weight", pre, at[i]), CB_BF16, K_NORMAL, 0.03f, 2, h, h, 0);
        for (int i = 0; i < 2; i++) vector(p, AT(n, "%sself_attn.%s_norm.weight", pre, at[i]), CB_BF16, 72, 1);
        add(p, AT(n, "%smlp.gate_proj.linear.weight", pre), CB_BF16, K_NORMAL, 0.03f, 2, f, h, 0);
        add(p, AT(n, "%smlp.up_proj.linear.weight", pre), CB_BF16, K_NORMAL, 0.03f, 2, f, h, 0);
        add(p, AT(n, "%smlp.down_proj.linear.weight", pre), CB_BF16, K_NORMAL, 0.015f, 2, h, f, 0);
    }
    matrix(p, "embed_vision.embedding_projection", 1, 2816, h, 0, 1);
}

static void lay_out(plan *p, int layers)
{
    const model *m = p->m;
    const char *root = m->hv || m->gemma == 4 ? "language_model.model." : "model.";
    char n[160], pre[96];
    matrix(p, AT(n, "%sembed_tokens", root), 1, m->vocab, m->hidden, 0, m->gemma == 4 ? 1 : sqrtf((float)m->hidden));
    for (int l = 0; l < layers; l++) {
        int every = m->hv ? 4 : m->gemma ? 6 : 1;
        bool full = (l + 1) % every == 0;
        AT(pre, "%slayers.%d.", root, l);
        norms(p, pre);
        if (m->hv && !full) delta_net(p, pre);
        else attention(p, pre, full);
        feed_forward(p, pre);
    }
    vector(p, AT(n, "%snorm.weight", root), m->block ? CB_F32 : CB_BF16, m->hidden, m->gemma == 3 ? 0 : 1);
    if (!m->tied) matrix(p, m->hv ? "language_model.lm_head" : "lm_head", 1, m->vocab, m->hidden, 0, 1);
    if (m->gemma == 4) gemma4_vision(p);
}

/* ---- config ---- */

static json_t *text_config(const model *m, int layers)
{
    json_t *c = json_pack("{s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:f,s:b,s:i}", "hidden_size", m->hidden, "num_hidden_layers", layers,
                          "num_attention_heads", m->heads, "num_key_value_heads", m->kv_heads, "head_dim", m->head_dim, "vocab_size",
                          m->vocab, "max_position_embeddings", m->ctx, "rms_norm_eps", m->gemma || m->hv ? 1e-6 : 1e-5,
                          "tie_word_embeddings", m->tied, "eos_token_id", 1);
    if (m->ffn) json_object_set_new(c, "intermediate_size", json_integer(m->ffn));
    if (m->hv) {
        json_object_update_new(c, json_pack("{s:i,s:i,s:i,s:i,s:i,s:i}", "linear_num_key_heads", 16, "linear_num_value_heads", m->hv,
                                            "linear_key_head_dim", 128, "linear_value_head_dim", 128, "linear_conv_kernel_dim", 4,
                                            "full_attention_interval", 4));
        json_object_set_new(c, "rope_parameters", json_pack("{s:s,s:f,s:f}", "rope_type", "default", "rope_theta", 1e7,
                                                            "partial_rotary_factor", 0.25));
    }
    if (m->hv && m->experts)
        json_object_update_new(c, json_pack("{s:i,s:i,s:i,s:i}", "num_experts", m->experts, "num_experts_per_tok", m->top_k,
                                            "moe_intermediate_size", m->expert_width, "shared_expert_intermediate_size", m->shared_width));
    if (!m->hv && !m->gemma) json_object_set_new(c, "rope_theta", json_real(m->qk_norm ? 1e6 : 1e5));
    if (!m->gemma) return c;
    json_t *types = json_array();
    for (int l = 0; l < layers; l++)
        json_array_append_new(types, json_string((l + 1) % 6 ? "sliding_attention" : "full_attention"));
    json_object_set_new(c, "layer_types", types);
    json_object_set_new(c, "sliding_window", json_integer(m->window));
    if (m->gemma == 3) {
        json_object_update_new(c, json_pack("{s:i,s:f,s:f}", "query_pre_attn_scalar", 256, "rope_theta", 1e6, "rope_local_base_freq", 1e4));
        return c;
    }
    json_object_update_new(
        c, json_pack("{s:i,s:i,s:b,s:b,s:i,s:i,s:i,s:f,s:i,s:i}", "global_head_dim", m->full_dim, "num_global_key_value_heads", m->full_kv,
                     "attention_k_eq_v", 1, "enable_moe_block", 1, "num_experts", m->experts, "top_k_experts", m->top_k,
                     "moe_intermediate_size", m->expert_width, "final_logit_softcapping", 30.0, "hidden_size_per_layer_input", 0,
                     "num_kv_shared_layers", 0));
    return c;
}

static int write_json(const char *dir, const char *name, json_t *j, cb_err *err)
{
    char path[4096];
    cb_outfile o;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int rc = cb_outfile_open(&o, path, err);
    if (rc < 0) return rc;
    json_dumpf(j, o.f, JSON_INDENT(1));
    json_decref(j);
    return cb_outfile_commit(&o, err);
}

/* ---- data ---- */

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Sum of four uniforms, variance 1. */
static float normal(uint64_t r)
{
    float s = 0;
    for (int i = 0; i < 4; i++) s += (float)(r >> 16 * i & 0xffff) / 65536.0f - 0.5f;
    return s * 1.7320508f;
}

static int64_t sign_of(int64_t width, int64_t i) { return mix((uint64_t)(width * 1000003 + i)) & 1 ? 1 : -1; }

static void put_float(uint8_t *p, cb_dtype t, float v)
{
    uint16_t h = t == CB_F16 ? cb_f32_to_f16(v) : cb_f32_to_bf16(v);
    if (t == CB_F32) memcpy(p, &v, 4);
    else memcpy(p, &h, 2);
}

/* Fills n bytes of item `it` from byte `at` on; n and at are multiples of 8 where the item allows. */
static void fill(const item *it, uint64_t seed, uint64_t at, uint8_t *buf, size_t n)
{
    static const uint8_t trits[3] = {0, 1, 2};
    if (it->kind == K_CODES) {
        for (size_t i = 0; i + 8 <= n; i += 8) {
            uint64_t r = mix(seed + (at + i) / 8 * 0x9e3779b97f4a7c15u);
            memcpy(buf + i, &r, 8);
        }
        if (n % 8) memset(buf + n / 8 * 8, 0x5a, n % 8);
        return;
    }
    if (it->kind == K_TERNARY) {
        for (size_t i = 0; i < n; i += 8) {
            uint64_t r = mix(seed + (at + i) / 8 * 0x9e3779b97f4a7c15u);
            for (size_t k = 0; k < 8 && i + k < n; k++, r >>= 8) {
                unsigned v = (unsigned)(r & 255) * 81 >> 8;
                buf[i + k] = (uint8_t)(trits[v % 3] | trits[v / 3 % 3] << 2 | trits[v / 9 % 3] << 4 | trits[v / 27] << 6);
            }
        }
        return;
    }
    size_t size = cb_dtype_size(it->dtype);
    for (size_t i = 0; i < n / size; i++) {
        uint64_t e = at / size + i, r = mix(seed + e * 0x9e3779b97f4a7c15u);
        float s = it->a * (0.75f + (float)(r >> 40) / 33554432.0f), v = it->a;
        if (it->kind == K_BIASES) r = mix((seed - 1) + e * 0x9e3779b97f4a7c15u), s = it->a * (0.75f + (float)(r >> 40) / 33554432.0f);
        if (it->kind == K_SCALES) v = s;
        if (it->kind == K_BIASES) v = it->bits ? -s * (float)((1 << it->bits) - 1) / 2 : -s; /* as the scale of the same seed */
        if (it->kind == K_NORMAL) v = it->a * normal(r);
        if (it->kind == K_SIGNS) v = (float)sign_of(it->dims[0], (int64_t)e);
        if (it->kind == K_ALOG) v = logf(0.5f + 7.5f * (float)(r >> 40) / 16777216.0f);
        put_float(buf + i * size, it->dtype, v);
    }
}

static uint64_t item_bytes(const item *it)
{
    uint64_t n = cb_dtype_size(it->dtype);
    for (int i = 0; i < it->n_dims; i++) n *= (uint64_t)it->dims[i];
    return n;
}

/* Loaders compare signs with hadamard.json; all else may read as 0. */
static int write_signs(const plan *p, cb_st_writer *w, cb_err *err)
{
    int rc = 0;
    for (int i = 0; i < p->n && rc == 0; i++) {
        const item *it = &p->items[i];
        if (it->kind != K_SIGNS) continue;
        uint8_t *buf = malloc((size_t)item_bytes(it));
        if (!buf) return cb_fail(err, CB_ENOMEM, "no memory");
        fill(it, 0, 0, buf, (size_t)item_bytes(it));
        rc = cb_st_writer_put_at(w, cb_st_writer_offset(w, i), buf, (size_t)item_bytes(it), err);
        free(buf);
    }
    return rc;
}

static int write_data(const plan *p, cb_st_writer *w, uint64_t seed, cb_err *err)
{
    enum { PIECE = 4 << 20 };
    uint8_t *buf = malloc(PIECE);
    uint64_t done = 0, total = 0;
    int rc = buf ? 0 : cb_fail(err, CB_ENOMEM, "no memory");
    for (int i = 0; i < p->n; i++) total += item_bytes(&p->items[i]);
    for (int i = 0; i < p->n && rc == 0; i++) {
        uint64_t n = item_bytes(&p->items[i]), s = seed * 0x2545f4914f6cdd1du + (uint64_t)i;
        for (uint64_t at = 0; at < n && rc == 0; at += PIECE) {
            size_t k = n - at < PIECE ? (size_t)(n - at) : PIECE;
            fill(&p->items[i], s, at, buf, k);
            rc = cb_st_writer_put(w, buf, k, err);
        }
        done += n;
        if (isatty(2)) fprintf(stderr, "\r%.1f of %.1f GB", (double)done / 1e9, (double)total / 1e9);
    }
    if (isatty(2)) fputc('\n', stderr);
    free(buf);
    return rc;
}

static json_t *hadamard(const plan *p)
{
    json_t *widths = json_array(), *values = json_array();
    for (int i = 0; i < p->n; i++) {
        if (p->items[i].kind != K_SIGNS) continue;
        bool seen = false;
        size_t k;
        json_t *v;
        json_array_foreach(widths, k, v) seen |= json_integer_value(v) == p->items[i].dims[0];
        if (seen) continue;
        json_array_append_new(widths, json_integer(p->items[i].dims[0]));
        for (int64_t j = 0; j < p->items[i].dims[0]; j++) json_array_append_new(values, json_real((double)sign_of(p->items[i].dims[0], j)));
    }
    json_t *inverse = json_array(), *forward = json_array(), *v;
    size_t k;
    json_array_foreach(p->names, k, v)
    {
        bool embed = strstr(json_string_value(v), "embed_tokens") != NULL;
        json_array_append(embed ? inverse : forward, v);
    }
    return json_pack("{s:i,s:i,s:s,s:s,s:s,s:o,s:o,s:o,s:o,s:b}", "prism.hadamard.version", 1, "prism.hadamard.block_size", p->m->block,
                     "prism.hadamard.transform", "normalized-sylvester-walsh-hadamard", "prism.hadamard.axis", "input-last-dimension",
                     "prism.hadamard.sign_mode", "explicit", "prism.hadamard.weight_names", forward, "prism.hadamard.inverse_weight_names",
                     inverse, "prism.hadamard.sign_widths", widths, "prism.hadamard.sign_values", values, "prism.hadamard.gdn_v_grouped", 1);
}

/* Bytes 0..255 as a byte-level vocabulary: enough to run prompts; higher ids have no text. */
static json_t *tokenizer(void)
{
    json_t *vocab = json_object();
    for (int b = 0, next = 256; b < 256; b++) {
        bool plain = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        int cp = plain ? b : next++;
        char s[4];
        int n = cp < 128 ? (s[0] = (char)cp, 1) : (s[0] = (char)(0xc0 | cp >> 6), s[1] = (char)(0x80 | (cp & 63)), 2);
        json_object_setn_new(vocab, s, (size_t)n, json_integer(b));
    }
    return json_pack("{s:s,s:[],s:n,s:{s:s,s:b,s:b,s:b},s:n,s:{s:s,s:b,s:b,s:b},s:{s:s,s:b,s:o,s:[]}}", "version", "1.0", "added_tokens",
                     "normalizer", "pre_tokenizer", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1, "use_regex", 1,
                     "post_processor", "decoder", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1, "use_regex", 1, "model",
                     "type", "BPE", "byte_fallback", 0, "vocab", vocab, "merges");
}

static int write_all(const plan *p, const char *out, int layers, uint64_t seed, bool sparse, cb_err *err)
{
    const model *m = p->m;
    cb_outdir d;
    cb_st_writer *w;
    char path[4096];
    int rc = cb_outdir_open(&d, out, err);
    if (rc < 0) return rc;
    json_t *root = json_pack("{s:s}", "model_type", m->type), *text = text_config(m, layers);
    if (m->hv || m->gemma == 4) {
        json_object_set_new(text, "model_type", json_string(m->gemma ? "gemma4_text" : m->experts ? "qwen3_5_moe_text" : "qwen3_5_text"));
        json_object_set_new(root, "text_config", text);
        json_object_set_new(root, "tie_word_embeddings", json_boolean(m->tied));
    } else
        json_object_update_new(root, text);
    json_t *q = json_pack("{s:i,s:i,s:s}", "group_size", m->group, "bits", m->bits, "mode", "affine");
    json_object_update(q, p->quant);
    if (p->plain) json_decref(q);
    else json_object_set_new(root, "quantization", q);
    if (m->block) {
        json_object_update_new(root, json_pack("{s:i,s:s,s:s,s:s,s:s,s:{s:b,s:b,s:b},s:O}", "schema_version", 2, "base_model_type", "qwen3_5",
                                               "tensor_namespace", "mlx-vlm-qwen3_5", "gdn_activation_layout", "grouped", "hadamard_config",
                                               "hadamard.json", "components", "text", 1, "vision", 0, "mtp", 0, "modules", p->modules));
        rc = write_json(d.tmp, "hadamard.json", hadamard(p), err);
    }
    if (rc == 0) rc = write_json(d.tmp, "config.json", root, err);
    else json_decref(root);
    if (rc == 0) rc = write_json(d.tmp, "tokenizer.json", tokenizer(), err);
    snprintf(path, sizeof path, "%s/model.safetensors", d.tmp);
    if (rc == 0 && (rc = cb_st_writer_open(path, &w, err)) == 0) {
        for (int i = 0; i < p->n && rc == 0; i++)
            rc = cb_st_writer_declare(w, p->items[i].name, p->items[i].dtype, p->items[i].dims, p->items[i].n_dims, err);
        if (sparse) cb_st_writer_leave_holes(w);
        if (rc == 0) rc = cb_st_writer_begin(w, err);
        if (rc == 0) rc = sparse ? write_signs(p, w, err) : write_data(p, w, seed, err);
        if (rc == 0) rc = cb_st_writer_commit(w, err);
        else cb_st_writer_abort(w);
    }
    if (rc < 0) cb_outdir_abort(&d);
    else rc = cb_outdir_commit(&d, err);
    return rc;
}

int main(int argc, char **argv)
{
    uint64_t seed = 1;
    int layers = 0;
    bool sparse = false, plain = false;
    for (int i = 3; i < argc; i++) {
        if (!strcmp(argv[i], "--seed") && i + 1 < argc) seed = strtoull(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--layers") && i + 1 < argc) layers = atoi(argv[++i]);
        else if (!strcmp(argv[i], "--sparse")) sparse = true;
        else if (!strcmp(argv[i], "--float")) plain = true;
        else argc = 0;
    }
    const model *m = NULL;
    for (size_t i = 0; argc >= 3 && i < sizeof models / sizeof *models; i++)
        if (!strcmp(models[i].name, argv[1])) m = &models[i];
    if (!m || layers < 0 || layers > m->layers || (plain && m->block)) {
        fprintf(stderr, "usage: synth MODEL OUT [--seed N] [--layers N] [--sparse] [--float]\n       synth MODEL --count\nmodels:");
        for (size_t i = 0; i < sizeof models / sizeof *models; i++) fprintf(stderr, " %s", models[i].name);
        fputc('\n', stderr);
        return 2;
    }
    plan p = {.m = m, .quant = json_object(), .modules = json_array(), .names = json_array(), .plain = plain};
    cb_err err = {0};
    if (!layers) layers = m->layers;
    lay_out(&p, layers);
    uint64_t total = 0;
    for (int i = 0; i < p.n; i++) total += item_bytes(&p.items[i]);
    bool count = !strcmp(argv[2], "--count");
    int rc = count ? 0 : write_all(&p, argv[2], layers, seed, sparse, &err);
    if (rc < 0) fprintf(stderr, "error: %s\n", err.text);
    else printf("%s: %d tensors, %llu data bytes\n", m->name, p.n, (unsigned long long)total);
    json_decref(p.quant);
    json_decref(p.modules);
    json_decref(p.names);
    free(p.items);
    return rc < 0 ? 1 : 0;
}
