/* attn_emulated.c: attention of single rows by a cluster (cuda/attn_cluster.cu) gives the bits of the two launches (attn_step.cu, attn_join.cu: those
 * of the CPU, op/cuda_emulated.c) without a GPU, on the driver of tests/cuda/emulate: heads of 64 to 512 dims, contexts up to the most that a cluster
 * takes, windows, shared states, sets of queries, rings and clusters of all sizes. And k_attn_join_cluster gives those of k_attn_join. */
#include "cuda/abi.h"
#include "plan/layout.h"
#include "plan/plan.h"
#include "../support/emulated.h"
#include "../support/random.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { SHARED = 232448, MOST_ROWS = 2 };

typedef struct shape {
    int dim, kv_heads, per, pairs, half, window, o_block;
    bool norms, gate, shared_state, flag;
} shape;

/* All memory that a launch reads or writes, in one piece: a copy of it is another run's. */
typedef struct memory {
    cu_step step;
    int32_t pos[MOST_ROWS], slot[MOST_ROWS], arrived[MOST_ROWS];
    const int32_t *tables[1];
    float found[MOST_ROWS * CU_MOST_PIECES][2];
} memory;

typedef struct bench {
    memory m;
    cu_attn_step a;
    int32_t *table;
    uint8_t *kv;
    float *q, *k, *v, *turn, *gate, *norm, *out, *part;
    int8_t *planes;
    size_t kv_bytes, out_bytes, plane_bytes;
} bench;

static float *floats(size_t n, float scale)
{
    float *p = room_at(256, n * 4);
    for (size_t i = 0; i < n; i++) p[i] = scale * uniform();
    return p;
}

static int parts_of(int dim) { return dim <= 64 ? 1 : dim <= 128 ? 2 : dim <= 256 ? 4 : 8; }

/* n_rows rows of `tokens` tokens, the one at hand included; row 1 has a few less. */
static void make(bench *b, const shape *s, int n_rows, int tokens)
{
    int dim = s->dim, heads = s->kv_heads * s->per, blocks = (tokens + CU_BLOCK - 1) / CU_BLOCK, parts = (dim + 63) / 64, width = heads * dim;
    size_t head_bytes = ((size_t)(4 * CU_BLOCK * dim + (parts + 1) * CU_BLOCK * 4) + 63) / 64 * 64, floats_of_row = (size_t)width;
    memset(b, 0, sizeof *b);
    b->kv_bytes = head_bytes * (size_t)(s->kv_heads * blocks * n_rows);
    b->kv = room_at(256, b->kv_bytes);
    for (size_t i = 0; i < b->kv_bytes; i++) b->kv[i] = (uint8_t)rnd();
    for (size_t h = 0; h < b->kv_bytes / head_bytes; h++) {
        float *scale = (float *)(b->kv + h * head_bytes + (size_t)(4 * CU_BLOCK * dim));
        for (int i = 0; i < (parts + 1) * CU_BLOCK; i++) scale[i] = 1e-4f + 1e-4f * fabsf(uniform());
    }
    b->table = room_at(256, (size_t)(blocks * n_rows) * 4);
    for (int i = 0; i < blocks * n_rows; i++) b->table[i] = (i + 5) % (blocks * n_rows);
    b->q = floats(floats_of_row * 2 * (size_t)n_rows, 1);
    b->k = floats((size_t)(s->kv_heads * dim * n_rows), 1);
    b->v = floats((size_t)(s->kv_heads * dim * n_rows), 1);
    b->turn = floats((size_t)(2 * s->pairs * n_rows), 1);
    b->gate = floats(floats_of_row * (size_t)n_rows, 3);
    b->norm = floats((size_t)dim, 2);
    b->out_bytes = floats_of_row * (size_t)n_rows * 4;
    b->out = room_at(256, b->out_bytes);
    b->part = room_at(256, (size_t)(n_rows * heads * (blocks + 8) * (dim + 2)) * 4);
    cu_planes x = {.group = 64, .pack = 2, .n_groups = width / 64, .stride = (int32_t)cb_plan_plane_stride(width, 2), .n_rows = n_rows};
    size_t groups = (size_t)(2 * n_rows * x.n_groups);
    b->plane_bytes = (size_t)(2 * n_rows) * (size_t)x.stride + groups * 12 + (size_t)n_rows * 4;
    b->planes = room_at(256, b->plane_bytes);
    if (dim % 64 == 0) {
        x.planes = b->planes;
        x.dx = (float *)(x.planes + (size_t)(2 * n_rows) * (size_t)x.stride);
        x.xs = x.dx + groups;
        x.sum = (int32_t *)(x.xs + groups);
        if (s->flag) x.flag = x.sum + groups;
    }
    memory *m = &b->m;
    m->step.bad_op = CU_NO_OP;
    for (int r = 0; r < n_rows; r++) m->pos[r] = tokens - 1 > 3 * r ? tokens - 1 - 3 * r : 0, m->slot[r] = r;
    cu_head_norm norm = {b->norm, 1e-6f, s->norms};
    b->a = (cu_attn_step){.kv = {b->kv, (int64_t)head_bytes, s->kv_heads, dim, s->window, 0}, .q = b->q, .k = s->shared_state ? NULL : b->k, .v = s->shared_state ? NULL : b->v, .turn = b->turn,
                          .gate = s->gate ? b->gate : NULL, .out = b->out, .part = b->part, .q_norm = norm, .k_norm = norm, .v_norm = {NULL, 1e-6f, s->norms},
                          .q_stride = 2 * width, .q_head = 2 * dim, .k_stride = s->kv_heads * dim, .v_stride = s->kv_heads * dim, .turn_stride = 2 * s->pairs, .gate_stride = width,
                          .gate_head = dim, .out_stride = width, .n_heads = heads, .n_splits = blocks, .n_rows = n_rows, .per = s->per, .sets = (s->per + 7) / 8, .pairs = s->pairs,
                          .half = s->half, .q_rope = 1, .k_rope = 1, .q_block = 16, .k_block = 16, .v_block = s->o_block, .o_block = s->o_block, .q_scale = 0.25f, .k_scale = 0.25f,
                          .v_scale = 0.125f, .o_scale = 0.125f, .scale = 0.05f, .op = 1, .put_op = 2, .planes = {.x = x, .share = 0.02f, .op = 3}};
}

