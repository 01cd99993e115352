//! Latent attention whose keys are in parts, by matrix instructions: dealt to ranks, cut among many blocks of threads, of rows that move on
//! under a graph. On GPUs only; bounds are those of `mla_decode`.

use glm5::ops::mla_attention::{MlaOptions, MlaScratch, mla_attention_with};
use glm5::tensor::{CacheType, Device};
use proptest::test_runner::TestCaseResult;

use super::blocks::Rng;
use super::close::{POISON, close};
use super::inputs::*;
use super::mla_attention::{Expected, dealt, merged, queries, selection, selections};
pub use super::mla_decode::case;
use super::mla_decode::{Case, RANK, WIDTH, by_each, near_reference, rounded, roundoff};
use super::sequences::{Batch, Sequence};

macro_rules! mla_parts_properties {
    ($devices:path, $cases:expr) => {
        $crate::suites::properties! { mla_parts, $devices, $cases;
        parts_merge_by_log_sum_exp(case);
        takes_thousands_of_keys, rows_are_cut_into_pieces_of_any_number, graphs_follow_rows_that_move_on }
    };
}
pub(crate) use mla_parts_properties;

/// Attention over disjoint parts of the keys, put together by the logarithms of their sums, is attention over all of them. Weights are rounded
/// relative to the base of their part, so that the bound of a part is that of all.
pub fn parts_merge_by_log_sum_exp(devices: &[Device], c: Case) -> TestCaseResult {
    let (batch, q, selected) = c.inputs();
    let rng = &mut Rng(c.seed ^ 3);
    let mut parts = Vec::new();
    for part in dealt(&batch, selected.as_deref(), 1 + rng.below(3), [1, 16, 64][rng.below(3)]) {
        parts.push(by_each(devices, &c, &batch, &q, Some(&part))?);
    }
    let want = Expected::new(&batch, &rounded(&q, c.ty), selected.as_deref(), &c.config());
    let (relative, absolute) = roundoff(c.ty);
    for kernel in 0..parts[0].len() {
        let of_kernel: Vec<_> = parts.iter().map(|part| part[kernel].clone()).collect();
        let (out, lse) = merged(&of_kernel, RANK);
        close("out", &out, &want.out, |i| {
            want.merged_off(i, RANK) + relative * want.magnitudes[i] + absolute * 200.0 * want.largest[i]
        })?;
        close("lse", &lse, &want.lse, |i| want.lse_off[i])?;
    }
    Ok(())
}

/// Keys of sizes that are spread as the exponentials of normal values, and that grow along the sequence: the largest logits come late, in pieces
/// of their own, and what came before them is brought down again and again.
fn growing(c: &Case) -> (Batch, Vec<f32>) {
    let (mut batch, q, _) = c.inputs();
    let rng = &mut Rng(c.seed ^ 4);
    let lens: Vec<usize> = c.sequences.iter().map(|s| s.len).collect();
    let mut keys = lens.iter().flat_map(|len| (0..*len).map(move |p| 0.25 + p as f32 / *len as f32));
    batch.scale_blocks(WIDTH, || keys.next().unwrap() * (0.6 * rng.normal()).exp());
    (batch, q)
}

/// One row, dense and over half of its keys: on a GPU of many multiprocessors its tiles are cut into more pieces than a warp has lanes, and than
/// blocks of threads that merge have on their way at a time.
pub fn takes_thousands_of_keys(devices: &[Device]) {
    for (i, ty) in [CacheType::Bf16, CacheType::F16, CacheType::Fp8].into_iter().enumerate() {
        let sequences = vec![Sequence { len: 3001 + 33 * i, new: 1 }];
        let c = Case { sequences, heads: 1 + i, ty, sparse: false, seed: 20 + i as u64 };
        let (batch, q) = growing(&c);
        let rng = &mut Rng(c.seed);
        let half: Vec<u32> = (0..c.sequences[0].len as u32).filter(|_| rng.below(2) == 0).collect();
        for selected in [None, Some(&[half][..])] {
            for got in by_each(devices, &c, &batch, &q, selected).unwrap() {
                near_reference(&c, &batch, &q, selected, &got).unwrap();
            }
        }
    }
}

