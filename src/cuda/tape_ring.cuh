/* tape_ring.cuh: what the warps of tape.cu share: the ring of tiles, and a window of the tape. */
#ifndef CB_CUDA_TAPE_RING_CUH
#define CB_CUDA_TAPE_RING_CUH
#include "cuda/tape_rows.cuh"

/* ---- tiles ---- */

__device__ __forceinline__ uint32_t full(uint32_t sm, uint32_t slot) { return sm + 8 * slot; }
__device__ __forceinline__ uint32_t empty(uint32_t sm, uint32_t slot) { return sm + 8 * (CU_TAPE_SLOTS + slot); }
__device__ __forceinline__ uint32_t tile_at(uint32_t sm, uint32_t slot) { return sm + CU_TAPE_AT + 8 * slot; } /* where it is; where it began, counted without an end */

/* Where the next tile goes. */
struct ring {
    uint32_t sm, first, room; /* first: its beginning */
    uint32_t next, oldest, at, begin, begin_oldest, slot;
    __device__ __forceinline__ ring(const cu_tape &a, uint32_t sm)
        : sm(sm), first(sm + a.ring), room(a.ring_bytes), next(0), oldest(0), at(0), begin(0), begin_oldest(0), slot(0)
    {
    }
    __device__ __forceinline__ bool fits(uint32_t n, uint32_t bytes) const
    {
        return at + n * bytes <= room && next + n - oldest <= CU_TAPE_SLOTS && begin + n * bytes - begin_oldest <= room;
    }
    /* By the whole warp, when there is room for a tile: n lanes, at most `most`, get one each: its address; its slot is `slot`. */
    __device__ __forceinline__ uint32_t take(uint32_t bytes, int most, int &n)
    {
        int lane = threadIdx.x % 32;
        if (at + bytes > room) begin += room - at, at = 0;
        if (oldest == next) begin_oldest = begin;
        while (!fits(1, bytes)) {
            barrier_wait(empty(sm, oldest % CU_TAPE_SLOTS), oldest / CU_TAPE_SLOTS & 1);
            begin_oldest = ++oldest == next ? begin : lds_u32(tile_at(sm, oldest % CU_TAPE_SLOTS) + 4);
        }
        n = __popc(__ballot_sync(FULL, lane < most && fits(lane + 1, bytes)));
        slot = (next + lane) % CU_TAPE_SLOTS;
        uint32_t to = first + at + lane * bytes, v[2] = {to, begin + lane * bytes};
        if (lane < n) sts<2>(tile_at(sm, slot), v);
        next += n;
        at += n * bytes;
        begin += n * bytes;
        return to;
    }
};

/* ---- phases ---- */

/* A few of them are in shared memory. The computing warps and the one that brings tiles leave each one, whose place then gets another. */
struct window {
    unsigned char *base;
    uint32_t sm;
    enum { LEAVE = CU_TAPE_WARPS + 1 };
    __device__ __forceinline__ uint32_t there(int i) const { return sm + CU_TAPE_LISTED + 8 * (i % CU_TAPE_WINDOW); }
    __device__ __forceinline__ uint32_t left(int i) const { return there(i) + 8 * CU_TAPE_WINDOW; }
    __device__ __forceinline__ const cu_tape_phase &get(int i) const
    {
        barrier_wait(there(i), i / CU_TAPE_WINDOW & 1);
        return ((const cu_tape_phase *)(base + CU_TAPE_LIST))[i % CU_TAPE_WINDOW];
    }
    /* A warp needs it no more. */
    __device__ __forceinline__ void leave(int i) const
    {
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(left(i), 1);
    }
    /* One thread. */
    __device__ __forceinline__ void bring(const cu_tape_phase *from, int i) const
    {
        barrier_expect(there(i), sizeof(cu_tape_phase));
        bulk_copy(sm + CU_TAPE_LIST + i % CU_TAPE_WINDOW * (int)sizeof(cu_tape_phase), from + i, sizeof(cu_tape_phase), there(i));
    }
};
static_assert(sizeof(cu_tape_phase) % 16 == 0 && CU_TAPE_LIST % 16 == 0, "whole copies");

/* ---- a warp that computes ---- */

struct worker {
    const cu_tape &a;
    uint32_t sm;
    float *shared;       /* the same */
    float *told;         /* this step's words */
    /* Of the session; in shared memory, since registers are short. */
    __device__ __forceinline__ int slot() const { return (int)lds_u32(sm + CU_TAPE_SESSION); }
    __device__ __forceinline__ int pos() const { return (int)lds_u32(sm + CU_TAPE_SESSION + 4); }
    uint32_t next;       /* tiles of the block so far */
    /* Of the row at hand: 1: it has a remainder; 2: the plain one. All say the same. */
    __device__ __forceinline__ uint32_t rests() const { return lds_u32(sm + CU_TAPE_SESSION + 8); }
    __device__ __forceinline__ void have_rests(uint32_t r) const { sts_float(sm + CU_TAPE_SESSION + 8, __uint_as_float(r)); }
};
#endif
