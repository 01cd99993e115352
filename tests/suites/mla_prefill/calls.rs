//! Recorded calls of the expanded form, and calls that are refused.

use super::*;

/// A recorded call reads queries and latent rows anew, for rows at the same positions in the same pages.
pub fn a_graph_reads_anew(devices: &[Device]) {
    let c = Case { sequences: vec![Sequence { len: 150, new: 3 }], heads: 2, seed: 41 };
    for d in devices.iter().filter(|d| d.gpu().is_ok()) {
        let (first, _) = c.inputs();
        let (mut cache, rows) = first.on(d).unwrap();
        let mut all = RaggedRows::default();
        all.push(0, 150, &first.tables()[0]).unwrap();
        all.upload(d).unwrap();
        let mut scratch = PrefillScratch::new(d, 2, 3, 128).unwrap();
        let [k_b, v_b] = weights(2).map(|w| matrix(d, &w));
        let (mut q, mut out) = (poisoned(d, 3, 2 * HEAD), poisoned(d, 3, 2 * V));
        let gpu = d.gpu().unwrap();
        let mut graph = gpu
            .capture(|| {
                let options = PrefillOptions { lse: None, scratch: Some(&mut scratch) };
                mla_prefill_with(options, &q, &cache, &rows, &k_b, &v_b, &config(2), &mut out)
            })
            .unwrap();
        for step in 0..2 {
            let batch = first.with_other_keys(|_, _| step > 0, &mut Rng(step));
            let values = Rng(50 + step).normals(3 * 2 * HEAD);
            cache.write(&all, &tensor(d, RANK + ROPE, &batch.keys[0])).unwrap();
            q.cuda_mut().unwrap().upload(0, &values).unwrap();
            graph.launch().unwrap();
            let want = call(d, &batch.on(d).unwrap(), &values, &weights(2), None).unwrap().0;
            equal("out", &host(&out), &want).unwrap();
        }
    }
}

/// Rows and lengths of sequences are parameters of launches: other pages are followed, other positions and lengths of tables refused.
pub fn a_graph_keeps_to_its_positions(devices: &[Device]) {
    let sequences =
        vec![Sequence { len: 40, new: 1 }, Sequence { len: 150, new: 2 }, Sequence { len: 70, new: 1 }];
    let c = Case { sequences, heads: 1, seed: 42 };
    for d in devices.iter().filter(|d| d.gpu().is_ok()) {
        let (batch, q) = c.inputs();
        let q_there = tensor(d, HEAD, &q);
        let (mut cache, mut rows) = batch.on(d).unwrap();
        let mut scratch = PrefillScratch::new(d, 1, 4, 128).unwrap();
        let [k_b, v_b] = weights(1).map(|w| matrix(d, &w));
        let mut out = poisoned(d, 4, V);
        let gpu = d.gpu().unwrap();
        let mut graph = gpu
            .capture(|| {
                let options = PrefillOptions { lse: None, scratch: Some(&mut scratch) };
                mla_prefill_with(options, &q_there, &cache, &rows, &k_b, &v_b, &config(1), &mut out)
            })
            .unwrap();
        let want = call(d, &batch.on(d).unwrap(), &q, &weights(1), None).unwrap().0;
        let tables = batch.tables();
        let mut upload = |starts: [usize; 3], tables: [&[u32]; 3]| {
            rows.clear();
            for ((start, new), table) in starts.into_iter().zip([1, 2, 1]).zip(tables) {
                rows.push(start, new, table).unwrap();
            }
            rows.upload(d)
        };
        let [a, b, c] = [&tables[0][..], &tables[1], &tables[2]];
        let moved = upload([39, 147, 69], [a, b, c]);
        let exchanged = upload([39, 148, 69], [b, &b[..3], &b[..2]]);
        for refused in [moved, exchanged] {
            assert!(matches!(refused, Err(glm5::Error::Unsupported { .. })), "{refused:?}");
        }
        // The last page of the second sequence moves to one that nobody has, and other keys lie where it was.
        let spare = (0..).find(|page| !tables.iter().flatten().any(|other| other == page)).unwrap();
        let elsewhere: Vec<u32> = b.iter().map(|page| if *page == b[2] { spare } else { *page }).collect();
        for there in [b, &elsewhere] {
            upload([39, 148, 69], [a, there, c]).unwrap();
            out.fill(super::super::close::POISON).unwrap();
            graph.launch().unwrap();
            equal("out", &host(&out), &want).unwrap();
            cache.copy_page(b[2], spare).unwrap();
            cache.copy_page(a[0], b[2]).unwrap();
        }
    }
}

/// A weight that is not finite is seen in what it makes, at the latest as a number that no model has.
pub fn broken_weights_are_seen(devices: &[Device]) {
    let c = Case { sequences: vec![Sequence { len: 40, new: 10 }], heads: 1, seed: 43 };
    let (batch, q) = c.inputs();
    for d in devices {
        for (which, value) in [(0, f32::NAN), (1, f32::NAN), (1, f32::INFINITY)] {
            let mut broken = weights(1);
            let shape = broken[which].shape();
            let mut values = vec![0.0; shape.iter().product()];
            glm5::quant::dequantize(broken[which].ty(), broken[which].bytes(), &mut values).unwrap();
            values[5] = value;
            broken[which] = Weight::from_f32(shape, &values).unwrap();
            let got = call(d, &batch.on(d).unwrap(), &q, &broken, None).unwrap().0;
            let seen = |row: &[f32]| row.iter().any(|v| !v.is_finite() || v.abs() > 1e30);
            assert!(got.chunks(V).all(seen), "{} of {which} on {}", value, d.name());
        }
    }
}

