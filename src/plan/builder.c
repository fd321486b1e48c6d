/* builder.c: records operations and checks shapes. Memory and barriers are assigned in layout.c at the end. */
#include "plan/builder.h"
#include "plan/layout.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MAX_OPS = 65536, MAX_NAME = 512 };

struct cb_builder {
    const cb_config *config;
    const cb_weights *weights;
    cb_plan *plan;
    cb_err err;
    char scope[MAX_NAME];
    int cap_ops, cap_values, cap_weights, cap_kv, cap_ropes;
    cb_val quant_of, quant_out; /* the latest quantisation, reused while its input is unchanged */
};

int pb_open(const cb_config *c, const cb_weights *w, const char *family, cb_builder **out, cb_err *err)
{
    cb_builder *b = cb_alloc(sizeof *b);
    cb_plan *p = cb_alloc(sizeof *p);
    *out = NULL;
    if (!b || !p) {
        cb_free(b);
        cb_free(p);
        return cb_fail(err, CB_ENOMEM, "no memory for a plan");
    }
    cb_arena_init(&p->arena, 0);
    p->family = family;
    *b = (cb_builder){.config = c, .weights = w, .plan = p, .quant_of = -1};
    *out = b;
    return 0;
}

void cb_plan_close(cb_plan *p)
{
    if (!p) return;
    cb_arena_fini(&p->arena);
    cb_free(p);
}

int pb_finish(cb_builder *b, cb_plan **out, cb_err *err)
{
    int rc = b->err.code;
    cb_plan *p = b->plan;
    *out = NULL;
    if (!rc && !cb_arena_ok(&p->arena)) rc = cb_fail(&b->err, CB_ENOMEM, "no memory for a plan");
    if (!rc) rc = cb_plan_layout(p, &b->err);
    if (rc < 0) {
        if (err) *err = b->err;
        cb_plan_close(p);
    } else
        *out = p;
    cb_free(b);
    return rc;
}

void pb_fail(cb_builder *b, int code, const char *fmt, ...)
{
    if (b->err.code) return;
    char text[CB_ERR_TEXT];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    cb_fail(&b->err, code, "%s", text);
}

bool pb_ok(const cb_builder *b) { return !b->err.code; }
const cb_config *pb_config(const cb_builder *b) { return b->config; }

/* ---- config ---- */

int pb_int(cb_builder *b, const char *key, int lo, int hi, int otherwise)
{
    int64_t v = otherwise;
    cb_err e = {0};
    if (cb_config_int(b->config, key, lo, hi, &v, &e) < 0) pb_fail(b, e.code, "%s", e.text);
    return (int)v;
}

int pb_need_int(cb_builder *b, const char *key, int lo, int hi)
{
    if (!cb_config_get(b->config, key)) pb_fail(b, CB_EFORMAT, "config.json: %s is missing", key);
    return pb_int(b, key, lo, hi, lo);
}

double pb_real(cb_builder *b, const char *key, double otherwise)
{
    cb_err e = {0};
    if (cb_config_real(b->config, key, &otherwise, &e) < 0) pb_fail(b, e.code, "%s", e.text);
    return otherwise;
}

bool pb_bool(cb_builder *b, const char *key, bool otherwise)
{
    cb_err e = {0};
    if (cb_config_bool(b->config, key, &otherwise, &e) < 0) pb_fail(b, e.code, "%s", e.text);
    return otherwise;
}

/* ---- names ---- */

void pb_scope(cb_builder *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(b->scope, sizeof b->scope, fmt, ap);
    va_end(ap);
}

static char *full_name(cb_builder *b, const char *name)
{
    char text[2 * MAX_NAME];
    int n = snprintf(text, sizeof text, "%s%s", b->scope, name);
    return cb_arena_strndup(&b->plan->arena, text, (size_t)n);
}

/* What an op is called: the weight's name without the parts that every name has. */
static const char *op_name(const char *full)
{
    static const char *const heads[] = {"language_model.", "model."};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        if (!strncmp(full, heads[i], strlen(heads[i]))) full += strlen(heads[i]);
    return full;
}

bool pb_has(const cb_builder *b, const char *name)
{
    char text[2 * MAX_NAME];
    snprintf(text, sizeof text, "%s%s", b->scope, name);
    return cb_weights_find(b->weights, text) != NULL;
}

/* ---- growing arrays in the arena: the old copy stays behind, doubling bounds the waste ---- */

