/* Which tensor becomes which: architectures, their names, shapes and conversions. Reading order: `archs`, add_item(),
 * cb_import_plan_make(). */
#include "run/import.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- architectures ---- */

/* A dimension by what it is. */
typedef enum dim { D_NONE, D_HIDDEN, D_FF, D_Q, D_KV, D_HEAD, D_VOCAB } dim;

/* One tensor of every layer. rows D_NONE: a vector of `cols`. */
typedef struct layer_name {
    const char *gguf, *mlx;
    dim rows, cols;
    bool norm;
} layer_name;

struct cb_import_arch {
    const char *gguf, *model_type, *class_name;
    const layer_name *layer;
    bool permuted;       /* rows of q and k are interleaved for RoPE */
    bool norm_plus_one;  /* norm weights hold the 1 of (1 + w) */
    bool maybe_untied;   /* output.weight may exist */
    bool f32_residual;   /* the residual stream overflows F16: Gemma 3 270M reaches 1.04e5 */
};

#define MATRICES                                                        \
    {"attn_q.weight", "self_attn.q_proj.weight", D_Q, D_HIDDEN, false}, \
    {"attn_k.weight", "self_attn.k_proj.weight", D_KV, D_HIDDEN, false}, \
    {"attn_v.weight", "self_attn.v_proj.weight", D_KV, D_HIDDEN, false}, \
    {"attn_output.weight", "self_attn.o_proj.weight", D_HIDDEN, D_Q, false}, \
    {"ffn_gate.weight", "mlp.gate_proj.weight", D_FF, D_HIDDEN, false}, \
    {"ffn_up.weight", "mlp.up_proj.weight", D_FF, D_HIDDEN, false}, \
    {"ffn_down.weight", "mlp.down_proj.weight", D_HIDDEN, D_FF, false}
#define PRE_NORMS                                                           \
    {"attn_norm.weight", "input_layernorm.weight", D_NONE, D_HIDDEN, true}, \
    {"ffn_norm.weight", "post_attention_layernorm.weight", D_NONE, D_HIDDEN, true}
#define HEAD_NORMS                                                            \
    {"attn_q_norm.weight", "self_attn.q_norm.weight", D_NONE, D_HEAD, true}, \
    {"attn_k_norm.weight", "self_attn.k_norm.weight", D_NONE, D_HEAD, true}

static const layer_name llama_layer[] = {MATRICES, PRE_NORMS, {0}};
static const layer_name qwen2_layer[] = {
    MATRICES,
    PRE_NORMS,
    {"attn_q.bias", "self_attn.q_proj.bias", D_NONE, D_Q, false},
    {"attn_k.bias", "self_attn.k_proj.bias", D_NONE, D_KV, false},
    {"attn_v.bias", "self_attn.v_proj.bias", D_NONE, D_KV, false},
    {0}};
static const layer_name qwen3_layer[] = {MATRICES, PRE_NORMS, HEAD_NORMS, {0}};
/* ffn_norm stands before the MLP, as in llama, but goes by another name here. */
static const layer_name gemma3_layer[] = {
    MATRICES,
    HEAD_NORMS,
    {"attn_norm.weight", "input_layernorm.weight", D_NONE, D_HIDDEN, true},
    {"post_attention_norm.weight", "post_attention_layernorm.weight", D_NONE, D_HIDDEN, true},
    {"ffn_norm.weight", "pre_feedforward_layernorm.weight", D_NONE, D_HIDDEN, true},
    {"post_ffw_norm.weight", "post_feedforward_layernorm.weight", D_NONE, D_HIDDEN, true},
    {0}};

static const cb_import_arch archs[] = {
    {.gguf = "llama", .model_type = "llama", .class_name = "LlamaForCausalLM", .layer = llama_layer, .permuted = true,
     .maybe_untied = true},
    {.gguf = "qwen2", .model_type = "qwen2", .class_name = "Qwen2ForCausalLM", .layer = qwen2_layer, .maybe_untied = true},
    {.gguf = "qwen3", .model_type = "qwen3", .class_name = "Qwen3ForCausalLM", .layer = qwen3_layer, .maybe_untied = true},
    {.gguf = "gemma3", .model_type = "gemma3_text", .class_name = "Gemma3ForCausalLM", .layer = gemma3_layer,
     .norm_plus_one = true, .f32_residual = true},
};

