//! Little-endian scalars of the blocks, decoded without branches or calls.

/// f16 to f32, exact; infinities and NaNs keep their kind.
///
/// Own code because the `half` crate decides on F16C at run time in a call that is not inlined, once per block; this
/// form inlines into SIMD-dispatched callers, vectorizes, and touches no subnormal f32 (scales of K-blocks are
/// often subnormal in f16).
#[inline(always)]
pub fn f16_to_f32(bytes: [u8; 2]) -> f32 {
    const EXPONENT: u32 = 0x7c00 << 13;
    const REBIAS: u32 = (127 - 15) << 23;
    let h = u16::from_le_bytes(bytes) as u32;
    let magnitude = (h & 0x7fff) << 13;
    let exponent = magnitude & EXPONENT;
    // A subnormal is an integer times 2^-24: with the exponent of 2^-14 put in, the implicit one is what is too much.
    let one = REBIAS + (1 << 23);
    let subnormal = f32::from_bits(magnitude + one) - f32::from_bits(one);
    let normal = magnitude + REBIAS + if exponent == EXPONENT { REBIAS } else { 0 };
    f32::from_bits(if exponent == 0 { subnormal.to_bits() } else { normal } | (h & 0x8000) << 16)
}

/// bf16 to f32, exact.
#[inline(always)]
pub fn bf16_to_f32(bytes: [u8; 2]) -> f32 {
    f32::from_bits((u16::from_le_bytes(bytes) as u32) << 16)
}

/// Half of the E8M0 scale `2^(e - 127)`, for levels stored doubled. Every `e` is a scale: 255, NaN in OCP's text, is
/// `2^127` here as in ggml.
#[inline(always)]
pub fn e8m0_half_to_f32(e: u8) -> f32 {
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (e as u32 - 1) << 23 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f16_agrees_with_half_on_every_pattern() {
        for h in 0..=u16::MAX {
            let (ours, theirs) = (f16_to_f32(h.to_le_bytes()), half::f16::from_bits(h).to_f32());
            if theirs.is_nan() {
                assert!(ours.is_nan(), "{h:#06x}");
            } else {
                assert_eq!(ours.to_bits(), theirs.to_bits(), "{h:#06x}");
            }
        }
    }

    #[test]
    fn bf16_agrees_with_half_on_every_pattern() {
        for h in 0..=u16::MAX {
            let (ours, theirs) = (bf16_to_f32(h.to_le_bytes()), half::bf16::from_bits(h).to_f32());
            assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{h:#06x}");
        }
    }

    #[test]
    fn e8m0_is_a_power_of_two_for_every_exponent() {
        for e in 0..=u8::MAX {
            assert_eq!(e8m0_half_to_f32(e) as f64, 2f64.powi(e as i32 - 128), "{e}");
        }
    }
}
