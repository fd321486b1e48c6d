/* gemm.cu: linear layers on many rows (prefill), every bit that of cb_linear_c. Portable form: mma.sync on int8, sm_80 and later;
 * gemm_sm90.cu holds the wgmma form. The integer sums of a group are exact whatever their order; the float chain runs over the
 * groups in order, one group at a time, for each output in one lane. */
#include "cuda/gemm.cuh"

namespace gm {

/* A block of WR x WT warps; a warp owns MT*16 outputs times NT*8 tokens. */
template <class F_, int WR_, int WT_, int MT_, int NT_, int STAGES_, int BLOCKS_> struct shape {
    using F = F_;
    static constexpr int WR = WR_, WT = WT_, MT = MT_, NT = NT_, STAGES = STAGES_, BLOCKS = BLOCKS_;
    static constexpr int RT = WR * MT * 16, TT = WT * NT * 8, THREADS = 32 * WR * WT;
    static constexpr int X_BYTES = TT * F::TB, W_BYTES = RT * F::WS, STAGE = X_BYTES + W_BYTES;
    static constexpr int AUX_BYTES = AUX * (RT + TT) * 8;
    static constexpr int SMEM = STAGES * STAGE + 2 * AUX_BYTES + TT * 12;
    static_assert(THREADS >= RT + TT || THREADS >= (RT > TT ? RT : TT), "aux");
};

template <class S> __device__ __forceinline__ void unpack(uint32_t (&A)[S::F::KS * (S::F::PLANES ? 2 : 1)][S::MT][4], uint32_t w, int gi, int row0, int lane)
{
    using F = typename S::F;
    const int r = lane >> 2, c = lane & 3, swz = w_swizzle<F>(r);
#pragma unroll
    for (int mt = 0; mt < S::MT; mt++) {
        const uint32_t p = w + (row0 + mt * 16 + r) * F::WS + c * 4;
        auto word = [&](int byte, int h) { return lds_u32(p + h * 8 * F::WS + (((byte >> 4) ^ swz) << 4)); };
        if constexpr (F::XB == 16) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                uint32_t v = word(gi * F::WB, h);
                A[0][mt][h] = v & F::MASK;
                A[0][mt][2 + h] = (v >> F::BITS) & F::MASK;
            }
        } else {
#pragma unroll
            for (int m = 0; m < F::WB; m += 32)
#pragma unroll
                for (int h = 0; h < 4; h++) {
                    uint32_t v = word(gi * F::WB + m + (h >> 1) * 16, h & 1);
#pragma unroll
                    for (int j = 0; j < F::PACK; j++) A[m / 32 * F::PACK + j][mt][h] = (v >> (F::BITS * j)) & F::MASK;
                }
        }
    }
}