const char *cb_import_model_type(const cb_import_arch *a) { return a->model_type; }
const char *cb_import_class(const cb_import_arch *a) { return a->class_name; }

const char *cb_import_key(const cb_import_plan *p, const char *name, char buf[128])
{
    snprintf(buf, 128, "%s.%s", p->arch->gguf, name);
    return buf;
}

/* ---- numbers ---- */

static int find_arch(cb_import_plan *p, cb_err *err)
{
    const char *s;
    size_t n;
    int rc = cb_gguf_text(p->g, "general.architecture", &s, &n, err);
    if (rc < 0) return rc;
    if (!rc) return cb_fail(err, CB_EFORMAT, "%s: key general.architecture is missing", p->g->file);
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (strlen(archs[i].gguf) == n && !memcmp(archs[i].gguf, s, n)) {
            p->arch = &archs[i];
            return 0;
        }
    return cb_fail(err, CB_EFORMAT, "%s: architecture %.*s is not supported (llama, gemma3, qwen2 and qwen3 are)",
                   p->g->file, n < 64 ? (int)n : 64, s);
}

static int need_int(const cb_import_plan *p, const char *name, int64_t hi, int64_t *v, cb_err *err)
{
    char key[128];
    int rc = cb_gguf_int(p->g, cb_import_key(p, name, key), 1, hi, v, err);
    return rc ? rc : cb_fail(err, CB_EFORMAT, "%s: key %s is missing", p->g->file, key);
}

static int read_heads(cb_import_plan *p, cb_err *err)
{
    cb_import_hparams *h = &p->hp;
    char key[128];
    int64_t value_dim, rope_dim;
    int rc = need_int(p, "attention.head_count", 65536, &h->heads, err);
    if (rc < 0) return rc;
    h->kv_heads = h->heads;
    if ((rc = cb_gguf_int(p->g, cb_import_key(p, "attention.head_count_kv", key), 1, 65536, &h->kv_heads, err)) < 0) return rc;
    if (h->heads % h->kv_heads)
        return cb_fail(err, CB_EFORMAT, "%s: key %s: %" PRId64 " KV heads do not divide %" PRId64 " heads", p->g->file, key,
                       h->kv_heads, h->heads);
    rc = cb_gguf_int(p->g, cb_import_key(p, "attention.key_length", key), 2, 65536, &h->head_dim, err);
    if (rc < 0) return rc;
    if (!rc) {
        if (h->hidden % h->heads)
            return cb_fail(err, CB_EFORMAT, "%s: key %s is missing, and %" PRId64 " heads do not divide %" PRId64,
                           p->g->file, key, h->heads, h->hidden);
        h->head_dim = h->hidden / h->heads;
    }
    if (h->head_dim % 2)
        return cb_fail(err, CB_EFORMAT, "%s: a head size of %" PRId64 " is odd", p->g->file, h->head_dim);
    value_dim = rope_dim = h->head_dim;
    if ((rc = cb_gguf_int(p->g, cb_import_key(p, "attention.value_length", key), 1, 65536, &value_dim, err)) < 0) return rc;
    if (value_dim != h->head_dim)
        return cb_fail(err, CB_EFORMAT, "%s: key %s is %" PRId64 ", other than the key length %" PRId64, p->g->file, key,
                       value_dim, h->head_dim);
    if ((rc = cb_gguf_int(p->g, cb_import_key(p, "rope.dimension_count", key), 1, 65536, &rope_dim, err)) < 0) return rc;
    if (rope_dim != h->head_dim)
        return cb_fail(err, CB_EFORMAT, "%s: key %s is %" PRId64 "; partial rotation of heads of %" PRId64
                       " is not supported", p->g->file, key, rope_dim, h->head_dim);
    return 0;
}

