/* row_clusters.cu: chains of few.cuh on the only row of a step, which the thread blocks of a cluster share (CU_CLUSTERS in abi.h), and branches
 * of a chain side by side. One multiprocessor takes several thousand cycles for a row; a part of it has a warp or two for each scheduler, and
 * what is left are the latencies of its instructions. What parts have to tell each other - a row whose squares are summed, the partial results of
 * a Hadamard block that is wider than a part, each warp's largest magnitude and sum of squares - goes from registers straight into the others'
 * shared memory, whose barriers count the bytes. A thread has 8 neighbouring elements. Each chain runs twice (row_chains.cu): with zeros while
 * the launches ahead are not done, then with the row. Every barrier is used once. */
#include "cuda/few.cuh"
#include <utility>

enum { E = 8, WIDEST = CU_CLUSTER_WIDTH / 1024 }; /* parts of a row whose squares are summed */

/* ---- a chain at compile time: which of its ops a branch has ---- */

template <int... LINKS> struct ops {
    static constexpr int n = sizeof...(LINKS);
    __device__ static constexpr int link(int i)
    {
        constexpr int all[] = {LINKS...};
        return all[i];
    }
    __device__ static constexpr int kind(int i) { return link(i) / 8; }
    __device__ static constexpr int from(int i) { return link(i) & 3; }
    __device__ static constexpr bool again(int i) { return link(i) & CU_AGAIN; }
    /* Does norm i of the branch add up the squares? Not if the norm of the same value before it is there. */
    __device__ static constexpr bool sums(int mask, int i)
    {
        if (kind(i) != CB_RMSNORM || !(mask >> i & 1)) return false;
        for (int j = i - 1; j >= 0 && again(i); j--)
            if (kind(j) == CB_RMSNORM && !again(j)) return !(mask >> j & 1);
        return true;
    }
    __device__ static constexpr int sums_before(int mask, int i)
    {
        int k = 0;
        for (int j = 0; j < i; j++) k += sums(mask, j);
        return k;
    }
    /* How many quantisations from number i on have the same numbers. */
    __device__ static constexpr int same(int i)
    {
        int k = 1;
        while (i + k < n && kind(i + k) == CB_QUANT && again(i + k)) k++;
        return k;
    }
    /* Does an op take a value that an earlier one kept? */
    __device__ static constexpr bool keeps()
    {
        for (int i = 0; i < n; i++)
            if (from(i) == CU_FROM_KEPT) return true;
        return false;
    }
};

/* ---- parts ---- */

struct part : chain<E> {
    int rank, parts;    /* this thread block's number, and how many there are */
    int whole;          /* elements of the row */
    float inverse;      /* 1 / whole where that is exact, else 0 */
    int width, warps;   /* of each: elements, of which the last may have fewer; warps */
    int round;          /* 0: ahead, 1: with the row */
    uint32_t at;        /* of the shared memory */
    uint32_t rows, room; /* of rows whose squares are summed: where, and bytes of each */
    uint32_t mine, theirs; /* for Hadamard blocks */
    uint32_t words, bells; /* of the thread block with this lane's number: where this warp's words go, and the barriers */
};

__device__ __forceinline__ uint32_t own_word(const part &p) { return p.at + CU_CLUSTER_ROWS + 4 * threadIdx.x; } /* before anything else is there */
__device__ __forceinline__ uint32_t barrier_of(const part &p, int op) { return p.at + 8 * (CU_FEW_OPS * p.round + op); }
/* A part is a multiple of 256 elements: a place is the part's and a constant. */
__device__ __forceinline__ uint32_t row_place(int e) { return 4 * place(e); }