template <class S> __device__ __forceinline__ void gemm(const cu_linear &a)
{
    using F = typename S::F;
    constexpr int MT = S::MT, NT = S::NT, KS = F::KS;
    extern __shared__ __align__(1024) uint8_t smem[];
    const uint32_t base = address(smem), aux_at = base + S::STAGES * S::STAGE;
    uint32_t *rows16 = (uint32_t *)(smem + S::STAGES * S::STAGE + 2 * S::AUX_BYTES);
    int *x_rows = (int *)rows16 + S::TT, *y_rows = x_rows + S::TT;
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, G = a.w.n_groups;
    const int n_steps = (G + F::SG - 1) / F::SG, n_tiles = (a.w.n_out + S::RT - 1) / S::RT;

    pdl_trigger();
    pdl_wait();
    tile t;
    t.n0 = (int)(blockIdx.x % n_tiles) * S::RT;
    find_rows<S::TT>(a, (int)(blockIdx.x / n_tiles), t);
    if (t.rows == 0) return;
    for (int i = tid; i < S::TT; i += S::THREADS) { /* a missing token repeats the first */
        int r = t.r0 + (i < t.rows ? i : 0), xr = a.x_row ? a.x_row[r] : r;
        x_rows[i] = xr;
        y_rows[i] = a.y_row ? a.y_row[r] : r;
        rows16[i] = (uint32_t)((int64_t)xr * a.x.stride >> 4);
    }
    __syncthreads();

    const loader<F, S::RT, S::TT, S::THREADS> load = {tid};
    auto stage = [&](int i) {
        if (i < n_steps) {
            uint32_t at = base + (uint32_t)(i % S::STAGES) * S::STAGE;
            load.tokens(a, rows16, at, i);
            load.weights(a, t, at + S::X_BYTES, i);
        }
        copies_end();
    };
    /* Scales of a token and of a row: by different threads when there are enough. */
    constexpr bool APART = S::THREADS >= S::RT + S::TT;
    const int my_row = APART ? tid - S::TT : tid;
    const bool has_token = tid < S::TT, has_row = my_row >= 0 && my_row < S::RT;
    const int64_t aux_row = t.row0 + min(t.n0 + (has_row ? my_row : 0), a.w.n_out - 1), aux_token = x_rows[has_token ? tid : 0];
    aux ax, aw;
    auto aux_fetch = [&](int g) {
        if (has_token) ax.fetch_token(a.x, aux_token, g);
        if (has_row) (APART ? ax : aw).template fetch_row<F>(a.w, aux_row, g);
    };
    auto aux_store = [&](int chunk) {
        uint32_t at = aux_at + (uint32_t)(chunk & 1) * S::AUX_BYTES;
        if (has_token) ax.store(at + tid * 8, S::TT * 8);
        if (has_row) {
            (APART ? ax : aw).widen(F::PLANES ? CU_S_F32 : a.w.scale_type);
            (APART ? ax : aw).store(at + AUX * S::TT * 8 + my_row * 8, S::RT * 8);
        }
    };

    for (int i = 0; i < S::STAGES - 1; i++) stage(i);
    aux_fetch(0);
    aux_store(0);

    float acc[MT][NT][4], tot[MT][NT][4];
#pragma unroll
    for (int i = 0; i < MT * NT * 4; i++) (&acc[0][0][0])[i] = 0.0f, (&tot[0][0][0])[i] = -0.0f; /* -0 + x is x */
    int seg = 0;
    auto flush = [&](int done) { /* segments that end with group done-1; an empty one adds +0 */
        for (; seg < CU_SEGMENTS && seg_end(seg, G) == done; seg++) {
#pragma unroll
            for (int i = 0; i < MT * NT * 4; i++) {
                float &y = (&tot[0][0][0])[i], &v = (&acc[0][0][0])[i];
                y = __fadd_rn(y, v);
                v = 0.0f;
            }
        }
    };
    flush(0);

    const int row0 = warp / S::WT * MT * 16, tok0 = warp % S::WT * NT * 8, r = lane >> 2, c = lane & 3;
    /* ldmatrix: lanes 0-7 and 8-15 address the halves of a k-step's hi bytes, 16-31 those of its lo bytes. */
    const int lm_pos = (lane >> 4) * F::GROUP + (lane >> 3 & 1) * 16, lm_token = tok0 + (lane & 7);

    for (int step = 0; step < n_steps; step++) {
        copies_wait<S::STAGES - 2>();
        __syncthreads();
        stage(step + S::STAGES - 1);
        const bool fetch = step * F::SG % AUX == 0 && step * F::SG + AUX < G;
        if (fetch) aux_fetch(step * F::SG + AUX);
        const uint32_t at = base + (uint32_t)(step % S::STAGES) * S::STAGE;
#pragma unroll
        for (int gi = 0; gi < F::SG; gi++) {
            const int g = step * F::SG + gi;
            if (F::SG > 1 && g >= G) break;
            const uint32_t sc = aux_at + (uint32_t)(g / AUX & 1) * S::AUX_BYTES;
            const uint32_t dx = sc + (g % AUX * S::TT + tok0 + 2 * c) * 8, sb = sc + (AUX * S::TT + g % AUX * S::RT + row0 + r) * 8;
            uint32_t A[KS * (F::PLANES ? 2 : 1)][MT][4];
            unpack<S>(A, at + S::X_BYTES, gi, row0, lane);
            float2 s[MT][2];
#pragma unroll
            for (int i = 0; i < MT * 2; i++) s[i / 2][i % 2] = lds_float2(sb + i * 64);
            uint32_t lm[KS];
#pragma unroll
            for (int ks = 0; ks < KS; ks++) lm[ks] = at + x_at<S::TT>(x_pos<F>(gi, 0, ks) + lm_pos, lm_token);
#pragma unroll
            for (int nt = 0; nt < NT; nt++) {
                int h[MT][4], l[MT][4], m[MT][4];
#pragma unroll
                for (int i = 0; i < MT * 4; i++) (&h[0][0])[i] = (&l[0][0])[i] = (&m[0][0])[i] = 0;
#pragma unroll
                for (int ks = 0; ks < KS; ks++) {
                    uint32_t B[4];
                    matrices(B, lm[ks] + nt * 1024);
#pragma unroll
                    for (int mt = 0; mt < MT; mt++) {
                        const uint32_t *A0 = A[ks][mt];
                        if (F::PLANES) {
                            const uint32_t *A1 = A[KS + ks][mt];
                            mma_s8s8(h[mt], A0[0], A0[1], A0[2], A0[3], B[0], B[1]);
                            mma_s8s8(m[mt], A0[0], A0[1], A0[2], A0[3], B[2], B[3]);
                            mma_s8s8(m[mt], A1[0], A1[1], A1[2], A1[3], B[0], B[1]);
                            mma_s8s8(l[mt], A1[0], A1[1], A1[2], A1[3], B[2], B[3]);
                        } else {
                            mma_u8s8(h[mt], A0[0], A0[1], A0[2], A0[3], B[0], B[1]);
                            mma_u8s8(l[mt], A0[0], A0[1], A0[2], A0[3], B[2], B[3]);
                        }
                    }
                }
                const float4 d = lds_float4(dx + nt * 64);
#pragma unroll
                for (int mt = 0; mt < MT; mt++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        float D = F::PLANES ? hl_to_f32(h[mt][e] * 256 + m[mt][e], l[mt][e]) : (float)(h[mt][e] * 256 + l[mt][e]);
                        fold(acc[mt][nt][e], D, e & 1 ? d.z : d.x, e & 1 ? d.w : d.y, s[mt][e >> 1].x, s[mt][e >> 1].y, F::AFFINE);
                    }
            }
            flush(g + 1);
        }
        if (fetch) aux_store(step * F::SG / AUX + 1);
    }

#pragma unroll
    for (int nt = 0; nt < NT; nt++)
#pragma unroll
        for (int odd = 0; odd < 2; odd++) {
            const int tok = tok0 + nt * 8 + 2 * c + odd;
            if (tok >= t.rows) continue;
            float *y = a.y + (int64_t)y_rows[tok] * a.y_stride;
#pragma unroll
            for (int mt = 0; mt < MT; mt++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const int n = t.n0 + row0 + mt * 16 + h * 8 + r;
                    if (n < a.w.n_out) put(y + n, tot[mt][nt][2 * h + odd], a.add);
                }
        }
}

} // namespace gm

#define GEMM(name, ...)                                                                                                            \
    extern "C" __global__ void __launch_bounds__((gm::shape<__VA_ARGS__>::THREADS), (gm::shape<__VA_ARGS__>::BLOCKS))              \
        name(const __grid_constant__ cu_linear a)                                                                                  \
    {                                                                                                                              \
        gm::gemm<gm::shape<__VA_ARGS__>>(a);                                                                                       \
    }

/* At most 99 KB of shared memory, which all GPUs from sm_80 on have. */
GEMM(k_gemm_q4g64, gm::fmt<4, 64, 2>, 4, 2, 2, 4, 3, 2)
GEMM(k_gemm_q2g128, gm::fmt<2, 128, 1>, 4, 2, 2, 4, 3, 2)
GEMM(k_gemm_q4g32, gm::fmt<4, 32, 2>, 4, 2, 2, 4, 5, 2)
GEMM(k_gemm_q8g64, gm::fmt<8, 64, 1>, 4, 2, 2, 4, 4, 2)
GEMM(k_gemm_planes, gm::fmt<8, 64, 1, true>, 4, 2, 2, 4, 3, 1)
