//! The shared expert of a mixture beside which the others are sorted: a feed-forward layer in memory that is kept.

use super::ffn::swiglu_in_place;
use super::linear::{self, TILES_ARE_FAST};
use crate::error::{Error, Result};
use crate::ops::ffn::Ffn;
use crate::ops::linear::{linear_tiled, quantize, swiglu_tiled};
use crate::tensor::{Device, Precision, QuantizedTiles, Tensor};

/// Input and what is between its halves, rounded, and that before; its output.
#[derive(Debug)]
pub(super) struct SharedRoom {
    x: QuantizedTiles,
    h: Tensor,
    /// Where gate and up are launches of their own.
    up: Tensor,
    h_rounded: QuantizedTiles,
    pub y: Tensor,
}

impl SharedRoom {
    /// For layers of these widths, no rows yet.
    pub fn new(device: &Device, [hidden, ff]: [usize; 2]) -> Result<Self> {
        Ok(SharedRoom {
            x: QuantizedTiles::new(device, 0, hidden)?,
            h: Tensor::zeros(device, 0, ff)?,
            up: Tensor::zeros(device, 0, ff)?,
            h_rounded: QuantizedTiles::new(device, 0, ff)?,
            y: Tensor::zeros(device, 0, hidden)?,
        })
    }

    pub fn suits(&self, [hidden, ff]: [usize; 2]) -> bool {
        self.h.cols() == ff && self.y.cols() == hidden
    }

    /// Room for `m` rows, which may be rounded already.
    pub fn resize(&mut self, m: usize, w: &Ffn, x_is_there: bool) -> Result<()> {
        let (hidden, ff) = (self.y.cols(), self.h.cols());
        self.h.resize(m)?;
        self.y.resize(m)?;
        if !together(w)? {
            self.up.resize(m)?;
        }
        if !x_is_there && (w.gate().is_tiled() || w.up().is_tiled()) {
            self.x.resize(m, hidden)?;
        }
        if w.down().is_tiled() {
            self.h_rounded.resize(m, ff)?;
        }
        Ok(())
    }

    /// The shared expert of every row of `x`, into `y`. With `x_tiles` the rows are rounded already.
    pub fn run(
        &mut self,
        w: &Ffn,
        x: &Tensor,
        x_tiles: Option<&mut QuantizedTiles>,
        precision: Precision,
    ) -> Result<()> {
        if precision != Precision::Fast && [w.gate(), w.up(), w.down()].iter().any(|w| w.is_tiled()) {
            return Err(Error::unsupported("an exact linear layer", TILES_ARE_FAST));
        }
        let SharedRoom { x: x_rounded, h, up, h_rounded, y } = self;
        let x_rounded = match x_tiles {
            Some(there) => there,
            None => {
                if w.gate().is_tiled() || w.up().is_tiled() {
                    quantize(x, x_rounded)?;
                }
                x_rounded
            }
        };
        if together(w)? {
            swiglu_tiled(w.gate(), w.up(), x_rounded, h)?;
        } else {
            for (w, y) in [(w.gate(), &mut *h), (w.up(), &mut *up)] {
                match w.is_tiled() {
                    true => linear_tiled(&[w], x_rounded, &mut [y])?,
                    false => linear::linear_many(&[w], x, None, &mut [y], Vec::new(), precision)?,
                }
            }
            let n = h.rows() * h.cols();
            swiglu_in_place(h.cuda_mut()?, up.cuda()?, n)?;
        }
        if !w.down().is_tiled() {
            return linear::linear_many(&[w.down()], h, None, &mut [y], Vec::new(), precision);
        }
        quantize(h, h_rounded)?;
        linear_tiled(&[w.down()], h_rounded, &mut [y])
    }
}

/// Whether gate, up and SwiGLU are one launch.
pub(super) fn together(w: &Ffn) -> Result<bool> {
    let both = w.gate().is_tiled() && w.up().is_tiled();
    Ok(both && w.gate().tiles()?.ty == w.up().tiles()?.ty)
}
