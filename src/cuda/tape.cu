/* tape.cu: a step of one row as one launch that stays (cu_tape in abi.h): a thread block on each multiprocessor, and all go through the phases of a tape
 * together. A phase makes a row - the norm of the residual stream, units, what heads gave - in every block alike, rotated, as planes; then a block
 * multiplies its tiles of the phase's matrices and tells all others its outputs, words in memory that they wait for one by one: no barrier of the
 * grid, no launch, and instructions that stay in the caches. One warp brings tiles, of later phases too, as far ahead as its ring has room: weights
 * depend on nothing. Another clears the words of the step before. */
#include "cuda/tape_ring.cuh"
#include "cuda/tape_attn.cuh"
#include "cuda/tape_choice.cuh"
#include "cuda/delta_rows.cuh"

#if __CUDA_ARCH__ >= 900

/* ---- shares ---- */

/* Tiles of a phase, or pairs of them, that are this block's. */
struct range {
    int first, n;
    __device__ __forceinline__ range(int tiles)
    {
        first = (int)((uint32_t)tiles * blockIdx.x / gridDim.x);
        n = (int)((uint32_t)tiles * (blockIdx.x + 1) / gridDim.x) - first;
    }
};

/* The matrix of tile t of those of a phase, and the tile's number there. */
__device__ __forceinline__ const cu_tape_matrix &matrix_of(const cu_tape_phase &p, int &t)
{
    const cu_tape_matrix *m = p.u.m.matrix;
    for (int i = 1; i < p.n_matrices && t >= m->tiles; i++) t -= m++->tiles;
    return *m;
}

/* ---- the warp that brings tiles ---- */

/* One thread. */
__device__ __forceinline__ void bring_tile(const cu_tape_phase &p, const cu_tape_matrix &m, int tile, uint32_t to, uint32_t bar)
{
    int row = tile * 16, codes = 16 * p.row_bytes, scales = 16 * p.scale_bytes;
    barrier_expect(bar, (uint32_t)(codes + 2 * scales));
    fetch_rows(to, m.map, row, bar);
    bulk_copy_once(to + codes, m.scales + (size_t)row * p.scale_bytes, scales, bar);
    bulk_copy_once(to + codes + scales, m.biases + (size_t)row * p.scale_bytes, scales, bar);
}

template <bool NORMED> __device__ __forceinline__ void bring(const cu_tape &a, const window &tape, uint32_t sm, int slot, int pos, bool fresh, const float *told, uint2 *chosen)
{
    int lane = threadIdx.x & 31;
    ring r(a, sm);
    key_blocks blocks(a.step, slot);
    choice<NORMED ? CU_TAPE_EXPERTS_FEW : CU_TAPE_EXPERTS_MOST> experts = {chosen};
#pragma unroll 1
    for (int i = 0; i < a.n_phases; i++, tape.leave(i - 1)) {
        const cu_tape_phase &p = tape.get(i);
        if (fresh && lane < p.n_matrices) acquire_map(p.u.m.matrix[lane].map);
        if (p.kind == CU_TAPE_DELTA) continue;
        if (p.kind == CU_TAPE_ATTN) {
            bring_keys(p, p.u.a.a.kv.dim / 64, r, blocks, pos, tape.base + CU_TAPE_FROM);
            continue;
        }
        range mine(p.tiles);
        if (p.kind == CU_TAPE_EXPERTS) experts.make(p, told, a.step);
        int all = mine.n * p.pieces, n;
#pragma unroll 1
        for (int done = 0; done < all; done += n) {
            uint32_t to = r.take(p.tile_bytes, all - done, n);
            int k = done + lane, t = mine.first + (p.pieces == 2 ? k / 2 : k);
            if (lane < n) {
                const cu_tape_matrix &m = p.kind == CU_TAPE_DOWN ? experts.part_of(p, mine.first, k, t) : p.units ? p.u.m.matrix[k & 1] : matrix_of(p, t);
                if (p.kind == CU_TAPE_EXPERTS) t = experts.tile_of(p, t);
                bring_tile(p, m, t, to, full(sm, r.slot));
            }
            __syncwarp();
        }
        if (p.kind == CU_TAPE_EXPERTS) experts.template weigh<NORMED>(p);
    }
}

/* ---- the warp that brings the tape, and clears words ---- */

