#!/usr/bin/env python3
"""Random expressions and templates, rendered by Transformers, in the format of make_template_cases.py.

    python tests/reference/random_templates.py SEED COUNT expressions|templates OUT
    build/release/tests/unit/template OUT

A few differences are expected: integers past 64 bits, safe marks, slices of number literals, and texts of errors. Random
programs can be greedy: run with `ulimit -v 3000000`.
"""
import json
import random
import re
import sys

import make_template_cases as cases
from template_features import FEATURE_VARS

NAMES = list(FEATURE_VARS) + ["undef1", "d.c", "d.zz", "msgs[0]", "msgs[1].content", "nest.a.b", "ls[1]", "mix[5]", "u[2:5]"]
STRINGS = ["'a'", "''", "'ab c'", "'é'", "','", "' x '", "'L'", "'%s'", "'1'", "'{}'", "'\\n'", "'<'", "'o'", "'ß'", "'ΑΣ'", "'a,b'"]
NUMBERS = ["0", "1", "2", "-1", "3", "10", "1.5", "-0.5", "2.0", "100", "-7", "1e20", "7"]
FILTERS = """upper lower length trim first last join list sort unique|list reverse|list int float abs string tojson title capitalize
wordcount sum min max dictsort items|list default round select|list reject|list count indent list|length
join(S) default(E) default(E,true) replace(S,S) replace(S,S,N) map('upper')|list map('string')|join('-') map(attribute=S)|list
select('string')|list selectattr('role')|list selectattr('role','eq',E)|list rejectattr(S,'defined')|list batch(N)|list
slice(N)|list round(N) round(N,'ceil') round(N,'floor') int(E) float(E) tojson(indent=N) tojson(ensure_ascii=true)
tojson(sort_keys=true) tojson(separators=(S,S)) indent(N) indent(N,true,true) trim(S) format(E) format(E,E) sort(reverse=true)
sort(case_sensitive=true) sort(attribute=S) dictsort(reverse=true) dictsort(by='value') groupby(S) map('length')|list
map('first')|list map('int')|sum select('in',E)|list select('eq',E)|list map('default',E)|list unique(attribute=S)|list
join(S,attribute=S) sum(start=E) max(attribute=S) center(N) attr(S)""".split()
METHODS = """upper() lower() strip() lstrip(S) rstrip(S) strip(S) split() split(S) split(S,N) rsplit(S,N) rsplit(none,N)
split(none,N) splitlines() startswith(S) endswith(S) startswith((S,S)) replace(S,S) replace(S,S,N) find(S) rfind(S) count(S)
find(S,N) find(S,N,N) count(S,N,N) join(E) title() capitalize() swapcase() casefold() isdigit() isalpha() isspace() isupper()
islower() isalnum() zfill(N) center(N,'*') ljust(N) rjust(N) partition(S) rpartition(S) removeprefix(S) removesuffix(S) get(S)
get(S,E) items() keys() values() index(E) count(E) format(E,E) items()|list keys()|list values()|list role content x a b""".split()
TESTS = """defined undefined none string number integer float boolean mapping sequence iterable true false lower upper odd even
callable eq(E) ne(E) lt(E) gt(E) ge(E) le(E) in(E) divisibleby(N) sameas(E) escaped""".split()
OPERATORS = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", ">", "<=", ">=", "in", "not in", "and", "or"]
PERCENT = ["'%s|%5s'", "'%d'", "'%.2f'", "'%5.1f|%-8s|'", "'%x'", "'%r'", "'%e'", "'%g %s'", "'%05d'", "'%+d'"]
FORMATS = """'{:>5}' '{:^7}|{!r}' '{:.2f}' '{:,}' '{:05d}' '{0}{0}' '{:<6}|{:x}' '{:e}' '{:g}' '{:.3}' '{:%}' '{:+}' '{:_}' '{:#b}'
'{:10.4f}' '{:s}' '{:*>8}'""".split()
LOOP_ENDS = ["", "{{ loop.index }}", "{{ loop.last }}", "{{ loop.nextitem }}", "{{ loop.previtem }}", "{{ loop.length }}",
             "{% if loop.first %}F{% endif %}", "{% break %}", "{% if loop.index == 2 %}{% continue %}{% endif %}", "{{ x }}"]


