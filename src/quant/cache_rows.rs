//! Rows of caches in fewer bits than their values have: latent rows in fp8, keys of the indexer in int8. Kernels write the same bytes.
//!
//! A latent row `[latent | rotated]`: e4m3 of the latent values, then an f32 scale for each 128 of them, then the 64 rotated values as bf16.
//! A scale is the least power of two that brings its values within 448, so that both products with it are exact and only e4m3 rounds:
//! a value `v` comes back within `max(|v| / 16, scale / 1024)`, and what comes back, written again, stays.
//!
//! A key of 128 values is rotated by a Hadamard matrix (orthonormal, its own inverse), which spreads what is far from the others over all,
//! and rounded to int8 with one scale, as activations are ([`super::Activations`], of blocks of 128): within half a step in each of the
//! rotated values, so in the length of the difference within `sqrt(128) / 2` steps, and a step is at most 1/127 of the length of the key.
//! Scores are products with queries, and a kernel may rotate these in place of the keys; on the CPU keys are rotated back.

use half::bf16;

use super::activations::quantize_act_block;

/// Latent values that share a scale.
pub(crate) const FP8_BLOCK: usize = 128;

/// Rotated values of a latent row in fp8.
pub(crate) const FP8_ROTATED: usize = 64;

/// Values of a key in int8.
pub(crate) const INT8_KEY: usize = 128;

/// Bytes of a row of `width` values; `None` if its latent part is not whole blocks.
pub(crate) fn fp8_row_bytes(width: usize) -> Option<usize> {
    let latent = width.checked_sub(FP8_ROTATED).filter(|n| *n > 0 && n.is_multiple_of(FP8_BLOCK))?;
    Some(latent + latent / FP8_BLOCK * 4 + 2 * FP8_ROTATED)
}

/// Writes a row of a width that [`fp8_row_bytes`] knows.
pub(crate) fn write_fp8_row(x: &[f32], row: &mut [u8]) {
    let (latent, rotated) = x.split_at(x.len() - FP8_ROTATED);
    let (quants, rest) = row.split_at_mut(latent.len());
    let (scales, out) = rest.split_at_mut(latent.len() / FP8_BLOCK * 4);
    let blocks = latent.chunks_exact(FP8_BLOCK).zip(quants.chunks_exact_mut(FP8_BLOCK));
    for ((x, quants), to) in blocks.zip(scales.chunks_exact_mut(4)) {
        let amax = x.iter().fold(0, |m, v| m.max(v.to_bits() & 0x7fff_ffff));
        let (scale, inverse) = fp8_scale(amax);
        for (q, x) in quants.iter_mut().zip(x) {
            *q = e4m3_of(x * inverse);
        }
        if inverse == 0.0 {
            quants.fill(0);
        }
        to.copy_from_slice(&scale.to_le_bytes());
    }
    for (x, to) in rotated.iter().zip(out.chunks_exact_mut(2)) {
        to.copy_from_slice(&bf16::from_f32(*x).to_le_bytes());
    }
}

/// The values of a row.
pub(crate) fn read_fp8_row(row: &[u8], out: &mut [f32]) {
    let (latent, rotated) = out.split_at_mut(out.len() - FP8_ROTATED);
    let (quants, rest) = row.split_at(latent.len());
    let (scales, from) = rest.split_at(latent.len() / FP8_BLOCK * 4);
    let blocks = latent.chunks_exact_mut(FP8_BLOCK).zip(quants.chunks_exact(FP8_BLOCK));
    for ((out, quants), scale) in blocks.zip(scales.as_chunks::<4>().0) {
        let scale = f32::from_le_bytes(*scale);
        out.iter_mut().zip(quants).for_each(|(o, q)| *o = e4m3_to_f32(*q) * scale);
    }
    for (o, b) in rotated.iter_mut().zip(from.as_chunks::<2>().0) {
        *o = bf16::from_le_bytes(*b).to_f32();
    }
}

/// The least power of two that brings magnitudes up to the one with these bits within 448, and its inverse. NaN and 0 for what is not
/// finite: then quants are zeros, and all values come back as NaN.
fn fp8_scale(amax: u32) -> (f32, f32) {
    if amax >= 0x7f80_0000 {
        return (f32::NAN, 0.0);
    }
    // 448 is 1.75 * 2^8: a larger mantissa carries into the exponent.
    let exponent = ((amax + 0x1f_ffff) >> 23).saturating_sub(8).max(1);
    (f32::from_bits(exponent << 23), f32::from_bits((254 - exponent) << 23))
}

/// Nearest e4m3, halves to even, of a magnitude of at most 448.
fn e4m3_of(x: f32) -> u8 {
    let magnitude = x.abs();
    // From 2^-6 on three bits behind the leading one, below that steps of 2^-9: adding 1.5 * 2^23 steps leaves whole ones.
    let exponent = (magnitude.to_bits() >> 23).max(127 - 6);
    let step = f32::from_bits((exponent - 3) << 23);
    let shift = step * 12_582_912.0;
    let rounded = (magnitude + shift) - shift;
    let bits = if rounded >= 0.015625 {
        let bits = rounded.to_bits();
        ((bits >> 20) - ((127 - 7) << 3)) as u8
    } else {
        (rounded * 512.0) as u8
    };
    bits | if x.is_sign_negative() { 0x80 } else { 0 }
}

