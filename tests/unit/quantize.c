/* Whole quantised checkpoints: equal to mlx-lm's for every setting of tests/data/quantize-hashes.txt, whole or absent, and
 * refusals that name what is wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* in this order: cmocka wants the four above */
#include "base/json.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "io/safetensors.h"
#include <cmocka.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include "support/tmpdir.h"

static char work[64], in_path[96], out_path[96];

static int setup(void **state)
{
    tmp_dir(work);
    snprintf(in_path, sizeof in_path, "%s/in", work);
    snprintf(out_path, sizeof out_path, "%s/out", work);
    return 0;
}

static int teardown(void **state)
{
    tmp_remove(work);
    return 0;
}

static void quantise(const char *from, const cb_quantize_opts *o)
{
    cb_err err = {0};
    tmp_remove(out_path);
    if (cb_quantize(from, out_path, o, &err) != 0) fail_msg("%s: %s", from, err.text);
}

static cb_weights *open_weights(const char *dir)
{
    cb_weights *w;
    cb_err err = {0};
    if (cb_weights_open(dir, &w, &err) < 0) fail_msg("%s", err.text);
    return w;
}

/* ---- equal to mlx-lm ---- */

static void hash_tensors(const char *dir, char hex[65])
{
    cb_sha256 h;
    cb_sha256_init(&h);
    cb_weights *w = open_weights(dir);
    for (int i = 0; i < cb_weights_count(w); i++) {
        const cb_tensor *t = cb_weights_at(w, i);
        cb_buf b;
        cb_buf_init(&b, 0);
        cb_buf_printf(&b, "%s %s [", t->name, cb_dtype_name(t->dtype));
        for (int d = 0; d < t->n_dims; d++) cb_buf_printf(&b, "%s%lld", d ? "," : "", (long long)t->dims[d]);
        cb_buf_puts(&b, "]\n");
        cb_sha256_put(&h, b.data, b.n);
        cb_sha256_put(&h, t->data, t->bytes);
        cb_buf_fini(&b);
    }
    cb_sha256_hex(&h, hex);
    cb_weights_close(w);
}

static void as_mlx_lm(void **state)
{
    FILE *f = fopen("tests/data/quantize-hashes.txt", "r");
    char name[64], mode[16], dtype[16], want[80], from[128], hex[65];
    int bits, group, n = 0, wrong = 0;
    assert_non_null(f);
    while (fscanf(f, "%63s %15s %d %d %15s %79s", name, mode, &bits, &group, dtype, want) == 6) {
        snprintf(from, sizeof from, "tests/data/%s", name);
        quantise(from, &(cb_quantize_opts){.mode = mode, .bits = bits, .group = group, .dtype = *dtype == '-' ? NULL : dtype, .n_threads = 1 + n % 3});
        hash_tensors(out_path, hex);
        if (strcmp(hex, want)) {
            print_error("%s %s %d bits group %d %s differs from mlx-lm's\n", name, mode, bits, group, dtype);
            wrong++;
        }
        n++;
    }
    fclose(f);
    assert_int_equal(n, 101);
    assert_int_equal(wrong, 0);
}

/* Every tensor of a is in b with the same bytes. */
static void same_tensors(const char *a, const char *b)
{
    cb_weights *x = open_weights(a), *y = open_weights(b);
    assert_int_equal(cb_weights_count(x), cb_weights_count(y));
    for (int i = 0; i < cb_weights_count(x); i++) {
        const cb_tensor *s = cb_weights_at(x, i), *t = cb_weights_find(y, s->name);
        if (!t || t->dtype != s->dtype || t->bytes != s->bytes || memcmp(t->dims, s->dims, sizeof t->dims) || memcmp(t->data, s->data, t->bytes))
            fail_msg("%s: %s differs", b, s->name);
    }
    cb_weights_close(x);
    cb_weights_close(y);
}

static json_t *json_of(const char *dir, const char *name)
{
    json_t *j;
    cb_err err = {0};
    if (cb_json_file(dir, name, 1 << 20, &j, &err) < 0) fail_msg("%s", err.text);
    return j;
}

