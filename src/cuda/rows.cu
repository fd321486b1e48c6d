/* rows.cu: everything that works on one row. A launch runs a list of such operations, one thread block a row; values pass
 * from one to the next through memory that only this block touches. */
#include "cuda/common.cuh"
#include "base/sincos.h"
#include "plan/opkind.h"

enum { THREADS = 512, WARPS = THREADS / 32 };

struct row_ctx {
    const cu_row_op *o;
    cu_step *step;
    int row;
    const float *x, *b; /* rows of in[0] and in[1] */
    float *y;
};

/* ---- embedding ---- */

__device__ __forceinline__ float decode(const cu_weight &w, int64_t row, int e)
{
    const uint8_t *codes = w.codes + row * w.row_bytes;
    if (w.fmt == CU_FMT_FLOAT) return load_scale(codes, w.scale_type, e);
    size_t bit = (size_t)e * w.bits, at = bit >> 3;
    unsigned v = codes[at];
    if (at + 1 < (size_t)w.row_bytes) v |= (unsigned)codes[at + 1] << 8;
    int code = (int)(v >> (bit & 7)) & ((1 << w.bits) - 1);
    int64_t g = row * w.n_groups + e / w.group;
    if (w.fmt == CU_FMT_AFFINE) return cb_fma(load_scale(w.scales, w.scale_type, g), (float)code, load_scale(w.biases, w.scale_type, g));
    if (w.bits == 8) return e4m3((uint8_t)code) * e8m0(w.scales[g]);
    const int twice[8] = {0, 1, 2, 3, 4, 6, 8, 12};
    float f = 0.5f * (float)twice[code & 7];
    if (code & 8) f = -f;
    return (f * (2.0f * load_scale(w.scales, w.scale_type, g))) * w.global_scale;
}

__device__ void op_embed(const row_ctx &c)
{
    int64_t token = c.step->token[c.row];
    for (int i = threadIdx.x; i < c.o->width; i += THREADS) {
        float v = decode(c.o->u.embed, token, i);
        c.y[i] = c.o->f[0] != 1.0f ? v * c.o->f[0] : v;
    }
}

__device__ void op_rope_table(const row_ctx &c)
{
    int n = c.o->width / 2;
    double pos = c.step->pos[c.row];
    for (int i = threadIdx.x; i < n; i += THREADS) {
        double cs, sn;
        cb_sincos(pos * c.o->freq[i], &cs, &sn);
        c.y[i] = c.o->f[0] != 1.0f ? (float)cs * c.o->f[0] : (float)cs;
        c.y[n + i] = c.o->f[0] != 1.0f ? (float)sn * c.o->f[0] : (float)sn;
    }
}

/* ---- norms ---- */

/* One warp a head; a single wide head is read by all warps first, so that the chain finds it close. */
__device__ void op_rmsnorm(const row_ctx &c, float *smem)
{
    int heads = c.o->n[0], n = c.o->n[1], warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float eps = c.o->f[0];
    if (heads == 1) {
        const float *x = c.x;
        float lane_sum = 0, *inv_s = smem;
        if (warp == 0) {
            int i = lane;
            for (; i + 7 * 32 < n; i += 8 * 32) {
                float v[8];
#pragma unroll
                for (int j = 0; j < 8; j++) v[j] = x[i + 32 * j];
#pragma unroll
                for (int j = 0; j < 8; j++) lane_sum = cb_fma(v[j], v[j], lane_sum);
            }
            for (; i < n; i += 32) lane_sum = cb_fma(x[i], x[i], lane_sum);
            float inv = 1.0f / sqrtf(lane_fold(lane_sum) / (float)n + eps);
            if (lane == 0) *inv_s = inv;
        }
        __syncthreads();
        float inv = *inv_s;
        for (int i = threadIdx.x; i < n; i += THREADS) {
            float v = x[i] * inv;
            c.y[i] = c.o->w ? v * c.o->w[i] : v;
        }
        return;
    }
    for (int h = warp; h < heads; h += WARPS) {
        const float *x = c.x + h * n;
        float *y = c.y + h * n, sum = 0;
        for (int i = lane; i < n; i += 32) sum = cb_fma(x[i], x[i], sum);
        float inv = 1.0f / sqrtf(lane_fold(sum) / (float)n + eps);
        for (int i = lane; i < n; i += 32) {
            float v = x[i] * inv;
            y[i] = c.o->w ? v * c.o->w[i] : v;
        }
    }
}

