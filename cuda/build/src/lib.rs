//! Build support of `glm5`: from the table of kernel instances to compiled images, and checks of those images.
//!
//! | module | what it does |
//! |---|---|
//! | [`table`] | reads and checks `cuda/instances.toml` |
//! | [`generate`] | writes the units that instantiate kernels, and the Rust side of the table |
//! | [`toolkit`] | finds nvcc and cuobjdump |
//! | [`compile`] | nvcc on every unit whose contents changed; the table of images |
//! | [`host`] | the host's compiler on every file of the emulator whose contents changed |
//! | [`inspect`] | registers, memory and instructions of compiled kernels |
//! | [`expect`] | which instructions a kernel must have |
//! | [`gates`] | what every compiled kernel must keep to |
//! | [`report`] | `docs/kernels/resources.md` |
//!
//! Used by the build scripts of `glm5` and of the emulator, and by the tests that look into images. Errors are texts for
//! the person at the keyboard: a build script has no caller that could react to a type.

mod cache;
pub mod compile;
pub mod expect;
pub mod gates;
pub mod generate;
pub mod host;
pub mod inspect;
mod loops;
pub mod report;
pub mod table;
pub mod toolkit;
mod value;

pub use cache::folder as cache_folder;
pub use table::Table;
pub use toolkit::Toolkit;
pub use value::{Kind, Value};

/// Result whose error is a text for the person at the keyboard.
pub type Result<T, E = String> = std::result::Result<T, E>;
