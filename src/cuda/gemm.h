/* gemm.h: which many-rows kernel runs a linear layer, and its launch geometry. Pure functions; C and C++. The kernels take a cu_linear
 * by value (those of 9.0 in cu_gemm_args), any number of rows and outputs; they are worth it from about 16 rows on. */
#ifndef CB_CUDA_GEMM_H
#define CB_CUDA_GEMM_H
#include "cuda/abi.h"
#include <stdalign.h>
#include <stddef.h>

/* What kernels of 9.0 get. The maps (CUtensorMap, made by gemm_maps.h) tell the copy engine of weights and activations as rows of bytes;
 * kernels without w_box read neither, and w_map alone is made where activations are gathered. */
typedef struct cu_gemm_args {
    alignas(64) uint64_t w_map[16], x_map[16];
    cu_linear a;
} cu_gemm_args;

typedef struct cu_gemm {
    const char *kernel;       /* its name; "..._sm90..." are in the fatbin gemm_sm90, the others in gemm */
    int32_t fmt, bits, group; /* of the weights */
    int32_t cc;               /* compute capability it needs: 80 or later, or 90 and no other */
    int32_t rt, tt;           /* a tile: outputs, rows */
    int32_t block;            /* threads */
    int32_t shared;           /* dynamic shared memory in bytes; more than 48 KB must be allowed first */
    int32_t persistent;       /* 1: one block a multiprocessor, each takes several tiles */
    int32_t cost;             /* of a tile, to choose among kernels for one format */
    int32_t w_box;            /* tiled: bytes of a weight row in a stage (those of a row of activations are fetched 128 at a time); else 0 */
} cu_gemm;

static const cu_gemm cu_gemms[] = {
    {"k_gemm_q4g64", CU_FMT_AFFINE, 4, 64, 80, 128, 64, 256, 86784, 0, 1000, 0},
    {"k_gemm_q2g128", CU_FMT_AFFINE, 2, 128, 80, 128, 64, 256, 74496, 0, 1000, 0},
    {"k_gemm_q4g32", CU_FMT_AFFINE, 4, 32, 80, 128, 64, 256, 74496, 0, 1000, 0},
    {"k_gemm_q8g64", CU_FMT_AFFINE, 8, 64, 80, 128, 64, 256, 78592, 0, 1000, 0},
    {"k_gemm_planes", CU_FMT_PLANES, 8, 64, 80, 128, 64, 256, 86784, 0, 1000, 0},
    {"k_gemm_q4g64_sm90", CU_FMT_AFFINE, 4, 64, 90, 256, 64, 640, 221600, 1, 100, 64},
    {"k_gemm_q2g128_sm90", CU_FMT_AFFINE, 2, 128, 90, 256, 64, 640, 208576, 1, 100, 0},
    {"k_gemm_q4g32_sm90", CU_FMT_AFFINE, 4, 32, 90, 256, 64, 640, 221440, 1, 100, 0},
    {"k_gemm_q8g64_sm90", CU_FMT_AFFINE, 8, 64, 90, 256, 64, 640, 208576, 1, 100, 0},
    {"k_gemm_planes_sm90", CU_FMT_PLANES, 8, 64, 90, 192, 64, 512, 228032, 1, 100, 0},
    {"k_gemm_q4g64_sm90_s", CU_FMT_AFFINE, 4, 64, 90, 192, 32, 512, 127392, 1, 58, 0},
    {"k_gemm_q2g128_sm90_s", CU_FMT_AFFINE, 2, 128, 90, 192, 32, 512, 160160, 1, 50, 0},
    {"k_gemm_q4g32_sm90_s", CU_FMT_AFFINE, 4, 32, 90, 192, 32, 512, 143776, 1, 54, 0},
    {"k_gemm_q8g64_sm90_s", CU_FMT_AFFINE, 8, 64, 90, 192, 32, 512, 176544, 1, 51, 0},
    {"k_gemm_planes_sm90_s", CU_FMT_PLANES, 8, 64, 90, 192, 32, 512, 213088, 1, 60, 0},
};
enum { CU_GEMMS = sizeof cu_gemms / sizeof cu_gemms[0], CU_GEMM_EXPERTS = 512 /* the most that the sm90 kernels have room for */ };

/* Blocks of a launch. With experts this is the worst case over all ways to spread the rows, so nothing is read back. */
static inline int64_t cu_gemm_grid(const cu_gemm *g, const cu_linear *a, int n_sm)
{
    int64_t rows = a->expert_at ? a->n_rows / g->tt + a->n_experts : (a->n_rows + g->tt - 1) / g->tt;
    int64_t tiles = rows * ((a->w.n_out + g->rt - 1) / g->rt);
    return g->persistent && tiles > n_sm ? n_sm : tiles;
}

/* Time of a launch in some unit: rounds of tiles. Experts: their last tiles are half full on average. */
static inline int64_t cu_gemm_time(const cu_gemm *g, const cu_linear *a, int n_sm)
{
    int64_t spread = a->n_experts < a->n_rows ? a->n_experts : a->n_rows;
    int64_t rows = a->expert_at ? a->n_rows / g->tt + (spread + 1) / 2 : (a->n_rows + g->tt - 1) / g->tt;
    int64_t tiles = rows * ((a->w.n_out + g->rt - 1) / g->rt);
    return (tiles + n_sm - 1) / n_sm * g->cost;
}

/* The kernel for this layer on a device of compute capability cc (10*major + minor), n_sm multiprocessors and max_shared bytes a
 * block, or NULL: then the kernel for few rows must do it. Codes, planes and 4-aligned scale rows must stand at multiples of 16. */
static inline const cu_gemm *cu_gemm_find(const cu_linear *a, int cc, int n_sm, int max_shared)
{
    const cu_weight *w = &a->w;
    uintptr_t at = (uintptr_t)w->codes | (uintptr_t)a->x.planes | (uintptr_t)w->row_bytes | (uintptr_t)a->x.stride;
    if (w->n_groups % 4 == 0) at |= (uintptr_t)w->scales | (uintptr_t)w->biases | (uintptr_t)a->x.dx | (uintptr_t)a->x.xs;
    if ((at & 15) != 0 || w->n_out < 1 || w->n_groups < 1 || a->n_rows < 1) return NULL;
    if (w->fmt == CU_FMT_AFFINE ? w->scale_type > CU_S_BF16 || (int64_t)w->n_groups * w->group != w->k : w->scale_type != CU_S_F32) return NULL;
    const cu_gemm *best = NULL;
    for (int i = 0; i < CU_GEMMS; i++) {
        const cu_gemm *g = &cu_gemms[i];
        if (g->fmt != w->fmt || g->group != w->group || (w->fmt == CU_FMT_AFFINE && g->bits != w->bits)) continue;
        if (!(g->cc == 90 ? cc == 90 : cc >= g->cc) || g->shared > max_shared || (g->cc == 90 && a->expert_at && a->n_experts > CU_GEMM_EXPERTS)) continue;
        if (!best || cu_gemm_time(g, a, n_sm) < cu_gemm_time(best, a, n_sm)) best = g;
    }
    return best;
}
#endif
