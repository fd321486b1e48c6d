/* Whole imports of small GGUF files: values to the bit, names, config, atomicity, refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* in this order: cmocka wants the four above */
#include "support/ggufmake.h"
#include "base/file.h"
#include "base/json.h"
#include "io/weights.h"
#include <cmocka.h>
#include "support/tmpdir.h"
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

/* ---- a folder of our own ---- */

static char work[64], in_path[96], out_path[96];

static int setup(void **state)
{
    tmp_dir(work);
    snprintf(in_path, sizeof in_path, "%s/t.gguf", work);
    snprintf(out_path, sizeof out_path, "%s/out", work);
    return 0;
}

static int teardown(void **state)
{
    tmp_remove(work);
    return 0;
}

static void write_file(gm_file *f)
{
    size_t n;
    uint8_t *data = gm_finish(f, &n);
    tmp_put(work, "t.gguf", data, n);
    cb_free(data);
}

static void import_ok(gm_file *f)
{
    cb_err err = {0};
    write_file(f);
    tmp_remove(out_path);
    if (cb_import_gguf(in_path, out_path, NULL, NULL, &err) != 0) fail_msg("%s", err.text);
}

/* The import fails with CB_EFORMAT and a text that holds `want`; nothing is left. */
static void refuse(gm_file *f, const char *want)
{
    cb_err err = {0};
    write_file(f);
    tmp_remove(out_path);
    int rc = cb_import_gguf(in_path, out_path, NULL, NULL, &err);
    if (rc != CB_EFORMAT || !strstr(err.text, want) || strncmp(err.text, "t.gguf: ", 8))
        fail_msg("wanted \"%s\", got %d: %s", want, rc, err.text);
    assert_int_equal(tmp_count(work), 1);
}

/* ---- small models ---- */

static const gm_type *type_named(const char *name)
{
    for (int i = 0; i < GM_N_TYPES; i++)
        if (!strcmp(gm_types[i].name, name)) return &gm_types[i];
    return NULL;
}

static void free_raw(uint8_t *raw[GM_N_MATRICES])
{
    for (int i = 0; i < GM_N_MATRICES; i++) cb_free(raw[i]);
}

static void fill(float *v, int n, gm_rng *r)
{
    for (int i = 0; i < n; i++) v[i] = (float)(gm_u64(r) % 4096) / 1024.0f - 1.0f;
}

static void llama_norms(gm_file *f)
{
    float v[GM_HIDDEN];
    gm_rng r = {9};
    fill(v, GM_HIDDEN, &r);
    gm_norm(f, "blk.0.attn_norm.weight", GM_HIDDEN, v);
    gm_norm(f, "blk.0.ffn_norm.weight", GM_HIDDEN, v);
    gm_norm(f, "output_norm.weight", GM_HIDDEN, v);
}

static const char *const gemma_norms[][2] = {{"output_norm", "model.norm"},
                                             {"blk.0.attn_norm", "model.layers.0.input_layernorm"},
                                             {"blk.0.post_attention_norm", "model.layers.0.post_attention_layernorm"},
                                             {"blk.0.ffn_norm", "model.layers.0.pre_feedforward_layernorm"},
                                             {"blk.0.post_ffw_norm", "model.layers.0.post_feedforward_layernorm"},
                                             {"blk.0.attn_q_norm", "model.layers.0.self_attn.q_norm"},
                                             {"blk.0.attn_k_norm", "model.layers.0.self_attn.k_norm"}};

/* w[i] is the weight in HF form of norm i; the file gets w + 1. */
static void gemma_model_raw(gm_file *f, const gm_type *t, float w[7][GM_HIDDEN], uint8_t *raw[GM_N_MATRICES])
{
    gm_rng r = {77};
    gm_begin(f);
    gm_hparams(f, "gemma3");
    gm_kv_u32(f, "gemma3.attention.sliding_window", 512);
    gm_kv_u32(f, "gemma3.attention.key_length", GM_D);
    gm_kv_u32(f, "gemma3.attention.value_length", GM_D);
    gm_vocab(f);
    gm_random_matrices(f, t, &r, raw);
    for (int i = 0; i < 7; i++) {
        char name[64];
        float one_more[GM_HIDDEN];
        int n = i < 5 ? GM_HIDDEN : GM_D;
        fill(w[i], n, &r);
        w[i][0] = -1.0f;
        w[i][1] = 1e-9f; /* lost in the file: reads as exactly 1, comes back as 0 */
        w[i][2] = -0.99999994f;
        for (int k = 0; k < n; k++) one_more[k] = w[i][k] + 1.0f;
        w[i][1] = 0;
        snprintf(name, sizeof name, "%s.weight", gemma_norms[i][0]);
        gm_norm(f, name, n, one_more);
    }
}

