//! GLM-5: config, weights, caches, the graph. Calls [`crate::ops`], holds no maths of its own.
//!
//! ```no_run
//! use glm5::model::{Batch, LoadOptions, LogitRows, Model};
//! use glm5::tensor::{CacheType, Device};
//! # fn main() -> glm5::Result<()> {
//! let device = Device::cpu(None)?;
//! let mut model = Model::open("models/nano-q4_k_m.gguf", &device, &LoadOptions::default())?;
//! let mut cache = model.new_cache(4096, CacheType::F32)?;
//! let seq = cache.new_sequence();
//! let logits = model.forward(&Batch::one(seq, &[4079, 4081], LogitRows::Last), &mut cache)?;
//! assert_eq!(logits.shape(), [1, 4096]);
//! # Ok(()) }
//! ```

mod batch;
mod cache;
mod config;
mod counters;
mod decode;
mod graph;
mod observe;
mod plan;
mod report;
mod slice;
mod synthetic;
mod weights;
mod workspace;

pub use batch::{Batch, LogitRows, Sequence};
pub use cache::{Cache, SeqId};
pub use config::{Config, IndexerKind};
pub use counters::{Counters, LayerCounters};
pub use graph::{Attention, LoadOptions, Model};
pub use observe::{Event, Ignore, Observer};
pub use plan::{Launches, Plan, PlanOptions};
pub use report::LoadReport;
pub use slice::Slice;
pub use synthetic::{Synthetic, Types};
