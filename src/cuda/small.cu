/* small.cu: the step of one row of a small model in one launch: the 16 thread blocks of a cluster walk through all layers together. A block has some
 * tiles of each matrix (cu_small in abi.h) and tells the others what it has made of the row by st.async into their shared memory, whose barriers
 * count the bytes. Its weights of the next layer are on their way as soon as those of this one have been used, so nothing waits for them; nor for
 * keys and values. What every block needs of a row - norms, planes of the residual stream - each computes for itself.
 *
 * A layer: planes of the norm; products for q, k and v, to all; attention, half a block for a KV head and every so many blocks of keys, to the block that
 * joins the query head; planes of the heads, to all; output product, to all; planes of the norm; gate and up products; planes of the units, to all;
 * down product, to all. Two more warps bring weights, keys and values. */
#include "cuda/attn_heads.cuh"
using namespace attn;

#if __CUDA_ARCH__ >= 900
#include "cuda/small_rows.cuh"

enum { WARPS_OF_HALF = CU_SMALL_WARPS / 2, HALF = 32 * WARPS_OF_HALF, WORKERS = 2 * CU_SMALL_BLOCKS };

/* What thread blocks tell each other, in a layer's order, and rows of values when they are asked for. */
enum { TOLD_QKV, TOLD_PARTS, TOLD_HEADS, TOLD_OUT, TOLD_UNITS, TOLD_DOWN, TOLD_ROW, N_TOLD };

/* ---- barriers ---- */

__device__ __forceinline__ uint32_t full(uint32_t sm, int region) { return sm + 8 * region; }
__device__ __forceinline__ uint32_t used(uint32_t sm, int region) { return sm + 8 * (CU_SMALL_REGIONS + region); }
__device__ __forceinline__ uint32_t keys_full(uint32_t sm, int half, int slot) { return sm + 8 * (2 * CU_SMALL_REGIONS + CU_SMALL_KV_SLOTS * half + slot); }
__device__ __forceinline__ uint32_t keys_used(uint32_t sm, int half, int slot) { return keys_full(sm, half + 2, slot); }
__device__ __forceinline__ uint32_t turn_there(uint32_t sm) { return sm + 8 * (2 * CU_SMALL_REGIONS + 4 * CU_SMALL_KV_SLOTS); }
__device__ __forceinline__ uint32_t told(uint32_t sm, int what) { return turn_there(sm) + 8 + 8 * what; }
static_assert(8 * (2 * CU_SMALL_REGIONS + 4 * CU_SMALL_KV_SLOTS + 1 + N_TOLD) <= CU_SMALL_PHASES, "room for barriers");

/* ---- who does what of attention ---- */

/* Blocks of keys first, first + step, .. below n of a KV head, for half a thread block. */
struct share {
    int head, first, step, n;
    __device__ __forceinline__ share(const cu_small &a, int rank, int half, int pos)
    {
        int worker = rank + CU_SMALL_BLOCKS * half;
        step = WORKERS / a.attn.kv.n_heads;
        head = worker / step;
        first = worker - head * step;
        n = head < a.attn.kv.n_heads ? pos / CU_BLOCK + 1 : 0;
    }
    __device__ __forceinline__ int count() const { return first < n ? (n - 1 - first) / step + 1 : 0; }
};
/* Query head h is joined by this block, as number h / 16 of its heads. */
__device__ __forceinline__ int joins(int h) { return CU_SMALL_BLOCKS - 1 - h % CU_SMALL_BLOCKS; }
__device__ __forceinline__ int heads_here(const cu_small &a, int rank) { return (a.heads + rank) / CU_SMALL_BLOCKS; }

__device__ __forceinline__ uint32_t bytes_told(const cu_small &a, int what, int rank, int pos)
{
    switch (what) {
    case TOLD_QKV: return 4 * a.attn.kv.dim * (a.heads + 2 * a.attn.kv.n_heads);
    case TOLD_PARTS: return heads_here(a, rank) * (pos / CU_BLOCK + 1) * (4 * a.attn.kv.dim + 8);
    case TOLD_HEADS: return 2 * a.heads * a.attn.kv.dim + 8 * a.heads_groups;
    case TOLD_UNITS: return 2 * a.ffn + 8 * a.ffn_groups;
    default: return 4 * a.hidden;
    }
}

/* ---- two warps that bring what is needed next ---- */

