#include "cpu/cpu.h"
#include "cpu/backend.h"
#include "base/env.h"
#include "base/sys.h"
#include "base/mem.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

static void cpu_close(cb_dev *d)
{
    if (!d) return;
    if (d->weights)
        for (int i = 0; i < d->plan->n_weights; i++) {
            cb_free_aligned(d->weights[i].vector);
            cb_free_aligned(d->weights[i].planes);
            cb_free_aligned(d->weights[i].plane_scales);
        }
    if (d->kv)
        for (int i = 0; i < d->plan->n_kv; i++)
            if (d->kv[i].base) munmap(d->kv[i].base, d->kv[i].pool_bytes);
    if (d->rec)
        for (int i = 0; i < d->plan->n_rec; i++)
            if (d->rec[i].base) munmap(d->rec[i].base, d->rec[i].pool_bytes);
    cb_free(d->weights);
    cb_free(d->kv);
    cb_free(d->rec);
    cb_free(d->expert_at);
    cb_free_aligned(d->scratch);
    cb_free_aligned(d->thread_scratch);
    cb_free(d->runs);
    cb_free_aligned(d->split);
    cb_pool_close(d->pool);
    cb_free_aligned(d);
}

static int cpu_open(const cb_backend_opts *opts, cb_dev **out, cb_err *err)
{
    *out = NULL;
    uint32_t isa = cb_isa_detect();
    const char *cap = cb_env_cpu();
    if (cap && cb_isa_cap(&isa, cap) < 0)
        return cb_fail(err, CB_ENODEV, "CB_CPU=%.20s: this processor does not have it, or the name is unknown", cap);
    if (opts->level && cb_isa_cap(&isa, opts->level) < 0)
        return cb_fail(err, CB_ENODEV, "device cpu:%.20s: this processor does not have it, or the name is unknown",
                       opts->level);
    cb_dev *d = cb_alloc_aligned(sizeof *d);
    if (!d) return cb_fail(err, CB_ENOMEM, "no memory for the CPU device");
    cb_kernels_init(&d->k, isa);
    snprintf(d->label, sizeof d->label, "cpu:%s", d->k.name);
    int rc = cb_pool_open(opts->n_threads ? opts->n_threads : cb_physical_cores(), &d->pool, err);
    if (rc < 0) {
        cb_free_aligned(d);
        return rc;
    }
    *out = d;
    return 0;
}

/* ---- weights ---- */

static int load_vector(cpu_weight *w, const cb_weight *p, cb_err *err)
{
    if (!(w->vector = cb_alloc_aligned((size_t)p->n * 4)))
        return cb_fail(err, CB_ENOMEM, "%s: no memory for %d floats", p->name, p->n);
    for (int i = 0; i < p->n; i++) {
        float v = cb_load_float(p->tensor->data, p->tensor->dtype, (size_t)i);
        if (!isfinite(v)) return cb_fail(err, CB_EFORMAT, "%s: %s[%d] is not finite", p->tensor->file, p->name, i);
        w->vector[i] = p->add_one ? 1.0f + v : v;
    }
    return 0;
}

/* Float matrices (and mxfp8, whose elements are floats) become 16-bit planes, 64 to a group. */
static bool is_encoded(const cb_matrix *m) { return m->mode == CB_W_FLOAT || m->mode == CB_W_MXFP8; }

static uint64_t encoded_bytes(const cb_matrix *m)
{
    return (uint64_t)(m->rows * m->stack) * (uint64_t)((m->cols + 63) / 64) * 132;
}

/* Does the device keep encoded copies? They decode fastest. A checkpoint of more than 4 GiB may have a twentieth of itself
 * copied; when it asks for more, its float matrices stay where they are and are encoded as they are used (product.c). */
static bool keeps_copies(const cb_plan *p)
{
    const char *say = cb_env_cpu_copies();
    uint64_t n = 0;
    if (say) return strcmp(say, "off") != 0;
    for (int i = 0; i < p->n_weights; i++)
        if (!p->weights[i].is_vector && is_encoded(&p->weights[i].matrix)) n += encoded_bytes(&p->weights[i].matrix);
    return p->weight_bytes <= (uint64_t)4 << 30 || n <= p->weight_bytes / 20;
}

