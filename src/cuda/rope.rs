//! Launches of rope_angles and rope. Shapes were checked by [`crate::ops`].

use std::f64::consts::FRAC_2_PI;
use std::ptr::{null, null_mut};

use super::Gpu;
use super::dequantize::{count, holds};
use crate::error::{Error, Result};
use crate::ops::rope::config::{MAX_PAIRS, RopeConfig};
use crate::sys::{rope_angles_params, rope_params, rope_part};
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
        positions: rows.on_gpu(&gpu)?.positions,
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
    let gpu = angles.cuda()?.gpu().clone();
    let _turn = gpu.turn();
    let part = in_place(&gpu, x, heads)?;
    let m = x.rows();
    launch(&gpu, angles, m, heads.len, [part, no_part()])
}

/// Parts of `x` to those of `y`, and others in place.
pub(crate) fn rope_into(
    x: &Tensor,
    x_heads: Heads,
    angles: &Tensor,
    y: &mut Tensor,
    y_heads: Heads,
    in_place_too: Option<(&mut Tensor, Heads)>,
) -> Result<()> {
    let gpu = angles.cuda()?.gpu().clone();
    let [m, x_cols] = x.shape();
    let y_cols = y.cols();
    let (x, y) = (x.cuda()?, y.cuda_mut()?);
    gpu.with(x)?.with(y)?;
    holds("rope", x, m * x_cols)?;
    holds("rope", y, m * y_cols)?;
    let _turn = gpu.turn();
    let part = rope_part {
        x: x.as_ptr().wrapping_add(x_heads.offset),
        y: y.as_mut_ptr().wrapping_add(y_heads.offset),
        x_stride: x_cols as u64,
        y_stride: y_cols as u64,
        x_head: count("columns", x_heads.stride)?,
        y_head: count("columns", y_heads.stride)?,
        heads: count("heads", x_heads.n)?,
    };
    let other = match in_place_too {
        Some((x, heads)) => in_place(&gpu, x, heads)?,
        None => no_part(),
    };
    launch(&gpu, angles, m, x_heads.len, [part, other])
}

fn in_place(gpu: &Gpu, x: &mut Tensor, heads: Heads) -> Result<rope_part> {
    let [m, cols] = x.shape();
    let x = x.cuda_mut()?;
    gpu.with(x)?;
    holds("rope", x, m * cols)?;
    let at = x.as_mut_ptr().wrapping_add(heads.offset);
    let (stride, head) = (cols as u64, count("columns", heads.stride)?);
    let (x_stride, y_stride, x_head, y_head) = (stride, stride, head, head);
    Ok(rope_part { x: at, y: at, x_stride, y_stride, x_head, y_head, heads: count("heads", heads.n)? })
}

fn no_part() -> rope_part {
    rope_part { x: null(), y: null_mut(), x_stride: 0, y_stride: 0, x_head: 0, y_head: 0, heads: 0 }
}

/// Buffers are aligned to 256, so an address tells whether a part begins at a multiple of four values.
fn launch(gpu: &Gpu, angles: &Tensor, m: usize, dim: usize, parts: [rope_part; 2]) -> Result<()> {
    let angles = angles.cuda()?;
    holds("rope", angles, m * dim)?;
    let fours = |p: &rope_part| {
        let strides = [p.x_stride, p.y_stride, p.x_head.into(), p.y_head.into()];
        strides.iter().all(|n| n.is_multiple_of(4))
            && [p.x.addr(), p.y.addr()].iter().all(|a| a.is_multiple_of(16))
    };
    let aligned = dim.is_multiple_of(4) && parts.iter().all(fours);
    let heads = parts.iter().map(|p| p.heads as usize).sum();
    let config = RopeConfig::pick(m, heads, dim / 2, aligned)?;
    count("pairs of a row", heads * dim / 2)?;
    let params =
        rope_params { angles: angles.as_ptr(), parts, m: count("rows", m)?, pairs: count("pairs", dim / 2)? };
    // SAFETY: the heads lie within rows of their tensors, which are there, and `angles` has `m` rows of `dim` values; all lie
    // on this device. Each value is read and written by one thread.
    unsafe { gpu.launch(config.entry, [config.grid, 1, 1], &params) }
}
