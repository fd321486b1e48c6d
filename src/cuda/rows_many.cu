/* rows_many.cu: chains of row-wise operations for steps of many rows. A warp, or for wide rows a thread block, takes a row: warp w of W
 * the units w, w + W, .., and lane l of them the elements l, l + 32, .., which is how lane trees add them up. What one operation
 * hands to the next stays in shared memory; warps meet only where an operation looks beyond its unit. many_width (launch.c)
 * says which chains this can run; rows.cu runs the others, and steps of few rows. */
#include "cuda/route.cuh"

enum { UNIT = 256 }; /* elements that a warp takes at a time: 8 a lane; 512 bytes of planes in one piece */

struct chain {
    const cu_row_op *o;
    cu_step *step;
    int row, n, lane;
    int warp, warps;         /* of those that share the row */
    float *v;                /* [n]: what the operation before made */
    const float *made;       /* whose address that value has, NULL: nothing yet */
    uint8_t *bytes;          /* this warp's [512] on the way to memory */
    float *told;             /* [9], told among the warps of a row */
    const float *squared;    /* warp 0: the value whose sum of squares is `sum` */
    float sum;
};

__device__ __forceinline__ void meet(const chain &c)
{
    if (c.warps == 1) __syncwarp();
    else __syncthreads();
}

/* This row of input i; in shared memory when the operation before made it. */
__device__ __forceinline__ const float *input(const chain &c, int i)
{
    return c.o->in[i] == c.made ? c.v : c.o->in[i] + (size_t)c.row * c.o->in_stride[i];
}
__device__ __forceinline__ float *output(const chain &c) /* NULL: no other launch reads it */
{
    return c.o->out_local < 0 ? c.o->out + (size_t)c.row * c.o->out_stride : NULL;
}

/* i: this lane's first element of each of the warp's units. */
#define EACH(i) for (int i = c.warp * UNIT + c.lane; i < c.n; i += c.warps * UNIT)

/* v[i] = f(i), and the same to memory when another launch reads it. All f of a round are computed before the first is stored. */
template <int N, class F> __device__ __forceinline__ void map(chain &c, F f)
{
    float *y = output(c);
    EACH(unit)
#pragma unroll 1
    for (int i = unit; i < unit + UNIT; i += 32 * N) {
        float u[N];
#pragma unroll
        for (int k = 0; k < N; k++) u[k] = f(i + 32 * k);
#pragma unroll
        for (int k = 0; k < N; k++) c.v[i + 32 * k] = u[k];
        if (y)
#pragma unroll
            for (int k = 0; k < N; k++) y[i + 32 * k] = u[k];
    }
    c.made = c.o->out;
}

/* The lane tree of squares of a whole row, by one warp. */
__device__ __forceinline__ float squares(const chain &c, const float *x)
{
    float sum = 0;
    for (int i = c.lane; i < c.n; i += UNIT) {
        float u[8];
#pragma unroll
        for (int k = 0; k < 8; k++) u[k] = x[i + 32 * k];
#pragma unroll
        for (int k = 0; k < 8; k++) sum = cb_fma(u[k], u[k], sum);
    }
    return lane_fold(sum);
}

/* ---- norms ---- */

__device__ __forceinline__ void wide_norm(chain &c)
{
    const float *x = input(c, 0), *w = c.o->w, *v = c.v;
    if (x != c.v)
        EACH(i)
        {
            float u[8];
#pragma unroll
            for (int k = 0; k < 8; k++) u[k] = x[i + 32 * k];
#pragma unroll
            for (int k = 0; k < 8; k++) c.v[i + 32 * k] = u[k];
        }
    meet(c);
    if (c.warp == 0) {
        float inv = 1.0f / sqrtf(squares(c, c.v) / (float)c.n + c.o->f[0]);
        if (c.lane == 0) c.told[8] = inv;
    }
    meet(c);
    float inv = c.told[8];
    if (w) map<8>(c, [&](int i) { return (v[i] * inv) * w[i]; });
    else map<8>(c, [&](int i) { return v[i] * inv; });
}

