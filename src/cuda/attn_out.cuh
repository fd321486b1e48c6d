/* attn_out.cuh: a query head's result of attention by a thread block, a thread a dim: rotated back, and handed out with its planes. */
#ifndef CB_CUDA_ATTN_OUT_CUH
#define CB_CUDA_ATTN_OUT_CUH
#include "cuda/heads.cuh"

/* y rotated back in blocks; row: a float for each thread; meet: all of them. Strides below 32 go by shuffles, the others through shared memory, where a thread adds up what its own value needs. */
template <class M> __device__ __forceinline__ float rotate_back(float y, int block, float scale, float *row, M meet)
{
    int d = threadIdx.x, lane = d % 32;
    if (block == 1) return y;
#pragma unroll
    for (int w = 1; w < 32; w *= 2) {
        if (w >= block) break;
        float other = __shfl_xor_sync(FULL, y, w);
        y = lane & w ? other - y : y + other;
    }
    if (block > 32) {
        int n = block / 32, mine = d % block / 32;
        float x[16];
        row[d] = y;
        meet();
        const float *from = row + d / block * block + lane;
#pragma unroll
        for (int i = 0; i < 16; i++) x[i] = i < n ? from[32 * i] : 0;
#pragma unroll
        for (int s = 0; s < 4; s++) {
            if (2 << s > n) break;
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (i < 8 >> s) x[i] = mine >> s & 1 ? x[2 * i] - x[2 * i + 1] : x[2 * i] + x[2 * i + 1];
        }
        y = x[0];
    }
    return y * scale;
}
__device__ __forceinline__ float rotate_back(float y, int block, float scale, float *row) { return rotate_back(y, block, scale, row, [] { __syncthreads(); }); }

/* The head's values as they are meant: a warp makes planes of a piece, or says that they are there. row: [dim], which nobody reads. */
__device__ __forceinline__ void give_head(const cu_attn_step &a, float y, int dim, int row_number, int head, float *row, bool now)
{
    int d = threadIdx.x, pieces = (dim + 127) / 128;
    if (d < dim) row[d] = y;
    __syncthreads();
#pragma unroll 1
    for (int i = d / 32; i < 2 * pieces; i += blockDim.x / 32) {
        int k = i % pieces, left = dim - 128 * k, lane = d % 32;
        piece c = {make_float4(0, 0, 0, 0), row_number, head * dim + 128 * k, left < 128 ? left : 128, head * pieces + k, a.n_heads * pieces};
        if (c.in()) c.x = *(const float4 *)(row + 128 * k + 4 * lane);
        if (i >= pieces) {
            float2 found = find_piece(c);
            give_piece(c, found, a.planes, a.out + (size_t)row_number * a.out_stride, now);
            arrive_piece(c, found, a.planes, a.out + (size_t)row_number * a.out_stride, a.n_heads * dim, a.step, now);
        } else if (a.planes.x.planes) quant_piece(c, a.planes.x, a.step, a.planes.op, now);
    }
}
#endif
