/* rowops.cuh: row-wise operations that several kernels share. */
#ifndef CB_CUDA_ROWOPS_CUH
#define CB_CUDA_ROWOPS_CUH
#include "cuda/common.cuh"
#include "cuda/route.cuh"
#include "base/sincos.h"

/* The lane tree of x*x over a row. One warp; 16 loads are under way together. */
__device__ __forceinline__ float sum_squares(const float *x, int n)
{
    int i = threadIdx.x % 32;
    float sum = 0;
    for (; i + 15 * 32 < n; i += 16 * 32) {
        float u[16];
#pragma unroll
        for (int j = 0; j < 16; j++) u[j] = x[i + 32 * j];
#pragma unroll
        for (int j = 0; j < 16; j++) sum = cb_fma(u[j], u[j], sum);
    }
    for (; i < n; i += 32) sum = cb_fma(x[i], x[i], sum);
    return lane_fold(sum);
}

/* ---- fixed point ---- */

/* 1.5 * 2^23: v + MAGIC has the integer nearest to v, ties to even, in its low bits, for |v| < 2^22. */
#define MAGIC 12582912.0f

/* x times inv as 16-bit numbers (docs/arithmetic.md, section 3), each the low half of a word. No clamp: |x * inv| <= 32512 * (1 + 2^-23). */
__device__ __forceinline__ void to_bits(const float4 &x, float inv, uint32_t (&t)[4])
{
    t[0] = __float_as_uint(x.x * inv + MAGIC);
    t[1] = __float_as_uint(x.y * inv + MAGIC);
    t[2] = __float_as_uint(x.z * inv + MAGIC);
    t[3] = __float_as_uint(x.w * inv + MAGIC);
}
__device__ __forceinline__ float rest(float x, uint32_t t, float dx) { return x - dx * (__uint_as_float(t) - MAGIC); }

__device__ __forceinline__ uint32_t max_bits(const float4 &x, int lanes)
{
    uint32_t a = __float_as_uint(x.x) & 0x7fffffff, b = __float_as_uint(x.y) & 0x7fffffff, c = __float_as_uint(x.z) & 0x7fffffff,
             d = __float_as_uint(x.w) & 0x7fffffff;
    uint32_t m = max(max(a, b), max(c, d));
    for (int w = lanes / 2; w; w /= 2) m = max(m, __shfl_xor_sync(FULL, m, w));
    return m;
}

/* Four neighbours of a group, whose largest magnitude has the bits m, as 16-bit numbers; the group's scale. */
__device__ __forceinline__ float to_integers(const float4 &x, uint32_t m, uint32_t (&t)[4])
{
    bool zero = __uint_as_float(m) < CB_TINY;
    to_bits(x, zero ? 0 : CB_XI_MAX / __uint_as_float(m), t);
    return zero ? 0 : __uint_as_float(m) * CB_XI_INV;
}
/* Of a group that so many lanes hold. */
__device__ __forceinline__ int sum_of(const uint32_t (&t)[4], int lanes) { return group_sum((int)(t[0] + t[1] + t[2] + t[3] - 4 * 0x4b400000u), lanes); }

/* Values e .. e+3 of a row to their planes: one byte for each of 4, two for each of 2, four of one. now: else nothing is stored (heads.cuh). */
__device__ __forceinline__ void put_planes(const cu_planes &q, int row, int e, const uint32_t (&t)[4], bool now = true)
{
    uint32_t lo = __byte_perm(__byte_perm(t[0], t[1], 0x0040), __byte_perm(t[2], t[3], 0x0040), 0x5410);
    uint32_t hi = __byte_perm(__byte_perm(t[0] + 128, t[1] + 128, 0x0051), __byte_perm(t[2] + 128, t[3] + 128, 0x0051), 0x5410);
    int pack = q.pack, shift = 31 - __clz(pack), r = e & ((64 << shift) - 1); /* pack is 1 << shift */
    int8_t *p = q.planes + (size_t)row * q.stride + 2 * (e - r) + (r >> shift);
    if (pack == 1) {
        if (now) *(uint32_t *)p = hi;
        if (now) *(uint32_t *)(p + 64) = lo;
    } else if (pack == 2) {
        if (now) *(uint16_t *)p = (uint16_t)__byte_perm(hi, 0, 0x20);
        if (now) *(uint16_t *)(p + 64) = (uint16_t)__byte_perm(hi, 0, 0x31);
        if (now) *(uint16_t *)(p + 128) = (uint16_t)__byte_perm(lo, 0, 0x20);
        if (now) *(uint16_t *)(p + 192) = (uint16_t)__byte_perm(lo, 0, 0x31);
    } else
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int8_t *b = p + 64 * ((r & (pack - 1)) + i);
            if (now) b[0] = (int8_t)(hi >> 8 * i);
            if (now) b[64 * pack] = (int8_t)(lo >> 8 * i);
        }
}
/* The scale of the group that begins at value e, if one does. */
__device__ __forceinline__ void put_scale(const cu_planes &q, int row, int e, float dx, int sum, bool now = true)
{
    if (e & (q.group - 1)) return;
    size_t g = (size_t)row * q.n_groups + (e >> (31 - __clz(q.group)));
    if (now) q.dx[g] = dx;
    if (now && q.sum) q.sum[g] = sum;
    if (now) q.xs[g] = dx * (float)sum;
}