/* Heads of 32*PER dims, 8/PER heads at a time. */
template <int PER> __device__ __forceinline__ void head_norm(chain &c)
{
    constexpr int H = 8 / PER;
    const float *x = input(c, 0), *w = c.o->w;
    float *y = output(c), weight[PER];
#pragma unroll
    for (int j = 0; j < PER; j++) weight[j] = w ? w[c.lane + 32 * j] : 1;
    EACH(i)
    {
        float u[H][PER], sum[H];
#pragma unroll
        for (int h = 0; h < H; h++)
#pragma unroll
            for (int j = 0; j < PER; j++) u[h][j] = x[i + 32 * (h * PER + j)];
#pragma unroll
        for (int h = 0; h < H; h++) {
            sum[h] = 0;
#pragma unroll
            for (int j = 0; j < PER; j++) sum[h] = cb_fma(u[h][j], u[h][j], sum[h]);
        }
#pragma unroll
        for (int h = 0; h < H; h++) {
            float inv = 1.0f / sqrtf(lane_fold(sum[h]) / (float)(32 * PER) + c.o->f[0]);
#pragma unroll
            for (int j = 0; j < PER; j++) {
                float t = u[h][j] * inv;
                if (w) t = t * weight[j];
                c.v[i + 32 * (h * PER + j)] = t;
                if (y) y[i + 32 * (h * PER + j)] = t;
            }
        }
    }
    c.made = c.o->out;
}

/* ---- fixed point ---- */

constexpr float ROUND = 12582912.0f; /* 1.5 * 2^23: x + ROUND holds the nearest integer in its low bits */
constexpr int ROUND_BITS = 0x4b400000;

/* One unit of a row: groups of 32*PER elements, planes of PACK elements a byte of a weight. remainder: what the integers leave of x takes
 * x's place. x*inv never exceeds the clamp by half, so that it needs none. Returns the largest dx. */
template <int PER, int PACK> __device__ __forceinline__ float quant_unit(const chain &c, float (&x)[8], int unit, bool remainder)
{
    constexpr int G = 8 / PER;
    const cu_planes &q = c.o->u.q;
    float dx[G], inv[G], top = 0;
    int sum[G];
#pragma unroll
    for (int pass = 0; pass < 2; pass++) {
        if (pass && !remainder) break;
#pragma unroll
        for (int g = 0; g < G; g++) {
            uint32_t m = 0;
#pragma unroll
            for (int j = 0; j < PER; j++) m = max(m, __float_as_uint(fabsf(x[g * PER + j]))); /* as integers in the order of floats, NaN above all */
            m = __reduce_max_sync(FULL, m);
            if (m >= 0x7f800000u) report_bad(c.step, c.o->op);
            float most = __uint_as_float(m);
            bool zero = most < CB_TINY;
            inv[g] = zero ? 0 : CB_XI_MAX / most;
            dx[g] = zero ? 0 : most * CB_XI_INV;
            if (!pass && remainder && !zero)
#pragma unroll
                for (int j = 0; j < PER; j++) x[g * PER + j] = x[g * PER + j] - dx[g] * ((x[g * PER + j] * inv[g] + ROUND) - ROUND);
        }
    }
    uint8_t *at = c.bytes + (PACK == 1 ? c.lane : PACK == 2 ? (c.lane & 1) * 64 + c.lane / 2 : (c.lane & 3) * 64 + c.lane / 4);
    __syncwarp(); /* the unit before is on its way */
#pragma unroll
    for (int g = 0; g < G; g++) {
        sum[g] = 0;
#pragma unroll
        for (int j = 0; j < PER; j++) {
            constexpr int LO = 64 * PACK;
            const int k = g * PER + j, to = PACK == 1 ? k / 2 * 128 + k % 2 * 32 : PACK == 2 ? k / 4 * 256 + k % 4 * 16 : k * 8;
            int bits = __float_as_int(x[k] * inv[g] + ROUND);
            sum[g] += bits - ROUND_BITS;
            at[to] = (uint8_t)((bits + 128) >> 8);
            at[to + LO] = (uint8_t)bits;
        }
        sum[g] = __reduce_add_sync(FULL, sum[g]);
        top = fmaxf(top, dx[g]);
    }
    __syncwarp();
    int row = remainder ? q.n_rows + c.row : c.row;
    *(uint4 *)(q.planes + (size_t)row * q.stride + (size_t)unit * 512 + c.lane * 16) = *(const uint4 *)(c.bytes + c.lane * 16);
    float my_dx = dx[0];
    int my_sum = sum[0];
#pragma unroll
    for (int g = 1; g < G; g++)
        if (c.lane == g) my_dx = dx[g], my_sum = sum[g];
    if (c.lane < G) {
        size_t i = (size_t)row * q.n_groups + unit * G + c.lane;
        q.dx[i] = my_dx;
        q.sum[i] = my_sum;
        q.xs[i] = my_dx * (float)my_sum;
    }
    return top;
}

template <int PER, int PACK> __device__ __forceinline__ float quant_all(const chain &c, bool remainder)
{
    const float *x = input(c, 0);
    float top = 0;
    EACH(i)
    {
        float u[8];
#pragma unroll
        for (int k = 0; k < 8; k++) u[k] = x[i + 32 * k];
        top = fmaxf(top, quant_unit<PER, PACK>(c, u, i / UNIT, remainder));
    }
    return top;
}

