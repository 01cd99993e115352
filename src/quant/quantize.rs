//! Quantization of weights for tests and tools: the scalar types, Q8_0, Q4_K, Q5_K and Q6_K.
//!
//! K-blocks are fitted by alternating least squares: quants by rounding, then the scale (and minimum) that suit these
//! quants best, from a few starting ranges. No importance weights. The result depends on the values only.

use half::{bf16, f16};

use super::GgmlType;
use super::block::*;
use crate::error::{Error, Result};

/// Blocks of type `ty` for `values`.
///
/// # Errors
/// [`Error::Unsupported`] for other types than F32, F16, BF16, Q8_0, Q4_K, Q5_K and Q6_K; [`Error::Shape`] unless
/// `values` is whole blocks; [`Error::Argument`] if a value is not finite or a scale of the type cannot hold it.
pub fn quantize(ty: GgmlType, values: &[f32]) -> Result<Vec<u8>> {
    if !values.len().is_multiple_of(ty.block_elems()) {
        let expected = format!("values in whole {ty} blocks of {}", ty.block_elems());
        return Err(Error::shape("quantize", expected, values.len()));
    }
    if let Some(i) = values.iter().position(|v| !v.is_finite()) {
        return Err(Error::argument("values", "finite values", format!("{} at {i}", values[i])));
    }
    match ty {
        GgmlType::F32 => blocks(values, |[x]| Ok(BlockF32 { d: x.to_le_bytes() })),
        GgmlType::F16 => blocks(values, |[x]| Ok(BlockF16 { d: checked_f16(f16::from_f32(*x), *x as f64)? })),
        GgmlType::BF16 => blocks(values, |[x]| match bf16::from_f32(*x) {
            d if d.is_finite() => Ok(BlockBF16 { d: d.to_le_bytes() }),
            _ => Err(Error::argument("values", "values within the range of bf16", x)),
        }),
        GgmlType::Q8_0 => blocks(values, q8_0),
        GgmlType::Q4_K => blocks(values, q4_k),
        GgmlType::Q5_K => blocks(values, q5_k),
        GgmlType::Q6_K => blocks(values, q6_k),
        _ => Err(Error::unsupported(
            format!("quantization to {ty}"),
            "only F32, F16, BF16, Q8_0, Q4_K, Q5_K, Q6_K",
        )),
    }
}

fn blocks<const N: usize, B: Block<Values = [f32; N]>>(
    values: &[f32],
    quantize: impl Fn(&[f32; N]) -> Result<B>,
) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(values.len() / N * size_of::<B>());
    for values in values.as_chunks::<N>().0 {
        bytes.extend_from_slice(bytemuck::bytes_of(&quantize(values)?));
    }
    Ok(bytes)
}

fn checked_f16(d: f16, wanted: f64) -> Result<[u8; 2]> {
    match d.is_finite() {
        true => Ok(d.to_le_bytes()),
        false => {
            Err(Error::argument("values", "values and scales within the range of f16", format!("{wanted:e}")))
        }
    }
}

/// The smallest f16 that is not below `x >= 0`, so that no quantized scale exceeds its largest step.
fn f16_at_least(x: f64) -> f16 {
    let d = f16::from_f64(x);
    if d.to_f64() < x { f16::from_bits(d.to_bits() + 1) } else { d }
}

/// The largest value maps to 127; halves round away from zero, as in ggml.
fn q8_0(x: &[f32; 32]) -> Result<BlockQ8_0> {
    let amax = x.iter().fold(0f32, |m, v| m.max(v.abs()));
    let d = amax / 127.0;
    let stored = f16::from_f32(d);
    // A scale that rounds to zero makes every value zero; 1 / d may be infinite then.
    let inverse = if stored == f16::ZERO { 0.0 } else { 1.0 / d };
    Ok(BlockQ8_0 {
        d: checked_f16(stored, d as f64)?,
        qs: x.map(|v| (v * inverse).round().clamp(-127.0, 127.0) as i8 as u8),
    })
}

/// Scale and minimum, both at least 0, of `x ≈ scale q - min` with `q` in `0..=levels`.
fn fit_affine(x: &[f32; 32], levels: f64) -> (f64, f64) {
    let x = x.map(f64::from);
    let low = x.iter().fold(0f64, |m, v| m.min(*v));
    let high = x.iter().fold(f64::NEG_INFINITY, |m, v| m.max(*v));
    if high <= low {
        return (0.0, -low);
    }
    let mut best = (f64::INFINITY, 0.0, -low);
    // Ranges that cut outliers serve the other values better.
    for part in [1.0, 0.95, 0.9, 0.85, 0.8, 0.7] {
        let (mut scale, mut min) = ((high - low) * part / levels, -low * part);
        for _ in 0..4 {
            let q = x.map(|v| ((v + min) / scale).round().clamp(0.0, levels));
            let error: f64 = x.iter().zip(&q).map(|(v, q)| (scale * q - min - v).powi(2)).sum();
            if error < best.0 {
                best = (error, scale, min);
            }
            let (sum_q, sum_x) = (q.iter().sum::<f64>(), x.iter().sum::<f64>());
            let sum_qq: f64 = q.iter().map(|q| q * q).sum();
            let sum_qx: f64 = q.iter().zip(&x).map(|(q, v)| q * v).sum();
            let n = x.len() as f64;
            let det = n * sum_qq - sum_q * sum_q;
            (scale, min) = match det > 0.0 {
                true => ((n * sum_qx - sum_q * sum_x) / det, (sum_q * sum_qx - sum_qq * sum_x) / det),
                false => break,
            };
            if min < 0.0 {
                (scale, min) = (sum_qx / sum_qq, 0.0);
            }
            if scale.is_nan() || scale <= 0.0 {
                break;
            }
        }
    }
    (best.1, best.2)
}

