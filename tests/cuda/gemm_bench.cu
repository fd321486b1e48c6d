/* gemm_bench.cu: checks and times the many-rows kernels. All outputs are compared with a plain kernel of one thread per output,
 * samples with cb_linear_c; outputs are poisoned first, and what must not be written is compared too. Times are of launches over
 * rotating weights and outputs; beside them the same product by cuBLAS in bf16, and by a twin of the kernel that
 * multiplies dequantised bf16 numbers instead of exact integers.  gemm_bench [check | time]... */
#include "cuda/gemm.cu"
#include "gemm_twin.cuh"
#include "cuda/gemm.h"
#include "cuda/gemm_maps.h"
extern "C" {
#include "kernels/kernels.h"
void cb_linear_c(const cb_mm *mm, int64_t n0, int64_t n1, void *scratch);
}
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <vector>

#define CK(x)                                                                                                 \
    do {                                                                                                      \
        cudaError_t e_ = (x);                                                                                 \
        if (e_ != cudaSuccess) {                                                                              \
            printf("CUDA: %s at line %d\n", cudaGetErrorString(e_), __LINE__);                                \
            exit(1);                                                                                          \
        }                                                                                                     \
    } while (0)

static int n_bad, n_sm;

/* ---- data ---- */

__host__ __device__ static inline uint32_t hash32(uint64_t x)
{
    x ^= x >> 33, x *= 0xff51afd7ed558ccdULL, x ^= x >> 33, x *= 0xc4ceb9fe1a85ec53ULL, x ^= x >> 33;
    return (uint32_t)x;
}
__host__ __device__ static inline float unit(uint64_t x) { return (float)(hash32(x) >> 8) * (1.0f / 16777216.0f); }

enum { RANDOM, HARSH };

__global__ void fill_codes(uint8_t *p, size_t n, uint64_t seed, int kind)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        uint32_t h = hash32(i * 31 + seed);
        p[i] = kind == HARSH && (hash32(i / 96 + seed) & 3) ? 0xff : (uint8_t)h;
    }
}
/* Plane pairs of 16-bit numbers within +-32512. */
__global__ void fill_weight_planes(uint8_t *p, size_t groups, uint64_t seed, int kind)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < groups * 64; i += (size_t)gridDim.x * blockDim.x) {
        int wi = (int)(hash32(i + seed) % 65025) - 32512;
        if (kind == HARSH) wi = hash32(i / 64 + seed) & 1 ? 32512 : -32512;
        int hi = (wi + 128) >> 8;
        p[i / 64 * 128 + i % 64] = (uint8_t)hi;
        p[i / 64 * 128 + 64 + i % 64] = (uint8_t)(wi - 256 * hi);
    }
}
__global__ void fill_scales(uint8_t *s, uint8_t *b, size_t n, int type, float mid, uint64_t seed)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        float v = (0.2f + unit(i * 3 + seed)) * 0.01f * (hash32(i + seed * 7) & 1 ? 1.0f : -1.0f), c = -v * mid * (0.7f + 0.6f * unit(i * 5 + seed));
        if (type == CU_S_F32) ((float *)s)[i] = v, ((float *)b)[i] = c;
        if (type == CU_S_F16) ((__half *)s)[i] = __float2half(v), ((__half *)b)[i] = __float2half(c);
        if (type == CU_S_BF16) ((__nv_bfloat16 *)s)[i] = __float2bfloat16(v), ((__nv_bfloat16 *)b)[i] = __float2bfloat16(c);
    }
}
__device__ float sample_x(size_t i, uint64_t seed, int kind)
{
    if (kind == HARSH) {
        uint32_t h = hash32(i * 13 + seed);
        size_t g = i / 64;
        if (hash32(g + seed) % 11 == 0) return 0.0f;
        float big = hash32(g * 3 + seed) & 1 ? 1.0f : h & 4 ? 1.0f : -1.0f;
        return (hash32(g + 9 * seed) % 7 == 0 ? 0x1p-99f : 3.0f) * ((h & 3) == 0 ? big / 255.0f : big);
    }
    float v = 0;
    for (int j = 0; j < 4; j++) v += unit(i * 4 + j + seed * 1315423911ULL) - 0.5f;
    return v * ((hash32(i + seed) & 255) == 0 ? 50.0f : 1.7f);
}
/* One thread quantises one group of one row, as cb_quant_row_c. */
__global__ void quantise(cu_planes x, int rows, int k, uint64_t seed, int kind)
{
    int id = blockIdx.x * blockDim.x + threadIdx.x, row = id / x.n_groups, g = id % x.n_groups;
    if (row >= rows) return;
    int e0 = g * x.group, e1 = min(e0 + x.group, k);
    float m = 0;
    for (int e = e0; e < e1; e++) m = fmaxf(m, fabsf(sample_x((size_t)row * k + e, seed, kind)));
    bool zero = m < 0x1p-100f;
    float inv = zero ? 0 : __fdiv_rn(32512.0f, m);
    int sum = 0;
    for (int e = e0; e < e1; e++) {
        int xi = zero ? 0 : (int)fminf(fmaxf(rintf(__fmul_rn(sample_x((size_t)row * k + e, seed, kind), inv)), -32512.0f), 32512.0f);
        int hi = (xi + 128) >> 8, r = e % (64 * x.pack);
        int8_t *p = x.planes + (size_t)row * x.stride + (size_t)(e / (64 * x.pack)) * 128 * x.pack + r % x.pack * 64 + r / x.pack;
        p[0] = (int8_t)hi;
        p[64 * x.pack] = (int8_t)(xi - 256 * hi);
        sum += xi;
    }
    x.dx[(size_t)row * x.n_groups + g] = zero ? 0 : __fmul_rn(m, (float)(1.0 / 32512));
    x.sum[(size_t)row * x.n_groups + g] = sum;
    x.xs[(size_t)row * x.n_groups + g] = __fmul_rn(x.dx[(size_t)row * x.n_groups + g], (float)sum);
}

