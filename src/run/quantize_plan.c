/* quantize_plan.c: which tensor becomes which, as mlx-lm's convert decides: names (the sanitize functions of its models),
 * dtypes, and the modules that are quantised (its predicates). Reading order: map_name(), add_tensor(), cb_q_plan_make(). */
#include "run/quantize.h"
#include "model/family.h"
#include <fnmatch.h>
#include <inttypes.h>
#include <string.h>

enum { MAX_NAME = 500 };
static const uint64_t MAX_SHARD = (uint64_t)5 << 30;
static const int64_t MAX_COLS = 1 << 26;

static bool starts(const char *s, const char *with) { return !strncmp(s, with, strlen(with)); }

static bool ends(const char *s, const char *with)
{
    size_t n = strlen(s), k = strlen(with);
    return n >= k && !strcmp(s + n - k, with);
}

static bool has_any(const char *s, const char *const *parts)
{
    for (; *parts; parts++)
        if (strstr(s, *parts)) return true;
    return false;
}

/* ---- names ---- */

/* Qwen 3.5: the text model under language_model., no vision tower, no draft heads. */
static bool qwen35_name(const cb_q_plan *p, const char *in, char *out)
{
    static const char raw[] = "model.language_model";
    if (starts(in, "vision_tower") || starts(in, "model.visual") || strstr(in, "mtp.")) return false;
    if (starts(in, raw)) snprintf(out, MAX_NAME, "language_model.model%s", in + strlen(raw));
    else snprintf(out, MAX_NAME, "%s%s", starts(in, "language_model.") ? "" : "language_model.", in);
    return !(p->tied && ends(in, "lm_head.weight"));
}

/* The layer of "...layers.N....", or -1. */
static int64_t layer_of(const char *name)
{
    const char *at = strstr(name, "layers.");
    int64_t l = 0;
    if (!at || at[7] < '0' || at[7] > '9') return -1;
    for (at += 7; *at >= '0' && *at <= '9' && l < 100000; at++) l = 10 * l + (*at - '0');
    return l;
}

static bool gemma4_name(const cb_q_plan *p, const char *in, char *out)
{
    static const char *const dropped[] = {"self_attn.rotary_emb", "input_max", "input_min", "output_max", "output_min", NULL};
    static const char *const kv[] = {".self_attn.k_proj", ".self_attn.v_proj", ".self_attn.k_norm", NULL};
    static const char *const towers[] = {"vision_tower", "multi_modal_projector", "audio_tower", "embed_audio", "embed_vision",
                                         "vision_embedder", NULL};
    static const char inner[] = "language_model.";
    if (has_any(in, dropped) || (has_any(in, kv) && layer_of(in) >= p->layers - p->shared)) return false;
    if (!strcmp(p->config->model_type, "gemma4_text")) {
        snprintf(out, MAX_NAME, "%s", in);
        return true;
    }
    bool raw = starts(in, "model.");
    const char *s = raw ? in + strlen("model.") : in;
    for (const char *const *t = towers; *t; t++)
        if (starts(s, *t)) return false;
    if (raw && starts(s, inner)) snprintf(out, MAX_NAME, "language_model.model.%s", s + strlen(inner));
    else snprintf(out, MAX_NAME, "%s", s);
    return true;
}

/* The output's name of a tensor; false when the output does not have it. */
static bool map_name(const cb_q_plan *p, const char *in, char *out)
{
    if (!strcmp(p->family, "qwen3_5")) return qwen35_name(p, in, out);
    if (!strcmp(p->family, "gemma4")) return gemma4_name(p, in, out);
    snprintf(out, MAX_NAME, "%s", in);
    return !strstr(in, "self_attn.rotary_emb.inv_freq") && !(p->tied && strcmp(p->family, "gemma3") && !strcmp(in, "lm_head.weight"));
}

/* ---- items ---- */

const char *cb_q_path(const cb_q_item *it, char buf[512])
{
    snprintf(buf, 512, "%.*s", (int)(strlen(it->name) - strlen(".weight")), it->name);
    return buf;
}

