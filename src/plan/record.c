/* record.c: one function an operation: checks shapes, appends to the plan. */
#include "plan/builder_int.h"
#include <stdio.h>
#include <string.h>

cb_val pb_embed(cb_builder *b, const char *name, int n_vocab, int width, float scale)
{
    if (!pb_ok(b)) return -1;
    int w = pb_matrix_weight(b, name, 1, n_vocab, width, 0, 1);
    cb_val out = pb_add_value(b, width, false);
    cb_op *o = w < 0 ? NULL : pb_add_op(b, CB_EMBED, pb_op_name(b->plan->weights[w].name), -1, -1, out);
    if (!o) return -1;
    o->w[0] = w;
    o->f[0] = scale;
    o->row_wise = true;
    b->plan->n_vocab = n_vocab;
    return b->rotation.block && b->rotation.is_packed(b->rotation.ctx, b->plan->weights[w].name) ? pb_hadamard(b, out, name, true) : out;
}

cb_val pb_rope_table(cb_builder *b, const char *name, const double *freq, int n_pairs, float scale)
{
    if (!pb_ok(b)) return -1;
    cb_plan *p = b->plan;
    cb_rope_table *t = pb_grow(b, p->ropes, p->n_ropes, &b->cap_ropes, sizeof *t);
    double *f = cb_arena_get(&p->arena, (size_t)n_pairs * sizeof *f);
    if (!t || !f) return -1;
    memcpy(f, freq, (size_t)n_pairs * sizeof *f);
    p->ropes = t;
    t[p->n_ropes] = (cb_rope_table){n_pairs, f};
    cb_val out = pb_add_value(b, 2 * n_pairs, false);
    cb_op *o = pb_add_op(b, CB_ROPE_TABLE, pb_full_name(b, name), -1, -1, out);
    if (!o) return -1;
    o->n[0] = p->n_ropes++;
    o->f[0] = scale;
    o->row_wise = true;
    return out;
}

static cb_val norm(cb_builder *b, cb_val x, cb_val out, const char *name, int heads, int dim, float eps, bool add_one)
{
    int w = name ? pb_vector_weight(b, name, dim, add_one) : -1;
    if (name && w < 0) return -1;
    cb_op *o = pb_add_op(b, CB_RMSNORM, name ? pb_op_name(b->plan->weights[w].name) : "norm", x, -1, out);
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
    if (pb_bad(b, x)) return -1;
    int width = pb_value(b, x)->width;
    return norm(b, x, pb_add_value(b, width, pb_value(b, x)->wanted), name, 1, width, eps, add_one);
}

cb_val pb_head_norm(cb_builder *b, cb_val x, const char *name, int dim, float eps, bool add_one)
{
    if (pb_bad(b, x)) return -1;
    CB_ASSERT(pb_value(b, x)->width % dim == 0);
    return norm(b, x, x, name, pb_value(b, x)->width / dim, dim, eps, add_one);
}

void pb_remainders(cb_builder *b, float share) { b->remainder = share; }

cb_val pb_quant(cb_builder *b, cb_val x, const cb_matrix *m)
{
    bool planes = m->mode == CB_W_FLOAT || m->mode == CB_W_MXFP8; /* encoded at load, group 64 */
    int group = planes ? 64 : m->group;
    int pack = planes ? 1 : m->bits == 4 ? 2 : m->bits == 2 ? 4 : m->bits == 1 ? 8 : 1;
    for (int i = 0; i < PB_QUANTS; i++)
        if (b->quants[i].of == x && pb_value(b, b->quants[i].out)->group == group && pb_value(b, b->quants[i].out)->pack == pack)
            return b->quants[i].out;
    int k = pb_value(b, x)->width;
    cb_val out = pb_add_value(b, k, pb_value(b, x)->wanted);
    cb_op *o = pb_add_op(b, CB_QUANT, pb_maker_name(b, x), x, -1, out);
    if (!o) return -1;
    cb_value *v = &b->plan->values[out];
    int n_groups = (k + group - 1) / group;
    v->group = group;
    v->pack = pack;
    size_t planes_bytes = cb_plan_plane_stride(k, pack);
    v->slots = pb_value(b, x)->slots;
    v->pair = v->slots <= 1;
    v->row_bytes = (planes_bytes + (size_t)n_groups * 12) * (v->pair ? 2 : 1) + (v->pair ? 4 : 0);
    o->f[0] = b->remainder;
    o->row_wise = true;
    b->quants[b->next_quant].of = x;
    b->quants[b->next_quant].out = out;
    b->next_quant = (b->next_quant + 1) % PB_QUANTS;
    return out;
}

