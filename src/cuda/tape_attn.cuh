/* tape_attn.cuh: attention as a phase of tape.cu, of heads of exactly 64*PARTS dims and up to CU_CLUSTER_BLOCKS blocks of keys (attn_cluster.cu does the
 * same in a launch of its own). KV heads times blocks of keys are shared out; of each the block that has it tells m, l and o of the queries, and another
 * block joins a query head and tells its values, which are the next phase's row. Keys and values come through the ring of tiles, as two of them. */
#ifndef CB_CUDA_TAPE_ATTN_CUH
#define CB_CUDA_TAPE_ATTN_CUH
#include "cuda/attn_out.cuh"
#include "cuda/attn_prepare.cuh"
#include "cuda/tape_ring.cuh"

/* What a row sees of its blocks of keys, and who does what. */
struct seen {
    int first;           /* token */
    int b0, all, items;  /* first block of keys; how many; KV heads times those */
    __device__ __forceinline__ seen(const cu_kv &kv, int pos)
    {
        first = kv.window && pos - kv.window + 1 > 0 ? pos - kv.window + 1 : 0;
        b0 = first / CU_BLOCK;
        all = pos / CU_BLOCK - b0 + 1;
        items = kv.n_heads * all;
    }
};

/* ---- the warp that brings tiles ---- */

/* Block of keys number b0 + i of the session. It is three addresses away, but all layers have the same table: the last answer is kept. */
struct key_blocks {
    const cu_step *step;
    int slot, group, number, answer;
    __device__ __forceinline__ key_blocks(const cu_step *step, int slot) : step(step), slot(slot), group(-1), number(-1), answer(0) {}
    __device__ __forceinline__ int find(int of_group, int i)
    {
        if (of_group != group || i != number) answer = step->tables[of_group][(size_t)slot * step->table_stride + i];
        group = of_group, number = i;
        return answer;
    }
};

/* parts: of a head. */
__device__ __forceinline__ void bring_keys(const cu_tape_phase &p, int parts, ring &r, key_blocks &blocks, int pos, unsigned char *place_of)
{
    int bytes = 2 * CU_BLOCK * 64 * parts, scales = (parts + 1) * CU_BLOCK * 4; /* CU_STEP_HALF() */
    const cu_kv &kv = p.u.a.a.kv;
    seen see(kv, pos);
#pragma unroll 1
    for (int i = blockIdx.x; i < see.items; i += gridDim.x) {
        int head = i / see.all, block = blocks.find(kv.group, see.b0 + i % see.all);
        const uint8_t *from = kv.base + ((size_t)block * kv.n_heads + head) * kv.head_bytes;
#pragma unroll 1
        for (int values = 0; values < 2; values++) {
            int one;
            uint32_t to = r.take(values ? bytes : (bytes + scales + CU_TAPE_ALIGNED - 1) / CU_TAPE_ALIGNED * CU_TAPE_ALIGNED, 1, one), bar = full(r.sm, r.slot);
            __syncwarp();
            if (threadIdx.x % 32) continue;
            if (!values) *(const uint8_t **)(place_of + 8 * r.slot) = from;
            barrier_expect(bar, values ? bytes : bytes + scales);
            bulk_copy(to, from + values * bytes, bytes, bar);
            if (!values) bulk_copy(to + bytes, from + 2 * bytes, scales, bar);
        }
    }
}

/* ---- the warps that compute ---- */

/* N words that are 32 apart, all under way together. */
template <int N> __device__ __forceinline__ void hear_lanes(const float *p, float (&v)[N])
{
    for (;;) {
        bool missing = false;
        each<N>([&](int j) { v[j] = told_word(p + 32 * j); });
        each<N>([&](int j) { missing |= untold(v[j]); });
        if (!missing) break;
        not_yet();
    }
    __syncwarp();
}

