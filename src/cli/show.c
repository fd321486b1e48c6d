/* show.c: `cambium show`: one model in some twenty lines, or as one JSON object. */
#include "base/json.h"
#include "base/mem.h"
#include "cli/commands.h"
#include "cli/memory.h"
#include "cli/term.h"
#include <stdlib.h>
#include <string.h>

static const char *const config_keys[] = { "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads",
                                           "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings", "sliding_window",
                                           "rope_theta", "tie_word_embeddings", "rms_norm_eps" };

static const json_t *config_value(const json_t *config, const char *key)
{
    const json_t *v = json_object_get(json_object_get(config, "text_config"), key);
    return v ? v : json_object_get(config, key);
}

/* Every number of bits and group size that the quantisation table names: "4-bit g64 (default), 6-bit g64 x 30". */
static json_t *quant_groups(const json_t *config)
{
    const json_t *q = json_object_get(config, "quantization");
    if (!q) q = json_object_get(config, "quantization_config");
    json_t *groups = json_object();
    char name[64];
    const char *key;
    json_t *v;
    if (json_object_get(q, "bits"))  {
        snprintf(name, sizeof name, "%d-bit g%d, default", (int)json_integer_value(json_object_get(q, "bits")),
                 (int)json_integer_value(json_object_get(q, "group_size")));
        json_object_set_new(groups, name, json_null());
    }
    json_object_foreach((json_t *)q, key, v)
    {
        if (json_is_object(v)) {
            int bits = (int)json_integer_value(json_object_get(v, "bits")), group = (int)json_integer_value(json_object_get(v, "group_size"));
            snprintf(name, sizeof name, "%d-bit g%d", bits, group);
        } else if (json_is_false(v) && strcmp(key, "quantize_activations") != 0)
            snprintf(name, sizeof name, "not quantised");
        else continue;
        json_object_set_new(groups, name, json_integer(1 + json_integer_value(json_object_get(groups, name))));
    }
    return groups;
}

static json_t *stop_ids(const cb_tokenizer *t)
{
    json_t *a = json_array();
    for (int32_t i = 0, n = cb_tokenizer_n_vocab(t); i < n; i++) {
        size_t len = 0;
        if (!cb_tokenizer_is_stop(t, i)) continue;
        const char *text = cb_tokenizer_token(t, i, &len);
        json_array_append_new(a, json_pack("{s:i, s:o}", "id", i, "text", cli_json_string(text ? text : "", text ? len : 0)));
    }
    return a;
}

static json_t *sampling_json(const cb_sampling *p)
{
    static const char *const profiles[] = { "hf", "vllm", "mlx", "llamacpp" };
    return json_pack("{s:s, s:f, s:i, s:f, s:f, s:f, s:f, s:f}", "profile", profiles[p->profile], "temperature", (double)p->temperature, "top_k", p->top_k,
                     "top_p", (double)p->top_p, "min_p", (double)p->min_p, "repetition_penalty", (double)p->repetition_penalty,
                     "presence_penalty", (double)p->presence_penalty, "frequency_penalty", (double)p->frequency_penalty);
}

static json_t *gather(const cli_opts *o, cli_model *m, cb_err *err)
{
    describe d;
    describe_dtype types[DESCRIBE_DTYPES];
    json_t *config = NULL;
    cb_sampling sampling;
    int n_types = 0;
    if (describe_dir(m->dir, &d, err) < 0 || cb_json_file(m->dir, "config.json", 16 << 20, &config, err) < 0) return NULL;
    if ((n_types = describe_dtypes(m->dir, types, err)) < 0 || cli_sampling(o, m->dir, &sampling, err) < 0) {
        json_decref(config);
        return NULL;
    }
    json_t *j = json_pack("{s:o, s:s, s:s, s:i, s:I}", "dir", cli_json_string(m->dir, strlen(m->dir)), "model_type", d.model_type, "format", d.quant,
                          "files", d.n_files, "bytes", (json_int_t)d.bytes);
    json_t *c = json_object(), *t = json_object();
    for (size_t i = 0; i < sizeof config_keys / sizeof *config_keys; i++) {
        const json_t *v = config_value(config, config_keys[i]);
        if (v && !json_is_null(v) && !json_is_object(v)) json_object_set(c, config_keys[i], (json_t *)v);
    }
    json_object_set_new(j, "config", c);
    for (int i = 0; i < n_types; i++)
        json_object_set_new(t, types[i].name, json_pack("{s:i, s:I}", "tensors", types[i].n, "bytes", (json_int_t)types[i].bytes));
    json_object_set_new(j, "dtypes", t);
    json_object_set_new(j, "quantization", quant_groups(config));
    json_object_set_new(j, "chat_template", json_boolean(m->tmpl != NULL));
    if (m->tok) json_object_set_new(j, "stop_tokens", stop_ids(m->tok));
    json_object_set_new(j, "sampling", sampling_json(&sampling));
    json_decref(config);
    return j;
}

