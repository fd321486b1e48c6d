/* tape_normed.cuh: layers whose outputs are normed before they are added to the residual stream, with a dense MLP of 8 bits beside experts of another format
 * (k_tape_normed): part of tape.cu, behind its products. Every block has the whole residual stream, which is never told. */

enum { CU_TAPE_INVERSES = CU_TAPE_WORDS + 16 }; /* of one or two rows; behind a phase that norms it, of the residual stream */

/* ---- the residual stream ---- */

/* Vectors that a worker will want eight values of, e and on, on their way to shared memory; n values each, one behind the other. They are asked for before the row is
 * there: behind it a load takes a microsecond or two, since weights are on their way. */
__device__ __forceinline__ uint32_t vector_at(const cu_tape &a, const worker &me, const cu_tape_phase &p, int k) { return me.sm + a.rests + 4 * (k * p.n + first_value()); }
__device__ __forceinline__ void fetch_vector(const cu_tape &a, const worker &me, const cu_tape_phase &p, int k, const float *from)
{
    int e = first_value();
    if (!from || e >= p.n) return;
    copy16(vector_at(a, me, p, k), from + e);
    copy16(vector_at(a, me, p, k) + 16, from + e + 4);
}

/* The inverse of the root of the mean square of a row of n values, `row` bytes from the beginning, for all to read at CU_TAPE_INVERSES + 4*which; by one warp. */
__device__ __forceinline__ void put_inverse(const worker &me, const cu_tape_phase &p, int row, float eps, int which)
{
    float inv = inverse_of(p, squares<8>(me.shared + row / 4, p.n), eps);
    if (threadIdx.x % 32 == 0) sts_float(me.sm + CU_TAPE_INVERSES + 4 * which, inv);
}

/* The row at `row` bytes, times that inverse, times vector k; zeros where this worker has nothing. */
__device__ __forceinline__ void normed(const cu_tape &a, const worker &me, const cu_tape_phase &p, int row, int k, float (&v)[8])
{
    int e = first_value();
    each<8>([&](int i) { v[i] = 0; });
    if (e >= p.n) return;
    float u[8], inv = lds_float(me.sm + CU_TAPE_INVERSES);
    get8(v, me.sm + row + 4 * place(e));
    get8(u, vector_at(a, me, p, k));
    each<8>([&](int i) { v[i] = (v[i] * inv) * u[i]; });
}

/* v: eight neighbours of the sum of the rows that are added, each normed; of one row that is it. */
__device__ __forceinline__ void hear_added(const cu_tape &a, const worker &me, const cu_tape_phase &p, float (&v)[8])
{
    const cu_tape_added &d = p.u.m.added;
    int e = first_value(), warp = threadIdx.x / 32;
    bool in = e < p.n, clears = e < (p.n + 511) / 512 * 512;
    float w[2][8], y[2][8];
    each<2>([&](int r) { each<8>([&](int i) { w[r][i] = 0; }); });
    each<2>([&](int r) { if (in && r < d.n) load(w[r], d.w[r] + e); });
    hear_rounds([&](int r) { return me.told + d.from[r] + e; }, [&](int r) { return in && r < d.n; }, true, y);
    meet(); /* nobody reads a row there any more */
    each<2>([&](int r) { if (clears) put8(me.sm + (r ? a.planes : a.row) + 4 * place(e), y[r]); });
    meet();
    if (warp < d.n) put_inverse(me, p, warp ? a.planes : a.row, d.eps[warp], warp);
    meet();
    float inv = lds_float(me.sm + CU_TAPE_INVERSES), inv1 = lds_float(me.sm + CU_TAPE_INVERSES + 4);
    each<8>([&](int i) { v[i] = (y[0][i] * inv) * w[0][i]; });
    if (d.n == 2) each<8>([&](int i) { v[i] = v[i] + (y[1][i] * inv1) * w[1][i]; });
}

/* What p.u.m.added says, to the residual stream, which then stands at a.x, and the inverse of the root of its mean square at CU_TAPE_INVERSES. False: it is not multiplied.
 * Rows stand in shared memory while they are added up: what is spilled leaves the L1 cache. */
