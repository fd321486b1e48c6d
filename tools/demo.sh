#!/bin/sh
# demo.sh [PROMPT]: fetches SmolLM2 135M Instruct if it is not in models/ yet, then answers one prompt with streamed text; the
# last line says how fast prompt and answer were computed. CAMBIUM names the program.
set -eu
cd "$(dirname "$0")/.."
cambium=${CAMBIUM:-build/release/cambium}
[ -f models/smollm2/model.safetensors ] || CAMBIUM=$cambium tools/fetch.sh smollm2
prompt=${1:-Why is the sky blue? Explain it in a few sentences.}
printf '> %s\n\n' "$prompt"
exec "$cambium" run models/smollm2 --temp 0 -n 160 -p "$prompt"
