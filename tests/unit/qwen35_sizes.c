/* qwen35_sizes.c: every published size of Qwen 3.5 as files with holes: the plan must find each tensor of the description's list,
 * leave the vision tower and the draft head, and count the parameters and bytes of state that the description gives. The
 * configs are those of 3.5, 3.6 and 3.8, with the keys that the later ones add, and YaRN for long contexts. */
#include "base/mem.h"
#include "io/weights.h"
#include "model/family.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include "support/tmpdir.h"

typedef struct size {
    const char *name;
    int H, L, nq, nkv, ffn, E, k, width, shared, hv;
    bool tied;
    int depth, vw, vm;             /* vision: layers, width, MLP */
    double params;                 /* of the text part, from the description's table */
    int state_mib, kv_bytes;       /* f32 delta state a session; bf16 K and V a token */
} size;

static const size sizes[] = {
    {"0.8B", 1024, 24, 8, 2, 3584, 0, 0, 0, 0, 16, true, 12, 768, 3072, 0.752e9, 18, 12288},
    {"2B", 2048, 24, 8, 2, 6144, 0, 0, 0, 0, 16, true, 24, 1024, 4096, 1.882e9, 18, 12288},
    {"4B", 2560, 32, 16, 4, 9216, 0, 0, 0, 0, 32, true, 24, 1024, 4096, 4.206e9, 48, 32768},
    {"9B", 4096, 32, 16, 4, 12288, 0, 0, 0, 0, 32, false, 27, 1152, 4304, 8.954e9, 48, 32768},
    {"27B", 5120, 64, 24, 4, 17408, 0, 0, 0, 0, 48, false, 27, 1152, 4304, 26.90e9, 144, 65536},
    {"35B-A3B", 2048, 40, 16, 2, 0, 256, 8, 512, 512, 32, false, 27, 1152, 4304, 34.66e9, 60, 20480},
    {"122B-A10B", 3072, 48, 32, 2, 0, 256, 8, 1024, 1024, 64, false, 27, 1152, 4304, 122.1e9, 144, 24576},
    {"397B-A17B", 4096, 60, 32, 2, 0, 512, 10, 1024, 1024, 64, false, 27, 1152, 4304, 396.3e9, 180, 30720},
};
enum { V = 248320, D = 256, HK = 16, DK = 128 };

static char dir[64];

static struct {
    cb_buf header;
    uint64_t end;
    int n, n_f32;
} out;

static void tensor(const char *prefix, const char *name, const char *dtype, int64_t a, int64_t b, int64_t c)
{
    char shape[80];
    uint64_t n = (uint64_t)(a * (b ? b : 1) * (c ? c : 1)) * (!strcmp(dtype, "BF16") ? 2 : 4);
    snprintf(shape, sizeof shape, b ? c ? "[%lld,%lld,%lld]" : "[%lld,%lld]" : "[%lld]", (long long)a, (long long)b, (long long)c);
    cb_buf_printf(&out.header, "%s\"%s%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%llu,%llu]}", out.n ? "," : "{", prefix, name, dtype, shape,
                  (unsigned long long)out.end, (unsigned long long)(out.end + n));
    out.end += n;
    out.n++;
    out.n_f32 += !strcmp(dtype, "F32");
}

static void bf16(const char *prefix, const char *name, int64_t a, int64_t b) { tensor(prefix, name, "BF16", a, b, 0); }

/* A matrix, or at `bits` (group 64) its codes, scales and biases; stack 0: a plain one. */
static void matrix(const char *prefix, const char *path, int64_t stack, int64_t rows, int64_t cols, int bits)
{
    static const char *const part[] = {".weight", ".scales", ".biases"};
    char s[160];
    for (int i = 0; i < (bits ? 3 : 1); i++) {
        int64_t last = !bits ? cols : i ? cols / 64 : cols * bits / 32;
        snprintf(s, sizeof s, "%s%s", path, part[i]);
        tensor(prefix, s, bits && !i ? "U32" : "BF16", stack ? stack : rows, stack ? rows : last, stack ? last : 0);
    }
}

