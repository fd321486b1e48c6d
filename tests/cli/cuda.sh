#!/bin/bash
# shellcheck disable=SC2034,SC2154
# --device cuda from outside, on a driver without a GPU (tests/cuda/fake_cuda.h): exit codes, and one line that says why.
. tests/cli/lib.sh.inc
fake=$(dirname "$CAMBIUM")/tests/cuda
if [ ! -e "$fake/libcuda.so.1" ]; then
    skip "--device cuda" "this build has no GPU kernels"
    exit 0
fi
export LD_LIBRARY_PATH=$fake${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
RUN="run $TINY hello --raw --temp 0 -n 4 -c 256 -q"
# gpu NAME WORDS CODE PATTERN: with the fake told WORDS, exit CODE and one line of stderr with PATTERN.
gpu() {
    CB_FAKE_CUDA=$2 try $RUN --device cuda
    expect "$1" "$3" "$4"
    same "$1: one line" "$(grep -c '' "$T/err")" 1
}
CB_FAKE_CUDA='' try $RUN --device cuda; expect "a GPU that can be used" 0
gpu "driver too old" version=11080 5 "driver is too old: it serves CUDA 11.8, needed is 12.0"
gpu "no GPU" devices=0 5 "the driver sees no GPU"
gpu "the driver does not start" cuInit:1:100 5 "does not start: no CUDA-capable device is detected"
gpu "too old a GPU" cc=75 5 "compute capability 7.5; needed is 8.0"
gpu "no kernels for this GPU" cuModuleLoadData:1:209 5 "no kernels for a GPU of compute capability 9.0"
gpu "in use by another process alone" cuDevicePrimaryCtxRetain:1:46 5 "opening the GPU"
gpu "too small a GPU" memory=600 6 "need [0-9.]+ MiB .* have [0-9.]+ MiB"
gpu "memory gone while the model is loaded" cuMemAlloc:1:2 6 "not enough memory for the weights: need [0-9.]+ MiB, have"
gpu "memory gone before the state" cuMemAlloc:3:2 6 "not enough memory for the state of sequences: need [0-9.]+ MiB, have"
gpu "no page-locked memory" cuMemHostAlloc:2:2 6 "not enough page-locked host memory for loading: need 64.0 MiB, have"
gpu "lost while loading" cuStreamSynchronize:1:719 1 "CUDA_ERROR_LAUNCH_FAILED"
gpu "lost in a step" cuStreamSynchronize:3:700 1 "CUDA_ERROR_ILLEGAL_ADDRESS.*lost"
gpu "an uncorrectable error of its memory" cuMemcpyDtoHAsync:2:214 1 "CUDA_ERROR_ECC_UNCORRECTABLE"
CB_FAKE_CUDA=cuGraphInstantiate:1:2 try $RUN --device cuda; expect "no room for a graph: without it" 0
for words in version=11080 memory=600 cuModuleLoadData:1:209; do
    CB_FAKE_CUDA=$words try $RUN; expect "auto with $words: on the CPU" 0
    cp "$T/out" "$T/auto"
    try $RUN --device cpu
    same "auto with $words: its answer" "$(cat "$T/auto")" "$(cat "$T/out")"
done
CB_FAKE_CUDA=memory=600 try bench $TINY --device cuda; expect "bench: nothing fits: exit 6" 6 "need .* have"
CB_FAKE_CUDA=cuGraphLaunch:20:719 try bench $TINY --device cuda --depths 16 --batch 1 --prompt-sizes 16; expect "bench: lost: exit 1" 1 "lost"

# The same text as the CPU's from sampling, with kernels that are run on the CPU (tests/cuda/emulate).
if [ -e "$fake/emulated/libcuda.so.1" ]; then
    ids() { sed -n 's/.*"ids":\(\[[^]]*\]\).*/\1/p' "$1"; }
    sampled() { # NAME FLAGS...: the same seed, tokens chosen on either device
        local name=$1
        shift
        try run $TINY hello --raw -n 20 -c 256 -q --seed 7 --json --device cpu "$@"; cp "$T/out" "$T/cpu"
        LD_LIBRARY_PATH=$fake/emulated CB_FAKE_CUDA=cc=80 try run $TINY hello --raw -n 20 -c 256 -q --seed 7 --json --device cuda "$@"
        expect "$name" 0
        same "$name: the same ids" "$(ids "$T/out" | grep , || echo none)" "$(ids "$T/cpu")"
    }
    sampled "sampling from all" --temp 1
    sampled "top-k and top-p" --temp 0.8 --top-k 20 --top-p 0.9
    sampled "min-p and penalties" --temp 1.2 --min-p 0.02 --repeat-penalty 1.2 --presence-penalty 0.5
    sampled "greedy with a penalty" --temp 0 --repeat-penalty 1.3
fi
exit $failures
