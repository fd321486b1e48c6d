#!/bin/sh
# cuda.sh [DIR]: the GPU's tests: tests/op/cuda.c as it is, then its short part (a prompt, single rows of one sequence and of three) under each
# tool of compute-sanitizer where it is installed, for one tiny checkpoint of each family: ok, not ok, or skip with the reason. DIR holds the
# program (default build/release/tests/op). CB_SANITIZE: other checkpoints; CB_SANITIZE_TOOLS: other tools; CB_SANITIZE_SECONDS: how long
# one may take (default 70), after which it counts as skipped. Status 1 when anything failed.
set -u
cd "$(dirname "$0")/.." || exit 2
test=${1:-build/release/tests/op}/cuda
rc=0
"$test" || rc=1
san=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
if [ -z "$san" ] || ! command -v nvidia-smi >/dev/null 2>&1; then
    echo "skip - compute-sanitizer: no GPU, or the tool is not installed"
    exit $rc
fi
seconds=${CB_SANITIZE_SECONDS:-70}
log=$(mktemp) || exit 2
trap 'rm -f "$log"' EXIT
for tool in ${CB_SANITIZE_TOOLS:-memcheck racecheck initcheck}; do
    for model in ${CB_SANITIZE:-llama-4bit qwen35moe-4bit gemma4moe-4bit gemma3-4bit qwen3-4bit bonsai2-tied}; do
        small=${CB_CUDA_SMALL:-on} # racecheck does not follow what the blocks of small.cu send each other (docs/testing.md)
        [ "$tool" = racecheck ] && small=off
        CB_CUDA_SMALL=$small CB_TEST_ONLY=tiny-$model CB_TEST_SHORT=1 timeout -k 5 "$seconds" "$san" --tool "$tool" --error-exitcode 9 "$test" >"$log" 2>&1
        status=$? # racecheck warns where threads of a warp take turns at what only one can do; its errors count
        [ $status = 9 ] && [ "$tool" = racecheck ] && grep -q 'RACECHECK SUMMARY.*(0 errors' "$log" && status=0
        case $status in
        0) echo "ok - $tool $model" ;;
        124 | 137) echo "skip - $tool $model: not done after $seconds s" ;;
        *)
            echo "not ok - $tool $model"
            tail -20 "$log"
            rc=1
            ;;
        esac
    done
done
exit $rc
