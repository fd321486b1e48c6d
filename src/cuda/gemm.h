/* gemm.h: which many-rows kernel runs a linear layer, and its launch geometry. Pure functions; C and C++. */
#ifndef CB_CUDA_GEMM_H
#define CB_CUDA_GEMM_H
#include "cuda/abi.h"
#include <stddef.h>

typedef struct cu_gemm {
    const char *kernel;       /* its name in the module; its parameter is a cu_linear by value */
    int32_t fmt, bits, group; /* of the weights */
    int32_t cc;               /* compute capability it needs (90: that one only, for sm_90a) */
    int32_t rt, tt;           /* a tile: outputs, rows */
    int32_t block;            /* threads */
    int32_t shared;           /* dynamic shared memory in bytes; more than 48 KB must be allowed first */
    int32_t persistent;       /* 1: as many blocks as fit, each takes several tiles */
} cu_gemm;

/* All kernels, preferred ones first within a format; cu_gemm_count of them. */
static const cu_gemm cu_gemms[] = {
    {"k_gemm_q4g64", CU_FMT_AFFINE, 4, 64, 80, 128, 128, 256, 181760, 0},
    {"k_gemm_q2g128", CU_FMT_AFFINE, 2, 128, 80, 128, 128, 256, 165376, 0},
    {"k_gemm_q4g32", CU_FMT_AFFINE, 4, 32, 80, 128, 128, 256, 140800, 0},
    {"k_gemm_q8g64", CU_FMT_AFFINE, 8, 64, 80, 128, 128, 256, 165376, 0},
    {"k_gemm_planes", CU_FMT_PLANES, 8, 64, 80, 128, 64, 256, 160512, 0},
};
enum { cu_gemm_count = sizeof cu_gemms / sizeof cu_gemms[0] };

/* The kernel for this layer on a device of compute capability cc (10*major + minor) that grants a block max_shared bytes, or
 * NULL: then the kernel for few rows must do it. Weights and scales must stand at multiples of 16 bytes. */
static inline const cu_gemm *cu_gemm_find(const cu_linear *a, int cc, int max_shared)
{
    const cu_weight *w = &a->w;
    uintptr_t at = (uintptr_t)w->codes | (uintptr_t)w->scales | (uintptr_t)w->biases | (uintptr_t)a->x.planes | (uintptr_t)a->x.dx | (uintptr_t)a->x.xs;
    if ((at & 15) != 0 || (w->row_bytes & 15) != 0 || w->n_out < 1 || w->n_groups < 1) return NULL;
    if (w->fmt == CU_FMT_AFFINE && w->scale_type > CU_S_BF16) return NULL;
    if (w->fmt == CU_FMT_AFFINE && (int64_t)w->n_groups * w->group != w->k) return NULL;
    for (int i = 0; i < cu_gemm_count; i++) {
        const cu_gemm *g = &cu_gemms[i];
        if (g->fmt != w->fmt || g->group != w->group || (w->fmt == CU_FMT_AFFINE && g->bits != w->bits)) continue;
        if ((g->cc == 90 ? cc == 90 : cc >= g->cc) && g->shared <= max_shared) return g;
    }
    return NULL;
}

/* Blocks of a launch. With experts this is the worst case over all ways to spread the rows, so nothing is read back. */
static inline int64_t cu_gemm_grid(const cu_gemm *g, const cu_linear *a, int n_sm)
{
    int64_t rows = a->expert_at ? a->n_rows / g->tt + a->n_experts : (a->n_rows + g->tt - 1) / g->tt;
    int64_t tiles = rows * ((a->w.n_out + g->rt - 1) / g->rt);
    return g->persistent && tiles > n_sm ? n_sm : tiles;
}
#endif
