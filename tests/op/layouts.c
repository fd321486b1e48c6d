/* layouts.c: one network in every spelling of its files. Tiny checkpoints are written anew with other names, other axes, norms
 * with and without the 1, with the tensors of a vision or audio tower and of a draft head beside them, in one file or two; the
 * logits must keep their bits. A tensor that has no place must be refused by name. */
#include "../support/engine.h"
#include "../support/tmpdir.h"
#include "base/file.h"
#include "base/mem.h"
#include "io/safetensors.h"

enum { N_TOKENS = 40 };

typedef struct extra {
    const char *name;
    cb_dtype t;
    int64_t dims[4]; /* ends with 0 */
} extra;

/* How a checkpoint is to be written. */
typedef struct spelling {
    const char *from, *to;   /* start of names, replaced */
    int conv_last;           /* 1: [C,4,1], 4: [C,1,4], 0: as it is */
    float norm_shift;        /* added to the norms that Qwen 3.5 centres on 0; they become F32 */
    const extra *extras;     /* ends with a NULL name */
    bool two_files;          /* extras in a second shard, and an index */
} spelling;

static char dir[64];

static bool is_shifted_norm(const char *name)
{
    static const char *const ends[] = {"input_layernorm.weight", "post_attention_layernorm.weight", "q_norm.weight", "k_norm.weight", ".norm.weight"};
    size_t n = strlen(name);
    if (strstr(name, "linear_attn.norm")) return false;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (n >= strlen(ends[i]) && !strcmp(name + n - strlen(ends[i]), ends[i])) return true;
    return false;
}

static bool is_conv(const char *name) { return strstr(name, "conv1d.weight") != NULL; }

static const char *new_name(const spelling *s, const char *name, char *buf, size_t cap)
{
    if (!s->from || strncmp(name, s->from, strlen(s->from))) return name;
    snprintf(buf, cap, "%s%s", s->to, name + strlen(s->from));
    return buf;
}

static void declare(cb_st_writer *o, const spelling *s, const cb_tensor *t)
{
    char buf[512];
    int64_t dims[CB_MAX_DIMS];
    memcpy(dims, t->dims, sizeof dims);
    if (is_conv(t->name) && s->conv_last) {
        int64_t taps = dims[1] * dims[2];
        dims[1] = s->conv_last == 1 ? taps : 1;
        dims[2] = s->conv_last == 1 ? 1 : taps;
    }
    bool shift = s->norm_shift != 0 && is_shifted_norm(t->name);
    assert_int_equal(cb_st_writer_declare(o, new_name(s, t->name, buf, sizeof buf), shift ? CB_F32 : t->dtype, dims, t->n_dims, NULL), 0);
}

static void put(cb_st_writer *o, const spelling *s, const cb_tensor *t)
{
    if (s->norm_shift == 0 || !is_shifted_norm(t->name)) {
        assert_int_equal(cb_st_writer_put(o, t->data, t->bytes, NULL), 0);
        return;
    }
    for (int64_t i = 0; i < t->dims[0]; i++) {
        float v = cb_load_float(t->data, t->dtype, (size_t)i) + s->norm_shift;
        assert_int_equal(cb_st_writer_put(o, &v, 4, NULL), 0);
    }
}

static void declare_extras(cb_st_writer *o, const extra *x)
{
    for (; x && x->name; x++) {
        int n = 0;
        while (n < 4 && x->dims[n]) n++;
        assert_int_equal(cb_st_writer_declare(o, x->name, x->t, x->dims, n, NULL), 0);
    }
}

static void put_extras(cb_st_writer *o, const extra *x)
{
    static const uint8_t noise[64] = {0x7f, 0xc0, 0xff, 1, 2, 3}; /* NaNs among them: nobody may look */
    for (; x && x->name; x++) {
        size_t n = cb_dtype_size(x->t);
        for (int i = 0; i < 4 && x->dims[i]; i++) n *= (size_t)x->dims[i];
        for (size_t k = 0; k < n; k += sizeof noise) assert_int_equal(cb_st_writer_put(o, noise, n - k < sizeof noise ? n - k : sizeof noise, NULL), 0);
    }
}

