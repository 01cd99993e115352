//! What a chat template may cost, and the checks that hold it to that: see `compile`.

use std::time::{Duration, Instant};

use minijinja::value::{DynObject, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};

use crate::error::{Error as CrateError, Result};

/// The longest source, in bytes; those of published models have up to 17 KB. Parser and compiler recurse, at most once
/// for each byte.
pub(super) const MAX_SOURCE: usize = 32 << 10;

/// Stack of the thread that compiles and renders, of which only what is used takes memory: 8 KiB for each byte of the
/// longest source. Of all that recurses, `{% set ((((` takes most, 2 to 4 KiB for each byte without optimization.
const STACK: usize = 256 << 20;

/// One for each instruction and each 64 bytes that it makes: a fraction of a second, and 128 MB of text. GLM's template
/// takes 0.3 million for 1500 messages with 1.5 MB of text, calls and 50 tools, twice what fits GLM-5's context.
const FUEL: u64 = 2_000_000;

/// How deep values nest. `serde_json` reads up to 128.
pub(super) const MAX_DEPTH: usize = 200;

/// The size of one value as a tree, in bytes of its texts and [`NODE`] for every value in it.
const MAX_SIZE: usize = 16 << 20;
const NODE: usize = 64;

/// For what fuel does not count, such as comparisons of long texts. With values of [`MAX_SIZE`] no instruction takes
/// longer; a sound rendering takes hundredths of it.
const MAX_TIME: Duration = Duration::from_secs(2);

/// Names of the filters that check. No source can spell them.
pub(super) const MADE: &str = "(made)";
pub(super) const ASSIGNED: &str = "(assigned)";

pub(super) fn register(env: &mut Environment<'static>) {
    env.set_fuel(Some(FUEL));
    env.add_filter(MADE, made);
    env.add_filter(ASSIGNED, assigned);
    // Not of Jinja2. They make lists, or print all that there is, before anything is counted.
    env.remove_filter("split");
    env.remove_filter("lines");
    env.remove_global("debug");
}

/// Runs `work` where it has [`STACK`]; that it panics is an error, too.
pub(super) fn with_stack<T: Send>(
    work: impl FnOnce() -> std::result::Result<T, Error> + Send,
    failed: impl Fn(Error) -> CrateError,
) -> Result<T> {
    let what = "chat template";
    std::thread::scope(|scope| {
        let thread =
            std::thread::Builder::new().name(what.into()).stack_size(STACK).spawn_scoped(scope, work);
        let thread = thread.map_err(|e| CrateError::Text { what, message: format!("no thread: {e}") })?;
        let panicked = |_| CrateError::Text { what, message: "the template engine panicked".into() };
        thread.join().map_err(panicked)?.map_err(failed)
    })
}

/// When the rendering began.
struct Start(Instant);

/// Lets a value pass that a template may hold. Lists that are views of others (slices, repetitions, concatenations)
/// become lists of their own, as views of views could be of any depth.
fn made(state: &mut State, value: &Value) -> std::result::Result<Value, Error> {
    let start = state.get_or_insert_extension_with(|| Start(Instant::now())).0;
    if start.elapsed() > MAX_TIME {
        return Err(refused("takes too long"));
    }
    weigh(state, [(value, 0)])?;
    let is_view = value.kind() == ValueKind::Iterable && value.len().is_some();
    if is_view {
        return Ok(Value::from(
            value.try_iter()?.checked().collect::<std::result::Result<Vec<Value>, Error>>()?,
        ));
    }
    Ok(value.clone())
}

/// Lets a namespace and a value that is to become an attribute of it pass.
fn assigned(state: &State, pair: &Value) -> std::result::Result<Value, Error> {
    weigh(state, [(&pair.get_item_by_index(0)?, 0), (&pair.get_item_by_index(1)?, 1)])?;
    Ok(pair.clone())
}

/// Refuses values that are together too large or too deep, each given with the depth at which it will be.
fn weigh<const N: usize>(state: &State, values: [(&Value, usize); N]) -> std::result::Result<(), Error> {
    let mut size = Size::default();
    for (value, depth) in values {
        size.add(value, depth)?;
    }
    // Looking at them is work, too.
    state.consume_fuel(size.values / 8)
}

#[derive(Default)]
struct Size {
    values: u64,
    bytes: usize,
}

impl Size {
    fn add(&mut self, value: &Value, depth: usize) -> std::result::Result<(), Error> {
        self.values += 1;
        self.bytes += NODE + value.as_str().map_or(0, str::len);
        if self.bytes > MAX_SIZE {
            return Err(refused("makes too large a value"));
        }
        if depth > MAX_DEPTH {
            return Err(refused("nests values too deep"));
        }
        let Some(object) = value.as_object() else { return Ok(()) };
        // What changes later cannot be checked now.
        if depth > 0 && (is_loop(object) || object.type_name().ends_with("::Namespace")) {
            return Err(refused("puts a namespace or a loop into another value"));
        }
        match value.kind() {
            ValueKind::Map if !is_loop(object) => {
                for (key, item) in object.try_iter_pairs().into_iter().flatten() {
                    self.add(&key, depth + 1)?;
                    self.add(&item, depth + 1)?;
                }
            }
            ValueKind::Seq | ValueKind::Iterable => {
                for item in object.try_iter().into_iter().flatten() {
                    self.add(&item, depth + 1)?;
                }
            }
            _ => (),
        }
        Ok(())
    }
}

/// Known by name only: the type is private.
fn is_loop(object: &DynObject) -> bool {
    object.type_name().ends_with("::Loop")
}

/// Bytes that the fuel left can pay for.
pub(super) fn bytes_left(state: &State) -> usize {
    state
        .fuel_levels()
        .map_or(usize::MAX, |(_, left)| usize::try_from(left.saturating_mul(64)).unwrap_or(usize::MAX))
}

/// Pays for `bytes` before they are made.
pub(super) fn pay(state: &State, bytes: usize) -> std::result::Result<(), Error> {
    state.consume_fuel(bytes as u64 / 64)
}

fn refused(what: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("the template {what}"))
}
