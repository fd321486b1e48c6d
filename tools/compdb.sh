#!/bin/sh
# compdb.sh: compile_commands.json for editors, from what make would run.
set -eu
cd "$(dirname "$0")/.."
{
    echo "["
    make -nB V=1 all tests | sed -n 's/^@\{0,1\}\([^ ]*cc\|clang\|gcc\) \(.* -c -o \([^ ]*\) \([^ ]*\.c\)\)$/\1 \2\n\4/p' |
        awk -v dir="$PWD" 'NR % 2 { gsub(/["\\]/, "\\\\&"); cmd = $0; next }
            { printf "%s  {\"directory\": \"%s\", \"file\": \"%s\", \"command\": \"%s\"}", sep, dir, $0, cmd; sep = ",\n" } END { print "" }'
    echo "]"
} >compile_commands.json