static void free_bench(bench *b)
{
    free(b->kv), free(b->table), free(b->q), free(b->k), free(b->v), free(b->turn), free(b->gate), free(b->norm), free(b->out), free(b->part), free(b->planes);
}

/* Blocks of keys of a stage, and the dynamic shared memory of all stages (cuda/fuse.c), when `ranks` thread blocks join a head; `most`: of each stage. */
static unsigned stages(cu_attn_step *a, int ranks, int most)
{
    int dim = a->kv.dim;
    for (a->stage = 1; 2 * a->stage * dim <= ranks * CU_JOIN_FLOATS && 2 * a->stage <= dim && 2 * a->stage <= most && a->stage < a->n_splits; a->stage *= 2) {}
    return (unsigned)(CU_JOIN_STAGES * a->stage * dim / ranks * 4);
}

/* What a run leaves: the result, its planes, the cache. */
static uint8_t *run(bench *b, int ranks, int slots)
{
    static fake_kernel kernels[2][9], join;
    static const char *const names[2][9] = {{[1] = "k_attn_step64", [2] = "k_attn_step128", [4] = "k_attn_step256", [8] = "k_attn_step512"},
                                            {[1] = "k_attn_cluster64", [2] = "k_attn_cluster128", [4] = "k_attn_cluster256", [8] = "k_attn_cluster512"}};
    int parts = parts_of(b->a.kv.dim), dim = b->a.kv.dim;
    fake_kernel *k = &kernels[ranks != 0][parts];
    if (!*k) *k = emulated_kernel(names[ranks != 0][parts], sizeof(cu_attn_step));
    if (!join) join = emulated_kernel("k_attn_join", sizeof(cu_attn_step));
    cu_attn_step a = b->a;
    memory m = b->m;
    uint8_t *kv = room_at(256, b->kv_bytes), *left = room_at(256, b->kv_bytes + b->out_bytes + b->plane_bytes);
    m.tables[0] = b->table;
    m.step.tables = m.tables;
    m.step.table_stride = b->a.n_splits;
    memcpy(kv, b->kv, b->kv_bytes);
    memset(b->out, 7, b->out_bytes);
    memset(b->planes, 0, b->plane_bytes);
    a.step = &m.step;
    a.pos = m.pos;
    a.slot = m.slot;
    a.kv.base = kv;
    a.planes.arrived = m.arrived;
    a.planes.found = m.found;
    if (a.kv.window && a.n_splits > a.kv.window / CU_BLOCK + 2) a.n_splits = a.kv.window / CU_BLOCK + 2;
    unsigned gy = (unsigned)(a.kv.n_heads * a.sets), gz = (unsigned)a.n_rows;
    if (ranks) {
        int per = (a.n_splits + ranks - 1) / ranks, used = (a.n_splits + per - 1) / per, queries = a.per < 8 ? a.per : 8;
        a.slots = slots < 2 * per ? slots : 2 * per;
        unsigned n = (unsigned)(used > queries ? used : queries), shared = (unsigned)(CU_ATTN_CLUSTER_FIXED(parts) + a.n_splits * dim * 4 + a.slots * CU_STEP_HALF(parts));
        if (shared > SHARED) goto none;
        (*k)(&a, &(fake_grid){{n, gy, gz}, (unsigned)(32 * CU_CLUSTER_WARPS), shared, n});
    } else {
        a.slots = 2;
        unsigned shared = stages(&a, 1, dim);
        (*k)(&a, &(fake_grid){{(unsigned)a.n_splits, gy, gz}, (unsigned)(32 * CU_STEP_WARPS(parts)), (unsigned)(CU_STEP_FIXED(parts) + 2 * CU_STEP_HALF(parts)), 0});
        join(&a, &(fake_grid){{(unsigned)a.n_heads, gz, 1}, (unsigned)(dim + 31) / 32 * 32, shared, 0});
    }
    assert_int_equal(m.step.bad_op, CU_NO_OP);
    for (int r = 0; r < a.n_rows; r++) assert_int_equal(m.arrived[r], 0);
    memcpy(left, kv, b->kv_bytes);
    memcpy(left + b->kv_bytes, b->out, b->out_bytes);
    memcpy(left + b->kv_bytes + b->out_bytes, b->planes, b->plane_bytes);
    free(kv);
    return left;
none:
    free(kv);
    free(left);
    return NULL;
}