/* Lines of n bytes at p, which a block shares with all others or has for itself, into the L2 cache. */
__device__ __forceinline__ void fetch_shared(const void *p, int n)
{
#pragma unroll 1
    for (int i = 128 * (32 * blockIdx.x + threadIdx.x % 32); p && i < n; i += 128 * 32 * gridDim.x) prefetch((const uint8_t *)p + i);
}
__device__ __forceinline__ void fetch_own(const void *p, int n)
{
#pragma unroll 1
    for (int i = 128 * (threadIdx.x % 32); i < n; i += 128 * 32) prefetch((const uint8_t *)p + i);
}

/* What a phase reads of memory, but for what comes through the ring. */
template <bool NORMED> __device__ __forceinline__ void fetch_ahead(const cu_tape_phase &p, int slot, int pos)
{
    if (p.kind == CU_TAPE_DELTA) {
        const cu_delta_step &d = p.u.d.a;
        int width = 2 * d.k_heads * d.dk + d.v_heads * d.dv;
        fetch_shared(d.conv_w, 16 * width);
        for (int i = 1; i < 4; i++) fetch_shared(d.ring + (size_t)slot * d.ring_floats + ((pos + i) & 3) * width, 4 * width);
        for (int h = blockIdx.x; h < d.v_heads; h += gridDim.x) fetch_own(d.state + (size_t)slot * d.state_floats + (size_t)h * d.dv * d.dk, 4 * d.dv * d.dk);
        return;
    }
    if (p.kind == CU_TAPE_ATTN) {
        const cu_attn_step &s = p.u.a.a;
        fetch_shared(s.q_norm.w, 4 * s.kv.dim);
        fetch_shared(s.k_norm.w, 4 * s.kv.dim);
        return;
    }
    fetch_shared(p.norm_w, 4 * p.n);
    if (NORMED) {
        const cu_tape_added &d = p.u.m.added;
        for (int i = 0; i < d.n; i++) fetch_shared(d.w[i], 4 * p.n);
        fetch_shared(d.both_w, 4 * p.n);
        fetch_shared(p.u.m.plain_w, 4 * p.n);
    }
    fetch_shared(p.signs, 4 * p.n);
    for (int i = 0; i < p.n_matrices; i++)
        if (threadIdx.x % 32 == i) prefetch_map(p.u.m.matrix[i].map);
    for (int i = 0; i < p.u.m.n_plain; i++) fetch_shared(p.u.m.plain[i].codes, (int)p.u.m.plain[i].row_bytes * p.u.m.plain[i].rows);
}

/* All of the other set: whatever a step before told. */
__device__ __forceinline__ void clear_words(const cu_tape &a, int set)
{
    float none = __uint_as_float(CU_UNTOLD);
    float4 *w = (float4 *)(a.told + (size_t)(set ^ 1) * a.words);
    for (int i = blockIdx.x * 32 + threadIdx.x % 32; i < a.words / 4; i += 32 * gridDim.x) w[i] = make_float4(none, none, none, none);
}

template <bool NORMED> __device__ __forceinline__ void bring_tape(const cu_tape &a, const window &tape, int slot, int pos, int set)
{
    enum { AHEAD = 2 }; /* phases that are under way when one is looked into */
#pragma unroll 1
    for (int i = 0; i < a.n_phases + AHEAD; i++) {
        if (i == min((int)CU_TAPE_WINDOW, a.n_phases)) {
            pdl_wait();
            clear_words(a, set);
        }
        if (i < a.n_phases) {
            if (i >= CU_TAPE_WINDOW) barrier_wait(tape.left(i), i / CU_TAPE_WINDOW - 1 & 1);
            if (threadIdx.x % 32 == 0) tape.bring(a.phases, i);
        }
        if (i >= AHEAD) fetch_ahead<NORMED>(tape.get(i - AHEAD), slot, pos);
    }
}

/* ---- the warps that compute ---- */

/* ---- products ---- */

typedef format<CU_FMT_AFFINE, 8, 64, CU_S_BF16> dense_format; /* of matrices beside the others (k_tape_normed) */

/* Sums of a phase's tiles: [tile][segment][16]; those of a remainder behind all of them. Where results of experts are made there are as many rows, `ranks`, side
 * by side, and tile t is multiplied with row t % ranks; the last one may have a remainder. */
