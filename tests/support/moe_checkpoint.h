/* moe_checkpoint.h: checkpoints of random weights with gated delta nets, attention and experts, whose rows have the width of whole warps, as cuda/tape.cu wants
 * them; no tokenizer. */
#ifndef CB_TESTS_SUPPORT_MOE_CHECKPOINT_H
#define CB_TESTS_SUPPORT_MOE_CHECKPOINT_H
#include "base/mem.h"
#include "io/dtype.h"
#include "io/safetensors.h"
#include "random.h"
#include "tmpdir.h"

enum { MOE_VOCAB = 272, MOE_K_HEADS = 8, MOE_V_HEADS = 16, MOE_DK = 32, MOE_DV = 32, MOE_HEADS = 4, MOE_KV_HEADS = 2 };

typedef struct moe_shape {
    int hidden, experts, chosen, width, layers, interval, dim; /* dim: of a head */
    bool towers;             /* one number of each norm is large: remainders */
} moe_shape;

typedef struct moe_writer {
    cb_st_writer *w;
    const moe_shape *s;
    int dense;               /* normed_checkpoint.h */
    char layer[32];
    bool data;               /* else tensors are declared */
} moe_writer;

/* A tensor of up to three dimensions. */
static void moe_tensor(moe_writer *w, const char *name, cb_dtype t, int64_t a, int64_t b, int64_t c, float about, float spread)
{
    char full[160];
    int64_t dims[3] = {a, b, c};
    snprintf(full, sizeof full, "language_model.%s%s", w->layer, name);
    if (!w->data) {
        assert_int_equal(cb_st_writer_declare(w->w, full, t, dims, c ? 3 : b ? 2 : 1, NULL), 0);
        return;
    }
    size_t n = (size_t)(a * (b ? b : 1) * (c ? c : 1)), size = t == CB_U32 || t == CB_F32 ? 4 : 2;
    bool large = w->s->towers && t == CB_BF16 && (strstr(name, "shared_expert.up_proj") || strstr(name, "mlp.up_proj")); /* one unit of the shared expert, or of the dense MLP */
    uint8_t *data = malloc(n * size);
    for (size_t i = 0; i < n; i++) {
        float v = about + spread * ((float)(rnd() % 2001) / 1000 - 1);
        if (large && (int64_t)i / b == 3) v *= 64;
        uint32_t code = rnd() ^ rnd() << 16;
        uint16_t h = cb_f32_to_bf16(v);
        memcpy(data + i * size, t == CB_U32 ? (void *)&code : t == CB_F32 ? (void *)&v : (void *)&h, size);
    }
    assert_int_equal(cb_st_writer_put(w->w, data, n * size, NULL), 0);
    free(data);
}

static void moe_matrix(moe_writer *w, const char *name, int stack, int rows, int cols, int bits)
{
    static const char *const parts[] = {"weight", "scales", "biases"};
    float scale = bits == 8 ? 0.002f : 0.02f;
    for (int k = 0; k < 3; k++) {
        char full[96];
        int last = k ? cols / 64 : cols * bits / 32;
        snprintf(full, sizeof full, "%s.%s", name, parts[k]);
        moe_tensor(w, full, k ? CB_BF16 : CB_U32, stack ? stack : rows, stack ? rows : last, stack ? last : 0, k == 1 ? scale : -scale * (float)((1 << bits) - 1) / 2, scale / 4);
    }
}

static void moe_norm(moe_writer *w, const char *name, int n)
{
    char full[128];
    snprintf(full, sizeof full, "language_model.%s%s.weight", w->layer, name);
    if (!w->data) {
        assert_int_equal(cb_st_writer_declare(w->w, full, CB_BF16, (int64_t[]){n}, 1, NULL), 0);
        return;
    }
    uint16_t *v = malloc(2 * (size_t)n);
    for (int i = 0; i < n; i++) v[i] = cb_f32_to_bf16(1 + (float)(rnd() % 100) / 1000);
    if (w->s->towers && n == w->s->hidden) v[rnd() % (uint32_t)n] = cb_f32_to_bf16(70);
    assert_int_equal(cb_st_writer_put(w->w, v, 2 * (size_t)n, NULL), 0);
    free(v);
}

static bool moe_is_full(const moe_shape *s, int layer) { return (layer + 1) % s->interval == 0; }

