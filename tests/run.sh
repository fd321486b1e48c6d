#!/bin/bash
# run.sh FLAVOUR [WORD...]: runs the test programs of a flavour (those whose name contains one of the WORDs, if any), prints
# one line for each, then what failed and what was skipped, and ends in "N passed, N failed, N skipped", counting test
# functions. Exit status 1 when anything failed.
#
# Programs: build/FLAVOUR/tests/{unit,kernel,op,parity}/* (cmocka), build/FLAVOUR/tests/fuzz/* (replays of the fuzz corpora)
# and tests/cli/*.sh (print "ok - name", "skip - name: why" or "not ok - name"; CAMBIUM names the program under test). Full
# output is kept in build/FLAVOUR/test-logs. CB_TEST_TIMEOUT: seconds a program may take (default 300, in other flavours 900).
# CB_TEST_JOBS: programs at a time (default 2). CB_TEST_WRAP: a command before each cmocka program. CB_TEST_AS: the flavour that
# programs are told (they do less in slow ones).
set -u
cd "$(dirname "$0")/.." || exit 2
flavour=${1:-release}
shift
B=build/$flavour
logs=$B/test-logs
slow=900
[ "$flavour" = release ] && slow=300
limit=${CB_TEST_TIMEOUT:-$slow}
jobs=${CB_TEST_JOBS:-2}
rm -rf "$logs"
mkdir -p "$logs"
export CAMBIUM=$PWD/$B/cambium CB_FLAVOUR=${CB_TEST_AS:-$flavour} LC_ALL=C.UTF-8
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:detect_stack_use_after_return=1:allocator_may_return_null=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1}
emulate=
if [ "$flavour" = aarch64 ] && [ "$(uname -m)" != aarch64 ]; then
    # The loader and libc must be of one build, or the first thread hangs: the multiarch ones, where the test libraries are.
    if [ -e /lib/ld-linux-aarch64.so.1 ]; then emulate="qemu-aarch64"
    else emulate="qemu-aarch64 -L /usr/aarch64-linux-gnu"; fi
fi

