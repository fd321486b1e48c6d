/* tape_normed.c: layers whose outputs are normed before they are added to the residual stream as phases of a tape (k_tape_normed): attention, then a dense
 * MLP of 8 bits beside a router and experts, which all see that stream under norms of their own. */
#include "cuda/tape_read.h"
#include "plan/opkind.h"

/* Ops behind attention's output product. SCALE may be missing. */
enum { NORM_A, ADD_A, NORM_D, QUANT_D, GATE, UP, UNITS, QUANT_U, DOWN, NORM_1, NORM_R, SCALE_R, QUANT_R, ROUTER, NORM_E, QUANT_E, ROUTE, SORT, G, U, GLU, QUANT_G, RESULTS,
       SUM, NORM_2, ADD_12, NORM_12, ADD_12X, SCALE, N };

static bool is_linked(const cb_op *o, cb_val x, cb_val a)
{
    const struct { int op; cb_val from[2]; } links[] = {
        {NORM_A, {a, -1}}, {ADD_A, {x, o[NORM_A].out}},
        {NORM_D, {o[ADD_A].out, -1}}, {QUANT_D, {o[NORM_D].out, -1}}, {GATE, {o[QUANT_D].out, -1}}, {UP, {o[QUANT_D].out, -1}}, {UNITS, {o[GATE].out, o[UP].out}},
        {QUANT_U, {o[UNITS].out, -1}}, {DOWN, {o[QUANT_U].out, -1}}, {NORM_1, {o[DOWN].out, -1}},
        {NORM_R, {o[ADD_A].out, -1}}, {SCALE_R, {o[NORM_R].out, -1}}, {QUANT_R, {o[SCALE_R].out, -1}}, {ROUTER, {o[QUANT_R].out, -1}}, {ROUTE, {o[ROUTER].out, -1}}, {SORT, {o[ROUTE].out, -1}},
        {NORM_E, {o[ADD_A].out, -1}}, {QUANT_E, {o[NORM_E].out, -1}}, {G, {o[QUANT_E].out, o[SORT].out}}, {U, {o[QUANT_E].out, o[SORT].out}}, {GLU, {o[G].out, o[U].out}},
        {QUANT_G, {o[GLU].out, -1}}, {RESULTS, {o[QUANT_G].out, o[SORT].out}}, {SUM, {o[RESULTS].out, o[ROUTE].out}}, {NORM_2, {o[SUM].out, -1}},
        {ADD_12, {o[NORM_1].out, o[NORM_2].out}}, {NORM_12, {o[ADD_12].out, -1}}, {ADD_12X, {o[ADD_A].out, o[NORM_12].out}},
    };
    for (size_t i = 0; i < sizeof links / sizeof *links; i++)
        for (int k = 0; k < 2; k++)
            if (links[i].from[k] >= 0 && o[links[i].op].in[k] != links[i].from[k]) return false;
    return true;
}

static bool is_norm(const cu_tape_reader *r, const cb_op *o, int n) { return o->n[0] == 1 && o->n[1] == n && o->w[0] >= 0 && r->p->values[o->out].width == n; }
static bool is_bytes_quant(const cu_tape_reader *r, const cb_op *o) { return r->p->values[o->out].group == 64 && r->p->values[o->out].pack == 1 && r->p->values[o->out].width % 64 == 0; }

