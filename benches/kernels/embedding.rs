//! embed: bytes of the rows + bytes of the values, over the copy roof.

use criterion::Criterion;
use glm5::ops::embedding::{embedding, embedding_of};
use glm5::quant::{GgmlType, Weight, dequantize};
use glm5::tensor::{Matrix, Tensor};

use crate::blocks::{Rng, random_blocks};
use crate::{Bench, Row};

const HIDDEN: usize = 6144;

pub fn benches(bench: &Bench, c: &mut Criterion) {
    let vocab = if bench.measured { 154_880 } else { 5 };
    for ty in [GgmlType::Q4_K, GgmlType::Q6_K, GgmlType::Q8_0] {
        let some = random_blocks(ty, 64.min(vocab) * HIDDEN / ty.block_elems(), false, 1);
        let row_bytes = HIDDEN / ty.block_elems() * ty.block_bytes();
        let bytes: Vec<u8> = some.into_iter().cycle().take(vocab * row_bytes).collect();
        let weight = Weight::new(ty, [1, vocab, HIDDEN], bytes.into()).unwrap();
        let table = Matrix::new(&bench.device, weight.clone()).unwrap();
        for n in [1, 32, 2048] {
            let n = if bench.measured { n } else { n.min(3) };
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
            assert_eq!(outs[0].to_vec().unwrap(), want, "{ty}, {n} tokens");

            let mut launch = |i: usize| embedding_of(&table, &on_device[i], &mut outs[i]);
            let name = format!("{ty}, {n} of {vocab} tokens");
            bench.row(c, "embed", Row { name, bytes: moved, sets, launch: &mut launch });
        }
    }
}

/// Sets for few tokens: their rows come from all over a table that no cache holds.
const LAUNCHED: usize = 100;
