//! dsa_topk: 2048 of rows as long as contexts. Goals: one row of 32k, 128k, 200k in 6, 9, 11 us, whatever the scores; 16 rows of 128k in 18 us,
//! 512 in 160. Scores that fit L2 are there, as behind the kernel that computes them, so that no roof binds.

use criterion::Criterion;
use glm5::ops::dsa_topk::config::{TopkConfig, TopkProblem, candidates};
use glm5::ops::dsa_topk::{Selection, TopkScratch, reference, top_k_with};
use glm5::tensor::Tensor;

use super::baselines::Case;
use super::blocks::Rng;
use super::data::{DISTINCT, tiled};
use super::report::{Memory, Work};
use super::{Bench, Row};

const K: usize = 2048;

/// Scores of a kind that is hard for some way to select.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Spread {
    Normal,
    /// A few neighbouring values: all upper bits are the same.
    Clustered,
    /// Three values.
    Ties,
    Equal,
    /// The largest are neighbours, at the end.
    Rising,
    /// Around a million.
    Large,
}

impl Spread {
    fn score(self, i: usize, rng: &mut Rng) -> f32 {
        match self {
            Spread::Normal => rng.normal(),
            Spread::Clustered => f32::from_bits(1f32.to_bits() + rng.below(1000) as u32),
            Spread::Ties => [0.25, -1.5, 3.0][rng.below(3)],
            Spread::Equal => 1.0,
            Spread::Rising => i as f32,
            Spread::Large => 1e6 + 100.0 * rng.normal(),
        }
    }
}

pub fn benches(bench: &Bench, c: &mut Criterion) {
    use Spread::*;
    let (lengths, rows): (&[usize], &[usize]) = match bench.measured {
        true => (&[2048, 4096, 32_768, 131_072, 204_800], &[1, 16, 512]),
        false => (&[9000], &[1]),
    };
    for (n, m) in lengths.iter().flat_map(|n| rows.iter().map(|m| (*n, *m))) {
        row(bench, c, m, n, Normal, 0);
    }
    let (n, rows): (usize, &[usize]) = if bench.measured { (131_072, &[1, 16, 512]) } else { (9000, &[2]) };
    for (m, spread) in rows.iter().flat_map(|m| [Clustered, Ties, Equal, Rising, Large].map(|s| (*m, s))) {
        row(bench, c, m, n, spread, 0);
    }
    // Launches that are not chosen, of those with some use.
    let shapes: &[(usize, usize)] = if bench.measured {
        &[(1, 8192), (1, 32_768), (1, 131_072), (1, 204_800), (16, 131_072), (64, 131_072)]
    } else {
        &[(1, 9000)]
    };
    for (m, n) in shapes.iter().copied() {
        for other in 1..10 {
            row(bench, c, m, n, Normal, other);
        }
    }
}

/// By candidate number `choice`.
fn row(bench: &Bench, c: &mut Criterion, m: usize, n: usize, spread: Spread, choice: usize) {
    let d = &bench.device;
    let problem = TopkProblem::new(m, n, bench.gpu().properties());
    let Some(config) = candidates(problem).get(choice).copied() else { return };
    let TopkConfig { entry, parts } = config;
    let other = if choice > 0 { format!(", {entry} on {parts} blocks") } else { String::new() };
    let name = format!("{K} of {n}, {m} rows, {}{other}", format!("{spread:?}").to_lowercase());
    if !bench.wants("dsa_topk", &name) {
        return;
    }
    let rng = &mut Rng(n as u64);
    let few: Vec<f32> =
        (0..DISTINCT.min(m)).flat_map(|_| (0..n).map(|i| spread.score(i, rng)).collect::<Vec<_>>()).collect();
    let bytes = 4 * m * (n + K.min(n) + 1);
    let sets = bench.few_sets(bytes);
    let scores: Vec<Tensor> = (0..sets).map(|_| tiled(d, &few, m, n)).collect();
    let visible = Tensor::from_vec(d, m, 1, vec![n as u32; m]).unwrap();
    let (mut out, mut scratch) = (Selection::new(d, K).unwrap(), TopkScratch::new(d).unwrap());
    bench.report.prepared();
    top_k_with(&scores[0], &visible, Some(config), &mut scratch, &mut out).unwrap();
    let (indices, lens) = (out.indices.to_vec().unwrap(), out.lens.to_vec().unwrap());
    for t in [0, m / 2, m - 1] {
        let row = &few[t % DISTINCT * n..][..n];
        let want = reference::top_k(row, n, &[n as u32], K).unwrap();
        assert!(indices[t * K..][..lens[t] as usize] == want[0][..], "{name}: row {t} differs");
    }
    let memory = (bytes * sets > bench.gpu().properties().l2 as usize).then_some(Memory::Read);
    let work = Work { bytes, operations: None, memory };
    let plain = spread == Spread::Normal && choice == 0;
    let case = plain.then_some(Case { op: "TOP_K", ty: "F32", k: n, n: K, m });
    let mut launch = |i: usize| top_k_with(&scores[i], &visible, Some(config), &mut scratch, &mut out);
    bench.row(c, "dsa_topk", Row { name, work, case, sets, launch: &mut launch });
}
