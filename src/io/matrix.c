/* matrix.c: how a matrix is stored, decided from its tensors and checked against the config and the architecture; and the
 * plain decoder that defines the value of every stored element. */
#include "io/weights.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_NAME = 512 };
/* No side of a matrix comes near this; it keeps 32*words and all index products far from overflow. */
static const int64_t MAX_SIDE = INT32_MAX;

typedef struct parts {
    const cb_tensor *weight, *scales, *biases, *global;
} parts;

static const cb_tensor *part(const cb_weights *w, const char *path, const char *suffix)
{
    char name[MAX_NAME + 16];
    int n = snprintf(name, sizeof name, "%s.%s", path, suffix);
    return n > 0 && (size_t)n < sizeof name ? cb_weights_find(w, name) : NULL;
}

/* <path>.weight; raw Hugging Face files keep stacked experts under the bare path. */
static const cb_tensor *stored_weight(const cb_weights *w, const char *path)
{
    const cb_tensor *t = part(w, path, "weight");
    if (t) return t;
    t = cb_weights_find(w, path);
    return t && t->n_dims == 3 ? t : NULL;
}

/* "[2560,4096]" */
static const char *shape(char *buf, size_t cap, const int64_t *d, int n)
{
    size_t k = 0;
    for (int i = 0; i < n && k < cap; i++) {
        int r = snprintf(buf + k, cap - k, "%s%lld", i ? "," : "[", (long long)d[i]);
        if (r > 0) k += (size_t)r;
    }
    if (k < cap) snprintf(buf + k, cap - k, n ? "]" : "[]");
    return buf;
}

static int bad_shape(const cb_tensor *t, const char *want, cb_err *err)
{
    char s[CB_MAX_DIMS * 22];
    return cb_fail(err, CB_EFORMAT, "%s: %s is %s, %s", t->file, t->name, shape(s, sizeof s, t->dims, t->n_dims), want);
}

/* Splits [stack][rows][last] or [rows][last], and checks stack and rows against what the caller wants. */
static int split_dims(const cb_tensor *t, int64_t stack, int64_t rows, int64_t cols, cb_matrix *m, int64_t *last, cb_err *err)
{
    char want[160], s[32] = "any", r[32] = "any", c[32] = "any";
    int nd = t->n_dims;
    if (stack >= 0) snprintf(s, sizeof s, "%lld", (long long)stack);
    if (rows >= 0) snprintf(r, sizeof r, "%lld", (long long)rows);
    if (cols >= 0) snprintf(c, sizeof c, "%lld", (long long)cols);
    if (stack == 1) snprintf(want, sizeof want, "the architecture implies %s rows of %s", r, c);
    else snprintf(want, sizeof want, "the architecture implies %s matrices of %s rows of %s", s, r, c);
    if (nd != 2 && nd != 3) return bad_shape(t, want, err);
    for (int i = 0; i < nd; i++)
        if (t->dims[i] < 1 || t->dims[i] > MAX_SIDE) return bad_shape(t, want, err);
    m->stack = nd == 3 ? t->dims[0] : 1;
    m->rows = t->dims[nd - 2];
    *last = t->dims[nd - 1];
    if ((stack >= 0 && stack != m->stack) || (rows >= 0 && rows != m->rows)) return bad_shape(t, want, err);
    return 0;
}

static int find_float(const cb_tensor *t, int64_t stack, int64_t rows, int64_t cols, cb_matrix *m, cb_err *err)
{
    if (t->dtype != CB_BF16 && t->dtype != CB_F16 && t->dtype != CB_F32)
        return cb_fail(err, CB_EFORMAT, "%s: %s is %s without scales; a float matrix is BF16, F16 or F32", t->file, t->name,
                       cb_dtype_name(t->dtype));
    int rc = split_dims(t, stack, rows, cols, m, &m->cols, err);
    if (rc < 0) return rc;
    if (cols >= 0 && m->cols != cols) {
        char want[96];
        snprintf(want, sizeof want, "the architecture implies rows of %lld", (long long)cols);
        return bad_shape(t, want, err);
    }
    m->mode = CB_W_FLOAT;
    m->float_dtype = t->dtype;
    m->codes = t->data;
    m->row_bytes = (uint64_t)m->cols * cb_dtype_size(t->dtype);
    m->bytes = t->bytes;
    return 1;
}