template <class F> __device__ __forceinline__ void multiply(const cu_tape &a, const worker &me, const cu_tape_phase &p, int tiles)
{
    enum { SEGS = F::PACK == 1 ? 1 : 4, SUBS = CU_SEGMENTS / SEGS, STREAMS = CU_TAPE_WARPS / SUBS }; /* a warp has so many segments of a tile */
    bool results = p.kind == CU_TAPE_DOWN;
    int warp = threadIdx.x / 32;
    forget(warp);
    int G = p.n_groups, groups = results ? p.u.m.route.groups : G, ranks = results ? p.pieces : 1, l0 = warp % SUBS * SEGS, at = 0;
    cu_cut cut = {0, p.row_bytes, p.scale_bytes, 0};
    columns_view k = {me.sm + a.planes, me.sm + CU_TAPE_ZEROS, me.sm + a.planes + G * F::X_BYTES, 1, 0};
    int further = a.rests - a.planes, has_rest = me.rests() & 1;
    chains<F, 1, SEGS, true> all;
    all.begin(k, cut, groups, l0);
#pragma unroll 1
    for (int t = warp / SUBS; t < tiles; t += STREAMS) {
        uint32_t seq = me.next + t, slot = seq % CU_TAPE_SLOTS, sums = me.sm + a.sums + t * CU_SEGMENTS * 64;
        int rank = results ? (unsigned)t % (unsigned)ranks : 0;
        bool rest = rank == ranks - 1 && has_rest;
        if (results) all.other_column(rank - at, groups * F::X_BYTES, 4 * groups);
        at = rank;
        barrier_wait(full(me.sm, slot), seq / CU_TAPE_SLOTS & 1);
        uint32_t stage = lds_u32(tile_at(me.sm, slot));
#pragma unroll 1
        for (int pass = 0;; pass++) {
            float acc[1][2];
            all.go(stage, G, acc);
            all.store(sums + pass * a.half_sums, 1, 0, l0, acc);
            if (pass == rest) break;
            all.other_column(1, further, further);
        }
        if (rest) all.other_column(-1, further, further);
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(empty(me.sm, slot), SEGS);
    }
}

/* Output number `row` of tile t of the block. */
__device__ __forceinline__ float sum_of(const cu_tape &a, const worker &me, int t, int row, int pass)
{
    uint32_t at = me.sm + a.sums + pass * a.half_sums + (t * CU_SEGMENTS * 16 + row) * 4;
    float y = lds_float(at);
#pragma unroll
    for (int s = 1; s < CU_SEGMENTS; s++) y = y + lds_float(at + 64 * s);
    return y;
}
__device__ __forceinline__ float sum_after(const cu_tape &a, const worker &me, int t, int row, float before)
{
    float y = before + sum_of(a, me, t, row, 0); /* -0 plus x is x */
    if (__builtin_expect(me.rests() & 1, 0)) y = y + sum_of(a, me, t, row, 1);
    return y;
}

template <bool NORMED> __device__ __forceinline__ void give_outputs(const cu_tape &a, const worker &me, const cu_tape_phase &p, const range &mine)
{
    int row = threadIdx.x & 15;
#pragma unroll 1
    for (int k = threadIdx.x / 16; k < mine.n; k += CU_TAPE_WORKERS / 16) {
        int t = mine.first + k;
        if (p.units) {
            float gate = sum_after(a, me, 2 * k, row, -0.0f), up = sum_after(a, me, 2 * k + 1, row, -0.0f);
            tell(me.told + p.u.m.matrix[0].to + 16 * t + row, (NORMED ? cb_gelu_tanhf(gate) : cb_siluf(gate)) * up);
            continue;
        }
        const cu_tape_matrix &m = matrix_of(p, t);
        int n = 16 * t + row;
        float y = sum_after(a, me, k, row, p.adds ? me.shared[a.x / 4 + place(n)] : -0.0f);
        tell(me.told + m.to + n, y);
    }
}

/* ---- products of the row before it is rotated ---- */

/* A block takes a row of weights; a thread eight neighbours of it, which it has fetched before the row is there. */
struct plain_row;
__device__ __forceinline__ void fetch_affine(const cu_tape_phase &p, plain_row &to, int first);
struct plain_row {
    uint2 high, low;         /* or eight codes; scale and bias */
    float scale;
    int n;               /* its number; not less than all: none */
    __device__ __forceinline__ void fetch(const cu_tape_phase &p, int number)
    {
        const cu_tape_plain *w = p.u.m.plain;
        int e = 8 * threadIdx.x;
        if (p.u.m.affine) {
            fetch_affine(p, *this, number);
            return;
        }
        n = number;
        for (int i = 1; i < p.u.m.n_plain && number >= w->rows; i++) number -= w++->rows;
        if (number >= w->rows || e >= p.n) return;
        const uint8_t *from = w->codes + number * w->row_bytes + (e & ~63) * 2 + (e & 63);
        high = *(const uint2 *)from;
        low = *(const uint2 *)(from + 64);
        if (e % 64 == 0) scale = w->scales[(size_t)number * (p.n / 64) + e / 64];
    }
};

