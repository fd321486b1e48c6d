"""Small templates, one or a few features each, and templates written for the test in the manner of published ones."""

FEATURE_VARS = {
    "s": "Hello World", "e": "", "u": "Straße ñandú ΑΣ 日本 😀", "ws": "  a b\t\nc \u00a0", "n": 7, "neg": -3, "z": 0, "f": 2.5, "big": 9007199254740993,
    "t": True, "no": False, "nil": None, "l": [3, 1, 2], "el": [], "ls": ["b", "A", "c", "a"], "mix": [1, "a", None, True, 2.5, [1, {"k": "v"}]],
    "d": {"b": 1, "A": 2, "c": {"x": [1, 2]}}, "ed": {}, "items_d": {"items": 5, "get": 6, "keys": "K"}, "html": "<a href=\"x\">'&'</a>",
    "msgs": [{"role": "system", "content": "S"}, {"role": "user", "content": "U", "n": 2}, {"role": "assistant", "content": None, "n": 1}],
    "multi": "line 1\nline 2\n\n  line 4", "q": "it's \"q\" \\ \n \t \r \x7f \x01 \u00e9 \u200b", "csv": "a,b,,c", "floats": [0.1, 1e16, 1e15, 1.5e-5, 0.0001, -0.0, 123456789.123, 1e300, 5e-324, 100.0],
    "nest": {"a": {"b": {"c": [10, 20, {"d": "deep"}]}}}, "num_s": " 42 ", "hex": "0x1F", "fl_s": "3.75", "bad_s": "abc",
    "loop_var": "ctx", "tokens": {"eos": "</s>"}, "json_s": "a\"b\\c/\u2028\x00é😀",
}

_expr = lambda *e: ["{{ " + x + " }}" for x in e]

