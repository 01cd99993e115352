//! The GGUF reader and writer: damaged files, split sets, metadata, round trips, mutations.

#[path = "gguf/broken.rs"]
mod broken;
#[path = "gguf/files.rs"]
mod files;
#[path = "gguf/full_size.rs"]
mod full_size;
#[path = "suites/gguf_walk.rs"]
mod gguf_walk;
#[path = "gguf/metadata.rs"]
mod metadata;
#[path = "gguf/mutation.rs"]
mod mutation;
#[path = "gguf/round_trip.rs"]
mod round_trip;
#[path = "gguf/rules.rs"]
mod rules;
#[path = "suites/synthetic.rs"]
mod synthetic;
