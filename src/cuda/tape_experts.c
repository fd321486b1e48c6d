/* tape_experts.c: layers of experts as phases of a tape: the shared expert's units beside the router, units of chosen experts, and their sum. */
#include "cuda/tape_read.h"
#include "plan/opkind.h"
#include <math.h>

enum { ROUTER, SHARED_GATE, SHARED_G, SHARED_U, SHARED_GLU, SHARED_QUANT, ROUTE, SORT, G, U, GLU, QUANT, DOWN, SUM, SHARED_DOWN, ADD, ADD_GATED, N };

/* Do ops hand on what they make as the layer's names say? */
static bool is_linked(const cu_tape_reader *r, const cb_op *o)
{
    const cb_val links[][3] = {
        {SHARED_GLU, SHARED_G, SHARED_U}, {SHARED_QUANT, SHARED_GLU, -1}, {ROUTE, ROUTER, -1}, {SORT, ROUTE, -1}, {GLU, G, U}, {QUANT, GLU, -1}, {DOWN, QUANT, SORT},
        {SUM, DOWN, ROUTE}, {SHARED_DOWN, SHARED_QUANT, -1}, {ADD_GATED, ADD, SHARED_GATE},
    };
    for (size_t i = 0; i < sizeof links / sizeof *links; i++)
        for (int k = 0; k < 2; k++)
            if (links[i][1 + k] >= 0 && o[links[i][0]].in[k] != o[links[i][1 + k]].out) return false;
    bool experts = o[G].in[0] == r->planes && o[U].in[0] == r->planes && o[G].in[1] == o[SORT].out && o[U].in[1] == o[SORT].out;
    bool sums = o[ADD].in[0] == r->x && o[ADD].in[1] == o[SUM].out && o[ADD].out != r->x && o[ADD_GATED].out == o[ADD].out && o[ADD_GATED].in[2] == o[SHARED_DOWN].out;
    return experts && sums && o[ROUTER].in[0] == r->plain && o[SHARED_GATE].in[0] == r->plain && o[SHARED_G].in[0] == r->planes && o[SHARED_U].in[0] == r->planes;
}

static bool is_layer(const cu_tape_reader *r, int from)
{
    static const cb_op_kind kinds[N] = {CB_LINEAR,     CB_LINEAR,     CB_LINEAR, CB_LINEAR, CB_GLU,        CB_QUANT,   CB_ROUTE,  CB_MOE_SORT, CB_MOE_LINEAR,
                                        CB_MOE_LINEAR, CB_GLU,        CB_QUANT,  CB_MOE_LINEAR, CB_MOE_SUM, CB_LINEAR, CB_ADD,      CB_ADD_GATED};
    if (from + N > r->p->n_ops) return false;
    const cb_op *o = &r->p->ops[from];
    for (int i = 0; i < N; i++) {
        if (o[i].kind != kinds[i] || o[i].out < 0) return false;
        const cb_value *v = &r->p->values[o[i].out];
        if (v->wanted || v->is_logits || ((i < SORT || i > DOWN) && v->slots > 1)) return false;
    }
    int k = o[ROUTE].n[1];
    bool known = o[ROUTE].n[0] <= CU_TAPE_EXPERTS_MOST && k <= CU_TAPE_CHOSEN && k <= o[ROUTE].n[0] && o[ROUTE].w[0] < 0 && o[ROUTE].n[2] == CB_ROUTE_SOFTMAX_ALL;
    bool same = o[SUM].n[0] == k && !o[G].n[0] && !o[U].n[0] && o[DOWN].n[0] == 1 && o[SHARED_GLU].n[0] == CB_ACT_SILU && o[GLU].n[0] == CB_ACT_SILU;
    for (int i = 0; i < N; i++) same &= o[i].kind != CB_LINEAR || !o[i].n[0];
    return known && same && is_linked(r, o);
}

/* A matrix of experts whose rows stand in whole tiles. */
static bool read_experts_matrix(cu_tape_reader *r, cu_tape_phase *p, const cb_op *o, const cb_op *route)
{
    const cb_matrix *m = &r->p->weights[o->w[0]].matrix;
    int64_t stored = m->stored_rows ? m->stored_rows : m->rows;
    if (m->stack != route->n[0] || stored % 16 || stored / 16 * m->stack > INT32_MAX / 32) return false;
    if (p->u.m.route.step && p->u.m.route.step != stored / 16) return false;
    p->u.m.route.step = (int32_t)(stored / 16);
    return cu_tape_read_matrix(r, p, o);
}

