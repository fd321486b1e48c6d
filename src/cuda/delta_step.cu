/* delta_step.cu: what stands between the products of a gated delta net, rows of different sessions, in one launch: a thread block takes
 * one value head of one row. Its state, the ring of the convolution and all weights are read before the block waits for the product
 * in front: this step's earlier launches do not touch them. Channels of q and k are convolved by each of the value heads that share
 * them, which write the same row into the ring. See hybrid.cu for the same steps one by one. */
#include "cuda/heads.cuh"

enum { ROWS = 8, MAX_D = 128 }; /* rows of the state a warp holds */

struct shared {
    float u[3 * MAX_D];      /* q, k, v: first what the convolution's older taps give, then its result */
    float last[3 * MAX_D];   /* the newest tap's weights */
    float o[MAX_D];
    alignas(16) float y[MAX_D];
    float decay, beta;
};

/* Sums of squares of two vectors by lane trees at once: lanes below 16 get that of a, the others that of b. */
template <int N> __device__ __forceinline__ float two_squares(const float (&a)[N], const float (&b)[N])
{
    bool up = threadIdx.x & 16;
    float x = 0, y = 0;
#pragma unroll
    for (int j = 0; j < N; j++) {
        x = cb_fma(a[j], a[j], x);
        y = cb_fma(b[j], b[j], y);
    }
    float v = (up ? y : x) + __shfl_xor_sync(FULL, up ? x : y, 16);
#pragma unroll
    for (int w = 8; w; w /= 2) v = v + __shfl_xor_sync(FULL, v, w);
    return v;
}

/* The head's channels: q, k, v, as the product numbers them. */
struct channels {
    int q, k, v, dk;
    __device__ __forceinline__ int operator()(int i) const { return i < dk ? q + i : i < 2 * dk ? k + i : v + i; }
};

/* What the older taps give. The ring holds the row of position p at p % 4. */
__device__ __forceinline__ void convolve_ahead(const cu_delta_step &a, const channels &ch, const float *ring, int width, int pos, int n, shared &sm)
{
#pragma unroll 1
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        int c = ch(i);
        float4 w = ((const float4 *)a.conv_w)[c];
        float x0 = pos > 2 ? ring[((pos + 1) & 3) * width + c] : 0, x1 = pos > 1 ? ring[((pos + 2) & 3) * width + c] : 0;
        float x2 = pos > 0 ? ring[((pos + 3) & 3) * width + c] : 0;
        sm.u[i] = cb_fma(w.z, x2, cb_fma(w.y, x1, cb_fma(w.x, x0, 0)));
        sm.last[i] = w.w;
    }
}

__device__ __forceinline__ void convolve(const cu_delta_step &a, const channels &ch, int r, float *ring, int width, int pos, int n, shared &sm)
{
#pragma unroll 1
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        int c = ch(i);
        float x = a.x[(size_t)r * a.x_stride + c];
        ring[(pos & 3) * width + c] = x;
        sm.u[i] = cb_siluf(cb_fma(sm.last[i], x, sm.u[i]));
    }
}

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

    /* The rule for the warp's rows; lane l gets the output of row l/4. v: that row's. */
    __device__ __forceinline__ float step(float *S, const float (&q)[PER], const float (&k)[PER], float v, float decay, float beta)
    {
        float fold[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            fold[i] = 0;
#pragma unroll
            for (int j = 0; j < PER; j++) {
                s[i][j] = s[i][j] * decay;
                fold[i] = cb_fma(s[i][j], k[j], fold[i]);
            }
        }
        float d = beta * (v - fold8(fold, threadIdx.x % 32));
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            float di = __shfl_sync(FULL, d, 4 * i);
            fold[i] = 0;
#pragma unroll
            for (int j = 0; j < PER; j++) {
                s[i][j] = cb_fma(di, k[j], s[i][j]);
                S[32 * (PER * i + j)] = s[i][j];
                fold[i] = cb_fma(s[i][j], q[j], fold[i]);
            }
        }
        return fold8(fold, threadIdx.x % 32);
    }
};

