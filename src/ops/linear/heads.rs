//! One matrix per head: absorbing `k_b`, applying `v_b`.

use super::{InputForms, LinearInput, Rounded, expect_heads};
use crate::error::{Error, Result};
use crate::tensor::{Device, Heads, Matrix, Precision, QuantizedTiles, Tensor};
use crate::{cpu, cuda};

/// One matrix per head: `y[t][head h] = W[h] x[t][head h]`. `w` is `[heads, n, k]`; the head parts of `x` are `k` wide,
/// those of `y` are `n` wide; columns of `y` outside them keep their values. Absorbing `k_b` and applying `v_b` are such
/// layers. [`Precision::Fast`] rounds the activations to bf16 here, not to int8, and to f16 if `w` is in tiles.
///
/// Of more than 16 tokens, or parts of more than 512 columns, and a matrix in tiles this rounds `x` into memory that it allocates:
/// [`head_linear_from`] is for graphs.
///
/// # Errors
/// [`Error::Shape`] if counts, widths or rows do not fit; [`Error::Unsupported`] if `w` is in tiles and parts of `x` do not begin at
/// multiples of 4 columns, or for [`Precision::Exact`] of tiles.
pub fn head_linear(
    w: &Matrix,
    x: &Tensor,
    x_heads: Heads,
    y: &mut Tensor,
    y_heads: Heads,
    precision: Precision,
) -> Result<()> {
    expect(w, (x, x_heads), (y, y_heads))?;
    run(w, (x, x_heads), None, (y, y_heads), None, precision)
}

/// Memory for the rounded parts of rows, for [`head_linear_from`]. Once grown it is kept, so that a step that was run can be recorded in a graph. On
/// the CPU, and of parts that cannot be rounded, it is empty.
#[derive(Debug)]
pub struct HeadScratch {
    heads: Heads,
    tiles: Option<QuantizedTiles>,
}

impl HeadScratch {
    /// For rows with these parts, none yet.
    ///
    /// # Errors
    /// As [`QuantizedTiles::new`].
    pub fn new(device: &Device, heads: Heads) -> Result<Self> {
        let tiles = match device {
            Device::Cuda(_) if heads.len > 0 && heads.len.is_multiple_of(32) => {
                Some(QuantizedTiles::for_heads(device, 0, heads.n, heads.len)?)
            }
            _ => None,
        };
        Ok(HeadScratch { heads, tiles })
    }

    /// The tiles, if the parts are those of `heads`.
    fn of(&mut self, heads: Heads) -> Result<Option<&mut QuantizedTiles>> {
        if (self.heads.n, self.heads.len) != (heads.n, heads.len) {
            return Err(Error::shape(
                "head_linear",
                format!("scratch for {heads:?}"),
                format!("{:?}", self.heads),
            ));
        }
        Ok(self.tiles.as_mut())
    }
}

/// [`head_linear`] in memory that is kept.
///
/// # Errors
/// As [`head_linear`]; [`Error::Shape`] if the scratch is for other parts.
pub fn head_linear_from(
    w: &Matrix,
    x: &Tensor,
    x_heads: Heads,
    scratch: &mut HeadScratch,
    y: &mut Tensor,
    y_heads: Heads,
    precision: Precision,
) -> Result<()> {
    expect(w, (x, x_heads), (y, y_heads))?;
    run(w, (x, x_heads), scratch.of(x_heads)?, (y, y_heads), None, precision)
}

/// [`head_linear_from`] to what other linear layers take. With `tiled` their input is rounded on the way, with the bits that
/// [`quantize`](super::quantize) makes of it, where the device can: on a GPU up to 16 tokens, of heads of whole blocks of 32 that lie side by side and are all of a row, of
/// a multiple of 256 columns.
///
/// # Errors
/// As [`head_linear_from`].
#[allow(clippy::too_many_arguments)] // those of head_linear, memory, and what comes next
pub fn head_linear_into(
    w: &Matrix,
    x: &Tensor,
    x_heads: Heads,
    scratch: &mut HeadScratch,
    y: &mut LinearInput,
    y_heads: Heads,
    tiled: bool,
    precision: Precision,
) -> Result<()> {
    expect(w, (x, x_heads), (y.values(), y_heads))?;
    let rounds = tiled && cuda::linear_heads::rounds(w, x, x_heads, y_heads, y.values().cols());
    let scratch = scratch.of(x_heads)?;
    let InputForms { values, tiles, .. } = y.forms_mut(Rounded { tiles: rounds, rows: false })?;
    run(w, (x, x_heads), scratch, (values, y_heads), tiles, precision)
}

fn expect(w: &Matrix, (x, x_heads): (&Tensor, Heads), (y, y_heads): (&Tensor, Heads)) -> Result<()> {
    const OP: &str = "head_linear";
    let [heads, n, k] = w.shape();
    if x_heads.n != heads || x_heads.len != k || !x_heads.fits(x.cols()) {
        let want = format!("{heads} heads of {k} in rows of {}", x.cols());
        return Err(Error::shape(OP, want, format!("x {x_heads:?}")));
    }
    expect_heads(OP, "y", y_heads, [heads, n], y, x.rows())
}

fn run(
    w: &Matrix,
    (x, x_heads): (&Tensor, Heads),
    rounded: Option<&mut QuantizedTiles>,
    (y, y_heads): (&mut Tensor, Heads),
    out: Option<&mut QuantizedTiles>,
    precision: Precision,
) -> Result<()> {
    match x.device() {
        Device::Cpu(cpu) => cpu::linear::head_linear(cpu, w.cpu()?, x, x_heads, y, y_heads, precision),
        Device::Cuda(_) if w.is_tiled() => {
            cuda::linear_heads::head_linear(w, (x, x_heads), rounded, (y, y_heads), out, precision)
        }
        Device::Cuda(_) => cuda::linear::head_linear(w, x, x_heads, y, y_heads, precision),
    }
}
