/* delta_rows.cuh: a step of a gated delta net's value head in a thread block, each of whose warps holds some rows of its state. */
#ifndef CB_CUDA_DELTA_ROWS_CUH
#define CB_CUDA_DELTA_ROWS_CUH
#include "cuda/common.cuh"

enum { ROWS = 8, MAX_D = 128 }; /* rows of the state a warp holds */

struct shared {
    alignas(16) float u[4 * MAX_D]; /* q, k, v behind the convolution, silu of the gate */
    alignas(16) float o[MAX_D];
    alignas(16) float norm_w[MAX_D];
    alignas(8) float rate[2], norm[2]; /* decay, beta; what q and k are multiplied by */
};

/* PER values of a row of the state in each lane: dk = 32*PER. */
template <int PER> struct rows {
    float s[ROWS][PER];

    __device__ __forceinline__ void load(const float *S, bool there)
    {
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int j = 0; j < PER; j++) s[i][j] = there ? S[32 * (PER * i + j)] : 0;
    }

    __device__ __forceinline__ void store(float *S) const
    {
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int j = 0; j < PER; j++) S[32 * (PER * i + j)] = s[i][j];
    }

    __device__ __forceinline__ void fade(float decay)
    {
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int j = 0; j < PER; j++) s[i][j] = s[i][j] * decay;
    }

    /* The rule for the warp's rows, once they have faded; lane l gets the output of row l/4, which is `row` of the head. */
    __device__ __forceinline__ float step(const shared &sm, int row)
    {
        const float *u = sm.u + threadIdx.x % 32;
        float fold[ROWS], q[PER], k[PER], root = 1.0f / sqrtf((float)(32 * PER));
#pragma unroll
        for (int j = 0; j < PER; j++) k[j] = u[32 * (PER + j)] * sm.norm[1];
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            fold[i] = 0;
#pragma unroll
            for (int j = 0; j < PER; j++) fold[i] = cb_fma(s[i][j], k[j], fold[i]);
        }
        float d = sm.rate[1] * (sm.u[64 * PER + row] - fold8(fold, threadIdx.x % 32));
#pragma unroll
        for (int j = 0; j < PER; j++) q[j] = (u[32 * j] * sm.norm[0]) * root;
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            float di = __shfl_sync(FULL, d, 4 * i);
            fold[i] = 0;
#pragma unroll
            for (int j = 0; j < PER; j++) {
                s[i][j] = cb_fma(di, k[j], s[i][j]);
                fold[i] = cb_fma(s[i][j], q[j], fold[i]);
            }
        }
        return fold8(fold, threadIdx.x % 32);
    }
};

/* What a thread block works on. */
struct head_of {
    int row, k, v;           /* row; head of q and k, and of the rest */
    int slot, pos;
    float a_log, dt_bias;
};

/* The warp's rows of the state: lane l's first value. */
template <int PER> __device__ __forceinline__ float *state_of(const cu_delta_step &a, const head_of &h)
{
    return a.state + (size_t)h.slot * a.state_floats + (size_t)((h.v * a.dv + threadIdx.x / 32 * ROWS) * 32 * PER + threadIdx.x % 32);
}

/* A channel of the convolution, or a value of the gate, which is treated as one without older taps. */
struct channel {
    const float *x;
    float *ring;             /* NULL: of the gate */
    float4 w;                /* of the taps, the newest one's last */
    float old[3];
    __device__ __forceinline__ float ahead() const /* what the older taps give; -0 plus x is x */
    {
        return ring ? cb_fma(w.z, old[2], cb_fma(w.y, old[1], cb_fma(w.x, old[0], 0))) : -0.0f;
    }
};

/* Thread t's; x, z: the row before the convolution, and of the gate. The ring holds the row of position p at p % 4. */
template <int PER> __device__ __forceinline__ channel channel_of(const cu_delta_step &a, const head_of &h, const float *x, const float *z, bool now)
{
    constexpr int dk = 32 * PER;
    int i = threadIdx.x, n = 2 * dk + a.dv, width = 2 * a.k_heads * dk + a.v_heads * a.dv;
    if (i >= n) return {z + h.v * a.dv + (i - n), NULL, make_float4(0, 0, 0, 1), {0, 0, 0}};
    int c = i + (i < dk ? h.k * dk : i < 2 * dk ? (a.k_heads + h.k - 1) * dk : (2 * a.k_heads - 2) * dk + h.v * a.dv);
    float *ring = a.ring + (size_t)h.slot * a.ring_floats + c;
    float4 w = now ? ((const float4 *)a.conv_w)[c] : make_float4(0, 0, 0, 0);
    float x0 = now && h.pos > 2 ? ring[((h.pos + 1) & 3) * width] : 0, x1 = now && h.pos > 1 ? ring[((h.pos + 2) & 3) * width] : 0;
    float x2 = now && h.pos > 0 ? ring[((h.pos + 3) & 3) * width] : 0;
    return {x + c, ring + (h.pos & 3) * width, w, {x0, x1, x2}};
}

/* Norm of the head and gate, by one warp. Lane l gets four neighbours. */
__device__ __forceinline__ float4 norm_gate(const cu_delta_step &a, const shared &sm)
{
    int lane = threadIdx.x % 32, at = 4 * lane < a.dv ? lane : 0;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < MAX_D; i += 32) {
        float o = lane + i < a.dv ? sm.o[lane + i] : 0;
        sum = cb_fma(o, o, sum);
    }
    float4 o = ((const float4 *)sm.o)[at], z = ((const float4 *)(sm.u + 2 * a.dk + a.dv))[at], w = ((const float4 *)sm.norm_w)[at];
    float inv = 1.0f / sqrtf(lane_fold(sum) / (float)a.dv + a.eps);
    if (4 * lane >= a.dv) return make_float4(0, 0, 0, 0);
    return make_float4(z.x * ((o.x * inv) * w.x), z.y * ((o.y * inv) * w.y), z.z * ((o.z * inv) * w.z), z.w * ((o.w * inv) * w.w));
}

/* One warp: the norm of q, or k when `second`. */
template <int PER> __device__ __forceinline__ float norm_of(const float *u, int second)
{
    float x = 0;
#pragma unroll
    for (int j = 0; j < PER; j++) {
        float v = u[32 * (PER * second + j) + threadIdx.x % 32];
        x = cb_fma(v, v, x);
    }
    return 1.0f / sqrtf(lane_fold(x) + 1e-6f);
}
#endif