/* Its product with the planes at x: of each group scale and product go to `parts`, which one warp adds up. */
__device__ __forceinline__ float plain_product(const cu_tape_phase &p, const plain_row &w, uint32_t x, uint32_t parts)
{
    int e = 8 * threadIdx.x, lane = threadIdx.x & 31, G = p.n / 64;
    if (e - 8 * lane < p.n) { /* whole warps */
        uint32_t h[2] = {0, 0}, l[2] = {0, 0};
        if (e < p.n) {
            lds<2>(h, x + e);
            lds<2>(l, x + p.n + e);
        }
        int hh = __dp4a((int)w.high.x, (int)h[0], __dp4a((int)w.high.y, (int)h[1], 0)), ll = __dp4a((int)w.low.x, (int)l[0], __dp4a((int)w.low.y, (int)l[1], 0));
        int mid = __dp4a((int)w.high.x, (int)l[0], __dp4a((int)w.high.y, (int)l[1], __dp4a((int)w.low.x, (int)h[0], __dp4a((int)w.low.y, (int)h[1], 0))));
        for (int k = 1; k < 8; k *= 2) {
            hh += __shfl_xor_sync(FULL, hh, k);
            mid += __shfl_xor_sync(FULL, mid, k);
            ll += __shfl_xor_sync(FULL, ll, k);
        }
        if (e % 64 == 0 && e < p.n) sts_float2(parts + e / 8, w.scale, lds_float(x + 2 * p.n + e / 16) * planes_to_f32(hh, mid, ll));
    }
    meet();
    float y = 0;
    if (threadIdx.x < 32) {
        int s = lane & 7;
        for (int g = s * G / CU_SEGMENTS; g < (s + 1) * G / CU_SEGMENTS; g++) {
            float2 v = lds_float2(parts + 8 * g);
            y = cb_fma(v.x, v.y, y);
        }
        float all = __shfl_sync(FULL, y, 0);
        for (int k = 1; k < CU_SEGMENTS; k++) all = all + __shfl_sync(FULL, y, k);
        y = all;
    }
    return y;
}

#include "cuda/tape_experts.cuh"

/* All rows of the block; the first one is there. */
__device__ __forceinline__ void plain_products(const cu_tape &a, const worker &me, const cu_tape_phase &p, plain_row &w)
{
    int n = 0, bytes = 2 * p.n + p.n / 8; /* planes, dx and X of a row */
    for (int i = 0; i < p.u.m.n_plain; i++) n += p.u.m.plain[i].rows;
#pragma unroll 1
    for (; w.n < n; w.fetch(p, w.n + gridDim.x)) {
        float y = plain_product(p, w, me.sm + a.plain, me.sm + a.sums);
        if (__builtin_expect(me.rests() & 2, 0)) {
            meet();
            y = y + plain_product(p, w, me.sm + a.plain + bytes, me.sm + a.sums);
        }
        int number = w.n;
        const cu_tape_plain *m = p.u.m.plain;
        for (int i = 1; i < p.u.m.n_plain && number >= m->rows; i++) number -= m++->rows;
        if (threadIdx.x == 0) tell(me.told + m->to + number, y);
        meet(); /* the parts are read */
    }
}

template <class F, bool NORMED> __device__ __forceinline__ void products(const cu_tape &a, worker &me, const cu_tape_phase &p)
{
    range mine(p.tiles);
    int tiles = mine.n * p.pieces;
    if (NORMED && p.u.m.bytes) multiply<dense_format>(a, me, p, tiles);
    else multiply<F>(a, me, p, tiles);
    me.next += tiles;
    meet();
    if (p.kind != CU_TAPE_DOWN) give_outputs<NORMED>(a, me, p, mine);
    else if (NORMED) give_sums(a, me, p, mine);
    else give_results(a, me, p, mine);
}

/* ---- a phase ---- */