/* ---- fixed point ---- */

/* A lane takes 4*pack neighbours: pack words of high bytes and as many of low bytes. */
template <int PACK> __device__ void quant(const row_ctx &c)
{
    const cu_planes &q = c.o->u.q;
    int n = c.o->width, units = q.stride / (8 * PACK), per_group = q.group / (4 * PACK);
    int8_t *planes = q.planes + (size_t)c.row * q.stride;
    for (int u0 = threadIdx.x / 32 * 32; u0 < units; u0 += THREADS) { /* whole warps, for the shuffles */
        int u = u0 + threadIdx.x % 32, e0 = u * 4 * PACK;
        float x[4 * PACK], m = 0;
        bool bad = false;
#pragma unroll
        for (int i = 0; i < 4 * PACK; i++) {
            x[i] = u < units && e0 + i < n ? c.x[e0 + i] : 0;
            bad |= is_bad(x[i]);
            m = fmaxf(m, fabsf(x[i]));
        }
        if (bad) report_bad(c.step, c.o->op);
        m = group_max(m, per_group);
        bool zero = m < CB_TINY;
        float inv = zero ? 0 : CB_XI_MAX / m;
        int sum = 0;
        uint32_t hi[PACK], lo[PACK];
#pragma unroll
        for (int j = 0; j < PACK; j++) hi[j] = lo[j] = 0;
#pragma unroll
        for (int i = 0; i < 4 * PACK; i++) {
            int xi = zero ? 0 : clamp_xi(x[i] * inv), h = (xi + 128) >> 8, l = xi - 256 * h;
            sum += xi;
            hi[i % PACK] |= (uint32_t)(h & 255) << (8 * (i / PACK));
            lo[i % PACK] |= (uint32_t)(l & 255) << (8 * (i / PACK));
        }
        sum = group_sum(sum, per_group);
        if (u >= units) continue;
        int8_t *p = planes + (size_t)(u / 16) * 128 * PACK + u % 16 * 4;
#pragma unroll
        for (int j = 0; j < PACK; j++) {
            *(uint32_t *)(p + 64 * j) = hi[j];
            *(uint32_t *)(p + 64 * (PACK + j)) = lo[j];
        }
        if (e0 < n && u % per_group == 0) {
            size_t g = (size_t)c.row * q.n_groups + u / per_group;
            float dx = zero ? 0 : m * CB_XI_INV;
            q.dx[g] = dx;
            q.sum[g] = sum;
            q.xs[g] = dx * (float)sum;
        }
    }
}

