//! Block structs of kernels and of [`crate::quant::block`] have the same fields at the same places.

use std::mem::{offset_of, size_of};

use super::blocks::*;
use crate::quant::block::*;

macro_rules! same_layout {
    ($($rust:ident $c:ident { $($field:ident),* })*) => { $({
        let context = stringify!($c);
        assert_eq!(size_of::<$rust>(), size_of::<$c>(), "{context}");
        $(assert_eq!(offset_of!($rust, $field), offset_of!($c, $field), "{context}.{}", stringify!($field));)*
        // No field is left out on either side, or this does not compile.
        let _ = |rust: $rust, c: $c| {
            let $rust { $($field: _),* } = rust;
            let $c { $($field: _),* } = c;
        };
    })* };
}

#[test]
fn blocks_have_one_layout() {
    same_layout! {
        BlockF32 block_f32 { d }
        BlockF16 block_f16 { d }
        BlockBF16 block_bf16 { d }
        BlockQ4_0 block_q4_0 { d, qs }
        BlockQ4_1 block_q4_1 { d, m, qs }
        BlockQ5_0 block_q5_0 { d, qh, qs }
        BlockQ5_1 block_q5_1 { d, m, qh, qs }
        BlockQ8_0 block_q8_0 { d, qs }
        BlockQ2K block_q2_K { scales, qs, d, dmin }
        BlockQ3K block_q3_K { hmask, qs, scales, d }
        BlockQ4K block_q4_K { d, dmin, scales, qs }
        BlockQ5K block_q5_K { d, dmin, scales, qh, qs }
        BlockQ6K block_q6_K { ql, qh, scales, d }
        BlockIQ4NL block_iq4_nl { d, qs }
        BlockIQ4XS block_iq4_xs { d, scales_h, scales_l, qs }
        BlockIQ2XXS block_iq2_xxs { d, qs }
        BlockIQ2XS block_iq2_xs { d, qs, scales }
        BlockIQ2S block_iq2_s { d, qs, signs, qh, scales }
        BlockIQ3XXS block_iq3_xxs { d, qs, scales }
        BlockIQ3S block_iq3_s { d, qs, qh, signs, scales }
        BlockIQ1S block_iq1_s { d, qs, qh }
        BlockIQ1M block_iq1_m { qs, qh, scales }
        BlockMXFP4 block_mxfp4 { e, qs }
    }
}