static void gemma_model(gm_file *f, const gm_type *t, float w[7][GM_HIDDEN])
{
    uint8_t *raw[GM_N_MATRICES];
    gemma_model_raw(f, t, w, raw);
    free_raw(raw);
}

static void llama_model(gm_file *f, const gm_type *t)
{
    uint8_t *raw[GM_N_MATRICES];
    gm_rng r = {5};
    gm_begin(f);
    gm_hparams(f, "llama");
    gm_vocab(f);
    gm_random_matrices(f, t, &r, raw);
    free_raw(raw);
    llama_norms(f);
}

/* ---- values ---- */

/* GGUF row that HF row r of a permuted matrix stands in, by the rule as it is stated: HF[h D + j D/2 + i] = GGUF[h D + 2i + j]. */
static int gguf_row(int matrix, int row, bool permuted)
{
    if (!permuted || (matrix != 1 && matrix != 2)) return row;
    for (int h = 0; h < GM_HEADS; h++)
        for (int j = 0; j < 2; j++)
            for (int i = 0; i < GM_D / 2; i++)
                if (h * GM_D + j * GM_D / 2 + i == row) return h * GM_D + 2 * i + j;
    return -1;
}

/* scale_dtype: of scales, or of a float matrix; the embedding may have F32 instead (embed_f32). */
static void check_matrices(const gm_type *t, uint8_t *raw[GM_N_MATRICES], cb_dtype scale_dtype, bool permuted, bool embed_f32)
{
    cb_config *c;
    cb_weights *w;
    cb_err err = {0};
    if (cb_config_open(out_path, &c, &err) < 0 || cb_weights_open(out_path, &w, &err) < 0) fail_msg("%s", err.text);
    for (int m = 0; m < GM_N_MATRICES; m++) {
        cb_matrix x;
        float row[GM_FF];
        cb_dtype dtype = embed_f32 && m == 0 ? CB_F32 : scale_dtype;
        int rows = gm_matrices[m].rows, cols = gm_matrices[m].cols;
        if (cb_matrix_find(w, c, gm_matrices[m].mlx, 1, rows, cols, &x, &err) != 1) fail_msg("%s: %s", gm_matrices[m].mlx, err.text);
        assert_int_equal(x.mode, t->bits ? CB_W_AFFINE : CB_W_FLOAT);
        if (t->bits) {
            assert_int_equal(x.bits, t->bits);
            assert_int_equal(x.group, 32);
            assert_int_equal(x.scale_dtype, dtype);
        } else
            assert_int_equal(x.float_dtype, dtype);
        for (int r = 0; r < rows; r++) {
            const uint8_t *b = raw[m] + (size_t)gguf_row(m, r, permuted) * (size_t)(cols / t->block * t->bytes);
            cb_matrix_decode_row(&x, 0, r, row);
            for (int k = 0; k < cols; k++) {
                float want = gm_value(t, b + k / t->block * t->bytes, k % t->block) + 0.0f, got = row[k] + 0.0f;
                if (memcmp(&want, &got, 4))
                    fail_msg("%s %s[%d][%d]: %.9g, wanted %.9g", t->name, gm_matrices[m].mlx, r, k, got, want);
            }
        }
    }
    cb_weights_close(w);
    cb_config_close(c);
}