static void write_index(const cb_weights *w, const spelling *s)
{
    char buf[512];
    cb_buf b;
    cb_buf_init(&b, 0);
    cb_buf_puts(&b, "{\"weight_map\":{");
    for (int i = 0; i < cb_weights_count(w); i++)
        cb_buf_printf(&b, "\"%s\":\"model-00001-of-00002.safetensors\",", new_name(s, cb_weights_at(w, i)->name, buf, sizeof buf));
    for (const extra *x = s->extras; x->name; x++)
        cb_buf_printf(&b, "\"%s\":\"model-00002-of-00002.safetensors\"%s", x->name, x[1].name ? "," : "}}");
    tmp_put(dir, "model.safetensors.index.json", b.data, b.n);
    cb_buf_fini(&b);
}

static void write_weights(const char *source, const spelling *s)
{
    cb_weights *w;
    cb_st_writer *o;
    cb_err err = {0};
    if (cb_weights_open(source, &w, &err) < 0) fail_msg("%s", err.text);
    const char *first = s->two_files ? "model-00001-of-00002.safetensors" : "model.safetensors";
    assert_int_equal(cb_st_writer_open(tmp_path(dir, first), &o, &err), 0);
    for (int i = 0; i < cb_weights_count(w); i++) declare(o, s, cb_weights_at(w, i));
    if (!s->two_files) declare_extras(o, s->extras);
    assert_int_equal(cb_st_writer_begin(o, &err), 0);
    for (int i = 0; i < cb_weights_count(w); i++) put(o, s, cb_weights_at(w, i));
    if (!s->two_files) put_extras(o, s->extras);
    if (cb_st_writer_commit(o, &err) < 0) fail_msg("%s", err.text);
    if (s->two_files) {
        assert_int_equal(cb_st_writer_open(tmp_path(dir, "model-00002-of-00002.safetensors"), &o, &err), 0);
        declare_extras(o, s->extras);
        assert_int_equal(cb_st_writer_begin(o, &err), 0);
        put_extras(o, s->extras);
        assert_int_equal(cb_st_writer_commit(o, &err), 0);
        write_index(w, s);
    }
    cb_weights_close(w);
}

/* config.json with what a model that sees has in it, and a pack's hadamard.json. */
static void copy_configs(const char *source)
{
    char *text;
    size_t n;
    cb_buf b;
    cb_buf_init(&b, 0);
    assert_int_equal(cb_file_read(source, "config.json", 1 << 20, &text, &n, NULL), 0);
    cb_buf_puts(&b, "{\"vision_config\":{\"depth\":2,\"hidden_size\":8,\"model_type\":\"tower\"},\"image_token_id\":7,");
    cb_buf_puts(&b, strchr(text, '{') + 1);
    tmp_put(dir, "config.json", b.data, b.n);
    cb_buf_fini(&b);
    cb_free(text);
    if (!cb_file_exists(source, "hadamard.json")) return;
    assert_int_equal(cb_file_read(source, "hadamard.json", 1 << 20, &text, &n, NULL), 0);
    tmp_put(dir, "hadamard.json", text, n);
    cb_free(text);
}

/* Opens tests/data/NAME as spelled; NULL and *err when it is refused. */
static cb_engine *open_as(const char *name, const spelling *s, cb_err *err)
{
    char source[256];
    cb_engine *e = NULL;
    snprintf(source, sizeof source, "tests/data/%s", name);
    tmp_dir(dir);
    write_weights(source, s);
    copy_configs(source);
    *err = (cb_err){0};
    cb_engine_open(dir, &(cb_engine_opts){.n_threads = 1}, &e, err);
    return e;
}

static uint64_t hash_of(cb_engine *e)
{
    uint64_t h = te_hash(e, N_TOKENS, 16);
    cb_engine_close(e);
    return h;
}

