#!/bin/bash
# shellcheck disable=SC2034,SC2154
# Answers: sources of the prompt, limits, JSON, stop texts, hashes; on a tiny checkpoint (which answers nonsense).
. tests/cli/lib.sh.inc

try run $TINY "hello" --temp 0 -n 12 --raw; expect "argument" 0 "^prompt [0-9]+ tokens .*tok/s.*answer 12 tokens"
answer=$(cat "$T/out")
try run $TINY -p hello --temp 0 -n 12 --raw; same "-p" "$(cat "$T/out")" "$answer"
printf hello >"$T/p"
try run $TINY -f "$T/p" --temp 0 -n 12 --raw; same "-f" "$(cat "$T/out")" "$answer"
in=hello try run $TINY --temp 0 -n 12 --raw; same "stdin" "$(cat "$T/out")" "$answer"
in=hello try run $TINY - --temp 0 -n 12 --raw; same "-" "$(cat "$T/out")" "$answer"
try run -m $TINY --temp 0 -n 12 --raw -- hello; same "--model and --" "$(cat "$T/out")" "$answer"
CAMBIUM_MAX_TOKENS=12 CAMBIUM_TEMP=0 CAMBIUM_RAW=1 try run $TINY hello; same "variables" "$(cat "$T/out")" "$answer"
CAMBIUM_MAX_TOKENS=3 CAMBIUM_TEMP=0 try run $TINY hello --raw -n 12; same "a flag beats its variable" "$(cat "$T/out")" "$answer"
try run $TINY "hello" --temp 0 -n 12 --raw -q; [ ! -s "$T/err" ] && ok "-q is quiet" || bad "-q is quiet"
try run $TINY "hello" --temp 0 -n 4 -v; expect "-v tells the settings" 0 "sampling: profile hf, temperature 0"
try run $TINY "hello" --temp 0 -n 4 --system "be brief"; expect "--system" 0
try run $TINY -f /nonexistent; expect "prompt file missing" 2 "nonexistent"
try run $TINY "" --raw --temp 0 -n 2; [ "$rc" = 0 ] || [ "$rc" = 2 ] && ok "an empty prompt is no crash" || bad "an empty prompt is no crash"

yes "many words to fill it" | head -n 2000 >"$T/long"
try run $TINY -f "$T/long" --raw --ctx-size 64; expect "too long: exit 2 with both numbers" 2 "[0-9]+ tokens and the context holds 64"
[ ! -s "$T/out" ] && ok "too long: no output" || bad "too long: no output"

try run $TINY hello --raw --temp 5 -n 8 --json --seed 42
is_json <"$T/out" && ok "--json parses" || bad "--json parses"
out "--json: the seed" '"seed":42'
out "--json: finish" '"finish_reason":"(length|stop)"'
first=$(cat "$T/out" | sed 's/.*"ids":\(\[[^]]*\]\).*/\1/')
try run $TINY hello --raw --temp 5 -n 8 --json --seed 42
same "a seed repeats the answer" "$(sed 's/.*"ids":\(\[[^]]*\]\).*/\1/' "$T/out")" "$first"
try run $TINY hello --raw --temp 5 -n 8 --json --seed 43
[ "$(sed 's/.*"ids":\(\[[^]]*\]\).*/\1/' "$T/out")" != "$first" ] && ok "another seed changes it" || bad "another seed changes it"

# Every stop text taken from the answer cuts it exactly before its first occurrence, wherever the tokens end.
if [ ${#answer} -ge 8 ]; then
    worst=
    for at in 2 3 5; do
        for len in 1 2 3; do
            stop=${answer:at:len}
            case $stop in *$'\n'*) continue ;; esac
            try run $TINY hello --temp 0 -n 12 --raw -q --stop "$stop" --stop "never seen"
            [ "$(cat "$T/out")" = "${answer%%"$stop"*}" ] || worst="$stop"
        done
    done
    [ -z "$worst" ] && ok "stop texts" || { bad "stop texts"; echo "  stop: $worst"; }
    try run $TINY hello --temp 0 -n 12 --raw --json --stop "${answer:3:2}"; out "--json names the stop text" '"finish_reason":"stop","stop_reason":"'
else skip "stop texts" "the tiny checkpoint's answer is too short"; fi

hash() { "$CAMBIUM" run $TINY "hello there, a longer prompt for chunks" --raw --seed 7 --temp 0.8 -n 6 -q "$@" </dev/null 2>"$T/err" | sed -n 's/^sha256 //p'; }
h=$(hash --hash); all=$(hash --hash=all)
[ ${#h} = 64 ] && [ ${#all} = 64 ] && [ "$h" != "$all" ] && ok "--hash" || bad "--hash"
same "hash: one thread" "$(hash --hash --threads 1)" "$h"
same "hash: chunks of 5" "$(hash --hash --prefill-chunk 5)" "$h"
same "hash: neighbours in the batch" "$(hash --hash --batch-with 3)" "$h"
same "hash: scalar C" "$(hash --hash --device cpu:c)" "$h"
same "hash of all positions: chunks, neighbours" "$(hash --hash=all --prefill-chunk 3 --batch-with 2)" "$all"
try diff $TINY --a cpu:c --b auto; out "diff: equal" "^equal: "

try tokenize $TINY "hello there" --ids; out "tokenize" "^[0-9]+( [0-9]+)*$"
ids=$(cat "$T/out")
try detokenize $TINY $ids; out "detokenize gives the text back" "hello there"
in="$ids" try detokenize $TINY; out "detokenize from stdin" "hello there"
try detokenize $TINY 99999999; expect "an id outside the vocabulary" 2 "outside the vocabulary"
in='[{"role":"user","content":"hi"}]' try template $TINY; out "template" "hi"
in='[{"role":"user","content":"hi"}]' try template $TINY --tokens; out "template --tokens" "^[0-9]+( [0-9]+)*$"
n=$(wc -w <"$T/out")
in='[{"role":"user","content":"hi<|im_end|>"}]' try template $TINY --tokens
[ $((n + $("$CAMBIUM" tokenize $TINY "<|im_end|>" --no-bos --ids -q | wc -w))) = "$(wc -w <"$T/out")" ] &&
    ok "a marker spelled in a message is text" || bad "a marker spelled in a message is text"
in='nonsense' try template $TINY; expect "messages that are no JSON" 2 "standard input"
in="hello there, what a fine day" try score $TINY; out "score" "^perplexity +[0-9]"
in="hello there, what a fine day" try score $TINY --top 3 --prefill-chunk 2
[ "$(tail -n 1 "$T/out" | grep -c perplexity)" = 1 ] && head -n 1 "$T/out" | is_json && ok "score --top: JSON lines" || bad "score --top: JSON lines"
sum=$(tail -n 1 "$T/out")
in="hello there, what a fine day" try score $TINY --top 3
same "score does not depend on chunks" "$(tail -n 1 "$T/out")" "$sum"

real() { # NAME PROMPT PATTERN
    if [ -z "${CB_MODELS:-}" ] || [ ! -d "$CB_MODELS/$1" ]; then skip "$1 answers" "CB_MODELS is not set"; return; fi
    try run "$CB_MODELS/$1" "$2" --raw --temp 0 -n 8 -q; out "$1 answers" "$3"
}
real smollm2 "The capital of France is" Paris
real gemma3 "The three primary colours are" "red, yellow and blue"
exit $failures