/* Every type, in both architectures (llama moves rows, gemma3 does not). */
static void test_values(void **state)
{
    for (int i = 0; i < GM_N_TYPES; i++) {
        const gm_type *t = &gm_types[i];
        uint8_t *raw[GM_N_MATRICES];
        gm_file f;
        gm_rng r = {(uint64_t)i};
        gm_begin(&f);
        gm_hparams(&f, "llama");
        gm_vocab(&f);
        gm_random_matrices(&f, t, &r, raw);
        llama_norms(&f);
        import_ok(&f);
        bool k_quant = t->block == 256;
        cb_dtype want = t->id == 1 ? CB_F16 : t->id == 30 ? CB_BF16 : t->id == 0 || k_quant ? CB_F32 : CB_F16;
        check_matrices(t, raw, want, true, false);
        free_raw(raw);

        static float w[7][GM_HIDDEN];
        gemma_model_raw(&f, t, w, raw);
        import_ok(&f);
        check_matrices(t, raw, want, false, want == CB_F16);
        free_raw(raw);
    }
}

/* Scales too large for F16 once multiplied go to F32, for their tensor alone; a K-quant that happens to fit goes to F16. */
static void test_scale_dtype(void **state)
{
    static const char *const names[] = {"Q4_0", "Q5_0", "Q8_0", "IQ4_NL"};
    for (int i = 0; i < 5; i++) {
        const gm_type *t = type_named(i < 4 ? names[i] : "Q4_K");
        uint8_t *raw[GM_N_MATRICES];
        gm_file f;
        gm_rng r = {(uint64_t)i};
        gm_begin(&f);
        gm_hparams(&f, "llama");
        gm_vocab(&f);
        for (int m = 0; m < GM_N_MATRICES; m++) {
            size_t n = (size_t)gm_matrices[m].rows * (size_t)(gm_matrices[m].cols / t->block);
            char name[64];
            raw[m] = cb_alloc(n * (size_t)t->bytes);
            for (size_t k = 0; k < n; k++) {
                gm_random_block(t, &r, raw[m] + k * (size_t)t->bytes);
                if (i < 4) gm_set_half(t, raw[m] + k * (size_t)t->bytes, 0, k == n - 1 ? 0xfbff : 0x2e66); /* -65504, 0.1 */
                else gm_set_half(t, raw[m] + k * (size_t)t->bytes, 0, 0x3c00), gm_set_half(t, raw[m] + k * (size_t)t->bytes, 1, 0x3800);
            }
            snprintf(name, sizeof name, "%s.weight", gm_matrices[m].gguf);
            gm_tensor(&f, name, t->id, gm_matrices[m].cols, gm_matrices[m].rows, raw[m], n * (size_t)t->bytes);
        }
        llama_norms(&f);
        import_ok(&f);
        check_matrices(t, raw, i < 4 ? CB_F32 : CB_F16, true, false);
        free_raw(raw);
    }
}

/* Q6_K with plain scales fits F16 exactly and takes half the room. */
static void test_small_q6k(void **state)
{
    const gm_type *t = type_named("Q6_K");
    uint8_t *raw[GM_N_MATRICES];
    gm_file f;
    gm_rng r = {3};
    gm_begin(&f);
    gm_hparams(&f, "llama");
    gm_vocab(&f);
    for (int m = 0; m < GM_N_MATRICES; m++) {
        size_t n = (size_t)gm_matrices[m].rows * (size_t)(gm_matrices[m].cols / 256);
        char name[64];
        raw[m] = cb_alloc(n * 210);
        for (size_t k = 0; k < n; k++) {
            gm_random_block(t, &r, raw[m] + k * 210);
            gm_set_half(t, raw[m] + k * 210, 0, 0x2800); /* 1/32 */
            for (int j = 0; j < 16; j++) raw[m][k * 210 + 192 + (size_t)j] &= 0x1f;
        }
        snprintf(name, sizeof name, "%s.weight", gm_matrices[m].gguf);
        gm_tensor(&f, name, 14, gm_matrices[m].cols, gm_matrices[m].rows, raw[m], n * 210);
    }
    llama_norms(&f);
    import_ok(&f);
    check_matrices(t, raw, CB_F16, true, false);
    free_raw(raw);
}

/* ---- gemma 3 ---- */

static json_t *json_of(const char *name)
{
    json_t *j;
    cb_err err = {0};
    if (cb_json_file(out_path, name, 1 << 24, &j, &err) < 0) fail_msg("%s", err.text);
    return j;
}

