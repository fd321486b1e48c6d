/* ptx.cuh: the instructions of src/cuda/ptx.cuh in C++ (emulate.h). */
#ifndef CB_CUDA_PTX_CUH
#define CB_CUDA_PTX_CUH
#include "tests/cuda/fake_map.h"

static inline void pdl_trigger() {}
static inline void pdl_wait() {}
static inline float reciprocal_about(float x) { return 1.0f / x; }
static inline void fence() {}
static inline int add_in_order(int *p, int v, bool now) { return now ? atomicAdd(p, v) : 0; }
template <class T> static inline void emu_put(void *p, const T &v, bool now)
{
    if (now) memcpy(p, &v, sizeof v);
}
static inline void put_u16(void *p, uint32_t v, bool now) { emu_put(p, (uint16_t)v, now); }
static inline void put_u32(void *p, uint32_t v, bool now) { emu_put(p, v, now); }
static inline void put_float2(float2 *p, float2 v, bool now) { emu_put(p, v, now); }
static inline void put_float4(float4 *p, float4 v, bool now) { emu_put(p, v, now); }
static inline void put_least(int *p, int v, bool now)
{
    if (now && v < *p) *p = v;
}
static inline float4 get_float4(const float *p, bool now) { return now ? *(const float4 *)p : make_float4(0, 0, 0, 0); }
static inline float get_float(const float *p, bool now) { return now ? *p : 0; }
static inline void leave(bool) {} /* what is left to do comes to the same */

/* Fragments as PTX has them: lane (r, c) = (lane / 4, lane % 4) gives rows r and r + 8 of A at k = 4c .. and 16 + 4c .., and column r of
 * B likewise; it gets columns 2c and 2c + 1 of rows r and r + 8. */
template <class A8> static inline void emu_mma(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    uint32_t w[6] = {a[0], a[1], a[2], a[3], b0, b1};
    const emu_lanes &all = emu_meet(w, 6);
    int lane = emu_thread & 31, r = lane >> 2, col = 2 * (lane & 3);
    for (int i = 0; i < 4; i++) {
        int sum = 0, row = i / 2;
        for (int k = 0; k < 32; k++) {
            int from = k % 16 / 4, half = k / 16, shift = 8 * (k % 4);
            sum += (int)(A8)(all[4 * r + from][row + 2 * half] >> shift) * (int)(int8_t)(all[4 * (col + i % 2) + from][4 + half] >> shift);
        }
        c[i] += sum;
    }
}
static inline void mma_u8s8(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    emu_mma<uint8_t>(c, {a0, a1, a2, a3}, b0, b1);
}
static inline void mma_s8s8(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    emu_mma<int8_t>(c, {a0, a1, a2, a3}, b0, b1);
}
static inline void mma_first_s8s8(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    c[0] = c[1] = c[2] = c[3] = 0;
    emu_mma<int8_t>(c, a, b0, b1);
}
static inline void mma_first_u8s8(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    c[0] = c[1] = c[2] = c[3] = 0;
    emu_mma<uint8_t>(c, a, b0, b1);
}
static inline void mma_bf16(float (&)[4], const uint32_t (&)[4], const uint32_t (&)[2]) {} /* for a probe only */

static inline uint32_t load_u32(const void *p) { return *(const uint32_t *)p; }
static inline uint32_t load_u16(const void *p) { return *(const uint16_t *)p; }
template <int N> static inline void load_words(uint32_t (&v)[N], const void *p) { memcpy(v, p, sizeof v); }
static inline void prefetch(const void *) {}
/* A value that is new to the compiler, which then computes what depends on it where that is used, in place of keeping it in registers. */
template <class T> static inline void forget(T &) {}
template <class T> static inline void hold(T *&) {}
template <class T> static inline T held(T v, uint32_t) { return v; }
static inline uint32_t after(uint32_t v, float, uint32_t) { return v; }
static inline void touch(uint64_t) {}

