//! What a file says about a tensor, and the rules that its numbers must keep.

use serde::{Serialize, Serializer};

use crate::quant::GgmlType;

/// Name, type, extents and place of a tensor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TensorInfo {
    /// Name, at most 63 bytes.
    pub name: String,
    /// Block type.
    #[serde(rename = "type", serialize_with = "type_name")]
    pub ty: GgmlType,
    /// Extents, `ne0` (contiguous) first; 1 beyond `n_dims`.
    pub dims: [u64; 4],
    /// How many extents the file gives.
    pub n_dims: usize,
    /// Index of the file in [`Gguf::shards`](super::Gguf::shards).
    pub shard: usize,
    /// First byte, counted from the start of its file.
    pub offset: u64,
    /// Size in bytes.
    pub bytes: u64,
}

/// How many tensors of a file have a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct TypeCount {
    /// The type.
    #[serde(rename = "type", serialize_with = "type_name")]
    pub ty: GgmlType,
    /// Number of tensors.
    pub tensors: usize,
    /// Their bytes.
    pub bytes: u64,
}

fn type_name<S: Serializer>(ty: &GgmlType, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(ty.name())
}

impl TensorInfo {
    /// The extents that the file gives, `ne0` first.
    pub fn ne(&self) -> &[u64] {
        &self.dims[..self.n_dims.min(4)]
    }

    /// Number of values.
    pub fn elements(&self) -> u64 {
        self.dims.iter().product()
    }
}

/// Bytes of a tensor; the error says which rule the extents break.
pub(super) fn tensor_bytes(ty: GgmlType, dims: [u64; 4]) -> Result<u64, String> {
    // Zero counts as one here: a zero extent must not hide that the product of the others overflows.
    let elements =
        dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d.max(1)).filter(|&n| n <= i64::MAX as u64));
    if elements.is_none() {
        return Err(format!("the number of elements of {dims:?} overflows 64 bits"));
    }
    let [ne0, ne1, ne2, ne3] = dims;
    if !ne0.is_multiple_of(ty.block_elems() as u64) {
        return Err(format!("ne0 = {ne0} is not a multiple of the {ty} block of {}", ty.block_elems()));
    }
    ty.row_bytes(ne0)
        .and_then(|row| row.checked_mul(ne1 * ne2 * ne3))
        .ok_or_else(|| format!("the size of {ty} {dims:?} overflows 64 bits"))
}

/// The type with this id, or why it cannot be read.
pub(super) fn type_from_id(id: i32) -> Result<GgmlType, String> {
    if let Some(ty) = u32::try_from(id).ok().and_then(GgmlType::from_id) {
        return Ok(ty);
    }
    let removed = |name: &str| format!("type {id} ({name}) was removed from the format");
    Err(match id {
        4 => removed("Q4_2"),
        5 => removed("Q4_3"),
        31 => removed("Q4_0_4_4"),
        32 => removed("Q4_0_4_8"),
        33 => removed("Q4_0_8_8"),
        36 => removed("IQ4_NL_4_4"),
        37 => removed("IQ4_NL_4_8"),
        38 => removed("IQ4_NL_8_8"),
        97.. => {
            format!("type {id} is not supported: ids from 97 on exist in ik_llama.cpp and other forks only")
        }
        _ => format!("type {id} is unknown"),
    })
}