static void attention(const size *z, const char *p, int bits)
{
    matrix(p, "self_attn.q_proj", 0, 2 * z->nq * D, z->H, bits);
    matrix(p, "self_attn.k_proj", 0, z->nkv * D, z->H, bits);
    matrix(p, "self_attn.v_proj", 0, z->nkv * D, z->H, bits);
    matrix(p, "self_attn.o_proj", 0, z->H, z->nq * D, bits);
    bf16(p, "self_attn.q_norm.weight", D, 0);
    bf16(p, "self_attn.k_norm.weight", D, 0);
}

static void delta_net(const size *z, const char *p, int bits)
{
    int kd = HK * DK, vd = z->hv * DK, cd = 2 * kd + vd;
    matrix(p, "linear_attn.in_proj_qkv", 0, cd, z->H, bits);
    matrix(p, "linear_attn.in_proj_z", 0, vd, z->H, bits);
    matrix(p, "linear_attn.in_proj_b", 0, z->hv, z->H, bits);
    matrix(p, "linear_attn.in_proj_a", 0, z->hv, z->H, bits);
    tensor(p, "linear_attn.conv1d.weight", "BF16", cd, bits ? 4 : 1, bits ? 1 : 4);
    tensor(p, "linear_attn.A_log", "F32", z->hv, 0, 0);
    bf16(p, "linear_attn.dt_bias", z->hv, 0);
    tensor(p, "linear_attn.norm.weight", "F32", DK, 0, 0);
    matrix(p, "linear_attn.out_proj", 0, z->H, vd, bits);
}

static void feed_forward(const size *z, const char *p, int bits)
{
    if (!z->E) {
        matrix(p, "mlp.gate_proj", 0, z->ffn, z->H, bits);
        matrix(p, "mlp.up_proj", 0, z->ffn, z->H, bits);
        matrix(p, "mlp.down_proj", 0, z->H, z->ffn, bits);
        return;
    }
    matrix(p, "mlp.gate", 0, z->E, z->H, bits ? 8 : 0);
    matrix(p, "mlp.shared_expert_gate", 0, 1, z->H, bits ? 8 : 0);
    matrix(p, "mlp.shared_expert.gate_proj", 0, z->shared, z->H, bits);
    matrix(p, "mlp.shared_expert.up_proj", 0, z->shared, z->H, bits);
    matrix(p, "mlp.shared_expert.down_proj", 0, z->H, z->shared, bits);
    if (bits) {
        matrix(p, "mlp.switch_mlp.gate_proj", z->E, z->width, z->H, bits);
        matrix(p, "mlp.switch_mlp.up_proj", z->E, z->width, z->H, bits);
        matrix(p, "mlp.switch_mlp.down_proj", z->E, z->H, z->width, bits);
    } else {
        tensor(p, "mlp.experts.gate_up_proj", "BF16", z->E, 2 * z->width, z->H);
        tensor(p, "mlp.experts.down_proj", "BF16", z->E, z->H, z->width);
    }
}

static bool is_full(int l) { return l % 4 == 3; }

/* Returns how many tensors the text part has. */
static int text_part(const size *z, int bits)
{
    char p[96];
    const char *prefix = bits ? "language_model.model." : "model.language_model.";
    int from = out.n;
    matrix(prefix, "embed_tokens", 0, V, z->H, bits);
    bf16(prefix, "norm.weight", z->H, 0);
    if (!z->tied) matrix(bits ? "language_model." : "", "lm_head", 0, V, z->H, bits);
    for (int l = 0; l < z->L; l++) {
        int before = out.n;
        snprintf(p, sizeof p, "%slayers.%d.", prefix, l);
        bf16(p, "input_layernorm.weight", z->H, 0);
        bf16(p, "post_attention_layernorm.weight", z->H, 0);
        if (is_full(l)) attention(z, p, bits);
        else delta_net(z, p, bits);
        feed_forward(z, p, bits);
        if (!bits && !z->E) assert_int_equal(out.n - before, is_full(l) ? 11 : 14);
        if (!bits && z->E) assert_int_equal(out.n - before, is_full(l) ? 15 : 18); /* one less than with gate and up apart */
    }
    return out.n - from;
}

