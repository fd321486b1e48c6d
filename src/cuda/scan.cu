/* scan.cu: the gated delta rule over many tokens of a session (docs/arithmetic.md, section 7). The tokens come one after the other,
 * so what counts is how long one takes from its predecessor's state to its own. k_delta_prepare does all that does not depend on
 * the state. k_delta_scan keeps the state in registers so that little of a lane tree crosses lanes: T lanes share a row of
 * the state, lane c of them holding the columns c, c + T, c + 2T, ..: the lanes c, c + T, .. of the tree, whose upper levels are
 * additions within one thread. The tokens stream through a ring in shared memory, three chunks ahead. */
#include "cuda/common.cuh"

enum { T = 8, ROWS = 2, WARPS = 4, BLOCK_ROWS = WARPS * 32 / T * ROWS, STAGES = 4, SHARED = 37376 };

/* Where column e of a prepared q or k stands: a lane's columns as float4s, side by side for the T lanes. */
__device__ __forceinline__ int place_of(int e)
{
    int c = e % T, m = e / T;
    return m / 4 * (4 * T) + c * 4 + m % 4;
}

/* In place: q and k of every key head to unit vectors, in the order that the scan reads; a to the decay, b to beta. x: row; one warp
 * a vector of 32*PER. */
template <int PER> __device__ __forceinline__ void unit_vectors(const cu_delta &a, float *u)
{
    int lane = threadIdx.x % 32;
    float root = 1.0f / sqrtf((float)a.dk);
    for (int h = threadIdx.x / 32; h < 2 * a.k_heads; h += 8) {
        float *x = u + h * a.dk, v[PER], sum = 0;
#pragma unroll
        for (int j = 0; j < PER; j++) v[j] = x[lane + 32 * j];
#pragma unroll
        for (int j = 0; j < PER; j++) sum = cb_fma(v[j], v[j], sum);
        float inv = 1.0f / sqrtf(lane_fold(sum) + 1e-6f); /* its shuffles: every lane has read */
#pragma unroll
        for (int j = 0; j < PER; j++) x[place_of(lane + 32 * j)] = h < a.k_heads ? (v[j] * inv) * root : v[j] * inv;
    }
}

extern "C" __global__ void __launch_bounds__(256) k_delta_prepare(const __grid_constant__ cu_delta a)
{
    pdl_trigger();
    pdl_wait();
    int r = blockIdx.x;
    float *u = (float *)a.u + (size_t)r * a.u_stride;
    switch (a.dk) {
    case 32: unit_vectors<1>(a, u); break;
    case 64: unit_vectors<2>(a, u); break;
    case 128: unit_vectors<4>(a, u); break;
    default: unit_vectors<8>(a, u);
    }
    for (int h = threadIdx.x; h < a.v_heads; h += 256) {
        float *decay = (float *)a.a + (size_t)r * a.a_stride + h, *beta = (float *)a.b + (size_t)r * a.b_stride + h;
        *decay = cb_expf(-(cb_expf(a.a_log[h]) * cb_softplusf(*decay + a.dt_bias[h])));
        *beta = cb_sigmoidf(*beta);
    }
}

/* ---- the scan ---- */

/* A token in shared memory. */
template <int PER> struct token {
    float q[32 * PER], k[32 * PER], v[BLOCK_ROWS], decay, beta, pad[2];
};

