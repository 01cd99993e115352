//! GPUs: a device handle, typed memory, launches, graphs; and the launching side of every operation that has a kernel.
//!
//! Together with [`crate::sys`] the only place with `unsafe`. Needs no toolkit and no driver: a [`Gpu`] runs on a
//! [`Runtime`], which is the CUDA driver (feature `cuda`) or, in tests, an emulator that runs the same kernels on the host.

#![allow(unsafe_code)]

mod buffer;
pub(crate) mod cache;
pub(crate) mod dequantize;
#[cfg(feature = "cuda")]
pub mod driver;
pub(crate) mod dsa_indexer;
pub(crate) mod dsa_topk;
pub mod environment;
pub(crate) mod ffn;
mod gpu;
mod graph;
pub(crate) mod linear;
pub(crate) mod linear_heads;
pub(crate) mod linear_tiled;
pub(crate) mod mla_attention;
pub(crate) mod mla_prefill;
pub(crate) mod moe;
pub(crate) mod moe_blocks;
mod moe_many;
pub(crate) mod moe_shared;
pub(crate) mod moe_sort;
pub(crate) mod moe_sum;
pub(crate) mod norm;
mod order;
mod planned;
pub(crate) mod post_a;
pub mod roofs;
pub(crate) mod rope;
pub(crate) mod router;
pub mod runtime;
mod turns;

pub use buffer::Buffer;
pub use environment::Environment;
pub use gpu::Gpu;
pub use graph::Graph;
pub(crate) use planned::planned;
pub use runtime::{Memory, Properties, Runtime};
pub use turns::Turn;
