//! Outputs that are rotated on their way: the bits of a launch that rotates afterwards, by every kernel.

use glm5::ops::linear::{Rotated, linear_rotated};
use glm5::ops::rope::{rope, rope_into};

use super::*;

/// Cosines and sines of any angles.
fn any_angles(m: usize, len: usize, seed: u64) -> Vec<f32> {
    let turns = Rng(seed).normals(m * len / 2);
    turns.iter().flat_map(|phi| [phi.cos(), phi.sin()]).collect()
}

/// Heads of whole pairs, and columns that hold them.
fn even_heads(n: usize, len: usize, rng: &mut Rng) -> (Heads, usize) {
    let (offset, gap) = (2 * rng.below(9), 2 * rng.below(9));
    let heads = Heads { n, stride: offset + len + gap, offset, len };
    (heads, n * heads.stride + rng.below(20))
}

/// Parts of a matrix, and of the rows that they go to if they do not stay.
#[derive(Debug, Clone)]
struct Part {
    heads: Heads,
    rows: usize,
    to: Option<(Heads, usize)>,
}

impl Part {
    fn any(rng: &mut Rng) -> Self {
        let (n, len) = (1 + rng.below(4), 2 * (1 + rng.below(20)));
        let (heads, rows) = even_heads(n, len, rng);
        let (to_heads, to_cols) = spread_heads(n, len, rng);
        Part { heads, rows, to: (rng.below(2) == 0).then_some((to_heads, to_cols)) }
    }

    /// For the outputs, and where parts go if they do not stay: beside them are values that were there before.
    fn targets(&self, d: &Device, m: usize) -> (Tensor, Option<Tensor>) {
        (poisoned(d, m, self.rows), self.to.map(|(_, cols)| tensor(d, cols, &vec![0.5; m * cols])))
    }
}

/// Of all matrices.
type Outputs = Vec<Vec<f32>>;

/// What all matrices gave, and where parts went. Of `y` what went elsewhere is not looked at.
fn seen(parts: &[Part], outs: &[(Tensor, Option<Tensor>)]) -> Outputs {
    let each = parts.iter().zip(outs).flat_map(|(part, (y, to))| match to {
        None => vec![host(y)],
        Some(to) => vec![outside(&host(y), part.rows, part.heads), host(to)],
    });
    each.collect()
}

fn rotations<'a>(
    parts: &[Part],
    tables: &'a [Tensor],
    tos: impl Iterator<Item = Option<&'a mut Tensor>>,
) -> Vec<Rotated<'a>> {
    let each = parts.iter().zip(tables).zip(tos).enumerate();
    each.map(|(matrix, ((part, angles), to))| Rotated {
        matrix,
        heads: part.heads,
        angles,
        to: to.zip(part.to.map(|(heads, _)| heads)),
    })
    .collect()
}

