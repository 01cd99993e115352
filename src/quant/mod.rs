//! Quantized blocks: the ggml types, their layouts, dequantization and quantization. Knows no model and no file.

pub mod ggml_type;
pub mod weight;

pub use ggml_type::GgmlType;
pub use weight::{SharedBytes, Weight};
