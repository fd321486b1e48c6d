/* rows.cu: everything that works on one row. A launch runs a list of such operations, one thread block a row; values pass
 * from one to the next through memory that only this block touches. */
#include "cuda/rowops.cuh"

struct row_ctx {
    const cu_row_op *o;
    cu_step *step;
    int row;
    const float *x, *b, *c; /* this row of the inputs */
    float *y, *shared;
};

/* y[i] = f(i) for i < n: four at a time are computed before the first is stored, so that their loads are under way together. */
template <class F> __device__ __forceinline__ void map(float *y, int n, F f)
{
    int i = threadIdx.x, T = blockDim.x;
    for (; i + 3 * T < n; i += 4 * T) {
        float v0 = f(i), v1 = f(i + T), v2 = f(i + 2 * T), v3 = f(i + 3 * T);
        y[i] = v0;
        y[i + T] = v1;
        y[i + 2 * T] = v2;
        y[i + 3 * T] = v3;
    }
    for (; i < n; i += T) y[i] = f(i);
}

/* ---- embedding ---- */

__device__ void op_embed(const row_ctx &c)
{
    int64_t token = c.step->token[c.row];
    for (int e = 8 * threadIdx.x; e < c.o->width; e += 8 * blockDim.x) {
        float v[8];
        decode8(c.o->u.embed, token, e, v);
        for (int i = 0; i < 8 && e + i < c.o->width; i++) c.y[e + i] = c.o->f[0] != 1.0f ? v[i] * c.o->f[0] : v[i];
    }
}

/* ---- norms ---- */

/* A single wide head: all warps bring the row close, one adds it up; up to 8 values a thread stay in registers. */
__device__ void wide_norm(const row_ctx &c)
{
    int n = c.o->n[1], T = blockDim.x;
    float *x = c.shared + c.o->stage, v[8], w[8];
    const float *weight = c.o->w;
    __shared__ float inv_shared;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        int i = threadIdx.x + j * T;
        v[j] = i < n ? c.x[i] : 0;
        w[j] = i < n && weight ? weight[i] : 1;
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
        if (threadIdx.x + j * T < n) x[threadIdx.x + j * T] = v[j];
    for (int i = threadIdx.x + 8 * T; i < n; i += T) x[i] = c.x[i];
    __syncthreads();
    if (threadIdx.x < 32) {
        float inv = 1.0f / sqrtf(sum_squares(x, n) / (float)n + c.o->f[0]);
        if (threadIdx.x == 0) inv_shared = inv;
    }
    __syncthreads();
    float inv = inv_shared;
#pragma unroll
    for (int j = 0; j < 8; j++)
        if (threadIdx.x + j * T < n) c.y[threadIdx.x + j * T] = weight ? (v[j] * inv) * w[j] : v[j] * inv;
    for (int i = threadIdx.x + 8 * T; i < n; i += T) c.y[i] = weight ? (x[i] * inv) * weight[i] : x[i] * inv;
}

/* One warp a head. */
__device__ void op_rmsnorm(const row_ctx &c)
{
    int heads = c.o->n[0], n = c.o->n[1], lane = threadIdx.x % 32;
    if (heads == 1) {
        wide_norm(c);
        return;
    }
    for (int h = threadIdx.x / 32; h < heads; h += blockDim.x / 32) {
        const float *x = c.x + h * n;
        float *y = c.y + h * n, sum = 0;
        if (n <= 256) {
            float v[8];
#pragma unroll
            for (int j = 0; j < 8; j++) v[j] = lane + 32 * j < n ? x[lane + 32 * j] : 0;
#pragma unroll
            for (int j = 0; j < 8; j++)
                if (lane + 32 * j < n) sum = cb_fma(v[j], v[j], sum);
            float inv = 1.0f / sqrtf(lane_fold(sum) / (float)n + c.o->f[0]);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                float u = v[j] * inv;
                if (lane + 32 * j < n) y[lane + 32 * j] = c.o->w ? u * c.o->w[lane + 32 * j] : u;
            }
            continue;
        }
        for (int i = lane; i < n; i += 32) sum = cb_fma(x[i], x[i], sum);
        float inv = 1.0f / sqrtf(lane_fold(sum) / (float)n + c.o->f[0]);
        for (int i = lane; i < n; i += 32) {
            float v = x[i] * inv;
            y[i] = c.o->w ? v * c.o->w[i] : v;
        }
    }
}

/* ---- fixed point ---- */

