//! Random blocks of every type: seeded, for given scales, and as proptest strategies. Scales are finite.

#![allow(dead_code)] // Each test crate uses a part.

use glm5::quant::{GgmlType, Weight};
use half::{bf16, f16};
use proptest::prelude::*;

/// The types whose values the crate computes.
pub const SUPPORTED: [GgmlType; 23] = [
    GgmlType::F32,
    GgmlType::F16,
    GgmlType::BF16,
    GgmlType::Q4_0,
    GgmlType::Q4_1,
    GgmlType::Q5_0,
    GgmlType::Q5_1,
    GgmlType::Q8_0,
    GgmlType::Q2_K,
    GgmlType::Q3_K,
    GgmlType::Q4_K,
    GgmlType::Q5_K,
    GgmlType::Q6_K,
    GgmlType::IQ4_NL,
    GgmlType::IQ4_XS,
    GgmlType::IQ2_XXS,
    GgmlType::IQ2_XS,
    GgmlType::IQ2_S,
    GgmlType::IQ3_XXS,
    GgmlType::IQ3_S,
    GgmlType::IQ1_S,
    GgmlType::IQ1_M,
    GgmlType::MXFP4,
];

/// SplitMix64: the same numbers everywhere, from a seed.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `0..n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Uniform in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 * 2f64.powi(-53)
    }

    /// Normal, variance 1 (Box-Muller).
    pub fn normal(&mut self) -> f32 {
        let r = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        (r * (std::f64::consts::TAU * self.unit()).cos()) as f32
    }

    pub fn normals(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.normal()).collect()
    }
}

/// What the block scale of one block is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scale {
    /// Largest value of the block of the order 0.03 to 0.3, either sign, as trained weights have it.
    Ordinary,
    /// All values zero (or only offsets).
    Zero,
    /// Ordinary, negative.
    Negative,
    /// Smallest positive f16: subnormal. MXFP4: the smallest exponent, a subnormal f32.
    Subnormal,
    /// Ordinary, with every other bit of the block set (scalar types: just ordinary).
    AllOnes,
    /// 65504, the largest f16. MXFP4: 2^60.
    Largest,
    /// Zero beside an ordinary offset. Types that have none: as [`Scale::Zero`].
    OnlyOffset,
    /// The same, of a zero with its sign. MXFP4, which has none: as [`Scale::Zero`].
    NegativeZero,
    /// Scale and offset each one of any size, either sign: zero, smallest and largest subnormal, smallest normal, ordinary, largest.
    Apart,
}

/// The kinds of scale that say how large values are.
pub const SCALES: [Scale; 8] = [
    Scale::Ordinary,
    Scale::Zero,
    Scale::Negative,
    Scale::Subnormal,
    Scale::AllOnes,
    Scale::Largest,
    Scale::OnlyOffset,
    Scale::NegativeZero,
];

/// Where a type keeps its scale, the largest factor its quants put on it, and where its offset, if it has one, and
/// the largest factor on that.
fn scale_place(ty: GgmlType) -> (usize, f64, Option<(usize, f64)>) {
    match ty {
        GgmlType::Q4_0 => (0, 8.0, None),
        GgmlType::Q4_1 => (0, 15.0, Some((2, 2.0))),
        GgmlType::Q5_0 => (0, 16.0, None),
        GgmlType::Q5_1 => (0, 31.0, Some((2, 2.0))),
        GgmlType::Q8_0 => (0, 128.0, None),
        GgmlType::Q2_K => (80, 15.0 * 3.0, Some((82, 15.0 * 2.0))),
        GgmlType::Q3_K => (108, 32.0 * 4.0, None),
        GgmlType::Q4_K => (0, 63.0 * 15.0, Some((2, 63.0 * 2.0))),
        GgmlType::Q5_K => (0, 63.0 * 31.0, Some((2, 63.0 * 2.0))),
        GgmlType::Q6_K => (208, 128.0 * 32.0, None),
        GgmlType::IQ4_NL => (0, 127.0, None),
        GgmlType::IQ4_XS => (0, 32.0 * 127.0, None),
        GgmlType::IQ2_XXS | GgmlType::IQ2_XS | GgmlType::IQ2_S => (0, 15.5 / 4.0 * 43.0, None),
        GgmlType::IQ3_XXS => (0, 15.5 / 2.0 * 62.0, None),
        GgmlType::IQ3_S => (0, 31.0 * 15.0, None),
        GgmlType::IQ1_S | GgmlType::IQ1_M => (0, 15.0 * 1.125, None),
        other => panic!("{other} has no f16 scale"),
    }
}

/// A scale of any size, either sign, beside those that are ordinary.
fn any_size(ordinary: f16, rng: &mut Rng) -> f16 {
    let [zero, smallest, below_normal] = [0, 1, 0x3ff].map(f16::from_bits);
    let all = [zero, smallest, below_normal, f16::MIN_POSITIVE, ordinary, f16::MAX];
    let size = all[rng.below(all.len())];
    if rng.below(2) == 0 { -size } else { size }
}