/* Number `warp` of an item: a query, or behind them the key, the value. All loads are under way together. NEAR: what is turned are 32 pairs 32 dims apart. */
template <int PARTS, bool NEAR, class S> __device__ __forceinline__ void prepare(const worker &me, const cu_tape_phase &p, int head, int t, S &sm)
{
    enum { N = 2 * PARTS };
    const cu_attn_step &a = p.u.a.a;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    forget(warp);
    forget(lane);
    attn::head_in<PARTS> h;
    float w[N];
    h.kind = warp < a.per ? attn::QUERY : warp > a.per ? attn::VALUE : attn::KEY;
    int from = h.kind == attn::QUERY ? p.u.a.q + (head * a.per + warp) * a.q_head : (h.kind == attn::KEY ? p.u.a.k : p.u.a.v) + head * 64 * PARTS;
    h.turns = h.kind == attn::QUERY ? a.q_rope : h.kind == attn::KEY && a.k_rope;
    if (NEAR) {
        h.cs[0] = h.turns ? a.turn[lane] : 0;
        h.sn[0] = h.turns ? a.turn[32 + lane] : 0;
    } else attn::load_turns(a, h.turns ? a.turn + lane : NULL, h.cs, h.sn, true);
    const float *weight = attn::norm_of(a, h.kind);
    each<N>([&](int j) { w[j] = weight ? weight[lane + 32 * j] : 1; }); /* times 1 changes nothing */
    hear_lanes(me.told + from + lane, h.v);
    uint8_t *cached = NULL;
    if (h.kind != attn::QUERY) {
        barrier_wait(full(me.sm, me.next % CU_TAPE_SLOTS), me.next / CU_TAPE_SLOTS & 1);
        cached = *(uint8_t **)((unsigned char *)me.shared + CU_TAPE_FROM + 8 * (me.next % CU_TAPE_SLOTS));
    }
    attn::prepare_head<PARTS, NEAR>(a, h, attn::kind_of(a, h.kind), [&](int j) { return w[j]; }, warp, t, sm, cached, true);
}

/* The tile after those before, in this block's memory, when it is there. */
__device__ __forceinline__ uint8_t *next_tile(const worker &me)
{
    uint32_t slot = me.next % CU_TAPE_SLOTS;
    barrier_wait(full(me.sm, slot), me.next / CU_TAPE_SLOTS & 1);
    return (uint8_t *)me.shared + (lds_u32(tile_at(me.sm, slot)) - me.sm);
}
__device__ __forceinline__ void free_tile(worker &me)
{
    if (threadIdx.x == 0) barrier_arrive(empty(me.sm, me.next % CU_TAPE_SLOTS), CU_SEGMENTS);
    me.next++;
}

/* A KV head's block of keys, number `block` of those that are seen. Keys are done with before values are waited for: the ring may have no room for both. */
template <int PARTS, bool NEAR>
__device__ __forceinline__ void attend(worker &me, const cu_tape_phase &p, const seen &see, int head, int block, attn::shared<PARTS> &sm)
{
    const cu_attn_step &a = p.u.a.a;
    const int DIM = NEAR ? 64 * PARTS : a.kv.dim;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, t = me.pos() % CU_BLOCK, before = (see.b0 + block) * CU_BLOCK, q0 = head * a.per;
    forget(warp);
    forget(lane);
    bool newest = block == see.all - 1;
    int own = newest ? t : -1;
    if (warp < a.per + (newest ? 2 : 0)) {
        if (!NEAR && 128 * PARTS == 2 * DIM) prepare<PARTS, NEAR>(me, p, head, t, sm);
        else prepare<NEAR ? PARTS : PARTS / 2, NEAR>(me, p, head, t, sm);
    }
    const uint8_t *keys = next_tile(me);
    meet();
    attn::scores<PARTS, !NEAR>(warp, keys, own, DIM, sm);
    meet();
    if (warp < a.per) {
        float2 found = attn::weights<PARTS, !NEAR>((const float *)(keys + 2 * CU_BLOCK * DIM), own, see.first - before, me.pos() + 1 - before, warp, DIM, sm);
        float *to = me.told + p.u.a.ml + 2 * ((q0 + warp) * CU_CLUSTER_BLOCKS + block);
        if (lane < 2) tell(to + lane, lane ? found.y : found.x);
    }
    meet();
    free_tile(me);
    uint8_t *values = next_tile(me);
    if (newest) {
#pragma unroll 1
        for (int i = threadIdx.x; i < 2 * DIM; i += CU_TAPE_WORKERS) values[i * CU_BLOCK + t] = (uint8_t)(i < DIM ? sm.v[0][i] : sm.v[1][i - DIM]);
        fence_copies();
        meet();
    }
    int i = lane / 4;
    float *to = me.told + p.u.a.o + ((q0 + (i < a.per ? i : 0)) * CU_CLUSTER_BLOCKS + block) * DIM;
    attn::values<PARTS, !NEAR>(warp, values, DIM, sm, [&](int, int d, float2 o) {
        if (i < a.per) tell2(to + d, o.x, o.y);
    });
    meet(); /* before what is prepared for the next one stands there */
    free_tile(me);
}

