//! The C side of `cuda/include/params.h`: one by-value params struct per kernel family, as kernels and emulator see it.
//!
//! Generated, with the layout asserted at compile time. Pointers are of the side that runs the kernel: device memory, or
//! this process's for the emulator.

#[cfg(test)]
mod blocks;
#[allow(non_camel_case_types)] // names are those of C
mod params;

pub use params::*;

#[cfg(test)]
mod tests;
