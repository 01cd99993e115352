//! The model as a whole.

#[path = "model/capacity.rs"]
mod capacity;
#[path = "model/common.rs"]
mod common;
#[path = "model/pieces.rs"]
mod pieces;
#[path = "model/sparse.rs"]
mod sparse;
#[path = "model/texts.rs"]
mod texts;
