//! Chat templates that want to crash, hang or fill the memory: each is one clear error.

use std::time::{Duration, Instant};

use glm5::Error;
use glm5::text::{ChatOptions, ChatTemplate};
use serde_json::{Value, json};

use crate::common::NANO;

/// What becomes of a source. Most take milliseconds, none more than some seconds, on a busy machine too.
fn outcome(source: &str) -> Result<String, String> {
    let start = Instant::now();
    let messages = [json!({"role": "user", "content": "hi"})];
    let result = ChatTemplate::new(source).and_then(|t| t.render(&messages, &ChatOptions::default()));
    let shown: String = source.chars().take(150).collect();
    assert!(start.elapsed() < Duration::from_secs(30), "{shown} takes {:?}", start.elapsed());
    result.map_err(|error| {
        assert!(matches!(error, Error::Text { what: "chat template", .. }), "{shown}: {error:?}");
        let text = error.to_string();
        assert!(text.len() < 12_000 && !text.contains(char::is_control), "{shown}: {text:?}");
        assert!(!text.contains("panicked"), "{shown}: {text}");
        text
    })
}

/// Each must be refused, and the error must say why.
fn refused<S: AsRef<str>>(why: &str, sources: impl IntoIterator<Item = S>) {
    for source in sources {
        match outcome(source.as_ref()) {
            Err(text) => assert!(text.contains(why), "{:.300}\n  got  {text}\n  want {why}", source.as_ref()),
            Ok(text) => panic!("{:.300} makes {} bytes", source.as_ref(), text.len()),
        }
    }
}

const FUEL: &str = "out of fuel";
const LARGE: &str = "too large a value";
const DEEP: &str = "nests values too deep";
const HOLDS: &str = "puts a namespace or a loop into another value";

#[test]
fn endless_work() {
    let loops = "{% for a in range(100000) %}".repeat(3) + &"{% endfor %}".repeat(3);
    refused(FUEL, [loops]);
    refused(
        "recursion limit exceeded",
        [
            "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
            "{% macro f() %}{% for i in range(99) %}{{ f() }}{% endfor %}{% endmacro %}{{ f() }}",
            "{% for x in [[1]] recursive %}{{ loop([x]) }}{% endfor %}",
        ],
    );
    // What fuel does not count ends after some seconds.
    let compare = "{% set s = 'x' * 15000000 %}{% set t = s ~ '' %}\
        {% for i in range(100000) %}{% if s == t %}{% endif %}{% endfor %}";
    refused("takes too long", [compare]);
}

#[test]
fn large_texts() {
    refused(
        FUEL,
        [
            "{{ 'a' * 1000000000 }}",
            "{% set s = ' ' * 10000000 %}{% for i in range(1000) %}{% set t = s|replace(' ', s) %}{% endfor %}",
            "{% set s = ' ' * 10000000 %}{% set t = s.replace(' ', s) %}",
            "{% set s = ',' * 10000000 %}{% set t = s.split(',') %}",
            "{% set s = ', ' * 5000000 %}{% set t = s.split() %}",
            "{% set s = ', ' * 5000000 %}{% set t = s.rsplit() %}",
            "{% set s = '\n' * 10000000 %}{% set t = s.splitlines() %}",
            "{% set s = '\n' * 10000000 %}{% set t = s|indent(100, blank=true) %}",
            "{% set s = '\n' * 1000000 %}{% set t = s|indent(s, true, true) %}",
            "{% set s = '-' * 1000000 %}{% set t = range(1000)|join(s) %}",
            "{% set s = '-' * 1000000 %}{% set t = s.join(range(1000)|map('string')|list) %}",
            "{% set s = '-' * 1000000 %}{% set t = range(1000)|list|tojson(indent=s) %}",
            "{% set s = '-' * 1000000 %}{% set t = range(1000)|list|tojson(separators=(s, s)) %}",
            "{% set s = '-' * 10000000 %}{% set t = ('{0}' * 1000).format(s) %}",
            "{{ '%1000000000d'|format(1) }}",
            "{{ [1]|batch(100000000, 'x') }}",
            "{{ [1]|slice(100000000) }}",
            "{% for i in range(100000) %}{{ 'x' * 10000 }}{% endfor %}",
            "{% macro m() %}{% for i in range(100000) %}{{ 'x' * 10000 }}{% endfor %}{% endmacro %}{{ m() }}",
            "{% set s %}{% for i in range(100000) %}{{ 'x' * 10000 }}{% endfor %}{% endset %}",
        ],
    );
    let doubling = |step| {
        "{% set ns = namespace(x='abcdefgh') %}{% for a in range(60) %}".to_owned() + step + "{% endfor %}"
    };
    refused(LARGE, ["{% set ns.x = ns.x ~ ns.x %}", "{% set ns.x = ns.x + ns.x %}"].map(doubling));
    refused(LARGE, ["{% set s %}{% for i in range(2000) %}{{ 'x' * 10000 }}{% endfor %}{% endset %}"]);
    refused(
        "a format of more than 9999",
        ["{{ '{:1000000000}'.format(1) }}", "{{ '{:>99999999999999999999}'.format(1) }}"],
    );
    assert_eq!(outcome("{{ '{:>4}|{}'.format(1, 'é') }}").as_deref(), Ok("   1|é"));
    // As many characters to strip as the text has.
    let strip = "{% set s = 'x' * 1000000 %}{% set t = (s ~ 'y') * 2 %}{{ s.strip(t) }}{{ s|trim(t) }}";
    assert_eq!(outcome(strip).as_deref(), Ok(""));
}

