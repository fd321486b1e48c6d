/* Reasoning delimiters: a table of answers with what must come out, each fed whole, byte by byte and in random pieces. */
#include "base/reason.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

typedef struct row {
    const char *text;
    bool inside, thinking;
    const char *thought, *answer;
} row;

static const row rows[] = {
    { "plain", false, false, "", "plain" },
    { "<think>\nwhy\n</think>\n\nso", false, false, "why", "so" },
    { "\n <think>why</think>so", false, false, "why", "so" },
    { "why\n</think>\n\nso", true, false, "why", "so" },
    { "\n\nwhy\n\nnot\n\n\n</think>so\n", true, false, "why\n\nnot", "so\n" },
    { "never closed\n\n", true, false, "never closed", "" },
    { "never closed </thin", true, false, "never closed </thin", "" },
    { "</think>\n\nat once", true, false, "", "at once" },
    { "a <think>b</think> c", false, false, "", "a <think>b</think> c" },
    { "<think>a</think>b<think>c</think>d", false, false, "a", "b<think>c</think>d" },
    { "<thin air", false, false, "", "<thin air" },
    { " \n two", false, false, "", " \n two" },
    { "<", false, false, "", "<" },
    { "lost\n</think>\n\nfound", false, true, "lost", "found" },
    { "lost\n</think>\n\nfound", false, false, "", "lost\n</think>\n\nfound" },
    { "<</think>x", false, true, "<", "x" },
    { "</think>\nx</think>", false, true, "", "x</think>" },
    { "a<</think</think>b", true, false, "a<</think", "b" },
    { "", true, true, "", "" },
    { "x\n\n\n", false, true, "", "x\n\n\n" },
};

typedef struct got {
    char thought[256], answer[256];
} got;

static void take(void *ctx, int kind, const char *text, size_t n)
{
    got *g = ctx;
    if (kind == CB_REASON_RECLASSIFY) {
        assert_int_equal(g->thought[0], 0); /* it comes once, before any thought */
        memcpy(g->thought, g->answer, sizeof g->thought);
        g->answer[0] = 0;
    } else
        strncat(kind == CB_REASON_THOUGHT ? g->thought : g->answer, text, n);
}

static void check(const row *w, uint64_t seed)
{
    cb_reason r;
    got g = {0};
    size_t n = strlen(w->text);
    cb_reason_init(&r, "<think>", "</think>", w->inside, w->thinking);
    for (size_t i = 0; i < n;) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        size_t m = seed < 1000 ? n : 1 + (seed >> 33) % 5;
        if (m > n - i) m = n - i;
        cb_reason_put(&r, w->text + i, m, take, &g);
        i += m;
    }
    cb_reason_end(&r, take, &g);
    if (strcmp(g.thought, w->thought) != 0 || strcmp(g.answer, w->answer) != 0)
        fail_msg("\"%s\": thought \"%s\", answer \"%s\"", w->text, g.thought, g.answer);
}

static void test_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (uint64_t s = 0; s < 200; s++) check(&rows[i], s * 0x9e3779b97f4a7c15u);
}

static void test_off(void **state)
{
    (void)state;
    cb_reason r;
    got g = {0};
    cb_reason_init(&r, NULL, NULL, true, true);
    cb_reason_put(&r, "<think>x</think>", 16, take, &g);
    cb_reason_end(&r, take, &g);
    assert_string_equal(g.answer, "<think>x</think>");
}

/* Long runs of white space and of almost-delimiters pass through whole and in order. */
static void test_long(void **state)
{
    (void)state;
    static const char *const parts[] = { "\n", " ", "</think", "<think", "a" };
    for (int p = 0; p < 5; p++)
        for (int inside = 0; inside < 2; inside++) {
            cb_reason r;
            got g = {0};
            char text[256] = "", *to = inside ? g.thought : g.answer;
            cb_reason_init(&r, "<think>", "</think>", inside, !inside);
            for (int i = 0; i < 30; i++) strcat(text, parts[p]), cb_reason_put(&r, parts[p], strlen(parts[p]), take, &g);
            strcat(text, "!"), cb_reason_put(&r, "!", 1, take, &g);
            cb_reason_end(&r, take, &g);
            assert_string_equal(to, inside && p == 0 ? "!" : text);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_table), cmocka_unit_test(test_off), cmocka_unit_test(test_long) };
    return cmocka_run_group_tests_name("unit/reason", tests, NULL, NULL);
}