/// All of `ws` with their parts rotated on the way, and afterwards.
fn both_ways(
    d: &Device,
    ws: &[&Matrix],
    parts: &[Part],
    m: usize,
    seed: u64,
    mut run: impl FnMut(&mut [&mut Tensor], Vec<Rotated<'_>>) -> glm5::Result<()>,
) -> glm5::Result<(Outputs, Outputs)> {
    let table = |part: &Part| tensor(d, part.heads.len, &any_angles(m, part.heads.len, seed));
    let tables: Vec<Tensor> = parts.iter().map(table).collect();
    let [mut fused, mut after] = [(); 2].map(|()| parts.iter().map(|p| p.targets(d, m)).collect::<Vec<_>>());
    assert_eq!(ws.len(), parts.len());
    {
        let (mut ys, tos): (Vec<_>, Vec<_>) = fused.iter_mut().map(|(y, to)| (y, to.as_mut())).unzip();
        run(&mut ys, rotations(parts, &tables, tos.into_iter()))?;
    }
    run(&mut after.iter_mut().map(|(y, _)| y).collect::<Vec<_>>(), Vec::new())?;
    for ((part, table), (y, to)) in parts.iter().zip(&tables).zip(&mut after) {
        match to.as_mut().zip(part.to) {
            None => rope(y, part.heads, table)?,
            Some((to, (heads, _))) => rope_into(y, part.heads, table, to, heads)?,
        }
    }
    Ok((seen(parts, &fused), seen(parts, &after)))
}

/// Whatever the shapes and heads, for any number of tokens.
pub fn rotated_on_the_way_or_afterwards_is_the_same(
    devices: &[Device],
    (c, format): (Case, Option<ActivationFormat>),
) -> TestCaseResult {
    let rng = &mut Rng(c.seed);
    let parts: Vec<Part> = (0..1 + rng.below(3)).map(|_| Part::any(rng)).collect();
    let weights: Vec<Weight> = parts.iter().map(|part| weight(c.ty, part.rows, c.k, rng.next())).collect();
    let x = activations(c.m, c.k, rng);
    let (fused, after) = on_each(devices, |d| {
        let ws: Vec<Matrix> = weights.iter().map(|w| tiled(d, w)).collect();
        let (ws, q) = (ws.iter().collect::<Vec<_>>(), &mut rounded_on(d, &x, c.k, format));
        both_ways(d, &ws, &parts, c.m, c.seed, |ys, rotated| {
            linear_tiled_with(TiledOptions { rotated, ..TiledOptions::default() }, &ws, q, ys)
        })
    })?;
    for (fused, after) in fused.iter().zip(&after) {
        equal("outputs", fused, after)?;
    }
    Ok(())
}

/// In one launch of every kernel, of all tokens of its tiles and some.
pub fn every_kernel_rotates(devices: &[Device]) {
    let mut reached = BTreeSet::new();
    let rng = &mut Rng(5);
    let parts = [
        Part { heads: Heads { n: 2, stride: 24, offset: 6, len: 16 }, rows: 50, to: None },
        Part {
            heads: Heads { n: 3, stride: 14, offset: 0, len: 10 },
            rows: 43,
            to: Some((Heads { n: 3, stride: 13, offset: 2, len: 10 }, 40)),
        },
    ];
    for (ty, k) in tiles::TYPES.into_iter().flat_map(|ty| [256, 4352].map(|k| (ty, k))) {
        let weights = parts.each_ref().map(|part| weight(ty, part.rows, k, rng.next()));
        let formats =
            [(1, FORMATS[0]), (7, FORMATS[0]), (16, FORMATS[0]), (21, FORMATS[0]), (19, FORMATS[1])];
        for (d, (m, format)) in devices.iter().flat_map(|d| formats.map(|of| (d, of))) {
            let x = Rng(m as u64).normals(m * k);
            let (ws, q) = (weights.each_ref().map(|w| tiled(d, w)), &mut rounded_on(d, &x, k, Some(format)));
            let ws = ws.each_ref();
            for kernel in tiled_kernels(&ws, q, false).unwrap() {
                if !reached.insert(kernel) {
                    continue;
                }
                let (fused, after) = both_ways(d, &ws, &parts, m, 3, |ys, rotated| {
                    linear_tiled_with(TiledOptions { rotated, ..by(Some(kernel)) }, &ws, q, ys)
                })
                .unwrap();
                for (fused, after) in fused.iter().zip(&after) {
                    equal(kernel.name(), fused, after).unwrap();
                }
            }
        }
    }
    let of = |name: &str| reached.iter().filter(|kernel| kernel.family() == name).count();
    let decode = linear_decode::INSTANCES.iter().filter(|i| i.glu == 0).count();
    assert_eq!(of("linear_decode"), decode, "kernels of few tokens that were run");
    assert!(of("linear_gemm") >= tiles::TYPES.len() * 2, "kernels of many tokens that were run");
}

/// The last 64 of 256 of a query, into its place behind 512 absorbed values, and the first 64 of 128 of an indexer's, in one launch, against
/// the formula: rotated by halves, in another order, by another width or at another place, something of this differs (mistakes 1 to 4).
pub fn queries_of_real_heads_are_rotated(devices: &[Device]) {
    let (n, index, k) = (2, 3, 256);
    let of = |n, stride, offset| Heads { n, stride, offset, len: 64 };
    let (pe, absorbed, own) = (of(n, 256, 192), of(n, 576, 512), of(index, 128, 0));
    let [q_b, index_q_b] = [n * 256, index * 128].map(|rows| weight(GgmlType::Q8_0, rows, k, rows as u64));
    for (d, m) in devices.iter().flat_map(|d| [1, 20].map(|m| (d, m))) {
        let x = Rng(m as u64).normals(m * k);
        let (ws, x) = ([&q_b, &index_q_b].map(|w| tiled(d, w)), tensor(d, k, &x));
        let phi = |t: usize, i: usize| (t as f64 * 1234.0 + 5.0) * 1e6f64.powf(-(i as f64) / 32.0);
        let table = (0..m).flat_map(|t| (0..32).flat_map(move |i| [phi(t, i).cos(), phi(t, i).sin()]));
        let angles = tensor(d, 64, &table.map(|v| v as f32).collect::<Vec<_>>());
        let [mut plain_q, mut plain_i, mut q, mut i] =
            [n * 256, index * 128, n * 256, index * 128].map(|cols| poisoned(d, m, cols));
        let mut q_abs = poisoned(d, m, n * 576);
        let ws = ws.each_ref();
        linear_many(&ws, &x, &mut [&mut plain_q, &mut plain_i], Precision::Fast).unwrap();
        let before = d.gpu().unwrap().launches().iter().map(|(_, n)| n).sum::<u64>();
        let rotated = &mut [
            Rotated { matrix: 1, heads: own, angles: &angles, to: None },
            Rotated { matrix: 0, heads: pe, angles: &angles, to: Some((&mut q_abs, absorbed)) },
        ];
        linear_rotated(&ws, &x, &mut [&mut q, &mut i], rotated, Precision::Fast).unwrap();
        let after = d.gpu().unwrap().launches().iter().map(|(_, n)| n).sum::<u64>();
        assert_eq!(after - before, 2, "launches, of which one rounds");
        let [plain_q, plain_i, q, i, q_abs] = [&plain_q, &plain_i, &q, &i, &q_abs].map(host);
        let rotate = |x: &[f32], cols: usize, heads: Heads| {
            let parts = gather(x, cols, heads);
            let pair = |at: usize| {
                let (t, i) = (at / (heads.n * 64), at % 64 / 2);
                let (a, b) = (f64::from(parts[at / 2 * 2]), f64::from(parts[at / 2 * 2 + 1]));
                let (sin, cos) = phi(t, i).sin_cos();
                if at.is_multiple_of(2) { a * cos - b * sin } else { a * sin + b * cos }
            };
            (0..parts.len()).map(pair).collect::<Vec<f64>>()
        };
        let size = plain_q.iter().chain(&plain_i).fold(0f32, |most, v| most.max(v.abs()));
        let slack = |_: usize| f64::from(size) * 4.0 * EPS;
        let want = rotate(&plain_q, n * 256, pe);
        close("q", &gather(&q_abs, n * 576, absorbed), &want, slack).unwrap();
        close("index", &gather(&i, index * 128, own), &rotate(&plain_i, index * 128, own), slack).unwrap();
        equal("not rotated", &outside(&q, n * 256, pe), &outside(&plain_q, n * 256, pe)).unwrap();
        let [got, want] = [&i, &plain_i].map(|x| outside(x, index * 128, own));
        equal("of the indexer, not rotated", &got, &want).unwrap();
        let others = outside(&q_abs, n * 576, absorbed);
        assert!(
            others.iter().all(|v| v.to_bits() == POISON.to_bits()),
            "absorbed values are not of this layer"
        );
    }
}

pub fn refuses_rotations_that_do_not_fit(devices: &[Device]) {
    let d = &devices[0];
    let k = 256;
    let w = tiled(d, &weight(GgmlType::Q4_K, 32, k, 1));
    let (x, [mut y, mut to, mut narrow]) =
        (&tensor(d, k, &[1.0; 512]), [32, 40, 7].map(|n| poisoned(d, 2, n)));
    let heads = Heads { n: 2, stride: 16, offset: 4, len: 8 };
    let [good, short, wide] = [(2, 8), (1, 8), (2, 10)].map(|(m, len)| poisoned(d, m, len));
    let parts = |matrix, heads, angles| Rotated { matrix, heads, angles, to: None };
    let (mut q, exact, fast) = (rounded_on(d, &[1.0; 512], k, None), Precision::Exact, Precision::Fast);
    let (w, y) = (&[&w], &mut [&mut y]);
    let odd = Heads { offset: 5, ..heads };
    let thick = poisoned(d, 2, 9);
    refused(vec![
        ("matrix", linear_rotated(w, x, y, &mut [parts(1, heads, &good)], fast)),
        ("twice", linear_rotated(w, x, y, &mut [parts(0, heads, &good), parts(0, heads, &good)], fast)),
        ("heads", linear_rotated(w, x, y, &mut [parts(0, Heads { n: 3, ..heads }, &good)], fast)),
        ("odd offset", linear_rotated(w, x, y, &mut [parts(0, odd, &good)], fast)),
        ("odd width", linear_rotated(w, x, y, &mut [parts(0, Heads { len: 9, ..heads }, &thick)], fast)),
        ("odd stride", linear_rotated(w, x, y, &mut [parts(0, Heads { stride: 13, ..heads }, &good)], fast)),
        ("rows of angles", linear_rotated(w, x, y, &mut [parts(0, heads, &short)], fast)),
        ("columns of angles", linear_rotated(w, x, y, &mut [parts(0, heads, &wide)], fast)),
        ("to", {
            let to = Some((&mut narrow, Heads { n: 2, stride: 8, offset: 0, len: 8 }));
            linear_rotated(w, x, y, &mut [Rotated { to, ..parts(0, heads, &good) }], fast)
        }),
        ("to heads", {
            let to = Some((&mut to, Heads { n: 1, ..heads }));
            linear_tiled_with(
                TiledOptions { rotated: vec![Rotated { to, ..parts(0, heads, &good) }], ..by(None) },
                w,
                &mut q,
                y,
            )
        }),
    ]);
    let elsewhere = Tensor::zeros(&Device::cpu(Some(1)).unwrap(), 2, 8).unwrap();
    let calls = [
        linear_rotated(w, x, y, &mut [parts(0, heads, &good)], exact),
        linear_rotated(w, x, y, &mut [parts(0, heads, &elsewhere)], fast),
        {
            let rotated = vec![parts(0, heads, &good)];
            swiglu_tiled_with(TiledOptions { rotated, ..by(None) }, w[0], w[0], &mut q, y[0])
        },
    ];
    for call in calls {
        assert!(matches!(call, Err(Error::Unsupported { .. })), "{call:?}");
    }
    assert!([&*y[0], &to, &narrow].into_iter().all(untouched), "a refused call wrote something");
}