static void same_bits(const char *name, const spelling *s, const char *what)
{
    cb_err err;
    cb_engine *e = open_as(name, s, &err);
    if (!e) fail_msg("%s, %s: %s", name, what, err.text);
    if (hash_of(e) != hash_of(te_open(name, &(cb_engine_opts){.n_threads = 1}))) fail_msg("%s, %s: other logits", name, what);
    tmp_remove(dir);
}

static void refused(const char *name, const spelling *s, const char *part)
{
    cb_err err;
    cb_engine *e = open_as(name, s, &err);
    if (e) fail_msg("%s: opened, expected: %s", name, part);
    assert_int_equal(err.code, CB_EFORMAT);
    if (!strstr(err.text, part)) fail_msg("%s: %s; expected: %s", name, err.text, part);
    tmp_remove(dir);
}

/* ---- raw or MLX: names, axes, norms ---- */

static void test_raw_as_mlx(void **state)
{
    (void)state;
    static const char *const models[] = {"tiny-qwen35-raw", "tiny-qwen35moe-raw"};
    static const char *const prefixes[] = {"language_model.model.", "model.", "model.language_model."};
    for (int m = 0; m < 2; m++)
        for (int p = 0; p < 3; p++) {
            spelling s = {.from = "model.language_model.", .to = prefixes[p]};
            same_bits(models[m], &s, "raw axes and norms under other names");
            s.conv_last = 1;
            s.norm_shift = 1;
            same_bits(models[m], &s, "converted axes and norms");
        }
    /* raw names and norms, but moved axes: the norms decide */
    same_bits("tiny-qwen35-raw", &(spelling){.conv_last = 1}, "raw names and norms, moved axes");
}

static void test_mlx_as_raw(void **state)
{
    (void)state;
    static const char *const models[] = {"tiny-qwen35-4bit", "tiny-qwen35moe-4bit"};
    for (int m = 0; m < 2; m++) {
        spelling s = {.from = "language_model.model.", .to = "model.language_model.", .conv_last = 4, .norm_shift = -1};
        same_bits(models[m], &s, "as a raw file");
        s = (spelling){.from = "language_model.model.", .to = "model.", .conv_last = 4, .norm_shift = -1};
        same_bits(models[m], &s, "as a raw text-only file");
        s = (spelling){.from = "language_model.", .to = ""};
        same_bits(models[m], &s, "as an old text-only conversion");
        s = (spelling){.from = "language_model.model.", .to = "model.language_model."};
        same_bits(models[m], &s, "raw names, converted norms and axes");
    }
}

/* What the rule prevents: the same files with the 1 missing or twice give other logits. */
static void test_wrong_norms_differ(void **state)
{
    (void)state;
    cb_err err;
    uint64_t right = hash_of(te_open("tiny-qwen35-raw", &(cb_engine_opts){.n_threads = 1}));
    cb_engine *e = open_as("tiny-qwen35-raw", &(spelling){.norm_shift = 1}, &err);
    assert_non_null(e);
    assert_true(hash_of(e) != right);
    tmp_remove(dir);
    e = open_as("tiny-qwen35-raw", &(spelling){.from = "model.language_model.", .to = "language_model.model.", .conv_last = 1}, &err);
    assert_non_null(e);
    assert_true(hash_of(e) != right);
    tmp_remove(dir);
}

/* ---- towers and draft heads ---- */

static const extra qwen_raw[] = {{"model.visual.patch_embed.proj.weight", CB_BF16, {8, 3, 2, 4}}, {"model.visual.patch_embed.proj.bias", CB_BF16, {8}},
                                 {"model.visual.blocks.0.attn.qkv.weight", CB_BF16, {24, 8}}, {"model.visual.blocks.0.mlp.linear_fc1.bias", CB_F32, {8}},
                                 {"model.visual.merger.linear_fc2.weight", CB_F16, {8, 8}}, {"mtp.fc.weight", CB_BF16, {64, 128}},
                                 {"mtp.layers.0.self_attn.q_proj.weight", CB_BF16, {8, 8}}, {"mtp.norm.weight", CB_BF16, {64}}, {0}};
