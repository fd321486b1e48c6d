/* sample.cu: the best logit of a row, and what sampling has to know of it (docs/sampling.md, section 5; plan/top.h). A thread block takes
 * CU_BEST_BLOCK logits of a row, eight a thread. Weights are integers, so nothing here depends on an order of addition. */
#include "cuda/common.cuh"

enum { THREADS = 256, EACH = CU_BEST_BLOCK / THREADS, BINS_EACH = CU_TOP_BINS / THREADS };

/* Larger logit, larger key; -0 is +0. */
__device__ __forceinline__ unsigned key_of(float z)
{
    unsigned u = __float_as_uint(z == 0 ? 0.0f : z);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}
__device__ __forceinline__ float value_of(unsigned key)
{
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

template <class T> __device__ __forceinline__ T larger(T a, T b) { return a > b ? a : b; }

__device__ __forceinline__ unsigned warp_max(unsigned v) { return __reduce_max_sync(FULL, v); }
__device__ __forceinline__ unsigned long long warp_max(unsigned long long v)
{
    unsigned high = warp_max((unsigned)(v >> 32)), low = warp_max(v >> 32 == high ? (unsigned)v : 0);
    return (unsigned long long)high << 32 | low;
}
/* The largest of all threads' values, in the first warp. `room`: one for each warp. */
template <class T> __device__ __forceinline__ T block_max(T v, T *room)
{
    int lane = threadIdx.x % 32;
    v = warp_max(v);
    if (lane == 0) room[threadIdx.x / 32] = v;
    __syncthreads();
    return threadIdx.x < 32 ? warp_max(lane < THREADS / 32 ? room[lane] : 0) : v;
}
__device__ __forceinline__ unsigned long long warp_sum(unsigned long long v)
{
    for (int s = 16; s; s /= 2) v += __shfl_xor_sync(FULL, v, s);
    return v;
}
/* The sum of the values of the threads before this one; *all: of all threads. */
__device__ __forceinline__ unsigned long long block_scan(unsigned long long v, unsigned long long *room, unsigned long long *all)
{
    unsigned long long sum = v;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int s = 1; s < 32; s *= 2) {
        unsigned long long other = __shfl_up_sync(FULL, sum, s);
        if (lane >= s) sum += other;
    }
    if (lane == 31) room[warp] = sum;
    __syncthreads();
    unsigned long long before = 0, total = 0;
    for (int w = 0; w < THREADS / 32; w++) {
        if (w == warp) before = total;
        total += room[w];
    }
    __syncthreads();
    *all = total;
    return before + sum - v;
}

/* y: row. The largest logit of the first n_ids, ties to the lower id. Runs twice, as said in heads.cuh. */
extern "C" __global__ void __launch_bounds__(THREADS) k_best(const __grid_constant__ cu_best a)
{
    __shared__ unsigned long long room[THREADS / 32];
    pdl_trigger();
    const float *z = a.logits + (size_t)blockIdx.y * a.n;
    int n_ids = a.step->n_ids, first = blockIdx.x * CU_BEST_BLOCK + threadIdx.x;
    bool asked = a.op >= 0 && a.step->n_asks;
#pragma unroll 1
    for (bool now = !rehearses(gridDim.y);; now = true) {
        if (now) pdl_wait();
        unsigned long long best = 0;
        float f[EACH];
        bool bad = false;
#pragma unroll
        for (int j = 0; j < EACH; j++) f[j] = now && first + j * THREADS < a.n ? z[first + j * THREADS] : 0;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            int i = first + j * THREADS;
            bad |= is_bad(f[j]);
            unsigned long long key = (unsigned long long)key_of(f[j]) << 32 | (unsigned)~i;
            if (i < n_ids) best = larger(best, key);
        }
        if (bad && a.op >= 0) report_bad(a.step, a.op);
        best = block_max(best, room);
        if (now && threadIdx.x == 0 && best) atomicMax(&a.best[blockIdx.y], best);
        if (now) break;
        __syncthreads(); /* room */
    }
    if (!asked) return;
    unsigned long long *bins = (unsigned long long *)&a.bins[blockIdx.y];
    if (blockIdx.x == 0 && threadIdx.x == 0) a.later[blockIdx.y] = 0;
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < (int)(sizeof *a.bins / 8); i += gridDim.x * THREADS) bins[i] = 0;
}

/* y: row. Bias and penalties. */
extern "C" __global__ void __launch_bounds__(THREADS) k_change(const __grid_constant__ cu_sample a)
{
    pdl_trigger();
    pdl_wait();
    const cu_ask *q = &a.asks[blockIdx.y];
    int i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= q->n_changes) return;
    cu_change c = a.changes[q->change0 + i];
    float *at = a.logits + (size_t)blockIdx.y * a.n + c.id, z = *at + 0.0f;
    z = c.bias == -100 ? __uint_as_float(0xff800000u) : z + c.bias;
    if (c.in_all && q->repetition != 1) z = (z > 0 ? z / q->repetition : z * q->repetition) + 0.0f;
    if (c.n_own && q->presence != 0) z = z - q->presence;
    if (c.n_own && q->frequency != 0) z = z - q->frequency * (float)c.n_own;
    *at = z + 0.0f;
}

