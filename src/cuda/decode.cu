/* decode.cu: products of one row together with what makes their input: norms, units, rotations, quantisation, the choice of experts.
 * Every thread block computes that again for itself in shared memory, which costs less than a launch and a way through device
 * memory, and its share of the weights is on its way meanwhile. A block takes tiles of 16 outputs of one matrix; warp w
 * works on segment w % 8 of the definition (docs/arithmetic.md, section 4) in every second tile. A warp's weights come in
 * chunks of 16 rows of 128 bytes through a ring of its own. */
#include "cuda/rowops.cuh"

enum { WARPS = 16, THREADS = 32 * WARPS, PASS = 16, CODES = 16 * 128 };

/* ---- sums ---- */

/* A warp's sums of rows r and r + 8 over one segment after the other; each goes to its place when the segment's last group is in. */
struct chain {
    float acc[2];
    int seg, last, end, G; /* segment, one past the warp's last, one past the segment's last group, groups in all */
    float *red;            /* this lane's place of segment 0 */

    __device__ __forceinline__ void begin(int first, int n, int n_groups, float *to)
    {
        acc[0] = acc[1] = 0;
        seg = first;
        last = first + n;
        G = n_groups;
        end = (seg + 1) * G / CU_SEGMENTS;
        red = to;
        reached(seg * G / CU_SEGMENTS);
    }
    __device__ __forceinline__ void reached(int g) /* more than one segment ends there when some have no groups */
    {
        while (g == end && seg < last) {
            if (threadIdx.x % 4 == 0) {
                red[16 * seg] = acc[0];
                red[16 * seg + 8] = acc[1];
            }
            acc[0] = acc[1] = 0;
            end = (++seg + 1) * G / CU_SEGMENTS;
        }
    }
};

/* ---- formats ---- */

/* A chunk holds PER groups of each of 16 rows: 128 bytes a row in pieces of 16, of which row r has piece i at i ^ turn(r), so that
 * reads of several rows meet different banks; behind them the scales and the biases, [16][PER] each. */
