/* small.cu: the step of one row of a small model in one launch: the 16 thread blocks of a cluster walk through all layers together. A block has some
 * tiles of each matrix (cu_small in abi.h) and tells the others what it has made of the row by st.async into their shared memory, whose barriers
 * count the bytes. Its weights of the next layer are on their way as soon as those of this one have been used, so nothing waits for them; nor for
 * keys and values. What every block needs of a row - norms, planes of the residual stream - each computes for itself.
 *
 * A layer: planes of the norm; products for q, k and v, to all; attention, half a block for a KV head and every so many blocks of keys, to the block that
 * joins the query head; planes of the heads, to all; output product, to all; planes of the norm; gate and up products; planes of the units, to all;
 * down product, to all. Two more warps bring weights, keys and values. */
#include "cuda/attn_heads.cuh"

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
static_assert(8 * (2 * CU_SMALL_REGIONS + 4 * CU_SMALL_KV_SLOTS + 1 + N_TOLD) <= CU_SMALL_BARRIERS, "room for barriers");

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

__device__ __forceinline__ int region_of(int copy) { return copy < 10 ? CU_SMALL_QKV : copy < 13 ? CU_SMALL_OUT : copy < 20 ? CU_SMALL_GATE : CU_SMALL_DOWN; }

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
    int half_slot, half_parity; /* of the ring of keys */
};

/* Waits for what all thread blocks told in this layer; one thread says what the next layer's will be. */
__device__ __forceinline__ void hear(const cu_small &a, const worker &me, int what, bool arms)
{
    uint32_t at = told(me.sm, what);
    barrier_wait_cluster(at, me.layer & 1);
    if (arms) barrier_expect(at, bytes_told(a, what, me.rank, me.pos));
}

/* The row of values that thread blocks have made planes of, at a.sums of each; this one has n of them, from value `first` on, at `from`. */
__device__ __noinline__ void tell_row(const cu_small &a, uint32_t sm, uint32_t from, int first, int n)
{
#pragma unroll 1
    for (int i = threadIdx.x; i < n / 4 * CU_SMALL_BLOCKS; i += COMPUTING) {
        int rank = i % CU_SMALL_BLOCKS, k = i / CU_SMALL_BLOCKS;
        float4 v = lds_float4(from + 16 * k);
        send16(of_rank(sm + a.sums + 4 * first + 16 * k, rank), v.x, v.y, v.z, v.w, of_rank(told(sm, TOLD_ROW), rank));
    }
}
__device__ __forceinline__ void hear_row(const worker &me, int n, int row)
{
    uint32_t at = told(me.sm, TOLD_ROW);
    if (threadIdx.x == 0) barrier_expect(at, 4 * n);
    barrier_wait_cluster(at, row & 1);
}

/* A region's products with planes x and, when there is more, with what these left: to all thread blocks at `to`, to which they are added where
 * `adds`. One warp of a pair finishes its tiles, two at a time. */
template <class F> __device__ __forceinline__ void outputs(const cu_small &a, const worker &me, int region, const planes &x, bool more, uint32_t to, bool adds, int what)
{
    const cu_small_region &w = a.region[me.rank][region];
    uint32_t sums = me.sm + a.sums;
    int pair = me.warp / 2, half = me.lane >> 4, row = me.lane & 15, tiles = w.tiles;
    bool finishes = me.warp % 2;
    barrier_wait(full(me.sm, region), me.layer & 1);
    products<F>(me.sm, w, tiles, x, sums);
    barrier_among(2 + pair, 64);
    if (__builtin_expect(more, 0)) { /* sums of the remainder stand behind the others */
        products<F>(me.sm, w, tiles, planes(me.sm + a.rest, x.G), sums + tiles * CU_SEGMENTS * 64);
        barrier_among(2 + pair, 64);
    }
    __syncwarp();
    if (me.lane == 0) barrier_arrive(used(me.sm, region), 1);
    if (!finishes) return;
#pragma unroll 1
    for (int t = pair; t < tiles; t += 2 * PAIRS) {
        int tile = t + PAIRS * half;
        bool here = tile < tiles;
        uint32_t at = to + 64 * (w.tile0 + tile);
        float y = 0, v[4];
        if (here) {
            y = sum_of_tile(sums, tile, row);
            if (adds) y = lds_float(at + 4 * row) + y;
            if (__builtin_expect(more, 0)) y = y + sum_of_tile(sums, tiles + tile, row);
        }
        each<4>([&](int j) { v[j] = __shfl_sync(FULL, y, (me.lane & 16) + 4 * (me.lane & 3) + j); });
        at += 16 * (me.lane & 3);
        if (here) each<4>([&](int k) {
            int rank = 4 * k + (row >> 2);
            send16(of_rank(at, rank), v[0], v[1], v[2], v[3], of_rank(told(me.sm, what), rank));
        });
    }
}

