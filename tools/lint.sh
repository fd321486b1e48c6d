#!/bin/bash
# lint.sh [LIBCAMBIUM.SO]: the rules of this repository that a compiler does not check. Prints each violation; status 1 when
# there is one.
#   1. src/ includes follow tools/layers.txt          4. the shared library exports what is marked CB_API, no more, no less
#   2. every header compiles alone (C17); cambium.h   5. no mutable state outside the few places of tools/state.txt
#      also as C++17                                  6. no banned functions, no machine-dependent paths
set -u
cd "$(dirname "$0")/.." || exit 2
lib=${1:-build/release/libcambium.so}
a=${lib%.so}.a
bad=0
say() {
    echo "lint: $*"
    bad=1
}
lines() { # PREFIX: each line of stdin is a violation
    while IFS= read -r l; do say "$1$l"; done
}

mapfile -t sources < <(find src -name '*.[ch]' -o -name '*.cu' | sort)

# 1. layers
lines "" < <(awk '
    FILENAME == "tools/layers.txt" { sub(/#.*/, ""); if (NF) { known[$1] = 1; for (i = 2; i <= NF; i++) ok[$1, $i] = 1 } next }
    FNR == 1 { split(FILENAME, p, "/"); d = p[2] }
    /^[ \t]*#[ \t]*include[ \t]*"/ {
        inc = $0; sub(/^[^"]*"/, "", inc); sub(/".*/, "", inc); dir = inc; sub(/\/.*/, "", dir)
        if (!(d in known)) { print FILENAME ": folder " d " is not in tools/layers.txt"; next }
        if (inc == "cambium.h" || dir == d || index(inc, "/") == 0 && inc ~ /\.inc$/) next
        if (!((d, dir) in ok) && !((d, inc) in ok)) print FILENAME ":" FNR ": " d " may not include " inc
    }' tools/layers.txt "${sources[@]}")
# a file includes its own header first
for c in $(find src -name '*.c' | sort); do
    h=${c%.c}.h
    [ -e "$h" ] || continue
    first=$(sed -n 's/^#include "\(.*\)"/\1/p' "$c" | head -1)
    [ "src/$first" = "$h" ] || say "$c: includes $first first, not its own header"
done

# 2. headers
for h in include/cambium.h $(find src -name '*.h' | sort); do
    std=gnu17
    [ "$h" = include/cambium.h ] && std=c17
    flags="-Wall -Wextra -Wno-unused-parameter -Iinclude -Isrc -D_GNU_SOURCE"
    case $h in
    *_avx2.h) [ "$(uname -m)" = x86_64 ] || continue; flags="$flags -mavx2 -mfma -mf16c" ;;
    *_avx512.h) [ "$(uname -m)" = x86_64 ] || continue; flags="$flags -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mfma -mf16c" ;;
    *_neon.h) [ "$(uname -m)" = aarch64 ] || continue ;;
    esac
    [ $std = c17 ] && flags="-Wall -Wextra -Wpedantic"
    out=$(printf '#include "%s"\n' "$PWD/$h" | ${CC:-cc} -std=$std $flags -Wno-unused-function -Werror -x c -fsyntax-only - 2>&1) ||
        say "$h does not compile alone: $(printf '%s' "$out" | grep -m1 -E 'error|warning')"
done
if command -v "${CXX:-c++}" >/dev/null; then
    out=$(printf '#include "%s"\n' "$PWD/include/cambium.h" | ${CXX:-c++} -std=c++17 -Wall -Wextra -Wpedantic -Werror -x c++ -fsyntax-only - 2>&1) ||
        say "cambium.h is not C++17: $(printf '%s' "$out" | grep -m1 error)"
else
    echo "lint: no C++ compiler; cambium.h was not checked as C++17"
fi

# 3., 4. exported symbols
declared() { grep -v '^#define' include/cambium.h | tr '\n' ' ' | grep -oE 'CB_API [^;]*\(' | sed -E 's/\(.*//;s/.*[ *]//' | sort -u; }
if [ -e "$lib" ]; then
    exported() { nm -D --defined-only "$lib" | awk '{print $3}' | sed 's/@.*//' | sort -u; }
    lines "$lib exports without CB_API: " < <(comm -13 <(declared) <(exported))
    lines "cambium.h declares, but nothing defines: " < <(comm -23 <(declared) <(exported))
else
    say "$lib is missing; build it first"
fi

# 5. mutable state
if [ -e "$a" ]; then
    lines "mutable state, not in tools/state.txt: " < <(objdump -t "$a" 2>/dev/null | awk '
        FILENAME == "tools/state.txt" { sub(/#.*/, ""); if (NF) ok[$1, $2] = 1; next }
        /file format/ { f = $1; sub(/:$/, "", f) }
        $0 ~ / O \.(data|bss|tbss|tdata)[^.]/ || $0 ~ / O \.(data|bss)\./ && $0 !~ /\.data\.rel\.ro/ || / O \*COM\*/ { n = $NF; sub(/\.[0-9]+$/, "", n); if (!((f, n) in ok)) print f " " n }' tools/state.txt -)
fi

# 6. text
lines "" < <(git grep -nE '\b(sprintf|vsprintf|strcpy|strcat|strncpy|gets|alloca|strtok|atoi|atof)[ ]*\(' -- 'src/*.[ch]' 'include/*.h' |
    sed 's/$/   (banned function)/')
lines "" < <(git grep -nE -e '-march=native|-ffast-math' -- Makefile '*.mk' 'tools/*' ':!tools/lint.sh' | sed 's/$/   (banned flag)/')
lines "" < <(git grep -nIE '/(home|root|Users|work|mnt)/[A-Za-z0-9_.-]+' -- . ':!tools/lint.sh' ':!LICENSE' ':!tests/data' ':!tests/fuzz/corpus' | cut -c1-160 | sed 's/$/   (a path of one machine?)/')
lines "" < <(git grep -nE '[[:blank:]]+$' -- 'src/*.[ch]' 'include/*.h' 'tests/*.[ch]' | cut -c1-120 | sed 's/$/   (trailing space)/')
if command -v shellcheck >/dev/null; then lines "" < <(shellcheck -S warning -f gcc tools/*.sh tests/*.sh tests/cli/*.sh .ci/run 2>/dev/null); fi

[ $bad = 0 ] && echo "lint: clean"
exit $bad
