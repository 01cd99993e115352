//! Chat templates against Jinja2 as transformers sets it up: the model's own template, and many small ones.

use std::panic::catch_unwind;

use glm5::Error;
use glm5::text::{ChatOptions, ChatTemplate, Specials};
use serde_json::{Map, Value, json};

use crate::common::{NANO, golden, ids};

fn options(case: &Value) -> ChatOptions {
    ChatOptions {
        tools: case["tools"].as_array().cloned().unwrap_or_default(),
        add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap(),
        enable_thinking: case["enable_thinking"].as_bool(),
        clear_thinking: case["clear_thinking"].as_bool(),
        ..Default::default()
    }
}

#[test]
fn chat_goldens() {
    let golden = golden("chat.json");
    assert_eq!(NANO.chat_template(), golden["template"].as_str());
    let template = ChatTemplate::new(NANO.chat_template().unwrap()).unwrap();
    let cases = golden["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 16);
    for case in cases {
        let text = template.render(case["messages"].as_array().unwrap(), &options(case)).unwrap();
        assert_eq!(text, case["text"].as_str().unwrap(), "{}", case["name"]);
        assert_eq!(NANO.encode(&text, Specials::Parse).unwrap(), ids(&case["ids"]), "{}", case["name"]);
    }
}

/// The result of Jinja2, or `None` where it fails.
fn outcome(template: &str, context: &Map<String, Value>) -> Option<String> {
    let result = catch_unwind(|| ChatTemplate::new(template).and_then(|t| t.render_context(context)));
    result.unwrap_or_else(|_| panic!("{template:?} panics")).ok()
}

#[test]
fn renders_as_jinja2() {
    let golden = golden("jinja.json");
    let context = golden["context"].as_object().unwrap();
    let cases = golden["cases"].as_array().unwrap();
    assert!(cases.len() > 350);
    let mut wrong = Vec::new();
    for case in cases {
        let template = case["template"].as_str().unwrap();
        let (got, want) = (outcome(template, context), case["text"].as_str());
        // Known differences must differ: one that agrees after an update belongs to another group.
        let differs = case["group"] == "differs";
        if (got.as_deref() == want) == differs {
            wrong.push(format!("{} {template:?}\n  got  {got:?}\n  want {want:?}", case["group"]));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

/// A template that shows what it is given.
const SHOW: &str = "{{ messages | tojson }}|{{ tools | tojson }}|{{ add_generation_prompt }}|{{ enable_thinking }}|\
    {{ clear_thinking is defined }}|{{ reasoning_effort }}|{{ documents is none }}|{{ date }}";

#[test]
fn variables() {
    let show = ChatTemplate::new(SHOW).unwrap();
    let messages = [json!({"role": "user", "content": "x"})];
    let message = r#"[{"role": "user", "content": "x"}]"#;
    let text = show.render(&messages, &ChatOptions::default()).unwrap();
    assert_eq!(text, format!("{message}|null|False||False||True|"));
    let extra = json!({"date": "today", "messages": 1, "enable_thinking": true});
    let options = ChatOptions {
        tools: vec![json!({"a": 1})],
        add_generation_prompt: true,
        enable_thinking: Some(false),
        clear_thinking: Some(true),
        reasoning_effort: Some("high".into()),
        extra: extra.as_object().unwrap().clone(),
    };
    let text = show.render(&messages, &options).unwrap();
    assert_eq!(text, format!("{message}|[{{\"a\": 1}}]|True|False|True|high|True|today"));
}

#[test]
fn arguments_as_text_become_mappings() {
    let template = ChatTemplate::new(NANO.chat_template().unwrap()).unwrap();
    let render = |call: Value| {
        let messages =
            [json!({"role": "user", "content": ""}), json!({"role": "assistant", "tool_calls": [call]})];
        template.render(&messages, &ChatOptions::default())
    };
    let wrapped =
        |arguments: &str| json!({"type": "function", "function": {"name": "f", "arguments": arguments}});
    let want = "[gMASK]<sop><|user|><|assistant|></think><tool_call>f<arg_key>a</arg_key><arg_value>[1, {\"b\": null}]\
        </arg_value><arg_key>s</arg_key><arg_value>é \"</arg_value></tool_call>";
    let arguments = r#" {"a": [1, {"b": null}], "s": "\u00e9 \""} "#;
    assert_eq!(render(wrapped(arguments)).unwrap(), want);
    assert_eq!(render(json!({"name": "f", "arguments": arguments})).unwrap(), want);
    let want = "[gMASK]<sop><|user|><|assistant|></think><tool_call>f</tool_call>";
    assert_eq!(render(wrapped("")).unwrap(), want);
    for bad in ["{", "[1]", "null", "\"a\"", "{\"a\": 1} x"] {
        let error = render(wrapped(bad)).unwrap_err();
        assert!(matches!(error, Error::Argument { what: "messages", .. }), "{error:?}");
        assert!(error.to_string().contains("in message 1"), "{error}");
    }
}

#[test]
fn bad_input_is_one_clear_line() {
    let message = |template: &str, messages: &[Value]| {
        let template = ChatTemplate::new(template);
        template.and_then(|t| t.render(messages, &ChatOptions::default())).unwrap_err().to_string()
    };
    let hi = json!({"role": "user", "content": "hi"});
    assert_eq!(message("x", &[]), "messages: expected at least one, got none");
    let text = message("x", &[hi.clone(), json!("hi")]);
    assert_eq!(text, "messages: expected mappings with a role, got \"hi\" at 1");
    assert!(message("x", &[json!({"role": 1})]).starts_with("messages: expected mappings with a role"));
    let refused = "{% if messages[0].role != 'system' %}\n{{ raise_exception('system first') }}{% endif %}";
    let text = message(refused, std::slice::from_ref(&hi));
    assert!(
        text.starts_with("chat template: ") && text.contains("system first") && text.contains(":2"),
        "{text}"
    );
    for broken in ["{% for %}", "{{", "{% if x %}", "{{ x | nofilter }}", "{% include 'x' %}", "{{ x.y.z }}"]
    {
        let text = message(broken, std::slice::from_ref(&hi));
        assert!(text.starts_with("chat template: ") && !text.contains('\n'), "{text}");
    }
}
