/* tape_choice.cuh: the experts of a row, chosen in tape.cu by the warp that brings tiles, of every thread block alike (route.cuh). It does so as soon as
 * the router's outputs are told, brings the tiles, and then sees what the experts' results are multiplied by. */
#ifndef CB_CUDA_TAPE_CHOICE_CUH
#define CB_CUDA_TAPE_CHOICE_CUH
#include "cuda/tape_rows.cuh"
#include "cuda/route.cuh"

template <int EXPERTS> struct choice {
    enum { PER = EXPERTS / 32 };
    uint2 *chosen;           /* by rank: the key of the logit, later the factor; the expert. In shared memory */
    float u[PER];

    __device__ __forceinline__ void make(const cu_tape_phase &p, const float *told, cu_step *step)
    {
        const cu_tape_route &r = p.u.m.route;
        int lane = threadIdx.x % 32;
        const float *z = told + r.logits + lane;
        bool missing = true, bad = false;
        pdl_wait(); /* words are those of this step */
        each<PER>([&](int j) { u[j] = lane + 32 * j < r.n ? told_word(z + 32 * j) : 0; });
        while (missing) {
            missing = false;
            each<PER>([&](int j) { missing |= untold(u[j]); });
            if (!missing) break;
            not_yet();
            each<PER>([&](int j) { if (untold(u[j])) u[j] = told_word(z + 32 * j); });
        }
        __syncwarp();
        each<PER>([&](int j) { bad |= is_bad(u[j]); });
        if (__any_sync(FULL, bad)) {
            put_least(&step->bad_op, r.op, blockIdx.x == 0 && lane == 0);
            each<PER>([&](int j) { u[j] = 0; }); /* any k experts */
        }
        choose(u, r.n, r.k, chosen);
        __syncwarp();
    }

    /* What results are multiplied by, in place of the keys; the phase as above. SCALED: and by a factor of the expert. */
    template <bool SCALED> __device__ __forceinline__ void weigh(const cu_tape_phase &p)
    {
        const cu_tape_route &r = p.u.m.route;
        int lane = threadIdx.x % 32, at = min(lane, r.k - 1);
        float m = from_ordered(chosen[0].x), all = 1, sum = 0;
        if (r.kind == CB_ROUTE_SOFTMAX_ALL) {
            float s = 0;
            each<PER>([&](int j) { s = lane + 32 * j < r.n ? s + cb_expf(u[j] - m) : s; });
            all = lane_fold(s);
        }
        float w = cb_expf(from_ordered(chosen[at].x) - m);
        if (r.kind == CB_ROUTE_SOFTMAX_ALL) w = w / all;
        for (int i = 0; i < r.k; i++) sum += __shfl_sync(FULL, w, i);
        __syncwarp();
        w = w / sum;
        if (SCALED && p.u.m.expert_scale) w = w * p.u.m.expert_scale[chosen[at].y];
        if (lane < r.k) chosen[lane].x = __float_as_uint(w);
        __syncwarp();
    }

    /* Of CU_TAPE_EXPERTS: the stored tile that pair of tiles t is; experts stand by rank. */
    __device__ __forceinline__ int tile_of(const cu_tape_phase &p, int t) const
    {
        int rank = (unsigned)t / (unsigned)p.u.m.route.tiles;
        return (int)chosen[rank].y * p.u.m.route.step + (t - rank * p.u.m.route.tiles);
    }
    /* Of CU_TAPE_DOWN: the matrix of piece k of the block, whose first tile is `first`, and its tile there. */
    __device__ __forceinline__ const cu_tape_matrix &part_of(const cu_tape_phase &p, int first, int k, int &t) const
    {
        int tile = (unsigned)k / (unsigned)p.pieces, rank = k - tile * p.pieces;
        bool shared = rank == p.u.m.route.k;
        t = first + tile + (shared ? 0 : (int)chosen[rank].y * p.u.m.route.step);
        return p.u.m.matrix[shared];
    }
};
#endif
