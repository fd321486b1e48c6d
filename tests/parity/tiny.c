/* tiny.c: every tiny checkpoint against the float64 truth beside it, at every instruction set of this machine. The limits
 * are a tenth of what a bf16 stack with exact weights scores on the same positions (truth.cbref holds that column). */
#include "../support/engine.h"
#include "cli/parity_run.h"
#include <glob.h>

static const char *const levels[] = {"cpu:c", "cpu:avx2", "cpu:avx512", "cpu:neon"};

static double column(const cb_ref *r, const char *stack, const char *value)
{
    const json_t *v = json_object_get(json_object_get(r->meta, stack), value);
    if (!json_is_number(v)) fail_msg("no %s.%s", stack, value);
    return json_number_value(v);
}

static void check_model(const char *dir, const char *level, int chunk)
{
    char path[600];
    cb_err err = {0};
    cb_ref *r;
    cb_engine *e;
    cb_parity p;
    int rc = cb_engine_open(dir, &(cb_engine_opts){.device = level, .n_threads = 1, .max_rows = 64}, &e, &err);
    if (rc == CB_ENODEV) return;
    if (rc < 0) fail_msg("%s: %s", dir, err.text);
    snprintf(path, sizeof path, "%.500s/truth.cbref", dir);
    if (cb_ref_open(path, &r, &err) < 0) fail_msg("%s", err.text);
    double d = column(r, "bf16_exact_weights", "dmax");
    cb_parity_limits lim = {0.1 * column(r, "bf16_exact_weights", "kl_mean"), 0.1 * d, (float)(0.2 * d)};
    rc = cb_parity_run(e, r, NULL, chunk, &lim, &p, &err);
    if (rc >= 0) rc = cb_parity_gate(&p, r, &lim, &err);
    print_message("%-36s %-10s mean KL %.1e (bf16 %.1e)  max|d| %.1e (%.1e)\n", dir, level, p.score.kl_sum / p.score.n,
                  10 * lim.kl_mean, p.score.dmax, d);
    if (rc < 0) fail_msg("%s on %s: %s", dir, level, err.text);
    assert_true(p.score.n >= 64 && p.score.n_full > 0 && p.greedy_runs > 0);
    cb_ref_close(r);
    cb_engine_close(e);
}

static void check_level(int level)
{
    glob_t g;
    assert_int_equal(glob("tests/data/tiny-*", 0, NULL, &g), 0);
    assert_true(g.gl_pathc >= 20);
    for (size_t i = 0; i < g.gl_pathc; i++) check_model(g.gl_pathv[i], levels[level], (int)(1 + i * 7 % 60));
    globfree(&g);
}

static void test_c(void **state)
{
    (void)state;
    check_level(0);
}

static void test_vector(void **state)
{
    (void)state;
    if (te_quick()) skip(); /* bits are equal at every level: tests/op/exact.c */
    for (int i = 1; i < 4; i++) check_level(i);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_c), cmocka_unit_test(test_vector)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
