/* quantize_write.c: the weights, streamed. A chunk of rows at a time is read from the map, quantised by all threads into buffers,
 * and put at its place in the file; nothing else is held, whatever the size of a tensor. */
#include "run/quantize.h"
#include "base/pool.h"
#include "io/safetensors.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { CHUNK = 1 << 20 }; /* numbers of a chunk, per thread */

/* What one thread needs: a row, and a row in double for the Hadamard transform; the first number it could not take. */
typedef struct worker {
    float *row;
    double *wide;
    int64_t bad_row, bad_col; /* -1: none */
    bool bad_scale;           /* it is the scale of the group there that is not finite */
} worker;

typedef struct job {
    const cb_q_plan *p;
    const cb_q_item *it;
    const float *signs;        /* of it->cols, when rotated */
    int64_t first, n_rows;     /* the chunk */
    uint8_t *part[3];          /* codes or floats, scales, biases of the chunk */
    size_t row_bytes[3];
    worker *workers;
    int n_workers;
    cb_pool *pool;
    cb_st_writer *w;
    uint64_t done, total;
} job;

/* ---- rows ---- */

static void load_row(const cb_q_plan *p, const cb_q_item *it, int64_t row, float *out)
{
    const int64_t at = row / it->rows * it->src_rows + it->row0 + row % it->rows;
    const size_t n = (size_t)it->cols;
    const uint8_t *src = it->src->data + (size_t)at * n * cb_dtype_size(it->src->dtype);
    uint16_t h;
    switch (it->src->dtype) {
    case CB_F32: memcpy(out, src, 4 * n); break;
    case CB_BF16:
        for (size_t i = 0; i < n; i++) {
            memcpy(&h, src + 2 * i, 2);
            out[i] = cb_bf16_to_f32(h);
        }
        break;
    default:
        for (size_t i = 0; i < n; i++) {
            memcpy(&h, src + 2 * i, 2);
            out[i] = cb_f16_to_f32(h);
        }
    }
    if (it->plus_one) /* in the dtype of the file, as MLX adds it; a pack's F32 norms keep the exact sum */
        for (size_t i = 0; i < n; i++) out[i] = p->opts->hadamard_block ? out[i] + 1 : cb_round_to(out[i] + 1, it->src->dtype);
    if (it->dtype != CB_F32 && it->dtype != it->src->dtype)
        for (size_t i = 0; i < n; i++) out[i] = cb_round_to(out[i], it->dtype);
}

void cb_q_rotate(float *x, const float *s, double *y, int64_t n, int block)
{
    const double scale = 1 / sqrt((double)block);
    for (int64_t i = 0; i < n; i++) y[i] = (double)(x[i] * s[i]);
    for (int64_t b = 0; b < n; b += block)
        for (int step = 1; step < block; step *= 2)
            for (int i = 0; i < block; i += 2 * step) {
                double *lo = y + b + i, *hi = lo + step;
                for (int k = 0; k < step; k++) {
                    double u = lo[k], v = hi[k];
                    lo[k] = u + v;
                    hi[k] = u - v;
                }
            }
    for (int64_t i = 0; i < n; i++) x[i] = (float)(y[i] * scale);
}

/* Index of the first number that is not finite, or -1. */
static int64_t first_bad(const float *x, int64_t n)
{
    float zero = 0;
    for (int64_t i = 0; i < n; i++) zero += x[i] * 0.0f; /* stays 0 unless one is NaN or infinite */
    if (zero == 0) return -1;
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(x[i])) return i;
    return -1;
}

static void one_row(const job *j, worker *w, int64_t r)
{
    const cb_q_item *it = j->it;
    load_row(j->p, it, j->first + r, w->row);
    int64_t bad = first_bad(w->row, it->cols);
    if (bad >= 0) {
        if (w->bad_row < 0) w->bad_row = j->first + r, w->bad_col = bad;
        return;
    }
    uint8_t *at[3];
    for (int k = 0; k < 3; k++) at[k] = j->row_bytes[k] ? j->part[k] + (size_t)r * j->row_bytes[k] : NULL;
    if (!it->quantised) {
        const size_t size = cb_dtype_size(it->dtype);
        for (int64_t i = 0; i < it->cols; i++) cb_store_float(at[0] + (size_t)i * size, it->dtype, w->row[i]);
        return;
    }
    if (it->block) cb_q_rotate(w->row, j->signs, w->wide, it->cols, it->block);
    cb_quantize_row(&it->q, w->row, it->cols, at[0], at[1], at[2]);
    for (int64_t g = 0; g < it->cols / it->q.group && at[2]; g++) /* huge numbers, or F16 scales of large ones */
        if (!isfinite(cb_load_float(at[1], it->q.scales, (size_t)g)) || !isfinite(cb_load_float(at[2], it->q.scales, (size_t)g))) {
            if (w->bad_row < 0) w->bad_row = j->first + r, w->bad_col = g * it->q.group, w->bad_scale = true;
            return;
        }
}

