/* hadamard: the signed Walsh-Hadamard transform, and packs made by cb_quantize from a raw Qwen 3.5 checkpoint: near the original at 8
 * bits, and far from it when the weights were not folded or the transform is left out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* in this order: cmocka wants the four above */
#include "base/json.h"
#include "io/safetensors.h"
#include "kernels/kernels.h"
#include "run/quantize.h"
#include <cmocka.h>
#include <math.h>
#include "support/tmpdir.h"

static uint64_t rng_state;

/* Nearly normal, deviation 1. */
static float normal(void)
{
    float s = 0;
    for (int i = 0; i < 6; i++) {
        rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
        s += (float)(rng_state >> 40) / 0x1p24f - 0.5f;
    }
    return s * 1.41421356f;
}

/* ---- the transform ---- */

static float scale_of(int block) { return (float)(1 / sqrt((double)block)); }

/* Entry (i, j) of the Sylvester matrix is (-1)^popcount(i and j) / sqrt(n): the explicit product in double. */
static void explicit_matrix(void **state)
{
    cb_kernels k;
    cb_kernels_init(&k, cb_isa_detect());
    rng_state = 1;
    for (int block = 512; block <= 4096; block *= 2) {
        const int n = block == 4096 ? block : 2 * block;
        float *x = malloc((size_t)n * 4), *y = malloc((size_t)n * 4);
        for (int i = 0; i < n; i++) y[i] = x[i] = normal();
        k.hadamard(y, n, block, scale_of(block));
        for (int i = 0; i < n; i++) {
            const float *part = x + i / block * block;
            double sum = 0;
            for (int j = 0; j < block; j++) sum += __builtin_popcount((unsigned)(i % block) & (unsigned)j) & 1 ? -(double)part[j] : (double)part[j];
            assert_true(fabs((double)y[i] - sum / sqrt((double)block)) < 2e-6);
        }
        free(x);
        free(y);
    }
}

/* The order of the additions is written down: strides ascending, every sum rounded to f32, the scale last. */
static void written_order(void **state)
{
    static const struct { int block; uint32_t scale; } b[] = {{512, 0x3d3504f3}, {1024, 0x3d000000}, {2048, 0x3cb504f3}, {4096, 0x3c800000}};
    cb_kernels k;
    cb_kernels_init(&k, cb_isa_detect());
    rng_state = 2;
    for (size_t t = 0; t < 4; t++) {
        const int n = b[t].block;
        float *x = malloc((size_t)n * 4), *y = malloc((size_t)n * 4), s = scale_of(n);
        assert_memory_equal(&s, &b[t].scale, 4);
        for (int i = 0; i < n; i++) y[i] = x[i] = ldexpf(normal(), (int)(rng_state >> 60) - 8);
        k.hadamard(y, n, n, s);
        for (int stride = 1; stride < n; stride *= 2)
            for (int i = 0; i < n; i++)
                if (!(i & stride)) {
                    volatile float sum = x[i] + x[i | stride], difference = x[i] - x[i | stride];
                    x[i] = sum;
                    x[i | stride] = difference;
                }
        for (int i = 0; i < n; i++) {
            float want = x[i] * s;
            assert_memory_equal(&want, &y[i], 4);
        }
        free(x);
        free(y);
    }
}

/* H(s . H(s . x)) back again, and H(e0) constant. */
static void round_trip(void **state)
{
    cb_kernels k;
    cb_kernels_init(&k, cb_isa_detect());
    rng_state = 3;
    for (int block = 512; block <= 4096; block *= 2) {
        float *x = malloc((size_t)block * 4), *y = calloc((size_t)block, 4);
        y[0] = 1;
        k.hadamard(y, block, block, scale_of(block));
        for (int i = 0; i < block; i++) assert_true(y[i] == scale_of(block));
        float most = 0;
        for (int i = 0; i < block; i++) {
            x[i] = normal();
            y[i] = i % 3 ? x[i] : -x[i]; /* signs */
            most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
        }
        k.hadamard(y, block, block, scale_of(block));
        k.hadamard(y, block, block, scale_of(block));
        for (int i = 0; i < block; i++) assert_true(fabsf((i % 3 ? y[i] : -y[i]) - x[i]) <= 8 * 0x1p-24f * most);
        free(x);
        free(y);
    }
}

