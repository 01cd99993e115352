//! The model as a whole: what it computes however it is asked, what it refuses, what it accounts for.

#[path = "model/bytes.rs"]
mod bytes;
#[path = "model/capacity.rs"]
mod capacity;
#[path = "model/common.rs"]
mod common;
#[path = "model/config.rs"]
mod config;
#[path = "model/decode.rs"]
mod decode;
#[path = "model/generation.rs"]
mod generation;
#[path = "model/ledger.rs"]
mod ledger;
#[path = "model/pieces.rs"]
mod pieces;
#[path = "model/plan.rs"]
mod plan;
#[path = "model/slices.rs"]
mod slices;
#[path = "model/sparse.rs"]
mod sparse;
#[path = "suites/synthetic.rs"]
mod synthetic;
#[path = "model/synthetic.rs"]
mod synthetic_models;
#[path = "model/texts.rs"]
mod texts;
