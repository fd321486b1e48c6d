/* experts.c: which products experts.cu runs, and how its shared memory is laid out. */
#include "cuda/experts.h"
#include <string.h>

int cu_experts_format(const cu_weight *w)
{
#define IS(name, f, b, g, s) \
    if (w->fmt == f && w->bits == b && w->group == g && w->scale_type == s) found = CU_EXPERTS_##name;
    int found = -1;
    CU_EXPERT_FORMATS(IS)
#undef IS
    return w->biases && (int64_t)w->n_groups * w->group == w->k ? found : -1;
}

static bool same_shape(const cu_linear *p, const cu_linear *q)
{
    return cu_experts_format(&p->w) == cu_experts_format(&q->w) && p->w.k == q->w.k && p->w.n_out == q->w.n_out && p->w.row_bytes == q->w.row_bytes &&
           p->w.expert_rows == q->w.expert_rows && p->x.planes == q->x.planes && p->x_row == q->x_row && p->y_row == q->y_row && p->tiles == q->tiles;
}

enum { SCALE_BYTES = 2, MOST_GROUPS = 64, FEW_GROUPS = 16, MOST_COLUMNS = 32, DEEP = 4, BEHIND = 1024 }; /* behind: a last chunk is loaded as a whole */

/* Lays out shared memory of `most` bytes; what is used of it, or 0. */
static int lay_out(cu_experts *a, int most)
{
    int chunk = CU_EXPERT_GROUPS * 32 < a->row_bytes ? CU_EXPERT_GROUPS * 32 : (int)a->row_bytes, of_scales = a->n_groups * SCALE_BYTES;
    a->stride = chunk + ((32 - chunk) & 127); /* four rows, 32 bytes of a group each, shall meet different banks */
    a->scale_step = of_scales % 16 == 0 ? CU_EXPERT_GROUPS * SCALE_BYTES : 0;
    a->scale_stride = a->scale_step ? a->scale_step : of_scales;
    a->piece_bytes = 16 * (a->stride + 2 * a->scale_stride);
    a->x_bytes = a->chunks * CU_EXPERT_GROUPS * 128;
    a->d_bytes = a->chunks * CU_EXPERT_GROUPS * 8 + 16;
    a->list_at = 8 * CU_EXPERT_WARPS * CU_EXPERT_SLOTS;
    a->rows_at = a->list_at + 16 * a->entries;
    int slots = 0;
    for (a->columns = MOST_COLUMNS; a->columns >= CU_EXPERT_ROWS && slots < DEEP; a->columns /= 2) {
        a->ring_at = (a->rows_at + 8 * a->columns + 127) & ~127;
        slots = (most - a->ring_at - a->columns * (a->x_bytes + a->d_bytes) - 2 * BEHIND) / (CU_EXPERT_WARPS * a->piece_bytes);
    }
    a->columns *= 2;
    if (slots < 2) return 0;
    a->slots = slots < CU_EXPERT_SLOTS ? slots : CU_EXPERT_SLOTS;
    a->x_at = (a->ring_at + CU_EXPERT_WARPS * a->slots * a->piece_bytes + 127) & ~127;
    a->d_at = a->x_at + a->columns * a->x_bytes;
    return a->d_at + a->columns * a->d_bytes + BEHIND;
}

bool cu_experts_cut(cu_experts *a, const cu_linear *const *p, int n, int max_shared, int tile_rows, int entries, unsigned *shared)
{
    const cu_weight *w = &p[0]->w;
    *a = (cu_experts){.x = p[0]->x, .x_row = p[0]->x_row, .y_row = p[0]->y_row, .tiles = p[0]->tiles, .row_bytes = w->row_bytes,
                      .expert_rows = w->expert_rows, .n_out = w->n_out, .n_groups = w->n_groups, .entries = entries};
    uintptr_t at = (uintptr_t)w->row_bytes | (uintptr_t)(w->expert_rows * w->n_groups * SCALE_BYTES) | (uintptr_t)p[0]->x.planes;
    for (int i = 0; i < n; i++) {
        const cu_weight *v = &p[i]->w;
        if (p[i]->add || !same_shape(p[0], p[i])) return false;
        at |= (uintptr_t)v->codes | (uintptr_t)v->scales | (uintptr_t)v->biases;
        a->part[i].codes = v->codes;
        a->part[i].scales = v->scales;
        a->part[i].biases = v->biases;
        a->part[i].y = p[i]->y;
        a->part[i].y_stride = p[i]->y_stride;
    }
    int G = w->n_groups;
    if (at & 15 || cu_experts_format(w) < 0 || tile_rows > CU_EXPERT_ROWS || G > MOST_GROUPS || (G % 8 && G > FEW_GROUPS)) return false;
    for (int l = 1; l <= CU_SEGMENTS; l++)
        if (l * G / CU_SEGMENTS) a->ends |= (uint64_t)1 << (l * G / CU_SEGMENTS - 1);
    a->chunks = (G + CU_EXPERT_GROUPS - 1) / CU_EXPERT_GROUPS;
    a->tiles_of = (w->n_out + 15) / 16;
    a->tiles_all = n * a->tiles_of;
    int bytes = lay_out(a, CU_STREAM_SHARED < max_shared - 8192 ? CU_STREAM_SHARED : max_shared - 8192);
    *shared = (unsigned)bytes;
    return bytes > 0;
}