/* A folded row against a rotated input gives the product of the two as they were, for every block; rounding aside. */
static void folded_rows(void **state)
{
    cb_kernels k;
    cb_kernels_init(&k, cb_isa_detect());
    rng_state = 6;
    for (int block = 512; block <= 4096; block *= 2) {
        const int n = 3 * block;
        float *row = malloc((size_t)n * 4), *x = malloc((size_t)n * 4), *s = malloc((size_t)n * 4);
        double *wide = malloc((size_t)n * 8), want = 0, got = 0;
        for (int i = 0; i < n; i++) {
            row[i] = normal();
            x[i] = normal();
            s[i] = cb_q_sign(11, n, i);
            want += (double)row[i] * (double)x[i];
        }
        cb_q_rotate(row, s, wide, n, block);
        for (int i = 0; i < n; i++) x[i] *= s[i];
        k.hadamard(x, n, block, scale_of(block));
        for (int i = 0; i < n; i++) got += (double)row[i] * (double)x[i];
        assert_true(fabs(got - want) < 1e-7 * n);
        free(row);
        free(x);
        free(s);
        free(wide);
    }
}

/* n = 4: x = 1 2 3 4 under signs + - - +; a row with codes 2 0 1 2 reads 3.5 as a head and as an embedding. */
static void worked_example(void **state)
{
    static const float s[4] = {1, -1, -1, 1}, want[4] = {0, -2, -1, 5}, x0[4] = {1, 2, 3, 4}, as_embedding[4] = {0.25f, -0.25f, 0.25f, 0.75f};
    const uint8_t codes[32] = {0x92};
    const float scale = 0.5f, bias = -0.5f;
    float x[4], row[128], dot = 0, tied = 0;
    cb_kernels k;
    cb_kernels_init(&k, cb_isa_detect());
    for (int i = 0; i < 4; i++) x[i] = x0[i] * s[i];
    k.hadamard(x, 4, 4, 0.5f);
    assert_memory_equal(x, want, sizeof x);
    cb_matrix m = {.mode = CB_W_AFFINE, .bits = 2, .group = 128, .stack = 1, .rows = 1, .cols = 128, .codes = codes, .row_bytes = 32,
                   .scales = (const uint8_t *)&scale, .biases = (const uint8_t *)&bias, .scale_dtype = CB_F32};
    cb_matrix_decode_row(&m, 0, 0, row);
    for (int i = 0; i < 4; i++) dot += row[i] * x[i];
    assert_true(dot == 3.5f);
    k.hadamard(row, 4, 4, 0.5f);
    for (int i = 0; i < 4; i++) {
        assert_true(row[i] * s[i] == as_embedding[i]);
        tied += row[i] * s[i] * x0[i];
    }
    assert_true(tied == 3.5f);
    k.hadamard(x, 4, 4, 0.5f); /* and back: transform, then signs */
    for (int i = 0; i < 4; i++) assert_true(x[i] * s[i] == x0[i]);
}

/* ---- a raw Qwen 3.5 checkpoint ---- */

enum { HIDDEN = 512, FFN = 1024, VOCAB = 96, HEADS = 2, KV = 1, DIM = 256, LK = 2, LV = 4, LD = 128 };

typedef struct tensor {
    char name[96];
    int64_t dims[3];
    int n_dims;
    float gain, offset; /* values: offset + gain * normal */
    cb_dtype t;
} tensor;

static tensor tensors[64];
static int n_tensors;

static void add(const char *name, int64_t rows, int64_t cols, float gain)
{
    tensor *t = &tensors[n_tensors++];
    *t = (tensor){.dims = {rows, cols}, .n_dims = cols ? 2 : 1, .gain = cols ? gain / sqrtf((float)cols) : 0.2f, .offset = cols ? 0 : gain, .t = CB_BF16};
    snprintf(t->name, sizeof t->name, "%s", name);
}

