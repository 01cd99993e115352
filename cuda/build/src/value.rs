//! Template arguments: what `instances.toml` says, and how C++ and Rust spell it.

use crate::Result;

/// What a template argument may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An integer: tile sizes, warps, stages. C++ `int`, Rust `u32`.
    Int,
    /// A ggml type by name, such as `"Q4_K"`. C++ its block struct, Rust `GgmlType`.
    Type,
    /// A type of single values: `"F32"`, `"F16"`, `"BF16"`. C++ `float`, `f16`, `bf16`; Rust `GgmlType`.
    Scalar,
}

/// The types that have a block struct in `params.h`.
const TYPES: &[&str] = &[
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
    "IQ4_NL", "IQ4_XS", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M", "MXFP4",
];

const SCALARS: &[(&str, &str)] = &[("F32", "float"), ("F16", "f16"), ("BF16", "bf16")];

impl Kind {
    pub(crate) fn parse(name: &str) -> Result<Kind> {
        match name {
            "int" => Ok(Kind::Int),
            "type" => Ok(Kind::Type),
            "scalar" => Ok(Kind::Scalar),
            _ => Err(format!("`{name}` is no kind of argument: int, type, scalar")),
        }
    }

    /// The Rust type of such a value.
    pub fn rust_type(self) -> &'static str {
        match self {
            Kind::Int => "u32",
            Kind::Type | Kind::Scalar => "GgmlType",
        }
    }

    pub(crate) fn value(self, toml: &toml::Value) -> Result<Value> {
        match (self, toml) {
            (Kind::Int, toml::Value::Integer(i)) => match u32::try_from(*i) {
                // C++ sees an int.
                Ok(i) if i <= i32::MAX as u32 => Ok(Value::Int(i)),
                _ => Err(format!("{i} is out of range")),
            },
            (Kind::Type, toml::Value::String(s)) => match TYPES.iter().find(|t| *t == s) {
                Some(name) => Ok(Value::Type(name)),
                None => Err(format!("`{s}` is no type with a block struct: {}", TYPES.join(", "))),
            },
            (Kind::Scalar, toml::Value::String(s)) => match SCALARS.iter().find(|(name, _)| name == s) {
                Some((name, cpp)) => Ok(Value::Scalar { name, cpp }),
                None => Err(format!("`{s}` is no scalar: F32, F16, BF16")),
            },
            _ => Err(format!("{} where {self:?} is expected", toml.type_str())),
        }
    }
}

/// A template argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Of [`Kind::Int`].
    Int(u32),
    /// Of [`Kind::Type`].
    Type(&'static str),
    /// Of [`Kind::Scalar`].
    Scalar {
        /// In the table.
        name: &'static str,
        /// In kernels.
        cpp: &'static str,
    },
}

impl Value {
    /// As a C++ template argument.
    pub fn cpp(&self) -> String {
        match self {
            Value::Int(i) => i.to_string(),
            // As in ggml: block_q4_K, block_iq2_xxs.
            Value::Type(name) => format!("block_{}", name.to_lowercase().replace("_k", "_K")),
            Value::Scalar { cpp, .. } => cpp.to_string(),
        }
    }

    /// Two C++ expressions: a number and 0, or values and bytes of a block of the type.
    pub(crate) fn size_cpp(&self) -> String {
        let cpp = self.cpp();
        match self {
            Value::Int(i) => format!("{i}, 0"),
            Value::Type(_) => format!("decode<{cpp}>::kElems, sizeof({cpp})"),
            Value::Scalar { .. } => format!("1, sizeof({cpp})"),
        }
    }

    /// As a Rust expression.
    pub fn rust(&self) -> String {
        match self {
            Value::Int(i) => i.to_string(),
            Value::Type(name) | Value::Scalar { name, .. } => format!("GgmlType::{name}"),
        }
    }

    /// Its part of the entry's name. Integers get the initials of the argument: `tile_m = 64` is `tm64`.
    pub(crate) fn label(&self, arg: &str) -> String {
        match self {
            Value::Int(i) => format!("{}{i}", initials(arg)),
            Value::Type(name) | Value::Scalar { name, .. } => name.to_lowercase(),
        }
    }
}

pub(crate) fn initials(arg: &str) -> String {
    arg.split('_').filter_map(|word| word.chars().next()).collect()
}