static void work(void *ctx, int member, int n_members)
{
    job *j = ctx;
    for (int64_t r = member; r < j->n_rows; r += n_members) one_row(j, &j->workers[member], r);
}

/* ---- one item ---- */

static int report_bad(const job *j, cb_err *err)
{
    const worker *first = NULL;
    for (int i = 0; i < j->n_workers; i++) {
        const worker *w = &j->workers[i];
        if (w->bad_row >= 0 && (!first || w->bad_row < first->bad_row)) first = w;
    }
    if (!first) return 0;
    const cb_tensor *t = j->it->src;
    if (first->bad_scale)
        return cb_fail(err, CB_EFORMAT, "%s: %s: row %" PRId64 ", columns from %" PRId64 ": their scale or bias is not a finite %s", t->file, t->name,
                       first->bad_row, first->bad_col, cb_dtype_name(j->it->q.scales));
    return cb_fail(err, CB_EFORMAT, "%s: %s: row %" PRId64 ", column %" PRId64 " is not a finite %s", t->file, t->name, first->bad_row,
                   first->bad_col, cb_dtype_name(j->it->dtype));
}

static void free_buffers(job *j)
{
    for (int k = 0; k < 3; k++) cb_free(j->part[k]);
    for (int i = 0; i < j->n_workers; i++) {
        cb_free(j->workers[i].row);
        cb_free(j->workers[i].wide);
    }
    memset(j->part, 0, sizeof j->part);
}

static int get_buffers(job *j, int64_t chunk_rows, cb_err *err)
{
    const cb_q_item *it = j->it;
    const size_t n = (size_t)it->cols;
    bool good = true;
    j->row_bytes[0] = it->quantised ? cb_quantizer_row_bytes(&it->q, it->cols) : n * cb_dtype_size(it->dtype);
    j->row_bytes[1] = it->quantised ? cb_quantizer_scale_bytes(&it->q, it->cols) : 0;
    j->row_bytes[2] = it->quantised && it->q.mode == CB_W_AFFINE ? j->row_bytes[1] : 0;
    for (int k = 0; k < 3; k++) good = (j->part[k] = cb_alloc_array((size_t)chunk_rows, j->row_bytes[k])) && good;
    for (int i = 0; i < j->n_workers; i++) {
        worker *w = &j->workers[i];
        w->row = cb_alloc_array(n, sizeof *w->row);
        w->wide = it->block ? cb_alloc_array(n, sizeof *w->wide) : NULL;
        w->bad_row = -1;
        w->bad_scale = false;
        good = good && w->row && (w->wide || !it->block);
    }
    if (good) return 0;
    free_buffers(j);
    return cb_fail(err, CB_ENOMEM, "%s: no memory for %" PRId64 " rows of %" PRId64, it->src->name, chunk_rows, it->cols);
}

static int put_signs(job *j, float *signs, uint64_t at, cb_err *err)
{
    for (int64_t i = 0; i < j->it->cols; i++) signs[i] = cb_q_sign(j->p->opts->seed, j->it->cols, i);
    j->signs = signs;
    return cb_st_writer_put_at(j->w, at, signs, 4 * (size_t)j->it->cols, err);
}

