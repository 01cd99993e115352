// Generated from cuda/include/params.h by `tools/regen-bindings.sh`. Do not edit.

#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct block_f32 {
    pub d: f32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of block_f32"][::core::mem::size_of::<block_f32>() - 4usize];
    ["Alignment of block_f32"][::core::mem::align_of::<block_f32>() - 4usize];
    ["Offset of field: block_f32::d"][::core::mem::offset_of!(block_f32, d) - 0usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct block_f16 {
    pub d: u16,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of block_f16"][::core::mem::size_of::<block_f16>() - 2usize];
    ["Alignment of block_f16"][::core::mem::align_of::<block_f16>() - 2usize];
    ["Offset of field: block_f16::d"][::core::mem::offset_of!(block_f16, d) - 0usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct block_bf16 {
    pub d: u16,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of block_bf16"][::core::mem::size_of::<block_bf16>() - 2usize];
    ["Alignment of block_bf16"][::core::mem::align_of::<block_bf16>() - 2usize];
    ["Offset of field: block_bf16::d"][::core::mem::offset_of!(block_bf16, d) - 0usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct block_q4_0 {
    pub d: u16,
    pub qs: [u8; 16usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of block_q4_0"][::core::mem::size_of::<block_q4_0>() - 18usize];
    ["Alignment of block_q4_0"][::core::mem::align_of::<block_q4_0>() - 2usize];
    ["Offset of field: block_q4_0::d"][::core::mem::offset_of!(block_q4_0, d) - 0usize];
    ["Offset of field: block_q4_0::qs"][::core::mem::offset_of!(block_q4_0, qs) - 2usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct block_q4_1 {
    pub d: u16,
    pub m: u16,
    pub qs: [u8; 16usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of block_q4_1"][::core::mem::size_of::<block_q4_1>() - 20usize];
    ["Alignment of block_q4_1"][::core::mem::align_of::<block_q4_1>() - 2usize];
    ["Offset of field: block_q4_1::d"][::core::mem::offset_of!(block_q4_1, d) - 0usize];
    ["Offset of field: block_q4_1::m"][::core::mem::offset_of!(block_q4_1, m) - 2usize];
    ["Offset of field: block_q4_1::qs"][::core::mem::offset_of!(block_q4_1, qs) - 4usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct block_q5_0 {
    pub d: u16,
    pub qh: [u8; 4usize],
    pub qs: [u8; 16usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of block_q5_0"][::core::mem::size_of::<block_q5_0>() - 22usize];
    ["Alignment of block_q5_0"][::core::mem::align_of::<block_q5_0>() - 2usize];
    ["Offset of field: block_q5_0::d"][::core::mem::offset_of!(block_q5_0, d) - 0usize];
    ["Offset of field: block_q5_0::qh"][::core::mem::offset_of!(block_q5_0, qh) - 2usize];
    ["Offset of field: block_q5_0::qs"][::core::mem::offset_of!(block_q5_0, qs) - 6usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct block_q5_1 {
    pub d: u16,
    pub m: u16,
    pub qh: [u8; 4usize],
    pub qs: [u8; 16usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of block_q5_1"][::core::mem::size_of::<block_q5_1>() - 24usize];
    ["Alignment of block_q5_1"][::core::mem::align_of::<block_q5_1>() - 2usize];
    ["Offset of field: block_q5_1::d"][::core::mem::offset_of!(block_q5_1, d) - 0usize];
    ["Offset of field: block_q5_1::m"][::core::mem::offset_of!(block_q5_1, m) - 2usize];
    ["Offset of field: block_q5_1::qh"][::core::mem::offset_of!(block_q5_1, qh) - 4usize];
    ["Offset of field: block_q5_1::qs"][::core::mem::offset_of!(block_q5_1, qs) - 8usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct block_q8_0 {
    pub d: u16,
    pub qs: [i8; 32usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of block_q8_0"][::core::mem::size_of::<block_q8_0>() - 34usize];
    ["Alignment of block_q8_0"][::core::mem::align_of::<block_q8_0>() - 2usize];
    ["Offset of field: block_q8_0::d"][::core::mem::offset_of!(block_q8_0, d) - 0usize];
    ["Offset of field: block_q8_0::qs"][::core::mem::offset_of!(block_q8_0, qs) - 2usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct block_iq4_nl {
    pub d: u16,
    pub qs: [u8; 16usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of block_iq4_nl"][::core::mem::size_of::<block_iq4_nl>() - 18usize];
    ["Alignment of block_iq4_nl"][::core::mem::align_of::<block_iq4_nl>() - 2usize];
    ["Offset of field: block_iq4_nl::d"][::core::mem::offset_of!(block_iq4_nl, d) - 0usize];
    ["Offset of field: block_iq4_nl::qs"][::core::mem::offset_of!(block_iq4_nl, qs) - 2usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct block_mxfp4 {
    pub e: u8,
    pub qs: [u8; 16usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of block_mxfp4"][::core::mem::size_of::<block_mxfp4>() - 17usize];
    ["Alignment of block_mxfp4"][::core::mem::align_of::<block_mxfp4>() - 1usize];
    ["Offset of field: block_mxfp4::e"][::core::mem::offset_of!(block_mxfp4, e) - 0usize];
    ["Offset of field: block_mxfp4::qs"][::core::mem::offset_of!(block_mxfp4, qs) - 1usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct block_q2_K {
    pub scales: [u8; 16usize],
    pub qs: [u8; 64usize],
    pub d: u16,
    pub dmin: u16,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of block_q2_K"][::core::mem::size_of::<block_q2_K>() - 84usize];
    ["Alignment of block_q2_K"][::core::mem::align_of::<block_q2_K>() - 2usize];
    ["Offset of field: block_q2_K::scales"][::core::mem::offset_of!(block_q2_K, scales) - 0usize];
    ["Offset of field: block_q2_K::qs"][::core::mem::offset_of!(block_q2_K, qs) - 16usize];
    ["Offset of field: block_q2_K::d"][::core::mem::offset_of!(block_q2_K, d) - 80usize];
    ["Offset of field: block_q2_K::dmin"][::core::mem::offset_of!(block_q2_K, dmin) - 82usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct block_q3_K {
    pub hmask: [u8; 32usize],
    pub qs: [u8; 64usize],
    pub scales: [u8; 12usize],
    pub d: u16,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of block_q3_K"][::core::mem::size_of::<block_q3_K>() - 110usize];
    ["Alignment of block_q3_K"][::core::mem::align_of::<block_q3_K>() - 2usize];
    ["Offset of field: block_q3_K::hmask"][::core::mem::offset_of!(block_q3_K, hmask) - 0usize];
    ["Offset of field: block_q3_K::qs"][::core::mem::offset_of!(block_q3_K, qs) - 32usize];
    ["Offset of field: block_q3_K::scales"][::core::mem::offset_of!(block_q3_K, scales) - 96usize];
    ["Offset of field: block_q3_K::d"][::core::mem::offset_of!(block_q3_K, d) - 108usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct block_q4_K {
    pub d: u16,
    pub dmin: u16,
    pub scales: [u8; 12usize],
    pub qs: [u8; 128usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of block_q4_K"][::core::mem::size_of::<block_q4_K>() - 144usize];
    ["Alignment of block_q4_K"][::core::mem::align_of::<block_q4_K>() - 2usize];
    ["Offset of field: block_q4_K::d"][::core::mem::offset_of!(block_q4_K, d) - 0usize];
    ["Offset of field: block_q4_K::dmin"][::core::mem::offset_of!(block_q4_K, dmin) - 2usize];
    ["Offset of field: block_q4_K::scales"][::core::mem::offset_of!(block_q4_K, scales) - 4usize];
    ["Offset of field: block_q4_K::qs"][::core::mem::offset_of!(block_q4_K, qs) - 16usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct block_q5_K {
    pub d: u16,
    pub dmin: u16,
    pub scales: [u8; 12usize],
    pub qh: [u8; 32usize],
    pub qs: [u8; 128usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of block_q5_K"][::core::mem::size_of::<block_q5_K>() - 176usize];
    ["Alignment of block_q5_K"][::core::mem::align_of::<block_q5_K>() - 2usize];
    ["Offset of field: block_q5_K::d"][::core::mem::offset_of!(block_q5_K, d) - 0usize];
    ["Offset of field: block_q5_K::dmin"][::core::mem::offset_of!(block_q5_K, dmin) - 2usize];
    ["Offset of field: block_q5_K::scales"][::core::mem::offset_of!(block_q5_K, scales) - 4usize];
    ["Offset of field: block_q5_K::qh"][::core::mem::offset_of!(block_q5_K, qh) - 16usize];
    ["Offset of field: block_q5_K::qs"][::core::mem::offset_of!(block_q5_K, qs) - 48usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct block_q6_K {
    pub ql: [u8; 128usize],
    pub qh: [u8; 64usize],
    pub scales: [i8; 16usize],
    pub d: u16,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of block_q6_K"][::core::mem::size_of::<block_q6_K>() - 210usize];
    ["Alignment of block_q6_K"][::core::mem::align_of::<block_q6_K>() - 2usize];
    ["Offset of field: block_q6_K::ql"][::core::mem::offset_of!(block_q6_K, ql) - 0usize];
    ["Offset of field: block_q6_K::qh"][::core::mem::offset_of!(block_q6_K, qh) - 128usize];
    ["Offset of field: block_q6_K::scales"][::core::mem::offset_of!(block_q6_K, scales) - 192usize];
    ["Offset of field: block_q6_K::d"][::core::mem::offset_of!(block_q6_K, d) - 208usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct block_iq4_xs {
    pub d: u16,
    pub scales_h: u16,
    pub scales_l: [u8; 4usize],
    pub qs: [u8; 128usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of block_iq4_xs"][::core::mem::size_of::<block_iq4_xs>() - 136usize];
    ["Alignment of block_iq4_xs"][::core::mem::align_of::<block_iq4_xs>() - 2usize];
    ["Offset of field: block_iq4_xs::d"][::core::mem::offset_of!(block_iq4_xs, d) - 0usize];
    ["Offset of field: block_iq4_xs::scales_h"][::core::mem::offset_of!(block_iq4_xs, scales_h) - 2usize];
    ["Offset of field: block_iq4_xs::scales_l"][::core::mem::offset_of!(block_iq4_xs, scales_l) - 4usize];
    ["Offset of field: block_iq4_xs::qs"][::core::mem::offset_of!(block_iq4_xs, qs) - 8usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct block_iq2_xxs {
    pub d: u16,
    pub qs: [u16; 32usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of block_iq2_xxs"][::core::mem::size_of::<block_iq2_xxs>() - 66usize];
    ["Alignment of block_iq2_xxs"][::core::mem::align_of::<block_iq2_xxs>() - 2usize];
    ["Offset of field: block_iq2_xxs::d"][::core::mem::offset_of!(block_iq2_xxs, d) - 0usize];
    ["Offset of field: block_iq2_xxs::qs"][::core::mem::offset_of!(block_iq2_xxs, qs) - 2usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct block_iq2_xs {
    pub d: u16,
    pub qs: [u16; 32usize],
    pub scales: [u8; 8usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of block_iq2_xs"][::core::mem::size_of::<block_iq2_xs>() - 74usize];
    ["Alignment of block_iq2_xs"][::core::mem::align_of::<block_iq2_xs>() - 2usize];
    ["Offset of field: block_iq2_xs::d"][::core::mem::offset_of!(block_iq2_xs, d) - 0usize];
    ["Offset of field: block_iq2_xs::qs"][::core::mem::offset_of!(block_iq2_xs, qs) - 2usize];
    ["Offset of field: block_iq2_xs::scales"][::core::mem::offset_of!(block_iq2_xs, scales) - 66usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct block_iq2_s {
    pub d: u16,
    pub qs: [u8; 32usize],
    pub signs: [u8; 32usize],
    pub qh: [u8; 8usize],
    pub scales: [u8; 8usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of block_iq2_s"][::core::mem::size_of::<block_iq2_s>() - 82usize];
    ["Alignment of block_iq2_s"][::core::mem::align_of::<block_iq2_s>() - 2usize];
    ["Offset of field: block_iq2_s::d"][::core::mem::offset_of!(block_iq2_s, d) - 0usize];
    ["Offset of field: block_iq2_s::qs"][::core::mem::offset_of!(block_iq2_s, qs) - 2usize];
    ["Offset of field: block_iq2_s::signs"][::core::mem::offset_of!(block_iq2_s, signs) - 34usize];
    ["Offset of field: block_iq2_s::qh"][::core::mem::offset_of!(block_iq2_s, qh) - 66usize];
    ["Offset of field: block_iq2_s::scales"][::core::mem::offset_of!(block_iq2_s, scales) - 74usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct block_iq3_xxs {
    pub d: u16,
    pub qs: [u8; 64usize],
    pub scales: [u8; 32usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of block_iq3_xxs"][::core::mem::size_of::<block_iq3_xxs>() - 98usize];
    ["Alignment of block_iq3_xxs"][::core::mem::align_of::<block_iq3_xxs>() - 2usize];
    ["Offset of field: block_iq3_xxs::d"][::core::mem::offset_of!(block_iq3_xxs, d) - 0usize];
    ["Offset of field: block_iq3_xxs::qs"][::core::mem::offset_of!(block_iq3_xxs, qs) - 2usize];
    ["Offset of field: block_iq3_xxs::scales"][::core::mem::offset_of!(block_iq3_xxs, scales) - 66usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct block_iq3_s {
    pub d: u16,
    pub qs: [u8; 64usize],
    pub qh: [u8; 8usize],
    pub signs: [u8; 32usize],
    pub scales: [u8; 4usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of block_iq3_s"][::core::mem::size_of::<block_iq3_s>() - 110usize];
    ["Alignment of block_iq3_s"][::core::mem::align_of::<block_iq3_s>() - 2usize];
    ["Offset of field: block_iq3_s::d"][::core::mem::offset_of!(block_iq3_s, d) - 0usize];
    ["Offset of field: block_iq3_s::qs"][::core::mem::offset_of!(block_iq3_s, qs) - 2usize];
    ["Offset of field: block_iq3_s::qh"][::core::mem::offset_of!(block_iq3_s, qh) - 66usize];
    ["Offset of field: block_iq3_s::signs"][::core::mem::offset_of!(block_iq3_s, signs) - 74usize];
    ["Offset of field: block_iq3_s::scales"][::core::mem::offset_of!(block_iq3_s, scales) - 106usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct block_iq1_s {
    pub d: u16,
    pub qs: [u8; 32usize],
    pub qh: [u16; 8usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of block_iq1_s"][::core::mem::size_of::<block_iq1_s>() - 50usize];
    ["Alignment of block_iq1_s"][::core::mem::align_of::<block_iq1_s>() - 2usize];
    ["Offset of field: block_iq1_s::d"][::core::mem::offset_of!(block_iq1_s, d) - 0usize];
    ["Offset of field: block_iq1_s::qs"][::core::mem::offset_of!(block_iq1_s, qs) - 2usize];
    ["Offset of field: block_iq1_s::qh"][::core::mem::offset_of!(block_iq1_s, qh) - 34usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct block_iq1_m {
    pub qs: [u8; 32usize],
    pub qh: [u8; 16usize],
    pub scales: [u8; 8usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of block_iq1_m"][::core::mem::size_of::<block_iq1_m>() - 56usize];
    ["Alignment of block_iq1_m"][::core::mem::align_of::<block_iq1_m>() - 1usize];
    ["Offset of field: block_iq1_m::qs"][::core::mem::offset_of!(block_iq1_m, qs) - 0usize];
    ["Offset of field: block_iq1_m::qh"][::core::mem::offset_of!(block_iq1_m, qh) - 32usize];
    ["Offset of field: block_iq1_m::scales"][::core::mem::offset_of!(block_iq1_m, scales) - 48usize];
};
