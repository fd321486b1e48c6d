/* attn_join.cu: joins the results that k_attn_step left for each block of keys, in ascending order, rotates back, gates, and makes planes. A
 * thread block takes one query head of one row, a thread one dim. Of deep contexts a head's results are more than one multiprocessor copies in good
 * time: there a cluster of thread blocks shares the head's dims, and one of them does what comes after joining. */
#include "cuda/attn_out.cuh"

enum { MAX_DIM = 512, STAGES = CU_JOIN_STAGES, AT_ONCE = 16 };

/* How the results of blockDim.x blocks of keys weigh: thread d has m, l of block d in x. M: the maximum of all before, and then with these. */
__device__ __forceinline__ float4 weigh(float2 x, float &M, float *tops)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float top = x.x;
#pragma unroll
    for (int w = 1; w < 32; w *= 2) {
        float y = __shfl_up_sync(FULL, top, w);
        if (lane >= w) top = fmaxf(top, y);
    }
    float before = __shfl_up_sync(FULL, top, 1);
    if (lane == 31) tops[warp] = top;
    __syncthreads();
    float all = M;
    for (int w = 0; w < (int)blockDim.x / 32; w++) {
        if (w == warp) M = all;
        all = fmaxf(all, tops[w]);
    }
    before = lane ? fmaxf(M, before) : M;
    top = fmaxf(M, top);
    M = all;
    float c = cb_expf(x.x - top);
    return make_float4(cb_expf(before - top), c, x.y * c, 0);
}

/* What joining needs to know of a row's head. */
struct place {
    const float *o;          /* results of blocks of keys, [n][dim] */
    const float2 *ml;
    int row, head, n;
};

/* Where they are; row: from row0 on. */
__device__ __forceinline__ place find_place(const cu_attn_step &a, int row, int head)
{
    int r = a.row0 + row, dim = a.kv.dim, window = a.kv.window, pos = a.pos[r], b0 = window && pos - window + 1 > 0 ? (pos - window + 1) / CU_BLOCK : 0;
    size_t at = ((size_t)row * a.n_heads + head) * a.n_splits, all = (size_t)a.n_rows * a.n_heads * a.n_splits;
    return {a.part + at * dim, (const float2 *)(a.part + all * dim) + at, r, head, pos / CU_BLOCK + 1 - b0};
}

/* One dim of the head, joined and divided: thread d has the d-th from p.o on, of dim / RANKS, which all threads copy and weigh. From -0, because that
 * plus x is x for every x. Not now: the same steps without results. */
template <int RANKS> __device__ __forceinline__ float join(const cu_attn_step &a, const place &p, float *stages, float4 *factor, float *tops, bool now)
{
    int d = threadIdx.x, T = blockDim.x, dim = a.kv.dim, width = dim / RANKS, per = a.stage, size = per * width, few = per < 2 * AT_ONCE ? per : 2 * AT_ONCE;
    int n = now || p.n < few ? p.n : few, copied = 0, all = now ? n * width : 0; /* floats */
    int first = 4 * d + (4 * d >> (__ffs(width) - 1)) * (dim - width); /* of several ranks width is a power of two, and 4 * T floats are 4 * RANKS blocks of keys */
    auto copy = [&](int stage) {
        uint32_t to = address(stages + stage * size + 4 * d);
        const float *from = p.o + RANKS * copied + first;
        int left = (copied + size < all ? size : all - copied) - 4 * d;
#pragma unroll 2
        for (int i = 0; i < left; i += 4 * T) copy16(to + 4 * i, from + RANKS * i);
        copies_end();
        copied += size;
    };
    float2 none = make_float2(-INFINITY, 0), x = now && d < n ? p.ml[d] : none;
#pragma unroll 1
    for (int s = 0; s < STAGES - 1; s++) copy(s);
    float M = -INFINITY, L = -0.0f, O = -0.0f;
    int round = T / per * per, weighed = 0;
#pragma unroll 1
    for (int b = 0, s = 0; b < n; b += per, s = (s + 1) % STAGES) {
        if (b == weighed) { /* the next ones, as many as there are threads */
            if (b) __syncthreads();
            factor[d] = weigh(d < round ? x : none, M, tops);
            weighed += round;
            x = now && weighed + d < n ? p.ml[weighed + d] : none;
        }
        copies_wait<STAGES - 2>();
        __syncthreads();
        copy((s + STAGES - 1) % STAGES);
        const float *v = stages + s * size + (d < width ? d : 0);
        const float4 *f = factor + (b - (weighed - round));
        int end = RANKS > 1 && d >= width ? 0 : n - b < per ? n - b : per; /* whole warps have no dim */
        int i = 0;
#pragma unroll 1
        for (; i + AT_ONCE <= end; i += AT_ONCE) { /* all loads are under way together */
            float4 w[AT_ONCE];
            float x[AT_ONCE];
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) w[j] = f[i + j], x[j] = v[(i + j) * width];
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                L = cb_fma(L, w[j].x, w[j].z);
                O = cb_fma(O, w[j].x, x[j] * w[j].y);
            }
        }