template <int FMT, int BITS, int GROUP, int SCALE> struct format {
    static constexpr bool PLANES = FMT == CU_FMT_PLANES, AFFINE = FMT == CU_FMT_AFFINE;
    static constexpr int PACK = PLANES ? 1 : 8 / BITS, BYTES = PLANES ? 128 : GROUP * BITS / 8; /* of a group of a row */
    static constexpr int PER = 128 / BYTES, N_PLANES = PLANES ? 2 : 1, WORDS = BYTES / 16 / N_PLANES; /* words: of a lane */
    static constexpr int GROUP_SIZE = GROUP;
    static constexpr int SB = SCALE == CU_S_F32 ? 4 : 2, SLOT = CODES + 32 * PER * SB, BATCH = PER < 4 ? PER : 4;

    __device__ static __forceinline__ int turn(int r) { return WORDS == 4 ? (r & 1) << 2 : (r & 3) << 1 | (r >> 2 & 1); }
    __device__ static __forceinline__ float scale(uint32_t raw, int odd)
    {
        if (SCALE == CU_S_F32) return __uint_as_float(raw);
        if (SCALE == CU_S_BF16) return __uint_as_float(odd ? raw & 0xffff0000u : raw << 16);
        return __half2float(__ushort_as_half((unsigned short)(odd ? raw >> 16 : raw)));
    }
    /* BATCH scales of row r from group b of the chunk on. */
    __device__ static __forceinline__ void scales(float (&s)[BATCH], uint32_t at, int r, int b)
    {
        constexpr int W = BATCH * SB / 4;
        uint32_t raw[W];
        lds<W>(raw, at + (r * PER + b) * SB);
#pragma unroll
        for (int u = 0; u < BATCH; u++) s[u] = scale(raw[u * SB / 4], SB == 2 && u % 2);
    }

    /* The part of the segments' chains for rows r and r + 8 that lies in the chunk at `slot`: groups g .. g+PER, of which g0 .. g1 are
     * wanted. x: this lane's plane of group g; dx, xs likewise. */
    __device__ static __forceinline__ void multiply(chain &a, uint32_t slot, uint32_t x, uint32_t dx, uint32_t xs, int g, int g0, int g1)
    {
        int lane = threadIdx.x & 31, r = lane >> 2, c = lane & 3;
        x += c * WORDS * 4;
        uint32_t row = slot + r * 128, mine = c * WORDS * 4;
#pragma unroll
        for (int b = 0; b < PER; b += BATCH) {
            if (b && g + b >= g1) break;
            float p[BATCH][2], f[BATCH], X[BATCH];
            uint32_t raw[BATCH];
            lds<BATCH>(raw, dx + 4 * b);
#pragma unroll
            for (int u = 0; u < BATCH; u++) f[u] = __uint_as_float(raw[u]);
#pragma unroll
            for (int u = 0; u < BATCH; u++) {
                constexpr int M = GROUP / PACK; /* bytes of a group in each plane */
                const int m = (b + u) * M;
                uint32_t xw[PACK][WORDS], w[2][N_PLANES][WORDS];
#pragma unroll
                for (int j = 0; j < PACK; j++) lds<WORDS>(xw[j], x + (m >> 6) * (128 * PACK) + (m & 63) + 64 * j);
#pragma unroll
                for (int q = 0; q < N_PLANES; q++) {
                    uint32_t at = row + ((((b + u) * BYTES + q * 64) ^ turn(r) << 4) ^ (mine & ~15)) + (mine & 15);
                    lds<WORDS>(w[0][q], at);
                    lds<WORDS>(w[1][q], at + 8 * 128);
                }
                int d[N_PLANES][4] = {};
#pragma unroll
                for (int i = 0; i < WORDS * PACK; i += 2) {
                    const int w0 = i / PACK, j0 = i % PACK, w1 = (i + 1) / PACK, j1 = (i + 1) % PACK;
                    constexpr uint32_t mask = BITS == 8 ? ~0u : ((1u << BITS % 8) - 1) * 0x01010101u;
#pragma unroll
                    for (int q = 0; q < N_PLANES; q++) {
                        uint32_t v[4];
#pragma unroll
                        for (int h = 0; h < 2; h++) {
                            v[h] = w[h][q][w0] >> BITS % 8 * j0 & mask;
                            v[2 + h] = w[h][q][w1] >> BITS % 8 * j1 & mask;
                        }
                        if (PLANES) mma_s8s8(d[q], v[0], v[1], v[2], v[3], xw[j0][w0], xw[j1][w1]);
                        else mma_u8s8(d[q], v[0], v[1], v[2], v[3], xw[j0][w0], xw[j1][w1]);
                    }
                }
                if constexpr (PLANES) {
                    p[u][0] = f[u] * planes_to_f32(d[0][0], d[0][1] + d[1][0], d[1][1]);
                    p[u][1] = f[u] * planes_to_f32(d[0][2], d[0][3] + d[1][2], d[1][3]);
                } else {
                    p[u][0] = f[u] * (float)(256 * d[0][0] + d[0][1]);
                    p[u][1] = f[u] * (float)(256 * d[0][2] + d[0][3]);
                }
            }
            float s[2][BATCH], t[2][BATCH];
            if (AFFINE) {
                lds<BATCH>(raw, xs + 4 * b);
#pragma unroll
                for (int u = 0; u < BATCH; u++) X[u] = __uint_as_float(raw[u]);
            }
#pragma unroll
            for (int h = 0; h < 2; h++) {
                scales(s[h], slot + CODES, r + 8 * h, b);
                if (AFFINE) scales(t[h], slot + CODES + 16 * PER * SB, r + 8 * h, b);
            }
#pragma unroll
            for (int u = 0; u < BATCH; u++) {
                if (g + b + u < g0 || g + b + u >= g1) continue;
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    if (AFFINE) a.acc[h] = cb_fma(t[h][u], X[u], a.acc[h]);
                    a.acc[h] = cb_fma(s[h][u], p[u][h], a.acc[h]);
                }
                a.reached(g + b + u + 1);
            }
        }
    }
};

/* ---- products ---- */

/* What a warp does of a part: tiles t0 + own, `step` further, .. below t1, in each the segments from seg on, that is groups g0 .. g1
 * by n_chunks chunks from group `first` on. */
struct share {
    int t0, t1, own, step, seg;
    int g0, g1, first, n_chunks;
};

