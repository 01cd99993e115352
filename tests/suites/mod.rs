//! What several test crates share.

pub mod blocks;
