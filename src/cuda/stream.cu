/* stream.cu: products of few rows: a step's decode, the experts of its tokens. One thread block a multiprocessor takes tiles of 16
 * outputs, all of K. Its last warps bring them through a ring in shared memory, as far ahead as the ring has room, and begin before the
 * kernel's input is there: weights depend on nothing. The other warps multiply on the int8 tensor cores; a stage of the ring is a tile, and
 * some warps share its segments (stream_chains.cuh). A column is a row of activations, or what its integers leave (a remainder). */
#include "cuda/common.cuh"

enum { WARPS = CU_STREAM_WARPS, COPIERS = 32 * CU_STREAM_COPIERS, THREADS = 32 * WARPS + COPIERS };

#if __CUDA_ARCH__ >= 900
#include "cuda/stream_chains.cuh"

/* ---- a block's place ---- */

/* Barriers: a stage is full, empty; the sums of a tile are there. */
__device__ __forceinline__ uint32_t full(uint32_t sm, int slot) { return sm + 8 * slot; }
__device__ __forceinline__ uint32_t empty(uint32_t sm, int slot) { return sm + 8 * (CU_STREAM_SLOTS + slot); }
__device__ __forceinline__ uint32_t summed(uint32_t sm, int slot) { return sm + 8 * (2 * CU_STREAM_SLOTS + slot); }

/* Where a multiplying warp puts words aside. */
__device__ __forceinline__ uint32_t notes(uint32_t sm) { return sm + CU_STREAM_NOTES + threadIdx.x / 32 * 64; }

/* The multiplying warps only. */
__device__ __forceinline__ void meet() { barrier_among(1, 32 * WARPS); }

/* Tiles of each part for this block: all are laid in a row, as long as their bytes, and cut into equal pieces. One warp. */
__device__ __forceinline__ void share_tiles(const cu_stream &a, int2 *range)
{
    int i = threadIdx.x;
    uint32_t cost = 0, n = 0, end;
    if (i < a.n_parts) {
        const int4 *list = (const int4 *)a.part[i].tiles;
        cost = a.cut[i].cost;
        n = a.cut[i].tiles * (!list ? 1 : a.entries ? a.entries : __ldcg(list).w);
    }
    end = n * cost;
    for (int s = 1; s < CU_MAX_PARTS; s *= 2) {
        uint32_t v = __shfl_up_sync(FULL, end, s);
        if (i >= s) end += v;
    }
    uint32_t all = __shfl_sync(FULL, end, CU_MAX_PARTS - 1), from = end - n * cost;
    uint32_t lo = all * blockIdx.x / gridDim.x, hi = all * (blockIdx.x + 1) / gridDim.x;
    if (i >= a.n_parts) return;
    uint32_t t0 = lo <= from ? 0 : (lo - from + cost - 1) / cost, t1 = hi <= from ? 0 : (hi - from + cost - 1) / cost;
    range[i] = make_int2(min(t0, n), min(t1, n));
}

/* ---- the warps that bring the weights ---- */

/* A thread's 16-byte pieces of rows of n pieces, `threads` apart: its first one, and how it gets from one to the next in shared memory,
 * where rows stand `row` bytes apart. */
struct walk {
    int n, total, first, pieces, threads;
    uint32_t to, step, wrap; /* a step that passes the row's end goes `wrap` further */
    int thread;

    __device__ __forceinline__ void begin(int n_pieces, int row_bytes, int me, int of)
    {
        n = n_pieces;
        total = 16 * n;
        thread = me;
        threads = of;
        int rows = of / n, row = me / n;
        pieces = of - rows * n;
        first = me - row * n;
        to = row * row_bytes + first * 16;
        step = rows * row_bytes + pieces * 16;
        wrap = row_bytes - n * 16;
    }
    __device__ __forceinline__ void next(uint32_t &at, int &piece) const
    {
        at += step;
        if ((piece += pieces) < n) return;
        piece -= n;
        at += wrap;
    }
    /* 16 rows that follow each other in memory. */
    __device__ __forceinline__ void copy(uint32_t base, const uint8_t *from) const
    {
        uint32_t at = base + to;
        int piece = first, left = total - thread;
        from += 16 * thread;
        if (pieces == 0) { /* always the same piece of a row */
            for (; left > 3 * threads; left -= 4 * threads, from += 64 * threads, at += 4 * step)
#pragma unroll
                for (int u = 0; u < 4; u++) copy16(at + u * step, from + 16 * u * threads);
            for (; left > 0; left -= threads, from += 16 * threads, at += step) copy16(at, from);
            return;
        }
        for (; left > 3 * threads; left -= 4 * threads, from += 64 * threads)
#pragma unroll
            for (int u = 0; u < 4; u++) {
                copy16(at, from + 16 * u * threads);
                next(at, piece);
            }
        for (; left > 0; left -= threads, from += 16 * threads) {
            copy16(at, from);
            next(at, piece);
        }
    }
};

