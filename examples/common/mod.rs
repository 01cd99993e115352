//! What the examples share: arguments, errors, loading, decoding, figures.
#![allow(dead_code)] // every example takes its own part of it

pub mod answer;
pub mod args;
pub mod failure;
pub mod figures;
pub mod interrupt;
pub mod load;
pub mod plan;
pub mod progress;
pub mod prompt;
pub mod session;

use std::io::{self, Write};

use glm5::tensor::Device;

/// Runs `f` where the device's operations start without a hand-over between threads: on the CPU inside its pool.
pub fn install<R: Send>(device: &Device, f: impl FnOnce() -> R + Send) -> R {
    match device {
        Device::Cpu(cpu) => cpu.install(f),
        _ => f(),
    }
}

/// Writes to standard output, at once: readers see text as it grows, and errors of a closed pipe or a full disk come here
/// and not as a panic of `print!`.
pub fn show(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// One JSON object on one line of standard output.
pub fn show_json(value: &serde_json::Value) -> io::Result<()> {
    show(&format!("{value}\n"))
}