static void want_int(const json_t *j, const char *key, int64_t want)
{
    const json_t *v = json_object_get(j, key);
    if (!json_is_integer(v) || json_integer_value(v) != want) fail_msg("%s is not %lld", key, (long long)want);
}

static void want_real(const json_t *j, const char *key, double want)
{
    const json_t *v = json_object_get(j, key);
    if (!json_is_number(v) || json_number_value(v) != want) fail_msg("%s is %g, not %g", key, json_number_value(v), want);
}

static void want_text(const json_t *j, const char *key, const char *want)
{
    const char *v = json_string_value(json_object_get(j, key));
    if (!v || strcmp(v, want)) fail_msg("%s is %s, not %s", key, v ? v : "(none)", want);
}

static void test_gemma3(void **state)
{
    static float w[7][GM_HIDDEN];
    gm_file f;
    cb_err err = {0};
    cb_weights *weights;
    gemma_model(&f, type_named("Q5_0"), w);
    import_ok(&f);
    assert_int_equal(cb_weights_open(out_path, &weights, &err), 0);
    for (int i = 0; i < 7; i++) {
        char name[96];
        snprintf(name, sizeof name, "%s.weight", gemma_norms[i][1]);
        const cb_tensor *t = cb_weights_find(weights, name);
        int n = i < 5 ? GM_HIDDEN : GM_D;
        assert_non_null(t);
        assert_int_equal(t->dtype, CB_F32);
        assert_int_equal(t->n_dims, 1);
        assert_int_equal(t->dims[0], n);
        for (int k = 0; k < n; k++) assert_true(cb_load_float(t->data, CB_F32, (size_t)k) == w[i][k]);
    }
    assert_int_equal(cb_weights_count(weights), 7 + 3 * GM_N_MATRICES);
    /* the embedding decides in what type mlx-lm computes: never F16 here */
    assert_int_equal(cb_weights_find(weights, "model.embed_tokens.scales")->dtype, CB_F32);
    assert_int_equal(cb_weights_find(weights, "model.layers.0.mlp.up_proj.scales")->dtype, CB_F16);
    cb_weights_close(weights);

    json_t *c = json_of("config.json"), *gen = json_of("generation_config.json");
    want_text(c, "model_type", "gemma3_text");
    want_int(c, "sliding_window", 512);
    want_int(c, "sliding_window_pattern", 6);
    want_int(c, "query_pre_attn_scalar", GM_D);
    want_int(c, "head_dim", GM_D);
    want_real(c, "rope_local_base_freq", 10000);
    want_real(c, "rope_theta", 500000);
    want_real(c, "rms_norm_eps", 1e-6);
    want_text(c, "hidden_activation", "gelu_pytorch_tanh");
    assert_int_equal(json_array_size(json_object_get(c, "layer_types")), 1);
    const json_t *eos = json_object_get(gen, "eos_token_id");
    assert_int_equal(json_array_size(eos), 2);
    assert_int_equal(json_integer_value(json_array_get(eos, 0)), 1);
    assert_int_equal(json_integer_value(json_array_get(eos, 1)), 261);
    json_decref(c);
    json_decref(gen);

    gemma_model(&f, type_named("F16"), w);
    import_ok(&f);
    assert_int_equal(cb_weights_open(out_path, &weights, &err), 0);
    assert_int_equal(cb_weights_find(weights, "model.embed_tokens.weight")->dtype, CB_F32);
    assert_int_equal(cb_weights_find(weights, "model.layers.0.mlp.up_proj.weight")->dtype, CB_F16);
    cb_weights_close(weights);

    /* a weight that no f32 addition of 1 makes */
    gemma_model(&f, type_named("Q5_0"), w);
    memcpy(f.data.data + f.data.n - 4, &(float){1e-10f}, 4);
    refuse(&f, "tensor blk.0.attn_k_norm.weight: element 63 (1.00000001e-10) is not 1 + w");
}

/* ---- llama config ---- */