cu_tape_phase *cu_tape_read_expert_units(cu_tape_reader *r, int n, int n_groups, const cb_op *gate, const cb_op *up, const cb_op *route, int32_t to, cu_tape_route *choice)
{
    cu_tape_phase *e = cu_tape_new_phase(r, CU_TAPE_EXPERTS, n);
    if (!e) return NULL;
    e->n_groups = n_groups;
    if (!read_experts_matrix(r, e, gate, route) || !read_experts_matrix(r, e, up, route) || e->u.m.matrix[0].tiles != e->u.m.matrix[1].tiles) return NULL;
    choice->tiles = e->u.m.matrix[0].tiles;
    choice->step = e->u.m.route.step;
    e->units = 1;
    e->pieces = 2;
    e->tiles = choice->k * choice->tiles;
    e->u.m.matrix[0].to = to;
    e->u.m.route = *choice;
    return choice->tiles * 16 == choice->width ? e : NULL;
}

cu_tape_phase *cu_tape_read_expert_results(cu_tape_reader *r, const cb_op *down, const cb_op *shared, const cb_op *route, int32_t from, int group, cu_tape_route *choice)
{
    cu_tape_phase *d = cu_tape_new_phase(r, CU_TAPE_DOWN, choice->width);
    if (!d) return NULL;
    d->n_groups = choice->width / group; /* of each, while matrices are looked at */
    if (!read_experts_matrix(r, d, down, route) || (shared && !cu_tape_read_matrix(r, d, shared))) return NULL;
    d->tiles = d->u.m.matrix[0].tiles;
    if ((shared && d->u.m.matrix[1].tiles != d->tiles) || d->tiles * 16 != r->p->values[r->x].width) return NULL;
    choice->step = d->u.m.route.step;
    d->pieces = choice->k + (shared != NULL);
    d->n = d->pieces * choice->width;
    d->n_groups = d->n / group;
    d->from = from;
    d->u.m.route = *choice;
    d->u.m.matrix[0].to = cu_tape_words(r, d->tiles * 16);
    return d;
}

bool cu_tape_read_experts(cu_tape_reader *r, cu_tape_phase *p, int from)
{
    const cb_op *o = &r->p->ops[from];
    if (r->at != from + SHARED_GLU || !is_layer(r, from) || p->n_matrices != 2 || p->u.m.n_plain != 2 || !p->u.m.affine) return false;
    const cb_value *units = &r->p->values[o[QUANT].out], *shared = &r->p->values[o[SHARED_QUANT].out];
    int k = o[ROUTE].n[1], width = units->width, n = p->n, all = (k + 1) * width;
    if (shared->width != width || units->group != shared->group || units->pack != shared->pack || units->pair || width % 256 || !cu_tape_fits(all, 2) || width > 8 * CU_TAPE_WORKERS)
        return false;
    cu_tape_route route = {.n = o[ROUTE].n[0], .k = k, .kind = o[ROUTE].n[2], .op = from + ROUTE, .width = width, .groups = width / units->group};
    int32_t word = cu_tape_words(r, all);
    cu_tape_place_outputs(r, p, from, r->at);
    route.logits = r->told[o[ROUTER].out];
    route.gate = r->told[o[SHARED_GATE].out];
    p->units = 1;
    p->pieces = 2;
    p->tiles = p->u.m.matrix[0].tiles;
    p->u.m.matrix[0].to = word + k * width;

    if (!cu_tape_read_expert_units(r, n, p->n_groups, &o[G], &o[U], &o[ROUTE], word, &route)) return false;
    cu_tape_phase *d = cu_tape_read_expert_results(r, &o[DOWN], &o[SHARED_DOWN], &o[ROUTE], word, units->group, &route);
    if (!d || !cu_tape_share(r, &o[SHARED_QUANT], &d->share)) return false;
    d->op = from + SHARED_QUANT;
    d->plain_op = from + QUANT;
    r->x = o[ADD_GATED].out;
    r->told[r->x] = d->u.m.matrix[0].to;
    r->at = from + N;
    return true;
}