#pragma unroll 1
        for (; i < end; i++) {
            L = cb_fma(L, f[i].x, f[i].z);
            O = cb_fma(O, f[i].x, v[i * width] * f[i].y);
        }
    }
    return O / L;
}

__device__ __forceinline__ float gate_of(const cu_attn_step &a, const place &p, bool now)
{
    int d = threadIdx.x;
    return now && a.gate && d < a.kv.dim ? a.gate[(size_t)p.row * a.gate_stride + (size_t)p.head * a.gate_head + d] : 0;
}

__device__ __forceinline__ void finish(const cu_attn_step &a, const place &p, float y, float gate, float *row, bool now)
{
    y = rotate_back(y, a.o_block, a.o_scale, row);
    if (a.gate) y = cb_sigmoidf(gate) * y;
    __syncthreads();
    give_head(a, y, a.kv.dim, p.row, p.head, row, now);
}

/* x: query head; y: row. */
extern "C" __global__ void __launch_bounds__(MAX_DIM) k_attn_join(const __grid_constant__ cu_attn_step a)
{
    extern __shared__ __align__(16) float stages[];
    __shared__ float4 factor[MAX_DIM];
    __shared__ __align__(16) float row[MAX_DIM];
    __shared__ float tops[MAX_DIM / 32];
    pdl_trigger();
    place p = find_place(a, blockIdx.y, blockIdx.x);
#pragma unroll 1
    for (bool now = !rehearses(gridDim.y);; now = true) {
        if (now) pdl_wait();
        float gate = gate_of(a, p, now);
        finish(a, p, join<1>(a, p, stages, factor, tops, now), gate, row, now);
        if (now) break;
    }
}

#if __CUDA_ARCH__ >= 900

/* x: rank; y: query head; z: row. Each joins its share of the dims and gives it to rank 0. There are as many threads as dims: 128, 256 or 512. */
__device__ __forceinline__ void join_cluster(const cu_attn_step &a, uint8_t *room)
{
    int d = threadIdx.x, dim = a.kv.dim, width = dim / CU_JOIN_RANKS, rank = cluster_rank();
    float4 *factor = (float4 *)room;
    float *row = (float *)(factor + dim), *tops = row + dim, *stages = (float *)(room + CU_JOIN_FIXED(dim));
    pdl_trigger();
    place p = find_place(a, blockIdx.z, blockIdx.y);
    p.o += rank * width;
#pragma unroll 1
    for (bool now = !rehearses(gridDim.z);; now = true) {
        if (now) {
            cluster_meet(); /* rank 0 is there, and does not read its row any more */
            pdl_wait();
        }
        float gate = gate_of(a, p, now && rank == 0), y = join<CU_JOIN_RANKS>(a, p, stages, factor, tops, now);
        put_cluster_float(of_rank(address(row + rank * width + d), 0), y, now && d < width);
        if (now) cluster_meet();
        if (rank == 0) finish(a, p, row[d], gate, row, now);
        if (now) break;
    }
}
#else
__device__ __forceinline__ void join_cluster(const cu_attn_step &, uint8_t *) {}
#endif

extern "C" __global__ void __launch_bounds__(MAX_DIM) k_attn_join_cluster(const __grid_constant__ cu_attn_step a)
{
    extern __shared__ __align__(128) uint8_t room[];
    join_cluster(a, room);
}
