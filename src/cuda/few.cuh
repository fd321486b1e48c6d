/* few.cuh: rows of steps of few rows in registers. A thread block takes a row, or a part of one, and a thread of it E neighbouring elements,
 * which stay in its registers from one operation to the next. Threads meet only for a norm's sum, a wide Hadamard block and the question
 * whether a row has a remainder. few.c says which chains of operations can be run so; rows_few.cu runs any of them, row_chains.cu those
 * that layers of known models are made of, with no decision left to the kernel; rows.cu runs everything else. */
#ifndef CB_CUDA_FEW_CUH
#define CB_CUDA_FEW_CUH
#include "cuda/rowops.cuh"

enum { WARPS = 16 }; /* of a thread block at most */

/* What warps tell each other. Quantisations take turns with the two halves, so that none overwrites what a slow warp still reads. */
struct told {
    uint4 most[2][WARPS / 4]; /* of each warp: bits of its largest magnitude, */
    float4 squares[2][WARPS / 4]; /* and its sum of squares in any order */
    float inv;
    int more;
};

template <int E> struct chain {
    const cu_rows_few &a;
    float *shared;   /* a row for all threads, then places */
    told &t;
    int row, first;  /* first element of the part */
    int e;           /* this thread's first element in the part; from a.width on there are only zeros */
    int turn;
    float inv;       /* of the norm before */
    float v[E];
};

/* ---- this thread's elements ---- */

template <int E, class F> __device__ __forceinline__ void each(F f)
{
#pragma unroll
    for (int i = 0; i < E; i++) f(i);
}

template <int E> __device__ __forceinline__ void load(float (&u)[E], const float *p)
{
#pragma unroll
    for (int q = 0; q < E; q += 4) {
        float4 x = *(const float4 *)(p + q);
        u[q] = x.x;
        u[q + 1] = x.y;
        u[q + 2] = x.z;
        u[q + 3] = x.w;
    }
}

/* This thread's share of row `row` of a value. */
template <int E> __device__ __forceinline__ void fetch(const chain<E> &c, float (&u)[E], const float *p, int row, int stride)
{
    each<E>([&](int i) { u[i] = 0; });
    if (c.e < c.a.width) load(u, p + (size_t)row * stride + c.first + c.e);
}

template <int E> __device__ __forceinline__ void embed(const chain<E> &c, float (&u)[E], const cu_few_op &o)
{
    static_assert(E == 8, "eight codes at once");
    each<E>([&](int i) { u[i] = 0; });
    if (c.e < c.a.width) decode8(o.u.embed, c.a.step->token[c.row], c.e, u);
    if (o.f != 1.0f) each<E>([&](int i) { u[i] = u[i] * o.f; });
}

/* What an op hands to other launches. */
template <int E> __device__ __forceinline__ void hand_out(const chain<E> &c, const cu_few_op &o)
{
    if (!o.out || c.e >= c.a.width) return;
    float *y = o.out + (size_t)c.row * o.out_stride + c.first + c.e;
#pragma unroll
    for (int q = 0; q < E; q += 4) *(float4 *)(y + q) = make_float4(c.v[q], c.v[q + 1], c.v[q + 2], c.v[q + 3]);
}

/* ---- the row where all threads see it ---- */

/* Element e's place in the shared row: so that these never meet in a bank: pieces of 4 of eight threads' E neighbours; 32 neighbours; and what
 * the passes of a Hadamard block load. */
template <int E> __device__ __forceinline__ int place(int e)
{
    if constexpr (E == 8) return e ^ (e >> 3 & 28) ^ (e >> 7 & 16);
    else return e;
}

template <int E> __device__ __forceinline__ void stage(const chain<E> &c)
{
#pragma unroll
    for (int q = 0; q < E; q += 4)
        *(float4 *)(c.shared + place<E>(E * threadIdx.x + q)) = make_float4(c.v[q], c.v[q + 1], c.v[q + 2], c.v[q + 3]);
}

