/* tape.c: the layers of a plan as phases of tape.cu, and their launch. They are read op by op: a row becomes planes, products of the planes follow, then
 * what is made of those. It ends where nothing of that is found, with the residual stream in memory. */
#include "cuda/tape.h"
#include "base/env.h"
#include "cuda/fuse.h"
#include "cuda/gemm_maps.h"
#include "cuda/tape_read.h"
#include <math.h>
#include <pthread.h>
#include <string.h>

typedef struct cu_tape_model {
    int first, n;            /* ops of the plan */
    int from, to;            /* the launches of a step of one row in whose place that is */
    cu_tape a;
    unsigned blocks, shared;
    cu_kernel kernel;
    CUdeviceptr words;       /* both sets */
    uint64_t bytes;
    int32_t turn;            /* the set of the last step, which the next one clears */
    bool ready;              /* the next step's words are all untold */
} cu_tape_model;

/* ---- layers being read ---- */

typedef cu_tape_reader reader;

static const cb_op *op(const reader *r) { return r->at < r->p->n_ops ? &r->p->ops[r->at] : NULL; }
static bool is(const reader *r, int ahead, cb_op_kind kind) { return r->at + ahead < r->p->n_ops && r->p->ops[r->at + ahead].kind == kind; }
static int width_of(const reader *r, cb_val v) { return r->p->values[v].width; }
bool cu_tape_is_single(const reader *r, cb_val v) { return v >= 0 && !r->p->values[v].wanted && r->p->values[v].slots <= 1 && !r->p->values[v].is_logits; }

int32_t cu_tape_words(reader *r, int n)
{
    int32_t at = r->words;
    r->words += (n + 3) / 4 * 4;
    return at;
}

/* The matrix's format, or -1. */
static int format_of(const cb_matrix *m)
{
#define IS(name, f, b, g, s) \
    if (m->mode == CB_W_AFFINE && m->bits == b && m->group == g && m->scale_dtype == (s == CU_S_BF16 ? CB_BF16 : CB_F16)) return CU_TAPE_##name;
    CU_TAPE_FORMATS(IS)
#undef IS
    return -1;
}

static bool is_bytes(const cb_matrix *m) { return m->mode == CB_W_AFFINE && m->bits == 8 && m->group == 64 && m->scale_dtype == CB_BF16; }

cu_tape_phase *cu_tape_new_phase(reader *r, int kind, int n)
{
    if (r->n == CU_TAPE_PHASES) return NULL;
    cu_tape_phase *p = &r->phase[r->n++];
    memset(p, 0, sizeof *p);
    p->kind = kind;
    p->n = n;
    p->from = -1;
    p->share = p->plain_share = -1;
    p->pieces = 1;
    return p;
}

bool cu_tape_fits(int n, int rounds) { return n % 256 == 0 && n <= rounds * 8 * CU_TAPE_WORKERS; }

/* Where a value comes from: told, or in memory, where the first phase alone may find it. */
static bool source(reader *r, cu_tape_phase *p, cb_val v)
{
    p->from = r->told[v];
    if (p->from < 0 && r->n > 1) return false;
    if (p->from < 0 && r->d) p->in = cu_value(r->d, v);
    return true;
}

/* The residual stream's. */
static bool stream_source(reader *r, cu_tape_phase *p)
{
    if (!r->added.n) return source(r, p, r->x);
    p->u.m.added = r->added;
    return true;
}

bool cu_tape_share(const reader *r, const cb_op *o, float *share)
{
    bool pair = r->p->values[o->out].pair;
    *share = pair ? o->f[0] : -1;
    return !pair || o->f[0] > 0;
}

/* ---- rows ---- */