/* ---- the plain reference ---- */

__global__ void reference(cu_linear a)
{
    size_t id = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    int r = (int)(id / a.w.n_out), n = (int)(id % a.w.n_out), G = a.w.n_groups;
    if (r >= a.n_rows) return;
    int64_t xr = a.x_row ? a.x_row[r] : r, yr = a.y_row ? a.y_row[r] : r, wr = n;
    if (a.expert_at) {
        int e = 0;
        while (a.expert_at[e + 1] <= r) e++;
        wr += e * a.w.expert_rows;
    }
    const uint8_t *w = a.w.codes + wr * a.w.row_bytes;
    const int8_t *x = a.x.planes + xr * a.x.stride;
    float y = 0;
    for (int l = 0; l < 8; l++) {
        float acc = 0;
        for (int g = l * G / 8; g < (l + 1) * G / 8; g++) {
            int64_t D = 0;
            for (int e = g * a.w.group; e < (g + 1) * a.w.group; e++) {
                int q = e % (64 * a.x.pack);
                const int8_t *p = x + (size_t)(e / (64 * a.x.pack)) * 128 * a.x.pack + q % a.x.pack * 64 + q / a.x.pack;
                int xi = 256 * p[0] + p[64 * a.x.pack], wi;
                if (a.w.fmt == CU_FMT_PLANES) wi = 256 * (int8_t)w[g * 128 + e % 64] + (int8_t)w[g * 128 + 64 + e % 64];
                else wi = w[(size_t)e * a.w.bits / 8] >> (e * a.w.bits % 8) & ((1 << a.w.bits) - 1);
                D += (int64_t)wi * xi;
            }
            float p = __fmul_rn(a.x.dx[xr * G + g], __ll2float_rn(D)), s = load_scale(a.w.scales, a.w.scale_type, wr * G + g);
            if (a.w.fmt == CU_FMT_AFFINE) acc = __fmaf_rn(load_scale(a.w.biases, a.w.scale_type, wr * G + g), a.x.xs[xr * G + g], acc);
            acc = __fmaf_rn(s, p, acc);
        }
        y = l ? __fadd_rn(y, acc) : acc;
    }
    float *out = a.y + yr * a.y_stride + n;
    *out = a.add ? __fadd_rn(*out, y) : y;
}

/* ---- kernels ---- */