__device__ void op_quant(const row_ctx &c)
{
    const cu_planes &q = c.o->u.q;
    __shared__ bool more;
    quant_row(c.x, c.o->width, q, c.row, false, c.step, c.o->op, threadIdx.x, blockDim.x);
    if (!q.flag) return;
    __syncthreads();
    if (threadIdx.x < 32) {
        bool want = wants_remainder(c.x, c.o->width, q.dx + (size_t)c.row * q.n_groups, q.n_groups, c.o->f[0]);
        if (threadIdx.x == 0) q.flag[c.row] = more = want;
    }
    __syncthreads();
    if (more) quant_row(c.x, c.o->width, q, c.row, true, c.step, c.o->op, threadIdx.x, blockDim.x);
}

/* The 16-bit number of x in a vector whose maximum is m. */
__device__ __forceinline__ int fixed16(float x, float m) { return m < CB_TINY ? 0 : clamp_xi(x * (CB_XI_MAX / m)); }

__device__ void op_kv_put(const row_ctx &c)
{
    const cu_kv &s = c.o->u.kv;
    int pos = c.step->pos[c.row], slot = c.step->slot[c.row], t = pos % CU_BLOCK, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int block = c.step->tables[s.group][(size_t)slot * c.step->table_stride + pos / CU_BLOCK];
    int parts = (s.dim + 63) / 64;
    size_t half = (size_t)CU_BLOCK * s.dim;
    for (int w = warp; w < s.n_heads * (parts + 1); w += blockDim.x / 32) { /* parts of K, then V, of each head */
        int h = w / (parts + 1), g = w % (parts + 1);
        bool is_v = g == parts, bad = false;
        int from = is_v ? 0 : 64 * g, n = is_v ? s.dim : s.dim - from < 64 ? s.dim - from : 64;
        const float *x = (is_v ? c.b : c.x) + h * s.dim + from;
        uint8_t *p = s.base + ((size_t)block * s.n_heads + h) * s.head_bytes;
        float *dk = (float *)(p + 4 * half), m = 0;
        for (int i = lane; i < n; i += 32) {
            m = fmaxf(m, fabsf(x[i]));
            bad |= is_bad(x[i]);
        }
        if (bad) report_bad(c.step, c.o->op);
        m = group_max(m, 32);
        for (int i = lane; i < n; i += 32) {
            int xi = fixed16(x[i], m), hi = (xi + 128) >> 8;
            uint8_t *to = is_v ? p + 2 * half + (size_t)i * CU_BLOCK + t : p + (size_t)t * s.dim + from + i;
            to[0] = (uint8_t)hi;
            to[half] = (uint8_t)(xi - 256 * hi);
        }
        if (lane == 0) dk[g * CU_BLOCK + t] = m < CB_TINY ? 0 : m * CB_XI_INV;
    }
}

/* ---- element by element ---- */

__device__ void op_rope(const row_ctx &c)
{
    int heads = c.o->n[0], dim = c.o->n[1], pairs = c.o->n[2], half = c.o->n[3];
    for (int i = threadIdx.x; i < heads * dim; i += blockDim.x) { /* the first of a pair turns both; the rest is copied */
        int d = i % dim;
        const float *x = c.x + i;
        if (d < pairs) {
            float a = x[0], b = x[half], cs = c.b[d], sn = c.b[pairs + d];
            c.y[i] = cb_fma(a, cs, -(b * sn));
            c.y[i + half] = cb_fma(b, cs, a * sn);
        } else if ((d < half || d >= half + pairs) && c.x != c.y) c.y[i] = x[0];
    }
}

__device__ void op_glu(const row_ctx &c)
{
    int n = c.o->width;
    switch (c.o->n[0]) {
    case CB_ACT_SILU: map(c.y, n, [&](int i) { return cb_siluf(c.x[i]) * c.b[i]; }); break;
    case CB_ACT_GELU_TANH: map(c.y, n, [&](int i) { return cb_gelu_tanhf(c.x[i]) * c.b[i]; }); break;
    default: map(c.y, n, [&](int i) { return cb_sigmoidf(c.x[i]) * c.b[i]; });
    }
}

__device__ void op_split(const row_ctx &c)
{
    int dim = c.o->n[1], from = c.o->n[2], take = c.o->n[3];
    map(c.y, c.o->n[0] * take, [&](int i) { return c.x[i / take * dim + from + i % take]; });
}

/* In shared memory; strides ascend. */
__device__ void op_hadamard(const row_ctx &c)
{
    int n = c.o->width, block = c.o->n[0], back = c.o->n[1];
    float scale = c.o->f[0], *v = c.shared + c.o->stage;
    const float *w = c.o->w;
    if (back || !w) map(v, n, [&](int i) { return c.x[i]; });
    else map(v, n, [&](int i) { return c.x[i] * w[i]; });
    all_butterflies(v, n, 1, block);
    if (back) map(c.y, n, [&](int i) { return (v[i] * scale) * w[i]; });
    else map(c.y, n, [&](int i) { return v[i] * scale; });
}

/* ---- experts ---- */

