/* ptx.cuh: the instructions that C++ has no words for. Everything else in the kernels is plain C++, so that tests/cuda/emulate, which has
 * another file of this name, can run them without a GPU. (gemm_sm90.cu is not among those; its instructions are in wgmma.cuh.) */
#ifndef CB_CUDA_PTX_CUH
#define CB_CUDA_PTX_CUH
#include <stdint.h>

/* Every kernel begins with these two: the next kernel of the stream may be set up at once, and nothing that an earlier one wrote is
 * touched before pdl_wait(). Weights may be read before it. */
__device__ __forceinline__ void pdl_trigger()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__device__ __forceinline__ void pdl_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Four warps, side by side, give registers back or take them; each gets N. */
template <int N> __device__ __forceinline__ void fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> __device__ __forceinline__ void more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }

/* 1/x but for the last bit, x normal. */
__device__ __forceinline__ float reciprocal_about(float x)
{
    float r;
    asm("rcp.approx.ftz.f32 %0,%1;" : "=f"(r) : "f"(x));
    return r;
}
/* What this thread wrote, and what others wrote before a barrier that it passed, is seen by all before what it does next. */
__device__ __forceinline__ void fence() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
/* Adds to *p and returns what was there, or 0 if not `now`: who adds sees what those who added before had written or seen by then. */
__device__ __forceinline__ int add_in_order(int *p, int v, bool now)
{
    int was = 0;
    asm volatile("{.reg .pred p;\nsetp.ne.u32 p,%3,0;\n@p atom.acq_rel.gpu.global.add.s32 %0,[%1],%2;}"
                 : "+r"(was) : "l"(p), "r"(v), "r"((uint32_t)now) : "memory");
    return was;
}

/* ---- stores if `now`, without a jump: the instructions around them are then fetched in any case ---- */

__device__ __forceinline__ void put_u16(void *p, uint32_t v, bool now)
{
    asm volatile("{.reg .pred p; .reg .u16 t;\nsetp.ne.u32 p,%2,0;\ncvt.u16.u32 t,%1;\n@p st.global.u16 [%0],t;}" ::"l"(p), "r"(v), "r"((uint32_t)now)
                 : "memory");
}
__device__ __forceinline__ void put_u32(void *p, uint32_t v, bool now)
{
    asm volatile("{.reg .pred p;\nsetp.ne.u32 p,%2,0;\n@p st.global.u32 [%0],%1;}" ::"l"(p), "r"(v), "r"((uint32_t)now) : "memory");
}
__device__ __forceinline__ void put_float2(float2 *p, float2 v, bool now)
{
    asm volatile("{.reg .pred p;\nsetp.ne.u32 p,%3,0;\n@p st.global.v2.f32 [%0],{%1,%2};}" ::"l"(p), "f"(v.x), "f"(v.y), "r"((uint32_t)now) : "memory");
}
__device__ __forceinline__ void put_float4(float4 *p, float4 v, bool now)
{
    asm volatile("{.reg .pred p;\nsetp.ne.u32 p,%5,0;\n@p st.global.v4.f32 [%0],{%1,%2,%3,%4};}" ::"l"(p), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w),
                 "r"((uint32_t)now) : "memory");
}

/* *p becomes v where that is less. */
__device__ __forceinline__ void put_least(int *p, int v, bool now)
{
    asm volatile("{.reg .pred p;\nsetp.ne.u32 p,%2,0;\n@p red.global.min.s32 [%0],%1;}" ::"l"(p), "r"(v), "r"((uint32_t)now) : "memory");
}

/* ---- loads likewise: zeros if not `now` ---- */

__device__ __forceinline__ float4 get_float4(const float *p, bool now)
{
    float4 v;
    asm volatile("{.reg .pred p;\nsetp.ne.u32 p,%5,0;\nmov.f32 %0,0f00000000;\nmov.f32 %1,0f00000000;\nmov.f32 %2,0f00000000;\nmov.f32 %3,0f00000000;\n"
                 "@p ld.global.v4.f32 {%0,%1,%2,%3},[%4];}"
                 : "=&f"(v.x), "=&f"(v.y), "=&f"(v.z), "=&f"(v.w) : "l"(p), "r"((uint32_t)now) : "memory");
    return v;
}
__device__ __forceinline__ float get_float(const float *p, bool now)
{
    float v;
    asm volatile("{.reg .pred p;\nsetp.ne.u32 p,%2,0;\nmov.f32 %0,0f00000000;\n@p ld.global.f32 %0,[%1];}" : "=&f"(v) : "l"(p), "r"((uint32_t)now) : "memory");
    return v;
}
/* Ends this thread if `now`, in place of a jump to the end. */
__device__ __forceinline__ void leave(bool now) { asm volatile("{.reg .pred p;\nsetp.ne.u32 p,%0,0;\n@p exit;}" ::"r"((uint32_t)now) : "memory"); }