static int read_hparams(cb_import_plan *p, cb_err *err)
{
    cb_import_hparams *h = &p->hp;
    char key[128];
    int64_t experts = 0;
    int rc;
    if ((rc = need_int(p, "embedding_length", 1 << 20, &h->hidden, err)) < 0 ||
        (rc = need_int(p, "block_count", 4096, &h->layers, err)) < 0 ||
        (rc = need_int(p, "feed_forward_length", 1 << 24, &h->ff, err)) < 0 ||
        (rc = need_int(p, "context_length", 1 << 30, &h->context, err)) < 0 || (rc = read_heads(p, err)) < 0)
        return rc;
    rc = cb_gguf_real(p->g, cb_import_key(p, "attention.layer_norm_rms_epsilon", key), &h->eps, err);
    if (rc <= 0) return rc < 0 ? rc : cb_fail(err, CB_EFORMAT, "%s: key %s is missing", p->g->file, key);
    h->rope_theta = 10000;
    if ((rc = cb_gguf_real(p->g, cb_import_key(p, "rope.freq_base", key), &h->rope_theta, err)) < 0) return rc;
    if (!(h->eps > 0 && h->eps < 1) || !(h->rope_theta > 0))
        return cb_fail(err, CB_EFORMAT, "%s: norm epsilon %g and RoPE base %g must be positive", p->g->file, h->eps,
                       h->rope_theta);
    if ((rc = cb_gguf_int(p->g, cb_import_key(p, "expert_count", key), 0, INT64_MAX, &experts, err)) < 0) return rc;
    if (experts) return cb_fail(err, CB_EFORMAT, "%s: key %s: mixtures of experts are not supported", p->g->file, key);
    const cb_gguf_tensor *t = cb_gguf_tensor_find(p->g, "token_embd.weight");
    if (!t) return cb_fail(err, CB_EFORMAT, "%s: tensor token_embd.weight is missing", p->g->file);
    if (t->rows > 1 << 24)
        return cb_fail(err, CB_EFORMAT, "%s: tensor token_embd.weight has %" PRId64 " rows", p->g->file, t->rows);
    h->vocab = t->rows;
    return 0;
}

static int64_t size_of(const cb_import_plan *p, dim d)
{
    const cb_import_hparams *h = &p->hp;
    switch (d) {
    case D_HIDDEN: return h->hidden;
    case D_FF: return h->ff;
    case D_Q: return h->heads * h->head_dim;
    case D_KV: return h->kv_heads * h->head_dim;
    case D_HEAD: return h->head_dim;
    case D_VOCAB: return h->vocab;
    case D_NONE: break;
    }
    return 1;
}

/* ---- items ---- */

/* Sets how a matrix is stored. Two formats per type would do; which one holds for all blocks takes a look at each. */
static int choose_matrix_format(cb_import_plan *p, cb_import_item *it, cb_err *err)
{
    const cb_gguf_tensor *t = it->src;
    if (t->type->is_float) {
        it->dtype = t->type->dtype;
        return 0;
    }
    cb_gscan scan;
    cb_gblock_scan(t->type, t->data, (int64_t)(t->bytes / (uint64_t)t->type->bytes), &scan);
    if (scan.bad_block >= 0)
        return cb_fail(err, CB_EFORMAT, "%s: tensor %s: block %" PRId64 " has a scale that is not finite", p->g->file,
                       t->name, scan.bad_block);
    it->quantised = t->type->bits > 0;
    it->dtype = scan.f16_exact ? CB_F16 : CB_F32;
    return 0;
}

/* Vectors become F32. A Gemma norm w is written as h = w-1, which f32 may round; any w that was made as h+1 in f32 comes
 * back from its h, and a file for which that fails was made otherwise: better refused than changed in the last bit. */
static int choose_vector_format(cb_import_plan *p, cb_import_item *it, bool norm, cb_err *err)
{
    const cb_gguf_tensor *t = it->src;
    if (!t->type->is_float)
        return cb_fail(err, CB_EFORMAT, "%s: tensor %s: a vector of type %s is not supported", p->g->file, t->name,
                       t->type->name);
    it->dtype = CB_F32;
    it->vector = true;
    it->minus_one = norm && p->arch->norm_plus_one;
    for (int64_t i = 0; i < t->cols; i++) {
        float w = cb_load_float(t->data, t->type->dtype, (size_t)i), h = w - 1.0f;
        if (!isfinite(w))
            return cb_fail(err, CB_EFORMAT, "%s: tensor %s: element %" PRId64 " is not finite", p->g->file, t->name, i);
        if (it->minus_one && h + 1.0f != w)
            return cb_fail(err, CB_EFORMAT, "%s: tensor %s: element %" PRId64 " (%.9g) is not 1 + w for any w of f32",
                           p->g->file, t->name, i, (double)w);
    }
    return 0;
}

