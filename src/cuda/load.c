/* load.c: weights from the mapped files to the GPU: packed matrices as stored, float matrices as planes, vectors as f32. Bytes
 * go through two pinned buffers, one being filled by the pool while the other is on its way. */
#include "cuda/cuda.h"
#include <math.h>
#include <string.h>

enum { STAGE = 64 << 20, ALIGN = 256 };

static uint64_t aligned(uint64_t n) { return (n + ALIGN - 1) / ALIGN * ALIGN; }

static bool is_planes(const cb_matrix *m) { return m->mode == CB_W_FLOAT || m->mode == CB_W_MXFP8; }

static int64_t stored_rows(const cb_matrix *m) { return m->stack * (m->stored_rows ? m->stored_rows : m->rows); }

/* How a weight is used. */
enum { AS_LINEAR = 1, AS_EMBED = 2 };
static void find_uses(const cb_plan *p, uint8_t *use)
{
    for (int i = 0; i < p->n_ops; i++) {
        const cb_op *o = &p->ops[i];
        if (o->kind == CB_EMBED) use[o->w[0]] |= AS_EMBED;
        if (o->kind == CB_LINEAR || o->kind == CB_MOE_LINEAR) use[o->w[0]] |= AS_LINEAR;
    }
}

/* Parts of one fused matrix share bytes: index of the first weight with the same, or i itself. */
static int owner(const cb_plan *p, int i)
{
    if (p->weights[i].is_vector || !p->weights[i].matrix.stored_rows) return i;
    for (int j = 0; j < i; j++)
        if (!p->weights[j].is_vector && p->weights[j].matrix.codes == p->weights[i].matrix.codes) return j;
    return i;
}

typedef struct sizes {
    uint64_t codes, scales, biases; /* packed, or planes */
    uint64_t raw;                   /* floats as stored, for an embedding */
    uint64_t vector;
} sizes;

static uint64_t total(const sizes *s) { return aligned(s->codes) + aligned(s->scales) + aligned(s->biases) + aligned(s->raw) + aligned(s->vector); }

static int scale_bytes(const cb_matrix *m)
{
    return m->mode != CB_W_AFFINE ? 1 : m->scale_dtype == CB_F32 ? 4 : 2;
}

static sizes sizes_of(const cb_plan *p, int i, int use)
{
    const cb_weight *w = &p->weights[i];
    const cb_matrix *m = &w->matrix;
    sizes s = {0};
    if (w->is_vector) {
        s.vector = (uint64_t)w->n * 4;
        return s;
    }
    if (owner(p, i) != i) return s;
    uint64_t rows = (uint64_t)stored_rows(m);
    if (is_planes(m)) {
        uint64_t groups = rows * (uint64_t)((m->cols + 63) / 64);
        if (use & AS_LINEAR) s.codes = groups * 128, s.scales = groups * 4;
        if (use & AS_EMBED) s.raw = m->mode == CB_W_FLOAT ? rows * m->row_bytes : rows * (uint64_t)m->cols * 4;
    } else {
        s.codes = rows * m->row_bytes;
        s.scales = rows * (uint64_t)(m->cols / m->group) * (uint64_t)scale_bytes(m);
        s.biases = m->biases ? s.scales : 0;
    }
    return s;
}

static uint64_t freq_bytes(const cb_plan *p)
{
    uint64_t n = 0;
    for (int i = 0; i < p->n_ropes; i++) n += aligned((uint64_t)p->ropes[i].n_pairs * 8);
    return n;
}

/* Kernels read whole tiles of 16 rows, also where a matrix ends within one. */
static uint64_t slack(const cb_plan *p)
{
    uint64_t row = 0;
    for (int i = 0; i < p->n_weights; i++)
        if (!p->weights[i].is_vector && (uint64_t)p->weights[i].matrix.cols > row) row = (uint64_t)p->weights[i].matrix.cols;
    return 16 * 2 * (row + 64);
}