template <int E> __device__ __forceinline__ void unstage(chain<E> &c)
{
#pragma unroll
    for (int q = 0; q < E; q += 4) {
        float4 x = *(const float4 *)(c.shared + place<E>(E * threadIdx.x + q));
        c.v[q] = x.x;
        c.v[q + 1] = x.y;
        c.v[q + 2] = x.z;
        c.v[q + 3] = x.w;
    }
}

/* The lane tree of squares of the shared row, by one warp: the next 16 terms of a lane are on their way while 16 are added. There are zeros
 * up to a multiple of 512 elements; adding 0*0 changes nothing. */
template <int E> __device__ __forceinline__ void column(float (&u)[16], const float *stage, int i) /* i a multiple of 16 */
{
    int lane = threadIdx.x % 32 ^ (E == 8 ? i >> 2 & 16 : 0);
#pragma unroll
    for (int j = 0; j < 16; j++) u[j] = stage[32 * i + place<E>(32 * j + lane)];
}
template <int E> __device__ __forceinline__ float squares(const float *stage, int n)
{
    float sum = 0, a[16], b[16];
    int terms = (n + 31) / 32;
    column<E>(a, stage, 0);
    for (int i = 0; i < terms; i += 32) {
        if (i + 16 < terms) column<E>(b, stage, i + 16);
        each<16>([&](int j) { sum = cb_fma(a[j], a[j], sum); });
        if (i + 16 >= terms) break;
        if (i + 32 < terms) column<E>(a, stage, i + 32);
        each<16>([&](int j) { sum = cb_fma(b[j], b[j], sum); });
    }
#pragma unroll
    for (int w = 16; w; w /= 2) sum = sum + __shfl_xor_sync(FULL, sum, w); /* the fold, which is the same from both sides */
    return sum;
}

/* ---- norms ---- */

/* What a row is multiplied by, for all threads. */
template <int E> __device__ __forceinline__ void sum_up(chain<E> &c, float eps)
{
    stage(c);
    __syncthreads();
    if (threadIdx.x < 32) {
        float ss = squares<E>(c.shared, c.a.width);
        float mean = c.a.inverse != 0 ? ss * c.a.inverse : ss / (float)c.a.width;
        float inv = 1.0f / sqrtf(mean + eps);
        if (threadIdx.x == 0) c.t.inv = inv;
    }
    __syncthreads();
    c.inv = c.t.inv;
}

template <int E> __device__ __forceinline__ void scale_row(chain<E> &c, const float *weight, const float (&w)[E])
{
    each<E>([&](int i) { c.v[i] = c.v[i] * c.inv; });
    if (weight) each<E>([&](int i) { c.v[i] = c.v[i] * w[i]; });
}

/* ---- Hadamard ---- */

/* One stride, whose other element is in lane ^ w. */
template <int N> __device__ __forceinline__ void across(float (&u)[N], int w)
{
    float sign = threadIdx.x & w ? -1.0f : 1.0f;
    each<N>([&](int k) { u[k] = cb_fma(u[k], sign, __shfl_xor_sync(FULL, u[k], w)); }); /* a + b below, a - b above */
}

/* R strides from 256 on, of E >> R sets of values a thread. */
template <int E, int R> __device__ __forceinline__ void wide_strides(float *stage, int n)
{
    if (threadIdx.x >= n / E) return;
#pragma unroll
    for (int m = 0; m < E >> R; m++) {
        int set = m * (n / E) + threadIdx.x, at = ((set >> 8) << (8 + R)) + (set & 255);
        float u[1 << R];
        each<1 << R>([&](int k) { u[k] = stage[place<E>(at + 256 * k)]; });
        cross(u, 1, 1 << R);
        each<1 << R>([&](int k) { stage[place<E>(at + 256 * k)] = u[k]; });
    }
}
/* Four of them: two lanes share 16, half a block apart. */
__device__ __forceinline__ void four_wide_strides(float *stage, int n)
{
    int t = threadIdx.x, at = (t >> 9) * 4096 + (t & 16) * 128 + (t >> 5 & 15) * 16 + (t & 15);
    float u[8];
    if (t >= n / 8) return; /* whole warps */
    each<8>([&](int k) { u[k] = stage[place<8>(at + 256 * k)]; });
    cross(u, 1, 8);
    across(u, 16);
    each<8>([&](int k) { stage[place<8>(at + 256 * k)] = u[k]; });
}