static int vision_part(const size *z, const char *prefix)
{
    static const char *const ends[] = {"weight", "bias"};
    char p[96], s[96];
    int from = out.n, w = z->vw;
    for (int e = 0; e < 2; e++) {
        snprintf(s, sizeof s, "patch_embed.proj.%s", ends[e]);
        bf16(prefix, s, w, e ? 0 : 1536);
    }
    bf16(prefix, "pos_embed.weight", 2304, w);
    for (int b = 0; b < z->depth; b++)
        for (int e = 0; e < 2; e++) {
            const struct { const char *path; int rows, cols; } part[] = {{"norm1", w, 0}, {"norm2", w, 0}, {"attn.qkv", 3 * w, w}, {"attn.proj", w, w},
                                                                          {"mlp.linear_fc1", z->vm, w}, {"mlp.linear_fc2", w, z->vm}};
            snprintf(p, sizeof p, "%sblocks.%d.", prefix, b);
            for (int i = 0; i < 6; i++) {
                snprintf(s, sizeof s, "%s.%s", part[i].path, ends[e]);
                bf16(p, s, part[i].rows, e ? 0 : part[i].cols);
            }
        }
    for (int e = 0; e < 2; e++) {
        const struct { const char *path; int rows, cols; } part[] = {{"merger.norm", w, 0}, {"merger.linear_fc1", 4 * w, 4 * w}, {"merger.linear_fc2", z->H, 4 * w}};
        for (int i = 0; i < 3; i++) {
            snprintf(s, sizeof s, "%s.%s", part[i].path, ends[e]);
            bf16(prefix, s, part[i].rows, e ? 0 : part[i].cols);
        }
    }
    assert_int_equal(out.n - from, 12 * z->depth + 9);
    return out.n - from;
}

/* The draft head of dense models. */
static int mtp_part(const size *z)
{
    static const char *const norms[] = {"pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm", "layers.0.input_layernorm", "layers.0.post_attention_layernorm"};
    char s[96];
    int from = out.n;
    bf16("mtp.", "fc.weight", z->H, 2 * z->H);
    for (int i = 0; i < 5; i++) {
        snprintf(s, sizeof s, "%s.weight", norms[i]);
        bf16("mtp.", s, z->H, 0);
    }
    attention(z, "mtp.layers.0.", 0);
    feed_forward(z, "mtp.layers.0.", 0);
    return out.n - from;
}

/* ---- config ---- */

static void config_text(const size *z, int bits, const char *more, cb_buf *b)
{
    cb_buf_printf(b, "{\"model_type\":\"qwen3_5%s\",\"architectures\":[\"Qwen3_5%sForConditionalGeneration\"],\"image_token_id\":248056,\"tie_word_embeddings\":%s,",
                  z->E ? "_moe" : "", z->E ? "Moe" : "", z->tied ? "true" : "false");
    cb_buf_printf(b, "\"vision_config\":{\"depth\":%d,\"hidden_size\":%d,\"deepstack_visual_indexes\":[]},", z->depth, z->vw);
    if (bits) {
        cb_buf_printf(b, "\"quantization\":{\"group_size\":64,\"bits\":%d,\"mode\":\"affine\"", bits);
        for (int l = 0; l < z->L && z->E; l++)
            cb_buf_printf(b, ",\"language_model.model.layers.%d.mlp.gate\":{\"group_size\":64,\"bits\":8}"
                             ",\"language_model.model.layers.%d.mlp.shared_expert_gate\":{\"group_size\":64,\"bits\":8}", l, l);
        cb_buf_puts(b, "},");
    }
    cb_buf_printf(b, "\"text_config\":{\"hidden_size\":%d,\"num_hidden_layers\":%d,\"vocab_size\":%d,\"num_attention_heads\":%d,\"num_key_value_heads\":%d,"
                     "\"head_dim\":%d,\"full_attention_interval\":4,\"linear_num_key_heads\":%d,\"linear_num_value_heads\":%d,\"linear_key_head_dim\":%d,"
                     "\"linear_value_head_dim\":%d,\"linear_conv_kernel_dim\":4,\"rms_norm_eps\":1e-6,\"attention_bias\":false,\"attn_output_gate\":true,"
                     "\"hidden_act\":\"silu\",\"mamba_ssm_dtype\":\"float32\",\"max_position_embeddings\":262144,\"mtp_num_hidden_layers\":1,",
                  z->H, z->L, V, z->nq, z->nkv, D, HK, z->hv, DK, DK);
    if (z->E)
        cb_buf_printf(b, "\"num_experts\":%d,\"num_experts_per_tok\":%d,\"moe_intermediate_size\":%d,\"shared_expert_intermediate_size\":%d,", z->E, z->k,
                      z->width, z->shared);
    else cb_buf_printf(b, "\"intermediate_size\":%d,", z->ffn);
    cb_buf_printf(b, "%s}}", more);
}

