/* models_self.c: real models against themselves: one hash over instruction levels, threads, chunks, neighbours, decode and load
 * order. Runs what is found under $CB_MODELS, skips the rest. By hand, with a table: `cambium parity self MODEL OTHER`. */
#include "../support/engine.h"
#include "cli/parity_ref.h"
#include "cli/parity_self.h"

static void print_different(void *ctx, const cb_self_cell *c)
{
    if (!c->equal) print_message("%s: different: %s, %d positions\n", (const char *)ctx, c->what, c->n);
}

/* 68 positions of the long text: past a block of 64 keys, short enough for about half a minute. */
static void check(const char *name, const char *other)
{
    const char *root = getenv("CB_MODELS");
    char dir[600], other_dir[600], path[600];
    cb_err err = {0};
    cb_ref *r;
    cb_self_result result;
    if (!root || !*root) skip();
    snprintf(dir, sizeof dir, "%.500s/%s", root, name);
    snprintf(other_dir, sizeof other_dir, "%.500s/%s", root, other);
    snprintf(path, sizeof path, "tests/parity/%s.cbref", name);
    if (cb_ref_open(path, &r, &err) < 0) fail_msg("%s", err.text);
    const cb_ref_case *c = &r->cases[r->n_cases - 1];
    assert_true(c->n >= 68);
    cb_engine *e;
    bool has_other = cb_engine_open(other_dir, &(cb_engine_opts){.ctx_size = 64, .max_rows = 1, .n_threads = 1}, &e, NULL) == 0;
    if (has_other) cb_engine_close(e);
    cb_self_opts o = {.dir = dir, .other = has_other ? other_dir : NULL, .ids = r->tokens + c->first, .n = 68, .n_slow = 4, .cell = print_different, .ctx = dir};
    int rc = cb_self_run(&o, &result, &err);
    cb_ref_close(r);
    if (rc == CB_ENOTFOUND) skip();
    if (rc < 0) fail_msg("%s: %s", name, err.text);
    print_message("%s: %d cells, %d levels, sha256 %s\n", name, result.n_cells, result.n_levels, result.hash);
    assert_int_equal(result.n_different, 0);
    assert_true(result.n_cells >= 20);
}

static void test_smollm2(void **state)
{
    (void)state;
    check("smollm2", "gemma3");
}

static void test_gemma3(void **state)
{
    (void)state;
    check("gemma3", "smollm2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_smollm2), cmocka_unit_test(test_gemma3)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