struct encode_job {
    const cb_matrix *m;
    cpu_weight *w;
    int n_groups;
    float *rows; /* [members][cols] */
    bool (*all_finite)(const float *x, int64_t n);
    atomic_llong bad_row;
};

static void encode_rows(void *ctx, int member, int n)
{
    struct encode_job *j = ctx;
    float *row = j->rows + (size_t)member * (size_t)j->m->cols;
    int64_t all = j->m->rows * j->m->stack;
    for (int64_t i = all * member / n; i < all * (member + 1) / n; i++) {
        cb_matrix_decode_row(j->m, i / j->m->rows, i % j->m->rows, row);
        if (!j->all_finite(row, j->m->cols)) atomic_store(&j->bad_row, i + 1);
        cb_encode_planes(row, j->m->cols, j->w->planes + (size_t)i * (size_t)j->n_groups * 128,
                         j->w->plane_scales + i * j->n_groups);
    }
}

static int load_encoded(cb_dev *d, cpu_weight *w, const cb_matrix *m, bool keep, cb_err *err)
{
    int G = (int)((m->cols + 63) / 64), members = cb_pool_size(d->pool);
    w->mm = (cb_mm){.fmt = CB_FMT_PLANES, .bits = 8, .group = 64, .n_groups = G, .k = m->cols, .row_bytes = (size_t)G * 128,
                    .scale_type = CB_S_F32};
    if (!keep) return 0;
    size_t groups = (size_t)(m->rows * m->stack) * (size_t)G;
    struct encode_job j = {.m = m, .w = w, .n_groups = G, .all_finite = d->k.all_finite};
    w->planes = cb_alloc_aligned(groups * 128);
    w->plane_scales = cb_alloc_aligned(groups * 4);
    j.rows = cb_alloc_array((size_t)members * (size_t)m->cols, sizeof(float));
    if (!w->planes || !w->plane_scales || !j.rows) {
        cb_free(j.rows);
        return cb_fail(err, CB_ENOMEM, "%s: no memory for %zu bytes of encoded weights", m->path, groups * 132);
    }
    cb_pool_run(d->pool, encode_rows, &j);
    cb_free(j.rows);
    int64_t bad = atomic_load(&j.bad_row);
    if (bad) return cb_fail(err, CB_EFORMAT, "%s.weight: row %lld holds a value that is not finite", m->path, (long long)bad - 1);
    w->mm.codes = w->planes;
    w->mm.scales = (const uint8_t *)w->plane_scales;
    return 0;
}

static int load_packed(cpu_weight *w, const cb_matrix *m, cb_err *err)
{
    if (m->bits < 1 || m->bits > 8 || m->bits == 7 || m->group < 16 || m->cols % m->group)
        return cb_fail(err, CB_EFORMAT, "%s: %d bits in groups of %d over %lld columns cannot be run", m->path, m->bits, m->group,
                       (long long)m->cols);
    w->mm = (cb_mm){.fmt = m->mode == CB_W_AFFINE ? CB_FMT_AFFINE : CB_FMT_FP4, .bits = m->bits, .group = m->group,
                    .n_groups = (int)(m->cols / m->group), .k = m->cols, .codes = m->codes, .row_bytes = (size_t)m->row_bytes,
                    .scales = m->scales, .biases = m->biases, .global_scale = m->global_scale};
    switch (m->mode) {
    case CB_W_MXFP4: w->mm.scale_type = CB_S_E8M0; break;
    case CB_W_NVFP4: w->mm.scale_type = CB_S_E4M3; break;
    default: w->mm.scale_type = m->scale_dtype == CB_F32 ? CB_S_F32 : m->scale_dtype == CB_F16 ? CB_S_F16 : CB_S_BF16;
    }
    return 0;
}