__device__ __forceinline__ int region_of(int copy) { return copy < 7 ? CU_SMALL_QKV : copy < 9 ? CU_SMALL_OUT : copy < 14 ? CU_SMALL_GATE : CU_SMALL_DOWN; }

__device__ __forceinline__ void bring_weights(const cu_small &a, uint32_t sm, float *turn)
{
    int lane = threadIdx.x & 31, mine = region_of(lane);
    const cu_small_copy *from = a.copies + cluster_rank() * CU_SMALL_COPIES + lane;
    cu_small_copy next = *from;
#pragma unroll 1
    for (int l = 0; l < a.n_layers; l++) {
        cu_small_copy c = next;
        from += CU_SMALL_BLOCKS * CU_SMALL_COPIES;
        if (l + 1 < a.n_layers) next = *from;
#pragma unroll 1
        for (int q = 0; q < CU_SMALL_REGIONS; q++) {
            uint32_t bytes = mine == q ? c.bytes : 0, all = (uint32_t)__reduce_add_sync(FULL, (int)bytes);
            barrier_wait(used(sm, q), l & 1 ^ 1);
            if (lane == 0) barrier_expect(full(sm, q), all);
            __syncwarp();
            if (bytes) bulk_copy(sm + c.to, c.from, bytes, full(sm, q));
        }
        if (l) continue;
        turn_table(a.freq, a.attn.pairs, a.turn_scale, *a.pos, turn, lane, 32);
        barrier_arrive(turn_there(sm), 1);
    }
}

__device__ __forceinline__ void bring_keys(const cu_small &a, uint32_t sm)
{
    int lane = threadIdx.x & 31, rank = cluster_rank(), pos = *a.pos, slots = a.kv_slots, slot[2] = {0, 0}, parity[2] = {1, 1};
    const int32_t *table = a.step->tables[a.attn.kv.group] + (size_t)*a.slot * a.step->table_stride;
    share s[2] = {share(a, rank, 0, pos), share(a, rank, 1, pos)};
    int n[2] = {s[0].count(), s[1].count()}, most = max(n[0], n[1]), half = lane / CU_SMALL_ROUNDS, round = lane % CU_SMALL_ROUNDS;
    int block = round < (half ? n[1] : n[0]) ? table[half ? s[1].first + round * s[1].step : s[0].first + round * s[0].step] : 0;
    const uint8_t *base = a.attn.kv.base;
#pragma unroll 1
    for (int l = 0; l < a.n_layers; l++, base += a.kv_layer)
#pragma unroll 1
        for (int j = 0; j < most; j++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int b = __shfl_sync(FULL, block, h * CU_SMALL_ROUNDS + j);
                if (j >= n[h]) continue;
                barrier_wait(keys_used(sm, h, slot[h]), parity[h]);
                if (lane == 0) {
                    barrier_expect(keys_full(sm, h, slot[h]), (uint32_t)a.attn.kv.head_bytes);
                    bulk_copy(sm + a.kv + (h * slots + slot[h]) * (uint32_t)a.attn.kv.head_bytes, base + ((size_t)b * a.attn.kv.n_heads + s[h].head) * a.attn.kv.head_bytes,
                              (uint32_t)a.attn.kv.head_bytes, keys_full(sm, h, slot[h]));
                }
                if (++slot[h] == slots) slot[h] = 0, parity[h] ^= 1;
            }
}

/* ---- the warps that compute ---- */

struct worker {
    uint32_t sm;
    uint8_t *room;
    int rank, warp, lane, pos, layer;
    int rows;            /* rows of values that were asked for so far */
    int slot, parity;    /* of the ring of keys */
    uint32_t ranks[4];   /* shared memory of the thread blocks 4*k + lane / 4 % 4, to which this lane sends outputs */
    share mine;          /* of attention */
    int64_t newest;      /* where the newest block of keys is in a layer's state */
};