/* Strides below 256 that a thread's own elements do not reach: a warp has 32*E neighbours, a thread E that are E apart. Lanes hold the rest. */
template <int E> __device__ __forceinline__ void warp_strides(chain<E> &c, int block)
{
    int lane = threadIdx.x % 32, first = E * (threadIdx.x - lane) + (lane >> 3) * 64 + (lane & 7);
    float u[E];
    stage(c);
    __syncwarp();
    each<E>([&](int k) { u[k] = c.shared[place<E>(first + E * k)]; });
    cross(u, E, block);
    if (block > 64) across(u, 8);
    if (block > 128) across(u, 16);
    each<E>([&](int k) { c.shared[place<E>(first + E * k)] = u[k]; });
}

/* Strides ascend. Each pass stores where it has loaded. */
template <int E> __device__ __forceinline__ void rotate(chain<E> &c, int block)
{
    cross(c.v, 1, block);
    if (block <= E) return;
    warp_strides(c, block);
    if (block > 256) {
        int n = c.a.width;
        __syncthreads();
        if (block == 512) wide_strides<E, 1>(c.shared, n);
        else if (block == 1024) wide_strides<E, 2>(c.shared, n);
        else if (block == 2048) wide_strides<E, 3>(c.shared, n);
        else four_wide_strides(c.shared, n);
        __syncthreads();
    } else __syncwarp();
    unstage(c);
}
template <int E> __device__ __forceinline__ void hadamard(chain<E> &c, const cu_few_op &o, const float (&w)[E])
{
    if constexpr (E == 8) {
        if (o.w && !o.m) each<E>([&](int i) { c.v[i] = c.v[i] * w[i]; });
        rotate(c, o.n);
        each<E>([&](int i) { c.v[i] = c.v[i] * o.f; });
        if (o.w && o.m) each<E>([&](int i) { c.v[i] = c.v[i] * w[i]; });
    }
}

/* ---- fixed point ---- */

template <int E> struct ints {
    uint32_t t[E]; /* 16-bit numbers in the low halves */
    float dx;
    int sum;
};

template <int E> __device__ __forceinline__ uint32_t most_of(const float (&u)[E])
{
    uint32_t m[2] = {0, 0};
    each<E>([&](int i) { m[i & 1] = max(m[i & 1], __float_as_uint(u[i]) & 0x7fffffff); });
    return max(m[0], m[1]);
}

/* The numbers of a group, which L neighbouring lanes share; m: bits of this thread's largest magnitude. */
template <int E, int L> __device__ __forceinline__ void fix(const float (&u)[E], uint32_t m, ints<E> &r)
{
#pragma unroll
    for (int w = 1; w < L; w *= 2) m = max(m, __shfl_xor_sync(FULL, m, w));
    float most = __uint_as_float(m), inv = most < CB_TINY ? 0 : CB_XI_MAX / most;
    r.dx = most < CB_TINY ? 0 : most * CB_XI_INV;
    r.sum = 0;
    each<E>([&](int i) {
        r.t[i] = __float_as_uint(u[i] * inv + MAGIC);
        r.sum += (int)(r.t[i] - 0x4b400000u);
    });
#pragma unroll
    for (int w = 1; w < L; w *= 2) r.sum += __shfl_xor_sync(FULL, r.sum, w);
}

template <int N> __device__ __forceinline__ void put_bytes(int8_t *p, const uint32_t *w)
{
    if constexpr (N == 16) *(uint4 *)p = make_uint4(w[0], w[1], w[2], w[3]);
    else if constexpr (N == 8) *(uint2 *)p = make_uint2(w[0], w[1]);
    else if constexpr (N == 4) *(uint32_t *)p = w[0];
    else if constexpr (N == 2) *(uint16_t *)p = (uint16_t)w[0];
    else *(uint8_t *)p = (uint8_t)w[0];
}