/* Opens e for its plan; it stays closed when the model cannot be run. */
static void add_engine(json_t *j, const cli_opts *o, cli_model *e, cb_memory *mem)
{
    cb_err why = {0};
    if (cli_model_open(e, o, CLI_NEED_ENGINE | CLI_PLAN_ONLY, 0, 0, &why) < 0 || cb_engine_get_memory(e->engine, 0, mem, &why) < 0) {
        json_object_set_new(j, "runnable", json_false());
        json_object_set_new(j, "why_not", json_string(why.text));
        return;
    }
    const cb_engine_info *in = &e->info;
    json_object_set_new(j, "runnable", json_true());
    json_object_set_new(j, "engine", json_pack("{s:s, s:s, s:s, s:I, s:I, s:i, s:I, s:i, s:i, s:I, s:I}", "family", in->family, "device", in->device, "arithmetic",
                                               in->arithmetic, "parameters", (json_int_t)in->n_params, "weight_bytes", (json_int_t)in->weight_bytes,
                                               "skipped_tensors", in->n_skipped, "skipped_bytes", (json_int_t)in->skipped_bytes,
                                               "ctx_size", in->ctx_size, "ctx_trained", in->ctx_trained, "state_bytes", (json_int_t)in->state_bytes,
                                               "scratch_bytes", (json_int_t)in->scratch_bytes));
    json_object_set_new(j, "memory", memory_json(mem, in));
}

static void print_text(const json_t *j, const cli_model *engine, const cb_memory *mem)
{
    char a[32];
    const char *key;
    json_t *v;
    const json_t *e = json_object_get(j, "engine");
    printf("folder      %s\n", json_string_value(json_object_get(j, "dir")));
    printf("type        %s", json_string_value(json_object_get(j, "model_type")));
    if (e) printf(" (family %s), %.1f M parameters", json_string_value(json_object_get(e, "family")), (double)json_integer_value(json_object_get(e, "parameters")) / 1e6);
    printf("\nfiles       %d, %s\n", (int)json_integer_value(json_object_get(j, "files")), cli_bytes(a, (uint64_t)json_integer_value(json_object_get(j, "bytes"))));
    json_object_foreach(json_object_get(j, "config"), key, v)
    {
        char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9) | JSON_COMPACT);
        printf("            %s %.100s\n", key, text ? text : "");
        free(text);
    }
    printf("format      %s\n", json_string_value(json_object_get(j, "format")));
    json_object_foreach(json_object_get(j, "quantization"), key, v)
    {
        if (json_is_integer(v)) printf("            %s: %d modules of their own\n", key, (int)json_integer_value(v));
        else printf("            %s\n", key);
    }
    json_object_foreach(json_object_get(j, "dtypes"), key, v)
        printf("            %s: %d tensors, %s\n", key, (int)json_integer_value(json_object_get(v, "tensors")), cli_bytes(a, (uint64_t)json_integer_value(json_object_get(v, "bytes"))));
    if (e && engine->info.n_skipped)
        printf("            not read: %d tensors, %s, of parts that are not run\n", engine->info.n_skipped, cli_bytes(a, engine->info.skipped_bytes));
    if (e) {
        memory_print(mem, &engine->info);
        printf("runs on     %s, %s\n", engine->info.device, engine->info.arithmetic);
    }
    if (!e) printf("runs        no: %s\n", json_string_value(json_object_get(j, "why_not")));
    printf("template    %s\n", json_is_true(json_object_get(j, "chat_template")) ? "yes" : "none (use --raw)");
    printf("end tokens ");
    size_t i;
    json_array_foreach(json_object_get(j, "stop_tokens"), i, v)
        printf(" %d %s", (int)json_integer_value(json_object_get(v, "id")), json_string_value(json_object_get(v, "text")));
    const json_t *s = json_object_get(j, "sampling");
    printf("\nsampling    profile %s, temperature %g, top-k %d, top-p %g, min-p %g, repeat penalty %g\n", json_string_value(json_object_get(s, "profile")),
           json_real_value(json_object_get(s, "temperature")), (int)json_integer_value(json_object_get(s, "top_k")), json_real_value(json_object_get(s, "top_p")),
           json_real_value(json_object_get(s, "min_p")), json_real_value(json_object_get(s, "repetition_penalty")));
}

int cmd_show(const cli_opts *o, cb_err *err)
{
    cli_model m = {0};
    cb_err no_tokenizer = {0};
    int rc = cli_model_open(&m, o, CLI_WANT_TEMPLATE, 0, 0, err);
    if (rc < 0) return rc;
    if (cb_tokenizer_open(m.dir, &m.tok, &no_tokenizer) < 0) {
        m.tok = NULL;
        cli_note(o, "tokenizer: %s", no_tokenizer.text);
    }
    json_t *j = gather(o, &m, err);
    if (!j) rc = err->code ? err->code : CB_ENOMEM;
    else {
        cli_opts quiet = *o;
        cli_model engine = {0};
        cb_memory mem;
        quiet.level = CLI_ERROR;
        add_engine(j, &quiet, &engine, &mem);
        if (o->json) rc = cli_print_json(json_incref(j), err);
        else print_text(j, &engine, &mem);
        cli_model_close(&engine);
    }
    json_decref(j);
    cli_model_close(&m);
    return rc;
}