static uint64_t part_bytes(const cb_import_item *it)
{
    uint64_t n = (uint64_t)it->src->cols * (uint64_t)it->src->rows, size = cb_dtype_size(it->dtype);
    return it->quantised ? n / 8 * (uint64_t)it->src->type->bits + n / CB_GB_GROUP * 2 * size : n * size;
}

/* Adds the tensor `gguf` (with the layer in front when layer >= 0), which must exist, as `mlx`. */
static int add_item(cb_import_plan *p, int64_t layer, const layer_name *n, cb_err *err)
{
    char from[128], to[128];
    cb_import_item *it = &p->items[p->n_items];
    if (layer < 0) {
        snprintf(from, sizeof from, "%s", n->gguf);
        snprintf(to, sizeof to, "%s", n->mlx);
    } else {
        snprintf(from, sizeof from, "blk.%" PRId64 ".%s", layer, n->gguf);
        snprintf(to, sizeof to, "model.layers.%" PRId64 ".%s", layer, n->mlx);
    }
    const cb_gguf_tensor *t = cb_gguf_tensor_find(p->g, from);
    if (!t) return cb_fail(err, CB_EFORMAT, "%s: tensor %s is missing", p->g->file, from);
    *it = (cb_import_item){.src = t, .name = cb_arena_strndup(&p->arena, to, strlen(to))};
    if (!it->name) return cb_fail(err, CB_ENOMEM, "%s: no memory for names", p->g->file);

    int64_t rows = size_of(p, n->rows), cols = size_of(p, n->cols);
    if (t->rows != rows || t->cols != cols || t->n_dims > 2)
        return cb_fail(err, CB_EFORMAT, "%s: tensor %s is [%" PRId64 ",%" PRId64 "], the keys imply [%" PRId64 ",%" PRId64 "]",
                       p->g->file, from, t->rows, t->cols, rows, cols);
    if (p->arch->permuted && n->rows == D_Q) it->unpermute = p->hp.heads;
    if (p->arch->permuted && n->rows == D_KV && strstr(n->gguf, "attn_k.")) it->unpermute = p->hp.kv_heads;
    int rc = n->rows == D_NONE ? choose_vector_format(p, it, n->norm, err) : choose_matrix_format(p, it, err);
    if (rc < 0) return rc;
    /* mlx-lm computes in the type that the embedding's scales (or values) have. Ours does not mind. */
    if (p->arch->f32_residual && n->rows == D_VOCAB && it->dtype == CB_F16) it->dtype = CB_F32;
    p->out_bytes += part_bytes(it);
    p->n_items++;
    return 0;
}

/* Every tensor must have been taken; rope_freqs is looked at with the config. */
static int check_unused(const cb_import_plan *p, cb_err *err)
{
    bool *used = cb_alloc((size_t)p->g->n_tensors + 1);
    if (!used) return cb_fail(err, CB_ENOMEM, "%s: no memory for %d tensors", p->g->file, p->g->n_tensors);
    for (int i = 0; i < p->n_items; i++) used[p->items[i].src - p->g->tensors] = true;
    int rc = 0;
    for (int i = 0; i < p->g->n_tensors && rc == 0; i++)
        if (!used[i] && strcmp(p->g->tensors[i].name, "rope_freqs.weight"))
            rc = cb_fail(err, CB_EFORMAT, "%s: tensor %s is not part of architecture %s as this importer knows it",
                         p->g->file, p->g->tensors[i].name, p->arch->gguf);
    cb_free(used);
    return rc;
}

