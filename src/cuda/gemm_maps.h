/* gemm_maps.h: how the operands of a tiled kernel (gemm.h) lie in memory, for the copy engine. */
#ifndef CB_CUDA_GEMM_MAPS_H
#define CB_CUDA_GEMM_MAPS_H
#include "cuda/gemm.h"
#include <cuda.h>
#include <string.h>

typedef __typeof__(&cuTensorMapEncodeTiled) cu_map_encoder;

/* Rows of bytes, `row_bytes` apart; a box is box_rows rows by box_bytes, its 16-byte chunks XORed as gemm.cuh says. */
static inline CUresult cu_gemm_map(cu_map_encoder encode, uint64_t out[16], const void *at, int64_t row_bytes, int64_t rows, int box_bytes, int box_rows)
{
    CUtensorMap map;
    cuuint64_t size[2] = {(cuuint64_t)row_bytes, (cuuint64_t)rows}, stride[1] = {(cuuint64_t)row_bytes};
    cuuint32_t box[2] = {(cuuint32_t)box_bytes, (cuuint32_t)box_rows}, step[2] = {1, 1};
    CUtensorMapSwizzle swizzle = box_bytes == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : box_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_32B;
    CUresult r = encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, (void *)(uintptr_t)at, size, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    memcpy(out, &map, sizeof map);
    return r;
}

/* A matrix of so many stored rows: a box is 16 rows, [128 bytes of a row][row][128], XORed as above; behind a row's last bytes there are some of the next one. */
static inline CUresult cu_tape_map(cu_map_encoder encode, uint64_t out[16], const cu_weight *w, int64_t rows)
{
    CUtensorMap map;
    cuuint64_t pieces = (cuuint64_t)(w->row_bytes + 127) / 128, size[3] = {128, (cuuint64_t)rows, pieces}, stride[2] = {(cuuint64_t)w->row_bytes, 128};
    cuuint32_t box[3] = {128, 16, (cuuint32_t)pieces}, step[3] = {1, 1, 1};
    CUresult r = encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 3, (void *)(uintptr_t)w->codes, size, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    memcpy(out, &map, sizeof map);
    return r;
}

/* The arguments of a kernel of 9.0 for this product. */
static inline CUresult cu_gemm_prepare(cu_map_encoder encode, const cu_gemm *g, const cu_linear *a, cu_gemm_args *out)
{
    memset(out, 0, sizeof *out);
    out->a = *a;
    if (!g->w_box) return CUDA_SUCCESS;
    int64_t rows = a->expert_at ? (a->n_experts - 1) * a->w.expert_rows + a->w.n_out : a->w.n_out;
    CUresult r = cu_gemm_map(encode, out->w_map, a->w.codes, a->w.row_bytes, rows, g->w_box, g->rt);
    if (r != CUDA_SUCCESS || a->x_row) return r;
    return cu_gemm_map(encode, out->x_map, a->x.planes, a->x.stride, a->n_rows, 128, g->tt);
}
#endif