template <class F> __device__ __forceinline__ share share_of(const cu_part &p, int block)
{
    share s;
    int warp = threadIdx.x / 32, per = 1 << p.seg_shift, G = p.w.n_groups; /* segments of a warp */
    s.own = warp >> (3 - p.seg_shift);
    s.step = 2 * per;
    s.seg = (warp << p.seg_shift) & 7;
    s.t0 = block * p.block_tiles;
    s.t1 = s.t0 + p.block_tiles < p.n_tiles ? s.t0 + p.block_tiles : p.n_tiles;
    s.g0 = s.seg * G / CU_SEGMENTS;
    s.g1 = (s.seg + per) * G / CU_SEGMENTS;
    s.first = s.g0 / F::PER * F::PER;
    s.n_chunks = s.g1 > s.g0 ? (s.g1 - s.first + F::PER - 1) / F::PER : 0;
    return s;
}

/* The slot of a tile; tiles of a slot: slot_tiles, of which slot_inverse is 2^32 / slot_tiles rounded up. */
__device__ __forceinline__ int slot_of(const cu_part &p, int tile) { return p.n_slots == 1 ? 0 : (int)__umulhi((unsigned)tile, p.slot_inverse); }

/* Where the copies have got to. */
struct ahead {
    int tile, chunk, slot;
};

/* A warp's stream of weights. Behind the last matrix there is room (load.c): tiles are read whole, also where rows end. */
template <class F> struct stream {
    static constexpr int U = F::PER * F::SB / 4, N = 16 * U; /* words of scales in a chunk: of a row, of all rows */
    const uint8_t *codes, *scales, *biases; /* what this lane copies of the next chunk first */
    uint32_t four_rows, scale_bytes, ring, to;
    int stages;

    __device__ __forceinline__ stream(const cu_part &p, uint32_t at, int n)
        : four_rows(4 * (uint32_t)p.w.row_bytes), scale_bytes(p.w.n_groups * F::SB), ring(at), stages(n)
    {
        int r = threadIdx.x / 8 % 4, piece = threadIdx.x % 8;
        to = r * 128 + ((piece ^ F::turn(r)) << 4);
    }

    __device__ __forceinline__ void find_tile(const cu_part &p, const int32_t *experts, int tile, int chunk, const share &s)
    {
        int i = slot_of(p, tile), lane = threadIdx.x % 32, first = s.first + chunk * F::PER;
        int64_t row = (tile - i * p.slot_tiles) * 16 + (experts ? experts[i] * p.w.expert_rows : 0);
        codes = p.w.codes + (row + lane / 8) * (four_rows / 4) + first * F::BYTES + lane % 8 * 16;
        int64_t at = (row + lane / U) * scale_bytes + first * F::SB + lane % U * 4;
        scales = p.w.scales + at;
        biases = p.w.biases + at;
    }

    /* One chunk more, into the ring's next slot; or nothing, when all have been asked for. */
    __device__ __forceinline__ void issue(const cu_part &p, const int32_t *experts, ahead &at, const share &s)
    {
        if (at.tile < s.t1) {
            if (at.chunk == 0) find_tile(p, experts, at.tile, 0, s);
            int lane = threadIdx.x % 32, g = s.first + at.chunk * F::PER, mine = g + lane % 8 * 16 / F::BYTES;
            uint32_t slot = ring + at.slot * F::SLOT;
            bool there = mine >= s.g0 && mine < s.g1;
#pragma unroll
            for (int i = 0; i < 4; i++) copy_if16(slot + (F::WORDS == 4 ? to : to ^ (i & 1) << 4) + i * 512, codes + i * four_rows, there);
            there = (g + F::PER) * F::SB <= (int)scale_bytes || g * F::SB + lane % U * 4 < (int)scale_bytes;
#pragma unroll
            for (int k = 0; k < (N + 31) / 32; k++) {
                uint32_t from = k * (32 / U) * scale_bytes;
                copy_if4(slot + CODES + 128 * k + 4 * lane, scales + from, there && (N >= 32 || lane < N));
                if (F::AFFINE) copy_if4(slot + CODES + 4 * N + 128 * k + 4 * lane, biases + from, there && (N >= 32 || lane < N));
            }
            codes += 128;
            scales += F::PER * F::SB;
            biases += F::PER * F::SB;
            at.slot = at.slot + 1 == stages ? 0 : at.slot + 1;
            if (++at.chunk == s.n_chunks) {
                at.chunk = 0;
                at.tile += s.step;
            }
        }
        copies_end();
    }
};

