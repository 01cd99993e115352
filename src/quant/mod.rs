//! Quantized blocks: the ggml types, their layouts, dequantization and quantization. Knows no model and no file.
//!
//! Fast code names the block struct ([`BlockQ4K`](block::BlockQ4K)) and calls [`Block::dequantize`] or
//! [`dequantize_blocks`]; [`dequantize`](dequantize()) and [`Weight::dequantize`] decide at run time, once per call.

pub mod activations;
pub mod block;
pub(crate) mod cache_rows;
pub(crate) mod dequantize;
pub mod ggml_type;
mod grids;
mod i_blocks;
mod k_blocks;
mod quantize;
pub mod scalar;
mod small_blocks;
pub mod tiles;
pub mod weight;

pub use activations::{ActBlockSize, Activations, quantize_activations};
pub use block::{Block, as_blocks, dequantize_blocks};
pub(crate) use dequantize::with_block;
pub use dequantize::{check_supported, dequantize, is_supported};
pub use ggml_type::GgmlType;
pub use quantize::quantize;
pub use weight::{Make, SharedBytes, Weight};

/// Levels of the 4-bit quants of IQ4_NL and IQ4_XS.
pub const IQ4_LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Levels of MXFP4 (E2M1), doubled to be integers.
pub(crate) const MXFP4_LEVELS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
