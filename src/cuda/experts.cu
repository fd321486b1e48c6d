/* experts.cu: products of the experts that the rows of a step chose, of each the few rows it was chosen by. That is bound by reading weights, so
 * nothing may stop it: a warp takes tiles of 16 outputs of its own, brings them through a ring of its own in shared memory and adds up all of K in
 * registers. Warps meet only where a thread block comes to experts whose activations are not there yet, as a rule once. */
#include "cuda/common.cuh"

enum { WARPS = CU_EXPERT_WARPS, THREADS = 32 * WARPS, GROUPS = CU_EXPERT_GROUPS, QUAD = 4 }; /* columns that are multiplied at once */

#if __CUDA_ARCH__ >= 900
#include "cuda/stream_chains.cuh"

/* ---- bringing weights ---- */

/* A warp's tiles t, t + WARPS .. below `end`, numbered through the list; each in pieces, chunk by chunk. */
template <class F> struct fetcher {
    static constexpr int SIXTEENTHS = GROUPS * F::BYTES / 16, ROWS = 32 / SIXTEENTHS; /* 16-byte parts of a piece's row of codes; rows at once */
    const cu_experts &a;
    const int4 *list;
    uint32_t ring;          /* this warp's */
    int t, end, entry, tile, chunk, slot;
    const uint8_t *codes, *scales; /* this lane's first, of the chunk at hand */

    __device__ __forceinline__ void find_tile()
    {
        int lane = threadIdx.x % 32, part = tile >= a.tiles_of, of_scales = a.n_groups * F::SB;
        int64_t row = list[entry].x * a.expert_rows + (tile - part * a.tiles_of) * 16;
        codes = a.part[part].codes + (row + lane / SIXTEENTHS) * a.row_bytes + lane % SIXTEENTHS * 16;
        scales = (lane < 16 ? a.part[part].scales : a.part[part].biases) + row * of_scales + lane % 16 * (a.scale_step ? of_scales : 16);
        chunk = 0;
    }
    __device__ __forceinline__ void begin(int first, int last)
    {
        t = first;
        end = last;
        entry = t / a.tiles_all;
        tile = t - entry * a.tiles_all;
        slot = 0;
        if (t < end) find_tile();
    }
    /* The next piece to the next slot of the ring, which must be free. */
    __device__ __forceinline__ void next(uint32_t bars)
    {
        if (t >= end) return;
        int lane = threadIdx.x % 32;
        uint32_t to = ring + slot * a.piece_bytes, to_codes = to + lane / SIXTEENTHS * a.stride + lane % SIXTEENTHS * 16;
        if (chunk * SIXTEENTHS + lane % SIXTEENTHS < (int)a.row_bytes / 16) {
#pragma unroll
            for (int u = 0; u < 16 / ROWS; u++) copy16(to_codes + u * ROWS * a.stride, codes + u * ROWS * a.row_bytes);
        }
        to += 16 * a.stride + lane / 16 * 16 * a.scale_stride;
        const uint8_t *from = scales;
#pragma unroll 1
        for (int i = lane % 16; i < a.scale_stride; i += 16, from += 256) copy16(to + 16 * i, from); /* once, but where groups are odd */
        barrier_arrive_copied(bars + 8 * slot);
        if (++slot == a.slots) slot = 0;
        codes += GROUPS * F::BYTES;
        scales += a.scale_step;
        if (++chunk < a.chunks) return;
        t += WARPS;
        for (tile += WARPS; tile >= a.tiles_all; tile -= a.tiles_all) entry++;
        if (t < end) find_tile();
    }
};

/* ---- columns of activations ---- */

/* Rows x_row[..] of the activations to columns 0 .. n-1, a warp a column. */
template <class F> __device__ __forceinline__ void load_columns(const cu_experts &a, uint32_t sm, const int *rows, int n)
{
    int lane = threadIdx.x % 32, G = a.n_groups, parts = a.x.stride / 16;
#pragma unroll 1
    for (int k = threadIdx.x / 32; k < n; k += WARPS) {
        size_t row = rows[k];
        const uint4 *from = (const uint4 *)(a.x.planes + row * a.x.stride);
        uint32_t x = sm + a.x_at + k * a.x_bytes, d = sm + a.d_at + k * a.d_bytes;
        for (int g = lane; g < G; g += 32) {
            uint32_t at = d + g / GROUPS * (8 * GROUPS) + g % GROUPS * 4;
            sts_float(at, a.x.dx[row * G + g]);
            sts_float(at + 4 * GROUPS, a.x.xs[row * G + g]);
        }
        enum { AT_ONCE = 8 };
#pragma unroll 1
        for (int i0 = lane; i0 < parts; i0 += 32 * AT_ONCE) {
            uint4 v[AT_ONCE];
#pragma unroll
            for (int u = 0; u < AT_ONCE; u++)
                if (i0 + 32 * u < parts) v[u] = from[i0 + 32 * u];
#pragma unroll
            for (int u = 0; u < AT_ONCE; u++) {
                uint32_t to;
                if (i0 + 32 * u < parts && F::place(i0 + 32 * u, to) < G) F::put(x + to, v[u]);
            }
        }
    }
}