/* ---- products of 16x32 and 32x8 bytes, and of 16x16 and 16x8 bf16 ---- */

__device__ __forceinline__ void mma_u8s8(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_s8s8(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
/* The same from 0 on. */
__device__ __forceinline__ void mma_first_s8s8(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%10,%10,%10,%10};"
                 : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(0));
}
__device__ __forceinline__ void mma_first_u8s8(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%10,%10,%10,%10};"
                 : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(0));
}
__device__ __forceinline__ void mma_bf16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* ---- weights, read once: they need not stay in the L1 cache ---- */

__device__ __forceinline__ uint32_t load_u32(const void *p)
{
    uint32_t v;
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0,[%1];" : "=r"(v) : "l"(p));
    return v;
}
__device__ __forceinline__ uint32_t load_u16(const void *p)
{
    uint32_t v;
    asm volatile("{.reg .u16 t; ld.global.nc.u16 t,[%1]; cvt.u32.u16 %0,t;}" : "=r"(v) : "l"(p));
    return v;
}
template <int N> __device__ __forceinline__ void load_words(uint32_t (&v)[N], const void *p)
{
    if constexpr (N == 4)
        asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3},[%4];" : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "l"(p));
    else if constexpr (N == 2)
        asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1},[%2];" : "=r"(v[0]), "=r"(v[1]) : "l"(p));
    else v[0] = load_u32(p);
}
__device__ __forceinline__ void prefetch(const void *p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

/* A value that is new to the compiler, which then computes what depends on it where that is used, in place of keeping it in registers; and
 * computes it here, also when it is not used. */
__device__ __forceinline__ void forget(int &v) { asm volatile("" : "+r"(v)); }
__device__ __forceinline__ void forget(float &v) { asm volatile("" : "+f"(v)); }
/* An address that stays in registers. */
template <class T> __device__ __forceinline__ void hold(T *&p)
{
    asm volatile("" : "+l"(p));
    __builtin_assume(__isGlobal(p));
}
/* A number that does: an argument of a kernel is 50 to 115 cycles away when it has not been asked for just before, and the compiler would rather
 * ask again. It does not see through shared memory; `at`: four bytes there, this thread's own. */
__device__ __forceinline__ int held(int v, uint32_t at)
{
    asm volatile("st.volatile.shared.b32 [%1],%0;\nld.volatile.shared.b32 %0,[%1];" : "+r"(v) : "r"(at) : "memory");
    return v;
}
__device__ __forceinline__ float held(float v, uint32_t at) { return __int_as_float(held(__float_as_int(v), at)); }
/* v, but not before `first` is known; zero: a 0 that the compiler does not know of (held). */
__device__ __forceinline__ uint32_t after(uint32_t v, float first, uint32_t zero) { return v | (__float_as_uint(first) & zero); }
/* A value that is to be known by now. */
__device__ __forceinline__ void touch(uint64_t v) { asm volatile("" ::"l"(v)); }

/* ---- dynamic shared memory by 32-bit address ---- */

__device__ __forceinline__ uint32_t address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
template <int N> __device__ __forceinline__ void lds(uint32_t (&v)[N], uint32_t at)
{
    if constexpr (N == 4) asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3},[%4];" : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(at));
    else if constexpr (N == 2) asm volatile("ld.shared.v2.u32 {%0,%1},[%2];" : "=r"(v[0]), "=r"(v[1]) : "r"(at));
    else asm volatile("ld.shared.u32 %0,[%1];" : "=r"(v[0]) : "r"(at));
}