/* scales and biases: dtypes, and shapes equal to the weight's but for the last side. */
static int check_scales(const parts *p, cb_err *err)
{
    const cb_tensor *w = p->weight, *s = p->scales, *b = p->biases;
    char a[CB_MAX_DIMS * 22], c[CB_MAX_DIMS * 22];
    if (w->dtype != CB_U32)
        return cb_fail(err, CB_EFORMAT, "%s: %s is %s, packed codes are U32", w->file, w->name, cb_dtype_name(w->dtype));
    bool same = s->n_dims == w->n_dims && s->dims[s->n_dims - 1] >= 1 && s->dims[s->n_dims - 1] <= MAX_SIDE;
    for (int i = 0; same && i < w->n_dims - 1; i++) same = s->dims[i] == w->dims[i];
    if (!same)
        return cb_fail(err, CB_EFORMAT, "%s: %s is %s, but its weight is %s", s->file, s->name,
                       shape(a, sizeof a, s->dims, s->n_dims), shape(c, sizeof c, w->dims, w->n_dims));
    if (s->dtype == CB_U8 || s->dtype == CB_F8_E8M0 || s->dtype == CB_F8_E4M3) {
        if (b) return cb_fail(err, CB_EFORMAT, "%s: %s stands beside %s scales, which take no biases", b->file, b->name,
                              cb_dtype_name(s->dtype));
        return 0;
    }
    if (s->dtype != CB_BF16 && s->dtype != CB_F16 && s->dtype != CB_F32)
        return cb_fail(err, CB_EFORMAT, "%s: %s is %s, scales are BF16, F16, F32 or U8", s->file, s->name, cb_dtype_name(s->dtype));
    if (!b) return cb_fail(err, CB_EFORMAT, "%s: %s has no biases beside it", s->file, s->name);
    if (b->dtype != s->dtype)
        return cb_fail(err, CB_EFORMAT, "%s: %s is %s, but its scales are %s", b->file, b->name, cb_dtype_name(b->dtype),
                       cb_dtype_name(s->dtype));
    if (b->n_dims != s->n_dims || memcmp(b->dims, s->dims, sizeof b->dims))
        return cb_fail(err, CB_EFORMAT, "%s: %s is %s, but its scales are %s", b->file, b->name,
                       shape(a, sizeof a, b->dims, b->n_dims), shape(c, sizeof c, s->dims, s->n_dims));
    return 0;
}

/* Bits and group from the shapes alone, for a checkpoint whose config has no quantisation. */
static int guess_spec(const parts *p, int64_t words, int64_t n_scales, int64_t cols, cb_quant_spec *q, cb_err *err)
{
    bool fp = cb_dtype_size(p->scales->dtype) == 1;
    if (cols < 0 || 32 * words % cols || cols % n_scales)
        return cb_fail(err, CB_EFORMAT, "%s: %s has scales, but config.json has no quantization, and %lld words with %lld scales fit no width",
                       p->weight->file, p->weight->name, (long long)words, (long long)n_scales);
    int64_t bits = 32 * words / cols, group = cols / n_scales;
    if (bits > 8 || group > 128) bits = group = 0;
    q->bits = (int)bits;
    q->group = (int)group;
    q->mode = !fp ? CB_W_AFFINE : group == 16 ? CB_W_NVFP4 : bits == 8 ? CB_W_MXFP8 : CB_W_MXFP4;
    bool good = !fp ? bits >= 1 && bits <= 8 && bits != 7 && (group == 32 || group == 64 || group == 128)
                    : (group == 16 && bits == 4) || (group == 32 && (bits == 4 || bits == 8));
    if (!good)
        return cb_fail(err, CB_EFORMAT, "%s: %s: %lld words and %lld scales for %lld columns are no known format",
                       p->weight->file, p->weight->name, (long long)words, (long long)n_scales, (long long)cols);
    return 0;
}

