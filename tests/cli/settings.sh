#!/bin/bash
# shellcheck disable=SC2034,SC2154
# Where values come from: flags over variables over the part of the settings file about a model over the rest of it; and messages:
# levels, JSON, the log file; and flags that this build refuses.
. tests/cli/lib.sh.inc

answer() { "$CAMBIUM" run "$@" -q --json </dev/null 2>"$T/err" | sed 's/.*"ids":\(\[[^]]*\]\).*/\1/'; }
three=$(answer $TINY hello --temp 0 -n 3 --raw)
five=$(answer $TINY hello --temp 0 -n 5 --raw)
mkdir -p "$T/config/cambium"
file=$T/config/cambium/config.toml
cat >"$file" <<EOF
# a comment
temp = 0          # another
max_tokens = 5
"top-k" = 1_0
stop = [ 'never seen',
         "nor \\u00e4 this", ]
host_of_nobody = "" # placeholder, replaced below
[models.small]
model = "$TINY"
max-tokens = 3
raw = true
[models."$TINY"]
raw = true
EOF
try run $TINY hello; expect "an unknown setting names its line" 2 "config.toml line 7: unknown setting host-of-nobody"
try version; expect "... in every command" 2 "line 7"
sed -i '/host_of_nobody/d' "$file"
same "the usual file" "$(answer $TINY hello)" "$five"
same "a name of one's own for a model, with its settings" "$(answer small hello)" "$three"
same "a variable beats the file" "$(CAMBIUM_MAX_TOKENS=5 answer small hello)" "$five"
same "a flag beats both" "$(CAMBIUM_MAX_TOKENS=9 answer small hello -n 3)" "$three"
same "an empty variable counts as unset" "$(CAMBIUM_MAX_TOKENS="" answer small hello)" "$three"
try show small; out "other commands know the name" "type +llama"
try run small hello -v; expect "values that are lists, and numbers with _" 0 "top-k 10"
echo 'max_tokens = 3' >"$T/other.toml"
same "--config names another file" "$(answer $TINY hello --temp 0 --raw --config "$T/other.toml")" "$three"
same "CAMBIUM_CONFIG too" "$(CAMBIUM_CONFIG=$T/other.toml answer $TINY hello --temp 0 --raw)" "$three"
try run $TINY x --config "$T/none.toml"; expect "a file that is not there" 2 "none.toml"
broken() { # NAME TEXT PATTERN
    printf '%s\n' "$2" >"$T/other.toml"
    try run $TINY x -n 1 --config "$T/other.toml"; expect "settings: $1" 2 "$3"
}
broken "misspelt" 'max_tokns = 3' "line 1: unknown setting max-tokns; did you mean max-tokens"
broken "misspelt, about a model" $'[models.x]\nmax_tokns = 3' "line 2: unknown setting"
broken "no value" $'\ntemp =' "line 2: a value is missing"
broken "no =" 'temp 3' "line 1: = is missing"
broken "a text without quotes" 'device = cpu' "line 1: neither a number"
broken "a text that does not end" 'device = "cpu' "line 1: a text does not end"
broken "a list that does not end" 'stop = ["a", "b"' "line 2: a list|line 1: a list"
broken "a list for one value" 'temp = [1, 2]' "takes one value"
broken "true for a number" 'temp = true' "takes a value"
broken "a number for true or false" 'raw = 1' "is true or false"
broken "out of range, found later" 'temp = -3' "temp: -3 is outside"
broken "not a number" 'temp = "warm"' "line 1: temp: warm is not a number"
broken "an unknown table" $'[server]\nport = 1' "\\[server\\] is not known"
broken "a default model" 'model = "x"' "below \\[models.NAME\\]"
broken "something after a value" 'temp = 1 2' "something follows"
broken "a bad escape" 'device = "\q"' "unknown escape"
broken "tables in arrays" '[[models]]' "is not used"
head -c 3000 /dev/urandom >"$T/other.toml"
try run $TINY x -n 1 --config "$T/other.toml"; expect "settings: noise" 2 "line"
CAMBIUM_TOP_P=0.5 try config small --seed 7
out "config: the file" "^max-tokens +3 +file, for this model"
out "... its top" "^top-k +10 +file$"
out "... a variable" "^top-p +0.5 +variable"
out "... a flag" "^seed +7 +flag"
out "... built in" "^min-p +- +built-in"
out "... which file" "^settings file: $file"
cp -r $TINY "$T/m"; chmod -R u+w "$T/m"; echo '{"min_p": 0.25}' >"$T/m/generation_config.json"
try config "$T/m"; out "... the checkpoint" "^min-p +0.25 +checkpoint"
try config "$T/m" --min-p 0; out "... and a flag beats it" "^min-p +0.0 +flag"
try config --json
is_json <"$T/out" && ok "config --json parses" || bad "config --json parses"
rm "$file"
CAMBIUM_STOP="never,nor this" try run $TINY hello --temp 0 -n 3 --raw; expect "a variable that is a list" 0
CAMBIUM_STOP="a,,b" try run $TINY hello; expect "... with an empty part" 2 "1 to 256"

