#!/bin/bash
# shellcheck disable=SC2034,SC2154
# cambium bench: table, CSV, JSON, what is left out, exit codes.
. tests/cli/lib.sh.inc
SMALL="--device cpu -t 2 --repeats 2 --gen 5"
# json PATH: the value at a path of keys and indexes in $T/b.json.
json() { python3 -c 'import json,sys
v = json.load(open(sys.argv[1]))
for k in sys.argv[2].split("."): v = v[int(k)] if k.lstrip("-").isdigit() else v[k]
print(len(v) if isinstance(v, (list, dict)) else v)' "$T/b.json" "$1" 2>&1; }

try bench $TINY $SMALL --prompt-sizes 64,1k --depths 100,16 --batch 3,1,3 --json "$T/b.json"
expect "bench" 0 "decode, 3 sequences at 100 tokens: [0-9.]+ tok/s"
out "the table's head" "^cpu:.* 2 threads, 512-token chunks"
out "load and probe" "^probe +read [0-9.]+ GB/s"
out "columns of prefill" "^ *prefill +n +tok/s +lowest +highest +GFLOP/s +of peak"
out "a prompt" "^ +64 +2( +[0-9.]+){5} +%$|^ +64 +2( +[0-9.]+){4} +-$"
out "columns of decode" "^ *decode batch +n +tok/s +lowest +highest +ITL ms +p95 +most +GB/s +of read"
out "decoding" "^ +100 +3 +2( +[0-9.]+){7} +[0-9.]+ %$"
out "beyond the model's limit" "^left out prefill, 1000 tokens: the checkpoint was made for 512 tokens"
same "rows: 2 depths x 2 batch sizes" "$(grep -cE '^ +(16|100) +[13] +2 ' "$T/out")" 4
if command -v python3 >/dev/null; then
    same "JSON: arithmetic" "$(json cambium.arithmetic)" "arith 1"
    same "JSON: processor" "$(json machine.cores | grep -cE '^[0-9]+$')" 1
    same "JSON: threads" "$(json settings.threads)" 2
    same "JSON: prefills, the filled depths too" "$(json prefill)" 3
    same "JSON: samples of a prompt" "$(json prefill.1.seconds)" 2
    same "JSON: decode cases" "$(json decode)" 4
    same "JSON: samples of decoding" "$(json decode.3.seconds)" 2
    same "JSON: every step, the first two not counted" "$(json decode.3.step_s.1)" 7
    same "JSON: a hash of the ids" "$(json decode.3.ids_sha256 | wc -c)" 65
    same "JSON: probes before and after" "$(json probe.0.when) $(json probe.1.when)" "before after"
    same "JSON: what was left out" "$(json left_out.0.tokens)" 1000
    mv "$T/b.json" "$T/first.json"
    try bench $TINY $SMALL -t 1 --depths 100 --prompt-sizes 7 --batch 3 --json "$T/b.json" -q
    same "the same ids in another run with another number of threads" "$(json decode.0.ids_sha256)" \
        "$(python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))["decode"][3]["ids_sha256"])' "$T/first.json")"
else skip "JSON fields" "no python3"; fi
try bench $TINY $SMALL --depths 16 --batch 1 --prompt-sizes 16 --json -
is_json <"$T/out" && ok "--json -: nothing else on stdout" || bad "--json -: nothing else on stdout"
try bench $TINY $SMALL --depths 16 --batch 2 --prompt-sizes 16 --csv
out "--csv: a head" "^kind,tokens,batch,n,tok_s,"
same "--csv: as many fields in every line" "$(awk -F, '{print NF}' "$T/out" | sort -u)" 14
for m in tests/data/tiny-gemma3-4bit tests/data/tiny-qwen35moe-4bit tests/data/tiny-bonsai2; do
    try bench $m $SMALL --depths 80 --batch 1,5 --prompt-sizes 40 --prefill-chunk 9
    expect "$(basename $m)" 0 "decode, 5 sequences"
done

# memory: batches one by one, then without the deepest (the numbers of a tiny model; --memory-limit counts KV and scratch)
try bench $TINY $SMALL --depths 64,400 --batch 1,40 --prompt-sizes 64 --memory-limit 22Mi
expect "not all at once: opened for each batch size" 0 "all cases at once do not fit"
same "three openings" "$(grep -c '^load ' "$T/out")" 3
expect "what does not fit even so is named, with numbers" 0 "left out: decode, 40 sequences at 400 tokens: not enough memory: need .* have"
out "what fits is measured" "^ +64 +40 +2 "
try bench $TINY $SMALL --memory-limit 1Mi; expect "nothing fits: exit 6" 6 "need .* have"
try bench $TINY $SMALL --depths 9k --batch 1 --prompt-sizes 9k; expect "nothing within the model's limit: exit 2" 2 "made for 512"

try bench $TINY --depths 12q; expect "not a number" 2 "depths: 12q is not a number"
try bench $TINY --batch 1,,2; expect "an empty place" 2 "batch: an empty place"
try bench $TINY --batch 0; expect "no sequence" 2 "batch: 0 is not a number from 1"
try bench $TINY --prompt-sizes 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17; expect "too many sizes" 2 "at most 16 values"
try bench $TINY --gen 0; expect "nothing to decode" 2 "gen: 1 to"
try bench $TINY --repeats 101; expect "too many repeats" 2 "repeats: 1 to 100"
try bench $TINY --repeat 3; expect "a misspelt flag" 2 "did you mean --repeats"
try bench no-such/model; expect "no such model: exit 3" 3 "no-such/model"
try bench $TINY --json "$T/no/such/folder.json"; expect "the file cannot be written: said first" 1 "folder.json"
[ ! -s "$T/out" ] && ok "before anything was measured" || bad "before anything was measured"
try bench $TINY --device cuda:77; expect "no such device: exit 5" 5 "cuda"

"$CAMBIUM" bench $TINY --device cpu --repeats 100 --gen 300 --depths 64,128 --prompt-sizes 512 --batch 8,64 --json "$T/i.json" >"$T/out" 2>"$T/err" &
pid=$!
for _ in $(seq 100); do grep -q "prefill, 64" "$T/err" && break; sleep 0.1; done
kill -INT $pid; wait $pid; rc=$?
expect "interrupted: exit 130" 130 "interrupted"
[ -z "$(find "$T" -name 'i.json*')" ] && ok "no file is left" || bad "no file is left"
exit $failures
