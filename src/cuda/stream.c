/* stream.c: which products stream.cu runs, and how they are cut. */
#include "cuda/stream.h"

_Static_assert((int)CU_STREAM_NOTES >= 8 * 3 * (int)CU_STREAM_SLOTS && (int)CU_STREAM_RING >= (int)CU_STREAM_NOTES + 64 * (int)CU_STREAM_WARPS, "room for barriers and notes");

int cu_stream_format(const cu_weight *w)
{
#define IS(name, f, b, g, s)                                                         \
    if (w->fmt == f && w->group == g && w->scale_type == s && (f == CU_FMT_PLANES || w->bits == b)) found = CU_STREAM_##name;
    int found = -1;
    CU_STREAM_FORMATS(IS)
#undef IS
    if (w->fmt == CU_FMT_AFFINE && (!w->biases || (int64_t)w->n_groups * w->group != w->k)) return -1;
    return found;
}

/* Reads of eight rows, BYTES of a group each, shall meet different banks. */
static int stride_of(const cu_weight *w)
{
    int format = cu_stream_format(w);
    int64_t piece = w->row_bytes;
    int step = format == CU_STREAM_4g32 ? 16 : format == CU_STREAM_8g64 || format == CU_STREAM_planes ? 64 : 32;
    return (int)(piece + ((step - piece) & 127));
}

/* Fills the strides; the size of a stage, or 0. */
static int stage_bytes(cu_stream *a)
{
    int most = 0;
    for (int i = 0; i < a->n_parts; i++) {
        const cu_weight *w = &a->part[i].w;
        int64_t of_scales = (int64_t)w->n_groups * cu_scale_bytes(w), stride = stride_of(w);
        if (of_scales % 16 == 0) of_scales |= 16; /* rows of scales, too */
        int64_t n = 16 * (stride + (w->biases ? 2 : 1) * of_scales);
        if (n > CU_STREAM_SHARED) return 0;
        a->cut[i].stride = (int32_t)stride;
        a->cut[i].scale_stride = (int32_t)of_scales;
        most = n > most ? (int)n : most;
    }
    return (most + 127) & ~127;
}

enum { BEHIND = 1024, OVER = 128 }; /* loads run ahead of what there is: of activations; of scales, which must not meet sums there */

/* What a group of a tile costs a warp that has so many segments at a time (1, 2, 4), in some unit. */
static int time_of(int per) { return per == 4 ? 25 : per == 2 ? 34 : 45; }

/* Stages of a block at most, as share_tiles() in stream.cu cuts them; 0: that is not known. */
static int most_stages(const cu_stream *a, int64_t blocks)
{
    int64_t all = 0, n[CU_MAX_PARTS];
    int most = 0;
    for (int i = 0; i < a->n_parts; i++) {
        const cu_linear *p = &a->part[i];
        if (p->tiles ? !a->entries : p->n_rows > CU_STREAM_PASS) return 0;
        n[i] = (int64_t)a->cut[i].tiles * (p->tiles ? a->entries : 1);
        all += n[i] * a->cut[i].cost;
    }
    for (int64_t b = 0; b < blocks; b++) {
        int64_t lo = all * b / blocks, hi = all * (b + 1) / blocks, from = 0, stages = 0;
        for (int i = 0; i < a->n_parts; i++) {
            int64_t cost = a->cut[i].cost, t0 = lo <= from ? 0 : (lo - from + cost - 1) / cost, t1 = hi <= from ? 0 : (hi - from + cost - 1) / cost;
            stages += (t1 < n[i] ? t1 : n[i]) - (t0 < n[i] ? t0 : n[i]);
            from += n[i] * cost;
        }
        if (stages > most) most = (int)stages;
    }
    return most;
}

