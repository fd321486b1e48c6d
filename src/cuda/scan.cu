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

__device__ __forceinline__ void copy16(void *dst, const float *src)
{
    asm volatile("cp.async.cg.shared.global [%0],[%1],16;" ::"r"((uint32_t)__cvta_generic_to_shared(dst)), "l"(src) : "memory");
}
__device__ __forceinline__ void copy4(void *dst, const float *src)
{
    asm volatile("cp.async.ca.shared.global [%0],[%1],4;" ::"r"((uint32_t)__cvta_generic_to_shared(dst)), "l"(src) : "memory");
}

/* Copies of a chunk of CHUNK tokens from row r on: a warp takes every WARPS-th token. */
template <int PER, int CHUNK> __device__ __forceinline__ void fetch(const cu_delta &a, token<PER> *to, int r, int r1, int head, int v0)
{
    int lane = threadIdx.x % 32, kh = head / (a.v_heads / a.k_heads);
#pragma unroll
    for (int i = threadIdx.x / 32; i < CHUNK; i += WARPS) {
        if (r + i >= r1) break;
        const float *u = a.u + (size_t)(r + i) * a.u_stride, *v = u + 2 * a.k_heads * a.dk + head * a.dv + v0;
        token<PER> *t = to + i;
        for (int j = lane; j < 8 * PER; j += 32) {
            copy16(t->q + 4 * j, u + kh * a.dk + 4 * j);
            copy16(t->k + 4 * j, u + (a.k_heads + kh) * a.dk + 4 * j);
        }
        if (lane < BLOCK_ROWS / 4) {
            if (v0 + 4 * lane < a.dv) copy16(t->v + 4 * lane, v + 4 * lane);
        } else if (lane == 30) copy4(&t->decay, a.a + (size_t)(r + i) * a.a_stride + head);
        else if (lane == 31) copy4(&t->beta, a.b + (size_t)(r + i) * a.b_stride + head);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* What one lane needs of a token. */
template <int PER> struct part {
    float4 q[PER], k[PER];
    float v[ROWS], decay, beta;
    __device__ __forceinline__ void load(const token<PER> &t, int c, int row)
    {
#pragma unroll
        for (int p = 0; p < PER; p++) {
            q[p] = *(const float4 *)(t.q + p * 4 * T + 4 * c);
            k[p] = *(const float4 *)(t.k + p * 4 * T + 4 * c);
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++) v[i] = t.v[row + i];
        decay = t.decay;
        beta = t.beta;
    }
};

/* Lanes c, c + 8, c + 16 and c + 24 of the tree: its levels 16 and 8. */
__device__ __forceinline__ float upper(const float4 &t) { return (t.x + t.z) + (t.y + t.w); }

/* Lane i of the T stores row i; n rows are there. */
__device__ __forceinline__ void put_outputs(float *y, const float (&o)[ROWS], int c, int n)
{
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        if (c == i && i < n) y[i] = o[i];
}

/* x: BLOCK_ROWS rows of the state; y: value head; z: run. */
template <int PER, int CHUNK> __device__ __forceinline__ void scan(const cu_delta &a, uint8_t *shared)
{
    static_assert(T == 8, "a float4 is the four lanes of the tree that a thread holds");
    static_assert(sizeof(token<PER>[STAGES][CHUNK]) <= SHARED, "room");
    auto ring = (token<PER> (*)[CHUNK])shared;
    int lane = threadIdx.x % 32, c = lane % T, head = blockIdx.y, r0 = a.step->run_row[blockIdx.z], v0 = blockIdx.x * BLOCK_ROWS;
    int r1 = a.step->run1[r0], mine = (threadIdx.x / T) * ROWS;
    for (int s = 0; s < STAGES - 1; s++) fetch<PER, CHUNK>(a, ring[s], r0 + s * CHUNK, r1, head, v0);
    float *S = a.state + (size_t)a.step->slot[r0] * a.state_floats + ((size_t)head * a.dv + v0 + mine) * a.dk;
    bool fresh = a.step->pos[r0] == 0;
    float4 s[ROWS][PER];
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int p = 0; p < PER; p++) {
            const float *at = S + (size_t)i * a.dk + 32 * p + c;
            s[i][p] = fresh || v0 + mine + i >= a.dv ? make_float4(0, 0, 0, 0) : make_float4(at[0], at[T], at[2 * T], at[3 * T]);
        }
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
    __syncthreads();
    part<PER> now, next;
    now.load(ring[0][0], c, mine);
    float o[ROWS] = {}; /* of the token before; its tree is finished beside that of this one */
    float *y = a.y + (size_t)r0 * a.y_stride + head * a.dv + v0 + mine;
    for (int r = r0, at = 0, stage = 0; r < r1; r++) {
        float t[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            float4 x = make_float4(0, 0, 0, 0);
#pragma unroll
            for (int p = 0; p < PER; p++) {
                float4 &w = s[i][p];
                w.x = w.x * now.decay, w.y = w.y * now.decay, w.z = w.z * now.decay, w.w = w.w * now.decay;
                x.x = cb_fma(w.x, now.k[p].x, x.x);
                x.y = cb_fma(w.y, now.k[p].y, x.y);
                x.z = cb_fma(w.z, now.k[p].z, x.z);
                x.w = cb_fma(w.w, now.k[p].w, x.w);
            }
            t[i] = upper(x);
        }
        if (++at == CHUNK) { /* the next token is the first of the next chunk */
            at = 0;
            asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 3) : "memory");
            __syncthreads(); /* all have read this chunk's last token */
            fetch<PER, CHUNK>(a, ring[(stage + STAGES - 1) % STAGES], r + 1 + (STAGES - 2) * CHUNK, r1, head, v0);
            stage = (stage + 1) % STAGES;
        }
        next.load(ring[stage][at], c, mine);
#pragma unroll
        for (int w = T / 2; w; w /= 2)
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                t[i] = t[i] + __shfl_xor_sync(FULL, t[i], w);
                o[i] = o[i] + __shfl_xor_sync(FULL, o[i], w);
            }
        if (r > r0) {
            put_outputs(y, o, c, a.dv - v0 - mine);
            y += a.y_stride;
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            float d = now.beta * (now.v[i] - t[i]);
            float4 x = make_float4(0, 0, 0, 0);
#pragma unroll
            for (int p = 0; p < PER; p++) {
                float4 &w = s[i][p];
                w.x = cb_fma(d, now.k[p].x, w.x);
                w.y = cb_fma(d, now.k[p].y, w.y);
                w.z = cb_fma(d, now.k[p].z, w.z);
                w.w = cb_fma(d, now.k[p].w, w.w);
                x.x = cb_fma(w.x, now.q[p].x, x.x);
                x.y = cb_fma(w.y, now.q[p].y, x.y);
                x.z = cb_fma(w.z, now.q[p].z, x.z);
                x.w = cb_fma(w.w, now.q[p].w, x.w);
            }
            o[i] = upper(x);
        }
        now = next;
    }
#pragma unroll
    for (int w = T / 2; w; w /= 2)
#pragma unroll
        for (int i = 0; i < ROWS; i++) o[i] = o[i] + __shfl_xor_sync(FULL, o[i], w);
    put_outputs(y, o, c, a.dv - v0 - mine);
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int p = 0; p < PER; p++)
            if (v0 + mine + i < a.dv) {
                float *at = S + (size_t)i * a.dk + 32 * p + c;
                at[0] = s[i][p].x, at[T] = s[i][p].y, at[2 * T] = s[i][p].z, at[3 * T] = s[i][p].w;
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
