//! One matrix in tiles for each head, few tokens: rounding, product and rounding of the outputs in one launch. On GPUs only.

use glm5::Error;
use glm5::ops::linear::{
    HeadScratch, LinearInput, Rounded, head_linear, head_linear_from, head_linear_into, head_linear_tiled,
    linear_from, quantize, quantize_heads,
};
use glm5::quant::{GgmlType, Weight, tiles};
use glm5::tensor::{ActivationFormat, Device, Heads, Matrix, Precision, QuantizedTiles, Tensor};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::blocks::{Rng, random_blocks};
use super::close::{POISON, equal};
use super::inputs::*;

macro_rules! linear_heads_properties {
    ($devices:path, $cases:expr) => {
        $crate::suites::properties! { linear_heads, $devices, $cases;
        is_rounding_and_product_one_after_the_other(case), outputs_are_rounded_for_the_next_layer(case);
        real_heads, is_one_launch_and_no_memory, more_tokens_are_rounded_before, heads_apart_are_not_rounded,
        refuses_what_does_not_fit }
    };
}
pub(crate) use linear_heads_properties;

#[derive(Debug, Clone)]
pub struct Case {
    ty: GgmlType,
    m: usize,
    heads: usize,
    n: usize,
    k: usize,
    seed: u64,
}

pub fn case() -> impl Strategy<Value = Case> {
    let m = prop_oneof![3 => Just(1usize), 4 => 1usize..=16, 1 => 17usize..20];
    let n = prop_oneof![1usize..90, prop::sample::select(vec![32usize, 64, 128, 160, 256, 288])];
    let blocks = prop_oneof![4 => 1usize..=16, 1 => 17usize..20];
    (prop::sample::select(tiles::TYPES.to_vec()), m, 1usize..5, n, blocks, any::<u64>()).prop_map(
        |(ty, m, heads, n, blocks, seed)| {
            let k = if ty.block_elems() == 32 { 32 * blocks } else { 256 * blocks.div_ceil(8) };
            Case { ty, m, heads, n, k, seed }
        },
    )
}

/// Weights and activations; of these the parts begin at multiples of 4 columns.
struct Inputs {
    w: Weight,
    x: Vec<f32>,
    x_cols: usize,
    x_heads: Heads,
}

impl Case {
    fn inputs(&self) -> Inputs {
        let Case { ty, m, heads, n, k, seed } = *self;
        let rng = &mut Rng(seed);
        let blocks = random_blocks(ty, heads * n * k / ty.block_elems(), false, seed);
        let offset = 4 * rng.below(3);
        let x_heads = Heads { n: heads, stride: offset + k + 4 * rng.below(3), offset, len: k };
        let x_cols = heads * x_heads.stride;
        let mut x = activations(m, x_cols, rng);
        if m > 2 {
            (x[x_cols + offset], x[2 * x_cols + offset + k - 1]) = (f32::NAN, f32::INFINITY);
        }
        Inputs { w: Weight::new(ty, [heads, n, k], blocks.into()).unwrap(), x, x_cols, x_heads }
    }
}

fn gpus(devices: &[Device]) -> impl Iterator<Item = &Device> {
    devices.iter().filter(|d| d.gpu().is_ok())
}

fn tiled(d: &Device, w: &Weight) -> Matrix {
    Matrix::for_fast_linear(d, w.clone()).unwrap()
}

/// Bit for bit, and columns between the heads are as they were.
pub fn is_rounding_and_product_one_after_the_other(devices: &[Device], c: Case) -> TestCaseResult {
    let Inputs { w, x, x_cols, x_heads } = c.inputs();
    let (y_heads, y_cols) = spread_heads(c.heads, c.n, &mut Rng(c.seed ^ 1));
    for d in gpus(devices) {
        let (w, x) = (tiled(d, &w), tensor(d, x_cols, &x));
        let mut q = QuantizedTiles::for_heads(d, c.m, c.heads, c.k).unwrap();
        let mut scratch = HeadScratch::new(d, x_heads).unwrap();
        let [mut want, mut y, mut from] = [0; 3].map(|_| poisoned(d, c.m, y_cols));
        quantize_heads(&x, x_heads, &mut q).unwrap();
        head_linear_tiled(&w, &mut q, &mut want, y_heads).unwrap();
        head_linear(&w, &x, x_heads, &mut y, y_heads, Precision::Fast).unwrap();
        head_linear_from(&w, &x, x_heads, &mut scratch, &mut from, y_heads, Precision::Fast).unwrap();
        let want = gather(&host(&want), y_cols, y_heads);
        for (what, y) in [("y", &y), ("y with memory", &from)] {
            let y = host(y);
            equal(what, &gather(&y, y_cols, y_heads), &want)?;
            let others = outside(&y, y_cols, y_heads);
            prop_assert!(
                others.iter().all(|v| v.to_bits() == POISON.to_bits()),
                "{what}: columns between heads"
            );
        }
    }
    Ok(())
}