/* Planes of the norm of the residual stream, and whether they leave something. */
template <class F> __device__ __forceinline__ bool norm(const cu_small &a, const worker &me, int which, int region, int op)
{
    planes x(me.sm + a.norm, a.hidden_groups);
    uint32_t row = me.sm + a.x, weights = me.sm + a.norm_w[which];
    barrier_wait(full(me.sm, region), me.layer & 1);
    float inv = norm_planes<F>(row, weights, x, a.eps, a.step, op + me.layer * a.layer_ops);
    meet();
    if (__builtin_expect(surely_none<F>(x, a.enough), 1)) return false;
    for (int i = threadIdx.x; i < a.hidden; i += COMPUTING) sts_float(me.sm + a.sums + 4 * i, (lds_float(row + 4 * i) * inv) * lds_float(weights + 4 * i));
    return find_remainder<F>(me.sm + a.sums, x, planes(me.sm + a.rest, x.G), a.share);
}

/* ---- attention ---- */

/* One KV head's queries with this half's blocks of keys. */
__device__ __forceinline__ void attend(const cu_small &a, worker &me)
{
    int half = me.warp / WARPS_OF_HALF, w = me.warp % WARPS_OF_HALF, dim = a.attn.kv.dim, per = a.attn.per, t = me.pos % CU_BLOCK;
    share mine(a, me.rank, half, me.pos);
    int count = mine.count(), last = mine.n - 1;
    if (!count) return;
    bool puts = (last - mine.first) % mine.step == 0;
    shared<1> &s = *(shared<1> *)(me.room + a.keys + half * CU_STEP_FIXED(1));
    const float *q = (const float *)(me.room + a.qkv) + mine.head * per * dim, *k = (const float *)(me.room + a.qkv) + (a.heads + mine.head) * dim;
    const float *turn = (const float *)(me.room + a.turn);
    cu_attn_step at = a.attn;
    at.op += me.layer * a.layer_ops;
    at.put_op += me.layer * a.layer_ops;
    barrier_wait(turn_there(me.sm), 0);
    uint8_t *to = NULL;
    if (puts) to = a.attn.kv.base + me.layer * a.kv_layer + ((size_t)a.step->tables[a.attn.kv.group][(size_t)*a.slot * a.step->table_stride + last] * a.attn.kv.n_heads + mine.head) * a.attn.kv.head_bytes;
#pragma unroll 1
    for (int i = w; i < per + 2 * puts; i += WARPS_OF_HALF) {
        if (i < per) prepare_q<1>(at, q + i * dim, i, 0, turn, s, true);
        else if (i == per) put_k<1>(at, k, 0, to, t, turn, s, true);
        else put_v<1>(at, k + a.attn.kv.n_heads * dim, to, t, s, true);
    }
    barrier_among(10 + half, HALF);
#pragma unroll 1
    for (int j = 0; j < count; j++) {
        int block = mine.first + j * mine.step, own = puts && j == count - 1 ? t : -1;
        uint8_t *keys = me.room + a.kv + (half * a.kv_slots + me.half_slot) * (int)a.attn.kv.head_bytes, *vals = keys + 2 * CU_BLOCK * dim;
        barrier_wait(keys_full(me.sm, half, me.half_slot), me.half_parity);
        scores<1>(w, keys, own, dim, s);
        barrier_among(10 + half, HALF);
        for (int i = threadIdx.x % HALF; i < 2 * dim && own >= 0; i += HALF) {
            vals[i * CU_BLOCK + t] = (uint8_t)(i < dim ? s.v[0][i] : s.v[1][i - dim]);
            fence_copies();
        }
        if (w < per) {
            int h = mine.head * per + w, rank = joins(h);
            float2 found = weights<1>((const float *)(keys + 4 * CU_BLOCK * dim), own, 0, me.pos + 1 - block * CU_BLOCK, w, dim, s);
            if (me.lane == 0)
                send8(of_rank(me.sm + a.found + 8 * (h / CU_SMALL_BLOCKS * a.most_keys + block), rank), __float_as_uint(found.x), __float_as_uint(found.y),
                      of_rank(told(me.sm, TOLD_PARTS), rank));
        }
        barrier_among(10 + half, HALF);
        values<1>(w, vals, dim, s, [&](int q, int d, float2 o) {
            if (q >= per) return;
            int h = mine.head * per + q, rank = joins(h);
            send8(of_rank(me.sm + a.part + 4 * ((h / CU_SMALL_BLOCKS * a.most_keys + block) * dim + d), rank), __float_as_uint(o.x), __float_as_uint(o.y),
                  of_rank(told(me.sm, TOLD_PARTS), rank));
        });
        __syncwarp();
        if (me.lane == 0) barrier_arrive(keys_used(me.sm, half, me.half_slot), 1);
        if (++me.half_slot == a.kv_slots) me.half_slot = 0, me.half_parity ^= 1;
    }
}

