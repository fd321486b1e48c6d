#!/bin/bash
# shellcheck disable=SC2034,SC2154
# The interactive chat, on a terminal made by script(1).
. tests/cli/lib.sh.inc
if ! command -v script >/dev/null; then
    skip "chat" "no script(1) here"
    exit 0
fi
# chat INPUT ARGS...: types INPUT into a chat, a line every moment; leaves what the terminal showed in $T/out.
chat() {
    local input=$1
    shift
    { sleep 0.7; printf '%s\n' "$input" | while IFS= read -r line; do printf '%s\r' "$line"; sleep 0.3; done; sleep 0.5; printf '\004'; sleep 0.3; } |
        TERM=dumb timeout 60 script -qec "$(printf '%q ' "$CAMBIUM" "$@")" /dev/null >"$T/out" 2>"$T/err"
    rc=$?
}
chat "/help" run $TINY --temp 0 -n 8; out "/help" "/reset +forget"
chat "hello" run $TINY --temp 0 -n 8; out "an answer and its speed" "answer [0-9]+ tokens"
[ "$(grep -c 'first after' "$T/out")" = 1 ] && ok "one turn" || bad "one turn"
chat $'hello\nand again' run $TINY --temp 0 -n 8; out "the second turn computes only what is new" "prompt [0-9]+ tokens more"
# A template that asks for the answer with words which the next turn's prompt leaves out; the state before them was kept.
cp -r tests/data/tiny-qwen35-4bit "$T/hybrid"
# shellcheck disable=SC2016
sed -i "s/<|im_start|>assistant\$/<|im_start|>assistant x y z/" "$T/hybrid/chat_template.jinja"
chat $'hello\nand again' run "$T/hybrid" --temp 0 -n 8; out "a recurrent model goes on from the state before the answer" "prompt [0-9]+ tokens more"
chat $'hello\n/reset\nhello' run $TINY --temp 0 -n 8; out "/reset" "a new conversation"
chat $'one \\\\\ntwo' run $TINY --temp 0 -n 8
[ "$(grep -c 'first after' "$T/out")" = 1 ] && ok "a backslash joins lines" || bad "a backslash joins lines"
cat >"$T/think.jinja" <<'EOF'
{% for m in messages %}{{ m.role }}: {% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}
{% endfor %}{% if add_generation_prompt %}assistant: <think>
{% endif %}
EOF
chat $'hello\nand again' run $TINY --temp 0 -n 12 --chat-template "$T/think.jinja" --reasoning-budget 3
[ "$(grep -ac 'first after' "$T/out")" = 2 ] && [ "$(grep -ac '^</think>' "$T/out")" = 2 ] && ok "reasoning in two turns" || bad "reasoning in two turns"
chat "/nonsense" run $TINY; out "unknown command" "unknown command /nonsense"
chat "/exit" run $TINY; [ "$rc" = 0 ] && ok "/exit" || bad "/exit"
grep -q hello "$T/state/cambium/history" && ok "history is kept" || bad "history is kept"
exit $failures
