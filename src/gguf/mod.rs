//! GGUF files: reader, split sets, metadata, writer, the weight ledger. Knows no model.
//!
//! ```no_run
//! # fn main() -> glm5::Result<()> {
//! let gguf = glm5::gguf::Gguf::open("models/nano-q4_k_m.gguf")?; // or any shard of a split set
//! let blocks: u64 = gguf.metadata().require("glm-dsa.block_count")?;
//! for tensor in gguf.tensors() {
//!     println!("{} {} {:?} of {blocks} blocks", tensor.name, tensor.ty, tensor.ne());
//! }
//! # Ok(()) }
//! ```
//!
//! Extents are in GGUF order here (`ne0` first, contiguous); everywhere else in the crate they are `[rows, cols]`.
//! The formats are those of llama.cpp's `gguf.cpp` and `llama-model-loader.cpp`.

mod cut;
mod ledger;
mod map;
mod metadata;
mod parse;
mod reader;
mod split;
mod tensor_info;
mod value;
mod writer;

pub use cut::{Cut, Shard};
pub use ledger::{Count, Dims, IdleGroup, Ledger, LedgerReport, ShardCount};
pub use metadata::{FromValue, Metadata, OneOrMany};
pub use reader::{Gguf, ShardFile};
pub use tensor_info::{TensorInfo, TypeCount};
pub use value::{Array, StrArray, Value, ValueType};
pub use writer::Writer;
