//! What this GPU's memory gives at best, measured by kernels that do nothing else: the roofs that benches quote.

use std::time::Duration;

use super::{Buffer, Gpu};
use crate::error::{Error, Result};
use crate::kernels;
use crate::sys::{copy_params, reduce_params};

/// 16 bytes, what one lane moves at a time.
pub type Vector = [u64; 2];

/// Most blocks per SM; more than fit at a time, so that none waits for the slowest.
const BLOCKS_PER_SM: u32 = 16;

/// Rounds of a measurement; the fastest counts, since all disturbances only slow it down.
const ROUNDS: usize = 10;

/// Blocks for `n` vectors in tiles: no more than have work, no more than keep the device busy.
fn grid(gpu: &Gpu, n: usize, unroll: u32, warps: u32) -> [u32; 3] {
    let tiles = n.div_ceil((unroll * warps * 32) as usize);
    let most = gpu.properties().sms.max(1).saturating_mul(BLOCKS_PER_SM);
    [u32::try_from(tiles).unwrap_or(u32::MAX).min(most), 1, 1]
}

/// `dst = src`, `[n]` both.
///
/// # Errors
/// [`Error::Shape`] if the lengths differ, [`Error::Unsupported`] if they lie on different devices; those of a launch.
pub fn copy(
    instance: &kernels::copy::Instance,
    src: &Buffer<Vector>,
    dst: &mut Buffer<Vector>,
) -> Result<()> {
    if dst.len() != src.len() {
        return Err(Error::shape("copy", format!("dst [{}]", src.len()), format!("[{}]", dst.len())));
    }
    let gpu = src.gpu().with(dst)?;
    let grid = grid(gpu, src.len(), instance.unroll, instance.warps);
    let params =
        copy_params { src: src.as_ptr().cast(), dst: dst.as_mut_ptr().cast(), n_vecs: src.len() as u64 };
    // SAFETY: both buffers have `n_vecs` vectors, which was checked; they are two, since one is borrowed exclusively.
    unsafe { gpu.launch(instance.entry, grid, &params) }
}

/// Writes sums to the front of `partial` that together are the wrapping sum of all words of `src` `[n]`; the rest stays.
/// Returns how many.
///
/// # Errors
/// [`Error::Shape`] if `partial` has fewer than [`partials`] places, [`Error::Unsupported`] if they lie on different
/// devices; those of a launch.
pub fn reduce(
    instance: &kernels::reduce::Instance,
    src: &Buffer<Vector>,
    partial: &mut Buffer<u64>,
) -> Result<usize> {
    let gpu = src.gpu().with(partial)?;
    let blocks = partials(gpu, instance, src.len());
    if partial.len() < blocks {
        return Err(Error::shape("reduce", format!("partial [{blocks}]"), format!("[{}]", partial.len())));
    }
    let params =
        reduce_params { src: src.as_ptr().cast(), partial: partial.as_mut_ptr(), n_vecs: src.len() as u64 };
    // SAFETY: `src` has `n_vecs` vectors and `partial` a place for each block, which was checked.
    unsafe { gpu.launch(instance.entry, [blocks as u32, 1, 1], &params) }?;
    Ok(blocks)
}

/// Sums that [`reduce`] makes of `n` vectors.
pub fn partials(gpu: &Gpu, instance: &kernels::reduce::Instance, n: usize) -> usize {
    grid(gpu, n, instance.unroll, instance.warps)[0] as usize
}

/// Measured rates.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Roofs {
    /// The GPU, by name.
    pub gpu: String,
    /// Bytes read by one run.
    pub bytes: u64,
    /// Bytes per second when only reading.
    pub read: f64,
    /// Bytes per second, read and written together, when copying.
    pub copy: f64,
}

impl Roofs {
    /// Measures on buffers of `bytes` bytes, or of a size that no cache of this GPU can hold. Takes a few milliseconds.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] for the two buffers; those of a launch.
    pub fn measure(gpu: &Gpu, bytes: Option<u64>) -> Result<Self> {
        let fitting = || -> Result<u64> {
            let wanted = (8 * gpu.properties().l2).max(256 << 20);
            Ok(wanted.min(gpu.memory()?.free / 4))
        };
        let bytes = bytes.map_or_else(fitting, Ok)?;
        let n = (bytes as usize / size_of::<Vector>()).max(1);
        let src = gpu.zeros::<Vector>("roofs", n)?;
        let mut dst = gpu.zeros::<Vector>("roofs", n)?;
        let bytes = (n * size_of::<Vector>()) as u64;

        let mut copy_rate = 0f64;
        for instance in kernels::copy::INSTANCES {
            let best = fastest(gpu, || copy(instance, &src, &mut dst))?;
            copy_rate = copy_rate.max(2.0 * bytes as f64 / best.as_secs_f64());
        }
        let mut read = 0f64;
        for instance in kernels::reduce::INSTANCES {
            let mut partial = gpu.zeros("roofs", partials(gpu, instance, n))?;
            let best = fastest(gpu, || reduce(instance, &src, &mut partial).map(|_| ()))?;
            read = read.max(bytes as f64 / best.as_secs_f64());
        }
        Ok(Roofs { gpu: gpu.name(), bytes, read, copy: copy_rate })
    }
}

/// The shortest time of some runs, after one that does not count. Runs are replays of a graph: what a launch costs on the
/// host must not show.
fn fastest(gpu: &Gpu, run: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let mut graph = gpu.capture(run)?;
    graph.launch()?;
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        best = best.min(gpu.time(|| graph.launch())?);
    }
    // A clock that did not move would make the rate infinite.
    Ok(best.max(Duration::from_nanos(1)))
}

impl std::fmt::Display for Roofs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Roofs { gpu, bytes, read, copy } = self;
        let (read, copy) = (read / 1e9, copy / 1e9);
        write!(f, "{gpu}: read {read:.0} GB/s, copy {copy:.0} GB/s ({} MB)", bytes / 1_000_000)
    }
}
