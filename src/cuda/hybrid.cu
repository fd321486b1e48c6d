/* hybrid.cu: layers with recurrent state, and the sort of routed rows. Rows of a session are taken in order; channels, value
 * rows and sessions are independent. */
#include "cuda/common.cuh"

/* ---- convolution: the state is a ring of as many rows as there are taps. A row replaces one that no row from its own on reads, so
 * thread blocks that share channels need not wait for each other. ---- */

/* The input of the tap of row `at`, of a run that begins at row r0 and position p0: a row of the step, one of the ring, or nothing. */
__device__ __forceinline__ float tap(const cu_conv &a, int at, int r0, int p0, int ch, const float *ring)
{
    if (at >= r0) return a.x[(size_t)at * a.x_stride + ch];
    int pos = p0 + at - r0;
    return pos < 0 ? 0 : ring[(size_t)(pos % a.taps) * a.width + ch];
}

/* A thread takes a channel of CU_CONV_ROWS rows and keeps the rows before the next one in registers; 8 rows are on their way at a time. */
template <int TAPS> __device__ __forceinline__ void conv_rows(const cu_conv &a, int ch, int first, int end)
{
    float w[TAPS], before[TAPS];
#pragma unroll
    for (int j = 0; j < TAPS; j++) w[j] = a.w[(size_t)ch * TAPS + j];
    for (int r = first; r < end; r += 8) {
        float x[8];
#pragma unroll
        for (int k = 0; k < 8; k++) x[k] = r + k < end ? a.x[(size_t)(r + k) * a.x_stride + ch] : 0;
#pragma unroll
        for (int k = 0; k < 8; k++) {
            if (r + k >= end) break;
            int r0 = a.step->run0[r + k];
            if (r + k == first || r + k == r0) {
                const float *ring = a.ring + (size_t)a.step->slot[r0] * a.ring_floats;
#pragma unroll
                for (int j = 0; j < TAPS - 1; j++) before[j] = tap(a, r + k - (TAPS - 1) + j, r0, a.step->pos[r0], ch, ring);
            }
            before[TAPS - 1] = x[k];
            float acc = 0;
#pragma unroll
            for (int j = 0; j < TAPS; j++) acc = cb_fma(w[j], before[j], acc);
            a.y[(size_t)(r + k) * a.y_stride + ch] = cb_siluf(acc);
#pragma unroll
            for (int j = 0; j + 1 < TAPS; j++) before[j] = before[j + 1];
        }
    }
}

/* y: CU_CONV_ROWS rows. */
extern "C" __global__ void __launch_bounds__(256) k_conv(const __grid_constant__ cu_conv a)
{
    pdl_trigger();
    pdl_wait();
    int ch = blockIdx.x * 256 + threadIdx.x, first = blockIdx.y * CU_CONV_ROWS, end = min(first + CU_CONV_ROWS, a.n_rows);
    if (ch >= a.width) return;
    if (a.taps == 4) {
        conv_rows<4>(a, ch, first, end);
        return;
    }
    for (int r = first; r < end; r++) {
        int r0 = a.step->run0[r], p0 = a.step->pos[r0];
        const float *ring = a.ring + (size_t)a.step->slot[r] * a.ring_floats;
        float acc = 0;
        for (int j = 0; j < a.taps; j++) acc = cb_fma(a.w[(size_t)ch * a.taps + j], tap(a, r - (a.taps - 1) + j, r0, p0, ch, ring), acc);
        a.y[(size_t)r * a.y_stride + ch] = cb_siluf(acc);
    }
}

/* Rows for the next step; y: run. After k_conv: it reads what this overwrites. */
extern "C" __global__ void __launch_bounds__(256) k_conv_keep(const __grid_constant__ cu_conv a)
{
    pdl_trigger();
    pdl_wait();
    int ch = blockIdx.x * 256 + threadIdx.x, r0 = a.step->run_row[blockIdx.y];
    if (ch >= a.width) return;
    int r1 = a.step->run1[r0], first = r1 - r0 < a.taps ? r0 : r1 - a.taps;
    float *ring = a.ring + (size_t)a.step->slot[r0] * a.ring_floats;
    for (int r = first; r < r1; r++) ring[(size_t)((a.step->pos[r0] + r - r0) % a.taps) * a.width + ch] = a.x[(size_t)r * a.x_stride + ch];
}

/* ---- gated delta rule ---- */

enum { DELTA_ROWS = 8, DELTA_WARPS = 4 };

/* What a token brings to a value head, as one lane holds it. */
template <int PER> struct delta_in {
    float q[PER], k[PER], v, decay, beta;
};