/* Row `at` of planes from n values; or its remainder, in row n_rows + at. Thread t of so many takes 4 neighbours. */
__device__ __noinline__ void quant_row(const float *row_x, int n, const cu_planes &q, int at, bool remainder, cu_step *step, int op, int t0, int threads)
{
    int padded = q.stride / 2, lanes = q.group / 4, row = remainder ? q.n_rows + at : at;
    for (int e0 = 4 * t0; e0 - 4 * (t0 % 32) < padded; e0 += 4 * threads) { /* whole warps, for the shuffles */
        float4 x = make_float4(0, 0, 0, 0);
        if (e0 + 4 <= n) x = *(const float4 *)(row_x + e0);
        else if (e0 < n) {
            x.x = row_x[e0];
            if (e0 + 1 < n) x.y = row_x[e0 + 1];
            if (e0 + 2 < n) x.z = row_x[e0 + 2];
        }
        uint32_t m = max_bits(x, lanes), t[4];
        if (m >= 0x7f800000) report_bad(step, op);
        float dx = to_integers(x, m, t);
        if (remainder) { /* what the integers leave takes x's place */
            if (dx != 0) x = make_float4(rest(x.x, t[0], dx), rest(x.y, t[1], dx), rest(x.z, t[2], dx), rest(x.w, t[3], dx));
            dx = to_integers(x, max_bits(x, lanes), t);
        }
        int sum = sum_of(t, lanes);
        if (e0 >= padded) continue;
        put_planes(q, row, e0, t);
        if (e0 < n) put_scale(q, row, e0, dx, sum);
    }
}

/* ---- does a row have a remainder? ---- */

/* What the row's largest magnitude, of these bits, is held against a share of: section 4's top * top. */
__device__ __forceinline__ float energy_of(uint32_t most)
{
    float m = __uint_as_float(most), top = m < CB_TINY ? 0 : (m * CB_XI_INV) * CB_XI_MAX;
    return top * top;
}

/* docs/arithmetic.md, section 4, decided by a sum s of the squares in another order where that is certain. Both that sum and the lane tree
 * ss are sums of terms >= 0 by fewer than 2^10 roundings on the way of each term (n <= 2^15, lanes of up to 1024 terms), so each is within
 * 2^-13 of the exact sum as long as nothing leaves the normal range: s >= 2^-80 keeps what squares below 2^-126 lose (2^15 terms of at most
 * 2^-149) far below that, s <= 2^120 keeps both finite. The roundings of share*ss, share*s and its products with 1 -+ 2^-9 add 2^-22. So
 * share*ss is above low and below high, and the comparison with either decides. 1: yes, 0: no, -1: too near to say. share: 0 or >= 2^-20. */
__device__ __forceinline__ int wants(float energy, float s, float share)
{
    float low = share * s * (1 - 0x1p-9f), high = share * s * (1 + 0x1p-9f);
    int said = energy <= low ? 0 : energy > high ? 1 : -1;
    said = s >= 0x1p-80f && s <= 0x1p120f ? said : -1;
    return energy == 0 ? 0 : said;
}

/* Does one number hold more than this share of the row's energy? One warp; dx: the row's. */
__device__ __forceinline__ bool wants_remainder(const float *x, int n, const float *dx, int n_groups, float share)
{
    int lane = threadIdx.x % 32;
    float top = 0;
    for (int g = lane; g < n_groups; g += 32) top = fmaxf(top, dx[g]);
    top = group_max(top, 32) * CB_XI_MAX;
    return top * top > share * sum_squares(x, n);
}