static cb_val linear(cb_builder *b, cb_val x, const char *path, int n_out, cb_val into)
{
    if (pb_bad(b, x)) return -1;
    if (b->rotation.block) {
        char full[2 * PB_MAX_NAME];
        snprintf(full, sizeof full, "%s%s", b->scope, path);
        if (b->rotation.is_packed(b->rotation.ctx, full)) x = pb_hadamard(b, x, path, false);
        if (x < 0) return -1;
    }
    int w = pb_matrix_weight(b, path, 1, n_out, pb_value(b, x)->width, 0, 1);
    if (w < 0) return -1;
    cb_val planes = pb_quant(b, x, &b->plan->weights[w].matrix);
    if (planes < 0) return -1;
    cb_val out = into >= 0 ? into : pb_add_value(b, n_out, pb_value(b, x)->wanted);
    cb_op *o = pb_add_op(b, CB_LINEAR, pb_op_name(b->plan->weights[w].name), planes, into, out);
    if (!o) return -1;
    o->w[0] = w;
    o->n[0] = into >= 0;
    char bias[PB_MAX_NAME];
    snprintf(bias, sizeof bias, "%s.bias", path);
    if (pb_has(b, bias)) {
        int v = pb_vector_weight(b, bias, n_out, false);
        cb_op *ob = v < 0 ? NULL : pb_add_op(b, CB_BIAS, pb_op_name(b->plan->weights[v].name), out, -1, out);
        if (!ob) return -1;
        ob->w[0] = v;
        ob->row_wise = true;
    }
    return out;
}

cb_val pb_linear(cb_builder *b, cb_val x, const char *path, int n_out) { return linear(b, x, path, n_out, -1); }

cb_val pb_linear_add(cb_builder *b, cb_val x, const char *path, cb_val residual)
{
    return pb_bad(b, residual) ? -1 : linear(b, x, path, pb_value(b, residual)->width, residual);
}

