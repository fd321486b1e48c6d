/* wgmma.cuh: the instructions of src/cuda/wgmma.cuh in C++ (emulate.h). Multiplies are done at once, each warp's rows by themselves: that a
 * result is read too early, or that registers change under a multiply, is not found here. */
#ifndef CB_CUDA_WGMMA_CUH
#define CB_CUDA_WGMMA_CUH
#include "cuda/ptx.cuh"

namespace gm {

static inline bool bar_ready(uint32_t bar, uint32_t parity) { return emu_barrier_at(bar)->parity != parity; }

static inline void fetch_box(uint32_t to, const void *map, int x, int y, uint32_t barrier)
{
    fake_map m;
    memcpy(&m, map, sizeof m);
    if (to % 128 || x % 16 || m.box_bytes != m.swizzle) __builtin_trap();
    for (uint32_t r = 0; r < m.box_rows; r++)
        for (uint32_t b = 0; b < m.box_bytes; b += 16) {
            const int64_t row = (int64_t)y + r, byte = (int64_t)x + b;
            const bool there = row >= 0 && row < (int64_t)m.rows && byte >= 0 && byte < (int64_t)m.row_bytes;
            copy_or_zero16(emu_swizzled(to + r * m.box_bytes + b, m.swizzle), m.at + row * (int64_t)m.stride + byte, there);
        }
    emu_sent(barrier, (int)(m.box_bytes * m.box_rows));
}

static inline void fence_async() {}
static inline void wgmma_fence() {}
static inline void wgmma_commit() {}
template <int N> static inline void wgmma_wait() {}
template <class T> static inline void pin(T &) {}
static inline uint64_t wgmma_desc(uint32_t at) { return ((uint64_t)0x40000040u << 32) | at; }

template <class A8, int N> static inline void emu_wgmma(int (&d)[N], const uint32_t (&a)[4], uint64_t desc, int add)
{
    const emu_lanes &all = emu_meet(a, 4);
    const int lane = emu_thread & 31, r = lane >> 2, c = lane & 3;
    const uint32_t b0 = ((uint32_t)desc & 0x3fff) * 16;
    if (desc >> 32 != 0x40000040u || ((uint32_t)desc >> 16 & 0x3fff) != 1) __builtin_trap(); /* rows of 128 bytes, eight of them 1024 bytes */
    for (int i = 0; i < N; i++) {
        const int row = i / 2 % 2, n = i / 4 * 8 + 2 * c + i % 2;
        int sum = add ? d[i] : 0;
        for (int k = 0; k < 32; k++) {
            const int from = k % 16 / 4, half = k / 16;
            const int8_t b = (int8_t)*emu_at(emu_swizzled(b0 + (uint32_t)n * 128 + (uint32_t)k, 128));
            sum += (int)(A8)(all[4 * r + from][row + 2 * half] >> 8 * (k % 4)) * b;
        }
        d[i] = sum;
    }
    __syncwarp(); /* nobody has given new words before all have read these */
}
template <int N> static inline void wgmma_u8s8(int (&d)[N], const uint32_t (&a)[4], uint64_t desc, int add) { emu_wgmma<uint8_t>(d, a, desc, add); }
template <int N> static inline void wgmma_s8s8(int (&d)[N], const uint32_t (&a)[4], uint64_t desc, int add) { emu_wgmma<int8_t>(d, a, desc, add); }

} // namespace gm
#endif
