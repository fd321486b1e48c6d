/* How products of 17 to 64 rows are cut for batch.cu: every output is some block's, shared memory suffices, what cannot be done is refused. */
#include "cuda/batch.c" /* also where the build has no GPU kernels */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

enum { N_SM = 132, SHARED = 232448 };

static cu_linear linear(int n_out, int k, int bits, int group, int rows)
{
    cu_linear l = {.n_rows = rows};
    l.w = (cu_weight){.codes = (const uint8_t *)256, .scales = (const uint8_t *)512, .biases = (const uint8_t *)1024, .row_bytes = (int64_t)k * bits / 8,
                      .n_out = n_out, .k = k, .fmt = CU_FMT_AFFINE, .bits = bits, .group = group, .n_groups = k / group, .scale_type = CU_S_BF16};
    l.x.planes = (int8_t *)4096;
    l.x.stride = 2 * k;
    return l;
}

static cu_batch cut(int n_out, int k, int bits, int group, int rows)
{
    cu_linears a = {.n_parts = 2};
    cu_batch b;
    a.part[0] = linear(n_out, k, bits, group, rows);
    a.part[1] = linear(16, k, bits, group, rows);
    assert_true(cu_batch_cut(&a, N_SM, SHARED, &b));
    assert_true(b.shared <= CU_BATCH_SHARED && b.threads <= 512);
    assert_int_equal(b.blocks, a.block0[2]);
    assert_int_equal(a.block0[0], 0);
    for (int i = 0; i < 2; i++) {
        const cu_linear *p = &a.part[i];
        int64_t of_block = (int64_t)512 * og_of(b.format, b.shape) * cg_of(b.format, b.shape);
        assert_true((a.block0[i + 1] - a.block0[i]) * of_block >= (int64_t)p->w.n_out * p->n_rows);
    }
    return b;
}

static void test_shapes(void **state)
{
    (void)state;
    assert_int_equal(cut(12352, 2048, 4, 64, 64).shape, CU_BATCH_WIDE);
    assert_int_equal(cut(24576, 4096, 2, 128, 32).shape, CU_BATCH_TALL);
    assert_int_equal(cut(2000, 4096, 4, 64, 64).shape, CU_BATCH_SPLIT);
    for (int rows = CU_BATCH_LEAST; rows <= CU_BATCH_MOST; rows++) {
        cut(256, 2048, 8, 64, rows);
        cut(3, 64, 4, 32, rows);
        cut(4000, 12288, 2, 128, rows);
    }
}

static void refuse(cu_linear l)
{
    cu_linears a = {.n_parts = 1};
    cu_batch b;
    a.part[0] = l;
    assert_true(cu_batch_format(&l) < 0 || !cu_batch_cut(&a, N_SM, SHARED, &b));
}

static void test_refused(void **state)
{
    (void)state;
    refuse(linear(4096, 4096, 4, 64, CU_BATCH_LEAST - 1));
    refuse(linear(4096, 4096, 4, 64, CU_BATCH_MOST + 1));
    refuse(linear(4096, 4096, 4, 128, 32));   /* no code for this group */
    refuse(linear(4096, 65536, 8, 64, 32));   /* its scales do not fit */
    refuse(linear(248320, 2048, 4, 64, 64));  /* for the kernels of many rows */
    cu_linear l = linear(4096, 4096, 4, 64, 32);
    l.w.codes += 8;
    refuse(l);
    l = linear(4096, 4096, 4, 64, 32);
    l.tiles = (const int32_t *)64;
    refuse(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shapes), cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