/* How the results of 32 blocks of keys weigh: lane b has m, l of block b in x. M: the maximum of all before, and then with these (attn_join.cu). */
__device__ __forceinline__ float3 weigh(float2 x, float &M)
{
    int lane = threadIdx.x & 31;
    float top = x.x;
#pragma unroll
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
    int dim = a.attn.kv.dim, n = me.pos / CU_BLOCK + 1, h = CU_SMALL_BLOCKS - 1 - me.rank + CU_SMALL_BLOCKS * number;
    uint32_t part = me.sm + a.part + 4 * (number * a.most_keys * dim + me.lane), found = me.sm + a.found + 8 * number * a.most_keys;
    float M = -INFINITY, L = -0.0f, O[2] = {-0.0f, -0.0f};
#pragma unroll 1
    for (int b0 = 0; b0 < n; b0 += 32) {
        int end = min(n - b0, 32);
        float3 f = weigh(me.lane < end ? lds_float2(found + 8 * (b0 + me.lane)) : make_float2(-INFINITY, 0), M);
#pragma unroll 4
        for (int b = 0; b < end; b++, part += 4 * dim) {
            float x = __shfl_sync(FULL, f.x, b), y = __shfl_sync(FULL, f.y, b);
            L = cb_fma(L, x, __shfl_sync(FULL, f.z, b));
            O[0] = cb_fma(O[0], x, lds_float(part) * y);
            O[1] = cb_fma(O[1], x, (dim > 32 ? lds_float(part + 128) : 0) * y);
        }
    }
    float y[2] = {O[0] / L, dim > 32 ? O[1] / L : 0};
    rotate(y, a.attn.o_block, a.attn.o_scale);
    sts_float(me.sm + a.own + 4 * (number * dim + me.lane), y[0]);
    if (dim > 32) sts_float(me.sm + a.own + 4 * (number * dim + me.lane + 32), y[1]);
    enum { N = 2 / F::PER };
    float v[N][F::PER];
    numbers<F> r[N];
    each<N>([&](int k) { each<F::PER>([&](int j) { v[k][j] = y[k * F::PER + j]; }); });
    encode<F, N>(v, r);
    planes x(me.sm + a.planes, a.heads_groups);
    each<N>([&](int k) {
        int g = h * dim / F::GROUP + k;
        if (k * F::GROUP >= dim) return;
        if (__builtin_expect(r[k].most >= 0x7f800000u, 0)) report_bad(a.step, a.out_op + me.layer * a.layer_ops);
        send_group(x, g, r[k], me.sm + a.stage + me.warp * 2 * F::GROUP, told(me.sm, TOLD_HEADS));
    });
}

