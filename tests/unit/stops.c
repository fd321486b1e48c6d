/* Stop strings: for random texts, stops and cuts, the output equals the first completing match on the whole text. */
#include "base/stops.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static unsigned next(uint64_t *r, unsigned n)
{
    *r = *r * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(*r >> 33) % n;
}

/* The first end at which any stop is complete; the longest such stop gives the beginning. */
static size_t reference(const char *text, size_t n, char stops[][8], int n_stops, int *which)
{
    for (size_t end = 1; end <= n; end++) {
        size_t best = 0;
        for (int i = 0; i < n_stops; i++) {
            size_t len = strlen(stops[i]);
            if (len <= end && len > best && !memcmp(text + end - len, stops[i], len)) best = len, *which = i;
        }
        if (best) return end - best;
    }
    *which = -1;
    return n;
}

static void test_random(void **state)
{
    uint64_t r = 3;
    for (int round = 0; round < 20000; round++) {
        char text[64], stops[4][8], out[64 + CB_STOP_BYTES_MAX];
        size_t n = next(&r, 64), n_out = 0;
        for (size_t i = 0; i < n; i++) text[i] = (char)('a' + next(&r, 3));
        int n_stops = (int)next(&r, 5);
        cb_stops s;
        cb_stops_init(&s);
        for (int i = 0; i < n_stops; i++) {
            size_t len = 1 + next(&r, 7);
            for (size_t j = 0; j < len; j++) stops[i][j] = (char)('a' + next(&r, 3));
            stops[i][len] = 0;
            assert_int_equal(cb_stops_add(&s, stops[i], len), 0);
        }
        int which;
        size_t want = reference(text, n, stops, n_stops, &which);
        for (size_t i = 0; i < n && s.matched < 0;) {
            size_t piece = 1 + next(&r, 9);
            if (piece > n - i) piece = n - i;
            char part[16 + CB_STOP_BYTES_MAX];
            size_t m = cb_stops_put(&s, text + i, piece, part);
            memcpy(out + n_out, part, m);
            n_out += m;
            assert_true(n_out <= want); /* never a byte of a match, not even for a moment */
            i += piece;
        }
        n_out += cb_stops_end(&s, out + n_out);
        assert_int_equal(n_out, want);
        assert_memory_equal(out, text, n_out);
        if (which < 0) assert_int_equal(s.matched, -1);
        else assert_string_equal(stops[s.matched], stops[which]);
    }
}

static void test_limits(void **state)
{
    cb_stops s;
    char long_stop[300], out[1024];
    memset(long_stop, 'x', sizeof long_stop);
    cb_stops_init(&s);
    assert_int_equal(cb_stops_add(&s, "", 0), -1);
    assert_int_equal(cb_stops_add(&s, long_stop, 257), -1);
    assert_int_equal(cb_stops_add(&s, long_stop, 256), 0);
    for (int i = 1; i < CB_STOPS_MAX; i++) assert_int_equal(cb_stops_add(&s, "ab", 2), 0);
    assert_int_equal(cb_stops_add(&s, "ab", 2), -1);
    assert_int_equal(cb_stops_put(&s, long_stop, 255, out), 0);
    assert_int_equal(cb_stops_put(&s, "y", 1, out), 256); /* 255 held bytes and the one that ended the hope */
    assert_int_equal(cb_stops_put(&s, long_stop, 300, out), 0);
    assert_int_equal(s.matched, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_random), cmocka_unit_test(test_limits) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