/* The next launch may begin when all blocks have called pdl_trigger(): at once, or, where an earlier launch may still make the list of experts, when
 * that is there, so that launches behind find it made even before their own input is. */
__device__ __forceinline__ void wait_and_trigger(const cu_stream &a)
{
    pdl_wait();
    if (a.wait_first) pdl_trigger();
}

/* Entry e's expert. Lists are read before the launch waits, so not from an L1 cache that may have that of the layer before. */
__device__ __forceinline__ int64_t expert_of(const cu_linear &p, int e) { return __ldcg(p.tiles + 4 * e); }

/* Rows of a plain part are taken CU_STREAM_PASS at a time, and its tiles fetched for each. */
__device__ __forceinline__ int passes_of(const cu_linear &p) { return p.tiles ? 1 : (p.n_rows + CU_STREAM_PASS - 1) / CU_STREAM_PASS; }

__device__ __forceinline__ void bring(const cu_stream &a, const int2 *range, uint32_t sm)
{
    int slot = 0, parity = 1, thread = threadIdx.x - 32 * WARPS;
    bool waited = false;
    for (int i = 0; i < a.n_parts; i++) {
        const cu_linear &p = a.part[i];
        const cu_cut &cut = a.cut[i];
        int t = range[i].x, end = range[i].y, e = 0, tile = t, row_bytes = (int)p.w.row_bytes;
        if (t >= end) continue;
        if (p.tiles && !waited && a.wait_first) {
            wait_and_trigger(a);
            waited = true;
        }
        if (p.tiles) e = t / cut.tiles, tile = t - e * cut.tiles;
        int of_scales = p.w.n_groups * (p.w.scale_type == CU_S_F32 ? 4 : 2), among = p.w.biases ? COPIERS / 2 : COPIERS, bias = thread >= among;
        walk codes, scales;
        codes.begin(row_bytes >> 4, cut.stride, thread, COPIERS);
        if (of_scales % 16 == 0) scales.begin(of_scales >> 4, cut.scale_stride, thread & (among - 1), among);
        else { /* their rows end where they end, and stand in one piece */
            scales.begin(1, 16, thread & (among - 1), among);
            scales.total = of_scales;
        }
        const uint8_t *codes0 = p.w.codes, *scales0 = bias ? p.w.biases : p.w.scales;
        uint32_t to = sm + CU_STREAM_RING, to_scales = 16 * (cut.stride + bias * cut.scale_stride);
        int64_t row0 = p.tiles ? expert_of(p, e) * p.w.expert_rows : 0;
        for (int left = passes_of(p) * (end - t); left; left--, t++, tile++) {
            if (t == end) t = tile = range[i].x; /* once more, for the next rows */
            if (tile == cut.tiles) {
                tile = 0;
                row0 = expert_of(p, ++e) * p.w.expert_rows;
            }
            int64_t row = row0 + tile * 16;
            uint32_t at = to + slot * a.slot_bytes;
            barrier_wait(empty(sm, slot), parity);
            codes.copy(at, codes0 + row * row_bytes);
            scales.copy(at + to_scales, scales0 + row * of_scales);
            barrier_arrive_copied(full(sm, slot));
            if (++slot == a.slots) slot = 0, parity ^= 1;
        }
    }
}

/* ---- the warps that multiply ---- */

/* Words that all lanes of a warp have alike, in shared memory while the warp has no register to spare: with fewer than about 100 of them
 * the compiler puts each load of the inner loop right in front of where it is wanted. */