/* The row of a phase as planes. Returns false where nothing is multiplied. */
template <class F> __device__ __forceinline__ bool norm_phase(const cu_tape &a, worker &me, const cu_tape_phase &p)
{
    float v[1][8], w[8];
    plain_row plain = {{}, {}, 0, p.u.m.n_plain ? (int)blockIdx.x : 1 << 30};
    uint32_t x = me.sm + a.x;
    int e = 8 * threadIdx.x;
    uint32_t signs[1];
    fetch_signs(p, signs);
    each<8>([&](int i) { w[i] = 0; });
    if (p.norm_w && e < p.n) load(w, p.norm_w + e);
    if (p.u.m.n_plain) plain.fetch(p, blockIdx.x);
    hear_row(p, me.told, v);
    if (e < p.n) put8(x + 4 * place(e), v[0]);
    if (p.out && blockIdx.x == 0 && e < p.n) store8(p.out + e, v[0]);
    if (!p.tiles) return false;
    meet();
    if (threadIdx.x < 32) {
        float inv = inverse_of(p, squares(me.shared + a.x / 4, p.n), p.eps);
        if (threadIdx.x == 0) sts_float(me.sm + CU_TAPE_WORDS, inv);
    }
    meet();
    float inv = lds_float(me.sm + CU_TAPE_WORDS);
    each<8>([&](int i) { v[0][i] = (v[0][i] * inv) * w[i]; });
    if (p.u.m.n_plain) quant_plain(a, p, v[0], me.sm);
    rotate(p, me.shared + a.row / 4, v, signs);
    me.have_rests(quant<F>(a, p, v, me.sm));
    if (p.u.m.n_plain) {
        me.have_rests(me.rests() | plain_rests(a, p, me.sm, [&](float(&u)[8]) { norm_again(x, inv, p.norm_w, u); }));
        if (p.u.m.affine) affine_products(a, me, p, plain);
        else plain_products(a, me, p, plain);
    }
    return true;
}

template <class F, int R> __device__ __forceinline__ void row_phase(const cu_tape &a, worker &me, const cu_tape_phase &p)
{
    float v[R][8];
    uint32_t signs[R];
    fetch_signs(p, signs);
    hear_row(p, me.told, v);
    rotate(p, me.shared + a.row / 4, v, signs);
    me.have_rests(quant<F>(a, p, v, me.sm));
}

/* A value head (delta_step.cu). */
template <int PER> __device__ __forceinline__ void delta_head(const cu_tape &a, const worker &me, const cu_tape_phase &p, int number)
{
    constexpr int dk = 32 * PER;
    const cu_delta_step &d = p.u.d.a;
    shared &sm = *(shared *)(me.shared + a.row / 4);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, second = warp & 1, t = threadIdx.x;
    bool knows = warp >= CU_TAPE_WARPS - 2, steps = ROWS * warp < d.dv, in = t < 2 * (dk + d.dv);
    head_of h = {0, number * d.k_heads / d.v_heads, number, me.slot(), me.pos(), d.a_log[number], d.dt_bias[number]};
    if (t < d.dv) sm.norm_w[t] = d.norm_w[t];
    channel c = channel_of<PER>(d, h, me.told + p.u.d.x, me.told + p.u.d.z, in);
    rows<PER> state;
    state.load(state_of<PER>(d, h), steps && h.pos > 0);
    float ahead = c.ahead(), newest = c.w.w, a_exp = cb_expf(h.a_log);
    float x = in ? hear(c.x) : 0;
    if (in && c.ring) *c.ring = x;
    x = cb_siluf(cb_fma(newest, x, ahead));
    if (in) sm.u[t] = x;
    if (knows) {
        float rate = hear(me.told + (second ? p.u.d.beta : p.u.d.alpha) + number);
        rate = second ? cb_sigmoidf(rate) : cb_expf(-(a_exp * cb_softplusf(rate + h.dt_bias)));
        if (lane == 0) sm.rate[second] = rate;
    }
    meet();
    if (knows) {
        x = norm_of<PER>(sm.u, second);
        if (lane == 0) sm.norm[second] = x;
    }
    state.fade(sm.rate[0]);
    meet();
    if (steps) {
        float o = state.step(sm, warp * ROWS + lane / 4);
        if (lane % 4 == 0) sm.o[warp * ROWS + lane / 4] = o;
    }
    meet();
    if (warp == 0) {
        float4 y = norm_gate(d, sm);
        float *to = me.told + p.u.d.to + number * d.dv + 4 * lane;
        if (4 * lane < d.dv) tell(to, y.x), tell(to + 1, y.y), tell(to + 2, y.z), tell(to + 3, y.w);
    }
    if (steps) state.store(state_of<PER>(d, h));
    meet(); /* before another head, or a row, stands there */
}

