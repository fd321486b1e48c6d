/* bonsai2: packs that say something else than they should. Every deviation is refused with the field or tensor named, since a
 * transform misread yields fluent nonsense. The packs are copies of tests/data/tiny-bonsai2 with one thing changed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* in this order: cmocka wants the four above */
#include "base/json.h"
#include "io/safetensors.h"
#include <cmocka.h>
#include "support/tmpdir.h"

static char work[64];

static int setup(void **state)
{
    tmp_dir(work);
    return 0;
}

static int teardown(void **state)
{
    tmp_remove(work);
    return 0;
}

/* ---- one changed copy ---- */

/* A change of a JSON file at a path of keys and indexes parted by '/'; "+" appends, no value deletes. Tensors: SIGNS etc. */
typedef struct change {
    const char *file;  /* "config.json", "hadamard.json"; NULL: none */
    const char *at, *value;
    const char *tensor; /* of model.safetensors, with `what` done to it */
    enum { KEEP, DROP, COPY_AS, DTYPE, FLIP, SHAPE } what;
    const char *as;     /* COPY_AS: the further name */
    const char *want;   /* part of the message */
    bool tied;          /* of tiny-bonsai2-tied */
} change;

static json_t *step(json_t *j, const char *key)
{
    return json_is_array(j) ? json_array_get(j, strtoul(key, NULL, 10)) : json_object_get(j, key);
}

static void edit(json_t *root, const change *c)
{
    char path[200], *key = path, *slash;
    json_t *j = root;
    snprintf(path, sizeof path, "%s", c->at);
    for (; (slash = strchr(key, '/')); key = slash + 1) {
        *slash = 0;
        j = step(j, key);
        assert_non_null(j);
    }
    json_t *v = c->value ? json_loads(c->value, JSON_DECODE_ANY, NULL) : NULL;
    assert_true(v || !c->value);
    if (json_is_array(j)) {
        size_t i = strtoul(key, NULL, 10);
        if (*key == '+') assert_int_equal(json_array_append_new(j, v), 0);
        else if (v) assert_int_equal(json_array_set_new(j, i, v), 0);
        else assert_int_equal(json_array_remove(j, i), 0);
    } else if (v) assert_int_equal(json_object_set_new(j, key, v), 0);
    else assert_int_equal(json_object_del(j, key), 0);
}

static void put_json(const char *from, const char *name, const change *c)
{
    json_t *j;
    cb_err err = {0};
    if (cb_json_file(from, name, 1 << 20, &j, &err) < 0) fail_msg("%s", err.text);
    if (c->file && !strcmp(c->file, name) && c->at) edit(j, c);
    char *text = json_dumps(j, 0);
    if (!(c->file && !strcmp(c->file, name) && !c->at)) tmp_put(work, name, text, strlen(text)); /* no path: the file is missing */
    free(text);
    json_decref(j);
}

static void declare(cb_st_writer *w, const cb_tensor *t, const change *c)
{
    cb_err err = {0};
    bool it = c->tensor && !strcmp(t->name, c->tensor);
    int64_t dims[CB_MAX_DIMS];
    memcpy(dims, t->dims, sizeof dims);
    if (it && c->what == DROP) return;
    if (it && c->what == SHAPE) { /* the last two sides change places, or half a vector */
        if (t->n_dims == 1) dims[0] /= 2;
        else dims[t->n_dims - 1] = t->dims[t->n_dims - 2], dims[t->n_dims - 2] = t->dims[t->n_dims - 1];
    }
    cb_dtype dt = !it || c->what != DTYPE ? t->dtype : t->dtype == CB_F32 ? CB_F16 : CB_BF16;
    assert_int_equal(cb_st_writer_declare(w, t->name, dt, dims, t->n_dims, &err), 0);
    if (it && c->what == COPY_AS) assert_int_equal(cb_st_writer_declare(w, c->as, dt, dims, t->n_dims, &err), 0);
}

static void put(cb_st_writer *w, const cb_tensor *t, const change *c)
{
    cb_err err = {0};
    bool it = c->tensor && !strcmp(t->name, c->tensor);
    uint8_t *d = malloc(t->bytes);
    if (it && c->what == DROP) {
        free(d);
        return;
    }
    memcpy(d, t->data, t->bytes);
    size_t n = t->bytes;
    if (it && c->what == FLIP) d[4 * 7 + 3] ^= 0x80;
    if (it && ((c->what == DTYPE && t->dtype == CB_F32) || (c->what == SHAPE && t->n_dims == 1))) n /= 2;
    assert_int_equal(cb_st_writer_put(w, d, n, &err), 0);
    if (it && c->what == COPY_AS) assert_int_equal(cb_st_writer_put(w, d, n, &err), 0);
    free(d);
}