static void *grow(cb_builder *b, void *old, int n, int *cap, size_t size)
{
    if (n < *cap) return old;
    int want = *cap ? *cap * 2 : 64;
    void *d = want <= MAX_OPS * 4 ? cb_arena_get(&b->plan->arena, (size_t)want * size) : NULL;
    if (!d) {
        pb_fail(b, CB_ENOMEM, "plan: no memory for %d entries", want);
        return NULL;
    }
    if (n) memcpy(d, old, (size_t)n * size);
    *cap = want;
    return d;
}

static cb_val add_value(cb_builder *b, int width, bool wanted)
{
    cb_plan *p = b->plan;
    cb_value *v = grow(b, p->values, p->n_values, &b->cap_values, sizeof *v);
    if (!v) return -1;
    p->values = v;
    v[p->n_values] = (cb_value){.width = width, .wanted = wanted, .row_bytes = (size_t)width * 4, .first = -1, .last = -1};
    return p->n_values++;
}

static cb_op *add_op(cb_builder *b, cb_op_kind kind, const char *name, cb_val in0, cb_val in1, cb_val out)
{
    cb_plan *p = b->plan;
    if (!pb_ok(b)) return NULL;
    cb_op *o = grow(b, p->ops, p->n_ops, &b->cap_ops, sizeof *o);
    if (!o) return NULL;
    p->ops = o;
    o += p->n_ops++;
    *o = (cb_op){.kind = kind, .name = name ? name : "", .in = {in0, in1, -1}, .out = out, .w = {-1, -1}};
    if (out >= 0 && out == b->quant_of) b->quant_of = -1; /* its input changed */
    return o;
}

static int add_weight(cb_builder *b, const cb_weight *w)
{
    cb_plan *p = b->plan;
    cb_weight *a = grow(b, p->weights, p->n_weights, &b->cap_weights, sizeof *a);
    if (!a) return -1;
    p->weights = a;
    a[p->n_weights] = *w;
    return p->n_weights++;
}

static const cb_value *value(const cb_builder *b, cb_val v) { return &b->plan->values[v]; }
static bool bad(const cb_builder *b, cb_val v) { return !pb_ok(b) || v < 0; }

/* ---- weights ---- */

static int vector_weight(cb_builder *b, const char *name, int n, bool add_one)
{
    char *full = full_name(b, name);
    if (!full) return -1;
    const cb_tensor *t = cb_weights_find(b->weights, full);
    if (!t) {
        pb_fail(b, CB_EFORMAT, "%s: missing from the checkpoint", full);
        return -1;
    }
    int64_t count = 1;
    for (int i = 0; i < t->n_dims; i++) count *= t->dims[i];
    if (count != n)
        pb_fail(b, CB_EFORMAT, "%s: %s has %lld elements, config implies %d", t->file, full, (long long)count, n);
    if (t->dtype != CB_F32 && t->dtype != CB_F16 && t->dtype != CB_BF16)
        pb_fail(b, CB_EFORMAT, "%s: %s is %s, expected F32, F16 or BF16", t->file, full, cb_dtype_name(t->dtype));
    cb_weight w = {.name = full, .is_vector = true, .tensor = t, .n = n, .add_one = add_one};
    return pb_ok(b) ? add_weight(b, &w) : -1;
}

/* A tied matrix is one weight used twice. */
static int matrix_weight(cb_builder *b, const char *path, int64_t rows, int64_t cols)
{
    char *full = full_name(b, path);
    cb_weight w = {.name = full};
    if (!full) return -1;
    for (int i = 0; i < b->plan->n_weights; i++)
        if (!b->plan->weights[i].is_vector && !strcmp(b->plan->weights[i].name, full)) return i;
    int rc = cb_matrix_find(b->weights, b->config, full, 1, rows, cols, &w.matrix, &b->err);
    if (rc == 0) pb_fail(b, CB_EFORMAT, "%s.weight: missing from the checkpoint", full);
    return rc == 1 ? add_weight(b, &w) : -1;
}

/* ---- operations ---- */

cb_val pb_embed(cb_builder *b, const char *name, int n_vocab, int width, float scale)
{
    if (!pb_ok(b)) return -1;
    int w = matrix_weight(b, name, n_vocab, width);
    cb_val out = add_value(b, width, false);
    cb_op *o = w < 0 ? NULL : add_op(b, CB_EMBED, op_name(b->plan->weights[w].name), -1, -1, out);
    if (!o) return -1;
    o->w[0] = w;
    o->f[0] = scale;
    o->row_wise = true;
    b->plan->n_vocab = n_vocab;
    return out;
}