static int check_mode(const parts *p, const cb_quant_spec *q, cb_err *err)
{
    static const char *const names[] = {"float", "affine", "mxfp4", "mxfp8", "nvfp4"};
    const cb_tensor *s = p->scales;
    bool fp = cb_dtype_size(s->dtype) == 1;
    cb_dtype f8 = q->mode == CB_W_NVFP4 ? CB_F8_E4M3 : CB_F8_E8M0;
    if (fp != (q->mode != CB_W_AFFINE) || (fp && s->dtype != CB_U8 && s->dtype != f8))
        return cb_fail(err, CB_EFORMAT, "%s: %s is %s, but config.json says mode %s", s->file, s->name, cb_dtype_name(s->dtype),
                       names[q->mode]);
    return 0;
}

static int find_packed(const cb_config *c, const char *path, const parts *p, int64_t stack, int64_t rows, int64_t cols,
                       cb_matrix *m, cb_err *err)
{
    const cb_tensor *w = p->weight, *s = p->scales;
    cb_quant_spec q = {0};
    int64_t words;
    int rc = split_dims(w, stack, rows, cols, m, &words, err);
    if (rc < 0 || (rc = check_scales(p, err)) < 0) return rc;
    int64_t n_scales = s->dims[s->n_dims - 1];
    int have = c ? cb_config_quant(c, path, &q, err) : 0;
    if (have < 0) return cb_fail_in(err, have, "%s", w->file);
    if (have && q.keep_float)
        return cb_fail(err, CB_EFORMAT, "%s: %s has scales, but config.json says it is not quantised", w->file, w->name);
    if (!have && (rc = guess_spec(p, words, n_scales, cols, &q, err)) < 0) return rc;
    if ((rc = check_mode(p, &q, err)) < 0) return rc;
    int64_t k = cols >= 0 ? cols : n_scales * q.group;
    if (32 * words != q.bits * k || n_scales * q.group != k) {
        char a[CB_MAX_DIMS * 22], b[CB_MAX_DIMS * 22];
        return cb_fail(err, CB_EFORMAT, "%s: %s is %s with scales %s, but %lld columns at %d bits in groups of %d need %lld words and %lld scales",
                       w->file, w->name, shape(a, sizeof a, w->dims, w->n_dims), shape(b, sizeof b, s->dims, s->n_dims),
                       (long long)k, q.bits, q.group, (long long)(q.bits * k / 32), (long long)(k / q.group));
    }
    if (k > MAX_SIDE) return bad_shape(w, "too wide", err);
    m->mode = (cb_wmode)q.mode;
    m->bits = q.bits;
    m->group = q.group;
    m->cols = k;
    m->codes = w->data;
    m->row_bytes = 4 * (uint64_t)words;
    m->scales = s->data;
    m->biases = p->biases ? p->biases->data : NULL;
    m->scale_dtype = cb_dtype_size(s->dtype) == 1 ? CB_U8 : s->dtype;
    m->bytes = w->bytes + s->bytes + (p->biases ? p->biases->bytes : 0);
    if (m->mode == CB_W_NVFP4 && p->global) {
        if (p->global->dtype != CB_F32 || p->global->bytes != 4) return bad_shape(p->global, "a global scale is one F32", err);
        m->global_scale = cb_load_float(p->global->data, CB_F32, 0) / 2688.0f;
        m->bytes += 4;
    }
    return 1;
}

int cb_matrix_find(const cb_weights *w, const cb_config *c, const char *path, int64_t stack, int64_t rows, int64_t cols,
                   cb_matrix *out, cb_err *err)
{
    *out = (cb_matrix){.path = path, .global_scale = 1};
    if (strlen(path) > MAX_NAME) return 0; /* no tensor has such a name */
    const parts p = {stored_weight(w, path), part(w, path, "scales"), part(w, path, "biases"), part(w, path, "global_scale")};
    if (!p.weight) return 0;
    return p.scales ? find_packed(c, path, &p, stack, rows, cols, out, err) : find_float(p.weight, stack, rows, cols, out, err);
}