template <int N> struct put_aside {
    static_assert(N % 4 == 0, "four at once");
    uint32_t at;

    __device__ __forceinline__ put_aside(uint32_t to, const uint32_t (&v)[N]) : at(to)
    {
        __syncwarp(); /* all have what stood there */
        if (threadIdx.x % 32 == 0) {
#pragma unroll
            for (int i = 0; i < N; i += 4) sts<4>(at + 4 * i, v + i);
        }
        __syncwarp();
    }
    __device__ __forceinline__ void back(uint32_t (&v)[N]) const
    {
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            uint32_t w[4];
            lds<4>(w, at + 4 * i);
#pragma unroll
            for (int k = 0; k < 4; k++) v[i + k] = w[k];
        }
    }
};

struct worker {
    uint32_t sm;
    bool waited;            /* for the kernel's input */
    int stage;              /* stages of the block before the tiles at hand, in order */
    int next, slot, parity; /* this warp's next one, and where it is */
};

/* Planes, dx and X of n rows to columns from `first` on; row_of(k) is the row in memory of column first + k. */
template <class F, class R> __device__ __forceinline__ void load_columns(const cu_stream &a, const cu_planes &p, uint32_t sm, int first, int n, R row_of)
{
    int G = p.n_groups, pieces = p.stride / 16, n_x = n * pieces, n_d = n * 2 * G;
    uint32_t x = sm + a.x_at, dx = x + a.columns * a.x_bytes + first * 8 * G;
    uint32_t inv_x = 0xffffffffu / pieces + 1, inv_d = 0xffffffffu / (2 * G) + 1; /* quotients of small numbers by a product */
    enum { AT_ONCE = 2, STEP = 32 * WARPS };
#pragma unroll 1
    for (int i0 = threadIdx.x; i0 < n_x || i0 < n_d; i0 += AT_ONCE * STEP) {
        uint4 v[AT_ONCE];
        float d[AT_ONCE];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            int i = i0 + u * STEP, k = n == 1 ? 0 : __umulhi(i, inv_x), kd = n == 1 ? 0 : __umulhi(i, inv_d), g = i - kd * 2 * G;
            if (i < n_x) v[u] = ((const uint4 *)(p.planes + (size_t)row_of(k) * p.stride))[i - k * pieces];
            if (i < n_d) d[u] = (g < G ? p.dx : p.xs - G)[(size_t)row_of(kd) * G + g];
        }
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            int i = i0 + u * STEP, k = n == 1 ? 0 : __umulhi(i, inv_x);
            uint32_t to;
            if (i < n_x && F::place(i - k * pieces, to) < G) F::put(x + (first + k) * a.x_bytes + to, v[u]);
            if (i < n_d) sts_float(dx + 4 * i, d[u]);
        }
    }
}

/* Rows of a tile: where they stand among the columns, and in the step or the sorted list. */
struct rows_view {
    int col, n, row0;
    unsigned flags; /* rows that have a remainder: their columns come behind, in order */
};

/* One warp: sums of the segments in order, the outputs. `old`: what stood at this lane's first output. */
__device__ __forceinline__ void finish(const cu_linear &p, const rows_view &rows, uint32_t sums, int n_cols, int n, float old, float *first)
{
    int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int i = lane; i < rows.n * 16; i += 32) {
        int t = i / 16;
        uint32_t at = sums + i * 4;
        float y = lds_float(at);
#pragma unroll
        for (int s = 1; s < CU_SEGMENTS; s++) y = y + lds_float(at + s * n_cols * 64);
        if (n >= p.w.n_out) continue;
        float *out = i == lane ? first : p.y + (size_t)(p.y_row ? p.y_row[rows.row0 + t] : rows.row0 + t) * p.y_stride + n;
        if (p.add) y = (i == lane ? old : *out) + y;
        if (rows.flags >> t & 1) {
            at = sums + ((rows.n + __popc(rows.flags & ((1u << t) - 1))) * 16 + lane % 16) * 4;
            float z = lds_float(at);
#pragma unroll 1
            for (int s = 1; s < CU_SEGMENTS; s++) z = z + lds_float(at + s * n_cols * 64);
            y = y + z;
        }
        *out = y;
    }
}

/* Tiles that follow each other: the block's stage behind the last of them, and this lane's output in the warp's first. */
struct place {
    int end, n;
    float *out;
};

