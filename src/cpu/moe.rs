//! SwiGLU layers and mixtures of them. One token: two parallel regions, gate + up over all its experts, then down with the
//! weighted sum. More: the tokens of each expert are gathered, so that its weights are dequantized once.

use std::ops::Range;

use super::linear::{TILE_ROWS, round_int8_rows, tile_product};
use super::rect::Rect;
use super::{Cpu, simd};
use crate::error::Result;
use crate::ops::ffn::Ffn;
use crate::ops::moe::MoeOptions;
use crate::ops::moe_sort::{NONE, SortedPairs};
use crate::ops::router::Routing;
use crate::quant::Weight;
use crate::tensor::{Precision, Tensor};

pub(crate) fn swiglu(cpu: &Cpu, gate: &[f32], up: &[f32], n: usize, y: &mut [f32]) -> Result<()> {
    cpu.for_rows(
        y,
        n,
        16 * n,
        #[inline(always)]
        |t, y| {
            y.copy_from_slice(&gate[t * n..][..n]);
            silu_mul(y, &up[t * n..]);
        },
    );
    Ok(())
}

/// `g = silu(g) * u`.
#[inline(always)]
fn silu_mul(g: &mut [f32], u: &[f32]) {
    g.iter_mut().zip(u).for_each(|(g, u)| *g = simd::silu(*g) * u);
}

pub(crate) fn ffn(cpu: &Cpu, w: &Ffn, x: &Tensor, y: &mut Tensor, precision: Precision) -> Result<()> {
    let groups = [Group { w: Blocks::new(w)?, slab: 0, pairs: 0..x.rows() }];
    if x.rows() == 0 {
        return Ok(());
    }
    if x.rows() == 1 {
        return one_token(cpu, &groups, &[1.0], x.cpu()?, y.cpu_mut()?, precision);
    }
    let mut h = cpu.scratch_f32(x.rows() * w.ff());
    let (x, hidden, fast) = (x.cpu()?, w.hidden(), precision == Precision::Fast);
    cpu.install(|| {
        gate_up(cpu, &groups, x, hidden, Rect::new(&mut h, w.ff()), fast);
        down(cpu, &groups, &mut h, w.ff(), Rect::new(y.cpu_mut()?, hidden), fast);
        Ok(())
    })
}