/// What Q4_K and Q5_K share; the quants are not packed yet.
struct AffineK {
    d: [u8; 2],
    dmin: [u8; 2],
    scales: [u8; 12],
    q: [u8; 256],
}

/// Quants in `0..=levels`.
fn affine_k(x: &[f32; 256], levels: f64) -> Result<AffineK> {
    let groups = x.as_chunks::<32>().0;
    let mut fits = [(0.0, 0.0); 8];
    for (fit, x) in fits.iter_mut().zip(groups) {
        *fit = fit_affine(x, levels);
    }
    let d = f16_at_least(fits.iter().fold(0f64, |m, fit| m.max(fit.0)) / 63.0);
    let dmin = f16_at_least(fits.iter().fold(0f64, |m, fit| m.max(fit.1)) / 63.0);
    let (d_bytes, dmin_bytes) = (checked_f16(d, d.to_f64())?, checked_f16(dmin, dmin.to_f64())?);
    let steps = |x: f64, d: f16| if d == f16::ZERO { 0 } else { (x / d.to_f64()).round().min(63.0) as u8 };

    let mut scales = [0; 12];
    let mut q = [0; 256];
    for (j, (x, q)) in groups.iter().zip(q.as_chunks_mut::<32>().0).enumerate() {
        let (sc, mn) = (steps(fits[j].0, d), steps(fits[j].1, dmin));
        if j < 4 {
            scales[j] |= sc;
            scales[j + 4] |= mn;
        } else {
            scales[j + 4] = (sc & 15) | (mn & 15) << 4;
            scales[j - 4] |= sc >> 4 << 6;
            scales[j] |= mn >> 4 << 6;
        }
        let (scale, min) = (d.to_f64() * sc as f64, dmin.to_f64() * mn as f64);
        if sc > 0 && d > f16::ZERO {
            *q = x.map(|v| ((v as f64 + min) / scale).round().clamp(0.0, levels) as u8);
        }
    }
    Ok(AffineK { d: d_bytes, dmin: dmin_bytes, scales, q })
}

/// 4-bit quants `i` and `i + 32` of each 64 into one byte.
fn pack_low_bits(q: &[u8; 256]) -> [u8; 128] {
    std::array::from_fn(|i| {
        let (pair, i) = (i / 32, i % 32);
        (q[64 * pair + i] & 15) | (q[64 * pair + 32 + i] & 15) << 4
    })
}

fn q4_k(x: &[f32; 256]) -> Result<BlockQ4K> {
    let AffineK { d, dmin, scales, q } = affine_k(x, 15.0)?;
    Ok(BlockQ4K { d, dmin, scales, qs: pack_low_bits(&q) })
}

fn q5_k(x: &[f32; 256]) -> Result<BlockQ5K> {
    let AffineK { d, dmin, scales, q } = affine_k(x, 31.0)?;
    let qh = std::array::from_fn(|i| (0..8).fold(0, |bits, j| bits | (q[32 * j + i] >> 4) << j));
    Ok(BlockQ5K { d, dmin, scales, qh, qs: pack_low_bits(&q) })
}

/// Scale, of either sign, of `x ≈ scale q` with `q` in `-32..=31`.
fn fit_symmetric(x: &[f32; 16]) -> f64 {
    let x = x.map(f64::from);
    let extreme = x.iter().fold(0f64, |m, v| if v.abs() > m.abs() { *v } else { m });
    let mut best = (f64::INFINITY, 0.0);
    if extreme == 0.0 {
        return 0.0;
    }
    // The extreme value goes to the end that has one step more, or somewhat beside it.
    for steps in [-32.0, -31.0, -30.0, -28.0, -34.0] {
        let mut scale = extreme / steps;
        for _ in 0..4 {
            let q = x.map(|v| (v / scale).round().clamp(-32.0, 31.0));
            let error: f64 = x.iter().zip(&q).map(|(v, q)| (scale * q - v).powi(2)).sum();
            if error < best.0 {
                best = (error, scale);
            }
            // At least the extreme value has a quant other than 0.
            scale = q.iter().zip(&x).map(|(q, v)| q * v).sum::<f64>() / q.iter().map(|q| q * q).sum::<f64>();
        }
    }
    best.1
}

fn q6_k(x: &[f32; 256]) -> Result<BlockQ6K> {
    let groups = x.as_chunks::<16>().0;
    let mut fits = [0.0; 16];
    for (fit, x) in fits.iter_mut().zip(groups) {
        *fit = fit_symmetric(x);
    }
    let d = f16_at_least(fits.iter().fold(0f64, |m, fit| m.max(fit.abs())) / 127.0);
    let d_bytes = checked_f16(d, d.to_f64())?;
    let scales = fits.map(|fit| if d == f16::ZERO { 0 } else { (fit / d.to_f64()).round() as i8 });
    let mut q = [32; 256];
    for ((x, q), sc) in groups.iter().zip(q.as_chunks_mut::<16>().0).zip(scales) {
        let scale = d.to_f64() * sc as f64;
        if scale != 0.0 {
            *q = x.map(|v| ((v as f64 / scale).round().clamp(-32.0, 31.0) + 32.0) as u8);
        }
    }
    let ql = std::array::from_fn(|i| {
        let at = i / 64 * 128 + i % 64;
        (q[at] & 15) | (q[at + 64] & 15) << 4
    });
    let qh = std::array::from_fn(|i| {
        let at = i / 32 * 128 + i % 32;
        (0..4).fold(0, |bits, j| bits | (q[at + 32 * j] >> 4) << (2 * j))
    });
    Ok(BlockQ6K { ql, qh, scales: scales.map(|sc| sc as u8), d: d_bytes })
}