/* ---- decoding ---- */

/* Element i of a row: bits i*b .. i*b+b-1 of its bytes, least significant first. Two bytes hold any element; the second is
 * not touched where the row ends. */
static unsigned code_at(const uint8_t *row, uint64_t row_bytes, int bits, uint64_t i)
{
    uint64_t bit = i * (unsigned)bits, at = bit >> 3;
    unsigned v = row[at];
    if (at + 1 < row_bytes) v |= (unsigned)row[at + 1] << 8;
    return v >> (bit & 7) & ((1u << bits) - 1);
}

static const float fp4[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

void cb_matrix_decode_row(const cb_matrix *m, int64_t mat, int64_t row, float *out)
{
    const uint64_t at = (uint64_t)cb_matrix_row(m, mat, row);
    const uint8_t *codes = m->codes + at * m->row_bytes;
    if (m->mode == CB_W_FLOAT) {
        for (int64_t i = 0; i < m->cols; i++) out[i] = cb_load_float(codes, m->float_dtype, (size_t)i);
        return;
    }
    const uint64_t n_groups = (uint64_t)(m->cols / m->group);
    for (uint64_t g = 0; g < n_groups; g++) {
        const size_t gi = (size_t)(at * n_groups + g);
        const uint64_t first = g * (uint64_t)m->group;
        float scale, bias = 0;
        if (m->mode == CB_W_AFFINE) {
            scale = cb_load_float(m->scales, m->scale_dtype, gi);
            bias = cb_load_float(m->biases, m->scale_dtype, gi);
        } else
            scale = m->mode == CB_W_NVFP4 ? cb_f8_e4m3_to_f32(m->scales[gi]) : cb_f8_e8m0_to_f32(m->scales[gi]);
        for (int i = 0; i < m->group; i++) {
            unsigned q = code_at(codes, m->row_bytes, m->bits, first + (unsigned)i);
            float *y = &out[first + (unsigned)i];
            if (m->mode == CB_W_AFFINE) *y = fmaf(scale, (float)q, bias);
            else if (m->mode == CB_W_MXFP8) *y = cb_f8_e4m3_to_f32((uint8_t)q) * scale;
            else *y = fp4[q] * scale * m->global_scale;
        }
    }
}

static int bad_scale(const cb_matrix *m, const char *part, uint64_t i, cb_err *err)
{
    uint64_t groups = (uint64_t)(m->cols / m->group), row = i / groups;
    char at[48] = "";
    if (m->stack > 1) snprintf(at, sizeof at, "matrix %llu, ", (unsigned long long)(row / (uint64_t)m->rows));
    return cb_fail(err, CB_EFORMAT, "%.300s.%s: %srow %llu, group %llu is not a finite number", m->path, part, at,
                   (unsigned long long)(row % (uint64_t)m->rows), (unsigned long long)(i % groups));
}

/* Index of the first value that is not finite, or n. */
static uint64_t first_not_finite(const uint8_t *p, cb_dtype t, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (!isfinite(cb_load_float(p, t, (size_t)i))) return i;
    return n;
}

int cb_matrix_check_scales(const cb_matrix *m, cb_err *err)
{
    if (m->mode == CB_W_FLOAT || m->mode == CB_W_NVFP4) return 0; /* every E4M3 byte is a number as MLX reads it */
    uint64_t n = (uint64_t)m->stack * (uint64_t)m->rows * (uint64_t)(m->cols / m->group), i;
    if (m->mode == CB_W_AFFINE) {
        if ((i = first_not_finite(m->scales, m->scale_dtype, n)) < n) return bad_scale(m, "scales", i, err);
        if ((i = first_not_finite(m->biases, m->scale_dtype, n)) < n) return bad_scale(m, "biases", i, err);
        return 0;
    }
    const uint8_t *p = memchr(m->scales, 255, (size_t)n);
    return p ? bad_scale(m, "scales", (uint64_t)(p - m->scales), err) : 0;
}
