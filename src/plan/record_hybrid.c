/* record_hybrid.c: operations of hybrid and expert models: rotations, gated delta nets, experts. */
#include "plan/builder_int.h"
#include <stdio.h>
#include <string.h>

const cb_tensor *pb_tensor(const cb_builder *b, const char *name)
{
    char text[2 * PB_MAX_NAME];
    snprintf(text, sizeof text, "%s%s", b->scope, name);
    return cb_weights_find(b->weights, text);
}

cb_val pb_split(cb_builder *b, cb_val x, int dim, int from, int take)
{
    if (pb_bad(b, x)) return -1;
    int heads = pb_value(b, x)->width / dim;
    CB_ASSERT(heads * dim == pb_value(b, x)->width && from >= 0 && take > 0 && from + take <= dim);
    cb_val out = pb_add_value(b, heads * take, pb_value(b, x)->wanted);
    cb_op *o = pb_add_op(b, CB_SPLIT, pb_last_name(b), x, -1, out);
    if (!o) return -1;
    int n[4] = {heads, dim, from, take};
    memcpy(o->n, n, sizeof n);
    o->row_wise = true;
    return out;
}

static cb_val scaled(cb_builder *b, cb_val x, const char *name, int w, float f)
{
    cb_op *o = pb_add_op(b, CB_SCALE, name, x, -1, x);
    if (!o) return -1;
    o->w[0] = w;
    o->f[0] = f;
    o->row_wise = true;
    return x;
}

cb_val pb_scale(cb_builder *b, cb_val x, float factor)
{
    return pb_bad(b, x) ? -1 : scaled(b, x, pb_last_name(b), -1, factor);
}

cb_val pb_scale_by(cb_builder *b, cb_val x, const char *name)
{
    int w = pb_bad(b, x) ? -1 : pb_vector_weight(b, name, 1, false);
    return w < 0 ? -1 : scaled(b, x, pb_op_name(b->plan->weights[w].name), w, 0);
}

void pb_set_rotation(cb_builder *b, const pb_rotation *r) { b->rotation = *r; }

cb_val pb_hadamard(cb_builder *b, cb_val x, const char *path, bool back)
{
    if (pb_bad(b, x)) return -1;
    if (!back && b->rot_of == x) return b->rot_out;
    char name[PB_MAX_NAME];
    snprintf(name, sizeof name, "%s.signs", path);
    int width = pb_value(b, x)->width, w = pb_vector_weight(b, name, width, false);
    if (w < 0) return -1;
    if (width % b->rotation.block)
        pb_fail(b, CB_EFORMAT, "%s: %d columns are not a multiple of the Hadamard block %d", b->plan->weights[w].name, width,
                b->rotation.block);
    cb_val out = back ? x : pb_add_value(b, width, pb_value(b, x)->wanted);
    cb_op *o = pb_add_op(b, CB_HADAMARD, pb_op_name(b->plan->weights[w].name), x, -1, out);
    if (!o) return -1;
    o->w[0] = w;
    o->n[0] = b->rotation.block;
    o->n[1] = back;
    o->row_wise = true;
    if (!back) b->rot_of = x, b->rot_out = out;
    return out;
}

static int add_rec(cb_builder *b, size_t floats)
{
    cb_plan *p = b->plan;
    cb_rec_state *r = pb_grow(b, p->rec, p->n_rec, &b->cap_rec, sizeof *r);
    if (!r) return -1;
    p->rec = r;
    r[p->n_rec].floats = floats;
    return p->n_rec++;
}

cb_val pb_conv(cb_builder *b, cb_val x, const char *name, int taps)
{
    if (pb_bad(b, x)) return -1;
    int width = pb_value(b, x)->width, w = pb_vector_weight(b, name, width * taps, false);
    int state = w < 0 ? -1 : add_rec(b, (size_t)(taps - 1) * (size_t)width);
    if (state < 0) return -1;
    cb_val out = pb_add_value(b, width, false);
    cb_op *o = pb_add_op(b, CB_CONV, pb_op_name(b->plan->weights[w].name), x, -1, out);
    if (!o) return -1;
    o->w[0] = w;
    o->n[0] = state;
    o->n[1] = taps;
    return out;
}

cb_val pb_delta(cb_builder *b, cb_val u, cb_val a, cb_val bb, const char *a_log, const char *dt_bias, const cb_delta_spec *d)
{
    if (pb_bad(b, u) || pb_bad(b, a) || pb_bad(b, bb)) return -1;
    CB_ASSERT(pb_value(b, u)->width == 2 * d->k_heads * d->k_dim + d->v_heads * d->v_dim && d->v_heads % d->k_heads == 0);
    int w0 = pb_vector_weight(b, a_log, d->v_heads, false), w1 = w0 < 0 ? -1 : pb_vector_weight(b, dt_bias, d->v_heads, false);
    int state = w1 < 0 ? -1 : add_rec(b, (size_t)d->v_heads * (size_t)d->v_dim * (size_t)d->k_dim);
    if (state < 0) return -1;
    cb_val out = pb_add_value(b, d->v_heads * d->v_dim, false);
    cb_op *o = pb_add_op(b, CB_DELTA, pb_op_name(b->plan->weights[w0].name), u, a, out);
    if (!o) return -1;
    o->in[2] = bb;
    o->w[0] = w0;
    o->w[1] = w1;
    int n[5] = {state, d->k_heads, d->v_heads, d->k_dim, d->v_dim};
    memcpy(o->n, n, sizeof n);
    return out;
}

