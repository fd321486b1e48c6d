/* io_inventory: a checkpoint of the size and shape of a real one (gemma-4-26B-A4B, 4 bits with 8-bit overrides: 1,697 tensors,
 * 15,608,614,044 data bytes in 3 shards) as files with holes. Opening it must be quick, must not copy or touch the data, and
 * every matrix must be found as the architecture implies. */
#include "base/mem.h"
#include "io/weights.h"
#include "../support/cputime.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include "support/tmpdir.h"

enum { H = 2816, LAYERS = 30, SHARDS = 3 };
static char dir[64];

static struct {
    cb_buf header[SHARDS], index;
    uint64_t end[SHARDS], bytes;
    int n, shard;
} out;

static void tensor(const char *name, const char *dtype, int size, int64_t a, int64_t b, int64_t c)
{
    char shape[80];
    uint64_t n = (uint64_t)(a * (b ? b : 1) * (c ? c : 1)) * (uint64_t)size, *end = &out.end[out.shard];
    snprintf(shape, sizeof shape, b ? c ? "[%lld,%lld,%lld]" : "[%lld,%lld]" : "[%lld]", (long long)a, (long long)b, (long long)c);
    cb_buf_printf(&out.header[out.shard], "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%llu,%llu]}", *end ? "," : "{", name, dtype,
                  shape, (unsigned long long)*end, (unsigned long long)(*end + n));
    cb_buf_printf(&out.index, "%s\"%s\":\"model-0000%d-of-00003.safetensors\"", out.n ? "," : "", name, out.shard + 1);
    *end += n;
    out.bytes += n;
    out.n++;
}

static void bf16(const char *prefix, const char *name, int64_t a, int64_t b)
{
    char s[160];
    snprintf(s, sizeof s, "%s%s", prefix, name);
    tensor(s, "BF16", 2, a, b, 0);
}

/* weight, scales and biases of [stack][rows][cols] at `bits`, group 64. */
static void packed(const char *prefix, const char *path, int64_t stack, int64_t rows, int64_t cols, int bits)
{
    static const char *const part[] = {"weight", "scales", "biases"};
    for (int i = 0; i < 3; i++) {
        char s[160];
        int64_t last = i ? cols / 64 : cols * bits / 32;
        snprintf(s, sizeof s, "%s%s.%s", prefix, path, part[i]);
        if (stack) tensor(s, i ? "BF16" : "U32", i ? 2 : 4, stack, rows, last);
        else tensor(s, i ? "BF16" : "U32", i ? 2 : 4, rows, last, 0);
    }
}

static bool is_full(int l) { return l % 6 == 5; }

static void text_layer(int l)
{
    static const char *const norms[] = {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "pre_feedforward_layernorm_2",
                                        "post_feedforward_layernorm", "post_feedforward_layernorm_1", "post_feedforward_layernorm_2"};
    char p[80], s[80];
    bool full = is_full(l);
    snprintf(p, sizeof p, "language_model.model.layers.%d.", l);
    packed(p, "self_attn.q_proj", 0, full ? 8192 : 4096, H, 4);
    packed(p, "self_attn.k_proj", 0, full ? 1024 : 2048, H, 4);
    if (!full) packed(p, "self_attn.v_proj", 0, 2048, H, 4);
    packed(p, "self_attn.o_proj", 0, H, full ? 8192 : 4096, 4);
    bf16(p, "self_attn.q_norm.weight", full ? 512 : 256, 0);
    bf16(p, "self_attn.k_norm.weight", full ? 512 : 256, 0);
    packed(p, "mlp.gate_proj", 0, 2112, H, 8);
    packed(p, "mlp.up_proj", 0, 2112, H, 8);
    packed(p, "mlp.down_proj", 0, H, 2112, 8);
    packed(p, "router.proj", 0, 128, H, 8);
    bf16(p, "router.scale", H, 0);
    bf16(p, "router.per_expert_scale", 128, 0);
    packed(p, "experts.switch_glu.gate_proj", 128, 704, H, 4);
    packed(p, "experts.switch_glu.up_proj", 128, 704, H, 4);
    packed(p, "experts.switch_glu.down_proj", 128, H, 704, 4);
    for (int i = 0; i < 7; i++) {
        snprintf(s, sizeof s, "%s.weight", norms[i]);
        bf16(p, s, H, 0);
    }
    bf16(p, "layer_scalar", 1, 0);
}