static const char ROPE[] = "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":1e7,\"partial_rotary_factor\":0.25,\"mrope_section\":[11,11,10],"
                           "\"mrope_interleaved\":true},\"partial_rotary_factor\":0.25";

/* Writes the file and plans it. False when the file system cannot hold a file with holes. */
static bool plan_of(const size *z, int bits, const char *more, cb_config **c, cb_weights **w, cb_plan **p, cb_err *err)
{
    cb_buf b;
    cb_buf_init(&b, 0);
    config_text(z, bits, more, &b);
    if (cb_config_parse(dir, b.data, b.n, c, err) < 0) fail_msg("%s: %s", z->name, err->text);
    cb_buf_fini(&b);
    cb_buf_putc(&out.header, '}');
    tmp_st(dir, "model.safetensors", out.header.data, NULL, 0);
    off_t all = (off_t)(8 + out.header.n + out.end);
    if (truncate(tmp_path(dir, "model.safetensors"), all) != 0) return false;
    if (cb_weights_open(dir, w, err) < 0) fail_msg("%s: %s", z->name, err->text);
    *p = NULL;
    cb_model_plan(*c, *w, p, err);
    return true;
}

static void start(void)
{
    tmp_dir(dir);
    out.n = out.n_f32 = 0;
    out.end = 0;
    cb_buf_init(&out.header, 0);
}

static void end(cb_config *c, cb_weights *w, cb_plan *p)
{
    cb_plan_close(p);
    cb_weights_close(w);
    cb_config_close(c);
    cb_buf_fini(&out.header);
    tmp_remove(dir);
}

static uint64_t state_bytes(const cb_plan *p)
{
    uint64_t n = 0;
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == CB_DELTA) n += p->rec[p->ops[i].n[0]].floats * 4;
    return n;
}

static int kv_numbers(const cb_plan *p)
{
    int n = 0;
    for (int i = 0; i < p->n_kv; i++) n += 2 * p->kv[i].n_heads * p->kv[i].dim;
    return n;
}

static void check_size(const size *z, int bits)
{
    cb_config *c;
    cb_weights *w = NULL;
    cb_plan *p = NULL;
    cb_err err = {0};
    start();
    int n_text = text_part(z, bits), n_skipped = vision_part(z, bits ? "vision_tower." : "model.visual.");
    if (!bits && !z->E) n_skipped += mtp_part(z);
    if (!plan_of(z, bits, ROPE, &c, &w, &p, &err)) skip();
    if (!p) fail_msg("%s, %d bits: %s", z->name, bits, err.text);
    print_message("%-10s %d bits: %d text tensors, %d skipped, %.4g parameters\n", z->name, bits, n_text, p->n_skipped, (double)p->n_params);
    assert_int_equal(p->n_skipped, n_skipped);
    assert_int_equal(cb_weights_count(w), n_text + n_skipped);
    assert_true(fabs((double)p->n_params / z->params - 1) < 1e-3);
    assert_true(state_bytes(p) == (uint64_t)z->state_mib << 20);
    assert_int_equal(2 * kv_numbers(p), z->kv_bytes);
    if (!bits && !strcmp(z->name, "0.8B")) { /* the description counts these */
        assert_int_equal(n_text, 320);
        assert_int_equal(out.n, 488);
        assert_int_equal(out.n_f32, 36);
        assert_int_equal(n_skipped, 153 + 15);
    }
    end(c, w, p);
}