/* The value v, rotated or not, as planes; before that, as planes for plain products. */
static bool read_planes(reader *r, cu_tape_phase *p, cb_val v)
{
    r->planes = r->plain = -1;
    while (op(r)) {
        const cb_op *o = op(r);
        if (r->planes >= 0 && (r->plain >= 0 || p->block || o->kind != CB_QUANT || o->in[0] != v)) break; /* planes of plain products may come last */
        if (o->in[0] != v || o->out < 0 || !cu_tape_is_single(r, o->out)) return false;
        if (o->kind == CB_HADAMARD && o->w[0] >= 0 && !o->n[1] && !p->block) {
            p->block = o->n[0];
            p->turn_scale = (float)(1.0 / sqrt((double)o->n[0]));
            if (p->block < 2 || p->block & (p->block - 1) || p->block > 4096 || p->n % p->block) return false;
            if (r->d) p->signs = r->d->vectors[o->w[0]];
            v = o->out;
        } else if (o->kind == CB_QUANT) {
            const cb_value *q = &r->p->values[o->out];
            bool plain = q->group == 64 && q->pack == 1;
            if (plain ? p->kind != CU_TAPE_NORM || r->plain >= 0 || p->block : r->planes >= 0) return false;
            if (!cu_tape_share(r, o, plain ? &p->plain_share : &p->share)) return false;
            if (plain) r->plain = o->out, p->plain_op = r->at;
            else {
                r->planes = o->out, p->op = r->at, p->n_groups = p->n / q->group;
                if (p->n % q->group) return false;
            }
        } else return false;
        r->at++;
    }
    return r->planes >= 0;
}

float cu_tape_inverse(int n) { return n & (n - 1) ? 0 : 1.0f / (float)n; }

cu_tape_phase *cu_tape_read_norm(reader *r)
{
    const cb_op *o = op(r);
    if (!o || o->kind != CB_RMSNORM || o->n[0] != 1 || o->w[0] < 0 || !cu_tape_is_single(r, o->out) || o->out == o->in[0]) return NULL;
    if (r->x >= 0 && o->in[0] != r->x) return NULL;
    int n = width_of(r, o->in[0]);
    cu_tape_phase *p = cu_tape_new_phase(r, CU_TAPE_NORM, n);
    if (!p || o->n[1] != n || !cu_tape_fits(n, 1)) return NULL;
    r->x = o->in[0];
    p->eps = o->f[0];
    p->inverse = cu_tape_inverse(n);
    if (r->d) p->norm_w = r->d->vectors[o->w[0]];
    if (!stream_source(r, p)) return NULL;
    r->at++;
    return read_planes(r, p, o->out) ? p : NULL;
}

/* ---- products ---- */

static bool same_cut(const cb_matrix *m, const cu_tape_phase *p) { return m->cols == p->n; }

bool cu_tape_read_matrix(reader *r, cu_tape_phase *p, const cb_op *o)
{
    const cb_matrix *m = &r->p->weights[o->w[0]].matrix;
    int format = p->u.m.bytes && is_bytes(m) ? r->format : p->u.m.bytes ? -1 : format_of(m);
    if (format < 0 || (r->format >= 0 && format != r->format) || p->n_matrices == CU_TAPE_MATRICES || m->rows % 16 || m->row_bytes % 16 || !same_cut(m, p)) return false;
    if (p->n_groups * m->group != p->n) return false; /* one group of activations, one of weights */
    cu_tape_matrix *to = &p->u.m.matrix[p->n_matrices++];
    r->format = format;
    to->tiles = (int32_t)(m->rows / 16);
    p->tiles += to->tiles;
    p->row_bytes = (int32_t)(m->row_bytes + 127) & ~127; /* of a tile */
    p->scale_bytes = (int32_t)(m->cols / m->group) * 2;
    if (!r->d) return true;
    const cu_weight *w = &r->d->weights[o->w[0]];
    to->scales = w->scales, to->biases = w->biases;
    int64_t rows = m->rows + (m->stack ? (m->stack - 1) * w->expert_rows : 0);
    if (r->n_maps == CU_TAPE_PHASES * CU_TAPE_MATRICES || cu_tape_map(r->d->cu.cuTensorMapEncodeTiled_, r->map[r->n_maps], w, rows) != CUDA_SUCCESS) return false;
    to->map = (const void *)(uintptr_t)(r->maps + 128 * (CUdeviceptr)r->n_maps++);
    return !(((uintptr_t)w->codes | (uintptr_t)w->scales | (uintptr_t)w->biases) & 15) && w->row_bytes == (int64_t)m->row_bytes && w->biases;
}

