/* rows_few.cu: any chain that few.cuh can run, operation by operation. row_chains.cu has the common ones. */
#include "cuda/few.cuh"

/* Quarter q of all threads' elements stands together. */
__device__ __forceinline__ float *quad(float *shared, int at, int q) { return shared + 32 * at + (q * blockDim.x + threadIdx.x) * 4; }

template <int E> __device__ __forceinline__ void take(float (&u)[E], float *shared, int at)
{
    each<E / 4>([&](int q) {
        float4 x = *(const float4 *)quad(shared, at, q);
        u[4 * q] = x.x, u[4 * q + 1] = x.y, u[4 * q + 2] = x.z, u[4 * q + 3] = x.w;
    });
}

template <int E> __device__ __forceinline__ void one_op(chain<E> &c, const cu_few_op &o)
{
    float u[E];
    if (o.b) fetch(c, u, o.b, c.row, o.b_stride);
    else if (o.kind == CB_ADD) take(u, c.shared, o.from);
    else if (o.w && o.kind == CB_HADAMARD) fetch_vector(c, u, o.w);
    switch (o.kind) {
    case CB_EMBED: embed(c, c.v, o); break;
    case CB_RMSNORM:
        norm(c, o, o.n);
        break;
    case CB_HADAMARD: hadamard(c, o, u); break;
    case CB_GLU: glu(c, o.n, u); break;
    case CB_ADD: each<E>([&](int i) { c.v[i] = c.v[i] + u[i]; }); break;
    case CB_ADD_GATED: {
        float g = cb_sigmoidf(o.w[(size_t)c.row * o.w_stride]);
        each<E>([&](int i) { c.v[i] = cb_fma(g, u[i], c.v[i]); });
        break;
    }
    case CB_SCALE: {
        float s = o.w ? *o.w : o.f;
        each<E>([&](int i) { c.v[i] = c.v[i] * s; });
        break;
    }
    case CB_MOE_SUM: moe_sum<4>(c, o); break;
    }
}

template <int E> __device__ __forceinline__ void source(chain<E> &c, const cu_few_op &o)
{
    if (o.from >= 0 && !(o.kind == CB_ADD && !o.b)) take(c.v, c.shared, o.from);
    else if (o.x) fetch(c, c.v, o.x, o.kind == CB_RMSNORM && o.m ? c.a.step->wanted[c.row] : c.row, o.x_stride);
}

template <int E> __device__ __forceinline__ void few(const cu_rows_few &a, float *shared, told &t)
{
    pdl_trigger();
    if (blockIdx.y == a.n_parts) {
        pdl_wait();
        side(a, blockIdx.x, shared);
        return;
    }
    chain<E> c = {a, shared, t, (int)blockIdx.x, (int)blockIdx.y * a.width, E * (int)threadIdx.x, a.width, 0, true, 0, {}};
    clear<E>(shared, t);
    pdl_wait();
    for (int i = 0; i < a.n_ops; i++) {
        const cu_few_op &o = a.o[i];
        source(c, o);
        if (o.kind == CB_QUANT) {
            int n = 1;
            while (i + n < a.n_ops && a.o[i + n].kind == CB_QUANT && a.o[i + n].n) n++;
            quant<true>(c, a.o + i, n);
            i += n - 1;
            continue;
        }
        one_op(c, o);
        if (o.keep >= 0)
            each<E / 4>([&](int q) { *(float4 *)quad(c.shared, o.keep, q) = make_float4(c.v[4 * q], c.v[4 * q + 1], c.v[4 * q + 2], c.v[4 * q + 3]); });
        hand_out(c, o);
    }
}

extern "C" __global__ void __launch_bounds__(512, 2) k_rows_few8(const __grid_constant__ cu_rows_few a)
{
    extern __shared__ __align__(16) float shared[];
    __shared__ told t;
    few<8>(a, shared, t);
}

/* A choice of experts with no chain beside it: a warp a row. */
extern "C" __global__ void __launch_bounds__(32) k_route(const __grid_constant__ cu_rows_few a)
{
    __shared__ uint2 chosen[MOST_CHOSEN];
    pdl_trigger();
#pragma unroll 1
    for (bool live = false;; live = true) {
        if (live) pdl_wait();
        route(a.route, a.step, blockIdx.x, chosen, live);
        if (live) break;
    }
}
