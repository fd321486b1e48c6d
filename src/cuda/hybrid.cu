/* hybrid.cu: layers with recurrent state, and the sort of routed rows. Rows of a session are taken in order; channels, value
 * rows and sessions are independent. */
#include "cuda/common.cuh"

/* ---- convolution: the state holds the taps-1 rows before the next one, oldest first ---- */

/* The input of tap j of row r, of a run that begins at row r0: a row of the step, or one of the state. */
__device__ __forceinline__ float tap(const cu_conv &a, int r, int r0, int j, int ch, const float *state, bool fresh)
{
    int at = r - (a.taps - 1) + j;
    if (at >= r0) return a.x[(size_t)at * a.x_stride + ch];
    return fresh ? 0 : state[(size_t)(at - r0 + a.taps - 1) * a.width + ch];
}

/* y: row. */
extern "C" __global__ void __launch_bounds__(256) k_conv(const __grid_constant__ cu_conv a)
{
    pdl_trigger();
    pdl_wait();
    int ch = blockIdx.x * 256 + threadIdx.x, r = blockIdx.y;
    if (ch >= a.width) return;
    int r0 = a.step->run0[r];
    const float *state = a.state + (size_t)a.step->slot[r] * a.state_floats;
    bool fresh = a.step->pos[r0] == 0;
    float acc = 0;
    for (int j = 0; j < a.taps; j++) acc = cb_fma(a.w[(size_t)ch * a.taps + j], tap(a, r, r0, j, ch, state, fresh), acc);
    a.y[(size_t)r * a.y_stride + ch] = cb_siluf(acc);
}

/* Rows for the next step; y: run. After k_conv: it reads what this overwrites. */
extern "C" __global__ void __launch_bounds__(256) k_conv_keep(const __grid_constant__ cu_conv a)
{
    pdl_trigger();
    pdl_wait();
    int ch = blockIdx.x * 256 + threadIdx.x, r0 = a.step->run_row[blockIdx.y];
    if (ch >= a.width) return;
    int r1 = a.step->run1[r0];
    float *state = a.state + (size_t)a.step->slot[r0] * a.state_floats;
    bool fresh = a.step->pos[r0] == 0;
    for (int j = 0; j < a.taps - 1; j++) /* ascending: a kept row moves towards the front */
        state[(size_t)j * a.width + ch] = tap(a, r1, r0, j, ch, state, fresh);
}

/* Both, for runs of one row. */
extern "C" __global__ void __launch_bounds__(256) k_conv_step(const __grid_constant__ cu_conv a)
{
    pdl_trigger();
    pdl_wait();
    int ch = blockIdx.x * 256 + threadIdx.x, r = blockIdx.y;
    if (ch >= a.width) return;
    float *state = a.state + (size_t)a.step->slot[r] * a.state_floats;
    bool fresh = a.step->pos[r] == 0;
    float acc = 0;
    for (int j = 0; j < a.taps; j++) {
        float x = tap(a, r, r, j, ch, state, fresh);
        acc = cb_fma(a.w[(size_t)ch * a.taps + j], x, acc);
        if (j) state[(size_t)(j - 1) * a.width + ch] = x;
    }
    a.y[(size_t)r * a.y_stride + ch] = cb_siluf(acc);
}

/* ---- gated delta rule ---- */

enum { DELTA_ROWS = 8, DELTA_WARPS = 4 };

/* The lane tree of 8 values at once: lane l ends with the sum of value l/4 (bits of l: 16, 8, 4 choose it). An exchange halves
 * how many values a lane holds, so that 8 trees take 9 shuffles. */
__device__ __forceinline__ float fold8(float (&v)[8], int lane)
{
#pragma unroll
    for (int w = 16, n = 4; n; w /= 2, n /= 2) {
        bool up = lane & w;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i >= n) break;
            float mine = up ? v[i + n] : v[i], other = up ? v[i] : v[i + n];
            v[i] = mine + __shfl_xor_sync(FULL, other, w);
        }
    }
    float s = v[0] + __shfl_xor_sync(FULL, v[0], 2);
    return s + __shfl_xor_sync(FULL, s, 1);
}

/* One warp: 8 rows of the state of one value head, PER values of a row in each lane (dk = 32*PER). x: groups of DELTA_WARPS*8 rows
 * of the head; y: value head; z: run. */
template <int PER> __device__ void delta(const cu_delta &a)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.y, r0 = a.step->run_row[blockIdx.z];
    int v0 = (blockIdx.x * DELTA_WARPS + warp) * DELTA_ROWS;
    if (v0 >= a.dv) return;
    int r1 = a.step->run1[r0], kh = head / (a.v_heads / a.k_heads), n_v = a.dv - v0 < DELTA_ROWS ? a.dv - v0 : DELTA_ROWS;
    float *S = a.state + (size_t)a.step->slot[r0] * a.state_floats + ((size_t)head * a.dv + v0) * a.dk;
    bool fresh = a.step->pos[r0] == 0;
    float s[DELTA_ROWS][PER];
#pragma unroll
    for (int i = 0; i < DELTA_ROWS; i++)