uint64_t cu_weight_need(const cb_plan *p)
{
    uint8_t *use = cb_alloc_array((size_t)p->n_weights, 1);
    if (!use) return UINT64_MAX;
    find_uses(p, use);
    uint64_t n = freq_bytes(p) + slack(p);
    for (int i = 0; i < p->n_weights; i++) {
        sizes s = sizes_of(p, i, use[i]);
        n += total(&s);
    }
    cb_free(use);
    return n;
}

/* ---- moving bytes ---- */

typedef struct loader {
    cb_dev *d;
    uint8_t *stage[2];       /* pinned */
    CUevent sent[2];
    CUdeviceptr raw;         /* STAGE bytes on the device: floats before they are encoded */
    CUdeviceptr bad;         /* int32, behind it */
    int turn;
    uint64_t at;             /* next free byte of weight_mem */
    uint64_t done;
    cb_progress_fn progress;
    void *progress_ctx;
    cb_err *err;
} loader;

struct copy_job {
    uint8_t *to;
    const uint8_t *from;
    size_t n;
};

static void copy_part(void *ctx, int member, int n)
{
    struct copy_job *j = ctx;
    size_t a = j->n * (size_t)member / (size_t)n, b = j->n * (size_t)(member + 1) / (size_t)n;
    memcpy(j->to + a, j->from + a, b - a);
}

#define TRY(call, what)                                                                                                        \
    do {                                                                                                                       \
        CUresult r_ = (call);                                                                                                  \
        if (r_ != CUDA_SUCCESS) return cu_fail(&L->d->cu, r_, what, L->err);                                                   \
    } while (0)

/* A pinned buffer that nothing is reading any more. */
static int take_stage(loader *L, uint8_t **out)
{
    L->turn ^= 1;
    TRY(L->d->cu.cuEventSynchronize_(L->sent[L->turn]), "loading weights");
    *out = L->stage[L->turn];
    return 0;
}

static int send_stage(loader *L, CUdeviceptr to, size_t n)
{
    TRY(L->d->cu.cuMemcpyHtoDAsync_(to, L->stage[L->turn], n, L->d->stream), "loading weights");
    TRY(L->d->cu.cuEventRecord_(L->sent[L->turn], L->d->stream), "loading weights");
    return 0;
}

static int upload(loader *L, CUdeviceptr to, const void *from, uint64_t n)
{
    for (uint64_t at = 0; at < n;) {
        size_t part = n - at < STAGE ? (size_t)(n - at) : STAGE;
        uint8_t *stage;
        int rc = take_stage(L, &stage);
        if (rc < 0) return rc;
        struct copy_job j = {stage, (const uint8_t *)from + at, part};
        if (part < 1 << 20) memcpy(stage, j.from, part);
        else cb_pool_run(L->d->pool, copy_part, &j);
        if ((rc = send_stage(L, to + at, part)) < 0) return rc;
        at += part;
        L->done += part;
        if (L->progress && part >= 1 << 20) L->progress(L->progress_ctx, "loading", L->done, L->d->plan->weight_bytes);
    }
    return 0;
}

static CUdeviceptr place(loader *L, uint64_t n)
{
    CUdeviceptr p = L->d->weight_mem + L->at;
    L->at += aligned(n);
    return p;
}

