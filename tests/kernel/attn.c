/* attn.c: attention over one KV block, and the merge of block results: every level against scalar C. */
#include "kt.h"

static kt_levels L;

/* A block of K and V; scales of tokens outside lo..hi may be anything, so they are NaN. */
static void fill_kv(kt_rng *r, int dim, int16_t *k, int16_t *v, float *dk, float *dv, int lo, int hi)
{
    bool extreme = kt_below(r, 4) == 0;
    for (int i = 0; i < dim * CB_KV_BLOCK; i++) {
        k[i] = (int16_t)(extreme ? CB_XI_MAX : kt_below(r, 2 * CB_XI_MAX + 1) - CB_XI_MAX);
        v[i] = (int16_t)(extreme ? -CB_XI_MAX : kt_below(r, 2 * CB_XI_MAX + 1) - CB_XI_MAX);
    }
    for (int t = 0; t < CB_KV_BLOCK; t++) {
        bool seen = t >= lo && t < hi;
        for (int g = 0; g < cb_head_parts(dim); g++)
            dk[g * CB_KV_BLOCK + t] = seen ? (kt_below(r, 20) ? (kt_unit(r) + 1.001f) * 1e-4f : 0) : NAN;
        dv[t] = seen ? (kt_below(r, 20) ? (kt_unit(r) + 1.001f) * 1e-4f : 0) : NAN;
    }
}

static void fill_queries(kt_rng *r, int dim, int n_q, int16_t *qh, int16_t *ql, float *dqs)
{
    float *x = malloc((size_t)dim * 4);
    int16_t *xi = malloc((size_t)dim * 2);
    for (int q = 0; q < n_q; q++) {
        kt_activations(r, x, dim);
        if (kt_below(r, 4) == 0)
            for (int d = 0; d < dim; d++) x[d] = q & 1 ? 3 : -3;
        L.c.quant16(x, dim, xi);
        for (int g = 0; g < cb_head_parts(dim); g++)
            dqs[q * cb_head_parts(dim) + g] = (kt_unit(r) + 1.001f) * ldexpf(1e-6f, kt_below(r, 8));
        for (int d = 0; d < dim; d++) {
            int hi = (xi[d] + 128) >> 8;
            qh[q * dim + d] = (int16_t)hi, ql[q * dim + d] = (int16_t)(xi[d] - 256 * hi);
        }
    }
    free(x), free(xi);
}