/* The ring in `most` bytes. `tiles`: of a block, about; stages: of a block at most, or 0. 0, or the shared memory. */
static int lay_out(cu_stream *a, int groups, int tiles, int stages, int most)
{
    int bytes = stage_bytes(a), columns = a->columns * (a->x_bytes + 8 * groups) + BEHIND, best = 0;
    if (!bytes) return 0;
    int slots = (most - CU_STREAM_RING - OVER - CU_STREAM_ZEROS - columns) / (bytes + a->sum_bytes);
    if (slots > CU_STREAM_SLOTS) slots = CU_STREAM_SLOTS;
    for (int per = 1; per <= 4; per *= 2) {
        int streams = CU_STREAM_WARPS * per / CU_SEGMENTS;
        if (slots < streams) continue;
        int time = (tiles + streams - 1) / streams * per * time_of(per);
        if (best && time >= best) continue;
        best = time;
        a->per = per;
    }
    if (!best) return 0;
    int wanted = stages ? stages : tiles + a->n_parts, streams = CU_STREAM_WARPS * a->per / CU_SEGMENTS, room = slots; /* places with memory */
    slots -= slots % streams; /* a place in the ring is always read by the same warps: they see each of its phases */
    if (stages && stages <= room) { /* what is not used needs no memory: the launch behind may be set up there */
        slots = (stages + streams - 1) / streams * streams;
        room = stages;
    } else {
        if (slots > wanted) slots = wanted > streams ? wanted - wanted % streams : streams;
        room = slots;
    }
    a->subs = CU_SEGMENTS / a->per;
    a->slots = slots;
    a->slot_bytes = bytes;
    a->sums_at = CU_STREAM_RING + room * bytes + OVER;
    a->zeros_at = a->sums_at + room * a->sum_bytes;
    a->x_at = a->zeros_at + CU_STREAM_ZEROS;
    return a->x_at + columns;
}

/* Columns of activations, and how many an entry of the list has at most. Experts take no remainders. */
static void count_columns(cu_stream *a, int tile_rows, int *groups)
{
    int most = 0;
    a->columns = a->x_bytes = *groups = 0;
    for (int i = 0; i < a->n_parts; i++) {
        const cu_linear *p = &a->part[i];
        bool slots = p->tiles && a->entries;
        int n = slots ? (p->x_step ? a->entries : 1) : p->tiles ? 2 * tile_rows : p->n_rows < CU_STREAM_PASS ? p->n_rows : CU_STREAM_PASS;
        if (!p->tiles && p->x.flag) n *= 2;
        int of_tile = slots ? 1 : p->tiles ? tile_rows : n;
        int x = p->w.n_groups * p->w.group * 2;
        if (n > a->columns) a->columns = n;
        if (of_tile > most) most = of_tile;
        if (x > a->x_bytes) a->x_bytes = x;
        if (p->w.n_groups > *groups) *groups = p->w.n_groups;
    }
    a->sum_bytes = CU_SEGMENTS * 16 * 4 * most;
}

bool cu_stream_cut(cu_stream *a, int n_sm, int max_shared, int tile_rows, int most_entries, bool tight, unsigned *blocks, unsigned *shared)
{
    int64_t tiles = 0, all = 0;
    int groups;
    for (int i = 0; i < a->n_parts; i++) {
        const cu_linear *p = &a->part[i];
        const cu_weight *w = &p->w;
        uintptr_t at = (uintptr_t)w->codes | (uintptr_t)w->scales | (uintptr_t)w->biases | (uintptr_t)w->row_bytes | (uintptr_t)p->x.planes;
        if (p->tiles) at |= (uintptr_t)(w->expert_rows * w->n_groups * cu_scale_bytes(w));
        else if (p->n_rows > CU_STREAM_MOST) return false;
        if (at & 15 || cu_stream_format(w) < 0) return false;
        a->cut[i].tiles = (w->n_out + 15) / 16;
        a->cut[i].cost = (uint32_t)(w->row_bytes / 16 + w->n_groups * cu_scale_bytes(w) / 8);
        int64_t n = (int64_t)a->cut[i].tiles * (p->tiles ? most_entries : 1);
        tiles += n;
        all += n * a->cut[i].cost;
    }
    for (; all * n_sm >= INT32_MAX; all /= 2)
        for (int i = 0; i < a->n_parts; i++) a->cut[i].cost = (a->cut[i].cost + 1) / 2;
    count_columns(a, tile_rows, &groups);
    int64_t n_blocks = tiles < n_sm ? tiles : n_sm;
    int per_block = (int)((tiles + n_blocks - 1) / n_blocks);
    int bytes = lay_out(a, groups, per_block, tight ? most_stages(a, n_blocks) : 0, CU_STREAM_SHARED < max_shared - 8192 ? CU_STREAM_SHARED : max_shared - 8192);
    if (!bytes || (a->slots == 1 && per_block > 1)) return false;
    *blocks = (unsigned)n_blocks;
    *shared = (unsigned)bytes;
    return true;
}