typedef const void *kernel_fn;
struct variant {
    const char *name;
    kernel_fn fn;
    int fmt, bits, group, rt, tt, block, shared, persistent, w_box;
};
#define V(fn, fmt, ...) {#fn, (kernel_fn)fn, fmt, gm::shape<__VA_ARGS__>::F::BITS, gm::shape<__VA_ARGS__>::F::GROUP, gm::shape<__VA_ARGS__>::RT, gm::shape<__VA_ARGS__>::TT, gm::shape<__VA_ARGS__>::THREADS, gm::shape<__VA_ARGS__>::SMEM, 0, 0}
#define W(fn, fmt, ...) {#fn, (kernel_fn)fn, fmt, gm::wshape<__VA_ARGS__>::F::BITS, gm::wshape<__VA_ARGS__>::F::GROUP, gm::wshape<__VA_ARGS__>::RT, gm::wshape<__VA_ARGS__>::TT, gm::wshape<__VA_ARGS__>::THREADS, gm::wshape<__VA_ARGS__>::SMEM, 1, gm::wshape<__VA_ARGS__>::F::TILED ? gm::wshape<__VA_ARGS__>::F::WS : 0}
#include "gemm_variants.h"

static void launch(const variant &v, const cu_linear &a)
{
    cu_gemm g = {v.name, v.fmt, v.bits, v.group, 80, v.rt, v.tt, v.block, v.shared, v.persistent, 1, v.w_box};
    static cu_map_encoder encode;
    cudaDriverEntryPointQueryResult found;
    if (!encode) CK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", (void **)&encode, 12000, cudaEnableDefault, &found));
    cu_gemm_args args;
    if (cu_gemm_prepare(encode, &g, &a, &args) != CUDA_SUCCESS) printf("no map for %s\n", v.name), exit(1);
    static std::vector<kernel_fn> seen;
    if (std::find(seen.begin(), seen.end(), v.fn) == seen.end()) {
        CK(cudaFuncSetAttribute(v.fn, cudaFuncAttributeMaxDynamicSharedMemorySize, v.shared));
        seen.push_back(v.fn);
    }
    void *params[] = {v.persistent ? (void *)&args : (void *)&a};
    CK(cudaLaunchKernel(v.fn, dim3((unsigned)cu_gemm_grid(&g, &a, n_sm)), dim3(v.block), params, v.shared, 0));
}

/* ---- a problem ---- */

template <class T> static T *dev(size_t n)
{
    T *p;
    CK(cudaMalloc(&p, n * sizeof(T))); /* no slack: compute-sanitizer sees a read past the end */
    return p;
}
template <class T> static T *to_dev(const std::vector<T> &v)
{
    T *p = dev<T>(v.size());
    CK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}