/// One block with random quants and sub-scales.
pub fn random_block(ty: GgmlType, scale: Scale, rng: &mut Rng) -> Vec<u8> {
    let mut block: Vec<u8> = (0..ty.block_bytes()).map(|_| rng.next() as u8).collect();
    if scale == Scale::AllOnes {
        block.fill(0xff);
    }
    let either = matches!(scale, Scale::Ordinary | Scale::OnlyOffset | Scale::NegativeZero);
    let sign = if scale == Scale::Negative || either && rng.below(2) == 0 { -1.0 } else { 1.0 };
    let largest = 0.03 * 10f64.powf(rng.unit());
    let ordinary = |factor: f64| f16::from_f64(sign * largest / factor);
    let f16_scale = |factor: f64, rng: &mut Rng| match scale {
        Scale::Ordinary | Scale::Negative | Scale::AllOnes => ordinary(factor),
        Scale::Zero | Scale::OnlyOffset => f16::ZERO,
        Scale::NegativeZero => f16::NEG_ZERO,
        Scale::Subnormal => f16::from_bits(1),
        Scale::Largest => f16::MAX,
        Scale::Apart => any_size(ordinary(factor), rng),
    };
    match ty {
        GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 => {
            let value = match scale {
                Scale::Ordinary | Scale::AllOnes => 0.05 * rng.normal(),
                Scale::Zero | Scale::OnlyOffset => 0.0,
                Scale::NegativeZero => -0.0,
                Scale::Negative => -0.05 * rng.normal().abs(),
                Scale::Subnormal => 6e-8,
                Scale::Largest => 65504.0,
                Scale::Apart => any_size(f16::from_f32(0.05 * rng.normal()), rng).to_f32(),
            };
            match ty {
                GgmlType::F32 => block.copy_from_slice(&value.to_le_bytes()),
                GgmlType::F16 => block.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
                _ => block.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
            }
        }
        GgmlType::MXFP4 => {
            block[0] = match scale {
                Scale::Ordinary | Scale::Negative | Scale::AllOnes => 119 + rng.below(4) as u8,
                Scale::Largest => 187,
                Scale::Apart => [0, 1, 2, 119, 187][rng.below(5)],
                _ => 0,
            };
            if matches!(scale, Scale::Zero | Scale::OnlyOffset | Scale::NegativeZero) {
                block[1..].fill(0);
            }
        }
        // The f16 lies in the top nibbles of four u16, lowest first.
        GgmlType::IQ1_M => {
            let bits = f16_scale(scale_place(ty).1, rng).to_bits();
            for k in 0..4 {
                let byte = &mut block[48 + 2 * k + 1];
                *byte = (*byte & 15) | ((bits >> (4 * k) & 15) as u8) << 4;
            }
        }
        _ => {
            let (at, factor, offset) = scale_place(ty);
            block[at..at + 2].copy_from_slice(&f16_scale(factor, rng).to_le_bytes());
            if let Some((at, factor)) = offset {
                // Q4_1 and Q5_1 add their offset, the K types subtract it: both end up around zero.
                let offset = match scale {
                    Scale::OnlyOffset | Scale::NegativeZero => ordinary(factor),
                    _ => f16_scale(factor, rng),
                };
                let offset = if matches!(ty, GgmlType::Q4_1 | GgmlType::Q5_1) { -offset } else { offset };
                block[at..at + 2].copy_from_slice(&offset.to_le_bytes());
            }
        }
    }
    block
}

/// `n` blocks with ordinary scales; with `edges`, about half of them with the others.
pub fn random_blocks(ty: GgmlType, n: usize, edges: bool, seed: u64) -> Vec<u8> {
    let rng = &mut Rng(seed);
    let mut bytes = Vec::with_capacity(n * ty.block_bytes());
    for _ in 0..n {
        let scale = match edges && rng.below(2) == 0 {
            // Those of any size have the most cases of their own.
            true => SCALES.get(rng.below(SCALES.len() + 3)).copied().unwrap_or(Scale::Apart),
            false => Scale::Ordinary,
        };
        bytes.extend(random_block(ty, scale, rng));
    }
    bytes
}

/// A weight of random blocks with ordinary scales.
pub fn random_weight(ty: GgmlType, slabs: usize, rows: usize, cols: usize, seed: u64) -> Weight {
    assert!(cols.is_multiple_of(ty.block_elems()), "{cols} cols are not whole {ty} blocks");
    let blocks = slabs * rows * (cols / ty.block_elems());
    Weight::new(ty, [slabs, rows, cols], random_blocks(ty, blocks, false, seed).into()).unwrap()
}

/// Any supported type.
pub fn any_type() -> impl Strategy<Value = GgmlType> {
    proptest::sample::select(&SUPPORTED[..])
}

/// Up to `max` blocks of any supported type, edge scales among them.
pub fn any_blocks(max: usize) -> impl Strategy<Value = (GgmlType, Vec<u8>)> {
    (any_type(), 1..=max, any::<u64>()).prop_map(|(ty, n, seed)| (ty, random_blocks(ty, n, true, seed)))
}
