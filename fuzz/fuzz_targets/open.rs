//! Opens arbitrary bytes as a GGUF file, and as a split set of two where a second header occurs in them.
//!
//! `cargo +nightly fuzz run open`; the files in `tests/data/broken` are good seeds. The same function runs under
//! `cargo test` on mutated files (`tests/gguf/mutation.rs`).
#![no_main]

#[path = "../../tests/suites/gguf_walk.rs"]
mod gguf_walk;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    _ = gguf_walk::walk(&[data]);
    let second = data.windows(4).skip(1).position(|w| w == b"GGUF");
    if let Some(i) = second {
        let (first, second) = data.split_at(i + 1);
        _ = gguf_walk::walk(&[first, second]);
    }
});
