/* delta_step.cu: what stands between the products of a gated delta net, rows of different sessions, in one launch: a thread block takes
 * one value head of one row. Its state, the ring of the convolution and all weights are read before the block waits for the product
 * in front: this step's earlier launches do not touch them. Channels of q and k are convolved by each of the value heads that share
 * them, which write the same row into the ring. See hybrid.cu for the same steps one by one. */
#include "cuda/heads.cuh"

enum { ROWS = 8, MAX_D = 128 }; /* rows of the state a warp holds */
enum { SHOWN = 1 };  /* a barrier */

struct shared {
    float ahead[3 * MAX_D];  /* q, k, v: what the convolution's older taps give, */
    float last[3 * MAX_D];   /* the newest tap's weights, */
    float u[3 * MAX_D];      /* and the result */
    alignas(16) float o[MAX_D];
    alignas(16) float gate[MAX_D];
    alignas(16) float norm_w[MAX_D];
    float decay, beta, a_log, dt_bias;
    float norm_q, norm_k;
    int slot;
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
        sm.ahead[i] = cb_fma(w.z, x2, cb_fma(w.y, x1, cb_fma(w.x, x0, 0)));
        sm.last[i] = w.w;
    }
}

__device__ __forceinline__ void convolve(const cu_delta_step &a, const channels &ch, int r, float *ring, int width, int pos, int n, shared &sm, bool now)
{
#pragma unroll 1
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        int c = ch(i);
        float x = now ? a.x[(size_t)r * a.x_stride + c] : 0;
        if (now) ring[(pos & 3) * width + c] = x;
        sm.u[i] = cb_siluf(cb_fma(sm.last[i], x, sm.ahead[i]));
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

    __device__ __forceinline__ void store(float *S) const
    {
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int j = 0; j < PER; j++) S[32 * (PER * i + j)] = s[i][j];
    }

    /* The rule for the warp's rows; lane l gets the output of row l/4. v: that row's. */
    __device__ __forceinline__ float step(const float (&q)[PER], const float (&k)[PER], float v, float decay, float beta)
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
                fold[i] = cb_fma(s[i][j], q[j], fold[i]);
            }
        }
        return fold8(fold, threadIdx.x % 32);
    }
};

/* One warp: norm of the head and gate. Lane l gets four neighbours. */
__device__ __forceinline__ float4 norm_gate(const cu_delta_step &a, const shared &sm)
{
    int lane = threadIdx.x % 32;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < MAX_D; i += 32) {
        float o = lane + i < a.dv ? sm.o[lane + i] : 0;
        sum = cb_fma(o, o, sum);
    }
    float inv = 1.0f / sqrtf(lane_fold(sum) / (float)a.dv + a.eps);
    if (4 * lane >= a.dv) return make_float4(0, 0, 0, 0);
    float4 o = ((const float4 *)sm.o)[lane], z = ((const float4 *)sm.gate)[lane], w = ((const float4 *)sm.norm_w)[lane];
    return make_float4(z.x * ((o.x * inv) * w.x), z.y * ((o.y * inv) * w.y), z.z * ((o.z * inv) * w.z), z.w * ((o.w * inv) * w.w));
}

/* What q and k are multiplied by, by one warp. */
template <int PER> __device__ __forceinline__ void norms(shared &sm)
{
    float q[PER], k[PER];
#pragma unroll
    for (int j = 0; j < PER; j++) {
        q[j] = sm.u[32 * j + threadIdx.x % 32];
        k[j] = sm.u[32 * (PER + j) + threadIdx.x % 32];
    }
    float inv = 1.0f / sqrtf(two_squares(q, k) + 1e-6f);
    if (threadIdx.x % 32 == 0) sm.norm_q = inv;
    if (threadIdx.x % 32 == 16) sm.norm_k = inv;
}

/* Decay and beta, by one warp. */
__device__ __forceinline__ void rates(const cu_delta_step &a, int r, int head, shared &sm, bool now)
{
    float x = now ? a.a[(size_t)r * a.a_stride + head] : 0, b = now ? a.b[(size_t)r * a.b_stride + head] : 0;
    float decay = cb_expf(-(cb_expf(sm.a_log) * cb_softplusf(x + sm.dt_bias)));
    float beta = cb_sigmoidf(b);
    if (threadIdx.x % 32) return;
    sm.decay = decay;
    sm.beta = beta;
}