static const extra qwen_mlx[] = {{"vision_tower.patch_embed.proj.weight", CB_BF16, {8, 2, 4, 3}}, {"vision_tower.pos_embed.weight", CB_BF16, {16, 8}},
                                 {"vision_tower.blocks.0.norm1.bias", CB_F32, {8}}, {"language_model.mtp.fc.weight", CB_U32, {64, 16}},
                                 {"language_model.mtp.fc.scales", CB_BF16, {64, 2}}, {"language_model.mtp.fc.biases", CB_BF16, {64, 2}}, {0}};
static const extra gemma_raw[] = {{"model.vision_tower.patch_embedder.position_embedding_table", CB_BF16, {2, 16, 8}},
                                  {"model.vision_tower.encoder.layers.0.self_attn.q_proj.linear.weight", CB_BF16, {8, 8}},
                                  {"model.vision_tower.encoder.layers.0.self_attn.q_proj.linear.input_max", CB_BF16, {1}},
                                  {"model.embed_vision.embedding_projection.weight", CB_BF16, {64, 8}},
                                  {"model.audio_tower.layers.0.feed_forward1.ffw_layer_1.linear.weight", CB_BF16, {8, 8}},
                                  {"model.embed_audio.embedding_projection.weight", CB_BF16, {64, 8}}, {0}};
static const extra gemma_mlx[] = {{"vision_tower.std_bias", CB_BF16, {8}}, {"vision_tower.encoder.layers.0.mlp.gate_proj.linear.weight", CB_BF16, {8, 8}},
                                  {"embed_vision.embedding_projection.weight", CB_U32, {64, 8}}, {"embed_vision.embedding_projection.scales", CB_BF16, {64, 1}},
                                  {"embed_vision.embedding_projection.biases", CB_BF16, {64, 1}}, {"audio_tower.output_proj.bias", CB_BF16, {8}},
                                  {"vision_embedder.patch_dense.weight", CB_BF16, {8, 8}}, {0}};

static const extra pack[] = {{"vision_tower.patch_embed.proj.weight", CB_BF16, {8, 2, 4, 3}}, {"vision_tower.merger.linear_fc1.bias", CB_F32, {8}}, {0}};

static const struct {
    const char *model;
    const extra *extras;
} towers[] = {{"tiny-qwen35-raw", qwen_raw}, {"tiny-qwen35moe-raw", qwen_raw}, {"tiny-qwen35-4bit", qwen_mlx}, {"tiny-qwen35moe-4bit", qwen_mlx},
              {"tiny-gemma4-raw", gemma_raw}, {"tiny-gemma4e-raw", gemma_raw}, {"tiny-gemma4moe-4bit", gemma_mlx}, {"tiny-gemma4e-8bit", gemma_mlx},
              {"tiny-bonsai2", pack}};

static void test_towers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof towers / sizeof *towers; i++)
        for (int two = 0; two < 2; two++) {
            cb_err err;
            char *text;
            spelling s = {.extras = towers[i].extras, .two_files = two};
            same_bits(towers[i].model, &s, two ? "a tower in a second file" : "a tower in the same file");
            int n = 0;
            while (s.extras[n].name) n++;
            cb_engine *e = open_as(towers[i].model, &s, &err);
            cb_engine_info info;
            cb_engine_get_info(e, &info);
            assert_int_equal(info.n_skipped, n);
            assert_int_equal(cb_engine_plan_text(e, &text, NULL), 0);
            char want[64];
            snprintf(want, sizeof want, "skipped: %d tensors, ", n);
            if (!strstr(text, want)) fail_msg("%s: the plan does not say: %s", towers[i].model, want);
            free(text);
            cb_engine_close(e);
            tmp_remove(dir);
        }
}