__device__ __forceinline__ place place_of(const cu_linear &p, const worker &me, int t0, int t1, int row0, int n_rows, const int32_t *y_row)
{
    int lane = threadIdx.x % 32, r = row0 + lane / 16;
    place o = {me.stage + t1 - t0, (t0 + me.next - me.stage) * 16 + lane % 16, p.y};
    o.out += o.n;
    if (lane < 16 * n_rows) o.out += (size_t)(y_row ? y_row[r] : r) * p.y_stride;
    return o;
}

/* A warp's tiles, with these rows. all: begun, when COLS is 1. */
template <class F, int COLS, int SEGS>
__device__ __forceinline__ void run(const cu_stream &a, int part, worker &me, chains<F, COLS, SEGS> &all, const columns_view &k, const place &at, const rows_view &rows)
{
    const cu_linear &p = a.part[part];
    const cu_cut &cut = a.cut[part];
    int lane = threadIdx.x % 32, G = p.w.n_groups, per = COLS == 1 ? SEGS : a.per, l0 = (threadIdx.x / 32 & (a.subs - 1)) * per, step = WARPS / a.subs, n = at.n;
    bool last = l0 + per == CU_SEGMENTS, regular = COLS == 1 || (G % CU_SEGMENTS == 0 && k.n <= COLS);
    float *out = at.out;
    if (COLS != 1 && regular) all.begin(k, cut, G, l0);
#pragma unroll 1
    for (; me.next < at.end; me.next += step, n += 16 * step, out += 16 * step) {
        uint32_t bars = me.sm + 8 * me.slot, stage = me.sm + CU_STREAM_RING + me.slot * a.slot_bytes, sums = me.sm + a.sums_at + me.slot * a.sum_bytes;
        float old = 0;
        if (last && p.add && lane < 16 * rows.n && n < p.w.n_out) old = *out;
        barrier_wait(full(bars, 0), me.parity);
#pragma unroll 1
        for (int l = l0; l < l0 + per; l += SEGS) {
            float acc[chains<F, COLS, SEGS>::NB][2];
#pragma unroll 1
            for (int c = 0; c < (COLS == 8 ? k.n : 1); c += COLS) {
                if (!regular) all.begin({k.x + c * k.x_stride, k.zeros, k.dx + c * 8 * G, k.n - c, k.x_stride}, cut, G, l);
                all.go(stage, G, acc);
                all.store(sums, k.n, c, l, acc);
            }
            if (COLS != 1 && regular) all.move_on(1);
        }
        if (COLS != 1 && regular) all.move_on(-per / SEGS);
        __syncwarp();
        barrier_arrive(summed(bars, 0), per);
        if (last) {
            barrier_wait(summed(bars, 0), me.parity);
            finish(p, rows, sums, k.n, n, old, out);
            __syncwarp();
        }
        barrier_arrive(empty(bars, 0), 1);
        if ((me.slot += step) >= a.slots) me.slot -= a.slots, me.parity ^= 1;
    }
}

__device__ __forceinline__ columns_view view_of(const cu_stream &a, const worker &me, int col, int n, int G)
{
    return {me.sm + a.x_at + col * a.x_bytes, me.sm + a.zeros_at, me.sm + a.x_at + a.columns * a.x_bytes + col * 8 * G, n, a.x_bytes};
}

template <class F, int COLS, int SEGS>
__device__ __forceinline__ void run_from(const cu_stream &a, int part, worker &me, const columns_view &k, const place &at, const rows_view &rows)
{
    chains<F, COLS, SEGS> all;
    if (COLS == 1) all.begin(k, a.cut[part], a.part[part].w.n_groups, (threadIdx.x / 32 & (a.subs - 1)) * SEGS);
    run<F, COLS, SEGS>(a, part, me, all, k, at, rows);
}