/* A warp copies every WARPS-th token of a chunk, and a lane the same pieces of each: of q and k, and of v or the decay or beta. */
template <int PER, int CHUNK> struct feeder {
    const float *qk, *rest; /* of this warp's first token in the next chunk */
    int64_t qk_stride, rest_stride, to_k;
    int row, r1, at;        /* that token's row; where `rest` goes in a token, in floats, or -1 */
    bool four;              /* rest is 4 bytes, not 16 */
    __device__ __forceinline__ feeder(const cu_delta &a, int r0, int end, int head, int v0)
    {
        int lane = threadIdx.x % 32, kh = head / (a.v_heads / a.k_heads);
        row = r0 + threadIdx.x / 32;
        r1 = end;
        const float *u = a.u + (size_t)row * a.u_stride;
        qk = u + kh * a.dk + 4 * lane;
        to_k = (int64_t)a.k_heads * a.dk;
        qk_stride = rest_stride = a.u_stride;
        four = lane >= 30;
        at = lane < BLOCK_ROWS / 4 && v0 + 4 * lane < a.dv ? 64 * PER + 4 * lane : -1;
        rest = u + 2 * a.k_heads * a.dk + head * a.dv + v0 + 4 * lane;
        if (!four) return;
        at = 64 * PER + BLOCK_ROWS + lane - 30; /* decay, beta */
        rest_stride = lane == 30 ? a.a_stride : a.b_stride;
        rest = (lane == 30 ? a.a : a.b) + (size_t)row * rest_stride + head;
    }
    __device__ __forceinline__ void fetch(token<PER> *chunk)
    {
        int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < CHUNK / WARPS; i++) {
            if (row < r1) {
                float *t = (float *)(chunk + threadIdx.x / 32 + i * WARPS);
#pragma unroll
                for (int j = 0; j < 8 * PER; j += 32)
                    if (8 * PER >= 32 || lane < 8 * PER) {
                        copy16(address(t + 4 * (lane + j)), qk + 4 * j);
                        copy16(address(t + 32 * PER + 4 * (lane + j)), qk + 4 * j + to_k);
                    }
                if (four) copy4(address(t + at), rest);
                else if (at >= 0) copy16(address(t + at), rest);
            }
            row += WARPS;
            qk += WARPS * qk_stride;
            rest += WARPS * rest_stride;
        }
        copies_end();
    }
};

/* What one lane needs of a token. */
template <int PER> struct part {
    float4 q[PER], k[PER];
    float v[ROWS], decay, beta;
    __device__ __forceinline__ void load(const token<PER> &t, int c, int row)
    {
#pragma unroll
        for (int p = 0; p < PER; p++) {
            k[p] = *(const float4 *)(t.k + p * 4 * T + 4 * c);
            q[p] = *(const float4 *)(t.q + p * 4 * T + 4 * c);
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++) v[i] = t.v[row + i];
        decay = t.decay;
        beta = t.beta;
    }
};

/* Lanes c, c + 8, c + 16 and c + 24 of the tree: its levels 16 and 8. */
__device__ __forceinline__ float upper(const float4 &t) { return (t.x + t.z) + (t.y + t.w); }

/* A row of the state as one lane holds it. A token is two halves with a lane tree behind each; the tree of an output is finished beside
 * the next token's first, so that only one tree's time is on the way from state to state. */
template <int PER> struct state_row {
    float4 s[PER];
    float t, o;
    __device__ __forceinline__ void first(const part<PER> &in)
    {
        float4 x = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int p = 0; p < PER; p++) {
            float4 &w = s[p];
            w.x = w.x * in.decay, w.y = w.y * in.decay, w.z = w.z * in.decay, w.w = w.w * in.decay;
            x.x = cb_fma(w.x, in.k[p].x, x.x);
            x.y = cb_fma(w.y, in.k[p].y, x.y);
            x.z = cb_fma(w.z, in.k[p].z, x.z);
            x.w = cb_fma(w.w, in.k[p].w, x.w);
        }
        t = upper(x);
    }
    __device__ __forceinline__ void fold()
    {
#pragma unroll
        for (int w = T / 2; w; w /= 2) {
            t = t + __shfl_xor_sync(FULL, t, w);
            o = o + __shfl_xor_sync(FULL, o, w);
        }
    }
    __device__ __forceinline__ void second(const part<PER> &in, int i)
    {
        float d = in.beta * (in.v[i] - t);
        float4 x = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int p = 0; p < PER; p++) {
            float4 &w = s[p];
            w.x = cb_fma(d, in.k[p].x, w.x);
            w.y = cb_fma(d, in.k[p].y, w.y);
            w.z = cb_fma(d, in.k[p].z, w.z);
            w.w = cb_fma(d, in.k[p].w, w.w);
            x.x = cb_fma(w.x, in.q[p].x, x.x);
            x.y = cb_fma(w.y, in.q[p].y, x.y);
            x.z = cb_fma(w.z, in.q[p].z, x.z);
            x.w = cb_fma(w.w, in.q[p].w, x.w);
        }
        o = upper(x);
    }
};

/* x: BLOCK_ROWS rows of the state; y: value head; z: run. The second row of a lane is half a token behind the first: the trees of one stand
 * among the products of the other. */