template <class T> static std::vector<T> to_host(const T *p, size_t n)
{
    std::vector<T> v(n);
    CK(cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
    return v;
}

struct problem {
    int fmt, bits, group, scale_type, rows, n_out, k, n_experts, gather, add, kind;
    cu_linear a;
    size_t y_floats, codes_bytes, n_scales;
    int x_rows;
    std::vector<void *> owned;
};

static void make_weights(problem &p, cu_weight &w, uint64_t seed)
{
    int64_t stored = (int64_t)w.expert_rows * std::max(1, p.n_experts) - (p.n_experts ? w.expert_rows - w.n_out : 0);
    size_t bytes = (size_t)(stored * w.row_bytes), n = (size_t)(stored * w.n_groups), unit_size = w.scale_type == CU_S_F32 ? 4 : 2;
    uint8_t *codes = dev<uint8_t>(bytes), *s = dev<uint8_t>(n * unit_size), *b = dev<uint8_t>(n * unit_size);
    if (p.fmt == CU_FMT_PLANES) fill_weight_planes<<<1024, 256>>>(codes, bytes / 128, seed, p.kind);
    else fill_codes<<<1024, 256>>>(codes, bytes, seed, p.kind);
    fill_scales<<<1024, 256>>>(s, b, n, w.scale_type, (float)((1 << w.bits) - 1) / 2, seed);
    CK(cudaGetLastError());
    w.codes = codes, w.scales = s, w.biases = p.fmt == CU_FMT_PLANES ? NULL : b;
    p.owned.insert(p.owned.end(), {codes, s, b});
}

static void make(problem &p, uint64_t seed)
{
    cu_linear &a = p.a;
    memset(&a, 0, sizeof a);
    int pack = p.fmt == CU_FMT_PLANES ? 1 : cb_pack_of_bits(p.bits), G = (p.k + p.group - 1) / p.group;
    a.w.row_bytes = p.fmt == CU_FMT_PLANES ? G * 128 : (int64_t)p.k * p.bits / 8;
    a.w.expert_rows = p.n_experts ? p.n_out + 3 : p.n_out; /* as when the stack is a slice of gate and up */
    a.w.n_out = p.n_out, a.w.k = p.k, a.w.fmt = p.fmt, a.w.bits = p.bits, a.w.group = p.group, a.w.n_groups = G;
    a.w.scale_type = p.scale_type, a.w.pack = pack;
    make_weights(p, a.w, seed);
    p.x_rows = p.gather ? p.rows + 5 : p.rows;
    a.x.stride = (int)cb_plane_stride(p.k, pack), a.x.n_groups = G, a.x.group = p.group, a.x.pack = pack;
    a.x.planes = dev<int8_t>((size_t)p.x_rows * a.x.stride);
    CK(cudaMemset(a.x.planes, 0, (size_t)p.x_rows * a.x.stride));
    a.x.dx = dev<float>((size_t)p.x_rows * G), a.x.xs = dev<float>((size_t)p.x_rows * G), a.x.sum = dev<int32_t>((size_t)p.x_rows * G);
    quantise<<<(p.x_rows * G + 127) / 128, 128>>>(a.x, p.x_rows, p.k, seed + 1, p.kind);
    CK(cudaGetLastError());
    p.owned.insert(p.owned.end(), {a.x.planes, a.x.dx, a.x.xs, a.x.sum});
    a.n_rows = p.rows, a.n_experts = p.n_experts, a.add = p.add;
    a.y_stride = p.gather ? p.n_out + 7 : p.n_out;
    p.y_floats = (size_t)(p.gather ? p.rows + 3 : p.rows) * a.y_stride;
    a.y = dev<float>(p.y_floats);
    p.owned.push_back(a.y);
    if (p.gather) {
        std::vector<int32_t> xr(p.rows), yr(p.rows + 3);
        for (int i = 0; i < p.rows; i++) xr[i] = (int)(hash32(i + seed) % p.x_rows);
        for (int i = 0; i < p.rows + 3; i++) yr[i] = i;
        for (int i = p.rows + 2; i > 0; i--) std::swap(yr[i], yr[hash32(i * 7 + seed) % (i + 1)]);
        yr.resize(p.rows);
        int32_t *dx = to_dev(xr), *dy = to_dev(yr);
        a.x_row = dx, a.y_row = dy;
        p.owned.insert(p.owned.end(), {dx, dy});
    }
    if (p.n_experts) { /* many empty, some with most of the rows */
        std::vector<int32_t> cut(p.n_experts + 1, 0);
        std::vector<int> count(p.n_experts, 0);
        for (int i = 0; i < p.rows; i++) {
            uint32_t h = hash32(i * 3 + seed);
            count[h % 5 == 0 ? 2 % p.n_experts : h % 5 == 1 ? p.n_experts - 1 : (h >> 8) % p.n_experts / 2]++;
        }
        if (p.gather == 3) { /* evenly, as a router does */
            std::fill(count.begin(), count.end(), 0);
            for (int i = 0; i < p.rows; i++) count[hash32(i * 11 + seed) % p.n_experts]++;
        }
        if (p.gather == 2) { /* one has all */
            std::fill(count.begin(), count.end(), 0);
            count[p.n_experts / 2] = p.rows;
        }
        for (int e = 0; e < p.n_experts; e++) cut[e + 1] = cut[e] + count[e];
        int32_t *d = to_dev(cut);
        a.expert_at = d;
        p.owned.push_back(d);
    }
}
static void drop(problem &p)
{
    for (void *q : p.owned) CK(cudaFree(q));
    p.owned.clear();
}

/* ---- checks ---- */

/* 16 outputs of 8 rows by scalar C. */
static int check_scalar(const problem &p, const std::vector<float> &got, uint64_t seed)
{
    const cu_linear &a = p.a;
    if (p.add) return 0;
    std::vector<int32_t> xr = a.x_row ? to_host(a.x_row, p.rows) : std::vector<int32_t>(), yr = a.y_row ? to_host(a.y_row, p.rows) : xr;
    std::vector<int32_t> cut = a.expert_at ? to_host(a.expert_at, p.n_experts + 1) : std::vector<int32_t>();
    int bad = 0, G = a.w.n_groups, n_n = std::min(16, p.n_out);
    void *scratch = aligned_alloc(64, (cb_linear_scratch(p.k) + 63) / 64 * 64);
    for (int i = 0; i < 8; i++) {
        int r = (int)(hash32(i + seed) % p.rows), n0 = p.n_out <= 16 ? 0 : (int)(hash32(i * 5 + seed) % (p.n_out - 15)), e = 0;
        while (a.expert_at && cut[e + 1] <= r) e++;
        int64_t w0 = n0 + e * a.w.expert_rows, x = xr.empty() ? r : xr[r], y = yr.empty() ? r : yr[r];
        size_t ss = a.w.scale_type == CU_S_F32 ? 4 : 2;
        std::vector<uint8_t> codes = to_host(a.w.codes + w0 * a.w.row_bytes, n_n * a.w.row_bytes), s = to_host(a.w.scales + w0 * G * ss, n_n * G * ss), b;
        if (a.w.biases) b = to_host(a.w.biases + w0 * G * ss, n_n * G * ss);
        if (p.fmt == CU_FMT_PLANES)
            for (size_t j = 0; j < codes.size(); j += j % 64 == 63 ? 65 : 1) {
                int v = 256 * (int8_t)codes[j] + (int8_t)codes[j + 64] + 32768;
                codes[j] = (uint8_t)(v >> 8), codes[j + 64] = (uint8_t)v;
            }
        std::vector<int8_t> planes = to_host(a.x.planes + x * a.x.stride, a.x.stride);
        std::vector<float> dx = to_host(a.x.dx + x * G, G), xs = to_host(a.x.xs + x * G, G), out(n_n);
        cb_mm m = {};
        m.fmt = (cb_fmt)p.fmt, m.bits = p.bits, m.group = p.group, m.n_groups = G, m.k = p.k, m.codes = codes.data(), m.row_bytes = a.w.row_bytes;
        m.scales = s.data(), m.biases = b.data(), m.scale_type = (cb_scale_type)a.w.scale_type, m.global_scale = 1;
        m.x.planes = planes.data(), m.x.dx = dx.data(), m.x.xs = xs.data(), m.x.plane_stride = a.x.stride, m.x.n_groups = G;
        m.n_rows = 1, m.y = out.data(), m.y_stride = n_n;
        cb_linear_c(&m, 0, n_n, scratch);
        bad += memcmp(out.data(), &got[y * a.y_stride + n0], n_n * 4) != 0;
    }
    free(scratch);
    return bad;
}

static void check(const variant &v, problem p, uint64_t seed, bool quiet)
{
    make(p, seed);
    std::vector<float> poison(p.y_floats);
    for (size_t i = 0; i < p.y_floats; i++) poison[i] = p.add ? unit(i) : -1e30f - (float)(i % 1000) * 1e27f;
    CK(cudaMemcpy(p.a.y, poison.data(), p.y_floats * 4, cudaMemcpyHostToDevice));
    size_t n = (size_t)p.rows * p.n_out;
    reference<<<(unsigned)((n + 127) / 128), 128>>>(p.a);
    std::vector<float> want = to_host(p.a.y, p.y_floats);
    CK(cudaMemcpy(p.a.y, poison.data(), p.y_floats * 4, cudaMemcpyHostToDevice));
    launch(v, p.a);
    CK(cudaDeviceSynchronize());
    std::vector<float> got = to_host(p.a.y, p.y_floats);
    size_t bad = 0, first = 0;
    for (size_t i = 0; i < p.y_floats; i++)
        if (memcmp(&want[i], &got[i], 4)) {
            if (!bad) first = i;
            bad++;
        }
    int scalar = check_scalar(p, want, seed);
    if (bad || scalar) n_bad++;
    if (bad || scalar || !quiet)
        printf("check %-22s rows %5d n %5d k %5d experts %3d gather %d add %d scale %d kind %d: %zu of %zu differ, scalar %d%s\n", v.name, p.rows, p.n_out,
               p.k, p.n_experts, p.gather, p.add, p.scale_type, p.kind, bad, p.y_floats, scalar, bad || scalar ? "  BAD" : "");
    if (bad) printf("   first at row %zu col %zu: got %g want %g\n", first / p.a.y_stride, first % p.a.y_stride, got[first], want[first]);
    drop(p);
}

static void check_all(const variant &v, bool quick)
{
    const int G = v.group;
    int st = v.fmt == CU_FMT_PLANES ? CU_S_F32 : v.bits == 2 ? CU_S_F16 : CU_S_BF16;
    struct { int rows, n, groups, experts, gather, add, kind, st; } t[] = {
        {128, 128, 8, 0, 0, 0, RANDOM, st},   {128, 256, 32, 0, 0, 0, HARSH, st},    {16, 24, 1, 0, 0, 0, RANDOM, st},
        {17, 200, 11, 0, 1, 1, RANDOM, st},   {300, 344, 7, 0, 1, 0, HARSH, st},     {515, 1000, 12, 0, 0, 1, RANDOM, st},
        {129, 129, 33, 0, 1, 0, RANDOM, v.fmt == CU_FMT_PLANES ? CU_S_F32 : CU_S_F16},   {640, 256, 13, 9, 1, 0, RANDOM, st}, {700, 136, 16, 64, 1, 1, HARSH, st},
        {333, 128, 17, 200, 2, 0, RANDOM, st}, {64, 512, 9, 1, 0, 0, RANDOM, CU_S_F32}, {2048, 512, 32, 128, 1, 0, RANDOM, st},
        {1, 8, 3, 0, 0, 0, RANDOM, st},
    };
    int before = n_bad;
    for (auto &c : t) {
        if (quick && (size_t)c.rows * c.n > 300000) continue;
        problem p = {v.fmt, v.bits, G, c.st, c.rows, c.n, c.groups * G, c.experts, c.gather, c.add, c.kind};
        if (v.fmt == CU_FMT_PLANES && c.groups > 2) p.k -= 24; /* a short last group */
        check(v, p, 77 + c.rows, true);
    }
    printf("check %-22s %s\n", v.name, n_bad == before ? "all bits equal" : "BAD");
    fflush(stdout);
}

/* ---- times ---- */

template <class F> static double time_us(F f, int n)
{
    cudaEvent_t e0, e1;
    CK(cudaEventCreate(&e0));
    CK(cudaEventCreate(&e1));
    std::vector<double> v;
    for (int i = 0; i < 3; i++) f(i);
    for (int rep = 0; rep < 5; rep++) {
        CK(cudaEventRecord(e0));
        for (int i = 0; i < n; i++) f(i);
        CK(cudaEventRecord(e1));
        CK(cudaEventSynchronize(e1));
        float ms;
        CK(cudaEventElapsedTime(&ms, e0, e1));
        v.push_back(ms * 1000 / n);
    }
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
}

struct cublas {
    void *h;
    int (*gemm)(void *, int, int, int, int, int, const void *, const void *, int, int, const void *, int, int, const void *, void *, int, int, int, int);
};
static bool cublas_open(cublas &c)
{
    void *so = NULL;
    for (const char *n : {"libcublas.so.13", "libcublas.so.12", "libcublas.so"})
        if (!so) so = dlopen(n, RTLD_NOW);
    if (!so) return false;
    int (*create)(void **) = (int (*)(void **))dlsym(so, "cublasCreate_v2");
    c.gemm = (decltype(c.gemm))dlsym(so, "cublasGemmEx");
    return create && c.gemm && create(&c.h) == 0;
}
__global__ void fill_bf16(__nv_bfloat16 *p, size_t n, uint64_t seed)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) p[i] = __float2bfloat16(unit(i + seed) - 0.5f);
}

