/* rows_many.cu: chains of row-wise operations for steps of many rows. A thread keeps E elements of a row in registers from one operation to
 * the next: four times 4 neighbours, as a warp loads and stores them together ("striped"), or 16 neighbours, where an operation wants
 * them. A row is a warp, or if it is wide a thread block. Shared memory has what crosses threads: a change of layout, lane trees and the
 * strides of a Hadamard block from E on. many_width (launch.c) says which chains this can run; rows.cu runs the others, and
 * steps of few rows. */
#include "cuda/rowops.cuh"

enum { E = CU_MANY_ELEMENTS };

struct chain {
    const cu_row_op *o;
    cu_step *step;
    int row, n;
    int t, lane, warp, warps; /* thread and warp of the row */
    bool striped;             /* the layout of the value in registers */
    const float *made;        /* whose address the value in registers has, NULL: nothing yet */
    float *area;              /* the row in shared memory, element i at place(i) */
    float *told;              /* [2][32] of the warps of a row; [64] of the row */
};

__device__ __forceinline__ void meet(const chain &c)
{
    if (c.warps == 1) __syncwarp();
    else __syncthreads();
}

/* Rows of 16 words, their 4 chunks exchanged so that both neighbours and columns lie in different banks; 16 words of nothing behind 256. */
__device__ __forceinline__ int place(int i) { return (i & ~15) + ((((i >> 2) ^ (i >> 5)) & 3) << 2) + (i & 3) + (i >> 8) * 16; }
/* The first of the 4 elements q of this thread. The last warp of a row may be half full. */
template <bool STRIPED> __device__ __forceinline__ int first(const chain &c, int q) { return STRIPED ? c.warp * (32 * E) + q * 128 + c.lane * 4 : c.t * E + q * 4; }
__device__ __forceinline__ float4 *in_area(const chain &c, int i) { return (float4 *)(c.area + (i & ~15) + ((((i >> 2) ^ (i >> 5)) & 3) << 2) + (i >> 8) * 16); }

__device__ __forceinline__ void set4(float (&x)[E], int q, const float4 &u) { x[4 * q] = u.x, x[4 * q + 1] = u.y, x[4 * q + 2] = u.z, x[4 * q + 3] = u.w; }

/* Elements from memory, striped. */
__device__ __forceinline__ void load(const chain &c, const float *p, float (&x)[E])
{
#pragma unroll
    for (int q = 0; q < E / 4; q++) set4(x, q, first<true>(c, q) < c.n ? *(const float4 *)(p + first<true>(c, q)) : make_float4(0, 0, 0, 0));
}

/* To shared memory, and from there; what another warp reads is behind a meet(). */
template <bool STRIPED> __device__ __forceinline__ void keep_as(const chain &c, const float (&v)[E])
{
#pragma unroll
    for (int q = 0; q < E / 4; q++) *in_area(c, first<STRIPED>(c, q)) = make_float4(v[4 * q], v[4 * q + 1], v[4 * q + 2], v[4 * q + 3]);
}
__device__ __forceinline__ void keep(const chain &c, const float (&v)[E], bool striped)
{
    __syncwarp();
    if (striped) keep_as<true>(c, v);
    else keep_as<false>(c, v);
}
template <bool STRIPED> __device__ __forceinline__ void fetch(const chain &c, float (&v)[E])
{
#pragma unroll
    for (int q = 0; q < E / 4; q++) set4(v, q, *in_area(c, first<STRIPED>(c, q)));
}
/* The other layout. */
__device__ __forceinline__ void stripe(chain &c, float (&v)[E])
{
    if (c.striped) return;
    keep(c, v, false);
    __syncwarp();
    fetch<true>(c, v);
    c.striped = true;
}
__device__ __forceinline__ void unstripe(chain &c, float (&v)[E])
{
    if (!c.striped) return;
    keep(c, v, true);
    __syncwarp();
    fetch<false>(c, v);
    c.striped = false;
}