static void make(const change *c)
{
    const char *from = c->tied ? "tests/data/tiny-bonsai2-tied" : "tests/data/tiny-bonsai2";
    cb_st s;
    cb_st_writer *w;
    cb_err err = {0};
    bool found = !c->tensor;
    put_json(from, "config.json", c);
    put_json(from, "hadamard.json", c);
    assert_int_equal(cb_st_open(&s, from, "model.safetensors", &err), 0);
    assert_int_equal(cb_st_writer_open(tmp_path(work, "model.safetensors"), &w, &err), 0);
    for (int i = 0; i < s.n_tensors; i++) {
        found |= c->tensor && !strcmp(s.tensors[i].name, c->tensor);
        declare(w, &s.tensors[i], c);
    }
    assert_int_equal(cb_st_writer_begin(w, &err), 0);
    for (int i = 0; i < s.n_tensors; i++) put(w, &s.tensors[i], c);
    assert_int_equal(cb_st_writer_commit(w, &err), 0);
    cb_st_close(&s);
    if (!found) fail_msg("%s: no such tensor", c->tensor);
}

static int open_it(cb_err *err)
{
    cb_engine *e;
    int rc = cb_engine_open(work, &(cb_engine_opts){.ctx_size = 16, .n_threads = 1}, &e, err);
    cb_engine_close(e);
    return rc;
}

static void refuse(const change *c)
{
    cb_err err = {0};
    tmp_remove(work);
    assert_int_equal(mkdir(work, 0777), 0);
    make(c);
    int rc = open_it(&err);
    if (rc != CB_EFORMAT || !strstr(err.text, c->want))
        fail_msg("%s %s %s: wanted \"%s\", got %d: %s", c->file ? c->file : "", c->at ? c->at : "", c->tensor ? c->tensor : "", c->want, rc, err.text);
}

static void refuse_all(const change *c, size_t n)
{
    for (size_t i = 0; i < n; i++) refuse(&c[i]);
}
#define REFUSE_ALL(list) refuse_all(list, sizeof(list) / sizeof *(list))

/* Unchanged copies open: what is refused below is refused for its change. */
static void unchanged(void **state)
{
    for (int tied = 0; tied < 2; tied++) {
        cb_err err = {0};
        make(&(change){.tied = tied});
        if (open_it(&err) < 0) fail_msg("%s", err.text);
    }
    /* what may be: quantization_config as a copy, the embedding of a tied pack in the other list too */
    static const change good[] = {
        {.file = "config.json", .at = "quantization_config", .value = "{\"bits\": 2, \"group_size\": 128, \"mode\": \"affine\"}"},
        {.file = "hadamard.json", .at = "prism.hadamard.weight_names/+", .value = "\"language_model.model.embed_tokens.weight\"", .tied = true},
    };
    for (size_t i = 0; i < 2; i++) {
        cb_err err = {0};
        make(&good[i]);
        if (open_it(&err) < 0) fail_msg("%s", err.text);
    }
}

/* ---- config.json ---- */

static void config_fields(void **state)
{
    static const char f[] = "config.json";
    static const change c[] = {
        {f, "model_type", "\"prism_hadamard_llama\"", .want = "prism_hadamard_llama"},
        {f, "schema_version", "1", .want = "schema_version is 1"},
        {f, "schema_version", NULL, .want = "schema_version"},
        {f, "base_model_type", "\"qwen3\"", .want = "base_model_type is qwen3"},
        {f, "tensor_namespace", "\"plain\"", .want = "tensor_namespace is plain"},
        {f, "gdn_activation_layout", "\"tiled\"", .want = "gdn_activation_layout is tiled"},
        {f, "hadamard_config", "\"other.json\"", .want = "hadamard_config is other.json"},
        {f, "components/text", "false", .want = "components: text"},
        {f, "components/mtp", "true", .want = "components: mtp"},
        {f, "quantization/bits", "4", .want = "language_model.model.embed_tokens.weight"},
        {f, "quantization/bits", "7", .want = "bits 7"},
        {f, "quantization/bits", "1", .want = "bits is 1"},
        {f, "quantization/group_size", "64", .want = "language_model.model.embed_tokens.weight"},
        {f, "quantization/group_size", "256", .want = "group_size"},
        {f, "quantization/mode", "\"mxfp4\"", .want = "mode"},
        {f, "quantization/language_model.lm_head", "{\"bits\": 4, \"group_size\": 64}", .want = "language_model.lm_head has an entry"},
        {f, "quantization_config", "{\"bits\": 4, \"group_size\": 64}", .want = "quantization_config differs"},
        {f, "tie_word_embeddings", "true", .want = "tie_word_embeddings differs"},
        {f, "text_config/hidden_size", "1024", .want = "embed_tokens"},
        {f, "text_config/linear_num_value_heads", "8", .want = "in_proj"},
    };
    REFUSE_ALL(c);
}