/* Rows of floats, decoded on the host when they are 8-bit, become planes on the GPU. */
static int encode(loader *L, const cb_matrix *m, CUdeviceptr codes, CUdeviceptr scales, cb_err *err)
{
    bool is_float = m->mode == CB_W_FLOAT;
    int type = !is_float || m->float_dtype == CB_F32 ? CU_S_F32 : m->float_dtype == CB_F16 ? CU_S_F16 : CU_S_BF16;
    int64_t rows = stored_rows(m), row_bytes = is_float ? (int64_t)m->row_bytes : m->cols * 4, G = (m->cols + 63) / 64;
    int64_t per = STAGE / row_bytes;
    if (per < 1) return cb_fail(err, CB_EFORMAT, "%s: rows of %lld columns are too long for the GPU", m->path, (long long)m->cols);
    for (int64_t r = 0; r < rows; r += per) {
        int64_t n = rows - r < per ? rows - r : per;
        uint8_t *stage;
        int rc = take_stage(L, &stage);
        if (rc < 0) return rc;
        if (is_float) {
            struct copy_job j = {stage, m->codes + (uint64_t)r * m->row_bytes, (size_t)(n * row_bytes)};
            cb_pool_run(L->d->pool, copy_part, &j);
        } else
            for (int64_t i = 0; i < n; i++) {
                cb_matrix whole = *m;
                whole.stored_rows = whole.row0 = 0;
                cb_matrix_decode_row(&whole, 0, r + i, (float *)(stage + i * row_bytes));
            }
        if ((rc = send_stage(L, L->raw, (size_t)(n * row_bytes))) < 0) return rc;
        cu_encode a = {.in = (const uint8_t *)L->raw, .codes = (uint8_t *)(codes + (uint64_t)(r * G) * 128),
                       .scales = (float *)(scales + (uint64_t)(r * G) * 4), .bad_row = (int32_t *)L->bad, .row0 = r, .n_rows = (int32_t)n,
                       .k = (int32_t)m->cols, .type = type, .n_groups = (int32_t)G};
        rc = cu_kernel_launch(L->d, CU_K_ENCODE, (unsigned)((n * G + 7) / 8), 1, 1, 256, 0, &a, err);
        if (rc < 0) return rc;
        L->done += (uint64_t)(n * row_bytes);
        if (L->progress) L->progress(L->progress_ctx, "loading", L->done, L->d->plan->weight_bytes);
    }
    int32_t bad = 0;
    TRY(L->d->cu.cuMemcpyDtoHAsync_(&bad, L->bad, 4, L->d->stream), "loading weights");
    TRY(L->d->cu.cuStreamSynchronize_(L->d->stream), "loading weights");
    if (bad) return cb_fail(err, CB_EFORMAT, "%s.weight: row %d holds a value that is not finite", m->path, bad - 1);
    return 0;
}

/* ---- weights ---- */

static void describe(const cb_matrix *m, cu_weight *w)
{
    static const uint8_t packs[9] = {0, 8, 4, 1, 2, 1, 1, 1, 1};
    w->n_out = (int32_t)m->rows;
    w->k = (int32_t)m->cols;
    w->expert_rows = m->stored_rows ? m->stored_rows : m->rows;
    w->global_scale = m->global_scale;
    if (is_planes(m)) {
        w->fmt = CU_FMT_PLANES;
        w->bits = 8;
        w->group = 64;
        w->n_groups = (int32_t)((m->cols + 63) / 64);
        w->row_bytes = (int64_t)w->n_groups * 128;
        w->scale_type = CU_S_F32;
        w->pack = 1;
        return;
    }
    w->fmt = m->mode == CB_W_AFFINE ? CU_FMT_AFFINE : CU_FMT_FP4;
    w->bits = m->bits;
    w->group = m->group;
    w->n_groups = (int32_t)(m->cols / m->group);
    w->row_bytes = (int64_t)m->row_bytes;
    w->scale_type = m->mode == CB_W_MXFP4 ? CU_S_E8M0 : m->mode == CB_W_NVFP4 ? CU_S_E4M3 : m->scale_dtype == CB_F32 ? CU_S_F32 : m->scale_dtype == CB_F16 ? CU_S_F16 : CU_S_BF16;
    w->pack = packs[m->bits];
}

/* A part of a fused matrix: rows row0 onwards of the owner's. */
static void skip_rows(cu_weight *w, int64_t rows, int scale_size)
{
    w->codes += rows * w->row_bytes;
    w->scales += rows * w->n_groups * scale_size;
    if (w->biases) w->biases += rows * w->n_groups * scale_size;
}