/* The sums of a pass, [tile][segment][16 rows], in the order of segments. */
__device__ __forceinline__ void finish(const cu_part &p, int from, int to, const float *red, bool add)
{
    for (int i = threadIdx.x; i < (to - from) * 16; i += THREADS) {
        const float *v = red + i / 16 * 128 + i % 16;
        float y = v[0];
#pragma unroll
        for (int k = 1; k < CU_SEGMENTS; k++) y = y + v[16 * k];
        int tile = from + i / 16, slot = slot_of(p, tile), n = (tile - slot * p.slot_tiles) * 16 + i % 16;
        if (n >= p.w.n_out) continue;
        float *out = p.y + (size_t)slot * p.y_stride + n;
        *out = add ? *out + y : y;
    }
}

template <class F>
__device__ __forceinline__ void product(const cu_part &p, const share &s, ahead at, stream<F> &w, const int32_t *experts, float *sm, int red_at, bool add)
{
    int slot = 0, parity = 0;
    uint32_t x0 = address(sm + p.x) + s.first * (2 * F::GROUP_SIZE) + (threadIdx.x >> 2 & 1) * 64 * F::PACK, dx0 = address(sm + p.dx + s.first), to_xs = 4 * (p.xs - p.dx);
    if (at.tile < s.t1 && at.chunk) w.find_tile(p, experts, at.tile, at.chunk, s);
    for (int from = s.t0; from < s.t1; from += PASS, parity ^= 1) {
        int to = from + PASS < s.t1 ? from + PASS : s.t1;
        float *red = sm + red_at + parity * PASS * 128;
        for (int tile = from + s.own; tile < to; tile += s.step) {
            int i = slot_of(p, tile);
            uint32_t x = x0 + i * p.x_stride, dx = dx0 + 4 * i * p.dx_stride;
            chain sums;
            sums.begin(s.seg, s.step / 2, p.w.n_groups, red + (tile - from) * 128 + threadIdx.x / 4 % 8);
            for (int k = 0, g = s.first; k < s.n_chunks; k++, g += F::PER) {
                copies_wait(w.stages - 2);
                __syncwarp();
                w.issue(p, experts, at, s);
                F::multiply(sums, w.ring + slot * F::SLOT, x, dx, dx + to_xs, g, s.g0, s.g1);
                x += F::PER * 2 * F::GROUP_SIZE;
                dx += F::PER * 4;
                slot = slot + 1 == w.stages ? 0 : slot + 1;
            }
        }
        __syncthreads();
        finish(p, from, to, red, add);
    }
}

/* ---- what comes in front ---- */

struct row_ctx {
    const cu_row_op *o;
    cu_step *step;
    float *sm;
    bool keeps; /* this block stores what other launches read */
};

/* Input i: in shared memory, or where an earlier launch left it. Input 1 may be the op's vector of weights. */
__device__ __forceinline__ const float *in(const row_ctx &c, int i) { return c.o->in_local[i] >= 0 ? c.sm + c.o->in_local[i] : c.o->in[i]; }
__device__ __forceinline__ float4 in4(const float *p, int e) { return *(const float4 *)(p + e); }
__device__ __forceinline__ void out4(const row_ctx &c, int e, float4 v)
{
    *(float4 *)(c.sm + c.o->out_local + e) = v;
    if (c.keeps && c.o->out) *(float4 *)(c.o->out + e) = v;
}
/* Thread t has elements 4t .. 4t+3 of each 4*THREADS: between operations of this kind no thread waits for another. */
template <class F> __device__ __forceinline__ void each4(const row_ctx &c, F f)
{
    for (int e = 4 * threadIdx.x; e < c.o->width; e += 4 * THREADS) out4(c, e, f(e));
}

__device__ void pre_norm(const row_ctx &c)
{
    __shared__ float inv_shared;
    const float *from = in(c, 0), *w = c.o->w;
    float *x = c.o->stage >= 0 ? c.sm + c.o->stage : (float *)from;
    int n = c.o->width, e0 = 4 * threadIdx.x;
    float4 w0 = make_float4(1, 1, 1, 1);
    if (w && e0 < n) w0 = in4(w, e0);
    if (c.o->stage >= 0)
        for (int e = e0; e < n; e += 4 * THREADS) *(float4 *)(x + e) = in4(from, e);
    __syncthreads();
    if (threadIdx.x < 32) {
        float inv = 1.0f / sqrtf(sum_squares(x, n) / (float)n + c.o->f[0]);
        if (threadIdx.x == 0) inv_shared = inv;
    }
    __syncthreads();
    float inv = inv_shared;
    each4(c, [&](int e) {
        float4 v = in4(x, e);
        v = make_float4(v.x * inv, v.y * inv, v.z * inv, v.w * inv);
        if (!w) return v;
        float4 u = e == e0 ? w0 : in4(w, e);
        return make_float4(v.x * u.x, v.y * u.y, v.z * u.z, v.w * u.w);
    });
}