/* ---- embedding, positions ---- */

/* A code of mxfp8, or of fp4 with what its group's codes are multiplied by. */
__device__ __forceinline__ float fp_value(const cu_weight &w, unsigned code, float scale)
{
    if (w.bits == 8) return e4m3((uint8_t)code) * scale;
    unsigned e = code >> 1 & 3, m = code & 1;
    float f = 0.5f * (float)(e ? (2 | m) << (e - 1) : m);
    if (code & 8) f = -f;
    return (f * (2.0f * scale)) * w.global_scale;
}

/* Elements e .. e+7 of a matrix's row, e a multiple of 8; those behind the row's end are anything. All loads are under way together. */
__device__ __forceinline__ void decode8(const cu_weight &w, int64_t row, int e, float (&v)[8])
{
    const uint8_t *codes = w.codes + row * w.row_bytes;
    if (w.fmt == CU_FMT_FLOAT) {
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = e + i < w.k ? load_scale(codes, w.scale_type, e + i) : 0;
        return;
    }
    int64_t g = row * w.n_groups + e / w.group;
    uint32_t byte[8];
    size_t at = (size_t)(e / 8) * w.bits; /* eight codes are as many bytes as a code has bits */
#pragma unroll
    for (int i = 0; i < 8; i++) byte[i] = i < w.bits && at + i < (size_t)w.row_bytes ? codes[at + i] : 0;
    float scale = w.fmt == CU_FMT_FP4 && w.bits == 8 ? e8m0(w.scales[g]) : load_scale(w.scales, w.scale_type, g);
    float bias = w.fmt == CU_FMT_AFFINE ? load_scale(w.biases, w.scale_type, g) : 0;
    uint64_t bits = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) bits |= (uint64_t)byte[i] << 8 * i;
    unsigned code[8];
#pragma unroll
    for (int i = 0; i < 8; i++, bits >>= w.bits) code[i] = (unsigned)bits & ((1u << w.bits) - 1);
    if (w.fmt == CU_FMT_AFFINE)
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = cb_fma(scale, (float)code[i], bias);
    else
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = fp_value(w, code[i], scale);
}

/* The op CB_ROPE_TABLE, n pairs, by so many threads. */
__device__ __forceinline__ void turn_table(const double *freq, int n, float scale, double pos, float *y, int thread, int threads)
{
    for (int i = thread; i < n; i += threads) {
        double cs, sn;
        cb_sincos(pos * freq[i], &cs, &sn);
        y[i] = scale != 1.0f ? (float)cs * scale : (float)cs;
        y[n + i] = scale != 1.0f ? (float)sn * scale : (float)sn;
    }
}
__device__ __forceinline__ void rope_table(const cu_row_op &o, double pos, float *y) { turn_table(o.freq, o.width / 2, o.f[0], pos, y, threadIdx.x, blockDim.x); }

/* ---- butterflies ---- */

/* Strides s, 2s, .. below block, of N values that are s apart in the row. */
template <int N> __device__ __forceinline__ void cross(float (&u)[N], int s, int block)
{
#pragma unroll
    for (int w = 1; w < N; w *= 2) {
        if (w * s >= block) return;
#pragma unroll
        for (int k = 0; k < N; k++)
            if (!(k & w)) {
                float a = u[k], b = u[k + w];
                u[k] = a + b;
                u[k + w] = a - b;
            }
    }
}

/* R strides s, 2s, .. of the butterflies at once: 2^R values a thread. All blocks of the row together. */
template <int R> __device__ __forceinline__ void butterflies(float *v, int n, int s)
{
    enum { N = 1 << R };
    for (int t = threadIdx.x; t < n / N; t += blockDim.x) {
        float *p = v + t / s * s * N + t % s, x[N];
#pragma unroll
        for (int i = 0; i < N; i++) x[i] = p[i * s];
        cross(x, 1, N);
#pragma unroll
        for (int i = 0; i < N; i++) p[i * s] = x[i];
    }
}

/* Strides s, 2s, .. below block, by all threads of a thread block. */
__device__ __forceinline__ void all_butterflies(float *v, int n, int s, int block)
{
    for (; s * 8 <= block; s *= 8) {
        __syncthreads();
        butterflies<3>(v, n, s);
    }
    __syncthreads();
    if (s * 4 == block) butterflies<2>(v, n, s);
    else if (s * 2 == block) butterflies<1>(v, n, s);
    __syncthreads();
}
#endif