/* Input k, striped: v when the operation before made it, else from memory, where this thread may have put it itself. */
__device__ __forceinline__ void operand(chain &c, int k, float (&v)[E], float (&x)[E])
{
    if (c.o->in[k] == c.made) {
        stripe(c, v);
#pragma unroll
        for (int e = 0; e < E; e++) x[e] = v[e];
    } else load(c, c.o->in[k] + (size_t)c.row * c.o->in_stride[k], x);
}
/* The same where v becomes the input. */
__device__ __forceinline__ void take(chain &c, int k, float (&v)[E])
{
    operand(c, k, v, v);
    c.striped = true;
}
/* What an operation does last: v is its output, which other launches may read. */
__device__ __forceinline__ void done(chain &c, float (&v)[E])
{
    c.made = c.o->out;
    if (c.o->out_local >= 0) return;
    stripe(c, v);
    float *y = c.o->out + (size_t)c.row * c.o->out_stride;
#pragma unroll
    for (int q = 0; q < E / 4; q++)
        if (first<true>(c, q) < c.n) *(float4 *)(y + first<true>(c, q)) = make_float4(v[4 * q], v[4 * q + 1], v[4 * q + 2], v[4 * q + 3]);
}

/* ---- norms ---- */

/* Elements lane, lane + 32, .. of 256 from `at` on. */
__device__ __forceinline__ void lanes_of(const float *at, int lane, float (&u)[8])
{
#pragma unroll
    for (int k = 0; k < 8; k++) u[k] = at[32 * k + (lane & 16) + ((((lane >> 2) ^ k) & 3) << 2) + (lane & 3)];
}

/* The lane tree of squares of a row that was kept: one warp adds, all get the sum's f(). */
template <class F> __device__ __forceinline__ float of_squares(const chain &c, F f)
{
    meet(c);
    if (c.warp == 0) {
        float sum = 0;
        for (int i = 0; i < c.n; i += 256) {
            float u[8];
            lanes_of(c.area + i / 256 * 272, c.lane, u);
#pragma unroll
            for (int k = 0; k < 8; k++) sum = cb_fma(u[k], u[k], sum);
        }
        sum = f(lane_fold(sum));
        if (c.lane == 0) c.told[64] = sum;
    }
    meet(c);
    return c.told[64];
}

__device__ __forceinline__ void wide_norm(chain &c, float (&v)[E])
{
    take(c, 0, v);
    keep(c, v, true);
    float inv = of_squares(c, [&](float ss) { return 1.0f / sqrtf(ss / (float)c.n + c.o->f[0]); }), w[E];
    if (c.o->w) {
        load(c, c.o->w, w);
#pragma unroll
        for (int e = 0; e < E; e++) v[e] = (v[e] * inv) * w[e];
    } else
#pragma unroll
        for (int e = 0; e < E; e++) v[e] = v[e] * inv;
    done(c, v);
}

/* Heads of 32*PER dims, 16/PER of them in a warp. */
template <int PER> __device__ __forceinline__ void head_norm(chain &c, float (&v)[E])
{
    constexpr int H = 16 / PER;
    float inv[4] = {};
    take(c, 0, v);
    keep(c, v, true);
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float u[8];
        lanes_of(c.area + c.warp * (2 * 272) + half * 272, c.lane, u);
#pragma unroll
        for (int h = 0; h < H / 2; h++) {
            float sum = 0;
#pragma unroll
            for (int j = 0; j < PER; j++) sum = cb_fma(u[h * PER + j], u[h * PER + j], sum);
            float one = 1.0f / sqrtf(lane_fold(sum) / (float)(32 * PER) + c.o->f[0]);
#pragma unroll
            for (int q = 0; q < 4; q++)
                if ((q * 128 + c.lane * 4) / (32 * PER) == half * (H / 2) + h) inv[q] = one;
        }
    }
#pragma unroll
    for (int q = 0; q < 4; q++) {
        float4 w = make_float4(1, 1, 1, 1);
        if (c.o->w) w = *(const float4 *)(c.o->w + ((q * 128 + c.lane * 4) & (32 * PER - 1)));
        float *x = v + 4 * q;
        x[0] = x[0] * inv[q], x[1] = x[1] * inv[q], x[2] = x[2] * inv[q], x[3] = x[3] * inv[q];
        if (c.o->w) x[0] = x[0] * w.x, x[1] = x[1] * w.y, x[2] = x[2] * w.z, x[3] = x[3] * w.w;
    }
    done(c, v);
}

/* ---- fixed point ---- */

/* The largest |x| of a group of `lanes` lanes, as bits: integers in the order of floats, NaN above all. */
__device__ __forceinline__ uint32_t group_top(const float (&x)[E], int lanes)
{
    uint32_t m = 0;
#pragma unroll
    for (int e = 0; e < E; e++) m = max(m, __float_as_uint(x[e]) & 0x7fffffff);
    for (int w = lanes / 2; w; w /= 2) m = max(m, __shfl_xor_sync(FULL, m, w));
    return m;
}