static void lay_out(bool tied)
{
    char n[96];
#define N(s) (snprintf(n, sizeof n, "model.language_model.layers.%d.%s.weight", l, s), n)
    n_tensors = 0;
    add("model.language_model.embed_tokens.weight", VOCAB, HIDDEN, tied ? 1.5f : 20);
    add("model.language_model.norm.weight", HIDDEN, 0, 0);
    if (!tied) add("lm_head.weight", VOCAB, HIDDEN, 1.5f);
    for (int l = 0; l < 2; l++) {
        add(N("input_layernorm"), HIDDEN, 0, 0);
        add(N("post_attention_layernorm"), HIDDEN, 0, 0);
        add(N("mlp.gate_proj"), FFN, HIDDEN, 1);
        add(N("mlp.up_proj"), FFN, HIDDEN, 1);
        add(N("mlp.down_proj"), HIDDEN, FFN, 1);
    }
    int l = 0;
    add(N("linear_attn.in_proj_qkv"), 2 * LK * LD + LV * LD, HIDDEN, 1);
    add(N("linear_attn.in_proj_z"), LV * LD, HIDDEN, 1);
    add(N("linear_attn.in_proj_a"), LV, HIDDEN, 1);
    add(N("linear_attn.in_proj_b"), LV, HIDDEN, 1);
    add(N("linear_attn.out_proj"), HIDDEN, LV * LD, 1);
    add(N("linear_attn.norm"), LD, 0, 1);
    add("model.language_model.layers.0.linear_attn.A_log", LV, 0, 0.5f);
    tensors[n_tensors - 1].t = CB_F32;
    add("model.language_model.layers.0.linear_attn.dt_bias", LV, 0, 1);
    add(N("linear_attn.conv1d"), 2 * LK * LD + LV * LD, 1, 0.5f);
    tensors[n_tensors - 1].dims[2] = 4;
    tensors[n_tensors - 1].n_dims = 3;
    l = 1;
    add(N("self_attn.q_proj"), 2 * HEADS * DIM, HIDDEN, 1.5f);
    add(N("self_attn.k_proj"), KV * DIM, HIDDEN, 1.5f);
    add(N("self_attn.v_proj"), KV * DIM, HIDDEN, 1);
    add(N("self_attn.o_proj"), HIDDEN, HEADS * DIM, 1);
    add(N("self_attn.q_norm"), DIM, 0, 0);
    add(N("self_attn.k_norm"), DIM, 0, 0);
}

static char work[64], raw[96], pack[96], other[96], mixed[96];

static void write_raw(bool tied)
{
    cb_st_writer *w;
    cb_err err = {0};
    lay_out(tied);
    rng_state = tied ? 5 : 4;
    assert_int_equal(mkdir(raw, 0777), 0);
    assert_int_equal(cb_st_writer_open(tmp_path(raw, "model.safetensors"), &w, &err), 0);
    for (int i = 0; i < n_tensors; i++)
        assert_int_equal(cb_st_writer_declare(w, tensors[i].name, tensors[i].t, tensors[i].dims, tensors[i].n_dims, &err), 0);
    assert_int_equal(cb_st_writer_begin(w, &err), 0);
    for (int i = 0; i < n_tensors; i++) {
        const tensor *t = &tensors[i];
        int64_t n = t->dims[0] * (t->n_dims > 1 ? t->dims[1] : 1) * (t->n_dims > 2 ? t->dims[2] : 1);
        for (int64_t k = 0; k < n; k++) {
            float v = t->offset + t->gain * normal() * (k % 37 == 5 && t->n_dims == 2 ? 4 : 1); /* outlier columns */
            uint16_t h = cb_f32_to_bf16(v);
            assert_int_equal(cb_st_writer_put(w, t->t == CB_F32 ? (void *)&v : (void *)&h, t->t == CB_F32 ? 4 : 2, &err), 0);
        }
    }
    assert_int_equal(cb_st_writer_commit(w, &err), 0);
    json_t *c = json_pack("{s:s, s:b, s:{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:i, s:[s,s], s:b, s:i, s:{s:s, s:f, s:f}}}",
                          "model_type", "qwen3_5", "tie_word_embeddings", tied, "text_config", "model_type", "qwen3_5_text", "hidden_size", HIDDEN,
                          "intermediate_size", FFN, "num_hidden_layers", 2, "vocab_size", VOCAB, "num_attention_heads", HEADS,
                          "num_key_value_heads", KV, "head_dim", DIM, "linear_num_key_heads", LK, "linear_num_value_heads", LV,
                          "linear_key_head_dim", LD, "linear_value_head_dim", LD, "rms_norm_eps", 1e-6, "full_attention_interval", 2, "layer_types",
                          "linear_attention", "full_attention", "tie_word_embeddings", tied, "max_position_embeddings", 256, "rope_parameters",
                          "rope_type", "default", "rope_theta", 1e7, "partial_rotary_factor", 0.25);
    assert_non_null(c);
    char *text = json_dumps(c, 0);
    tmp_put(raw, "config.json", text, strlen(text));
    free(text);
    json_decref(c);
}