/* ---- tensors without a place ---- */

static void test_unknown(void **state)
{
    (void)state;
    static const extra stray[] = {{"language_model.model.layers.1.mlp.extra_proj.weight", CB_BF16, {8, 8}}, {0}};
    static const extra bias[] = {{"model.language_model.layers.0.input_layernorm.bias", CB_BF16, {64}}, {"model.language_model.layers.9.mlp.up_proj.weight", CB_BF16, {8, 8}}, {0}};
    static const extra look[] = {{"visual_prompt.weight", CB_BF16, {8}}, {0}}, tower[] = {{"vision_tower.x.weight", CB_BF16, {8}}, {0}};
    static const extra scales[] = {{"model.language_model.norm.scales", CB_BF16, {8}}, {0}};
    refused("tiny-qwen35-4bit", &(spelling){.extras = stray}, "tensor language_model.model.layers.1.mlp.extra_proj.weight has no place in the qwen3_5 network");
    refused("tiny-qwen35-raw", &(spelling){.extras = bias}, "model.language_model.layers.0.input_layernorm.bias and 1 more have no place");
    refused("tiny-qwen35-raw", &(spelling){.extras = look, .two_files = true}, "model-00002-of-00002.safetensors: tensor visual_prompt.weight");
    refused("tiny-qwen35-raw", &(spelling){.extras = scales}, "model.language_model.norm.scales");
    refused("tiny-gemma4-raw", &(spelling){.extras = look}, "visual_prompt.weight");
    refused("tiny-qwen3-4bit", &(spelling){.extras = tower}, "vision_tower.x.weight has no place in the qwen3 network");
    refused("tiny-llama-bf16", &(spelling){.extras = tower}, "vision_tower.x.weight has no place in the llama network");
    refused("tiny-gemma3-bf16", &(spelling){.extras = tower}, "vision_tower.x.weight has no place in the gemma3 network");
}

/* Known leftovers: constants of old files, the head of a tied checkpoint, projections of layers that share K and V. */
static void test_leftovers(void **state)
{
    (void)state;
    static const extra freq[] = {{"model.layers.0.self_attn.rotary_emb.inv_freq", CB_F32, {8}}, {"lm_head.weight", CB_BF16, {288, 48}}, {0}};
    static const extra head[] = {{"lm_head.weight", CB_BF16, {288, 64}}, {0}};
    static const extra shared[] = {{"model.language_model.layers.3.self_attn.k_proj.weight", CB_BF16, {64, 64}},
                                   {"model.language_model.layers.5.self_attn.v_proj.weight", CB_BF16, {64, 64}},
                                   {"model.language_model.layers.4.self_attn.k_norm.weight", CB_BF16, {32}}, {0}};
    static const extra odd[] = {{"model.language_model.layers.5.self_attn.w_proj.weight", CB_BF16, {64, 64}}, {0}};
    same_bits("tiny-llama-bf16", &(spelling){.extras = freq}, "constants and a copied head");
    same_bits("tiny-qwen35-raw", &(spelling){.extras = head}, "a copied head");
    same_bits("tiny-gemma4e-raw", &(spelling){.extras = shared}, "unused projections of layers that share K and V");
    refused("tiny-gemma4e-raw", &(spelling){.extras = odd}, "layers.5.self_attn.w_proj.weight has no place in the gemma4 network");
    refused("tiny-qwen35moe-raw", &(spelling){.extras = (const extra[]){{"model.lm_head2.weight", CB_BF16, {8}}, {0}}}, "model.lm_head2.weight");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_raw_as_mlx), cmocka_unit_test(test_mlx_as_raw), cmocka_unit_test(test_wrong_norms_differ),
        cmocka_unit_test(test_towers),     cmocka_unit_test(test_unknown),    cmocka_unit_test(test_leftovers),
    };
    return cmocka_run_group_tests_name("op/layouts", tests, NULL, NULL);
}