struct scale {
    float dx, inv;
    __device__ __forceinline__ scale(uint32_t top)
    {
        float m = __uint_as_float(top);
        bool zero = m < CB_TINY;
        inv = zero ? 0 : CB_XI_MAX / m;
        dx = zero ? 0 : m * CB_XI_INV;
    }
};

/* Bytes of elements a, b, c, d: the low ones, and the high ones as (xi + 128) >> 8. */
__device__ __forceinline__ uint32_t low4(uint32_t a, uint32_t b, uint32_t c, uint32_t d) { return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410); }
__device__ __forceinline__ uint32_t high4(uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    return __byte_perm(__byte_perm(a + 128, b + 128, 0x0051), __byte_perm(c + 128, d + 128, 0x0051), 0x5410);
}

/* 16 integers to planes of PACK elements a byte of a weight: 16/PACK bytes of each plane. */
template <int PACK> __device__ __forceinline__ void put_planes(const uint32_t (&t)[E], int8_t *p)
{
    constexpr int LO = 64 * PACK;
#pragma unroll
    for (int j = 0; j < PACK; j++) {
        auto low = [&](int k) { return low4(t[j + k * PACK], t[j + (k + 1) * PACK], t[j + (k + 2) * PACK], t[j + (k + 3) * PACK]); };
        auto high = [&](int k) { return high4(t[j + k * PACK], t[j + (k + 1) * PACK], t[j + (k + 2) * PACK], t[j + (k + 3) * PACK]); };
        int8_t *to = p + 64 * j;
        if constexpr (PACK == 1) {
            *(uint4 *)to = make_uint4(high(0), high(4), high(8), high(12));
            *(uint4 *)(to + LO) = make_uint4(low(0), low(4), low(8), low(12));
        } else if constexpr (PACK == 2) {
            *(uint2 *)to = make_uint2(high(0), high(4));
            *(uint2 *)(to + LO) = make_uint2(low(0), low(4));
        } else {
            *(uint32_t *)to = high(0);
            *(uint32_t *)(to + LO) = low(0);
        }
    }
}

/* Row `row` of the planes. |x*inv| needs no clamp (rowops.cuh). */
__device__ __forceinline__ void put(const chain &c, const float (&x)[E], const scale &s, int row)
{
    const cu_planes &q = c.o->u.q;
    uint32_t t[E];
    int sum = 0, lanes = q.group / E, i = c.t * E;
#pragma unroll
    for (int e = 0; e < E; e++) {
        t[e] = __float_as_uint(x[e] * s.inv + MAGIC);
        sum += (int)(t[e] - 0x4b400000u);
    }
    sum = group_sum(sum, lanes);
    if (i >= c.n) return;
    int r = i & (64 * q.pack - 1);
    int8_t *p = q.planes + (size_t)row * q.stride + 2 * (i - r) + r / q.pack;
    if (q.pack == 1) put_planes<1>(t, p);
    else if (q.pack == 2) put_planes<2>(t, p);
    else put_planes<4>(t, p);
    if ((i & (q.group - 1)) == 0) {
        size_t g = (size_t)row * q.n_groups + (i >> (31 - __clz(q.group)));
        q.dx[g] = s.dx;
        q.sum[g] = sum;
        q.xs[g] = s.dx * (float)sum;
    }
}

/* Has the row a remainder? dx: this thread's. */
__device__ __forceinline__ bool wants_remainder(const chain &c, const float (&x)[E], float dx)
{
    float sum = 0, top = __uint_as_float(__reduce_max_sync(FULL, __float_as_uint(dx)));
#pragma unroll
    for (int e = 0; e < E; e++) sum = cb_fma(x[e], x[e], sum);
#pragma unroll
    for (int w = 16; w; w /= 2) sum += __shfl_xor_sync(FULL, sum, w);
    if (c.warps > 1) {
        meet(c);
        if (c.lane == 0) c.told[c.warp] = top, c.told[32 + c.warp] = sum;
        meet(c);
        top = __uint_as_float(__reduce_max_sync(FULL, c.lane < c.warps ? __float_as_uint(c.told[c.lane]) : 0));
        sum = c.lane < c.warps ? c.told[32 + c.lane] : 0;
#pragma unroll
        for (int w = 16; w; w /= 2) sum += __shfl_xor_sync(FULL, sum, w);
    }
    top = top * CB_XI_MAX;
    float share = c.o->f[0], energy = top * top;
    int surely = wants(energy, sum, share);
    if (surely >= 0) return surely;
    keep(c, x, false);
    return energy > share * of_squares(c, [](float ss) { return ss; });
}