/* Static shared memory is near the dynamic one, in the same library. */
static inline uint32_t address(const void *p) { return (uint32_t)((const unsigned char *)p - emu_dynamic); }
static inline unsigned char *emu_at(uint32_t at) { return emu_dynamic + (int32_t)at; }
template <int N> static inline void lds(uint32_t (&v)[N], uint32_t at) { memcpy(v, emu_at(at), sizeof v); }
template <class T> static inline T emu_load(uint32_t at)
{
    T v;
    memcpy(&v, emu_at(at), sizeof v);
    return v;
}
static inline uint32_t lds_u32(uint32_t at) { return emu_load<uint32_t>(at); }
static inline uint32_t lds_u16(uint32_t at) { return emu_load<uint16_t>(at); }
static inline float lds_float(uint32_t at) { return emu_load<float>(at); }
static inline float2 lds_float2(uint32_t at) { return emu_load<float2>(at); }
static inline float4 lds_float4(uint32_t at) { return emu_load<float4>(at); }
template <int N> static inline void sts(uint32_t at, const uint32_t *v) { memcpy(emu_at(at), v, 4 * N); }
static inline void sts_u8(uint32_t at, uint32_t v) { *emu_at(at) = (unsigned char)v; }
static inline void sts_u16(uint32_t at, uint32_t v)
{
    uint16_t u = (uint16_t)v;
    memcpy(emu_at(at), &u, 2);
}
static inline void sts_float(uint32_t at, float a) { memcpy(emu_at(at), &a, 4); }
static inline void sts_float2(uint32_t at, float a, float b)
{
    float v[2] = {a, b};
    memcpy(emu_at(at), v, sizeof v);
}
static inline void sts_float4(uint32_t at, float a, float b, float c, float d)
{
    float v[4] = {a, b, c, d};
    memcpy(emu_at(at), v, sizeof v);
}
static inline void matrices(uint32_t (&v)[4], uint32_t at)
{
    const emu_lanes &all = emu_give(at);
    int lane = emu_thread & 31;
    for (int j = 0; j < 4; j++) v[j] = emu_load<uint32_t>(all[8 * j + lane / 4][0] + 4 * (lane % 4));
}

static inline void copy16(uint32_t to, const void *from) { memcpy(emu_at(to), from, 16); }
static inline void copy4(uint32_t to, const void *from) { memcpy(emu_at(to), from, 4); }
static inline void copy_or_zero16(uint32_t to, const void *from, bool there)
{
    if (there) memcpy(emu_at(to), from, 16);
    else memset(emu_at(to), 0, 16);
}
static inline void copies_end() {}
template <int N> static inline void copies_wait() {}

template <int N> static inline void fewer_registers() {}
template <int N> static inline void more_registers() {}

/* Barriers of some threads, of each block of a cluster. A block leaves none half full. */
struct emu_bar {
    int arrived;
    unsigned meetings;
};
static emu_bar emu_bars[EMU_MAX_CLUSTER][16];
static inline emu_bar &emu_bar_of(int id) { return emu_bars[emu_thread / emu_block_dim.x][id]; }
static inline void arrive_among(int id, int threads)
{
    emu_bar &b = emu_bar_of(id);
    if (++b.arrived < threads) return;
    b.arrived = 0;
    b.meetings++;
}
static inline void barrier_among(int id, int threads)
{
    emu_bar &b = emu_bar_of(id);
    unsigned before = b.meetings;
    arrive_among(id, threads);
    while (b.meetings == before) emu_pause();
}

/* A barrier: arrivals of a phase, those still missing, bytes it still waits for, and the phase's parity. */
struct emu_barrier {
    uint16_t arrivals, missing;
    int32_t bytes : 31;
    uint32_t parity : 1;
};
static inline emu_barrier *emu_barrier_at(uint32_t at) { return (emu_barrier *)emu_at(at); }
static inline void barrier_init(uint32_t at, int arrivals) { *emu_barrier_at(at) = {(uint16_t)arrivals, (uint16_t)arrivals, 0, 0}; }
static inline void barrier_arrive(uint32_t at, int n)
{
    emu_barrier *b = emu_barrier_at(at);
    if (b->missing < n) __builtin_trap();
    b->missing -= n;
    if (b->missing || b->bytes) return;
    b->missing = b->arrivals;
    b->parity ^= 1;
}
static inline void barrier_arrive_copied(uint32_t at) { barrier_arrive(at, 1); }
static inline void barrier_expect(uint32_t at, uint32_t bytes)
{
    emu_barrier_at(at)->bytes += (int32_t)bytes;
    barrier_arrive(at, 1);
}
static inline void barrier_wait(uint32_t at, uint32_t parity)
{
    while (emu_barrier_at(at)->parity == parity) emu_pause();
}

