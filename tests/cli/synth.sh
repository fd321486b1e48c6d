#!/bin/bash
# shellcheck disable=SC2034,SC2154
# True-shape checkpoints of tools/synth, as headers with holes: loading is tested at full size on no disk.
. tests/cli/lib.sh.inc
SYNTH=$(dirname "$CAMBIUM")/synth
[ -x "$SYNTH" ] || { skip "synth" "$SYNTH is not built"; exit 0; }

# MODEL BYTES PARAMETERS: the tensors' bytes, and what the loader counts, in millions
while read -r model bytes params; do
    "$SYNTH" "$model" "$T/s" --sparse >"$T/out" 2>"$T/err"; rc=$?
    out "$model: $bytes data bytes" "tensors, $bytes data bytes"
    [ "$(du -sk "$T/s" | cut -f1)" -lt 30000 ] && ok "$model takes no disk" || bad "$model takes no disk"
    try show "$T/s"; out "$model loads: $params M parameters" "$params\.[0-9] M parameters"
    rm -rf "$T/s"
done <<'END'
bonsai2-27b 7673714688 26898
bonsai2-4b 1204172800 4206
qwen3.5-35b-a3b 19508789376 34660
bonsai1-8b 1280370688 8190
smollm2-135m [0-9]+ 134
END
"$SYNTH" smollm2-135m "$T/f" --sparse --float >/dev/null
if [ "${CB_FLAVOUR:-release}" = release ]; then
    (ulimit -d 65536; "$CAMBIUM" quantize "$T/f" "$T/q" -t 1 >"$T/out" 2>"$T/err"); rc=$?
    expect "quantize: 64 MiB of private memory are enough for 269 MB" 0
fi
"$SYNTH" bonsai1-4b "$T/b" --layers 1 >/dev/null
try run "$T/b" "one two" --raw -n 3 -q --ctx-size 64; expect "one bit a weight runs" 0
try show "$T/b"; out "one bit a weight" "1-bit|1 bit"
exit $failures
