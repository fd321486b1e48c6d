/* emulate.h: what a kernel of src/cuda sees instead of a GPU, put before it by the compiler. A thread block is a set of fibers on one
 * thread, one fiber a GPU thread; they change hands where threads of a warp or of a block wait for each other. Blocks run one
 * after the other, those of a cluster at once. So the bits are those of a GPU, but for races, which compute-sanitizer looks for. */
#ifndef EMULATE_H
#define EMULATE_H
#include <algorithm>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <vector_types.h>
#include <vector_functions.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include "base/sincos.h"
#include "cuda/abi.h"
#include "kernels/num.h"
#include "plan/opkind.h"
#undef __shared__
#define __shared__ static
#undef __launch_bounds__
#define __launch_bounds__(...)
#define __grid_constant__
#undef __align__
#define __align__(n) __attribute__((aligned(n)))
#undef __forceinline__
#define __forceinline__ inline
#undef __noinline__
#define __noinline__
#define __CUDA_ARCH__ 900
#define __CUDA_ARCH_FEAT_SM90_ALL
using std::max;
using std::min;

struct emu_dim {
    unsigned x, y, z;
};
extern emu_dim emu_block, emu_grid, emu_block_dim;
extern unsigned emu_thread;             /* of the fiber that runs */
extern unsigned emu_cluster;            /* blocks of a cluster */
extern unsigned char *emu_dynamic;      /* dynamic shared memory; of the block with the next number in the cluster EMU_BLOCK_STRIDE behind */
enum { EMU_BLOCK_STRIDE = 232448, EMU_MAX_CLUSTER = 16 };
struct emu_thread_index {
    struct {
        operator unsigned() const { return emu_thread % emu_block_dim.x; }
    } x;
};
static emu_thread_index threadIdx;
#define blockIdx emu_block
#define gridDim emu_grid
#define blockDim emu_block_dim

/* All lanes that have not left meet; each gives n words and can then read those of all: word w of lane l at the result [l][w]. */
enum { EMU_WORDS = 8 };
typedef uint32_t emu_lanes[32][EMU_WORDS];
const emu_lanes &emu_meet(const uint32_t *words, int n);
uint32_t emu_left(); /* mask of lanes that had left when this one met the others last */
void emu_pause();    /* other warps go on, then other lanes */
void emu_cluster_meet(); /* all threads of a cluster; such kernels have no static shared memory */
void __syncthreads();
int __syncthreads_or(int v);
static inline void __syncwarp(unsigned = 0xffffffffu) { emu_meet(NULL, 0); }

template <class T> static inline T emu_get(const emu_lanes &v, int lane)
{
    T t;
    memcpy(&t, v[lane], sizeof t);
    return t;
}
template <class T> static inline const emu_lanes &emu_give(T v)
{
    uint32_t w[2] = {0, 0};
    static_assert(sizeof v <= sizeof w, "two words at most");
    memcpy(w, &v, sizeof v);
    return emu_meet(w, 2);
}
template <class T> static inline T __shfl_sync(unsigned, T v, int from) { return emu_get<T>(emu_give(v), from & 31); }
template <class T> static inline T __shfl_xor_sync(unsigned, T v, int x) { return emu_get<T>(emu_give(v), (emu_thread & 31) ^ x); }
template <class T> static inline T __shfl_down_sync(unsigned, T v, int d)
{
    int l = emu_thread & 31;
    return emu_get<T>(emu_give(v), l + d < 32 ? l + d : l);
}
template <class T> static inline T __shfl_up_sync(unsigned, T v, int d)
{
    int l = emu_thread & 31;
    return emu_get<T>(emu_give(v), l - d >= 0 ? l - d : l);
}
static inline unsigned __ballot_sync(unsigned, int v)
{
    const emu_lanes &all = emu_give(v);
    unsigned m = 0;
    for (int l = 0; l < 32; l++) m |= (unsigned)(all[l][0] != 0 && !(emu_left() >> l & 1)) << l;
    return m;
}
static inline int __any_sync(unsigned m, int v) { return __ballot_sync(m, v) != 0; }
static inline int __all_sync(unsigned m, int v) { return __ballot_sync(m, !v) == 0; }
static inline unsigned __match_any_sync(unsigned, int v)
{
    const emu_lanes &all = emu_give(v);
    unsigned m = 0;
    for (int l = 0; l < 32; l++) m |= (unsigned)(all[l][0] == (unsigned)v) << l;
    return m;
}
template <class T, class F> static inline T emu_reduce(T v, F f)
{
    const emu_lanes &all = emu_give(v);
    for (int l = 0; l < 32; l++)
        if (!(emu_left() >> l & 1)) v = f(v, emu_get<T>(all, l));
    return v;
}
static inline unsigned __reduce_max_sync(unsigned, unsigned v) { return emu_reduce(v, [](unsigned a, unsigned b) { return max(a, b); }); }
static inline unsigned __reduce_min_sync(unsigned, unsigned v) { return emu_reduce(v, [](unsigned a, unsigned b) { return min(a, b); }); }
static inline int __reduce_add_sync(unsigned, int v)
{
    const emu_lanes &all = emu_give(v);
    int s = 0;
    for (int l = 0; l < 32; l++)
        if (!(emu_left() >> l & 1)) s += (int)all[l][0];
    return s;
}

/* ---- functions of one thread ---- */

template <class A, class B> static inline A emu_cast(B b)
{
    A a;
    memcpy(&a, &b, sizeof a);
    return a;
}
static inline float __uint_as_float(uint32_t v) { return emu_cast<float>(v); }
static inline float __int_as_float(int v) { return emu_cast<float>(v); }
static inline uint32_t __float_as_uint(float v) { return emu_cast<uint32_t>(v); }
static inline int __float_as_int(float v) { return emu_cast<int>(v); }
static inline float __ll2float_rn(long long v) { return (float)v; }
static inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline int __float2int_rn(float v) { return (int)rintf(v); }
static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }
static inline int __ffs(int v) { return __builtin_ffs(v); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) { return (unsigned long long)((unsigned __int128)a * b >> 64); }
static inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t s)
{
    uint64_t v = (uint64_t)b << 32 | a;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) r |= (uint32_t)(v >> 8 * (s >> 4 * i & 7) & 255) << 8 * i;
    return r;
}
static inline int __dp4a(int a, int b, int c)
{
    for (int i = 0; i < 32; i += 8) c += (int8_t)(a >> i) * (int8_t)(b >> i);
    return c;
}
template <class T> static inline T __ldcg(const T *p) { return *p; }
static inline void __threadfence() {}
template <class T> static inline T atomicAdd(T *p, T v)
{
    T old = *p;
    *p = old + v;
    return old;
}
template <class T> static inline T atomicMax(T *p, T v)
{
    T old = *p;
    *p = max(old, v);
    return old;
}
template <class T> static inline T atomicMin(T *p, T v)
{
    T old = *p;
    *p = min(old, v);
    return old;
}
#endif