/* The path or any tail of it that begins behind a dot. */
static bool matches(const char *pattern, const char *path)
{
    for (const char *s = path; s; s = strchr(s, '.'), s = s ? s + 1 : NULL)
        if (fnmatch(pattern, s, 0) == 0) return true;
    return false;
}

static bool kept(const cb_q_plan *p, const char *path)
{
    for (int i = 0; i < p->opts->n_keep; i++)
        if (matches(p->opts->keep[i], path)) return true;
    return false;
}

/* Routers keep 8 bits: mlx-lm's quant_predicate of these families. */
static bool is_router(const cb_q_plan *p, const char *path)
{
    if (!strcmp(p->family, "qwen3_5")) return ends(path, "mlp.gate") || ends(path, "shared_expert_gate");
    return !strcmp(p->family, "gemma4") && ends(path, "router.proj");
}

static bool is_module(const cb_q_item *it)
{
    return ends(it->name, ".weight") && (it->n_dims == 2 || (it->n_dims == 3 && strstr(it->name, ".switch_")));
}

static int choose_format(cb_q_plan *p, cb_q_item *it, cb_err *err)
{
    const int block = p->opts->hadamard_block;
    char path[512];
    if (!is_module(it) || kept(p, cb_q_path(it, path))) return 0;
    if (block) {
        if (ends(path, "in_proj_a") || ends(path, "in_proj_b")) return 0;
        if (it->cols % block || it->cols % p->q.group)
            return cb_fail(err, CB_EUSAGE, "%s: %" PRId64 " columns are not a multiple of the Hadamard block %d", it->src->name, it->cols,
                           block);
        it->block = block;
    }
    if (it->cols % p->q.group) return 0;
    it->q = p->q;
    if (is_router(p, path)) {
        if (it->cols % 64) return 0;
        it->q = (cb_quantizer){.mode = CB_W_AFFINE, .bits = 8, .group = 64, .gpu = p->q.gpu};
        it->own_spec = true;
    }
    it->q.values = block ? CB_F32 : it->dtype;
    it->q.scales = it->q.mode != CB_W_AFFINE ? CB_U8 : block ? CB_F16 : it->dtype;
    it->quantised = true;
    return 0;
}

static uint64_t item_bytes(const cb_q_item *it)
{
    uint64_t rows = (uint64_t)(it->stack * it->rows), n = rows * (uint64_t)it->cols;
    if (!it->quantised) return n * cb_dtype_size(it->dtype);
    int parts = it->q.mode == CB_W_AFFINE ? 2 : 1;
    n = rows * (cb_quantizer_row_bytes(&it->q, it->cols) + (uint64_t)parts * cb_quantizer_scale_bytes(&it->q, it->cols));
    return n + (it->block ? 4 * (uint64_t)it->cols : 0);
}

/* Which numbers the output's floats are: a pack's are F32; A_log keeps its own dtype (mlx-lm's cast_predicate). */
static cb_dtype float_dtype(const cb_q_plan *p, const cb_tensor *src, const char *name)
{
    if (p->opts->hadamard_block) return CB_F32;
    if (p->dtype == CB_N_DTYPES || (!strcmp(p->family, "qwen3_5") && ends(name, "A_log"))) return src->dtype;
    return p->dtype;
}

