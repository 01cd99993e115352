//! What this GPU's memory and matrix units give at best, measured by kernels that do nothing else: the roofs that benches
//! quote.

use std::ops::Range;
use std::time::Duration;

use super::{Buffer, Gpu};
use crate::error::{Error, Result};
use crate::kernels::{self, Entry};
use crate::sys::{copy_params, mma_params, reduce_params};

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
    let _turn = gpu.turn();
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
    reduce_part(instance, src, 0..src.len(), partial)
}

/// As [`reduce`], of the vectors `part` of `src`.
fn reduce_part(
    instance: &kernels::reduce::Instance,
    src: &Buffer<Vector>,
    part: Range<usize>,
    partial: &mut Buffer<u64>,
) -> Result<usize> {
    let gpu = src.gpu().with(partial)?;
    let blocks = partials(gpu, instance, part.len());
    if partial.len() < blocks {
        return Err(Error::shape("reduce", format!("partial [{blocks}]"), format!("[{}]", partial.len())));
    }
    if part.start > part.end || part.end > src.len() {
        return Err(Error::shape("reduce", format!("a part of {} vectors", src.len()), format!("{part:?}")));
    }
    let _turn = gpu.turn();
    let params = reduce_params {
        src: src.as_ptr().wrapping_add(part.start).cast(),
        partial: partial.as_mut_ptr(),
        n_vecs: part.len() as u64,
    };
    // SAFETY: `src` has the `n_vecs` vectors of `part` and `partial` a place for each block, which was checked.
    unsafe { gpu.launch(instance.entry, [blocks as u32, 1, 1], &params) }?;
    Ok(blocks)
}

/// Sums that [`reduce`] makes of `n` vectors.
pub fn partials(gpu: &Gpu, instance: &kernels::reduce::Instance, n: usize) -> usize {
    grid(gpu, n, instance.unroll, instance.warps)[0] as usize
}

/// Fragments of the operands of a matrix instruction, as registers by lane.
#[derive(Debug)]
pub struct Fragments {
    /// A, `[4, 32]`.
    pub a: Buffer<u32>,
    /// B for each accumulator of a warp, `[tiles, 2, 32]`.
    pub b: Buffer<u32>,
}

/// Registers of the accumulators of one warp: `[tiles, 4, 32]`.
fn accumulators(tiles: u32) -> usize {
    tiles as usize * 4 * 32
}

/// `d[w] = steps * a b`, `[blocks, warps, tiles, 4, 32]`, with `mma.sync.m16n8k16` on f16, sums in f32. Returns the
/// floating-point operations.
///
/// # Errors
/// [`Error::Shape`] if a buffer has another size, [`Error::Unsupported`] if they lie on different devices; those of a launch.
pub fn mma_f16(
    instance: &kernels::mma_f16::Instance,
    operands: &Fragments,
    steps: u32,
    d: &mut Buffer<f32>,
) -> Result<f64> {
    mma(instance.entry, instance.tiles, 16, operands, steps, d)
}

/// The same with `mma.sync.m16n8k32` on signed bytes; sums wrap at 32 bits.
///
/// # Errors
/// As [`mma_f16`].
pub fn mma_s8(
    instance: &kernels::mma_s8::Instance,
    operands: &Fragments,
    steps: u32,
    d: &mut Buffer<i32>,
) -> Result<f64> {
    mma(instance.entry, instance.tiles, 32, operands, steps, d)
}

fn mma<T: bytemuck::Pod>(
    entry: Entry,
    tiles: u32,
    k: u32,
    operands: &Fragments,
    steps: u32,
    d: &mut Buffer<T>,
) -> Result<f64> {
    let Fragments { a, b } = operands;
    let gpu = a.gpu().with(b)?.with(d)?;
    let warps = entry.threads() / 32;
    let of_block = warps as usize * accumulators(tiles);
    if a.len() != 4 * 32 || b.len() != tiles as usize * 2 * 32 || !d.len().is_multiple_of(of_block) {
        let expected = format!("a [4, 32], b [{tiles}, 2, 32], d [blocks, {warps}, {tiles}, 4, 32]");
        let got = format!("{}, {} and {} registers", a.len(), b.len(), d.len());
        return Err(Error::shape("mma", expected, got));
    }
    let Ok(blocks) = u32::try_from(d.len() / of_block) else {
        return Err(Error::shape("mma", "fewer than 2^32 blocks", d.len() / of_block));
    };
    let _turn = gpu.turn();
    let params = mma_params { a: a.as_ptr(), b: b.as_ptr(), d: d.as_mut_ptr().cast(), steps };
    // SAFETY: the buffers have the sizes that the kernel takes, which was checked; `d` has a place for each block's warps.
    unsafe { gpu.launch(entry, [blocks, 1, 1], &params) }?;
    Ok(f64::from(2 * 16 * 8 * k) * f64::from(tiles * warps) * f64::from(steps) * f64::from(blocks))
}

