/* heads.cuh: a row whose heads are made by thread blocks of their own becomes planes there too. Groups lie within heads, so a block
 * writes its own. Whether the row has a remainder is a question to the whole row: the block that arrives last answers it. */
#ifndef CB_CUDA_HEADS_CUH
#define CB_CUDA_HEADS_CUH
#include "cuda/rowops.cuh"

/* One warp: planes of up to 128 of dim values v, which are values first .. of row `row`. A lane takes 4 neighbours. last: of the row. */
__device__ __forceinline__ void quant_head(const float *v, int dim, int first, bool last, const cu_planes &q, int row, cu_step *step, int op)
{
    int lanes = q.group / 4, at = 4 * (threadIdx.x % 32), e0 = first + at;
    float4 x = at < dim ? *(const float4 *)(v + at) : make_float4(0, 0, 0, 0);
    uint32_t m = max_bits(x, lanes), t[4], zeros[4] = {0, 0, 0, 0};
    if (m >= 0x7f800000) report_bad(step, op);
    float dx = to_integers(x, m, t);
    int sum = sum_of(t, lanes);
    if (last) /* what the planes have behind the row's end */
        for (int e = first + dim + at; e < q.stride / 2; e += 128) put_planes(q, row, e, zeros);
    if (at >= dim) return;
    put_planes(q, row, e0, t);
    put_scale(q, row, e0, dx, sum);
}

/* One warp: may the row have a remainder for all that this head knows? And what it found. */
__device__ __forceinline__ bool head_towers(const float *v, int dim, float share, float2 *found)
{
    float m = 0, ss = 0;
    for (int i = threadIdx.x % 32; i < dim; i += 32) {
        m = fmaxf(m, fabsf(v[i]));
        ss = cb_fma(v[i], v[i], ss);
    }
    m = group_max(m, 32);
    for (int w = 16; w; w /= 2) ss = ss + __shfl_xor_sync(FULL, ss, w);
    *found = make_float2(m, ss);
    return wants(energy_of(__float_as_uint(m)), ss, share) != 0;
}

/* One warp: has the row a remainder? found: of its heads. y [n]: the row. */
__device__ __forceinline__ bool row_towers(const float2 *found, int n_heads, const float *y, int n, float share)
{
    float m = 0, ss = 0;
    for (int i = threadIdx.x % 32; i < n_heads; i += 32) {
        m = fmaxf(m, found[i].x);
        ss = ss + found[i].y;
    }
    m = group_max(m, 32);
    for (int w = 16; w; w /= 2) ss = ss + __shfl_xor_sync(FULL, ss, w);
    float energy = energy_of(__float_as_uint(m));
    int surely = wants(energy, ss, share);
    return surely >= 0 ? surely : energy > share * sum_squares(y, n);
}

/* All threads of a block, behind a __syncthreads(), its head of row `row` written: y [n] in device memory, v [dim] beside. Of a value with
 * remainders the last block of the row finds the flag and, seldom, the remainder. */
__device__ __forceinline__ void end_row(const cu_heads_out &o, const float *v, int dim, const float *y, int n, int row, int head, int n_heads, cu_step *step)
{
    const cu_planes &q = o.x;
    __shared__ bool more;
    if (!q.flag) return;
    if (threadIdx.x / 32 == blockDim.x / 32 - 1) {
        float2 f, *found = (float2 *)o.found + (size_t)row * CU_MOST_HEADS;
        bool tower = head_towers(v, dim, o.share, &f);
        int was = 0;
        if (threadIdx.x % 32 == 0) {
            found[head] = f;
            fence();
            was = atomicAdd(&o.arrived[row], tower ? 0x10001 : 1);
        }
        was = __shfl_sync(FULL, was, 0);
        bool last = (was & 0xffff) == n_heads - 1, flag = false;
        if (last && ((was >> 16) || tower)) {
            fence();
            flag = row_towers(found, n_heads, y, n, o.share);
        }
        if (threadIdx.x % 32 == 0) {
            more = flag;
            if (last) {
                o.arrived[row] = 0;
                q.flag[row] = flag;
            }
        }
    }
    __syncthreads();
    if (more) quant_row(y, n, q, row, true, step, o.op);
}
#endif