bool cu_tape_read_plain(reader *r, cu_tape_phase *p, const cb_op *o)
{
    const cb_matrix *m = &r->p->weights[o->w[0]].matrix;
    bool affine = is_bytes(m);
    if (p->u.m.n_plain == 2 || !same_cut(m, p) || (p->u.m.n_plain && affine != p->u.m.affine)) return false;
    p->u.m.affine = affine;
    cu_tape_plain *to = &p->u.m.plain[p->u.m.n_plain++];
    to->rows = (int32_t)m->rows;
    if (!r->d) return true;
    const cu_weight *w = &r->d->weights[o->w[0]];
    to->codes = w->codes, to->scales = (const float *)w->scales, to->biases = (const uint16_t *)w->biases, to->row_bytes = w->row_bytes;
    if (p->u.m.affine) return w->row_bytes == w->k && !((uintptr_t)w->codes & 7) && !((uintptr_t)w->row_bytes & 7);
    return w->fmt == CU_FMT_PLANES && w->group == 64 && w->scale_type == CU_S_F32 && w->row_bytes == 2 * w->k && !((uintptr_t)w->codes & 7);
}

bool cu_tape_read_products(reader *r, cu_tape_phase *p)
{
    int from = r->at;
    for (; is(r, 0, CB_LINEAR); r->at++) {
        const cb_op *o = op(r);
        if (!cu_tape_is_single(r, o->out) || o->n[0] != p->adds) break;
        if (o->in[0] == r->planes ? !cu_tape_read_matrix(r, p, o) : o->in[0] == r->plain ? !cu_tape_read_plain(r, p, o) : true) return false;
        if (p->adds) return ++r->at, o->out == r->x;
    }
    return r->at > from && p->n_matrices;
}

void cu_tape_place_outputs(reader *r, cu_tape_phase *p, int from, int to_op)
{
    int m = 0, plain = 0;
    for (int i = from; i < to_op; i++) {
        const cb_op *o = &r->p->ops[i];
        if (o->kind != CB_LINEAR) continue;
        bool is_plain = o->in[0] == r->plain;
        int32_t *to = is_plain ? &p->u.m.plain[plain++].to : &p->u.m.matrix[m].to;
        r->told[o->out] = *to = cu_tape_words(r, width_of(r, o->out));
        m += !is_plain;
    }
}

/* ---- what products are made into ---- */

static bool read_units(reader *r, cu_tape_phase *p, int from)
{
    const cb_op *o = op(r), *gate = &r->p->ops[from], *up = gate + 1;
    if (r->at != from + 2 || p->n_matrices != 2 || o->n[0] != CB_ACT_SILU || o->in[0] != gate->out || o->in[1] != up->out || !cu_tape_is_single(r, o->out)) return false;
    if (p->u.m.matrix[0].tiles != p->u.m.matrix[1].tiles) return false;
    p->units = 1;
    p->pieces = 2;
    p->tiles = p->u.m.matrix[0].tiles;
    r->told[o->out] = p->u.m.matrix[0].to = cu_tape_words(r, width_of(r, o->out));
    r->at++;
    return true;
}

static bool read_delta(reader *r, cb_val *y)
{
    const cb_op *o = op(r); /* convolution, delta rule, norm, gate */
    if (!is(r, 1, CB_DELTA) || !is(r, 2, CB_RMSNORM) || !is(r, 3, CB_GLU)) return false;
    cu_tape_phase *p = cu_tape_new_phase(r, CU_TAPE_DELTA, 0);
    if (!p) return false;
    const cb_op *delta = o + 1, *gate = o + 3;
    cb_val in[4] = {o->in[0], gate->in[0], delta->in[1], delta->in[2]};
    int32_t *at[4] = {&p->u.d.x, &p->u.d.z, &p->u.d.alpha, &p->u.d.beta};
    for (int i = 0; i < 4; i++) {
        if (in[i] < 0 || (*at[i] = r->told[in[i]]) < 0) return false;
    }
    if (r->d && !cu_delta_args(r->d, r->at + 1, &p->u.d.a)) return false;
    *y = gate->out;
    p->u.d.to = cu_tape_words(r, width_of(r, *y));
    r->told[*y] = p->u.d.to;
    r->at += 4;
    return true;
}

