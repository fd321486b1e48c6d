#!/usr/bin/env python3
"""Compares Cambium's tokenizer with Hugging Face's tokenizers on hard strings and on random ones.

  tok_check.py TOK_DUMP DIR... [--random N] [--seed S]

DIR holds tokenizer.json. Compared are ids (special tokens parsed, and not), the decoded text of those ids, the text of random
id sequences, and that the incremental detokeniser gives the same text. TOK_DUMP is tests/reference/tok_dump.c built."""
import argparse
import os
import random
import struct
import subprocess
import sys

import tokenizers
from hard_strings import HARD, random_bytes


def records(exe, mode, where, flag, recs):
    p = subprocess.run([exe, mode, where, str(flag)], input=b"".join(recs), capture_output=True)
    if p.returncode:
        sys.exit(p.stderr.decode())
    return p.stdout


def ours(exe, where, flags, texts):
    out = records(exe, "encode", where, flags, [struct.pack("<I", len(t)) + t for t in texts])
    pos = 0
    for _ in texts:
        n, = struct.unpack_from("<I", out, pos)
        ids = list(struct.unpack_from("<%di" % n, out, pos + 4))
        pos += 4 + 4 * n
        both = []
        for _ in range(2):
            n, = struct.unpack_from("<I", out, pos)
            both.append(out[pos + 4:pos + 4 + n])
            pos += 4 + n
        yield ids, both[0], both[1]


def ours_decode(exe, where, skip, lists):
    out = records(exe, "decode", where, skip, [struct.pack("<I%di" % len(x), len(x), *x) for x in lists])
    pos = 0
    for _ in lists:
        both = []
        for _ in range(2):
            n, = struct.unpack_from("<I", out, pos)
            both.append(out[pos + 4:pos + 4 + n])
            pos += 4 + n
        yield both


def check(exe, where, n_random, seed):
    hf = tokenizers.Tokenizer.from_file(os.path.join(where, "tokenizer.json"))
    rng = random.Random(seed)
    texts = HARD + [random_bytes(rng) for _ in range(n_random)]
    bad = panics = 0
    for flags in (3, 0):
        hf.encode_special_tokens = flags == 0
        for t, (ids, text, inc) in zip(texts, ours(exe, where, flags, texts)):
            s = t.decode("utf-8", errors="replace")
            try:
                want = hf.encode(s, add_special_tokens=flags & 1 != 0).ids
            except BaseException as e:  # the reference panics on a few
                if isinstance(e, KeyboardInterrupt):
                    raise
                panics += 1
                continue
            if ids != want:
                bad += 1
                if bad < 10:
                    print("  ids of", ascii(s)[:300], "\n    want", want[:60], "\n    got ", ids[:60])
                continue
            try:
                back = hf.decode(want, skip_special_tokens=False).encode()
            except BaseException as e:
                if isinstance(e, KeyboardInterrupt):
                    raise
                panics += 1
                continue
            if text != back or inc != back:
                bad += 1
                if bad < 10:
                    print("  text of", want[:60], "\n    want", back[:200], "\n    got ", text[:200], "\n    inc ", inc[:200])
    n_vocab = hf.get_vocab_size()
    lists = [[rng.randrange(n_vocab) for _ in range(rng.randrange(1, 30))] for _ in range(len(texts) // 4)]
    some = [i for i in (hf.token_to_id("<0x%02X>" % b) for b in range(256)) if i is not None]
    some = some or [hf.token_to_id(c) for c in "\u0120\u010a\u0122\u012c\u00e2\u00f0\u00c3abcxyz" if hf.token_to_id(c) is not None]
    lists += [[rng.choice(some) if rng.random() < .8 else rng.randrange(n_vocab) for _ in range(rng.randrange(1, 12))] for _ in range(len(texts) // 4)]
    for skip in (0, 1):
        for x, both in zip(lists, ours_decode(exe, where, skip, lists)):
            try:
                want = hf.decode(x, skip_special_tokens=bool(skip)).encode()
            except BaseException as e:
                if isinstance(e, KeyboardInterrupt):
                    raise
                panics += 1
                continue
            if both != [want, want]:
                bad += 1
                if bad < 10:
                    print("  text of", x, "\n    want", want[:200], "\n    got ", both)
    print("%s: %d strings, %d id lists, %d differ%s" % (where, len(texts), len(lists), bad, ", the reference panicked on %d" % panics if panics else ""))
    return bad


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("exe")
    ap.add_argument("dirs", nargs="+")
    ap.add_argument("--random", type=int, default=2000)
    ap.add_argument("--seed", type=int, default=1)
    a = ap.parse_args()
    sys.exit(1 if sum(check(a.exe, d, a.random, a.seed) for d in a.dirs) else 0)
