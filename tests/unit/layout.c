/* layout.c: where the operations of a plan stand and where threads meet, read from the printed plan. */
#include "cambium.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* in this order: cmocka wants the four above */
#include <cmocka.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LINES = 400 };
typedef struct line {
    char mark, kind[24], name[96];
} line;
typedef struct text {
    int n;
    line l[MAX_LINES];
} text;

static text *plan_of(const char *dir)
{
    cb_engine *e = NULL;
    cb_err err = {0};
    char *s = NULL;
    if (cb_engine_open(dir, &(cb_engine_opts){.device = "cpu:c", .n_threads = 1, .ctx_size = 64}, &e, &err) < 0) fail_msg("%s", err.text);
    assert_int_equal(cb_engine_plan_text(e, &s, &err), 0);
    text *t = calloc(1, sizeof *t);
    assert_non_null(t);
    for (char *p = s; p && *p && t->n < MAX_LINES; p = strchr(p, '\n') ? strchr(p, '\n') + 1 : NULL) {
        int i;
        line *l = &t->l[t->n];
        if (sscanf(p, "%d%c %23s %95s", &i, &l->mark, l->kind, l->name) == 4 && i == t->n) t->n++;
    }
    free(s);
    cb_engine_close(e);
    assert_true(t->n > 10);
    return t;
}
static int find(const text *t, const char *kind, const char *name, int from)
{
    for (int i = from; i < t->n; i++)
        if (!strcmp(t->l[i].kind, kind) && (!name || !strcmp(t->l[i].name, name))) return i;
    return -1;
}

/* The router (8 bits) and the experts (4 bits) want the norm's output in two orders: two quantisations, both right behind the norm,
 * however many products read them. */
static void test_quantisations(void **state)
{
    (void)state;
    text *t = plan_of("tests/data/tiny-qwen35moe-4bit");
    static const char norm[] = "layers.0.post_attention_layernorm.weight";
    int at = find(t, "rmsnorm", norm, 0);
    assert_true(at > 0);
    assert_int_equal(find(t, "quant", norm, 0), at + 1);
    assert_int_equal(find(t, "quant", norm, at + 2), at + 2);
    assert_int_equal(find(t, "quant", norm, at + 3), -1);
    free(t);
}

/* The products of one input follow each other without a meeting; what reads another thread's outputs waits. */
static void test_meetings(void **state)
{
    (void)state;
    text *t = plan_of("tests/data/tiny-qwen35moe-4bit");
    int at = find(t, "linear", "layers.0.mlp.gate", 0);
    assert_true(at > 0 && t->l[at].mark == '|');
    for (int i = 1; i <= 3; i++) assert_true(!strcmp(t->l[at + i].kind, "linear") && t->l[at + i].mark == ' ');
    int conv = find(t, "conv", NULL, 0), delta = find(t, "delta_rule", NULL, 0), norm = find(t, "rmsnorm", "layers.0.linear_attn.norm.weight", 0);
    assert_true(conv > 0 && t->l[conv].mark == ' '); /* each thread reads the channels it made */
    assert_true(delta > conv && t->l[delta].mark == '|');
    assert_true(norm > delta && t->l[norm].mark == '|');
    for (int i = 0; (i = find(t, "moe_sort", NULL, i)) >= 0; i++) assert_true(t->l[i].mark == '|');
    for (int i = 0; (i = find(t, "attention", NULL, i)) >= 0; i++) assert_true(t->l[i].mark == '|');
    free(t);
}

/* An operation of a router bears the router's name, not that of what was recorded before it. */
static void test_names(void **state)
{
    (void)state;
    text *t = plan_of("tests/data/tiny-qwen35moe-4bit");
    assert_true(find(t, "route", "layers.0.mlp.gate", 0) > 0);
    assert_true(find(t, "moe_sort", "layers.0.mlp.gate", 0) > 0);
    assert_true(find(t, "add", "layers.0.mlp.switch_mlp.down_proj", 0) > 0);
    assert_true(find(t, "add_gated", "layers.0.mlp.shared_expert.down_proj", 0) > 0);
    free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_quantisations), cmocka_unit_test(test_meetings), cmocka_unit_test(test_names)};
    return cmocka_run_group_tests_name("unit/layout", tests, NULL, NULL);
}
