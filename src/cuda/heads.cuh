/* heads.cuh: a row whose heads are made by thread blocks of their own becomes planes there too. A warp takes a piece of up to 128 values of
 * a head; groups lie within pieces. Whether the row has a remainder is a question to the whole row: the warp that arrives last answers it.
 *
 * `now`: between two of their launches the instructions of these kernels have left the caches of a multiprocessor, which then waits some 120
 * cycles for each 128 bytes of them. So in steps of one row they run twice: once, while they wait for the launch ahead, on nothing and
 * storing nothing, and then in earnest. */
#ifndef CB_CUDA_HEADS_CUH
#define CB_CUDA_HEADS_CUH
#include "cuda/rowops.cuh"

/* A lane holds four neighbours: values first + 4*lane .. of the row, or zeros behind the piece. */
struct piece {
    float4 x;
    int row, first, dim;
    int number, of;          /* which piece of the row; how many it has */
    __device__ __forceinline__ bool in() const { return 4 * (int)(threadIdx.x % 32) < dim; }
};

/* One warp: the planes of a piece. */
__device__ __forceinline__ void quant_piece(const piece &p, const cu_planes &q, cu_step *step, int op, bool now)
{
    int lanes = q.group / 4, e = p.first + 4 * (threadIdx.x % 32);
    uint32_t m = max_bits(p.x, lanes), t[4];
    if (now && m >= 0x7f800000) report_bad(step, op);
    float dx = to_integers(p.x, m, t);
    int sum = sum_of(t, lanes);
    if (p.in()) {
        put_planes(q, p.row, e, t, now);
        put_scale(q, p.row, e, dx, sum, now);
    }
    if (p.number < p.of - 1 || !now) return;
    uint32_t zeros[4] = {0, 0, 0, 0}; /* what the planes have behind the row's end */
    for (e += p.dim; e < q.stride / 2; e += 128) put_planes(q, p.row, e, zeros);
}

/* One warp: has the row a remainder? found: of its pieces. y [n]: the row. */
__device__ __forceinline__ bool row_towers(const float2 *found, int of, const float *y, int n, float share)
{
    float m = 0, ss = 0;
    for (int i = threadIdx.x % 32; i < of; i += 32) {
        m = fmaxf(m, found[i].x);
        ss = ss + found[i].y;
    }
    m = group_max(m, 32);
    for (int w = 16; w; w /= 2) ss = ss + __shfl_xor_sync(FULL, ss, w);
    float energy = energy_of(__float_as_uint(m));
    int surely = wants(energy, ss, share);
    return surely >= 0 ? surely : energy > share * sum_squares(y, n);
}

/* The warp that arrived last, when a piece says that the row may have a remainder: finds the flag and, seldom, makes the remainder. */
__device__ __noinline__ void finish_row(const cu_heads_out &o, int row, int of, const float *y, int n, cu_step *step)
{
    fence();
    bool more = row_towers((const float2 *)o.found + (size_t)row * CU_MOST_PIECES, of, y, n, o.share);
    if (threadIdx.x % 32 == 0) o.x.flag[row] = more;
    if (more) quant_row(y, n, o.x, row, true, step, o.op, threadIdx.x % 32, 32);
}

/* What a warp knows of its piece: the largest number, and the sum of squares in any order. */
__device__ __forceinline__ float2 find_piece(const piece &p)
{
    float ss = cb_fma(p.x.x, p.x.x, p.x.y * p.x.y) + cb_fma(p.x.z, p.x.z, p.x.w * p.x.w);
    uint32_t m = __reduce_max_sync(FULL, max_bits(p.x, 1));
    for (int w = 16; w; w /= 2) ss = ss + __shfl_xor_sync(FULL, ss, w);
    return make_float2(__uint_as_float(m), ss);
}

/* The same warp: stores the piece of row y [n] and says that it is there. Of a value with remainders the last one answers for the row. */
__device__ __forceinline__ void arrive_piece(const piece &p, float2 found, const cu_heads_out &o, float *y, int n, cu_step *step, bool now)
{
    int lane = threadIdx.x % 32, was = 0;
    if (now && p.in()) *(float4 *)(y + p.first + 4 * lane) = p.x;
    if (!o.x.planes || !o.x.flag) return;
    bool tower = wants(energy_of(__float_as_uint(found.x)), found.y, o.share) != 0; /* may the row have a remainder for all that this piece knows? */
    if (lane == 0) {
        if (now) ((float2 *)o.found)[(size_t)p.row * CU_MOST_PIECES + p.number] = found;
        fence();
        if (now) was = atomicAdd(&o.arrived[p.row], tower ? 0x10001 : 1);
    }
    was = __shfl_sync(FULL, was, 0);
    if (!now || (was & 0xffff) != p.of - 1) return;
    bool maybe = was >> 16 || tower;
    if (lane == 0) {
        o.arrived[p.row] = 0;
        if (!maybe) o.x.flag[p.row] = 0;
    }
    if (maybe) finish_row(o, p.row, p.of, y, n, step);
}
#endif