/* Tiles t0 .. t1 with these rows. */
template <class F> __device__ __forceinline__ void tiles(const cu_stream &a, int part, worker &me, int t0, int t1, const rows_view &rows)
{
    place at = place_of(a.part[part], me, t0, t1, rows.row0, rows.n, a.part[part].y_row);
    columns_view k = view_of(a, me, rows.col, rows.n + __popc(rows.flags), a.part[part].w.n_groups);
    if (k.n == 1) {
        if (a.per == 4) run_from<F, 1, 4>(a, part, me, k, at, rows);
        else if (a.per == 2) run_from<F, 1, 2>(a, part, me, k, at, rows);
        else run_from<F, 1, 1>(a, part, me, k, at, rows);
    } else if (k.n == 2) {
        if (a.per == 1) run_from<F, 2, 1>(a, part, me, k, at, rows);
        else run_from<F, 2, 2>(a, part, me, k, at, rows);
    } else if (k.n <= 4) run_from<F, 4, 1>(a, part, me, k, at, rows);
    else run_from<F, 8, 1>(a, part, me, k, at, rows);
    me.stage = at.end;
}

/* What stands in the columns: rows of a plain part's planes from row0 on, and which of them have a remainder, if that was asked. */
struct loaded {
    const int8_t *planes;
    unsigned flags;
    bool asked;
    int row0;
};

__device__ __forceinline__ void wait_for_input(const cu_stream &a, worker &me)
{
    if (!me.waited) wait_and_trigger(a);
    me.waited = true;
}

/* n rows of the step. */
template <class F> __device__ __forceinline__ void load_rows(const cu_stream &a, const cu_linear &p, worker &me, int row0, int n, loaded &have)
{
    unsigned f[CU_STREAM_PASS], flags = 0;
    if (me.waited) meet(); /* what stands there is no longer needed */
    wait_for_input(a, me);
    if (p.x.flag) {
#pragma unroll
        for (int r = 0; r < CU_STREAM_PASS; r++) f[r] = r < n ? p.x.flag[row0 + r] : 0;
    }
    load_columns<F>(a, p.x, me.sm, 0, n, [&](int k) { return row0 + k; });
    if (p.x.flag) {
#pragma unroll
        for (int r = 0; r < CU_STREAM_PASS; r++) flags |= (f[r] != 0) << r;
    }
    have = {p.x.planes, flags, p.x.flag != NULL, row0};
    if (flags) load_columns<F>(a, p.x, me.sm, n, __popc(flags), [&](int k) {
        unsigned m = flags;
        for (; k; k--) m &= m - 1;
        return p.x.n_rows + row0 + __ffs(m) - 1;
    });
    meet();
}

/* ---- a step of one row ---- */

/* A thread's share of bringing rows of planes to columns. Where it reads and writes first is found before the kernel waits. */
template <class F> struct row_copy {
    enum { STEP = 32 * WARPS, AT_ONCE = 3, GROUPS = STEP / F::BLOCK * 64 / F::PER, BYTES = GROUPS * F::X_BYTES }; /* to the piece STEP further */
    const uint4 *from;
    const float *scale; /* the row's dx; X is `gap` further than it would be behind them */
    uint32_t to, scale_to;
    int g, i, j, gap;   /* group of the piece, at least G when there is none; number of the scale, and in its row */

    __device__ __forceinline__ void begin(const cu_stream &a, const cu_planes &p, uint32_t sm, int row0, int rows, int first)
    {
        int G = p.n_groups, pieces = p.stride / 16, k = 0, kd = 0;
        i = first;
        if (rows > 1) k = i / pieces, kd = i / (2 * G);
        int piece = i - k * pieces;
        j = i - kd * 2 * G;
        g = F::place(piece, to);
        if (rows > 1 && k >= rows) g = G;
        to += sm + a.x_at + k * a.x_bytes;
        scale_to = sm + a.x_at + a.columns * a.x_bytes + 4 * i;
        from = (const uint4 *)(p.planes + (size_t)(row0 + k) * p.stride) + piece;
        scale = p.dx + (size_t)(row0 + kd) * G;
        gap = (int)(p.xs - p.dx) - G;
    }
    /* The row's remainder, to the column behind it. */
    __device__ __forceinline__ void begin_remainder(const cu_stream &a, const cu_planes &p, uint32_t sm)
    {
        begin(a, p, sm, p.n_rows, 1, threadIdx.x);
        to += a.x_bytes;
        scale_to += 8 * p.n_groups;
    }
    __device__ __forceinline__ float scale_at(int n, int G) const { return scale[n < G ? n : n + gap]; }

    __device__ __forceinline__ void row(int G)
    {
#pragma unroll 1
        for (; g < G || j < 2 * G; g += AT_ONCE * GROUPS, j += AT_ONCE * STEP, from += AT_ONCE * STEP, to += AT_ONCE * BYTES, scale_to += 4 * AT_ONCE * STEP) {
            uint4 v[AT_ONCE];
            float d[AT_ONCE];
#pragma unroll
            for (int u = 0; u < AT_ONCE; u++) {
                if (g + u * GROUPS < G) v[u] = from[u * STEP];
                if (j + u * STEP < 2 * G) d[u] = scale_at(j + u * STEP, G);
            }
#pragma unroll
            for (int u = 0; u < AT_ONCE; u++) {
                if (g + u * GROUPS < G) F::put(to + u * BYTES, v[u]);
                if (j + u * STEP < 2 * G) sts_float(scale_to + 4 * u * STEP, d[u]);
            }
        }
    }
    __device__ __forceinline__ void rows(const cu_stream &a, const cu_planes &p, uint32_t sm, int row0, int n)
    {
        int G = p.n_groups, all = n * (p.stride / 16);
#pragma unroll 1
        while (i < all) {
            uint4 v;
            float d = 0;
            if (g < G) v = *from;
            if (i < n * 2 * G) d = scale_at(j, G);
            if (g < G) F::put(to, v);
            if (i < n * 2 * G) sts_float(scale_to, d);
            begin(a, p, sm, row0, n, i + STEP);
        }
    }
};

