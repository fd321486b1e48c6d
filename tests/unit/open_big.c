/* open_big.c: opening a checkpoint of 20 GB, packed or of floats, takes a moment and hardly any memory of its own. The file is
 * all holes: only its shapes matter. */
#include "../support/engine.h"
#include "../support/cputime.h"
#include "../support/tmpdir.h"
#include "io/safetensors.h"

enum { HIDDEN = 6144, FFN = 22528, HEADS = 48, KV_HEADS = 8, VOCAB = 128256, GROUP = 64, BITS = 4 };

static void vector(cb_st_writer *w, const char *name, int64_t n)
{
    assert_int_equal(cb_st_writer_declare(w, name, CB_BF16, &n, 1, NULL), 0);
}

static void matrix(cb_st_writer *w, const char *path, int64_t rows, int64_t cols, bool packed)
{
    static const char *const parts[] = {"weight", "scales", "biases"};
    for (int i = 0; i < (packed ? 3 : 1); i++) {
        char name[128];
        int64_t dims[2] = {rows, i ? cols / GROUP : packed ? cols * BITS / 32 : cols};
        snprintf(name, sizeof name, "%s.%s", path, parts[i]);
        assert_int_equal(cb_st_writer_declare(w, name, packed && !i ? CB_U32 : CB_BF16, dims, 2, NULL), 0);
    }
}

static void write_checkpoint(const char *dir, int layers, bool packed)
{
    static const struct {
        const char *name;
        int rows, cols;
    } m[] = {{"self_attn.q_proj", HEADS * 128, HIDDEN}, {"self_attn.k_proj", KV_HEADS * 128, HIDDEN}, {"self_attn.v_proj", KV_HEADS * 128, HIDDEN},
             {"self_attn.o_proj", HIDDEN, HEADS * 128}, {"mlp.gate_proj", FFN, HIDDEN},               {"mlp.up_proj", FFN, HIDDEN},
             {"mlp.down_proj", HIDDEN, FFN}};
    char text[1024], name[128];
    cb_st_writer *w;
    cb_err err = {0};
    snprintf(text, sizeof text,
             "{\"model_type\":\"llama\",\"hidden_size\":%d,\"num_hidden_layers\":%d,\"num_attention_heads\":%d,\"num_key_value_heads\":%d,"
             "\"head_dim\":128,\"intermediate_size\":%d,\"vocab_size\":%d,\"max_position_embeddings\":131072,\"rms_norm_eps\":1e-5,"
             "\"rope_theta\":500000.0,\"tie_word_embeddings\":false%s}",
             HIDDEN, layers, HEADS, KV_HEADS, FFN, VOCAB, packed ? ",\"quantization\":{\"bits\":4,\"group_size\":64}" : "");
    tmp_text(dir, "config.json", text);
    assert_int_equal(cb_st_writer_open(tmp_path(dir, "model.safetensors"), &w, &err), 0);
    matrix(w, "model.embed_tokens", VOCAB, HIDDEN, packed);
    matrix(w, "lm_head", VOCAB, HIDDEN, packed);
    vector(w, "model.norm.weight", HIDDEN);
    for (int l = 0; l < layers; l++) {
        for (size_t i = 0; i < sizeof m / sizeof *m; i++) {
            snprintf(name, sizeof name, "model.layers.%d.%s", l, m[i].name);
            matrix(w, name, m[i].rows, m[i].cols, packed);
        }
        snprintf(name, sizeof name, "model.layers.%d.input_layernorm.weight", l);
        vector(w, name, HIDDEN);
        snprintf(name, sizeof name, "model.layers.%d.post_attention_layernorm.weight", l);
        vector(w, name, HIDDEN);
    }
    cb_st_writer_leave_holes(w);
    if (cb_st_writer_begin(w, &err) < 0 || cb_st_writer_commit(w, &err) < 0) fail_msg("%s", err.text);
}

/* Anonymous memory of this process, bytes. */
static double rss_anon(void)
{
    char line[256];
    double kb = 0;
    FILE *f = fopen("/proc/self/status", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) sscanf(line, "RssAnon: %lf", &kb);
    fclose(f);
    return kb * 1024;
}

static void check(int layers, bool packed)
{
    char dir[64];
    cb_engine *e;
    cb_engine_info info;
    cb_memory mem;
    cb_err err = {0};
    write_checkpoint(tmp_dir(dir), layers, packed);
    cb_engine_opts o = {.device = "cpu", .ctx_size = 4096, .memory_limit = 4ull << 30};
    double best = 1e9, most = 0;
    for (int i = 0; i < 3; i++) { /* the first one reads the header from the disk */
        double before = rss_anon(), t0 = tt_cpu();
        if (cb_engine_open(dir, &o, &e, &err) < 0) fail_msg("%s", err.text);
        double t = tt_cpu() - t0, took = rss_anon() - before;
        if (t < best) best = t;
        if (took > most) most = took;
        cb_engine_get_info(e, &info);
        assert_int_equal(cb_engine_get_memory(e, 0, &mem, NULL), 0);
        cb_engine_close(e);
    }
    print_message("%.1f GB: opened in %.3f s of processor time, %.1f MB touched; copies %.1f MB, scratch %.1f MB\n",
                  (double)info.weight_bytes / 1e9, best, most / 1e6, (double)mem.weight_copies / 1e6, (double)mem.scratch / 1e6);
    assert_true(info.weight_bytes > 20000000000u);
    assert_true(mem.weight_copies + mem.scratch < info.weight_bytes / 20);
    assert_true(tt_within(best, 0.5));
    assert_true(tt_within(most, (double)info.weight_bytes / 20));
    tmp_remove(dir);
}

static void test_packed(void **state)
{
    (void)state;
    check(70, true);
}

static void test_floats(void **state)
{
    (void)state;
    check(20, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_packed), cmocka_unit_test(test_floats)};
    return cmocka_run_group_tests_name("unit/open_big", tests, NULL, NULL);
}