/* A query head's results of all blocks of keys, in order; a thread has a dim. factor: room for all blocks' and a float for each thread. */
template <int PARTS, bool NEAR> __device__ __forceinline__ void join(const worker &me, const cu_tape_phase &p, int all, int head, float4 *factor)
{
    enum { AT_ONCE = 8 };
    const cu_attn_step &a = p.u.a.a;
    const int DIM = NEAR ? 64 * PARTS : a.kv.dim;
    int d = threadIdx.x;
    forget(d);
    int warp = d / 32, lane = d % 32;
    bool in = d < DIM;
    float *row = (float *)(factor + CU_CLUSTER_BLOCKS), L = -0.0f, O = -0.0f;
    const float *o = me.told + p.u.a.o + head * CU_CLUSTER_BLOCKS * DIM + d, *ml = me.told + p.u.a.ml + head * CU_CLUSTER_BLOCKS * 2;
    float gate = in && p.u.a.gate >= 0 ? hear(me.told + p.u.a.gate + head * a.gate_head + d) : 0;
    if (warp == CU_TAPE_WARPS - 1) {
        float2 x = make_float2(-INFINITY, 0);
        if (lane < all) x = make_float2(hear(ml + 2 * lane), hear(ml + 2 * lane + 1));
        __syncwarp();
        attn::weigh_blocks(x, factor);
    }
    meet();
#pragma unroll 1
    for (int b = 0; b < all && in; b += AT_ONCE) {
        float v[AT_ONCE];
        const float *at = o + b * DIM;
        hold(at); /* one address */
        for (;;) {
            bool missing = false;
            each<AT_ONCE>([&](int i) { v[i] = b + i < all ? told_word(at + i * DIM) : 0; });
            each<AT_ONCE>([&](int i) { missing |= untold(v[i]); });
            if (!missing) break;
            not_yet();
        }
        each<AT_ONCE>([&](int i) {
            if (b + i >= all) return;
            float4 f = factor[b + i];
            L = cb_fma(L, f.x, f.z);
            O = cb_fma(O, f.x, v[i] * f.y);
        });
    }
    __syncwarp();
    float y = rotate_back(O / L, a.o_block, a.o_scale, row, [] { meet(); });
    if (p.u.a.gate >= 0) y = cb_sigmoidf(gate) * y;
    if (in) tell(me.told + p.u.a.to + head * DIM + d, y);
    meet(); /* before another one stands there */
}

/* Heads of 64*PARTS dims, or not NEAR half as many, by the same code but for what prepares them. What depends on the thread, or the position, is worked out here, not once for all phases: it would stand in registers that others want. */
template <int PARTS, bool NEAR> __device__ __forceinline__ void attn_phase(worker &me, const cu_tape_phase &p)
{
    typedef attn::shared<PARTS> prepared;
    static_assert(sizeof(prepared) <= CU_STEP_FIXED(PARTS) && (int)attn::shape<PARTS>::WORKERS == (int)CU_TAPE_WARPS, "room");
    const cu_attn_step &a = p.u.a.a;
    int row = me.a.heads;
    forget(row);
    int pos = me.pos();
    seen see(a.kv, pos);
    unsigned char *at = (unsigned char *)me.shared + row;
#pragma unroll 1
    for (int i = blockIdx.x; i < see.items; i += gridDim.x) attend<PARTS, NEAR>(me, p, see, i / see.all, i % see.all, *(prepared *)at);
#pragma unroll 1
    for (int h = gridDim.x - 1 - blockIdx.x; h < a.n_heads; h += gridDim.x) join<PARTS, NEAR>(me, p, see.all, h, (float4 *)at);
}
#endif