/* One warp: sums of the segments of a tile in order, and of the row's remainder when there are two columns; the output of lane 0 to 15. */
__device__ __forceinline__ void finish_one(const cu_linear &p, uint32_t sums, int n_cols, int n, float old, float *out)
{
    if (threadIdx.x % 32 >= 16) return;
    uint32_t at = sums + threadIdx.x % 32 * 4;
    float y = lds_float(at);
#pragma unroll
    for (int s = 1; s < CU_SEGMENTS; s++) y = y + lds_float(at + s * n_cols * 64);
    if (p.add) y = old + y;
    if (n_cols > 1) {
        float z = lds_float(at + 64);
#pragma unroll 1
        for (int s = 1; s < CU_SEGMENTS; s++) z = z + lds_float(at + s * 128 + 64);
        y = y + z;
    }
    if (n < p.w.n_out) *out = y;
}

/* A warp's tiles t0 .. t1 of entry e, with the columns of one row, one after the other: its integers, and its remainder if there is one. */
template <class F, int SEGS>
__device__ __forceinline__ void run_one(const cu_stream &a, int part, worker &me, chains<F, 1, SEGS> &all, int t0, int t1, int e, int n_cols)
{
    const cu_linear &p = a.part[part];
    int lane = threadIdx.x % 32, G = p.w.n_groups, l0 = (threadIdx.x / 32 & (a.subs - 1)) * SEGS, step = WARPS / a.subs;
    uint32_t end = me.stage + t1 - t0, n = (t0 + me.next - me.stage) * 16;
    bool last = l0 + SEGS == CU_SEGMENTS;
#pragma unroll 1
    for (; me.next < (int)end; me.next += step, n += 16 * step) {
        float old = 0;
        if (last && p.add && (int)n + lane < p.w.n_out && lane < 16) old = p.y[(size_t)e * p.y_stride + n + lane];
        barrier_wait(full(me.sm, me.slot), me.parity);
#pragma unroll 1
        for (uint32_t c = 0; c < (uint32_t)n_cols; c++) {
            float acc[1][2];
            uint32_t v[8] = {(uint32_t)me.stage, (uint32_t)me.next, (uint32_t)me.slot, (uint32_t)me.parity, n, end, (uint32_t)e, c};
            put_aside<8> aside(notes(me.sm), v);
            all.go(me.sm + CU_STREAM_RING + me.slot * a.slot_bytes, G, acc);
            aside.back(v);
            me.stage = v[0], me.next = v[1], me.slot = v[2], me.parity = v[3], n = v[4], end = v[5], e = v[6], c = v[7];
            all.store(me.sm + a.sums_at + me.slot * a.sum_bytes, n_cols, c, l0, acc);
            if (n_cols > 1) all.other_column(c ? -1 : 1, a.x_bytes, 8 * G);
        }
        __syncwarp();
        barrier_arrive(summed(me.sm, me.slot), SEGS);
        if (last) {
            barrier_wait(summed(me.sm, me.slot), me.parity);
            finish_one(p, me.sm + a.sums_at + me.slot * a.sum_bytes, n_cols, n + lane, old, p.y + (size_t)e * p.y_stride + n + lane);
            __syncwarp();
        }
        barrier_arrive(empty(me.sm, me.slot), 1);
        if ((me.slot += step) >= a.slots) me.slot -= a.slots, me.parity ^= 1;
    }
    me.stage = end;
}

