//! moe_sort: the routing of GLM-5, 8 of 256 experts for each token, chosen alike or as 1 / rank. Goals: 3 us for 64 tokens, 5 for 2048,
//! 12 for 8192. Bytes are those of ids and result, which caches hold, so that no roof binds.

use criterion::Criterion;
use glm5::ops::moe_sort::reference::sort;
use glm5::ops::moe_sort::{SortOptions, SortedPairs, config, moe_sort};
use glm5::tensor::Tensor;

use super::blocks::Rng;
use super::report::Work;
use super::{Bench, Row};

const EXPERTS: usize = 256;
const TOP_K: usize = 8;

/// Different experts for each token.
pub fn ids(m: usize, zipf: bool) -> Vec<u32> {
    let rng = &mut Rng(m as u64);
    let mut ids: Vec<u32> = Vec::new();
    for t in 0..m {
        while ids.len() < (t + 1) * TOP_K {
            let id = if zipf { (EXPERTS as f64).powf(rng.unit()) as usize - 1 } else { rng.below(EXPERTS) };
            if !ids[t * TOP_K..].contains(&(id as u32)) {
                ids.push(id as u32);
            }
        }
    }
    ids
}

pub fn benches(bench: &Bench, c: &mut Criterion) {
    let tokens: &[usize] = if bench.measured { &[64, 512, 2048, 8192] } else { &[64] };
    for (m, zipf) in tokens.iter().flat_map(|m| [(*m, false), (*m, true)]) {
        let chosen = if zipf { "Zipf" } else { "uniform" };
        for (i, kernel) in config::candidates(m * TOP_K, EXPERTS).into_iter().enumerate() {
            // The kernel that is not chosen is a row of its own.
            let other = if i > 0 { format!(", {}", kernel.entry) } else { String::new() };
            let name = format!("8 of 256 experts, {m} tokens, {chosen}{other}");
            if !bench.wants("moe_sort", &name) {
                continue;
            }
            let ids = ids(m, zipf);
            let there = Tensor::from_vec(&bench.device, m, TOP_K, ids.clone()).unwrap();
            let mut out = SortedPairs::new(&bench.device, EXPERTS).unwrap();
            let options =
                SortOptions { first_expert: 0, strict: true, height: 8, kernel: Some(kernel.entry) };
            moe_sort(&there, &options, &mut out).unwrap();
            let sorted = out.to_host().unwrap();
            assert!(sorted == sort(&ids, EXPERTS, 0, 8), "{name}: another order");
            let bytes = 4 * (3 * ids.len() + EXPERTS + 1) + 16 * sorted.tiles.len();
            let work = Work { bytes, operations: None, memory: None };
            let mut launch = |_| moe_sort(&there, &options, &mut out);
            bench.row(c, "moe_sort", Row { name, work, case: None, sets: 2, launch: &mut launch });
        }
    }
}