/* What a lane has of a chunk of four columns: of one of them a plane's bytes of each group, of the one whose sums it finishes dx and X. */
template <class F> struct operand {
    static constexpr int PARTS = F::STEPS / (F::LANE / 4);
    uint32_t x[GROUPS][PARTS][F::LANE / 4];
    float4 d[4]; /* eight dx, eight X */

    __device__ __forceinline__ void load(const cu_experts &a, uint32_t sm, int col, int n, int chunk)
    {
        int lane = threadIdx.x % 32, r = lane / 4, c = lane % 4;
        uint32_t at = sm + a.x_at + (col + min(r / 2, n - 1)) * a.x_bytes + chunk * GROUPS * F::X_BYTES + (r & 1) * 4 * F::LANE + c * F::LANE;
        uint32_t from = sm + a.d_at + (col + min(c, n - 1)) * a.d_bytes + chunk * 8 * GROUPS;
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
#pragma unroll
            for (int k = 0; k < PARTS; k++) lds<F::LANE / 4>(x[g][k], at + g * F::X_BYTES + k * 8 * F::LANE);
#pragma unroll
        for (int i = 0; i < 4; i++) d[i] = lds_float4(from + 16 * i);
    }
    static __device__ __forceinline__ float one(const float4 &v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }
    __device__ __forceinline__ float dx(int g) const { return one(d[g / 4], g % 4); }
    __device__ __forceinline__ float X(int g) const { return one(d[2 + g / 4], g % 4); }
};

/* ---- multiplying ---- */

/* Outputs r and r + 8 of a column: the sum of segments so far, and that of the segment at hand. */
struct result {
    float y[2], sum[2];
};

/* A piece at `stage` by four columns. ends: of its groups. */
template <class F> __device__ __forceinline__ void multiply(const cu_experts &a, uint32_t stage, int chunk, const operand<F> &o, uint32_t ends, result &s)
{
    int lane = threadIdx.x % 32, r = lane / 4, c = lane % 4;
    uint32_t codes = stage + r * a.stride + c * F::WORDS * 4, to8 = 8 * a.stride, scales8 = 8 * a.scale_stride, biases = 16 * a.scale_stride;
    uint32_t scales = stage + 16 * a.stride + r * a.scale_stride + chunk * (GROUPS * F::SB - a.scale_step);
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        operands<F, 1> at_hand;
        sums<F, 1> d;
        lds<F::WORDS>(at_hand.w[0][0], codes + g * F::BYTES);
        lds<F::WORDS>(at_hand.w[1][0], codes + to8 + g * F::BYTES);
#pragma unroll
        for (int k = 0; k < operand<F>::PARTS; k++)
#pragma unroll
            for (int i = 0; i < F::LANE / 4; i++) at_hand.x[0][k][i] = o.x[g][k][i];
        d.clear();
        at_hand.add_to(d);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t at = scales + g * F::SB + h * scales8;
            float p = o.dx(g) * d.value(0, h);
            s.sum[h] = cb_fma(F::scale(at), p, cb_fma(F::scale(at + biases), o.X(g), s.sum[h]));
        }
        if (ends >> g & 1) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                s.y[h] = s.y[h] + s.sum[h];
                s.sum[h] = 0;
            }
        }
    }
}