/* Are these the ops, behind a product of `a`; x, of n values: the residual stream before? */
static bool is_rest(const cu_tape_reader *r, const cb_op *o, cb_val x, cb_val a, int n)
{
    static const cb_op_kind kinds[SCALE] = {CB_RMSNORM, CB_ADD,   CB_RMSNORM, CB_QUANT,   CB_LINEAR, CB_LINEAR,     CB_GLU,        CB_QUANT,    CB_LINEAR, CB_RMSNORM,
                                            CB_RMSNORM, CB_SCALE, CB_QUANT,   CB_LINEAR,  CB_RMSNORM, CB_QUANT,     CB_ROUTE,      CB_MOE_SORT, CB_MOE_LINEAR, CB_MOE_LINEAR,
                                            CB_GLU,     CB_QUANT, CB_MOE_LINEAR, CB_MOE_SUM, CB_RMSNORM, CB_ADD,    CB_RMSNORM,    CB_ADD};
    static const int norms[] = {NORM_A, NORM_D, NORM_1, NORM_R, NORM_E, NORM_2, NORM_12};
    for (int i = 0; i < SCALE; i++) {
        if (o[i].kind != kinds[i] || o[i].out < 0) return false;
        if ((i < SORT || i > RESULTS) && !cu_tape_is_single(r, o[i].out)) return false;
        if (o[i].kind == CB_LINEAR && o[i].n[0]) return false;
    }
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++)
        if (!is_norm(r, &o[norms[i]], n)) return false;
    int k = o[ROUTE].n[1];
    bool acts = o[UNITS].n[0] == CB_ACT_GELU_TANH && o[GLU].n[0] == CB_ACT_GELU_TANH && o[SCALE_R].w[0] < 0;
    bool one = o[NORM_R].f[0] == o[NORM_D].f[0] && o[NORM_E].f[0] == o[NORM_D].f[0]; /* the same mean square and eps */
    bool known = o[ROUTE].n[0] <= CU_TAPE_EXPERTS_FEW && k <= 8 && k <= o[ROUTE].n[0] && o[ROUTE].n[2] == CB_ROUTE_SOFTMAX_TOP;
    bool slots = o[SUM].n[0] == k && !o[G].n[0] && !o[U].n[0] && o[RESULTS].n[0] == 1;
    return acts && one && known && slots && is_bytes_quant(r, &o[QUANT_D]) && is_bytes_quant(r, &o[QUANT_U]) && is_bytes_quant(r, &o[QUANT_R]) && is_linked(o, x, a);
}

static const float *vector_of(const cu_tape_reader *r, int w) { return r->d && w >= 0 ? r->d->vectors[w] : NULL; }

/* What attention gave, and the dense MLP's units beside the router. */
static bool read_into(cu_tape_reader *r, const cb_op *o, cb_val a, int n, int at)
{
    cu_tape_phase *p = cu_tape_new_phase(r, CU_TAPE_INTO, n);
    if (!p) return false;
    p->u.m.added = (cu_tape_added){.n = 1, .from = {r->told[a]}, .eps = {o[NORM_A].f[0]}, .w = {vector_of(r, o[NORM_A].w[0])}};
    p->u.m.bytes = 1;
    p->u.m.plain_w = vector_of(r, o[NORM_R].w[0]);
    p->u.m.plain_scale = o[SCALE_R].f[0];
    p->norm_w = vector_of(r, o[NORM_D].w[0]);
    p->eps = o[NORM_D].f[0];
    p->inverse = cu_tape_inverse(n);
    p->n_groups = n / 64;
    p->op = at + QUANT_D;
    p->plain_op = at + QUANT_R;
    if (!cu_tape_share(r, &o[QUANT_D], &p->share) || !cu_tape_share(r, &o[QUANT_R], &p->plain_share)) return false;
    if (!cu_tape_read_plain(r, p, &o[ROUTER]) || !p->u.m.affine || !cu_tape_read_matrix(r, p, &o[GATE]) || !cu_tape_read_matrix(r, p, &o[UP])) return false;
    if (p->u.m.matrix[0].tiles != p->u.m.matrix[1].tiles) return false;
    p->units = 1;
    p->pieces = 2;
    p->tiles = p->u.m.matrix[0].tiles;
    r->told[o[UNITS].out] = p->u.m.matrix[0].to = cu_tape_words(r, r->p->values[o[UNITS].out].width);
    r->told[o[ROUTER].out] = p->u.m.plain[0].to = cu_tape_words(r, r->p->values[o[ROUTER].out].width);
    return true;
}