/* ---- experts ---- */

static cb_val route(cb_builder *b, cb_val logits, const cb_moe_spec *m)
{
    int w = m->scale ? pb_vector_weight(b, m->scale, m->n_experts, false) : -1;
    cb_val out = pb_add_value(b, 2 * m->top_k, false);
    cb_op *o = pb_add_op(b, CB_ROUTE, pb_maker_name(b, logits), logits, -1, out);
    if (!o || (m->scale && w < 0)) return -1;
    o->w[0] = w;
    o->n[0] = m->n_experts;
    o->n[1] = m->top_k;
    o->n[2] = m->route;
    o->row_wise = true;
    return out;
}

static cb_val expert_linear(cb_builder *b, cb_val x, const char *path, int n_out, int part, int parts, cb_val sorted, cb_val r,
                            const cb_moe_spec *m)
{
    if (pb_bad(b, x)) return -1;
    int w = pb_matrix_weight(b, path, m->n_experts, n_out, pb_value(b, x)->width, part, parts);
    cb_val planes = w < 0 ? -1 : pb_quant(b, x, &b->plan->weights[w].matrix);
    if (planes < 0) return -1;
    cb_val out = pb_add_value(b, n_out, false);
    if (out >= 0) b->plan->values[out].slots = m->top_k;
    cb_op *o = pb_add_op(b, CB_MOE_LINEAR, pb_op_name(b->plan->weights[w].name), planes, sorted, out);
    if (!o) return -1;
    o->in[2] = r;
    o->w[0] = w;
    o->n[0] = pb_value(b, x)->slots > 1;
    o->n[1] = m->top_k;
    return out;
}

cb_val pb_moe(cb_builder *b, cb_val x, cb_val logits, const cb_moe_spec *m)
{
    if (pb_bad(b, x) || pb_bad(b, logits)) return -1;
    if (m->top_k < 1 || m->top_k > CB_MAX_TOP_K || m->n_experts < m->top_k || m->n_experts > CB_MAX_EXPERTS)
        pb_fail(b, CB_EFORMAT, "config.json: %d of %d experts a token; allowed are 1 to %d of at most %d", m->top_k, m->n_experts,
                CB_MAX_TOP_K, CB_MAX_EXPERTS);
    if (!pb_ok(b)) return -1;
    cb_plan *p = b->plan;
    if (m->n_experts > p->max_experts) p->max_experts = m->n_experts;
    if (m->top_k > p->max_top_k) p->max_top_k = m->top_k;
    cb_val r = route(b, logits, m), sorted = r < 0 ? -1 : pb_add_value(b, 2 * m->top_k, false);
    cb_op *o = sorted < 0 ? NULL : pb_add_op(b, CB_MOE_SORT, pb_maker_name(b, r), r, -1, sorted);
    if (!o) return -1;
    o->n[0] = m->n_experts;
    o->n[1] = m->top_k;
    const char *gp = m->fused ? m->fused : m->gate, *up = m->fused ? m->fused : m->up;
    int parts = m->fused ? 2 : 1;
    cb_val gate = expert_linear(b, x, gp, m->width, 0, parts, sorted, r, m);
    cb_val upv = expert_linear(b, x, up, m->width, parts - 1, parts, sorted, r, m);
    cb_val h = pb_glu(b, gate, upv, m->act);
    cb_val y = expert_linear(b, h, m->down, pb_bad(b, x) ? 1 : pb_value(b, x)->width, 0, 1, sorted, r, m);
    if (pb_bad(b, y)) return -1;
    cb_val out = pb_add_value(b, pb_value(b, x)->width, false);
    o = pb_add_op(b, CB_MOE_SUM, pb_maker_name(b, y), y, r, out);
    if (!o) return -1;
    o->n[0] = m->top_k;
    o->row_wise = true;
    return out;
}

cb_val pb_add_gated(cb_builder *b, cb_val x, cb_val gate, cb_val y)
{
    if (pb_bad(b, x) || pb_bad(b, gate) || pb_bad(b, y)) return -1;
    CB_ASSERT(pb_value(b, x)->width == pb_value(b, y)->width && pb_value(b, gate)->width == 1);
    cb_op *o = pb_add_op(b, CB_ADD_GATED, pb_maker_name(b, y), x, gate, x);
    if (!o) return -1;
    o->in[2] = y;
    o->row_wise = true;
    return x;
}
