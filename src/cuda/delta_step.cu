/* delta_step.cu: what stands between the products of a gated delta net, rows of different sessions, in one launch: a thread block takes
 * one value head of one row. Its state, the ring of the convolution and all weights are read before the block waits for the product
 * in front: this step's earlier launches do not touch them. Channels of q and k are convolved by each of the value heads that share
 * them, which write the same row into the ring. See hybrid.cu for the same steps one by one. */
#include "cuda/heads.cuh"

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

/* Thread t's. The ring holds the row of position p at p % 4. */
template <int PER> __device__ __forceinline__ channel channel_of(const cu_delta_step &a, const head_of &h, bool now)
{
    constexpr int dk = 32 * PER;
    int i = threadIdx.x, n = 2 * dk + a.dv, width = 2 * a.k_heads * dk + a.v_heads * a.dv;
    if (i >= n) return {a.z + (size_t)h.row * a.z_stride + h.v * a.dv + (i - n), NULL, make_float4(0, 0, 0, 1), {0, 0, 0}};
    int c = i + (i < dk ? h.k * dk : i < 2 * dk ? (a.k_heads + h.k - 1) * dk : (2 * a.k_heads - 2) * dk + h.v * a.dv);
    float *ring = a.ring + (size_t)h.slot * a.ring_floats + c;
    float4 w = now ? ((const float4 *)a.conv_w)[c] : make_float4(0, 0, 0, 0);
    float x0 = now && h.pos > 2 ? ring[((h.pos + 1) & 3) * width] : 0, x1 = now && h.pos > 1 ? ring[((h.pos + 2) & 3) * width] : 0;
    float x2 = now && h.pos > 0 ? ring[((h.pos + 3) & 3) * width] : 0;
    return {a.x + (size_t)h.row * a.x_stride + c, ring + (h.pos & 3) * width, w, {x0, x1, x2}};
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

/* The first two warps finish the head: one makes its planes, the other asks what is asked of the whole row. The last two know decay, beta and the
 * norms. These four run ahead, without the others. */
template <int PER> __device__ __forceinline__ void delta_step(const cu_delta_step &a, head_of h, shared (&both)[2])
{
    constexpr int dk = 32 * PER;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, second = warp & 1;
    bool ends = warp < 2, knows = threadIdx.x >= blockDim.x - 64, steps = ROWS * warp < a.dv, asked = a.out.x.planes && a.out.x.flag;
    if (steps && lane < ROWS * PER && h.pos > 0) prefetch(state_of<PER>(a, h) + 31 * lane); /* a line each */
#pragma unroll 1
    for (bool now = !rehearses(gridDim.z);; now = true) {
        if (!now && !ends && !knows) continue; /* the others let the launch ahead have the multiprocessor */
        forget(h.row);
        forget(h.k);
        forget(h.v);
        shared &sm = both[!now];
        int t = threadIdx.x;
        if (now && t < a.dv) sm.norm_w[t] = a.norm_w[t];
        bool in = now && t < 2 * (dk + a.dv);
        channel c = channel_of<PER>(a, h, in);
        rows<PER> state;
        state.load(state_of<PER>(a, h), now && steps && h.pos > 0);
        float ahead = c.ahead(), newest = c.w.w, a_exp = 0;
        const float *from = second ? a.b + (size_t)h.row * a.b_stride + h.v : a.a + (size_t)h.row * a.a_stride + h.v;
        if (knows) a_exp = cb_expf(h.a_log);
        if (now) pdl_wait();
        float x = in ? __ldcg(c.x) : 0, rate = now && knows ? __ldcg(from) : 0;
        if (in && c.ring) *c.ring = x;
        x = cb_siluf(cb_fma(newest, x, ahead));
        forget(x);
        if (in) sm.u[t] = x;
        if (knows) {
            rate = second ? cb_sigmoidf(rate) : cb_expf(-(a_exp * cb_softplusf(rate + h.dt_bias)));
            forget(rate);
            if (now && lane == 0) sm.rate[second] = rate;
        }
        if (now) __syncthreads();
        if (knows) {
            x = norm_of<PER>(sm.u, second);
            forget(x);
            if (now && lane == 0) sm.norm[second] = x;
        }
        state.fade(sm.rate[0]);
        if (now) __syncthreads();
        if (steps) {
            float o = state.step(sm, warp * ROWS + lane / 4);
            forget(o);
            if (now && lane % 4 == 0) sm.o[warp * ROWS + lane / 4] = o;
        }
        if (ends && now && steps) state.store(state_of<PER>(a, h)); /* or there were not enough registers */
        if (now) __syncthreads();
        if (ends) {
            piece p = {norm_gate(a, sm), h.row, h.v * a.dv, a.dv, h.v, a.v_heads};
            float *y = a.y + (size_t)h.row * a.y_stride;
            if (!second) {
                if (a.out.x.planes) quant_piece(p, a.out.x, a.step, a.out.op, now);
                if (now) __syncthreads();
            } else {
                float2 found = make_float2(0, 0);
                if (asked) found = find_piece(p);
                give_piece(p, found, a.out, y, now);
                if (now) __syncthreads();
                if (asked) arrive_piece(p, found, a.out, y, a.v_heads * a.dv, a.step, now);
            }
        } else if (now) { /* stores stand in the way of those two's shuffles, the less so from warps of another quarter of the multiprocessor */
            bool early = warp & 2 && !a.out.x.planes;
            if (!early) __syncthreads();
            if (steps) state.store(state_of<PER>(a, h));
            if (early) __syncthreads();
        }
        if (now) return;
    }
}

/* x: value head of a key head; y: key head; z: row. Threads: CU_DELTA_THREADS. */
extern "C" __global__ void __launch_bounds__(CU_DELTA_THREADS(MAX_D, MAX_D), 2) k_delta_step(const __grid_constant__ cu_delta_step a)
{
    __shared__ shared sm[2]; /* the second: zeros, for those who run ahead */
    pdl_trigger();
    int head = (int)(blockIdx.y * gridDim.x + blockIdx.x);
    head_of h = {(int)blockIdx.z, (int)blockIdx.y, head, a.slot[blockIdx.z], a.pos[blockIdx.z], a.a_log[head], a.dt_bias[head]};
    if (rehearses(gridDim.z)) {
        for (int i = threadIdx.x; i < (int)(sizeof(shared) / 4); i += blockDim.x) ((float *)&sm[1])[i] = 0;
        __syncthreads();
    }
    if (a.dk == 32) delta_step<1>(a, h, sm);
    else if (a.dk == 64) delta_step<2>(a, h, sm);
    else delta_step<4>(a, h, sm);
}
