#!/bin/bash
# shellcheck disable=SC2034,SC2154
# cambium quantize: exit codes, what is left behind, and that the result answers.
. tests/cli/lib.sh.inc
SRC=tests/data/source-llama

try quantize $SRC "$T/q4" --bits 4 --group 64; expect "quantize" 0 "llama, 4-bit"
cmp -s "$T/q4/tokenizer.json" $SRC/tokenizer.json && ok "the tokenizer is copied" || bad "the tokenizer is copied"
try run "$T/q4" "one two" --raw -n 12 --temp 0 --hash; mine=$(cat "$T/out" "$T/err" | grep -oE '[0-9a-f]{64}')
try run $TINY "one two" --raw -n 12 --temp 0 --hash; theirs=$(cat "$T/out" "$T/err" | grep -oE '[0-9a-f]{64}')
same "its logits are those of mlx-lm's conversion, to the bit" "$mine" "$theirs"
for mode in ternary mxfp4 mxfp8 nvfp4; do
    try quantize $SRC "$T/$mode" --mode $mode -t 2
    expect "$mode" 0
    try run "$T/$mode" "one two" --raw -n 4 --temp 0 -q; expect "$mode: the result runs" 0
done
try quantize $SRC "$T/k" --keep 'layers.0.*' --keep embed_tokens --rounding gpu; expect "keep and rounding" 0
try show "$T/k" --json; is_json <"$T/out" && ok "show of the result" || bad "show of the result"
try quantize $SRC "$T/q4"; expect "the target exists: exit 2" 2 "exists already"
try quantize $TINY "$T/o"; expect "quantised already: exit 4" 4 "quantised already"
try quantize no-such/model "$T/o"; expect "no such model: exit 3" 3 "no-such/model"
try quantize $SRC "$T/o" --bits 7; expect "no such width: exit 2" 2 "bits 7"
try quantize $SRC "$T/o" --bits 9; expect "outside the range: exit 2" 2 "bits: 9 is outside"
try quantize $SRC "$T/o" --rounding up; expect "unknown rounding" 2 "neither cpu nor gpu"
try quantize $SRC "$T/o" --keep 'nothing*'; expect "a pattern without a match" 2 "matches no matrix"
try quantize $SRC "$T/o" --hadamard 512; expect "only Qwen 3.5 can be rotated" 2 "only dense Qwen 3.5"
try quantize $SRC "$T/o" --seed 3; expect "a seed without a transform" 2 "without --hadamard"
(ulimit -f 20; trap '' XFSZ; "$CAMBIUM" quantize $SRC "$T/o" >"$T/out" 2>"$T/err"); rc=$?
expect "a full disk: exit 1, naming the file" 1 "safetensors"
if [ "${CB_FLAVOUR:-release}" = release ]; then
    (ulimit -v 60000; "$CAMBIUM" quantize $SRC "$T/o" -t 64 >"$T/out" 2>"$T/err"); rc=$?
    expect "no memory for threads: exit 6" 6 "thread"
fi
[ ! -e "$T/o" ] && ! ls -d "$T"/o.* >/dev/null 2>&1 && ok "nothing is left behind" || bad "nothing is left behind"
exit $failures