__device__ __forceinline__ uint32_t lds_u32(uint32_t at)
{
    uint32_t v[1];
    lds<1>(v, at);
    return v[0];
}
__device__ __forceinline__ uint32_t lds_u16(uint32_t at)
{
    uint32_t v;
    asm volatile("{.reg .u16 t; ld.shared.u16 t,[%1]; cvt.u32.u16 %0,t;}" : "=r"(v) : "r"(at));
    return v;
}
__device__ __forceinline__ float lds_float(uint32_t at)
{
    float v;
    asm volatile("ld.shared.f32 %0,[%1];" : "=f"(v) : "r"(at));
    return v;
}
__device__ __forceinline__ float2 lds_float2(uint32_t at)
{
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0,%1},[%2];" : "=f"(v.x), "=f"(v.y) : "r"(at));
    return v;
}
__device__ __forceinline__ float4 lds_float4(uint32_t at)
{
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3},[%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at));
    return v;
}
template <int N> __device__ __forceinline__ void sts(uint32_t at, const uint32_t *v)
{
    if constexpr (N == 4) asm volatile("st.shared.v4.u32 [%0],{%1,%2,%3,%4};" ::"r"(at), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
    else if constexpr (N == 2) asm volatile("st.shared.v2.u32 [%0],{%1,%2};" ::"r"(at), "r"(v[0]), "r"(v[1]) : "memory");
    else asm volatile("st.shared.u32 [%0],%1;" ::"r"(at), "r"(v[0]) : "memory");
}
__device__ __forceinline__ void sts_u8(uint32_t at, uint32_t v) { asm volatile("{.reg .u16 t;\ncvt.u16.u32 t,%1;\nst.shared.u8 [%0],t;}" ::"r"(at), "r"(v) : "memory"); }
__device__ __forceinline__ void sts_u16(uint32_t at, uint32_t v) { asm volatile("{.reg .u16 t;\ncvt.u16.u32 t,%1;\nst.shared.u16 [%0],t;}" ::"r"(at), "r"(v) : "memory"); }
__device__ __forceinline__ void sts_float(uint32_t at, float a) { asm volatile("st.shared.f32 [%0],%1;" ::"r"(at), "f"(a) : "memory"); }
__device__ __forceinline__ void sts_float2(uint32_t at, float a, float b)
{
    asm volatile("st.shared.v2.f32 [%0],{%1,%2};" ::"r"(at), "f"(a), "f"(b) : "memory");
}
__device__ __forceinline__ void sts_float4(uint32_t at, float a, float b, float c, float d)
{
    asm volatile("st.shared.v4.f32 [%0],{%1,%2,%3,%4};" ::"r"(at), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}
/* Four matrices of 8 rows of 16 bytes: lane 8j + i says where row i of matrix j is; lane l gets bytes 4*(l%4) .. of row l/4 of each. */
__device__ __forceinline__ void matrices(uint32_t (&v)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];" : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(at));
}

/* ---- copies in the background; they are counted in groups, each thread its own ---- */

__device__ __forceinline__ void copy16(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0],[%1],16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copy4(uint32_t to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0],[%1],4;" ::"r"(to), "l"(from) : "memory");
}
/* 16 zero bytes when it is not there. */
__device__ __forceinline__ void copy_or_zero16(uint32_t to, const void *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0],[%1],16,%2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
__device__ __forceinline__ void copies_end() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/* Waits until at most N groups of this thread's copies are under way. */
template <int N> __device__ __forceinline__ void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

/* ---- barriers in shared memory ---- */

/* Barrier `id` (1 to 15) of so many threads of the block, whole warps. */
__device__ __forceinline__ void barrier_among(int id, int threads) { asm volatile("bar.sync %0,%1;" ::"r"(id), "r"(threads) : "memory"); }
/* Counts as one of them without waiting. */
__device__ __forceinline__ void arrive_among(int id, int threads) { asm volatile("bar.arrive %0,%1;" ::"r"(id), "r"(threads) : "memory"); }

/* Of 9.0 and later, as the rest here: a phase of the barrier ends when `arrivals` have arrived. */
__device__ __forceinline__ void barrier_init(uint32_t at, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0],%1;" ::"r"(at), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t at, int n)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _,[%0],%1;" ::"r"(at), "r"(n) : "memory");
}
/* Arrives once when all copies of this thread so far are there. */
__device__ __forceinline__ void barrier_arrive_copied(uint32_t at)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(at) : "memory");
}
/* One of its arrivals, and so many bytes that the phase waits for. */
__device__ __forceinline__ void barrier_expect(uint32_t at, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;" ::"r"(at), "r"(bytes) : "memory");
}
/* Waits for the end of the phase of this parity: the first, third .. phase has parity 0. The barrier must be in that phase or the next. */
__device__ __forceinline__ void barrier_wait(uint32_t at, uint32_t parity)
{
    asm volatile("{.reg .pred p;\nwaiting:\nmbarrier.try_wait.parity.shared::cta.b64 p,[%0],%1;\n@!p bra waiting;\n}" ::"r"(at), "r"(parity) : "memory");
}

/* One thread: bytes, a multiple of 16, to shared memory by the copy engine; the barrier, which expects them, gets them when they are there. What other
 * instructions wrote there before must be behind fence_copies(). */
__device__ __forceinline__ void bulk_copy(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1],%2,[%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}
__device__ __forceinline__ void fence_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* A box of a tensor of three dimensions of bytes (the map says how large, and how its chunks are XORed), from (0, y, 0) on. By one thread; the barrier gets
 * the box's bytes. */
