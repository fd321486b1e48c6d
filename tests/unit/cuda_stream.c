/* How products of few rows are cut for stream.cu: the ring fits, its places always belong to the same warps, what cannot be done is refused. */
#include "cuda/stream.c" /* also where the build has no GPU kernels */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

enum { N_SM = 132, SHARED = 232448 };

static cu_linear linear(int n_out, int k, int bits, int group, int rows)
{
    cu_linear l = {.n_rows = rows};
    l.w = (cu_weight){.codes = (const uint8_t *)256, .scales = (const uint8_t *)512, .biases = (const uint8_t *)1024, .row_bytes = (int64_t)k * bits / 8,
                      .expert_rows = n_out, .n_out = n_out, .k = k, .fmt = CU_FMT_AFFINE, .bits = bits, .group = group, .n_groups = k / group,
                      .scale_type = CU_S_BF16, .pack = 8 / bits};
    l.x.planes = (int8_t *)4096;
    l.x.flag = (int32_t *)8192;
    return l;
}

static void check_cut(cu_stream *a, int tile_rows, int entries, bool tight)
{
    unsigned blocks, shared;
    assert_true(cu_stream_cut(a, N_SM, SHARED, tile_rows, entries, tight, &blocks, &shared));
    assert_in_range(blocks, 1, N_SM);
    assert_true(shared <= CU_STREAM_SHARED);
    int streams = CU_STREAM_WARPS / a->subs;
    assert_int_equal(a->per * a->subs, CU_SEGMENTS);
    assert_true(a->slots >= streams && a->slots <= CU_STREAM_SLOTS && a->slots % streams == 0);
    int room = (a->sums_at - CU_STREAM_RING) / a->slot_bytes, most = tight ? most_stages(a, blocks) : 0; /* places of the ring that have memory: all, or all that are used */
    assert_true(room >= (most && most < a->slots ? most : a->slots) && a->x_at >= a->sums_at + room * a->sum_bytes);
    uint64_t all = 0;
    for (int i = 0; i < a->n_parts; i++) {
        assert_int_equal(a->cut[i].stride % 16, 0);
        assert_true(a->cut[i].stride >= a->part[i].w.row_bytes && a->cut[i].cost > 0);
        all += (uint64_t)a->cut[i].cost * (uint64_t)a->cut[i].tiles * (a->part[i].tiles ? (uint64_t)entries : 1);
    }
    assert_true(all * N_SM < UINT32_MAX);
}

static void check(cu_stream *a, int tile_rows, int entries)
{
    cu_stream b = *a;
    check_cut(&b, tile_rows, entries, true);
    check_cut(a, tile_rows, entries, false);
}

static void test_shapes(void **state)
{
    (void)state;
    static const int shapes[][4] = {{12352, 2048, 4, 64}, {2048, 4096, 4, 64}, {24576, 4096, 2, 128}, {4096, 12288, 2, 128}, {248320, 2048, 4, 64},
                                    {256, 2816, 8, 64}, {16, 64, 4, 32}, {1000000, 5120, 4, 64}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int rows = 1; rows <= (shapes[i][1] > 4096 ? 1 : 4); rows++) {
            cu_stream a = {.n_parts = 1};
            a.part[0] = linear(shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3], rows);
            check(&a, 0, 0);
        }
}

/* Tiles as the kernel cuts them, by hand: of equal cost, and of two formats. */
static void test_stages(void **state)
{
    (void)state;
    cu_stream a = {.n_parts = 3};
    unsigned blocks, shared;
    for (int i = 0; i < 3; i++) a.part[i] = linear(i ? 512 : 8192, 2048, 4, 64, 1); /* 576 tiles for 132 blocks */
    assert_true(cu_stream_cut(&a, N_SM, SHARED, 0, 0, true, &blocks, &shared));
    assert_int_equal(most_stages(&a, blocks), 5);
    assert_in_range(shared, 5 * a.slot_bytes, 6 * a.slot_bytes);
    a.n_parts = 1;
    a.part[0] = linear(64, 2048, 4, 64, CU_STREAM_PASS + 1);
    assert_int_equal(most_stages(&a, 1), 0);
    a.part[0].n_rows = 1;
    assert_true(cu_stream_cut(&a, 1, SHARED, 0, 0, true, &blocks, &shared));
    assert_int_equal(most_stages(&a, blocks), 4);
}

static void test_experts(void **state)
{
    (void)state;
    cu_stream a = {.n_parts = 2};
    for (int entries = 8; entries <= 4096; entries *= 8) {
        for (int i = 0; i < 2; i++) {
            a.part[i] = linear(1024, 2048, 4, 64, entries);
            a.part[i].x.flag = NULL;
            a.part[i].tiles = (const int32_t *)64;
        }
        check(&a, entries > 128 ? 8 : 4, entries);
    }
}

/* Rows of a plain part are taken in passes: room for those of one, and their remainders. */
static void test_passes(void **state)
{
    (void)state;
    cu_stream a = {.n_parts = 1};
    a.part[0] = linear(4096, 2048, 4, 64, CU_STREAM_MOST);
    check(&a, 0, 0);
    assert_int_equal(a.columns, 2 * CU_STREAM_PASS);
}

static void refuse(cu_linear l)
{
    unsigned blocks, shared;
    cu_stream a = {.n_parts = 1};
    a.part[0] = l;
    assert_false(cu_stream_cut(&a, N_SM, SHARED, 0, 0, true, &blocks, &shared));
}

static void test_refused(void **state)
{
    (void)state;
    cu_linear l = linear(4096, 4096, 4, 64, 1);
    l.n_rows = CU_STREAM_MOST + 1;
    refuse(l);
    l.n_rows = 1;
    l.w.codes += 8;
    refuse(l);
    refuse(linear(4096, 4096, 4, 128, 1));   /* no code for this group */
    refuse(linear(4096, 65536, 8, 64, 1));   /* one tile is larger than shared memory */
    refuse(linear(4096, 17408, 4, 64, 1));   /* one stage would not keep the warps busy */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shapes), cmocka_unit_test(test_stages), cmocka_unit_test(test_experts), cmocka_unit_test(test_passes), cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