/* Word of what stands at p in memory: an output of the products among ops from .. to - 1; or -1. */
static int32_t word_at(const reader *r, int from, int to, const float *p)
{
    for (int i = from; i < to && p; i++) {
        if (r->p->ops[i].kind != CB_LINEAR) continue;
        const float *v = cu_value(r->d, r->p->ops[i].out);
        if (p >= v && p < v + width_of(r, r->p->ops[i].out)) return r->told[r->p->ops[i].out] + (int32_t)(p - v);
    }
    return -1;
}

/* The attention behind products p, all of whose ops follow each other, but for more products of the same planes. Returns how many ops that are, less a
 * quantisation at the end; *anchor: the attention. Without a device as many as there may be. */
static int attention_ops(reader *r, cu_tape_phase *p, int *anchor)
{
    int32_t group[CU_MAX_FUSED];
    int at = r->at, n = 0, k = 0;
    const cb_op *o = r->p->ops;
    for (; at < r->p->n_ops && at < r->at + CU_MAX_FUSED && o[at].kind != CB_ATTENTION; at++)
        if (o[at].kind == CB_LINEAR && (o[at].in[0] != r->planes || o[at].n[0] || !cu_tape_is_single(r, o[at].out) || !cu_tape_read_matrix(r, p, &o[at]))) return 0;
    if (at >= r->p->n_ops || o[at].kind != CB_ATTENTION) return 0;
    *anchor = at;
    if (!r->d) {
        for (at++; at < r->p->n_ops && ((o[at].kind == CB_HADAMARD && o[at].w[0] < 0) || o[at].kind == CB_GLU); at++) {}
        return at - r->at;
    }
    n = cu_fuse(r->d, at, group);
    if (n && o[group[n - 1]].kind == CB_QUANT) n--;
    for (at = r->at; k < n; at++) {
        if (o[at].kind == CB_LINEAR) continue;
        if (group[k++] != at) return 0;
    }
    return at - r->at;
}

/* Heads that warps of tape_attn.cuh can hold; and what they hold of each. */
static bool heads_fit(const reader *r, int dim, int per) { return (dim == (r->normed ? 512 : 128) || dim == 256) && per <= 8; }
static bool turns_fit(const reader *r, const cu_attn_step *a)
{
    if (!a->q_rope && !a->k_rope) return true;
    if (r->normed) return a->pairs % 32 == 0 && a->pairs <= a->half && 2 * a->half <= a->kv.dim && !(a->half & (a->half - 1)) && a->half >= 32;
    return a->pairs == 32 && a->half == 32;
}

bool cu_tape_read_attention(reader *r, cu_tape_phase *products, int from, cb_val *y)
{
    int anchor, n = attention_ops(r, products, &anchor), end = r->at + n;
    if (!n) return false;
    cu_tape_place_outputs(r, products, from, end);
    cu_tape_phase *p = cu_tape_new_phase(r, CU_TAPE_ATTN, 0);
    if (!p) return false;
    const cb_op *o = &r->p->ops[anchor];
    int heads = o->n[1], dim = r->p->kv[o->n[0]].dim;
    if (!heads_fit(r, dim, heads / r->p->kv[o->n[0]].n_heads)) return false;
    if (r->d) {
        cu_attn_step *a = &p->u.a.a;
        if (!cu_attention_args(r->d, anchor, a) || !a->k || !turns_fit(r, a)) return false;
        p->u.a.q = word_at(r, from, end, a->q), p->u.a.k = word_at(r, from, end, a->k), p->u.a.v = word_at(r, from, end, a->v), p->u.a.gate = word_at(r, from, end, a->gate);
        if (p->u.a.q < 0 || p->u.a.k < 0 || p->u.a.v < 0 || (a->gate && p->u.a.gate < 0)) return false;
    }
    r->at = end;
    *y = r->p->ops[r->at - 1].out;
    if (*y < 0 || width_of(r, *y) != heads * dim) return false;
    p->u.a.ml = cu_tape_words(r, heads * CU_CLUSTER_BLOCKS * 2);
    p->u.a.o = cu_tape_words(r, heads * CU_CLUSTER_BLOCKS * dim);
    p->u.a.to = r->told[*y] = cu_tape_words(r, heads * dim);
    return true;
}

