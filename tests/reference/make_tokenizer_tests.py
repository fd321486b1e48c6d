#!/usr/bin/env python3
"""Makes the tokenizer test data in tests/data/tokenizer from Hugging Face's tokenizers.

  make_tokenizer_tests.py synthetic OUT_DIR          parts.jsonl: two small base tokenizers, then one line for each combination
                                                     of components with expected ids; with --dirs DIR also a folder for each,
                                                     for tok_check.py
  make_tokenizer_tests.py trim DIR N OUT_DIR         a real tokenizer cut to about N tokens, as OUT_DIR/tokenizer.json
  make_tokenizer_tests.py cases DIR FILE             expected ids and texts of the hard strings for the tokenizer in DIR

A case is [text in hex, ids with specials parsed, ids without, text of the first ids in hex (null: the text itself, repaired)].
"""
import copy
import json
import os
import sys

import tokenizers
from hard_strings import HARD
from make_tokenizers import added, bpe, byte_chars, byte_level, document
from tokenizers import models, pre_tokenizers, trainers

SHORT = [t for t in HARD if len(t) <= 90]


def case(hf, t):
    s = t.decode("utf-8", errors="replace")
    out = [t.hex()]
    for special in (True, False):
        hf.encode_special_tokens = not special
        out.append(hf.encode(s, add_special_tokens=special).ids)
    back = hf.decode(out[1], skip_special_tokens=False)
    out.append(None if back == s else back.encode().hex())
    return out


def corpus():
    here = os.path.dirname(os.path.abspath(__file__))
    text = open(os.path.join(here, "make_tokenizers.py"), encoding="utf-8").read()
    return [text] + [t.decode("utf-8", errors="replace") for t in HARD if len(t) < 400]


def train(texts, pre, alphabet, n):
    t = tokenizers.Tokenizer(models.BPE())
    t.pre_tokenizer = pre
    t.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=n, initial_alphabet=alphabet, limit_alphabet=len(alphabet),
                                                      show_progress=False))
    return json.loads(t.to_str())["model"]


def base_bytes():
    chars = byte_chars()
    m = train(corpus(), pre_tokenizers.ByteLevel(add_prefix_space=False), list(chars.values()), 256 + 200)
    n = len(m["vocab"])
    names = [("<|im_start|>", True), ("<|im_end|>", True), ("<|endoftext|>", True), ("<think>", False), ("</think>", False),
             ("<bos>", True), ("  ", False), ("<|im", False)]
    return document(None, byte_level(True), None, byte_level(True), bpe(m["vocab"], m["merges"]),
                    [added(n + i, s, sp) for i, (s, sp) in enumerate(names)])


def base_chars():
    texts = [t.replace(" ", "\u2581") for t in corpus()]
    keep = sorted({c for t in texts for c in t if 32 < ord(c) < 0x3000 and ord(c) % 3} | {"\u2581", "\n", "<", ">", "|"})[:420]
    m = train(texts, pre_tokenizers.Split(tokenizers.Regex("[\\s\\S]+"), "isolated"), keep, len(keep) + 200)
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for b in range(256):
        vocab["<0x%02X>" % b] = len(vocab)
    for t in m["vocab"]:
        vocab.setdefault(t, len(vocab))
    specials = [added(0, "<unk>", True), added(1, "<s>", True), added(2, "</s>", True),
                added(len(vocab), "<bos>", True), added(len(vocab) + 1, "\n\n\n", False), added(len(vocab) + 2, "<think>", False)]
    norm = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    dec = [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
    return document(norm, None, None, {"type": "Sequence", "decoders": dec},
                    bpe(vocab, m["merges"], unk_token="<unk>", fuse_unk=True, byte_fallback=True), specials)


def seq(key, *parts):
    return {"type": "Sequence", key: list(parts)}


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
PREFIX = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?"
         r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+"
            r"|\s+(?!\S)|\s+")
ROBERTA = {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1], "trim_offsets": True, "add_prefix_space": False}


def meta(scheme, do_split=True, **kw):
    return dict({"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": do_split}, **kw)