try run $TINY hi --temp 0 -n 2 --log-level warn; [ "$rc" = 0 ] && [ ! -s "$T/err" ] && ok "--log-level warn" || bad "--log-level warn"
try run $TINY hi --temp 0 -n 2 --log-level debug; expect "--log-level debug is -v" 0 "sampling: profile"
try run $TINY hi --temp 0 -n 2 -v -q; [ ! -s "$T/err" ] && ok "the last of -q and -v wins" || bad "the last of -q and -v wins"
CAMBIUM_QUIET=1 try run $TINY hi --temp 0 -n 2; [ ! -s "$T/err" ] && ok "CAMBIUM_QUIET" || bad "CAMBIUM_QUIET"
CAMBIUM_QUIET=1 try run $TINY hi --temp 0 -n 2 -v; expect "-v beats CAMBIUM_QUIET" 0 "sampling: profile"
try run $TINY hi --log-level loud; expect "unknown level" 2 "loud is unknown"
try run $TINY hi --log-format xml; expect "unknown format" 2 "neither text nor json"
try run $TINY hi --temp 0 -n 2 --log-format json
head -n 1 "$T/err" | is_json && ok "--log-format json" || bad "--log-format json"
expect "a record's fields" 0 '^\{"ts":"[0-9T:.-]+Z","level":"info","component":"cli","msg":"prompt'
try run $TINY hi --top-k x --log-format json; expect "an error before the flags are known is a line" 2 "^error: "
try run no-such/model hi --log-format json; expect "an error as JSON" 3 '"level":"error"'
try run $TINY hi --temp 0 -n 2 --log-file "$T/log"; [ ! -s "$T/err" ] && grep -qE '^[0-9T:.-]+Z info cli prompt' "$T/log" && ok "--log-file" || bad "--log-file"
try run no-such/model hi --log-file "$T/log"; expect "an error goes to stderr" 3 "^error: "
grep -q 'Z error cli no-such/model' "$T/log" && grep -q 'info cli prompt' "$T/log" && ok "... and is appended to the file" || bad "... and is appended to the file"
try run $TINY hi --log-file "$T/none/log"; expect "a log file that cannot be opened" 2 "log-file"

try run $TINY hi --temp 0 -n 2 --kv-dtype auto; expect "--kv-dtype auto" 0
try run $TINY hi --temp 0 -n 2 -ctk int16 -ctv int16; expect "-ctk, -ctv" 0
try run $TINY hi --kv-dtype q8; expect "--kv-dtype q8" 2 "kv-dtype q8: .*int16"
try run $TINY hi --kv-cache-dtype f16; expect "--kv-cache-dtype" 2 "f16"
try run $TINY hi -ctv f16; expect "-ctv f16" 2 "ctv f16"
try run $TINY hi --speculative draft; expect "--speculative draft" 2 "drafts nothing"
try run $TINY hi --temp 0 -n 2 --speculative off; expect "--speculative off" 0
try run $TINY hi --draft-model x; expect "--draft-model" 2 "drafts nothing"
try run $TINY hi --json-schema x; expect "--json-schema" 2 "cannot constrain"
try run $TINY hi --memory-floor 1000T; expect "--memory-floor beyond what is free: exit 6" 6 "memory-floor"
try run $TINY hi --temp 0 -n 2 --memory-floor 1Mi; expect "--memory-floor" 0
try doctor; out "doctor tells of the settings file" "settings +no settings file"
exit $failures
