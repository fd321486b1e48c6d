/* models.c: real models against tests/parity/NAME.cbref. Runs what is found under $CB_MODELS/NAME, skips the rest. The same
 * run with a table of other stacks: `cambium parity check MODEL tests/parity/NAME.cbref`. */
#include "../support/engine.h"
#include "cli/parity_run.h"

static void check(const char *name)
{
    const char *root = getenv("CB_MODELS");
    char dir[600], path[600];
    cb_err err = {0};
    cb_ref *r;
    cb_engine *e;
    cb_parity p = {0};
    if (!root || !*root) skip();
    snprintf(dir, sizeof dir, "%.500s/%s", root, name);
    snprintf(path, sizeof path, "tests/parity/%s.cbref", name);
    if (cb_ref_open(path, &r, &err) < 0) fail_msg("%s", err.text);
    int rc = cb_engine_open(dir, &(cb_engine_opts){.ctx_size = 1024, .max_rows = 32}, &e, &err);
    if (rc == CB_ENOTFOUND) {
        cb_ref_close(r);
        skip();
    }
    if (rc < 0) fail_msg("%s: %s", name, err.text);
    rc = cb_parity_run(e, r, NULL, 32, &cb_parity_defaults, &p, &err);
    if (rc >= 0) rc = cb_parity_gate(&p, r, &cb_parity_defaults, &err);
    if (rc >= 0) rc = cb_parity_gate_stack(&p, r, &err);
    if (rc < 0) fail_msg("%s: %s", name, err.text);
    assert_true(p.score.n >= 900 && p.greedy_runs == 5);
    cb_ref_close(r);
    cb_engine_close(e);
}

static void test_smollm2(void **state)
{
    (void)state;
    check("smollm2");
}

static void test_gemma3(void **state)
{
    (void)state;
    check("gemma3");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_smollm2), cmocka_unit_test(test_gemma3)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
