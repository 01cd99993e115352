//! GLM-5 from GGUF: the whole forward pass, right, provably right, fast.
//!
//! Layers, each importing only those below it:
//!
//! | module | what it knows |
//! |---|---|
//! | [`model`], [`text`] | GLM-5: config, weights, caches, the graph; tokenizer, chat template, sampler |
//! | [`ops`] | one operation each: safe function, checks, reference in plain loops |
//! | [`cpu`] | the fast CPU path: threads and SIMD |
//! | [`cuda`] | GPUs: memory, launches, graphs |
//! | [`kernels`] | which GPU kernels exist, and their code |
//! | [`sys`] | the params structs of those kernels, in C layout |
//! | [`gguf`], [`quant`] | files; block types and their dequantization. No model |
//! | [`tensor`], [`error`] | matrices on a device; the one error type |

#[cfg(not(target_pointer_width = "64"))]
compile_error!("glm5 needs a 64-bit target: one tensor of GLM-5 has more than 2^31 values");
#[cfg(target_endian = "big")]
compile_error!("glm5 needs a little-endian target: blocks are read as they lie in the file");

pub mod cpu;
pub mod cuda;
pub mod error;
pub mod gguf;
pub mod kernels;
pub mod model;
pub mod ops;
pub mod quant;
pub mod sys;
pub mod tensor;
pub mod text;

pub use error::{Error, Result};

/// The README's code, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
