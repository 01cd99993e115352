//! Dequantization, as specified.
//!
//! The values of each format are those of [`crate::quant::dequantize()`], which golden blocks of every type pin; what is
//! specified here is the rounding to smaller formats.

use crate::error::Result;
use crate::quant::{self, GgmlType};
use half::{bf16, f16};

/// Values of whole blocks.
///
/// # Errors
/// Those of [`crate::quant::dequantize()`].
pub fn dequantize_f32(ty: GgmlType, blocks: &[u8]) -> Result<Vec<f32>> {
    let mut out = vec![0.0; blocks.len() / ty.block_bytes() * ty.block_elems()];
    quant::dequantize(ty, blocks, &mut out)?;
    Ok(out)
}

/// The nearest f16: 1 sign, 5 exponent, 10 mantissa bits. Of two equally near the one with an even last bit; half a step
/// beyond the largest and more is infinity.
pub fn round_f16(x: f32) -> f16 {
    f16::from_bits(nearest(x, 10, 15))
}

/// The nearest bf16, as [`round_f16`]: 1 sign, 8 exponent, 7 mantissa bits.
pub fn round_bf16(x: f32) -> bf16 {
    bf16::from_bits(nearest(x, 7, 127))
}

/// Searches for the bits of the nearest value of a 16-bit format: magnitudes order as their bits do.
fn nearest(x: f32, mantissa: u32, bias: i32) -> u16 {
    let sign = if x.is_sign_negative() { 0x8000 } else { 0 };
    let infinity = (0x7fff >> mantissa) << mantissa;
    if x.is_nan() {
        return sign | infinity | 1 << (mantissa - 1);
    }
    if x.is_infinite() {
        return sign | infinity;
    }
    let x = f64::from(x.abs());
    // The largest magnitude that is not above x.
    let (mut below, mut above) = (0, infinity);
    while above - below > 1 {
        let middle = below + (above - below) / 2;
        if magnitude(middle, mantissa, bias) <= x {
            below = middle;
        } else {
            above = middle;
        }
    }
    let (down, up) = (x - magnitude(below, mantissa, bias), magnitude(above, mantissa, bias) - x);
    sign | if down < up || down == up && below % 2 == 0 { below } else { above }
}

/// What the bits without sign mean; infinity counts as the step after the largest finite value.
fn magnitude(bits: u16, mantissa: u32, bias: i32) -> f64 {
    let exponent = i32::from(bits >> mantissa);
    let fraction = f64::from(bits & ((1 << mantissa) - 1)) / f64::from(1 << mantissa);
    if exponent == 0 { fraction * 2f64.powi(1 - bias) } else { (1.0 + fraction) * 2f64.powi(exponent - bias) }
}