int cb_import_plan_make(cb_import_plan *p, const cb_gguf *g, cb_err *err)
{
    static const layer_name embed = {"token_embd.weight", "model.embed_tokens.weight", D_VOCAB, D_HIDDEN, false},
                            norm = {"output_norm.weight", "model.norm.weight", D_NONE, D_HIDDEN, true},
                            head = {"output.weight", "lm_head.weight", D_VOCAB, D_HIDDEN, false};
    *p = (cb_import_plan){.g = g};
    cb_arena_init(&p->arena, 0);
    int rc;
    if ((rc = find_arch(p, err)) < 0 || (rc = read_hparams(p, err)) < 0) goto done;
    p->tied = !p->arch->maybe_untied || !cb_gguf_tensor_find(g, "output.weight");
    /* Each item takes a tensor of its own, and a missing one ends the loop: never more than there are. */
    if (!(p->items = cb_arena_get(&p->arena, ((size_t)g->n_tensors + 1) * sizeof *p->items))) {
        rc = cb_fail(err, CB_ENOMEM, "%s: no memory for %d tensors", g->file, g->n_tensors);
        goto done;
    }
    if ((rc = add_item(p, -1, &embed, err)) < 0) goto done;
    for (int64_t l = 0; l < p->hp.layers; l++)
        for (const layer_name *n = p->arch->layer; n->gguf; n++)
            if ((rc = add_item(p, l, n, err)) < 0) goto done;
    if ((rc = add_item(p, -1, &norm, err)) < 0 || (!p->tied && (rc = add_item(p, -1, &head, err)) < 0) ||
        (rc = check_unused(p, err)) < 0)
        goto done;
    rc = cb_import_config(p, err);
done:
    if (rc < 0) cb_import_plan_fini(p);
    return rc;
}

void cb_import_plan_fini(cb_import_plan *p)
{
    json_decref(p->config);
    json_decref(p->generation);
    cb_arena_fini(&p->arena);
    *p = (cb_import_plan){0};
}

/* ---- conversion ---- */

/* The GGUF row that holds row r. Per head of D rows, GGUF row 2i+j holds row j*D/2 + i (j is 0 or 1). */
static int64_t source_row(const cb_import_item *it, int64_t r)
{
    if (!it->unpermute) return r;
    int64_t d = it->src->rows / it->unpermute, h = r / d, k = r % d;
    return h * d + 2 * (k % (d / 2)) + k / (d / 2);
}

enum { PIECE = 16384 }; /* elements; a multiple of every block */

static int convert_vector(const cb_import_item *it, cb_import_put put, void *ctx, cb_err *err)
{
    float v[1024];
    for (int64_t i = 0; i < it->src->cols;) {
        int n = 0;
        for (; n < 1024 && i < it->src->cols; n++, i++)
            v[n] = cb_load_float(it->src->data, it->src->type->dtype, (size_t)i) - (it->minus_one ? 1.0f : 0.0f);
        int rc = put(ctx, v, 4 * (size_t)n, err);
        if (rc < 0) return rc;
    }
    return 0;
}

int cb_import_convert(const cb_import_item *it, int part, cb_import_put put, void *ctx, cb_err *err)
{
    const cb_gguf_tensor *t = it->src;
    const cb_gblock *b = t->type;
    if (it->vector) return convert_vector(it, put, ctx, err);

    bool copy = b->is_float && b->dtype == it->dtype;
    float *values = it->quantised || copy ? NULL : cb_alloc(PIECE * sizeof *values);
    uint8_t *out = cb_alloc(PIECE * 4);
    int rc = out && (values || it->quantised || copy) ? 0 : cb_fail(err, CB_ENOMEM, "%s: no memory", it->name);
    for (int64_t r = 0; r < t->rows && rc == 0; r++) {
        const uint8_t *src = t->data + (uint64_t)source_row(it, r) * t->row_bytes;
        for (int64_t c = 0; c < t->cols && rc == 0; c += PIECE) {
            int64_t n = t->cols - c < PIECE ? t->cols - c : PIECE, n_blocks = n / b->block;
            size_t bytes = (size_t)n * cb_dtype_size(it->dtype);
            if (copy)
                memcpy(out, src, bytes);
            else if (!it->quantised) {
                cb_gblock_decode(b, src, n_blocks, values);
                cb_gblock_store(values, n, it->dtype, out);
            } else if (part == CB_PART_WEIGHT) {
                cb_gblock_repack(b, src, n_blocks, out);
                bytes = (size_t)n / 8 * (size_t)b->bits;
            } else {
                cb_gblock_scales(b, src, n_blocks, it->dtype, part == CB_PART_BIASES, out);
                bytes = (size_t)n / CB_GB_GROUP * cb_dtype_size(it->dtype);
            }
            src += (size_t)n_blocks * (size_t)b->bytes;
            rc = put(ctx, out, bytes, err);
        }
    }
    cb_free(values);
    cb_free(out);
    return rc;
}
