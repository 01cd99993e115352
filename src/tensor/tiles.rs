//! What linear layers in tiles take on a GPU: weights ([`DeviceTiles`]) and rounded activations ([`QuantizedTiles`]; of experts [`RoundedRows`]).

use std::fmt;

use super::Device;
use crate::cuda::{Buffer, Gpu, linear_tiled};
use crate::error::Result;
use crate::quant::GgmlType;
use crate::quant::tiles::TILE_COLS;
use crate::sys::{row_act, tile_act, tile_act_f16};

/// In [`Gpu::held`].
const LABEL: &str = "rounded activations";

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

/// How activations are rounded for [`Precision::Fast`](super::Precision).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ActivationFormat {
    /// 8 bits and a scale for 32 values ([`round_int8`](crate::ops::linear::reference::round_int8)).
    Int8,
    /// f16 after a power of two for each token ([`round_f16`](crate::ops::linear::reference::round_f16)).
    F16,
}

impl ActivationFormat {
    /// Bits of a value.
    pub fn bits(self) -> u32 {
        match self {
            ActivationFormat::Int8 => 8,
            ActivationFormat::F16 => 16,
        }
    }

    fn tile_bytes(self) -> usize {
        match self {
            ActivationFormat::Int8 => size_of::<tile_act>(),
            ActivationFormat::F16 => size_of::<tile_act_f16>(),
        }
    }
}

impl fmt::Display for ActivationFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ActivationFormat::Int8 => "int8",
            ActivationFormat::F16 => "f16",
        })
    }
}

/// Rows `[rows, slabs, cols]` of activations, rounded, in tiles of 8 rows and 256 columns. Each slab meets a matrix of its own.
#[derive(Debug)]
pub struct QuantizedTiles {
    rows: usize,
    slabs: usize,
    cols: usize,
    format: ActivationFormat,
    /// Asked for; else it follows from the rows.
    fixed: Option<ActivationFormat>,
    /// `[slabs, cols / 256, rows / 8]` tiles, rounded up.
    tiles: Buffer<u8>,
    scratch: Option<GemmScratch>,
}

/// Rows `[rows, cols]` of activations, rounded to int8 as those in tiles are: experts gather the rows of their tokens.
#[derive(Debug)]
pub struct RoundedRows {
    /// `[rows, cols / 256]`, the last rounded up, in the front of a buffer that may be longer.
    rows: Buffer<u8>,
    shape: [usize; 2],
}

impl RoundedRows {
    /// Room for no rows yet.
    ///
    /// # Errors
    /// [`crate::Error::Unsupported`] elsewhere than on a GPU.
    pub fn new(device: &Device) -> Result<Self> {
        Ok(RoundedRows { rows: device.gpu()?.alloc(LABEL, 0)?, shape: [0, 0] })
    }

    /// Changes the shape; the contents are lost. Memory once grown is kept.
    ///
    /// # Errors
    /// As [`QuantizedTiles::resize`].
    pub fn resize(&mut self, rows: usize, cols: usize) -> Result<()> {
        // An overflow is left to the allocation to refuse.
        let bytes = rows.saturating_mul(cols.div_ceil(TILE_COLS)).saturating_mul(size_of::<row_act>());
        if bytes > self.rows.len() {
            self.rows = self.rows.gpu().alloc(LABEL, bytes)?;
        }
        self.shape = [rows, cols];
        Ok(())
    }

    /// `[rows, cols]`.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// The rows, in the front of a buffer that may be longer.
    pub fn rows(&self) -> &Buffer<u8> {
        &self.rows
    }

    pub(crate) fn rows_mut(&mut self) -> &mut Buffer<u8> {
        &mut self.rows
    }
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
    /// Room for rows of `cols` values, rounded as is fastest for as many rows on this GPU. They have no contents before an
    /// operation writes them all.
    ///
    /// # Errors
    /// [`crate::Error::Unsupported`] elsewhere than on a GPU; [`crate::Error::OutOfMemory`], [`crate::Error::Capacity`] or
    /// [`crate::Error::Driver`].
    pub fn new(device: &Device, rows: usize, cols: usize) -> Result<Self> {
        Self::on(device.gpu()?, [rows, 1, cols], None)
    }