/// Exact. There are no NaN in rows: those have a scale that is.
#[inline(always)]
fn e4m3_to_f32(q: u8) -> f32 {
    let (exponent, fraction) = (u32::from(q >> 3 & 15), u32::from(q & 7));
    let magnitude = match exponent {
        0 => fraction as f32 / 512.0,
        _ => f32::from_bits((exponent + 127 - 7) << 23 | fraction << 20),
    };
    if q & 0x80 == 0 { magnitude } else { -magnitude }
}

/// Quants and scale of a key.
pub(crate) fn int8_key(x: &[f32; INT8_KEY], quants: &mut [i8; INT8_KEY]) -> f32 {
    let mut rotated = *x;
    hadamard(&mut rotated);
    quantize_act_block(&rotated, quants, &mut [0; INT8_KEY / 16])
}

/// A key by its quants and scale.
pub(crate) fn read_int8_key(quants: &[u8], scale: f32, out: &mut [f32]) {
    let mut x = [0.0; INT8_KEY];
    x.iter_mut().zip(quants).for_each(|(x, q)| *x = f32::from(*q as i8) * scale);
    hadamard(&mut x);
    out.copy_from_slice(&x);
}

/// Times the Hadamard matrix over `sqrt(128)`: sums and differences of values 1, 2, 4 and so on apart, each rounded, in this order.
fn hadamard(x: &mut [f32; INT8_KEY]) {
    let mut apart = 1;
    while apart < INT8_KEY {
        for block in x.chunks_exact_mut(2 * apart) {
            let (a, b) = block.split_at_mut(apart);
            a.iter_mut().zip(b).for_each(|(a, b)| (*a, *b) = (*a + *b, *a - *b));
        }
        apart *= 2;
    }
    x.iter_mut().for_each(|v| *v *= INVERSE_ROOT);
}

/// `1 / sqrt(128)`, rounded.
const INVERSE_ROOT: f32 = 0.088_388_346;

#[cfg(test)]
mod tests {
    use super::*;

    /// Every e4m3, by the text of the format.
    fn by_definition(q: u8) -> f64 {
        let (s, e, m) = (q >> 7, i32::from(q >> 3 & 15), f64::from(q & 7));
        let v = if e == 0 { m / 8.0 * 2f64.powi(-6) } else { (1.0 + m / 8.0) * 2f64.powi(e - 7) };
        if s == 1 { -v } else { v }
    }

    #[test]
    fn e4m3_is_the_nearest_with_halves_to_even() {
        let all: Vec<f64> = (0..=0x7e).map(by_definition).collect();
        for q in (0..=255).filter(|q| q & 0x7f != 0x7f) {
            assert_eq!(f64::from(e4m3_to_f32(q)), by_definition(q));
            assert_eq!(e4m3_of(e4m3_to_f32(q)), q);
        }
        for q in 0..0x7e {
            let (low, high) = (all[q], all[q + 1]);
            let middle = ((low + high) / 2.0) as f32; // exact
            let even = if q % 2 == 0 { q } else { q + 1 };
            assert_eq!(usize::from(e4m3_of(middle)), even, "{middle}");
            assert_eq!(usize::from(e4m3_of(middle.next_down())), q);
            assert_eq!(usize::from(e4m3_of(middle.next_up())), q + 1);
        }
        assert_eq!((e4m3_of(448.0), e4m3_of(-448.0), e4m3_of(1e-30)), (0x7e, 0xfe, 0));
    }

    #[test]
    fn scales_are_the_least_that_do() {
        for amax in [448.0f32, 448.0f32.next_up(), 1.0, 1.75, 1.75f32.next_up(), 3e38, 1e-30, 7e5] {
            let (scale, inverse) = fp8_scale(amax.to_bits());
            assert_eq!(scale * inverse, 1.0);
            assert!(amax * inverse <= 448.0 && amax * inverse * 2.0 > 448.0, "{amax}: {scale}");
        }
        assert_eq!(fp8_scale(0).0, f32::MIN_POSITIVE);
        assert!(fp8_scale(f32::INFINITY.to_bits()).0.is_nan() && fp8_scale(f32::NAN.to_bits()).1 == 0.0);
    }

    #[test]
    fn hadamard_is_its_own_inverse_and_has_the_right_signs() {
        for k in [0usize, 1, 2, 77, 127] {
            let mut x = [0.0; INT8_KEY];
            x[k] = 1.0;
            hadamard(&mut x);
            for (i, v) in x.iter().enumerate() {
                let sign = if (i & k).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
                assert_eq!(*v, sign * INVERSE_ROOT);
            }
            hadamard(&mut x);
            for (i, v) in x.iter().enumerate() {
                assert!((v - f32::from(u8::from(i == k))).abs() < 1e-6);
            }
        }
        assert_eq!(INVERSE_ROOT, (1.0 / 128f64.sqrt()) as f32);
    }

    #[test]
    fn widths_that_have_rows_in_fp8() {
        let bytes = [576, 192, 320, 64, 128, 600].map(fp8_row_bytes);
        assert_eq!(bytes, [Some(656), Some(260), Some(392), None, None, None]);
    }
}
