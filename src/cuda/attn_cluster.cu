/* attn_cluster.cu: attention of single rows in one launch, for heads of exactly 64*PARTS dims and contexts of up to CU_CLUSTER_BLOCKS blocks of keys: the
 * thread blocks that share queries are a cluster, each takes every gridDim.x-th block of keys, from the newest on, and what comes out goes from registers
 * straight into the shared memory of the one that joins that query: m, l and o of each block of keys, of which a barrier there counts the bytes. So there
 * are no partial results in memory. Keys and values of a block are two halves of a ring, as in attn_step.cu, and come in one copy each.
 *
 * Between two launches code leaves the caches of a multiprocessor, and a line of 128 bytes then costs about 100 cycles. So it is short: queries, key and
 * value go through the same instructions, each by a warp of its own, and what does not depend on the row is known before the launch waits. */
#include "cuda/attn_prepare.cuh"
#include "cuda/attn_out.cuh"
using namespace attn;

#if __CUDA_ARCH__ >= 900

/* Shared memory behind shared<PARTS>: what is told<PARTS>; what others send: m, l [block]; how blocks weigh; o [block][dim]; the ring. */
template <int PARTS> struct told {
    uint64_t bars[CU_STEP_SLOTS + 2]; /* of the ring's halves; of m and l, and of o */
    const int32_t *newest;   /* in the row's table: the thread block's newest block of keys */
    uint8_t *to;             /* the block that gets key and value */
    float4 of[3];            /* of queries, key, value: kind_of() */
    float w[3][64 * PARTS];  /* norms' weights */
};
template <int PARTS> struct room_of {
    static constexpr int TOLD = CU_STEP_FIXED(PARTS), ML = TOLD + CU_CLUSTER_TOLD(PARTS), FACTORS = ML + 8 * CU_CLUSTER_BLOCKS, O = FACTORS + 16 * CU_CLUSTER_BLOCKS;
    static_assert(O == CU_ATTN_CLUSTER_FIXED(PARTS) && sizeof(told<PARTS>) <= CU_CLUSTER_TOLD(PARTS) && sizeof(shared<PARTS>) <= CU_STEP_FIXED(PARTS), "room");
};

/* ---- queries, and the row's own key and value ---- */

/* All threads: what does not depend on the row. */
template <int PARTS> __device__ __forceinline__ void tell(const cu_attn_step &a, told<PARTS> &s)
{
    enum { DIM = 64 * PARTS };
#pragma unroll 1
    for (int i = threadIdx.x; i < 3 * DIM; i += blockDim.x) {
        const float *w = norm_of(a, i / DIM);
        s.w[0][i] = w ? w[i & (DIM - 1)] : 1; /* times 1 changes nothing */
    }
    if (threadIdx.x) return;
    s.of[QUERY] = kind_of(a, QUERY);
    s.of[KEY] = kind_of(a, KEY);
    s.of[VALUE] = kind_of(a, VALUE);
}

/* Number i of the thread block: a query, or behind them the key, the value. Where this lane's first value is, and its cosine. */
struct head_of {
    const float *x, *table;  /* table NULL: it is not turned */
    int kind;
};
template <int PARTS> __device__ __forceinline__ head_of find_head(const cu_attn_step &a, int i, int n_q, int r, int head, int q0)
{
    int lane = threadIdx.x % 32, kind = i < n_q ? QUERY : i > n_q ? VALUE : KEY;
    const float *x = kind == QUERY ? a.q + (size_t)r * a.q_stride + (size_t)(q0 + i) * a.q_head
                                   : (kind == KEY ? a.k + (size_t)r * a.k_stride : a.v + (size_t)r * a.v_stride) + head * 64 * PARTS;
    bool turns = kind == QUERY ? a.q_rope : kind == KEY && a.k_rope;
    return {x + lane, turns ? a.turn + (size_t)r * a.turn_stride + lane : NULL, kind};
}

template <int PARTS>
__device__ __forceinline__ void prepare(const cu_attn_step &a, const head_of &at, int i, int t, shared<PARTS> &sm, const told<PARTS> &s, bool now)
{
    head_in<PARTS> h;
#pragma unroll
    for (int j = 0; j < 2 * PARTS; j++) h.v[j] = now ? at.x[32 * j] : 0;
    load_turns(a, at.table, h.cs, h.sn, now);
    h.kind = at.kind;
    h.turns = at.table;
    const float *w = s.w[h.kind] + threadIdx.x % 32;
    prepare_head<PARTS, false>(a, h, s.of[h.kind], [&](int j) { return w[32 * j]; }, i, t, sm, s.to, now);
}