__device__ __forceinline__ void quant(chain &c, float (&v)[E])
{
    const cu_planes &q = c.o->u.q;
    float x[E];
    if (c.o->in[0] == c.made) {
        unstripe(c, v);
#pragma unroll
        for (int e = 0; e < E; e++) x[e] = v[e];
    } else {
        load(c, c.o->in[0] + (size_t)c.row * c.o->in_stride[0], x);
        keep(c, x, true);
        __syncwarp();
        fetch<false>(c, x);
    }
    uint32_t top = group_top(x, q.group / E);
    if (top >= 0x7f800000u) report_bad(c.step, c.o->op);
    scale s(top);
    put(c, x, s, c.row);
    if (!q.flag) return;
    bool more = wants_remainder(c, x, s.dx);
    if (c.t == 0) q.flag[c.row] = more;
    if (!more) return;
#pragma unroll
    for (int e = 0; e < E; e++)
        if (s.inv != 0) x[e] = rest(x[e], __float_as_uint(x[e] * s.inv + MAGIC), s.dx);
    put(c, x, scale(group_top(x, q.group / E)), q.n_rows + c.row);
}

/* ---- Hadamard ---- */

/* Strides 16 to 128, within 16 lanes. */
__device__ __forceinline__ void middle_strides(const chain &c, int block)
{
    float *at = c.area + c.warp * (2 * 272) + (c.lane >> 4) * 272 + (c.lane & 3), u[16];
    int chunk = c.lane >> 2;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 16; j++) u[j] = at[16 * j + (((chunk ^ (j >> 1)) & 3) << 2)];
    cross<16>(u, 16, block);
#pragma unroll
    for (int j = 0; j < 16; j++) at[16 * j + (((chunk ^ (j >> 1)) & 3) << 2)] = u[j];
}

/* Strides 256 to 128*N: N of 256 neighbours that stand so far from each other. */
template <int N> __device__ __forceinline__ void long_strides(const chain &c)
{
    for (int g = c.t; g < c.n / N; g += 32 * c.warps) {
        float *at = c.area + (g >> 8) * (N * 272) + place(g & 255), u[N];
#pragma unroll
        for (int j = 0; j < N; j++) u[j] = at[j * 272];
        cross<N>(u, 1, N);
#pragma unroll
        for (int j = 0; j < N; j++) at[j * 272] = u[j];
    }
}

__device__ __forceinline__ void hadamard(chain &c, float (&v)[E])
{
    int block = c.o->n[0];
    bool back = c.o->n[1];
    float scale = c.o->f[0], w[E];
    take(c, 0, v);
    if (c.o->w && !back) {
        load(c, c.o->w, w);
#pragma unroll
        for (int e = 0; e < E; e++) v[e] = v[e] * w[e];
    }
    unstripe(c, v);
    cross<E>(v, 1, block);
    bool striped = back || c.o->out_local < 0; /* what is wanted next */
    keep(c, v, false);
    if (block > E) middle_strides(c, block);
    if (block > 256) {
        meet(c);
        switch (block) {
        case 512: long_strides<2>(c); break;
        case 1024: long_strides<4>(c); break;
        case 2048: long_strides<8>(c); break;
        default: long_strides<16>(c);
        }
        meet(c);
    } else __syncwarp();
    if (striped) fetch<true>(c, v);
    else fetch<false>(c, v);
    c.striped = striped;
#pragma unroll
    for (int e = 0; e < E; e++) v[e] = v[e] * scale;
    if (c.o->w && back) {
        load(c, c.o->w, w);
#pragma unroll
        for (int e = 0; e < E; e++) v[e] = v[e] * w[e];
    }
    done(c, v);
}

/* ---- element by element ---- */

/* v = f(input 0, input k). */
template <class F> __device__ __forceinline__ void map(chain &c, int k, float (&v)[E], F f)
{
    float b[E];
    operand(c, k, v, b);
    take(c, 0, v);
#pragma unroll
    for (int e = 0; e < E; e++) v[e] = f(v[e], b[e]);
    done(c, v);
}

/* z / d as IEEE says, for numbers far from overflow and underflow: the steps that a division is compiled to, without the question whether
 * these are such numbers. */
