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
    /* Is the first norm's row one that the next op does not take, so that its squares are summed beside those of a later norm? */
    __device__ static constexpr bool early() { return n > 2 && kind(0) == CB_RMSNORM && from(0) == CU_FROM_MEM && from(1) == CU_FROM_MEM && kind(2) == CB_RMSNORM; }
    __device__ static constexpr int before(int what, int i)
    {
        int k = 0;
        for (int j = 0; j < i; j++) k += kind(j) == what;
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
    uint32_t mine, theirs; /* for Hadamard blocks: this part, and what others' halves of strides are */
    int *bad;           /* for reports */
    uint32_t words, bells; /* of the thread block with this lane's number: where this warp's words go, and the barriers */
};

__device__ __forceinline__ uint32_t own_word(const part &p) { return p.at + CU_CLUSTER_ROWS + 4 * threadIdx.x; } /* before anything else is there */
/* Of an op; a Hadamard block that four parts share has another one, behind those of all ops. */
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
    int n, mixed, wide; /* mixed: parts that share a Hadamard block; wide: strides of it from 256 on within the part */
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
    if constexpr (K == CB_HADAMARD) {
        in.mixed = held(max(o.n / p.a.width, 1), own_word(p));
        in.wide = held(23 - __clz(min(o.n, p.a.width)), own_word(p));
    }
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
    if constexpr (O::from(I) == CU_FROM_MEM && K != CB_MOE_SUM) load_if(in.v, in.x, here);
    if constexpr (O::from(I) == CU_FROM_MEM && K == CB_RMSNORM)
#pragma unroll
        for (int k = 1; k < WIDEST; k++) {
            int other = p.rank + k < p.parts ? k : k - p.parts;
            load_if(in.others[k - 1], in.x + other * p.width, p.live && k < p.parts && p.first + p.e + other * p.width < p.whole);
        }
    if constexpr ((K == CB_ADD && O::from(I) != CU_FROM_KEPT) || K == CB_ADD_GATED || K == CB_GLU) load_if(in.u, in.b, here);
    if constexpr (K == CB_ADD_GATED) in.one = p.live ? *in.gate : 0;
    if constexpr (K == CB_EMBED) embed(p, in.v, o);
}

/* ---- norms ---- */

/* A row from memory, all of it, to where its squares are summed up. */
__device__ __forceinline__ void put_row(const part &p, const input &in, uint32_t row)
{
    int e = p.first + p.e;
    put8(row + row_place(e), in.v, 16);
#pragma unroll
    for (int k = 1; k < WIDEST; k++)
        if (k < p.parts) put8(row + row_place(e + (p.rank + k < p.parts ? k : k - p.parts) * p.width), in.others[k - 1], 16);
}

/* This part of a row to where all parts sum up its squares. What goes to others is what takes time: 12 to 16 bytes a cycle. */
__device__ __forceinline__ void share_row(const part &p, uint32_t row, uint32_t barrier)
{
    uint32_t at = row + row_place(p.first + p.e);
    put8(at, p.v, 16);
#pragma unroll 1
    for (int k = 1; k < p.parts; k++) {
        int other = p.rank + k < p.parts ? p.rank + k : p.rank + k - p.parts;
        send(of_rank(at, other), p.v, 16, of_rank(barrier, other));
    }
}

/* Where row number `number` is summed up; and the one that a later norm sums up too, out of the way of what others send for the norm behind that. */
__device__ __forceinline__ uint32_t room_of(const part &p, int number) { return p.rows + (number & 1) * p.room; }
__device__ __forceinline__ uint32_t early_room(const part &p) { return p.rows + (p.parts > 1 ? 2 : 0) * p.room; }

/* What the row is multiplied by. Every thread block adds up all of it: the order is fixed. MEMORY: it has loaded the row; else parts send theirs.
 * TWO: also of the early row, by the second warp. */
template <bool MEMORY, bool TWO> __device__ __forceinline__ void sum_up(part &p, const input &in, int op, int number, float early_eps, float &early)
{
    uint32_t row = room_of(p, number), inv = p.at + CU_CLUSTER_NORM + 4 * (number & 1);
    if constexpr (MEMORY) put_row(p, in, row);
    else share_row(p, row, barrier_of(p, op));
    __syncthreads();
    if (threadIdx.x < (TWO ? 64 : 32)) {
        bool first = !TWO || threadIdx.x < 32;
        if (!MEMORY && first && p.parts > 1) barrier_wait(barrier_of(p, op), 0);
        float ss = squares(p.shared + ((first ? row : early_room(p)) - p.at) / 4, p.whole);
        float mean = __builtin_expect(p.inverse != 0, 1) ? ss * p.inverse : ss / (float)p.whole;
        float by = 1.0f / sqrtf(mean + (first ? in.f : early_eps));
        if (threadIdx.x % 32 == 0) sts_float(first ? inv : p.at + CU_CLUSTER_NORM + 12, by);
    }
    __syncthreads();
    p.inv = lds_float(inv);
    if (TWO) early = lds_float(p.at + CU_CLUSTER_NORM + 12);
}