__device__ __forceinline__ float quant_pass(const chain &c, bool remainder)
{
    const cu_planes &q = c.o->u.q;
    switch (q.group / 32 * 8 + q.pack) {
    case 8 + 1: return quant_all<1, 1>(c, remainder);
    case 8 + 2: return quant_all<1, 2>(c, remainder);
    case 16 + 1: return quant_all<2, 1>(c, remainder);
    case 16 + 2: return quant_all<2, 2>(c, remainder);
    case 16 + 4: return quant_all<2, 4>(c, remainder);
    case 32 + 2: return quant_all<4, 2>(c, remainder);
    default: return quant_all<4, 4>(c, remainder);
    }
}

__device__ __forceinline__ void quant(chain &c)
{
    int32_t *flag = c.o->u.q.flag;
    bool more = false;
#pragma unroll 1
    for (;;) {
        float top = quant_pass(c, more);
        if (!flag || more) return;
        if (c.lane == 0) c.told[c.warp] = top;
        meet(c);
        if (c.warp == 0) {
            for (int w = 0; w < c.warps; w++) top = fmaxf(top, c.told[w]);
            if (c.squared != c.o->in[0]) c.sum = squares(c, input(c, 0));
            c.squared = c.o->in[0];
            top = top * CB_XI_MAX;
            more = top * top > c.o->f[0] * c.sum;
            if (c.lane == 0) flag[c.row] = more;
        }
        if (c.warps > 1) more = __syncthreads_or(more);
        if (!more) return;
    }
}

/* ---- Hadamard ---- */

/* Strides 1 .. 128 of a unit. */
__device__ __forceinline__ void short_strides(float (&u)[8], int block, int lane)
{
#pragma unroll
    for (int s = 1; s < 32; s *= 2) {
        if (s >= block) return;
        float sign = lane & s ? -1.0f : 1.0f;
#pragma unroll
        for (int k = 0; k < 8; k++) u[k] = cb_fma(u[k], sign, __shfl_xor_sync(FULL, u[k], s)); /* a + b below, a - b above */
    }
#pragma unroll
    for (int w = 1; w < 8; w *= 2) {
        if (32 * w >= block) return;
#pragma unroll
        for (int k = 0; k < 8; k++)
            if (!(k & w)) {
                float a = u[k], b = u[k + w];
                u[k] = a + b;
                u[k + w] = a - b;
            }
    }
}

/* R strides s, 2s, .. at once, s a multiple of a unit. */
template <int R> __device__ __forceinline__ void long_strides(const chain &c, int s)
{
    enum { N = 1 << R };
    meet(c);
    for (int i = 32 * c.warp; i < c.n / N; i += 32 * c.warps) {
        int at = i / s * s * N + i % s + c.lane;
        float u[N];
#pragma unroll
        for (int k = 0; k < N; k++) u[k] = c.v[at + k * s];
#pragma unroll
        for (int w = 1; w < N; w *= 2)
#pragma unroll
            for (int k = 0; k < N; k++)
                if (!(k & w)) {
                    float a = u[k], b = u[k + w];
                    u[k] = a + b;
                    u[k + w] = a - b;
                }
#pragma unroll
        for (int k = 0; k < N; k++) c.v[at + k * s] = u[k];
    }
}

__device__ __forceinline__ void hadamard(chain &c)
{
    int block = c.o->n[0], s = UNIT;
    bool back = c.o->n[1];
    const float *x = input(c, 0), *w = c.o->w, *v = c.v;
    float scale = c.o->f[0];
    EACH(i)
    {
        float u[8];
#pragma unroll
        for (int k = 0; k < 8; k++) u[k] = x[i + 32 * k];
        if (w && !back)
#pragma unroll
            for (int k = 0; k < 8; k++) u[k] = u[k] * w[i + 32 * k];
        short_strides(u, block, c.lane);
#pragma unroll
        for (int k = 0; k < 8; k++) c.v[i + 32 * k] = u[k];
    }
    for (; s * 8 <= block; s *= 8) long_strides<3>(c, s);
    if (s * 4 == block) long_strides<2>(c, s);
    else if (s * 2 == block) long_strides<1>(c, s);
    meet(c);
    if (back) map<8>(c, [&](int i) { return (v[i] * scale) * w[i]; });
    else map<8>(c, [&](int i) { return v[i] * scale; });
}

/* ---- element by element ---- */

__device__ __forceinline__ void glu(chain &c)
{
    const float *x = input(c, 0), *b = input(c, 1);
    switch (c.o->n[0]) {
    case CB_ACT_SILU: map<8>(c, [&](int i) { return cb_siluf(x[i]) * b[i]; }); break;
    case CB_ACT_GELU_TANH: map<8>(c, [&](int i) { return cb_gelu_tanhf(x[i]) * b[i]; }); break;
    default: map<8>(c, [&](int i) { return cb_sigmoidf(x[i]) * b[i]; });
    }
}

