/* ref.c: the reader of reference files against damaged ones, and the metrics against worked values. */
#include "../support/engine.h"
#include "../support/tmpdir.h"
#include "base/mem.h"
#include "cli/parity_ref.h"
#include <math.h>

static const char sound[] = "tests/data/tiny-llama-4bit/truth.cbref";
static char dir[64];

static char *slurp(size_t *n)
{
    char *data;
    assert_int_equal(cb_file_read(NULL, sound, 1 << 24, &data, n, NULL), 0);
    return data;
}

static int open_bytes(const char *data, size_t n, cb_err *err)
{
    char path[128];
    snprintf(path, sizeof path, "%s/x.cbref", dir);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    cb_ref *r = NULL;
    int rc = cb_ref_open(path, &r, err);
    if (rc == 0) cb_ref_close(r);
    return rc;
}

static void test_truncated(void **state)
{
    (void)state;
    size_t n;
    char *data = slurp(&n);
    cb_err err;
    assert_int_equal(open_bytes(data, n, &err), 0);
    for (size_t m = 0; m < n; m += m < 200 ? 1 : 251) assert_int_equal(open_bytes(data, m, &err), CB_EFORMAT);
    assert_int_equal(open_bytes(data, n - 1, &err), CB_EFORMAT);
    char *longer = cb_alloc(n + 1);
    memcpy(longer, data, n);
    assert_int_equal(open_bytes(longer, n + 1, &err), CB_EFORMAT);
    assert_non_null(strstr(err.text, "left over"));
    cb_free(longer);
    cb_free(data);
}

static void test_counts(void **state)
{
    (void)state;
    size_t n;
    char *data = slurp(&n);
    const uint32_t values[] = {0, 1, 7, 100000, 0x7fffffff, 0x80000000u, 0xffffffffu};
    for (size_t at = 0; at < 44; at += 4)
        for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
            char old[4];
            cb_err err = {0};
            memcpy(old, data + at, 4);
            memcpy(data + at, &values[i], 4);
            int rc = open_bytes(data, n, &err);
            if (memcmp(old, data + at, 4)) assert_int_equal(rc, CB_EFORMAT);
            memcpy(data + at, old, 4);
        }
    cb_free(data);
}

static void test_ids(void **state)
{
    (void)state;
    size_t n;
    char *data = slurp(&n);
    cb_ref *r;
    cb_err err;
    assert_int_equal(cb_ref_open(sound, &r, &err), 0);
    const void *places[] = {r->tokens, r->top_id, r->sample_id, r->full_pos, r->cases, r->greedy[0].tokens};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        size_t at = (size_t)((const char *)places[i] - r->copy);
        char old[4];
        memcpy(old, data + at, 4);
        memset(data + at, 0x7f, 4);
        assert_int_equal(open_bytes(data, n, &err), CB_EFORMAT);
        memcpy(data + at, old, 4);
    }
    cb_ref_close(r);
    cb_free(data);
    assert_int_equal(cb_ref_open("tests/data/no-such.cbref", &r, &err), CB_ENOTFOUND);
}

/* Truth scored against itself is 0; one changed logit gives the KL that paper and pencil give. */
static void test_metrics(void **state)
{
    (void)state;
    cb_ref *r;
    assert_int_equal(cb_ref_open(sound, &r, NULL), 0);
    assert_true(r->n_full >= 4 && r->full_kind == CB_REF_F32);
    float *row = cb_alloc_array(r->n_vocab, 4), *full = cb_alloc_array(r->n_vocab, 4);
    for (uint32_t i = 0; i < r->n_full; i++) {
        uint32_t pos = r->full_pos[i], best = r->top_id[(size_t)pos * r->top_k];
        cb_ref_score s;
        cb_ref_full_row(r, i, full);
        memcpy(row, full, (size_t)r->n_vocab * 4);
        cb_ref_score_init(&s, 0.02f);
        cb_ref_score_row(&s, r, pos, row, full);
        assert_true(fabs(s.kl_sum) < 1e-6 && fabs(s.full_kl_sum) < 1e-6 && s.dmax < 1e-5 && s.n_flips == 0);

        row[best] += 0.5f; /* q = p e^0.5 / Z for the best token, p / Z for the rest; Z = 1 + p (e^0.5 - 1) */
        double p = exp((double)r->top[(size_t)pos * r->top_k]), want = log1p(p * expm1(0.5)) - 0.5 * p;
        cb_ref_score_init(&s, 0.02f);
        cb_ref_score_row(&s, r, pos, row, full);
        assert_true(fabs(s.kl_sum - want) < 1e-6 && fabs(s.full_kl_sum - want) < 1e-6 && fabs(s.dmax - 0.5) < 1e-5);

        row[best] = full[best] - 100;
        cb_ref_score_init(&s, 0.02f);
        cb_ref_score_row(&s, r, pos, row, NULL);
        assert_int_equal(s.n_flips, 1);
        assert_int_equal(s.n_bad_flips, cb_ref_margin(r, pos) > 0.02f);

        row[r->n_vocab - 1] = NAN;
        cb_ref_score_init(&s, 0.02f);
        cb_ref_score_row(&s, r, pos, row, full);
        assert_true(isinf(s.kl_sum) && isinf(s.dmax));
    }
    cb_free(row);
    cb_free(full);
    cb_ref_close(r);
}

static int setup(void **state)
{
    (void)state;
    tmp_dir(dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tmp_remove(dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_truncated), cmocka_unit_test(test_counts), cmocka_unit_test(test_ids),
                                       cmocka_unit_test(test_metrics)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
