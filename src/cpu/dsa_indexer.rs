//! Lightning indexer: scores of keys in tiles, and the selection row by row.

use half::{bf16, f16};
use pulp::{Simd, WithSimd};

use super::dsa_topk::select;
use super::rect::Rect;
use super::{Cpu, simd};
use crate::error::Result;
use crate::ops::dsa_topk::Selection;
use crate::quant::cache_rows::{INT8_KEY, int8_key};
use crate::tensor::{CacheType, PagedRows, Precision, RaggedRows, Tensor};

/// Keys per task.
const TILE_KEYS: usize = 256;

/// Scores that [`indexer_select`] holds at a time (16 MiB), unless a single row has more.
const BLOCK_SCORES: usize = 4 << 20;

pub(crate) fn indexer_scores(input: &Scorer<'_>, scores: &mut Tensor) -> Result<()> {
    let n = scores.cols();
    input.run(0, Rect::new(scores.cpu_mut()?, n));
    Ok(())
}

pub(crate) fn indexer_select(input: &Scorer<'_>, out: &mut Selection) -> Result<()> {
    let (cpu, rows) = (input.cpu, input.rows);
    let k = out.k();
    let n = rows.max_visible();
    let block_rows = (BLOCK_SCORES / n.max(1)).clamp(1, rows.len().max(1));
    let mut scores = cpu.scratch_f32(if n > k { n * block_rows } else { 0 });
    let (indices, lens) = (out.indices.cpu_mut()?, out.lens.cpu_mut()?);
    for first in (0..rows.len()).step_by(block_rows) {
        let block = first..rows.len().min(first + block_rows);
        if block.clone().any(|t| rows.visible(t) > k) {
            input.run(first, Rect::new(&mut scores[..block.len() * n], n));
        }
        // Rows within the block in parallel: each owns its indices.
        let scores = &scores[..];
        let body = |t: usize, indices: &mut [u32]| {
            let visible = rows.visible(first + t);
            if visible <= k {
                all(visible, indices)
            } else {
                select(cpu, &scores[t * n..][..visible], indices)
            }
        };
        use rayon::prelude::*;
        let indices = &mut indices[block.start * k..block.end * k];
        let lens = &mut lens[block.clone()];
        if block.len() == 1 {
            lens[0] = body(0, indices) as u32;
        } else {
            cpu.install(|| {
                let pairs = indices.par_chunks_exact_mut(k).zip(lens.par_iter_mut()).enumerate();
                pairs.for_each(|(t, (indices, len))| *len = body(t, indices) as u32);
            });
        }
    }
    Ok(())
}

fn all(visible: usize, indices: &mut [u32]) -> usize {
    indices.iter_mut().zip(0..visible as u32).for_each(|(o, i)| *o = i);
    visible
}

/// What is scored.
pub(crate) struct Scorer<'a> {
    cpu: &'a Cpu,
    q: &'a [f32],
    w: &'a [f32],
    keys: &'a PagedRows,
    rows: &'a RaggedRows,
    scale: f32,
    n_heads: usize,
    rounding: Rounding,
}

/// What becomes of a query before it meets keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rounding {
    None,
    Bf16,
    F16,
    /// Rotated and rounded as keys are.
    Int8,
}

impl Rounding {
    fn of(ty: CacheType, precision: Precision) -> Self {
        match (ty, precision) {
            (CacheType::Int8, _) => Rounding::Int8,
            (CacheType::Bf16, Precision::Fast) => Rounding::Bf16,
            (CacheType::F16, Precision::Fast) => Rounding::F16,
            _ => Rounding::None,
        }
    }

    /// A head in place; gives what its products are to be multiplied by.
    fn round(self, head: &mut [f32]) -> f32 {
        match self {
            Rounding::None => {}
            Rounding::Bf16 => head.iter_mut().for_each(|v| *v = bf16::from_f32(*v).to_f32()),
            Rounding::F16 => {
                let (up, down) = f16_scale(head);
                head.iter_mut().for_each(|v| *v = f16::from_f32(*v * up).to_f32());
                return down;
            }
            Rounding::Int8 => {
                let mut quants = [0; INT8_KEY];
                if let Some(x) = head.as_array() {
                    let scale = int8_key(x, &mut quants);
                    head.iter_mut().zip(quants).for_each(|(v, q)| *v = f32::from(q));
                    return scale;
                }
            }
        }
        1.0
    }
}