__device__ __forceinline__ void moe_sum(chain &c)
{
    int k = c.o->n[0];
    size_t stride = c.o->in_stride[0];
    const float *y = c.o->in[0] + (size_t)c.row * k * stride, *w = c.o->in[1] + (size_t)c.row * c.o->in_stride[1] + k;
    if (k == 8) { /* 32 loads under way */
        float weight[8];
#pragma unroll
        for (int j = 0; j < 8; j++) weight[j] = w[j];
        map<4>(c, [&](int i) {
            float acc = 0;
#pragma unroll
            for (int j = 0; j < 8; j++) acc = cb_fma(weight[j], y[j * stride + i], acc);
            return acc;
        });
        return;
    }
    map<4>(c, [&](int i) {
        float acc = 0;
        for (int j = 0; j < k; j++) acc = cb_fma(w[j], y[j * stride + i], acc);
        return acc;
    });
}

__device__ __forceinline__ void one_op(chain &c)
{
    const cu_row_op *o = c.o;
    switch (o->kind) {
    case CB_RMSNORM:
        if (o->n[0] == 1) wide_norm(c);
        else if (o->n[1] == 64) head_norm<2>(c);
        else if (o->n[1] == 128) head_norm<4>(c);
        else head_norm<8>(c);
        break;
    case CB_GLU: glu(c); break;
    case CB_ADD: {
        const float *x = input(c, 0), *b = input(c, 1);
        map<8>(c, [&](int i) { return x[i] + b[i]; });
        break;
    }
    case CB_ADD_GATED: {
        const float *x = input(c, 0), *y = input(c, 2);
        float g = cb_sigmoidf(o->in[1][(size_t)c.row * o->in_stride[1]]);
        map<8>(c, [&](int i) { return cb_fma(g, y[i], x[i]); });
        break;
    }
    case CB_SCALE: {
        const float *x = input(c, 0);
        float s = o->w ? o->w[0] : o->f[0];
        map<8>(c, [&](int i) { return x[i] * s; });
        break;
    }
    case CB_HADAMARD: hadamard(c); break;
    case CB_MOE_SUM: moe_sum(c); break;
    }
}

__device__ __forceinline__ void one_row(const cu_rows_many &a, const cu_row_op *ops, chain &c)
{
    c.made = c.squared = NULL;
    c.n = a.width;
    for (int i = 0; i < a.n_ops; i++) {
        c.o = ops + i;
        if (c.o->kind == CB_QUANT) quant(c);
        else one_op(c); /* nothing for CB_ROUTE */
    }
}

/* As many threads as one row of a.warps warps wants, or CU_MANY_SINGLE rows of one warp each. */
extern "C" __global__ void __launch_bounds__(32 * CU_MANY_WARPS, 3) k_rows_many(const __grid_constant__ cu_rows_many a)
{
    extern __shared__ __align__(16) uint8_t shared[]; /* [rows of the block][width] floats */
    __shared__ __align__(16) cu_row_op ops[CU_MANY_OPS];
    __shared__ __align__(16) uint8_t bytes[CU_MANY_WARPS][2 * UNIT];
    __shared__ float told[CU_MANY_WARPS][9];
    pdl_trigger();
    for (int i = threadIdx.x; i < a.n_ops * (int)(sizeof(cu_row_op) / 8); i += blockDim.x) ((uint64_t *)ops)[i] = ((const uint64_t *)a.ops)[i];
    __syncthreads();
    pdl_wait();
    int warp = threadIdx.x / 32, mine = a.warps == 1 ? warp : 0, rows = a.warps == 1 ? blockDim.x / 32 : 1;
    chain c;
    c.step = a.step;
    c.lane = threadIdx.x % 32;
    c.warp = a.warps == 1 ? 0 : warp;
    c.warps = a.warps;
    c.v = (float *)shared + mine * a.width;
    c.bytes = bytes[warp];
    c.told = told[mine];
    for (c.row = blockIdx.x * rows + mine; c.row < a.n_rows; c.row += gridDim.x * rows) {
        one_row(a, ops, c);
        meet(c); /* v and told are free again */
    }
}

/* CB_ROUTE: a warp a row. A kernel of its own, for it wants many registers. */
extern "C" __global__ void __launch_bounds__(128) k_route_many(const __grid_constant__ cu_rows_many a)
{
    pdl_trigger();
    pdl_wait();
    const cu_row_op &o = *a.ops;
    int row = blockIdx.x * 4 + threadIdx.x / 32;
    if (row < a.n_rows) route_row(o, a.step, o.in[0] + (size_t)row * o.in_stride[0], o.out + (size_t)row * o.out_stride);
}