/* A row that is multiplied by a matrix whose outputs are added to the residual stream. */
static bool read_row(reader *r, cb_val v)
{
    int n = width_of(r, v);
    cu_tape_phase *p = cu_tape_new_phase(r, CU_TAPE_ROW, n);
    if (!p || !cu_tape_fits(n, CU_TAPE_ROUNDS) || !source(r, p, v) || !read_planes(r, p, v)) return false;
    if (!is(r, 0, CB_LINEAR)) return false;
    p->adds = 1;
    if (!cu_tape_read_products(r, p)) return false;
    r->told[r->x] = p->u.m.matrix[0].to = cu_tape_words(r, width_of(r, r->x));
    return true;
}

/* ---- layers ---- */

/* What layers are taken back to, when what follows is none. */
typedef struct mark {
    int at, n, n_maps;
    int32_t words, told_x;
    cb_val x;
} mark;

static mark here(const reader *r) { return (mark){r->at, r->n, r->n_maps, r->words, r->x < 0 ? -1 : r->told[r->x], r->x}; }
static void back_to(reader *r, mark m)
{
    r->at = m.at, r->n = m.n, r->n_maps = m.n_maps, r->words = m.words, r->x = m.x;
    if (r->x >= 0) r->told[r->x] = m.told_x;
}

/* Behind a norm: its products, and what adds to the residual stream again. */
static bool read_half(reader *r)
{
    cb_val y;
    cu_tape_phase *p = cu_tape_read_norm(r);
    int from = r->at;
    if (!p || !cu_tape_read_products(r, p)) return false;
    if (is(r, 0, CB_GLU) && is(r, 2, CB_ROUTE)) return cu_tape_read_experts(r, p, from);
    if (is(r, 0, CB_GLU)) {
        y = op(r)->out;
        return read_units(r, p, from) && read_row(r, y);
    }
    if (!is(r, 0, CB_CONV)) return cu_tape_read_attention(r, p, from, &y) && read_row(r, y);
    cu_tape_place_outputs(r, p, from, r->at);
    return read_delta(r, &y) && read_row(r, y);
}

/* Half a layer, or one whose outputs are normed: all are of one kind. */
static bool read_part(reader *r)
{
    mark before = here(r);
    if (!r->normed && read_half(r)) return true;
    back_to(r, before);
    if (r->n && !r->normed) return false;
    r->normed = true;
    if (cu_tape_read_normed(r)) return true;
    back_to(r, before);
    r->normed = r->n > 0;
    return false;
}

/* Does no op outside read what is only told? */
static bool is_closed(const reader *r)
{
    for (int i = r->at; i < r->p->n_ops; i++)
        for (int k = 0; k < CB_MAX_IN; k++) {
            cb_val v = r->p->ops[i].in[k];
            int by = -1;
            for (int j = r->first; j < i && v >= 0; j++)
                if (r->p->ops[j].out == v) by = j;
            if (by >= 0 && by < r->at && v != r->x) return false;
        }
    return true;
}

