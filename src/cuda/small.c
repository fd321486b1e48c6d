/* small.c: which models small.cu runs, how their weights are shared out among the thread blocks of the cluster, and the launch. A model fits when its
 * plan is that of llama.c, its matrices have one format, and a block's share of a layer's weights fits its shared memory beside the rest. */
#include "cuda/small.h"
#include "cuda/fuse.h"
#include "cuda/stream.h"
#include <string.h>

typedef struct cu_small_model {
    cu_small a;
    cu_kernel kernel, pack;
    int covers, launches;    /* ops of the plan, and launches of the schedule, in whose place it stands */
    unsigned shared;
} cu_small_model;

/* ---- the plan ---- */

enum {
    L_NORM, L_QUANT, L_Q, L_K, L_V, L_ROPE0, L_ROPE1, L_TURN0, L_TURN1, L_PUT, L_TURN2, L_ATTN, L_TURN3, L_OUT_QUANT, L_OUT, L_NORM2, L_QUANT2, L_GATE,
    L_UP, L_GLU, L_DOWN_QUANT, L_DOWN, L_OPS
};
static const cb_op_kind layer_kinds[L_OPS] = {CB_RMSNORM, CB_QUANT, CB_LINEAR, CB_LINEAR, CB_LINEAR, CB_ROPE, CB_ROPE, CB_HADAMARD, CB_HADAMARD, CB_KV_PUT, CB_HADAMARD,
                                              CB_ATTENTION, CB_HADAMARD, CB_QUANT, CB_LINEAR, CB_RMSNORM, CB_QUANT, CB_LINEAR, CB_LINEAR, CB_GLU, CB_QUANT, CB_LINEAR};
enum { FIRST = 2, LAST = 3 }; /* ops in front of the layers, and behind them: the wanted row, its norm, its planes */

/* How many layers of these ops the plan has, or 0. */
static int count_layers(const cb_plan *p)
{
    if (p->n_ops < FIRST + LAST || p->ops[0].kind != CB_EMBED || p->ops[1].kind != CB_ROPE_TABLE) return 0;
    int n = 0;
    for (int i = FIRST;; i += L_OPS, n++)
        for (int k = 0; k < L_OPS; k++)
            if (i + k >= p->n_ops || p->ops[i + k].kind != layer_kinds[k]) {
                const cb_op *o = &p->ops[i];
                bool ends = k == 0 && i + LAST <= p->n_ops && o[0].kind == CB_WANTED && o[1].kind == CB_RMSNORM && o[2].kind == CB_QUANT;
                return ends ? n : 0;
            }
}

static uint64_t copies_bytes(int layers) { return (uint64_t)layers * CU_SMALL_BLOCKS * CU_SMALL_COPIES * sizeof(cu_small_copy); }
static uint64_t aligned(uint64_t n) { return (n + 255) & ~(uint64_t)255; }

/* Bytes of a layer's matrices; 0: they are not of 4 bits with scales and biases, or too many. */
static uint64_t layer_bytes(const cb_plan *p, int layer)
{
    uint64_t n = 0;
    for (int k = 0; k < L_OPS; k++) {
        if (layer_kinds[k] != CB_LINEAR) continue;
        const cb_matrix *m = &p->weights[p->ops[FIRST + layer * L_OPS + k].w[0]].matrix;
        if (m->mode != CB_W_AFFINE || m->bits != 4 || m->group < 16) return 0;
        uint64_t rows = (uint64_t)m->rows, scales = (uint64_t)(m->cols / m->group) * (m->scale_dtype == CB_F32 ? 4 : 2);
        n += aligned(rows * m->row_bytes) + aligned(2 * rows * scales);
    }
    return n < (uint64_t)CU_SMALL_BLOCKS * (232 << 10) ? n : 0;
}