/* Planes of the joined heads: whether they leave something. */
template <class F> __device__ __forceinline__ bool heads_rest(const cu_small &a, worker &me)
{
    planes x(me.sm + a.planes, a.heads_groups);
    int dim = a.attn.kv.dim;
    if (__builtin_expect(surely_none<F>(x, a.enough), 1)) return false;
    meet();
    for (int i = 0; i < heads_here(a, me.rank); i++)
        tell_row(a, me.sm, me.sm + a.own + 4 * i * dim, (CU_SMALL_BLOCKS - 1 - me.rank + CU_SMALL_BLOCKS * i) * dim, dim);
    hear_row(me, a.heads * dim, me.rows++);
    return find_remainder<F>(me.sm + a.sums, x, planes(me.sm + a.rest, x.G), a.share);
}

/* ---- gated units ---- */

/* This block's units, a group a warp, their planes to all. */
template <class F> __device__ __forceinline__ void units(const cu_small &a, const worker &me, bool more)
{
    const cu_small_region &w = a.region[me.rank][CU_SMALL_GATE];
    planes x(me.sm + a.norm, a.hidden_groups), out(me.sm + a.unit, a.ffn_groups);
    uint32_t sums = me.sm + a.sums;
    int n = w.tiles * 16 / F::GROUP;
    barrier_wait(full(me.sm, CU_SMALL_GATE), me.layer & 1);
    products<F>(me.sm, w, 2 * w.tiles, x, sums);
    if (__builtin_expect(more, 0)) products<F>(me.sm, w, 2 * w.tiles, planes(me.sm + a.rest, x.G), sums + 2 * w.tiles * CU_SEGMENTS * 64);
    __syncwarp();
    if (me.lane == 0) barrier_arrive(used(me.sm, CU_SMALL_GATE), 1);
    meet();
#pragma unroll 1
    for (int u = me.warp; u < n; u += CU_SMALL_WARPS) {
        float v[1][F::PER], gate[F::PER], up[F::PER], d[F::PER];
        numbers<F> r[1];
        each<F::PER>([&](int j) {
            int e = F::GROUP * u + 32 * j + me.lane, tile = e / 16, row = e % 16;
            gate[j] = sum_of_tile(sums, tile, row);
            up[j] = sum_of_tile(sums, w.tiles + tile, row);
            if (__builtin_expect(more, 0)) {
                gate[j] = gate[j] + sum_of_tile(sums, 2 * w.tiles + tile, row);
                up[j] = up[j] + sum_of_tile(sums, 3 * w.tiles + tile, row);
            }
            d[j] = 1.0f + cb_expf(-gate[j]);
        });
        divide(v[0], gate, d); /* silu */
        each<F::PER>([&](int j) {
            v[0][j] = v[0][j] * up[j];
            sts_float(me.sm + a.own + 4 * (F::GROUP * u + 32 * j + me.lane), v[0][j]);
        });
        encode<F, 1>(v, r);
        if (__builtin_expect(r[0].most >= 0x7f800000u, 0)) report_bad(a.step, a.down_op + me.layer * a.layer_ops);
        send_group(out, w.tile0 * 16 / F::GROUP + u, r[0], me.sm + a.stage + me.warp * 2 * F::GROUP, told(me.sm, TOLD_UNITS));
    }
}

template <class F> __device__ __forceinline__ bool units_rest(const cu_small &a, worker &me)
{
    planes x(me.sm + a.unit, a.ffn_groups);
    const cu_small_region &w = a.region[me.rank][CU_SMALL_GATE];
    if (__builtin_expect(surely_none<F>(x, a.enough), 1)) return false;
    meet();
    tell_row(a, me.sm, me.sm + a.own, 16 * w.tile0, 16 * w.tiles);
    hear_row(me, a.ffn, me.rows++);
    return find_remainder<F>(me.sm + a.sums, x, planes(me.sm + a.rest, x.G), a.share);
}