__device__ __forceinline__ float quotient(float z, float d)
{
    float r = reciprocal_about(d);
    r = cb_fma(r, cb_fma(-d, r, 1.0f), r);
    float q = z * r;
    return cb_fma(r, cb_fma(-d, q, z), q);
}

/* act(input 0) * input 1; an act is z / (1 + exp(u)) with z and u by F. */
template <class F> __device__ __forceinline__ void gate(chain &c, float (&v)[E], F f)
{
    float b[E];
    bool plain = true;
    operand(c, 1, v, b);
    take(c, 0, v);
#pragma unroll
    for (int e = 0; e < E; e++) {
        float z, u = f(v[e], z);
        plain &= u < 40 && fabsf(z) > 0x1p-60f && fabsf(z) < 0x1p60f;
    }
    if (__all_sync(FULL, plain)) {
#pragma unroll
        for (int e = 0; e < E; e++) {
            float z, u = f(v[e], z);
            v[e] = quotient(z, 1.0f + cb_expf(u)) * b[e];
        }
    } else {
#pragma unroll
        for (int e = 0; e < E; e++) {
            float z, u = f(v[e], z);
            v[e] = z / (1.0f + cb_expf(u)) * b[e];
        }
    }
    done(c, v);
}

__device__ __forceinline__ void glu(chain &c, float (&v)[E])
{
    switch (c.o->n[0]) {
    case CB_ACT_SILU: gate(c, v, [](float x, float &z) { z = x; return -x; }); break;
    case CB_ACT_GELU_TANH: gate(c, v, [](float x, float &z) { z = x; return (x * -1.5957691216057308f) * cb_fma(x * x, 0.044715f, 1.0f); }); break;
    default: gate(c, v, [](float x, float &z) { z = 1; return -x; });
    }
}

/* Dims n[2] .. n[2] + n[3] of each head of n[1]; n[3] is a power of two. */
__device__ __forceinline__ void split(chain &c, float (&v)[E])
{
    const float *x = c.o->in[0] + (size_t)c.row * c.o->in_stride[0] + c.o->n[2];
    int shift = 31 - __clz(c.o->n[3]);
#pragma unroll
    for (int q = 0; q < E / 4; q++) {
        int i = first<true>(c, q), head = i >> shift;
        set4(v, q, i < c.n ? *(const float4 *)(x + head * c.o->n[1] + (i - (head << shift))) : make_float4(0, 0, 0, 0));
    }
    c.striped = true;
    done(c, v);
}

/* Pairs (d, d + half), d < pairs, of heads that do not reach beyond a warp; pairs and half are multiples of E. */
__device__ __forceinline__ void rope(chain &c, float (&v)[E])
{
    int pairs = c.o->n[2], half = c.o->n[3], d = c.t * E & (c.o->n[1] - 1);
    bool low = d < pairs, high = d >= half && d < half + pairs, turned = (low || high) && c.t * E < c.n;
    int from = low ? c.lane + half / E : high ? c.lane - half / E : c.lane;
    const float *turn = c.o->in[1] + (size_t)c.row * c.o->in_stride[1] + (low ? d : d - half);
    take(c, 0, v);
    unstripe(c, v);
#pragma unroll
    for (int q = 0; q < E / 4; q++) {
        float4 cs = make_float4(1, 1, 1, 1), sn = make_float4(0, 0, 0, 0);
        if (turned) cs = ((const float4 *)turn)[q], sn = ((const float4 *)(turn + pairs))[q];
        const float cosine[4] = {cs.x, cs.y, cs.z, cs.w}, sine[4] = {sn.x, sn.y, sn.z, sn.w};
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float &x = v[4 * q + e], other = __shfl_sync(FULL, x, from);
            if (low) x = cb_fma(x, cosine[e], -(other * sine[e]));
            else if (high) x = cb_fma(x, cosine[e], other * sine[e]);
        }
    }
    done(c, v);
}

__device__ __forceinline__ void moe_sum(chain &c, float (&v)[E])
{
    int k = c.o->n[0];
    size_t stride = c.o->in_stride[0];
    const float *y = c.o->in[0] + (size_t)c.row * k * stride, *w = c.o->in[1] + (size_t)c.row * c.o->in_stride[1] + k;
#pragma unroll
    for (int e = 0; e < E; e++) v[e] = 0;
#pragma unroll 2
    for (int j = 0; j < k; j++) {
        float x[E], weight = w[j];
        load(c, y + j * stride, x);
#pragma unroll
        for (int e = 0; e < E; e++) v[e] = cb_fma(weight, x[e], v[e]);
    }
    c.striped = true;
    done(c, v);
}