/* An item of rows row0 .. row0+rows of each of the source's matrices. */
static int add_item(cb_q_plan *p, const cb_tensor *src, const char *name, int64_t row0, int64_t rows, cb_err *err)
{
    if (p->n_items == p->cap_items) { /* the old array stays behind in the arena; doubling bounds the waste */
        int cap = p->cap_items ? 2 * p->cap_items : 256;
        cb_q_item *grown = cb_arena_get(&p->arena, (size_t)cap * sizeof *grown);
        if (!grown) return cb_fail(err, CB_ENOMEM, "no memory for a list of %d tensors", cap);
        if (p->n_items) memcpy(grown, p->items, (size_t)p->n_items * sizeof *grown);
        p->items = grown;
        p->cap_items = cap;
    }
    cb_q_item *it = &p->items[p->n_items];
    const int nd = src->n_dims;
    *it = (cb_q_item){.src = src, .n_dims = nd, .row0 = row0, .stack = 1, .cols = nd ? src->dims[nd - 1] : 1,
                      .src_rows = nd > 1 ? src->dims[nd - 2] : 1};
    memcpy(it->dims, src->dims, sizeof it->dims);
    for (int i = 0; i < nd - 2; i++) it->stack *= src->dims[i]; /* below the tensor's bytes, which were checked */
    it->rows = rows < 0 ? it->src_rows : rows;
    if (nd > 1) it->dims[nd - 2] = it->rows;
    if (it->cols > MAX_COLS)
        return cb_fail(err, CB_EFORMAT, "%s: %s has rows of %" PRId64 " numbers; at most %" PRId64 " are supported", src->file, src->name, it->cols,
                       MAX_COLS);
    if (!(it->name = cb_arena_strndup(&p->arena, name, strlen(name)))) return cb_fail(err, CB_ENOMEM, "no memory for a name");
    it->dtype = float_dtype(p, src, name);
    p->n_items++;
    return 0;
}

/* HF stacks the experts' gate rows on the up rows; MLX keeps two tensors under another name. `at` is where "experts." ends. */
static int add_experts(cb_q_plan *p, const cb_tensor *src, const char *name, const char *to, cb_err *err)
{
    char out[MAX_NAME + 64];
    int n = (int)(strstr(name, "experts.") - name);
    bool fused = ends(name, ".gate_up_proj");
    if (src->n_dims != 3) return cb_fail(err, CB_EFORMAT, "%s: %s has %d dimensions, stacked experts have 3", src->file, src->name, src->n_dims);
    int64_t half = src->dims[1] / 2;
    if (fused && src->dims[1] % 2)
        return cb_fail(err, CB_EFORMAT, "%s: %s has %" PRId64 " rows, not gate and up", src->file, src->name, src->dims[1]);
    snprintf(out, sizeof out, "%.*s%s%s", n, name, to, fused ? "gate_proj.weight" : "down_proj.weight");
    int rc = add_item(p, src, out, 0, fused ? half : -1, err);
    if (rc < 0 || !fused) return rc;
    snprintf(out, sizeof out, "%.*s%s%s", n, name, to, "up_proj.weight");
    return add_item(p, src, out, half, half, err);
}

static bool is_norm(const char *name)
{
    static const char *const norms[] = {".input_layernorm.weight", ".post_attention_layernorm.weight", "model.norm.weight",
                                        ".q_norm.weight", ".k_norm.weight"};
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++)
        if (ends(name, norms[i])) return true;
    return false;
}

static int add_tensor(cb_q_plan *p, const cb_tensor *t, cb_err *err)
{
    char name[MAX_NAME];
    if (strlen(t->name) > MAX_NAME - 64) return cb_fail(err, CB_EFORMAT, "%s: %.100s...: name too long", t->file, t->name);
    if (!map_name(p, t->name, name)) return 0;
    if (ends(t->name, ".scales")) return cb_fail(err, CB_EFORMAT, "%s: %s: the checkpoint is quantised already", t->file, t->name);
    if (t->dtype != CB_F32 && t->dtype != CB_F16 && t->dtype != CB_BF16)
        return cb_fail(err, CB_EFORMAT, "%s: %s is %s; BF16, F16 and F32 can be quantised", t->file, t->name, cb_dtype_name(t->dtype));
    bool qwen = !strcmp(p->family, "qwen3_5");
    if (ends(name, ".experts.gate_up_proj") || ends(name, ".experts.down_proj"))
        return add_experts(p, t, name, qwen ? "switch_mlp." : "experts.switch_glu.", err);
    int rc = add_item(p, t, name, 0, -1, err);
    if (rc < 0) return rc;
    cb_q_item *it = &p->items[p->n_items - 1];
    if (qwen && strstr(name, "conv1d.weight") && t->n_dims == 3 && t->dims[1] == 1) { /* [C,1,k] becomes [C,k,1]: the same bytes */
        it->dims[1] = t->dims[2];
        it->dims[2] = 1;
    }
    it->plus_one = p->plus_one && t->n_dims == 1 && is_norm(name);
    return 0;
}