static void make_pack(const char *to, const cb_quantize_opts *o)
{
    cb_err err = {0};
    tmp_remove(to);
    if (cb_quantize(raw, to, o, &err) < 0) fail_msg("%s", err.text);
}

static int setup(void **state)
{
    tmp_dir(work);
    snprintf(raw, sizeof raw, "%s/raw", work);
    snprintf(pack, sizeof pack, "%s/pack", work);
    snprintf(other, sizeof other, "%s/other", work);
    snprintf(mixed, sizeof mixed, "%s/mixed", work);
    return 0;
}

static int teardown(void **state)
{
    tmp_remove(work);
    return 0;
}

/* ---- comparing ---- */

enum { TOKENS = 32 };

static void logits_of(const char *dir, float *out)
{
    cb_engine *e;
    cb_session *s;
    cb_row rows[TOKENS];
    cb_err err = {0};
    if (cb_engine_open(dir, &(cb_engine_opts){.ctx_size = 64, .max_rows = TOKENS}, &e, &err) < 0) fail_msg("%s: %s", dir, err.text);
    assert_int_equal(cb_session_open(e, &s, &err), 0);
    for (int i = 0; i < TOKENS; i++) rows[i] = (cb_row){s, (i * 29 + i * i * 7) % VOCAB, 1};
    if (cb_step(e, rows, TOKENS, out, &err) < 0) fail_msg("%s: %s", dir, err.text);
    cb_session_close(s);
    cb_engine_close(e);
}

/* Mean KL divergence in nats of b from a. */
static double max_of(const float *x)
{
    float m = x[0]; /* two fmax in one loop end gcc 12 for aarch64 with an internal error */
    for (int i = 1; i < VOCAB; i++) m = x[i] > m ? x[i] : m;
    return m;
}

static double mean_kl(const float *a, const float *b)
{
    double kl = 0;
    for (int r = 0; r < TOKENS; r++, a += VOCAB, b += VOCAB) {
        double za = 0, zb = 0, ma = max_of(a), mb = max_of(b);
        for (int i = 0; i < VOCAB; i++) za += exp((double)a[i] - ma), zb += exp((double)b[i] - mb);
        for (int i = 0; i < VOCAB; i++) {
            double la = (double)a[i] - ma - log(za), lb = (double)b[i] - mb - log(zb);
            kl += exp(la) * (la - lb);
        }
    }
    return kl / TOKENS;
}

