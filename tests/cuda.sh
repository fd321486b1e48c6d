#!/bin/sh
# cuda.sh [DIR]: the GPU's tests: tests/op/cuda.c and cuda_tape.c as they are, then the first one's short part (a prompt, single rows of one sequence
# and of three), for one tiny checkpoint of each family, and the second one under each tool of compute-sanitizer where it is installed: ok, not ok, or
# skip with the reason. DIR holds the programs (default build/release/tests/op). CB_SANITIZE: other checkpoints; CB_SANITIZE_TOOLS: other tools;
# CB_SANITIZE_SECONDS: how long one may take (default 70), after which it counts as skipped. Status 1 when anything failed.
set -u
cd "$(dirname "$0")/.." || exit 2
test=${1:-build/release/tests/op}/cuda
rc=0
"$test" || rc=1
"${test}_tape" || rc=1
san=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
if [ -z "$san" ] || ! command -v nvidia-smi >/dev/null 2>&1; then
    echo "skip - compute-sanitizer: no GPU, or the tool is not installed"
    exit $rc
fi
seconds=${CB_SANITIZE_SECONDS:-70}
log=$(mktemp) || exit 2
trap 'rm -f "$log"' EXIT
# What the tool says of a program: check TOOL NAME PROGRAM
check() {
    tool=$1 name=$2
    timeout -k 5 "$seconds" "$san" --tool "$tool" --error-exitcode 9 "$3" >"$log" 2>&1
    status=$? # racecheck warns where threads of a warp take turns at what only one can do; its errors count
    [ $status = 9 ] && [ "$tool" = racecheck ] && grep -q 'RACECHECK SUMMARY.*(0 errors' "$log" && status=0
    case $status in
    0) echo "ok - $tool $name" ;;
    124 | 137) echo "skip - $tool $name: not done after $seconds s" ;;
    *)
        echo "not ok - $tool $name"
        tail -20 "$log"
        rc=1
        ;;
    esac
}
small=${CB_CUDA_SMALL:-on} CB_TEST_SHORT=1
export CB_CUDA_SMALL CB_TEST_ONLY CB_TEST_SHORT
for tool in ${CB_SANITIZE_TOOLS:-memcheck racecheck initcheck}; do
    for model in ${CB_SANITIZE:-llama-4bit qwen35moe-4bit gemma4moe-4bit gemma3-4bit qwen3-4bit bonsai2-tied}; do
        CB_CUDA_SMALL=$small CB_TEST_ONLY=tiny-$model # racecheck does not follow what the blocks of small.cu, or of tape.cu, tell each other (docs/testing.md)
        [ "$tool" = racecheck ] && CB_CUDA_SMALL=off
        check "$tool" "$model" "$test"
    done
    [ "$tool" = racecheck ] || check "$tool" tape "${test}_tape"
done
exit $rc