#[test]
fn small_values_that_stand_for_large_ones() {
    let doubled = [
        ("['x']", "[a, a]"),
        ("(1,)", "(a, a)"),
        ("{'x': 1}", "{'a': a, 'b': a}"),
        ("[1]", "a|batch(2, a)|list"),
    ];
    for ((start, step), end) in
        doubled.iter().zip(["{{ a ~ '' }}", "{{ a == [a] }}", "{{ a in [a] }}", "{{ a|upper }}"])
    {
        let step = format!("{{% set a = {step} %}}").repeat(60);
        refused(LARGE, [format!("{{% set a = {start} %}}{step}{end}")]);
    }
    refused(
        LARGE,
        [
            "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
            "{% set x = [1] %}{{ '' ~ x * 100000000 }}",
            "{% set x = [1] %}{{ (x * 100000000).count(2) }}",
            "{% set s = 'x' * 10000000 %}{% set t = [s, s, s, s] %}",
            "{% set s = 'x' * 10000000 %}{% set t = dict(a=s, b=s) %}",
            "{% set s = 'x' * 10000000 %}{% set ns = namespace(a=s, b=s) %}",
            "{% set s = 'x' * 10000000 %}{% set ns = namespace() %}{% set ns.a = s %}{% set ns.b = s %}",
        ],
    );
    // The compiler would make these.
    refused(
        "multiplied too often",
        [
            "{{ '' ~ [1] * 100000000 }}",
            "{{ ([1] or 0) * 100000000 == 1 }}",
            "{{ '' ~ 100000000 * ([1] + [2]) }}",
            "{{ '' ~ [1] * 16 * 100000000 }}",
            "{% macro m(a='' ~ [1] * 100000000) %}{% endmacro %}",
            "{% if x %}{% elif y|f('' ~ [1] * 100000000) %}{% endif %}",
        ],
    );
}

#[test]
fn deep_values() {
    let nest =
        "{% set ns = namespace(x=[]) %}{% for a in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}";
    let ends = ["", "{{ ns.x }}", "{{ ns.x|tojson }}", "{{ ns.x|string }}", "{{ ns.x == 1 }}"];
    refused(DEEP, ends.map(|end| nest.to_owned() + end));
    let wraps = ["{'a': x}", "(x,)", "[x][:]", "x|batch(1)|list", "dict(a=x)", "{'a': x}.items()|list"];
    refused(
        DEEP,
        wraps.map(|w| "{% set x = [1] %}".to_owned() + &format!("{{% set x = {w} %}}").repeat(500)),
    );
    // Views of views of views are as deep, though their items are not.
    for view in ["x[0:]", "x[::-1]", "x|reverse", "x * 1", "x + []"] {
        let source = format!(
            "{{% set ns = namespace(x=[1]) %}}{{% for i in range(30000) %}}{{% set x = ns.x %}}{{% set ns.x = {view} %}}\
             {{% endfor %}}{{{{ ns.x }}}}"
        );
        assert_eq!(outcome(&source).as_deref(), Ok("[1]"), "{view}");
    }
    // What the caller gives may be as deep as it likes, unless it is printed.
    let deep = (0..1000).fold(json!(1), |value, _| json!([value]));
    for show in ["{{ x }}", "{{ x|tojson }}", "{{ x|string }}", "{{ x|e }}"] {
        let context = [("x".to_owned(), deep.clone())].into_iter().collect();
        let error = ChatTemplate::new(show).unwrap().render_context(&context).unwrap_err().to_string();
        assert!(error.contains("more than 200 deep") || error.contains(DEEP), "{show}: {error}");
    }
}