/* The copies, and behind them the matrices in another order. */
uint64_t cu_small_bytes(const cb_plan *p)
{
    int layers = count_layers(p);
    uint64_t n = aligned(copies_bytes(layers));
    for (int l = 0; l < layers; l++) {
        uint64_t bytes = layer_bytes(p, l);
        if (!bytes) return 0;
        n += bytes;
    }
    return layers ? n : 0;
}

static bool same_norm(const cb_op *o, const cb_op *first) { return o->n[0] == 1 && o->n[1] == first->n[1] && o->f[0] == first->f[0] && o->w[0] >= 0; }

/* Does what a layer reads and makes hang together as in llama.c? */
static bool is_layer(const cb_plan *p, const cb_op *o, const cb_op *first, cb_val x)
{
    const cb_op *glu = &o[L_GLU];
    bool ok = o[L_NORM].in[0] == x && o[L_QUANT].in[0] == o[L_NORM].out && o[L_NORM2].in[0] == x && o[L_QUANT2].in[0] == o[L_NORM2].out;
    ok = ok && same_norm(&o[L_NORM], &first[L_NORM]) && same_norm(&o[L_NORM2], &first[L_NORM]);
    for (int k = L_Q; k <= L_V; k++) ok = ok && o[k].in[0] == o[L_QUANT].out && !o[k].n[0];
    for (int k = L_GATE; k <= L_UP; k++) ok = ok && o[k].in[0] == o[L_QUANT2].out && !o[k].n[0];
    ok = ok && o[L_OUT].in[0] == o[L_OUT_QUANT].out && o[L_OUT].n[0] == 1 && o[L_OUT].out == x;
    ok = ok && o[L_DOWN].in[0] == o[L_DOWN_QUANT].out && o[L_DOWN].n[0] == 1 && o[L_DOWN].out == x;
    ok = ok && glu->in[0] == o[L_GATE].out && glu->in[1] == o[L_UP].out && glu->n[0] == CB_ACT_SILU && o[L_DOWN_QUANT].in[0] == glu->out;
    static const int quants[] = {L_QUANT, L_OUT_QUANT, L_QUANT2, L_DOWN_QUANT};
    for (int k = 0; k < 4; k++) ok = ok && o[quants[k]].f[0] == first[L_QUANT].f[0] && p->values[o[quants[k]].out].pair;
    return ok;
}

/* Is attention of the layer what fuse.c makes of it, all of these ops, and nothing that small.cu does not know? */
static bool is_attention(const cb_dev *d, int layer0, cu_attn_step *a)
{
    const cb_op *o = &d->plan->ops[layer0];
    int32_t group[CU_MAX_FUSED];
    int n = cu_fuse(d, layer0 + L_ATTN, group);
    if (n != L_OUT_QUANT - L_ROPE0 + 1 || group[0] != layer0 + L_ROPE0 || !cu_attention_args(d, layer0 + L_ATTN, a)) return false;
    if (a->planes.op != layer0 + L_OUT_QUANT || a->gate || a->q_norm.on || a->k_norm.on || a->v_norm.on || !a->k || !a->q_rope || !a->k_rope || a->kv.window) return false;
    return a->q == cu_value(d, o[L_Q].out) && a->k == cu_value(d, o[L_K].out) && a->v == cu_value(d, o[L_V].out) && a->q_head == a->kv.dim && a->per <= 8 &&
           a->turn == cu_value(d, d->plan->ops[1].out);
}

/* As in the first layer but for the state, where values are and what is reported. */
static bool alike(const cu_attn_step *a, const cu_attn_step *first)
{
    const cu_kv *k = &a->kv, *f = &first->kv;
    return k->head_bytes == f->head_bytes && k->n_heads == f->n_heads && k->dim == f->dim && k->group == f->group && a->n_heads == first->n_heads && a->scale == first->scale &&
           a->pairs == first->pairs && a->half == first->half && a->q_block == first->q_block && a->k_block == first->k_block && a->v_block == first->v_block &&
           a->o_block == first->o_block;
}

/* ---- matrices ---- */

