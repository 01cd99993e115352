//! How Python prints values: `str`, `repr` and `json.dumps`.

use std::fmt::{self, Write};

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind, Output, State, escape_formatter};

use super::limits::MAX_DEPTH;

/// Prints what `{{ value }}` prints.
pub(super) fn formatter(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Invalid => escape_formatter(out, state, value),
        _ => write!(out, "{}", Str(value)).map_err(|_| too_deep()),
    }
}

/// A value as `str` gives it.
pub(super) struct Str<'a>(pub(super) &'a Value);

impl fmt::Display for Str<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.kind() {
            ValueKind::Number | ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => {
                Repr(self.0, 0).fmt(f)
            }
            _ => self.0.fmt(f),
        }
    }
}

/// The text that `str` gives.
pub(super) fn text(value: &Value) -> Result<String, Error> {
    let mut text = String::new();
    write!(text, "{}", Str(value)).map_err(|_| too_deep())?;
    Ok(text)
}

fn too_deep() -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("a value nests more than {MAX_DEPTH} deep"))
}

/// A value as `repr` gives it, which is how containers print their items, and how deep inside of others it is.
struct Repr<'a>(&'a Value, usize);

impl fmt::Display for Repr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Repr(value, depth) = *self;
        if depth > MAX_DEPTH {
            return Err(fmt::Error);
        }
        match (value.kind(), value.as_str(), as_float(value)) {
            (_, Some(text), _) => write_repr(text, f),
            (_, _, Some(x)) => f.write_str(&float(x)),
            (ValueKind::Undefined, ..) => f.write_str("Undefined"),
            (ValueKind::Seq | ValueKind::Iterable, ..) if is_list(value) => {
                let (open, close) = if value.is_tuple() { ('(', ')') } else { ('[', ']') };
                f.write_char(open)?;
                for (i, item) in value.try_iter().into_iter().flatten().enumerate() {
                    let comma = if i == 0 { "" } else { ", " };
                    write!(f, "{comma}{}", Repr(&item, depth + 1))?;
                }
                // A tuple of one needs its comma to be one.
                let lone = value.is_tuple() && value.len() == Some(1);
                f.write_str(if lone { "," } else { "" })?;
                f.write_char(close)
            }
            (ValueKind::Map, ..) => {
                f.write_char('{')?;
                for (i, (key, item)) in pairs(value).enumerate() {
                    let comma = if i == 0 { "" } else { ", " };
                    write!(f, "{comma}{}: {}", Repr(&key, depth + 1), Repr(&item, depth + 1))?;
                }
                f.write_char('}')
            }
            _ => value.fmt(f),
        }
    }
}

/// Whether Python has a list here: the result of a slice is an iterable of known length.
pub(super) fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) && value.len().is_some()
}

fn pairs(map: &Value) -> impl Iterator<Item = (Value, Value)> {
    map.as_object().and_then(|object| object.try_iter_pairs()).into_iter().flatten()
}

fn as_float(value: &Value) -> Option<f64> {
    let is_float = value.kind() == ValueKind::Number && !value.is_integer();
    if is_float { f64::try_from(value.clone()).ok() } else { None }
}

/// The shortest text that reads back as `x`; with an exponent of two digits or more outside 1e-4 <= |x| < 1e16.
fn float(x: f64) -> String {
    if x.is_nan() {
        return "nan".into();
    }
    // Rust's {:?} changes to exponents at the same bounds.
    let text = format!("{x:?}");
    match text.split_once('e') {
        Some((mantissa, exponent)) => {
            let (sign, digits) = match exponent.strip_prefix('-') {
                Some(digits) => ('-', digits),
                None => ('+', exponent),
            };
            format!("{mantissa}e{sign}{digits:0>2}")
        }
        None => text,
    }
}

/// Quoted as a Python literal: single quotes unless only those occur inside, unprintable characters escaped.
fn write_repr(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    f.write_char(quote)?;
    for c in text.chars() {
        match c {
            '\n' => f.write_str("\\n")?,
            '\r' => f.write_str("\\r")?,
            '\t' => f.write_str("\\t")?,
            '\\' => f.write_str("\\\\")?,
            _ if c == quote => write!(f, "\\{c}")?,
            _ if is_printable(c) => f.write_char(c)?,
            _ => match u32::from(c) {
                n @ 0..=0xFF => write!(f, "\\x{n:02x}")?,
                n @ 0x100..=0xFFFF => write!(f, "\\u{n:04x}")?,
                n => write!(f, "\\U{n:08x}")?,
            },
        }
    }
    f.write_char(quote)
}

/// Neither a control, format, private, unassigned or separator character other than the space: Python's definition,
/// and that of Rust's `escape_debug` for characters that are not the first of a string.
fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return !c.is_ascii_control();
    }
    let mut buffer = [b'a'; 5];
    let len = 1 + c.encode_utf8(&mut buffer[1..]).len();
    std::str::from_utf8(&buffer[..len]).is_ok_and(|s| s.escape_debug().nth(1) == Some(c))
}

