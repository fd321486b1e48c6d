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
    int e, n;        /* this thread's first element in the part; from n on there are only zeros */
    int turn;
    bool live;       /* false while the launches ahead are not done: nothing of theirs is read, nothing is written (row_chains.cu) */
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

/* The same if `now`, else zeros; without a jump, so that the code is there when it is (row_chains.cu). */
template <int E> __device__ __forceinline__ void load_if(float (&u)[E], const float *p, bool now)
{
#pragma unroll
    for (int q = 0; q < E; q += 4) {
        float4 x = get_float4(p + q, now);
        u[q] = x.x;
        u[q + 1] = x.y;
        u[q + 2] = x.z;
        u[q + 3] = x.w;
    }
}

/* This thread's share of row `row` of a value that launches make; and of a vector of the model. */
template <int E> __device__ __forceinline__ void fetch(const chain<E> &c, float (&u)[E], const float *p, int row, int stride)
{
    load_if(u, p + (size_t)row * stride + c.first + c.e, c.live && c.e < c.n);
}
template <int E> __device__ __forceinline__ void fetch_vector(const chain<E> &c, float (&u)[E], const float *p)
{
    each<E>([&](int i) { u[i] = 0; });
    if (c.e < c.n) load(u, p + c.first + c.e);
}

template <int E> __device__ __forceinline__ void embed(const chain<E> &c, float (&u)[E], const cu_few_op &o)
{
    static_assert(E == 8, "eight codes at once");
    each<E>([&](int i) { u[i] = 0; });
    if (c.live && c.e < c.n) decode8(o.u.embed, c.a.step->token[c.row], c.first + c.e, u);
    if (o.f != 1.0f) each<E>([&](int i) { u[i] = u[i] * o.f; });
}

/* What an op hands to other launches. */
template <int E> __device__ __forceinline__ void hand_out(const chain<E> &c, const cu_few_op &o)
{
    float *y = o.out + (size_t)c.row * o.out_stride + c.first + c.e;
#pragma unroll
    for (int q = 0; q < E; q += 4) put_float4((float4 *)(y + q), make_float4(c.v[q], c.v[q + 1], c.v[q + 2], c.v[q + 3]), o.out && c.live && c.e < c.n);
}

/* ---- the row where all threads see it ---- */

/* Element e's place in the shared row, so that these never meet in a bank: pieces of 4 of eight threads' E neighbours; 32 neighbours; and what
 * the passes of a Hadamard block load. Multiples of 32 elements are constants apart (up to 2048), so that code needs one address for many. */
__device__ __forceinline__ constexpr int place(int e) { return e + e / 32 * 4 + e / 2048 * 16; }

template <int E> __device__ __forceinline__ void stage(const chain<E> &c)
{
    float *p = c.shared + place(E * threadIdx.x);
#pragma unroll
    for (int q = 0; q < E; q += 4) *(float4 *)(p + q) = make_float4(c.v[q], c.v[q + 1], c.v[q + 2], c.v[q + 3]);
}

template <int E> __device__ __forceinline__ void unstage(chain<E> &c) { load(c.v, c.shared + place(E * threadIdx.x)); }

/* The lane tree of squares of the shared row, by one warp: N terms of a lane are added while the next N are on their way. There are zeros
 * up to a multiple of 512 elements, adding 0*0 changes nothing, and behind them room for 512 that are loaded only. */
template <int N = 16> __device__ __forceinline__ float squares(const float *stage, int n)
{
    enum { ELEMENTS = 32 * N };
    static_assert(2048 % (2 * ELEMENTS) == 0, "place()");
    uint32_t p = address(stage + threadIdx.x % 32);
    float sum = 0, a[N], b[N];
    each<N>([&](int j) { a[j] = lds_float(p + 4 * place(32 * j)); });
    for (int i = ELEMENTS;; i += 2 * ELEMENTS) { /* the next element to be loaded */
        p += 4 * place(ELEMENTS);
        each<N>([&](int j) {
            b[j] = lds_float(p + 4 * place(32 * j));
            sum = cb_fma(a[j], a[j], sum);
        });
        if (i >= n) break;
        p += 4 * place(ELEMENTS) + ((i + ELEMENTS) % 2048 == 0 ? 4 * 16 : 0);
        each<N>([&](int j) {
            a[j] = lds_float(p + 4 * place(32 * j));
            sum = cb_fma(b[j], b[j], sum);
        });
        if (i + ELEMENTS >= n) break;
    }
#pragma unroll
    for (int w = 16; w; w /= 2) sum = sum + __shfl_xor_sync(FULL, sum, w); /* the fold, which is the same from both sides */
    return sum;
}

