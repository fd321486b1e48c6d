/* route.cuh: the experts of a row (docs/arithmetic.md, section 8), chosen by one warp. */
#ifndef CB_CUDA_ROUTE_CUH
#define CB_CUDA_ROUTE_CUH
#include "cuda/common.cuh"
#include "plan/opkind.h"

/* Finite floats as integers in the same order, above 0; -0 equals +0. */
__device__ __forceinline__ unsigned ordered(float v)
{
    unsigned u = __float_as_uint(v);
    if ((u & 0x7fffffff) == 0) u = 0;
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}
__device__ __forceinline__ float from_ordered(unsigned u) { return __uint_as_float(u & 0x80000000u ? u & 0x7fffffff : ~u); }

enum { MOST_CHOSEN = 64 }; /* CB_MAX_TOP_K */

/* A lane holds the logits of the PER experts lane, lane + 32, .. of n. chosen: keys and experts by rank, in shared memory. One warp. A round
 * asks all lanes once, and again only where two have equal logits. */
template <int PER> __device__ __forceinline__ void choose(const float (&u)[PER], int n, int k, uint2 *chosen)
{
    int lane = threadIdx.x % 32;
    unsigned key[PER];
#pragma unroll
    for (int j = 0; j < PER; j++) key[j] = lane + 32 * j < n ? ordered(u[j]) : 0;
#pragma unroll 1
    for (int i = 0; i < k; i++) {
        unsigned mine = 0, at = 0;
#pragma unroll
        for (int j = 0; j < PER; j++) mine = max(mine, key[j]);
#pragma unroll
        for (int j = PER; j--;) at = key[j] == mine ? (unsigned)(lane + 32 * j) : at;
        bool wins = mine == __reduce_max_sync(FULL, mine);
        unsigned equal = __ballot_sync(FULL, wins);
        if (equal & (equal - 1)) wins &= at == __reduce_min_sync(FULL, wins ? at : ~0u);
        if (wins) chosen[i] = make_uint2(mine, at);
        if (!wins) at = ~0u;
#pragma unroll
        for (int j = 0; j < PER; j++) key[j] = (unsigned)(lane + 32 * j) == at ? 0 : key[j];
    }
}

/* live: not before the launches ahead are done, with logits of 0 (row_chains.cu). */
template <int PER> __device__ __forceinline__ void route_in_registers(const cu_route &r, cu_step *step, int row, uint2 *chosen, bool live)
{
    int lane = threadIdx.x % 32, n = r.n, k = r.k;
    const float *z = r.z + (size_t)row * r.z_stride;
    float *y = r.y + (size_t)row * r.y_stride, u[PER], sum = 0, all = 1;
    bool bad = false;
#pragma unroll
    for (int j = 0; j < PER; j++) u[j] = get_float(z + lane + 32 * j, live && lane + 32 * j < n);
#pragma unroll
    for (int j = 0; j < PER; j++) bad |= is_bad(u[j]);
    if (__any_sync(FULL, bad)) {
        report_bad(step, r.op);
#pragma unroll
        for (int j = 0; j < PER; j++) u[j] = 0; /* any k experts */
    }
    __syncwarp(); /* nobody reads an earlier choice any more */
    choose(u, n, k, chosen);
    __syncwarp();
    float m = from_ordered(chosen[0].x);
    __syncwarp(); /* before it is written */
    if (r.kind == CB_ROUTE_SOFTMAX_ALL) {
        float s = 0;
#pragma unroll
        for (int j = 0; j < PER; j++) s = lane + 32 * j < n ? s + cb_expf(u[j] - m) : s;
        all = lane_fold(s);
    }
#pragma unroll 1
    for (int i = lane; i < k; i += 32) {
        float p = cb_expf(from_ordered(chosen[i].x) - m);
        chosen[i].x = __float_as_uint(r.kind == CB_ROUTE_SOFTMAX_ALL ? p / all : p);
    }
    __syncwarp();
#pragma unroll 8
    for (int i = 0; i < k; i++) sum += __uint_as_float(chosen[i].x);
#pragma unroll 1
    for (int i = lane; i < k; i += 32) {
        int id = (int)chosen[i].y; /* stores without jumps: their code is fetched ahead */
        float v = __uint_as_float(chosen[i].x) / sum;
        bool sort = live && r.slots;
        v = r.w ? v * r.w[id] : v;
        put_u32(y + i, (uint32_t)id, live);
        put_u32(y + k + i, __float_as_uint(v), live);
        put_u32(r.slots + i, (uint32_t)i, sort);
        put_u32(r.rows + i, 0, sort);
        put_float4((float4 *)r.tiles + i, make_float4(__int_as_float(id), __int_as_float(i), __int_as_float(1), __int_as_float(k)), sort);
    }
    put_float4((float4 *)r.tiles + k, make_float4(__int_as_float(-1), 0, 0, 0), live && r.slots && lane == 0);
}

/* By one warp; chosen [MOST_CHOSEN]: its shared memory. */
__device__ __forceinline__ void route(const cu_route &r, cu_step *step, int row, uint2 *chosen, bool live)
{
    if (r.n <= 256) route_in_registers<8>(r, step, row, chosen, live);
    else route_in_registers<32>(r, step, row, chosen, live);
}

/* The op CB_ROUTE of one row. */
__device__ __forceinline__ void route_row(const cu_row_op &o, cu_step *step, const float *z, float *y, uint2 *chosen)
{
    cu_route r = {z, o.w, y, NULL, NULL, NULL, 0, 0, o.n[0], o.n[1], o.n[2], o.op};
    route(r, step, 0, chosen, true);
}

/* CB_MOE_SORT of a step of one row: each slot is a tile of its own, in any order. A warp or more. */
__device__ __forceinline__ void sort_one(const cu_sort &s)
{
    for (int i = threadIdx.x; i <= s.k; i += blockDim.x) {
        if (i < s.k) s.slots[i] = i;
        if (i < s.k) s.rows[i] = 0;
        ((int4 *)s.tiles)[i] = i < s.k ? make_int4(s.route[i], i, 1, s.k) : make_int4(-1, 0, 0, 0);
    }
}
#endif