/* docs/sampling.md, section 3: the weight of a logit that is d <= 0 from the largest, both divided by t. */
__device__ __forceinline__ unsigned weight(float d)
{
    d = d > -40 ? d : -40;
    float t = d * 0x1.715476p+0f + 12582912.0f, n = t - 12582912.0f;
    float r = d - n * 0x1.62e4p-1f;
    r = r - n * 0x1.7f7d1cp-20f;
    float p = r * (1.0f / 5040.0f) + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return (unsigned)(p * __uint_as_float((__float_as_uint(t) + 127u) << 23) * 0x1p30f + 0.5f);
}
__device__ __forceinline__ unsigned weight_of(float z, float t, float top)
{
    return weight((t == 1 ? z + 0.0f : z / t + 0.0f) - top);
}

/* Distances in steps that grow with them, 64 to an octave: bins of about equal shares, whatever the scale of the logits. Equal logits share
 * one, and smaller ones have no lower one. */
__device__ __forceinline__ int bin_of(float d)
{
    int b = (__float_as_int(d) >> 17) - (117 << 6) + 1;
    return b < 0 ? 0 : b >= CU_TOP_BINS ? CU_TOP_BINS - 1 : b;
}

/* y: row. Counts and weights by distance, and the weight of each block. */
extern "C" __global__ void __launch_bounds__(THREADS) k_top_count(const __grid_constant__ cu_sample a)
{
    __shared__ unsigned count[CU_TOP_BINS], lo[CU_TOP_BINS], hi[CU_TOP_BINS]; /* weights are split at bit 15: no overflow */
    __shared__ unsigned long long room[THREADS / 32];
    pdl_trigger();
    for (int b = threadIdx.x; b < CU_TOP_BINS; b += THREADS) count[b] = lo[b] = hi[b] = 0;
    __syncthreads();
    pdl_wait();
    const cu_ask *q = &a.asks[blockIdx.y];
    bool draw = q->kind == CU_ASK_DRAW, weigh = draw || q->p < 1;
    cu_top *top = &a.top[blockIdx.y];
    unsigned long long best = a.best[blockIdx.y];
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        top->max = a.max[blockIdx.y];
        top->best = best;
        top->bad_op = a.step->bad_op;
        top->sum = top->n = top->low = 0;
    }
    if (q->kind < CU_ASK_DRAW) return;
    const float *z = a.logits + (size_t)blockIdx.y * a.n;
    int n = a.step->n_ids;
    float t = q->t, zmax = value_of((unsigned)(best >> 32)), wmax = zmax / t + 0.0f;
    unsigned long long sum = 0;
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        int i = blockIdx.x * CU_BEST_BLOCK + j * THREADS + threadIdx.x;
        if (i >= n) continue;
        float f = z[i];
        unsigned w = weigh ? weight_of(f, t, wmax) : 0;
        sum += w;
        if (draw) continue;
        int b = bin_of(zmax - f);
        atomicAdd(&count[b], 1u);
        if (w) {
            atomicAdd(&lo[b], w & 0x7fffu);
            atomicAdd(&hi[b], w >> 15);
        }
    }
    if (draw) {
        unsigned long long all;
        block_scan(sum, room, &all);
        if (threadIdx.x == 0) a.sums[(size_t)blockIdx.y * gridDim.x + blockIdx.x] = all;
        return;
    }
    __syncthreads();
    cu_bins *o = &a.bins[blockIdx.y];
    for (int b = threadIdx.x; b < CU_TOP_BINS; b += THREADS) {
        if (!count[b]) continue;
        atomicAdd(&o->count[b], count[b]);
        if (lo[b] | hi[b]) atomicAdd(&o->mass[b], lo[b] + ((unsigned long long)hi[b] << 15));
    }
}