static void test_llama_config(void **state)
{
    gm_file f;
    llama_model(&f, type_named("Q4_1"));
    import_ok(&f);
    json_t *c = json_of("config.json"), *gen = json_of("generation_config.json");
    want_text(c, "model_type", "llama");
    want_text(json_array_size(json_object_get(c, "architectures")) ? c : NULL, "hidden_act", "silu");
    want_int(c, "hidden_size", GM_HIDDEN);
    want_int(c, "intermediate_size", GM_FF);
    want_int(c, "num_hidden_layers", 1);
    want_int(c, "num_attention_heads", GM_HEADS);
    want_int(c, "num_key_value_heads", GM_KV);
    want_int(c, "head_dim", GM_D);
    want_int(c, "vocab_size", GM_VOCAB);
    want_int(c, "max_position_embeddings", 1024);
    want_int(c, "bos_token_id", 2);
    want_int(gen, "pad_token_id", 0);
    assert_true(json_is_true(json_object_get(c, "tie_word_embeddings")));
    assert_true(json_is_null(json_object_get(c, "rope_scaling")));
    const json_t *q = json_object_get(c, "quantization");
    want_int(q, "bits", 4);
    want_int(q, "group_size", 32);
    want_text(q, "mode", "affine");
    assert_int_equal(json_object_size(q), 3);
    json_decref(c);
    json_decref(gen);
    char *text;
    size_t n;
    cb_err err = {0};
    assert_int_equal(cb_file_read(out_path, "chat_template.jinja", 1000, &text, &n, &err), 0);
    assert_string_equal(text, "{{ bos_token }}{{ messages[0].content }}");
    cb_free(text);
    assert_int_equal(tmp_count(out_path), 6);

    /* an 8-bit head of its own beside 4-bit matrices, Llama 3 scaling, sampling defaults */
    llama_model(&f, type_named("Q4_0"));
    uint8_t *head = cb_alloc(GM_VOCAB * 8 * 34);
    float freqs[GM_D / 2];
    for (int i = 0; i < GM_D / 2; i++) {
        double wave = 2 * M_PI * pow(500000, 2.0 * i / GM_D), s = (8192 / wave - 1) / 3;
        freqs[i] = (float)(wave < 2048 ? 1 : wave > 8192 ? 32 : 1 / ((1 - s) / 32 + s));
    }
    gm_tensor(&f, "output.weight", 8, GM_HIDDEN, GM_VOCAB, head, GM_VOCAB * 8 * 34);
    gm_tensor(&f, "rope_freqs.weight", 0, GM_D / 2, 0, freqs, sizeof freqs);
    gm_kv_f32(&f, "general.sampling.top_p", 0.95f);
    gm_kv_u32(&f, "general.sampling.top_k", 64);
    import_ok(&f);
    c = json_of("config.json"), gen = json_of("generation_config.json");
    assert_true(json_is_false(json_object_get(c, "tie_word_embeddings")));
    want_int(json_object_get(json_object_get(c, "quantization"), "lm_head"), "bits", 8);
    want_text(json_object_get(c, "rope_scaling"), "rope_type", "llama3");
    want_real(json_object_get(c, "rope_scaling"), "factor", 32);
    want_real(gen, "top_p", 0.95);
    want_int(gen, "top_k", 64);
    json_decref(c);
    json_decref(gen);
    freqs[3] *= 1.01f;
    llama_model(&f, type_named("Q4_0"));
    gm_tensor(&f, "rope_freqs.weight", 0, GM_D / 2, 0, freqs, sizeof freqs);
    refuse(&f, "tensor rope_freqs.weight is not the Llama 3 scaling");
    cb_free(head);
}

/* ---- refusals ---- */

static void without(gm_file *f, const char *arch)
{
    gm_begin(f);
    gm_hparams(f, arch);
    gm_vocab(f);
}