/* The layers from op `first` on. */
static bool read_layers(reader *r, int first)
{
    int kinds = 0;
    r->first = r->at = first;
    r->x = r->planes = r->plain = -1;
    r->words = r->n = r->n_maps = 0;
    r->format = -1;
    for (int i = 0; i < r->p->n_values; i++) r->told[i] = -1;
    r->normed = false;
    r->added.n = 0;
    while (r->n + 8 <= (int)CU_TAPE_PHASES && read_part(r)) {}
    for (int i = 0; i < r->n; i++) kinds |= 1 << r->phase[i].kind;
    r->has_experts = kinds >> CU_TAPE_DOWN & 1;
    if (!(kinds >> CU_TAPE_ATTN & 1)) return false;
    cu_tape_phase *p = cu_tape_new_phase(r, CU_TAPE_NORM, width_of(r, r->x)); /* writes the residual stream */
    if (!p || !stream_source(r, p)) return false;
    p->n_groups = 1;
    if (r->d) p->out = cu_value(r->d, r->x);
    return is_closed(r);
}

static bool find_layers(reader *r)
{
    for (int i = 0; i < r->p->n_ops; i++)
        if (r->p->ops[i].kind == CB_RMSNORM && read_layers(r, i)) return true;
    return false;
}

/* Of both sets of words, of the maps that phases may have, and of phases. */
static uint64_t word_bytes(const reader *r) { return (uint64_t)r->words * 8; }
static uint64_t map_bytes(const reader *r) { return (uint64_t)r->n * 128 * CU_TAPE_MATRICES; }

/* Models without experts are sooner done by lists of launches (docs/performance.md). */
static bool is_wanted(const reader *r)
{
    const char *asked = cb_env_cuda_tape();
    return asked && !strcmp(asked, "on") ? true : r->has_experts;
}

static void reader_close(reader *r)
{
    if (r) cb_free(r->told);
    cb_free(r);
}

/* NULL: no memory. */
static reader *reader_open(const cb_plan *p)
{
    reader *r = cb_alloc_array(1, sizeof *r);
    if (!r) return NULL;
    r->p = p;
    r->told = cb_alloc_array((size_t)p->n_values, sizeof *r->told);
    if (r->told) return r;
    reader_close(r);
    return NULL;
}

uint64_t cu_tape_bytes(const cb_plan *p)
{
    reader *r = reader_open(p);
    uint64_t bytes = 0;
    if (r && find_layers(r) && is_wanted(r)) bytes = word_bytes(r) + 256 + map_bytes(r) + (uint64_t)r->n * sizeof *r->phase;
    reader_close(r);
    return bytes;
}

/* ---- their launch ---- */

/* Every block tells something in each phase of units, so that none is a step behind: as many blocks at most as the smallest has. */
static unsigned blocks_of(const reader *r)
{
    int n = r->d->n_sm;
    for (int i = 0; i < r->n; i++)
        if (r->phase[i].units && !r->phase[i].u.m.n_plain && r->phase[i].tiles < n) n = r->phase[i].tiles;
    return (unsigned)n;
}

static int take(int *used, int bytes)
{
    int at = *used;
    *used += (bytes + 127) & ~127;
    return at;
}

enum { BEHIND = 1024, BEHIND_RING = 4096, LEAST_RING = 48 << 10 }; /* loads run ahead of what there is */

static int row_room(int n) { return CU_FEW_ROOM(n < 8 * CU_TAPE_WORKERS ? n : 8 * CU_TAPE_WORKERS) * 128; }

/* What phases want of shared memory, bytes. */
typedef struct needs {
    int row, planes, plain, behind; /* behind: planes of rows with plain products */
    int heads, tiles, rest_tiles, tile_bytes; /* rest_tiles: of rows that may have a remainder */
} needs;

static int most(int a, int b) { return a > b ? a : b; }

