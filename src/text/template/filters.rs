//! Filters, tests and functions in which `minijinja` departs from Jinja2, or from what transformers adds to it.

use minijinja::value::{Kwargs, Rest, Value, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, ErrorKind, State, filters, functions};

use super::limits::{bytes_left, pay};
use super::methods::strip;
use super::python::{Json, is_list, lines, text};

/// Puts them in the place of those of the same name.
pub(super) fn register(env: &mut Environment<'static>) {
    env.add_filter("tojson", to_json);
    env.add_filter("default", default);
    env.add_filter("d", default);
    env.add_filter("int", int);
    env.add_filter("float", float);
    env.add_filter("indent", indent);
    env.add_filter("trim", trim);
    env.add_filter("string", text);
    env.add_filter("escape", escape);
    env.add_filter("e", escape);
    env.add_test("iterable", is_iterable);
    env.add_test("sequence", is_sequence);
    env.add_function("raise_exception", raise_exception);
    env.add_function("range", range);
}

/// An argument that may be given by place or by name; Python's `None` is no value.
fn argument(place: Option<Value>, kwargs: &Kwargs, name: &str) -> Result<Option<Value>, Error> {
    let value = match place {
        Some(value) => Some(value),
        None => kwargs.get::<Option<Value>>(name)?,
    };
    Ok(value.filter(|v| !v.is_none() && !v.is_undefined()))
}

/// `json.dumps(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`
fn to_json(state: &State, value: &Value, arguments: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    type Arguments = (Option<Value>, Option<Value>, Option<Value>, Kwargs);
    let (ensure_ascii, indent, separators, kwargs): Arguments = from_args(&arguments.into_values())?;
    let flag = |value: Option<Value>| value.is_some_and(|v| v.is_true());
    let ensure_ascii = flag(argument(ensure_ascii, &kwargs, "ensure_ascii")?);
    let indent = match argument(indent, &kwargs, "indent")? {
        None => None,
        Some(text) if text.as_str().is_some() => Some(text.to_string()),
        Some(width) => Some(" ".repeat(i64::try_from(width)?.clamp(0, 100) as usize)),
    };
    let separators = match argument(separators, &kwargs, "separators")? {
        // With line ends there are no spaces at the ends of lines.
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
        Some(pair) => {
            let part = |i| Ok::<_, Error>(pair.get_item_by_index(i)?.to_string());
            (part(0)?, part(1)?)
        }
    };
    let sort_keys = flag(kwargs.get("sort_keys")?);
    kwargs.assert_all_used()?;
    let limit = bytes_left(state);
    Json { ensure_ascii, indent, separators, sort_keys, limit }.dumps(value).map(Value::from)
}

/// `default(value, default_value="", boolean=False)`
fn default(
    value: &Value,
    other: Option<Value>,
    boolean: Option<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let other = match other {
        Some(other) => other,
        None => kwargs.get::<Option<Value>>("default_value")?.unwrap_or_else(|| Value::from("")),
    };
    let boolean = argument(boolean, &kwargs, "boolean")?.is_some_and(|v| v.is_true());
    kwargs.assert_all_used()?;
    let missing = value.is_undefined() || boolean && !value.is_true();
    Ok(if missing { other } else { value.clone() })
}

/// `int(value, default=0, base=10)`: what is no number is the default.
fn int(
    state: &State,
    value: &Value,
    other: Option<Value>,
    base: Option<u32>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let other = argument(other, &kwargs, "default")?.unwrap_or_else(|| Value::from(0));
    filters::int(state, value, Some(other), base, kwargs)
}

/// `float(value, default=0.0)`: what is no number is the default.
fn float(state: &State, value: &Value, other: Option<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let other = argument(other, &kwargs, "default")?.unwrap_or_else(|| Value::from(0.0));
    filters::float(state, value, Some(other), kwargs)
}

/// `indent(s, width=4, first=False, blank=False)`; the width may be a text.
fn indent(state: &State, text: String, arguments: Rest<ValueOrKwargs>) -> Result<String, Error> {
    type Arguments = (Option<Value>, Option<Value>, Option<Value>, Kwargs);
    let (width, first, blank, kwargs): Arguments = from_args(&arguments.into_values())?;
    let indention = match argument(width, &kwargs, "width")? {
        None => "    ".to_owned(),
        Some(text) if text.as_str().is_some() => text.to_string(),
        Some(width) => " ".repeat(i64::try_from(width)?.clamp(0, 100) as usize),
    };
    let first = argument(first, &kwargs, "first")?.is_some_and(|v| v.is_true());
    let blank = argument(blank, &kwargs, "blank")?.is_some_and(|v| v.is_true());
    kwargs.assert_all_used()?;
    // As Jinja2 does, so that a line end at the end of the text stays one.
    let text = text + "\n";
    let all = lines(&text, false);
    pay(state, all.len().saturating_mul(indention.len()))?;
    let mut out = String::new();
    for (i, line) in all.into_iter().enumerate() {
        let wanted = if i == 0 { first } else { blank || !line.is_empty() };
        out.extend([if i == 0 { "" } else { "\n" }, if wanted { &indention } else { "" }, line]);
    }
    Ok(out)
}

/// `str.strip`, with Python's white space.
fn trim(text: String, chars: Option<String>) -> String {
    strip("strip", &text, chars).to_owned()
}

/// HTML entities as `markupsafe` writes them.
fn escape(value: &Value) -> Result<Value, Error> {
    if value.is_safe() {
        return Ok(value.clone());
    }
    let mut out = String::new();
    for c in text(value)?.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            _ => out.push(c),
        }
    }
    Ok(Value::from_safe_string(out))
}

/// Whether Python's `iter` takes it: not `None`, but a missing variable.
fn is_iterable(value: &Value) -> bool {
    use ValueKind::{Bytes, Iterable, Map, Seq, String, Undefined};
    matches!(value.kind(), Bytes | Iterable | Map | Seq | String | Undefined)
}

/// Whether it has a length and items: texts and mappings too.
fn is_sequence(value: &Value) -> bool {
    use ValueKind::{Bytes, Map, String, Undefined};
    is_list(value) || matches!(value.kind(), Bytes | Map | String | Undefined)
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// `range`, of numbers whose differences are numbers too.
fn range(lower: isize, upper: Option<isize>, step: Option<isize>) -> Result<Value, Error> {
    if [Some(lower), upper, step].into_iter().flatten().any(|x| x.unsigned_abs() > u32::MAX as usize) {
        return Err(Error::new(ErrorKind::InvalidOperation, "range of too large numbers"));
    }
    functions::range(lower, upper, step)
}
