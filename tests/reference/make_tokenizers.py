#!/usr/bin/env python3
"""Makes tokenizer.json (and tokenizer_config.json) from vocabularies in other formats, independently of src/text/gguf_vocab.c,
which does the first two as well: comparing both checks it.

  make_tokenizers.py gguf FILE... OUT_DIR     a GGUF file (several parts are joined) with a gpt2, llama or gemma4 vocabulary
  make_tokenizers.py tiktoken FILE OUT_DIR    Qwen 3.5's base64 ranks

Rules for missing merges.
 llama (SentencePiece BPE; scores, no merges): every way to cut a token into two tokens is a merge. Merges go by falling score
   of the joined token; of one token by falling length of the left part, then of the right part (characters); ties stay in
   order of the joined token's id, then (left id, right id). This is what the converter in transformers does. User-defined
   tokens that are runs of spaces (Gemma) stand in GGUF files with U+0020; in tokenizer.json they are runs of U+2581, made by
   merges like any other token. With that Gemma 3 has the 514906 merges of its tokenizer.json.
 tiktoken (byte-level; ranks, no merges): the merge that makes the token of rank r is the last step when its bytes are encoded
   with the tokens of lower rank only.
"""
import base64
import json
import os
import sys


def byte_chars():
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    table = {b: chr(b) for b in keep}
    for i, b in enumerate(b for b in range(256) if b not in table):
        table[b] = chr(256 + i)
    return table


GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN35 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")


def byte_level(regex):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": regex}


def added(i, s, special):
    return {"id": i, "content": s, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": special}


def document(normalizer, pre, post, decoder, model, tokens):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens, "normalizer": normalizer,
            "pre_tokenizer": pre, "post_processor": post, "decoder": decoder, "model": model}


def bpe(vocab, merges, **kw):
    m = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
         "fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    m.update(kw)
    m["vocab"] = vocab
    m["merges"] = merges
    return m


def write(out, doc, config):
    os.makedirs(out, exist_ok=True)
    with open(os.path.join(out, "tokenizer.json"), "w", encoding="utf-8") as f:
        json.dump(doc, f, ensure_ascii=False, indent=1)
    with open(os.path.join(out, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, ensure_ascii=False, indent=1)


def spm_merges(tokens, scores):
    vocab = {t: i for i, t in enumerate(tokens)}
    merges = []
    for t, i in vocab.items():
        local = []
        for k in range(1, len(t)):
            l, r = t[:k], t[k:]
            if l in vocab and r in vocab:
                local.append((l, r, scores[i]))
        local.sort(key=lambda x: (vocab[x[0]], vocab[x[1]]))
        merges.extend(local)
    merges.sort(key=lambda m: (m[2], len(m[0]), len(m[1])), reverse=True)
    return [[l, r] for l, r, _ in merges]


def from_gguf(files, out):
    from gguf import GGUFReader
    if len(files) > 1:
        os.makedirs(out, exist_ok=True)
        joined = os.path.join(out, "joined.gguf")
        with open(joined, "wb") as f:
            for p in files:
                f.write(open(p, "rb").read())
        files = [joined]
    r = GGUFReader(files[0])

    def get(key, default=None):
        f = r.get_field("tokenizer.ggml." + key)
        return default if f is None else f.contents()

    tokens, types = get("tokens"), get("token_type")
    if get("model") in ("llama", "gemma4"):
        tokens = [t.replace(" ", "\u2581") if types[i] == 4 and not t.strip(" ") else t for i, t in enumerate(tokens)]
    specials = [added(i, t, types[i] != 4) for i, t in enumerate(tokens) if types[i] in (2, 3, 4)]
    vocab = {t: i for i, t in enumerate(tokens)}
    config = {"add_bos_token": bool(get("add_bos_token", get("model") == "llama"))}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        i = get(key + "_token_id")
        if i is not None:
            config[name + "_token"] = tokens[i]
    if get("model") == "gpt2":
        assert get("pre") == "smollm", get("pre")
        pre = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level(True)]}
        doc = document(None, pre, None, byte_level(True), bpe(vocab, [m.split(" ") for m in get("merges")]), specials)
    elif get("model") == "gemma4":  # has its merges; the published tokenizer adds no <bos>, the chat template writes it
        norm = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
        pre = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
        dec = [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
        model = bpe(vocab, [m.split(" ") for m in get("merges")], unk_token=config["unk_token"], fuse_unk=True, byte_fallback=True)
        doc = document(norm, pre, None, {"type": "Sequence", "decoders": dec}, model, specials)
        config["add_bos_token"] = False
    else:
        assert get("model") == "llama"
        prefix = bool(get("add_space_prefix", True))
        norm = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
        if prefix:
            norm = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, norm]}
        dec = [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
        if prefix:
            dec.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
        bos = config["bos_token"]
        post = {"type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                         {"Sequence": {"id": "B", "type_id": 0}}],
                "special_tokens": {bos: {"id": bos, "ids": [vocab[bos]], "tokens": [bos]}}}
        merges = spm_merges(tokens, get("scores"))
        print(len(merges), "merges")
        model = bpe(vocab, merges, unk_token=config.get("unk_token"), fuse_unk=True, byte_fallback=True)
        doc = document(norm, None, post if config["add_bos_token"] else None, {"type": "Sequence", "decoders": dec}, model, specials)
    write(out, doc, config)


QWEN_SPECIAL = """<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|>
<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> <tool_call> </tool_call>
<|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> <tool_response> </tool_response> <think>
</think> <|audio_start|> <|audio_end|> <tts_pad> <tts_text_bos> <tts_text_eod> <tts_text_bos_single> <|audio_pad|>""".split()
QWEN_PLAIN = set("<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|>"
                 " <tool_response> </tool_response> <think> </think>".split())


def last_merge(ranks, token, rank):
    parts = [bytes([b]) for b in token]
    while len(parts) > 2:
        best = min((ranks.get(parts[i] + parts[i + 1], rank), i) for i in range(len(parts) - 1))
        if best[0] >= rank:
            return None
        parts[best[1]:best[1] + 2] = [parts[best[1]] + parts[best[1] + 1]]
    return parts


def from_tiktoken(path, out):
    ranks = {}
    for line in open(path, "rb"):
        t, r = line.split()
        ranks[base64.b64decode(t)] = int(r)
    chars = byte_chars()
    text = lambda b: "".join(chars[x] for x in b)
    merges, without = [], 0
    for t, r in sorted(ranks.items(), key=lambda x: x[1]):
        if len(t) > 1:
            p = last_merge(ranks, t, r)
            if p is None or p[0] not in ranks or p[1] not in ranks:
                without += 1
                continue
            merges.append([text(p[0]), text(p[1])])
    vocab = {text(t): r for t, r in ranks.items()}
    print(len(vocab), "tokens", len(merges), "merges,", without, "tokens that no merge makes")
    first = len(vocab)
    specials = [added(first + i, s, s not in QWEN_PLAIN) for i, s in enumerate(QWEN_SPECIAL)]
    pre = {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": QWEN35}, "behavior": "Isolated", "invert": False}, byte_level(False)]}
    doc = document({"type": "NFC"}, pre, byte_level(False), byte_level(False), bpe(vocab, merges), specials)
    write(out, doc, {"add_bos_token": False, "bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"})


if __name__ == "__main__":
    if sys.argv[1] == "gguf":
        from_gguf(sys.argv[2:-1], sys.argv[-1])
    else:
        from_tiktoken(sys.argv[2], sys.argv[3])