enum { SETS = 4 };
static double time_cublas(cublas &c, int M, int N, int K)
{
    __nv_bfloat16 *w = dev<__nv_bfloat16>((size_t)N * K * SETS), *x = dev<__nv_bfloat16>((size_t)M * K), *y = dev<__nv_bfloat16>((size_t)M * N * SETS);
    fill_bf16<<<1024, 256>>>(w, (size_t)N * K * SETS, 1);
    fill_bf16<<<1024, 256>>>(x, (size_t)M * K, 2);
    float one = 1, zero = 0;
    int rc = 0;
    double us = time_us([&](int i) { rc |= c.gemm(c.h, 1, 0, N, M, K, &one, w + (size_t)(i % SETS) * N * K, 14, K, x, 14, K, &zero, y + (size_t)(i % SETS) * M * N, 14, N, 68, -1); }, 20);
    if (rc) printf("cublas failed: %d\n", rc);
    CK(cudaFree(w));
    CK(cudaFree(x));
    CK(cudaFree(y));
    return us;
}

__global__ void count_differences(const float *a, const float *b, size_t n, int *out)
{
    int bad = 0;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) bad += __float_as_uint(a[i]) != __float_as_uint(b[i]);
    if (bad) atomicAdd(out, bad);
}

static void time_one(const variant &v, int M, int N, int K, int experts, double blas_us)
{
    problem p = {v.fmt, v.bits, v.group, v.fmt == CU_FMT_PLANES ? CU_S_F32 : v.bits == 2 ? CU_S_F16 : CU_S_BF16, M, N, K, experts, experts ? 3 : 0, 0, RANDOM};
    make(p, 5);
    cu_linear set[SETS];
    for (int i = 0; i < SETS; i++) {
        set[i] = p.a;
        if (i == 0) continue;
        make_weights(p, set[i].w, 5 + i);
        set[i].y = dev<float>(p.y_floats);
        p.owned.push_back(set[i].y);
    }
    CK(cudaMemset(set[0].y, 0xff, p.y_floats * 4));
    double us = time_us([&](int i) { launch(v, set[i % SETS]); }, 12), f = 2.0 * M * N * K * 1e-6;
    CK(cudaMemset(set[1].y, 0xff, p.y_floats * 4)); /* its output becomes the reference of set 0 */
    cu_linear ref = set[0];
    ref.y = set[1].y;
    reference<<<(unsigned)(((size_t)M * N + 127) / 128), 128>>>(ref);
    int *d = dev<int>(1), bad = 0;
    CK(cudaMemset(d, 0, 4));
    count_differences<<<1024, 256>>>(set[0].y, ref.y, p.y_floats, d);
    CK(cudaMemcpy(&bad, d, 4, cudaMemcpyDeviceToHost));
    CK(cudaFree(d));
    n_bad += bad != 0;
    printf("time  %-22s M %5d N %5d K %5d experts %3d: %8.1f us %6.1f TFLOP/s", v.name, M, N, K, experts, us, f / us);
    if (blas_us > 0) printf("  cuBLAS bf16 %6.1f us %6.1f TFLOP/s  x%.2f", blas_us, f / blas_us, blas_us / us);
    printf(bad ? "  %d DIFFER\n" : "\n", bad);
    fflush(stdout);
    drop(p);
}

