//! Inputs that aim at edges, and the traffic between tests and devices.

use glm5::Result;
use glm5::quant::{GgmlType, Weight, dequantize};
use glm5::tensor::{Device, Heads, Matrix, Tensor};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::blocks::{Rng, SUPPORTED};
use super::close::POISON;

/// Numbers of rows: one token, a few, more than any tile, never a multiple of one.
pub fn any_m() -> impl Strategy<Value = usize> + Clone {
    prop_oneof![3 => Just(1usize), 4 => prop::sample::select(vec![2usize, 3, 4, 5, 8, 9, 16, 17, 33, 70]), 1 => 1usize..=70]
}

/// Fewer rows, for operations that cost more per row.
pub fn small_m() -> impl Strategy<Value = usize> + Clone {
    prop::sample::select(vec![1usize, 1, 2, 3, 5, 8, 17])
}

/// Widths that a matrix of type `ty` can have.
pub fn widths(ty: GgmlType) -> Vec<usize> {
    match ty.block_elems() {
        1 => vec![1, 7, 32, 100, 192, 256, 515, 1536],
        32 => vec![32, 96, 192, 256, 512, 1536],
        _ => vec![256, 512, 1536],
    }
}

/// A type and one of its widths, at most `max`.
pub fn type_and_width(max: usize) -> impl Strategy<Value = (GgmlType, usize)> {
    prop::sample::select(&SUPPORTED[..]).prop_flat_map(move |ty| {
        let widths: Vec<usize> = widths(ty).into_iter().filter(|k| *k <= max).collect();
        (Just(ty), prop::sample::select(widths))
    })
}

/// A type whose blocks divide `k`.
pub fn type_for(k: usize, rng: &mut Rng) -> GgmlType {
    let fitting: Vec<GgmlType> =
        SUPPORTED.iter().copied().filter(|ty| k.is_multiple_of(ty.block_elems())).collect();
    fitting[rng.below(fitting.len())]
}

/// Whether [`Precision::Fast`](glm5::tensor::Precision) rounds the activations that meet weights of this type.
pub fn is_quantized(ty: GgmlType) -> bool {
    !matches!(ty, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16)
}

/// `m` rows of `k` activations, each row of its own kind: ordinary, tiny with one outlier of 1e4, zero, constant,
/// spread over many magnitudes, or halfway between the steps of an int8 rounding.
pub fn activations(m: usize, k: usize, rng: &mut Rng) -> Vec<f32> {
    let mut x = Vec::new();
    for _ in 0..m {
        let kind = rng.below(8);
        let outlier = rng.below(k);
        let step = 0.01 + rng.unit() as f32;
        for i in 0..k {
            let z = rng.normal();
            x.push(match kind {
                0 if i == outlier => 1e4,
                0 => 1e-3 * z,
                1 => 0.0,
                2 => -0.75,
                4 if i % 32 == 0 => 127.0 * step,
                4 => (rng.below(127) as f32 - 62.5) * step,
                3 => z * (3.0 * rng.normal()).exp(),
                _ => z,
            });
        }
    }
    x
}

/// Scales of the order of one, as norm weights have them.
pub fn scales(n: usize, rng: &mut Rng) -> Vec<f32> {
    (0..n).map(|_| 1.0 + 0.5 * rng.normal()).collect()
}

/// Heads of width `len` with unused columns before, between and behind them, and the width of a row that holds them.
pub fn spread_heads(n: usize, len: usize, rng: &mut Rng) -> (Heads, usize) {
    let (offset, gap) = (rng.below(2) * rng.below(9), rng.below(2) * rng.below(9));
    let heads = Heads { n, stride: offset + len + gap, offset, len };
    (heads, n * heads.stride + rng.below(3))
}

/// The columns that belong to `heads`, of each row of `cols`.
pub fn gather(x: &[f32], cols: usize, heads: Heads) -> Vec<f32> {
    let mut out = Vec::new();
    for row in x.chunks(cols) {
        for h in 0..heads.n {
            out.extend_from_slice(&row[h * heads.stride + heads.offset..][..heads.len]);
        }
    }
    out
}

