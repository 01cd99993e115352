//! The GGUF reader and writer: damaged files, split sets, metadata, round trips, mutations.

#[path = "gguf/broken.rs"]
mod broken;
