/* tape_experts.cuh: a layer of experts in tape.cu (CU_TAPE_DOWN, and rows of 8 bits): part of that file, behind its worker and sums. */

/* ---- the router's rows, and that of the shared expert's gate: 8 bits ---- */

/* So many rows at a time: a part of the workers has eight neighbouring values of one. */
__device__ __forceinline__ int affine_rows(const cu_tape_phase &p) { return p.n <= 4 * CU_TAPE_WORKERS ? 2 : 1; }

/* This worker's eight codes of its row of those from number `first` on; scale and bias of their group. */
__device__ __forceinline__ void fetch_affine(const cu_tape_phase &p, plain_row &to, int first)
{
    const cu_tape_plain *w = p.u.m.plain;
    int rows = affine_rows(p), part = (int)threadIdx.x * rows / CU_TAPE_WORKERS, number = first + part * gridDim.x, e = 8 * ((int)threadIdx.x - part * CU_TAPE_WORKERS / rows);
    to.n = number;
    for (int i = 1; i < p.u.m.n_plain && number >= w->rows; i++) number -= w++->rows;
    if (number >= w->rows || e >= p.n) return;
    to.high = *(const uint2 *)(w->codes + number * w->row_bytes + e);
    if (e % 64) return;
    size_t g = (size_t)number * (p.n / 64) + e / 64;
    to.low = make_uint2((uint32_t)((const uint16_t *)w->scales)[g] << 16, (uint32_t)w->biases[g] << 16);
}

/* The product of each part's row with the planes at x, known to the first warp of the part; parts: room, 16 bytes a group of each row. */
__device__ __forceinline__ float affine_product(const cu_tape_phase &p, const plain_row &w, uint32_t x, uint32_t parts, int t)
{
    int e = 8 * t, lane = threadIdx.x & 31, G = p.n / 64;
    if (e - 8 * lane < p.n) { /* whole warps */
        uint32_t h[2], l[2];
        lds<2>(h, x + e);
        lds<2>(l, x + p.n + e);
        int d = 256 * dot_u8s8(w.high.x, h[0], dot_u8s8(w.high.y, h[1], 0)) + dot_u8s8(w.high.x, l[0], dot_u8s8(w.high.y, l[1], 0));
        for (int k = 1; k < 8; k *= 2) d += __shfl_xor_sync(FULL, d, k);
        if (e % 64 == 0) {
            uint32_t scales = x + 2 * p.n + e / 16;
            sts_float4(parts + e / 4, __uint_as_float(w.low.x), lds_float(scales) * (float)d, __uint_as_float(w.low.y), lds_float(scales + p.n / 16));
        }
    }
    meet();
    float y = 0;
    if (t < 32) {
        enum { MOST = ROUND / 64 / CU_SEGMENTS }; /* groups of a segment */
        int s = lane & 7, g = s * G / CU_SEGMENTS, n = (s + 1) * G / CU_SEGMENTS - g;
        float4 v[MOST];
        each<MOST>([&](int i) { v[i] = lds_float4(parts + 16 * (i < n ? g + i : g)); }); /* all are under way together */
        each<MOST>([&](int i) {
            float u = cb_fma(v[i].x, v[i].y, cb_fma(v[i].z, v[i].w, y));
            y = i < n ? u : y;
        });
        float all = __shfl_sync(FULL, y, 0);
        for (int k = 1; k < CU_SEGMENTS; k++) all = all + __shfl_sync(FULL, y, k);
        y = all;
    }
    return y;
}

/* All rows of the block; the first ones are there. */
__device__ __forceinline__ void affine_products(const cu_tape &a, const worker &me, const cu_tape_phase &p, plain_row &w)
{
    int n = 0, rows = affine_rows(p), part = (int)threadIdx.x * rows / CU_TAPE_WORKERS, t = (int)threadIdx.x - part * CU_TAPE_WORKERS / rows;
    uint32_t bytes = 2 * p.n + p.n / 8, parts = me.sm + a.row + part * (p.n / 4); /* planes, dx and X of a row */
    for (int i = 0; i < p.u.m.n_plain; i++) n += p.u.m.plain[i].rows;
#pragma unroll 1
    for (int first = blockIdx.x; first < n; first += rows * gridDim.x) {
        if (first != (int)blockIdx.x) {
            meet(); /* parts are read */
            fetch_affine(p, w, first);
        }
        float y = affine_product(p, w, me.sm + a.plain, parts, t);
        if (__builtin_expect(me.rests() & 2, 0)) {
            meet();
            y = y + affine_product(p, w, me.sm + a.plain + bytes, parts, t);
        }
        int number = w.n;
        const cu_tape_plain *m = p.u.m.plain;
        for (int i = 1; i < p.u.m.n_plain && number >= m->rows; i++) number -= m++->rows;
        if (t == 0 && number < m->rows) tell(me.told + m->to + number, y);
    }
}

/* ---- the experts' rows of units, and the shared one's behind them ---- */