__device__ void op_quant(const row_ctx &c)
{
    switch (c.o->u.q.pack) {
    case 1: quant<1>(c); break;
    case 2: quant<2>(c); break;
    case 4: quant<4>(c); break;
    default: quant<8>(c);
    }
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
    for (int w = warp; w < s.n_heads * (parts + 1); w += WARPS) { /* parts of K, then V, of each head */
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
    for (int i = threadIdx.x; i < heads * pairs; i += THREADS) {
        float *x = c.y + i / pairs * dim + i % pairs, a = x[0], b = x[half], cs = c.b[i % pairs], sn = c.b[pairs + i % pairs];
        x[0] = cb_fma(a, cs, -(b * sn));
        x[half] = cb_fma(b, cs, a * sn);
    }
}

__device__ void op_glu(const row_ctx &c)
{
    int act = c.o->n[0];
    for (int i = threadIdx.x; i < c.o->width; i += THREADS) {
        float g = c.x[i];
        c.y[i] = (act == CB_ACT_SILU ? cb_siluf(g) : act == CB_ACT_GELU_TANH ? cb_gelu_tanhf(g) : cb_sigmoidf(g)) * c.b[i];
    }
}

__device__ void op_split(const row_ctx &c)
{
    int heads = c.o->n[0], dim = c.o->n[1], from = c.o->n[2], take = c.o->n[3];
    for (int i = threadIdx.x; i < heads * take; i += THREADS) c.y[i] = c.x[i / take * dim + from + i % take];
}

/* Blocks of up to 4096 in shared memory; strides ascend. */
__device__ void op_hadamard(const row_ctx &c, float *smem)
{
    int n = c.o->width, block = c.o->n[0], back = c.o->n[1];
    float scale = (float)(1.0 / sqrt((double)block));
    for (int b = 0; b < n; b += block) {
        for (int i = threadIdx.x; i < block; i += THREADS) smem[i] = back ? c.x[b + i] : c.x[b + i] * c.o->w[b + i];
        for (int s = 1; s < block; s *= 2) {
            __syncthreads();
            for (int i = threadIdx.x; i < block / 2; i += THREADS) {
                int j = i / s * 2 * s + i % s;
                float p = smem[j], q = smem[j + s];
                smem[j] = p + q;
                smem[j + s] = p - q;
            }
        }
        __syncthreads();
        for (int i = threadIdx.x; i < block; i += THREADS) {
            float v = smem[i] * scale;
            c.y[b + i] = back ? v * c.o->w[b + i] : v;
        }
        __syncthreads();
    }
}

/* ---- experts ---- */

/* One warp: k times the largest of what is left, ties to the lower expert. */
__device__ void op_route(const row_ctx &c)
{
    if (threadIdx.x >= 32) return;
    int lane = threadIdx.x, n = c.o->n[0], k = c.o->n[1];
    const float *z = c.x;
    int32_t *ids = (int32_t *)c.y;
    float *w = c.y + k;
    bool bad = false;
    for (int e = lane; e < n; e += 32) bad |= is_bad(z[e]);
    if (__any_sync(FULL, bad)) {
        report_bad(c.step, c.o->op);
        for (int i = lane; i < k; i += 32) ids[i] = i, w[i] = 0;
        return;
    }
    unsigned taken = 0; /* bit j: expert lane + 32j */
    for (int i = 0; i < k; i++) {
        unsigned long long best = 0;
        for (int e = lane, j = 0; e < n; e += 32, j++) {
            if (taken >> j & 1) continue;
            unsigned u = __float_as_uint(z[e]);
            if ((u & 0x7fffffff) == 0) u = 0; /* -0 equals +0 */
            u = u & 0x80000000u ? ~u : u | 0x80000000u;
            unsigned long long v = (unsigned long long)u << 32 | (unsigned)~e;
            best = v > best ? v : best;
        }
        for (int s = 16; s; s /= 2) {
            unsigned long long v = __shfl_xor_sync(FULL, best, s);
            best = v > best ? v : best;
        }
        int e = (int)~(unsigned)best;
        if (e % 32 == lane) taken |= 1u << (e / 32);
        if (lane == 0) ids[i] = e;
    }
    __syncwarp();
    float m = z[ids[0]], all = 1;
    bool soft_all = c.o->n[2] == CB_ROUTE_SOFTMAX_ALL;
    if (soft_all) {
        float sum = 0;
        for (int e = lane; e < n; e += 32) sum += cb_expf(z[e] - m);
        all = lane_fold(sum);
    }
    for (int i = lane; i < k; i += 32) {
        float p = cb_expf(z[ids[i]] - m);
        w[i] = soft_all ? p / all : p;
    }
    __syncwarp();
    float sum = 0;
    for (int i = 0; i < k; i++) sum += w[i];
    __syncwarp();
    for (int i = lane; i < k; i += 32) {
        float v = w[i] / sum;
        w[i] = c.o->w ? v * c.o->w[ids[i]] : v;
    }
}

__device__ void op_moe_sum(const row_ctx &c)
{
    int k = c.o->n[0];
    const float *w = c.b + k, *y = c.o->in[0] + (size_t)c.row * k * c.o->in_stride[0];
    for (int i = threadIdx.x; i < c.o->width; i += THREADS) {
        float acc = 0;
        for (int j = 0; j < k; j++) acc = cb_fma(w[j], y[(size_t)j * c.o->in_stride[0] + i], acc);
        c.y[i] = acc;
    }
}

__device__ void one_op(const row_ctx &c, float *smem)
{
    const cu_row_op *o = c.o;
    const int n = o->width, t = threadIdx.x;
    switch (o->kind) {
    case CB_EMBED: op_embed(c); break;
    case CB_ROPE_TABLE: op_rope_table(c); break;
    case CB_RMSNORM: op_rmsnorm(c, smem); break;
    case CB_QUANT: op_quant(c); break;
    case CB_ROPE: op_rope(c); break;
    case CB_KV_PUT: op_kv_put(c); break;
    case CB_GLU: op_glu(c); break;
    case CB_ADD:
        for (int i = t; i < n; i += THREADS) c.y[i] = c.x[i] + c.b[i];
        break;
    case CB_BIAS:
        for (int i = t; i < n; i += THREADS) c.y[i] = c.x[i] + o->w[i];
        break;
    case CB_WANTED: {
        const float *x = o->in[0] + (size_t)c.step->wanted[o->n[0] + c.row] * o->in_stride[0];
        for (int i = t; i < n; i += THREADS) c.y[i] = x[i];
        break;
    }
    case CB_SOFTCAP:
        for (int i = t; i < n; i += THREADS) c.y[i] = o->f[0] * cb_tanhf(c.x[i] / o->f[0]);
        break;
    case CB_SPLIT: op_split(c); break;
    case CB_SCALE: {
        float s = o->w ? o->w[0] : o->f[0];
        for (int i = t; i < n; i += THREADS) c.y[i] = c.x[i] * s;
        break;
    }
    case CB_HADAMARD: op_hadamard(c, smem); break;
    case CB_ROUTE: op_route(c); break;
    case CB_MOE_SUM: op_moe_sum(c); break;
    case CB_ADD_GATED: {
        float g = cb_sigmoidf(c.b[0]);
        const float *y = o->in[2] + (size_t)c.row * o->in_stride[2];
        for (int i = t; i < n; i += THREADS) c.y[i] = cb_fma(g, y[i], c.x[i]);
        break;
    }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) k_rows(const __grid_constant__ cu_rows a)
{
    __shared__ float smem[4096];
    pdl_trigger();
    pdl_wait();
    for (int i = 0; i < a.n_ops; i++) {
        row_ctx c;
        c.o = &a.ops[i];
        c.step = a.step;
        c.row = blockIdx.x;
        c.x = c.o->in[0] + (size_t)c.row * c.o->in_stride[0];
        c.b = c.o->in[1] + (size_t)c.row * c.o->in_stride[1];
        c.y = c.o->out + (size_t)c.row * c.o->out_stride;
        if (i) __syncthreads();
        one_op(c, smem);
    }
}

/* A soft cap over logits, spread over many thread blocks: row blockIdx.y. */
extern "C" __global__ void __launch_bounds__(256) k_softcap(const __grid_constant__ cu_rows a)
{
    pdl_trigger();
    pdl_wait();
    const cu_row_op &o = a.ops[0];
    float *y = o.out + (size_t)blockIdx.y * o.out_stride;
    for (int i = blockIdx.x * 256 + threadIdx.x; i < o.width; i += gridDim.x * 256) y[i] = o.f[0] * cb_tanhf(y[i] / o.f[0]);
}
