//! Chat templates: the Jinja source of the file, rendered byte for byte as transformers does with Jinja2.

mod compile;
mod filters;
mod limits;
mod methods;
mod python;

use std::collections::BTreeMap;

use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, machinery};
use serde_json::{Map, Value, json};

use crate::error::{Error, Result};

/// A compiled chat template.
///
/// `minijinja` renders it with the settings of transformers (`trim_blocks`, `lstrip_blocks`, `tojson` as `json.dumps`
/// without escaping of non-ASCII characters, `raise_exception`, loop controls), with Python's string methods, and
/// with Python's way of printing numbers and containers.
///
/// Known differences from Jinja2 are listed, with examples, as group `differs` of `tests/data/tokenizer/jinja.json`.
/// Most are errors here (unary plus, `%` on strings, rare string methods, a macro that only writes to an outer
/// namespace). Text differs where a macro's default names an earlier argument, where a variable set inside a
/// `{% set %}` block is used after it, and where floats from 1e16 on or below 1e-4 are joined by `~` or `join`.
/// `strftime_now`, `debug` and `{% generation %}` are not there.
///
/// Templates come with files from anywhere, so what they cost is bounded: the source (32 KiB), the work of a rendering
/// (2 million units of fuel, each an instruction or 64 bytes of text; 1500 messages of 1.5 MB, more than GLM-5 reads,
/// take 0.3 million) and its time (2 s), the size (16 MiB) and depth (200) of each value it makes. Namespaces and `loop`
/// cannot be put into other values.
///
/// ```
/// use glm5::text::{ChatOptions, ChatTemplate};
/// use serde_json::json;
///
/// let template = ChatTemplate::new("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}")?;
/// let messages = [json!({"role": "user", "content": "Hi"})];
/// assert_eq!(template.render(&messages, &ChatOptions::default())?, "<|user|>Hi");
/// # Ok::<(), glm5::Error>(())
/// ```
pub struct ChatTemplate {
    env: Environment<'static>,
    source: String,
}

/// What a chat template is given besides the messages.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ChatOptions {
    /// Tools on offer, as in OpenAI's API: `{"type": "function", "function": {"name", "description", "parameters"}}`.
    pub tools: Vec<Value>,
    /// End with the mark that begins an answer.
    pub add_generation_prompt: bool,
    /// Whether the model thinks before it answers; unset, the template decides (GLM-5 does).
    pub enable_thinking: Option<bool>,
    /// Whether the thoughts of earlier turns are dropped; unset, the template decides (GLM-5 drops them).
    pub clear_thinking: Option<bool>,
    /// How much the model thinks, for templates that know it: `high` or `max`.
    pub reasoning_effort: Option<String>,
    /// Further variables. Those above win over the same names here.
    pub extra: Map<String, Value>,
}

const NAME: &str = "chat";

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    /// [`Error::Text`] with the line if it is not valid, or if it is too long.
    pub fn new(source: &str) -> Result<Self> {
        if source.len() > limits::MAX_SOURCE {
            let message = format!("expected at most {} bytes, got {}", limits::MAX_SOURCE, source.len());
            return Err(Error::Text { what: "chat template", message });
        }
        let mut env = Environment::new();
        env.set_formatter(python::formatter);
        env.set_unknown_method_callback(methods::call);
        filters::register(&mut env);
        limits::register(&mut env);
        // Jinja2 reads every kind of line end as a line feed.
        let source = source.replace("\r\n", "\n").replace('\r', "\n");
        limits::with_stack(|| compile::compile(NAME, &source).map(drop), failed)?;
        Ok(ChatTemplate { env, source })
    }

    /// The prompt for `messages`: mappings with `role`, `content` and what else the template knows
    /// (`reasoning_content`, `tool_calls`). Arguments of tool calls that come as JSON text are parsed first.
    ///
    /// # Errors
    /// [`Error::Argument`] if there is no message, or one is no mapping with a role, or arguments are not a JSON
    /// mapping; [`Error::Text`] if the template refuses the messages or fails.
    pub fn render(&self, messages: &[Value], options: &ChatOptions) -> Result<String> {
        if messages.is_empty() {
            return Err(Error::argument("messages", "at least one", "none"));
        }
        let messages = messages.iter().enumerate().map(|(i, m)| checked_message(i, m));
        let mut context = options.extra.clone();
        context.insert("messages".into(), messages.collect::<Result<Vec<Value>>>()?.into());
        // transformers passes both always, as None when there are none.
        let tools = &options.tools;
        context.insert("tools".into(), if tools.is_empty() { Value::Null } else { json!(tools) });
        context.entry("documents").or_insert(Value::Null);
        context.insert("add_generation_prompt".into(), options.add_generation_prompt.into());
        let flags =
            [("enable_thinking", options.enable_thinking), ("clear_thinking", options.clear_thinking)];
        for (name, flag) in flags {
            if let Some(flag) = flag {
                context.insert(name.into(), flag.into());
            }
        }
        if let Some(effort) = &options.reasoning_effort {
            context.insert("reasoning_effort".into(), effort.as_str().into());
        }
        self.render_context(&context)
    }

    /// Renders with exactly these variables.
    ///
    /// # Errors
    /// [`Error::Text`] if the template fails.
    pub fn render_context(&self, context: &Map<String, Value>) -> Result<String> {
        let render = || {
            // Instructions borrow the source. Compiling takes a fraction of a millisecond.
            let instructions = compile::compile(NAME, &self.source)?;
            let (blocks, mut text) = (BTreeMap::new(), String::new());
            let out = &mut machinery::make_string_output(&mut text);
            let context = Serde(context).into();
            machinery::eval(&self.env, &instructions, context, &blocks, out, AutoEscape::None)?;
            Ok(text)
        };
        limits::with_stack(render, failed)
    }
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ChatTemplate")
    }
}

/// The message with the arguments of its tool calls as mappings.
fn checked_message(i: usize, message: &Value) -> Result<Value> {
    let expected = "mappings with a role";
    if !message.get("role").is_some_and(Value::is_string) {
        return Err(Error::argument("messages", expected, format!("{message} at {i}")));
    }
    let mut message = message.clone();
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
    for call in calls.into_iter().flatten() {
        // Both forms occur: the call itself, or wrapped as {"type": "function", "function": call}.
        let call = match call.get("function") {
            Some(Value::Object(_)) => &mut call["function"],
            _ => call,
        };
        let Some(Value::String(text)) = call.get("arguments") else { continue };
        let parsed = match text.trim() {
            "" => Value::Object(Map::new()),
            text => serde_json::from_str(text).unwrap_or(Value::Null),
        };
        if !parsed.is_object() {
            let expected = "arguments of tool calls to be a JSON mapping";
            return Err(Error::argument("messages", expected, format!("{text:?} in message {i}")));
        }
        call["arguments"] = parsed;
    }
    Ok(message)
}

/// One line: what failed and where. It may repeat what the file says, so it is cut, and what a terminal could obey is
/// escaped.
fn failed(error: minijinja::Error) -> Error {
    let printable = |c: char| match c {
        '"' | '\'' | '\\' => c.to_string(),
        c => c.escape_debug().to_string(),
    };
    let message = error.to_string().chars().take(1000).map(printable).collect();
    Error::Text { what: "chat template", message }
}