/// What one launch after the other reads, each of memory that no cache holds.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ReadRoof {
    /// Bytes of a launch.
    pub bytes: u64,
    /// Bytes per second, with the edge from one launch to the next.
    pub rate: f64,
}

/// Sizes at which reading is measured: small launches are bound by their beginning and end, not by memory.
const READ_SIZES: [u64; 8] = [1 << 18, 1 << 20, 1 << 22, 1 << 23, 1 << 24, 1 << 25, 1 << 26, 1 << 27];

/// Measured rates.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Roofs {
    /// The GPU, by name.
    pub gpu: String,
    /// Bytes read by one run.
    pub bytes: u64,
    /// Bytes per second when only reading.
    pub read: f64,
    /// The same for less at a time, as kernels that follow each other read it: by size, the smallest first; the last is that of
    /// `bytes`. See [`Roofs::read_of`].
    pub reads: Vec<ReadRoof>,
    /// Bytes per second, read and written together, when copying.
    pub copy: f64,
    /// Floating-point operations per second of `mma.sync` on f16 with sums in f32.
    pub f16: f64,
    /// Operations per second of `mma.sync` on signed bytes.
    pub s8: f64,
}

impl Roofs {
    /// Measures memory on buffers of `bytes` bytes, or of a size that no cache of this GPU can hold, and matrix units over
    /// an amount of work that goes with that size. Takes a tenth of a second.
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
        let src = random_vectors(gpu, n)?;
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
        let mut reads = Vec::new();
        for size in READ_SIZES.into_iter().filter(|size| *size < bytes) {
            reads.push(ReadRoof { bytes: size, rate: read_rate(gpu, &src, size)? });
        }
        reads.push(ReadRoof { bytes, rate: read });
        let steps = (bytes as f64 / 1e6 * STEPS_PER_MB).ceil() as u32;
        let blocks = gpu.properties().sms.max(1) as usize * MMA_BLOCKS_PER_SM;
        let (mut f16, mut s8) = (0f64, 0f64);
        for instance in kernels::mma_f16::INSTANCES {
            let operands = random_fragments(gpu, instance.tiles, 0x3bff_3bff)?; // below 1: sums stay finite
            let mut d =
                gpu.alloc("roofs", blocks * instance.warps as usize * accumulators(instance.tiles))?;
            f16 = f16.max(rate(gpu, || mma_f16(instance, &operands, steps, &mut d))?);
        }
        for instance in kernels::mma_s8::INSTANCES {
            let operands = random_fragments(gpu, instance.tiles, u32::MAX)?;
            let mut d =
                gpu.alloc("roofs", blocks * instance.warps as usize * accumulators(instance.tiles))?;
            s8 = s8.max(rate(gpu, || mma_s8(instance, &operands, steps, &mut d))?);
        }
        Ok(Roofs { gpu: gpu.name(), bytes, read, reads, copy: copy_rate, f16, s8 })
    }

    /// Bytes per second when one launch reads `bytes`, and so do those before and after it. Between the sizes that were measured
    /// the time grows evenly; a smaller launch takes the time of the smallest, a larger one has the rate of the largest.
    pub fn read_of(&self, bytes: u64) -> f64 {
        let time = |roof: &ReadRoof| roof.bytes as f64 / roof.rate;
        let above = self.reads.partition_point(|roof| roof.bytes < bytes);
        match (above.checked_sub(1).and_then(|i| self.reads.get(i)), self.reads.get(above)) {
            (Some(low), Some(high)) => {
                let share = (bytes - low.bytes) as f64 / (high.bytes - low.bytes) as f64;
                bytes as f64 / (time(low) + share * (time(high) - time(low)))
            }
            (None, Some(first)) => bytes as f64 / time(first),
            (Some(last), None) => last.rate,
            (None, None) => self.read,
        }
    }
}