static void moe_tensors(moe_writer *w)
{
    const moe_shape *s = w->s;
    int keys = MOE_K_HEADS * MOE_DK, values = MOE_V_HEADS * MOE_DV;
    snprintf(w->layer, sizeof w->layer, "model.");
    moe_matrix(w, "embed_tokens", 0, MOE_VOCAB, s->hidden, 4);
    for (int l = 0; l < s->layers; l++) {
        snprintf(w->layer, sizeof w->layer, "model.layers.%d.", l);
        moe_norm(w, "input_layernorm", s->hidden);
        if (moe_is_full(s, l)) {
            moe_matrix(w, "self_attn.q_proj", 0, 2 * MOE_HEADS * s->dim, s->hidden, 4);
            moe_matrix(w, "self_attn.k_proj", 0, MOE_KV_HEADS * s->dim, s->hidden, 4);
            moe_matrix(w, "self_attn.v_proj", 0, MOE_KV_HEADS * s->dim, s->hidden, 4);
            moe_norm(w, "self_attn.q_norm", s->dim);
            moe_norm(w, "self_attn.k_norm", s->dim);
            moe_matrix(w, "self_attn.o_proj", 0, s->hidden, MOE_HEADS * s->dim, 4);
        } else {
            moe_matrix(w, "linear_attn.in_proj_qkv", 0, 2 * keys + values, s->hidden, 4);
            moe_matrix(w, "linear_attn.in_proj_z", 0, values, s->hidden, 4);
            moe_matrix(w, "linear_attn.in_proj_b", 0, MOE_V_HEADS, s->hidden, 4);
            moe_matrix(w, "linear_attn.in_proj_a", 0, MOE_V_HEADS, s->hidden, 4);
            moe_tensor(w, "linear_attn.conv1d.weight", CB_BF16, 2 * keys + values, 4, 1, 0.3f, 0.2f);
            moe_tensor(w, "linear_attn.A_log", CB_F32, MOE_V_HEADS, 0, 0, 0, 1);
            moe_tensor(w, "linear_attn.dt_bias", CB_BF16, MOE_V_HEADS, 0, 0, 0, 1);
            moe_norm(w, "linear_attn.norm", MOE_DV);
            moe_matrix(w, "linear_attn.out_proj", 0, s->hidden, values, 4);
        }
        moe_norm(w, "post_attention_layernorm", s->hidden);
        moe_matrix(w, "mlp.gate", 0, s->experts, s->hidden, 8);
        moe_matrix(w, "mlp.shared_expert_gate", 0, 1, s->hidden, 8);
        moe_matrix(w, "mlp.shared_expert.gate_proj", 0, s->width, s->hidden, 4);
        moe_matrix(w, "mlp.shared_expert.up_proj", 0, s->width, s->hidden, 4);
        moe_matrix(w, "mlp.shared_expert.down_proj", 0, s->hidden, s->width, 4);
        moe_matrix(w, "mlp.switch_mlp.gate_proj", s->experts, s->width, s->hidden, 4);
        moe_matrix(w, "mlp.switch_mlp.up_proj", s->experts, s->width, s->hidden, 4);
        moe_matrix(w, "mlp.switch_mlp.down_proj", s->experts, s->hidden, s->width, 4);
    }
    snprintf(w->layer, sizeof w->layer, "model.");
    moe_norm(w, "norm", s->hidden);
    w->layer[0] = 0;
    moe_matrix(w, "lm_head", 0, MOE_VOCAB, s->hidden, 4);
}

/* Config and tensors to dir. */
static void moe_store(moe_writer *w, const char *config, void (*tensors)(moe_writer *), const char *dir)
{
    tmp_put(dir, "config.json", config, strlen(config));
    random_state = (uint64_t)w->s->hidden * 77 + (uint64_t)w->s->experts;
    assert_int_equal(cb_st_writer_open(tmp_path(dir, "model.safetensors"), &w->w, NULL), 0);
    tensors(w);
    assert_int_equal(cb_st_writer_begin(w->w, NULL), 0);
    w->data = true;
    tensors(w);
    assert_int_equal(cb_st_writer_commit(w->w, NULL), 0);
}

static void moe_write(const moe_shape *s, const char *dir)
{
    char config[4096];
    int n = snprintf(config, sizeof config, "{\"model_type\": \"qwen3_5_moe\", \"tie_word_embeddings\": false, \"quantization\": {\"bits\": 4, \"group_size\": 64, \"mode\": \"affine\"");
    for (int l = 0; l < s->layers; l++)
        for (int k = 0; k < 2; k++)
            n += snprintf(config + n, sizeof config - (size_t)n, ", \"language_model.model.layers.%d.mlp.%s\": {\"group_size\": 64, \"bits\": 8}", l, k ? "gate" : "shared_expert_gate");
    n += snprintf(config + n, sizeof config - (size_t)n,
                  "}, \"text_config\": {\"model_type\": \"qwen3_5_moe_text\", \"hidden_size\": %d, \"num_hidden_layers\": %d, \"num_attention_heads\": %d, \"num_key_value_heads\": %d,"
                  "\"head_dim\": %d, \"vocab_size\": %d, \"max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-6, \"full_attention_interval\": %d, \"linear_num_key_heads\": %d,"
                  "\"linear_num_value_heads\": %d, \"linear_key_head_dim\": %d, \"linear_value_head_dim\": %d, \"linear_conv_kernel_dim\": 4, \"tie_word_embeddings\": false,"
                  "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 1e7, \"partial_rotary_factor\": 0.25}, \"num_experts\": %d, \"num_experts_per_tok\": %d,"
                  "\"moe_intermediate_size\": %d, \"shared_expert_intermediate_size\": %d}}",
                  s->hidden, s->layers, MOE_HEADS, MOE_KV_HEADS, s->dim, MOE_VOCAB, s->interval, MOE_K_HEADS, MOE_V_HEADS, MOE_DK, MOE_DV, s->experts, s->chosen, s->width, s->width);
    assert_true(n < (int)sizeof config);
    moe_store(&(moe_writer){.s = s}, config, moe_tensors, dir);
}
#endif