template <int PER, int CHUNK> __device__ __forceinline__ void scan(const cu_delta &a, uint8_t *shared)
{
    static_assert(T == 8 && ROWS == 2, "a float4 is the four lanes of the tree that a thread holds");
    static_assert(sizeof(token<PER>[STAGES][CHUNK]) <= SHARED, "room");
    auto ring = (token<PER> (*)[CHUNK])shared;
    int lane = threadIdx.x % 32, c = lane % T, head = blockIdx.y, r0 = a.step->run_row[blockIdx.z], v0 = blockIdx.x * BLOCK_ROWS;
    int r1 = a.step->run1[r0], mine = (threadIdx.x / T) * ROWS;
    feeder<PER, CHUNK> feed(a, r0, r1, head, v0);
    for (int s = 0; s < STAGES - 1; s++) feed.fetch(ring[s]);
    float *S = a.state + (size_t)a.step->slot[r0] * a.state_floats + ((size_t)head * a.dv + v0 + mine) * a.dk;
    bool fresh = a.step->pos[r0] == 0, there[ROWS] = {v0 + mine < a.dv, v0 + mine + 1 < a.dv};
    state_row<PER> A, B;
#pragma unroll
    for (int p = 0; p < PER; p++) {
        const float *at = S + 32 * p + c, *bt = at + a.dk;
        A.s[p] = fresh || !there[0] ? make_float4(0, 0, 0, 0) : make_float4(at[0], at[T], at[2 * T], at[3 * T]);
        B.s[p] = fresh || !there[1] ? make_float4(0, 0, 0, 0) : make_float4(bt[0], bt[T], bt[2 * T], bt[3 * T]);
    }
    copies_wait<STAGES - 2>();
    __syncthreads();
    float *y = a.y + (size_t)r0 * a.y_stride + head * a.dv + v0 + mine;
    bool put_a = c == 0 && there[0], put_b = c == 1 && there[1];
    part<PER> in[2]; /* of this token and, until B is through with it, of the one before */
    in[0].load(ring[0][0], c, mine);
    A.o = B.o = 0;
    int at = 0, stage = 0, n = r1 - r0;
    auto next = [&](part<PER> &to) {
        if (++at == CHUNK) { /* the first of the next chunk */
            at = 0;
            copies_wait<STAGES - 3>();
            __syncthreads(); /* all have read this chunk's last token */
            feed.fetch(ring[(stage + STAGES - 1) % STAGES]);
            stage = (stage + 1) % STAGES;
        }
        to.load(ring[stage][at], c, mine);
    };
    auto begin = [&](part<PER> &now) {
        B.first(now);
        B.fold();
        A.second(now, 0);
    };
    /* A token behind another, which B ends; the other's outputs are then ready, each after a fold. */
    auto follow = [&](part<PER> &now, part<PER> &other) {
        A.first(now);
        A.fold();
        B.second(other, 1);
        if (put_a) y[0] = A.o;
        next(other);
        begin(now);
        if (put_b) y[1] = B.o;
        y += a.y_stride;
    };
    A.first(in[0]);
    A.fold();
    next(in[1]);
    begin(in[0]);
    int i = 1;
    for (; i + 1 < n; i += 2) {
        follow(in[1], in[0]);
        follow(in[0], in[1]);
    }
    if (i < n) {
        follow(in[1], in[0]);
        B.second(in[1], 1);
    } else B.second(in[0], 1);
    A.fold();
    B.fold();
    if (put_a) y[0] = A.o;
    if (put_b) y[1] = B.o;
#pragma unroll
    for (int p = 0; p < PER; p++) {
        float *to = S + 32 * p + c, *bo = to + a.dk;
        if (there[0]) to[0] = A.s[p].x, to[T] = A.s[p].y, to[2 * T] = A.s[p].z, to[3 * T] = A.s[p].w;
        if (there[1]) bo[0] = B.s[p].x, bo[T] = B.s[p].y, bo[2 * T] = B.s[p].z, bo[3 * T] = B.s[p].w;
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) k_delta_scan(const __grid_constant__ cu_delta a)
{
    __shared__ __align__(16) uint8_t shared[SHARED];
    pdl_trigger();
    pdl_wait();
    switch (a.dk) {
    case 32: scan<1, 8>(a, shared); break;
    case 64: scan<2, 8>(a, shared); break;
    case 128: scan<4, 8>(a, shared); break;
    default: scan<8, 4>(a, shared);
    }
}
