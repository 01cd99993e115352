//! GLM-5 from GGUF: the whole forward pass, right, provably right, fast.
//!
//! Layers, each importing only those below it:
//!
//! | module | what it knows |
//! |---|---|
//! | [`model`], [`text`] | GLM-5: config, weights, caches, the graph; tokenizer, chat template, sampler |
//! | [`ops`] | one operation each: safe function, checks, reference in plain loops |
//! | [`cpu`] | the fast CPU path: threads and SIMD |
//! | [`gguf`], [`quant`] | files; block types and their dequantization. No model |
//! | [`tensor`], [`error`] | matrices on a device; the one error type |

pub mod cpu;
pub mod error;
pub mod gguf;
pub mod model;
pub mod ops;
pub mod quant;
pub mod tensor;
pub mod text;

pub use error::{Error, Result};

/// The README's code, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
