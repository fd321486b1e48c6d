#!/bin/bash
# all.sh FLAVOUR MAKE: what `make test` runs. The aarch64 part comes first, so that the last line counts everything.
set -u
cd "$(dirname "$0")/.." || exit 2
flavour=$1 make=$2
why=
if [ "$(uname -m)" = aarch64 ]; then why=none # this machine's own tests are the aarch64 part
elif ! command -v aarch64-linux-gnu-gcc >/dev/null; then why="no aarch64 compiler"
elif ! command -v qemu-aarch64 >/dev/null; then why="no qemu-aarch64"
elif ! printf '#include <jansson.h>\n#include <pcre2.h>\n#include <utf8proc.h>\nint main(void) { return 0; }\n' |
    aarch64-linux-gnu-gcc -DPCRE2_CODE_UNIT_WIDTH=8 -x c -o /dev/null - -ljansson -lpcre2-8 -lutf8proc -lcmocka 2>/dev/null; then
    why="no aarch64 libraries"
fi
counts=build/aarch64.counts
rm -f "$counts"
if [ -z "$why" ]; then
    # shellcheck disable=SC2086
    if $make FLAVOUR=aarch64 tests; then CB_TEST_SAVE=$counts tests/run.sh aarch64
    else
        echo "failed: the aarch64 build"
        echo "0 1 0" >"$counts"
    fi
    export CB_TEST_ADD=$counts
elif [ "$why" != none ]; then
    export CB_TEST_SKIP="aarch64: $why"
fi
exec tests/run.sh "$flavour"