cb_val pb_rope(cb_builder *b, cb_val x, const cb_attn_spec *a)
{
    if (pb_bad(b, x) || a->rope < 0) return -1;
    CB_ASSERT(pb_value(b, x)->width % a->dim == 0 && a->n_pairs <= a->half && 2 * a->half <= a->dim);
    cb_op *o = pb_add_op(b, CB_ROPE, pb_last_name(b), x, a->rope, x);
    if (!o) return -1;
    o->n[0] = pb_value(b, x)->width / a->dim;
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

/* The largest power of two that divides dim, at most `most`. */
static int rotation_block(int dim, int most)
{
    int n = 1;
    while (n < most && dim % (2 * n) == 0) n *= 2;
    return n;
}

/* Blocks of x rotated in place (docs/arithmetic.md, section 6): it spreads one large number over its neighbours, so that less is
 * lost when they become integers under one scale. The rotation is orthogonal and symmetric: q.k keeps its value, and a second
 * one brings sums of rotated V back. */
static cb_val rotate(cb_builder *b, cb_val x, int block)
{
    if (pb_bad(b, x) || block == 1) return x;
    cb_op *o = pb_add_op(b, CB_HADAMARD, pb_maker_name(b, x), x, -1, x);
    if (!o) return -1;
    o->n[0] = block;
    o->row_wise = true;
    return x;
}

enum { ROTATE_K = 64, ROTATE_V = 512 }; /* K's scales cover 64 dims, V's a head */

cb_val pb_attention(cb_builder *b, cb_val q, cb_val k, cb_val v, const cb_attn_spec *a)
{
    if (pb_bad(b, q) || pb_bad(b, k) || pb_bad(b, v)) return -1;
    cb_plan *p = b->plan;
    CB_ASSERT(pb_value(b, q)->width == a->n_heads * a->dim && pb_value(b, k)->width == a->n_kv_heads * a->dim);
    CB_ASSERT(pb_value(b, v)->width == pb_value(b, k)->width && a->n_heads % a->n_kv_heads == 0);
    cb_kv_state *s = pb_grow(b, p->kv, p->n_kv, &b->cap_kv, sizeof *s);
    int group = kv_group(b, a->window);
    if (!s || group < 0) return -1;
    k = rotate(b, k, rotation_block(a->dim, ROTATE_K));
    v = rotate(b, v, rotation_block(a->dim, ROTATE_V));
    p->kv = s;
    s[p->n_kv] = (cb_kv_state){a->n_kv_heads, a->dim, a->window, group};
    char name[2 * PB_MAX_NAME];
    snprintf(name, sizeof name, "%sself_attn", pb_op_name(b->scope));
    char *kept = cb_arena_strndup(&p->arena, name, strlen(name));
    cb_op *put = pb_add_op(b, CB_KV_PUT, kept, k, v, -1);
    if (!put) return -1;
    put->n[0] = p->n_kv;
    put->row_wise = true;
    p->n_kv++;
    return pb_attention_on(b, q, p->n_kv - 1, a);
}

int pb_last_kv(const cb_builder *b) { return b->plan->n_kv - 1; }

cb_val pb_attention_on(cb_builder *b, cb_val q, int state, const cb_attn_spec *a)
{
    if (pb_bad(b, q) || state < 0 || state >= b->plan->n_kv) return -1;
    CB_ASSERT(pb_value(b, q)->width == a->n_heads * a->dim && b->plan->kv[state].dim == a->dim);
    q = rotate(b, q, rotation_block(a->dim, ROTATE_K));
    cb_val out = pb_add_value(b, a->n_heads * a->dim, false);
    char name[2 * PB_MAX_NAME];
    snprintf(name, sizeof name, "%sself_attn", pb_op_name(b->scope));
    cb_op *o = pb_add_op(b, CB_ATTENTION, cb_arena_strndup(&b->plan->arena, name, strlen(name)), q, -1, out);
    if (!o) return -1;
    o->n[0] = state;
    o->n[1] = a->n_heads;
    o->f[0] = a->scale;
    return rotate(b, out, rotation_block(a->dim, ROTATE_V));
}

cb_val pb_glu(cb_builder *b, cb_val gate, cb_val up, int act)
{
    if (pb_bad(b, gate) || pb_bad(b, up)) return -1;
    CB_ASSERT(pb_value(b, gate)->width == pb_value(b, up)->width);
    cb_op *o = pb_add_op(b, CB_GLU, pb_last_name(b), gate, up, gate);
    if (!o) return -1;
    o->n[0] = act;
    o->row_wise = true;
    return gate;
}

cb_val pb_add(cb_builder *b, cb_val x, cb_val y)
{
    if (pb_bad(b, x) || pb_bad(b, y)) return -1;
    CB_ASSERT(pb_value(b, x)->width == pb_value(b, y)->width);
    cb_val out = pb_add_value(b, pb_value(b, x)->width, pb_value(b, x)->wanted); /* not in place: thread blocks of a GPU may still read x */
    cb_op *o = out < 0 ? NULL : pb_add_op(b, CB_ADD, pb_maker_name(b, y), x, y, out);
    if (o) o->row_wise = true;
    return o ? out : -1;
}

cb_val pb_wanted(cb_builder *b, cb_val x)
{
    if (pb_bad(b, x)) return -1;
    cb_val out = pb_add_value(b, pb_value(b, x)->width, true);
    return pb_add_op(b, CB_WANTED, "wanted", x, -1, out) ? out : -1;
}

void pb_logits(cb_builder *b, cb_val x, const char *path, int n_vocab, float cap)
{
    cb_val out = linear(b, x, path, n_vocab, -1);
    if (pb_bad(b, out)) return;
    b->plan->values[out].is_logits = true;
    b->plan->n_vocab = n_vocab;
    cb_op *o = cap > 0 ? pb_add_op(b, CB_SOFTCAP, "logits", out, -1, out) : NULL;
    if (!o) return;
    o->f[0] = cap;
    o->row_wise = true;
}

void pb_limits(cb_builder *b, int ctx_trained) { b->plan->ctx_trained = ctx_trained; }
