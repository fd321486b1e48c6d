/* attn_step.cu: what stands between the products of an attention layer, rows of different sessions, up to the results of its blocks of
 * keys (attn_join.cu joins them). A thread block takes up to 8 queries of one KV head of one row and every gridDim.x-th block of keys;
 * it norms, turns, rotates and quantises the queries itself, and the block that holds the newest key puts that into the cache on the
 * way. Keys and values come through a ring in shared memory, keys and values of a block as two halves; the first are on their way
 * before the block waits for the products in front, which do not touch them. attention.cu has the same steps for tiles of many rows. */
#include "cuda/attn_heads.cuh"
using namespace attn;

/* ---- the ring ---- */

/* All threads: bytes, a multiple of 16. */
template <int PARTS> __device__ __forceinline__ void copy_bytes(uint32_t to, const uint8_t *from, int bytes)
{
#pragma unroll 4
    for (int i = 16 * threadIdx.x; i < bytes; i += 16 * shape<PARTS>::THREADS) copy16(to + i, from + i);
}

__device__ __forceinline__ void wait_but(int groups)
{
    switch (groups) {
    case 0: copies_wait<0>(); break;
    case 1: copies_wait<1>(); break;
    case 2: copies_wait<2>(); break;
    case 3: copies_wait<3>(); break;
    case 4: copies_wait<4>(); break;
    default: copies_wait<5>(); break;
    }
}

/* The thread block's blocks of keys: u-th is block0 + u*step. Half 2u of the ring's: planes of keys [64][dim], then all scales; half 2u + 1:
 * planes of values [dim][64]. */
template <int PARTS> struct ring {
    const int32_t *table;
    const uint8_t *base;
    int64_t head_bytes;
    int n_heads, head, dim, block0, step, n, slots;
    int next, slot;          /* half to copy next, and where to */

    /* One more half under way, or an empty group when there are no more. */
    __device__ __forceinline__ void copy(uint32_t at)
    {
        int u = next / 2, bytes = 2 * CU_BLOCK * dim;
        if (u < n) {
            const uint8_t *kv = base + ((size_t)table[block0 + u * step] * n_heads + head) * head_bytes;
            uint32_t to = at + slot * shape<PARTS>::HALF;
            bool v = next % 2;
            copy_bytes<PARTS>(to, v ? kv + bytes : kv, bytes);
            if (!v) copy_bytes<PARTS>(to + bytes, kv + 2 * (size_t)bytes, ((dim + 63) / 64 + 1) * CU_BLOCK * 4);
        }
        copies_end();
        next++;
        slot = slot + 1 < slots ? slot + 1 : 0;
    }
};

/* ---- all of it ---- */

/* Queries, and the row's own key and value when `to`, where they go to, is not NULL. */
template <int PARTS>
__device__ __forceinline__ void prepare_all(const cu_attn_step &a, int r, int head, int q0, int n_q, uint8_t *to, int t, shared<PARTS> &sm, bool now)
{
    enum { SPLIT = shape<PARTS>::SPLIT };
    const float *table = a.turn + (size_t)r * a.turn_stride;
    for (int i = threadIdx.x / 32, n = n_q * SPLIT; i < n + (to ? SPLIT + 1 : 0); i += shape<PARTS>::WARPS) {
        if (i < n) prepare_q<PARTS>(a, a.q + (size_t)r * a.q_stride + (size_t)(q0 + i / SPLIT) * a.q_head, i / SPLIT, i % SPLIT, table, sm, now);
        else if (i < n + SPLIT) put_k<PARTS>(a, a.k + (size_t)r * a.k_stride + head * a.kv.dim, i - n, to, t, table, sm, now);
        else put_v<PARTS>(a, a.v + (size_t)r * a.v_stride + head * a.kv.dim, to, t, sm, now);
    }
}

