//! Output head on chosen rows.

use glm5::ops::linear::LinearInput;
use glm5::ops::logits::{chosen_rows, logits, reference};
use glm5::quant::GgmlType;
use glm5::tensor::{Device, Precision, Tensor};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::blocks::{Rng, random_weight};
use super::close::{close, magnitudes, sum_slack};
use super::inputs::values;
use super::inputs::{
    activations, any_m, host, matrix, on_each, poisoned, refused, tensor, type_and_width, untouched,
};

macro_rules! logits_properties {
    ($devices:path, $cases:expr) => {
        $crate::suites::properties! { logits, $devices, $cases;
        chosen_rows_are_the_reference(case);
        refuses_what_does_not_fit }
    };
}
pub(crate) use logits_properties;

#[derive(Debug, Clone)]
pub struct Case {
    ty: GgmlType,
    vocab: usize,
    hidden: usize,
    m: usize,
    rows: Vec<u32>,
    seed: u64,
}

pub fn case() -> impl Strategy<Value = Case> {
    (type_and_width(512), 1usize..130, any_m(), any::<u64>()).prop_flat_map(
        |((ty, hidden), vocab, m, seed)| {
            // Often the last row alone; else some in any order, repeated ones and none included.
            let rows = prop_oneof![Just(vec![m as u32 - 1]), prop::collection::vec(0..m as u32, 0..6)];
            rows.prop_map(move |rows| Case { ty, vocab, hidden, m, rows, seed })
        },
    )
}

fn left_over(d: &Device, rows: usize, cols: usize) -> LinearInput {
    let mut x = LinearInput::new(d, cols).unwrap();
    x.resize(rows).unwrap();
    x.values_mut().fill(super::close::POISON).unwrap();
    x
}

pub fn chosen_rows_are_the_reference(devices: &[Device], c: Case) -> TestCaseResult {
    let w = random_weight(c.ty, 1, c.vocab, c.hidden, c.seed);
    let x = activations(c.m, c.hidden, &mut Rng(!c.seed));
    let got = on_each(devices, |d| {
        // Left over from a larger step.
        let (mut gathered, mut y) = (left_over(d, 9, c.hidden), poisoned(d, 9, c.vocab));
        let (w, x) = (matrix(d, &w), tensor(d, c.hidden, &x));
        logits(&w, &x, &c.rows, &mut gathered, &mut y, Precision::Exact)?;
        Ok(host(&y))
    })?;
    let themselves = on_each(devices, |d| {
        let rows = Tensor::from_vec(d, c.rows.len(), 1, c.rows.clone())?;
        let mut y = poisoned(d, 9, c.hidden);
        chosen_rows(&tensor(d, c.hidden, &x), &rows, &mut y)?;
        Ok(host(&y))
    })?;
    let w = values(&w);
    let want = reference::logits(&w, &x, &c.rows, c.vocab, c.hidden).unwrap();
    let chosen: Vec<f32> =
        c.rows.iter().flat_map(|r| &x[*r as usize * c.hidden..][..c.hidden]).copied().collect();
    prop_assert_eq!(themselves, chosen.clone());
    let magnitudes = magnitudes(&w, &chosen, c.hidden);
    close("logits", &got, &want, |i| sum_slack(c.hidden, magnitudes[i]))
}

pub fn refuses_what_does_not_fit(devices: &[Device]) {
    let d = &devices[0];
    let w = matrix(d, &random_weight(GgmlType::Q8_0, 1, 6, 32, 1));
    let stack = matrix(d, &random_weight(GgmlType::Q8_0, 2, 6, 32, 1));
    let (x, wide) = (tensor(d, 32, &[1.0; 96]), tensor(d, 64, &[1.0; 192]));
    let (mut gathered, mut wide_gathered) = (left_over(d, 1, 32), left_over(d, 1, 64));
    let (mut y, mut narrow) = (poisoned(d, 1, 6), poisoned(d, 1, 5));
    let exact = Precision::Exact;
    refused(vec![
        ("row", logits(&w, &x, &[0, 3], &mut gathered, &mut y, exact)),
        ("gathered", logits(&w, &x, &[0], &mut wide_gathered, &mut y, exact)),
        ("y", logits(&w, &x, &[0], &mut gathered, &mut narrow, exact)),
        ("x", logits(&w, &wide, &[0], &mut wide_gathered, &mut y, exact)),
        ("a stack", logits(&stack, &x, &[0], &mut gathered, &mut y, exact)),
    ]);
    let rows = Tensor::from_vec(d, 1, 1, vec![0]).unwrap();
    let two = Tensor::from_vec(d, 1, 2, vec![0, 0]).unwrap();
    refused(vec![
        ("y of chosen rows", chosen_rows(&x, &rows, &mut y)),
        ("pairs of rows", chosen_rows(&tensor(d, 6, &[1.0; 12]), &two, &mut y)),
    ]);
    if let Device::Cpu(_) = d {
        let beyond = Tensor::from_vec(d, 1, 1, vec![2]).unwrap();
        refused(vec![("a row beyond", chosen_rows(&tensor(d, 6, &[1.0; 12]), &beyond, &mut y))]);
    }
    assert!([y, narrow].iter().all(untouched), "a refused call wrote something");
}