/* The first byte that differs, or n. */
static size_t first_difference(const uint8_t *a, const uint8_t *b, size_t n)
{
    size_t at = 0;
    while (at < n && a[at] == b[at]) at++;
    return at;
}

static void compare(const shape *s, int n_rows, int tokens)
{
    static const int forms[][2] = {{16, 6}, {16, 2}, {8, 4}, {8, 3}}; /* thread blocks at most, halves of the ring */
    bench b;
    make(&b, s, n_rows, tokens);
    uint8_t *want = run(&b, 0, 0);
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        uint8_t *got = run(&b, forms[i][0], forms[i][1]);
        size_t all = b.kv_bytes + b.out_bytes + b.plane_bytes, at = got ? first_difference(got, want, all) : all;
        if (at < all)
            fail_msg("%d dims, %d x %d heads, %d rows of %d tokens, %d thread blocks, %d halves: byte %zu of %zu + %zu + %zu", s->dim, s->kv_heads, s->per, n_rows, tokens, forms[i][0], forms[i][1],
                     at, b.kv_bytes, b.out_bytes, b.plane_bytes);
        free(got);
    }
    free(want);
    free_bench(&b);
}

static void test_shapes(void **state)
{
    (void)state;
    static const shape shapes[] = {
        {64, 1, 3, 32, 32, 0, 64, false, false, false, false}, {128, 2, 2, 32, 64, 0, 128, true, true, false, true},   {256, 1, 8, 32, 32, 0, 256, true, true, false, true},
        {256, 2, 2, 128, 128, 1024, 256, true, false, false, true}, {512, 1, 8, 64, 256, 0, 512, true, false, false, true}, {128, 1, 12, 64, 64, 100, 32, false, true, false, false},
        {256, 1, 2, 128, 128, 0, 256, true, false, true, true},      {64, 2, 16, 32, 32, 130, 64, false, false, false, true},
    };
    static const int tokens[] = {1, 65, 530, 1025, 2048};
    if (!emulated.lib) skip();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t k = 0; k < sizeof tokens / sizeof *tokens; k++)
            if (getenv("CB_EMULATE_BACKWARDS") ? k == i % 5 : k % 2 == i % 2 || k == 2) compare(&shapes[i], 1 + (int)(k == 1), tokens[k]);
}

