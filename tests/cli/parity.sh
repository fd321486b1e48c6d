#!/bin/bash
# shellcheck disable=SC2034,SC2154
# cambium parity check, ops, layers and self on tiny checkpoints; what must be found is put in by hand.
. tests/cli/lib.sh.inc

try parity self $TINY tests/data/tiny-gemma3-4bit --positions 20; out "parity self: all equal" "^[0-9]+ cells on [0-9]+ instruction levels are equal: sha256 [0-9a-f]{64} of 20 positions"
try parity self $TINY -p "some text" --json; out "parity self --json" '"different":0,.*"passed":true'
try run $TINY "some text" --raw --hash=all -n 1 -q --temp 0
same "parity self: the hash is that of run --hash=all" "$("$CAMBIUM" parity self $TINY -p "some text" --json | sed 's/.*"sha256":"\([0-9a-f]*\)".*/\1/')" "$(sed -n 's/^sha256 //p' "$T/out")"
try parity check $TINY $TINY/truth.cbref --dmax 1 --kl-mean 1e-3 --margin 1; out "parity check" "^against truth"
try parity $TINY $TINY/truth.cbref --dmax 1 --kl-mean 1e-3 --margin 1; out "parity without a word is check" "^against truth"
try parity check $TINY $TINY/truth.cbref --dmax 1e-9; expect "parity check: a gate that does not hold" 1 "off by"
LC_ALL=C sed '/"transformers_bf16"/,/}/s/"dmax": 0\./"dmax": 0e/' $TINY/truth.cbref >"$T/r"
try parity check $TINY "$T/r" --dmax 1 --kl-mean 1e-3 --margin 1; expect "parity check: further from truth than the reference stack" 1 "largest logit difference .* exceeds 0 of transformers_bf16"
try parity check $TINY $TINY/truth.cbref --dmax 1 --kl-mean 1e-3 --margin 1 --json; out "parity check --json" '"reference_stack":"transformers_bf16"'
is_json <"$T/out" && ok "parity check --json parses" || bad "parity check --json parses"
out "parity check --json: cases and flips" '"cases":\[\{"name":.*"flips":\['
try parity check $TINY $TINY/truth.cbref --dmax 1 --kl-mean 1e-3 --margin 1 -v; out "parity check -v: a row for each case" "^case +mean KL"
# Another model's truth: flips are listed with their ids, and those that truth's lead does not explain fail.
try parity check tests/data/tiny-llama-2bit-g32 $TINY/truth.cbref --dmax 100 --kl-mean 100 --margin 1e-9; expect "parity check: flips that are no ties" 1 "leads by"
grep -qE '^position [0-9]+: best token [0-9]+, truth.s is [0-9]+ and leads by [0-9.e-]+: WRONG' "$T/out" && ok "... are listed" || bad "... are listed"
try parity check $TINY; expect "parity check: REF missing" 2 "REF.cbref"
try parity self $TINY --positions 0; expect "parity self: positions" 2 "positions"

try parity ops $TINY; [ "$(uname -m)" != x86_64 ] || out "parity ops" "^cpu:c . cpu:avx2: equal, [0-9]+ operations"
# Narrow rows, whose memory is padded; experts and recurrent layers.
for m in tiny-qwen35moe-4bit tiny-gemma4moe-4bit; do try parity ops tests/data/$m; expect "parity ops: $m" 0; done
try parity ops $TINY --json
is_json <"$T/out" && ok "parity ops --json parses" || bad "parity ops --json parses"
for m in tiny-llama-4bit tiny-gemma3-4bit; do
    try parity layers tests/data/$m tests/data/$m/truth.ladder; out "parity layers: $m" "rungs, all nearer to truth than bf16"
done
try parity layers $TINY $TINY/truth.ladder --device cpu:c --json; out "parity layers --json" '"first_departure":"","passed":true'
same "parity layers: the best tokens are checked" "$(grep -c '^ok  *best tokens' <("$CAMBIUM" parity layers $TINY $TINY/truth.ladder))" 1
cp -r $TINY "$T/m" && chmod -R u+w "$T/m"
theta() { sed "s/\"rope_theta\": *[0-9.e+]*/\"rope_theta\": $1/" $TINY/config.json >"$T/m/config.json"; }
theta 50.0
try parity layers "$T/m" $TINY/truth.ladder; [ "$rc" = 1 ] && grep -q 'departs first at: attention layers.0.self_attn:' "$T/out" && ok "a wrong rotation departs at the first attention" || bad "a wrong rotation departs at the first attention"
cp $TINY/config.json "$T/m/config.json"
sed 's/"name":"layers.1.mlp.down_proj","bf16":[0-9.e-]*/"name":"layers.1.mlp.down_proj","bf16":1e-9/' $TINY/truth.ladder >"$T/l"
try parity layers $TINY "$T/l"; [ "$rc" = 1 ] && grep -q 'departs first at: linear layers.1.mlp.down_proj' "$T/out" && ok "a rung beyond its limit is named" || bad "a rung beyond its limit is named"
sed 's/"tokens": \[[0-9]*/"tokens": [7/' $TINY/truth.ladder >"$T/l"
try parity layers $TINY "$T/l"; [ "$rc" = 1 ] && grep -q 'departs first at: prompt ids, position 0' "$T/out" && ok "other prompt ids come first" || bad "other prompt ids come first"
sed 's/"name":"norm.weight"/"name":"nothing"/' $TINY/truth.ladder >"$T/l"
try parity layers $TINY "$T/l"; [ "$rc" = 1 ] && grep -q '1 rungs that the plan does not have' "$T/out" && ok "a rung that is not there" || bad "a rung that is not there"
head -n 4 $TINY/truth.ladder >"$T/l"; try parity layers $TINY "$T/l"; expect "a ladder cut off" 4
echo '{"tokens":[1],"best":[1],"values":2,"stages":[{"kind":"embed","name":"embed_tokens","rms":[1],"first":[[1]]}]}' >"$T/l"
try parity layers $TINY "$T/l"; expect "a ladder with a short row" 4 "stage 0"
echo '{"tokens":[]}' >"$T/l"; try parity layers $TINY "$T/l"; expect "no ladder" 4 "not a ladder"
echo '{"tokens":[999999],"best":[1],"values":1,"stages":[{"kind":"embed","name":"embed_tokens","rms":[1],"first":[[1]]}]}' >"$T/l"
try parity layers $TINY "$T/l"; expect "a token beyond the vocabulary" 2 "999999"
try parity layers $TINY; expect "parity layers: FILE missing" 2 "FILE.ladder"
try parity ops $TINY --positions 99999; expect "parity ops: positions" 2 "positions"
exit $failures