/* Strides 1 and 2 in a thread, 4 to 64 in a warp, the others through shared memory. */
__device__ void pre_hadamard(const row_ctx &c)
{
    int n = c.o->width, block = c.o->n[0], lane = threadIdx.x % 32;
    bool back = c.o->n[1];
    const float *from = in(c, 0), *signs = c.o->w;
    float scale = c.o->f[0], *v = c.sm + c.o->out_local;
    auto last = [&](int e, float4 x) {
        x = make_float4(x.x * scale, x.y * scale, x.z * scale, x.w * scale);
        if (back) {
            float4 w = in4(signs, e);
            x = make_float4(x.x * w.x, x.y * w.y, x.z * w.z, x.w * w.w);
        }
        out4(c, e, x);
    };
    for (int e0 = 4 * (threadIdx.x - lane); e0 < n; e0 += 4 * THREADS) { /* whole warps, for the shuffles */
        int e = e0 + 4 * lane;
        float4 x = e < n ? in4(from, e) : make_float4(0, 0, 0, 0);
        if (signs && !back && e < n) {
            float4 w = in4(signs, e);
            x = make_float4(x.x * w.x, x.y * w.y, x.z * w.z, x.w * w.w);
        }
        if (block > 1) x = make_float4(x.x + x.y, x.x - x.y, x.z + x.w, x.z - x.w);
        if (block > 2) x = make_float4(x.x + x.z, x.y + x.w, x.x - x.z, x.y - x.w);
        for (int s = 1; s < 32 && 4 * s < block; s *= 2) {
            bool up = lane & s;
            float4 y = make_float4(__shfl_xor_sync(FULL, x.x, s), __shfl_xor_sync(FULL, x.y, s), __shfl_xor_sync(FULL, x.z, s), __shfl_xor_sync(FULL, x.w, s));
            x = up ? make_float4(y.x - x.x, y.y - x.y, y.z - x.z, y.w - x.w) : make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
        }
        if (e >= n) continue;
        if (block <= 128) last(e, x);
        else *(float4 *)(v + e) = x;
    }
    if (block <= 128) return;
    all_butterflies(v, n, 128, block);
    for (int e = 4 * threadIdx.x; e < n; e += 4 * THREADS) last(e, *(const float4 *)(v + e));
}

__device__ __forceinline__ float unit(int act, float z) { return act == CB_ACT_SILU ? cb_siluf(z) : act == CB_ACT_GELU_TANH ? cb_gelu_tanhf(z) : cb_sigmoidf(z); }

__device__ void pre_moe_sum(const row_ctx &c)
{
    int k = c.o->n[0];
    const float *w = in(c, 1) + k;
    each4(c, [&](int e) {
        float4 acc = make_float4(0, 0, 0, 0);
#pragma unroll 8
        for (int j = 0; j < k; j++) {
            float4 v = *(const float4 *)(c.o->in[0] + (size_t)j * c.o->in_stride[0] + e);
            float f = w[j];
            acc = make_float4(cb_fma(f, v.x, acc.x), cb_fma(f, v.y, acc.y), cb_fma(f, v.z, acc.z), cb_fma(f, v.w, acc.w));
        }
        return acc;
    });
}

/* The planes of a CB_QUANT in shared memory, as quant_row wants them. Row 0 only. */
__device__ __forceinline__ cu_planes local_planes(const row_ctx &c)
{
    cu_planes q = c.o->u.q;
    q.planes = (int8_t *)(c.sm + c.o->out_local);
    q.dx = (float *)(q.planes + q.stride);
    q.xs = q.dx + (q.n_groups + 3) / 4 * 4;
    q.sum = NULL;
    q.flag = (int32_t *)(q.xs + (q.n_groups + 3) / 4 * 4);
    q.n_rows = 0; /* a remainder takes the row's place */
    return q;
}

