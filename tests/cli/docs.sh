#!/bin/bash
# shellcheck disable=SC2034,SC2154
# Code shown in the documents is code of the program.
. tests/cli/lib.sh.inc

# shown DOC FILE: every line of DOC's C blocks stands in FILE.
shown() {
    n=0
    while IFS= read -r line; do
        n=$((n + 1))
        grep -qxF -- "$line" "$2" || { echo "$line" >"$T/out"; rc=1; bad "$1 shows $2"; return; }
    done < <(sed -n '/^```c$/,/^```$/p' "$1" | grep -v '^```')
    if [ $n -gt 10 ]; then ok "$1 shows $2"; else bad "$1 shows $2"; fi
}
shown docs/adding-a-model.md src/model/qwen3.c
exit $failures