/// The power of two that brings the largest value to 2^12, and its inverse.
fn f16_scale(head: &[f32]) -> (f32, f32) {
    let size = head.iter().fold(0f32, |m, v| m.max(v.abs()));
    let exponent = (size.to_bits() >> 23) as i32 - 127;
    let by = if size > 0.0 && exponent < 128 { (12 - exponent).clamp(-100, 100) } else { 0 };
    let power = |by: i32| f32::from_bits(((127 + by) as u32) << 23);
    (power(by), power(-by))
}

impl<'a> Scorer<'a> {
    pub fn new(
        cpu: &'a Cpu,
        q: &'a Tensor,
        w: &'a Tensor,
        keys: &'a PagedRows,
        rows: &'a RaggedRows,
        scale: f32,
        precision: Precision,
    ) -> Result<Self> {
        let (n_heads, rounding) = (w.cols(), Rounding::of(keys.ty(), precision));
        Ok(Scorer { cpu, q: q.cpu()?, w: w.cpu()?, keys: keys.on_cpu()?, rows, scale, n_heads, rounding })
    }

    /// Scores of rows `first..` into `out`, one row each.
    fn run(&self, first: usize, out: Rect<'_>) {
        let (cpu, d) = (self.cpu, self.keys.width());
        let query = if self.rounding == Rounding::None { 0 } else { self.n_heads * (d + 1) };
        cpu.install(|| {
            out.for_tiles(1, TILE_KEYS, &|t, s, mut out| {
                let mut buf = cpu.scratch_f32(d + query);
                cpu.dispatch(Tile { input: self, t: first + t, first: s, buf: &mut buf, out: out.row(0) });
            })
        });
    }

    /// The query and the weights of row `t`, rounded into `buf` if they are at all.
    fn query<'b>(&'b self, t: usize, buf: &'b mut [f32]) -> (&'b [f32], &'b [f32]) {
        let (d, heads) = (self.keys.width(), self.n_heads);
        let (q, w) = (&self.q[t * heads * d..][..heads * d], &self.w[t * heads..][..heads]);
        if self.rounding == Rounding::None {
            return (q, w);
        }
        let (rounded, weights) = buf.split_at_mut(heads * d);
        rounded.copy_from_slice(q);
        for ((head, w), to) in rounded.chunks_exact_mut(d).zip(w).zip(weights.iter_mut()) {
            *to = w * self.rounding.round(head);
        }
        (rounded, weights)
    }
}

/// Scores of row `t` for keys `first..`.
struct Tile<'a> {
    input: &'a Scorer<'a>,
    t: usize,
    first: usize,
    buf: &'a mut [f32],
    out: &'a mut [f32],
}

impl WithSimd for Tile<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Tile { input, t, first, buf, out } = self;
        let Scorer { keys, rows, scale, .. } = input;
        let d = keys.width();
        let (buf, rounded) = buf.split_at_mut(d);
        let (q, w) = input.query(t, rounded);
        let seen = rows.visible(t).saturating_sub(first).min(out.len());
        for (i, out) in out[..seen].iter_mut().enumerate() {
            let slot = rows.slot_of(t, first + i);
            // Products of quants are sums of integers, exact in f32.
            let (key, of_key) = match keys.int8_row(slot, buf) {
                Some(of_key) => (&*buf, of_key),
                None => (keys.row_in(slot, buf), 1.0),
            };
            let mut score = 0.0f32;
            for (q, w) in q.chunks_exact(d).zip(w) {
                // Not f32::max: that would turn a NaN into 0 and hide it.
                let dot = simd::dot(simd, q, key);
                score = (if dot < 0.0 { 0.0 } else { dot }).mul_add(*w, score);
            }
            *out = score * of_key * scale;
        }
        out[seen..].fill(f32::NEG_INFINITY);
    }
}
