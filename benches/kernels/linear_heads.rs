//! linear_heads: `k_b` and `v_b` of few tokens in one launch, with the rounding of what goes in, and of `v_b` of what comes out. Goal: the rate of
//! memory and 2 us.

use criterion::Criterion;
use glm5::ops::linear::{
    HeadScratch, LinearInput, Rounded, head_linear_from, head_linear_into, head_linear_tiled, quantize,
    quantize_heads,
};
use glm5::quant::{GgmlType, Weight};
use glm5::tensor::{ActivationFormat, Heads, Matrix, Precision, QuantizedTiles, Tensor};

use super::blocks::{Rng, random_blocks};
use super::close::equal;
use super::data::{DISTINCT, tiled};
use super::report::{Memory, Work};
use super::{Bench, Row};

/// What is asked for.
#[derive(Clone, Copy, PartialEq)]
enum How {
    /// Values.
    Values,
    /// Values, and rounded for the next layer.
    Rounded,
    /// Values, by a launch for each: rounding, product.
    Apart,
    /// All, by three launches.
    AllApart,
}

/// Matrices of a layer: name, type, heads, outputs, inputs, and what is asked for.
type Case = (&'static str, GgmlType, [usize; 3], &'static [How]);

const CASES: [Case; 6] = [
    ("k_b", GgmlType::Q8_0, [64, 512, 192], &[How::Values, How::Apart]),
    ("k_b", GgmlType::Q5_0, [64, 512, 192], &[How::Values, How::Apart]),
    ("v_b", GgmlType::Q8_0, [64, 256, 512], &[How::Values, How::Rounded, How::AllApart]),
    ("v_b", GgmlType::Q4_K, [64, 256, 512], &[How::Rounded, How::AllApart]),
    ("k_b / 8", GgmlType::Q8_0, [8, 512, 192], &[How::Values, How::Apart]),
    ("v_b / 8", GgmlType::Q8_0, [8, 256, 512], &[How::Rounded, How::AllApart]),
];

pub fn benches(bench: &Bench, c: &mut Criterion) {
    for (what, ty, shape, hows) in CASES {
        let [heads, n, k] = if bench.measured { shape } else { [2, shape[1].min(256), shape[2]] };
        for m in if bench.measured { &[1usize, 2, 4, 8, 16][..] } else { &[3, 12] } {
            for how in hows {
                of(bench, c, (what, ty, [heads, n, k]), *m, *how);
            }
        }
    }
}

/// What one launch reads and writes.
struct Set {
    w: Matrix,
    x: Tensor,
    rounded: QuantizedTiles,
    scratch: HeadScratch,
    y: LinearInput,
    out: QuantizedTiles,
}

fn of(bench: &Bench, c: &mut Criterion, (what, ty, shape): (&str, GgmlType, [usize; 3]), m: usize, how: How) {
    let d = &bench.device;
    let [heads, n, k] = shape;
    let asked = match how {
        How::Values => "",
        How::Rounded => ", rounded",
        How::Apart => ", by 2 launches",
        How::AllApart => ", rounded, by 3 launches",
    };
    let name = format!("{what}: {ty}, {m} tokens{asked}");
    if !bench.wants("linear_heads", &name) {
        return;
    }
    let parts = |len: usize| Heads { n: heads, stride: len, offset: 0, len };
    let blocks = random_blocks(ty, heads * n * k / ty.block_elems(), false, 1);
    let per_set = blocks.len();
    let w = Weight::new(ty, shape, blocks.into()).unwrap();
    let x = Rng(2).normals(m.min(DISTINCT) * heads * k);
    let sets = bench.few_sets(per_set);
    let mut all: Vec<_> = (0..sets)
        .map(|_| Set {
            w: Matrix::for_fast_linear(d, w.clone()).unwrap(),
            x: tiled(d, &x, m, heads * k),
            rounded: QuantizedTiles::for_heads(d, m, heads, k).unwrap(),
            scratch: HeadScratch::new(d, parts(k)).unwrap(),
            y: {
                let mut y = LinearInput::new(d, heads * n).unwrap();
                y.resize(m).unwrap();
                // No memory is taken while a graph is recorded.
                y.forms_mut(Rounded { tiles: true, rows: false }).unwrap();
                y
            },
            out: QuantizedTiles::with_format(d, m, heads * n, ActivationFormat::Int8).unwrap(),
        })
        .collect();
    let run = |set: &mut Set, how: How| {
        let Set { w, x, rounded, scratch, y, out } = set;
        let (x_heads, y_heads) = (parts(k), parts(n));
        match how {
            How::Values => head_linear_from(w, x, x_heads, scratch, y.values_mut(), y_heads, Precision::Fast),
            How::Rounded => head_linear_into(w, x, x_heads, scratch, y, y_heads, true, Precision::Fast),
            How::Apart | How::AllApart => {
                quantize_heads(x, x_heads, rounded)?;
                head_linear_tiled(w, rounded, y.values_mut(), y_heads)?;
                if how == How::AllApart { quantize(y.values(), out) } else { Ok(()) }
            }
        }
    };

    // What the suites hold to the reference, by three launches.
    let set = &mut all[0];
    run(set, How::AllApart).unwrap();
    let want = set.y.values().to_vec().unwrap();
    run(set, how).unwrap();
    equal(&name, &set.y.values().to_vec().unwrap(), &want).unwrap();
    if how == How::Rounded {
        let bytes = |tiles: &QuantizedTiles| tiles.tiles().to_vec(0..tiles.tiles().len()).unwrap();
        let want = bytes(&set.out);
        let forms = set.y.forms_mut(Rounded { tiles: true, rows: false }).unwrap();
        assert!(bytes(forms.tiles.unwrap())[..want.len()] == want, "{name}: other tiles");
    }
    let mut launch = |i: usize| run(&mut all[i], how);
    let work = Work { bytes: per_set, operations: None, memory: Some(Memory::Read) };
    bench.row(c, "linear_heads", Row { name, work, case: None, sets, launch: &mut launch });
}
