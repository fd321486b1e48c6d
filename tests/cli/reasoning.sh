#!/bin/bash
# shellcheck disable=SC2034,SC2154
# Chat templates given on the command line, and reasoning. The tiny model answers nonsense and never closes what a template has
# opened, so the budget does it.
. tests/cli/lib.sh.inc

cat >"$T/think.jinja" <<'EOF'
{%- for m in messages %}{{ m.role }}: {{ m.content }}
{% endfor %}{% if add_generation_prompt %}assistant:
{% if enable_thinking is not defined or enable_thinking %}<think>
{% else %}<think>

</think>

{% endif %}{% endif %}
EOF
cat >"$T/always.jinja" <<'EOF'
{{ messages[0].content }}<think>
EOF
echo '{{ messages[0].content }}!' >"$T/plain.jinja"
echo '{% if %}' >"$T/bad.jinja"
message='[{"role":"user","content":"hi"}]'
in=$message try template $TINY --chat-template "$T/plain.jinja"; same "template: a file" "$(cat "$T/out")" 'hi!'
in=$message try template $TINY --chat-template "$T/think.jinja" --reasoning off; out "template --reasoning off" "</think>"
in=$message try template $TINY --chat-template "$T/think.jinja" --reasoning on; [ "$(tail -n 1 "$T/out")" = "<think>" ] && ok "template --reasoning on" || bad "template --reasoning on"
in=$message try template $TINY --chat-template "$T/think.jinja" --reasoning on --chat-template-kwargs '{"enable_thinking": false}'
out "--chat-template-kwargs wins over --reasoning" "</think>"
in=$message try template $TINY --chat-template "$T/bad.jinja"; expect "a damaged file: exit 2, file and line" 2 "bad.jinja.*line 1"
in=$message try template $TINY --chat-template nothing-like-it; expect "neither file nor name" 2 "neither a file nor a template"
in=$message try template $TINY --chat-template default; out "the checkpoint's own, by name" "hi"
cp -r $TINY "$T/m" && chmod -R u+w "$T/m" && mkdir "$T/m/additional_chat_templates" && echo 'terse {{ messages[0].content }}' >"$T/m/additional_chat_templates/terse.jinja"
in=$message try template "$T/m" --chat-template terse; out "a named one" "^terse hi"
in=$message try template "$T/m" --chat-template ../../x; expect "a name is no path" 2 "neither a file"
try run $TINY hi --chat-template "$T/plain.jinja" --temp 0 -n 3; expect "run --chat-template" 0 "answer 3 tokens"
try show $TINY --chat-template "$T/bad.jinja"; expect "show reads it too" 2 "bad.jinja"

think=(run "$TINY" hi --chat-template "$T/think.jinja" --temp 0)
try "${think[@]}" -n 20 --reasoning-budget 5
[ "$(head -n 1 "$T/out")" = "<think>" ] && [ "$(grep -c '^</think>$' "$T/out")" = 1 ] && ok "reasoning stands between its delimiters" || bad "reasoning stands between its delimiters"
try "${think[@]}" -n 20 --reasoning-budget 5 --json; out "--json: reasoning_content" '"reasoning_content":'
out "--json: its tokens" '"reasoning_tokens":5'
all=$(python3 -c 'import json,sys; d=json.load(open(sys.argv[1])); print(d["text"])' "$T/out" 2>/dev/null)
try "${think[@]}" -n 20 --reasoning-budget 5 --json --hide-reasoning
[ "$rc" = 0 ] && ! grep -q reasoning_content "$T/out" && ok "--json --hide-reasoning" || bad "--json --hide-reasoning"
try "${think[@]}" -n 20 --reasoning-budget 5 --hide-reasoning -q; [ "$rc" = 0 ] && ! grep -q think "$T/out" && ok "--hide-reasoning" || bad "--hide-reasoning"
if command -v python3 >/dev/null; then same "the answer alone" "$(tr -d '\000-\037' <"$T/out")" "$(printf %s "$all" | tr -d '\000-\037')"
else skip "the answer alone" "no python3"; fi
try "${think[@]}" -n 20 --reasoning-budget 0 --json; [ "$rc" = 0 ] && ! grep -q reasoning_ "$T/out" && ok "a budget of 0 closes at once" || bad "a budget of 0 closes at once"
try "${think[@]}" -n 6 --json; out "never closed: all is reasoning" '"text":"".*"reasoning_content":"[^"]'
try "${think[@]}" -n 6 --json --reasoning off; out "--reasoning off: all is answer" '"text":"[^"]'
grep -q reasoning_ "$T/out" && bad "--reasoning off: no reasoning" || ok "--reasoning off: no reasoning"
stop=$("$CAMBIUM" "${think[@]}" -n 6 --json 2>/dev/null </dev/null | sed 's/.*"reasoning_content":"\(.\).*/\1/')
try "${think[@]}" -n 6 --json --stop "$stop"; out "stop texts are not looked for in reasoning" '"finish_reason":"length"'
h=$("$CAMBIUM" "${think[@]}" -n 9 --reasoning-budget 3 --hash -q </dev/null | sed -n 's/^sha256 //p')
same "forced tokens: the same bits in scalar C" "$("$CAMBIUM" "${think[@]}" -n 9 --reasoning-budget 3 --hash -q --device cpu:c --prefill-chunk 3 </dev/null | sed -n 's/^sha256 //p')" "$h"
try run $TINY hi --reasoning on; expect "a model without reasoning" 2 "knows no reasoning"
try run $TINY hi --reasoning-budget 4; expect "... has no budget either" 2 "knows no reasoning"
try run $TINY hi --temp 0 -n 2 --reasoning off; expect "... and off is fine" 0
try run $TINY hi --reasoning maybe; expect "neither auto, on nor off" 2 "maybe"
try run $TINY hi --raw --reasoning on; expect "--raw has none" 2 "leave out --raw"
try "${think[@]}" --reasoning-budget -7; expect "a budget below -1" 2 "-7"
try run $TINY hi --chat-template "$T/always.jinja" --reasoning off; expect "a template that cannot be kept from it" 2 "try --reasoning-budget 0"
exit $failures
