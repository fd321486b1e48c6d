/* small_emulated.c: steps of one row of a small model by one cluster (cuda/small.cu) give the CPU's bits, without a GPU (tests/cuda/emulate). Small
 * checkpoints of random weights with heads of 64 dims, in several formats, with rows that have remainders; at positions around the ends of blocks of keys,
 * in two sessions whose rows take turns. And that they are run so: a step has few launches. */
#include "../support/emulated.h"
#include "../support/random.h"
#include "../support/tmpdir.h"
#include "base/mem.h"
#include "io/dtype.h"
#include "io/safetensors.h"

enum { VOCAB = 272, PROMPT = 125, STEPS = 5, SESSIONS = 2, CTX = 192 };

typedef struct shape {
    const char *name;
    int hidden, heads, kv_heads, ffn, layers, group;
    cb_dtype scales;
    bool towers;             /* one number of each norm is large: remainders */
} shape;

static const shape shapes[] = {
    {"g32 bf16", 192, 3, 1, 384, 2, 32, CB_BF16, false},
    {"g32 f16, groups of eight segments and more, remainders", 576, 9, 3, 640, 1, 32, CB_F16, true},
    {"g64 bf16, more heads than thread blocks", 128, 18, 6, 192, 1, 64, CB_BF16, true},
};

static uint16_t half_of(cb_dtype t, float v) { return t == CB_F16 ? cb_f32_to_f16(v) : cb_f32_to_bf16(v); }

/* A tensor that is declared (pass 0) or written (pass 1). */
static void tensor(cb_st_writer *w, int pass, const char *layer, const char *name, cb_dtype t, int64_t rows, int64_t cols, float about, float spread)
{
    char full[128];
    int64_t dims[2] = {rows, cols};
    snprintf(full, sizeof full, "model.%s%s", layer, name);
    if (!pass) {
        assert_int_equal(cb_st_writer_declare(w, full, t, dims, cols ? 2 : 1, NULL), 0);
        return;
    }
    size_t n = (size_t)(rows * (cols ? cols : 1)), size = t == CB_U32 || t == CB_F32 ? 4 : 2;
    uint8_t *data = malloc(n * size);
    for (size_t i = 0; i < n; i++) {
        float v = about + spread * ((float)(rnd() % 2001) / 1000 - 1);
        uint32_t code = rnd() ^ rnd() << 16;
        uint16_t h = half_of(t, v);
        memcpy(data + i * size, t == CB_U32 ? (void *)&code : t == CB_F32 ? (void *)&v : (void *)&h, size);
    }
    assert_int_equal(cb_st_writer_put(w, data, n * size, NULL), 0);
    free(data);
}

static void matrix(cb_st_writer *w, int pass, const shape *s, const char *layer, const char *name, int rows, int cols)
{
    static const char *const parts[] = {"weight", "scales", "biases"};
    for (int k = 0; k < 3; k++) {
        char full[96];
        snprintf(full, sizeof full, "%s.%s", name, parts[k]);
        if (k == 0) tensor(w, pass, layer, full, CB_U32, rows, cols / 8, 0, 0);
        else tensor(w, pass, layer, full, s->scales, rows, cols / s->group, k == 1 ? 0.02f : -0.15f, 0.01f);
    }
}

static void norm(cb_st_writer *w, int pass, const shape *s, const char *layer, const char *name)
{
    char full[128];
    int64_t dims[1] = {s->hidden};
    snprintf(full, sizeof full, "model.%s%s.weight", layer, name);
    if (!pass) {
        assert_int_equal(cb_st_writer_declare(w, full, CB_F32, dims, 1, NULL), 0);
        return;
    }
    float *v = malloc(4 * (size_t)s->hidden);
    for (int i = 0; i < s->hidden; i++) v[i] = 1 + (float)(rnd() % 100) / 1000;
    if (s->towers) v[rnd() % (uint32_t)s->hidden] = 70;
    assert_int_equal(cb_st_writer_put(w, v, 4 * (size_t)s->hidden, NULL), 0);
    free(v);
}

static void all_tensors(cb_st_writer *w, int pass, const shape *s)
{
    matrix(w, pass, s, "", "embed_tokens", VOCAB, s->hidden);
    for (int l = 0; l < s->layers; l++) {
        char layer[32];
        snprintf(layer, sizeof layer, "layers.%d.", l);
        norm(w, pass, s, layer, "input_layernorm");
        matrix(w, pass, s, layer, "self_attn.q_proj", s->heads * 64, s->hidden);
        matrix(w, pass, s, layer, "self_attn.k_proj", s->kv_heads * 64, s->hidden);
        matrix(w, pass, s, layer, "self_attn.v_proj", s->kv_heads * 64, s->hidden);
        matrix(w, pass, s, layer, "self_attn.o_proj", s->hidden, s->heads * 64);
        norm(w, pass, s, layer, "post_attention_layernorm");
        matrix(w, pass, s, layer, "mlp.gate_proj", s->ffn, s->hidden);
        matrix(w, pass, s, layer, "mlp.up_proj", s->ffn, s->hidden);
        matrix(w, pass, s, layer, "mlp.down_proj", s->hidden, s->ffn);
    }
    norm(w, pass, s, "", "norm");
}