class Writer:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.pick = self.random.choice

    def chance(self, p):
        return self.random.random() < p

    def fill(self, pattern, depth):
        """Replaces S, N and E in the argument list of a pattern."""
        head, paren, args = pattern.partition("(")
        value = {"S": lambda: self.pick(STRINGS), "N": lambda: self.pick(NUMBERS[:6] + ["5", "-3", "20"]), "E": lambda: self.expr(depth - 1)}
        return head + paren + re.sub(r"\b[SNE]\b", lambda m: value[m[0]](), args)

    def literal(self, depth):
        kind = self.random.random()
        if kind < .6 or depth <= 0:
            return self.pick(STRINGS + NUMBERS)
        if kind < .7:
            return self.pick(["true", "false", "none"])
        items = [self.expr(depth - 1) for _ in range(self.random.randint(0, 3))]
        if kind < .85:
            return f"[{', '.join(items)}]"
        if kind < .92:
            return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
        return "{" + ", ".join(f"{self.pick(STRINGS + ['1', 'none', 'true'])}: {i}" for i in items) + "}"

    def operand(self, depth):
        e = self.expr(depth - 1)
        return e if re.fullmatch(r"[\w.]+", e) else f"({e})"

    def subscript(self):
        if self.chance(.6):
            return self.pick(NUMBERS + ["'a'", "'role'", "'x'", "-2"])
        bound = lambda: self.pick(["", "1", "-1", "2", "-3", "5", "none", "100", "-100"])
        return f"{bound()}:{bound()}" + ("" if self.chance(.6) else ":" + self.pick(["1", "-1", "2", "-2", "3", "0"]))

    def expr(self, depth):
        if depth <= 0:
            return self.pick(NAMES) if self.chance(.7) else self.literal(0)
        kind = self.random.random()
        if kind < .12:
            return self.pick(NAMES) if self.chance(.7) else self.literal(depth)
        if kind < .45:
            return f"{self.operand(depth)}|{self.fill(self.pick(FILTERS), depth)}"
        if kind < .6:
            return f"{self.operand(depth)}.{self.fill(self.pick(METHODS), depth)}"
        if kind < .68:
            return f"{self.pick(NAMES)}[{self.subscript()}]"
        if kind < .75:
            return f"{self.operand(depth)} is {self.pick(['', 'not '])}{self.fill(self.pick(TESTS), depth)}"
        if kind < .92:
            sides = [self.expr(depth - 1) if self.chance(.5) else f"({self.expr(depth - 1)})" for _ in range(2)]
            return f"{sides[0]} {self.pick(OPERATORS)} {sides[1]}"
        if kind < .94:
            return f"{self.pick(PERCENT)} % ({self.expr(depth - 1)}, {self.expr(depth - 1)})"
        if kind < .96:
            return f"{self.pick(FORMATS)}.format({self.expr(depth - 1)}, {self.expr(depth - 1)})"
        if kind < .98:
            return f"({self.expr(depth - 1)} if {self.expr(depth - 1)} else {self.expr(depth - 1)})"
        return self.pick(["-", "+", "not "]) + self.operand(depth)

    def tag(self, text):
        return self.pick(["{%", "{%-", "{%", "{%+"]) + f" {text} " + self.pick(["%}", "-%}", "%}"])

    def space(self):
        return self.pick(["", "\n", "  ", "\n  ", " x\n", "\t"])

    def loop(self, depth):
        target = self.pick(["x", "s", "k, v", "i"])
        over = self.pick(["l", "ls", "d", "msgs", "d.items()", "mix", "range(3)", "u[:3]", "ls|map('upper')", self.expr(2)])
        only = self.pick(["", "", f" if {self.expr(1)}"])
        other = self.tag("else") + self.body(depth) if self.chance(.3) else ""
        return self.tag(f"for {target} in {over}{only}") + self.body(depth) + self.pick(LOOP_ENDS) + other + self.tag("endfor")

    def statement(self, depth):
        kind = self.random.random()
        if depth <= 0 or kind < .4:
            text = "{{ " + self.expr(2) + " }}"
        elif kind < .6:
            other = self.tag("else") + self.body(depth - 1) if self.chance(.5) else ""
            text = self.tag(f"if {self.expr(2)}") + self.body(depth - 1) + other + self.tag("endif")
        elif kind < .8:
            text = self.loop(depth - 1)
        elif kind < .9:
            text = self.tag(f"set {self.pick(['x', 's', 'y', 'ns.q'])} = {self.expr(2)}")
        elif kind < .95:
            text = "{% set x %}" + self.body(depth - 1) + self.tag("endset")
        else:
            text = self.tag(f"macro m(a, b={self.expr(1)})") + self.body(depth - 1) + self.tag("endmacro")
            text += "{{ m(" + self.expr(1) + ") }}{{ m(1, " + self.expr(1) + ") }}"
        return self.space() + text + self.space()

    def body(self, depth):
        return "".join(self.statement(depth) for _ in range(self.random.randint(1, 2)))


def main():
    seed, count, kind, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    writer = Writer(seed)
    base = {"tools": None, "documents": None, "add_generation_prompt": False, **cases.SPECIALS, **FEATURE_VARS}
    with open(path, "w", encoding="utf-8") as out:
        out.write(json.dumps({"input": "features", "vars": FEATURE_VARS}) + "\n")
        while count > 0:
            expressions = kind == "expressions"
            text = "{{ " + writer.expr(3) + " }}" if expressions else "{% set ns = namespace(q=1) %}" + writer.body(3)
            res = cases.result(text, base)
            if "object at 0x" in res.get("out", "") or "function " in res.get("out", ""):
                continue  # shows addresses
            if res.get("fail", "").startswith(("recursion", "Exceeds the limit")):
                continue
            if not expressions and "fail" in res and writer.chance(.8):
                continue  # most long programs fail early: keep some
            out.write(json.dumps({"f": text, **res}) + "\n")
            count -= 1


if __name__ == "__main__":
    main()
