#!/usr/bin/env python3
"""Prints src/text/unicode_tables.c.

Stand-ins: code points whose general category the oldest PCRE2 we accept (10.40, Unicode 14) does
not know as Unicode 16 has it, each with a stand-in of the same category, UTF-8 length and (where patterns name it) script.

The categories of Unicode 16 are those of the tokenizers package's regex engine; those of Unicode 14 come from a Python whose
unicodedata has that version (3.11).  Run: python3.11 make_unicode_standins.py > src/text/unicode_tables.c

Inert: code points with a canonical class, a decomposition or the category mark in Unicode 18 (package unicodedata2) that the
tokenizers package's normalizers do not know: their tables are older. They must pass through unchanged.

Punct flip: where its Punctuation component, with still other tables, disagrees with category P of Unicode 16.
"""
import unicodedata

import unicodedata2
from tokenizers import Regex, normalizers, pre_tokenizers

assert unicodedata.unidata_version == "14.0.0"
CATS = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Cf Zs Zl Zp".split()
BIG = dict(Lu=0x10400, Ll=0x10428, Lm=0x16FE0, Lo=0x10450, Mn=0x1D167, Mc=0x1D165, Nd=0x104A0, No=0x1D2E0, Pd=0x10EAD,
           Po=0x10100, Sm=0x1D6C1, So=0x1F600, Cf=0x1D173)
SMALL = {0x897: 0x898, 0xCF3: 0xCBE, 0xECE: 0xECD, 0x1B4E: 0x1B5A, 0x1B4F: 0x1B5A, 0x1B7F: 0x1B5A, 0x1C89: 0xA640,
         0x1C8A: 0x1C88, 0xA7CD: 0xA7C8, 0xA7DB: 0xA7C8}
SMALL.update({c: 0xA7C9 for c in (0xA7CB, 0xA7CC, 0xA7DA, 0xA7DC)})
SMALL.update({c: 0x2426 for c in range(0x2427, 0x242A)})
SMALL.update({c: 0x2FFB for c in range(0x2FFC, 0x3000)})
SMALL.update({c: 0x31E3 for c in (0x31E4, 0x31E5, 0x31EF)})


def members(pattern):
    pt = pre_tokenizers.Split(Regex(pattern), "removed")
    return {c for c in range(0x110000) if not 0xD800 <= c < 0xE000 and not pt.pre_tokenize_str(chr(c))}


special = {}
for script, sub in (("Han", 0x20000), ("Hiragana", 0x1B150), ("Katakana", 0x1B164), ("Latin", 0x1DF00)):
    special.update({c: sub for c in members(r"\p{%s}" % script)})
rows = []
for c, cat in sorted((c, k) for k in CATS for c in members(r"\p{%s}" % k)):
    if unicodedata.category(chr(c)) == cat:
        continue
    sub = SMALL[c] if c < 0x10000 else special.get(c, BIG[cat])
    if unicodedata.category(chr(sub)) != cat:
        sub = BIG[cat]
    assert unicodedata.category(chr(sub)) == cat, (hex(c), cat, hex(sub))
    assert len(chr(sub).encode()) == len(chr(c).encode())
    if rows and rows[-1][1] == c - 1 and rows[-1][2] == sub:
        rows[-1][1] = c
    else:
        rows.append([c, c, sub])
print("/* Made by tests/reference/make_unicode_standins.py; do not edit. See unicode.h. */")
print('#include "text/unicode.h"\n')
print("const cb_unicode_range cb_unicode_standins[] = {")
for i in range(0, len(rows), 4):
    print("    " + " ".join("{0x%x, 0x%x, 0x%x}," % tuple(r) for r in rows[i:i + 4]))
print("};")
print("const int cb_unicode_n_standins = %d;" % len(rows))


NFD, NFKD, MARKS = normalizers.NFD(), normalizers.NFKD(), normalizers.StripAccents()
inert = []
for c in range(0x110000):
    ch = chr(c)
    if 0xD800 <= c < 0xE000 or 0xAC00 <= c < 0xD7A4:
        continue
    if not unicodedata2.combining(ch) and not unicodedata2.decomposition(ch) and unicodedata2.category(ch)[0] != "M":
        continue
    nfd, nfkd, mark = NFD.normalize_str(ch), NFKD.normalize_str(ch), MARKS.normalize_str(ch) == ""
    # A class shows in sorting: U+0334 has the lowest, U+0345 the highest.
    moves = NFD.normalize_str("a" + ch + "\u0334") != "a" + nfd + "\u0334" or NFD.normalize_str("a\u0345" + ch) != "a\u0345" + nfd
    known = (unicodedata2.normalize("NFD", ch) == nfd and unicodedata2.normalize("NFKD", ch) == nfkd
             and mark == (unicodedata2.category(ch)[0] == "M")
             and (nfd != ch or moves == bool(unicodedata2.combining(ch))))
    if known:
        continue
    assert nfd == ch and nfkd == ch and not mark and not moves, hex(c)
    if inert and inert[-1][1] == c - 1:
        inert[-1][1] = c
    else:
        inert.append([c, c])
print("\nconst cb_unicode_range cb_unicode_inert[] = {")
for i in range(0, len(inert), 5):
    print("    " + " ".join("{0x%x, 0x%x, 0}," % tuple(r) for r in inert[i:i + 5]))
print("};")
print("const int cb_unicode_n_inert = %d;" % len(inert))

punct = pre_tokenizers.Punctuation("isolated")
is_p = {c for k in ("Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po") for c in members(r"\p{%s}" % k)}
flip = []
for c in range(0x80, 0x110000):
    if 0xD800 <= c < 0xE000 or (len(punct.pre_tokenize_str("a" + chr(c))) > 1) == (c in is_p):
        continue
    if flip and flip[-1][1] == c - 1:
        flip[-1][1] = c
    else:
        flip.append([c, c])
print("\nconst cb_unicode_range cb_unicode_punct_flip[] = {")
for i in range(0, len(flip), 5):
    print("    " + " ".join("{0x%x, 0x%x, 0}," % tuple(r) for r in flip[i:i + 5]))
print("};")
print("const int cb_unicode_n_punct_flip = %d;" % len(flip))
