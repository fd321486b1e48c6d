/* inplace.c: float weights that stay in the checkpoint (cpu/product.c) give the bits of encoded copies, at every level, and values that
 * are not finite are found when they are used. */
#include "../support/engine.h"
#include "../support/tmpdir.h"

static const char *const levels[] = {"c", "avx2", "avx512", "neon"};
static const char *const floats[] = {"tiny-llama-bf16", "tiny-llama-f16", "tiny-llama-f32", "tiny-llama-mxfp8", "tiny-llama-mixed",
                                     "tiny-gemma3-bf16", "tiny-qwen35-raw", "tiny-qwen35moe-raw", "tiny-gemma4-raw", "tiny-gemma4e-raw"};

/* Hash of a run and bytes of copies, with or without copies. */
static uint64_t run(const char *name, const char *level, bool copies, int n, int chunk, uint64_t *bytes)
{
    char device[16];
    cb_memory m;
    snprintf(device, sizeof device, "cpu:%s", level);
    setenv("CB_CPU_COPIES", copies ? "on" : "off", 1);
    cb_engine *e = te_try_open(name, &(cb_engine_opts){.device = device, .n_threads = 2});
    if (!e) return 0;
    uint64_t h = te_hash(e, n, chunk);
    assert_int_equal(cb_engine_get_memory(e, 0, &m, NULL), 0);
    *bytes = m.weight_copies;
    cb_engine_close(e);
    unsetenv("CB_CPU_COPIES");
    return h;
}

static void test_same_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i += te_quick() ? 4 : 1) {
        uint64_t with, without, want = run(floats[i], "c", true, 70, 64, &with);
        assert_true(want != 0);
        for (int l = 0; l < 4; l++)
            for (int chunk = 1; chunk <= 70; chunk += 69) {
                uint64_t h = run(floats[i], levels[l], false, 70, chunk, &without);
                if (h && h != want) fail_msg("%s on %s in chunks of %d: %016llx, not %016llx", floats[i], levels[l], chunk, (unsigned long long)h, (unsigned long long)want);
                assert_true(!h || without < with / 2);
            }
    }
}

/* q_proj of the first layer gets an infinity: refused at load with copies, in the step without. */
static void test_not_finite(void **state)
{
    (void)state;
    char dir[64], path[256];
    unsigned long long from, header = 0;
    cb_engine *e;
    cb_session *s;
    cb_err err = {0};
    tmp_dir(dir);
    static const char *const files[] = {"config.json", "model.safetensors"};
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "tests/data/tiny-llama-bf16/%s", files[i]);
        FILE *f = fopen(path, "rb");
        assert_non_null(f);
        char *text = calloc(1, 1 << 20), *at;
        size_t n = fread(text, 1, 1 << 20, f);
        fclose(f);
        if (i == 1) {
            for (int k = 7; k >= 0; k--) header = header << 8 | (unsigned char)text[k];
            assert_non_null(at = strstr(text + 8, "layers.0.self_attn.q_proj.weight"));
            assert_int_equal(sscanf(strstr(at, "\"data_offsets\""), "\"data_offsets\":[%llu", &from), 1);
            memcpy(text + 8 + header + from + 10, "\x80\x7f", 2);
        }
        tmp_put(dir, files[i], text, n);
        free(text);
    }
    setenv("CB_CPU_COPIES", "on", 1);
    assert_int_equal(cb_engine_open(dir, &(cb_engine_opts){.device = "cpu"}, &e, &err), CB_EFORMAT);
    setenv("CB_CPU_COPIES", "off", 1);
    assert_int_equal(cb_engine_open(dir, &(cb_engine_opts){.device = "cpu"}, &e, &err), 0);
    assert_int_equal(cb_session_open(e, &s, NULL), 0);
    assert_int_equal(cb_step(e, &(cb_row){s, 1, 0}, 1, NULL, &err), CB_ENUM);
    assert_non_null(strstr(err.text, "q_proj"));
    cb_session_close(s);
    cb_engine_close(e);
    unsetenv("CB_CPU_COPIES");
    tmp_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_bits), cmocka_unit_test(test_not_finite)};
    return cmocka_run_group_tests_name("op/inplace", tests, NULL, NULL);
}