/* Its tensors are number `first`, `first` + 1, ... of the file. */
static int write_item(job *j, int first, cb_err *err)
{
    const cb_q_item *it = j->it;
    const int64_t rows = it->stack * it->rows, all = CHUNK * (int64_t)j->n_workers / (it->cols ? it->cols : 1);
    const int64_t chunk = all < 1 ? 1 : all < rows ? all : rows ? rows : 1;
    uint64_t begin[3];
    float *signs = NULL;
    int rc = get_buffers(j, chunk, err), n_parts = j->row_bytes[2] ? 3 : j->row_bytes[1] ? 2 : 1;
    if (rc < 0) return rc;
    for (int k = 0; k < n_parts; k++) begin[k] = cb_st_writer_offset(j->w, first + k);
    if (it->block) {
        if (!(signs = cb_alloc_array((size_t)it->cols, sizeof *signs))) rc = cb_fail(err, CB_ENOMEM, "%s: no memory", it->src->name);
        else rc = put_signs(j, signs, cb_st_writer_offset(j->w, first + 3), err);
    }
    for (int64_t r = 0; r < rows && rc == 0; r += chunk) {
        j->first = r;
        j->n_rows = rows - r < chunk ? rows - r : chunk;
        cb_pool_run(j->pool, work, j);
        rc = report_bad(j, err);
        for (int k = 0; k < n_parts && rc == 0; k++)
            rc = cb_st_writer_put_at(j->w, begin[k] + (uint64_t)r * j->row_bytes[k], j->part[k], (size_t)j->n_rows * j->row_bytes[k], err);
        j->done += (uint64_t)(j->n_rows * it->cols) * cb_dtype_size(it->src->dtype);
        if (j->p->opts->progress) j->p->opts->progress(j->p->opts->progress_ctx, it->name, j->done, j->total);
    }
    cb_free(signs);
    free_buffers(j);
    return rc;
}

/* ---- files ---- */

static int declare(job *j, const cb_q_item *it, int *n_declared, cb_err *err)
{
    static const char *const suffix[] = {"weight", "scales", "biases", "signs"};
    char path[512], name[540];
    int64_t dims[CB_MAX_DIMS];
    memcpy(dims, it->dims, sizeof dims);
    if (!it->quantised) {
        ++*n_declared;
        return cb_st_writer_declare(j->w, it->name, it->dtype, dims, it->n_dims, err);
    }
    for (int k = 0; k < 4; k++) {
        if ((k == 2 && it->q.mode != CB_W_AFFINE) || (k == 3 && !it->block)) continue;
        snprintf(name, sizeof name, "%s.%s", cb_q_path(it, path), suffix[k]);
        dims[it->n_dims - 1] = k == 0 ? it->cols * it->q.bits / 32 : it->cols / it->q.group;
        int rc = k < 3 ? cb_st_writer_declare(j->w, name, k == 0 ? CB_U32 : it->q.scales, dims, it->n_dims, err)
                       : cb_st_writer_declare(j->w, name, CB_F32, &it->cols, 1, err);
        if (rc < 0) return rc;
        ++*n_declared;
    }
    return 0;
}

static int write_shard(job *j, int shard, const char *dir, cb_err *err)
{
    const cb_q_plan *p = j->p;
    char path[4096], name[64];
    int n = 0, at = 0, first = 0;
    int k = snprintf(path, sizeof path, "%s/%s", dir, cb_q_shard_name(p, shard, name));
    if (k < 0 || (size_t)k >= sizeof path) return cb_fail(err, CB_EUSAGE, "%s: path too long", dir);
    int rc = cb_st_writer_open(path, &j->w, err);
    if (rc < 0) return rc;
    while (first < p->n_items && p->items[first].shard != shard) first++;
    for (int i = first; i < p->n_items && p->items[i].shard == shard && rc == 0; i++) rc = declare(j, &p->items[i], &n, err);
    if (rc == 0) rc = cb_st_writer_begin(j->w, err);
    for (int i = first; i < p->n_items && p->items[i].shard == shard && rc == 0; i++) {
        j->it = &p->items[i];
        rc = write_item(j, at, err);
        at += !j->it->quantised ? 1 : 2 + (j->it->q.mode == CB_W_AFFINE) + (j->it->block != 0);
    }
    if (rc == 0) return cb_st_writer_commit(j->w, err);
    cb_st_writer_abort(j->w);
    return rc;
}

int cb_q_write_weights(const cb_q_plan *p, const char *dir, cb_err *err)
{
    job j = {.p = p, .total = p->in_bytes};
    j.n_workers = p->opts->n_threads > 0 ? p->opts->n_threads : cb_physical_cores();
    int rc = cb_pool_open(j.n_workers, &j.pool, err);
    if (rc < 0) return rc;
    if (!(j.workers = cb_alloc_array((size_t)j.n_workers, sizeof *j.workers))) rc = cb_fail(err, CB_ENOMEM, "no memory for %d threads", j.n_workers);
    for (int s = 0; s < p->n_shards && rc == 0; s++) rc = write_shard(&j, s, dir, err);
    cb_free(j.workers);
    cb_pool_close(j.pool);
    return rc;
}