static const int matrices[CU_SMALL_REGIONS][3] = {{L_Q, L_K, L_V}, {L_OUT, -1, -1}, {L_GATE, L_UP, -1}, {L_DOWN, -1, -1}};

static const cu_weight *weight(const cb_dev *d, int layer, int op) { return &d->weights[d->plan->ops[FIRST + layer * L_OPS + op].w[0]]; }

static int format_of(const cu_weight *w, int dim)
{
#define IS(name, g, s, d) \
    if (w->fmt == CU_FMT_AFFINE && w->bits == 4 && w->group == g && w->scale_type == s && dim == d) return CU_SMALL_##name;
    CU_SMALL_FORMATS(IS)
#undef IS
    return -1;
}

static int row_scales(const cu_weight *w) { return w->n_groups * cu_scale_bytes(w); }

/* All of one format, of whole tiles, in place for copies of 16 bytes; of the same shape in all layers. */
static bool matrices_fit(const cb_dev *d, int layers, int *format)
{
    int dim = d->plan->kv[d->plan->ops[FIRST + L_ATTN].n[0]].dim;
    *format = format_of(weight(d, 0, L_Q), dim);
    for (int l = 0; l < layers; l++)
        for (int k = 0; k < L_OPS; k++) {
            if (layer_kinds[k] != CB_LINEAR) continue;
            const cu_weight *w = weight(d, l, k), *f = weight(d, 0, k);
            uintptr_t at = (uintptr_t)w->codes | (uintptr_t)w->scales | (uintptr_t)w->biases | (uintptr_t)w->row_bytes * 16;
            if (*format < 0 || format_of(w, dim) != *format || !w->biases || at & 15 || w->n_out % 16 || w->n_groups * w->group != w->k || w->row_bytes != w->k / 2) return false;
            if (w->n_out != f->n_out || w->k != f->k) return false;
        }
    return true;
}

/* ---- shares ---- */

/* Tiles of n that block b begins with, when all are shared out evenly, in wholes of `unit`. */
static int begin_of(int n, int unit, int b) { return (int)((int64_t)(n / unit) * b / CU_SMALL_BLOCKS) * unit; }

static int tiles_of(const cb_dev *d, int region)
{
    int n = 0;
    for (int m = 0; m < (region == CU_SMALL_GATE ? 1 : 3); m++)
        if (matrices[region][m] >= 0) n += weight(d, 0, matrices[region][m])->n_out / 16;
    return n;
}

/* The tiles of each block; those of the last matrix are shared out from another block on, so that all have about as many bytes. */
static void share_tiles(const cb_dev *d, cu_small *a)
{
    for (int r = 0; r < CU_SMALL_REGIONS; r++)
        for (int b = 0; b < CU_SMALL_BLOCKS; b++) {
            int n = tiles_of(d, r), unit = r == CU_SMALL_GATE ? weight(d, 0, L_GATE)->group / 16 : 1, from = (b + (r == CU_SMALL_DOWN ? 3 : 0)) % CU_SMALL_BLOCKS;
            a->region[b][r].tile0 = begin_of(n, unit, from);
            a->region[b][r].tiles = begin_of(n, unit, from + 1) - a->region[b][r].tile0;
        }
}

/* Places of a block's regions from `at` on; where they end. */
static int place_regions(const cb_dev *d, cu_small_region *region, int at)
{
    for (int r = 0; r < CU_SMALL_REGIONS; r++) {
        const cu_weight *w = weight(d, 0, matrices[r][0]);
        int tiles = region[r].tiles * (r == CU_SMALL_GATE ? 2 : 1);
        region[r].at = at;
        region[r].scales = at + tiles * 16 * (int)w->row_bytes;
        at = region[r].scales + tiles * 16 * 2 * row_scales(w);
    }
    return at;
}

static void add_copy(cu_small_copy **to, const void *from, int at, int bytes) { *(*to)++ = (cu_small_copy){from, (uint32_t)at, (uint32_t)bytes}; }