#[allow(clippy::too_many_arguments)] // those of the operation
pub(crate) fn moe(
    cpu: &Cpu,
    options: &MoeOptions,
    experts: &Ffn,
    shared: Option<&Ffn>,
    x: &Tensor,
    routing: &Routing,
    y: &mut Tensor,
    precision: Precision,
) -> Result<()> {
    let (m, k) = (x.rows(), routing.ids.cols());
    let (ids, weights) = (routing.ids.cpu()?, routing.weights.cpu()?);
    let blocks = Blocks::new(experts)?;
    let shared = shared.map(Blocks::new).transpose()?;
    // Those that are not in the stack take no part: not even their weights, which may be NaN.
    let slab = |id: u32| options.slab(id, experts.slabs());
    if m == 1 {
        let mut groups = [const { 0 }; MAX_GROUPS].map(|_| Group { w: blocks, slab: 0, pairs: 0..1 });
        let mut factors = [1.0; MAX_GROUPS];
        if k < MAX_GROUPS {
            let mut n = 0;
            for (slab, w) in ids.iter().zip(weights).filter_map(|(id, w)| Some((slab(*id)?, w))) {
                groups[n] = Group { w: blocks, slab, pairs: 0..1 };
                factors[n] = *w;
                n += 1;
            }
            groups[n].w = shared.unwrap_or(blocks);
            n += shared.is_some() as usize;
            return one_token(cpu, &groups[..n], &factors[..n], x.cpu()?, y.cpu_mut()?, precision);
        }
    }
    let fast = precision == Precision::Fast;
    let (hidden, ff) = (experts.hidden(), experts.ff());
    let order = Order::new(ids, slab, experts.slabs());
    let groups: Vec<Group<'_>> = order.groups(blocks);
    let x = x.cpu()?;
    let n = order.pairs.len();
    let mut gathered = cpu.scratch_f32(n * hidden);
    let mut h = cpu.scratch_f32(n * ff);
    let mut out = cpu.scratch_f32(n * hidden);
    cpu.install(|| {
        cpu.for_rows(&mut gathered, hidden, hidden, |p, row| {
            row.copy_from_slice(&x[order.pairs[p] as usize / k * hidden..][..hidden]);
        });
        gate_up(cpu, &groups, &gathered, hidden, Rect::new(&mut h, ff), fast);
        down(cpu, &groups, &mut h, ff, Rect::new(&mut out, hidden), fast);
    });
    let y = y.cpu_mut()?;
    match shared {
        Some(w) => {
            let group = [Group { w, slab: 0, pairs: 0..m }];
            let mut h = cpu.scratch_f32(m * w.ff);
            cpu.install(|| {
                gate_up(cpu, &group, x, hidden, Rect::new(&mut h, w.ff), fast);
                down(cpu, &group, &mut h, w.ff, Rect::new(y, hidden), fast);
            });
        }
        None => y.fill(0.0),
    }
    // Routed experts in the order of the routing, then the shared one: the same order as for one token.
    cpu.for_rows(
        y,
        hidden,
        k * hidden,
        #[inline(always)]
        |t, y| {
            let mut shared = cpu.scratch_f32(hidden);
            shared.copy_from_slice(y);
            y.fill(0.0);
            for j in (t * k..(t + 1) * k).filter(|j| order.place[*j] != NOWHERE) {
                simd::axpy(weights[j], &out[order.place[j] as usize * hidden..][..hidden], y);
            }
            simd::axpy(1.0, &shared, y);
        },
    );
    Ok(())
}

/// `y[t] = sum_j weights[t][j] rows[place] + shared[t]`.
pub(crate) fn gather_sum(
    cpu: &Cpu,
    rows: &Tensor,
    sorted: &SortedPairs,
    weights: &Tensor,
    shared: Option<&Tensor>,
    y: &mut Tensor,
) -> Result<()> {
    let (k, hidden) = (sorted.top_k(), rows.cols());
    let (rows, places, weights) = (rows.cpu()?, sorted.places.cpu()?, weights.cpu()?);
    let shared = shared.map(|s| s.cpu()).transpose()?;
    cpu.for_rows(
        y.cpu_mut()?,
        hidden,
        k * hidden,
        #[inline(always)]
        |t, y| {
            y.fill(0.0);
            for j in (t * k..(t + 1) * k).filter(|j| places[*j] != NONE) {
                simd::axpy(weights[j], &rows[places[j] as usize * hidden..][..hidden], y);
            }
            if let Some(shared) = shared {
                simd::axpy(1.0, &shared[t * hidden..][..hidden], y);
            }
        },
    );
    Ok(())
}

/// Most experts (shared one included) that one token takes without a list on the heap.
const MAX_GROUPS: usize = 33;

/// The weights of a stack of SwiGLU layers, in host memory.
#[derive(Clone, Copy)]
struct Blocks<'a> {
    gate: &'a Weight,
    up: &'a Weight,
    down: &'a Weight,
    ff: usize,
}

impl<'a> Blocks<'a> {
    fn new(w: &'a Ffn) -> Result<Self> {
        Ok(Blocks { gate: w.gate().cpu()?, up: w.up().cpu()?, down: w.down().cpu()?, ff: w.ff() })
    }
}

/// Rows `pairs` of the gathered activations go through layer `slab` of `w`.
#[derive(Clone)]
struct Group<'a> {
    w: Blocks<'a>,
    slab: usize,
    pairs: Range<usize>,
}

/// Place of a pair whose expert is not in the stack.
const NOWHERE: u32 = u32::MAX;