static bool find_needs(reader *r, const cu_tape_model *t, needs *n)
{
    *n = (needs){.row = 4096, .tiles = 1, .rest_tiles = 1};
    for (int i = 0; i < r->n; i++) {
        cu_tape_phase *p = &r->phase[i];
        int parts = p->kind == CU_TAPE_ATTN ? p->u.a.a.kv.dim / 64 : 0;
        if (parts) n->tile_bytes = most(n->tile_bytes, CU_STEP_HALF(parts)), n->heads = most(n->heads, CU_STEP_FIXED(parts));
        if (parts || p->kind == CU_TAPE_DELTA) continue;
        int tiles = (p->tiles + (int)t->blocks - 1) / (int)t->blocks * p->pieces, bytes = 2 * p->n + 8 * p->n_groups;
        if (tiles > CU_TAPE_TILES) return false;
        p->tile_bytes = (16 * (p->row_bytes + 2 * p->scale_bytes) + CU_TAPE_ALIGNED - 1) & ~(CU_TAPE_ALIGNED - 1);
        n->tiles = most(n->tiles, tiles);
        if (p->share >= 0) n->rest_tiles = most(n->rest_tiles, tiles);
        n->row = most(n->row, row_room(p->n));
        n->planes = most(n->planes, bytes);
        if (p->u.m.n_plain) n->behind = most(n->behind, bytes), n->plain = 2 * (2 * p->n + p->n / 8);
        n->tile_bytes = most(n->tile_bytes, p->tile_bytes);
    }
    return true;
}

/* Places in shared memory; false when they do not fit. */
static bool lay_out(reader *r, cu_tape_model *t)
{
    cu_tape *a = &t->a;
    needs n;
    int used = (CU_TAPE_LIST + CU_TAPE_WINDOW * (int)sizeof(cu_tape_phase) + 127) & ~127;
    if (!find_needs(r, t, &n)) return false;
    a->x = take(&used, row_room(a->width));
    a->row = take(&used, r->normed ? n.row : most(n.row, n.heads));
    int behind = n.plain ? (n.behind + BEHIND + 127) & ~127 : 0; /* the widest rows have no plain products: those of others stand where theirs end */
    int planes = most(behind + n.plain, n.planes + BEHIND), rests = n.planes + BEHIND;
    if (r->normed) { /* while there are no planes: a second row, and behind it two vectors; heads in place of both */
        planes = most(planes, row_room(a->width));
        rests = most(most(rests, 2 * 4 * a->width), n.heads - planes);
    }
    a->planes = take(&used, planes);
    a->rests = take(&used, rests);
    a->heads = r->normed ? a->planes : a->row;
    a->chosen = take(&used, 8 * CU_TAPE_CHOSEN);
    a->plain = a->planes + behind;
    a->half_sums = n.tiles * CU_SEGMENTS * 64;
    a->sums = take(&used, a->half_sums + n.rest_tiles * CU_SEGMENTS * 64);
    used = (used + CU_TAPE_ALIGNED - 1) & ~(CU_TAPE_ALIGNED - 1);
    a->ring = used;
    a->ring_bytes = (r->d->max_shared - used - BEHIND_RING) & ~(CU_TAPE_ALIGNED - 1);
    t->shared = (unsigned)(used + a->ring_bytes + BEHIND_RING);
    return a->ring_bytes >= LEAST_RING && a->ring_bytes >= n.tile_bytes + CU_TAPE_ALIGNED; /* one tile after the other is enough */
}

/* *made: is there room for it? */
static int make_launch(cb_dev *d, cu_tape_model *m, reader *r, CUdeviceptr at, bool *made, cb_err *err)
{
    CUdeviceptr phases = r->maps + map_bytes(r);
    m->first = r->first, m->n = r->at - r->first;
    m->blocks = blocks_of(r);
    m->kernel = r->normed ? CU_K_TAPE_NORMED : (cu_kernel)(CU_K_TAPE + r->format);
    m->words = at, m->bytes = word_bytes(r);
    m->a = (cu_tape){.step = d->step, .phases = (const cu_tape_phase *)(uintptr_t)phases, .told = (float *)(uintptr_t)at, .words = r->words, .n_phases = r->n,
                     .width = width_of(r, r->x)};
    *made = lay_out(r, m);
    if (!*made) return 0;
    CUresult e = d->cu.cuMemcpyHtoDAsync_(r->maps, r->map, (size_t)r->n_maps * sizeof *r->map, d->stream);
    if (e == CUDA_SUCCESS) e = d->cu.cuMemcpyHtoDAsync_(phases, r->phase, (size_t)r->n * sizeof *r->phase, d->stream);
    if (e == CUDA_SUCCESS) e = d->cu.cuStreamSynchronize_(d->stream);
    return e == CUDA_SUCCESS ? 0 : cu_fail(&d->cu, e, "the launch of all layers", err);
}

