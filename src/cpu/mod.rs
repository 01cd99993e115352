//! The fast CPU path: a thread pool, run-time SIMD, kernels. No policy: shapes were checked by [`crate::ops`].

pub(crate) mod dequantize;
pub(crate) mod dsa_indexer;
pub(crate) mod dsa_topk;
pub(crate) mod embedding;
#[cfg(target_arch = "x86_64")]
mod lanes;
pub(crate) mod linear;
pub(crate) mod mla_attention;
pub(crate) mod moe;
pub(crate) mod moe_sort;
pub(crate) mod norm;
pub(crate) mod post_a;
mod rect;
pub(crate) mod rope;
pub(crate) mod router;
mod row_dot;
mod simd;
mod tile;
#[cfg(target_arch = "x86_64")]
mod unpack;

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

pub use simd::SimdLevel;

use crate::error::{Error, Result};

/// Below this many multiply-adds a task is not worth handing to another thread (a hand-over takes about 5 us).
const MIN_TASK: usize = 32 * 1024;

/// Threads, the SIMD level found at run time, and scratch memory that is reused from call to call. Clones share them.
#[derive(Clone)]
pub struct Cpu(Arc<Inner>);

struct Inner {
    pool: rayon::ThreadPool,
    arch: pulp::Arch,
    scratch: Mutex<Vec<Vec<u64>>>,
}

impl Cpu {
    /// A pool of `threads` threads (`None`: as many as the machine has), at the best SIMD level of the machine.
    ///
    /// # Errors
    /// [`Error::Argument`] for zero or more than 1024, [`Error::Unsupported`] if the system gives no threads.
    pub fn new(threads: Option<usize>) -> Result<Self> {
        Self::with_simd(threads, SimdLevel::available()[0])
    }

    /// As [`Cpu::new`], at a chosen SIMD level (matrix-matrix products choose their own).
    ///
    /// # Errors
    /// As [`Cpu::new`], and [`Error::Unsupported`] if the processor lacks the level.
    pub fn with_simd(threads: Option<usize>, level: SimdLevel) -> Result<Self> {
        let threads = match threads {
            Some(n @ 1..=1024) => n,
            Some(n) => return Err(Error::argument("threads", "1 to 1024", n)),
            None => std::thread::available_parallelism().map_or(1, |n| n.get()),
        };
        let arch = level.arch()?;
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|i| format!("glm5-{i}"))
            .build()
            .map_err(|e| Error::unsupported(format!("a pool of {threads} threads"), e))?;
        Ok(Cpu(Arc::new(Inner { pool, arch, scratch: Mutex::new(Vec::new()) })))
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.0.pool.current_num_threads()
    }

    /// Short name for reports: threads and SIMD level.
    pub fn name(&self) -> String {
        let n = self.threads();
        format!("cpu ({n} thread{}, {})", if n == 1 { "" } else { "s" }, simd::level(self.0.arch))
    }

    /// Runs `f` on a thread of the pool. Loops that call many operations run inside one `install`: each call then starts
    /// where it is, without a hand-over between threads (and without the small queue allocations of one).
    pub fn install<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        self.0.pool.install(f)
    }

    /// The SIMD level, to dispatch by hand.
    #[cfg(target_arch = "x86_64")]
    fn arch(&self) -> pulp::Arch {
        self.0.arch
    }

    /// Runs `f` compiled for the SIMD level; what it calls must be `inline(always)`.
    #[inline(always)]
    fn simd<R>(&self, f: impl FnOnce() -> R) -> R {
        self.0.arch.dispatch(f)
    }

    /// Runs a kernel that is written with explicit vectors, at the SIMD level.
    #[inline(always)]
    fn dispatch<R>(&self, kernel: impl pulp::WithSimd<Output = R>) -> R {
        self.0.arch.dispatch(kernel)
    }

    /// Units of work per task when each of `units` costs `cost` multiply-adds: a few tasks per thread, none too small.
    fn grain(&self, units: usize, cost: usize) -> usize {
        let balanced = units.div_ceil(self.threads() * 4);
        balanced.max(MIN_TASK.div_ceil(cost.max(1))).max(1)
    }

    /// Calls `f(i, row i)` for all rows of `data`, in parallel when that pays; `cost` is multiply-adds per row.
    fn for_rows(&self, data: &mut [f32], cols: usize, cost: usize, f: impl Fn(usize, &mut [f32]) + Sync) {
        let rows = data.len().checked_div(cols).unwrap_or(0);
        let grain = self.grain(rows, cost);
        let body = |first: usize, _: usize, mut part: rect::Rect<'_>| {
            self.simd(
                #[inline(always)]
                || {
                    for r in 0..part.rows() {
                        f(first + r, part.row(r));
                    }
                },
            );
        };
        self.install(|| rect::Rect::new(data, cols).for_tiles(grain, usize::MAX, &body));
    }

    /// Scratch of `n` words with arbitrary contents, returned to the pool when dropped.
    fn scratch(&self, n: usize) -> Scratch<'_> {
        let mut free = self.0.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        // The smallest that is large enough, else the largest, so that sizes settle and steady work allocates nothing.
        let fit = (0..free.len()).filter(|i| free[*i].len() >= n).min_by_key(|i| free[*i].len());
        let best = fit.or_else(|| (0..free.len()).max_by_key(|i| free[*i].len()));
        let mut buf = best.map(|i| free.swap_remove(i)).unwrap_or_default();
        drop(free);
        if buf.len() < n {
            buf.resize(n, 0);
        }
        Scratch { cpu: self, buf, n }
    }

    /// Scratch of `n` floats with arbitrary contents.
    fn scratch_f32(&self, n: usize) -> ScratchF32<'_> {
        ScratchF32 { words: self.scratch(n.div_ceil(2)), n }
    }
}