/* A pack with the JSON files and all tensors of `base`, but those with one of the suffixes from `from` (NULL: left out). */
static void mix(const char *base, const char *from, const char *const *suffixes, const char *json_of)
{
    cb_st a, b;
    cb_st_writer *w;
    cb_err err = {0};
    tmp_remove(mixed);
    assert_int_equal(mkdir(mixed, 0777), 0);
    for (int i = 0; i < 2; i++) {
        cb_map m;
        const char *name = i ? "config.json" : "hadamard.json";
        assert_int_equal(cb_map_open(&m, json_of, name, &err), 0);
        tmp_put(mixed, name, m.data, m.n);
        cb_map_close(&m);
    }
    assert_int_equal(cb_st_open(&a, base, "model.safetensors", &err), 0);
    assert_int_equal(cb_st_open(&b, from ? from : base, "model.safetensors", &err), 0);
    assert_int_equal(cb_st_writer_open(tmp_path(mixed, "model.safetensors"), &w, &err), 0);
    for (int i = 0; i < a.n_tensors; i++) {
        cb_tensor *t = &a.tensors[i];
        if (!from && strstr(t->name, *suffixes)) {
            t->bytes = 0;
            continue;
        }
        for (const char *const *s = suffixes; *s; s++)
            for (int k = 0; k < b.n_tensors && strstr(t->name, *s); k++)
                if (!strcmp(b.tensors[k].name, t->name) && b.tensors[k].dtype == t->dtype && b.tensors[k].bytes == t->bytes) t->data = b.tensors[k].data;
        assert_int_equal(cb_st_writer_declare(w, t->name, t->dtype, t->dims, t->n_dims, &err), 0);
    }
    assert_int_equal(cb_st_writer_begin(w, &err), 0);
    for (int i = 0; i < a.n_tensors; i++) assert_int_equal(cb_st_writer_put(w, a.tensors[i].data, a.tensors[i].bytes, &err), 0);
    assert_int_equal(cb_st_writer_commit(w, &err), 0);
    cb_st_close(&a);
    cb_st_close(&b);
}

/* ---- packs ---- */

static const double NEAR = 3e-3, FAR = 0.3; /* nats */

static double kl_of(const char *dir, const float *truth)
{
    static float got[TOKENS * VOCAB];
    logits_of(dir, got);
    return mean_kl(truth, got);
}

/* 8 bits are near the original, tied or not, for every block that fits; and so is a plain 8-bit model. */
static void near_the_original(void **state)
{
    for (int tied = 0; tied < 2; tied++) {
        float truth[TOKENS * VOCAB];
        tmp_remove(raw);
        write_raw(tied);
        logits_of(raw, truth);
        make_pack(pack, &(cb_quantize_opts){.bits = 8, .hadamard_block = 512, .seed = 7});
        double kl = kl_of(pack, truth);
        make_pack(other, &(cb_quantize_opts){.bits = 8});
        double plain = kl_of(other, truth);
        make_pack(other, &(cb_quantize_opts){.mode = "ternary", .hadamard_block = 512});
        double three = kl_of(other, truth);
        make_pack(other, &(cb_quantize_opts){.hadamard_block = 512});
        double two = kl_of(other, truth);
        print_message("%s: mean KL of 8 bits rotated %.1e, 8 bits plain %.1e, ternary rotated %.2g, 2 bits rotated %.2g\n", tied ? "tied" : "untied",
                      kl, plain, three, two);
        assert_true(kl < NEAR && kl < plain); /* the outliers are spread */
        assert_true(isfinite(three) && isfinite(two));
    }
}

/* The controls: weights that were never folded, signs of another seed, and a loader that leaves the transform out. */
static void controls_fail(void **state)
{
    static const char *const matrices[] = {".weight", ".scales", ".biases", NULL}, *const signs[] = {".signs", NULL};
    float truth[TOKENS * VOCAB];
    cb_err err = {0};
    write_raw(true);
    logits_of(raw, truth);
    make_pack(pack, &(cb_quantize_opts){.bits = 8, .hadamard_block = 512, .seed = 7});
    mix(pack, pack, matrices, pack);
    double same = kl_of(mixed, truth); /* mixing itself changes nothing */

    make_pack(other, &(cb_quantize_opts){.bits = 8, .group = 128, .dtype = "float16"});
    mix(pack, other, matrices, pack);
    double unfolded = kl_of(mixed, truth);

    make_pack(other, &(cb_quantize_opts){.bits = 8, .hadamard_block = 512, .seed = 8});
    mix(pack, other, signs, other);
    double other_signs = kl_of(mixed, truth);

    /* A plain loader meets the signs and stops; without them it reads the pack, fluently and wrongly. */
    mix(pack, NULL, signs, pack);
    json_t *c;
    cb_engine *e;
    assert_int_equal(cb_json_file(pack, "config.json", 1 << 20, &c, &err), 0);
    json_object_set_new(c, "model_type", json_string("qwen3_5"));
    char *text = json_dumps(c, 0);
    tmp_put(pack, "config.json", text, strlen(text));
    tmp_put(mixed, "config.json", text, strlen(text));
    free(text);
    json_decref(c);
    assert_int_equal(cb_engine_open(pack, NULL, &e, &err), CB_EFORMAT);
    assert_non_null(strstr(err.text, ".signs"));
    double skipped = kl_of(mixed, truth);
    print_message("mean KL: pack %.1e, weights not folded %.2g, other signs %.2g, transform left out %.2g\n", same, unfolded, other_signs, skipped);
    assert_true(same < NEAR && unfolded > FAR && other_signs > FAR && skipped > FAR);
}