template <int PER> __device__ __forceinline__ void delta_load(const cu_delta &a, int r, int head, int v0, int n_v, delta_in<PER> &in)
{
    int lane = threadIdx.x % 32, kh = head / (a.v_heads / a.k_heads);
    const float *u = a.u + (size_t)r * a.u_stride;
#pragma unroll
    for (int j = 0; j < PER; j++) {
        bool there = 32 * j + lane < a.dk;
        in.q[j] = there ? u[kh * a.dk + 32 * j + lane] : 0;
        in.k[j] = there ? u[(a.k_heads + kh) * a.dk + 32 * j + lane] : 0;
    }
    in.v = lane / 4 < n_v ? u[2 * a.k_heads * a.dk + head * a.dv + v0 + lane / 4] : 0;
    in.decay = a.a[(size_t)r * a.a_stride + head];
    in.beta = a.b[(size_t)r * a.b_stride + head];
    float qs = 0, ks = 0;
#pragma unroll
    for (int j = 0; j < PER; j++)
        if (32 * j + lane < a.dk) {
            qs = cb_fma(in.q[j], in.q[j], qs);
            ks = cb_fma(in.k[j], in.k[j], ks);
        }
    float qi = 1.0f / sqrtf(lane_fold(qs) + 1e-6f), ki = 1.0f / sqrtf(lane_fold(ks) + 1e-6f), root = 1.0f / sqrtf((float)a.dk);
#pragma unroll
    for (int j = 0; j < PER; j++) {
        in.q[j] = (in.q[j] * qi) * root;
        in.k[j] = in.k[j] * ki; /* times 1 */
    }
    in.decay = cb_expf(-(cb_expf(a.a_log[head]) * cb_softplusf(in.decay + a.dt_bias[head])));
    in.beta = cb_sigmoidf(in.beta);
}

/* One warp: 8 rows of the state of one value head, PER values of a row in each lane (dk = 32*PER). x: groups of DELTA_WARPS*8 rows
 * of the head; y: value head; z: run. */
template <int PER> __device__ void delta(const cu_delta &a)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.y, r0 = a.step->run_row[blockIdx.z];
    int v0 = (blockIdx.x * DELTA_WARPS + warp) * DELTA_ROWS;
    if (v0 >= a.dv) return;
    int r1 = a.step->run1[r0], n_v = a.dv - v0 < DELTA_ROWS ? a.dv - v0 : DELTA_ROWS;
    float *S = a.state + (size_t)a.step->slot[r0] * a.state_floats + ((size_t)head * a.dv + v0) * a.dk;
    bool fresh = a.step->pos[r0] == 0;
    delta_in<PER> now;
    delta_load<PER>(a, r0, head, v0, n_v, now);
    float s[DELTA_ROWS][PER];
#pragma unroll
    for (int i = 0; i < DELTA_ROWS; i++)
#pragma unroll
        for (int j = 0; j < PER; j++) s[i][j] = fresh || i >= n_v || 32 * j + lane >= a.dk ? 0 : S[(size_t)i * a.dk + 32 * j + lane];
    for (int r = r0; r < r1; r++) {
        float t[8];
#pragma unroll
        for (int i = 0; i < DELTA_ROWS; i++) {
            t[i] = 0;
#pragma unroll
            for (int j = 0; j < PER; j++) {
                s[i][j] = s[i][j] * now.decay;
                if (32 * j + lane < a.dk) t[i] = cb_fma(s[i][j], now.k[j], t[i]);
            }
        }
        float d = now.beta * (now.v - fold8(t, lane));
#pragma unroll
        for (int i = 0; i < DELTA_ROWS; i++) {
            float di = __shfl_sync(FULL, d, 4 * i);
            t[i] = 0;
#pragma unroll
            for (int j = 0; j < PER; j++) {
                s[i][j] = cb_fma(di, now.k[j], s[i][j]);
                if (32 * j + lane < a.dk) t[i] = cb_fma(s[i][j], now.q[j], t[i]);
            }
        }
        float o = fold8(t, lane);
        if (lane % 4 == 0 && lane / 4 < n_v) a.y[(size_t)r * a.y_stride + head * a.dv + v0 + lane / 4] = o;
        if (r + 1 < r1) delta_load<PER>(a, r + 1, head, v0, n_v, now);
    }
#pragma unroll
    for (int i = 0; i < DELTA_ROWS; i++)
#pragma unroll
        for (int j = 0; j < PER; j++)
            if (i < n_v && 32 * j + lane < a.dk) S[(size_t)i * a.dk + 32 * j + lane] = s[i][j];
}

/* Short runs, and dims that scan.cu does not take; it has long runs. */
extern "C" __global__ void __launch_bounds__(32 * DELTA_WARPS) k_delta(const __grid_constant__ cu_delta a)
{
    pdl_trigger();
    pdl_wait();
    if (a.dk <= 32) delta<1>(a);
    else if (a.dk <= 64) delta<2>(a);
    else if (a.dk <= 128) delta<4>(a);
    else delta<8>(a);
}

/* ---- experts ---- */

/* Exclusive sums over the block's 1024 threads. */
__device__ __forceinline__ int2 block_scan(int2 v, int2 *warp_sums, int2 *total)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    auto scan = [&](int2 x) {
#pragma unroll
        for (int s = 1; s < 32; s *= 2) {
            int a = __shfl_up_sync(FULL, x.x, s), b = __shfl_up_sync(FULL, x.y, s);
            if (lane >= s) x.x += a, x.y += b;
        }
        return x;
    };
    int2 x = scan(v);
    if (lane == 31) warp_sums[warp] = x;
    __syncthreads();
    if (warp == 0) warp_sums[lane] = scan(warp_sums[lane]);
    __syncthreads();
    *total = warp_sums[31];
    int2 before = warp ? warp_sums[warp - 1] : make_int2(0, 0);
    return make_int2(before.x + x.x - v.x, before.y + x.y - v.y);
}

