//! [`LinearInput`]: rows that linear layers take, and their rounded form beside them.

use super::{Rotated, expect_many, linear_many, quantize};
use crate::cuda;
use crate::error::Result;
use crate::ops::linear::rotated::{expect_rotated, rotate};
use crate::tensor::{Device, Matrix, Precision, QuantizedTiles, Tensor};

/// Rows `[m, cols]` for several linear layers, with memory for their rounded form: matrices in tiles take that, and it is made once, by the
/// operation that writes the rows or by the first layer that needs it. A step that was run once can so be recorded in a graph.
#[derive(Debug)]
pub struct LinearInput {
    values: Tensor,
    /// On a GPU, where rows can be rounded.
    tiles: Option<QuantizedTiles>,
    /// Whether the tiles are of the values.
    rounded: bool,
}

impl LinearInput {
    /// Room for no rows yet.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn new(device: &Device, cols: usize) -> Result<Self> {
        let tiles = match device {
            Device::Cuda(_) if cols > 0 && cols.is_multiple_of(32) => {
                Some(QuantizedTiles::new(device, 0, cols)?)
            }
            _ => None,
        };
        Ok(LinearInput { values: Tensor::zeros(device, 0, cols)?, tiles, rounded: false })
    }

    /// Changes the number of rows.
    ///
    /// # Errors
    /// As [`Tensor::resize`].
    pub fn resize(&mut self, rows: usize) -> Result<()> {
        self.rounded = false;
        self.values.resize(rows)
    }

    /// As [`LinearInput::resize`], for who writes all rows next.
    pub(crate) fn resize_to_overwrite(&mut self, rows: usize) -> Result<()> {
        self.rounded = false;
        self.values.resize_to_overwrite(rows)
    }

    /// The rows.
    pub fn values(&self) -> &Tensor {
        &self.values
    }

    /// The rows, to be written.
    pub fn values_mut(&mut self) -> &mut Tensor {
        self.rounded = false;
        &mut self.values
    }

    /// Both forms, for an operation that writes them with one launch. With `tiled` there is one for matrices in tiles, if the device has it.
    ///
    /// # Errors
    /// As [`QuantizedTiles::resize`].
    pub fn both_mut(&mut self, tiled: bool) -> Result<(&mut Tensor, Option<&mut QuantizedTiles>)> {
        let LinearInput { values, tiles, rounded } = self;
        let tiles = tiles.as_mut().filter(|_| tiled);
        *rounded = tiles.is_some();
        match tiles {
            None => Ok((values, None)),
            Some(tiles) => {
                tiles.resize(values.rows(), values.cols())?;
                Ok((values, Some(tiles)))
            }
        }
    }

    /// The rows, and rounded if there is a form for that.
    pub(crate) fn rounded(&mut self) -> Result<(&Tensor, Option<&mut QuantizedTiles>)> {
        let LinearInput { values, tiles, rounded } = self;
        let Some(tiles) = tiles else { return Ok((values, None)) };
        if !*rounded {
            tiles.resize(values.rows(), values.cols())?;
            quantize(values, tiles)?;
            *rounded = true;
        }
        Ok((values, Some(tiles)))
    }
}

/// [`linear_rotated`](super::linear_rotated) of rows that keep their rounded form.
///
/// # Errors
/// As [`linear_rotated`](super::linear_rotated).
pub fn linear_from(
    ws: &[&Matrix],
    x: &mut LinearInput,
    ys: &mut [&mut Tensor],
    rotated: &mut [Rotated<'_>],
    precision: Precision,
) -> Result<()> {
    expect_many(ws, &x.values, ys)?;
    expect_rotated(ws, ys, rotated)?;
    let in_tiles = ws.iter().filter(|w| w.is_tiled()).count();
    if in_tiles == 0 || precision != Precision::Fast {
        linear_many(ws, &x.values, ys, precision)?; // refuses tiles
        return rotate(ys, rotated);
    }
    let (values, tiles) = x.rounded()?;
    if in_tiles < ws.len() {
        cuda::linear::linear_many(ws, values, tiles, ys, Vec::new(), precision)?;
        return rotate(ys, rotated);
    }
    let on_the_way = rotated
        .iter_mut()
        .map(|part| Rotated { to: part.to.as_mut().map(|(to, heads)| (&mut **to, *heads)), ..*part })
        .collect();
    cuda::linear::linear_many(ws, values, tiles, ys, on_the_way, precision)
}