__device__ __forceinline__ void one_op(chain &c, float (&v)[E])
{
    const cu_row_op *o = c.o;
    switch (o->kind) {
    case CB_RMSNORM:
        if (o->n[0] == 1) wide_norm(c, v);
        else if (o->n[1] == 64) head_norm<2>(c, v);
        else if (o->n[1] == 128) head_norm<4>(c, v);
        else head_norm<8>(c, v);
        break;
    case CB_GLU: glu(c, v); break;
    case CB_ADD: map(c, 1, v, [](float x, float b) { return x + b; }); break;
    case CB_ADD_GATED: {
        float g = cb_sigmoidf(o->in[1][(size_t)c.row * o->in_stride[1]]);
        map(c, 2, v, [&](float x, float y) { return cb_fma(g, y, x); });
        break;
    }
    case CB_SCALE: {
        float s = o->w ? o->w[0] : o->f[0];
        map(c, 0, v, [&](float x, float) { return x * s; });
        break;
    }
    case CB_HADAMARD: hadamard(c, v); break;
    case CB_SPLIT: split(c, v); break;
    case CB_ROPE: rope(c, v); break;
    case CB_MOE_SUM: moe_sum(c, v); break;
    case CB_QUANT: quant(c, v); break;
    }
}

/* As many threads as a row wants, or CU_MANY_SINGLE rows of one warp each. Shared memory: 17/16 of the rows' floats. */
__device__ __forceinline__ void rows_many(const cu_rows_many &a, float *shared)
{
    __shared__ __align__(16) cu_row_op ops[CU_MANY_OPS];
    __shared__ float told[CU_MANY_SINGLE][65];
    pdl_trigger();
    for (int i = threadIdx.x; i < a.n_ops * (int)(sizeof(cu_row_op) / 8); i += blockDim.x) ((uint64_t *)ops)[i] = ((const uint64_t *)a.ops)[i];
    __syncthreads();
    pdl_wait();
    int warp = threadIdx.x / 32, mine = a.warps == 1 ? warp : 0, rows = a.warps == 1 ? blockDim.x / 32 : 1;
    chain c;
    c.step = a.step;
    c.n = a.width;
    c.lane = threadIdx.x % 32;
    c.warp = a.warps == 1 ? 0 : warp;
    c.warps = a.warps;
    c.t = 32 * c.warp + c.lane;
    c.striped = true;
    c.area = shared + mine * (a.warps * (2 * 272));
    c.told = told[mine];
    for (c.row = blockIdx.x * rows + mine; c.row < a.n_rows; c.row += gridDim.x * rows) {
        float v[E] = {};
        int next = c.row + gridDim.x * rows;
        for (int k = 0; k < 2 && next < a.n_rows && c.t * 32 < c.n && a.ahead >> k & 1; k++) prefetch(ops[0].in[k] + (size_t)next * ops[0].in_stride[k] + c.t * 32);
        c.made = NULL;
        for (int i = 0; i < a.n_ops; i++) {
            c.o = ops + i;
            one_op(c, v); /* nothing for CB_ROUTE */
        }
        meet(c); /* area and told are free again */
    }
}

/* Rows of up to CU_MANY_NARROW elements, which leave more registers to a thread, and of up to CU_MANY_WIDTH. */
extern "C" __global__ void __launch_bounds__(CU_MANY_NARROW / E) k_rows_many(const __grid_constant__ cu_rows_many a)
{
    extern __shared__ __align__(16) float shared[];
    rows_many(a, shared);
}
extern "C" __global__ void __launch_bounds__(CU_MANY_WIDTH / E) k_rows_many_wide(const __grid_constant__ cu_rows_many a)
{
    extern __shared__ __align__(16) float shared[];
    rows_many(a, shared);
}

/* CB_ROUTE: a warp a row. A kernel of its own, for it wants many registers. */
extern "C" __global__ void __launch_bounds__(128) k_route_many(const __grid_constant__ cu_rows_many a)
{
    pdl_trigger();
    pdl_wait();
    const cu_row_op &o = *a.ops;
    int row = blockIdx.x * 4 + threadIdx.x / 32;
    __shared__ uint2 chosen[4][MOST_CHOSEN];
    if (row < a.n_rows) route_row(o, a.step, o.in[0] + (size_t)row * o.in_stride[0], o.out + (size_t)row * o.out_stride, chosen[threadIdx.x / 32]);
}