/// Bytes per second of launches that read `size` bytes each, one part of `src` after the other, over four times the L2 cache.
fn read_rate(gpu: &Gpu, src: &Buffer<Vector>, size: u64) -> Result<f64> {
    let n = size as usize / size_of::<Vector>();
    let wanted = (4 * gpu.properties().l2).div_ceil(size) as usize;
    let parts = (src.len() / n).min(wanted);
    let mut rate = 0f64;
    for instance in kernels::reduce::INSTANCES {
        let mut partial = gpu.zeros("roofs", partials(gpu, instance, n))?;
        let best = fastest(gpu, || {
            (0..parts)
                .try_for_each(|i| reduce_part(instance, src, i * n..(i + 1) * n, &mut partial).map(|_| ()))
        })?;
        rate = rate.max((parts as u64 * size) as f64 / best.as_secs_f64());
    }
    Ok(rate)
}

/// Steps of the matrix loops per megabyte that is copied: 1 ms of them on an H200 where the copies take 0.3 ms.
const STEPS_PER_MB: f64 = 16.0;

/// Enough for all places for warps.
const MMA_BLOCKS_PER_SM: usize = 2;

/// Numbers drawn at random, since zeros draw less power and run faster.
fn random_words() -> impl Iterator<Item = u32> {
    let mut state = 1u64;
    std::iter::repeat_with(move || {
        // Knuth's MMIX constants.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 32) as u32
    })
}

/// Random numbers, a few MB of them again and again: more would take longer to upload than to measure.
fn random_vectors(gpu: &Gpu, n: usize) -> Result<Buffer<Vector>> {
    const DRAWN: usize = 1 << 18;
    let mut words = random_words().map(u64::from);
    let mut word = || words.next().unwrap_or_default() << 32 | words.next().unwrap_or_default();
    let drawn: Vec<Vector> = (0..n.min(DRAWN)).map(|_| [word(), word()]).collect();
    let mut vectors = gpu.alloc("roofs", n)?;
    vectors.upload(0, &drawn)?;
    let mut there = drawn.len();
    while there < n {
        let more = there.min(n - there);
        vectors.copy_within(0..more, there)?;
        there += more;
    }
    Ok(vectors)
}

/// Random registers; only the bits of `mask` can be set, besides signs.
fn random_fragments(gpu: &Gpu, tiles: u32, mask: u32) -> Result<Fragments> {
    let mut words = random_words().map(|word| word & (mask | 0x8000_8000));
    let mut registers = |n: usize| -> Vec<u32> { words.by_ref().take(n).collect() };
    let (a, b) = (registers(4 * 32), registers(tiles as usize * 2 * 32));
    Ok(Fragments { a: gpu.upload("roofs", &a)?, b: gpu.upload("roofs", &b)? })
}

/// Operations per second of `run`, which says how many it did.
fn rate(gpu: &Gpu, run: impl FnOnce() -> Result<f64>) -> Result<f64> {
    let mut operations = 0.0;
    let best = fastest(gpu, || run().map(|n| operations = n))?;
    Ok(operations / best.as_secs_f64())
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
        let Roofs { gpu, bytes, read, copy, f16, s8, .. } = self;
        let (read, copy) = (read / 1e9, copy / 1e9);
        let (f16, s8) = (f16 / 1e12, s8 / 1e12);
        write!(
            f,
            "{gpu}: read {read:.0} GB/s, copy {copy:.0} GB/s ({} MB), mma {f16:.0} TFLOPS f16, {s8:.0} TOPS s8",
            bytes / 1_000_000
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_is_interpolated_in_time() {
        let at = |bytes, us: f64| ReadRoof { bytes, rate: bytes as f64 / (us * 1e-6) };
        let roofs = Roofs {
            gpu: "a GPU".into(),
            bytes: 300_000_000,
            read: 3e12,
            reads: vec![at(1_000_000, 2.0), at(9_000_000, 4.0), at(300_000_000, 100.0)],
            copy: 2.9e12,
            f16: 1e14,
            s8: 2e14,
        };
        let us = |bytes: u64| bytes as f64 / roofs.read_of(bytes) * 1e6;
        for (bytes, expected) in [
            (1, 2.0),
            (1_000_000, 2.0),
            (5_000_000, 3.0),
            (9_000_000, 4.0),
            (154_500_000, 52.0),
            (600_000_000, 200.0),
        ] {
            assert!((us(bytes) / expected - 1.0).abs() < 1e-9, "{bytes}: {} us", us(bytes));
        }
        let unmeasured = Roofs { reads: Vec::new(), ..roofs.clone() };
        assert_eq!(unmeasured.read_of(5), 3e12);
    }
}