/// The columns that belong to no head, of each row of `cols`.
pub fn outside(x: &[f32], cols: usize, heads: Heads) -> Vec<f32> {
    let belongs = |c: usize| {
        let within = c % heads.stride;
        c / heads.stride < heads.n && within >= heads.offset && within < heads.offset + heads.len
    };
    x.iter().enumerate().filter(|(i, _)| !belongs(i % cols)).map(|(_, v)| *v).collect()
}

/// All values of a weight, by the dequantizer that golden blocks pin.
pub fn values(w: &Weight) -> Vec<f32> {
    let mut out = vec![0.0; w.slabs() * w.rows() * w.cols()];
    dequantize(w.ty(), w.bytes(), &mut out).unwrap();
    out
}

/// A weight on a device.
pub fn matrix(device: &Device, w: &Weight) -> Matrix {
    Matrix::new(device, w.clone()).unwrap()
}

/// Rows of `cols` values on a device.
pub fn tensor(device: &Device, cols: usize, values: &[f32]) -> Tensor {
    Tensor::from_vec(device, values.len() / cols, cols, values.to_vec()).unwrap()
}

/// An output full of poison.
pub fn poisoned(device: &Device, rows: usize, cols: usize) -> Tensor {
    Tensor::from_vec(device, rows, cols, vec![POISON; rows * cols]).unwrap()
}

/// Whether every value is still the poison it was filled with.
pub fn untouched(t: &Tensor) -> bool {
    host(t).iter().all(|v| v.to_bits() == POISON.to_bits())
}

/// The values of a tensor.
pub fn host(t: &Tensor) -> Vec<f32> {
    t.to_vec().unwrap()
}

/// Results that can be compared bit for bit.
pub trait Bits {
    /// All of it as bits.
    fn bits(&self) -> Vec<u32>;
}

impl Bits for Vec<f32> {
    fn bits(&self) -> Vec<u32> {
        self.iter().map(|v| v.to_bits()).collect()
    }
}

impl Bits for Vec<u32> {
    fn bits(&self) -> Vec<u32> {
        self.clone()
    }
}

impl<T> Bits for Vec<Vec<T>>
where
    Vec<T>: Bits,
{
    fn bits(&self) -> Vec<u32> {
        self.iter().flat_map(|v| [vec![v.len() as u32], v.bits()].concat()).collect()
    }
}

impl<A: Bits, B: Bits> Bits for (A, B) {
    fn bits(&self) -> Vec<u32> {
        [self.0.bits(), self.1.bits()].concat()
    }
}

/// Runs on every device, twice on the first, and requires the same bits from all: `devices` are the variants of one
/// device that promise this (thread counts).
pub fn on_each<T: Bits>(devices: &[Device], run: impl Fn(&Device) -> Result<T>) -> Result<T, TestCaseError> {
    let run = |d: &Device| run(d).map_err(|e| TestCaseError::fail(format!("{}: {e}", d.name())));
    let first = run(&devices[0])?;
    let bits = first.bits();
    for d in devices {
        let again = run(d)?.bits();
        if let Some(i) = (0..bits.len().max(again.len())).find(|i| bits.get(*i) != again.get(*i)) {
            let value = |b: &[u32]| b.get(i).map(|b| f32::from_bits(*b));
            let (a, b) = (value(&bits), value(&again));
            let names = (devices[0].name(), d.name());
            return Err(TestCaseError::fail(format!(
                "value {i}: {a:?} on {}, {b:?} on {}",
                names.0, names.1
            )));
        }
    }
    Ok(first)
}

/// Calls that must be refused with [`glm5::Error::Shape`], by name.
pub fn refused(calls: Vec<(&str, Result<()>)>) {
    for (what, result) in calls {
        assert!(
            matches!(result, Err(glm5::Error::Shape { .. })),
            "{what}: expected a shape error, got {result:?}"
        );
    }
}