/* Counting sort of the routed rows by expert; within an expert they keep their order. A thread block has a stretch of the rows, and a warp
 * of it a stretch of that. Of several blocks each looks up what k_moe_count counted for the others. Shared memory: int [33][n_experts]. */
struct stretch {
    int begin, end, per, from, to; /* of the n rows: the block's, of a warp of it, this warp's */
    __device__ __forceinline__ stretch(const cu_sort &a)
    {
        int n = a.n_rows * a.k, block = (n + gridDim.x - 1) / gridDim.x;
        per = (block + 1023) / 1024 * 32;
        end = min(n, (int)(blockIdx.x + 1) * block);
        begin = min(end, (int)blockIdx.x * block);
        from = min(end, begin + (int)threadIdx.x / 32 * per);
        to = min(end, from + per);
    }
};
__device__ __forceinline__ int expert_of(const cu_sort &a, int i) { return a.route[(size_t)(i / a.k) * a.stride + i % a.k]; }

extern "C" __global__ void __launch_bounds__(1024) k_moe_count(const __grid_constant__ cu_sort a)
{
    extern __shared__ int count[];
    pdl_trigger();
    pdl_wait();
    for (int e = threadIdx.x; e < a.n_experts; e += 1024) count[e] = 0;
    __syncthreads();
    stretch s(a);
    for (int i = s.from + threadIdx.x % 32; i < s.to; i += 32) atomicAdd(&count[expert_of(a, i)], 1);
    __syncthreads();
    for (int e = threadIdx.x; e < a.n_experts; e += 1024) a.counts[(size_t)blockIdx.x * a.n_experts + e] = count[e];
}

extern "C" __global__ void __launch_bounds__(1024) k_moe_sort(const __grid_constant__ cu_sort a)
{
    extern __shared__ int count[];
    __shared__ int2 sums[32];
    pdl_trigger();
    int n = a.n_rows * a.k, E = a.n_experts, t = threadIdx.x, lane = t % 32, *mine = count + t / 32 * E, *base = count + 32 * E;
    stretch s(a);
    int warps = (s.end - s.begin + s.per - 1) / s.per; /* that have rows */
    for (int i = t; i < warps * E; i += 1024) count[i] = 0;
    __syncthreads();
    pdl_wait();
    int i0 = s.from + lane, e0 = i0 < s.to ? expert_of(a, i0) : -1; /* often all there is */
    if (e0 >= 0) atomicAdd(&mine[e0], 1);
    for (int i = i0 + 32; i < s.to; i += 32) atomicAdd(&mine[expert_of(a, i)], 1);
    __syncthreads();
    int here = 0, before = 0, total = 0;
    for (int w0 = 0; w0 < warps && t < E; w0 += 8) { /* of expert t: how many come before warp w's */
        int c[8];
#pragma unroll
        for (int u = 0; u < 8; u++) c[u] = w0 + u < warps ? count[(w0 + u) * E + t] : 0;
#pragma unroll
        for (int u = 0; u < 8; u++) {
            if (w0 + u < warps) count[(w0 + u) * E + t] = here;
            here += c[u];
        }
    }
    if (gridDim.x == 1) total = here;
    for (int b = 0; b < (int)gridDim.x && gridDim.x > 1 && t < E; b++) {
        int c = a.counts[(size_t)b * E + t];
        total += c;
        if (b < (int)blockIdx.x) before += c;
    }
    int2 all, first = block_scan(make_int2(total, (total + a.tile - 1) / a.tile), sums, &all);
    if (t < E) base[t] = first.x + before;
    if (blockIdx.x == 0) {
        if (t < E) a.expert_at[t] = first.x;
        if (t == 0) a.expert_at[E] = n;
        for (int i = 0; i * a.tile < total; i++) {
            int at = first.x + i * a.tile, rows = total - i * a.tile;
            ((int4 *)a.tiles)[first.y + i] = make_int4(t, at, rows < a.tile ? rows : a.tile, all.y);
        }
    }
    for (int j = all.y + blockIdx.x * 1024 + t; j <= n; j += gridDim.x * 1024)
        ((int4 *)a.tiles)[j] = make_int4(-1, 0, 0, 0); /* a launch has a block for each possible tile */
    __syncthreads();
    for (int i = i0; i - lane < s.to; i += 32, e0 = i < s.to ? expert_of(a, i) : -1) {
        unsigned same = __match_any_sync(FULL, e0);
        int ahead = __popc(same & ((1u << lane) - 1)), at = e0 < 0 ? 0 : base[e0] + mine[e0] + ahead;
        __syncwarp();
        if (e0 >= 0) {
            if (!ahead) mine[e0] += __popc(same);
            a.slots[at] = i;
            a.rows[at] = i / a.k;
        }
        __syncwarp();
    }
}