static int load_matrix(loader *L, int i, const sizes *s, int use, cb_err *err)
{
    cb_dev *d = L->d;
    const cb_matrix *m = &d->plan->weights[i].matrix;
    cu_weight *w = &d->weights[i];
    int rc = 0, from = owner(d->plan, i);
    if (!is_planes(m) && (m->bits < 1 || m->bits > 8 || m->bits == 7 || m->group < 16 || m->cols % m->group))
        return cb_fail(err, CB_EFORMAT, "%s: %d bits in groups of %d over %lld columns cannot be run", m->path, m->bits, m->group,
                       (long long)m->cols);
    describe(m, w);
    int scale_size = is_planes(m) ? 4 : scale_bytes(m);
    if (from != i) {
        w->codes = d->weights[from].codes - d->plan->weights[from].matrix.row0 * w->row_bytes;
        w->scales = d->weights[from].scales - d->plan->weights[from].matrix.row0 * w->n_groups * scale_size;
        w->biases = d->weights[from].biases ? d->weights[from].biases - d->plan->weights[from].matrix.row0 * w->n_groups * scale_size : NULL;
        skip_rows(w, m->row0, scale_size);
        return 0;
    }
    CUdeviceptr codes = place(L, s->codes), scales = place(L, s->scales), biases = s->biases ? place(L, s->biases) : 0;
    if (is_planes(m)) {
        if (use & AS_LINEAR) rc = encode(L, m, codes, scales, err);
    } else {
        rc = upload(L, codes, m->codes, s->codes);
        if (rc == 0) rc = upload(L, scales, m->scales, s->scales);
        if (rc == 0 && biases) rc = upload(L, biases, m->biases, s->biases);
    }
    if (rc < 0) return rc;
    w->codes = (const uint8_t *)codes;
    w->scales = (const uint8_t *)scales;
    w->biases = (const uint8_t *)biases;
    d->embed[i] = *w;
    if (s->raw) {
        cu_weight *e = &d->embed[i];
        CUdeviceptr raw = place(L, s->raw);
        e->fmt = CU_FMT_FLOAT;
        e->codes = (const uint8_t *)raw;
        if (m->mode == CB_W_FLOAT) {
            e->row_bytes = (int64_t)m->row_bytes;
            e->scale_type = m->float_dtype == CB_F32 ? CU_S_F32 : m->float_dtype == CB_F16 ? CU_S_F16 : CU_S_BF16;
            rc = upload(L, raw, m->codes, s->raw);
        } else { /* 8-bit floats: decoded here */
            e->row_bytes = m->cols * 4;
            e->scale_type = CU_S_F32;
            float *row = cb_alloc_array((size_t)m->cols, 4);
            if (!row) return cb_fail(err, CB_ENOMEM, "no memory");
            for (int64_t r = 0; r < m->rows && rc == 0; r++) {
                cb_matrix_decode_row(m, 0, r, row);
                rc = upload(L, raw + (uint64_t)r * (uint64_t)m->cols * 4, row, (uint64_t)m->cols * 4);
            }
            cb_free(row);
        }
    }
    skip_rows(w, m->row0, scale_size);
    return rc;
}

static int load_vector(loader *L, int i, cb_err *err)
{
    const cb_weight *w = &L->d->plan->weights[i];
    float *f = cb_alloc_array((size_t)w->n, 4);
    if (!f) return cb_fail(err, CB_ENOMEM, "%s: no memory for %d floats", w->name, w->n);
    int rc = 0;
    for (int k = 0; k < w->n && rc == 0; k++) {
        float v = cb_load_float(w->tensor->data, w->tensor->dtype, (size_t)k);
        if (!isfinite(v)) rc = cb_fail(err, CB_EFORMAT, "%s: %s[%d] is not finite", w->tensor->file, w->name, k);
        f[k] = w->add_one ? 1.0f + v : v;
    }
    CUdeviceptr to = place(L, (uint64_t)w->n * 4);
    if (rc == 0) rc = upload(L, to, f, (uint64_t)w->n * 4);
    L->d->vectors[i] = (const float *)to;
    cb_free(f);
    return rc;
}