/* This warp's tiles up to `end`, of entries whose columns are there: column 0 is row `first` of the sorted ones. */
template <class F> struct worker {
    fetcher<F> ahead;
    uint32_t sm, bars;
    int t, entry, tile, slot, parity, have; /* have: the entry whose operand is in registers, when that is all there is of it */
    operand<F> o;

    __device__ __forceinline__ void tiles(const cu_experts &a, int end, int first, const int *y_rows)
    {
        int lane = threadIdx.x % 32, r = lane / 4, c = lane % 4;
        float none = a.n_groups < CU_SEGMENTS ? 0.0f : -0.0f; /* the first segment has no group: 0; else what changes nothing when it is added */
#pragma unroll 1
        for (; t < end; t += WARPS) {
            int4 e = ahead.list[entry];
            int col = e.y - first, passes = (e.z + QUAD - 1) / QUAD;
            result s = {{none, none}, {0, 0}}, other = s;
#pragma unroll 1
            for (int q = 0; q < a.chunks; q++) {
                uint32_t ends = (uint32_t)(a.ends >> q * GROUPS) & ((1u << GROUPS) - 1), stage = ahead.ring + slot * a.piece_bytes;
                barrier_wait(bars + 8 * slot, parity);
#pragma unroll 1
                for (int p = 0; p < passes; p++) {
                    if (entry != have) o.load(a, sm, col + p * QUAD, e.z - p * QUAD, q);
                    if (passes == 1 && a.chunks == 1) have = entry;
                    multiply<F>(a, stage, q, o, ends, s);
                    if (passes == 1) break;
                    result was = s;
                    s = other;
                    other = was;
                }
                __syncwarp();
                ahead.next(bars);
                if (++slot == a.slots) slot = 0, parity ^= 1;
            }
            int part = tile >= a.tiles_of, n = (tile - part * a.tiles_of) * 16 + r;
#pragma unroll 1
            for (int k = c; k < e.z; k += QUAD) {
                float *y = a.part[part].y + (size_t)y_rows[col + k] * a.part[part].y_stride + n;
                if (n < a.n_out) y[0] = s.y[0];
                if (n + 8 < a.n_out) y[8] = s.y[1];
                s = other;
            }
            __syncwarp();
            for (tile += WARPS; tile >= a.tiles_all; tile -= a.tiles_all) entry++;
        }
    }
};

template <class F> __device__ __forceinline__ void experts(const cu_experts &a, uint8_t *shared)
{
    static_assert(CU_EXPERT_ROWS == 2 * QUAD && F::N_PLANES == 1 && F::AFFINE, "two results a lane");
    uint32_t sm = address(shared);
    int4 *list = (int4 *)(shared + a.list_at);
    int *rows = (int *)(shared + a.rows_at), *y_rows = rows + a.columns, warp = threadIdx.x / 32;
    if (a.wait_first) pdl_wait();
    pdl_trigger();
    for (int i = threadIdx.x; i < a.entries; i += THREADS) list[i] = __ldcg((const int4 *)a.tiles + i);
    uint32_t bars = sm + 8 * warp * a.slots;
    if ((int)threadIdx.x % 32 < a.slots) barrier_init(bars + 8 * (threadIdx.x % 32), 32);
    __syncthreads();

    uint32_t all = list[0].w * a.tiles_all;
    int from = (int)(all * blockIdx.x / gridDim.x), to = (int)(all * (blockIdx.x + 1) / gridDim.x);
    worker<F> me = {{a, list, sm + a.ring_at + warp * a.slots * a.piece_bytes}, sm, bars};
    me.ahead.begin(from + warp, to);
    me.t = from + warp;
    me.entry = me.ahead.entry;
    me.tile = me.ahead.tile;
    me.slot = me.parity = 0;
    me.have = -1;
#pragma unroll 1
    for (int i = 0; i < a.slots; i++) me.ahead.next(bars);

    bool waited = a.wait_first;
    int last = (to - 1) / a.tiles_all;
#pragma unroll 1
    for (int e = from / a.tiles_all, e1; from < to && e <= last; e = e1) {
        int first = list[e].y, n = list[e].z;
        for (e1 = e + 1; e1 <= last && n + list[e1].z <= a.columns; e1++) n += list[e1].z;
        if (e > from / a.tiles_all) __syncthreads(); /* what stands there is no longer needed */
        for (int k = threadIdx.x; k < n; k += THREADS) {
            rows[k] = __ldcg(a.x_row + first + k);
            y_rows[k] = __ldcg(a.y_row + first + k);
        }
        __syncthreads();
        if (!waited) pdl_wait();
        waited = true;
        load_columns<F>(a, sm, rows, n);
        __syncthreads();
        me.tiles(a, min(to, e1 * a.tiles_all), first, y_rows);
    }
    if (!waited) pdl_wait(); /* a launch is over when all of its blocks are: not before the one in front */
}
#endif

#if __CUDA_ARCH__ >= 900
#define BODY(...)                                       \
    extern __shared__ __align__(1024) uint8_t shared[]; \
    experts<format<__VA_ARGS__>>(a, shared);
#else
#define BODY(...)
#endif
#define KERNEL(name, ...) \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) k_experts_##name(const __grid_constant__ cu_experts a) { BODY(__VA_ARGS__) }
CU_EXPERT_FORMATS(KERNEL)