    /// The same in a format, whatever the number of rows.
    ///
    /// # Errors
    /// As [`QuantizedTiles::new`].
    pub fn with_format(device: &Device, rows: usize, cols: usize, format: ActivationFormat) -> Result<Self> {
        Self::on(device.gpu()?, [rows, 1, cols], Some(format))
    }

    /// Of rows with a part for each of `heads` matrices.
    ///
    /// # Errors
    /// As [`QuantizedTiles::new`].
    pub fn for_heads(device: &Device, rows: usize, heads: usize, cols: usize) -> Result<Self> {
        Self::on(device.gpu()?, [rows, heads, cols], Some(ActivationFormat::F16))
    }

    pub(crate) fn on(
        gpu: &Gpu,
        [rows, slabs, cols]: [usize; 3],
        fixed: Option<ActivationFormat>,
    ) -> Result<Self> {
        let (tiles, format) = (gpu.alloc(LABEL, 0)?, ActivationFormat::Int8);
        let mut new = QuantizedTiles { rows: 0, slabs, cols, format, fixed, tiles, scratch: None };
        new.resize(rows, cols)?;
        Ok(new)
    }

    /// Changes the shape, and the format with it unless it was asked for; the contents are lost. Memory once grown is kept.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`], [`crate::Error::Capacity`] or [`crate::Error::Driver`]; nothing is changed then.
    pub fn resize(&mut self, rows: usize, cols: usize) -> Result<()> {
        let gpu = self.tiles.gpu();
        let format = self.fixed.unwrap_or_else(|| linear_tiled::format(gpu, rows));
        // An overflow is left to the allocation to refuse.
        let row_tiles = rows.div_ceil(TILE_TOKENS).saturating_mul(self.slabs);
        let bytes = row_tiles.saturating_mul(cols.div_ceil(TILE_COLS)).saturating_mul(format.tile_bytes());
        let tiles = if bytes > self.tiles.len() { Some(gpu.alloc(LABEL, bytes)?) } else { None };
        if self.scratch.is_none() && linear_tiled::needs_scratch(format, rows, cols, self.fixed.is_some()) {
            let [partial, blocks] = linear_tiled::scratch(gpu);
            let (partial, arrived) = (gpu.alloc(LABEL, partial)?, gpu.zeros(LABEL, blocks)?);
            self.scratch = Some(GemmScratch { partial, arrived });
        }
        if let Some(tiles) = tiles {
            self.tiles = tiles;
        }
        (self.rows, self.cols, self.format) = (rows, cols, format);
        Ok(())
    }

    /// `[rows, cols]`; of several slabs the columns of one.
    pub fn shape(&self) -> [usize; 2] {
        [self.rows, self.cols]
    }

    /// Parts of a row, each for a matrix of its own.
    pub fn slabs(&self) -> usize {
        self.slabs
    }

    /// How they are rounded.
    pub fn format(&self) -> ActivationFormat {
        self.format
    }

    /// Bytes that the tiles take.
    pub(crate) fn bytes(&self) -> usize {
        self.slabs
            * self.rows.div_ceil(TILE_TOKENS)
            * self.cols.div_ceil(TILE_COLS)
            * self.format.tile_bytes()
    }

    /// The tiles, in the front of a buffer that may be longer.
    pub fn tiles(&self) -> &Buffer<u8> {
        &self.tiles
    }

    /// Not there for int8 of few tokens, unless that was asked for, nor for short rows, whose sums are not cut.
    pub(crate) fn scratch_mut(&mut self) -> Option<&mut GemmScratch> {
        self.scratch.as_mut()
    }

    /// Whether [`QuantizedTiles::scratch_mut`] is there.
    pub(crate) fn has_scratch(&self) -> bool {
        self.scratch.is_some()
    }

    /// As [`QuantizedTiles::tiles`], writable.
    pub(crate) fn tiles_mut(&mut self) -> &mut Buffer<u8> {
        &mut self.tiles
    }
}
