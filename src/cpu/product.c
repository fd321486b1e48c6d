/* product.c: products whose float weights stay in the checkpoint: a thread encodes a few of its rows as planes, multiplies,
 * and goes on. The planes are those that cpu.c would have kept, so the bits are the same; a token costs more time, but opening
 * and memory cost nothing. */
#include "cpu/cpu.h"

enum { PIECE_BYTES = 512 << 10, GROUP_BYTES = 128 + 4 };

static int n_groups(const cb_matrix *m) { return (int)((m->cols + 63) / 64); }

/* Rows encoded at a time: whole units, as many as stay in the second-level cache. */
static int piece_rows(const cb_matrix *m)
{
    int units = PIECE_BYTES / (CB_ROW_UNIT * n_groups(m) * GROUP_BYTES);
    return (units < 1 ? 1 : units) * CB_ROW_UNIT;
}

/* Elements of E4M3 through a table, a scale for each 32. */
static bool widen_mxfp8(const cb_matrix *m, int64_t at, const float *table, float *x)
{
    const uint8_t *p = m->codes + (uint64_t)at * m->row_bytes, *scales = m->scales + (uint64_t)at * (uint64_t)(m->cols / 32);
    bool ok = true;
    for (int64_t g = 0; g < m->cols / 32; g++, p += 32) {
        float s = cb_f8_e8m0_to_f32(scales[g]);
        ok &= scales[g] < 255;
        for (int i = 0; i < 32; i++) x[32 * g + i] = table[p[i]] * s;
    }
    return ok;
}

/* Room of one thread, behind what `linear` wants. */
typedef struct room {
    float *row;      /* [cols], mxfp8 only */
    uint8_t *planes; /* [piece][n_groups][128] */
    float *scales;   /* [piece][n_groups] */
} room;

static size_t lay_out(room *r, const cb_matrix *m, uint8_t *base)
{
    size_t at = 0, G = (size_t)n_groups(m), per = (size_t)piece_rows(m);
    const size_t sizes[] = {cb_linear_scratch(m->cols), m->mode == CB_W_MXFP8 ? (size_t)m->cols * 4 : 0, per * G * 128, per * G * 4};
    uint8_t *p[4];
    for (int i = 0; i < 4; i++) {
        p[i] = base + at;
        at += (sizes[i] + 63) & ~(size_t)63;
    }
    *r = (room){(float *)p[1], p[2], (float *)p[3]};
    return at;
}

size_t cpu_product_scratch(const cb_matrix *m)
{
    room r;
    return lay_out(&r, m, NULL);
}

void cpu_product(const cpu_ctx *c, const cb_mm *mm, int64_t mat, int64_t n0, int64_t n1)
{
    const cb_kernels *k = &c->d->k;
    if (mm->codes) {
        k->linear(mm, n0, n1, c->scratch);
        return;
    }
    const cb_matrix *m = &c->d->plan->weights[c->op->w[0]].matrix;
    int per = piece_rows(m), G = n_groups(m);
    float table[256];
    room r;
    lay_out(&r, m, c->scratch);
    for (int i = 0; i < 256 && m->mode == CB_W_MXFP8; i++) table[i] = cb_f8_e4m3_to_f32((uint8_t)i);
    bool ok = true;
    for (int64_t n = n0; n < n1; n += per) {
        int rows = n1 - n < per ? (int)(n1 - n) : per;
        for (int i = 0; i < rows; i++) {
            int64_t at = cb_matrix_row(m, mat, n + i);
            const uint8_t *stored = m->codes + (uint64_t)at * m->row_bytes;
            cb_dtype t = m->float_dtype;
            if (m->mode == CB_W_MXFP8) {
                ok &= widen_mxfp8(m, at, table, r.row);
                stored = (const uint8_t *)r.row;
                t = CB_F32;
            }
            ok &= k->encode_row(stored, t, m->cols, r.planes + (size_t)i * (size_t)G * 128, r.scales + (size_t)i * (size_t)G);
        }
        cb_mm piece = *mm;
        piece.codes = r.planes;
        piece.scales = (const uint8_t *)r.scales;
        piece.y += n;
        k->linear(&piece, 0, rows, c->scratch);
    }
    if (!ok) cpu_report_bad(c);
}
