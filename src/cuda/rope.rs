//! Launches of rope_angles and rope. Shapes were checked by [`crate::ops`].

use std::f64::consts::FRAC_2_PI;

use super::dequantize::{count, holds};
use crate::error::{Error, Result};
use crate::ops::rope::config::{MAX_PAIRS, RopeConfig};
use crate::sys::{rope_angles_params, rope_params};
use crate::tensor::{Heads, RaggedRows, Tensor};

/// Cosines and sines `[m, dim]` of the angles of the rows.
pub(crate) fn rope_angles(base: f32, rows: &RaggedRows, angles: &mut Tensor) -> Result<()> {
    let [m, dim] = angles.shape();
    let on_gpu = angles.cuda_mut()?;
    let gpu = on_gpu.gpu().clone();
    if base < 1.0 || dim > 2 * MAX_PAIRS {
        let what = format!("rope of {dim} values with base {base} on {}", gpu.name());
        return Err(Error::unsupported(
            what,
            format!("at most {} values and a base of 1 or more", 2 * MAX_PAIRS),
        ));
    }
    holds("rope_angles", on_gpu, m * dim)?;
    let config = RopeConfig::pick_angles(m)?;
    let _turn = gpu.turn();
    let mut quarters = [0.0; MAX_PAIRS];
    for (i, quarter) in quarters[..dim / 2].iter_mut().enumerate() {
        *quarter = f64::from(base).powf(-2.0 * i as f64 / dim as f64) * FRAC_2_PI;
    }
    let params = rope_angles_params {
        positions: rows.on_gpu(&gpu, usize::MAX)?.positions,
        angles: on_gpu.as_mut_ptr(),
        quarters,
        m: count("rows", m)?,
        pairs: (dim / 2) as u32,
    };
    // SAFETY: the copy of the rows has `m` positions and `angles` as many rows of `dim` values, as was checked.
    unsafe { gpu.launch(config.entry, [config.grid, 1, 1], &params) }
}

/// The parts of some heads in place.
pub(crate) fn rope(x: &mut Tensor, heads: Heads, angles: &Tensor) -> Result<()> {
    let [m, cols] = x.shape();
    let x = x.cuda_mut()?;
    angles.cuda()?.gpu().with(x)?;
    holds("rope", x, m * cols)?;
    let at = x.as_mut_ptr().wrapping_add(heads.offset);
    launch(angles, m, heads, (at, cols, heads.stride), (at, cols, heads.stride))
}

/// Parts of `x` to those of `y`.
pub(crate) fn rope_into(
    x: &Tensor,
    x_heads: Heads,
    angles: &Tensor,
    y: &mut Tensor,
    y_heads: Heads,
) -> Result<()> {
    let ([m, x_cols], y_cols) = (x.shape(), y.cols());
    let (x, y) = (x.cuda()?, y.cuda_mut()?);
    angles.cuda()?.gpu().with(x)?.with(y)?;
    holds("rope", x, m * x_cols)?;
    holds("rope", y, m * y_cols)?;
    let from = x.as_ptr().wrapping_add(x_heads.offset);
    let to = y.as_mut_ptr().wrapping_add(y_heads.offset);
    launch(angles, m, x_heads, (from, x_cols, x_heads.stride), (to, y_cols, y_heads.stride))
}

/// Of values from and to an address, with the columns of a row and those from head to head. Buffers are aligned to 256, so an address tells
/// whether a part begins at a multiple of four values.
fn launch(
    angles: &Tensor,
    m: usize,
    Heads { n: heads, len: dim, .. }: Heads,
    (x, x_cols, x_head): (*const f32, usize, usize),
    (y, y_cols, y_head): (*mut f32, usize, usize),
) -> Result<()> {
    let angles = angles.cuda()?;
    let gpu = angles.gpu();
    let _turn = gpu.turn();
    holds("rope", angles, m * dim)?;
    let aligned = [dim, x_cols, x_head, y_cols, y_head].iter().all(|n| n.is_multiple_of(4))
        && [x.addr(), y.addr()].iter().all(|a| a.is_multiple_of(16));
    let config = RopeConfig::pick(m, heads, dim / 2, aligned)?;
    count("pairs of a row", heads * dim / 2)?;
    let params = rope_params {
        angles: angles.as_ptr(),
        x,
        y,
        x_stride: x_cols as u64,
        y_stride: y_cols as u64,
        x_head: count("columns", x_head)?,
        y_head: count("columns", y_head)?,
        heads: count("heads", heads)?,
        m: count("rows", m)?,
        pairs: count("pairs", dim / 2)?,
    };
    // SAFETY: the heads lie within rows of their tensors, which are there, and `angles` has `m` rows of `dim` values; all lie
    // on this device. Each value is read and written by one thread.
    unsafe { gpu.launch(config.entry, [config.grid, 1, 1], &params) }
}
