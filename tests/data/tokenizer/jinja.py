"""Expected renderings of small templates by Jinja2, set up as transformers does for chat templates.

usage: python jinja.py > jinja.json     (needs jinja2; made with 3.1.6 on Python 3.11)
"""
import json
import sys

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


env.filters["tojson"] = tojson
env.globals["raise_exception"] = raise_exception

# One context for all; s* strings, n* numbers, l* lists, d* mappings.
CONTEXT = {
    "s": "Hello, World",
    "s_pad": "  \t pad me \n ",
    "s_lines": "one\ntwo\r\nthree\n",
    "s_quote": "it's \"q\" \\ \n\t\r\x00\x1f\x7f\u00e9\u00a0\u2028\u4f60\U0001f433",
    "s_html": "<a href='x'>&amp;</a>",
    "s_uni": "\u00dcber stra\u00dfe \u0130i \u01c4 \u4f60\u597d \U0001f433",
    "s_empty": "",
    "s_words": "the quick  brown\tfox",
    "n": 42,
    "n_neg": -7,
    "n_zero": 0,
    "n_big": 12345678901234567890,
    "f": 2.5,
    "f_one": 1.0,
    "f_tenth": 0.1,
    "f_big": 1e20,
    "f_16": 1e16,
    "f_15": 123456789012345.0,
    "f_small": 1e-7,
    "f_4": 0.0001,
    "f_neg": -0.0,
    "f_third": 0.3333333333333333,
    "t": True,
    "no": False,
    "none": None,
    "l": [3, 1, 2],
    "l_empty": [],
    "l_str": ["b", "a", "C"],
    "l_mix": [1, 2.5, "x", None, True, [1, "y"], {"k": "v"}],
    "l_dup": [1, 2, 2, 3, 1],
    "d": {"b": 1, "a": {"x": [1, 2], "y": None}, "c": "s"},
    "d_empty": {},
    "d_keys": {"items": 1, "keys": 2, "x y": 3},
    "d_num": {"1": "one"},
    "users": [
        {"name": "ann", "age": 30, "active": True, "tags": ["x"]},
        {"name": "bob", "age": 25, "active": False, "tags": []},
        {"name": "cid", "age": 30, "active": True},
    ],
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1, "b": "x"}}}]},
        {"role": "tool", "content": [{"type": "text", "text": "42"}]},
    ],
}