#[test]
fn cycles() {
    let cycles = [
        "{% set a.x = a %}",
        "{% set a.x = b %}{% set b.x = a %}",
        "{% set a.x, a.y = a, 1 %}",
        "{% set a.x = {'a': a} %}",
        "{% set a.x = [a] %}",
        "{% set a.x = [a]|batch(1) %}",
        "{% set a.x = {'a': a}.items() %}",
        "{% set a.x = dict(a=a) %}",
        "{% set a = namespace(a=a) %}",
        "{% for x in [1, 2, 3] %}{% set a.x = loop %}{% endfor %}",
    ];
    let ends = [
        "{{ a }}",
        "{{ a == b }}",
        "{{ a ~ b }}",
        "{{ {a: 1} }}",
        "{{ a|tojson }}",
        "{{ a|string }}",
        "{{ [a]|unique }}",
    ];
    let start = "{% set a = namespace() %}{% set b = namespace() %}";
    for cycle in cycles {
        refused(HOLDS, ends.map(|end| format!("{start}{cycle}{end}")));
    }
}

#[test]
fn deep_sources() {
    let nests = [
        ("{{ 1", "+1", " }}"),
        ("{{ x", "~1", " }}"),
        ("{{ x", "**1", " }}"),
        ("{{ x", " and 1", " }}"),
        ("{{ x", ".y", " }}"),
        ("{{ x", "[0]", " }}"),
        ("{{ x", "()", " }}"),
        ("{{ ", "not ", "1 }}"),
        ("{{ ", "-", "1 }}"),
        ("{{ 1", "|string", " }}"),
        ("{{ 1", " is odd", " }}"),
        ("{{ 1", " if 1 else 2", " }}"),
        ("{{ ", "[", ""),
        ("{{ ", "(", ""),
        ("{{ ", "{1:", ""),
        ("{{ ", "f(", ""),
        ("{% set ", "(", ""),
        ("{% for ", "(", ""),
        ("{% set x", ".x", " = 1 %}"),
        ("", "{% if 1 %}", ""),
        ("", "{% for i in x %}", ""),
        ("", "{% macro a() %}", ""),
    ];
    for (open, step, close) in nests {
        let source = |size: usize| {
            format!("{open}{}{close}", step.repeat((size - open.len() - close.len()) / step.len()))
        };
        refused("", [source(10_000), source(32 << 10)]);
        refused("expected at most 32768 bytes", [source(2 << 20)]);
    }
    let branches = format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(2000));
    assert_eq!(outcome(&branches).as_deref(), Ok(""));
}

#[test]
fn no_panics_of_the_engine() {
    refused("cycle takes values", ["{% for i in [1] %}{{ loop.cycle() }}{% endfor %}", "{{ x.cycle(*[]) }}"]);
    refused("too large numbers", ["{{ range(9223372036854775807, -9223372036854775807, -1)|length }}"]);
    assert_eq!(outcome("{% for i in [1, 2] %}{{ loop.cycle('a', 'b') }}{% endfor %}").as_deref(), Ok("ab"));
    assert_eq!(outcome("{{ range(3, 0, -1)|join }}").as_deref(), Ok("321"));
}

#[test]
fn control_characters_are_escaped() {
    let text = outcome("{{ raise_exception('\u{1b}[31mred \u{202e}\\nnext \"quoted\" é') }}").unwrap_err();
    assert!(text.contains("\\u{1b}[31mred \\u{202e}\\nnext \"quoted\" é"), "{text}");
    let text = outcome("{{ raise_exception('x' * 100000) }}").unwrap_err();
    assert!(text.len() < 1100, "{}", text.len());
}

/// Some times what fits the context of GLM-5, with the template that comes with it.
#[test]
fn long_conversations_are_far_from_the_limits() {
    let template = ChatTemplate::new(NANO.chat_template().unwrap()).unwrap();
    let mut messages: Vec<Value> = Vec::new();
    for i in 0..1500 {
        messages.push(json!({"role": "user", "content": "word ".repeat(400)}));
        messages.push(json!({
            "role": "assistant", "content": "<think>why</think>".to_owned() + &"word ".repeat(400),
            "tool_calls": [{"name": "f", "arguments": {"a": i, "b": [1, 2, {"c": "text"}]}}],
        }));
        messages.push(json!({"role": "tool", "content": "result ".repeat(200)}));
    }
    let tool = |i| {
        let parameters = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
        let description = "What it does, and when. ".repeat(20);
        json!({"type": "function", "function": {"name": format!("f{i}"), "description": description, "parameters": parameters}})
    };
    let options = ChatOptions { tools: (0..50).map(tool).collect(), ..Default::default() };
    let text = template.render(&messages, &options).unwrap();
    assert!(text.len() > 8_000_000, "{}", text.len());
}