int cu_tape_make(cb_dev *d, CUdeviceptr at, cb_err *err)
{
    if (!d->tape_on) return 0;
    reader *r = reader_open(d->plan);
    cu_tape_model *m = cb_alloc_array(1, sizeof *m);
    bool made = false;
    int rc = r && m ? 0 : cb_fail(err, CB_ENOMEM, "no memory for the launch of all layers");
    if (rc == 0 && find_layers(r) && is_wanted(r)) {
        r->maps = (at + word_bytes(r) + 255) & ~(CUdeviceptr)255;
        r->d = d;
        if (read_layers(r, r->first)) rc = make_launch(d, m, r, at, &made, err);
        made = made && d->cu.cuFuncSetAttribute_(d->kernel[m->kernel], CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, d->max_shared) == CUDA_SUCCESS;
    }
    if (rc == 0 && made) d->tape = m;
    else cb_free(m);
    reader_close(r);
    return rc;
}

void cu_tape_ops(const cb_dev *d, int *first, int *n) { *first = d->tape ? d->tape->first : 0, *n = d->tape ? d->tape->n : 0; }

void cu_tape_place(cb_dev *d)
{
    cu_tape_model *m = d->tape;
    const cu_schedule *c = &d->schedules[CU_FOR_ONE];
    if (!m) return;
    int n = 0;
    bool can = true;
    m->from = c->n_launches;
    for (int i = 0; i < c->n_launches; i++)
        for (int k = 0; k < c->launches[i].n; k++) {
            int op = c->order[c->launches[i].first + k];
            bool in = op >= m->first && op < m->first + m->n;
            if (in && m->from == c->n_launches) m->from = i;
            if (in) m->to = i + 1, n++;
            if (op < m->first && i >= m->from) can = false; /* what the layers may need */
        }
    for (int i = m->from; i < m->to; i++) n -= c->launches[i].n;
    if (can && !n) return;
    cb_free(m);
    d->tape = NULL;
}

bool cu_tape_runs(const cb_dev *d)
{
    return d->tape && d->batch->n_rows == 1 && !d->batch->tap && d->n_splits && d->n_splits <= CU_CLUSTER_BLOCKS; /* words for as many blocks of keys */
}

/* ---- steps ---- */

/* Blocks of a tape wait for each other, so all must be there: those of two such launches could keep each other out. */
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;

void cu_tape_free(cu_tape_model *m) { cb_free(m); }

int cu_tape_begin(cb_dev *d, int32_t *turn, cb_err *err)
{
    cu_tape_model *m = d->tape;
    bool fresh = !m->ready || (int)m->blocks < d->n_sm; /* where not all multiprocessors have a block, another one may have it next time */
    CUresult r = CUDA_SUCCESS;
    if (!m->ready) r = d->cu.cuMemsetD8Async_(m->words, 0xff, m->bytes, d->stream);
    m->ready = false;
    m->turn ^= 1;
    *turn = m->turn | (fresh ? CU_TAPE_FRESH : 0);
    return r == CUDA_SUCCESS ? 0 : cu_fail(&d->cu, r, "a step", err);
}

void cu_tape_lock(void) { pthread_mutex_lock(&one_at_a_time); }
void cu_tape_unlock(cb_dev *d, bool done)
{
    d->tape->ready = done;
    pthread_mutex_unlock(&one_at_a_time);
}

void cu_tape_span(const cb_dev *d, int *from, int *to) { *from = d->tape->from, *to = d->tape->to; }

int cu_tape_launch(cb_dev *d, cb_err *err)
{
    const cu_tape_model *m = d->tape;
    const cu_step *now = (const cu_step *)d->step_host;
    cu_tape a = m->a;
    a.pos = now->pos;
    a.slot = now->slot;
    a.turn = &d->step->turn;
    return cu_kernel_launch(d, m->kernel, m->blocks, 1, 1, CU_TAPE_THREADS, m->shared, &a, err);
}