/* What a phase needs to know of its region, in shared memory: an argument's array is far away. */
struct phase {
    tiles w;
    int tile0;
    uint32_t x;          /* planes */
    int G;
    uint32_t to;         /* where outputs go to */
};
__device__ __forceinline__ uint32_t phase_at(uint32_t sm, int region) { return sm + CU_SMALL_PHASES + 32 * region; }
template <class F> __device__ __forceinline__ void put_phases(const cu_small &a, uint32_t sm, int rank)
{
    int q = threadIdx.x / 64;
    if (q < 3) put_notes<F>(sm + CU_SMALL_NOTES + 1024 * q, q == 1 ? a.heads_groups : q == 2 ? a.ffn_groups : a.hidden_groups, threadIdx.x / 32 % 2, threadIdx.x % 32);
    q = threadIdx.x;
    if (q >= CU_SMALL_REGIONS) return;
    const cu_small_region &w = a.region[rank][q];
    uint32_t x = q == CU_SMALL_OUT ? a.planes : q == CU_SMALL_DOWN ? a.unit : a.norm, to = q == CU_SMALL_QKV ? a.qkv : a.x;
    int G = q == CU_SMALL_OUT ? a.heads_groups : q == CU_SMALL_DOWN ? a.ffn_groups : a.hidden_groups;
    uint32_t v[8] = {sm + w.at, sm + w.scales, (uint32_t)w.tiles * (q == CU_SMALL_GATE ? 2 : 1), (uint32_t)w.tile0, sm + x, (uint32_t)G, to + 64 * w.tile0, sm + CU_SMALL_NOTES + (q == CU_SMALL_OUT ? 1024 : q == CU_SMALL_DOWN ? 2048 : 0)};
    sts<4>(phase_at(sm, q), v);
    sts<4>(phase_at(sm, q) + 16, v + 4);
}
__device__ __forceinline__ phase phase_of(uint32_t sm, int region)
{
    uint32_t v[4], u[4];
    lds<4>(v, phase_at(sm, region));
    lds<4>(u, phase_at(sm, region) + 16);
    return {{v[0], v[1], u[3], (int)v[2]}, (int)v[3], u[0], (int)u[1], u[2]};
}

/* Waits for what all thread blocks told in this layer; one thread says what the next layer's will be. */
__device__ __forceinline__ void hear(const cu_small &a, const worker &me, int what)
{
    uint32_t at = told(me.sm, what);
    barrier_wait(at, me.layer & 1);
    if (threadIdx.x == 0) barrier_expect(at, lds_u32(me.sm + CU_SMALL_PHASES + 128 + 4 * what));
}

/* ---- remainders ---- */

/* The row of values that thread blocks have made planes of, to `row` of each; this one has n of them, from value `first` on, at `from`. */
__device__ __noinline__ void tell_row(uint32_t sm, uint32_t from, uint32_t row, int first, int n)
{
#pragma unroll 1
    for (int i = threadIdx.x; i < n / 4 * CU_SMALL_BLOCKS; i += COMPUTING) {
        int rank = i % CU_SMALL_BLOCKS, k = i / CU_SMALL_BLOCKS;
        float4 v = lds_float4(from + 16 * k);
        send16(of_rank(row + 4 * first + 16 * k, rank), v.x, v.y, v.z, v.w, of_rank(told(sm, TOLD_ROW), rank));
    }
}

/* What the planes that a region's products take leave of their row; whether it is wanted. All warps, seldom. The row stands behind the sums. */
template <class F> __device__ __noinline__ bool rest_of(const cu_small &a, uint32_t sm, int rank, int region, int turn)
{
    phase p = phase_of(sm, region);
    uint32_t row = sm + a.sums + a.half_sums;
    planes x(p.x, p.G);
    constexpr int dim = F::DIM;
    int n = F::GROUP * p.G;
    meet();
    if (region == CU_SMALL_QKV || region == CU_SMALL_GATE) {
        uint32_t weights = sm + a.norm_w[region == CU_SMALL_GATE];
        float inv = norm_of_row(sm + a.x, n, a.eps);
        for (int i = threadIdx.x; i < n; i += COMPUTING) sts_float(row + 4 * i, (lds_float(sm + a.x + 4 * i) * inv) * lds_float(weights + 4 * i));
    } else {
        phase gate = phase_of(sm, CU_SMALL_GATE);
        if (region == CU_SMALL_DOWN) tell_row(sm, sm + a.own, row, 16 * gate.tile0, 8 * gate.w.n);
        for (int i = 0; i < heads_here(a, rank) && region == CU_SMALL_OUT; i++) tell_row(sm, sm + a.own + 4 * i * dim, row, (CU_SMALL_BLOCKS - 1 - rank + CU_SMALL_BLOCKS * i) * dim, dim);
        if (threadIdx.x == 0) barrier_expect(told(sm, TOLD_ROW), 4 * n);
        barrier_wait(told(sm, TOLD_ROW), turn & 1);
    }
    return find_remainder<F>(row, x, planes(sm + a.rest, p.G), a.share);
}

