//! Linear layers. Few tokens: dot products on the blocks as they lie. More: tiles of rows are dequantized once into scratch
//! and multiplied as f32 matrices.

use super::rect::Rect;
use super::row_dot::{MAX_DOTS, Rows, rows_dot};
use super::tile::gemm_rows;
use super::{Cpu, ScratchF32};
use crate::error::Result;
use crate::quant::Weight;
use crate::tensor::{Heads, Matrix, Precision, Tensor};

/// Weight rows multiplied at a time: as many as the GEMM has in registers with AVX-512. More are not faster, and leave
/// fewer tasks.
pub(super) const TILE_ROWS: usize = 64;

/// Up to this many tokens, dot products on the blocks win over dequantizing for a GEMM: at four by a third for short rows
/// and by two for long ones; at eight, in two rounds, no longer.
const DOT_ROWS: usize = MAX_DOTS;

pub(crate) fn linear_many(
    cpu: &Cpu,
    ws: &[&Matrix],
    x: &Tensor,
    ys: &mut [&mut Tensor],
    precision: Precision,
) -> Result<()> {
    let (m, k) = (x.rows(), x.cols());
    let input = Input::new(cpu, x.cpu()?, m, k, precision);
    cpu.install(|| {
        each(ws, ys, &|w, y| {
            let w = w.cpu()?;
            product(cpu, w, 0, &input, 0..k, Rect::new(y.cpu_mut()?, w.rows()));
            Ok(())
        })
    })
}

/// Calls `f` for every pair, all of them in one parallel region.
fn each(
    ws: &[&Matrix],
    ys: &mut [&mut Tensor],
    f: &(impl Fn(&Matrix, &mut Tensor) -> Result<()> + Sync),
) -> Result<()> {
    match (ws, ys) {
        ([], _) | (_, []) => Ok(()),
        ([w], [y, ..]) => f(w, y),
        (ws, ys) => {
            let at = ws.len() / 2;
            let (y0, y1) = ys.split_at_mut(at);
            let (a, b) = rayon::join(|| each(&ws[..at], y0, f), || each(&ws[at..], y1, f));
            a.and(b)
        }
    }
}

pub(crate) fn head_linear(
    cpu: &Cpu,
    w: &Weight,
    x: &Tensor,
    x_heads: Heads,
    y: &mut Tensor,
    y_heads: Heads,
    precision: Precision,
) -> Result<()> {
    let (m, cols) = (x.rows(), y.cols());
    let input = match precision {
        Precision::Exact => Input::new(cpu, x.cpu()?, m, x.cols(), Precision::Exact),
        Precision::Fast => Input::bf16(cpu, x.cpu()?, m, x.cols()),
    };
    let y = Rect::new(y.cpu_mut()?, cols);
    cpu.install(|| heads(cpu, w, &input, x_heads, y, y_heads, 0..w.slabs()));
    Ok(())
}

/// Products of the heads `range`, whose parts lie in `y` (the columns from the first of these heads on).
fn heads(
    cpu: &Cpu,
    w: &Weight,
    x: &Input<'_>,
    xh: Heads,
    y: Rect<'_>,
    yh: Heads,
    range: std::ops::Range<usize>,
) {
    if range.len() == 1 {
        let y = y.narrow(yh.offset..yh.offset + yh.len);
        return product(cpu, w, range.start, x, xh.cols(range.start), y);
    }
    let at = range.len() / 2;
    let (y0, y1) = y.split_cols(at * yh.stride);
    let mid = range.start + at;
    rayon::join(
        || heads(cpu, w, x, xh, y0, yh, range.start..mid),
        || heads(cpu, w, x, xh, y1, yh, mid..range.end),
    );
}

/// Activations `[m, k]` ready for products, rounded if the precision asks for it.
struct Input<'a> {
    exact: &'a [f32],
    rounded: Option<ScratchF32<'a>>,
    m: usize,
    k: usize,
}

impl<'a> Input<'a> {
    fn new(cpu: &'a Cpu, x: &'a [f32], m: usize, k: usize, precision: Precision) -> Self {
        let rounded =
            (precision == Precision::Fast).then(|| copy_rounded(cpu, x, k, |r| round_int8_rows(r, k)));
        Input { exact: x, rounded, m, k }
    }

    fn bf16(cpu: &'a Cpu, x: &'a [f32], m: usize, k: usize) -> Self {
        let round = |r: &mut [f32]| r.iter_mut().for_each(|x| *x = half::bf16::from_f32(*x).to_f32());
        Input { exact: x, rounded: Some(copy_rounded(cpu, x, k, round)), m, k }
    }

    /// The activations for quantized weights, or those for weights that are not.
    fn values(&self, quantized: bool) -> &[f32] {
        match &self.rounded {
            Some(r) if quantized => r,
            _ => self.exact,
        }
    }
}

fn copy_rounded<'a>(cpu: &'a Cpu, x: &[f32], k: usize, round: impl Fn(&mut [f32]) + Sync) -> ScratchF32<'a> {
    let mut copy = cpu.scratch_f32(x.len());
    cpu.for_rows(&mut copy, k, 4 * k, |t, row| {
        row.copy_from_slice(&x[t * k..][..k]);
        round(row);
    });
    copy
}

/// Rounds rows of `k` activations to int8 blocks of 32 and back, in place, as [`Precision::Fast`] does; the numbers are those
/// of [`crate::quant::Activations`], a last block shorter than the others included.
pub(super) fn round_int8_rows(x: &mut [f32], k: usize) {
    for block in x.chunks_mut(k).flat_map(|row| row.chunks_mut(32)) {
        // Absolute values order as their bits do, NaN above all (f32::max would drop it).
        let amax = f32::from_bits(block.iter().fold(0, |m, v| m.max(v.to_bits() & 0x7fff_ffff)));
        let scale = amax / 127.0;
        match scale {
            _ if !amax.is_finite() => block.fill(f32::NAN),
            s if s < f32::MIN_POSITIVE => block.fill(0.0),
            s => {
                let inverse = 1.0 / s; // As there; a division rounds some halves to the other side.
                block.iter_mut().for_each(|x| *x = (*x * inverse).round_ties_even() * s);
            }
        }
    }
}

/// `y[t][j] = W[slab][j] . x[t][cols]`, in parallel over tiles of `y` on the current pool.
fn product(cpu: &Cpu, w: &Weight, slab: usize, x: &Input<'_>, cols: std::ops::Range<usize>, y: Rect<'_>) {
    let quantized = w.ty().is_quantized();
    let k = w.cols();
    let values = x.values(quantized);
    // Few tokens take what balances the threads; more take whole tiles.
    let tile = if x.m <= DOT_ROWS { cpu.grain(w.rows(), x.m * k) } else { TILE_ROWS };
    y.for_tiles(usize::MAX, tile, &|_, j, y| tile_product(cpu, w, slab, j, &values[cols.start..], x.k, y));
}

/// `y[t][j] = W[slab][first + j] . x[t]` on one thread; the rows of `x` are `stride` apart.
pub(super) fn tile_product(
    cpu: &Cpu,
    w: &Weight,
    slab: usize,
    first: usize,
    x: &[f32],
    stride: usize,
    y: Rect<'_>,
) {
    if y.rows() <= DOT_ROWS {
        return rows_dot(cpu, w, slab, first, Rows { values: x, stride }, y);
    }
    gemm_rows(cpu, w, slab, first, x, stride, y);
}