/* ---- Hadamard ---- */

/* One stride of a Hadamard block whose other half another part has. */
__device__ __forceinline__ void across_parts(part &p, int bit, uint32_t from, uint32_t barrier)
{
    uint32_t at = from + 16 * threadIdx.x, half = 2 * p.width; /* bytes of half of the part's elements */
    int other = p.rank ^ bit;
    float sign = p.rank & bit ? -1.0f : 1.0f, u[E];
    send(of_rank(at, other), p.v, half, of_rank(barrier, other));
    barrier_wait(barrier, 0);
    get8(u, at, half);
    each<E>([&](int i) { p.v[i] = cb_fma(p.v[i], sign, u[i]); });
}

/* Strides ascend: of a thread's neighbours; of a warp's 256; of the part, 256 apart; of parts. Between them a thread's values change places in shared
 * memory, where each pass stores to where it has loaded. */
__device__ __forceinline__ void rotate(part &p, int wide, int n, uint32_t barrier, uint32_t second)
{
    int lane = threadIdx.x % 32, t = threadIdx.x;
    uint32_t own = p.mine + 4 * place(8 * t), at = p.mine + 4 * place(8 * (t - lane) + (lane >> 3) * 64 + (lane & 7));
    cross(p.v, 1, E);
    put8(own, p.v, 16);
    __syncwarp();
    each<E>([&](int k) { p.v[k] = lds_float(at + 4 * place(8 * k)); });
    cross(p.v, 1, E);
    across(p.v, 8);
    across(p.v, 16);
    each<E>([&](int k) { sts_float(at + 4 * place(8 * k), p.v[k]); });
    if (wide > 0) {
        at = p.mine + 4 * place((t & ((32 << wide) - 1)) + (t >> (5 + wide)) * (256 << wide));
        uint32_t next = 4 * (wide > 1 ? place(512) : place(64)), last = 4 * (wide > 2 ? place(1024) : place(128));
        auto of = [&](int k) { return at + (k & 1) * 4 * place(256) + (k >> 1 & 1) * next + (k >> 2) * last; };
        __syncthreads();
        each<E>([&](int k) { p.v[k] = lds_float(of(k)); });
        cross(p.v, 1, 1 << wide);
#pragma unroll 1
        for (int bit = 1; bit < n; bit *= 2) across_parts(p, bit, p.theirs + (bit >> 1) * 4 * p.width, bit == 1 ? barrier : second);
        each<E>([&](int k) { sts_float(of(k), p.v[k]); });
        __syncthreads();
    } else __syncwarp();
    get8(p.v, own, 16);
}

/* ---- fixed point ---- */

/* Where a quantisation's numbers go, two at a time - high bytes at one place of these, low ones `low` behind - and scales; NULL: this thread has
 * none of them. A byte of a weight holds `pack` elements, so that neighbours of each have planes of their own. */
struct target {
    int8_t *two[4];
    float *dx, *xs;
    int32_t *flag;
    int low, order[2]; /* of bytes, for __byte_perm */
};

/* What stands for all quantisations of the same numbers. */
struct numbers {
    int lanes;   /* of a group */
    float share;
    int asks;    /* a row may have a remainder */
    int op;      /* for reports */
    uint32_t zero; /* after() */
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
    t.flag = p.rank == 0 && threadIdx.x == 0 ? q.flag : NULL;
    hold(t.flag);
    t.low = held(64 * pack, own_word(p));
    t.order[0] = held(pack == 1 ? 0x3210 : pack == 2 ? 0x6420 : 0x5140, own_word(p));
    t.order[1] = held(pack == 1 ? 0x7654 : pack == 2 ? 0x7531 : 0x7362, own_word(p));
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
    bool now = p.live && t.two[0], scale = p.live && t.dx;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        uint32_t a = __byte_perm(hi[0], hi[1], t.order[k]), b = __byte_perm(lo[0], lo[1], t.order[k]);
        put_u16(t.two[2 * k], a, now);
        put_u16(t.two[2 * k + 1], a >> 16, now);
        put_u16(t.two[2 * k] + t.low, b, now);
        put_u16(t.two[2 * k + 1] + t.low, b >> 16, now);
    }
    put_u32(t.dx, __float_as_uint(r.dx), scale);
    put_u32(t.xs, __float_as_uint(r.dx * (float)r.sum), scale);
}