/* The first token in ascending id whose running weight exceeds a random share of the sum. */
__device__ __forceinline__ void draw_token(const cu_sample &a, const cu_ask *q, cu_top *top, unsigned long long *room)
{
    const unsigned long long *sums = a.sums + (size_t)blockIdx.y * gridDim.x;
    unsigned long long all = 0, before = 0;
    for (int b = threadIdx.x; b < gridDim.x; b += THREADS) {
        unsigned long long s = sums[b];
        all += s;
        if (b < blockIdx.x) before += s;
    }
    unsigned long long sum, first;
    block_scan(all, room, &sum);
    block_scan(before, room, &first);
    unsigned long long at = __umul64hi(q->random, sum);
    if (blockIdx.x == 0 && threadIdx.x == 0) top->sum = sum;
    if (at < first || at - first >= sums[blockIdx.x]) return;
    at -= first;
    const float *z = a.logits + (size_t)blockIdx.y * a.n;
    int n = a.step->n_ids, i0 = blockIdx.x * CU_BEST_BLOCK + threadIdx.x * EACH;
    float t = q->t, wmax = value_of((unsigned)(a.best[blockIdx.y] >> 32)) / t + 0.0f;
    unsigned w[EACH];
    unsigned long long mine = 0, total;
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        w[j] = i0 + j < n ? weight_of(z[i0 + j], t, wmax) : 0;
        mine += w[j];
    }
    before = block_scan(mine, room, &total);
    if (at < before || at - before >= mine) return;
    at -= before;
    for (int j = 0; j < EACH; j++) {
        if (at < w[j]) {
            top->drawn = i0 + j;
            top->drawn_z = z[i0 + j];
            return;
        }
        at -= w[j];
    }
}

/* The last bin of the list, -1: none. */
__device__ __forceinline__ int last_bin(const cu_bins *o, const cu_ask *q, int n, unsigned long long *room, int *last, int *fits, unsigned long long *sum)
{
    unsigned long long mass[BINS_EACH], m = 0, all;
    unsigned count[BINS_EACH], c = 0;
    int b0 = threadIdx.x * BINS_EACH;
    if (threadIdx.x == 0) *last = CU_TOP_BINS - 1, *fits = -1;
#pragma unroll
    for (int j = 0; j < BINS_EACH; j++) {
        count[j] = o->count[b0 + j];
        mass[j] = o->mass[b0 + j];
        c += count[j];
        m += mass[j];
    }
    c = (unsigned)block_scan(c, room, &all);
    m = block_scan(m, room, sum);
    double x = q->p > 0 ? ceil((double)q->p * (double)*sum) : 1;
    unsigned long long need = x < 1 ? 1 : (unsigned long long)x;
    if (need > *sum) need = *sum;
    int reach = bin_of(q->reach), found = CU_TOP_BINS, good = -1;
#pragma unroll
    for (int j = 0; j < BINS_EACH; j++) {
        c += count[j];
        m += mass[j];
        if (found == CU_TOP_BINS && ((q->count && c >= (unsigned)q->count) || (q->p < 1 && m >= need) || b0 + j >= reach)) found = b0 + j;
        if (c <= CU_TOP) good = b0 + j;
    }
    if (found < CU_TOP_BINS) atomicMin(last, found);
    if (good >= 0) atomicMax(fits, good);
    __syncthreads();
    if (n <= CU_TOP) return CU_TOP_BINS - 1;
    return *last <= *fits && *last < CU_TOP_BINS - 1 ? *last : -1;
}

/* y: row. The draw, or the list. */
extern "C" __global__ void __launch_bounds__(THREADS) k_top_take(const __grid_constant__ cu_sample a)
{
    __shared__ unsigned long long room[THREADS / 32];
    __shared__ unsigned keys[THREADS / 32];
    __shared__ int last, fits, n_mine, base;
    pdl_trigger();
    if (threadIdx.x == 0) n_mine = 0;
    pdl_wait();
    const cu_ask *q = &a.asks[blockIdx.y];
    cu_top *top = &a.top[blockIdx.y];
    if (q->kind < CU_ASK_DRAW) return;
    if (q->kind == CU_ASK_DRAW) {
        draw_token(a, q, top, room);
        return;
    }
    const float *z = a.logits + (size_t)blockIdx.y * a.n;
    int n = a.step->n_ids;
    float f[EACH], zmax = value_of((unsigned)(a.best[blockIdx.y] >> 32));
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        int i = blockIdx.x * CU_BEST_BLOCK + j * THREADS + threadIdx.x;
        f[j] = i < n ? z[i] : 0;
    }
    unsigned long long sum;
    int cut = last_bin(&a.bins[blockIdx.y], q, n, room, &last, &fits, &sum), at[EACH];
    if (blockIdx.x == 0 && threadIdx.x == 0) top->sum = sum;
    if (cut < 0) return;
    unsigned low = 0;
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        int i = blockIdx.x * CU_BEST_BLOCK + j * THREADS + threadIdx.x;
        at[j] = -1;
        if (i >= n) continue;
        if (bin_of(zmax - f[j]) <= cut) at[j] = atomicAdd(&n_mine, 1);
        else low = larger(low, key_of(f[j]));
    }
    low = block_max(low, keys);
    if (threadIdx.x == 0) {
        if (low) atomicMax(&top->low, low);
        base = n_mine ? (int)atomicAdd(&top->n, (uint32_t)n_mine) : 0;
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        unsigned i = blockIdx.x * CU_BEST_BLOCK + j * THREADS + threadIdx.x;
        if (at[j] >= 0) top->list[base + at[j]] = (unsigned long long)i << 32 | __float_as_uint(f[j] + 0.0f);
    }
}
