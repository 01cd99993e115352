//! Selection of the indexer in blocks of rows, recorded calls, and calls that are refused.

use super::*;

/// More rows than are scored at a time, most of them past `k`, in two sequences.
pub fn selects_in_blocks_of_rows(devices: &[Device]) {
    for (dim, ty) in [(16, CacheType::F32), (128, CacheType::Bf16), (128, CacheType::Int8)] {
        let sequences = vec![Sequence { len: 140, new: 140 }, Sequence { len: 90, new: 20 }];
        let precision = Precision::Exact;
        let c = Case { sequences, heads: 2, dim, ty, precision, k: 20, config: 0, block: 2000, seed: 8 };
        select_is_top_k_of_scores(devices, c).unwrap();
    }
}

/// A graph takes what lies in its memory when it runs: other queries, and rows at other positions, as far as their pages reach; also if none saw
/// more than are selected when it was recorded.
pub fn graphs_follow_rows_that_move_on(devices: &[Device]) {
    let exact = Precision::Exact;
    let types = [(CacheType::Bf16, 1), (CacheType::Int8, 1), (CacheType::Bf16, 5)];
    for (d, (ty, new)) in devices.iter().filter(|d| d.gpu().is_ok()).flat_map(|d| types.map(|of| (d, of))) {
        let sequences = vec![Sequence { len: 191, new }, Sequence { len: 130, new: 2 }];
        let long = Case { seed: 7, ..full_size(sequences, ty, exact, 40) };
        let inputs = long.inputs();
        let (mut q, w, keys, mut rows) = inputs.on(d, 32, 128).unwrap();
        let pages = inputs.batch.tables();
        let at = |first: usize, second: usize, rows: &mut RaggedRows| {
            rows.clear();
            rows.push(first, new, &pages[0]).unwrap();
            rows.push(second, 2, &pages[1]).unwrap();
            rows.upload(d).unwrap();
        };
        let (mut out, mut scratch) = (Selection::new(d, 40).unwrap(), IndexerScratch::new(d).unwrap());
        at(20, 5, &mut rows);
        indexer_select(&q, &w, &keys, &rows, 1.0, &mut scratch, &mut out, exact).unwrap();
        let call = || indexer_select(&q, &w, &keys, &rows, 1.0, &mut scratch, &mut out, exact);
        let mut graph = d.gpu().unwrap().capture(call).unwrap();
        for (step, (first, second)) in [(21, 6), (60, 39), (64, 128), (191 - new, 40)].into_iter().enumerate()
        {
            let values = Rng(step as u64).normals((new + 2) * 32 * 128);
            q.cuda_mut().unwrap().upload(0, &values).unwrap();
            at(first, second, &mut rows);
            graph.launch().unwrap();
            let got = rows_of(&out).unwrap();
            let mut again = Selection::new(d, 40).unwrap();
            let mut other = IndexerScratch::new(d).unwrap();
            indexer_select(&q, &w, &keys, &rows, 1.0, &mut other, &mut again, exact).unwrap();
            assert!(got == rows_of(&again).unwrap(), "{ty}, {new} rows, step {step}");
        }
    }
}

/// Launches that are not for the rows are refused.
pub fn refuses_other_launches(devices: &[Device]) {
    let exact = Precision::Exact;
    for d in devices.iter().filter(|d| d.gpu().is_ok()) {
        let c = full_size(vec![Sequence { len: 9, new: 3 }], CacheType::Bf16, exact, 2);
        let (q, w, keys, rows) = c.inputs().on(d, 32, 128).unwrap();
        let int8 = Case { ty: CacheType::Int8, ..c.clone() };
        let first = |c: &Case| config(d, c, &rows).unwrap();
        let mut scores = poisoned(d, 3, 9);
        let good = first(&c);
        let bad = [
            IndexerConfig { workers: 0, ..good },
            IndexerConfig { rows: good.rows + 1, ..good },
            first(&int8),
        ];
        for config in bad {
            let result = indexer_scores_with(&q, &w, &keys, &rows, 1.0, Some(config), &mut scores, exact);
            assert!(matches!(result, Err(glm5::Error::Unsupported { .. })), "{result:?}");
        }
        assert!(untouched(&scores), "a refused call wrote something");
    }
}