/* Row `row` of planes in device memory, from or to those in shared memory. */
template <bool STORE> __device__ void move_planes(const row_ctx &c, int row)
{
    const cu_planes &g = c.o->u.q, q = local_planes(c);
    int8_t *planes = g.planes + (size_t)row * g.stride;
    float *dx = g.dx + (size_t)row * g.n_groups, *xs = g.xs + (size_t)row * g.n_groups;
    for (int i = threadIdx.x; i < g.stride / 16; i += THREADS)
        if (STORE) ((uint4 *)planes)[i] = ((uint4 *)q.planes)[i];
        else ((uint4 *)q.planes)[i] = ((uint4 *)planes)[i];
    for (int i = threadIdx.x; i < g.n_groups; i += THREADS)
        if (STORE) dx[i] = q.dx[i], xs[i] = q.xs[i];
        else q.dx[i] = dx[i], q.xs[i] = xs[i];
}

__device__ __forceinline__ void pre_route(const row_ctx &c)
{
    const cu_row_op &o = *c.o;
    float *y = c.sm + o.out_local;
    const float *z = in(c, 0);
    if (threadIdx.x >= 32) return;
    if (o.stage >= 0) {
        float *copy = c.sm + o.stage;
        for (int e = threadIdx.x; e < o.n[0]; e += 32) copy[e] = z[e];
        z = copy;
        __syncwarp();
    }
    choose_row(o, z, (int32_t *)y, c.step);
}

__device__ void one_op(const row_ctx &c)
{
    const cu_row_op *o = c.o;
    const float *x = in(c, 0), *y = in(c, 1);
    switch (o->kind) {
    case CB_RMSNORM: pre_norm(c); break;
    case CB_HADAMARD: pre_hadamard(c); break;
    case CB_QUANT: quant_row(x, o->width, local_planes(c), 0, false, o->stage >= 0 ? c.sm + o->stage : NULL, c.step, o->op); break;
    case CU_COPY_PLANES:
        move_planes<false>(c, 0);
        if (o->n[0] && threadIdx.x == 0) *local_planes(c).flag = *o->u.q.flag;
        break;
    case CB_GLU:
        each4(c, [&](int e) {
            float4 g = in4(x, e), u = in4(y, e);
            return make_float4(unit(o->n[0], g.x) * u.x, unit(o->n[0], g.y) * u.y, unit(o->n[0], g.z) * u.z, unit(o->n[0], g.w) * u.w);
        });
        break;
    case CB_BIAS: y = o->w; /* then as CB_ADD */
    case CB_ADD:
        each4(c, [&](int e) {
            float4 a = in4(x, e), b = in4(y, e);
            return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
        });
        break;
    case CB_WANTED: each4(c, [&](int e) { return in4(x, e); }); break;
    case CB_SCALE: {
        float s = o->w ? o->w[0] : o->f[0];
        each4(c, [&](int e) {
            float4 a = in4(x, e);
            return make_float4(a.x * s, a.y * s, a.z * s, a.w * s);
        });
        break;
    }
    case CB_ADD_GATED: {
        float g = cb_sigmoidf(*y);
        const float *z = in(c, 2);
        each4(c, [&](int e) {
            float4 a = in4(x, e), b = in4(z, e);
            return make_float4(cb_fma(g, b.x, a.x), cb_fma(g, b.y, a.y), cb_fma(g, b.z, a.z), cb_fma(g, b.w, a.w));
        });
        break;
    }
    case CB_ROUTE: pre_route(c); break;
    case CB_MOE_SUM: pre_moe_sum(c); break;
    case CB_MOE_SORT: /* each slot is a tile of its own, in any order; the same warp made the route */
        for (int i = threadIdx.x; i <= o->u.sort.k && threadIdx.x < 32 && c.keeps; i += 32) {
            const cu_sort &s = o->u.sort;
            if (i < s.k) s.slots[i] = i, s.rows[i] = 0;
            ((int4 *)s.tiles)[i] = i < s.k ? make_int4(((const int32_t *)c.sm)[o->in_local[0] + i], i, 1, 0) : make_int4(-1, 0, 0, 0);
        }
        break;
    }
}

