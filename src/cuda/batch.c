/* batch.c: which products batch.cu does, and in which shape. */
#include "cuda/batch.h"

/* Of each format: groups of a stage; of split: 32s of outputs, stages. */
static const struct {
    int bits, group, planes, groups, og, stages;
} formats[CU_N_BATCH] = {
#define FORMAT(name, fmt, b, g, n, o, s) [CU_BATCH_##name] = {.bits = b, .group = g, .planes = (fmt) == CU_FMT_PLANES, .groups = n, .og = o, .stages = s},
    CU_BATCH_FORMATS(FORMAT)
#undef FORMAT
};

/* 32s of outputs and 16s of rows (split: they are 3 together), slices of K; what a tile takes, in some unit. */
static const struct {
    int og, cg, slices, cost;
} shapes[CU_BATCH_SHAPES] = {[CU_BATCH_WIDE] = {3, 4, 1, 600}, [CU_BATCH_TALL] = {6, 2, 1, 600}, [CU_BATCH_SPLIT] = {0, 0, CU_SEGMENTS, 170}};
enum { WIDE_HALF = 350 }; /* of wide with up to 32 rows */

static int og_of(int format, int shape) { return shapes[shape].og ? shapes[shape].og : formats[format].og; }
static int cg_of(int format, int shape) { return shapes[shape].cg ? shapes[shape].cg : 3 - formats[format].og; }

int cu_batch_format(const cu_linear *a)
{
    const cu_weight *w = &a->w;
    uintptr_t at = (uintptr_t)w->codes | (uintptr_t)w->row_bytes | (uintptr_t)a->x.planes | (uintptr_t)a->x.stride;
    bool affine = w->fmt == CU_FMT_AFFINE;
    if ((uint64_t)a->x.n_rows * 2 * (uint64_t)a->x.stride > UINT32_MAX) return -1; /* places of rows are 32-bit numbers */
    if (a->tiles || a->n_rows < CU_BATCH_LEAST || a->n_rows > CU_BATCH_MOST || at & 15 || w->n_out < 1 || w->n_groups < 1) return -1;
    if (affine ? w->scale_type > CU_S_BF16 || !w->biases || (int64_t)w->n_groups * w->group != w->k : w->fmt != CU_FMT_PLANES || w->scale_type != CU_S_F32) return -1;
    for (int f = 0; f < CU_N_BATCH; f++)
        if (formats[f].planes == !affine && formats[f].group == w->group && (!affine || formats[f].bits == w->bits)) return f;
    return -1;
}

static int64_t shared_bytes(int format, int shape, int groups)
{
    bool split = shape == CU_BATCH_SPLIT;
    int n = !split ? formats[format].groups : formats[format].group < 64 ? 2 : 1, stages = split ? formats[format].stages : CU_BATCH_STAGES;
    int columns = 24 * cg_of(format, shape), outputs = 32 * og_of(format, shape);
    int64_t of_column = 2 * formats[format].group * n, of_output = (formats[format].planes ? 128 : formats[format].group * formats[format].bits / 8) * n;
    int64_t lines = (int64_t)groups * (8 * outputs + 16 + 8 * columns + 16);
    return (lines + 127) / 128 * 128 + stages * shapes[shape].slices * (columns * of_column + outputs * of_output);
}

static int64_t tiles_of(const cu_linear *a, int format, int shape)
{
    int outputs = 32 * og_of(format, shape), rows = 16 * cg_of(format, shape);
    return (int64_t)((a->w.n_out + outputs - 1) / outputs) * ((a->n_rows + rows - 1) / rows);
}

enum { MOST_ROUNDS = 3 }; /* of large matrices the kernels of many rows make more out of the multiprocessors */

bool cu_batch_cut(cu_linears *a, int n_sm, int max_shared, cu_batch *out)
{
    int most = CU_BATCH_SHARED < max_shared - 8192 ? CU_BATCH_SHARED : max_shared - 8192;
    int64_t best = 0;
    out->format = cu_batch_format(&a->part[0]);
    for (int shape = 0; shape < CU_BATCH_SHAPES; shape++) {
        int64_t tiles = 0, shared = 0;
        for (int i = 0; i < a->n_parts; i++) {
            int64_t bytes = shared_bytes(out->format, shape, a->part[i].w.n_groups);
            if (bytes > shared) shared = bytes;
            tiles += tiles_of(&a->part[i], out->format, shape);
        }
        int cost = shape == CU_BATCH_WIDE && a->part[0].n_rows <= 32 ? WIDE_HALF : shapes[shape].cost;
        int64_t rounds = (tiles + n_sm - 1) / n_sm, time = rounds * cost;
        if (shared > most || (rounds > MOST_ROUNDS && shape != CU_BATCH_SPLIT) || (best && time >= best)) continue;
        best = time;
        out->shape = shape;
        out->blocks = (unsigned)tiles;
        out->threads = 32 * (unsigned)(og_of(out->format, shape) * cg_of(out->format, shape) * shapes[shape].slices);
        out->shared = (unsigned)shared;
    }
    if (!best || best > MOST_ROUNDS * shapes[CU_BATCH_WIDE].cost) return false;
    a->block0[0] = 0;
    for (int i = 0; i < a->n_parts; i++) a->block0[i + 1] = a->block0[i] + (int32_t)tiles_of(&a->part[i], out->format, out->shape);
    return true;
}
