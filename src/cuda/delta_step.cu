/* delta_step.cu: what stands between the products of a gated delta net, rows of different sessions, in one launch: a thread block takes
 * one value head of one row. Its state, the ring of the convolution and all weights are read before the block waits for the product
 * in front: this step's earlier launches do not touch them. Channels of q and k are convolved by each of the value heads that share
 * them, which write the same row into the ring. See hybrid.cu for the same steps one by one. */
#include "cuda/delta_rows.cuh"
#include "cuda/heads.cuh"

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
        channel c = channel_of<PER>(a, h, a.x + (size_t)h.row * a.x_stride, a.z + (size_t)h.row * a.z_stride, in);
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