fn bytes(tiles: &QuantizedTiles) -> Vec<u8> {
    let d = tiles.tiles();
    d.to_vec(0..d.len()).unwrap()
}

/// Heads side by side: values as without, and tiles with the bits that `quantize` makes of them, padding included.
pub fn outputs_are_rounded_for_the_next_layer(devices: &[Device], c: Case) -> TestCaseResult {
    // Now and then a row of whole tiles.
    let unit = if c.seed.is_multiple_of(3) { 32 } else { 256 / c.heads.next_power_of_two() };
    let heads = if unit == 32 { c.heads } else { c.heads.next_power_of_two() };
    let c = Case { n: c.n.next_multiple_of(unit), heads, ..c };
    let Inputs { w, x, x_cols, x_heads } = c.inputs();
    let y_heads = Heads { n: c.heads, stride: c.n, offset: 0, len: c.n };
    let y_cols = c.heads * c.n;
    for d in gpus(devices) {
        let (w, x) = (tiled(d, &w), tensor(d, x_cols, &x));
        let mut scratch = HeadScratch::new(d, x_heads).unwrap();
        let mut y = LinearInput::new(d, y_cols).unwrap();
        y.resize(c.m).unwrap();
        let mut want = poisoned(d, c.m, y_cols);
        head_linear(&w, &x, x_heads, &mut want, y_heads, Precision::Fast).unwrap();
        head_linear_into(&w, &x, x_heads, &mut scratch, &mut y, y_heads, true, Precision::Fast).unwrap();
        equal("y", &host(y.values()), &host(&want))?;
        // The next layer takes what is there, or rounds it.
        let next = Weight::new(
            GgmlType::Q8_0,
            [1, 16, y_cols],
            random_blocks(GgmlType::Q8_0, 16 * y_cols / 32, false, 7).into(),
        );
        let next = tiled(d, &next.unwrap());
        let [mut z, mut z_want] = [0; 2].map(|_| poisoned(d, c.m, 16));
        let launches = |d: &Device| d.gpu().unwrap().launches().iter().map(|(_, n)| n).sum::<u64>();
        let before = launches(d);
        linear_from(&[&next], &mut y, &mut [&mut z], &mut [], Precision::Fast).unwrap();
        let rounds = c.m > 16 || c.k > 512 || !y_cols.is_multiple_of(256);
        prop_assert_eq!(launches(d) - before, 1 + u64::from(rounds), "{}", d.name());
        let mut again = LinearInput::new(d, y_cols).unwrap();
        again.resize(c.m).unwrap();
        head_linear_into(&w, &x, x_heads, &mut scratch, &mut again, y_heads, false, Precision::Fast).unwrap();
        linear_from(&[&next], &mut again, &mut [&mut z_want], &mut [], Precision::Fast).unwrap();
        equal("next", &host(&z), &host(&z_want))?;
        if !rounds {
            let mut q = QuantizedTiles::with_format(d, c.m, y_cols, ActivationFormat::Int8).unwrap();
            quantize(&want, &mut q).unwrap();
            let forms = y.forms_mut(Rounded { tiles: true, rows: false }).unwrap();
            let (got, want) = (bytes(forms.tiles.unwrap()), bytes(&q));
            let wrong = (0..want.len()).find(|i| got[*i] != want[*i]);
            prop_assert_eq!(wrong, None, "first byte that differs, of {}", want.len());
        }
    }
    Ok(())
}

/// 192 to 512 and 512 to 256, as `k_b` and `v_b` of GLM-5.
pub fn real_heads(devices: &[Device]) {
    for (n, k) in [(512, 192), (256, 512)] {
        for m in [1, 8, 16] {
            let c = Case { ty: GgmlType::Q8_0, m, heads: 2, n, k, seed: (n + m) as u64 };
            is_rounding_and_product_one_after_the_other(devices, c.clone()).unwrap();
            outputs_are_rounded_for_the_next_layer(devices, c).unwrap();
        }
    }
}