static void test_refusals(void **state)
{
    gm_file f;
    uint8_t *raw[GM_N_MATRICES];
    gm_rng r = {1};
    float v[GM_HIDDEN] = {0};
    const gm_type *q8 = type_named("Q8_0");
    without(&f, "mamba"), refuse(&f, "architecture mamba is not supported");
    gm_begin(&f), gm_vocab(&f), refuse(&f, "key general.architecture is missing");
    gm_begin(&f), gm_kv_u32(&f, "general.architecture", 1), refuse(&f, "key general.architecture is u32, not a string");
    gm_begin(&f), gm_kv_text(&f, "general.architecture", "llama"), refuse(&f, "key llama.embedding_length is missing");
    without(&f, "llama"), refuse(&f, "tensor token_embd.weight is missing");
    without(&f, "llama"), gm_random_matrices(&f, q8, &r, raw), free_raw(raw), refuse(&f, "tensor blk.0.attn_norm.weight is missing");
    llama_model(&f, q8), gm_norm(&f, "blk.0.attn_q.bias", GM_HIDDEN, v), refuse(&f, "tensor blk.0.attn_q.bias is not part of architecture llama");
    llama_model(&f, q8), gm_norm(&f, "blk.1.attn_norm.weight", GM_HIDDEN, v), refuse(&f, "tensor blk.1.attn_norm.weight is not part");
    llama_model(&f, q8), gm_kv_u32(&f, "llama.expert_count", 8), refuse(&f, "key llama.expert_count: mixtures of experts");
    llama_model(&f, q8), gm_kv_u32(&f, "llama.attention.key_length", 128), refuse(&f, "is [256,256], the keys imply [512,256]");
    llama_model(&f, q8), gm_kv_u32(&f, "llama.attention.value_length", 128), refuse(&f, "key llama.attention.value_length is 128");
    llama_model(&f, q8), gm_kv_u32(&f, "llama.rope.dimension_count", 32), refuse(&f, "partial rotation of heads of 64");
    llama_model(&f, q8), gm_kv_text(&f, "llama.rope.scaling.type", "yarn"), refuse(&f, "key llama.rope.scaling.type: RoPE scaling yarn");
    llama_model(&f, q8), gm_kv_u32(&f, "tokenizer.ggml.eot_token_id", 999), refuse(&f, "key tokenizer.ggml.eot_token_id is 999");
    /* the last norm: NaN */
    llama_model(&f, q8), memcpy(f.data.data + f.data.n - 4, &(float){NAN}, 4), refuse(&f, "tensor output_norm.weight: element 255 is not finite");
    /* the first block of the embedding: an infinite scale */
    llama_model(&f, q8), memcpy(f.data.data, "\0\x7c", 2), refuse(&f, "tensor token_embd.weight: block 0 has a scale that is not finite");
    /* quantised norms do not exist */
    without(&f, "llama"), gm_random_matrices(&f, q8, &r, raw);
    gm_tensor(&f, "blk.0.attn_norm.weight", 8, GM_HIDDEN, 0, raw[0], GM_HIDDEN / 32 * 34), free_raw(raw);
    refuse(&f, "tensor blk.0.attn_norm.weight: a vector of type Q8_0 is not supported");
    /* fewer or more tokens than rows */
    gm_begin(&f), gm_hparams(&f, "llama"), gm_kv_array(&f, "tokenizer.ggml.tokens", 8, 0), gm_random_matrices(&f, q8, &r, raw), free_raw(raw), llama_norms(&f);
    refuse(&f, "key tokenizer.ggml.tokens has 0 tokens, the embedding has 262 rows");
}

/* ---- the output ---- */

static void kill_me(void *ctx, const char *what, uint64_t done, uint64_t total) { raise(SIGKILL); }