/* The warp's rows of the state: lane l's first value. */
template <int PER> __device__ __forceinline__ float *state_of(const cu_delta_step &a, int slot, int head)
{
    return a.state + (size_t)slot * a.state_floats + (size_t)((head * a.dv + threadIdx.x / 32 * ROWS) * 32 * PER + threadIdx.x % 32);
}

template <int PER> __device__ __forceinline__ void delta_step(const cu_delta_step &a, shared &sm)
{
    constexpr int dk = 32 * PER;
    int t = threadIdx.x, r = blockIdx.z, kh = blockIdx.y, head = kh * gridDim.x + blockIdx.x, slot = a.slot[r], pos = a.pos[r];
    float root = 1.0f / sqrtf((float)dk);
    if (t % 32 < ROWS * PER && pos > 0) prefetch(state_of<PER>(a, slot, head) + 31 * (t % 32)); /* a line each */
    if (t < a.dv) sm.norm_w[t] = a.norm_w[t];
    if (t == 0) {
        sm.slot = slot;
        sm.a_log = a.a_log[head];
        sm.dt_bias = a.dt_bias[head];
    }
    __syncthreads();

#pragma unroll 1
    for (bool now = !rehearses(gridDim.z);; now = true) {
        forget(kh);
        forget(head);
        forget(t);
        forget(r);
        forget(pos);
        channels ch = {kh * dk, (a.k_heads + kh - 1) * dk, (2 * a.k_heads - 2) * dk + head * a.dv, dk};
        int warp = t / 32, lane = t % 32, width = 2 * a.k_heads * dk + a.v_heads * a.dv, n = 2 * dk + a.dv, last = blockDim.x / 32 - 1;
        float *ring = a.ring + (size_t)sm.slot * a.ring_floats, z = 0;
        bool ends = warp < 2;                      /* they make planes of what all have found */
        bool on = now || ends || warp >= last - 1; /* the others let the launch ahead have the multiprocessor */
        rows<PER> state;
        state.load(state_of<PER>(a, sm.slot, head), now && pos > 0);
        if (now) {
            convolve_ahead(a, ch, ring, width, pos, n, sm);
            pdl_wait();
            if (t < a.dv) z = a.z[(size_t)r * a.z_stride + head * a.dv + t];
        }
        if (on) convolve(a, ch, r, ring, width, pos, n, sm, now);
        if (warp == last) rates(a, r, head, sm, now);
        else if (t < a.dv) sm.gate[t] = cb_siluf(z);
        __syncthreads();
        if (warp == last - 1) norms<PER>(sm);
        __syncthreads();
        if (on) {
            float q[PER], k[PER], qi = sm.norm_q, ki = sm.norm_k;
#pragma unroll
            for (int j = 0; j < PER; j++) {
                q[j] = (sm.u[32 * j + lane] * qi) * root;
                k[j] = sm.u[dk + 32 * j + lane] * ki;
            }
            float o = state.step(q, k, sm.u[2 * dk + warp * ROWS + lane / 4], sm.decay, sm.beta);
            if (lane % 4 == 0) sm.o[warp * ROWS + lane / 4] = o;
        }
        if (ends && now) state.store(state_of<PER>(a, sm.slot, head));
        __syncthreads();
        if (ends) {
            piece p = {norm_gate(a, sm), r, head * a.dv, a.dv, head, a.v_heads};
            float2 found = make_float2(0, 0);
            if (warp) found = find_piece(p);
            else if (a.out.x.planes) quant_piece(p, a.out.x, a.step, a.out.op, now);
            arrive_among(SHOWN, blockDim.x / 2);
            if (warp) arrive_piece(p, found, a.out, a.y + (size_t)r * a.y_stride, a.v_heads * a.dv, a.step, now);
        } else { /* stores stand in the way of the shuffles of these two, so the warps beside them wait */
            if (!(warp & 2)) barrier_among(SHOWN, blockDim.x / 2);
            if (now) state.store(state_of<PER>(a, sm.slot, head));
        }
        if (now) break;
        __syncthreads(); /* the gates are read to the end */
    }
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
