/* rope.c: rotary frequencies and YaRN's attention factor against transformers' (tests/reference/make_rope_cases.py), and what
 * configs are refused. */
#include "base/json.h"
#include "base/sincos.h"
#include "model/rope.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* Frequencies of a config's text; the builder's failure, or "". */
static const char *freqs_of(const char *config, int dim, double *freq, float *scale, cb_err *err)
{
    cb_config *c;
    cb_builder *b;
    cb_plan *p;
    if (cb_config_parse("x", config, strlen(config), &c, err) < 0) fail_msg("%s", err->text);
    assert_int_equal(pb_open(c, NULL, "test", &b, err), 0);
    double theta = pb_real(b, "rope_theta", 1e6);
    const json_t *o = cb_rope_config(b, &theta);
    *scale = cb_rope_freqs(b, theta, dim, o, freq);
    bool ok = pb_ok(b);
    pb_fail(b, CB_EFORMAT, "no more");
    assert_int_equal(pb_finish(b, &p, err), CB_EFORMAT);
    cb_config_close(c);
    if (ok) err->text[0] = 0;
    return err->text;
}

static void test_cases(void **state)
{
    (void)state;
    json_error_t e;
    json_t *cases = json_load_file("tests/data/rope_cases.json", 0, &e), *c, *v;
    size_t i;
    const char *key;
    if (!cases) fail_msg("%s", e.text);
    assert_true(json_array_size(cases) >= 10);
    json_array_foreach(cases, i, c)
    {
        const char *name = json_string_value(json_object_get(c, "name"));
        char *config = json_dumps(json_object_get(c, "config"), 0);
        double freq[256];
        float scale;
        cb_err err;
        int dim = (int)json_integer_value(json_object_get(c, "dim"));
        assert_true(dim > 0 && dim <= 512);
        if (*freqs_of(config, dim, freq, &scale, &err)) fail_msg("%s: %s", name, err.text);
        double want = json_number_value(json_object_get(c, "factor"));
        if (fabs((double)scale - want) > 1e-7 * want) fail_msg("%s: factor %.9g, expected %.9g", name, (double)scale, want);
        int n = 0;
        json_object_foreach(json_object_get(c, "freq"), key, v)
        {
            double got = freq[atoi(key)];
            want = json_number_value(v); /* theirs are f32 */
            if (fabs(got - want) > 3e-7 * want) fail_msg("%s: pair %s turns %.9g, expected %.9g", name, key, got, want);
            n++;
        }
        assert_true(n >= 4);
        free(config);
    }
    json_decref(cases);
}

static void refuse(const char *scaling, const char *part)
{
    char config[512];
    double freq[64];
    float scale;
    cb_err err;
    snprintf(config, sizeof config, "{\"model_type\":\"qwen3\",\"rope_scaling\":%s}", scaling);
    const char *got = freqs_of(config, 128, freq, &scale, &err);
    if (!strstr(got, part)) fail_msg("%s: \"%s\", expected: %s", scaling, got, part);
    assert_true(isfinite(scale));
}

static void test_refused(void **state)
{
    (void)state;
    refuse("{\"rope_type\":\"yarn\",\"factor\":4}", "original_max_position_embeddings is missing or not positive");
    refuse("{\"rope_type\":\"yarn\",\"original_max_position_embeddings\":32768}", "factor is missing or not positive");
    refuse("{\"rope_type\":\"yarn\",\"factor\":-4,\"original_max_position_embeddings\":32768}", "factor is missing or not positive");
    refuse("{\"rope_type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":32768,\"beta_fast\":0}", "beta_fast");
    refuse("{\"rope_type\":\"yarn\",\"factor\":\"x\",\"original_max_position_embeddings\":32768}", "factor");
    refuse("{\"rope_type\":\"linear\"}", "factor is missing");
    refuse("{\"rope_type\":\"longrope\",\"factor\":4}", "longrope is not supported");
    refuse("{\"type\":\"su\"}", "su is not supported");
}

/* A GPU's quotients by the factors of the sine's and cosine's terms are those of a division. */
static void test_quotient(void **state)
{
    (void)state;
    uint64_t u = 88172645463325252u;
    for (int i = 0; i < 400000; i++) {
        u ^= u << 13, u ^= u >> 7, u ^= u << 17;
        int k = 2 + (int)((u >> 8) % 20);
        double c = k * (k - 1), x = ldexp((double)(u >> 11 | (uint64_t)1 << 52), i % 3 ? -53 : -(int)(u % 700)) * (i & 1 ? 1 : -1);
        if (i % 16 == 0) x = nextafter(x * c, i % 32 ? 1e300 : 0); /* next to what divides evenly */
        double want = x / c, got = cb_quotient(x, c, 1.0 / c);
        assert_memory_equal(&want, &got, sizeof want);
    }
    assert_true(cb_quotient(0, 6, 1.0 / 6) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cases), cmocka_unit_test(test_refused), cmocka_unit_test(test_quotient)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
