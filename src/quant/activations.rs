//! 8-bit activations of the `Fast` precision: blocks of 32 or 256 values with one f32 scale each.

use crate::error::{Error, Result};

/// Values that share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ActBlockSize {
    /// 32 values: the smaller error, for single tokens.
    B32,
    /// 256 values: integer scales of a whole K-block fold into one product, for many tokens.
    B256,
}

impl ActBlockSize {
    /// Values per block.
    pub const fn elems(self) -> usize {
        match self {
            ActBlockSize::B32 => 32,
            ActBlockSize::B256 => 256,
        }
    }
}

/// Values per partial sum.
pub const ACT_SUM_ELEMS: usize = 16;

/// Quantized activations `x ≈ scale q`, blocks in order; rows of whole blocks lie one after the other.
///
/// The scale is `amax / 127` as f32 with 22 significant bits, and `q = round(x / scale)`, halves to even. The sums of 16
/// quants each serve weights with a minimum or an offset. (A scale of f16 ends at an amax of 8.3e6. With two bits less than
/// f32 has, 3 * 2^22 times the scale is exact: kernels turn sums of products to floats by a fused multiply-add with it.)
///
/// A block whose scale would be a subnormal f32 (amax below 1.5e-36) is all zeros. A block with an infinity, a NaN or a
/// value from 2^110 (1.3e33) on has the scale NaN and zero quants, so that every result it takes part in is NaN and the
/// fault stays visible.
#[derive(Debug, Clone, PartialEq)]
pub struct Activations {
    block: ActBlockSize,
    scales: Vec<f32>,
    qs: Vec<i8>,
    sums: Vec<i16>,
}

impl Activations {
    /// None yet.
    pub fn new(block: ActBlockSize) -> Self {
        Activations { block, scales: Vec::new(), qs: Vec::new(), sums: Vec::new() }
    }

    /// Those that a kernel computed; lengths as [`Activations::quantize`] makes them.
    pub(crate) fn from_parts(block: ActBlockSize, scales: Vec<f32>, qs: Vec<i8>, sums: Vec<i16>) -> Self {
        Activations { block, scales, qs, sums }
    }

    /// Replaces the contents by the quantized `x`; allocates only when `x` is longer than any before.
    ///
    /// # Errors
    /// [`Error::Shape`] unless `x` is whole blocks; the contents stay.
    #[inline(always)]
    pub fn quantize(&mut self, x: &[f32]) -> Result<()> {
        let n = self.block.elems();
        if !x.len().is_multiple_of(n) {
            return Err(Error::shape("quantize activations", format!("whole blocks of {n} values"), x.len()));
        }
        self.scales.resize(x.len() / n, 0.0);
        self.qs.resize(x.len(), 0);
        self.sums.resize(x.len() / ACT_SUM_ELEMS, 0);
        match self.block {
            ActBlockSize::B32 => self.quantize_all::<32>(x),
            ActBlockSize::B256 => self.quantize_all::<256>(x),
        }
        Ok(())
    }

    #[inline(always)]
    fn quantize_all<const N: usize>(&mut self, x: &[f32]) {
        let blocks = x.as_chunks::<N>().0.iter().zip(self.qs.as_chunks_mut::<N>().0);
        let sums = self.sums.chunks_exact_mut(N / ACT_SUM_ELEMS);
        for (((x, qs), sums), scale) in blocks.zip(sums).zip(&mut self.scales) {
            *scale = quantize_act_block(x, qs, sums);
        }
    }

    /// Values per scale.
    pub fn block(&self) -> ActBlockSize {
        self.block
    }

    /// One scale per block.
    pub fn scales(&self) -> &[f32] {
        &self.scales
    }

    /// One quant per value.
    pub fn qs(&self) -> &[i8] {
        &self.qs
    }

    /// The sum of each [`ACT_SUM_ELEMS`] quants.
    pub fn sums(&self) -> &[i16] {
        &self.sums
    }

    /// The values that the quants stand for.
    pub fn dequantize(&self) -> Vec<f32> {
        let blocks = self.qs.chunks_exact(self.block.elems()).zip(&self.scales);
        blocks.flat_map(|(qs, &scale)| qs.iter().map(move |&q| scale * q as f32)).collect()
    }
}

/// The quantized `x`, whole blocks.
///
/// # Errors
/// [`Error::Shape`] unless `x` is whole blocks.
pub fn quantize_activations(x: &[f32], block: ActBlockSize) -> Result<Activations> {
    let mut activations = Activations::new(block);
    activations.quantize(x)?;
    Ok(activations)
}

/// Scale of a block by its largest magnitude, and the inverse; that is 0 if all quants are.
#[inline(always)]
pub(crate) fn act_scale(amax: f32) -> (f32, f32) {
    const FAULT: f32 = f32::from_bits((127 + 110) << 23);
    let bits = (amax / 127.0).to_bits();
    // To 22 bits, halves to even; a carry moves into the exponent by itself.
    let scale = f32::from_bits((bits + 1 + (bits >> 2 & 1)) & !3);
    match scale {
        _ if amax.is_nan() || amax >= FAULT => (f32::NAN, 0.0),
        _ if scale < f32::MIN_POSITIVE => (0.0, 0.0),
        _ => (scale, 1.0 / scale),
    }
}

/// Quantizes one block of [`Activations`], writes quants and the `N / 16` sums, returns the scale. Always inlined, to be
/// compiled for the SIMD level of the caller.
#[inline(always)]
pub fn quantize_act_block<const N: usize>(x: &[f32; N], qs: &mut [i8; N], sums: &mut [i16]) -> f32 {
    // Absolute values order as their bits do, NaN above infinity above all others; as i32, of which SSE2 has a maximum.
    let amax = f32::from_bits(x.iter().fold(0, |m, v| m.max(v.to_bits() as i32 & i32::MAX)) as u32);
    let (scale, inverse) = act_scale(amax);
    if inverse == 0.0 {
        qs.fill(0);
        sums.fill(0);
        return scale;
    }
    // At 1.5 * 2^23 an f32 has a step of 1, so the sum rounds to an integer, halves to even, whose low byte is the
    // quant. Unlike `round` and `as` this is one addition on every target.
    const ROUND: f32 = 12_582_912.0;
    for (q, x) in qs.iter_mut().zip(x) {
        *q = (x * inverse + ROUND).to_bits() as i8;
    }
    for (sum, qs) in sums.iter_mut().zip(qs.as_chunks::<ACT_SUM_ELEMS>().0) {
        *sum = qs.iter().map(|&q| q as i16).sum();
    }
    scale
}