/* x: which blocks of keys; y: KV head and which 8 of its queries; z: row. */
template <int PARTS> __device__ __forceinline__ void attn_step(const cu_attn_step &a, uint8_t *room)
{
    shared<PARTS> &sm = *(shared<PARTS> *)room;
    static_assert(sizeof(shared<PARTS>) <= CU_STEP_FIXED(PARTS), "shared memory");
    pdl_trigger();
    int r = a.row0 + blockIdx.z, dim = a.kv.dim, head = a.sets == 1 ? blockIdx.y : blockIdx.y / 2, set = a.sets == 1 ? 0 : blockIdx.y % 2;
    int q0 = head * a.per + set * QUERIES, n_q = a.per - set * QUERIES < QUERIES ? a.per - set * QUERIES : QUERIES, warp = threadIdx.x / 32;
    int pos = a.pos[r], window = a.kv.window, first = window && pos - window + 1 > 0 ? pos - window + 1 : 0;
    int b0 = first / CU_BLOCK, last = pos / CU_BLOCK, t = pos % CU_BLOCK, step = gridDim.x, slots = a.slots;
    int left = last - b0 - (int)blockIdx.x, n = left < 0 ? 0 : left < step ? 1 : left / step + 1; /* mostly without a division */
    bool puts = a.k && n && left == (n - 1) * step;
    ring<PARTS> in = {a.step->tables[a.kv.group] + (size_t)a.slot[r] * a.step->table_stride, a.kv.base, a.kv.head_bytes, a.kv.n_heads, head, dim,
                      b0 + (int)blockIdx.x, step, n, slots, 0, 0};
    uint32_t ring_at = address(room + CU_STEP_FIXED(PARTS));
    if (!a.k) pdl_wait(); /* the newest block of a shared state was written just now */
#pragma unroll 1
    for (int i = 0; i < slots; i++) in.copy(ring_at);
    uint8_t *to = puts ? a.kv.base + ((size_t)in.table[last] * a.kv.n_heads + head) * a.kv.head_bytes : NULL;
    size_t heads = (size_t)blockIdx.z * a.n_heads + q0, all = (size_t)a.n_rows * a.n_heads * a.n_splits;
    float2 *ml = (float2 *)(a.part + all * dim);
#pragma unroll 1
    for (bool now = PARTS > 1 || !rehearses(gridDim.z) || !a.k || !n;; now = true) { /* heads.cuh; larger heads start too late for it */
        if (now && a.k) pdl_wait();
        if (!n) return;
        prepare_all<PARTS>(a, r, head, q0, n_q, to, t, sm, now);
        for (int u = 0, key_slot = 0; u < (now ? n : 1); u++) {
            int split = blockIdx.x + u * step, own = puts && u == n - 1 ? t : -1, value_slot = key_slot + 1 < slots ? key_slot + 1 : 0;
            const uint8_t *keys = room + CU_STEP_FIXED(PARTS) + key_slot * shape<PARTS>::HALF;
            const uint8_t *vals = room + CU_STEP_FIXED(PARTS) + value_slot * shape<PARTS>::HALF;
            const float *scales = (const float *)(keys + 2 * CU_BLOCK * dim);
            wait_but(u ? slots - 2 : slots - 1);
            __syncthreads();
            if (u) in.copy(ring_at);
            if (warp < shape<PARTS>::WORKERS) scores<PARTS>(warp, keys, own, dim, sm);
            if (own >= 0) wait_but(slots - 2);
            __syncthreads();
            for (int i = threadIdx.x; i < 2 * dim && own >= 0; i += shape<PARTS>::THREADS)
                ((uint8_t *)vals)[i * CU_BLOCK + t] = (uint8_t)(i < dim ? sm.v[0][i] : sm.v[1][i - dim]);
            if (warp < n_q) {
                float2 found = weights<PARTS>(scales, own, first - (b0 + split) * CU_BLOCK, pos + 1 - (b0 + split) * CU_BLOCK, warp, dim, sm);
                if (threadIdx.x % 32 == 0 && now) ml[(heads + warp) * a.n_splits + split] = found;
            }
            wait_but(slots - 2);
            __syncthreads();
            if (now) in.copy(ring_at);
            if (warp < shape<PARTS>::WORKERS)
                values<PARTS>(warp, vals, dim, sm, [&](int q, int d, float2 o) {
                    if (q < n_q && now) *(float2 *)(a.part + ((heads + q) * a.n_splits + split) * dim + d) = o;
                });
            key_slot = value_slot + 1 < slots ? value_slot + 1 : 0;
        }
        if (now) break;
    }
}

#define STEP(PARTS, DIM, BLOCKS)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(32 * CU_STEP_WARPS(PARTS), BLOCKS) k_attn_step##DIM(const __grid_constant__ cu_attn_step a) \
    {                                                                                                                            \
        extern __shared__ __align__(16) uint8_t room[];                                                                          \
        attn_step<PARTS>(a, room);                                                                                               \
    }
STEP(1, 64, 3)
STEP(2, 128, 2)
STEP(4, 256, 1)
STEP(8, 512, 1)