/* ---- the whole ---- */

/* Raw Qwen 3.5 files keep the convolution as [C,1,k], and norms centred on 0: all that mlx-lm looks at. A file with raw names and a
 * moved convolution is raw when its norms are, as the loader sees it. */
static bool norms_at_zero(const cb_weights *w)
{
    for (int i = 0; i < cb_weights_count(w); i++) {
        const cb_tensor *t = cb_weights_at(w, i);
        if (ends(t->name, "linear_attn.conv1d.weight") && t->n_dims == 3 && t->dims[2] != 1) return true;
    }
    const cb_tensor *norm = cb_weights_find(w, "model.language_model.layers.0.input_layernorm.weight");
    if (!norm || cb_dtype_size(norm->dtype) < 2) return false;
    double sum = 0;
    for (int64_t i = 0; i < norm->dims[0]; i++) sum += (double)cb_load_float(norm->data, norm->dtype, (size_t)i);
    return sum < 0.5 * (double)norm->dims[0];
}

static int parse_dtype(const char *s, cb_dtype *t)
{
    static const struct { const char *name; cb_dtype t; } all[] = {{"bfloat16", CB_BF16}, {"float16", CB_F16}, {"float32", CB_F32}};
    for (size_t i = 0; s && i < 3; i++)
        if (!strcmp(s, all[i].name)) {
            *t = all[i].t;
            return 1;
        }
    return 0;
}

static int read_opts(cb_q_plan *p, cb_err *err)
{
    static const struct { const char *name; cb_wmode mode; } modes[] = {
        {"affine", CB_W_AFFINE}, {"ternary", CB_W_AFFINE}, {"mxfp4", CB_W_MXFP4}, {"mxfp8", CB_W_MXFP8}, {"nvfp4", CB_W_NVFP4}};
    const cb_quantize_opts *o = p->opts;
    const char *mode = o->mode ? o->mode : "affine";
    p->q = (cb_quantizer){.bits = o->bits, .group = o->group, .gpu = o->gpu_rounding != 0, .ternary = !strcmp(mode, "ternary")};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (!strcmp(mode, modes[i].name)) p->q.mode = modes[i].mode;
    if (!p->q.mode) return cb_fail(err, CB_EUSAGE, "mode %.40s is unknown; known are affine, ternary, mxfp4, mxfp8, nvfp4", mode);
    if (o->hadamard_block && !p->q.group) p->q.group = 128;
    if (o->hadamard_block && !p->q.bits) p->q.bits = 2;
    int rc = cb_quantizer_check(&p->q, err);
    if (rc < 0) return rc;
    if (o->dtype && !parse_dtype(o->dtype, &p->dtype))
        return cb_fail(err, CB_EUSAGE, "dtype %.40s is unknown; known are bfloat16, float16, float32", o->dtype);
    if (!o->dtype && !parse_dtype(json_string_value(json_object_get(p->config->root, "torch_dtype")), &p->dtype))
        parse_dtype(json_string_value(json_object_get(json_object_get(p->config->root, "text_config"), "dtype")), &p->dtype);
    return 0;
}

static int check_pack(const cb_q_plan *p, cb_err *err)
{
    const int b = p->opts->hadamard_block;
    if (!b) return 0;
    if (b != 512 && b != 1024 && b != 2048 && b != 4096)
        return cb_fail(err, CB_EUSAGE, "Hadamard block %d: 512, 1024, 2048 and 4096 are possible", b);
    if (p->q.mode != CB_W_AFFINE) return cb_fail(err, CB_EUSAGE, "mode %s cannot be rotated; affine and ternary can", p->opts->mode);
    if (p->q.bits < 2) return cb_fail(err, CB_EUSAGE, "bits 1: a Bonsai 2 pack has 2 or more");
    if (strcmp(p->family, "qwen3_5") || cb_config_get(p->config, "num_experts"))
        return cb_fail(err, CB_EUSAGE, "config.json: model_type %.60s: only dense Qwen 3.5 can become a Bonsai 2 pack", p->config->model_type);
    if (p->opts->dtype) return cb_fail(err, CB_EUSAGE, "dtype %.40s: the dtypes of a Bonsai 2 pack are fixed", p->opts->dtype);
    return 0;
}