/* ---- the twin ---- */

/* Activations as bf16 in the twin's order, from the planes of a. */
__global__ void twin_activations(cu_linear a, __nv_bfloat16 *out)
{
    size_t id = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (id >= (size_t)a.n_rows * a.w.k) return;
    int row = (int)(id / a.w.k), g = (int)(id % a.w.k) / 64, e = g * 64 + gm::twin_element((int)(id % 64));
    int q = e % (64 * a.x.pack);
    const int8_t *p = a.x.planes + (size_t)row * a.x.stride + (size_t)(e / (64 * a.x.pack)) * 128 * a.x.pack + q % a.x.pack * 64 + q / a.x.pack;
    out[id] = __float2bfloat16(a.x.dx[(size_t)row * a.x.n_groups + g] * (float)(256 * p[0] + p[64 * a.x.pack]));
}
static void launch_twin(const cu_linear &a)
{
    using S = gm::twin_shape;
    CK(cudaFuncSetAttribute(k_gemm_twin_q4g64, cudaFuncAttributeMaxDynamicSharedMemorySize, S::SMEM));
    int tiles = (a.w.n_out + S::RT - 1) / S::RT * ((a.n_rows + S::TT - 1) / S::TT);
    cu_gemm_args args = {};
    args.a = a;
    k_gemm_twin_q4g64<<<std::min(tiles, n_sm), S::THREADS, S::SMEM>>>(args);
    CK(cudaGetLastError());
}
static void time_twin(int M, int N, int K, double blas_us)
{
    problem p = {CU_FMT_AFFINE, 4, 64, CU_S_BF16, M, N, K, 0, 0, 0, RANDOM};
    make(p, 5);
    __nv_bfloat16 *x = dev<__nv_bfloat16>((size_t)M * K);
    p.owned.push_back(x);
    twin_activations<<<(unsigned)(((size_t)M * K + 255) / 256), 256>>>(p.a, x);
    cu_linear set[SETS];
    for (int i = 0; i < SETS; i++) {
        set[i] = p.a;
        set[i].x.planes = (int8_t *)x;
        set[i].x.stride = 2 * K;
        if (i == 0) continue;
        make_weights(p, set[i].w, 5 + i);
        set[i].y = dev<float>(p.y_floats);
        p.owned.push_back(set[i].y);
    }
    double us = time_us([&](int i) { launch_twin(set[i % SETS]); }, 12), f = 2.0 * M * N * K * 1e-6;
    cu_linear ref = p.a;
    ref.y = set[1].y;
    reference<<<(unsigned)(((size_t)M * N + 127) / 128), 128>>>(ref);
    std::vector<float> got = to_host(set[0].y, p.y_floats), want = to_host(ref.y, p.y_floats);
    double d2 = 0, w2 = 0;
    for (size_t i = 0; i < got.size(); i++) d2 += ((double)got[i] - want[i]) * ((double)got[i] - want[i]), w2 += (double)want[i] * want[i];
    double err = sqrt(d2 / w2);
    n_bad += !(err < 1e-2);
    printf("twin  %-22s M %5d N %5d K %5d            : %8.1f us %6.1f TFLOP/s  cuBLAS bf16 %6.1f us  x%.2f  relative difference %.1e\n", "k_gemm_twin_q4g64", M, N, K, us, f / us, blas_us,
           blas_us / us, err);
    fflush(stdout);
    drop(p);
}