/* ---- norms ---- */

/* What a row is multiplied by, for all threads. The weight comes meanwhile: earlier it would stand in registers that loads want. */
template <int E> __device__ __forceinline__ void sum_up(chain<E> &c, float eps, const float *weight, float (&w)[E])
{
    stage(c);
    if (weight) fetch_vector(c, w, weight);
    __syncthreads();
    if (threadIdx.x < 32) {
        float ss = squares(c.shared, c.a.width);
        float mean = __builtin_expect(c.a.inverse != 0, 1) ? ss * c.a.inverse : ss / (float)c.a.width;
        float inv = 1.0f / sqrtf(mean + eps);
        if (threadIdx.x == 0) c.t.inv = inv;
    }
    __syncthreads();
    c.inv = c.t.inv;
}

/* again: the row's squares are summed up already. */
template <int E> __device__ __forceinline__ void norm(chain<E> &c, const cu_few_op &o, bool again)
{
    float w[E];
    if (!again) sum_up(c, o.f, o.w, w);
    else if (o.w) fetch_vector(c, w, o.w);
    each<E>([&](int i) { c.v[i] = c.v[i] * c.inv; });
    if (o.w) each<E>([&](int i) { c.v[i] = c.v[i] * w[i]; });
}

/* ---- Hadamard ---- */

/* One stride, whose other element is in lane ^ w. */
template <int N> __device__ __forceinline__ void across(float (&u)[N], int w)
{
    float sign = threadIdx.x & w ? -1.0f : 1.0f;
    each<N>([&](int k) { u[k] = cb_fma(u[k], sign, __shfl_xor_sync(FULL, u[k], w)); }); /* a + b below, a - b above */
}

/* R strides from 256 on, of 8 >> R sets of values a thread. */
template <int R> __device__ __forceinline__ void wide_strides(float *stage, int n)
{
    if (threadIdx.x >= n / 8) return;
#pragma unroll
    for (int m = 0; m < 8 >> R; m++) {
        int set = m * (n / 8) + threadIdx.x;
        float u[1 << R], *p = stage + place(((set >> 8) << (8 + R)) + (set & 255));
        each<1 << R>([&](int k) { u[k] = p[place(256) * k]; });
        cross(u, 1, 1 << R);
        each<1 << R>([&](int k) { p[place(256) * k] = u[k]; });
    }
}
/* Four of them: two lanes share 16, half a block apart. */
__device__ __forceinline__ void four_wide_strides(float *stage, int n)
{
    int t = threadIdx.x;
    float u[8], *p = stage + place((t >> 9) * 4096 + (t & 16) * 128 + (t >> 5 & 15) * 16 + (t & 15));
    if (t >= n / 8) return; /* whole warps */
    each<8>([&](int k) { u[k] = p[place(256) * k]; });
    cross(u, 1, 8);
    across(u, 16);
    each<8>([&](int k) { p[place(256) * k] = u[k]; });
}

/* Strides below 256 that a thread's own elements do not reach: a warp has 256 neighbours, a thread 8 that are 8 apart. Lanes hold the rest. */
__device__ __forceinline__ void warp_strides(float *stage, int block)
{
    int lane = threadIdx.x % 32;
    float u[8], *p = stage + place(8 * (threadIdx.x - lane) + (lane >> 3) * 64 + (lane & 7));
    each<8>([&](int k) { u[k] = p[place(8 * k)]; });
    cross(u, 8, block);
    if (block > 64) across(u, 8);
    if (block > 128) across(u, 16);
    each<8>([&](int k) { p[place(8 * k)] = u[k]; });
}