/* As planes; returns whether the shared one has a remainder: experts' have none. */
template <class F> __device__ __forceinline__ uint32_t quant_units(const cu_tape &a, const cu_tape_phase &p, const worker &me, float (&v)[2][8])
{
    const cu_tape_route &r = p.u.m.route;
    int e = first_value(), lane = threadIdx.x & 31, G = p.n_groups, shared_at = r.k * r.width;
    uint32_t column = me.sm + a.planes, most = 0, most_of_experts = 0;
    float sum = 0, energy;
    bool has_shared = false;
    each<2>([&](int k) {
        int first = ROUND * k + e;
        ints<8> q;
        if (first - 8 * lane >= p.n) return; /* whole warps, as below */
        uint32_t m = group_of(v[k], F::VALUES / 8, q);
        put_planes<F>(column, first, q);
        if (first >= shared_at) {
            has_shared = true;
            most = m;
            each<8>([&](int i) { sum = cb_fma(v[k][i], v[k][i], sum); });
        } else most_of_experts = max(most_of_experts, m);
        if (first % F::VALUES) return;
        uint32_t to = column + G * F::X_BYTES + 4 * ((unsigned)first / F::VALUES);
        sts_float(to, q.dx);
        sts_float(to + 4 * G, q.dx * (float)q.sum);
    });
    put_least(&a.step->bad_op, p.plain_op, most_of_experts >= 0x7f800000u && blockIdx.x == 0);
    if (has_shared) tell_found(me.sm, 0, most, sum, a.step, p.op);
    else if (lane == 0) {
        uint32_t none[2] = {0, 0};
        sts<2>(me.sm + CU_TAPE_FOUND + 8 * (threadIdx.x / 32), none);
    }
    meet();
    if (p.share < 0) return 0;
    int more = look(me.sm, 0, p.share, &energy);
    if (__builtin_expect(more == 0, 1)) return 0;
    if (more < 0) { /* seldom: the row by itself, as others stand */
        float u[1][8];
        each<2>([&](int k) {
            int first = ROUND * k + e;
            if (first >= shared_at && first < p.n) put8(me.sm + a.row + 4 * place(first - shared_at), v[k]);
        });
        meet();
        each<8>([&](int i) { u[0][i] = 0; });
        if (e < r.width) get8(u[0], me.sm + a.row + 4 * place(e));
        if (!look_closely(a, me.sm, u, r.width, energy, p.share)) return 0;
    }
    each<2>([&](int k) {
        int first = ROUND * k + e;
        ints<8> q;
        if (first - 8 * lane >= p.n || first < shared_at) return;
        group_of(v[k], F::VALUES / 8, q);
        keep_rest(v[k], q);
        group_of(v[k], F::VALUES / 8, q);
        put_planes<F>(me.sm + a.rests, first, q);
        if (first % F::VALUES) return;
        uint32_t to = me.sm + a.rests + G * F::X_BYTES + 4 * ((unsigned)first / F::VALUES);
        sts_float(to, q.dx);
        sts_float(to + 4 * G, q.dx * (float)q.sum);
    });
    meet();
    return 1;
}

/* The row of a phase that makes the experts' results; the shared one's gate as it will be multiplied with. */
template <class F> __device__ __forceinline__ void units_phase(const cu_tape &a, worker &me, const cu_tape_phase &p)
{
    float v[2][8];
    const float *at = me.told + p.u.m.route.gate;
    float gate = threadIdx.x == 0 ? told_word(at) : 0; /* on its way together with the row; told long ago */
    hear_row(p, me.told, v);
    if (untold(gate)) gate = hear(at);
    if (threadIdx.x == 0) sts_float(me.sm + CU_TAPE_WORDS + 8, cb_sigmoidf(gate));
    me.have_rests(quant_units<F>(a, p, me, v));
}

/* What the experts gave of this block's tiles, 16 outputs of each: result i of tile t stands at the returned place, 64 bytes for each of its pieces. */
__device__ __forceinline__ uint32_t put_results(const cu_tape &a, const worker &me, const cu_tape_phase &p, int tiles)
{
    int row = threadIdx.x & 15, k = p.u.m.route.k;
    uint32_t results = me.sm + a.row;
#pragma unroll 1
    for (int t = threadIdx.x / 16; t < tiles; t += CU_TAPE_WORKERS / 16) {
        float y = sum_of(a, me, t, row, 0);
        if (__builtin_expect(me.rests() & 1, 0) && (unsigned)t % (unsigned)p.pieces == (unsigned)k) y = y + sum_of(a, me, t, row, 1);
        sts_float(results + 64 * t + 4 * row, y);
    }
    meet();
    return results;
}

/* The sum of results of a tile, each times its factor, by rank. */
__device__ __forceinline__ float sum_results(uint32_t results, uint32_t factors, int k)
{
    float y = 0;
    for (int i = 0; i < k; i++) y = cb_fma(lds_float(factors + 8 * i), lds_float(results + 64 * i), y);
    return y;
}

/* The next residual stream: what the experts gave; the row before; the shared one times its gate. */
__device__ __forceinline__ void give_results(const cu_tape &a, const worker &me, const cu_tape_phase &p, const range &mine)
{
    int row = threadIdx.x & 15, k = p.u.m.route.k;
    uint32_t results = put_results(a, me, p, mine.n * p.pieces);
    float gate = lds_float(me.sm + CU_TAPE_WORDS + 8);
#pragma unroll 1
    for (int t = threadIdx.x / 16; t < mine.n; t += CU_TAPE_WORKERS / 16) {
        int n = 16 * (mine.first + t) + row;
        uint32_t from = results + 64 * t * p.pieces + 4 * row;
        float y = sum_results(from, me.sm + a.chosen, k);
        y = me.shared[a.x / 4 + place(n)] + y;
        y = cb_fma(gate, lds_float(from + 64 * k), y);
        tell(me.told + p.u.m.matrix[0].to + n, y);
    }
}

/* The sum of the experts' results, told as it is. */
__device__ __forceinline__ void give_sums(const cu_tape &a, const worker &me, const cu_tape_phase &p, const range &mine)
{
    int row = threadIdx.x & 15;
    uint32_t results = put_results(a, me, p, mine.n * p.pieces);
#pragma unroll 1
    for (int t = threadIdx.x / 16; t < mine.n; t += CU_TAPE_WORKERS / 16)
        tell(me.told + p.u.m.matrix[0].to + 16 * (mine.first + t) + row, sum_results(results + 64 * t * p.pieces + 4 * row, me.sm + a.chosen, p.u.m.route.k));
}
