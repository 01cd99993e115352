//! Absorbed latent attention: tasks are (token, some heads); a task reads its keys twice, for scores and for the sum.

use std::sync::atomic::{AtomicU32, Ordering};

use pulp::{Simd, WithSimd};

use super::rect::Rect;
use super::{Cpu, simd};
use crate::error::{Error, Result};
use crate::ops::dsa_topk::Selection;
use crate::ops::mla_attention::MlaConfig;
use crate::tensor::{PagedRows, RaggedRows, Tensor};

#[allow(clippy::too_many_arguments)] // those of the operation
pub(crate) fn mla_attention(
    cpu: &Cpu,
    q: &Tensor,
    cache: &PagedRows,
    rows: &RaggedRows,
    selected: Option<&Selection>,
    config: &MlaConfig,
    out: &mut Tensor,
    lse: Option<&mut Tensor>,
) -> Result<()> {
    let (rank, width) = (config.kv_lora_rank, cache.width());
    if let Some(s) = selected {
        // `below` relies on it, and a position that came twice would count twice.
        for t in 0..rows.len() {
            if !s.row(t)?.is_sorted_by(|a, b| a < b) {
                return Err(Error::argument("selection", "positions in ascending order", format!("row {t}")));
            }
        }
    }
    let (q, cache) = (q.cpu()?, cache.on_cpu()?);
    let cols = out.cols();
    let lse = lse.map(Tensor::cpu_mut).transpose()?;
    // Bits of f32: tasks write to places apart, which slices cannot tell them.
    let logs: Option<Vec<AtomicU32>> =
        lse.as_ref().map(|lse| lse.iter().map(|_| AtomicU32::new(0)).collect());
    // Heads of one token share its keys, so a task takes as many as balance leaves: all, once there are tokens enough.
    let heads_per_task =
        if rows.len() >= 4 * cpu.threads() { config.n_heads } else { config.n_heads.div_ceil(cpu.threads()) };
    let out = Rect::new(out.cpu_mut()?, cols);
    cpu.install(|| {
        out.for_tiles(1, heads_per_task * rank, &|t, col, mut out| {
            let visible = rows.visible(t);
            let keys = match selected.map(|s| s.row(t)) {
                Some(Ok(positions)) => Keys::Some(below(positions, visible)),
                _ => Keys::All(visible), // every row of a selection was read above
            };
            let first_head = col / rank;
            let q = &q[(t * config.n_heads + first_head) * width..][..out.cols() / rank * width];
            let mut scores = cpu.scratch_f32(keys.len() * (out.cols() / rank));
            let mut buf = cpu.scratch_f32(width);
            let (scores, buf, out) = (&mut scores[..], &mut buf[..], out.row(0));
            let logs = logs.as_ref().map(|logs| &logs[t * config.n_heads + first_head..]);
            cpu.dispatch(Task {
                cache,
                rows,
                t,
                keys,
                q,
                sm_scale: config.sm_scale,
                rank,
                scores,
                buf,
                out,
                logs,
            });
        })
    });
    if let (Some(lse), Some(logs)) = (lse, logs) {
        lse.iter_mut().zip(logs).for_each(|(lse, bits)| *lse = f32::from_bits(bits.into_inner()));
    }
    Ok(())
}

/// The indices below `visible`: causality holds whatever the selection says.
fn below(indices: &[u32], visible: usize) -> &[u32] {
    &indices[..indices.partition_point(|i| (*i as usize) < visible)]
}

enum Keys<'a> {
    All(usize),
    Some(&'a [u32]),
}

impl Keys<'_> {
    fn len(&self) -> usize {
        match self {
            Keys::All(n) => *n,
            Keys::Some(s) => s.len(),
        }
    }

    #[inline(always)]
    fn position(&self, i: usize) -> usize {
        match self {
            Keys::All(_) => i,
            Keys::Some(s) => s[i] as usize,
        }
    }
}

struct Task<'a> {
    cache: &'a PagedRows,
    rows: &'a RaggedRows,
    t: usize,
    keys: Keys<'a>,
    q: &'a [f32],
    sm_scale: f32,
    rank: usize,
    /// `[heads, keys]`.
    scores: &'a mut [f32],
    /// One cache row.
    buf: &'a mut [f32],
    /// `[heads, rank]`.
    out: &'a mut [f32],
    /// Of the heads: logarithms of the sums of exponentials, as bits.
    logs: Option<&'a [AtomicU32]>,
}

impl WithSimd for Task<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Task { cache, rows, t, keys, q, sm_scale, rank, scores, buf, out, logs } = self;
        let log = |h: usize, value: f32| {
            if let Some(logs) = logs {
                logs[h].store(value.to_bits(), Ordering::Relaxed);
            }
        };
        out.fill(0.0);
        let (n, width) = (keys.len(), cache.width());
        if n == 0 {
            (0..q.len() / width).for_each(|h| log(h, f32::NEG_INFINITY));
            return;
        }
        for i in 0..n {
            let key = cache.row_in(rows.slot_of(t, keys.position(i)), buf);
            for (h, q) in q.chunks_exact(width).enumerate() {
                scores[h * n + i] = simd::dot(simd, q, key) * sm_scale;
            }
        }
        for (h, scores) in scores.chunks_exact_mut(n).enumerate() {
            log(h, softmax(scores));
        }
        for i in 0..n {
            let key = cache.row_in(rows.slot_of(t, keys.position(i)), buf);
            for (h, out) in out.chunks_exact_mut(rank).enumerate() {
                simd::axpy(scores[h * n + i], &key[..rank], out);
            }
        }
    }
}

/// In place; returns the logarithm of the sum of exponentials.
#[inline(always)]
fn softmax(scores: &mut [f32]) -> f32 {
    let max = scores.iter().fold(f32::NEG_INFINITY, |m, s| m.max(*s));
    for s in scores.iter_mut() {
        *s = simd::exp(*s - max);
    }
    // On its own: in one loop with the exponential it would keep that from vectorizing.
    let mut sum = 0.0f64;
    for s in scores.iter() {
        sum += *s as f64;
    }
    let inverse = (1.0 / sum) as f32;
    scores.iter_mut().for_each(|s| *s *= inverse);
    (f64::from(max) + sum.ln()) as f32
}