/* ---- products ---- */

/* A region's products: sums of tiles, those of a remainder behind the others. Returns whether there are such. */
template <class F> __device__ __forceinline__ bool multiply(const cu_small &a, worker &me, int region, const phase &p)
{
    uint32_t sums = me.sm + a.sums;
    planes x(p.x, p.G);
    bool rest = false;
    barrier_wait(full(me.sm, region), me.layer & 1);
#pragma unroll 1
    for (;;) {
        products<F>(p.w, x, sums);
        if (__builtin_expect(rest, 0)) break;
        if (__builtin_expect(surely_none<F>(x, a.enough), 1)) break;
        rest = rest_of<F>(a, me.sm, me.rank, region, me.rows);
        me.rows += region == CU_SMALL_OUT || region == CU_SMALL_DOWN;
        if (!rest) break;
        x.at = me.sm + a.rest;
        sums += a.half_sums;
    }
    __syncwarp();
    if (me.lane == 0) barrier_arrive(used(me.sm, region), 1);
    return rest;
}

/* Sums of a region's tiles to all thread blocks, added to what stands there where they make the residual stream. One warp of a pair finishes
 * its tiles, two at a time. */
__device__ __forceinline__ void send_outputs(const cu_small &a, const worker &me, const phase &p, bool rest, bool adds, int what)
{
    uint32_t sums = me.sm + a.sums;
    int half = me.lane >> 4, row = me.lane & 15, first = me.warp / 2 + PAIRS * half;
    barrier_among(2 + me.warp / 2, 64);
    if (me.warp % 2 == 0) return;
    uint32_t at = p.to + 64 * first;
#pragma unroll 1
    for (int tile = first; tile - PAIRS * half < p.w.n; tile += 2 * PAIRS, at += 2 * PAIRS * 64) {
        bool here = tile < p.w.n;
        float y = adds && here ? lds_float(me.sm + at + 4 * row) : -0.0f, v[4]; /* -0 plus x is x */
#pragma unroll 1
        for (int pass = 0; pass <= rest; pass++) y = y + sum_of_tile(sums + pass * a.half_sums, here ? tile : 0, row);
        each<4>([&](int j) { v[j] = __shfl_sync(FULL, y, (me.lane & 16) + 4 * (me.lane & 3) + j); });
        if (here) each<4>([&](int k) { send16(me.ranks[k] + at + 16 * (me.lane & 3), v[0], v[1], v[2], v[3], me.ranks[k] + told(0, what)); });
    }
}

/* ---- attention ---- */

/* The Hadamard matrix of 32 or 64 dims. */
template <int DIM> __device__ __forceinline__ void turn_head(float (&v)[2], float scale)
{
    across(v, 1);
    across(v, 2);
    across(v, 4);
    across(v, 8);
    across(v, 16);
    float a = v[0] + v[1], b = v[0] - v[1];
    v[0] = (DIM > 32 ? a : v[0]) * scale;
    v[1] = (DIM > 32 ? b : v[1]) * scale;
}

