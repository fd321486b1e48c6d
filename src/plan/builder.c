/* builder.c: names, config and weights of a plan being recorded. Operations: record.c, record_hybrid.c; memory: layout.c. */
#include "plan/builder.h"
#include "plan/builder_int.h"
#include "plan/layout.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

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
    *b = (cb_builder){.config = c, .weights = w, .plan = p, .rot_of = -1, .remainder = PB_REMAINDERS};
    for (int i = 0; i < PB_QUANTS; i++) b->quants[i].of = -1;
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
    if (!rc) {
        pb_check_leftovers(b);
        rc = b->err.code;
    }
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
const cb_weights *pb_weights(const cb_builder *b) { return b->weights; }

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

char *pb_full_name(cb_builder *b, const char *name)
{
    char text[2 * PB_MAX_NAME];
    int n = snprintf(text, sizeof text, "%s%s", b->scope, name);
    return cb_arena_strndup(&b->plan->arena, text, (size_t)n);
}

/* What an op is called: the weight's name without the parts that every name has. */
const char *pb_op_name(const char *full)
{
    static const char *const heads[] = {"language_model.", "model."};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        if (!strncmp(full, heads[i], strlen(heads[i]))) full += strlen(heads[i]);
    return full;
}

bool pb_has(const cb_builder *b, const char *name)
{
    char text[2 * PB_MAX_NAME];
    snprintf(text, sizeof text, "%s%s", b->scope, name);
    return cb_weights_find(b->weights, text) != NULL;
}

/* ---- growing arrays in the arena: the old copy stays behind, doubling bounds the waste ---- */

void *pb_grow(cb_builder *b, void *old, int n, int *cap, size_t size)
{
    if (n < *cap) return old;
    int want = *cap ? *cap * 2 : 64;
    void *d = want <= PB_MAX_OPS * 4 ? cb_arena_get(&b->plan->arena, (size_t)want * size) : NULL;
    if (!d) {
        pb_fail(b, CB_ENOMEM, "plan: no memory for %d entries", want);
        return NULL;
    }
    if (n) memcpy(d, old, (size_t)n * size);
    *cap = want;
    return d;
}

cb_val pb_add_value(cb_builder *b, int width, bool wanted)
{
    cb_plan *p = b->plan;
    cb_value *v = pb_grow(b, p->values, p->n_values, &b->cap_values, sizeof *v);
    if (!v) return -1;
    p->values = v;
    v[p->n_values] = (cb_value){.width = width, .wanted = wanted, .row_bytes = (size_t)width * 4, .first = -1, .last = -1};
    return p->n_values++;
}

cb_op *pb_add_op(cb_builder *b, cb_op_kind kind, const char *name, cb_val in0, cb_val in1, cb_val out)
{
    cb_plan *p = b->plan;
    if (!pb_ok(b)) return NULL;
    cb_op *o = pb_grow(b, p->ops, p->n_ops, &b->cap_ops, sizeof *o);
    if (!o) return NULL;
    p->ops = o;
    o += p->n_ops++;
    *o = (cb_op){.kind = kind, .name = name ? name : "", .in = {in0, in1, -1}, .out = out, .w = {-1, -1}};
    for (int i = 0; i < PB_QUANTS; i++)
        if (out >= 0 && out == b->quants[i].of) b->quants[i].of = -1; /* its input changed */
    if (out >= 0 && out == b->rot_of) b->rot_of = -1;
    return o;
}

static int add_weight(cb_builder *b, const cb_weight *w)
{
    cb_plan *p = b->plan;
    cb_weight *a = pb_grow(b, p->weights, p->n_weights, &b->cap_weights, sizeof *a);
    if (!a) return -1;
    p->weights = a;
    a[p->n_weights] = *w;
    return p->n_weights++;
}


/* ---- weights ---- */

int pb_vector_weight(cb_builder *b, const char *name, int n, bool add_one)
{
    char *full = pb_full_name(b, name);
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

int pb_matrix_weight(cb_builder *b, const char *path, int64_t stack, int64_t rows, int64_t cols, int part, int parts)
{
    char *full = pb_full_name(b, path);
    cb_weight w = {.name = full};
    if (!full) return -1;
    for (int i = 0; i < b->plan->n_weights && parts == 1; i++)
        if (!b->plan->weights[i].is_vector && !strcmp(b->plan->weights[i].name, full)) return i;
    int rc = cb_matrix_find(b->weights, b->config, full, stack, rows * parts, cols, &w.matrix, &b->err);
    if (rc == 0) pb_fail(b, CB_EFORMAT, "%s.weight: missing from the checkpoint", full);
    if (rc == 1 && parts > 1) {
        w.matrix.stored_rows = w.matrix.rows;
        w.matrix.row0 = rows * part;
        w.matrix.rows = rows;
        w.matrix.bytes /= (uint64_t)parts;
    }
    return rc == 1 ? add_weight(b, &w) : -1;
}
