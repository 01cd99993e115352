//! Metadata of a file: ordered keys and typed access that names file, key and both types when they disagree.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};

use super::value::{Array, StrArray, Value};
use crate::error::{Error, Result};

/// Keys and values in file order.
#[derive(Debug, Clone)]
pub struct Metadata {
    file: PathBuf,
    entries: Vec<(String, Value)>,
    index: HashMap<String, usize>,
}

impl Metadata {
    pub(super) fn new(file: &Path) -> Self {
        Metadata { file: file.into(), entries: Vec::new(), index: HashMap::new() }
    }

    pub(super) fn insert(&mut self, key: String, value: Value) -> Result<()> {
        if self.index.insert(key.clone(), self.entries.len()).is_some() {
            return Err(Error::key(&self.file, &key, "duplicate key"));
        }
        self.entries.push((key, value));
        Ok(())
    }

    /// The file they come from (for split sets: shard 0).
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All keys and values in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(k, v)| (k.as_str(), v))
    }

    /// The value of a key as it was declared.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&i| &self.entries[i].1)
    }

    /// The value of an optional key. Integers of any declared width are widened, see [`FromValue`].
    ///
    /// # Errors
    /// [`Error::File`] naming the key if it has another type or does not fit.
    pub fn get<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        match T::from_value(value) {
            Some(x) => Ok(Some(x)),
            None => {
                let found = match value {
                    Value::Array(a) => format!("array of {} {}", a.len(), a.element_type().name()),
                    scalar => format!("{} {scalar}", scalar.value_type().name()),
                };
                Err(Error::key(&self.file, key, format!("expected {}, found {found}", T::EXPECTED)))
            }
        }
    }

    /// The value of a key that must be there.
    ///
    /// # Errors
    /// As [`Metadata::get`], and [`Error::File`] if the key is missing.
    pub fn require<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T> {
        self.get(key)?
            .ok_or_else(|| Error::key(&self.file, key, format!("missing, expected {}", T::EXPECTED)))
    }
}

/// A map from key to value, in file order.
impl Serialize for Metadata {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_map(self.iter())
    }
}

/// A Rust type that a metadata value can be read as. Integers are read from every integer type that holds a fitting
/// value, floats from `f32` and `f64`; nothing else is converted.
pub trait FromValue<'a>: Sized {
    /// The expected type in error texts.
    const EXPECTED: &'static str;

    /// The value, if it has a fitting type.
    fn from_value(value: &'a Value) -> Option<Self>;
}

macro_rules! from_integer {
    ($($t:ty, $expected:literal);*) => {$(
        impl FromValue<'_> for $t {
            const EXPECTED: &'static str = $expected;
            fn from_value(value: &Value) -> Option<Self> { value.as_integer()?.try_into().ok() }
        }
    )*};
}
from_integer!(u64, "an integer of 0 or more"; u32, "an integer from 0 to 2^32 - 1"; usize, "an integer of 0 or more";
    i64, "an integer");

impl FromValue<'_> for f32 {
    const EXPECTED: &'static str = "a float";
    fn from_value(value: &Value) -> Option<Self> {
        match *value {
            Value::F32(x) => Some(x),
            Value::F64(x) => Some(x as f32),
            _ => None,
        }
    }
}

impl FromValue<'_> for bool {
    const EXPECTED: &'static str = "a bool";
    fn from_value(value: &Value) -> Option<Self> {
        match *value {
            Value::Bool(x) => Some(x),
            _ => None,
        }
    }
}

impl<'a> FromValue<'a> for &'a str {
    const EXPECTED: &'static str = "a string";
    fn from_value(value: &'a Value) -> Option<Self> {
        match value {
            Value::Str(x) => Some(x),
            _ => None,
        }
    }
}

impl<'a> FromValue<'a> for &'a StrArray {
    const EXPECTED: &'static str = "an array of strings";
    fn from_value(value: &'a Value) -> Option<Self> {
        match value {
            Value::Array(Array::Str(x)) => Some(x),
            _ => None,
        }
    }
}

impl FromValue<'_> for Vec<i64> {
    const EXPECTED: &'static str = "an array of integers";
    fn from_value(value: &Value) -> Option<Self> {
        let Value::Array(array) = value else { return None };
        (0..array.len()).map(|i| i64::try_from(array.get(i)?.as_integer()?).ok()).collect()
    }
}

/// A key that holds one value for all layers or an array with one per layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OneOrMany<T> {
    /// A scalar.
    One(T),
    /// An array.
    Many(Vec<T>),
}

impl<T: Copy> OneOrMany<T> {
    /// The value for index `i`; `None` beyond the end of an array.
    pub fn at(&self, i: usize) -> Option<T> {
        match self {
            OneOrMany::One(x) => Some(*x),
            OneOrMany::Many(v) => v.get(i).copied(),
        }
    }

    fn read(value: &Value, one: impl Fn(&Value) -> Option<T>) -> Option<Self> {
        match value {
            Value::Array(a) => {
                (0..a.len()).map(|i| one(&a.get(i)?)).collect::<Option<Vec<T>>>().map(OneOrMany::Many)
            }
            scalar => one(scalar).map(OneOrMany::One),
        }
    }
}

impl FromValue<'_> for OneOrMany<u64> {
    const EXPECTED: &'static str = "an integer of 0 or more or an array of them";
    fn from_value(value: &Value) -> Option<Self> {
        OneOrMany::read(value, |v| u64::from_value(v))
    }
}

/// Writers disagree on the type of flags, so the integers 0 and 1 are read as flags too.
impl FromValue<'_> for OneOrMany<bool> {
    const EXPECTED: &'static str = "a bool (or 0 or 1) or an array of them";
    fn from_value(value: &Value) -> Option<Self> {
        OneOrMany::read(value, |v| match (v, v.as_integer()) {
            (Value::Bool(x), _) => Some(*x),
            (_, Some(0)) => Some(false),
            (_, Some(1)) => Some(true),
            _ => None,
        })
    }
}