cb_val pb_rope_table(cb_builder *b, const char *name, const double *freq, int n_pairs)
{
    if (!pb_ok(b)) return -1;
    cb_plan *p = b->plan;
    cb_rope_table *t = grow(b, p->ropes, p->n_ropes, &b->cap_ropes, sizeof *t);
    double *f = cb_arena_get(&p->arena, (size_t)n_pairs * sizeof *f);
    if (!t || !f) return -1;
    memcpy(f, freq, (size_t)n_pairs * sizeof *f);
    p->ropes = t;
    t[p->n_ropes] = (cb_rope_table){n_pairs, f};
    cb_val out = add_value(b, 2 * n_pairs, false);
    cb_op *o = add_op(b, CB_ROPE_TABLE, full_name(b, name), -1, -1, out);
    if (!o) return -1;
    o->n[0] = p->n_ropes++;
    o->row_wise = true;
    return out;
}

static cb_val norm(cb_builder *b, cb_val x, cb_val out, const char *name, int heads, int dim, float eps, bool add_one)
{
    int w = name ? vector_weight(b, name, dim, add_one) : -1;
    if (name && w < 0) return -1;
    cb_op *o = add_op(b, CB_RMSNORM, name ? op_name(b->plan->weights[w].name) : "norm", x, -1, out);
    if (!o) return -1;
    o->w[0] = w;
    o->n[0] = heads;
    o->n[1] = dim;
    o->f[0] = eps;
    o->row_wise = true;
    return out;
}

cb_val pb_rmsnorm(cb_builder *b, cb_val x, const char *name, float eps, bool add_one)
{
    if (bad(b, x)) return -1;
    int width = value(b, x)->width;
    return norm(b, x, add_value(b, width, value(b, x)->wanted), name, 1, width, eps, add_one);
}

cb_val pb_head_norm(cb_builder *b, cb_val x, const char *name, int dim, float eps, bool add_one)
{
    if (bad(b, x)) return -1;
    CB_ASSERT(value(b, x)->width % dim == 0);
    return norm(b, x, x, name, value(b, x)->width / dim, dim, eps, add_one);
}

/* The planes of x that a matrix of this format wants; shared by neighbours that want the same. */
static cb_val quant(cb_builder *b, cb_val x, const cb_matrix *m)
{
    bool planes = m->mode == CB_W_FLOAT || m->mode == CB_W_MXFP8; /* encoded at load, group 64 */
    int group = planes ? 64 : m->group;
    int pack = planes ? 1 : m->bits == 4 ? 2 : m->bits == 2 ? 4 : m->bits == 1 ? 8 : 1;
    if (b->quant_of == x && value(b, b->quant_out)->group == group && value(b, b->quant_out)->pack == pack)
        return b->quant_out;
    int k = value(b, x)->width;
    cb_val out = add_value(b, k, value(b, x)->wanted);
    cb_op *o = add_op(b, CB_QUANT, "quant", x, -1, out);
    if (!o) return -1;
    cb_value *v = &b->plan->values[out];
    int n_groups = (k + group - 1) / group;
    v->group = group;
    v->pack = pack;
    size_t planes_bytes = (size_t)((k + 64 * pack - 1) / (64 * pack)) * 128 * (size_t)pack;
    v->row_bytes = planes_bytes + (size_t)n_groups * 12;
    o->row_wise = true;
    o->name = b->plan->n_ops > 1 ? o[-1].name : o->name; /* named after what made x */
    b->quant_of = x;
    b->quant_out = out;
    return out;
}

static cb_val linear(cb_builder *b, cb_val x, const char *path, int n_out, cb_val into)
{
    if (bad(b, x)) return -1;
    int w = matrix_weight(b, path, n_out, value(b, x)->width);
    if (w < 0) return -1;
    cb_val planes = quant(b, x, &b->plan->weights[w].matrix);
    if (planes < 0) return -1;
    cb_val out = into >= 0 ? into : add_value(b, n_out, value(b, x)->wanted);
    cb_op *o = add_op(b, CB_LINEAR, op_name(b->plan->weights[w].name), planes, into, out);
    if (!o) return -1;
    o->w[0] = w;
    o->n[0] = into >= 0;
    char bias[MAX_NAME];
    snprintf(bias, sizeof bias, "%s.bias", path);
    if (pb_has(b, bias)) {
        int v = vector_weight(b, bias, n_out, false);
        cb_op *ob = v < 0 ? NULL : add_op(b, CB_BIAS, op_name(b->plan->weights[v].name), out, -1, out);
        if (!ob) return -1;
        ob->w[0] = v;
        ob->row_wise = true;
    }
    return out;
}

cb_val pb_linear(cb_builder *b, cb_val x, const char *path, int n_out) { return linear(b, x, path, n_out, -1); }