/* Codes and scales of the tiles t0 .. t1 of a region that are those of a matrix whose first tile is number `first`; `at`: how many tiles of the block
 * stand in front. */
static void copy_tiles(const cu_weight *w, const cu_small_pack *from, const cu_small_region *r, int first, int t0, int t1, int at, cu_small_copy **to)
{
    int64_t codes = 16 * w->row_bytes, scales = 32 * row_scales(w);
    add_copy(to, from->codes + (t0 - first) * codes, r->at + at * (int)codes, (t1 - t0) * (int)codes);
    add_copy(to, from->scales + (t0 - first) * scales, r->scales + at * (int)scales, (t1 - t0) * (int)scales);
}

/* A block's copies of a layer, whose matrices stand at `packed`: where each stands in the list is region_of() in small.cu. */
static void list_copies(const cb_dev *d, const cu_small *a, const cu_small_pack *packed, int layer, int block, cu_small_copy *c)
{
    static const int places[CU_SMALL_REGIONS] = {1, 7, 10, 14};
    const cb_op *o = &d->plan->ops[FIRST + layer * L_OPS];
    cu_small_copy *norms[2] = {c, c + 9};
    add_copy(&norms[0], d->vectors[o[L_NORM].w[0]], a->norm_w[0], 4 * a->hidden);
    add_copy(&norms[1], d->vectors[o[L_NORM2].w[0]], a->norm_w[1], 4 * a->hidden);
    for (int q = 0; q < CU_SMALL_REGIONS; q++) {
        const cu_small_region *r = &a->region[block][q];
        cu_small_copy *to = c + places[q];
        for (int m = 0, first = 0; m < 3 && matrices[q][m] >= 0; m++) {
            const cu_weight *w = weight(d, layer, matrices[q][m]);
            const cu_small_pack *from = &packed[matrices[q][m]];
            int end = first + w->n_out / 16, t0 = r->tile0 > first ? r->tile0 : first, t1 = r->tile0 + r->tiles < end ? r->tile0 + r->tiles : end;
            if (q == CU_SMALL_GATE) { /* the same tiles of both */
                if (r->tiles) copy_tiles(w, from, r, 0, r->tile0, r->tile0 + r->tiles, m * r->tiles, &to);
                continue;
            }
            if (t0 < t1) copy_tiles(w, from, r, first, t0, t1, t0 - r->tile0, &to);
            first = end;
        }
    }
}

/* A layer's matrices in the order of small_rows.cuh, from *at on. */
static int pack_layer(cb_dev *d, const cu_small_model *m, int layer, CUdeviceptr *at, cu_small_pack packed[L_OPS], cb_err *err)
{
    int rc = 0;
    for (int k = 0; k < L_OPS && rc == 0; k++) {
        if (layer_kinds[k] != CB_LINEAR) continue;
        cu_small_pack *p = &packed[k];
        p->w = *weight(d, layer, k);
        p->codes = (uint8_t *)(uintptr_t)*at;
        *at += aligned((uint64_t)p->w.n_out * (uint64_t)p->w.row_bytes);
        p->scales = (uint8_t *)(uintptr_t)*at;
        *at += aligned(2 * (uint64_t)p->w.n_out * (uint64_t)row_scales(&p->w));
        rc = cu_kernel_launch(d, m->pack, (unsigned)(((int64_t)p->w.n_out * p->w.n_groups + 255) / 256), 1, 1, 256, 0, p, err);
    }
    return rc;
}

/* ---- shared memory ---- */

static int take(int *used, int bytes)
{
    int at = *used;
    *used += (bytes + 127) & ~127;
    return at;
}

enum { MOST_KEYS = 64 }; /* blocks of keys: deeper steps are sooner done by all multiprocessors */

