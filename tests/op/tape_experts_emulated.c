/* tape_experts_emulated.c: layers of experts in parts of a step whose launch stays (cuda/tape_experts.cuh) give the CPU's bits, without a GPU
 * (tests/cuda/emulate). Small checkpoints of random weights, gated delta nets and attention, rows of whole warps' width; with rows that have remainders; in
 * two sessions whose rows take turns. And that they are run so: a step has few launches. */
#include "../support/emulated.h"
#include "../support/tmpdir.h"
#include "base/mem.h"
#include "io/dtype.h"
#include "io/safetensors.h"

enum { VOCAB = 272, STEPS = 3, SESSIONS = 2, CTX = 128, CHUNK = 5, K_HEADS = 8, V_HEADS = 16, DK = 32, DV = 32, HEADS = 4, KV_HEADS = 2 };

typedef struct shape {
    const char *name;
    int hidden, experts, chosen, width, layers, interval, dim, processors, most_launches; /* dim: of a head; tapes know attention of 256 */
    bool towers;             /* one number of each norm is large: remainders */
} shape;

static const shape shapes[] = {
    {"4 of 16 experts", 256, 16, 4, 256, 3, 2, 64, 5, 9, false},
    {"4 of 16 experts, remainders", 256, 16, 4, 256, 2, 2, 64, 5, 9, true},
    {"8 of 40 experts, all in one launch", 512, 40, 8, 512, 2, 2, 256, 16, 5, true},
};

static uint64_t random_state;
static uint32_t next(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33);
}

typedef struct writer {
    cb_st_writer *w;
    const shape *s;
    char layer[32];
    bool data;               /* else tensors are declared */
} writer;

/* A tensor of up to three dimensions. */
static void tensor(writer *w, const char *name, cb_dtype t, int64_t a, int64_t b, int64_t c, float about, float spread)
{
    char full[160];
    int64_t dims[3] = {a, b, c};
    snprintf(full, sizeof full, "language_model.%s%s", w->layer, name);
    if (!w->data) {
        assert_int_equal(cb_st_writer_declare(w->w, full, t, dims, c ? 3 : b ? 2 : 1, NULL), 0);
        return;
    }
    size_t n = (size_t)(a * (b ? b : 1) * (c ? c : 1)), size = t == CB_U32 || t == CB_F32 ? 4 : 2;
    bool large = w->s->towers && t == CB_BF16 && strstr(name, "shared_expert.up_proj"); /* one unit of the shared expert */
    uint8_t *data = malloc(n * size);
    for (size_t i = 0; i < n; i++) {
        float v = about + spread * ((float)(next() % 2001) / 1000 - 1);
        if (large && (int64_t)i / b == 3) v *= 64;
        uint32_t code = next() ^ next() << 16;
        uint16_t h = cb_f32_to_bf16(v);
        memcpy(data + i * size, t == CB_U32 ? (void *)&code : t == CB_F32 ? (void *)&v : (void *)&h, size);
    }
    assert_int_equal(cb_st_writer_put(w->w, data, n * size, NULL), 0);
    free(data);
}

static void matrix(writer *w, const char *name, int stack, int rows, int cols, int bits)
{
    static const char *const parts[] = {"weight", "scales", "biases"};
    float scale = bits == 8 ? 0.002f : 0.02f;
    for (int k = 0; k < 3; k++) {
        char full[96];
        int last = k ? cols / 64 : cols * bits / 32;
        snprintf(full, sizeof full, "%s.%s", name, parts[k]);
        tensor(w, full, k ? CB_BF16 : CB_U32, stack ? stack : rows, stack ? rows : last, stack ? last : 0, k == 1 ? scale : -scale * (float)((1 << bits) - 1) / 2, scale / 4);
    }
}