static int cpu_load(cb_dev *d, const cb_plan *p, cb_progress_fn progress, void *ctx, cb_err *err)
{
    d->plan = p;
    if (!(d->weights = cb_alloc_array((size_t)p->n_weights, sizeof *d->weights))) return cb_fail(err, CB_ENOMEM, "no memory");
    uint64_t done = 0;
    bool keep = keeps_copies(p);
    for (int i = 0; i < p->n_weights; i++) {
        const cb_weight *w = &p->weights[i];
        int rc = w->is_vector            ? load_vector(&d->weights[i], w, err)
                 : is_encoded(&w->matrix) ? load_encoded(d, &d->weights[i], &w->matrix, keep, err)
                                          : load_packed(&d->weights[i], &w->matrix, err);
        if (rc < 0) return rc;
        done += w->is_vector ? w->tensor->bytes : w->matrix.bytes;
        if (progress) progress(ctx, "loading", done, p->weight_bytes);
    }
    return 0;
}

/* ---- sizes ---- */

static size_t rec_bytes(const cb_rec_state *r) { return (r->floats * 4 + 4095) & ~(size_t)4095; }

/* Zeroed pages that cost nothing until they are touched, so a long context is paid for as it fills. */
static uint8_t *map_pool(size_t bytes, const char *what, cb_err *err)
{
    void *m = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m != MAP_FAILED) return m;
    cb_fail(err, CB_ENOMEM, "no memory for %zu bytes of %s", bytes, what);
    return NULL;
}

/* K, V, the scales of K's parts and of V. */
static size_t kv_head_bytes(int dim)
{
    return (size_t)(2 * CB_KV_BLOCK * dim * 2 + (cb_head_parts(dim) + 1) * CB_KV_BLOCK * 4 + 63) / 64 * 64;
}

static size_t widest_input(const cb_plan *p)
{
    size_t k = 0;
    for (int i = 0; i < p->n_values; i++)
        if ((size_t)p->values[i].width > k) k = (size_t)p->values[i].width;
    return k;
}

static size_t thread_scratch(const cb_plan *p)
{
    size_t linear = 0;
    bool keep = keeps_copies(p);
    for (int i = 0; i < p->n_ops; i++) {
        const cb_op *o = &p->ops[i];
        bool product = o->kind == CB_LINEAR || o->kind == CB_MOE_LINEAR;
        size_t s = product && !keep && is_encoded(&p->weights[o->w[0]].matrix) ? cpu_product_scratch(&p->weights[o->w[0]].matrix)
                   : product             ? cb_linear_scratch(p->values[o->in[0]].width)
                   : o->kind == CB_DELTA ? cpu_delta_scratch(o)
                                         : 0;
        if (s > linear) linear = s;
    }
    size_t attn = cpu_attention_scratch(p), norm = widest_input(p) * 4;
    size_t n = linear > attn ? linear : attn;
    return ((n > norm ? n : norm) + 4095) & ~(size_t)4095;
}

/* Room for block results of shared attention: a few rows, a bounded number of blocks; beyond it rows are not shared. */
static size_t split_floats(const cb_plan *p) { return p->n_kv ? (size_t)4 << 20 : 0; }

static void cpu_need(const cb_plan *p, const cb_limits *lim, int n_threads, cb_mem *out)
{
    *out = (cb_mem){0};
    bool keep = keeps_copies(p);
    for (int i = 0; i < p->n_weights; i++) {
        const cb_weight *w = &p->weights[i];
        if (w->is_vector) out->weights += (uint64_t)w->n * 4;
        else if (keep && is_encoded(&w->matrix)) out->weights += encoded_bytes(&w->matrix);
    }
    for (int i = 0; i < p->n_kv; i++)
        out->kv[p->kv[i].group] += (uint64_t)lim->kv_blocks[p->kv[i].group] * (uint64_t)p->kv[i].n_heads * kv_head_bytes(p->kv[i].dim);
    for (int i = 0; i < p->n_rec; i++) out->recurrent += (uint64_t)lim->n_slots * rec_bytes(&p->rec[i]);
    out->state = out->recurrent;
    for (int g = 0; g < p->n_kv_groups; g++) out->state += out->kv[g];
    out->scratch = p->scratch_row_bytes * (uint64_t)lim->max_rows + thread_scratch(p) * (uint64_t)n_threads +
                   split_floats(p) * 4 + (uint64_t)(lim->max_rows + 1) * 4;
}