template <class F> __device__ __forceinline__ void work(const cu_tape &a, const window &tape, worker &me)
{
#pragma unroll 1
    for (int i = 0; i < a.n_phases; i++, tape.leave(i - 1)) {
        const cu_tape_phase &p = tape.get(i);
        if (p.kind == CU_TAPE_ATTN) {
            if (p.u.a.a.kv.dim == 128) attn_phase<2, true>(me, p);
            else attn_phase<4, true>(me, p);
            continue;
        }
        if (p.kind == CU_TAPE_DELTA) {
#pragma unroll 1
            for (int h = blockIdx.x; h < p.u.d.a.v_heads; h += gridDim.x) {
                if (p.u.d.a.dk == 32) delta_head<1>(a, me, p, h);
                else if (p.u.d.a.dk == 64) delta_head<2>(a, me, p, h);
                else delta_head<4>(a, me, p, h);
            }
            continue;
        }
        if (p.kind == CU_TAPE_DOWN) units_phase<F>(a, me, p);
        else if (p.kind == CU_TAPE_EXPERTS) {
            meet();            /* sums are read */
            me.have_rests(0);  /* the planes at hand */
        } else if (p.kind == CU_TAPE_NORM) {
            if (!norm_phase<F>(a, me, p)) continue;
        } else if (p.n <= 8 * CU_TAPE_WORKERS) row_phase<F, 1>(a, me, p);
        else row_phase<F, CU_TAPE_ROUNDS>(a, me, p);
        products<F, false>(a, me, p);
    }
}

#include "cuda/tape_normed.cuh"

template <class F, bool NORMED> __device__ __forceinline__ void run(const cu_tape &a, unsigned char *base)
{
    uint32_t sm = address(base);
    pdl_trigger();
    int slot = *a.slot, pos = *a.pos, turn = *a.turn, set = turn & 1;
    window tape = {base, sm};
    if (threadIdx.x < CU_TAPE_SLOTS) {
        barrier_init(full(sm, threadIdx.x), 1);
        barrier_init(empty(sm, threadIdx.x), CU_SEGMENTS);
    }
    if (threadIdx.x < CU_TAPE_WINDOW) {
        barrier_init(tape.there(threadIdx.x), 1);
        barrier_init(tape.left(threadIdx.x), window::LEAVE);
    }
    if (threadIdx.x < 64) ((uint32_t *)(base + CU_TAPE_ZEROS))[threadIdx.x] = 0;
    if (threadIdx.x < 2) ((int *)(base + CU_TAPE_SESSION))[threadIdx.x] = threadIdx.x ? pos : slot;
    for (int i = a.width + threadIdx.x; i < (a.width + 511) / 512 * 512; i += CU_TAPE_THREADS) ((float *)base)[a.x / 4 + place(i)] = 0; /* behind the row */
    __syncthreads();
    int warp = threadIdx.x / 32;
    if (warp == CU_TAPE_WARPS) bring<NORMED>(a, tape, sm, slot, pos, turn & CU_TAPE_FRESH, a.told + (size_t)set * a.words, (uint2 *)(base + a.chosen));
    else if (warp == CU_TAPE_WARPS + 1) bring_tape<NORMED>(a, tape, slot, pos, set);
    else if (warp < CU_TAPE_WARPS) {
        worker me = {a, sm, (float *)base, a.told + (size_t)set * a.words, 0};
        pdl_wait();
        if constexpr (NORMED) work_normed<F>(a, tape, me);
        else work<F>(a, tape, me);
    }
}
#endif

#define KERNEL(name, fmt, bits, group, scale) TAPE(name, false, (format<fmt, bits, group, scale>))
#define TAPE(name, normed, F)                                                                                                       \
    extern "C" __global__ void __launch_bounds__(CU_TAPE_THREADS, 1) k_tape_##name(const __grid_constant__ cu_tape a)               \
    {                                                                                                                               \
        extern __shared__ __align__(1024) uint8_t room[];                                                                      \
        RUN(normed, F)                                                                                                              \
    }
#if __CUDA_ARCH__ >= 900
#define RUN(normed, F) run<UNPACK F, normed>(a, room);
#define UNPACK(...) __VA_ARGS__
#else
#define RUN(normed, F)
#endif
CU_TAPE_FORMATS(KERNEL)
TAPE(normed, true, (format<CU_FMT_AFFINE, 4, 64, CU_S_BF16>))