cb_val pb_linear_add(cb_builder *b, cb_val x, const char *path, cb_val residual)
{
    return bad(b, residual) ? -1 : linear(b, x, path, value(b, residual)->width, residual);
}

cb_val pb_rope(cb_builder *b, cb_val x, const cb_attn_spec *a)
{
    if (bad(b, x) || a->rope < 0) return -1;
    CB_ASSERT(value(b, x)->width % a->dim == 0 && a->n_pairs <= a->half && 2 * a->half <= a->dim);
    cb_op *o = add_op(b, CB_ROPE, b->plan->ops[b->plan->n_ops - 1].name, x, a->rope, x);
    if (!o) return -1;
    o->n[0] = value(b, x)->width / a->dim;
    o->n[1] = a->dim;
    o->n[2] = a->n_pairs;
    o->n[3] = a->half;
    o->row_wise = true;
    return x;
}

static int kv_group(cb_builder *b, int window)
{
    cb_plan *p = b->plan;
    for (int i = 0; i < p->n_kv_groups; i++)
        if (p->kv_groups[i].window == window) return i;
    if (p->n_kv_groups == CB_MAX_KV_GROUPS) {
        pb_fail(b, CB_EFORMAT, "config.json: more than %d different attention windows", CB_MAX_KV_GROUPS);
        return -1;
    }
    p->kv_groups[p->n_kv_groups].window = window;
    return p->n_kv_groups++;
}

cb_val pb_attention(cb_builder *b, cb_val q, cb_val k, cb_val v, const cb_attn_spec *a)
{
    if (bad(b, q) || bad(b, k) || bad(b, v)) return -1;
    cb_plan *p = b->plan;
    CB_ASSERT(value(b, q)->width == a->n_heads * a->dim && value(b, k)->width == a->n_kv_heads * a->dim);
    CB_ASSERT(value(b, v)->width == value(b, k)->width && a->n_heads % a->n_kv_heads == 0);
    cb_kv_state *s = grow(b, p->kv, p->n_kv, &b->cap_kv, sizeof *s);
    int group = kv_group(b, a->window);
    if (!s || group < 0) return -1;
    p->kv = s;
    s[p->n_kv] = (cb_kv_state){a->n_kv_heads, a->dim, a->window, group};
    char name[2 * MAX_NAME];
    snprintf(name, sizeof name, "%sself_attn", op_name(b->scope));
    char *kept = cb_arena_strndup(&p->arena, name, strlen(name));
    cb_op *put = add_op(b, CB_KV_PUT, kept, k, v, -1);
    if (!put) return -1;
    put->n[0] = p->n_kv;
    put->row_wise = true;
    cb_val out = add_value(b, a->n_heads * a->dim, false);
    cb_op *o = add_op(b, CB_ATTENTION, kept, q, -1, out);
    if (!o) return -1;
    o->n[0] = p->n_kv++;
    o->n[1] = a->n_heads;
    o->f[0] = a->scale;
    return out;
}

cb_val pb_glu(cb_builder *b, cb_val gate, cb_val up, int act)
{
    if (bad(b, gate) || bad(b, up)) return -1;
    CB_ASSERT(value(b, gate)->width == value(b, up)->width);
    cb_op *o = add_op(b, CB_GLU, b->plan->ops[b->plan->n_ops - 1].name, gate, up, gate);
    if (!o) return -1;
    o->n[0] = act;
    o->row_wise = true;
    return gate;
}

cb_val pb_add(cb_builder *b, cb_val x, cb_val y)
{
    if (bad(b, x) || bad(b, y)) return -1;
    CB_ASSERT(value(b, x)->width == value(b, y)->width);
    cb_op *o = add_op(b, CB_ADD, b->plan->ops[b->plan->n_ops - 1].name, x, y, x);
    if (o) o->row_wise = true;
    return o ? x : -1;
}

cb_val pb_wanted(cb_builder *b, cb_val x)
{
    if (bad(b, x)) return -1;
    cb_val out = add_value(b, value(b, x)->width, true);
    return add_op(b, CB_WANTED, "wanted", x, -1, out) ? out : -1;
}

void pb_logits(cb_builder *b, cb_val x, const char *path, int n_vocab, float cap)
{
    cb_val out = linear(b, x, path, n_vocab, -1);
    if (bad(b, out)) return;
    b->plan->values[out].is_logits = true;
    b->plan->n_vocab = n_vocab;
    cb_op *o = cap > 0 ? add_op(b, CB_SOFTCAP, "logits", out, -1, out) : NULL;
    if (!o) return;
    o->f[0] = cap;
    o->row_wise = true;
}

void pb_limits(cb_builder *b, int ctx_trained) { b->plan->ctx_trained = ctx_trained; }