FEATURES = _expr(
    # literals, str and repr
    "1", "-1", "1.0", "1e3", "1_000", "0x1F", "0b101", "0o17", "00", "1_0.5_0", "'a' 'b'", '"x\\ty\\n"', r"'\x41\u00e9\101\q\'\"'", "true", "True", "false", "none", "None",
    "[1, 'a', none, true, 1.5]", "{'a': 1, 'b': [1, 2]}", "{1: 'x', none: 2, true: 3, 1.5: 4}", "()", "(1,)", "(1, 2)", "1, 2", "[]", "{}", "mix", "d", "nest", "q", "[q]", "[u, html]", "floats", "nil", "[nil]",
    "undefined_name", "[undefined_name]", "'it\\'s' ~ \"'\"", "[\"it's\"]", "['\"']", "['\"\\'']", "big", "1.0 * big", "[1,2,]", "{'a':1,}", "-0.0", "1e16", "1e22", "123456789012345678", "0.1 + 0.2", "1e-7", "2.0 ** 70", "3.14159",
    # arithmetic and precedence
    "1 + 2 * 3", "(1 + 2) * 3", "2 ** 3 ** 2", "-2 ** 2", "7 // 2", "-7 // 2", "7 % 3", "-7 % 3", "7 % -3", "7 / 2", "6 / 2", "7.5 // 2", "-7.5 % 2", "2 ** -1", "2 ** 0.5", "1 - 1 - 1", "1 + 2 ~ 3", "1 ~ 2 + 3", "'a' ~ 1 ~ none ~ true ~ 1.5",
    "1 / 0", "1 // 0", "1 % 0", "1.0 / 0", "9223372036854775807", "-9223372036854775807 - 1", "'a' * 3", "3 * 'ab'", "[1, 2] * 2", "[1] + [2]", "(1,) + (2,)", "[1] + (2,)", "'a' + 'b'", "'a' + 1", "1 + 'a'", "none + 1", "true + 1", "t + t", "-t", "+t", "-'a'", "+'a'", "s * -1", "not 1", "not ''",
    "1 < 2 < 3", "1 < 3 < 2", "3 > 2 > 1 >= 1", "1 == 1.0", "1 == true", "'a' < 'b'", "'a' < 1", "none < 1", "[1, 2] < [1, 3]", "[1] == (1,)", "{'a': 1} == {'a': 1.0}", "none == none", "undefined_name == undefined_name2", "undefined_name == none", "1 != 2", "'1' == 1", "d == d", "[1,[2]] == [1,[2]]", "(1,2) < (1,2,3)",
    "1 in [1, 2]", "1 not in [1, 2]", "'ell' in s", "'' in s", "'b' in d", "'x' in d", "1 in 'a'", "1 in none", "'a' in undefined_name", "[1] in {}", "not 1 in [1]", "2 in (1, 2) and true", "'A' in d.keys()", "2 in d.values()",
    "1 and 2", "0 and 2", "0 or 'x'", "'' or none", "1 or undefined_name.x", "none and 1", "not true or true", "true and not false", "1 if true else 2", "1 if false else 2", "1 if false", "(1 if false) is undefined", "1 if 0 else 2 if 0 else 3", "'a' if s else 'b' ~ 'c'", "[x for x in l]",
    # access
    "d.b", "d['b']", "d.c.x[1]", "d.c.x.0", "d.missing", "d.missing.x", "d['missing']['x']", "nil.x", "nil['x']", "s.x", "s[0]", "s[-1]", "s[99]", "s[0].x", "u[6]", "u[-1]", "u[-2]", "l[5]", "l['a']", "l[-1]", "l[1.0]", "items_d['items']", "items_d['get']", "items_d.missing",
    "d.get('b')", "d.get('zz')", "d.get('zz', 5)", "d.get('zz', default=5) is defined", "nest.a.b.c[2].d", "undefined_name.x", "undefined_name['x']", "undefined_name()", "s()", "d.b.c", "d.b.c.d", "(1, 2)[0]", "[1,2,3][-1]", "{'a': {'b': 3}}.a.b", "l.0", "'abc'.0", "d.__class__", "d.__class__.x", "s.__len__()", "d._x",
    "s[1:3]", "s[:3]", "s[-3:]", "s[::-1]", "s[::2]", "s[5:1]", "s[5:1:-1]", "l[1:]", "l[:-1]", "l[::-1]", "l[10:]", "u[2:8]", "u[::-1]", "u[::3]", "(1,2,3)[1:]", "nil[1:]", "d[1:]", "s[none:2]", "s['a':]", "l[::0]", "undefined_name[1:]", "range(10)[2:5]|list", "range(10)[::-2]|list", "mix[5][1].k", "s[:99999999999]",
    "d.pop('b')", "l.append(4)", "l.append is defined", "d.update is defined", "d.update({})", "l.sort()", "l.copy()", "l.index(1)", "l.index(9)", "l.count(1)", "d.copy()",
    # string methods
    "ws.strip()|tojson", "ws.lstrip()|tojson", "ws.rstrip()|tojson", "s.strip('Hd')", "'xxaxx'.strip('x')", "'\\n\\na\\n'.lstrip('\\n')|tojson", "s.split()", "csv.split(',')", "csv.split(',', 1)", "csv.split(',')[-1]", "csv.rsplit(',', 1)", "csv.rsplit(',')", "ws.split()", "ws.split(none, 1)|tojson", "ws.rsplit(none, 1)|tojson", "s.split('')", "e.split()", "e.split(',')", "csv.split(sep=',', maxsplit=1)", "'aXbXc'.split('X', 0)", "s.split('o')", "'abc'.rsplit('b')",
    "multi.splitlines()", "multi.splitlines(true)", "'a\\r\\nb\\rc\\x0bd\\u2028e'.splitlines()", "s.startswith('He')", "s.startswith(('x', 'He'))", "s.startswith('l', 2)", "s.endswith('ld')", "s.endswith(('a', 'b'))", "s.endswith('o', 0, 5)", "s.startswith(1)", "s.startswith('')", "s.replace('l', 'L')", "s.replace('l', 'L', 1)", "s.replace('', '-')", "s.replace('l', '', 2)", "s.replace('l', 1)",
    "s.upper()", "s.lower()", "u.upper()", "u.lower()", "u.title()", "u.capitalize()", "'hello wORLD it\\'s'.title()", "'hELLO'.capitalize()", "s.swapcase()", "'ΑΣ ΑΣΑ Σ'.lower()", "'ﬁne ß'.upper()", "'ǆ ß'.title()", "s.find('o')", "s.find('zz')", "s.find('o', 5)", "s.rfind('o')", "s.find('o', 5, 7)", "s.index('zz')", "s.index('W')", "u.find('日')", "u.rfind('ñ')", "s.count('l')", "s.count('')", "s.count('l', 4)", "'-'.join(ls)", "'-'.join('abc')", "'-'.join(l)", "','.join(d)", "'-'.join([])",
    "s.removeprefix('He')", "s.removesuffix('ld')", "s.removeprefix('x')", "'12'.isdigit()", "'1a'.isdigit()", "''.isdigit()", "'²'.isdigit()", "'ab'.isalpha()", "'añ'.isalpha()", "'a1'.isalnum()", "' '.isspace()", "''.isspace()", "'AB'.isupper()", "'A1'.isupper()", "'1'.isupper()", "'ab'.islower()", "'½'.isnumeric()", "'5'.isdecimal()", "'a'.isascii()", "'é'.isascii()", "'7'.zfill(3)", "'-7'.zfill(4)", "'a'.ljust(3) ~ '|'", "'a'.rjust(3, '.')", "'ab'.center(5, '*')", "'abc'.center(6, '*')", "'a-b-c'.partition('-')", "'a-b-c'.rpartition('-')", "'abc'.partition('-')", "'abc'.rpartition('-')", "s.nope()", "s.nope is defined",
    "'{} {}'.format(1, 'a')", "'{0} {1} {0}'.format('a', 'b')", "'{a}-{b}'.format(a=1, b=none)", "'{{}}'.format()", "'{:5}|{:<5}|{:>5}|{:^5}'.format('a', 'b', 'c', 'd')", "'{:05d} {:,} {:x} {:X} {:b} {:o} {:#x}'.format(42, 1234567, 255, 255, 5, 8, 255)", "'{:.2f} {:10.3f} {:e} {:%} {:g}'.format(3.14159, 2.5, 12345.678, 0.25, 0.0001)", "'{!r} {!s}'.format('a', 'b')", "'{a.b} {c[0]} {c[x]}'.format(a={'b': 1}, c={'x': 2})", "'{c[x]}'.format(c={'x': 2})", "'{}'.format()", "'{'.format()", "'{:*^9}'.format('mid')", "'{:+d} {: d}'.format(5, 5)", "'{:5}|{:<5}|'.format(42, 42)", "'{:5}|'.format(2.5)", "'{:s}'.format(1)", "'{}{0}'.format(1)", "'{:.3}'.format('abcdef')", "'{:.3}'.format(3.14159)", "'{}'.format([1, 'a'])", "'{:d}'.format(true)", "'{}'.format(true)",
    "'%s-%d-%5.2f|%-5s|%5s|%x|%%' % ('a', 3, 2.345, 'l', 'r', 255)", "'%s' % 'a'", "'%s %s' % ('a',)", "'%s' % ('a', 'b')", "'%(k)s' % {'k': 'v'}", "'%d' % 'a'", "'%05d' % 42", "'%r' % 'a'", "'%s' % none", "'%s' % [1]", "'%c%c' % ('a', 98)", "'%d' % 3.7", "'%.3s' % 'abcdef'", "'%e' % 12345.6789", "'%g' % 0.00001", "'%+d' % 5", "'%5s|' % u[:3]", "'%i' % true", "'abc' % []", "'abc' % 1", "'%s %s' | format('a', 1)", "'%(a)s' | format(a=1)",
    # filters
    "s|upper", "s|lower", "s|length", "u|length", "l|count", "5|length", "nil|length", "undefined_name|length", "d|length", "ws|trim|tojson", "'xax'|trim('x')", "5|trim", "nil|trim", "s|capitalize", "'foo bar-baz (qux)'|title", "u|title", "s|replace('l', 'L')", "s|replace('l', 'L', 1)", "5|replace(5, 6)", "s|reverse", "l|reverse|list", "l|first", "l|last", "el|first", "el|last", "el|first is undefined", "s|first", "s|last", "d|first", "d|last", "undefined_name|first", "undefined_name|last", "l|map('string')|last",
    "l|join", "l|join(', ')", "mix|join('|')", "msgs|join(',', attribute='role')", "d|join('-')", "s|join('.')", "undefined_name|join(',')", "l|join(d=';')", "nil|join", "undefined_name|default('x')", "nil|default('x')", "nil|default('x', true)", "e|d('y', boolean=true)", "d.zz|default(none)", "undefined_name|default", "undefined_name.x|default('y')", "z|default(5, true)",
    "l|sort", "l|sort(reverse=true)", "ls|sort", "ls|sort(case_sensitive=true)", "mix|sort", "msgs[1:]|sort(attribute='n')|map(attribute='role')|list", "msgs|sort(attribute='role,content')|map(attribute='role')|join(' ')", "d|dictsort", "d|dictsort(true)", "{'x': 2, 'y': 1}|dictsort(by='value')", "{'x': 2, 'y': 1}|dictsort(false, 'value', true)", "{'x': 2}|dictsort(by='z')", "d|items|list", "undefined_name|items|list", "l|items|list", "s|list", "d|list", "5|list", "d|items|first", "l|sum", "floats[:2]|sum", "msgs[1:]|sum(attribute='n')", "l|sum(start=10)", "ls|sum", "l|min", "l|max", "ls|min", "ls|max", "el|max", "msgs[1:]|max(attribute='n')", "[1, 'a']|max",
    "l|map('string')|list", "l|map('string')|join('+')", "ls|map('upper')|list", "msgs|map(attribute='content')|list", "msgs|map(attribute='n')|list", "msgs|map(attribute='n', default=0)|list", "ls|map('replace', 'a', 'z')|list", "l|map('nofilter')|list", "l|map|list", "l|map('string')|length", "(l|map('string'))[0]", "(l|map('string'))[0] is undefined", "l|select|list", "[0, 1, '', 'a', none]|select|list", "[0, 1, '', 'a']|reject|list", "l|select('odd')|list", "l|reject('odd')|list", "l|select('gt', 1)|list", "l|select('>', 1)|list", "l|select('nope')|list", "l|select('in', [1, 2])|list", "msgs|selectattr('role', 'equalto', 'user')|list", "msgs|selectattr('role', 'eq', 'user')|map(attribute='content')|first", "msgs|selectattr('n')|list|length", "msgs|selectattr('n', 'defined')|list|length", "msgs|rejectattr('n', 'defined')|list|length", "msgs|rejectattr('role', 'in', ['user', 'system'])|list", "msgs|selectattr('content', 'none')|list|length", "(msgs|selectattr('role', 'eq', 'nobody')) is true", "'yes' if msgs|selectattr('role', 'eq', 'nobody') else 'no'", "msgs|selectattr('role', 'eq', 'nobody')|first|default('none')", "msgs|selectattr|list", "nest|map(attribute='x')|list", "[nest]|map(attribute='a.b.c.2.d')|list",
    "ls|unique|list", "[1, 1.0, true, 2]|unique|list", "ls|unique(case_sensitive=true)|list", "msgs|unique(attribute='role')|list|length", "l|batch(2)|list", "l|batch(2, 'x')|list", "range(7)|slice(3)|list", "range(7)|slice(3, 'x')|list", "msgs|groupby('role')", "[{'k': 'B', 'v': 1}, {'k': 'a', 'v': 2}, {'k': 'b', 'v': 3}]|groupby('k')|list", "multi|indent", "multi|indent(2)", "multi|indent(2, true)", "multi|indent(2, blank=true)", "multi|indent('> ', first=true)", "e|indent", "'a\\n'|indent(2)|tojson", "5|indent", "multi|indent(width=1)",
    "num_s|int", "fl_s|int", "bad_s|int", "bad_s|int(5)", "hex|int(base=16)", "hex|int(0, 0)", "2.9|int", "-2.9|int", "nil|int", "true|int", "undefined_name|int", "l|int(default=3)", "'1_000'|int", "'1e3'|int", "''|int", "'  -5 '|int", "'+5'|int", "'inf'|int", "'0b11'|int(base=2)", "'zz'|int(base=36)", "fl_s|float", "bad_s|float", "bad_s|float(1.5)", "5|float", "nil|float", "'inf'|float", "'nan'|float", "' 1e3 '|float", "undefined_name|float", "'1_0.5'|float", "2.5|round", "3.5|round", "-2.5|round", "2.675|round(2)", "1234.5|round(-2)", "5|round", "15|round(-1)", "25|round(-1)", "2.1|round(0, 'ceil')", "2.9|round(0, 'floor')", "2.123|round(2, 'ceil')", "5|round(1, 'floor')", "2.5|round|int", "'a'|round", "2.5|round(method='x')", "1e300|round(2)", "0.5|round", "1.5|round(0)|string", "-5|abs", "-2.5|abs", "'a'|abs", "5|string ~ 'x'", "nil|string", "l|string", "1.0|string", "u|wordcount", "s|wordcount", "'a-b c_d'|wordcount", "html|e", "html|escape|string", "html|safe", "(html|e) + '<'", "'<' + (html|e)", "(html|e) ~ '<'", "('<'|safe) + '<'", "html|forceescape", "[html|e]", "(html|e) is escaped", "html is escaped", "'x'|center(5) ~ '|'", "d|attr('b')", "d|attr('items') is defined", "l|first|abs", "s|nosuchfilter",
    # tojson
    "d|tojson", "mix|tojson", "json_s|tojson", "q|tojson", "html|tojson", "u|tojson", "u|tojson(ensure_ascii=true)", "d|tojson(indent=2)", "mix|tojson(indent=4)", "ed|tojson(indent=2)", "el|tojson(indent=2)", "[[], {}, [[]]]|tojson(indent=1)", "d|tojson(separators=(',', ':'))", "d|tojson(indent=2, separators=(',', ': '))", "d|tojson(sort_keys=true)", "nest|tojson(indent='\\t')", "d|tojson(indent=0)", "floats|tojson", "('nan'|float)|tojson", "('inf'|float)|tojson", "nil|tojson", "true|tojson", "undefined_name|tojson", "(1, 2)|tojson", "{1: 2, none: 3, true: 4, 1.5: 5}|tojson", "{(1, 2): 3}|tojson", "range(3)|tojson", "d.items()|list|tojson", "d.items()|tojson", "'a'|safe|tojson", "d|tojson|safe", "d|tojson(nope=1)", "{'b': 1, 'a': {'d': 1, 'c': 2}}|tojson(sort_keys=true, indent=1)", "big|tojson", "'\u2028'|tojson", "d|tojson(true)", "s|tojson ~ 'x'", "d|tojson(none, 2)", "msgs|tojson", "mix|tojson|length",
    # tests
    "undefined_name is defined", "s is defined", "d.zz is defined", "nil is defined", "nil is none", "undefined_name is none", "undefined_name is undefined", "s is string", "n is string", "n is number", "f is number", "t is number", "n is integer", "t is integer", "f is float", "n is float", "t is boolean", "n is boolean", "d is mapping", "l is mapping", "d is sequence", "l is sequence", "s is sequence", "n is sequence", "d.keys() is sequence", "l is iterable", "s is iterable", "n is iterable", "d is iterable", "nil is iterable", "undefined_name is iterable", "undefined_name is sequence", "undefined_name is mapping", "(l|map('string')) is iterable", "(l|map('string')) is sequence", "range(3) is sequence", "t is true", "n is true", "1 is true", "no is false", "z is false", "1 is eq 1", "1 is eq(1)", "1 is equalto 2", "1 is ne 2", "1 is lt 2", "1 is le 1", "3 is gt 2", "3 is ge 4", "3 is greaterthan 2", "3 is lessthan 2", "1 is in [1, 2]", "5 is not in l", "10 is divisibleby 5", "10 is divisibleby(3)", "3 is odd", "4 is even", "3.0 is odd", "'abc' is lower", "'ABC' is upper", "range is callable", "s is callable", "s.upper is callable", "undefined_name is callable", "nil is sameas none", "1 is sameas 1", "l is sameas l", "l is sameas [3, 1, 2]", "1 is sameas true", "n is not none", "s is not string", "not s is string", "s is string and n is number", "s is string == true", "n is divisibleby 7 and true", "'upper' is filter", "'nope' is filter", "'odd' is test", "s is nosuchtest", "'a' is odd", "1 is divisibleby 0", "n is string or s is string", "n == 7 is true", "x is defined and x.y", "1 is number if true else 2",
    # functions
    "range(3)|list", "range(1, 3)|list", "range(5, 0, -2)|list", "range(0)", "range(3)", "range(1, 10, 2)", "range(3)[1]", "range(3)[-1]", "range(3)[5]", "3 in range(5)", "range(3)|length", "range(0, 5, 0)", "range(100000)|length", "range(100001)|length", "range('a')", "range()", "range(2.5)", "dict(a=1, b='x')", "dict({'a': 1}, b=2)", "dict([('a', 1), ('b', 2)])", "dict([1])", "dict()", "namespace(a=1).a", "namespace({'a': 1}, b=2).b", "namespace(a=1)['a']", "namespace(a=1).b", "namespace(a=1) is mapping", "namespace(a=1)|length", "namespace(_a=1)", "strftime_now('%d %b %Y')", "strftime_now('%Y-%m-%d %H:%M:%S %A %B %j %%')", "strftime_now('')|length", "raise_exception('No: ' ~ s)", "raise_exception(5)", "raise_exception('tab\\there')", "raise_exception()", "raise_exception('a') if no else 'fine'", "cycler('a', 'b').next()", "joiner('x')()", "nosuchfunc(1)", "range(*[1, 4])|list", "dict(**{'a': 1})", "dict(**{'a': 1}, b=2)", "dict(b=2, **{'a': 1})", "'{} {}'.format(*[1, 2])", "l.count(*[3])", "loop is defined", "range(3) == range(0, 3)", "range(3) == [0, 1, 2]",
)