/* Norm of the head and gate, by the first dv threads. */
__device__ __forceinline__ void norm_gate(const cu_delta_step &a, float z, float norm_w, float *y, shared &sm)
{
    float sum = 0;
#pragma unroll 1
    for (int i = threadIdx.x % 32; i < a.dv; i += 32) sum = cb_fma(sm.o[i], sm.o[i], sum);
    float inv = 1.0f / sqrtf(lane_fold(sum) / (float)a.dv + a.eps);
    *y = sm.y[threadIdx.x] = z * ((sm.o[threadIdx.x] * inv) * norm_w);
}

template <int PER> __device__ __forceinline__ void delta_step(const cu_delta_step &a, shared &sm)
{
    constexpr int dk = 32 * PER;
    int t = threadIdx.x, warp = t / 32, lane = t % 32, r = blockIdx.z, kh = blockIdx.y, head = kh * gridDim.x + blockIdx.x;
    int slot = a.slot[r], pos = a.pos[r], width = 2 * a.k_heads * dk + a.v_heads * a.dv, n = 2 * dk + a.dv;
    float *S = a.state + (size_t)slot * a.state_floats + (size_t)(head * a.dv + warp * ROWS) * dk + lane;
    float *ring = a.ring + (size_t)slot * a.ring_floats;
    channels ch = {kh * dk, (a.k_heads + kh - 1) * dk, (2 * a.k_heads - 2) * dk + head * a.dv, dk};
    rows<PER> state;
    state.load(S, pos > 0);
    convolve_ahead(a, ch, ring, width, pos, n, sm);
    float norm_w = t < a.dv ? a.norm_w[t] : 0, z = 0, root = 1.0f / sqrtf((float)dk), a_log = a.a_log[head], dt_bias = a.dt_bias[head];

    pdl_wait();
    if (t < a.dv) z = a.z[(size_t)r * a.z_stride + head * a.dv + t];
    convolve(a, ch, r, ring, width, pos, n, sm);
    if (warp == (int)blockDim.x / 32 - 1) {
        float decay = cb_expf(-(cb_expf(a_log) * cb_softplusf(a.a[(size_t)r * a.a_stride + head] + dt_bias)));
        float beta = cb_sigmoidf(a.b[(size_t)r * a.b_stride + head]);
        if (lane == 0) {
            sm.decay = decay;
            sm.beta = beta;
        }
    }
    __syncthreads();
    float q[PER], k[PER];
#pragma unroll
    for (int j = 0; j < PER; j++) {
        q[j] = sm.u[32 * j + lane];
        k[j] = sm.u[dk + 32 * j + lane];
    }
    float inv = 1.0f / sqrtf(two_squares(q, k) + 1e-6f), qi = __shfl_sync(FULL, inv, 0), ki = __shfl_sync(FULL, inv, 16);
#pragma unroll
    for (int j = 0; j < PER; j++) {
        q[j] = (q[j] * qi) * root;
        k[j] = k[j] * ki;
    }
    float o = state.step(S, q, k, sm.u[2 * dk + warp * ROWS + lane / 4], sm.decay, sm.beta);
    if (lane % 4 == 0) sm.o[warp * ROWS + lane / 4] = o;
    z = cb_siluf(z);
    __syncthreads();
    float *y = a.y + (size_t)r * a.y_stride;
    if (t < a.dv) norm_gate(a, z, norm_w, y + head * a.dv + t, sm);
    if (!a.out.x.planes) return;
    __syncthreads();
    if (warp == 0) quant_head(sm.y, a.dv, head * a.dv, head == a.v_heads - 1, a.out.x, r, a.step, a.out.op);
    end_row(a.out, sm.y, a.dv, y, a.v_heads * a.dv, r, head, a.v_heads, a.step);
}

/* x: value head of a key head; y: key head; z: row. Threads: 4*dv. */
extern "C" __global__ void __launch_bounds__(4 * MAX_D, 2) k_delta_step(const __grid_constant__ cu_delta_step a)
{
    __shared__ shared sm;
    pdl_trigger();
    if (a.dk == 32) delta_step<1>(a, sm);
    else if (a.dk == 64) delta_step<2>(a, sm);
    else delta_step<4>(a, sm);
}
