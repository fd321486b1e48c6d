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

/* One warp: the planes of a piece. One straight path for 4-bit weights' activations. */
__device__ __forceinline__ void quant_piece(const piece &p, const cu_planes &q, cu_step *step, int op, bool now)
{
    int lanes = q.group / 4, e = p.first + 4 * (threadIdx.x % 32);
    uint32_t m = max_bits(p.x, 1), t[4];
#pragma unroll
    for (int w = 16; w; w /= 2) {
        uint32_t other = __shfl_xor_sync(FULL, m, w);
        m = w < lanes ? max(m, other) : m;
    }
    if (now && m >= 0x7f800000) report_bad(step, op);
    float dx = to_integers(p.x, m, t);
    int sum = sum_of(t, 1);
    bool put = now && p.in(), begins = put && !(e & (q.group - 1));
    if (q.pack == 2) {
        uint32_t lo = __byte_perm(__byte_perm(t[0], t[1], 0x0040), __byte_perm(t[2], t[3], 0x0040), 0x5140); /* bytes 0 2 1 3 */
        uint32_t hi = __byte_perm(__byte_perm(t[0] + 128, t[1] + 128, 0x0051), __byte_perm(t[2] + 128, t[3] + 128, 0x0051), 0x5140);
        int r = e & 127;
        int8_t *to = q.planes + (size_t)p.row * q.stride + 2 * (e - r) + r / 2;
        put_u16(to, hi, put);
        put_u16(to + 64, hi >> 16, put);
        put_u16(to + 128, lo, put);
        put_u16(to + 192, lo >> 16, put);
    } else put_planes(q, p.row, e, t, put);
#pragma unroll
    for (int w = 16; w; w /= 2) {
        int other = __shfl_xor_sync(FULL, sum, w);
        sum = w < lanes ? sum + other : sum;
    }
    size_t g = (size_t)p.row * q.n_groups + (e >> (31 - __clz(q.group)));
    put_u32(q.dx + g, __float_as_uint(dx), begins);
    put_u32(q.xs + g, __float_as_uint(dx * (float)sum), begins);
    put_u32(q.sum + g, (uint32_t)sum, begins && q.sum);
    if (p.number < p.of - 1 || !now) return;
    uint32_t zeros[4] = {0, 0, 0, 0}; /* what the planes have behind the row's end */
    for (e += p.dim; e < q.stride / 2; e += 128) put_planes(q, p.row, e, zeros);
}

/* What a warp knows of its piece: the largest number, and the sum of squares in any order. */
__device__ __forceinline__ float2 find_piece(const piece &p)
{
    float ss = cb_fma(p.x.x, p.x.x, p.x.y * p.x.y) + cb_fma(p.x.z, p.x.z, p.x.w * p.x.w);
    uint32_t m = __reduce_max_sync(FULL, max_bits(p.x, 1));
    for (int w = 16; w; w /= 2) ss = ss + __shfl_xor_sync(FULL, ss, w);
    return make_float2(__uint_as_float(m), ss);
}

/* The same warp: stores the piece of row y [n] and what is known of it. */
__device__ __forceinline__ void give_piece(const piece &p, float2 found, const cu_heads_out &o, float *y, bool now)
{
    int lane = threadIdx.x % 32;
    put_float4((float4 *)(y + p.first + 4 * lane), p.x, now && p.in());
    put_float2((float2 *)o.found + (size_t)p.row * CU_MOST_PIECES + p.number, found, now && o.x.planes && o.x.flag && lane == 0);
}

/* What the sum of squares in the lane tree's order says, when another order leaves it open; and the remainder. Both are seldom needed. */
__device__ __noinline__ bool is_tower(float energy, float share, const float *y, int n)
{
    fence();
    return energy > share * sum_squares(y, n);
}
__device__ __noinline__ void make_remainder(const cu_heads_out &o, int row, const float *y, int n, cu_step *step)
{
    fence();
    quant_row(y, n, o.x, row, true, step, o.op, threadIdx.x % 32, 32);
}

/* The same warp, later: says that the piece is there. Of a value with remainders the last one answers for the row. */
__device__ __forceinline__ void arrive_piece(const piece &p, float2 found, const cu_heads_out &o, const float *y, int n, cu_step *step, bool now)
{
    if (!o.x.planes || !o.x.flag) return;
    int lane = threadIdx.x % 32, was;
    bool tower = wants(energy_of(__float_as_uint(found.x)), found.y, o.share) != 0; /* may the row have a remainder for all that this piece knows? */
    __syncwarp();
    was = add_in_order(&o.arrived[p.row], tower ? 0x10001 : 1, now && lane == 0);
    was = __shfl_sync(FULL, now ? was : p.of - 1, 0);
    if ((was & 0xffff) != p.of - 1) return;
    bool more = false;
    if (was >> 16 || tower || !now) {
        const float2 *all = (const float2 *)o.found + (size_t)p.row * CU_MOST_PIECES;
        float2 f = now && lane < p.of ? __ldcg(all + lane) : make_float2(0, 0);
        float m = f.x, ss = f.y;
        for (int i = 32 + lane; now && i < p.of; i += 32) {
            f = __ldcg(all + i);
            m = fmaxf(m, f.x);
            ss = ss + f.y;
        }
        for (int w = 16; w; w /= 2) ss = ss + __shfl_xor_sync(FULL, ss, w);
        float energy = energy_of(__reduce_max_sync(FULL, __float_as_uint(m)));
        int surely = wants(energy, ss, o.share);
        more = surely >= 0 ? surely : now ? is_tower(energy, o.share, y, n) : false;
    }
    put_u32(&o.arrived[p.row], 0, now && lane == 0);
    put_u32(&o.x.flag[p.row], more, now && lane == 0);
    if (now && more) make_remainder(o, p.row, y, n, step);
}
#endif