/// (token, slot) pairs sorted by expert, stable, without those whose expert is not in the stack.
struct Order {
    /// Pair index `token * k + slot` at each place.
    pairs: Vec<u32>,
    /// Place of each pair, or [`NOWHERE`].
    place: Vec<u32>,
    /// First place of each expert, and the end.
    starts: Vec<u32>,
}

impl Order {
    /// `slab` says where in the stack an expert lies.
    fn new(ids: &[u32], slab: impl Fn(u32) -> Option<usize>, slabs: usize) -> Self {
        let mut starts = vec![0u32; slabs + 1];
        ids.iter().filter_map(|id| slab(*id)).for_each(|e| starts[e + 1] += 1);
        for e in 0..slabs {
            starts[e + 1] += starts[e];
        }
        let mut next = starts.clone();
        let (mut pairs, mut place) = (vec![0; starts[slabs] as usize], vec![NOWHERE; ids.len()]);
        for (pair, id) in ids.iter().enumerate() {
            if let Some(e) = slab(*id) {
                let at = &mut next[e];
                (pairs[*at as usize], place[pair]) = (pair as u32, *at);
                *at += 1;
            }
        }
        Order { pairs, place, starts }
    }

    /// Experts that have tokens.
    fn groups<'a>(&self, w: Blocks<'a>) -> Vec<Group<'a>> {
        let ranges = self.starts.windows(2).map(|s| s[0] as usize..s[1] as usize).enumerate();
        ranges.filter(|(_, pairs)| !pairs.is_empty()).map(|(slab, pairs)| Group { w, slab, pairs }).collect()
    }
}