int main(int argc, char **argv)
{
    bool do_check = argc < 2, do_time = argc < 2, quick = false;
    std::vector<const char *> only;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "check")) do_check = true;
        else if (!strcmp(argv[i], "quick")) do_check = quick = true;
        else if (!strcmp(argv[i], "time")) do_time = true;
        else only.push_back(argv[i]);
    }
    cudaDeviceProp prop;
    CK(cudaGetDeviceProperties(&prop, 0));
    n_sm = prop.multiProcessorCount;
    printf("%s, %d multiprocessors\n", prop.name, n_sm);
    for (const cu_gemm &g : cu_gemms) { /* the table repeats the shapes of the kernels */
        bool same = false;
        for (const variant &v : variants)
            same |= !strcmp(v.name, g.kernel) && v.fmt == g.fmt && v.bits == g.bits && v.group == g.group && v.rt == g.rt && v.tt == g.tt && v.block == g.block && v.shared == g.shared &&
                    v.persistent == g.persistent && v.w_box == g.w_box;
        if (!same) printf("gemm.h is wrong about %s\n", g.kernel), n_bad++;
    }
    auto wanted = [&](const variant &v) {
        if (only.empty()) return true;
        for (const char *o : only)
            if (strstr(v.name, o)) return true;
        return false;
    };
    if (do_check)
        for (const variant &v : variants)
            if (wanted(v)) check_all(v, quick);
    if (do_time) {
        cublas c;
        bool have = cublas_open(c);
        const int shapes[][3] = {{4096, 4096, 4096}, {512, 4096, 4096}, {4096, 12288, 2048}, {64, 4096, 4096}};
        for (auto &s : shapes) {
            double us = have ? time_cublas(c, s[0], s[1], s[2]) : 0;
            if (only.empty()) time_twin(s[0], s[1], s[2], us);
            for (const variant &v : variants)
                if (wanted(v)) time_one(v, s[0], s[1], s[2], 0, us);
        }
        for (const variant &v : variants) /* mixtures of experts: 512 and 2048 tokens, 8 of 128 each; 8192 tokens, 8 of 256 */
            if (wanted(v) && v.fmt == CU_FMT_AFFINE) {
                for (int rows : {4096, 16384}) time_one(v, rows, 768, 2048, 128, 0);
                time_one(v, 65536, 512, 2048, 256, 0);
                if (v.group <= 64) time_one(v, 65536, 2048, 512, 256, 0);
            }
    }
    printf(n_bad ? "FAILED: %d\n" : "no difference\n", n_bad);
    return n_bad != 0;
}