static void norm(writer *w, const char *name, int n)
{
    char full[128];
    snprintf(full, sizeof full, "language_model.%s%s.weight", w->layer, name);
    if (!w->data) {
        assert_int_equal(cb_st_writer_declare(w->w, full, CB_BF16, (int64_t[]){n}, 1, NULL), 0);
        return;
    }
    uint16_t *v = malloc(2 * (size_t)n);
    for (int i = 0; i < n; i++) v[i] = cb_f32_to_bf16(1 + (float)(next() % 100) / 1000);
    if (w->s->towers && n == w->s->hidden) v[next() % (uint32_t)n] = cb_f32_to_bf16(70);
    assert_int_equal(cb_st_writer_put(w->w, v, 2 * (size_t)n, NULL), 0);
    free(v);
}

static bool is_full(const shape *s, int layer) { return (layer + 1) % s->interval == 0; }

static void all_tensors(writer *w)
{
    const shape *s = w->s;
    int keys = K_HEADS * DK, values = V_HEADS * DV;
    snprintf(w->layer, sizeof w->layer, "model.");
    matrix(w, "embed_tokens", 0, VOCAB, s->hidden, 4);
    for (int l = 0; l < s->layers; l++) {
        snprintf(w->layer, sizeof w->layer, "model.layers.%d.", l);
        norm(w, "input_layernorm", s->hidden);
        if (is_full(s, l)) {
            matrix(w, "self_attn.q_proj", 0, 2 * HEADS * s->dim, s->hidden, 4);
            matrix(w, "self_attn.k_proj", 0, KV_HEADS * s->dim, s->hidden, 4);
            matrix(w, "self_attn.v_proj", 0, KV_HEADS * s->dim, s->hidden, 4);
            norm(w, "self_attn.q_norm", s->dim);
            norm(w, "self_attn.k_norm", s->dim);
            matrix(w, "self_attn.o_proj", 0, s->hidden, HEADS * s->dim, 4);
        } else {
            matrix(w, "linear_attn.in_proj_qkv", 0, 2 * keys + values, s->hidden, 4);
            matrix(w, "linear_attn.in_proj_z", 0, values, s->hidden, 4);
            matrix(w, "linear_attn.in_proj_b", 0, V_HEADS, s->hidden, 4);
            matrix(w, "linear_attn.in_proj_a", 0, V_HEADS, s->hidden, 4);
            tensor(w, "linear_attn.conv1d.weight", CB_BF16, 2 * keys + values, 4, 1, 0.3f, 0.2f);
            tensor(w, "linear_attn.A_log", CB_F32, V_HEADS, 0, 0, 0, 1);
            tensor(w, "linear_attn.dt_bias", CB_BF16, V_HEADS, 0, 0, 0, 1);
            norm(w, "linear_attn.norm", DV);
            matrix(w, "linear_attn.out_proj", 0, s->hidden, values, 4);
        }
        norm(w, "post_attention_layernorm", s->hidden);
        matrix(w, "mlp.gate", 0, s->experts, s->hidden, 8);
        matrix(w, "mlp.shared_expert_gate", 0, 1, s->hidden, 8);
        matrix(w, "mlp.shared_expert.gate_proj", 0, s->width, s->hidden, 4);
        matrix(w, "mlp.shared_expert.up_proj", 0, s->width, s->hidden, 4);
        matrix(w, "mlp.shared_expert.down_proj", 0, s->hidden, s->width, 4);
        matrix(w, "mlp.switch_mlp.gate_proj", s->experts, s->width, s->hidden, 4);
        matrix(w, "mlp.switch_mlp.up_proj", s->experts, s->width, s->hidden, 4);
        matrix(w, "mlp.switch_mlp.down_proj", s->experts, s->hidden, s->width, 4);
    }
    snprintf(w->layer, sizeof w->layer, "model.");
    norm(w, "norm", s->hidden);
    w->layer[0] = 0;
    matrix(w, "lm_head", 0, VOCAB, s->hidden, 4);
}

