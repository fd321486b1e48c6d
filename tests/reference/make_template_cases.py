#!/usr/bin/env python3
"""Writes tests/data/template_cases.jsonl: chat templates, inputs, and what Transformers renders from them.

    python tests/reference/make_template_cases.py --templates DIR [--all] [--out FILE]

Needs transformers >= 5 and jinja2 3.1.6. DIR holds published templates as the sdist of llama-cpp-python carries them
(vendor/llama.cpp/models/templates); of these only templates of models under the Apache or MIT licence are written to the file
(see TEMPLATES). --all takes every *.jinja of DIR, for a wider check that is not committed:
    build/release/tests/unit/template FILE

Lines of the file, JSON objects:
    {"template": name, "text": ..., "from": ...}
    {"input": name, "vars": {...}}
    {"t": template, "i": input, "with": {more variables}, RESULT}
    {"f": template text, RESULT}        feature cases, rendered with the input "features"
RESULT is "out": text, or "n" and "fnv": length in bytes and 64-bit FNV-1a hash of a long output, or "raise": message of
raise_exception, or "fail": the exception's text (only that it fails is compared, and for undefined values the text).
"""
import argparse
import copy
import datetime
import json
import pathlib
import re

from jinja2.exceptions import TemplateError, TemplateSyntaxError, UndefinedError
from transformers.utils import chat_template_utils as ctu

from template_features import FEATURES, FEATURE_VARS, OWN_TEMPLATES, RAW_FEATURES

CLOCK = datetime.datetime(2024, 7, 26, 15, 4, 5)

# Apache 2.0 or MIT, by the model's card.
TEMPLATES = [
    "Qwen-Qwen2.5-7B-Instruct", "Qwen-Qwen3-0.6B", "Qwen3.5-4B", "Qwen-QwQ-32B", "Qwen3-Coder",
    "HuggingFaceTB-SmolLM3-3B", "google-gemma-4-31B-it", "ibm-granite-granite-3.3-2B-Instruct",
    "ibm-granite-granite-4.0", "mistralai-Mistral-Nemo-Instruct-2407", "Mistral-Small-3.2-24B-Instruct-2506",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "deepseek-ai-DeepSeek-V3.1", "microsoft-Phi-3.5-mini-instruct",
    "openai-gpt-oss-120b", "GLM-4.6", "ByteDance-Seed-OSS", "llama-cpp-rwkv-world",
]

SPECIALS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a city.\nNow.",
    "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "The city, e.g. \"Zürich\""},
        "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
        "days": {"type": "integer"},
        "opts": {"type": "object", "properties": {"raw": {"type": "boolean"}}, "required": []},
        "tags": {"type": "array", "items": {"type": "string"}}},
        "required": ["city"]}}}
CLOCK_TOOL = {"type": "function", "function": {"name": "clock", "description": "Time", "parameters": {"type": "object", "properties": {}}}}


def call(name, args, ident):
    return {"id": ident, "type": "function", "function": {"name": name, "arguments": args}}


def say(role, content, **more):
    return {"role": role, "content": content, **more}


DIALOG = [say("user", "Weather in Zürich?"),
          say("assistant", "", tool_calls=[call("get_weather", {"city": "Zürich", "days": 2, "opts": {"raw": True}, "tags": ["a", "b"], "unit": None}, "abcdef123")]),
          say("tool", "{\"temp\": 21.5}", name="get_weather", tool_call_id="abcdef123"),
          say("assistant", "It is 21.5 °C."),
          say("user", "Thanks 👍")]
PARALLEL = [say("system", "Use tools."), say("user", "Both, please"),
            say("assistant", "Sure.", tool_calls=[call("get_weather", {"city": "Bern"}, "call00001"), call("clock", {}, "call00002")]),
            say("tool", "sunny", name="get_weather", tool_call_id="call00001"),
            say("tool", "12:00", name="clock", tool_call_id="call00002")]
STRING_ARGS = [say("user", "Go"), say("assistant", None, tool_calls=[call("get_weather", "{\"city\": \"Bern\"}", "call00001")]),
               say("tool", "rain", name="get_weather", tool_call_id="call00001")]

INPUTS = {
    "user": [say("user", "Hi")],
    "system": [say("system", "Be brief."), say("user", "  Hi \n")],
    "turns": [say("system", "  You are a pirate.  "), say("user", "Hello\nthere"), say("assistant", " Arr! "), say("user", "1 < 2 & \"3\" 'x'"), say("assistant", "Yes"), say("user", "日本語 ñ 😀")],
    "empty": [say("system", ""), say("user", ""), say("assistant", ""), say("user", "x")],
    "think": [say("user", "a"), say("assistant", "<think>\nr1\n</think>\n\nb"), say("user", "c")],
    "reasoning": [say("user", "2+2?"), say("assistant", "4", reasoning_content="add them"), say("user", "sure?")],
    "parts": [say("system", [{"type": "text", "text": "See."}]), say("user", [{"type": "image"}, {"type": "text", "text": "What is this?"}, {"type": "text", "text": " And that?"}])],
    "assistant_last": [say("user", "Hi"), say("assistant", "Hello!")],
    "two_users": [say("user", "a"), say("user", "b")],
    "system_late": [say("user", "a"), say("assistant", "b"), say("system", "c"), say("user", "d")],
    "bad_role": [say("user", "a"), say("wizard", "b")],
    "developer": [say("developer", "Dev rules."), say("user", "a")],
    "none": [],
    "tool_dialog": DIALOG,
    "tool_parallel": PARALLEL,
    "tool_string_args": STRING_ARGS,
    "tool_reasoning": [say("user", "w?"), say("assistant", "", reasoning="need a tool", tool_calls=[call("clock", {}, "call00001")]), say("tool", "12", name="clock", tool_call_id="call00001")],
}