static inline void barrier_wait_cluster(uint32_t at, uint32_t parity) { barrier_wait(at, parity); }
static inline int cluster_rank() { return (int)(emu_block.x % emu_cluster); }
static inline void cluster_meet() { emu_cluster_meet(); }
static inline void cluster_begin() { emu_cluster_meet(); }
static inline uint32_t of_rank(uint32_t at, int rank) { return at + (uint32_t)((rank - cluster_rank()) * EMU_BLOCK_STRIDE); }
static inline void emu_sent(uint32_t barrier, int bytes)
{
    emu_barrier *b = emu_barrier_at(barrier);
    if (!b->missing && !b->bytes) __builtin_trap(); /* nobody expects them */
    b->bytes -= bytes;
    if (b->bytes < 0 && !b->missing) __builtin_trap(); /* before whoever expects them has arrived they may come */
    if (b->bytes || b->missing) return;
    b->missing = b->arrivals;
    b->parity ^= 1;
}
static inline void bulk_copy(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier)
{
    if ((to | (uintptr_t)from | bytes) & 15 || !bytes) __builtin_trap();
    memcpy(emu_at(to), from, bytes);
    emu_sent(barrier, (int)bytes);
}
static inline void bulk_copy_once(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier) { bulk_copy(to, from, bytes, barrier); }
static inline void fence_copies() {}
/* 16-byte chunks are XORed with the number of the 128 bytes they stand in. */
static inline uint32_t emu_swizzled(uint32_t at, uint32_t bytes) { return at ^ ((at >> 7 & (bytes / 16 - 1)) << 4); }
static inline void fetch_rows(uint32_t to, const void *map, int y, uint32_t barrier)
{
    fake_map m;
    memcpy(&m, map, sizeof m);
    if (to % 1024 || (uintptr_t)map % 64 || m.box_bytes != 128 || m.swizzle != 128 || y < 0 || y + m.box_rows > m.rows) __builtin_trap();
    for (uint32_t p = 0; p < m.box_pieces; p++)
        for (uint32_t r = 0; r < m.box_rows; r++)
            for (uint32_t b = 0; b < 128; b += 16)
                memcpy(emu_at(emu_swizzled(to + (p * m.box_rows + r) * 128 + b, 128)), m.at + (y + (int64_t)r) * (int64_t)m.stride + 128 * p + b, 16);
    emu_sent(barrier, (int)(128 * m.box_rows * m.box_pieces));
}
static inline void acquire_map(const void *) {}
static inline void prefetch_map(const void *) {}
static inline int dot_u8s8(uint32_t a, uint32_t b, int c)
{
    for (int i = 0; i < 32; i += 8) c += (int)(a >> i & 255) * (int8_t)(b >> i);
    return c;
}
static inline void tell_word(float *p, float v) { *(volatile float *)p = v; }
static inline void tell_words2(float *p, float a, float b)
{
    tell_word(p, a);
    tell_word(p + 1, b);
}
static inline float told_word(const float *p) { return *(const volatile float *)p; }
static inline float4 told_words(const float *p) { return make_float4(told_word(p), told_word(p + 1), told_word(p + 2), told_word(p + 3)); }
static inline void not_yet() { emu_pause(); }
static inline void send16(uint32_t to, float a, float b, float c, float d, uint32_t barrier)
{
    sts_float4(to, a, b, c, d);
    emu_sent(barrier, 16);
}
static inline void send8(uint32_t to, uint32_t a, uint32_t b, uint32_t barrier, bool now = true)
{
    uint32_t v[2] = {a, b};
    if (!now) return;
    sts<2>(to, v);
    emu_sent(barrier, 8);
}
static inline void put_cluster_float(uint32_t to, float v, bool now)
{
    if (now) sts_float(to, v);
}
static inline float cluster_float(uint32_t at) { return lds_float(at); }
#endif