/// The same, of more rows in fewer keys.
pub fn graphs_score_again(devices: &[Device]) {
    let types = [CacheType::Bf16, CacheType::Int8];
    for (d, ty) in devices.iter().filter(|d| d.gpu().is_ok()).flat_map(|d| types.map(|ty| (d, ty))) {
        let sequences = vec![Sequence { len: 200, new: 1 }, Sequence { len: 130, new: 2 }];
        let long = Case { seed: 6, ..full_size(sequences, ty, Precision::Exact, 40) };
        let inputs = long.inputs();
        let (mut q, w, keys, mut rows) = inputs.on(d, 32, 128).unwrap();
        let (mut out, mut scratch) = (Selection::new(d, 40).unwrap(), IndexerScratch::new(d).unwrap());
        let exact = Precision::Exact;
        indexer_select(&q, &w, &keys, &rows, 1.0, &mut scratch, &mut out, exact).unwrap();
        let call = || indexer_select(&q, &w, &keys, &rows, 1.0, &mut scratch, &mut out, exact);
        let mut graph = d.gpu().unwrap().capture(call).unwrap();
        for step in 0..3u64 {
            let values = Rng(step).normals(3 * 32 * 128);
            q.cuda_mut().unwrap().upload(0, &values).unwrap();
            let pages = inputs.batch.tables();
            rows.clear();
            rows.push(199 - 70 * step as usize, 1, &pages[0]).unwrap();
            rows.push(128, 2, &pages[1]).unwrap();
            rows.upload(d).unwrap();
            graph.launch().unwrap();
            let got = rows_of(&out).unwrap();
            let mut again = Selection::new(d, 40).unwrap();
            let mut other = IndexerScratch::new(d).unwrap();
            indexer_select(&q, &w, &keys, &rows, 1.0, &mut other, &mut again, exact).unwrap();
            assert!(got == rows_of(&again).unwrap(), "step {step}");
        }
    }
}

pub fn refuses_what_does_not_fit(devices: &[Device]) {
    let (d, exact) = (&devices[0], Precision::Exact);
    let c = Case {
        sequences: vec![Sequence { len: 5, new: 3 }],
        heads: 2,
        dim: 8,
        ty: CacheType::F32,
        precision: Precision::Exact,
        k: 2,
        config: 0,
        block: 1000,
        seed: 1,
    };
    let (q, w, keys, rows) = c.inputs().on(d, 2, 8).unwrap();
    let (narrow, short) = (tensor(d, 15, &[1.0; 45]), tensor(d, 16, &[1.0; 32]));
    let few = tensor(d, 2, &[1.0; 4]);
    let small = PagedRows::new(d, 1, 8, CacheType::F32).unwrap();
    let mut beyond = RaggedRows::default();
    beyond.push(2, 3, &[1]).unwrap();
    let (mut out, mut low, mut thin) = (poisoned(d, 3, 5), poisoned(d, 2, 5), poisoned(d, 3, 4));
    let mut selection = Selection::new(d, 2).unwrap();
    let mut none = Selection::new(d, 0).unwrap();
    let room = &mut IndexerScratch::new(d).unwrap();
    refused(vec![
        ("q cols", indexer_scores(&narrow, &w, &keys, &rows, 1.0, &mut out, exact)),
        ("q rows", indexer_scores(&short, &w, &keys, &rows, 1.0, &mut out, exact)),
        ("w rows", indexer_scores(&q, &few, &keys, &rows, 1.0, &mut out, exact)),
        ("slots", indexer_scores(&q, &w, &small, &beyond, 1.0, &mut out, exact)),
        ("score rows", indexer_scores(&q, &w, &keys, &rows, 1.0, &mut low, exact)),
        ("score cols", indexer_scores(&q, &w, &keys, &rows, 1.0, &mut thin, exact)),
        ("select q", indexer_select(&narrow, &w, &keys, &rows, 1.0, room, &mut selection, exact)),
        ("select w", indexer_select(&q, &few, &keys, &rows, 1.0, room, &mut selection, exact)),
        ("select slots", indexer_select(&q, &w, &small, &beyond, 1.0, room, &mut selection, exact)),
        ("select none", indexer_select(&q, &w, &keys, &rows, 1.0, room, &mut none, exact)),
    ]);
    if d.gpu().is_ok() {
        let mut there_not = RaggedRows::default();
        there_not.push(2, 3, &[1]).unwrap();
        let result = indexer_scores(&q, &w, &keys, &there_not, 1.0, &mut out, exact);
        assert!(matches!(result, Err(glm5::Error::Unsupported { .. })), "{result:?}");
        // No kernel takes more heads over keys of int8.
        let many =
            Case { heads: 33, ..full_size(vec![Sequence { len: 5, new: 3 }], CacheType::Int8, exact, 2) };
        let (q, w, keys, rows) = many.inputs().on(d, 33, 128).unwrap();
        let result = indexer_scores(&q, &w, &keys, &rows, 1.0, &mut out, exact);
        assert!(matches!(result, Err(glm5::Error::Unsupported { .. })), "{result:?}");
    }
    assert!([out, low, thin].iter().all(untouched), "a refused call wrote something");
    assert_eq!(selection.lens.rows(), 0, "a refused call changed the selection");
}