/* Strides ascend. Each pass stores where it has loaded. */
__device__ __forceinline__ void rotate(chain<8> &c, int block)
{
    cross(c.v, 1, block);
    if (block <= 8) return;
    stage(c);
    __syncwarp();
    warp_strides(c.shared, block);
    if (block > 256) {
        int n = c.a.width;
        __syncthreads();
        if (block == 512) wide_strides<1>(c.shared, n);
        else if (block == 1024) wide_strides<2>(c.shared, n);
        else if (block == 2048) wide_strides<3>(c.shared, n);
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

/* CB_XI_MAX / most for CB_TINY <= most < 2^128, as IEEE has it: the steps of the compiler's own division, without its branch for what leaves the
 * normal range. Nothing does: an exact factor keeps large ones away from the end. */
__device__ __forceinline__ float steps_of(float most)
{
    float s = most < 0x1p64f ? 1.0f : 0x1p-64f, b = most * s, r = reciprocal_about(b);
    r = cb_fma(cb_fma(-b, r, 1.0f), r, r);
    float q = (float)CB_XI_MAX * r;
    return cb_fma(cb_fma(-b, q, (float)CB_XI_MAX), r, q) * s;
}

/* The numbers of a group, which `lanes` neighbouring lanes share; m: bits of its largest magnitude. */
template <int E> __device__ __forceinline__ void fix(const float (&u)[E], uint32_t m, int lanes, ints<E> &r)
{
    float most = __uint_as_float(m), inv = steps_of(most < CB_TINY ? CB_TINY : most);
    forget(inv); /* not only where it is wanted */
    inv = most < CB_TINY ? 0 : inv;
    r.dx = most < CB_TINY ? 0 : most * CB_XI_INV;
    r.sum = 0;
    each<E>([&](int i) {
        r.t[i] = __float_as_uint(u[i] * inv + MAGIC);
        r.sum += (int)(r.t[i] - 0x4b400000u);
    });
#pragma unroll
    for (int w = 1; w < 128 / E; w *= 2) {
        int other = __shfl_xor_sync(FULL, r.sum, w);
        r.sum += w < lanes ? other : 0;
    }
}

/* Bytes to planes that are 64 bytes apart, pack of them, if `now`; p: place of the first. Without jumps: all this code is fetched ahead. */
template <int E> __device__ __forceinline__ void put_planes(int8_t *p, int pack, const uint32_t (&w)[E / 4], bool now)
{
    if constexpr (E == 8) {
        uint32_t a = __byte_perm(w[0], w[1], pack == 1 ? 0x3210 : pack == 2 ? 0x6420 : 0x5140);
        uint32_t b = __byte_perm(w[0], w[1], pack == 1 ? 0x7654 : pack == 2 ? 0x7531 : 0x7362);
        put_u32(p, a, now && pack < 4);
        put_u32(p + (pack == 1 ? 4 : 64), b, now && pack < 4);
        put_u16(p, a, now && pack == 4);
        put_u16(p + 64, a >> 16, now && pack == 4);
        put_u16(p + 128, b, now && pack == 4);
        put_u16(p + 192, b >> 16, now && pack == 4);
    } else {
        uint32_t a = __byte_perm(w[0], 0, pack == 2 ? 0x3120 : 0x3210);
        put_u32(p, a, now && pack == 1);
        put_u16(p, a, now && pack == 2);
        put_u16(p + 64, a >> 16, now && pack == 2);
        if (now && pack == 4)
            for (int i = 0; i < 4; i++) p[64 * i] = (int8_t)(a >> 8 * i);
    }
}

/* To row `row` of the planes; e: the thread's first element in the whole row. A byte of a weight holds `pack` elements: so many planes of high
 * halves, and those of the low ones behind them. */
template <int E> __device__ __forceinline__ void put(const chain<E> &c, const cu_planes &q, int row, int e, const ints<E> &r)
{
    int in = e & (64 * q.pack - 1), g = row * q.n_groups + (e >> (31 - __clz(q.group)));
    int8_t *p = q.planes + (size_t)row * q.stride + 2 * (e - in) + (in >> (q.pack >> 1));
    uint32_t hi[E / 4], lo[E / 4];
#pragma unroll
    for (int k = 0; k < E / 4; k++) {
        const uint32_t *t = r.t + 4 * k;
        lo[k] = __byte_perm(__byte_perm(t[0], t[1], 0x0040), __byte_perm(t[2], t[3], 0x0040), 0x5410);
        hi[k] = __byte_perm(__byte_perm(t[0] + 128, t[1] + 128, 0x0051), __byte_perm(t[2] + 128, t[3] + 128, 0x0051), 0x5410);
    }
    bool now = c.live && 2 * e < q.stride, scale = now && c.e < c.a.width && (e & (q.group - 1)) == 0;
    put_planes<E>(p, q.pack, hi, now);
    put_planes<E>(p + 64 * q.pack, q.pack, lo, now);
    put_u32(q.dx + g, __float_as_uint(r.dx), scale);
    put_u32(q.xs + g, __float_as_uint(r.dx * (float)r.sum), scale);
}

/* ---- does a row have a remainder? ---- */

/* A warp's largest magnitude and sum of squares, for all warps; and what all of them told. */
template <int E> __device__ __forceinline__ void tell(const chain<E> &c, uint32_t most, float sum)
{
    if (threadIdx.x % 32) return;
    ((uint32_t *)c.t.most[c.turn])[threadIdx.x / 32] = most;
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

/* All threads agree. */
template <int E> __device__ __forceinline__ bool has_remainder(chain<E> &c, const cu_few_op &o)
{
    uint32_t most;
    float sum;
    __syncthreads();
    hear(c, most, sum);
    int w = wants(energy_of(most), sum, o.f);
    if (__builtin_expect(w >= 0, 1)) return w;
    stage(c);
    __syncthreads();
    if (threadIdx.x < 32) { /* rarely: short code */
        float ss = 0;
#pragma unroll 1
        for (int i = threadIdx.x; i < c.a.width; i += 32) ss = cb_fma(c.shared[place(i)], c.shared[place(i)], ss);
        ss = lane_fold(ss);
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

/* A value that is quantised, in the same groups for n ops in a row. PARTS: the row may be shared by several thread blocks; the last one to be
 * done makes the remainders of all parts, from memory. That is rare, so it is done by the same code: what a launch has not fetched of its code
 * costs more than the steps themselves. */
template <bool PARTS, int E> __device__ __forceinline__ void quant(chain<E> &c, const cu_few_op *o, int n)
{
    enum { ROW, PART, REST } what = ROW; /* what u is: rests of parts that are not this block's begin with the part */
    int e = c.first + c.e, left = 0, lanes = o->u.q.group / E;
    float u[E];
    each<E>([&](int i) { u[i] = c.v[i]; });
#pragma unroll 1
    for (;;) {
        uint32_t m = most_of(u), most = __reduce_max_sync(FULL, m);
        float sum[2] = {0, 0};
        each<E>([&](int i) { sum[i & 1] = cb_fma(u[i], u[i], sum[i & 1]); });
        sum[0] += sum[1];
#pragma unroll
        for (int w = 1; w < 32; w *= 2) { /* side by side */
            sum[0] += __shfl_xor_sync(FULL, sum[0], w);
            uint32_t other = w < 128 / E ? __shfl_xor_sync(FULL, m, w) : 0;
            m = max(m, w < lanes ? other : 0);
        }
        ints<E> r;
        fix(u, m, lanes, r);
        if (what == ROW) {
            tell(c, most, sum[0]);
            if (__builtin_expect(most >= 0x7f800000u, 0)) report_bad(c.a.step, o->op);
        }
        for (int k = 0; k < n && what != PART; k++) put(c, o[k].u.q, what == REST ? o[k].u.q.n_rows + c.row : c.row, e, r);
        if (what == ROW && o->u.q.flag) {
            bool more;
            if (PARTS && c.a.n_parts > 1) more = c.live && ends_row(c, o, n);
            else {
                more = has_remainder(c, *o);
                for (int k = 0; k < n; k++) put_u32(o[k].u.q.flag + c.row, more, threadIdx.x == 0 && c.live);
            }
            left = !more ? 0 : PARTS ? c.a.n_parts : 1;
        }
        if (__builtin_expect(what != PART && left == 0, 1)) break;
        if (PARTS && c.a.n_parts > 1 && what != PART) {
            what = PART;
            e = --left * c.a.width + c.e;
            each<E>([&](int i) { u[i] = c.e < c.a.width ? __ldcg(o->out + (size_t)c.row * o->out_stride + e + i) : 0; });
            continue;
        }
        if (!PARTS || c.a.n_parts == 1) left = 0;
        what = REST;
        each<E>([&](int i) { u[i] = r.dx != 0 ? rest(u[i], r.t[i], r.dx) : u[i]; });
    }
    c.turn ^= 1;
}

/* ---- element by element ---- */

__device__ __noinline__ float divide_slowly(float a, float b) { return a / b; }

/* a / b as IEEE has it: the steps are those of the compiler's own division, which has a branch for what leaves the normal range in each. Here
 * E of them stand side by side and one question is asked for all: no power of two between 2^-63 and 2^63 takes anything out of it. */
template <int E> __device__ __forceinline__ void divide(float (&q)[E], const float (&a)[E], const float (&b)[E])
{
    bool usual = true;
    auto fits = [](float x) { return (__float_as_uint(x) & 0x7fffffff) - 0x20000000u < 0x3f000000u; };
    each<E>([&](int i) { usual &= (fits(a[i]) || __float_as_uint(a[i]) == 0) && fits(b[i]); });
    if (__builtin_expect(usual, 1)) each<E>([&](int i) {
        float r = reciprocal_about(b[i]);
        r = cb_fma(cb_fma(-b[i], r, 1.0f), r, r);
        float t = a[i] * r;
        q[i] = cb_fma(cb_fma(-b[i], t, a[i]), r, t);
    });
    else each<E>([&](int i) { q[i] = divide_slowly(a[i], b[i]); });
}

/* All activations are a division by 1 + e^something (kernels/num.h). */
template <int E> __device__ __forceinline__ void glu(chain<E> &c, int act, const float (&b)[E])
{
    float x[E], a[E], d[E];
    each<E>([&](int i) { x[i] = -c.v[i]; });
    if (act == CB_ACT_GELU_TANH) each<E>([&](int i) { x[i] = (c.v[i] * -1.5957691216057308f) * cb_fma(c.v[i] * c.v[i], 0.044715f, 1.0f); });
    each<E>([&](int i) {
        d[i] = 1.0f + cb_expf(x[i]);
        a[i] = act == CB_ACT_SILU || act == CB_ACT_GELU_TANH ? c.v[i] : 1.0f;
    });
    divide(x, a, d);
    each<E>([&](int i) { c.v[i] = x[i] * b[i]; });
}

/* The loads of N experts, 4 or 8, are under way together, of a lane beyond the row those of its beginning. */
template <int N, int E> __device__ __forceinline__ void moe_sum(chain<E> &c, const cu_few_op &o)
{
    bool in = c.e < c.n;
    const float *y = o.u.sum.y + (size_t)c.row * o.n * o.u.sum.y_stride + c.first + (in ? c.e : 0);
    const float *w = o.u.sum.route + (size_t)c.row * o.u.sum.route_stride + o.n;
    size_t stride = o.u.sum.y_stride;
    int j = 0;
    each<E>([&](int i) { c.v[i] = 0; });
    for (; j + N <= o.n; j += N) {
        float weight = c.live ? w[j + threadIdx.x % N] : 0, u[N][E]; /* one register for all weights */
        each<N>([&](int k) {
            load_if(u[k], y, c.live);
            y += stride;
        });
        each<N>([&](int k) {
            float by = __shfl_sync(FULL, weight, k);
            each<E>([&](int i) { c.v[i] = cb_fma(by, u[k][i], c.v[i]); });
        });
    }
#pragma unroll 1
    for (; j < o.n && c.live; j++) {
        float u[E];
        load(u, y);
        each<E>([&](int i) { c.v[i] = cb_fma(w[j], u[i], c.v[i]); });
        y += stride;
    }
    if (!in) each<E>([&](int i) { c.v[i] = 0; });
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
__device__ __noinline__ void side(const cu_rows_few &a, int row, float *shared)
{
    if (a.has_route && threadIdx.x < 32) route(a.route, a.step, row, (uint2 *)shared, true);
    tables(a, row);
}

/* Before the launches ahead are done: what does not depend on them. */
template <int E> __device__ __forceinline__ void clear(float *shared, told &t)
{
    int n = E * (int)blockDim.x;
    for (int i = n + (int)threadIdx.x; i < (n + 511) / 512 * 512; i += blockDim.x) shared[place(i)] = 0; /* behind the row */
    if (threadIdx.x < 2 * WARPS) ((uint32_t *)t.most)[threadIdx.x] = ((uint32_t *)t.squares)[threadIdx.x] = 0;
    __syncthreads();
}
#endif
