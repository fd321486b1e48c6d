#!/bin/bash
# shellcheck disable=SC2034,SC2154
# Flags, help, exit codes of misuse.
. tests/cli/lib.sh.inc

try; expect "no command: short help, exit 2" 2 "usage: cambium"
try help; out "help to stdout" "usage: cambium"
try --help; out "--help" "usage: cambium"
for c in run import quantize list show plan diff tokenize detokenize template score bench config doctor devices version; do
    try help $c; out "help $c" "usage: cambium $c"
    try $c --help; out "$c --help" "flags:"
done
try rnu; expect "unknown command, with a suggestion" 2 "did you mean run"
try help nothing-like-it; expect "help of an unknown command" 2 "unknown command"
try run $TINY x --max-tokns 3; expect "unknown flag, with a suggestion" 2 "did you mean --max-tokens"
try run $TINY x -Z; expect "unknown short flag" 2 "unknown flag -Z"
try run $TINY x --top-k; expect "value missing" 2 "top-k needs a value"
try run $TINY x --top-k abc; expect "not an integer" 2 "top-k: abc is not an integer"
try run $TINY x --top-k=3x; expect "garbage after a number" 2 "not an integer"
try run $TINY x --temp warm; expect "not a number" 2 "temp: warm is not a number"
try run $TINY x --temp -1; expect "out of range" 2 "temp: -1 is outside"
try run $TINY x --ctx-size 12q; expect "not a size" 2 "not a size"
try run $TINY x --json=yes; expect "a boolean takes no value" 2 "takes no value"
try run $TINY x --no-top-k; expect "a value cannot be negated" 2 "cannot be negated"
try run $TINY x --sampler-profile ollama; expect "unknown profile" 2 "known are hf, vllm"
try run $TINY x --samplers top_k,top_k; expect "operator given twice" 2 "given twice"
try run $TINY x --samplers top_k,magic; expect "unknown operator" 2 "magic is unknown"
try run $TINY x --hash=some; expect "unknown hash" 2 "only --hash and --hash=all"
try run $TINY x --stop ""; expect "empty stop text" 2 "1 to 256 bytes"
try run $TINY x --image cat.png; expect "image for a text model" 2 "image"
try run $TINY x --device tpu; expect "unknown device" 2 "device tpu"
try run $TINY x y; expect "too many arguments" 2 "too much"
try run $TINY x -p y; expect "prompt given twice" 2 "given twice"
try run; expect "model missing" 2 "needs MODEL"
CAMBIUM_TOP_K=junk try run $TINY x; expect "a variable is checked like a flag" 2 "CAMBIUM_TOP_K: junk"
try version; out "version" "^cambium [0-9]"
try --version; out "--version" "^cambium [0-9]"
try version --json
is_json <"$T/out" && ok "version --json parses" || bad "version --json parses"
try devices; out "devices" "^cpu:"
try doctor; expect "doctor" 0
out "doctor's lines have a state" "^(ok|warn|fail) +cpu"
if [ -e /dev/full ]; then
    "$CAMBIUM" version >/dev/full 2>"$T/err"; rc=$?
    expect "full disk on stdout" 1 "standard output"
else skip "full disk on stdout" "no /dev/full"; fi
"$CAMBIUM" help run 2>"$T/err" | head -n 1 >/dev/null
[ ! -s "$T/err" ] && ok "a closed pipe ends quietly" || bad "a closed pipe ends quietly"
exit $failures