static int check_source(const cb_q_plan *p, cb_err *err)
{
    const cb_config *c = p->config;
    if (!strcmp(p->family, "bonsai2") || c->quant)
        return cb_fail(err, CB_EFORMAT, "config.json: the checkpoint is quantised already (%s)", c->quant ? "quantization" : c->model_type);
    cb_plan *plan; /* finds what is missing or misshapen before hours of work */
    int rc = cb_model_plan(c, p->weights, &plan, err);
    if (rc < 0) return rc;
    cb_plan_close(plan);
    return 0;
}

/* The path of every quantised module must be one that the readers find; every pattern must mean something. */
static int check_items(const cb_q_plan *p, cb_err *err)
{
    int n = 0;
    char path[512];
    for (int i = 0; i < p->n_items; i++) n += p->items[i].quantised;
    if (!n) return cb_fail(err, CB_EUSAGE, "no matrix is left to quantise: none has rows of a multiple of %d numbers", p->q.group);
    for (int k = 0; k < p->opts->n_keep; k++) {
        bool used = false;
        for (int i = 0; i < p->n_items && !used; i++) used = is_module(&p->items[i]) && matches(p->opts->keep[k], cb_q_path(&p->items[i], path));
        if (!used) return cb_fail(err, CB_EUSAGE, "the pattern %.100s matches no matrix", p->opts->keep[k]);
    }
    return 0;
}

static void share_out(cb_q_plan *p)
{
    uint64_t in_shard = 0, most = p->opts->file_bytes ? p->opts->file_bytes : MAX_SHARD;
    for (int i = 0; i < p->n_items; i++) {
        cb_q_item *it = &p->items[i];
        uint64_t n = item_bytes(it);
        if (in_shard && in_shard + n > most) {
            p->n_shards++;
            in_shard = 0;
        }
        it->shard = p->n_shards;
        in_shard += n;
        p->out_bytes += n;
        p->n_params += (uint64_t)(it->stack * it->rows * it->cols);
        p->in_bytes += (uint64_t)(it->stack * it->rows * it->cols) * cb_dtype_size(it->src->dtype);
    }
    p->n_shards++;
}

int cb_q_plan_make(cb_q_plan *p, const cb_config *c, const cb_weights *w, const cb_quantize_opts *o, cb_err *err)
{
    *p = (cb_q_plan){.opts = o, .config = c, .weights = w, .dtype = CB_N_DTYPES};
    cb_arena_init(&p->arena, 0);
    const cb_family *f = cb_family_find(c, err);
    if (!f) return CB_EFORMAT;
    p->family = f->name;
    int rc = check_source(p, err);
    if (rc < 0 || (rc = read_opts(p, err)) < 0 || (rc = check_pack(p, err)) < 0) return rc;
    if ((rc = cb_config_bool(c, "tie_word_embeddings", &p->tied, err)) < 0) return rc;
    if (rc == 0) p->tied = !strcmp(p->family, "llama") || !strcmp(p->family, "gemma4"); /* the families' own defaults */
    if ((rc = cb_config_int(c, "num_hidden_layers", 1, 1024, &p->layers, err)) < 0 ||
        (rc = cb_config_int(c, "num_kv_shared_layers", 0, 1024, &p->shared, err)) < 0)
        return rc;
    p->plus_one = !strcmp(p->family, "qwen3_5") && norms_at_zero(w);
    for (int i = 0; i < cb_weights_count(w); i++)
        if ((rc = add_tensor(p, cb_weights_at(w, i), err)) < 0) return rc;
    for (int i = 0; i < p->n_items; i++)
        if ((rc = choose_format(p, &p->items[i], err)) < 0) return rc;
    if ((rc = check_items(p, err)) < 0) return rc;
    share_out(p);
    return 0;
}

void cb_q_plan_fini(cb_q_plan *p) { cb_arena_fini(&p->arena); }