T = {}
T["whitespace"] = [
    "a\n", "a\n\n", "\na", "a\n{% if t %}\nb\n{% endif %}\nc\n", "  {% if t %}  \n  x\n  {% endif %}  \ny", "a  {% if t %}b{% endif %}  c",
    "a\n  {%- if t %}\n  b\n  {%- endif %}\n c", "a {{- ' x ' -}} b", "a\n {{ s }} \n b", "{% if t -%}\n  x  \n{%- endif %}y",
    "  {%+ if t %}x{% endif %}", "{% if t +%}\nx{% endif %}", "a {# c #} b", "a\n  {# c #}\n  b", "a\n{#- c -#}\nb", "{% raw %}{{ x }}\n{% endraw %}\nz",
    "{%- raw -%}\n {{ x }} {%- endraw -%} z", "{% for i in l %}\n{{ i }}\n{% endfor %}\nend", "{%- for i in l -%}\n  {{ i }},\n{%- endfor -%}",
    "{% set x = 1 %}\n{{ x }}\n", "\t{% if t %}\n\tx\n\t{% endif %}\n", "x{% if t %}\n\n\ny{% endif %}", "a\r\n{% if t %}\r\nb\r\n{% endif %}\r\nc\r\n",
    "{{ '\n' }}x", "{{ 'a\\nb' }}", "{{ \"a\\tb\\\\c\\'d\\\"e\" }}", "{{ '\\u00e9\\x41' }}", " {{ s }}\n", "{{ s }}\n\n", "{% if no %}a\n{% else %}\nb\n{% endif %}\n",
    "a{% if t %}\n  b{% endif %}  \n  {% if t %}c{% endif %}\n", "   {% set a = 1 %}   {{ a }}", "{# a\nb\n#}\nc", "x {%- if t -%} y {%- endif -%} z",
    "{% if t %} {% if t %} a {% endif %} {% endif %}", "{{ s }}{# x #}\n{{ n }}", "\n\n{% if t %}\n\nx\n\n{% endif %}\n\n",
]
T["print"] = [
    "{{ t }} {{ no }} {{ none }}", "{{ f }} {{ f_one }} {{ f_tenth }} {{ f_big }} {{ f_16 }} {{ f_15 }} {{ f_small }} {{ f_4 }} {{ f_neg }} {{ f_third }}",
    "{{ n }} {{ n_neg }} {{ n_big }}", "{{ l }}", "{{ l_empty }} {{ d_empty }}", "{{ l_mix }}", "{{ d }}", "{{ d_keys }}", "{{ users[0] }}", "{{ [s_quote] }}", "{{ s_quote }}",
    "{{ [s_uni, s_html] }}", "{{ missing }}|{{ d.missing }}|{{ d['missing'] }}", "{{ [\"it's\", 'say \"x\"', 'both \\' and \"'] }}", "{{ {'a': 1, 'b': [True, None]} }}",
    "{{ [1.0, 1e20, 0.1, -0.0, 1e-7, 1e16] }}", "{{ (1, 2) }} {{ (1,) }} {{ () }}", "{{ 1e3 }} {{ 1.5e-5 }} {{ 10.0 }} {{ 1e22 }}", "{{ 7 // 2 }} {{ 7 / 2 }} {{ 6 / 2 }} {{ 7 % 3 }} {{ 2 ** 10 }} {{ -7 // 2 }} {{ -7 % 3 }}",
    "{{ 1 + 1.5 }} {{ 2 * 3.0 }} {{ 0.1 + 0.2 }} {{ 1 - 5 }} {{ 2 ** 0.5 }} {{ 2 ** -1 }}", "{{ 1_000 }} {{ 0x1F }} {{ 0b101 }} {{ 0o17 }}", "{{ s_html }}", "{{ l_mix[5] }} {{ l_mix[6] }}", "{{ not t }} {{ t and n }} {{ no or s }} {{ none or 'x' }} {{ n_zero or l_empty or 'e' }}",
    "{{ 'a' 'b' }}", "{{ 1 ~ 2.0 ~ true ~ none ~ 'x' ~ [1, 'a'] }}", "{{ 'x' * 3 }} {{ [1, 2] * 2 }}", "{{ [1] + [2] }} {{ 'a' + 'b' }}", "{{ [] }} {{ {} }}", "{{ {'k': 'v'}.k }} {{ {'a': 1}['a'] }}",
    "{{ {1: 'a', 2.5: 'b', true: 'c', none: 'd'} }}", "{{ True }} {{ False }} {{ None }} {{ true }} {{ none }}", "{{ 5 if t }} {{ 5 if no }}|", "{{ 'y' if n > 3 else 'n' }}", "{{ 'a' if no else 'b' if no else 'c' }}",
    "{{ 1 < 2 < 3 }} {{ 3 > 2 > 2 }} {{ 1 == 1.0 }} {{ 'a' < 'b' }} {{ [1, 2] == [1, 2] }} {{ d == d }} {{ 1 != 2 }}", "{{ 123456789 * 987654321 }}", "{{ 9007199254740993 }} {{ 1e15 }} {{ 123456.789e3 }}", "{{ 100000000000000000000.0 }} {{ 5e-324 }} {{ 1.7976931348623157e308 }}",
]
T["access"] = [
    "{{ l[0] }} {{ l[-1] }} {{ l[1:] }} {{ l[:-1] }} {{ l[::-1] }} {{ l[::2] }} {{ l[5:] }} {{ l[-2:] }}", "{{ s[0] }} {{ s[-1] }} {{ s[1:4] }} {{ s[:-7] }} {{ s[::-1] }} {{ s[7:] }} {{ s[:3] ~ s[-3:] }}", "{{ s_uni[0] }} {{ s_uni[-1] }} {{ s_uni[::-1] }} {{ s_uni[-4:-1] }}",
    "{{ l[10] }}|{{ s[100] }}|{{ d['zz'] }}|", "{{ d.a.x[1] }} {{ d['a']['x'][0] }} {{ d.a['y'] }}", "{{ d_keys['items'] }}|{{ d_keys['x y'] }}", "{{ users[0].name }} {{ users[-1]['name'] }} {{ users[0].tags[0] }}",
    "{{ messages[1:][0].role }} {{ messages[-1].role }} {{ messages[:2] | length }}", "{{ messages[0].missing is defined }} {{ messages[0].content is defined }} {{ messages[2].content is none }}", "{{ 'a' in s }} {{ 'H' in s }} {{ 1 in l }} {{ 9 in l }} {{ 'b' in d }} {{ 'zz' not in d }} {{ '' in s }}",
    "{{ d.get('a').get('x') }} {{ d.get('zz') }} {{ d.get('zz', 5) }}", "{{ d.keys() | list }} {{ d.values() | list }} {{ d.items() | list }}", "{% for k in d %}{{ k }},{% endfor %}", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k, v in d.a.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in d | items %}{{ k }}={{ v }};{% endfor %}", "{% for k, v in d_empty.items() %}x{% else %}empty{% endfor %}", "{% for k, v in d | dictsort %}{{ k }}={{ v }};{% endfor %}", "{{ (l + [9])[-1] }} {{ [1, 2, 3][1] }} {{ 'abc'[1] }}", "{{ d | length }} {{ s | length }} {{ l | count }} {{ s_uni | length }}",
    "{{ [f_big, s_quote][0:] }} {{ [[f_big]][::-1] }}", "{% set x = l[1:] %}{{ x }} {{ l[:1] + l[2:] }}", "{{ l[none:2] }}", "{{ s.missing }}|{{ l.foo }}|{{ n.bar }}|", "{{ d['b':] if no else 'x' }}", "{{ [[1, 2], [3, 4]][1][0] }}", "{{ l[1:100] }} {{ l[100:] }} {{ l[-100:2] }} {{ l[2:0:-1] }}", "{{ d.values() | map('string') | join('|') }}",
]
T["loops"] = [
    "{% for i in l %}{{ loop.index }}/{{ loop.index0 }}/{{ loop.revindex }}/{{ loop.revindex0 }}/{{ loop.length }} {{ loop.first }} {{ loop.last }};{% endfor %}", "{% for i in l %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }} {% endfor %}", "{% for i in l %}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% for i in [1, 1, 2] %}{{ loop.changed(i) }} {% endfor %}", "{% for i in l_empty %}x{% else %}none{% endfor %}", "{% for i in l if i > 1 %}{{ loop.index }}:{{ i }} {% else %}no{% endfor %}", "{% for i in l if i > 9 %}{{ i }}{% else %}no{% endfor %}", "{% for a, b in [[1, 2], [3, 4]] %}{{ a + b }} {% endfor %}",
    "{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "{% for i in range(2) %}{% for j in range(2) %}{{ i }}{{ j }}{{ loop.last }} {% endfor %}{{ loop.index }}{% endfor %}", "{% for c in 'h\u00e9\U0001f433' %}[{{ c }}]{% endfor %}", "{{ range(3) | list }} {{ range(1, 4) | list }} {{ range(10, 0, -3) | list }}",
    "{% for i in l %}{% set x = i %}{% endfor %}{{ x }}|", "{% set x = 0 %}{% for i in l %}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}", "{% set ns = namespace(x=0) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}", "{% set ns = namespace(found=false, who='') %}{% for u in users %}{% if u.active and not ns.found %}{% set ns.found = true %}{% set ns.who = u.name %}{% endif %}{% endfor %}{{ ns.found }} {{ ns.who }}",
    "{% set ns = namespace() %}{% set ns.a = [1] %}{% set ns.a = ns.a + [2] %}{{ ns.a }}", "{% for m in messages %}{{ loop.index0 }}:{{ m.role }}{{ '' if loop.last else ',' }}{% endfor %}", "{% for m in messages %}{% if loop.first or messages[loop.index0 - 1].role != m.role %}{{ m.role }} {% endif %}{% endfor %}",
    "{% for x in l recursive %}{{ x }}{% endfor %}", "{% for u in users %}{% for t in u.tags %}{{ t }}{% else %}-{% endfor %}{% endfor %}", "{% for i in range(3) %}{{ loop.previtem is defined }} {{ loop.nextitem is defined }};{% endfor %}", "{% for m in messages | reverse %}{{ m.role }} {% endfor %}", "{% for m in messages[::-1] %}{{ m.role }} {% endfor %}", "{% for i in (1, 2) %}{{ i }}{% endfor %}",
    "{% for i in range(0) %}x{% else %}y{% endfor %}", "{% for k, v in {'a': 1, 'b': 2}.items() %}{{ loop.index }}{{ k }}{{ v }}{{ loop.last }} {% endfor %}", "{{ loop is defined }}", "{% for i in l %}{{ loop.depth }}{{ loop.depth0 }}{% endfor %}", "{% for i in range(4) if i is odd %}{{ i }}{% endfor %}", "{% for d2 in [{'a': 1}] %}{{ d2.a }}{{ d2 }}{% endfor %}",
    "{%- for n2 in node recursive -%}{{ n2.v }}{%- if n2.c -%}({{ loop(n2.c) }}){%- endif -%}{%- endfor -%}", "{%- for n2 in [{'v': 1, 'c': [{'v': 2}, {'v': 3}]}] recursive -%}{{ n2.v }}{%- if n2.c -%}({{ loop(n2.c) }}){%- endif -%}{%- endfor -%}",
]
T["macros"] = [
    "{% macro m(a, b=2) %}{{ a }}-{{ b }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(a=5) }} {{ m(1, b='x') }} {{ m() }}", "{% macro m() %}{{ caller() }}!{% endmacro %}{% call m() %}hi{% endcall %}", "{% macro m(l) %}{% for i in l %}{{ caller(i) }}{% endfor %}{% endmacro %}{% call(x) m(l) %}<{{ x }}>{% endcall %}",
    "{% macro outer(x) %}{% macro inner(y) %}[{{ y }}]{% endmacro %}{{ inner(x) }}{% endmacro %}{{ outer(1) }}", "{% macro m(x) -%}\n  {{ x }}\n{%- endmacro %}({{ m('a') }})", "{% macro rec(n) %}{{ n }}{% if n > 0 %}{{ rec(n - 1) }}{% endif %}{% endmacro %}{{ rec(3) }}", "{% macro m(x) %}{{ x }}{% endmacro %}{{ m('a') | upper }} {{ m('a') ~ 'b' }} {{ m('ab') | length }}",
    "{% macro m(x) %}  {{ x }}  {% endmacro %}{{ m('a') | trim }}{{ m('a').strip() }}", "{% macro m(a=none) %}{{ a is none }}{% endmacro %}{{ m() }}{{ m(1) }}", "{% set x = 5 %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}",
    "{% set x %}a{{ n }}b{% endset %}{{ x }}|{{ x | upper }}|{{ x | length }}", "{% set x | upper %}ab{% endset %}{{ x }}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a = 1 %}{% set a = a + 1 %}{{ a }}", "{% with x = 1, y = 2 %}{{ x }}{{ y }}{% endwith %}{{ x }}|", "{% if t %}{% set z = 1 %}{% endif %}{{ z }}", "{% filter upper %}abc{{ s }}{% endfilter %}", "{% macro m(c) %}{% if c is string %}{{ c }}{% else %}{% for i in c %}{% if i.type == 'text' %}{{ i.text }}{% endif %}{% endfor %}{% endif %}{% endmacro %}{% for x in messages %}{{ m(x.content or '') }}|{% endfor %}",
    "{% macro m(x) %}{% set y = x + 1 %}{{ y }}{% endmacro %}{{ m(1) }}{{ y }}|", "{{ dict(a=1, b='x') }} {{ dict(a=1).a }}", "{% set m = namespace(a=1) %}{% macro f() %}{{ m.a }}{% endmacro %}{{ f() }}", "{% macro m(x) %}{{ x }}{% endmacro %}{{ m(x=[1, 'a']) }}{{ m({'k': none}) }}",
]
T["tojson"] = [
    "{{ l_mix | tojson }}", "{{ d | tojson }}", "{{ s_quote | tojson }}", "{{ s_html | tojson }}", "{{ s_uni | tojson }}", "{{ s_uni | tojson(ensure_ascii=True) }}", "{{ s_quote | tojson(ensure_ascii=True) }}", "{{ s_uni | tojson(ensure_ascii=False) }}", "{{ d | tojson(indent=2) }}", "{{ d | tojson(indent=4) }}", "{{ l_mix | tojson(indent=1) }}", "{{ [] | tojson(indent=2) }}{{ {} | tojson(indent=2) }}",
    "{{ [[], {}, [[]]] | tojson(indent=2) }}", "{{ d | tojson(sort_keys=True) }}", "{{ d | tojson(separators=(',', ':')) }}", "{{ d | tojson(indent=2, separators=(',', ': ')) }}", "{{ t | tojson }} {{ none | tojson }} {{ n | tojson }} {{ f_one | tojson }} {{ f_big | tojson }} {{ f_small | tojson }} {{ f_neg | tojson }} {{ f_16 | tojson }} {{ n_big | tojson }}", "{{ '' | tojson }} {{ [] | tojson }} {{ {} | tojson }}",
    "{{ {'a': 'b'} | tojson }} {{ (1, 2) | tojson }}", "{{ [1.0, 2, 'a\"b'] | tojson }}", "{{ messages | tojson }}", "{{ messages[2].tool_calls[0].function.arguments | tojson(ensure_ascii=False) }}", "{{ d | tojson | length }}", "{{ (d | tojson)[0] }}", "{{ {1: 2, true: 3, none: 4, 1.5: 5} | tojson }}", "{{ d | tojson(true) }}", "{{ s_uni | tojson(True, 2) }}{{ l | tojson(False, 2) }}", "{{ d.items() | list | tojson }}", "{{ d | tojson(indent=0) }}",
    "{{ l | tojson(indent='--') }}", "{{ d | tojson(indent=none) }}", "{{ '\u2028\u2029\x7f/' | tojson }}", "{{ {'z': 1, 'a': {'y': 1, 'b': 2}} | tojson(sort_keys=true, indent=2) }}", "{{ tools | tojson if tools else 'no tools' }}", "{{ (s ~ '\n') | tojson }}", "{{ range(3) | list | tojson }}",
]
T["filters"] = [
    "{{ s_pad | trim }}|{{ 'xxaxx' | trim('x') }}|", "{{ s | upper }} {{ s | lower }} {{ 'hello world' | title }} {{ 'hELLO' | capitalize }}", "{{ s_uni | upper }} {{ s_uni | lower }} {{ s_uni | title }} {{ s_uni | capitalize }}", "{{ l | join }} {{ l | join(', ') }} {{ l_str | join('-') }} {{ users | join(', ', attribute='name') }} {{ l_mix | join('|') }}", "{{ users | map(attribute='name') | list }} {{ l_str | map('upper') | list }} {{ users | map(attribute='tags', default='-') | list }}",
    "{{ l | map('string') | join('') }} {{ [' a ', 'b '] | map('trim') | list }} {{ ['1', '2'] | map('int') | list }}", "{{ users | selectattr('active') | map(attribute='name') | join(',') }} {{ users | rejectattr('active') | map(attribute='name') | join(',') }}", "{{ users | selectattr('age', 'equalto', 30) | map(attribute='name') | list }} {{ users | selectattr('age', '==', 25) | map(attribute='name') | list }} {{ users | selectattr('age', 'gt', 26) | list | length }}", "{{ users | selectattr('tags', 'defined') | list | length }} {{ messages | selectattr('role', 'in', ['user', 'tool']) | list | length }}",
    "{{ messages | rejectattr('role', 'equalto', 'system') | map(attribute='role') | list }}", "{{ l | select('odd') | list }} {{ l | reject('odd') | list }} {{ l_mix | select('string') | list }} {{ [0, 1, '', 'a'] | select | list }}", "{{ missing | default('d') }} {{ none | default('d') }} {{ none | default('d', true) }} {{ '' | default('d', boolean=true) }} {{ n | d('x') }} {{ d.zz | default('d') }} {{ missing | default }}|", "{{ s | length }} {{ l_empty | length }}", "{{ s | replace('l', 'L') }} {{ s | replace('l', 'L', 1) }} {{ s | replace('zz', 'x') }}", "{{ l | first }} {{ l | last }} {{ s | first }} {{ s | last }} {{ l_empty | first }}|",
    "{{ l | sort }} {{ l | sort(reverse=true) }} {{ l_str | sort }} {{ l_str | sort(case_sensitive=true) }} {{ users | sort(attribute='age') | map(attribute='name') | list }} {{ users | sort(attribute='age,name', reverse=true) | map(attribute='name') | list }}", "{{ l | sum }} {{ users | sum(attribute='age') }} {{ [] | sum }} {{ [1, 2.5] | sum }}", "{{ l | min }} {{ l | max }} {{ l_str | min }} {{ l_empty | max }}|", "{{ l_dup | unique | list }} {{ ['a', 'A', 'b'] | unique | list }}", "{{ l | reverse | list }} {{ s | reverse }}", "{{ 'abc' | list }} {{ d | list }}",
    "{{ '42' | int }} {{ 'x' | int }} {{ 'x' | int(7) }} {{ 3.9 | int }} {{ '3.9' | int }} {{ '0x1A' | int(0, 16) }} {{ true | int }} {{ -3.9 | int }}", "{{ '1.5' | float }} {{ 'x' | float }} {{ 2 | float }} {{ '1e3' | float }}", "{{ 2.567 | round(2) }} {{ 2.5 | round }} {{ 3.5 | round }} {{ 42.55 | round(1, 'floor') }} {{ 42.51 | round(1, 'ceil') }} {{ 3 | round }} {{ 2.567 | round | int }}", "{{ -5 | abs }} {{ n_neg | abs }} {{ (-2.5) | abs }}", "{{ n | string }} {{ l | string }} {{ none | string }} {{ t | string | upper }}", "{{ s_lines | indent }}|{{ s_lines | indent(2) }}|{{ s_lines | indent(2, true) }}|{{ s_lines | indent(2, first=true, blank=true) }}|{{ 'a\n\nb' | indent(width='> ') }}",
    "{{ 'a b c' | wordcount }}" if False else "{{ 1 }}", "{{ l | batch(2) | list }} {{ l | batch(2, 0) | list }} {{ l | slice(2) | list }}", "{{ '%s is %d' | format('x', 3) }} {{ '%.2f|%5d|%-5s|%05d|%x' | format(1.005, 42, 'ab', 42, 255) }}", "{{ users | groupby('age') | list | length }} {% for g, us in users | groupby('age') %}{{ g }}:{{ us | map(attribute='name') | join(',') }};{% endfor %}", "{% for g in users | groupby('age') %}{{ g.grouper }}={{ g.list | length }} {% endfor %}", "{{ s_html | escape }} {{ s_html | e }} {{ s_html | safe }}", 
    "{{ 'a,b' | replace(',', ';') | upper }}", "{{ [1, [2, 3]] | length }}", "{{ ['a', 'b'] | map('replace', 'a', 'z') | list }}", "{{ l_str | map('length') | list }} {{ ['ab', 'c'] | map('first') | join }}", "{{ [3, 1] | sort | first }} {{ (l | sort)[-1] }}", "{{ 'hello world' | title | replace(' ', '') }}", "{{ [none, 1] | map('default', 'x') | list }}", "{{ s_pad | trim | length }}", "{{ l | tojson | upper }}", "{{ [1, 2] | join(d='-') }}", "{{ ['x'] | first | default('y') }}", "{{ 5 | default(1) + 2 }}",
    "{{ users | map(attribute='name') | map('upper') | select('in', ['ANN', 'CID']) | list }}", "{{ d | items | list }}",
]
T["tests"] = [
    "{{ s is string }} {{ n is string }} {{ l is string }}", "{{ d is mapping }} {{ l is mapping }} {{ s is mapping }} {{ none is mapping }}", "{{ l is iterable }} {{ s is iterable }} {{ d is iterable }} {{ n is iterable }} {{ none is iterable }} {{ missing is iterable }}", "{{ l is sequence }} {{ s is sequence }} {{ d is sequence }} {{ n is sequence }} {{ none is sequence }} {{ (1, 2) is sequence }}", "{{ n is number }} {{ f is number }} {{ t is number }} {{ s is number }} {{ none is number }}",
    "{{ n is integer }} {{ f is integer }} {{ t is integer }} {{ f_one is float }} {{ n is float }}", "{{ t is boolean }} {{ n is boolean }} {{ none is boolean }} {{ t is true }} {{ t is false }} {{ 1 is true }}", "{{ s is defined }} {{ missing is defined }} {{ missing is undefined }} {{ d.zz is defined }} {{ none is defined }}", "{{ none is none }} {{ missing is none }} {{ n_zero is none }} {{ none is not none }} {{ s is not none }}", "{{ n is even }} {{ n is odd }} {{ 9 is divisibleby(3) }} {{ 9 is divisibleby 2 }}", "{{ 'ABC' is upper }} {{ 'abc' is lower }} {{ 'Abc' is upper }} {{ '' is lower }}",
    "{{ 1 is eq(1) }} {{ 1 is ne 2 }} {{ 1 is lt 2 }} {{ 2 is ge 2 }} {{ 'a' is in ['a'] }} {{ 1 is in([2]) }} {{ none is sameas none }} {{ n is equalto 42 }}", "{{ m is defined and m is string }}", "{{ not s is string }} {{ s is not string }} {{ not missing }}", "{{ 'yes' if l else 'no' }} {{ 'yes' if l_empty else 'no' }} {{ 'yes' if d_empty else 'no' }} {{ 'yes' if s_empty else 'no' }} {{ 'yes' if n_zero else 'no' }} {{ 'yes' if '0' else 'no' }} {{ 'yes' if f_neg else 'no' }} {{ 'yes' if [0] else 'no' }}", "{{ 'upper' is filter }} {{ 'zz' is filter }} {{ 'string' is test }}",
    "{% if messages[0].role == 'system' and messages[0].content is string and messages[0].content %}{{ messages[0].content }}{% endif %}", "{% if tools is defined and tools %}t{% elif tools is defined %}empty{% else %}undef{% endif %}", "{% if enable_thinking is defined and enable_thinking is false %}off{% else %}on{% endif %}", "{{ l[1:] is sequence }} {{ l[1:] is iterable }} {{ (l + l)[:2] is sequence }}", "{{ d.a is mapping and d.a.x is sequence and d.a.x is not string }}", "{{ (l | select('gt', 1)) is iterable }} {{ d.keys() is iterable }} {{ d.items() is iterable }}",
]
T["methods"] = [
    "[{{ s_pad.strip() }}] [{{ s_pad.lstrip() }}] [{{ s_pad.rstrip() }}] [{{ '\\n\\nx\\n'.strip('\\n') }}] [{{ 'xyaxy'.strip('xy') }}] [{{ 'xyaxy'.lstrip('xy') }}] [{{ 'xyaxy'.rstrip('yx') }}]", "[{{ '\\u00a0x\\u3000'.strip() }}] [{{ '\\x1fx\\x1c\\x85'.strip() }}] [{{ '\\u200bx'.strip() | length }}]", "{{ s.upper() }} {{ s.lower() }} {{ s.title() }} {{ s.capitalize() }} {{ s.swapcase() }}", "{{ \"they're bill's 3rd x-y friends\".title() }}", "{{ s.startswith('Hello') }} {{ s.endswith('x') }} {{ s.startswith(('x', 'H')) }} {{ s.endswith(('x', 'ld')) }} {{ s.startswith('') }}",
    "{{ 'a,b,c'.split(',') }} {{ 'a,b,c'.split(',', 1) }} {{ s_words.split() }} {{ ' a  b '.split(' ') }} {{ 'a</think>b'.split('</think>') }} {{ ''.split() }} {{ ''.split(',') }}", "{{ 'a,b,c'.rsplit(',', 1) }} {{ 'a,b,c'.rsplit(',') }} {{ ' a b  c '.rsplit() }} {{ 'a b c'.rsplit(none, 1) }} {{ ' a b  c '.split(none, 1) }}", "{{ 'a</think>b</think>c'.split('</think>')[-1] }} {{ 'a</think>b'.split('</think>')[0] }} {{ 'ab'.split('</think>')[0].split('<think>')[-1] }}", "{{ s_lines.splitlines() }} {{ s_lines.splitlines(true) }} {{ 'a\\rb\\x0bc\\x0cd\\u2028e\\x85f'.splitlines() }}", "{{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ 'abc'.partition('=') }} {{ 'abc'.rpartition('=') }}",
    "{{ s.replace('l', 'L') }} {{ s.replace('l', 'L', 1) }} {{ 'aaa'.replace('a', 'b', 2) }} {{ 'abc'.replace('', '-') }}", "{{ s.find('World') }} {{ s.find('zz') }} {{ s.rfind('o') }} {{ s.index('W') }} {{ s.count('l') }} {{ s_uni.find('s') }}", "{{ 'abc'.isalpha() }} {{ '12'.isdigit() }} {{ 'a1'.isalnum() }} {{ ' '.isspace() }} {{ 'A'.isupper() }} {{ 'a'.islower() }} {{ ''.isalpha() }} {{ '1.5'.isdigit() }} {{ 'ab'.isascii() }} {{ '12'.isnumeric() }}", "{{ ', '.join(['a', 'b']) }} {{ ''.join([]) }} {{ '-'.join('abc') }}", "{{ '{} {}'.format('a', 1) }} {{ '{0}{1}{0}'.format('x', 'y') }} {{ '{a}'.format(a=1) }} {{ '{:.2f}|{:>5}|{:<5}|{:^5}|{:05d}|{:,}'.format(3.14159, 'a', 'b', 'c', 42, 1234567) }}", 
    "{{ 'pre_x'.removeprefix('pre_') }} {{ 'x_suf'.removesuffix('_suf') }} {{ 'x'.removeprefix('y') }}",  "{{ d.keys() | list }} {{ d.values() | list | length }} {{ 'b' in d.keys() }} {{ d.items() | list | first }}", "{{ d.get('b', 0) + 1 }} {{ d.get('a', {}).get('x', []) | length }} {{ d.get('q', {}).get('x', 'none') }}", "{{ (s ~ '!').strip('!') }} {{ 'x'.strip().upper().lower() }} {{ s_pad.strip().split(' ')[0] }}", "{{ s.strip(' ') == s }} {{ 'A'.lower() == 'a' }}", "{{ s_uni.upper() }} {{ s_uni.lower() }} {{ 'éa'.capitalize() }} {{ 'ŉ'.upper() }}", "{{ 'a b'.split(' ') | last }} {{ 'k: v'.split(': ', 1)[1] }} {{ 'a,b'.split(sep=',') }} {{ 'a,b,c'.split(',', maxsplit=1) }}",
]
T["errors"] = [
    "{{ raise_exception('bad roles') }}", "{% if n > 3 %}{{ raise_exception('n is ' ~ n) }}{% endif %}", "{{ missing.x }}", "{{ missing.x.y }}", "{{ none.x.y }}", "{{ s | nofilter }}", "{{ 1 + 'a' }}", "{{ missing + 1 }}", "{{ nofunction() }}", "{% if %}", "{{ s.nomethod() }}", "{% for x in n %}{% endfor %}", "{{ l.append(1) }}", "{{ 1 / 0 }}", "{{ s_uni | tojson(foo=1) }}", "{{ n.items() }}", "{{ s.index('zz') }}", "{% for a, b in [[1]] %}{% endfor %}", "{{ missing() }}", "{{ d['a']['zz']['q'] }}", "{{ 'a'.split('') }}", "{% include 'x' %}",
]
T["chat"] = [
    "{%- for m in messages -%}<|{{ m.role }}|>{% if m.content is string %}{{ m.content }}{% elif m.content %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}{% for k, v in c.function.arguments.items() %}<arg_key>{{ k }}</arg_key><arg_value>{{ v | tojson(ensure_ascii=False) if v is not string else v }}</arg_value>{% endfor %}</tool_call>{% endfor %}{%- endfor -%}",
    "{%- set ns = namespace(last=-1) %}\n{%- for m in messages %}\n    {%- if m.role == 'user' %}\n        {% set ns.last = loop.index0 -%}\n    {%- endif %}\n{%- endfor %}\n{{ ns.last }}", "{% set c = messages[3].content %}{{ c[0]['text'] if c is iterable and c is not string else c }}", "{{ messages | map(attribute='role') | list }}{{ messages | selectattr('role', 'equalto', 'user') | first }}", "{% set loop_messages = messages[1:] if messages[0]['role'] == 'system' else messages %}{{ loop_messages | length }}",
    "{{- '<|system|>' -}}\n{{- messages[0]['content'] -}}\n", "{% for m in messages %}{% set content = m.content %}{% if content is not none and content is string and '<think>' in content %}x{% endif %}{{ loop.index0 }}{% endfor %}", "{%- set tools = [{'type': 'function', 'function': {'name': 'a', 'defer_loading': true}}] -%}{% for t in tools %}{% set f = t.function if 'function' in t else t %}{{ f | tojson }}{% for k, v in f.items() if k not in ['defer_loading', 'strict'] %}{{ k }}{% endfor %}{% endfor %}",
    "{% set parts = [] %}{% set parts = parts + ['a'] %}{% set parts = parts + ['b'] %}{{ parts | join('\\n') }}", "{{ (messages | last).role }} {{ (messages | first)['role'] }}", "{% set x = {'a': 1} %}{% set x = dict(x, b=2) %}{{ x }}",
]
T["precedence"] = [
    "{{ -1 | abs }} {{ (-1) | abs }}", "{{ 2 ** 3 ** 2 }}", "{{ -2 ** 2 }}", "{{ 1 ~ 2 * 3 }}", "{{ 'a' + 'b' ~ 'c' }}", "{{ 'a' ~ s | upper }}", "{{ 'a' ~ missing | default('b') ~ 'c' }}", "{{ not n == 42 }} {{ not t and no }}", "{{ no and t or t }} {{ t or no and no }}", "{{ messages | length > 1 }}", "{{ 1 + l | length }}",
    "{{ 5 % -3 }} {{ -5 % 3 }} {{ -5 // 2 }} {{ 5.5 // 2 }} {{ -5.5 % 2 }}", "{{ t + 1 }} {{ no * 5 }}", "{{ 'a' in 'abc' and not 'z' in 'abc' }}", "{{ 1 in [1] == true }}", "{{ n is number and s is string }} {{ not n is string }}", "{{ 'x' ~ 'y' if t else 'z' ~ 'w' }}", "{{ l | first + 1 }}", "{{ (1, 2) | length ~ 'x' }}", "{{ 1 < 2 and 2 < 3 }} {{ (1 < 2) == t }}",
    "{{ '{# x #}' }} {{ '%}' }} {{ '}}' }}", "{% if '%}' == s %}a{% else %}b{% endif %}", "{{ [1, 2,] }} {{ {'a': 1,} }}", "{{ s if s is defined and s | length > 3 else 'short' }}", "{{ l[n - 41] }} {{ l[-(1 + 1)] }}", "{{ n * 2 - 4 // 3 + 1 }}", "{{ 10 - 2 - 3 }} {{ 100 / 10 / 2 }}", "{{ 'a' < 'b' and 'B' < 'a' }}", "{{ messages[0]['role'] ~ ':' ~ messages[0].content }}", "{{ 'a' if n else 'b' if no }}",
]
T["scopes"] = [
    "{% if t %}{% macro m(x) %}<{{ x }}>{% endmacro %}{% endif %}{{ m(1) }}", "{% for m in messages %}{% if m.role == 'user' %}{% set r = m.content %}{% endif %}{{ r is defined }} {% endfor %}", "{% set c = 'out' %}{% for i in l %}{% set c = i %}{% endfor %}{{ c }}", "{% set c = 'out' %}{% for i in l %}{{ c }}{% set c = i %}{{ c }} {% endfor %}", "{% for i in l %}{% if i == 1 %}{% set y = 'one' %}{% endif %}{{ y }}|{% endfor %}",
    "{% macro m() %}{% set y = 1 %}{{ y }}{% endmacro %}{% set y = 5 %}{{ m() }}{{ y }}", "{% set tool = {'function': {'name': 'f'}} %}{% if 'function' in tool %}{% set tool = tool['function'] %}{% endif %}{{ tool.name }}", "{% for tool in [{'function': {'name': 'f'}}, {'name': 'g'}] %}{% if 'function' in tool %}{% set tool = tool['function'] %}{% endif %}{{ tool.name }}{% endfor %}", "{% set ns = namespace(n=0) %}{% macro up() %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{% endmacro %}{{ up() }}{{ up() }}{{ ns.n }}",
    "{% for k, v in d_keys.items() %}{{ k }}:{{ v }};{% endfor %}{{ d_keys.keys() | list }}", "{% with a = 1 %}{% set b = a %}{{ b }}{% endwith %}{{ b is defined }}", "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}b{% endmacro %}{{ a() }}", "{% set x %}{% for i in l %}{{ i }}{% endfor %}{% endset %}{{ x }}", "{% macro m(x) %}{% if x %}{{ x }}{% else %}none{% endif %}{% endmacro %}{{ m(m('')) }}", "{% for i in range(2) %}{% set ns = namespace(c=0) %}{% for j in range(3) %}{% set ns.c = ns.c + j %}{% endfor %}{{ ns.c }}{% endfor %}",
    "{% set messages = messages[1:] %}{{ messages | length }}", "{% macro m(messages) %}{{ messages }}{% endmacro %}{{ m(1) }}{{ messages | length }}", "{{ [missing] }} {{ [missing] | length }}", "{% if missing %}a{% elif not missing %}b{% endif %}", "{% set x = missing %}{{ x is defined }}{{ x }}",
]
# Where minijinja cannot be brought to agree. The test wants a difference, so that an entry that agrees one day is moved.
T["differs"] = [
    "{% set ns = namespace(a=1) %}{% macro m() %}{% set ns.a = 2 %}{% endmacro %}{{ m() }}{{ ns.a }}", "{% set y %}{% set q = 1 %}{% endset %}{{ q }}|", "{{ [missing] ~ '' }}", "{{ [s_html | safe] }}",
    "{{ +n }}", "{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }}", "{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}", "{{ d_keys | dictsort(false, 'value') }}", "{{ d | attr('b') }}|", "{{ users | map(attribute='tags.0', default='none') | list }}", "{{ range is callable }}", "{{ (l | map('string')) is sequence }}",
    "{{ 'ǆ'.title() }}", "{{ '12'.isdecimal() }}", "{{ '42'.zfill(5) }}", "{{ 'a'.ljust(3) }}|", "{{ 'a\\tb'.expandtabs(4) }}", "{{ 'Straße'.casefold() }}", "{{ l.index(1) }}", "{{ d.copy() }}", "{{ 'ab'.startswith('b', 1) }}", "{% for x in none %}{% endfor %}", "{{ 'a' < 1 }}", "{{ '%s-%s' % ('a', 1) }}", "{{ f_big ~ '' }}", "{{ [f_small] | join }}", "{{ d.keys() }}", "{{ range(3) }}", "{{ d_keys.items is number }}",
]

cases = []
for group, templates in T.items():
    for template in templates:
        try:
            case = {"group": group, "template": template, "text": env.from_string(template).render(**CONTEXT)}
        except Exception as e:  # every failure must be a failure there, whatever its kind
            case = {"group": group, "template": template, "error": f"{type(e).__name__}: {e}"}
        cases.append(case)
note = (
    "Renderings of Jinja2 " + jinja2.__version__ + " in the environment that transformers uses for chat templates "
    "(trim_blocks, lstrip_blocks, loop controls, its tojson), by jinja.py. Where there is `error`, rendering fails."
)
json.dump({"note": note, "context": CONTEXT, "cases": cases}, sys.stdout, ensure_ascii=False, indent=0)
print()