/* ---- joining ---- */

/* Joins results of blocks of keys that nobody computed; returns the outputs and their planes. */
static uint8_t *run_join(bench *b, int ranks, int most)
{
    static fake_kernel kernels[2];
    fake_kernel *k = &kernels[ranks > 1];
    if (!*k) *k = emulated_kernel(ranks > 1 ? "k_attn_join_cluster" : "k_attn_join", sizeof(cu_attn_step));
    cu_attn_step a = b->a;
    memory m = b->m;
    unsigned heads = (unsigned)a.n_heads, rows = (unsigned)a.n_rows, shared = stages(&a, ranks, most), threads = (unsigned)a.kv.dim;
    uint8_t *left = room_at(256, b->out_bytes + b->plane_bytes);
    memset(b->out, 7, b->out_bytes);
    memset(b->planes, 0, b->plane_bytes);
    a.step = &m.step;
    a.pos = m.pos;
    a.planes.arrived = m.arrived;
    a.planes.found = m.found;
    if (ranks > 1) (*k)(&a, &(fake_grid){{(unsigned)ranks, heads, rows}, threads, shared + CU_JOIN_FIXED(threads), (unsigned)ranks});
    else (*k)(&a, &(fake_grid){{heads, rows, 1}, threads, shared, 0});
    assert_int_equal(m.step.bad_op, CU_NO_OP);
    for (int r = 0; r < a.n_rows; r++) assert_int_equal(m.arrived[r], 0);
    memcpy(left, b->out, b->out_bytes);
    memcpy(left + b->out_bytes, b->planes, b->plane_bytes);
    return left;
}

static void compare_join(const shape *s, int n_rows, int blocks)
{
    static const int most[] = {512, 16}; /* blocks of keys of a stage */
    bench b;
    make(&b, s, n_rows, blocks * CU_BLOCK - 3);
    size_t results = (size_t)(n_rows * b.a.n_heads * b.a.n_splits), floats_of = results * (size_t)s->dim, all = b.out_bytes + b.plane_bytes;
    for (size_t i = 0; i < floats_of; i++) b.part[i] = uniform();
    for (size_t i = 0; i < results; i++) b.part[floats_of + 2 * i] = 8 * uniform(), b.part[floats_of + 2 * i + 1] = 1 + fabsf(uniform());
    uint8_t *want = run_join(&b, 1, 512);
    assert_true(((float *)want)[1] != ((float *)want)[0] && isfinite(((float *)want)[0]));
    for (size_t i = 0; i < sizeof most / sizeof *most; i++) {
        uint8_t *got = run_join(&b, CU_JOIN_RANKS, most[i]);
        size_t at = first_difference(got, want, all);
        if (at < all) fail_msg("%d dims, %d rows of %d blocks of keys, stages of up to %d: byte %zu of %zu + %zu", s->dim, n_rows, blocks, most[i], at, b.out_bytes, b.plane_bytes);
        free(got);
    }
    free(want);
    free_bench(&b);
}

static void test_join(void **state)
{
    (void)state;
    static const shape shapes[] = {
        {128, 1, 2, 32, 64, 0, 128, false, true, false, true},  {256, 1, 2, 32, 32, 0, 256, false, true, false, true},   {512, 1, 2, 64, 256, 0, 512, false, false, false, true},
        {256, 2, 1, 32, 32, 0, 1, false, false, false, false},  {512, 1, 1, 64, 256, 0, 1, false, true, false, true},    {128, 1, 1, 32, 64, 0, 16, false, false, false, true},
        {256, 1, 2, 32, 32, 5000, 64, false, true, false, true},
    };
    static const int blocks[] = {1, 40, 64, 130, 300, 515};
    if (!emulated.lib) skip();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t k = 0; k < sizeof blocks / sizeof *blocks; k++) compare_join(&shapes[i], 1 + (int)(k == 3), blocks[k]);
}

static void test_join_backwards(void **state) { emulated_backwards(test_join, state); }

static void test_backwards(void **state) { emulated_backwards(test_shapes, state); }

int main(void)
{
    emulated_open();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shapes), cmocka_unit_test(test_backwards), cmocka_unit_test(test_join), cmocka_unit_test(test_join_backwards)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
