// Generated from cuda/include/params.h by `tools/regen-bindings.sh`. Do not edit.

#[doc = " dst = src."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct copy_params {
    #[doc = " `[n_vecs]` of 16 bytes, aligned to 16."]
    pub src: *const ::core::ffi::c_void,
    #[doc = " `[n_vecs]` of 16 bytes, aligned to 16; does not overlap `src`."]
    pub dst: *mut ::core::ffi::c_void,
    #[doc = " Vectors of 16 bytes."]
    pub n_vecs: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of copy_params"][::core::mem::size_of::<copy_params>() - 24usize];
    ["Alignment of copy_params"][::core::mem::align_of::<copy_params>() - 8usize];
    ["Offset of field: copy_params::src"][::core::mem::offset_of!(copy_params, src) - 0usize];
    ["Offset of field: copy_params::dst"][::core::mem::offset_of!(copy_params, dst) - 8usize];
    ["Offset of field: copy_params::n_vecs"][::core::mem::offset_of!(copy_params, n_vecs) - 16usize];
};
#[doc = " One wrapping sum of 64-bit words per block of the grid."]
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct reduce_params {
    #[doc = " `[n_vecs]` of 16 bytes, aligned to 16."]
    pub src: *const ::core::ffi::c_void,
    #[doc = " `[gridDim.x]`"]
    pub partial: *mut u64,
    #[doc = " Vectors of 16 bytes."]
    pub n_vecs: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of reduce_params"][::core::mem::size_of::<reduce_params>() - 24usize];
    ["Alignment of reduce_params"][::core::mem::align_of::<reduce_params>() - 8usize];
    ["Offset of field: reduce_params::src"][::core::mem::offset_of!(reduce_params, src) - 0usize];
    ["Offset of field: reduce_params::partial"][::core::mem::offset_of!(reduce_params, partial) - 8usize];
    ["Offset of field: reduce_params::n_vecs"][::core::mem::offset_of!(reduce_params, n_vecs) - 16usize];
};