/* A query, the newest key or the newest value: turned, rotated, quantised. kind: 0, 1, 2. Lane l has values l and l + 32. */
template <class F> __device__ __forceinline__ void prepare_one(const cu_small &a, const worker &me, int kind, int i, shared<1> &s, uint8_t *to)
{
    const cu_attn_step &t = a.attn;
    constexpr int dim = F::DIM, half = dim / 2;
    int at = me.pos % CU_BLOCK, head = kind ? a.heads + me.mine.head + (kind - 1) * t.kv.n_heads : me.mine.head * t.per + i;
    uint32_t x = me.sm + a.qkv + 4 * head * dim, turn = me.sm + a.turn;
    float v[2];
    each<2>([&](int j) {
        int d = me.lane + 32 * j, in = d < dim;
        d = in ? d : 0;
        int first = d < half, pair = first ? d + half : d - half, angle = first ? d : d - half;
        float y = lds_float(x + 4 * d), z = lds_float(x + 4 * pair), cs = lds_float(turn + 4 * angle), sn = lds_float(turn + 4 * (half + angle));
        y = kind < 2 ? cb_fma(y, cs, z * (first ? -sn : sn)) : y;
        v[j] = in ? y : 0;
    });
    turn_head<F::DIM>(v, t.q_scale);
    uint32_t m = __reduce_max_sync(FULL, max(__float_as_uint(v[0]) & 0x7fffffff, __float_as_uint(v[1]) & 0x7fffffff));
    if (__builtin_expect(m >= 0x7f800000u, 0)) tell_bad(a.step, (kind ? t.put_op : t.op) + me.layer * a.layer_ops);
    float most = __uint_as_float(m), inv = most < CB_TINY ? 0 : steps_of(most < CB_TINY ? CB_TINY : most), scale = most < CB_TINY ? 0 : most * CB_XI_INV;
    int8_t *mine = kind ? (kind == 1 ? s.k[0] : s.v[0]) + me.lane : &s.q[i][place(me.lane, 0)];
    int step = kind ? 32 : 64, low = kind ? 64 : 4, plane = CU_BLOCK * dim, far = kind == 1 ? 32 : 32 * CU_BLOCK;
    uint8_t *there = to + (kind == 1 ? at * dim + me.lane : 2 * plane + me.lane * CU_BLOCK + at);
    each<2>([&](int j) {
        uint32_t xi = __float_as_uint(v[j] * inv + MAGIC), hi = xi + 128 >> 8;
        mine[step * j] = (int8_t)hi;
        mine[step * j + low] = (int8_t)xi;
        if (!kind || 32 * j + me.lane >= dim) return;
        there[far * j] = (uint8_t)hi;
        there[far * j + plane] = (uint8_t)xi;
    });
    if (me.lane) return;
    if (!kind) s.dq[i][0] = scale * t.scale;
    else {
        (kind == 1 ? s.dk[0] : s.dv) = scale;
        ((float *)(to + 4 * plane))[(kind - 1) * CU_BLOCK + at] = scale;
    }
}

/* One KV head's queries with this half's blocks of keys. */
template <class F> __device__ __forceinline__ void attend(const cu_small &a, worker &me)
{
    int half = me.warp / WARPS_OF_HALF, w = me.warp % WARPS_OF_HALF, per = a.attn.per;
    constexpr int dim = F::DIM;
    int count = me.mine.count(), head_bytes = (int)a.attn.kv.head_bytes;
    if (!count) return;
    bool puts = (me.mine.n - 1 - me.mine.first) % me.mine.step == 0;
    shared<1> &s = *(shared<1> *)(me.room + a.keys + half * CU_STEP_FIXED(1));
    if (me.layer == 0) barrier_wait(turn_there(me.sm), 0);
    uint8_t *to = a.attn.kv.base + me.layer * a.kv_layer + me.newest;
#pragma unroll 1
    for (int i = w; i < per + 2 * puts; i += WARPS_OF_HALF) prepare_one<F>(a, me, max(i - per + 1, 0), i, s, to);
    barrier_among(10 + half, HALF);
#pragma unroll 1
    for (int j = 0, block = me.mine.first; j < count; j++, block += me.mine.step) {
        int own = puts && j == count - 1 ? me.pos % CU_BLOCK : -1;
        uint8_t *keys = me.room + a.kv + (half * a.kv_slots + me.slot) * head_bytes, *vals = keys + 2 * CU_BLOCK * dim;
        barrier_wait(keys_full(me.sm, half, me.slot), me.parity);
        scores<1>(w, keys, own, dim, s);
        barrier_among(10 + half, HALF);
        for (int i = threadIdx.x % HALF; i < 2 * dim && own >= 0; i += HALF) {
            vals[i * CU_BLOCK + own] = (uint8_t)(i < dim ? s.v[0][i] : s.v[1][i - dim]);
            fence_copies();
        }
        if (w < per) {
            int h = me.mine.head * per + w, rank = joins(h);
            float2 found = weights<1>((const float *)(keys + 4 * CU_BLOCK * dim), own, 0, me.pos + 1 - block * CU_BLOCK, w, dim, s);
            if (me.lane == 0)
                send8(of_rank(me.sm + a.found + 8 * (h / CU_SMALL_BLOCKS * a.most_keys + block), rank), __float_as_uint(found.x), __float_as_uint(found.y),
                      of_rank(told(me.sm, TOLD_PARTS), rank));
        }
        barrier_among(10 + half, HALF);
        values<1>(w, vals, dim, s, [&](int q, int d, float2 o) {
            if (q >= per) return;
            int h = me.mine.head * per + q, rank = joins(h);
            send8(of_rank(me.sm + a.part + 4 * ((h / CU_SMALL_BLOCKS * a.most_keys + block) * dim + d), rank), __float_as_uint(o.x), __float_as_uint(o.y),
                  of_rank(told(me.sm, TOLD_PARTS), rank));
        });
        __syncwarp();
        if (me.lane == 0) barrier_arrive(keys_used(me.sm, half, me.slot), 1);
        if (++me.slot == a.kv_slots) me.slot = 0, me.parity ^= 1;
    }
}

