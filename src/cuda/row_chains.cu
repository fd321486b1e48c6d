/* row_chains.cu: the chains that layers of known models are made of (CU_CHAINS in abi.h), each a kernel in which the operations and where they
 * take their row from are fixed. Units of a shared expert have routes beside them. A chain of few rows runs twice: while the launches ahead are
 * not done with a row of zeros, of which nothing is written, so that the multiprocessor has its instructions and arguments at hand; then with the
 * row. All inputs are loaded at once. */
#include "cuda/few.cuh"
#include <utility>

enum { FEW_ROWS = 32 }; /* more thread blocks than these do not all begin early */

/* What op number i of a chain takes from memory. */
template <int E> struct inputs {
    float x[E], b[E], w[E], one;
};

__device__ constexpr int kind_of(int link) { return link / 8; }
__device__ constexpr bool is_again(int link) { return link & CU_AGAIN; }
__device__ constexpr int from(int link) { return link & 3; }

template <int E, int LINK> __device__ __forceinline__ void load_constants(const chain<E> &c, const cu_few_op &o, inputs<E> &in)
{
    constexpr int K = kind_of(LINK);
    if constexpr (K == CB_HADAMARD)
        if (o.w) fetch_vector(c, in.w, o.w);
    if constexpr (K == CB_RMSNORM)
        if (o.w && c.e < c.n) prefetch(o.w + c.e);
    if constexpr (K == CB_SCALE) in.one = o.w ? *o.w : o.f;
}

template <int E, int LINK> __device__ __forceinline__ void load_row(const chain<E> &c, const cu_few_op &o, inputs<E> &in)
{
    constexpr int K = kind_of(LINK);
    if constexpr (from(LINK) == CU_FROM_MEM && K != CB_MOE_SUM) fetch(c, in.x, o.x, K == CB_RMSNORM && o.m && c.live ? c.a.step->wanted[c.row] : c.row, o.x_stride);
    if constexpr ((K == CB_ADD && from(LINK) != CU_FROM_KEPT) || K == CB_ADD_GATED || K == CB_GLU) fetch(c, in.b, o.b, c.row, o.b_stride);
    if constexpr (K == CB_ADD_GATED) in.one = c.live ? o.w[(size_t)c.row * o.w_stride] : 0;
    if constexpr (K == CB_EMBED) embed(c, in.x, o);
}

/* kept: the value that later ops take once more; n: how many ops in a row quantise it in the same groups;
 * EXPERTS: as many as there are registers for. */
template <int E, int LINK, bool PARTS, int EXPERTS> __device__ __forceinline__ void link(chain<E> &c, const cu_few_op *o, const inputs<E> &in, float (&kept)[E], int n)
{
    constexpr int K = kind_of(LINK);
    if constexpr ((from(LINK) == CU_FROM_MEM && K != CB_MOE_SUM) || K == CB_EMBED) each<E>([&](int i) { c.v[i] = in.x[i]; });
    if constexpr (from(LINK) == CU_FROM_KEPT && K != CB_ADD) each<E>([&](int i) { c.v[i] = kept[i]; });
    if constexpr (K == CB_QUANT) {
        if constexpr (!is_again(LINK)) quant<PARTS>(c, o, n);
        return;
    }
    if constexpr (K == CB_RMSNORM) norm(c, *o, is_again(LINK));
    if constexpr (K == CB_HADAMARD) hadamard(c, *o, in.w);
    if constexpr (K == CB_GLU) glu(c, o->n, in.b);
    if constexpr (K == CB_ADD) each<E>([&](int i) { c.v[i] = c.v[i] + (from(LINK) == CU_FROM_KEPT ? kept[i] : in.b[i]); });
    if constexpr (K == CB_ADD_GATED) {
        float g = cb_sigmoidf(in.one);
        each<E>([&](int i) { c.v[i] = cb_fma(g, in.b[i], c.v[i]); });
    }
    if constexpr (K == CB_SCALE) each<E>([&](int i) { c.v[i] = c.v[i] * in.one; });
    if constexpr (K == CB_MOE_SUM) moe_sum<EXPERTS>(c, *o);
    if (o->keep >= 0) each<E>([&](int i) { kept[i] = c.v[i]; });
    hand_out(c, *o);
}