pub fn refuses_what_does_not_fit(devices: &[Device]) {
    let d = &devices[0];
    let batch = Batch::random(&[Sequence { len: 3, new: 3 }], RANK + ROPE, CacheType::Bf16, &mut Rng(1));
    let (cache, rows) = batch.on(d).unwrap();
    let config = config(2);
    let [k_b, v_b] = weights(2).map(|w| matrix(d, &w));
    let zeros = |rows, cols| Tensor::zeros(d, rows, cols).unwrap();
    let of = |slabs, rows, cols| matrix(d, &random_weight(GgmlType::F32, slabs, rows, cols, 3));
    let q = zeros(3, 2 * HEAD);
    let wide = PagedRows::new(d, 9, RANK + ROPE + 1, CacheType::Bf16).unwrap();
    let small = PagedRows::new(d, 1, RANK + ROPE, CacheType::Bf16).unwrap();
    let mut beyond = RaggedRows::default();
    beyond.push(0, 3, &[1]).unwrap();
    let wrong = MlaConfig { n_heads: 3, ..config };
    let [mut out, mut narrow, mut tall] =
        [(3, 2 * V), (3, 2 * V - 1), (4, 2 * V)].map(|(rows, cols)| poisoned(d, rows, cols));
    let mut lse = poisoned(d, 3, 3);
    let with_lse = PrefillOptions { lse: Some(&mut lse), scratch: None };
    refused(vec![
        ("q cols", mla_prefill(&zeros(3, 2 * HEAD - 1), &cache, &rows, &k_b, &v_b, &config, &mut out)),
        ("q rows", mla_prefill(&zeros(2, 2 * HEAD), &cache, &rows, &k_b, &v_b, &config, &mut out)),
        ("out cols", mla_prefill(&q, &cache, &rows, &k_b, &v_b, &config, &mut narrow)),
        ("out rows", mla_prefill(&q, &cache, &rows, &k_b, &v_b, &config, &mut tall)),
        ("heads", mla_prefill(&q, &cache, &rows, &k_b, &v_b, &wrong, &mut out)),
        ("k_b", mla_prefill(&q, &cache, &rows, &of(2, RANK - 1, NOPE), &v_b, &config, &mut out)),
        ("v_b", mla_prefill(&q, &cache, &rows, &k_b, &of(2, V, RANK + 1), &config, &mut out)),
        ("slabs", mla_prefill(&q, &cache, &rows, &k_b, &of(1, V, RANK), &config, &mut out)),
        ("cache width", mla_prefill(&q, &wide, &rows, &k_b, &v_b, &config, &mut out)),
        ("slots", mla_prefill(&q, &small, &beyond, &k_b, &v_b, &config, &mut out)),
        ("lse", mla_prefill_with(with_lse, &q, &cache, &rows, &k_b, &v_b, &config, &mut out)),
    ]);
    if d.gpu().is_ok() {
        for (heads, m) in [(1, 3), (2, 2)] {
            let mut scratch = PrefillScratch::new(d, heads, m, 128).unwrap();
            let options = PrefillOptions { lse: None, scratch: Some(&mut scratch) };
            let result = mla_prefill_with(options, &q, &cache, &rows, &k_b, &v_b, &config, &mut out);
            assert!(matches!(result, Err(glm5::Error::Shape { .. })), "{result:?}");
        }
        // Widths that no kernel has, rows that were not uploaded.
        let other = MlaConfig { qk_rope_head_dim: 32, ..config };
        let cache_of = PagedRows::new(d, 9, RANK + 32, CacheType::Bf16).unwrap();
        let k_of = of(2, RANK, NOPE + 32);
        let mut unknown = RaggedRows::default();
        unknown.push(0, 3, &[0]).unwrap();
        for result in [
            mla_prefill(&q, &cache_of, &rows, &k_of, &v_b, &other, &mut out),
            mla_prefill(&q, &cache, &unknown, &k_b, &v_b, &config, &mut out),
        ] {
            assert!(matches!(result, Err(glm5::Error::Unsupported { .. })), "{result:?}");
        }
    } else {
        let scratch = PrefillScratch::new(d, 1, 1, 1);
        assert!(matches!(scratch, Err(glm5::Error::Unsupported { .. })));
    }
    let elsewhere: Matrix = matrix(&Device::cpu(Some(1)).unwrap(), &weights(2)[0]);
    if d.gpu().is_ok() {
        let result = mla_prefill(&q, &cache, &rows, &elsewhere, &v_b, &config, &mut out);
        assert!(matches!(result, Err(glm5::Error::Unsupported { .. })), "{result:?}");
    }
    assert!([out, narrow, tall, lse].iter().all(untouched), "a refused call wrote something");
}