/// `h = silu(gate x) * up x` for all groups, in parallel over groups and tiles of columns. `x` and `h` have one row per
/// pair; with `fast`, each group's `x` and `h` are rounded as its matrices ask.
fn gate_up(cpu: &Cpu, groups: &[Group<'_>], x: &[f32], hidden: usize, h: Rect<'_>, fast: bool) {
    for_groups(groups, h, &|group, h| {
        let rows = group.pairs.len();
        let x = &x[group.pairs.start * hidden..group.pairs.end * hidden];
        let round = |w: &Weight| {
            (fast && w.ty().is_quantized()).then(|| {
                let mut copy = cpu.scratch_f32(x.len());
                copy.copy_from_slice(x);
                round_int8_rows(&mut copy, hidden);
                copy
            })
        };
        let (for_gate, for_up) = (round(group.w.gate), round(group.w.up));
        let (x_gate, x_up) = (for_gate.as_deref().unwrap_or(x), for_up.as_deref().unwrap_or(x));
        h.for_tiles(usize::MAX, TILE_ROWS, &|_, j, mut h| {
            let mut up = cpu.scratch_f32(rows * h.cols());
            tile_product(cpu, group.w.up, group.slab, j, x_up, hidden, Rect::new(&mut up, h.cols()));
            tile_product(cpu, group.w.gate, group.slab, j, x_gate, hidden, h.reborrow());
            cpu.simd(
                #[inline(always)]
                || {
                    let n = h.cols();
                    for r in 0..rows {
                        silu_mul(h.row(r), &up[r * n..][..n]);
                    }
                },
            );
        });
    });
}

/// `out = down h` for all groups; `h` is rounded in place with `fast`.
fn down(cpu: &Cpu, groups: &[Group<'_>], h: &mut [f32], ff: usize, out: Rect<'_>, fast: bool) {
    if fast {
        let rounded = groups.iter().filter(|g| g.w.down.ty().is_quantized());
        rounded.for_each(|g| round_int8_rows(&mut h[g.pairs.start * ff..g.pairs.end * ff], ff));
    }
    let h = &*h;
    for_groups(groups, out, &|group, out| {
        let h = &h[group.pairs.start * ff..];
        out.for_tiles(usize::MAX, TILE_ROWS, &|_, j, out| {
            tile_product(cpu, group.w.down, group.slab, j, h, ff, out);
        });
    });
}

/// Calls `f` for each group with its rows of `all`, in parallel. Groups are in order and cover the rows.
fn for_groups(groups: &[Group<'_>], all: Rect<'_>, f: &(impl Fn(&Group<'_>, Rect<'_>) + Sync)) {
    match groups {
        [] => {}
        [group] => f(group, all),
        groups => {
            let at = groups.len() / 2;
            let (a, b) = all.split_rows(groups[at].pairs.start - groups[0].pairs.start);
            rayon::join(|| for_groups(&groups[..at], a, f), || for_groups(&groups[at..], b, f));
        }
    }
}

/// Rows that [`one_token`] takes at a time: `up` and `down` products of a tile stay on the stack.
const STACK_ROWS: usize = 64;

/// `y = sum_g factors[g] ffn_g(x)` for one row `x`, in the order of the groups.
fn one_token(
    cpu: &Cpu,
    groups: &[Group<'_>],
    factors: &[f32],
    x: &[f32],
    y: &mut [f32],
    precision: Precision,
) -> Result<()> {
    let (hidden, total) = (x.len(), groups.iter().map(|g| g.w.ff).sum());
    let mut h = cpu.scratch_f32(total);
    let rounded = (precision == Precision::Fast).then(|| {
        let mut copy = cpu.scratch_f32(hidden);
        copy.copy_from_slice(x);
        round_int8_rows(&mut copy, hidden);
        copy
    });
    let input = |w: &Weight| if w.ty().is_quantized() { rounded.as_deref().unwrap_or(x) } else { x };
    cpu.install(|| {
        // The hidden activations of all groups side by side, cut without regard to where one ends.
        Rect::new(&mut h, total).for_tiles(1, cpu.grain(total, 2 * hidden), &|_, first, mut part| {
            let mut up = [0.0; STACK_ROWS];
            for_spans(groups, first..first + part.cols(), |group, at, rows| {
                let n = rows.len();
                let gate = &mut part.row(0)[at..at + n];
                let (g, u) = (group.w.gate, group.w.up);
                tile_product(cpu, u, group.slab, rows.start, input(u), hidden, Rect::new(&mut up[..n], n));
                tile_product(cpu, g, group.slab, rows.start, input(g), hidden, Rect::new(gate, n));
                cpu.simd(
                    #[inline(always)]
                    || silu_mul(gate, &up[..n]),
                );
            });
        });
        if precision == Precision::Fast {
            let mut rest = &mut h[..];
            for g in groups {
                let (own, others) = rest.split_at_mut(g.w.ff);
                if g.w.down.ty().is_quantized() {
                    round_int8_rows(own, g.w.ff);
                }
                rest = others;
            }
        }
        let h = &h[..];
        Rect::new(y, hidden).for_tiles(1, cpu.grain(hidden, total), &|_, first, mut part| {
            let y = part.row(0);
            y.fill(0.0);
            let mut product = [0.0; STACK_ROWS];
            for (j, y) in y.chunks_mut(STACK_ROWS).enumerate() {
                let (row, product) = (first + j * STACK_ROWS, &mut product[..y.len()]);
                let mut at = 0;
                for (g, factor) in groups.iter().zip(factors) {
                    let n = product.len();
                    tile_product(cpu, g.w.down, g.slab, row, &h[at..], g.w.ff, Rect::new(product, n));
                    cpu.simd(
                        #[inline(always)]
                        || simd::axpy(*factor, product, y),
                    );
                    at += g.w.ff;
                }
            }
        });
        Ok(())
    })
}

/// Calls `f(group, offset in the range, rows of the group)` for the parts of `range`, counted over the groups' hidden
/// activations side by side, at most [`STACK_ROWS`] at a time.
fn for_spans(groups: &[Group<'_>], range: Range<usize>, mut f: impl FnMut(&Group<'_>, usize, Range<usize>)) {
    let mut start = 0;
    for group in groups {
        let own = range.start.max(start)..range.end.min(start + group.w.ff);
        let mut at = own.start;
        while at < own.end {
            let n = (own.end - at).min(STACK_ROWS);
            f(group, at - range.start, at - start..at - start + n);
            at += n;
        }
        start += group.w.ff;
    }
}