#pragma unroll
        for (int j = 0; j < PER; j++) s[i][j] = fresh || i >= n_v || 32 * j + lane >= a.dk ? 0 : S[(size_t)i * a.dk + 32 * j + lane];
    float rate = cb_expf(a.a_log[head]), bias = a.dt_bias[head], root = 1.0f / sqrtf((float)a.dk);
    for (int r = r0; r < r1; r++) {
        const float *u = a.u + (size_t)r * a.u_stride;
        float q[PER], k[PER], qs = 0, ks = 0;
#pragma unroll
        for (int j = 0; j < PER; j++) {
            bool in = 32 * j + lane < a.dk;
            q[j] = in ? u[kh * a.dk + 32 * j + lane] : 0;
            k[j] = in ? u[(a.k_heads + kh) * a.dk + 32 * j + lane] : 0;
            if (in) {
                qs = cb_fma(q[j], q[j], qs);
                ks = cb_fma(k[j], k[j], ks);
            }
        }
        float v = lane / 4 < n_v ? u[2 * a.k_heads * a.dk + head * a.dv + v0 + lane / 4] : 0;
        float qi = 1.0f / sqrtf(lane_fold(qs) + 1e-6f), ki = 1.0f / sqrtf(lane_fold(ks) + 1e-6f);
#pragma unroll
        for (int j = 0; j < PER; j++) {
            q[j] = (q[j] * qi) * root;
            k[j] = k[j] * ki; /* times 1 */
        }
        float decay = cb_expf(-(rate * cb_softplusf(a.a[(size_t)r * a.a_stride + head] + bias)));
        float beta = cb_sigmoidf(a.b[(size_t)r * a.b_stride + head]);
        float t[8];
#pragma unroll
        for (int i = 0; i < DELTA_ROWS; i++) {
            t[i] = 0;
#pragma unroll
            for (int j = 0; j < PER; j++) {
                s[i][j] = s[i][j] * decay;
                if (32 * j + lane < a.dk) t[i] = cb_fma(s[i][j], k[j], t[i]);
            }
        }
        float d = beta * (v - fold8(t, lane));
#pragma unroll
        for (int i = 0; i < DELTA_ROWS; i++) {
            float di = __shfl_sync(FULL, d, 4 * i);
            t[i] = 0;
#pragma unroll
            for (int j = 0; j < PER; j++) {
                s[i][j] = cb_fma(di, k[j], s[i][j]);
                if (32 * j + lane < a.dk) t[i] = cb_fma(s[i][j], q[j], t[i]);
            }
        }
        float o = fold8(t, lane);
        if (lane % 4 == 0 && lane / 4 < n_v) a.y[(size_t)r * a.y_stride + head * a.dv + v0 + lane / 4] = o;
    }
#pragma unroll
    for (int i = 0; i < DELTA_ROWS; i++)
#pragma unroll
        for (int j = 0; j < PER; j++)
            if (i < n_v && 32 * j + lane < a.dk) S[(size_t)i * a.dk + 32 * j + lane] = s[i][j];
}

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

/* One thread block. Slots of an expert stand in ascending order, as on the CPU: warps take experts, and each looks at all
 * slots 32 at a time. */
extern "C" __global__ void __launch_bounds__(1024) k_moe_sort(const __grid_constant__ cu_sort a)
{
    __shared__ int at[1025], n_tiles_of[1025];
    pdl_trigger();
    pdl_wait();
    int n = a.n_rows * a.k, E = a.n_experts, t = threadIdx.x;
    for (int e = t; e <= E; e += 1024) at[e] = 0;
    __syncthreads();
    for (int i = t; i < n; i += 1024) atomicAdd(&at[a.route[(size_t)(i / a.k) * a.stride + i % a.k] + 1], 1);
    __syncthreads();
    if (t == 0) {
        int tiles = 0;
        for (int e = 0; e < E; e++) {
            n_tiles_of[e] = tiles;
            tiles += (at[e + 1] + a.tile - 1) / a.tile;
            at[e + 1] += at[e];
        }
        n_tiles_of[E] = tiles;
        a.tiles[2 * tiles] = -1;
    }
    __syncthreads();
    for (int e = t; e <= E; e += 1024) a.expert_at[e] = at[e];
    for (int e = t; e < E; e += 1024)
        for (int i = at[e], j = n_tiles_of[e]; i < at[e + 1]; i += a.tile, j++) {
            a.tiles[2 * j] = e;
            a.tiles[2 * j + 1] = i;
        }
    for (int j = n_tiles_of[E] + t; j <= n; j += 1024) a.tiles[2 * j] = -1; /* a launch has a block for each possible tile */
    int lane = t % 32;
    for (int e = t / 32; e < E; e += 32) {
        int to = at[e], last = at[e + 1];
        for (int i0 = 0; i0 < n && to < last; i0 += 32) {
            int i = i0 + lane;
            bool mine = i < n && a.route[(size_t)(i / a.k) * a.stride + i % a.k] == e;
            unsigned mask = __ballot_sync(FULL, mine);
            if (mine) {
                int p = to + __popc(mask & ((1u << lane) - 1));
                a.slots[p] = i;
                a.rows[p] = i / a.k;
            }
            to += __popc(mask);
        }
    }
}