static void write_checkpoint(const shape *s, const char *dir)
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
                  s->hidden, s->layers, HEADS, KV_HEADS, s->dim, VOCAB, s->interval, K_HEADS, V_HEADS, DK, DV, s->experts, s->chosen, s->width, s->width);
    assert_true(n < (int)sizeof config);
    tmp_put(dir, "config.json", config, (size_t)n);
    random_state = (uint64_t)s->hidden * 77 + (uint64_t)s->experts;
    writer w = {.s = s};
    assert_int_equal(cb_st_writer_open(tmp_path(dir, "model.safetensors"), &w.w, NULL), 0);
    all_tensors(&w);
    assert_int_equal(cb_st_writer_begin(w.w, NULL), 0);
    w.data = true;
    all_tensors(&w);
    assert_int_equal(cb_st_writer_commit(w.w, NULL), 0);
}

static uint64_t launches(void)
{
    fake_counts c;
    __typeof__(&fake_count) count;
    *(void **)&count = dlsym(emulated.lib, "fake_count");
    count(&c);
    return c.n_launch;
}

/* Logits of single rows of two sessions, between them of a chunk; *most: launches that a new graph of a single row has. */
static uint64_t hash_of(const char *dir, const char *device, uint64_t *most)
{
    cb_engine *e;
    cb_err err = {0};
    if (cb_engine_open(dir, &(cb_engine_opts){.device = device, .ctx_size = CTX, .max_rows = CHUNK, .max_sessions = SESSIONS, .n_threads = 1}, &e, &err) < 0) fail_msg("%s", err.text);
    cb_session *s[SESSIONS];
    float *logits = malloc(VOCAB * 4);
    te_hasher h = te_hash_start();
    *most = 0;
    for (int k = 0; k < SESSIONS; k++) assert_int_equal(cb_session_open(e, &s[k], NULL), 0);
    for (int i = 0; i < STEPS; i++)
        for (int k = 0; k < SESSIONS; k++) {
            int n = i == 1 ? CHUNK : 1;
            cb_row rows[CHUNK];
            uint64_t before = !strcmp(device, "cuda") ? launches() : 0;
            for (int j = 0; j < n; j++) rows[j] = (cb_row){s[k], te_token(k, i + 31 * j, VOCAB), j == n - 1};
            if (cb_step(e, rows, n, logits, &err) < 0) fail_msg("%s", err.text);
            uint64_t now = !strcmp(device, "cuda") ? launches() - before : 0;
            if (n == 1 && now > *most) *most = now;
            te_hash_row(&h, logits, VOCAB);
        }
    free(logits);
    for (int k = 0; k < SESSIONS; k++) cb_session_close(s[k]);
    cb_engine_close(e);
    return h.h;
}

static void test_shapes(void **state)
{
    (void)state;
    if (!emulated.lib) skip();
    const char *only = getenv("CB_TEST_ONLY");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        char dir[64], processors[32];
        uint64_t most;
        if (only && !strstr(shapes[i].name, only)) continue;
        write_checkpoint(&shapes[i], tmp_dir(dir));
        snprintf(processors, sizeof processors, "processors=%d", shapes[i].processors);
        emulated_tell(processors);
        uint64_t cpu = hash_of(dir, "cpu", &most), gpu = hash_of(dir, "cuda", &most);
        tmp_remove(dir);
        if (cpu != gpu) fail_msg("%s: %016llx, the CPU has %016llx", shapes[i].name, (unsigned long long)gpu, (unsigned long long)cpu);
        if (most > (uint64_t)shapes[i].most_launches) fail_msg("%s: a step of %llu launches", shapes[i].name, (unsigned long long)most);
    }
}

static void test_backwards(void **state) { emulated_backwards(test_shapes, state); }

int main(void)
{
    emulated_open();
    setenv("CB_CUDA_TAPE", "on", 1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shapes), cmocka_unit_test(test_backwards)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