__device__ __forceinline__ void send(uint32_t to, const float (&v)[E], uint32_t second, uint32_t barrier)
{
    send16(to, v[0], v[1], v[2], v[3], barrier);
    send16(to + second, v[4], v[5], v[6], v[7], barrier);
}
__device__ __forceinline__ void put8(uint32_t at, const float (&v)[E], uint32_t second)
{
    sts_float4(at, v[0], v[1], v[2], v[3]);
    sts_float4(at + second, v[4], v[5], v[6], v[7]);
}
__device__ __forceinline__ void get8(float (&v)[E], uint32_t at, uint32_t second)
{
    float4 a = lds_float4(at), b = lds_float4(at + second);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
    v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

/* ---- what an op takes from memory: where it is, before the launches ahead are done; then its values ---- */

struct input {
    const float *x, *b, *gate;
    float *out;
    float v[E], u[E], w[E], one, f;
    int n, mixed;       /* mixed: parts that share a Hadamard block */
    float others[WIDEST - 1][E]; /* parts of a row whose squares are summed, from the next rank on */
};

template <class O, int MASK, int I> __device__ __forceinline__ void load_constants(const part &p, const cu_few_op &o, input &in)
{
    constexpr int K = O::kind(I);
    if constexpr (!(MASK >> I & 1)) return;
    int e = p.first + p.e;
    in.f = held(o.f, own_word(p));
    in.n = held(o.n, own_word(p));
    if constexpr (K != CB_QUANT) {
        in.out = o.out && p.e < p.n ? o.out + e : NULL;
        hold(in.out);
    }
    if constexpr (O::from(I) == CU_FROM_MEM && K != CB_MOE_SUM) hold(in.x = o.x + e);
    if constexpr ((K == CB_ADD && O::from(I) != CU_FROM_KEPT) || K == CB_ADD_GATED || K == CB_GLU) hold(in.b = o.b + e);
    if constexpr (K == CB_ADD_GATED) hold(in.gate = o.w);
    if constexpr (K == CB_HADAMARD) in.mixed = held(max(o.n / p.a.width, 1), own_word(p));
    if constexpr (K == CB_HADAMARD || K == CB_RMSNORM) {
        each<E>([&](int i) { in.w[i] = 1; }); /* times which a number stays as it is */
        if (o.w) fetch_vector(p, in.w, o.w);
    }
    if constexpr (K == CB_SCALE) in.one = o.w ? *o.w : o.f;
}

template <class O, int MASK, int I> __device__ __forceinline__ void load_row(const part &p, const cu_few_op &o, input &in)
{
    constexpr int K = O::kind(I);
    if constexpr (!(MASK >> I & 1)) return;
    bool here = p.live && p.e < p.n;
    if constexpr (O::from(I) == CU_FROM_MEM && K != CB_MOE_SUM) {
        each<E>([&](int i) { in.v[i] = 0; });
        if (here) load(in.v, in.x);
    }
    if constexpr (O::from(I) == CU_FROM_MEM && K == CB_RMSNORM)
#pragma unroll
        for (int k = 1; k < WIDEST; k++) {
            int other = p.rank + k < p.parts ? k : k - p.parts;
            each<E>([&](int i) { in.others[k - 1][i] = 0; });
            if (p.live && k < p.parts && p.first + p.e + other * p.width < p.whole) load(in.others[k - 1], in.x + other * p.width);
        }
    if constexpr ((K == CB_ADD && O::from(I) != CU_FROM_KEPT) || K == CB_ADD_GATED || K == CB_GLU) {
        each<E>([&](int i) { in.u[i] = 0; });
        if (here) load(in.u, in.b);
    }
    if constexpr (K == CB_ADD_GATED) in.one = p.live ? *in.gate : 0;
    if constexpr (K == CB_EMBED) embed(p, in.v, o);
}

/* ---- norms ---- */

/* What the row is multiplied by. Every thread block adds up all of it: the order is fixed. MEMORY: it has loaded the row; else parts send theirs. */
template <bool MEMORY> __device__ __forceinline__ void sum_up(part &p, const input &in, int op, int number)
{
    uint32_t row = p.rows + (number & 1) * p.room, inv = p.at + CU_CLUSTER_NORM + 4 * (number & 1);
    int e = p.first + p.e;
    if constexpr (MEMORY) {
        put8(row + row_place(e), p.v, 16);
#pragma unroll
        for (int k = 1; k < WIDEST; k++)
            if (k < p.parts) put8(row + row_place(e + (p.rank + k < p.parts ? k : k - p.parts) * p.width), in.others[k - 1], 16);
        __syncthreads();
    } else {
        uint32_t to = row + row_place(e), b = barrier_of(p, op);
#pragma unroll 1
        for (int k = 0; k < p.parts; k++) send(of_rank(to, k), p.v, 16, of_rank(b, k));
    }
    if (threadIdx.x < 32) {
        if constexpr (!MEMORY) barrier_wait(barrier_of(p, op), 0);
        float ss = squares(p.shared + (row - p.at) / 4, p.whole);
        float mean = __builtin_expect(p.inverse != 0, 1) ? ss * p.inverse : ss / (float)p.whole;
        float by = 1.0f / sqrtf(mean + in.f);
        if (threadIdx.x == 0) sts_float(inv, by);
    }
    __syncthreads();
    p.inv = lds_float(inv);
}

/* ---- Hadamard ---- */

/* Of partial results of two or four thread blocks, `step` bytes apart, the sums and differences that end at those of number `me`. */
__device__ __forceinline__ void join(float (&v)[E], uint32_t at, uint32_t step, uint32_t second, int me, int n)
{
    float first = me & 1 ? -1.0f : 1.0f, next = me & 2 ? -1.0f : 1.0f;
    float a[E], b[E];
    get8(v, at, second);
    get8(a, at + step, second);
    each<E>([&](int i) { v[i] = cb_fma(a[i], first, v[i]); });
    if (n == 2) return;
    get8(a, at + 2 * step, second);
    get8(b, at + 3 * step, second);
    each<E>([&](int i) { v[i] = cb_fma(cb_fma(b[i], first, a[i]), next, v[i]); });
}

/* Strides ascend: within a thread, a warp, the thread block, the cluster, of which n parts share a block. Blocks are of 256 elements or more. Rolled up: code costs more than loops. */
__device__ __forceinline__ void rotate(part &p, int block, int n, int op)
{
    int width = p.width, t = threadIdx.x;
    uint32_t half = 2 * width; /* bytes of half of the part's elements */
    cross(p.v, 1, E);
#pragma unroll 1
    for (int w = 1; w < 32; w *= 2) across(p.v, w);
#pragma unroll 1
    for (int w = 32; E * w < block && E * w < width; w *= 2) {
        float sign = t & w ? -1.0f : 1.0f, other[E];
        put8(p.mine + 16 * t, p.v, half);
        __syncthreads();
        get8(other, p.mine + 16 * (t ^ w), half);
        each<E>([&](int i) { p.v[i] = cb_fma(p.v[i], sign, other[i]); });
        __syncthreads();
    }
    if (n > 1) {
        int me = p.rank & (n - 1);
        uint32_t to = p.theirs + me * 2 * half + 16 * t, b = barrier_of(p, op);
#pragma unroll 1
        for (int k = p.rank - me; k < p.rank - me + n; k++) send(of_rank(to, k), p.v, half, of_rank(b, k));
        barrier_wait(b, 0);
        join(p.v, p.theirs + 16 * t, 2 * half, half, me, n);
    }
}

/* ---- fixed point ---- */

/* Where a quantisation's numbers go, two at a time - high bytes at one place of these, low ones `low` behind - and scales; NULL: this thread has
 * none of them. A byte of a weight holds `pack` elements, so that neighbours of each have planes of their own. */
struct target {
    int8_t *two[4];
    float *dx, *xs;
    int low, order[2]; /* of bytes, for __byte_perm */
};

/* What stands for all quantisations of the same numbers. */
struct numbers {
    int lanes;   /* of a group */
    float share;
    int asks;    /* a row may have a remainder */
};

__device__ __forceinline__ target target_of(const part &p, const cu_planes &q)
{
    int e = p.first + p.e, in = e & (64 * q.pack - 1), g = e >> (31 - __clz(q.group)), pack = q.pack;
    bool scale = p.e < p.n && (e & (q.group - 1)) == 0;
    int8_t *at = q.planes + 2 * (e - in) + (in >> (pack >> 1));
    target t;
    for (int i = 0; i < 4; i++) {
        t.two[i] = 2 * e < q.stride ? at + (pack == 1 ? 2 * i : pack == 2 ? i / 2 * 64 + i % 2 * 2 : 64 * i) : NULL;
        hold(t.two[i]);
    }
    t.dx = scale ? q.dx + g : NULL;
    t.xs = q.xs + g;
    hold(t.dx);
    hold(t.xs);
    t.low = held(64 * pack, own_word(p));
    t.order[0] = pack == 1 ? 0x3210 : pack == 2 ? 0x6420 : 0x5140;
    t.order[1] = pack == 1 ? 0x7654 : pack == 2 ? 0x7531 : 0x7362;
    return t;
}

__device__ __forceinline__ void put(const part &p, const target &t, const ints<E> &r)
{
    uint32_t hi[2], lo[2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const uint32_t *v = r.t + 4 * k;
        lo[k] = __byte_perm(__byte_perm(v[0], v[1], 0x0040), __byte_perm(v[2], v[3], 0x0040), 0x5410);
        hi[k] = __byte_perm(__byte_perm(v[0] + 128, v[1] + 128, 0x0051), __byte_perm(v[2] + 128, v[3] + 128, 0x0051), 0x5410);
    }
    bool now = p.live && t.two[0];
#pragma unroll
    for (int k = 0; k < 2; k++) {
        uint32_t a = __byte_perm(hi[0], hi[1], t.order[k]), b = __byte_perm(lo[0], lo[1], t.order[k]);
        if (now) {
            *(uint16_t *)t.two[2 * k] = (uint16_t)a;
            *(uint16_t *)t.two[2 * k + 1] = (uint16_t)(a >> 16);
            *(uint16_t *)(t.two[2 * k] + t.low) = (uint16_t)b;
            *(uint16_t *)(t.two[2 * k + 1] + t.low) = (uint16_t)(b >> 16);
        }
    }
    if (p.live && t.dx) *t.dx = r.dx, *t.xs = r.dx * (float)r.sum;
}

/* What all warps told. */
__device__ __forceinline__ void hear(const part &p, int op, uint32_t &most, float &sum)
{
    int n = p.parts * p.warps;
    uint32_t at = p.at + CU_CLUSTER_WORDS + 512 * p.round;
    most = 0;
    sum = 0;
    barrier_wait(barrier_of(p, op), 0);
#pragma unroll 1
    for (int i = threadIdx.x & 31; i < n; i += 32) {
        uint32_t v[2];
        lds<2>(v, at + 8 * i);
        most = max(most, v[0]);
        sum += __uint_as_float(v[1]);
    }
    most = __reduce_max_sync(FULL, most);
#pragma unroll
    for (int w = 1; w < 32; w *= 2) sum += __shfl_xor_sync(FULL, sum, w);
}

/* Rarely: the comparison with the lane tree of squares of the row, of which all parts have put theirs at `row`, in halves of eight. word: for the answer. */
__device__ __noinline__ bool look_closely(uint32_t row, int width, int whole, float energy, float share, uint32_t word)
{
    cluster_meet();
    if (threadIdx.x < 32) {
        float ss = 0;
        for (int i = threadIdx.x; i < whole; i += 32) {
            int k = i % width;
            float u = cluster_float(of_rank(row + (k & 4 ? 2 * width : 0) + k / 8 * 16 + k % 4 * 4, i / width));
            ss = cb_fma(u, u, ss);
        }
        ss = lane_fold(ss);
        sts_float(word, energy > share * ss ? 1.0f : 0.0f);
    }
    __syncthreads();
    bool more = lds_float(word) != 0;
    cluster_meet(); /* none is gone, or writes there, while others read */
    return more;
}

/* As in few.cuh: the same code makes the remainder, when there is one. N: quantisations of the same numbers. */
template <int N> __device__ __forceinline__ void quant(part &p, const cu_few_op *o, const numbers &a, target (&to)[2], int op)
{
    bool rests = false;
#pragma unroll 1
    for (;;) {
        uint32_t m = most_of(p.v), most = __reduce_max_sync(FULL, m);
        float sum[2] = {0, 0};
        each<E>([&](int i) { sum[i & 1] = cb_fma(p.v[i], p.v[i], sum[i & 1]); });
        sum[0] += sum[1];
#pragma unroll
        for (int w = 1; w < 32; w *= 2) { /* side by side */
            sum[0] += __shfl_xor_sync(FULL, sum[0], w);
            uint32_t other = w < 128 / E ? __shfl_xor_sync(FULL, m, w) : 0;
            m = max(m, w < a.lanes ? other : 0);
        }
        bool asks = a.asks && !rests;
        if (asks && p.words) send8(p.words + 512 * p.round, most, __float_as_uint(sum[0]), p.bells + 8 * (CU_FEW_OPS * p.round + op));
        ints<E> r;
        fix(p.v, m, a.lanes, r);
        each<N>([&](int k) { put(p, to[k], r); });
        if (__builtin_expect(most >= 0x7f800000u, 0)) report_bad(p.a.step, o->op);
        if (!asks) break;
        hear(p, op, most, sum[1]);
        float energy = energy_of(most);
        int want = wants(energy, sum[1], a.share);
        bool more = want > 0;
        if (__builtin_expect(want < 0, 0)) {
            put8(p.mine + 16 * threadIdx.x, p.v, 2 * p.width);
            more = look_closely(p.mine, p.width, p.whole, energy, a.share, p.at + CU_CLUSTER_NORM + 8);
        }
        if (p.live && p.rank == 0 && threadIdx.x == 0) each<N>([&](int k) { o[k].u.q.flag[0] = more; });
        if (__builtin_expect(!more, 1)) break;
        rests = true;
        each<N>([&](int k) {
            const cu_planes &q = o[k].u.q;
            for (int i = 0; i < 4; i++)
                if (to[k].two[i]) to[k].two[i] += (size_t)q.n_rows * q.stride;
            if (to[k].dx) to[k].dx += (size_t)q.n_rows * q.n_groups;
            to[k].xs += (size_t)q.n_rows * q.n_groups;
        });
        each<E>([&](int i) { p.v[i] = r.dx != 0 ? rest(p.v[i], r.t[i], r.dx) : p.v[i]; });
    }
}

/* ---- a chain ---- */

/* kept: the value that later ops take once more. OUT: the ops whose results this branch hands out. */
template <class O, int MASK, int OUT, int I>
__device__ __forceinline__ void link(part &p, const cu_few_op *o, const input &in, const numbers &a, target (&to)[2], float (&kept)[E])
{
    constexpr int K = O::kind(I), FROM = O::from(I);
    if constexpr (!(MASK >> I & 1)) return;
    if constexpr ((FROM == CU_FROM_MEM && K != CB_MOE_SUM) || K == CB_EMBED) each<E>([&](int i) { p.v[i] = in.v[i]; });
    if constexpr (FROM == CU_FROM_KEPT && K != CB_ADD) each<E>([&](int i) { p.v[i] = kept[i]; });
    if constexpr (K == CB_QUANT) {
        if constexpr (!O::again(I)) quant<O::same(I)>(p, o, a, to, I);
        return;
    }
    if constexpr (K == CB_RMSNORM) {
        if constexpr (O::sums(MASK, I)) sum_up<FROM == CU_FROM_MEM>(p, in, I, O::sums_before(MASK, I));
        each<E>([&](int i) { p.v[i] = (p.v[i] * p.inv) * in.w[i]; });
    }
    if constexpr (K == CB_HADAMARD) {
        constexpr bool BACK = I && O::kind(I - (I > 0)) == CB_EMBED; /* signs behind it: few.c */
        if constexpr (!BACK) each<E>([&](int i) { p.v[i] = p.v[i] * in.w[i]; });
        rotate(p, in.n, in.mixed, I);
        each<E>([&](int i) { p.v[i] = p.v[i] * in.f; });
        if constexpr (BACK) each<E>([&](int i) { p.v[i] = p.v[i] * in.w[i]; });
    }
    if constexpr (K == CB_GLU) glu(p, in.n, in.u);
    if constexpr (K == CB_ADD) each<E>([&](int i) { p.v[i] = p.v[i] + (FROM == CU_FROM_KEPT ? kept[i] : in.u[i]); });
    if constexpr (K == CB_ADD_GATED) {
        float g = cb_sigmoidf(in.one);
        each<E>([&](int i) { p.v[i] = cb_fma(g, in.u[i], p.v[i]); });
    }
    if constexpr (K == CB_SCALE) each<E>([&](int i) { p.v[i] = p.v[i] * in.one; });
    if constexpr (K == CB_MOE_SUM) moe_sum<8>(p, *o);
    if constexpr (O::keeps())
        if (o->keep >= 0) each<E>([&](int i) { kept[i] = p.v[i]; });
    if constexpr (OUT >> I & 1)
        if (p.live && in.out) {
            *(float4 *)in.out = make_float4(p.v[0], p.v[1], p.v[2], p.v[3]);
            *(float4 *)(in.out + 4) = make_float4(p.v[4], p.v[5], p.v[6], p.v[7]);
        }
}

/* Barriers, and how many bytes each waits for; zeros behind a row whose squares are summed. Then all parts know of each other. */
template <class O, int MASK> __device__ __forceinline__ void prepare(const part &p)
{
    constexpr int SUMS = O::sums_before(MASK, O::n);
    int op = (int)threadIdx.x % CU_FEW_OPS, threads = blockDim.x;
    if (threadIdx.x < 2 * CU_FEW_OPS && op < O::n) {
        int kind = p.a.o[op].kind, parts = p.parts;
        if (kind == CB_HADAMARD) parts = max(p.a.o[op].n / p.a.width, 1);
        barrier_init(p.at + 8 * threadIdx.x, 1);
        barrier_expect(p.at + 8 * threadIdx.x, (uint32_t)parts * (kind == CB_QUANT ? threads / 32 * 8 : threads * 32));
    }
    int n = p.parts * p.a.width, end = (n + 511) / 512 * 512;
    for (int k = 0; k < (SUMS > 1 ? 2 : SUMS); k++)
        for (int i = n + (int)threadIdx.x; i < end; i += threads) sts_float(p.rows + k * p.room + row_place(i), 0);
    cluster_begin();
}

template <class O, int MASK, int OUT, int... I> __device__ __forceinline__ void run(const cu_rows_few &a, float *shared, std::integer_sequence<int, I...>)
{
#if __CUDA_ARCH__ >= 900
    constexpr int SUMS = O::sums_before(MASK, O::n);
    constexpr bool FIRST = O::kind(0) == CB_EMBED; /* of a step: there is nothing to wait for */
    int rank = cluster_rank(), e = E * (int)threadIdx.x, at = address(shared), own = at + CU_CLUSTER_ROWS + 4 * (int)threadIdx.x;
    part p = {{a, shared, *(told *)shared, 0, rank * a.width, e, min(a.width, a.whole - rank * a.width), 0, FIRST, 0, {}}, rank, held(a.n_parts, own), held(a.whole, own), held(a.inverse, own), held(a.width, own),
              held((int)(blockDim.x / 32), own), FIRST, (uint32_t)at};
    p.rows = p.at + CU_CLUSTER_ROWS;
    p.room = CU_FEW_ROOM(p.parts * a.width) * 128;
    p.mine = p.rows + (SUMS > 1 ? 2 : SUMS) * p.room;
    p.theirs = p.mine + 4 * a.width;
    int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    p.words = (lane < p.parts ? of_rank(p.at + CU_CLUSTER_WORDS + 8 * (rank * (int)(blockDim.x / 32) + warp), lane) : 0);
    p.bells = of_rank(p.at, lane < p.parts ? lane : 0);
    input in[O::n];
    numbers sizes[O::n];
    target to[O::n][2];
    float kept[E];
    (load_constants<O, MASK, I>(p, a.o[I], in[I]), ...);
    ([&] {
        if constexpr (O::kind(I) == CB_QUANT && !O::again(I) && (MASK >> I & 1)) {
            for (int k = 0; k < O::same(I); k++) to[I][k] = target_of(p, a.o[I + k].u.q);
            sizes[I] = {held(a.o[I].u.q.group / E, own), held(a.o[I].f, own), held((int)(a.o[I].u.q.flag != NULL), own)};
        }
    }(), ...);
    prepare<O, MASK>(p);
#pragma unroll 1
    for (;; p.live = true, p.round = 1) {
        if (p.round) cluster_meet(); /* what was sent ahead has arrived: it must not overtake the row */
        else __syncthreads();
        if (p.live) pdl_wait();
        (load_row<O, MASK, I>(p, a.o[I], in[I]), ...);
        (link<O, MASK, OUT, I>(p, a.o + I, in[I], sizes[I], to[I], kept), ...);
        if (p.live) break;
    }
#endif
}

template <int B0, int B1, int B2, int... LINKS> __device__ __forceinline__ void branches(const cu_rows_few &a, float *shared)
{
    using O = ops<LINKS...>;
    constexpr int N = 1 + (B1 != 0) + (B2 != 0);
    std::make_integer_sequence<int, O::n> all;
    pdl_trigger();
    if constexpr (O::kind(0) == CB_EMBED) /* few.c: nothing is beside others */
        if (blockIdx.y == N) {
            pdl_wait();
            if (blockIdx.x == 0) tables(a, 0);
            return;
        }
    if constexpr (B1 != 0)
        if (blockIdx.y == 1) {
            run<O, B1, B1 & ~B0>(a, shared, all);
            return;
        }
    if constexpr (B2 != 0)
        if (blockIdx.y == 2) {
            run<O, B2, B2 & ~(B0 | B1)>(a, shared, all);
            return;
        }
    run<O, B0, B0>(a, shared, all);
}

#define KERNEL(name, b0, b1, b2, ...)                                                                                             \
    extern "C" __global__ void __launch_bounds__(CU_CLUSTER_PART / 8, 1) k_cluster_##name(const __grid_constant__ cu_rows_few a)  \
    {                                                                                                                              \
        extern __shared__ __align__(16) float shared[];                                                                            \
        branches<b0, b1, b2, __VA_ARGS__>(a, shared);                                                                              \
    }
CU_CLUSTERS(KERNEL)