/* What a pack consists of: signs by seed and width, forward and inverse lists, in_proj_a and in_proj_b plain. */
static void contents(void **state)
{
    cb_err err = {0};
    json_t *h;
    cb_weights *w;
    int64_t version = 0;
    write_raw(false);
    make_pack(pack, &(cb_quantize_opts){.mode = "ternary", .hadamard_block = 512, .seed = 3});
    assert_int_equal(cb_json_file(pack, "hadamard.json", 1 << 20, &h, &err), 0);
    assert_int_equal(cb_json_int(h, "hadamard.json", "prism.hadamard.version", 1, 1, &version, &err), 1);
    const json_t *widths = json_object_get(h, "prism.hadamard.sign_widths"), *values = json_object_get(h, "prism.hadamard.sign_values");
    assert_int_equal(json_array_size(widths), 2);
    assert_int_equal(json_array_size(values), HIDDEN + FFN);
    assert_int_equal(json_array_size(json_object_get(h, "prism.hadamard.weight_names")), 3 + 6 + 4 + 1);
    assert_int_equal(json_array_size(json_object_get(h, "prism.hadamard.inverse_weight_names")), 1);
    int minus = 0;
    for (size_t i = 0; i < HIDDEN + FFN; i++) minus += json_number_value(json_array_get(values, i)) < 0;
    assert_in_range(minus, 668, 868); /* five deviations around half */
    assert_int_equal(cb_weights_open(pack, &w, &err), 0);
    static const char *const plain[] = {"in_proj_a", "in_proj_b"};
    for (int i = 0; i < 2; i++) {
        char name[96];
        snprintf(name, sizeof name, "language_model.model.layers.0.linear_attn.%s.weight", plain[i]);
        assert_int_equal(cb_weights_find(w, name)->dtype, CB_F32);
        snprintf(name, sizeof name, "language_model.model.layers.0.linear_attn.%s.signs", plain[i]);
        assert_null(cb_weights_find(w, name));
    }
    const cb_tensor *s = cb_weights_find(w, "language_model.lm_head.scales"), *b = cb_weights_find(w, "language_model.lm_head.biases");
    assert_int_equal(s->dtype, CB_F16);
    for (uint64_t i = 0; i < s->bytes; i++) assert_int_equal(s->data[i] ^ b->data[i], i % 2 ? 0x80 : 0);
    const cb_tensor *conv = cb_weights_find(w, "language_model.model.layers.0.linear_attn.conv1d.weight");
    assert_true(conv->dims[1] == 4 && conv->dims[2] == 1 && conv->dtype == CB_F32);
    const cb_tensor *norm = cb_weights_find(w, "language_model.model.norm.weight");
    assert_true(norm->dtype == CB_F32 && cb_load_float(norm->data, CB_F32, 0) > 0.2f); /* its 1 is in it */
    cb_weights_close(w);
    json_decref(h);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(explicit_matrix), cmocka_unit_test(written_order), cmocka_unit_test(round_trip), cmocka_unit_test(folded_rows), cmocka_unit_test(worked_example),
        CASE(near_the_original), CASE(controls_fail), CASE(contents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
