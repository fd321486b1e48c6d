/* print.c: a plan as text, and its costs. */
#include "plan/plan.h"
#include "plan/backend.h"
#include <stdio.h>

const char *cb_op_kind_name(cb_op_kind k)
{
    static const char *const names[CB_N_OP_KINDS] = {
        [CB_EMBED] = "embed",   [CB_ROPE_TABLE] = "rope_table", [CB_RMSNORM] = "rmsnorm",     [CB_QUANT] = "quant",
        [CB_LINEAR] = "linear", [CB_ROPE] = "rope",             [CB_KV_PUT] = "kv_put",       [CB_ATTENTION] = "attention",
        [CB_GLU] = "glu",       [CB_ADD] = "add",               [CB_WANTED] = "wanted",       [CB_SOFTCAP] = "softcap",
        [CB_BIAS] = "bias",     [CB_SPLIT] = "split",           [CB_SCALE] = "scale",         [CB_HADAMARD] = "hadamard",
        [CB_CONV] = "conv",     [CB_DELTA] = "delta_rule",      [CB_ROUTE] = "route",         [CB_MOE_SORT] = "moe_sort",
        [CB_MOE_LINEAR] = "moe_linear", [CB_MOE_SUM] = "moe_sum", [CB_ADD_GATED] = "add_gated",
    };
    return (unsigned)k < CB_N_OP_KINDS ? names[k] : "?";
}

uint64_t cb_op_bytes(const cb_plan *p, const cb_op *op)
{
    if (op->w[0] < 0 || op->kind == CB_EMBED) return 0;
    const cb_weight *w = &p->weights[op->w[0]];
    if (w->is_vector) return w->tensor->bytes;
    /* of a stack, one row's experts */
    return op->kind == CB_MOE_LINEAR ? w->matrix.bytes / (uint64_t)w->matrix.stack * (uint64_t)op->n[1] : w->matrix.bytes;
}

uint64_t cb_op_flops(const cb_plan *p, const cb_op *op)
{
    if (op->kind != CB_LINEAR && op->kind != CB_MOE_LINEAR) return 0;
    const cb_matrix *m = &p->weights[op->w[0]].matrix;
    return 2 * (uint64_t)m->rows * (uint64_t)m->cols * (uint64_t)(op->kind == CB_MOE_LINEAR ? op->n[1] : 1);
}

uint64_t cb_kv_block_bytes(const cb_kv_state *s)
{
    return (uint64_t)s->n_heads * (uint64_t)(2 * 64 * s->dim * 2 + ((s->dim + 63) / 64 + 1) * 64 * 4);
}

uint64_t cb_plan_kv_block_bytes(const cb_plan *p, int group)
{
    uint64_t n = 0;
    for (int i = 0; i < p->n_kv; i++)
        if (p->kv[i].group == group) n += cb_kv_block_bytes(&p->kv[i]);
    return n;
}

static uint64_t tokens_seen(const cb_kv_state *kv, int32_t pos)
{
    return kv->window && pos >= kv->window ? (uint64_t)kv->window : (uint64_t)pos + 1;
}

void cb_tap_costs(const cb_plan *p, const cb_op *op, const cb_batch *b, cb_tap *t)
{
    uint64_t rows = (uint64_t)(p->values[op->out >= 0 ? op->out : op->in[0]].wanted ? b->n_wanted : b->n_rows), n_sequences = 0;
    t->bytes = rows ? cb_op_bytes(p, op) : 0;
    t->flops = rows * cb_op_flops(p, op);
    if (op->kind == CB_MOE_LINEAR) {
        uint64_t all = p->weights[op->w[0]].matrix.bytes;
        t->bytes = t->bytes * rows < all ? t->bytes * rows : all;
    }
    for (int r = 0; r < b->n_rows; r++) {
        bool last = r + 1 == b->n_rows || b->slot[r + 1] != b->slot[r];
        n_sequences += last;
        if (op->kind != CB_ATTENTION) continue;
        const cb_kv_state *kv = &p->kv[op->n[0]];
        uint64_t seen = tokens_seen(kv, b->pos[r]);
        t->flops += 4 * seen * (uint64_t)op->n[1] * (uint64_t)kv->dim;
        if (last) t->bytes += seen * cb_kv_block_bytes(kv) / 64;
    }
    if (op->kind == CB_CONV || op->kind == CB_DELTA) t->bytes += n_sequences * 8 * (uint64_t)p->rec[op->n[0]].floats;
    if (op->kind == CB_CONV) t->flops = rows * 2 * (uint64_t)op->n[1] * (uint64_t)p->values[op->out].width;
    if (op->kind == CB_DELTA) t->flops = rows * 6 * (uint64_t)op->n[2] * (uint64_t)op->n[3] * (uint64_t)op->n[4];
}

static void print_format(const cb_matrix *m, cb_buf *out)
{
    static const char *const modes[] = {"float", "affine", "mxfp4", "mxfp8", "nvfp4"};
    if (m->mode == CB_W_FLOAT) cb_buf_printf(out, " %s", cb_dtype_name(m->float_dtype));
    else cb_buf_printf(out, " %s %d bits g%d", modes[m->mode], m->bits, m->group);
    cb_buf_printf(out, " [%lld,%lld]", (long long)m->rows, (long long)m->cols);
}

void cb_plan_print(const cb_plan *p, cb_buf *out)
{
    uint64_t bytes = 0, flops = 0;
    cb_buf_printf(out, "%5s  %-10s %-44s %9s %13s %13s\n", "op", "kind", "name", "width", "weight bytes", "flops/row");
    for (int i = 0; i < p->n_ops; i++) {
        const cb_op *o = &p->ops[i];
        cb_val v = o->out >= 0 ? o->out : o->in[0];
        cb_buf_printf(out, "%5d%c %-10s %-44s %9d %13llu %13llu", i, o->barrier ? '|' : ' ', cb_op_kind_name(o->kind),
                      o->name, p->values[v].width, (unsigned long long)cb_op_bytes(p, o),
                      (unsigned long long)cb_op_flops(p, o));
        if (o->w[0] >= 0 && !p->weights[o->w[0]].is_vector) print_format(&p->weights[o->w[0]].matrix, out);
        cb_buf_putc(out, '\n');
        bytes += cb_op_bytes(p, o);
        flops += cb_op_flops(p, o);
    }
    cb_buf_printf(out, "family %s, %d ops, %llu parameters, %llu weight bytes a step, %llu flops a row\n", p->family, p->n_ops,
                  (unsigned long long)p->n_params, (unsigned long long)bytes, (unsigned long long)flops);
    cb_buf_printf(out, "activations: %zu bytes a row; KV cache:", p->scratch_row_bytes);
    for (int g = 0; g < p->n_kv_groups; g++)
        cb_buf_printf(out, " %llu bytes a token (%s%d)", (unsigned long long)(cb_plan_kv_block_bytes(p, g) / 64),
                      p->kv_groups[g].window ? "window " : "full, window ", p->kv_groups[g].window);
    uint64_t rec = 0;
    for (int i = 0; i < p->n_rec; i++) rec += p->rec[i].floats * 4;
    if (rec) cb_buf_printf(out, "; recurrent state: %llu bytes a session", (unsigned long long)rec);
    cb_buf_putc(out, '\n');
    if (p->n_skipped)
        cb_buf_printf(out, "skipped: %d tensors, %llu bytes, of parts that are not run\n", p->n_skipped, (unsigned long long)p->skipped_bytes);
}