fn whole(heads: usize, len: usize) -> Heads {
    Heads { n: heads, stride: len, offset: 0, len }
}

fn simple(d: &Device, m: usize, k: usize) -> (Matrix, Tensor) {
    let blocks = random_blocks(GgmlType::Q8_0, 2 * 32 * k / 32, false, 1);
    let w = Weight::new(GgmlType::Q8_0, [2, 32, k], blocks.into()).unwrap();
    (tiled(d, &w), tensor(d, 2 * k, &Rng(3).normals(m * 2 * k)))
}

pub fn is_one_launch_and_no_memory(devices: &[Device]) {
    for d in gpus(devices) {
        let gpu = d.gpu().unwrap();
        for m in [1, 16] {
            let (w, x) = simple(d, m, 512);
            let mut y = poisoned(d, m, 64);
            let counts = || (gpu.launches().iter().map(|(_, n)| n).sum::<u64>(), gpu.allocations());
            let before = counts();
            head_linear(&w, &x, whole(2, 512), &mut y, whole(2, 32), Precision::Fast).unwrap();
            let after = counts();
            assert_eq!((after.0 - before.0, after.1 - before.1), (1, 0), "{}: {m}", d.name());
        }
    }
}

/// In memory that is kept: the second call takes none.
pub fn more_tokens_are_rounded_before(devices: &[Device]) {
    for d in gpus(devices) {
        let gpu = d.gpu().unwrap();
        let (w, x) = simple(d, 17, 512);
        let mut scratch = HeadScratch::new(d, whole(2, 512)).unwrap();
        let [mut y, mut again] = [0; 2].map(|_| poisoned(d, 17, 64));
        let mut run = |y: &mut Tensor| {
            head_linear_from(&w, &x, whole(2, 512), &mut scratch, y, whole(2, 32), Precision::Fast).unwrap();
        };
        run(&mut y);
        let before = gpu.allocations();
        run(&mut again);
        assert_eq!(gpu.allocations(), before, "{}", d.name());
        equal("y", &host(&y), &host(&again)).unwrap();
    }
}

/// Outputs between which others lie are not what a linear layer takes.
pub fn heads_apart_are_not_rounded(devices: &[Device]) {
    for d in gpus(devices) {
        let (w, x) = simple(d, 3, 64);
        let mut scratch = HeadScratch::new(d, whole(2, 64)).unwrap();
        let apart = Heads { n: 2, stride: 64, offset: 32, len: 32 };
        let mut y = LinearInput::new(d, 128).unwrap();
        y.resize(3).unwrap();
        head_linear_into(&w, &x, whole(2, 64), &mut scratch, &mut y, apart, true, Precision::Fast).unwrap();
        // They are rounded by the next layer, which so takes the columns between them, zeros, as they are.
        let next =
            Weight::new(GgmlType::Q8_0, [1, 16, 128], random_blocks(GgmlType::Q8_0, 64, false, 7).into());
        let next = tiled(d, &next.unwrap());
        let [mut z, mut want] = [0; 2].map(|_| poisoned(d, 3, 16));
        linear_from(&[&next], &mut y, &mut [&mut z], &mut [], Precision::Fast).unwrap();
        let mut q = QuantizedTiles::new(d, 3, 128).unwrap();
        quantize(y.values(), &mut q).unwrap();
        glm5::ops::linear::linear_tiled(&[&next], &mut q, &mut [&mut want]).unwrap();
        equal("z", &host(&z), &host(&want)).unwrap();
    }
}

pub fn refuses_what_does_not_fit(devices: &[Device]) {
    for d in gpus(devices) {
        let (w, x) = simple(d, 3, 64);
        let mut y = poisoned(d, 3, 64);
        let mut of_others = HeadScratch::new(d, whole(2, 32)).unwrap();
        let from =
            head_linear_from(&w, &x, whole(2, 64), &mut of_others, &mut y, whole(2, 32), Precision::Fast);
        assert!(matches!(from, Err(Error::Shape { .. })), "{from:?}");
        let exact = head_linear(&w, &x, whole(2, 64), &mut y, whole(2, 32), Precision::Exact);
        assert!(matches!(exact, Err(Error::Unsupported { .. })), "{exact:?}");
        let narrow = head_linear(&w, &x, whole(2, 32), &mut y, whole(2, 32), Precision::Fast);
        assert!(matches!(narrow, Err(Error::Shape { .. })), "{narrow:?}");
        assert!(untouched(&y), "{}", d.name());
    }
}