/* Emulators and sanitizers do not map files of hundreds of gigabytes. */
static size_t n_sizes(void)
{
    const char *f = getenv("CB_FLAVOUR");
    return f && strcmp(f, "release") != 0 ? 4 : sizeof sizes / sizeof *sizes;
}

static void test_raw(void **state)
{
    (void)state;
    for (size_t i = 0; i < n_sizes(); i++) check_size(&sizes[i], 0);
}

static void test_4_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < n_sizes(); i++) check_size(&sizes[i], 4);
}

/* ---- later configs ---- */

static void check_config(const size *z, const char *more, const char *refusal, float turn_scale)
{
    cb_config *c;
    cb_weights *w = NULL;
    cb_plan *p = NULL;
    cb_err err = {0};
    start();
    text_part(z, 4);
    if (!plan_of(z, 4, more, &c, &w, &p, &err)) skip();
    if (refusal) {
        if (p || !strstr(err.text, refusal)) fail_msg("%s: \"%s\", expected: %s", more, err.text, refusal);
    } else {
        if (!p) fail_msg("%s: %s", more, err.text);
        assert_int_equal(p->n_ropes, 1);
        assert_int_equal(p->ropes[0].n_pairs, 32); /* a quarter of 256 dims */
        for (int i = 0; i < p->n_ops; i++)
            if (p->ops[i].kind == CB_ROPE_TABLE) assert_true(fabsf(p->ops[i].f[0] - turn_scale) < 1e-6f);
    }
    end(c, w, p);
}

static void test_configs(void **state)
{
    (void)state;
    char more[600];
    const size *dense = &sizes[4], *moe = &sizes[5];
    snprintf(more, sizeof more, "%s,\"output_gate_type\":\"swish\",\"language_model_only\":false", ROPE); /* 3.8 27B */
    check_config(dense, more, NULL, 1);
    snprintf(more, sizeof more, "%s,\"norm_topk_prob\":true,\"decoder_sparse_step\":1,\"mlp_only_layers\":[]", ROPE); /* 3.6 35B-A3B */
    check_config(moe, more, NULL, 1);
    static const char yarn[] = "\"rope_parameters\":{\"type\":\"yarn\",\"rope_theta\":1e7,\"partial_rotary_factor\":0.25,\"factor\":4,"
                               "\"original_max_position_embeddings\":262144,\"mrope_section\":[11,11,10],\"mrope_interleaved\":true}";
    check_config(dense, yarn, NULL, 1.138629436f);
    check_config(moe, "\"rope_theta\":1e7,\"partial_rotary_factor\":0.25", NULL, 1); /* both keys outside */
    snprintf(more, sizeof more, "%s,\"output_gate_type\":\"sigmoid\"", ROPE);
    check_config(dense, more, "output_gate_type sigmoid is not supported", 1);
    snprintf(more, sizeof more, "%s,\"mlp_only_layers\":[3]", ROPE);
    check_config(moe, more, "mlp_only_layers is not supported", 1);
    snprintf(more, sizeof more, "%s,\"layer_types\":[\"linear_attention\"]", ROPE);
    check_config(dense, more, "layer_types has 1 entries for 64 layers", 1);
    check_config(dense, "\"hidden_act\":\"gelu\"", "hidden_act", 1);
    static const char other[] = "{\"model_type\":\"qwen4_exp\"}"; /* another architecture */
    cb_config *c;
    cb_err err = {0};
    assert_int_equal(cb_config_parse("x", other, sizeof other - 1, &c, &err), 0);
    assert_null(cb_family_find(c, &err));
    assert_non_null(strstr(err.text, "qwen4_exp is not supported"));
    cb_config_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_raw), cmocka_unit_test(test_4_bits), cmocka_unit_test(test_configs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
