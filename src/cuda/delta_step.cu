/* delta_step.cu: what stands between the products of a gated delta net, rows of different sessions, in one launch: a thread block takes
 * one value head of one row. Its state, the ring of the convolution and all weights are read before the block waits for the product
 * in front: this step's earlier launches do not touch them. Channels of q and k are convolved by each of the value heads that share
 * them, which write the same row into the ring. See hybrid.cu for the same steps one by one. */
#include "cuda/common.cuh"

enum { ROWS = 8, MAX_D = 128, CHANNELS = 3 }; /* rows of the state a warp holds; channels a thread convolves at most */

struct shared {
    float u[3 * MAX_D];      /* q, k, v after the convolution */
    float o[MAX_D];
    float q_inv, k_inv, decay, beta;
};

/* Channel i of the head's q, k and v, as the product numbers it. */
__device__ __forceinline__ int channel_of(const cu_delta_step &a, int head, int i)
{
    int kh = head / (a.v_heads / a.k_heads);
    return i < a.dk ? kh * a.dk + i : i < 2 * a.dk ? (a.k_heads + kh) * a.dk + i - a.dk : 2 * a.k_heads * a.dk + head * a.dv + i - 2 * a.dk;
}

/* PER values of a row of the state in each lane: dk = 32*PER. Threads: 4*dv. */
template <int PER> __device__ __forceinline__ void delta_step(const cu_delta_step &a, shared &sm)
{
    int t = threadIdx.x, T = blockDim.x, warp = t / 32, lane = t % 32, head = blockIdx.x, r = blockIdx.y;
    int slot = a.step->slot[r], pos = a.step->pos[r], width = 2 * a.k_heads * a.dk + a.v_heads * a.dv, n = 2 * a.dk + a.dv;
    float *S = a.state + (size_t)slot * a.state_floats + ((size_t)head * a.dv + warp * ROWS) * a.dk + lane, s[ROWS][PER];
    float *ring = a.ring + (size_t)slot * a.ring_floats, acc[CHANNELS], last[CHANNELS];
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int j = 0; j < PER; j++) s[i][j] = pos ? S[i * a.dk + 32 * j] : 0;
#pragma unroll
    for (int c = 0; c < CHANNELS; c++) {
        acc[c] = last[c] = 0;
        if (t + c * T >= n) continue;
        int ch = channel_of(a, head, t + c * T);
        for (int j = 0, at = pos - (a.taps - 1); j < a.taps - 1; j++, at++)
            acc[c] = cb_fma(a.conv_w[(size_t)ch * a.taps + j], at < 0 ? 0 : ring[(size_t)(at % a.taps) * width + ch], acc[c]);
        last[c] = a.conv_w[(size_t)ch * a.taps + a.taps - 1];
    }
    float norm_w = t < a.dv ? a.norm_w[t] : 0, z = 0, root = 1.0f / sqrtf((float)a.dk);
    float a_log = a.a_log[head], dt_bias = a.dt_bias[head];

    pdl_wait();
#pragma unroll
    for (int c = 0; c < CHANNELS; c++) {
        if (t + c * T >= n) continue;
        int ch = channel_of(a, head, t + c * T);
        float x = a.x[(size_t)r * a.x_stride + ch];
        ring[(size_t)(pos % a.taps) * width + ch] = x;
        sm.u[t + c * T] = cb_siluf(cb_fma(last[c], x, acc[c]));
    }
    if (t < a.dv) z = a.z[(size_t)r * a.z_stride + head * a.dv + t];
    if (warp == T / 32 - 1) {
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
        k[j] = sm.u[a.dk + 32 * j + lane];
    }
    if (warp < 2) { /* q and k become unit vectors */
        float sum = 0;
#pragma unroll
        for (int j = 0; j < PER; j++) sum = warp ? cb_fma(k[j], k[j], sum) : cb_fma(q[j], q[j], sum);
        float inv = 1.0f / sqrtf(lane_fold(sum) + 1e-6f);
        if (lane == 0) *(warp ? &sm.k_inv : &sm.q_inv) = inv;
    }
    float v = sm.u[2 * a.dk + warp * ROWS + lane / 4];
    __syncthreads();
    float qi = sm.q_inv, ki = sm.k_inv, decay = sm.decay, fold[8];
#pragma unroll
    for (int j = 0; j < PER; j++) {
        q[j] = (q[j] * qi) * root;
        k[j] = k[j] * ki;
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        fold[i] = 0;
#pragma unroll
        for (int j = 0; j < PER; j++) {
            s[i][j] = s[i][j] * decay;
            fold[i] = cb_fma(s[i][j], k[j], fold[i]);
        }
    }
    float d = sm.beta * (v - fold8(fold, lane));
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        float di = __shfl_sync(FULL, d, 4 * i);
        fold[i] = 0;
#pragma unroll
        for (int j = 0; j < PER; j++) {
            s[i][j] = cb_fma(di, k[j], s[i][j]);
            S[i * a.dk + 32 * j] = s[i][j];
            fold[i] = cb_fma(s[i][j], q[j], fold[i]);
        }
    }
    float o = fold8(fold, lane);
    if (lane % 4 == 0) sm.o[warp * ROWS + lane / 4] = o;
    z = cb_siluf(z);
    __syncthreads();
    if (t >= a.dv) return;
    float sum = 0;
    for (int i = lane; i < a.dv; i += 32) sum = cb_fma(sm.o[i], sm.o[i], sum);
    float inv = 1.0f / sqrtf(lane_fold(sum) / (float)a.dv + a.eps);
    a.y[(size_t)r * a.y_stride + head * a.dv + t] = z * ((sm.o[t] * inv) * norm_w);
}

/* x: value head; y: row. */
extern "C" __global__ void __launch_bounds__(4 * MAX_D, 2) k_delta_step(const __grid_constant__ cu_delta_step a)
{
    __shared__ shared sm;
    pdl_trigger();
    if (a.dk == 32) delta_step<1>(a, sm);
    else if (a.dk == 64) delta_step<2>(a, sm);
    else delta_step<4>(a, sm);
}