/// Rows of a few pieces each, which threads of their own put together, and rows of which one piece has all. Also with queries so large that sums
/// relative to the largest logit of one piece would be beyond what f32 holds at that of another.
pub fn rows_are_cut_into_pieces_of_any_number(devices: &[Device]) {
    let sequences = [(900, 1), (64, 1), (650, 2), (1, 1)].map(|(len, new)| Sequence { len, new }).to_vec();
    let c = Case { sequences, heads: 35, ty: CacheType::Bf16, sparse: false, seed: 30 };
    let (batch, q) = growing(&c);
    let selected = selections(&batch, &mut Rng(31));
    let large: Vec<f32> = q.iter().map(|q| 16.0 * q).collect();
    for (q, selected) in [(&q, Some(&selected[..])), (&large, None)] {
        for got in by_each(devices, &c, &batch, q, selected).unwrap() {
            near_reference(&c, &batch, q, selected, &got).unwrap();
        }
    }
}

/// Recorded when rows see a key or four, and run until they see the last one that the pages of their tables hold. By kernels of matrix
/// instructions and in f32.
pub fn graphs_follow_rows_that_move_on(devices: &[Device]) {
    let types =
        [(CacheType::Bf16, 20, 1), (CacheType::F16, 3, 4), (CacheType::Fp8, 40, 2), (CacheType::F32, 2, 3)];
    let cases = types.into_iter().flat_map(|of| [(of, false), (of, true)]);
    for (d, ((ty, heads, new), sparse)) in devices.iter().flat_map(|d| cases.clone().map(move |of| (d, of))) {
        let k = 70;
        let full = [Sequence { len: 192, new }, Sequence { len: 128, new: 2 }];
        let c = Case { sequences: full.to_vec(), heads, ty, sparse, seed: 12 };
        let all = c.inputs().0.without_spare_pages();
        let (cache, mut rows) = all.on(d).unwrap();
        let m = all.rows();
        let mut scratch = MlaScratch::new(d).unwrap();
        let (mut q, mut out) = (poisoned(d, m, heads * WIDTH), poisoned(d, m, heads * RANK));
        let mut lse = poisoned(d, m, heads);
        let mut selected = selection(d, &vec![vec![0; k - 2]; m]).unwrap();
        let mut graph = None;
        // Keys before the rows of the step.
        let steps = [(0, 0), (1, 1), (63, 60), (64, 65), (130, 126), (192 - new, 20), (40, 126)];
        for (step, (first, second)) in steps.into_iter().enumerate() {
            let batch =
                all.earlier(&[Sequence { len: first + new, new }, Sequence { len: second + 2, new: 2 }]);
            let values = queries(&batch, &c.config(), &mut Rng(step as u64));
            // All, or every third that is not newer than the row.
            let every = |p: u32| (0..=p).filter(|s| p < 64 || (p - s).is_multiple_of(3)).collect();
            let positions: Vec<Vec<u32>> = batch.positions().into_iter().map(every).collect();
            batch.lay_out(d, &mut rows).unwrap();
            q.cuda_mut().unwrap().upload(0, &values).unwrap();
            for (t, row) in positions.iter().enumerate() {
                selected.indices.cuda_mut().unwrap().upload(t * k, row).unwrap();
                selected.lens.cuda_mut().unwrap().upload(t, &[row.len() as u32]).unwrap();
            }
            out.fill(POISON).unwrap();
            lse.fill(POISON).unwrap();
            let graph = graph.get_or_insert_with(|| {
                let call = || {
                    let options =
                        MlaOptions { lse: Some(&mut lse), scratch: Some(&mut scratch), kernel: None };
                    let selected = sparse.then_some(&selected);
                    mla_attention_with(options, &q, &cache, &rows, selected, &c.config(), &mut out)
                };
                d.gpu().unwrap().capture(call).unwrap()
            });
            graph.launch().unwrap();
            let got = (host(&out), host(&lse));
            near_reference(&c, &batch, &values, sparse.then_some(&positions[..]), &got).unwrap();
        }
    }
}