/* What a row's product gives, told as it is; bytes: by a matrix of 8 bits. */
static bool read_told_row(cu_tape_reader *r, cb_val v, const cb_op *quant, int at, const cb_op *product, int bytes)
{
    const cb_value *q = &r->p->values[quant->out];
    int n = r->p->values[v].width;
    cu_tape_phase *p = cu_tape_new_phase(r, CU_TAPE_ROW, n);
    if (!p || n > 2 * 8 * CU_TAPE_WORKERS || n % 64 || n % q->group || (p->from = r->told[v]) < 0) return false;
    p->u.m.bytes = bytes;
    p->op = at;
    p->n_groups = n / q->group;
    if (!cu_tape_share(r, quant, &p->share) || !cu_tape_read_matrix(r, p, product)) return false;
    r->told[product->out] = p->u.m.matrix[0].to = cu_tape_words(r, r->p->values[product->out].width);
    return true;
}

static bool read_experts(cu_tape_reader *r, const cb_op *o, int n, int at)
{
    const cb_value *rows = &r->p->values[o[QUANT_E].out], *units = &r->p->values[o[QUANT_G].out];
    int k = o[ROUTE].n[1], width = units->width, all = k * width;
    if (units->pair || n % rows->group || width % units->group || units->group != rows->group || width % 16 || !cu_tape_fits(all, 2)) return false;
    cu_tape_route route = {.n = o[ROUTE].n[0], .k = k, .kind = o[ROUTE].n[2], .op = at + ROUTE, .width = width, .groups = width / units->group, .logits = r->told[o[ROUTER].out]};
    int32_t word = cu_tape_words(r, all);
    cu_tape_phase *e = cu_tape_read_expert_units(r, n, n / rows->group, &o[G], &o[U], &o[ROUTE], word, &route);
    if (!e) return false;
    e->norm_w = vector_of(r, o[NORM_E].w[0]);
    e->op = at + QUANT_E;
    e->u.m.expert_scale = vector_of(r, o[ROUTE].w[0]);
    cu_tape_phase *d = cu_tape_read_expert_results(r, &o[RESULTS], NULL, &o[ROUTE], word, units->group, &route);
    if (!d) return false;
    d->plain_op = at + QUANT_G;
    r->told[o[SUM].out] = d->u.m.matrix[0].to;
    return true;
}

bool cu_tape_read_normed(cu_tape_reader *r)
{
    cb_val y;
    cu_tape_phase *p = cu_tape_read_norm(r);
    int from = r->at;
    if (!p || !cu_tape_read_products(r, p) || !cu_tape_read_attention(r, p, from, &y)) return false;
    const cb_op *o = &r->p->ops[r->at];
    int n = p->n;
    if (r->at + 2 + N > r->p->n_ops || o[0].kind != CB_QUANT || o[0].in[0] != y || o[1].kind != CB_LINEAR || o[1].in[0] != o[0].out || o[1].n[0]) return false;
    if (!cu_tape_is_single(r, o[0].out) || !cu_tape_is_single(r, o[1].out) || !is_rest(r, o + 2, r->x, o[1].out, n)) return false;
    if (!read_told_row(r, y, &o[0], r->at, &o[1], 0)) return false;
    cb_val a = o[1].out;
    r->at += 2;
    o += 2;
    if (!read_into(r, o, a, n, r->at) || !read_told_row(r, o[UNITS].out, &o[QUANT_U], r->at + QUANT_U, &o[DOWN], 1) || !read_experts(r, o, n, r->at)) return false;
    bool scaled = o[SCALE].kind == CB_SCALE && o[SCALE].in[0] == o[ADD_12X].out && o[SCALE].w[0] >= 0;
    r->added = (cu_tape_added){.n = 2,
                               .from = {r->told[o[DOWN].out], r->told[o[SUM].out]},
                               .eps = {o[NORM_1].f[0], o[NORM_2].f[0]},
                               .both_eps = o[NORM_12].f[0],
                               .w = {vector_of(r, o[NORM_1].w[0]), vector_of(r, o[NORM_2].w[0])},
                               .both_w = vector_of(r, o[NORM_12].w[0]),
                               .scale = scaled ? vector_of(r, o[SCALE].w[0]) : NULL};
    r->x = o[scaled ? SCALE : ADD_12X].out;
    r->at += scaled ? N : SCALE;
    return true;
}