/* The committed conversions by mlx-lm: tensors, quantisation and end tokens of the config, files beside them. */
static void committed_conversions(void **state)
{
    static const struct { const char *from, *to; int bits, group; } t[] = {
        {"tests/data/source-llama", "tests/data/tiny-llama-4bit", 4, 64},
        {"tests/data/tiny-qwen35-raw", "tests/data/tiny-qwen35-4bit", 4, 64},
        {"tests/data/tiny-qwen35moe-raw", "tests/data/tiny-qwen35moe-4bit", 4, 64},
        {"tests/data/tiny-gemma4e-raw", "tests/data/tiny-gemma4e-8bit", 8, 32},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        quantise(t[i].from, &(cb_quantize_opts){.bits = t[i].bits, .group = t[i].group});
        same_tensors(t[i].to, out_path);
        json_t *a = json_of(t[i].to, "config.json"), *b = json_of(out_path, "config.json");
        static const char *const keys[] = {"quantization", "quantization_config", "eos_token_id", "model_type", "tie_word_embeddings"};
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
            if (!json_equal(json_object_get(a, keys[k]), json_object_get(b, keys[k]))) fail_msg("%s: config.json: %s differs", t[i].from, keys[k]);
        json_decref(a);
        json_decref(b);
        a = json_of(t[i].to, "model.safetensors.index.json"), b = json_of(out_path, "model.safetensors.index.json");
        assert_true(json_equal(json_object_get(a, "weight_map"), json_object_get(b, "weight_map")));
        json_decref(a);
        json_decref(b);
        static const char *const files[] = {"tokenizer.json", "tokenizer_config.json", "generation_config.json"};
        for (size_t k = 0; k < 3; k++) {
            cb_map x, y;
            assert_int_equal(cb_map_open(&x, t[i].from, files[k], NULL), 0);
            assert_int_equal(cb_map_open(&y, out_path, files[k], NULL), 0);
            assert_int_equal(x.n, y.n);
            assert_memory_equal(x.data, y.data, x.n);
            cb_map_close(&x);
            cb_map_close(&y);
        }
        assert_int_equal(tmp_count(out_path), 6);
    }
}

static void it_runs(void **state)
{
    static const struct { const char *from; cb_quantize_opts o; } t[] = {
        {"tests/data/source-llama", {.mode = "nvfp4"}},
        {"tests/data/tiny-qwen35-raw", {.mode = "mxfp8"}},
        {"tests/data/tiny-gemma4e-raw", {.bits = 6, .group = 32, .gpu_rounding = 1}},
        {"tests/data/tiny-qwen35moe-raw", {.mode = "mxfp4", .dtype = "float16"}},
        {"tests/data/tiny-gemma3-bf16", {.mode = "nvfp4"}},
        {"tests/data/source-llama", {.mode = "ternary"}},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        cb_engine *e;
        cb_session *s;
        cb_err err = {0};
        float logits[300];
        quantise(t[i].from, &t[i].o);
        if (cb_engine_open(out_path, &(cb_engine_opts){.ctx_size = 32}, &e, &err) < 0) fail_msg("%s: %s", t[i].from, err.text);
        assert_int_equal(cb_session_open(e, &s, &err), 0);
        if (cb_step(e, &(cb_row){s, 5, 1}, 1, logits, &err) < 0) fail_msg("%s: %s", t[i].from, err.text);
        cb_session_close(s);
        cb_engine_close(e);
    }
}

/* ---- choices ---- */

static void keep_patterns(void **state)
{
    const char *keep[] = {"lm_head", "*.o_proj", "embed_tokens", "layers.1.mlp.*"};
    cb_err err = {0};
    tmp_remove(out_path);
    assert_int_equal(cb_quantize("tests/data/source-llama", out_path, &(cb_quantize_opts){.keep = keep, .n_keep = 4}, &err), CB_EUSAGE);
    assert_non_null(strstr(err.text, "lm_head")); /* a tied head is no matrix of its own */
    quantise("tests/data/source-llama", &(cb_quantize_opts){.keep = keep + 1, .n_keep = 3});
    cb_weights *w = open_weights(out_path);
    assert_null(cb_weights_find(w, "model.embed_tokens.scales"));
    assert_null(cb_weights_find(w, "model.layers.0.self_attn.o_proj.scales"));
    assert_null(cb_weights_find(w, "model.layers.1.mlp.gate_proj.scales"));
    assert_non_null(cb_weights_find(w, "model.layers.0.mlp.gate_proj.scales"));
    assert_non_null(cb_weights_find(w, "model.layers.1.self_attn.q_proj.scales"));
    assert_int_equal(cb_weights_find(w, "model.embed_tokens.weight")->dtype, CB_BF16);
    cb_weights_close(w);
}