static void write_checkpoint(const shape *s, const char *dir)
{
    char config[1024];
    cb_st_writer *w;
    int n = snprintf(config, sizeof config,
                     "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": %d, \"intermediate_size\": %d, \"num_attention_heads\": %d,"
                     "\"num_key_value_heads\": %d, \"head_dim\": 64, \"num_hidden_layers\": %d, \"vocab_size\": %d, \"max_position_embeddings\": 512, \"rms_norm_eps\": 1e-5,"
                     "\"rope_theta\": 10000.0, \"tie_word_embeddings\": true, \"quantization\": {\"bits\": 4, \"group_size\": %d, \"mode\": \"affine\"}}",
                     s->hidden, s->ffn, s->heads, s->kv_heads, s->layers, VOCAB, s->group);
    tmp_put(dir, "config.json", config, (size_t)n);
    random_state = (uint64_t)s->hidden * 77 + (uint64_t)s->group;
    assert_int_equal(cb_st_writer_open(tmp_path(dir, "model.safetensors"), &w, NULL), 0);
    all_tensors(w, 0, s);
    assert_int_equal(cb_st_writer_begin(w, NULL), 0);
    all_tensors(w, 1, s);
    assert_int_equal(cb_st_writer_commit(w, NULL), 0);
}

/* Logits of single rows of two sessions behind a prompt; *most: launches that a new graph of such a step has. */
static uint64_t hash_of(const char *dir, const char *device, bool first, uint64_t *most)
{
    cb_engine *e;
    cb_err err = {0};
    if (cb_engine_open(dir, &(cb_engine_opts){.device = device, .ctx_size = CTX, .max_rows = PROMPT, .max_sessions = SESSIONS, .n_threads = 1}, &e, &err) < 0) fail_msg("%s", err.text);
    cb_session *s[SESSIONS];
    cb_row rows[PROMPT];
    float *logits = malloc(VOCAB * 4);
    te_hasher h = te_hash_start();
    *most = 0;
    for (int k = 0; k < SESSIONS; k++) {
        assert_int_equal(cb_session_open(e, &s[k], NULL), 0);
        if (first) continue;
        for (int i = 0; i < PROMPT; i++) rows[i] = (cb_row){s[k], te_token(k, i, VOCAB), 0};
        assert_int_equal(cb_step(e, rows, PROMPT, logits, &err), 0);
    }
    for (int i = 0; i < STEPS; i++)
        for (int k = 0; k < SESSIONS; k++) {
            uint64_t before = *device == 'c' && device[1] == 'u' ? emulated_launches() : 0;
            if (cb_step(e, &(cb_row){s[k], te_token(k, PROMPT + i, VOCAB), 1}, 1, logits, &err) < 0) fail_msg("%s", err.text);
            uint64_t now = *device == 'c' && device[1] == 'u' ? emulated_launches() - before : 0;
            if (now > *most) *most = now;
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
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int first = 0; first < 2; first++) {
            char dir[64];
            uint64_t most;
            write_checkpoint(&shapes[i], tmp_dir(dir));
            uint64_t cpu = hash_of(dir, "cpu", first, &most), gpu = hash_of(dir, "cuda", first, &most);
            tmp_remove(dir);
            if (cpu != gpu) fail_msg("%s, %s: %016llx, the CPU has %016llx", shapes[i].name, first ? "first tokens" : "behind a prompt", (unsigned long long)gpu, (unsigned long long)cpu);
            if (most > 3) fail_msg("%s: a step of %llu launches", shapes[i].name, (unsigned long long)most);
        }
}

static void test_off(void **state)
{
    (void)state;
    if (!emulated.lib) skip();
    char dir[64];
    uint64_t most;
    setenv("CB_CUDA_SMALL", "off", 1);
    write_checkpoint(&shapes[0], tmp_dir(dir));
    hash_of(dir, "cuda", true, &most);
    unsetenv("CB_CUDA_SMALL");
    tmp_remove(dir);
    assert_true(most > 10);
}

static void test_backwards(void **state) { emulated_backwards(test_shapes, state); }

int main(void)
{
    emulated_open();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shapes), cmocka_unit_test(test_off), cmocka_unit_test(test_backwards)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