static void config_modules(void **state)
{
    static const char f[] = "config.json";
    static const change c[] = {
        {f, "modules", NULL, .want = "modules is not a list"},
        {f, "modules", "[]", .want = "hadamard.json: language_model."},
        {f, "modules/3/block", "1024", .want = "has block 1024, hadamard.json says 512"},
        {f, "modules/3/block", "0", .want = ".signs exists"},
        {f, "modules/3/block", NULL, .want = "block is missing"},
        {f, "modules/3/dtype", "\"bfloat16\"", .want = "dtype is bfloat16"},
        {f, "modules/3/path", NULL, .want = "modules[3].path"},
        {f, "modules/3/path", "\"model.layers.0.mlp.nothing\"", .want = "model.layers.0.mlp.nothing"},
        {f, "modules/3/embedding", "true", .want = "embedding is true"},
        {f, "modules/0/embedding", "false", .want = "model.embed_tokens: embedding is false"},
        {f, "modules/3", NULL, .want = "config.json: modules lacks it"},
        {f, "modules/+", "{\"path\": \"model.embed_tokens\", \"block\": 512, \"embedding\": true, \"dtype\": \"float16\"}",
         .want = "model.embed_tokens stands twice"},
        {f, "modules/+", "{\"path\": \"model.layers.0.linear_attn.in_proj_a\", \"block\": 512, \"embedding\": false, \"dtype\": \"float16\"}",
         .want = "in_proj_a"},
    };
    REFUSE_ALL(c);
}

/* ---- hadamard.json ---- */

static void contract_fields(void **state)
{
    static const char f[] = "hadamard.json";
    static const change c[] = {
        {f, NULL, NULL, .want = "hadamard.json"},
        {f, "prism.hadamard.version", "2", .want = "prism.hadamard.version is 2"},
        {f, "prism.hadamard.version", NULL, .want = "prism.hadamard.version"},
        {f, "prism.hadamard.block_size", "1024", .want = "block"},
        {f, "prism.hadamard.block_size", "256", .want = "block_size is 256"},
        {f, "prism.hadamard.block_size", "768", .want = "block_size is 768"},
        {f, "prism.hadamard.transform", "\"sequency-walsh-hadamard\"", .want = "transform is sequency"},
        {f, "prism.hadamard.axis", "\"output-first-dimension\"", .want = "axis is output"},
        {f, "prism.hadamard.sign_mode", "\"identity\"", .want = "sign_mode is identity"},
        {f, "prism.hadamard.gdn_v_grouped", "false", .want = "gdn_v_grouped"},
        {f, "prism.hadamard.permutation", "\"bit-reversed\"", .want = "prism.hadamard.permutation is unknown"},
    };
    REFUSE_ALL(c);
}

static void contract_lists(void **state)
{
    static const char f[] = "hadamard.json";
    static const change c[] = {
        {f, "prism.hadamard.weight_names", NULL, .want = "weight_names is not a list"},
        {f, "prism.hadamard.weight_names/2", NULL, .want = "is not listed"},
        {f, "prism.hadamard.weight_names/2", "\"language_model.lm_head\"", .want = "weight_names[2]"},
        {f, "prism.hadamard.weight_names/2", "7", .want = "weight_names[2]"},
        {f, "prism.hadamard.weight_names/+", "\"language_model.model.layers.1.mlp.up_proj.weight\"", .want = "up_proj.weight twice"},
        {f, "prism.hadamard.weight_names/+", "\"language_model.model.norm.weight\"", .want = "language_model.model.norm.weight is listed"},
        {f, "prism.hadamard.weight_names/+", "\"language_model.model.embed_tokens.weight\"", .want = "embed_tokens.weight is in weight_names and"},
        {f, "prism.hadamard.inverse_weight_names", "[]", .want = "embed_tokens.weight is not listed"},
        {f, "prism.hadamard.inverse_weight_names/+", "\"language_model.lm_head.weight\"", .want = "lm_head.weight"},
        {f, "prism.hadamard.sign_widths", "[256]", .want = "sign_widths[0] is 256"},
        {f, "prism.hadamard.sign_widths", "[1024]", .want = "sign_values has 512 numbers"},
        {f, "prism.hadamard.sign_widths", "[512, 512]", .want = "sign_widths has 512 twice"},
        {f, "prism.hadamard.sign_widths", "\"512\"", .want = "sign_widths or sign_values"},
        {f, "prism.hadamard.sign_values/511", NULL, .want = "sign_values has 511 numbers"},
        {f, "prism.hadamard.sign_values/100", "0.5", .want = "sign_values[100] is 0.5"},
        {f, "prism.hadamard.sign_values/+", "1.0", .want = "sign_values has 513 numbers"},
    };
    REFUSE_ALL(c);
}

