//! What integer linears take on a GPU: weights in tiles ([`DeviceTiles`]) and int8 activations in tiles ([`QuantizedTiles`]).

use super::Device;
use crate::cuda::{Buffer, Gpu};
use crate::error::Result;
use crate::ops::linear::config::GemmConfig;
use crate::quant::GgmlType;
use crate::quant::tiles::TILE_COLS;
use crate::sys::tile_act;

/// In [`Gpu::held`].
const LABEL: &str = "int8 activations";

/// Tokens of a tile of activations.
pub const TILE_TOKENS: usize = 8;

/// A weight in the memory of a GPU, repacked ([`crate::quant::tiles`]): as many bytes as its blocks, and rows and columns
/// rounded up to whole tiles.
#[derive(Debug)]
pub struct DeviceTiles {
    /// Block type.
    pub ty: GgmlType,
    /// `[slabs, n / 16, k / 256]` tiles.
    pub tiles: Buffer<u8>,
}

/// Rows `[rows, cols]` of activations as int8 with a scale for each 32 values, in tiles of 8 rows and 256 columns. 11 bits a
/// value.
#[derive(Debug)]
pub struct QuantizedTiles {
    rows: usize,
    cols: usize,
    tiles: Buffer<u8>,
    scratch: Option<GemmScratch>,
}

/// Where the blocks of threads of a product of many tokens meet: nothing in it outlives a launch.
#[derive(Debug)]
pub struct GemmScratch {
    /// Sums of parts of rows.
    pub partial: Buffer<f32>,
    /// How many parts are there; zeros between launches.
    pub arrived: Buffer<u32>,
}

impl QuantizedTiles {
    /// Room for rows of `cols` values. They have no contents before an operation writes them all.
    ///
    /// # Errors
    /// [`crate::Error::Unsupported`] elsewhere than on a GPU; [`crate::Error::OutOfMemory`], [`crate::Error::Capacity`] or
    /// [`crate::Error::Driver`].
    pub fn new(device: &Device, rows: usize, cols: usize) -> Result<Self> {
        Self::on(device.gpu()?, rows, cols)
    }

    pub(crate) fn on(gpu: &Gpu, rows: usize, cols: usize) -> Result<Self> {
        let mut new = QuantizedTiles { rows: 0, cols, tiles: gpu.alloc(LABEL, 0)?, scratch: None };
        new.resize(rows, cols)?;
        Ok(new)
    }

    /// Changes the shape; the contents are lost. Memory once grown is kept.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`], [`crate::Error::Capacity`] or [`crate::Error::Driver`]; nothing is changed then.
    pub fn resize(&mut self, rows: usize, cols: usize) -> Result<()> {
        // An overflow is left to the allocation to refuse.
        let tiles = rows.div_ceil(TILE_TOKENS).saturating_mul(cols.div_ceil(TILE_COLS));
        let bytes = tiles.saturating_mul(size_of::<tile_act>());
        if bytes > self.tiles.len() {
            self.tiles = self.tiles.gpu().alloc(LABEL, bytes)?;
        }
        if rows > TILE_TOKENS && self.scratch.is_none() {
            let gpu = self.tiles.gpu();
            let (partial, blocks) = GemmConfig::scratch(gpu.properties().sms);
            let (partial, arrived) = (gpu.alloc(LABEL, partial)?, gpu.zeros(LABEL, blocks)?);
            self.scratch = Some(GemmScratch { partial, arrived });
        }
        (self.rows, self.cols) = (rows, cols);
        Ok(())
    }

    /// `[rows, cols]`.
    pub fn shape(&self) -> [usize; 2] {
        [self.rows, self.cols]
    }

    /// The tiles, in the front of a buffer that may be longer.
    pub fn tiles(&self) -> &Buffer<u8> {
        &self.tiles
    }

    /// For products of more tokens than a tile has; there if there are as many.
    pub fn scratch_mut(&mut self) -> Option<&mut GemmScratch> {
        self.scratch.as_mut()
    }

    /// As [`QuantizedTiles::tiles`], writable.
    pub fn tiles_mut(&mut self) -> &mut Buffer<u8> {
        &mut self.tiles
    }
}
