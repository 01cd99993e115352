//! Python's string methods where `minijinja-contrib` lacks them or differs in white space, lines and titles.

use std::collections::HashSet;

use minijinja::value::{Kwargs, Tuple, Value, from_args};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::limits::pay;
use super::python::{is_space, lines};

/// Calls a method that the value itself does not have.
pub(super) fn call(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return unknown_method_callback(state, value, method, args);
    };
    match method {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<String>,) = from_args(args)?;
            Ok(Value::from(strip(method, text, chars)))
        }
        "split" | "rsplit" => {
            let (separator, count, kwargs): (Option<String>, Option<i64>, Kwargs) = from_args(args)?;
            let separator = match separator {
                Some(separator) => Some(separator),
                None => kwargs.get::<Option<String>>("sep")?,
            };
            let count = match count {
                Some(count) => count,
                None => kwargs.get::<Option<i64>>("maxsplit")?.unwrap_or(-1),
            };
            kwargs.assert_all_used()?;
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            pay_parts(
                state,
                match separator.as_deref() {
                    None => text.split(is_space).count(),
                    Some(separator) => text.matches(separator).count(),
                },
            )?;
            let parts = match separator.as_deref() {
                Some("") => return Err(Error::new(ErrorKind::InvalidOperation, "empty separator")),
                Some(separator) if method == "split" => {
                    text.splitn(count.saturating_add(1), separator).collect()
                }
                Some(separator) => {
                    let mut parts: Vec<&str> = text.rsplitn(count.saturating_add(1), separator).collect();
                    parts.reverse();
                    parts
                }
                None if method == "split" => split_space(text, count),
                None => rsplit_space(text, count),
            };
            Ok(list(parts))
        }
        "splitlines" => {
            let (keep_ends, kwargs): (Option<bool>, Kwargs) = from_args(args)?;
            let keep_ends = match keep_ends {
                Some(keep_ends) => keep_ends,
                None => kwargs.get::<Option<bool>>("keepends")?.unwrap_or(false),
            };
            kwargs.assert_all_used()?;
            let parts = lines(text, keep_ends);
            pay_parts(state, parts.len())?;
            Ok(list(parts))
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            let found = if method == "partition" {
                text.split_once(separator).map(|(left, right)| [left, separator, right])
            } else {
                text.rsplit_once(separator).map(|(left, right)| [left, separator, right])
            };
            let missing = if method == "partition" { [text, "", ""] } else { ["", "", text] };
            Ok(Value::from(Tuple::from(found.unwrap_or(missing).map(Value::from))))
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        "index" => {
            let (part,): (&str,) = from_args(args)?;
            match text.find(part) {
                Some(at) => Ok(Value::from(text[..at].chars().count())),
                None => Err(Error::new(ErrorKind::InvalidOperation, "substring not found")),
            }
        }
        "format" => {
            pay_format(state, text, args)?;
            unknown_method_callback(state, value, method, args)
        }
        "title" => {
            let () = from_args(args)?;
            Ok(Value::from(title(text)))
        }
        "swapcase" => {
            let () = from_args(args)?;
            let swap = |c: char| match c.is_uppercase() {
                true => c.to_lowercase().collect::<String>(),
                false => c.to_uppercase().collect(),
            };
            Ok(Value::from(text.chars().map(swap).collect::<String>()))
        }
        _ => unknown_method_callback(state, value, method, args),
    }
}

/// Pays for a list of `n` parts of a text.
fn pay_parts(state: &State, n: usize) -> Result<(), Error> {
    pay(state, n.saturating_mul(64))
}

/// Pays for what a format can make: every field the longest of the arguments, and a width in digits.
fn pay_format(state: &State, format: &str, args: &[Value]) -> Result<(), Error> {
    if format.split(|c: char| !c.is_ascii_digit()).any(|digits| digits.len() > 4) {
        return Err(Error::new(ErrorKind::InvalidOperation, "a format of more than 9999 characters"));
    }
    let mut longest = 0;
    for arg in args {
        longest = longest.max(arg.as_str().map_or_else(|| arg.to_string().len(), str::len));
    }
    pay(state, format.matches('{').count().saturating_mul(longest + 10_000))
}

/// `str.strip`, `lstrip` or `rstrip`: of these characters, or of Python's white space.
pub(super) fn strip<'a>(method: &str, text: &'a str, chars: Option<String>) -> &'a str {
    let chars: Option<HashSet<char>> = chars.map(|chars| chars.chars().collect());
    let cut = |c: char| chars.as_ref().map_or_else(|| is_space(c), |chars| chars.contains(&c));
    match method {
        "strip" => text.trim_matches(cut),
        "lstrip" => text.trim_start_matches(cut),
        _ => text.trim_end_matches(cut),
    }
}

/// Words, after at most `count` cuts: the last one then keeps what follows, but no white space before it.
fn split_space(text: &str, count: usize) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text.trim_start_matches(is_space);
    while !rest.is_empty() {
        let end = if words.len() == count { rest.len() } else { rest.find(is_space).unwrap_or(rest.len()) };
        words.push(&rest[..end]);
        rest = rest[end..].trim_start_matches(is_space);
    }
    words
}

/// [`split_space`] from the end.
fn rsplit_space(text: &str, count: usize) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text.trim_end_matches(is_space);
    while !rest.is_empty() {
        let space =
            if words.len() == count { None } else { rest.char_indices().rfind(|&(_, c)| is_space(c)) };
        let start = space.map_or(0, |(at, c)| at + c.len_utf8());
        words.push(&rest[start..]);
        rest = rest[..start].trim_end_matches(is_space);
    }
    words.reverse();
    words
}

/// Every run of letters begins with a capital and goes on in small letters; anything else ends a run.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for c in text.chars() {
        if inside {
            out.extend(c.to_lowercase());
        } else {
            // One character may become several (ß: SS); only the first is the capital.
            let mut upper = c.to_uppercase();
            out.extend(upper.next());
            out.extend(upper.flat_map(char::to_lowercase));
        }
        inside = c.is_lowercase() || c.is_uppercase();
    }
    out
}

fn list(parts: Vec<&str>) -> Value {
    parts.into_iter().map(Value::from).collect()
}