/* p: place of the thread's first element. A byte of a weight holds P elements: so many planes, and the low halves behind them. */
template <int E, int P> __device__ __forceinline__ void put_planes(int8_t *p, const uint32_t (&t)[E])
{
    constexpr int N = E / P, WORDS = (N + 3) / 4;
#pragma unroll
    for (int j = 0; j < P; j++) {
        uint32_t lo[WORDS], hi[WORDS];
#pragma unroll
        for (int k = 0; k < WORDS; k++) {
            uint32_t a = t[j + 4 * P * k];
            lo[k] = a;
            hi[k] = a + 128 >> 8;
            if constexpr (N >= 2) {
                uint32_t b = t[j + 4 * P * k + P];
                lo[k] = __byte_perm(a, b, 0x0040);
                hi[k] = __byte_perm(a + 128, b + 128, 0x0051);
            }
            if constexpr (N >= 4) {
                uint32_t b = t[j + 4 * P * k + 2 * P], d = t[j + 4 * P * k + 3 * P];
                lo[k] = __byte_perm(lo[k], __byte_perm(b, d, 0x0040), 0x5410);
                hi[k] = __byte_perm(hi[k], __byte_perm(b + 128, d + 128, 0x0051), 0x5410);
            }
        }
        put_bytes<N>(p + 64 * j, hi);
        put_bytes<N>(p + 64 * (P + j), lo);
    }
}

/* To row `row` of the planes; e: the thread's first element in the whole row. */
template <int E> __device__ __forceinline__ void put(const chain<E> &c, const cu_planes &q, int row, int e, const ints<E> &r)
{
    if (2 * e >= q.stride) return;
    int8_t *p = q.planes + (size_t)row * q.stride;
    if (q.pack == 1) put_planes<E, 1>(p + 2 * (e & ~63) + (e & 63), r.t);
    else if (q.pack == 2) put_planes<E, 2>(p + 2 * (e & ~127) + (e & 127) / 2, r.t);
    else put_planes<E, 4>(p + 2 * (e & ~255) + (e & 255) / 4, r.t);
    if (c.e < c.a.width && (e & (q.group - 1)) == 0) {
        int g = row * q.n_groups + (e >> (31 - __clz(q.group)));
        q.dx[g] = r.dx;
        q.xs[g] = r.dx * (float)r.sum;
    }
}

/* The numbers of v, in groups of L lanes; or (remainder) those of what they leave of v. */
template <int E, int L> __device__ __forceinline__ void fix_both(const float (&v)[E], uint32_t m, bool remainder, ints<E> &r)
{
    fix<E, L>(v, m, r);
    if (!remainder) return;
    float u[E];
    each<E>([&](int i) { u[i] = r.dx != 0 ? rest(v[i], r.t[i], r.dx) : v[i]; });
    fix<E, L>(u, most_of(u), r);
}

/* Their place is the row's, or that of its remainder. n ops share them. */
template <int E> __device__ __forceinline__ void numbers(const chain<E> &c, const float (&v)[E], uint32_t m, const cu_few_op *o, int n, int e, bool remainder)
{
    ints<E> r;
    switch (o->u.q.group) {
    case 64: fix_both<E, 64 / E>(v, m, remainder, r); break;
    case 128: fix_both<E, 128 / E>(v, m, remainder, r); break;
    case 32: fix_both<E, 32 / E>(v, m, remainder, r); break;
    default: fix_both<E, 16 / E>(v, m, remainder, r);
    }
    for (int k = 0; k < n; k++) put(c, o[k].u.q, remainder ? o[k].u.q.n_rows + c.row : c.row, e, r);
}

/* ---- does a row have a remainder? ---- */