RAW_FEATURES = [
    # white space control
    "a\n{% if true %}\nb\n{% endif %}\nc\n", "a\n  {% if true %}\n  b\n  {% endif %}\nc", "a\n  {%- if true -%}\n  b\n  {%- endif -%}\nc", "a {%+ if true %}b{% endif %}", "\n  {%+ if true %}\n b{% endif %}", "a  {{- ' x ' -}}  b", "a\n{{ 'x' }}\nb", "a\n\n{# c #}\n\nb", "  {# c #}x", "x  {# c #}\n  y", "a {#- c -#} b", "a\n{#+ c +#}\nb", "{% if true -%}\n\n  x{% endif %}", "{% if true +%}\nx{% endif %}", "x\n", "x\n\n", "x\r\ny\rz\r\n", "\n\nx", "{% raw %}{{ x }} {% if %}{% endraw %}", "a\n  {% raw %}\n {{x}} \n  {% endraw %}\nb", "a {%- raw -%} {{x}} {%- endraw -%} b", "{% raw %}\n{# #}{% endraw %}\ny", "{{ '{{' }} {{ '%}' }}", "{{ {'a': {'b': 1}} }}", "{{ {'a': {'b': 1}}['a']['b'] }}", "{{'x'}}{{-'y'}}", "{{ -1 }}", "{{- 1 }}", "{{+1}}", "{", "{ {", "{%", "{{", "{% raw %}x", "}} %} #}", "{{ 1 }", "a{# x", "   {% if true %}x{% endif %}   {% if true %}\ny{% endif %}", "\t{% set x = 1 %}\t\n{{ x }}", "a\u00a0 {%- if true %}b{% endif %}", "é {{ '日' }}\n{% if 1 %}ü{% endif %}", "{% if true %}{% endif %}\n{% if true %}\n{% endif %}\n", "{%- if true -%} x {%- else -%} y {%- endif -%}", "{{ \n 1 \n }}", "{% set x\n = 1\n %}{{ x }}", "{#{{x}}#}", "{##}", "{#-#}x", "{#--#}x", "line\n    {%- set x = 1 %}\n    {{- x }}\n",
    # if
    "{% if z %}a{% elif n %}b{% else %}c{% endif %}", "{% if z %}a{% elif no %}b{% else %}c{% endif %}", "{% if z %}a{% elif no %}b{% endif %}", "{% if undefined_name %}a{% else %}b{% endif %}", "{% if nil %}a{% elif e %}b{% elif el %}c{% elif ed %}d{% elif 0.0 %}e{% else %}f{% endif %}", "{% if x is defined and x %}a{% endif %}", "{% if s: %}a{% endif %}", "{% if %}a{% endif %}", "{% if s %}a", "{% endif %}", "{% if s %}a{% endfor %}", "{% if s %}{% nosuchtag %}{% endif %}", "{% if no %}{{ 1|nosuchfilter }}{% endif %}ok", "{% if t %}{{ 1|nosuchfilter }}{% endif %}", "{{ (1|nosuch) if no else 'ok' }}", "{% if no %}{{ 1 is nosuch }}{% endif %}ok", "{% if (s, n) %}a{% endif %}",
    # for
    "{% for x in l %}{{ x }},{% endfor %}", "{% for x in el %}a{% else %}none{% endfor %}", "{% for x in l %}{{ x }}{% else %}none{% endfor %}", "{% for x in undefined_name %}a{% else %}none{% endfor %}", "{% for x in nil %}a{% endfor %}", "{% for x in 5 %}a{% endfor %}", "{% for c in u %}[{{ c }}]{% endfor %}", "{% for k in d %}{{ k }}{% endfor %}", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k, v in d|dictsort %}{{ k }}={{ v }};{% endfor %}", "{% for k, v in d|items %}{{ k }};{% endfor %}", "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "{% for a, b in [(1, 2, 3)] %}{% endfor %}", "{% for a, b in [(1,)] %}{% endfor %}", "{% for a, b in ['xy'] %}{{ b }}{{ a }}{% endfor %}", "{% for a, b in [1] %}{% endfor %}", "{% for x in 1, 2, 3 %}{{ x }}{% endfor %}", "{% for x in (1, 2) + (3,) %}{{ x }}{% endfor %}", "{% for x in l if x > 1 %}{{ loop.index }}/{{ loop.length }}:{{ x }} {% endfor %}", "{% for x in l if x > 5 %}a{% else %}none{% endfor %}", "{% for x in l if not loop %}{{ x }}{% endfor %}", "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }} {% endfor %}", "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}", "{% for x in l %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }} {% endfor %}", "{% for x in l %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for x in [1, 1, 2, 2, 1] %}{{ loop.changed(x) }} {% endfor %}", "{% for x in l|map('string') %}{{ loop.length }}{{ loop.last }}{{ x }} {% endfor %}", "{% for x in l %}{% for y in ls %}{{ loop.index }}{% endfor %}{{ loop.index }} {% endfor %}", "{% for x in l %}{% set outer = loop %}{% for y in ls %}{{ outer.index }}{{ loop.index }} {% endfor %}{% endfor %}", "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}", "{% for x in [1] %}{% break %}{% else %}E{% endfor %}", "{% for x in [1] %}{% continue %}{% else %}E{% endfor %}", "{% for x in [1, 2] %}{% if x == 2 %}{% break %}{% endif %}{% else %}E{% endfor %}", "{% break %}", "{% for x in l %}{{ loop.nosuch }}{% endfor %}", "{% for x in l %}{{ loop['index'] }}{% endfor %}", "{% for x in l %}a", "{% for x l %}{% endfor %}", "{% for 1 in l %}{% endfor %}", "{% for m in msgs %}{{ m.role }}:{{ m['content'] }}{% if not loop.last %}|{% endif %}{% endfor %}", "{% for m in msgs[1:] %}{{ m.role }}{% endfor %}", "{% for m in msgs[::-1] %}{{ m.role }}{% endfor %}", "{% for m in msgs|reverse %}{{ m.role }}{% endfor %}", "{% for x in range(3) %}{{ x }}{% endfor %}", "{% for x in l|sort %}{{ loop.revindex }}{% endfor %}", "{% set g = l|map('string') %}{% for x in g %}{{ x }}{% endfor %}{% for x in g %}{{ x }}{% endfor %}", "{% set g = l|select %}{{ g|first }}{{ g|list }}", "{% for x in l %}{{ loop.length if loop.first }}{% endfor %}",
    "{% set ns = namespace(stop=false) %}{% for x in [1, 2, 3] if not ns.stop %}{{ x }}{% set ns.stop = true %}{% endfor %}", "{% set ns = namespace(stop=false) %}{% for x in [1, 2, 3] if not ns.stop %}{{ x }}{{ loop.last }}{% set ns.stop = true %}{% endfor %}", "{% for i in l %}{{ i }}{% endfor %}{{ i }}", "{% for x in l %}{% set s = x %}{% endfor %}{{ s }}", "{% for x in [1, 2] %}{% if x == 1 %}{% set q2 = 'set' %}{% endif %}{{ q2 }}|{% endfor %}", "{% set a = 0 %}{% for x in l %}{% set a = a + x %}{{ a }},{% endfor %}{{ a }}", "{% for loop in l %}{% endfor %}", "{% for x in l %}{{ loop }}{% endfor %}", "{% for x in [[1, 2], [3]] %}{% for y in x %}{{ y }}{% if loop.last %}.{% endif %}{% endfor %}{% endfor %}",
    # set
    "{% set x = 5 %}{{ x }}", "{% set x, y = 1, 2 %}{{ x }}{{ y }}", "{% set x, y = y, x %}", "{% set (x, y) = (1, 2) %}{{ y }}", "{% set x = 1, %}{{ x }}", "{% set x %}a{{ n }}b{% endset %}{{ x }}|{{ x is string }}", "{% set x | upper %}abc{% endset %}{{ x }}", "{% set x | replace('a', 'b') | upper %}aba{% endset %}{{ x }}", "{% set ns = namespace() %}{% set ns.x = 3 %}{{ ns.x }}", "{% set ns = namespace(x=1) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}", "{% set ns = namespace() %}{% set ns.x %}blk{% endset %}{{ ns.x }}", "{% set d.x = 1 %}", "{% set nope.x = 1 %}", "{% set ns = namespace() %}{% set ns._x = 1 %}", "{% set ns = namespace() %}{% set ns.a, ns.b = 1, 2 %}{{ ns.b }}", "{% set x = [1] %}{% set x = x + [2] %}{{ x }}", "{% set 5 = x %}", "{% set x %}", "{% set x = %}", "{% set true = 1 %}", "{% if true %}{% set y = 1 %}{% endif %}{{ y }}", "{% if no %}{% set s = 1 %}{% endif %}{{ s }}", "{% set x %}{% set inner = 1 %}{% endset %}{{ inner }}", "{% set ns = namespace(a=1, b='x') %}{{ ns }}", "{% set ns = namespace(l=[]) %}{% for x in l %}{% set ns.l = ns.l + [x * 2] %}{% endfor %}{{ ns.l }}", "{% set range = 5 %}{{ range }}",
    # macros
    "{% macro m() %}hi{% endmacro %}{{ m() }}", "{% macro m(a, b=2) %}{{ a }}-{{ b }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(b=4, a=5) }} {{ m() }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(c=2) }}", "{% macro m(a) %}{{ a.x }}{% endmacro %}{{ m() }}", "{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(3) }}", "{% macro m(a=1, b) %}{% endmacro %}", "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}", "{% macro m(n) %}{% if n > 0 %}{{ n }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(5) }}", "{% macro m() %}{{ x }}{% endmacro %}{% set x = 1 %}{{ m() }}{% set x = 2 %}{{ m() }}", "{% macro m() %}{% set y = 1 %}{% endmacro %}{{ m() }}{{ y }}", "{% macro m() %}{{ s }}{% endmacro %}{% for s in l %}{{ m() }}{% endfor %}", "{% for x in l %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% endfor %}", "{% macro m() %} a {% endmacro %}[{{ m() }}][{{ m()|trim }}]{{ m()|length }}", "{% macro m() %}{{ caller() }}!{% endmacro %}{% call m() %}body{% endcall %}", "{% macro m() %}{{ caller(1, 2) }}{% endmacro %}{% call(a, b=5) m() %}{{ a }}{{ b }}{% endcall %}", "{% macro m() %}x{% endmacro %}{% call m() %}b{% endcall %}", "{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}", "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}", "{% macro a() %}A{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}", "{{ m() }}{% macro m() %}late{% endmacro %}", "{% macro m(x) %}{{ x }}{% endmacro %}{{ m }}", "{% macro m(x) %}{% endmacro %}{{ m.name }}", "{% macro m() %}{% for i in l %}{{ i }}{{ loop.last }}{% endfor %}{% endmacro %}{{ m() }}", "{% for x in l %}{% macro m() %}{{ loop is defined }}{% endmacro %}{{ m() }}{% endfor %}", "{% macro m() %}{{ loop is defined }}{% endmacro %}{% for x in l %}{{ m() }}{% endfor %}", "{% macro r() %}{{ r() }}{% endmacro %}{{ r() }}", "{% macro m(a, a2='d', **k) %}{% endmacro %}", "{% macro m(x) %}{{ x|tojson }}{% endmacro %}{{ ls|map('upper')|list }}{{ m(d) }}", "{% macro m() -%}\n  x\n{%- endmacro %}{{ m() }}", "{% macro m(x, y) %}{{ x }}{{ y }}{% endmacro %}{{ m(*[1, 2]) }}{{ m(**{'x': 3, 'y': 4}) }}", "{% macro m(caller) %}{% endmacro %}{{ m(caller=1) }}", "{% macro q(x) %}{% set ns = namespace(t='') %}{% for c in x %}{% set ns.t = c ~ ns.t %}{% endfor %}{{ ns.t }}{% endmacro %}{{ q('abc') }}{{ q(q('abc')) }}",
    # other blocks
    "{% filter upper %}a{{ s }}{% endfilter %}", "{% filter replace('a', 'b')|upper %}aa{% endfilter %}", "{% filter indent(2) %}x\ny{% endfilter %}", "{% generation %}x{{ s }}{% endgeneration %}", "{% for m in msgs %}{% generation %}{% set y = m.role %}{{ y }}{{ loop.index }}{% endgeneration %}{{ y }}{% endfor %}", "{% generation %}{{ caller is defined }}{% endgeneration %}", "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% with %}{% set z9 = 1 %}{{ z9 }}{% endwith %}{{ z9 }}", "{% print s %}", "{% do l.append(1) %}", "{% include 'x' %}", "{% generation %}a", "{%- generation -%} x {%- endgeneration -%}",
    # syntax errors
    "{{ }}", "{{ 1 + }}", "{{ (1 }}", "{{ [1, }}", "{{ {1} }}", "{{ a b }}", "{{ 'abc }}", "{{ 1 | }}", "{{ s is }}", "{{ s. }}", "{{ s[ }}", "{{ f(a=1, 2) }}", "{{ f(**a, *b) }}", "{{ ] }}", "{{ $ }}", "{{ a is b is c }}", "{% if a = b %}{% endif %}", "{{ a = b }}", "{{ a ? b : c }}", "{{ a && b }}", "{{ !a }}", "{{ a; b }}", "{% macro %}{% endmacro %}", "{% macro m %}{% endmacro %}", "{% call %}{% endcall %}", "{% call s %}{% endcall %}", "{% filter %}{% endfilter %}", "{% for %}{% endfor %}", "{% set %}", "{% %}", "{{ 'a' if }}", "{{ not }}", "{{ 1 if 2 else }}", "{{ a.1b }}", "{{ 1.e5 }}", "{{ .5 }}", "{{ '\\N{DASH}' }}", "{{ '\\ud800' }}",
    # long ones
    "{% set ns = namespace(t='') %}{% for i in range(300) %}{% set ns.t = ns.t ~ i ~ ',' %}{% endfor %}{{ ns.t|length }}{{ ns.t[-12:] }}", "{% set ns = namespace(t='') %}{% for i in range(200) %}{% set old = ns.t %}{% set ns.t = ns.t + 'xy' %}{% set other = old + 'zz' %}{% endfor %}{{ ns.t|length }}{{ other[-3:] }}{{ ns.t[-3:] }}", "{{ ([[1] * 3] * 3)|tojson }}", "{{ ('ab' * 2000)|length }}", "{% for i in range(50) %}{{ i if i % 7 == 0 }}{% endfor %}", "{{ '<|im_start|>' + msgs[0].role + '\\n' + msgs[0].content + '<|im_end|>' }}", "{{ {'a': 1, 'b': 2, 'c': 3, 'd': 4, 'e': 5, 'f': 6, 'g': 7, 'h': 8, 'i': 9, 'j': 10, 'a': 11}['a'] }}",
]

CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
          "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")

# The default system turn of SmolLM2, see the specification of its template.
SMOLLM2 = ("{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
           "{{ '<|im_start|>system\\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\\n' }}{% endif %}"
           "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
           "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")

LLAMA2_LIKE = """{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate: user, assistant, user ...') }}{% endif %}{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"""

LLAMA3_LIKE = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now("%d %b %Y") %}
{%- endif %}
{%- if messages and messages[0].role == 'system' %}
    {%- set system = messages[0].content | trim %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set system = '' %}
    {%- set rest = messages %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- "Today: " + date_string + "\\n\\n" + system + "<|eot_id|>" }}
{%- for message in rest %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable and message.content is not string %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

GEMMA3_LIKE = """{{ bos_token }}
{%- if messages and messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- else -%}
        {%- set prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}
    {%- endif -%}
    {%- set rest = messages[1:] -%}
{%- else -%}
    {%- set prefix = "" -%}
    {%- set rest = messages -%}
{%- endif -%}
{%- for message in rest -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\\n' + (prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\\n'}}
{%- endif -%}
"""

MISTRAL_LIKE = """{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{% generation %}{{ message['content'] + eos_token}}{% endgeneration %}{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"""

OWN_TEMPLATES = {"chatml": CHATML, "smollm2": SMOLLM2, "llama2-like": LLAMA2_LIKE, "llama3-like": LLAMA3_LIKE,
                 "gemma3-like": GEMMA3_LIKE, "mistral-like": MISTRAL_LIKE}
