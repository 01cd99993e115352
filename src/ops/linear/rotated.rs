//! Linear layers whose outputs are rotated on their way: queries, which are rotated in a part of each head.

use super::{Precision, linear_many};
use crate::cuda;
use crate::error::{Error, Result};
use crate::ops::on_one_device;
use crate::ops::rope::{expect_in_place, expect_into, rope, rope_into};
use crate::tensor::{Device, Heads, Matrix, Tensor};

/// Parts of the outputs of one matrix, which are rotated as by [`rope`], or as by [`rope_into`] where they go elsewhere.
#[derive(Debug)]
pub struct Rotated<'a> {
    /// Which of the matrices.
    pub matrix: usize,
    /// The parts of a row of its `y`.
    pub heads: Heads,
    /// `[m, heads.len]`, of [`rope_angles`](crate::ops::rope::rope_angles).
    pub angles: &'a Tensor,
    /// Where they go, into parts of rows of another tensor, whose other columns keep their values. What the parts of `y` hold afterwards
    /// is then not said: the unrotated values or what they held before.
    pub to: Option<(&'a mut Tensor, Heads)>,
}

/// Fails unless every part is one of the outputs of one of the matrices, and no matrix has two.
pub(super) fn expect_rotated(ws: &[&Matrix], ys: &[&mut Tensor], rotated: &[Rotated<'_>]) -> Result<()> {
    const OP: &str = "linear_rotated";
    for (i, part) in rotated.iter().enumerate() {
        let twice = rotated[..i].iter().any(|other| other.matrix == part.matrix);
        let (Some(y), true, false) = (ys.get(part.matrix), part.matrix < ws.len(), twice) else {
            let want = format!("parts of different ones of {} matrices", ws.len());
            return Err(Error::shape(OP, want, part.matrix));
        };
        let heads = part.heads;
        if [heads.len, heads.offset, heads.stride].iter().any(|n| !n.is_multiple_of(2)) {
            return Err(Error::shape(OP, "parts of whole pairs at even columns", format!("{heads:?}")));
        }
        match &part.to {
            None => expect_in_place(OP, y, heads, part.angles)?,
            Some((to, to_heads)) => {
                expect_into(OP, y, heads, part.angles, to, *to_heads)?;
                on_one_device(OP, &[y.device(), to.device()])?;
            }
        }
        on_one_device(OP, &[y.device(), part.angles.device()])?;
    }
    Ok(())
}

/// [`linear_many`], and of its outputs the parts `rotated`: the bits of [`rope`] or [`rope_into`] afterwards. On GPUs matrices in tiles
/// rotate on the way out, in the launch that multiplies; if any is in blocks, by launches of their own.
///
/// # Errors
/// As [`linear_many`]; [`Error::Shape`] for parts that do not fit, are no whole pairs, or are two of one matrix;
/// [`Error::Unsupported`] across devices. Nothing is written then.
pub fn linear_rotated(
    ws: &[&Matrix],
    x: &Tensor,
    ys: &mut [&mut Tensor],
    rotated: &mut [Rotated<'_>],
    precision: Precision,
) -> Result<()> {
    super::expect_many(ws, x, ys)?;
    expect_rotated(ws, ys, rotated)?;
    if matches!(x.device(), Device::Cuda(_)) && ws.iter().all(|w| w.is_tiled()) {
        let rotated = rotated
            .iter_mut()
            .map(|part| Rotated { to: part.to.as_mut().map(|(to, heads)| (&mut **to, *heads)), ..*part });
        return cuda::linear::linear_many(ws, x, None, ys, rotated.collect(), precision);
    }
    linear_many(ws, x, ys, precision)?;
    rotate(ys, rotated)
}

/// By launches of their own.
pub(super) fn rotate(ys: &mut [&mut Tensor], rotated: &mut [Rotated<'_>]) -> Result<()> {
    for Rotated { matrix, heads, angles, to } in rotated {
        match to {
            None => rope(ys[*matrix], *heads, angles)?,
            Some((to, to_heads)) => rope_into(ys[*matrix], *heads, angles, to, *to_heads)?,
        }
    }
    Ok(())
}
