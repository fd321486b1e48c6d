"""Strings that break tokenizers, and a generator of random ones. Bytes: some are not UTF-8."""
import random

HARD = [
    b"", b" ", b"  ", b"   ", b"\n", b"\n\n", b"\n\n\n\n", b"\t", b"\t\t", b"\t\t\t\t\t", b"\r", b"\r\n", b"\r\n\r\n", b"\x00",
    b"a\x00b", b"\x00\x00\x00", b"\x01\x02\x1f\x7f", b"\x1b[31mred\x1b[0m", b"Hello world", b"Hello, world!", b" Hello", b"Hello ",
    b"  two  spaces  ", b"a  b\n\n  c", b"x\r\n\r\ny", b"tab\tand\t\ttabs", b" \n \n ", b"\n \n", b"   \n\n\n   text", b"trailing   \n",
    b"It's 2026! I'll, you're, WE'VE, he'd, 'tis, 'S 'T", "It\u2019s we\u2019ve".encode(), b"'s't're've'm'll'd", b"don't DON'T",
    b"foo_bar(x, 12)", b"for (int i = 0; i < n; i++) {\n\tx[i] += 1;\n}\n", b"def f(self):\n    return 'x' * 3\n\n\n", b"a=b==c===d",
    b"https://example.org/a/b?c=d&e=%20f#g", b"user@example.com", b"C:\\dir\\file.txt", b"/usr/local/bin", b"--flag=value", b"$$$ %%% ###",
    b"1", b"12", b"123", b"1234567890", b"3.14159265358979", b"1,000,000.00", b"0x1F", b"1e-10", b"2026-11-29T22:00:00Z", b"12345678901234567890" * 5,
    b"a1b2c3", b"1a 2b 3c", b"x 12 34", "\u0661\u0662\u0663 \u096a\u096b \u2167 \u00bd \u00b2\u00b3 \u2460".encode(),
    "Caf\u00e9 d\u00e9j\u00e0 vu \u2014 123 \U0001f60a".encode(), "Cafe\u0301 de\u0301ja\u0300 vu".encode(), "\u00c5ngstr\u00f6m A\u030angstro\u0308m \u212b".encode(),
    "\ufb01 \ufb02 \ufb03 \u0132 \u01c4".encode(), "\u1e9b\u0323 \u017f\u017f \u00df \u1e9e".encode(), "e\u0301\u0327 e\u0327\u0301 q\u0307\u0323 q\u0323\u0307".encode(),
    "Z\u0351\u036b\u0343\u036a\u0302\u036b\u033d\u034f\u0334\u0319\u0324\u031e\u0349\u035a\u032f\u031e\u0320\u034dA\u036b\u0357\u0334\u0362\u0335\u031c\u0330\u0354L".encode(),
    "\uac00\uac01\u1100\u1161\u11a8 \ud55c\uad6d\uc5b4 \u1112\u1161\u11ab\u1100\u116e\u11a8".encode(), "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u8fd9\u662f\u6d4b\u8bd5".encode(),
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8\u3001\u304b\u3099 \u30cf\u309a \uff76\uff9e".encode(), "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u0439 \u0438\u0306".encode(),
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645 \u064b\u064c\u064d \u0640".encode(), "\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd \u05e2\u05d5\u05dc\u05dd".encode(),
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e \u0915\u093c \u0958".encode(), "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01 \u0e33".encode(),
    "\u0bb5\u0ba3\u0b95\u0bcd\u0b95\u0bae\u0bcd \u0c28\u0c2e\u0c38\u0c4d\u0c15\u0c3e\u0c30\u0c02 \u0ca8\u0cae\u0cb8\u0ccd\u0c95\u0cbe\u0cb0".encode(),
    "\u10d2\u10d0\u10db\u10d0\u10e0\u10ef\u10dd\u10d1\u10d0 \u0532\u0561\u0580\u0587 \u12a0\u1218\u1230\u130d\u1293\u1208\u1201".encode(),
    "\u0f56\u0f7c\u0f51\u0f0b\u0f66\u0f90\u0f51\u0f0d \u1019\u103c\u1014\u103a\u1019\u102c \u1797\u17b6\u179f\u17b6\u1781\u17d2\u1798\u17c2\u179a".encode(),
    "\u0395\u03bb\u03bb\u03b7\u03bd\u03b9\u03ba\u03ac \u03ac \u1f71 \u03a3\u03c3\u03c2".encode(), "\u0130stanbul \u0131 I i\u0307".encode(), "ti\u1ebfng Vi\u1ec7t tie\u0302\u0301ng".encode(),
    "\U0001f600\U0001f603\U0001f604".encode(), "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 family".encode(), "\U0001f3f3\ufe0f\u200d\U0001f308 \u2764\ufe0f\u200d\U0001f525".encode(),
    "\U0001f44d\U0001f3fd\U0001f44b\U0001f3ff".encode(), "\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7\U0001f1ef".encode(), "1\ufe0f\u20e3 #\ufe0f\u20e3".encode(),
    "\U00010330\U00010331 \U00012000 \U00013000 \U0001d49c\U0001d4b7 \U00020000\U0002a6d6 \U000e0041".encode(), "\U0001faea \U0001fae9 \U0002ebf0 \U00010d4a \u1c89".encode(),
    "\ufeffBOM first".encode(), "a\u00a0b\u2003c\u3000d\u2028e\u2029f\u0085g\u180eh\u200bi\u1680j".encode(), "\u00a0\u00a0 \u3000\u3000".encode(), "a\u200db\u200cc\u00add".encode(),
    "\u202eright to left\u202c \u2066x\u2069".encode(), "\ufffd \ufffe \uffff \U0010ffff \ue000".encode(), "\u2581 \u2581\u2581 a\u2581b \u2581a".encode(),
    "\u0120word \u010a \u00c3\u00a9 \u0100\u0143".encode(), "\u00ab\u00bb \u201c\u201d \u2018\u2019 \u2026 \u2013\u2014 \u2022 \u20ac\u00a3\u00a5 \u2122\u00ae\u00a9 \u2200\u2203\u2208".encode(),
    b"<|endoftext|>", b"<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", b"<bos>", b"<start_of_turn>user\nHi<end_of_turn>\n", b"</s><s><unk><pad>",
    b"<|im_start|", b"<|im_start|>>", b"<<|im_end|>", b"x<|im_end|>y", b" <|im_end|> ", b"\n<|im_end|>\n\n", b"<|im_start|><|im_start|>", b"<|IM_START|>",
    b"<think>\nok\n</think>\n\n", b"<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>", b"<|vision_start|><|image_pad|><|vision_end|>",
    b"<unused0> <unused6241> [multimodal] <mask> <start_of_image>", b"<table><tr><td>x</td></tr></table> <h1>a</h1> <br>", b"<0x41> <0x00> <0xZZ> <0x+F> 0x41>",
    b"<file_sep><repo_name>", b"{\"a\": [1, 2.5, null, true], \"b\": \"\\u00e9\\n\"}", b"<html>\n  <body class=\"x\">&nbsp;</body>\n</html>",
    b"# Title\n\n* item\n  * sub\n\n```c\nint x;\n```\n", b"\\frac{a}{b} \\alpha_{i}^{2} $x^2$", b"|a|b|\n|-|-|\n|1|2|", b"!!!???...,,,;;;:::", b"((([[[{{{}}}]]])))",
    b"a" * 300, b"ab" * 200, b" " * 200, b"\n" * 100, b"=" * 77 + b"\n", b"-" * 133, b"aaaaaaaaaabbbbbbbbbb" * 20, "\u4e2d".encode() * 100, "\U0001f600".encode() * 50, b"the " * 100,
    b"supercalifragilisticexpialidocious antidisestablishmentarianism", b"camelCaseString SNAKE_CASE_STRING kebab-case-string", b"MiXeD cAsE", b"I.B.M. U.S.A. e.g. i.e.",
    b"\xff", b"\xfe\xff", b"\x80", b"abc\x80def", b"\xc3", b"\xc3(", b"\xe2\x82", b"\xe2\x82\xac\xe2\x82", b"\xf0\x9f\x98", b"\xf0\x9f\x98\x80\xf0\x9f", b"\xed\xa0\x80", b"\xed\xb0\x80x",
    b"\xc0\x80", b"\xe0\x80\x80", b"\xf0\x80\x80\x80", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xf8\x88\x80\x80\x80", b"a\xe2\x28\xa1b", b"\xe2\x80", b"ok \xf0\x9f\x92\xa9 \xf0\x9f\x92 bad",
    b"\xc3\xa9\xc3", bytes(range(256)), bytes(range(255, -1, -1)), "".join(chr(c) for c in range(0xa0, 0x250)).encode(), "".join(chr(c) for c in range(0x2000, 0x2070)).encode(),
]