/* ---- tensors ---- */

static void tensors(void **state)
{
#define L "language_model.model.layers."
    static const change c[] = {
        {.tensor = L "1.mlp.up_proj.signs", .what = DROP, .want = L "1.mlp.up_proj.signs: missing"},
        {.tensor = L "1.mlp.up_proj.signs", .what = DTYPE, .want = L "1.mlp.up_proj.signs"},
        {.tensor = L "1.mlp.up_proj.signs", .what = SHAPE, .want = L "1.mlp.up_proj.signs has 256 signs"},
        {.tensor = L "1.mlp.up_proj.signs", .what = FLIP, .want = L "1.mlp.up_proj.signs[7] differs"},
        {.tensor = "language_model.model.embed_tokens.signs", .what = FLIP, .want = "embed_tokens.signs[7] differs"},
        {.tensor = L "0.linear_attn.out_proj.weight", .what = DROP, .want = L "0.linear_attn.out_proj.weight"},
        {.tensor = L "0.linear_attn.out_proj.scales", .what = DROP, .want = L "0.linear_attn.out_proj.weight"},
        {.tensor = L "0.linear_attn.out_proj.biases", .what = DROP, .want = L "0.linear_attn.out_proj.scales"},
        {.tensor = L "0.linear_attn.out_proj.biases", .what = DTYPE, .want = L "0.linear_attn.out_proj.biases is BF16"},
        {.tensor = L "0.linear_attn.out_proj.weight", .what = SHAPE, .want = L "0.linear_attn.out_proj"},
        {.tensor = L "0.linear_attn.in_proj_z.signs", .what = COPY_AS, .as = L "0.linear_attn.in_proj_a.signs", .want = "in_proj_a.signs exists"},
        {.tensor = L "0.linear_attn.in_proj_z.scales", .what = COPY_AS, .as = L "0.linear_attn.in_proj_b.scales", .want = "in_proj_b.scales exists"},
        {.tensor = L "0.linear_attn.conv1d.weight", .what = SHAPE, .want = "conv1d.weight is not [channels,taps,1]"},
        {.tensor = "language_model.lm_head.weight", .what = DROP, .want = "lm_head"},
        {.tensor = "language_model.model.norm.weight", .what = COPY_AS, .as = "language_model.mtp.norm.weight", .want = "mtp.norm.weight"},
        {.tensor = "language_model.model.embed_tokens.weight", .what = COPY_AS, .as = "language_model.lm_head.weight", .tied = true,
         .want = "language_model.lm_head.weight exists"},
    };
    REFUSE_ALL(c);
}

/* A module left out of both lists is still a packed tensor: it would have been read without its transform. */
static void forgotten_module(void **state)
{
    cb_err err = {0};
    json_t *j;
    make(&(change){.file = "config.json", .at = "modules/3"});
    assert_int_equal(cb_json_file("tests/data/tiny-bonsai2", "config.json", 1 << 20, &j, &err), 0);
    char name[256];
    snprintf(name, sizeof name, "language_model.%s.weight", json_string_value(json_object_get(json_array_get(json_object_get(j, "modules"), 3), "path")));
    json_decref(j);
    assert_int_equal(cb_json_file("tests/data/tiny-bonsai2", "hadamard.json", 1 << 20, &j, &err), 0);
    json_t *list = json_object_get(j, "prism.hadamard.weight_names");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!strcmp(json_string_value(json_array_get(list, i)), name)) json_array_remove(list, i--);
    char *text = json_dumps(j, 0);
    tmp_put(work, "hadamard.json", text, strlen(text));
    free(text);
    json_decref(j);
    assert_int_equal(open_it(&err), CB_EFORMAT);
    if (!strstr(err.text, "exists, but config.json: modules lacks")) fail_msg("%s", err.text);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest all[] = {
        CASE(unchanged), CASE(config_fields), CASE(config_modules), CASE(contract_fields), CASE(contract_lists), CASE(tensors), CASE(forgotten_module),
    };
    return cmocka_run_group_tests(all, NULL, NULL);
}