/* A warp's largest magnitude and sum of squares, for all warps. */
template <int E> __device__ __forceinline__ void tell(const chain<E> &c, uint32_t m)
{
    float s[2] = {0, 0};
    each<E>([&](int i) { s[i & 1] = cb_fma(c.v[i], c.v[i], s[i & 1]); });
    float sum = s[0] + s[1];
#pragma unroll
    for (int w = 16; w; w /= 2) sum += __shfl_xor_sync(FULL, sum, w);
    m = __reduce_max_sync(FULL, m);
    if (threadIdx.x % 32) return;
    ((uint32_t *)c.t.most[c.turn])[threadIdx.x / 32] = m;
    ((float *)c.t.squares[c.turn])[threadIdx.x / 32] = sum;
}
template <int E> __device__ __forceinline__ void hear(const chain<E> &c, uint32_t &most, float &sum)
{
    float4 s = make_float4(0, 0, 0, 0);
    most = 0;
    for (int w = 0; 128 * w < (int)blockDim.x; w++) {
        uint4 m = c.t.most[c.turn][w];
        float4 t = c.t.squares[c.turn][w];
        most = max(most, max(max(m.x, m.y), max(m.z, m.w)));
        s = make_float4(s.x + t.x, s.y + t.y, s.z + t.z, s.w + t.w);
    }
    sum = (s.x + s.y) + (s.z + s.w);
}

/* Rarely wanted: out of the way. */
template <int E> __device__ __noinline__ float squares_again(const float *stage, int n) { return squares<E>(stage, n); }

/* All threads agree. */
template <int E> __device__ __forceinline__ bool has_remainder(chain<E> &c, const cu_few_op &o)
{
    uint32_t most;
    float sum;
    __syncthreads();
    hear(c, most, sum);
    int w = wants(energy_of(most), sum, o.f);
    if (w >= 0) return w;
    stage(c);
    __syncthreads();
    if (threadIdx.x < 32) {
        float ss = squares_again<E>(c.shared, c.a.width);
        if (threadIdx.x == 0) c.t.more = energy_of(most) > o.f * ss;
    }
    __syncthreads();
    return c.t.more;
}

/* ---- a row in parts: the last part to be done decides, and makes the remainders of all from memory ---- */

/* The first warp of the last part: what all parts told. */
__device__ __forceinline__ bool join_parts(const cu_rows_few &a, cu_few_join &j, const cu_few_op &o, int row)
{
    uint32_t most = 0;
    float sum = 0;
    for (int p = 0; p < a.n_parts; p++) {
        most = max(most, __ldcg(&j.most[p]));
        sum += __ldcg(&j.squares[p]);
    }
    int w = wants(energy_of(most), sum, o.f);
    if (w >= 0) return w;
    const float *x = o.out + (size_t)row * o.out_stride;
    float ss = 0;
    for (int i = threadIdx.x % 32; i < a.n_parts * a.width; i += 32) {
        float u = __ldcg(x + i);
        ss = cb_fma(u, u, ss);
    }
    return energy_of(most) > o.f * lane_fold(ss);
}

template <int E> __device__ __forceinline__ bool ends_row(chain<E> &c, const cu_few_op *o, int n)
{
    cu_few_join &j = c.a.join[c.row];
    uint32_t most;
    float sum;
    __syncthreads();
    hear(c, most, sum);
    if (threadIdx.x < 32) {
        bool last = false;
        if (threadIdx.x == 0) {
            j.most[blockIdx.y] = most;
            j.squares[blockIdx.y] = sum;
            __threadfence();
            last = atomicAdd(&j.arrived, 1u) == (uint32_t)c.a.n_parts - 1;
            __threadfence();
        }
        last = __any_sync(FULL, last);
        __syncwarp();
        bool more = last && join_parts(c.a, j, *o, c.row);
        if (threadIdx.x == 0) {
            c.t.more = more;
            if (last) j.arrived = 0;
            for (int k = 0; k < n && last; k++) o[k].u.q.flag[c.row] = more;
        }
    }
    __syncthreads();
    return c.t.more;
}

/* A value that is quantised, in the same groups for n ops in a row. The remainder is made by the same code: it is rare. PARTS: the row may be
 * shared by several thread blocks. */