/* ---- all of it ---- */

__device__ __forceinline__ void embed_row(const cu_small &a, const worker &me)
{
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
    bool arms = threadIdx.x == 0;
    embed_row(a, me);
#pragma unroll 1
    for (me.layer = 0; me.layer < a.n_layers; me.layer++) {
        bool more = norm<F>(a, me, 0, CU_SMALL_QKV, a.norm_op);
        outputs<F>(a, me, CU_SMALL_QKV, planes(me.sm + a.norm, a.hidden_groups), more, me.sm + a.qkv, false, TOLD_QKV);
        hear(a, me, TOLD_QKV, arms);
        attend(a, me);
        if (me.warp < heads_here(a, me.rank)) {
            hear(a, me, TOLD_PARTS, arms);
            for (int i = me.warp; i < heads_here(a, me.rank); i += CU_SMALL_WARPS) join<F>(a, me, i);
        }
        hear(a, me, TOLD_HEADS, arms);
        more = heads_rest<F>(a, me);
        outputs<F>(a, me, CU_SMALL_OUT, planes(me.sm + a.planes, a.heads_groups), more, me.sm + a.x, true, TOLD_OUT);
        hear(a, me, TOLD_OUT, arms);
        more = norm<F>(a, me, 1, CU_SMALL_GATE, a.gate_op);
        units<F>(a, me, more);
        hear(a, me, TOLD_UNITS, arms);
        more = units_rest<F>(a, me);
        outputs<F>(a, me, CU_SMALL_DOWN, planes(me.sm + a.unit, a.ffn_groups), more, me.sm + a.x, true, TOLD_DOWN);
        hear(a, me, TOLD_DOWN, arms);
    }
    if (me.rank == 0) last_norm(a, me.sm, (float *)(me.room + a.sums));
}

template <class F> __device__ __forceinline__ void small(const cu_small &a, uint8_t *room)
{
    worker me = {address(room), room, cluster_rank(), (int)threadIdx.x / 32, (int)threadIdx.x & 31, 0, 0, 0, 0, 0};
    pdl_trigger();
    pdl_wait(); /* the first launch of a step */
    me.pos = *a.pos;
    if (threadIdx.x == 0) {
        for (int i = 0; i < CU_SMALL_REGIONS; i++) {
            barrier_init(full(me.sm, i), 1);
            barrier_init(used(me.sm, i), CU_SMALL_WARPS);
        }
        for (int i = 0; i < 2 * CU_SMALL_KV_SLOTS; i++) {
            barrier_init(keys_full(me.sm, 0, i), 1);
            barrier_init(keys_used(me.sm, 0, i), WARPS_OF_HALF);
        }
        barrier_init(turn_there(me.sm), 32);
        for (int i = 0; i < N_TOLD; i++) {
            barrier_init(told(me.sm, i), 1);
            if (i != TOLD_ROW) barrier_expect(told(me.sm, i), bytes_told(a, i, me.rank, me.pos));
        }
    }
    cluster_begin();
    if (me.warp == CU_SMALL_WARPS) bring_weights(a, me.sm, (float *)(room + a.turn));
    else if (me.warp > CU_SMALL_WARPS) bring_keys(a, me.sm);
    else compute<F>(a, me);
}
#define BODY(...) small<code4<__VA_ARGS__>>(a, room);
#else
#define BODY(...)
#endif

#define KERNEL(name, ...)                                                                                                            \
    extern "C" __global__ void __launch_bounds__(CU_SMALL_THREADS, 1) k_small_##name(const __grid_constant__ cu_small a)            \
    {                                                                                                                                \
        extern __shared__ __align__(1024) uint8_t room[];                                                                            \
        BODY(__VA_ARGS__)                                                                                                            \
    }
CU_SMALL_FORMATS(KERNEL)