/* ---- blocks of keys ---- */

/* One thread: half h of the n blocks of keys on its way. Half 2u is of the u-th of them, from the newest on, planes of keys, then all scales; half 2u + 1
 * planes of values. */
template <int PARTS> __device__ __forceinline__ void fetch(const cu_attn_step &a, told<PARTS> &s, int h, int n, int slot, uint32_t ring)
{
    enum { BYTES = 2 * CU_BLOCK * 64 * PARTS, SCALES = (PARTS + 1) * CU_BLOCK * 4 };
    if (h >= 2 * n) return;
    int head = a.sets == 1 ? blockIdx.y : blockIdx.y / 2;
    const uint8_t *kv = a.kv.base + ((size_t)s.newest[-(h / 2) * (int)gridDim.x] * a.kv.n_heads + head) * a.kv.head_bytes;
    uint32_t to = ring + slot * CU_STEP_HALF(PARTS), barrier = address(&s.bars[slot]);
    bool values = h & 1;
    barrier_expect(barrier, values ? BYTES : BYTES + SCALES);
    bulk_copy(to, values ? kv + BYTES : kv, BYTES, barrier);
    if (!values) bulk_copy(to + BYTES, kv + 2 * (size_t)BYTES, SCALES, barrier);
}

/* x: rank; y: KV head and which 8 of its queries; z: row. Rank 0 has the newest key; queries are joined by the last ranks, which have least to do. */
template <int PARTS> __device__ __forceinline__ void attn_cluster(const cu_attn_step &a, uint8_t *room)
{
    using R = room_of<PARTS>;
    enum { DIM = 64 * PARTS, WARPS = CU_CLUSTER_WARPS, THREADS = 32 * WARPS, HALF = CU_STEP_HALF(PARTS), WORKERS = shape<PARTS>::WORKERS };
    static_assert(QUERIES + 2 <= (int)WARPS, "a warp for each head");
    shared<PARTS> &sm = *(shared<PARTS> *)room;
    pdl_trigger();
    int r = a.row0 + blockIdx.z, head = a.sets == 1 ? blockIdx.y : blockIdx.y / 2, set = a.sets == 1 ? 0 : blockIdx.y % 2, d = threadIdx.x, warp = d / 32, lane = d % 32;
    int q0 = head * a.per + set * QUERIES, n_q = a.per - set * QUERIES < QUERIES ? a.per - set * QUERIES : QUERIES;
    int pos = a.pos[r], window = a.kv.window, first = window && pos - window + 1 > 0 ? pos - window + 1 : 0, slots = a.slots;
    int b0 = first / CU_BLOCK, last = pos / CU_BLOCK, t = pos % CU_BLOCK, all = last - b0 + 1, ranks = gridDim.x, rank = cluster_rank(), n = 0, q = ranks - 1 - rank;
    for (int b = rank; b < all; b += ranks) n++;
    bool joins = q < n_q, puts = a.k && rank == 0;
    told<PARTS> &s = *(told<PARTS> *)(room + R::TOLD);
    uint32_t at = address(room), bar_ml = address(&s.bars[CU_STEP_SLOTS]), bar_o = bar_ml + 8, ring = at + R::O + a.n_splits * DIM * 4;
    if (d == 0) {
#pragma unroll 1
        for (int i = 0; i < CU_STEP_SLOTS + 2; i++) barrier_init(address(&s.bars[i]), 1);
        if (joins) {
            barrier_expect(bar_ml, all * 8);
            barrier_expect(bar_o, all * DIM * 4);
        }
        fence_copies();
        s.newest = a.step->tables[a.kv.group] + (size_t)a.slot[r] * a.step->table_stride + last - rank;
        if (puts) s.to = a.kv.base + ((size_t)*s.newest * a.kv.n_heads + head) * a.kv.head_bytes;
    }
    if (!a.k) pdl_wait(); /* the newest block of a shared state was written just now */
    if (d == 0)
#pragma unroll 1
        for (int i = 0; i < slots; i++) fetch<PARTS>(a, s, i, n, i, ring);
    tell<PARTS>(a, s);
    bool prepares = n && warp < n_q + (puts ? 2 : 0);
    cluster_begin();
    if (!n && !joins) return;
    __syncthreads(); /* the thread block's other memory */
#pragma unroll 1
    for (bool now = PARTS > 4 || !rehearses(gridDim.z) || !a.k;; now = true) { /* heads.cuh; the largest heads' memory is there too late for it */
        head_of mine = find_head<PARTS>(a, warp, n_q, r, head, q0);
        const float *gate_at = a.gate && joins && d < DIM ? a.gate + (size_t)r * a.gate_stride + (size_t)(q0 + q) * a.gate_head + d : NULL;
        if (now && a.k) pdl_wait();
        float gate = now && gate_at ? *gate_at : 0;
        if (prepares) prepare<PARTS>(a, mine, warp, t, sm, s, now);
#pragma unroll 1
        for (int u = 0, slot = 0, parity = 0; u < (now ? n : n > 0); u++) {
            int block = all - 1 - rank - u * ranks, own = puts && u == 0 ? t : -1, before = (b0 + block) * CU_BLOCK, value_slot = slot + 1, value_parity = parity;
            if (value_slot == slots) value_slot = 0, value_parity ^= 1;
            const uint8_t *half = room + (ring - at) + slot * HALF;
            uint8_t *values_half = room + (ring - at) + value_slot * HALF;
            barrier_wait(address(&s.bars[slot]), parity); /* ahead, too: nothing is read or written while copies are on their way there */
            __syncthreads();
            if (u && d == 0) { /* in the place of the values before */
                fence_copies();
                fetch<PARTS>(a, s, 2 * u - 1 + slots, n, (slot ? slot : slots) - 1, ring);
            }
            if (warp < WORKERS) scores<PARTS>(warp, half, own, DIM, sm);
            __syncthreads();
            barrier_wait(address(&s.bars[value_slot]), value_parity);
#pragma unroll 1
            for (int i = d; i < 2 * DIM && own >= 0; i += THREADS) values_half[i * CU_BLOCK + t] = (uint8_t)(i < DIM ? sm.v[0][i] : sm.v[1][i - DIM]);
            if (warp < n_q) {
                float2 found = weights<PARTS>((const float *)(half + 2 * CU_BLOCK * DIM), own, first - before, pos + 1 - before, warp, DIM, sm);
                int to = ranks - 1 - warp;
                if (lane == 0 && now) send8(of_rank(at + R::ML + 8 * block, to), __float_as_uint(found.x), __float_as_uint(found.y), of_rank(bar_ml, to));
            }
            __syncthreads();
            if (now && d == 0) {
                fence_copies();
                fetch<PARTS>(a, s, 2 * u + slots, n, slot, ring);
            }
            if (warp < WORKERS) {
                int i = lane / 4, to = ranks - 1 - (i < n_q ? i : 0);
                uint32_t there = of_rank(at + R::O + block * DIM * 4, to), bell = of_rank(bar_o, to);
                values<PARTS>(warp, values_half, DIM, sm, [&](int, int e, float2 o) {
                    if (i < n_q && now) send8(there + 4 * e, __float_as_uint(o.x), __float_as_uint(o.y), bell);
                });
            }
            slot = value_slot + 1, parity = value_parity;
            if (slot == slots) slot = 0, parity ^= 1;
        }
        if (joins) {
            float *row = &sm.d[0][0][0], L = -0.0f, O = -0.0f; /* nobody reads sums any more */
            const float4 *factor = (const float4 *)(room + R::FACTORS);
            const float *o = (const float *)(room + R::O) + (d & (DIM - 1));
            if (warp == WARPS - 1) {
                if (now) barrier_wait_cluster(bar_ml, 0);
                weigh_blocks(lane < all ? ((const float2 *)(room + R::ML))[lane] : make_float2(-INFINITY, 0), (float4 *)(room + R::FACTORS));
            }
            __syncthreads();
            if (now) barrier_wait_cluster(bar_o, 0);
#pragma unroll 4
            for (int i = 0; i < (now ? all : min(all, 4)); i++) {
                float4 f = factor[i];
                L = cb_fma(L, f.x, f.z);
                O = cb_fma(O, f.x, o[i * DIM] * f.y);
            }
            float y = rotate_back(O / L, a.o_block, a.o_scale, row);
            if (a.gate) y = cb_sigmoidf(gate) * y;
            give_head(a, y, DIM, r, q0 + q, row + THREADS, now);
        }
        if (now) break;
    }
}
#else
template <int PARTS> __device__ __forceinline__ void attn_cluster(const cu_attn_step &, uint8_t *) {}
#endif

#define CLUSTER(PARTS, DIM, BLOCKS)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(32 * CU_CLUSTER_WARPS, BLOCKS) k_attn_cluster##DIM(const __grid_constant__ cu_attn_step a) \
    {                                                                                                                                \
        extern __shared__ __align__(128) uint8_t room[];                                                                             \
        attn_cluster<PARTS>(a, room);                                                                                                \
    }
CLUSTER(1, 64, 2)
CLUSTER(2, 128, 2)
CLUSTER(4, 256, 2)
CLUSTER(8, 512, 1)