/* How the results of 32 blocks of keys weigh: lane b has m, l of block b in x. M: the maximum of all before, and then with these (attn_join.cu). */
__device__ __forceinline__ float3 weigh(float2 x, float &M)
{
    int lane = threadIdx.x & 31;
    float top = x.x;
#pragma unroll 1
    for (int w = 1; w < 32; w *= 2) {
        float y = __shfl_up_sync(FULL, top, w);
        if (lane >= w) top = fmaxf(top, y);
    }
    top = fmaxf(M, top);
    float before = __shfl_up_sync(FULL, top, 1);
    before = lane ? before : M;
    M = __shfl_sync(FULL, top, 31);
    float c = cb_expf(x.x - top);
    return make_float3(cb_expf(before - top), c, x.y * c);
}

/* One head by one warp: joined, divided, turned back, and its planes to all. */
template <class F> __device__ __forceinline__ void join(const cu_small &a, const worker &me, int number)
{
    constexpr int dim = F::DIM, upper = dim > 32 ? 128 : 0;
    int n = me.pos / CU_BLOCK + 1, h = CU_SMALL_BLOCKS - 1 - me.rank + CU_SMALL_BLOCKS * number;
    uint32_t part = me.sm + a.part + 4 * (number * a.most_keys * dim + me.lane), found = me.sm + a.found + 8 * number * a.most_keys, factor = me.sm + a.factors + 512 * number;
    float M = -INFINITY, L = -0.0f, O[2] = {-0.0f, -0.0f};
#pragma unroll 1
    for (int b0 = 0; b0 < n; b0 += 32) {
        int end = min(n - b0, 32);
        float3 f = weigh(me.lane < end ? lds_float2(found + 8 * (b0 + me.lane)) : make_float2(-INFINITY, 0), M);
        __syncwarp();
        sts_float4(factor + 16 * me.lane, f.x, f.y, f.z, 0);
        __syncwarp();
#pragma unroll 2
        for (int b = 0; b < end; b++, part += 4 * dim) {
            float4 f = lds_float4(factor + 16 * b);
            L = cb_fma(L, f.x, f.z);
            O[0] = cb_fma(O[0], f.x, lds_float(part) * f.y);
            O[1] = cb_fma(O[1], f.x, lds_float(part + upper) * f.y);
        }
    }
    float y[2], l[2] = {L, L};
    divide_all(y, O, l);
    y[1] = upper ? y[1] : 0;
    turn_head<F::DIM>(y, a.attn.o_scale);
    sts_float(me.sm + a.own + 4 * (number * dim + me.lane), y[0]);
    if (upper) sts_float(me.sm + a.own + 4 * (number * dim + me.lane + 32), y[1]);
    constexpr int GROUPS = dim / F::GROUP;
    float v[GROUPS][F::PER];
    numbers<F> r[GROUPS];
    each<GROUPS>([&](int k) { each<F::PER>([&](int j) { v[k][j] = y[k * F::PER + j]; }); });
    encode<F, GROUPS>(v, r);
    uint32_t most = 0;
    each<GROUPS>([&](int k) { most = max(most, r[k].most); });
    if (__builtin_expect(most >= 0x7f800000u, 0)) tell_bad(a.step, a.out_op + me.layer * a.layer_ops);
    send_groups<F, GROUPS>(planes(me.sm + a.planes, a.heads_groups), h * GROUPS, r, me.sm + a.stage + me.warp * 128, told(me.sm, TOLD_HEADS));
}

/* ---- gated units ---- */