/* Places of everything; false when it does not fit. */
static bool lay_out(const cb_dev *d, cu_small_model *m)
{
    cu_small *a = &m->a;
    int used = CU_SMALL_BARRIERS, dim = a->attn.kv.dim, group = weight(d, 0, L_Q)->group, most = a->hidden, tiles = 0, own = 0;
    int heads_here = (a->heads + CU_SMALL_BLOCKS - 1) / CU_SMALL_BLOCKS, width[3] = {a->hidden, a->heads * dim, a->ffn};
    for (int k = 0; k < 3; k++)
        if (width[k] > most) most = width[k];
    for (int b = 0; b < CU_SMALL_BLOCKS; b++)
        for (int r = 0; r < CU_SMALL_REGIONS; r++) {
            int n = a->region[b][r].tiles * (r == CU_SMALL_GATE ? 2 : 1);
            if (n > tiles) tiles = n;
            if (r == CU_SMALL_GATE && a->region[b][r].tiles * 16 > own) own = a->region[b][r].tiles * 16;
        }
    if (heads_here * dim > own) own = heads_here * dim;
    a->half_sums = ((tiles * CU_SEGMENTS * 64 > 4 * most ? tiles * CU_SEGMENTS * 64 : 4 * most) + 127) & ~127;
    a->x = take(&used, 4 * ((a->hidden + CU_SMALL_PAD - 1) / CU_SMALL_PAD * CU_SMALL_PAD));
    a->qkv = take(&used, 4 * dim * (a->heads + 2 * a->attn.kv.n_heads));
    a->turn = take(&used, 8 * a->attn.pairs);
    a->own = take(&used, 4 * own);
    a->sums = take(&used, a->half_sums);
    a->keys = take(&used, a->half_sums > 2 * CU_STEP_FIXED(1) ? a->half_sums : 2 * CU_STEP_FIXED(1)); /* never needed at the same time */
    a->stage = take(&used, CU_SMALL_WARPS * 128);
    a->factors = take(&used, heads_here * 512);
    a->norm_w[0] = take(&used, 4 * a->hidden);
    a->norm_w[1] = take(&used, 4 * a->hidden);
    a->norm = take(&used, CU_SMALL_PLANES(a->hidden_groups, group));
    a->planes = take(&used, CU_SMALL_PLANES(a->heads_groups, group));
    a->unit = take(&used, CU_SMALL_PLANES(a->ffn_groups, group));
    a->rest = take(&used, CU_SMALL_PLANES(most / group, group));
    int weights = used, end = used;
    for (int b = 0; b < CU_SMALL_BLOCKS; b++) {
        int e = place_regions(d, a->region[b], weights);
        if (e > end) end = e;
    }
    used = (end + 127) & ~127;
    /* what is left: a slot for keys and values for each half, results of as many blocks of keys as steps may have, and more slots */
    int slot = 2 * (int)a->attn.kv.head_bytes, result = heads_here * (4 * dim + 8), left = d->max_shared - used - slot - 256;
    if (left < 8 * result) return false;
    a->most_keys = left / result < MOST_KEYS ? left / result : MOST_KEYS;
    int rounds = CU_SMALL_ROUNDS * (2 * CU_SMALL_BLOCKS / a->attn.kv.n_heads);
    if (a->most_keys > rounds) a->most_keys = rounds;
    a->part = take(&used, heads_here * a->most_keys * 4 * dim);
    a->found = take(&used, heads_here * a->most_keys * 8);
    a->kv = used;
    a->kv_slots = (d->max_shared - used) / slot < CU_SMALL_KV_SLOTS ? (d->max_shared - used) / slot : CU_SMALL_KV_SLOTS;
    m->shared = (unsigned)(used + a->kv_slots * slot);
    return a->kv_slots > 0;
}

/* ---- the model ---- */

/* Groups at least half as large as the largest number, so many that they and it have so much energy that it has no more than the share (small_rows.cuh). */
static int enough_for(float share)
{
    int n = 1;
    while (n < 1 << 20 && (1 + 0.25 * (n - 1)) * (double)share * (1 - 0x1p-8) < 1) n++;
    return n;
}