/// The arguments of `json.dumps` that templates use.
pub(super) struct Json {
    /// Non-ASCII characters as `\uXXXX`.
    pub(super) ensure_ascii: bool,
    /// What one level is indented with; `None` writes one line.
    pub(super) indent: Option<String>,
    /// Between items, and between key and value.
    pub(super) separators: (String, String),
    /// Mappings in the order of their keys.
    pub(super) sort_keys: bool,
    /// Longer texts, in bytes, are an error.
    pub(super) limit: usize,
}

impl Json {
    /// The JSON text of a value.
    pub(super) fn dumps(&self, value: &Value) -> Result<String, Error> {
        let mut out = String::new();
        self.write(value, 0, &mut out)?;
        Ok(out)
    }

    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(too_deep());
        }
        if let Some(text) = value.as_str() {
            return self.write_string(text, out);
        }
        match value.kind() {
            ValueKind::None | ValueKind::Bool | ValueKind::Number => self.push(&scalar(value), out)?,
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
                self.write_items(&items, ["[", "]"], depth, out, |item, out| {
                    self.write(item, depth + 1, out)
                })?;
            }
            ValueKind::Map => {
                let mut items: Vec<(String, Value)> = Vec::new();
                for (key, item) in pairs(value) {
                    let key = match key.kind() {
                        ValueKind::String => key.to_string(),
                        ValueKind::None | ValueKind::Bool | ValueKind::Number => scalar(&key),
                        kind => return Err(not_serializable(format!("a key of kind {kind}"))),
                    };
                    items.push((key, item));
                }
                if self.sort_keys {
                    items.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.write_items(&items, ["{", "}"], depth, out, |(key, item), out| {
                    self.write_string(key, out)?;
                    self.push(&self.separators.1, out)?;
                    self.write(item, depth + 1, out)
                })?;
            }
            kind => return Err(not_serializable(kind)),
        }
        Ok(())
    }

    fn push(&self, text: &str, out: &mut String) -> Result<(), Error> {
        if out.len() + text.len() > self.limit {
            return Err(Error::from(ErrorKind::OutOfFuel));
        }
        out.push_str(text);
        Ok(())
    }

    fn write_items<T>(
        &self,
        items: &[T],
        [open, close]: [&str; 2],
        depth: usize,
        out: &mut String,
        mut write: impl FnMut(&T, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let new_line = |depth, out: &mut String| {
            let Some(indent) = &self.indent else { return Ok(()) };
            self.push("\n", out)?;
            (0..depth).try_for_each(|_| self.push(indent, out))
        };
        self.push(open, out)?;
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                self.push(&self.separators.0, out)?;
            }
            new_line(depth + 1, out)?;
            write(item, out)?;
        }
        if !items.is_empty() {
            new_line(depth, out)?;
        }
        self.push(close, out)
    }

    fn write_string(&self, text: &str, out: &mut String) -> Result<(), Error> {
        self.push("\"", out)?;
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                '\0'..='\x1f' => escape_utf16(c, out),
                '\x7f'.. if self.ensure_ascii => escape_utf16(c, out),
                _ => out.push(c),
            }
        }
        self.push("\"", out)
    }
}

fn escape_utf16(c: char, out: &mut String) {
    for unit in c.encode_utf16(&mut [0; 2]) {
        // Writing to a text cannot fail.
        let _ = write!(out, "\\u{unit:04x}");
    }
}

/// `None`, a boolean or a number in JSON.
fn scalar(value: &Value) -> String {
    match (value.kind(), as_float(value)) {
        (ValueKind::None, _) => "null".into(),
        (ValueKind::Bool, _) => if value.is_true() { "true" } else { "false" }.into(),
        (_, Some(x)) if x.is_nan() => "NaN".into(),
        (_, Some(x)) if x.is_infinite() => if x > 0.0 { "Infinity" } else { "-Infinity" }.into(),
        (_, Some(x)) => float(x),
        _ => value.to_string(),
    }
}

fn not_serializable(what: impl fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("{what} has no JSON form"))
}

/// Python's white space: Unicode's, and four separators of ASCII.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\x1c'..='\x1f')
}

/// `str.splitlines`.
pub(super) fn lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let ends = ['\n', '\r', '\x0b', '\x0c', '\x1c', '\x1d', '\x1e', '\u{85}', '\u{2028}', '\u{2029}'];
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(ends) {
        let end = rest[at..].chars().next().map_or(0, char::len_utf8);
        let end = at + if rest[at..].starts_with("\r\n") { 2 } else { end };
        lines.push(&rest[..if keep_ends { end } else { at }]);
        rest = &rest[end..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}