/* This block's units, a group a warp, their planes to all. */
template <class F> __device__ __forceinline__ void units(const cu_small &a, const worker &me, const phase &p, bool rest)
{
    planes out(me.sm + a.unit, a.ffn_groups);
    int n = p.w.n * 8 / F::GROUP, ups = p.w.n / 2 * CU_SEGMENTS * 64; /* groups; from a gate's tiles to those of `up` */
    meet();
#pragma unroll 1
    for (int u = me.warp; u < n; u += CU_SMALL_WARPS) {
        float v[1][F::PER], gate[F::PER], up[F::PER], d[F::PER];
        numbers<F> r[1];
        each<F::PER>([&](int j) { gate[j] = up[j] = -0.0f; }); /* plus x is x */
#pragma unroll 1
        for (int pass = 0; pass <= rest; pass++)
            each<F::PER>([&](int j) {
                int e = F::GROUP * u + 32 * j + me.lane;
                uint32_t sums = me.sm + a.sums + pass * a.half_sums;
                gate[j] = gate[j] + sum_of_tile(sums, e / 16, e % 16);
                up[j] = up[j] + sum_of_tile(sums + ups, e / 16, e % 16);
            });
        each<F::PER>([&](int j) { d[j] = 1.0f + cb_expf(-gate[j]); });
        divide_all(v[0], gate, d); /* silu */
        each<F::PER>([&](int j) {
            v[0][j] = v[0][j] * up[j];
            sts_float(me.sm + a.own + 4 * (F::GROUP * u + 32 * j + me.lane), v[0][j]);
        });
        encode<F, 1>(v, r);
        if (__builtin_expect(r[0].most >= 0x7f800000u, 0)) tell_bad(a.step, a.down_op + me.layer * a.layer_ops);
        send_groups<F, 1>(out, p.tile0 * 16 / F::GROUP + u, r, me.sm + a.stage + me.warp * 128, told(me.sm, TOLD_UNITS));
    }
}

/* ---- all of it ---- */

__device__ __forceinline__ void embed_row(const cu_small &a, const worker &me)
{
    for (int e = a.hidden + threadIdx.x; e % CU_SMALL_PAD && e < a.hidden + CU_SMALL_PAD; e += COMPUTING) sts_float(me.sm + a.x + 4 * e, 0);
    for (int e = 8 * threadIdx.x; e < a.hidden; e += 8 * COMPUTING) {
        float u[8];
        decode8(a.embed, *a.token, e, u);
        if (a.embed_scale != 1.0f) each<8>([&](int i) { u[i] = u[i] * a.embed_scale; });
        sts_float4(me.sm + a.x + 4 * e, u[0], u[1], u[2], u[3]);
        sts_float4(me.sm + a.x + 4 * e + 16, u[4], u[5], u[6], u[7]);
    }
    meet();
}

/* The planes that the head reads, by one thread block. */
__device__ __noinline__ void last_norm(const cu_small &a, uint32_t sm, float *row)
{
    int n = a.hidden, lane = threadIdx.x & 31;
    float inv = norm_of_row(sm + a.x, n, a.eps), top = 0;
    for (int i = threadIdx.x; i < n; i += COMPUTING) row[i] = (lds_float(sm + a.x + 4 * i) * inv) * a.last_norm[i];
    meet();
    quant_row(row, n, a.head, 0, false, a.step, a.head_op, threadIdx.x, COMPUTING);
    if (!a.head.flag) return;
    for (int i = lane; i < n; i += 32) top = fmaxf(top, fabsf(row[i]));
    bool more = energy_of(__float_as_uint(group_max(top, 32))) > a.head_share * sum_squares(row, n);
    if (threadIdx.x == 0) a.head.flag[0] = more;
    if (more) quant_row(row, n, a.head, 0, true, a.step, a.head_op, threadIdx.x, COMPUTING);
}

