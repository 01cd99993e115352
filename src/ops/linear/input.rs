//! [`LinearInput`]: rows that linear layers and experts take, and their rounded forms beside them.

use super::{Rotated, expect_many, linear_many, quantize};
use crate::cuda;
use crate::error::Result;
use crate::ops::linear::rotated::{expect_rotated, rotate};
use crate::tensor::{Device, Matrix, Precision, QuantizedTiles, RoundedRows, Tensor};

/// Rows `[m, cols]` for several linear layers, with memory for their rounded forms: matrices in tiles take one, experts another. They are made
/// once, by the operation that writes the rows or by the first layer that needs them. A step that was run once can so be recorded in a graph.
#[derive(Debug)]
pub struct LinearInput {
    values: Tensor,
    /// On a GPU, where rows can be rounded.
    tiles: Option<QuantizedTiles>,
    rows: Option<RoundedRows>,
    /// Those that are of the values.
    rounded: Rounded,
}

/// Rounded forms of a [`LinearInput`]: those that are wanted, or those that are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rounded {
    /// For matrices in tiles.
    pub tiles: bool,
    /// For experts in tiles.
    pub rows: bool,
}

/// What an operation writes of a [`LinearInput`] with one launch.
#[derive(Debug)]
pub struct InputForms<'a> {
    /// As they are.
    pub values: &'a mut Tensor,
    /// Rounded, if wanted.
    pub tiles: Option<&'a mut QuantizedTiles>,
    /// Rounded, if wanted.
    pub rows: Option<&'a mut RoundedRows>,
}

impl LinearInput {
    /// Room for no rows yet.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    pub fn new(device: &Device, cols: usize) -> Result<Self> {
        let (tiles, rows) = match device {
            Device::Cuda(_) if cols > 0 && cols.is_multiple_of(32) => {
                (Some(QuantizedTiles::new(device, 0, cols)?), Some(RoundedRows::new(device)?))
            }
            _ => (None, None),
        };
        let rounded = Rounded::default();
        Ok(LinearInput { values: Tensor::zeros(device, 0, cols)?, tiles, rows, rounded })
    }

    /// Changes the number of rows.
    ///
    /// # Errors
    /// As [`Tensor::resize`].
    pub fn resize(&mut self, rows: usize) -> Result<()> {
        self.rounded = Rounded::default();
        self.values.resize(rows)
    }

    /// As [`LinearInput::resize`], for who writes all rows next.
    pub(crate) fn resize_to_overwrite(&mut self, rows: usize) -> Result<()> {
        self.rounded = Rounded::default();
        self.values.resize_to_overwrite(rows)
    }

    /// The rows.
    pub fn values(&self) -> &Tensor {
        &self.values
    }

    /// The rows, to be written.
    pub fn values_mut(&mut self) -> &mut Tensor {
        self.rounded = Rounded::default();
        &mut self.values
    }

    /// All forms that are wanted, to be written by one operation: those that the device has.
    ///
    /// # Errors
    /// As [`QuantizedTiles::resize`].
    pub fn forms_mut(&mut self, wanted: Rounded) -> Result<InputForms<'_>> {
        let LinearInput { values, tiles, rows, rounded } = self;
        *rounded = Rounded::default();
        let [m, cols] = values.shape();
        let mut tiles = tiles.as_mut().filter(|_| wanted.tiles);
        let mut rows = rows.as_mut().filter(|_| wanted.rows);
        tiles.iter_mut().try_for_each(|tiles| tiles.resize(m, cols))?;
        rows.iter_mut().try_for_each(|rows| rows.resize(m, cols))?;
        *rounded = Rounded { tiles: tiles.is_some(), rows: rows.is_some() };
        Ok(InputForms { values, tiles, rows })
    }

    /// The rows, and rounded if there is a form for that.
    pub(crate) fn rounded(&mut self) -> Result<(&Tensor, Option<&mut QuantizedTiles>)> {
        let LinearInput { values, tiles, rounded, .. } = self;
        let Some(tiles) = tiles else { return Ok((values, None)) };
        if !rounded.tiles {
            tiles.resize(values.rows(), values.cols())?;
            quantize(values, tiles)?;
            rounded.tiles = true;
        }
        Ok((values, Some(tiles)))
    }

    /// The rows, and what is there already of their rounded forms.
    pub(crate) fn there(&mut self) -> (&Tensor, Option<&mut QuantizedTiles>, Option<&RoundedRows>) {
        let LinearInput { values, tiles, rows, rounded } = self;
        (values, tiles.as_mut().filter(|_| rounded.tiles), rows.as_ref().filter(|_| rounded.rows))
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