/* One part. Of experts entry e of the list is slot e, and reads row e of the activations, or the only one; other parts are one such entry. All
 * that does not depend on the row is there before the kernel waits; a row with a remainder is the exception. */
template <class F, int SEGS> __device__ __forceinline__ void one_row(const cu_stream &a, int part, worker &me, int2 range, loaded &have)
{
    const cu_linear &p = a.part[part];
    int T = a.cut[part].tiles, e = range.x / T, e_last = (range.y - 1) / T, G = p.w.n_groups, n_x = p.x_step ? e_last + 1 - e : 1;
    bool here = have.planes == p.x.planes && !p.x_step && (have.asked || !p.x.flag);
    chains<F, 1, SEGS> all;
    row_copy<F> copy;
    all.begin(view_of(a, me, 0, 1, G), a.cut[part], G, (threadIdx.x / 32 & (a.subs - 1)) * SEGS);
    if (!here) {
        copy.begin(a, p.x, me.sm, p.x_step ? e : 0, n_x, threadIdx.x);
        if (me.waited) meet(); /* what stands there is no longer needed */
        wait_for_input(a, me);
        int flag = p.x.flag ? *p.x.flag : 0;
        if (n_x == 1) copy.row(G);
        else copy.rows(a, p.x, me.sm, e, n_x);
        if (flag) {
            copy.begin_remainder(a, p.x, me.sm);
            copy.row(G);
        }
        have = {p.x_step ? NULL : p.x.planes, flag != 0, p.x.flag != NULL, 0};
        meet();
    }
    for (;;) {
        uint32_t v[8] = {(uint32_t)e, (uint32_t)e_last, have.flags, have.asked, (uint32_t)range.x, (uint32_t)range.y, (uint32_t)T, 0};
        put_aside<8> aside(notes(me.sm) + 32, v);
        run_one<F, SEGS>(a, part, me, all, max(range.x - e * T, 0), min(range.y - e * T, T), e, 1 + (p.x.flag && have.flags));
        aside.back(v);
        e = v[0], e_last = v[1], have.flags = v[2], have.asked = v[3], range.x = v[4], range.y = v[5], T = v[6];
        if (++e > e_last) break;
        if (p.x_step) all.other_column(1, a.x_bytes, 8 * G);
    }
}

template <class F> __device__ __forceinline__ void work_one(const cu_stream &a, int part, worker &me, int2 range, loaded &have)
{
    if (a.per == 4) one_row<F, 4>(a, part, me, range, have);
    else if (a.per == 2) one_row<F, 2>(a, part, me, range, have);
    else one_row<F, 1>(a, part, me, range, have);
}

/* ---- steps of more rows ---- */

/* One part. Of experts as many entries of the list at a time as there are columns for; the rows of a step in passes. */
template <class F> __device__ __forceinline__ void work(const cu_stream &a, int part, worker &me, int2 range, loaded &have)
{
    const cu_linear &p = a.part[part];
    const int4 *list = (const int4 *)p.tiles;
    if (!list) {
        for (int r = 0; r < p.n_rows; r += CU_STREAM_PASS) {
            int n = min(p.n_rows - r, (int)CU_STREAM_PASS);
            if (have.planes != p.x.planes || have.row0 != r || (p.x.flag && !have.asked)) load_rows<F>(a, p, me, r, n, have);
            tiles<F>(a, part, me, range.x, range.y, {0, n, r, p.x.flag ? have.flags : 0});
        }
        return;
    }
    int T = a.cut[part].tiles, e_last = (range.y - 1) / T;
    have.planes = NULL;
    for (int e = range.x / T; e <= e_last;) {
        int4 ahead = __ldcg(list + min(e + (int)threadIdx.x % 32, e_last));
        int e1 = e, n = 0, first = __shfl_sync(FULL, ahead.y, 0);
        for (int m; e1 <= e_last && e1 < e + 32 && n + (m = __shfl_sync(FULL, ahead.z, e1 - e)) <= a.columns; e1++) n += m;
        if (me.waited) meet();
        wait_for_input(a, me);
        load_columns<F>(a, p.x, me.sm, 0, n, [&](int k) { return p.x_row[first + k]; });
        meet();
        for (int col = 0, i = 0; e < e1; e++, i++) {
            rows_view rows = {col, __shfl_sync(FULL, ahead.z, i), __shfl_sync(FULL, ahead.y, i), 0};
            tiles<F>(a, part, me, max(range.x - e * T, 0), min(range.y - e * T, T), rows);
            col += rows.n;
        }
    }
}

