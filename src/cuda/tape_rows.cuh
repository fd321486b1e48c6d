/* tape_rows.cuh: the row of a phase of tape.cu: heard word by word, rotated, as planes where products read them. A worker has eight neighbouring values
 * of each round of 4,096. */
#ifndef CB_CUDA_TAPE_ROWS_CUH
#define CB_CUDA_TAPE_ROWS_CUH
#include "cuda/few.cuh"
#include "cuda/stream_chains.cuh"

enum { ROUND = 8 * CU_TAPE_WORKERS };

/* This worker's first value of a row: found out again where it is asked for. What depends on it would stand in registers from phase to phase, others would be
 * spilled, and beside so much shared memory the L1 cache does not hold what is. */
__device__ __forceinline__ int first_value()
{
    int t = threadIdx.x;
    forget(t);
    return 8 * t;
}

/* The computing warps only. */
__device__ __forceinline__ void meet() { barrier_among(1, CU_TAPE_WORKERS); }

__device__ __forceinline__ void put8(uint32_t at, const float (&v)[8])
{
    sts_float4(at, v[0], v[1], v[2], v[3]);
    sts_float4(at + 16, v[4], v[5], v[6], v[7]);
}
__device__ __forceinline__ void get8(float (&v)[8], uint32_t at)
{
    float4 a = lds_float4(at), b = lds_float4(at + 16);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
    v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

/* Eight values to memory. */
__device__ __forceinline__ void store8(float *to, const float (&v)[8])
{
    ((float4 *)to)[0] = make_float4(v[0], v[1], v[2], v[3]);
    ((float4 *)to)[1] = make_float4(v[4], v[5], v[6], v[7]);
}

/* ---- words ---- */

__device__ __forceinline__ bool untold(float v) { return __float_as_uint(v) == CU_UNTOLD; }
__device__ __forceinline__ bool untold(const float4 &v) { return untold(v.x) || untold(v.y) || untold(v.z) || untold(v.w); }

/* No number has these bits: what is none is the GPU's own, 0x7fffffff. */
__device__ __forceinline__ float sayable(float v) { return untold(v) ? __uint_as_float(0x7fffffff) : v; }
__device__ __forceinline__ void tell(float *p, float v) { tell_word(p, sayable(v)); }
__device__ __forceinline__ void tell2(float *p, float a, float b) { tell_words2(p, sayable(a), sayable(b)); }

__device__ __forceinline__ float hear(const float *p)
{
    float v = told_word(p);
    while (untold(v)) {
        not_yet();
        v = told_word(p);
    }
    return v;
}

/* R rows, or rounds of one: eight neighbours of each from at(r) on where this worker has some of them, in(r); else zeros. All loads are under way together.
 * told: they are words; else they stand in memory. */
template <int R, class A, class I> __device__ __forceinline__ void hear_rounds(A at, I in, bool told, float (&v)[R][8])
{
    float4 q[R][2];
    each<R>([&](int r) { each<2>([&](int h) { q[r][h] = in(r) ? told_words(at(r) + 4 * h) : make_float4(0, 0, 0, 0); }); });
    for (bool missing = told; missing;) {
        missing = false;
        each<R>([&](int r) { each<2>([&](int h) { missing |= untold(q[r][h]); }); });
        if (!missing) break;
        not_yet();
        each<R>([&](int r) { each<2>([&](int h) { if (untold(q[r][h])) q[r][h] = told_words(at(r) + 4 * h); }); });
    }
    __syncwarp();
    each<R>([&](int r) {
        each<2>([&](int h) { v[r][4 * h] = q[r][h].x, v[r][4 * h + 1] = q[r][h].y, v[r][4 * h + 2] = q[r][h].z, v[r][4 * h + 3] = q[r][h].w; });
    });
}

/* The row of a phase. */
template <int R> __device__ __forceinline__ void hear_row(const cu_tape_phase &p, const float *told, float (&v)[R][8])
{
    const float *at = p.from < 0 ? p.in : told + p.from;
    int e = first_value();
    hear_rounds([&](int r) { return at + ROUND * r + e; }, [&](int r) { return e + ROUND * r < p.n; }, p.from >= 0, v);
}

/* ---- rotation ---- */

/* Bit i of signs[r]: this worker's value i of round r is negated. */
template <int R> __device__ __forceinline__ void fetch_signs(const cu_tape_phase &p, uint32_t (&signs)[R])
{
    int e = 8 * threadIdx.x;
    each<R>([&](int r) {
        signs[r] = 0;
        if (!p.signs || e + ROUND * r >= p.n) return;
        float u[8];
        load(u, p.signs + ROUND * r + e);
        each<8>([&](int i) { signs[r] |= (__float_as_uint(u[i]) >> 31) << i; });
    });
}

template <int R> __device__ __forceinline__ void rotate(const cu_tape_phase &p, float *stage, float (&v)[R][8], const uint32_t (&signs)[R])
{
    if (!p.block) return;
    int t = threadIdx.x, first = 8 * (t & ~31); /* of the warp */
    uint32_t own = address(stage) + 4 * place(8 * t);
    each<R>([&](int r) {
        int n = min(p.n - ROUND * r, (int)ROUND);
        if (n <= 0) return;
        each<8>([&](int i) { v[r][i] = __uint_as_float(__float_as_uint(v[r][i]) ^ (signs[r] >> i & 1) << 31); });
        cross(v[r], 1, p.block);
        if (p.block > 8) {
            if (first < n) {
                put8(own, v[r]);
                __syncwarp();
                warp_strides(stage, p.block);
                __syncwarp();
            }
            if (p.block > 256) {
                meet();
                if (p.block == 512) wide_strides<1>(stage, n);
                else if (p.block == 1024) wide_strides<2>(stage, n);
                else if (p.block == 2048) wide_strides<3>(stage, n);
                else four_wide_strides(stage, n);
                meet();
            }
            if (first < n) get8(v[r], own);
            __syncwarp();
        }
        each<8>([&](int i) { v[r][i] = v[r][i] * p.turn_scale; });
    });
}

/* ---- fixed point ---- */

/* Eight neighbours, e and on, to where products of format F read them; column: of the row's planes. */
template <class F> __device__ __forceinline__ void put_planes(uint32_t column, int e, const ints<8> &r)
{
    constexpr int RUN = 4 * F::WORDS; /* bytes of a row that a lane multiplies */
    int g = (unsigned)e / F::VALUES, b = (unsigned)e % F::VALUES / F::PACK;
    uint32_t hi[2], lo[2];
    each<2>([&](int k) {
        const uint32_t *t = r.t + 4 * k;
        lo[k] = __byte_perm(__byte_perm(t[0], t[1], 0x0040), __byte_perm(t[2], t[3], 0x0040), 0x5410);
        hi[k] = __byte_perm(__byte_perm(t[0] + 128, t[1] + 128, 0x0051), __byte_perm(t[2] + 128, t[3] + 128, 0x0051), 0x5410);
    });
    uint32_t to = column + g * F::X_BYTES + b / RUN * F::LANE + b % RUN;
    each<F::PACK>([&](int j) {
        uint32_t at = to + j * RUN / F::LANE * (8 * F::LANE) + j * RUN % F::LANE;
        each<2>([&](int low) {
            const uint32_t *w = low ? lo : hi;
            uint32_t at_plane = at + low * 4 * F::LANE;
            if constexpr (F::PACK == 4) sts_u16(at_plane, __byte_perm(w[0], w[1], j | (4 + j) << 4));
            else if constexpr (F::PACK == 2) {
                uint32_t u = __byte_perm(w[0], w[1], j | (2 + j) << 4 | (4 + j) << 8 | (6 + j) << 12);
                sts<1>(at_plane, &u);
            } else sts<2>(at_plane, w);
        });
    });
}

/* What a warp knows of a row, for all of them: its largest magnitude and sum of squares. */
__device__ __forceinline__ void tell_found(uint32_t sm, int which, uint32_t most, float sum, cu_step *step, int op)
{
    most = __reduce_max_sync(FULL, most);
    for (int w = 1; w < 32; w *= 2) sum += __shfl_xor_sync(FULL, sum, w);
    uint32_t v[2] = {most, __float_as_uint(sum)};
    if (threadIdx.x % 32 == 0) sts<2>(sm + CU_TAPE_FOUND + 8 * (CU_TAPE_WARPS * which + threadIdx.x / 32), v);
    put_least(&step->bad_op, op, most >= 0x7f800000u && blockIdx.x == 0);
}

/* Has the row a remainder, for what all warps found? As wants() says; *energy: its first argument. */
__device__ __forceinline__ int look(uint32_t sm, int which, float share, float *energy)
{
    uint32_t v[2];
    lds<2>(v, sm + CU_TAPE_FOUND + 8 * (CU_TAPE_WARPS * which + threadIdx.x % CU_TAPE_WARPS));
    float sum = __uint_as_float(v[1]);
    for (int w = 1; w < CU_TAPE_WARPS; w *= 2) sum += __shfl_xor_sync(FULL, sum, w);
    *energy = energy_of(__reduce_max_sync(FULL, v[0]));
    return wants(*energy, sum, share);
}

/* The comparison with the lane tree of the row's squares, when another order leaves it open. */
template <int R> __device__ __forceinline__ bool look_closely(const cu_tape &a, uint32_t sm, const float (&v)[R][8], int n, float energy, float share)
{
    float ss = 0;
    int e = first_value();
    uint32_t stage = sm + a.row;
    each<R>([&](int r) {
        if (ROUND * r >= n) return;
        meet();
        if (ROUND * r + e < n) put8(stage + 4 * place(e), v[r]);
        meet();
#pragma unroll 1
        for (int i = threadIdx.x; threadIdx.x < 32 && i < min(n - ROUND * r, (int)ROUND); i += 32) {
            float u = lds_float(stage + 4 * place(i));
            ss = cb_fma(u, u, ss);
        }
    });
    if (threadIdx.x < 32) {
        ss = lane_fold(ss);
        if (threadIdx.x == 0) sts_float(sm + CU_TAPE_WORDS + 4, energy > share * ss ? 1.0f : 0.0f);
    }
    meet();
    return lds_float(sm + CU_TAPE_WORDS + 4) != 0;
}

/* Integers of this worker's values of a round; `lanes` share a group. */
__device__ __forceinline__ uint32_t group_of(const float (&v)[8], int lanes, ints<8> &r)
{
    uint32_t most = most_of(v), m = most;
#pragma unroll
    for (int w = 1; w < 16; w *= 2) {
        uint32_t other = __shfl_xor_sync(FULL, m, w);
        m = max(m, w < lanes ? other : 0);
    }
    fix(v, m, lanes, r);
    return most;
}
__device__ __forceinline__ void keep_rest(float (&v)[8], const ints<8> &r) { each<8>([&](int i) { v[i] = r.dx != 0 ? rest(v[i], r.t[i], r.dx) : v[i]; }); }

/* The row as planes, its remainder, too, if it has one: then 1. Behind it the planes are there. put(column, e, q): as put_planes() of a format with as many
 * values in a group as F. */
template <class F, int R, class P> __device__ __forceinline__ uint32_t quant(const cu_tape &a, const cu_tape_phase &p, float (&v)[R][8], uint32_t sm, P put)
{
    int e = first_value(), G = p.n_groups;
    uint32_t column = sm + a.planes;
#pragma unroll 1
    for (bool again = false;; again = true) {
        uint32_t most = 0;
        float sum = 0, energy;
        each<R>([&](int r) {
            if (ROUND * r >= p.n) return;
            int first = ROUND * r + e;
            ints<8> q;
            most = max(most, group_of(v[r], F::VALUES / 8, q));
            each<8>([&](int i) { sum = cb_fma(v[r][i], v[r][i], sum); });
            if (first >= p.n) return;
            put(column, first, q);
            if (first % F::VALUES) return;
            uint32_t to = column + G * F::X_BYTES + 4 * ((unsigned)first / F::VALUES);
            sts_float(to, q.dx);
            sts_float(to + 4 * G, q.dx * (float)q.sum);
        });
        if (!again) tell_found(sm, 0, most, sum, a.step, p.op);
        meet();
        if (again || p.share < 0) return again;
        int more = look(sm, 0, p.share, &energy);
        if (__builtin_expect(more < 0, 0)) more = look_closely(a, sm, v, p.n, energy, p.share);
        if (__builtin_expect(!more, 1)) return 0;
        each<R>([&](int r) {
            ints<8> q;
            if (ROUND * r >= p.n) return;
            group_of(v[r], F::VALUES / 8, q);
            keep_rest(v[r], q);
        });
        column = sm + a.rests;
    }
}
template <class F, int R> __device__ __forceinline__ uint32_t quant(const cu_tape &a, const cu_tape_phase &p, float (&v)[R][8], uint32_t sm)
{
    return quant<F>(a, p, v, sm, [](uint32_t column, int e, const ints<8> &q) { put_planes<F>(column, e, q); });
}

/* The planes of plain products: groups of 64, bytes in the order of values. */
__device__ __forceinline__ uint32_t put_plain(const cu_tape_phase &p, const float (&v)[8], uint32_t to, ints<8> &q)
{
    int e = first_value();
    uint32_t most = group_of(v, 8, q), hi[2], lo[2];
    each<2>([&](int k) {
        const uint32_t *t = q.t + 4 * k;
        lo[k] = __byte_perm(__byte_perm(t[0], t[1], 0x0040), __byte_perm(t[2], t[3], 0x0040), 0x5410);
        hi[k] = __byte_perm(__byte_perm(t[0] + 128, t[1] + 128, 0x0051), __byte_perm(t[2] + 128, t[3] + 128, 0x0051), 0x5410);
    });
    if (e >= p.n) return most;
    sts<2>(to + e, hi);
    sts<2>(to + p.n + e, lo);
    if (e % 64 == 0) sts_float(to + 2 * p.n + e / 16, q.dx);
    if (e % 64 == 0 && p.u.m.affine) sts_float(to + 2 * p.n + p.n / 16 + e / 16, q.dx * (float)q.sum);
    return most;
}
__device__ __forceinline__ void quant_plain(const cu_tape &a, const cu_tape_phase &p, const float (&v)[8], uint32_t sm)
{
    ints<8> q;
    float sum = 0;
    uint32_t most = put_plain(p, v, sm + a.plain, q);
    each<8>([&](int i) { sum = cb_fma(v[i], v[i], sum); });
    tell_found(sm, 1, most, sum, a.step, p.plain_op);
}
/* Has that row a remainder (then 2)? Its planes stand behind the others. Seldom. again: makes the row once more, for a worker whose values are in it. */
template <class A> __device__ __forceinline__ uint32_t plain_rests(const cu_tape &a, const cu_tape_phase &p, uint32_t sm, A again)
{
    float energy;
    if (p.plain_share < 0) return 0;
    int more = look(sm, 1, p.plain_share, &energy), e = first_value();
    if (__builtin_expect(more == 0, 1)) return 0;
    float v[1][8];
    ints<8> q;
    each<8>([&](int i) { v[0][i] = 0; });
    if (e < p.n) again(v[0]);
    if (more < 0 && !look_closely(a, sm, v, p.n, energy, p.plain_share)) return 0;
    group_of(v[0], 8, q);
    keep_rest(v[0], q);
    put_plain(p, v[0], sm + a.plain + 2 * p.n + p.n / 8, q);
    meet();
    return 2;
}
/* What a row is multiplied by whose squares have the sum ss. */
__device__ __forceinline__ float inverse_of(const cu_tape_phase &p, float ss, float eps)
{
    float mean = p.inverse != 0 ? ss * p.inverse : ss / (float)p.n;
    return 1.0f / sqrtf(mean + eps);
}
/* The row that was put at `from`, normed. */
__device__ __forceinline__ void norm_again(uint32_t from, float inv, const float *weight, float (&v)[8])
{
    float w[8];
    int e = first_value();
    get8(v, from + 4 * place(e));
    each<8>([&](int i) { w[i] = 0; });
    if (weight) load(w, weight + e);
    each<8>([&](int i) { v[i] = (v[i] * inv) * w[i]; });
}
#endif