__device__ __forceinline__ void fetch_rows(uint32_t to, const void *map, int y, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1,{%2,%3,%2}],[%4];" ::"r"(to), "l"(map), "r"(0), "r"(y),
                 "r"(barrier) : "memory");
}
/* A map in memory that the host wrote: before the thread block first asks for its boxes. */
__device__ __forceinline__ void acquire_map(const void *map) { asm volatile("fence.proxy.tensormap::generic.acquire.sys [%0],128;" ::"l"(map) : "memory"); }
/* The map is at hand when a box is asked for. */
__device__ __forceinline__ void prefetch_map(const void *map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }
/* bulk_copy() of what is read once: of all that is in the L2 cache it goes first. */
__device__ __forceinline__ void bulk_copy_once(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier)
{
    asm volatile("{.reg .b64 once;\ncreatepolicy.fractional.L2::evict_first.b64 once,1.0;\n"
                 "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0],[%1],%2,[%3],once;}" ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

/* c plus the products of four unsigned bytes with four signed ones. */
__device__ __forceinline__ int dot_u8s8(uint32_t a, uint32_t b, int c)
{
    int d;
    asm("dp4a.u32.s32 %0,%1,%2,%3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

/* ---- words that thread blocks tell each other in memory ---- */

__device__ __forceinline__ void tell_word(float *p, float v) { asm volatile("st.relaxed.gpu.global.f32 [%0],%1;" ::"l"(p), "f"(v) : "memory"); }
__device__ __forceinline__ void tell_words2(float *p, float a, float b) { asm volatile("st.relaxed.gpu.global.v2.f32 [%0],{%1,%2};" ::"l"(p), "f"(a), "f"(b) : "memory"); }
__device__ __forceinline__ float told_word(const float *p)
{
    float v;
    asm volatile("ld.relaxed.gpu.global.f32 %0,[%1];" : "=f"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ float4 told_words(const float *p)
{
    float4 v;
    asm volatile("ld.relaxed.gpu.global.v4.f32 {%0,%1,%2,%3},[%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p) : "memory");
    return v;
}
/* A pause between two questions: thousands of threads ask, and weights come the same way. */
__device__ __forceinline__ void not_yet() { __nanosleep(200); }

/* ---- thread blocks of a cluster, which see each other's shared memory ---- */


/* As barrier_wait(), but nothing that this thread block has of memory in its L1 cache outlives it: for more than what st.async brought. */
__device__ __forceinline__ void barrier_wait_cluster(uint32_t at, uint32_t parity)
{
    asm volatile("{.reg .pred p;\nwaiting:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p,[%0],%1;\n@!p bra waiting;\n}" ::"r"(at), "r"(parity) : "memory");
}
/* Number of this one among them. */
__device__ __forceinline__ int cluster_rank()
{
    int r;
    asm("mov.u32 %0,%%cluster_ctarank;" : "=r"(r));
    return r;
}
/* All threads of all of them meet, and what each wrote is seen by all; or they know of each other's new barriers. */
__device__ __forceinline__ void cluster_meet() { asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_begin()
{
    asm volatile("fence.mbarrier_init.release.cluster;\nbarrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
/* Where this thread block's `at` is in the one of that rank: for the functions below. */
__device__ __forceinline__ uint32_t of_rank(uint32_t at, int rank)
{
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0,%1,%2;" : "=r"(there) : "r"(at), "r"(rank));
    return there;
}
/* Stored there some time; the barrier there, which expects them, gets the bytes when they are. */
__device__ __forceinline__ void send16(uint32_t to, float a, float b, float c, float d, uint32_t barrier)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0],{%1,%2,%3,%4},[%5];" ::"r"(to), "f"(a), "f"(b), "f"(c), "f"(d), "r"(barrier) : "memory");
}
__device__ __forceinline__ void send8(uint32_t to, uint32_t a, uint32_t b, uint32_t barrier, bool now = true)
{
    asm volatile("{.reg .pred p;\nsetp.ne.u32 p,%4,0;\n@p st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.u32 [%0],{%1,%2},[%3];}" ::"r"(to), "r"(a), "r"(b),
                 "r"(barrier), "r"((uint32_t)now)
                 : "memory");
}
/* Stored there if `now`, and seen by all behind cluster_meet(). */
__device__ __forceinline__ void put_cluster_float(uint32_t to, float v, bool now)
{
    asm volatile("{.reg .pred p;\nsetp.ne.u32 p,%2,0;\n@p st.shared::cluster.f32 [%0],%1;}" ::"r"(to), "f"(v), "r"((uint32_t)now) : "memory");
}
__device__ __forceinline__ float cluster_float(uint32_t at)
{
    float v;
    asm volatile("ld.shared::cluster.f32 %0,[%1];" : "=f"(v) : "r"(at));
    return v;
}
#endif