template <class... T> __device__ constexpr int first_of(int first, T...) { return first; }

/* How many ops from number i on quantise the same numbers. */
template <int... LINKS> __device__ constexpr int same_numbers(int i)
{
    constexpr int link[] = {LINKS..., 0};
    int n = 1;
    while (i + n < (int)sizeof...(LINKS) && kind_of(link[i + n]) == CB_QUANT && is_again(link[i + n])) n++;
    return n;
}

template <int E, int EXPERTS, int... LINKS, int... I>
__device__ __forceinline__ void run_chain(const cu_rows_few &a, int row, float *shared, told &t, std::integer_sequence<int, I...>)
{
    pdl_trigger();
    if constexpr (first_of(LINKS...) == R_(EMBED)) /* few.c: nothing is beside others */
        if (blockIdx.y == a.n_parts) {
            pdl_wait();
            tables(a, blockIdx.x);
            return;
        }
    if constexpr (sizeof...(LINKS) == 2 && first_of(LINKS...) == M_(GLU)) /* few.c: others have no route, and this none of more than 256 */
        if (blockIdx.y == a.n_parts) {
            pdl_wait();
            if (threadIdx.x < 32) route_in_registers<8>(a.route, a.step, row, (uint2 *)shared, true);
            return;
        }
    bool live = gridDim.x > FEW_ROWS || first_of(LINKS...) == R_(EMBED); /* a step's first launch has nothing to wait for */
    chain<E> c = {a, shared, t, row, (int)blockIdx.y * a.width, E * (int)threadIdx.x, a.width, 0, live, 0, {}};
    inputs<E> in[sizeof...(LINKS)];
    float kept[E];
    (load_constants<E, LINKS>(c, a.o[I], in[I]), ...);
    clear<E>(shared, t);
    constexpr bool parts = E == 8 && !((kind_of(LINKS) == CB_RMSNORM) || ...); /* a norm needs the whole row, narrow rows have no parts */
#pragma unroll 1
    for (;; c.live = true) {
        if (c.live) pdl_wait();
        (load_row<E, LINKS>(c, a.o[I], in[I]), ...);
        (link<E, LINKS, parts, EXPERTS>(c, a.o + I, in[I], kept, same_numbers<LINKS...>(I)), ...);
        if (c.live) break;
    }
}

#define KERNEL(name, per, most, ...)                                                                                           \
    extern "C" __global__ void __launch_bounds__(most / per, per == 4 ? 3 : 2) k_##name(const __grid_constant__ cu_rows_few a) \
    {                                                                                                                           \
        extern __shared__ __align__(16) float shared[];                                                                         \
        __shared__ told t;                                                                                                      \
        constexpr int links[] = {__VA_ARGS__};                                                                                  \
        run_chain<per, (most <= 2048 ? 8 : 4), __VA_ARGS__>(a, blockIdx.x, shared, t, std::make_integer_sequence<int, sizeof links / sizeof *links>()); \
    }
CU_CHAINS(KERNEL)

/* Gated units of two widths or kinds of rows: those of experts that a route chose, and of one that all rows have. */
template <int E> __device__ __forceinline__ void units(const cu_rows_two &a, float *shared, told &t)
{
    int second = (int)blockIdx.x >= a.n_rows;
    run_chain<E, 8, M_(GLU), R_(QUANT)>(a.part[second], (int)blockIdx.x - (second ? a.n_rows : 0), shared, t, std::make_integer_sequence<int, 2>());
}
#define UNITS(E, most)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(most / E, E == 4 ? 3 : 2) k_units##E(const __grid_constant__ cu_rows_two a) \
    {                                                                                                                   \
        extern __shared__ __align__(16) float shared[];                                                                 \
        __shared__ told t;                                                                                              \
        units<E>(a, shared, t);                                                                                         \
    }
UNITS(4, 1024)
UNITS(8, 4096)
