//! Embedding: rows of a quantized table.

use glm5::ops::dequantize::reference::round_bf16;
use glm5::ops::embedding::{embedding, embedding_of, reference};
use glm5::quant::GgmlType;
use glm5::tensor::{Device, Tensor};
use half::bf16;
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::blocks::random_weight;
use super::close::equal;
use super::inputs::{host, matrix, on_each, poisoned, refused, type_and_width, untouched, values};

macro_rules! embedding_properties {
    ($devices:path, $cases:expr) => {
        $crate::suites::properties! { embedding, $devices, $cases;
        rows_are_those_of_the_table(case);
        refuses_what_does_not_fit }
    };
}
pub(crate) use embedding_properties;

#[derive(Debug, Clone)]
pub struct Case {
    ty: GgmlType,
    vocab: usize,
    hidden: usize,
    tokens: Vec<u32>,
    seed: u64,
}

pub fn case() -> impl Strategy<Value = Case> {
    (type_and_width(1536), 1usize..90, any::<u64>()).prop_flat_map(|((ty, hidden), vocab, seed)| {
        // First, last and repeated tokens among others; no tokens at all.
        let token = prop_oneof![Just(0), Just(vocab as u32 - 1), 0..vocab as u32];
        prop::collection::vec(token, 0..75).prop_map(move |tokens| Case { ty, vocab, hidden, tokens, seed })
    })
}

pub fn rows_are_those_of_the_table(devices: &[Device], c: Case) -> TestCaseResult {
    let table = random_weight(c.ty, 1, c.vocab, c.hidden, c.seed);
    let want = reference::embedding(&values(&table), c.hidden, &c.tokens).unwrap();
    let got = on_each(devices, |d| {
        let mut out = poisoned(d, c.tokens.len(), c.hidden);
        embedding(&matrix(d, &table), &c.tokens, &mut out)?;
        Ok(host(&out))
    })?;
    equal("out", &got, &want)?;

    // With tokens that are on the device already; and rounded.
    let got = on_each(devices, |d| {
        let tokens = Tensor::from_vec(d, c.tokens.len(), 1, c.tokens.clone())?;
        let mut out = poisoned(d, c.tokens.len(), c.hidden);
        embedding_of(&matrix(d, &table), &tokens, &mut out)?;
        Ok(host(&out))
    })?;
    equal("by a tensor of tokens", &got, &want)?;
    let got = on_each(devices, |d| {
        let mut out = Tensor::<bf16>::zeros(d, c.tokens.len(), c.hidden)?;
        embedding(&matrix(d, &table), &c.tokens, &mut out)?;
        Ok(out.to_vec()?.iter().map(|v| v.to_f32()).collect::<Vec<f32>>())
    })?;
    let want: Vec<f32> = want.iter().map(|v| round_bf16(*v).to_f32()).collect();
    equal("bf16", &got, &want)
}

pub fn refuses_what_does_not_fit(devices: &[Device]) {
    let d = &devices[0];
    let table = matrix(d, &random_weight(GgmlType::Q8_0, 1, 5, 32, 1));
    let (mut out, mut narrow) = (poisoned(d, 3, 32), poisoned(d, 3, 31));
    refused(vec![
        ("out rows", embedding(&table, &[1, 2], &mut out)),
        ("out cols", embedding(&table, &[1, 2, 3], &mut narrow)),
    ]);
    let unknown = embedding(&table, &[0, 5, 1], &mut out);
    assert!(matches!(unknown, Err(glm5::Error::Argument { .. })), "token 5 of 5: {unknown:?}");
    let tokens = Tensor::from_vec(d, 2, 2, vec![1, 2, 3, 4]).unwrap();
    let few = Tensor::from_vec(d, 2, 1, vec![1, 2]).unwrap();
    refused(vec![
        ("tokens", embedding_of(&table, &tokens, &mut out)),
        ("out of tokens", embedding_of(&table, &few, &mut out)),
    ]);
    assert!([out, narrow].iter().all(untouched), "a refused call wrote something");
}