static void vision(void)
{
    static const char *const norms[] = {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"};
    char p[80], s[80];
    bf16("vision_tower.", "patch_embedder.input_proj.weight", 1152, 768);
    tensor("vision_tower.patch_embedder.position_embedding_table", "BF16", 2, 2, 10240, 1152);
    bf16("vision_tower.", "std_bias", 1152, 0);
    bf16("vision_tower.", "std_scale", 1152, 0);
    for (int l = 0; l < 27; l++) {
        snprintf(p, sizeof p, "vision_tower.encoder.layers.%d.", l);
        for (int i = 0; i < 4; i++) {
            snprintf(s, sizeof s, "%s.weight", norms[i]);
            bf16(p, s, 1152, 0);
            snprintf(s, sizeof s, "self_attn.%c_proj.linear.weight", "qkvo"[i]);
            bf16(p, s, 1152, 1152);
        }
        bf16(p, "self_attn.q_norm.weight", 72, 0);
        bf16(p, "self_attn.k_norm.weight", 72, 0);
        bf16(p, "mlp.gate_proj.linear.weight", 4304, 1152);
        bf16(p, "mlp.up_proj.linear.weight", 4304, 1152);
        bf16(p, "mlp.down_proj.linear.weight", 1152, 4304);
    }
}

static void write_config(void)
{
    static const char *const eight[] = {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "router.proj"};
    cb_buf b;
    cb_buf_init(&b, 0);
    cb_buf_puts(&b, "{\"model_type\":\"gemma4\",\"text_config\":{\"hidden_size\":2816},\"quantization\":{\"bits\":4,\"group_size\":64,\"mode\":\"affine\"");
    for (int l = 0; l < LAYERS; l++)
        for (int i = 0; i < 4; i++)
            cb_buf_printf(&b, ",\"language_model.model.layers.%d.%s\":{\"bits\":8,\"group_size\":64}", l, eight[i]);
    cb_buf_puts(&b, "}}");
    tmp_put(dir, "config.json", b.data, b.n);
    cb_buf_fini(&b);
}

static bool make_checkpoint(void)
{
    cb_buf_puts(&out.index, "{\"weight_map\":{");
    packed("language_model.model.", "embed_tokens", 0, 262144, H, 4);
    bf16("language_model.model.", "norm.weight", H, 0);
    for (int l = 0; l < LAYERS; l++) {
        out.shard = l * SHARDS / LAYERS;
        text_layer(l);
    }
    packed("", "embed_vision.embedding_projection", 0, H, 1152, 4);
    vision();
    cb_buf_puts(&out.index, "}}");
    tmp_put(dir, "model.safetensors.index.json", out.index.data, out.index.n);
    cb_buf_fini(&out.index);
    for (int i = 0; i < SHARDS; i++) {
        char name[64];
        snprintf(name, sizeof name, "model-0000%d-of-00003.safetensors", i + 1);
        cb_buf_putc(&out.header[i], '}');
        tmp_st(dir, name, out.header[i].data, NULL, 0);
        off_t all = (off_t)(8 + out.header[i].n + out.end[i]);
        cb_buf_fini(&out.header[i]);
        if (truncate(tmp_path(dir, name), all) != 0) return false; /* a file system that cannot hold such files */
    }
    write_config();
    return true;
}

static long private_kb(void)
{
    FILE *f = fopen("/proc/self/smaps_rollup", "r");
    char line[256];
    long sum = 0, v;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "Private_Clean: %ld", &v) == 1 || sscanf(line, "Private_Dirty: %ld", &v) == 1 || sscanf(line, "Rss: %ld", &v) == 1) sum += v;
    if (f) fclose(f);
    return sum;
}

static void want(const cb_weights *w, const cb_config *c, const char *path, int64_t stack, int64_t rows, int64_t cols, int bits)
{
    cb_matrix m;
    cb_err err = {0};
    if (cb_matrix_find(w, c, path, stack, rows, cols, &m, &err) != 1) fail_msg("%s: %s", path, err.text);
    assert_int_equal(m.bits, bits);
    assert_int_equal(m.group, bits ? 64 : 0);
    assert_int_equal(m.mode, bits ? CB_W_AFFINE : CB_W_FLOAT);
    assert_true(m.rows == rows && m.cols == cols && m.stack == stack);
}

static void gemma4_26b(void **state)
{
    cb_weights *w;
    cb_config *c;
    cb_err err = {0};
    tmp_dir(dir);
    if (!make_checkpoint()) {
        tmp_remove(dir);
        skip();
    }
    assert_int_equal(out.n, 1697);
    assert_true(out.bytes == 15608614044);
    long kb = private_kb();
    double t0 = tt_cpu();
    assert_int_equal(cb_config_open(dir, &c, &err), 0);
    if (cb_weights_open(dir, &w, &err) != 0) fail_msg("%s", err.text);
    double ms = 1e3 * (tt_cpu() - t0);
    kb = private_kb() - kb;
    print_message("%d tensors, %.1f GB opened in %.1f ms, %ld KB resident more\n", cb_weights_count(w), 1e-9 * (double)cb_weights_bytes(w), ms, kb);
    assert_int_equal(cb_weights_count(w), 1697);
    assert_true(cb_weights_bytes(w) > out.bytes && cb_weights_bytes(w) < out.bytes + 1000000);
    assert_true(tt_within(ms / 1e3, 0.5));
    assert_true(tt_within((double)kb, 100 << 10)); /* an emulator keeps tables of its own for the map */
    t0 = tt_cpu();
    want(w, c, "language_model.model.embed_tokens", 1, 262144, H, 4);
    for (int l = 0; l < LAYERS; l++) {
        char s[96];
#define P(tail) (snprintf(s, sizeof s, "language_model.model.layers.%d.%s", l, tail), s)
        bool full = is_full(l);
        want(w, c, P("self_attn.q_proj"), 1, full ? 8192 : 4096, H, 4);
        want(w, c, P("self_attn.o_proj"), 1, H, full ? 8192 : 4096, 4);
        cb_matrix m;
        assert_int_equal(cb_matrix_find(w, c, P("self_attn.v_proj"), 1, 2048, H, &m, &err), !full);
        want(w, c, P("mlp.down_proj"), 1, H, 2112, 8);
        want(w, c, P("router.proj"), 1, 128, H, 8);
        want(w, c, P("experts.switch_glu.gate_proj"), 128, 704, H, 4);
        want(w, c, P("experts.switch_glu.down_proj"), 128, H, 704, 4);
    }
    want(w, c, "embed_vision.embedding_projection", 1, H, 1152, 4);
    want(w, c, "vision_tower.encoder.layers.26.mlp.down_proj.linear", 1, 1152, 4304, 0);
    assert_true(tt_within(tt_cpu() - t0, 0.5));
    cb_weights_close(w);
    cb_config_close(c);
    tmp_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(gemma4_26b)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