def template(front, back):
    def tok(s, i):
        return {"SpecialToken": {"id": s, "type_id": 0}}
    seqa = [{"Sequence": {"id": "A", "type_id": 0}}]
    single = [tok(s, i) for s, i in front] + seqa + [tok(s, i) for s, i in back]
    return {"type": "TemplateProcessing", "single": single, "pair": single + [{"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {s: {"id": s, "ids": [i], "tokens": [s]} for s, i in front + back}}


def flagged(doc, **flags):
    out = []
    for a in doc["added_tokens"]:
        if flags.get("normalized") and not a["content"].strip():
            continue  # Strip would leave nothing, and the reference finds that everywhere
        a = dict(a)
        if not (flags.get("normalized") and a["special"]):  # skipping those by their normalized form, the reference misses them
            a.update(flags)
        out.append(a)
    return out


def combinations(b, c):
    yield "bytes", {}
    for f in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents"):
        yield "bytes", {"normalizer": {"type": f}}
    yield "bytes", {"normalizer": seq("normalizers", {"type": "NFD"}, {"type": "StripAccents"}, {"type": "Lowercase"})}
    yield "bytes", {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": False}}
    yield "bytes", {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}, "added_tokens": flagged(b, normalized=True)}
    yield "bytes", {"normalizer": {"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": " "}}
    yield "bytes", {"normalizer": seq("normalizers", {"type": "Prepend", "prepend": "x "}, {"type": "Lowercase"}), "added_tokens": flagged(b, normalized=True)}
    yield "bytes", {"normalizer": {"type": "ByteLevel"}, "pre_tokenizer": None}
    for p in (PREFIX, BYTES, seq("pretokenizers", split(LLAMA3), BYTES), seq("pretokenizers", split(GPT4O), BYTES),
              seq("pretokenizers", split(r"\p{N}{1,3}"), split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"), split(DEEPSEEK), BYTES),
              seq("pretokenizers", {"type": "Digits", "individual_digits": True}, byte_level(True)),
              seq("pretokenizers", {"type": "Digits", "individual_digits": False}, byte_level(True)),
              seq("pretokenizers", {"type": "Punctuation", "behavior": "Contiguous"}, BYTES),
              seq("pretokenizers", {"type": "Whitespace"}, BYTES), seq("pretokenizers", {"type": "WhitespaceSplit"}, BYTES),
              seq("pretokenizers", {"type": "BertPreTokenizer"}, BYTES), seq("pretokenizers", {"type": "CharDelimiterSplit", "delimiter": "a"}, BYTES),
              seq("pretokenizers", byte_level(True), split("\u0120", "MergedWithNext", kind="String")),
              seq("pretokenizers", split(r"\w+"), BYTES), seq("pretokenizers", split(r"\W+"), BYTES), seq("pretokenizers", split(r"\d+|\h\h"), BYTES),
              seq("pretokenizers", split(r"(?<=a)b|\u0041|^x|y$"), BYTES), seq("pretokenizers", split("a*", "Isolated"), BYTES)):
        yield "bytes", {"pre_tokenizer": p}
    for behavior in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for invert in (False, True):
            yield "bytes", {"pre_tokenizer": seq("pretokenizers", split(r"[aeiou ]", behavior, invert), BYTES)}
    yield "bytes", {"pre_tokenizer": seq("pretokenizers", split("  ", "MergedWithNext", kind="String"), BYTES)}
    yield "bytes", {"model": {"ignore_merges": True}, "pre_tokenizer": seq("pretokenizers", split(LLAMA3), BYTES),
                    "post_processor": template([("<bos>", b["model"]["vocab"].__len__() + 5)], [])}
    yield "bytes", {"model": {"end_of_word_suffix": "e"}}
    for f in ({"lstrip": True}, {"rstrip": True}, {"lstrip": True, "rstrip": True}, {"single_word": True}, {"single_word": True, "normalized": True}):
        yield "bytes", {"added_tokens": flagged(b, **f)}
    yield "bytes", {"added_tokens": flagged(b, normalized=True), "normalizer": {"type": "Lowercase"}}
    yield "chars", {}
    yield "chars", {"model": {"byte_fallback": False}}
    yield "chars", {"model": {"byte_fallback": False, "fuse_unk": False}}
    yield "chars", {"model": {"byte_fallback": False, "unk_token": None}}
    yield "chars", {"model": {"continuing_subword_prefix": "e"}, "merges": []}
    yield "chars", {"normalizer": seq("normalizers", {"type": "Prepend", "prepend": "\u2581"}, c["normalizer"]),
                    "decoder": seq("decoders", *c["decoder"]["decoders"], {"type": "Strip", "content": " ", "start": 1, "stop": 0}),
                    "post_processor": template([("<s>", 1)], [("</s>", 2)])}
    yield "chars", {"decoder": seq("decoders", *c["decoder"]["decoders"], {"type": "Strip", "content": "e", "start": 2, "stop": 2})}
    yield "chars", {"decoder": seq("decoders", {"type": "Strip", "content": "\u2581", "start": 1, "stop": 1}, *c["decoder"]["decoders"])}
    yield "chars", {"decoder": None}
    yield "chars", {"decoder": {"type": "Replace", "pattern": {"Regex": "[\u2581e]"}, "content": "_"}}
    yield "chars", {"pre_tokenizer": split(" ", "MergedWithPrevious", kind="String"), "post_processor": seq("processors", ROBERTA, template([("<bos>", len(c["model"]["vocab"]))], []))}
    for scheme in ("always", "first", "never"):
        for s in (True, False):
            yield "chars", {"normalizer": None, "pre_tokenizer": meta(scheme, s), "decoder": meta(scheme, s)}
    yield "chars", {"normalizer": None, "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "add_prefix_space": True},
                    "decoder": {"type": "Metaspace", "replacement": "\u2581", "add_prefix_space": True}}


def with_ids(doc):
    """Added tokens with the ids that the reference gives them."""
    hf = tokenizers.Tokenizer.from_str(json.dumps(doc))
    for a in doc["added_tokens"]:
        a["id"] = hf.token_to_id(a["content"])
    return doc


def merged(base, change):
    doc = copy.deepcopy(base)
    for k, v in change.items():
        if k == "model":
            doc["model"].update(v)
        elif k == "merges":
            doc["model"]["merges"] = v
        else:
            doc[k] = v
    return doc


def synthetic(out, dirs):
    bases = {"bytes": with_ids(base_bytes()), "chars": with_ids(base_chars())}
    os.makedirs(out, exist_ok=True)
    with open(os.path.join(out, "parts.jsonl"), "w", encoding="utf-8") as f:
        for name, doc in bases.items():
            print(json.dumps({"base": name, "tokenizer": doc}, ensure_ascii=False, separators=(",", ":")), file=f)
        for i, (name, change) in enumerate(combinations(bases["bytes"], bases["chars"])):
            doc = merged(bases[name], change)
            try:
                hf = tokenizers.Tokenizer.from_str(json.dumps(doc))
            except Exception as e:
                print("not loaded by the reference:", i, change, e)
                continue
            cases = []
            for k, t in enumerate(SHORT):
                if (k + i) % 8 == 0:
                    try:
                        cases.append(case(hf, t))
                    except BaseException as e:  # the reference panics on a few
                        if isinstance(e, KeyboardInterrupt):
                            raise
            print(json.dumps({"use": name, "set": change, "cases": cases}, ensure_ascii=False, separators=(",", ":")), file=f)
            if dirs:
                d = os.path.join(dirs, "%02d" % i)
                os.makedirs(d, exist_ok=True)
                json.dump(doc, open(os.path.join(d, "tokenizer.json"), "w"))


def trim(src, n, out):
    doc = json.load(open(os.path.join(src, "tokenizer.json"), encoding="utf-8"))
    vocab, merges = doc["model"]["vocab"], doc["model"]["merges"]
    specials = {a["content"] for a in doc["added_tokens"]}
    keep = {t for t in vocab if len(t) == 1 and (ord(t) < 0x600 or ord(t) == 0x2581)} | {t for t in vocab if len(t) == 6 and t.startswith("<0x")}
    few = [a for a in doc["added_tokens"] if not a["content"].startswith("<unused") or a["content"] in ("<unused0>", "<unused6241>")]
    keep |= {a["content"] for a in few if a["content"] in vocab}
    new = []
    for l, r in merges:
        if len(keep) < n and l in keep and r in keep:
            keep.add(l + r)
        if l in keep and r in keep and l + r in keep:
            new.append([l, r])
    ids = {t: i for i, t in enumerate(sorted(keep, key=vocab.get))}
    doc["model"]["vocab"], doc["model"]["merges"] = ids, new
    doc["added_tokens"] = few
    extra = len(ids)
    for a in sorted(few, key=lambda a: a["id"]):
        if a["content"] in ids:
            a["id"] = ids[a["content"]]
        else:
            a["id"] = extra
            extra += 1
    pp = doc["post_processor"]
    if pp and pp["type"] == "TemplateProcessing":
        for k, v in pp["special_tokens"].items():
            v["ids"] = [ids[k]]
    os.makedirs(out, exist_ok=True)
    text = json.dumps(doc, ensure_ascii=False, separators=(",", ":"))
    open(os.path.join(out, "tokenizer.json"), "w", encoding="utf-8").write(text + "\n")
    c = os.path.join(src, "tokenizer_config.json")
    if os.path.exists(c):
        json.dump(json.load(open(c)), open(os.path.join(out, "tokenizer_config.json"), "w"), indent=1)
    print(len(ids), "tokens", len(new), "merges", len(text), "bytes")


def cases(src, path):
    hf = tokenizers.Tokenizer.from_file(os.path.join(src, "tokenizer.json"))
    with open(path, "w", encoding="utf-8") as f:
        for t in HARD:
            print(json.dumps(case(hf, t), separators=(",", ":")), file=f)


if __name__ == "__main__":
    if sys.argv[1] == "synthetic":
        synthetic(sys.argv[2], sys.argv[4] if len(sys.argv) > 4 else None)
    elif sys.argv[1] == "trim":
        trim(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        cases(sys.argv[2], sys.argv[3])