impl fmt::Debug for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

struct Scratch<'a> {
    cpu: &'a Cpu,
    buf: Vec<u64>,
    n: usize,
}

impl Deref for Scratch<'_> {
    type Target = [u64];
    fn deref(&self) -> &[u64] {
        &self.buf[..self.n]
    }
}

impl DerefMut for Scratch<'_> {
    fn deref_mut(&mut self) -> &mut [u64] {
        &mut self.buf[..self.n]
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        let buf = std::mem::take(&mut self.buf);
        self.cpu.0.scratch.lock().unwrap_or_else(PoisonError::into_inner).push(buf);
    }
}

struct ScratchF32<'a> {
    words: Scratch<'a>,
    n: usize,
}

impl Deref for ScratchF32<'_> {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        &bytemuck::cast_slice(&self.words)[..self.n]
    }
}

impl DerefMut for ScratchF32<'_> {
    fn deref_mut(&mut self) -> &mut [f32] {
        let n = self.n;
        &mut bytemuck::cast_slice_mut(&mut self.words)[..n]
    }
}

/// Weights for the tests of the kernels.
#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::quant::{GgmlType, Weight, is_supported};

    pub fn any_supported() -> impl Strategy<Value = GgmlType> {
        let all: Vec<GgmlType> = GgmlType::ALL.iter().copied().filter(|ty| is_supported(*ty)).collect();
        prop::sample::select(all)
    }

    /// SplitMix64.
    pub fn random_bytes(len: usize, mut seed: u64) -> Vec<u8> {
        let words = (0..len.div_ceil(8)).flat_map(|_| {
            seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (seed ^ seed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            (z ^ z >> 31).to_le_bytes()
        });
        words.take(len).collect()
    }

    /// Random blocks `[1, rows, cols]` with finite values.
    pub fn random_weight(ty: GgmlType, rows: usize, cols: usize, seed: u64) -> Weight {
        let block = |seed| {
            (0..).map(|i| random_bytes(ty.block_bytes(), seed ^ i << 32)).find(|b| {
                let mut values = vec![0.0; ty.block_elems()];
                crate::quant::dequantize(ty, b, &mut values).unwrap();
                // Far from the ends of the range: neither products nor their sums overflow or vanish.
                values.iter().all(|v| v.abs() < 1e10) && values.iter().any(|v| v.abs() > 1e-10)
            })
        };
        let blocks = (rows * cols / ty.block_elems()) as u64;
        let bytes: Vec<u8> = (0..blocks).flat_map(|i| block(seed.wrapping_add(i)).unwrap()).collect();
        Weight::new(ty, [1, rows, cols], bytes.into()).unwrap()
    }
}