template <bool PARTS, int E> __device__ __forceinline__ void quant(chain<E> &c, const cu_few_op *o, int n)
{
    uint32_t m = most_of(c.v);
    if (o->u.q.flag) tell(c, m);
    if (m >= 0x7f800000u) report_bad(c.a.step, o->op);
    float u[E];
    each<E>([&](int i) { u[i] = c.v[i]; });
    int e = c.first + c.e, left = 0; /* remainders of parts to be made */
#pragma unroll 1
    for (bool more = false;;) {
        numbers(c, u, m, o, n, e, more);
        if (!more) {
            if (!o->u.q.flag) break;
            if (PARTS && c.a.n_parts > 1) more = ends_row(c, o, n);
            else {
                more = has_remainder(c, *o);
                for (int k = 0; k < n && threadIdx.x == 0; k++) o[k].u.q.flag[c.row] = more;
            }
            left = !more ? 0 : PARTS ? c.a.n_parts : 1;
        }
        if (left-- == 0) break;
        if (!PARTS || c.a.n_parts == 1) continue;
        e = left * c.a.width + c.e;
        each<E>([&](int i) { u[i] = c.e < c.a.width ? __ldcg(o->out + (size_t)c.row * o->out_stride + e + i) : 0; });
        m = most_of(u);
    }
    c.turn ^= 1;
}

/* ---- element by element ---- */

template <int E> __device__ __forceinline__ void glu(chain<E> &c, int act, const float (&b)[E])
{
    switch (act) {
    case CB_ACT_SILU: each<E>([&](int i) { c.v[i] = cb_siluf(c.v[i]) * b[i]; }); break;
    case CB_ACT_GELU_TANH: each<E>([&](int i) { c.v[i] = cb_gelu_tanhf(c.v[i]) * b[i]; }); break;
    default: each<E>([&](int i) { c.v[i] = cb_sigmoidf(c.v[i]) * b[i]; });
    }
}

/* Eight experts' loads are under way together. */
template <int E> __device__ __forceinline__ void moe_sum(chain<E> &c, const cu_few_op &o)
{
    const float *y = o.u.sum.y + (size_t)c.row * o.n * o.u.sum.y_stride + c.first + c.e;
    const float *w = o.u.sum.route + (size_t)c.row * o.u.sum.route_stride + o.n;
    size_t stride = o.u.sum.y_stride;
    each<E>([&](int i) { c.v[i] = 0; });
    if (c.e >= c.a.width) return;
    int j = 0;
    for (; j + 8 <= o.n; j += 8) {
        float weight[8];
        each<8>([&](int k) { weight[k] = w[j + k]; });
#pragma unroll
        for (int q = 0; q < E; q += 4) {
            float4 u[8];
            each<8>([&](int k) { u[k] = *(const float4 *)(y + (j + k) * stride + q); });
            each<8>([&](int k) {
                c.v[q] = cb_fma(weight[k], u[k].x, c.v[q]);
                c.v[q + 1] = cb_fma(weight[k], u[k].y, c.v[q + 1]);
                c.v[q + 2] = cb_fma(weight[k], u[k].z, c.v[q + 2]);
                c.v[q + 3] = cb_fma(weight[k], u[k].w, c.v[q + 3]);
            });
        }
    }
#pragma unroll 1
    for (; j < o.n; j++) {
        float u[E], weight = w[j];
        load(u, y + j * stride);
        each<E>([&](int i) { c.v[i] = cb_fma(weight, u[i], c.v[i]); });
    }
}

/* ---- beside the chain ---- */

/* Tables of cosines and sines. */
__device__ __forceinline__ void tables(const cu_rows_few &a, int row)
{
    for (int i = 0; a.side_mask >> i; i++) {
        if (!(a.side_mask >> i & 1)) continue;
        const cu_row_op &o = a.side[i];
        rope_table(o, a.step->pos[row], o.out + (size_t)row * o.out_stride);
    }
}

/* What needs nothing of it, by the thread block behind the parts. */
__device__ __noinline__ void side(const cu_rows_few &a, int row)
{
    if (a.has_route && threadIdx.x < 32) route(a.route, a.step, row);
    tables(a, row);
}

/* Before the launches ahead are done: what does not depend on them. */
template <int E> __device__ __forceinline__ void clear(float *shared, told &t)
{
    int n = E * (int)blockDim.x;
    for (int i = n + (int)threadIdx.x; i < (n + 511) / 512 * 512; i += blockDim.x) shared[i] = 0; /* behind the row */
    if (threadIdx.x < 2 * WARPS) ((uint32_t *)t.most)[threadIdx.x] = ((uint32_t *)t.squares)[threadIdx.x] = 0;
    __syncthreads();
}
#endif