WORDS = ["the", "of", " and", " to", "Hello", " world", "ing", "tion", " don't", "I'll", "x", "\n", "\n\n", " ", "  ", "    ", "\t", "\r\n", "1", "23", " 456", ".", ",", "!?", "...",
         "<|im_start|>", "<|im_end|>", "<bos>", "<eos>", "<|endoftext|>", "<think>", "<start_of_turn>", "</s>", "<0x0A>", "\u2581", "\u0120", "_", "(", ")", "{}", "\"", "'", "'s", "'S",
         "\u4e2d\u6587", "\u3042", "\u30ab\u3099", "\u0439", "\u0438\u0306", "\u00e9", "e\u0301", "\u0301", "\u0327", "\u0928\u093f", "\u0645\u064b", "\u1100\u1161\u11a8", "\uac00", "\u0e33", "\u200d",
         "\U0001f600", "\U0001f468\u200d\U0001f469", "\ufe0f", "\U0001f3fd", "\u00a0", "\u3000", "\u2028", "\u0000", "\u007f", "\ufffd", "\U00010330", "\U0002ebf0", "def", " return", "();\n", "=="]


def random_bytes(rng: random.Random) -> bytes:
    kind = rng.random()
    n = int(rng.expovariate(1 / 12)) + 1
    if kind < 0.5:
        s = "".join(rng.choice(WORDS) for _ in range(n))
    elif kind < 0.65:
        s = "".join(chr(rng.choice([rng.randrange(0x20, 0x7f), rng.randrange(0x80, 0x800), rng.randrange(0x800, 0xd800)])) for _ in range(n))
    elif kind < 0.75:
        s = "".join(chr(c) for c in (rng.randrange(0x110000) for _ in range(n)) if not 0xd800 <= c < 0xe000)
    elif kind < 0.9:
        s = "".join(rng.choice("aAbBeEtTsS  \n\t'.,0123-_\u00e9\u0301\u2581") for _ in range(n * 2))
    else:
        return bytes(rng.randrange(256) for _ in range(n))
    b = s.encode()
    if rng.random() < 0.1 and b:  # damage one byte
        i = rng.randrange(len(b))
        b = b[:i] + bytes([rng.randrange(256)]) + b[i + 1:]
    return b