/* The GPU rule differs in some codes; threads never matter. */
static void rules_and_threads(void **state)
{
    char cpu[65], gpu[65], many[65];
    quantise("tests/data/source-llama", &(cb_quantize_opts){.n_threads = 1});
    hash_tensors(out_path, cpu);
    quantise("tests/data/source-llama", &(cb_quantize_opts){.n_threads = 7});
    hash_tensors(out_path, many);
    quantise("tests/data/source-llama", &(cb_quantize_opts){.gpu_rounding = 1});
    hash_tensors(out_path, gpu);
    assert_string_equal(cpu, many);
    assert_string_not_equal(cpu, gpu);
}

/* Several weight files hold the same tensors, and the index says where. */
static void several_files(void **state)
{
    char one[65], many[65];
    quantise("tests/data/tiny-qwen35moe-raw", NULL);
    hash_tensors(out_path, one);
    quantise("tests/data/tiny-qwen35moe-raw", &(cb_quantize_opts){.file_bytes = 60000});
    hash_tensors(out_path, many);
    assert_string_equal(one, many);
    json_t *index = json_of(out_path, "model.safetensors.index.json"), *v;
    const char *key;
    int n_files = 0;
    char name[64];
    while (snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", n_files + 1, tmp_count(out_path) - 5), access(tmp_path(out_path, name), F_OK) == 0) n_files++;
    assert_in_range(n_files, 5, 12);
    json_object_foreach(json_object_get(index, "weight_map"), key, v)
        if (access(tmp_path(out_path, json_string_value(v)), F_OK) != 0) fail_msg("%s: no file", key);
    json_decref(index);
}

/* ---- refusals ---- */

static void copy_file(const char *from, const char *name)
{
    cb_map m;
    assert_int_equal(cb_map_open(&m, from, name, NULL), 0);
    tmp_put(in_path, name, m.data, m.n);
    cb_map_close(&m);
}

/* source-llama in work/in, with one tensor's data changed to bits at element i (and next behind it), or its dtype, or its name. */
static void change_all(const char *tensor, int64_t i, const uint16_t *bits, int n_bits, cb_dtype dtype, const char *name)
{
    cb_st s;
    cb_st_writer *w;
    cb_err err = {0};
    tmp_remove(in_path);
    assert_int_equal(mkdir(in_path, 0777), 0);
    copy_file("tests/data/source-llama", "config.json");
    copy_file("tests/data/source-llama", "tokenizer.json");
    assert_int_equal(cb_st_open(&s, "tests/data/source-llama", "model.safetensors", &err), 0);
    assert_int_equal(cb_st_writer_open(tmp_path(in_path, "model.safetensors"), &w, &err), 0);
    for (int k = 0; k < s.n_tensors; k++) {
        const cb_tensor *t = &s.tensors[k];
        bool it = !strcmp(t->name, tensor);
        assert_int_equal(cb_st_writer_declare(w, it && name ? name : t->name, it ? dtype : t->dtype, t->dims, t->n_dims, &err), 0);
    }
    assert_int_equal(cb_st_writer_begin(w, &err), 0);
    for (int k = 0; k < s.n_tensors; k++) {
        const cb_tensor *t = &s.tensors[k];
        uint8_t *d = malloc(t->bytes);
        memcpy(d, t->data, t->bytes);
        if (!strcmp(t->name, tensor) && i >= 0) memcpy(d + 2 * i, bits, 2 * (size_t)n_bits);
        assert_int_equal(cb_st_writer_put(w, d, t->bytes, &err), 0);
        free(d);
    }
    assert_int_equal(cb_st_writer_commit(w, &err), 0);
    cb_st_close(&s);
}

/* Raw Qwen 3.5 names and norms, but a convolution moved to [C,4,1]: the loader sees norms centred on 0, and so must we. */
static void moved_convolution(void **state)
{
    cb_st s;
    cb_st_writer *w;
    cb_err err = {0};
    char want[65], got[65];
    quantise("tests/data/tiny-qwen35-raw", NULL);
    hash_tensors(out_path, want);
    assert_int_equal(mkdir(in_path, 0777), 0);
    copy_file("tests/data/tiny-qwen35-raw", "config.json");
    assert_int_equal(cb_st_open(&s, "tests/data/tiny-qwen35-raw", "model.safetensors", &err), 0);
    assert_int_equal(cb_st_writer_open(tmp_path(in_path, "model.safetensors"), &w, &err), 0);
    for (int k = 0; k < s.n_tensors; k++) {
        cb_tensor *t = &s.tensors[k];
        if (strstr(t->name, "conv1d")) t->dims[1] = t->dims[2], t->dims[2] = 1;
        assert_int_equal(cb_st_writer_declare(w, t->name, t->dtype, t->dims, t->n_dims, &err), 0);
    }
    assert_int_equal(cb_st_writer_begin(w, &err), 0);
    for (int k = 0; k < s.n_tensors; k++) assert_int_equal(cb_st_writer_put(w, s.tensors[k].data, s.tensors[k].bytes, &err), 0);
    assert_int_equal(cb_st_writer_commit(w, &err), 0);
    cb_st_close(&s);
    quantise(in_path, NULL);
    hash_tensors(out_path, got);
    assert_string_equal(got, want);
}

static void change(const char *tensor, int64_t i, uint16_t bits, cb_dtype dtype, const char *name)
{
    change_all(tensor, i, &bits, 1, dtype, name);
}

static void change_two(const char *tensor, int64_t i, uint16_t a, uint16_t b) { change_all(tensor, i, (uint16_t[]){a, b}, 2, CB_BF16, NULL); }

static void refuse(const char *from, const cb_quantize_opts *o, int code, const char *want)
{
    cb_err err = {0};
    tmp_remove(out_path);
    int before = tmp_count(work), rc = cb_quantize(from, out_path, o, &err);
    if (rc != code || !strstr(err.text, want)) fail_msg("wanted %d \"%s\", got %d: %s", code, want, rc, err.text);
    assert_int_equal(tmp_count(work), before);
}

static void bad_settings(void **state)
{
    static const char src[] = "tests/data/source-llama";
    refuse(src, &(cb_quantize_opts){.bits = 7}, CB_EUSAGE, "bits 7");
    refuse(src, &(cb_quantize_opts){.group = 48}, CB_EUSAGE, "group 48");
    refuse(src, &(cb_quantize_opts){.mode = "int4"}, CB_EUSAGE, "int4");
    refuse(src, &(cb_quantize_opts){.mode = "mxfp4", .bits = 8}, CB_EUSAGE, "mxfp4");
    refuse(src, &(cb_quantize_opts){.dtype = "float8"}, CB_EUSAGE, "float8");
    refuse(src, &(cb_quantize_opts){.n_threads = 1000}, CB_EUSAGE, "1000");
    refuse(src, &(cb_quantize_opts){.hadamard_block = 512}, CB_EUSAGE, "only dense Qwen 3.5");
    refuse("tests/data/tiny-qwen35moe-raw", &(cb_quantize_opts){.hadamard_block = 512}, CB_EUSAGE, "only dense Qwen 3.5");
    refuse("tests/data/tiny-qwen35-raw", &(cb_quantize_opts){.hadamard_block = 512}, CB_EUSAGE, "not a multiple of the Hadamard block 512");
    refuse("tests/data/tiny-qwen35-raw", &(cb_quantize_opts){.hadamard_block = 64}, CB_EUSAGE, "block 64");
    refuse("tests/data/tiny-qwen35-raw", &(cb_quantize_opts){.hadamard_block = 512, .mode = "mxfp4"}, CB_EUSAGE, "mxfp4");
    refuse("tests/data/tiny-llama-f32", &(cb_quantize_opts){0}, CB_EUSAGE, "multiple of 64");
    refuse("tests/data/tiny-llama-f32", &(cb_quantize_opts){.hadamard_block = 512, .group = 32}, CB_EUSAGE, "only dense");
}

static void bad_sources(void **state)
{
    const cb_quantize_opts o = {.n_threads = 3};
    refuse("tests/data/no-such", &o, CB_ENOTFOUND, "config.json");
    refuse("tests/data/tiny-llama-4bit", &o, CB_EFORMAT, "quantised already");
    refuse("tests/data/tiny-bonsai2", &o, CB_EFORMAT, "quantised already");
    static const char up[] = "model.layers.1.mlp.up_proj.weight";
    change(up, 200, 0x7f80, CB_BF16, NULL);
    refuse(in_path, &o, CB_EFORMAT, "model.layers.1.mlp.up_proj.weight: row 3, column 8 is not a finite BF16");
    change(up, 201, 0xffc1, CB_BF16, NULL);
    refuse(in_path, &o, CB_EFORMAT, "row 3, column 9");
    change(up, 64, 0x7f00, CB_BF16, NULL);
    refuse(in_path, &(cb_quantize_opts){.dtype = "float16"}, CB_EFORMAT, "row 1, column 0 is not a finite F16");
    quantise(in_path, &o);
    change(up, 64 * 5, 0x7f7f, CB_BF16, NULL); /* 3.4e38 is a number; */
    quantise(in_path, &o);
    change_two(up, 64 * 5, 0x7f7f, 0xff7f); /* with -3.4e38 beside it the range is none */
    refuse(in_path, &o, CB_EFORMAT, "row 5, columns from 0: their scale");
    change(up, -1, 0, CB_I16, NULL);
    refuse(in_path, &o, CB_EFORMAT, "model.layers.1.mlp.up_proj.weight");
    change(up, -1, 0, CB_BF16, "model.layers.1.mlp.up.weight");
    refuse(in_path, &o, CB_EFORMAT, "model.layers.1.mlp.up_proj.weight: missing");
    change("model.norm.weight", 3, 0x7fc0, CB_BF16, NULL);
    refuse(in_path, &o, CB_EFORMAT, "model.norm.weight: row 0, column 3");
}

static void bad_target(void **state)
{
    cb_err err = {0};
    assert_int_equal(mkdir(out_path, 0777), 0);
    tmp_put(out_path, "mine", "x", 1);
    assert_int_equal(cb_quantize("tests/data/source-llama", out_path, NULL, &err), CB_EUSAGE);
    assert_int_equal(tmp_count(out_path), 1);
    char inside[128];
    snprintf(inside, sizeof inside, "%s/no/such/out", work);
    assert_int_equal(cb_quantize("tests/data/source-llama", inside, NULL, &err), CB_EIO);
}

/* A file size limit stands for a full disk: an I/O error that names the file, and nothing is left. */
static void full_disk(void **state)
{
    for (int i = 0; i < 3; i++) {
        const rlim_t limits[] = {100, 9000, 40000};
        pid_t pid = fork();
        if (pid == 0) {
            struct rlimit r = {limits[i], limits[i]};
            cb_err err = {0};
            signal(SIGXFSZ, SIG_IGN);
            if (setrlimit(RLIMIT_FSIZE, &r) != 0) _exit(2);
            int rc = cb_quantize("tests/data/source-llama", out_path, NULL, &err);
            _exit(rc == CB_EIO && strstr(err.text, work) ? 0 : 1);
        }
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        assert_int_equal(tmp_count(work), 0);
    }
}

static void kill_self(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    if (done * 100 >= total * (uint64_t)*(int *)ctx) raise(SIGKILL);
}

/* Killed at some moment: the target is absent, and the next run removes what was left. */
static void killed(void **state)
{
    for (int percent = 10; percent <= 100; percent += 30) {
        pid_t pid = fork();
        if (pid == 0) {
            cb_quantize("tests/data/source-llama", out_path, &(cb_quantize_opts){.progress = kill_self, .progress_ctx = &percent}, NULL);
            _exit(0);
        }
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
        assert_int_equal(access(out_path, F_OK), -1);
    }
    quantise("tests/data/source-llama", NULL);
    assert_int_equal(tmp_count(work), 1);
}

/* The n-th allocation fails, for every n: an error each time, and nothing stays. */
static void no_memory(void **state)
{
    int n = 1, rc = CB_ENOMEM;
    for (; rc < 0 && n < 20000; n += n < 200 ? 1 : 97) {
        cb_err err = {0};
        tmp_remove(out_path);
        cb_alloc_fail_at((uint64_t)n);
        rc = cb_quantize("tests/data/source-llama", out_path, &(cb_quantize_opts){.n_threads = 2}, &err);
        cb_alloc_fail_at(0);
        if (rc < 0) {
            if (rc != CB_ENOMEM) fail_msg("allocation %d: %d %s", n, rc, err.text);
            assert_int_equal(tmp_count(work), 0);
        }
    }
    assert_int_equal(rc, 0);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(as_mlx_lm), CASE(committed_conversions), CASE(it_runs), CASE(keep_patterns), CASE(rules_and_threads), CASE(several_files), CASE(moved_convolution), CASE(bad_settings),
        CASE(bad_sources), CASE(bad_target), CASE(full_disk), CASE(killed), CASE(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