static void test_output(void **state)
{
    gm_file f;
    cb_err err = {0};
    char path[128];
    llama_model(&f, type_named("Q4_1"));
    write_file(&f);
    tmp_remove(out_path);

    /* an existing folder with something in it, and a file, stay as they are; an empty folder is taken */
    mkdir(out_path, 0777);
    tmp_text(out_path, "mine", "");
    assert_int_equal(cb_import_gguf(in_path, out_path, NULL, NULL, &err), CB_EUSAGE);
    assert_int_equal(tmp_count(out_path), 1);
    assert_int_equal(tmp_count(work), 2);
    assert_int_equal(cb_import_gguf(in_path, in_path, NULL, NULL, &err), CB_EUSAGE);
    unlink(tmp_path(out_path, "mine"));
    assert_int_equal(cb_import_gguf(in_path, out_path, NULL, NULL, &err), 0);
    assert_int_equal(tmp_count(out_path), 6);
    assert_int_equal(tmp_count(work), 2);
    tmp_remove(out_path);

    snprintf(path, sizeof path, "%s/no/such/out", work);
    assert_int_equal(cb_import_gguf(in_path, path, NULL, NULL, &err), CB_EIO);
    assert_int_equal(cb_import_gguf(in_path, "/proc/out", NULL, NULL, &err), CB_EIO);
    snprintf(path, sizeof path, "%s/none.gguf", work);
    assert_int_equal(cb_import_gguf(path, out_path, NULL, NULL, &err), CB_ENOTFOUND);
    assert_int_equal(tmp_count(work), 1);

    /* a write that fails half-way, at every size of what fits */
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, SIG_IGN);
    for (rlim_t max = 0; max < 300000; max += 40000) {
        small = (struct rlimit){max, old.rlim_max};
        setrlimit(RLIMIT_FSIZE, &small);
        int rc = cb_import_gguf(in_path, out_path, NULL, NULL, &err);
        setrlimit(RLIMIT_FSIZE, &old);
        assert_int_equal(rc, CB_EIO);
        assert_int_equal(tmp_count(work), 1);
    }
}

/* Killed in the middle: the name stays free, and the next run takes away what is left; another's folder is not touched. */
static void test_killed(void **state)
{
    gm_file f;
    cb_err err = {0};
    char other[128];
    llama_model(&f, type_named("F32"));
    write_file(&f);
    tmp_remove(out_path);
    pid_t child = fork();
    if (child == 0) {
        cb_import_gguf(in_path, out_path, kill_me, NULL, &err);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_int_not_equal(access(out_path, F_OK), 0);
    assert_int_equal(tmp_count(work), 2);
    snprintf(other, sizeof other, "%s.partial.%d", out_path, (int)getppid());
    assert_int_equal(mkdir(other, 0777), 0);
    assert_int_equal(cb_import_gguf(in_path, out_path, NULL, NULL, &err), 0);
    assert_int_equal(tmp_count(out_path), 6);
    assert_int_equal(tmp_count(work), 3); /* file, checkpoint, and the folder of a process that lives */
    rmdir(other);
}

typedef struct seen {
    uint64_t done, total;
    int calls;
} seen;
static void watch(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    seen *s = ctx;
    assert_true(done >= s->done && done <= total && *what);
    *s = (seen){done, total, s->calls + 1};
}

static void test_progress(void **state)
{
    gm_file f;
    cb_err err = {0};
    seen s = {0};
    cb_weights *w;
    llama_model(&f, type_named("F32"));
    write_file(&f);
    tmp_remove(out_path);
    assert_int_equal(cb_import_gguf(in_path, out_path, watch, &s, &err), 0);
    assert_true(s.calls >= 1 && s.done == s.total);
    assert_int_equal(cb_weights_open(out_path, &w, &err), 0);
    uint64_t bytes = 0;
    for (int i = 0; i < cb_weights_count(w); i++) bytes += cb_weights_at(w, i)->bytes;
    assert_int_equal(bytes, s.total);
    cb_weights_close(w);
}

/* Each allocation fails once: no leak (ASan), nothing left behind. */
static void test_no_memory(void **state)
{
    gm_file f;
    cb_err err = {0};
    llama_model(&f, type_named("Q4_K"));
    write_file(&f);
    tmp_remove(out_path);
    for (uint64_t k = 1;; k += k < 40 ? 1 : 7) {
        cb_alloc_fail_at(k);
        int rc = cb_import_gguf(in_path, out_path, NULL, NULL, &err);
        cb_alloc_fail_at(0);
        if (rc == 0) break;
        if (rc != CB_ENOMEM) fail_msg("allocation %d: %d, %s", (int)k, rc, err.text);
        assert_int_equal(tmp_count(work), 1);
    }
    assert_int_equal(tmp_count(out_path), 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),       cmocka_unit_test(test_scale_dtype), cmocka_unit_test(test_small_q6k),
        cmocka_unit_test(test_gemma3),       cmocka_unit_test(test_llama_config), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_output),       cmocka_unit_test(test_killed),      cmocka_unit_test(test_progress),    cmocka_unit_test(test_no_memory)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
