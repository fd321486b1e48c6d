#!/bin/sh
# cuda.sh [DIR]: the GPU's tests: tests/op/cuda.c as it is, then for a few tiny checkpoints under each tool of compute-sanitizer where it
# is installed. DIR holds the program (default build/release/tests/op). Status 1 when anything failed.
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
for tool in memcheck racecheck initcheck; do
    for model in ${CB_SANITIZE:-llama-4bit qwen35moe-4bit gemma4moe-4bit bonsai2-tied}; do
        if CB_TEST_ONLY=tiny-$model CB_TEST_QUICK=1 "$san" --tool $tool --error-exitcode 9 "$test" >/tmp/cb-sanitizer.$$ 2>&1; then
            echo "ok - $tool $model"
        else
            echo "not ok - $tool $model"
            tail -20 /tmp/cb-sanitizer.$$
            rc=1
        fi
        rm -f /tmp/cb-sanitizer.$$
    done
done
exit $rc
