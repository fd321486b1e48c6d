/* heads.cuh: a row whose heads are made by thread blocks of their own becomes planes there too. Groups lie within heads, so a block
 * writes its own. Whether the row has a remainder is a question to the whole row: the block that arrives last answers it. */
#ifndef CB_CUDA_HEADS_CUH
#define CB_CUDA_HEADS_CUH
#include "cuda/rowops.cuh"

/* High and low bytes of values e .. e+3 of a row to where rowops.cuh, quant_row, puts them. */
__device__ __forceinline__ void put_planes(const cu_planes &q, int row, int e, uint32_t hi, uint32_t lo)
{
    int pack = q.pack, shift = 31 - __clz(pack), r = e & ((64 << shift) - 1);
    int8_t *p = q.planes + (size_t)row * q.stride + 2 * (e - r) + (r >> shift);
    if (pack == 1) {
        *(uint32_t *)p = hi;
        *(uint32_t *)(p + 64) = lo;
    } else if (pack == 2) {
        *(uint16_t *)p = (uint16_t)__byte_perm(hi, 0, 0x20);
        *(uint16_t *)(p + 64) = (uint16_t)__byte_perm(hi, 0, 0x31);
        *(uint16_t *)(p + 128) = (uint16_t)__byte_perm(lo, 0, 0x20);
        *(uint16_t *)(p + 192) = (uint16_t)__byte_perm(lo, 0, 0x31);
    } else
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int8_t *b = p + 64 * ((r & (pack - 1)) + i);
            b[0] = (int8_t)(hi >> 8 * i);
            b[64 * pack] = (int8_t)(lo >> 8 * i);
        }
}

/* One warp: planes of up to 128 of dim values v, which are values first .. of row `row`. A lane takes 4 neighbours. last: of the row. */
__device__ __forceinline__ void quant_head(const float *v, int dim, int first, bool last, const cu_planes &q, int row, cu_step *step, int op)
{
    int lanes = q.group / 4, at = 4 * (threadIdx.x % 32), e0 = first + at;
    float4 x = at < dim ? *(const float4 *)(v + at) : make_float4(0, 0, 0, 0);
    uint32_t m = max_bits(x, lanes), t[4];
    if (m >= 0x7f800000) report_bad(step, op);
    bool zero = __uint_as_float(m) < CB_TINY;
    float inv = zero ? 0 : CB_XI_MAX / __uint_as_float(m), dx = zero ? 0 : __uint_as_float(m) * CB_XI_INV;
    to_bits(x, inv, t);
    int sum = group_sum((int)(t[0] + t[1] + t[2] + t[3] - 4 * 0x4b400000u), lanes);
    uint32_t lo = __byte_perm(__byte_perm(t[0], t[1], 0x0040), __byte_perm(t[2], t[3], 0x0040), 0x5410);
    uint32_t hi = __byte_perm(__byte_perm(t[0] + 128, t[1] + 128, 0x0051), __byte_perm(t[2] + 128, t[3] + 128, 0x0051), 0x5410);
    if (last) /* what the planes have behind the row's end */
        for (int e = first + dim + at; e < q.stride / 2; e += 128) put_planes(q, row, e, 0, 0);
    if (at >= dim) return;
    put_planes(q, row, e0, hi, lo);
    if ((e0 & (q.group - 1)) == 0) {
        size_t g = (size_t)row * q.n_groups + (e0 >> (31 - __clz(q.group)));
        q.dx[g] = dx;
        if (q.sum) q.sum[g] = sum;
        q.xs[g] = dx * (float)sum;
    }
}

/* Can a row's largest number m hold more than this share of its squares' sum ss, which was added up in another order than the lane tree's? */
__device__ __forceinline__ bool may_tower(float m, float ss, float share)
{
    return m != 0 && !(ss > 0x1p-90f && m * m <= share * (1 - 0x1p-9f) * ss);
}

/* One warp: the same of a head alone, which says no for the row too, and what it found. */
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
    return may_tower(m, ss, share);
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
    if (!may_tower(m, ss, share)) return false;
    float top = (m < CB_TINY ? 0 : m * CB_XI_INV) * CB_XI_MAX;
    return top * top > share * sum_squares(y, n);
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