VARIANTS = {  # input -> variables of each case
    "user": [{}, {"add_generation_prompt": True}, {"add_generation_prompt": True, "enable_thinking": False},
             {"add_generation_prompt": True, "tools": [WEATHER, CLOCK_TOOL]}, {"add_generation_prompt": True, "reasoning_effort": "low"}],
    "system": [{"add_generation_prompt": True}, {"add_generation_prompt": True, "tools": [CLOCK_TOOL], "enable_thinking": True}],
    "turns": [{"add_generation_prompt": True}],
    "empty": [{"add_generation_prompt": True}],
    "think": [{"add_generation_prompt": True}],
    "reasoning": [{"add_generation_prompt": True}],
    "parts": [{"add_generation_prompt": True}, {"add_vision_id": True}],
    "assistant_last": [{}],
    "two_users": [{}],
    "system_late": [{}],
    "bad_role": [{}],
    "developer": [{}],
    "none": [{}],
    "tool_dialog": [{"tools": [WEATHER], "add_generation_prompt": True}],
    "tool_parallel": [{"tools": [WEATHER, CLOCK_TOOL], "add_generation_prompt": True}],
    "tool_string_args": [{"tools": [WEATHER]}],
    "tool_reasoning": [{"tools": [CLOCK_TOOL], "add_generation_prompt": True}],
}


def compile_template(text):
    t = ctu._compile_jinja_template(text)
    t.environment.globals["strftime_now"] = lambda f: CLOCK.strftime(f)
    return t


def raised(e):
    """Whether raise_exception made this error."""
    return type(e) is TemplateError


def result(text, variables):
    variables = copy.deepcopy(variables)
    try:
        if isinstance(variables.get("messages"), list):
            variables["messages"] = ctu._alias_reasoning_fields(ctu._normalize_chat_messages(variables["messages"]))
        out = compile_template(text).render(**variables)
        out.encode()
    except RecursionError:
        return {"fail": "recursion"}
    except Exception as e:  # any exception of the template is a failed rendering
        if raised(e):
            return {"raise": str(e)}
        kind = "undefined: " if isinstance(e, UndefinedError) else "syntax: " if isinstance(e, TemplateSyntaxError) else ""
        return {"fail": kind + str(e)[:120]}
    return {"out": out}


def fnv(data):
    h = 0xcbf29ce484222325
    for b in data:
        h = (h ^ b) * 0x100000001b3 & 0xffffffffffffffff
    return f"{h:016x}"


def shorten(res, keep):
    out = res.get("out")
    if out is None or len(out) <= keep:
        return res
    data = out.encode()
    return {"n": len(data), "fnv": fnv(data)}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--templates", type=pathlib.Path, required=True)
    ap.add_argument("--all", action="store_true")
    ap.add_argument("--out", type=pathlib.Path, default=pathlib.Path("tests/data/template_cases.jsonl"))
    args = ap.parse_args()
    names = sorted(p.stem for p in args.templates.glob("*.jinja")) if args.all else TEMPLATES
    templates = {n: ((args.templates / f"{n}.jinja").read_bytes().decode(), "llama.cpp (MIT), models/templates; the model is under Apache 2.0 or MIT") for n in names}
    templates.update({n: (t, "written for this test") for n, t in OWN_TEMPLATES.items()})
    lines, cases = [], 0
    for name, (text, source) in templates.items():
        lines.append({"template": name, "text": text, "from": source})
    for name, messages in INPUTS.items():
        lines.append({"input": name, "vars": {"messages": messages}})
    lines.append({"input": "features", "vars": FEATURE_VARS})
    base = {"tools": None, "documents": None, "add_generation_prompt": False, **SPECIALS}
    for name, (text, _) in templates.items():
        for inp, variants in VARIANTS.items():
            for more in variants:
                res = result(text, {**base, "messages": INPUTS[inp], **more})
                lines.append({"t": name, "i": inp, "with": more, **(res if args.all else shorten(res, 400))})
                cases += 1
    for f in FEATURES + RAW_FEATURES:
        lines.append({"f": f, **result(f, {**base, **FEATURE_VARS})})
        cases += 1
    text = "".join(json.dumps(x, ensure_ascii=False, separators=(",", ":")) + "\n" for x in lines)
    args.out.write_text(text)
    fails = sum("fail" in x for x in lines)
    raises = sum("raise" in x for x in lines)
    print(f"{len(templates)} templates, {cases} cases ({raises} raise, {fails} fail), {len(text.encode())} bytes")


if __name__ == "__main__":
    main()