/* What nothing in this launch waits for, by one warp: the weights of experts, and whether a row gets a remainder. */
__device__ __forceinline__ void aside(const row_ctx &c)
{
    const cu_row_op &o = *c.o;
    if (o.kind == CB_ROUTE && c.keeps && o.out) {
        const int32_t *ids = (const int32_t *)(c.sm + o.out_local);
        weigh_row(o, o.stage >= 0 ? c.sm + o.stage : in(c, 0), ids, o.out + o.n[1]);
        for (int i = threadIdx.x % 32; i < o.n[1]; i += 32) ((int32_t *)o.out)[i] = ids[i];
    }
    if (o.kind != CB_QUANT || !o.n[0]) return;
    cu_planes q = local_planes(c);
    bool want = wants_remainder(c.sm + (o.stage >= 0 ? o.stage : o.in_local[0]), o.width, q.dx, q.n_groups, o.f[0]);
    if (threadIdx.x % 32 == 0) *q.flag = want;
}

/* Remainders take the place of the rows' planes. */
__device__ void remainders(const cu_decode &a, const cu_row_op *ops, float *sm, bool keeps)
{
    for (int i = 0; i < a.n_ops; i++) {
        const cu_row_op &o = ops[i];
        row_ctx c = {&o, a.step, sm, keeps};
        if ((o.kind != CB_QUANT && o.kind != CU_COPY_PLANES) || !o.n[0] || !*local_planes(c).flag) continue;
        if (o.kind == CB_QUANT) quant_row(sm + (o.stage >= 0 ? o.stage : o.in_local[0]), o.width, local_planes(c), 0, true, NULL, c.step, o.op);
        else move_planes<false>(c, o.u.q.n_rows);
    }
    __syncthreads();
}

__device__ void keep_planes(const cu_decode &a, const cu_row_op *ops, float *sm, bool remainder)
{
    for (int i = 0; i < a.n_ops; i++) {
        const cu_row_op &o = ops[i];
        row_ctx c = {&o, a.step, sm, true};
        if (o.kind != CB_QUANT || !o.u.q.planes || (remainder && !(o.n[0] && *local_planes(c).flag))) continue;
        move_planes<true>(c, remainder ? o.u.q.n_rows : 0);
        if (!remainder && o.n[0] && threadIdx.x == 0) *o.u.q.flag = *local_planes(c).flag;
    }
}

/* ---- all of it ---- */

/* Calls f with a value of the format's type; decode.c, slot_bytes lists the same. */
template <class G> __device__ __forceinline__ void with_format(const cu_weight &w, G f)
{
    bool half = w.scale_type == CU_S_F16;
    if (w.fmt == CU_FMT_PLANES) f(format<CU_FMT_PLANES, 8, 64, CU_S_F32>());
    else if (w.bits == 2) half ? f(format<CU_FMT_AFFINE, 2, 128, CU_S_F16>()) : f(format<CU_FMT_AFFINE, 2, 128, CU_S_BF16>());
    else if (w.bits == 8) half ? f(format<CU_FMT_AFFINE, 8, 64, CU_S_F16>()) : f(format<CU_FMT_AFFINE, 8, 64, CU_S_BF16>());
    else if (w.group == 64) half ? f(format<CU_FMT_AFFINE, 4, 64, CU_S_F16>()) : f(format<CU_FMT_AFFINE, 4, 64, CU_S_BF16>());
    else if (w.scale_type == CU_S_F32) f(format<CU_FMT_AFFINE, 4, 32, CU_S_F32>());
    else half ? f(format<CU_FMT_AFFINE, 4, 32, CU_S_F16>()) : f(format<CU_FMT_AFFINE, 4, 32, CU_S_BF16>());
}

template <class F> __device__ __forceinline__ ahead begin_of(const cu_part &p, int block, uint32_t ring, int stages, const int32_t *experts)
{
    share s = share_of<F>(p, block);
    stream<F> in(p, ring + threadIdx.x / 32 * stages * F::SLOT, stages);
    ahead at = {s.n_chunks ? s.t0 + s.own : s.t1, 0, 0};
    for (int i = 0; i + 1 < stages; i++) in.issue(p, experts, at, s);
    return at;
}
template <class F>
__device__ __forceinline__ void product_of(const cu_part &p, int block, uint32_t ring, int stages, const int32_t *experts, ahead at, float *sm, int red, bool add)
{
    stream<F> in(p, ring + threadIdx.x / 32 * stages * F::SLOT, stages);
    product<F>(p, share_of<F>(p, block), at, in, experts, sm, red, add);
}

