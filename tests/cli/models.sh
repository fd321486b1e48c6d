#!/bin/bash
# shellcheck disable=SC2034,SC2154
# Missing, damaged and unsupported checkpoints; memory; import errors.
. tests/cli/lib.sh.inc

try run no-such/model x; expect "missing model: exit 3" 3 "no-such/model"
mkdir -p "$T/hub/models--acme--tiny-model/snapshots/0123456789abcdef0123456789abcdef01234567" "$T/hub/models--acme--tiny-model/refs"
cp -r $TINY/. "$T/hub/models--acme--tiny-model/snapshots/0123456789abcdef0123456789abcdef01234567/"
printf 0123456789abcdef0123456789abcdef01234567 >"$T/hub/models--acme--tiny-model/refs/main"
try run acme/tiny-modle x --cache-dir "$T/hub"; expect "missing model: near name" 3 "acme/tiny-model"
try show acme/tiny-model --cache-dir "$T/hub"; out "a model of the cache" "type +llama"
try list --cache-dir "$T/hub"; out "list" "acme/tiny-model .* yes"
try list --cache-dir "$T/hub" --json
is_json <"$T/out" && ok "list --json parses" || bad "list --json parses"
(cd "$T" && "$CAMBIUM" list --cache-dir "$T/empty" >"$T/out" 2>"$T/err"); rc=$?
expect "an empty list says where it looked" 0 "$T/empty"
try show $TINY; out "show: sampling values" "sampling +profile hf"
try show $TINY --json
is_json <"$T/out" && ok "show --json parses" || bad "show --json parses"
try plan $TINY; out "plan" "q_proj"
try show $TINY --ctx 128; out "show --ctx counts memory" "at 128 of 512 tokens"
try plan tests/data/tiny-qwen35-raw --ctx 1000; out "plan --ctx counts memory" "state of 3 recurrent layers"
try show $TINY --ctx 513; out "a context beyond the checkpoint's" "runs +no: context of 513 tokens"
try plan $TINY --trace-ops --steps 2; out "plan --trace-ops" "tok/s"
try plan $TINY --trace-ops --steps 2 --depth 300; out "plan --trace-ops --depth: attention reads the context" "attention .* GB/s .* GFLOP/s"
try plan $TINY --trace-ops --depth 600; expect "a depth beyond the context: exit 2" 2 "depth: 600 tokens and 18 steps; the context holds 512"

damage() { rm -rf "$T/m"; cp -r $TINY "$T/m"; chmod -R u+w "$T/m"; }
damage; rm "$T/m/model.safetensors"
try run "$T/m" x; expect "weights missing: exit 4" 4 "model.safetensors"
damage; head -c 20000 $TINY/model.safetensors >"$T/m/model.safetensors"
try run "$T/m" x; expect "weights cut off: exit 4" 4 "model.safetensors"
damage; printf '\377\377\377\377\377\377\377\377' | dd of="$T/m/model.safetensors" conv=notrunc 2>/dev/null
try run "$T/m" x; expect "absurd header length: exit 4" 4 "model.safetensors"
damage; echo '{' >"$T/m/config.json"
try run "$T/m" x; expect "config.json is not JSON: exit 4" 4 "config.json"
damage; sed 's/"model_type": *"llama"/"model_type": "mystery"/' $TINY/config.json >"$T/m/config.json"
try run "$T/m" x; expect "unsupported architecture: exit 4" 4 "mystery"
damage; sed 's/"num_hidden_layers": *[0-9]*/"num_hidden_layers": 9/' $TINY/config.json >"$T/m/config.json"
try run "$T/m" x; expect "a layer too many: names the tensor" 4 "layers\.[0-9]"
damage; echo '{"model": 3}' >"$T/m/tokenizer.json"
try run "$T/m" x; expect "damaged tokenizer: exit 4" 4 "tokenizer.json"
damage; echo '{"top_p": 7}' >"$T/m/generation_config.json"
try run "$T/m" x; expect "damaged generation_config.json: exit 4" 4 "top_p is 7"
damage; rm -f "$T/m/chat_template.jinja"; sed 's/"chat_template"/"no_template"/' $TINY/tokenizer_config.json >"$T/m/tokenizer_config.json"
try run "$T/m" x; expect "no template: says --raw" 4 "try --raw"
try run "$T/m" x --raw -n 2 --temp 0; expect "--raw does without" 0
damage; printf '{%% for %%}' >"$T/m/chat_template.jinja"
try run "$T/m" x; expect "damaged template: exit 4" 4 "line 1"

pack() { rm -rf "$T/m"; cp -r tests/data/tiny-bonsai2 "$T/m"; chmod -R u+w "$T/m"; sed -i "$2" "$T/m/$1"; } # FILE SED: a changed Bonsai 2 pack
pack config.json 's/"schema_version": 2/"schema_version": 1/'
try run "$T/m" x; expect "pack of another schema: exit 4" 4 "schema_version is 1"
pack hadamard.json 's/"prism.hadamard.block_size": 512/"prism.hadamard.block_size": 1024/'
try run "$T/m" x; expect "pack of another block: exit 4" 4 "block"
pack hadamard.json 's/"explicit"/"identity"/'
try run "$T/m" x; expect "pack of another sign mode: exit 4" 4 "sign_mode is identity"

try run $TINY x --memory-limit 1k; expect "not enough memory: exit 6 with need and have" 6 "need .*have"
try run $TINY x --ctx-size 2000000000; expect "context beyond the model's" 2 "2000000000"
try run $TINY x --device cuda; expect "no such device: exit 5, never a silent move" 5 "cuda"
try import /nonexistent.gguf "$T/o"; expect "import: missing file" 3 "nonexistent"
echo hello >"$T/x.gguf"
try import "$T/x.gguf" "$T/o"; expect "import: not a GGUF file" 4 "x.gguf"
[ ! -e "$T/o" ] && ok "import: nothing is left behind" || bad "import: nothing is left behind"
exit $failures