/* Nothing behind the covered ops reads what they made, but for the planes. */
static bool closed(const cb_plan *p, int covers)
{
    for (int i = covers; i < p->n_ops; i++)
        for (int k = 0; k < CB_MAX_IN; k++) {
            cb_val v = p->ops[i].in[k];
            bool made = false;
            for (int j = 0; j < covers - 1; j++) made |= v >= 0 && p->ops[j].out == v;
            for (int j = covers; j < i; j++) made &= p->ops[j].out != v;
            if (made) return false;
        }
    return true;
}

/* The launches that are the covered ops and no others; 0: some are more. */
static int count_launches(const cu_schedule *s, int covers)
{
    int n = 0;
    for (int k = 0; k < s->n_launches; k++) {
        const cu_launch *l = &s->launches[k];
        for (int i = 0; i < l->n; i++)
            if (s->order[l->first + i] >= covers) return 0;
        if ((n += l->n) == covers) return k + 1;
    }
    return 0;
}

/* Fills all but the copies; false: the model is none for it. */
static bool describe(const cb_dev *d, cu_small_model *m)
{
    const cb_plan *p = d->plan;
    cu_small *a = &m->a;
    int layers = count_layers(p), format;
    if (!layers || !matrices_fit(d, layers, &format)) return false;
    const cb_op *first = &p->ops[FIRST], *end = &p->ops[FIRST + layers * L_OPS];
    cb_val x = p->ops[0].out;
    for (int l = 0; l < layers; l++) {
        cu_attn_step at;
        if (!is_layer(p, first + l * L_OPS, first, x) || !is_attention(d, FIRST + l * L_OPS, &at)) return false;
        if (l == 0) a->attn = at;
        if (!alike(&at, &a->attn)) return false;
        if (l == 1) a->kv_layer = at.kv.base - a->attn.kv.base;
        if (at.kv.base - a->attn.kv.base != l * a->kv_layer) return false;
    }
    if (end[0].in[0] != x || end[1].in[0] != end[0].out || !same_norm(&end[1], first) || end[2].in[0] != end[1].out) return false;
    m->covers = FIRST + layers * L_OPS + LAST;
    m->launches = count_launches(&d->schedules[CU_FOR_ONE], m->covers);
    if (!m->launches || !closed(p, m->covers)) return false;
    const cu_weight *q = weight(d, 0, L_Q);
    int dim = a->attn.kv.dim, group = q->group;
    a->hidden = q->k, a->heads = a->attn.n_heads, a->ffn = weight(d, 0, L_DOWN)->k;
    a->hidden_groups = a->hidden / group, a->heads_groups = a->heads * dim / group, a->ffn_groups = a->ffn / group;
    bool shapes = a->attn.o_block == dim && a->attn.q_block == dim && a->attn.k_block == dim && a->attn.v_block == dim && a->attn.half == dim / 2 && a->attn.pairs == dim / 2 && weight(d, 0, L_OUT)->k == a->heads * dim && weight(d, 0, L_GATE)->n_out == a->ffn &&
                  weight(d, 0, L_UP)->n_out == a->ffn && q->n_out == a->heads * dim && weight(d, 0, L_K)->n_out == a->attn.kv.n_heads * dim &&
                  weight(d, 0, L_V)->n_out == a->attn.kv.n_heads * dim && weight(d, 0, L_OUT)->n_out == a->hidden && weight(d, 0, L_DOWN)->n_out == a->hidden;
    if (!shapes || a->hidden > CU_SMALL_MOST_HIDDEN || a->heads_groups > CU_SMALL_MOST_GROUPS || a->ffn_groups > CU_SMALL_MOST_GROUPS || a->attn.kv.n_heads > 2 * CU_SMALL_BLOCKS)
        return false;
    const cb_op *table = &p->ops[1];
    a->step = d->step;
    a->embed = d->embed[p->ops[0].w[0]];
    a->embed_scale = p->ops[0].f[0];
    a->freq = d->freq[table->n[0]];
    a->turn_scale = table->f[0];
    a->last_norm = d->vectors[end[1].w[0]];
    a->head = cu_planes_of(d, end[2].out);
    a->eps = first[L_NORM].f[0];
    a->share = first[L_QUANT].f[0];
    a->head_share = end[2].f[0];
    a->enough = enough_for(a->share);
    a->n_layers = layers;
    a->layer_ops = L_OPS;
    a->norm_op = FIRST + L_QUANT, a->out_op = FIRST + L_OUT_QUANT, a->gate_op = FIRST + L_QUANT2, a->down_op = FIRST + L_DOWN_QUANT;
    a->head_op = m->covers - 1;
    m->kernel = (cu_kernel)(CU_K_SMALL + format);
    m->pack = (cu_kernel)(CU_K_SMALL_PACK + format);
    share_tiles(d, a);
    return lay_out(d, m);
}