static int cpu_prepare(cb_dev *d, const cb_limits *lim, cb_err *err)
{
    const cb_plan *p = d->plan;
    d->lim = *lim;
    d->scratch_bytes = p->scratch_row_bytes * (size_t)lim->max_rows;
    d->thread_bytes = thread_scratch(p);
    d->split_floats = split_floats(p);
    d->scratch = cb_alloc_aligned(d->scratch_bytes);
    d->thread_scratch = cb_alloc_aligned(d->thread_bytes * (size_t)cb_pool_size(d->pool));
    d->runs = cb_alloc_array((size_t)lim->max_rows + 1, sizeof *d->runs);
    d->split = cb_alloc_aligned(d->split_floats * 4);
    d->kv = cb_alloc_array((size_t)p->n_kv, sizeof *d->kv);
    d->rec = cb_alloc_array((size_t)p->n_rec, sizeof *d->rec);
    d->expert_at = cb_alloc_array((size_t)p->max_experts + 1, sizeof *d->expert_at);
    if (!d->scratch || !d->thread_scratch || !d->runs || !d->split || !d->kv || !d->rec || !d->expert_at)
        return cb_fail(err, CB_ENOMEM, "no memory for %zu bytes of activations", d->scratch_bytes);
    for (int i = 0; i < p->n_kv; i++) {
        cpu_kv *kv = &d->kv[i];
        kv->head_bytes = kv_head_bytes(p->kv[i].dim);
        kv->pool_bytes = (size_t)lim->kv_blocks[p->kv[i].group] * (size_t)p->kv[i].n_heads * kv->head_bytes;
        if (!(kv->base = map_pool(kv->pool_bytes, "KV cache", err))) return CB_ENOMEM;
    }
    for (int i = 0; i < p->n_rec; i++) {
        d->rec[i].bytes = rec_bytes(&p->rec[i]);
        d->rec[i].pool_bytes = d->rec[i].bytes * (size_t)lim->n_slots;
        if (!(d->rec[i].base = map_pool(d->rec[i].pool_bytes, "recurrent state", err))) return CB_ENOMEM;
    }
    return 0;
}

static int cpu_state_copy(cb_dev *d, const cb_copy *ops, int n, cb_err *err)
{
    (void)err;
    const cb_plan *p = d->plan;
    for (int i = 0; i < n; i++) {
        size_t from = (size_t)ops[i].from, to = (size_t)ops[i].to;
        for (int r = 0; r < p->n_rec && ops[i].group < 0; r++)
            memcpy(d->rec[r].base + to * d->rec[r].bytes, d->rec[r].base + from * d->rec[r].bytes, d->rec[r].bytes);
        for (int k = 0; k < p->n_kv; k++) {
            if (p->kv[k].group != ops[i].group) continue;
            size_t block = (size_t)p->kv[k].n_heads * d->kv[k].head_bytes;
            memcpy(d->kv[k].base + to * block, d->kv[k].base + from * block, block);
        }
    }
    return 0;
}

static uint64_t cpu_available(const cb_dev *d)
{
    (void)d;
    return cb_memory_available() / 4 * 3;
}

static const char *cpu_label(const cb_dev *d) { return d->label; }
static int cpu_n_threads(const cb_dev *d) { return cb_pool_size(d->pool); }

const cb_backend cb_backend_cpu = {.name = "cpu", .open = cpu_open, .close = cpu_close, .load = cpu_load, .need = cpu_need,
                                   .prepare = cpu_prepare, .run = cpu_run, .state_copy = cpu_state_copy, .label = cpu_label,
                                   .n_threads = cpu_n_threads, .available = cpu_available, .probe = cpu_probe};