/* What all warps told. Four lanes take a pair of warps' words each at a time. */
__device__ __forceinline__ void hear(const part &p, int op, uint32_t &most, float &sum)
{
    enum { AT_ONCE = 2 };
    int n = p.parts * p.warps, lane = 2 * (threadIdx.x & 3);
    uint32_t at = p.at + CU_CLUSTER_WORDS + 8 * CU_CLUSTER_TELLERS * p.round + 8 * lane, m[2] = {0, 0};
    float s[2] = {0, 0};
    barrier_wait(barrier_of(p, op), 0);
#pragma unroll 1
    for (int i = lane; i < n; i += 8 * AT_ONCE, at += 64 * AT_ONCE) {
        uint32_t v[AT_ONCE][4];
        each<AT_ONCE>([&](int k) { lds<4>(v[k], at + 64 * k); }); /* there is room behind the words */
        each<AT_ONCE>([&](int k) {
            bool one = i + 8 * k < n, two = i + 8 * k + 1 < n;
            m[0] = max(m[0], one ? v[k][0] : 0);
            s[0] += one ? __uint_as_float(v[k][1]) : 0;
            m[1] = max(m[1], two ? v[k][2] : 0);
            s[1] += two ? __uint_as_float(v[k][3]) : 0;
        });
    }
    most = max(m[0], m[1]);
    sum = s[0] + s[1];
#pragma unroll
    for (int w = 1; w < 4; w *= 2) {
        most = max(most, __shfl_xor_sync(FULL, most, w));
        sum += __shfl_xor_sync(FULL, sum, w);
    }
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
        for (int w = 1; w < 32; w *= 2) sum[0] += __shfl_xor_sync(FULL, sum[0], w);
        bool asks = a.asks && !rests;
        send8(p.words + 8 * CU_CLUSTER_TELLERS * p.round, most, __float_as_uint(sum[0]), p.bells + 8 * (CU_FEW_OPS * p.round + op), asks && p.words);
        m = after(m, sum[0], a.zero); /* the rest of the way is longer with the others' words */
#pragma unroll
        for (int w = 1; w < 128 / E; w *= 2) {
            uint32_t other = __shfl_xor_sync(FULL, m, w);
            m = max(m, w < a.lanes ? other : 0);
        }
        ints<E> r;
        fix(p.v, m, a.lanes, r);
        each<N>([&](int k) { put(p, to[k], r); });
        if (!asks) {
            put_least(p.bad, a.op, most >= 0x7f800000u);
            break;
        }
        hear(p, op, most, sum[1]);
        float energy = energy_of(most);
        int want = wants(energy, sum[1], a.share);
        bool more = want > 0;
        if (__builtin_expect(want < 0, 0)) { /* what is not finite is neither */
            put_least(p.bad, a.op, most >= 0x7f800000u);
            put8(p.mine + 16 * threadIdx.x, p.v, 2 * p.width);
            more = look_closely(p.mine, p.width, p.whole, energy, a.share, p.at + CU_CLUSTER_NORM + 8);
        }
        each<N>([&](int k) { put_u32(to[k].flag, more, p.live && to[k].flag); });
        leave(p.live && !more);
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
__device__ __forceinline__ void link(part &p, const cu_few_op *o, const input (&all)[O::n], const numbers &a, target (&to)[2], float (&kept)[E])
{
    constexpr int K = O::kind(I), FROM = O::from(I);
    const input &in = all[I];
    if constexpr (!(MASK >> I & 1)) return;
    if constexpr ((FROM == CU_FROM_MEM && K != CB_MOE_SUM) || K == CB_EMBED) each<E>([&](int i) { p.v[i] = in.v[i]; });
    if constexpr (FROM == CU_FROM_KEPT && K != CB_ADD) each<E>([&](int i) { p.v[i] = kept[i]; });
    if constexpr (K == CB_QUANT) {
        if constexpr (!O::again(I)) quant<O::same(I)>(p, o, a, to, I);
        return;
    }
    if constexpr (K == CB_RMSNORM) {
        constexpr bool TWO = O::early() && I == 2;
        float early = 0;
        if constexpr (O::early() && I == 0) {
            put_row(p, in, early_room(p));
            each<E>([&](int i) { kept[i] = p.v[i]; });
            return;
        }
        if constexpr (O::sums(MASK, I)) sum_up<FROM == CU_FROM_MEM, TWO>(p, in, I, O::sums_before(MASK, I), all[0].f, early);
        each<E>([&](int i) { p.v[i] = (p.v[i] * p.inv) * in.w[i]; });
        if constexpr (TWO) each<E>([&](int i) { kept[i] = (kept[i] * early) * all[0].w[i]; });
    }
    if constexpr (K == CB_HADAMARD) {
        constexpr bool BACK = I && O::kind(I - (I > 0)) == CB_EMBED; /* signs behind it: few.c */
        if constexpr (!BACK) each<E>([&](int i) { p.v[i] = p.v[i] * in.w[i]; });
        rotate(p, in.wide, in.mixed, barrier_of(p, I), barrier_of(p, O::n + O::before(CB_HADAMARD, I)));
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
    if constexpr (OUT >> I & 1) {
        put_float4((float4 *)in.out, make_float4(p.v[0], p.v[1], p.v[2], p.v[3]), p.live && in.out);
        put_float4((float4 *)in.out + 1, make_float4(p.v[4], p.v[5], p.v[6], p.v[7]), p.live && in.out);
    }
}

/* Rows whose squares are summed at a time. */
template <class O, int MASK> __device__ __forceinline__ int rooms(int parts)
{
    constexpr int SUMS = O::sums_before(MASK, O::n);
    return O::early() && parts > 1 ? 3 : SUMS > 1 ? 2 : SUMS;
}

/* Barriers, and how many bytes each waits for; zeros behind a row whose squares are summed. Then all parts know of each other. */
template <class O, int MASK> __device__ __forceinline__ void prepare(const part &p)
{
    constexpr int LAST = O::n + O::before(CB_HADAMARD, O::n);
    static_assert(LAST <= CU_FEW_OPS);
    int op = (int)threadIdx.x % CU_FEW_OPS, threads = blockDim.x;
    bool one = threadIdx.x < 2 * CU_FEW_OPS && op < LAST;
    if (one) barrier_init(p.at + 8 * threadIdx.x, 1);
    __syncwarp(); /* for racecheck, which takes one thread for another where each has its turn */
    if (one) {
        int kind = op < O::n ? p.a.o[op].kind : CB_HADAMARD, senders = kind == CB_QUANT ? p.parts : kind == CB_HADAMARD ? 1 : p.parts - 1;
        barrier_expect(p.at + 8 * threadIdx.x, (uint32_t)senders * (kind == CB_QUANT ? threads / 32 * 8 : threads * 32));
    }
    int n = p.parts * p.a.width, end = (n + 511) / 512 * 512;
    for (int k = 0; k < rooms<O, MASK>(p.parts); k++)
        for (int i = n + (int)threadIdx.x; i < end; i += threads) sts_float(p.rows + k * p.room + row_place(i), 0);
    cluster_begin();
}

template <class O, int MASK, int OUT, int... I> __device__ __forceinline__ void run(const cu_rows_few &a, float *shared, std::integer_sequence<int, I...>)
{
#if __CUDA_ARCH__ >= 900
    constexpr bool FIRST = O::kind(0) == CB_EMBED; /* of a step: there is nothing to wait for */
    int rank = cluster_rank(), e = E * (int)threadIdx.x, at = address(shared), own = at + CU_CLUSTER_ROWS + 4 * (int)threadIdx.x;
    part p = {{a, shared, *(told *)shared, 0, rank * a.width, e, min(a.width, a.whole - rank * a.width), 0, FIRST, 0, {}}, rank, held(a.n_parts, own), held(a.whole, own), held(a.inverse, own), held(a.width, own),
              held((int)(blockDim.x / 32), own), FIRST, (uint32_t)at};
    p.rows = p.at + CU_CLUSTER_ROWS;
    p.room = CU_FEW_ROOM(p.parts * a.width) * 128;
    p.mine = p.rows + rooms<O, MASK>(p.parts) * p.room;
    p.theirs = p.mine + CU_CLUSTER_MINE(a.width);
    int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    p.words = (lane < p.parts ? of_rank(p.at + CU_CLUSTER_WORDS + 8 * (rank * (int)(blockDim.x / 32) + warp), lane) : 0);
    p.bells = of_rank(p.at, lane < p.parts ? lane : 0);
    p.bad = &a.step->bad_op;
    hold(p.bad);
    input in[O::n];
    numbers sizes[O::n];
    target to[O::n][2];
    float kept[E];
    (load_constants<O, MASK, I>(p, a.o[I], in[I]), ...);
    ([&] {
        if constexpr (O::kind(I) == CB_QUANT && !O::again(I) && (MASK >> I & 1)) {
            for (int k = 0; k < O::same(I); k++) to[I][k] = target_of(p, a.o[I + k].u.q);
            sizes[I] = {held(a.o[I].u.q.group / E, own), held(a.o[I].f, own), held((int)(a.o[I].u.q.flag != NULL), own), held(a.o[I].op, own), (uint32_t)held(0, own)};
        }
    }(), ...);
    prepare<O, MASK>(p);
#pragma unroll 1
    for (;; p.live = true, p.round = 1) {
        if (p.round) cluster_meet(); /* what was sent ahead has arrived: it must not overtake the row */
        else __syncthreads();
        if (p.live) pdl_wait();
        (load_row<O, MASK, I>(p, a.o[I], in[I]), ...);
        (link<O, MASK, OUT, I>(p, a.o + I, in, sizes[I], to[I], kept), ...);
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
