/* SHA-256 against published vectors, and in pieces. */
#include "base/sha256.h"
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

static void check(const char *text, const char *want)
{
    size_t n = strlen(text);
    char hex[65];
    for (size_t step = 1; step <= n + 1; step++) { /* any way of cutting gives the same */
        cb_sha256 s;
        cb_sha256_init(&s);
        for (size_t i = 0; i < n; i += step) cb_sha256_put(&s, text + i, n - i < step ? n - i : step);
        cb_sha256_hex(&s, hex);
        assert_string_equal(hex, want);
    }
}

static void test_vectors(void **state)
{
    check("", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    check("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    check("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    check("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu",
          "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
}

static void test_million(void **state)
{
    char a[1000], hex[65];
    memset(a, 'a', sizeof a);
    cb_sha256 s;
    cb_sha256_init(&s);
    for (int i = 0; i < 1000; i++) cb_sha256_put(&s, a, sizeof a);
    cb_sha256_hex(&s, hex);
    assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_vectors), cmocka_unit_test(test_million) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