__device__ void op_route(const row_ctx &c)
{
    __shared__ uint2 chosen[MOST_CHOSEN];
    if (threadIdx.x < 32) route_row(*c.o, c.step, c.x, c.y, chosen);
}

__device__ void op_moe_sum(const row_ctx &c)
{
    int k = c.o->n[0];
    const float *w = c.b + k, *y = c.o->in[0] + (size_t)c.row * k * c.o->in_stride[0];
    size_t stride = c.o->in_stride[0];
    map(c.y, c.o->width, [&](int i) {
        float acc = 0;
        int j = 0;
        for (; j + 4 <= k; j += 4) {
            float v[4];
#pragma unroll
            for (int q = 0; q < 4; q++) v[q] = y[(j + q) * stride + i];
#pragma unroll
            for (int q = 0; q < 4; q++) acc = cb_fma(w[j + q], v[q], acc);
        }
        for (; j < k; j++) acc = cb_fma(w[j], y[j * stride + i], acc);
        return acc;
    });
}

__device__ void one_op(const row_ctx &c)
{
    const cu_row_op *o = c.o;
    const int n = o->width;
    switch (o->kind) {
    case CB_EMBED: op_embed(c); break;
    case CB_ROPE_TABLE: rope_table(*c.o, c.step->pos[c.row], c.y); break;
    case CB_RMSNORM: op_rmsnorm(c); break;
    case CB_QUANT: op_quant(c); break;
    case CB_ROPE: op_rope(c); break;
    case CB_KV_PUT: op_kv_put(c); break;
    case CB_GLU: op_glu(c); break;
    case CB_ADD: map(c.y, n, [&](int i) { return c.x[i] + c.b[i]; }); break;
    case CB_BIAS: map(c.y, n, [&](int i) { return c.x[i] + o->w[i]; }); break;
    case CB_WANTED: {
        const float *x = o->in[0] + (size_t)c.step->wanted[c.row] * o->in_stride[0];
        map(c.y, n, [&](int i) { return x[i]; });
        break;
    }
    case CB_SOFTCAP: map(c.y, n, [&](int i) { return o->f[0] * cb_tanhf(c.x[i] / o->f[0]); }); break;
    case CB_SPLIT: op_split(c); break;
    case CB_SCALE: {
        float s = o->w ? o->w[0] : o->f[0];
        map(c.y, n, [&](int i) { return c.x[i] * s; });
        break;
    }
    case CB_HADAMARD: op_hadamard(c); break;
    case CB_ROUTE: op_route(c); break;
    case CB_MOE_SORT: sort_one(o->u.sort); break;
    case CB_MOE_SUM: op_moe_sum(c); break;
    case CB_ADD_GATED: {
        float g = cb_sigmoidf(c.b[0]);
        map(c.y, n, [&](int i) { return cb_fma(g, c.c[i], c.x[i]); });
        break;
    }
    }
}

/* Input or output i of an op in this row. */
__device__ __forceinline__ const float *operand(const cu_row_op &o, int i, int row, float *shared)
{
    return o.in_local[i] >= 0 ? shared + o.in_local[i] : o.in[i] + (size_t)row * o.in_stride[i];
}

extern "C" __global__ void __launch_bounds__(1024) k_rows(const __grid_constant__ cu_rows a)
{
    extern __shared__ __align__(16) float shared[];
    __shared__ __align__(16) cu_row_op ops[CU_MAX_ROW_OPS];
    pdl_trigger();
    for (int i = threadIdx.x; i < a.n_ops * (int)(sizeof(cu_row_op) / 8); i += blockDim.x) ((uint64_t *)ops)[i] = ((const uint64_t *)a.ops)[i];
    __syncthreads();
    pdl_wait();
    for (int i = 0; i < a.n_ops; i++) {
        const cu_row_op &o = ops[i];
        row_ctx c;
        c.o = &o;
        c.step = a.step;
        c.row = blockIdx.x;
        c.shared = shared;
        c.x = operand(o, 0, c.row, shared);
        c.b = operand(o, 1, c.row, shared);
        c.c = operand(o, 2, c.row, shared);
        c.y = o.out_local >= 0 ? shared + o.out_local : o.out + (size_t)c.row * o.out_stride;
        if (i) __syncthreads();
        one_op(c);
    }
}

/* A soft cap over logits, spread over many thread blocks: row blockIdx.y. */
extern "C" __global__ void __launch_bounds__(256) k_softcap(const __grid_constant__ cu_rows a)
{
    pdl_trigger();
    pdl_wait();
    const cu_row_op o = a.ops[0];
    float *y = o.out + (size_t)blockIdx.y * o.out_stride;
    for (int i = blockIdx.x * 256 + threadIdx.x; i < o.width; i += gridDim.x * 256) y[i] = o.f[0] * cb_tanhf(y[i] / o.f[0]);
}
