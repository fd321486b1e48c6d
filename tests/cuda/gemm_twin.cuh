/* gemm_twin.cuh: what gemm_sm90.cu would be if the weights were dequantised: the same producers, stages and fragments, but a consumer
 * turns codes into bf16 weights in registers and multiplies them by bf16 activations, without a fold. For benchmarks only: the
 * difference is the price of exact sums. 4 bits, groups of 64; activations [row][group][64] in the order of twin_element(). */
#include "cuda/gemm_sm90.cu"

namespace gm {

struct twin_fmt {
    static constexpr int BITS = 4, GROUP = 64, SG = 1, PACK = 1, XB = 64, WB = 32, KS = 2, TB = 128, WS = 32;
    static constexpr bool PLANES = false, AFFINE = true, TILED = false;
};
struct twin_shape {
    using F = twin_fmt;
    static constexpr int WGS = 2, RT = 128, TT = 256, STAGES = 5, THREADS = 384;
    static constexpr int X_BYTES = TT * F::TB, W_BYTES = RT * F::WS, AUX_BYTES = (RT + TT) * 8, STAGE = X_BYTES + W_BYTES + AUX_BYTES;
    static constexpr int TILE = 16 + TT * 4, TILES = STAGES + 1; /* its consumers find out for themselves */
    static constexpr int BARS = STAGES * STAGE, TOLD = BARS + STAGES * 16, SMEM = TOLD + TILES * TILE + 1024;
    static_assert(STAGE % 1024 == 0 && SMEM <= 232448, "shape");
};

/* Which element of a group stands at position p. */
__host__ __device__ static inline int twin_element(int p)
{
    int s = p / 16, k = p % 16;
    return 32 * (s >> 1) + 8 * (k % 8 / 2) + 2 * (s & 1) + k / 8 + 4 * (k & 1);
}

__device__ __forceinline__ void wgmma_bf16(float (&d)[128], const uint32_t (&a)[4], uint64_t desc)
{
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
        "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
        "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
        "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
        "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
        "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127},"
        "{%128,%129,%130,%131},%132,1,1,1,0;"
        :
          "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
          "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
          "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]),
          "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]),
          "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]),
          "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]),
          "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]),
          "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]),
          "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(desc));
}

struct twin {
    float acc[128];
    uint32_t A[2][4][4];

    __device__ __forceinline__ void unpack(uint32_t (&to)[4][4], uint32_t w_at, uint32_t sb_at)
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float2 sb = lds_float2(sb_at + h * 64);
            const __nv_bfloat162 s = __float2bfloat162_rn(sb.x), b = __float2bfloat162_rn(sb.y), minus = __float2bfloat162_rn(-128.0f);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t v = lds_u32((w_at ^ (uint32_t)(i * 16)) + h * 256);
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const uint32_t q = ((v >> (4 * j)) & 0x000f000fu) | 0x43004300u; /* 128 + code */
                    const __nv_bfloat162 w = __hfma2(__hadd2(*(const __nv_bfloat162 *)&q, minus), s, b);
                    to[2 * i + (j >> 1)][2 * (j & 1) + h] = *(const uint32_t *)&w;
                }
            }
        }
    }
    __device__ __forceinline__ void hold(uint32_t (&a)[4][4])
    {
        pin(acc);
#pragma unroll
        for (int i = 0; i < 4; i++) pin(a[i]);
        wgmma_fence();
    }
};

__device__ __forceinline__ void twin_consume(const cu_linear &a, uint32_t base, const work &all)
{
    using S = twin_shape;
    const uint32_t bars = base + S::BARS;
    const int tid = threadIdx.x & 127, wg = __shfl_sync(FULL, threadIdx.x >> 7, 0), r = tid >> 2 & 7, c = tid & 3, row = wg * 64 + (tid >> 5) * 16 + r;
    const uint32_t w_off = S::X_BYTES + row * 32 + c * 4 + (w_swizzle<twin_fmt>(r) << 4), sb_off = S::X_BYTES + S::W_BYTES + (S::TT + row) * 8;
    const uint32_t desc0 = __shfl_sync(FULL, base >> 4 | 1u << 16, 0);
    const int G = a.w.n_groups;
    int slot = 0;
    uint32_t phase = 0;
    twin me;
    for (int id = blockIdx.x; id < all.n(); id += gridDim.x) {
        tile t;
        nth_tile<S>(a, all, id, t);
#pragma unroll
        for (int i = 0; i < 128; i++) me.acc[i] = 0.0f;
        barrier_wait(bars + slot * 8, phase);
        fence_async();
        me.unpack(me.A[0], base + slot * S::STAGE + w_off, base + slot * S::STAGE + sb_off);
        for (int g0 = 0; g0 < G; g0 += 2)
#pragma unroll
            for (int u = 0; u < 2; u++) {
                if (u && g0 + 1 >= G) break;
                const bool last = g0 + u == G - 1;
                const int next = last ? slot : slot + 1 == S::STAGES ? 0 : slot + 1;
                const uint32_t next_phase = phase ^ (!last && next == 0);
                barrier_wait(bars + next * 8, next_phase);
                fence_async();
                me.hold(me.A[u]);
#pragma unroll
                for (int ks = 0; ks < 4; ks++) wgmma_bf16(me.acc, me.A[u][ks], wgmma_desc(desc0 + slot * (S::STAGE / 16) + 2 * ks));
                wgmma_commit();
                me.unpack(me.A[u ^ 1], base + next * S::STAGE + w_off, base + next * S::STAGE + sb_off);
                wgmma_wait<0>();
                pin(me.acc);
                __syncwarp();
                if ((tid & 31) == 0) barrier_arrive(bars + (S::STAGES + slot) * 8, 1);
                if (++slot == S::STAGES) slot = 0, phase ^= 1;
            }
#pragma unroll
        for (int j = 0; j < 32; j++)
#pragma unroll
            for (int odd = 0; odd < 2; odd++) {
                const int tok = j * 8 + 2 * c + odd, n = t.n0 + row;
                if (tok >= t.rows) continue;
                float *y = a.y + (int64_t)(t.r0 + tok) * a.y_stride + n;
                if (n < a.w.n_out) y[0] = me.acc[4 * j + odd];
                if (n + 8 < a.w.n_out) y[8] = me.acc[4 * j + 2 + odd];
            }
    }
}

} // namespace gm

extern "C" __global__ void __launch_bounds__(384, 1) k_gemm_twin_q4g64(const __grid_constant__ cu_gemm_args args)
{
    using S = gm::twin_shape;
    const cu_linear &a = args.a;
    extern __shared__ uint8_t raw_smem[];
    const uint32_t base = (address(raw_smem) + 1023) & ~1023u, bars = base + S::BARS;
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::STAGES; i++) {
            barrier_init(bars + i * 8, 128);
            barrier_init(bars + (S::STAGES + i) * 8, 4 * S::WGS);
        }
        gm::fence_async();
    }
    __syncthreads();
    const gm::work all = {0, (a.n_rows + S::TT - 1) / S::TT, (a.w.n_out + S::RT - 1) / S::RT};
    if (threadIdx.x >= 128 * S::WGS) {
        fewer_registers<88>();
        gm::produce<S>(args, base, all);
    } else {
        more_registers<208>();
        gm::twin_consume(a, base, all);
    }
}
