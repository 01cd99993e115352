//! Lightning indexer: scores of keys in tiles, and the selection row by row.

use pulp::{Simd, WithSimd};

use super::dsa_topk::select;
use super::rect::Rect;
use super::{Cpu, simd};
use crate::error::Result;
use crate::ops::dsa_topk::Selection;
use crate::tensor::{PagedRows, RaggedRows, Tensor};

/// Keys per task.
const TILE_KEYS: usize = 256;

/// Scores that [`indexer_select`] holds at a time (16 MiB), unless a single row has more.
const BLOCK_SCORES: usize = 4 << 20;

pub(crate) fn indexer_scores(
    cpu: &Cpu,
    q: &Tensor,
    w: &Tensor,
    keys: &PagedRows,
    rows: &RaggedRows,
    scale: f32,
    scores: &mut Tensor,
) -> Result<()> {
    let n = scores.cols();
    let input = Scorer::new(cpu, q, w, keys, rows, scale)?;
    input.run(0, Rect::new(scores.cpu_mut()?, n));
    Ok(())
}

pub(crate) fn indexer_select(
    cpu: &Cpu,
    q: &Tensor,
    w: &Tensor,
    keys: &PagedRows,
    rows: &RaggedRows,
    scale: f32,
    out: &mut Selection,
) -> Result<()> {
    let k = out.k();
    let input = Scorer::new(cpu, q, w, keys, rows, scale)?;
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

struct Scorer<'a> {
    cpu: &'a Cpu,
    q: &'a [f32],
    w: &'a [f32],
    keys: &'a PagedRows,
    rows: &'a RaggedRows,
    scale: f32,
    n_heads: usize,
}

impl<'a> Scorer<'a> {
    fn new(
        cpu: &'a Cpu,
        q: &'a Tensor,
        w: &'a Tensor,
        keys: &'a PagedRows,
        rows: &'a RaggedRows,
        scale: f32,
    ) -> Result<Self> {
        Ok(Scorer { cpu, q: q.cpu()?, w: w.cpu()?, keys: keys.on_cpu()?, rows, scale, n_heads: w.cols() })
    }

    /// Scores of rows `first..` into `out`, one row each.
    fn run(&self, first: usize, out: Rect<'_>) {
        let cpu = self.cpu;
        cpu.install(|| {
            out.for_tiles(1, TILE_KEYS, &|t, s, mut out| {
                let mut buf = cpu.scratch_f32(self.keys.width());
                cpu.dispatch(Tile { input: self, t: first + t, first: s, buf: &mut buf, out: out.row(0) });
            })
        });
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
        let Tile { input: Scorer { q, w, keys, rows, scale, n_heads, .. }, t, first, buf, out } = self;
        let d = keys.width();
        let (q, w) = (&q[t * n_heads * d..][..n_heads * d], &w[t * n_heads..][..*n_heads]);
        let seen = rows.visible(t).saturating_sub(first).min(out.len());
        for (i, out) in out[..seen].iter_mut().enumerate() {
            let key = keys.row_in(rows.slot_of(t, first + i), buf);
            let mut score = 0.0f32;
            for (q, w) in q.chunks_exact(d).zip(w) {
                // Not f32::max: that would turn a NaN into 0 and hide it.
                let dot = simd::dot(simd, q, key);
                score = (if dot < 0.0 { 0.0 } else { dot }).mul_add(*w, score);
            }
            *out = score * scale;
        }
        out[seen..].fill(f32::NEG_INFINITY);
    }
}