wanted() { # NAME: is it asked for?
    [ ${#words[@]} -eq 0 ] && return 0
    for w in "${words[@]}"; do [[ $1 == *"$w"* ]] && return 0; done
    return 1
}
words=("$@")

list=()
for src in tests/unit/*.c tests/kernel/*.c tests/op/*.c tests/parity/*.c tests/fuzz/*.c tests/cli/*.sh; do
    [ -e "$src" ] || continue
    name=${src#tests/}
    name=${name%.*}
    [ "$name" = fuzz/replay ] && continue
    case $flavour:$name in
    # A thread checker has nothing to say about programs of one thread, and emulation is slow: only what depends on them.
    tsan:cli/* | tsan:fuzz/* | tsan:parity/*) continue ;; # parity: one thread; op/exact has the same engine with several
    tsan:*) grep -qE 'pthread|pool\.h|n_threads|cb_engine_open' "$src" || continue ;;
    aarch64:kernel/* | aarch64:op/* | aarch64:unit/io_* | aarch64:unit/base* | aarch64:unit/sampler) ;;
    aarch64:*) continue ;;
    fuzz:*) continue ;;
    esac
    wanted "$name" && list+=("$name")
done

run_one() { # NAME
    local log=$logs/${1//\//_} start rc
    start=$(date +%s%N)
    case $1 in
    cli/*) timeout -k 5 "$limit" bash "tests/$1.sh" ;;
    fuzz/*) timeout -k 5 "$limit" $emulate "$B/tests/$1" "tests/fuzz/corpus/${1#fuzz/}" ;;
    *) timeout -k 5 "$limit" $emulate ${CB_TEST_WRAP:-} "$B/tests/$1" ;;
    esac >"$log.out" 2>&1 </dev/null
    rc=$?
    echo "$rc $((($(date +%s%N) - start) / 1000000))" >"$log.rc"
}

passed=0 failed=0 skipped=0 failures=() skips=()
report() { # NAME: counts and prints one finished program
    local log=$logs/${1//\//_} rc ms p f s word=ok
    read -r rc ms <"$log.rc"
    # cmocka's summary, or lines of a shell test. A test that both failed and skipped is in both lists; it failed.
    p=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test(s).*/\1/p' "$log.out" | awk '{n += $1} END {print n + 0}')
    f=$(sed -n 's/^\[  FAILED  \] .*: \([0-9]*\) test(s), listed below.*/\1/p;s/^\[  FAILED  \] \([0-9]*\) test(s), listed below.*/\1/p' "$log.out" | awk '{n += $1} END {print n + 0}')
    s=$(sed -n 's/^\[  SKIPPED \] .*: \([0-9]*\) test(s), listed below.*/\1/p;s/^\[  SKIPPED \] \([0-9]*\) test(s), listed below.*/\1/p' "$log.out" | awk '{n += $1} END {print n + 0}')
    p=$((p + $(grep -c '^ok - ' "$log.out")))
    f=$((f + $(grep -c '^not ok - ' "$log.out")))
    s=$((s + $(grep -c '^skip - ' "$log.out")))
    while IFS= read -r line; do skips+=("$1: $line"); done < <(sed -n '/test(s), listed below/d;s/^\[  SKIPPED \] //p;s/^skip - //p' "$log.out" | sort -u)
    if [ "$rc" != 0 ] && [ "$f" = 0 ]; then
        f=1
        case $rc in
        124 | 137) failures+=("$1: took longer than $limit s") ;;
        *) failures+=("$1: ended with status $rc") ;;
        esac
    elif [ $((p + f + s)) = 0 ]; then
        f=1
        failures+=("$1: ran no test")
    fi
    while IFS= read -r line; do failures+=("$1: $line"); done < <(sed -n '/test(s), listed below/d;s/^\[  FAILED  \] //p;s/^not ok - //p' "$log.out" | sort -u)
    [ "$f" = 0 ] || word=FAIL
    printf '%-4s  %-28s %4d passed' "$word" "$1" "$p"
    [ "$f" = 0 ] || printf ', %d failed' "$f"
    [ "$s" = 0 ] || printf ', %d skipped' "$s"
    printf '  %d.%02d s\n' $((ms / 1000)) $((ms % 1000 / 10))
    if [ "$f" != 0 ]; then tail -n 25 "$log.out" | sed 's/^/      | /'; fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
}

trap 'kill $(jobs -p) 2>/dev/null; exit 130' INT TERM
next=0 active=0
for name in ${list[@]+"${list[@]}"}; do
    while [ "$active" -ge "$jobs" ]; do
        wait -n
        active=$((active - 1))
    done
    run_one "$name" &
    active=$((active + 1))
    # print in order, as far as finished
    while [ "$next" -lt "${#list[@]}" ] && [ -e "$logs/${list[$next]//\//_}.rc" ]; do
        report "${list[$next]}"
        next=$((next + 1))
    done
done
wait
while [ "$next" -lt "${#list[@]}" ]; do
    report "${list[$next]}"
    next=$((next + 1))
done

# Counts of an earlier part (make test runs the aarch64 part first), and things that could not run at all.
if [ -n "${CB_TEST_ADD:-}" ] && [ -e "$CB_TEST_ADD" ]; then
    read -r p f s <"$CB_TEST_ADD"
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
fi
if [ -n "${CB_TEST_SKIP:-}" ]; then
    skipped=$((skipped + 1))
    skips+=("$CB_TEST_SKIP")
fi
if [ -n "${CB_TEST_SAVE:-}" ]; then echo "$passed $failed $skipped" >"$CB_TEST_SAVE"; fi
for x in ${skips[@]+"${skips[@]}"}; do echo "skipped: $x"; done
for x in ${failures[@]+"${failures[@]}"}; do echo "failed: $x"; done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