static int load_all(loader *L, const uint8_t *use)
{
    cb_dev *d = L->d;
    const cb_plan *p = d->plan;
    int rc = 0;
    for (int i = 0; i < p->n_ropes && rc == 0; i++) {
        CUdeviceptr to = place(L, (uint64_t)p->ropes[i].n_pairs * 8);
        d->freq[i] = (const double *)to;
        rc = upload(L, to, p->ropes[i].freq, (uint64_t)p->ropes[i].n_pairs * 8);
    }
    for (int i = 0; i < p->n_weights && rc == 0; i++) {
        sizes s = sizes_of(p, i, use[i]);
        rc = p->weights[i].is_vector ? load_vector(L, i, L->err) : load_matrix(L, i, &s, use[i], L->err);
    }
    if (rc < 0) return rc;
    TRY(d->cu.cuStreamSynchronize_(d->stream), "loading weights");
    if (L->progress) L->progress(L->progress_ctx, "loading", p->weight_bytes, p->weight_bytes);
    return 0;
}

static int begin(loader *L)
{
    cb_dev *d = L->d;
    int rc = cu_alloc(d, &d->weight_mem, d->weight_bytes, "the weights", L->err);
    if (rc == 0) rc = cu_alloc(d, &L->raw, STAGE + ALIGN, "loading", L->err);
    for (int i = 0; i < 2 && rc == 0; i++) rc = cu_alloc_pinned(d, (void **)&L->stage[i], STAGE, "loading", L->err);
    if (rc < 0) return rc;
    L->bad = L->raw + STAGE;
    for (int i = 0; i < 2; i++) TRY(d->cu.cuEventCreate_(&L->sent[i], CU_EVENT_DISABLE_TIMING), "loading weights");
    TRY(d->cu.cuMemsetD8Async_(L->bad, 0, 4, d->stream), "loading weights");
    TRY(d->cu.cuMemsetD8Async_(d->weight_mem, 0, d->weight_bytes, d->stream), "loading weights"); /* kernels read whole tiles of 16 rows */
    return 0;
}

int cu_load(cb_dev *d, const cb_plan *p, cb_progress_fn progress, void *ctx, cb_err *err)
{
    d->plan = p;
    d->weight_bytes = cu_weight_need(p);
    size_t n = (size_t)p->n_weights;
    uint8_t *use = cb_alloc_array(n, 1);
    d->weights = cb_alloc_array(n, sizeof *d->weights);
    d->embed = cb_alloc_array(n, sizeof *d->embed);
    d->vectors = cb_alloc_array(n, sizeof *d->vectors);
    d->freq = cb_alloc_array((size_t)p->n_ropes, sizeof *d->freq);
    if (!use || !d->weights || !d->embed || !d->vectors || !d->freq) {
        cb_free(use);
        return cb_fail(err, CB_ENOMEM, "no memory for %zu weights", n);
    }
    find_uses(p, use);
    loader L = {.d = d, .progress = progress, .progress_ctx = ctx, .err = err};
    int rc = begin(&L);
    if (rc == 0) rc = load_all(&L, use);
    if (rc < 0) d->cu.cuStreamSynchronize_(d->stream); /* nothing reads the buffers any more */
    for (int i = 0; i < 2; i++) {
        if (L.sent[i]) d->cu.cuEventDestroy_(L.sent[i]);
        if (L.stage[i]) d->cu.cuMemFreeHost_(L.stage[i]);
    }
    if (L.raw) d->cu.cuMemFree_(L.raw);
    cb_free(use);
    return rc;
}

void cu_free_weights(cb_dev *d)
{
    if (d->weight_mem) d->cu.cuMemFree_(d->weight_mem);
    d->weight_mem = 0;
    cb_free(d->weights);
    cb_free(d->embed);
    cb_free(d->vectors);
    cb_free(d->freq);
}