/* Of any format, looked up at run time. */
struct mixed {};
__device__ __noinline__ ahead begin_any(const cu_part &p, int block, uint32_t ring, int stages, const int32_t *experts)
{
    ahead at;
    with_format(p.w, [&](auto f) { at = begin_of<decltype(f)>(p, block, ring, stages, experts); });
    return at;
}
__device__ __noinline__ void product_any(const cu_part &p, int block, uint32_t ring, int stages, const int32_t *experts, ahead at, float *sm, int red, bool add)
{
    with_format(p.w, [&](auto f) { product_of<decltype(f)>(p, block, ring, stages, experts, at, sm, red, add); });
}
template <> __device__ __forceinline__ ahead begin_of<mixed>(const cu_part &p, int block, uint32_t ring, int stages, const int32_t *experts)
{
    return begin_any(p, block, ring, stages, experts);
}
template <>
__device__ __forceinline__ void product_of<mixed>(const cu_part &p, int block, uint32_t ring, int stages, const int32_t *experts, ahead at, float *sm, int red, bool add)
{
    product_any(p, block, ring, stages, experts, at, sm, red, add);
}

/* What few blocks have to do at the end: to store what other launches read, and the products of a remainder. */
__device__ __noinline__ void after(const cu_decode &a, const cu_part &p, int block, uint32_t ring, const int32_t *experts, const cu_row_op *ops, float *sm, bool keeps, bool more)
{
    if (keeps) keep_planes(a, ops, sm, false);
    __syncthreads();
    remainders(a, ops, sm, keeps);
    if (keeps) keep_planes(a, ops, sm, true);
    if (more) product_any(p, block, ring, a.stages, experts, begin_any(p, block, ring, a.stages, experts), sm, a.red, true);
}

template <class F> __device__ __forceinline__ void decode_of(const cu_decode &a)
{
    extern __shared__ __align__(16) float sm[];
    __shared__ __align__(16) cu_row_op ops[CU_MAX_ROW_OPS];
    pdl_trigger();
    int part = 0;
    while (part + 1 < a.n_parts && (int)blockIdx.x >= a.block0[part + 1]) part++;
    const cu_part &p = a.part[part];
    int block = (int)blockIdx.x - a.block0[part], warp = threadIdx.x / 32;
    uint32_t ring = address(sm + a.ring);
    bool routed = p.experts || p.experts_local >= 0, keeps = blockIdx.x == gridDim.x - 1;
    ahead at = {0, 0, 0};
    if (!routed) at = begin_of<F>(p, block, ring, a.stages, NULL);
    for (int i = threadIdx.x; i < a.n_ops * (int)(sizeof(cu_row_op) / 8); i += THREADS) ((uint64_t *)ops)[i] = ((const uint64_t *)a.ops)[i];
    __syncthreads();
    if (warp < a.n_ops && ops[warp].w) /* vectors of weights come near meanwhile */
        for (int e = 32 * (threadIdx.x % 32); e < ops[warp].width; e += 1024) prefetch(ops[warp].w + e);
    pdl_wait();
    for (int i = 0; i < a.n_ops; i++) one_op({&ops[i], a.step, sm, keeps});
    __syncthreads();
    const int32_t *experts = p.experts_local >= 0 ? (const int32_t *)(sm + p.experts_local) : p.experts;
    if (routed) at = begin_of<F>(p, block, ring, a.stages, experts);
    if (WARPS - 1 - warp < a.n_ops) aside({&ops[WARPS - 1 - warp], a.step, sm, keeps}); /* the last warps have the least to do */
    product_of<F>(p, block, ring, a.stages, experts, at, sm, a.red, p.add);
    __syncthreads();
    bool more = p.flag >= 0 && ((const int32_t *)sm)[p.flag];
    if (keeps || more) after(a, p, block, ring, experts, ops, sm, keeps, more);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) k_decode(const __grid_constant__ cu_decode a) { decode_of<mixed>(a); }
/* All parts have the same format. */
extern "C" __global__ void __launch_bounds__(THREADS, 2) k_decode_4g64(const __grid_constant__ cu_decode a) { decode_of<format<CU_FMT_AFFINE, 4, 64, CU_S_BF16>>(a); }
extern "C" __global__ void __launch_bounds__(THREADS, 2) k_decode_4g32(const __grid_constant__ cu_decode a) { decode_of<format<CU_FMT_AFFINE, 4, 32, CU_S_F16>>(a); }
extern "C" __global__ void __launch_bounds__(THREADS, 2) k_decode_2g128(const __grid_constant__ cu_decode a) { decode_of<format<CU_FMT_AFFINE, 2, 128, CU_S_F16>>(a); }
