//! embed: bytes of the rows + bytes of the values, over the copy roof.

use criterion::Criterion;
use glm5::ops::embedding::{embedding, embedding_of};
use glm5::quant::{GgmlType, Weight, dequantize};
use glm5::tensor::{Matrix, Tensor};

use super::blocks::{Rng, random_blocks};
use super::data::{DISTINCT, repeated};
use super::report::Work;
use super::{Bench, Row};

const HIDDEN: usize = 6144;

pub fn benches(bench: &Bench, c: &mut Criterion) {
    let (vocab, counts) = if bench.measured { (154_880, [1, 32, 2048]) } else { (5, [1, 2, 3]) };
    for ty in [GgmlType::Q4_K, GgmlType::Q6_K, GgmlType::Q8_0] {
        let wanted = counts.map(|n| (n, format!("{ty}, {n} of {vocab} tokens")));
        let wanted: Vec<_> = wanted.into_iter().filter(|(_, name)| bench.wants("embed", name)).collect();
        if wanted.is_empty() {
            continue;
        }
        // One table for all: it is a gigabyte.
        let few = random_blocks(ty, DISTINCT.min(vocab) * HIDDEN / ty.block_elems(), false, 1);
        let row_bytes = HIDDEN / ty.block_elems() * ty.block_bytes();
        let weight = Weight::new(ty, [1, vocab, HIDDEN], repeated(&few, vocab * row_bytes).into()).unwrap();
        let table = Matrix::new(&bench.device, weight.clone()).unwrap();
        for (n, name) in wanted {
            let moved = n * (row_bytes + 4 * HIDDEN);
            let sets = if n <= 32 { LAUNCHED } else { bench.sets(moved) };
            let rng = &mut Rng(n as u64);
            let tokens: Vec<Vec<u32>> =
                (0..sets).map(|_| (0..n).map(|_| rng.below(vocab) as u32).collect()).collect();
            let on_device: Vec<Tensor<u32>> =
                tokens.iter().map(|t| Tensor::from_vec(&bench.device, n, 1, t.clone()).unwrap()).collect();
            let mut outs: Vec<Tensor> =
                (0..sets).map(|_| Tensor::zeros(&bench.device, n, HIDDEN).unwrap()).collect();

            embedding(&table, &tokens[0], &mut outs[0]).unwrap();
            let mut want = vec![0.0; n * HIDDEN];
            for (token, row) in tokens[0].iter().zip(want.chunks_mut(HIDDEN)) {
                let r = *token as usize;
                dequantize(ty, weight.rows_bytes(0, r..r + 1), row).unwrap();
            }
            assert!(outs[0].to_vec().unwrap() == want, "{name}");

            let mut launch = |i: usize| embedding_of(&table, &on_device[i], &mut outs[i]);
            bench.row(
                c,
                "embed",
                Row { name, work: Work::copying(moved), case: None, sets, launch: &mut launch },
            );
        }
    }
}

/// Sets for few tokens: their rows come from all over a table that no cache holds.
const LAUNCHED: usize = 100;