/* Brings what the first part's code will ask for near, while there is nothing else to do. */
__device__ __forceinline__ void touch_params(const cu_stream &a, const int2 *range)
{
    int i = 0;
    while (i + 1 < a.n_parts && range[i].x >= range[i].y) i++;
    const cu_linear &p = a.part[i];
    touch((uintptr_t)p.x.planes + (uintptr_t)p.x.dx + (uintptr_t)p.x.xs + (uintptr_t)p.x.flag + p.x.stride + p.w.n_groups + (uintptr_t)p.y + (uintptr_t)p.x_row +
          (uintptr_t)p.y_row + p.y_stride + p.n_rows + p.w.n_out + a.cut[i].stride + a.x_at + a.slots);
}

template <class F, bool ONE> __device__ __forceinline__ void multiply_all(const cu_stream &a, const int2 *range, uint32_t sm)
{
    int stream = threadIdx.x / 32 / a.subs;
    worker me = {sm, false, 0, stream, stream, 0};
    loaded have = {NULL, 0, false, 0};
#pragma unroll 1
    for (int i = 0; i < a.n_parts; i++)
        if (range[i].x < range[i].y) {
            if constexpr (ONE) work_one<F>(a, i, me, range[i], have);
            else work<F>(a, i, me, range[i], have);
        }
    wait_for_input(a, me); /* a launch is over when all of its blocks are: not before the one in front */
}

template <class F, bool ONE> __device__ __forceinline__ void stream(const cu_stream &a, int2 *range, uint32_t sm)
{
    if (!ONE && a.wait_first) pdl_wait(); /* how long is the list? */
    if (!a.wait_first) pdl_trigger();
    if (threadIdx.x < 32) share_tiles(a, range);
    else if (threadIdx.x == 32) {
        for (int i = 0; i < a.slots; i++) {
            barrier_init(full(sm, i), COPIERS);
            barrier_init(empty(sm, i), 32 * a.subs);
            barrier_init(summed(sm, i), 32 * CU_SEGMENTS);
        }
    } else if (threadIdx.x >= 64 && threadIdx.x < 64 + CU_STREAM_ZEROS / 4) sts_float(sm + a.zeros_at + 4 * (threadIdx.x - 64), 0);
    __syncthreads();
    if (threadIdx.x >= 32 * WARPS) {
        if (ONE) fewer_registers<32>();
        bring(a, range, sm);
    } else {
        if (ONE) more_registers<104>();
        touch_params(a, range);
        multiply_all<F, ONE>(a, range, sm);
    }
}
#endif

/* Kernels for each format: of steps of one row, and of any. */
#if __CUDA_ARCH__ >= 900
#define BODY(one, ...)                                  \
    extern __shared__ __align__(1024) uint8_t shared[]; \
    __shared__ int2 range[CU_MAX_PARTS];                \
    stream<format<__VA_ARGS__>, one>(a, range, address(shared));
#else
#define BODY(...)
#endif
#define KERNEL(name, one, blocks, ...)                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS, blocks) k_stream_##name(const __grid_constant__ cu_stream a) \
    {                                                                                                                   \
        BODY(one, __VA_ARGS__)                                                                                          \
    }
#define KERNELS(name, ...) KERNEL(name##_1, true, 2, __VA_ARGS__) KERNEL(name, false, 1, __VA_ARGS__)
CU_STREAM_FORMATS(KERNELS)