template <class F> __device__ __forceinline__ void compute(const cu_small &a, worker &me)
{
    embed_row(a, me);
    int joined = heads_here(a, me.rank);
#pragma unroll 1
    for (int i = 0; i < CU_SMALL_REGIONS * a.n_layers; i++) {
        int region = i % CU_SMALL_REGIONS, what = region == CU_SMALL_QKV ? TOLD_QKV : region == CU_SMALL_OUT ? TOLD_OUT : region == CU_SMALL_DOWN ? TOLD_DOWN : TOLD_UNITS;
        me.layer = i / CU_SMALL_REGIONS;
        phase p = phase_of(me.sm, region);
        if (region == CU_SMALL_QKV || region == CU_SMALL_GATE) {
            if (32 * 8 * me.warp < a.hidden) {
                barrier_wait(full(me.sm, region), me.layer & 1); /* the norm's weights */
                norm_planes<F>(me.sm + a.x, me.sm + a.norm_w[region == CU_SMALL_GATE], planes(p.x, p.G), a.eps, a.step, (region == CU_SMALL_GATE ? a.gate_op : a.norm_op) + me.layer * a.layer_ops);
            }
            meet();
        }
        bool rest = multiply<F>(a, me, region, p);
        if (region == CU_SMALL_GATE) units<F>(a, me, p, rest);
        else send_outputs(a, me, p, rest, region != CU_SMALL_QKV, what);
        hear(a, me, what);
        if (region != CU_SMALL_QKV) continue;
        attend<F>(a, me);
        if (me.warp < joined) {
            hear(a, me, TOLD_PARTS);
#pragma unroll 1
            for (int k = me.warp; k < joined; k += CU_SMALL_WARPS) join<F>(a, me, k);
        }
        hear(a, me, TOLD_HEADS);
    }
    if (me.rank == 0) last_norm(a, me.sm, (float *)(me.room + a.sums));
}

template <class F> __device__ __forceinline__ void small(const cu_small &a, uint8_t *room)
{
    uint32_t sm = address(room);
    int rank = cluster_rank(), warp = threadIdx.x / 32;
    pdl_trigger();
    pdl_wait(); /* the first launch of a step */
    int pos = *a.pos;
    if (threadIdx.x == 0) {
        for (int i = 0; i < CU_SMALL_REGIONS; i++) {
            barrier_init(full(sm, i), 1);
            barrier_init(used(sm, i), CU_SMALL_WARPS);
        }
#pragma unroll 1
        for (int i = 0; i < 2 * CU_SMALL_KV_SLOTS; i++) {
            barrier_init(keys_full(sm, 0, i), 1);
            barrier_init(keys_used(sm, 0, i), WARPS_OF_HALF);
        }
        barrier_init(turn_there(sm), 32);
#pragma unroll 1
        for (int i = 0; i < N_TOLD; i++) {
            uint32_t bytes = bytes_told(a, i, rank, pos);
            barrier_init(told(sm, i), 1);
            if (i != TOLD_ROW) barrier_expect(told(sm, i), bytes);
            sts<1>(sm + CU_SMALL_PHASES + 128 + 4 * i, &bytes);
        }
    }
    put_phases<F>(a, sm, rank);
    cluster_begin();
    if (warp == CU_SMALL_WARPS) bring_weights(a, sm, (float *)(room + a.turn));
    else if (warp > CU_SMALL_WARPS) bring_keys(a, sm);
    else {
        worker me = {sm, room, rank, warp, (int)threadIdx.x & 31, pos, 0, 0, 0, 0, {0, 0, 0, 0}, share(a, rank, warp / WARPS_OF_HALF, pos), 0};
        each<4>([&](int k) { me.ranks[k] = of_rank(sm, 4 * k + (me.lane >> 2 & 3)); });
        if (me.mine.n) me.newest = ((int64_t)a.step->tables[a.attn.kv.group][(size_t)*a.slot * a.step->table_stride + me.mine.n - 1] * a.attn.kv.n_heads + me.mine.head) * a.attn.kv.head_bytes;
        compute<F>(a, me);
    }
}
#define BODY(...) small<code4<__VA_ARGS__>>(a, room);
#define PACK(...) pack<code4<__VA_ARGS__>>(a);
#else
#define BODY(...)
#define PACK(...)
#endif

#define KERNEL(name, ...)                                                                                                            \
    extern "C" __global__ void __launch_bounds__(CU_SMALL_THREADS, 1) k_small_##name(const __grid_constant__ cu_small a)            \
    {                                                                                                                                \
        extern __shared__ __align__(1024) uint8_t room[];                                                                            \
        BODY(__VA_ARGS__)                                                                                                            \
    }                                                                                                                                \
    extern "C" __global__ void k_small_pack_##name(const __grid_constant__ cu_small_pack a)                                         \
    {                                                                                                                                \
        PACK(__VA_ARGS__)                                                                                                            \
    }
CU_SMALL_FORMATS(KERNEL)