int cu_small_make(cb_dev *d, CUdeviceptr at, cb_err *err)
{
    if (!d->small_on || !cu_small_bytes(d->plan)) return 0;
    cu_small_model *m = cb_alloc_array(1, sizeof *m);
    if (!m) return cb_fail(err, CB_ENOMEM, "no memory for a launch");
    if (!describe(d, m) || d->cu.cuFuncSetAttribute_(d->kernel[m->kernel], CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, d->max_shared) != CUDA_SUCCESS ||
        d->cu.cuFuncSetAttribute_(d->kernel[m->kernel], CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1) != CUDA_SUCCESS || !cu_clusters_at_once(d, m->kernel, CU_SMALL_BLOCKS, CU_SMALL_THREADS, m->shared)) {
        cb_free(m);
        return 0;
    }
    uint64_t bytes = copies_bytes(m->a.n_layers);
    cu_small_copy *c = cb_alloc_array(bytes / sizeof *c, sizeof *c);
    int rc = c ? 0 : cb_fail(err, CB_ENOMEM, "no memory for a launch");
    CUdeviceptr weights = at + aligned(bytes);
    for (int l = 0; l < m->a.n_layers && rc == 0; l++) {
        cu_small_pack packed[L_OPS];
        rc = pack_layer(d, m, l, &weights, packed, err);
        for (int b = 0; b < CU_SMALL_BLOCKS && rc == 0; b++) list_copies(d, &m->a, packed, l, b, c + (size_t)(l * CU_SMALL_BLOCKS + b) * CU_SMALL_COPIES);
    }
    CUresult r = CUDA_SUCCESS;
    if (rc == 0) r = d->cu.cuMemcpyHtoDAsync_(at, c, bytes, d->stream);
    if (rc == 0 && r == CUDA_SUCCESS) r = d->cu.cuStreamSynchronize_(d->stream);
    if (r != CUDA_SUCCESS) rc = cu_fail(&d->cu, r, "the launches", err);
    m->a.copies = (const cu_small_copy *)(uintptr_t)at;
    cb_free(c);
    if (rc == 0) d->small = m;
    else cb_free(m);
    return rc;
}

int cu_small_launch(cb_dev *d, int *next, cb_err *err)
{
    cu_small_model *m = d->small;
    *next = 0;
    if (!m || d->schedule != &d->schedules[CU_FOR_ONE] || !d->n_splits || d->n_splits > m->a.most_keys) return 0;
    const cu_step *now = (const cu_step *)d->step_host;
    cu_small a = m->a;
    a.token = now->token;
    a.pos = now->pos;
    a.slot = now->slot;
    *next = m->launches;
    return cu_cluster_launch(d, m->kernel, CU_SMALL_BLOCKS, 1, 1, CU_SMALL_THREADS, m->shared, &a, err);
}

void cu_small_free(cu_small_model *m) { cb_free(m); }