__device__ __forceinline__ bool next_stream(const cu_tape &a, const worker &me, const cu_tape_phase &p)
{
    const cu_tape_added &d = p.u.m.added;
    float scale = d.scale ? *d.scale : 1, v[1][8]; /* times 1 changes nothing */
    fetch_vector(a, me, p, 0, p.kind == CU_TAPE_INTO ? p.u.m.plain_w : d.both_w);
    fetch_vector(a, me, p, 1, p.norm_w);
    copies_end();
    if (d.n) hear_added(a, me, p, v[0]);
    else hear_row(p, me.told, v);
    copies_wait<0>();
#pragma unroll 1
    for (int stage = d.n == 2 ? 0 : 1;; stage++) { /* 0: the sum of two rows is normed; then it is added */
        int e = first_value();
        bool in = e < p.n;
        uint32_t at = me.sm + (stage ? a.x : a.row) + 4 * place(e);
        if (stage && d.n && in) {
            float before[8];
            get8(before, at);
            each<8>([&](int i) { v[0][i] = (before[i] + v[0][i]) * scale; });
        }
        if (stage && p.out && blockIdx.x == 0 && in) store8(p.out + e, v[0]);
        if (stage && !p.tiles) return false;
        if (e < (p.n + 511) / 512 * 512) put8(at, v[0]); /* squares() */
        meet();
        if (threadIdx.x < 32) put_inverse(me, p, stage ? a.x : a.row, stage ? p.eps : d.both_eps, 0);
        meet();
        if (stage) return true;
        normed(a, me, p, a.row, 0, v[0]);
    }
}

/* ---- phases ---- */

/* The row of a phase as planes: told, or the normed residual stream. False: nothing is multiplied. */
template <class F> __device__ __forceinline__ bool normed_planes(const cu_tape &a, worker &me, const cu_tape_phase &p)
{
    float v[1][8];
    bool into = p.kind == CU_TAPE_INTO;
    plain_row plain = {{}, {}, 0, into ? (int)blockIdx.x : 1 << 30};
    if (p.kind == CU_TAPE_ROW) hear_row(p, me.told, v);
    else if (p.kind == CU_TAPE_EXPERTS) { /* the residual stream of a phase before */
        each<8>([&](int i) { v[0][i] = 0; });
        if (first_value() < p.n) norm_again(me.sm + a.x, lds_float(me.sm + CU_TAPE_INVERSES), p.norm_w, v[0]);
    } else {
        if (into) plain.fetch(p, blockIdx.x);
        if (!next_stream(a, me, p)) return false;
        if (into) {
            normed(a, me, p, a.x, 0, v[0]);
            each<8>([&](int i) { v[0][i] = v[0][i] * p.u.m.plain_scale; });
            quant_plain(a, p, v[0], me.sm);
        }
        normed(a, me, p, a.x, 1, v[0]);
    }
    static_assert((int)F::VALUES == (int)dense_format::VALUES && (int)F::X_BYTES == (int)dense_format::X_BYTES, "one code for both");
    me.have_rests(quant<F>(a, p, v, me.sm, [&](uint32_t column, int first, const ints<8> &q) {
        if (p.u.m.bytes) put_planes<dense_format>(column, first, q);
        else put_planes<F>(column, first, q);
    }));
    if (!into) return true;
    me.have_rests(me.rests() | plain_rests(a, p, me.sm, [&](float(&u)[8]) {
        norm_again(me.sm + a.x, lds_float(me.sm + CU_TAPE_INVERSES), p.u.m.plain_w, u);
        each<8>([&](int i) { u[i] = u[i] * p.u.m.plain_scale; });
    }));
    affine_products(a, me, p, plain);
    return true;
}

template <class F> __device__ __forceinline__ void work_normed(const cu_tape &a, const window &tape, worker &me)
{
#pragma unroll 1
    for (int i = 0; i < a.n_phases; i++, tape.leave(i - 1)) {
        const cu_tape_phase &p = tape.get(i);
        if (p.kind == CU_TAPE_ATTN) {
            attn_phase<8, false>(me, p);
            continue;
        }
        if (p.kind == CU_TAPE_DOWN || p.n > 8 * CU_TAPE_WORKERS) {
            float v[2][8];
            hear_row(p, me.told, v);
            me.have_rests(p.kind == CU_TAPE_DOWN ? quant_units<F>(a, p, me, v) : quant<F>(a, p, v, me.sm));
        } else if (!normed_planes<F>(a, me, p)) continue;
        products<F, true>(a, me, p);
    }
}