static void check_block(kt_rng *r, int dim, int n_q)
{
    size_t kv = (size_t)dim * CB_KV_BLOCK * 2, qs = (size_t)(n_q * dim) * 2, o = (size_t)(n_q * dim) * 4, s = (size_t)n_q * 4;
    kt_buf k = kt_alloc(kv, 0), v = kt_alloc(kv, 0), dk = kt_alloc((size_t)cb_head_parts(dim) * CB_KV_BLOCK * 4, 0), dv = kt_alloc(CB_KV_BLOCK * 4, 0);
    kt_buf qh = kt_alloc((qs + 63) / 64 * 64, 0), ql = kt_alloc((qs + 63) / 64 * 64, 0), dqs = kt_alloc(s * (size_t)cb_head_parts(dim), 0), lo = kt_alloc(s, 0),
           hi = kt_alloc(s, 0);
    kt_buf m0 = kt_alloc(s, 0), l0 = kt_alloc(s, 0), o0 = kt_alloc(o, 0), m1 = kt_alloc(s, 4), l1 = kt_alloc(s, 4), o1 = kt_alloc(o, 0);
    int32_t *lp = (int32_t *)(void *)lo.p, *hp = (int32_t *)(void *)hi.p;
    int a = 64, b = 0, shape = kt_below(r, 4);
    for (int q = 0; q < n_q; q++) {
        lp[q] = shape == 0 ? 0 : kt_below(r, 64);
        hp[q] = shape == 1 ? 64 : lp[q] + 1 + kt_below(r, 64 - lp[q]);
        if (shape == 2) lp[q] = 0, hp[q] = q + 1 < 64 ? q + 1 : 64; /* causal */
        if (shape == 3) lp[q] = 0, hp[q] = 64;
        a = lp[q] < a ? lp[q] : a, b = hp[q] > b ? hp[q] : b;
    }
    fill_kv(r, dim, (int16_t *)(void *)k.p, (int16_t *)(void *)v.p, kt_floats(&dk), kt_floats(&dv), a, b);
    fill_queries(r, dim, n_q, (int16_t *)(void *)qh.p, (int16_t *)(void *)ql.p, kt_floats(&dqs));
    cb_attn at = {.dim = dim, .n_q = n_q, .qh = (int16_t *)(void *)qh.p, .ql = (int16_t *)(void *)ql.p, .dqs = kt_floats(&dqs),
                  .lo = lp, .hi = hp,
                  .kv = {(int16_t *)(void *)k.p, (int16_t *)(void *)v.p, kt_floats(&dk), kt_floats(&dv)},
                  .m = kt_floats(&m0), .l = kt_floats(&l0), .o = kt_floats(&o0)};
    L.c.attn_block(&at);
    for (int i = 0; i < L.n; i++) {
        if (!KT_OWN(&L, i, attn_block)) continue;
        memset(m1.p, 0xa5, s), memset(l1.p, 0xa5, s), memset(o1.p, 0xa5, o);
        at.m = kt_floats(&m1), at.l = kt_floats(&l1), at.o = kt_floats(&o1);
        L.k[i].attn_block(&at);
        assert_true(kt_uppers_clean());
        const char *n = L.k[i].name;
        kt_same(kt_floats(&m0), kt_floats(&m1), (size_t)n_q, "%s attn m dim %d n_q %d shape %d", n, dim, n_q, shape);
        kt_same(kt_floats(&l0), kt_floats(&l1), (size_t)n_q, "%s attn l dim %d n_q %d shape %d", n, dim, n_q, shape);
        kt_same(kt_floats(&o0), kt_floats(&o1), (size_t)(n_q * dim), "%s attn o dim %d n_q %d shape %d", n, dim, n_q, shape);
    }
    kt_buf *all[] = {&k, &v, &dk, &dv, &qh, &ql, &dqs, &lo, &hi, &m0, &l0, &o0, &m1, &l1, &o1};
    for (int i = 0; i < KT_COUNT(all); i++) kt_free(all[i]);
}

static void test_block(void **state)
{
    (void)state;
    static const int dims[] = {64, 72, 80, 128, 256, 512, 2, 30, 96};
    kt_rng r = kt_seed(200);
    for (int d = 0; d < KT_COUNT(dims); d++)
        for (int n_q = 1; n_q <= 17; n_q++)
            for (int rep = dims[d] > 128 ? 1 : 3; rep > 0; rep--) check_block(&r, dims[d], n_q);
}

static void test_merge(void **state)
{
    (void)state;
    kt_rng r = kt_seed(201);
    for (int i = 0; i < L.n; i++) {
        if (!KT_OWN(&L, i, attn_merge)) continue;
        for (int s = 0; s < 500; s++) {
            int dim = 2 * (1 + kt_below(&r, s < 100 ? 256 : 40));
            size_t b = (size_t)dim * 4;
            kt_buf a = kt_alloc(b, 0), c = kt_alloc(b, 4), o = kt_alloc(b, 0);
            float m0 = s % 7 ? kt_unit(&r) * 50 : -INFINITY, l0 = s % 7 ? kt_unit(&r) + 2 : 0, m = kt_unit(&r) * 50, l = 3;
            for (int e = 0; e < dim; e++) kt_floats(&a)[e] = s % 7 ? kt_unit(&r) : 0, kt_floats(&o)[e] = kt_unit(&r);
            memcpy(c.p, a.p, b);
            float m1 = m0, l1 = l0;
            L.c.attn_merge(&m0, &l0, kt_floats(&a), m, l, kt_floats(&o), dim);
            L.k[i].attn_merge(&m1, &l1, kt_floats(&c), m, l, kt_floats(&o), dim);
            assert_true(kt_uppers_clean());
            kt_same(&m0, &m1, 1, "%s merge m", L.k[i].name);
            kt_same(&l0, &l1, 1, "%s merge l", L.k[i].name);
            kt_same(kt_floats(&a), kt_floats(&c), (size_t)dim, "%s merge o dim %d", L.k[i].name, dim);
            kt_free(&a), kt_free(&c), kt_free(&o);
        }
    }
}

int main(void)
{
    L = kt_levels_get();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_block), cmocka_unit_test(test_merge)};
    return cmocka_run_group_tests_name("kernel/attn", tests, NULL, NULL);
}
